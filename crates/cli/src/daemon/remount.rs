//! Other options for a mount while it is used: the daemon's part of mount(8)'s `remount`.
//!
//! Between `ro` and `rw` the store is opened anew ([`super::live`]), as a mount does it, so that a read-only mount writes nothing and leaves the
//! store in order. The kernel is told by whoever asks: first for `ro`, so that nothing is open for writing when the daemon is told, last
//! for `rw`.

use super::State;
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use holdfast_fuse::notify;
use holdfast_naming::Atime;
use holdfast_object::ObjectId;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

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
    let request: RemountRequest = serde_json::from_slice(request)
        .map_err(|error| Failure::new(format!("the mount does not understand what it is asked: {error}")))?;
    let wanted = MountOptions::parse(&[request.options]).map_err(Failure::new)?;
    // Held to the end: one remount after the other.
    let mut options = state.options.lock();
    options.can_become(&wanted).map_err(Failure::new)?;
    exchange(state, &wanted)?;
    let atime = if wanted.flags.read_only { Atime::Never } else { wanted.atime };
    let live = state.live.read();
    live.stack.namespace.set_access_times(atime, wanted.flags.no_dir_atime);
    tracing::info!("has other options now: {}", wanted.words());
    *options = wanted;
    if !live.read_only && live.stack.recovered.batches > 0 {
        tell_kernel(state, live.stack.cache.held());
    }
    Ok(())
}

/// Opens the store as `wanted` says, unless it is open like that.
fn exchange(state: &State, wanted: &MountOptions) -> Result<()> {
    let busy = || Failure::new("it is busy with something else; try again later");
    let mut live = state.live.try_write_for(PATIENCE).ok_or_else(busy)?;
    let read_only = wanted.flags.read_only;
    if live.read_only == read_only {
        return Ok(());
    }
    live.scrubber.stop();
    let mut anew = None;
    let exchanged = state.served.exchange(PATIENCE, || {
        let (stack, device) = live.opened_anew(wanted)?;
        let namespace = stack.namespace.clone();
        anew = Some((stack, device));
        Ok(namespace)
    });
    if let Some((stack, device)) = anew {
        (live.stack, live.device, live.read_only) = (stack, device, read_only);
    }
    live.scrubber = live.scrubber.moved_to(&live.stack);
    exchanged.ok_or_else(busy)?
}

/// What the kernel remembers of these objects may have changed by the replay of the intent log: what was seen until now was the last
/// recovery point. (What it remembers of names goes by the remount itself.)
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
