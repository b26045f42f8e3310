//! A tree block that only a snapshot has cannot be read, and something else is damaged: there is a way out, and what is under the block is still there
//! when it can be read again.

use crate::copies::{bytes_of, fill, forget_first, has_all, lost_way, repair};
use crate::damage::{put_right, strike};
use crate::intent_log::{log, next};
use crate::rig::*;
use crate::scrub::scrub;
use holdfast_block::Device;
use holdfast_integrity::crc64;
use holdfast_object::{
    Batch, DomainId, Error, Kind, LogBatch, ObjectId, ObjectKey, ObjectStore, Op, Result, Timestamp,
};
use holdfast_physical::check::{
    BitmapRemedy, BlockRole, BlockUse, CheckOptions, Finding, FindingKind, Report, block_uses, check,
};
use holdfast_physical::scribble::{MetaKind, State};

const MAIN: DomainId = DomainId::MAIN;
const BITMAP: ObjectKey = ObjectKey { domain: DomainId::SYSTEM, object: ObjectId(1) };

fn checked(rig: &Rig) -> Report {
    check(rig.device.clone(), &CheckOptions::default()).unwrap()
}

/// Bits of the bitmap that are other ones, as a bug leaves them.
fn flip(rig: &Rig, blocks: &[u64]) {
    let uses = block_uses(rig.device.clone()).unwrap();
    let bitmap = uses.iter().find(|used| used.role == BlockRole::Bitmap).unwrap();
    strike(&rig.device, &uses, bitmap, |bytes| {
        blocks.iter().for_each(|block| bytes[(block / 8) as usize] ^= 1 << (block % 8));
    });
}

/// The bitmap's blocks with this index cannot be read.
fn damage_bitmap(rig: &Rig, index: u64) {
    for used in block_uses(rig.device.clone()).unwrap() {
        if used.object == Some(BITMAP) && (used.level, used.index) == (0, index) {
            rig.device.alter(used.block, |block| block[5] ^= 1).unwrap();
        }
    }
}

/// Where a page of object 2 is.
fn page_at(uses: &[BlockUse], index: u64) -> u64 {
    let is = |used: &&BlockUse| used.role == BlockRole::Data && used.object == Some(key(2)) && used.index == index;
    uses.iter().find(is).unwrap().block
}

/// Nothing is lost by writing to a store that is full, and all is well when the block can be read again.
fn fill_and_mend(rig: &mut Rig, mend: impl Fn(&Rig)) {
    fill(rig, 1000);
    mend(rig);
    rig.reopen();
    has_all(rig);
    all_is_well_without_the_oldest(rig);
}

/// What is left of the damage goes with the snapshot.
fn all_is_well_without_the_oldest(rig: &mut Rig) {
    forget_first(rig);
    put_right(rig);
    assert_eq!((checked(rig).withheld_blocks, checked(rig).findings), (0, vec![]));
}

/// No mount takes changes, and a repair, which writes a recovery point or nothing.
fn is_stuck(rig: &mut Rig, what: &str) {
    rig.reopen();
    assert!(rig.module.status().read_only.is_some(), "{what}");
    let before = rig.device.snapshot();
    let report = repair(rig);
    assert_eq!((report.bitmap, report.withheld_blocks), (BitmapRemedy::None, 0), "{what}: {report:?}");
    assert!(rig.device.snapshot() == before, "{what}");
}

/// No mount takes changes before a repair, which withholds so many blocks; then the store is full of what is new.
fn is_repaired(rig: &mut Rig, withheld: u64, what: &str) {
    rig.reopen();
    assert!(rig.module.status().read_only.is_some(), "{what}");
    is_made_of_both(rig, withheld, what);
}

fn is_made_of_both(rig: &mut Rig, withheld: u64, what: &str) {
    let found = checked(rig);
    assert_eq!((found.bitmap, found.withheld_blocks), (BitmapRemedy::Repair, withheld), "{what}: {found:?}");
    let report = repair(rig);
    let left = report.findings.iter().filter(|it| !it.repaired).map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(left, [FindingKind::Unreadable; 2], "{what}: {report:?}");
    assert_eq!((report.bitmap, report.withheld_blocks), (BitmapRemedy::NotNeeded, withheld), "{what}: {report:?}");
    rig.reopen();
    assert_eq!(rig.module.status().read_only, None, "{what}");
    fill(rig, 1000);
}

/// All that is not a snapshot's is as it was written.
fn domain_is_whole(rig: &Rig, what: &str) {
    assert!(rig.read_one(2, 20) == Some(pattern(500)) && rig.read_one(2, 65) == Some(pattern(65)), "{what}");
    assert!((0..10).all(|page| rig.read_one(3, page) == Some(pattern(page))), "{what}");
    let pages = rig.module.attributes(key(9)).unwrap().blocks;
    assert!(pages > 200, "{what}: {pages}");
    assert!((0..pages).all(|page| rig.read_one(9, page) == Some(pattern(page + 1000))), "{what}");
}

/// The newest superblock's field at this offset.
fn add_to_superblock(rig: &Rig, at: usize, more: i64) {
    for used in block_uses(rig.device.clone()).unwrap().iter().filter(|used| used.role == BlockRole::Superblock) {
        let change = |bytes: &mut Page| {
            let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            bytes[at..at + 8].copy_from_slice(&old.checked_add_signed(more).unwrap().to_le_bytes());
            let crc = crc64(&bytes[..4088]);
            bytes[4088..].copy_from_slice(&crc.to_le_bytes());
        };
        rig.device.alter(used.block, change).unwrap();
    }
}

/// Offset in a superblock.
const FREE: usize = 120;

#[test]
fn a_wrong_bitmap_beside_it_is_made_of_what_is_reached_and_of_what_it_has_in_use() {
    let (mut rig, mend, uses) = lost_way(1024, 10);
    flip(&rig, &[page_at(&uses, 65)]);
    let found = checked(&rig);
    assert!(found.findings.iter().any(|it| it.kind == FindingKind::UsedButFree), "{found:?}");
    is_repaired(&mut rig, 54, "one in use");
    mend(&rig);
    rig.reopen();
    has_all(&mut rig);
    all_is_well_without_the_oldest(&mut rig);
}

/// It counts just those that can be reached, and the bitmap is right.
#[test]
fn nothing_goes_by_the_number_of_free_blocks_alone() {
    let (mut rig, mend, _) = lost_way(1024, 10);
    add_to_superblock(&rig, FREE, 54);
    is_repaired(&mut rig, 54, "54 too many");
    mend(&rig);
    rig.reopen();
    has_all(&mut rig);
    all_is_well_without_the_oldest(&mut rig);
}

/// So that one fewer is counted, which is what can be reached: all but one page of the snapshot. A mount would take that bitmap.
#[test]
fn a_block_in_use_that_was_freed_too_early_costs_a_snapshot_nothing() {
    let (mut rig, mend, uses) = lost_way(1024, 63);
    flip(&rig, &[page_at(&uses, 65)]);
    add_to_superblock(&rig, FREE, 1);
    is_made_of_both(&mut rig, 1, "freed too early");
    domain_is_whole(&rig, "freed too early");
    mend(&rig);
    rig.reopen();
    has_all(&mut rig);
    all_is_well_without_the_oldest(&mut rig);
}

/// Where a repair goes by a bitmap in which a hidden page is free, and the page is given to somebody else, the snapshot has an error there, and nobody else
/// has one, whatever is done with it. No mount goes by that.
fn does_no_harm(is_live_lost: bool, extra: &[u64]) {
    let (mut rig, mend, uses) = lost_way(1024, 10);
    let (hidden, live) = (page_at(&uses, 40), page_at(&uses, 65));
    flip(&rig, &[&[hidden], extra, &[live][..usize::from(is_live_lost)]].concat());
    is_repaired(&mut rig, 53 + extra.len() as u64, "hidden");
    let uses = block_uses(rig.device.clone()).unwrap();
    assert!(uses.iter().any(|used| used.block == hidden && used.object == Some(key(9))), "it is given away");
    domain_is_whole(&rig, "filled");
    mend(&rig);
    rig.reopen();
    let id = rig.module.snapshots(MAIN).unwrap()[0].id;
    for page in (0..64).chain([65]) {
        let read = rig.try_read(ObjectId(2).in_snapshot(id).0, page, 1).ok();
        assert!(read == (page != 40).then(|| vec![Some(pattern(page))]), "page {page}");
    }
    assert_eq!(scrub(&rig.module, 100).0.repaired, 0);
    domain_is_whole(&rig, "scrubbed");
    repair(&rig);
    rig.reopen();
    domain_is_whole(&rig, "repaired");
    all_is_well_without_the_oldest(&mut rig);
    domain_is_whole(&rig, "without the snapshot");
    fill_again(&mut rig);
    domain_is_whole(&rig, "written anew");
}

/// Writes all of what fills the store to other blocks.
fn fill_again(rig: &mut Rig) {
    let pages = rig.module.attributes(key(9)).unwrap().blocks;
    for first in (0..pages).step_by(25) {
        let pages: Vec<_> = (first..pages.min(first + 25)).map(|page| (page, pattern(page + 1000))).collect();
        let write = rig.write_op(9, &pages);
        rig.apply(vec![write]);
        rig.commit();
    }
}

#[test]
fn a_hidden_page_that_is_free_beside_two_blocks_too_many_does_no_harm_to_others() {
    does_no_harm(false, &[600, 601]);
}

/// The number of blocks fits then.
#[test]
fn a_hidden_page_that_is_free_as_one_in_use_is_beside_one_too_many_does_no_harm_to_others() {
    does_no_harm(true, &[600]);
}

/// The snapshot's block above that which leads to the pages.
fn damage_above(rig: &Rig) {
    let above = block_uses(rig.device.clone()).unwrap();
    let above: Vec<u64> = above.iter().filter(|it| it.held && it.level == 2).map(|it| it.block).collect();
    assert_eq!(above.len(), 2);
    above.iter().for_each(|block| rig.device.alter(*block, |block| block[5] ^= 1).unwrap());
}

/// Under a block of a higher level, as of a directory, are blocks with two copies: of one that has lost one of them, a scrub would write the other one over
/// what is there now.
#[test]
fn a_bitmap_that_is_known_to_be_wrong_stays_so_where_blocks_with_copies_may_be_hidden() {
    let (mut rig, _, uses) = lost_way(1024, 10);
    damage_above(&rig);
    flip(&rig, &[page_at(&uses, 65)]);
    is_stuck(&mut rig, "one in use");
    flip(&rig, &[page_at(&uses, 65), 600]);
    is_stuck(&mut rig, "one too many");
    flip(&rig, &[600]);
    rig.reopen();
    assert_eq!(rig.module.status().read_only, None, "nothing else is damaged");
    // Of one that mounts take, no repair has less in use than they have.
    flip(&rig, &[page_at(&uses, 65)]);
    add_to_superblock(&rig, FREE, 1);
    let left = repair(&rig).findings.into_iter().filter(|it| !it.repaired).map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(left, [FindingKind::Unreadable; 2]);
    rig.reopen();
    fill(&mut rig, 1000);
    domain_is_whole(&rig, "freed too early");
    // Of one that has a part which cannot be read.
    let (mut rig, ..) = lost_way(3 * 32_768 - 100, 10);
    damage_above(&rig);
    damage_bitmap(&rig, 0);
    is_stuck(&mut rig, "a part");
}

/// A bitmap that has it in use would have it refused to the log.
#[test]
fn what_an_fsync_has_written_ahead_is_not_lost_to_a_bitmap_that_is_wrong() {
    let (mut rig, ..) = lost_way(1024, 10);
    let epoch = rig.next_epoch();
    let pages: Vec<_> = (0..3).map(|index| (index, rig.pin(&pattern(800 + index)))).collect();
    let placed = rig.module.place(key(3), epoch, &pages).unwrap();
    let pages = (0..3).zip(placed).collect();
    assert!(log(&rig, epoch, vec![Op::Adopt { id: ObjectId(3), pages, size_min: 3 * 4096 }]));
    let uses = block_uses(rig.device.clone()).unwrap();
    let placed = uses.iter().find(|used| used.role == BlockRole::LogPlaced).unwrap().block;
    flip(&rig, &[placed]);
    is_stuck(&mut rig, "placed");
    flip(&rig, &[placed]);
    rig.reopen();
    assert_eq!(rig.module.status().read_only, None);
    let LogBatch { domain, ops, .. } = next(&rig, &rig.module).unwrap().unwrap().batch;
    assert!(next(&rig, &rig.module).unwrap().is_none());
    rig.module.apply(&Batch { domain, epoch: rig.module.epoch() + 3, ops }).unwrap();
    assert_eq!(rig.read(3, 0, 3), [800, 801, 802].map(|seed| Some(pattern(seed))));
}

/// For its own recovery point, and to delete the snapshot.
#[test]
fn a_repair_leaves_room() {
    /// Of a store of 4 MiB: what is kept for metadata; the entry of a snapshot, what is above the cut of its list, and a page of notes; and the bitmap.
    const ROOM: usize = 32 + (6 + 16 + 18) + 4;
    for (left, is_enough) in [(ROOM, true), (ROOM - 1, false)] {
        let (mut rig, ..) = lost_way(1024, 10);
        let uses = block_uses(rig.device.clone()).unwrap();
        let bitmap = bytes_of(&rig.device, uses.iter().find(|used| used.role == BlockRole::Bitmap).unwrap().block);
        let is_free = |block: &u64| bitmap[(block / 8) as usize] >> (block % 8) & 1 == 0;
        let free: Vec<u64> = (0..1024).filter(is_free).collect();
        flip(&rig, &free[left..]);
        if is_enough {
            rig.reopen();
            assert_eq!(repair(&rig).bitmap, BitmapRemedy::NotNeeded);
            rig.reopen();
            all_is_well_without_the_oldest(&mut rig);
            assert!(rig.module.status().space.free > 500);
        } else {
            is_stuck(&mut rig, "no room");
        }
    }
}

/// Until so many blocks are left.
fn fill_until(rig: &mut Rig, left: u64) {
    rig.apply(vec![create_op(9, Kind::Regular)]);
    let mut page = 0;
    while rig.module.status().space.free > left {
        let write = rig.write_op(9, &[(page, pattern(page))]);
        rig.apply(vec![write]);
        rig.commit();
        page += 1;
    }
}

/// Nothing else is wrong with the store.
fn put_into_a_free_entry(rig: &Rig) {
    let uses = block_uses(rig.device.clone()).unwrap();
    let map =
        uses.iter().find(|used| used.role == BlockRole::Map && used.object.unwrap().object == ObjectId(17)).unwrap();
    strike(&rig.device, &uses, map, |bytes| bytes[0] |= 1);
}

/// What it has is not for a repair now: mounts take changes, and so delete the snapshot, after which there is one.
fn is_repaired_without_the_snapshot(rig: &mut Rig) {
    let kinds = |report: &Report| report.findings.iter().map(|it| it.kind).collect::<Vec<_>>();
    let found = checked(rig);
    assert_eq!(found.bitmap, BitmapRemedy::AfterSnapshots, "{found:?}");
    let expected = [FindingKind::FreeEntry, FindingKind::Unreadable, FindingKind::Unreadable];
    assert!(expected.iter().all(|kind| kinds(&found).contains(kind)) && found.found == 3, "{found:?}");
    let before = rig.device.snapshot();
    assert_eq!(repair(rig).bitmap, BitmapRemedy::AfterSnapshots);
    assert!(rig.device.snapshot() == before);
    rig.reopen();
    assert_eq!(rig.module.status().read_only, None);
    all_is_well_without_the_oldest(rig);
}

/// As a store leaves it that was filled.
#[test]
fn what_is_in_a_free_entry_is_left_until_the_snapshot_is_gone_where_a_repair_has_no_room() {
    for (left, is_enough) in [(200, true), (60, false)] {
        let (mut rig, ..) = lost_way(1024, 10);
        fill_until(&mut rig, left);
        put_into_a_free_entry(&rig);
        if is_enough {
            assert_eq!(checked(&rig).bitmap, BitmapRemedy::Repair);
            let report = repair(&rig);
            assert!(report.findings.iter().all(|it| it.repaired == (it.kind == FindingKind::FreeEntry)), "{report:?}");
            rig.reopen();
            all_is_well_without_the_oldest(&mut rig);
        } else {
            is_repaired_without_the_snapshot(&mut rig);
        }
    }
}

/// The power failed before the recovery point that has the bitmap for it.
#[test]
fn what_is_in_a_free_entry_is_left_until_the_snapshot_is_gone_where_the_store_has_just_grown() {
    let grown = || {
        let (rig, _, uses) = lost_way(1024, 10);
        rig.device.grow(4096).unwrap();
        assert_eq!(rig.module.grow(0).unwrap(), 4096);
        (rig, uses)
    };
    let (mut rig, uses) = grown();
    put_into_a_free_entry(&rig);
    is_repaired_without_the_snapshot(&mut rig);
    assert!(rig.module.status().space.free > 3500);
    // A bitmap that is wrong stays so: labels are counted elsewhere.
    let (mut rig, _) = grown();
    flip(&rig, &[page_at(&uses, 65)]);
    is_stuck(&mut rig, "one in use");
}

/// As many blocks can be reached as are counted: so a repair makes the bitmap of these, where all else would leave no room.
#[test]
fn a_bitmap_that_cannot_be_read_is_made_of_what_is_reached_if_that_is_all_there_is() {
    let mut rig = Rig::new(1024);
    let write = rig.write_op(2, &(0..64).chain([65]).map(|page| (page, pattern(page))).collect::<Vec<_>>());
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    rig.module.snapshot_create(MAIN, rig.next_epoch(), "kept", Timestamp::default()).unwrap();
    rig.commit();
    let write = rig.write_op(2, &[(20, pattern(500))]);
    rig.apply(vec![write]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let leaves: Vec<u64> = uses.iter().filter(|it| it.held && it.level == 1).map(|it| it.block).collect();
    assert_eq!(leaves.len(), 2);
    let (good, free) = (bytes_of(&rig.device, leaves[0]), rig.module.status().space.free);
    leaves.iter().for_each(|leaf| rig.device.alter(*leaf, |block| block[5] ^= 1).unwrap());
    damage_bitmap(&rig, 0);
    let found = checked(&rig);
    assert_eq!((found.bitmap, found.withheld_blocks), (BitmapRemedy::Repair, 0), "{found:?}");
    rig.reopen();
    assert!(rig.module.status().read_only.is_some());
    repair(&rig);
    rig.reopen();
    let status = rig.module.status();
    assert_eq!((status.read_only, status.space.free), (None, free));
    fill(&mut rig, 1000);
    leaves.iter().for_each(|leaf| rig.device.alter(*leaf, |block| *block = good).unwrap());
    rig.reopen();
    has_all(&mut rig);
    rig.check();
}

/// A part of the bitmap that can be read speaks against the number of blocks then; and where the other part is in use, there is no room.
#[test]
fn nothing_is_made_of_what_is_reached_if_the_bitmap_is_known_to_have_more() {
    let (mut rig, ..) = lost_way(32_768 + 200, 10);
    add_to_superblock(&rig, FREE, 54);
    let uses = block_uses(rig.device.clone()).unwrap();
    let second = uses.iter().find(|used| used.role == BlockRole::Bitmap && used.index == 1).unwrap();
    strike(&rig.device, &uses, second, |bytes| bytes[1] ^= 1);
    damage_bitmap(&rig, 0);
    is_stuck(&mut rig, "one more");
    strike(&rig.device, &uses, second, |bytes| bytes[1] ^= 1);
    assert_eq!(checked(&rig).bitmap, BitmapRemedy::Repair);
}

/// In a part of the bitmap that cannot be read all is in use then; and no mount does that, whose intent log may have something there.
#[test]
fn a_part_of_the_bitmap_that_cannot_be_read_is_all_in_use_after_a_repair() {
    let (mut rig, mend, _) = lost_way(3 * 32_768 - 100, 10);
    let free = rig.module.status().space.free;
    damage_bitmap(&rig, 0);
    rig.reopen();
    assert!(rig.module.status().read_only.is_some());
    let found = checked(&rig);
    assert_eq!(found.bitmap, BitmapRemedy::Repair, "{found:?}");
    assert!((31_000..32_768).contains(&found.withheld_blocks), "{found:?}");
    repair(&rig);
    rig.reopen();
    let status = rig.module.status();
    assert!(status.read_only.is_none() && (free - 31_300..free - 31_000).contains(&status.space.free), "{status:?}");
    fill_and_mend(&mut rig, mend);
    assert!(rig.module.status().space.free > free - 1200, "all of it can be used again");
}

#[test]
fn nothing_is_made_of_a_bitmap_that_has_fewer_in_use_than_are_counted_or_is_wrong_both_ways() {
    let (rig, _, uses) = lost_way(1024, 10);
    let (free, live) = (600, page_at(&uses, 65));
    // Of what is hidden one is free in the bitmap; and with another one that is in use, it would be as many.
    for (what, bits) in
        [("one hidden", vec![page_at(&uses, 40)]), ("one in use, and two not", vec![live, free, free + 1])]
    {
        let mut rig = Rig::over(&rig, std::sync::Arc::new(rig.device.as_ref().clone())).unwrap();
        flip(&rig, &bits);
        is_stuck(&mut rig, what);
    }
    // More are reached than are counted.
    let mut other = Rig::over(&rig, std::sync::Arc::new(rig.device.as_ref().clone())).unwrap();
    add_to_superblock(&other, FREE, 55);
    is_stuck(&mut other, "55 too many");
    // Nor of one that leaves no room, as this one has but one part.
    let mut rig = rig;
    damage_bitmap(&rig, 0);
    is_stuck(&mut rig, "nothing can be read");
}

/// The other part is in the device's first third, where all is that was written here.
#[test]
fn nothing_is_made_of_a_part_of_the_bitmap_if_the_number_of_blocks_or_the_other_part_is_known_to_be_wrong() {
    type Strike = fn(&Rig, &[BlockUse]);
    let strikes: [(&str, Strike, bool); 4] = [
        ("nothing", |_, _| (), false),
        ("one in use is free", |rig, uses| flip(rig, &[page_at(uses, 65)]), true),
        ("fewer are counted than are reached", |rig, _| add_to_superblock(rig, FREE, 55), true),
        ("more are counted than there can be", |rig, _| add_to_superblock(rig, FREE, -40_000), true),
    ];
    for (what, strike, stuck) in strikes {
        let (mut rig, _, uses) = lost_way(3 * 32_768 - 100, 10);
        assert!(page_at(&uses, 65) < 32_768);
        strike(&rig, &uses);
        damage_bitmap(&rig, 1);
        if stuck {
            is_stuck(&mut rig, what);
        } else {
            assert_eq!(checked(&rig).bitmap, BitmapRemedy::Repair, "{what}");
        }
    }
}

/// The number of blocks fits, so that nothing else tells; and no mount goes by it.
#[test]
fn nothing_is_made_of_a_bitmap_in_which_a_label_is_free() {
    let (mut rig, ..) = lost_way(1024, 10);
    flip(&rig, &[0, 600]);
    is_stuck(&mut rig, "a label");
}

/// What an epoch has changed goes bad in memory.
fn begin_anew(rig: &mut Rig) -> Result<()> {
    let write = rig.write_op(2, &[(66, pattern(66))]);
    rig.apply(vec![write]);
    let lab = rig.module.lab();
    let target = lab.targets(MetaKind::Record).into_iter().find(|target| target.state == State::Changed).unwrap();
    let (_, at, length) = lab.layout(&target).unwrap().fields[1];
    lab.strike(&target, at, &vec![0x5a; length]).expect("it is there");
    assert!(matches!(rig.try_commit(), Err(Error::GivenUp(_))));
    rig.module.begin_anew()
}

#[test]
fn what_is_hidden_stays_in_use_when_an_epoch_is_begun_anew() {
    let (mut rig, mend, _) = lost_way(1024, 10);
    let space = rig.module.status().space;
    for _ in 0..2 {
        begin_anew(&mut rig).unwrap();
        let again = rig.module.status().space;
        assert_eq!((again.free, again.pending), (space.free, space.pending));
    }
    let write = rig.write_op(2, &[(66, pattern(66))]);
    rig.apply(vec![write]);
    rig.commit();
    fill_and_mend(&mut rig, mend);
}

/// The store takes no changes then, and what is told sends nobody after the memory. A repair would make one.
#[test]
fn no_epoch_is_begun_anew_with_a_bitmap_that_would_be_rebuilt_beside_what_is_hidden() {
    let (mut rig, ..) = lost_way(3 * 32_768 - 100, 10);
    damage_bitmap(&rig, 0);
    assert_eq!(checked(&rig).bitmap, BitmapRemedy::Repair);
    let error = begin_anew(&mut rig).unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error}");
    let told = error.to_string();
    assert!(
        told.contains(
            "then unmount, see what holdfast check says: the last recovery point cannot be read again. Why: "
        ),
        "{told}"
    );
    assert!(!told.contains("is sound") && !told.contains("memory tested"), "{told}");
}

/// With a second snapshot.
fn keep_second(rig: &mut Rig) {
    rig.module.snapshot_create(MAIN, rig.next_epoch(), "second", Timestamp::default()).unwrap();
    rig.commit();
    let write = rig.write_op(2, &[(21, pattern(501)), (65, pattern(502))]);
    rig.apply(vec![write]);
    rig.commit();
}

/// Its entry is damaged.
fn damage_second(rig: &Rig) {
    let uses = block_uses(rig.device.clone()).unwrap();
    let list = uses.iter().find(|used| used.role == BlockRole::SnapshotList).unwrap();
    strike(&rig.device, &uses, list, |bytes| bytes[1024 + 40] = 4);
}

/// No mount deletes the other one, as it takes no changes.
#[test]
fn a_damaged_entry_of_the_snapshot_list_beside_it_stays_where_a_repair_has_no_room() {
    let (mut rig, ..) = lost_way(1024, 10);
    keep_second(&mut rig);
    fill_until(&mut rig, 60);
    damage_second(&rig);
    is_stuck(&mut rig, "an entry");
}

#[test]
fn a_damaged_entry_of_the_snapshot_list_beside_it_goes() {
    let (mut rig, mend, _) = lost_way(1024, 10);
    keep_second(&mut rig);
    damage_second(&rig);
    let found = checked(&rig);
    assert_eq!((found.bitmap, found.withheld_blocks), (BitmapRemedy::Repair, 54), "{found:?}");
    let report = repair(&rig);
    let left = report.findings.iter().filter(|it| !it.repaired).map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(left, [FindingKind::Unreadable; 2], "{report:?}");
    rig.reopen();
    assert_eq!(rig.module.status().read_only, None);
    let names: Vec<_> = rig.module.snapshots(MAIN).unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["kept"]);
    let id = rig.module.snapshot_deletions(MAIN)[0].id;
    while rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap() {
        rig.commit();
    }
    rig.commit();
    fill_and_mend(&mut rig, mend);
}

/// Nothing tells then whether the damaged one is as old as its table says: what it had goes over to the newest of the others.
#[test]
fn what_a_snapshot_has_that_cannot_be_read_is_not_freed_with_one_whose_age_is_damaged() {
    let mut rig = Rig::new(1024);
    let write = rig.write_op(2, &(0..64).map(|page| (page, pattern(page))).collect::<Vec<_>>());
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    // Of page 20, the second and the third snapshot have what is written after the first, and the domain has not.
    for (name, page, seed) in [("first", 20, 920), ("second", 30, 930), ("third", 20, 940)] {
        rig.module.snapshot_create(MAIN, rig.next_epoch(), name, Timestamp::default()).unwrap();
        rig.commit();
        let write = rig.write_op(2, &[(page, pattern(seed))]);
        rig.apply(vec![write]);
        rig.commit();
    }
    let first = rig.module.snapshots(MAIN).unwrap()[0].epoch;
    let uses = block_uses(rig.device.clone()).unwrap();
    let leaves: Vec<u64> = uses.iter().filter(|it| it.held && it.level == 1).map(|it| it.block).collect();
    assert_eq!(leaves.len(), 6, "two copies for each snapshot, the oldest first");
    let (leaves, good) = (&leaves[2..4], bytes_of(&rig.device, leaves[2]));
    let list = uses.iter().find(|used| used.role == BlockRole::SnapshotList).unwrap();
    strike(&rig.device, &uses, list, |bytes| {
        let entry = &mut bytes[2048..];
        entry[40] = 4;
        let birth = &(first + 1).to_le_bytes()[..5];
        // Of the root of its table.
        (0..2).for_each(|at| entry[512 + 384 + 12 + 5 * at..][..5].copy_from_slice(birth));
    });
    leaves.iter().for_each(|leaf| rig.device.alter(*leaf, |block| block[5] ^= 1).unwrap());
    assert_eq!(repair(&rig).unrepaired(), 2);
    rig.reopen();
    let id = rig.module.snapshot_deletions(MAIN)[0].id;
    while rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap() {
        rig.commit();
    }
    rig.commit();
    fill(&mut rig, 1000);
    leaves.iter().for_each(|leaf| rig.device.alter(*leaf, |block| *block = good).unwrap());
    rig.reopen();
    let second = rig.module.snapshots(MAIN).unwrap()[1].id;
    for page in 0..64 {
        let expected = pattern(if page == 20 { 920 } else { page });
        assert!(rig.read_one(ObjectId(2).in_snapshot(second).0, page) == Some(expected), "page {page}");
    }
    rig.check();
}

/// Also what lies below a tree block that some of them share.
#[test]
fn a_block_that_is_listed_nowhere_is_told_once_with_all_snapshots_that_have_it() {
    let mut rig = Rig::new(1024);
    let write = rig.write_op(2, &(0..64).chain([65]).map(|page| (page, pattern(page))).collect::<Vec<_>>());
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    // The second and the third share a block above pages; the first has another one, of nearly the same pages.
    for (name, page) in [("first", 21), ("second", 65)] {
        rig.module.snapshot_create(MAIN, rig.next_epoch(), name, Timestamp::default()).unwrap();
        let write = rig.write_op(2, &[(page, pattern(700 + page))]);
        rig.apply(vec![write]);
        rig.commit();
    }
    rig.module.snapshot_create(MAIN, rig.next_epoch(), "third", Timestamp::default()).unwrap();
    rig.commit();
    let ids: Vec<u16> = rig.module.snapshots(MAIN).unwrap().iter().map(|it| it.id.0).collect();
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_leaf = |it: &&BlockUse| !it.held && it.object == Some(key(2)) && (it.level, it.index) == (1, 0);
    let leaf: Vec<u64> = uses.iter().filter(is_leaf).map(|it| it.block).collect();
    let good = bytes_of(&rig.device, leaf[0]);
    // The domain loses its way there.
    leaf.iter().for_each(|block| rig.device.alter(*block, |block| block[5] ^= 1).unwrap());
    rig.reopen();
    let write = rig.write_op(2, &[(20, pattern(500))]);
    rig.apply(vec![write]);
    rig.commit();
    leaf.iter().for_each(|block| rig.device.alter(*block, |block| *block = good).unwrap());
    let found = checked(&rig).findings;
    let told = |page: u64| -> Vec<&str> {
        let is = |it: &&Finding| it.kind == FindingKind::Unlisted && it.place.address == Some(page_at(&uses, page));
        found.iter().filter(is).map(|it| &it.what[..]).collect()
    };
    let [all, two] = [&ids[..], &ids[1..]].map(|ids| {
        let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
        format!("a block of snapshots {}, in no dead list", ids.join(", "))
    });
    assert_eq!((told(40), told(21)), (vec![&all[..]], vec![&two[..]]), "{found:?}");
    let unlisted = found.iter().filter(|it| it.kind == FindingKind::Unlisted).count();
    assert_eq!(unlisted, 64, "each page of the block: {found:?}");
}
