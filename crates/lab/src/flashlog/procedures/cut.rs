//! A procedure that is cut off: by a power cut, after a device has failed, or lost its power for a moment, or after processes that went through it were killed.

use super::super::life::{Life, contents, contents_or_torn};
use super::super::patient::Patient;
use super::super::state::{Images, judge, judge_disk};
use super::super::watch::{DEVICES, Loss, Mishap, Moment, Watched, at_stake};
use super::super::{KILLS_MOST, random_kills};
use super::{Three, says};
use crate::device::{CrashMode, Left};
use holdfast_block::flashlog::Role;
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64Mcg;
use std::io::IoSliceMut;
use std::sync::Arc;

/// What is left of a procedure.
pub(super) struct Cut {
    pub(super) left: [Arc<MemoryDevice>; 3],
    /// Where it was cut off.
    pub(super) what: String,
    /// It had been answered that it was done.
    pub(super) is_done: bool,
}

/// Does something with devices of which one may fail, or come back by itself, or by processes that are killed, the next one doing it again with what the devices have in
/// their caches; and cuts the power anywhere.
pub(super) fn cut_off(
    devices: [Left; 3],
    life: &Life,
    rng: &mut Pcg64Mcg,
    act: impl Fn(Three) -> Result<(), String>,
) -> Result<Cut, String> {
    let watch = |mishap: Mishap<'_>| Watched::of_procedure(&devices, mishap, life.plant).map_err(says("recorded"));
    let mut watched = watch(Mishap::None)?;
    act(Watched::devices(&watched))?;
    let (requests, flushes) = (watched.requests(), watched.flushes());
    let used: Vec<usize> = (0..DEVICES.len()).filter(|device| requests[*device] > 0).collect();
    let (mut what, mut is_answered) = (String::new(), true);
    match rng.random_range(0..4) {
        0 if !used.is_empty() => {
            let device = used[rng.random_range(0..used.len())];
            let loss =
                Loss { device, request: rng.random_range(0..requests[device]), is_begun: rng.random(), returns: None };
            watched = watch(Mishap::Loss(loss))?;
            // It may get along without that device, or not.
            is_answered = act(Watched::devices(&watched)).is_ok() && watched.lost_at().is_none();
            what = format!("{loss}; ");
        }
        1 if !used.is_empty() => {
            let all = requests.iter().sum::<usize>() as u64;
            let again = rng.random_range(1..=KILLS_MOST) - 1;
            let kills = random_kills((again, all), (&flushes, all), rng);
            watched = watch(Mishap::Kills(&kills))?;
            what = format!("killed after {kills:?} requests, the last one first; ");
            watched.taken_up(|| act(Watched::devices(&watched))).map_err(says(&what))?;
        }
        2 if !used.is_empty() => {
            let device = used[rng.random_range(0..used.len())];
            // Behind the first one of whoever waits for it, which makes durable what it had in its cache.
            let request = 1 + rng.random_range(0..requests[device]);
            let returns = CrashMode::ALL.choose(rng).copied();
            let loss = Loss { device, request, is_begun: rng.random(), returns };
            watched = watch(Mishap::Loss(loss))?;
            let patient = Patient::of(&watched, &life.options);
            let [main, log, backup] = Watched::devices(&watched);
            let over = |role, device| patient.over(role, &device).map_err(says("waited for"));
            let devices = [over(Role::Main, main)?, over(Role::Log, log)?, over(Role::Backup, backup)?];
            // One that is no main, log or backup for a moment is not recognised then.
            is_answered = act(devices).is_ok();
            what = format!("{loss}; ");
        }
        _ => {}
    }
    let (moments, images) = (watched.moments(), watched.images());
    // What the devices had in their caches at first a killed process has left there.
    let killed: Vec<usize> = std::iter::once(0).chain(watched.killed_at()).collect();
    let (last, first) = (moments.len() - 1, if killed.len() > 1 { killed[1] } else { 0 });
    let at = match rng.random_range(0..4) {
        0 => last,
        1 => *at_stake(&moments, &images, &killed).choose(rng).unwrap_or(&last),
        _ => rng.random_range(first..=last),
    };
    let positions = moments[at].positions;
    let left = [0, 1, 2].map(|at| {
        let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        Arc::new(images[at].image(positions[at], mode, rng).named(DEVICES[at]))
    });
    let is_done = at == last && is_answered;
    let done = if is_done { ", when it was done" } else { "" };
    Ok(Cut { left, what: format!("{what}cut off at positions {positions:?}{done}"), is_done })
}

/// The set has a state that there was, with all that was flushed; if it outlasts its log, it may have been as a disk, main being alone: each block as
/// it was flushed or later.
pub(super) fn is_as_flushed(life: &Life, moment: &Moment, set: &dyn Device) -> Result<(), String> {
    let (flushed, begun) = (moment.progress.flushed, moment.progress.begun.min(life.writes.len()));
    match life.is_lasting {
        true => judge_disk(&life.base, &life.writes[..begun], flushed, &contents_or_torn(set)?),
        false => judge(life, flushed, begun, &contents(set)?),
    }
}

/// The same of a set that was opened once more; of one that outlasts its log it is known what it had.
pub(super) fn is_as_it_was(
    life: &Life,
    moment: &Moment,
    images: &Images,
    had: Option<&[u8]>,
    set: &dyn Device,
) -> Result<(), String> {
    match had {
        Some(had) => has_same(life, moment, images, had, set),
        None => is_as_flushed(life, moment, set),
    }
}

/// A set that was opened with what is left has what it had before; a state that there was, with all that was flushed, if some of that was in the
/// caches of devices that a killed process has left.
pub(super) fn has_same(
    life: &Life,
    moment: &Moment,
    images: &Images,
    before: &[u8],
    set: &dyn Device,
) -> Result<(), String> {
    if images.is_cached() {
        return is_as_flushed(life, moment, set);
    }
    let mut found = vec![0; before.len()];
    set.read(0, &mut [IoSliceMut::new(&mut found)]).map_err(says("it cannot be read"))?;
    let differs = found.chunks(BLOCK_SIZE).zip(before.chunks(BLOCK_SIZE)).filter(|(found, had)| found != had).count();
    if differs == 0 { Ok(()) } else { Err(format!("{differs} blocks are not as they were")) }
}
