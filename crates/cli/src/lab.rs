//! Damage on purpose to a store that is mounted for it (`holdfast mount --lab`): what the mount can be asked, and what it answers.

use crate::failure::Failure;
use crate::output;
use crate::quoting::cut;
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

impl InjectReply {
    /// As JSON of at most so many bytes: a path, or what a refusal quotes, is cut if it would be longer.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Vec<u8> {
        output::json_within(self, bytes_max, |reply| match reply {
            InjectReply::Done(struck) => cut(&mut struck.path),
            InjectReply::Refused(failure) => {
                cut(&mut failure.message);
                failure.hint.as_mut().map(cut);
            }
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_room_for_any_path() {
        let struck = Struck {
            object: "1.77".into(),
            path: "/d".into(),
            page: 7,
            state: "dirty".into(),
            part: "page".into(),
            bits: (0..64).collect(),
            bits_flipped: 64,
            blocks: vec![1 << 40; 2],
        };
        let short = InjectReply::Done(struck.clone());
        let json = short.to_json(16_000);
        assert!(serde_json::from_slice::<InjectReply>(&json).unwrap() == short);
        // Names of 255 bytes each, of which JSON makes six times as much.
        let path = "/\u{1}".repeat(256 * 128);
        let long = Struck { path, ..struck };
        for reply in [InjectReply::Done(long.clone()), InjectReply::Refused(Failure::new(long.path.clone()))] {
            let json = reply.to_json(16_000);
            assert!(json.len() <= 16_000);
            match serde_json::from_slice(&json).unwrap() {
                InjectReply::Done(struck) => assert!(struck.page == 7 && long.path.starts_with(&struck.path)),
                InjectReply::Refused(failure) => assert!(long.path.starts_with(&failure.message)),
            }
        }
    }
}
