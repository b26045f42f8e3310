//! Ranges of an object's pages that are not in memory and yet differ from what the store has for them: zeroed ranges (a
//! truncation or hole that the store has not been told), and ranges copied from elsewhere in an epoch that the store
//! has not been told either.

use holdfast_object::{Epoch, PageIndex};
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

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    pages: Range<PageIndex>,
    epoch: Epoch,
    copied: bool,
}

/// In order of time; a later entry hides an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Overlay {
    entries: Vec<Entry>,
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// From `epoch` on the range reads as zero.
    pub(crate) fn zero(&mut self, pages: Range<PageIndex>, epoch: Epoch) {
        self.add(Entry { pages, epoch, copied: false });
    }

    /// From `epoch` on the range has what a copy in that epoch put there.
    pub(crate) fn copied(&mut self, pages: Range<PageIndex>, epoch: Epoch) {
        self.add(Entry { pages, epoch, copied: true });
    }

    fn add(&mut self, entry: Entry) {
        if entry.pages.is_empty() {
            return;
        }
        self.entries.retain(|old| !(entry.pages.start <= old.pages.start && old.pages.end <= entry.pages.end));
        self.entries.push(entry);
    }

    /// What a page is that is not in memory.
    pub(crate) fn missing(&self, index: PageIndex) -> Missing {
        match self.entries.iter().rev().find(|entry| entry.pages.contains(&index)) {
            None => Missing::Stored,
            Some(Entry { copied: false, .. }) => Missing::Zero,
            Some(Entry { epoch, .. }) => Missing::After(*epoch),
        }
    }

    /// The store knows everything up to `epoch` now.
    pub(crate) fn published(&mut self, epoch: Epoch) {
        self.entries.retain(|entry| entry.epoch > epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_entries_hide_earlier_ones() {
        let mut overlay = Overlay::default();
        overlay.zero(10..u64::MAX, 5);
        overlay.copied(12..14, 5);
        overlay.zero(13..14, 6);
        let missing = |index| overlay.missing(index);
        assert_eq!(
            [9, 10, 12, 13, 14].map(missing),
            [Missing::Stored, Missing::Zero, Missing::After(5), Missing::Zero, Missing::Zero]
        );
        let mut later = overlay.clone();
        later.published(5);
        assert_eq!([12, 13].map(|index| later.missing(index)), [Missing::Stored, Missing::Zero]);
        overlay.zero(0..u64::MAX, 7);
        assert_eq!(overlay.entries.len(), 1);
    }
}
