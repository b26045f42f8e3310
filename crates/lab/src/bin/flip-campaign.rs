//! Flips bits of the page pool while loads run, and counts what comes of it.

use clap::Parser;
use holdfast_integrity::Protection;
use holdfast_lab::campaign::{Load, Options, Row, markdown, trial};
use std::process::ExitCode;
use std::time::Duration;

/// Sixteen random bits of the page pool flip while loads like filebench's run; then everything is read back. Exit code 1 if a mode that
/// promises otherwise let corrupt bytes be read or stored.
#[derive(Parser)]
struct Arguments {
    /// Trials of each load in each mode
    #[arg(long, default_value_t = 100)]
    trials: u64,
    /// Length of each trial, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seed of the first trial
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Modes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "disk,dynamic,uniform")]
    modes: Vec<Protection>,
    /// Verification switched off: what promises most runs without it, and must fail
    #[arg(long)]
    plant: bool,
}

fn main() -> ExitCode {
    let Arguments { trials, seconds, seed, modes, plant } = Arguments::parse();
    let mut rows: Vec<Row> = Vec::new();
    let (mut done, total) = (0, trials * modes.len() as u64 * Load::ALL.len() as u64);
    println!("seed {seed}, {trials} trials of {seconds} s of each load in each mode");
    for load in Load::ALL {
        rows.extend(modes.iter().map(|&mode| Row { load, mode, outcomes: Vec::new() }));
    }
    // The modes take turns, so that whatever else the machine does meets all of them.
    for number in 0..trials {
        for row in &mut rows {
            let mode = if plant && promises(row.mode) { Protection::None } else { row.mode };
            let time = Duration::from_secs_f64(seconds);
            match trial(&Options { load: row.load, mode, time, seed: seed + number }) {
                Ok(outcome) => row.outcomes.push(outcome),
                Err(error) => {
                    eprintln!("{}, {mode}, seed {}: {error}", row.load, seed + number);
                    return ExitCode::FAILURE;
                }
            }
            done += 1;
            eprint!("\r{done} of {total} trials");
        }
    }
    eprintln!();
    print!("{}", markdown(&rows));
    let broken = rows.iter().filter(|row| promises(row.mode));
    let broken = broken.flat_map(|row| &row.outcomes).filter(|outcome| outcome.read || outcome.written).count();
    println!("{broken} trials in which a mode that verifies memory let corrupt bytes out");
    if broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Whether a mode says that corrupt bytes of the pool are neither read nor stored.
fn promises(mode: Protection) -> bool {
    !matches!(mode, Protection::None | Protection::Disk)
}
