//! Flashlog on modelled devices, in simulated time: after the thesis's chapter 6.2.
//!
//! Disk, stick and SSD are those of [`holdfast_lab::device::timed`]; time passes only while they work, so that the figures are those of the devices and
//! the order of requests, the same on every machine. A thread serves main, in the same time. What the processor needs is in [`real`].

mod awake;
mod backups;
mod figures;
mod loads;
mod naive;
pub mod real;
mod store;
mod tables;
#[cfg(test)]
mod tests;

pub use backups::{backup_table, backups};
pub use figures::draw;
pub use loads::{Load, Measured, PAUSE};
pub use tables::tables;

use holdfast_block::flashlog::{self, CatchUp, Create, Flashlog, Mode, Options, Uuid};
use holdfast_block::{Device, MemoryDevice};
use holdfast_lab::device::timed::{
    Disk, DiskOptions, Model, Pace, Ssd, SsdOptions, Stick, StickOptions, Timed, Virtual,
};
use std::io::IoSlice;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};

/// Blocks of 4 KiB in a MiB.
pub(crate) const MIB_BLOCKS: u64 = 256;

/// How large devices and loads are, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of main.
    pub main: u64,
    /// Of the log.
    pub log: u64,
    /// Data of a load: more than memory holds back, less than the log.
    pub load: u64,
    /// Scattered requests lie in so much.
    pub area: u64,
    /// Scattered requests of 4 KiB; a stick alone takes minutes for them.
    pub scattered: u64,
    /// Seconds of a stream, of a compilation and of work with pauses.
    pub steady_s: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        let [main, log, load, area] = [1024, 256, 192, 768].map(|mib| mib * MIB_BLOCKS);
        Sizes { main, log, load, area, scattered: 2000, steady_s: 600 }
    }
}

/// What a load runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setup {
    /// A disk alone.
    Disk,
    /// A stick alone.
    Stick,
    /// An SSD alone.
    Ssd,
    /// A disk, and this log.
    Flashlog(Log, Mode),
    /// A disk and a stick in asynchronous mode, where main catches up by a rule.
    Ruled(Rule),
    /// A stick with the layout of [`naive::Naive`].
    Naive,
}

/// When main catches up beside when the log is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// When nothing was written for 30 s.
    Idle,
    /// When what it lacks is two minutes old.
    Age,
}

impl Rule {
    fn catch_up(self) -> CatchUp {
        match self {
            Rule::Idle => CatchUp { idle_after: Some(Duration::from_secs(30)), age_most: None },
            Rule::Age => CatchUp { idle_after: None, age_most: Some(Duration::from_secs(120)) },
        }
    }
}

/// What is the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Log {
    /// A stick.
    Stick,
    /// An SSD.
    Ssd,
}

impl Setup {
    /// All that are compared.
    pub const ALL: [Setup; 7] = [
        Setup::Disk,
        Setup::Stick,
        Setup::Ssd,
        Setup::Flashlog(Log::Stick, Mode::Synchronous),
        Setup::Flashlog(Log::Stick, Mode::Asynchronous),
        Setup::Flashlog(Log::Ssd, Mode::Synchronous),
        Setup::Flashlog(Log::Ssd, Mode::Asynchronous),
    ];

    /// Those with a disk whose motor may stop.
    pub const AWAKE: [Setup; 7] = [
        Setup::Disk,
        Setup::Flashlog(Log::Stick, Mode::Synchronous),
        Setup::Flashlog(Log::Stick, Mode::Asynchronous),
        Setup::Ruled(Rule::Idle),
        Setup::Ruled(Rule::Age),
        Setup::Flashlog(Log::Ssd, Mode::Synchronous),
        Setup::Flashlog(Log::Ssd, Mode::Asynchronous),
    ];
    /// Those with a stick that wears.
    pub const WEAR: [Setup; 4] = [
        Setup::Stick,
        Setup::Naive,
        Setup::Flashlog(Log::Stick, Mode::Synchronous),
        Setup::Flashlog(Log::Stick, Mode::Asynchronous),
    ];

    /// What is run, once each.
    pub fn runs() -> Vec<(Load, Setup)> {
        let scattered = Load::RECORDS.iter().flat_map(|blocks| [Load::Reads(*blocks), Load::Scattered(*blocks)]);
        let rates = Load::RATES.into_iter().chain(scattered).flat_map(|load| Setup::ALL.map(|setup| (load, setup)));
        let awake = Load::AWAKE.into_iter().flat_map(|load| Setup::AWAKE.map(|setup| (load, setup)));
        let wear = Load::WEAR.into_iter().flat_map(|load| Setup::WEAR.map(|setup| (load, setup)));
        let mut all: Vec<(Load, Setup)> = Vec::new();
        for run in rates.chain(awake).chain(wear) {
            if !all.contains(&run) {
                all.push(run);
            }
        }
        all
    }

    /// Its log, and how it is used.
    fn of_set(self) -> Option<(Log, Mode, CatchUp)> {
        match self {
            Setup::Flashlog(log, mode) => Some((log, mode, CatchUp::default())),
            Setup::Ruled(rule) => Some((Log::Stick, Mode::Asynchronous, rule.catch_up())),
            Setup::Disk | Setup::Stick | Setup::Ssd | Setup::Naive => None,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Setup::Ruled(Rule::Idle) => "the same, idle_after 30 s",
            Setup::Ruled(Rule::Age) => "the same, age_most 120 s",
            Setup::Naive => "naive log on a stick",
            Setup::Disk => "disk",
            Setup::Stick => "stick",
            Setup::Ssd => "SSD",
            Setup::Flashlog(Log::Stick, Mode::Synchronous) => "Flashlog, stick, sync",
            Setup::Flashlog(Log::Stick, Mode::Asynchronous) => "Flashlog, stick, async",
            Setup::Flashlog(Log::Ssd, Mode::Synchronous) => "Flashlog, SSD, sync",
            Setup::Flashlog(Log::Ssd, Mode::Asynchronous) => "Flashlog, SSD, async",
        }
    }
}

/// A setup put together.
pub struct Bench {
    clock: Arc<Virtual>,
    device: Arc<dyn Device>,
    /// Main, or the only device.
    main: Arc<Timed>,
    log: Option<Arc<Timed>>,
    flashlog: Option<Arc<Flashlog>>,
    /// Main is served by them: one writes to it, one reads from the log.
    servers: Vec<JoinHandle<()>>,
    sizes: Sizes,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.flashlog.iter().for_each(|flashlog| flashlog.end_main());
        for server in self.servers.drain(..) {
            // Its panic has been told where it was.
            let _ = self.clock.away(|| server.join());
        }
    }
}

impl Bench {
    /// Used devices: every block has been written before.
    pub fn new(setup: Setup, sizes: Sizes) -> Result<Bench> {
        let clock = Arc::new(Virtual::default());
        let timed = |blocks, model| used(blocks, model, &clock);
        let main = match setup {
            Setup::Disk | Setup::Flashlog(..) | Setup::Ruled(_) => timed(sizes.main, AnyModel::Disk)?,
            Setup::Stick => timed(sizes.main, AnyModel::Stick)?,
            Setup::Naive => timed(sizes.log, AnyModel::Stick)?,
            Setup::Ssd => timed(sizes.main, AnyModel::Ssd)?,
        };
        let Some((log, mode, catch_up)) = setup.of_set() else {
            let device: Arc<dyn Device> = match setup {
                Setup::Naive => Arc::new(naive::Naive::new(main.clone(), sizes.main)),
                _ => main.clone(),
            };
            return Ok(Bench { clock, device, main, log: None, flashlog: None, servers: Vec::new(), sizes });
        };
        let log = timed(sizes.log, if log == Log::Stick { AnyModel::Stick } else { AnyModel::Ssd })?;
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        flashlog::create(main.clone(), log.clone(), &names).map_err(of_set)?;
        let pace = clock.clone();
        let now = Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_nanos(pace.now_ns()));
        let options = Options { mode, now, catch_up, timer: clock.clone(), ..Options::default() };
        let (device, _opened) = Flashlog::open(main.clone(), log.clone(), &options).map_err(of_set)?;
        let flashlog = Arc::new(device);
        let serve = |serve: fn(&Flashlog)| {
            let (guest, served, time) = (clock.guest(), flashlog.clone(), clock.clone());
            std::thread::spawn(move || guest.begin(&time, || serve(&served)))
        };
        let servers = vec![serve(Flashlog::serve_main), serve(Flashlog::serve_reads)];
        Ok(Bench { clock, device: flashlog.clone(), main, log: Some(log), flashlog: Some(flashlog), servers, sizes })
    }

    /// As after a pause, in which main catches up.
    fn settle(&self) -> Result<()> {
        self.flashlog.as_ref().map_or(Ok(()), |flashlog| flashlog.settle()).map_err(of_device)
    }
}

enum AnyModel {
    Disk,
    Stick,
    Ssd,
}

fn used(blocks: u64, model: AnyModel, clock: &Arc<Virtual>) -> Result<Arc<Timed>> {
    let below = Arc::new(MemoryDevice::new(blocks));
    let timed = |model: Box<dyn Model>| Arc::new(Timed::new(below, model, clock.clone()));
    let device = match model {
        AnyModel::Disk => timed(Box::new(Disk::new(DiskOptions::new(blocks)))),
        AnyModel::Stick => timed(Box::new(Stick::new(StickOptions::default()))),
        AnyModel::Ssd => timed(Box::new(Ssd::new(SsdOptions::default()))),
    };
    let zeros = vec![0; (MIB_BLOCKS as usize) << 12];
    for first in (0..blocks).step_by(MIB_BLOCKS as usize) {
        device.write(first, &[IoSlice::new(&zeros)]).map_err(of_device)?;
    }
    Ok(device)
}

fn of_set(error: flashlog::Error) -> Error {
    Error::Usage(format!("a Flashlog: {error}"))
}

fn of_device(error: holdfast_block::Error) -> Error {
    Error::Usage(format!("a device: {error}"))
}
