//! Reading metadata ahead: whoever goes through an object table or a large file from one end to the other needs the next
//! block of the tree soon, and neighbours in a tree lie next to each other on the device.

use crate::base::Base;
use crate::block_pool::PooledBlock;
use crate::disk::{Block, RawBlock};
use crate::meta_block::{MetaBlock, NodeKey, verify};
use crate::tree::Trees;
use holdfast_guard as guard;
use holdfast_integrity::Unverified;
use holdfast_object::Result;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Most blocks read at once: 128 KiB.
const RUN_MAX: usize = 32;

impl Trees {
    /// [`Trees::fetch`] for a child of `parent` that is not in memory. If the child before it is, the ones behind it that
    /// follow on the device are read along. They are only a hope: what is wrong with one of them shows when it is
    /// fetched.
    pub(crate) fn fetch_ahead(&self, base: &Base, key: NodeKey, parent: &MetaBlock) -> Result<Arc<MetaBlock>> {
        let (_, slot) = key.parent();
        let pointer = parent.pointer(slot);
        let sibling = |distance: usize| NodeKey { index: key.index + distance as u64, ..key };
        let before = slot.checked_sub(1).map(|slot| (NodeKey { index: key.index - 1, ..key }, parent.pointer(slot)));
        if before.is_none_or(|(key, pointer)| !self.is_in_memory(base, key, &pointer)) {
            return self.fetch(base, key, &pointer);
        }
        let follows = |distance: &usize| {
            let next = parent.pointer(slot + distance);
            !next.is_hole()
                && Some(next.address[0]) == pointer.address[0].checked_add(*distance as u64)
                && !self.is_in_memory(base, sibling(*distance), &next)
        };
        let slots_left = crate::format::POINTERS as usize - slot;
        let count = 1 + (1..RUN_MAX.min(slots_left)).take_while(follows).count();
        let mut blocks: Vec<PooledBlock> = (0..count).map(|_| Block::zeroed()).collect();
        let mut slices: Vec<IoSliceMut<'_>> = blocks.iter_mut().map(|block| IoSliceMut::new(&mut block.0)).collect();
        if count > 1 && base.disk.read(pointer.address[0], &mut slices).is_ok() {
            guard::open(|| {
                for (distance, bytes) in blocks.into_iter().enumerate() {
                    let (key, pointer) = (sibling(distance), parent.pointer(slot + distance));
                    let Ok(bytes) = verify(Unverified::new(RawBlock(bytes)), key, &pointer) else { continue };
                    let mut block = MetaBlock::clean(bytes, key, &pointer, base.disk.metadata);
                    if block.settle(&base.disk, key, pointer.address[0]).is_ok() {
                        base.keep(key, pointer.address[0], pointer.birth_phys, Arc::new(block));
                    }
                }
            });
        }
        self.fetch(base, key, &pointer)
    }
}
