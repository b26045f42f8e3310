//! `holdfast-aged`: what a simulated year of use does to a store.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::aged::{Plan, execute, tables};
use holdfast_bench::error::{Error, Result};
use holdfast_bench::peer::{Kind, Site};
use holdfast_bench::program::{self, Progress, Setting};

/// Ages stores by a simulated year of creating, overwriting, renaming, deleting and keeping snapshots, and compares each with a
/// fresh store with the same files: speed, metadata, fragmentation.
///
/// Needs root (it mounts, and drops the kernel's caches), and room for two stores of each file system.
#[derive(Debug, Parser)]
#[command(name = "holdfast-aged", version, max_term_width = 100)]
struct Arguments {
    /// File systems to age
    #[arg(long, value_enum, value_delimiter = ',', default_value = "holdfast,btrfs")]
    peers: Vec<Kind>,
    /// Size of each store in MiB, taken from the host at once
    #[arg(long, default_value_t = 2048)]
    store_mib: u64,
    /// Days of the year
    #[arg(long, default_value_t = 365)]
    days: u64,
    /// Rounds of measurements
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    #[command(flatten)]
    setting: Setting,
    /// Mount options for holdfast
    #[arg(long, value_name = "OPTS", default_value = "")]
    holdfast_options: String,
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/aged.md")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    program::end("holdfast-aged", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.store_mib < 64 || arguments.rounds == 0 {
        return Err(Error::Usage("--store-mib must be at least 64, --rounds at least 1".to_owned()));
    }
    let Arguments { store_mib, days, rounds, .. } = *arguments;
    let seed = arguments.setting.seed;
    let site = Site::prepare(&arguments.setting.place, store_mib, &arguments.holdfast_options)?;
    let preamble = format!(
        "{}\n\nStores: {store_mib} MiB each; {days} days, seed {seed}; {rounds} rounds, interleaved",
        program::heading(&site.dir)
    );
    println!("{preamble}\n");
    let plan = Plan { kinds: arguments.peers.clone(), site, days, rounds, seed };
    let progress = Progress::default();
    let pairs = execute(&plan, &mut |what| progress.say(what))?;
    drop(progress);
    program::publish(arguments.write.as_deref(), &preamble, &tables(&pairs))
}
