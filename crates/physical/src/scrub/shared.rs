//! Blocks that several files have, so that each is read once in a scrub.
//!
//! A bit for each block that has more than one reference and was found good. One that is bad has none: it is read for each
//! file that has it, so that each is told. What is written to a block that has its bit, after it was freed, was verified when it
//! was written.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Blocks of a chunk: 4 KiB of bits.
const CHUNK_BLOCKS: u64 = 32_768;
/// Most chunks: 32 MiB, for 1 TiB of blocks. What is shared beyond that is read as often as files have it.
const CHUNKS_MAX: usize = 8192;

type Chunk = Box<[u64; CHUNK_BLOCKS as usize / 64]>;

/// In memory only: a scrub that goes on after a restart reads shared blocks once more.
#[derive(Default)]
pub(crate) struct SharedSeen(Mutex<FxHashMap<u64, Chunk>>);

/// Chunk, word and bit of a block.
fn place(address: u64) -> (u64, usize, u64) {
    let at = address % CHUNK_BLOCKS;
    (address / CHUNK_BLOCKS, (at / 64) as usize, 1 << (at % 64))
}

impl SharedSeen {
    /// Notes a block; gives whether that was new. With no room for it, it is always.
    pub(super) fn insert(&self, address: u64) -> bool {
        let (chunk, word, bit) = place(address);
        let mut chunks = self.0.lock();
        if chunks.len() == CHUNKS_MAX && !chunks.contains_key(&chunk) {
            return true;
        }
        let bits = chunks.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_BLOCKS as usize / 64]));
        let is_new = bits[word] & bit == 0;
        bits[word] |= bit;
        is_new
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        let (chunk, word, bit) = place(address);
        self.0.lock().get(&chunk).is_some_and(|bits| bits[word] & bit != 0)
    }

    /// Another scrub begins, or this one is over.
    pub(super) fn clear(&self) {
        *self.0.lock() = FxHashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart_and_memory_is_bounded() {
        let seen = SharedSeen::default();
        let some = [0, 1, 63, 64, CHUNK_BLOCKS - 1, CHUNK_BLOCKS, 1 << 47];
        assert!(some.iter().all(|&address| seen.insert(address) && seen.contains(address)));
        assert!(some.iter().all(|&address| !seen.insert(address)));
        assert!(!seen.contains(2) && !seen.contains(65) && !seen.contains(CHUNK_BLOCKS + 1));
        for chunk in 0..2 * CHUNKS_MAX as u64 {
            seen.insert(chunk * CHUNK_BLOCKS + 7);
        }
        assert_eq!(seen.0.lock().len(), CHUNKS_MAX);
        let beyond = 2 * CHUNKS_MAX as u64 * CHUNK_BLOCKS;
        assert!(seen.insert(beyond) && seen.insert(beyond) && !seen.contains(beyond));
        seen.clear();
        assert!(!seen.contains(0) && seen.insert(beyond) && !seen.insert(beyond));
    }
}
