//! Ranges of an object's pages that are not in memory and yet differ from what the store has for them: zeroed ranges (a
//! truncation or hole that the store has not been told), and ranges copied from elsewhere in an epoch that the store
//! has not been told either.
//!
//! Invariant (see [`Overlay::check`]): ranges are not empty, do not overlap, and two that touch differ in what they are.
//! So punching many holes costs the logarithm of their number each.

use holdfast_object::{Epoch, PageIndex};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a page not in memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// What the store says.
    Stored,
    /// Zero.
    Zero,
    /// What the store will say once this epoch is a recovery point.
    After(Epoch),
}

/// What a range is, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    end: PageIndex,
    epoch: Epoch,
    copied: bool,
}

/// By first page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<PageIndex, Entry>,
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// From `epoch` on the range reads as zero.
    pub(crate) fn zero(&mut self, pages: Range<PageIndex>, epoch: Epoch) {
        self.add(pages, epoch, false);
    }

    /// From `epoch` on the range has what a copy in that epoch put there.
    pub(crate) fn copied(&mut self, pages: Range<PageIndex>, epoch: Epoch) {
        self.add(pages, epoch, true);
    }

    /// The range is this from now on, whatever it was.
    fn add(&mut self, pages: Range<PageIndex>, epoch: Epoch, copied: bool) {
        if pages.is_empty() {
            return;
        }
        let Range { mut start, mut end } = pages;
        self.split(start);
        self.split(end);
        while let Some((&covered, _)) = self.entries.range(start..end).next() {
            self.entries.remove(&covered);
        }
        let same = |entry: &Entry| (entry.epoch, entry.copied) == (epoch, copied);
        if let Some((&before, entry)) = self.entries.range(..start).next_back()
            && entry.end == start
            && same(entry)
        {
            start = before;
        }
        if let Some(after) = self.entries.get(&end).copied()
            && same(&after)
        {
            self.entries.remove(&end);
            end = after.end;
        }
        self.entries.insert(start, Entry { end, epoch, copied });
    }

    /// No range goes across `at` afterwards.
    fn split(&mut self, at: PageIndex) {
        if let Some((_, entry)) = self.entries.range_mut(..at).next_back()
            && entry.end > at
        {
            let rest = *entry;
            entry.end = at;
            self.entries.insert(at, rest);
        }
    }

    /// What a page is that is not in memory.
    pub(crate) fn missing(&self, index: PageIndex) -> Missing {
        match self.entries.range(..=index).next_back() {
            Some((_, entry)) if entry.end > index => match entry.copied {
                true => Missing::After(entry.epoch),
                false => Missing::Zero,
            },
            _ => Missing::Stored,
        }
    }

    /// Of these pages the runs that are what the store says.
    pub(crate) fn stored(&self, pages: Range<PageIndex>) -> Vec<Range<PageIndex>> {
        let (mut stored, mut from) = (Vec::new(), pages.start);
        // The one before may reach into them.
        let before = self.entries.range(..pages.start).next_back();
        for (&start, entry) in before.into_iter().chain(self.entries.range(pages.clone())) {
            if from < start {
                stored.push(from..start);
            }
            from = from.max(entry.end);
        }
        if from < pages.end {
            stored.push(from..pages.end);
        }
        stored
    }

    /// The first of the pages that are zero up to the end of all pages, if there are such: an object was cut there.
    pub(crate) fn cut_at(&self) -> Option<PageIndex> {
        self.entries
            .last_key_value()
            .filter(|(_, last)| !last.copied && last.end == PageIndex::MAX)
            .map(|(&first, _)| first)
    }

    /// The store knows everything up to `epoch` now.
    pub(crate) fn published(&mut self, epoch: Epoch) {
        self.entries.retain(|_, entry| entry.epoch > epoch);
    }

    /// Asserts the invariant.
    pub(crate) fn check(&self) {
        let mut before: Option<Entry> = None;
        for (&start, entry) in &self.entries {
            assert!(start < entry.end, "empty range at {start}");
            if let Some(before) = before {
                assert!(before.end <= start, "ranges overlap at {start}");
                let same = (before.epoch, before.copied) == (entry.epoch, entry.copied);
                assert!(before.end < start || !same, "one range in two at {start}");
            }
            before = Some(*entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn later_ranges_hide_earlier_ones() {
        let mut overlay = Overlay::default();
        overlay.zero(10..u64::MAX, 5);
        overlay.copied(12..14, 5);
        overlay.zero(13..14, 6);
        let missing = |index| overlay.missing(index);
        assert_eq!(
            [9, 10, 12, 13, 14].map(missing),
            [Missing::Stored, Missing::Zero, Missing::After(5), Missing::Zero, Missing::Zero]
        );
        assert_eq!(overlay.cut_at(), Some(14));
        let mut later = overlay.clone();
        later.published(5);
        assert_eq!([12, 13].map(|index| later.missing(index)), [Missing::Stored, Missing::Zero]);
        overlay.zero(0..u64::MAX, 7);
        assert_eq!(overlay.entries.len(), 1);
    }

    #[test]
    fn as_a_page_by_page_table_has_it() {
        const PAGES: u64 = 40;
        for seed in 0..300 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let mut overlay = Overlay::default();
            let mut table = [(Missing::Stored, 0); PAGES as usize];
            let mut epoch = 5;
            for step in 0..60 {
                let start = rng.random_range(0..PAGES);
                let end = rng.random_range(start..=PAGES);
                match rng.random_range(0..8) {
                    0 => {
                        overlay.published(epoch - 1);
                        table
                            .iter_mut()
                            .filter(|(_, since)| *since < epoch)
                            .for_each(|page| *page = (Missing::Stored, 0));
                        epoch += 1;
                    }
                    1..4 => {
                        overlay.copied(start..end, epoch);
                        table[start as usize..end as usize].fill((Missing::After(epoch), epoch));
                    }
                    _ => {
                        overlay.zero(start..end, epoch);
                        table[start as usize..end as usize].fill((Missing::Zero, epoch));
                    }
                }
                overlay.check();
                for (index, (expected, _)) in (0..).zip(&table) {
                    assert_eq!(overlay.missing(index), *expected, "seed {seed}, step {step}, page {index}");
                }
                let stored: Vec<u64> = overlay.stored(start..end).into_iter().flatten().collect();
                let expected = (start..end).filter(|index| table[*index as usize].0 == Missing::Stored);
                assert_eq!(stored, expected.collect::<Vec<_>>(), "seed {seed}, step {step}, pages {start} to {end}");
            }
        }
    }
}
