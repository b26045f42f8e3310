//! What nobody may do to what is known of the log: see [`crate::scribble`].

use super::IntentLog;
use crate::scribble::Cells;

impl IntentLog {
    /// The end of a half.
    pub(crate) fn cells(&mut self, half: usize) -> Cells<'_> {
        let mut cells = Cells::default();
        let half = &mut self.halves[half];
        cells.own("epoch", &mut half.epoch);
        cells.own("used", &mut half.used);
        if let Some(last) = &mut half.last {
            cells.own("last.start", &mut last.start);
            cells.own("last.base", &mut last.base);
            cells.own("last.epoch", &mut last.epoch);
            cells.own("last.sequence", &mut last.sequence);
            cells.own("last.head_blocks", &mut last.head_blocks);
            cells.own("last.page_blocks", &mut last.page_blocks);
            cells.own("last.entries_crc", &mut last.entries_crc);
            cells.own("last.chain", &mut last.chain);
        }
        cells
    }
}
