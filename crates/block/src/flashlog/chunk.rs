//! Blocks in memory, with the checksums that they had when they came.

use crate::{AlignedBuf, BLOCK_SIZE};
use holdfast_integrity::{Crc64, crc64};
use std::io::IoSlice;

/// The blocks of one write.
pub(super) struct Chunk {
    bytes: AlignedBuf,
    sums: Vec<u64>,
}

impl Chunk {
    /// Takes the blocks from `skip_bytes` of a caller's buffers on. The checksums are of the caller's bytes, taken before they are
    /// copied, so that damage to the copy is seen.
    pub(super) fn arrive(bufs: &[IoSlice<'_>], mut skip_bytes: usize, blocks: usize) -> Chunk {
        let mut chunk = Chunk { bytes: AlignedBuf::zeroed(blocks * BLOCK_SIZE), sums: Vec::with_capacity(blocks) };
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

    pub(super) fn blocks(&self) -> usize {
        self.sums.len()
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
