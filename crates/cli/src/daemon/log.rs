//! The log file of a mount in the background: its standard error.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A log that has grown beyond this when a mount is made is put aside (as `….old`, the one before is gone).
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Longest name of a log, without its ending, in bytes. A file name has at most 255.
const NAME_BYTES_MAX: usize = 200;

/// The log file of a store's mounts: `$XDG_STATE_HOME/holdfast/NAME.log`, by default in `~/.local/state`.
pub(crate) fn path(store: &Path) -> Option<PathBuf> {
    let state = crate::paths::directory("XDG_STATE_HOME", ".local/state").ok()?;
    Some(state.join("holdfast").join(format!("{}.log", name(store))))
}

/// A store's path as one name, different for each: `/` becomes `-`; `-`, `%` and what cannot be typed become `%` and two
/// hexadecimal digits. Of a long one the end, after a checksum of it all.
fn name(store: &Path) -> String {
    let mut name = String::new();
    for &byte in store.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or(store.as_os_str().as_bytes()) {
        match byte {
            b'/' => name.push('-'),
            b'-' | b'%' | 0..=b' ' | 0x7f.. => name.push_str(&format!("%{byte:02X}")),
            byte => name.push(char::from(byte)),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        let checksum = holdfast_integrity::crc64(store.as_os_str().as_bytes());
        // It is ASCII.
        name = format!("{checksum:016x}{}", &name[name.len() + 16 - NAME_BYTES_MAX..]);
    }
    name
}

/// A directory that only its owner may look into: logs and records of scrubs name files.
pub(super) fn private_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Opens a log file at its end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        private_directory(directory)?;
    }
    if fs::metadata(path).is_ok_and(|file| file.len() > LOG_BYTES_MAX) {
        let mut old = path.as_os_str().as_bytes().to_vec();
        old.extend_from_slice(b".old");
        fs::rename(path, Path::new(std::ffi::OsStr::from_bytes(&old)))?;
    }
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_has_a_log_of_its_own_with_a_name_that_fits() {
        for (store, expected) in [
            ("/data/my.store", "data-my.store"),
            ("/data-my.store", "data%2Dmy.store"),
            ("/data%2Dmy.store", "data%252Dmy.store"),
            ("/dev/mapper/my disk", "dev-mapper-my%20disk"),
            ("/é", "%C3%A9"),
        ] {
            assert_eq!(name(Path::new(store)), expected);
        }
        let end = "é/".repeat(300);
        let (one, other) = (name(Path::new(&format!("/a/{end}"))), name(Path::new(&format!("/b/{end}"))));
        assert_eq!((one.len(), other.len()), (NAME_BYTES_MAX, NAME_BYTES_MAX));
        assert_ne!(one, other);
        assert!(path(Path::new("/s")).unwrap().ends_with("holdfast/s.log"));
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/x.log");
        open(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        assert_eq!(open(&path).unwrap().metadata().unwrap().len(), 0);
        assert!(directory.path().join("sub/x.log.old").exists());
    }
}
