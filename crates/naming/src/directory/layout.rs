//! The directory format, defined once. `docs/format-directory.md` has it as tables.
//!
//! All integers are little-endian, reserved bytes are zero. Nothing here needs alignment.

use holdfast_object::PAGE_SIZE;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of page 0.
pub(crate) const HEADER_MAGIC: [u8; 8] = *b"HFDIR001";
/// First bytes of a node.
pub(crate) const NODE_MAGIC: [u8; 4] = *b"HFDN";
/// First bytes of a free page.
pub(crate) const FREE_MAGIC: [u8; 4] = *b"HFDF";

/// Bits of a name's hash in a key.
pub(crate) const HASH_BITS: u8 = 55;
/// Bits of a key that tell names with equal hashes apart.
pub(crate) const SLOT_BITS: u32 = 8;
/// Keys end here: 63 bits.
pub(crate) const KEY_END: u64 = 1 << 63;
/// Deepest tree. Branches have room for 200 and more children, so that 5 levels would hold more than an object can.
pub(crate) const LEVEL_MAX: u8 = 7;

/// Start of page 0; a node follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct HeaderRaw {
    pub(crate) magic: [u8; 8],
    /// Of the hash.
    pub(crate) seed: U64,
    /// Pages of the directory, page 0 and free ones included.
    pub(crate) pages: U64,
    /// First free page, or 0.
    pub(crate) free_head: U64,
    /// Length of the list of free pages.
    pub(crate) free_count: U64,
    /// Significant bits of the hash, 1..=55.
    pub(crate) hash_bits: u8,
    pub(crate) reserved: [u8; 7],
}

/// Start of a node. Records follow without gaps, in ascending order of key; the rest of the page is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NodeRaw {
    pub(crate) magic: [u8; 4],
    /// 0: records are entries; above: records are branches to nodes of the level below.
    pub(crate) level: u8,
    pub(crate) reserved: u8,
    /// Records.
    pub(crate) count: U16,
    /// Bytes of all records.
    pub(crate) used: U16,
    pub(crate) reserved_2: [u8; 6],
    /// Object id of the directory.
    pub(crate) owner: U64,
    /// Index of this page.
    pub(crate) page: U64,
}

/// Start of a record of level 0; the name's bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct EntryRaw {
    pub(crate) key: U64,
    /// 48 bits.
    pub(crate) object: U64,
    /// [`holdfast_object::Kind`].
    pub(crate) kind: u8,
    /// 1..=255.
    pub(crate) name_length: u8,
}

/// A record of a level above 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BranchRaw {
    /// Keys below `child` are not less. The first record of a node counts as the node's own lower bound.
    pub(crate) key: U64,
    /// Page index.
    pub(crate) child: U64,
}

/// A page in the list of free pages; the rest of it is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FreeRaw {
    pub(crate) magic: [u8; 4],
    pub(crate) reserved: [u8; 4],
    pub(crate) owner: U64,
    pub(crate) page: U64,
    /// Next free page, or 0.
    pub(crate) next: U64,
}

pub(crate) const HEADER_BYTES: usize = size_of::<HeaderRaw>();
pub(crate) const NODE_BYTES: usize = size_of::<NodeRaw>();
pub(crate) const ENTRY_BYTES: usize = size_of::<EntryRaw>();
pub(crate) const BRANCH_BYTES: usize = size_of::<BranchRaw>();
pub(crate) const FREE_BYTES: usize = size_of::<FreeRaw>();

const _: () = {
    assert!(HEADER_BYTES == 48);
    assert!(NODE_BYTES == 32);
    assert!(ENTRY_BYTES == 18);
    assert!(BRANCH_BYTES == 16);
    assert!(FREE_BYTES == 32);
};

/// A directory page.
pub(crate) type Image = [u8; PAGE_SIZE];

/// Where in a page its node begins.
pub(crate) const fn node_offset(page: u64) -> usize {
    if page == 0 { HEADER_BYTES } else { 0 }
}

/// Where in a page the records begin.
pub(crate) const fn records_offset(page: u64) -> usize {
    node_offset(page) + NODE_BYTES
}

/// Bytes for records in a page.
pub(crate) const fn capacity(page: u64) -> usize {
    PAGE_SIZE - records_offset(page)
}
