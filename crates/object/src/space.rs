//! Reservation of space: what a transaction may cost at most, known before it is admitted.

use crate::Error;
use serde::{Deserialize, Serialize};

/// For what space is asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Purpose {
    /// New data: refused when only the reserve and what is set aside for privileged users are left.
    #[default]
    Ordinary,
    /// New data of a privileged user: refused when only the reserve is left.
    Privileged,
    /// Work that frees space or must not fail (deletion, truncation, times): may use the reserve.
    Release,
}

/// The space of a store, in 4 KiB blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// All that can ever be allocated.
    pub total: u64,
    /// Free at once.
    pub free: u64,
    /// Free as soon as the epoch that freed them is a recovery point.
    pub pending: u64,
    /// Kept back for [`Purpose::Release`]; part of `free`.
    pub reserve: u64,
    /// Kept back for [`Purpose::Privileged`]; part of `free`.
    pub set_aside: u64,
    /// Most blocks that may be in use, if there is a limit.
    pub quota: Option<u64>,
    /// Promised to admitted transactions and not yet allocated.
    pub reserved: u64,
}

impl Space {
    /// Free now or behind the open epoch, and promised to nobody; what is kept back is part of it.
    pub fn unpromised(&self) -> u64 {
        self.free.saturating_add(self.pending).saturating_sub(self.reserved)
    }

    /// Pages of one large file that there is room for, with the tree blocks above them: what a user takes "available" for.
    pub fn available_pages(&self) -> u64 {
        /// Blocks rewritten at each end of a run of transactions: a path of the tree, the record, the bitmap, old and new.
        const EDGES: u64 = 64;
        let blocks = self.available_to(false).saturating_sub(EDGES);
        let pages = POINTERS_PER_BLOCK * POINTERS_PER_BLOCK;
        // Two copies of each of the lowest blocks, of the one above them, and of its share of all above that.
        let with_tree = pages + 2 * POINTERS_PER_BLOCK + 2 + 1;
        (u128::from(blocks) * u128::from(pages) / u128::from(with_tree)) as u64
    }

    /// Free at once or with the next recovery point, less what has been promised, and within the quota.
    pub fn free_in_all(&self) -> u64 {
        let free = self.unpromised().min(self.total);
        match self.quota {
            None => free,
            Some(quota) => free.min(quota.saturating_sub(self.total - free)),
        }
    }

    /// Of these, blocks for new data of a user with privileges, or without.
    pub fn available_to(&self, privileged: bool) -> u64 {
        let keep = self.reserve.saturating_add(if privileged { 0 } else { self.set_aside });
        self.unpromised().saturating_sub(keep).min(self.free_in_all())
    }

    /// That there is no room for so many blocks: on the device, or within the quota.
    pub fn lacks(&self, needed: u64, available: u64) -> Error {
        let within_quota = self.quota.is_some() && available == self.free_in_all();
        match within_quota {
            true => Error::OverQuota { needed, available },
            false => Error::NoSpace { needed, available },
        }
    }
}

/// Pointers in a tree block, and so pages under one of the lowest.
pub const POINTERS_PER_BLOCK: u64 = 64;
/// Object records in one block of an object table.
pub const RECORDS_PER_BLOCK: u64 = 8;
/// Objects in one block of a map of objects.
pub const OBJECTS_PER_MAP_BLOCK: u64 = 32_768;
/// Blocks whose extra references are in one block of the reference table.
pub const REFERENCES_PER_BLOCK: u64 = 1024;

/// Runs in one block of a dead list.
pub const RUNS_PER_BLOCK: u64 = 128;

/// Levels of tree blocks above the pages of an object whose last page is `last`.
pub fn levels(last: u64) -> u8 {
    let mut levels = 0;
    let mut above = last;
    while above > 0 {
        above /= POINTERS_PER_BLOCK;
        levels += 1;
    }
    levels
}

/// What transactions may dirty, and with it what the physical layer will allocate for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Demand {
    /// Pages stored once.
    pub pages: u64,
    /// Pages stored twice (metadata kinds), and blocks of the reference table.
    pub metadata_pages: u64,
    /// Blocks of trees and object tables.
    pub tree_blocks: u64,
    /// Pages that go away and are not replaced.
    pub pages_gone: u64,
}

/// Blocks for noting so many runs of blocks that only snapshots have, with the note's own tree.
pub fn note_blocks(runs: u64) -> u64 {
    let pages = runs.div_ceil(RUNS_PER_BLOCK) + 1;
    2 * (pages + pages.div_ceil(POINTERS_PER_BLOCK) + u64::from(levels((1 << 32) - 1)))
}

impl Demand {
    /// Blocks that this costs. What it leaves out (the bitmap, a tree taller than its object's size calls for, references
    /// of shared pages that are overwritten) comes out of the reserve. That nothing else does is checked by the lab's runs.
    pub fn blocks(&self) -> u64 {
        self.pages + 2 * (self.metadata_pages + self.tree_blocks)
    }

    /// Blocks for noting what goes away under a snapshot: each page and tree block may be a run of its own, and the note's own
    /// tree comes to it.
    pub fn note_blocks(&self) -> u64 {
        let runs = (self.pages + self.metadata_pages + self.tree_blocks).saturating_add(self.pages_gone);
        note_blocks(runs)
    }

    /// Adds up two demands.
    pub fn plus(self, other: Demand) -> Demand {
        Demand {
            pages: self.pages + other.pages,
            metadata_pages: self.metadata_pages + other.metadata_pages,
            tree_blocks: self.tree_blocks + other.tree_blocks,
            pages_gone: self.pages_gone.saturating_add(other.pages_gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pages_as_are_available_fit_with_their_tree() {
        for total in [0, 63, 64, 100, 10_000, 1 << 20, 1 << 40, u64::MAX / 4] {
            let space = Space { total, free: total, reserve: total / 50, reserved: total / 100, ..Space::default() };
            let pages = space.available_pages();
            let (mut tree_blocks, mut above) = (0, pages);
            while above > 1 {
                above = above.div_ceil(POINTERS_PER_BLOCK);
                tree_blocks += above;
            }
            let needed = Demand { pages, tree_blocks, ..Demand::default() }.blocks();
            let room = total - space.reserve - space.reserved;
            assert!(needed <= room, "{pages} pages of {total} blocks need {needed}");
            assert!(room < 100 || pages > room / 100 * 96 - 64, "{pages} pages of {total} blocks are few");
        }
    }

    #[test]
    fn levels_by_last_page() {
        assert_eq!([0, 1, 63, 64, 4095, 4096].map(levels), [0, 1, 1, 2, 2, 3]);
        assert_eq!(levels((1 << 32) - 1), 6);
    }
}
