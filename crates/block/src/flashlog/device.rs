//! The device that a set is, and what becomes of it when one of its devices fails.

use super::append::Head;
use super::catch_up::MainSide;
use super::chunk::{Chunk, Memory};
use super::dirty::Marks;
use super::fetch::Fetching;
use super::format::{Damage, Role};
use super::lacking::Lacking;
use super::past::Uses;
use super::patience::Watch;
use super::ring::{Area, Rings};
use super::stages::{Place, Stage, Stages, Version};
use super::status::Status;
use super::turns::{RealTimer, Timer, Turn};
use crate::device::{read_one_by_one, scatter};
use crate::nbd::Extent;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error, Latch, Operation, Read, check_request};
use holdfast_integrity::crc64;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// What an answered flush says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Log and main have it.
    #[default]
    Synchronous,
    /// The log has it.
    Asynchronous,
}

/// A mistake in the order of writes, for crash tests that must find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// None.
    #[default]
    Correct,
    /// Main gets what the log may not have durably.
    MainBeforeLog,
    /// Main is not flushed before it counts as up to date.
    NoFlushOfMain,
    /// Parts of the log are overwritten before a label has let go of them.
    ReuseBeforeLabel,
    /// Pages of generations that are over are taken for pages of this one.
    AnyGeneration,
    /// What was answered is not brought to the device that is left when the other one fails.
    NoRescue,
    /// When the log fails, main gets what the log may not have before it says that it is alone.
    RescueBeforeLabel,
    /// Without a log, a region is changed before the map says so.
    ChangeBeforeMap,
    /// A log that comes back does not get one of the changed blocks.
    AttachSkipsBlock,
    /// When the log is lost, what it had is not marked as lacking on the backup.
    ForgetsDirty,
    /// A new log's map of what the backup lacks has not what main has done alone.
    NewLogForgetsAlone,
    /// What a backup has is taken for main's by the checksums of a copy that was cut off.
    TrustsSumsOfCopy,
    /// An opening does not bring to main what the log says of zeros.
    ForgetsZeros,
    /// A full log lets go of what main does not have and nothing has replaced.
    LetsGoOfNeeded,
    /// The log lets go of what a backup is about to have before that has it durably.
    TrimsBeforeBackup,
    /// A log that is put back gets what memory had piece by piece.
    PutBackInParts,
    /// A device that was waited for does not get again what it had not flushed.
    ForgetsUnflushed,
}

/// When main catches up in asynchronous mode. With neither, it sleeps as long as the log and the index have room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CatchUp {
    /// When nothing was written for so long.
    pub idle_after: Option<Duration>,
    /// When something that main does not have was written so long ago.
    pub age_most: Option<Duration>,
}

/// What a block in the index takes in memory, about: its address, its checksum and its place, in the nodes of a tree two thirds full.
pub const INDEX_ENTRY_BYTES: u64 = 80;

/// How a set is used.
#[derive(Clone)]
pub struct Options {
    /// What an answered flush says.
    pub mode: Mode,
    /// Blocks that are written to the log together.
    pub gather_blocks: u64,
    /// Synchronous mode: so many blocks in memory, and they are flushed to log and main. Asynchronous mode: so many of the blocks that
    /// came last are kept in memory when they are in the log.
    pub memory_blocks: u64,
    /// Asynchronous mode: so many blocks in the index of those that are newer in the log, and main catches up. Of a backup: not more of the log
    /// at once, in a step or in a part of one, be its staging area as large as it may. A block takes some [`INDEX_ENTRY_BYTES`] of memory.
    /// Beside that a backup needs some 40 MiB, and 40 bytes for each 510 blocks that it changes; a step over damage in the log, or one that has no
    /// room in the staging area and no state in between, 48 bytes for each block of the log at most, as a [`Past`](super::Past) does.
    pub index_blocks: u64,
    /// If what is at the end of the log cannot be read, and may be something that was answered and that main does not have: it is given up.
    pub drop_later: bool,
    /// The clock, for times in the log.
    pub now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    /// Asynchronous mode: when a thread that serves main has it catch up, beside when a bound is near.
    pub catch_up: CatchUp,
    /// How threads wait for each other.
    pub timer: Arc<dyn Timer>,
    /// What has befallen the devices, if somebody watches them.
    pub watch: Option<Arc<Watch>>,
    /// A mistake for a test to find.
    pub order: Order,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::default(),
            gather_blocks: 256,
            memory_blocks: 16_384,
            index_blocks: 1 << 20,
            drop_later: false,
            now: Arc::new(SystemTime::now),
            catch_up: CatchUp::default(),
            timer: Arc::new(RealTimer::default()),
            watch: None,
            order: Order::Correct,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { mode, gather_blocks, memory_blocks, index_blocks, catch_up, order, .. } = self;
        let mut all = f.debug_struct("Options");
        all.field("mode", mode).field("gather_blocks", gather_blocks).field("memory_blocks", memory_blocks);
        all.field("index_blocks", index_blocks)
            .field("catch_up", catch_up)
            .field("order", order)
            .finish_non_exhaustive()
    }
}

/// Where a failure was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Main,
    Log,
    Memory,
}

/// A failure and where it was.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) side: Side,
    pub(super) error: Error,
}

impl Failure {
    pub(super) fn of(side: Side) -> impl Fn(Error) -> Failure {
        move |error| Failure { side, error }
    }
}

/// Main and log as one device. See the module's documentation.
///
/// Locks, from the outside in: `head`, `main_side`, `stages`. The last is not held while a device works. `damage` and `kept_damage` are
/// held for a moment, and no other is taken meanwhile. Nobody has any of them while a failure is [heeded](Flashlog::heed).
pub struct Flashlog {
    pub(super) name: Arc<str>,
    pub(super) blocks: u64,
    pub(super) options: Options,
    /// [`Options::gather_blocks`], as the log's areas allow it.
    pub(super) gather_blocks: u64,
    pub(super) rings: Rings,
    pub(super) main: Arc<dyn Device>,
    pub(super) head: Turn<Head>,
    pub(super) main_side: Turn<MainSide>,
    pub(super) stages: Mutex<Stages>,
    /// What a thread that serves the log waits for, with `stages`. Not the timer: each wake of that is for all who wait.
    pub(super) logger: Condvar,
    /// The piece of the log that main gets next. No other lock is taken under it.
    pub(super) fetching: Fetching,
    /// Threads that write now.
    pub(super) writers: AtomicUsize,
    pub(super) latch: Latch,
    /// Where the failure was that closed it.
    pub(super) failed: OnceLock<Side>,
    pub(super) uses: Arc<Uses>,
    /// The latch was closed because the log is let go: no failure, so that no policy says what becomes of it.
    pub(super) is_leaving: AtomicBool,
    /// The log has failed or left, and main has everything that was answered. Held while that is being seen to; outside of all others.
    pub(super) is_alone: Mutex<bool>,
    /// For chunks that come.
    pub(super) memory: Arc<Memory>,
    /// What the backup lacks, for main if the log is lost. No other lock is taken under it.
    pub(super) dirty: Mutex<Marks>,
    /// What the backup lacks, if it was asked for. Taken before the other locks.
    pub(super) lacking: Mutex<Option<Lacking>>,
    /// Pages that the log keeps for the backup are damaged, as was found since the set was opened.
    pub(super) kept_damage: Mutex<Option<super::Error>>,
    /// As main's label has it.
    pub(super) damage: Mutex<Damage>,
    /// How it was doing when somebody last asked, for when a device is waited for.
    pub(super) last_status: Mutex<Option<Status>>,
    /// Those who wait for the end of this set. The last field: its devices go before.
    pub(super) awaited: Mutex<Vec<Sender<()>>>,
}

impl Flashlog {
    /// Makes everything that was written durable in the log and on main, and says so in the log's label: the next opening has nothing
    /// to replay. For idle times and before closing.
    ///
    /// # Errors
    /// As for [`Device::flush`].
    pub fn settle(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        self.heed(self.do_settle())
    }

    /// As [`Flashlog::settle`], for closing: the set gets a new generation as well, so that a copy of main or log that was made since it was
    /// opened is older than the other one, and refused. It can be used on.
    ///
    /// # Errors
    /// As for [`Device::flush`].
    pub fn close(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        self.heed(self.settle_with(|head| {
            self.begin_generation(head)?;
            self.say_closed(head)
        }))
    }

    /// Brings main up to what is durable in the log. In asynchronous mode this is when main is active.
    ///
    /// # Errors
    /// As for [`Device::flush`].
    pub fn catch_up(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        self.heed(self.catch_up_to_durable())
    }

    /// Is disconnected when the last one who has this set has let go of it, and so of its devices. Nothing is ever sent.
    pub fn until_gone(&self) -> Receiver<()> {
        let (sender, receiver) = channel();
        self.awaited.lock().push(sender);
        receiver
    }

    /// Who watches the devices, if anybody does.
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.options.watch.as_ref()
    }

    /// Blocks that are not on main for certain, those that are under way in several versions counted several times.
    pub fn behind_blocks(&self) -> u64 {
        self.stages.lock().index_blocks()
    }

    fn do_settle(&self) -> Result<(), Failure> {
        self.settle_with(|_| Ok(()))
    }

    /// The same, and something before anybody can write to the log again.
    pub(super) fn settle_with(&self, then: impl FnOnce(&mut Head) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut head = self.head.lock();
        self.append(&mut head, true)?;
        self.flush_log(&mut head)?;
        self.catch_up_to_durable()?;
        let applied = self.stages.lock().applied;
        if head.labels.label.applied != applied {
            self.write_points(&mut head, applied)?;
        }
        then(&mut head)
    }

    fn do_flush(&self) -> Result<(), Failure> {
        {
            let mut head = self.head.lock();
            self.append(&mut head, true)?;
            self.flush_log(&mut head)?;
        }
        match self.options.mode {
            Mode::Synchronous => self.catch_up_to_durable(),
            // What nobody had is written anew: main's label tells of it until main has that.
            Mode::Asynchronous if self.is_all_rewritten() => self.catch_up_to_durable(),
            Mode::Asynchronous => {
                self.tell_server_if_near();
                Ok(())
            }
        }
    }

    /// Whether memory needs no block that the log has.
    pub(super) fn is_read_from_log(&self) -> bool {
        self.options.mode == Mode::Asynchronous
    }

    /// Takes one piece of a write. Whether enough is gathered to write it to the log.
    fn accept(&self, first: u64, chunk: Chunk) -> Result<bool, Error> {
        let (chunk, blocks) = (Arc::new(chunk), self.gather_blocks);
        let now = self.options.timer.now();
        loop {
            {
                let mut stages = self.stages.lock();
                // Under this lock: what is accepted before the latch closes is rescued, see `heed`.
                self.latch.check(
                    &self.name,
                    Operation::Write,
                    Some(first),
                    chunk.covered_blocks() * BLOCK_SIZE as u64,
                )?;
                let gathered = stages.gathered_blocks();
                if gathered == 0 || gathered + chunk.memory_blocks() <= 2 * blocks {
                    stages.accept(first, Arc::clone(&chunk));
                    let (is_enough, is_first) =
                        (stages.gathered_blocks() >= blocks, stages.age.begin(Stage::Gathered, now));
                    let is_told = is_first && stages.company.servers > 0;
                    drop(stages);
                    if is_told {
                        self.options.timer.wake();
                    }
                    return Ok(is_enough);
                }
            }
            self.log_gathered()?;
        }
    }

    /// The same, and sees to it that what is enough comes to the log.
    pub(super) fn take(&self, first: u64, chunk: Chunk) -> Result<(), Error> {
        let is_large = chunk.memory_blocks() >= self.gather_blocks / 4;
        if self.accept(first, chunk)? && !self.is_left_to_logger(is_large) {
            self.log_gathered()?;
        }
        Ok(())
    }

    /// Writes what is gathered to the log, and keeps memory within its bounds.
    pub(super) fn log_gathered(&self) -> Result<(), Error> {
        self.append_gathered_now()?;
        self.relieve()
    }

    fn append_gathered_now(&self) -> Result<(), Error> {
        let done = self.append(&mut self.head.lock(), false);
        self.heed(done)
    }

    /// Keeps memory within its bounds.
    fn relieve(&self) -> Result<(), Error> {
        if self.is_relieved_by_server()? {
            return Ok(());
        }
        let (memory, index) = {
            let stages = self.stages.lock();
            (stages.memory_blocks(), stages.index_blocks())
        };
        let is_over = match self.options.mode {
            Mode::Synchronous => memory > self.options.memory_blocks,
            Mode::Asynchronous => index > self.options.index_blocks,
        };
        if !is_over {
            return Ok(());
        }
        self.heed(self.bring_all())
    }

    /// Brings everything that was written to main.
    pub(super) fn bring_all(&self) -> Result<(), Failure> {
        {
            let mut head = self.head.lock();
            self.append(&mut head, false)?;
            self.flush_log(&mut head)?;
        }
        self.catch_up_to_durable()
    }

    pub(super) fn damaged(&self, side: Side, operation: Operation, first: u64, expected: u64, got: u64) -> Failure {
        let device = match side {
            Side::Main => self.main.name().into(),
            Side::Log => self.rings.device.name().into(),
            Side::Memory => Arc::clone(&self.name),
        };
        Failure { side, error: Error::Damaged { device, operation, first, expected, got } }
    }

    /// Passes a result on; the first failure closes the latch, and what was answered goes to the device that is left.
    pub(super) fn heed<T>(&self, result: Result<T, Failure>) -> Result<T, Error> {
        result.map_err(|failure| {
            let mut is_alone = self.is_alone.lock();
            if self.latch.close(&failure.error) {
                let _ = self.failed.set(failure.side);
                tracing::error!(device = &*self.name, side = ?failure.side, error = %failure.error, "a device failed");
                self.options.timer.wake();
                self.tell_logger();
                match self.rescue(failure.side) {
                    Ok(alone) => *is_alone = alone,
                    Err(Failure { side, error }) => {
                        tracing::error!(device = &*self.name, ?side, %error, "the rescue failed");
                    }
                }
            }
            failure.error
        })
    }

    /// The device that has failed, or the one that has not what was written.
    pub(super) fn failed_role(&self) -> Role {
        match self.failed.get() {
            Some(Side::Log) | None => Role::Log,
            Some(Side::Main | Side::Memory) => Role::Main,
        }
    }

    /// Takes no changes any more because of what this device has done; what was answered goes to the other one.
    pub(super) fn fail(&self, side: Side, error: Error) {
        let _: Result<(), Error> = self.heed(Err(Failure { side, error }));
    }

    /// For those who have waited for main: what is left to do after a failure is the rescue's, which may need the log.
    pub(super) fn check_latch(&self) -> Result<(), Failure> {
        let checked = self.latch.check(&self.name, Operation::Flush, None, 0);
        checked.map_err(Failure::of(Side::Main))
    }

    /// Brings what was answered to the device that is left. Whether that is main, which is alone then.
    fn rescue(&self, failed: Side) -> Result<bool, Failure> {
        match failed {
            _ if self.options.order == Order::NoRescue => Ok(false),
            Side::Main => {
                let mut head = self.head.lock();
                self.append_gathered(&mut head, true)?;
                self.flush_log(&mut head).map(|()| false)
            }
            Side::Log => self.rescue_to_main(),
            Side::Memory => Ok(false),
        }
    }

    /// Reads one block that main does not have for certain. `Ok(false)` if main has it meanwhile.
    fn read_version(&self, address: u64, mut version: Version, out: &mut [u8; BLOCK_SIZE]) -> Result<bool, Failure> {
        loop {
            let position = match &version.place {
                Place::Memory(chunk, index) => {
                    out.copy_from_slice(chunk.block(*index));
                    let got = crc64(out);
                    if got != version.sum {
                        return Err(self.damaged(Side::Memory, Operation::Read, address, version.sum, got));
                    }
                    return Ok(true);
                }
                Place::Held(chunk, index, position) => {
                    out.copy_from_slice(chunk.block(*index));
                    if crc64(out) == version.sum {
                        return Ok(true);
                    }
                    tracing::warn!(device = &*self.name, block = address, "damage in memory: the log has the block");
                    *position
                }
                Place::Log(position) => *position,
                Place::Zeros(_) => {
                    out.fill(0);
                    return Ok(true);
                }
            };
            let unread = self.rings.read_what_can_be(Area::Data, position, out).map_err(Failure::of(Side::Log))?;
            if crc64(out) == version.sum {
                return Ok(true);
            }
            // Main may have got it since, and then something else may have been written there.
            match self.stages.lock().find(address) {
                None => return Ok(false),
                Some(newer) if !newer.is_at(position) => version = newer.clone(),
                Some(_) => {
                    return self.make_good(out, address, version.sum, position).map(|()| true).map_err(|failure| {
                        self.note_lost_data(&failure);
                        unread.why(position).cloned().map_or(failure, Failure::of(Side::Log))
                    });
                }
            }
        }
    }

    /// Reads `bytes` where at least one block is not on main for certain.
    fn read_mixed(&self, first: u64, found: Vec<Option<Version>>, bytes: &mut AlignedBuf) -> Result<(), Error> {
        let (mut blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let mut from_main = Vec::with_capacity(blocks.len());
        for run in found.chunk_by(are_neighbours_in_log) {
            let (now, later) = blocks.split_at_mut(run.len());
            blocks = later;
            let place = run[0].as_ref().map(|version| &version.place);
            if let Some(Place::Log(position)) = place {
                self.rings.read_what_can_be(Area::Data, *position, now.as_flattened_mut())?;
            }
            for (block, version) in now.iter_mut().zip(run) {
                from_main.push(match version {
                    None => true,
                    Some(Version { sum, place: Place::Log(_) }) if crc64(block) == *sum => false,
                    Some(version) => {
                        let address = first + from_main.len() as u64;
                        !self.read_version(address, version.clone(), block).map_err(|failure| failure.error)?
                    }
                });
            }
        }
        let mut at = 0;
        for run in from_main.chunk_by(|a, b| a == b) {
            if run[0] {
                let part = &mut bytes[at * BLOCK_SIZE..(at + run.len()) * BLOCK_SIZE];
                self.main.read(first + at as u64, &mut [IoSliceMut::new(part)])?;
            }
            at += run.len();
        }
        Ok(())
    }
}

/// Whether two blocks that are neighbours can be read from the log at once.
fn are_neighbours_in_log(a: &Option<Version>, b: &Option<Version>) -> bool {
    match (a, b) {
        (Some(Version { place: Place::Log(a), .. }), Some(Version { place: Place::Log(b), .. })) => a + 1 == *b,
        _ => false,
    }
}

impl Device for Flashlog {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Read, self.blocks, first, length_bytes)?;
        let found = {
            let stages = self.stages.lock();
            if let Some((address, (expected, got))) = stages.known_bad.range(first..first + count).next() {
                return Err(self.damaged(Side::Main, Operation::Read, *address, *expected, *got).error);
            }
            stages.find_all(first, count)
        };
        if found.iter().all(Option::is_none) {
            return self.main.read(first, bufs);
        }
        let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
        self.read_mixed(first, found, &mut bytes)?;
        scatter(&bytes, bufs);
        Ok(())
    }

    /// If main has everything, one batch of main's.
    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        let is_on_main = |read: &Read<'_>| {
            let length_bytes = read.bufs.iter().map(|buf| buf.len() as u64).sum();
            let count = check_request(&self.name, Operation::Read, self.blocks, read.first, length_bytes);
            let stages = self.stages.lock();
            let is_there = |address| stages.find(address).is_none() && !stages.known_bad.contains_key(&address);
            count.is_ok_and(|count| (read.first..read.first + count).all(is_there))
        };
        if reads.iter().all(is_on_main) {
            return self.main.read_batch(reads);
        }
        read_one_by_one(self, reads)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Write, self.blocks, first, length_bytes)?;
        let _writing = self.begin_write();
        let mut done = 0;
        while done < count {
            let blocks = (count - done).min(self.gather_blocks);
            let chunk = Chunk::arrive(bufs, done as usize * BLOCK_SIZE, blocks as usize, &self.memory);
            self.take(first + done, chunk)?;
            done += blocks;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        self.heed(self.do_flush())?;
        // Another thread's failure may have been what ended this one's wait.
        self.latch.check(&self.name, Operation::Flush, None, 0)
    }

    /// They become zeros, unless main would have to write them: then nothing is given up.
    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Discard, self.blocks, first, length_bytes)?;
        self.latch.check(&self.name, Operation::Discard, Some(first), length_bytes)?;
        if self.writes_zeros(false) { Ok(()) } else { self.write_zeros(first, count, false) }
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Write, self.blocks, first, length_bytes)?;
        self.write_zeros(first, count, keep).map(|()| true)
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        self.main.writes_zeros(keep)
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        self.allocated(first, most)
    }
}
