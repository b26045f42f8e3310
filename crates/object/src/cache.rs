//! The upper interface: what naming asks of the cache.

use crate::{
    Arena, Attributes, DomainId, Epoch, Error, FrameMut, Hold, Holds, ObjectChange, ObjectId, Op, PageIndex, PageRef,
    PinnedPage, Proved, Purpose, Result, SnapshotDeletion, SnapshotId, SnapshotInfo, Space,
};
use holdfast_integrity::Protection;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Identity of a client's request. A transaction with the identity of one that was done before is not done again: its
/// answer is given once more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId {
    /// The session (one mount is one).
    pub client: u32,
    /// The request within it.
    pub unique: u64,
}

/// What one request changes: all of it or nothing, also after a crash.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Transaction {
    /// For requests that must not be done twice.
    pub request: Option<RequestId>,
    /// Naming's own note, given back if the request is repeated. At most [`Transaction::ANSWER_MAX`] bytes.
    pub answer: Vec<u8>,
    /// In order. Fragments may cover parts of pages.
    pub ops: Vec<Op>,
    /// Whether it may use the store's reserve: deletion and what else frees space or must not fail.
    pub purpose: Purpose,
    /// Nobody misses it after a power cut (a time of last access): it waits in memory for an epoch that is closed for another
    /// reason, or for hours.
    pub lazy: bool,
    /// An object whose contents become durable no later than this transaction's names: the file that a rename puts in
    /// another's place.
    pub brings: Option<ObjectId>,
    /// What it changes in the sums over attributes, as whoever made it has proved; `None` if nobody has.
    pub proved: Option<Proved>,
}

impl Transaction {
    /// Longest answer, in bytes.
    pub const ANSWER_MAX: usize = 64;
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Admitted at this place in the order of all transactions.
    Done {
        /// Counts from 1 since the store was opened.
        sequence: u64,
    },
    /// Had been done before.
    Repeated {
        /// What naming noted then.
        answer: Vec<u8>,
    },
}

/// A page as read: immutable as long as it is held.
#[derive(Clone, Debug)]
pub enum PageView {
    /// Bytes, not verified since they were put in memory; see [`PinnedPage::verify`].
    Data(PinnedPage),
    /// Nothing stored: reads as zero.
    Zero,
}

/// What to seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seek {
    /// Something stored.
    Data,
    /// Nothing stored. The end of an object counts as one.
    Hole,
}

/// How much a sync must make durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Durability {
    /// Contents and what is needed to read them (fdatasync).
    Data,
    /// Everything (fsync).
    All,
}

/// Objects of one domain, in memory and below. May be called from several threads.
pub trait ObjectCache: Send + Sync {
    /// Whose objects.
    fn domain(&self) -> DomainId;

    /// How the contents of files are protected: their pages and fragments come with checksums of [`Protection::memory`], all others with
    /// CRC-64/NVME.
    fn protection(&self) -> Protection;

    /// Where the pages are.
    fn arena(&self) -> &Arc<Arena>;

    /// Empty frames for bytes that are to be written. May flush to get them.
    fn frames(&self, count: usize) -> Result<Vec<FrameMut>>;

    /// An id for a new object.
    fn new_object(&self) -> Result<ObjectId>;

    /// Attributes as of the last transaction.
    fn attributes(&self, id: ObjectId) -> Result<Attributes>;

    /// The same, shown where they are if that takes less; [`Attributes::blocks`] may be those that are stored already. `look` must not call
    /// the cache.
    fn look(&self, id: ObjectId, look: &mut dyn FnMut(&Attributes)) -> Result<()> {
        look(&self.attributes(id)?);
        Ok(())
    }

    /// `count` pages from page `first` on, regardless of the object's size. The caller verifies each page at the last
    /// moment before its bytes leave, and calls [`ObjectCache::reread`] if one does not match.
    fn read(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<Vec<PageView>>;

    /// A reader found `bad` not to match its checksum. A clean page is read again from below; a dirty one is an error,
    /// from now on until it is written again.
    fn reread(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView>;

    /// Pages of the object from `first` on, `limit` at most, ascending, whose newest bytes went bad in memory before they were stored:
    /// errors until they are written again. None, for a cache that loses none.
    fn bad_pages(&self, id: ObjectId, first: PageIndex, limit: usize) -> Result<Vec<PageIndex>> {
        let _ = (id, first, limit);
        Ok(Vec::new())
    }

    /// Does all of it or nothing.
    fn submit(&self, transaction: Transaction) -> Result<Outcome>;

    /// The answer of an earlier transaction.
    fn answer(&self, request: RequestId) -> Option<Vec<u8>>;

    /// The object's changes, and the name space as of now, are durable on return. Pages that went bad in memory before they were,
    /// and that nobody has been told of, are its error: for callers without a descriptor.
    fn sync(&self, id: ObjectId, durability: Durability) -> Result<()>;

    /// The same, and tells nobody of bad pages: [`ObjectCache::errors_tell`] does, to be called next.
    fn make_durable(&self, id: ObjectId, durability: Durability) -> Result<()>;

    /// What a descriptor of the object that is opened now has been told of bad pages. Such are changed pages whose bytes went bad in
    /// memory before the store had them. They are not stored, and errors to readers until they are written again or cut off.
    fn errors_begin(&self, id: ObjectId) -> u64;

    /// Tells a descriptor that was told up to `seen`: the error of the first page that went bad since, if there is one and it is bad
    /// still, and up to where the descriptor has been told now.
    fn errors_tell(&self, id: ObjectId, seen: u64) -> Option<(u64, Error)>;

    /// Everything is durable on return but for pages that went bad in memory; gives the recovery point that has it.
    fn sync_all(&self) -> Result<Epoch>;

    /// To be called after [`ObjectCache::sync_all`]: the error of the first page of any object that went bad since it was called last, and
    /// is bad still. Apart from what descriptors are told. None, for a cache that loses none.
    fn errors_tell_all(&self) -> Option<Error> {
        None
    }

    /// First byte position at or behind `offset` with (or without) something stored, in units of pages; `None` if
    /// there is none before the end of the object. The end counts as a hole.
    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>>;

    /// Adds `delta` to what sessions hold of the object; counts do not go below 0. Gives the new counts.
    fn hold(&self, id: ObjectId, hold: Hold, delta: i64) -> Holds;

    /// Objects without a name that nobody holds: left over from before the store was opened.
    fn orphans(&self) -> Result<Vec<ObjectId>>;

    /// Space of the store.
    fn space(&self) -> Space;

    /// About what it will be when everything admitted is a recovery point: what is being deleted counts as pending, and what was
    /// promised and will not be taken as free. For showing only: whether there is room is for [`ObjectCache::space`] to say.
    fn space_expected(&self) -> Space {
        self.space()
    }
}

/// Snapshots of the domain of an [`ObjectCache`]. Their objects are read through it, by ids that name the snapshot.
pub trait Snapshots: Send + Sync {
    /// Keeps the domain as it is: with everything admitted before the call. Durable on return.
    fn snapshot_create(&self, name: &str) -> Result<SnapshotInfo>;

    /// The snapshot is gone, durably, on return; gives what it was, counted. What only it had is freed from then on: by who calls
    /// [`Snapshots::snapshot_delete_more`], and by the thread that closes epochs. An error if what it had cannot be read to its end: then
    /// it is there still.
    fn snapshot_delete(&self, name: &str) -> Result<SnapshotInfo>;

    /// Frees a part of what snapshots had that are gone, in an epoch of its own, and gives those of which more can be freed after that.
    /// After an error that has to do with one of them, that one is left out from then on.
    fn snapshot_delete_more(&self) -> Result<Vec<SnapshotDeletion>>;

    /// Snapshots that are gone, and of which something is left to be freed.
    fn snapshot_deletions(&self) -> Vec<SnapshotDeletion>;

    /// All of them, oldest first.
    fn snapshots(&self) -> Result<Vec<SnapshotInfo>>;

    /// The same from memory, without what only each of them has: `blocks_only` is 0. For who looks for a name.
    fn snapshots_uncounted(&self) -> Result<Vec<SnapshotInfo>>;

    /// See [`crate::ObjectStore::changed_objects`]; the domain as of now counts with everything admitted before the last recovery
    /// point.
    fn changed_objects(
        &self,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>>;

    /// See [`crate::ObjectStore::changed_pages`].
    fn changed_pages(
        &self,
        id: ObjectId,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>>;
}
