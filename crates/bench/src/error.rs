//! Errors of both programs: each names the file or command it is about.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What can go wrong in the benchmark and in the witness.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a file failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb: "open", "write", "fsync".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be started or ended with a failure.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Exit status, or why it did not start.
        status: String,
        /// What it wrote to its standard error, trimmed.
        stderr: String,
    },
    /// The file system did not become usable in time.
    #[error("{what} after {seconds} s: {detail}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: u64,
        /// What is known about the reason.
        detail: String,
    },
    /// A read returned other bytes than were written.
    #[error("{path}, offset {offset}: wrong contents, block {expected} expected, {got} found")]
    WrongContents {
        /// The file.
        path: PathBuf,
        /// Byte offset of the block.
        offset: u64,
        /// Index of the block that belongs there.
        expected: u64,
        /// Index that was found.
        got: u64,
    },
    /// A journal line that the witness cannot have written.
    #[error("{path}, line {line}: not a line of a witness journal: {text:?}")]
    Journal {
        /// The journal.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Usage(String),
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the action and the path to an I/O error: `open(path).at("open", path)?`.
pub trait At<T> {
    /// `action` is a verb.
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|e| Error::Io { action, path: path.as_ref().to_path_buf(), source: e.into() })
    }
}

/// Runs a program to its end and returns its standard output, trimmed.
pub fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program.as_ref());
    command.args(arguments);
    let failed = |status: String, stderr: &[u8]| Error::Command {
        command: format!("{} {}", program.as_ref().display(), arguments.join(" ")),
        status,
        stderr: String::from_utf8_lossy(stderr).trim().to_owned(),
    };
    let output = command.output().map_err(|e| failed(e.to_string(), &[]))?;
    if !output.status.success() {
        return Err(failed(describe(output.status), &output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit {code}"),
        None => "killed by a signal".to_owned(),
    }
}
