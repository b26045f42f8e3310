//! What a mount, or a store that is not mounted, can be asked about snapshots, and what it answers.

use crate::date::utc;
use crate::failure::{Failure, Result};
use crate::output::Report;
use crate::quoting;
use crate::size;
use crate::stack::{Stack, says};
use holdfast_naming::PathChange;
use holdfast_object::{Error, ObjectStore, PAGE_SIZE, SnapshotId, SnapshotInfo, Snapshots};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SnapshotRequest {
    Create {
        name: String,
    },
    Delete {
        name: String,
    },
    /// How far the deletion of a snapshot is, by its number.
    Deletion {
        id: u16,
    },
    List {
        /// How many to leave out.
        skip: usize,
    },
    Diff {
        from: String,
        /// Nothing: the files as they are now.
        to: Option<String>,
        skip: usize,
    },
}

impl SnapshotRequest {
    /// Whether the files as they are now have to do with it. A deletion must not be refused for what there was no room for.
    pub(crate) fn is_about_now(&self) -> bool {
        matches!(self, SnapshotRequest::Create { .. } | SnapshotRequest::Diff { to: None, .. })
    }
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SnapshotReply {
    /// After a creation and a deletion: the one concerned.
    Done(Shown),
    /// Of a deletion: about how many runs of blocks are still to be freed, and why they are not, if so.
    Deletion {
        runs_left: u64,
        stopped: Option<Failure>,
    },
    /// As many as fit; `more`: ask again for the rest.
    List {
        snapshots: Vec<Shown>,
        more: bool,
    },
    Diff {
        changes: Vec<Change>,
        more: bool,
    },
    Refused(Failure),
}

/// A snapshot as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) name: String,
    /// Upper 16 bits of the inode numbers in it.
    pub(crate) id: u16,
    /// The recovery point that it keeps.
    pub(crate) epoch: u64,
    /// Seconds after 1970.
    pub(crate) created_s: i64,
    pub(crate) objects: u64,
    /// What deleting it alone would give back.
    pub(crate) only_bytes: u64,
}

impl From<&SnapshotInfo> for Shown {
    fn from(info: &SnapshotInfo) -> Shown {
        Shown {
            name: info.name.clone(),
            id: info.id.0,
            epoch: info.epoch,
            created_s: info.created.secs,
            objects: info.objects,
            only_bytes: info.blocks_only * PAGE_SIZE as u64,
        }
    }
}

/// What became of a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// `+` new, `-` gone, `M` modified, `A` only attributes changed, `R` renamed.
    pub(crate) change: char,
    pub(crate) path: Name,
    /// The new path of what was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<Name>,
}

/// A path, whose names may be any bytes. In JSON: a string if it is UTF-8, otherwise `{"hex": "…"}`, two digits a byte. In text:
/// as [`quoting::name`] has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Name {
    Text(String),
    Bytes { hex: String },
}

impl Name {
    fn new(path: &[u8]) -> Name {
        match std::str::from_utf8(path) {
            Ok("") => Name::Text(".".into()),
            Ok(text) => Name::Text(text.into()),
            Err(_) => Name::Bytes { hex: path.iter().map(|byte| format!("{byte:02x}")).collect() },
        }
    }

    /// Nonsense from elsewhere gives no bytes.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Name::Text(text) => text.as_bytes().to_vec(),
            Name::Bytes { hex } => {
                let digits = hex.as_bytes().chunks(2).map(std::str::from_utf8);
                digits.filter_map(|pair| u8::from_str_radix(pair.ok()?, 16).ok()).collect()
            }
        }
    }

    fn length(&self) -> usize {
        match self {
            Name::Text(text) | Name::Bytes { hex: text } => text.len(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoting::name(self.bytes()))
    }
}

impl From<&PathChange> for Change {
    fn from(change: &PathChange) -> Change {
        let (change, path, to) = match change {
            PathChange::Added(path) => ('+', path, None),
            PathChange::Removed(path) => ('-', path, None),
            PathChange::Modified(path) => ('M', path, None),
            PathChange::Attributes(path) => ('A', path, None),
            PathChange::Renamed(path, to) => ('R', path, Some(Name::new(to))),
        };
        Change { change, path: Name::new(path), to }
    }
}

#[derive(Serialize)]
pub(crate) struct Listed {
    pub(crate) snapshots: Vec<Shown>,
}

impl Report for Listed {
    fn words(&self) -> String {
        if self.snapshots.is_empty() {
            return "No snapshots.\n".into();
        }
        let title = ["snapshot", "made", "objects", "only in it"].map(String::from);
        let row = |shown: &Shown| {
            let made = utc(shown.created_s);
            [quoting::name(&shown.name), made, shown.objects.to_string(), size::show(shown.only_bytes)]
        };
        let rows: Vec<[String; 4]> = std::iter::once(title).chain(self.snapshots.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        let line = |row: &[String; 4]| {
            format!("{:<3$}  {:<4$}  {:>5$}", row[0], row[1], row[2], widths[0], widths[1], widths[2])
                + &format!("  {:>1$}\n", row[3], widths[3])
        };
        rows.iter().map(line).collect()
    }
}

#[derive(Serialize)]
pub(crate) struct Compared {
    pub(crate) changes: Vec<Change>,
}

impl Report for Compared {
    fn words(&self) -> String {
        let line = |Change { change, path, to }: &Change| match to {
            Some(to) => format!("{change} {path} -> {to}\n"),
            None => format!("{change} {path}\n"),
        };
        self.changes.iter().map(line).collect()
    }
}

/// A comparison that is handed out in parts: of which two states, and what it found.
type Comparison = (String, Option<String>, Vec<Change>);

/// Name of the snapshot that stands for now, for as long as it is compared with.
const NOW: &str = "now, to be compared";

/// The comparison made last, for those who come back for the rest of it.
#[derive(Default)]
pub(crate) struct LastComparison(Mutex<Option<Comparison>>);

/// Does what is asked of the store of a stack. `is_owner`: who asks may make, delete and compare snapshots. (A comparison names
/// files in directories that others may not read.)
pub(crate) fn answer(
    stack: &Stack,
    request: &SnapshotRequest,
    is_owner: bool,
    last: &LastComparison,
) -> Result<SnapshotReply> {
    let store: &dyn Snapshots = &*stack.cache;
    let allowed = || match is_owner {
        true => Ok(()),
        false => Err(Failure::new("only root and the user who mounted the store make, delete and compare snapshots")),
    };
    match request {
        SnapshotRequest::Create { name } => {
            allowed()?;
            let made = store.snapshot_create(name).map(|info| SnapshotReply::Done(Shown::from(&info)));
            made.map_err(|error| no_room(store, error))
        }
        SnapshotRequest::Delete { name } => {
            allowed()?;
            let deleted = store.snapshot_delete(name);
            if let Err(Error::NoSnapshot(_)) = &deleted {
                // It says which there are.
                named(store.snapshots_uncounted().map_err(says)?, name)?;
            }
            deleted.map(|info| SnapshotReply::Done(Shown::from(&info))).map_err(says)
        }
        SnapshotRequest::Deletion { id } => {
            // First of all: it may come to its end between the two.
            let stopped = stack.cache.deletion_stopped(SnapshotId(*id)).map(stopped);
            let left = store.snapshot_deletions().into_iter().find(|deletion| deletion.id.0 == *id);
            Ok(SnapshotReply::Deletion { runs_left: left.map_or(0, |left| left.runs_left), stopped })
        }
        SnapshotRequest::List { skip } => {
            let all = store.snapshots().map_err(says)?;
            let (snapshots, more) = some(all.iter().skip(*skip).map(Shown::from), |shown| shown.name.len());
            Ok(SnapshotReply::List { snapshots, more })
        }
        SnapshotRequest::Diff { from, to, skip } => {
            allowed()?;
            let mut last = last.0.lock();
            let is_rest = last.as_ref().is_some_and(|(known, other, _)| *skip > 0 && (known, other) == (from, to));
            if !is_rest {
                let changes = compare(stack, from, to.as_ref())?;
                *last = Some((from.clone(), to.clone(), changes));
            }
            let all = last.as_ref().map_or(&[][..], |(.., changes)| changes);
            let length = |change: &Change| change.path.length() + change.to.as_ref().map_or(0, Name::length);
            let (changes, more) = some(all.iter().skip(*skip).cloned(), length);
            if !more {
                *last = None;
            }
            Ok(SnapshotReply::Diff { changes, more })
        }
    }
}

/// Why a deletion does not go on, and what has it go on.
fn stopped(error: Error) -> Failure {
    let hint = match &error {
        error if error.is_full() => {
            "it goes on by itself when there is more room: delete files, or make the store larger"
        }
        Error::ReadOnly(_) => "the next mount that takes changes goes on with it",
        _ => "what cannot be freed stays in use; the next mount tries again",
    };
    says(error).hint(hint)
}

/// Why there is no snapshot, and if there is no room for one, what makes room.
fn no_room(store: &dyn Snapshots, error: Error) -> Failure {
    let (Error::NoSpace { needed, available } | Error::OverQuota { needed, available }) = error else {
        return says(error);
    };
    let show = |blocks: u64| size::show(blocks.saturating_mul(PAGE_SIZE as u64));
    let (must_be, larger) = match error {
        Error::OverQuota { .. } => ("of the quota must be free", "mount with a larger quota"),
        _ => ("must be free, so that all can be deleted", "make the store larger: holdfast grow DIR +SIZE"),
    };
    let lack = show(needed.saturating_sub(available));
    let largest = store.snapshots().unwrap_or_default().into_iter().max_by_key(|info| info.blocks_only);
    let delete = match largest {
        None => format!("delete files of {lack} or more"),
        Some(info) => format!(
            "delete snapshots, as files that one has give nothing back; {} gives back {}",
            quoting::name(&info.name),
            show(info.blocks_only)
        ),
    };
    let (needed, available) = (show(needed), show(available));
    Failure::new(format!("no room for a snapshot: {needed} {must_be}, and {available} are"))
        .hint(format!("{delete}; or {larger}"))
}

fn compare(stack: &Stack, from: &str, to: Option<&String>) -> Result<Vec<Change>> {
    // Not what each of them keeps: that takes time in proportion to it.
    let all = stack.cache.snapshots_uncounted().map_err(says)?;
    let id = |name: &str| named(all.clone(), name).map(|info| info.id);
    let from = id(from)?;
    let diff = |to| -> Result<Vec<Change>> {
        Ok(stack.namespace.diff(from, to).map_err(says)?.iter().map(Change::from).collect())
    };
    if let Some(to) = to {
        return diff(id(to)?);
    }
    let store = &*stack.cache;
    if stack.module.status().read_only.is_some() {
        // Nothing changes.
        return diff(SnapshotId::LIVE);
    }
    // A snapshot has one moment, whatever changes meanwhile. One may be there still from a mount that was killed.
    forget(store, NOW)?;
    let now = match store.snapshot_create(NOW) {
        Ok(now) => now,
        // As good as it gets: what changes meanwhile may show as it was or as it is.
        Err(Error::NoSpace { .. }) => return diff(SnapshotId::LIVE),
        Err(error) => return Err(says(error)),
    };
    let changes = diff(now.id);
    forget(store, NOW)?;
    changes
}

/// Deletes a snapshot if it is there.
fn forget(store: &dyn Snapshots, name: &str) -> Result<()> {
    match store.snapshot_delete(name) {
        Ok(_) | Err(Error::NoSnapshot(_)) => Ok(()),
        Err(error) => Err(says(error)),
    }
}

fn named(mut all: Vec<SnapshotInfo>, name: &str) -> Result<SnapshotInfo> {
    const NAMED: usize = 10;
    if let Some(at) = all.iter().position(|info| info.name == name) {
        return Ok(all.swap_remove(at));
    }
    let names: Vec<_> = all.iter().rev().take(NAMED).map(|info| quoting::name(&info.name)).collect();
    Err(Failure::new(format!("there is no snapshot {}", quoting::name(name))).hint(match all.len() {
        0 => "there are none; to make one: holdfast snapshot create DIR NAME".to_string(),
        1..=NAMED => format!("there are: {}", names.join(", ")),
        number => format!("there are {number}, the last ones: {}", names.join(", ")),
    }))
}

/// As many as fit into a reply as JSON, and whether there are more. A name takes at most six bytes for one in JSON.
fn some<T>(items: impl Iterator<Item = T>, text_bytes: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
    const OTHER_BYTES: usize = 160;
    let mut room = holdfast_fuse::control::STATUS_JSON_BYTES_MAX - OTHER_BYTES;
    let mut taken = Vec::new();
    for item in items {
        let bytes = OTHER_BYTES + 6 * text_bytes(&item);
        if bytes > room && !taken.is_empty() {
            return (taken, true);
        }
        room = room.saturating_sub(bytes);
        taken.push(item);
    }
    (taken, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_are_shown_as_they_are() {
        for (name, text, json) in [
            (&b""[..], ".", r#"".""#),
            (b"a/b c", "a/b c", r#""a/b c""#),
            ("\u{e4}".as_bytes(), "\u{e4}", "\"\u{e4}\""),
            (b"\xffa\xe4", r#""\377a\344""#, r#"{"hex":"ff61e4"}"#),
            (b"a\nb\x01", r#""a\nb\001""#, r#""a\nb\u0001""#),
            (b"a -> b", r#""a -> b""#, r#""a -> b""#),
            (b"\"q\\", r#""\"q\\""#, r#""\"q\\""#),
        ] {
            let name = Name::new(name);
            assert_eq!((&*name.to_string(), &*serde_json::to_string(&name).unwrap()), (text, json));
            assert_eq!(serde_json::from_str::<Name>(json).unwrap(), name);
        }
    }

    #[test]
    fn a_reply_fits() {
        let long = |at: usize| Change::from(&PathChange::Added(format!("{at}{}", "\u{1}".repeat(400)).into_bytes()));
        let (some, more) = some((0..100).map(long), |change| change.path.length());
        let reply = SnapshotReply::Diff { changes: some.clone(), more };
        assert!(more && some.len() > 3);
        assert!(serde_json::to_vec(&reply).unwrap().len() <= holdfast_fuse::control::STATUS_JSON_BYTES_MAX);
    }
}
