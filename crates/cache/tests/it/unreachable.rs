//! A tree block of one file cannot be read from either copy: what lies under it is an error until it is written again, all else goes on.

use crate::during::Gate;
use crate::rig::{Rig, pattern};
use holdfast_block::MemoryDevice;
use holdfast_object::*;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Pages of the file; the first leaf of its tree has 64 of them.
const PAGES: usize = 100;

/// A store with a file whose first leaf is damaged in both copies, that file, and a whole one.
fn rig() -> (Rig, ObjectId, ObjectId) {
    damaged(is_leaf_gone)
}

/// The same, and it is the block above its leaves.
fn damaged_root() -> (Rig, ObjectId) {
    let (rig, broken, _) = damaged(is_root_gone);
    (rig, broken)
}

fn is_leaf_gone(rig: &Rig, broken: ObjectId) -> bool {
    // Without the leaf the first page is gone and the last is not.
    is_unreadable(rig, broken, 0) && !is_unreadable(rig, broken, PAGES as u64 - 1)
}

fn is_root_gone(rig: &Rig, broken: ObjectId) -> bool {
    let read = rig.cache.read(broken, 0, 1);
    matches!(&read, Err(Error::Corrupt(why)) if why.place.level == Some(2) && why.place.object == Some(key(broken)))
}

/// Leaves of a file that take up all memory for clean metadata.
const LEAVES: u64 = 400;

/// The same, and the block goes bad once these operations on the damaged file and the whole one have been admitted: it is not in memory any more.
fn damaged_after(
    is: impl Fn(&Rig, ObjectId) -> bool,
    ops: impl Fn(ObjectId, ObjectId) -> Vec<Op>,
) -> (Rig, ObjectId, ObjectId) {
    let (rig, [broken, whole], _) = damaged_behind_gate(is, ops);
    (rig, broken, whole)
}

/// The same, with what can hold a write.
fn damaged_behind_gate(
    is: impl Fn(&Rig, ObjectId) -> bool,
    ops: impl Fn(ObjectId, ObjectId) -> Vec<Op>,
) -> (Rig, [ObjectId; 2], Arc<Gate>) {
    let (sound, hurt, [broken, whole]) = to_damage(is);
    let (before, after) = (sound.snapshot(), hurt.snapshot());
    let device = Arc::new(sound);
    let (gate, front) = Gate::on(device.clone());
    let rig = Rig::forgetful(device, front);
    let other = rig.create(Kind::Regular);
    for leaf in 0..LEAVES {
        rig.write(other, leaf * 64 * PAGE_SIZE as u64, b"other").unwrap();
    }
    rig.cache.sync_all().unwrap();
    rig.submit(ops(broken, whole)).unwrap();
    for leaf in 0..LEAVES {
        rig.module.seek(key(other), leaf * 64, Seek::Hole).unwrap();
    }
    let blocks = before.chunks(PAGE_SIZE).zip(after.chunks(PAGE_SIZE));
    for (at, (_, bad)) in (0..).zip(blocks).filter(|(_, (good, bad))| good != bad) {
        rig.device.alter(at, |block| block.copy_from_slice(bad)).unwrap();
    }
    (rig, [broken, whole], gate)
}

fn key(object: ObjectId) -> ObjectKey {
    ObjectKey { domain: DomainId::MAIN, object }
}

fn is_unreadable(rig: &Rig, id: ObjectId, page: u64) -> bool {
    matches!(rig.cache.read(id, page, 1), Err(Error::Corrupt(_)))
}

/// A store with a file of which a block of its tree is damaged in both copies, so that this `is` so, that file, and a whole one.
fn damaged(is: impl Fn(&Rig, ObjectId) -> bool) -> (Rig, ObjectId, ObjectId) {
    let (_, hurt, [broken, whole]) = to_damage(&is);
    let rig = Rig::open_through(hurt.clone(), hurt);
    assert!(is(&rig, broken));
    (rig, broken, whole)
}

/// A store with two files as it is, and the same with a block of the first one's tree damaged in both copies, so that this `is` so.
fn to_damage(is: impl Fn(&Rig, ObjectId) -> bool) -> (MemoryDevice, Arc<MemoryDevice>, [ObjectId; 2]) {
    let rig = Rig::new(2048);
    let (broken, whole) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(broken, 0, &pattern(1, PAGES * PAGE_SIZE)).unwrap();
    rig.write(whole, 0, b"whole").unwrap();
    rig.cache.close().unwrap();
    let device = rig.device.clone();
    drop(rig);
    let mut copies: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
    for (at, block) in device.snapshot().chunks(PAGE_SIZE).enumerate() {
        copies.entry(block.to_vec()).or_default().push(at as u64);
    }
    // Metadata is what is there twice.
    let pairs = copies.into_values().filter(|at| at.len() == 2);
    for pair in pairs {
        let hurt = Arc::new(MemoryDevice::from_bytes(&device.snapshot()));
        for &at in &pair {
            hurt.alter(at, |block| block[4000] ^= 1).unwrap();
        }
        let as_is = hurt.snapshot();
        let Ok(rig) = catch_unwind(AssertUnwindSafe(|| Rig::open_through(hurt.clone(), hurt.clone()))) else {
            continue;
        };
        if is(&rig, broken) {
            let hurt = Arc::new(MemoryDevice::from_bytes(&as_is));
            return (MemoryDevice::from_bytes(&device.snapshot()), hurt, [broken, whole]);
        }
    }
    panic!("no such block found");
}

fn page(rig: &Rig, id: ObjectId, index: usize) -> Result<Vec<u8>> {
    match &rig.cache.read(id, index as u64, 1)?[0] {
        PageView::Data(page) => Ok(page.verify().expect("verified page").to_vec()),
        PageView::Zero => Ok(vec![0; PAGE_SIZE]),
    }
}

fn new_pages(rig: &Rig, broken: ObjectId, whole: ObjectId) {
    rig.write(broken, 3 * PAGE_SIZE as u64, &pattern(2, PAGE_SIZE)).unwrap();
    rig.write(broken, 70 * PAGE_SIZE as u64, &pattern(3, PAGE_SIZE)).unwrap();
    rig.write(whole, 0, b"WHOLE").unwrap();
}

fn what_was_written_is_there(rig: &Rig, broken: ObjectId, whole: ObjectId) {
    assert!(page(rig, broken, 3).unwrap() == pattern(2, PAGE_SIZE));
    assert!(matches!(page(rig, broken, 4), Err(Error::Lost { side: Side::Device, .. })), "and not zeroes");
    assert!(page(rig, broken, 70).unwrap() == pattern(3, PAGE_SIZE));
    assert_eq!(rig.contents(whole).unwrap(), b"WHOLE");
}

#[test]
fn an_epoch_stores_the_page_with_a_leaf_made_anew() {
    let (rig, broken, whole) = rig();
    new_pages(&rig, broken, whole);
    let epoch = rig.cache.sync_all().unwrap();
    what_was_written_is_there(&rig, broken, whole);
    rig.cache.sync(broken, Durability::All).expect("nothing to tell");
    rig.cache.check();
    assert!(rig.cache.status().read_only.is_none());
    let rig = rig.power_cut();
    assert!(rig.recovered.from >= epoch);
    what_was_written_is_there(&rig, broken, whole);
}

#[test]
fn a_replay_stores_the_page_with_a_leaf_made_anew() {
    let (rig, broken, whole) = rig();
    new_pages(&rig, broken, whole);
    rig.cache.sync(broken, Durability::All).unwrap();
    rig.cache.sync(whole, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!((rig.recovered.batches, rig.recovered.lost.len()), (2, 0));
    what_was_written_is_there(&rig, broken, whole);
}

/// Pages are cut off, and fsync says so: the file is as short afterwards.
#[test]
fn a_file_is_cut_within_a_leaf_that_cannot_be_read() {
    let (rig, broken, _) = rig();
    let cut = |rig: &Rig, pages: usize| {
        rig.submit(vec![Op::Truncate { id: broken, size: (pages * PAGE_SIZE) as u64 }]).unwrap();
        rig.cache.sync(broken, Durability::All).unwrap();
    };
    cut(&rig, 10);
    cut(&rig, 20);
    let rig = rig.power_cut().remount();
    assert_eq!(rig.cache.attributes(broken).unwrap().size, (20 * PAGE_SIZE) as u64);
    assert!(matches!(page(&rig, broken, 9), Err(Error::Lost { .. })));
    assert!(page(&rig, broken, 10).unwrap() == [0; PAGE_SIZE]);
}

/// A block above leaves is not made anew: who waits for what is under it is told, and by nobody that it is durable.
#[test]
fn a_sync_under_an_unreadable_block_above_leaves_tells() {
    let (rig, broken) = damaged_root();
    for sync_all_first in [false, true] {
        rig.write(broken, 3 * PAGE_SIZE as u64, &pattern(2, PAGE_SIZE)).unwrap();
        if sync_all_first {
            rig.cache.sync_all().unwrap();
        }
        let told = rig.cache.sync(broken, Durability::All);
        assert!(matches!(&told, Err(Error::Corrupt(why)) if why.what == "tree block above the page"), "{told:?}");
        rig.cache.sync(broken, Durability::All).expect("once");
        assert!(page(&rig, broken, 3).is_err(), "neither the new bytes nor zeroes");
    }
    rig.cache.check();
    let rig = rig.power_cut();
    assert_eq!((rig.recovered.batches, rig.recovered.lost.len()), (0, 0));
    assert!(page(&rig, broken, 3).is_err());
}

fn is_refused(outcome: Result<Outcome>, of: ObjectId) -> bool {
    matches!(&outcome, Err(Error::Corrupt(why)) if why.place.object == Some(key(of)))
}

fn copy(source: ObjectId, target: ObjectId) -> Op {
    let size_min = (PAGES * PAGE_SIZE) as u64;
    Op::Copy { source, source_first: 0, target, target_first: 0, pages: PAGES as u64, size_min }
}

/// Nothing is copied of what cannot be read, and who copies is told.
#[test]
fn a_copy_of_a_file_with_an_unreadable_tree_block_is_refused() {
    for is in [is_leaf_gone, is_root_gone] {
        let (rig, broken, whole) = damaged(is);
        assert!(is_refused(rig.submit(vec![copy(broken, whole)]), broken));
        rig.cache.sync(whole, Durability::All).unwrap();
        assert_eq!(rig.contents(whole).unwrap(), b"whole");
        assert_eq!(rig.power_cut().contents(whole).unwrap(), b"whole");
    }
}

/// What goes bad between the copy and its recovery point is an error in the copy, whose sync tells, and all else is there.
#[test]
fn a_sync_of_a_copy_that_has_lost_pages_tells() {
    let (rig, _, whole) = damaged_after(is_leaf_gone, |broken, whole| vec![copy(broken, whole)]);
    // The first page that the copy loses is not missed, the others are.
    rig.write(whole, 0, &pattern(9, PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    let told = rig.cache.sync(whole, Durability::All);
    assert!(matches!(&told, Err(Error::Corrupt(why)) if why.what == "tree block above the page"), "{told:?}");
    rig.cache.sync(whole, Durability::All).expect("once");
    let is_right = |rig: &Rig| {
        assert!(page(rig, whole, 0).unwrap() == pattern(9, PAGE_SIZE));
        assert!(matches!(page(rig, whole, 3), Err(Error::Lost { side: Side::Device, .. })));
        assert!(page(rig, whole, 70).unwrap() == pattern(1, PAGES * PAGE_SIZE)[70 * PAGE_SIZE..][..PAGE_SIZE]);
    };
    is_right(&rig);
    is_right(&rig.power_cut());
}

/// Each page of such a run is missed for itself: others are told of though the first one is written while the recovery point is, or after it.
#[test]
fn a_sync_tells_of_the_pages_of_a_copy_that_are_lost_beside_newer_ones() {
    for is_after in [false, true] {
        let (rig, [_, whole], gate) = damaged_behind_gate(is_leaf_gone, |broken, whole| vec![copy(broken, whole)]);
        let write = |first: u64, pages: usize| {
            rig.write(whole, first * PAGE_SIZE as u64, &pattern(9, pages * PAGE_SIZE)).unwrap()
        };
        gate.during(
            || rig.cache.sync_all().unwrap(),
            || {
                if !is_after {
                    write(0, 1);
                }
            },
        );
        if is_after {
            write(0, 1);
        }
        assert_eq!(rig.cache.bad_objects(), [(whole, 63)]);
        let told = rig.cache.sync(whole, Durability::All);
        assert!(matches!(&told, Err(Error::Corrupt(why)) if why.place.index < Some(64)), "{told:?}");
        rig.cache.sync(whole, Durability::All).expect("once");
        assert!(page(&rig, whole, 0).unwrap() == pattern(9, PAGE_SIZE));
        assert!(matches!(page(&rig, whole, 1), Err(Error::Lost { side: Side::Device, .. })));
        assert!(is_copy_refused(&rig, whole), "nothing is copied of what is lost without a word");
        write(1, 63);
        assert_eq!(rig.cache.bad_objects(), []);
        rig.cache.sync(whole, Durability::All).expect("nothing is missing");
        rig.cache.check();
    }
}

fn is_copy_refused(rig: &Rig, source: ObjectId) -> bool {
    let target = rig.create(Kind::Regular);
    is_refused(rig.submit(vec![copy(source, target)]), source)
}

/// What a copy has lost and all of which has been written anew is told to nobody, whatever memory is free, and nothing of it is read for that.
#[test]
fn pages_of_a_copy_that_were_lost_and_written_anew_are_not_missed() {
    let (rig, _, whole) = damaged_after(is_leaf_gone, |broken, whole| vec![copy(broken, whole)]);
    rig.write(whole, 0, &pattern(9, 64 * PAGE_SIZE)).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| rig.arena.allocate()).collect();
    let reads = || rig.cache.store_status().counters.device_reads;
    let before = reads();
    rig.cache.sync_all().unwrap();
    assert!(reads() - before < 64, "{} reads", reads() - before);
    drop(held);
    rig.cache.sync(whole, Durability::All).expect("nothing is missing");
    assert!(page(&rig, whole, 0).unwrap() == pattern(9, PAGE_SIZE));
    rig.cache.check();
}

const CUT: u64 = (10 * PAGE_SIZE) as u64;

fn cuts(id: ObjectId) -> [Op; 2] {
    [Op::Truncate { id, size: CUT }, Op::Zero { id, offset: CUT, length: CUT }]
}

/// Neither a truncation nor a hole goes through a block above leaves that cannot be read: it is refused, and the file is shown as it is.
#[test]
fn what_would_be_passed_over_is_refused() {
    let (rig, broken) = damaged_root();
    let is_as_it_was = |rig: &Rig| {
        assert_eq!(rig.cache.attributes(broken).unwrap().size, (PAGES * PAGE_SIZE) as u64);
        assert!(is_unreadable(rig, broken, 20), "and not zeroes");
    };
    for op in cuts(broken) {
        assert!(is_refused(rig.submit(vec![op]), broken));
        is_as_it_was(&rig);
    }
    rig.cache.sync(broken, Durability::All).expect("nothing to tell");
    // It may grow.
    let size = (PAGES * PAGE_SIZE) as u64 + CUT;
    rig.submit(vec![Op::Truncate { id: broken, size }]).unwrap();
    rig.cache.sync(broken, Durability::All).unwrap();
    rig.cache.check();
    let rig = rig.power_cut();
    assert_eq!(rig.cache.attributes(broken).unwrap().size, size);
    assert!(is_unreadable(&rig, broken, 20));
}

/// Who tries again, and again is refused, has no recovery point made for it, whatever else is waiting for one: what has been admitted of the file is there.
#[test]
fn what_is_refused_again_costs_no_recovery_point() {
    let (rig, broken, whole) = damaged(is_root_gone);
    let epoch = || rig.cache.store_status().epoch;
    let before = epoch();
    let ops = cuts(broken).into_iter().chain([copy(broken, whole), copy(whole, broken)]);
    rig.write(whole, 0, b"WHOLE").unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(rig.create(Kind::Regular), 0, b"waiting").unwrap();
    assert_eq!(epoch(), before + 1);
    for op in ops {
        assert!(is_refused(rig.submit(vec![op]), broken));
        assert_eq!(epoch(), before + 1);
    }
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id: broken, set }]).unwrap();
    for _ in 0..2 {
        assert!(is_refused(rig.submit(vec![cuts(broken)[0].clone()]), broken));
        assert_eq!(epoch(), before + 2, "once for what was waiting of it");
    }
}

/// The same if the block goes bad between the operation and its recovery point: it is passed over, and who waits for it is told.
#[test]
fn a_sync_of_what_is_passed_over_tells() {
    for at in 0..2 {
        let (rig, broken, _) = damaged_after(is_root_gone, |broken, _| vec![cuts(broken)[at].clone()]);
        rig.cache.sync_all().unwrap();
        let told = rig.cache.sync(broken, Durability::All);
        assert!(matches!(&told, Err(Error::Corrupt(why)) if why.what == "tree block above the page"), "{told:?}");
        rig.cache.sync(broken, Durability::All).expect("once");
        // Its size is another one here than in the store from now on: no later epoch takes that for a mistake.
        for mode in [0o600, 0o640] {
            let set = AttrSet { mode: Some(mode), ..AttrSet::default() };
            rig.submit(vec![Op::SetAttributes { id: broken, set }]).unwrap();
            rig.cache.sync_all().unwrap();
        }
        rig.cache.check();
        let rig = rig.power_cut();
        assert_eq!((rig.recovered.batches, rig.recovered.lost.len()), (0, 0));
        assert_eq!(rig.cache.attributes(broken).unwrap().mode, 0o640);
        assert_eq!(rig.cache.attributes(broken).unwrap().size, (PAGES * PAGE_SIZE) as u64);
    }
}

/// A truncation to nothing needs nothing of what is damaged. What comes behind it in the same epoch is admitted, and the damage is told to nobody.
#[test]
fn what_is_removed_already_stands_in_nobodys_way() {
    for writes in [false, true] {
        let (rig, broken) = damaged_root();
        for size in [0, 20, 15] {
            rig.submit(vec![Op::Truncate { id: broken, size: size * PAGE_SIZE as u64 }]).unwrap();
        }
        let expected = if writes { pattern(2, PAGE_SIZE) } else { vec![0; PAGE_SIZE] };
        if writes {
            rig.write(broken, 10 * PAGE_SIZE as u64, &expected).unwrap();
        }
        rig.cache.sync_all().unwrap();
        rig.cache.sync(broken, Durability::All).expect("nothing to tell");
        let is_right = |rig: &Rig| assert!(page(rig, broken, 10).unwrap() == expected);
        is_right(&rig);
        rig.cache.check();
        let rig = rig.power_cut();
        is_right(&rig);
        assert_eq!(rig.cache.attributes(broken).unwrap().size, 15 * PAGE_SIZE as u64);
    }
}

/// One that is passed over, and another one behind it in the same epoch that needs nothing of what is damaged: nothing is amiss, be the page that tells of
/// the first a hole by then, or written anew.
#[test]
fn what_is_passed_over_and_superfluous_is_told_to_nobody() {
    for writes in [false, true] {
        let (rig, broken, _) = damaged_after(is_root_gone, |broken, _| {
            let to = |pages: u64| Op::Truncate { id: broken, size: pages * PAGE_SIZE as u64 };
            vec![to(10), to(0), to(20)]
        });
        let expected = if writes { pattern(2, PAGE_SIZE) } else { vec![0; PAGE_SIZE] };
        if writes {
            rig.write(broken, 10 * PAGE_SIZE as u64, &expected).unwrap();
        }
        rig.cache.sync_all().unwrap();
        rig.cache.sync(broken, Durability::All).expect("nothing to tell");
        assert!(page(&rig, broken, 10).unwrap() == expected);
        rig.cache.check();
        let rig = rig.power_cut();
        assert!(page(&rig, broken, 10).unwrap() == expected);
        assert_eq!(rig.cache.attributes(broken).unwrap().size, 20 * PAGE_SIZE as u64);
    }
}
