//! One thing at a time.

use crate::rig::*;
use holdfast_block::{Device, MemoryDevice};
use holdfast_object::{
    AttrSet, DomainId, Error, Kind, ObjectId, ObjectStore, Op, PAGE_SIZE, PageSource, Purpose, Seek, Side,
};
use holdfast_physical::Module;
use std::sync::Arc;

#[test]
fn written_pages_are_there_after_reopening() {
    let mut rig = Rig::new(4096);
    let pages: Vec<_> = (0..300).map(|index| (index, pattern(index))).collect();
    let write = rig.write_op(2, &pages);
    let applied = rig.apply(vec![create_op(2, Kind::Regular), write]);
    assert_eq!((applied.written.len(), applied.rejected.len()), (300, 0));
    assert_eq!(rig.read_one(2, 299), Some(pattern(299)), "before the commit");
    rig.commit();
    for _ in 0..2 {
        let attributes = rig.module.attributes(key(2)).unwrap();
        assert_eq!((attributes.size, attributes.blocks, attributes.nlink), (300 * 4096, 300, 1));
        assert_eq!((attributes.uid, attributes.mode, attributes.generation), (1000, 0o644, 1));
        for (index, page) in rig.read(2, 0, 300).into_iter().enumerate() {
            assert_eq!(page, Some(pattern(index as u64)));
        }
        assert_eq!(rig.read(2, 300, 3), [None, None, None]);
        rig.reopen();
    }
}

#[test]
fn what_is_not_published_is_not_there_after_a_crash() {
    let mut rig = Rig::new(4096);
    let write = rig.write_op(2, &[(0, pattern(1))]);
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    let write = rig.write_op(2, &[(0, pattern(2))]);
    rig.apply(vec![write, create_op(3, Kind::Directory)]);
    rig.module.prepare(rig.next_epoch()).unwrap();
    rig.reopen();
    assert_eq!(rig.read_one(2, 0), Some(pattern(1)));
    assert_eq!(rig.module.attributes(key(3)), Err(Error::NoObject(key(3))));
}

#[test]
fn sparse_and_deep_trees() {
    let mut rig = Rig::new(4096);
    let far = (1u64 << 32) - 1;
    let at = [0, 63, 64, 4095, 4096, 1 << 20, far];
    let pages: Vec<_> = at.iter().map(|&index| (index, pattern(index))).collect();
    let write = rig.write_op(2, &pages);
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    rig.reopen();
    for &index in &at {
        assert_eq!(rig.read_one(2, index), Some(pattern(index)));
    }
    let mut data = Vec::new();
    let mut from = 0;
    while let Some(index) = rig.module.seek(key(2), from, Seek::Data).unwrap() {
        data.push(index);
        from = index + 1;
    }
    assert_eq!(data, at);
    assert_eq!(rig.module.seek(key(2), 63, Seek::Hole).unwrap(), Some(65));
    let id = ObjectId(2);
    rig.apply(vec![Op::Zero { id, offset: 64 * 4096, length: far * 4096 - 64 * 4096 }]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.module.attributes(key(2)).unwrap().blocks, 3);
    assert_eq!(rig.module.seek(key(2), 64, Seek::Data).unwrap(), Some(far));
    rig.apply(vec![Op::Truncate { id, size: 0 }]);
    rig.commit();
    assert_eq!(rig.module.seek(key(2), 0, Seek::Data).unwrap(), None);
    let error = rig.try_apply(vec![Op::Lose { id, pages: vec![far + 1], side: Side::Memory }]).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }));
}

#[test]
fn parts_of_pages_that_are_cut_off_become_zero() {
    let mut rig = Rig::new(4096);
    let id = ObjectId(2);
    let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2)), (2, pattern(3))]);
    rig.apply(vec![create_op(2, Kind::Regular), write, Op::Truncate { id, size: 4096 + 100 }]);
    rig.apply(vec![Op::Truncate { id, size: 3 * 4096 }, Op::Zero { id, offset: 10, length: 20 }]);
    rig.commit();
    let (mut first, mut second) = (pattern(1), pattern(2));
    second[100..].fill(0);
    first[10..30].fill(0);
    assert_eq!(rig.read(2, 0, 3), [Some(first), Some(second), None]);
}

#[test]
fn copies_share_blocks_until_one_is_changed() {
    let mut rig = Rig::new(4096);
    let pages: Vec<_> = (0..200).map(|index| (index, pattern(index))).collect();
    let write = rig.write_op(2, &pages);
    rig.apply(vec![create_op(2, Kind::Regular), create_op(3, Kind::Regular), write]);
    rig.commit();
    let free = rig.module.status().space.free;
    let copy = Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 1000,
        pages: 300,
        size_min: 1200 * 4096,
    };
    rig.apply(vec![copy.clone(), copy]);
    rig.commit();
    assert!(free - rig.module.status().space.free < 40, "blocks are shared");
    let mut frames = rig.frames(1);
    let original = rig.module.read(key(2), 7, &mut frames).unwrap();
    assert_eq!(rig.module.read(key(3), 1007, &mut frames).unwrap(), original, "the same identity");
    drop(frames);
    let write = rig.write_op(2, &[(7, pattern(777))]);
    rig.apply(vec![write]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read_one(3, 1007), Some(pattern(7)));
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    rig.reopen();
    for index in 0..200 {
        assert_eq!(rig.read_one(3, 1000 + index), Some(pattern(index)));
    }
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    let space = rig.module.status().space;
    assert!(space.total - space.free < 40, "{space:?}");
    rig.check();
}

#[test]
fn applying_twice_is_applying_once() {
    let mut rig = Rig::new(4096);
    let write = rig.write_op(2, &[(0, pattern(1)), (5, pattern(2))]);
    let other = rig.write_op(4, &[(0, pattern(1))]);
    let id = ObjectId(2);
    let ops = vec![
        create_op(2, Kind::Regular),
        write,
        Op::Zero { id, offset: 5 * 4096, length: 4096 },
        create_op(3, Kind::Directory),
        Op::SetAttributes { id: ObjectId(3), set: AttrSet { nlink: Some(0), ..AttrSet::default() } },
        create_op(4, Kind::Symlink),
        other,
        Op::Delete { id: ObjectId(4) },
        Op::Delete { id: ObjectId(9) },
    ];
    let state = |rig: &Rig| {
        let objects = rig.module.objects(DomainId::MAIN, ObjectId(0), 100).unwrap();
        (objects, rig.module.orphans(DomainId::MAIN).unwrap(), rig.read(2, 0, 6), rig.module.status().objects)
    };
    rig.apply(ops.clone());
    let once = state(&rig);
    rig.apply(ops);
    assert_eq!(state(&rig), once);
    assert_eq!(once.1, [ObjectId(3)]);
    rig.commit();
    rig.reopen();
    assert_eq!(state(&rig), once);
    let again = rig.try_apply(vec![create_op(2, Kind::Regular)]);
    assert_eq!(again, Err(Error::ObjectExists(key(2))), "in a later epoch");
}

#[test]
fn a_page_changed_in_memory_is_rejected_and_costs_that_page_only() {
    let mut rig = Rig::new(4096);
    let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    let Op::Write { id, mut fragments, size_min } = rig.write_op(2, &[(0, pattern(3)), (1, pattern(4))]) else {
        unreachable!()
    };
    fragments[0].page.checksum ^= 1;
    let bad = rig.fragment(0, &pattern(5));
    fragments[0].page = holdfast_object::PageRef { checksum: bad.page.checksum ^ 1, ..bad.page };
    let applied = rig.apply(vec![Op::Write { id, fragments, size_min }]);
    assert_eq!(applied.rejected, [(ObjectId(2), 0)]);
    assert_eq!(applied.written.len(), 1);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(2, 0, 2), [Some(pattern(1)), Some(pattern(4))]);
}

#[test]
fn only_pages_that_are_still_there_are_reported_as_written() {
    let mut rig = Rig::new(4096);
    let id = ObjectId(2);
    let first = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2)), (2, pattern(3))]);
    let second = rig.write_op(2, &[(1, pattern(4))]);
    let applied =
        rig.apply(vec![create_op(2, Kind::Regular), first, second, Op::Zero { id, offset: 8192, length: 4096 }]);
    let mut frames = rig.frames(2);
    let sources = rig.module.read(key(2), 0, &mut frames).unwrap();
    let identity = |at: usize| match sources[at] {
        PageSource::Data { identity, .. } => identity,
        other => panic!("{other:?}"),
    };
    assert_eq!(applied.written, [(id, 0, identity(0)), (id, 1, identity(1))]);
}

#[test]
fn attributes_that_could_not_be_read_back_are_refused() {
    let mut rig = Rig::new(4096);
    let time = holdfast_object::Timestamp { secs: 0, nanos: 1_000_000_000 };
    let set = AttrSet { mtime: Some(time), ..AttrSet::default() };
    let outcome = rig.try_apply(vec![create_op(2, Kind::Regular), Op::SetAttributes { id: ObjectId(2), set }]);
    assert!(matches!(outcome, Err(Error::Protocol(_))));
    assert!(rig.module.attributes(key(2)).is_err(), "nothing of the batch was done");
}

#[test]
fn lost_pages_stay_lost_until_written() {
    let mut rig = Rig::new(4096);
    let lose = |page, side| Op::Lose { id: ObjectId(2), pages: vec![page], side };
    rig.apply(vec![create_op(2, Kind::Regular), lose(3, Side::Memory), lose(4, Side::Device)]);
    let (source, target) = (ObjectId(2), ObjectId(3));
    let copy = Op::Copy { source, source_first: 3, target, target_first: 9, pages: 2, size_min: 11 * PAGE_SIZE as u64 };
    rig.apply(vec![create_op(3, Kind::Regular), copy]);
    rig.commit();
    rig.reopen();
    for (object, first) in [(2, 3), (3, 9)] {
        let mut frames = rig.frames(2);
        let sources = rig.module.read(key(object), first, &mut frames).unwrap();
        assert_eq!(sources, [PageSource::Lost(Side::Memory), PageSource::Lost(Side::Device)], "object {object}");
    }
    let write = rig.write_op(2, &[(3, pattern(1))]);
    rig.apply(vec![write]);
    rig.commit();
    assert_eq!(rig.read_one(2, 3), Some(pattern(1)));
}

#[test]
fn ids_are_fresh() {
    let mut rig = Rig::new(4096);
    let ids = rig.module.new_objects(DomainId::MAIN, 3).unwrap();
    assert_eq!(ids, [ObjectId(2), ObjectId(3), ObjectId(4)]);
    rig.apply(vec![create_op(2, Kind::Regular), create_op(5, Kind::Regular)]);
    assert_eq!(rig.module.new_objects(DomainId::MAIN, 2).unwrap(), [ObjectId(6), ObjectId(7)]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.module.new_objects(DomainId::MAIN, 3).unwrap(), [ObjectId(3), ObjectId(4), ObjectId(6)]);
}

#[test]
fn protocol_mistakes_are_refused() {
    let mut rig = Rig::new(4096);
    let is_protocol = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::Protocol(_))), "{outcome:?}");
    is_protocol(rig.module.publish(2));
    is_protocol(rig.module.prepare(1));
    is_protocol(rig.module.prepare(1 + 15));
    let mut batch = rig.batch(vec![create_op(2, Kind::Regular)]);
    batch.epoch = 1;
    is_protocol(rig.module.apply(&batch).map(drop));
    batch.domain = DomainId::SYSTEM;
    batch.epoch = 2;
    is_protocol(rig.module.apply(&batch).map(drop));
    rig.module.prepare(2).unwrap();
    batch.domain = DomainId::MAIN;
    is_protocol(rig.module.apply(&batch).map(drop));
    rig.module.publish(2).unwrap();
    let error = rig.try_apply(vec![Op::Truncate { id: ObjectId(77), size: 5 }]);
    assert_eq!(error, Err(Error::NoObject(key(77))));
    let sums = holdfast_integrity::StoredSums::of(holdfast_integrity::Checksum::crc64(0));
    let unplaced = holdfast_object::Placement { address: 3000, address_2: 0, checksum: 0, sums, birth: 2 };
    let adopt = Op::Adopt { id: ObjectId(2), pages: vec![(0, unplaced)], size_min: 0 };
    is_protocol(rig.try_apply(vec![create_op(2, Kind::Regular), adopt]).map(drop));
}

#[test]
fn placed_pages_are_adopted_or_freed() {
    let mut rig = Rig::new(4096);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    rig.commit();
    let free = rig.module.status().space.free;
    let epoch = rig.next_epoch();
    let pages: Vec<_> = (0..10).map(|index| (index, rig.pin(&pattern(index)))).collect();
    // For the epoch after the one that is being written.
    let placements = rig.module.place(key(2), epoch + 1, &pages).unwrap();
    rig.commit();
    rig.module.unplace(epoch + 1, &placements[5..]).unwrap();
    let adopted = (0..5).map(|index| (index, placements[index as usize])).collect();
    rig.apply(vec![Op::Adopt { id: ObjectId(2), pages: adopted, size_min: 5 * PAGE_SIZE as u64 }]);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(2, 0, 6)[..5], (0..5).map(|index| Some(pattern(index))).collect::<Vec<_>>());
    assert_eq!(free - rig.module.status().space.free, 5 + 2, "and the tree block over them, twice");
}

#[test]
fn a_full_store_can_delete() {
    let mut rig = Rig::new(1024);
    let mut files = Vec::new();
    'fill: for id in 2.. {
        rig.apply(vec![create_op(id, Kind::Regular)]);
        files.push(id);
        for index in 0..50 {
            if rig.module.reserve(rig.next_epoch(), 20, Purpose::Ordinary).is_err() {
                break 'fill;
            }
            let write = rig.write_op(id, &[(index, pattern(id * 1000 + index))]);
            rig.apply(vec![write]);
            if index % 5 == 4 {
                rig.commit();
            }
        }
    }
    rig.commit();
    rig.reopen();
    assert!(files.len() > 3);
    let space = rig.module.status().space;
    assert!(space.free <= space.reserve + 100, "{space:?}");
    for &id in &files {
        rig.module.reserve(rig.next_epoch(), 16, Purpose::Release).unwrap();
        rig.apply(vec![Op::Delete { id: ObjectId(id) }]);
        rig.commit();
    }
    let space = rig.module.status().space;
    assert!(space.total - space.free < 30, "{space:?}");
    rig.check();
}

#[test]
fn without_any_reservation_a_full_store_says_so_and_stays_intact() {
    let mut rig = Rig::new(600);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    rig.commit();
    let mut index = 0;
    let error = loop {
        let write = rig.write_op(2, &[(index, pattern(index))]);
        if let Err(error) = rig.try_apply(vec![write]) {
            break error;
        }
        index += 1;
    };
    assert!(matches!(error, Error::NoSpace { .. }));
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read_one(2, index - 1), Some(pattern(index - 1)));
    rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 0 }]);
    rig.commit();
    let write = rig.write_op(2, &[(0, pattern(0))]);
    rig.apply(vec![write]);
}

#[test]
fn clean_and_unclean() {
    let mut rig = Rig::new(4096);
    assert!(!rig.module.is_clean());
    rig.apply(vec![create_op(2, Kind::Regular)]);
    assert!(rig.module.close().is_err(), "with changes that are in no recovery point");
    rig.commit();
    rig.module.log_next(&mut |count| Ok((0..count).filter_map(|_| rig.arena.allocate()).collect())).unwrap();
    rig.module.close().unwrap();
    rig.reopen();
    assert!(rig.module.is_clean());
    let image = rig.device.snapshot();
    rig.module.close().unwrap();
    assert!(image == rig.device.snapshot(), "closing what was not changed changes nothing");
}

#[test]
fn creating_over_a_store_needs_to_be_said() {
    let rig = Rig::new(1024);
    let again = Module::create(rig.device.clone(), rig.arena.clone(), rig.clock.clone(), &options());
    assert!(matches!(again, Err(Error::NoStore(_))));
    let overwrite = holdfast_physical::CreateOptions { overwrite: true, ..options() };
    Module::create(rig.device.clone(), rig.arena.clone(), rig.clock.clone(), &overwrite).unwrap();
    let small: Arc<dyn Device> = Arc::new(MemoryDevice::new(511));
    let too_small = Module::create(small, rig.arena.clone(), rig.clock.clone(), &options());
    assert!(matches!(too_small, Err(Error::Limit { .. })));
}
