//! One crash state, opened and judged.

use super::lasting;
use super::life::{BLOCKS, Life, MAIN_BLOCKS, Start, contents, contents_or_torn};
use super::lost::{self, Recovered};
use super::watch::{BACKUP, LOG, MAIN, Moment, Progress, Watched};
use super::{Further, State, procedures};
use crate::device::{CrashMode, Left};
use holdfast_block::flashlog::{self, Condition, Flashlog, Opened, Uuid};
use holdfast_block::{Device, MemoryDevice};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Crashes of one recovery.
const NESTED: u64 = 2;
/// Of so many mains that are made anew, one is cut off first.
const REBUILDS_CUT_OFF: u32 = 4;

pub(super) struct Seen {
    pub(super) opened: Opened,
    pub(super) nested: u64,
    /// Which procedure was cut off, if one was.
    pub(super) procedure: Option<usize>,
    /// Main was made anew from backup and log, too.
    pub(super) is_rebuilt: bool,
    /// What became of a lost device.
    pub(super) recovered: Recovered,
    /// What a next life can begin with.
    pub(super) left: Start,
}

/// The state of a backup from which main was made anew.
pub(super) struct Rebuilt {
    backed_up: Vec<u64>,
    /// After so many of the writes since the state that it had at first.
    number: usize,
}

/// Whether main alone has what it must. While it is opened it may be a mixture; if what a killed process left is opened, only if it says so.
pub(super) fn is_whole(moment: &Moment, main: &MemoryDevice) -> bool {
    let Progress { is_open, is_left, .. } = moment.progress;
    let is_mixture = || matches!(flashlog::inspect(main), Ok(Some(label)) if matches!(label.condition, Condition::CatchingUp | Condition::GivenUp));
    is_open && !(is_left && is_mixture())
}

/// What a power cut leaves of each device.
pub(super) struct Images {
    pub(super) main: MemoryDevice,
    pub(super) log: MemoryDevice,
    pub(super) backup: MemoryDevice,
    /// It was not the power that was cut: a killed process has left this.
    left: Option<[Left; 3]>,
}

impl Images {
    /// Of what was flushed.
    pub(super) fn durable([main, log, backup]: [&MemoryDevice; 3]) -> Images {
        Images { main: main.clone(), log: log.clone(), backup: backup.clone(), left: None }
    }

    /// A device as whoever comes next finds it.
    pub(super) fn left(&self, device: usize) -> Left {
        match &self.left {
            Some(left) => left[device].clone(),
            None => Left::durable([&self.main, &self.log, &self.backup][device]),
        }
    }

    /// Some of it may be in the devices' caches.
    pub(super) fn is_cached(&self) -> bool {
        self.left.is_some()
    }
}

/// Opens what a power cut leaves; an error says what is not allowed. `further` says what else is cut off.
pub(super) fn examine(life: &Life, state: &State, further: Further) -> Result<Seen, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(state.seed);
    let moment = &life.moments[state.moment];
    let has_backup = life.has_backup && !moment.progress.is_new_backup;
    let Progress { is_left, is_rescued, kills, .. } = moment.progress;
    let pulled = life.lost.map(|(loss, _)| loss.device);
    // What was pulled out is there again for the next process. A log is as ever once that has given it to main.
    let lost = pulled.filter(|device| kills == 0 || *device == LOG && is_left);
    let is_cached = further.is_cached && (life.is_lasting || lost != Some(LOG));
    let left = is_cached.then(|| [0, 1, 2].map(|at| life.images[at].left(moment.positions[at])));
    let mut image = |at: usize| match &left {
        Some(left) => left[at].seen(),
        None => life.images[at].image(moment.positions[at], state.modes[at], &mut rng),
    };
    let (main, log) = (image(MAIN), image(LOG));
    let backup = if has_backup { image(BACKUP) } else { MemoryDevice::new(0) };
    let images = Images { main, log, backup, left };
    if life.is_lasting {
        let seen = lasting::examine(life, moment, &images, &mut rng)?;
        // What is neither the old log nor the new one is in no state for it.
        let procedure = match further.is_procedure && !moment.progress.is_new {
            true => procedures::of_lasting(life, moment, &images, &mut rng)?,
            false => None,
        };
        let nested = match further.is_nested && !moment.progress.is_new && !seen.recovered.is_alone {
            true => nested(life, moment, &images, &mut rng)?,
            false => 0,
        };
        return Ok(Seen { procedure, nested, ..seen });
    }
    // A main that failed is behind until it is opened; what is promised of it is for the log to keep.
    let is_main_behind = pulled == Some(MAIN) && (kills == 0 || is_left);
    if life.is_synchronous() && is_whole(moment, &images.main) && !is_main_behind {
        judge_main(life, moment, moment.progress.flushed, &images.main)?;
    }
    // A log that failed is behind, when main has everything; what it gets when it is back need be no state that there was.
    let is_behind = lost == Some(LOG) && (is_left || life.is_synchronous() && is_rescued);
    let rebuilt = if has_backup && !is_behind { rebuild(life, moment, &images, &mut rng)? } else { None };
    if has_backup && lost != Some(LOG) {
        back_up(life, &images)?;
    }
    let (mut nested, mut procedure) = (0, None);
    if further.is_procedure && lost != Some(LOG) {
        procedure = procedures::examine(life, moment, &images, &mut rng)?;
    }
    let (opened, contents, recovered) = match lost {
        None => {
            if further.is_nested {
                nested = self::nested(life, moment, &images, &mut rng)?;
            }
            let (opened, contents) = open(life, moment, &images.main, &images.log)?;
            (opened, contents, Recovered::default())
        }
        Some(device) => lost::examine(life, moment, &images, device)?,
    };
    let Life { next_content, written, plant, .. } = *life;
    let options = life.options.clone();
    let is_rebuilt = rebuilt.is_some();
    // A copy that was not complete is made anew by the next backup, and has no state until then.
    let (backed_up, since_backed_up) = match rebuilt {
        Some(Rebuilt { backed_up, number }) if !contents.is_empty() => {
            let begun = &life.writes[..moment.progress.begun.min(life.writes.len())];
            let reached = nearest(&life.base, begun, moment.progress.flushed, &contents)?;
            let writes = [&life.since_backed_up, &life.writes[..reached]].concat();
            // Where the same state was twice, the other one may have been meant.
            (backed_up, writes.get(number..).unwrap_or_default().to_vec())
        }
        _ => (contents.clone(), Vec::new()),
    };
    let Images { main, log, backup, left: _ } = images;
    let left = Start {
        main,
        log,
        backup,
        has_backup,
        contents,
        backed_up,
        since_backed_up,
        next_content,
        written,
        options,
        plant,
    };
    Ok(Seen { opened, nested, procedure, is_rebuilt, recovered, left })
}

/// Opens copies, reads, and compares. Twice is as once.
pub(super) fn open(
    life: &Life,
    moment: &Moment,
    main: &MemoryDevice,
    log: &MemoryDevice,
) -> Result<(Opened, Vec<u64>), String> {
    let (main, log) = (Arc::new(main.clone()), Arc::new(log.clone()));
    let open = || Flashlog::open(main.clone(), log.clone(), &life.options);
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
pub(super) fn judge(life: &Life, flushed: usize, begun: usize, found: &[u64]) -> Result<(), String> {
    // Of a write that failed, what was not taken is not in the list.
    let begun = begun.min(life.writes.len());
    nearest(&life.base, &life.writes[..begun], flushed, found).map(drop)
}

/// The last number of the block writes, so many at least, after which the contents are as found.
pub(super) fn last(base: &[u64], writes: &[(usize, u64)], least: usize, found: &[u64]) -> Result<usize, String> {
    let mut number = nearest(base, writes, least, found)?;
    // What comes behind may lead to the same once more.
    while let Some(next) =
        (number + 1..=writes.len()).find(|next| nearest(base, &writes[..*next], *next, found).is_ok())
    {
        number = next;
    }
    Ok(number)
}

/// After how many of the block writes, so many at least, the contents are as found.
pub(super) fn nearest(base: &[u64], writes: &[(usize, u64)], least: usize, found: &[u64]) -> Result<usize, String> {
    let mut now = base.to_vec();
    for (at, content) in &writes[..least] {
        now[*at] = *content;
    }
    let mut different = (0..BLOCKS).filter(|at| now[*at] != found[*at]).count();
    let (mut fewest, mut best) = (different, least);
    for (number, (at, content)) in (least..).zip(&writes[least..]) {
        different -= usize::from(now[*at] != found[*at]);
        now[*at] = *content;
        different += usize::from(now[*at] != found[*at]);
        if different < fewest {
            (fewest, best) = (different, number + 1);
        }
    }
    match fewest {
        0 => Ok(best),
        _ => Err(format!(
            "no state that there was: {fewest} blocks differ from the one after {best} blocks, the nearest"
        )),
    }
}

/// Main is lost: another is made from backup and log. What the backup has must be a state that there was, and with the log it must be one
/// as main's. None if the backup is not complete, or the log was full and keeps nothing for it. Now and then it is cut off, and made again.
pub(super) fn rebuild(
    life: &Life,
    moment: &Moment,
    images: &Images,
    rng: &mut Pcg64Mcg,
) -> Result<Option<Rebuilt>, String> {
    let main = MemoryDevice::new(MAIN_BLOCKS);
    let name = Uuid([7; 16]);
    let again = if rng.random_ratio(1, REBUILDS_CUT_OFF) {
        let watched = Watched::over([&main, &images.log, &images.backup]);
        let [of_main, of_log, of_backup] = Watched::devices(&watched);
        drop(flashlog::rebuild(of_backup, of_log, of_main, name));
        let (moments, images) = (watched.moments(), watched.images());
        let positions = moments[rng.random_range(0..moments.len())].positions;
        let mut image = |at: usize| {
            let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
            images[at].image(positions[at], mode, rng)
        };
        Some([MAIN, LOG, BACKUP].map(&mut image))
    } else {
        None
    };
    let [main, log, backup] = again.unwrap_or([main, images.log.clone(), images.backup.clone()]).map(Arc::new);
    match flashlog::rebuild(backup, log.clone(), main.clone(), name) {
        Ok(_) => {}
        Err(flashlog::Error::Incomplete { .. }) => return Ok(None),
        // A log that was full says what it has let go of.
        Err(flashlog::Error::Gap { .. }) if has_map(&*log)? => return Ok(None),
        // It has had a new log since.
        Err(flashlog::Error::Replaced { .. }) if life.is_lasting => return Ok(None),
        Err(error) => return Err(format!("main cannot be made anew: {error}")),
    }
    let (backed_up, number) = judge_backup(life, moment, &*main)?;
    open(life, moment, &main, &log).map_err(|what| format!("with a main made anew: {what}"))?;
    Ok(Some(Rebuilt { backed_up, number }))
}

/// Whether the log says that it does not keep all that the backup lacks.
fn has_map(log: &dyn Device) -> Result<bool, String> {
    let inspected = flashlog::inspect(log).map_err(|error| format!("the log is not recognised: {error}"))?;
    Ok(inspected.is_some_and(|log| log.has_map))
}

/// What a backup has must be a state that there was: its contents, and after how many of the writes they were there.
pub(super) fn judge_backup(life: &Life, moment: &Moment, of_backup: &dyn Device) -> Result<(Vec<u64>, usize), String> {
    let backed_up = contents(of_backup).map_err(|what| format!("on the backup, {}", String::from(what)))?;
    let begun = &life.writes[..moment.progress.begun.min(life.writes.len())];
    let writes = [&life.since_backed_up, begun].concat();
    let number = nearest(&life.backed_up, &writes, 0, &backed_up).map_err(|what| format!("on the backup: {what}"))?;
    Ok((backed_up, number))
}

/// The next backup, after the power cut, has what the set has: what was begun is gone on with, and nothing is forgotten.
pub(super) fn back_up(life: &Life, images: &Images) -> Result<(), String> {
    let (main, log) = (Arc::new(images.main.clone()), Arc::new(images.log.clone()));
    let (device, _) = Flashlog::open(main, log, &life.options).map_err(|error| format!("cannot be opened: {error}"))?;
    let backup = Arc::new(images.backup.clone());
    device.backup(backup.clone()).map_err(|error| format!("the next backup: {error}"))?;
    if contents(&*backup)? == contents(&device)? { Ok(()) } else { Err("the next backup lacks something".to_string()) }
}

/// Main, if the log is lost as well: each block as it was after so many writes, or as written since.
pub(super) fn judge_main(life: &Life, moment: &Moment, flushed: usize, main: &MemoryDevice) -> Result<(), String> {
    let begun = moment.progress.begun.min(life.writes.len());
    judge_disk(&life.base, &life.writes[..begun], flushed, &contents_or_torn(main)?)
}

/// A disk that had these contents and got these block writes, of which so many were flushed.
pub(super) fn judge_disk(
    base: &[u64],
    writes: &[(usize, u64)],
    flushed: usize,
    found: &[Option<u64>],
) -> Result<(), String> {
    let mut allowed: Vec<BTreeSet<u64>> = base.iter().map(|content| BTreeSet::from([*content])).collect();
    for (number, (at, content)) in writes.iter().enumerate() {
        if number < flushed {
            allowed[*at].clear();
        }
        allowed[*at].insert(*content);
    }
    let wrong: Vec<usize> =
        (0..BLOCKS).filter(|at| found[*at].is_some_and(|found| !allowed[*at].contains(&found))).collect();
    let torn = (0..BLOCKS).filter(|at| found[*at].is_none() && allowed[*at].len() < 2);
    let wrong: Vec<usize> = wrong.into_iter().chain(torn).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("main alone lacks what was flushed: blocks {wrong:?}")) }
}

/// Main, which says that it is alone, was to get what had been answered, and the process was killed meanwhile: it is as a disk. What it has is as
/// if that had been written last; the log may have more, which a backup may come past when it is back.
pub(super) fn as_disk(
    base: &[u64],
    writes: &mut Vec<(usize, u64)>,
    flushed: usize,
    found: &[u64],
) -> Result<(), String> {
    let on_main: Vec<Option<u64>> = found.iter().copied().map(Some).collect();
    judge_disk(base, writes, flushed, &on_main)?;
    let mut now = base.to_vec();
    writes.iter().for_each(|(at, content)| now[*at] = *content);
    writes.extend((0..BLOCKS).filter(|at| now[*at] != found[*at]).map(|at| (at, found[at])));
    Ok(())
}

/// Cuts off the recovery, at any request, and opens what is left.
fn nested(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<u64, String> {
    let watched = Watched::over([&images.main, &images.log, &MemoryDevice::new(0)]);
    let [of_main, of_log, _] = Watched::devices(&watched);
    Flashlog::open(of_main, of_log, &life.options).map_err(|error| format!("cannot be opened: {error}"))?;
    let (moments, images) = (watched.moments(), watched.images());
    for _ in 0..NESTED {
        let positions = moments[rng.random_range(0..moments.len())].positions;
        let [main, log] = [MAIN, LOG].map(|at| {
            let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
            images[at].image(positions[at], mode, rng)
        });
        open(life, moment, &main, &log)
            .map_err(|what| format!("after a recovery that was cut off at positions {positions:?}: {what}"))?;
    }
    Ok(NESTED)
}
