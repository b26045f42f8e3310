//! A recorded run: random actions of the model on the whole stack, with everything noted that a crash must respect.

use super::history::{History, Tap};
use super::interleave::{Interleave, Meeting};
use super::observe::observe;
use super::oracle::judge;
use super::script::script;
use super::snapshots::{Kept, contents_of, judge_snapshots, observe_snapshots};
use super::{Options, Seed};
use crate::caught::panic_text;
use crate::device::{CrashImages, CrashMode, Recorder};
use crate::model::{Action, Driver, Generator, Model, Profile};
use crate::stack::{Stack, StackOptions, mode_of};
use holdfast_block::{Device, MemoryDevice};
use holdfast_naming::{Atime, ErrorKind, Namespace};
use holdfast_object::{Clock, Error, ManualClock, ObjectId, Snapshots};
use holdfast_physical::DeletionSlice;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longer than the cache keeps an epoch open, in nanoseconds.
const EPOCH_NS: u64 = 6_000_000_000;
/// Longer than the intent log is idle before it is sealed, in nanoseconds.
const SEAL_NS: u64 = 150_000_000;
/// One of so many actions begins a script.
const SCRIPT_EACH: u32 = 6;
/// Snapshots that a workload has at a time at most.
const SNAPSHOTS_MAX: u32 = 3;
/// Lines of what was done before a workload went wrong.
const TRACE_LINES: usize = 20;
/// Between two lives of a store, in nanoseconds.
const LIFE_NS: u64 = 3_600_000_000_000;
/// Time of one action, in nanoseconds.
const STEP_NS: u64 = 1_000_003;

/// Where a run begins: a store that is closed or was cut off, what is in it, which nodes of the model its objects are, and
/// which snapshots it has, oldest first.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) device: MemoryDevice,
    pub(super) model: Model,
    pub(super) driver: Driver,
    pub(super) snapshots: Vec<Kept>,
    pub(super) now_ns: u64,
}

/// The model after a transaction.
pub(super) struct Moment {
    pub(super) sequence: u64,
    pub(super) model: Model,
    pub(super) driver: Driver,
}

/// What a run left behind.
pub(super) struct Run {
    pub(super) history: History,
    pub(super) images: CrashImages,
    /// Ascending.
    pub(super) moments: Vec<Moment>,
    pub(super) now_ns: u64,
    /// Actions done while something was being written.
    pub(super) interleaved: usize,
    /// Ticks that sealed the intent log.
    pub(super) sealed: usize,
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
    moments: Vec<Moment>,
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
        self.keep_moment();
    }

    fn keep_moment(&mut self) {
        let sequence = self.tap.sequence();
        if let Some(last) = self.moments.last_mut().filter(|last| last.sequence == sequence) {
            // What holds them changes no transaction.
            (last.model, last.driver) = (self.model.clone(), self.driver.clone());
        } else {
            self.moments.push(Moment { sequence, model: self.model.clone(), driver: self.driver.clone() });
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
    /// So many nanoseconds later.
    Tick(u64),
    /// Makes the snapshot of this name, or deletes it.
    Snapshot(String),
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
    // A file is read in one piece, so it must fit; also one that is in a snapshot of a life before.
    let kept_bytes = start.snapshots.iter().map(Kept::largest_bytes).fold(file_bytes, u64::max);
    let frames_min = if kept_bytes > 100_000 { 512 } else { 128 };
    let mut stack_options = StackOptions::new([128, 512, 2048][rng.random_range(0..3)].max(frames_min));
    stack_options.physical.commit_order = options.plant.commit_order();
    // Deletions of snapshots in one step, and in many.
    let runs = [1, 4, 1000][(seed.derive("deletions") % 3) as usize];
    stack_options.physical.deletion_slice = DeletionSlice { runs, blocks: 8 * runs as u64 };
    // Each life of a store may have another; what recovers it has the store's own.
    stack_options.physical.protection = Some(mode_of(seed.0));
    let stack = Stack::open(device, &stack_options, &clock).map_err(|error| format!("start: {error}"))?;
    let objects = observe(&stack)?;
    let position = {
        let recorder = recorder.clone();
        move || recorder.position()
    };
    let tap = Arc::new(Tap::new(stack.cache.clone(), objects, &start.snapshots, position));
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
        moments: vec![Moment { sequence: 0, model: start.model.clone(), driver: start.driver.clone() }],
        failure: None,
    });
    let interleaved = AtomicUsize::new(0);
    let mut sealed = 0;
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
        // Some without any, to be as fast as those were before there were snapshots: each makes two recovery points.
        let plan = Plan { steps, interleave: options.interleave, snapshot_percent: [0, 6, 15][rng.random_range(0..3)] };
        let outcome = drive(&stack, &actor, &meeting, &mut rng, &plan, &mut sealed);
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
    tap.with_history(|history| {
        judge(history, usize::MAX, &found, true)?;
        judge_snapshots(history, usize::MAX, &stack, |_| None)
    })
    .map_err(|error| format!("the store, closed, differs from what was written: {error}"))?;
    Ok(Run {
        history: tap.take_history(),
        images: recorder.crash_images(),
        moments: actor.moments,
        now_ns: clock.monotonic_ns(),
        interleaved: interleaved.into_inner(),
        sealed,
    })
}

/// What the main thread does.
struct Plan {
    steps: usize,
    interleave: bool,
    /// Share of its steps that make or delete a snapshot.
    snapshot_percent: u32,
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
    plan: &Plan,
    sealed: &mut usize,
) -> Result<(), String> {
    for step in 0.. {
        let (next, namespace, clock) = {
            let mut actor = actor.lock();
            if let Some(failure) = actor.failure.take() {
                return Err(format!("{failure}\n{:?}", stack.cache.status()));
            }
            let next = match rng.random_range(0..100) {
                _ if step == plan.steps => Next::Stop,
                0..6 => Next::Tick(EPOCH_NS),
                94.. => Next::Tick(SEAL_NS),
                at if at < 6 + plan.snapshot_percent => {
                    Next::Snapshot(format!("s{}", rng.random_range(0..SNAPSHOTS_MAX)))
                }
                _ => Next::Action(actor.choose(false)),
            };
            (next, actor.driver.namespace().clone(), actor.clock.clone())
        };
        let gaps: Vec<u32> = (0..rng.random_range(1..=3)).map(|_| rng.random_range(0..6)).collect();
        let arm = || {
            if plan.interleave {
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
            Next::Snapshot(name) => {
                note(actor, &clock, &format!("Snapshot {name}"));
                change_snapshots(stack, actor, &name, &arm, meeting)?;
            }
            Next::Tick(after_ns) => {
                clock.advance_ns(after_ns);
                note(actor, &clock, "Tick");
                let tap = actor.lock().tap.clone();
                let sequence = tap.sequence();
                let logged = stack.cache.store_status().counters;
                arm();
                let ticked = stack.cache.tick();
                meeting.disarm();
                if ticked.map_err(|error| format!("Tick: {error}"))?.is_some() {
                    tap.note_recovery_point(sequence);
                }
                // More bytes in the log, and no batch.
                let now = stack.cache.store_status().counters;
                let is_sealed = now.log_bytes > logged.log_bytes && now.log_batches == logged.log_batches;
                *sealed += usize::from(is_sealed);
            }
        }
    }
    Ok(())
}

/// Makes the snapshot of this name, or deletes it if it is there. `arm` has other actions run meanwhile.
fn change_snapshots(
    stack: &Stack,
    actor: &Mutex<Actor>,
    name: &str,
    arm: &dyn Fn(),
    meeting: &Meeting,
) -> Result<(), String> {
    let tap = actor.lock().tap.clone();
    let first = tap.sequence();
    if tap.with_history(|history| history.snapshots.iter().any(|life| life.name == name && life.is_there())) {
        tap.note_deletion(name, false);
        arm();
        let deleted = stack.cache.snapshot_delete(name);
        meeting.disarm();
        deleted.map_err(|error| format!("delete {name}: {error}"))?;
        tap.note_deletion(name, true);
        tap.note_recovery_point(first);
        return Ok(());
    }
    tap.ask_snapshot(name);
    arm();
    let made = stack.cache.snapshot_create(name);
    meeting.disarm();
    match made {
        Ok(_) => {}
        Err(Error::NoSpace { .. }) => {
            tap.answer_snapshot(None);
            return Ok(());
        }
        Err(error) => return Err(format!("snapshot {name}: {error}")),
    }
    let position = tap.position();
    tap.note_recovery_point(first);
    let contents = tap.with_history(|history| {
        let found = observe_snapshots(stack, history)?;
        let made = found.iter().find(|(info, _)| info.name == name).ok_or("is not there")?;
        let actor = actor.lock();
        contents_of(history, first, history.sequence, &made.1, |sequence| model_at(&actor.moments, sequence))
    });
    let contents = contents.map_err(|error| format!("snapshot {name} {error}"))?;
    tap.answer_snapshot(Some((position, contents)));
    Ok(())
}

/// The model after a transaction, if it was kept there.
pub(super) fn model_at(moments: &[Moment], sequence: u64) -> Option<Model> {
    let at = moments.binary_search_by_key(&sequence, |moment| moment.sequence).ok()?;
    Some(moments[at].model.clone())
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
        let at = |error| format!("position {position}, {mode:?}: {error}");
        let prefix = judge(&run.history, position, &found, stack.recovered.batches == 0).map_err(at)?;
        let snapshots =
            judge_snapshots(&run.history, position, &stack, |sequence| model_at(&run.moments, sequence)).map_err(at)?;
        let Ok(at) = run.moments.binary_search_by_key(&prefix, |moment| moment.sequence) else { continue };
        let mut model = run.moments[at].model.clone();
        model.end_sessions();
        if crate::model::compare(&stack.namespace(Atime::Never), &model).is_empty() {
            // As it was cut off: the next life begins with the recovery.
            let mut driver = run.moments[at].driver.clone();
            driver.forget_gone(&model);
            return Ok(Some(Start { device: image, model, driver, snapshots, now_ns }));
        }
    }
    Ok(None)
}
