//! What somebody writes to metadata in memory who must not.

use super::*;
use crate::check::{CheckOptions, check};
use crate::format::blockptr::POINTER_BYTES;
use crate::format::{Label, POINTERS};
use crate::meta_block::OwnedBlock;
use crate::named::StoredCopies;
use crate::objects::map_of;
use crate::{CreateOptions, MetadataProtection, OpenOptions};
use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::{Algorithm, crc64_neutral};
use holdfast_object::{
    Arena, Attributes, Batch, Class, Corruption, Fragment, Kind, ManualClock, ObjectId, ObjectStore, Op, PAGE_SIZE,
    PinnedPage, ScrubCursor, Timestamp,
};
use std::io::IoSliceMut;

mod held;
pub(crate) mod meanwhile;
mod rebuilt;

pub(crate) struct Rig {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) arena: Arc<Arena>,
    clock: Arc<ManualClock>,
    pub(crate) module: Arc<Module>,
}

pub(crate) fn open(device: Arc<MemoryDevice>) -> Module {
    let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
    Module::open(device, arena, clock, &OpenOptions::default()).unwrap()
}

/// Changes what is known of a label or a superblock, as a scribble would.
pub(crate) type Strike = fn(&mut Label, &mut Superblock);

impl Rig {
    /// All that is on the device.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.device.blocks() as usize * 4096];
        self.device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
        bytes
    }

    /// With one object in a recovery point, and in memory what that took.
    pub(crate) fn new() -> Rig {
        Rig::with(MetadataProtection::default())
    }

    pub(crate) fn with(metadata: MetadataProtection) -> Rig {
        let device = Arc::new(MemoryDevice::new(4096));
        let options = CreateOptions::new(*b"0123456789abcdef", *b"fedcba9876543210");
        let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
        Module::create(device.clone(), arena.clone(), clock.clone(), &options).unwrap();
        let options = OpenOptions { metadata, ..OpenOptions::default() };
        let module = Arc::new(Module::open(device.clone(), arena.clone(), clock.clone(), &options).unwrap());
        let rig = Rig { device, arena, clock, module };
        rig.make(2);
        rig.commit().unwrap();
        rig
    }

    pub(crate) fn make(&self, id: u64) {
        self.try_make(id).unwrap();
    }

    pub(crate) fn try_make(&self, id: u64) -> Result<()> {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let ops = vec![Op::Create { id: ObjectId(id), attributes: Attributes { nlink: 1, ..attributes } }];
        self.module.apply(&Batch { domain: DomainId::MAIN, epoch: self.module.epoch() + 1, ops }).map(drop)
    }

    fn try_delete(&self, id: u64) -> Result<()> {
        let ops = vec![Op::Delete { id: ObjectId(id) }];
        self.module.apply(&Batch { domain: DomainId::MAIN, epoch: self.module.epoch() + 1, ops }).map(drop)
    }

    pub(crate) fn delete(&self, id: u64) {
        self.try_delete(id).unwrap();
    }

    fn delete_is_refused(&self, id: u64) {
        let error = self.try_delete(id).unwrap_err();
        assert!(error.to_string().contains("in memory, to which somebody has written"), "{error}");
    }

    pub(crate) fn commit(&self) -> Result<()> {
        let epoch = self.module.epoch() + 1;
        self.module.prepare(epoch)?;
        self.module.publish(epoch)
    }

    /// What was looked at in the same second is not looked at again.
    pub(crate) fn wait_a_second(&self) {
        self.clock.advance_ns(1_000_000_000);
    }

    pub(crate) fn page(&self, byte: u8) -> PinnedPage {
        let mut frame = self.arena.allocate().expect("a frame");
        frame.fill(byte);
        let sum = Algorithm::Crc64Nvme.sum(&frame[..]);
        frame.publish(sum)
    }

    pub(crate) fn write(&self, id: u64, index: u64) -> Result<()> {
        self.write_in(id, index, self.module.epoch() + 1)
    }

    fn write_in(&self, id: u64, index: u64, epoch: Epoch) -> Result<()> {
        let page = self.page(index as u8);
        let fragments = vec![Fragment { index, start: 0, end: PAGE_SIZE as u16, page: page.page() }];
        let ops = vec![Op::Write { id: ObjectId(id), fragments, size_min: (index + 1) * PAGE_SIZE as u64 }];
        self.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops }).map(drop)
    }

    /// Writes pages of an object.
    pub(crate) fn fill(&self, id: u64, pages: u64) {
        (0..pages).for_each(|index| self.write(id, index).unwrap());
    }

    /// Flips a bit in the same place of each clean block of the store's own objects, the topmost of each.
    fn scribble_clean(&self, at: usize) {
        let trees = self.module.trees.read();
        for (id, record) in trees.system.iter().filter(|(id, record)| **id != 0 && !record.root.is_hole()) {
            self.scribble_cached(NodeKey::new(system_key(*id), record.levels, 0), &record.root, at);
        }
    }

    /// The same of the leaves of an object.
    fn scribble_clean_of(&self, id: ObjectId, at: usize) {
        let trees = self.module.trees.read();
        let key = ObjectKey { domain: DomainId::MAIN, object: id };
        let record = trees.get(&self.module.base, key).unwrap();
        let top = trees.node(&self.module.base, key, &record, record.levels, 0).unwrap().unwrap();
        for slot in (0..POINTERS).filter(|slot| !top.pointer_kind_is_hole(*slot as usize)) {
            self.scribble_cached(NodeKey::new(key, 1, slot), &top.pointer(slot as usize), at);
        }
    }

    pub(crate) fn scribble_cached(&self, node: NodeKey, pointer: &BlockPointer, at: usize) {
        let base = &self.module.base;
        let mut block = base.cache.take(node, pointer.address[0]).expect("it was just written");
        Arc::make_mut(&mut block).scribble(at, &[4]);
        base.keep(node, pointer.address[0], pointer.birth_phys, block);
    }

    /// That nothing of the epoch being built gets to the device, nor of a later one built upon it.
    fn commit_is_given_up(&self) {
        let before = self.stored();
        for attempt in ["the commit", "a later one"] {
            let error = self.commit().unwrap_err();
            assert!(matches!(error, Error::GivenUp(_)), "{attempt}: {error}");
            assert!(error.to_string().contains("in memory, to which somebody has written"), "{attempt}: {error}");
        }
        assert!(self.scribbles() >= 1);
        assert_eq!(self.stored(), before);
    }

    /// That an epoch can be built upon the last recovery point, which the layer above does.
    fn begin_anew(&self, redo: impl FnOnce(&Rig)) {
        self.begin_anew_with(0, redo);
    }

    /// The same with so many blocks written ahead.
    fn begin_anew_with(&self, written_ahead: u64, redo: impl FnOnce(&Rig)) {
        let before = self.stored();
        let restarts = self.module.status().counters.restarts;
        self.module.begin_anew().unwrap();
        assert_eq!(self.module.status().counters.restarts, restarts + 1);
        let free = |module: &Module| module.status().space.free;
        let kept = free(&open(self.device.clone())) - free(&self.module);
        assert_eq!(kept, written_ahead, "more or less than what was written ahead");
        redo(self);
        self.commit().unwrap();
        assert_eq!(self.stored().1, before.1 + 1);
        self.module.trees.read().check();
    }

    pub(crate) fn used(&self) -> u64 {
        let space = self.module.status().space;
        space.total - space.free - space.pending
    }

    fn scribbles(&self) -> u64 {
        self.module.status().counters.scribbles
    }

    /// The objects and the epoch of what is on the device, of which nothing is wrong.
    pub(crate) fn stored(&self) -> (usize, Epoch) {
        let report = check(self.device.clone(), &CheckOptions::default()).unwrap();
        assert_eq!(report.findings, [], "{report:?}");
        let module = open(self.device.clone());
        (module.objects(DomainId::MAIN, ObjectId(0), 10).unwrap().len(), module.epoch())
    }
}

#[test]
fn no_scribble_on_a_changed_block_becomes_a_recovery_point() {
    let (at, unseen) = crc64_neutral(3000 * 8).unwrap();
    for (at, pattern) in [(0, &[1][..]), (100, &[0xFF; 64]), (4095, &[0x80]), (at, &unseen)] {
        let rig = Rig::new();
        let before = rig.stored();
        rig.make(3);
        let key = {
            let mut trees = rig.module.trees.write();
            let (key, dirty) = trees.dirty.iter_mut().min_by_key(|(key, _)| **key).unwrap();
            dirty.block.scribble(at, pattern);
            *key
        };
        // Legal changes of the same epoch do not make it right.
        rig.make(4);
        let error = rig.commit().unwrap_err();
        assert!(matches!(&error, Error::GivenUp(found) if found.place.object == Some(key.object_key())), "{error}");
        assert_eq!(rig.scribbles(), 1);
        rig.commit_is_given_up();
        assert_eq!(rig.stored(), before, "at {at}");
        rig.begin_anew(|rig| {
            rig.make(3);
            rig.make(4);
        });
        assert_eq!(rig.stored().0, before.0 + 2, "at {at}");
    }
}

/// A logic bug that changes another block than it means, by legal ways, with the checksum following.
#[test]
fn a_change_that_meets_another_block_costs_the_epoch_and_nothing_else() {
    let object = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
    for is_changed_further in [false, true] {
        let rig = Rig::new();
        let before = rig.stored();
        rig.write(2, 0).unwrap();
        rig.write(2, POINTERS).unwrap();
        {
            let mut trees = rig.module.trees.write();
            let leaves = [0, 1].map(|index| NodeKey::new(object, 1, index));
            let [one, other] = leaves.map(|leaf| trees.dirty.remove(&leaf).unwrap());
            trees.dirty.insert(leaves[0], other);
            trees.dirty.insert(leaves[1], one);
        }
        if is_changed_further {
            rig.write(2, 1).unwrap();
        }
        let error = rig.commit().unwrap_err();
        let is_it = |found: &Corruption| found.place.object == Some(object) && found.what.starts_with("identity");
        assert!(matches!(&error, Error::GivenUp(found) if is_it(found)), "{error}");
        rig.commit_is_given_up();
        assert_eq!(rig.stored(), before);
        rig.begin_anew(|rig| [0, 1, POINTERS].into_iter().for_each(|index| rig.write(2, index).unwrap()));
    }
}

/// From when they have been found until they are complete: moved by what has been written to the table of them, or gone.
#[test]
fn an_epoch_whose_blocks_are_not_where_they_were_is_given_up_with_the_place() {
    type Strike = fn(&mut Trees, NodeKey);
    let page = |id| NodeKey::new(system_key(id), 0, 0);
    let (own, table, leaf) =
        (page(0), page(table_of(DomainId::MAIN)), NodeKey { domain: 1, object: 2, level: 1, index: 0 });
    let (all, tables) = (vec![own, table, leaf], vec![own, table]);
    let strikes: [(&str, Vec<NodeKey>, Strike); 6] = [
        ("another one's", all.clone(), |trees, key| {
            let others = [key, NodeKey::new(system_key(BITMAP), 0, 0)];
            let [one, other] = others.map(|key| trees.dirty.remove(&key).unwrap());
            trees.dirty.extend([(others[0], other), (others[1], one)]);
        }),
        ("nobody's memory", all, |trees, key| {
            trees.dirty.get_mut(&key).unwrap().block.scribbled().misplace(1 << 46);
        }),
        ("gone", tables.clone(), |trees, key| drop(trees.dirty.remove(&key))),
        ("complete already", tables, |trees, key| drop(trees.dirty.get_mut(&key).unwrap().block.release())),
        ("of an object that has not changed", vec![leaf], |trees, key| {
            let other = NodeKey { object: 77, ..key };
            let block = OwnedBlock::new(other, MetadataProtection::Rolling);
            let mut dirty = Dirty::new(block, 1, StoredCopies::of(&BlockPointer::HOLE), 0);
            dirty.address = Destination::new([500, 501]);
            trees.dirty.insert(other, dirty);
        }),
        ("without a place", vec![leaf], |trees, key| trees.dirty.get_mut(&key).unwrap().address = Destination::NONE),
    ];
    for (what, keys, strike) in strikes {
        for key in keys {
            let rig = Rig::new();
            rig.fill(2, 70);
            let (base, epoch) = (&rig.module.base, rig.module.epoch() + 1);
            let mut trees = rig.module.trees.write();
            guard::open(|| trees.stage(base, epoch)).unwrap();
            strike(&mut trees, key);
            let Err(error) = guard::open(|| trees.seal(base, epoch)) else { panic!("{what}: {key:?} is complete") };
            drop(trees);
            let Error::GivenUp(found) = &error else { panic!("{what}, {key:?}: {error}") };
            let place = &found.place;
            assert!(place.object.is_some() && place.level.is_some() && place.index.is_some(), "{what}: {error}");
            rig.commit_is_given_up();
            rig.begin_anew(|rig| rig.fill(2, 70));
        }
    }
}

/// Where nobody looks who finds his way through a block by what is in the others: in slot 62.
const UNNOTICED: usize = 4000;

/// The baseline of measurements: nothing is noticed.
#[test]
fn without_protection_a_scribble_becomes_a_recovery_point() {
    let map = NodeKey::new(system_key(map_of(DomainId::MAIN)), 0, 0);
    for metadata in [MetadataProtection::Off, MetadataProtection::Rolling] {
        for is_clean in [true, false] {
            let rig = Rig::with(metadata);
            if is_clean {
                rig.scribble_clean(UNNOTICED);
            }
            rig.make(3);
            if !is_clean {
                let mut trees = rig.module.trees.write();
                trees.dirty.get_mut(&map).unwrap().block.scribble(UNNOTICED, &[4]);
            }
            let outcome = rig.commit();
            let module = open(rig.device.clone());
            let trees = module.trees.read();
            let record = &trees.system[&map.object];
            let block = trees.node(&module.base, map.object_key(), record, 0, 0).unwrap().unwrap();
            let place = format!("{metadata:?}, clean: {is_clean}");
            match metadata {
                MetadataProtection::Off => {
                    outcome.unwrap();
                    assert_eq!((block.bytes()[UNNOTICED], rig.scribbles()), (4, 0), "{place}");
                }
                _ => {
                    assert_eq!(outcome.is_ok(), is_clean, "{place}");
                    assert_eq!(block.bytes()[UNNOTICED], 0, "{place}");
                    assert!(rig.scribbles() > 0, "{place}");
                }
            }
        }
    }
}

#[test]
fn without_protection_bits_and_records_are_believed() {
    for metadata in [MetadataProtection::Off, MetadataProtection::Rolling] {
        let is_believed = metadata == MetadataProtection::Off;
        let rig = Rig::with(metadata);
        rig.make(3);
        rig.module.base.alloc.lock().scribble_used(3000);
        assert_eq!(rig.commit().is_ok(), is_believed, "{metadata:?}");

        let rig = Rig::with(metadata);
        rig.make(3);
        let object = ObjectKey { domain: DomainId::MAIN, object: ObjectId(3) };
        match rig.module.trees.write().changed.get_mut(&object) {
            Some(Change::Present(record)) => record.scribble(|record| record.attributes.uid = 4711),
            _ => panic!("it was just made"),
        }
        assert_eq!(rig.commit().is_ok(), is_believed, "{metadata:?}");
        let stored = open(rig.device.clone()).attributes(object).map(|attributes| attributes.uid);
        assert_eq!(stored.ok(), is_believed.then_some(4711), "{metadata:?}");
    }
}

#[test]
fn a_store_is_the_same_with_and_without_protection() {
    let image = |metadata| {
        let rig = Rig::with(metadata);
        for id in 3..40 {
            rig.make(id);
        }
        rig.fill(3, 100);
        rig.commit().unwrap();
        rig.fill(2, 70);
        rig.delete(3);
        rig.delete(17);
        rig.commit().unwrap();
        rig.stored();
        rig.image()
    };
    let off = image(MetadataProtection::Off);
    for metadata in [MetadataProtection::Rolling, MetadataProtection::Audited, MetadataProtection::Compared] {
        let differs = off.chunks(4096).zip(image(metadata).chunks(4096)).position(|(off, other)| off != other);
        assert_eq!(differs, None, "block, {metadata:?}");
    }
}

#[test]
fn a_scribble_on_a_clean_block_is_read_again_before_it_is_changed() {
    let rig = Rig::new();
    let before = rig.stored();
    rig.scribble_clean(UNNOTICED);
    rig.make(3);
    rig.commit().unwrap();
    assert!(rig.scribbles() >= 2, "the object table and the map of objects at least: {}", rig.scribbles());
    assert_eq!(rig.stored(), (before.0 + 1, before.1 + 1));
}

#[test]
fn a_scribble_on_a_clean_block_is_read_again_before_it_answers_if_nobody_has_looked_for_a_second() {
    let object = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
    let attributes = Rig::new().module.attributes(object).unwrap();
    let found = |rig: &Rig| rig.module.trees().find(&rig.module.base, object).map(|record| record.unwrap().attributes);
    let mut answers = Vec::new();
    for at in 2 * RECORD_BYTES..3 * RECORD_BYTES {
        let rig = Rig::new();
        rig.scribble_clean(at);
        rig.clock.advance_ns(1_000_000_000);
        assert_eq!(found(&rig).unwrap(), attributes, "byte {at}");
        assert_eq!(rig.scribbles(), 1, "byte {at}");
        // Within the second, only who keeps what it says has it verified.
        let rig = Rig::new();
        rig.scribble_clean(at);
        let answer = found(&rig);
        answers.push(answer.is_ok_and(|answer| answer == attributes));
        assert_eq!(rig.scribbles(), 0, "byte {at}");
        assert_eq!(rig.module.attributes(object).unwrap(), attributes, "byte {at}");
        assert_eq!(rig.scribbles(), 1, "byte {at}");
    }
    assert!(answers.contains(&false), "what was scribbled is nothing that attributes are made of");
}

#[test]
fn a_scribbled_block_frees_nothing() {
    const PAGES: u64 = 100;
    for at in [0, 8, UNNOTICED] {
        let rig = Rig::new();
        rig.make(3);
        rig.fill(2, PAGES);
        rig.fill(3, PAGES);
        rig.commit().unwrap();
        let used = rig.used();
        rig.scribble_clean_of(ObjectId(2), at);
        rig.delete(2);
        rig.commit().unwrap();
        assert!(rig.scribbles() >= 2, "two leaves: {}", rig.scribbles());
        rig.stored();
        assert!(rig.used() <= used - PAGES, "{} of {used}", rig.used());

        // One that has been changed cannot be read again.
        rig.fill(3, PAGES);
        let key = NodeKey { domain: 1, object: 3, level: 1, index: 0 };
        rig.module.trees.write().dirty.get_mut(&key).unwrap().block.scribble(at, &[4]);
        assert!(matches!(rig.try_delete(3), Err(Error::GivenUp(_))));
        rig.commit_is_given_up();
        rig.begin_anew(|rig| rig.delete(3));
    }
}

/// Where labels have a size, superblocks a count; and where both have their checksum, and reserved bytes.
const FIELDS: [usize; 4] = [68, 137, 3000, 4090];

/// Scrubs the labels; how many of their blocks were written anew.
fn scrub_labels(module: &Module) -> u64 {
    let step = module.scrub_step(&ScrubCursor::Start, 1).unwrap();
    assert_eq!(step.counts.unrepaired, 0, "{step:?}");
    step.counts.repaired
}

#[test]
fn what_is_known_of_the_device_is_read_again_before_it_is_written_anywhere() {
    for at in FIELDS {
        let rig = Rig::new();
        let before = rig.stored();
        rig.module.sealed.scribble(true, at, 0x10);
        rig.module.sealed.scribble(false, at, 0x10);
        assert_eq!(scrub_labels(&rig.module), 0, "at {at}: good blocks were replaced by what memory says");
        assert_eq!(rig.scribbles(), 2);
        assert_eq!(rig.stored(), before);

        rig.module.sealed.scribble(false, at, 0x10);
        rig.make(3);
        rig.commit().unwrap();
        rig.module.sealed.scribble(true, at, 0x10);
        rig.module.sealed.scribble(false, at, 0x10);
        rig.module.close().unwrap();
        assert_eq!(rig.scribbles(), 5);
        assert_eq!(rig.stored(), (before.0 + 1, before.1 + 2));
    }
}

#[test]
fn what_batches_of_the_log_name_is_made_again_if_it_has_gone_bad() {
    let rig = Rig::new();
    let disk = rig.module.disk();
    for at in [0, 15] {
        rig.module.sealed.scribble_gist(at);
        let gist = rig.module.sealed.gist(disk).unwrap();
        assert_eq!((gist.store, gist.epoch), (rig.module.store_uuid(), rig.module.epoch()));
    }
    assert_eq!(rig.scribbles(), 2);
    rig.make(3);
    rig.commit().unwrap();
    assert_eq!(rig.module.sealed.gist(disk).unwrap().epoch, rig.module.epoch());
    assert_eq!(rig.scribbles(), 2);
}

/// Flips a bit of each clean page of the reference table: counters of blocks that are shared, or are not.
#[test]
fn a_scribbled_counter_frees_no_block_that_is_shared() {
    const PAGES: u64 = 100;
    let rig = Rig::new();
    rig.fill(2, PAGES);
    rig.make(3);
    let copy = Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 0,
        pages: PAGES / 2,
        size_min: PAGES / 2 * PAGE_SIZE as u64,
    };
    let epoch = rig.module.epoch() + 1;
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops: vec![copy] }).unwrap();
    rig.commit().unwrap();
    let counters: Vec<(NodeKey, u64, Vec<usize>)> = {
        let (base, trees) = (&rig.module.base, rig.module.trees.read());
        let (key, record) = (system_key(REFERENCES), &trees.system[&REFERENCES]);
        let pointers = trees.pages(base, key, record, 0, 8).unwrap();
        let stored = pointers.iter().enumerate().filter(|(_, pointer)| !pointer.is_hole());
        stored
            .map(|(page, pointer)| {
                let block = trees.node(base, key, record, 0, page as u64).unwrap().unwrap();
                let shared = (0..1024).filter(|slot| block.counter(*slot) != 0).map(|slot| slot * 4).collect();
                (NodeKey::new(key, 0, page as u64), pointer.address[0], shared)
            })
            .collect()
    };
    assert_eq!(counters.iter().map(|(.., shared)| shared.len() as u64).sum::<u64>(), PAGES / 2);
    for (node, address, shared) in counters {
        let base = &rig.module.base;
        let mut block = base.cache.take(node, address).expect("it was just read");
        // One becomes none.
        shared.iter().for_each(|at| Arc::make_mut(&mut block).scribble(*at, &[1]));
        base.keep(node, address, 1, block);
    }
    rig.delete(2);
    rig.commit().unwrap();
    assert!(rig.scribbles() > 0);
    rig.stored();
}

#[test]
fn a_superblock_that_goes_bad_before_it_is_written_is_never_written() {
    for at in FIELDS {
        let rig = Rig::new();
        let before = rig.stored();
        rig.make(3);
        let epoch = rig.module.epoch() + 1;
        rig.module.prepare(epoch).unwrap();
        rig.module.committing.lock().prepared.as_mut().unwrap().scribbled().scribble(at, &[0x10], false);
        let error = rig.module.publish(epoch).unwrap_err();
        assert!(error.to_string().contains("in memory, to which somebody has written"), "{error}");
        assert!(matches!(rig.module.prepare(epoch + 1), Err(Error::GivenUp(_))), "no later epoch is built upon it");
        assert_eq!(rig.stored(), before, "at {at}");
        rig.begin_anew(|rig| rig.make(3));
    }
}

#[test]
fn an_epoch_that_goes_bad_before_its_superblock_is_written_is_begun_anew() {
    let rig = Rig::new();
    let before = rig.stored();
    rig.make(3);
    let epoch = rig.module.epoch() + 1;
    rig.module.prepare(epoch).unwrap();
    assert!(matches!(rig.module.publish(epoch + 1), Err(Error::Protocol(_))));
    rig.module.committing.lock().prepared.as_mut().unwrap().epoch ^= 4;
    let error = rig.module.publish(epoch).unwrap_err();
    assert!(matches!(error, Error::GivenUp(_)), "{error}");
    assert!(error.to_string().contains("epoch of superblock in memory, to which somebody has written"), "{error}");
    assert_eq!((rig.stored(), rig.scribbles()), (before, 1));
    rig.begin_anew(|rig| rig.make(3));
}

/// Before it is given, when it is, and when the block goes away before it gets there.
#[test]
fn no_block_is_written_or_freed_where_only_a_scribble_says() {
    let leaf = NodeKey { domain: 1, object: 2, level: 1, index: 0 };
    for (is_staged, is_deleted, flipped) in
        [(false, false, [1 << 9, 0]), (true, false, [1 << 3, 0]), (true, false, [0, 1 << 4]), (true, true, [1 << 3, 0])]
    {
        let rig = Rig::new();
        rig.fill(2, 70);
        rig.commit().unwrap();
        rig.write(2, 5).unwrap();
        let (before, free) = (rig.stored(), alloc_of(&rig).free_after_publish());
        let mut trees = rig.module.trees.write();
        if is_staged {
            guard::open(|| trees.stage(&rig.module.base, before.1 + 1)).unwrap();
        }
        let mut cells = trees.dirty.get_mut(&leaf).unwrap().address.cells();
        cells.flip(0, &u64::to_le_bytes(flipped[0]));
        cells.flip(16, &u64::to_le_bytes(flipped[1]));
        drop(trees);
        if is_deleted {
            rig.delete_is_refused(2);
            let tree_blocks = 2 * 2;
            assert!(alloc_of(&rig).free_after_publish() < free + 70 + tree_blocks, "no block of another one is free");
        }
        rig.commit_is_given_up();
        assert_eq!(rig.module.status().counters.audit_failures, 0);
        rig.begin_anew(|rig| rig.write(2, 5).unwrap());
    }
}

#[test]
fn a_copy_goes_nowhere_if_somebody_has_written_to_its_address() {
    let rig = Rig::new();
    rig.fill(2, 70);
    let epoch = rig.module.epoch() + 1;
    let mut trees = rig.module.trees.write();
    let (mut writes, _) = guard::open(|| {
        trees.stage(&rig.module.base, epoch).unwrap();
        trees.seal(&rig.module.base, epoch)
    })
    .unwrap();
    assert!(addressed(&rig.module.base, &writes).is_ok());
    *writes[3].address.scribbled() ^= 1 << 5;
    let Err(error) = addressed(&rig.module.base, &writes) else { panic!("it is written") };
    assert!(matches!(error, Error::GivenUp(_)), "{error}");
    assert!(error.to_string().contains("address to which a block is written in memory, to which"), "{error}");
}

/// It need not be the one that is being built now: batches of several epochs become one recovery point.
#[test]
fn it_is_told_when_a_block_was_last_changed_legally() {
    let rig = Rig::new();
    rig.make(3);
    rig.fill(2, 70);
    rig.fill(3, 70);
    rig.commit().unwrap();
    let epoch = rig.module.epoch() + 1;
    rig.write(2, 5).unwrap();
    rig.write_in(3, 5, epoch + 2).unwrap();
    let leaf = |object| NodeKey { domain: 1, object, level: 1, index: 0 };
    rig.module.trees.write().dirty.get_mut(&leaf(2)).unwrap().block.scribble(7, &[1]);
    let error = rig.module.prepare(epoch + 2).unwrap_err().to_string();
    assert!(error.ends_with(&format!("last changed legally for epoch {epoch}")), "{error}");
}

#[test]
fn three_failures_in_a_row_are_enough_whatever_they_are() {
    let rig = Rig::new();
    let before = rig.stored();
    let strikes: [fn(&Rig); 3] = [
        |rig| changed_in(rig, 3, |record| record.attributes.mode ^= 1),
        |rig| alloc_of(rig).miscount_free(),
        |rig| rig.module.trees.write().audit.cells().flip(0, &[1]),
    ];
    let mut told = Vec::new();
    for (round, strike) in strikes.into_iter().enumerate() {
        rig.make(3);
        strike(&rig);
        told.push(rig.commit().unwrap_err().to_string());
        assert_eq!(rig.module.begin_anew().is_err(), round == 2, "{told:?}");
    }
    assert!(
        told[0].contains("record") && told[1].contains("a logic bug") && told[2].contains("of the audit"),
        "{told:?}"
    );
    assert!(matches!(rig.try_make(3), Err(Error::ReadOnly(_))));
    assert_eq!(rig.stored(), before);
}

#[test]
fn what_is_kept_for_a_reader_is_not_while_an_epoch_is_begun_anew() {
    let rig = Rig::new();
    let frozen = Arc::new(rig.module.freeze().unwrap());
    rig.fill(2, 3);
    rig.commit().unwrap();
    assert_eq!(frozen.over(), None);
    rig.make(3);
    let epoch = rig.module.epoch() + 1;
    rig.module.prepare(epoch).unwrap();
    rig.module.committing.lock().prepared.as_mut().unwrap().scribbled().scribble(0, &[0x10], false);
    rig.module.publish(epoch).unwrap_err();
    rig.begin_anew(|rig| rig.make(3));
    assert!(frozen.over().is_some_and(|why| why.contains("anew")));
    assert!(check(frozen, &CheckOptions::default()).is_err());
}

#[test]
fn another_recovery_point_is_not_taken_for_the_last_one() {
    let rig = Rig::new();
    let before = rig.stored();
    rig.module.sealed.scribble_epoch();
    assert_eq!(rig.module.superblock().unwrap().epoch, before.1);
    assert_eq!(rig.module.epoch(), before.1, "one of the two is good");
    rig.module.sealed.scribble_epoch();
    rig.module.sealed.scribble(false, 3000, 0x10);
    rig.delete_is_refused(3);
    assert_eq!(rig.stored(), before);
}

#[test]
fn a_last_superblock_that_goes_bad_everywhere_is_written_from_memory() {
    let rig = Rig::new();
    let before = rig.stored();
    let superblock = rig.module.superblock().unwrap();
    for label in 0..LABELS {
        let block = ring_block(label, slot(superblock.epoch), rig.module.blocks());
        rig.device.alter(block, |bytes| bytes[700] ^= 1).unwrap();
    }
    assert_eq!(scrub_labels(&rig.module), LABELS as u64);
    assert_eq!(rig.stored(), before);
}

type Write = fn(&Rig);

fn alloc_of(rig: &Rig) -> parking_lot::MutexGuard<'_, crate::alloc::Alloc> {
    rig.module.base.alloc.lock()
}

/// A block of a page of object 2, as the last recovery point has it.
fn page_of(rig: &Rig) -> u64 {
    let (trees, key) = (rig.module.trees.read(), ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) });
    let record = trees.get(&rig.module.base, key).unwrap();
    trees.pages(&rig.module.base, key, &record, 3, 1).unwrap()[0].address[0]
}

fn changed(rig: &Rig, write: fn(&mut Record)) {
    changed_in(rig, 2, write);
}

fn changed_in(rig: &Rig, id: u64, write: fn(&mut Record)) {
    let mut trees = rig.module.trees.write();
    let change = trees.changed.get_mut(&ObjectKey { domain: DomainId::MAIN, object: ObjectId(id) });
    let Some(Change::Present(record)) = change else { panic!("it has been written to") };
    record.scribble(write);
}

fn system(rig: &Rig, id: u64, write: fn(&mut Record)) {
    rig.module.trees.write().system.get_mut(&id).unwrap().scribble(write);
}
