//! What nobody may do to sums of the audit: see [`crate::scribble`].

use super::Audit;
use crate::scribble::Cells;

impl Audit {
    /// Some of the sums.
    pub(crate) fn cells(&mut self) -> Cells<'_> {
        let mut cells = Cells::default();
        cells.own("doubled", &mut self.doubled);
        cells.own("pages", &mut self.pages);
        cells.own("wrong_levels", &mut self.wrong_levels);
        cells.own("objects", &mut self.objects);
        cells.own("pages_told", &mut self.pages_told);
        cells.own("pages_unknown", &mut self.pages_unknown);
        cells.own("objects_uncounted", &mut self.objects_uncounted);
        cells.own("metadata_uncounted", &mut self.metadata_uncounted);
        cells.own("kept", &mut self.kept);
        cells.own("kept_uncounted", &mut self.kept_uncounted);
        cells
    }
}
