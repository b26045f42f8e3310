//! One crash state, opened and judged.

use super::State;
use super::life::{BLOCKS, Life, MAIN_BLOCKS, Moment, Start, Watched, block, contents};
use crate::device::CrashMode;
use holdfast_block::flashlog::{self, Flashlog, Opened, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Crashes of one recovery.
const NESTED: u64 = 2;

pub(super) struct Seen {
    pub(super) opened: Opened,
    pub(super) nested: u64,
    /// Main was made anew from backup and log, too.
    pub(super) is_rebuilt: bool,
    /// What a next life can begin with.
    pub(super) left: Start,
}

/// Opens what a power cut leaves; an error says what is not allowed. With `is_nested`, recoveries are cut off as well.
pub(super) fn examine(life: &Life, state: &State, is_nested: bool) -> Result<Seen, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(state.seed);
    let moment = &life.moments[state.moment];
    let image = |at: usize, rng: &mut Pcg64Mcg| life.images[at].image(moment.positions[at], state.modes[at], rng);
    let (main, log) = (image(0, &mut rng), image(1, &mut rng));
    let backup = if life.has_backup { image(2, &mut rng) } else { MemoryDevice::new(0) };
    if life.is_synchronous() && moment.progress.is_open {
        judge_main(life, moment, &main)?;
    }
    let rebuilt = if life.has_backup { rebuild(life, moment, &log, &backup)? } else { None };
    if life.has_backup {
        back_up(life, &main, &log, &backup)?;
    }
    let nested = if is_nested { nested(life, moment, &main, &log, &mut rng)? } else { 0 };
    let (opened, contents) = open(life, moment, Arc::new(main.clone()), Arc::new(log.clone()))?;
    let (next_content, written, options) = (life.next_content, life.written, life.options.clone());
    // A copy that was not complete is made anew by the next backup, and has no state until then.
    let (is_rebuilt, backed_up) = (rebuilt.is_some(), rebuilt.unwrap_or_default());
    let has_backup = life.has_backup;
    let left = Start { main, log, backup, has_backup, contents, backed_up, next_content, written, options };
    Ok(Seen { opened, nested, is_rebuilt, left })
}

/// Opens, reads, and compares. Twice is as once.
fn open(
    life: &Life,
    moment: &Moment,
    main: Arc<dyn Device>,
    log: Arc<dyn Device>,
) -> Result<(Opened, Vec<u64>), String> {
    let open = || Flashlog::open(Arc::clone(&main), Arc::clone(&log), &life.options);
    let (device, opened) = open().map_err(|error| format!("cannot be opened: {error}"))?;
    let found = contents(&device)?;
    judge(life, moment.progress.flushed, moment.progress.begun, &found)?;
    if life.is_synchronous() && (device.behind_blocks() != 0 || contents(&*main)? != found) {
        return Err("main is not up to date after an opening in synchronous mode".to_string());
    }
    drop(device);
    let (device, _) = open().map_err(|error| format!("cannot be opened again: {error}"))?;
    if contents(&device)? != found {
        return Err("the second opening finds something else than the first".to_string());
    }
    Ok((opened, found))
}

/// The contents must be those after some number of the block writes, in order: all that was flushed, none that had not begun.
fn judge(life: &Life, flushed: usize, begun: usize, found: &[u64]) -> Result<(), String> {
    let mut now = life.base.clone();
    for (at, content) in &life.writes[..flushed] {
        now[*at] = *content;
    }
    let mut different = (0..BLOCKS).filter(|at| now[*at] != found[*at]).count();
    let (mut least, mut best) = (different, flushed);
    for (number, (at, content)) in (flushed..).zip(&life.writes[flushed..begun]) {
        different -= usize::from(now[*at] != found[*at]);
        now[*at] = *content;
        different += usize::from(now[*at] != found[*at]);
        if different < least {
            (least, best) = (different, number + 1);
        }
    }
    match least {
        0 => Ok(()),
        _ => {
            Err(format!("no state that there was: {least} blocks differ from the one after {best} blocks, the nearest"))
        }
    }
}

/// Main is lost: another is made from backup and log. What the backup has must be a state that there was, and with the log it must be one
/// as main's. None if the backup is not complete, or the log was full and keeps nothing for it.
fn rebuild(
    life: &Life,
    moment: &Moment,
    log: &MemoryDevice,
    backup: &MemoryDevice,
) -> Result<Option<Vec<u64>>, String> {
    let (log, backup, main) =
        (Arc::new(log.clone()), Arc::new(backup.clone()), Arc::new(MemoryDevice::new(MAIN_BLOCKS)));
    match flashlog::rebuild(backup, log.clone(), main.clone(), Uuid([7; 16])) {
        Ok(_) => {}
        Err(flashlog::Error::Incomplete { .. } | flashlog::Error::Gap { .. }) => return Ok(None),
        Err(error) => return Err(format!("main cannot be made anew: {error}")),
    }
    let backed_up = contents(&*main).map_err(|what| format!("on the backup, {what}"))?;
    if backed_up != life.backed_up {
        judge(life, 0, moment.progress.begun, &backed_up).map_err(|what| format!("on the backup: {what}"))?;
    }
    open(life, moment, main, log).map_err(|what| format!("with a main made anew: {what}"))?;
    Ok(Some(backed_up))
}

/// The next backup, after the power cut, has what the set has: what was begun is gone on with, and nothing is forgotten.
fn back_up(life: &Life, main: &MemoryDevice, log: &MemoryDevice, backup: &MemoryDevice) -> Result<(), String> {
    let (main, log) = (Arc::new(main.clone()), Arc::new(log.clone()));
    let (device, _) = Flashlog::open(main, log, &life.options).map_err(|error| format!("cannot be opened: {error}"))?;
    let backup = Arc::new(backup.clone());
    device.backup(backup.clone()).map_err(|error| format!("the next backup: {error}"))?;
    if contents(&*backup)? == contents(&device)? { Ok(()) } else { Err("the next backup lacks something".to_string()) }
}

/// Main, if the log is lost as well: each block as it was flushed, or as written since.
fn judge_main(life: &Life, moment: &Moment, main: &MemoryDevice) -> Result<(), String> {
    let (flushed, begun) = (moment.progress.flushed, moment.progress.begun);
    let mut allowed: Vec<BTreeSet<u64>> = life.base.iter().map(|content| BTreeSet::from([*content])).collect();
    for (number, (at, content)) in life.writes[..begun].iter().enumerate() {
        if number < flushed {
            allowed[*at].clear();
        }
        allowed[*at].insert(*content);
    }
    let bytes = contents_or_torn(main)?;
    let wrong: Vec<usize> =
        (0..BLOCKS).filter(|at| bytes[*at].is_some_and(|found| !allowed[*at].contains(&found))).collect();
    let torn = (0..BLOCKS).filter(|at| bytes[*at].is_none() && allowed[*at].len() < 2);
    let wrong: Vec<usize> = wrong.into_iter().chain(torn).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("main alone lacks what was flushed: blocks {wrong:?}")) }
}

/// What each block has, if it is something that was written.
fn contents_or_torn(device: &MemoryDevice) -> Result<Vec<Option<u64>>, String> {
    let bytes = device.snapshot();
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    let content = |found: &[u8; BLOCK_SIZE]| {
        let content = u64::from_le_bytes(*found.first_chunk::<8>().expect("a block has 8 bytes"));
        (*found == block(content)).then_some(content)
    };
    Ok(blocks[..BLOCKS].iter().map(content).collect())
}

/// Cuts off the recovery, at any request, and opens what is left.
fn nested(
    life: &Life,
    moment: &Moment,
    main: &MemoryDevice,
    log: &MemoryDevice,
    rng: &mut Pcg64Mcg,
) -> Result<u64, String> {
    let watched = Watched::over([main, log, &MemoryDevice::new(0)]);
    let [of_main, of_log, _] = Watched::devices(&watched);
    Flashlog::open(of_main, of_log, &life.options).map_err(|error| format!("cannot be opened: {error}"))?;
    let (moments, images) = (watched.moments(), watched.images());
    for _ in 0..NESTED {
        let positions = moments[rng.random_range(0..moments.len())].positions;
        let [main, log] = [0, 1].map(|at| {
            let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
            Arc::new(images[at].image(positions[at], mode, rng))
        });
        open(life, moment, main, log)
            .map_err(|what| format!("after a recovery that was cut off at positions {positions:?}: {what}"))?;
    }
    Ok(NESTED)
}
