//! Prints what each protection mode makes of flipped bits.

use clap::Parser;
use holdfast_lab::protection::{markdown, run};
use std::error::Error;
use std::path::Path;

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
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protection.md");
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(
            &path,
            holdfast_lab::protection::renewed(&text, &table).ok_or("docs/protection.md has no place for the table")?,
        )?;
    }
    Ok(())
}
