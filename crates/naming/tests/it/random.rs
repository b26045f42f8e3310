//! Random actions against the model of a POSIX tree.
//!
//! `HOLDFAST_SEED=n cargo test -p holdfast-naming --test it random` replays one seed; `HOLDFAST_RUNS=n` does more of them.

use crate::memory_cache::{MemoryCache, expected_class};
use crate::model::{Model, Plan, Profile, run};
use holdfast_naming::check::check;
use holdfast_naming::{Namespace, Options};
use holdfast_object::{Kind, ManualClock, ObjectCache};
use std::sync::Arc;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

fn one(seed: u64, steps: usize, profile: Profile) {
    let cache = MemoryCache::new(1 << 15);
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000, 0));
    let plan = Plan { seed, steps, profile, naming_dies_each: 50, repeat_each: 3 };
    let mut model = match run(cache.clone(), clock.clone(), plan) {
        Ok(model) => model,
        Err(failure) => {
            panic!("{failure}\nreplay: HOLDFAST_SEED={seed} cargo test -p holdfast-naming --test it random")
        }
    };
    // What is held without a name is there, and nothing else is.
    let space = Namespace::new(cache.clone() as Arc<dyn ObjectCache>, clock, Options::default());
    assert_objects(&cache, &model);
    cache.end_sessions();
    model.end_sessions();
    space.reclaim_orphans().unwrap();
    assert_objects(&cache, &model);
}

fn assert_objects(cache: &MemoryCache, model: &Model) {
    let objects = cache.objects();
    for (_, attributes) in objects.iter().filter(|(_, attributes)| attributes.kind != Kind::Xattr) {
        assert_eq!(attributes.class, expected_class(attributes));
    }
    let count = objects.iter().filter(|(_, attributes)| attributes.kind != Kind::Xattr).count();
    let report = check(cache, objects);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(count, model.nodes().count());
    let unnamed = model.nodes().filter(|(_, inode)| inode.nlink == 0).count();
    assert_eq!(report.orphans.len(), unnamed);
}

#[test]
fn random_actions_agree_with_the_model() {
    if let Some(seed) = number("HOLDFAST_SEED") {
        return one(seed, 3000, Profile::default());
    }
    for seed in 0..number("HOLDFAST_RUNS").unwrap_or(10) {
        one(seed, 600, Profile::default());
    }
}

#[test]
fn random_actions_in_wide_directories_agree_with_the_model() {
    let profile = Profile { nodes: 250, names: 200, file_bytes: 6000, sync_percent: 1 };
    for seed in 1000..1000 + number("HOLDFAST_RUNS").unwrap_or(2) {
        one(seed, 1500, profile);
    }
}
