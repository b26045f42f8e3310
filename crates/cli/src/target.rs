//! The mount that a command is about, and what to say when it cannot be asked.

use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::paths::shell;
use crate::{stack, users};
use std::fs::File;
use std::io;
use std::path::Path;

/// The mount that `path` names: a directory or file in it, or the store that it serves.
pub(crate) fn mount(path: &Path) -> Result<Mount> {
    let resolved = stack::locate(path)?;
    match of_store(&resolved)? {
        Some(mount) => Ok(mount),
        None => match mounts::containing(&resolved)?.filter(|mount| mount.file_system == FILE_SYSTEM) {
            Some(mount) => Ok(mount),
            None => Err(none(&resolved)),
        },
    }
}

/// The mount of a store, if `store` is one that is mounted.
pub(crate) fn of_store(store: &Path) -> Result<Option<Mount>> {
    let all = mounts::of_holdfast()?;
    // A mount point is no store, and looking at one may take for ever.
    if all.iter().any(|mount| store == mount.directory) {
        return Ok(None);
    }
    Ok(all.into_iter().rfind(|mount| mount.serves(store)))
}

fn none(path: &Path) -> Failure {
    if stack::is_store(path) {
        let store = shell(path);
        return Failure::new(format!("{} is a store that is not mounted", path.display()))
            .hint(format!("mount it first: holdfast mount {store} DIR"));
    }
    let failure = Failure::new(format!("{} is in no mount of a store", path.display()));
    let all = mounts::of_holdfast().unwrap_or_default();
    let all: Vec<_> = all.iter().map(|mount| shell(&mount.directory)).collect();
    failure.hint(match all.is_empty() {
        true => "nothing is mounted; to mount a store: holdfast mount STORE DIR".to_string(),
        false => format!("mounted are: {}", all.join(", ")),
    })
}

/// Asks a mount for something; `fails` is what cannot be done with it then, as `could not be synced`.
pub(crate) fn ask<T>(mount: &Mount, fails: &str, request: impl FnOnce(File) -> io::Result<T>) -> Result<T> {
    File::open(&mount.directory).and_then(request).map_err(|error| refused(mount, fails, &error))
}

fn refused(mount: &Mount, fails: &str, error: &io::Error) -> Failure {
    let directory = mount.directory.display();
    match error.kind() {
        io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted => {
            Failure::new(format!("{directory} {fails}: its daemon has died")).hint(abandoned(mount))
        }
        io::ErrorKind::PermissionDenied => users::mount_refused(mount),
        io::ErrorKind::ReadOnlyFilesystem => Failure::new(format!("{directory} {fails}: it takes no changes"))
            .hint(format!("why: holdfast status {}", shell(&mount.directory))),
        _ => Failure::new(format!("{directory} {fails}: {}", mounts::plain(error)))
            .hint(format!("holdfast status {} tells more", shell(&mount.directory))),
    }
}

/// What to do about a mount whose daemon has died.
pub(crate) fn abandoned(mount: &Mount) -> String {
    format!("mount it again: holdfast mount {} {}", shell(&mount.source), shell(&mount.directory))
}
