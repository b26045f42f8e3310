//! What a mount gives up as it ends, kept for the next ones: changed pages that went bad in memory. On the disk is what was there before,
//! which is in order, so nothing in the store says that somebody wrote something else; whoever has not called fsync has heard of it nowhere.
//!
//! A page stays until it is written, or gone. That is seen from the epoch that its pointer was born in, which nobody can set back: a file that is
//! restored with its old times is written all the same, and one whose times or rights alone have changed is not.

use super::record::RecordFile;
use crate::failure::{Failure, exit};
use crate::given_up::{FILES_NAMED, GivenUp, Named};
use crate::output::count;
use crate::stack::{self, BAD_PAGES_KNOWN, BadFile, Stack};
use holdfast_object::{DomainId, Epoch, Error, ObjectCache, ObjectId, ObjectKey, PageIndex};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The record's name.
const RECORD: &str = "given-up";
/// Files kept; the log has all of them.
const FILES_MAX: usize = 1000;

/// A file with pages that were given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    object: u64,
    generation: u64,
    /// The last recovery point of the mount. What was born after it has been written since.
    epoch: Epoch,
    path: String,
    /// Runs of pages: the first one, and how many.
    runs: Vec<(PageIndex, u64)>,
    /// Pages behind those. It is not known which, so they go with the others.
    others: u64,
    /// When the mount ended: seconds after 1970.
    ended_s: u64,
}

impl Entry {
    fn of(stack: &Stack, file: BadFile) -> Option<Entry> {
        let generation = stack.cache.attributes(file.object).ok()?.generation;
        let ended_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let BadFile { object, path, pages, known, .. } = file;
        let runs = known.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u64)).collect();
        let others = pages.saturating_sub(known.len() as u64);
        Some(Entry { object: object.0, generation, epoch: stack.module.epoch(), path, runs, others, ended_s })
    }

    /// What of it has not been written since: the pages that are known, and how many there are in all.
    fn left(&self, stack: &Stack) -> (Vec<PageIndex>, u64) {
        let object = ObjectId(self.object);
        let is_gone = match stack.cache.attributes(object) {
            Ok(now) => now.generation != self.generation,
            Err(Error::NoObject(_)) => true,
            // Not known now.
            Err(_) => false,
        };
        if is_gone {
            return (Vec::new(), 0);
        }
        // Memory first: what leaves it meanwhile is in the store by then.
        let is_left = |&page: &PageIndex| {
            let key = ObjectKey { domain: DomainId::MAIN, object };
            !stack.cache.is_changed(object, page).unwrap_or(false)
                && !stack.module.is_changed_since(key, page, self.epoch).unwrap_or(false)
        };
        let pages = self.runs.iter().flat_map(|&(first, count)| first..first.saturating_add(count));
        let known: Vec<PageIndex> = pages.take(BAD_PAGES_KNOWN).filter(is_left).collect();
        let all = if known.is_empty() { 0 } else { (known.len() as u64).saturating_add(self.others) };
        (known, all)
    }

    fn holds(&self, stack: &Stack) -> bool {
        self.left(stack).1 > 0
    }

    fn named(&self, stack: &Stack) -> Option<Named> {
        let (known, pages) = self.left(stack);
        let bytes = || stack::runs_of(&known, pages as usize);
        (pages > 0).then(|| Named { path: self.path.clone(), pages, bytes: bytes() })
    }
}

/// What the mounts before this one gave up.
pub(crate) struct Earlier {
    file: Option<RecordFile>,
    entries: Vec<Entry>,
}

impl Earlier {
    /// Finds it, and logs it. To be called before the mount is made. A copy of the store has another state of the files, and no record.
    pub(super) fn load(stack: &Stack, is_copy: bool) -> Earlier {
        let file = if is_copy { Ok(None) } else { RecordFile::of(RECORD, &stack.module.store_uuid()) };
        let file = file.unwrap_or_else(|error| {
            tracing::warn!(%error, "there is no place to keep what a mount gives up: only the log would have it");
            None
        });
        let this = Earlier { entries: file.as_ref().and_then(RecordFile::load_or_warn).unwrap_or_default(), file };
        for Named { path, pages, bytes } in this.entries.iter().filter_map(|entry| entry.named(stack)) {
            let pages = count(pages, "page", "pages");
            tracing::error!(
                "{path}: {pages} (bytes {bytes}) went bad in memory before an earlier mount ended: older contents, or an \
                 error where there were none, until it is written again"
            );
        }
        this
    }

    /// What still is so of a store that is not mounted. Nothing is made, and nothing logged.
    pub(crate) fn look(stack: &Stack, is_copy: bool) -> Option<GivenUp> {
        let file = if is_copy { None } else { RecordFile::existing(RECORD, &stack.module.store_uuid()) };
        Earlier { entries: file.as_ref().and_then(RecordFile::load_or_warn)?, file }.report(stack)
    }

    /// What of it still is so.
    pub(super) fn report(&self, stack: &Stack) -> Option<GivenUp> {
        let (mut left, mut ended_s) = (Vec::new(), 0);
        for entry in &self.entries {
            if let Some(named) = entry.named(stack) {
                left.push(named);
                ended_s = ended_s.max(entry.ended_s);
            }
        }
        let (files, pages) = (left.len() as u64, left.iter().fold(0u64, |sum, file| sum.saturating_add(file.pages)));
        let first = left.first()?.path.clone();
        left.truncate(FILES_NAMED);
        Some(GivenUp { pages, files, first, named: left, ended_s })
    }

    /// Logs and keeps what this mount of `store` has given up, besides what is still so of the others. The stack has been closed.
    ///
    /// # Errors
    /// With an exit code of its own: there is something, and the store is in order all the same.
    pub(super) fn add(&self, stack: &Stack, store: &Path) -> Result<(), Failure> {
        let bad = stack.log_bad("is given up: older contents are there now, or an error where there were none");
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
