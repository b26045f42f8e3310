//! What a mount stands on: the stack, opened for writing or for reading only, and what works on it. A remount between `ro` and `rw`
//! exchanges it for one opened the other way, between two requests.
//!
//! Opened for reading only, the store has been closed in order if this daemon had it open for writing, and nothing is written to it; its
//! lock is held without a gap. What the kernel holds (open files, names it remembers) goes over to the new stack.

use super::scrub::Scrubber;
use crate::disks::Disks;
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use crate::stack::{self, Settings, Stack};
use holdfast_fuse::Caching;
use holdfast_naming::{Atime, ErrorKind};
use holdfast_object::{Hold, Kind, ObjectCache, ObjectId, PAGE_SIZE};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A stack at work.
pub(super) struct Live {
    pub(super) stack: Arc<Stack>,
    pub(super) disks: Arc<Disks>,
    pub(super) scrubber: Scrubber,
    /// As it was opened: nothing is written.
    pub(super) read_only: bool,
}

/// What comes in its place, by a remount.
pub(super) struct Anew {
    pub(super) stack: Arc<Stack>,
    pub(super) disks: Arc<Disks>,
    pub(super) read_only: bool,
    /// The store may have other contents than were seen until now: the intent log was replayed.
    pub(super) replayed: bool,
    /// Why it is not open for writing, though it was to be.
    pub(super) refusal: Option<Failure>,
    /// Why nothing of it may be shown: it is as it was before the store was opened for writing.
    pub(super) down: Option<&'static str>,
}

/// Why a mount takes no changes whose store was closed for another one.
const NOT_OPENED_AGAIN: &str =
    "it was closed for a remount, and could not be opened again: unmount it, and mount it again";

impl Live {
    /// Opens the store on `disks` as the options say. `does` is told of what may take long.
    pub(super) fn open(disks: Arc<Disks>, options: &MountOptions, does: &mut dyn FnMut(&str)) -> Result<Live> {
        let stack = open_watched(&disks, options, does)?;
        begin(&stack, options)?;
        let scrubber = Scrubber::start(&stack, disks.is_copy());
        Ok(Live { stack, disks, scrubber, read_only: options.flags.read_only })
    }

    /// The same store opened as `options` say, for writing or for reading only, in the place of this. No request is under way; the
    /// scrub rests.
    ///
    /// # Errors
    /// What prevents it; then this is as it was, but for a store that could be closed and not opened again, which takes no changes.
    pub(super) fn opened_anew(&self, options: &MountOptions) -> Result<Anew> {
        if options.flags.read_only { self.for_reading(options) } else { self.for_writing(options, begin) }
    }

    fn for_reading(&self, options: &MountOptions) -> Result<Anew> {
        self.stack.cache.close().map_err(stack::says)?;
        if let Err(failure) = self.disks.close() {
            // The store is closed, and what is not on main is in the log.
            tracing::error!("{failure}");
        }
        let stack = taken_over(&self.disks, options, &self.stack).inspect_err(|_| {
            // Nothing is pending. The recovery point that closes a store is not one to go on from.
            let _ = self.stack.cache.shut_down(NOT_OPENED_AGAIN);
        })?;
        begin(&stack, options)?;
        let disks = self.disks.clone();
        Ok(Anew { stack, disks, read_only: true, replayed: false, refusal: None, down: None })
    }

    /// Opening it writes: the log is replayed, recovery points are published. What this has read before then is not what the store has
    /// now, and blocks of it may be others' since. So this is not returned to; if nothing else can be opened, nothing is shown.
    fn for_writing(
        &self,
        options: &MountOptions,
        begin: impl FnOnce(&Stack, &MountOptions) -> Result<()>,
    ) -> Result<Anew> {
        if options.caching == Caching::Kernel && !self.stack.module.is_clean() && self.has_open_files() {
            return Err(Failure::new(
                "the store was not closed in order, and files are open: their sizes change when the intent log is replayed, and \
                 with cache=kernel the kernel keeps those of open files",
            ));
        }
        let disks = self.disks.for_writing(&options.disks)?;
        let (last, mut failure) = match open(&disks, options) {
            Err(failure) => (None, failure),
            Ok(stack) => {
                let adopted = stack.cache.adopt_sessions(&self.stack.cache).map_err(stack::says);
                let has_adopted = adopted.is_ok();
                let begun = adopted.and_then(|()| match stack.status().read_only {
                    Some(reason) => Err(Failure::new(format!("it takes no changes: {reason}"))),
                    None => begin(&stack, options),
                });
                let Err(failure) = begun else {
                    let replayed = stack.recovered.batches > 0;
                    return Ok(Anew { stack, disks, read_only: false, replayed, refusal: None, down: None });
                };
                if let Err(error) = stack.cache.close() {
                    tracing::error!("it could not be closed in order: {error}");
                }
                (has_adopted.then_some(stack), failure)
            }
        };
        let mut options = options.clone();
        options.flags.read_only = true;
        let mut down = None;
        let holder = last.as_ref().unwrap_or(&self.stack);
        let stack = taken_over(&disks, &options, holder).unwrap_or_else(|error| {
            tracing::error!("it was opened for writing, and could not be opened again for reading only: {error}");
            failure.message += &format!("; and it could not be opened again for reading only: {error}");
            match last {
                // It has been closed, so it is what the store has.
                Some(last) => {
                    let _ = last.cache.shut_down(NOT_OPENED_AGAIN);
                    last
                }
                None => {
                    down = Some(NOT_OPENED_AGAIN);
                    self.stack.clone()
                }
            }
        });
        Ok(Anew { stack, disks, read_only: true, replayed: true, refusal: Some(failure), down })
    }

    fn has_open_files(&self) -> bool {
        let cache = &self.stack.cache;
        let is_file = |id| cache.attributes(id).is_ok_and(|attributes| attributes.kind == Kind::Regular);
        cache.held().into_iter().any(|id| cache.hold(id, Hold::Open, 0).opens > 0 && is_file(id))
    }

    /// Writes everything and leaves the store in order.
    pub(super) fn close(&self, store: &Path) -> Result<()> {
        let was_never_open = self.stack.is_stopped && self.stack.status().read_only.is_some();
        if self.read_only || was_never_open {
            // Nothing has been written.
            return Ok(());
        }
        self.stack.cache.close().map_err(|error| {
            let path = self.stack.namespace.path_of_error(&error.clone().into());
            let path = path.map(|path| format!("{}: ", path.escape_ascii())).unwrap_or_default();
            tracing::error!("it could not be closed in order: {path}{error}");
            self.stack.log_unwritten();
            Failure::new(format!("{} could not be closed in order: {path}{error}", store.display()))
        })?;
        self.disks.close()?;
        tracing::info!("closed in order, at recovery point {}", self.stack.status().epoch);
        Ok(())
    }
}

/// Opened as the options say, with what the kernel holds of another stack.
fn taken_over(disks: &Disks, options: &MountOptions, of: &Stack) -> Result<Arc<Stack>> {
    let stack = open(disks, options)?;
    stack.cache.adopt_sessions(&of.cache).map_err(stack::says)?;
    Ok(stack)
}

fn open(disks: &Disks, options: &MountOptions) -> Result<Arc<Stack>> {
    open_watched(disks, options, &mut |_| {})
}

fn open_watched(disks: &Disks, options: &MountOptions, does: &mut dyn FnMut(&str)) -> Result<Arc<Stack>> {
    let read_only = options.flags.read_only;
    let settings = Settings {
        read_only,
        cache_bytes: options.cache_bytes,
        epoch_ms: options.epoch_ms,
        atime: if read_only { Atime::Never } else { options.atime },
        no_directory_atime: options.flags.no_dir_atime,
        quota_bytes: options.quota_bytes,
        discard: options.discard,
        protection: options.protection,
        audit: options.audit,
    };
    if settings.discard && !read_only {
        disks.main().give_up_reservation();
    }
    let stack = Stack::open_watched(disks.device(), &settings, does)?;
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
            match stack.namespace.reclaim_orphans() {
                Ok(0) => {}
                Ok(orphans) => {
                    tracing::info!("deleted {orphans} files without a name that were open when it was last in use");
                }
                // Nobody can reach it, and everybody wants the rest.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal) => {
                    tracing::error!(%error, "a file without a name cannot be deleted: its space stays in use");
                }
                Err(error) => return Err(stack::says(error)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::Given;
    use holdfast_block::Access as DeviceAccess;
    use holdfast_integrity::Protection;
    use holdfast_naming::{Access, Create, Namespace, Request};
    use holdfast_object::Durability;
    use std::fs::File;

    fn options(read_only: bool) -> MountOptions {
        let mut options = MountOptions { cache_bytes: 16 << 20, ..MountOptions::default() };
        options.flags.read_only = read_only;
        options
    }

    fn disks(path: &Path, access: DeviceAccess) -> Arc<Disks> {
        Arc::new(crate::disks::open(path, access, &Given::default()).unwrap())
    }

    /// Leaves a store after a crash: recovery points have "old" in a file, the intent log "new".
    fn crashed(path: &Path) -> ObjectId {
        File::create(path).unwrap().set_len(16 << 20).unwrap();
        drop(stack::create(disks(path, DeviceAccess::ReadWrite).device(), false, 0, Protection::Uniform).unwrap());
        let stack = open(&disks(path, DeviceAccess::ReadWrite), &options(false)).unwrap();
        let how = Create { mode: 0o644, exclusive: true, wanted: Access::WRITE, truncate: false };
        let created = stack.namespace.create(&Request::ROOT, ObjectId::ROOT, b"f", &how).unwrap();
        let id = created.found.id;
        stack.namespace.write(&Request::ROOT, id, 0, b"old", false).unwrap();
        stack.cache.sync_all().unwrap();
        stack.namespace.write(&Request::ROOT, id, 0, b"new", false).unwrap();
        stack.namespace.sync(id, Durability::All).unwrap();
        id
    }

    fn read(namespace: &Namespace, id: ObjectId) -> Vec<u8> {
        namespace.read_quietly(id, 0, 100, true).unwrap().slices().flatten().copied().collect()
    }

    /// The store is damaged beyond opening while it is mounted for reading only.
    #[test]
    fn what_was_read_before_is_not_shown_when_the_store_can_be_opened_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let id = crashed(&path);
        let live = Live::open(disks(&path, DeviceAccess::ReadOnly), &options(true), &mut |_| {}).unwrap();
        live.stack.namespace.open(&Request::ROOT, id, Access::READ, false).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, vec![0; bytes.len()]).unwrap();

        let anew = live.opened_anew(&options(false)).unwrap();
        assert!(anew.read_only && anew.down.is_some());
        let refusal = anew.refusal.unwrap().message;
        let (first, second) = refusal.split_once("; and it could not be opened again for reading only: ").unwrap();
        assert!(!first.is_empty() && !second.is_empty(), "{refusal}");
        assert!(live.stack.cache.held() == [id], "whoever forgets it can");
        // Not for what is wrong with opening it for writing alone.
        std::fs::write(&path, &bytes).unwrap();
        let refuses = |_: &Stack, _: &MountOptions| Err(Failure::new("not today"));
        assert_eq!(live.for_writing(&options(false), refuses).unwrap().down, None);
    }

    #[test]
    fn what_was_read_before_a_replay_is_not_returned_to_when_it_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let id = crashed(&path);
        let mut live = Live::open(disks(&path, DeviceAccess::ReadOnly), &options(true), &mut |_| {}).unwrap();
        live.stack.namespace.open(&Request::ROOT, id, Access::READ, false).unwrap();
        assert_eq!((live.stack.module.is_clean(), &read(&live.stack.namespace, id)[..]), (false, &b"old"[..]));

        let refuses = |_: &Stack, _: &MountOptions| Err(Failure::new("not today"));
        let anew = live.for_writing(&options(false), refuses).unwrap();
        assert_eq!(anew.refusal.unwrap().message, "not today");
        assert!(anew.read_only && anew.replayed && anew.stack.module.is_clean(), "the store is in order");
        assert!(anew.stack.status().epoch > live.stack.status().epoch);
        assert_eq!(read(&anew.stack.namespace, id), b"new");
        assert_eq!((anew.stack.cache.held(), live.stack.cache.held()), (vec![id], vec![]));
        let before = std::fs::read(&path).unwrap();
        assert!(anew.stack.namespace.write(&Request::ROOT, id, 0, b"xxx", false).is_err());
        (live.stack, live.disks) = (anew.stack, anew.disks);
        live.close(&path).unwrap();
        assert!(std::fs::read(&path).unwrap() == before, "nothing is written to it");

        let anew = live.opened_anew(&options(false)).unwrap();
        assert!(anew.refusal.is_none() && !anew.read_only && !anew.replayed);
        assert_eq!((read(&anew.stack.namespace, id), anew.stack.cache.held()), (b"new".to_vec(), vec![id]));
        anew.stack.namespace.write(&Request::ROOT, id, 0, b"newer", false).unwrap();
        anew.stack.cache.close().unwrap();
    }
}
