//! Data of the log that is damaged, or cannot be read, where the blocks have been written again since. A backup needs none of it, but it can
//! stop at no state that has it: its steps end in front of that, and the next one goes as far as the set is. If that has no room in the
//! staging area, the backup has no state until it is done; the log's map says so, so that the status does.

use super::Error;
use super::append::regions_between;
use super::at::{Behind, Kept};
use super::backup::{BackedUp, COPY_BLOCKS, Way};
use super::device::{Failure, Flashlog, Side};
use super::format::{Point, Staging, State};
use super::ring::Area;
use super::scan::Scan;
use super::staging::Backup;

impl Flashlog {
    /// Goes on with a backup whose step up to this end has met data of the log that is damaged. How many blocks were copied; none if the log
    /// has let go of some meanwhile, so that it must be seen what is to be done.
    ///
    /// # Errors
    /// The same one, if it is another, or if nobody has the newest version of the block either: the backup keeps its state then.
    pub(super) fn step_over(
        &self,
        backup: &mut Backup,
        end: Point,
        error: Error,
        (done, way): (&mut BackedUp, &mut Way<'_>),
    ) -> Result<Option<u64>, Error> {
        let losses = self.uses.losses();
        match self.do_step_over(backup, end, error, (done, way)) {
            // What is written over looks like damage.
            Err(_) if self.uses.losses() != losses && backup.label().state != State::Staged => Ok(None),
            stepped => stepped.map(Some),
        }
    }

    fn do_step_over(
        &self,
        backup: &mut Backup,
        end: Point,
        mut error: Error,
        (done, way): (&mut BackedUp, &mut Way<'_>),
    ) -> Result<u64, Error> {
        let (from, mut to) = (backup.label().applied, end);
        loop {
            let Some(block) = self.unread_block(&error) else { return Err(error) };
            let Some((address, in_front)) = self.in_front_of(from, to, block)? else { break };
            done.over_damage_first.get_or_insert(address);
            if in_front.page <= from.page {
                break;
            }
            // Up to there it has states.
            to = in_front;
            match self.copy_newest(backup, to, (done, way)) {
                Err(earlier) if backup.label().state != State::Staged => error = earlier,
                copied => return copied,
            }
        }
        self.copy_at_once(backup, end, (done, way))
    }

    /// The block of the log that could not be read, or was damaged there, if that is the error.
    pub(super) fn unread_block(&self, error: &Error) -> Option<u64> {
        match error {
            Error::Device(crate::Error::Damaged { device, first, .. }) if **device == *self.rings.device.name() => {
                Some(*first)
            }
            Error::Device(crate::Error::Io { device, first, .. }) if **device == *self.rings.device.name() => *first,
            _ => None,
        }
    }

    /// Of which block of the set the log has a version there, and the last state in front of it; none if it is not between the two points.
    fn in_front_of(&self, from: Point, to: Point, block: u64) -> Result<Option<(u64, Point)>, Error> {
        let label = self.head.lock().labels.label.clone();
        let mut scan = Scan::new(&self.rings, &label, from, false).without_mending();
        let mut in_front = from;
        while scan.at.page < to.page {
            let page = scan.next_there()?;
            let is_there = |kept: &Kept| kept.position().is_some_and(|at| self.rings.block(Area::Data, at) == block);
            if let Some(kept) = page.entries.iter().flat_map(Kept::of).find(is_there) {
                return Ok(Some((kept.address, in_front)));
            }
            if !page.head.is_partial {
                in_front = scan.at;
            }
        }
        Ok(None)
    }

    /// One step up to a point, whatever has room. In memory: as for a [`Past`](super::Past).
    pub(super) fn copy_at_once(
        &self,
        backup: &mut Backup,
        to: Point,
        (done, way): (&mut BackedUp, &mut Way<'_>),
    ) -> Result<u64, Error> {
        let from = backup.label().applied;
        let behind = Behind::of_log(&self.head.lock().labels, from, to);
        let all = behind.newest(to)?;
        way.is_left(all.blocks());
        if backup.label().state == State::Copying {
            return self.copy_all(backup, &all, to, way);
        }
        if backup.has_room_for(&all) {
            return self.copy_all(backup, &all, to, way);
        }
        // A state is not given up for what cannot be had.
        for batch in all.data().chunks(COPY_BLOCKS as usize) {
            self.read_newest(batch)?;
        }
        let (device, blocks) = (backup.labels.device.name(), all.blocks());
        tracing::warn!(device, blocks, "the staging area has no room: the backup has no state until this is done");
        let map = self.mark_for_copy(from, to)?;
        done.had_no_state = true;
        backup.labels.write(|label| {
            (label.state, label.map, label.staging) = (State::Copying, map, Staging::default());
        })?;
        let copied = self.copy_all(backup, &all, to, way)?;
        let blocks = self.blocks;
        backup.labels.write(|label| label.staging.copied = blocks)?;
        Ok(copied)
    }

    /// The log's map says that the backup lacks what is between two points, though the log keeps it: until that is copied, the two are no
    /// state. The number of the map.
    fn mark_for_copy(&self, from: Point, to: Point) -> Result<u64, Error> {
        let mut head = self.head.lock();
        let (mut map, _) = regions_between(&self.rings, &head.labels.label, from, to)?;
        if let Some(before) = &head.changed {
            map.add(before);
            map.from = before.from.min(from.page);
        }
        let may = self.check_head(&head);
        let written = may.and_then(|()| head.labels.write_map(&map, |_| ()).map_err(Failure::of(Side::Log)));
        let written = head.note(written);
        let number = head.labels.label.map;
        if written.is_ok() {
            head.changed = Some(map);
        }
        drop(head);
        Ok(self.heed(written).map(|()| number)?)
    }
}
