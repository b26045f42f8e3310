//! Clean metadata blocks in memory, bounded.

use crate::locked_block::Slot;
use crate::meta_block::{MetaBlock, NodeKey};
use holdfast_object::Epoch;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

const SHARDS: usize = 16;

/// Which block, and its first address: a snapshot has the version of a block that it keeps, the domain another one elsewhere.
pub(crate) type Version = (NodeKey, u64);

struct Entry {
    block: Arc<MetaBlock>,
    /// When its bytes were last verified, or written: of milliseconds the lowest bits, which come again after 49 days.
    checked_ms: u32,
    /// For which epoch it was written: the lowest bits, with [`USED`]. To be told alone: nothing is made of it.
    birth: u32,
}

/// Of `birth`: used since the hand last came by.
const USED: u32 = 1 << 31;

const _: () = assert!(size_of::<Entry>() == 16, "each block in memory has one");

#[derive(Default)]
struct Shard {
    entries: FxHashMap<Version, Entry>,
    /// The clock: the place in memory of each block of `entries`, and some that are gone. Which version that is, the memory says itself.
    clock: VecDeque<Slot>,
}

/// Verified blocks by identity and address, so a block that has moved since is not found, and several versions of one are kept, of
/// the domain and of its snapshots. Whatever writes a block to an address puts it here, in the place of what was there before. The
/// least recently used go first, by the clock algorithm (Corbató 1968).
pub(crate) struct NodeCache {
    shards: Vec<Mutex<Shard>>,
    shard_blocks: usize,
}

impl NodeCache {
    /// Keeps at most `bytes` bytes of blocks, and at least 64 blocks.
    pub(crate) fn new(bytes: usize) -> NodeCache {
        let shard_blocks = (bytes / 4096 / SHARDS).max(4);
        NodeCache { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), shard_blocks }
    }

    fn shard(&self, key: &NodeKey) -> &Mutex<Shard> {
        let hash = rustc_hash::FxBuildHasher.hash_one(key);
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// A block, and when its bytes were last verified.
    pub(crate) fn get(&self, key: NodeKey, address: u64) -> Option<(Arc<MetaBlock>, u32)> {
        let mut shard = self.shard(&key).lock();
        let entry = shard.entries.get_mut(&(key, address))?;
        entry.birth |= USED;
        Some((entry.block.clone(), entry.checked_ms))
    }

    /// For which epoch a block was written, where the newest one is this. Right for the 2^31 before it, which at ten recovery points a second come in
    /// seven years.
    pub(crate) fn birth(&self, key: NodeKey, address: u64, newest: Epoch) -> Option<Epoch> {
        let birth = self.shard(&key).lock().entries.get(&(key, address))?.birth & !USED;
        let ago = (newest as u32 & !USED).wrapping_sub(birth) & !USED;
        newest.checked_sub(ago.into())
    }

    /// A block that [`NodeCache::get`] gave has been verified.
    pub(crate) fn checked(&self, key: NodeKey, address: u64, now_ms: u32) {
        if let Some(entry) = self.shard(&key).lock().entries.get_mut(&(key, address)) {
            entry.checked_ms = now_ms;
        }
    }

    /// Takes a block that was written for epoch `birth`, and has just been verified. Cheaper in a window, if it has not been at that address before.
    pub(crate) fn put(&self, key: NodeKey, address: u64, birth: Epoch, block: Arc<MetaBlock>, now_ms: u32) {
        let mut shard = self.shard(&key).lock();
        let Shard { entries, clock } = &mut *shard;
        let slot = block.put_address(address);
        let before = entries.insert((key, address), Entry { block, checked_ms: now_ms, birth: birth as u32 & !USED });
        if before.is_none_or(|before| before.block.slot_in_memory() != slot) {
            clock.push_back(slot);
        }
        while entries.len() > self.shard_blocks {
            let Some(oldest) = clock.pop_front() else { break };
            let version = oldest.identity();
            match entries.get_mut(&version) {
                // Another block is in this place by now, or the block in another.
                Some(entry) if entry.block.slot_in_memory() != oldest => {}
                Some(entry) if entry.birth & USED != 0 => {
                    entry.birth &= !USED;
                    clock.push_back(oldest);
                }
                _ => {
                    entries.remove(&version);
                }
            }
        }
    }

    /// Forgets a block and gives its bytes.
    pub(crate) fn take(&self, key: NodeKey, address: u64) -> Option<Arc<MetaBlock>> {
        let mut shard = self.shard(&key).lock();
        let entry = shard.entries.remove(&(key, address))?;
        if shard.clock.len() > 2 * shard.entries.len() + 16 {
            let Shard { entries, clock } = &mut *shard;
            let mut seen = FxHashSet::default();
            let is_here =
                |slot: &Slot| entries.get(&slot.identity()).is_some_and(|at| at.block.slot_in_memory() == *slot);
            clock.retain(|slot| is_here(slot) && seen.insert(*slot));
        }
        Some(entry.block)
    }

    /// All blocks that there are, in no order.
    pub(crate) fn versions(&self) -> Vec<Version> {
        self.shards.iter().flat_map(|shard| shard.lock().entries.keys().copied().collect::<Vec<_>>()).collect()
    }

    /// Forgets all blocks.
    pub(crate) fn clear(&self) {
        self.shards.iter().for_each(|shard| *shard.lock() = Shard::default());
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta_block::{MetadataProtection, OwnedBlock};

    fn key(index: u64) -> NodeKey {
        NodeKey { domain: 1, object: 1, level: 1, index }
    }

    fn block(index: u64) -> Arc<MetaBlock> {
        OwnedBlock::new(key(index), MetadataProtection::Rolling).into_shared()
    }

    #[test]
    fn bounded_and_by_address() {
        let cache = NodeCache::new(64 * 4096);
        for index in 0..1000 {
            cache.put(key(index), index + 1, 1, block(index), 0);
        }
        assert!(cache.len() <= 64);
        assert!(cache.get(key(999), 1000).is_some());
        assert!(cache.get(key(999), 1001).is_none(), "another address is another block");
        cache.put(key(999), 7, 1, block(999), 0);
        assert!(cache.get(key(999), 1000).is_some() && cache.get(key(999), 7).is_some(), "both versions are there");
        assert!(cache.take(key(999), 1000).is_some());
        assert!(cache.get(key(999), 1000).is_none() && cache.get(key(999), 7).is_some());
    }

    /// The block of a version is another one then, and so is its place in memory.
    #[test]
    fn a_block_that_replaces_its_version_goes_in_its_turn() {
        let cache = NodeCache::new(0);
        let shard_of = |index| std::ptr::from_ref(cache.shard(&key(index)));
        let others: Vec<u64> = (1..).filter(|index| shard_of(*index) == shard_of(0)).take(4).collect();
        let before = block(0);
        cache.put(key(0), 1, 1, before.clone(), 0);
        cache.put(key(0), 1, 1, block(0), 0);
        for index in others {
            cache.put(key(index), index + 1, 1, block(index), 0);
        }
        assert!(cache.get(key(0), 1).is_none(), "the oldest is still there");
        assert_eq!(cache.len(), 4);
        drop(before);
    }

    #[test]
    fn it_is_known_for_which_epoch_a_block_was_written() {
        let cache = NodeCache::new(0);
        let epochs = [(7, 7), (1, 9), (u64::from(USED) - 1, u64::from(USED) + 5), (5 << 33, (5 << 33) + 1)];
        for (birth, newest) in epochs {
            cache.put(key(0), 1, birth, block(0), 0);
            assert_eq!(cache.birth(key(0), 1, newest), Some(birth));
            cache.get(key(0), 1).unwrap();
            assert_eq!(cache.birth(key(0), 1, newest), Some(birth), "used");
        }
        assert_eq!(cache.birth(key(0), 2, 9), None);
    }

    #[test]
    fn put_and_take_again_and_again() {
        let cache = NodeCache::new(0);
        for round in 0..10_000 {
            cache.put(key(round % 7), round, 1, block(round % 7), 0);
            cache.take(key(round % 7), round);
        }
        assert!(cache.shards.iter().all(|shard| shard.lock().clock.len() < 100));
    }
}
