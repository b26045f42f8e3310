//! An epoch that is begun anew, where the last recovery point has no bitmap that can be read.

use super::*;
use crate::objects::BITMAP;

/// The bitmap of the last recovery point cannot be read any more.
fn damage_bitmap(rig: &Rig) {
    for address in rig.module.trees.read().system[&BITMAP].root.address {
        rig.device.alter(address, |bytes| bytes[9] ^= 1).unwrap();
    }
}

/// Opened with a bitmap that was rebuilt.
fn rebuilt() -> (Rig, (usize, Epoch)) {
    let rig = Rig::new();
    let before = rig.stored();
    damage_bitmap(&rig);
    let module = Arc::new(open(rig.device.clone()));
    let status = module.status();
    assert_eq!((status.repaired, status.read_only), (1, None), "rebuilt");
    (Rig { arena: module.arena.clone(), module, ..rig }, before)
}

#[test]
fn a_bitmap_that_was_rebuilt_is_so_again_when_the_epoch_is_begun_anew() {
    for failures in 1..3 {
        let (rig, before) = rebuilt();
        let space = rig.module.status().space;
        for failure in 1..=failures {
            rig.make(3);
            changed_in(&rig, 3, |record| record.attributes.mode ^= 1);
            assert!(matches!(rig.commit(), Err(Error::GivenUp(_))), "failure {failure} of {failures}");
            rig.module.begin_anew().unwrap();
            let again = rig.module.status();
            assert_eq!((again.space.free, again.space.pending), (space.free, space.pending), "{failure} of {failures}");
            assert_eq!((again.repaired, again.unrepaired), (1, 0), "{failure} of {failures}");
        }
        rig.make(3);
        rig.commit().unwrap();
        assert_eq!(rig.stored(), (before.0 + 1, before.1 + 1), "{failures} failures");
    }
}

/// It is told once, as it is when a store is opened, however often the same one is rebuilt; and that of another recovery point anew.
#[test]
fn a_bitmap_that_goes_bad_on_the_device_is_a_repair_when_the_epoch_is_begun_anew() {
    let rig = Rig::new();
    let before = rig.stored();
    for repaired in 1..3 {
        damage_bitmap(&rig);
        for failure in 0..2 {
            rig.make(2 + repaired);
            changed_in(&rig, 2 + repaired, |record| record.attributes.mode ^= 1);
            assert!(matches!(rig.commit(), Err(Error::GivenUp(_))), "failure {failure}");
            rig.module.begin_anew().unwrap();
            let status = rig.module.status();
            assert_eq!((status.repaired, status.unrepaired), (repaired, 0), "failure {failure}");
        }
        rig.make(2 + repaired);
        rig.commit().unwrap();
    }
    assert_eq!(rig.stored(), (before.0 + 2, before.1 + 2));
}

/// No tree reaches it, and the intent log may name it.
#[test]
fn a_block_written_ahead_is_kept_when_a_bitmap_is_rebuilt_again() {
    let (rig, _) = rebuilt();
    let (page, key) = (rig.page(7), ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) });
    let epoch = rig.module.epoch() + 2;
    let placed = rig.module.place(key, epoch, &[(20, page.page())]).unwrap()[0];
    let free = rig.module.status().space.free;
    rig.make(3);
    changed_in(&rig, 3, |record| record.attributes.mode ^= 1);
    assert!(matches!(rig.commit(), Err(Error::GivenUp(_))));
    rig.module.begin_anew().unwrap();
    assert_eq!(rig.module.status().space.free, free);
    rig.make(3);
    rig.commit().unwrap();
    let ops = vec![Op::Adopt { id: ObjectId(2), pages: vec![(20, placed)], size_min: 21 * PAGE_SIZE as u64 }];
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops }).unwrap();
    rig.commit().unwrap();
    assert_eq!(rig.stored().1, epoch);
}
