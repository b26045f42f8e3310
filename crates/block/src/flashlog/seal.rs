//! The *seal*: a page without blocks that says that all pages before it are durable, written when nothing else is. What is missing in front
//! of it has been damaged; without it, damage to what the last flush wrote looks like what a power cut leaves.

use super::append::{Head, pages_for};
use super::device::{Failure, Flashlog};
use super::stages::Stages;
use crate::{Error, Operation};
use std::time::Duration;

/// It is written when nothing has come to the log for so long after a flush: under load, the next pages say the same for nothing.
const SEAL_AFTER: Duration = Duration::from_secs(1);

/// What the thread that serves main must know to write it.
#[derive(Default)]
pub(super) struct Sealing {
    /// When the log was flushed, if nothing has come to it since.
    flushed: Option<Duration>,
    /// The thread waits for the time, so it need not be told of further flushes.
    pub(super) is_awaited: bool,
}

impl Sealing {
    /// The log was flushed. Whether the thread must be told.
    pub(super) fn flushed(&mut self, now: Duration) -> bool {
        self.flushed = Some(now);
        !self.is_awaited
    }

    /// Something has come to the log.
    pub(super) fn written(&mut self) {
        self.flushed = None;
    }

    /// When it is time, if nothing is written until then.
    pub(super) fn time(&self) -> Option<Duration> {
        self.flushed.map(|at| at + SEAL_AFTER)
    }
}

impl Flashlog {
    /// If nothing has come to the log since it was flushed, and nothing says yet that this was: writes a page that does. It costs no flush; a
    /// power cut that takes it takes nothing else. [`Flashlog::serve_main`] does it when the log has been idle for a second; this is for
    /// callers without such a thread.
    ///
    /// # Errors
    /// As for [`Device::flush`](crate::Device::flush).
    pub fn seal(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        self.heed(self.write_seal())
    }

    pub(super) fn write_seal(&self) -> Result<(), Failure> {
        let mut head = self.head.lock();
        self.check_latch()?;
        let is_due = self.stages.lock().sealing.flushed.take().is_some();
        if is_due && self.has_room_for_seal(&head) { self.append_seal(&mut head) } else { Ok(()) }
    }

    /// Nobody is to make room for it, or let main catch up; a full log's next label says the same.
    fn has_room_for_seal(&self, head: &Head) -> bool {
        let used = head.next.page - head.labels.label.tail.page;
        used + 1 + 2 * pages_for(2 * self.gather_blocks) <= self.rings.areas.meta_blocks
    }

    /// Notes that the log was flushed. Whether an idle thread must be told.
    pub(super) fn note_flushed(&self, head: &Head, stages: &mut Stages) -> bool {
        !head.is_sealed && stages.sealing.flushed(self.options.timer.now()) && stages.company.idle > 0
    }
}
