//! What the programs that compare have in common: where they work, how they say what is being done, how they end.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::error::{self, Result};
use crate::{machine, report};
use holdfast_lab::sources;

/// Where the stores are made and with which binary.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Directory for the stores; its disk is what is measured
    #[arg(long, default_value = "target/bench")]
    pub dir: PathBuf,
    /// The holdfast binary [default: beside this program]
    #[arg(long)]
    pub holdfast: Option<PathBuf>,
}

/// Where it works, and what is random there.
#[derive(Clone, Debug, Args)]
pub struct Setting {
    /// Where it works.
    #[command(flatten)]
    pub place: Place,
    /// Seed of all that is random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// One line on a terminal that says what is being done; none elsewhere.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { shown: std::io::stderr().is_terminal() }
    }
}

impl Progress {
    /// Shows this instead of what it shows.
    pub fn say(&self, what: &str) {
        if self.shown {
            eprint!("\r\x1b[K{what}");
            let _ = std::io::stderr().flush();
        }
    }
}

/// The line is gone when the work is over, with or without an error.
impl Drop for Progress {
    fn drop(&mut self) {
        self.say("");
    }
}

/// The command line, for whoever wants to run it again.
pub fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// What every table begins with: the command, when and with which sources it ran, and on what machine, with its stores in `dir`.
pub fn heading(dir: &Path) -> String {
    let day = error::run("date", &["+%-d %B %Y"]).unwrap_or_else(|_| "an unknown day".to_owned());
    let commit = sources::commit().unwrap_or_else(|| "unknown".to_owned());
    format!("Command: `{}`\n\nOf {day}, commit {commit}\n\nMachine: {}", command_line(), machine::describe(dir))
}

/// Prints what was measured, and writes it into the document if there is one. The preamble was printed when the work began.
pub fn publish(document: Option<&Path>, preamble: &str, measured: &str) -> Result<()> {
    println!("{measured}");
    if let Some(document) = document {
        report::write_into(document, &format!("{preamble}\n\n{measured}"))?;
        println!("written to {}", document.display());
    }
    Ok(())
}

/// Says what went wrong, and tells the shell.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
