//! Explores power cuts over a Flashlog's devices: `flashlog-explorer --seed 1 --states 2000`. Exit code 0: all states are as promised;
//! 1: one is not.

use clap::Parser;
use holdfast_lab::budget::{Budget, headline};
use holdfast_lab::flashlog::{Options, PLANTS, PROCEDURES, Plant, explore};
use std::process::ExitCode;

/// Runs random workloads on a small Flashlog in memory, cuts the power at any request to any device (writes dropped, torn,
/// reordered, on each device by itself), also after one of them has failed for good, opens it again, and compares with every state that
/// there was.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    budget: Budget,
    /// So often the last life is lived once more, with a device that fails
    #[arg(long, default_value_t = Options::default().losses)]
    losses: usize,
    /// So often with a process that is killed, and goes on with what its devices have in their caches
    #[arg(long, default_value_t = Options::default().kills)]
    kills: usize,
    #[arg(long, value_parser = plant, default_value = "nothing", help = mistakes())]
    plant: Plant,
    /// Prints what the last life did, and each panic where it happens.
    #[arg(long)]
    verbose: bool,
}

fn mistakes() -> String {
    let names: Vec<&str> = PLANTS.iter().map(|(name, _)| *name).collect();
    format!("A mistake to be found: {}", names.join(", "))
}

fn plant(name: &str) -> Result<Plant, String> {
    let found = PLANTS.iter().find(|(known, _)| *known == name);
    found.map(|(_, plant)| *plant).ok_or_else(|| format!("no such mistake: {name}"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.verbose {
        // A panic is a finding, and is reported as one.
        std::panic::set_hook(Box::new(|_| ()));
    }
    let options =
        Options { budget: arguments.budget, losses: arguments.losses, kills: arguments.kills, plant: arguments.plant };
    let (report, failure) = explore(&options);
    println!(
        "{}; crashes of recoveries {}; synchronous {}",
        headline(report.states, report.took.as_secs_f64(), options.budget.seed, report.last_seed),
        report.nested,
        report.synchronous
    );
    println!(
        "main needed something of the log in {}; pages were cut off for want of data in {}; the log went around {} times; main was \
         made anew in {}",
        report.replayed, report.cut, report.rounds, report.rebuilt
    );
    let [once, twice, thrice] = report.killed;
    let [of_main, of_log, of_backup] = report.killed_after_loss;
    println!(
        "a process had been killed before, and another one had gone on with what it left, in {} (in {twice} two, in {thrice} three); main \
         was taken up alone in {}; main had been pulled out before in {of_main}, the log in {of_log}, the backup in {of_backup}",
        once + twice + thrice,
        report.taken_up_alone,
    );
    let [main, log, backup] = report.lost;
    println!(
        "a device had failed: main in {main}; the log in {log}, and main was alone in {}; the backup in {backup}, and another was made \
         in {}",
        report.alone, report.copied
    );
    let [main, log, backup] = report.came_back;
    println!(
        "a device had lost its power for a moment, and was waited for: main in {main}, the log in {log}, the backup in {backup}"
    );
    let [lasting, alone, new_logs] = report.lasting;
    println!(
        "a set that outlasts its log: {lasting}; main was alone in {alone}; it got a new log in {new_logs}, and it was known what \
         the backup lacked"
    );
    let procedures = PROCEDURES.iter().zip(report.procedures).map(|(name, count)| format!("{name} {count}"));
    println!("procedures that were cut off: {}", procedures.collect::<Vec<_>>().join(", "));
    if let Some(failure) = &failure {
        println!("\nNOT AS PROMISED: {failure}");
        if arguments.verbose {
            failure.trace.iter().for_each(|line| println!("{line}"));
        }
    }
    options.budget.verdict(report.states, failure.is_some())
}
