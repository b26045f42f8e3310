//! The end of what is in the log, which memory has as well: main can follow writers without reading from the log.

use super::chunk::Chunk;
use std::collections::VecDeque;
use std::sync::Arc;

/// Chunks as they lie in the log, one after the other, up to its end.
#[derive(Default)]
pub(super) struct Recent {
    /// With the position of each one's first block.
    chunks: VecDeque<(u64, Arc<Chunk>)>,
    blocks: u64,
    blocks_most: u64,
}

impl Recent {
    /// For so many blocks.
    pub(super) fn new(blocks_most: u64) -> Recent {
        Recent { blocks_most, ..Recent::default() }
    }

    /// A chunk is in the log, behind those before it.
    pub(super) fn push(&mut self, position: u64, chunk: Arc<Chunk>) {
        self.blocks += chunk.blocks() as u64;
        self.chunks.push_back((position, chunk));
        while self.blocks > self.blocks_most {
            self.pop();
        }
    }

    /// Everything from this position on is here.
    pub(super) fn first(&self) -> u64 {
        self.chunks.front().map_or(u64::MAX, |(position, _)| *position)
    }

    /// Nobody needs what is before a position.
    pub(super) fn let_go_before(&mut self, position: u64) {
        while self.chunks.front().is_some_and(|(first, chunk)| first + chunk.blocks() as u64 <= position) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        self.blocks -= self.chunks.pop_front().map_or(0, |(_, chunk)| chunk.blocks() as u64);
    }

    /// Damages the newest chunk, as bad memory would.
    #[cfg(test)]
    pub(super) fn damage(&mut self) {
        let (_, chunk) = self.chunks.back_mut().expect("something is in the log");
        Arc::get_mut(chunk).expect("nobody else has it").damage();
    }

    /// The block at a position: its chunk, and which of it.
    pub(super) fn find(&self, position: u64) -> Option<(&Arc<Chunk>, usize)> {
        let behind = self.chunks.partition_point(|(first, _)| *first <= position);
        let (first, chunk) = self.chunks.get(behind.checked_sub(1)?)?;
        let index = (position - first) as usize;
        (index < chunk.blocks()).then_some((chunk, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK_SIZE;
    use std::io::IoSlice;

    #[test]
    fn the_end_is_kept_within_the_bound_and_found_by_position() {
        let chunk = |byte: u8, blocks: usize| {
            let bytes = vec![byte; blocks * BLOCK_SIZE];
            Arc::new(Chunk::arrive(&[IoSlice::new(&bytes)], 0, blocks, &Arc::default()))
        };
        let mut recent = Recent::new(10);
        for (position, byte, blocks) in [(100, 1, 4), (104, 2, 1), (105, 3, 5), (110, 4, 3)] {
            recent.push(position, chunk(byte, blocks));
        }
        let found = |recent: &Recent, at| recent.find(at).map(|(chunk, index)| chunk.block(index)[0]);
        let all: Vec<Option<u8>> = (102..115).map(|at| found(&recent, at)).collect();
        let [none, two, three, four] = [None, Some(2), Some(3), Some(4)];
        assert_eq!(all, [none, none, two, three, three, three, three, three, four, four, four, none, none]);
        recent.let_go_before(107);
        assert_eq!((found(&recent, 104), found(&recent, 105)), (None, Some(3)));
        recent.let_go_before(110);
        assert_eq!((found(&recent, 109), found(&recent, 110), recent.blocks), (None, Some(4), 3));
        recent.push(113, chunk(5, 20));
        assert_eq!((found(&recent, 110), found(&recent, 113), recent.blocks), (None, None, 0));
    }
}
