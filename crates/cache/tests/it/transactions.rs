//! What transactions do, and what is there after a remount.

use crate::rig::{Rig, pattern};
use holdfast_object::*;

#[test]
fn what_is_written_is_read_also_after_a_remount() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let mut expected = vec![0; 50_000];
    for (seed, (offset, length)) in
        [(0, 100), (4000, 200), (8192, 4096), (12_000, 30_000), (49_990, 10)].iter().enumerate()
    {
        let bytes = pattern(seed as u64, *length);
        rig.write(id, *offset as u64, &bytes).unwrap();
        expected[*offset..offset + length].copy_from_slice(&bytes);
    }
    assert_eq!(rig.contents(id).unwrap(), expected);
    rig.cache.sync_all().unwrap();
    rig.write(id, 5, b"after the epoch").unwrap();
    expected[5..20].copy_from_slice(b"after the epoch");
    rig.cache.check();
    let rig = rig.remount();
    assert_eq!(rig.contents(id).unwrap(), expected);
    assert_eq!(rig.cache.attributes(id).unwrap().blocks, 12, "one of the 13 pages was never written");
}

#[test]
fn cutting_and_growing_leaves_zeroes() {
    for remount in [false, true] {
        let mut rig = Rig::new(2048);
        let id = rig.create(Kind::Regular);
        rig.write(id, 0, &pattern(1, 40_000)).unwrap();
        if remount {
            rig = rig.remount();
        }
        rig.submit(vec![Op::Truncate { id, size: 5000 }]).unwrap();
        rig.submit(vec![Op::Truncate { id, size: 30_000 }]).unwrap();
        rig.write(id, 20_000, b"x").unwrap();
        rig.submit(vec![Op::Zero { id, offset: 10, length: 20 }]).unwrap();
        let mut expected = pattern(1, 5000);
        expected.resize(30_000, 0);
        expected[20_000] = b'x';
        expected[10..30].fill(0);
        assert_eq!(rig.contents(id).unwrap(), expected);
        rig.cache.check();
        rig = rig.remount();
        assert_eq!(rig.contents(id).unwrap(), expected);
        assert_eq!(rig.cache.seek(id, 0, Seek::Hole).unwrap(), Some(8192));
        assert_eq!(rig.cache.seek(id, 8192, Seek::Data).unwrap(), Some(16_384));
        assert_eq!(rig.cache.seek(id, 20_480, Seek::Data).unwrap(), None);
    }
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let none = ObjectId(777);
    let outcome = rig.submit(vec![Op::Truncate { id, size: 10 }, Op::Truncate { id: none, size: 1 }]);
    assert!(matches!(outcome, Err(Error::NoObject(key)) if key.object == none), "{outcome:?}");
    assert_eq!(rig.cache.attributes(id).unwrap().size, 0);
}

#[test]
fn a_transaction_does_nothing_with_what_it_has_deleted() {
    let rig = Rig::new(2048);
    let (id, new) = (rig.create(Kind::Regular), rig.cache.new_object().unwrap());
    let set = AttrSet { mode: Some(0), ..AttrSet::default() };
    let attributes = rig.cache.attributes(id).unwrap();
    for ops in [
        vec![Op::Delete { id }, Op::Delete { id }],
        vec![Op::Delete { id }, Op::SetAttributes { id, set: set.clone() }],
        vec![Op::Delete { id }, Op::Truncate { id, size: 1 }],
        vec![Op::Create { id: new, attributes }, Op::Delete { id: new }, Op::Delete { id: new }],
    ] {
        let outcome = rig.submit(ops.clone());
        assert!(matches!(outcome, Err(Error::NoObject(key)) if key.object == ops[0].target()), "{ops:?}: {outcome:?}");
    }
    assert_eq!(rig.cache.attributes(id).unwrap().size, 0, "it is still there");
    rig.cache.check();
}

#[test]
fn a_repeated_request_is_answered_and_not_done() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let transaction = |size| Transaction {
        request: Some(RequestId { client: 3, unique: 9 }),
        answer: b"note".to_vec(),
        ops: vec![Op::Truncate { id, size }],
        ..Transaction::default()
    };
    assert!(matches!(rig.cache.submit(transaction(5)), Ok(Outcome::Done { .. })));
    assert_eq!(rig.cache.submit(transaction(6)), Ok(Outcome::Repeated { answer: b"note".to_vec() }));
    assert_eq!(rig.cache.attributes(id).unwrap().size, 5);
}

#[test]
fn a_copy_shares_and_stays_when_the_source_changes() {
    let mut rig = Rig::new(4096);
    let (source, target) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    let bytes = pattern(7, 100 * PAGE_SIZE);
    rig.write(source, 0, &bytes).unwrap();
    rig = rig.remount();
    // Some of the source in memory clean, some dirty, the rest only in the store.
    rig.cache.read(source, 3, 2).unwrap();
    rig.write(source, 10 * PAGE_SIZE as u64, b"changed").unwrap();
    let mut expected = bytes.clone();
    expected[10 * PAGE_SIZE..10 * PAGE_SIZE + 7].copy_from_slice(b"changed");
    let free = rig.cache.sync_all().map(|_| rig.cache.space().free).unwrap();
    let size_min = expected.len() as u64;
    rig.submit(vec![Op::Copy { source, source_first: 0, target, target_first: 0, pages: 100, size_min }]).unwrap();
    rig.write(source, 0, b"later").unwrap();
    assert_eq!(rig.contents(target).unwrap(), expected);
    rig.cache.check();
    rig = rig.remount();
    assert_eq!(rig.contents(target).unwrap(), expected);
    assert!(free - rig.cache.space().free < 40, "the copy shares its blocks");
    rig.submit(vec![Op::Delete { id: source }]).unwrap();
    rig = rig.remount();
    assert_eq!(rig.contents(target).unwrap(), expected);
}

#[test]
fn far_more_than_fits_in_memory() {
    let rig = Rig::new(8192);
    let id = rig.create(Kind::Regular);
    let bytes = pattern(2, 3 * crate::rig::FRAMES as usize * PAGE_SIZE);
    for (part, chunk) in bytes.chunks(8 * PAGE_SIZE).enumerate() {
        rig.write(id, (part * 8 * PAGE_SIZE) as u64, chunk).unwrap();
    }
    assert!(rig.contents(id).unwrap() == bytes);
    rig.cache.check();
}

#[test]
fn writers_readers_and_the_epochs_go_together() {
    let rig = Rig::new(8192);
    let ids: Vec<ObjectId> = (0..3).map(|_| rig.create(Kind::Regular)).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (rig, stop) = (&rig, &stop);
        let writers: Vec<_> = ids
            .iter()
            .map(|&id| {
                scope.spawn(move || {
                    for round in 0..150u64 {
                        rig.write(id, (round * 1000) % 90_000, &pattern(round, 3000)).unwrap();
                        if round % 16 == 0 {
                            rig.cache.sync(id, Durability::All).unwrap();
                        }
                        rig.contents(id).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                rig.cache.sync_all().unwrap();
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(ended.iter().all(|end| end.is_ok()));
    });
    let mut expected = vec![0; 93_000];
    let mut size = 0;
    for round in 0..150 {
        let at = (round * 1000) % 90_000;
        expected[at..at + 3000].copy_from_slice(&pattern(round as u64, 3000));
        size = size.max(at + 3000);
    }
    expected.truncate(size);
    rig.cache.check();
    let rig = rig.remount();
    for id in ids {
        assert!(rig.contents(id).unwrap() == expected);
    }
}

#[test]
fn lazy_changes_wait_for_others() {
    let rig = Rig::new(8192);
    let id = rig.create(Kind::Regular);
    rig.cache.sync_all().unwrap();
    let access = |secs| {
        let set = AttrSet { atime: Some(Timestamp { secs, nanos: 0 }), ..AttrSet::default() };
        let transaction =
            Transaction { ops: vec![Op::SetAttributes { id, set }], lazy: true, ..Transaction::default() };
        rig.cache.submit(transaction).unwrap();
    };
    let after = |minutes: u64| {
        rig.clock.advance_ns(minutes * 60_000_000_000);
        rig.cache.tick().unwrap().is_some()
    };
    access(1);
    assert!(!after(1), "nothing is written for a time of access");
    rig.write(id, 0, b"bytes").unwrap();
    assert!(after(1), "it goes along with other changes");
    access(2);
    assert!(!after(59));
    access(3);
    assert!(after(1), "or an hour later");
    assert!(!after(1));
    let rig = rig.power_cut();
    assert_eq!(rig.cache.attributes(id).unwrap().atime.secs, 3);
}
