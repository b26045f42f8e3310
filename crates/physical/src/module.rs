//! One physical module: the objects of one device.

use crate::alloc::Alloc;
use crate::base::Base;
use crate::commit::{CommitOrder, Committing};
use crate::disk::Disk;
use crate::format::{Label, Superblock};
use crate::guarded::Doubled;
use crate::intent_log::IntentLog;
use crate::meta_block::MetadataProtection;
use crate::node_cache::NodeCache;
use crate::objects::{OBJECT_END, map_of, orphans_of, table_of};
use crate::scribble::Moment;
use crate::scrub::SharedSeen;
use crate::sealed::Sealed;
use crate::snapshot::DeletionSlice;
use crate::tree::Trees;
use holdfast_guard as guard;
use holdfast_integrity::Protection;
use holdfast_object::{
    Applied, Arena, Attributes, Batch, Clock, Corruption, DomainId, Epoch, Error, Found, FrameMut, LogBatch,
    LoggedPage, Mending, ObjectChange, ObjectId, ObjectKey, ObjectStore, Op, PageIndex, PageRef, PageSource, Placement,
    Purpose, RecoveredBatch, Result, ScrubCursor, ScrubStep, Seek, SnapshotCount, SnapshotDeletion, SnapshotId,
    SnapshotInfo, StoreStatus, Timestamp, VerifiedBy,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Nothing is written, not even repairs.
    pub read_only: bool,
    /// Memory for clean metadata blocks, in bytes.
    pub node_cache_bytes: usize,
    /// Most blocks of 4 KiB that may be in use; what needs more is refused with [`Error::OverQuota`].
    pub quota_blocks: Option<u64>,
    /// What a recovery point has freed is discarded at once.
    pub discard: bool,
    /// How the contents of files are protected, if not as the store says. What is stored already keeps its checksums.
    pub protection: Option<Protection>,
    /// How much of the deletion of a snapshot is done with one recovery point.
    pub deletion_slice: DeletionSlice,
    /// How blocks of metadata are protected in memory. All but the default are for measurements.
    pub metadata: MetadataProtection,
    /// For the lab only: an order of writing that loses data in a power cut, so that the crash explorer can show that it
    /// finds such bugs. Everybody else leaves the default.
    pub commit_order: CommitOrder,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            node_cache_bytes: 16 << 20,
            quota_blocks: None,
            discard: false,
            protection: None,
            deletion_slice: DeletionSlice::default(),
            metadata: MetadataProtection::default(),
            commit_order: CommitOrder::default(),
        }
    }
}

/// The objects of one device.
///
/// Locks, in the order in which they are taken: `committing`, `log`, `gate`, `ids`, `trees` (within it `dead_blocks`), `alloc` (within `base`),
/// those of `sealed`.
/// No device write happens under `trees` or `alloc`, save repairs and discards; reads of metadata do.
pub struct Module {
    pub(crate) base: Base,
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) trees: TreesLock,
    /// State of the one caller that applies and commits.
    pub(crate) committing: Mutex<Committing>,
    /// The label and the last recovery point. The label changes with `committing` held.
    pub(crate) sealed: Sealed,
    given: Given,
    /// Held shared by reads of pages between finding a block and having read it, so that a block is not handed out again
    /// in between.
    pub(crate) gate: RwLock<()>,
    pub(crate) log: Mutex<IntentLog>,
    /// The log has been read: blocks that it names are claimed.
    pub(crate) log_is_read: AtomicBool,
    /// By domain, where the search for the next free object id begins.
    pub(crate) ids: Mutex<FxHashMap<DomainId, Doubled>>,
    /// See [`Module::unknown_slots`].
    pub(crate) unknown_slots: u64,
    /// What the scrub under way has read of blocks that several files have.
    pub(crate) scrubbed: SharedSeen,
    /// How the contents of files are protected from now on.
    pub(crate) protection: Protection,
    /// See [`OpenOptions::deletion_slice`].
    pub(crate) deletion_slice: DeletionSlice,
    /// How often somebody has asked for a recovery point to be kept ([`Module::freeze`]), which tells them from each other.
    pub(crate) holders: AtomicU64,
}

/// The trees. Whoever locks them may read memory that is locked against writes ([`crate::locked_block`]), and has no other way to it.
pub(crate) struct TreesLock(RwLock<Trees>);

impl TreesLock {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Trees> {
        guard::admit_thread();
        self.0.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Trees> {
        guard::admit_thread();
        self.0.write()
    }

    /// Without waiting for longer than this.
    pub(crate) fn try_write_for(&self, patience: Duration) -> Option<RwLockWriteGuard<'_, Trees>> {
        guard::admit_thread();
        self.0.try_write_for(patience)
    }
}

/// What never changes, for whoever is told of it. What goes to the device comes from `sealed`.
struct Given {
    store: [u8; 16],
    device: [u8; 16],
    protection: Protection,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("device", &self.base.disk.name()).field("epoch", &self.epoch()).finish()
    }
}

impl Module {
    pub(crate) fn assemble(
        base: Base,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        sealed: Sealed,
        trees: Trees,
    ) -> Result<Module> {
        let (label, superblock) = sealed.both(&base.disk)?;
        let log = IntentLog::new(log_area(&label));
        let protection = superblock.protection;
        let given = Given { store: label.store, device: label.device, protection };
        Ok(Module {
            base,
            arena,
            clock,
            trees: TreesLock(RwLock::new(trees)),
            committing: Mutex::new(Committing::default()),
            sealed,
            given,
            gate: RwLock::new(()),
            log: Mutex::new(log),
            log_is_read: AtomicBool::new(false),
            ids: Mutex::default(),
            unknown_slots: 0,
            scrubbed: SharedSeen::default(),
            protection,
            deletion_slice: DeletionSlice::default(),
            holders: AtomicU64::new(0),
        })
    }

    /// How many snapshots the domain has; from memory, for whoever asks often.
    pub fn snapshot_count(&self, domain: DomainId) -> u64 {
        self.trees.read().kept.of(domain).len() as u64
    }

    /// Most blocks of metadata that an epoch has changed since the store was opened.
    pub fn most_changed_blocks(&self) -> u64 {
        self.disk().counters.most_changed()
    }

    /// Superblocks without any good copy when the store was opened. Each may have been of a recovery point newer than the one that was
    /// opened, unless the power failed while it was written.
    pub fn unknown_slots(&self) -> u64 {
        self.unknown_slots
    }

    pub(crate) fn label(&self) -> Result<Label> {
        self.sealed.label(self.disk())
    }

    pub(crate) fn set_label(&self, label: &Label) {
        self.sealed.set_label(label);
    }

    /// The last recovery point.
    pub(crate) fn superblock(&self) -> Result<Superblock> {
        self.sealed.superblock(self.disk())
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.base.disk
    }

    /// The last recovery point's number, to be told.
    pub fn epoch(&self) -> Epoch {
        self.sealed.epoch()
    }

    /// The store's UUID, as given when it was created.
    pub fn store_uuid(&self) -> [u8; 16] {
        self.given.store
    }

    /// The device's UUID, as given when the store was created.
    pub fn device_uuid(&self) -> [u8; 16] {
        self.given.device
    }

    /// How the contents of files are protected unless a mount says otherwise, as given when the store was created.
    pub fn store_protection(&self) -> Protection {
        self.given.protection
    }

    /// Size of the store in blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.disk().blocks()
    }

    /// Whether the store had been closed in order when the last recovery point was made, and is known to.
    pub fn is_clean(&self) -> bool {
        self.superblock().is_ok_and(|superblock| superblock.clean)
    }

    /// The objects of a domain with ids above `after`, in ascending order, at most `limit`; attributes as of the last
    /// applied batch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Device`] as for any read of metadata.
    pub fn objects(&self, domain: DomainId, after: ObjectId, limit: usize) -> Result<Vec<(ObjectKey, Attributes)>> {
        let trees = self.trees_now();
        let mut found = Vec::new();
        let mut from = after.0.saturating_add(1);
        while found.len() < limit
            && let Some(id) = trees.find_map_bit_now(&self.base, map_of(domain), from, true)?
        {
            let key = ObjectKey { domain, object: ObjectId(id) };
            found.push((key, trees.find_now(&self.base, key)?.ok_or(Error::NoObject(key))?.attributes));
            from = id + 1;
        }
        Ok(found)
    }

    /// Whether a page has been written since the recovery point `epoch`, or is there no more; as of the last applied batch. It goes by the birth
    /// of its pointer, which, unlike the times of a file, nobody can set.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Device`] as for any read of metadata.
    pub fn is_changed_since(&self, key: ObjectKey, index: PageIndex, epoch: Epoch) -> Result<bool> {
        self.surely(|| {
            let trees = self.trees();
            let Some(record) = trees.find_now(&self.base, key)? else { return Ok(true) };
            let pointers = trees.pages_now(&self.base, key, &record, index, 1)?;
            Ok(pointers.iter().all(|pointer| pointer.is_hole() || pointer.birth_log > epoch))
        })
    }

    fn is_replaceable(&self, key: ObjectKey, first: PageIndex, count: usize) -> Result<bool> {
        let trees = self.trees();
        let Some(record) = trees.find(&self.base, key)? else { return Ok(false) };
        for pointer in trees.pages(&self.base, key, &record, first, count)? {
            let is_shared =
                trees.kept.has(key.domain, pointer.birth_log) || trees.references(&self.base, pointer.address[0])? > 0;
            if pointer.address[0] == 0 || is_shared {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// For the lab: the most blocks that a recovery point made since the store was opened took beyond what was reserved for
    /// it, less those of the bitmap, the reference table and the object table of domain 0, for which the last 1/256 of the
    /// store (32 to 4096 blocks) is kept. The replay of the intent log reserves nothing and is not counted.
    pub fn blocks_beyond_reservation(&self) -> u64 {
        self.base.alloc.lock().beyond_max()
    }
}

/// The blocks of the intent log area.
pub(crate) fn log_area(label: &Label) -> Range<u64> {
    label.log_start..label.log_start + label.log_blocks
}

/// An allocator for a store of `label` on `disk`, whose bitmap is for `blocks` blocks.
pub(crate) fn new_alloc(disk: &Disk, label: &Label, blocks: u64, order: CommitOrder, clock: Arc<dyn Clock>) -> Alloc {
    let mut alloc = Alloc::new(blocks, log_area(label), order == CommitOrder::ReuseFreedAtOnce, clock);
    if !disk.metadata.rolls() {
        alloc.believe();
    }
    alloc
}

/// A node cache and an allocator for a store of `label` on `disk`, whose bitmap is for `blocks` blocks.
pub(crate) fn base(mut disk: Disk, label: &Label, blocks: u64, options: &OpenOptions, clock: Arc<dyn Clock>) -> Base {
    disk.metadata = options.metadata;
    let alloc = new_alloc(&disk, label, blocks, options.commit_order, clock.clone());
    Base {
        disk,
        cache: NodeCache::new(options.node_cache_bytes),
        clock,
        alloc: Mutex::new(alloc),
        commit_order: options.commit_order,
        discard: options.discard,
    }
}

impl ObjectStore for Module {
    fn protection(&self) -> Protection {
        self.protection
    }

    fn status(&self) -> StoreStatus {
        let disk = self.disk();
        // One lock after the other: in one expression they would be held together, in the wrong order.
        let objects = self.trees.read().objects.get();
        let space = self.base.alloc.lock().space_told();
        let (log_pages_lost, log_batches_torn) = disk.counters.losses_of_log();
        StoreStatus {
            epoch: self.epoch(),
            read_only: disk.read_only().map(str::to_string),
            space,
            objects,
            repaired: disk.counters.blocks_repaired(),
            unrepaired: disk.counters.blocks_unrepaired(),
            remains: disk.counters.blocks_with_remains(),
            log_pages_lost,
            log_batches_torn,
            counters: disk.counters.totals(),
            devices: vec![disk.name().to_string()],
        }
    }

    fn attributes(&self, key: ObjectKey) -> Result<Attributes> {
        let mut attributes = self.surely(|| {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            Ok(state.find_now(&self.base, live)?.ok_or(Error::NoObject(key))?.attributes)
        })?;
        // What it refers to is meant in the same snapshot.
        let snapshot = key.object.snapshot();
        attributes.parent = attributes.parent.in_snapshot(snapshot);
        attributes.xattr = attributes.xattr.in_snapshot(snapshot);
        for name in &mut attributes.other_names {
            name.directory = name.directory.in_snapshot(snapshot);
        }
        Ok(attributes)
    }

    fn attributes_of(&self, keys: &[ObjectKey]) -> Vec<Result<Attributes>> {
        let of_all = || -> Result<Vec<Option<Attributes>>> {
            let trees = self.trees();
            trees.verify_records(&self.base, keys.iter().copied())?;
            let is_live = |key: &ObjectKey| key.object.snapshot() == SnapshotId::LIVE;
            let found = |key: &ObjectKey| is_live(key).then(|| trees.find(&self.base, *key).ok()?).flatten();
            Ok(keys.iter().map(|key| Some(found(key)?.attributes)).collect())
        };
        let all = of_all().unwrap_or_else(|_| vec![None; keys.len()]);
        // What is not simply there is looked for by itself, with all that may be behind that.
        let of = |(key, found): (&ObjectKey, Option<Attributes>)| found.map_or_else(|| self.attributes(*key), Ok);
        keys.iter().zip(all).map(of).collect()
    }

    fn new_objects(&self, domain: DomainId, count: usize) -> Result<Vec<ObjectId>> {
        self.disk().check_writable()?;
        let mut ids = self.ids.lock();
        let next = ids.entry(domain).or_insert_with(|| Doubled::new(ObjectId::ROOT.0 + 1));
        if let Some(scribble) = next.heal("next object that may be free") {
            self.disk().note_scribble(scribble, None, "put right from its copy");
        }
        if !self.trees().has_domain(domain) {
            return Err(Error::Protocol(format!("domain {} does not exist", domain.0)));
        }
        let mut found = Vec::with_capacity(count);
        while found.len() < count {
            let Some(id) = self.surely(|| self.trees().find_free_id(&self.base, domain, next.get()))? else {
                return Err(Error::Limit { what: "object ids of a domain", limit: OBJECT_END, got: next.get() });
            };
            found.push(ObjectId(id));
            next.set(id + 1);
        }
        Ok(found)
    }

    fn orphans(&self, domain: DomainId) -> Result<Vec<ObjectId>> {
        self.surely(|| {
            let trees = self.trees_now();
            let mut found = Vec::new();
            let mut from = 0;
            while let Some(id) = trees.find_map_bit_now(&self.base, orphans_of(domain), from, true)? {
                found.push(ObjectId(id));
                from = id + 1;
            }
            Ok(found)
        })
    }

    fn read(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.surely(|| self.read_pages(key, first, frames, VerifiedBy::Store))
    }

    fn read_forwarded(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.surely(|| self.read_pages(key, first, frames, VerifiedBy::Reader))
    }

    fn seek(&self, key: ObjectKey, from: PageIndex, what: Seek) -> Result<Option<PageIndex>> {
        self.surely(|| {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            let record = state.find_now(&self.base, live)?.ok_or(Error::NoObject(key))?;
            state.seek(&self.base, live, &record, from, what)
        })
    }

    fn lost_pages(&self, key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>> {
        self.surely(|| self.find_lost(key, pages.clone()))
    }

    fn reserve(&self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()> {
        self.disk().check_writable()?;
        self.base.alloc.lock().reserve(epoch, blocks, purpose)
    }

    fn levels(&self, key: ObjectKey) -> Result<u8> {
        self.surely(|| {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            Ok(state.get(&self.base, live)?.levels)
        })
    }

    fn table_levels(&self, domain: DomainId) -> Result<[u8; 2]> {
        let trees = self.trees();
        let levels = |id: u64| trees.system.get(&id).map_or(0, |record| record.levels);
        Ok([levels(table_of(domain)), levels(map_of(domain)).max(levels(orphans_of(domain)))])
    }

    fn check_way(&self, domain: DomainId, op: &Op) -> Result<()> {
        self.surely(|| self.has_way(domain, op))
    }

    fn replaceable(&self, key: ObjectKey, first: PageIndex, count: usize) -> Result<bool> {
        self.surely(|| self.is_replaceable(key, first, count))
    }

    fn place(&self, key: ObjectKey, epoch: Epoch, pages: &[(PageIndex, PageRef)]) -> Result<Vec<Placement>> {
        self.or_given_up(|| self.place_pages(key, epoch, pages))
    }

    fn unplace(&self, _epoch: Epoch, placements: &[Placement]) -> Result<()> {
        let mut alloc = self.base.alloc.lock();
        for placement in placements {
            for address in [placement.address, placement.address_2] {
                if address != 0 {
                    alloc.unplace(address);
                }
            }
        }
        Ok(())
    }

    fn apply(&self, batch: &Batch) -> Result<Applied> {
        self.apply_batch(batch)
    }

    fn snapshot_create(&self, domain: DomainId, epoch: Epoch, name: &str, created: Timestamp) -> Result<SnapshotId> {
        self.or_given_up(|| guard::open(|| self.create_snapshot(domain, epoch, name, created)))
    }

    fn snapshot_delete(&self, domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool> {
        self.or_given_up(|| guard::open(|| self.delete_snapshot(domain, epoch, id)))
    }

    fn snapshot_deletions(&self, domain: DomainId) -> Vec<SnapshotDeletion> {
        self.list_deletions(domain)
    }

    fn snapshot_count_part(&self, domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool> {
        self.surely(|| self.count_snapshot(domain, id, count))
    }

    fn snapshots(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.surely(|| self.list_snapshots(domain, true))
    }

    fn snapshots_uncounted(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.surely(|| self.list_snapshots(domain, false))
    }

    fn changed_objects(
        &self,
        domain: DomainId,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        self.surely(|| self.diff_objects(domain, states, after, limit))
    }

    fn changed_pages(
        &self,
        key: ObjectKey,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        self.surely(|| self.diff_pages(key, states, first, limit))
    }

    fn prepare(&self, epoch: Epoch) -> Result<()> {
        self.fall_into_ambush(Moment::Applied);
        self.prepare_epoch(epoch)
    }

    fn give_up(&self, found: Found, why: Corruption) -> Error {
        match found {
            Found::Scribble => self.disk().counters.scribbled(),
            // What was found before is why, and what was read since may be of the last recovery point.
            Found::LogicBug if self.disk().given_up().is_some() => {}
            Found::LogicBug => {
                self.disk().counters.audit_failed();
                self.disk().suspect(why.place.object.into_iter().collect());
            }
        }
        self.disk().give_up(why)
    }

    fn suspects(&self) -> Vec<ObjectKey> {
        self.disk().suspects()
    }

    fn begin_anew(&self) -> Result<()> {
        self.begin_epoch_anew()
    }

    fn publish(&self, epoch: Epoch) -> Result<()> {
        self.fall_into_ambush(Moment::Prepared);
        self.publish_epoch(epoch)
    }

    fn log_append(&self, batch: &LogBatch) -> Result<bool> {
        self.or_given_up(|| self.append_to_log(batch))
    }

    fn log_seal(&self) -> Result<bool> {
        self.seal_log()
    }

    fn log_next(&self, frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>) -> Result<Option<RecoveredBatch>> {
        self.next_from_log(frames)
    }

    fn logged_pages(&self, domain: DomainId, pages: &[(ObjectId, PageIndex)]) -> Result<Vec<Option<LoggedPage>>> {
        self.find_in_log(domain, pages)
    }

    fn scrub_step(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep> {
        self.scrub_some(cursor, blocks)
    }

    fn mend(&self, key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending> {
        self.surely(|| self.mend_page(key, index, page))
    }

    fn trim(&self, within: Range<u64>) -> Result<u64> {
        self.trim_free(within)
    }

    fn grow(&self, blocks: u64) -> Result<u64> {
        self.grow_to(blocks)
    }

    fn stop(&self, reason: &str) {
        self.disk().latch(reason.to_string());
    }

    fn close(&self) -> Result<()> {
        self.publish_clean()
    }
}
