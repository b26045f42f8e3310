//! The cache's state behind one lock: objects, the open epoch, the epoch being written.

use crate::freeing::{Freeing, Writing};
use crate::frozen::{FrozenOps, Places};
use crate::members::Members;
use crate::object::{Object, Residence, Slot};
use crate::oplog::{OpLog, Recorded};
use crate::proved::{ProvedSums, version};
use crate::sealed_attributes::SealedAttributes;
use crate::thrice::{AllDiffer, Thrice};
use crate::twin::Twin;
use crate::unlogged::{Brought, Unlogged};
use holdfast_integrity::{Protection, SetDigest};
use holdfast_object::space::{Demand, levels};
use holdfast_object::{
    Arena, BlockIdentity, Clock, DomainId, Epoch, Error, Kind, ObjectId, ObjectKey, Op, PageIndex, PinnedPage, Result,
    SnapshotId,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A block of a tree, for counting: whose, level, number in that level.
pub(crate) type TreeBlock = (Tree, u8, u64);

/// Whose tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Tree {
    /// An object's, above its pages.
    Pages(ObjectId),
    /// The object table.
    Table,
    /// The maps of used and of nameless objects.
    Maps,
}

/// The epoch that takes transactions.
pub(crate) struct OpenEpoch {
    pub(crate) epoch: Epoch,
    /// Where its records in the operation log begin, and those of the epoch being written end.
    pub(crate) log_start: Thrice,
    /// Objects with changes in it.
    pub(crate) objects: Members<ObjectId>,
    /// Dirty pages. A wrong number closes the epoch early or late, and does no more.
    pub(crate) pages: u64,
    /// What it may cost.
    pub(crate) demand: Demand,
    /// Tree blocks already counted in `demand`.
    pub(crate) tree: FxHashSet<TreeBlock>,
    /// Blocks set aside for it.
    pub(crate) reserved: u64,
    /// What it will free, for showing.
    pub(crate) freeing: Freeing,
    /// Monotonic time of its first change that is not lazy, 0 while it has none.
    pub(crate) since_ns: u64,
    /// The same of its first lazy change.
    pub(crate) lazy_since_ns: u64,
    /// Objects created in it.
    pub(crate) creations: u64,
    /// The intent log may have a batch of it.
    pub(crate) logged: bool,
    /// What its requests have proved.
    pub(crate) proved: ProvedSums,
}

impl OpenEpoch {
    pub(crate) fn new(epoch: Epoch, log_start: Thrice) -> OpenEpoch {
        OpenEpoch {
            epoch,
            log_start,
            objects: Members::default(),
            pages: 0,
            demand: Demand::default(),
            tree: FxHashSet::default(),
            reserved: 0,
            freeing: Freeing::default(),
            since_ns: 0,
            lazy_since_ns: 0,
            creations: 0,
            logged: false,
            proved: ProvedSums::default(),
        }
    }

    /// Whether a recovery point of it would have nothing new: no changes, no log batch to be forgotten.
    pub(crate) fn is_empty(&self, log: &OpLog) -> bool {
        let has_no_records = self.log_start.get().is_some_and(|start| Some(start) == log.tail().get());
        self.objects.is_empty() && has_no_records && !self.logged
    }
}

/// One object's part of an epoch being written.
pub(crate) struct FrozenObject {
    pub(crate) id: ObjectId,
    pub(crate) attributes: SealedAttributes,
    pub(crate) pages: Vec<(PageIndex, PinnedPage)>,
    /// Which pages these are, once more.
    pub(crate) places: Places,
    /// Of metadata: of each of its pages.
    pub(crate) twins: Vec<(PageIndex, Twin)>,
}

/// The epoch being written: a prefix of all transactions.
pub(crate) struct FrozenEpoch {
    pub(crate) epoch: Epoch,
    /// Last transaction in it.
    pub(crate) sequence: Thrice,
    /// Structural operations in admission order.
    pub(crate) ops: FrozenOps,
    /// What its requests have proved.
    pub(crate) proved: ProvedSums,
    /// Newest versions of what changed.
    pub(crate) objects: Vec<FrozenObject>,
    /// See [`State::uncut`].
    pub(crate) uncut: FxHashSet<ObjectId>,
    /// Bad pages that the store may take for holes once it has this epoch.
    pub(crate) unsettled: Vec<(ObjectId, PageIndex)>,
    /// The counter of errors when it was frozen.
    pub(crate) errors: u64,
}

pub(crate) struct State {
    pub(crate) domain: DomainId,
    pub(crate) arena: Arc<Arena>,
    /// How the contents of files are protected.
    pub(crate) protection: Protection,
    pub(crate) clock: Arc<dyn Clock>,
    /// Blocks that go away may have to be noted for a snapshot.
    pub(crate) has_snapshots: bool,
    /// Levels of tree blocks that the object table and the maps of ids can have in the store.
    pub(crate) table_levels: [u8; 2],
    pub(crate) objects: FxHashMap<ObjectId, Object>,
    /// Deleted objects that the store may still have, and in which epoch they were deleted.
    pub(crate) gone: FxHashMap<ObjectId, Epoch>,
    /// Deletions that no log batch and no recovery point has: the next batch brings them with the names, whoever asks for it.
    pub(crate) gone_unlogged: Vec<Unlogged>,
    /// Objects of which an operation was passed over in an epoch before, as a tree block cannot be read: the store may have a larger size, as it could not
    /// cut them, for as long as they are here.
    pub(crate) uncut: FxHashSet<ObjectId>,
    /// Files that renames put in another's place, until log or recovery point have them.
    pub(crate) brings: BTreeMap<ObjectId, Brought>,
    /// The last transaction when something that the next log batch was to have was found to have gone bad; 0 if a recovery point has
    /// that one. There is no batch until then.
    pub(crate) spoilt: Thrice,
    /// Objects with changes of the name space that no log batch has.
    pub(crate) names_unlogged: Members<ObjectId>,
    pub(crate) open: OpenEpoch,
    /// Of the epoch being written, if there is one.
    pub(crate) freezing: Option<Epoch>,
    /// What that one will free, for showing.
    pub(crate) writing: Option<Writing>,
    pub(crate) log: OpLog,
    /// Transactions admitted since the store was opened: see [`State::sequence`].
    pub(crate) sequence: Thrice,
    /// Pages entered in error tables since the store was opened.
    pub(crate) errors: u64,
    /// Pages whose twin took their place since the store was opened.
    pub(crate) renewed: u64,
    /// Pages of metadata found corrupt in memory since the store was opened, for which there was a good copy.
    pub(crate) scribbles: u64,
    /// Attributes of objects that were made anew, from their twin or the store, since the store was opened.
    pub(crate) attributes_renewed: u64,
    /// Operations, sets of what has changed, and numbers that were found corrupt in memory since the store was opened: see [`crate::CacheStatus`].
    pub(crate) operations_renewed: u64,
    /// What `errors` was when whoever syncs everything was told last.
    pub(crate) errors_told: u64,
    /// Objects with entries of which it is not known what the store makes of them.
    pub(crate) unsettled: BTreeSet<ObjectId>,
    /// Why no changes are taken any more.
    pub(crate) read_only: Option<String>,
    /// The eviction hand: clean pages, oldest first.
    pub(crate) clean: VecDeque<(ObjectId, PageIndex)>,
    /// Counts evictions of objects, so that attributes loaded meanwhile are not taken for current.
    pub(crate) evictions: u64,
    /// The same for objects.
    pub(crate) object_hand: VecDeque<ObjectId>,
}

impl State {
    pub(crate) fn new(
        domain: DomainId,
        protection: Protection,
        clock: Arc<dyn Clock>,
        epoch: Epoch,
        arena: Arc<Arena>,
        table_levels: [u8; 2],
        read_only: Option<String>,
    ) -> State {
        State {
            domain,
            arena: arena.clone(),
            protection,
            clock,
            has_snapshots: false,
            table_levels,
            objects: FxHashMap::default(),
            gone: FxHashMap::default(),
            gone_unlogged: Vec::new(),
            uncut: FxHashSet::default(),
            brings: BTreeMap::new(),
            spoilt: Thrice::new(0),
            names_unlogged: Members::default(),
            open: OpenEpoch::new(epoch, Thrice::new(0)),
            freezing: None,
            writing: None,
            log: OpLog::new(arena),
            sequence: Thrice::new(0),
            errors: 0,
            renewed: 0,
            scribbles: 0,
            attributes_renewed: 0,
            operations_renewed: 0,
            errors_told: 0,
            unsettled: BTreeSet::new(),
            read_only,
            clean: VecDeque::new(),
            evictions: 0,
            object_hand: VecDeque::new(),
        }
    }

    pub(crate) fn key(&self, object: ObjectId) -> ObjectKey {
        ObjectKey { domain: self.domain, object }
    }

    /// Transactions admitted since the store was opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: no two copies agree. It is not guessed, as it goes into what is durable: if it were too high, nothing that comes later would be
    /// newer than that.
    pub(crate) fn sequence(&self) -> Result<u64> {
        self.sequence.get().ok_or_else(|| AllDiffer.of("number of the last transaction"))
    }

    /// That of the next one, which is admitted now.
    ///
    /// # Errors
    /// As [`State::sequence`].
    pub(crate) fn next_sequence(&mut self) -> Result<u64> {
        let next = self.sequence()?.saturating_add(1);
        self.note_numbers("number of the last transaction", u64::from(self.sequence.differing() != 0));
        self.sequence.set(next);
        Ok(next)
    }

    /// Whether there is no log batch before a recovery point; also if it is not known.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.spoilt.get() != Some(0)
    }

    /// Puts that right. If it is not known, the next recovery point has what was spoilt.
    fn heal_spoilt(&mut self) {
        const WHAT: &str = "up to where there is no log batch";
        match self.spoilt.heal() {
            Ok(is_renewed) => self.note_numbers(WHAT, u64::from(is_renewed)),
            Err(AllDiffer) => self.spoil(1, WHAT),
        }
    }

    /// Counts and tells how many numbers of a kind had a copy that has gone bad.
    pub(crate) fn note_numbers(&mut self, what: &str, renewed: u64) {
        if renewed > 0 {
            self.operations_renewed += renewed;
            tracing::warn!(renewed, "{what} in memory went bad in one copy of three: the others say what was right");
        }
    }

    /// Which state an object is in, if it is known: the same number only as long as it has not changed, nor been
    /// forgotten and loaded again.
    pub(crate) fn version(&self, id: ObjectId) -> Option<u64> {
        self.objects.get(&id).map(|object| object.version)
    }

    pub(crate) fn writable(&self) -> Result<()> {
        match &self.read_only {
            None => Ok(()),
            Some(reason) => Err(Error::ReadOnly(reason.clone())),
        }
    }

    /// Whether the open epoch has `times` as much as an epoch should have.
    pub(crate) fn is_due(&self, options: &crate::Options, times: u64) -> bool {
        self.open.pages >= times * options.dirty_pages_max
            || self.open.demand.blocks() >= times * options.epoch_blocks_max
            || self.open.objects.len() as u64 >= times * options.epoch_objects_max as u64
            || self.log.is_half_full()
    }

    /// A page for a reader, who goes by the strong checksum if it has been in memory for long (Z²FS, section III-C).
    pub(crate) fn for_reader(&self, page: PinnedPage) -> PinnedPage {
        match self.protection.switches_after() {
            Some(after)
                if u128::from(self.clock.monotonic_ns().saturating_sub(page.since_ns())) >= after.as_nanos() =>
            {
                page.switched()
            }
            _ => page,
        }
    }

    /// Puts a page version in place of the current one, dirty in the open epoch.
    pub(crate) fn put_dirty(&mut self, id: ObjectId, index: PageIndex, page: PinnedPage) {
        if self.protection.switches_after().is_some() {
            page.set_since(self.clock.monotonic_ns());
        }
        let object = self.objects.get_mut(&id).expect("planned object is present");
        object.bad.remove(index);
        object.levels = object.levels.max(levels(index));
        let kind = object.attributes.kind;
        let twin = kind.is_metadata().then(|| {
            put_in_place(&page, id, index, kind);
            let before = object.pages.get_mut(&index).and_then(|slot| {
                self.open.proved.drop_page(id, index, slot);
                slot.twin.take()
            });
            Twin::of(&page, before)
        });
        let old = object.pages.insert(
            index,
            Slot { page, residence: Residence::Dirty, twin, referenced: AtomicBool::new(true), queued: false },
        );
        let (queued, known) = match &old {
            Some(slot) => (slot.queued, true),
            None => (false, false),
        };
        if queued {
            object.pages.get_mut(&index).expect("just inserted").queued = true;
        }
        if old.is_some_and(|slot| slot.residence == Residence::Frozen) {
            object.frozen_pages = object.frozen_pages.saturating_sub(1);
        }
        if !known {
            object.fresh_pages += 1;
        }
        object.unlogged.insert(index);
        if object.dirty.insert(index) {
            self.open.pages += 1;
        }
        object.version += 1;
    }

    /// Puts a page that the store has in place, if there is none.
    pub(crate) fn put_clean(&mut self, id: ObjectId, index: PageIndex, page: PinnedPage, identity: BlockIdentity) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        if object.pages.contains_key(&index) || object.bad.contains(index) {
            return;
        }
        if self.protection.switches_after().is_some() {
            page.set_since(self.clock.monotonic_ns());
        }
        let kind = object.attributes.kind;
        if kind.is_metadata() {
            put_in_place(&page, id, index, kind);
        }
        object.pages.insert(
            index,
            Slot {
                page,
                residence: Residence::Clean(identity),
                twin: None,
                referenced: AtomicBool::new(false),
                queued: true,
            },
        );
        self.clean.push_back((id, index));
    }

    /// Frees clean pages that nobody reads until `wanted` are free again; gives how many it freed.
    pub(crate) fn evict(&mut self, wanted: usize) -> usize {
        let mut freed = 0;
        let mut looked_at = 0;
        let limit = self.clean.len() * 2;
        while freed < wanted && looked_at < limit {
            looked_at += 1;
            let Some((id, index)) = self.clean.pop_front() else { break };
            let Some(object) = self.objects.get_mut(&id) else { continue };
            let Some(slot) = object.pages.get_mut(&index) else { continue };
            if !matches!(slot.residence, Residence::Clean(_)) {
                slot.queued = false;
                continue;
            }
            if slot.referenced.swap(false, Ordering::Relaxed) || !slot.page.is_sole() {
                self.clean.push_back((id, index));
                continue;
            }
            object.pages.remove(&index);
            freed += 1;
        }
        freed
    }

    /// Forgets clean objects until at most `max` are known, looking at no more than `steps`.
    pub(crate) fn evict_objects(&mut self, max: usize, steps: usize) {
        let mut looked_at = 0;
        while self.objects.len() > max && looked_at < steps {
            looked_at += 1;
            let Some(id) = self.object_hand.pop_front() else { break };
            let Some(object) = self.objects.get(&id) else { continue };
            let referenced = object.referenced.swap(false, Ordering::Relaxed);
            let written = object.progress.is_written(self.freezing.unwrap_or(self.open.epoch));
            if !referenced
                && written
                && object.is_clean()
                && !self.names_unlogged.contains(&id)
                && !self.brings.contains_key(&id)
            {
                // Its pages go with it: an object not used for so long has none worth keeping.
                self.objects.remove(&id);
                self.evictions += 1;
            } else {
                self.object_hand.push_back(id);
            }
        }
    }

    /// To be called after each recovery point, which is when objects that were created or changed become clean: forgets those
    /// beyond `objects_max`, and what the eviction hands still name that is gone. Without it memory would grow with each object and
    /// page that comes and goes while there is no lack of frames.
    pub(crate) fn trim(&mut self, objects_max: usize, frames: usize) {
        // Twice around: the first time takes the mark of having been used.
        self.evict_objects(objects_max, 2 * self.object_hand.len());
        if self.object_hand.len() > 2 * self.objects.len().max(objects_max) {
            let mut seen = FxHashSet::default();
            self.object_hand.retain(|id| self.objects.contains_key(id) && seen.insert(*id));
        }
        if self.clean.len() > 2 * frames {
            let mut seen = FxHashSet::default();
            self.clean.retain(|&(id, index)| {
                let slot = self.objects.get(&id).and_then(|object| object.pages.get(&index));
                slot.is_some_and(|slot| slot.queued) && seen.insert((id, index))
            });
        }
    }

    /// The objects of a snapshot that is gone are not known any more.
    pub(crate) fn forget_snapshot(&mut self, snapshot: SnapshotId) {
        self.objects.retain(|id, _| id.snapshot() != snapshot);
        self.evictions += 1;
    }

    /// Adds an object that is not known yet.
    pub(crate) fn insert_object(&mut self, id: ObjectId, mut object: Object) {
        // Above any version that an earlier incarnation of it had.
        object.version = self.evictions << 32;
        let before = self.objects.insert(id, object);
        assert!(before.is_none(), "{id} inserted twice");
        self.object_hand.push_back(id);
    }

    /// Closes the open epoch: what is dirty becomes frozen, and the next epoch is open.
    ///
    /// # Errors
    /// What is to be written has gone bad in memory, and cannot be made anew; then nothing has changed.
    pub(crate) fn freeze(&mut self) -> Result<FrozenEpoch> {
        assert!(self.freezing.is_none(), "two epochs being written");
        let sequence = Thrice::new(self.sequence()?);
        self.heal_spoilt();
        let renewed = self.log.heal(&mut self.open.log_start)?;
        self.note_numbers("positions in the operation log", renewed);
        self.renew_changed();
        let changed: Vec<ObjectId> = self.open.objects.iter().copied().collect();
        changed.into_iter().try_for_each(|id| self.heal(id))?;
        let log_end = self.log.tail();
        let Recorded { mut ops, renewed, differs } = self.log.read(self.open.log_start, log_end)?;
        if renewed > 0 {
            let differs = format!("{differs}; last changed legally for epoch {}", self.open.epoch);
            tracing::warn!(
                records = renewed,
                differs,
                "the operation log went bad in memory: its twin takes its place"
            );
            self.operations_renewed += renewed;
        }
        for op in &mut ops {
            // The log has it as it was asked for; generations are given at admission.
            if let Op::Create { id, attributes } = op
                && let Some(object) = self.objects.get(id)
            {
                attributes.generation = object.attributes.generation;
            }
        }
        let ops = FrozenOps::new(ops)?;
        let epoch = self.open.epoch;
        self.writing = Some(Writing::begin(&mut self.open, self.has_snapshots));
        let closed = std::mem::replace(&mut self.open, OpenEpoch::new(epoch + 1, log_end));
        let mut objects = Vec::with_capacity(closed.objects.len());
        for &id in closed.objects.iter() {
            let Some(object) = self.objects.get_mut(&id) else { continue };
            let is_renewed = object.renew_dirty();
            let mut pages = Vec::with_capacity(object.dirty.len());
            let mut twins = Vec::new();
            for &index in std::mem::take(&mut object.dirty).iter() {
                let Some(slot) = object.pages.get_mut(&index) else { continue };
                slot.residence = Residence::Frozen;
                object.frozen_pages += 1;
                pages.push((index, slot.page.clone()));
                twins.extend(slot.twin.clone().map(|twin| (index, twin)));
            }
            // A log batch of the next epoch may be replayed on this one: it must not take the time of change back.
            let ctime = object.attributes.ctime;
            object.stable.change(|stable| stable.ctime = stable.ctime.max(ctime));
            let places = Places::of(id, &pages);
            objects.push(FrozenObject { id, attributes: object.attributes.clone(), pages, places, twins });
            if is_renewed {
                self.note_members(Some(id), "changed pages");
            }
        }
        self.freezing = Some(epoch);
        let unsettled = self.unsettled_pages();
        let uncut = self.uncut.clone();
        Ok(FrozenEpoch { epoch, sequence, ops, proved: closed.proved, objects, uncut, unsettled, errors: self.errors })
    }

    /// Asserts the invariants of every object; for tests and the simulator.
    pub(crate) fn check(&self) {
        let (mut dirty, mut versions) = (0, SetDigest::NOTHING);
        assert!(self.open.objects.is_good() && self.names_unlogged.is_good(), "sets of changed objects");
        for (id, object) in &self.objects {
            object.check(*id);
            object.bad.check(self.errors);
            dirty += object.dirty.len() as u64;
            for (index, slot) in object.pages.iter().filter(|(_, slot)| slot.residence == Residence::Dirty) {
                let checksum = slot.twin.as_ref().and_then(|twin| twin.checksum_of(&slot.page));
                versions += checksum.map_or(SetDigest::NOTHING, |checksum| version(*id, *index, checksum));
            }
            assert!(object.dirty.is_empty() || self.open.objects.contains(id), "{id} is dirty outside the open epoch");
        }
        assert_eq!(dirty, self.open.pages, "dirty pages of the open epoch");
        let proved = self.open.proved.pages();
        assert!(proved.is_none_or(|proved| proved == versions), "versions of pages of metadata in the open epoch");
    }
}

/// A page of metadata becomes this object's.
fn put_in_place(page: &PinnedPage, id: ObjectId, index: PageIndex, kind: Kind) {
    debug_assert!(page.is_in_place(), "page {index} of {id} in memory that is not locked");
    page.belongs_to(id, index, kind);
    page.seal_for(id, index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::Checksum;
    use holdfast_object::ManualClock;
    use holdfast_object::{Attributes, Class, Kind, Timestamp};

    fn object() -> Object {
        Object::new(Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp::default()))
    }

    #[test]
    fn what_comes_and_goes_leaves_no_trace_in_the_hands() {
        let arena = Arena::new(16, 4096).expect("arena");
        let mut state = State::new(
            DomainId::MAIN,
            Protection::Uniform,
            Arc::new(ManualClock::new(0, 0)),
            2,
            arena.clone(),
            [0; 2],
            None,
        );
        for round in 0..10_000 {
            // Ids are used again: a hand must not name one twice either.
            let id = ObjectId(2 + round % 7);
            state.insert_object(id, object());
            let page = arena.allocate().expect("a frame").publish(Checksum::none());
            state.put_clean(id, 0, page, BlockIdentity { address: 9, birth: 1 });
            state.trim(64, 16);
            assert!(state.object_hand.len() <= 128 && state.clean.len() <= 32, "round {round}");
            state.check();
            state.objects.remove(&id);
        }
    }

    #[test]
    fn objects_beyond_the_limit_are_forgotten_once_they_are_clean() {
        let mut state = State::new(
            DomainId::MAIN,
            Protection::Uniform,
            Arc::new(ManualClock::new(0, 0)),
            2,
            Arena::new(16, 4096).expect("arena"),
            [0; 2],
            None,
        );
        for id in 2..1002 {
            let mut object = object();
            object.progress.created.set(if id < 100 { 2 } else { 0 });
            state.insert_object(ObjectId(id), object);
        }
        state.trim(10, 16);
        assert_eq!(state.objects.len(), 98, "those that the store does not have stay");
        assert!((2..100).all(|id| state.objects.contains_key(&ObjectId(id))));
    }
}
