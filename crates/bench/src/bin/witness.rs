//! `holdfast-witness`: makes changes, notes what fsync answered, verifies after a crash that all of it is there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use holdfast_bench::error::Result;
use holdfast_bench::witness::{Journal, Unanswered, verify, write};

/// Makes changes on a file system and notes outside it what fsync answered; verifies after a crash that all of it is there.
#[derive(Debug, Parser)]
#[command(name = "holdfast-witness", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make changes until the time is up or the file system fails
    Write {
        /// A directory to be created on the file system under test
        directory: PathBuf,
        /// The journal, to be created on another file system
        journal: PathBuf,
        /// Seed of the contents
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How long, in seconds
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Errors are expected once this file exists: it is created just before the file system is made to crash
        #[arg(long)]
        crash_mark: Option<PathBuf>,
    },
    /// Compare the directory with the journal
    Verify {
        /// The directory
        directory: PathBuf,
        /// The journal
        journal: PathBuf,
        /// Accept any contents from a change that was not answered, as file systems leave them that promise nothing about
        /// such a change
        #[arg(long)]
        loose: bool,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Write { directory, journal, seed, seconds, crash_mark } => {
            make_changes(&directory, &journal, seed, seconds, crash_mark.as_deref())
        }
        Command::Verify { directory, journal, loose } => {
            compare(&directory, &journal, if loose { Unanswered::Anything } else { Unanswered::WholeOrAbsent })
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("holdfast-witness: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make_changes(
    directory: &std::path::Path,
    journal: &std::path::Path,
    seed: u64,
    seconds: f64,
    crash_mark: Option<&std::path::Path>,
) -> Result<bool> {
    let journal = Journal::create(journal, seed)?;
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(86_400));
    let outcome = write(directory, &journal, seed, duration)?;
    println!("{} changes answered", outcome.answered);
    let crashed = crash_mark.is_some_and(std::path::Path::exists);
    for error in &outcome.errors {
        println!("{}: {error}", if crashed { "after the crash" } else { "ERROR" });
    }
    Ok(crashed || outcome.errors.is_empty())
}

fn compare(directory: &std::path::Path, journal: &std::path::Path, rule: Unanswered) -> Result<bool> {
    let report = verify(directory, journal, rule)?;
    for finding in &report.findings {
        println!("BROKEN PROMISE of {}: {}", finding.actor.name(), finding.what);
    }
    let (answered, unanswered, broken) = (report.answered, report.unanswered, report.findings.len());
    println!("{answered} answered changes verified, {unanswered} unanswered, {broken} broken promises");
    Ok(report.findings.is_empty())
}
