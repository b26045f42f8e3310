//! Errors with a place. No errno here: that is decided where the kernel is spoken to.

use crate::{DomainId, ObjectId, ObjectKey, PageIndex};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Result of the protocol's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Where something was found wrong. What is not known is left out of the message.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// Device name (a path), if a device is concerned.
    pub device: Option<String>,
    /// Block address on it, in 4 KiB blocks.
    pub address: Option<u64>,
    /// Object.
    pub object: Option<ObjectKey>,
    /// Level in the object's block tree; 0 is data.
    pub level: Option<u8>,
    /// Page index (level 0) or index of the tree block at its level.
    pub index: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |f: &mut fmt::Formatter<'_>, text: String| {
            let result = write!(f, "{separator}{text}");
            separator = ", ";
            result
        };
        if let Some(object) = &self.object {
            part(f, object.to_string())?;
        }
        match (self.level, self.index) {
            (Some(0) | None, Some(index)) => part(f, format!("page {index}"))?,
            (Some(level), Some(index)) => part(f, format!("tree block {index} of level {level}"))?,
            (Some(level), None) => part(f, format!("level {level}"))?,
            (None, None) => {}
        }
        if let Some(device) = &self.device {
            part(f, format!("device {device}"))?;
        }
        if let Some(address) = self.address {
            part(f, format!("block {address}"))?;
        }
        if separator.is_empty() {
            f.write_str("unknown place")?;
        }
        Ok(())
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Corruption {
    /// Where.
    pub place: Place,
    /// What was found wrong, in words ("checksum", "level", "record magic", …).
    pub what: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub got: String,
}

impl Corruption {
    /// What is wrong, in words, without the place: for reports that have it beside.
    pub fn without_place(&self) -> String {
        format!("{}: expected {}, got {}", self.what, self.expected, self.got)
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: expected {}, got {}", self.place, self.what, self.expected, self.got)
    }
}

/// Where bytes went bad.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Side {
    /// In memory.
    Memory,
    /// On the device, or the device failed.
    Device,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Memory => "in memory",
            Side::Device => "on the device",
        })
    }
}

/// A device that failed an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceFault {
    /// Device name (a path).
    pub device: String,
    /// "read", "write", "flush" or "discard".
    pub operation: String,
    /// First block concerned, where there is one.
    pub address: Option<u64>,
    /// Bytes concerned.
    pub length: u64,
    /// The object and its page that were to be read, where it was one. Its words have the page alone: people know files by their paths.
    pub page: Option<(ObjectKey, PageIndex)>,
    /// The system's words.
    pub cause: String,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: {} failed", self.device, self.operation)?;
        if let Some(address) = self.address {
            write!(f, " at block {address} ({} bytes)", self.length)?;
        }
        if let Some((_, index)) = &self.page {
            write!(f, ", page {index}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

/// What can go wrong below naming.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// No such object.
    #[error("{0} does not exist")]
    NoObject(ObjectKey),
    /// The object exists already.
    #[error("{0} exists already")]
    ObjectExists(ObjectKey),
    /// No room for the transaction; nothing of it was done.
    #[error("no space: {needed} blocks needed, {available} available")]
    NoSpace {
        /// In 4 KiB blocks.
        needed: u64,
        /// In 4 KiB blocks, without the reserve.
        available: u64,
    },
    /// The quota is used up; nothing of the transaction was done.
    #[error("over quota: {needed} blocks needed, {available} left of it")]
    OverQuota {
        /// In 4 KiB blocks.
        needed: u64,
        /// In 4 KiB blocks.
        available: u64,
    },
    /// Corrupt bytes that no copy could replace.
    #[error("corrupt: {0}")]
    Corrupt(Box<Corruption>),
    /// What the recovery point under way is made of has gone bad in memory: nothing of it reaches the device. See
    /// [`crate::ObjectStore::begin_anew`].
    #[error("the recovery point is given up: {0}")]
    GivenUp(Box<Corruption>),
    /// The block was lost earlier and has not been written since.
    #[error("lost block, {side}: {place}")]
    Lost {
        /// Where its bytes went bad.
        side: Side,
        /// Which.
        place: Box<Place>,
    },
    /// A device failed.
    #[error("{0}")]
    Device(Box<DeviceFault>),
    /// The store takes no changes any more, or was opened for reading only.
    #[error("read-only: {0}")]
    ReadOnly(String),
    /// Beyond a limit of the store.
    #[error("{what}: {got} is beyond the limit {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What was asked.
        got: u64,
    },
    /// A store does not become smaller. Nothing was changed.
    #[error("the store has {blocks} blocks of 4 KiB; it cannot become smaller, and {wanted} would be")]
    Smaller {
        /// What it has, in 4 KiB blocks.
        blocks: u64,
        /// What was asked, in 4 KiB blocks.
        wanted: u64,
    },
    /// The page pool has no frame to give, not even after a flush.
    #[error("no memory: all {frames} page frames are in use")]
    NoFrames {
        /// Size of the pool.
        frames: u64,
    },
    /// A snapshot does not change.
    #[error("{0} does not change")]
    InSnapshot(ObjectKey),
    /// No snapshot of this name or number.
    #[error("there is no snapshot {0}")]
    NoSnapshot(String),
    /// The name is taken.
    #[error("there is a snapshot {0} already")]
    SnapshotExists(String),
    /// The name cannot be one of a snapshot.
    #[error("{0:?} cannot be the name of a snapshot: 1 to 255 bytes, no '/' and no NUL, neither . nor ..")]
    SnapshotName(String),
    /// What is on the device is no store, or not one that this version can open. Nothing was changed.
    #[error("{0}")]
    NoStore(String),
    /// A neighbour said something that makes no sense.
    #[error("protocol: {0}")]
    Protocol(String),
}

impl Error {
    /// A [`Error::Corrupt`] at an object's page or tree block.
    pub fn corrupt(place: Place, what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Error {
        Error::Corrupt(Box::new(Corruption {
            place,
            what: what.into(),
            expected: expected.to_string(),
            got: got.to_string(),
        }))
    }

    /// Whether there was no room, on the device or within the quota.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::NoSpace { .. } | Error::OverQuota { .. })
    }

    /// The object of a domain whose contents the error is about, if it is about one. The store's own objects have ids as well, which
    /// mean nothing to anybody above.
    pub fn object(&self) -> Option<ObjectId> {
        let key = match self {
            Error::NoObject(key) | Error::ObjectExists(key) | Error::InSnapshot(key) => Some(*key),
            Error::Corrupt(corruption) => corruption.place.object,
            Error::Lost { place, .. } => place.object,
            _ => None,
        };
        key.filter(|key| key.domain != DomainId::SYSTEM).map(|key| key.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_store_itself_are_told_by_name_and_are_nobodys_file() {
        let place = |domain| Place {
            object: Some(ObjectKey { domain, object: ObjectId(20) }),
            index: Some(3),
            address: Some(7),
            ..Place::default()
        };
        let of_store = Error::corrupt(place(DomainId::SYSTEM), "checksum", 1, 2);
        let of_domain = Error::corrupt(place(DomainId::MAIN), "checksum", 1, 2);
        assert_eq!((of_store.object(), of_domain.object()), (None, Some(ObjectId(20))));
        let words = "corrupt: system object #20 (dead lists of domain 1), page 3, block 7: checksum: expected 1, got 2";
        assert_eq!(of_store.to_string(), words);
    }
}
