//! Copies that share blocks, of objects that cannot be read everywhere.

use crate::damage::*;
use crate::rig::*;
use holdfast_block::{Device, MemoryDevice};
use holdfast_object::{DomainId, Error, Kind, ObjectId, ObjectKey, ObjectStore, Op, PAGE_SIZE, Timestamp};
use holdfast_physical::check::{
    BitmapRemedy, BlockRole, BlockUse, CheckOptions, FindingKind, Report, block_uses, check,
};
use std::io::IoSliceMut;

/// Of a copy those pages are lost of which the source cannot be read, and they are not zeros.
#[test]
fn a_copy_has_what_can_be_read_of_its_source() {
    for (level, index) in [(1, 0), (2, 0), (3, 0)] {
        let mut rig = sample();
        damage_tree(&rig, level, Some(index));
        rig.reopen();
        let id = ObjectId(3);
        let applied = rig.apply(vec![
            Op::Copy { source: ObjectId(2), source_first: 60, target: id, target_first: 0, pages: 5000, size_min: 0 },
            Op::Truncate { id, size: 4990 * PAGE_SIZE as u64 },
        ]);
        assert!(applied.passed_over.is_empty());
        let (id_lost, first) = (applied.lost[0].0, applied.lost[0].1.start);
        let pages: u64 = applied.lost.iter().map(|(_, run)| run.end - run.start).sum();
        assert_eq!((id_lost, first, pages), (id, 0, [4, 4036, 4941][level as usize - 1]), "who waits for it is told");
        rig.commit();
        rig.reopen();
        assert!((0..4).all(|page| is_lost(&rig, 3, page)));
        match level {
            1 => assert_eq!(
                rig.read(3, 4, 8),
                (64..72).map(|page| (page < 70).then(|| pattern(page))).collect::<Vec<_>>()
            ),
            _ => assert!((4..4036).all(|page| is_lost(&rig, 3, page))),
        }
        match level {
            3 => assert!((4036..4941).all(|page| is_lost(&rig, 3, page))),
            _ => assert_eq!(rig.read(3, 4939, 3), [None, Some(pattern(5000)), None]),
        }
        assert_eq!(rig.read(3, 4941, 2), [None, None], "behind the end of the source");
        assert_consistent(&rig);
    }
}

/// Of a block with a pointer that makes no sense that page is lost in the copy, too, and the others are there.
#[test]
fn a_copy_has_the_pages_beside_a_pointer_that_makes_no_sense() {
    let mut rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_leaf = |used: &&BlockUse| used.object == Some(key(2)) && (used.level, used.index) == (1, 0);
    let leaf = uses.iter().find(is_leaf).unwrap();
    strike(&rig.device, &uses, leaf, |block| block[5 * 64 + 3] = 0xff);
    rig.reopen();
    let copy = Op::Copy {
        source: ObjectId(2),
        source_first: 2,
        target: ObjectId(3),
        target_first: 100,
        pages: 68,
        size_min: 0,
    };
    assert_eq!(rig.apply(vec![copy]).lost, [(ObjectId(3), 103..104)]);
    rig.commit();
    rig.reopen();
    let is_right = |page| match page {
        103 => is_lost(&rig, 3, page),
        _ => rig.read_one(3, page) == Some(pattern(page - 98)),
    };
    assert!((100..168).all(is_right));
}

/// What an operation of the same epoch has lost of the source is lost in the copy, and told of that, too; what was lost before is not news.
#[test]
fn a_copy_tells_of_what_its_source_has_just_lost() {
    let mut rig = sample();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    let (source, target) = (ObjectId(2), ObjectId(3));
    let hole = Op::Zero { id: source, offset: 20 * PAGE_SIZE as u64, length: PAGE_SIZE as u64 };
    let copy = Op::Copy { source, source_first: 0, target, target_first: 100, pages: 64, size_min: 0 };
    assert_eq!(rig.apply(vec![hole, copy.clone()]).lost, [(target, 100..120), (target, 121..164)]);
    rig.commit();
    assert_eq!(rig.apply(vec![copy]).lost, []);
    rig.commit();
    let key = key(3);
    let found = |pages| rig.module.lost_pages(key, pages).unwrap();
    assert_eq!(found(0..u64::MAX), [100..120, 121..164]);
    assert_eq!(found(110..130), [110..120, 121..130]);
    assert!(found(120..121).is_empty() && found(164..9999).is_empty());
    assert!(matches!(rig.module.lost_pages(ObjectKey { object: ObjectId(77), ..key }, 0..1), Err(Error::NoObject(_))));
    assert_consistent(&rig);
}

/// What a copy, a truncation or a hole would have to go through is known before it is taken on: any block of the source, of the target's all but those that
/// can be made anew, and none of what goes as a whole.
#[test]
fn it_is_known_beforehand_what_cannot_be_done() {
    let page = PAGE_SIZE as u64;
    let (id, other) = (ObjectId(2), ObjectId(3));
    let copy = |source, first: u64, target| Op::Copy {
        source,
        source_first: first,
        target,
        target_first: 0,
        pages: 10,
        size_min: 0,
    };
    let cut = |size| Op::Truncate { id, size };
    let hole = |offset, length| Op::Zero { id, offset, length };
    let told = |rig: &Rig, op: &Op| match rig.module.check_way(DomainId::MAIN, op) {
        Ok(()) => None,
        Err(Error::Corrupt(why)) => Some((why.place.object, why.place.level)),
        Err(error) => panic!("{error}"),
    };
    let ops = [
        (copy(id, 0, other), [true, true]),
        (copy(id, 5000, other), [false, false]),
        (copy(id, 60, id), [true, true]),
        (copy(other, 0, id), [false, true]),
        (cut(10 * page), [false, true]),
        (cut(5000 * page), [false, false]),
        (cut(0), [false, false]),
        (hole(page, page), [false, true]),
        (hole(0, 4096 * page), [false, false]),
        (copy(ObjectId(77), 0, ObjectId(78)), [false, false]),
    ];
    for (level, at) in [(1, 0), (2, 1)] {
        let mut rig = sample();
        damage_tree(&rig, level, Some(0));
        rig.reopen();
        for (op, is_told) in &ops {
            let expected = is_told[at].then_some((Some(ObjectKey { domain: DomainId::MAIN, object: id }), Some(level)));
            assert_eq!(told(&rig, op), expected, "{op:?}");
        }
    }
}

/// What a lost block named and others have stays theirs, and becomes free with them.
#[test]
fn references_that_a_lost_block_had_are_taken_off_by_a_repair() {
    let mut rig = sample();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    let write = rig.write_op(2, &[(20, pattern(500))]);
    assert_eq!(rig.apply(vec![write]).rejected, []);
    rig.commit();
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let count = |kind| report.findings.iter().filter(|finding| finding.kind == kind).count();
    assert_eq!(count(FindingKind::UnusedReferences), 10, "{report:?}");
    assert_eq!(report.bitmap, BitmapRemedy::Repair);
    put_right(&mut rig);
    assert!((0..10).all(|page| is_lost(&rig, 2, page) && rig.read_one(3, page) == Some(pattern(page))));
    let free = rig.module.status().space.free;
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    assert_eq!(rig.module.status().space.free, free + 14, "ten pages, and two blocks of metadata");
    rig.check();
}

/// A store with a snapshot whose way to 65 pages the domain has lost: it has made anew the tree block that led there, which cannot be read. How many of
/// the pages another object has, too; what puts the block right, and what blocks had been used for before.
pub(crate) fn lost_way(blocks: u64, shared: u64) -> (Rig, impl Fn(&Rig), Vec<BlockUse>) {
    let mut rig = Rig::new(blocks);
    let write = rig.write_op(2, &(0..64).chain([65]).map(|page| (page, pattern(page))).collect::<Vec<_>>());
    let copy = Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 0,
        pages: shared,
        size_min: 0,
    };
    rig.apply(vec![create_op(2, Kind::Regular), create_op(3, Kind::Regular), write]);
    rig.apply(vec![copy]);
    rig.commit();
    rig.module.snapshot_create(DomainId::MAIN, rig.next_epoch(), "kept", Timestamp::default()).unwrap();
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_leaf = |used: &&BlockUse| used.object == Some(key(2)) && (used.level, used.index) == (1, 0);
    let leaves: Vec<(u64, Page)> =
        uses.iter().filter(is_leaf).map(|leaf| (leaf.block, bytes_of(&rig.device, leaf.block))).collect();
    damage_tree(&rig, 1, Some(0));
    rig.reopen();
    let write = rig.write_op(2, &[(20, pattern(500))]);
    assert_eq!(rig.apply(vec![write]).rejected, []);
    rig.commit();
    let mend = move |rig: &Rig| {
        leaves.iter().for_each(|(leaf, good)| rig.device.alter(*leaf, |block| *block = *good).unwrap());
    };
    (rig, mend, uses)
}

pub(crate) fn bytes_of(device: &MemoryDevice, block: u64) -> Page {
    let mut bytes = [0; PAGE_SIZE];
    device.read(block, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

pub(crate) fn repair(rig: &Rig) -> Report {
    check(rig.device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap()
}

/// The oldest snapshot has all that it had, though everything that is free has been written to.
pub(crate) fn has_all(rig: &mut Rig) {
    fill(rig, 1000);
    let id = rig.module.snapshots(DomainId::MAIN).unwrap()[0].id;
    for page in (0..64).chain([65]) {
        assert!(rig.read_one(ObjectId(2).in_snapshot(id).0, page) == Some(pattern(page)), "page {page}");
    }
}

/// Writes to what is free, so many pages at most.
pub(crate) fn fill(rig: &mut Rig, pages: u64) {
    if rig.module.attributes(key(9)).is_err() {
        rig.apply(vec![create_op(9, Kind::Regular)]);
    }
    for first in (0..pages).step_by(50) {
        if rig.module.status().space.free <= 100 {
            break;
        }
        let write = rig.write_op(9, &(first..first + 50).map(|page| (page, pattern(page + 1000))).collect::<Vec<_>>());
        rig.apply(vec![write]);
        rig.commit();
    }
}

/// Deletes the oldest snapshot.
pub(crate) fn forget_first(rig: &mut Rig) {
    let id = rig.module.snapshots(DomainId::MAIN).unwrap()[0].id;
    while rig.module.snapshot_delete(DomainId::MAIN, rig.next_epoch(), id).unwrap() {
        rig.commit();
    }
    rig.commit();
}

/// A page that a snapshot reaches stays in use, and keeps its references: the tree block that led there, which the domain has made anew without it, can be
/// read again. When the snapshot is gone the rest is put right.
#[test]
fn a_repair_takes_nothing_away_from_a_snapshot() {
    for shared in [64, 10] {
        let (mut rig, mend, _) = lost_way(1024, shared);
        mend(&rig);
        let before = rig.module.status().space.free;
        let report = repair(&rig);
        let left = |kind| report.findings.iter().any(|it| it.kind == kind && !it.repaired);
        assert!(left(FindingKind::UnusedReferences), "{report:?}");
        assert_eq!((left(FindingKind::Unlisted), left(FindingKind::Leaked)), (shared < 64, false), "{report:?}");
        assert_eq!(report.bitmap, BitmapRemedy::AfterSnapshots);
        rig.reopen();
        assert_eq!(rig.module.status().space.free, before);
        rig.apply(vec![Op::Truncate { id: ObjectId(3), size: 0 }]);
        rig.commit();
        let freed = rig.module.status().space.free - before;
        assert!(freed < 10, "{freed}: the snapshot has the pages");
        has_all(&mut rig);
        forget_first(&mut rig);
        crate::damage::put_right(&mut rig);
    }
}

/// Nor does one made while the block cannot be read, and it frees what leaked once the snapshot is gone.
#[test]
fn a_repair_frees_nothing_that_a_snapshot_may_have_under_a_block_that_cannot_be_read() {
    for is_read_again in [true, false] {
        let (mut rig, mend, _) = lost_way(1024, 10);
        let before = rig.module.status().space.free;
        let report = repair(&rig);
        assert!(report.findings.iter().all(|it| it.kind == FindingKind::Unreadable), "{report:?}");
        assert_eq!(report.bitmap, BitmapRemedy::NotNeeded);
        if is_read_again {
            mend(&rig);
        }
        rig.reopen();
        assert_eq!(rig.module.status().space.free, before);
        if is_read_again {
            has_all(&mut rig);
        }
        forget_first(&mut rig);
        crate::damage::put_right(&mut rig);
    }
}

/// Nor does a mount that makes the bitmap anew; while the block cannot be read it takes no changes.
#[test]
fn a_bitmap_made_anew_has_what_only_a_snapshot_reaches() {
    for is_read_again in [true, false] {
        let (mut rig, mend, _) = lost_way(1024, 10);
        if is_read_again {
            mend(&rig);
        }
        let uses = block_uses(rig.device.clone()).unwrap();
        for used in uses.iter().filter(|used| used.role == BlockRole::Bitmap) {
            rig.device.alter(used.block, |block| block[5] ^= 1).unwrap();
        }
        rig.reopen();
        assert_eq!(rig.module.status().read_only.is_none(), is_read_again);
        if is_read_again {
            has_all(&mut rig);
        }
    }
}
