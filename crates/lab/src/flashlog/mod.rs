//! Power cuts anywhere in random workloads on a Flashlog, over all of its devices together.
//!
//! ```text
//!  life.rs    random writes, flushes, … ─► Flashlog ─► Watch ─► Recorder (main, log, backup)
//!  state.rs   an image of each device at one moment ─► Flashlog::open ─► compared with every state that there was
//! ```
//!
//! A *moment* is after one request to any device, or one answer to the workload. A *state* is a moment, and for each device by itself
//! what of its unflushed writes is there. A workload has up to three lives; each further one begins with what a power cut left of the one
//! before, so that what was cut off lies about in the log.

mod life;
mod state;

use crate::device::CrashMode;
use holdfast_block::flashlog::Order;
use life::{Life, Start};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Of so many states, one has its recovery cut off as well.
const NESTED_EACH: u64 = 4;
/// Blocks of the log's data area.
const DATA_BLOCKS: u64 = 512;
/// Most lives of a workload.
const LIVES: u64 = 3;

/// What to explore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of the first workload; each further one has the next number.
    pub seed: u64,
    /// Only this state of the first workload.
    pub state: Option<u64>,
    /// Ends after so many states.
    pub states: u64,
    /// Ends after this time.
    pub time: Option<Duration>,
    /// Actions in a life.
    pub steps: usize,
    /// A mistake to be found.
    pub order: Order,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 1, state: None, states: 2_000, time: None, steps: 60, order: Order::Correct }
    }
}

/// The mistakes as on the command line.
pub const ORDERS: [(&str, Order); 5] = [
    ("nothing", Order::Correct),
    ("main-before-log", Order::MainBeforeLog),
    ("no-flush-of-main", Order::NoFlushOfMain),
    ("reuse-before-label", Order::ReuseBeforeLabel),
    ("any-generation", Order::AnyGeneration),
];

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// States, those of recoveries included.
    pub states: u64,
    /// Of them, crashes of recoveries.
    pub nested: u64,
    /// States of a set in synchronous mode.
    pub synchronous: u64,
    /// States in which main needed something of the log.
    pub replayed: u64,
    /// States in which pages were cut off for want of data.
    pub cut: u64,
    /// States in which main was made anew from backup and log as well.
    pub rebuilt: u64,
    /// Workloads.
    pub workloads: u64,
    /// Times that the data area was gone around.
    pub rounds: u64,
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
    /// What is wrong.
    pub what: String,
    /// Shows just this state again.
    pub replay: String,
    /// What the last life did.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        if let Some(state) = self.state {
            write!(f, ", state {state}")?;
        }
        write!(f, "\n{}\nreplay: {}", self.what, self.replay)
    }
}

/// One crash of a life.
#[derive(Clone, Copy, Debug)]
struct State {
    moment: usize,
    modes: [CrashMode; 3],
    seed: u64,
}

impl State {
    fn random(life: &Life, rng: &mut Pcg64Mcg) -> State {
        let mut mode = || CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        let (main, log) = (mode(), mode());
        let (moment, seed) = (rng.random_range(0..life.moments.len()), rng.random::<u64>());
        State { moment, modes: [main, log, CrashMode::ALL[(seed % 6) as usize]], seed }
    }
}

/// Explores. Gives the first state that is not allowed, if there is one, with what was explored before.
pub fn explore(options: &Options) -> (Report, Option<Box<Failure>>) {
    let begun = Instant::now();
    let mut report = Report::default();
    let mut failure = None;
    for seed in options.seed.. {
        let is_late = options.time.is_some_and(|time| begun.elapsed() >= time);
        if report.states >= options.states || is_late || options.state.is_some() && seed != options.seed {
            break;
        }
        report.last_seed = seed;
        if let Err(found) = explore_workload(seed, options, begun, &mut report) {
            failure = Some(found);
            break;
        }
    }
    report.took = begun.elapsed();
    (report, failure)
}

fn explore_workload(seed: u64, options: &Options, begun: Instant, report: &mut Report) -> Result<(), Box<Failure>> {
    let failure = |state: Option<u64>, what: String, trace: Vec<String>| {
        Box::new(Failure { seed, state, what, replay: replay(seed, state, options), trace })
    };
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let made = caught(|| lives(seed, options, &mut rng));
    let life = made.map_err(|what| failure(None, what, Vec::new()))?;
    report.workloads += 1;
    report.rounds += life.written / DATA_BLOCKS;
    let mut states = Vec::new();
    for moment in 0..life.moments.len() {
        states.push(State { moment, ..State::random(&life, &mut rng) });
        states.push(State::random(&life, &mut rng));
    }
    states.shuffle(&mut rng);
    for (number, state) in (0..).zip(states) {
        if options.state.is_some_and(|only| only != number) {
            continue;
        }
        if report.states >= options.states || options.time.is_some_and(|time| begun.elapsed() >= time) {
            return Ok(());
        }
        let seen = caught(|| state::examine(&life, &state, number % NESTED_EACH == 0));
        let seen = seen.map_err(|what| {
            let moment = &life.moments[state.moment];
            let [main, log, backup] = state.modes;
            let what = format!("power cut at {moment}, main {main:?}, log {log:?}, backup {backup:?}: {what}");
            failure(Some(number), what, life.trace.clone())
        })?;
        report.states += 1 + seen.nested;
        report.nested += seen.nested;
        report.synchronous += u64::from(life.is_synchronous());
        report.replayed += u64::from(seen.opened.blocks > 0);
        report.rebuilt += u64::from(seen.is_rebuilt);
        report.cut += u64::from(seen.opened.cut_pages > 0);
    }
    Ok(())
}

/// Lives until the last one, which is explored.
fn lives(seed: u64, options: &Options, rng: &mut Pcg64Mcg) -> Result<Life, String> {
    // The other half has a log that goes around as soon as main has everything.
    let mut start = Start::new(options, !seed.is_multiple_of(2), rng)?;
    for _ in 1..rng.random_range(1..=LIVES) {
        let life = Life::live(&start, options.steps / 2, rng)?;
        let state = State::random(&life, rng);
        start = state::examine(&life, &state, false)?.left;
    }
    Life::live(&start, options.steps, rng)
}

fn replay(seed: u64, state: Option<u64>, options: &Options) -> String {
    let mut command = format!("cargo run --release -p holdfast-lab --bin flashlog-explorer -- --seed {seed}");
    if let Some(state) = state {
        command += &format!(" --state {state}");
    }
    if options.steps != Options::default().steps {
        command += &format!(" --steps {}", options.steps);
    }
    if let Some((name, _)) = ORDERS[1..].iter().find(|(_, order)| *order == options.order) {
        command += &format!(" --plant {name}");
    }
    command
}

fn caught<T>(act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of unknown kind")))
    })
}
