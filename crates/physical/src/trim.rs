//! Giving free space back to what is below: discards of blocks that neither the last recovery point nor the intent log needs. All of
//! them when asked, and, if the store was opened so, what a recovery point has freed as soon as it is durable.
//!
//! A discard is done with the allocator locked: the block cannot be handed out, let alone written, before it is over. Free
//! blocks are those that the last recovery point does not name ([`crate::alloc`]), so a power cut in the middle costs
//! nothing. Recovery points before the last one may lose blocks, as they do when blocks are used again.

use crate::module::Module;
use holdfast_object::Result;
use std::ops::Range;

/// Blocks discarded under one lock: 4 MiB.
const RUN_MAX: u64 = 1024;

impl Module {
    /// See [`holdfast_object::ObjectStore::trim`].
    pub(crate) fn trim_free(&self, within: Range<u64>) -> Result<u64> {
        self.disk().check_writable()?;
        // What the log names is claimed first.
        self.claim_first()?;
        self.discard_free(within)
    }

    /// Discards what the last recovery point has freed and nobody has been given since.
    pub(crate) fn discard_freed(&self, freed: &[Range<u64>]) {
        for run in freed {
            if let Err(error) = self.discard_free(run.clone()) {
                // Nothing depends on it.
                tracing::debug!(%error, "free blocks could not be discarded");
                return;
            }
        }
    }

    /// Discards what is free in a range; gives how many blocks.
    fn discard_free(&self, mut range: Range<u64>) -> Result<u64> {
        let mut discarded = 0;
        loop {
            let mut alloc = self.base.alloc.lock();
            let Some((first, count)) = alloc.free_run(range.clone(), RUN_MAX) else {
                self.base.check_alloc(&alloc)?;
                return Ok(discarded);
            };
            self.disk().discard(first, count)?;
            range.start = first + count;
            discarded += count;
        }
    }
}
