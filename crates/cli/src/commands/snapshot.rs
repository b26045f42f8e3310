//! `holdfast snapshot`: states of the files that are kept.

use crate::args::SnapshotAction;
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM};
use crate::output::{Format, Report, print};
use crate::size;
use crate::snapshots::{self, Change, Compared, LastComparison, Listed, Shown, SnapshotReply, SnapshotRequest};
use crate::stack::{self, Settings, Stack};
use holdfast_block::Access;
use holdfast_fuse::control;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    snapshot: Shown,
    /// Where it can be looked at, once it has been made.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl Report for Done {
    fn words(&self) -> String {
        let Shown { name, only_bytes, .. } = &self.snapshot;
        match &self.path {
            Some(path) => format!("Snapshot {name} keeps the files as they are now: {path}\n"),
            None => format!("Snapshot {name} is gone; only it had {}.\n", size::show(*only_bytes)),
        }
    }
}

/// Whom to ask.
enum Store {
    Mounted(PathBuf),
    /// Opened for reading.
    Closed(Box<Stack>, LastComparison),
}

impl Store {
    fn mounted(directory: &Path) -> Result<Store> {
        let path = mounts::resolve(directory)?;
        let mount = mounts::containing(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM);
        let mount = mount.ok_or_else(|| {
            Failure::new(format!("{} is in no mount of a store", path.display()))
                .hint("`holdfast status` lists what is mounted")
        })?;
        Ok(Store::Mounted(mount.directory))
    }

    fn any(target: &Path) -> Result<Store> {
        if target.is_dir() {
            return Store::mounted(target);
        }
        let path = stack::locate(target)?;
        let stack = Stack::open(stack::device(&path, Access::ReadOnly)?, &Settings::to_look())?;
        Ok(Store::Closed(Box::new(stack), LastComparison::default()))
    }

    fn ask(&self, request: &SnapshotRequest) -> Result<SnapshotReply> {
        let reply = match self {
            Store::Closed(stack, last) => snapshots::answer(stack, request, true, last)?,
            Store::Mounted(directory) => {
                let json = serde_json::to_vec(request).map_err(stack::says)?;
                let reply = File::open(directory).and_then(|file| control::snapshot(file, &json));
                let reply = reply.map_err(|error| Failure::at(directory, mounts::plain(&error)))?;
                serde_json::from_slice(&reply).map_err(|error| {
                    Failure::at(directory, format!("the mount gave no answer that makes sense: {error}"))
                })?
            }
        };
        match reply {
            SnapshotReply::Refused(message) => Err(Failure::new(message)),
            reply => Ok(reply),
        }
    }

    fn done(&self, request: &SnapshotRequest) -> Result<Shown> {
        match self.ask(request)? {
            SnapshotReply::Done(shown) => Ok(shown),
            _ => Err(no_sense()),
        }
    }

    fn list(&self) -> Result<Vec<Shown>> {
        let mut all = Vec::new();
        loop {
            match self.ask(&SnapshotRequest::List { skip: all.len() })? {
                SnapshotReply::List { snapshots, more } => {
                    all.extend(snapshots);
                    if !more {
                        return Ok(all);
                    }
                }
                _ => return Err(no_sense()),
            }
        }
    }

    fn diff(&self, from: &str, to: Option<&str>) -> Result<Vec<Change>> {
        let mut all = Vec::new();
        loop {
            let (from, to) = (from.to_string(), to.map(str::to_string));
            match self.ask(&SnapshotRequest::Diff { from, to, skip: all.len() })? {
                SnapshotReply::Diff { changes, more } => {
                    all.extend(changes);
                    if !more {
                        return Ok(all);
                    }
                }
                _ => return Err(no_sense()),
            }
        }
    }
}

fn no_sense() -> Failure {
    Failure::new("the mount answered something else than it was asked")
}

pub(crate) fn run(action: &SnapshotAction, format: Format) -> Result<()> {
    match action {
        SnapshotAction::Create { directory, name } => {
            let store = Store::mounted(directory)?;
            let snapshot = store.done(&SnapshotRequest::Create { name: name.clone() })?;
            let path = match &store {
                Store::Mounted(mount) => Some(mount.join(".holdfast/snapshots").join(name).display().to_string()),
                Store::Closed(..) => None,
            };
            print(format, &Done { snapshot, path });
        }
        SnapshotAction::Delete { directory, name } => {
            let snapshot = Store::mounted(directory)?.done(&SnapshotRequest::Delete { name: name.clone() })?;
            print(format, &Done { snapshot, path: None });
        }
        SnapshotAction::List { target } => print(format, &Listed { snapshots: Store::any(target)?.list()? }),
        SnapshotAction::Diff { target, from, to } => {
            print(format, &Compared { changes: Store::any(target)?.diff(from, to.as_deref())? });
        }
    }
    Ok(())
}
