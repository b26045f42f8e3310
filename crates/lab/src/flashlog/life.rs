//! A life of a set: random actions, recorded.

use super::lasting::policy;
use super::patient::Patient;
use super::state::{as_disk, last, nearest};
use super::watch::{LOG, Loss, Mishap, Moment, Progress, Watched};
use super::{Kind, Options, Plant};
use crate::device::CrashImages;
use crate::numbered::{block, content};
use holdfast_block::flashlog::{self, Create, Flashlog, Lasting, Mode, Role, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, Error, MemoryDevice};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Blocks of main: 1 MiB for the set's device, 1 MiB for labels.
pub(super) const MAIN_BLOCKS: u64 = 512;
/// Blocks of the set's device.
pub(super) const BLOCKS: usize = 256;
/// Blocks of the backup: the set's, 1 MiB for checksums, 1 MiB for pages and 3 for data of what is staged, 1 MiB for labels. There is room for
/// a set twice as large.
pub(super) const BACKUP_BLOCKS: u64 = 1792;
/// Contents that are written again and again, so that what lies about in the log may have the right bytes by chance.
const COMMON: u64 = 3;
/// So many actions are tried after one has told that a device failed.
const STEPS_AFTER: usize = 6;

/// Why it cannot be said which contents a device has.
#[derive(Debug)]
pub(super) enum Unread {
    /// It does not answer.
    Refused(Error),
    /// A block has bytes that nobody wrote.
    Foreign(usize),
}

impl From<Unread> for String {
    fn from(unread: Unread) -> String {
        match unread {
            Unread::Refused(error) => error.to_string(),
            Unread::Foreign(at) => format!("block {at} has bytes that nobody wrote"),
        }
    }
}

/// Reads all blocks; which content each has.
pub(super) fn contents(device: &dyn Device) -> Result<Vec<u64>, Unread> {
    let found = contents_or_torn(device)?;
    found.into_iter().enumerate().map(|(at, found)| found.ok_or(Unread::Foreign(at))).collect()
}

/// The same; none of one that has bytes that nobody wrote.
pub(super) fn contents_or_torn(device: &dyn Device) -> Result<Vec<Option<u64>>, Unread> {
    let mut bytes = vec![0; BLOCKS * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).map_err(Unread::Refused)?;
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    Ok(blocks.iter().map(content).collect())
}

/// What a life begins with.
pub(super) struct Start {
    pub(super) main: MemoryDevice,
    pub(super) log: MemoryDevice,
    pub(super) backup: MemoryDevice,
    pub(super) has_backup: bool,
    pub(super) contents: Vec<u64>,
    /// Which state the backup has.
    pub(super) backed_up: Vec<u64>,
    /// The block writes that lead from there to the state at first: a backup may be at any state between, as it goes there in steps.
    pub(super) since_backed_up: Vec<(usize, u64)>,
    /// The next content that nobody has written.
    pub(super) next_content: u64,
    /// Blocks written in all lives so far.
    pub(super) written: u64,
    pub(super) options: flashlog::Options,
    pub(super) plant: Plant,
}

impl Start {
    /// A new set, used for a while so that the rings may go around anywhere. A set that outlasts its log begins with a main that has
    /// everything, as main alone is judged by what it had.
    pub(super) fn new(options: &Options, kind: Kind, rng: &mut Pcg64Mcg) -> Result<Start, String> {
        let has_backup = kind != Kind::WithoutBackup;
        let main = Arc::new(MemoryDevice::new(MAIN_BLOCKS).named("main"));
        let log = Arc::new(MemoryDevice::new(flashlog::log_blocks_least()).named("log"));
        let names = Create { set: Uuid(rng.random()), main: Uuid(rng.random()), log: Uuid(rng.random()) };
        let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS).named("backup"));
        flashlog::create(main.clone(), log.clone(), &names).map_err(|error| error.to_string())?;
        let of_set = flashlog::Options {
            mode: if rng.random_bool(0.5) { Mode::Synchronous } else { Mode::Asynchronous },
            gather_blocks: [1, 3, 8, 20, 64][rng.random_range(0..5)],
            memory_blocks: rng.random_range(8..200),
            // With room for all blocks it is the log that is full, and goes on in steps.
            index_blocks: if rng.random_bool(0.3) { 2 * BLOCKS as u64 } else { rng.random_range(8..200) },
            now: Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
            order: options.plant.order(),
            ..flashlog::Options::default()
        };
        let (device, _) =
            Flashlog::open(main.clone(), log.clone(), &of_set).map_err(|error| format!("first opening: {error}"))?;
        let (mut next_content, mut written) = (COMMON, 0);
        for _ in 0..rng.random_range(0..300) {
            next_content += 1;
            let (at, count) = (rng.random_range(0..BLOCKS as u64 - 8), rng.random_range(1..8));
            written += count as u64;
            let bytes = block(next_content).repeat(count);
            device.write(at, &[IoSlice::new(&bytes)]).map_err(|error| error.to_string())?;
            if rng.random_bool(0.3) {
                device.flush().map_err(|error| error.to_string())?;
            }
        }
        // Main has everything, or the log has some of it alone, and is perhaps nearly full.
        let is_settled = kind == Kind::Lasting || of_set.mode == Mode::Synchronous || rng.random_bool(0.5);
        let end = if is_settled { device.settle() } else { device.flush().map(drop) };
        end.map_err(|error| error.to_string())?;
        if has_backup {
            device.create_backup(backup.clone(), Uuid([5; 16])).map_err(|error| error.to_string())?;
            device.backup(backup.clone()).map_err(|error| format!("first backup: {error}"))?;
        }
        let contents = contents(&device)?;
        let [main, log, backup] = [main, log, backup].map(|device| (*device).clone());
        Ok(Start {
            main,
            log,
            backup,
            has_backup,
            backed_up: contents.clone(),
            since_backed_up: Vec::new(),
            contents,
            next_content,
            written,
            options: of_set,
            plant: options.plant,
        })
    }
}

/// A recorded life.
pub(super) struct Life {
    /// What was there at first.
    pub(super) base: Vec<u64>,
    /// Each block that was written, in order: address, content.
    pub(super) writes: Vec<(usize, u64)>,
    pub(super) moments: Vec<Moment>,
    pub(super) has_backup: bool,
    /// Which state the backup had at first.
    pub(super) backed_up: Vec<u64>,
    /// The block writes that lead from there to the state at first: a backup may be at any state between, as it goes there in steps.
    pub(super) since_backed_up: Vec<(usize, u64)>,
    /// Of main, log and backup.
    pub(super) images: [CrashImages; 3],
    /// Writes and flushes that each of them got.
    pub(super) requests: [usize; 3],
    /// Which of these, of all devices together, were flushes of each.
    pub(super) flushes: [Vec<u64>; 3],
    /// Which of them failed, and the moment.
    pub(super) lost: Option<(Loss, usize)>,
    /// Which of all requests told of it.
    pub(super) lost_request: Option<u64>,
    /// Which of them failed and came back by itself, and the moment after that.
    pub(super) came_back: Option<(Loss, usize)>,
    /// How many writes and flushes each device had got when the first process was killed.
    pub(super) killed_after: Option<[usize; 3]>,
    /// The moments at which processes were killed.
    pub(super) killed: Vec<usize>,
    pub(super) options: flashlog::Options,
    pub(super) plant: Plant,
    pub(super) next_content: u64,
    pub(super) trace: Vec<String>,
    /// Blocks written in this and all lives before.
    pub(super) written: u64,
    /// Of a set that outlasts its log.
    pub(super) is_lasting: bool,
}

impl Life {
    /// Lives so many actions, less if a device fails.
    pub(super) fn live(start: &Start, steps: usize, mishap: Mishap<'_>, rng: &mut Pcg64Mcg) -> Result<Life, String> {
        let watched = Watched::of_life(start, mishap);
        let [main, log, backup] = Watched::devices(&watched);
        let patient = &Patient::of(&watched, &start.options);
        let found_alone = Cell::new(false);
        let open = || {
            let (main, log) = (patient.over(Role::Main, &main)?, patient.over(Role::Log, &log)?);
            let options = &patient.options;
            let open = || Flashlog::open(Arc::clone(&main), Arc::clone(&log), options).map(|(device, _)| device);
            match open() {
                // The log had failed, and main gets it back.
                Err(flashlog::Error::Alone { .. }) if watched.lost_at().is_some() => {
                    found_alone.set(true);
                    let alone = Lasting::open_alone(Arc::clone(&main), options, policy(), false)?;
                    alone.attach_log(Arc::clone(&log))?;
                    drop(alone);
                    open()
                }
                opened => opened,
            }
        };
        let next = || {
            // What was pulled out is there again.
            watched.put_back();
            found_alone.set(false);
            watched.taken_up(open)
        };
        let (mut writes, mut trace, mut next_content) = (Vec::new(), Vec::new(), start.next_content);
        match watched.taken_up(open) {
            Ok(device) => {
                watched.progress(|progress| progress.is_open = true);
                let (start, watched) = (start, &*watched);
                let mut living = Living {
                    start,
                    watched,
                    patient,
                    device,
                    backup,
                    writes,
                    answered: 0,
                    next_content,
                    new_backups: 0,
                    failed: 0,
                    number: None,
                };
                for step in 0..steps {
                    watched.progress(|progress| progress.step = step);
                    let text = match living.act(rng) {
                        _ if watched.is_killed() => {
                            let opened = next();
                            living.take_up(opened, found_alone.get())?
                        }
                        done => done?,
                    };
                    watched.note();
                    trace.push(format!("{step}: {text}; {} blocks written", living.writes.len()));
                    if living.failed > STEPS_AFTER {
                        break;
                    }
                }
                (writes, next_content) = (living.writes, living.next_content);
            }
            Err(_) if watched.lost_at().is_some() => trace.push("the opening failed".to_string()),
            Err(error) => return Err(format!("opening: {error}")),
        }
        Ok(Life::recorded(start, &watched, mishap, writes, next_content, trace))
    }

    /// What was recorded of one.
    pub(super) fn recorded(
        start: &Start,
        watched: &Watched,
        mishap: Mishap<'_>,
        writes: Vec<(usize, u64)>,
        next_content: u64,
        trace: Vec<String>,
    ) -> Life {
        Life {
            base: start.contents.clone(),
            has_backup: start.has_backup,
            backed_up: start.backed_up.clone(),
            since_backed_up: start.since_backed_up.clone(),
            moments: watched.moments(),
            images: watched.images(),
            requests: watched.requests(),
            flushes: watched.flushes(),
            lost: mishap.loss().zip(watched.lost_at()),
            lost_request: watched.lost_request(),
            came_back: mishap.loss().zip(watched.back_at()),
            killed_after: watched.killed_after(),
            killed: watched.killed_at(),
            options: start.options.clone(),
            plant: start.plant,
            next_content,
            trace,
            written: start.written + writes.len() as u64,
            writes,
            is_lasting: false,
        }
    }

    /// The same, if a process was killed in it: the first one is, as all goes as in the life without that.
    pub(super) fn with_kills(self) -> Result<Life, String> {
        if self.killed.is_empty() { Err("no process was killed".to_string()) } else { Ok(self) }
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.options.mode == Mode::Synchronous
    }
}

/// How blocks become zeros.
#[derive(Clone, Copy)]
pub(super) enum Zeros {
    Discarded,
    Written { keep: bool },
}

impl Zeros {
    pub(super) fn name(self) -> &'static str {
        match self {
            Zeros::Discarded => "discard",
            Zeros::Written { .. } => "write zeros",
        }
    }

    /// The devices here make zeros, so a discard is taken.
    pub(super) fn make(self, device: &dyn Device, first: u64, count: u64) -> Result<(), Error> {
        match self {
            Zeros::Discarded => device.discard(first, count),
            Zeros::Written { keep } => device.zero(first, count, keep).map(|is_done| assert!(is_done)),
        }
    }
}

/// A life while it goes on.
pub(super) struct Living<'a> {
    start: &'a Start,
    watched: &'a Watched,
    patient: &'a Patient,
    device: Flashlog,
    backup: Arc<dyn Device>,
    writes: Vec<(usize, u64)>,
    /// Blocks whose writes were answered.
    answered: usize,
    next_content: u64,
    new_backups: u8,
    /// Actions since the first that told of a device that failed, with it.
    failed: usize,
    /// Which action comes next, if that is known.
    number: Option<u32>,
}

impl Living<'_> {
    /// Does something. What it was, as text.
    fn act(&mut self, rng: &mut Pcg64Mcg) -> Result<String, String> {
        self.failed += usize::from(self.failed > 0);
        let number = self.number.take().unwrap_or_else(|| rng.random_range(0..100));
        let done = self.act_as(number, rng);
        if self.watched.is_killed() && rng.random() {
            // Whoever was killed at it is told to do it again.
            self.number = Some(number);
        }
        done
    }

    fn act_as(&mut self, number: u32, rng: &mut Pcg64Mcg) -> Result<String, String> {
        match number {
            0..60 => self.write(rng),
            60..70 => self.zeros(rng),
            70..90 => {
                let done = self.device.flush();
                self.flushed("flush", done)
            }
            90..94 => {
                let done = self.device.catch_up();
                self.changed("catch up", done)
            }
            95 if self.start.has_backup => self.new_backup(),
            96..99 if self.watched.now().is_new_backup => self.new_backup(),
            96..99 if self.start.has_backup => match self.backup().and_then(|backup| self.device.backup(backup)) {
                Ok(done) => Ok(format!("backup of {} blocks", done.blocks)),
                // It may have been the log or main, but that is for a write or a flush to tell.
                Err(_) if self.watched.lost_at().is_some() => Ok("backup, failed".to_string()),
                Err(error) => Err(format!("backup: {error}")),
            },
            99 => {
                let done = self.device.seal();
                self.changed("seal", done)
            }
            94..96 if rng.random_bool(0.5) => {
                let done = self.device.close();
                self.flushed("close", done)
            }
            94..96 => {
                let done = self.device.settle();
                self.flushed("settle", done)
            }
            _ => self.read(),
        }
    }

    fn backup(&self) -> Result<Arc<dyn Device>, flashlog::Error> {
        self.patient.over(Role::Backup, &self.backup)
    }

    /// What was a backup becomes another one, and is copied whole.
    fn new_backup(&mut self) -> Result<String, String> {
        self.new_backups += 1;
        let name = Uuid([20 + self.new_backups; 16]);
        self.watched.progress(|progress| progress.is_new_backup = true);
        let made = self.device.create_backup(Arc::clone(&self.backup), name);
        if made.is_ok() {
            self.watched.progress(|progress| progress.is_new_backup = false);
        } else if self.watched.is_away() {
            // It is not waited for before it is a backup.
            self.watched.put_back();
            return Ok("new backup, failed".to_string());
        }
        match made.and_then(|()| self.backup()).and_then(|backup| self.device.backup(backup)) {
            Ok(done) => Ok(format!("new backup of {} blocks", done.copied_blocks)),
            Err(_) if self.watched.lost_at().is_some() => Ok("new backup, failed".to_string()),
            Err(error) => Err(format!("new backup: {error}")),
        }
    }

    /// Where something is written next, and what.
    pub(super) fn random_write(next_content: &mut u64, rng: &mut Pcg64Mcg) -> (usize, Vec<u64>) {
        let count = if rng.random_bool(0.1) { rng.random_range(1..100) } else { rng.random_range(1..8) };
        // Half of the writes are to a few blocks, that are written again before they are on main.
        let end = if rng.random_bool(0.5) { 16 } else { BLOCKS - count };
        let first = rng.random_range(0..end);
        let content: Vec<u64> = (0..count)
            .map(|_| match rng.random_bool(0.3) {
                true => rng.random_range(0..COMMON),
                false => {
                    *next_content += 1;
                    *next_content
                }
            })
            .collect();
        (first, content)
    }

    /// Which blocks become zeros next, and how.
    pub(super) fn random_zeros(rng: &mut Pcg64Mcg) -> (u64, u64, Zeros) {
        let (first, content) = Self::random_write(&mut 0, rng);
        let how = [Zeros::Discarded, Zeros::Written { keep: false }, Zeros::Written { keep: true }];
        (first as u64, content.len() as u64, how[rng.random_range(0..3)])
    }

    fn write(&mut self, rng: &mut Pcg64Mcg) -> Result<String, String> {
        let (first, content) = Self::random_write(&mut self.next_content, rng);
        let bytes: Vec<u8> = content.iter().flat_map(|content| block(*content)).collect();
        self.change("write", first, &content, |device| device.write(first as u64, &[IoSlice::new(&bytes)]))
    }

    fn zeros(&mut self, rng: &mut Pcg64Mcg) -> Result<String, String> {
        let (first, count, how) = Self::random_zeros(rng);
        self.change(how.name(), first as usize, &vec![0; count as usize], |device| how.make(device, first, count))
    }

    fn change(
        &mut self,
        what: &str,
        first: usize,
        content: &[u64],
        change: impl FnOnce(&Flashlog) -> Result<(), Error>,
    ) -> Result<String, String> {
        let count = content.len();
        self.writes.extend((first..).zip(content.iter().copied()));
        let begun = self.writes.len();
        self.watched.progress(|progress| progress.begun = begun);
        let done = change(&self.device);
        let is_answered = done.is_ok();
        let text = self.changed(what, done)?;
        if is_answered {
            self.answered = begun;
        } else {
            self.forget_refused()?;
        }
        Ok(format!("{text} {count} from {first}"))
    }

    /// A write that failed has written some of its blocks, or none: what is read tells.
    fn forget_refused(&mut self) -> Result<(), String> {
        match contents(&self.device) {
            Ok(found) => {
                let there = nearest(&self.start.contents, &self.writes, self.answered, &found)
                    .map_err(|what| format!("after a write that failed: {what}"))?;
                self.writes.truncate(there);
                self.watched.progress(|progress| progress.begun = there);
                Ok(())
            }
            Err(Unread::Refused(_)) => Ok(()),
            Err(foreign) => Err(foreign.into()),
        }
    }

    /// Another process has opened what the killed one has left: a state that there was, with all that was flushed.
    fn take_up(&mut self, opened: Result<Flashlog, flashlog::Error>, was_alone: bool) -> Result<String, String> {
        self.device = opened.map_err(|error| format!("opened by the next process: {error}"))?;
        self.failed = 0;
        let found = contents(&self.device)?;
        let Progress { flushed, is_rescued, .. } = self.watched.now();
        if was_alone && !is_rescued {
            as_disk(&self.start.contents, &mut self.writes, flushed, &found)
                .map_err(|what| format!("what the next process finds, alone: {what}"))?;
        }
        self.watched.progress(|progress| progress.is_taken_up_alone |= was_alone);
        let there = last(&self.start.contents, &self.writes, flushed, &found)
            .map_err(|what| format!("what the next process finds: {what}"))?;
        self.writes.truncate(there);
        self.answered = there;
        self.watched.is_there(there);
        Ok("killed, and taken up by the next process".to_string())
    }

    /// A call that may have told of a device that failed. Then everything that was answered is on the one that is left. But in
    /// asynchronous mode, some of it may be in the log alone, and the log was what failed.
    fn changed(&mut self, what: &str, done: Result<(), Error>) -> Result<String, String> {
        match done {
            Ok(()) => return Ok(what.to_string()),
            // Nobody was told anything.
            Err(_) if self.watched.is_killed() => return Ok(format!("{what}, killed")),
            Err(_) if self.watched.lost_at().is_some() => {}
            Err(error) => return Err(format!("{what}: {error}")),
        }
        self.failed = self.failed.max(1);
        let has_all = self.start.options.mode == Mode::Synchronous || !self.watched.has_lost(LOG);
        let answered = self.answered;
        self.watched.progress(|progress| {
            progress.is_rescued = true;
            if has_all {
                progress.flushed = answered;
            }
        });
        Ok(format!("{what}, failed"))
    }

    fn flushed(&mut self, what: &str, done: Result<(), Error>) -> Result<String, String> {
        if done.is_ok() {
            let answered = self.writes.len();
            self.watched.progress(|progress| progress.flushed = answered);
        }
        self.changed(what, done)
    }

    fn read(&self) -> Result<String, String> {
        match contents(&self.device) {
            Ok(found) => {
                nearest(&self.start.contents, &self.writes, self.answered, &found)
                    .map_err(|what| format!("what is read is not what was written: {what}"))?;
                Ok("read".to_string())
            }
            Err(Unread::Refused(_)) if self.watched.lost_at().is_some() => Ok("read, failed".to_string()),
            Err(what) => Err(what.into()),
        }
    }
}
