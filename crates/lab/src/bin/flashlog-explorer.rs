//! Explores power cuts over a Flashlog's devices: `flashlog-explorer --seed 1 --states 2000`. Exit code 0: all states are as promised;
//! 1: one is not.

use clap::Parser;
use holdfast_block::flashlog::Order;
use holdfast_lab::flashlog::{ORDERS, Options, explore};
use std::process::ExitCode;
use std::time::Duration;

/// Runs random workloads on a small Flashlog in memory, cuts the power at any request to any device (writes dropped, torn,
/// reordered, on each device by itself), also after one of them has failed for good, opens it again, and compares with every state that
/// there was.
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
    /// Actions in a life.
    #[arg(long, default_value_t = Options::default().steps)]
    steps: usize,
    /// So often the last life is lived once more, with a device that fails
    #[arg(long, default_value_t = Options::default().losses)]
    losses: usize,
    /// A mistake to be found: main-before-log, no-flush-of-main, reuse-before-label, any-generation, no-rescue or rescue-before-label.
    #[arg(long, value_parser = order, default_value = "nothing")]
    plant: Order,
    /// Prints what the last life did, and each panic where it happens.
    #[arg(long)]
    verbose: bool,
}

fn order(name: &str) -> Result<Order, String> {
    let found = ORDERS.iter().find(|(known, _)| *known == name);
    found.map(|(_, order)| *order).ok_or_else(|| format!("no such mistake: {name}"))
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
        losses: arguments.losses,
        order: arguments.plant,
    };
    let (report, failure) = explore(&options);
    let seconds = report.took.as_secs_f64();
    println!(
        "{} crash states in {seconds:.1} s ({:.0}/s): workloads {} to {}; crashes of recoveries {}; synchronous {}",
        report.states,
        report.states as f64 / seconds.max(0.001),
        options.seed,
        report.last_seed,
        report.nested,
        report.synchronous
    );
    println!(
        "main needed something of the log in {}; pages were cut off for want of data in {}; the log went around {} times; main was \
         made anew in {}",
        report.replayed, report.cut, report.rounds, report.rebuilt
    );
    let [main, log, backup] = report.lost;
    println!(
        "a device had failed: main in {main}; the log in {log}, and main was alone in {}; the backup in {backup}, and another was made \
         in {}",
        report.alone, report.copied
    );
    if let Some(failure) = &failure {
        println!("\nNOT AS PROMISED: {failure}");
        if arguments.verbose {
            failure.trace.iter().for_each(|line| println!("{line}"));
        }
    }
    if failure.is_none() && report.states < arguments.at_least {
        println!("TOO FEW: {} states explored, {} wanted", report.states, arguments.at_least);
        return ExitCode::FAILURE;
    }
    if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
