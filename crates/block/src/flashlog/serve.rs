//! Main catches up in a thread of the caller's, so that it works while the log does; and in another, the log gets what is gathered while
//! writers gather more. (What main gets from the log a third one reads: see `fetch`.)
//!
//! Nothing depends on these threads: whoever needs main to be up to date, or the log to have something, sees to it with what is there. With
//! the first, a writer flushes the log in pieces, so that main can begin with one while the log gets the next, and waits for memory instead
//! of making room itself. With the second, a writer waits for the log when twice as much is gathered as is written there at once.

use super::catch_up::{Followed, MainSide, Pace};
use super::device::{CatchUp, Failure, Flashlog, Mode};
use super::stages::{Company, Stage, Stages};
use super::turns::TurnGuard;
use crate::{Error, Operation};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Asynchronous mode: main begins when the log or the index is filled so far; what memory has not is read from the log when nobody
/// writes to it.
const NEAR_EIGHTHS: u64 = 6;
/// And whether anybody does or not when it is filled so far.
const FULL_EIGHTHS: u64 = 7;
/// Nobody writes to the log if nobody has for so long.
const QUIET: Duration = Duration::from_millis(100);
/// A disk that was used so short a time ago turns.
const AWAKE: Duration = Duration::from_secs(5);

/// What the thread can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Write to main what is durable in the log.
    Write,
    /// Flush main.
    Flush,
    /// Bring main up to date with everything, and at which pace.
    All(Pace),
    /// Bring main up to date with what is in the log.
    Follow,
    /// Write the seal.
    Seal,
    /// Nothing until then, or until there is a wake.
    Nothing(Option<Duration>),
}

impl Flashlog {
    /// Brings main up to date while others write, until [`Flashlog::end_main`] is called or a device fails. For a thread of its own: in
    /// synchronous mode log and main then work at once; in asynchronous mode it goes by [`Options::catch_up`](super::Options::catch_up).
    /// A set without such a thread takes turns.
    pub fn serve_main(&self) {
        let _serving = Serving::begin(self);
        self.serve();
    }

    /// Writes to the log what has been gathered while others gather more, until [`Flashlog::end_main`] is called or a device fails. For a
    /// thread of its own: checksums are computed then while the log is at work. A set without such a thread takes turns.
    pub fn serve_log(&self) {
        let _logging = Logging::begin(self);
        loop {
            {
                let mut stages = self.stages.lock();
                let is_over = |stages: &Stages| stages.company.is_ending || self.latch.cause().is_some();
                let is_idle = |stages: &mut Stages| !is_over(stages) && stages.gathered_blocks() < self.gather_blocks;
                self.logger.wait_while(&mut stages, is_idle);
                if is_over(&stages) {
                    return;
                }
            }
            // Whoever writes or flushes next gets the failure; what had been accepted is rescued.
            if self.log_gathered().is_err() {
                return;
            }
        }
    }

    /// Ends [`Flashlog::serve_main`], [`Flashlog::serve_log`] and [`Flashlog::serve_reads`], also those that begin later. They return when what they
    /// are doing is done.
    pub fn end_main(&self) {
        self.stages.lock().company.is_ending = true;
        self.options.timer.wake();
        self.tell_logger();
    }

    /// After what ends [`Flashlog::serve_log`].
    pub(super) fn tell_logger(&self) {
        // Under the lock with which it looks before it waits: it has seen what has happened, or is waiting.
        let _stages = self.stages.lock();
        self.logger.notify_all();
    }

    /// Whether there is a thread that brings to the log what is gathered, and is told to. The small writes of one writer are not left to it:
    /// handing them over costs more than there is to gain.
    pub(super) fn is_left_to_logger(&self, is_large: bool) -> bool {
        let stages = self.stages.lock();
        let is_left = stages.company.loggers > 0 && (is_large || self.writers.load(Ordering::Relaxed) > 1);
        if is_left {
            self.logger.notify_one();
        }
        is_left
    }

    /// Counts a thread as one that writes until what this gives is dropped.
    pub(super) fn begin_write(&self) -> Writing<'_> {
        self.writers.fetch_add(1, Ordering::Relaxed);
        Writing(&self.writers)
    }

    fn serve(&self) {
        loop {
            let ticket = self.options.timer.ticket();
            let work = {
                let mut stages = self.stages.lock();
                if stages.company.is_ending || self.latch.cause().is_some() {
                    return;
                }
                let work = self.work_or_seal(&mut stages);
                stages.company.idle += usize::from(matches!(work, Work::Nothing(_)));
                work
            };
            if let Work::Nothing(until) = work {
                self.options.timer.wait(ticket, until);
                self.stages.lock().company.idle -= 1;
                continue;
            }
            if let Some(done) = match work {
                Work::All(pace) => Some(self.bring(true, pace)),
                Work::Follow => Some(self.bring(false, Pace::Patient)),
                Work::Seal => Some(self.write_seal()),
                _ => None,
            } {
                if self.heed(done).is_err() {
                    return;
                }
                continue;
            }
            let Some(mut main) = self.main_side.try_lock() else {
                // Somebody else is at it.
                self.options.timer.wait(ticket, None);
                continue;
            };
            let done = self.check_latch().and_then(|()| match work {
                Work::Write => self.write_durable(&mut main, Pace::AtOnce),
                _ => self.flush_main(&mut main),
            });
            drop(main);
            if self.heed(done).is_err() {
                return;
            }
            self.options.timer.wake();
        }
    }

    /// What is next; of an idle log, saying that what it has is durable.
    fn work_or_seal(&self, stages: &mut Stages) -> Work {
        let (work, seal) = (self.work(stages), stages.sealing.time());
        stages.sealing.is_awaited = seal.is_some();
        match (work, seal) {
            (Work::Nothing(_), Some(at)) if at <= self.options.timer.now() => Work::Seal,
            (Work::Nothing(until), Some(at)) => Work::Nothing(Some(until.map_or(at, |until| until.min(at)))),
            (work, _) => work,
        }
    }

    /// What is next. Flushes of main cost a disk a revolution, so there are not more than are needed: for memory, or room in the log.
    fn work(&self, stages: &Stages) -> Work {
        if self.options.mode == Mode::Asynchronous {
            return self.asynchronous_work(stages);
        }
        let (memory, areas) = (self.options.memory_blocks, self.rings.areas);
        let unflushed = stages.memory_of(Stage::Applied);
        let is_waited_for = stages.company.waiting > 0;
        let in_log = (stages.written.data - stages.applied.data, stages.written.page - stages.applied.page);
        let has_durable = !stages.map(Stage::Durable).is_empty();
        if unflushed > 0
            && (unflushed >= memory * 3 / 4
                || is_waited_for && (unflushed >= memory / 4 || !has_durable)
                || in_log.0 >= areas.data_blocks / 4
                || in_log.1 >= areas.meta_blocks / 4)
        {
            Work::Flush
        } else if has_durable {
            Work::Write
        } else {
            Work::Nothing(None)
        }
    }

    /// Main sleeps until a bound is near, or the policy's time has come.
    fn asynchronous_work(&self, stages: &Stages) -> Work {
        if self.is_filled(stages, NEAR_EIGHTHS) {
            return Work::All(Pace::Patient);
        }
        if !stages.is_between && self.is_followed(stages) {
            return Work::Follow;
        }
        if stages.age.oldest().is_none() {
            return if stages.is_between { Work::All(Pace::Patient) } else { Work::Nothing(None) };
        }
        let idle_at = self.options.catch_up.idle_after.map(|after| stages.age.newest + after);
        let (now, old_at) = (self.options.timer.now(), self.old_at(stages));
        match idle_at.into_iter().chain(old_at).min() {
            // Who writes all the time must not put off what has an age.
            Some(_) if old_at.is_some_and(|at| at <= now) => Work::All(Pace::AtOnce),
            // On the way main is nothing without the log.
            _ if stages.is_between => Work::All(Pace::Patient),
            Some(at) if at <= now => Work::All(Pace::Patient),
            at => Work::Nothing(at),
        }
    }

    /// When the first write that main may not have is as old as the policy lets it become.
    fn old_at(&self, stages: &Stages) -> Option<Duration> {
        let CatchUp { age_most, .. } = self.options.catch_up;
        stages.age.oldest().zip(age_most).map(|(oldest, most)| oldest + most)
    }

    /// Whether log or index are full to so many eighths.
    fn is_filled(&self, stages: &Stages, eighths: u64) -> bool {
        let (areas, applied) = (self.rings.areas, stages.applied);
        let behind = stages.index_blocks();
        behind > 0 && behind >= self.options.index_blocks / 8 * eighths
            || stages.logged.data - applied.data >= areas.data_blocks / 8 * eighths
            || stages.logged.page - applied.page >= areas.meta_blocks / 8 * eighths
    }

    /// Whether they are so full that what memory has not is read from the log, whether anybody writes to it or not.
    pub(super) fn is_nearly_full(&self, stages: &Stages) -> bool {
        self.is_filled(stages, FULL_EIGHTHS)
    }

    /// Whether main gets what came last while memory has it: it is awake anyway, and so much came that the log would be full soon.
    fn is_followed(&self, stages: &Stages) -> bool {
        let enough = (self.options.memory_blocks / 4).min(self.rings.areas.data_blocks / 4);
        let is_awake = stages.age.main_used.is_some_and(|used| self.options.timer.now() < used + AWAKE);
        is_awake && enough > 0 && stages.logged.data - stages.applied.data >= enough
    }

    /// Brings main up to date, with what is gathered as well or only with what is in the log.
    fn bring(&self, with_gathered: bool, pace: Pace) -> Result<(), Failure> {
        self.make_durable(with_gathered)?;
        let mut main = self.main_side.lock();
        if !self.is_read_from_log() {
            return self.catch_up_with(&mut main, pace);
        }
        if pace == Pace::Patient {
            let mut followed = self.follow(&mut main, true)?;
            if followed == Followed::Full {
                drop(main);
                main = self.main_with_durable()?;
                if self.let_go_of_replaced(&mut main, false)? {
                    return Ok(());
                }
                followed = self.follow(&mut main, false)?;
            }
            match followed {
                Followed::All | Followed::Full => {}
                // Whoever waits has its turn.
                Followed::InPart => return Ok(()),
                Followed::Memory => {
                    let turns = {
                        let Company { hurried, turns, .. } = self.stages.lock().company;
                        if hurried > 0 {
                            return Ok(());
                        }
                        turns
                    };
                    drop(main);
                    self.wait_for_log(|company| company.turns != turns)?;
                    if self.stages.lock().company.turns != turns {
                        return Ok(());
                    }
                    main = self.main_with_durable()?;
                }
            }
        }
        // What is left is for the next time; those who wait for main have their turn in between.
        self.step(&mut main, pace, pace == Pace::AtOnce)
    }

    /// Main's turn, when what has been written to the log meanwhile is durable: it may replace all that is first there.
    fn main_with_durable(&self) -> Result<TurnGuard<'_, MainSide>, Failure> {
        self.make_durable(false)?;
        Ok(self.main_side.lock())
    }

    /// Makes what is in the log durable there, with what is gathered or without.
    fn make_durable(&self, with_gathered: bool) -> Result<(), Failure> {
        let mut head = self.head.lock();
        if with_gathered {
            self.append(&mut head, false)?;
        }
        self.flush_log(&mut head)
    }

    /// Returns when nobody writes to the log, or when there is no time for that: who writes all the time must not put off what has an age.
    /// Or when somebody is in a hurry.
    pub(super) fn wait_for_log(&self, is_hurried: impl Fn(&Company) -> bool) -> Result<(), Failure> {
        loop {
            let (ticket, now) = (self.options.timer.ticket(), self.options.timer.now());
            self.check_latch()?;
            let until = {
                let mut stages = self.stages.lock();
                let is_writing = !stages.map(Stage::Writing).is_empty();
                let quiet_at = if is_writing { now } else { stages.age.logged } + QUIET;
                let until = self.old_at(&stages).map_or(quiet_at, |old_at| old_at.min(quiet_at));
                let is_over = is_hurried(&stages.company) || stages.company.is_ending;
                if is_over || until <= now || self.is_nearly_full(&stages) {
                    return Ok(());
                }
                stages.company.patient += 1;
                until
            };
            self.options.timer.wait(ticket, Some(until));
            self.stages.lock().company.patient -= 1;
        }
    }

    /// Whether somebody waits for main, or soon will.
    pub(super) fn is_waited_for(&self) -> bool {
        let stages = self.stages.lock();
        stages.company.hurried > 0 || self.is_nearly_full(&stages)
    }

    /// Asynchronous mode: wakes the thread that serves main, if it is time.
    pub(super) fn tell_server_if_near(&self) {
        let is_time = {
            let stages = self.stages.lock();
            let is_near = || self.is_filled(&stages, NEAR_EIGHTHS) || self.is_followed(&stages);
            stages.company.idle > 0 && is_near() || stages.company.patient > 0 && self.is_nearly_full(&stages)
        };
        if is_time {
            self.options.timer.wake();
        }
    }

    /// If a thread serves main: makes the log durable in pieces for it, and waits for it if memory is full. Otherwise `Ok(false)`.
    pub(super) fn is_relieved_by_server(&self) -> Result<bool, Error> {
        if self.options.mode == Mode::Asynchronous {
            self.tell_server_if_near();
            return Ok(false);
        }
        let memory = self.options.memory_blocks;
        let (is_enough, is_over) = {
            let stages = self.stages.lock();
            if stages.company.servers == 0 {
                return Ok(false);
            }
            // Larger pieces while main has enough to do: each costs a flush of the log.
            let enough = if stages.company.idle > 0 { memory / 16 } else { memory / 8 };
            (stages.memory_of(Stage::Logged) >= enough.max(1), self.is_full(&stages))
        };
        if is_enough || is_over {
            let flushed = self.flush_log(&mut self.head.lock());
            self.heed(flushed)?;
            self.options.timer.wake();
        }
        if !is_over {
            return Ok(true);
        }
        self.stages.lock().company.waiting += 1;
        let is_relieved = self.wait_for_memory();
        self.stages.lock().company.waiting -= 1;
        is_relieved
    }

    /// Whether main is behind by as much memory as there is. What has not come that far yet is bounded by itself.
    fn is_full(&self, stages: &Stages) -> bool {
        let behind: u64 =
            [Stage::Durable, Stage::Applying, Stage::Applied].map(|stage| stages.memory_of(stage)).iter().sum();
        behind > self.options.memory_blocks
    }

    /// Whether there is room. If the thread ends, the caller must see to it.
    fn wait_for_memory(&self) -> Result<bool, Error> {
        // It may have nothing to do as long as nobody waits.
        self.options.timer.wake();
        loop {
            let ticket = self.options.timer.ticket();
            self.latch.check(&self.name, Operation::Write, None, 0)?;
            {
                let stages = self.stages.lock();
                if !self.is_full(&stages) {
                    return Ok(true);
                }
                if stages.company.servers == 0 {
                    return Ok(false);
                }
            }
            self.options.timer.wait(ticket, None);
        }
    }
}

/// Counts a thread that writes.
pub(super) struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a thread that serves the log.
struct Logging<'a>(&'a Flashlog);

impl Logging<'_> {
    fn begin(flashlog: &Flashlog) -> Logging<'_> {
        flashlog.stages.lock().company.loggers += 1;
        Logging(flashlog)
    }
}

impl Drop for Logging<'_> {
    fn drop(&mut self) {
        self.0.stages.lock().company.loggers -= 1;
    }
}

/// Counts a thread that serves main.
struct Serving<'a>(&'a Flashlog);

impl Serving<'_> {
    fn begin(flashlog: &Flashlog) -> Serving<'_> {
        flashlog.stages.lock().company.servers += 1;
        Serving(flashlog)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.stages.lock().company.servers -= 1;
        // Those who wait for it must not any more.
        self.0.options.timer.wake();
    }
}
