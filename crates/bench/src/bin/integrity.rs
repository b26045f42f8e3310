//! `holdfast-bench-integrity`: what each protection mode costs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use holdfast_bench::error::{At, Error, Result};
use holdfast_bench::integrity::loads::{self, LoadPlan};
use holdfast_bench::integrity::{MODES, Plan, Way, Work, execute, load_tables, switch_table, tables};
use holdfast_bench::peer::Site;
use holdfast_bench::program::{self, Progress, Setting};
use holdfast_bench::{cpu, machine};
use holdfast_integrity::Protection;
use holdfast_lab::load::Load;

/// Compares the protection modes: sequential and random writes, cold and warm reads, through the mount, through its
/// checksum-aware interface, with all layers in this process, and by the library for that; loads as of a web server, a file server and a mail server; and the web
/// server by t_switch; as ratios to a store without checksums.
///
/// Needs root (it mounts), a disk with room for a store per mode, and memory for a pool per mode. What counts is the CPU
/// time of a request, application and daemon together.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench-integrity", version, max_term_width = 100)]
struct Arguments {
    /// Modes; all are compared with the first
    #[arg(long, value_delimiter = ',', default_values_t = MODES)]
    modes: Vec<Protection>,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["requests", "loads", "switch"])]
    parts: Vec<Part>,
    /// Ways to get at the file
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Way::ALL)]
    ways: Vec<Way>,
    /// A short run: a smaller file, less of it at a time
    #[arg(long)]
    quick: bool,
    /// Rounds, each of which runs every mode once; 30 pairs give the intervals that the goals ask for
    #[arg(long, default_value_t = 30)]
    rounds: u64,
    /// Size of the file, all of which is in memory for warm reads, in MiB [default: 1024, with --quick 128]
    #[arg(long)]
    file_mib: Option<u64>,
    /// Rounds that pools last, of warm reads and, in the application's process, of writes. Where the kernel puts a pool makes some hundredths, which stay
    /// as long as the pool does: 1 gives each pair pools of its own [default: a sixth of --rounds]
    #[arg(long)]
    pool_rounds: Option<u64>,
    /// How much of it one measurement reads or writes, in MiB [default: 64, with --quick 8]
    #[arg(long)]
    sample_mib: Option<u64>,
    /// Loads
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["webserver", "fileserver", "varmail"])]
    loads: Vec<Load>,
    /// Size of all files of a load, in MiB [default: 128, with --quick 16]
    #[arg(long)]
    load_mib: Option<u64>,
    /// How long the web server runs by t_switch, in seconds of wall-clock time [default: 240, with --quick 16]
    #[arg(long)]
    switch_seconds: Option<u64>,
    /// Only the kinds of requests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    setting: Setting,
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/integrity-speed.md")]
    write: Option<PathBuf>,
}

/// So many pools are made one after the other for each row, unless told otherwise: warm reads of 128 KiB through a mount in `uniform` had 0.92 to 1.18 of
/// `none` by where the pools of a run happened to be.
const POOLS: u64 = 6;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Requests of one kind, each way.
    Requests,
    /// Web server, file server, mail server.
    Loads,
    /// The web server by t_switch.
    Switch,
}

fn main() -> ExitCode {
    program::end("holdfast-bench-integrity", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    let (plan, loads) = (plan(arguments)?, load_plan(arguments)?);
    check_memory(&arguments.parts, &plan, &loads)?;
    let switch_seconds = arguments.switch_seconds.unwrap_or(if arguments.quick { 16 } else { 240 });
    let site = Site::prepare(&arguments.setting.place, plan.store_mib(), "")?;
    let preamble = format!(
        "{}\n\nStores: one for each mode; for requests of {} MiB, with a file of {} MiB, a pool of {} MiB, {} MiB \
         per measurement; for loads of {} MiB, with files of {} MiB in all, a pool of {} MiB; {} rounds, interleaved",
        program::heading(&site.dir),
        plan.store_mib(),
        plan.file_mib,
        plan.pool_bytes() >> 20,
        plan.sample_mib,
        loads.store_mib(),
        loads.files_mib,
        loads.pool_bytes() >> 20,
        plan.rounds
    );
    let cpu = cpu::stay_on_one().at("stay on one processor with", "this program")?;
    let preamble = format!("{preamble}, all on processor {cpu}");
    println!("{preamble}\n");
    let progress = Progress::default();
    let mut say = |what: &str| progress.say(what);
    let mut measured = Vec::new();
    for part in &arguments.parts {
        measured.push(match part {
            Part::Requests => tables(&plan, &execute(&plan, &site, &mut say)?),
            Part::Loads => load_tables(&loads.modes, &loads::execute(&loads, &site, &mut say)?),
            Part::Switch => switch_table(switch_seconds, &loads::sweep(&loads, &site, switch_seconds, &mut say)?),
        });
    }
    drop(progress);
    let load = format!("Load at the end: {}", machine::load());
    program::publish(arguments.write.as_deref(), &preamble, &format!("{load}\n\n{}", measured.join("\n")))
}

fn modes(arguments: &Arguments) -> Result<Vec<Protection>> {
    let modes = &arguments.modes;
    if modes.len() < 2 || (1..modes.len()).any(|index| modes[..index].contains(&modes[index])) {
        return Err(Error::Usage("--modes must name at least two, each once".to_owned()));
    }
    Ok(modes.clone())
}

fn load_plan(arguments: &Arguments) -> Result<LoadPlan> {
    let (files_mib, sample_mib) = if arguments.quick { (16, 2) } else { (128, 8) };
    let files_mib = arguments.load_mib.unwrap_or(files_mib);
    if files_mib == 0 || files_mib > 16 << 10 {
        return Err(Error::Usage("--load-mib must be from 1 to 16384".to_owned()));
    }
    Ok(LoadPlan {
        modes: modes(arguments)?,
        loads: arguments.loads.clone(),
        files_mib,
        sample_mib: sample_mib.min(files_mib),
        rounds: arguments.rounds,
        seed: arguments.setting.seed,
    })
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let (file_mib, sample_mib) = if arguments.quick { (128, 8) } else { (1024, 64) };
    let file_mib = arguments.file_mib.unwrap_or(file_mib);
    let sample_mib = arguments.sample_mib.unwrap_or(sample_mib);
    if sample_mib == 0 || sample_mib > file_mib || arguments.rounds == 0 || arguments.pool_rounds == Some(0) {
        let text = "--sample-mib must be at least 1 and at most --file-mib, --rounds and --pool-rounds at least 1";
        return Err(Error::Usage(text.to_owned()));
    }
    let is_wanted = |work: &Work| arguments.only.as_ref().is_none_or(|text| work.name().contains(text.as_str()));
    let works: Vec<Work> = Work::all().into_iter().filter(is_wanted).collect();
    if works.is_empty() {
        let names: Vec<String> = Work::all().into_iter().map(Work::name).collect();
        return Err(Error::Usage(format!("no work has that name; there are:\n  {}", names.join("\n  "))));
    }
    Ok(Plan {
        modes: modes(arguments)?,
        ways: arguments.ways.clone(),
        works,
        file_mib,
        sample_mib,
        rounds: arguments.rounds,
        pool_rounds: arguments.pool_rounds.unwrap_or(arguments.rounds.div_ceil(POOLS)),
        seed: arguments.setting.seed,
    })
}

/// Whether the pools of all modes fit into memory.
fn check_memory(parts: &[Part], plan: &Plan, loads: &LoadPlan) -> Result<()> {
    let pools_bytes = |part: &Part| match part {
        Part::Requests => plan.pool_bytes() * plan.modes.len() as u64,
        Part::Loads => loads.pool_bytes() * loads.modes.len() as u64,
        Part::Switch => loads.pool_bytes() * loads::SWEPT_MODES_MAX as u64,
    };
    let needed_mib = parts.iter().map(pools_bytes).max().unwrap_or(0) >> 20;
    match machine::available_mib() {
        Some(available) if available < needed_mib => Err(Error::Usage(format!(
            "the pools take {needed_mib} MiB and {available} MiB of memory are available: take smaller files or fewer --modes"
        ))),
        _ => Ok(()),
    }
}
