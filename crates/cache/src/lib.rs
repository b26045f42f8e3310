//! The cache: pages with memory checksums, write-back by epochs, the operation log, and what sessions hold.
//!
//! ```text
//!  naming ─ submit ─► plan.rs (load, merge, reserve) ─► admit.rs (one step, under the lock: the order of transactions)
//!         ─ read ───► read.rs (find, load, read ahead)
//!         ─ sync ───► sync.rs (group commit of the intent log) ─┐
//!  timer  ─ tick ───► flush.rs (freeze, apply, prepare, publish)├─► ObjectStore
//! ```
//!
//! One epoch is open and takes transactions; at most one is frozen and being written. An epoch is written as its structural
//! operations in admission order followed by the newest version of each page and object that changed in it.
//!
//! Invariants:
//! - a published page version is immutable: a write builds a new one beside the old, takes its checksum, then replaces it;
//! - whatever `read` gives is verified by the reader at the last moment ([`holdfast_object::PinnedPage::verify`]);
//! - a page leaves memory only when the store has it;
//! - once a write or flush of the store has failed nothing is admitted any more.
//!
//! Threads come from outside: nothing here spawns one. Whoever needs an epoch written (a timer calling [`Cache::tick`], a sync,
//! a writer that finds no frame) writes it.

mod admit;
mod counters;
mod errors;
mod flush;
mod freeing;
mod frozen;
mod involved;
mod lab;
mod lab_attributes;
mod logged;
mod members;
mod object;
mod oplog;
mod pages;
mod plan;
mod progress;
mod proved;
mod ranges;
mod read;
mod recover;
mod scribbled;
mod scrub;
mod sealed_attributes;
mod session;
mod snapshots;
mod state;
mod sync;
mod thrice;
mod twin;
mod unlogged;

use counters::Counters;
use holdfast_integrity::Protection;
use holdfast_object::space::REFERENCES_PER_BLOCK;
use holdfast_object::{
    Arena, Attributes, Clock, DomainId, Epoch, Error, FrameMut, Hold, Holds, ObjectCache, ObjectId, ObjectStore,
    Outcome, PageIndex, PageRef, PageView, RequestId, Result, Seek, Space, StoreStatus, Transaction,
};
use parking_lot::{Condvar, Mutex, RwLock};
use session::Sessions;
use snapshots::Stopped;
use state::State;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use lab::{FlipError, FlipPart, PageState, Quiet, ResidentPage};
use lab_attributes::FrozenStrikes;
pub use lab_attributes::{ATTRIBUTE_FIELDS, AttributesCopy, CapturedPart, FrozenPart, PendingPart, ResidentObject};
pub use progress::ProgressNumber;
pub use recover::Recovered;

/// How much the cache may hold back, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// An epoch is closed when it has this many dirty pages; writers wait when it has twice as many.
    pub dirty_pages_max: u64,
    /// An epoch is closed when writing it may cost this many blocks, and writers wait when it may cost twice as many.
    pub epoch_blocks_max: u64,
    /// An epoch is closed when it changes this many objects, and writers wait when it changes twice as many: what memory it takes
    /// to know them is not part of the pool of frames.
    pub epoch_objects_max: usize,
    /// Longest time a change stays outside a recovery point, in milliseconds.
    pub epoch_age_max_ms: u64,
    /// Longest time a lazy change stays outside a recovery point while there is no other, in milliseconds.
    pub lazy_age_max_ms: u64,
    /// A sync that would log more pages than this closes the epoch instead.
    pub logged_pages_max: usize,
    /// How long nothing has been appended to the intent log before it is sealed, in milliseconds: see [`ObjectStore::log_seal`].
    pub seal_idle_ms: u64,
    /// Objects remembered besides those that changed since the last recovery point. Each takes 1 to 2 KiB beside the frames.
    pub objects_max: usize,
    /// Pages read ahead of a sequential reader.
    pub readahead_pages_max: u64,
    /// Blocks reserved at a time, so that not every transaction has to ask. With 0, exactly what is needed.
    pub reserve_step_blocks: u64,
}

impl Options {
    /// For a pool of so many frames.
    pub fn for_frames(frames: u32) -> Options {
        Options {
            dirty_pages_max: u64::from(frames / 4).max(16),
            epoch_blocks_max: u64::from(frames / 2).max(4096),
            epoch_objects_max: (frames as usize / 2).clamp(1024, 4096),
            epoch_age_max_ms: 5_000,
            lazy_age_max_ms: 3_600_000,
            logged_pages_max: 512.min(frames as usize / 8).max(4),
            seal_idle_ms: 100,
            objects_max: (frames as usize / 2).clamp(1024, 8192),
            readahead_pages_max: 256.min(u64::from(frames / 16)).max(1),
            reserve_step_blocks: 1024,
        }
    }
}

/// Figures for `status`.
#[derive(Clone, Debug, Default)]
pub struct CacheStatus {
    /// Page frames in all.
    pub frames: u32,
    /// Of them free.
    pub frames_free: u32,
    /// Pages changed since the last epoch was closed.
    pub pages_dirty: u64,
    /// Second copies of changed pages of metadata, which take none of these frames.
    pub twins: u64,
    /// Objects known.
    pub objects: u64,
    /// The epoch that takes transactions.
    pub epoch_open: Epoch,
    /// Transactions admitted since the store was opened; 0 if that is not known any more, and none are taken.
    pub transactions: u64,
    /// Why no changes are taken any more.
    pub read_only: Option<String>,
    /// Pages found corrupt in memory and replaced from below.
    pub pages_reread: u64,
    /// Changed pages of metadata found corrupt in memory, whose twin took their place.
    pub pages_renewed: u64,
    /// Pages of metadata among all these.
    pub scribbles: u64,
    /// Attributes of objects found corrupt in memory, and made anew from their twin, or read again.
    pub attributes_renewed: u64,
    /// Operations found corrupt in memory: records of the operation log, read of its twin, and what the intent log was to have, in whose place a
    /// recovery point was made. Sets of what has changed and lists of free frames, made anew, and numbers about objects and the log, put right, count as well.
    pub operations_renewed: u64,
    /// Changed pages found corrupt in memory, which so were not stored.
    pub pages_lost: u64,
    /// Of them not written again, nor cut off, since.
    pub pages_bad: u64,
    /// Pages read that were in memory, or known to be zero, since the store was opened.
    pub page_hits: u64,
    /// Of these, those in memory for longer than t_switch, whose reader goes by the strong checksum (mode `dynamic`).
    pub pages_switched: u64,
    /// Pages read that the store had to be asked for.
    pub page_misses: u64,
    /// Syncs of single objects.
    pub syncs: u64,
    /// Time spent in writing epochs, in milliseconds.
    pub epochs_ms: u64,
    /// Recovery points of which the records, or pages of metadata, were not held against what requests have proved: not all of these were audited, or the
    /// records of the one before cannot be read, or it is not known any more what it was.
    pub epochs_unproved: u64,
}

/// Most blocks that the reference table of a store can have.
fn reference_blocks(space: &Space) -> u64 {
    space.total / REFERENCES_PER_BLOCK + 2
}

/// The objects of one domain, in memory and below.
pub struct Cache {
    store: Arc<dyn ObjectStore>,
    arena: Arc<Arena>,
    clock: Arc<dyn Clock>,
    domain: DomainId,
    options: Options,
    state: RwLock<State>,
    /// Held by whoever writes an epoch.
    flushing: Mutex<()>,
    /// Held by whoever makes or deletes a snapshot. Taken before `flushing`.
    snapshotting: Mutex<()>,
    /// Something is left that can be freed of deleted snapshots.
    is_deleting: AtomicBool,
    stopped: Mutex<Stopped>,
    /// Held by whoever appends to the intent log.
    logging: Mutex<()>,
    /// When the last batch of the intent log was answered, by the monotonic clock; 0 if the log has been sealed since.
    unsealed_ns: AtomicU64,
    /// Objects whose syncs wait for `logging`.
    sync_queue: Mutex<Vec<ObjectId>>,
    sessions: Mutex<Sessions>,
    /// Ids got from the store and not used yet.
    fresh_ids: Mutex<Vec<ObjectId>>,
    counters: Counters,
    /// Most blocks that the store's reference table can have.
    reference_blocks: AtomicU64,
    /// An epoch may be due.
    writer_due: Mutex<bool>,
    writer_wake: Condvar,
    frozen_strikes: FrozenStrikes,
}

impl Cache {
    /// State of the cache.
    pub fn status(&self) -> CacheStatus {
        let state = self.state.read();
        CacheStatus {
            frames: self.arena.frames(),
            frames_free: self.arena.free_frames(),
            pages_dirty: state.open.pages,
            twins: self.arena.twins(),
            objects: state.objects.len() as u64,
            epoch_open: state.open.epoch,
            transactions: state.sequence.get().unwrap_or_default(),
            read_only: state.read_only.clone(),
            pages_reread: self.counters.reread.get(),
            pages_renewed: state.renewed,
            scribbles: state.scribbles,
            attributes_renewed: state.attributes_renewed,
            operations_renewed: state.operations_renewed + self.arena.free_lists_rebuilt(),
            pages_lost: state.errors,
            pages_bad: state.bad_pages(),
            page_hits: self.counters.hits.get(),
            pages_switched: self.counters.switched.get(),
            page_misses: self.counters.misses.get(),
            syncs: self.counters.syncs.get(),
            epochs_ms: self.counters.epochs_ms.get(),
            epochs_unproved: self.counters.epochs_unproved.get(),
        }
    }

    /// State of the store below.
    pub fn store_status(&self) -> StoreStatus {
        self.store.status()
    }

    /// Tells the device which blocks of these are free as of the last recovery point; gives how many.
    ///
    /// # Errors
    /// Those of the store.
    pub fn trim(&self, within: Range<u64>) -> Result<u64> {
        match self.store.trim(within.clone()) {
            // Nobody else may come by who begins anew.
            Err(Error::GivenUp(_)) => {
                let _nobody_else_writes = self.flushing.lock();
                self.store.begin_anew()?;
            }
            done => return done,
        }
        self.store.trim(within)
    }

    /// Enlarges the store to `blocks` blocks, or with 0 to what its device has become: see [`ObjectStore::grow`]. Durable on return.
    /// Gives the size in blocks.
    ///
    /// # Errors
    /// [`Error::Smaller`]; [`Error::Device`] if the device cannot grow, for want of space on the host for example: then nothing has
    /// changed. Those of the store.
    pub fn grow(&self, blocks: u64) -> Result<u64> {
        let blocks = {
            let _nobody_else_writes = self.flushing.lock();
            self.state.read().writable()?;
            self.store.grow(blocks)?
        };
        self.reference_blocks.store(reference_blocks(&self.store.status().space), Ordering::Relaxed);
        self.close_epoch_with(Some(|_| Ok(())))?;
        Ok(blocks)
    }

    /// Writes everything and leaves the store in order.
    pub fn close(&self) -> Result<()> {
        self.sync_all()?;
        self.store.close()
    }

    /// Logs the names, and stops as a power cut would from then on: nothing is admitted and nothing written any more.
    ///
    /// # Errors
    /// Why the names could not be logged; it has stopped all the same.
    pub fn shut_down(&self, reason: &str) -> Result<()> {
        let logged = self.sync_object(ObjectId::ROOT);
        let mut state = self.state.write();
        state.read_only.get_or_insert_with(|| reason.to_string());
        logged
    }

    /// Takes over what sessions hold of another cache of the same domain, and the answers they were given, and which pages went bad before
    /// they were stored: for a store that is opened anew while it is in use. Nothing is under way in either.
    ///
    /// # Errors
    /// Those of the store, about an object with such pages; then the other one has all of it still.
    pub fn adopt_sessions(&self, of: &Cache) -> Result<()> {
        self.adopt_errors(of)?;
        let sessions = std::mem::take(&mut *of.sessions.lock());
        *self.sessions.lock() = sessions;
        Ok(())
    }

    /// The objects that sessions hold.
    pub fn held(&self) -> Vec<ObjectId> {
        self.sessions.lock().held()
    }

    /// Asserts the invariants; for tests and the simulator.
    pub fn check(&self) {
        self.arena.check();
        self.state.read().check();
    }

    fn latch(&self, error: &Error) {
        let mut state = self.state.write();
        if state.read_only.is_none() {
            state.read_only = Some(match error {
                // The layer below has said so, and why.
                Error::ReadOnly(reason) => reason.clone(),
                Error::Device(fault) => fault.to_string(),
                error => {
                    tracing::error!(%error, "the store is read-only from now on");
                    error.to_string()
                }
            });
        }
    }
}

impl ObjectCache for Cache {
    fn domain(&self) -> DomainId {
        self.domain
    }

    fn protection(&self) -> Protection {
        self.store.protection()
    }

    fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn frames(&self, count: usize) -> Result<Vec<FrameMut>> {
        self.take_frames(count)
    }

    fn new_object(&self) -> Result<ObjectId> {
        let mut fresh = self.fresh_ids.lock();
        loop {
            if fresh.is_empty() {
                *fresh = self.store.new_objects(self.domain, 64)?;
                fresh.reverse();
            }
            let id = fresh.pop().ok_or_else(|| Error::Protocol("the store gave no object id".into()))?;
            // An id whose last owner's deletion is not a recovery point yet: a log batch could not tell the two apart.
            if !self.state.read().gone.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    fn attributes(&self, id: ObjectId) -> Result<Attributes> {
        self.with_object(id, |_, object| object.visible_attributes())
    }

    fn look(&self, id: ObjectId, look: &mut dyn FnMut(&Attributes)) -> Result<()> {
        self.with_object(id, |_, object| look(&object.attributes))
    }

    fn read(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<Vec<PageView>> {
        self.read_pages(id, first, count)
    }

    fn reread(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView> {
        self.reread_page(id, index, bad)
    }

    fn submit(&self, transaction: Transaction) -> Result<Outcome> {
        self.submit_transaction(transaction)
    }

    fn answer(&self, request: RequestId) -> Option<Vec<u8>> {
        self.sessions.lock().answer(request)
    }

    fn sync(&self, id: ObjectId, _durability: holdfast_object::Durability) -> Result<()> {
        // One rule for both: what reads the contents back (size, block pointers) and the attributes travel together.
        self.sync_object(id)
    }

    fn make_durable(&self, id: ObjectId, _durability: holdfast_object::Durability) -> Result<()> {
        self.counters.syncs.add(1);
        Cache::make_durable(self, id)
    }

    fn errors_begin(&self, id: ObjectId) -> u64 {
        self.begin_errors(id)
    }

    fn errors_tell(&self, id: ObjectId, seen: u64) -> Option<(u64, Error)> {
        self.tell_errors(id, Some(seen))
    }

    fn sync_all(&self) -> Result<Epoch> {
        self.close_epoch()
    }

    fn errors_tell_all(&self) -> Option<Error> {
        self.tell_errors_of_all()
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>> {
        self.seek_page(id, offset, what)
    }

    fn hold(&self, id: ObjectId, hold: Hold, delta: i64) -> Holds {
        let mut sessions = self.sessions.lock();
        if delta == 0 { sessions.holds(id) } else { sessions.hold(id, hold, delta) }
    }

    fn orphans(&self) -> Result<Vec<ObjectId>> {
        let orphans = self.store.orphans(self.domain)?;
        let sessions = self.sessions.lock();
        Ok(orphans.into_iter().filter(|&id| sessions.holds(id).is_free()).collect())
    }

    fn space(&self) -> Space {
        self.store.status().space
    }

    fn bad_pages(&self, id: ObjectId, first: PageIndex, limit: usize) -> Result<Vec<PageIndex>> {
        self.with_object(id, |_, object| object.bad.list(first, limit))
    }

    fn space_expected(&self) -> Space {
        self.estimate_space()
    }
}
