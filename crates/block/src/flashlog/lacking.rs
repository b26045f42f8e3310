//! What the backup does not have, for NBD clients that ask: by region, so more than there is, never less.

use super::append::regions_between;
use super::device::Flashlog;
use super::format::{Label, Point, Regions};
use crate::Error;
use crate::nbd::{Context, Extent, Extents, NOT_BACKED_UP, ZERO};

/// What was found out when it was asked for last.
pub(super) struct Lacking {
    /// The log is kept from here on, with the map of this number, if there is one, for what was before.
    from: Point,
    map: Option<u64>,
    /// What is in the log up to here.
    to: Point,
    regions: Regions,
}

fn map_of(label: &Label) -> Option<u64> {
    label.has_map.then_some(label.map)
}

impl Flashlog {
    /// What NBD clients may ask of a set.
    pub(super) const CONTEXTS: &[Context] = &[Context::Allocation, Context::BackUp];

    /// Brings up to now what is known of the blocks that the backup lacks. `None`: there is no backup that could have any.
    fn lacking<T>(&self, ask: impl FnOnce(&Regions) -> T) -> Result<Option<T>, Error> {
        let mut known = self.lacking.lock();
        // What is only in memory is to be seen as well. There is an answer also if that fails; the set has stopped then, as after a write.
        if self.latch.cause().is_none() {
            let appended = self.append(&mut self.head.lock(), false);
            let _ = self.heed(appended);
        }
        let (label, keep, next, changed) = {
            let head = self.head.lock();
            let Some(keep) = head.keep else { return Ok(None) };
            let label = head.labels.label.clone();
            let is_known = known.as_ref().is_some_and(|known| known.from == keep && known.map == map_of(&label));
            let changed = if is_known { None } else { Some(head.changed.clone()) };
            (label, keep, head.next, changed)
        };
        let mut now = match (changed, known.take()) {
            (None, Some(known)) => known,
            (changed, _) => {
                let regions = changed.flatten().unwrap_or_else(|| Regions::none(self.blocks));
                Lacking { from: keep, map: map_of(&label), to: keep, regions }
            }
        };
        if now.to.page < next.page {
            // What is let go of meanwhile looks like damage, and then all counts as changed.
            let (regions, _) = regions_between(&self.rings, &label, now.to, next)?;
            now.regions.add(&regions);
            now.to = next;
        }
        let answer = ask(&now.regions);
        *known = Some(now);
        Ok(Some(answer))
    }
}

impl Extents for Flashlog {
    fn contexts(&self) -> &[Context] {
        Self::CONTEXTS
    }

    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, Error> {
        if context != Context::BackUp {
            return Ok(self.allocated(first, most));
        }
        let run = self.lacking(|regions| regions.next_run(first, most))?;
        Ok(match run {
            None => Extent { blocks: most, flags: NOT_BACKED_UP },
            Some(Some((at, count))) if at == first => Extent { blocks: count, flags: NOT_BACKED_UP },
            Some(Some((at, _))) => Extent { blocks: most.min(at - first), flags: 0 },
            Some(None) => Extent { blocks: most, flags: 0 },
        })
    }

    fn zeros_ahead(&self, first: u64, most: u64) -> u64 {
        let Extent { blocks, flags } = self.allocated(first, most);
        if flags & ZERO == 0 { 0 } else { blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flashlog::{Create, Mode, Options, Uuid, create};
    use crate::{BLOCK_SIZE, Device, MemoryDevice};
    use std::io::IoSlice;
    use std::sync::Arc;

    /// First block and count of all that is not backed up.
    fn lacking(flashlog: &Flashlog) -> Vec<(u64, u64)> {
        let (mut at, mut all) = (0, Vec::new());
        while at < flashlog.blocks() {
            let Extent { blocks, flags } = flashlog.extent(Context::BackUp, at, flashlog.blocks() - at).unwrap();
            if flags != 0 {
                all.push((at, blocks));
            }
            at += blocks;
        }
        all
    }

    #[test]
    fn it_is_what_was_written_since_the_backup_also_after_an_opening_and_when_the_log_was_full() {
        for mode in [Mode::Synchronous, Mode::Asynchronous] {
            let [main, log, backup] = [1024, 1024, 2048].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
            let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
            create(main.clone(), log.clone(), &names).unwrap();
            let options = Options { mode, ..Options::default() };
            let open = || Flashlog::open(main.clone(), log.clone(), &options).unwrap().0;
            let mut flashlog = open();
            let write = |flashlog: &Flashlog, first| {
                flashlog.write(first, &[IoSlice::new(&[7; 3 * BLOCK_SIZE])]).unwrap();
            };
            assert_eq!(lacking(&flashlog), [(0, 768)], "there is no backup");
            flashlog.create_backup(backup.clone(), Uuid([4; 16])).unwrap();
            flashlog.backup(backup.clone()).unwrap();
            assert_eq!(lacking(&flashlog), []);
            // Also what is in memory.
            write(&flashlog, 30);
            assert_eq!(lacking(&flashlog), [(30, 3)]);
            write(&flashlog, 760);
            flashlog.flush().unwrap();
            assert_eq!(lacking(&flashlog), [(30, 3), (760, 3)]);
            drop(flashlog);
            flashlog = open();
            assert_eq!(lacking(&flashlog), [(30, 3), (760, 3)]);
            flashlog.backup(backup.clone()).unwrap();
            assert_eq!(lacking(&flashlog), []);
            // More than the log has room for, all in the same region.
            write(&flashlog, 500);
            for _ in 0..400 {
                write(&flashlog, 0);
                flashlog.flush().unwrap();
            }
            assert_eq!(lacking(&flashlog), [(0, 3), (500, 3)]);
            flashlog.backup(backup).unwrap();
            assert_eq!(lacking(&flashlog), []);
        }
    }
}
