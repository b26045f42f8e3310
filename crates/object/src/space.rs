//! Reservation of space: what a transaction may cost at most, known before it is admitted.

use serde::{Deserialize, Serialize};

/// For what space is asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Purpose {
    /// New data: refused when only the reserve is left.
    #[default]
    Ordinary,
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
    /// Promised to admitted transactions and not yet allocated.
    pub reserved: u64,
}

/// Levels of block tree above the data for the largest object (64 pointers a block, 2^32 pages).
pub const MAX_LEVELS: u64 = 6;
/// Pages under one lowest tree block.
pub const PAGES_PER_LEAF: u64 = 64;
/// Object records in one block of an object table.
pub const RECORDS_PER_BLOCK: u64 = 8;

/// What a transaction may dirty. An upper bound of what the physical layer will allocate for it is [`Demand::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Demand {
    /// Pages stored once.
    pub pages: u64,
    /// Pages stored twice (metadata kinds).
    pub metadata_pages: u64,
    /// Lowest tree blocks touched ([`PAGES_PER_LEAF`]-aligned groups of pages).
    pub leaves: u64,
    /// Objects whose record changes.
    pub objects: u64,
}

impl Demand {
    /// Blocks that this can cost at most: each leaf brings at most `MAX_LEVELS` tree blocks, each object the path of its
    /// record in the object table and in the maps of objects; all of them twice. Neighbours share most of it, so the
    /// bound is loose; a closed epoch gives back what it did not use.
    pub fn blocks(&self) -> u64 {
        self.pages + 2 * self.metadata_pages + 2 * (2 * self.leaves + 4 * self.objects)
    }

    /// Adds up two demands.
    pub fn plus(self, other: Demand) -> Demand {
        Demand {
            pages: self.pages + other.pages,
            metadata_pages: self.metadata_pages + other.metadata_pages,
            leaves: self.leaves + other.leaves,
            objects: self.objects + other.objects,
        }
    }
}
