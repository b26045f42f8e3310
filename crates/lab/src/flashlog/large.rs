//! A backup that becomes larger with a set so large that the new areas of the backup lie over its old checksums: it has no state until all of it is
//! copied anew. Cut off by the power or by killed processes anywhere on that way, it has none or the right one, and the next one makes it whole.

use super::watch::{BACKUP, LOG, MAIN, Mishap, Watched};
use super::{KILLS_MOST, Plant, random_kills};
use crate::caught::caught;
use crate::device::{CrashMode, Left};
use crate::numbered::block;
use holdfast_block::flashlog::{self, Create, Error, Flashlog, Lasting, Mode, Options, Order, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Blocks of the set: with 512 MiB its checksums take 2 MiB.
const BLOCKS: u64 = 131_072;
/// It becomes larger by 1 MiB, so that the new checksums begin in the middle of the old ones.
const LARGER_BLOCKS: u64 = BLOCKS + 256;
/// Blocks for labels, of main and backup.
const LABELS_BLOCKS: u64 = 256;
/// Blocks of the backup: those of the larger set, of its checksums, and of a staging area.
const BACKUP_BLOCKS: u64 = LARGER_BLOCKS + 512 + 1024 + LABELS_BLOCKS;
/// Blocks that are read at once.
const STEP_BLOCKS: u64 = 256;
/// Blocks with something in them.
const WRITES: u64 = 400;

/// Cuts such a backup off so often, half of the times after its process was killed.
///
/// # Errors
/// In words, what is not as promised.
pub fn explore(seed: u64, states: u64, order: Order) -> Result<(), String> {
    caught(|| {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let large = Large::new(order, &mut rng)?;
        for is_killed in [false, true] {
            large.cut_off(is_killed, states.div_ceil(2), &mut rng)?;
        }
        Ok(())
    })
    .map_err(|what| format!("seed {seed}: {what}"))
}

/// A set that has become larger, and a backup that has not yet.
struct Large {
    found: [Left; 3],
    options: Options,
    /// What blocks have that are no zeros.
    contents: BTreeMap<u64, u64>,
}

fn says<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

impl Large {
    fn new(order: Order, rng: &mut Pcg64Mcg) -> Result<Large, String> {
        let main = Arc::new(MemoryDevice::new(BLOCKS + LABELS_BLOCKS).named("main"));
        let log = Arc::new(MemoryDevice::new(2 * flashlog::log_blocks_least()).named("log"));
        let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS).named("backup"));
        let names = Create { set: Uuid(rng.random()), main: Uuid(rng.random()), log: Uuid(rng.random()) };
        flashlog::create(main.clone(), log.clone(), &names).map_err(says("made"))?;
        let mode = if rng.random() { Mode::Synchronous } else { Mode::Asynchronous };
        let options = Options { mode, order, ..Options::default() };
        let (set, _) = Flashlog::open(main.clone(), log.clone(), &options).map_err(says("opened"))?;
        let set = Lasting::of(set, super::lasting::policy());
        let mut contents = BTreeMap::new();
        write(&set, WRITES, &mut contents, rng)?;
        let with_log = set.set().ok_or("main is alone")?;
        with_log.create_backup(backup.clone(), Uuid(rng.random())).map_err(says("backup made"))?;
        with_log.backup(backup.clone()).map_err(says("first backup"))?;
        drop(with_log);
        write(&set, WRITES / 2, &mut contents, rng)?;
        main.grow(LARGER_BLOCKS + LABELS_BLOCKS).map_err(says("main"))?;
        let blocks = set.grow(0).map_err(says("grown"))?;
        if blocks != LARGER_BLOCKS {
            return Err(format!("grown, the set has {blocks} blocks"));
        }
        write(&set, WRITES / 8, &mut contents, rng)?;
        set.settle().map_err(says("settled"))?;
        drop(set);
        let found = [&main, &log, &backup].map(|device| Left::durable(device));
        Ok(Large { found, options, contents })
    }

    fn back_up(&self, [main, log, backup]: [Arc<dyn Device>; 3]) -> Result<flashlog::BackedUp, String> {
        let (set, _) = Flashlog::open(main, log, &self.options).map_err(says("opened"))?;
        set.backup(backup).map_err(says("backup"))
    }

    fn cut_off(&self, is_killed: bool, states: u64, rng: &mut Pcg64Mcg) -> Result<(), String> {
        let watch = |mishap: Mishap<'_>| {
            Watched::of_procedure(&self.found, mishap, Plant::Order(Order::Correct)).map_err(says("recorded"))
        };
        let mut watched = watch(Mishap::None)?;
        let done = self.back_up(Watched::devices(&watched))?;
        if !done.is_full {
            return Err(format!("the new areas were to lie over the old checksums: {done:?}"));
        }
        let mut what = String::new();
        if is_killed {
            let all = watched.requests().iter().sum::<usize>() as u64;
            let kills = random_kills((rng.random_range(1..=KILLS_MOST) - 1, all), (&watched.flushes(), all), rng);
            what = format!("killed after {kills:?} requests, the last one first; ");
            watched = watch(Mishap::Kills(&kills))?;
            watched.taken_up(|| self.back_up(Watched::devices(&watched))).map_err(says(&what))?;
        }
        let (moments, images) = (watched.moments(), watched.images());
        let first = watched.killed_at().first().copied().unwrap_or_default();
        // Before a flush of the backup there are checksums and blocks of which nobody knows which are there.
        let flushes: Vec<usize> = images[BACKUP].flushes().collect();
        let is_before_flush = |at: &usize| flushes.contains(&(moments[*at].positions[BACKUP] + 1));
        let before_flush: Vec<usize> = (first..moments.len()).filter(is_before_flush).collect();
        for number in 0..states {
            let before_flush = before_flush.choose(rng).filter(|_| number % 2 == 1).copied();
            let at = match before_flush {
                Some(at) => at,
                None if number == 0 => moments.len() - 1,
                None => rng.random_range(first..moments.len()),
            };
            let positions = moments[at].positions;
            let left = [MAIN, LOG, BACKUP].map(|at| {
                let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
                Arc::new(images[at].image(positions[at], mode, rng))
            });
            let what =
                format!("{what}cut off at positions {positions:?} of {:?}", moments[moments.len() - 1].positions);
            self.judge(left, number == 0).map_err(says(&what))?;
        }
        Ok(())
    }

    /// The backup has no state, or with the log the right one; and made again, it has.
    fn judge(&self, [main, log, backup]: [Arc<MemoryDevice>; 3], is_done: bool) -> Result<(), String> {
        let anew = |log: &MemoryDevice, backup: &MemoryDevice| {
            let (main, log) = (Arc::new(MemoryDevice::new(LARGER_BLOCKS + LABELS_BLOCKS)), Arc::new(log.clone()));
            match flashlog::rebuild(Arc::new(backup.clone()), log.clone(), main.clone(), Uuid([7; 16])) {
                Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(false),
                made => made.map_err(says("main made anew"))?,
            };
            let (set, _) = Flashlog::open(main, log, &self.options).map_err(says("main made anew"))?;
            self.compare(&set).map(|()| true).map_err(says("main made anew"))
        };
        let has_state = anew(&log, &backup)?;
        if is_done && !has_state {
            return Err("the backup has no state when it is done".to_string());
        }
        self.back_up([main, log.clone(), backup.clone()])?;
        self.compare(&*backup).map_err(says("the backup"))?;
        match anew(&log, &backup)? {
            true => Ok(()),
            false => Err("the backup has no state when it is made again".to_string()),
        }
    }

    /// That a device has what was written, and zeros.
    fn compare(&self, device: &dyn Device) -> Result<(), String> {
        let mut bytes = vec![0; STEP_BLOCKS as usize * BLOCK_SIZE];
        for first in (0..LARGER_BLOCKS).step_by(STEP_BLOCKS as usize) {
            device.read(first, &mut [IoSliceMut::new(&mut bytes)]).map_err(says("read"))?;
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            for (at, found) in (first..).zip(blocks) {
                let content = self.contents.get(&at).copied().unwrap_or_default();
                if *found != block(content) {
                    return Err(format!("block {at} has not {content}"));
                }
            }
        }
        Ok(())
    }
}

/// Writes blocks here and there, also the last one, durably.
fn write(set: &dyn Device, count: u64, contents: &mut BTreeMap<u64, u64>, rng: &mut Pcg64Mcg) -> Result<(), String> {
    for number in 0..count {
        let at = if number == 0 { set.blocks() - 1 } else { rng.random_range(0..set.blocks()) };
        let content = contents.len() as u64 * 1000 + number + 1;
        set.write(at, &[IoSlice::new(&block(content))]).map_err(says("written"))?;
        contents.insert(at, content);
    }
    set.flush().map_err(says("flushed"))
}
