//! Prints what the stack makes of each fault of each kind of block. Exit code 1 if something happens that never must.

use clap::Parser;
use holdfast_lab::faults::{markdown, run, text};
use std::path::Path;
use std::process::ExitCode;

/// Damages a small store in memory in every way, mounts, reads and changes it, and prints a table.
#[derive(Parser)]
struct Arguments {
    /// Writes the table to docs/faults.md.
    #[arg(long)]
    write: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic is a finding, and is reported as one.
    std::panic::set_hook(Box::new(|_| ()));
    let cells = match run() {
        Ok(cells) => cells,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", text(&cells));
    let wrong: usize = cells.iter().map(|cell| cell.wrong.len()).sum();
    println!("{} trials, {wrong} things wrong", cells.len());
    if arguments.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
        if let Err(error) = std::fs::write(&path, markdown(&cells)) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if wrong > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
