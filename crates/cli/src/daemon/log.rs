//! Where a mount says what it does: standard error, which a mount in the background has in a file.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// A log that has grown beyond this when a mount is made is put aside (as `….old`, the one before is gone).
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Logs to standard error: `info` and above, or what `HOLDFAST_LOG` says (as `debug`, or `holdfast_cache=trace`).
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour);
    // Fails only if there is one already.
    let _ = log.with_target(false).try_init();
}

/// The log file of a store's mounts: `$XDG_STATE_HOME/holdfast/PATH.log`, by default in `~/.local/state`.
pub(crate) fn path(store: &Path) -> Option<PathBuf> {
    let state = crate::paths::directory("XDG_STATE_HOME", ".local/state").ok()?;
    let name: String = store.to_string_lossy().trim_start_matches('/').replace('/', "-");
    // A name has at most 255 bytes; its end tells more than its beginning.
    let mut from = name.len().saturating_sub(200);
    while !name.is_char_boundary(from) {
        from += 1;
    }
    Some(state.join("holdfast").join(format!("{}.log", &name[from..])))
}

/// Opens a log file at its end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
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
        let name = |store: &str| path(Path::new(store)).unwrap().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(name("/data/my.store"), "data-my.store.log");
        let long = format!("/{}/é", "é/".repeat(300));
        assert!(name(&long).len() <= 255);
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
