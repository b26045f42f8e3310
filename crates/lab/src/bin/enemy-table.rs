//! Damages stores as `holdfast inject` does, uses them, and prints what became of it. Exit code 1 if a promise is broken.

use clap::Parser;
use holdfast_lab::enemy::{Plan, Verdict, markdown, run, text};
use holdfast_lab::sources::commit;
use holdfast_physical::inject::BlockClass;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Damages blocks of every kind in small stores in memory, mounts, remounts, creates and reads, and prints a table.
#[derive(Parser)]
struct Arguments {
    /// The first seed: which blocks, copies and bits.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Trials in each cell: kind × fault × copies × work.
    #[arg(long, default_value_t = 8)]
    trials: u64,
    /// Only this kind of block.
    #[arg(long)]
    kind: Option<String>,
    /// Writes the table to docs/enemy.md.
    #[arg(long)]
    write: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let class = arguments.kind.as_ref().map(|kind| BlockClass::ALL.into_iter().find(|class| class.name() == kind));
    if class == Some(None) {
        eprintln!("the kinds are: {}", BlockClass::ALL.map(BlockClass::name).join(", "));
        return ExitCode::FAILURE;
    }
    // A panic is a finding, and is reported as one.
    std::panic::set_hook(Box::new(|_| ()));
    let (start, commit) = (Instant::now(), commit().unwrap_or_else(|| "unknown".to_owned()));
    let (seed, trials) = (arguments.seed, arguments.trials);
    let done = match run(&Plan { seed, trials, class: class.flatten() }) {
        Ok(done) => done,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", text(&done));
    let broken = done.iter().filter(|trial| !trial.wrong.is_empty()).count();
    let of = |verdict| done.iter().filter(|trial| trial.verdict == verdict).count();
    println!(
        "seed {seed}: {} trials in {:.1} s: {} recovered, {} errors with a place, {} older states told, {} not met; {broken} broke a promise",
        done.len(),
        start.elapsed().as_secs_f64(),
        of(Verdict::Recovered),
        of(Verdict::Error),
        of(Verdict::Older),
        of(Verdict::NotMet),
    );
    if arguments.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/enemy.md");
        let command =
            format!("cargo run --release -p holdfast-lab --bin enemy-table -- --seed {seed} --trials {trials} --write");
        if let Err(error) = std::fs::write(&path, markdown(&done, &command, &commit)) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
