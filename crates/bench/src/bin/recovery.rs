//! `holdfast-recovery`: how long it takes to recover from a flipped bit.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::{At, Error, Result};
use holdfast_bench::program::{self, Progress};
use holdfast_bench::recovery::{execute, table};
use holdfast_bench::{cpu, machine};
use holdfast_integrity::Protection;

/// Measures a cold read, a warm read and a write with fsync of one block of 4 KiB, with and without a flipped bit, and where the time goes.
#[derive(Debug, Parser)]
#[command(name = "holdfast-recovery", version, max_term_width = 100)]
struct Arguments {
    /// Modes; flips are measured in those that notice them
    #[arg(long, value_delimiter = ',', default_values_t = MODES)]
    modes: Vec<Protection>,
    /// Rounds, each of which does everything once
    #[arg(long, default_value_t = 101)]
    rounds: u64,
    /// Directory for the stores; its disk is what is measured
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Also write the table into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/recovery.md")]
    write: Option<PathBuf>,
}

const MODES: [Protection; 6] = [
    Protection::None,
    Protection::Disk,
    Protection::Static { strong: false },
    Protection::Dynamic { t_switch_s: Protection::T_SWITCH_DEFAULT_S },
    Protection::Uniform,
    Protection::UniformBlake3,
];

fn main() -> ExitCode {
    program::end("holdfast-recovery", measure(&Arguments::parse()))
}

fn measure(arguments: &Arguments) -> Result<()> {
    if arguments.rounds == 0 {
        return Err(Error::Usage("--rounds must be at least 1".to_owned()));
    }
    std::fs::create_dir_all(&arguments.dir).at("create", &arguments.dir)?;
    let cpu = cpu::stay_on_one().at("stay on one processor with", "this program")?;
    let preamble =
        format!("{}\n\nMedians of {} rounds, on processor {cpu}", program::heading(&arguments.dir), arguments.rounds);
    println!("{preamble}\n");
    let progress = Progress::default();
    let rows = execute(&arguments.dir, &arguments.modes, arguments.rounds, &mut |what| progress.say(what))?;
    drop(progress);
    let measured = format!("Load at the end: {}\n\n{}", machine::load(), table(&rows));
    program::publish(arguments.write.as_deref(), &preamble, &measured)
}
