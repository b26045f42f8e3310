//! The devices of a life: what they get is recorded, each request is a moment, and one of them may fail for good. The process may be killed at
//! any request: what it had not flushed is in the devices' caches then, and the next process finds it there.

use super::Plant;
use super::life::Start;
use crate::device::{CrashImages, CrashMode, Left, Recorder};
use holdfast_block::flashlog::{Order, Source};
use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice, Operation};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
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
    /// One that took up what another had left found main alone.
    pub(super) is_taken_up_alone: bool,
}

/// A moment at which the power may be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Recorder positions of main, log and backup.
    pub(super) positions: [usize; 3],
    pub(super) progress: Progress,
}

/// The moments at which a device had been written to since a process was killed at one of these, and not flushed, which had left something
/// unflushed there.
pub(super) fn at_stake(moments: &[Moment], images: &[CrashImages; 3], killed: &[usize]) -> Vec<usize> {
    let since = |killed: &usize| {
        let then = moments[*killed].positions;
        let is_at_stake = move |device: usize, now: usize| {
            let images = &images[device];
            let next_flush = images.flushes().find(|flush| *flush > then[device]).unwrap_or(usize::MAX);
            images.at_stake(then[device]) > 0 && (then[device] + 1..next_flush).contains(&now)
        };
        let later = *killed..moments.len();
        later.filter(move |at| (0..3).any(|device| is_at_stake(device, moments[*at].positions[device])))
    };
    killed.iter().flat_map(since).collect()
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
    /// It has only lost its power for a moment, and who waits for it finds it there again, with this of what it had not flushed.
    pub(super) returns: Option<CrashMode>,
}

/// What befalls a life.
#[derive(Clone, Copy)]
pub(super) enum Mishap<'a> {
    None,
    Loss(Loss),
    /// Its processes are killed after so many requests, the last one first.
    Kills(&'a [u64]),
    /// Both.
    LossAndKills(Loss, &'a [u64]),
}

impl Mishap<'_> {
    pub(super) fn loss(self) -> Option<Loss> {
        match self {
            Mishap::Loss(loss) | Mishap::LossAndKills(loss, _) => Some(loss),
            Mishap::None | Mishap::Kills(_) => None,
        }
    }

    fn kills(self) -> Vec<u64> {
        match self {
            Mishap::Kills(kills) | Mishap::LossAndKills(_, kills) => kills.to_vec(),
            Mishap::None | Mishap::Loss(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = if self.is_begun { ", begun" } else { "" };
        let returns = self.returns.map_or(String::new(), |mode| format!(", and comes back, {mode:?}"));
        write!(f, "{} fails at request {}{begun}{returns}", DEVICES[self.device], self.request)
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
    /// Of all requests, the one with this number did.
    lost_request: u64,
    /// It is there again.
    is_back: bool,
    /// By itself, at this moment.
    back_at: Option<usize>,
    /// Which of all requests were flushes of each device.
    flushes: [Vec<u64>; 3],
    /// After so many requests each process is killed, the last one first.
    kills: Vec<u64>,
    is_killed: bool,
    /// The moments at which they were.
    killed_at: Vec<usize>,
    /// The requests that each device had got then.
    killed_after: Vec<[usize; 3]>,
    /// This process has written to the device.
    has_written: [bool; 3],
}

/// All recorders, and the moments so far.
pub(super) struct Watched {
    recorders: [Recorder; 3],
    loss: Option<Loss>,
    plant: Plant,
    seen: Mutex<Seen>,
}

impl Watched {
    pub(super) fn over(devices: [&MemoryDevice; 3]) -> Arc<Watched> {
        Self::recorded(devices.map(Recorder::in_memory), Mishap::None, Plant::Order(Order::Correct))
    }

    /// Those of a life, with the mistake, if it is one of a device.
    pub(super) fn of_life(start: &Start, mishap: Mishap<'_>) -> Arc<Watched> {
        let recorders = [&start.main, &start.log, &start.backup].map(Recorder::in_memory);
        Self::recorded(recorders, mishap, start.plant)
    }

    /// Those of a procedure, as it finds them.
    pub(super) fn of_procedure(found: &[Left; 3], mishap: Mishap<'_>, plant: Plant) -> Result<Arc<Watched>, Error> {
        let [main, log, backup] = found;
        let plant = match plant {
            Plant::NoFlushOfWhatProceduresFind(device) => Plant::NoFlushOfWhatIsFound(device),
            _ => Plant::Order(Order::Correct),
        };
        Ok(Self::recorded([main.recorder()?, log.recorder()?, backup.recorder()?], mishap, plant))
    }

    fn recorded(recorders: [Recorder; 3], mishap: Mishap<'_>, plant: Plant) -> Arc<Watched> {
        let seen = Mutex::new(Seen { kills: mishap.kills(), ..Seen::default() });
        let watched = Arc::new(Watched { recorders, loss: mishap.loss(), plant, seen });
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

    /// The moment at which a device has failed, if one has that does not come back by itself.
    pub(super) fn lost_at(&self) -> Option<usize> {
        self.seen.lock().lost_at.filter(|_| !self.returns())
    }

    /// The moment at which one had come back that does, if one has.
    pub(super) fn back_at(&self) -> Option<usize> {
        self.seen.lock().back_at
    }

    /// Whether a device that fails comes back by itself.
    pub(super) fn returns(&self) -> bool {
        self.loss.is_some_and(|loss| loss.returns.is_some())
    }

    /// Which of all requests told of it.
    pub(super) fn lost_request(&self) -> Option<u64> {
        let seen = self.seen.lock();
        seen.lost_at.map(|_| seen.lost_request)
    }

    pub(super) fn has_lost(&self, device: usize) -> bool {
        let seen = self.seen.lock();
        self.loss.is_some_and(|loss| loss.device == device) && seen.lost_at.is_some() && !seen.is_back
    }

    /// A device is that comes back by itself.
    pub(super) fn is_away(&self) -> bool {
        self.returns() && !self.is_killed() && self.loss.is_some_and(|loss| self.has_lost(loss.device))
    }

    /// The device that has failed was only pulled out, and is there again.
    pub(super) fn put_back(&self) {
        let is_new = {
            let mut seen = self.seen.lock();
            let is_new = seen.lost_at.is_some() && !seen.is_back;
            seen.is_back |= is_new;
            is_new
        };
        if let Some(Loss { device, request, returns: Some(mode), .. }) = self.loss.filter(|_| is_new) {
            let mut rng = Pcg64Mcg::seed_from_u64(request as u64);
            self.recorders[device].cut(mode, &mut rng).expect("a device in memory");
            self.note();
            let mut seen = self.seen.lock();
            seen.back_at = Some(seen.moments.len() - 1);
        }
    }

    /// The process has been killed: nothing that it does gets anywhere.
    pub(super) fn is_killed(&self) -> bool {
        self.seen.lock().is_killed
    }

    /// How many writes and flushes each device had got when the first process was killed.
    pub(super) fn killed_after(&self) -> Option<[usize; 3]> {
        self.seen.lock().killed_after.first().copied()
    }

    /// The moments at which processes were.
    pub(super) fn killed_at(&self) -> Vec<usize> {
        self.seen.lock().killed_at.clone()
    }

    /// Another process takes up what there is, and the next one if it is killed at that. What the devices have in their caches is there.
    pub(super) fn taken_up<T, E>(&self, open: impl Fn() -> Result<T, E>) -> Result<T, E> {
        loop {
            if self.returns() {
                self.put_back();
            }
            {
                let mut seen = self.seen.lock();
                (seen.is_killed, seen.has_written) = (false, [false; 3]);
            }
            let done = open();
            let mut seen = self.seen.lock();
            if !seen.is_killed {
                // One that does not come up leaves it as it is.
                seen.progress.is_left &= done.is_err();
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
        let last = seen.moments.last().map(|last| last.positions);
        if seen.is_killed && last == Some(positions) {
            return;
        }
        let progress = seen.progress;
        seen.moments.push(Moment { positions, progress });
        if seen.is_killed {
            // It got this far with the request at which it was killed.
            let at = seen.moments.len() - 1;
            if let Some(killed_at) = seen.killed_at.last_mut() {
                *killed_at = at;
            }
        }
    }

    /// Whether a flush is made, and not only answered.
    fn is_flushed(&self, device: usize) -> bool {
        match self.plant {
            Plant::Order(_) | Plant::NoFlushOfWhatProceduresFind(_) => true,
            Plant::NoFlushOf(planted) => planted as usize != device,
            Plant::NoFlushOfWhatIsFound(planted) => planted as usize != device || self.seen.lock().has_written[device],
            Plant::NoFlushOfWhatIsBack(planted) => {
                let is_pulled = self.loss.is_some_and(|loss| loss.device == device);
                planted as usize != device || !is_pulled || !self.seen.lock().is_back
            }
        }
    }

    /// Counts a write or a flush. An error if the process is killed, or the device has failed, with how much of what it was to write is on its
    /// way all the same.
    fn count(&self, device: usize, operation: Operation) -> Result<(), (Error, Begun)> {
        let mut seen = self.seen.lock();
        let was_killed = seen.is_killed;
        seen.tick();
        if seen.is_killed {
            let number = seen.requests.iter().sum::<usize>() as u64;
            return Err((gone(device, operation), if was_killed { Begun::Nothing } else { Begun::Part { number } }));
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
                    seen.lost_request = seen.requests.iter().sum::<usize>() as u64 - 1;
                }
                Err((gone(device, operation), if is_first && loss.is_begun { Begun::All } else { Begun::Nothing }))
            }
            _ => Ok(()),
        }
    }
}

/// How much of a write that fails is on its way all the same.
enum Begun {
    Nothing,
    /// The process is killed in the middle of it, which is the request with this number: some of its blocks, or none.
    Part {
        number: u64,
    },
    All,
}

impl Begun {
    /// So many of these blocks.
    fn blocks(&self, all: u64) -> u64 {
        match self {
            Begun::Nothing => 0,
            Begun::Part { number } => number % (all + 1),
            Begun::All => all,
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
                self.killed_after.push(self.requests);
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

/// Where devices are that come back by themselves.
pub(super) struct Places(pub(super) Arc<Watched>);

impl Source for Places {
    fn opened(&self, _name: &str) {}

    fn is_there(&self, name: &str) -> bool {
        !self.0.loss.is_some_and(|loss| DEVICES[loss.device] == name && self.0.has_lost(loss.device))
    }

    fn reopen(&self, name: &str) -> Option<Arc<dyn Device>> {
        let device = DEVICES.iter().position(|known| *known == name)?;
        if self.0.is_killed() || !self.0.has_lost(device) {
            return None;
        }
        self.0.put_back();
        Some(Arc::new(Watch(Arc::clone(&self.0), device)))
    }
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
        match &counted {
            Ok(()) | Err((_, Begun::All)) => self.below().write(first, bufs)?,
            Err((_, begun)) => {
                let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                let count = begun.blocks((bytes.len() / BLOCK_SIZE) as u64) as usize;
                if count > 0 {
                    self.below().write(first, &[IoSlice::new(&bytes[..count * BLOCK_SIZE])])?;
                }
            }
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
        let begun = counted.as_ref().map_or_else(|(_, begun)| begun.blocks(count), |()| count);
        if begun > 0 {
            self.below().zero(first, begun, keep)?;
        }
        self.0.note();
        counted.map(|()| true).map_err(|(error, _)| error)
    }

    fn has_to_write_zeros(&self) -> bool {
        false
    }
}
