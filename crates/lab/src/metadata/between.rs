//! What stands between the cache and the store, and before the device, so that something can happen while a recovery point is made, or a sync goes
//! into the log.

use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice};
use holdfast_integrity::Protection;
use holdfast_object::{
    Applied, Attributes, Batch, Corruption, DomainId, Epoch, Error, Found, FrameMut, LogBatch, LoggedPage, Mending,
    ObjectChange, ObjectId, ObjectKey, ObjectStore, Op, PageIndex, PageRef, PageSource, Placement, Purpose,
    RecoveredBatch, Result, ScrubCursor, ScrubStep, Seek, SnapshotCount, SnapshotDeletion, SnapshotId, SnapshotInfo,
    StoreStatus, Timestamp,
};
use holdfast_physical::Module;
use parking_lot::Mutex;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// When something happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// Between two recovery points, before anything has changed.
    Rest,
    /// A sync is to go into the store's intent log, and nothing of it is put together.
    Appending,
    /// Before a device request with which it goes there.
    Logging,
    /// The store has got a part of what has changed.
    Between,
    /// Between two recovery points, with changes that the store has only in its intent log.
    Logged,
    /// The store has got all that has changed.
    Applied,
    /// Before a request with which the recovery point reaches the device.
    Writing,
    /// All is on the device but the superblock.
    Prepared,
}

impl Moment {
    /// All of them.
    pub const ALL: [Moment; 8] = [
        Moment::Rest,
        Moment::Appending,
        Moment::Logging,
        Moment::Between,
        Moment::Logged,
        Moment::Applied,
        Moment::Writing,
        Moment::Prepared,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Moment::Rest => "at rest",
            Moment::Appending => "before a sync goes into the log",
            Moment::Logging => "while a sync goes into the log",
            Moment::Between => "changes handed down in part",
            Moment::Logged => "at rest, with synced changes",
            Moment::Applied => "all changes handed down",
            Moment::Writing => "while it is written",
            Moment::Prepared => "before the superblock",
        }
    }

    /// Whether legal updates follow before the recovery point.
    pub fn is_before_updates(self) -> bool {
        self.is_of_log() || matches!(self, Moment::Rest | Moment::Between)
    }

    /// Whether a sync goes into the log: after it, a power cut must find all of it there.
    pub(super) fn is_of_log(self) -> bool {
        matches!(self, Moment::Appending | Moment::Logging)
    }
}

/// Who is told of each moment.
pub(super) type Hook = Box<dyn FnMut(Moment) + Send>;

#[derive(Default)]
pub(super) struct Watch {
    hook: Mutex<Option<Hook>>,
    /// What a device request is told as.
    requests: Mutex<Option<Moment>>,
}

impl Watch {
    pub(super) fn set(&self, hook: Option<Hook>) {
        *self.hook.lock() = hook;
    }

    pub(super) fn take(&self) -> Option<Hook> {
        self.hook.lock().take()
    }

    pub(super) fn tell(&self, moment: Moment) {
        // Not held meanwhile: who is told may come by here again.
        let Some(mut hook) = self.hook.lock().take() else { return };
        hook(moment);
        self.hook.lock().get_or_insert(hook);
    }

    fn while_writing<T>(&self, moment: Moment, write: impl FnOnce() -> T) -> T {
        *self.requests.lock() = Some(moment);
        let outcome = write();
        *self.requests.lock() = None;
        outcome
    }

    fn request(&self) {
        let moment = *self.requests.lock();
        moment.into_iter().for_each(|moment| self.tell(moment));
    }
}

/// A device that tells of requests for a recovery point, or for the log.
pub(super) struct Front {
    pub(super) inner: Arc<MemoryDevice>,
    pub(super) watch: Arc<Watch>,
}

impl Filter for Front {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), BlockError> {
        self.watch.request();
        self.inner.write(first, bufs)
    }

    fn on_flush(&self) -> std::result::Result<(), BlockError> {
        self.watch.request();
        self.inner.flush()
    }
}

/// A store that gets batches in parts, and tells when it has.
pub(super) struct Between {
    pub(super) module: Arc<Module>,
    pub(super) watch: Arc<Watch>,
}

/// Where a batch is divided: before the first pages, and between two objects about half-way. Each part can stand alone, as operations
/// on pages of one object stay together.
fn parts(ops: &[Op]) -> [&[Op]; 3] {
    let has_pages = |op: &Op| matches!(op, Op::Write { .. } | Op::Adopt { .. });
    let first = ops.iter().position(has_pages).unwrap_or(ops.len());
    let (structure, pages) = ops.split_at(first);
    let is_edge = |at: &usize| pages[at - 1].target() != pages[*at].target();
    let once =
        |at: &usize| pages[..*at].iter().all(|op| pages[*at..].iter().all(|later| later.target() != op.target()));
    let middle = (pages.len() / 2 + 1..pages.len()).find(|at| is_edge(at) && once(at)).unwrap_or(pages.len());
    let (first, second) = pages.split_at(middle);
    [structure, first, second]
}

impl ObjectStore for Between {
    fn apply(&self, batch: &Batch) -> Result<Applied> {
        let mut all = Applied::default();
        for ops in parts(&batch.ops) {
            let part = Batch { ops: ops.to_vec(), ..batch.clone() };
            let applied = self.module.apply(&part)?;
            all.rejected.extend(applied.rejected);
            all.passed_over.extend(applied.passed_over);
            all.lost.extend(applied.lost);
            all.written.extend(applied.written);
            self.watch.tell(Moment::Between);
        }
        Ok(all)
    }

    fn prepare(&self, epoch: Epoch) -> Result<()> {
        self.watch.tell(Moment::Applied);
        self.watch.while_writing(Moment::Writing, || self.module.prepare(epoch))
    }

    fn publish(&self, epoch: Epoch) -> Result<()> {
        self.watch.tell(Moment::Prepared);
        self.watch.while_writing(Moment::Writing, || self.module.publish(epoch))
    }

    fn protection(&self) -> Protection {
        self.module.protection()
    }

    fn status(&self) -> StoreStatus {
        self.module.status()
    }

    fn attributes(&self, key: ObjectKey) -> Result<Attributes> {
        self.module.attributes(key)
    }

    fn attributes_of(&self, keys: &[ObjectKey]) -> Vec<Result<Attributes>> {
        self.module.attributes_of(keys)
    }

    fn new_objects(&self, domain: DomainId, count: usize) -> Result<Vec<ObjectId>> {
        self.module.new_objects(domain, count)
    }

    fn orphans(&self, domain: DomainId) -> Result<Vec<ObjectId>> {
        self.module.orphans(domain)
    }

    fn read(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.module.read(key, first, frames)
    }

    fn read_forwarded(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.module.read_forwarded(key, first, frames)
    }

    fn seek(&self, key: ObjectKey, from: PageIndex, what: Seek) -> Result<Option<PageIndex>> {
        self.module.seek(key, from, what)
    }

    fn lost_pages(&self, key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>> {
        self.module.lost_pages(key, pages)
    }

    fn reserve(&self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()> {
        self.module.reserve(epoch, blocks, purpose)
    }

    fn levels(&self, key: ObjectKey) -> Result<u8> {
        self.module.levels(key)
    }

    fn table_levels(&self, domain: DomainId) -> Result<[u8; 2]> {
        self.module.table_levels(domain)
    }

    fn check_way(&self, domain: DomainId, op: &Op) -> Result<()> {
        self.module.check_way(domain, op)
    }

    fn replaceable(&self, key: ObjectKey, first: PageIndex, count: usize) -> Result<bool> {
        self.module.replaceable(key, first, count)
    }

    fn place(&self, key: ObjectKey, epoch: Epoch, pages: &[(PageIndex, PageRef)]) -> Result<Vec<Placement>> {
        self.module.place(key, epoch, pages)
    }

    fn unplace(&self, epoch: Epoch, placements: &[Placement]) -> Result<()> {
        self.module.unplace(epoch, placements)
    }

    fn snapshot_create(&self, domain: DomainId, epoch: Epoch, name: &str, created: Timestamp) -> Result<SnapshotId> {
        self.module.snapshot_create(domain, epoch, name, created)
    }

    fn snapshot_delete(&self, domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool> {
        self.module.snapshot_delete(domain, epoch, id)
    }

    fn snapshot_deletions(&self, domain: DomainId) -> Vec<SnapshotDeletion> {
        self.module.snapshot_deletions(domain)
    }

    fn snapshot_count_part(&self, domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool> {
        self.module.snapshot_count_part(domain, id, count)
    }

    fn snapshots(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.module.snapshots(domain)
    }

    fn snapshots_uncounted(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.module.snapshots_uncounted(domain)
    }

    fn changed_objects(
        &self,
        domain: DomainId,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        self.module.changed_objects(domain, states, after, limit)
    }

    fn changed_pages(
        &self,
        key: ObjectKey,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        self.module.changed_pages(key, states, first, limit)
    }

    fn give_up(&self, found: Found, why: Corruption) -> Error {
        self.module.give_up(found, why)
    }

    fn suspects(&self) -> Vec<ObjectKey> {
        self.module.suspects()
    }

    fn begin_anew(&self) -> Result<()> {
        self.module.begin_anew()
    }

    fn log_append(&self, batch: &LogBatch) -> Result<bool> {
        self.watch.tell(Moment::Appending);
        self.watch.while_writing(Moment::Logging, || self.module.log_append(batch))
    }

    fn log_seal(&self) -> Result<bool> {
        self.module.log_seal()
    }

    fn log_next(&self, frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>) -> Result<Option<RecoveredBatch>> {
        self.module.log_next(frames)
    }

    fn logged_pages(&self, domain: DomainId, pages: &[(ObjectId, PageIndex)]) -> Result<Vec<Option<LoggedPage>>> {
        self.module.logged_pages(domain, pages)
    }

    fn scrub_step(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep> {
        self.module.scrub_step(cursor, blocks)
    }

    fn mend(&self, key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending> {
        self.module.mend(key, index, page)
    }

    fn trim(&self, within: Range<u64>) -> Result<u64> {
        self.module.trim(within)
    }

    fn grow(&self, blocks: u64) -> Result<u64> {
        self.module.grow(blocks)
    }

    fn stop(&self, reason: &str) {
        self.module.stop(reason);
    }

    fn close(&self) -> Result<()> {
        self.module.close()
    }
}
