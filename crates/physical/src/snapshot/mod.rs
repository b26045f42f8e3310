//! Snapshots of a domain: kept recovery points of its objects.
//!
//! A snapshot is the record of the domain's object table as of a recovery point; making one costs one entry in a list. Who
//! frees a block is one rule. A pointer that goes away in the domain, while the domain's newest snapshot is no older than
//! the pointer's logical birth, leaves its blocks to that snapshot's *dead list*; otherwise they are let go: a shared block
//! loses one reference, another one is free with the epoch. Deleting a snapshot goes through its dead list, a slice with each
//! recovery point: what was born after the snapshot before it is let go, the rest is that one's from now on.
//!
//! | file | job |
//! |---|---|
//! | `mod` | make, list, look into |
//! | `delete` | delete |
//! | `dead_list` | the runs of blocks on the device |
//! | `diff` | what changed between two states |
//! | `heal` | reading again what has gone bad in memory |
//! | `mend` | what becomes of an entry in use that cannot be read, when the check repairs |
//!
//! Invariants:
//! - a block that a snapshot can reach is one of the domain's, or in the dead list of that snapshot or of a later one, be that
//!   one deleted or not;
//! - a run in the dead list of a snapshot was born no later than it;
//! - a pointer moved within a tree, or with the tree block that has it, keeps its logical birth.

mod dead_list;
mod delete;
mod diff;
mod dying;
mod heal;
mod mend;
mod scribble;

use crate::audit::{Audit, Digest, KeptStart, Listed, Twin, listed_digest};
use crate::base::Base;
use crate::commit::{CommitOrder, Committing};
use crate::form_sums::FormSums;
use crate::format::{DeadRun, Fault, Record, SNAPSHOTS, StoredSnapshot, Superblock, SystemKind};
use crate::guarded::Doubled;
use crate::meta_block::{MetadataProtection, NodeKey, Scribble};
use crate::module::Module;
use crate::objects::{REFERENCES, ReferenceCounts, dead_of, snapshots_of, system_key, table_of};
use crate::sealed_record::SealedRecord;
use crate::tree::Trees;
use dead_list::SLOTS;
pub(crate) use dead_list::{runs_in, slot_of};
use delete::Deleted;
pub use delete::DeletionSlice;
pub(crate) use delete::slice_blocks;
pub(crate) use diff::Side;
use dying::Dying;
use heal::BadEntry;
use holdfast_integrity::crc64;
use holdfast_object::{
    DomainId, Epoch, Error, ObjectKey, Result, Seek, SnapshotCount, SnapshotId, SnapshotInfo, Timestamp,
    check_snapshot_name,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// A snapshot in memory.
pub(crate) struct Held {
    /// Its place in the list, and of its dead list among those of the domain.
    slot: Slot,
    pub(crate) stored: StoredSnapshot,
    /// Of the entry in the list.
    sums: EntrySums,
    /// The domain's object table as it was: nothing is ever dirty in it.
    pub(crate) view: Trees,
    /// Blocks of metadata, two copies counted as one, that it has and its domain still has too; at most so many.
    metadata: Doubled,
}

impl Held {
    fn new(slot: u16, domain: DomainId, stored: StoredSnapshot, metadata: u64) -> Held {
        let system = BTreeMap::from([(
            table_of(domain),
            SealedRecord::own(stored.table.clone(), MetadataProtection::default()),
        )]);
        let (sums, view) = (EntrySums::of(&stored), Trees { system, ..Trees::default() });
        Held { slot: Slot::new(slot), sums, stored, view, metadata: Doubled::new(metadata) }
    }

    /// # Errors
    /// Somebody has written to it who must not.
    fn verify(&self) -> std::result::Result<(), Scribble> {
        self.sums.verify(&self.stored)
    }

    /// Puts the numbers right that are in no list.
    fn heal(&mut self) -> Option<Scribble> {
        let metadata = self.metadata.heal("number of a snapshot's blocks of metadata");
        self.slot.heal().or(metadata)
    }
}

/// A place in the list.
struct Slot(Doubled);

impl Slot {
    fn new(slot: u16) -> Slot {
        Slot(Doubled::new(slot.into()))
    }

    fn get(&self) -> u16 {
        self.0.get() as u16
    }

    fn heal(&mut self) -> Option<Scribble> {
        self.0.heal("place of a snapshot")
    }
}

/// What an entry is verified by; `None`: there is no room in any for what was to be sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EntrySums(Option<FormSums>);

impl EntrySums {
    fn of(stored: &StoredSnapshot) -> EntrySums {
        EntrySums((stored.table.root.excess() == 0).then(|| FormSums::of(&stored.encode())))
    }

    /// # Errors
    /// Somebody has written to it who must not.
    fn verify(self, stored: &StoredSnapshot) -> std::result::Result<(), Scribble> {
        let excess = stored.table.root.excess();
        Scribble::unless_equal("bits beyond the checksum of a snapshot", 0, excess)?;
        let names = ["checksum of a snapshot", "second sum of a snapshot"];
        self.0.unwrap_or(FormSums::of(&[])).verify(&stored.encode(), names)
    }

    /// Of an entry of the list, by its bytes.
    fn are_of(self, entry: &[u8; 1024]) -> bool {
        self.0 == Some(FormSums::of(entry))
    }

    fn crc(self) -> u64 {
        self.0.map_or(0, |sums| sums.crc)
    }
}

#[derive(Default)]
struct OfDomain {
    /// Oldest first.
    held: Vec<Held>,
    /// Deleted, with a part of their dead lists left.
    deleted: Vec<Deleted>,
    /// Runs that the epoch being built adds to dead lists, by slot.
    dying: BTreeMap<u16, Dying>,
    /// Blocks named in all dead lists, copies counted, once they have been counted.
    dead_blocks: Mutex<Option<u64>>,
    /// The number given last.
    last_id: Doubled,
    /// Why the list cannot be read; then `held` is empty, and the store takes no changes.
    unreadable: Option<Error>,
    /// Entries in use that cannot be what they say, by slot. With any, the store takes no changes.
    bad: BTreeMap<u16, Error>,
}

/// The snapshots of all domains.
#[derive(Default)]
pub(crate) struct Kept {
    domains: BTreeMap<DomainId, OfDomain>,
    listed: Twin<Listed>,
}

impl Kept {
    /// Entries in the lists of the last recovery point.
    ///
    /// # Errors
    /// Somebody has written to their sum who must not.
    pub(crate) fn listed(&self) -> std::result::Result<Digest, Scribble> {
        self.listed.verified().map(|listed| listed.entries)
    }

    /// What has changed is a recovery point, of which `main` has so many blocks of metadata.
    pub(crate) fn published(&mut self, audit: &Audit, metadata: u64) {
        let more = audit.listed();
        self.listed.change(|listed| listed.entries += more);
        // As the superblock says, from which the next epoch starts.
        let newest = self.domains.get_mut(&DomainId::MAIN).and_then(|main| main.held.last_mut());
        if let Some(newest) = newest.filter(|newest| newest.metadata.get() > metadata) {
            newest.metadata.set(metadata);
        }
    }

    /// Entries as they follow from what is in memory, which has been verified.
    pub(crate) fn in_memory(&self) -> Digest {
        let of = |(domain, of): (&DomainId, &OfDomain)| {
            of.sums().fold(Digest::NOTHING, |all, (slot, sum)| all + listed_digest(*domain, slot.into(), sum))
        };
        self.domains.iter().map(of).fold(Digest::NOTHING, |all, digest| all + digest)
    }

    /// The same of one block of the list of a domain.
    pub(crate) fn in_memory_at(&self, domain: DomainId, page: u64) -> Digest {
        let there = self.domains.get(&domain).into_iter().flat_map(OfDomain::sums);
        let there = there.filter(|(slot, _)| u64::from(*slot) / SNAPSHOTS == page);
        there.fold(Digest::NOTHING, |all, (slot, sum)| all + listed_digest(domain, slot.into(), sum))
    }

    /// A logic bug, or a scribble, for tests.
    #[cfg(test)]
    pub(crate) fn alter(&mut self, domain: DomainId, is_legal: bool, change: fn(&mut StoredSnapshot)) {
        for held in &mut self.domains.get_mut(&domain).expect("a domain with snapshots").held {
            change(&mut held.stored);
            if is_legal {
                held.sums = EntrySums::of(&held.stored);
            }
        }
    }

    /// Whether the snapshots of a domain are what they were read or made as.
    ///
    /// # Errors
    /// Somebody has written to one of them who must not.
    fn verify(&self, domain: DomainId) -> std::result::Result<(), BadEntry> {
        let Some(of_domain) = self.domains.get(&domain) else { return Ok(()) };
        let held = of_domain.held.iter().map(|held| (held.verify(), &held.slot, &held.stored, held.sums));
        let deleted = of_domain.deleted.iter();
        let deleted = deleted.map(|deleted| (deleted.verify(), &deleted.slot, &deleted.stored, deleted.sums));
        held.chain(deleted).try_for_each(|(verified, slot, stored, sums)| {
            verified.map_err(|scribble| BadEntry { slot: slot.get(), stored: Box::new(stored.clone()), sums, scribble })
        })
    }

    /// The domain has these blocks no more. Whether a snapshot has them: they are in its dead list then.
    pub(crate) fn died(&mut self, domain: DomainId, run: DeadRun) -> bool {
        let Some(of_domain) = self.domains.get_mut(&domain) else { return false };
        match of_domain.holder_of(run.birth_log) {
            Some(slot) => {
                of_domain.bury(slot, run);
                true
            }
            None => false,
        }
    }

    /// A block of metadata born then is none of the domain any more.
    pub(crate) fn metadata_gone(&mut self, domain: DomainId, birth_log: Epoch) {
        let Some(of_domain) = self.domains.get_mut(&domain) else { return };
        for held in of_domain.held.iter_mut().rev().take_while(|held| held.stored.epoch >= birth_log) {
            held.metadata.set(held.metadata.get().saturating_sub(1));
        }
    }

    /// Blocks of metadata that the newest snapshot has and the domain still has too, if there is a snapshot.
    pub(crate) fn metadata_of_newest(&self, domain: DomainId) -> Option<u64> {
        self.of(domain).last().map(|newest| newest.metadata.get())
    }

    /// Epoch of the newest snapshot of a domain; 0 if there is none.
    pub(crate) fn newest_epoch(&self, domain: DomainId) -> Epoch {
        self.of(domain).last().map_or(0, |newest| newest.stored.epoch)
    }

    /// Whether a snapshot of the domain has what a pointer of this logical birth names.
    pub(crate) fn has(&self, domain: DomainId, birth_log: Epoch) -> bool {
        self.domains.get(&domain).is_some_and(|of_domain| of_domain.holder_of(birth_log).is_some())
    }

    /// The snapshots of a domain, oldest first.
    pub(crate) fn of(&self, domain: DomainId) -> &[Held] {
        self.domains.get(&domain).map_or(&[], |of_domain| &of_domain.held)
    }

    /// The records through which objects of snapshots are found.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &SealedRecord> {
        self.domains.values().flat_map(|of| of.held.iter().flat_map(|held| held.view.system.values()))
    }

    /// The same, to be put right, with their domains.
    pub(crate) fn tables_mut(&mut self) -> impl Iterator<Item = (DomainId, &mut SealedRecord)> {
        self.domains.iter_mut().flat_map(|(domain, of)| {
            let tables = of.held.iter_mut().flat_map(|held| held.view.system.values_mut());
            tables.map(|record| (*domain, record))
        })
    }

    /// Domains that have or had snapshots.
    pub(crate) fn domains(&self) -> impl Iterator<Item = DomainId> {
        self.domains.keys().copied()
    }

    /// Why the snapshots of a domain are not known, or one of them is not.
    pub(crate) fn unreadable(&self) -> Option<&Error> {
        self.domains.values().find_map(|of_domain| of_domain.unreadable.as_ref().or(of_domain.bad.values().next()))
    }

    /// # Errors
    /// Why the snapshots of the domain are not known.
    fn check_known(&self, domain: DomainId) -> Result<()> {
        match self.domains.get(&domain).and_then(|of_domain| of_domain.unreadable.clone()) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    fn find(&self, domain: DomainId, id: SnapshotId) -> Option<(usize, &Held)> {
        self.of(domain).iter().enumerate().find(|(_, held)| held.stored.id == id)
    }
}

impl OfDomain {
    /// All that is in the list: places, and checksums of the entries.
    fn sums(&self) -> impl Iterator<Item = (u16, u64)> {
        let deleted = self.deleted.iter().map(|deleted| (deleted.slot.get(), deleted.sums.crc()));
        self.held.iter().map(|held| (held.slot.get(), held.sums.crc())).chain(deleted)
    }

    /// Numbers in use.
    fn ids(&self) -> impl Iterator<Item = SnapshotId> {
        let deleted = self.deleted.iter().map(|deleted| deleted.stored.id);
        self.held.iter().map(|held| held.stored.id).chain(deleted)
    }

    /// Places of the list in use.
    fn slots(&self) -> impl Iterator<Item = u16> {
        self.held.iter().map(|held| held.slot.get()).chain(self.deleted.iter().map(|deleted| deleted.slot.get()))
    }

    /// The slot of the newest snapshot, if that has pointers born in this epoch.
    fn holder_of(&self, birth_log: Epoch) -> Option<u16> {
        self.held.last().filter(|newest| newest.stored.epoch >= birth_log).map(|newest| newest.slot.get())
    }

    fn bury(&mut self, slot: u16, run: DeadRun) {
        if let Some(blocks) = self.dead_blocks.get_mut() {
            *blocks += run.blocks_in_all();
        }
        self.dying.entry(slot).or_default().put(run);
    }
}

impl Trees {
    /// The objects in which `key` is to be looked up, and the key there: those of its snapshot if it names one. That it is this snapshot is
    /// verified just now: another one has an answer, too.
    ///
    /// # Errors
    /// [`Error::NoObject`], also if what is known of the snapshot has gone bad in memory: see [`Module::surely`].
    pub(crate) fn state_of(&self, key: ObjectKey) -> Result<(&Trees, ObjectKey)> {
        let live = ObjectKey { object: key.object.live(), ..key };
        match key.object.snapshot() {
            SnapshotId::LIVE => Ok((self, live)),
            id => match self.kept.find(key.domain, id) {
                Some((_, held)) if held.verify().is_ok() => Ok((&held.view, live)),
                Some(_) => Err(Error::NoObject(key)),
                None => {
                    self.kept.check_known(key.domain)?;
                    Err(Error::NoObject(key))
                }
            },
        }
    }

    /// Loads the snapshot lists of all domains. One that cannot be read is remembered as that, and so is an entry.
    pub(crate) fn load_snapshots(&mut self, base: &Base, superblock: &Superblock) {
        let domains: Vec<DomainId> = self.system.keys().filter_map(|id| domain_of_list(*id)).collect();
        for domain in domains {
            let mut listed = Digest::NOTHING;
            let of_domain = match self.load_list(base, superblock, domain, &mut listed) {
                Ok(of_domain) => of_domain,
                Err(error) => {
                    tracing::error!(%error, "the list of snapshots cannot be read");
                    listed = Digest::NOTHING;
                    OfDomain { unreadable: Some(error), ..OfDomain::default() }
                }
            };
            self.kept.listed.change(|all| all.entries += listed);
            self.kept.domains.insert(domain, of_domain);
        }
        self.audit = Audit::under(self.kept.newest_epoch(DomainId::MAIN));
    }

    /// `listed` gets what is in the list.
    fn load_list(
        &self,
        base: &Base,
        superblock: &Superblock,
        domain: DomainId,
        listed: &mut Digest,
    ) -> Result<OfDomain> {
        let list = system_key(snapshots_of(domain));
        let record = Record::clone(&self.system[&list.object.0]);
        let mut of_domain = OfDomain::default();
        let mut page = 0;
        while let Some(next) = self.seek(base, list, &record, page, Seek::Data)? {
            let Some(block) = self.node(base, list, &record, 0, next)? else { break };
            for at in 0..SNAPSHOTS {
                let bytes = block.snapshot(at as usize);
                let address = || self.pages(base, list, &record, next, 1).map_or(0, |pointers| pointers[0].address[0]);
                let place = || NodeKey::new(list, 0, next).place(&base.disk, address());
                let slot = next * SNAPSHOTS + at;
                let stored = match StoredSnapshot::decode(bytes, superblock.epoch, base.disk.blocks()) {
                    Err(fault) if slot < u64::from(SLOTS) => {
                        *listed += listed_digest(domain, slot, crc64(bytes));
                        let Fault { what, expected, got } = fault;
                        let error = Error::corrupt(place(), format!("{what} in slot {at}"), expected, got);
                        tracing::error!(%error, "an entry of the list of snapshots cannot be read");
                        of_domain.bad.insert(slot as u16, error);
                        continue;
                    }
                    stored => stored.map_err(|fault| fault.at(place()))?,
                };
                if stored.is_some() {
                    *listed += listed_digest(domain, slot, crc64(bytes));
                }
                match stored {
                    Some(stored) if slot < u64::from(SLOTS) && stored.is_deleted => {
                        of_domain.deleted.push(self.deleted(base, domain, slot as u16, stored));
                    }
                    Some(stored) if slot < u64::from(SLOTS) => {
                        of_domain.held.push(Held::new(slot as u16, domain, stored, 0));
                    }
                    Some(_) => {
                        let expected = format!("{SLOTS} snapshots at most");
                        return Err(Error::corrupt(place(), "snapshot list", expected, "one more"));
                    }
                    None => {}
                }
            }
            page = next + 1;
        }
        of_domain.held.sort_by_key(|held| (held.stored.epoch, held.stored.id));
        of_domain.deleted.sort_by_key(|deleted| (deleted.stored.epoch, deleted.stored.id));
        of_domain.last_id.set(of_domain.held.last().map_or(0, |held| held.stored.id.0.into()));
        // Each entry says what was kept of the metadata of the one before it when it was made itself.
        let mut metadata = if domain == DomainId::MAIN { superblock.metadata_kept } else { 0 };
        for held in of_domain.held.iter_mut().rev() {
            held.metadata.set(metadata.min(superblock.metadata));
            metadata = held.stored.metadata_before;
        }
        Ok(of_domain)
    }

    /// Blocks of metadata that the newest snapshot of `main` has and `main` still has too, at most, if there is a snapshot.
    pub(crate) fn metadata_kept(&self) -> Option<u64> {
        // Of one that is the newest again, it is what it was when the next one was made.
        self.kept.metadata_of_newest(DomainId::MAIN).map(|kept| kept.min(self.metadata.get()))
    }

    /// Tells the allocator how much room removals may need.
    pub(crate) fn tell_kept(&self, base: &Base) {
        base.alloc.lock().set_kept(self.metadata_kept());
    }

    /// Before something is made of what is in memory of a domain's snapshots.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: somebody has written to it who must not.
    pub(crate) fn verify_snapshots(&self, base: &Base, domain: DomainId) -> Result<()> {
        if !base.disk.metadata.rolls() {
            return Ok(());
        }
        self.kept.verify(domain).map_err(|bad| self.give_up_snapshot(base, domain, bad))
    }

    /// Before [`Trees::put_listed`]: all that it changes is dirty afterwards, so that nothing of it can fail.
    fn open_listed(&mut self, base: &Base, domain: DomainId, slot: u16) -> Result<()> {
        let list = system_key(snapshots_of(domain));
        self.with_system(base, list.object.0, |trees, record| {
            trees.make_dirty(base, list, record, 0, u64::from(slot) / SNAPSHOTS)
        })
    }

    /// Puts an entry of the list in its place, or takes it out.
    fn put_listed(&mut self, base: &Base, domain: DomainId, slot: u16, stored: Option<&StoredSnapshot>) -> Result<()> {
        let list = system_key(snapshots_of(domain));
        let (page, at) = (u64::from(slot) / SNAPSHOTS, (u64::from(slot) % SNAPSHOTS) as usize);
        self.with_system(base, list.object.0, |trees, record| {
            trees.make_dirty(base, list, record, 0, page)?;
            let mut block = trees.dirty_mut(NodeKey::new(list, 0, page));
            block.put_snapshot(at, &stored.map_or([0; 1024], StoredSnapshot::encode));
            if block.is_zero() { trees.remove_pages(base, list, record, page, page + 1) } else { Ok(()) }
        })
    }

    /// Blocks that are free once these runs have been let go, after others: `uses` has how often shared blocks were let go with those.
    fn freed_by<'a>(
        &self,
        base: &Base,
        runs: impl Iterator<Item = &'a DeadRun>,
        uses: &mut HashMap<u64, u32>,
    ) -> Result<u64> {
        let nothing_is_shared = self.system[&REFERENCES].root.is_hole();
        let (mut freed, mut counters) = (0, ReferenceCounts::default());
        for run in runs {
            if nothing_is_shared || !run.is_page {
                freed += run.blocks_in_all();
                continue;
            }
            for block in run.blocks() {
                let uses = uses.entry(block[0]).or_default();
                *uses += 1;
                if *uses == counters.of(self, base, block[0])?.saturating_add(1) {
                    freed += if block[1] == 0 { 1 } else { 2 };
                }
            }
        }
        Ok(freed)
    }

    /// A place in the list without a snapshot and without a dead list.
    fn free_slot(&self, base: &Base, domain: DomainId) -> Result<Option<u16>> {
        let used =
            |slot| self.kept.domains.get(&domain).is_some_and(|of_domain| of_domain.slots().any(|it| it == slot));
        for slot in 0..SLOTS {
            if !used(slot) && self.is_buried_nothing(base, domain, slot)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }
}

/// The domain that has its snapshot list in the object of domain 0 with this id.
pub(crate) fn domain_of_list(id: u64) -> Option<DomainId> {
    let domain = DomainId((id / 16) as u16);
    (id >= 16 && snapshots_of(domain) == id).then_some(domain)
}

impl Module {
    /// See [`holdfast_object::ObjectStore::snapshot_create`].
    pub(crate) fn create_snapshot(
        &self,
        domain: DomainId,
        epoch: Epoch,
        name: &str,
        created: Timestamp,
    ) -> Result<SnapshotId> {
        check_snapshot_name(name)?;
        let mut committing = self.committing.lock();
        let last = self.begin(&committing, epoch)?;
        let mut trees = self.trees.write();
        if !trees.has_domain(domain) {
            return Err(Error::Protocol(format!("domain {} does not exist", domain.0)));
        }
        trees.verify_snapshots(&self.base, domain)?;
        if trees.kept.of(domain).iter().any(|held| held.stored.name == name) {
            return Err(Error::SnapshotExists(name.to_string()));
        }
        // All that it keeps must be removable afterwards.
        let metadata = trees.metadata.get();
        self.base.alloc.lock().check_kept(metadata)?;
        for (id, kind) in [(snapshots_of(domain), SystemKind::SnapshotList), (dead_of(domain), SystemKind::DeadLists)] {
            let record = || SealedRecord::own(Record::system(kind, epoch), self.base.disk.metadata);
            trees.system.entry(id).or_insert_with(record);
        }
        let Some(slot) = trees.free_slot(&self.base, domain)? else {
            return Err(Error::Limit { what: "snapshots", limit: u64::from(SLOTS), got: u64::from(SLOTS) + 1 });
        };
        // The list of a domain that has had none is known: nothing is in it.
        let nothing = || OfDomain { dead_blocks: Mutex::new(Some(0)), ..OfDomain::default() };
        let of_domain = trees.kept.domains.entry(domain).or_insert_with(nothing);
        // Those behind the last one given, then from the first on.
        let last_id = of_domain.last_id.get().min(SnapshotId::MAX.0.into()) as u16;
        let mut ids = (last_id..SnapshotId::MAX.0).map(|before| before + 1).chain(1..=last_id).map(SnapshotId);
        let id = ids.find(|id| !of_domain.ids().any(|used| used == *id));
        let id = id.expect("more numbers than places in the list");
        let metadata_before = trees.kept.metadata_of_newest(domain).unwrap_or(0);
        let table = Record::clone(&trees.system[&table_of(domain)]);
        let stored = StoredSnapshot {
            metadata_before,
            is_deleted: false,
            id,
            name: name.to_string(),
            created,
            epoch: last,
            objects: trees.objects.get(),
            table,
        };
        self.disk().raise_newest(epoch);
        trees.building = epoch;
        if self.base.commit_order != CommitOrder::ListNothing {
            trees.put_listed(&self.base, domain, slot, Some(&stored))?;
        }
        let of_domain = trees.kept.domains.entry(domain).or_default();
        of_domain.last_id.set(id.0.into());
        of_domain.held.push(Held::new(slot, domain, stored, metadata));
        if domain == DomainId::MAIN {
            trees.audit.newest_snapshot_is(last, KeptStart::All);
        }
        trees.tell_kept(&self.base);
        committing.applied.set(epoch);
        Ok(id)
    }

    /// See [`holdfast_object::ObjectStore::snapshots`]. Counting takes a look through all dead lists.
    pub(crate) fn list_snapshots(&self, domain: DomainId, counted: bool) -> Result<Vec<SnapshotInfo>> {
        let trees = self.trees_now();
        trees.kept.check_known(domain)?;
        let mut before = 0;
        let mut infos = Vec::new();
        let mut dead_blocks = 0;
        let blocks_of = |runs: &[DeadRun]| runs.iter().map(DeadRun::blocks_in_all).sum::<u64>();
        for Held { slot, stored, .. } in trees.kept.of(domain) {
            let mut only = 0;
            if counted {
                let runs = trees.dead_runs(&self.base, domain, slot.get())?;
                dead_blocks += blocks_of(&runs);
                let runs = runs.iter().filter(|run| run.birth_log > before);
                only = trees.freed_by(&self.base, runs, &mut HashMap::new())?;
            }
            infos.push(SnapshotInfo {
                id: stored.id,
                name: stored.name.clone(),
                epoch: stored.epoch,
                created: stored.created,
                objects: stored.objects,
                blocks_only: only,
            });
            before = stored.epoch;
        }
        if counted && let Some(of_domain) = trees.kept.domains.get(&domain) {
            let mut dead_blocks = Some(dead_blocks);
            for Deleted { slot, stored, .. } in &of_domain.deleted {
                // Nobody looks into it any more: only the sum is not known then.
                match trees.dead_runs(&self.base, domain, slot.get()) {
                    Ok(runs) => dead_blocks = dead_blocks.map(|blocks| blocks + blocks_of(&runs)),
                    Err(error) => {
                        let (id, name) = (stored.id.0, &stored.name);
                        tracing::error!(%error, id, name, "what is left of a deleted snapshot cannot be counted");
                        dead_blocks = None;
                    }
                }
            }
            *of_domain.dead_blocks.lock() = dead_blocks;
        }
        Ok(infos)
    }

    /// See [`holdfast_object::ObjectStore::snapshot_count_part`].
    pub(crate) fn count_snapshot(&self, domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool> {
        /// As many as one tree block has below it.
        const PAGES: u64 = 64;
        let trees = self.trees();
        trees.kept.check_known(domain)?;
        let Some((at, held)) = trees.kept.find(domain, id) else { return Err(Error::NoSnapshot(id.0.to_string())) };
        let before = trees.kept.of(domain)[..at].last().map_or(0, |before| before.stored.epoch);
        let (runs, is_end) = trees.dead_part(&self.base, domain, held.slot.get(), count.pages, PAGES)?;
        let runs = runs.iter().filter(|run| run.birth_log > before);
        count.pages += PAGES;
        match trees.freed_by(&self.base, runs, &mut count.uses) {
            Ok(blocks) => count.blocks += blocks,
            // Gone bad in memory, not there: what has been counted of this part is not known, so it begins anew.
            Err(error @ Error::GivenUp(_)) => {
                *count = SnapshotCount::default();
                return Err(error);
            }
            // A deletion leaves what may be shared in use then.
            Err(error) => tracing::error!(%error, "reference table: what only a snapshot has cannot be counted"),
        }
        Ok(!is_end)
    }

    /// Blocks of 4 KiB that the snapshots of a domain keep together, and those of deleted ones that are not free yet. Those of them that
    /// other files share count as well. Known once the snapshots have been listed and counted; from memory then.
    pub fn kept_blocks(&self, domain: DomainId) -> Option<u64> {
        let trees = self.trees();
        trees.kept.domains.get(&domain).map_or(Some(0), |of_domain| *of_domain.dead_blocks.lock())
    }

    /// The last recovery point, if `epoch` is above it and nothing has been applied for it.
    fn begin(&self, committing: &Committing, epoch: Epoch) -> Result<Epoch> {
        self.disk().check_sound()?;
        self.claim_first()?;
        committing.check_open()?;
        // What a snapshot says, and what is freed with one, follows from the store's own records.
        drop(self.trees_now());
        let last = self.superblock()?.epoch;
        let applied = committing.applied.get();
        if epoch <= last || applied != 0 {
            let message = format!("snapshots change first in epoch {epoch}, after {last}; {applied} has been applied");
            return Err(Error::Protocol(message));
        }
        Ok(last)
    }
}
