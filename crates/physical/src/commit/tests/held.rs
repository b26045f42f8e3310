//! The same of what is held in memory for as long as the store is open, or an epoch: the allocator's bits, records, lists.

use super::*;

/// Writes to records of the store's own, which have a copy.
const OWN: [&str; 5] =
    ["levels of a tree that is not changed", "root of the bitmap", "generation", "object table", "domain 0"];

/// What is in use for as long as the store is open, or the epoch, and is in no block: the allocator's bits, and records.
#[test]
fn no_scribble_on_bits_and_records_becomes_a_recovery_point() {
    let writes: [(&str, Write); 14] = [
        ("what is in use looks free", |rig| alloc_of(rig).scribble_used(page_of(rig))),
        ("what is free looks used", |rig| alloc_of(rig).scribble_used(3000)),
        ("a block is freed that nobody frees", |rig| assert!(alloc_of(rig).scribble_pending(page_of(rig)))),
        ("what is in use is taken for written ahead", |rig| assert!(alloc_of(rig).scribble_placed(page_of(rig)))),
        ("what is written ahead is forgotten", |rig| alloc_of(rig).lose_placement()),
        ("another block is taken for one written ahead", |rig| alloc_of(rig).move_placement()),
        ("levels of a tree that is not changed", |rig| system(rig, REFERENCES, |record| record.levels ^= 1)),
        ("size", |rig| changed(rig, |record| record.attributes.size ^= 1 << 40)),
        ("number of blocks", |rig| changed(rig, |record| record.attributes.blocks ^= 1)),
        ("a time", |rig| changed(rig, |record| record.attributes.mtime.secs ^= 1)),
        ("root of the bitmap", |rig| system(rig, BITMAP, |record| record.root.birth_log ^= 1)),
        ("generation", |rig| system(rig, REFERENCES, |record| record.attributes.generation ^= 1)),
        ("object table", |rig| system(rig, table_of(DomainId::MAIN), |record| record.created ^= 1)),
        ("domain 0", |rig| system(rig, 0, |record| record.project ^= 1)),
    ];
    for (what, write) in writes {
        println!("{what}");
        let rig = Rig::new();
        rig.fill(2, 10);
        rig.commit().unwrap();
        // It frees blocks, and has others written ahead.
        rig.fill(2, 5);
        let (page, key) = (rig.page(7), ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) });
        rig.module.place(key, rig.module.epoch() + 2, &[(20, page.page())]).unwrap();
        write(&rig);
        // Legal changes of the same epoch do not make it right.
        let made = rig.try_make(4);
        if OWN.contains(&what) {
            // It has been put right from its copy, and what the epoch has changed may have gone by it.
            assert!(matches!(made, Err(Error::GivenUp(_))), "{what}: {made:?}");
        } else {
            made.unwrap();
        }
        rig.commit_is_given_up();
        if what.contains("ahead") {
            // Which blocks the intent log names is not known any more.
            assert!(matches!(rig.module.begin_anew(), Err(Error::ReadOnly(_))));
            assert!(matches!(rig.commit(), Err(Error::ReadOnly(_))));
            rig.stored();
            continue;
        }
        rig.begin_anew_with(1, |rig| {
            rig.fill(2, 5);
            rig.make(4);
        });
        assert_eq!(rig.module.status().space.pending, 0);
    }
}

/// The device is not blamed for what is read from a wrong place of it.
#[test]
fn damage_that_is_found_through_what_has_gone_bad_in_memory_is_none() {
    let writes: [(&str, Write); 2] = [
        ("the address of the table of tables", |rig| system(rig, 0, |record| record.root.address[0] ^= 1 << 40)),
        ("that of an object table", |rig| {
            system(rig, table_of(DomainId::MAIN), |record| record.root.address[0] ^= 1 << 40);
        }),
    ];
    for (what, write) in writes {
        println!("{what}");
        let rig = Rig::new();
        rig.make(3);
        write(&rig);
        rig.commit_is_given_up();
        rig.begin_anew(|rig| rig.make(3));
    }
}

#[test]
fn no_block_is_written_to_that_only_seems_free() {
    let rig = Rig::new();
    rig.fill(2, 10);
    rig.commit().unwrap();
    let before = rig.stored();
    alloc_of(&rig).scribble_used(page_of(&rig));
    rig.clock.advance_ns(1_000_000_000);
    let error = rig.write(2, 0).unwrap_err();
    assert!(error.to_string().contains("in memory, to which somebody has written"), "{error}");
    rig.commit_is_given_up();
    assert_eq!(rig.stored(), before);
    rig.begin_anew(|rig| rig.write(2, 0).unwrap());
}

#[test]
fn what_an_epoch_frees_goes_bad_after_it_was_written() {
    let rig = Rig::new();
    rig.fill(2, 10);
    rig.commit().unwrap();
    rig.fill(2, 5);
    let (epoch, before) = (rig.module.epoch() + 1, rig.stored());
    rig.module.prepare(epoch).unwrap();
    assert!(alloc_of(&rig).scribble_pending(page_of(&rig)));
    rig.module.publish(epoch).unwrap();
    assert!(alloc_of(&rig).is_used(page_of(&rig)));
    assert_eq!(rig.stored(), (before.0, epoch), "the recovery point is a good one, and the last");
    assert!(matches!(rig.module.prepare(epoch + 1), Err(Error::GivenUp(_))));
    rig.begin_anew(|rig| rig.make(3));
}

#[test]
fn memory_that_goes_bad_again_and_again_is_not_worked_with() {
    let rig = Rig::new();
    let before = rig.stored();
    for _ in 0..2 {
        rig.make(3);
        changed_in(&rig, 3, |record| record.attributes.mode ^= 1);
        rig.commit_is_given_up();
        rig.module.begin_anew().unwrap();
    }
    rig.make(3);
    changed_in(&rig, 3, |record| record.attributes.mode ^= 1);
    rig.commit_is_given_up();
    let error = rig.module.begin_anew().unwrap_err();
    assert!(error.to_string().contains("it failed 3 times in a row"), "{error}");
    assert!(matches!(rig.commit(), Err(Error::ReadOnly(_))));
    assert_eq!(rig.stored(), before);
}

/// Who reads is answered by the last recovery point then, and not by what has gone bad.
#[test]
fn what_is_read_is_right_when_the_store_takes_no_changes_any_more() {
    for is_read_first in [false, true] {
        let rig = Rig::new();
        rig.fill(2, 70);
        rig.commit().unwrap();
        let leaf = NodeKey { domain: 1, object: 2, level: 1, index: 0 };
        let read = || {
            let mut frames = [rig.arena.allocate().unwrap()];
            let key = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
            rig.module.read(key, 5, &mut frames).map(|_| frames[0][0])
        };
        let before = read().unwrap();
        for round in 0..3 {
            rig.write(2, 6).unwrap();
            let mut trees = rig.module.trees.write();
            let block = &mut trees.dirty.get_mut(&leaf).unwrap().block;
            // The pointer to the page that is read.
            block.scribble(5 * POINTER_BYTES, &[0x55; 16]);
            drop(trees);
            if round == 2 && is_read_first {
                assert_eq!(read().unwrap(), before);
                break;
            }
            rig.commit_is_given_up();
            let outcome = rig.module.begin_anew();
            assert_eq!(outcome.is_err(), round == 2, "{outcome:?}");
        }
        assert!(matches!(rig.write(2, 6), Err(Error::ReadOnly(_))));
        assert_eq!(read().unwrap(), before);
    }
}

/// An audit that counts otherwise would give up a sound epoch.
#[test]
fn what_the_newest_snapshot_keeps_is_audited_as_trees_go_and_snapshots_do() {
    let mut rig = Rig::new();
    let snapshot = |rig: &Rig, name| {
        let (epoch, now) = (rig.module.epoch() + 1, Timestamp { secs: 1, nanos: 0 });
        let id = rig.module.snapshot_create(DomainId::MAIN, epoch, name, now).unwrap();
        rig.commit().unwrap();
        id
    };
    let kept = |rig: &Rig| rig.module.superblock().unwrap().metadata_kept;
    rig.fill(2, 200);
    rig.commit().unwrap();
    snapshot(&rig, "first");
    let second = snapshot(&rig, "second");
    let both_kept = kept(&rig);
    // More metadata than the count, which is cut to all there is.
    rig.make(5);
    rig.fill(5, 200);
    rig.commit().unwrap();
    // A tree with blocks of metadata below its top.
    rig.delete(2);
    rig.commit().unwrap();
    assert!(kept(&rig) < both_kept);
    rig.make(3);
    rig.fill(3, 200);
    rig.commit().unwrap();
    // From now on of the first it is known only what it kept when the second was made, which is more than it does.
    rig.module.close().unwrap();
    let (device, arena, clock) = (rig.device.clone(), rig.arena.clone(), rig.clock.clone());
    rig.module = Arc::new(Module::open(device, arena, clock, &OpenOptions::default()).unwrap());
    while rig.module.snapshot_delete(DomainId::MAIN, rig.module.epoch() + 1, second).unwrap() {
        rig.commit().unwrap();
    }
    rig.commit().unwrap();
    assert_eq!(kept(&rig), both_kept);
    // Less than that is left, and then more again.
    rig.delete(3);
    rig.delete(5);
    rig.commit().unwrap();
    let all = kept(&rig);
    assert!(all < both_kept);
    rig.make(4);
    rig.fill(4, 200);
    rig.commit().unwrap();
    assert!(kept(&rig) <= all);
    rig.stored();
}

/// What keeps the address of a block's bytes is ordinary memory. The one that it leads to now is changed, too.
#[test]
fn a_changed_block_whose_address_leads_to_another_costs_the_epoch_and_nothing_else() {
    let object = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
    let leaves = [0, 1].map(|index| NodeKey::new(object, 1, index));
    for is_changed_further in [false, true] {
        let rig = Rig::new();
        let before = rig.stored();
        rig.write(2, 0).unwrap();
        rig.write(2, POINTERS).unwrap();
        let address = {
            let mut trees = rig.module.trees.write();
            let address = trees.dirty[&leaves[1]].block.bytes().as_ptr().expose_provenance();
            trees.dirty.get_mut(&leaves[0]).unwrap().block.scribbled().misplace(address);
            address
        };
        let bytes = *rig.module.trees.read().dirty[&leaves[1]].block.bytes();
        if is_changed_further {
            rig.write(2, 1).unwrap();
        }
        let error = rig.commit().unwrap_err();
        let is_it = |found: &Corruption| {
            found.place.object == Some(object) && found.what.starts_with("owner of the block's place in memory")
        };
        assert!(matches!(&error, Error::GivenUp(found) if is_it(found)), "{error}");
        let trees = rig.module.trees.read();
        let block = &trees.dirty[&leaves[1]].block;
        assert!(block.bytes().as_ptr().addr() == address && *block.bytes() == bytes && block.verify(leaves[1]).is_ok());
        drop(trees);
        rig.commit_is_given_up();
        assert_eq!(rig.stored(), before);
        rig.begin_anew(|rig| [0, 1, POINTERS].into_iter().for_each(|index| rig.write(2, index).unwrap()));
    }
}
