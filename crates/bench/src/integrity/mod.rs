//! What protection costs: the micro benchmarks of the Z²FS paper in every protection mode, as ratios to the mode `none`.
//!
//! Source: Y. Zhang, D. S. Myers, A. C. and R. H. Arpaci-Dusseau, *Zettabyte Reliability with Flexible End-to-end Data Integrity*
//! (MSST 2013), section IV-C.
//!
//! | file | what |
//! |---|---|
//! | `access` | how an application gets at a file |
//! | `mounted`, `embedded`, `library` | a store behind its daemon, in this process by its layers, and by the crate `holdfast-embedded` |
//! | `loads` | webserver, fileserver, varmail, and the webserver by t_switch |
//! | `statistics` | ratios of pairs, their interval, and whether it reaches a goal |
//! | `tables` | what came out |
//!
//! One row is one kind of work in one way of access. Its rounds are interleaved: each runs every mode once, directly after one another,
//! in an order that changes from round to round ([`turns`]); the figures of a round are pairs. What counts is the CPU time of
//! application and daemon together.

pub(crate) mod access;
mod embedded;
mod library;
pub mod loads;
mod mounted;
mod statistics;
mod tables;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_integrity::{Algorithm, Protection};

use self::access::Access;
use self::embedded::InProcess;
use self::library::ByLibrary;
use self::mounted::Mounted;
pub use self::statistics::{Multiple, Ratio, Verdict};
pub use self::tables::{load_tables, switch_table, tables};
pub(crate) use self::tables::{median, per_request, shown};
use crate::cpu;
use crate::error::{At, Error, Result};
use crate::pattern::{BLOCK, Generator, check_stamps, stamp};
use crate::peer::Site;

/// The modes that are measured; all are compared with the first.
pub const MODES: [Protection; 9] = [
    Protection::None,
    Protection::Disk,
    Protection::EndToEnd(Algorithm::Xor64),
    Protection::EndToEnd(Algorithm::Fletcher256),
    Protection::Static { strong: false },
    Protection::Dynamic { t_switch_s: 0 },
    Protection::Dynamic { t_switch_s: Protection::T_SWITCH_DEFAULT_S },
    Protection::Uniform,
    Protection::UniformBlake3,
];

/// Name of the file in each store.
const DATA: &str = "data";
const MIB: u64 = 1 << 20;

/// How the application gets at the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Ordinary calls on the mount, which the daemon answers (`cache=direct`).
    Mount,
    /// The checksum-aware interface of the mount.
    Interface,
    /// All layers in the application's process; pages are verified in the pool.
    Embedded,
    /// The same with a checksum per block, both ways, made and verified over the application's buffer.
    EmbeddedSums,
    /// The library for a store in the application's process, over the same layers and with its own thread; pages are verified in the pool.
    Library,
    /// The same with a checksum per block, both ways, made and verified over the application's buffer.
    LibrarySums,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Mount, Self::Interface, Self::Embedded, Self::EmbeddedSums, Self::Library, Self::LibrarySums];

    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Interface => "mount, with checksums",
            Self::Embedded => "embedded",
            Self::EmbeddedSums => "embedded, with checksums",
            Self::Library => "library",
            Self::LibrarySums => "library, with checksums",
        }
    }

    fn is_mounted(self) -> bool {
        matches!(self, Self::Mount | Self::Interface)
    }

    fn is_embedded(self) -> bool {
        matches!(self, Self::Embedded | Self::EmbeddedSums)
    }

    fn is_by_library(self) -> bool {
        matches!(self, Self::Library | Self::LibrarySums)
    }
}

/// What is done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Blocks are written over, then fsync.
    Write,
    /// The store was mounted or opened anew just before.
    ReadCold,
    /// All of the file is in the pool.
    ReadWarm,
}

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What.
    pub action: Action,
    /// In a random order; otherwise one after another.
    pub random: bool,
    /// Of one request.
    pub bytes: usize,
}

impl Work {
    /// All of them, in the order in which they are run.
    pub fn all() -> Vec<Work> {
        let actions = [Action::Write, Action::ReadCold, Action::ReadWarm];
        let requests = [(false, BLOCK), (true, BLOCK), (false, 32 * BLOCK)];
        actions.into_iter().flat_map(|action| requests.map(|(random, bytes)| Work { action, random, bytes })).collect()
    }

    /// As in the table.
    pub fn name(self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let action = match self.action {
            Action::Write => "write + fsync",
            Action::ReadCold => "cold read",
            Action::ReadWarm => "warm read",
        };
        format!("{action}, {order}, {} KiB", self.bytes / 1024)
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of [`MODES`]; the first is what the others are compared with.
    pub modes: Vec<Protection>,
    /// Ways of access.
    pub ways: Vec<Way>,
    /// Kinds of work.
    pub works: Vec<Work>,
    /// Size of the file, in MiB; the pool of pages holds all of it.
    pub file_mib: u64,
    /// Bytes that one measurement moves, in MiB: at most the file's.
    pub sample_mib: u64,
    /// Number of rounds, which is the number of pairs.
    pub rounds: u64,
    /// Rounds that the pools of warm reads, and of writes other than through a mount, last before they are made anew. Where the kernel puts a pool makes
    /// some hundredths, which stay as long as the pool does: at 1, each pair has pools of its own, and the interval has this in it.
    pub pool_rounds: u64,
    /// Seed of random orders and contents.
    pub seed: u64,
}

impl Plan {
    /// Memory that the pool of each mode takes: the file, what is written anew beside it, and some to spare.
    pub fn pool_bytes(&self) -> u64 {
        (self.file_mib * 5 / 4 + 64) * MIB
    }

    /// Size of each store, in MiB: a block that is written over stays until the next recovery point.
    pub fn store_mib(&self) -> u64 {
        self.file_mib * 3 / 2 + 256
    }

    /// Places, in units of requests, that the measurement of a round visits. Sequential ones go on where those of the last round ended.
    fn places(&self, work: Work, round: u64) -> Vec<u64> {
        let all = self.file_mib * MIB / work.bytes as u64;
        let count = (self.sample_mib * MIB / work.bytes as u64).min(all);
        if work.random {
            let mut places = Generator::new(&[self.seed, round]).permutation(all);
            places.truncate(count as usize);
            return places;
        }
        (0..count).map(|place| (round * count + place) % all).collect()
    }
}

/// The order of `modes` modes in a round: it moves on by one from one pair of rounds to the next, and the second round of a pair goes
/// backwards. So each mode comes first as often as any other, and as often before another as behind it.
pub fn turns(modes: usize, round: u64) -> Vec<usize> {
    let shift = (round / 2) as usize;
    let mut order: Vec<usize> = (0..modes).map(|turn| (turn + shift) % modes).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// What one measurement cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Requests made.
    pub requests: u64,
    /// CPU time of the application and, where there is one, the daemon.
    pub cpu: Duration,
    /// Of it the daemon's.
    pub daemon_cpu: Duration,
    /// Wall-clock time, fsync included.
    pub wall: Duration,
}

/// All measurements of one kind of work in one way.
#[derive(Clone, Debug)]
pub struct Row {
    /// Way of access.
    pub way: Way,
    /// Kind of work.
    pub work: Work,
    /// By mode, as in the plan, then by round.
    pub costs: Vec<Vec<Cost>>,
}

/// A store in one mode, and the file in it.
trait Subject {
    /// Opens the file.
    fn file(&self, way: Way) -> Result<Box<dyn Access>>;
    /// Makes everything durable.
    fn settle(&self) -> Result<()>;
    /// Closes the store: nothing of the file is in memory.
    fn stop(&mut self) -> Result<()>;
    /// Opens it again.
    fn start(&mut self) -> Result<()>;
    /// CPU time of the daemon so far; zero if there is none.
    fn daemon_cpu(&self) -> Result<Duration>;
    /// Pages read so far that were not in the pool.
    fn page_misses(&self) -> Result<u64>;
}

/// Drops what the kernel keeps of a store's file: on a host without direct I/O a cold read would find it there.
fn forget_pages(store: &Path) -> Result<()> {
    let file = File::open(store).at("open", store)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).at("drop the pages of", store)
}

/// Runs the plan at a site; all stores are removed at the end. `progress` gets what is being done.
///
/// # Errors
/// Those of stores and files; a warm read that was not warm, a cold one that was not cold; wrong contents.
pub fn execute(plan: &Plan, site: &Site, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let mut mounted = Vec::new();
    for mode in &plan.modes {
        progress(&format!("laying out the store in mode {mode}"));
        let store = Mounted::create(site, *mode, plan.pool_bytes())?;
        lay_out(plan, &store, Way::Mount)?;
        mounted.push(store);
    }
    let mut rows = run(plan, &mut mounted, Way::is_mounted, progress)?;
    if plan.ways.iter().all(|way| way.is_mounted()) {
        return Ok(rows);
    }
    mounted.iter_mut().try_for_each(Mounted::unmount)?;
    let stores = || mounted.iter().map(Mounted::store).zip(plan.modes.iter().copied());
    // One after the other: a store is open once, and there is memory for one pool of each mode.
    if plan.ways.iter().any(|way| way.is_embedded()) {
        let open = |(store, mode)| InProcess::open(store, mode, plan.pool_bytes());
        let mut stacks = stores().map(open).collect::<Result<Vec<_>>>()?;
        rows.extend(run(plan, &mut stacks, Way::is_embedded, progress)?);
    }
    if plan.ways.iter().any(|way| way.is_by_library()) {
        let open = |(store, mode)| ByLibrary::open(store, mode, plan.pool_bytes());
        let mut libraries = stores().map(open).collect::<Result<Vec<_>>>()?;
        rows.extend(run(plan, &mut libraries, Way::is_by_library, progress)?);
    }
    Ok(rows)
}

/// Writes the whole file.
fn lay_out(plan: &Plan, subject: &impl Subject, way: Way) -> Result<()> {
    let file = subject.file(way)?;
    let mut buffer = vec![0; MIB as usize];
    Generator::new(&[plan.seed]).fill(&mut buffer);
    for place in 0..plan.file_mib {
        stamp(&mut buffer, place * (MIB / BLOCK as u64), 0);
        file.write(&buffer, place * MIB).at("write", DATA)?;
    }
    file.sync().at("fsync", DATA)?;
    subject.settle()
}

/// The rows of the ways that these subjects have.
fn run<S: Subject>(
    plan: &Plan,
    subjects: &mut [S],
    is_theirs: fn(Way) -> bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for way in plan.ways.iter().copied().filter(|way| is_theirs(*way)) {
        for work in plan.works.iter().copied() {
            rows.push(row(plan, subjects, way, work, progress)?);
        }
    }
    Ok(rows)
}

fn row<S: Subject>(
    plan: &Plan,
    subjects: &mut [S],
    way: Way,
    work: Work,
    progress: &mut dyn FnMut(&str),
) -> Result<Row> {
    let mut buffer = vec![0; work.bytes];
    Generator::new(&[plan.seed, 1]).fill(&mut buffer);
    let mut costs = vec![Vec::new(); subjects.len()];
    for round in 0..plan.rounds {
        let places = plan.places(work, round);
        let is_warmed = match work.action {
            Action::ReadWarm => round % plan.pool_rounds == 0,
            // A pool that nobody has touched costs a page fault for each page, once. A mount's was when the file was laid out.
            Action::Write => round % plan.pool_rounds == 0 && !way.is_mounted(),
            Action::ReadCold => false,
        };
        if is_warmed {
            warm_up(plan, subjects, way, work, round, progress)?;
        }
        let misses = subjects.iter().map(Subject::page_misses).collect::<Result<Vec<u64>>>()?;
        for index in turns(subjects.len(), round) {
            progress(&format!(
                "{}, {}: round {} of {}, {}",
                way.name(),
                work.name(),
                round + 1,
                plan.rounds,
                plan.modes[index]
            ));
            costs[index].push(measure(&mut subjects[index], way, work, &places, &mut buffer, round + 1)?);
        }
        for ((subject, before), mode) in subjects.iter().zip(misses).zip(&plan.modes) {
            let missed = subject.page_misses()?.saturating_sub(before);
            if work.action == Action::ReadWarm && missed > 0 {
                let place = format!("{}, {}, {mode}", way.name(), work.name());
                return Err(Error::Usage(format!("{place}: {missed} pages of a warm read were not in the pool")));
            }
        }
    }
    Ok(Row { way, work, costs })
}

/// Reads all of the file, in all modes. In pools made anew, except in the first round: all are gone before the first comes back, so that they take
/// each other's places in memory.
fn warm_up<S: Subject>(
    plan: &Plan,
    subjects: &mut [S],
    way: Way,
    work: Work,
    round: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    if round > 0 {
        subjects.iter_mut().try_for_each(Subject::stop)?;
    }
    for index in turns(subjects.len(), round) {
        let (subject, mode) = (&mut subjects[index], plan.modes[index]);
        progress(&format!("{}, {}: reading all of the file in mode {mode}", way.name(), work.name()));
        if round > 0 {
            subject.start()?;
        }
        let whole = Plan { sample_mib: plan.file_mib, ..plan.clone() };
        let through = Work { action: Action::ReadWarm, random: false, bytes: MIB as usize };
        carry_out(&*subject.file(way)?, through, &whole.places(through, 0), &mut vec![0; MIB as usize], 0)?;
    }
    Ok(())
}

fn measure<S: Subject>(
    subject: &mut S,
    way: Way,
    work: Work,
    places: &[u64],
    buffer: &mut [u8],
    generation: u64,
) -> Result<Cost> {
    if work.action == Action::ReadCold {
        subject.stop()?;
        subject.start()?;
    }
    let file = subject.file(way)?;
    let (daemon_before, own_before, start) = (subject.daemon_cpu()?, cpu::own(), Instant::now());
    carry_out(&*file, work, places, buffer, generation)?;
    let (wall, own) = (start.elapsed(), cpu::own().saturating_sub(own_before));
    let daemon_cpu = subject.daemon_cpu()?.saturating_sub(daemon_before);
    drop(file);
    match work.action {
        Action::Write => subject.settle()?,
        Action::ReadCold if subject.page_misses()? == 0 => {
            return Err(Error::Usage(format!("{}, {}: all pages were in the pool", way.name(), work.name())));
        }
        Action::ReadCold | Action::ReadWarm => {}
    }
    Ok(Cost { requests: places.len() as u64, cpu: own + daemon_cpu, daemon_cpu, wall })
}

/// The measured part.
fn carry_out(file: &dyn Access, work: Work, places: &[u64], buffer: &mut [u8], generation: u64) -> Result<()> {
    let blocks = (work.bytes / BLOCK) as u64;
    for place in places {
        let offset = place * work.bytes as u64;
        if work.action == Action::Write {
            stamp(buffer, place * blocks, generation);
            file.write(buffer, offset).at("write", DATA)?;
            continue;
        }
        file.read(buffer, offset).at("read", DATA)?;
        check_stamps(buffer, place * blocks).map_err(|(expected, got)| Error::WrongContents {
            path: DATA.into(),
            offset,
            expected,
            got,
        })?;
    }
    if work.action == Action::Write { file.sync().at("fsync", DATA) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
