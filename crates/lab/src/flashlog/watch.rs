//! The devices of a life: what they get is recorded, each request is a moment, and one of them may fail for good. The process may be killed at
//! any request: what it had not flushed is in the devices' caches then, and the next process finds it there.

use super::Plant;
use super::life::Start;
use crate::device::{CrashImages, Recorder};
use holdfast_block::flashlog::Order;
use holdfast_block::{Device, Error, Filter, MemoryDevice, Operation};
use parking_lot::Mutex;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Names of the devices, in the order in which they are counted everywhere here.
pub(super) const DEVICES: [&str; 3] = ["main", "log", "backup"];
pub(super) const MAIN: usize = super::Device::Main as usize;
pub(super) const LOG: usize = super::Device::Log as usize;
pub(super) const BACKUP: usize = super::Device::Backup as usize;

/// How far the workload was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Blocks whose writes have begun.
    pub(super) begun: usize,
    /// Blocks whose writes must be there: a flush has answered them, or a device has failed, and what had been answered went to the one
    /// that is left.
    pub(super) flushed: usize,
    /// The set has been opened: main has what the life began with.
    pub(super) is_open: bool,
    /// It is as a killed process has left it, or is being opened by the next one.
    pub(super) is_left: bool,
    /// Of a set that outlasts its log: main alone must have so many blocks' writes ...
    pub(super) on_main: usize,
    /// ... and backup and log these.
    pub(super) in_log: usize,
    /// A new log is being made of what was the log.
    pub(super) is_new: bool,
    /// The backup is being made another one: it may have no label.
    pub(super) is_new_backup: bool,
    /// A call has told that a device failed, and has brought what had been answered to the one that is left.
    pub(super) is_rescued: bool,
    /// The action.
    pub(super) step: usize,
    /// Processes that were killed so far.
    pub(super) kills: usize,
}

/// A moment at which the power may be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Recorder positions of main, log and backup.
    pub(super) positions: [usize; 3],
    pub(super) progress: Progress,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([main, log, backup], Progress { begun, flushed, step, kills, .. }) = (self.positions, self.progress);
        let killed = if kills > 0 { format!(", {kills} times killed") } else { String::new() };
        write!(
            f,
            "positions {main}, {log} and {backup}, in step {step} ({flushed} blocks flushed, {begun} begun{killed})"
        )
    }
}

/// A device that fails for good: the request with this number, of its writes and flushes in a life, and all after it, reads too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) device: usize,
    pub(super) request: usize,
    /// The write that failed is on its way to the medium all the same.
    pub(super) is_begun: bool,
}

/// What befalls a life.
#[derive(Clone, Copy)]
pub(super) enum Mishap<'a> {
    None,
    Loss(Loss),
    /// Its processes are killed after so many requests, the last one first.
    Kills(&'a [u64]),
}

impl Mishap<'_> {
    pub(super) fn loss(self) -> Option<Loss> {
        match self {
            Mishap::Loss(loss) => Some(loss),
            Mishap::None | Mishap::Kills(_) => None,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = if self.is_begun { ", begun" } else { "" };
        write!(f, "{} fails at request {}{begun}", DEVICES[self.device], self.request)
    }
}

#[derive(Default)]
struct Seen {
    progress: Progress,
    moments: Vec<Moment>,
    /// Writes and flushes of each device so far.
    requests: [usize; 3],
    /// The moment at which the device has failed.
    lost_at: Option<usize>,
    /// It is there again.
    is_back: bool,
    /// Which of all requests were flushes of each device.
    flushes: [Vec<u64>; 3],
    /// After so many requests each process is killed, the last one first.
    kills: Vec<u64>,
    is_killed: bool,
    /// The moments at which they were.
    killed_at: Vec<usize>,
    /// This process has written to the device.
    has_written: [bool; 3],
}

/// All recorders, and the moments so far.
pub(super) struct Watched {
    recorders: Vec<Recorder>,
    loss: Option<Loss>,
    plant: Plant,
    seen: Mutex<Seen>,
}

impl Watched {
    pub(super) fn over(devices: [&MemoryDevice; 3], loss: Option<Loss>) -> Arc<Watched> {
        Self::planted(devices, loss, Plant::Order(Order::Correct))
    }

    /// Those of a life, with the mistake, if it is one of a device.
    pub(super) fn of_life(start: &Start, mishap: Mishap<'_>) -> Arc<Watched> {
        let watched = Self::planted([&start.main, &start.log, &start.backup], mishap.loss(), start.plant);
        if let Mishap::Kills(kills) = mishap {
            watched.seen.lock().kills = kills.to_vec();
        }
        watched
    }

    fn planted(devices: [&MemoryDevice; 3], loss: Option<Loss>, plant: Plant) -> Arc<Watched> {
        let recorders = devices.iter().map(|device| Recorder::in_memory(device)).collect();
        let watched = Arc::new(Watched { recorders, loss, plant, seen: Mutex::default() });
        watched.note();
        watched
    }

    pub(super) fn devices(watched: &Arc<Watched>) -> [Arc<dyn Device>; 3] {
        [0, 1, 2].map(|at| Arc::new(Watch(Arc::clone(watched), at)) as Arc<dyn Device>)
    }

    pub(super) fn moments(&self) -> Vec<Moment> {
        self.seen.lock().moments.clone()
    }

    pub(super) fn images(&self) -> [CrashImages; 3] {
        [0, 1, 2].map(|at| self.recorders[at].crash_images())
    }

    /// Writes and flushes of each device so far.
    pub(super) fn requests(&self) -> [usize; 3] {
        self.seen.lock().requests
    }

    /// Which of all of them, counted together, were flushes of each.
    pub(super) fn flushes(&self) -> [Vec<u64>; 3] {
        self.seen.lock().flushes.clone()
    }

    /// The moment at which a device has failed, if one has.
    pub(super) fn lost_at(&self) -> Option<usize> {
        self.seen.lock().lost_at
    }

    pub(super) fn has_lost(&self, device: usize) -> bool {
        let seen = self.seen.lock();
        self.loss.is_some_and(|loss| loss.device == device) && seen.lost_at.is_some() && !seen.is_back
    }

    /// The device that has failed was only pulled out, and is there again.
    pub(super) fn put_back(&self) {
        let mut seen = self.seen.lock();
        seen.is_back = seen.lost_at.is_some();
    }

    /// The process has been killed: nothing that it does gets anywhere.
    pub(super) fn is_killed(&self) -> bool {
        self.seen.lock().is_killed
    }

    /// The moments at which processes were.
    pub(super) fn killed_at(&self) -> Vec<usize> {
        self.seen.lock().killed_at.clone()
    }

    /// Another process takes up what there is, and the next one if it is killed at that. What the devices have in their caches is there.
    pub(super) fn taken_up<T, E>(&self, open: impl Fn() -> Result<T, E>) -> Result<T, E> {
        loop {
            {
                let mut seen = self.seen.lock();
                (seen.is_killed, seen.has_written) = (false, [false; 3]);
            }
            let done = open();
            let mut seen = self.seen.lock();
            if !seen.is_killed {
                seen.progress.is_left = false;
                return done;
            }
        }
    }

    /// So many of the blocks whose writes had begun are there: the killed process has not got further with any of the others.
    pub(super) fn is_there(&self, count: usize) {
        let mut seen = self.seen.lock();
        seen.progress.begun = count;
        seen.moments.iter_mut().for_each(|moment| moment.progress.begun = moment.progress.begun.min(count));
    }

    pub(super) fn now(&self) -> Progress {
        self.seen.lock().progress
    }

    pub(super) fn progress(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.seen.lock().progress);
    }

    pub(super) fn note(&self) {
        let positions = [0, 1, 2].map(|at| self.recorders[at].position());
        let mut seen = self.seen.lock();
        if seen.is_killed {
            return;
        }
        let progress = seen.progress;
        seen.moments.push(Moment { positions, progress });
    }

    /// Whether a flush is made, and not only answered.
    fn is_flushed(&self, device: usize) -> bool {
        match self.plant {
            Plant::Order(_) => true,
            Plant::NoFlushOf(planted) => planted as usize != device,
            Plant::NoFlushOfWhatIsFound(planted) => planted as usize != device || self.seen.lock().has_written[device],
        }
    }

    /// Counts a write or a flush. An error if the process is killed, or the device has failed, with whether what it was to write is on its way all
    /// the same.
    fn count(&self, device: usize, operation: Operation) -> Result<(), (Error, bool)> {
        let mut seen = self.seen.lock();
        seen.tick();
        if seen.is_killed {
            return Err((gone(device, operation), false));
        }
        if operation == Operation::Flush {
            let number = seen.requests.iter().sum::<usize>() as u64;
            seen.flushes[device].push(number);
        }
        seen.has_written[device] |= operation != Operation::Flush;
        let number = seen.requests[device];
        seen.requests[device] += 1;
        match self.loss {
            Some(loss) if loss.device == device && number >= loss.request && !seen.is_back => {
                let is_first = seen.lost_at.is_none();
                if is_first {
                    seen.lost_at = Some(seen.moments.len());
                }
                Err((gone(device, operation), is_first && loss.is_begun))
            }
            _ => Ok(()),
        }
    }
}

impl Seen {
    fn tick(&mut self) {
        match self.kills.last_mut() {
            _ if self.is_killed => {}
            Some(0) => {
                self.kills.pop();
                self.is_killed = true;
                self.progress.kills += 1;
                self.progress.is_left = true;
                self.killed_at.push(self.moments.len() - 1);
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }
}

fn gone(device: usize, operation: Operation) -> Error {
    // Linux's ENODEV.
    let source = Arc::new(std::io::Error::from_raw_os_error(19));
    Error::Io { device: DEVICES[device].into(), operation, first: None, length_bytes: 0, source }
}

/// One of the devices. Each request to it is a moment.
struct Watch(Arc<Watched>, usize);

impl Filter for Watch {
    fn below(&self) -> &dyn Device {
        &self.0.recorders[self.1]
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        if self.0.is_killed() || self.0.has_lost(self.1) {
            Err(gone(self.1, Operation::Read))
        } else {
            self.below().read(first, bufs)
        }
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let counted = self.0.count(self.1, Operation::Write);
        if matches!(counted, Ok(()) | Err((_, true))) {
            self.below().write(first, bufs)?;
        }
        self.0.note();
        counted.map_err(|(error, _)| error)
    }

    fn on_flush(&self) -> Result<(), Error> {
        let counted = self.0.count(self.1, Operation::Flush);
        if counted.is_ok() && self.0.is_flushed(self.1) {
            self.below().flush()?;
        }
        self.0.note();
        counted.map_err(|(error, _)| error)
    }

    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let counted = self.0.count(self.1, Operation::Discard);
        if counted.is_ok() {
            self.below().discard(first, count)?;
        }
        self.0.note();
        counted.map_err(|(error, _)| error)
    }

    fn on_zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let counted = self.0.count(self.1, Operation::Write);
        if matches!(counted, Ok(()) | Err((_, true))) {
            self.below().zero(first, count, keep)?;
        }
        self.0.note();
        counted.map(|()| true).map_err(|(error, _)| error)
    }

    fn has_to_write_zeros(&self) -> bool {
        false
    }
}
