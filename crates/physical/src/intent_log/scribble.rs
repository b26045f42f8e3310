//! What nobody may do to what is known of the log: see [`crate::scribble`].

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

    /// Blocks of the area.
    pub(crate) fn blocks(&self) -> usize {
        self.contents.blocks()
    }
}
