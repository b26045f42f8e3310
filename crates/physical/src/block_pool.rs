//! Memory for single blocks: buffers of what comes from a device, and is verified before it becomes metadata ([`crate::locked_block`] has the memory of
//! that), and of what goes there.
//!
//! A general allocator wastes about half of the memory when it is asked for 4096 bytes aligned to 4096: what it notes of each
//! allocation lies before it, so that two of them are never neighbours (measured with glibc 2.36: 300,000 files made and looked up
//! cost 328 MiB instead of 120). Blocks are therefore cut from slabs without gaps. A freed block is kept for the next one; slabs are
//! not given back, so the pool is as large as the most blocks that were ever in use at once.
//!
//! Invariant: a block is either in `FREE` or owned by exactly one [`PooledBlock`].

use crate::disk::Block;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Blocks in a slab: 256 KiB.
const SLAB_BLOCKS: usize = 64;

/// A block that nobody owns.
struct Free(NonNull<Block>);

// SAFETY: the memory behind it belongs to nobody else, and no thread is special to it.
unsafe impl Send for Free {}

static FREE: Mutex<Vec<Free>> = Mutex::new(Vec::new());

/// A block of its own, aligned for direct I/O; a `Box` from the pool.
pub(crate) struct PooledBlock {
    start: NonNull<Block>,
}

// SAFETY: it owns its memory exclusively, as a box does, and bytes have no thread affinity.
unsafe impl Send for PooledBlock {}
// SAFETY: shared access only reads.
unsafe impl Sync for PooledBlock {}

impl PooledBlock {
    pub(crate) fn zeroed() -> PooledBlock {
        let mut block = PooledBlock::take();
        block.0.fill(0);
        block
    }

    /// With whatever bytes the last owner left.
    fn take() -> PooledBlock {
        let mut free = FREE.lock();
        if free.is_empty() {
            let layout = Layout::array::<Block>(SLAB_BLOCKS).expect("the size of a slab");
            // SAFETY: the layout's size is not zero.
            let slab = unsafe { alloc_zeroed(layout) }.cast::<Block>();
            let Some(slab) = NonNull::new(slab) else { handle_alloc_error(layout) };
            // SAFETY: all of them lie within the slab, which is never freed.
            free.extend((0..SLAB_BLOCKS).map(|at| Free(unsafe { slab.add(at) })));
        }
        PooledBlock { start: free.pop().expect("a slab was added").0 }
    }
}

impl Drop for PooledBlock {
    fn drop(&mut self) {
        FREE.lock().push(Free(self.start));
    }
}

impl Deref for PooledBlock {
    type Target = Block;

    fn deref(&self) -> &Block {
        // SAFETY: initialised memory of a slab, aligned, owned by self alone (the module's invariant).
        unsafe { self.start.as_ref() }
    }
}

impl DerefMut for PooledBlock {
    fn deref_mut(&mut self) -> &mut Block {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { self.start.as_mut() }
    }
}

impl Clone for PooledBlock {
    fn clone(&self) -> PooledBlock {
        let mut copy = PooledBlock::take();
        copy.0.copy_from_slice(&self.0);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_are_apart_aligned_and_zeroed_when_used_again() {
        for round in 0..3 {
            let mut blocks: Vec<PooledBlock> = (0..3 * SLAB_BLOCKS).map(|_| PooledBlock::zeroed()).collect();
            let addresses: BTreeSet<usize> = blocks.iter().map(|block| block.0.as_ptr().addr()).collect();
            assert_eq!(addresses.len(), blocks.len(), "round {round}");
            assert!(addresses.iter().all(|address| address.is_multiple_of(4096)));
            assert!(blocks.iter().all(|block| block.0 == [0; 4096]));
            blocks.iter_mut().enumerate().for_each(|(at, block)| block.0.fill(at as u8 + 1));
            let copies = blocks.clone();
            blocks.iter_mut().for_each(|block| block.0.fill(0xff));
            assert!(copies.iter().enumerate().all(|(at, block)| block.0 == [at as u8 + 1; 4096]));
        }
    }

    #[test]
    fn threads_share_the_pool() {
        std::thread::scope(|scope| {
            for thread in 1..5_u8 {
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let mut block = PooledBlock::zeroed();
                        block.0.fill(thread);
                        let copy = block.clone();
                        assert!(block.0 == [thread; 4096] && copy.0 == [thread; 4096]);
                    }
                });
            }
        });
    }
}
