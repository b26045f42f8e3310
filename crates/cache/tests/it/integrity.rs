//! Flips in memory: never read, never written.

use crate::rig::{Rig, pattern};
use crate::scrub::{alter, damage};
use holdfast_integrity::{Algorithm, Protection};
use holdfast_object::*;

#[test]
fn a_clean_page_is_read_again_from_below() {
    let rig = Rig::new(2048).remount();
    let id = rig.create(Kind::Regular);
    let bytes = pattern(1, PAGE_SIZE);
    rig.write(id, 0, &bytes).unwrap();
    rig.cache.sync_all().unwrap();
    rig.flip(id, 0, 1234);
    let views = rig.cache.read(id, 0, 1).unwrap();
    let PageView::Data(bad) = &views[0] else { panic!("no bytes") };
    assert!(bad.verify().is_err());
    let PageView::Data(good) = rig.cache.reread(id, 0, bad.page()).unwrap() else { panic!("no bytes") };
    assert_eq!(good.verify().unwrap(), &bytes[..]);
    assert_eq!(rig.contents(id).unwrap(), bytes);
    assert_eq!(rig.cache.status().pages_reread, 1);
}

/// Where what readers verify is stored, a page comes from the device as it is, and its reader verifies it.
#[test]
fn what_the_device_gives_wrong_is_found_by_the_reader_and_told_of_the_device() {
    let end_to_end = ["end-to-end=xor64", "end-to-end=fletcher256", "end-to-end=crc64"];
    let others = ["uniform", "static=strong", "dynamic=0", "uniform=blake3", "static", "dynamic=92", "disk"];
    for mode in others.into_iter().chain(end_to_end) {
        let rig = Rig::new(2048).remount_in(mode.parse().unwrap());
        let id = rig.create(Kind::Regular);
        let mut bytes = pattern(1, 3 * PAGE_SIZE);
        rig.write(id, 0, &bytes).unwrap();
        let rig = rig.remount_in(mode.parse().unwrap());
        damage(&rig, id, 1);
        let read = rig.cache.read(id, 0, 3);
        assert_eq!(read.is_ok(), mode != "disk", "{mode}: whose readers verify nothing");
        drop(read);
        assert!(rig.page(id, 0).is_ok() && rig.page(id, 2).is_ok(), "{mode}: the neighbours");
        let error = rig.page(id, 1).unwrap_err();
        let Error::Corrupt(found) = &error else { panic!("{mode}: {error}") };
        assert_eq!((found.place.object.map(|key| key.object), found.place.index), (Some(id), Some(1)), "{mode}");
        assert!(found.place.device.is_some() && found.place.address.is_some(), "{mode}: {error}");
        assert_eq!(rig.cache.status().pages_reread, 0, "{mode}: memory is not to blame");
        // Neither does it get into a new version of the page.
        assert!(rig.write(id, PAGE_SIZE as u64 + 7, b"part").is_err(), "{mode}");
        bytes[PAGE_SIZE..2 * PAGE_SIZE].copy_from_slice(&pattern(2, PAGE_SIZE));
        rig.write(id, PAGE_SIZE as u64, &bytes[PAGE_SIZE..2 * PAGE_SIZE]).unwrap();
        assert_eq!(rig.remount().contents(id).unwrap(), bytes, "{mode}");
    }
}

/// Two flips in one column of its words, which xor does not see.
fn unseen_by_xor(bytes: &mut [u8; PAGE_SIZE]) {
    let before = Protection::FAST.sum(&bytes[..]);
    bytes[100] ^= 4;
    bytes[108] ^= 4;
    assert_eq!(Protection::FAST.sum(&bytes[..]), before);
}

/// xor stands for memory, not for the device: who reads a page first goes by the strong checksum, everybody after that by xor.
#[test]
fn the_first_reader_of_a_page_from_the_device_goes_by_the_strong_checksum() {
    for mode in ["static", "dynamic=92"] {
        let rig = Rig::new(2048).remount_in(mode.parse().unwrap());
        let id = rig.create(Kind::Regular);
        rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
        let rig = rig.remount_in(mode.parse().unwrap());
        alter(&rig, id, 1, unseen_by_xor);
        let expected = |index| {
            let PageView::Data(page) = rig.cache.read(id, index, 1).unwrap().remove(0) else { panic!("no bytes") };
            (page.expected().algorithm(), page)
        };
        for index in [0, 1, 2] {
            let (algorithm, page) = expected(index);
            assert_eq!(algorithm, Protection::STRONG, "{mode}: page {index}");
            assert_eq!(page.verify().is_ok(), index != 1, "{mode}: page {index}");
        }
        assert_eq!([0, 2].map(|index| expected(index).0), [Protection::FAST; 2], "{mode}");
        let error = rig.page(id, 1).unwrap_err();
        let Error::Corrupt(found) = &error else { panic!("{mode}: {error}") };
        assert!(found.place.device.is_some() && found.place.index == Some(1), "{mode}: {error}");
        // Neither does a part of it get into a new version.
        assert!(rig.write(id, PAGE_SIZE as u64 + 7, b"part").is_err(), "{mode}");
    }
}

/// A directory's page has a second copy, and what reads it believes what it says.
#[test]
fn a_page_of_metadata_is_verified_before_it_comes() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Directory);
    let bytes = pattern(1, PAGE_SIZE);
    rig.write(id, 0, &bytes).unwrap();
    let rig = rig.remount();
    damage(&rig, id, 0);
    assert!(matches!(rig.cache.read(id, 0, 1), Err(Error::Corrupt(_))));
}

/// Whoever has a frame can put any bytes into it, and a fresh checksum under them.
#[test]
fn a_whole_page_of_metadata_without_a_second_sum_is_refused() {
    let kinds = [(Kind::Directory, false), (Kind::Symlink, false), (Kind::Xattr, false), (Kind::Regular, true)];
    for (kind, is_taken) in kinds {
        let rig = Rig::new(2048);
        let id = rig.create(kind);
        let (before, bytes) = (pattern(1, PAGE_SIZE), pattern(2, PAGE_SIZE));
        rig.write(id, 0, &before).unwrap();
        let mut frame = rig.cache.frames(1).unwrap().pop().unwrap();
        frame.copy_from_slice(&bytes);
        let pin = frame.publish(Algorithm::Crc64Nvme.sum(&bytes));
        let fragments = vec![Fragment { index: 0, start: 0, end: PAGE_SIZE as u16, page: pin.page() }];
        let outcome = rig.submit(vec![Op::Write { id, fragments, size_min: PAGE_SIZE as u64 }]);
        assert_eq!(outcome.is_ok(), is_taken, "{kind:?}: {outcome:?}");
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.contents(id).unwrap(), if is_taken { bytes } else { before }, "{kind:?}");
    }
}

#[test]
fn a_clean_page_is_mended_before_a_partial_write() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let mut bytes = pattern(1, PAGE_SIZE);
    rig.write(id, 0, &bytes).unwrap();
    rig.cache.sync_all().unwrap();
    rig.flip(id, 0, 3000);
    rig.write(id, 10, b"part").unwrap();
    bytes[10..14].copy_from_slice(b"part");
    assert_eq!(rig.contents(id).unwrap(), bytes);
}

#[test]
fn a_dirty_page_never_reaches_the_store() {
    let rig = Rig::new(2048);
    let (id, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    let old = pattern(1, 2 * PAGE_SIZE);
    rig.write(id, 0, &old).unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &pattern(2, PAGE_SIZE)).unwrap();
    rig.write(other, 0, b"neighbour").unwrap();
    rig.flip(id, 0, 77);
    rig.cache.sync_all().unwrap();
    assert!(matches!(rig.contents(id), Err(Error::Corrupt(_))), "an error until it is written again");
    assert!(rig.cache.sync(id, Durability::All).is_err(), "a sync tells");
    assert!(rig.cache.sync(id, Durability::All).is_ok(), "once");
    rig.cache.check();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(id).unwrap(), old, "the store has what it had");
    assert_eq!(rig.contents(other).unwrap(), b"neighbour");
}

#[test]
fn a_page_without_an_older_version_is_lost_not_zero() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(2, 2 * PAGE_SIZE)).unwrap();
    rig.flip(id, 1, 77);
    rig.cache.sync_all().unwrap();
    rig.cache.sync_all().unwrap();
    let rig = rig.power_cut();
    assert!(rig.cache.read(id, 0, 1).is_ok());
    assert!(matches!(rig.cache.read(id, 1, 1), Err(Error::Lost { side: Side::Memory, .. })));
    rig.write(id, PAGE_SIZE as u64, &pattern(3, PAGE_SIZE)).unwrap();
    assert_eq!(rig.contents(id).unwrap()[PAGE_SIZE..], pattern(3, PAGE_SIZE));
}

#[test]
fn damaged_bytes_are_refused_when_they_arrive() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let mut frame = rig.cache.frames(1).unwrap().pop().unwrap();
    frame[100..200].fill(1);
    let pin = frame.publish(Algorithm::Crc64Nvme.sum(&[2; 100]));
    let fragment = Fragment { index: 0, start: 100, end: 200, page: pin.page() };
    let outcome = rig.submit(vec![Op::Write { id, fragments: vec![fragment], size_min: 200 }]);
    assert!(outcome.is_err());
    assert_eq!(rig.cache.attributes(id).unwrap().size, 0);
}

#[test]
fn a_bad_page_at_a_sync_costs_that_page_only() {
    let rig = Rig::new(2048);
    let (id, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(id, 0, &pattern(1, 2 * PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &pattern(2, 2 * PAGE_SIZE)).unwrap();
    rig.flip(id, 1, 77);
    assert!(matches!(rig.cache.sync(id, Durability::All), Err(Error::Corrupt(_))), "the sync tells");
    rig.write(other, 0, b"goes on").unwrap();
    rig.cache.sync(other, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(other).unwrap(), b"goes on");
    let mut expected = pattern(2, PAGE_SIZE);
    expected.extend_from_slice(&pattern(1, 2 * PAGE_SIZE)[PAGE_SIZE..]);
    assert_eq!(rig.contents(id).unwrap(), expected, "the good page is new, the bad one as it was");
}

#[test]
fn pages_that_are_old_are_read_under_the_strong_checksum_wherever_they_come_from() {
    for made_in in [Protection::None, Protection::Uniform, Protection::Static { strong: false }] {
        let rig = Rig::new(2048).remount_in(made_in);
        let (id, copy) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
        let size_min = 3 * PAGE_SIZE as u64;
        let bytes = pattern(1, 3 * PAGE_SIZE);
        rig.write(id, 0, &bytes).unwrap();
        let rig = rig.remount_in(Protection::Dynamic { t_switch_s: 92 });
        let switched = || rig.cache.status().pages_switched;
        let read = |id, pages| {
            assert!(rig.contents(id).unwrap() == bytes, "{made_in}");
            assert_eq!(switched(), pages, "{made_in}");
        };
        read(id, 0);
        rig.clock.advance_ns(93_000_000_000);
        read(id, 3);
        // Two files have them now, and they are as old as they were.
        let op = Op::Copy { source: id, source_first: 0, target: copy, target_first: 0, pages: 3, size_min };
        rig.submit(vec![op]).unwrap();
        read(copy, 6);
        read(id, 9);
    }
}
