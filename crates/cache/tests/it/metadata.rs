//! Memory of the store's metadata goes bad while the store is used: nothing of it gets to the device, and nobody above notices.

use crate::front::Front;
use crate::rig::{Rig, pattern};
use holdfast_object::*;
use holdfast_physical::Module;
use holdfast_physical::check::{CheckOptions, check};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const SECOND_NS: u64 = 1_000_000_000;

/// Which module is hit when something is written, and between changes; by which numbers; and what was hit.
struct Hits {
    module: OnceLock<(Arc<Module>, Arc<ManualClock>)>,
    random: Mutex<Pcg64Mcg>,
    /// One time of so many.
    one_of: u32,
    told: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Hits {
    fn strike(&self) {
        let Some((module, clock)) = self.module.get().filter(|_| !self.is_over.load(Ordering::Relaxed)) else { return };
        let choice = {
            let mut random = self.random.lock();
            random.random_ratio(1, self.one_of).then(|| random.random())
        };
        if let Some(what) = choice.and_then(|choice| module.lab().flip_any(choice)) {
            self.told.lock().push(what.to_string());
            // What was looked at in the same second is not looked at again.
            clock.advance_ns(SECOND_NS);
        }
    }
}

/// Opens the store of a rig anew, to be hit.
fn struck(rig: Rig, seed: u64, one_of: u32) -> (Arc<Hits>, Rig) {
    let device = rig.device.clone();
    rig.cache.close().unwrap();
    drop(rig);
    let random = Mutex::new(Pcg64Mcg::seed_from_u64(seed));
    let hits = Arc::new(Hits {
        module: OnceLock::new(),
        random,
        one_of,
        told: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let strikes = hits.clone();
    let front = Front::new(device.clone(), move |first| {
        strikes.strike();
        first
    });
    let rig = Rig::open_through(device, front);
    assert!(hits.module.set((rig.module.clone(), rig.clock.clone())).is_ok());
    (hits, rig)
}

/// What the files have.
pub(crate) type Files = BTreeMap<ObjectId, Vec<u8>>;

/// The files, and what each had at some time since it was made durable last: the first of these is durable.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) files: Files,
    since: BTreeMap<ObjectId, Vec<Vec<u8>>>,
}

impl Model {
    fn durable(&mut self, id: ObjectId) {
        self.since.insert(id, vec![self.files[&id].clone()]);
    }

    fn all_durable(&mut self) {
        self.since = self.files.iter().map(|(id, bytes)| (*id, vec![bytes.clone()])).collect();
    }
}

/// One change of a file, in the store and in the model.
pub(crate) fn change(rig: &Rig, random: &mut Pcg64Mcg, model: &mut Model) -> Result<()> {
    let files = &mut model.files;
    let count = files.len();
    let some = |random: &mut Pcg64Mcg| *files.keys().nth(random.random_range(0..count)).expect("one of them");
    match random.random_range(0..10) {
        0..2 if count < 40 => {
            let id = rig.cache.new_object()?;
            let mut attributes =
                Attributes::new(Kind::Regular, Class::Own, 0o644, 1, 2, Timestamp { secs: 5, nanos: 6 });
            attributes.nlink = 1;
            rig.submit(vec![Op::Create { id, attributes }])?;
            files.insert(id, Vec::new());
        }
        2 if count > 5 => {
            let id = some(random);
            rig.submit(vec![Op::Delete { id }])?;
            files.remove(&id);
        }
        3 if count > 0 => {
            let id = some(random);
            let size = random.random_range(0..100_000);
            rig.submit(vec![Op::Truncate { id, size }])?;
            files.get_mut(&id).expect("known").resize(size as usize, 0);
        }
        4 | 5 if count > 0 => {
            let id = some(random);
            rig.cache.sync(id, Durability::All)?;
            model.durable(id);
        }
        6 if random.random_ratio(1, 4) => drop(rig.cache.trim(0..4096)?),
        7 if random.random_ratio(1, 4) => {
            let name = ["one", "two", "three"][random.random_range(0..3)];
            let is_there = rig.cache.snapshots()?.iter().any(|snapshot| snapshot.name == name);
            let done = if is_there { rig.cache.snapshot_delete(name) } else { rig.cache.snapshot_create(name) };
            done?;
            model.all_durable();
        }
        8 if count > 1 && random.random_ratio(1, 2) => {
            let (source, target, pages) = (some(random), some(random), random.random_range(1..10));
            if source == target {
                return Ok(());
            }
            let length = pages * PAGE_SIZE;
            let size_min = length as u64;
            rig.submit(vec![Op::Copy {
                source,
                source_first: 0,
                target,
                target_first: 0,
                pages: pages as u64,
                size_min,
            }])?;
            let mut bytes = files[&source].clone();
            bytes.resize(length, 0);
            let file = files.get_mut(&target).expect("known");
            file.resize(file.len().max(length), 0);
            file[..length].copy_from_slice(&bytes);
        }
        _ if count > 0 => {
            let (id, at) = (some(random), random.random_range(0..200_000));
            let bytes = pattern(random.random(), random.random_range(1..30_000));
            rig.write(id, at as u64, &bytes)?;
            let file = files.get_mut(&id).expect("known");
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        _ => {}
    }
    for (id, bytes) in &model.files {
        if let Some(versions) = model.since.get_mut(id).filter(|versions| versions.last() != Some(bytes)) {
            versions.push(bytes.clone());
        }
    }
    Ok(())
}

pub(crate) fn compare(rig: &Rig, files: &Files, when: &str) {
    for (id, bytes) in files {
        assert!(rig.contents(*id).unwrap() == *bytes, "{when}: {id} is not what was written");
    }
}

/// Changes, with an epoch now and then; gives how often one was begun anew, and whether the store gave up in the end.
fn run(seed: u64, one_of: u32) -> (u64, bool) {
    let (hits, rig) = struck(Rig::new(4096), seed, one_of);
    let mut random = Pcg64Mcg::seed_from_u64(!seed);
    let mut model = Model::default();
    let mut given_up = false;
    for step in 0..300 {
        hits.strike();
        let mut outcome = change(&rig, &mut random, &mut model);
        if outcome.is_ok() && random.random_ratio(1, 5) {
            outcome = rig.cache.sync_all().map(drop);
            if outcome.is_ok() {
                model.all_durable();
                compare(&rig, &model.files, "after an epoch");
            }
        }
        if let Err(error) = outcome {
            // Memory that is hit so often that an epoch cannot be written three times in a row.
            let told = hits.told.lock();
            let is_too_often = matches!(&error, Error::ReadOnly(reason) if reason.contains("times in a row"));
            assert!(is_too_often, "step {step}: {error}; hit: {told:#?}");
            given_up = true;
            break;
        }
    }
    // An epoch that is given up three times in a row is told already.
    hits.is_over.store(true, Ordering::Relaxed);
    let all_logged = || model.files.keys().all(|id| rig.cache.sync(*id, Durability::All).is_ok());
    let is_cut = given_up || (seed.is_multiple_of(2) && all_logged());
    let restarts = rig.module.status().counters.restarts;
    let rig = if is_cut { rig.power_cut() } else { rig.remount() };
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    assert_eq!(report.findings, [], "hit: {:#?}", hits.told.lock());
    if !given_up {
        compare(&rig, &model.files, if is_cut { "after a power cut" } else { "after a remount" });
        return (restarts, false);
    }
    for (id, versions) in &model.since {
        match rig.contents(*id) {
            // What was synced, though it be in the intent log alone, or newer.
            Ok(bytes) => assert!(versions.contains(&bytes), "{id} is nothing that was written since it was durable"),
            Err(error) => assert!(!model.files.contains_key(id), "{id} was durable, and never deleted: {error}"),
        }
    }
    (restarts, true)
}

/// Epochs begun anew, and stores given up, in runs by seed in which memory is hit one time of so many.
fn runs(runs: u64, one_of: u32, test: &str) -> (u64, u64) {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (first, runs) = (number("HOLDFAST_SEED", 1), number("HOLDFAST_RUNS", runs));
    let (mut restarts, mut given_up) = (0, 0);
    for seed in first..first + runs {
        println!("replay: HOLDFAST_SEED={seed} HOLDFAST_RUNS=1 cargo test -p holdfast-cache --test it {test}");
        let (begun_anew, gave_up) = run(seed, one_of);
        restarts += begun_anew;
        given_up += u64::from(gave_up);
    }
    println!("{restarts} epochs begun anew, {given_up} of {runs} stores given up");
    (restarts, given_up)
}

#[test]
fn nobody_above_notices() {
    let (restarts, given_up) = runs(30, 30, "nobody_above_notices");
    assert!(restarts > 0 && given_up <= restarts / 50, "{restarts} begun anew, {given_up} given up");
}

/// What the intent log has outlives all attempts at the epoch.
#[test]
fn what_was_synced_is_there_though_the_store_gave_up() {
    let (restarts, given_up) = runs(40, 4, "what_was_synced_is_there");
    assert!(given_up > 0, "{restarts} begun anew, {given_up} given up");
}
