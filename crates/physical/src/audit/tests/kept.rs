//! What the newest snapshot keeps of metadata.

use super::*;
use crate::commit::tests::meanwhile::{Meanwhile, Request};

/// In numbers without a sign, less than none is more than all, and the superblock may say all.
#[test]
fn less_than_none_is_not_taken_for_all() {
    let rig = Rig::with(MetadataProtection::Audited);
    let epoch = rig.module.epoch() + 1;
    rig.module.snapshot_create(DomainId::MAIN, epoch, "now", Timestamp { secs: 1, nanos: 0 }).unwrap();
    let mut trees = rig.module.trees.write();
    trees.audit.sums.change(|sums| sums.kept = sums.kept.wrapping_sub(1 << 20));
    assert_eq!(trees.metadata_kept(), Some(trees.metadata.get()));
    drop(trees);
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains("\"metadata kept\": ") && error.contains("a logic bug"), "{error}");
}

/// What they are counted by is the epoch of the newest snapshot, whatever that has become.
fn is_counted_under_the_newest(rig: &Rig, epoch: Epoch) {
    let trees = rig.module.trees.read();
    assert_eq!(trees.kept.newest_epoch(DomainId::MAIN), epoch);
    assert_eq!(trees.audit.sums.get().pointers.newest_snapshot, epoch);
}

#[test]
fn what_pointers_are_counted_by_follows_the_newest_snapshot() {
    let mut rig = Rig::with(MetadataProtection::Audited);
    let now = Timestamp { secs: 1, nanos: 0 };
    let create =
        |rig: &Rig, name| rig.module.snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, name, now).unwrap();
    is_counted_under_the_newest(&rig, 0);
    let first_epoch = rig.module.epoch();
    let first = create(&rig, "first");
    is_counted_under_the_newest(&rig, first_epoch);
    rig.commit().unwrap();
    is_counted_under_the_newest(&rig, first_epoch);
    let epoch = rig.module.epoch();
    create(&rig, "second");
    is_counted_under_the_newest(&rig, epoch);
    let why = Corruption { place: Place::default(), what: "it".into(), expected: "one".into(), got: "two".into() };
    rig.module.give_up(Found::Scribble, why);
    rig.module.begin_anew().unwrap();
    is_counted_under_the_newest(&rig, first_epoch);
    let second = create(&rig, "second");
    rig.commit().unwrap();
    rig.module.close().unwrap();
    rig.module = crate::commit::tests::open(rig.device.clone()).into();
    is_counted_under_the_newest(&rig, epoch);
    for (snapshot, left) in [(second, first_epoch), (first, 0)] {
        rig.module.snapshot_delete(DomainId::MAIN, rig.module.epoch() + 1, snapshot).unwrap();
        is_counted_under_the_newest(&rig, left);
        rig.commit().unwrap();
        is_counted_under_the_newest(&rig, left);
    }
}

/// Between the audit of a recovery point and its end, what is known of the snapshot may go bad, and is put right afterwards.
#[test]
fn what_pointers_are_counted_by_is_not_taken_from_what_has_gone_bad() {
    let mut rig = Rig::with(MetadataProtection::Audited);
    rig.fill(2, 200);
    rig.commit().unwrap();
    let epoch = rig.module.epoch();
    rig.module.snapshot_create(DomainId::MAIN, epoch + 1, "now", Timestamp { secs: 1, nanos: 0 }).unwrap();
    rig.commit().unwrap();
    let (device, module) = Meanwhile::open(&rig);
    rig.arena = module.arena.clone();
    rig.module = module;
    rig.write(2, 0).unwrap();
    let struck = rig.module.clone();
    device.set(move |request, _, _| {
        if request == Request::Write {
            struck.trees.write().kept.alter(DomainId::MAIN, false, |stored| stored.epoch = 0);
        }
    });
    rig.commit().unwrap();
    device.unset();
    // The list of them is where it is put right.
    assert_eq!(rig.module.trees.read().kept.newest_epoch(DomainId::MAIN), 0);
    assert_eq!(rig.module.snapshots_uncounted(DomainId::MAIN).unwrap()[0].epoch, epoch);
    is_counted_under_the_newest(&rig, epoch);
    rig.write(2, POINTERS).unwrap();
    rig.commit().unwrap();
}

/// Who writes to one of them is told. In both it cannot be seen, and shows that it is what the counting goes by.
#[test]
fn what_pointers_are_counted_by_is_there_twice() {
    let name = "pointers.newest_snapshot";
    for (struck, expected, is_logic_bug) in [
        (&[name][..], "sum \"pointers\" of the audit in memory", false),
        (&["twin of pointers.newest_snapshot"], "sum \"pointers\" of the audit in memory", false),
        (&[name, "twin of pointers.newest_snapshot"], "\"metadata kept\": ", true),
    ] {
        let rig = Rig::with(MetadataProtection::Audited);
        rig.fill(2, 200);
        rig.commit().unwrap();
        let epoch = rig.module.epoch() + 1;
        rig.module.snapshot_create(DomainId::MAIN, epoch, "now", Timestamp { secs: 1, nanos: 0 }).unwrap();
        rig.commit().unwrap();
        // The second leaf, which the snapshot has, is changed after that.
        rig.write(2, 0).unwrap();
        let mut trees = rig.module.trees.write();
        let mut cells = trees.audit.cells();
        for (name, at, _) in cells.parts() {
            if struck.contains(&name.as_str()) {
                cells.flip(at, &[1 << 6]);
            }
        }
        drop(trees);
        rig.write(2, POINTERS).unwrap();
        let error = rig.commit().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("a logic bug") == is_logic_bug, "{struck:?}: {error}");
    }
}
