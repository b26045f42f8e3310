//! A backup that becomes larger with its set, on a device that has room.
//!
//! Its blocks stay in their place; checksums and staging area move back. The new areas are written where nothing counts yet, and one label
//! takes the backup from its state to the same one with zeros behind it, staged as entries without data. What the set has there is for the
//! next pass, which the log's map says before. So the backup has a state at any moment. Where the new areas would lie over the old
//! checksums, or the staging area has no room for so many zeros, the label says that it has no state until all is copied.

use super::Error;
use super::append::Head;
use super::at::verify_join;
use super::device::{Failure, Flashlog, Side};
use super::format::{
    GROUP_BLOCKS, Label, PAGE_ZEROS_MOST, Point, Regions, Staging, State, Uuid, sums, sums_area_blocks,
};
use super::labels::Labelled;
use super::staged::Stager;
use super::staging::Backup;
use super::sums::SumsReader;
use crate::AlignedBuf;
use std::io::IoSlice;
use std::sync::Arc;

/// Blocks of checksums that are written at once: 1 MiB.
const RUN_BLOCKS: u64 = 256;

impl Flashlog {
    /// Makes a backup as large as the set, if it is smaller and has become so by the set's growing.
    pub(super) fn enlarge(&self, backup: &mut Backup) -> Result<(), Error> {
        let (device, of_backup) = (backup.labels.device.name().into(), backup.label().blocks);
        if of_backup == self.blocks {
            return Ok(());
        }
        if of_backup > self.blocks || Backup::check_room(&*backup.labels.device, self.blocks).is_err() {
            return Err(Error::Outgrown { device, blocks: self.blocks, of_backup });
        }
        let now = self.durable_point()?;
        let is_kept = backup.label().state == State::Open && backup.has_room_to_enlarge(self.blocks) && {
            let mut head = self.head.lock();
            // (With a backup whose state is of a log before, points cannot be compared.)
            let is_known = backup.label().log == head.labels.label.log
                && self.keeps_for(&head, backup.label())
                && backup.label().applied.page < now.page;
            is_known && {
                let marked = self.mark_new(&mut head, backup, now);
                drop(head);
                self.heed(marked)?;
                true
            }
        };
        if !is_kept {
            self.check_forgotten(backup.label())?;
        }
        tracing::info!(
            device = backup.labels.device.name(),
            of_backup,
            blocks = self.blocks,
            is_kept,
            "it is enlarged"
        );
        if is_kept { self.enlarge_state(backup) } else { backup.begin_anew(self.blocks) }
    }

    /// The same state, with zeros behind it.
    fn enlarge_state(&self, backup: &mut Backup) -> Result<(), Error> {
        let mut larger = backup.of_blocks(self.blocks);
        let staging = backup.stage_enlarged(&mut larger)?;
        self.note_doubtful(&mut larger)?;
        larger.labels.write(|label| (label.state, label.staging) = (State::Staged, staging))?;
        *backup = larger;
        backup.apply()
    }

    /// Whether log and map have what a backup lacks.
    pub(super) fn keeps_for(&self, head: &Head, of_backup: &Label) -> bool {
        let of_log = &head.labels.label;
        let first = head.changed.as_ref().map_or(of_log.tail.page, |changed| changed.from);
        let is_in_reach = of_log.log == of_backup.log && (first..=head.next.page).contains(&of_backup.applied.page);
        // One of another time is compared: both may have been put back from images.
        let is_in_reach = is_in_reach && verify_join(&self.rings, of_log, of_backup.applied).is_ok();
        head.keep.is_some()
            && of_log.backup == of_backup.backup
            && (is_in_reach || self.has_map_for_log_before(of_log, of_backup))
    }

    /// Whether the log has come to the set since the backup's state, and its map is of what was written between. One that was copied back, or
    /// is another main's by now, is refused.
    fn has_map_for_log_before(&self, of_log: &Label, of_backup: &Label) -> bool {
        let is_of_log_before = of_backup.log != of_log.log && of_backup.log != Uuid::NONE;
        is_of_log_before
            && of_backup.main == of_log.main
            && of_log.backup_sequence > 0
            && of_backup.sequence >= of_log.backup_sequence
    }

    /// The log's map says that the backup lacks all of what is new of the set.
    fn mark_new(&self, head: &mut Head, backup: &Backup, now: Point) -> Result<(), Failure> {
        let (from, first) = (backup.label().applied.page, backup.label().blocks);
        let mut map = Regions::none(self.blocks).about(from, now.page);
        map.mark(first, self.blocks - first);
        if let Some(before) = &head.changed {
            map.add(before);
            map.from = before.from.min(from);
        }
        head.labels.write_map(&map, |_| ()).map_err(Failure::of(Side::Log))?;
        head.changed = Some(map);
        Ok(())
    }
}

impl Backup {
    /// Whether the new areas leave the old checksums alone, and have room for zeros for all that is new.
    fn has_room_to_enlarge(&self, blocks: u64) -> bool {
        let before = self.label().blocks;
        let areas = Self::areas(blocks, self.label().device_blocks);
        blocks >= before + sums_area_blocks(before) && (blocks - before).div_ceil(PAGE_ZEROS_MOST) < areas.meta_blocks
    }

    /// The same device with areas for so many blocks; nothing is written.
    fn of_blocks(&self, blocks: u64) -> Backup {
        let mut label = self.label().clone();
        (label.blocks, label.areas) = (blocks, Self::areas(blocks, label.device_blocks));
        Self::labelled(Labelled { device: Arc::clone(&self.labels.device), label })
    }

    /// Writes what a larger one needs for the same state with zeros behind it.
    fn stage_enlarged(&self, larger: &mut Backup) -> Result<Staging, Error> {
        let before = self.label().blocks;
        self.write_sums_of(larger)?;
        let mut stager = Stager::of(larger);
        stager.append_zeros(&larger.rings, before, larger.label().blocks - before)?;
        let (pages, sum) = stager.finish(&larger.rings)?;
        larger.rings.device.flush()?;
        Ok(Staging { to: self.label().applied, pages, sum, copied: 0 })
    }

    /// No state, until it is copied whole.
    fn begin_anew(&mut self, blocks: u64) -> Result<(), Error> {
        let device = self.labels.device.name();
        tracing::warn!(device, "the backup has no state until it is copied anew, as large as the set is now");
        let mut larger = self.of_blocks(blocks);
        larger.labels.write(|label| {
            (label.state, label.staging, label.map) = (State::Copying, Staging::default(), 0);
            // That of no log, so that it is copied whole.
            label.log = Uuid::NONE;
        })?;
        *self = larger;
        Ok(())
    }

    /// Writes the checksums that this one has, and those of zeros behind, where a larger one has them. Where they are damaged, there are none.
    fn write_sums_of(&self, larger: &mut Backup) -> Result<(), Error> {
        let mut reader = SumsReader::default();
        let (groups, blocks) = (self.groups(), self.label().blocks);
        for first in (0..larger.groups()).step_by(RUN_BLOCKS as usize) {
            let mut bytes = Vec::new();
            for group in first..larger.groups().min(first + RUN_BLOCKS) {
                let mut sums = match group < groups {
                    true => reader.read_or_none(self, group)?,
                    false => Box::new([0; GROUP_BLOCKS as usize]),
                };
                let (of_group, count) = larger.group_blocks(group);
                for (address, sum) in (of_group..of_group + count).zip(sums.iter_mut()) {
                    if address >= blocks {
                        *sum = super::chunk::zero_sum();
                    }
                }
                larger.doubtful.see(group, of_group, &sums[..count as usize]);
                bytes.extend_from_slice(&sums::encode(larger.sums_block(group), &sums));
            }
            larger.rings.device.write(larger.sums_block(first), &[IoSlice::new(&AlignedBuf::copy_of(&bytes))])?;
        }
        Ok(())
    }
}
