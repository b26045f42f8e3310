//! Beginning an epoch anew, when what its recovery point would be made of has gone bad in memory.
//!
//! The last recovery point is on the device, and the layer above has all that is newer. So what is known of the device is read again, and
//! that layer applies the epoch once more (*High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST
//! 2017, §3, does so by a failover to another machine). Blocks of the failed attempt are free again; those that were written ahead are not,
//! as the intent log names them.
//!
//! Who reads may be the first to meet a changed block that has gone bad, of which there is none to read again. He does not wait for who builds the
//! epoch, but takes it back: trees are those of the last recovery point then, which answer as well, as the layer above has all that is newer. Who
//! builds it is refused all of it until he begins it anew.
//!
//! What goes bad again and again is memory that cannot be worked with: then the store stays at its last recovery point, and takes no changes. Who
//! reads is answered by the trees of that point then, too, and by what the layer above has.

use crate::check::reach;
use crate::commit::Committing;
use crate::module::{Module, new_alloc};
use crate::open::{Bitmap, drop_bitmap, load_bitmap, load_reached, load_system};
use crate::tree::Trees;
use holdfast_object::{Corruption, Error, Place, Result};

/// Failures in a row after which an epoch is not begun anew. Any of them: blocks lie elsewhere in memory each time, and the epoch has other
/// changes, so what is the same failure does not look so; and who waits for a sync waits through all of them.
const FAILURES_MAX: u64 = 3;

impl Module {
    /// See [`holdfast_object::ObjectStore::begin_anew`].
    pub(crate) fn begin_epoch_anew(&self) -> Result<()> {
        let mut committing = self.committing.lock();
        let Some(why) = self.disk().given_up() else { return Ok(()) };
        self.disk().check_writable()?;
        if !committing.is_taken_back {
            self.take_back(&mut committing, &why)?;
        }
        committing.is_taken_back = false;
        self.disk().begun_anew();
        Ok(())
    }

    /// For who reads and has met what cannot be read again: the trees are those of the last recovery point afterwards. The epoch being built stays
    /// given up.
    ///
    /// # Errors
    /// As [`Module::begin_epoch_anew`].
    pub(crate) fn take_back_epoch(&self) -> Result<()> {
        let mut committing = self.committing.lock();
        match self.disk().given_up() {
            Some(why) if !committing.is_taken_back => {
                self.disk().check_writable()?;
                // It is told what has gone bad. If that is in what others look through, it is right again by now.
                let _ = self.trees.read().verify_all(&self.base);
                self.take_back(&mut committing, &why)?;
                committing.is_taken_back = true;
                Ok(())
            }
            // Somebody has been quicker.
            _ => Ok(()),
        }
    }

    fn take_back(&self, committing: &mut Committing, why: &Corruption) -> Result<()> {
        self.disk().ambush.found(why);
        // Nobody appends to the log, reads pages that have been found, or looks into trees meanwhile. Who writes ahead has blocks from the
        // allocator before it is taken over, or after.
        let _log = self.log.lock();
        let _gate = self.gate.write();
        let mut trees = self.trees.write();
        let outcome = self
            .last_recovery_point()
            .map_err(|error| {
                let then = "see what holdfast check says: the last recovery point cannot be read again";
                (then, format!("{error}; it was to be read as {why}"))
            })
            .and_then(|last| {
                *trees = last;
                committing.applied.set(0);
                committing.pages.clear();
                committing.prepared = None;
                match committing.restarts.get() + 1 < FAILURES_MAX {
                    true => Ok(()),
                    false => {
                        let then = "have the memory tested (or report what is called a logic bug), and mount again; the last recovery point is sound";
                        Err((then, format!("{why}; it failed {FAILURES_MAX} times in a row")))
                    }
                }
            });
        match outcome {
            Ok(()) => {
                committing.restarts.add(1);
                self.disk().counters.restarted();
                let (epoch, attempt) = (self.epoch(), committing.restarts.get());
                tracing::warn!(%why, epoch, attempt, "the next recovery point is begun anew from the last one");
                Ok(())
            }
            Err((then, reason)) => {
                // First of all what to do: the rest is long.
                let first = "copy elsewhere what was written last and not synced, which only memory has; then unmount";
                let reason = format!("{first}, {then}. Why: {reason}");
                tracing::error!(%reason, "the store is read-only from now on");
                self.disk().latch(reason.clone());
                Err(Error::ReadOnly(reason))
            }
        }
    }

    /// What a store that was opened just now would know, but for what was promised and written ahead since. A bitmap that cannot be read is rebuilt as it
    /// is then: of a store that was opened so, the last recovery point has none that can be. That reads all trees, while nobody else can read, log or look into
    /// a tree.
    fn last_recovery_point(&self) -> Result<Trees> {
        let (label, superblock) = (self.label()?, self.superblock()?);
        let base = &self.base;
        // Whatever has gone bad there as well is not met again.
        base.cache.clear();
        let mut trees = load_system(base, &superblock)?;
        if let Some(error) = trees.kept.unreadable() {
            return Err(error.clone());
        }
        let mut fresh =
            new_alloc(&base.disk, &label, superblock.covered(&label), base.commit_order, base.clock.clone());
        let unrepaired = base.disk.counters.unrepaired_blocks();
        let loaded = load_bitmap(base, &mut fresh, &label, &superblock, &trees);
        if let Err(error) = &loaded {
            tracing::error!(%error, "the allocation bitmap cannot be used: it is rebuilt from the trees");
            fresh.grow(label.blocks);
            let reached = reach(base, &label, &superblock, &trees, Bitmap::AsStored)?;
            load_reached(base, &mut fresh, &label, &mut trees, &reached)?;
            base.disk.counters.rebuilt(superblock.epoch, unrepaired);
        }
        let mut alloc = base.alloc.lock();
        fresh
            .take_over(&alloc)
            .map_err(|scribble| Error::Corrupt(Box::new(scribble.at(Place { address: None, ..base.disk.place(0) }))))?;
        *alloc = fresh;
        drop(alloc);
        if loaded.is_err() {
            drop_bitmap(base, &mut trees)?;
        }
        trees.tell_kept(base);
        Ok(trees)
    }
}
