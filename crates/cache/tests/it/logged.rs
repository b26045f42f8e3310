//! Pages that go bad in memory when the intent log has them: what a sync has answered stays.

use crate::rig::{Rig, pattern};
use holdfast_object::*;

const PAGE: u64 = PAGE_SIZE as u64;

/// A file of three pages, and a bit of a fourth, whose newest contents only the log has.
fn synced(rig: &Rig, is_stored: bool) -> (ObjectId, Vec<u8>) {
    let id = rig.create(Kind::Regular);
    let length = 3 * PAGE_SIZE + 100;
    if is_stored {
        rig.write(id, 0, &pattern(1, length)).unwrap();
        rig.cache.sync_all().unwrap();
    }
    let newest = pattern(2, length);
    rig.write(id, 0, &newest).unwrap();
    sync(rig, id);
    (id, newest)
}

fn sync(rig: &Rig, id: ObjectId) {
    let epoch = rig.module.status().epoch;
    rig.cache.sync(id, Durability::All).unwrap();
    assert_eq!(rig.module.status().epoch, epoch, "it goes into the log");
}

fn bad(rig: &Rig, id: ObjectId) -> Vec<PageIndex> {
    rig.cache.bad_pages(id, 0, 100).unwrap()
}

#[test]
fn a_page_that_was_synced_is_read_again_from_the_log() {
    for mode in ["uniform", "static", "dynamic=92", "end-to-end=crc64", "end-to-end=xor64"] {
        for is_stored in [true, false] {
            for finder in ["a reader", "a write to a part", "a recovery point"] {
                if mode.starts_with("end-to-end") && finder == "a recovery point" {
                    // Nobody looks at a page there but its readers.
                    continue;
                }
                let what = format!("{mode}, {finder}, stored before: {is_stored}");
                let rig = Rig::new(2048).remount_in(mode.parse().unwrap());
                let (id, mut newest) = synced(&rig, is_stored);
                for index in [1, 3] {
                    rig.flip(id, index, 77);
                }
                match finder {
                    "a reader" => {}
                    "a write to a part" => {
                        rig.write(id, PAGE + 7, b"part").unwrap();
                        newest[PAGE_SIZE + 7..][..4].copy_from_slice(b"part");
                    }
                    _ => drop(rig.cache.sync_all().unwrap()),
                }
                assert_eq!(rig.contents(id).unwrap(), newest, "{what}");
                assert!(
                    bad(&rig, id).is_empty() && rig.cache.sync(id, Durability::All).is_ok(),
                    "{what}: nothing is amiss"
                );
                assert!(rig.cache.status().pages_reread > 0, "{what}");
                rig.cache.check();
                assert_eq!(rig.remount().contents(id).unwrap(), newest, "{what}: after a recovery point");
            }
        }
    }
}

#[test]
fn of_a_page_whose_newest_version_is_lost_the_one_that_was_synced_stays() {
    for is_stored in [true, false] {
        for finder in ["a sync", "a recovery point", "a reader"] {
            for is_cut in [false, true] {
                let what = format!("{finder}, stored before: {is_stored}, power cut: {is_cut}");
                let rig = Rig::new(2048);
                let (id, before) = synced(&rig, is_stored);
                let mut newest = before.clone();
                newest[PAGE_SIZE..2 * PAGE_SIZE].copy_from_slice(&pattern(3, PAGE_SIZE));
                rig.write(id, PAGE, &newest[PAGE_SIZE..2 * PAGE_SIZE]).unwrap();
                rig.flip(id, 1, 77);
                match finder {
                    "a sync" => drop(rig.cache.sync(id, Durability::All).unwrap_err()),
                    "a reader" => drop(rig.page(id, 1).unwrap_err()),
                    _ => {}
                }
                rig.cache.sync_all().unwrap();
                assert!(bad(&rig, id) == [1] && rig.page(id, 1).is_err(), "{what}: until it is written again");
                rig.cache.check();
                let rig = if is_cut { rig.power_cut() } else { rig.remount() };
                assert_eq!(rig.contents(id).unwrap(), before, "{what}");
            }
        }
    }
}

/// Of what has been cut off since, nothing comes back.
#[test]
fn what_was_synced_and_cut_off_since_does_not_come_back() {
    for is_cut_synced in [false, true] {
        for is_zeroed in [false, true] {
            let what = format!("the cut was synced: {is_cut_synced}, zeroed: {is_zeroed}");
            let rig = Rig::new(2048);
            let (id, _) = synced(&rig, false);
            let cut = match is_zeroed {
                true => Op::Zero { id, offset: PAGE, length: PAGE },
                false => Op::Truncate { id, size: PAGE },
            };
            rig.submit(vec![cut]).unwrap();
            if is_cut_synced {
                rig.cache.sync(id, Durability::All).unwrap();
            }
            rig.write(id, PAGE, &pattern(3, PAGE_SIZE)).unwrap();
            rig.flip(id, 1, 77);
            rig.cache.sync_all().unwrap();
            assert!(rig.page(id, 1).is_err(), "{what}");
            let rig = rig.remount();
            assert!(matches!(rig.page(id, 1), Err(Error::Lost { .. })), "{what}");
        }
    }
}

/// A version that went bad is not taken for an older one that the log has.
#[test]
fn readers_get_no_older_version_than_the_one_that_went_bad() {
    let rig = Rig::new(2048);
    let (id, _) = synced(&rig, true);
    rig.write(id, PAGE, &pattern(3, PAGE_SIZE)).unwrap();
    rig.flip(id, 1, 77);
    assert!(rig.page(id, 1).is_err());
    rig.write(id, PAGE, &pattern(4, PAGE_SIZE)).unwrap();
    assert_eq!(rig.page(id, 1).unwrap()[..], pattern(4, PAGE_SIZE)[..]);
    assert_eq!(rig.remount().page(id, 1).unwrap()[..], pattern(4, PAGE_SIZE)[..]);
}

/// The log knows a page by the file that it was synced as: a copy gets it from there before it shares it.
#[test]
fn a_copy_of_what_was_synced_is_good() {
    let rig = Rig::new(2048);
    let (source, newest) = synced(&rig, false);
    let target = rig.create(Kind::Regular);
    rig.flip(source, 1, 77);
    let (pages, size_min) = (4, newest.len() as u64);
    rig.submit(vec![Op::Copy { source, source_first: 0, target, target_first: 0, pages, size_min }]).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.contents(target).unwrap(), newest);
        rig.cache.sync_all().unwrap();
    }
    let rig = rig.remount();
    assert!(rig.contents(target).unwrap() == newest && rig.contents(source).unwrap() == newest);
}
