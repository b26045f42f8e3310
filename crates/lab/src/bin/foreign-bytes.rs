//! Stores with foreign bytes behind good checksums, by seed. Exit code 1 if one of them made the code panic.

use clap::Parser;
use holdfast_lab::foreign::{Pool, random, sample, try_edits};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Changes structures of a store in memory, makes all checksums fit again, and does everything that can be done with such a
/// store. Nothing may panic or hang.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first store; the next one has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Goes on with further seeds for so long, in seconds; without it only the one seed is run.
    #[arg(long)]
    seconds: Option<u64>,
    /// Writes what makes it panic into files in this directory, one for each place where it does.
    #[arg(long)]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { seed: first, seconds, keep } = Arguments::parse();
    let image = sample().expect("the sample can be made");
    let pool = Pool::new(&image);
    let start = Instant::now();
    let end = seconds.map(|seconds| start + Duration::from_secs(seconds));
    let (mut runs, mut opened, mut answered, mut errors) = (0u64, 0u64, 0, 0);
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first.. {
        let edits = random(&image, &pool, &mut Pcg64Mcg::seed_from_u64(seed));
        runs += 1;
        match try_edits(&image, &edits, &format!("seed {seed}")) {
            Ok(seen) => {
                opened += u64::from(seen.opened);
                answered += seen.answered;
                errors += seen.errors;
            }
            Err(failure) => {
                // Panics of one place say different numbers.
                let place: String = failure.what.chars().take(120).filter(|sign| !sign.is_ascii_digit()).collect();
                let line = failure.what.lines().next().unwrap_or("").to_string();
                let key = if line.contains("panicked at") { line } else { place };
                if *failures.entry(key.clone()).and_modify(|count| *count += 1).or_insert(1) == 1 {
                    println!("seed {seed}: {}\n{}", failure.what, failure.edits);
                    if let Some(directory) = &keep {
                        let text = format!("# {}\n{}", failure.what.replace('\n', "\n# "), failure.edits);
                        std::fs::write(directory.join(format!("{seed}.edits")), text).expect("the file can be written");
                    }
                }
            }
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            println!(
                "{runs} stores from seed {first} on, {opened} opened, {answered} requests answered, {errors} errors, {:.0} s",
                start.elapsed().as_secs_f64()
            );
            break;
        }
    }
    for (place, count) in &failures {
        println!("{count} times: {place}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
