//! Random actions on the whole stack, compared with the model: with remounts, ticks and snapshots in between, with page pools
//! so small that everything is evicted all the time, and on stores so small that they are full most of the time.

use crate::model::{Action, Driver, Generator, Model, Profile, compare, compare_below};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::MemoryDevice;
use holdfast_naming::{Atime, ErrorKind, Namespace, Request};
use holdfast_object::{Clock, ObjectCache, ObjectId, Snapshots, Timestamp};
use holdfast_physical::check::{CheckOptions, check};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time of one action, in nanoseconds.
const STEP_NS: u64 = 1_000_003;
/// Longer than an epoch stays open, in nanoseconds.
const EPOCH_NS: u64 = 6_000_000_000;
/// Snapshots at a time at most.
const SNAPSHOTS_MAX: usize = 4;

/// How a run goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// Number of actions.
    pub steps: usize,
    /// Size of the store, in blocks of 4 KiB.
    pub blocks: u64,
    /// Page frames in the pool.
    pub frames: u32,
    /// Nodes in the tree, about.
    pub nodes: usize,
    /// Largest file in bytes, about.
    pub file_bytes: u64,
    /// The whole tree is compared after so many actions.
    pub compare_each: usize,
    /// The store is closed, or cut off after a sync, after about so many actions.
    pub remount_each: usize,
    /// A snapshot is made or deleted after about so many actions; 0: never.
    pub snapshot_each: usize,
    /// More than 1: so many threads act at once, each in a directory of its own, and nothing is remounted before the end.
    pub threads: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            steps: 1_000,
            blocks: 4096,
            frames: 512,
            nodes: 40,
            file_bytes: 60_000,
            compare_each: 1,
            remount_each: 150,
            snapshot_each: 60,
            threads: 1,
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Actions refused for want of space.
    pub no_space: u64,
    /// Remounts.
    pub remounts: u64,
    /// Epochs closed by a tick.
    pub ticks: u64,
    /// Snapshots made.
    pub snapshots: u64,
}

/// A run that went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The run.
    pub options: Options,
    /// Number of the action, from 0.
    pub step: usize,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options {
            seed,
            steps,
            blocks,
            frames,
            nodes,
            file_bytes,
            compare_each,
            remount_each,
            snapshot_each,
            threads,
        } = self.options;
        write!(
            f,
            "step {}: {}\nreplay: cargo run --release -p holdfast-lab --bin model-run -- --seed {seed} --steps {steps} \
             --blocks {blocks} --frames {frames} --nodes {nodes} --file-bytes {file_bytes} --compare-each {compare_each} \
             --remount-each {remount_each} --snapshot-each {snapshot_each} --threads {threads}",
            self.step, self.what
        )
    }
}

struct Soak {
    options: Options,
    device: Arc<MemoryDevice>,
    stack: Stack,
    driver: Driver,
    model: Model,
    /// Names of snapshots, and the tree that each has; oldest first.
    snapshots: Vec<(String, Model)>,
    report: Report,
}

/// Runs.
///
/// # Errors
/// The first difference from the model, or the first thing that a check finds.
pub fn run(options: Options) -> Result<Report, Box<Failure>> {
    if options.threads > 1 { run_threads(options) } else { run_alone(options) }
}

fn run_alone(options: Options) -> Result<Report, Box<Failure>> {
    let fail = |step: usize, what: String| Box::new(Failure { options, step, what });
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed ^ 0x50a4);
    let profile = Profile { nodes: options.nodes, file_bytes: options.file_bytes, ..Profile::default() };
    let mut generator = Generator::new(options.seed, profile);
    let mut soak = Soak::new(options).map_err(|what| fail(0, what))?;
    for step in 0..options.steps {
        soak.stack.clock.advance_ns(STEP_NS);
        let action = generator.next(&soak.model);
        let compared = step % options.compare_each == options.compare_each - 1;
        let outcome = soak.step(&action).and_then(|()| if compared { soak.compare() } else { Ok(()) });
        outcome.map_err(|what| fail(step, format!("{action:?}: {what}")))?;
        if rng.random_range(0..40) == 0 {
            soak.tick().map_err(|what| fail(step, what))?;
        }
        if rng.random_range(0..options.remount_each) == 0 {
            soak.remount(rng.random_bool(0.5)).map_err(|what| fail(step, format!("remount: {what}")))?;
        }
        if options.snapshot_each != 0 && rng.random_range(0..options.snapshot_each) == 0 {
            let chosen = rng.random_range(0..SNAPSHOTS_MAX);
            soak.change_snapshots(step, chosen).map_err(|what| fail(step, format!("snapshots: {what}")))?;
        }
    }
    let end = soak.remount(true).and_then(|()| soak.stack.close().map_err(|error| format!("close: {error}")));
    end.and_then(|()| soak.check()).map_err(|what| fail(options.steps, what))?;
    Ok(soak.report)
}

impl Soak {
    fn new(options: Options) -> Result<Soak, String> {
        let device = Arc::new(MemoryDevice::new(options.blocks));
        let clock = stack::clock();
        let protection = stack::mode_of(options.seed);
        stack::create_with(device.clone(), &clock, protection).map_err(|error| format!("create: {error}"))?;
        let model = Model::new(0o755, clock.now());
        let stack = Stack::open(device.clone(), &StackOptions::new(options.frames), &clock)
            .map_err(|error| format!("open: {error}"))?;
        let driver = Driver::new(stack.namespace(Atime::Relative));
        Ok(Soak { options, device, stack, driver, model, snapshots: Vec::new(), report: Report::default() })
    }

    fn step(&mut self, action: &Action) -> Result<(), String> {
        let got = self.driver.apply(action);
        if let Err(error) = &got
            && error.kind() == ErrorKind::NoSpace
        {
            if matches!(
                action,
                Action::Unlink { .. } | Action::Rmdir { .. } | Action::Forget { .. } | Action::Release { .. }
            ) {
                return Err(format!("nothing can be deleted: {error}"));
            }
            self.report.no_space += 1;
            return Ok(());
        }
        let expected = self.model.apply(action, self.stack.clock.now());
        self.driver.forget_gone(&self.model);
        match (got, expected) {
            (Ok(got), Ok(expected)) if got == expected => Ok(()),
            (Err(got), Err(expected)) if got.kind() == expected => Ok(()),
            (got, expected) => Err(format!("expected {expected:?}, got {got:?}")),
        }
    }

    fn compare(&self) -> Result<(), String> {
        let differences = compare(&self.stack.namespace(Atime::Never), &self.model);
        if differences.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
        Err(format!("the tree differs from the model:\n  {}", lines.join("\n  ")))
    }

    /// Deletes the snapshot in this place of the list, or makes one if there is none.
    fn change_snapshots(&mut self, step: usize, chosen: usize) -> Result<(), String> {
        if chosen < self.snapshots.len() {
            let (name, _) = self.snapshots.remove(chosen);
            self.stack.cache.snapshot_delete(&name).map_err(|error| format!("delete {name}: {error}"))?;
        } else {
            let name = format!("before step {step}");
            match self.stack.cache.snapshot_create(&name) {
                Ok(_) => {
                    self.snapshots.push((name, self.model.clone()));
                    self.report.snapshots += 1;
                }
                Err(holdfast_object::Error::NoSpace { .. }) => self.report.no_space += 1,
                Err(error) => return Err(format!("{name}: {error}")),
            }
        }
        self.stack.check()?;
        self.compare_snapshots()
    }

    /// The tree of each snapshot is what the model was when it was made.
    fn compare_snapshots(&self) -> Result<(), String> {
        let listed = self.stack.cache.snapshots().map_err(|error| error.to_string())?;
        let names: Vec<&String> = listed.iter().map(|info| &info.name).collect();
        let expected: Vec<&String> = self.snapshots.iter().map(|(name, _)| name).collect();
        if names != expected {
            return Err(format!("expected {expected:?}, got {names:?}"));
        }
        for (info, (name, model)) in listed.iter().zip(&self.snapshots) {
            let root = ObjectId::ROOT.in_snapshot(info.id);
            let differences = compare_below(&self.stack.namespace(Atime::Never), model, root);
            if !differences.is_empty() {
                let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
                return Err(format!("\"{name}\" is not as it was made:\n  {}", lines.join("\n  ")));
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), String> {
        self.stack.clock.advance_ns(EPOCH_NS);
        let ticked = self.stack.cache.tick().map_err(|error| format!("tick: {error}"))?;
        self.report.ticks += u64::from(ticked.is_some());
        self.stack.check()
    }

    /// Closes the store, or cuts it off after a sync, and opens it again.
    fn remount(&mut self, in_order: bool) -> Result<(), String> {
        self.compare()?;
        let done = if in_order { self.stack.close() } else { self.stack.cache.sync_all().map(drop) };
        done.map_err(|error| format!("close: {error}"))?;
        self.stack.check()?;
        let device = self.device.clone();
        self.stack = Stack::open(device, &StackOptions::new(self.options.frames), &self.stack.clock)
            .map_err(|error| format!("open: {error}"))?;
        let namespace = self.stack.namespace(Atime::Relative);
        namespace.reclaim_orphans().map_err(|error| format!("orphans: {error}"))?;
        self.model.end_sessions();
        self.driver.replace_namespace(namespace);
        self.driver.forget_gone(&self.model);
        self.report.remounts += 1;
        self.compare_snapshots()?;
        self.compare()
    }

    /// The store is closed.
    fn check(&self) -> Result<(), String> {
        let report = check(self.device.clone(), &CheckOptions { ends: true, ..CheckOptions::default() })
            .map_err(|error| format!("check: {error}"))?;
        if report.found == 0 && report.clean && !report.incomplete {
            return Ok(());
        }
        let findings: Vec<String> = report.findings.iter().take(8).map(ToString::to_string).collect();
        Err(format!("the check finds {} things wrong:\n  {}", report.found, findings.join("\n  ")))
    }
}

/// Several threads at once, each with a directory and a model of its own, while another one makes recovery points. Time
/// stands still, so that all times are known. Afterwards the store is cut off, opened again and compared once more. What the
/// scheduler does is not decided by the seed.
fn run_threads(options: Options) -> Result<Report, Box<Failure>> {
    let threads = options.threads;
    let fail = |step: usize, what: String| Box::new(Failure { options, step, what });
    let soak = Soak::new(options).map_err(|what| fail(0, what))?;
    let names = soak.stack.namespace(Atime::Relative);
    let mut roots = Vec::new();
    for thread in 0..threads {
        let name = format!("thread {thread}").into_bytes();
        let made = names.mkdir(&Request::ROOT, ObjectId::ROOT, &name, 0o755);
        roots.push(made.map_err(|error| fail(0, error.to_string()))?.id);
    }
    let running = AtomicU64::new(threads);
    let models: Vec<Result<Model, Box<Failure>>> = std::thread::scope(|scope| {
        let (names, running, soak) = (&names, &running, &soak);
        let act = |thread: u64, root: ObjectId| {
            let model = act_alone(names.clone(), root, options, thread, soak.stack.clock.now());
            running.fetch_sub(1, Ordering::Release);
            model.map_err(|(step, what)| fail(step, format!("thread {thread}: {what}")))
        };
        let handles: Vec<_> = (0..).zip(&roots).map(|(thread, &root)| scope.spawn(move || act(thread, root))).collect();
        let mut written = Ok(());
        while running.load(Ordering::Acquire) > 0 && written.is_ok() {
            written = soak.stack.cache.sync_all().map(drop);
            // So that an epoch has several requests.
            std::thread::sleep(Duration::from_millis(2));
        }
        let models: Vec<_> = handles.into_iter().map(|handle| handle.join().expect("no panic")).collect();
        match written {
            Ok(()) => models,
            Err(error) => vec![Err(fail(0, format!("recovery point: {error}")))],
        }
    });
    let mut models = models.into_iter().collect::<Result<Vec<Model>, _>>()?;
    let compare_all = |stack: &Stack, models: &[Model]| {
        let onlooker = stack.namespace(Atime::Never);
        let differences = roots.iter().zip(models).flat_map(|(root, model)| compare_below(&onlooker, model, *root));
        let lines: Vec<String> = differences.map(|difference| difference.to_string()).collect();
        if lines.is_empty() { Ok(()) } else { Err(fail(options.steps, lines.join("\n  "))) }
    };
    compare_all(&soak.stack, &models)?;
    soak.stack.cache.sync_all().map_err(|error| fail(options.steps, error.to_string()))?;
    soak.stack.check().map_err(|error| fail(options.steps, error))?;
    let stack = Stack::open(soak.device.clone(), &StackOptions::new(options.frames), &soak.stack.clock)
        .map_err(|error| fail(options.steps, format!("open: {error}")))?;
    models.iter_mut().for_each(Model::end_sessions);
    compare_all(&stack, &models)?;
    let reclaimed = stack.namespace(Atime::Never).reclaim_orphans();
    reclaimed.map_err(|error| fail(options.steps, format!("orphans: {error}")))?;
    stack.close().map_err(|error| fail(options.steps, format!("close: {error}")))?;
    soak.check().map_err(|what| fail(options.steps, what))?;
    Ok(Report { remounts: 1, ..Report::default() })
}

/// One thread's actions in its directory. Gives the model in the end.
fn act_alone(
    names: Arc<Namespace>,
    root: ObjectId,
    options: Options,
    thread: u64,
    now: Timestamp,
) -> Result<Model, (usize, String)> {
    let profile = Profile { nodes: options.nodes, file_bytes: options.file_bytes, ..Profile::default() };
    let mut generator = Generator::new(options.seed.wrapping_mul(1_000).wrapping_add(thread), profile);
    let mut driver = Driver::below(names, root);
    let mut model = Model::new(0o755, now);
    for step in 0..options.steps {
        let action = generator.next(&model);
        if matches!(&action, Action::Lookup { name, .. } if name == b"..") {
            // The root of the model has itself above.
            continue;
        }
        let got = driver.reply(&action);
        let expected = model.apply(&action, now);
        if got != expected {
            return Err((step, format!("{action:?}: expected {expected:?}, got {got:?}")));
        }
        driver.forget_gone(&model);
    }
    Ok(model)
}
