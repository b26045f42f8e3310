//! Explores power cuts: `crash-explorer --seed 1 --states 2000`. Exit code 0: all states are as promised; 1: one is not.

use clap::Parser;
use holdfast_lab::budget::{Budget, headline};
use holdfast_lab::device::CrashMode;
use holdfast_lab::explorer::{Failure, Options, Plant, Report, explore};
use std::process::ExitCode;

/// Runs random workloads on a small store in memory, cuts the power anywhere (between flushes and within them; writes
/// dropped, torn, reordered), recovers, and compares with what the store promises.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    budget: Budget,
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
    let options = Options { budget: arguments.budget, interleave: !arguments.no_interleave, plant: arguments.plant };
    let (report, failure) = explore(&options);
    if arguments.json {
        println!("{}", json(&report, failure.as_deref()));
    } else {
        print(&report, options.budget.seed);
        if let Some(failure) = &failure {
            println!("\nNOT AS PROMISED: {failure}");
            if arguments.verbose {
                println!("[recorder position] after transaction: action");
                failure.trace.iter().for_each(|line| println!("{line}"));
            }
        }
    }
    options.budget.verdict(report.states, failure.is_some())
}

fn print(report: &Report, first_seed: u64) {
    println!(
        "{} with {} transactions, {} actions ran during writes",
        headline(report.states, report.took.as_secs_f64(), first_seed, report.last_seed),
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
