//! The crash explorer: random workloads on the whole stack, cut off anywhere, recovered, and compared with what
//! docs/architecture.md ("The life of an fsync") promises.
//!
//! ```text
//!  workload.rs   model actions ─► Namespace ─► Tap (history.rs) ─► Cache ─► … ─► Interleave ─► Recorder
//!  state.rs      a crash image ─► Stack::open ─► oracle.rs judges what observe.rs reads, then all checks
//! ```
//!
//! A *state* is one crash image: workload seed, position in the recorded writes, mode, seed of the mode. The states of a
//! workload are numbered, so that a seed and a number replay one. All is decided by the seed, also which actions run while
//! others are being written ([`interleave`]).

mod history;
mod interleave;
mod objects;
mod observe;
mod oracle;
mod script;
mod snapshots;
mod state;
mod workload;

use crate::budget::Budget;
use crate::caught::caught;
use crate::device::{CrashImages, CrashMode};
use crate::model::{Driver, Model};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::MemoryDevice;
use holdfast_naming::Atime;
use holdfast_object::Clock;
use holdfast_physical::CommitOrder;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use workload::{Run, Start};

/// Blocks of the explored stores: 8 MiB, and some so small that they get full and their intent logs too.
const DEVICE_BLOCKS: [u64; 4] = [2048, 2048, 1024, 600];
/// Of so many states, one has its recovery cut off as well.
const NESTED_EACH: u64 = 4;
/// Crashes of one recovery.
const NESTED: u64 = 2;

/// A seed and what is derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seed(u64);

impl Seed {
    fn derive(self, purpose: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, purpose).hash(&mut hasher);
        hasher.finish()
    }
}

/// A bug to be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Plant {
    /// None.
    #[default]
    Nothing,
    /// No flush between an epoch's blocks and the superblock that names them.
    MissingFlush,
    /// The superblock is written before the blocks that it names.
    SuperblockFirst,
    /// Blocks are handed out in the epoch that freed them.
    ReuseAtOnce,
    /// Blocks that a snapshot has are freed when the domain has them no more.
    BuryNothing,
    /// Deleting a snapshot frees also what an older one has.
    FreeAllOfDeleted,
    /// A deleted snapshot leaves the list with the first slice of its dead list.
    UnlistFirst,
    /// A snapshot that was answered is in memory only.
    ListNothing,
    /// A batch of the intent log is sealed before it is flushed.
    SealFirst,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 9] = [
        Plant::Nothing,
        Plant::MissingFlush,
        Plant::SuperblockFirst,
        Plant::ReuseAtOnce,
        Plant::BuryNothing,
        Plant::FreeAllOfDeleted,
        Plant::UnlistFirst,
        Plant::ListNothing,
        Plant::SealFirst,
    ];

    fn commit_order(self) -> CommitOrder {
        match self {
            Plant::Nothing => CommitOrder::Correct,
            Plant::MissingFlush => CommitOrder::NoFlushBeforeSuperblock,
            Plant::SuperblockFirst => CommitOrder::SuperblockFirst,
            Plant::ReuseAtOnce => CommitOrder::ReuseFreedAtOnce,
            Plant::BuryNothing => CommitOrder::BuryNothing,
            Plant::FreeAllOfDeleted => CommitOrder::FreeAllOfDeleted,
            Plant::UnlistFirst => CommitOrder::UnlistFirst,
            Plant::ListNothing => CommitOrder::ListNothing,
            Plant::SealFirst => CommitOrder::SealBeforeFlush,
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Plant::Nothing => "nothing",
            Plant::MissingFlush => "missing-flush",
            Plant::SuperblockFirst => "superblock-first",
            Plant::ReuseAtOnce => "reuse-at-once",
            Plant::BuryNothing => "bury-nothing",
            Plant::FreeAllOfDeleted => "free-all-of-deleted",
            Plant::UnlistFirst => "unlist-first",
            Plant::ListNothing => "list-nothing",
            Plant::SealFirst => "seal-first",
        }
    }
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which workloads, how many states.
    pub budget: Budget,
    /// Runs actions while others are being written.
    pub interleave: bool,
    /// A bug to be found.
    pub plant: Plant,
}

impl Default for Options {
    fn default() -> Options {
        Options { budget: Budget::default(), interleave: true, plant: Plant::Nothing }
    }
}

/// What was explored.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash states, those of recoveries included.
    pub states: u64,
    /// Of them, crashes of recoveries.
    pub nested: u64,
    /// Recorded workloads.
    pub workloads: u64,
    /// States by mode, in the order of [`CrashMode::ALL`].
    pub by_mode: [u64; CrashMode::ALL.len()],
    /// States in which something of the intent log was replayed.
    pub replayed: u64,
    /// States whose tree was compared with the model's.
    pub compared_with_model: u64,
    /// Snapshots that were compared with what they were made of.
    pub snapshots: u64,
    /// States in which one was being made or deleted.
    pub snapshots_in_flight: u64,
    /// States, those of recoveries included, in which a deleted snapshot was not all free yet.
    pub deletions_left: u64,
    /// Transactions recorded.
    pub transactions: u64,
    /// Actions that ran while others were being written.
    pub interleaved: u64,
    /// How often an idle intent log was sealed.
    pub sealed: u64,
    /// Seed of the last workload.
    pub last_seed: u64,
    /// Time taken.
    pub took: Duration,
}

/// A state that is not allowed, or a workload that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the workload.
    pub seed: u64,
    /// Number of the state; none if the workload itself went wrong.
    pub state: Option<u64>,
    /// Recorder position and mode.
    pub crash: Option<(usize, CrashMode)>,
    /// What the workload was doing there.
    pub step: String,
    /// What is wrong.
    pub what: String,
    /// Shows just this state again.
    pub replay: String,
    /// What the workload did: recorder position, transactions before, action.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        if let (Some(state), Some((position, mode))) = (self.state, self.crash) {
            write!(f, ", state {state}: power cut at position {position}, {mode:?}, in {}", self.step)?;
        }
        write!(f, "\n{}\nreplay: {}", self.what, self.replay)
    }
}

/// One crash image of a workload.
#[derive(Clone, Copy, Debug)]
struct State {
    position: usize,
    mode: CrashMode,
    seed: u64,
}

/// Explores. Gives the first state that is not allowed, if there is one, with what was explored before.
pub fn explore(options: &Options) -> (Report, Option<Box<Failure>>) {
    let begun = Instant::now();
    let mut report = Report::default();
    let mut failure = None;
    for seed in options.budget.seeds() {
        if options.budget.is_spent(report.states, begun) {
            break;
        }
        report.last_seed = seed;
        if let Err(found) = explore_workload(Seed(seed), options, begun, &mut report) {
            failure = Some(found);
            break;
        }
    }
    report.took = begun.elapsed();
    (report, failure)
}

fn explore_workload(seed: Seed, options: &Options, begun: Instant, report: &mut Report) -> Result<(), Box<Failure>> {
    let fail = |what: String| Failure {
        seed: seed.0,
        state: None,
        crash: None,
        step: String::new(),
        what,
        replay: replay(seed.0, None, options),
        trace: Vec::new(),
    };
    let run = caught(|| record(seed, options)).map_err(|what| Box::new(fail(what)))?;
    report.workloads += 1;
    report.transactions += run.history.sequence;
    report.interleaved += run.interleaved as u64;
    report.sealed += run.sealed as u64;
    for (number, state) in (0..).zip(states(seed, &run.images)) {
        if !options.budget.wants(number) {
            continue;
        }
        if options.budget.is_spent(report.states, begun) {
            return Ok(());
        }
        let seen = caught(|| {
            let mut rng = Pcg64Mcg::seed_from_u64(state.seed);
            let image = run.images.image(state.position, state.mode, &mut rng);
            let nested = if number % NESTED_EACH == 0 { NESTED } else { 0 };
            state::examine(&run, state.position, &image, nested, &mut rng)
        });
        let seen = seen.map_err(|what| {
            let step = run.history.step_at(state.position).to_string();
            let crash = Some((state.position, state.mode));
            let replay = replay(seed.0, Some(number), options);
            Box::new(Failure { state: Some(number), crash, step, replay, trace: run.history.trace(), ..fail(what) })
        })?;
        report.states += 1 + seen.nested;
        report.nested += seen.nested;
        report.replayed += u64::from(seen.batches > 0);
        report.compared_with_model += u64::from(seen.compared_with_model);
        report.snapshots += seen.snapshots;
        report.deletions_left += seen.deletions_left;
        report.snapshots_in_flight += u64::from(run.history.is_snapshot_in_flight(state.position));
        let mode = CrashMode::ALL.iter().position(|mode| *mode == state.mode);
        report.by_mode[mode.unwrap_or_default()] += 1;
    }
    Ok(())
}

/// Records the workload of a seed. Before it, the store may have had other lives, each ended by a power cut or closed.
fn record(seed: Seed, options: &Options) -> Result<Run, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.derive("lives"));
    let device = Arc::new(MemoryDevice::new(DEVICE_BLOCKS[rng.random_range(0..DEVICE_BLOCKS.len())]));
    let clock = stack::clock();
    stack::create(device.clone(), &clock).map_err(|error| format!("create: {error}"))?;
    let model = Model::new(0o755, clock.now());
    let stack =
        Stack::open(device.clone(), &StackOptions::new(64), &clock).map_err(|error| format!("open: {error}"))?;
    let driver = Driver::new(stack.namespace(Atime::Never));
    let now_ns = clock.monotonic_ns();
    let mut start = Start { device: (*device).clone(), model, driver, snapshots: Vec::new(), now_ns };
    for life in 0..[0, 0, 1, 2][rng.random_range(0..4)] {
        let past = Seed(seed.derive(&format!("life {life}")));
        let run = workload::run(&start, past, options, options.budget.steps / 2)
            .map_err(|error| format!("life {life}: {error}"))?;
        let next = workload::next_life(&run, &mut rng).map_err(|error| format!("end of life {life}: {error}"))?;
        start = next.unwrap_or(start);
    }
    workload::run(&start, seed, options, options.budget.steps)
}

/// The states of a recorded workload: each gap between flushes in each mode, cut off just before the flush that ends it;
/// and half as many anywhere.
fn states(seed: Seed, images: &CrashImages) -> Vec<State> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.derive("states"));
    let mut states = Vec::new();
    let last = *images.positions().end();
    for position in images.flushes().map(|after| after - 1).chain([last]) {
        let modes = if images.at_stake(position) == 0 { &CrashMode::ALL[..1] } else { &CrashMode::ALL[..] };
        states.extend(modes.iter().map(|&mode| State { position, mode, seed: rng.random() }));
    }
    for _ in 0..states.len() / 2 {
        let position = rng.random_range(images.positions());
        let modes = if images.at_stake(position) == 0 { 1 } else { CrashMode::ALL.len() };
        states.push(State { position, mode: CrashMode::ALL[rng.random_range(0..modes)], seed: rng.random() });
    }
    states.shuffle(&mut rng);
    states
}

fn replay(seed: u64, state: Option<u64>, options: &Options) -> String {
    let mut command = options.budget.replay("crash-explorer", seed, state);
    if !options.interleave {
        command += " --no-interleave";
    }
    if options.plant != Plant::Nothing {
        command += &format!(" --plant {}", options.plant.name());
    }
    command
}
