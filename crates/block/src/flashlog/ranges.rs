//! Blocks as runs: as much memory as there are runs, however long these are.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks.
#[derive(Default)]
pub(super) struct Ranges {
    /// By first block, with the end. They do not touch each other.
    by_first: BTreeMap<u64, u64>,
}

impl Ranges {
    /// These blocks, too.
    pub(super) fn add(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        self.remove(&blocks);
        let mut joined = blocks;
        if let Some((first, end)) = self.by_first.range(..joined.start).next_back()
            && *end == joined.start
        {
            joined.start = *first;
        }
        if let Some(end) = self.by_first.remove(&joined.end) {
            joined.end = end;
        }
        self.by_first.insert(joined.start, joined.end);
    }

    /// These blocks not any more.
    pub(super) fn remove(&mut self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let touched: Vec<(u64, u64)> =
            self.by_first.range(..blocks.end).rev().take_while(|(_, end)| **end > blocks.start).map(copied).collect();
        for (first, end) in touched {
            self.by_first.remove(&first);
            if first < blocks.start {
                self.by_first.insert(first, blocks.start);
            }
            if blocks.end < end {
                self.by_first.insert(blocks.end, end);
            }
        }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.by_first.range(..=block).next_back().is_some_and(|(_, end)| block < *end)
    }

    /// The runs, in order, with what they have from a block on.
    pub(super) fn from(&self, block: u64) -> impl Iterator<Item = Range<u64>> {
        let before = self.by_first.range(..block).next_back().filter(|(_, end)| **end > block);
        let before = before.map(|(_, end)| block..*end);
        before.into_iter().chain(self.by_first.range(block..).map(|(first, end)| *first..*end))
    }

    /// From the first one to the last one.
    pub(super) fn hull(&self) -> Option<Range<u64>> {
        let (first, last) = (self.by_first.first_key_value()?, self.by_first.last_key_value()?);
        Some(*first.0..*last.1)
    }

    /// How many runs these are.
    pub(super) fn len(&self) -> usize {
        self.by_first.len()
    }

    /// How many blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.from(0).map(|run| run.end - run.start).sum()
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
    fn it_is_the_blocks_that_were_added_and_not_removed_since() {
        let (mut ranges, mut expected) = (Ranges::default(), BTreeSet::new());
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..5000 {
            let first = random(200);
            let blocks = first..first + random(20);
            if random(2) == 0 {
                ranges.add(blocks.clone());
                expected.extend(blocks);
            } else {
                ranges.remove(&blocks);
                expected.retain(|at| !blocks.contains(at));
            }
            let from = random(200);
            for from in [0, from] {
                assert!(ranges.from(from).flatten().eq(expected.range(from..).copied()), "step {step}");
            }
            assert_eq!((ranges.blocks(), ranges.has(from)), (expected.len() as u64, expected.contains(&from)));
            let all: Vec<Range<u64>> = ranges.from(0).collect();
            assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start) && all.len() == ranges.len(), "step {step}");
        }
    }
}
