//! Names of things: domains, objects, pages, epochs, blocks.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A private namespace with its own object set. 0 is the store itself, 1 is `main`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DomainId(pub u16);

impl DomainId {
    /// The store's own object set: bitmap, reference table, object tables of the other domains.
    pub const SYSTEM: DomainId = DomainId(0);
    /// The domain that exists from the start.
    pub const MAIN: DomainId = DomainId(1);
}

/// An object within a domain: 48 bits, 0 is no object, 1 is the root directory of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// No object.
    pub const NONE: ObjectId = ObjectId(0);
    /// The root directory of a domain.
    pub const ROOT: ObjectId = ObjectId(1);
    /// Largest valid id; the upper 16 bits of a 64-bit inode number name the snapshot.
    pub const MAX: ObjectId = ObjectId((1 << 48) - 1);

    /// The id if the number is one an object can have.
    pub fn from_raw(raw: u64) -> Option<ObjectId> {
        (raw != 0 && raw <= Self::MAX.0).then_some(ObjectId(raw))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The same object has the same key on every device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Whose object set.
    pub domain: DomainId,
    /// Which object in it.
    pub object: ObjectId,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            DomainId::SYSTEM => write!(f, "system object {}", self.object),
            DomainId(domain) => write!(f, "object {}:{}", domain, self.object.0),
        }
    }
}

/// Position of a 4 KiB page in an object, in pages.
pub type PageIndex = u64;
/// Number of a recovery point. 1 is the store as created.
pub type Epoch = u64;

/// Names a stored block for as long as its contents do not change: its address and the epoch in which it was written.
/// Clones, snapshots and reflinks of a block have the same identity, so they can share a page in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BlockIdentity {
    /// Device in the upper 16 bits, block number in the lower 48.
    pub address: u64,
    /// Physical birth.
    pub birth: Epoch,
}

/// Names a redundancy policy. 0 is the store's default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct PolicyId(pub u16);
