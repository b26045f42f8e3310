//! Main without a log: writes go to it at once, and a map on it says which regions the log does not have as they are.

use super::Error;
use super::catch_up::Pace;
use super::create::set_blocks;
use super::damage::bad;
use super::device::{Failure, Flashlog, Options, Order, Side};
use super::dirty::Dirty;
use super::format::{Bad, Damage, Decoded, Label, Regions, Role, State};
use super::labels::{Labelled, empty_labels, newest_of};
use super::outgrown;
use super::scrub::{has_sum, read_block};
use super::stages::{Knowledge, KnownBad, Map};
use crate::device::read_one_by_one;
use crate::nbd::Extent;
use crate::{Device, Error as DeviceError, Operation, Read, check_request};
use parking_lot::{Mutex, RwLock};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// Most blocks that are marked ahead of a writer that goes on where it was: 64 MiB.
const AHEAD_BLOCKS_MOST: u64 = 16_384;

/// Who main is, and what has changed on it.
pub(super) struct Marks {
    pub(super) labels: Labelled,
    /// What has changed, or will soon, as main says durably.
    map: Regions,
    /// What has changed, of it: a block that nobody has written is not taken for the newest version.
    pub(super) changed: Regions,
    /// What has been written since a log began to be brought up to date.
    pub(super) since: Regions,
    /// Of what has changed, those blocks of which it is known that main alone has written them, as far as there is room for that: the others may be
    /// as they were before.
    pub(super) own: Regions,
    /// Where the last new mark ended, and how far it was ahead.
    ahead: (u64, u64),
}

/// Main could not become larger.
pub(super) struct NotGrown {
    pub(super) error: DeviceError,
    /// Otherwise there may be labels at both ends, and no changes may be made that only one of them knows of.
    pub(super) is_as_before: bool,
}

/// Main alone.
pub(super) struct Alone {
    pub(super) name: Arc<str>,
    pub(super) blocks: u64,
    pub(super) main: Arc<dyn Device>,
    /// When it came to be alone; `None` if it was when it was opened.
    pub(super) time: Option<SystemTime>,
    pub(super) marks: Mutex<Marks>,
    /// A log is there again, or main is larger: whoever comes from then on goes to what is there now. Writers share it.
    pub(super) gate: RwLock<bool>,
    pub(super) order: Order,
    /// Blocks that nobody has as they were: what main has there is older. Reading them fails until they are written.
    pub(super) known_bad: Mutex<KnownBad>,
    /// Whether these are all that main's label tells of.
    pub(super) knowledge: Knowledge,
}

impl Alone {
    /// Opens main without its log. What only the log may have is given up if `may_lose` says so.
    pub(super) fn open(main: Arc<dyn Device>, options: &Options, may_lose: bool) -> Result<Alone, Error> {
        let mut labels = Labelled::read(main, Role::Main)?;
        // Whoever wrote label and map may have been killed before the flush: what is marked need not be marked again only if that is durable.
        labels.device.flush()?;
        let (device, Bad { blocks, first }) = (labels.device.name(), labels.label.damage.main);
        if blocks > 0 {
            tracing::warn!(
                device,
                blocks,
                first,
                "blocks of main are damaged, and only the log can tell which: they may be older here"
            );
        }
        let time = match labels.label.state {
            State::Alone => None,
            State::CatchingUp => return Err(Error::Mixture { device: labels.device.name().into() }),
            _ if labels.label.is_asynchronous && !may_lose => {
                return Err(Error::PerhapsBehind { device: labels.device.name().into() });
            }
            _ => {
                // How far the log was is not known.
                go_alone(&mut labels, &Regions::none, None, 0)?;
                Some((options.now)())
            }
        };
        let is_well = labels.label.damage.main.blocks == 0;
        let knowledge = if is_well { Knowledge::All } else { Knowledge::Forgotten };
        Ok(Self::of(labels, time, options.order, (KnownBad::new(), knowledge))?)
    }

    /// Main, whose label says that it is alone.
    pub(super) fn of(
        labels: Labelled,
        time: Option<SystemTime>,
        order: Order,
        (known_bad, knowledge): (KnownBad, Knowledge),
    ) -> Result<Alone, DeviceError> {
        let blocks = labels.label.blocks;
        let map = labels.read_map()?.unwrap_or_else(|| Regions::none(blocks));
        let (main, since) = (Arc::clone(&labels.device), Regions::none(blocks));
        let name = format!("flashlog of {} without a log", main.name()).into();
        // As `Marks::told` has it.
        let own = if labels.label.damage.main.blocks > 0 { map.parts() } else { Regions::none(blocks) };
        let marks = Mutex::new(Marks { labels, changed: map.clone(), map, since, own, ahead: (0, 0) });
        let (gate, known_bad) = (RwLock::new(false), Mutex::new(known_bad));
        Ok(Alone { name, blocks, main, time, marks, gate, order, known_bad, knowledge })
    }

    /// Whether something else has taken over.
    pub(super) fn is_over(&self) -> bool {
        *self.gate.read()
    }

    /// The same main as one of this size, which it has become; its set is larger then. Nothing goes through this one any more.
    pub(super) fn grown(&self, device_blocks: u64) -> Result<Alone, NotGrown> {
        let mut gate = self.gate.write();
        let as_before = |error| NotGrown { error, is_as_before: true };
        self.main.flush().map_err(as_before)?;
        let marks = self.marks.lock();
        let blocks = set_blocks(device_blocks);
        let mut labels = Labelled { device: Arc::clone(&self.main), label: marks.labels.label.clone() };
        let (changed, own) = (marks.changed.clone().of_larger(blocks), marks.own.known_of_larger(blocks));
        // Regions may be larger then, so that whole ones are parts.
        let map = told(changed, &own, labels.label.damage);
        let moved = labels.move_to_end(blocks, device_blocks, &map);
        let known_bad = (self.known_bad.lock().clone(), self.knowledge);
        let grown = moved.and_then(|()| Alone::of(labels, self.time, self.order, known_bad));
        let mut grown = grown.map_err(|error| {
            let has_none = || matches!(newest_of(&*self.main, Role::Main, device_blocks), Ok(Decoded::Nothing));
            let is_as_before = marks.labels.label.device_blocks == device_blocks
                || empty_labels(&*self.main, Label::area(Role::Main, device_blocks)).is_ok()
                || has_none();
            NotGrown { error, is_as_before }
        })?;
        grown.marks.get_mut().own = own;
        *gate = true;
        Ok(grown)
    }

    /// Main as large as its labels say, where they are found, if it has become larger and they have not moved.
    pub(super) fn main_as_labelled(&self, device_blocks: u64) -> Result<Arc<dyn Device>, Error> {
        let main = Arc::clone(&self.main);
        if main.blocks() == device_blocks {
            return Ok(main);
        }
        Ok(outgrown(Arc::clone(&main), self.blocks)?.unwrap_or(main))
    }

    /// That none of these blocks is older than what was written there last.
    fn check_known(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        match self.known_bad.lock().range(first..first + count).next() {
            None => Ok(()),
            Some((&first, &(expected, got))) => {
                let device = self.main.name().into();
                Err(DeviceError::Damaged { device, operation: Operation::Read, first, expected, got })
            }
        }
    }

    /// These have been written.
    fn note_well(&self, first: u64, count: u64) {
        let mut known_bad = self.known_bad.lock();
        if !known_bad.is_empty() {
            known_bad.retain(|address, _| !(first..first + count).contains(address));
        }
    }

    /// Of blocks in a row, those that are not known to be bad.
    pub(super) fn without_bad(&self, runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let known_bad = self.known_bad.lock();
        if known_bad.is_empty() {
            return runs;
        }
        let mut well = Vec::new();
        for (first, count) in runs {
            let mut at = first;
            for bad in known_bad.range(first..first + count).map(|(address, _)| *address) {
                well.push((at, bad - at));
                at = bad + 1;
            }
            well.push((at, first + count - at));
        }
        well.retain(|(_, count)| *count > 0);
        well
    }

    /// The set that main has become with a log knows them as well.
    pub(super) fn hand_over_bad(&self, set: &Flashlog) {
        let mut bad = self.known_bad.lock().clone();
        // What the log gave badly once it may have given since.
        bad.retain(|address, (expected, _)| !has_sum(&read_block(&*self.main, *address), *expected));
        set.learn_bad(bad, self.knowledge);
    }

    /// Changes blocks on main, and marks them before. Whether main could.
    fn change(
        &self,
        first: u64,
        count: u64,
        change: impl FnOnce() -> Result<bool, DeviceError>,
    ) -> Result<bool, DeviceError> {
        let gate = self.gate.read();
        if *gate {
            return Err(DeviceError::Unsuitable {
                device: Arc::clone(&self.name),
                reason: "a log is there again, or main is larger",
            });
        }
        if self.order == Order::ChangeBeforeMap {
            let changed = change()?;
            return self.mark(first, count).map(|()| changed);
        }
        self.mark(first, count)?;
        let is_done = change()?;
        if is_done {
            self.marks.lock().own.mark_known(first, count);
        }
        Ok(is_done)
    }

    /// Whether main could.
    fn make_zeros(&self, first: u64, count: u64, keep: bool) -> Result<bool, DeviceError> {
        let is_done = self.main.zero(first, count, keep)?;
        if is_done {
            self.note_well(first, count);
        }
        Ok(is_done)
    }

    /// Marks what is about to be written, durably.
    fn mark(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        let mut marks = self.marks.lock();
        marks.since.mark(first, count);
        marks.changed.mark(first, count);
        if marks.map.has(first, count) {
            return Ok(());
        }
        // Who goes on where it was gets more at once, or each region would cost two flushes.
        let (end, before) = marks.ahead;
        let ahead = if first <= end && end < first + count { (2 * before).clamp(count, AHEAD_BLOCKS_MOST) } else { 0 };
        let most = (first + count + ahead).min(self.blocks);
        let mut map = marks.map.clone();
        map.mark_regions(first, most - first);
        marks.note(map, |_| ())?;
        marks.ahead = (most, ahead.max(count));
        Ok(())
    }

    /// Makes everything durable, and says which blocks have changed, and which are bad still: until then, whoever opens main knows only the regions,
    /// and what was bad.
    pub(super) fn settle(&self) -> Result<(), DeviceError> {
        // What is written anew from here on may not be durable.
        let known_bad: Vec<u64> = self.known_bad.lock().keys().copied().collect();
        self.main.flush()?;
        let gate = self.gate.read();
        let mut marks = self.marks.lock();
        let mut damage = marks.labels.label.damage;
        if self.knowledge == Knowledge::All {
            damage.main = bad([&known_bad]);
            damage.log_tells &= damage.main.blocks > 0;
        }
        let map = marks.told(damage);
        if *gate || marks.map == map && damage == marks.labels.label.damage {
            return Ok(());
        }
        // What main alone has written since that flush is made durable between the map and the label that makes it count.
        marks.note(map, |label| label.damage = damage)
    }
}

impl Marks {
    /// What has changed, as main says it.
    pub(super) fn told(&self, damage: Damage) -> Regions {
        told(self.changed.clone(), &self.own, damage)
    }

    /// Says durably that this has changed.
    pub(super) fn note(&mut self, map: Regions, change: impl FnOnce(&mut Label)) -> Result<(), DeviceError> {
        self.labels.write_map(&map, change)?;
        self.map = map;
        Ok(())
    }
}

/// What has changed, as main says it with a label that tells of this damage: whoever opens it has forgotten which blocks these are, and must know what
/// main alone has written, which is known block by block there; of the rest whole regions.
fn told(changed: Regions, own: &Regions, damage: Damage) -> Regions {
    if damage.main.blocks > 0 { changed.with_parts_in(own) } else { changed }
}

/// Writes a label that says that main is alone from now on, with the map of what the log does not have, that of what the backup lacks, and how
/// many pages the log had durably.
fn go_alone(
    labels: &mut Labelled,
    map: &dyn Fn(u64) -> Regions,
    dirty: Option<&Dirty>,
    durable: u64,
) -> Result<(), DeviceError> {
    let map = map(labels.label.blocks);
    labels.write_maps(&map, dirty.map(|dirty| &dirty.regions), |label| {
        (label.left, label.durable) = (label.generation, durable);
        label.generation += 1;
        label.state = State::Alone;
        if let Some(dirty) = dirty {
            (label.backup, label.backup_sequence) = (dirty.backup, dirty.sequence);
        }
    })
}

impl Device for Alone {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Read, self.blocks, first, length_bytes)?;
        self.check_known(first, count)?;
        self.main.read(first, bufs)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        let is_there = |read: &Read<'_>| {
            let length_bytes = read.bufs.iter().map(|buf| buf.len() as u64).sum();
            let count = check_request(&self.name, Operation::Read, self.blocks, read.first, length_bytes);
            count.is_ok_and(|count| self.check_known(read.first, count).is_ok())
        };
        if reads.iter().all(is_there) {
            return self.main.read_batch(reads);
        }
        read_one_by_one(self, reads)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Write, self.blocks, first, length_bytes)?;
        self.change(first, count, || {
            self.main.write(first, bufs)?;
            self.note_well(first, count);
            Ok(true)
        })
        .map(|_| ())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.main.flush()
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        let length_bytes = count.saturating_mul(crate::BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Discard, self.blocks, first, length_bytes)?;
        if self.writes_zeros(false) {
            return Ok(());
        }
        // Zeros, as with a log. What main does not take after all stays as it was.
        self.change(first, count, || self.make_zeros(first, count, false)).map(|_| ())
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, DeviceError> {
        let length_bytes = count.saturating_mul(crate::BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Write, self.blocks, first, length_bytes)?;
        self.change(first, count, || self.make_zeros(first, count, keep))
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        self.main.writes_zeros(keep)
    }

    /// What main says, but of blocks that are not known to be bad: where main has a hole, that is an older version as well.
    fn allocation(&self, first: u64, most: u64) -> Extent {
        let bad = self.known_bad.lock().range(first..).next().map(|(address, _)| *address);
        match bad {
            Some(bad) if bad == first => Extent { blocks: 1, flags: 0 },
            bad => self.main.allocation(first, bad.map_or(most, |bad| most.min(bad - first))),
        }
    }
}

impl Flashlog {
    /// Brings what was answered to main, if it is in memory, and says there that main is alone. Whether it is.
    pub(super) fn rescue_to_main(&self) -> Result<bool, Failure> {
        let mut main = self.main_side_at_once();
        // Some are in the log alone: main stays at the state that it has. Even if memory has newer versions of all of them, main would lack
        // what was flushed until it has these.
        if self.stages.lock().has_some_in_log() {
            return Ok(false);
        }
        if self.is_read_from_log() || main.labels.label.state == State::CatchingUp {
            // What a flush has answered and main lacks is zeros now, which need not be read from the log: main catches up with these as ever. It
            // is what the log has durably then, and no mixture: what comes next, the log lacks, and would be left on main if it came back.
            self.apply_as_mixture(&mut main, Pace::AtOnce)?;
            if main.labels.label.state == State::CatchingUp {
                main.labels.write(|label| label.state = State::Open).map_err(Failure::of(Side::Main))?;
            }
        }
        let blocks = {
            let stages = self.stages.lock();
            if stages.has_some_in_log() {
                return Ok(false);
            }
            stages.newest()
        };
        // The log may lack these.
        let changed = |of: u64| {
            let mut regions = Regions::none(of);
            for address in blocks.keys() {
                regions.mark(*address, 1);
            }
            regions
        };
        // The label first: if main had some of what the log does not have without saying so, the two would come to a state that there
        // never was when the log is back. What a flush has answered is there, so until the rest is, main is as a disk that has lost its
        // power.
        if self.options.order == Order::RescueBeforeLabel {
            self.write_all_to_main(&blocks)?;
        }
        // What the log has is marked there before it gets it, and what it has not is marked here.
        let (dirty, durable) = (self.dirty(), self.stages.lock().durable.page);
        let damage = main.labels.label.damage;
        let until_then = |of: u64| told(changed(of), &Regions::none(of), damage);
        go_alone(&mut main.labels, &until_then, dirty.as_ref(), durable).map_err(Failure::of(Side::Main))?;
        self.write_all_to_main(&blocks)?;
        main.labels.device.flush().map_err(Failure::of(Side::Main))?;
        if damage.main.blocks > 0 {
            // It has them from here on.
            let map = changed(main.labels.label.blocks);
            main.labels.write_map(&map, |_| ()).map_err(Failure::of(Side::Main))?;
        }
        Ok(true)
    }

    /// Main alone must have all of them.
    fn write_all_to_main(&self, blocks: &Map) -> Result<(), Failure> {
        let lost = self.write_to_main(blocks, Pace::AtOnce)?;
        lost.into_iter().next().map_or(Ok(()), |lost| Err(lost.failure))
    }

    /// Main alone, if this set's log has failed or left and main has everything; waits for the rescue.
    pub(super) fn alone(&self) -> Option<Result<Alone, Error>> {
        if !*self.is_alone.lock() {
            return None;
        }
        let main = self.main_side_at_once();
        let known = Labelled { device: Arc::clone(&main.labels.device), label: main.labels.label.clone() };
        // Whoever tried to give main a log has written labels since. (Where there are none yet, it is becoming larger.)
        let mut labels = match Labelled::read(Arc::clone(&known.device), Role::Main) {
            Ok(found) if found.label.set == known.label.set && found.label.sequence > known.label.sequence => found,
            _ => known,
        };
        let known_bad = {
            let stages = self.stages.lock();
            labels.label.damage.log_tells &= !stages.is_untold;
            (stages.known_bad.clone(), stages.knowledge.passed_on())
        };
        Some(Alone::of(labels, Some((self.options.now)()), self.options.order, known_bad).map_err(Error::from))
    }

    /// Lets the log go: main gets everything, and is alone from then on. This set takes no changes any more.
    pub(super) fn leave_log(&self) -> Result<(), DeviceError> {
        let mut is_alone = self.is_alone.lock();
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        let reason = "the log was detached";
        let error = DeviceError::Unsuitable { device: self.rings.device.name().into(), reason };
        let done = self.settle_with(|head| {
            // A copy of the log that was made before is older than main then.
            self.begin_generation(head)?;
            self.is_leaving.store(true, Ordering::SeqCst);
            self.latch.close(&error);
            Ok(())
        });
        if let Err(failure) = done {
            drop(is_alone);
            return self.heed(Err(failure));
        }
        self.options.timer.wake();
        self.tell_logger();
        *is_alone = self.rescue_to_main().map_err(|failure| failure.error)?;
        Ok(())
    }
}
