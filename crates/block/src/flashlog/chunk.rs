//! Blocks in memory, with the checksums that they had when they came, or the news that they are zeros.

use super::format::PAGE_ZEROS_MOST;
use crate::{AlignedBuf, BLOCK_SIZE};
use holdfast_integrity::{Crc64, crc64};
use std::io::IoSlice;
use std::sync::OnceLock;

/// So many blocks of zeros count as one in memory: what the index takes for them.
const ZEROS_OF_A_BLOCK: u64 = 32;

/// The blocks of one write.
pub(super) struct Chunk {
    bytes: AlignedBuf,
    sums: Vec<u64>,
    zeros: Option<Zeros>,
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

impl Chunk {
    /// Takes the blocks from `skip_bytes` of a caller's buffers on. The checksums are of the caller's bytes, taken before they are
    /// copied, so that damage to the copy is seen.
    pub(super) fn arrive(bufs: &[IoSlice<'_>], mut skip_bytes: usize, blocks: usize) -> Chunk {
        let (bytes, sums) = (AlignedBuf::zeroed(blocks * BLOCK_SIZE), Vec::with_capacity(blocks));
        let mut chunk = Chunk { bytes, sums, zeros: None };
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
                sum.update(piece);
                chunk.bytes[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
                if at.is_multiple_of(BLOCK_SIZE) {
                    chunk.sums.push(sum.value());
                    sum = Crc64::new();
                }
                rest = later;
            }
        }
        debug_assert_eq!(chunk.sums.len(), blocks);
        chunk
    }

    /// Zeros, not more than [`Zeros::most`].
    pub(super) fn zeros(zeros: Zeros) -> Chunk {
        Chunk { bytes: AlignedBuf::zeroed(0), sums: Vec::new(), zeros: Some(zeros) }
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
            let mut chunk = Chunk::arrive(&bufs, skip * BLOCK_SIZE, blocks);
            let part = &data[skip * BLOCK_SIZE..(skip + blocks) * BLOCK_SIZE];
            assert_eq!((chunk.bytes(), chunk.blocks(), chunk.first_damaged()), (part, blocks, None));
            assert_eq!(chunk.sums()[0], crc64(&part[..BLOCK_SIZE]));
            chunk.bytes[(blocks - 1) * BLOCK_SIZE] ^= 1;
            assert_eq!(chunk.first_damaged(), Some(blocks - 1));
        }
    }
}
