//! One trial: a set with a backup is made, hit, and used as anybody would.

use super::{
    BACKUP, BACKUP_BLOCKS, BLOCKS, Hit, LOG, MAIN, MAIN_BLOCKS, NAMES, STEPS, Step, Target, Way, log_blocks_least,
};
use crate::device::{Fault, FaultDevice, FaultPlan, Rule};
use crate::numbered::{block, content};
use holdfast_block::flashlog::{self, Condition, Create, Flashlog, Lasting, Mode, Options, Policy, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// What the medium has in a block that cannot be read.
const UNREADABLE: [u8; BLOCK_SIZE] = [0xee; BLOCK_SIZE];

/// When it is hit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The set is open.
    InUse,
    /// It was closed, with main up to date and the log's label saying so.
    Closed,
    /// It was not.
    Cut,
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) is_told: bool,
    pub(super) is_wrong: bool,
    pub(super) is_spread: bool,
    pub(super) is_cut: bool,
    pub(super) is_restored: bool,
    /// Another device than the one that was hit had everything.
    pub(super) is_elsewhere: bool,
    /// Which steps were.
    pub(super) refused: [bool; STEPS.len()],
}

impl Seen {
    /// A step was done, or refused.
    fn step<T, E>(&mut self, step: Step, done: Result<T, E>) -> Option<T> {
        let is_refused = done.is_err();
        self.is_told |= is_refused;
        self.refused[step as usize] |= is_refused;
        done.ok()
    }
}

/// A device of the set.
struct Unit {
    medium: Arc<MemoryDevice>,
    /// The same for whoever uses it.
    device: Arc<FaultDevice>,
    /// Blocks that could not be read, until they were written.
    unreadable: Vec<u64>,
}

impl Unit {
    fn over(medium: MemoryDevice) -> Unit {
        let medium = Arc::new(medium);
        let device = Arc::new(FaultDevice::new(medium.clone(), FaultPlan::new()));
        Unit { medium, device, unreadable: Vec::new() }
    }

    fn new(blocks: u64, number: usize) -> Unit {
        Unit::over(MemoryDevice::new(blocks).named(NAMES[number]))
    }

    fn bytes(&self, at: u64) -> Result<[u8; BLOCK_SIZE], holdfast_block::Error> {
        let mut bytes = [0; BLOCK_SIZE];
        self.device.read(at, &mut [IoSliceMut::new(&mut bytes)]).map(|()| bytes)
    }

    /// Another one that is as this one is now.
    fn copy(&self) -> Result<Unit, String> {
        let mut copy = Unit::over((*self.medium).clone());
        for at in self.unreadable.iter().filter(|at| self.bytes(**at).is_err()) {
            copy.make_unreadable(*at)?;
        }
        Ok(copy)
    }

    fn hit(&mut self, at: u64, hit: Hit, rng: &mut Pcg64Mcg) -> Result<(), String> {
        match hit {
            Hit::Bits(count) => {
                let mut bits = BTreeSet::new();
                while bits.len() < count as usize {
                    bits.insert(rng.random_range(0..BLOCK_SIZE * 8));
                }
                let flip = |bytes: &mut [u8; BLOCK_SIZE]| bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
                self.medium.alter(at, flip).map_err(says)
            }
            Hit::Unreadable => self.make_unreadable(at),
            Hit::TakenForZeros => self.medium.alter(at, |bytes| bytes.fill(0)).map_err(says),
        }
    }

    fn make_unreadable(&mut self, at: u64) -> Result<(), String> {
        self.medium.alter(at, |bytes| *bytes = UNREADABLE).map_err(says)?;
        self.device.add(Rule::new(Fault::ReadError).block(at).forever().healed_by_write());
        self.unreadable.push(at);
        Ok(())
    }
}

struct Set {
    /// Main, log and backup.
    units: [Unit; 3],
    options: Options,
    /// What each block has now, what it had before the last flush's writes, and what it ever had since it was on main and backup first.
    now: Vec<u64>,
    before: Vec<u64>,
    ever: Vec<BTreeSet<u64>>,
}

fn says(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Set {
    fn new(mode: Option<Mode>, rng: &mut Pcg64Mcg) -> Result<(Set, Flashlog), String> {
        let units =
            [Unit::new(MAIN_BLOCKS, MAIN), Unit::new(log_blocks_least(), LOG), Unit::new(BACKUP_BLOCKS, BACKUP)];
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        flashlog::create(units[MAIN].device.clone(), units[LOG].device.clone(), &names).map_err(says)?;
        let by_chance = if rng.random() { Mode::Synchronous } else { Mode::Asynchronous };
        let (mode, now) = (mode.unwrap_or(by_chance), Arc::new(|| SystemTime::UNIX_EPOCH));
        let options = Options { mode, gather_blocks: 8, now, ..Options::default() };
        let ever = vec![BTreeSet::new(); 256];
        let mut set = Set { units, options, now: vec![0; 256], before: vec![0; 256], ever };
        let device = set.open()?;
        set.write(&device, 0..BLOCKS)?;
        device.create_backup(set.backup(), Uuid([4; 16])).map_err(says)?;
        device.backup(set.backup()).map_err(says)?;
        device.catch_up().map_err(says)?;
        let (some, more) = (rng.random_range(1..100), rng.random_range(100..200));
        set.write(&device, some..more)?;
        device.backup(set.backup()).map_err(says)?;
        set.write(&device, more - 50..more + 50)?;
        Ok((set, device))
    }

    fn main(&self) -> Arc<FaultDevice> {
        self.units[MAIN].device.clone()
    }

    fn log(&self) -> Arc<FaultDevice> {
        self.units[LOG].device.clone()
    }

    fn backup(&self) -> Arc<FaultDevice> {
        self.units[BACKUP].device.clone()
    }

    fn open(&self) -> Result<Flashlog, String> {
        let opened = Flashlog::open(self.main(), self.log(), &self.options);
        opened.map(|(device, _)| device).map_err(says)
    }

    /// Another one that is as this one is now.
    fn copy(&self) -> Result<Set, String> {
        let [main, log, backup] = &self.units;
        Ok(Set {
            units: [main.copy()?, log.copy()?, backup.copy()?],
            options: self.options.clone(),
            now: self.now.clone(),
            before: self.before.clone(),
            ever: self.ever.clone(),
        })
    }

    fn hit(&mut self, target: Target, at: &[u64], hit: Hit, rng: &mut Pcg64Mcg) -> Result<(), String> {
        at.iter().try_for_each(|at| self.units[target.device()].hit(*at, hit, rng))
    }

    /// Writes new contents, flushed.
    fn write(&mut self, device: &dyn Device, blocks: Range<u64>) -> Result<(), String> {
        self.before.clone_from(&self.now);
        for at in blocks {
            let number = self.now[at as usize] + 1000 + at;
            device.write(at, &[IoSlice::new(&block(number))]).map_err(says)?;
            self.now[at as usize] = number;
            self.ever[at as usize].insert(number);
        }
        device.flush().map_err(says)
    }

    /// Blocks to be hit: of labels the newest, of all else one that has something.
    fn choose(&self, target: Target, rng: &mut Pcg64Mcg) -> Result<Vec<u64>, String> {
        let bytes = self.units[target.device()].medium.snapshot();
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        let in_area = || target.area().filter(|at| blocks[*at as usize] != [0; BLOCK_SIZE]);
        // That of a label, or of a map.
        let (magic, number_at) = if matches!(target, Target::Map(_)) { (b"HFFLREGN", 48) } else { (b"HFFLASHL", 24) };
        let sequence =
            |at: &u64| u64::from_le_bytes(*blocks[*at as usize][number_at..].first_chunk().expect("a block is longer"));
        let newest = in_area().filter(|at| blocks[*at as usize].starts_with(magic)).max_by_key(|at| sequence(at));
        match target {
            Target::Label(_) => Ok(vec![newest.ok_or("no label")? & !1 | u64::from(rng.random::<bool>())]),
            Target::Labels(_) => newest.map(|at| vec![at & !1, at | 1]).ok_or("no label".to_string()),
            Target::Map(_) => {
                let at = newest.ok_or("no map")?;
                // What of its regions has changed, if there is such.
                let has_parts = blocks[at as usize + 1] != [0; BLOCK_SIZE];
                Ok(vec![at + u64::from(has_parts && rng.random())])
            }
            _ => {
                let all: Vec<u64> = in_area().collect();
                all.choose(rng).map(|at| vec![*at]).ok_or("nothing there to be hit".to_string())
            }
        }
    }

    /// Reads all of a device that should have the set's contents. With `is_cut`, it may have lacked power.
    fn compare(&self, device: &dyn Device, is_cut: bool, seen: &mut Seen) -> bool {
        let mut is_all = true;
        for at in 0..BLOCKS {
            let mut bytes = [0; BLOCK_SIZE];
            match device.read(at, &mut [IoSliceMut::new(&mut bytes)]) {
                Ok(()) if bytes == block(self.now[at as usize]) => continue,
                Ok(()) if is_cut && bytes == block(self.before[at as usize]) => seen.is_cut = true,
                Ok(()) => seen.is_wrong = true,
                Err(_) => seen.is_told = true,
            }
            is_all = false;
        }
        is_all
    }

    /// Whether a block of main or backup, but for those that were hit and are as they were then, has something that nobody ever wrote there.
    fn is_spread(&self, target: Target, hit: &[u64]) -> bool {
        [MAIN, BACKUP].into_iter().any(|number| {
            let bytes = self.units[number].medium.snapshot();
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            let is_as_hit = |at: u64| {
                let is_written = self.units[number].unreadable.contains(&at) && blocks[at as usize] != UNREADABLE;
                target.device() == number && hit.contains(&at) && !is_written
            };
            let is_known =
                |at: u64| content(&blocks[at as usize]).is_some_and(|is| self.ever[at as usize].contains(&is));
            (0..BLOCKS).any(|at| !is_as_hit(at) && !is_known(at))
        })
    }

    /// Whether main can be opened without its log, and has everything then.
    fn has_main_alone(&self) -> bool {
        let Ok(policy) = "log=alone".parse() else { return false };
        let alone = Lasting::open_alone(self.main(), &self.options, policy, true);
        alone.is_ok_and(|alone| self.compare(&alone, false, &mut Seen::default()))
    }

    /// Main made anew, aside. None if that is refused.
    fn rebuilt(&self, seen: &mut Seen) -> Result<Option<Flashlog>, String> {
        let copy = self.copy()?;
        let main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
        let done = flashlog::rebuild(copy.backup(), copy.log(), main.clone(), Uuid([5; 16]))
            .and_then(|_| Flashlog::open(main, copy.log(), &self.options));
        Ok(seen.step(Step::Anew, done).map(|(device, _)| device))
    }
}

/// A backup that is unplugged as soon as what is staged is complete, and not in its place.
struct Unplugged(Arc<FaultDevice>, AtomicBool);

impl Unplugged {
    fn check(&self) -> Result<(), holdfast_block::Error> {
        match self.1.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(holdfast_block::Error::Unsuitable { device: self.0.name().into(), reason: "it was unplugged" }),
        }
    }
}

impl Filter for Unplugged {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), holdfast_block::Error> {
        self.check()?;
        self.0.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), holdfast_block::Error> {
        self.check()?;
        self.0.flush()?;
        self.1.store(is_staged(&*self.0), Ordering::Relaxed);
        Ok(())
    }
}

fn is_staged(backup: &dyn Device) -> bool {
    matches!(flashlog::inspect(backup), Ok(Some(label)) if label.condition == Condition::Staged)
}

pub(super) fn trial(target: Target, how: (Hit, Option<Mode>), rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (mut set, device) = Set::new(how.1, rng)?;
    let mut seen = Seen::default();
    if matches!(target, Target::StagedPage | Target::StagedData) {
        let cut = Arc::new(Unplugged(set.backup(), AtomicBool::new(false)));
        if device.backup(cut).is_ok() || !is_staged(&*set.backup()) {
            return Err("the backup was not cut off with what is staged".to_string());
        }
    }
    if target.is_sealed() {
        device.seal().map_err(says)?;
    }
    let moment = [Moment::InUse, Moment::Closed, Moment::Cut][rng.random_range(0..3)];
    if moment == Moment::Closed {
        device.settle().map_err(says)?;
    }
    let device = (moment == Moment::InUse).then_some(device);
    // A device that is in use and then opened anew has lost its power in between, too.
    let is_cut = moment != Moment::Closed;
    let hit = set.choose(target, rng)?;
    set.hit(target, &hit, how.0, rng)?;
    // What everybody does: the backup read back, main made anew as a trial, the set read, main brought up to date, a backup, the set opened again.
    let as_hit = set.copy()?;
    if target.device() == BACKUP {
        seen.is_told |= !flashlog::verify_backup(as_hit.backup()).is_ok_and(|found| found.is_good());
    }
    let from_others = as_hit.rebuilt(&mut seen)?;
    let mut is_restored = from_others.is_some_and(|device| as_hit.compare(&device, is_cut, &mut seen));
    if let Some(device) = device.or_else(|| seen.step(Step::Open, set.open())) {
        set.compare(&device, is_cut, &mut seen);
        seen.step(Step::CatchUp, device.catch_up());
        seen.step(Step::BackUp, device.backup(set.backup()));
        set.compare(&device, is_cut, &mut seen);
    }
    if let Some(device) = seen.step(Step::Open, set.open()) {
        set.compare(&device, is_cut, &mut seen);
        // Another backup does not need what was damaged on the old one.
        is_restored |= set.compare(&device, false, &mut Seen::default());
    }
    // Main has everything in synchronous mode, and when the set was closed, if it comes to that.
    let is_on_main = set.options.mode == Mode::Synchronous || moment == Moment::Closed;
    is_restored |= is_on_main && as_hit.has_main_alone();
    seen.is_spread = set.is_spread(target, &hit);
    seen.is_restored = is_restored;
    seen.is_elsewhere = target.device() != LOG || is_on_main;
    Ok(seen)
}

/// The map is hit of which the next backup, or a log that comes back, is to take what has changed.
pub(super) fn mapped(target: Target, how: (Hit, Option<Mode>), rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (mut set, device) = Set::new(how.1, rng)?;
    device.backup(set.backup()).map_err(says)?;
    device.settle().map_err(says)?;
    let policy: Policy = "log=alone".parse().map_err(says)?;
    let lasting = Lasting::of(device, policy.clone());
    let first = rng.random_range(0..BLOCKS - 60);
    match target {
        Target::Map(MAIN) => {
            lasting.detach_log().map_err(says)?;
            set.write(&lasting, first..first + rng.random_range(1..60))?;
        }
        _ => {
            while lasting.status().0.changed_blocks == 0 {
                set.write(&lasting, first..first + rng.random_range(1..60))?;
            }
        }
    }
    lasting.settle().map_err(says)?;
    drop(lasting);
    let hit = set.choose(target, rng)?;
    set.hit(target, &hit, how.0, rng)?;
    let mut seen = Seen { is_elsewhere: true, ..Seen::default() };
    let opened = match target {
        Target::Map(MAIN) => Lasting::open_alone(set.main(), &set.options, policy, false).map_err(says),
        _ => set.open().map(|device| Lasting::of(device, policy)),
    };
    if let Some(lasting) = seen.step(Step::Open, opened) {
        if target == Target::Map(MAIN) {
            set.compare(&lasting, false, &mut seen);
            seen.step(Step::Attach, lasting.attach_log(set.log()));
        }
        if let Some(device) = lasting.set() {
            set.compare(&*device, false, &mut seen);
            seen.step(Step::BackUp, device.backup(set.backup()));
            seen.is_restored = set.rebuilt(&mut seen)?.is_some_and(|device| set.compare(&device, false, &mut seen));
            let found = seen.step(Step::Scrub, device.scrub(set.backup()));
            seen.is_told |= found.is_some_and(|found| !found.is_good());
        }
    }
    seen.is_spread = set.is_spread(target, &[]);
    Ok(seen)
}

/// A block of main is hit that was not written since the backup; those around it were. Then the next backup is made.
pub(super) fn unwritten(way: Way, how: (Hit, Option<Mode>), rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (mut set, device) = Set::new(how.1, rng)?;
    device.backup(set.backup()).map_err(says)?;
    device.settle().map_err(says)?;
    let hit = rng.random_range(2..BLOCKS - 2);
    let policy: Policy = "log=alone".parse().map_err(says)?;
    let lasting = match way {
        Way::Compare => {
            drop(device);
            Lasting::open_alone(set.main(), &set.options, policy.clone(), true).map_err(says)?
        }
        _ => Lasting::of(device, policy.clone()),
    };
    if matches!(way, Way::Attach | Way::NewLog) {
        lasting.detach_log().map_err(says)?;
    }
    set.write(&lasting, hit - rng.random_range(1..=2)..hit)?;
    set.write(&lasting, hit + 1..hit + rng.random_range(2..=3))?;
    while way == Way::Overflow && lasting.status().0.changed_blocks == 0 {
        set.write(&lasting, if hit < BLOCKS / 2 { 200..250 } else { 0..50 })?;
    }
    lasting.settle().map_err(says)?;
    if rng.random() {
        // As much is known as there is on the devices.
        drop(lasting);
        let opened = match way {
            Way::Overflow => set.open().map(|device| Lasting::of(device, policy))?,
            _ => Lasting::open_alone(set.main(), &set.options, policy, true).map_err(says)?,
        };
        return unwritten_is_copied(set, opened, way, (hit, how.0), rng);
    }
    unwritten_is_copied(set, lasting, way, (hit, how.0), rng)
}

fn unwritten_is_copied(
    mut set: Set,
    lasting: Lasting,
    way: Way,
    (at, hit): (u64, Hit),
    rng: &mut Pcg64Mcg,
) -> Result<Seen, String> {
    let target = Target::Unwritten(way);
    set.hit(target, &[at], hit, rng)?;
    let mut seen = Seen { is_elsewhere: way != Way::Compare, ..Seen::default() };
    let is_attached = match way {
        Way::Overflow => true,
        Way::Attach => seen.step(Step::Attach, lasting.attach_log(set.log())).is_some(),
        Way::NewLog | Way::Compare => false,
    };
    if !is_attached {
        set.units[LOG] = Unit::new(log_blocks_least(), LOG);
        seen.step(Step::Attach, lasting.attach_new_log(set.log(), Uuid([6; 16])));
    }
    let Some(device) = lasting.set() else { return Ok(seen) };
    let done = seen.step(Step::BackUp, device.backup(set.backup()));
    seen.is_told |= done.is_some_and(|done| done.doubtful_first == Some(at));
    seen.is_spread = set.is_spread(target, &[at]);
    set.compare(&*device, false, &mut seen);
    set.rebuilt(&mut seen)?.map(|device| set.compare(&device, false, &mut seen));
    // Whoever still has it as it was can tell.
    drop(device.scrub(set.backup()));
    seen.is_restored = set.compare(&*device, false, &mut Seen::default());
    Ok(seen)
}
