//! Bringing a backup up to date while the set is in use: a full copy first, then of what the log has since the backup's state only the
//! newest version of each block, in the order of addresses.

use super::Error;
use super::ahead::ReadAhead;
use super::append::Head;
use super::at::{Behind, Kept};
use super::device::{Failure, Flashlog, Order, Side};
use super::format::{Damage, GROUP_BLOCKS, Label, Point, Regions, Role, Staging, State, Uuid, pages_most};
use super::inspect::inspect;
use super::newest::Newest;
use super::ring::Area;
use super::scan::Scan;
use super::staged::Stager;
use super::staging::{Backup, Room, staged_blocks, staged_pages};
use super::sums::Known;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Blocks that are copied at once: 1 MiB.
pub(super) const COPY_BLOCKS: u64 = 256;
/// Copying notes how far it is each so many blocks: 64 MiB.
const NOTE_BLOCKS: u64 = 64 * COPY_BLOCKS;
/// So often a backup begins again to copy what has changed, because the log was full meanwhile.
pub(super) const PASSES_MOST: u64 = 16;
/// So often it tries that without giving up the state that the backup has.
const STAGED_PASSES_MOST: u64 = 3;
/// Of a backup that is copied whole: of what the log has let go of, no map says so.
pub(super) const OF_NO_MAP: u64 = 0;

/// What a backup did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackedUp {
    /// Everything was copied, or the rest of everything.
    pub is_full: bool,
    /// Blocks copied from the log.
    pub blocks: u64,
    /// Blocks copied from the device: all at first, and later of what has changed since the log was full, or was lost, what is otherwise.
    pub copied_blocks: u64,
    /// Blocks that were read there, and were the same.
    pub same_blocks: u64,
    /// States that it went through: more than one if not all had room in the staging area.
    pub steps: u64,
    /// Copied blocks of which nobody knows whether they were written, and that differ from what the backup had by one bit: main may be damaged
    /// there.
    pub doubtful_blocks: u64,
    /// The first of them.
    pub doubtful_first: Option<u64>,
    /// Blocks of the backup whose checksums were damaged, or could not be read, and that were not found to be the same on main: they count as
    /// damaged.
    pub unchecked_blocks: u64,
    /// The first of them.
    pub unchecked_first: Option<u64>,
    /// Of this block the log has an earlier version that is damaged, or cannot be read: the backup went over the states that have it.
    pub over_damage_first: Option<u64>,
    /// What a step came to had no room in the staging area: the backup had no state until it was done.
    pub had_no_state: bool,
}

impl BackedUp {
    /// Blocks in a row that the backup gets, because they are otherwise there.
    fn doubt(
        &mut self,
        regions: &Regions,
        blocks: &[(u64, u64)],
        bytes: &[u8],
        (known, backup): (&mut Known, &Backup),
    ) -> Result<(), crate::Error> {
        let (each, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        for ((address, _), block) in blocks.iter().zip(each).filter(|((at, _), _)| !regions.is_exact_at(*at)) {
            let had = known.sum(backup, *address)?;
            if had.is_some_and(|had| correct_flips(&mut block.to_owned(), had, FlipsMax::One).is_some()) {
                self.doubtful_first.get_or_insert(*address);
                self.doubtful_blocks += 1;
            }
        }
        Ok(())
    }
}

/// The bytes of some of the blocks in a row.
fn bytes_of<'a>(some: &[(u64, u64)], all: &[(u64, u64)], bytes: &'a [u8]) -> &'a [u8] {
    let from = (some[0].0 - all[0].0) as usize;
    &bytes[from * BLOCK_SIZE..(from + some.len()) * BLOCK_SIZE]
}

/// How far a backup is, for whoever waits for it, and who helps.
pub(super) struct Way<'a> {
    done: u64,
    total: u64,
    /// Who may read in advance.
    ahead: &'a ReadAhead,
    tell: &'a mut dyn FnMut(u64, u64),
}

impl Way<'_> {
    /// So much is still to be copied, as far as it is known.
    pub(super) fn is_left(&mut self, blocks: u64) {
        self.total = self.done + blocks;
        (self.tell)(self.done, self.total);
    }

    fn did(&mut self, blocks: u64) {
        self.done += blocks;
        self.total = self.total.max(self.done);
        (self.tell)(self.done, self.total);
    }
}

/// How much of the log is one part: not more than memory is allowed for, and ...
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// ... to the last state that has room in a staging area.
    States(Room),
    /// ... to the first state.
    FirstState,
    /// ... to the last page that has, be it a state or not; one page at least, if there is room for that.
    Pages(Room),
}

/// What a backup needs that is not in the log any more.
pub(super) struct Pass {
    pub(super) regions: Regions,
    /// Number of the log's map.
    pub(super) map: u64,
    /// Where the log begins that comes on top.
    pub(super) keep: Point,
    /// The log is kept for another backup, so that its map is not about this.
    pub(super) is_beside: bool,
}

impl Pass {
    /// As the label of a backup that is being copied has it.
    fn number(&self) -> u64 {
        if self.is_beside { OF_NO_MAP } else { self.map }
    }
}

/// The state of a backup is at no point of the log that anybody could go on from.
pub(super) fn forget_point(backup: &mut Backup, of_log: &Label) -> Result<(), crate::Error> {
    match backup.label().state == State::Open && backup.label().log == of_log.log {
        true => backup.labels.write(|label| label.log = Uuid::NONE),
        false => Ok(()),
    }
}

impl Flashlog {
    /// Makes a device a backup of this set. What it had is lost; it is no state of the set until [`Flashlog::backup`] is done. The one that the
    /// set has, if that is another device, goes with the log until then.
    ///
    /// # Errors
    /// [`Error::TooSmall`]: it takes the set's size, that of its checksums and 4 MiB at least; [`Error::Device`].
    pub fn create_backup(&self, device: Arc<dyn Device>, name: Uuid) -> Result<(), Error> {
        let label = self.head.lock().labels.label.clone();
        Backup::check_room(&*device, label.blocks)?;
        let had = inspect(&*device).ok().flatten().filter(|had| had.role == Role::Backup);
        if let Some(had) = had.and_then(|had| had.backup) {
            self.give_up_backup(had)?;
        }
        Backup::create(device, &label, name)?;
        self.note_new_backup()
    }

    /// Brings a backup to the state of now. The set stays in use. If this is cut off, the next call goes on, and until then the backup has
    /// a state that there was; but for the first full copy, and if the log was full and what has changed has no room in the staging area.
    ///
    /// # Errors
    /// [`Error`] tells which device failed or is the wrong one. A failure of the backup device does not touch the set.
    pub fn backup(&self, device: Arc<dyn Device>) -> Result<BackedUp, Error> {
        self.backup_telling(device, &mut |_, _| ())
    }

    /// The same; `tell` gets how many blocks are copied, and of how many, as far as that is known: more may be written meanwhile, and of what
    /// was written several times only the last counts.
    ///
    /// # Errors
    /// As for [`Flashlog::backup`].
    pub fn backup_telling(&self, device: Arc<dyn Device>, tell: &mut dyn FnMut(u64, u64)) -> Result<BackedUp, Error> {
        self.backup_ahead(device, &ReadAhead::default(), tell)
    }

    /// The same. What is copied from the set another thread may read in advance, which is in [`Flashlog::read_ahead`] with the same `ahead`
    /// and returns when this has ended: then set and backup work at once.
    ///
    /// # Errors
    /// As for [`Flashlog::backup`].
    pub fn backup_ahead(
        &self,
        device: Arc<dyn Device>,
        ahead: &ReadAhead,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<BackedUp, Error> {
        self.backup_noting(device, ahead, tell).map(|(done, _)| done)
    }

    /// The same, and tells which groups of blocks it has written to.
    pub(super) fn backup_noting(
        &self,
        device: Arc<dyn Device>,
        ahead: &ReadAhead,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<(BackedUp, BTreeSet<u64>), Error> {
        let _ending = ahead.ending(self);
        let mut way = Way { done: 0, total: 0, ahead, tell };
        let _writing = self.uses.write(&self.name)?;
        let set = self.head.lock().labels.label.set;
        let mut backup = Backup::open_of(device, set)?;
        self.enlarge(&mut backup)?;
        let sequence = backup.label().sequence;
        let mut done = BackedUp::default();
        self.begin_clean();
        let mut is_compared = self.copy_beside(&mut backup, (&mut done, &mut way))?;
        let mut is_known = self.has_true_sums(&backup);
        let mut end = self.begin_backup(&mut backup)?;
        let mut passes = 0;
        loop {
            if let Some(pass) = self.pass_for(&backup) {
                if passes == PASSES_MOST {
                    return Err(Error::Overflowed { device: self.rings.device.name().into() });
                }
                passes += 1;
                is_compared |= pass.regions.is_all();
                end = self.copy_changed(&mut backup, pass, (passes, is_known), &mut done, &mut way)?;
                continue;
            }
            if backup.label().applied.page >= end.page {
                break;
            }
            let step = self.copy_newest(&mut backup, end, (&mut done, &mut way));
            if let Err(error) = &step
                && backup.label().state != State::Staged
                && self.pass_for(&backup).is_none()
                && self.gives_up_kept_for(error, &backup)?
            {
                is_known = self.options.order == Order::TrustsSumsOfCopy;
                continue;
            }
            // What was let go of meanwhile may have been overwritten, which looks like damage.
            if step.is_err() && backup.label().state != State::Staged && self.pass_for(&backup).is_some() {
                // Some of it may be there, without its checksums.
                is_known = self.options.order == Order::TrustsSumsOfCopy;
                continue;
            }
            done.blocks += match step {
                Err(error) if backup.label().state != State::Staged => {
                    let over = self.step_over(&mut backup, end, error, (&mut done, &mut way));
                    let Some(blocks) = over? else {
                        is_known = self.options.order == Order::TrustsSumsOfCopy;
                        continue;
                    };
                    blocks
                }
                step => step?,
            };
            done.steps += 1;
            self.keep_from(&backup);
        }
        if backup.label().state == State::Copying {
            self.end_copy(&mut backup)?;
        }
        self.forget_changed(&backup)?;
        if self.is_all_rewritten() {
            // Then the log need not tell any more which blocks these were.
            self.catch_up()?;
        }
        self.say_durable(&backup, backup.label().sequence == sequence)?;
        self.end_clean(&backup);
        *self.kept_damage.lock() = None;
        if is_compared {
            self.note_compared()?;
        }
        let written = std::mem::take(&mut backup.written);
        let doubtful = self.settle_doubtful(backup);
        done.unchecked_blocks = doubtful.blocks;
        done.unchecked_first = (doubtful.blocks > 0).then_some(doubtful.first);
        Ok((done, written))
    }

    /// Everything that was answered up to now is in the log, durably, before this point.
    pub(super) fn durable_point(&self) -> Result<Point, Error> {
        let mut head = self.head.lock();
        let done = self.append(&mut head, true).and_then(|()| self.flush_log(&mut head));
        let next = head.next;
        drop(head);
        Ok(self.heed(done).map(|()| next)?)
    }

    /// Finds out whether log and map have what the backup needs. If not, everything counts as changed, and the log keeps what comes from now
    /// on; a backup that has a state keeps it, and is compared. Gives the point of now.
    fn begin_backup(&self, backup: &mut Backup) -> Result<Point, Error> {
        let now = self.durable_point()?;
        let mut head = self.head.lock();
        let (of_log, of_backup) = (head.labels.label.clone(), backup.label().clone());
        if self.keeps_for(&head, &of_backup) && !self.is_copied_again(backup) {
            drop(head);
            if of_backup.main != of_log.main {
                // Main was made anew since. Whoever goes on with the old one has not got this backup any more.
                backup.labels.write(|label| label.main = of_log.main)?;
            }
            return Ok(now);
        }
        self.check_forgotten(&of_backup)?;
        forget_point(backup, &of_log)?;
        // The log first: once a backup counts on it, it keeps what the backup needs.
        let kept = self.keep_for(&mut head, now, of_backup.backup);
        drop(head);
        self.heed(kept)?;
        self.forget_dirty();
        self.begin_copy(backup, &of_log, now)?;
        Ok(now)
    }

    /// From now on the log is kept for this backup, of which nothing is known: all counts as changed.
    fn keep_for(&self, head: &mut Head, now: Point, name: Uuid) -> Result<(), Failure> {
        self.check_head(head)?;
        let all = Regions::all(self.blocks).about(now.page, now.page);
        head.keep = Some(now);
        let applied = self.stages.lock().applied;
        let (tail, barrier) = (self.tail(head, applied), head.barrier);
        let written = head.labels.write_map(&all, |label| {
            (label.tail, label.applied, label.backup, label.barrier) = (tail, applied, name, barrier);
            label.backup_sequence = 0;
        });
        (head.changed, head.changed_since) = (Some(all), Regions::none(self.blocks));
        head.note(written.map_err(Failure::of(Side::Log)))
    }

    /// That the log's label may be written: not when something of the log has failed, nor when the set has stopped, or has let it go.
    pub(super) fn check_head(&self, head: &Head) -> Result<(), Failure> {
        head.check().and_then(|()| self.check_latch())
    }

    /// One that has no state is copied whole, from now on.
    pub(super) fn begin_copy(&self, backup: &mut Backup, of_log: &Label, now: Point) -> Result<(), Error> {
        if backup.label().state == State::Open {
            return Ok(());
        }
        let damage = self.damage_of_copy();
        backup.labels.write(|label| {
            (label.state, label.damage) = (State::Copying, damage);
            (label.applied, label.staging, label.map) = (now, Staging::default(), OF_NO_MAP);
            label.is_of(of_log);
        })?;
        Ok(())
    }

    /// Whether the checksums that it has are those of its blocks. Of one that is being copied, they may be there without the blocks.
    pub(super) fn has_true_sums(&self, backup: &Backup) -> bool {
        backup.label().state != State::Copying || self.options.order == Order::TrustsSumsOfCopy
    }

    /// What must be copied before the log's pages can be, if there is such.
    fn pass_for(&self, backup: &Backup) -> Option<Pass> {
        let (head, label) = (self.head.lock(), backup.label());
        let (regions, map) = (head.changed.as_ref()?, head.labels.label.map);
        let is_done = match label.state {
            _ if label.log != head.labels.label.log => false,
            State::Copying => label.map == map && label.staging.copied == self.blocks,
            _ => label.applied.page >= regions.to,
        };
        let keep = head.keep.filter(|_| !is_done)?;
        let is_behind = label.log == head.labels.label.log && keep.page < label.applied.page;
        let keep = if is_behind { label.applied } else { keep };
        Some(Pass { regions: regions.clone(), map, keep, is_beside: false })
    }

    /// Copies regions as they are when it gets there; what is written meanwhile comes from the log. Everything that the backup has then was
    /// written before the point that this gives.
    pub(super) fn copy_changed(
        &self,
        backup: &mut Backup,
        pass: Pass,
        (passes, is_known): (u64, bool),
        done: &mut BackedUp,
        way: &mut Way<'_>,
    ) -> Result<Point, Error> {
        self.check_forgotten(backup.label())?;
        let damage = self.damage_of_copy();
        if damage.main.blocks > 0 && damage != backup.label().damage {
            backup.labels.write(|label| label.damage = damage)?;
        }
        if backup.label().state != State::Copying {
            if passes <= STAGED_PASSES_MOST
                && let Some(end) = self.stage_changed(backup, &pass, done, way)?
            {
                return Ok(end);
            }
            if self.pass_for(backup).is_some_and(|now| now.map != pass.map) {
                // There is more of it by now.
                return Ok(backup.label().applied);
            }
        }
        done.is_full |= pass.regions.is_all();
        let of_log = self.head.lock().labels.label.clone();
        let is_of_log = backup.label().log == of_log.log;
        let is_copying = backup.label().state == State::Copying;
        let is_going_on = is_of_log && is_copying && backup.label().map == pass.number();
        let mut at = if is_going_on { backup.label().staging.copied } else { 0 };
        if !is_going_on {
            let mut head = self.head.lock();
            if head.labels.label.map != pass.map {
                // There is more of it since the pass was planned, which must not be forgotten.
                return Ok(if is_of_log { backup.label().applied } else { pass.keep });
            }
            head.changed_since = Regions::none(self.blocks);
            drop(head);
            if backup.label().state == State::Open {
                let (device, blocks) = (backup.labels.device.name(), pass.regions.marked_blocks());
                tracing::warn!(
                    device,
                    blocks,
                    "the staging area has no room: the backup has no state until this is done"
                );
            }
            backup.labels.write(|label| {
                (label.state, label.map, label.staging) = (State::Copying, pass.number(), Staging::default());
                if pass.regions.is_all() {
                    label.damage = damage;
                }
                if !is_of_log {
                    label.applied = pass.keep;
                    label.is_of(&of_log);
                }
            })?;
        }
        way.is_left(pass.regions.marked_from(at));
        let (before, mut compared_blocks) = (done.copied_blocks, 0);
        let (mut unnoted_blocks, mut known) = (0, Known::of(is_known));
        let reading = self.read_for_copy(way.ahead, &pass.regions, at);
        while let Some(marked) = reading.next()? {
            let (count, behind) = (marked.blocks(), marked.behind());
            for (sums, written) in marked.runs() {
                for other in known.otherwise(backup, &sums)? {
                    let other_bytes = bytes_of(other, &sums, written);
                    done.doubt(&pass.regions, other, other_bytes, (&mut known, backup))?;
                    backup.write(other[0].0, other_bytes, other.iter().map(|(_, sum)| *sum))?;
                    done.copied_blocks += other.len() as u64;
                }
            }
            reading.free(marked);
            at = behind;
            compared_blocks += count;
            way.did(count);
            unnoted_blocks += count;
            if unnoted_blocks >= NOTE_BLOCKS {
                // What was read must not be missing from the log later on.
                self.durable_point()?;
                backup.flush()?;
                backup.labels.write(|label| label.staging.copied = at)?;
                unnoted_blocks = 0;
            }
        }
        done.same_blocks += compared_blocks - (done.copied_blocks - before);
        let end = self.durable_point()?;
        backup.flush()?;
        self.end_pass(backup, &pass)?;
        Ok(end)
    }

    /// The regions of a pass are on the backup, durably: of the map only what was added meanwhile is needed any more. If that is nothing, the map
    /// stays until the backup has a state: whoever asks is told that it has none.
    fn end_pass(&self, backup: &mut Backup, pass: &Pass) -> Result<(), Error> {
        let mut head = self.head.lock();
        let blocks = self.blocks;
        // The backup first: a map that it does not know is copied whole.
        backup.labels.write(|label| {
            label.applied = pass.keep;
            label.staging.copied = blocks;
        })?;
        if pass.is_beside {
            return Ok(());
        }
        head.labels.label.backup_sequence = backup.label().sequence;
        let until = head.changed_since.to;
        let since = std::mem::replace(&mut head.changed_since, Regions::none(blocks)).about(pass.keep.page, until);
        let written = if head.labels.label.map == pass.map {
            head.copied_map = Some(pass.map);
            Ok(())
        } else {
            head.changed = Some(since.clone());
            let may = self.check_head(&head);
            let written = may.and_then(|()| head.labels.write_map(&since, |_| ()).map_err(Failure::of(Side::Log)));
            head.note(written)
        };
        drop(head);
        Ok(self.heed(written)?)
    }

    /// The same by way of the staging area, so that the backup keeps its state until it has the next one. None if there is no room, or if
    /// the log was full meanwhile.
    fn stage_changed(
        &self,
        backup: &mut Backup,
        pass: &Pass,
        done: &mut BackedUp,
        way: &mut Way<'_>,
    ) -> Result<Option<Point>, Error> {
        way.is_left(pass.regions.marked_from(0));
        let mut stager = Stager::of(backup);
        let (mut copied_blocks, mut known) = (0, Known::of(true));
        let mut doubts = BackedUp::default();
        let reading = self.read_for_copy(way.ahead, &pass.regions, 0);
        while let Some(marked) = reading.next()? {
            let count = marked.blocks();
            for (sums, written) in marked.runs() {
                for other in known.otherwise(backup, &sums)? {
                    copied_blocks += other.len() as u64;
                    if copied_blocks > backup.staging_blocks() {
                        return Ok(None);
                    }
                    let other_bytes = bytes_of(other, &sums, written);
                    doubts.doubt(&pass.regions, other, other_bytes, (&mut known, backup))?;
                    backup.stage(&mut stager, other, other_bytes)?;
                }
            }
            reading.free(marked);
            way.did(count);
        }
        drop(reading);
        // What was written since a region was read comes on top of it, from the log.
        let end = self.durable_point()?;
        let mut room = backup.staging_room();
        room.blocks -= copied_blocks;
        room.pages = room.pages.saturating_sub(pages_most(copied_blocks, copied_blocks, 0));
        let staged = self.copy_log(backup, &mut stager, (pass.keep, end), room, way);
        let of_log = self.head.lock().labels.label.clone();
        if of_log.map != pass.map {
            return Ok(None);
        }
        let Some(blocks) = staged? else { return Ok(None) };
        self.commit(backup, stager, end, &of_log)?;
        if pass.regions.is_all() && backup.label().damage != Damage::default() {
            backup.labels.write(|label| label.damage = Damage::default())?;
        }
        self.keep_from(backup);
        done.blocks += blocks;
        done.copied_blocks += copied_blocks;
        done.same_blocks += pass.regions.marked_blocks() - copied_blocks;
        done.doubtful_blocks += doubts.doubtful_blocks;
        done.doubtful_first = done.doubtful_first.or(doubts.doubtful_first);
        done.steps += 1;
        Ok(Some(end))
    }

    /// Copies what the log has between two points, some of it after the other, each not more than memory is allowed for: to its place, if the
    /// backup has no state; otherwise it is staged. How many blocks it was; none if there is no room for so many.
    fn copy_log(
        &self,
        backup: &mut Backup,
        stager: &mut Stager,
        (from, end): (Point, Point),
        mut room: Room,
        way: &mut Way<'_>,
    ) -> Result<Option<u64>, Error> {
        let (mut at, mut blocks) = (from, 0);
        while at.page < end.page {
            let (mut all, mut to) = self.newest_versions(at, end, Part::Pages(room))?;
            if to.page == at.page {
                return Ok(None);
            }
            way.is_left(all.blocks() + end.data.saturating_sub(to.data));
            let mut copied = self.copy_some(backup, stager, &all, way);
            room.blocks -= staged_blocks(&all);
            room.pages -= staged_pages(&all);
            if let Err(error) = &copied
                && to.page < end.page
                && self.unread_block(error).is_some()
            {
                // If it was written again behind that, nobody needs it.
                let behind = Behind::of_log(&self.head.lock().labels, at, end);
                (all, to) = (behind.newest(end)?, end);
                if staged_blocks(&all) > room.blocks || staged_pages(&all) > room.pages {
                    return Ok(None);
                }
                copied = self.copy_some(backup, stager, &all, way);
            }
            copied?;
            (at, blocks) = (to, blocks + all.blocks());
        }
        Ok(Some(blocks))
    }

    /// The same of these, in the order of addresses.
    fn copy_some(
        &self,
        backup: &mut Backup,
        stager: &mut Stager,
        all: &Newest,
        way: &mut Way<'_>,
    ) -> Result<(), Error> {
        let mut left = all.from(0);
        loop {
            let batch: Vec<Kept> = left.by_ref().take(COPY_BLOCKS as usize).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let bytes = self.read_newest(&batch)?;
            if backup.label().state == State::Copying {
                // There is no state yet that it could spoil.
                let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
                let mut at = 0;
                for run in batch.chunk_by(|a, b| a.address + 1 == b.address) {
                    let sums = run.iter().map(|kept| kept.sum);
                    backup.write(run[0].address, blocks[at..at + run.len()].as_flattened(), sums)?;
                    at += run.len();
                }
            } else {
                backup.stage_kept(stager, &batch, &bytes)?;
            }
            way.did(batch.len() as u64);
        }
    }

    /// What was copied is everything up to this point.
    fn end_step(&self, backup: &mut Backup, stager: Stager, to: Point) -> Result<(), Error> {
        if backup.label().state == State::Copying {
            backup.flush()?;
            return Ok(backup.labels.write(|label| label.applied = to)?);
        }
        if self.options.order == Order::TrimsBeforeBackup {
            let (mut head, applied) = (self.head.lock(), self.stages.lock().applied);
            head.keep = Some(to);
            let written = self.write_points(&mut head, applied);
            drop(head);
            self.heed(written)?;
        }
        let of_log = self.head.lock().labels.label.clone();
        self.commit(backup, stager, to, &of_log)
    }

    /// The backup has everything before its state's point.
    fn keep_from(&self, backup: &Backup) {
        let (mut head, point) = (self.head.lock(), backup.label().applied);
        let is_kept_for_it = head.labels.label.backup == backup.label().backup;
        if is_kept_for_it && head.keep.is_some_and(|keep| keep.page < point.page) {
            head.keep = Some(point);
            // For the next label that is written for whatever reason, which may let go of what the backup has.
            head.labels.label.backup_sequence = backup.label().sequence;
        }
    }

    /// The map is for nobody any more, if the backup is behind its end.
    fn forget_changed(&self, backup: &Backup) -> Result<(), Error> {
        let mut head = self.head.lock();
        if head.changed.as_ref().is_none_or(|changed| backup.label().applied.page < changed.to) {
            return Ok(());
        }
        let may = self.check_head(&head);
        let written =
            may.and_then(|()| head.labels.write(|label| label.has_map = false).map_err(Failure::of(Side::Log)));
        let written = head.note(written).map(|()| head.changed = None);
        drop(head);
        Ok(self.heed(written)?)
    }

    /// The log's label says that it has what a backup has, so that it cannot be taken for what a power cut left out; and it lets go of it, and
    /// knows by which of its labels the backup has it.
    fn say_durable(&self, backup: &Backup, is_as_before: bool) -> Result<(), Error> {
        let (mut head, to) = (self.head.lock(), backup.label().applied);
        let applied = self.stages.lock().applied;
        let is_known = is_as_before && head.labels.label.backup_sequence == backup.label().sequence;
        head.labels.label.backup_sequence = backup.label().sequence;
        let is_said = is_known && head.labels.label.durable >= to.page;
        let done = match is_said {
            true => Ok(()),
            false => self.check_head(&head).and_then(|()| self.write_points(&mut head, applied)),
        };
        drop(head);
        Ok(self.heed(done)?)
    }

    /// One step: as many pages of the log as have room in the staging area. How many blocks it was.
    pub(super) fn copy_newest(
        &self,
        backup: &mut Backup,
        end: Point,
        (done, way): (&mut BackedUp, &mut Way<'_>),
    ) -> Result<u64, Error> {
        // Not more than memory is allowed for, but a state at least.
        let room = backup.staging_room();
        let of_memory = Room { blocks: room.blocks.min(self.options.index_blocks), ..room };
        let from = backup.label().applied;
        let is_copying = backup.label().state == State::Copying;
        let (mut all, mut to) = self.newest_versions(from, end, Part::States(of_memory))?;
        if to == from {
            (all, to) = self.newest_versions(from, end, Part::FirstState)?;
        }
        if to == from {
            // What a log got when it came back, with no state in between: some of it after the other.
            let room = if is_copying { Room { blocks: u64::MAX, pages: u64::MAX } } else { room };
            let (first, mut stager) = (self.first_state(from, end)?, Stager::of(backup));
            if let Some(blocks) = self.copy_log(backup, &mut stager, (from, first), room, way)? {
                return self.end_step(backup, stager, first).map(|()| blocks);
            }
            return self.copy_at_once(backup, end, (done, way));
        }
        if !is_copying && !backup.has_room_for(&all) {
            return self.copy_at_once(backup, end, (done, way));
        }
        way.is_left(all.blocks() + end.data.saturating_sub(to.data));
        self.copy_all(backup, &all, to, way)
    }

    /// The first state behind a point.
    fn first_state(&self, from: Point, end: Point) -> Result<Point, Error> {
        let label = self.head.lock().labels.label.clone();
        let mut scan = Scan::new(&self.rings, &label, from, false);
        while scan.at.page < end.page && scan.next_there()?.head.is_partial {}
        Ok(scan.at)
    }

    /// Copies the newest versions up to this point.
    pub(super) fn copy_all(
        &self,
        backup: &mut Backup,
        all: &Newest,
        to: Point,
        way: &mut Way<'_>,
    ) -> Result<u64, Error> {
        let mut stager = Stager::of(backup);
        self.copy_some(backup, &mut stager, all, way)?;
        self.end_step(backup, stager, to)?;
        Ok(all.blocks())
    }

    /// What a part of the log comes to, and where it ends: from a point on, up to the end or as the part says.
    pub(super) fn newest_versions(&self, from: Point, end: Point, part: Part) -> Result<(Newest, Point), Error> {
        let label = self.head.lock().labels.label.clone();
        let mut scan = Scan::new(&self.rings, &label, from, false);
        let (mut newest, mut to) = (BTreeMap::new(), from);
        let mut partial: Vec<Kept> = Vec::new();
        // Zeros take no room for data, but for their checksums, and in memory.
        let (mut data_blocks, mut zero_groups, mut entries) = (0, BTreeSet::new(), 0);
        while scan.at.page < end.page {
            let page = scan.next_there()?;
            for zeros in page.entries.iter().filter(|entry| entry.sums().is_empty()) {
                zero_groups.extend(zeros.first / GROUP_BLOCKS..(zeros.first + zeros.blocks()).div_ceil(GROUP_BLOCKS));
            }
            let staged = data_blocks + partial.len() as u64 + page.data_blocks() + zero_groups.len() as u64;
            let in_memory = newest.len() as u64 + partial.len() as u64 + page.blocks();
            let is_too_much = in_memory > self.options.index_blocks;
            entries += page.entries.len() as u64;
            // What replaces a part of another makes two of it.
            let pages = pages_most(2 * entries, staged, in_memory.saturating_sub(data_blocks));
            let has_room = |room: Room| staged <= room.blocks && pages <= room.pages;
            let is_full = match part {
                Part::States(room) => !has_room(room) || is_too_much,
                Part::FirstState => is_too_much,
                Part::Pages(room) => !has_room(room) || is_too_much && !newest.is_empty(),
            };
            if is_full {
                break;
            }
            partial.extend(page.entries.iter().flat_map(Kept::of));
            if page.head.is_partial && !matches!(part, Part::Pages(_)) {
                continue;
            }
            for kept in partial.drain(..) {
                let before: Option<Kept> = newest.insert(kept.address, kept);
                data_blocks += u64::from(!kept.is_zeros());
                data_blocks -= u64::from(before.is_some_and(|before| !before.is_zeros()));
            }
            to = scan.at;
            if part == Part::FirstState {
                break;
            }
        }
        Ok((Newest::of(newest.into_values()), to))
    }

    /// Reads blocks from the log and verifies them; zeros are as they are.
    pub(super) fn read_newest(&self, batch: &[Kept]) -> Result<AlignedBuf, Error> {
        let mut bytes = AlignedBuf::zeroed(batch.len() * BLOCK_SIZE);
        let mut rest = &mut bytes[..];
        for run in batch.chunk_by(|a, b| a.is_zeros() == b.is_zeros()) {
            let (now, later) = rest.split_at_mut(run.len() * BLOCK_SIZE);
            rest = later;
            let positions: Vec<u64> = run.iter().filter_map(Kept::position).collect();
            let unread = self.rings.read_each_that_can_be(Area::Data, &positions, now)?;
            let (blocks, _none) = now.as_chunks_mut::<BLOCK_SIZE>();
            for ((block, kept), position) in blocks.iter_mut().zip(run).zip(positions) {
                if crc64(block) != kept.sum {
                    let made_good = self.make_good(block, kept.address, kept.sum, position);
                    made_good.map_err(|Failure { error, .. }| unread.why(position).cloned().unwrap_or(error))?;
                }
            }
        }
        Ok(bytes)
    }
}
