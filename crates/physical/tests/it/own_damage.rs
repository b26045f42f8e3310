//! Metadata of the store's own that cannot be read, of which somebody knows: what may need it is not logged, and all else is.

use crate::damage::{sample, strike};
use crate::rig::*;
use holdfast_object::{
    AttrSet, DomainId, Kind, LogBatch, ObjectId, ObjectStore, Op, PAGE_SIZE, ScrubCursor, Timestamp,
};
use holdfast_physical::check::{BlockRole, BlockUse, block_uses};

/// A store with metadata of each kind, opened, and its blocks.
fn rig() -> (Rig, Vec<BlockUse>) {
    let mut rig = sample();
    rig.module.snapshot_create(DomainId::MAIN, rig.next_epoch(), "kept", Timestamp::default()).unwrap();
    rig.commit();
    let write = rig.write_op(2, &[(3, pattern(300))]);
    rig.apply(vec![write]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    (rig, uses)
}

fn open(rig: &mut Rig) {
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
}

/// Whatever is damaged is known afterwards.
fn scrub(rig: &Rig) {
    let mut cursor = ScrubCursor::default();
    while cursor != ScrubCursor::End {
        cursor = rig.module.scrub_step(&cursor, 1000).unwrap().cursor;
    }
}

fn is_logged(rig: &Rig, op: Op) -> bool {
    rig.module.log_append(&LogBatch { epoch: rig.next_epoch(), domain: DomainId::MAIN, ops: vec![op] }).unwrap()
}

/// Of a block that a domain has, or domain 0.
fn flip(rig: &Rig, uses: &[BlockUse], is: impl Fn(&BlockUse) -> bool) {
    let bad: Vec<u64> = uses.iter().filter(|used| !used.held && is(used)).map(|used| used.block).collect();
    assert!(!bad.is_empty() && bad.len().is_multiple_of(2), "{bad:?}");
    bad.into_iter().for_each(|block| rig.device.alter(block, |bytes| bytes[5] ^= 1).unwrap());
}

fn set(id: u64, set: AttrSet) -> Op {
    Op::SetAttributes { id: ObjectId(id), set }
}

fn is_own(used: &BlockUse, id: u64) -> bool {
    used.object.is_some_and(|key| key.domain == DomainId::SYSTEM && key.object == ObjectId(id))
}

const MAP: u64 = 17;
const LIST: u64 = 19;
const TABLE: u64 = 16;

#[test]
fn what_neither_a_recovery_point_nor_a_replay_could_do_is_not_logged() {
    let id = ObjectId(2);
    type Is = fn(&BlockUse) -> bool;
    let cases: [(&str, Is, [bool; 5]); 7] = [
        ("nothing", |_| false, [true; 5]),
        ("map of objects", |used| is_own(used, MAP), [false, true, true, true, false]),
        ("map of orphans", |used| is_own(used, MAP + 1), [false, true, true, false, false]),
        ("reference table", |used| used.role == BlockRole::References, [true, true, false, true, false]),
        ("list of snapshots", |used| is_own(used, LIST), [false; 5]),
        ("dead list", |used| used.role == BlockRole::DeadList, [false; 5]),
        ("bitmap", |used| used.role == BlockRole::Bitmap, [false; 5]),
    ];
    for (what, is, expected) in cases {
        let (mut rig, uses) = rig();
        open(&mut rig);
        if what != "nothing" {
            flip(&rig, &uses, is);
            scrub(&rig);
        }
        let (mode, nlink) =
            (AttrSet { mode: Some(0o600), ..Default::default() }, AttrSet { nlink: Some(7), ..Default::default() });
        let write = rig.write_op(2, &[(5, pattern(500))]);
        let ops = [create_op(9, Kind::Regular), set(2, mode), write, set(2, nlink), Op::Delete { id }];
        let logged = ops.map(|op| is_logged(&rig, op));
        assert_eq!(logged, expected, "{what}");
    }
}

/// How many device requests it takes to log a write to an object of which nothing but its record is in memory.
fn reads_for_a_write(rig: &mut Rig) -> u64 {
    let write = rig.write_op(2, &[(5, pattern(500))]);
    rig.module.attributes(key(2)).unwrap();
    let before = rig.module.status().counters.device_reads;
    assert!(is_logged(rig, write));
    rig.module.status().counters.device_reads - before
}

#[test]
fn logging_reads_no_tree_once_a_block_can_be_read_again() {
    for is_table in [true, false] {
        let (mut rig, uses) = rig();
        let is = |used: &BlockUse| match is_table {
            true => is_own(used, TABLE) && used.level == 0,
            false => used.role == BlockRole::DeadList,
        };
        open(&mut rig);
        flip(&rig, &uses, is);
        scrub(&rig);
        flip(&rig, &uses, is);
        let write = rig.write_op(2, &[(5, pattern(500))]);
        if !is_table {
            assert!(!is_logged(&rig, write), "nobody has looked");
            rig.module.snapshots(DomainId::MAIN).unwrap();
        }
        assert_eq!(reads_for_a_write(&mut rig), 0);
    }
}

#[test]
fn logging_reads_no_tree_with_a_bitmap_made_anew() {
    let (mut rig, uses) = rig();
    flip(&rig, &uses, |used| used.role == BlockRole::Bitmap);
    open(&mut rig);
    assert_eq!(rig.module.status().repaired, 1);
    assert_eq!(reads_for_a_write(&mut rig), 0);
}

/// A record that makes no sense costs its object only.
#[test]
fn logging_reads_no_tree_of_an_object_beside_a_record_that_makes_no_sense() {
    let (mut rig, uses) = rig();
    let is_table = |used: &&BlockUse| is_own(used, TABLE) && used.level == 0 && !used.held;
    let table = uses.iter().find(is_table).unwrap();
    const RECORD: usize = 512;
    strike(&rig.device, &uses, table, |block: &mut [u8; PAGE_SIZE]| block[3 * RECORD..][..64].fill(0xff));
    open(&mut rig);
    assert!(rig.module.attributes(key(3)).is_err());
    assert_eq!(reads_for_a_write(&mut rig), 0);
    let write = rig.write_op(3, &[(0, pattern(1))]);
    assert!(!is_logged(&rig, write));
}
