//! What a power cut leaves (docs/architecture.md, "The life of an fsync").

use crate::rig::{Rig, pattern};
use holdfast_object::*;

#[test]
fn what_was_synced_is_there_and_the_rest_is_as_before() {
    let rig = Rig::new(2048);
    let (first, second) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(first, 0, b"in the recovery point").unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(first, 7, b"THE").unwrap();
    rig.write(second, 0, b"never synced").unwrap();
    rig.cache.sync(first, Durability::All).unwrap();
    rig.write(first, 0, b"XX").unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(first).unwrap(), b"in the THEovery point");
    assert_eq!(rig.contents(second).unwrap(), b"");
}

#[test]
fn a_sync_brings_the_whole_name_space_but_not_other_contents() {
    let rig = Rig::new(2048);
    let directory = rig.create(Kind::Directory);
    let (synced, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(directory, 0, b"entries").unwrap();
    rig.write(other, 0, &pattern(1, 9000)).unwrap();
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id: other, set }]).unwrap();
    let links = AttrSet { nlink: Some(2), ctime: Some(Timestamp { secs: 9, nanos: 0 }), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id: other, set: links }]).unwrap();
    rig.cache.sync(synced, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(directory).unwrap(), b"entries");
    let attributes = rig.cache.attributes(other).unwrap();
    assert_eq!((attributes.nlink, attributes.size, attributes.mode), (2, 0, 0o644));
}

#[test]
fn a_rename_over_a_name_brings_the_contents() {
    let rig = Rig::new(2048);
    let (file, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(file, 0, b"new contents").unwrap();
    let directory = rig.create(Kind::Directory);
    rig.cache
        .submit(Transaction {
            ops: vec![Op::SetAttributes { id: directory, set: AttrSet { entries: Some(1), ..AttrSet::default() } }],
            brings: Some(file),
            ..Transaction::default()
        })
        .unwrap();
    rig.cache.sync(other, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(file).unwrap(), b"new contents");
}

#[test]
fn cuts_and_deletions_are_replayed() {
    let rig = Rig::new(2048);
    let (cut, gone) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(cut, 0, &pattern(3, 20_000)).unwrap();
    rig.write(gone, 0, b"x").unwrap();
    rig.cache.sync_all().unwrap();
    rig.submit(vec![Op::Truncate { id: cut, size: 6000 }]).unwrap();
    rig.write(cut, 10_000, b"end").unwrap();
    rig.submit(vec![Op::Delete { id: gone }]).unwrap();
    rig.cache.sync(cut, Durability::Data).unwrap();
    let rig = rig.power_cut();
    let mut expected = pattern(3, 6000);
    expected.resize(10_000, 0);
    expected.extend_from_slice(b"end");
    assert_eq!(rig.contents(cut).unwrap(), expected);
    assert!(matches!(rig.cache.attributes(gone), Err(Error::NoObject(_))));
}

#[test]
fn many_syncs_overflow_the_log_into_epochs() {
    let mut rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    for round in 0..400u64 {
        rig.write(id, round * 100, &pattern(round, 100)).unwrap();
        rig.cache.sync(id, Durability::Data).unwrap();
        if round % 97 == 0 {
            rig = rig.power_cut();
        }
    }
    let rig = rig.power_cut();
    let expected: Vec<u8> = (0..400).flat_map(|round| pattern(round, 100)).collect();
    assert!(rig.contents(id).unwrap() == expected);
}

#[test]
fn unlinked_objects_are_found_after_a_power_cut() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.cache.hold(id, Hold::Open, 1);
    rig.submit(vec![Op::SetAttributes { id, set: AttrSet { nlink: Some(0), ..AttrSet::default() } }]).unwrap();
    rig.cache.sync(id, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.cache.orphans().unwrap(), vec![id]);
}
