//! Scrub of what only snapshots have: each block is read once, and what is bad is told for everything that has it.

use crate::model::Model;
use crate::random::{Replay, operation, seeds};
use crate::rig::*;
use holdfast_object::{
    DomainId, Fate, Kind, Mending, ObjectId, ObjectKey, ObjectStore, Op, PageSource, ScrubCounts, ScrubCursor,
    ScrubFinding, SnapshotId, Timestamp,
};
use holdfast_physical::Module;
use holdfast_physical::check::{BlockRole, CheckOptions, Finding, block_uses, check};
use rand::seq::IndexedRandom;
use rand::{Rng as _, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;

const MAIN: DomainId = DomainId::MAIN;

/// All of it; also how many blocks there were to read.
fn scrub(module: &Module, blocks: u64) -> (ScrubCounts, Vec<ScrubFinding>, u64) {
    let (mut counts, mut findings, mut cursor, mut in_use) =
        (ScrubCounts::default(), Vec::new(), ScrubCursor::Start, 0);
    while cursor != ScrubCursor::End {
        let step = module.scrub_step(&cursor, blocks).unwrap();
        counts.add(&step.counts);
        findings.extend(step.findings);
        (cursor, in_use) = (step.cursor, step.blocks_in_use);
    }
    (counts, findings, in_use)
}

fn snapshot(rig: &Rig, name: &str) -> SnapshotId {
    rig.module.snapshot_create(MAIN, rig.next_epoch(), name, Timestamp::default()).unwrap()
}

/// A store with a past, several snapshots of it, and pages that are shared between files if asked for.
fn random_store(seed: u64, shares: bool) -> Rig {
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let mut rig = Rig::new(8_000);
    let mut model = Model::default();
    for epoch in 0..10 {
        let ids: Vec<SnapshotId> = rig.module.snapshots(MAIN).unwrap().iter().map(|info| info.id).collect();
        match rng.random_range(0..4) {
            0 if ids.len() > 2 => {
                let gone = *ids.choose(&mut rng).unwrap();
                rig.module.snapshot_delete(MAIN, rig.next_epoch(), gone).unwrap();
            }
            0..3 if epoch > 0 => drop(snapshot(&rig, &format!("{epoch}"))),
            _ => {}
        }
        for _ in 0..rng.random_range(5..30) {
            let (op, pages) = operation(&mut rng, &mut rig, &model);
            if shares || !matches!(op, Op::Copy { .. }) {
                model.apply(&op, &pages);
                rig.apply(vec![op]);
            }
        }
        rig.commit();
    }
    assert!(rig.module.snapshots(MAIN).unwrap().len() > 1);
    rig
}

#[test]
fn every_block_is_read_once_whoever_has_it() {
    for seed in seeds(20) {
        let _replay = Replay(seed, "every_block_is_read_once_whoever_has_it");
        let mut rig = random_store(seed, seed % 2 == 0);
        let held: u64 = rig.module.snapshots(MAIN).unwrap().iter().map(|info| info.blocks_only).sum();
        for blocks in [1, 13, 1 << 20] {
            let (counts, findings, in_use) = scrub(&rig.module, blocks);
            assert_eq!(findings, []);
            assert_eq!(counts.blocks(), in_use, "{blocks} blocks a step, {held} of snapshots: {counts:?}");
        }
        rig.reopen();
        assert_eq!(scrub(&rig.module, 64).0.blocks(), scrub(&rig.module, 64).2);
    }
}

/// A store in which 20 files share most of what is in it: what has been read rises to the end, and tells how long the rest takes.
/// What takes time is what is read from the device.
#[test]
fn progress_is_right_with_pages_that_many_files_share() {
    const PAGES: u64 = 1000;
    let mut rig = Rig::new(16_384);
    let fill = |rig: &mut Rig, id: u64| {
        let pages: Vec<_> = (0..PAGES).map(|page| (page, pattern(id * PAGES + page))).collect();
        let write = rig.write_op(id, &pages);
        rig.apply(vec![create_op(id, Kind::Regular), write]);
    };
    fill(&mut rig, 2);
    for id in 3..22 {
        let copy = Op::Copy {
            source: ObjectId(2),
            source_first: 0,
            target: ObjectId(id),
            target_first: 0,
            pages: PAGES,
            size_min: PAGES * 4096,
        };
        rig.apply(vec![create_op(id, Kind::Regular), copy]);
    }
    rig.commit();
    snapshot(&rig, "s");
    rig.apply(vec![Op::Delete { id: ObjectId(21) }]);
    (22..24).for_each(|id| fill(&mut rig, id));
    rig.commit();
    let read = || rig.module.status().counters.read_bytes;
    let begin = read();
    let (mut cursor, mut blocks, mut half) = (ScrubCursor::Start, 0, None);
    let mut in_use = 0;
    while cursor != ScrubCursor::End {
        let step = rig.module.scrub_step(&cursor, 64).unwrap();
        assert!(in_use == 0 || step.blocks_in_use == in_use, "nothing changes meanwhile");
        (cursor, blocks, in_use) = (step.cursor, blocks + step.counts.blocks(), step.blocks_in_use);
        assert!(blocks <= in_use, "{blocks} of {in_use}");
        if blocks * 2 >= in_use && half.is_none() {
            let taken = (read() - begin) as f64;
            half = Some((taken, taken * (in_use - blocks) as f64 / blocks as f64));
        }
    }
    assert_eq!(blocks, in_use);
    assert!(in_use < 4 * PAGES, "{in_use} blocks are fewer than pages of files");
    let (taken, estimate) = half.unwrap();
    let rest = (read() - begin) as f64 - taken;
    assert!((0.5..=2.0).contains(&(estimate / rest)), "estimated at the half: {estimate}, and {rest} in the end");
}

/// Everything of which this page cannot be read.
fn unreadable(rig: &Rig, module: &Module, object: ObjectId, index: u64) -> BTreeSet<ObjectId> {
    let snapshots = module.snapshots(MAIN).unwrap();
    let states = snapshots.iter().map(|info| info.id).chain([SnapshotId::LIVE]);
    let fails = |id: &ObjectId| {
        let key = ObjectKey { domain: MAIN, object: *id };
        module.attributes(key).is_ok() && module.read(key, index, &mut rig.frames(1)).is_err()
    };
    states.map(|state| object.in_snapshot(state)).filter(fails).collect()
}

#[test]
fn what_is_bad_is_repaired_or_told_of_all_that_have_it() {
    let mut shared = 0;
    for seed in seeds(3) {
        let _replay = Replay(seed, "what_is_bad_is_repaired_or_told_of_all_that_have_it");
        let rig = random_store(seed, true);
        let uses = block_uses(rig.device.clone()).unwrap();
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let (data, others): (Vec<_>, Vec<_>) =
            uses.iter().filter(|used| used.object.is_some()).partition(|used| used.role == BlockRole::Data);
        for used in data.choose_multiple(&mut rng, 30).chain(others.choose_multiple(&mut rng, 10)) {
            let device = Arc::new(rig.device.as_ref().clone());
            device.alter(used.block, |block| block[99] ^= 8).unwrap();
            let module = rig.open_on(device.clone()).unwrap();
            let (counts, findings, _) = scrub(&module, 64);
            let what = format!("{used:?}: {findings:?}");
            if used.role != BlockRole::Data {
                assert_eq!((module.status().repaired, counts.unrepaired), (1, 0), "{what}");
                continue;
            }
            assert!(counts.unrepaired > 0 && counts.unrepaired == findings.len() as u64, "{what}");
            let told: BTreeSet<(ObjectId, u64)> =
                findings.iter().map(|found| (found.place.object.unwrap().object, found.place.index.unwrap())).collect();
            assert_eq!(told.len(), findings.len(), "each once: {what}");
            let mut expected = BTreeSet::new();
            for (object, index) in told.iter().map(|(object, index)| (object.live(), *index)).collect::<BTreeSet<_>>() {
                expected.extend(unreadable(&rig, &module, object, index).into_iter().map(|object| (object, index)));
            }
            assert_eq!(told, expected, "{what}");
            let checked = check(device, &CheckOptions::default()).unwrap();
            let named = |found: &Finding| (found.place.object.unwrap().object, found.place.index.unwrap());
            assert!(checked.findings.iter().all(|found| told.contains(&named(found))), "{checked:?}: {what}");
            assert!(!checked.findings.is_empty(), "{what}");
            shared += usize::from(told.len() > 1);
        }
    }
    assert!(shared > 3, "bad pages of several states: {shared}");
}

#[test]
fn a_page_is_mended_in_place_for_all_that_share_it_and_by_nothing_else() {
    let mut rig = Rig::new(2048);
    let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
    rig.apply(vec![create_op(2, Kind::Regular), create_op(3, Kind::Regular), write]);
    rig.apply(vec![Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 0,
        pages: 2,
        size_min: 0,
    }]);
    rig.commit();
    let kept = snapshot(&rig, "s");
    rig.apply(vec![Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let used = uses.iter().find(|used| used.role == BlockRole::Data && used.index == 1).unwrap();
    rig.device.alter(used.block, |block| block[0] ^= 1).unwrap();
    let (counts, findings, _) = scrub(&rig.module, 64);
    let told: BTreeSet<ObjectId> = findings.iter().map(|found| found.place.object.unwrap().object).collect();
    let of_file = [ObjectId(2), ObjectId(2).in_snapshot(kept), ObjectId(3).in_snapshot(kept)];
    assert_eq!((told, counts.unrepaired), (of_file.into(), 3), "{findings:?}");
    assert!(findings.iter().all(|found| found.fate == Fate::Unrepaired && found.block == findings[0].block));

    let key = |object| ObjectKey { domain: MAIN, object };
    let (wrong, right) = (rig.pin(&pattern(1)), rig.pin(&pattern(2)));
    assert_eq!(rig.module.mend(key(of_file[1]), 1, wrong).unwrap(), Mending::OtherBytes, "another page's bytes");
    assert!(rig.module.read(key(ObjectId(2)), 1, &mut rig.frames(1)).is_err());
    assert_eq!(rig.module.mend(key(of_file[1]), 1, right).unwrap(), Mending::Done);
    for object in of_file {
        let sources = rig.module.read(key(object), 1, &mut rig.frames(1)).unwrap();
        assert!(matches!(sources[0], PageSource::Data { .. }));
    }
    assert_eq!(scrub(&rig.module, 64).1, []);
    rig.check();
}
