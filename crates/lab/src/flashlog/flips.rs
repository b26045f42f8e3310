//! Bits that flip on the devices of a Flashlog, while it is closed or in use: what is read, what is told, what is copied on, and what can be
//! got back.

use crate::numbered::{block, content};
use holdfast_block::flashlog::{self, Create, Flashlog, Lasting, Mode, Options, Policy, Uuid, log_blocks_least};
use holdfast_block::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

/// Blocks of the set's device; main has as many for labels.
const BLOCKS: u64 = 256;
const MAIN_BLOCKS: u64 = 512;
const BACKUP_BLOCKS: u64 = 1536;
/// Where a backup has checksums, staged pages and staged data, 1 MiB the first two.
const SUMS: u64 = BLOCKS;
const STAGED_PAGES: u64 = SUMS + 256;
const STAGED_DATA: u64 = STAGED_PAGES + 256;

/// What is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// One copy of the newest label of main, log or backup.
    Label(usize),
    /// Both copies.
    Labels(usize),
    /// The newest map of regions, of a main that is alone or of a log that was full.
    Map(usize),
    /// The host's data on main or backup.
    Data(usize),
    /// A page of the log.
    Page,
    /// Data in the log.
    LogData,
    /// A page of a log that was idle for a second, so that a seal is behind the last one.
    SealedPage,
    /// Data in the same.
    SealedData,
    /// Checksums of a backup's data.
    Sums,
    /// A page of what a backup that was cut off had staged.
    StagedPage,
    /// Data of the same.
    StagedData,
    /// A block on main that nobody has written since the backup, beside such as were, before it is copied in this way.
    Unwritten(Way),
}

/// How a backup gets what its set's log has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The log was full.
    Overflow,
    /// The log was away, and is back.
    Attach,
    /// The log was away, and is another one.
    NewLog,
    /// The same, and it is not known what the backup lacks, so that everything is compared.
    Compare,
}

const MAIN: usize = 0;
const LOG: usize = 1;
const BACKUP: usize = 2;
const NAMES: [&str; 3] = ["main", "log", "backup"];

impl Target {
    /// In the order of the table.
    pub const ALL: [Target; 21] = [
        Target::Label(0),
        Target::Labels(0),
        Target::Map(0),
        Target::Data(0),
        Target::Label(1),
        Target::Labels(1),
        Target::Map(1),
        Target::Page,
        Target::SealedPage,
        Target::LogData,
        Target::SealedData,
        Target::Label(2),
        Target::Labels(2),
        Target::Data(2),
        Target::Sums,
        Target::StagedPage,
        Target::StagedData,
        Target::Unwritten(Way::Overflow),
        Target::Unwritten(Way::Attach),
        Target::Unwritten(Way::NewLog),
        Target::Unwritten(Way::Compare),
    ];

    fn device(self) -> usize {
        match self {
            Target::Label(device) | Target::Labels(device) | Target::Map(device) | Target::Data(device) => device,
            Target::Page | Target::SealedPage | Target::LogData | Target::SealedData => 1,
            Target::Sums | Target::StagedPage | Target::StagedData => 2,
            Target::Unwritten(_) => 0,
        }
    }

    fn name(self) -> String {
        let what = match self {
            Target::Label(_) => "newest label, one copy",
            Target::Labels(_) => "newest label, both copies",
            Target::Map(MAIN) => "map of regions, it is alone",
            Target::Map(_) => "map of regions, it was full",
            Target::Data(_) => "data",
            Target::Page => "page",
            Target::LogData => "data",
            Target::SealedPage => "page, idle for a second",
            Target::SealedData => "data, idle for a second",
            Target::Sums => "checksums",
            Target::StagedPage => "staged page",
            Target::StagedData => "staged data",
            Target::Unwritten(Way::Overflow) => "unwritten data, the log was full",
            Target::Unwritten(Way::Attach) => "unwritten data, the log was away",
            Target::Unwritten(Way::NewLog) => "unwritten data, a new log",
            Target::Unwritten(Way::Compare) => "unwritten data, all is compared",
        };
        format!("{}: {what}", NAMES[self.device()])
    }

    fn is_sealed(self) -> bool {
        matches!(self, Target::SealedPage | Target::SealedData)
    }

    /// Where it may be on its device.
    fn area(self) -> Range<u64> {
        let least = log_blocks_least();
        match self {
            Target::Data(_) | Target::Unwritten(_) => 0..BLOCKS,
            Target::Label(0) | Target::Labels(0) | Target::Map(0) => BLOCKS..MAIN_BLOCKS,
            Target::Label(1) | Target::Labels(1) | Target::Map(1) => 0..256,
            Target::Label(_) | Target::Labels(_) | Target::Map(_) => BACKUP_BLOCKS - 256..BACKUP_BLOCKS,
            Target::Page | Target::SealedPage => 256..512,
            Target::LogData | Target::SealedData => 512..least,
            Target::Sums => SUMS..STAGED_PAGES,
            Target::StagedPage => STAGED_PAGES..STAGED_DATA,
            Target::StagedData => STAGED_DATA..BACKUP_BLOCKS - 256,
        }
    }
}

/// What came of the trials of one row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What was hit.
    pub target: Target,
    /// Bits flipped in each block that was hit.
    pub flips: u32,
    /// How many trials.
    pub trials: u64,
    /// Everything went as if nothing had happened.
    pub unharmed: u64,
    /// An error told of it.
    pub told: u64,
    /// Wrong bytes were read from the set, or from a main made anew, without an error.
    pub wrong: u64,
    /// A good block on another device was overwritten with damage.
    pub spread: u64,
    /// Damage to what the last flush had written was taken for what a power cut leaves: the set is at a state before that flush.
    pub cut: u64,
    /// With the others, everything that a flush had answered could be had, whatever was read before.
    pub restored: u64,
    /// That could not be done, although another device had it.
    pub missing: u64,
}

/// All rows.
///
/// # Errors
/// In words, if something goes wrong that has nothing to do with the flips, with the seed.
pub fn run(seed: u64, trials: u64) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for target in Target::ALL {
        for flips in [1, 3] {
            let mut row = Row {
                target,
                flips,
                trials,
                unharmed: 0,
                told: 0,
                wrong: 0,
                spread: 0,
                cut: 0,
                restored: 0,
                missing: 0,
            };
            for number in 0..trials {
                let of_trial = seed.wrapping_add(number);
                let mut rng = Pcg64Mcg::seed_from_u64(of_trial);
                let done = match target {
                    Target::Unwritten(way) => unwritten(way, flips, &mut rng),
                    Target::Map(_) => mapped(target, flips, &mut rng),
                    _ => trial(target, flips, &mut rng),
                };
                let seen = done.map_err(|what| format!("{}, {flips} flips, seed {of_trial}: {what}", target.name()))?;
                row.unharmed += u64::from(!seen.is_told && !seen.is_wrong && !seen.is_cut);
                row.cut += u64::from(seen.is_cut);
                row.missing += u64::from(seen.is_elsewhere && !seen.is_restored);
                row.told += u64::from(seen.is_told);
                row.wrong += u64::from(seen.is_wrong);
                row.spread += u64::from(seen.is_spread);
                row.restored += u64::from(seen.is_restored);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// When bits flip.
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
struct Seen {
    is_told: bool,
    is_wrong: bool,
    is_spread: bool,
    is_cut: bool,
    is_restored: bool,
    /// Another device than the one that was hit had everything.
    is_elsewhere: bool,
}

struct Set {
    main: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
    backup: Arc<MemoryDevice>,
    options: Options,
    /// What each block has now, what it had before the last flush's writes, and what it ever had.
    now: Vec<u64>,
    before: Vec<u64>,
    ever: Vec<BTreeSet<u64>>,
}

fn says(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Set {
    fn new(rng: &mut Pcg64Mcg) -> Result<(Set, Flashlog), String> {
        let main = Arc::new(MemoryDevice::new(MAIN_BLOCKS).named("main"));
        let log = Arc::new(MemoryDevice::new(log_blocks_least()).named("log"));
        let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS).named("backup"));
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        flashlog::create(main.clone(), log.clone(), &names).map_err(says)?;
        let mode = if rng.random() { Mode::Synchronous } else { Mode::Asynchronous };
        let options =
            Options { mode, gather_blocks: 8, now: Arc::new(|| SystemTime::UNIX_EPOCH), ..Options::default() };
        let mut set = Set {
            main,
            log,
            backup,
            options,
            now: vec![0; 256],
            before: vec![0; 256],
            ever: vec![BTreeSet::from([0]); 256],
        };
        let device = set.open()?;
        set.write(&device, 0..BLOCKS)?;
        device.create_backup(set.backup.clone(), Uuid([4; 16])).map_err(says)?;
        device.backup(set.backup.clone()).map_err(says)?;
        device.catch_up().map_err(says)?;
        let (some, more) = (rng.random_range(1..100), rng.random_range(100..200));
        set.write(&device, some..more)?;
        device.backup(set.backup.clone()).map_err(says)?;
        set.write(&device, more - 50..more + 50)?;
        Ok((set, device))
    }

    fn open(&self) -> Result<Flashlog, String> {
        let opened = Flashlog::open(self.main.clone(), self.log.clone(), &self.options);
        opened.map(|(device, _)| device).map_err(says)
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

    fn device(&self, number: usize) -> &Arc<MemoryDevice> {
        [&self.main, &self.log, &self.backup][number]
    }

    /// Blocks to be hit: of labels the newest, of all else one that has something.
    fn choose(&self, target: Target, rng: &mut Pcg64Mcg) -> Result<Vec<u64>, String> {
        let bytes = self.device(target.device()).snapshot();
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

    /// Whether a block of main or backup, but for those that were hit, has something that nobody ever wrote there.
    fn is_spread(&self, target: Target, hit: &[u64]) -> bool {
        [0, 2].into_iter().any(|number| {
            let bytes = self.device(number).snapshot();
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            let is_hit = |at: u64| target.device() == number && hit.contains(&at);
            let is_known =
                |at: u64| content(&blocks[at as usize]).is_some_and(|is| self.ever[at as usize].contains(&is));
            (0..BLOCKS).any(|at| !is_hit(at) && !is_known(at))
        })
    }

    /// Main made anew. None if that is refused.
    fn rebuilt(&self, seen: &mut Seen) -> Option<Flashlog> {
        let (main, log) = (Arc::new(MemoryDevice::new(MAIN_BLOCKS)), Arc::new((*self.log).clone()));
        let backup = Arc::new((*self.backup).clone());
        let done = flashlog::rebuild(backup, log.clone(), main.clone(), Uuid([5; 16]))
            .and_then(|_| Flashlog::open(main, log, &self.options));
        seen.is_told |= done.is_err();
        done.ok().map(|(device, _)| device)
    }
}

/// A backup that is unplugged after so many writes and flushes.
struct Unplugged(Arc<MemoryDevice>, AtomicI64);

impl Unplugged {
    fn count(&self) -> Result<(), holdfast_block::Error> {
        if self.1.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(holdfast_block::Error::Unsuitable { device: self.0.name().into(), reason: "it was unplugged" })
    }
}

impl Filter for Unplugged {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), holdfast_block::Error> {
        self.count()?;
        self.0.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), holdfast_block::Error> {
        self.count()?;
        self.0.flush()
    }
}

/// Flips so many bits of a block.
fn flip(device: &MemoryDevice, at: u64, flips: u32, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let mut bits = BTreeSet::new();
    while bits.len() < flips as usize {
        bits.insert(rng.random_range(0..BLOCK_SIZE * 8));
    }
    let flip = |bytes: &mut [u8; BLOCK_SIZE]| bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
    device.alter(at, flip).map_err(says)
}

fn trial(target: Target, flips: u32, rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (set, device) = Set::new(rng)?;
    let mut seen = Seen::default();
    if matches!(target, Target::StagedPage | Target::StagedData) {
        // Cut off when what is staged is complete, and not in its place: behind data, pages, a flush, and a label with its flush.
        let cut = Arc::new(Unplugged(set.backup.clone(), AtomicI64::new(5)));
        if device.backup(cut).is_ok() {
            return Err("the backup was not cut off".to_string());
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
    for at in &hit {
        flip(set.device(target.device()), *at, flips, rng)?;
    }
    // What everybody does: the backup read back, main made anew as a trial, the set read, main brought up to date, a backup, the set opened again.
    let as_hit = Set {
        main: Arc::new((*set.main).clone()),
        log: Arc::new((*set.log).clone()),
        backup: Arc::new((*set.backup).clone()),
        options: set.options.clone(),
        now: set.now.clone(),
        before: set.before.clone(),
        ever: set.ever.clone(),
    };
    if target.device() == BACKUP {
        seen.is_told |= !flashlog::verify_backup(as_hit.backup.clone()).is_ok_and(|found| found.is_good());
    }
    let from_others = as_hit.rebuilt(&mut seen);
    let mut is_restored = from_others.is_some_and(|device| as_hit.compare(&device, is_cut, &mut seen));
    if let Some(device) = device.or_else(|| set.open().ok()) {
        set.compare(&device, is_cut, &mut seen);
        seen.is_told |= device.catch_up().is_err();
        seen.is_told |= device.backup(set.backup.clone()).is_err();
        set.compare(&device, is_cut, &mut seen);
    } else {
        seen.is_told = true;
    }
    match set.open() {
        Ok(device) => {
            set.compare(&device, is_cut, &mut seen);
            // Another backup does not need what was damaged on the old one.
            is_restored |= set.compare(&device, false, &mut Seen::default());
        }
        Err(_) => seen.is_told = true,
    }
    // Main has everything in synchronous mode, and when the set was closed, if it comes to that.
    let is_on_main = set.options.mode == Mode::Synchronous || moment == Moment::Closed;
    is_restored |= is_on_main && as_hit.compare(&*as_hit.main, false, &mut Seen::default());
    seen.is_spread = set.is_spread(target, &hit);
    seen.is_restored = is_restored;
    seen.is_elsewhere = target.device() != LOG || is_on_main;
    Ok(seen)
}

/// The map flips of which the next backup, or a log that comes back, is to take what has changed.
fn mapped(target: Target, flips: u32, rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (mut set, device) = Set::new(rng)?;
    device.backup(set.backup.clone()).map_err(says)?;
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
    for at in set.choose(target, rng)? {
        flip(set.device(target.device()), at, flips, rng)?;
    }
    let mut seen = Seen { is_elsewhere: true, ..Seen::default() };
    let lasting = match target {
        Target::Map(MAIN) => {
            let alone = Lasting::open_alone(set.main.clone(), &set.options, policy, false).map_err(says)?;
            alone.attach_log(set.log.clone()).map_err(says)?;
            alone
        }
        _ => Lasting::of(set.open()?, policy),
    };
    let device = lasting.set().ok_or("the set has no log")?;
    set.compare(&*device, false, &mut seen);
    device.backup(set.backup.clone()).map_err(says)?;
    seen.is_spread = set.is_spread(target, &[]);
    seen.is_restored = set.rebuilt(&mut seen).is_some_and(|device| set.compare(&device, false, &mut seen));
    seen.is_told |= !device.scrub(set.backup.clone()).map_err(says)?.is_good();
    Ok(seen)
}

/// Something flips on main in a block that was not written since the backup; those around it were. Then the next backup is made.
fn unwritten(way: Way, flips: u32, rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let (mut set, device) = Set::new(rng)?;
    device.backup(set.backup.clone()).map_err(says)?;
    device.settle().map_err(says)?;
    let hit = rng.random_range(2..BLOCKS - 2);
    let policy: Policy = "log=alone".parse().map_err(says)?;
    let lasting = match way {
        Way::Compare => {
            drop(device);
            Lasting::open_alone(set.main.clone(), &set.options, policy.clone(), true).map_err(says)?
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
            _ => Lasting::open_alone(set.main.clone(), &set.options, policy, true).map_err(says)?,
        };
        return unwritten_is_copied(set, opened, way, (hit, flips), rng);
    }
    unwritten_is_copied(set, lasting, way, (hit, flips), rng)
}

fn unwritten_is_copied(
    mut set: Set,
    lasting: Lasting,
    way: Way,
    (hit, flips): (u64, u32),
    rng: &mut Pcg64Mcg,
) -> Result<Seen, String> {
    flip(&set.main, hit, flips, rng)?;
    match way {
        Way::Overflow => {}
        Way::Attach => drop(lasting.attach_log(set.log.clone()).map_err(says)?),
        Way::NewLog | Way::Compare => {
            set.log = Arc::new(MemoryDevice::new(log_blocks_least()).named("log"));
            lasting.attach_new_log(set.log.clone(), Uuid([6; 16])).map_err(says)?;
        }
    }
    let mut seen = Seen { is_elsewhere: way != Way::Compare, ..Seen::default() };
    let device = lasting.set().ok_or("the set has no log")?;
    let done = device.backup(set.backup.clone()).map_err(says)?;
    seen.is_told = done.doubtful_first == Some(hit);
    seen.is_spread = set.is_spread(Target::Unwritten(way), &[hit]);
    set.compare(&*device, false, &mut seen);
    set.rebuilt(&mut seen).map(|device| set.compare(&device, false, &mut seen));
    // Whoever still has it as it was can tell.
    drop(device.scrub(set.backup.clone()).map_err(says)?);
    seen.is_restored = set.compare(&*device, false, &mut Seen::default());
    Ok(seen)
}

/// The table, as in `docs/flashlog.md`.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| what is hit | bits | trials | unharmed | told | wrong without a word | copied on | taken for a power cut's | all there, with the others |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for Row { target, flips, trials, unharmed, told, wrong, spread, cut, restored, missing: _ } in rows {
        let name = target.name();
        let _ = writeln!(
            out,
            "| {name} | {flips} | {trials} | {unharmed} | {told} | {wrong} | {spread} | {cut} | {restored} |"
        );
    }
    out
}

/// What in these rows is not as it must be.
pub fn broken(rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows {
        // Main's data has no checksums of its own, and where nobody knows what was written it is taken for that.
        let has_sums = !matches!(row.target, Target::Data(MAIN) | Target::Unwritten(_));
        let is_guessed = row.target == Target::Unwritten(Way::Compare);
        let promises = [
            ("wrong bytes are read without a word", !has_sums || row.wrong == 0),
            ("damage is copied to another device", is_guessed || row.spread == 0),
            ("one bit is copied without a word", !is_guessed || row.flips > 1 || row.told == row.trials),
            ("something cannot be got back that another device had", row.missing == 0),
            ("one bit is taken for a power cut", row.flips > 1 || row.cut == 0),
            ("damage in front of a seal is taken for a power cut", !row.target.is_sealed() || row.cut == 0),
            ("damage is taken for a power cut that is not in the log", row.target.device() == LOG || row.cut == 0),
        ];
        broken.extend(promises.iter().filter(|(_, is_kept)| !is_kept).map(|(what, _)| format!("{what}: {row:?}")));
    }
    broken
}
