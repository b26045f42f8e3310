//! Flips bits of the page pool while loads run, and counts what comes of it.

use clap::Parser;
use holdfast_integrity::{IS_BLIND, Protection};
use holdfast_lab::campaign::{
    Daemon, FLIPS, MODES, Options, PLACE, Row, Targets, broken, hung, markdown, trial, trial_anywhere, unmet,
};
use holdfast_lab::load::Load;
use holdfast_lab::sources::commit;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    #[arg(long, value_delimiter = ',', default_value = MODES)]
    modes: Vec<Protection>,
    /// Trials at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    at_once: u64,
    /// Write the table to docs/protection.md
    #[arg(long, conflicts_with_all = ["sums", "anywhere"])]
    write: bool,
    /// Flip checksums of pages only, which bits seldom hit where all are as likely
    #[arg(long)]
    sums: bool,
    /// Flip what is not the page pool, in a daemon
    #[arg(long, conflicts_with_all = ["sums", "at_once"])]
    anywhere: bool,
    /// With --anywhere: a directory for the store
    #[arg(long, default_value = "target/flips")]
    dir: PathBuf,
    /// With --anywhere: the holdfast binary [default: beside this program]
    #[arg(long)]
    holdfast: Option<PathBuf>,
}

fn main() -> ExitCode {
    campaign(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("flip-campaign: {error}");
        ExitCode::FAILURE
    })
}

fn campaign(arguments: &Arguments) -> Result<ExitCode, String> {
    let &Arguments { trials, seconds, seed, at_once, write, sums, anywhere, .. } = arguments;
    let commit = commit();
    let modes = &arguments.modes;
    let daemon = anywhere.then(|| daemon(&arguments.dir, arguments.holdfast.clone())).transpose();
    let daemon = daemon.map_err(|error| error.to_string())?;
    println!("seed {seed}, {trials} trials of {seconds} s of each load in each mode");
    if IS_BLIND {
        println!("VERIFICATION IS SWITCHED OFF: this must fail");
    }
    let rows =
        Load::ALL.iter().flat_map(|&load| modes.iter().map(move |&mode| Row { load, mode, outcomes: Vec::new() }));
    let rows: Vec<Row> = rows.collect();
    // The modes take turns, so that whatever else the machine does meets all of them.
    let to_do: Vec<(u64, usize)> =
        (0..trials).flat_map(|number| (0..rows.len()).map(move |row| (number, row))).collect();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(rows));
    let time = Duration::from_secs_f64(seconds);
    let try_all = || -> Result<(), String> {
        while let Some(&(number, row)) = to_do.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (load, mode) = {
                let rows = rows.lock();
                (rows[row].load, rows[row].mode)
            };
            let targets = if sums { Targets::Sums } else { Targets::All };
            let options = Options { load, mode, targets, time, seed: seed + number };
            let outcome = match &daemon {
                None => trial(&options),
                Some(daemon) => trial_anywhere(&options, daemon),
            };
            let outcome = outcome.map_err(|error| format!("{load}, {mode}, seed {}: {error}", options.seed))?;
            if outcome.hung {
                eprintln!("\r{load}, {mode}, seed {}: hung", options.seed);
            }
            let mut rows = rows.lock();
            rows[row].outcomes.push(outcome);
            let done: usize = rows.iter().map(|row| row.outcomes.len()).sum();
            eprint!("\r{done} of {} trials", to_do.len());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(try_all)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a trial panicked".to_string())?)
    })?;
    eprintln!();
    let rows = rows.into_inner();
    let table = markdown(&rows);
    print!("{table}");
    let hung = hung(&rows);
    println!("{hung} trials hung: they count as C");
    if anywhere {
        return Ok(ExitCode::SUCCESS);
    }
    let outcomes = || rows.iter().flat_map(|row| &row.outcomes);
    let (within, all) = (outcomes().map(|outcome| u64::from(outcome.within)).sum::<u64>(), outcomes().count());
    let within = format!(
        "{within} of the {} bits flipped while a thread of the load was in the middle of a step",
        all as u64 * u64::from(FLIPS)
    );
    println!("{within}");
    let broken = broken(&rows);
    println!("{broken} trials in which a mode that verifies memory let corrupt bytes out");
    let unmet = unmet(&rows, time);
    unmet.iter().for_each(|what| println!("{what}"));
    if write {
        let modes = modes.iter().map(Protection::to_string).collect::<Vec<_>>().join(",");
        let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
        let head = format!(
            "`flip-campaign --trials {trials} --seconds {seconds} --seed {seed} --modes {modes} --at-once {at_once} --write`{commit}: {all} trials; {within}.\n\
             Trials in which a mode that verifies memory let corrupt bytes out: {broken}. Trials that hung, which count as C: {hung}.\n\n"
        );
        PLACE.write(&format!("{head}{table}")).map_err(|error| error.to_string())?;
    }
    Ok(if broken > 0 || !unmet.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn daemon(dir: &Path, holdfast: Option<PathBuf>) -> std::io::Result<Daemon> {
    std::fs::create_dir_all(dir)?;
    let program = match holdfast {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("holdfast"),
    };
    Ok(Daemon { program, directory: dir.canonicalize()? })
}
