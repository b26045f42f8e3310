//! Scrub steps: reading and verifying every copy of every block in use, a little at a time.
//!
//! Where a scrub is, is plain data ([`ScrubCursor`]) that the caller keeps, so it can be paused, and resumed after a
//! restart. What is written behind the cursor meanwhile is not looked at again: it was verified when it was written.

use crate::{BlockIdentity, DomainId, Epoch, ObjectKey, PageIndex, Place};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far a scrub has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubCursor {
    /// At the labels and superblocks, which come first.
    #[default]
    Start,
    /// At this page of this object: those of the store itself come first, then the domains', by ascending ids.
    At {
        /// The object.
        object: ObjectKey,
        /// Its next page.
        page: PageIndex,
    },
    /// At this page of this object (named without the snapshot) as the domain's snapshot of this epoch has it. Only what neither
    /// the domain nor an older snapshot has is read there. Snapshots come last, the oldest of a domain first.
    Kept {
        /// Whose snapshot.
        domain: DomainId,
        /// The recovery point that it keeps.
        epoch: Epoch,
        /// The domain's object table, which comes first, or an object of the domain.
        object: ObjectKey,
        /// Its next page.
        page: PageIndex,
    },
    /// Everything has been read.
    End,
}

/// Blocks read by a scrub, by what they are; each copy counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubCounts {
    /// Labels and superblocks.
    pub labels: u64,
    /// Metadata of the store itself: object tables, bitmap, reference table, maps and their trees.
    pub system: u64,
    /// Tree blocks of objects.
    pub tree: u64,
    /// Pages of directories, links and extended attributes.
    pub names: u64,
    /// Pages of regular files.
    pub data: u64,
    /// Of these, those without a checksum, as they were written in mode `none`: read, but not verified.
    #[serde(default)]
    pub no_checksum: u64,
    /// Pages of files lost before, which have no block any more.
    pub lost_before: u64,
    /// Bad copies replaced by good ones.
    pub repaired: u64,
    /// Pages of files without a good copy, marked as lost now.
    pub lost: u64,
    /// Blocks without a good copy that are not pages of files, or could not be marked, and copies that could not be
    /// replaced.
    pub unrepaired: u64,
}

impl ScrubCounts {
    /// Blocks read.
    pub fn blocks(&self) -> u64 {
        self.labels + self.system + self.tree + self.names + self.data
    }

    /// Adds another step's counts.
    pub fn add(&mut self, other: &ScrubCounts) {
        self.labels += other.labels;
        self.system += other.system;
        self.tree += other.tree;
        self.names += other.names;
        self.data += other.data;
        self.no_checksum += other.no_checksum;
        self.lost_before += other.lost_before;
        self.repaired += other.repaired;
        self.lost += other.lost;
        self.unrepaired += other.unrepaired;
    }
}

/// What became of something that a scrub found bad.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A good copy has been put in its place.
    Repaired,
    /// There is no good copy; the page reads as an error until it is written again: in a snapshot, for good.
    Lost,
    /// There is no good copy, or it could not be put in the bad one's place.
    Unrepaired,
}

/// Something that a scrub found bad.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// Where.
    pub place: Place,
    /// What is wrong, in words.
    pub what: String,
    /// What became of it.
    pub fate: Fate,
    /// Of a page of an object without a good copy: its block. A page in memory with the same one can be put in its place.
    #[serde(skip)]
    pub block: Option<BlockIdentity>,
}

impl fmt::Display for ScrubFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fate {
            Fate::Repaired => " (repaired)",
            Fate::Lost => " (LOST)",
            Fate::Unrepaired => " (NOT repaired)",
        };
        write!(f, "{}: {}{fate}", self.place, self.what)
    }
}

/// What a step did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStep {
    /// Where the next step begins.
    pub cursor: ScrubCursor,
    /// What this one read.
    pub counts: ScrubCounts,
    /// What it found.
    pub findings: Vec<ScrubFinding>,
    /// Blocks that a whole scrub has to read, as of now.
    pub blocks_in_use: u64,
}
