//! Fills a store, empties it, fills it again, with power cuts, by seed. Exit code 1 at the first thing that does not hold.

use clap::Parser;
use holdfast_lab::torture::{Options, Report, run};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Fills stores in memory until nothing goes in any more, deletes, fills again, with power cuts at random; each time that all is
/// deleted, the free space must be what it was.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first store; the next one has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Goes on with further seeds for so long, in seconds; without it only the one seed is run.
    #[arg(long)]
    seconds: Option<u64>,
    /// How often each store is filled and emptied.
    #[arg(long, default_value_t = 4)]
    rounds: u32,
    /// Size of the store in blocks of 4 KiB, 512 and more; by the seed if not given.
    #[arg(long)]
    blocks: Option<u64>,
    /// Page frames in the pool; by the seed if not given.
    #[arg(long)]
    frames: Option<u32>,
}

fn main() -> ExitCode {
    let Arguments { seed: first, seconds, rounds, blocks, frames } = Arguments::parse();
    let start = Instant::now();
    let end = seconds.map(|seconds| start + Duration::from_secs(seconds));
    let mut sum = Report::default();
    for seed in first.. {
        let time = end.map(|end| end.saturating_duration_since(Instant::now()));
        let options = Options {
            seed,
            blocks: blocks.unwrap_or([512, 700, 1024, 2048, 4096][(seed % 5) as usize]),
            frames: frames.unwrap_or([192, 512, 1024][(seed % 3) as usize]),
            rounds,
            time,
        };
        match run(options) {
            Ok(report) => {
                sum.rounds += report.rounds;
                sum.changes += report.changes;
                sum.refused += report.refused;
                sum.crashes += report.crashes;
                sum.files_read += report.files_read;
                sum.kept += report.kept;
                sum.given_up += report.given_up;
            }
            Err(failure) => {
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            let Report { rounds, changes, refused, crashes, files_read, kept, given_up } = sum;
            println!(
                "seeds {first} to {seed}: {rounds} times filled and emptied, {changes} changes, {refused} refused for want of \
                 space, {crashes} power cuts, {files_read} files compared, {kept} recovery points kept and checked while others were made, \
                 {given_up} given up for room"
            );
            break;
        }
    }
    ExitCode::SUCCESS
}
