//! Prints what each protection mode makes of flipped bits.

use clap::Parser;
use holdfast_lab::protection::{PLACE, markdown, run};
use std::error::Error;

/// Flips bits of a page before it is stored, on the device and in memory, in every protection mode, reads it, and prints a table.
#[derive(Parser)]
struct Arguments {
    /// Writes the table into docs/protection.md.
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
