//! `holdfast-bench-flashlog`: Flashlog on modelled devices.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::Result;
use holdfast_bench::flashlog::{Bench, Load, Log, Setup, Sizes, backup_table, backups, tables};
use holdfast_bench::program::{self, Progress};

/// Compares Flashlog, with a stick or an SSD for a log and in both modes, with disk, stick and SSD alone: all modelled, in simulated
/// time. Rates, how long a disk's motor runs while something is recorded, and wear; the same on every machine.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench-flashlog", version, max_term_width = 100)]
struct Arguments {
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/flashlog-speed.md")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    program::end("holdfast-bench-flashlog", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    let preamble = format!("Command: `{}`", program::command_line());
    println!("{preamble}\n");
    let progress = Progress::default();
    let mut results = Vec::new();
    for load in Load::RATES.into_iter().chain(Load::AWAKE) {
        for setup in Setup::ALL {
            progress.say(&format!("{}, {}", load.name(), setup.name()));
            results.push((load, setup, Bench::new(setup, Sizes::default())?.run(load)?));
        }
    }
    progress.say("backups");
    let backups = [backups(Log::Stick, Sizes::default())?, backups(Log::Ssd, Sizes::default())?];
    drop(progress);
    let measured = format!("{}\n{}", tables(&results.into_iter().collect()), backup_table(&backups));
    program::publish(arguments.write.as_deref(), &preamble, &measured)
}
