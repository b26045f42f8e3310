//! Tables of pages under `docs/` that programs of the lab write, and of what sources they are.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a table stands: between two marks of a page.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The page, from the repository's root on.
    pub page: &'static str,
    /// The name in the marks.
    pub mark: &'static str,
}

impl Place {
    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(self.page)
    }

    /// The page as it is, and as it is with this table.
    ///
    /// # Errors
    /// It cannot be read, or has no such marks.
    pub fn renewed(&self, table: &str) -> io::Result<(String, String)> {
        let page = std::fs::read_to_string(self.path())?;
        let (begin, end) = (format!("<!-- {}: begin -->\n", self.mark), format!("<!-- {}: end -->\n", self.mark));
        let parts = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        let Some((before, after)) = parts else {
            return Err(io::Error::other(format!("{} has no place for the table {}", self.page, self.mark)));
        };
        let renewed = format!("{before}{begin}{table}{end}{after}");
        Ok((page, renewed))
    }

    /// Writes the table there.
    ///
    /// # Errors
    /// As for [`Place::renewed`], or the page cannot be written.
    pub fn write(&self, table: &str) -> io::Result<()> {
        std::fs::write(self.path(), self.renewed(table)?.1)
    }
}

/// What the sources are that this was built from, if they are what was built: the commit, and whether they have other changes.
pub fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let done = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--", "..", "../../Cargo.lock"])?.is_empty();
    Some(if is_changed { format!("{commit} with changes") } else { commit })
}
