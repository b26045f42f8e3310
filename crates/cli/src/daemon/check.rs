//! The check of a mount: a thread that reads a recovery point from the disk, by a stack of its own, while the mount makes newer ones.
//!
//! What it finds is kept until the next one begins. It comes after everybody else: where the store needs the room that newer recovery points
//! have freed, or begins one anew as memory has gone bad, the check ends without a result.

use super::{Mounting, spawn};
use crate::check::{CheckReply, Point, Stage, Subject, examine};
use crate::failure::{Failure, Result};
use crate::given_up::GivenUp;
use crate::report::show_uuid;
use crate::stack::{self, Stack};
use holdfast_object::ObjectCache;
use holdfast_physical::Frozen;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// A mount's check.
#[derive(Default)]
pub(super) struct Checker {
    shared: Arc<Mutex<Shared>>,
    /// Locked by whoever begins or ends one, before `shared`.
    thread: Mutex<Option<Running>>,
}

#[derive(Default)]
struct Shared {
    /// Of the check under way, or of the last one.
    reply: Option<CheckReply>,
}

struct Running {
    /// Kept by the thread alone, so that nothing is kept back longer than it reads.
    frozen: Weak<Frozen>,
    thread: JoinHandle<()>,
}

impl Checker {
    /// Makes a recovery point, and begins to check it; one under way goes on. What earlier mounts gave up is told with what it finds.
    pub(super) fn begin(&self, stack: &Stack, mounting: &Mounting, given_up: Option<GivenUp>) -> Result<CheckReply> {
        let mut running = self.thread.lock();
        if matches!(self.shared.lock().reply, Some(CheckReply::Running { .. })) {
            return Ok(self.reply());
        }
        // Where nothing can be written any more, what there is is checked.
        if stack.status().read_only.is_none() {
            stack.cache.sync_all().map_err(stack::says)?;
        }
        let frozen = Arc::new(stack.module.freeze().map_err(stack::says)?);
        tracing::info!(epoch = frozen.epoch(), "a check begins");
        let point = Point { uuid: show_uuid(&stack.module.store_uuid()), epoch: frozen.epoch() };
        let first = CheckReply::Running { point: point.clone(), stage: Stage::Blocks, at: 0, total: 1 };
        self.shared.lock().reply = Some(first);
        let (shared, weak) = (self.shared.clone(), Arc::downgrade(&frozen));
        let (store, directory) = (mounting.store.clone(), mounting.directory.clone());
        let run = move || look_through(&shared, frozen, &point, given_up, (&store, &directory));
        match spawn("check".into(), run) {
            Ok(thread) => *running = Some(Running { frozen: weak, thread }),
            Err(error) => {
                self.shared.lock().reply = None;
                return Err(Failure::new(format!("no thread for the check: {error}")));
            }
        }
        Ok(self.reply())
    }

    pub(super) fn reply(&self) -> CheckReply {
        let none = || CheckReply::Refused("there has been no check since it was mounted".to_string());
        self.shared.lock().reply.clone().unwrap_or_else(none)
    }

    /// Ends it, and gives what there is to tell.
    pub(super) fn stop(&self) -> CheckReply {
        if let Some(Running { frozen, thread }) = self.thread.lock().take() {
            if let Some(frozen) = frozen.upgrade() {
                frozen.stop();
            }
            // A panic has aborted the process.
            let _ = thread.join();
        }
        self.reply()
    }
}

fn look_through(
    shared: &Mutex<Shared>,
    frozen: Arc<Frozen>,
    point: &Point,
    given_up: Option<GivenUp>,
    (store, directory): (&Path, &Path),
) {
    let given_up = |_: &Stack| given_up.clone();
    let subject =
        Subject { device: frozen.clone(), store, mounted: Some(directory), repair: false, given_up: &given_up };
    let outcome = examine(subject, &mut |stage, at, total| {
        shared.lock().reply = Some(CheckReply::Running { point: point.clone(), stage, at, total });
    });
    // Whatever was found may be because of that.
    let reply = match (frozen.over(), outcome) {
        (Some(reason), _) => CheckReply::Refused(format!("the check has ended without a result: {reason}")),
        (None, Ok(checked)) => CheckReply::Done(Box::new(checked)),
        (None, Err(failure)) => CheckReply::Refused(failure.message),
    };
    let epoch = frozen.epoch();
    match &reply {
        CheckReply::Done(checked) => {
            tracing::info!(epoch, exit_code = checked.exit_code, "the check has ended")
        }
        CheckReply::Refused(message) => tracing::warn!("{message}"),
        CheckReply::Running { .. } => {}
    }
    // Whoever hears that it is over finds nothing kept back.
    drop(frozen);
    shared.lock().reply = Some(reply);
}
