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

/// A snapshot of a domain: a number above 0 that no other snapshot of the domain ever had. 0 stands for the domain as it is
/// now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct SnapshotId(pub u16);

impl SnapshotId {
    /// No snapshot: the objects as they are now.
    pub const LIVE: SnapshotId = SnapshotId(0);
    /// Largest number that a new snapshot gets: ids are inode numbers, and those from 2^63 on are negative where programs keep them in 64
    /// bits with a sign. A store may have larger ones up to 65534, from before there was this limit.
    pub const MAX: SnapshotId = SnapshotId(0x7FFE);
    /// In the place of a snapshot: objects that naming makes up.
    pub const VIRTUAL: SnapshotId = SnapshotId(0x7FFF);
}

/// An object within a domain: the lower 48 bits, 0 is no object, 1 is the root directory of a domain. The upper 16 bits name
/// the snapshot in which it is meant, 0 for the domain as it is now. So it is an inode number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// No object.
    pub const NONE: ObjectId = ObjectId(0);
    /// The root directory of a domain.
    pub const ROOT: ObjectId = ObjectId(1);
    /// Largest id without a snapshot.
    pub const MAX: ObjectId = ObjectId((1 << 48) - 1);

    /// The id if the number is one an object can have.
    pub fn from_raw(raw: u64) -> Option<ObjectId> {
        (raw & Self::MAX.0 != 0).then_some(ObjectId(raw))
    }

    /// The snapshot in which the object is meant.
    pub fn snapshot(self) -> SnapshotId {
        SnapshotId((self.0 >> 48) as u16)
    }

    /// The object as it is now.
    pub fn live(self) -> ObjectId {
        ObjectId(self.0 & Self::MAX.0)
    }

    /// The object in a snapshot. No object stays none.
    pub fn in_snapshot(self, snapshot: SnapshotId) -> ObjectId {
        match self.live() {
            ObjectId::NONE => ObjectId::NONE,
            live => ObjectId(live.0 | u64::from(snapshot.0) << 48),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.snapshot() {
            SnapshotId::LIVE => write!(f, "#{}", self.0),
            SnapshotId(snapshot) => write!(f, "#{} of snapshot {snapshot}", self.live().0),
        }
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

/// What an object of [`DomainId::SYSTEM`] is, for messages: docs/format.md, "domain 0".
fn system_object(id: u64) -> Option<&'static str> {
    match (id / 16, id % 16) {
        (0, 0) => Some("table of system objects"),
        (0, 1) => Some("allocation bitmap"),
        (0, 2) => Some("reference table"),
        (1.., 0) => Some("object table"),
        (1.., 1) => Some("map of objects"),
        (1.., 2) => Some("map of orphans"),
        (1.., 3) => Some("list of snapshots"),
        (1.., 4) => Some("dead lists"),
        _ => None,
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            DomainId::SYSTEM => {
                let object = self.object.live();
                write!(f, "system object {object}")?;
                match (object.0 / 16, system_object(object.0)) {
                    (_, None) => {}
                    (0, Some(name)) => write!(f, " ({name})")?,
                    (domain, Some(name)) => write!(f, " ({name} of domain {domain})")?,
                }
            }
            DomainId(domain) => write!(f, "object {}:{}", domain, self.object.live().0)?,
        }
        match self.object.snapshot() {
            SnapshotId::LIVE => Ok(()),
            SnapshotId(snapshot) => write!(f, " of snapshot {snapshot}"),
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
