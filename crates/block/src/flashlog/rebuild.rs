//! Main from backup and log.

use super::Error;
use super::at::{At, Barrier, Behind, Survey};
use super::format::{Areas, Decoded, LABEL_AREA_BLOCKS, Label, Point, Role, State, Uuid};
use super::given_up::{check_as_large, give_up};
use super::has_outgrown_labels;
use super::labels::{Labelled, newest};
use super::sparse::Zeros;
use super::staging::Backup;
use super::sums::Base;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use std::ops::Range;
use std::sync::Arc;

/// Blocks that are copied at once: 1 MiB.
const COPY_BLOCKS: u64 = 256;

/// How main is to be made anew.
#[derive(Clone, Copy, Debug)]
pub struct Rebuild {
    /// The new device's name, which must be random.
    pub name: Uuid,
    /// The state that the set is to have.
    pub at: At,
    /// What the log has behind that state may be given up; of [`At::Now`], what is behind the first page that is damaged, or that needs a block
    /// of data that is.
    pub drop_later: bool,
    /// Damaged blocks of the backup that the log does not replace are copied as they are. They will not be told from others any more.
    pub accept_damage: bool,
}

/// Main as it was made anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rebuilt {
    /// Size of the set's device.
    pub blocks: u64,
    /// The barrier that it is at, if it is one in between.
    pub barrier: Option<Barrier>,
    /// What the log had behind that.
    pub dropped: Later,
    /// Addresses of blocks that were damaged on the backup, and that the log did not replace.
    pub damaged: Vec<Range<u64>>,
}

/// What the log has behind a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Later {
    /// Barriers.
    pub barriers: u64,
    /// Blocks written.
    pub blocks: u64,
    /// The last barrier.
    pub last: Option<Barrier>,
    /// There is damage in the log, and perhaps something behind it.
    pub is_damaged: bool,
}

impl Later {
    fn than(point: Point, survey: &Survey) -> Later {
        let later = || survey.barriers.iter().filter(|(_, after)| after.page > point.page).map(|(barrier, _)| barrier);
        Later {
            barriers: later().count() as u64,
            blocks: later().map(|barrier| barrier.blocks).sum::<u64>() + survey.rest_blocks,
            last: later().next_back().copied(),
            is_damaged: survey.damage.is_some(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.blocks == 0 && self.barriers == 0 && !self.is_damaged
    }
}

/// What is given up if main is made anew at a state, for whoever wants to ask before. Writes nothing.
///
/// # Errors
/// As for [`Past::open`](super::Past::open).
pub fn later(backup: Arc<dyn Device>, log: Arc<dyn Device>, at: At) -> Result<Later, Error> {
    let backup = Backup::look(backup)?;
    let behind = Behind::closed(&backup, &Labelled::read(log, Role::Log)?)?;
    let survey = behind.survey()?;
    let (point, _) = behind.choose(&survey, at)?;
    Ok(if at == At::Now { Later::default() } else { Later::than(point, &survey) })
}

/// Makes a new main device from a backup and the log: the set as it was when the old one failed. What the new device had is lost; the old
/// one is refused from then on. The next opening brings the new one from the backup's state to the log's. Gives the set's size.
///
/// # Errors
/// [`Error`] tells which device cannot be used, and why. Nothing has changed on the log then, and this can be done again.
/// [`Error::MissingPages`] and [`Error::Damaged`] if the log has less than its label or a later page says that was durable.
pub fn rebuild(backup: Arc<dyn Device>, log: Arc<dyn Device>, main: Arc<dyn Device>, name: Uuid) -> Result<u64, Error> {
    let how = Rebuild { name, at: At::Now, drop_later: false, accept_damage: false };
    rebuild_at(backup, log, main, &how).map(|rebuilt| rebuilt.blocks)
}

/// The same for a state in between: the set goes on from there, and what the log has behind it is gone. What is in front of it stays, so
/// that this can be done again for an earlier state, or for the same one.
///
/// # Errors
/// [`Error::Later`] if there is something behind that state that may not be given up; [`Error::Damaged`] at the first block of the log on the
/// way there that is damaged, and is the newest version; [`crate::Error::Damaged`] at the first block of the backup that is damaged and that
/// the log does not replace; otherwise as for [`rebuild`].
pub fn rebuild_at(
    backup: Arc<dyn Device>,
    log: Arc<dyn Device>,
    main: Arc<dyn Device>,
    how: &Rebuild,
) -> Result<Rebuilt, Error> {
    let Plan { base, of, mut log, behind, end, point, barrier, dropped, of_sets } =
        plan(backup, log, &main, main.blocks(), how)?;
    // What was read of the log is there; that it is durable is certain only now.
    log.device.flush()?;
    // It is as the backup, until it has what the log has: nothing to go on with alone, in either mode.
    let state = State::CatchingUp;
    let newcomer = end.of_newcomer(Role::Main, main.blocks(), Areas::default());
    // A generation that is only begun is the opening's, which raises main's: an image of it from before that is older then.
    let generation = end.generation - u64::from(end.state == State::Opening);
    let label = Label { main: how.name, state, generation, damage: of.damage, ..newcomer };
    let mut labels = give_up(Arc::clone(&main), &of_sets, &label)?;
    let damaged = not_replaced(copy(&base, Some(&*main))?, &behind, point)?;
    refuse_damage(&base, &damaged, how.accept_damage)?;
    take_as(&mut labels, label)?;
    log.write(|label| {
        // The opening takes the generation that is begun.
        label.rebuilt = generation;
        (label.generation, label.start, label.state, label.barrier, label.durable) =
            (end.generation, end.start, end.state, end.barrier, end.durable);
        label.main = how.name;
        label.applied = of.applied;
    })?;
    Ok(Rebuilt { blocks: log.label.blocks, barrier, dropped, damaged })
}

/// The same of a backup whose log is lost: main is as the backup is, alone, and what was written since the backup's state is gone. It takes a
/// [new log](super::Lasting::attach_new_log); that of before is refused, if it is found later on.
///
/// # Errors
/// [`Error::Incomplete`]: the backup has no state. [`Error::TooSmall`]; [`crate::Error::Damaged`] at the first block of the backup that is
/// damaged, unless `accept_damage` says that it is copied as it is; [`Error`] tells what else is wrong with a device.
pub fn rebuild_without_log(
    backup: Arc<dyn Device>,
    main: Arc<dyn Device>,
    name: Uuid,
    accept_damage: bool,
) -> Result<Rebuilt, Error> {
    let base = plan_without_log(backup, &main, main.blocks(), accept_damage)?;
    let of = base.backup.label().clone();
    let newcomer = of.of_newcomer(Role::Main, main.blocks(), Areas::default());
    let (generation, left) = (of.generation + 1, of.generation);
    let label = Label { main: name, state: State::Alone, damage: of.damage, generation, left, ..newcomer };
    let mut labels = give_up(Arc::clone(&main), &[of.blocks], &label)?;
    let damaged = ranges(copy(&base, Some(&*main))?);
    refuse_damage(&base, &damaged, accept_damage)?;
    take_as(&mut labels, label)?;
    Ok(Rebuilt { blocks: of.blocks, barrier: None, dropped: Later::default(), damaged })
}

/// That a main of so many blocks, which may be fewer or more than the device has, can be made there, with a log or without: for whoever makes it as large,
/// before that.
/// What it was counts until then. Finishes what the backup was in the middle of; nothing else is written.
///
/// # Errors
/// As for [`rebuild_at`] and [`rebuild_without_log`].
pub fn check_rebuild(
    backup: Arc<dyn Device>,
    log: Option<Arc<dyn Device>>,
    main: Arc<dyn Device>,
    blocks: u64,
    how: &Rebuild,
) -> Result<(), Error> {
    match log {
        Some(log) => plan(backup, log, &main, blocks, how).map(drop),
        None => plan_without_log(backup, &main, blocks, how.accept_damage).map(drop),
    }
}

/// What main is to be made of, with everything looked at that may speak against it.
struct Plan {
    base: Base,
    /// The backup's label.
    of: Label,
    log: Labelled,
    behind: Behind,
    /// As the log's label is to be.
    end: Label,
    point: Point,
    barrier: Option<Barrier>,
    dropped: Later,
    of_sets: [u64; 2],
}

/// All that can be looked at before main changes, which is to have so many blocks.
fn plan(
    backup: Arc<dyn Device>,
    log: Arc<dyn Device>,
    main: &Arc<dyn Device>,
    blocks: u64,
    how: &Rebuild,
) -> Result<Plan, Error> {
    let mut backup = Backup::look(backup)?;
    let log = Labelled::read(log, Role::Log)?;
    let behind = Behind::closed(&backup, &log)?;
    // Not before it is certain that it is this set's.
    backup.finish()?;
    let of = backup.label().clone();
    // The set may have become larger since. What it has there is in the log, or was never written.
    let set_blocks = behind.blocks().max(of.blocks);
    check_room(main, blocks, set_blocks)?;
    let mut end = log.label.clone();
    let survey = behind.survey()?;
    let mut point = match how.at {
        At::Now if how.drop_later => survey.end,
        at => behind.choose(&survey, at)?.0,
    };
    let mut is_damaged = survey.damage.is_some();
    // The log may say that it has another main only if that can be made of what it has: the old one is refused from then on.
    while let Some((damage, before)) = behind.damaged_data(point)? {
        if how.at != At::Now || !how.drop_later {
            return Err(damage);
        }
        (point, is_damaged) = (before, true);
    }
    let (mut barrier, mut dropped) = (None, Later::default());
    // Of everything, the next opening finds out where it ends. If the log is damaged, the end is where that begins, and it is for the caller
    // to say that this will do.
    if how.at != At::Now || is_damaged {
        dropped = Later { is_damaged, ..Later::than(point, &survey) };
        if !how.drop_later && !dropped.is_nothing() {
            return Err(Error::Later { device: log.device.name().into(), later: Box::new(dropped) });
        }
        barrier = survey.barriers.iter().find(|(_, after)| *after == point).map(|(barrier, _)| *barrier);
        // Pages from there on are of earlier generations than the label's, as those that an opening cuts off; and none is of that one, so that
        // what cannot be read there is nothing.
        (end.generation, end.start, end.state) = (end.generation + 1, point.page, State::Opening);
        let next = survey.barriers.last().map_or(0, |(last, _)| last.number + 1);
        end.barrier = end.barrier.max(next);
        end.durable = end.durable.min(point.page);
    }
    let base = Base::of(backup)?;
    let of_sets = [set_blocks, of.blocks];
    check_end(main, blocks, &of_sets)?;
    check_base(&base, main, &of_sets, how.accept_damage, &|damaged| not_replaced(damaged, &behind, point))?;
    Ok(Plan { base, of, log, behind, end, point, barrier, dropped, of_sets })
}

/// The same without a log.
fn plan_without_log(
    backup: Arc<dyn Device>,
    main: &Arc<dyn Device>,
    blocks: u64,
    accept_damage: bool,
) -> Result<Base, Error> {
    let backup = Backup::open(backup)?;
    backup.check_complete()?;
    let set_blocks = backup.label().blocks;
    check_room(main, blocks, set_blocks)?;
    let base = Base::of(backup)?;
    check_end(main, blocks, &[set_blocks])?;
    check_base(&base, main, &[set_blocks], accept_damage, &|damaged| Ok(ranges(damaged)))?;
    Ok(base)
}

/// That a main of so many blocks has room for a set.
fn check_room(main: &Arc<dyn Device>, blocks: u64, set_blocks: u64) -> Result<(), Error> {
    let least = set_blocks + LABEL_AREA_BLOCKS;
    if blocks < least {
        return Err(Error::TooSmall { device: main.name().into(), role: Role::Main, blocks, least });
    }
    Ok(())
}

/// That a main which is to have another size than it has can have labels at its new end. One that keeps its size is looked at when it is given up.
fn check_end(main: &Arc<dyn Device>, blocks: u64, of_sets: &[u64]) -> Result<(), Error> {
    if blocks == main.blocks() { Ok(()) } else { check_as_large(&**main, blocks, of_sets) }
}

/// Before a device that is a main, or was one, gets other contents: that the backup's damage does not end that. Of what is damaged there the old
/// main may have good blocks, from which a scrub makes the backup good.
fn check_base(
    base: &Base,
    main: &Arc<dyn Device>,
    of_sets: &[u64],
    accept_damage: bool,
    not_replaced: &dyn Fn(Vec<u64>) -> Result<Vec<Range<u64>>, Error>,
) -> Result<(), Error> {
    // Labels that cannot be read are some, too; main may have become larger than they say.
    let has_labels = || {
        match newest(&**main, Role::Main) {
            // It is nothing any more, whatever is elsewhere.
            Ok(Decoded::Valid(label)) if label.is_given_up() => false,
            Ok(Decoded::Nothing) => {
                of_sets.iter().any(|blocks| !matches!(has_outgrown_labels(&**main, *blocks), Ok(false)))
            }
            _ => true,
        }
    };
    if accept_damage || !has_labels() {
        return Ok(());
    }
    refuse_damage(base, &not_replaced(copy(base, None)?)?, false)
}

/// What was given up for it is this main, durably, and has what it says.
fn take_as(labels: &mut Labelled, label: Label) -> Result<(), crate::Error> {
    labels.device.flush()?;
    labels.write(|next| *next = Label { sequence: next.sequence, ..label })
}

/// The first block of the backup that is damaged is an error, unless that is accepted.
fn refuse_damage(base: &Base, damaged: &[Range<u64>], accept_damage: bool) -> Result<(), Error> {
    match damaged.first() {
        Some(first) if !accept_damage => Err(base.damaged(first.start)?.into()),
        _ => Ok(()),
    }
}

/// Reads what the backup has, and copies it to a main, if there is one. Gives the blocks that are not as they should be; a single flipped bit is
/// made good.
fn copy(base: &Base, main: Option<&dyn Device>) -> Result<Vec<u64>, Error> {
    let blocks = base.backup.label().blocks;
    let (mut bytes, mut damaged) = (AlignedBuf::zeroed(COPY_BLOCKS as usize * BLOCK_SIZE), Vec::new());
    let mut zeros = Zeros::default();
    for first in (0..blocks).step_by(COPY_BLOCKS as usize) {
        let part = &mut bytes[..COPY_BLOCKS.min(blocks - first) as usize * BLOCK_SIZE];
        damaged.extend(base.read(first, part)?);
        if let Some(main) = main {
            zeros.write(main, first, part)?;
        }
    }
    if let Some(main) = main {
        zeros.end(main)?;
    }
    Ok(damaged)
}

/// Of these blocks those that the log does not replace on the way to a point.
fn not_replaced(mut blocks: Vec<u64>, behind: &Behind, to: Point) -> Result<Vec<Range<u64>>, Error> {
    if !blocks.is_empty() {
        let newest = behind.newest(to)?;
        blocks.retain(|block| newest.get(*block).is_none());
    }
    Ok(ranges(blocks))
}

/// Blocks in order, as runs.
fn ranges(blocks: Vec<u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}
