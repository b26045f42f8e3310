//! Snapshots as plain data.

use crate::{Attributes, Epoch, Error, ObjectId, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_MAX: usize = 255;

/// A kept state of a domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its number.
    pub id: SnapshotId,
    /// Its name, unique among the snapshots of the domain.
    pub name: String,
    /// The recovery point that it keeps.
    pub epoch: Epoch,
    /// When it was made.
    pub created: Timestamp,
    /// Objects in it.
    pub objects: u64,
    /// Blocks of 4 KiB that would be free without it: it is the only one that has them.
    pub blocks_only: u64,
}

/// A snapshot that is gone, and of which something is left to be freed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotDeletion {
    /// Its number, which no other has meanwhile.
    pub id: SnapshotId,
    /// The name that it had; another snapshot may have it now.
    pub name: String,
    /// About how many runs of blocks are to be freed or handed over to an older snapshot.
    pub runs_left: u64,
}

/// What only one snapshot has, as far as it has been counted: see [`crate::ObjectStore::snapshot_count_part`].
#[derive(Clone, Debug, Default)]
pub struct SnapshotCount {
    /// Blocks of 4 KiB that would be free without it.
    pub blocks: u64,
    /// Pages of its dead list that have been read.
    pub pages: u64,
    /// How often each block that is shared has been met.
    pub uses: HashMap<u64, u32>,
}

/// An object that differs between two states of a domain. With another generation it is another object of the same id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectChange {
    /// Its id, without a snapshot.
    pub object: ObjectId,
    /// In the first state, if it is there.
    pub before: Option<Attributes>,
    /// In the second state, if it is there.
    pub after: Option<Attributes>,
}

/// # Errors
/// [`Error::SnapshotName`] if a snapshot cannot have this name.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    let bytes = name.as_bytes();
    let fits = (1..=SNAPSHOT_NAME_MAX).contains(&bytes.len());
    if !fits || matches!(name, "." | "..") || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Error::SnapshotName(name.to_string()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "...", "before the update", "Sicherung-ä", &"x".repeat(255)] {
            check_snapshot_name(good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "a\0", &"x".repeat(256)] {
            assert_eq!(check_snapshot_name(bad), Err(Error::SnapshotName(bad.to_string())));
        }
    }

    #[test]
    fn ids_carry_the_snapshot() {
        let (id, snapshot) = (ObjectId(77), SnapshotId(5));
        let kept = id.in_snapshot(snapshot);
        assert_eq!((kept.snapshot(), kept.live()), (snapshot, id));
        assert_eq!(kept.in_snapshot(SnapshotId::LIVE), id);
        assert_eq!(ObjectId::NONE.in_snapshot(snapshot), ObjectId::NONE);
        assert_eq!(ObjectId::from_raw(5 << 48), None);
        for snapshot in [SnapshotId::LIVE, SnapshotId::MAX, SnapshotId::VIRTUAL] {
            assert!(
                i64::try_from(ObjectId::MAX.in_snapshot(snapshot).0).is_ok(),
                "a negative inode number: {snapshot:?}"
            );
        }
    }
}
