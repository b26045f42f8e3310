//! Damage on purpose to a store that is mounted for it (`holdfast mount --lab`): what the mount can be asked, and what it answers.

use crate::failure::Failure;
use crate::output;
use crate::quoting::cut;
use clap::ValueEnum;
use holdfast_physical::inject::{BlockClass, Copies};
use holdfast_physical::scribble::{Aim, Blow, LogicBug, MetaKind};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What in memory may be hit.
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
    /// Otherwise, in memory, what this says.
    pub(crate) aim: Option<Aim>,
    /// Decides between the pages that remain, and which bits are inverted.
    pub(crate) seed: u64,
    /// In memory, without unlocking it.
    pub(crate) astray: bool,
}

/// What the mount is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Asked {
    Metadata { metadata: MetadataRequest },
    Page(InjectRequest),
}

/// A request about metadata in memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MetadataRequest {
    /// To damage it.
    Strike {
        /// What to do; of what is written over, object and states are chosen by what follows.
        blow: Blow,
        /// Of this file, in the store.
        path: Option<PathBuf>,
        when: When,
        /// With so many attempts to make a recovery point, if it is done with one.
        times: u32,
        /// Where that waits for one: what the mount is to do now.
        step: Step,
    },
    /// What there is.
    List {
        /// Each one of this kind; otherwise how many of each kind.
        kind: Option<MetaKind>,
        object: Option<(u16, u64)>,
        path: Option<PathBuf>,
    },
}

/// What of waiting for a recovery point a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// Nothing: the recovery point that is made for it, or none.
    Once,
    /// To begin, for so long.
    Begin { within_ms: u64 },
    /// To tell how it is.
    Look,
    /// To end it.
    End,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InjectReply {
    Done(Struck),
    Metadata(MetadataStruck),
    Listed(MetadataListed),
    /// For what a strike waits.
    Waiting(String),
    Refused(Failure),
}

impl InjectReply {
    /// As JSON of at most so many bytes: a path, or what a refusal quotes, is cut if it would be longer.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Vec<u8> {
        output::json_within(self, bytes_max, |reply| match reply {
            InjectReply::Done(struck) => cut(&mut struck.path),
            InjectReply::Metadata(done) => {
                for blow in &mut done.struck {
                    blow.path.as_mut().map(cut);
                    blow.what.as_mut().map(cut);
                }
                if let Some(made) = &mut done.recovery_point {
                    made.found.iter_mut().for_each(cut);
                    made.read_only.as_mut().map(cut);
                }
                // What of several was hit first is told.
                done.struck.truncate(done.struck.len().div_ceil(2));
            }
            InjectReply::Listed(listed) => {
                listed.targets.iter_mut().filter_map(|target| target.path.as_mut()).for_each(cut);
                listed.targets.truncate(listed.targets.len() / 2);
            }
            InjectReply::Waiting(what) => cut(what),
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
    /// What was written over, if it was said where or with what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scribble: Option<Scribble>,
    /// On the device.
    pub(crate) blocks: Vec<u64>,
}

/// What was done to metadata in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MetadataStruck {
    /// Each time.
    pub(crate) struck: Vec<MetadataBlow>,
    /// Nothing else in memory is called the same.
    #[serde(default)]
    pub(crate) is_only: bool,
    /// The one that was struck on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_point: Option<Struggle>,
}

/// Metadata that was written over, or changed wrongly: one of both.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MetadataBlow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logic_bug: Option<LogicBug>,
    /// What is wrong by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) what: Option<String>,
    #[serde(flatten)]
    pub(crate) target: Option<MetadataTarget>,
    /// Of the object, if it is a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scribble: Option<Scribble>,
}

/// Bytes that are others now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Scribble {
    /// Of the first.
    pub(crate) offset: usize,
    pub(crate) field: String,
    /// Two hexadecimal digits for each byte.
    pub(crate) before: String,
    pub(crate) after: String,
}

/// A piece of metadata in memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MetadataTarget {
    pub(crate) kind: MetaKind,
    pub(crate) state: String,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    /// As `--object` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) object_number: Option<String>,
    pub(crate) level: u8,
    pub(crate) index: u64,
}

impl std::fmt::Display for MetadataTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MetadataTarget { kind, state, object, level, index, .. } = self;
        write!(f, "{kind}, {state}")?;
        if let Some(object) = object {
            write!(f, ", {object}, level {level}")?;
        }
        write!(f, ", index {index}")
    }
}

/// How a recovery point came about that was struck on its way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Struggle {
    /// The last one now.
    pub(crate) epoch: u64,
    /// Counted meanwhile.
    pub(crate) scribbles: u64,
    pub(crate) audit_failures: u64,
    pub(crate) restarts: u64,
    /// Why it was given up, each time, and what was put right.
    pub(crate) found: Vec<String>,
    /// Why it was not made in the end.
    pub(crate) read_only: Option<String>,
    /// Of a logic bug: nothing audits recovery points, so it is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unaudited: bool,
}

/// What metadata is in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MetadataListed {
    /// How many of each kind, by state.
    pub(crate) counts: Vec<(MetaKind, String, u64)>,
    /// Of the kind that was asked for, the first ones.
    pub(crate) targets: Vec<ListedTarget>,
    /// Of the first of them.
    pub(crate) form: Option<FormListed>,
}

/// One piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ListedTarget {
    #[serde(flatten)]
    pub(crate) target: MetadataTarget,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
}

/// Equal slots, one after the other, with these fields each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FormListed {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    /// Name, first byte, length.
    pub(crate) fields: Vec<(String, usize, usize)>,
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
            scribble: None,
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
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_reply_about_metadata_has_an_end() {
        let target = MetadataTarget {
            kind: MetaKind::BlockTree,
            state: "clean".into(),
            object: Some("object 1:77".into()),
            object_number: Some("1:77".into()),
            level: 1,
            index: 3,
        };
        let path = Some("/\u{1}".repeat(256 * 16));
        let bytes = "0f".repeat(512);
        let blow = MetadataBlow {
            target: Some(target.clone()),
            path: path.clone(),
            scribble: Some(Scribble { offset: 1, field: "address".into(), before: bytes.clone(), after: bytes }),
            ..MetadataBlow::default()
        };
        let found = vec!["x".repeat(3000); 8];
        let recovery_point = Some(Struggle {
            epoch: 1,
            scribbles: 8,
            audit_failures: 0,
            restarts: 3,
            found,
            read_only: None,
            is_unaudited: true,
        });
        let done = MetadataStruck { struck: vec![blow; 8], is_only: false, recovery_point };
        let json = InjectReply::Metadata(done.clone()).to_json(16_000);
        assert!(json.len() <= 16_000);
        let Ok(InjectReply::Metadata(told)) = serde_json::from_slice(&json) else { panic!("no reply") };
        assert_eq!(told.struck[0].target, done.struck[0].target);
        let targets = vec![ListedTarget { target, path }; 100];
        let json = InjectReply::Listed(MetadataListed { targets, ..MetadataListed::default() }).to_json(16_000);
        assert!(json.len() <= 16_000 && matches!(serde_json::from_slice(&json), Ok(InjectReply::Listed(_))));
    }
}
