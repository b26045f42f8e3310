//! Blocks that could not be read, until they are: then, or when they have been written again, nothing is amiss any more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// More ranges than that become one, which is of everything from the first to the last.
const RANGES_MOST: usize = 4096;

/// Blocks of one device.
#[derive(Default)]
pub(super) struct Unread {
    device: Option<Arc<str>>,
    /// By first block, with the end. They do not touch each other.
    ranges: BTreeMap<u64, u64>,
}

impl Unread {
    /// This device is in use in its role from now on. What another one had is nothing to the set any more.
    pub(super) fn is_of(&mut self, device: &Arc<str>) {
        if self.device.as_ref() != Some(device) {
            *self = Unread { device: Some(Arc::clone(device)), ranges: BTreeMap::new() };
        }
    }

    /// A request for these blocks has failed.
    pub(super) fn failed(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        self.well(&blocks);
        let mut joined = blocks;
        if let Some((first, end)) = self.ranges.range(..joined.start).next_back()
            && *end == joined.start
        {
            joined.start = *first;
        }
        if let Some(end) = self.ranges.remove(&joined.end) {
            joined.end = end;
        }
        self.ranges.insert(joined.start, joined.end);
        if self.ranges.len() > RANGES_MOST
            && let (Some((first, _)), Some((_, end))) = (self.ranges.first_key_value(), self.ranges.last_key_value())
        {
            self.ranges = BTreeMap::from([(*first, *end)]);
        }
    }

    /// These blocks were read, or written.
    pub(super) fn well(&mut self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let touched: Vec<(u64, u64)> =
            self.ranges.range(..blocks.end).rev().take_while(|(_, end)| **end > blocks.start).map(copied).collect();
        for (first, end) in touched {
            self.ranges.remove(&first);
            if first < blocks.start {
                self.ranges.insert(first, blocks.start);
            }
            if blocks.end < end {
                self.ranges.insert(blocks.end, end);
            }
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.ranges.iter().map(|(first, end)| end - first).sum()
    }
}

fn copied((first, end): (&u64, &u64)) -> (u64, u64) {
    (*first, *end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_the_blocks_that_failed_and_were_not_well_since() {
        let (mut unread, mut expected) = (Unread::default(), BTreeSet::new());
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..5000 {
            let first = random(200);
            let blocks = first..first + random(20);
            if random(2) == 0 {
                unread.failed(blocks.clone());
                expected.extend(blocks);
            } else {
                unread.well(&blocks);
                expected.retain(|at| !blocks.contains(at));
            }
            let found: Vec<u64> = unread.ranges.iter().flat_map(|(first, end)| *first..*end).collect();
            assert!(found.iter().eq(&expected) && unread.blocks() == found.len() as u64, "step {step}");
            let apart = |(a, b): ((&u64, &u64), (&u64, &u64))| a.1 < b.0;
            assert!(unread.ranges.iter().zip(unread.ranges.iter().skip(1)).all(apart), "step {step}");
        }
    }

    #[test]
    fn it_is_of_one_device_and_does_not_grow_without_bound() {
        let mut unread = Unread::default();
        unread.is_of(&"a".into());
        (0..=RANGES_MOST as u64).for_each(|at| unread.failed(2 * at + 5..2 * at + 6));
        assert_eq!((unread.ranges.len(), unread.blocks()), (1, 2 * RANGES_MOST as u64 + 1));
        unread.is_of(&"a".into());
        assert!(unread.blocks() > 0);
        unread.is_of(&"b".into());
        assert_eq!(unread.blocks(), 0);
    }
}
