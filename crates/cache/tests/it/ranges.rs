//! Ranges of pages: where data is, room that a range keeps, copies.

use crate::rig::Rig;
use holdfast_integrity::Algorithm;
use holdfast_object::*;

const PAGE: u64 = PAGE_SIZE as u64;

/// Stores pages of zeroes as an allocation does: all of them are one frame.
pub(crate) fn allocate(rig: &Rig, id: ObjectId, pages: std::ops::Range<u64>, size_min: u64) -> Result<Outcome> {
    let mut frame = rig.cache.frames(1)?.pop().unwrap();
    frame.fill(0);
    let pin = frame.publish(Algorithm::Crc64Nvme.sum(&[0; PAGE_SIZE]));
    let fragment = |index| Fragment { index, start: 0, end: PAGE_SIZE as u16, page: pin.page() };
    rig.submit(vec![Op::Write { id, fragments: pages.map(fragment).collect(), size_min }])
}

/// Under whatever checksum, and under none. What is no zeroes stays.
#[test]
fn stored_zeroes_do_not_fill_the_memory() {
    let rig = Rig::new(8192);
    let zeroes = rig.create(Kind::Regular);
    for (index, algorithm) in (0..).zip(Algorithm::ALL) {
        let mut frame = rig.cache.frames(1).unwrap().pop().unwrap();
        frame.fill(0);
        let pin = frame.publish(algorithm.sum(&[0; PAGE_SIZE]));
        let fragments = vec![Fragment { index, start: 0, end: PAGE_SIZE as u16, page: pin.page() }];
        rig.submit(vec![Op::Write { id: zeroes, fragments, size_min: (index + 1) * PAGE }]).unwrap();
    }
    let other = rig.create(Kind::Regular);
    rig.write(other, 0, &[1; PAGE_SIZE]).unwrap();
    rig.cache.sync_all().unwrap();
    let resident = |id| rig.cache.quiet().resident_pages(|object, _| object == id).len();
    assert_eq!((resident(other), resident(zeroes)), (1, 0));
    assert_eq!(rig.contents(zeroes), Ok(vec![0; Algorithm::ALL.len() * PAGE_SIZE]));
}

fn blocks(rig: &Rig, id: ObjectId) -> u64 {
    rig.cache.attributes(id).unwrap().blocks
}

/// A seek that looked in the store before an epoch put a page there, and in memory after the page had left it, took data
/// for a hole.
#[test]
fn data_is_data_while_epochs_are_written() {
    let rig = Rig::new(8192);
    let id = rig.create(Kind::Regular);
    const PAGES: u64 = 40;
    allocate(&rig, id, 0..PAGES, PAGES * PAGE).unwrap();
    std::thread::scope(|scope| {
        let seekers = scope.spawn(|| {
            for _ in 0..300 {
                // Written again: it is in memory only, then in both, then in the store only.
                let fresh = rig.create(Kind::Regular);
                allocate(&rig, fresh, 0..PAGES, PAGES * PAGE).unwrap();
                let seeker = scope.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(rig.cache.seek(id, 0, Seek::Hole), Ok(Some(PAGES * PAGE)));
                    }
                });
                while !seeker.is_finished() {
                    assert_eq!(rig.cache.seek(fresh, 0, Seek::Hole), Ok(Some(PAGES * PAGE)));
                    assert_eq!(rig.cache.seek(fresh, 5 * PAGE, Seek::Data), Ok(Some(5 * PAGE)));
                }
                seeker.join().unwrap();
                rig.submit(vec![Op::Delete { id: fresh }]).unwrap();
            }
        });
        while !seekers.is_finished() {
            rig.cache.sync_all().unwrap();
        }
    });
    rig.cache.check();
}

#[test]
fn pages_behind_the_end_keep_their_room() {
    for synced in [false, true] {
        for cut in [false, true] {
            let rig = Rig::new(8192);
            let id = rig.create(Kind::Regular);
            rig.write(id, 0, &[7; 3 * PAGE_SIZE]).unwrap();
            if cut {
                rig.submit(vec![Op::Truncate { id, size: 5000 }]).unwrap();
            }
            let size = rig.cache.attributes(id).unwrap().size;
            allocate(&rig, id, 10..30, size).unwrap();
            let expected = size.div_ceil(PAGE) + 20;
            assert_eq!(blocks(&rig, id), expected);
            let rig = if synced {
                rig.cache.sync(id, Durability::All).unwrap();
                rig.power_cut()
            } else {
                rig.remount()
            };
            let attributes = rig.cache.attributes(id).unwrap();
            assert_eq!((attributes.size, attributes.blocks), (size, expected), "synced {synced}, cut {cut}");
            // A later sync, of a change that has nothing to do with it, leaves them.
            rig.write(id, 0, b"more").unwrap();
            rig.cache.sync(id, Durability::All).unwrap();
            let rig = rig.power_cut();
            assert_eq!(blocks(&rig, id), expected);
            rig.write(id, 11 * PAGE + 3, b"tail").unwrap();
            let contents = rig.contents(id).unwrap();
            let at = 11 * PAGE_SIZE + 3;
            assert_eq!((contents.len(), &contents[at..]), (at + 4, &b"tail"[..]));
            assert!(contents[size as usize..at].iter().all(|&byte| byte == 0));
        }
    }
}

/// What has room keeps it, written or allocated: in a full store it can be written again and again.
#[test]
fn what_is_stored_is_written_again_in_a_full_store() {
    let rig = Rig::new(4096);
    let (kept, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    const KEPT: u64 = 1000;
    for first in (0..KEPT).step_by(100) {
        allocate(&rig, kept, first..first + 100, KEPT * PAGE).unwrap();
    }
    let mut filled = 0;
    let error = loop {
        match rig.write(other, filled * PAGE, &[filled as u8; PAGE_SIZE]) {
            Ok(()) => filled += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(filled > 500, "{filled}");
    for round in 1..4u8 {
        for index in 0..KEPT {
            rig.write(kept, index * PAGE, &[round; PAGE_SIZE]).unwrap();
        }
    }
    for index in 0..filled {
        rig.write(other, index * PAGE + 5, b"in the middle").unwrap();
    }
    assert!(rig.write(other, filled * PAGE, &[1; PAGE_SIZE]).is_err(), "there is no more room than before");
    let shared =
        Op::Copy { source: kept, source_first: 0, target: other, target_first: 0, pages: 10, size_min: 10 * PAGE };
    rig.submit(vec![Op::Delete { id: rig.create(Kind::Regular) }]).unwrap();
    if rig.submit(vec![shared]).is_ok() {
        rig.cache.sync_all().unwrap();
    }
    let rig = rig.remount();
    assert!(rig.contents(kept).unwrap().iter().all(|&byte| byte == 3));
    rig.submit(vec![Op::Delete { id: other }]).unwrap();
    rig.cache.sync_all().unwrap();
    rig.cache.check();
}

#[test]
fn a_copy_of_what_is_not_written_yet_shares_it_all_the_same() {
    let rig = Rig::new(8192);
    let (source, target) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    for index in 0..200 {
        rig.write(source, index * PAGE, &[index as u8 + 1; PAGE_SIZE]).unwrap();
    }
    let copy = Op::Copy { source, source_first: 0, target, target_first: 0, pages: 200, size_min: 200 * PAGE };
    rig.submit(vec![copy]).unwrap();
    let free = || {
        rig.cache.sync_all().unwrap();
        let space = rig.cache.space();
        space.free + space.pending
    };
    let before = free();
    rig.submit(vec![Op::Delete { id: target }]).unwrap();
    assert!(free() - before < 50, "{} blocks for a copy", free() - before);
}
