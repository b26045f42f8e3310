//! What the check found, as plain data.

use crate::format::POINTERS;
use crate::objects::{BITMAP, system_key};
use holdfast_object::{DomainId, Epoch, Kind, ObjectKey, PageIndex, Place, Side};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Kinds of findings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A label block is damaged or missing.
    Label,
    /// A superblock is damaged, or not the same in all labels.
    Superblock,
    /// One copy of a block is bad, another one is good.
    BadCopy,
    /// A block has no good copy, or cannot be read.
    Unreadable,
    /// A block pointer is wrong in itself.
    Pointer,
    /// An object record is wrong in itself, or does not count right.
    Record,
    /// A block is used twice and is not a shared data block.
    DoublyUsed,
    /// A block is in use and free in the bitmap: it could be overwritten.
    UsedButFree,
    /// A block is not free and not in use: lost space.
    Leaked,
    /// The reference table does not count what there is.
    References,
    /// The reference table counts more uses of a block than there are, so that it would stay in use when it has none any more.
    UnusedReferences,
    /// The maps of objects or orphans do not match the records.
    Maps,
    /// The superblock or the end of the device and the bitmap do not agree on how many blocks are free.
    FreeBlocks,
    /// The superblock's other counters do not match.
    Counters,
    /// A block in a dead list was born at another time in a snapshot, or the list cannot be read.
    Snapshot,
    /// Blocks in a dead list that no snapshot has: they stay in use until the one goes whose list it is.
    Unheld,
    /// A block of a snapshot is neither its domain's nor in a dead list: it would stay in use when the snapshot is deleted.
    Unlisted,
    /// An entry of the list of snapshots that is in use cannot be what it says.
    SnapshotEntry,
    /// Something is in an entry that is free, of a table, list or map, or behind its end: it means nothing, and goes with the next change.
    FreeEntry,
    /// A page was lost earlier. No finding of the check itself: the store is as it says.
    Lost,
    /// The intent log is damaged where it had been acknowledged.
    Log,
    /// A page in the intent log has no good copy, and a later one is in its place: with this one nothing is lost.
    Obsolete,
    /// Something at the end of the intent log is not whole, as a power cut leaves it. No finding of the check itself.
    Torn,
}

/// One thing found wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// Where.
    pub place: Place,
    /// In words.
    pub what: String,
    /// It has been put right.
    pub repaired: bool,
}

/// What can be done about the allocation bitmap, and about entries ([`FindingKind::SnapshotEntry`], [`FindingKind::FreeEntry`],
/// [`FindingKind::UnusedReferences`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BitmapRemedy {
    /// Nothing has to be: it is as the trees have it, as far as they can be read, and entries are what they can be.
    #[default]
    NotNeeded,
    /// A check with [`repair`](super::CheckOptions::repair) makes it anew.
    Repair,
    /// The same, when a mount has replayed the intent log.
    RepairAfterReplay,
    /// A check with [`repair`](super::CheckOptions::repair), when the snapshots are gone that something is needed for.
    AfterSnapshots,
    /// Nothing: not all blocks in use can be reached, or made out otherwise, so nobody knows what should be in it.
    None,
}

/// Pages of regular files that were written in mode `none`, so that nothing tells whether they are as they were written. Nothing is wrong
/// with the store for that.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NoChecksum {
    /// Blocks that hold them: shared ones once.
    pub blocks: u64,
    /// Files that have some; a file of a snapshot if nobody else has them.
    pub files: u64,
    /// The first [`Report::FINDINGS_MAX`] of these, each with its pages without one, shared ones included.
    pub first: Vec<(ObjectKey, u64)>,
}

/// The result of a check. `Display` of a finding is one line.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The store.
    pub store_uuid: [u8; 16],
    /// Recovery point that was checked.
    pub epoch: Epoch,
    /// The store had been closed in order.
    pub clean: bool,
    /// Objects of all domains.
    pub objects: u64,
    /// Pages of objects, shared ones once for each use.
    pub pages: u64,
    /// Pages marked lost: an error when read, and nothing wrong with the store.
    pub lost_pages: u64,
    /// Where the first [`Report::FINDINGS_MAX`] of them are, and where their bytes went bad.
    pub lost: Vec<(Place, Side)>,
    /// Pages of files that could be read, and not verified.
    pub no_checksum: NoChecksum,
    /// Blocks of metadata of the store itself, each copy counted.
    pub metadata_blocks: u64,
    /// Blocks in use, with labels and log.
    pub used_blocks: u64,
    /// Batches in the intent log that are newer than the recovery point: the next mount replays them.
    pub log_batches: u64,
    /// The first [`Report::FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub found: u64,
    /// Of these, repaired.
    pub repaired: u64,
    /// Of these, blocks that cannot be read, nor any other copy of them, and that are left so; each copy counts.
    pub unreadable: u64,
    /// What a power cut leaves at the end of the intent log, and so nothing wrong with the store; but a disk that has lost
    /// a write leaves the same. The first [`Report::FINDINGS_MAX`].
    pub remarks: Vec<Finding>,
    /// What can be done about the allocation bitmap, or entries, if they are wrong.
    pub bitmap: BitmapRemedy,
    /// Blocks that nothing reaches, and that stay in use, as a snapshot may have them where it cannot be read: until it is deleted, and a check with
    /// [`repair`](super::CheckOptions::repair) has run then.
    pub withheld_blocks: u64,
    /// A tree could not be read to the end, so leaks were not looked for.
    pub incomplete: bool,
}

impl Report {
    /// Most findings kept.
    pub const FINDINGS_MAX: usize = 1000;

    /// Findings that remain.
    pub fn unrepaired(&self) -> u64 {
        self.found - self.repaired
    }

    /// What a later check `now` does not find any more has been repaired.
    pub(crate) fn compare(&mut self, now: &Report) {
        for finding in self.findings.iter_mut().filter(|finding| !finding.repaired) {
            let same = |other: &&Finding| {
                (other.kind, &other.place, &other.what) == (finding.kind, &finding.place, &finding.what)
            };
            finding.repaired = !now.findings.iter().any(|other| same(&other));
        }
        self.repaired = self.repaired.max(self.found.saturating_sub(now.found));
        self.unreadable = now.unreadable;
        self.bitmap = now.bitmap;
        self.withheld_blocks = now.withheld_blocks;
    }

    pub(crate) fn find(&mut self, kind: FindingKind, place: Place, what: impl Into<String>) {
        self.add(Finding { kind, place, what: what.into(), repaired: false });
    }

    pub(crate) fn remark(&mut self, place: Place, what: impl Into<String>) {
        if self.remarks.len() < Report::FINDINGS_MAX {
            self.remarks.push(Finding { kind: FindingKind::Torn, place, what: what.into(), repaired: false });
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.found += 1;
        self.repaired += u64::from(finding.repaired);
        self.unreadable += u64::from(finding.kind == FindingKind::Unreadable && !finding.repaired);
        if self.findings.len() < Report::FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

impl Finding {
    /// Whether it is about an entry, which [`Report::bitmap`] says what can be done about.
    pub fn is_about_entry(&self) -> bool {
        use FindingKind::{FreeEntry, SnapshotEntry, UnusedReferences};
        matches!(self.kind, SnapshotEntry | FreeEntry | UnusedReferences)
    }

    /// Whether it is about one block whose bytes are bad.
    pub fn is_about_bytes(&self) -> bool {
        use FindingKind::{BadCopy, Label, Log, Obsolete, Pointer, Superblock, Unreadable};
        matches!(self.kind, BadCopy | Label | Log | Obsolete | Pointer | Superblock | Unreadable)
    }

    /// Whether a new bitmap ([`Report::bitmap`]) puts it right.
    pub fn is_about_bitmap(&self) -> bool {
        use FindingKind::{FreeBlocks, Leaked, Pointer, Unreadable, UsedButFree};
        let of_bitmap = self.place.object == Some(system_key(BITMAP));
        matches!(self.kind, UsedButFree | Leaked | FreeBlocks) || of_bitmap && matches!(self.kind, Unreadable | Pointer)
    }

    /// The pages of an object of a domain that the finding is about: one, or all that a tree block leads to.
    pub fn pages(&self) -> Option<(ObjectKey, Range<PageIndex>)> {
        let key = self.place.object.filter(|key| key.domain != DomainId::SYSTEM)?;
        let (level, index) = (self.place.level?, self.place.index?);
        let pages = POINTERS.saturating_pow(level.into());
        let first = index.saturating_mul(pages);
        Some((key, first..first.saturating_add(pages)))
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let repaired = match self.kind {
            _ if !self.repaired => "",
            FindingKind::SnapshotEntry => " (repaired: that snapshot is DELETED, and what only it had is lost)",
            _ => " (repaired)",
        };
        write!(f, "{}: {}{repaired}", self.place, self.what)
    }
}

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockRole {
    /// A label block.
    Label,
    /// The newest superblock.
    Superblock,
    /// A block of pointers.
    Tree,
    /// Object records.
    ObjectTable,
    /// The allocation bitmap.
    Bitmap,
    /// The reference table.
    References,
    /// A map of object ids or orphans.
    Map,
    /// The list of a domain's snapshots.
    SnapshotList,
    /// A dead list of a snapshot.
    DeadList,
    /// A page of an object that is stored in two copies: of a directory, link or extended attributes.
    MetadataPage,
    /// A page of a regular file.
    Data,
    /// The head of a batch in the intent log.
    LogHead,
    /// A page in a batch of the intent log.
    LogPage,
    /// A page written ahead, which a batch of the intent log refers to.
    LogPlaced,
}

/// One use of one block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockUse {
    /// Block on the device.
    pub block: u64,
    /// For what.
    pub role: BlockRole,
    /// Which copy, from 0; of labels and superblocks the label's number.
    pub copy: u8,
    /// The object, if it is part of one.
    pub object: Option<ObjectKey>,
    /// Its kind, if it is one of a domain.
    pub kind: Option<Kind>,
    /// Level in the object's tree.
    pub level: u8,
    /// Index in that level; of blocks of the intent log, their number in it, each role counted for itself.
    pub index: u64,
    /// Only snapshots have it.
    pub held: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::ObjectId;

    #[test]
    fn a_tree_block_stands_for_all_pages_that_it_leads_to() {
        let finding = |domain, level, index| Finding {
            kind: FindingKind::Unreadable,
            place: Place {
                object: Some(ObjectKey { domain, object: ObjectId(7) }),
                level: Some(level),
                index: Some(index),
                ..Place::default()
            },
            what: String::new(),
            repaired: false,
        };
        let pages = |level, index| finding(DomainId::MAIN, level, index).pages().map(|(_, pages)| pages);
        assert_eq!(pages(0, 5), Some(5..6));
        assert_eq!(pages(1, 2), Some(2 * POINTERS..3 * POINTERS));
        assert_eq!(pages(2, 0), Some(0..POINTERS * POINTERS));
        assert_eq!(pages(255, u64::MAX), Some(u64::MAX..u64::MAX), "foreign numbers do not overflow");
        assert_eq!(finding(DomainId::SYSTEM, 0, 5).pages(), None);
    }
}
