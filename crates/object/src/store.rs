//! The lower interface: what a cache asks of the logical layer and the logical layer of each physical module.

use crate::{
    Attributes, Batch, BlockIdentity, Corruption, DomainId, Epoch, Error, FrameMut, ObjectChange, ObjectId, ObjectKey,
    Op, PAGE_SIZE, PageIndex, PageRef, Purpose, Result, ScrubCursor, ScrubStep, Seek, Side, SnapshotCount,
    SnapshotDeletion, SnapshotId, SnapshotInfo, Space, Timestamp,
};
use holdfast_integrity::{Checksum, PageSums, Protection, StoredSums};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What a page of an object is in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PageSource {
    /// Bytes, now in the frame that was offered for them and, in the modes that do so, verified against their checksum.
    Data {
        /// What the page has in memory: generated before the stored checksum was verified, where it is not a stored one itself.
        sums: PageSums,
        /// Stable while the block is unchanged.
        identity: BlockIdentity,
    },
    /// Never written, or punched: reads as zero. The frame is untouched.
    Hole,
    /// Its bytes were lost, in memory before they were stored or on the device, and it has not been written since. The frame is untouched.
    Lost(Side),
}

/// Who verifies the pages of a file that come from a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifiedBy {
    /// The store, before it gives them: [`ObjectStore::read`].
    Store,
    /// Their reader, where what they have in memory is stored with them; the others the store: [`ObjectStore::read_forwarded`].
    Reader,
}

/// A data block written ahead of its epoch, so that the intent log can name it instead of carrying its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// First copy: device in the upper 16 bits, block in the lower 48.
    pub address: u64,
    /// Second copy of a metadata page, or 0.
    pub address_2: u64,
    /// CRC-64 of the page, whatever the mode: a recovery has to know whether the block was written.
    pub checksum: u64,
    /// What its pointer will have.
    pub sums: StoredSums,
    /// Epoch in which it was written.
    pub birth: Epoch,
}

/// What became of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Applied {
    /// Pages whose bytes did not match their checksum any more: not written; the object keeps its old ones there. Also
    /// pages of `Write` and `Adopt` whose place in the object cannot be changed since its metadata there is damaged:
    /// not written either, and reading them or seeking there gives the error.
    pub rejected: Vec<(ObjectId, PageIndex)>,
    /// Of each other operation that is passed over, or done in part, as it would have to change such a place: one page there. What follows may have made it
    /// superfluous; if not, seeking there gives the error, or finds the page.
    pub passed_over: Vec<(ObjectId, PageIndex)>,
    /// Pages of copies that are lost, as metadata of the source is damaged there. What follows may have replaced or removed them.
    pub lost: Vec<(ObjectId, Range<PageIndex>)>,
    /// Pages written, with the identity of the block that now holds them.
    pub written: Vec<(ObjectId, PageIndex, BlockIdentity)>,
}

/// One record of the intent log: the state that a sync made durable, as operations on whole pages. Batches of one epoch
/// are replayed in order on the last recovery point; a batch is replayed whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogBatch {
    /// The epoch that was open.
    pub epoch: Epoch,
    /// Whose objects.
    pub domain: DomainId,
    /// In order. Pages of `Op::Write` are stored with the record, those of `Op::Adopt` are already on the device.
    pub ops: Vec<Op>,
}

/// What a store has done since it was opened. Of several devices, the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreCounters {
    /// Read requests sent to devices.
    pub device_reads: u64,
    /// Bytes asked for by them.
    pub read_bytes: u64,
    /// Write requests sent to devices.
    pub device_writes: u64,
    /// Bytes in them.
    pub written_bytes: u64,
    /// Flush requests sent to devices.
    pub device_flushes: u64,
    /// Runs of free blocks that devices were told of.
    pub device_discards: u64,
    /// Recovery points made.
    pub epochs: u64,
    /// Batches appended to the intent log.
    pub log_batches: u64,
    /// Bytes in them; also in `written_bytes`.
    pub log_bytes: u64,
    /// Blocks and records of metadata that somebody had written to in memory who must not.
    pub scribbles: u64,
    /// Times that a recovery point was given up for that, and begun anew.
    pub restarts: u64,
    /// Recovery points that were not made, as what had changed did not fit together.
    pub audit_failures: u64,
}

/// State of a store, for `status`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Last recovery point.
    pub epoch: Epoch,
    /// Why no changes are taken any more, if so.
    pub read_only: Option<String>,
    /// Space.
    pub space: Space,
    /// Objects of the domain `main`.
    pub objects: u64,
    /// Blocks repaired from another copy since the store was opened.
    pub repaired: u64,
    /// Different blocks found corrupt or unreadable, without a good copy, since the store was opened. Counted up to 65,536.
    pub unrepaired: u64,
    /// Different blocks found since the store was opened with something in entries that are free, and taken for free: nothing is lost. Counted
    /// up to 65,536.
    pub remains: u64,
    /// Pages of the intent log found without a good copy when it was read; also in `unrepaired`. They
    /// are lost, unless a later batch has them anew.
    pub log_pages_lost: u64,
    /// Batches of the intent log left out when it was read, since they were not whole: a power cut has cut the sync short,
    /// or they have been damaged since.
    pub log_batches_torn: u64,
    /// What has been done since the store was opened.
    pub counters: StoreCounters,
    /// Device names.
    pub devices: Vec<String>,
}

/// Objects in block trees on one or more devices. One caller at a time applies and commits; reads, reservations, placements
/// and log appends may come from several threads meanwhile.
///
/// Every method that changes something fails with [`crate::Error::ReadOnly`] once a write or flush has failed.
pub trait ObjectStore: Send + Sync {
    /// How the contents of files are protected.
    fn protection(&self) -> Protection;

    /// Last recovery point, space, health.
    fn status(&self) -> StoreStatus;

    /// Attributes of an object as of the last applied batch.
    fn attributes(&self, key: ObjectKey) -> Result<Attributes>;

    /// The same of several, one for each, in their order. What neighbours share is verified once for all of them, so it takes less than one by one.
    fn attributes_of(&self, keys: &[ObjectKey]) -> Vec<Result<Attributes>> {
        keys.iter().map(|key| self.attributes(*key)).collect()
    }

    /// Ids that no object has, not handed out before since the store was opened.
    fn new_objects(&self, domain: DomainId, count: usize) -> Result<Vec<ObjectId>>;

    /// Objects without a name (`nlink` 0), as of the last applied batch.
    fn orphans(&self, domain: DomainId) -> Result<Vec<ObjectId>>;

    /// Reads `frames.len()` pages from page `first` on. Bytes are verified, as far as the mode does that; corrupt copies are replaced by good ones.
    /// Fails as a whole with the error of the first page that has no good copy.
    fn read(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>>;

    /// The same for whoever verifies each page before using it, by the checksum that it comes with, and asks [`ObjectStore::read`] for what does
    /// not match: a page of a file that is stored with what it has in memory may come as it is (checksum forwarding, case 1
    /// of *Cooperative Data Protection*, §3.2), so that it is looked at once and not twice ([`PageSums::is_forwarded`]).
    fn read_forwarded(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>>;

    /// The first page at or behind `from` that is (or is not) a hole; `None` if there is none within the tree.
    fn seek(&self, key: ObjectKey, from: PageIndex, what: Seek) -> Result<Option<PageIndex>>;

    /// Runs of these pages that are lost, ascending, as of the last applied batch. Reads none of them.
    ///
    /// # Errors
    /// [`crate::Error::NoObject`]; [`crate::Error::Corrupt`]: of a tree block that cannot be read, so what is under it is not known.
    fn lost_pages(&self, key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>>;

    /// Sets `blocks` aside for `epoch`. Given back when that epoch is published.
    fn reserve(&self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()>;

    /// Levels of tree blocks above the object's pages. More than its size calls for if pages are stored behind its end.
    fn levels(&self, key: ObjectKey) -> Result<u8>;

    /// Levels of tree blocks above the blocks of a domain's object table, and above those of its maps of ids.
    fn table_levels(&self, domain: DomainId) -> Result<[u8; 2]>;

    /// That an operation can be carried out as far as stored tree blocks are concerned, as of the last applied batch: those of its object that it has to go
    /// through as a whole, and those above the pages that a copy reads, can be read. A lowest one of the object's own that can be made anew does not
    /// stand in the way, nor does an object that is not there.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`]: the place of one that cannot be read.
    fn check_way(&self, domain: DomainId, op: &Op) -> Result<()>;

    /// Whether all these pages are stored in blocks that nothing else refers to (no other object, no snapshot): then what
    /// replaces them takes no more than it gives back with the next recovery point. Nothing is stored of an object that there is not.
    fn replaceable(&self, key: ObjectKey, first: PageIndex, count: usize) -> Result<bool>;

    /// Writes pages ahead for `epoch`; not durable before the next log append or `prepare`. In the order given.
    fn place(&self, key: ObjectKey, epoch: Epoch, pages: &[(PageIndex, PageRef)]) -> Result<Vec<Placement>>;

    /// Placements that no operation will adopt.
    fn unplace(&self, epoch: Epoch, placements: &[Placement]) -> Result<()>;

    /// Applies operations to the epoch being written.
    fn apply(&self, batch: &Batch) -> Result<Applied>;

    /// Everything applied is durable afterwards, save the superblock that names it. `epoch` is above the last one.
    fn prepare(&self, epoch: Epoch) -> Result<()>;

    /// The domain as of the last recovery point becomes a snapshot, durable with `epoch`, the one being written. Nothing may
    /// have been applied for that epoch yet.
    fn snapshot_create(&self, domain: DomainId, epoch: Epoch, name: &str, created: Timestamp) -> Result<SnapshotId>;

    /// The snapshot is gone with `epoch`, the one being written. Nothing may have been applied for that epoch yet. What only it has becomes
    /// free in slices: true if there is more of it, for which this is to be called again with a later epoch, also after a power cut
    /// ([`ObjectStore::snapshot_deletions`]).
    fn snapshot_delete(&self, domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool>;

    /// Snapshots that are gone, and of which something is left to be freed.
    fn snapshot_deletions(&self, domain: DomainId) -> Vec<SnapshotDeletion>;

    /// Counts a part of what only a snapshot has, and gives whether there is more of it. A deletion goes through the same, part by part:
    /// after the whole count it is known that it can be read to its end.
    fn snapshot_count_part(&self, domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool>;

    /// The snapshots of a domain, oldest first.
    fn snapshots(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>>;

    /// The same from memory, without what only each of them has: `blocks_only` is 0.
    fn snapshots_uncounted(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>>;

    /// Objects that differ between two states of a domain, with ids above `after`, in ascending order, at most `limit`. Takes
    /// time in proportion to what changed.
    fn changed_objects(
        &self,
        domain: DomainId,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>>;

    /// Pages of an object, from `first` on, that differ between two states of its domain; at most `limit`. Takes time in
    /// proportion to what changed. An object that is not there has no pages.
    fn changed_pages(
        &self,
        key: ObjectKey,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>>;

    /// What the caller has had applied for the next recovery point is not what it was to be: none is made of it. It is about the object of its place, if
    /// that says one. Gives the [`Error::GivenUp`] that all answer from then on; see [`ObjectStore::begin_anew`].
    fn give_up(&self, found: Found, why: Corruption) -> Error;

    /// After [`Error::GivenUp`] for a logic bug, and before [`ObjectStore::begin_anew`]: the objects that it is about, as far as the store can tell, for the
    /// report. None after anything else.
    fn suspects(&self) -> Vec<ObjectKey>;

    /// After [`Error::GivenUp`], which all that is for the next recovery point answers from then on: what has been applied since the last recovery point
    /// is forgotten, and what is known of that one is read from the device again. Blocks written ahead and reservations stay. The epoch can
    /// be applied anew. Does nothing if nothing was given up.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if it happens too often in a row, or what is needed for it has gone bad, too: the last recovery point stands.
    fn begin_anew(&self) -> Result<()>;

    /// Makes `epoch` the last recovery point, durably. Blocks that it freed can be used again, and the log of `epoch`
    /// and those before is forgotten.
    fn publish(&self, epoch: Epoch) -> Result<()>;

    /// Appends to the intent log. Durable on return. `false`: no room, or something that has no place as what leads there is known to be unreadable, or that may need other metadata of the store's own which is; nothing was
    /// done, close the epoch instead. A batch
    /// of an epoch that has become a recovery point meanwhile is durable already: `true`, and nothing is written.
    fn log_append(&self, batch: &LogBatch) -> Result<bool>;

    /// Writes a seal behind the last batch of the intent log, not durably: once it is on the device, whoever reads the log knows
    /// that the batch had been acknowledged, so that its loss is told from a power cut before it was. For when the log has been
    /// idle for a while. `false`: there is no batch since the last recovery point, or it has a seal; nothing was done.
    fn log_seal(&self) -> Result<bool>;

    /// Next batch of the intent log that is newer than the last recovery point, from the start at first; `None` at the
    /// end. Its pages are in frames that `frames` gives out and the caller holds.
    fn log_next(&self, frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>) -> Result<Option<RecoveredBatch>>;

    /// Of each of these pages, the newest version that the intent log has since the last recovery point, unless something behind it there cuts,
    /// zeroes, deletes or copies over the page. Reads all of the log: for pages that went bad in memory.
    fn logged_pages(&self, domain: DomainId, pages: &[(ObjectId, PageIndex)]) -> Result<Vec<Option<LoggedPage>>>;

    /// Reads and verifies some `blocks` blocks in use from `cursor` on, all copies of each, besides whatever else goes on. Bad
    /// copies are replaced by good ones, unless the store takes no changes. What has no good copy is told as
    /// [`crate::Fate::Unrepaired`]: only the caller knows whether a page is in memory still.
    fn scrub_step(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep>;

    /// Writes a page over the bad copies of the one that is stored there, if it is what should be there: then it is good again for
    /// everything that shares its blocks.
    fn mend(&self, key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending>;

    /// Tells the device which blocks of these are free: not needed by the last recovery point nor by what came after. Gives how many. There
    /// may be fewer blocks than that.
    fn trim(&self, within: Range<u64>) -> Result<u64>;

    /// Enlarges the device to `blocks` blocks of 4 KiB, and takes it over; with 0, takes it over as large as it has become. The space
    /// can be used on return; that it can be after a power cut too, the next recovery point says. Gives the size in blocks: what it was
    /// if the device has not grown by the 32 blocks that labels need. May be called while other things go on, but not between
    /// `prepare` and `publish`.
    fn grow(&self, blocks: u64) -> Result<u64>;

    /// No changes are taken from now on, for this reason, as after a failed write. If none were taken before, the first reason counts.
    fn stop(&self, reason: &str);

    /// The store is left in order: nothing is open, the log is empty.
    fn close(&self) -> Result<()>;
}

/// What a caller gives up an epoch for: it is counted as what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It has gone bad in the caller's memory.
    Scribble,
    /// Somebody who may has done the wrong thing.
    LogicBug,
}

/// What has become of a page that [`ObjectStore::mend`] was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mending {
    /// It is what should be stored there, and all copies are so now.
    Done,
    /// It is what should be stored there, and could not be written there.
    NotDone,
    /// It is not what should be stored there: nothing was written.
    OtherBytes,
}

/// A page as the intent log has it.
#[derive(Clone, Debug)]
pub struct LoggedPage {
    /// What it holds.
    pub bytes: Box<[u8; PAGE_SIZE]>,
    /// What the log says that the checksum of these bytes is. They have matched it.
    pub checksum: Checksum,
}

/// A batch read back from the intent log, with the pages that its operations name.
#[derive(Debug)]
pub struct RecoveredBatch {
    /// The operations.
    pub batch: LogBatch,
    /// Keeps the frames of its pages in use.
    pub pins: Vec<crate::PinnedPage>,
    /// Pages that it had and whose bytes are gone: its operations make them lost.
    pub lost: Vec<(ObjectId, PageIndex)>,
}
