//! Blocks in memory, with the checksums that they had when they came, or the news that they are zeros.

use super::format::PAGE_ZEROS_MOST;
use crate::{AlignedBuf, BLOCK_SIZE};
use holdfast_integrity::{Algorithm, Crc64, crc64};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::{Arc, OnceLock};

/// So many blocks of zeros count as one in memory: what the index takes for them.
const ZEROS_OF_A_BLOCK: u64 = 32;

/// Shorter memory the allocator has at hand by itself.
const KEPT_LEAST_BYTES: usize = 64 << 10;
/// Most memory that is kept for chunks to come: as much as a set has of them by default before it flushes, when all are gone at once.
const KEPT_MOST_BYTES: usize = 64 << 20;

/// Memory of chunks that are gone, for those that come. The kernel gives the memory of a large one back and makes it anew, zeroed page by page, which
/// was two fifths of the processor time of writes of 1 MiB.
#[derive(Default)]
pub(super) struct Memory(Mutex<Vec<AlignedBuf>>);

impl Memory {
    /// Memory with anything in it.
    fn take(&self, length: usize) -> AlignedBuf {
        let mut kept = self.0.lock();
        let fitting = kept.iter().rposition(|buffer| buffer.len() == length);
        let fitting = fitting.map(|at| kept.swap_remove(at));
        drop(kept);
        fitting.unwrap_or_else(|| AlignedBuf::zeroed(length))
    }

    fn keep(&self, buffer: AlignedBuf) {
        if buffer.len() < KEPT_LEAST_BYTES {
            return;
        }
        let mut kept = self.0.lock();
        if kept.iter().map(|buffer| buffer.len()).sum::<usize>() + buffer.len() <= KEPT_MOST_BYTES {
            kept.push(buffer);
        }
    }
}

/// The blocks of one write.
pub(super) struct Chunk {
    bytes: AlignedBuf,
    sums: Vec<u64>,
    zeros: Option<Zeros>,
    /// Where the bytes go in the end.
    memory: Arc<Memory>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.memory.keep(std::mem::replace(&mut self.bytes, AlignedBuf::zeroed(0)));
    }
}

/// Blocks that become zeros: no bytes are kept of them.
#[derive(Clone, Copy)]
pub(super) struct Zeros {
    pub(super) count: u64,
    /// Their room is not given up.
    pub(super) keep: bool,
}

impl Zeros {
    /// Most of one chunk, if not more than so many blocks are to be gathered.
    pub(super) fn most(gather_blocks: u64) -> u64 {
        gather_blocks.saturating_mul(ZEROS_OF_A_BLOCK).min(PAGE_ZEROS_MOST)
    }
}

/// A block of zeros.
pub(super) fn zero_block() -> &'static [u8; BLOCK_SIZE] {
    static ZEROS: OnceLock<AlignedBuf> = OnceLock::new();
    ZEROS.get_or_init(|| AlignedBuf::zeroed(BLOCK_SIZE)).first_chunk().expect("a block")
}

/// Its checksum.
pub(super) fn zero_sum() -> u64 {
    static SUM: OnceLock<u64> = OnceLock::new();
    *SUM.get_or_init(|| crc64(zero_block()))
}

/// The checksum of what nobody has, or nobody knows to be right: data has it by chance only, and zeros with one flipped bit do not.
pub(super) fn no_sum() -> u64 {
    !zero_sum()
}

impl Chunk {
    /// Takes the blocks from `skip_bytes` of a caller's buffers on. The checksums are of what is read of the caller's
    /// bytes, so that damage to the copy is seen.
    pub(super) fn arrive(bufs: &[IoSlice<'_>], mut skip_bytes: usize, blocks: usize, memory: &Arc<Memory>) -> Chunk {
        let (bytes, sums) = (memory.take(blocks * BLOCK_SIZE), Vec::with_capacity(blocks));
        let mut chunk = Chunk { bytes, sums, zeros: None, memory: Arc::clone(memory) };
        let (mut at, mut sum) = (0, Crc64::new());
        for buf in bufs {
            let mut rest: &[u8] = buf;
            if skip_bytes >= rest.len() {
                skip_bytes -= rest.len();
                continue;
            }
            rest = &rest[skip_bytes..];
            skip_bytes = 0;
            while !rest.is_empty() && at < chunk.bytes.len() {
                let (piece, later) = rest.split_at(rest.len().min(BLOCK_SIZE - at % BLOCK_SIZE));
                rest = later;
                let to = &mut chunk.bytes[at..at + piece.len()];
                at += piece.len();
                if piece.len() == BLOCK_SIZE {
                    chunk.sums.push(Algorithm::Crc64Nvme.sum_copied(piece, to).as_number());
                    continue;
                }
                sum.update(piece);
                to.copy_from_slice(piece);
                if at.is_multiple_of(BLOCK_SIZE) {
                    chunk.sums.push(sum.value());
                    sum = Crc64::new();
                }
            }
        }
        assert_eq!(chunk.sums.len(), blocks, "of older chunks, nothing is left in the memory");
        chunk
    }

    /// Zeros, not more than [`Zeros::most`].
    pub(super) fn zeros(zeros: Zeros) -> Chunk {
        Chunk { bytes: AlignedBuf::zeroed(0), sums: Vec::new(), zeros: Some(zeros), memory: Arc::default() }
    }

    /// Blocks that nobody has: whoever reads and verifies them finds damage.
    pub(super) fn lost(blocks: usize) -> Chunk {
        let (bytes, sums) = (AlignedBuf::zeroed(blocks * BLOCK_SIZE), vec![no_sum(); blocks]);
        Chunk { bytes, sums, zeros: None, memory: Arc::default() }
    }

    /// If it is zeros.
    pub(super) fn as_zeros(&self) -> Option<Zeros> {
        self.zeros
    }

    /// Blocks of data.
    pub(super) fn blocks(&self) -> usize {
        self.sums.len()
    }

    /// Blocks that it is about.
    pub(super) fn covered_blocks(&self) -> u64 {
        self.zeros.map_or(self.sums.len() as u64, |zeros| zeros.count)
    }

    /// What it counts as in memory.
    pub(super) fn memory_blocks(&self) -> u64 {
        self.zeros.map_or(self.sums.len() as u64, |zeros| zeros.count.div_ceil(ZEROS_OF_A_BLOCK))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn sums(&self) -> &[u64] {
        &self.sums
    }

    pub(super) fn block(&self, index: usize) -> &[u8] {
        &self.bytes[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE]
    }

    #[cfg(test)]
    pub(super) fn damage(&mut self) {
        self.bytes[0] ^= 1;
    }

    /// The first block that is not any more as it came.
    pub(super) fn first_damaged(&self) -> Option<usize> {
        (0..self.blocks()).find(|index| crc64(self.block(*index)) != self.sums[*index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_from_slices_of_any_length() {
        let data: Vec<u8> = (0..5 * BLOCK_SIZE).map(|at| (at / 9) as u8).collect();
        let (a, rest) = data.split_at(100);
        let (b, c) = rest.split_at(9000);
        let bufs = [IoSlice::new(a), IoSlice::new(b), IoSlice::new(c)];
        for (skip, blocks) in [(0, 5), (1, 3), (2, 2), (4, 1)] {
            let mut chunk = Chunk::arrive(&bufs, skip * BLOCK_SIZE, blocks, &Arc::default());
            let part = &data[skip * BLOCK_SIZE..(skip + blocks) * BLOCK_SIZE];
            assert_eq!((chunk.bytes(), chunk.blocks(), chunk.first_damaged()), (part, blocks, None));
            assert_eq!(chunk.sums()[0], crc64(&part[..BLOCK_SIZE]));
            chunk.bytes[(blocks - 1) * BLOCK_SIZE] ^= 1;
            assert_eq!(chunk.first_damaged(), Some(blocks - 1));
        }
    }

    #[test]
    fn memory_is_used_again_within_a_bound() {
        let memory = Arc::new(Memory::default());
        let chunk = |byte: u8, blocks: usize| {
            let bytes = vec![byte; blocks * BLOCK_SIZE];
            Chunk::arrive(&[IoSlice::new(&bytes)], 0, blocks, &memory)
        };
        let kept = || memory.0.lock().iter().map(|buffer| buffer.len()).collect::<Vec<_>>();
        let first = chunk(1, 256);
        let place = first.bytes().as_ptr();
        drop(first);
        assert_eq!(kept(), [256 * BLOCK_SIZE]);
        // One that is shorter gets memory of its own, and leaves none behind.
        drop(chunk(2, 1));
        let second = chunk(3, 256);
        assert_eq!((second.bytes().as_ptr(), second.first_damaged(), kept()), (place, None, vec![]));
        assert!(second.bytes().iter().all(|byte| *byte == 3));
        let bytes = 256 * BLOCK_SIZE;
        (0..KEPT_MOST_BYTES / bytes + 2).for_each(|_| memory.keep(AlignedBuf::zeroed(bytes)));
        assert_eq!(kept().iter().sum::<usize>(), KEPT_MOST_BYTES);
    }
}
