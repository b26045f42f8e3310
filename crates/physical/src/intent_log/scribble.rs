//! What nobody may do to what is known of the log, and what is done to it wrongly: see [`crate::scribble`].

use super::IntentLog;
use crate::scribble::Cells;

impl IntentLog {
    /// The end of a half; with the first one, also what both have.
    pub(crate) fn cells(&mut self, half: usize) -> Cells<'_> {
        let mut cells = Cells::default();
        self.ends.cells(half, &mut cells);
        if let Some(recovered) = self.recovered.as_mut().filter(|_| half == 0) {
            cells.own("recovered.newest", recovered.newest.scribbled());
        }
        cells
    }

    /// What is known of a block of the area.
    pub(crate) fn content_cells(&mut self, at: usize) -> Option<Cells<'_>> {
        let mut cells = Cells::default();
        cells.own("sector sums", self.contents.scribbled(at)?);
        Some(cells)
    }

    /// A logic bug: an end is not where the last batch of its half ends. Gives the blocks in use, and what is said instead.
    pub(crate) fn miscount(&mut self, half: usize) -> [u64; 2] {
        let mut ends = self.ends.ends.clone();
        let counted = ends.halves[half].used;
        // Over the last batch, if there is one.
        let wrong = counted.checked_sub(1).unwrap_or(1);
        ends.halves[half].used = wrong;
        self.set_ends(ends);
        [counted, wrong]
    }

    /// Blocks of the area.
    pub(crate) fn blocks(&self) -> usize {
        self.contents.blocks()
    }
}
