//! Blocks that the epoch being built has changed. As clean ones, they are verified after a second before something is used of them: it may be
//! long until the recovery point before which all of them are.

use crate::base::{Base, LOOK_AGAIN_MS};
use crate::format::BlockPointer;
use crate::guarded::Destination;
use crate::meta_block::{MetaBlock, NodeKey, OwnedBlock};
use crate::named::StoredCopies;
use crate::tree::{Change, Trees};
use holdfast_object::{DomainId, Epoch, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What such a block takes of memory beside what each has, to be protected: all that is known of it but the block itself and where it will be written.
pub const PROTECTION_BYTES_PER_CHANGED_BLOCK: usize =
    size_of::<Dirty>() - size_of::<Arc<MetaBlock>>() - size_of::<[u64; 2]>();

/// A block that the epoch being built has changed.
pub(crate) struct Dirty {
    pub(crate) block: OwnedBlock,
    /// Where it will be written, once that is known.
    pub(crate) address: Destination,
    /// For which epoch it was last changed legally. To be told alone: nothing is made of it.
    pub(crate) changed: Epoch,
    /// What the last recovery point has in its place. To be told alone as well.
    pub(crate) stored: StoredCopies,
    /// Of the clock: when it was last verified.
    checked_ms: AtomicU32,
}

impl Dirty {
    /// Of a block that is new, or has just been verified.
    pub(crate) fn new(block: OwnedBlock, changed: Epoch, stored: StoredCopies, now_ms: u32) -> Dirty {
        Dirty { block, address: Destination::NONE, changed, stored, checked_ms: AtomicU32::new(now_ms) }
    }

    /// The block, to take something from it; verified if it has not been for a second.
    ///
    /// # Errors
    /// [`holdfast_object::Error::GivenUp`]: somebody has written to it who must not. It cannot be read again, so no recovery point is made of it.
    #[inline]
    pub(crate) fn look(&self, base: &Base, key: NodeKey) -> Result<&OwnedBlock> {
        let now_ms = base.now_ms();
        if now_ms.wrapping_sub(self.checked_ms.load(Ordering::Relaxed)) < LOOK_AGAIN_MS {
            return Ok(&self.block);
        }
        self.verify(base, key, now_ms)
    }

    /// The same, verified just now.
    ///
    /// # Errors
    /// As [`Dirty::look`].
    pub(crate) fn look_now(&self, base: &Base, key: NodeKey) -> Result<&OwnedBlock> {
        self.verify(base, key, base.now_ms())
    }

    fn verify(&self, base: &Base, key: NodeKey, now_ms: u32) -> Result<&OwnedBlock> {
        self.block.verify(key).map_err(|scribble| base.give_up_block(scribble, key, self))?;
        self.checked(now_ms);
        Ok(&self.block)
    }

    /// It has been verified.
    pub(crate) fn checked(&self, now_ms: u32) {
        self.checked_ms.store(now_ms, Ordering::Relaxed);
    }
}

impl Trees {
    /// Asserts the invariants that hold between any two operations.
    pub(crate) fn check(&self) {
        for key in self.dirty.keys() {
            let object = key.object_key();
            let record = match object.domain {
                DomainId::SYSTEM => &self.system[&key.object],
                _ => match &self.changed[&object] {
                    Change::Present(record) => record,
                    Change::Deleted => panic!("{key:?} is dirty, its object deleted"),
                },
            };
            let pointer = if key.level == record.levels {
                assert_eq!(key.index, 0);
                record.root
            } else {
                let (parent, slot) = key.parent();
                self.dirty[&parent].block.pointer(slot)
            };
            assert_eq!(pointer, BlockPointer::PENDING, "{key:?}");
        }
    }
}
