//! What a scrub makes of pages that the store has no good copy of.

use crate::front::Front;
use crate::rig::{Rig, pattern};
use holdfast_integrity::Protection;
use holdfast_object::*;
use holdfast_physical::check::{BlockRole, block_uses};

const PAGE: u64 = PAGE_SIZE as u64;

fn scrub(rig: &Rig) -> (ScrubCounts, Vec<ScrubFinding>) {
    let (mut counts, mut findings, mut cursor) = (ScrubCounts::default(), Vec::new(), ScrubCursor::default());
    while cursor != ScrubCursor::End {
        let step = rig.cache.scrub_step(&cursor, 8).unwrap();
        counts.add(&step.counts);
        findings.extend(step.findings);
        cursor = step.cursor;
    }
    rig.cache.check();
    (counts, findings)
}

/// Flips a bit in every copy of a page on the device.
pub(crate) fn damage(rig: &Rig, id: ObjectId, index: PageIndex) {
    alter(rig, id, index, |bytes| bytes[100] ^= 4);
}

/// Changes every copy of a page on the device.
pub(crate) fn alter(rig: &Rig, id: ObjectId, index: PageIndex, change: impl Fn(&mut [u8; PAGE_SIZE])) {
    let role = |role| matches!(role, BlockRole::Data | BlockRole::MetadataPage);
    let uses = block_uses(rig.device.clone()).unwrap();
    let is_it = |key: ObjectKey| key.domain == DomainId::MAIN && key.object == id;
    let mut found = 0;
    for used in uses.iter().filter(|used| role(used.role) && used.object.is_some_and(is_it) && used.index == index) {
        rig.device.alter(used.block, &change).unwrap();
        found += 1;
    }
    assert!(found > 0);
}

/// A file of three pages, in the store and not in memory.
fn stored() -> (Rig, ObjectId, Vec<u8>) {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let bytes = pattern(1, 3 * PAGE_SIZE);
    rig.write(id, 0, &bytes).unwrap();
    (rig.remount(), id, bytes)
}

#[test]
fn a_page_in_no_copy_and_not_in_memory_is_lost_for_good_and_told_once() {
    let (rig, id, bytes) = stored();
    damage(&rig, id, 1);
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost, counts.unrepaired, counts.repaired), (1, 0, 0), "{findings:?}");
    assert_eq!((findings[0].fate, findings[0].place.index), (Fate::Lost, Some(1)));
    assert!(rig.page(id, 1).is_err(), "also before the epoch is written");
    let rig = rig.remount();
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost_before, counts.lost, counts.unrepaired), (1, 0, 0), "{findings:?}");
    assert!(matches!(rig.cache.read(id, 1, 1), Err(Error::Lost { side: Side::Device, .. })), "never zeros");
    assert!(rig.cache.read(id, 0, 1).is_ok() && rig.cache.read(id, 2, 1).is_ok());
    rig.write(id, PAGE, &bytes[PAGE_SIZE..2 * PAGE_SIZE]).unwrap();
    let rig = rig.remount();
    assert_eq!(rig.contents(id).unwrap(), bytes);
    assert_eq!(scrub(&rig).0.lost_before, 0);
}

#[test]
fn a_page_that_is_in_memory_still_is_written_again() {
    let (rig, id, bytes) = stored();
    assert_eq!(rig.contents(id).unwrap(), bytes);
    damage(&rig, id, 2);
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.repaired, counts.lost, counts.unrepaired), (1, 0, 0), "{findings:?}");
    let rig = rig.remount();
    assert_eq!(rig.contents(id).unwrap(), bytes);
    assert_eq!(scrub(&rig).1, []);
}

/// In `none` and `disk` nothing in memory says that a page is what was stored: only the checksum that the store has of it does.
#[test]
fn a_page_that_was_read_without_being_verified_gets_no_good_checksum() {
    let (rig, id, bytes) = stored();
    let rig = rig.remount_in(Protection::None);
    damage(&rig, id, 2);
    assert_ne!(rig.contents(id).unwrap(), bytes);
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost, counts.repaired), (1, 0), "{findings:?}");
    let rig = rig.remount_in(Protection::Uniform);
    assert!(matches!(rig.cache.read(id, 2, 1), Err(Error::Lost { side: Side::Device, .. })));
}

#[test]
fn a_page_in_memory_that_is_bad_too_does_not_help() {
    let (rig, id, bytes) = stored();
    assert_eq!(rig.contents(id).unwrap(), bytes);
    damage(&rig, id, 2);
    rig.flip(id, 2, 55);
    assert_eq!(scrub(&rig).0.lost, 1);
    let rig = rig.remount();
    assert!(matches!(rig.cache.read(id, 2, 1), Err(Error::Lost { side: Side::Device, .. })));
}

#[test]
fn a_page_that_has_been_changed_meanwhile_is_left_alone() {
    let (rig, id, mut bytes) = stored();
    damage(&rig, id, 0);
    damage(&rig, id, 2);
    let new = pattern(9, PAGE_SIZE);
    rig.write(id, 0, &new).unwrap();
    rig.submit(vec![Op::Truncate { id, size: 2 * PAGE }]).unwrap();
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost, counts.repaired, counts.unrepaired), (0, 0, 0), "{findings:?}");
    assert_eq!(findings, []);
    bytes[..PAGE_SIZE].copy_from_slice(&new);
    let rig = rig.remount();
    assert_eq!(rig.contents(id).unwrap(), bytes[..2 * PAGE_SIZE]);
    assert_eq!(scrub(&rig).1, []);
}

#[test]
fn a_deleted_file_is_nobodys_loss() {
    let (rig, id, _) = stored();
    damage(&rig, id, 0);
    rig.submit(vec![Op::Delete { id }]).unwrap();
    assert_eq!(scrub(&rig).1, []);
    let rig = rig.remount();
    assert_eq!(scrub(&rig).1, []);
}

#[test]
fn a_page_of_a_directory_is_never_marked_as_lost() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Directory);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    let rig = rig.remount();
    damage(&rig, id, 0);
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost, counts.unrepaired), (0, 1), "{findings:?}");
    // What is in memory does help.
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Directory);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    damage(&rig, id, 0);
    assert_eq!(scrub(&rig).0.repaired, 1);
    assert_eq!(rig.remount().contents(id).unwrap(), pattern(1, PAGE_SIZE));
}

/// Where its blocks are good for nothing any more, it is written to others, and that is no logic bug: no request has asked for it.
#[test]
fn a_page_of_a_directory_that_is_in_memory_goes_to_other_blocks() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Directory);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    let uses = block_uses(rig.device.clone()).unwrap();
    let pages = uses.iter().filter(|used| used.role == BlockRole::MetadataPage && used.object.unwrap().object == id);
    let bad: Vec<u64> = pages.map(|used| used.block).collect();
    let device = rig.device.clone();
    let front = Front::new(device, move |first| if bad.contains(&first) { 2047 } else { first });
    let rig = rig.remount_through(front);
    rig.contents(id).unwrap();
    damage(&rig, id, 0);
    assert_eq!(scrub(&rig).0.repaired, 1);
    rig.cache.sync_all().unwrap();
    let counters = rig.cache.store_status().counters;
    assert_eq!((counters.audit_failures, counters.restarts), (0, 0));
    assert_eq!(rig.power_cut().contents(id).unwrap(), pattern(1, PAGE_SIZE));
}

/// It is not where what leads to the page cannot be read on the device, and is still in memory.
#[test]
fn a_bad_copy_of_a_directorys_page_that_is_not_repaired_is_told() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Directory);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    let rig = rig.remount();
    rig.contents(id).unwrap();
    let uses = block_uses(rig.device.clone()).unwrap();
    let copy =
        uses.iter().find(|used| used.role == BlockRole::MetadataPage && used.object.unwrap().object == id).unwrap();
    let tables = uses.iter().filter(|used| used.role == BlockRole::ObjectTable && used.object.unwrap().object.0 == 16);
    for block in tables.map(|used| used.block).chain([copy.block]) {
        rig.device.alter(block, |bytes| bytes[100] ^= 4).unwrap();
    }
    let (counts, findings) = scrub(&rig);
    let of_page: Vec<_> = findings.iter().filter(|it| it.place.address == Some(copy.block)).collect();
    assert!(of_page.len() == 1 && of_page[0].fate == Fate::Unrepaired, "{findings:?}");
    let told = findings.iter().filter(|it| it.fate == Fate::Unrepaired).count();
    assert_eq!(counts.unrepaired, told as u64, "{findings:?}");
}

#[test]
fn a_loss_survives_a_power_cut_only_with_its_epoch() {
    let (rig, id, _) = stored();
    damage(&rig, id, 1);
    assert_eq!(scrub(&rig).0.lost, 1);
    let rig = rig.power_cut();
    assert_eq!(scrub(&rig).0.lost, 1, "found again");
    rig.cache.sync_all().unwrap();
    let rig = rig.power_cut();
    assert_eq!(scrub(&rig).0.lost_before, 1);
}

/// A file of two pages in the store, a copy of it, and a snapshot of both.
fn shared() -> (Rig, [ObjectId; 4], Vec<u8>) {
    let rig = Rig::new(2048);
    let [file, copy] = [rig.create(Kind::Regular), rig.create(Kind::Regular)];
    let bytes = pattern(4, 2 * PAGE_SIZE);
    rig.write(file, 0, &bytes).unwrap();
    rig.cache.sync_all().unwrap();
    let all = Op::Copy {
        source: file,
        source_first: 0,
        target: copy,
        target_first: 0,
        pages: 2,
        size_min: bytes.len() as u64,
    };
    rig.submit(vec![all]).unwrap();
    let kept = rig.cache.snapshot_create("s").unwrap().id;
    (rig.remount(), [file, copy, file.in_snapshot(kept), copy.in_snapshot(kept)], bytes)
}

#[test]
fn a_page_in_memory_as_one_of_whatever_shares_it_is_good_for_all() {
    for in_memory in 0..4 {
        let (rig, ids, bytes) = shared();
        rig.cache.read(ids[in_memory], 1, 1).unwrap();
        damage(&rig, ids[0], 1);
        let (counts, findings) = scrub(&rig);
        assert_eq!((counts.repaired, counts.lost, counts.unrepaired), (1, 0, 0), "{findings:?}");
        let rig = rig.power_cut();
        for id in ids {
            assert_eq!(rig.contents(id).unwrap(), bytes, "{id}");
        }
        assert_eq!(scrub(&rig).1, []);
    }
}

#[test]
fn a_page_without_a_good_copy_is_lost_for_all_that_share_it() {
    let (rig, ids, bytes) = shared();
    damage(&rig, ids[0], 1);
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.repaired, counts.lost, counts.unrepaired), (0, 4, 0), "{findings:?}");
    let mut told: Vec<ObjectId> = findings.iter().map(|found| found.place.object.unwrap().object).collect();
    told.sort_unstable();
    assert_eq!(told, ids);
    assert!(findings.iter().all(|found| found.fate == Fate::Lost));
    let rig = rig.remount();
    for id in ids {
        assert!(rig.page(id, 1).is_err(), "{id}");
        assert!(rig.cache.read(id, 0, 1).is_ok(), "{id}");
    }
    // The files can be written again, the snapshot not: there it stays what it is, and each scrub says so.
    for id in &ids[..2] {
        rig.write(*id, PAGE, &bytes[PAGE_SIZE..]).unwrap();
    }
    let rig = rig.remount();
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.lost_before, counts.lost), (0, 2), "{findings:?}");
    assert!(findings.iter().all(|found| found.place.object.unwrap().object.snapshot() != SnapshotId::LIVE));
}

#[test]
fn a_page_that_only_a_snapshot_has_is_found() {
    let (rig, ids, bytes) = shared();
    let old = block_uses(rig.device.clone()).unwrap();
    for id in &ids[..2] {
        rig.write(*id, 0, &pattern(5, 2 * PAGE_SIZE)).unwrap();
    }
    let rig = rig.remount();
    let is_page = |used: &&holdfast_physical::check::BlockUse| used.role == BlockRole::Data && used.index == 0;
    let block = old.iter().find(is_page).unwrap().block;
    rig.device.alter(block, |bytes| bytes[100] ^= 4).unwrap();
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.repaired, counts.lost, counts.unrepaired), (0, 2, 0), "{findings:?}");
    // With the page in memory, as one of the snapshot's, it comes back.
    rig.device.alter(block, |bytes| bytes[100] ^= 4).unwrap();
    rig.cache.read(ids[3], 0, 1).unwrap();
    rig.device.alter(block, |bytes| bytes[100] ^= 4).unwrap();
    let (counts, findings) = scrub(&rig);
    assert_eq!((counts.repaired, counts.lost, counts.unrepaired), (1, 0, 0), "{findings:?}");
    let rig = rig.remount();
    assert_eq!(rig.contents(ids[2]).unwrap(), bytes);
}
