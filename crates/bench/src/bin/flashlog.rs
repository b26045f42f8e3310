//! `holdfast-bench-flashlog`: Flashlog on modelled devices.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::Result;
use holdfast_bench::flashlog::{Bench, Log, PAUSE, Setup, Sizes, backup_table, backups, draw, real, tables};
use holdfast_bench::machine;
use holdfast_bench::program::{self, Progress};

/// Compares Flashlog, with a stick or an SSD for a log and in both modes, with disk, stick and SSD alone: all modelled, in simulated
/// time. Rates, how long a disk's motor runs while something is recorded, and wear; the same on every machine.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench-flashlog", version, max_term_width = 100)]
struct Arguments {
    /// Also write the tables into this document, between its marker lines, and draw the figures beside it
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/flashlog-speed.md")]
    write: Option<PathBuf>,
    /// Measure nothing: draw the figures beside this document anew, from the tables that it has
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/flashlog-speed.md")]
    #[arg(conflicts_with_all = ["write", "real"])]
    figures: Option<PathBuf>,
    /// Measure real devices in real time instead, with the processor's: files in this directory
    #[arg(long, value_name = "DIR")]
    real: Option<PathBuf>,
    /// With --real: a disk or file for main. What it has is lost
    #[arg(long, value_name = "DEVICE", requires = "real", requires = "overwrite")]
    main: Option<PathBuf>,
    /// With --real: a disk or file for the log. What it has is lost
    #[arg(long, value_name = "DEVICE", requires = "real", requires = "overwrite")]
    log: Option<PathBuf>,
    /// What is on --main and --log may be lost
    #[arg(long)]
    overwrite: bool,
    /// With --real: MiB of a load; main has four times as much, the log twice
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u64).range(16..))]
    mib: u64,
    /// With --real: how often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// With --real: seconds of a stream and of a compilation, of which there are three each; at most eight times --mib
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    steady_s: u64,
}

fn main() -> ExitCode {
    program::end("holdfast-bench-flashlog", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    if let Some(document) = &arguments.figures {
        return draw(document);
    }
    if let Some(dir) = &arguments.real {
        let machine = machine::describe(dir);
        println!("Command: `{}`. {machine}.\n", program::command_line());
        let Arguments { main, log, mib, rounds, steady_s, .. } = arguments;
        let (dir, main, log) = (dir.clone(), main.clone(), log.clone());
        let progress = Progress::default();
        let options = real::Options { dir, main, log, mib: *mib, rounds: *rounds, pause: PAUSE, steady_s: *steady_s };
        let measured = real::measure(&options, &progress)?;
        drop(progress);
        println!("{measured}");
        return Ok(());
    }
    let preamble = format!("Command: `{}`", program::command_line());
    println!("{preamble}\n");
    let progress = Progress::default();
    let mut results = Vec::new();
    for (load, setup) in Setup::runs() {
        progress.say(&format!("{}, {}", load.name(), setup.name()));
        results.push((load, setup, Bench::new(setup, Sizes::default())?.run(load)?));
    }
    progress.say("backups");
    let backups = [backups(Log::Stick, Sizes::default())?, backups(Log::Ssd, Sizes::default())?];
    drop(progress);
    let measured = format!("{}\n{}", tables(&results.into_iter().collect()), backup_table(&backups));
    program::publish(arguments.write.as_deref(), &preamble, &measured)?;
    arguments.write.as_deref().map_or(Ok(()), draw)
}
