//! Records that mounts of a store leave for later ones, beside their log: `$XDG_STATE_HOME/holdfast/WHAT-UUID.json`. They are no part of the
//! store: another machine has others.
//!
//! The directory is opened before the mount is made, and kept: by its path, a directory that the mount covers would be in the mount itself.
//! There the next mount would not look, and a worker that writes a record would wait for its own answer.

use crate::report::show_uuid;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

fn path(what: &str, uuid: &[u8; 16]) -> Option<PathBuf> {
    let state = crate::paths::directory("XDG_STATE_HOME", ".local/state").ok()?;
    Some(state.join("holdfast").join(format!("{what}-{}.json", show_uuid(uuid))))
}

/// Where a record is.
pub(super) struct RecordFile {
    directory: File,
    name: String,
    /// For messages.
    pub(super) path: PathBuf,
}

impl RecordFile {
    /// Of the store with this UUID; nothing if there is no home directory.
    pub(super) fn of(what: &str, uuid: &[u8; 16]) -> io::Result<Option<RecordFile>> {
        path(what, uuid).map(RecordFile::open).transpose()
    }

    /// The same, for who only looks: nothing where no mount has been.
    pub(super) fn existing(what: &str, uuid: &[u8; 16]) -> Option<RecordFile> {
        RecordFile::within(path(what, uuid)?).ok()
    }

    pub(super) fn open(path: PathBuf) -> io::Result<RecordFile> {
        super::log::private_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        RecordFile::within(path)
    }

    /// In a directory that is there.
    fn within(path: PathBuf) -> io::Result<RecordFile> {
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_string);
        let (Some(name), Some(above)) = (name, path.parent()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        Ok(RecordFile { directory: File::open(above)?, name, path })
    }

    /// What it says; nothing if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is nonsense.
    pub(super) fn load<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        match openat(&self.directory, &self.name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(Some(serde_json::from_str(&io::read_to_string(File::from(file))?)?)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What it says, if it can be made out; if not, the log says so.
    pub(super) fn load_or_warn<T: DeserializeOwned>(&self) -> Option<T> {
        self.load().unwrap_or_else(|error| {
            tracing::warn!(file = %self.path.display(), %error, "what earlier mounts have left cannot be read, and counts as nothing");
            None
        })
    }

    /// Replaces the record as a whole: a crash leaves the old one or the new one.
    pub(super) fn save<T: Serialize>(&self, record: &T) -> io::Result<()> {
        let new = format!("{}.new", self.name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, &new, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        Ok(renameat(&self.directory, &new, &self.directory, &self.name)?)
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.directory, &self.name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_replaced_as_a_whole_and_nonsense_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/what-x.json");
        let file = RecordFile::open(path.clone()).unwrap();
        for record in [vec![7, 8], vec![]] {
            file.save(&record).unwrap();
            assert_eq!(file.load().unwrap(), Some(record));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for (nonsense, kind) in [("[7", io::ErrorKind::UnexpectedEof), ("{", io::ErrorKind::InvalidData)] {
            std::fs::write(&path, nonsense).unwrap();
            assert_eq!(file.load::<Vec<u32>>().unwrap_err().kind(), kind, "{nonsense}");
        }
        file.remove().unwrap();
        assert!(!path.exists() && file.load::<Vec<u32>>().unwrap().is_none());
    }
}
