//! Where a user's things are: the XDG base directories.

use crate::failure::{Failure, Result};
use std::env;
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

/// A path as it can be typed into a shell.
pub(crate) fn shell(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell_where_they_must() {
        assert_eq!(shell(Path::new("/home/me/Holdfast")), "/home/me/Holdfast");
        assert_eq!(shell(Path::new("/it's here")), "'/it'\\''s here'");
        assert_eq!(shell(Path::new("")), "''");
    }
}
