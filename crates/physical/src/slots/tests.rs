//! What cannot be, put into each kind of block by who may change it.

use super::*;
use crate::commit::tests::{Rig, open};
use crate::format::blockptr::PointerKind;
use crate::meta_block::MetadataProtection;
use crate::objects::{BITMAP, REFERENCES, dead_of, map_of, orphans_of, snapshots_of, system_key, table_of};
use holdfast_integrity::{Checksum, StoredSums};
use holdfast_object::{Attributes, Class, Kind, ObjectId, ObjectKey, ObjectStore, SnapshotId, Timestamp};

const MAIN: DomainId = DomainId::MAIN;
const LEAF: NodeKey = NodeKey { domain: 1, object: 2, level: 1, index: 0 };
const NEVER: Epoch = 1000;

fn pointer(address: u64) -> BlockPointer {
    let sums = StoredSums::of(Checksum::crc64(0));
    let (address, kind) = ([address, 0], PointerKind::Data);
    BlockPointer { address, birth_phys: 1, birth_log: 1, kind, level: 0, seeded: false, sums }
}

fn record() -> Record {
    let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
    Record::object(attributes, 1)
}

fn snapshot() -> StoredSnapshot {
    StoredSnapshot {
        id: SnapshotId(7),
        name: "planted".into(),
        created: Timestamp { secs: 1, nanos: 0 },
        epoch: 1,
        objects: 1,
        metadata_before: 0,
        is_deleted: false,
        table: Record::system(SystemKind::ObjectTable, 1),
    }
}

/// Makes a page of one of the store's own objects one to change.
fn page(rig: &Rig, trees: &mut Trees, id: u64, page: u64) -> NodeKey {
    let (base, key) = (&rig.module.base, system_key(id));
    trees.with_system(base, id, |trees, record| trees.make_dirty(base, key, record, 0, page)).unwrap();
    NodeKey::new(key, 0, page)
}

fn put_record(rig: &Rig, trees: &mut Trees, record: &Record) -> NodeKey {
    let key = page(rig, trees, table_of(MAIN), 0);
    trees.dirty_mut(key).put_record(7, &record.encode());
    key
}

fn put_snapshot(rig: &Rig, trees: &mut Trees, snapshot: &StoredSnapshot) -> NodeKey {
    let key = page(rig, trees, snapshots_of(MAIN), 0);
    trees.dirty_mut(key).put_snapshot(3, &snapshot.encode());
    key
}

fn put_run(rig: &Rig, trees: &mut Trees, run: DeadRun) -> NodeKey {
    let key = page(rig, trees, dead_of(MAIN), 0);
    trees.dirty_mut(key).put_dead_run(100, &run);
    key
}

fn put_pointer(trees: &mut Trees, pointer: BlockPointer) -> NodeKey {
    trees.dirty_mut(LEAF).put_pointer(60, &pointer);
    LEAF
}

/// Gives the block that has it now.
type Plant = fn(&Rig, &mut Trees) -> NodeKey;

const RUN: DeadRun = DeadRun { address: [500, 0], birth_log: 1, count: 1, is_page: true };

/// What is wrong, in which slot, and who puts it there.
const PLANTS: [(&str, usize, Plant); 19] = [
    ("address", 60, |_, trees| put_pointer(trees, pointer(5))),
    ("address", 60, |_, trees| put_pointer(trees, pointer(1 << 20))),
    ("births", 60, |_, trees| put_pointer(trees, BlockPointer { birth_log: NEVER, ..pointer(500) })),
    ("level of block pointer", 60, |_, trees| put_pointer(trees, BlockPointer { level: 1, ..pointer(500) })),
    ("kind of block pointer", 60, |_, trees| {
        put_pointer(trees, BlockPointer { kind: PointerKind::Tree, ..pointer(500) })
    }),
    ("address", 50, |rig, trees| {
        let key = page(rig, trees, table_of(MAIN), 1).parent().0;
        trees.dirty_mut(key).put_pointer(50, &BlockPointer { seeded: true, ..pointer(5) });
        key
    }),
    ("kind of object record", 7, |rig, trees| {
        let key = page(rig, trees, table_of(MAIN), 0);
        let mut bytes = record().encode();
        bytes[0] = 99;
        trees.dirty_mut(key).put_record(7, &bytes);
        key
    }),
    ("kind of object record", 7, |rig, trees| put_record(rig, trees, &Record::system(SystemKind::Bitmap, 1))),
    ("epochs of object record", 7, |rig, trees| put_record(rig, trees, &Record { changed: NEVER, ..record() })),
    ("address", 7, |rig, trees| put_record(rig, trees, &Record { root: pointer(5), ..record() })),
    ("level of block pointer", 7, |rig, trees| {
        put_record(
            rig,
            trees,
            &Record { levels: 1, root: BlockPointer { kind: PointerKind::Tree, ..pointer(500) }, ..record() },
        )
    }),
    ("number of snapshot", 3, |rig, trees| {
        put_snapshot(rig, trees, &StoredSnapshot { id: SnapshotId(0xFFFF), ..snapshot() })
    }),
    ("epoch of snapshot", 3, |rig, trees| put_snapshot(rig, trees, &StoredSnapshot { epoch: NEVER, ..snapshot() })),
    ("blocks of dead run", 100, |rig, trees| put_run(rig, trees, DeadRun { address: [5, 0], ..RUN })),
    ("birth of dead run", 100, |rig, trees| put_run(rig, trees, DeadRun { birth_log: NEVER, ..RUN })),
    ("bit", 0, |rig, trees| {
        let key = page(rig, trees, map_of(MAIN), 0);
        trees.dirty_mut(key).set_bit(0, true);
        key
    }),
    ("bit", 0, |rig, trees| {
        let key = page(rig, trees, orphans_of(MAIN), 0);
        trees.dirty_mut(key).set_bit(0, true);
        key
    }),
    ("references", 4, |rig, trees| {
        let key = page(rig, trees, REFERENCES, 0);
        trees.dirty_mut(key).put_counter(4, 1);
        key
    }),
    ("bit", 0, |rig, _| {
        assert!(rig.module.base.free(3), "a label's");
        NodeKey::new(system_key(BITMAP), 0, 0)
    }),
];

/// With something of each kind, and an object of which a page is written in the epoch being built.
fn rig(protection: MetadataProtection) -> Rig {
    let rig = Rig::with(protection);
    let (epoch, at) = (rig.module.epoch() + 1, Timestamp { secs: 1, nanos: 0 });
    rig.module.snapshot_create(MAIN, epoch, "before", at).unwrap();
    rig.make(9);
    rig.fill(2, 4);
    rig.commit().unwrap();
    rig.fill(2, 1);
    rig
}

#[test]
fn nothing_that_cannot_be_is_written_whatever_is_audited() {
    use MetadataProtection::*;
    for ((what, slot, plant), protection) in
        PLANTS.into_iter().flat_map(|plant| [Rolling, Audited, Compared].map(|how| (plant, how)))
    {
        let rig = rig(protection);
        let before = rig.stored();
        let key = plant(&rig, &mut rig.module.trees.write());
        let error = rig.commit().expect_err(what);
        assert!(matches!(error, Error::GivenUp(_)), "{what}: {error}");
        let (error, place) = (error.to_string(), key.place(&rig.module.base.disk, 0));
        let place = Place { address: None, ..place }.to_string();
        assert!(error.contains(&format!("slot {slot} of {place}")), "{what}, {protection:?}: {error}");
        assert!(error.contains(&format!(": {what}: expected ")), "{what}, {protection:?}: {error}");
        assert!(error.contains("a logic bug, to be reported"), "{what}, {protection:?}: {error}");
        let counters = rig.module.status().counters;
        assert_eq!((counters.audit_failures, counters.scribbles), (1, 0), "{what}, {protection:?}");
        assert_eq!(rig.stored(), before, "{what}, {protection:?}");
        rig.module.begin_anew().unwrap();
        rig.fill(2, 1);
        rig.commit().unwrap_or_else(|error| panic!("{what}, {protection:?}: {error}"));
    }
}

#[test]
fn what_cannot_be_is_told_of_each_block_that_is_read() {
    for (what, slot, plant) in PLANTS {
        let rig = rig(MetadataProtection::Off);
        let key = plant(&rig, &mut rig.module.trees.write());
        rig.commit().unwrap();
        let module = open(rig.device.clone());
        let (base, trees) = (&module.base, module.trees.read());
        let counters = &base.disk.counters;
        if key.object_key() == system_key(BITMAP) {
            assert_eq!(counters.blocks_repaired(), 1, "rebuilt from the trees");
            continue;
        }
        let record = match key.object_key() {
            key if key.domain == DomainId::SYSTEM => Record::clone(&trees.system[&key.object.0]),
            key => trees.get(base, key).unwrap(),
        };
        let node = trees.node(base, key.object_key(), &record, key.level, key.index).map(|block| block.is_some());
        if key.level > 0 {
            let error = node.expect_err(what).to_string();
            assert!(error.contains(&format!("{what} in slot {slot}: expected ")), "{what}: {error}");
            assert_eq!(counters.blocks_unrepaired(), 1, "{what}: it is met");
            continue;
        }
        assert!(node.unwrap_or_else(|error| panic!("{what}: {error}")), "{what}: what else it has serves");
        assert_eq!(counters.blocks_unrepaired() + counters.blocks_with_remains(), 1, "{what}");
        let object = |id| trees.find(base, ObjectKey { domain: MAIN, object: ObjectId(id) });
        assert_eq!(object(7).is_err(), key.object == table_of(MAIN), "{what}");
        assert!(object(2).unwrap().is_some(), "{what}");
    }
}

/// It can be what it says, and no equation counts it.
#[test]
fn no_record_is_put_of_an_object_that_has_not_changed() {
    use MetadataProtection::*;
    for protection in [Rolling, Audited, Compared] {
        let rig = rig(protection);
        rig.make(5);
        rig.commit().unwrap();
        let before = rig.stored();
        rig.fill(2, 1);
        {
            let mut trees = rig.module.trees.write();
            let key = page(&rig, &mut trees, table_of(MAIN), 0);
            let mut record = trees.get(&rig.module.base, ObjectKey { domain: MAIN, object: ObjectId(5) }).unwrap();
            record.attributes.mode ^= 0o20;
            trees.dirty_mut(key).put_record(5, &record.encode());
        }
        let error = rig.commit().expect_err("it is in the block").to_string();
        let expected = "record: expected one of an object that the epoch has changed, got that of 5";
        assert!(error.contains("slot 5 of ") && error.contains(expected), "{protection:?}: {error}");
        let counters = rig.module.status().counters;
        assert_eq!((counters.audit_failures, counters.scribbles), (1, 0), "{protection:?}");
        assert_eq!(rig.stored(), before, "{protection:?}");
        rig.module.begin_anew().unwrap();
        rig.fill(2, 1);
        rig.commit().unwrap();
    }
}

/// A value that was there before is nobody's mistake now.
#[test]
fn only_what_has_changed_is_judged_of_what_is_written() {
    let limits = Limits { newest: 5, blocks: 1000 };
    for (slot, changed, is_found) in [(8, 0, false), (8, 8 * 64, true), (8, 9 * 64, false), (63, 63 * 64, true)] {
        let mut bytes = [0; 4096];
        bytes[slot * 64..][..64].copy_from_slice(&pointer(5).encode());
        let mut parts = Parts::default();
        parts.add(changed, 64);
        assert_eq!(check(&bytes, LEAF, parts, limits).is_err(), is_found, "slot {slot}, changed at {changed}");
        assert_eq!(check(&bytes, LEAF, Parts::ALL, limits).unwrap_err().slot, slot);
    }
}

#[test]
fn parts_are_those_that_have_a_byte_that_has_changed() {
    for bytes in [1, 4, 8, 32, 64, 65, 512, 1024, 4096] {
        for at in (0..=4096 - bytes).step_by(4) {
            let mut parts = Parts::default();
            parts.add(at, bytes);
            let expected: Vec<usize> = (at / 64..=(at + bytes - 1) / 64).collect();
            assert_eq!(parts.each().collect::<Vec<_>>(), expected, "{bytes} bytes at {at}");
        }
    }
}

#[test]
fn numbers_outside_of_a_range() {
    for first in [0, 64, 960, 1024, 6400] {
        for (start, end) in [(32, 968), (1, 1 << 35), (0, 0), (64, 64), (1000, 1010)] {
            let slowly = (0..64).filter(|bit| !(start..end).contains(&(first + bit)));
            let expected = slowly.fold(0, |bits, bit| bits | 1u64 << bit);
            assert_eq!(outside(&(start..end), first), expected, "{first}, {start} to {end}");
        }
    }
}
