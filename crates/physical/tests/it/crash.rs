//! Power cuts at every flush: what was not flushed is dropped, torn or kept at random; what comes back must be the last
//! recovery point and every batch of the intent log that had been acknowledged, and must pass the check.

use crate::model::Model;
use crate::random::{Replay, operation, seeds};
use crate::rig::*;
use holdfast_block::{Device, Error, Filter, MemoryDevice};
use holdfast_object::{Batch, DomainId, Epoch, LogBatch, ObjectStore};
use holdfast_physical::check::{CheckOptions, FindingKind, check};
use holdfast_physical::{CommitOrder, Module, OpenOptions};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

type Write = (u64, Vec<u8>);

/// A device that keeps a diary.
struct Recorder {
    device: Arc<MemoryDevice>,
    /// Writes between flushes.
    diary: Mutex<Vec<Vec<Write>>>,
}

impl Filter for Recorder {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.diary
            .lock()
            .unwrap()
            .last_mut()
            .unwrap()
            .push((first, bufs.iter().flat_map(|buf| buf.to_vec()).collect()));
        self.device.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.diary.lock().unwrap().push(Vec::new());
        Ok(())
    }

    fn on_discard(&self, _first: u64, _count: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// What a run promised by a certain flush.
#[derive(Clone)]
struct Promise {
    flushes: usize,
    epoch: Epoch,
    logged: usize,
}

struct Run {
    start: MemoryDevice,
    diary: Vec<Vec<Write>>,
    promises: Vec<Promise>,
    /// State of each recovery point and, on top of it, after each batch logged in the epoch behind it.
    states: BTreeMap<Epoch, Vec<Model>>,
}

/// Random epochs, all of whose batches are logged, with everything recorded.
fn run(seed: u64, order: CommitOrder) -> Run {
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let device = Arc::new(MemoryDevice::new(6000));
    let recorder = Arc::new(Recorder { device: device.clone(), diary: Mutex::new(vec![Vec::new()]) });
    let mut rig = Rig::on(device, recorder.clone(), order);
    let start = rig.device.as_ref().clone();
    *recorder.diary.lock().unwrap() = vec![Vec::new()];
    let mut model = Model::default();
    let mut states = BTreeMap::from([(1, vec![model.clone()])]);
    let mut promises = vec![Promise { flushes: 0, epoch: 1, logged: 0 }];
    let mut promise = |epoch, logged| {
        let flushes = recorder.diary.lock().unwrap().len() - 1;
        promises.push(Promise { flushes, epoch, logged });
    };
    for _ in 0..8 {
        let epoch = rig.next_epoch();
        for _ in 0..rng.random_range(0..5) {
            let mut ops = Vec::new();
            let mut next = model.clone();
            for _ in 0..rng.random_range(1..4) {
                let (op, pages) = operation(&mut rng, &mut rig, &next);
                next.apply(&op, &pages);
                ops.push(op);
            }
            let batch = LogBatch { epoch, domain: DomainId::MAIN, ops: ops.clone() };
            if !rig.module.log_append(&batch).unwrap() {
                break;
            }
            model = next;
            let after = states.get_mut(&(epoch - 1)).unwrap();
            after.push(model.clone());
            promise(epoch - 1, after.len() - 1);
            rig.apply(ops);
        }
        states.insert(epoch, vec![model.clone()]);
        rig.commit();
        promise(epoch, 0);
    }
    let diary = std::mem::take(&mut *recorder.diary.lock().unwrap());
    Run { start, diary, promises, states }
}

/// What may be left of unflushed writes: each block kept, dropped or torn at a sector.
fn crash(rng: &mut impl Rng, flushed: &MemoryDevice, unflushed: &[Write]) -> MemoryDevice {
    let device = flushed.clone();
    let keep = rng.random_range(0.0..1.0);
    for (first, bytes) in unflushed {
        for (at, block) in bytes.chunks(4096).enumerate() {
            if rng.random_bool(keep) {
                let end = if rng.random_bool(0.1) { rng.random_range(0..8) * 512 } else { 4096 };
                device.alter(first + at as u64, |to| to[..end].copy_from_slice(&block[..end])).unwrap();
            }
        }
    }
    device
}

/// Recovers from a crash state, and compares.
fn recover(device: MemoryDevice, run: &Run, promise: &Promise) -> Result<(), String> {
    let says = |error: holdfast_object::Error| error.to_string();
    let device = Arc::new(device);
    let report = check(device.clone(), &CheckOptions::default()).map_err(says)?;
    // The slot that the next superblock was being written to may be torn; a torn log batch is no finding.
    if let Some(finding) = report.findings.iter().find(|finding| finding.kind != FindingKind::Superblock) {
        return Err(finding.to_string());
    }
    let arena = holdfast_object::Arena::new(600, 0).unwrap();
    let module = Module::open(device.clone(), arena.clone(), clock(), &OpenOptions::default()).map_err(says)?;
    if let Some(reason) = module.status().read_only {
        return Err(reason);
    }
    let last = module.epoch();
    if last < promise.epoch {
        return Err(format!("epoch {last} after {} was published", promise.epoch));
    }
    let states = run.states.get(&last).ok_or(format!("epoch {last}"))?;
    states[0].matches(&module, &arena)?;
    let mut replayed = 0;
    let frames = |count: usize| Ok((0..count).filter_map(|_| arena.allocate()).collect());
    while let Some(recovered) = module.log_next(&mut { frames }).map_err(says)? {
        let LogBatch { domain, ops, .. } = recovered.batch;
        module.apply(&Batch { domain, epoch: last + 3, ops }).map_err(says)?;
        replayed += 1;
    }
    if last == promise.epoch && replayed < promise.logged {
        return Err(format!("{replayed} batches of the log, {} had been acknowledged", promise.logged));
    }
    states.get(replayed).ok_or("too many batches")?.matches(&module, &arena)?;
    module.prepare(last + 3).and_then(|()| module.publish(last + 3)).map_err(says)?;
    let report = check(device, &CheckOptions::default()).map_err(says)?;
    match report.findings.iter().find(|finding| finding.kind != FindingKind::Superblock) {
        Some(finding) => Err(format!("after recovery: {finding}")),
        None => Ok(()),
    }
}

/// Crash states tried, and the first that was wrong.
fn explore(seed: u64, order: CommitOrder, states_per_flush: usize) -> (usize, Option<String>) {
    let run = run(seed, order);
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed ^ 0xc0ffee);
    let flushed = run.start.clone();
    let mut states = 0;
    for (flush, unflushed) in run.diary.iter().enumerate() {
        let promise = run.promises.iter().rfind(|promise| promise.flushes <= flush).unwrap();
        for _ in 0..states_per_flush {
            states += 1;
            if let Err(error) = recover(crash(&mut rng, &flushed, unflushed), &run, promise) {
                return (states, Some(format!("after flush {flush}: {error}")));
            }
        }
        for (first, bytes) in unflushed {
            flushed.write(*first, &[IoSlice::new(bytes)]).unwrap();
        }
    }
    (states, None)
}

#[test]
fn power_cuts_lose_nothing_that_was_promised() {
    let mut total = 0;
    for seed in seeds(6) {
        let _replay = Replay(seed, "power_cuts_lose_nothing_that_was_promised");
        let (states, wrong) = explore(seed, CommitOrder::Correct, 4);
        assert_eq!(wrong, None, "state {states}");
        total += states;
    }
    assert!(total > 30, "{total}");
}

#[test]
fn planted_bugs_are_found() {
    for order in [CommitOrder::NoFlushBeforeSuperblock, CommitOrder::SuperblockFirst, CommitOrder::ReuseFreedAtOnce] {
        let found = (0..20).any(|seed| explore(seed, order, 4).1.is_some());
        assert!(found, "{order:?}");
    }
}
