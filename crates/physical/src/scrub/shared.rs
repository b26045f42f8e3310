//! Blocks that several files have, so that each is read once in a scrub.
//!
//! A mark for each block that has more than one reference and was found good: of the checksums that it was verified with, so that a file
//! whose pointer has others is not taken for good. A block that is bad has no mark: it is read for each file that has it, so that each is told. What
//! is written to a block that has its mark, after it was freed, was verified when it was written.

use crate::base::Base;
use crate::format::{BlockPointer, COUNTERS};
use crate::meta_block::MetaBlock;
use crate::tree::Trees;
use holdfast_integrity::crc64;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Blocks of a chunk: 4 KiB of marks.
const CHUNK_BLOCKS: u64 = 1024;
/// Most chunks: 32 MiB, for 32 GiB of blocks. What is shared beyond that is read as often as files have it.
const CHUNKS_MAX: usize = 8192;

/// A mark for each block; 0 for those that have none.
type Chunk = Box<[u32; CHUNK_BLOCKS as usize]>;

/// In memory only: a scrub that goes on after a restart reads shared blocks once more.
#[derive(Default)]
pub(crate) struct SharedSeen(Mutex<FxHashMap<u64, Chunk>>);

/// Chunk and index of a block.
fn place(address: u64) -> (u64, usize) {
    (address / CHUNK_BLOCKS, (address % CHUNK_BLOCKS) as usize)
}

/// Of the checksums in a pointer; not 0. Two different ones have the same mark once in 2^31.
fn mark(pointer: &BlockPointer) -> u32 {
    let sums = crc64(pointer.sums.primary.as_bytes()) ^ crc64(pointer.sums.secondary.as_bytes()).rotate_left(1);
    (sums ^ sums >> 32) as u32 | 1
}

impl SharedSeen {
    /// Notes that a block has the checksums of this pointer; gives whether that was new. With no room for it, it is always.
    pub(super) fn insert(&self, address: u64, pointer: &BlockPointer) -> bool {
        let (chunk, at) = place(address);
        let mut chunks = self.0.lock();
        if chunks.len() == CHUNKS_MAX && !chunks.contains_key(&chunk) {
            return true;
        }
        let marks = chunks.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_BLOCKS as usize]));
        std::mem::replace(&mut marks[at], mark(pointer)) != mark(pointer)
    }

    /// Whether the block was found to have the checksums of this pointer.
    pub(super) fn contains(&self, address: u64, pointer: &BlockPointer) -> bool {
        let (chunk, at) = place(address);
        self.0.lock().get(&chunk).is_some_and(|marks| marks[at] == mark(pointer))
    }

    /// Another scrub begins, or this one is over.
    pub(super) fn clear(&self) {
        *self.0.lock() = FxHashMap::default();
    }
}

/// How many references there are to blocks, asked for one after the other while the trees are held. Pages that are neighbours in a file
/// are so on the device, mostly: their counters are in one page of the table, which is looked up once for all of them, also if it cannot
/// be read.
pub(super) struct References<'a> {
    base: &'a Base,
    /// Those of the domain, which have the table.
    trees: &'a Trees,
    /// The page that was looked up last. None: its counters are 0, or cannot be read.
    last: Option<(u64, Option<Arc<MetaBlock>>)>,
}

impl<'a> References<'a> {
    pub(super) fn new(base: &'a Base, trees: &'a Trees) -> References<'a> {
        References { base, trees, last: None }
    }

    /// Whether more than one pointer names the block. If that cannot be read, it has been told, and what is shared is read more than once.
    pub(super) fn are_several(&mut self, address: u64) -> bool {
        let page = address / COUNTERS;
        let counters = match &self.last {
            Some((last, counters)) if *last == page => counters,
            _ => {
                let counters = self.trees.counters(self.base, page).unwrap_or(None);
                &self.last.insert((page, counters)).1
            }
        };
        counters.as_ref().is_some_and(|block| block.counter((address % COUNTERS) as usize) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::{Algorithm, Checksum, StoredSums};

    fn pointer(crc: u64) -> BlockPointer {
        let sums = StoredSums::of(Checksum::from_number(Algorithm::Crc64Nvme, crc));
        BlockPointer { sums, ..BlockPointer::HOLE }
    }

    #[test]
    fn blocks_are_told_apart_and_memory_is_bounded() {
        let (seen, one) = (SharedSeen::default(), pointer(1));
        let some = [0, 1, 63, 64, CHUNK_BLOCKS - 1, CHUNK_BLOCKS, 1 << 47];
        assert!(some.iter().all(|&address| seen.insert(address, &one) && seen.contains(address, &one)));
        assert!(some.iter().all(|&address| !seen.insert(address, &one)));
        assert!([2, 65, CHUNK_BLOCKS + 1].iter().all(|&address| !seen.contains(address, &one)));
        for chunk in 0..2 * CHUNKS_MAX as u64 {
            seen.insert(chunk * CHUNK_BLOCKS + 7, &one);
        }
        assert_eq!(seen.0.lock().len(), CHUNKS_MAX);
        let beyond = 2 * CHUNKS_MAX as u64 * CHUNK_BLOCKS;
        assert!(seen.insert(beyond, &one) && seen.insert(beyond, &one) && !seen.contains(beyond, &one));
        seen.clear();
        assert!(!seen.contains(0, &one) && seen.insert(beyond, &one) && !seen.insert(beyond, &one));
    }

    #[test]
    fn a_block_that_was_good_for_one_file_is_not_for_a_pointer_with_other_checksums() {
        let seen = SharedSeen::default();
        seen.insert(5, &pointer(1));
        for bit in 0..64 {
            assert!(!seen.contains(5, &pointer(1 ^ 1 << bit)), "bit {bit}");
        }
        let mut other = pointer(1);
        other.sums.secondary = Checksum::from_number(Algorithm::Xor64, 1);
        assert!(seen.contains(5, &pointer(1)) && !seen.contains(5, &other));
    }
}
