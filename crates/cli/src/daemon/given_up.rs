//! What a mount gives up as it ends, kept for the next ones: changed pages that went bad in memory. On the disk is what was there before,
//! which is in order, so nothing in the store says that somebody wrote something else; whoever has not called fsync has heard of it nowhere.
//!
//! An entry stays until its file is written, or gone: that is seen from the time of its last change.

use super::record::RecordFile;
use crate::failure::{Failure, exit};
use crate::given_up::GivenUp;
use crate::output::count;
use crate::stack::{BadFile, Stack};
use holdfast_object::{Error, ObjectCache, ObjectId, Timestamp};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Files kept; the log has all of them.
const FILES_MAX: usize = 1000;

/// A file with pages that were given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    object: u64,
    generation: u64,
    /// When it was last written. If that is another time now, it has been written since.
    mtime: Timestamp,
    path: String,
    pages: u64,
    /// Runs of bytes, in words.
    bytes: String,
    /// When the mount ended: seconds after 1970.
    ended_s: u64,
}

impl Entry {
    fn of(stack: &Stack, file: BadFile) -> Option<Entry> {
        let attributes = stack.cache.attributes(file.object).ok()?;
        let ended_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let BadFile { object, path, pages, bytes } = file;
        let (generation, mtime) = (attributes.generation, attributes.mtime);
        Some(Entry { object: object.0, generation, mtime, path, pages, bytes, ended_s })
    }

    /// Whether the file is as it was then.
    fn holds(&self, stack: &Stack) -> bool {
        match stack.cache.attributes(ObjectId(self.object)) {
            Ok(now) => (now.generation, now.mtime) == (self.generation, self.mtime),
            Err(Error::NoObject(_)) => false,
            // Not known now.
            Err(_) => true,
        }
    }
}

/// What the mounts before this one gave up.
pub(super) struct Earlier {
    file: Option<RecordFile>,
    entries: Vec<Entry>,
}

impl Earlier {
    /// Finds it, and logs it. To be called before the mount is made. A copy of the store has another state of the files, and no record.
    pub(super) fn load(stack: &Stack, is_copy: bool) -> Earlier {
        let file = if is_copy { Ok(None) } else { RecordFile::of("given-up", &stack.module.store_uuid()) };
        let file = file.unwrap_or_else(|error| {
            tracing::warn!(%error, "there is no place to keep what a mount gives up: only the log would have it");
            None
        });
        let entries: Option<Vec<Entry>> = file.as_ref().and_then(RecordFile::load);
        let this = Earlier { file, entries: entries.unwrap_or_default() };
        for Entry { path, pages, bytes, .. } in this.entries.iter().filter(|entry| entry.holds(stack)) {
            let pages = count(*pages, "page", "pages");
            tracing::error!(
                "{path}: {pages} (bytes {bytes}) went bad in memory before an earlier mount ended: older contents, or none, until it is \
                 written again"
            );
        }
        this
    }

    /// What of it still is so.
    pub(super) fn report(&self, stack: &Stack) -> Option<GivenUp> {
        let entries: Vec<&Entry> = self.entries.iter().filter(|entry| entry.holds(stack)).collect();
        Some(GivenUp {
            pages: entries.iter().map(|entry| entry.pages).sum(),
            files: entries.len() as u64,
            first: entries.first()?.path.clone(),
            ended_s: entries.iter().map(|entry| entry.ended_s).max()?,
        })
    }

    /// Logs and keeps what this mount of `store` has given up, besides what is still so of the others. The stack has been closed.
    ///
    /// # Errors
    /// With an exit code of its own: there is something, and the store is in order all the same.
    pub(super) fn add(&self, stack: &Stack, store: &Path) -> Result<(), Failure> {
        let bad = stack.log_bad("is given up: older contents, or none, are there now");
        let (files, pages) = (bad.len() as u64, bad.iter().map(|file| file.pages).sum());
        let mut entries: Vec<Entry> = bad.into_iter().filter_map(|file| Entry::of(stack, file)).collect();
        entries.extend(self.entries.iter().filter(|entry| entry.holds(stack)).cloned());
        entries.truncate(FILES_MAX);
        if let Some(file) = self.file.as_ref().filter(|_| entries != self.entries) {
            let kept = if entries.is_empty() { file.remove() } else { file.save(&entries) };
            if let Err(error) = kept {
                tracing::warn!(file = %file.path.display(), %error, "the next mount will not know what was given up");
            }
        }
        if pages == 0 {
            return Ok(());
        }
        let (pages, files) = (count(pages, "page", "pages"), count(files, "file", "files"));
        let message = format!("{}: {pages} of {files} went bad in memory and are given up", store.display());
        let hint = "the log names them; write these files again";
        Err(Failure { code: exit::GIVEN_UP, ..Failure::new(message).hint(hint) })
    }
}
