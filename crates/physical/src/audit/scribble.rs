//! What nobody may do to sums of the audit: see [`crate::scribble`].

use super::Audit;
use crate::scribble::Cells;

impl Audit {
    /// All sums, and their twins.
    pub(crate) fn cells(&mut self) -> Cells<'_> {
        let mut cells = Cells::default();
        self.sums.cells(&mut cells);
        cells
    }
}
