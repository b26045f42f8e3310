//! Flips bits of the page pool while loads run, and counts what comes of it.

use clap::Parser;
use holdfast_integrity::{IS_BLIND, Protection};
use holdfast_lab::campaign::{Daemon, Options, Row, Targets, broken, markdown, trial, trial_anywhere, unmet};
use holdfast_lab::load::Load;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Sixteen random bits of the page pool and of its pages' checksums flip while loads like filebench's run; then everything is read back. Exit code 1 if a mode that
/// promises otherwise let corrupt bytes be read or stored, if a load did nothing, or if no page was read by the strong checksum in a
/// dynamic whose time is within a trial. With --anywhere they flip in a mounted store's daemon, in all of its
/// memory but that pool, which nobody promises anything about: this counts what comes of it. It mounts, so it needs root.
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
    /// Modes, separated by commas; dynamic goes over to its strong checksum within a trial
    #[arg(long, value_delimiter = ',', default_value = "disk,dynamic=3,uniform")]
    modes: Vec<Protection>,
    /// Flip checksums of pages only, which bits seldom hit where all are as likely
    #[arg(long)]
    sums: bool,
    /// Flip what is not the page pool, in a daemon
    #[arg(long, conflicts_with = "sums")]
    anywhere: bool,
    /// With --anywhere: a directory for the store
    #[arg(long, default_value = "target/flips")]
    dir: PathBuf,
    /// With --anywhere: the holdfast binary [default: beside this program]
    #[arg(long)]
    holdfast: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { trials, seconds, seed, modes, sums, anywhere, dir, holdfast } = Arguments::parse();
    let daemon = match anywhere.then(|| daemon(dir, holdfast)).transpose() {
        Ok(daemon) => daemon,
        Err(error) => {
            eprintln!("flip-campaign: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut rows: Vec<Row> = Vec::new();
    let (mut done, total) = (0, trials * modes.len() as u64 * Load::ALL.len() as u64);
    println!("seed {seed}, {trials} trials of {seconds} s of each load in each mode");
    if IS_BLIND {
        println!("VERIFICATION IS SWITCHED OFF: this must fail");
    }
    for load in Load::ALL {
        rows.extend(modes.iter().map(|&mode| Row { load, mode, outcomes: Vec::new() }));
    }
    // The modes take turns, so that whatever else the machine does meets all of them.
    for number in 0..trials {
        for row in &mut rows {
            let time = Duration::from_secs_f64(seconds);
            let targets = if sums { Targets::Sums } else { Targets::All };
            let options = Options { load: row.load, mode: row.mode, targets, time, seed: seed + number };
            let outcome = match &daemon {
                None => trial(&options),
                Some(daemon) => trial_anywhere(&options, daemon),
            };
            match outcome {
                Ok(outcome) => row.outcomes.push(outcome),
                Err(error) => {
                    eprintln!("{}, {}, seed {}: {error}", row.load, row.mode, seed + number);
                    return ExitCode::FAILURE;
                }
            }
            done += 1;
            eprint!("\r{done} of {total} trials");
        }
    }
    eprintln!();
    print!("{}", markdown(&rows));
    if anywhere {
        return ExitCode::SUCCESS;
    }
    let broken = broken(&rows);
    println!("{broken} trials in which a mode that verifies memory let corrupt bytes out");
    let unmet = unmet(&rows, Duration::from_secs_f64(seconds));
    unmet.iter().for_each(|what| println!("{what}"));
    if broken > 0 || !unmet.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn daemon(dir: PathBuf, holdfast: Option<PathBuf>) -> std::io::Result<Daemon> {
    std::fs::create_dir_all(&dir)?;
    let program = match holdfast {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("holdfast"),
    };
    Ok(Daemon { program, directory: dir.canonicalize()? })
}
