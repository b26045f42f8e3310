//! Random operations against the model, by seed.

use crate::model::Model;
use crate::rig::*;
use holdfast_object::{AttrSet, Kind, ObjectId, ObjectStore, Op, PAGE_SIZE};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const PAGE: u64 = PAGE_SIZE as u64;

/// Seeds to run: `HOLDFAST_SEED=n` for one, else the first few.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("HOLDFAST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

/// Says how to run a failing seed again.
pub(crate) struct Replay(pub(crate) u64, pub(crate) &'static str);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Replay(seed, test) = self;
            eprintln!("seed {seed}; again: HOLDFAST_SEED={seed} cargo test -p holdfast-physical --test it {test}");
        }
    }
}

fn index(rng: &mut impl Rng) -> u64 {
    match rng.random_range(0..10) {
        0 => rng.random_range(0..1 << 32),
        1..3 => rng.random_range(0..10_000),
        _ => rng.random_range(0..150),
    }
}

/// A random operation that fits the model, with the pages that it writes.
pub(crate) fn operation(rng: &mut impl Rng, rig: &mut Rig, model: &Model) -> (Op, Vec<(u64, Page)>) {
    let ids: Vec<u64> = model.objects.keys().copied().collect();
    let Some(&some) = ids.choose(rng) else { return (create_op(2, Kind::Regular), Vec::new()) };
    let id = ObjectId(some);
    let op = match rng.random_range(0..100) {
        0..10 => {
            let new = if rng.random_bool(0.1) { rng.random_range(1..1 << 30) } else { rng.random_range(1..200) };
            let kinds = [Kind::Regular, Kind::Regular, Kind::Directory, Kind::Symlink];
            match model.objects.contains_key(&new) {
                true => Op::Delete { id: ObjectId(new) },
                false => Op::Create {
                    id: ObjectId(new),
                    attributes: attributes(*kinds.choose(rng).unwrap(), rng.random_range(0..2)),
                },
            }
        }
        10..14 => Op::Delete { id },
        14..50 => {
            let first = index(rng).min((1 << 32) - 20);
            let pages: Vec<_> =
                (first..first + rng.random_range(1..20)).map(|at| (at, pattern(rng.random()))).collect();
            return (rig.write_op(some, &pages), pages);
        }
        50..60 => {
            let first = index(rng).min((1 << 32) - 20);
            let pages: Vec<_> =
                (first..first + rng.random_range(1..20)).map(|at| (at, pattern(rng.random()))).collect();
            let refs: Vec<_> = pages.iter().map(|(at, page)| (*at, rig.pin(page))).collect();
            let placed = rig.module.place(key(some), rig.next_epoch(), &refs).unwrap();
            let size_min = (pages.last().unwrap().0 + 1) * PAGE;
            let adopted = pages.iter().map(|(at, _)| *at).zip(placed).collect();
            return (Op::Adopt { id, pages: adopted, size_min }, pages);
        }
        60..70 => Op::Truncate { id, size: index(rng) * PAGE + rng.random_range(0..2) * rng.random_range(0..PAGE) },
        70..80 => {
            let offset = index(rng) * PAGE + rng.random_range(0..2) * rng.random_range(0..PAGE);
            let length = rng.random_range(0..200 * PAGE).min((1 << 44) - offset);
            Op::Zero { id, offset, length }
        }
        80..88 => Op::SetAttributes { id, set: AttrSet { nlink: Some(rng.random_range(0..3)), ..AttrSet::default() } },
        _ => {
            let target = *ids.choose(rng).unwrap();
            let source_first = index(rng).min(1 << 31);
            let pages = rng.random_range(1..200);
            let mut target_first = index(rng).min(1 << 31);
            if some == target && source_first.abs_diff(target_first) < pages {
                target_first = source_first + pages;
            }
            let same = model.objects[&some].kind.is_metadata() == model.objects[&target].kind.is_metadata();
            if !same {
                return (Op::Truncate { id, size: 0 }, Vec::new());
            }
            Op::Copy {
                source: id,
                source_first,
                target: ObjectId(target),
                target_first,
                pages,
                size_min: rng.random_range(0..(target_first + pages) * PAGE),
            }
        }
    };
    (op, Vec::new())
}

#[test]
fn random_operations_match_the_model() {
    for seed in seeds(12) {
        let _replay = Replay(seed, "random_operations_match_the_model");
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let mut rig = Rig::new(12_000);
        if seed % 3 == 1 {
            rig.options.node_cache_bytes = 0;
            rig.reopen();
        }
        let mut model = Model::default();
        let mut published = model.clone();
        for _epoch in 0..12 {
            for _ in 0..rng.random_range(0..12) {
                let mut ops = Vec::new();
                for _ in 0..rng.random_range(1..6) {
                    let (op, pages) = operation(&mut rng, &mut rig, &model);
                    model.apply(&op, &pages);
                    ops.push(op);
                }
                let twice = rng.random_bool(0.2) && !ops.iter().any(|op| matches!(op, Op::Copy { .. }));
                rig.apply(ops.clone());
                if twice {
                    rig.apply(ops);
                }
            }
            if rng.random_bool(0.5) {
                model.compare(&rig);
            }
            match rng.random_range(0..10) {
                0 => {
                    // A crash before the commit.
                    rig.reopen();
                    model = published.clone();
                }
                1 => {
                    // A crash in the middle of it.
                    rig.module.prepare(rig.next_epoch()).unwrap();
                    rig.reopen();
                    model = published.clone();
                }
                _ => {
                    rig.commit();
                    published = model.clone();
                    if rng.random_bool(0.3) {
                        rig.reopen();
                    }
                }
            }
            model.compare(&rig);
            let report = rig.check();
            assert_eq!(report.objects, model.objects.len() as u64);
        }
    }
}
