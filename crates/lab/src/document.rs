//! Tables of pages under `docs/` that programs of the lab write, and of what sources they are.

use std::io;
use std::path::{Path, PathBuf};

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
