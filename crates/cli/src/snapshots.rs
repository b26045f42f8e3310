//! What a mount, or a store that is not mounted, can be asked about snapshots, and what it answers.

use crate::failure::{Failure, Result};
use crate::output::Report;
use crate::size;
use crate::stack::{Stack, says};
use holdfast_naming::PathChange;
use holdfast_object::{ObjectCache, PAGE_SIZE, SnapshotId, SnapshotInfo, Snapshots};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

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

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SnapshotReply {
    /// After a creation and a deletion: the one concerned.
    Done(Shown),
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
    /// `+` new, `-` gone, `M` modified, `R` renamed.
    pub(crate) change: char,
    pub(crate) path: String,
    /// The new path of what was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
}

impl From<&PathChange> for Change {
    fn from(change: &PathChange) -> Change {
        let text = |path: &[u8]| match path {
            b"" => ".".to_string(),
            path => String::from_utf8_lossy(path).into_owned(),
        };
        let (change, path, to) = match change {
            PathChange::Added(path) => ('+', path, None),
            PathChange::Removed(path) => ('-', path, None),
            PathChange::Modified(path) => ('M', path, None),
            PathChange::Renamed(path, to) => ('R', path, Some(text(to))),
        };
        Change { change, path: text(path), to }
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
            [shown.name.clone(), made, shown.objects.to_string(), size::show(shown.only_bytes)]
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

/// Seconds after 1970 as a date and time of day in UTC. (The proleptic Gregorian calendar, years beginning in March.)
fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// A comparison that is handed out in parts: of which two states, and what it found.
type Comparison = (String, Option<String>, Vec<Change>);

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
            store.snapshot_create(name).map(|info| SnapshotReply::Done(Shown::from(&info))).map_err(says)
        }
        SnapshotRequest::Delete { name } => {
            allowed()?;
            let info = named(store, name)?;
            store.snapshot_delete(name).map(|()| SnapshotReply::Done(Shown::from(&info))).map_err(says)
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
            let length = |change: &Change| change.path.len() + change.to.as_ref().map_or(0, String::len);
            let (changes, more) = some(all.iter().skip(*skip).cloned(), length);
            if !more {
                *last = None;
            }
            Ok(SnapshotReply::Diff { changes, more })
        }
    }
}

fn compare(stack: &Stack, from: &str, to: Option<&String>) -> Result<Vec<Change>> {
    let id = |name: &str| named(&*stack.cache, name).map(|info| info.id);
    let from = id(from)?;
    let to = match to {
        Some(to) => id(to)?,
        None => {
            // What has been written so far counts.
            stack.cache.sync_all().map_err(says)?;
            SnapshotId::LIVE
        }
    };
    Ok(stack.namespace.diff(from, to).map_err(says)?.iter().map(Change::from).collect())
}

fn named(store: &dyn Snapshots, name: &str) -> Result<SnapshotInfo> {
    const NAMED: usize = 10;
    let mut all = store.snapshots().map_err(says)?;
    if let Some(at) = all.iter().position(|info| info.name == name) {
        return Ok(all.swap_remove(at));
    }
    let names: Vec<_> = all.iter().rev().take(NAMED).map(|info| info.name.as_str()).collect();
    Err(Failure::new(format!("there is no snapshot {name}")).hint(match all.len() {
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
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_237_203, "2026-11-21 05:00:03 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_reply_fits() {
        let long = |at: usize| Change { change: '+', path: format!("{at}{}", "\u{1}".repeat(400)), to: None };
        let (some, more) = some((0..100).map(long), |change| change.path.len());
        let reply = SnapshotReply::Diff { changes: some.clone(), more };
        assert!(more && some.len() > 3);
        assert!(serde_json::to_vec(&reply).unwrap().len() <= holdfast_fuse::control::STATUS_JSON_BYTES_MAX);
    }
}
