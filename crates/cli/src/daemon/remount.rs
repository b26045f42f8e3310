//! Other options for a mount while it is used: the daemon's part of mount(8)'s `remount`.
//!
//! Between `ro` and `rw` the store is opened anew ([`super::live`]), as a mount does it, so that a read-only mount writes nothing and leaves the
//! store in order. The kernel is told by whoever asks: first for `ro`, so that nothing is open for writing when the daemon is told, last
//! for `rw`.

use super::live::Anew;
use super::{State, asked};
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use holdfast_fuse::adapter::by_turns;
use holdfast_fuse::notify;
use holdfast_naming::Atime;
use holdfast_object::ObjectId;
use parking_lot::RwLockWriteGuard;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for an epoch that is being written, or for requests that do not end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait until the kernel has dropped what it remembers; it goes on afterwards.
const PATIENCE_TO_TELL: Duration = Duration::from_secs(2);

/// What the daemon is asked.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemountRequest {
    /// All options of the mount, as after `-o`.
    pub(crate) options: String,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemountReply {
    /// Why it keeps the options that it had.
    pub(crate) refusal: Option<String>,
}

/// Gives the mount the options that the request has.
pub(super) fn apply(state: &State, uid: u32, request: &[u8]) -> Result<()> {
    if uid != 0 {
        return Err(Failure::new("only root changes the options of a mount"));
    }
    let request: RemountRequest = asked(request)?;
    let wanted = MountOptions::parse(&[request.options]).map_err(Failure::new)?;
    // Held to the end: one remount after the other.
    let _one_at_a_time = state.remounting.lock();
    state.options.lock().can_become(&wanted).map_err(Failure::new)?;
    let exchanged = exchange(state, &wanted)?;
    if let Some(Exchanged { refusal: Some(failure), held, .. }) = exchanged {
        tell_kernel(state, held);
        return Err(failure);
    }
    let atime = if wanted.flags.read_only { Atime::Never } else { wanted.atime };
    state.live.read().stack.namespace.set_access_times(atime, wanted.flags.no_dir_atime);
    tracing::info!("has other options now: {}", wanted.words());
    *state.options.lock() = wanted;
    if let Some(Exchanged { replayed: true, held, .. }) = exchanged {
        tell_kernel(state, held);
    }
    Ok(())
}

/// What became of it.
struct Exchanged {
    /// The contents may be others than before.
    replayed: bool,
    /// What the kernel holds.
    held: Vec<ObjectId>,
    /// Why it is not as was wanted.
    refusal: Option<Failure>,
}

/// Opens the store as `wanted` says; nothing if it is open like that.
fn exchange(state: &State, wanted: &MountOptions) -> Result<Option<Exchanged>> {
    // Only a remount changes how it is open, and there is one at a time.
    if state.up()?.read_only == wanted.flags.read_only {
        return Ok(None);
    }
    let deadline = Instant::now() + PATIENCE;
    by_turns(deadline, |patience| attempt(state, wanted, deadline, patience))?.map(Some).ok_or_else(busy)
}

fn busy() -> Failure {
    Failure::new("it is busy with something else; try again later")
}

/// Keeps requests waiting for `patience`, until there are none; nothing if there was no such moment.
fn attempt(state: &State, wanted: &MountOptions, deadline: Instant, patience: Duration) -> Result<Option<Exchanged>> {
    let mut live = state.live.try_write_until(deadline).ok_or_else(busy)?;
    // Whoever shuts it down says so first, and then waits for `live`.
    state.check_up()?;
    // It may be writing its record. What that is on was there before the mount, so it waits for no request.
    live.scrubber.halt();
    // It looks through the stack that is exchanged.
    state.checker.stop();
    let mut anew = None;
    let outcome: Option<Result<()>> = state.served.exchange(patience, || {
        let anew = anew.insert(live.opened_anew(wanted)?);
        if let Some(reason) = anew.down {
            let _ = state.down.set(reason);
        }
        Ok(anew.stack.namespace.clone())
    });
    let exchanged = anew.map(|Anew { stack, disks, read_only, replayed, refusal, .. }| {
        let held = stack.cache.held();
        (live.stack, live.disks, live.read_only) = (stack, disks, read_only);
        Exchanged { replayed, held, refusal }
    });
    if state.check_up().is_ok() {
        live.scrubber = live.scrubber.moved_to(&live.stack);
    }
    // Whoever waits for it comes before the next attempt.
    RwLockWriteGuard::unlock_fair(live);
    outcome.transpose()?;
    Ok(exchanged)
}

/// What the kernel remembers of these objects may have changed by the replay of the intent log: what was seen until now was the last
/// recovery point. (What it remembers of names goes by the remount itself, or by that to what it was, if this is refused.)
fn tell_kernel(state: &State, objects: Vec<ObjectId>) {
    let Some(Ok(kernel)) = state.kernel.get().map(|kernel| kernel.try_clone()) else { return };
    let (done, all_told) = mpsc::channel();
    let tell = move || {
        for object in objects {
            if let Err(error) = notify::invalidate_object(kernel.as_fd(), object.0, 0, 0) {
                tracing::debug!(%error, object = object.0, "the kernel was not told of a change");
            }
        }
        let _ = done.send(());
    };
    // Not in this thread: the kernel may wait for the answer to a read first, and this may be the only worker.
    match thread::Builder::new().name("tell".into()).spawn(tell) {
        Ok(_) => drop(all_told.recv_timeout(PATIENCE_TO_TELL)),
        Err(error) => tracing::warn!(%error, "the kernel was not told of what has changed"),
    }
}
