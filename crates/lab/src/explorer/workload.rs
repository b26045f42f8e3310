//! A recorded run: random actions of the model on the whole stack, with everything noted that a crash must respect.

use super::history::{History, Tap};
use super::interleave::{Interleave, Meeting};
use super::observe::observe;
use super::oracle::judge;
use super::script::script;
use super::{Options, Seed, panic_text};
use crate::device::{CrashImages, CrashMode, Recorder};
use crate::model::{Action, Driver, Generator, Model, Profile};
use crate::stack::{Stack, StackOptions};
use holdfast_block::{Device, MemoryDevice};
use holdfast_naming::{Atime, ErrorKind, Namespace};
use holdfast_object::{Clock, ManualClock, ObjectId};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longer than the cache keeps an epoch open, in nanoseconds.
const EPOCH_NS: u64 = 6_000_000_000;
/// One of so many actions begins a script.
const SCRIPT_EACH: u32 = 6;
/// Lines of what was done before a workload went wrong.
const TRACE_LINES: usize = 20;
/// Between two lives of a store, in nanoseconds.
const LIFE_NS: u64 = 3_600_000_000_000;
/// Time of one action, in nanoseconds.
const STEP_NS: u64 = 1_000_003;

/// Where a run begins: a store that is closed or was cut off, what is in it, and which nodes of the model its objects are.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) device: MemoryDevice,
    pub(super) model: Model,
    pub(super) driver: Driver,
    pub(super) now_ns: u64,
}

/// The model after a transaction.
pub(super) struct Snapshot {
    pub(super) sequence: u64,
    pub(super) model: Model,
    pub(super) driver: Driver,
}

/// What a run left behind.
pub(super) struct Run {
    pub(super) history: History,
    pub(super) images: CrashImages,
    /// Ascending.
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) now_ns: u64,
    /// Actions done while something was being written.
    pub(super) interleaved: usize,
}

/// One thread at a time acts.
struct Actor {
    driver: Driver,
    model: Model,
    generator: Generator,
    /// To be done before the generator goes on.
    script: VecDeque<Action>,
    rng: Pcg64Mcg,
    tap: Arc<Tap>,
    clock: Arc<ManualClock>,
    onlooker: Arc<Namespace>,
    snapshots: Vec<Snapshot>,
    failure: Option<String>,
}

impl Actor {
    /// The next action. With `meanwhile`, one that does not close an epoch.
    fn choose(&mut self, meanwhile: bool) -> Action {
        if self.script.is_empty() && self.rng.random_range(0..SCRIPT_EACH) == 0 {
            self.script = script(&self.model, &mut self.rng).into();
        }
        loop {
            let action = self.script.pop_front().unwrap_or_else(|| self.generator.next(&self.model));
            match (meanwhile, action) {
                (true, Action::SyncAll) => {}
                (_, action) => return action,
            }
        }
    }

    fn act(&mut self, action: &Action) {
        self.clock.advance_ns(STEP_NS);
        self.tap.note_step(format!("{action:?}"));
        let got = self.driver.reply(action);
        self.acted(action, got);
    }

    fn acted(&mut self, action: &Action, got: Result<crate::model::Reply, ErrorKind>) {
        if got == Err(ErrorKind::NoSpace) {
            return;
        }
        let expected = self.model.apply(action, self.clock.now());
        if got != expected {
            self.fail(format!("{action:?}: expected {expected:?}, got {got:?}"));
        }
        self.driver.forget_gone(&self.model);
        self.snapshot();
    }

    fn snapshot(&mut self) {
        let sequence = self.tap.sequence();
        if let Some(last) = self.snapshots.last_mut().filter(|last| last.sequence == sequence) {
            // What holds them changes no transaction.
            (last.model, last.driver) = (self.model.clone(), self.driver.clone());
        } else {
            self.snapshots.push(Snapshot { sequence, model: self.model.clone(), driver: self.driver.clone() });
        }
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    fn compare(&mut self) {
        let differences = crate::model::compare(&self.onlooker, &self.model);
        if !differences.is_empty() {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            self.fail(format!("the running name space differs from the model:\n  {}", lines.join("\n  ")));
        }
    }
}

/// What the main thread does next.
enum Next {
    Action(Action),
    Tick,
    Stop,
}

/// Runs a workload from `start`.
///
/// # Errors
/// In words: what the running stack did wrong, before any crash.
pub(super) fn run(start: &Start, seed: Seed, options: &Options, steps: usize) -> Result<Run, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.derive("workload"));
    let clock = Arc::new(ManualClock::new(start.now_ns, 0));
    let recorder = Arc::new(Recorder::in_memory(&start.device));
    let meeting = Arc::new(Meeting::default());
    let device: Arc<dyn Device> = Arc::new(Interleave::new(recorder.clone(), meeting.clone()));
    let file_bytes = [9_000, 24_000, 90_000, 600_000][rng.random_range(0..4)];
    // A file is read in one piece, so it must fit.
    let frames_min = if file_bytes > 100_000 { 512 } else { 128 };
    let mut stack_options = StackOptions::new([128, 512, 2048][rng.random_range(0..3)].max(frames_min));
    stack_options.physical.commit_order = options.plant.commit_order();
    let stack = Stack::open(device, &stack_options, &clock).map_err(|error| format!("start: {error}"))?;
    let objects = observe(&stack)?;
    let position = {
        let recorder = recorder.clone();
        move || recorder.position()
    };
    let tap = Arc::new(Tap::new(stack.cache.clone(), objects, position));
    let namespace = stack.namespace_on(tap.clone(), Atime::Relative);
    // Some with trees of several levels, some with directories of many pages.
    let wide = rng.random_range(0..4) == 0;
    let profile = Profile {
        nodes: if wide { 120 } else { rng.random_range(8..30) },
        names: if wide { 90 } else { rng.random_range(4..12) },
        file_bytes,
        sync_percent: rng.random_range(8..25),
    };
    namespace.reclaim_orphans().map_err(|error| format!("orphans of the life before: {error}"))?;
    let mut driver = start.driver.clone();
    driver.replace_namespace(namespace.clone());
    let actor = Mutex::new(Actor {
        driver,
        model: start.model.clone(),
        generator: Generator::new(seed.derive("actions"), profile),
        script: VecDeque::new(),
        rng: Pcg64Mcg::seed_from_u64(seed.derive("actor")),
        tap: tap.clone(),
        clock: clock.clone(),
        onlooker: stack.namespace(Atime::Never),
        snapshots: vec![Snapshot { sequence: 0, model: start.model.clone(), driver: start.driver.clone() }],
        failure: None,
    });
    let interleaved = AtomicUsize::new(0);
    let outcome = std::thread::scope(|scope| {
        let _closer = Closer(&meeting);
        let other = scope.spawn(|| {
            meeting.serve(|| {
                let mut actor = actor.lock();
                for _ in 0..actor.rng.random_range(1..=4) {
                    let action = actor.choose(true);
                    actor.act(&action);
                    interleaved.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let outcome = drive(&stack, &actor, &meeting, &mut rng, options, steps);
        meeting.close();
        other.join().map_err(|panic| panic_text(&*panic))?;
        outcome
    });
    let before = || {
        let trace = tap.with_history(History::trace);
        trace[trace.len().saturating_sub(TRACE_LINES)..].join("\n  ")
    };
    outcome.map_err(|failure| format!("{failure}\nbefore:\n  {}", before()))?;
    let mut actor = actor.into_inner();
    actor.compare();
    if let Some(failure) = actor.failure.take() {
        return Err(format!("{failure}\nbefore:\n  {}", before()));
    }
    namespace.sync_all().map_err(|error| format!("last sync: {error}"))?;
    stack.check()?;
    stack.close().map_err(|error| format!("close: {error}"))?;
    let found = observe(&stack)?;
    tap.with_history(|history| judge(history, usize::MAX, &found, true))
        .map_err(|error| format!("the store, closed, differs from what was written: {error}"))?;
    Ok(Run {
        history: tap.take_history(),
        images: recorder.crash_images(),
        snapshots: actor.snapshots,
        now_ns: clock.monotonic_ns(),
        interleaved: interleaved.into_inner(),
    })
}

/// Lets the other thread end also if this one panics.
struct Closer<'a>(&'a Meeting);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn drive(
    stack: &Stack,
    actor: &Mutex<Actor>,
    meeting: &Meeting,
    rng: &mut Pcg64Mcg,
    options: &Options,
    steps: usize,
) -> Result<(), String> {
    for step in 0.. {
        let (next, namespace, clock) = {
            let mut actor = actor.lock();
            if let Some(failure) = actor.failure.take() {
                return Err(format!("{failure}\n{:?}", stack.cache.status()));
            }
            let next = match rng.random_range(0..100) {
                _ if step == steps => Next::Stop,
                0..6 => Next::Tick,
                _ => Next::Action(actor.choose(false)),
            };
            (next, actor.driver.namespace().clone(), actor.clock.clone())
        };
        let gaps: Vec<u32> = (0..rng.random_range(1..=3)).map(|_| rng.random_range(0..6)).collect();
        let arm = || {
            if options.interleave {
                meeting.arm(gaps.clone());
            }
        };
        match next {
            Next::Stop => return Ok(()),
            Next::Action(Action::SyncAll) => {
                note(actor, &clock, "SyncAll");
                arm();
                let got = namespace.sync_all();
                meeting.disarm();
                got.map_err(|error| format!("SyncAll: {error}"))?;
            }
            Next::Action(action @ Action::Sync { .. }) => {
                let Action::Sync { node, data_only } = &action else { continue };
                note(actor, &clock, &format!("{action:?}"));
                let id = actor.lock().driver.object(*node).unwrap_or(ObjectId::MAX);
                let durability =
                    if *data_only { holdfast_object::Durability::Data } else { holdfast_object::Durability::All };
                let exists = actor.lock().model.get(*node).is_some();
                arm();
                let got = namespace.sync(id, durability);
                meeting.disarm();
                // Meanwhile the other thread may have removed it.
                let still = actor.lock().model.get(*node).is_some();
                match got {
                    Err(error) if exists && still => return Err(format!("{action:?}: {error}")),
                    Ok(()) if !exists => return Err(format!("{action:?} of a node that does not exist")),
                    _ => {}
                }
            }
            Next::Action(action) => actor.lock().act(&action),
            Next::Tick => {
                clock.advance_ns(EPOCH_NS);
                note(actor, &clock, "Tick");
                let tap = actor.lock().tap.clone();
                let sequence = tap.sequence();
                arm();
                let ticked = stack.cache.tick();
                meeting.disarm();
                if ticked.map_err(|error| format!("Tick: {error}"))?.is_some() {
                    tap.note_recovery_point(sequence);
                }
            }
        }
    }
    Ok(())
}

fn note(actor: &Mutex<Actor>, clock: &ManualClock, step: &str) {
    clock.advance_ns(STEP_NS);
    actor.lock().tap.note_step(step.to_string());
}

/// A start from a crash of a run: one after which the tree is as the model was after some action. None if none was found.
pub(super) fn next_life(run: &Run, rng: &mut Pcg64Mcg) -> Result<Option<Start>, String> {
    const TRIES: usize = 8;
    for _ in 0..TRIES {
        let last = *run.images.positions().end();
        let position = if rng.random_bool(0.2) { last } else { rng.random_range(0..=last) };
        let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        let image = run.images.image(position, mode, rng);
        let now_ns = run.now_ns + LIFE_NS;
        let clock = Arc::new(ManualClock::new(now_ns, 0));
        let stack = Stack::open(Arc::new(image.clone()), &StackOptions::new(1024), &clock)
            .map_err(|error| format!("position {position}, {mode:?}: {error}"))?;
        let found = observe(&stack)?;
        let prefix = judge(&run.history, position, &found, stack.recovered.batches == 0)
            .map_err(|error| format!("position {position}, {mode:?}: {error}"))?;
        let Ok(at) = run.snapshots.binary_search_by_key(&prefix, |snapshot| snapshot.sequence) else { continue };
        let mut model = run.snapshots[at].model.clone();
        model.end_sessions();
        if crate::model::compare(&stack.namespace(Atime::Never), &model).is_empty() {
            // As it was cut off: the next life begins with the recovery.
            let mut driver = run.snapshots[at].driver.clone();
            driver.forget_gone(&model);
            return Ok(Some(Start { device: image, model, driver, now_ns }));
        }
    }
    Ok(None)
}
