//! Prints what each scheme loses by each mishap.

use clap::Parser;
use holdfast_lab::schemes::{markdown, renewed, run};
use std::error::Error;
use std::path::Path;

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
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flashlog-table.md");
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, renewed(&text, &table).ok_or("docs/flashlog-table.md has no place for the table")?)?;
    }
    Ok(())
}
