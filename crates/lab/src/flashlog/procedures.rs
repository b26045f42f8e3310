//! Procedures that a set goes through now and then, with the power cut, or a device lost, at any request of them: making a set, making it or
//! its backup larger, making main anew at a barrier or without the log, and comparing main with its backup. Each is done with what a power cut has left, so after
//! a cut of a procedure, and is done again in the end.

use super::lasting::{bytes, copy, policy};
use super::life::{BLOCKS, Life, MAIN_BLOCKS, contents};
use super::state::{Images, judge_backup, nearest};
use super::watch::{DEVICES, Loss, Moment, Watched};
use crate::device::CrashMode;
use holdfast_block::flashlog::{self, At, Create, Error, Flashlog, Lasting, Past, Rebuild, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Names, in the order in which they are counted.
pub const NAMES: [&str; 6] = ["create", "grow", "grow_backup", "rebuild_at", "scrub", "rebuild_without_log"];

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
    let which = rng.random_range(0..NAMES.len());
    let done = match which {
        0 => create(life, moment, images, rng).map(|()| true),
        1 => grow(life, moment, images, rng).map(|()| true),
        2 => grow_backup(life, moment, images, rng),
        3 => rebuild_at(life, moment, images, rng),
        4 => scrub(life, moment, images, rng),
        _ => rebuild_without_log(life, moment, images, rng),
    };
    done.map(|is_done| is_done.then_some(which)).map_err(|what| format!("{}: {what}", NAMES[which]))
}

/// There is one, and it is not just being made another one.
fn has_backup(life: &Life, moment: &Moment) -> bool {
    life.has_backup && !moment.progress.is_new_backup
}

/// Does something with devices of which one may fail, and cuts the power anywhere. What is left, and where it was cut off.
fn cut_off(
    devices: [&MemoryDevice; 3],
    rng: &mut Pcg64Mcg,
    act: impl Fn(Three) -> Result<(), String>,
) -> Result<([Arc<MemoryDevice>; 3], String), String> {
    let mut watched = Watched::over(devices, None);
    act(Watched::devices(&watched))?;
    let requests = watched.requests();
    let used: Vec<usize> = (0..DEVICES.len()).filter(|device| requests[*device] > 0).collect();
    let mut what = String::new();
    if rng.random() && !used.is_empty() {
        let device = used[rng.random_range(0..used.len())];
        let loss = Loss { device, request: rng.random_range(0..requests[device]), is_begun: rng.random() };
        watched = Watched::over(devices, Some(loss));
        // It may get along without that device, or not.
        let _ = act(Watched::devices(&watched));
        what = format!("{loss}; ");
    }
    let moments = watched.moments();
    let positions = moments[rng.random_range(0..moments.len())].positions;
    let images = watched.images();
    let left = [0, 1, 2].map(|at| {
        let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        Arc::new(images[at].image(positions[at], mode, rng).named(DEVICES[at]))
    });
    Ok((left, format!("{what}cut off at positions {positions:?}")))
}

/// A new set of what was another one's devices: main keeps what it has.
fn create(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let names = Create { set: Uuid([11; 16]), main: Uuid([12; 16]), log: Uuid([13; 16]) };
    let make = |[main, log, _]: Three| flashlog::create(main, log, &names).map(drop).map_err(says("the first time"));
    let ([main, log, _], what) = cut_off([&images.main, &images.log, &images.backup], rng, make)?;
    let before = first_bytes(&images.main);
    // It is the set that it was, or the new one, or none.
    if let Ok((set, _)) = Flashlog::open(copy(&main), copy(&log), &life.options)
        && bytes(&set).map_err(says(&what))? != before
    {
        let begun = &life.writes[..moment.progress.begun.min(life.writes.len())];
        let found = contents(&set)?;
        nearest(&life.base, begun, moment.progress.flushed, &found).map_err(says(&what))?;
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
    let (set, _) =
        Flashlog::open(copy(&images.main), copy(&images.log), &life.options).map_err(says("cannot be opened"))?;
    let before = bytes(&set).map_err(says("before"))?;
    drop(set);
    let mut larger = images.main.snapshot();
    larger.resize(LARGER_MAIN_BLOCKS as usize * BLOCK_SIZE, 0);
    let larger = MemoryDevice::from_bytes(&larger).named("main");
    let grow = |[main, log, _]: Three| {
        let set = put_together(life, main, log)?;
        set.grow(0).map_err(says("the first time"))?;
        Ok(())
    };
    let ([main, log, backup], what) = cut_off([&larger, &images.log, &images.backup], rng, grow)?;
    let set = put_together(life, main, log.clone()).map_err(says(&what))?;
    let check = |set: &Lasting, when: &str| match bytes(set) {
        Ok(found) if found == before => Ok(()),
        Ok(_) => Err(format!("{what}: {when} the set has something else")),
        Err(error) => Err(format!("{what}: {when} the set cannot be read: {error}")),
    };
    check(&set, "opened again,")?;
    let blocks = set.grow(0).map_err(says(&format!("{what}: grown again")))?;
    if blocks != LARGER_MAIN_BLOCKS - (MAIN_BLOCKS - BLOCKS as u64) {
        return Err(format!("{what}: grown again, it has {blocks} blocks"));
    }
    check(&set, "larger,")?;
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
        made => made.map_err(says(&format!("{what}: main made anew")))?,
    };
    let (set, _) = Flashlog::open(new_main, log, &life.options).map_err(says(&what))?;
    match bytes(&set).map_err(says(&what))? == before {
        true => Ok(()),
        false => Err(format!("{what}: the larger set's backup and log make something else")),
    }
}

/// A set has become larger, and its backup does. Sets grow by whole MiB, and here set and checksums had one MiB each: the backup's new areas
/// never lie over the old checksums, so a backup that has a state must keep one.
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
    let ([main, log, backup], what) = cut_off([&main, &log, &images.backup], rng, back_up)?;
    match anew(&log, &backup).map_err(says(&what))? {
        Some(found) if found != before => return Err(format!("{what}: backup and log make something else")),
        None if has_state => return Err(format!("{what}: the backup has no state any more")),
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

/// Main made anew as it was at a barrier.
fn rebuild_at(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let three = || (copy(&images.backup), copy(&images.log));
    let (backup, log) = three();
    let barriers = match flashlog::barriers(backup, log) {
        Ok(barriers) if !barriers.is_empty() => barriers,
        Ok(_) | Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(false),
        Err(error) => return Err(format!("no barriers: {error}")),
    };
    let at = At::Barrier(barriers[rng.random_range(0..barriers.len())].number);
    let (backup, log) = three();
    let past = Past::open(backup, log, at).map_err(says("the state at the barrier"))?;
    let then = bytes(&past).map_err(says("the state at the barrier"))?;
    judge_backup(life, moment, &past).map_err(says("the state at the barrier"))?;
    let how = Rebuild { name: Uuid([7; 16]), at, drop_later: true, accept_damage: false };
    let make = |[main, log, backup]: Three| {
        flashlog::rebuild_at(backup, log, main, &how).map(drop).map_err(says("the first time"))
    };
    let new_main = MemoryDevice::new(MAIN_BLOCKS);
    let ([main, log, backup], what) = cut_off([&new_main, &images.log, &images.backup], rng, make)?;
    let what = format!("at {at:?}, {what}");
    // Until it has what the log has, it is of no use without that.
    if let Ok(alone) = Lasting::open_alone(copy(&main), &life.options, policy(), false)
        && bytes(&alone).map_err(says(&what))? != then
    {
        return Err(format!("{what}: main made anew in part can be used alone"));
    }
    flashlog::rebuild_at(backup, log.clone(), main.clone(), &how).map_err(says(&what))?;
    // Twice is as once.
    for _ in 0..2 {
        let (set, _) = Flashlog::open(main.clone(), log.clone(), &life.options).map_err(says(&what))?;
        if bytes(&set).map_err(says(&what))? != then {
            return Err(format!("{what}: main made anew is not as it was then"));
        }
    }
    Ok(true)
}

/// Main made anew of the backup alone, the log being lost: as the backup is. It takes a new log.
fn rebuild_without_log(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let past = match Past::of_backup(copy(&images.backup)) {
        Ok(past) => past,
        Err(Error::Incomplete { .. }) => return Ok(false),
        Err(error) => return Err(format!("the backup's state: {error}")),
    };
    let then = bytes(&past).map_err(says("the backup's state"))?;
    let name = Uuid([7; 16]);
    // A log that was full has let go of what leads from there to now, perhaps in a life before: then it is not known here which state that is.
    let with_log =
        flashlog::rebuild(copy(&images.backup), copy(&images.log), Arc::new(MemoryDevice::new(MAIN_BLOCKS)), name);
    if matches!(with_log, Err(Error::Gap { .. })) {
        return Ok(false);
    }
    judge_backup(life, moment, &past).map_err(says("the backup's state"))?;
    let make = |[main, _, backup]: Three| {
        flashlog::rebuild_without_log(backup, main, name, false).map(drop).map_err(says("the first time"))
    };
    let new_main = MemoryDevice::new(MAIN_BLOCKS);
    let ([main, old_log, backup], what) = cut_off([&new_main, &images.log, &images.backup], rng, make)?;
    let open = |main: &MemoryDevice| Lasting::open_alone(copy(main), &life.options, policy(), false);
    if let Ok(alone) = open(&main)
        && bytes(&alone).map_err(says(&what))? != then
    {
        return Err(format!("{what}: main made anew in part can be used"));
    }
    flashlog::rebuild_without_log(backup.clone(), main.clone(), name, false).map_err(says(&what))?;
    if Flashlog::open(copy(&main), copy(&old_log), &life.options).is_ok() {
        return Err(format!("{what}: it takes the log that it was made anew without"));
    }
    let set = open(&main).map_err(says(&what))?;
    if set.attach_log(old_log).is_ok() {
        return Err(format!("{what}: the log that it was made anew without is attached to it"));
    }
    let log = Arc::new(MemoryDevice::new(flashlog::log_blocks_least()).named("log"));
    set.attach_new_log(log.clone(), Uuid([14; 16])).map_err(says(&what))?;
    let with_log = set.set().ok_or_else(|| format!("{what}: main is alone"))?;
    with_log.backup(backup.clone()).map_err(says(&what))?;
    if bytes(&set).map_err(says(&what))? != then || first_bytes(&backup) != then {
        return Err(format!("{what}: main made anew, or the next backup, is not as the backup was"));
    }
    drop((with_log, set));
    let new_main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    flashlog::rebuild(backup, log.clone(), new_main.clone(), Uuid([15; 16])).map_err(says(&what))?;
    let (set, _) = Flashlog::open(new_main, log, &life.options).map_err(says(&what))?;
    match bytes(&set).map_err(says(&what))? == then {
        true => Ok(true),
        false => Err(format!("{what}: the next backup and the new log make something else")),
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
    let compare = |[main, log, backup]: Three| {
        let (set, _) = Flashlog::open(main, log, &life.options).map_err(says("opened"))?;
        let done = set.scrub(backup).map_err(says("the first time"))?;
        match done.main_repaired == [damaged as u64] && done.is_good() {
            true => Ok(()),
            false => Err(format!("block {damaged} is damaged, and it says {done:?}")),
        }
    };
    let ([main, log, backup], what) = cut_off([&main, &log, &backup], rng, compare)?;
    let what = format!("block {damaged} damaged, {what}");
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
