//! Flips bits on the devices of a Flashlog, and makes blocks unreadable: `flashlog-flips --seed 1 --trials 100`. Exit code 0: as promised; 1: not.

use clap::Parser;
use holdfast_lab::flashlog::flips::{Hits, broken, markdown, run};
use std::process::ExitCode;

/// Flips bits of labels, pages and data on main, log and backup, of a set at rest or in use, or makes them unreadable until they are written
/// again, and prints what is read, what is told, what is refused, what is copied on, and what can be got back.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first trial of each row; the next ones have the next numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Trials of each row.
    #[arg(long, default_value_t = 100)]
    trials: u64,
    /// A mistake to be found: blocks that cannot be read are taken for zeros.
    #[arg(long)]
    plant: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let hits = if arguments.plant { Hits::Planted } else { Hits::Promised };
    let rows = match run(arguments.seed, arguments.trials, hits) {
        Ok(rows) => rows,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", markdown(&rows));
    let broken = broken(&rows);
    broken.iter().for_each(|what| println!("NOT AS PROMISED: {what}"));
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
