//! Attributes that go bad in memory: their twin takes their place, and nobody notices.

use crate::rig::{Rig, pattern};
use holdfast_cache::{ATTRIBUTE_FIELDS, AttributesCopy};
use holdfast_object::*;

/// A file with changes of all sorts that the store does not have, next to some that it has.
fn changed(rig: &Rig) -> ObjectId {
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, 5000)).unwrap();
    rig.cache.sync(id, Durability::All).unwrap();
    rig.write(id, 4096, &pattern(2, 5000)).unwrap();
    change(rig, id, 7).unwrap();
    id
}

fn change(rig: &Rig, id: ObjectId, uid: u32) -> Result<Outcome> {
    let set = AttrSet { uid: Some(uid), mode: Some(0o600), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id, set }])
}

fn strike(rig: &Rig, id: ObjectId, copy: AttributesCopy, field: &str, bits: u64) {
    assert!(rig.cache.strike_attributes(id, copy, field, bits), "{id} is in memory");
}

type Finder = fn(&Rig, ObjectId);

const FINDERS: [(&str, Finder); 4] = [
    ("a reader", |rig, id| drop(rig.cache.attributes(id).unwrap())),
    ("a change", |rig, id| drop(change(rig, id, 7).unwrap())),
    ("a sync", |rig, id| rig.cache.sync(id, Durability::All).unwrap()),
    ("the writer of epochs", |rig, _| {
        rig.cache.sync_all().unwrap();
    }),
];

/// Each field of each copy, whoever comes by first; then and after the next mount all is as it is without the strike.
#[test]
fn one_copy_that_goes_bad_is_made_anew() {
    for (finder, find) in FINDERS {
        for (at, (field, _)) in ATTRIBUTE_FIELDS.iter().enumerate() {
            for copy in AttributesCopy::ALL {
                let rig = Rig::new(2048);
                let id = changed(&rig);
                let expected = rig.cache.attributes(id).unwrap();
                let what = format!("{copy:?}, {field}, found by {finder}");
                strike(&rig, id, copy, field, 1 << (at % 16));
                find(&rig, id);
                rig.cache.sync(id, Durability::All).unwrap();
                assert_eq!(rig.cache.attributes(id).unwrap(), expected, "{what}");
                assert_eq!(rig.cache.status().attributes_renewed, 1, "{what}");
                rig.cache.check();
                let rig = if at % 2 == 0 { rig.power_cut() } else { rig.remount() };
                let stored = rig.cache.attributes(id).unwrap();
                // Generations are what an object is known by, and no operation sets them.
                assert_eq!(stored, expected, "{what}, mounted again");
                assert_eq!(rig.contents(id).unwrap().len() as u64, expected.size, "{what}, mounted again");
            }
        }
    }
}

#[test]
fn both_copies_bad_stop_the_recovery_point() {
    for (newest, twin) in
        [(AttributesCopy::Newest, AttributesCopy::TwinOfNewest), (AttributesCopy::Stable, AttributesCopy::TwinOfStable)]
    {
        let rig = Rig::new(2048);
        let id = changed(&rig);
        let before = rig.cache.store_status().epoch;
        strike(&rig, id, newest, "uid", 3);
        strike(&rig, id, twin, "gid", 3);
        let error = rig.cache.sync_all().unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, Error::Corrupt(_)) && told.contains("attributes in memory"), "{told}");
        assert_eq!(rig.cache.store_status().epoch, before, "the last recovery point stands");
        assert!(rig.cache.status().read_only.is_some_and(|reason| reason.contains("attributes in memory")));
        let rig = rig.power_cut();
        let stored = rig.cache.attributes(id).unwrap();
        assert_eq!((stored.uid, stored.size), (1, 5000), "what was synced");
    }
}

/// What the store has as well is read again.
#[test]
fn both_copies_bad_of_an_object_without_changes_are_read_again() {
    let rig = Rig::new(2048);
    let id = changed(&rig);
    rig.cache.sync_all().unwrap();
    let expected = rig.cache.attributes(id).unwrap();
    for find in [FINDERS[0].1, FINDERS[1].1] {
        strike(&rig, id, AttributesCopy::Newest, "uid", 3);
        strike(&rig, id, AttributesCopy::TwinOfNewest, "uid", 5);
        let before = rig.cache.status().attributes_renewed;
        find(&rig, id);
        assert_eq!(rig.cache.attributes(id).unwrap(), expected);
        assert_eq!(rig.cache.status().attributes_renewed, before + 1);
    }
    rig.cache.sync_all().unwrap();
}
