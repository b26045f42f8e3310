//! Power cuts anywhere in random workloads on a Flashlog, over all of its devices together, and the loss of any one of them.
//!
//! ```text
//!  life.rs    random writes, flushes, … ─► Flashlog ─► watch.rs ─► Recorder (main, log, backup)
//!  patient.rs devices that come back by themselves, and are waited for
//!  state.rs   an image of each device at one moment ─► Flashlog::open ─► compared with every state that there was
//!  lost.rs    the same where a device has failed: come back, or replaced
//!  procedures.rs  making a set, making it or its backup larger, main anew at a barrier, comparing: cut off, each with what a cut left
//!  large.rs   a backup that becomes larger over its own checksums, which takes a larger set
//!  lasting.rs both of a set that goes on without its log, and takes it back, or a new one, while it is in use
//! ```
//!
//! A *moment* is after one request to any device, or one answer to the workload. A *state* is a moment, and for each device by itself
//! what of its unflushed writes is there. A workload has up to three lives; each further one begins with what a power cut left of the one
//! before, so that what was cut off lies about in the log. The last one is lived again and again, each time with one device that fails
//! for good at one of its requests; or with a process that is killed at one, and another one that takes up what it left in the devices and their
//! caches, of which a power cut takes what was not flushed since; or with both: a device is pulled out, and there again for the next process.

pub mod flips;
pub mod large;
mod lasting;
mod life;
mod lost;
mod patient;
mod procedures;
mod state;
mod watch;

use crate::budget::Budget;
use crate::caught::caught;
use crate::device::CrashMode;
use holdfast_block::flashlog::Order;
use life::{Life, Start};
pub use procedures::NAMES as PROCEDURES;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use state::Seen;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use watch::{BACKUP, LOG, Loss, MAIN, Mishap};

/// Of so many states, one has its recovery cut off as well.
const NESTED_EACH: u64 = 4;
/// Of so many states, one goes through a procedure that is cut off.
const PROCEDURE_EACH: u64 = 8;
/// Blocks of the log's data area.
const DATA_BLOCKS: u64 = 512;
/// Most lives of a workload.
const LIVES: u64 = 3;
/// States of each of these.
const STATES_OF_A_LOSS: usize = 12;
/// States of each life whose process is killed.
const STATES_OF_A_KILL: usize = 12;
/// Most processes of one life that are killed.
const KILLS_MOST: usize = 3;
/// A process that takes up what another one left is killed within so many requests.
const KILLED_AGAIN_WITHIN: u64 = 60;
/// Of so many lives whose processes are killed, one more has lost a device before.
const LOSS_EACH: usize = 2;
/// The first one is killed within so many requests behind that.
const KILLED_AFTER_LOSS_WITHIN: u64 = 40;
/// For so many lives with a device that fails there is one more with one that comes back by itself.
const RETURN_EACH: usize = 2;
/// In some of them it goes within so many of the requests that it gets from a process which takes up what another one left.
const GONE_SOON_WITHIN: usize = 8;

/// What to explore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which workloads, how many states; a workload's actions are those of its last life.
    pub budget: Budget,
    /// So often the last life is lived once more, with a device that fails.
    pub losses: usize,
    /// So often with a process that is killed.
    pub kills: usize,
    /// A mistake to be found.
    pub plant: Plant,
}

impl Default for Options {
    fn default() -> Options {
        Options { budget: Budget::default(), losses: 40, kills: 20, plant: Plant::Order(Order::Correct) }
    }
}

/// What a workload is of. A hash of its seed says it, so that it does not depend on how seeds are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A set whose log goes around as soon as main has everything.
    WithoutBackup,
    /// One whose log keeps what the backup has not.
    WithBackup,
    /// One that outlasts its log.
    Lasting,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::WithoutBackup, Kind::WithBackup, Kind::Lasting];

    /// That of the workload with this seed: half of them have a backup, a quarter outlast their log.
    pub fn of(seed: u64) -> Kind {
        // The last step of SplitMix64.
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        match (mixed ^ mixed >> 31) % 4 {
            0 => Kind::WithoutBackup,
            1 => Kind::Lasting,
            _ => Kind::WithBackup,
        }
    }

    /// The first seed from this one on whose workload is of it.
    pub fn seed_from(self, seed: u64) -> u64 {
        (seed..).find(|seed| Kind::of(*seed) == self).unwrap_or(seed)
    }
}

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// Of the set, or none.
    Order(Order),
    /// Flushes of this device are answered and not made, in every life: as if the set did not ask for them.
    NoFlushOf(Device),
    /// The same as long as the process has not written to the device: what a killed one has left there is taken for durable.
    NoFlushOfWhatIsFound(Device),
    /// The same of procedures alone.
    NoFlushOfWhatProceduresFind(Device),
    /// The same for good, once the device was pulled out and is there again.
    NoFlushOfWhatIsBack(Device),
}

impl Plant {
    pub(crate) fn order(self) -> Order {
        match self {
            Plant::Order(order) => order,
            Plant::NoFlushOf(_)
            | Plant::NoFlushOfWhatIsFound(_)
            | Plant::NoFlushOfWhatProceduresFind(_)
            | Plant::NoFlushOfWhatIsBack(_) => Order::Correct,
        }
    }
}

/// A device of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// Has every block at its own address.
    Main,
    /// Has what was written, in order.
    Log,
    /// Has every block as it was at some moment.
    Backup,
}

/// The mistakes as on the command line.
pub const PLANTS: [(&str, Plant); 26] = [
    ("nothing", Plant::Order(Order::Correct)),
    ("main-before-log", Plant::Order(Order::MainBeforeLog)),
    ("no-flush-of-main", Plant::Order(Order::NoFlushOfMain)),
    ("reuse-before-label", Plant::Order(Order::ReuseBeforeLabel)),
    ("any-generation", Plant::Order(Order::AnyGeneration)),
    ("no-rescue", Plant::Order(Order::NoRescue)),
    ("rescue-before-label", Plant::Order(Order::RescueBeforeLabel)),
    ("change-before-map", Plant::Order(Order::ChangeBeforeMap)),
    ("attach-skips-block", Plant::Order(Order::AttachSkipsBlock)),
    ("forgets-zeros", Plant::Order(Order::ForgetsZeros)),
    ("forgets-dirty", Plant::Order(Order::ForgetsDirty)),
    ("new-log-forgets-alone", Plant::Order(Order::NewLogForgetsAlone)),
    ("lets-go-of-needed", Plant::Order(Order::LetsGoOfNeeded)),
    ("trim-before-backup", Plant::Order(Order::TrimsBeforeBackup)),
    ("put-back-in-parts", Plant::Order(Order::PutBackInParts)),
    ("main-not-flushed", Plant::NoFlushOf(Device::Main)),
    ("log-not-flushed", Plant::NoFlushOf(Device::Log)),
    ("backup-not-flushed", Plant::NoFlushOf(Device::Backup)),
    ("main-found-not-flushed", Plant::NoFlushOfWhatIsFound(Device::Main)),
    ("log-found-not-flushed", Plant::NoFlushOfWhatIsFound(Device::Log)),
    ("backup-found-not-flushed", Plant::NoFlushOfWhatIsFound(Device::Backup)),
    ("log-in-procedure-not-flushed", Plant::NoFlushOfWhatProceduresFind(Device::Log)),
    ("backup-in-procedure-not-flushed", Plant::NoFlushOfWhatProceduresFind(Device::Backup)),
    ("main-back-not-flushed", Plant::NoFlushOfWhatIsBack(Device::Main)),
    ("log-back-not-flushed", Plant::NoFlushOfWhatIsBack(Device::Log)),
    ("forgets-unflushed", Plant::Order(Order::ForgetsUnflushed)),
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
    /// States after one process was killed, after two, after three.
    pub killed: [u64; KILLS_MOST],
    /// States after a process found main alone, which a killed one had left.
    pub taken_up_alone: u64,
    /// States after a process was killed whose main, log or backup had been pulled out.
    pub killed_after_loss: [u64; 3],
    /// States after main, log or backup had gone and come back by itself.
    pub came_back: [u64; 3],
    /// States in which main, log or backup had failed before.
    pub lost: [u64; 3],
    /// Of those of the log, the ones in which main had gone on alone.
    pub alone: u64,
    /// Of those of the backup, the ones in which another was made.
    pub copied: u64,
    /// States of a set that outlasts its log; of them, those in which main was alone; in which it got a new log, and it was known what the
    /// next backup lacked.
    pub lasting: [u64; 3],
    /// Procedures that were cut off, as [`PROCEDURES`] names them.
    pub procedures: [u64; PROCEDURES.len()],
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

/// One crash of one of a workload's lives.
#[derive(Clone, Copy, Debug)]
struct State {
    life: usize,
    moment: usize,
    modes: [CrashMode; 3],
    seed: u64,
}

impl State {
    /// At a moment from this one on.
    fn random(life: (usize, &Life), from: usize, rng: &mut Pcg64Mcg) -> State {
        let mut mode = || CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        let (main, log) = (mode(), mode());
        let (moment, seed) = (rng.random_range(from..life.1.moments.len()), rng.random::<u64>());
        State { life: life.0, moment, modes: [main, log, CrashMode::ALL[(seed % 6) as usize]], seed }
    }
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
    let lives = made.map_err(|what| failure(None, what, Vec::new()))?;
    report.workloads += 1;
    report.rounds += lives[0].written / DATA_BLOCKS;
    let states: Vec<(u64, State)> = (0..).zip(states(seed, &lives, &mut rng)).collect();
    let states: Vec<(u64, State)> = states.into_iter().filter(|(number, _)| options.budget.wants(*number)).collect();
    // Several threads take the next one; a failure is that with the lowest number, so that it is the same whenever this is done again.
    let next = AtomicUsize::new(0);
    let explored = report.states;
    let is_over = |at: usize| options.budget.is_spent(explored + at as u64, begun);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((number, state)) = states.get(at).filter(|_| !is_over(at)) else { return done };
            let life = &lives[state.life];
            let seen = caught(|| state::examine(life, state, Further::of(*number)));
            if seen.is_err() {
                // What comes before it is finished by those who have it.
                next.store(states.len(), Ordering::Relaxed);
            }
            done.push((*number, *state, seen.map(|seen| Tally::of(life, state, &seen))));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<(u64, State, Result<Tally, String>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    done.sort_by_key(|(number, ..)| *number);
    for (number, state, tally) in done {
        let life = &lives[state.life];
        let tally = tally.map_err(|what| {
            let moment = &life.moments[state.moment];
            let [main, log, backup] = state.modes;
            let lost = life.lost.or(life.came_back).map_or(String::new(), |(loss, _)| format!("{loss}; "));
            let what = format!("{lost}power cut at {moment}, main {main:?}, log {log:?}, backup {backup:?}: {what}");
            failure(Some(number), what, life.trace.clone())
        })?;
        tally.add_to(report);
    }
    Ok(())
}

/// What is done with a state beside looking at it.
#[derive(Clone, Copy, Default)]
struct Further {
    /// Its recovery is cut off.
    is_nested: bool,
    /// A procedure is.
    is_procedure: bool,
    /// Whoever goes through the procedure finds what a killed process has left, in the devices' caches what was not flushed.
    is_cached: bool,
}

impl Further {
    fn of(number: u64) -> Further {
        let is_procedure = number % PROCEDURE_EACH == 1;
        let is_cached = is_procedure && (number / PROCEDURE_EACH).is_multiple_of(2);
        Further { is_nested: number.is_multiple_of(NESTED_EACH), is_procedure, is_cached }
    }
}

/// What one state adds to the report.
struct Tally {
    is_lasting: bool,
    kills: usize,
    is_taken_up_alone: bool,
    killed_after_loss: Option<usize>,
    came_back: Option<usize>,
    is_synchronous: bool,
    is_replayed: bool,
    is_cut: bool,
    is_rebuilt: bool,
    nested: u64,
    procedure: Option<usize>,
    recovered: lost::Recovered,
}

impl Tally {
    fn of(life: &Life, state: &State, seen: &Seen) -> Tally {
        Tally {
            kills: life.moments[state.moment].progress.kills,
            is_taken_up_alone: life.moments[state.moment].progress.is_taken_up_alone,
            killed_after_loss: (life.lost.filter(|_| life.moments[state.moment].progress.kills > 0))
                .map(|(loss, _)| loss.device),
            came_back: life.came_back.map(|(loss, _)| loss.device),
            is_lasting: life.is_lasting,
            is_synchronous: life.is_synchronous(),
            is_replayed: seen.opened.blocks > 0,
            is_cut: seen.opened.cut_pages > 0,
            is_rebuilt: seen.is_rebuilt,
            nested: seen.nested,
            procedure: seen.procedure,
            recovered: seen.recovered,
        }
    }

    fn add_to(&self, report: &mut Report) {
        report.states += 1 + self.nested + u64::from(self.procedure.is_some());
        if let Some(procedure) = self.procedure {
            report.procedures[procedure] += 1;
        }
        report.nested += self.nested;
        if self.kills > 0 {
            report.killed[self.kills - 1] += 1;
        }
        report.taken_up_alone += u64::from(self.is_taken_up_alone);
        if let Some(device) = self.killed_after_loss {
            report.killed_after_loss[device] += 1;
        }
        if let Some(device) = self.came_back {
            report.came_back[device] += 1;
        }
        report.synchronous += u64::from(self.is_synchronous);
        report.replayed += u64::from(self.is_replayed);
        report.rebuilt += u64::from(self.is_rebuilt);
        report.cut += u64::from(self.is_cut);
        if let Some(device) = self.recovered.device {
            report.lost[device] += 1;
        }
        report.alone += u64::from(self.recovered.is_alone && !self.is_lasting);
        report.lasting[0] += u64::from(self.is_lasting);
        report.lasting[1] += u64::from(self.is_lasting && self.recovered.is_alone);
        report.lasting[2] += u64::from(self.recovered.is_new_log);
        report.copied += u64::from(self.recovered.is_copied);
    }
}

/// The states of a workload's lives, in any order.
fn states(seed: u64, lives: &[Life], rng: &mut Pcg64Mcg) -> Vec<State> {
    let mut states = Vec::new();
    for moment in 0..lives[0].moments.len() {
        states.push(State { moment, ..State::random((0, &lives[0]), 0, rng) });
        states.push(State::random((0, &lives[0]), 0, rng));
    }
    for (number, life) in (1..).zip(&lives[1..]) {
        // The set may have been closed before it asked for so much.
        let Some((_, from)) = life.lost.filter(|_| life.killed.is_empty()) else { continue };
        states.extend((0..STATES_OF_A_LOSS).map(|_| State::random((number, life), from, rng)));
    }
    let mut of_kills = rng_of_kills(seed);
    for (number, life) in (0..).zip(lives) {
        let Some(from) = life.killed.first().copied().filter(|_| life.came_back.is_none()) else { continue };
        let at_stake = watch::at_stake(&life.moments, &life.images, &life.killed);
        for number_of_state in 0..STATES_OF_A_KILL {
            let state = State::random((number, life), from, &mut of_kills);
            let at_stake = at_stake.choose(&mut of_kills).filter(|_| number_of_state % 2 == 0);
            states.push(State { moment: at_stake.copied().unwrap_or(state.moment), ..state });
        }
    }
    let mut of_returns = rng_of_returns(!seed);
    for (number, life) in (0..).zip(lives) {
        let Some((_, back_at)) = life.came_back else { continue };
        // What a process had that was killed may be gone since, if it was in a cache.
        let from = life.killed.first().map_or(back_at, |killed| back_at.max(*killed));
        states.extend((0..STATES_OF_A_LOSS).map(|_| State::random((number, life), from, &mut of_returns)));
    }
    states.shuffle(rng);
    states
}

/// Lives until the last one, which is explored: as it is, and with devices that fail.
fn lives(seed: u64, options: &Options, rng: &mut Pcg64Mcg) -> Result<Vec<Life>, String> {
    let kind = Kind::of(seed);
    if kind == Kind::Lasting {
        return lasting_lives(seed, options, rng);
    }
    let mut start = Start::new(options, kind, rng)?;
    for _ in 1..rng.random_range(1..=LIVES) {
        let life = Life::live(&start, options.budget.steps / 2, Mishap::None, rng)?;
        let state = State::random((0, &life), 0, rng);
        start = state::examine(&life, &state, Further::default())?.left;
    }
    let begin = rng.clone();
    let mut lives = vec![Life::live(&start, options.budget.steps, Mishap::None, rng)?];
    let requests = lives[0].requests;
    let devices: Vec<usize> = [MAIN, LOG, BACKUP].into_iter().filter(|device| requests[*device] > 0).collect();
    for _ in 0..options.losses {
        let device = devices[rng.random_range(0..devices.len())];
        let loss =
            Loss { device, request: rng.random_range(0..requests[device]), is_begun: rng.random(), returns: None };
        let life = Life::live(&start, options.budget.steps, Mishap::Loss(loss), &mut begin.clone());
        lives.push(life.map_err(|what| format!("{loss}: {what}"))?);
    }
    for kills in kills(seed, options, &lives[0]) {
        let life = Life::live(&start, options.budget.steps, Mishap::Kills(&kills), &mut begin.clone());
        lives.push(life.and_then(Life::with_kills).map_err(says_killed(&kills))?);
    }
    let live = |mishap: Mishap<'_>| Life::live(&start, options.budget.steps, mishap, &mut begin.clone());
    let pulled: Vec<(usize, usize)> = [MAIN, LOG, BACKUP]
        .map(|device| (device, requests[device]))
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    lives.extend(killed_after_loss(seed, options, &pulled, &live)?);
    lives.extend(going_and_coming(seed, options, &lives[0], &live)?);
    Ok(lives)
}

/// By themselves, so that they change nothing of the other lives.
fn rng_of_kills(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(!seed)
}

/// The same of devices that come back.
fn rng_of_returns(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed.rotate_left(16) ^ !0)
}

/// After how many requests the processes of each further life are killed, the last one first.
fn kills(seed: u64, options: &Options, whole: &Life) -> Vec<Vec<u64>> {
    let mut rng = rng_of_kills(seed);
    let requests = whole.requests.iter().sum::<usize>().max(1) as u64;
    let of_life = |_| {
        let again = rng.random_range(1..=KILLS_MOST) - 1;
        random_kills((again, KILLED_AGAIN_WITHIN), (&whole.flushes, requests), &mut rng)
    };
    (0..options.kills).map(of_life).collect()
}

fn says_killed(kills: &[u64]) -> impl Fn(String) -> String {
    move |what| format!("killed after {kills:?} requests, the last one first: {what}")
}

/// After how many requests processes are killed, the last one first: so many within that many requests, and before them one at any of
/// those of a whole run.
fn random_kills(
    (again, within): (usize, u64),
    (flushes, requests): (&[Vec<u64>; 3], u64),
    rng: &mut Pcg64Mcg,
) -> Vec<u64> {
    let mut kills: Vec<u64> = (0..again).map(|_| rng.random_range(0..within)).collect();
    // Half of them at a flush: then there is something that was not flushed.
    let flushed: Vec<&Vec<u64>> = flushes.iter().filter(|flushes| !flushes.is_empty()).collect();
    let at_flush = flushed.choose(rng).filter(|_| rng.random()).and_then(|flushes| flushes.choose(rng));
    kills.push(at_flush.copied().unwrap_or_else(|| rng.random_range(0..requests)));
    kills
}

/// Lives of a set that outlasts its log: as it is, and with the log pulled out.
fn lasting_lives(seed: u64, options: &Options, rng: &mut Pcg64Mcg) -> Result<Vec<Life>, String> {
    let start = Start::new(options, Kind::Lasting, rng)?;
    let begin = rng.clone();
    let mut lives = vec![lasting::live(&start, options.budget.steps, Mishap::None, rng)?];
    let requests = lives[0].requests[LOG];
    for _ in 0..options.losses {
        let loss = Loss { device: LOG, request: rng.random_range(0..requests), is_begun: rng.random(), returns: None };
        let life = lasting::live(&start, options.budget.steps, Mishap::Loss(loss), &mut begin.clone());
        lives.push(life.map_err(|what| format!("{loss}: {what}"))?);
    }
    let live = |mishap: Mishap<'_>| lasting::live(&start, options.budget.steps, mishap, &mut begin.clone());
    lives.extend(killed_after_loss(seed, options, &[(LOG, requests)], &live)?);
    for kills in kills(seed, options, &lives[0]) {
        let life = lasting::live(&start, options.budget.steps, Mishap::Kills(&kills), &mut begin.clone());
        lives.push(life.and_then(Life::with_kills).map_err(says_killed(&kills))?);
    }
    lives.extend(going_and_coming(seed, options, &lives[0], &live)?);
    Ok(lives)
}

/// Lives of which a device loses its power for a moment, and is waited for; in half of them after a process was killed, soon or later. Nobody who
/// uses the set is told of it.
fn going_and_coming(
    seed: u64,
    options: &Options,
    whole: &Life,
    live: &dyn Fn(Mishap<'_>) -> Result<Life, String>,
) -> Result<Vec<Life>, String> {
    let mut rng = rng_of_returns(seed);
    let used: Vec<usize> = [MAIN, LOG, BACKUP].into_iter().filter(|device| whole.requests[*device] > 0).collect();
    let all = whole.requests.iter().sum::<usize>() as u64;
    let mut lives = Vec::new();
    for number in 0..options.losses / RETURN_EACH {
        let device = used[rng.random_range(0..used.len())];
        let returns = CrashMode::ALL.choose(&mut rng).copied();
        let mut loss =
            Loss { device, request: rng.random_range(0..whole.requests[device]), is_begun: rng.random(), returns };
        let kills = if number % 2 == 0 { Vec::new() } else { random_kills((0, 0), (&whole.flushes, all), &mut rng) };
        if !kills.is_empty() && rng.random() {
            let killed = live(Mishap::Kills(&kills)).map_err(says_killed(&kills))?;
            let soon = rng.random_range(0..GONE_SOON_WITHIN);
            loss.request = killed.killed_after.map_or(loss.request, |requests| requests[device] + soon);
        }
        let mishap = if kills.is_empty() { Mishap::Loss(loss) } else { Mishap::LossAndKills(loss, &kills) };
        let life = live(mishap).map_err(|what| format!("{loss}; {}", says_killed(&kills)(what)))?;
        // A life may be over before.
        lives.extend(Some(life).filter(|life| life.came_back.is_some()));
    }
    Ok(lives)
}

/// Lives of which a device is pulled out, one of these with so many requests, and whose processes are killed soon after that.
fn killed_after_loss(
    seed: u64,
    options: &Options,
    devices: &[(usize, usize)],
    live: &dyn Fn(Mishap<'_>) -> Result<Life, String>,
) -> Result<Vec<Life>, String> {
    // By themselves, as those of lives without a loss.
    let mut rng = Pcg64Mcg::seed_from_u64(seed.rotate_left(32) ^ !0);
    let mut lives = Vec::new();
    for number in 0..options.kills / LOSS_EACH {
        let (device, requests) = devices[number % devices.len()];
        let loss = Loss { device, request: rng.random_range(0..requests), is_begun: rng.random(), returns: None };
        let without = live(Mishap::Loss(loss)).map_err(|what| format!("{loss}: {what}"))?;
        // All goes as there until the first one is killed.
        let Some(lost) = without.lost_request else { continue };
        let later = (without.requests.iter().sum::<usize>() as u64 - lost - 1).min(KILLED_AFTER_LOSS_WITHIN);
        if later == 0 {
            continue;
        }
        let again = rng.random_range(1..=KILLS_MOST) - 1;
        let mut kills: Vec<u64> = (0..again).map(|_| rng.random_range(0..KILLED_AGAIN_WITHIN)).collect();
        kills.push(lost + 1 + rng.random_range(0..later));
        let life = live(Mishap::LossAndKills(loss, &kills)).and_then(Life::with_kills);
        lives.push(life.map_err(|what| format!("{loss}; {}", says_killed(&kills)(what)))?);
    }
    Ok(lives)
}

fn replay(seed: u64, state: Option<u64>, options: &Options) -> String {
    let mut command = options.budget.replay("flashlog-explorer", seed, state);
    if options.losses != Options::default().losses {
        command += &format!(" --losses {}", options.losses);
    }
    if options.kills != Options::default().kills {
        command += &format!(" --kills {}", options.kills);
    }
    if let Some((name, _)) = PLANTS[1..].iter().find(|(_, plant)| *plant == options.plant) {
        command += &format!(" --plant {name}");
    }
    command
}
