//! Procedures that a set goes through now and then, with the power cut, a device lost, or gone for a moment, or processes killed at any request of them: making a set,
//! making it or its backup larger, making main anew, at a barrier or without the log too, exchanging the log, and comparing main with its backup.
//! Each is done with what a power cut or a killed process has left, so after a cut of a procedure, and is done again in the end.

mod anew;
mod cut;
mod exchange;

use super::lasting::{bytes, copy, open, policy};
use super::life::{BLOCKS, Life, MAIN_BLOCKS};
use super::state::Images;
use super::watch::{BACKUP, LOG, MAIN, Moment};
use crate::device::Left;
use cut::{Cut, cut_off, has_same, is_as_it_was};
use holdfast_block::flashlog::{self, Create, Error, Flashlog, Lasting, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names, in the order in which they are counted.
pub const NAMES: [&str; 16] = [
    "create",
    "grow",
    "grow_backup",
    "rebuild_at",
    "scrub",
    "rebuild_without_log",
    "rebuild",
    "exchange",
    "exchange_lasting",
    "grow_lasting",
    "rebuild_lasting",
    "scrub_lasting",
    "grow_backup_lasting",
    "create_lasting",
    "rebuild_at_lasting",
    "rebuild_without_log_lasting",
];
/// So many of them are of sets that have had their log at all times; the others are of sets that outlast it.
const WITH_LOG: usize = 8;

/// Main, when the set is to become as large again.
const LARGER_MAIN_BLOCKS: u64 = MAIN_BLOCKS + BLOCKS as u64;

/// Main, log and backup.
type Three = [Arc<dyn Device>; 3];

fn says<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

/// Does one of them, cuts it off, and looks at what is left. Which one it was; none if the devices are in no state for it.
pub(super) fn examine(
    life: &Life,
    moment: &Moment,
    images: &Images,
    rng: &mut Pcg64Mcg,
) -> Result<Option<usize>, String> {
    let which = rng.random_range(0..WITH_LOG);
    let done = match which {
        0 => create(life, moment, images, rng).map(|()| true),
        1 => grow(life, moment, images, rng).map(|()| true),
        2 => grow_backup(life, moment, images, rng),
        3 => anew::rebuild_at(life, moment, images, rng),
        4 => scrub(life, moment, images, rng),
        5 => anew::rebuild_without_log(life, moment, images, rng),
        6 => anew::rebuild(life, moment, images, rng),
        _ => exchange::exchange(life, moment, images, rng).map(|()| true),
    };
    done.map(|is_done| is_done.then_some(which)).map_err(|what| format!("{}: {what}", NAMES[which]))
}

/// Does one with a set that outlasts its log, alone or not: it has what it had before, which may be no state that there was, as main alone is a disk.
/// Which one it was; none if the devices are in no state for it.
pub(super) fn of_lasting(
    life: &Life,
    moment: &Moment,
    images: &Images,
    rng: &mut Pcg64Mcg,
) -> Result<Option<usize>, String> {
    let which = rng.random_range(WITH_LOG..NAMES.len());
    let done = match which - WITH_LOG {
        0 => exchange::exchange(life, moment, images, rng).map(|()| true),
        1 => grow(life, moment, images, rng).map(|()| true),
        2 => anew::rebuild_lasting(life, moment, images, rng).map(|()| true),
        3 => together(life, images).and_then(|images| scrub(life, moment, &images, rng)),
        4 => together(life, images).and_then(|images| grow_backup(life, moment, &images, rng)),
        5 => create(life, moment, images, rng).map(|()| true),
        6 => anew::rebuild_at(life, moment, images, rng),
        _ => anew::rebuild_without_log(life, moment, images, rng),
    };
    done.map(|is_done| is_done.then_some(which)).map_err(|what| format!("{}: {what}", NAMES[which]))
}

/// The same devices, when the log has come back to a main that was alone.
fn together(life: &Life, images: &Images) -> Result<Images, String> {
    let (main, log) = (copy(&images.main), copy(&images.log));
    let set = put_together(life, main.clone(), log.clone())?;
    set.settle().map_err(says("with its log"))?;
    drop(set);
    Ok(Images::durable([&main, &log, &images.backup]))
}

/// What the set has that is made of these devices.
fn what_it_has(life: &Life, images: &Images) -> Result<Vec<u8>, String> {
    let (main, log): (Arc<dyn Device>, Arc<dyn Device>) = (copy(&images.main), copy(&images.log));
    let set = open(&main, &log, &life.options, false).map_err(says("cannot be opened"))?;
    bytes(&set).map_err(says("before"))
}

/// There is one, and it is not just being made another one.
fn has_backup(life: &Life, moment: &Moment) -> bool {
    life.has_backup && !moment.progress.is_new_backup
}

/// A new set of what was another one's devices: main keeps what it has.
fn create(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let had = if life.is_lasting { Some(what_it_has(life, images)?) } else { None };
    let names = Create { set: Uuid([11; 16]), main: Uuid([12; 16]), log: Uuid([13; 16]) };
    let make = |[main, log, _]: Three| flashlog::create(main, log, &names).map(drop).map_err(says("the first time"));
    let Cut { left: [main, log, _], what, is_done } =
        cut_off([MAIN, LOG, BACKUP].map(|at| images.left(at)), life, rng, make)?;
    // Of what was in main's cache nothing need be there until it is done.
    let is_kept = is_done || !images.is_cached();
    let before = first_bytes(if is_kept { &images.main } else { &main });
    let (of_main, of_log): (Arc<dyn Device>, Arc<dyn Device>) = (copy(&main), copy(&log));
    // It is the set that it was, or the new one, or none.
    match open(&of_main, &of_log, &life.options, false) {
        Ok(set) if bytes(&set).map_err(says(&what))? == before => {}
        Ok(set) if is_done => return Err(format!("{what}: it has not what main had, {} blocks", set.blocks())),
        Ok(set) => is_as_it_was(life, moment, images, had.as_deref(), &set).map_err(says(&what))?,
        Err(error) if is_done => return Err(format!("{what}: {error}")),
        Err(_) => {}
    }
    flashlog::create(main.clone(), log.clone(), &names).map_err(says(&what))?;
    let (set, _) = Flashlog::open(main, log, &life.options).map_err(says(&format!("{what}, then made again")))?;
    match bytes(&set).map_err(says(&what))? == before {
        true => Ok(()),
        false => Err(format!("{what}: the new set has not what main had")),
    }
}

/// Main has become larger, and its set does.
fn grow(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let before = what_it_has(life, images)?;
    let larger = images.left(MAIN).larger(LARGER_MAIN_BLOCKS).map_err(says("main"))?;
    let grow = |[main, log, _]: Three| {
        let set = put_together(life, main, log)?;
        set.grow(0).map_err(says("the first time"))?;
        Ok(())
    };
    let Cut { left: [main, log, backup], what, is_done } =
        cut_off([larger, images.left(LOG), images.left(BACKUP)], life, rng, grow)?;
    let set = put_together(life, main, log.clone()).map_err(says(&what))?;
    has_same(life, moment, images, &before, &set).map_err(says(&format!("{what}: opened again")))?;
    let before = bytes(&set).map_err(says(&what))?;
    let larger = LARGER_MAIN_BLOCKS - (MAIN_BLOCKS - BLOCKS as u64);
    if is_done && set.blocks() != larger {
        return Err(format!("{what}: it has {} blocks", set.blocks()));
    }
    let blocks = set.grow(0).map_err(says(&format!("{what}: grown again")))?;
    if blocks != larger {
        return Err(format!("{what}: grown again, it has {blocks} blocks"));
    }
    if bytes(&set).map_err(says(&what))? != before {
        return Err(format!("{what}: larger, the set has something else"));
    }
    // With its backup it makes another main of the new size.
    let with_log = set.set().ok_or_else(|| format!("{what}: main is alone"))?;
    drop(set);
    with_log.settle().map_err(says(&what))?;
    drop(with_log);
    if !has_backup(life, moment) {
        return Ok(());
    }
    let new_main = Arc::new(MemoryDevice::new(LARGER_MAIN_BLOCKS));
    match flashlog::rebuild(backup, log.clone(), new_main.clone(), Uuid([7; 16])) {
        Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(()),
        // It has had a new log since.
        Err(Error::Replaced { .. }) if life.is_lasting => return Ok(()),
        made => made.map_err(says(&format!("{what}: main made anew")))?,
    };
    let (set, _) = Flashlog::open(new_main, log, &life.options).map_err(says(&what))?;
    match bytes(&set).map_err(says(&what))? == before {
        true => Ok(()),
        false => Err(format!("{what}: the larger set's backup and log make something else")),
    }
}

/// A set has become larger, and its backup does. Sets grow by whole MiB, and here set and checksums had one MiB each: the backup's new areas
/// never lie over the old checksums (those in `large.rs` do), so a backup that has a state must keep one.
fn grow_backup(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let mut larger = images.main.snapshot();
    // What a disk has there is the set's from then on.
    larger.resize(LARGER_MAIN_BLOCKS as usize * BLOCK_SIZE, 0x5a);
    let (main, log) = (Arc::new(MemoryDevice::from_bytes(&larger).named("main")), copy(&images.log));
    let set = put_together(life, main.clone(), log.clone()).map_err(says("before"))?;
    let blocks = set.grow(0).map_err(says("the set"))?;
    if blocks != 2 * BLOCKS as u64 {
        // Main's labels would not be at its end then, where it is opened below.
        return Err(format!("grown, the set has {blocks} blocks"));
    }
    write_last(&set).map_err(says("before"))?;
    let before = all_bytes(&set).map_err(says("before"))?;
    drop(set);
    let anew = |log: &MemoryDevice, backup: &MemoryDevice| {
        let (main, log) = (Arc::new(MemoryDevice::new(LARGER_MAIN_BLOCKS)), copy(log));
        match flashlog::rebuild(copy(backup), log.clone(), main.clone(), Uuid([7; 16])) {
            Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(None),
            // It has had a new log since.
            Err(Error::Replaced { .. }) if life.is_lasting => return Ok(None),
            made => made.map_err(says("main made anew"))?,
        };
        let (set, _) = Flashlog::open(main, log, &life.options).map_err(says("main made anew"))?;
        all_bytes(&set).map(Some).map_err(says("main made anew"))
    };
    let has_state = anew(&log, &images.backup)?.is_some();
    let back_up = |[main, log, backup]: Three| {
        let (set, _) = Flashlog::open(main, log, &life.options).map_err(says("opened"))?;
        set.backup(backup).map(drop).map_err(says("the first time"))
    };
    // What it is done with was flushed by what was done before.
    let found = [Left::durable(&main), Left::durable(&log), Left::durable(&images.backup)];
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, back_up)?;
    match anew(&log, &backup).map_err(says(&what))? {
        Some(found) if found != before => return Err(format!("{what}: backup and log make something else")),
        None if has_state || is_done => return Err(format!("{what}: the backup has no state any more")),
        _ => {}
    }
    let set = put_together(life, main, log.clone()).map_err(says(&what))?;
    let with_log = set.set().ok_or_else(|| format!("{what}: main is alone"))?;
    with_log.backup(backup.clone()).map_err(says(&format!("{what}: again")))?;
    if all_bytes(&set).map_err(says(&what))? != before {
        return Err(format!("{what}: the set has something else"));
    }
    let mut backed_up = backup.snapshot();
    backed_up.truncate(before.len());
    if backed_up != before {
        return Err(format!("{what}: the larger backup is not as the set"));
    }
    write_last(&set).map_err(says(&what))?;
    let before = all_bytes(&set).map_err(says(&what))?;
    drop((with_log, set));
    match anew(&log, &backup).map_err(says(&what))? {
        Some(found) if found == before => Ok(true),
        _ => Err(format!("{what}: the larger backup and the log do not make main")),
    }
}

/// Writes the last block of a set, durably: what was there, changed.
fn write_last(set: &dyn Device) -> Result<(), holdfast_block::Error> {
    let (at, mut bytes) = (set.blocks() - 1, [0; BLOCK_SIZE]);
    set.read(at, &mut [IoSliceMut::new(&mut bytes)])?;
    bytes.iter_mut().step_by(512).for_each(|byte| *byte = byte.wrapping_add(1));
    set.write(at, &[IoSlice::new(&bytes)])?;
    set.flush()
}

/// All that a set has, however large it is.
fn all_bytes(set: &dyn Device) -> Result<Vec<u8>, holdfast_block::Error> {
    let mut bytes = vec![0; set.blocks() as usize * BLOCK_SIZE];
    set.read(0, &mut [IoSliceMut::new(&mut bytes)]).map(|()| bytes)
}

/// As `flashlog attach` and `serve` open what a power cut has left: main wherever its labels are, with its log, or with its log again.
fn put_together(life: &Life, main: Arc<dyn Device>, log: Arc<dyn Device>) -> Result<Lasting, String> {
    let of_log = flashlog::inspect(&*log).map_err(says("the log's label"))?;
    let blocks = of_log.map_or(BLOCKS as u64, |label| label.blocks);
    let (main, label) = flashlog::as_labelled(main, Some(blocks)).map_err(says("main's label"))?;
    label.ok_or("main has no label")?;
    match Flashlog::open(Arc::clone(&main), Arc::clone(&log), &life.options) {
        Ok((set, _)) => Ok(Lasting::of(set, policy())),
        Err(Error::Alone { .. }) => {
            let set = Lasting::open_alone(main, &life.options, policy(), false).map_err(says("main alone"))?;
            set.attach_log(log).map_err(says("the log comes back"))?;
            Ok(set)
        }
        Err(error) => Err(format!("cannot be opened: {error}")),
    }
}

/// A block of main rots, and is made good.
fn scrub(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let (main, log, backup) = (copy(&images.main), copy(&images.log), copy(&images.backup));
    let (set, _) = Flashlog::open(main.clone(), log.clone(), &life.options).map_err(says("cannot be opened"))?;
    set.backup(backup.clone()).map_err(says("the backup before"))?;
    set.settle().map_err(says("before"))?;
    let before = bytes(&set).map_err(says("before"))?;
    drop(set);
    let damaged = rng.random_range(0..BLOCKS);
    main.alter(damaged as u64, |block| block[100..200].iter_mut().for_each(|byte| *byte ^= 0xa5))
        .map_err(says("damage"))?;
    let rotten = first_bytes(&main);
    let is_again = AtomicBool::new(false);
    let compare = |[main, log, backup]: Three| {
        let (set, _) = Flashlog::open(main, log, &life.options).map_err(says("opened"))?;
        let done = set.scrub(backup).map_err(says("the first time"))?;
        // A process that was killed at it may have repaired the block.
        let is_repaired = is_again.swap(true, Ordering::Relaxed) && done.main_repaired.is_empty();
        match (is_repaired || done.main_repaired == [damaged as u64]) && done.is_good() {
            true => Ok(()),
            false => Err(format!("block {damaged} is damaged, and it says {done:?}")),
        }
    };
    // What it is done with was flushed by what was done before.
    let found = [Left::durable(&main), Left::durable(&log), Left::durable(&backup)];
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, compare)?;
    let what = format!("block {damaged} damaged, {what}");
    if is_done && first_bytes(&main) != before {
        return Err(format!("{what}: the damaged block is as it was"));
    }
    let (set, _) = Flashlog::open(main, log, &life.options).map_err(says(&what))?;
    let found = bytes(&set).map_err(says(&what))?;
    let at = damaged * BLOCK_SIZE..(damaged + 1) * BLOCK_SIZE;
    let is_torn = found[at.clone()].chunks(512).zip(before[at.clone()].chunks(512).zip(rotten[at.clone()].chunks(512)));
    if !is_torn.into_iter().all(|(found, (good, bad))| found == good || found == bad) {
        return Err(format!("{what}: the damaged block is neither as it was nor as it should be"));
    }
    let others = |bytes: &[u8]| [&bytes[..at.start], &bytes[at.end..]].concat();
    if others(&found) != others(&before) {
        return Err(format!("{what}: it has changed what was good"));
    }
    let done = set.scrub(backup.clone()).map_err(says(&format!("{what}: again")))?;
    if !done.is_good() || bytes(&set).map_err(says(&what))? != before {
        return Err(format!("{what}: compared again, main is not as it was ({done:?})"));
    }
    set.backup(backup.clone()).map_err(says(&what))?;
    match first_bytes(&backup) == before {
        true => Ok(true),
        false => Err(format!("{what}: the backup is not as main")),
    }
}

/// What a device has where a set's is.
fn first_bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = device.snapshot();
    bytes.truncate(BLOCKS * BLOCK_SIZE);
    bytes
}
