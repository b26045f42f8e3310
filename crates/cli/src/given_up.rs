//! What a mount gave up as it ended: pages of files that had gone bad in memory before they were stored, and nobody had written again. And how such
//! files are named as long as it serves them.

use crate::date::utc;
use crate::output::count;
use crate::quoting;
use serde::{Deserialize, Serialize};

/// Files that are named.
pub(crate) const FILES_NAMED: usize = 8;

/// What earlier mounts gave up, as it is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct GivenUp {
    pub(crate) pages: u64,
    pub(crate) files: u64,
    /// Path of one of them.
    pub(crate) first: String,
    /// The first ones.
    #[serde(default)]
    pub(crate) named: Vec<Named>,
    /// When the last of these mounts ended: seconds after 1970.
    pub(crate) ended_s: u64,
}

/// One of the files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) path: String,
    pub(crate) pages: u64,
    /// Runs of bytes, in words.
    pub(crate) bytes: String,
}

impl Named {
    /// In one line.
    pub(crate) fn line(&self) -> String {
        format!("{}: {} (bytes {})", quoting::name(&self.path), count(self.pages, "page", "pages"), self.bytes)
    }
}

impl GivenUp {
    /// In one line.
    pub(crate) fn line(&self) -> String {
        let (pages, first) = (count(self.pages, "page", "pages"), quoting::name(&self.first));
        let files = match self.files {
            1 => first,
            files => format!("{first} and {}", count(files - 1, "other file", "other files")),
        };
        let ended = utc(self.ended_s.try_into().unwrap_or(i64::MAX));
        format!(
            "{pages} of {files} went bad in memory before the mount ended ({ended}): older contents are there, or an \
             error where there were none, until written again"
        )
    }

    /// And which they are: a line for each file.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        lines(&self.named, self.files)
    }

    /// For an answer that would be too long.
    pub(crate) fn shorten(&mut self) {
        quoting::cut(&mut self.first);
        self.named.pop();
    }
}

/// Files with pages that went bad in memory before they were stored, or that cannot be stored, while a mount still serves them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NotStored {
    pub(crate) files: u64,
    /// The first ones.
    pub(crate) named: Vec<Named>,
}

impl NotStored {
    /// A line for each file.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        lines(&self.named, self.files)
    }

    /// For an answer that would be too long.
    pub(crate) fn shorten(&mut self) {
        self.named.pop();
    }
}

fn lines(named: &[Named], files: u64) -> impl Iterator<Item = String> {
    let more = files.saturating_sub(named.len() as u64);
    let more = (more > 0 && !named.is_empty()).then(|| format!("and {}", count(more, "more file", "more files")));
    named.iter().map(Named::line).chain(more)
}
