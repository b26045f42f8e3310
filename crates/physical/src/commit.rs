//! Recovery points: in which order an epoch reaches the device.
//!
//! 1. `prepare`: everything dirty gets an address; the bitmap is brought up to date, which dirties more of the bitmap, until
//!    nothing new gets dirty; checksums go into parents from the leaves up; all is written; the device is flushed.
//! 2. `publish`: superblocks are written to the ring of each label; the device is flushed. Only now is the epoch the
//!    recovery point, and only now can blocks that it freed be handed out again.
//!
//! Nothing that the last recovery point refers to is overwritten before step 2 is over.

use crate::alloc::Zone;
use crate::audit::Audit;
use crate::base::Base;
use crate::dirty::Dirty;
use crate::disk::Disk;
use crate::format::blockptr::PointerKind;
use crate::format::superblock::{ring_block, slot};
use crate::format::{BlockPointer, LABELS, RECORD_BYTES, RECORDS, RING_SLOTS, Record, Superblock};
use crate::guarded::{Counted, Destination, Doubled, Guarded};
use crate::meta_block::{MetaBlock, NodeKey, Scribble};
use crate::module::Module;
use crate::objects::{BITMAP, REFERENCES, system_key, table_of};
use crate::requests::Requests;
use crate::scribble::Moment;
use crate::sealed::{Sealed, SealedSuperblock};
use crate::slots::{self, Limits};
use crate::snapshot::domain_of_list;
use crate::tree::{Change, Trees, span};
use crate::written_pages::WrittenPages;
use holdfast_guard as guard;
use holdfast_integrity::{Checksum, StoredSums, prefetch};
use holdfast_object::{DomainId, Epoch, Error, ObjectId, ObjectKey, Result, Timestamp};
use parking_lot::RwLockWriteGuard;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// In which order an epoch is made durable, and what becomes of blocks that snapshots have. All but the default are bugs,
/// planted so that the lab's crash explorer can show that it finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitOrder {
    /// Data and metadata, flush, superblocks, flush; then freed blocks are reused.
    #[default]
    Correct,
    /// Lab only: no flush between the blocks and the superblock that names them.
    NoFlushBeforeSuperblock,
    /// Lab only: the superblock is written and flushed before the metadata that it names.
    SuperblockFirst,
    /// Lab only: freed blocks can be handed out in the epoch that freed them.
    ReuseFreedAtOnce,
    /// Lab only: what goes away under a snapshot joins no dead list.
    BuryNothing,
    /// Lab only: deleting a snapshot frees also what the one before it has.
    FreeAllOfDeleted,
    /// Lab only: a deleted snapshot leaves the list with the first slice of its dead list.
    UnlistFirst,
    /// Lab only: a new snapshot is in memory only.
    ListNothing,
    /// Lab only: a batch of the intent log gets its seal before it is flushed.
    SealBeforeFlush,
}

/// State of the one caller that applies and commits.
#[derive(Default)]
pub(crate) struct Committing {
    /// Newest epoch that a batch was applied for since the last recovery point, or 0.
    pub(crate) applied: Doubled,
    /// Times in a row that an epoch was begun anew.
    pub(crate) restarts: Doubled,
    /// Trees are those of the last recovery point, while who builds the epoch does not know yet that it is given up.
    pub(crate) is_taken_back: bool,
    /// Pages of metadata written since the last recovery point.
    pub(crate) pages: WrittenPages,
    /// What `prepare` made and `publish` will publish.
    pub(crate) prepared: Option<SealedSuperblock>,
}

impl Committing {
    /// Puts right what somebody has written to who must not.
    pub(crate) fn heal(&mut self, disk: &Disk) {
        let applied = self.applied.heal("newest epoch applied");
        for scribble in applied.into_iter().chain(self.restarts.heal("times that an epoch was begun anew")) {
            disk.note_scribble(scribble, None, "put right from its copy");
        }
    }

    /// `Err` while an epoch is between `prepare` and `publish`.
    pub(crate) fn check_open(&self) -> Result<()> {
        match &self.prepared {
            None => Ok(()),
            Some(superblock) => {
                Err(Error::Protocol(format!("epoch {} is prepared and not yet published", superblock.epoch)))
            }
        }
    }
}

/// What somebody has written to who must not.
enum Bad {
    Block(NodeKey),
    Record(ObjectKey),
}

/// A copy of a block that is to be written.
struct Outgoing {
    /// One of its [`Dirty::address`].
    address: Guarded,
    key: NodeKey,
    block: Arc<MetaBlock>,
}

/// Blocks to write, by address.
type Writes = Vec<Outgoing>;

/// Where each of them goes, right before it does: what goes elsewhere is written over what is somebody else's.
///
/// # Errors
/// [`Error::GivenUp`]: somebody has written to one of the addresses who must not.
fn addressed<'w>(base: &Base, writes: &'w Writes) -> Result<Requests<'w>> {
    let mut requests = Requests::default();
    for Outgoing { address, key, block } in writes {
        let address = address.get("address to which a block is written");
        let address = address.map_err(|scribble| base.give_up_epoch(scribble, *key))?;
        requests.add(&base.disk, address, block.bytes())?;
    }
    Ok(requests)
}

impl Module {
    /// See [`holdfast_object::ObjectStore::prepare`].
    pub(crate) fn prepare_epoch(&self, epoch: Epoch) -> Result<()> {
        let mut committing = self.committing.lock();
        // Who takes an epoch back has the lock.
        self.disk().check_sound()?;
        committing.heal(self.disk());
        committing.check_open()?;
        let (last, applied) = (self.superblock()?.epoch, committing.applied.get());
        if epoch <= last || epoch < applied || (epoch - last).is_multiple_of(RING_SLOTS) {
            return Err(Error::Protocol(format!(
                "epoch {epoch} after {last}, with batches of epoch {applied} applied"
            )));
        }
        self.check_above_log(epoch)?;
        self.disk().raise_newest(epoch);
        let scribbles = self.disk().counters.scribbles();
        let (writes, superblock) = {
            let mut trees = self.trees.write();
            trees.check_identities(&self.base)?;
            trees.building = epoch;
            let staged = guard::open(|| trees.stage(&self.base, epoch));
            if self.disk().ambush.is_laid() {
                RwLockWriteGuard::unlocked(&mut trees, || self.fall_into_ambush(Moment::Staged));
            }
            let sealed = staged.and_then(|()| guard::open(|| trees.seal(&self.base, epoch)));
            // What is told of damage on the device may have been found through what has gone bad in memory.
            let (writes, free) = sealed.or_else(|error| match error {
                Error::GivenUp(_) => Err(error),
                error => trees.verify_all(&self.base).and(Err(trees.in_doubt(&self.base, scribbles, error))),
            })?;
            trees.tell_kept(&self.base);
            let time = self.clock.now();
            let made = || self.superblock_of(&trees, epoch, time, free);
            let superblock = SealedSuperblock::new(&made()?);
            // Made twice: what went bad before it was sealed would have a good checksum.
            let next = Sealed::open_as(self.disk(), &superblock, &made()?)?;
            trees.check_identities(&self.base)?;
            trees.audit_epoch(&self.base, &self.label()?, &self.superblock()?, &next)?;
            trees.check_slots(&self.base, epoch)?;
            self.disk().counters.changed(trees.dirty.len());
            (writes, superblock)
        };
        // From here on only the device and the memory can fail, and that latches the module.
        if self.base.commit_order == CommitOrder::SuperblockFirst {
            self.write_superblock(&superblock)?;
        }
        self.disk().submit(&addressed(&self.base, &writes)?)?;
        if self.base.commit_order != CommitOrder::NoFlushBeforeSuperblock {
            self.disk().flush()?;
        }
        drop(writes);
        // Beside readers: nobody changes trees while `committing` is held.
        self.trees.read().verify_written(&self.base)?;
        committing.pages.verify(&self.base, &self.arena)?;
        let mut trees = self.trees.write();
        // The next epoch starts from them.
        trees.verify_sums(&self.base)?;
        guard::open(|| trees.settle(&self.base));
        drop(trees);
        committing.prepared = Some(superblock);
        Ok(())
    }

    /// The superblock of the epoch being built, whose trees are complete: of what is verified now, and not of what was when the epoch was begun.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: something of that has gone bad in memory.
    fn superblock_of(&self, trees: &Trees, epoch: Epoch, time: Timestamp, free: u64) -> Result<Superblock> {
        let (last, label) = (self.superblock()?, self.label()?);
        let counted =
            |number: &Counted, what| number.verified(what).map_err(|scribble| self.base.give_up_sums(scribble));
        let root = &trees.system[&0];
        root.bytes().map_err(|scribble| trees.give_up_record(&self.base, scribble, system_key(0), root))?;
        Ok(Superblock {
            epoch,
            previous: last.epoch,
            time,
            clean: false,
            features: label.features,
            next_generation: counted(&trees.next_generation, "generation of the next object")?,
            total: counted(self.base.alloc.lock().counted_total(), "number of all blocks")?,
            free,
            objects: counted(&trees.objects, "number of objects")?,
            metadata: counted(&trees.metadata, "number of blocks of metadata")?,
            metadata_kept: trees.metadata_kept().unwrap_or(0),
            root: Record::clone(root),
            ..last
        })
    }

    /// See [`holdfast_object::ObjectStore::publish`].
    pub(crate) fn publish_epoch(&self, epoch: Epoch) -> Result<()> {
        let mut committing = self.committing.lock();
        self.disk().check_sound()?;
        let not_prepared = || Error::Protocol(format!("epoch {epoch} is not prepared"));
        let prepared = committing.prepared.as_ref().ok_or_else(not_prepared)?;
        // Which epoch it is of is believed of the bytes alone.
        let is_meant = Sealed::open(self.disk(), prepared)?.epoch == epoch;
        let prepared = committing.prepared.take_if(|_| is_meant).ok_or_else(not_prepared)?;
        let superblock = match self.base.commit_order {
            CommitOrder::SuperblockFirst => Sealed::open(self.disk(), &prepared)?,
            _ => self.write_superblock(&prepared)?,
        };
        committing.applied.set(0);
        committing.restarts.set(0);
        committing.pages.clear();
        self.published(prepared, &superblock);
        Ok(())
    }

    /// Writes one superblock to all labels, durably. Gives it as it is afterwards.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: it has gone bad in memory before it was written; nothing is. If it has while it was, which of the two the device
    /// has is not known: [`Error::Corrupt`], and the module is latched.
    fn write_superblock(&self, sealed: &SealedSuperblock) -> Result<Superblock> {
        let disk = self.disk();
        let superblock = Sealed::open(disk, sealed)?;
        let copies: Vec<[u8; 4096]> = (0..LABELS).map(|label| superblock.encode(label)).collect();
        let address = |label: usize| ring_block(label, slot(superblock.epoch), disk.blocks());
        let requests = Requests::new(disk, copies.iter().enumerate().map(|(label, bytes)| (address(label), bytes)))?;
        Sealed::verify_copies(disk, sealed, &copies).map_err(|corruption| disk.give_up(*corruption))?;
        disk.submit(&requests.last())?;
        disk.flush()?;
        Sealed::verify_copies(disk, sealed, &copies).map_err(|corruption| {
            tracing::error!(%corruption, "the store is read-only from now on");
            disk.latch(format!("{corruption}, while it was written"));
            Error::Corrupt(corruption)
        })
    }

    /// The superblock is durable: what its epoch freed can be used, and its log is forgotten.
    fn published(&self, sealed: SealedSuperblock, superblock: &Superblock) {
        let epoch = superblock.epoch;
        self.sealed.publish(sealed, superblock);
        self.disk().counters.published();
        // Wait for reads that may have found a block before it was freed.
        drop(self.gate.write());
        let freed = {
            let (levels, bitmap) = {
                let trees = self.trees.read();
                let record = &trees.system[&BITMAP];
                (record.levels, record.root)
            };
            let mut alloc = self.base.alloc.lock();
            alloc.stored_is(levels, bitmap);
            let freed = if self.base.discard { alloc.pending_runs() } else { Vec::new() };
            alloc.publish(epoch);
            // The recovery point stands. If the bits have gone bad, the next one begins with those that it has.
            self.base.check_alloc(&alloc).ok();
            freed
        };
        self.forget_log(epoch);
        self.discard_freed(&freed);
    }

    /// See [`holdfast_object::ObjectStore::close`]. A clean store gets a superblock of its own, so that none is ever
    /// overwritten while it is the newest.
    pub(crate) fn publish_clean(&self) -> Result<()> {
        self.disk().check_writable()?;
        let committing = self.committing.lock();
        committing.check_open()?;
        let applied = committing.applied.get();
        if applied != 0 {
            return Err(Error::Protocol(format!("close with batches of epoch {applied} applied and not published")));
        }
        if self.trees.read().system[&BITMAP].root.is_hole() {
            // Rebuilt when the store was opened, and not written: the next opening rebuilds it again.
            return Ok(());
        }
        {
            let mut log = self.log.lock();
            if self.log_is_used(&mut log)? {
                return Err(Error::Protocol("close with synced changes that are in no recovery point".to_string()));
            }
            // A log that was not replayed stays for the next opening.
            if self.superblock()?.clean || log.is_unread() {
                return Ok(());
            }
        }
        let time = self.clock.now();
        let made = || -> Result<Superblock> {
            let last = self.superblock()?;
            Ok(Superblock { epoch: last.epoch + 1, previous: last.epoch, time, clean: true, ..last })
        };
        let sealed = SealedSuperblock::new(&made()?);
        Sealed::open_as(self.disk(), &sealed, &made()?)?;
        let superblock = self.write_superblock(&sealed)?;
        self.published(sealed, &superblock);
        // What went bad while the store was in use can still be put right from memory, even where every copy did. It is closed in order without.
        if let Err(error) = crate::mend::mend(self.disk(), &self.sealed) {
            tracing::error!(%error, "a copy of label or superblock stays as it is");
        }
        Ok(())
    }
}

/// The order in which checksums go up: domains' objects, domain 0's, its object table last; each from the leaves up.
fn rank(key: &NodeKey) -> (u8, u8, NodeKey) {
    let group = match (key.domain, key.object) {
        (0, 0) => 2,
        (0, _) => 1,
        _ => 0,
    };
    (group, key.level, *key)
}

/// Puts the record of an object into its object table, which is dirty. Gives the page bound of the one that was there.
///
/// # Errors
/// [`Error::GivenUp`]: the table's block is not there, or is another one.
fn put_record(
    base: &Base,
    (dirty, audit): (&mut FxHashMap<NodeKey, Dirty>, &mut Audit),
    table: NodeKey,
    object: u64,
    record: &[u8; RECORD_BYTES],
) -> Result<u64> {
    let slot = (object % RECORDS) as usize;
    let dirty = dirty.get_mut(&table).ok_or_else(Scribble::that_misses_a_block);
    let edit = dirty.and_then(|dirty| dirty.block.edit_if(table, audit));
    let mut edit = edit.map_err(|scribble| base.give_up_epoch(scribble, table))?;
    let before = edit.page_bound(slot);
    edit.put_record(slot, record);
    Ok(before)
}

impl Trees {
    /// Makes everything dirty that the epoch will write, and gives it addresses. May fail, and be called again then.
    fn stage(&mut self, base: &Base, epoch: Epoch) -> Result<()> {
        // Nothing holds of memory that has gone bad, which shows by and by.
        if cfg!(debug_assertions) && self.is_sound() {
            self.check();
        }
        base.alloc.lock().settle(epoch);
        self.stage_records(base)?;
        self.stage_dead(base)?;
        let system: BTreeSet<u64> = self.system.keys().filter(|&&id| id != 0).map(|id| id / RECORDS).collect();
        self.with_system(base, 0, |trees, record| {
            system.iter().try_for_each(|&page| trees.make_dirty(base, system_key(0), record, 0, page))
        })?;
        let mut staged = BTreeSet::new();
        loop {
            self.assign(base, epoch)?;
            let touched: Vec<u64> = base.alloc.lock().touched().difference(&staged).copied().collect();
            if touched.is_empty() {
                return Ok(());
            }
            self.with_system(base, BITMAP, |trees, record| {
                touched.iter().try_for_each(|&chunk| trees.make_dirty(base, system_key(BITMAP), record, 0, chunk))
            })?;
            staged.extend(touched);
        }
    }

    /// The object-table blocks of changed objects: dirty, without the deleted records; empty ones removed.
    fn stage_records(&mut self, base: &Base) -> Result<()> {
        let mut keys: Vec<ObjectKey> = self.changed.keys().copied().collect();
        keys.sort_unstable();
        let page_of = |key: &ObjectKey| key.object.0 / RECORDS;
        for group in keys.chunk_by(|a, b| a.domain == b.domain && page_of(a) == page_of(b)) {
            let (table, page) = (table_of(group[0].domain), page_of(&group[0]));
            let key = system_key(table);
            let is_deleted = |trees: &Trees, key: &ObjectKey| matches!(trees.changed[key], Change::Deleted);
            let deleted: Vec<&ObjectKey> = group.iter().filter(|key| is_deleted(self, key)).collect();
            let all_deleted = deleted.len() == group.len();
            self.with_system(base, table, |trees, record| {
                if all_deleted && trees.node(base, key, record, 0, page)?.is_none() {
                    return Ok(());
                }
                trees.make_dirty(base, key, record, 0, page)?;
                for object in deleted {
                    let slot = (object.object.0 % RECORDS) as usize;
                    trees.dirty_mut(NodeKey::new(key, 0, page)).put_record(slot, &[0; RECORD_BYTES]);
                }
                if all_deleted && trees.dirty_mut(NodeKey::new(key, 0, page)).is_zero() {
                    trees.remove_pages(base, key, record, page, page + 1)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Gives each dirty block that has none two addresses, neighbours in a tree next to each other.
    fn assign(&mut self, base: &Base, epoch: Epoch) -> Result<()> {
        let mut fresh = std::mem::take(&mut self.fresh);
        let mut bad = Ok(());
        fresh.retain(|key| match self.dirty.get(key).map(|dirty| dirty.address.get()) {
            Some(Err(scribble)) => {
                bad = Err(base.give_up_changed(scribble, *key, epoch));
                false
            }
            Some(Ok(address)) => address[0] == 0,
            None => false,
        });
        bad?;
        fresh.sort_unstable_by_key(rank);
        fresh.dedup();
        let count = fresh.len() as u64;
        let mut alloc = base.alloc.lock();
        let outcome = alloc.allocate_many(epoch, Zone::Meta(0), count).and_then(|first| {
            match alloc.allocate_many(epoch, Zone::Meta(1), count) {
                Ok(second) => Ok((first, second)),
                Err(error) => {
                    alloc.cancel(&first);
                    Err(error)
                }
            }
        });
        match outcome {
            Ok((first, second)) => {
                let is_own = |key: &&NodeKey| key.domain == 0 && matches!(key.object, 0 | BITMAP | REFERENCES);
                alloc.note_own(epoch, 2 * fresh.iter().filter(is_own).count() as u64);
                drop(alloc);
                for (key, (first, second)) in fresh.iter().zip(first.into_iter().zip(second)) {
                    if let Some(dirty) = self.dirty.get_mut(key) {
                        dirty.address = Destination::new([first, second]);
                        self.metadata_made(key.object_key());
                    }
                }
                Ok(())
            }
            Err(error) => {
                self.fresh = fresh;
                base.handed_out(&alloc, Err(error))
            }
        }
    }

    /// Brings bitmap, pointers and records up to date; gives what is to be written, in the order of addresses, and the
    /// number of free blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if somebody has written to the allocator's bits who must not; the epoch is given up then.
    fn seal(&mut self, base: &Base, epoch: Epoch) -> Result<(Writes, u64)> {
        let free = {
            let mut alloc = base.alloc.lock();
            let key = |chunk| NodeKey::new(system_key(BITMAP), 0, chunk);
            base.check_alloc(&alloc)?;
            alloc.verify_counts().map_err(|scribble| base.give_up_changed(scribble, key(0), epoch))?;
            for key in (0..alloc.chunks()).map(key).filter(|key| self.dirty.contains_key(key)).collect::<Vec<_>>() {
                let bad = |scribble| base.give_up_chunk(&alloc, scribble, key.index);
                let words = alloc.page(key.index).map_err(bad)?;
                self.dirty_mut(key).put_words(&words);
            }
            alloc.clear_touched();
            alloc.free_after_publish()
        };
        let sealed = self.system.iter_mut().try_for_each(|(id, record)| {
            let sealed = record.replace(Record { changed: epoch, ..Record::clone(record) }, epoch, base.now_s());
            sealed.map_err(|scribble| (*id, scribble))
        });
        sealed.map_err(|(id, scribble)| self.give_up_changed(base, scribble, system_key(id)))?;
        let mut keys: Vec<NodeKey> = self.dirty.keys().copied().collect();
        keys.sort_unstable_by_key(rank);
        let groups = [0u8, 1, 2].map(|group| {
            let start = keys.partition_point(|key| rank(key).0 < group);
            &keys[start..keys.partition_point(|key| rank(key).0 <= group)]
        });
        let mut writes = Vec::with_capacity(2 * keys.len());
        self.seal_group(base, groups[0], epoch, &mut writes)?;
        self.put_records(base)?;
        self.seal_group(base, groups[1], epoch, &mut writes)?;
        for (id, record) in self.system.iter().filter(|(id, _)| **id != 0) {
            let bad = |scribble| self.give_up_record(base, scribble, system_key(*id), record);
            let bytes = record.bytes().map_err(bad)?;
            let table = NodeKey::new(system_key(0), 0, id / RECORDS);
            put_record(base, (&mut self.dirty, &mut self.audit), table, *id, &bytes)?;
        }
        self.seal_group(base, groups[2], epoch, &mut writes)?;
        self.audit.look_at_gone();
        writes.sort_unstable_by_key(|copy| copy.address.unverified());
        Ok((writes, free))
    }

    /// Puts the checksums and addresses of blocks into their parents, lower levels first.
    fn seal_group(&mut self, base: &Base, keys: &[NodeKey], epoch: Epoch, writes: &mut Writes) -> Result<()> {
        let now_s = base.now_s();
        let limits = Limits { newest: epoch, blocks: base.disk.blocks() };
        for &key in keys {
            let missing = |missing: Scribble| base.give_up_epoch(missing, key);
            let dirty = self.dirty.get_mut(&key).ok_or_else(|| missing(Scribble::that_misses_a_block()))?;
            let changed = dirty.changed;
            let address = dirty.address.get().map_err(|scribble| base.give_up_changed(scribble, key, changed))?;
            if address[0] == 0 {
                return Err(missing(Scribble::that_misses("number of places that it was given")));
            }
            // Nothing is read where its bytes only seem to be.
            dirty.block.is_block(key).map_err(missing)?;
            let pointer = BlockPointer {
                address,
                birth_phys: epoch,
                birth_log: epoch,
                kind: if key.level == 0 { PointerKind::Data } else { PointerKind::Tree },
                level: key.level,
                seeded: true,
                sums: StoredSums::of(Checksum::crc64(dirty.block.checksum(key))),
            };
            let watched = dirty.block.release();
            if base.disk.metadata.rolls() && self.misfit.is_none() {
                let parts = dirty.block.changed_parts();
                let is_changed = |id: u64| match key.object {
                    0 => self.system.contains_key(&id),
                    table => {
                        let domain = DomainId((table / 16) as u16);
                        self.changed.contains_key(&ObjectKey { domain, object: ObjectId(id) })
                    }
                };
                let misfit = slots::check(dirty.block.bytes(), key, parts, limits);
                let misfit = misfit.and_then(|()| slots::check_owners(key, parts, is_changed)).err();
                self.misfit = misfit.map(|misfit| (key, address[0], misfit));
            }
            self.audit.complete(key, &dirty.block, watched);
            let copy = |address| Outgoing { address: Guarded::new(address), key, block: dirty.block.share() };
            writes.extend(pointer.addresses().map(copy));
            let object = key.object_key();
            let record = match object.domain {
                DomainId::SYSTEM => self.system.get_mut(&key.object),
                _ => match self.changed.get_mut(&object) {
                    Some(Change::Present(record)) => Some(record),
                    _ => None,
                },
            };
            let record = record.ok_or_else(|| missing(Scribble::that_misses("number of records of its object")))?;
            if let Err(scribble) = record.look(now_s) {
                return Err(self.give_up_changed(base, scribble, object));
            }
            if base.disk.metadata.audits() {
                match (object.domain, key.level) {
                    (DomainId::SYSTEM, 0) => {
                        if let Some(domain) = domain_of_list(key.object) {
                            let in_memory = self.kept.in_memory_at(domain, key.index);
                            self.audit.entries(domain, key.index, &dirty.block, in_memory);
                        }
                    }
                    (DomainId::SYSTEM, _) | (_, 0) => {}
                    _ => self.audit.bounded(key, &dirty.block, record.page_bound),
                }
            }
            if key.level == record.levels {
                let sealed = record.replace(Record { root: pointer, ..Record::clone(record) }, epoch, now_s);
                sealed.map_err(|scribble| self.give_up_changed(base, scribble, object))?;
            } else {
                let (parent, slot) = key.parent();
                self.dirty_mut(parent).put_pointer(slot, &pointer);
            }
        }
        Ok(())
    }

    /// Puts the records of changed objects into their object tables.
    fn put_records(&mut self, base: &Base) -> Result<()> {
        let mut sunk = Vec::new();
        for (key, change) in &self.changed {
            let Change::Present(record) = change else { continue };
            let bytes = record.bytes().map_err(|scribble| self.give_up_record(base, scribble, *key, record))?;
            let table = NodeKey::new(system_key(table_of(key.domain)), 0, key.object.0 / RECORDS);
            let before = put_record(base, (&mut self.dirty, &mut self.audit), table, key.object.0, &bytes)?;
            if base.disk.metadata.audits() {
                // Of most objects there is no more to it, and nothing of them is kept.
                if record.levels == 0 {
                    let is_beyond = record.page_bound == 0 && !record.root.is_hole();
                    self.audit.beyond(u64::from(is_beyond));
                } else if record.page_bound < before {
                    sunk.push((*key, Record::clone(record)));
                }
            }
        }
        for (key, record) in &sunk {
            self.audit_bound(base, *key, record);
        }
        Ok(())
    }

    /// What an object with a tree has at or beyond its bound, in blocks that do not change: the others are looked through when they are complete.
    fn audit_bound(&mut self, base: &Base, key: ObjectKey, record: &Record) {
        // Those along the bound: what is beyond it elsewhere is below one that they name.
        for level in (1..=record.levels).rev() {
            let index = record.page_bound / span(level);
            let node = NodeKey::new(key, level, index);
            // What cannot be read is for who reads it.
            let Ok(Some(block)) = self.node(base, key, record, level, index) else { return };
            if !self.dirty.contains_key(&node) {
                self.audit.bounded(node, &block, record.page_bound);
            }
        }
    }

    /// Whether everything that was written is what was legally made of it, before a superblock names it.
    pub(crate) fn verify_written(&self, base: &Base) -> Result<()> {
        if !base.disk.metadata.rolls() {
            return Ok(());
        }
        self.verify_dirty().map_err(|(key, scribble)| self.give_up_dirty(base, scribble, key))
    }

    /// No recovery point is made of what has become of a changed block.
    fn give_up_dirty(&self, base: &Base, scribble: Scribble, key: NodeKey) -> Error {
        match self.dirty.get(&key) {
            Some(dirty) => base.give_up_block(scribble, key, dirty),
            None => base.give_up_epoch(scribble, key),
        }
    }

    /// Whether all changed blocks are what was legally made of them; or one that is not.
    fn verify_dirty(&self) -> std::result::Result<(), (NodeKey, Scribble)> {
        let mut blocks = self.dirty.iter().peekable();
        while let Some((key, dirty)) = blocks.next() {
            // They lie anywhere in memory: where each is waited for, 1.8 µs a block, and most of what rolling checksums cost a small transaction.
            if let Some((_, next)) = blocks.peek() {
                prefetch(next.block.bytes());
            }
            dirty.block.verify(*key).map_err(|scribble| (*key, scribble))?;
        }
        Ok(())
    }

    /// The same of all that the epoch being built consists of.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: what is not, which is counted and told.
    pub(crate) fn verify_all(&self, base: &Base) -> Result<()> {
        self.find_bad().map_err(|(bad, scribble)| match bad {
            Bad::Block(key) => self.give_up_dirty(base, scribble, key),
            Bad::Record(key) => self.give_up_changed(base, scribble, key),
        })
    }

    /// Whether what was counted still is what it was when it was audited.
    fn verify_sums(&self, base: &Base) -> Result<()> {
        if !base.disk.metadata.audits() {
            return Ok(());
        }
        self.audit.verify().map_err(|scribble| base.give_up_sums(scribble))
    }

    /// Whether all of that is what was legally made of it.
    pub(crate) fn is_sound(&self) -> bool {
        self.find_bad().is_ok()
    }

    fn find_bad(&self) -> std::result::Result<(), (Bad, Scribble)> {
        self.verify_dirty().map_err(|(key, scribble)| (Bad::Block(key), scribble))?;
        let system = self.system.iter().map(|(id, record)| (system_key(*id), record));
        let changed = self.changed.iter().filter_map(|(key, change)| match change {
            Change::Present(record) => Some((*key, record)),
            Change::Deleted => None,
        });
        for (key, record) in system.chain(changed) {
            record.bytes().map_err(|scribble| (Bad::Record(key), scribble))?;
        }
        Ok(())
    }

    /// Everything dirty has been written: it is clean from now on.
    fn settle(&mut self, base: &Base) {
        for (key, dirty) in self.dirty.drain() {
            match dirty.address.get() {
                Ok([address, _]) => base.keep(key, address, dirty.changed, dirty.block.into_shared()),
                Err(scribble) => base.disk.note_scribble(scribble, Some(key.object_key()), "the block is read again"),
            }
        }
        self.fresh.clear();
        self.changed.clear();
        self.kept.published(&self.audit, self.metadata.get());
        // Not as what is known of the snapshot says: that may have gone bad since the audit.
        self.audit = Audit::under(self.audit.newest_snapshot());
    }
}

#[cfg(test)]
pub(crate) mod tests;
