//! Blocks that could not be read, until they are: then, or when they have been written again, nothing is amiss any more.

use super::ranges::Ranges;
use std::ops::Range;
use std::sync::Arc;

/// More ranges than that become one, which is of everything from the first to the last.
const RANGES_MOST: usize = 4096;

/// Blocks of one device.
#[derive(Default)]
pub(super) struct Unread {
    device: Option<Arc<str>>,
    ranges: Ranges,
}

impl Unread {
    /// This device is in use in its role from now on. What another one had is nothing to the set any more.
    pub(super) fn is_of(&mut self, device: &Arc<str>) {
        if self.device.as_ref() != Some(device) {
            *self = Unread { device: Some(Arc::clone(device)), ranges: Ranges::default() };
        }
    }

    /// A request for these blocks has failed.
    pub(super) fn failed(&mut self, blocks: Range<u64>) {
        self.ranges.add(blocks);
        if self.ranges.len() > RANGES_MOST
            && let Some(all) = self.ranges.hull()
        {
            self.ranges.add(all);
        }
    }

    /// These blocks were read, or written.
    pub(super) fn well(&mut self, blocks: &Range<u64>) {
        self.ranges.remove(blocks);
    }

    pub(super) fn blocks(&self) -> u64 {
        self.ranges.blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_one_device_and_does_not_grow_without_bound() {
        let mut unread = Unread::default();
        unread.is_of(&"a".into());
        unread.failed(3..9);
        unread.well(&(3..9));
        (0..=RANGES_MOST as u64).for_each(|at| unread.failed(2 * at + 5..2 * at + 6));
        assert_eq!((unread.ranges.len(), unread.blocks()), (1, 2 * RANGES_MOST as u64 + 1));
        unread.is_of(&"a".into());
        assert!(unread.blocks() > 0);
        unread.is_of(&"b".into());
        assert_eq!(unread.blocks(), 0);
    }
}
