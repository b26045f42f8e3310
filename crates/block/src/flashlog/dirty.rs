//! Which regions the backup lacks, in memory: when the log is lost, nobody can be asked any more. Main that goes on alone gets it, so that
//! the backup needs no full copy with the next log.

use super::append::regions_between;
use super::chunk::Chunk;
use super::device::{Flashlog, Order};
use super::format::{Regions, Uuid};
use super::staging::Backup;
use std::sync::Arc;

/// An opening reads so many pages that are kept for the backup: 64 MiB, some seconds of a stick. If there are more, it is not known what
/// the backup lacks until it has been made again.
pub(super) const PAGES_MOST: u64 = 16_384;

/// What a backup lacks.
#[derive(Clone, Debug)]
pub(super) struct Dirty {
    /// The backup.
    pub(super) backup: Uuid,
    /// It is this label of the backup's that lacks it, or a later one.
    pub(super) sequence: u64,
    /// Everything that was written to the log since that label's state, and perhaps more.
    pub(super) regions: Regions,
}

/// The same while the set is in use.
#[derive(Default)]
pub(super) struct Marks {
    known: Option<Dirty>,
    /// What was written since the backup that is being made was begun.
    newer: Option<Regions>,
}

impl Marks {
    fn mark(&mut self, first: u64, count: u64) {
        for regions in self.known.iter_mut().map(|known| &mut known.regions).chain(&mut self.newer) {
            regions.mark(first, count);
        }
    }
}

impl Flashlog {
    /// Finds out what the backup lacks of what is in the log. A log that cannot be read for it is no reason not to open the set, but the status
    /// tells of it.
    pub(super) fn find_dirty(&self) {
        let (label, keep, next, changed) = {
            let head = self.head.lock();
            (head.labels.label.clone(), head.keep, head.next, head.changed.clone())
        };
        let Some(keep) = keep.filter(|_| label.backup_sequence > 0) else { return };
        if next.page - keep.page > PAGES_MOST {
            let (device, pages) = (&*self.name, next.page - keep.page);
            tracing::info!(
                device,
                pages,
                "the log has so much for the backup that a new log would need all to be compared"
            );
            return;
        }
        match regions_between(&self.rings, &label, keep, next) {
            Ok((mut regions, damage)) => {
                damage.iter().for_each(|damage| self.note_damaged_log(damage));
                if let Some(changed) = &changed {
                    regions.add(changed);
                }
                let known = Dirty { backup: label.backup, sequence: label.backup_sequence, regions };
                self.dirty.lock().known = Some(known);
            }
            Err(error) => self.note_damaged_log(&error.into()),
        }
    }

    /// What is about to come to the log is not on the backup.
    pub(super) fn mark_dirty(&self, batch: &[(u64, Arc<Chunk>)]) {
        let mut marks = self.dirty.lock();
        for (first, chunk) in batch {
            marks.mark(*first, chunk.covered_blocks());
        }
    }

    /// Before a backup asks how far the log is: what comes from now on it may lack when it is done.
    pub(super) fn begin_clean(&self) {
        self.dirty.lock().newer = Some(Regions::none(self.blocks));
    }

    /// The log is kept for another backup, of which nothing is known.
    pub(super) fn forget_dirty(&self) {
        self.dirty.lock().known = None;
    }

    /// A backup is done, and the log's label knows which of its labels says so.
    pub(super) fn end_clean(&self, backup: &Backup) {
        let (sequence, backup) = (backup.label().sequence, backup.label().backup);
        let mut marks = self.dirty.lock();
        marks.known = marks.newer.take().map(|regions| Dirty { backup, sequence, regions });
    }

    /// What the backup lacks of what has come to the log, if that is known.
    pub(super) fn dirty(&self) -> Option<Dirty> {
        let known = self.dirty.lock().known.clone();
        match self.options.order {
            Order::ForgetsDirty => known.map(|known| Dirty { regions: Regions::none(self.blocks), ..known }),
            _ => known,
        }
    }
}
