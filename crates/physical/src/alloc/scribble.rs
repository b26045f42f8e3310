//! What nobody may do to the allocator: see [`crate::scribble`].

use super::Alloc;
use crate::scribble::Cells;

/// Which of its bits.
#[derive(Clone, Copy)]
pub(crate) enum Bits {
    Used,
    Freed,
    Ahead,
}

impl Alloc {
    /// The words of a chunk, past their sums; `None` if there are none.
    pub(crate) fn scribbled(&mut self, bits: Bits, chunk: u64) -> Option<&mut [u64]> {
        match bits {
            Bits::Used => Some(self.used.scribbled(chunk)),
            Bits::Freed => self.pending.scribbled(chunk),
            Bits::Ahead => self.placed.scribbled(chunk),
        }
    }

    /// Blocks that were written ahead.
    pub(crate) fn placements(&self) -> impl Iterator<Item = u64> {
        self.placements.keys().copied()
    }

    /// What is known of one of them.
    pub(crate) fn placement_cells(&mut self, block: u64) -> Option<Cells<'_>> {
        let placed = self.placements.get_mut(&block)?;
        let mut cells = Cells::default();
        cells.own("epoch and whether wanted", placed.scribbled());
        Some(cells)
    }

    /// A logic bug: one more of what has been freed, or of all blocks.
    pub(crate) fn miscount(&mut self, all: bool) {
        match all {
            true => self.total += 1,
            false => *self.pending.scribbled_count() += 1,
        }
    }

    /// The counts that a superblock is made from, and those that they are verified by.
    pub(crate) fn count_cells<'a>(&'a mut self, cells: &mut Cells<'a>) {
        self.total.cells("total", cells);
        self.used.count_cells(cells);
        self.pending.scribbled_count().cells("freed", cells);
        self.placed.scribbled_count().cells("ahead", cells);
        self.held.scribbled_count().cells("held", cells);
    }
}

#[cfg(test)]
impl Alloc {
    fn flip(&mut self, bits: Bits, block: u64) -> bool {
        let chunk = block / crate::format::BITS;
        let word = (block % crate::format::BITS / 64) as usize;
        self.scribbled(bits, chunk).map(|words| words[word] ^= 1 << (block % 64)).is_some()
    }

    pub(crate) fn scribble_used(&mut self, block: u64) {
        assert!(self.flip(Bits::Used, block));
    }

    /// `false`: nothing is known of the block's chunk.
    pub(crate) fn scribble_pending(&mut self, block: u64) -> bool {
        self.flip(Bits::Freed, block)
    }

    pub(crate) fn scribble_placed(&mut self, block: u64) -> bool {
        self.flip(Bits::Ahead, block)
    }
}
