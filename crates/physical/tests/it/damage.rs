//! Damaged, foreign, truncated devices.

use crate::rig::*;
use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::{Algorithm, crc64};
use holdfast_object::{
    DomainId, Error, Kind, LogBatch, ObjectId, ObjectKey, ObjectStore, Op, PAGE_SIZE, PageSource, Result, Side,
    Timestamp,
};
use holdfast_physical::check::{BlockRole, BlockUse, CheckOptions, FindingKind, block_uses, check};
use holdfast_physical::{LABELS, Module, label_start};
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::sync::Arc;

const BLOCKS: u64 = 1024;

/// A store with all kinds of blocks.
pub(crate) fn sample() -> Rig {
    let mut rig = Rig::new(BLOCKS);
    let mut ops = vec![create_op(1, Kind::Directory), create_op(2, Kind::Regular), create_op(3, Kind::Regular)];
    ops.push(rig.write_op(1, &[(0, pattern(100)), (1, pattern(101))]));
    let pages: Vec<_> = (0..70).map(|index| (index, pattern(index))).collect();
    ops.push(rig.write_op(2, &pages));
    ops.push(rig.write_op(2, &[(5000, pattern(5000))]));
    let set = holdfast_object::AttrSet { nlink: Some(0), ..Default::default() };
    ops.push(Op::SetAttributes { id: ObjectId(3), set });
    rig.apply(ops);
    rig.apply(vec![Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 0,
        pages: 10,
        size_min: 0,
    }]);
    rig.commit();
    rig
}

/// Reads everything that the sample has, and says what is wrong, if something is.
pub(crate) fn read_all(rig: &Rig, module: &Module) -> Result<()> {
    let pages = |id: u64, first: u64, count: usize| read(module, &rig.arena, id, first, count);
    let found = module.objects(DomainId::MAIN, ObjectId(0), 100)?;
    assert_eq!(found.len(), 3);
    assert_eq!(module.orphans(DomainId::MAIN)?, [ObjectId(3)]);
    assert_eq!(pages(1, 0, 2)?, [Some(pattern(100)), Some(pattern(101))]);
    for index in (0..70).chain([5000]) {
        assert_eq!(pages(2, index, 1)?[0], Some(pattern(index)));
    }
    for index in 0..10 {
        assert_eq!(pages(3, index, 1)?[0], Some(pattern(index)));
    }
    Ok(())
}

pub(crate) type Damage = fn(&mut [u8; PAGE_SIZE]);

/// A flipped bit, a lost write (older contents: here zeros), a torn one, a misdirected one (another block's contents).
pub(crate) const DAMAGES: [(&str, Damage); 4] = [
    ("flip", |block| block[1234] ^= 0x10),
    ("lost", |block| block.fill(0)),
    ("torn", |block| block[2048..].fill(0xa5)),
    ("misdirected", |block| block.copy_from_slice(&pattern(4711))),
];

#[test]
fn every_kind_of_block_damaged_once_is_repaired_or_named() {
    let rig = sample();
    let image = rig.device.as_ref().clone();
    let uses = block_uses(rig.device.clone()).unwrap();
    let roles: HashSet<BlockRole> = uses.iter().map(|used| used.role).collect();
    assert_eq!(roles.len(), 9, "{roles:?}");
    for BlockUse { block, role, copy, object, level, index, .. } in uses {
        for (name, damage) in DAMAGES {
            let device = Arc::new(image.clone());
            device.alter(block, damage).unwrap();
            if device.snapshot() == image.snapshot() {
                continue;
            }
            let what = format!("{name} of {role:?} copy {copy} at {block} ({object:?} level {level} index {index})");
            let report = check(device.clone(), &CheckOptions::default()).unwrap();
            assert!(report.found > 0 && report.repaired == 0, "{what}: {report:?}");
            let module = rig.open_on(device.clone()).unwrap();
            let outcome = read_all(&rig, &module);
            if role == BlockRole::Data {
                match outcome {
                    Err(Error::Corrupt(corruption)) => {
                        assert_eq!(corruption.place.address, Some(block), "{what}");
                        assert!(corruption.place.object.is_some() && corruption.place.index.is_some());
                    }
                    other => panic!("{what}: {other:?}"),
                }
                assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Unreadable));
                continue;
            }
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            let report = check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
            assert_eq!(report.unrepaired(), 0, "{what}: {report:?}");
            let report = check(device.clone(), &CheckOptions::default()).unwrap();
            assert_eq!(report.found, 0, "{what}: {report:?}");
        }
    }
}

#[test]
fn both_copies_damaged_give_an_error_with_the_place_and_never_wrong_bytes() {
    let rig = sample();
    let image = rig.device.as_ref().clone();
    let uses = block_uses(rig.device.clone()).unwrap();
    // The bitmap can be made again from the trees: see `mend`.
    let beyond_repair = |used: &&BlockUse| {
        used.copy == 0 && used.object.is_some() && !matches!(used.role, BlockRole::Data | BlockRole::Bitmap)
    };
    for first in uses.iter().filter(beyond_repair) {
        let device = Arc::new(image.clone());
        for used in &uses {
            if (used.object, used.level, used.index) == (first.object, first.level, first.index) {
                device.alter(used.block, |block| block[99] ^= 1).unwrap();
            }
        }
        let before = device.snapshot();
        let report = check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() });
        match report {
            Ok(report) => {
                assert!(report.findings.iter().any(|finding| finding.kind == FindingKind::Unreadable), "{first:?}");
                assert!(report.unrepaired() > 0);
            }
            Err(error) => assert!(matches!(error, Error::Corrupt(_)), "{error}"),
        }
        assert!(device.snapshot() == before, "nothing could be repaired");
        let outcome = rig.open_on(device.clone()).and_then(|module| match module.epoch() {
            2 => read_all(&rig, &module),
            // An older recovery point, for reading only.
            _ => Err(Error::ReadOnly(module.status().read_only.unwrap())),
        });
        // A damaged reference table is found by the check, or when one of its blocks is freed.
        if first.role != BlockRole::References {
            match outcome {
                Err(Error::Corrupt(_)) => {}
                Err(Error::ReadOnly(reason)) => assert!(reason.contains("damaged"), "{reason}"),
                other => panic!("{first:?}: {other:?}"),
            }
        }
    }
}

/// Object 2's tree blocks of a level with this number (all numbers with `None`) are damaged in both copies.
pub(crate) fn damage_tree(rig: &Rig, level: u8, index: Option<u64>) {
    let uses = block_uses(rig.device.clone()).unwrap();
    let is = |used: &&BlockUse| {
        used.role == BlockRole::Tree
            && used.object == Some(key(2))
            && used.level == level
            && index.is_none_or(|index| used.index == index)
    };
    let blocks: Vec<u64> = uses.iter().filter(is).map(|used| used.block).collect();
    assert!(!blocks.is_empty() && blocks.len().is_multiple_of(2));
    for block in blocks {
        rig.device.alter(block, |block| block[5] ^= 1).unwrap();
    }
}

/// The check finds only what is unreadable, and what stays in use below it.
pub(crate) fn assert_consistent(rig: &Rig) {
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let is_expected =
        |kind| matches!(kind, FindingKind::Unreadable | FindingKind::Leaked | FindingKind::UnusedReferences);
    assert!(report.findings.iter().all(|finding| is_expected(finding.kind)), "{report:?}");
}

pub(crate) fn page_of(id: u64, index: u64) -> (ObjectId, u64) {
    (ObjectId(id), index)
}

#[test]
fn a_damaged_object_can_be_deleted_and_the_others_live() {
    let mut rig = sample();
    for level in 1..=3 {
        damage_tree(&rig, level, None);
    }
    rig.reopen();
    assert!(matches!(rig.try_read(2, 0, 1), Err(Error::Corrupt(_))));
    let directory = rig.write_op(1, &[(0, pattern(200))]);
    rig.apply(vec![Op::Delete { id: ObjectId(2) }, directory]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read_one(1, 0), Some(pattern(200)));
    assert_eq!(rig.read_one(3, 9), Some(pattern(9)));
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    assert!(
        report
            .findings
            .iter()
            .all(|finding| { matches!(finding.kind, FindingKind::Leaked | FindingKind::UnusedReferences) })
    );
    put_right(&mut rig);
    assert_eq!(rig.read_one(3, 9), Some(pattern(9)));
}

/// Blocks that nothing names stay in use, and all else fits together; the check frees them.
pub(crate) fn free_leaked(rig: &mut Rig) {
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let kinds: HashSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, HashSet::from([FindingKind::Leaked]), "{report:?}");
    put_right(rig);
}

/// All that the check finds, it repairs.
pub(crate) fn put_right(rig: &mut Rig) {
    let report = check(rig.device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert!(report.found > 0 && report.unrepaired() == 0, "{report:?}");
    rig.check();
    rig.reopen();
}

pub(crate) fn is_lost(rig: &Rig, id: u64, page: u64) -> bool {
    let found = rig.module.read(key(id), page, &mut rig.frames(1));
    matches!(found.as_deref(), Ok([PageSource::Lost(Side::Device)]))
}

#[test]
fn an_unreadable_block_above_pages_is_made_anew_with_what_is_written() {
    let mut rig = sample();
    // No page of it is shared: what becomes of references is another matter.
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    let free = rig.module.status().space.free;
    let damaged = rig.write_op(2, &[(0, pattern(1)), (63, pattern(2)), (64, pattern(300)), (5001, pattern(301))]);
    let directory = rig.write_op(1, &[(0, pattern(200))]);
    let applied = rig.apply(vec![damaged, directory]);
    assert_eq!((applied.rejected.len(), applied.written.len()), (0, 5));
    // Four pages of the file, two copies of the directory's.
    assert_eq!(rig.module.status().space.free, free - 6);
    // 7 that can be read, with page 5000, and three of the new ones.
    assert_eq!(rig.module.attributes(key(2)).unwrap().blocks, 7 + 3);
    rig.commit();
    rig.reopen();
    assert_eq!((rig.read_one(2, 0), rig.read_one(2, 63)), (Some(pattern(1)), Some(pattern(2))));
    assert!((1..63).all(|page| is_lost(&rig, 2, page)), "and never zeros");
    assert_eq!(rig.read(2, 64, 2), [Some(pattern(300)), Some(pattern(65))]);
    assert_eq!(rig.read(2, 5000, 2), [Some(pattern(5000)), Some(pattern(301))]);
    assert_eq!(rig.read_one(1, 0), Some(pattern(200)));
    free_leaked(&mut rig);
    // What is written again is mended.
    let write = rig.write_op(2, &[(7, pattern(7))]);
    rig.apply(vec![write]);
    rig.commit();
    assert_eq!(rig.read_one(2, 7), Some(pattern(7)));
    rig.check();
}

/// A file of two leaves, and one of 200, each with holes. Of the small one the pages are counted; of the other one that would keep everyone waiting for all
/// of its blocks.
#[test]
fn the_pages_of_a_small_tree_are_counted_if_a_block_of_it_is_made_anew() {
    for (leaves, is_small) in [(2, true), (200, false)] {
        let mut rig = Rig::new(2048);
        let pages: Vec<_> = (0..3).chain((1..leaves).map(|leaf| leaf * 64)).map(|page| (page, pattern(page))).collect();
        let write = rig.write_op(2, &pages);
        rig.apply(vec![create_op(2, Kind::Regular), write]);
        rig.commit();
        damage_tree(&rig, 1, Some(0));
        rig.reopen();
        let reads = rig.module.status().counters.device_reads;
        let write = rig.write_op(2, &[(1, pattern(500))]);
        assert_eq!(rig.apply(vec![write]).rejected, []);
        let reads = rig.module.status().counters.device_reads - reads;
        assert!(reads < 40, "{reads}");
        rig.commit();
        assert_eq!(rig.module.attributes(key(2)).unwrap().blocks == leaves, is_small);
        if is_small {
            free_leaked(&mut rig);
        }
    }
}

/// The same of a pointer that makes no sense.
#[test]
fn a_pointer_that_makes_no_sense_behind_the_end_of_its_file_becomes_a_hole() {
    let mut rig = sample();
    rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 67 * PAGE_SIZE as u64 }]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let leaf = uses.iter().find(|used| used.object == Some(key(2)) && (used.level, used.index) == (1, 1)).unwrap();
    strike(&rig.device, &uses, leaf, |block| {
        block[64..128].fill(0xff);
        block[10 * 64..11 * 64].fill(0xff);
    });
    rig.reopen();
    assert!(rig.try_read(2, 64, 1).is_err());
    let write = rig.write_op(2, &[(76, pattern(1))]);
    assert_eq!(rig.apply(vec![write]).rejected, []);
    rig.commit();
    rig.reopen();
    assert!(is_lost(&rig, 2, 65));
    assert_eq!(rig.read_one(2, 64), Some(pattern(64)));
    assert_eq!(rig.read(2, 74, 3), [None, None, Some(pattern(1))]);
}

/// Behind the end are zeros, so nothing is lost there: the file may grow.
#[test]
fn what_a_block_made_anew_has_behind_the_end_of_its_file_is_a_hole() {
    let mut rig = sample();
    rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 67 * PAGE_SIZE as u64 + 5 }]);
    rig.commit();
    damage_tree(&rig, 1, Some(1));
    rig.reopen();
    let write = rig.write_op(2, &[(70, pattern(1))]);
    rig.apply(vec![write]);
    rig.commit();
    rig.reopen();
    assert!((64..68).all(|page| is_lost(&rig, 2, page)));
    assert_eq!(rig.read(2, 68, 4), [None, None, Some(pattern(1)), None]);
}

/// The snapshot has the block that cannot be read, and nobody knows what under it: that stays in use until the snapshot is gone, with the block.
#[test]
fn a_block_made_anew_leaves_the_bad_one_to_a_snapshot() {
    let mut rig = sample();
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    let id = rig.module.snapshot_create(DomainId::MAIN, rig.next_epoch(), "kept", Timestamp::default()).unwrap();
    rig.commit();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    let write = rig.write_op(2, &[(5, pattern(500))]);
    assert_eq!(rig.apply(vec![write]).rejected, []);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read_one(2, 5), Some(pattern(500)));
    let report = check(rig.device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.repaired)).collect();
    let copy = (FindingKind::Unreadable, false);
    assert_eq!(found, [copy, copy], "{:?}", report.findings);
    rig.reopen();
    while rig.module.snapshot_delete(DomainId::MAIN, rig.next_epoch(), id).unwrap() {
        rig.commit();
    }
    rig.commit();
    assert_eq!(rig.read_one(2, 5), Some(pattern(500)));
    put_right(&mut rig);
}

/// A part that is zeroed, or copied over, is as good as written; of the rest nothing is known.
#[test]
fn what_is_zeroed_or_copied_over_under_an_unreadable_block_is_so() {
    let id = ObjectId(2);
    let page = PAGE_SIZE as u64;
    let zero = Op::Zero { id, offset: 10 * page + 7, length: 10 * page };
    let copy = Op::Copy { source: ObjectId(3), source_first: 0, target: id, target_first: 40, pages: 10, size_min: 0 };
    for (op, changed, first) in [(zero, 11..20, None), (copy, 40..50, Some(pattern(0)))] {
        let mut rig = sample();
        // The pages that both have get blocks of their own, as nobody counts those under a block that cannot be read.
        let own: Vec<_> = (0..10).map(|index| (index, pattern(index))).collect();
        let write = rig.write_op(2, &own);
        rig.apply(vec![write]);
        rig.commit();
        damage_tree(&rig, 1, Some(0));
        rig.reopen();
        rig.apply(vec![op]);
        rig.commit();
        rig.reopen();
        assert_eq!(rig.read_one(2, changed.start), first);
        assert!((0..64).all(|page| is_lost(&rig, 2, page) != changed.contains(&page)));
        free_leaked(&mut rig);
    }
}

/// Of one above others nobody could say how many pages are lost.
#[test]
fn under_an_unreadable_block_above_others_nothing_is_stored_or_logged() {
    let mut rig = sample();
    damage_tree(&rig, 2, Some(0));
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    let free = rig.module.status().space.free;
    assert!(rig.try_read(2, 0, 1).is_err());
    assert!(!log(&mut rig, 3) && log(&mut rig, 5001));
    let damaged = rig.write_op(2, &[(0, pattern(1)), (64, pattern(2)), (5001, pattern(301))]);
    let applied = rig.apply(vec![damaged]);
    assert_eq!(applied.rejected, [page_of(2, 0), page_of(2, 64)]);
    // What was rejected is given back.
    assert_eq!(rig.module.status().space.free, free - 1);
    rig.commit();
    rig.reopen();
    assert!(matches!(rig.try_read(2, 0, 1), Err(Error::Corrupt(_))));
    assert_eq!(rig.read(2, 5000, 2), [Some(pattern(5000)), Some(pattern(301))]);
    assert_consistent(&rig);
}

#[test]
fn operations_that_a_damaged_tree_stops_are_passed_over_as_a_whole() {
    let id = ObjectId(2);
    let page = PAGE_SIZE as u64;
    let copy = |source: u64, target: u64| Op::Copy {
        source: ObjectId(source),
        source_first: 0,
        target: ObjectId(target),
        target_first: 0,
        pages: 68,
        size_min: 0,
    };
    let set = holdfast_object::AttrSet { mode: Some(0o400), ..Default::default() };
    let mut rig = sample();
    damage_tree(&rig, 2, Some(0));
    rig.reopen();
    let size = rig.module.attributes(key(2)).unwrap().size;
    let applied = rig.apply(vec![
        Op::Truncate { id, size: 66 * page + 5 },
        Op::Zero { id, offset: 10 * page, length: 56 * page + 7 },
        Op::Lose { id, pages: vec![66], side: Side::Device },
        copy(3, 2),
        Op::SetAttributes { id, set },
    ]);
    assert_eq!(applied.passed_over, [66, 10, 0].map(|page| page_of(2, page)));
    let attributes = rig.module.attributes(key(2)).unwrap();
    assert_eq!((attributes.size, attributes.mode), (size, 0o400));
    assert!(matches!(rig.try_read(2, 0, 1), Err(Error::Corrupt(_))));
    assert_eq!(rig.read_one(2, 5000), Some(pattern(5000)));
    assert_eq!(rig.read(3, 9, 2), [Some(pattern(9)), None]);
    rig.commit();
    rig.reopen();
    assert_consistent(&rig);
    // What frees the damaged block as a whole is done, and the object is sound again.
    let write = rig.write_op(2, &[(65, pattern(400))]);
    rig.apply(vec![Op::Zero { id, offset: 0, length: 4096 * page + 1 }, write]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(2, 61, 5), [None, None, None, None, Some(pattern(400))]);
    assert_eq!(rig.read_one(2, 5000), Some(pattern(5000)));
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let kinds: HashSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
    let unknown = HashSet::from([FindingKind::Record, FindingKind::Leaked, FindingKind::UnusedReferences]);
    assert_eq!(kinds, unknown, "what was under the block is unknown: {report:?}");
}

/// A leaf is made anew for what is done as a whole, and where something is stored.
#[test]
fn no_block_is_made_anew_for_what_is_passed_over_or_reads_it() {
    let id = ObjectId(2);
    let page = PAGE_SIZE as u64;
    let zero = Op::Zero { id, offset: 10 * page + 7, length: 4990 * page };
    let copy = Op::Copy { source: id, source_first: 0, target: id, target_first: 64, pages: 5, size_min: 0 };
    for (op, is_done) in [(zero, false), (copy, true)] {
        let mut rig = sample();
        damage_tree(&rig, 1, Some(0));
        if !is_done {
            damage_tree(&rig, 2, Some(1));
        }
        rig.reopen();
        rig.apply(vec![op]);
        rig.commit();
        rig.reopen();
        assert!(matches!(rig.try_read(2, 30, 1), Err(Error::Corrupt(_))), "it may come back");
        assert!((64..69).all(|page| is_lost(&rig, 2, page) == is_done));
        assert_eq!(rig.read_one(2, 69), Some(pattern(69)));
    }
}

/// Its other pages are there.
#[test]
fn of_a_block_with_a_pointer_that_makes_no_sense_that_page_is_lost() {
    let mut rig = sample();
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_leaf = |used: &&BlockUse| used.object == Some(key(2)) && (used.level, used.index) == (1, 0);
    let leaf = uses.iter().find(is_leaf).unwrap();
    // Beyond the device.
    strike(&rig.device, &uses, leaf, |block| block[5 * 64 + 3] = 0xff);
    rig.reopen();
    assert!(matches!(rig.try_read(2, 9, 1), Err(Error::Corrupt(_))));
    let write = rig.write_op(2, &[(7, pattern(700))]);
    assert_eq!(rig.apply(vec![write]).rejected, []);
    assert_eq!(rig.module.attributes(key(2)).unwrap().blocks, 70);
    rig.commit();
    rig.reopen();
    let is_as_before = |page| page == 7 || rig.read_one(2, page) == Some(pattern(page));
    assert!((0..70).all(|page| is_lost(&rig, 2, page) == (page == 5) && (page == 5 || is_as_before(page))));
    assert_eq!(rig.read_one(2, 7), Some(pattern(700)));
    free_leaked(&mut rig);
}

pub(crate) fn log(rig: &mut Rig, page: u64) -> bool {
    let op = rig.write_op(2, &[(page, pattern(500))]);
    let batch = LogBatch { epoch: rig.next_epoch(), domain: DomainId::MAIN, ops: vec![op] };
    rig.module.log_append(&batch).unwrap()
}

/// The block that should say where it is cannot be read from the device: so it is not made anew, and nobody is told that what is written under it is durable.
#[test]
fn nothing_is_logged_below_a_pointer_that_the_device_does_not_confirm() {
    let mut rig = sample();
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    assert_eq!(rig.read_one(2, 64), Some(pattern(64)));
    damage_tree(&rig, 1, Some(0));
    assert!(rig.try_read(2, 0, 1).is_err());
    assert!(log(&mut rig, 3), "it can be made anew");
    damage_tree(&rig, 2, Some(0));
    assert_eq!(rig.read_one(2, 64), Some(pattern(64)), "it is in memory");
    assert!(!log(&mut rig, 3) && log(&mut rig, 64));
    let write = rig.write_op(2, &[(3, pattern(500)), (64, pattern(501))]);
    assert_eq!(rig.apply(vec![write]).rejected, [page_of(2, 3)]);
}

/// As long as no damage is known.
#[test]
fn logging_reads_no_tree() {
    let mut rig = sample();
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    rig.module.attributes(key(2)).unwrap();
    let reads = rig.module.status().counters.device_reads;
    assert!(log(&mut rig, 3) && log(&mut rig, 5000));
    assert_eq!(rig.module.status().counters.device_reads, reads);
}

/// Nor if that is of a page, or of another object.
#[test]
fn logging_reads_no_tree_of_an_object_that_is_not_known_to_be_damaged() {
    let mut rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_bad = |used: &&BlockUse| match used.role {
        BlockRole::Data => used.object == Some(key(2)) && used.index == 5000,
        _ => used.object == Some(key(3)) && used.level == 1,
    };
    let bad: Vec<_> = uses.iter().filter(is_bad).map(|used| used.block).collect();
    assert_eq!(bad.len(), 3);
    bad.into_iter().for_each(|block| rig.device.alter(block, |bytes| bytes[5] ^= 1).unwrap());
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    assert!(rig.try_read(2, 5000, 1).is_err() && rig.try_read(3, 0, 1).is_err());
    assert_eq!(rig.module.status().unrepaired, 2);
    let reads = rig.module.status().counters.device_reads;
    assert!(log(&mut rig, 3));
    assert_eq!(rig.module.status().counters.device_reads, reads);
}

/// Where the store's own metadata is damaged, nobody knows what a recovery point or a replay comes by.
#[test]
fn nothing_is_logged_of_an_object_whose_record_is_not_known_to_be_readable() {
    let mut rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_table = |used: &&BlockUse| {
        used.role == BlockRole::ObjectTable && used.object.is_some_and(|key| key.object != ObjectId(0))
    };
    let table: Vec<_> = uses.iter().filter(is_table).map(|used| used.block).collect();
    table.into_iter().for_each(|block| rig.device.alter(block, |bytes| bytes[5] ^= 1).unwrap());
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    assert!(rig.module.attributes(key(2)).is_err());
    assert!(!log(&mut rig, 3));
}

#[test]
fn a_damaged_object_can_be_emptied_and_written_anew() {
    let mut rig = sample();
    damage_tree(&rig, 3, None);
    rig.reopen();
    let write = rig.write_op(2, &[(1, pattern(500))]);
    let applied = rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 0 }, write]);
    assert_eq!((applied.written.len(), applied.rejected.len()), (1, 0));
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(2, 0, 3), [None, Some(pattern(500)), None]);
    assert_eq!(rig.module.attributes(key(2)).unwrap().size, 2 * PAGE_SIZE as u64);
    assert_consistent(&rig);
}

#[test]
fn a_bad_copy_is_repaired_when_it_is_read() {
    let rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let used = uses.iter().find(|used| used.role == BlockRole::MetadataPage && used.copy == 0).unwrap();
    let good = rig.device.snapshot();
    rig.device.alter(used.block, |block| block.fill(1)).unwrap();
    let module = rig.open_on(rig.device.clone()).unwrap();
    read_all(&rig, &module).unwrap();
    assert_eq!((module.status().repaired, module.status().unrepaired), (1, 0));
    assert!(rig.device.snapshot() == good);
}

/// A bug that only a check can find: the block pointer of a file names a block of another file.
#[test]
fn the_check_sees_what_checksums_cannot() {
    let rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let bitmap = uses.iter().find(|used| used.role == BlockRole::Bitmap).unwrap();
    let data = uses.iter().find(|used| used.role == BlockRole::Data).unwrap().block;
    // The bit of a data block in use is cleared and that of a free block set, in both copies, with all checksums right.
    let free = (0..BLOCKS).rev().skip(100).find(|block| uses.iter().all(|used| used.block != *block)).unwrap();
    let change = |block: &mut [u8; PAGE_SIZE]| {
        block[data as usize / 8] &= !(1 << (data % 8));
        block[free as usize / 8] |= 1 << (free % 8);
    };
    strike(&rig.device, &uses, bitmap, change);
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::UsedButFree, FindingKind::Leaked], "{report:?}");
    assert_eq!(report.findings[0].place.address, Some(data));
    assert_eq!(report.findings[1].place.address, Some(free));
}

/// Changes all copies of a block of metadata, and puts right the checksums from there up to the superblock: as if what holds the store in memory had
/// written it so.
pub(crate) fn strike(
    device: &MemoryDevice,
    uses: &[BlockUse],
    struck: &BlockUse,
    change: impl Fn(&mut [u8; PAGE_SIZE]),
) {
    /// Of the checksum: in a pointer, and of the root pointer in a record.
    const IN_POINTER: usize = 24;
    const IN_RECORD: usize = 384 + IN_POINTER;
    let copies = |object: ObjectKey, level: u8, index: u64| -> Vec<u64> {
        let is =
            |used: &&BlockUse| used.object == Some(object) && (used.level, used.index) == (level, index) && !used.held;
        uses.iter().filter(is).map(|used| used.block).collect()
    };
    let (mut object, mut level, mut index) = (struck.object.unwrap(), struck.level, struck.index);
    copies(object, level, index).into_iter().for_each(|block| device.alter(block, &change).unwrap());
    loop {
        let mut bytes = vec![0; PAGE_SIZE];
        device.read(copies(object, level, index)[0], &mut [std::io::IoSliceMut::new(&mut bytes)]).unwrap();
        let mix = holdfast_integrity::identity_mix(object.domain.0, object.object.0, level, index);
        let sum = (crc64(&bytes) ^ mix).to_le_bytes();
        let put = |block: u64, at: usize| device.alter(block, |bytes| bytes[at..][..8].copy_from_slice(&sum)).unwrap();
        let above = copies(object, level + 1, index / 64);
        if !above.is_empty() {
            above.into_iter().for_each(|block| put(block, 64 * (index % 64) as usize + IN_POINTER));
            (level, index) = (level + 1, index / 64);
            continue;
        }
        if object == (ObjectKey { domain: DomainId::SYSTEM, object: ObjectId(0) }) {
            for used in uses.iter().filter(|used| used.role == BlockRole::Superblock) {
                put(used.block, 512 + IN_RECORD);
                let seal = |bytes: &mut [u8; PAGE_SIZE]| {
                    let crc = crc64(&bytes[..4088]);
                    bytes[4088..].copy_from_slice(&crc.to_le_bytes());
                };
                device.alter(used.block, seal).unwrap();
            }
            return;
        }
        let (id, table) = (object.object.0, 16 * u64::from(object.domain.0));
        object = ObjectKey { domain: DomainId::SYSTEM, object: ObjectId(table) };
        (level, index) = (0, id / 8);
        copies(object, level, index).into_iter().for_each(|block| put(block, 512 * (id % 8) as usize + IN_RECORD));
    }
}

/// Opening and checking fails in one line, and changes nothing.
fn refused(rig: &Rig, device: MemoryDevice, what: &str) -> Error {
    let device = Arc::new(device);
    let before = device.snapshot();
    let error = rig.open_on(device.clone()).map(drop).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{what}");
    assert!(check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).is_err(), "{what}");
    assert!(device.snapshot() == before, "{what}: changed");
    error
}

#[test]
fn foreign_and_truncated_devices_are_refused_and_left_alone() {
    let rig = sample();
    let image = rig.device.snapshot();
    for seed in 0..20 {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let mut bytes = vec![0; 600 * PAGE_SIZE];
        rng.fill(&mut bytes[..]);
        let error = refused(&rig, MemoryDevice::from_bytes(&bytes), "random bytes");
        assert!(error.to_string().contains("no Holdfast store"), "{error}");
    }
    refused(&rig, MemoryDevice::new(1000), "zeros");
    refused(&rig, MemoryDevice::new(0), "empty");
    refused(&rig, MemoryDevice::new(3), "tiny");
    for blocks in [512, 600, 1000, 1023] {
        let error = refused(&rig, MemoryDevice::from_bytes(&image[..blocks * PAGE_SIZE]), "truncated");
        assert!(error.to_string().contains("truncated"), "{error}");
    }
    for (version, says) in [(9, "newer version"), (1, "has format 1, of an older version")] {
        let other = MemoryDevice::from_bytes(&image);
        for label in 0..LABELS {
            other
                .alter(label_start(label, BLOCKS), |bytes| {
                    bytes[8] = version;
                    let crc = crc64(&bytes[..4088]);
                    bytes[4088..].copy_from_slice(&crc.to_le_bytes());
                })
                .unwrap();
        }
        let error = refused(&rig, other, says);
        assert!(error.to_string().contains(says), "{error}");
    }
    let mixed = MemoryDevice::from_bytes(&image);
    let other = sample_of_another_store();
    mixed
        .alter(label_start(2, BLOCKS), |bytes| {
            bytes.copy_from_slice(&other[(BLOCKS as usize - 32) * PAGE_SIZE..][..PAGE_SIZE])
        })
        .unwrap();
    let error = refused(&rig, mixed, "labels of two stores");
    assert!(error.to_string().contains("another store"), "{error}");
}

fn sample_of_another_store() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(BLOCKS));
    let arena = holdfast_object::Arena::new(16, 0).unwrap();
    let options = holdfast_physical::CreateOptions { store_uuid: [9; 16], ..options() };
    Module::create(device.clone(), arena, clock(), &options).unwrap();
    device.snapshot()
}

#[test]
fn unknown_features_stop_writing_or_everything() {
    for (at, may_read) in [(72, true), (80, true), (88, false)] {
        let rig = sample();
        for label in 0..LABELS {
            rig.device
                .alter(label_start(label, BLOCKS), |bytes| {
                    bytes[at] = 1;
                    let crc = crc64(&bytes[..4088]);
                    bytes[4088..].copy_from_slice(&crc.to_le_bytes());
                })
                .unwrap();
        }
        match rig.open_on(rig.device.clone()) {
            Ok(module) => {
                assert!(may_read);
                read_all(&rig, &module).unwrap();
                assert_eq!(module.status().read_only.is_some(), at == 80);
            }
            Err(error) => assert!(!may_read && error.to_string().contains("newer version"), "{error}"),
        }
    }
}

#[test]
fn a_grown_device_is_still_the_store() {
    let rig = sample();
    let mut image = rig.device.snapshot();
    image.resize(image.len() + 1000 * PAGE_SIZE, 0xee);
    let module = rig.open_on(Arc::new(MemoryDevice::from_bytes(&image))).unwrap();
    read_all(&rig, &module).unwrap();
}

/// Random damage in the used blocks of a store, checksums made right for labels and superblocks now and then: whatever
/// happens, no panic, and opening for reading changes nothing.
#[test]
fn random_damage_never_panics() {
    let rig = sample();
    let image = rig.device.as_ref().clone();
    let uses = block_uses(rig.device.clone()).unwrap();
    for seed in 0..300 {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let device = Arc::new(image.clone());
        for _ in 0..rng.random_range(1..20) {
            let block = uses[rng.random_range(0..uses.len())].block;
            let at = rng.random_range(0..PAGE_SIZE);
            let length = rng.random_range(1..64).min(PAGE_SIZE - at);
            device
                .alter(block, |bytes| {
                    rng.fill(&mut bytes[at..at + length]);
                    if rng.random_bool(0.5) {
                        let crc = crc64(&bytes[..4088]);
                        bytes[4088..].copy_from_slice(&crc.to_le_bytes());
                    }
                })
                .unwrap();
        }
        let before = device.snapshot();
        let _ = check(device.clone(), &CheckOptions::default());
        let options = holdfast_physical::OpenOptions::read_only();
        if let Ok(module) = Module::open(device.clone(), rig.arena.clone(), rig.clock.clone(), &options) {
            for (key, _) in module.objects(DomainId::MAIN, ObjectId(0), 100).unwrap_or_default() {
                for index in (0..70).chain([5000]) {
                    if let Ok(Some(page)) = read(&module, &rig.arena, key.object.0, index, 1).map(|pages| pages[0]) {
                        let possible = [index, index + 100, index + 5000 - 5000];
                        assert!(possible.iter().any(|&seed| page == pattern(seed)), "seed {seed}: wrong bytes");
                    }
                }
            }
        }
        assert!(device.snapshot() == before, "seed {seed}");
    }
}

/// A store made with the same UUIDs and clock is the same to the last byte. If this fails because the format has changed,
/// the version must be raised.
#[test]
fn golden_image() {
    // Not by CRC-64: that of a block which ends with its own CRC-64 is the same for all blocks.
    let sum = |rig: &Rig| Algorithm::Xxh3.sum(&rig.device.snapshot()).to_string();
    assert_eq!(sum(&Rig::new(4096)), "xxh3:316e492ef428b901");
    assert_eq!(sum(&sample()), "xxh3:7661489ab82768f2");
}
