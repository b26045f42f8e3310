//! Main made anew: with all that the log has, at a barrier, or without the log. It is another device then, or the set's own.

use super::super::lasting::{bytes, copy, open, policy};
use super::super::life::{Life, MAIN_BLOCKS, contents};
use super::super::state::{Images, judge, judge_backup};
use super::super::watch::{BACKUP, LOG, MAIN, Moment};
use super::cut::{Cut, cut_off, has_same, is_as_flushed};
use super::{Three, first_bytes, has_backup, put_together, says, what_it_has};
use crate::device::Left;
use holdfast_block::flashlog::{self, At, Error, Flashlog, Lasting, Past, Rebuild, Uuid};
use holdfast_block::{Device, MemoryDevice};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;

/// The new main's.
const NAME: Uuid = Uuid([7; 16]);

/// What is to become main: the set's own, or another device.
fn target(images: &Images, is_own: bool) -> Left {
    if is_own { images.left(MAIN) } else { Left::durable(&MemoryDevice::new(MAIN_BLOCKS).named("main")) }
}

/// It is a new main, and not the one that it was, or nothing yet.
fn is_anew(main: &MemoryDevice) -> bool {
    matches!(flashlog::inspect(main), Ok(Some(label)) if label.uuid == NAME)
}

/// Until it is a new main, it is the set's own and has all that was flushed, or it is no main at all.
fn judge_before(life: &Life, moment: &Moment, main: &MemoryDevice, log: &MemoryDevice) -> Result<bool, String> {
    let (main, log): (Arc<dyn Device>, Arc<dyn Device>) = (copy(main), copy(log));
    match open(&main, &log, &life.options, false) {
        Ok(set) => is_as_flushed(life, moment, &set).map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Main made anew as the set was.
pub(super) fn rebuild(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let make = |[main, log, backup]: Three| flashlog::rebuild(backup, log, main, NAME);
    let aside = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    match make([aside, copy(&images.log), copy(&images.backup)]) {
        Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(false),
        made => made.map_err(says("aside"))?,
    };
    let found = [target(images, rng.random()), images.left(LOG), images.left(BACKUP)];
    let first_time = |three: Three| make(three).map(drop).map_err(says("the first time"));
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, first_time)?;
    if !is_done {
        judge_before(life, moment, &main, &log).map_err(says(&what))?;
        make([main.clone(), log.clone(), backup]).map_err(says(&what))?;
    }
    let mut before = None;
    // Twice is as once.
    for _ in 0..2 {
        let (set, _) = Flashlog::open(main.clone(), log.clone(), &life.options).map_err(says(&what))?;
        judge(life, moment.progress.flushed, moment.progress.begun, &contents(&set)?).map_err(says(&what))?;
        let now = bytes(&set).map_err(says(&what))?;
        if *before.get_or_insert_with(|| now.clone()) != now {
            return Err(format!("{what}: opened twice, main made anew is not as it was"));
        }
    }
    Ok(true)
}

/// The log comes back, if main is alone; a backup is made, and main anew from both, in its own place.
pub(super) fn rebuild_lasting(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let before = what_it_has(life, images)?;
    let act = |[main, log, backup]: Three| {
        // Whoever is no main any more is so for being made anew, and then backup and log have everything.
        if let Ok(set) = put_together(life, Arc::clone(&main), Arc::clone(&log)) {
            let with_log = set.set().ok_or("main is alone")?;
            with_log.backup(Arc::clone(&backup)).map_err(says("backup"))?;
        }
        flashlog::rebuild(backup, log, main, NAME).map(drop).map_err(says("made anew"))
    };
    let found = [MAIN, LOG, BACKUP].map(|at| images.left(at));
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, act)?;
    if let Ok(set) = put_together(life, copy(&main), copy(&log)) {
        has_same(life, moment, images, &before, &set).map_err(says(&what))?;
    }
    if !is_done {
        act([main.clone(), log.clone(), backup.clone()]).map_err(says(&format!("{what}: again")))?;
    }
    if !is_anew(&main) {
        return Err(format!("{what}: it is no new main"));
    }
    let (set, _) = Flashlog::open(main, log, &life.options).map_err(says(&what))?;
    if is_done && bytes(&set).map_err(says(&what))? != before {
        return Err(format!("{what}: main made anew is not as the set was"));
    }
    has_same(life, moment, images, &before, &set).map_err(says(&format!("{what}: main made anew")))
}

/// Main made anew as it was at a barrier.
pub(super) fn rebuild_at(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let three = || (copy(&images.backup), copy(&images.log));
    let (backup, log) = three();
    let barriers = match flashlog::barriers(backup, log) {
        Ok(barriers) if !barriers.is_empty() => barriers,
        Ok(_) | Err(Error::Incomplete { .. } | Error::Gap { .. }) => return Ok(false),
        // It has had a new log since.
        Err(Error::Replaced { .. }) if life.is_lasting => return Ok(false),
        Err(error) => return Err(format!("no barriers: {error}")),
    };
    let at = At::Barrier(barriers[rng.random_range(0..barriers.len())].number);
    let (backup, log) = three();
    let past = Past::open(backup, log, at).map_err(says("the state at the barrier"))?;
    let then = bytes(&past).map_err(says("the state at the barrier"))?;
    judge_backup(life, moment, &past).map_err(says("the state at the barrier"))?;
    let how = Rebuild { name: NAME, at, drop_later: true, accept_damage: false };
    let make = |[main, log, backup]: Three| flashlog::rebuild_at(backup, log, main, &how);
    let is_own = rng.random();
    let found = [target(images, is_own), images.left(LOG), images.left(BACKUP)];
    let first_time = |three: Three| make(three).map(drop).map_err(says("the first time"));
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, first_time)?;
    let what = format!("at {at:?}, {what}");
    // Until it has what the log has, it is of no use without that.
    if is_anew(&main)
        && let Ok(alone) = Lasting::open_alone(copy(&main), &life.options, policy(), false)
        && bytes(&alone).map_err(says(&what))? != then
    {
        return Err(format!("{what}: main made anew in part can be used alone"));
    }
    if !is_done {
        let is_as_before = !is_anew(&main) && judge_before(life, moment, &main, &log).map_err(says(&what))?;
        match make([main.clone(), log.clone(), backup.clone()]) {
            // The barrier was in a cache, and main is not given up for it before it is durable.
            Err(Error::NoBarrier { .. } | Error::TooEarly { .. })
                if images.is_cached() && (is_as_before || !is_own && !is_anew(&main)) =>
            {
                if life.is_lasting {
                    // Backup and log need not have what main alone has.
                    return Ok(true);
                }
                let aside = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
                flashlog::rebuild(backup, log.clone(), aside.clone(), NAME).map_err(says(&what))?;
                return match judge_before(life, moment, &aside, &log).map_err(says(&what))? {
                    true => Ok(true),
                    false => Err(format!("{what}: backup and log make nothing")),
                };
            }
            made => made.map_err(says(&what))?,
        };
    }
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
pub(super) fn rebuild_without_log(
    life: &Life,
    moment: &Moment,
    images: &Images,
    rng: &mut Pcg64Mcg,
) -> Result<bool, String> {
    if !has_backup(life, moment) {
        return Ok(false);
    }
    let state_of = |backup: &MemoryDevice| {
        let past = match Past::of_backup(copy(backup)) {
            Ok(past) => past,
            Err(Error::Incomplete { .. }) => return Ok(None),
            Err(error) => return Err(format!("the backup's state: {error}")),
        };
        judge_backup(life, moment, &past).map_err(says("the backup's state"))?;
        bytes(&past).map(Some).map_err(says("the backup's state"))
    };
    if matches!(Past::of_backup(copy(&images.backup)), Err(Error::Incomplete { .. })) {
        return Ok(false);
    }
    // A log that was full has let go of what leads from there to now, perhaps in a life before: then it is not known here which state that is.
    let with_log =
        flashlog::rebuild(copy(&images.backup), copy(&images.log), Arc::new(MemoryDevice::new(MAIN_BLOCKS)), NAME);
    if matches!(with_log, Err(Error::Gap { .. })) {
        return Ok(false);
    }
    let Some(then) = state_of(&images.backup)? else { return Ok(false) };
    let make = |[main, _, backup]: Three| {
        flashlog::rebuild_without_log(backup, main, NAME, false).map(drop).map_err(says("the first time"))
    };
    let found = [target(images, rng.random()), images.left(LOG), images.left(BACKUP)];
    let Cut { left: [main, old_log, backup], what, is_done } = cut_off(found, life, rng, make)?;
    let open = |main: &MemoryDevice| Lasting::open_alone(copy(main), &life.options, policy(), false);
    if is_anew(&main) {
        match open(&main) {
            Ok(alone) if bytes(&alone).map_err(says(&what))? != then => {
                return Err(format!("{what}: main made anew in part can be used"));
            }
            Err(error) if is_done => return Err(format!("{what}: {error}")),
            _ => {}
        }
    } else if is_done {
        return Err(format!("{what}: it is no new main"));
    }
    // A state that was in the backup's cache may be gone, but not if main was given up for it.
    let then = match state_of(&backup).map_err(says(&what))? {
        Some(state) if state == then => then,
        Some(state) if images.is_cached() && !is_anew(&main) => state,
        None if images.is_cached() && judge_before(life, moment, &main, &old_log).map_err(says(&what))? => {
            return Ok(true);
        }
        _ => return Err(format!("{what}: the backup has not its state any more")),
    };
    if !is_done {
        flashlog::rebuild_without_log(backup.clone(), main.clone(), NAME, false).map_err(says(&what))?;
    }
    let set = open(&main).map_err(says(&what))?;
    let attached = set.attach_log(old_log);
    if !matches!(attached, Err(Error::Replaced { .. })) {
        return Err(format!("{what}: the log that it was made anew without is not refused as that: {attached:?}"));
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
