//! Discarding what the log has let go of, so that a stick need not copy it when it erases a block.

use super::append::Head;
use super::device::Flashlog;
use super::format::{AREA_UNIT_BLOCKS, Areas, Point};
use super::ring::Area;
use crate::Device;
use std::ops::Range;

/// Discards all that was in the areas of a device that becomes a log: on its first way around, a stick need not copy that either.
pub(super) fn trim_all(log: &dyn Device, areas: &Areas) {
    for (first, count) in [(areas.meta_start, areas.meta_blocks), (areas.data_start, areas.data_blocks)] {
        if let Err(error) = log.discard(first, count) {
            // If the device has failed, writing the label tells.
            tracing::warn!(device = log.name(), %error, "the log cannot be trimmed");
            return;
        }
    }
}

impl Flashlog {
    /// Discards what is between this point and the tail, which the label has durably. A device that cannot is none the worse for it.
    pub(super) fn trim(&self, head: &Head, from: Point) {
        let (areas, to, next) = (self.rings.areas, head.labels.label.tail, head.next);
        let all = [
            (Area::Meta, areas.meta_blocks, from.page..to.page, next.page),
            (Area::Data, areas.data_blocks, from.data..to.data, next.data),
        ];
        for (area, blocks, positions, next) in all {
            for run in around(units(positions, blocks, next), blocks) {
                let first = self.rings.block(area, run.start);
                if let Err(error) = self.rings.device.discard(first, run.end - run.start) {
                    // If the device has failed, the next write to it tells.
                    tracing::warn!(device = self.rings.device.name(), %error, "the log cannot be trimmed");
                    return;
                }
            }
        }
    }
}

/// The whole MiB before the end of these positions that were not all before their beginning. The first of them may have been written
/// again in part, if the ring is so full.
fn units(positions: Range<u64>, blocks: u64, next: u64) -> Range<u64> {
    let end = positions.end / AREA_UNIT_BLOCKS * AREA_UNIT_BLOCKS;
    let mut start = positions.start / AREA_UNIT_BLOCKS * AREA_UNIT_BLOCKS;
    while start + blocks < next {
        start += AREA_UNIT_BLOCKS;
    }
    start..end.max(start)
}

/// As ranges that do not go around the end of the area.
fn around(positions: Range<u64>, blocks: u64) -> impl Iterator<Item = Range<u64>> {
    let end_of_area = (positions.start / blocks + 1) * blocks;
    let middle = positions.end.min(end_of_area);
    [positions.start..middle, middle..positions.end].into_iter().filter(|run| !run.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_mib_that_are_needed_by_nothing() {
        assert_eq!(units(0..255, 1024, 300), 0..0);
        assert_eq!(units(0..256, 1024, 300), 0..256);
        assert_eq!(units(100..700, 1024, 1024), 0..512);
        // Positions 1024 to 1099 are where 0 to 75 were.
        assert_eq!(units(100..700, 1024, 1100), 256..512);
        assert_eq!(units(100..200, 1024, 1124), 256..256);
        assert_eq!(units(1900..2500, 1024, 2800), 1792..2304);
        let runs: Vec<_> = around(1792..2304, 1024).collect();
        assert_eq!(runs, [1792..2048, 2048..2304]);
        assert!(around(2048..2304, 1024).eq(std::iter::once(2048..2304)));
        assert_eq!(around(256..256, 1024).count(), 0);
    }
}
