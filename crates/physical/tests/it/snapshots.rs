//! Snapshots: what they keep, what deleting them frees, what they say has changed.

use crate::model::Model;
use crate::random::{Replay, operation, seeds};
use crate::rig::*;
use holdfast_object::{
    DomainId, Error, Kind, ObjectId, ObjectKey, ObjectStore, Op, Seek, SnapshotDeletion, SnapshotId, SnapshotInfo,
    Timestamp,
};
use holdfast_physical::DeletionSlice;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

const MAIN: DomainId = DomainId::MAIN;
const LIVE: SnapshotId = SnapshotId::LIVE;

fn create(rig: &Rig, name: &str) -> SnapshotId {
    rig.module.snapshot_create(MAIN, rig.next_epoch(), name, Timestamp { secs: 7, nanos: 8 }).unwrap()
}

fn in_snapshot(id: u64, snapshot: SnapshotId) -> ObjectKey {
    ObjectKey { domain: MAIN, object: ObjectId(id).in_snapshot(snapshot) }
}

/// A snapshot has just what its model has.
fn compare(rig: &Rig, snapshot: SnapshotId, model: &Model) {
    for id in (1..200).chain(model.objects.keys().copied()) {
        let key = in_snapshot(id, snapshot);
        let Some(object) = model.objects.get(&id) else {
            assert_eq!(rig.module.attributes(key), Err(Error::NoObject(key)));
            continue;
        };
        let attributes = rig.module.attributes(key).unwrap();
        assert_eq!((attributes.kind, attributes.nlink, attributes.size), (object.kind, object.nlink, object.size));
        assert_eq!(attributes.blocks, object.pages.len() as u64, "{key}");
        let mut from = 0;
        for (&index, page) in &object.pages {
            assert_eq!(rig.module.seek(key, from, Seek::Data).unwrap(), Some(index), "{key}");
            assert!(rig.read_one(key.object.0, index).as_ref() == Some(page), "page {index} of {key}");
            from = index + 1;
        }
        assert_eq!(rig.module.seek(key, from, Seek::Data).unwrap(), None, "{key}");
    }
}

/// What differs between two models is among what has changed.
fn compare_changes(rig: &Rig, states: (SnapshotId, SnapshotId), before: &Model, after: &Model) {
    let mut changed = BTreeSet::new();
    let mut last = ObjectId(0);
    loop {
        let some = rig.module.changed_objects(MAIN, states, last, 7).unwrap();
        let Some(end) = some.last() else { break };
        assert!(some.windows(2).all(|pair| pair[0].object < pair[1].object) && some[0].object > last);
        last = end.object;
        for change in some {
            let id = change.object.0;
            assert_eq!(change.before.map(|object| object.size), before.objects.get(&id).map(|object| object.size));
            assert_eq!(change.after.map(|object| object.size), after.objects.get(&id).map(|object| object.size));
            changed.insert(id);
        }
    }
    let ids: BTreeSet<u64> = before.objects.keys().chain(after.objects.keys()).copied().collect();
    for id in ids {
        let [old, new] = [before, after].map(|model| model.objects.get(&id));
        assert!(old == new || changed.contains(&id), "object {id} has changed");
        let pages = |object: Option<&crate::model::ModelObject>| object.map_or(BTreeMap::new(), |it| it.pages.clone());
        let [old, new] = [pages(old), pages(new)];
        let indices = old.keys().chain(new.keys()).copied().collect::<BTreeSet<u64>>();
        let expected: Vec<u64> = indices.into_iter().filter(|index| old.get(index) != new.get(index)).collect();
        let mut pages = Vec::new();
        let mut from = 0;
        loop {
            let some = rig.module.changed_pages(in_snapshot(id, LIVE), states, from, 5).unwrap();
            let Some(end) = some.last() else { break };
            from = end + 1;
            pages.extend(some);
        }
        assert!(pages.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(expected.iter().all(|page| pages.contains(page)), "object {id}: {expected:?} in {pages:?}");
    }
}

#[test]
fn random_operations_under_snapshots() {
    for seed in seeds(10) {
        let _replay = Replay(seed, "random_operations_under_snapshots");
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let mut rig = Rig::new(16_000);
        // Deletions in one slice, in some, and in one for each run or part of one.
        let slice = [(8192, 1 << 17), (16, 64), (1, 2)][(seed % 3) as usize];
        rig.options.deletion_slice = DeletionSlice { runs: slice.0, blocks: slice.1 };
        rig.reopen();
        let empty = rig.module.status().space.free;
        let (mut model, mut kept) = (Model::default(), BTreeMap::<SnapshotId, Model>::new());
        let mut published = (model.clone(), kept.clone());
        for epoch in 0..16 {
            match rng.random_range(0..10) {
                0..5 if kept.len() < 5 => {
                    let id = create(&rig, &format!("{seed} {epoch}"));
                    assert!(kept.insert(id, published.0.clone()).is_none());
                }
                5..8 => {
                    if let Some(&id) = kept.keys().choose(&mut rng) {
                        rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap();
                        kept.remove(&id);
                    }
                }
                _ => {
                    if let Some(deletion) = rig.module.snapshot_deletions(MAIN).into_iter().choose(&mut rng) {
                        assert!(!kept.contains_key(&deletion.id));
                        rig.module.snapshot_delete(MAIN, rig.next_epoch(), deletion.id).unwrap();
                    }
                }
            }
            for _ in 0..rng.random_range(0..10) {
                let mut ops = Vec::new();
                for _ in 0..rng.random_range(1..6) {
                    let (op, pages) = operation(&mut rng, &mut rig, &model);
                    model.apply(&op, &pages);
                    ops.push(op);
                }
                rig.apply(ops);
            }
            match rng.random_range(0..8) {
                0 => {
                    // A crash before the commit, or in the middle of it.
                    if rng.random_bool(0.5) {
                        rig.module.prepare(rig.next_epoch()).unwrap();
                    }
                    rig.reopen();
                    (model, kept) = published.clone();
                }
                _ => {
                    rig.commit();
                    published = (model.clone(), kept.clone());
                    if rng.random_bool(0.3) {
                        rig.reopen();
                    }
                }
            }
            model.compare(&rig);
            kept.iter().for_each(|(id, model)| compare(&rig, *id, model));
            let report = rig.check();
            assert_eq!(report.objects, model.objects.len() as u64);
            let all = rig.module.snapshots(MAIN).unwrap();
            let listed: BTreeSet<SnapshotId> = all.iter().map(|info| info.id).collect();
            assert_eq!(listed, kept.keys().copied().collect());
            let only: u64 = all.iter().map(|info| info.blocks_only).sum();
            let together = rig.module.kept_blocks(MAIN).unwrap();
            assert!(only <= together, "{only} of {together}");
            let uncounted: Vec<_> = all.into_iter().map(|info| SnapshotInfo { blocks_only: 0, ..info }).collect();
            assert_eq!(rig.module.snapshots_uncounted(MAIN).unwrap(), uncounted);
            let states: Vec<(SnapshotId, &Model)> =
                kept.iter().map(|(id, model)| (*id, model)).chain([(LIVE, &model)]).collect();
            for pair in states.windows(2) {
                compare_changes(&rig, (pair[0].0, pair[1].0), pair[0].1, pair[1].1);
                compare_changes(&rig, (pair[1].0, pair[0].0), pair[1].1, pair[0].1);
            }
        }
        finish_deletions(&mut rig);
        // What is told to be a snapshot's alone is what deleting it gives back, but for the lists themselves.
        while let Some(info) = rig.module.snapshots(MAIN).unwrap().into_iter().choose(&mut rng) {
            rig.commit();
            let before = rig.module.status().space.free;
            let together = rig.module.kept_blocks(MAIN).unwrap();
            rig.module.snapshot_delete(MAIN, rig.next_epoch(), info.id).unwrap();
            rig.commit();
            finish_deletions(&mut rig);
            rig.check();
            let counted = rig.module.kept_blocks(MAIN).unwrap();
            assert!(counted + info.blocks_only <= together);
            rig.module.snapshots(MAIN).unwrap();
            assert_eq!(rig.module.kept_blocks(MAIN), Some(counted), "counted anew");
            let freed = rig.module.status().space.free as i64 - before as i64;
            assert!((freed - info.blocks_only as i64).abs() <= 64, "{freed} blocks freed: {info:?}");
        }
        rig.apply(model.objects.keys().map(|id| Op::Delete { id: ObjectId(*id) }).collect());
        rig.commit();
        rig.commit();
        rig.check();
        assert!(rig.module.status().space.free >= empty - 16, "{} of {empty}", rig.module.status().space.free);
    }
}

/// Until all is free that deleted snapshots had, with a crash now and then, and another snapshot made meanwhile.
fn finish_deletions(rig: &mut Rig) {
    let mut slices = 0;
    while let Some(deletion) = rig.module.snapshot_deletions(MAIN).first() {
        let (id, left) = (deletion.id, deletion.runs_left);
        rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap();
        rig.commit();
        slices += 1;
        if slices % 64 == 1 {
            rig.check();
            rig.reopen();
            rig.module.snapshots(MAIN).unwrap();
        }
        let next = rig.module.snapshot_deletions(MAIN).into_iter().find(|next| next.id == id);
        assert!(next.is_none_or(|next| next.runs_left <= left), "of {id:?}, {left} were left");
    }
}

#[test]
fn a_deletion_in_slices_goes_on_after_a_crash_and_others_come_between() {
    let mut rig = Rig::new(30_000);
    rig.options.deletion_slice = DeletionSlice { runs: 200, blocks: 1 << 17 };
    rig.reopen();
    // Written anew each fourth at a time, so that no two neighbours die together.
    let pages = |version: u64| (0..2000).map(|at| (at, pattern(at + 10_000 * version))).collect::<Vec<_>>();
    let write = rig.write_op(2, &pages(0));
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    let older = create(&rig, "older");
    rig.commit();
    let middle = create(&rig, "middle");
    for start in 0..4 {
        let every_fourth: Vec<_> = pages(1)[start..].iter().step_by(4).cloned().collect();
        let write = rig.write_op(2, &every_fourth);
        rig.apply(vec![write]);
        rig.commit();
    }
    let free = rig.module.status().space.free;
    assert_eq!(rig.module.snapshots(MAIN).unwrap()[0].blocks_only, 0, "the newer one has all of it");
    let old = |rig: &Rig, of: SnapshotId| {
        (0..2000).all(|at| rig.read_one(ObjectId(2).in_snapshot(of).0, at) == Some(pattern(at)))
    };
    assert!(old(&rig, older) && old(&rig, middle));

    assert!(rig.module.snapshot_delete(MAIN, rig.next_epoch(), middle).unwrap(), "more is left");
    rig.commit();
    let key = in_snapshot(2, middle);
    assert_eq!(rig.module.attributes(key), Err(Error::NoObject(key)), "it is gone with the first slice");
    let [deletion] = &rig.module.snapshot_deletions(MAIN)[..] else { panic!("one deletion") };
    assert!((deletion.id, &*deletion.name) == (middle, "middle") && deletion.runs_left >= 1500, "{deletion:?}");
    rig.check();
    // Its name is free, and its number is not.
    let again = create(&rig, "middle");
    assert_ne!(again, middle);
    rig.commit();
    let mut slices = 1;
    while let Some(SnapshotDeletion { id, .. }) = rig.module.snapshot_deletions(MAIN).first() {
        rig.module.snapshot_delete(MAIN, rig.next_epoch(), *id).unwrap();
        if slices % 3 == 0 {
            // This one is lost.
            rig.module.prepare(rig.next_epoch()).unwrap();
            rig.reopen();
            slices += 1;
            continue;
        }
        rig.commit();
        rig.check();
        assert!(old(&rig, older));
        slices += 1;
    }
    assert!(slices >= 10, "{slices}");
    let listed: Vec<_> = rig.module.snapshots(MAIN).unwrap();
    assert_eq!(listed.iter().map(|info| info.id).collect::<Vec<_>>(), [older, again]);
    assert!((2000..2200).contains(&listed[0].blocks_only), "all is the older one's: {listed:?}");
    rig.reopen();
    rig.commit();
    assert!(rig.module.status().space.free.abs_diff(free) < 64);
    rig.check();
}

/// A run of any length goes in parts, so that its length is no matter.
#[test]
fn a_long_run_is_freed_in_parts() {
    let mut rig = Rig::new(16_000);
    rig.options.deletion_slice = DeletionSlice { runs: 100, blocks: 300 };
    rig.reopen();
    let write = rig.write_op(2, &(0..2000).map(|at| (at, pattern(at))).collect::<Vec<_>>());
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    rig.commit();
    let id = create(&rig, "s");
    rig.commit();
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    rig.commit();
    assert!(rig.module.snapshots(MAIN).unwrap()[0].blocks_only >= 2000);
    let mut free = rig.module.status().space.free;
    let mut slices = 0;
    while rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap() {
        rig.commit();
        rig.commit();
        rig.check();
        let now = rig.module.status().space.free;
        assert!(now > free && now - free <= 300 + 64, "{now} after {free}");
        (free, slices) = (now, slices + 1);
    }
    assert!(slices >= 6, "{slices}");
    rig.commit();
    rig.check();
    assert_eq!(rig.module.kept_blocks(MAIN), Some(0));
}

/// Without its entry, the list of a deleted snapshot is nobody's.
#[test]
fn a_snapshot_that_leaves_the_list_too_early_is_found() {
    let device = std::sync::Arc::new(holdfast_block::MemoryDevice::new(16_000));
    let mut rig = Rig::on(device.clone(), device, holdfast_physical::CommitOrder::UnlistFirst);
    rig.options.deletion_slice = DeletionSlice { runs: 4, blocks: 64 };
    rig.reopen();
    let write = rig.write_op(2, &(0..500).map(|at| (at, pattern(at))).collect::<Vec<_>>());
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    let id = create(&rig, "s");
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    assert!(!rig.module.snapshot_delete(MAIN, rig.next_epoch(), id).unwrap());
    rig.commit();
    let report = holdfast_physical::check::check(rig.device.clone(), &Default::default()).unwrap();
    assert!(report.findings.iter().any(|finding| finding.what.contains("in no snapshot")), "{report:?}");
}

#[test]
fn a_snapshot_costs_the_same_whatever_it_keeps() {
    let mut rig = Rig::new(30_000);
    let pages: Vec<_> = (0..2000).map(|at| (at, pattern(at))).collect();
    let write = rig.write_op(2, &pages);
    rig.apply(vec![create_op(2, Kind::Regular), write]);
    rig.commit();
    rig.commit();
    let before = rig.module.status().space.free;
    let id = create(&rig, "s");
    rig.commit();
    assert!(before - rig.module.status().space.free <= 16, "a list, and what a recovery point costs");
    assert_eq!(rig.module.snapshots(MAIN).unwrap()[0].blocks_only, 0);
    rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 0 }]);
    rig.commit();
    rig.commit();
    let only = rig.module.snapshots(MAIN).unwrap()[0].blocks_only;
    // Data once; tree blocks and the table twice.
    assert!((2000..2100).contains(&only), "{only}");
    assert!(rig.read_one(ObjectId(2).in_snapshot(id).0, 1999) == Some(pattern(1999)));
    rig.check();
}

#[test]
fn mistakes_are_refused() {
    let mut rig = Rig::new(2048);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    let time = Timestamp::default();
    let late = rig.module.snapshot_create(MAIN, rig.next_epoch(), "late", time);
    assert!(matches!(late, Err(Error::Protocol(_))), "something has been applied: {late:?}");
    rig.commit();
    let id = create(&rig, "s");
    rig.commit();
    let again = |name| rig.module.snapshot_create(MAIN, rig.next_epoch(), name, time);
    assert_eq!(again("s"), Err(Error::SnapshotExists("s".into())));
    assert_eq!(again("a/b"), Err(Error::SnapshotName("a/b".into())));
    let none = SnapshotId(id.0 + 1);
    assert!(matches!(rig.module.snapshot_delete(MAIN, rig.next_epoch(), none), Err(Error::NoSnapshot(_))));
    assert!(rig.module.changed_objects(MAIN, (none, LIVE), ObjectId(0), 1).is_err());
    for snapshot in [none, SnapshotId::VIRTUAL] {
        let key = in_snapshot(2, snapshot);
        assert_eq!(rig.module.attributes(key), Err(Error::NoObject(key)));
        assert!(rig.module.seek(key, 0, Seek::Data).is_err());
    }
    let change = Op::Truncate { id: ObjectId(2).in_snapshot(id), size: 9 };
    assert!(rig.try_apply(vec![change]).is_err());
    compare(&rig, id, &{
        let mut model = Model::default();
        model.apply(&create_op(2, Kind::Regular), &[]);
        model
    });
}
