//! Explores power cuts: `crash-explorer --seed 1 --states 2000`. Exit code 0: all states are as promised; 1: one is not.

use clap::Parser;
use holdfast_lab::device::CrashMode;
use holdfast_lab::explorer::{Failure, Options, Plant, Report, explore};
use std::process::ExitCode;
use std::time::Duration;

/// Runs random workloads on a small store in memory, cuts the power anywhere (between flushes and within them; writes
/// dropped, torn, reordered), recovers, and compares with what the store promises.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first workload; the next ones have the next numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this state of the first workload.
    #[arg(long)]
    state: Option<u64>,
    /// Ends after so many states.
    #[arg(long, default_value_t = 2_000)]
    states: u64,
    /// Ends after so many seconds, if that is earlier.
    #[arg(long)]
    seconds: Option<u64>,
    /// Fail if fewer states than this were explored in the time given.
    #[arg(long, default_value_t = 0)]
    at_least: u64,
    /// Actions of a workload.
    #[arg(long, default_value_t = Options::default().steps)]
    steps: usize,
    /// Runs no actions while others are being written.
    #[arg(long)]
    no_interleave: bool,
    /// A bug to be found: missing-flush, superblock-first, reuse-at-once, bury-nothing, free-all-of-deleted, unlist-first,
    /// list-nothing or seal-first.
    #[arg(long, value_parser = plant, default_value = "nothing")]
    plant: Plant,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Prints what the workload did, and each panic where it happens.
    #[arg(long)]
    verbose: bool,
}

fn plant(name: &str) -> Result<Plant, String> {
    Plant::ALL.into_iter().find(|plant| plant.name() == name).ok_or_else(|| format!("no such bug: {name}"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.verbose {
        // A panic is a finding, and is reported as one.
        std::panic::set_hook(Box::new(|_| ()));
    }
    let options = Options {
        seed: arguments.seed,
        state: arguments.state,
        states: arguments.states,
        time: arguments.seconds.map(Duration::from_secs),
        steps: arguments.steps,
        interleave: !arguments.no_interleave,
        plant: arguments.plant,
    };
    let (report, failure) = explore(&options);
    if arguments.json {
        println!("{}", json(&report, failure.as_deref()));
    } else {
        print(&report, options.seed);
        if let Some(failure) = &failure {
            println!("\nNOT AS PROMISED: {failure}");
            if arguments.verbose {
                println!("[recorder position] after transaction: action");
                failure.trace.iter().for_each(|line| println!("{line}"));
            }
        }
    }
    if report.states < arguments.at_least {
        println!("TOO FEW: {} states explored, {} wanted", report.states, arguments.at_least);
        return ExitCode::FAILURE;
    }
    if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn print(report: &Report, first_seed: u64) {
    let seconds = report.took.as_secs_f64();
    println!(
        "{} crash states in {seconds:.1} s ({:.0}/s): workloads {first_seed} to {} with {} transactions, {} actions ran \
         during writes",
        report.states,
        report.states as f64 / seconds.max(0.001),
        report.last_seed,
        report.transactions,
        report.interleaved
    );
    let modes: Vec<String> =
        CrashMode::ALL.iter().zip(report.by_mode).map(|(mode, count)| format!("{mode:?} {count}")).collect();
    println!("{}; crashes of recoveries {}", modes.join(", "), report.nested);
    println!(
        "the intent log was replayed in {}; the tree was compared with the model in {}",
        report.replayed, report.compared_with_model
    );
    println!(
        "{} snapshots were compared with what they were made of; one was being made or deleted in {}, and a deleted one not all \
         free in {}",
        report.snapshots, report.snapshots_in_flight, report.deletions_left
    );
}

fn json(report: &Report, failure: Option<&Failure>) -> serde_json::Value {
    let modes: serde_json::Map<String, serde_json::Value> =
        CrashMode::ALL.iter().zip(report.by_mode).map(|(mode, count)| (format!("{mode:?}"), count.into())).collect();
    serde_json::json!({
        "states": report.states,
        "states_of_recoveries": report.nested,
        "workloads": report.workloads,
        "last_seed": report.last_seed,
        "modes": modes,
        "replayed": report.replayed,
        "compared_with_model": report.compared_with_model,
        "snapshots_compared": report.snapshots,
        "snapshots_in_flight": report.snapshots_in_flight,
        "deletions_left": report.deletions_left,
        "transactions": report.transactions,
        "interleaved": report.interleaved,
        "sealed": report.sealed,
        "seconds": report.took.as_secs_f64(),
        "failure": failure.map(|failure| serde_json::json!({
            "seed": failure.seed,
            "state": failure.state,
            "position": failure.crash.map(|(position, _)| position),
            "mode": failure.crash.map(|(_, mode)| format!("{mode:?}")),
            "step": failure.step,
            "what": failure.what,
            "replay": failure.replay,
        })),
    })
}
