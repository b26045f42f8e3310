//! Where a user's things are: the XDG base directories.

use crate::failure::{Failure, Result};
use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The user's home directory: HOME, or what the user database says where that is not set (a service of the system).
pub(crate) fn home() -> Result<PathBuf> {
    match env::home_dir() {
        Some(home) if home.is_absolute() => Ok(home),
        _ => Err(Failure::new("there is no home directory: HOME is not an absolute path")
            .hint("set HOME; or do without: holdfast create STORE, then holdfast mount STORE DIR")),
    }
}

/// What `variable` names, if it is an absolute path (others are to be ignored, says the specification); `default` in the
/// home directory otherwise.
pub(crate) fn directory(variable: &str, default: &str) -> Result<PathBuf> {
    match env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_absolute() => Ok(path),
        _ => Ok(home()?.join(default)),
    }
}

/// A file for a figure. Figures are SVG, so one that promises something else is refused.
pub(crate) fn svg(path: &str) -> std::result::Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.extension() {
        Some(other) if !other.eq_ignore_ascii_case("svg") => {
            Err(format!("figures are SVG; call it {}", path.with_extension("svg").display()))
        }
        _ => Ok(path),
    }
}

/// A path as it can be typed into a shell.
pub(crate) fn shell(path: &Path) -> String {
    crate::quoting::shell(path.as_os_str().as_bytes())
}
