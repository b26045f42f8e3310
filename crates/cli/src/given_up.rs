//! What a mount gave up as it ended: pages of files that had gone bad in memory before they were stored, and nobody had written again.

use crate::date::utc;
use crate::output::count;
use crate::quoting;
use serde::{Deserialize, Serialize};

/// What earlier mounts gave up, as a mount tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct GivenUp {
    pub(crate) pages: u64,
    pub(crate) files: u64,
    /// Path of one of them.
    pub(crate) first: String,
    /// When the last of these mounts ended: seconds after 1970.
    pub(crate) ended_s: u64,
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
            "{pages} of {files} went bad in memory before the mount ended ({ended}), and have older contents, or none, until they are \
             written again"
        )
    }
}
