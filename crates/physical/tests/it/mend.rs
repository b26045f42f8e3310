//! What is put right when a store is opened: labels, superblocks, the bitmap; and by the check.

use crate::damage::{DAMAGES, damage_tree, read_all, sample, strike};
use crate::rig::*;
use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice, Operation};
use holdfast_object::{Error, Kind, ObjectId, ObjectStore, Op, Purpose};
use holdfast_physical::check::{BlockRole, BlockUse, CheckOptions, FindingKind, block_uses, check};
use holdfast_physical::{LABELS, Module, OpenOptions, RING_SLOTS, label_start};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A device with blocks that cannot be read until they are written.
struct Unreadable {
    device: Arc<MemoryDevice>,
    bad: Mutex<BTreeSet<u64>>,
}

fn unreadable(device: &MemoryDevice, blocks: &[u64]) -> Arc<Unreadable> {
    Arc::new(Unreadable { device: Arc::new(device.clone()), bad: Mutex::new(blocks.iter().copied().collect()) })
}

fn range(first: u64, bytes: usize) -> std::ops::Range<u64> {
    first..first + bytes as u64 / 4096
}

impl Filter for Unreadable {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BlockError> {
        let length = bufs.iter().map(|buf| buf.len()).sum();
        match self.bad.lock().range(range(first, length)).next() {
            None => self.device.read(first, bufs),
            Some(&bad) => Err(BlockError::Io {
                device: "unreadable".into(),
                operation: Operation::Read,
                first: Some(bad),
                length_bytes: 4096,
                source: Arc::new(std::io::Error::other("planted")),
            }),
        }
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), BlockError> {
        let length = bufs.iter().map(|buf| buf.len()).sum();
        self.bad.lock().retain(|block| !range(first, length).contains(block));
        self.device.write(first, bufs)
    }
}

/// The store with each damage of DAMAGES, and with read errors, in these blocks.
fn damaged(image: &MemoryDevice, blocks: &[u64]) -> Vec<(&'static str, Arc<MemoryDevice>, Arc<dyn Device>)> {
    let mut devices: Vec<(&str, Arc<MemoryDevice>, Arc<dyn Device>)> = Vec::new();
    for (name, damage) in DAMAGES {
        let device = Arc::new(image.clone());
        blocks.iter().for_each(|&block| device.alter(block, damage).unwrap());
        if device.snapshot() != image.snapshot() {
            devices.push((name, device.clone(), device));
        }
    }
    let device = unreadable(image, blocks);
    devices.push(("read error", device.device.clone(), device));
    devices
}

fn blocks_of(rig: &Rig, which: impl Fn(&BlockUse) -> bool) -> Vec<u64> {
    block_uses(rig.device.clone()).unwrap().iter().filter(|used| which(used)).map(|used| used.block).collect()
}

fn open_read_only(rig: &Rig, device: Arc<dyn Device>) -> Module {
    Module::open(device, rig.arena.clone(), rig.clock.clone(), &OpenOptions::read_only()).unwrap()
}

fn assert_clean(device: &Arc<dyn Device>, what: &str) {
    let report = check(device.clone(), &CheckOptions::default()).unwrap();
    assert_eq!(report.findings, [], "{what}");
}

#[test]
fn a_damaged_label_or_superblock_is_counted_and_written_anew() {
    let rig = sample();
    let at = |label: usize| label_start(label, rig.device.blocks());
    let newest = 1 + rig.module.epoch() % RING_SLOTS;
    for block in (0..LABELS).flat_map(|label| [at(label), at(label) + newest]) {
        for (name, medium, device) in damaged(&rig.device, &[block]) {
            let what = format!("{name} of block {block}");
            let before = medium.snapshot();
            let module = open_read_only(&rig, device.clone());
            let counts = (module.status().repaired, module.status().unrepaired);
            assert_eq!(counts, (0, 1), "{what}, opened for reading only");
            assert!(medium.snapshot() == before, "{what}");
            let module = rig.open_on(device.clone()).unwrap();
            let counts = (module.status().repaired, module.status().unrepaired);
            assert_eq!(counts, (1, 0), "{what}");
            assert!(medium.snapshot() == rig.device.snapshot(), "{what}");
            let module = rig.open_on(device).unwrap();
            assert_eq!(module.status().repaired, 0, "{what}, opened again");
        }
    }
}

#[test]
fn an_older_superblock_is_taken_from_another_label_and_a_torn_one_emptied() {
    let rig = sample();
    let slot = 1 + (rig.module.epoch() - 1) % RING_SLOTS;
    let torn = 1 + (rig.module.epoch() + 1) % RING_SLOTS;
    let device = Arc::new(rig.device.as_ref().clone());
    device.alter(slot, |block| block[77] ^= 1).unwrap();
    device.alter(torn, |block| block[..512].fill(0x11)).unwrap();
    let module = rig.open_on(device.clone()).unwrap();
    assert_eq!(module.status().repaired, 1, "the torn one is nobody's copy");
    assert!(device.snapshot() == rig.device.snapshot());
}

/// Of a recovery point that all labels have lost nothing else tells: that it may be missing is told when the store is checked and opened.
#[test]
fn a_newest_superblock_that_is_gone_everywhere_is_noticed() {
    for points in [1, RING_SLOTS + 2] {
        let mut rig = sample();
        for point in 0..points {
            let write = rig.write_op(2, &[(point, pattern(point))]);
            rig.apply(vec![write]);
            rig.commit();
        }
        let epoch = rig.module.epoch();
        let older = epoch - 1;
        for (what, fill) in [("dropped", 0), ("overwritten", 0x35)] {
            let device = Arc::new(rig.device.as_ref().clone());
            for label in 0..LABELS {
                let slot = label_start(label, device.blocks()) + 1 + epoch % RING_SLOTS;
                device.alter(slot, |block| block.fill(fill)).unwrap();
            }
            let report = check(device.clone(), &CheckOptions::default()).unwrap();
            let of_rings = report.findings.iter().filter(|finding| finding.kind == FindingKind::Superblock);
            assert_eq!((report.epoch, of_rings.count()), (older, LABELS + 1), "{what}: {:?}", report.findings);
            let repaired = Arc::new(device.as_ref().clone());
            let report = check(repaired, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
            let left: Vec<_> = report.findings.iter().filter(|finding| !finding.repaired).collect();
            assert!(left.len() == 1 && left[0].what.contains("may be lost"), "{what}: {left:?}");
            assert_eq!(open_read_only(&rig, device.clone()).unknown_slots(), 1, "{what}");
            let module = rig.open_on(device.clone()).unwrap();
            assert_eq!((module.epoch(), module.unknown_slots()), (older, 1), "{what}");
            let module = rig.open_on(device.clone()).unwrap();
            assert_eq!(module.unknown_slots(), 0, "{what}: marked when it was first opened");
            let report = check(device, &CheckOptions::default()).unwrap();
            assert!(report.findings.iter().all(|finding| finding.kind != FindingKind::Superblock), "{what}");
        }
    }
}

/// Changes what the sample has, and looks at it again after the next opening.
fn change_and_reopen(rig: &mut Rig, what: &str) {
    let write = rig.write_op(2, &[(3, pattern(33)), (6000, pattern(34))]);
    rig.apply(vec![create_op(9, Kind::Regular), write]);
    rig.commit();
    assert_clean(&rig.top, what);
    rig.reopen();
    assert_eq!((rig.module.status().repaired, rig.module.status().unrepaired), (0, 0), "{what}");
    assert_eq!(rig.read(2, 3, 2), [Some(pattern(33)), Some(pattern(4))], "{what}");
    assert_eq!(rig.read_one(3, 9), Some(pattern(9)), "{what}");
}

#[test]
fn an_unreadable_bitmap_is_rebuilt_from_the_trees() {
    let bad = blocks_of(&sample(), |used| used.role == BlockRole::Bitmap);
    assert_eq!(bad.len(), 2);
    for (number, (name, ..)) in damaged(&sample().device, &bad).into_iter().enumerate() {
        let mut rig = sample();
        let (epoch, space) = (rig.module.epoch(), rig.module.status().space);
        let (_, medium, device) = damaged(&rig.device, &bad).swap_remove(number);
        let before = medium.snapshot();
        (rig.device, rig.top) = (medium, device);
        rig.reopen();
        let status = rig.module.status();
        assert_eq!((status.epoch, status.read_only), (epoch, None), "{name}");
        assert_eq!((status.repaired, status.unrepaired), (1, 0), "{name}");
        assert_eq!((status.space.free, status.space.pending), (space.free, 2), "{name}: the old bitmap's blocks");
        assert!(rig.device.snapshot() == before, "{name}: not written before the next epoch");
        read_all(&rig, &rig.module).unwrap();
        rig.module.close().unwrap();
        assert!(rig.device.snapshot() == before, "{name}: not called clean without a bitmap");
        change_and_reopen(&mut rig, name);
        rig.commit();
        rig.module.close().unwrap();
        rig.reopen();
        assert!(rig.module.is_clean(), "{name}");
    }
}

#[test]
fn a_bitmap_of_many_blocks_is_rebuilt_when_its_tree_block_is_gone() {
    let mut rig = Rig::new(3 * 32_768 - 100);
    let write = rig.write_op(2, &[(0, pattern(0)), (3, pattern(3)), (4, pattern(4))]);
    let copy =
        Op::Copy { source: ObjectId(2), source_first: 0, target: ObjectId(3), target_first: 9, pages: 1, size_min: 0 };
    rig.apply(vec![create_op(2, Kind::Regular), create_op(3, Kind::Regular), write]);
    rig.commit();
    rig.apply(vec![copy]);
    rig.commit();
    let is_tree = |used: &BlockUse| {
        used.role == BlockRole::Tree && used.object.is_some_and(|key| key.domain.0 == 0 && key.object.0 == 1)
    };
    let bad = blocks_of(&rig, is_tree);
    assert_eq!(bad.len(), 2);
    for &block in &bad {
        rig.device.alter(block, |block| block[9] ^= 1).unwrap();
    }
    rig.reopen();
    assert_eq!((rig.module.status().read_only, rig.module.status().repaired), (None, 1));
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    rig.check();
    assert_eq!(rig.read_one(2, 0), Some(pattern(0)));
}

#[test]
fn a_bitmap_that_says_something_else_than_the_superblock_is_rebuilt() {
    let mut rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let data = uses.iter().find(|used| used.role == BlockRole::Data).unwrap().block;
    let bitmap = uses.iter().find(|used| used.role == BlockRole::Bitmap).unwrap();
    strike(&rig.device, &uses, bitmap, |bytes| bytes[(data / 8) as usize] &= !(1 << (data % 8)));
    rig.reopen();
    assert_eq!((rig.module.status().read_only, rig.module.status().repaired), (None, 1));
    change_and_reopen(&mut rig, "a block in use and free in the bitmap");
}

/// What is under an unreadable block might be taken for free.
#[test]
fn a_bitmap_is_not_rebuilt_from_trees_that_cannot_be_read() {
    let rig = sample();
    let bitmap = blocks_of(&rig, |used| used.role == BlockRole::Bitmap);
    let hiding = |used: &BlockUse| matches!(used.role, BlockRole::Tree | BlockRole::ObjectTable);
    let main = |used: &BlockUse| used.object.is_some_and(|key| key.domain.0 == 1 || key.object.0 == 16);
    let uses = block_uses(rig.device.clone()).unwrap();
    let mut seen = 0;
    for used in uses.iter().filter(|used| used.copy == 0 && hiding(used) && main(used)) {
        let device = Arc::new(rig.device.as_ref().clone());
        let same =
            |other: &&BlockUse| (other.object, other.level, other.index) == (used.object, used.level, used.index);
        for block in uses.iter().filter(same).map(|used| used.block).chain(bitmap.iter().copied()) {
            device.alter(block, |block| block[500] ^= 8).unwrap();
        }
        let before = device.snapshot();
        let module = rig.open_on(device.clone()).unwrap();
        let status = module.status();
        assert_eq!(status.epoch, rig.module.epoch(), "{used:?}: the newest recovery point");
        let reason = status.read_only.unwrap();
        let place = format!("block {}", used.block);
        assert!(reason.contains("bitmap cannot be read") && reason.contains(&place), "{used:?}: {reason}");
        assert!(matches!(module.reserve(3, 1, Purpose::Ordinary), Err(Error::ReadOnly(_))));
        if used.role == BlockRole::Tree && used.object == Some(key(2)) {
            assert_eq!(read(&module, &rig.arena, 3, 0, 1).unwrap(), [Some(pattern(0))]);
        }
        assert!(device.snapshot() == before);
        seen += 1;
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn the_check_gives_leaked_blocks_back() {
    let mut rig = sample();
    let free = rig.module.status().space.free;
    // A page of object 2 is shared, and its references would stay.
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    let image = rig.device.as_ref().clone();
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Leaked), "{report:?}");
    assert!(report.found > 0 && rig.device.snapshot() == image.snapshot());
    let before = rig.module.status().space.free;
    let report = check(rig.device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert_eq!((report.unrepaired(), report.repaired), (0, report.found), "{report:?}");
    assert!(report.findings.iter().all(|finding| finding.repaired));
    rig.check();
    rig.reopen();
    assert!(rig.module.status().space.free >= before + 64, "{before}, {free}");
    assert_eq!(rig.read_one(1, 0), Some(pattern(100)));
    // Not while something else hides what it uses.
    for used in block_uses(Arc::new(image.clone())).unwrap() {
        if used.role == BlockRole::ObjectTable && used.object.is_some_and(|key| key.object.0 == 16) {
            image.alter(used.block, |block| block[4] ^= 1).unwrap();
        }
    }
    let before = image.snapshot();
    let report = check(Arc::new(image.clone()), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert!(report.unrepaired() > 0 && image.snapshot() == before);
}
