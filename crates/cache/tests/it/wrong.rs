//! A store that does the wrong thing by legal means, which its own audit does not see.

use holdfast_integrity::Protection;
use holdfast_object::*;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Makes other operations of some, and says whether it has.
pub(crate) type Bug = Box<dyn FnMut(&mut Vec<Op>) -> bool + Send>;

pub(crate) struct Wrong {
    below: Arc<dyn ObjectStore>,
    /// What is done wrong from now on, so many times.
    bug: Mutex<Option<(Bug, usize)>>,
}

impl Wrong {
    pub(crate) fn new(below: Arc<dyn ObjectStore>) -> Wrong {
        Wrong { below, bug: Mutex::default() }
    }

    pub(crate) fn plant(&self, times: usize, bug: Bug) {
        *self.bug.lock() = Some((bug, times));
    }
}

macro_rules! as_below {
    ($($name:ident($($given:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, $($given: $type),*) $(-> $result)? {
            self.below.$name($($given),*)
        })*
    };
}

impl ObjectStore for Wrong {
    fn apply(&self, batch: &Batch) -> Result<Applied> {
        let mut batch = batch.clone();
        if let Some((bug, times)) = &mut *self.bug.lock()
            && *times > 0
            && bug(&mut batch.ops)
        {
            *times -= 1;
        }
        self.below.apply(&batch)
    }

    as_below! {
        prepare(epoch: Epoch) -> Result<()>;
        publish(epoch: Epoch) -> Result<()>;
        protection() -> Protection;
        status() -> StoreStatus;
        attributes(key: ObjectKey) -> Result<Attributes>;
        new_objects(domain: DomainId, count: usize) -> Result<Vec<ObjectId>>;
        orphans(domain: DomainId) -> Result<Vec<ObjectId>>;
        read(key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>>;
        read_forwarded(key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>>;
        seek(key: ObjectKey, from: PageIndex, what: Seek) -> Result<Option<PageIndex>>;
        lost_pages(key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>>;
        reserve(epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()>;
        levels(key: ObjectKey) -> Result<u8>;
        table_levels(domain: DomainId) -> Result<[u8; 2]>;
        check_way(domain: DomainId, op: &Op) -> Result<()>;
        replaceable(key: ObjectKey, first: PageIndex, count: usize) -> Result<bool>;
        place(key: ObjectKey, epoch: Epoch, pages: &[(PageIndex, PageRef)]) -> Result<Vec<Placement>>;
        unplace(epoch: Epoch, placements: &[Placement]) -> Result<()>;
        snapshot_create(domain: DomainId, epoch: Epoch, name: &str, created: Timestamp) -> Result<SnapshotId>;
        snapshot_delete(domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool>;
        snapshot_deletions(domain: DomainId) -> Vec<SnapshotDeletion>;
        snapshot_count_part(domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool>;
        snapshots(domain: DomainId) -> Result<Vec<SnapshotInfo>>;
        snapshots_uncounted(domain: DomainId) -> Result<Vec<SnapshotInfo>>;
        changed_objects(domain: DomainId, states: (SnapshotId, SnapshotId), after: ObjectId, limit: usize) -> Result<Vec<ObjectChange>>;
        changed_pages(key: ObjectKey, states: (SnapshotId, SnapshotId), first: PageIndex, limit: usize) -> Result<Vec<PageIndex>>;
        give_up(found: Found, why: Corruption) -> Error;
        suspects() -> Vec<ObjectKey>;
        begin_anew() -> Result<()>;
        log_append(batch: &LogBatch) -> Result<bool>;
        log_seal() -> Result<bool>;
        log_next(frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>) -> Result<Option<RecoveredBatch>>;
        logged_pages(domain: DomainId, pages: &[(ObjectId, PageIndex)]) -> Result<Vec<Option<LoggedPage>>>;
        scrub_step(cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep>;
        mend(key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending>;
        trim(within: Range<u64>) -> Result<u64>;
        grow(blocks: u64) -> Result<u64>;
        stop(reason: &str);
        close() -> Result<()>;
    }
}
