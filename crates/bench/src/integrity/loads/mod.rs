//! Loads like those of servers, through the mount, one thread each.
//!
//! | load | a round | files |
//! |---|---|---|
//! | webserver | opens and reads ten files, appends to a log | 16 KiB |
//! | fileserver | creates and writes one, appends to one, reads one, deletes one, looks at one | 128 KiB |
//! | varmail | deletes one, creates one with fsync, reads one and appends to it with fsync, reads one | 16 KiB |
//! | oltp | reads twenty pages, writes five, an fsync; opens and closes the file for each of them | one |
//!
//! A measurement ends when everything is durable, so that it has the CPU time of all that it wrote.

mod files;

use std::time::{Duration, Instant};

use holdfast_integrity::Protection;
use holdfast_lab::load::Load;

use self::files::Files;
use super::mounted::Mounted;
use super::{Cost, MIB, Subject, turns};
use crate::cpu;
use crate::error::Result;
use crate::peer::Site;

/// How often a load goes round in one measurement, for each MiB that is to be moved.
fn rounds_per_mib(load: Load) -> u64 {
    match load {
        Load::Webserver => 6,
        Load::Fileserver => 4,
        Load::Varmail => 15,
        Load::Oltp => 10,
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The first is what the others are compared with.
    pub modes: Vec<Protection>,
    /// Which loads.
    pub loads: Vec<Load>,
    /// All files of a load together, in MiB; the pool of pages holds them.
    pub files_mib: u64,
    /// About what one measurement moves, in MiB.
    pub sample_mib: u64,
    /// Number of rounds, which is the number of pairs.
    pub rounds: u64,
    /// Seed of sizes and orders.
    pub seed: u64,
}

impl LoadPlan {
    /// Memory that the pool of each mode takes: the files, what takes their place until the next recovery point, and some to spare.
    pub fn pool_bytes(&self) -> u64 {
        (self.files_mib * 2 + 128) * MIB
    }

    /// Size of each store, in MiB.
    pub fn store_mib(&self) -> u64 {
        self.files_mib * 3 + 512
    }
}

/// All measurements of one load.
#[derive(Clone, Debug)]
pub struct LoadRow {
    /// Which load.
    pub load: Load,
    /// By mode, as in the plan, then by round.
    pub costs: Vec<Vec<Cost>>,
}

/// A mount with the files of one load.
struct Busy {
    mounted: Mounted,
    files: Files,
}

impl Busy {
    fn create(plan: &LoadPlan, site: &Site, load: Load, mode: Protection) -> Result<Busy> {
        let site = Site { store_mib: plan.store_mib(), ..site.clone() };
        let mounted = Mounted::create(&site, mode, plan.pool_bytes())?;
        let files = Files::create(mounted.root(), load, plan.files_mib * MIB, plan.seed)?;
        mounted.settle()?;
        Ok(Busy { mounted, files })
    }

    fn measure(&mut self, rounds: u64) -> Result<Cost> {
        let (daemon_before, own_before, start) = (self.mounted.daemon_cpu()?, cpu::own(), Instant::now());
        let requests = self.files.run(rounds)?;
        let own = cpu::own().saturating_sub(own_before);
        self.mounted.settle()?;
        let wall = start.elapsed();
        let daemon_cpu = self.mounted.daemon_cpu()?.saturating_sub(daemon_before);
        Ok(Cost { requests, cpu: own + daemon_cpu, daemon_cpu, wall })
    }
}

/// Runs the loads at a site, one after the other, each in all modes in turn.
///
/// # Errors
/// Those of stores and files; wrong contents.
pub fn execute(plan: &LoadPlan, site: &Site, progress: &mut dyn FnMut(&str)) -> Result<Vec<LoadRow>> {
    let mut rows = Vec::new();
    for load in plan.loads.iter().copied() {
        progress(&format!("{load}: making its files"));
        let busy: Result<Vec<Busy>> = plan.modes.iter().map(|mode| Busy::create(plan, site, load, *mode)).collect();
        let mut busy = busy?;
        let mut costs = vec![Vec::new(); busy.len()];
        for round in 0..plan.rounds {
            for index in turns(busy.len(), round) {
                progress(&format!("{load}: round {} of {}, {}", round + 1, plan.rounds, plan.modes[index]));
                costs[index].push(busy[index].measure(rounds_per_mib(load) * plan.sample_mib)?);
            }
        }
        rows.push(LoadRow { load, costs });
    }
    Ok(rows)
}

/// What the webserver costs by t_switch: figure 9 of the Z²FS paper.
#[derive(Clone, Debug)]
pub struct SwitchRow {
    /// The mode: none, `dynamic` by t_switch, then [`BESIDE`].
    pub mode: Protection,
    /// By round, over the whole time.
    pub costs: Vec<Cost>,
    /// The share of pages read from the pool that had been there for longer than t_switch.
    pub switched: f64,
}

/// The parts of the run time that t_switch is, from the strong checksum at once to never in this run.
const SWITCHES: [(u64, u64); 7] = [(0, 1), (1, 8), (1, 4), (1, 2), (3, 4), (7, 8), (1, 1)];

/// What the paper draws beside them: the checksum of memory throughout, and the strong one end to end.
const BESIDE: [Protection; 2] = [Protection::Static { strong: false }, Protection::EndToEnd(Protection::STRONG)];

/// How many modes [`sweep`] mounts at most: without checksums, and each of these.
pub const SWEPT_MODES_MAX: usize = 1 + SWITCHES.len() + BESIDE.len();

/// Runs the webserver for `seconds` of wall-clock time, without checksums, in `dynamic` with several t_switch, and in the two modes that the paper draws
/// beside them, all in turn: so their pages grow old together. The rows are as long as that time allows, whatever the plan's rounds.
///
/// # Errors
/// As [`execute`].
pub fn sweep(plan: &LoadPlan, site: &Site, seconds: u64, progress: &mut dyn FnMut(&str)) -> Result<Vec<SwitchRow>> {
    let t_switch = |(parts, of): (u64, u64)| u32::try_from(seconds * parts / of).unwrap_or(u32::MAX);
    let dynamic = SWITCHES.into_iter().map(|part| Protection::Dynamic { t_switch_s: t_switch(part) });
    let mut modes: Vec<Protection> = dynamic.collect();
    modes.dedup();
    modes.insert(0, Protection::None);
    modes.extend(BESIDE);
    progress("webserver by t_switch: making its files");
    let busy: Result<Vec<Busy>> = modes.iter().map(|mode| Busy::create(plan, site, Load::Webserver, *mode)).collect();
    let mut busy = busy?;
    let counters = |busy: &[Busy]| -> Result<Vec<(u64, u64)>> {
        let of = |one: &Busy| Ok((one.mounted.counter("pages_switched")?, one.mounted.counter("page_hits")?));
        busy.iter().map(of).collect()
    };
    let before = counters(&busy)?;
    let mut costs = vec![Vec::new(); busy.len()];
    let (start, whole) = (Instant::now(), Duration::from_secs(seconds));
    for round in 0.. {
        if start.elapsed() >= whole {
            break;
        }
        progress(&format!("webserver by t_switch: {} of {seconds} s", start.elapsed().as_secs()));
        for index in turns(busy.len(), round) {
            costs[index].push(busy[index].measure(rounds_per_mib(Load::Webserver) * plan.sample_mib)?);
        }
    }
    let shares = counters(&busy)?.into_iter().zip(before).map(|((switched, hits), (switched_before, hits_before))| {
        (switched - switched_before) as f64 / (hits - hits_before).max(1) as f64
    });
    let rows = modes.into_iter().zip(costs).zip(shares);
    Ok(rows.map(|((mode, costs), switched)| SwitchRow { mode, costs, switched }).collect())
}
