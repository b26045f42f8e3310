//! Random actions on the whole stack, compared with the model after each. Exit code 1 at the first difference.

use clap::Parser;
use holdfast_lab::soak::{Options, run};
use std::process::ExitCode;

/// Runs random actions by seed on a store in memory and compares the whole tree with a model.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs, each with the next seed.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Actions in a run.
    #[arg(long, default_value_t = Options::default().steps)]
    steps: usize,
    /// Size of the store in blocks of 4 KiB; 512 and more.
    #[arg(long, default_value_t = Options::default().blocks)]
    blocks: u64,
    /// Page frames in the pool.
    #[arg(long, default_value_t = Options::default().frames)]
    frames: u32,
    /// Nodes in the tree, about.
    #[arg(long, default_value_t = Options::default().nodes)]
    nodes: usize,
    /// Largest file in bytes, about.
    #[arg(long, default_value_t = Options::default().file_bytes)]
    file_bytes: u64,
    /// Compares after so many actions.
    #[arg(long, default_value_t = Options::default().compare_each)]
    compare_each: usize,
    /// Remounts after about so many actions.
    #[arg(long, default_value_t = Options::default().remount_each)]
    remount_each: usize,
    /// Makes or deletes a snapshot after about so many actions; 0: never.
    #[arg(long, default_value_t = Options::default().snapshot_each)]
    snapshot_each: usize,
    /// Threads that act at once, each in a directory of its own.
    #[arg(long, default_value_t = 1)]
    threads: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { seed, runs, steps, threads, .. } = arguments;
    let Arguments { blocks, frames, nodes, file_bytes, compare_each, remount_each, snapshot_each, .. } = arguments;
    for seed in seed..seed.saturating_add(runs) {
        let sizes = Options { seed, steps, blocks, frames, nodes, file_bytes, ..Options::default() };
        let options = Options { compare_each, remount_each, snapshot_each, threads, ..sizes };
        match run(options) {
            Ok(report) => println!(
                "seed {seed}: {steps} actions, {} remounts, {} snapshots, {} ticks with an epoch, {} refused for want of \
                 space",
                report.remounts, report.snapshots, report.ticks, report.no_space
            ),
            Err(failure) => {
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
