//! Prints what each scheme loses by each mishap.

use clap::Parser;
use holdfast_lab::schemes::{PLACE, markdown, run};
use std::error::Error;

/// Lets everything happen that table 6.12 of the Flashlog thesis names to a disk, a mirror, a backup, snapshots and a Flashlog, gets back what
/// can be got back, and prints a table.
#[derive(Parser)]
struct Arguments {
    /// Writes the table into docs/flashlog-table.md.
    #[arg(long)]
    write: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let table = markdown(&run()?);
    print!("{table}");
    if arguments.write {
        PLACE.write(&table)?;
    }
    Ok(())
}
