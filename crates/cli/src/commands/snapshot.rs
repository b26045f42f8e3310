//! `holdfast snapshot`: states of the files that are kept.

use super::status;
use crate::args::SnapshotAction;
use crate::disks::{self, Given};
use crate::failure::{Failure, Result};
use crate::mounts::Mount;
use crate::output::{Format, Report, count, print};
use crate::paths::shell;
use crate::progress::{Progress, Unit};
use crate::quoting;
use crate::size;
use crate::snapshots::{self, Change, Compared, LastComparison, Listed, Shown, SnapshotReply, SnapshotRequest};
use crate::stack::{self, Settings, Stack};
use crate::target;
use holdfast_block::Access;
use holdfast_fuse::control;
use serde::Serialize;
use std::path::Path;

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
        let (name, only_bytes) = (quoting::name(&self.snapshot.name), self.snapshot.only_bytes);
        match &self.path {
            Some(path) => format!("Snapshot {name} keeps the files as they are now: {}\n", quoting::name(path)),
            None => format!("Snapshot {name} is gone; only it had {}.\n", size::show(only_bytes)),
        }
    }
}

/// Whom to ask.
enum Store {
    Mounted(Mount),
    /// Opened for reading.
    Closed(Box<Stack>, LastComparison),
}

impl Store {
    fn mounted(target: &Path) -> Result<Store> {
        target::mount(target).map(Store::Mounted)
    }

    fn any(target: &Path) -> Result<Store> {
        let path = stack::locate(target)?;
        if path.is_dir() || target::of_store(&path)?.is_some() {
            return Store::mounted(&path);
        }
        let stack =
            Stack::open(disks::open(&path, Access::ReadOnly, &Given::default())?.device(), &Settings::to_look())?;
        Ok(Store::Closed(Box::new(stack), LastComparison::default()))
    }

    fn ask(&self, request: &SnapshotRequest) -> Result<SnapshotReply> {
        let reply = match self {
            Store::Closed(stack, last) => snapshots::answer(stack, request, true, last)?,
            Store::Mounted(mount) => {
                if request.is_about_now() {
                    // What was written counts, also if it is still in the kernel's keeping.
                    target::ask(mount, "could not take all that was written", control::hand_down)?;
                }
                let json = serde_json::to_vec(request).map_err(stack::says)?;
                let reply =
                    target::ask(mount, "could not be asked about snapshots", |file| control::snapshot(file, &json))?;
                serde_json::from_slice(&reply).map_err(|error| {
                    Failure::at(&mount.directory, format!("the mount gave no answer that makes sense: {error}"))
                })?
            }
        };
        match reply {
            SnapshotReply::Refused(failure) => Err(failure),
            reply => Ok(reply),
        }
    }

    fn done(&self, request: &SnapshotRequest) -> Result<Shown> {
        match self.ask(request)? {
            SnapshotReply::Done(shown) => Ok(shown),
            _ => Err(no_sense()),
        }
    }

    /// Until all is free that only a deleted snapshot had.
    fn wait_for_deletion(&self, snapshot: &Shown) -> Result<()> {
        let mut progress: Option<(Progress, u64)> = None;
        loop {
            let SnapshotReply::Deletion { runs_left, stopped } =
                self.ask(&SnapshotRequest::Deletion { id: snapshot.id })?
            else {
                return Err(no_sense());
            };
            if runs_left == 0 {
                return Ok(());
            }
            if let Some(stopped) = stopped {
                let (name, why) = (quoting::name(&snapshot.name), &stopped.message);
                let message = format!("snapshot {name} is gone, but not all that only it had is free: {why}");
                return Err(Failure { message, ..stopped });
            }
            let (bar, total) = progress
                .get_or_insert_with(|| (Progress::of("freeing what only it had", runs_left, Unit::Runs), runs_left));
            bar.is_at(total.saturating_sub(runs_left));
            bar.pause();
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

/// Recognises a name where the directory belongs, and the directory where the name does.
fn swapped(failure: Failure, action: &str, name: &str, target: &Path) -> Failure {
    if target.exists() || target::mount(Path::new(name)).is_err() {
        return failure;
    }
    let (directory, name) = (shell(Path::new(name)), shell(target));
    Failure::usage(format!("{name} is no directory, and {directory} is one; the directory comes first"))
        .hint(format!("holdfast snapshot {action} {directory} {name}"))
}

/// The snapshot is there, and has not all that was written.
fn not_as_now(mount: &Mount, name: &str, pages: u64) -> Failure {
    let (directory, name) = (mount.directory.display(), quoting::name(name));
    let pages = count(pages, "page that went bad in memory and is", "pages that went bad in memory and are");
    Failure::new(format!("{directory}: snapshot {name} is made, with the old contents of {pages} not on the disk"))
        .hint("write the files again, which the log names (holdfast status says where it is), and make another")
}

fn no_sense() -> Failure {
    Failure::new("the mount answered something else than it was asked")
}

pub(crate) fn run(action: &SnapshotAction, format: Format) -> Result<()> {
    match action {
        SnapshotAction::Create { target, name } => {
            let store = Store::mounted(target).map_err(|failure| swapped(failure, "create", name, target))?;
            let snapshot = {
                let _shown = Progress::unknown("writing what is not on the disk yet");
                store.done(&SnapshotRequest::Create { name: name.clone() })?
            };
            let path = match &store {
                Store::Mounted(mount) => {
                    let pages = status::look(mount).pages_bad();
                    if pages > 0 {
                        return Err(not_as_now(mount, name, pages));
                    }
                    Some(mount.directory.join(".holdfast/snapshots").join(name).display().to_string())
                }
                Store::Closed(..) => None,
            };
            print(format, &Done { snapshot, path });
        }
        SnapshotAction::Delete { target, name } => {
            let store = Store::mounted(target).map_err(|failure| swapped(failure, "delete", name, target))?;
            let snapshot = {
                let _shown = Progress::unknown("writing what is not on the disk yet");
                store.done(&SnapshotRequest::Delete { name: name.clone() })?
            };
            store.wait_for_deletion(&snapshot)?;
            print(format, &Done { snapshot, path: None });
        }
        SnapshotAction::List { target } => {
            let snapshots = {
                let _shown = Progress::unknown("counting what each one keeps");
                Store::any(target)?.list()?
            };
            print(format, &Listed { snapshots });
        }
        SnapshotAction::Diff { target, from, to } => {
            let store = Store::any(target).map_err(|failure| swapped(failure, "diff", from, target))?;
            let changes = {
                let _shown = Progress::unknown("comparing");
                store.diff(from, to.as_deref())?
            };
            print(format, &Compared { changes });
        }
    }
    Ok(())
}
