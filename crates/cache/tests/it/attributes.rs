//! Attributes that go bad in memory: their twin takes their place, and nobody notices.

use crate::during::Gate;
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
            for copy in AttributesCopy::ALL.into_iter().filter(|copy| !copy.is_frozen()) {
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

/// What an object with changes in the epoch being written has afterwards, and what it has after a power cut then, if these copies of its attributes
/// are struck while the epoch's first write waits, and a change comes that the epoch does not have.
fn struck_while_written(rig: Rig, pages: u64, strikes: &[(AttributesCopy, &str, u64)]) -> Result<[Attributes; 2]> {
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, 5000)).unwrap();
    let (gate, rig) = Gate::before(rig);
    change(&rig, id, 7).unwrap();
    (0..pages).for_each(|page| rig.write(id, page * PAGE_SIZE as u64, &pattern(page, PAGE_SIZE)).unwrap());
    let is_frozen = || rig.cache.resident_objects().iter().any(|known| known.object == id && known.is_frozen);
    gate.during(
        || rig.cache.sync_all(),
        || {
            assert!(is_frozen());
            strikes.iter().for_each(|(copy, field, bits)| strike(&rig, id, *copy, field, *bits));
            change(&rig, id, 9).unwrap();
            assert!(!is_frozen(), "it has a change since");
        },
    )?;
    assert_eq!(rig.cache.status().attributes_renewed, strikes.len() as u64, "{strikes:?}");
    let restarts = rig.cache.store_status().counters.restarts;
    assert_eq!(restarts, 0, "{strikes:?}: found before the store has them, and not by what it has then");
    rig.cache.check();
    let newest = rig.cache.attributes(id)?;
    Ok([newest, rig.power_cut().cache.attributes(id)?])
}

/// Each field, while the store has the pages, and, if there are none, while it makes the recovery point.
#[test]
fn one_copy_of_the_epoch_being_written_that_goes_bad_is_made_anew() {
    for pages in [0, 2] {
        let expected = struck_while_written(Rig::new(2048), pages, &[]).unwrap();
        assert_eq!(expected.each_ref().map(|attributes| attributes.uid), [9, 7]);
        for (at, (field, _)) in ATTRIBUTE_FIELDS.iter().enumerate() {
            for copy in [AttributesCopy::Frozen, AttributesCopy::TwinOfFrozen] {
                let strikes = [(copy, *field, 1 << (at % 16))];
                let found = struck_while_written(Rig::new(2048), pages, &strikes).unwrap();
                assert_eq!(found, expected, "{strikes:?}, {pages} pages");
            }
        }
    }
}

/// While a part of its own pages is handed down: the rest and the attributes follow.
#[test]
fn attributes_that_go_bad_while_pages_of_the_same_file_are_handed_down_are_not_stored() {
    let (pages, rig) = (4500, || Rig::with_frames(16 << 10, 24 << 10));
    let expected = struck_while_written(rig(), pages, &[]).unwrap();
    assert_eq!(expected.each_ref().map(|attributes| (attributes.uid, attributes.blocks)), [(9, pages), (7, pages)]);
    for field in ["uid", "size"] {
        let found = struck_while_written(rig(), pages, &[(AttributesCopy::Frozen, field, 1 << 20)]).unwrap();
        assert_eq!(found, expected, "{field}");
    }
}

#[test]
fn both_copies_of_the_epoch_being_written_bad_are_told() {
    let strikes = [(AttributesCopy::Frozen, "uid", 3), (AttributesCopy::TwinOfFrozen, "gid", 3)];
    let error = struck_while_written(Rig::new(2048), 2, &strikes).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, Error::Corrupt(_)) && told.contains("attributes in memory"), "{told}");
}
