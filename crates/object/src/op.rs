//! Object operations: the one vocabulary of all layers.

use crate::{AttrSet, Attributes, DomainId, Epoch, ObjectId, PageIndex, PageRef, Placement, Side};
use serde::{Deserialize, Serialize};

/// Bytes for a part of one page of an object. The frame that `page` names holds them at their position in the page
/// (`start..end`); the frame's checksum is of just these bytes. A whole page has `start` 0 and `end` 4096, and its
/// checksum is the page's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fragment {
    /// Which page of the object.
    pub index: PageIndex,
    /// First byte within the page.
    pub start: u16,
    /// End within the page, exclusive, at most 4096.
    pub end: u16,
    /// Where the bytes are.
    pub page: PageRef,
}

impl Fragment {
    /// Whether it replaces the page as a whole.
    pub fn is_whole(&self) -> bool {
        self.start == 0 && usize::from(self.end) == crate::PAGE_SIZE
    }
}

/// One operation on one object. All are idempotent: they set absolute values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// The object exists from now on with these attributes and no pages. If it exists already with the same generation
    /// (a log replayed on an epoch that has it), nothing happens: it keeps its pages and attributes.
    Create {
        /// A fresh id from [`crate::ObjectCache::new_object`].
        id: ObjectId,
        /// Its attributes; size is 0.
        attributes: Attributes,
    },
    /// The object and its pages are gone. Nothing happens if there is none.
    Delete {
        /// Which.
        id: ObjectId,
    },
    /// Replaces bytes. `size_min` is the least size the object has afterwards.
    Write {
        /// Which.
        id: ObjectId,
        /// In ascending order of index, at most one for a page. Below the cache all are whole pages.
        fragments: Vec<Fragment>,
        /// Byte position behind the last byte written.
        size_min: u64,
    },
    /// Blocks that were written ahead become pages of the object. Only below the cache.
    Adopt {
        /// Which.
        id: ObjectId,
        /// In ascending order of index.
        pages: Vec<(PageIndex, Placement)>,
        /// Byte position behind the last byte written.
        size_min: u64,
    },
    /// Pages whose bytes are gone and for which there is no older version: they read as an error until they are
    /// written again. Only below the cache.
    Lose {
        /// Which.
        id: ObjectId,
        /// In ascending order.
        pages: Vec<PageIndex>,
        /// Where their bytes went bad.
        side: Side,
    },
    /// Sets the size; bytes behind it are gone, bytes added read as zero.
    Truncate {
        /// Which.
        id: ObjectId,
        /// In bytes.
        size: u64,
    },
    /// The bytes of the range read as zero and take no space where whole pages are covered. Does not change the size.
    Zero {
        /// Which.
        id: ObjectId,
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Sets attributes.
    SetAttributes {
        /// Which.
        id: ObjectId,
        /// The values to change.
        set: AttrSet,
    },
    /// The pages of the source's range become the target's as well, sharing blocks; holes become holes. Whole pages; the
    /// end may be the end of the source. Never overlaps within one object. Pages to which nothing leads any more, as metadata of the source is damaged, are
    /// lost in the target.
    Copy {
        /// From which object.
        source: ObjectId,
        /// First page there.
        source_first: PageIndex,
        /// To which object.
        target: ObjectId,
        /// First page there.
        target_first: PageIndex,
        /// How many pages.
        pages: u64,
        /// Least size of the target afterwards, in bytes.
        size_min: u64,
    },
}

impl Op {
    /// The object that the operation changes.
    pub fn target(&self) -> ObjectId {
        match self {
            Op::Create { id, .. }
            | Op::Delete { id }
            | Op::Write { id, .. }
            | Op::Adopt { id, .. }
            | Op::Lose { id, .. }
            | Op::Truncate { id, .. }
            | Op::Zero { id, .. }
            | Op::SetAttributes { id, .. } => *id,
            Op::Copy { target, .. } => *target,
        }
    }

    /// Whether bytes of this page of its target become zero by its size or by a range.
    pub fn cuts(&self, index: PageIndex) -> bool {
        const PAGE: u64 = crate::PAGE_SIZE as u64;
        match self {
            Op::Truncate { size, .. } => (index + 1) * PAGE > *size,
            Op::Zero { offset, length, .. } => {
                *offset < (index + 1) * PAGE && index * PAGE < offset.saturating_add(*length)
            }
            _ => false,
        }
    }
}

/// Operations that the cache hands down to the store, in order. Applying one again gives the same state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// Whose objects.
    pub domain: DomainId,
    /// The epoch they belong to: one more than the last recovery point's.
    pub epoch: Epoch,
    /// In order.
    pub ops: Vec<Op>,
}
