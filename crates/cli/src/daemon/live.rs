//! What a mount stands on: the stack, opened for writing or for reading only, and what works on it. A remount between `ro` and `rw`
//! exchanges it for one opened the other way, between two requests.
//!
//! Opened for reading only, the store has been closed in order if this daemon had it open for writing, and nothing is written to it; its
//! lock is held without a gap. What the kernel holds (open files, names it remembers) goes over to the new stack.

use super::scrub::Scrubber;
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use crate::stack::{self, Settings, Stack};
use holdfast_block::FileDevice;
use holdfast_fuse::Caching;
use holdfast_object::{Hold, Kind, ObjectCache, ObjectId, PAGE_SIZE};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A stack at work.
pub(super) struct Live {
    pub(super) stack: Arc<Stack>,
    pub(super) device: Arc<FileDevice>,
    pub(super) scrubber: Scrubber,
    /// As it was opened: nothing is written.
    pub(super) read_only: bool,
}

impl Live {
    /// Opens the store on `device` as the options say.
    pub(super) fn open(device: Arc<FileDevice>, options: &MountOptions) -> Result<Live> {
        let stack = open(&device, options)?;
        begin(&stack, options)?;
        let scrubber = Scrubber::start(&stack);
        Ok(Live { stack, device, scrubber, read_only: options.flags.read_only })
    }

    /// The same store opened as `options` say, for writing or for reading only, in the place of this. No request is under way; the
    /// scrub rests.
    ///
    /// # Errors
    /// What prevents it; then this is as it was, but for a store that could be closed and not opened again, which takes no changes.
    pub(super) fn opened_anew(&self, options: &MountOptions) -> Result<(Arc<Stack>, Arc<FileDevice>)> {
        let read_only = options.flags.read_only;
        if read_only {
            self.stack.cache.close().map_err(stack::says)?;
        } else if options.caching == Caching::Kernel && !self.stack.module.is_clean() && self.has_open_files() {
            return Err(Failure::new(
                "the store was not closed in order, and files are open: their sizes change when the intent log is replayed, and \
                 with cache=kernel the kernel keeps those of open files",
            ));
        }
        let device = match read_only || self.device.is_writable() {
            true => self.device.clone(),
            false => Arc::new(FileDevice::open_writable(self.device.clone()).map_err(stack::says)?),
        };
        let stack = open(&device, options).inspect_err(|_| {
            if read_only {
                // Nothing is pending. The recovery point that closes a store is not one to go on from.
                let _ = self.stack.cache.shut_down("it was closed for a remount, and could not be opened again");
            }
        })?;
        stack.cache.adopt_sessions(&self.stack.cache);
        let begun = match stack.status().read_only {
            Some(reason) if !read_only => Err(Failure::new(format!("it takes no changes: {reason}"))),
            _ => begin(&stack, options),
        };
        match begun {
            Ok(()) => Ok((stack, device)),
            Err(failure) => {
                self.stack.cache.adopt_sessions(&stack.cache);
                Err(failure)
            }
        }
    }

    fn has_open_files(&self) -> bool {
        let cache = &self.stack.cache;
        let is_file = |id| cache.attributes(id).is_ok_and(|attributes| attributes.kind == Kind::Regular);
        cache.held().into_iter().any(|id| cache.hold(id, Hold::Open, 0).opens > 0 && is_file(id))
    }

    /// Writes everything and leaves the store in order.
    pub(super) fn close(&self, store: &Path) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.stack.cache.close().map_err(|error| {
            let path = self.stack.namespace.path_of_error(&error.clone().into());
            let path = path.map(|path| format!("{}: ", path.escape_ascii())).unwrap_or_default();
            tracing::error!("it could not be closed in order: {path}{error}");
            Failure::new(format!("{} could not be closed in order: {path}{error}", store.display()))
        })?;
        self.stack.log_bad("was not stored as it was written, and is not now");
        tracing::info!("closed in order, at recovery point {}", self.stack.status().epoch);
        Ok(())
    }
}

fn open(device: &Arc<FileDevice>, options: &MountOptions) -> Result<Arc<Stack>> {
    let read_only = options.flags.read_only;
    let settings = Settings {
        read_only,
        cache_bytes: options.cache_bytes,
        epoch_ms: options.epoch_ms,
        atime: options.atime,
        no_directory_atime: options.flags.no_dir_atime,
        quota_bytes: options.quota_bytes,
        discard: options.discard,
        protection: options.protection,
    };
    if settings.discard && !read_only {
        device.give_up_reservation();
    }
    let stack = Stack::open(device.clone(), &settings)?;
    match (stack.was_clean, &stack.recovered) {
        (true, recovered) => tracing::info!("it had been closed in order, at recovery point {}", recovered.from),
        (false, _) if read_only => {}
        (false, recovered) => tracing::warn!(
            "it had not been closed in order: recovered from recovery point {} and {} batches of the intent log",
            recovered.from,
            recovered.batches
        ),
    }
    report_lost(&stack);
    Ok(Arc::new(stack))
}

/// Says what state it is in, and does what comes before the first request.
fn begin(stack: &Stack, options: &MountOptions) -> Result<()> {
    let read_only = options.flags.read_only;
    match stack.status().read_only {
        // Asked for.
        Some(_) if read_only && stack.module.is_clean() => {}
        Some(_) if read_only => tracing::warn!(
            "the store was not closed in order; what its intent log has is not seen until it is mounted for writing"
        ),
        Some(reason) => tracing::error!("it takes no changes: {reason}"),
        None => {
            stack.initialise()?;
            let orphans = stack.namespace.reclaim_orphans().map_err(stack::says)?;
            if orphans > 0 {
                tracing::info!("deleted {orphans} files without a name that were open when it was last in use");
            }
        }
    }
    Ok(())
}

/// Logs which files have lost synced pages in the intent log.
fn report_lost(stack: &Stack) {
    let mut files: BTreeMap<ObjectId, Vec<u64>> = BTreeMap::new();
    stack.recovered.lost.iter().for_each(|(object, page)| files.entry(*object).or_default().push(*page));
    for (object, mut pages) in files {
        pages.sort_unstable();
        let path = String::from_utf8_lossy(&stack.namespace.path_of(object)).into_owned();
        let byte = |page: u64| page.saturating_mul(PAGE_SIZE as u64);
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (first, last) = (byte(run[0]), byte(run[run.len() - 1].saturating_add(1)).saturating_sub(1));
            tracing::error!("{path}: bytes {first} to {last} had been synced and are lost: damaged in the intent log");
        }
    }
}
