//! Giving free space back to what is below: discards of blocks that neither the last recovery point nor the intent log needs.
//!
//! A discard is done with the allocator locked: the block cannot be handed out, let alone written, before it is over. Free
//! blocks are those that the last recovery point does not name ([`crate::alloc`]), so a power cut in the middle costs
//! nothing. Recovery points before the last one may lose blocks, as they do when blocks are used again.

use crate::module::Module;
use holdfast_object::Result;

/// Blocks discarded under one lock: 4 MiB.
const RUN_MAX: u64 = 1024;

impl Module {
    /// See [`holdfast_object::ObjectStore::trim`].
    pub(crate) fn trim_free(&self) -> Result<u64> {
        self.disk().check_writable()?;
        // What the log names is claimed first.
        self.claim_first()?;
        let (mut at, mut trimmed) = (0, 0);
        loop {
            let alloc = self.base.alloc.lock();
            let Some((first, count)) = alloc.free_run(at, RUN_MAX) else { return Ok(trimmed) };
            self.disk().discard(first, count)?;
            at = first + count;
            trimmed += count;
        }
    }
}
