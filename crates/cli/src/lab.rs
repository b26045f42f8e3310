//! Damage on purpose to a store that is mounted for it (`holdfast mount --lab`): what the mount can be asked, and what it answers.

use crate::failure::Failure;
use clap::ValueEnum;
use holdfast_physical::inject::{BlockClass, Copies};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Pages in memory that may be hit.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum When {
    /// Written, and not on the disk yet
    Dirty,
    /// In memory as on the disk
    Clean,
    /// Whichever it is
    #[default]
    Any,
}

impl When {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            When::Dirty => "dirty",
            When::Clean => "clean",
            When::Any => "any",
        }
    }
}

/// Where bits are inverted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Where {
    /// In the page pool; of the page, or of the checksum that it is kept under.
    Memory { when: When, checksum: bool },
    /// On the disk, below the mount.
    Disk { copies: Copies },
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct InjectRequest {
    pub(crate) place: Where,
    pub(crate) kind: BlockClass,
    /// Of the file, in the store.
    pub(crate) path: Option<PathBuf>,
    pub(crate) page: Option<u64>,
    /// This bit of the page or checksum.
    pub(crate) bit: Option<u32>,
    /// Otherwise so many.
    pub(crate) bits: u32,
    /// Decides between the pages that remain, and which bits are inverted.
    pub(crate) seed: u64,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InjectReply {
    Done(Struck),
    Refused(Failure),
}

/// What was inverted where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Struck {
    pub(crate) object: String,
    /// Of the file, in the store.
    pub(crate) path: String,
    pub(crate) page: u64,
    /// Where the page was: `dirty`, `clean` (in memory), or `stored` (on the disk).
    pub(crate) state: String,
    /// `page`, or `checksum`.
    pub(crate) part: String,
    /// Of the page, from its first byte on, the lowest bit of a byte first; or of the checksum. Those of the first copy; the first ones,
    /// if they are many.
    pub(crate) bits: Vec<u32>,
    /// How many in each copy.
    pub(crate) bits_flipped: u32,
    /// On the device.
    pub(crate) blocks: Vec<u64>,
}
