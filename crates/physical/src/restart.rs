//! Beginning an epoch anew, when what its recovery point would be made of has gone bad in memory.
//!
//! The last recovery point is on the device, and the layer above has all that is newer. So what is known of the device is read again, and
//! that layer applies the epoch once more (*High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST
//! 2017, §3, does so by a failover to another machine). Blocks of the failed attempt are free again; those that were written ahead are not,
//! as the intent log names them.
//!
//! What goes bad again and again is memory that cannot be worked with: then the store stays at its last recovery point.

use crate::module::{Module, new_alloc};
use crate::open::{load_bitmap, load_system};
use crate::tree::Trees;
use holdfast_object::{Error, Place, Result};

/// Failures in a row after which an epoch is not begun anew.
const FAILURES_MAX: u64 = 3;

impl Module {
    /// See [`holdfast_object::ObjectStore::begin_anew`].
    pub(crate) fn begin_epoch_anew(&self) -> Result<()> {
        let mut committing = self.committing.lock();
        let Some(why) = self.disk().given_up() else { return Ok(()) };
        self.disk().check_writable()?;
        self.ambush.found(&why);
        // Nobody appends to the log, reads pages that have been found, or looks into trees meanwhile. Who writes ahead has blocks from the
        // allocator before it is taken over, or after.
        let _log = self.log.lock();
        let _gate = self.gate.write();
        let mut trees = self.trees.write();
        let outcome = if committing.restarts.get() + 1 < FAILURES_MAX {
            self.last_recovery_point()
                .map_err(|error| format!("{why}; and the last recovery point cannot be read again: {error}"))
        } else {
            Err(format!("{why}; it failed {FAILURES_MAX} times in a row"))
        };
        match outcome {
            Ok(last) => {
                *trees = last;
                committing.applied.set(0);
                committing.prepared = None;
                committing.restarts.add(1);
                self.disk().counters.restarted();
                self.disk().begun_anew();
                let (epoch, attempt) = (self.epoch(), committing.restarts.get());
                tracing::warn!(%why, epoch, attempt, "the next recovery point is begun anew from the last one");
                Ok(())
            }
            Err(reason) => {
                let advice = "unmount, have the memory tested (or report what is called a logic bug), and mount again; \
                              the last recovery point is sound";
                let reason = format!("{reason}: {advice}");
                tracing::error!(%reason, "the store is read-only from now on");
                self.disk().latch(reason.clone());
                Err(Error::ReadOnly(reason))
            }
        }
    }

    /// What a store that was opened just now would know, but for what was promised and written ahead since.
    fn last_recovery_point(&self) -> Result<Trees> {
        let (label, superblock) = (self.label()?, self.superblock()?);
        let base = &self.base;
        // Whatever has gone bad there as well is not met again.
        base.cache.clear();
        let trees = load_system(base, &superblock)?;
        if let Some(error) = trees.kept.unreadable() {
            return Err(error.clone());
        }
        let mut fresh =
            new_alloc(&base.disk, &label, superblock.covered(&label), base.commit_order, base.clock.clone());
        load_bitmap(base, &mut fresh, &label, &superblock, &trees)?;
        let mut alloc = base.alloc.lock();
        fresh
            .take_over(&alloc)
            .map_err(|scribble| Error::Corrupt(Box::new(scribble.at(Place { address: None, ..base.disk.place(0) }))))?;
        *alloc = fresh;
        drop(alloc);
        trees.tell_kept(base);
        Ok(trees)
    }
}
