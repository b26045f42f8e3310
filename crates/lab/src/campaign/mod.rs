//! How probable it is that flipped bits are read or stored: the experiment of *Cooperative Data Protection*, §3.4.
//!
//! A trial: a load runs on the whole stack in this process, with real threads and the machine's clock; at a random moment about the middle
//! of it, 16 bits of the page pool flip at once; it goes on; then everything is read back, first as it is, then by a stack that is opened
//! anew. What the first recovery point after the flips has is read, too, from a copy of the device: a load that goes on writes over what was
//! stored wrong, or removes it. What flips lies in the pages of the pool, whatever they hold at that moment, and in the checksums that
//! pages are kept under. Nobody stops for it: threads are in the middle of their steps, and an epoch may be being written. Only a page that somebody in the
//! process has a reference to (a reader, or the epoch that is being written) flips when he has let go of it: that its bytes change meanwhile would
//! be undefined behaviour. A trial that is not over a minute after its time hangs, which is a crash: what of it still runs is left behind.
//! [`trial_anywhere`] does the same to a daemon of its own, from outside, in all of its memory but these pages.

mod daemon;
mod limit;
mod load;
mod pool;
mod process;
mod statistics;
mod target;

pub use daemon::{Daemon, trial_anywhere};
pub use statistics::Estimate;

use self::limit::{PATIENCE, Progress, limited};
pub use self::load::Wrong;
use self::load::{Met, Worker};
use self::target::{Target, says};
use crate::document::Place;
use crate::load::Load;
use holdfast_block::{Device, MemoryDevice};
use holdfast_cache::Cache;
use holdfast_integrity::Protection;
use holdfast_logical::Logical;
use holdfast_naming::{Atime, Namespace};
use holdfast_object::{Arena, Clock, DomainId, ObjectCache, ObjectStore, SystemClock};
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Modes that are tried if nobody says otherwise: one without a promise, one that goes over to its strong checksum within a trial, the default.
pub const MODES: &str = "disk,dynamic=3,uniform";
/// Where the table stands.
pub const PLACE: Place = Place { page: "docs/protection.md", mark: "campaign" };
/// Bits that flip at once.
pub const FLIPS: u32 = 16;
const WORKERS: u64 = 2;
/// 512 MiB, of memory that is taken when it is written.
const DEVICE_BLOCKS: u64 = 128 << 10;
/// Page frames: 32 MiB.
const FRAMES: u32 = 8 << 10;
/// What each worker begins with.
const FILES_BYTES: usize = 20 << 20;
const EPOCH_MS: u64 = 1000;
/// For how long the writer of epochs waits at most, as the daemon's.
const WRITER_PERIOD: Duration = Duration::from_millis(100);

/// What a trial is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which load.
    pub load: Load,
    /// How the contents of files are protected.
    pub mode: Protection,
    /// What flips.
    pub targets: Targets,
    /// How long the load runs; the bits flip in the second or third quarter of it.
    pub time: Duration,
    /// Of the load and of the flips. The threads meet as they will, so the same seed does not give the same trial.
    pub seed: u64,
}

/// In what of the pool bits flip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Pages and checksums, each bit as likely as any other.
    All,
    /// Checksums of pages, which one in five hundred bits is of.
    Sums,
}

/// What came of it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outcome {
    /// Corrupt bytes were read, without an error.
    pub read: bool,
    /// Corrupt bytes were stored, in the first recovery point after the flips or at the end, and are read by whoever opens the store, without an error.
    pub written: bool,
    /// A panic, a hang, or a store that takes no changes any more.
    pub crashed: bool,
    /// A hang: not over long after its time. Of what it did only wrong bytes are known.
    pub hung: bool,
    /// The load was told of an error.
    pub told: bool,
    /// Operations of the load.
    pub operations: u64,
    /// Pages read from memory by the strong checksum, as they had been there for longer than t_switch. In a daemon they are not counted.
    pub switched: u64,
    /// The first corrupt bytes that were read or stored, of those that a reader met.
    pub wrong: Option<Wrong>,
    /// Bits that flipped while some thread of the load was in the middle of a step. In a daemon they are not counted.
    pub within: u32,
}

impl Options {
    /// When the bits flip, from the beginning of the load on: after the pool has filled, and long enough before the end for the load to meet
    /// them, and epochs to close over them.
    fn moment(&self, rng: &mut impl Rng) -> Duration {
        self.time.mul_f64(rng.random_range(0.25..0.75))
    }
}

impl Outcome {
    /// Nothing was noticed.
    pub fn is_sound(&self) -> bool {
        !(self.read || self.written || self.crashed || self.told)
    }
}

impl Outcome {
    /// What the load met while it ran.
    fn count_run<T: Target>(&mut self, workers: &mut [Worker<T>]) {
        for worker in workers {
            let Met { operations, wrong, errors } = std::mem::take(&mut worker.met);
            self.operations += operations;
            self.read |= wrong.is_some();
            self.wrong = self.wrong.or(wrong);
            self.told |= errors > 0;
        }
    }

    /// What is read from the store when it is opened anew.
    fn count_anew<T: Target>(&mut self, workers: Vec<Worker<T>>, target: &T) {
        for mut worker in workers {
            worker.read_all(target);
            self.written |= worker.met.wrong.is_some();
            self.wrong = self.wrong.or(worker.met.wrong);
            self.told |= worker.met.errors > 0;
        }
    }
}

struct Stack {
    cache: Arc<Cache>,
    namespace: Namespace,
}

fn open(device: Arc<dyn Device>) -> Result<Stack, String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let arena = Arena::new(FRAMES, 1 << 20).map_err(says)?;
    let module = Module::open(device, arena.clone(), clock.clone(), &OpenOptions::default()).map_err(says)?;
    let store: Arc<dyn ObjectStore> = Arc::new(Logical::assemble(vec![Arc::new(module)]).map_err(says)?);
    let options = holdfast_cache::Options { epoch_age_max_ms: EPOCH_MS, ..holdfast_cache::Options::for_frames(FRAMES) };
    let (cache, _) = Cache::open(store, arena, clock.clone(), DomainId::MAIN, options).map_err(says)?;
    let cache = Arc::new(cache);
    let options = holdfast_naming::Options { atime: Atime::Never, ..holdfast_naming::Options::default() };
    Ok(Stack { namespace: Namespace::new(cache.clone(), clock, options), cache })
}

/// Runs one trial.
///
/// # Errors
/// In words, for what fails or hangs before anything has flipped, or if the load fills the store.
pub fn trial(options: &Options) -> Result<Outcome, String> {
    let options = *options;
    limited(options.time + PATIENCE, move |progress| tried(&options, progress))
}

fn tried(options: &Options, progress: &Progress) -> Result<Outcome, String> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BLOCKS));
    let create =
        CreateOptions { protection: options.mode, ..CreateOptions::new(*b"holdfast lab 002", *b"holdfast lab d02") };
    let arena = Arena::new(64, 64 << 10).map_err(says)?;
    Module::create(device.clone(), arena, Arc::new(SystemClock::default()), &create).map_err(says)?;
    let stack = open(device.clone())?;
    stack.namespace.initialise(0, 0, 0o755).map_err(says)?;
    let made = (0..WORKERS).map(|worker| Worker::new(&stack.namespace, options.load, worker, FILES_BYTES));
    let workers: Vec<Worker<Namespace>> = made.collect::<Result<_, _>>()?;

    let mut outcome = Outcome::default();
    let (workers, copy) = used(&stack, &device, workers, (options, progress), &mut outcome);
    // Or the load would have been told of that, and not of what has flipped.
    let space = stack.cache.space();
    if !outcome.crashed && space.free + space.pending < space.total / 4 {
        return Err(format!("the load has filled the store: {} of {} blocks are free", space.free, space.total));
    }
    outcome.switched = stack.cache.status().pages_switched;
    let closed = catch_unwind(AssertUnwindSafe(|| stack.cache.close()));
    outcome.crashed |= !matches!(closed, Ok(Ok(())));
    let Some(mut workers) = workers else { return Ok(outcome) };
    outcome.count_run(&mut workers);
    drop(stack);
    match open(device) {
        Ok(anew) => outcome.count_anew(workers, &anew.namespace),
        Err(_) => outcome.crashed = true,
    }
    match open(Arc::new(copy)).and_then(|anew| load::has_wrong_bytes(&anew.namespace)) {
        Ok(is_wrong) => outcome.written |= is_wrong,
        Err(_) => outcome.crashed = true,
    }
    Ok(outcome)
}

/// How many steps a thread has begun and ended: odd in the middle of one.
type Steps = AtomicU64;

/// The load, with the flips in it, and everything read back. Without workers if one of them panicked. The device is as the first recovery
/// point after the flips has left it.
fn used(
    stack: &Stack,
    device: &MemoryDevice,
    workers: Vec<Worker<Namespace>>,
    (options, progress): (&Options, &Progress),
    outcome: &mut Outcome,
) -> (Option<Vec<Worker<Namespace>>>, MemoryDevice) {
    let (is_over, has_flipped) = (&progress.is_over, &progress.has_flipped);
    let steps: &Vec<Steps> = &workers.iter().map(|_| Steps::default()).collect();
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    let moment = options.moment(&mut rng);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0u64..)
            .zip(workers)
            .zip(steps)
            .map(|((number, mut worker), steps)| {
                let mut rng = Pcg64Mcg::seed_from_u64(options.seed ^ (number + 1) << 56);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        steps.fetch_add(1, Ordering::SeqCst);
                        worker.step(&stack.namespace, &mut rng);
                        steps.fetch_add(1, Ordering::SeqCst);
                        if worker.met.wrong.is_some() {
                            progress.has_read_wrong.store(true, Ordering::Relaxed);
                        }
                    }
                    worker.read_all(&stack.namespace);
                    worker
                })
            })
            .collect();
        let flipping = scope.spawn(move || {
            // A moment of the trial's time, so that it is in the middle of whatever the load does then.
            std::thread::sleep(moment);
            let flips = (0..FLIPS).map(|_| is_within(steps, || pool::flip(&stack.cache, options.targets, &mut rng)));
            let within = flips.filter(|is_within| *is_within).count() as u32;
            has_flipped.store(true, Ordering::SeqCst);
            within
        });
        let mut copy = None;
        let written = catch_unwind(AssertUnwindSafe(|| {
            let left = write_epochs(&stack.cache, options.time, Some(has_flipped));
            copy = Some(device.clone());
            write_epochs(&stack.cache, left, None);
        }));
        is_over.store(true, Ordering::Relaxed);
        let within = flipping.join().ok();
        outcome.within = within.unwrap_or_default();
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join().ok()).collect();
        outcome.crashed |= written.is_err() || within.is_none() || ended.iter().any(Option::is_none);
        outcome.crashed |= stack.cache.status().read_only.is_some();
        // Whoever panicked before that is a crash.
        (ended.into_iter().collect(), copy.unwrap_or_else(|| device.clone()))
    })
}

/// Whether some thread was in the middle of one and the same step before `act` and after it.
fn is_within(steps: &[Steps], act: impl FnOnce()) -> bool {
    let now = || steps.iter().map(|steps| steps.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let before = now();
    act();
    before.iter().zip(now()).any(|(before, after)| before % 2 == 1 && *before == after)
}

/// What the daemon's writer does, for so long, or until the first recovery point that was begun after something had happened. Gives the time
/// that is left.
fn write_epochs(cache: &Cache, time: Duration, until_first_after: Option<&AtomicBool>) -> Duration {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()) {
        cache.wait_for_work(WRITER_PERIOD.min(left));
        let has_happened = until_first_after.is_some_and(|happened| happened.load(Ordering::SeqCst));
        // A store that has latched says so at the end.
        if matches!(cache.tick(), Ok(Some(_))) && has_happened {
            break;
        }
    }
    time.saturating_sub(begun.elapsed())
}

/// The trials of one load in one mode.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which load.
    pub load: Load,
    /// Which mode.
    pub mode: Protection,
    /// One after the other.
    pub outcomes: Vec<Outcome>,
}

/// Whether a mode says that corrupt bytes of the pool are neither read nor stored.
fn promises(mode: Protection) -> bool {
    !matches!(mode, Protection::None | Protection::Disk)
}

/// Trials in which a mode that verifies memory let corrupt bytes out.
pub fn broken(rows: &[Row]) -> usize {
    let outcomes = rows.iter().filter(|row| promises(row.mode)).flat_map(|row| &row.outcomes);
    outcomes.filter(|outcome| outcome.read || outcome.written).count()
}

/// Trials that hung, which count as crashed.
pub fn hung(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| &row.outcomes).filter(|outcome| outcome.hung).count()
}

/// What rows are to meet and did not, in words: without it, that nothing went wrong says nothing.
///
/// Each trial of a load does something, and in a `dynamic` whose t_switch is within the trials some pages are read by the strong
/// checksum, by one load at least: one that removes what it has made soon has no old pages.
pub fn unmet(rows: &[Row], time: Duration) -> Vec<String> {
    let mut unmet = Vec::new();
    for Row { load, mode, outcomes } in rows {
        if outcomes.iter().any(|outcome| outcome.operations == 0 && !outcome.crashed) {
            unmet.push(format!("{load}, {mode}: a trial in which the load did nothing"));
        }
    }
    let mut modes: Vec<Protection> = Vec::new();
    for row in rows {
        let switches = row.mode.switches_after().is_some_and(|after| after < time);
        if switches && !modes.contains(&row.mode) {
            modes.push(row.mode);
        }
    }
    for mode in modes {
        let mut outcomes = rows.iter().filter(|row| row.mode == mode).flat_map(|row| &row.outcomes);
        if outcomes.all(|outcome| outcome.switched == 0) {
            unmet.push(format!("{mode}: no page was read by the strong checksum"));
        }
    }
    unmet
}

/// The table of the dissertation.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| load | mode | trials | operations, median | switched, median | R, corrupt read | W, corrupt stored | C, crash | told | S, nothing noticed | R of one bit | W of one bit | C of one bit | S of one bit |\n\
         |---|---|---:|---:|---:|---|---|---|---|---|---|---|---|---|\n",
    );
    for Row { load, mode, outcomes } in rows {
        let trials = outcomes.len() as u64;
        let of = |what: &dyn Fn(&Outcome) -> bool| {
            Estimate::of(outcomes.iter().filter(|outcome| what(outcome)).count() as u64, trials.max(1))
        };
        let [read, written] = [of(&|o| o.read), of(&|o| o.written)];
        let [crashed, told, sound] = [of(&|o| o.crashed), of(&|o| o.told), of(&|o| o.is_sound())];
        let operations = median(outcomes.iter().map(|outcome| outcome.operations));
        let switched = match mode.switches_after() {
            Some(_) => median(outcomes.iter().map(|outcome| outcome.switched)).to_string(),
            None => "–".into(),
        };
        let _ = writeln!(
            out,
            "| {load} | `{mode}` | {trials} | {operations} | {switched} | {read} | {written} | {crashed} | {told} | {sound} | {} | {} | {} | {} |",
            read.of_one(FLIPS),
            written.of_one(FLIPS),
            crashed.of_one(FLIPS),
            sound.of_one_sound(FLIPS)
        );
    }
    out
}

fn median(of: impl Iterator<Item = u64>) -> u64 {
    let mut of: Vec<u64> = of.collect();
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}
