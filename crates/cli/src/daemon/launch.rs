//! Starting the daemon of a mount in the background.
//!
//! The command starts itself again (`/proc/self/exe … --foreground --report-ready`) instead of forking: a fork without exec
//! is sound only as long as no thread exists, which is easily broken by a library; a new process needs no such care,
//! and is what can also be started by hand. It tells how it went in one line of JSON on its standard output, which is
//! a pipe to here.

use crate::args::LogLevel;
use crate::failure::{Failure, Result};
use crate::report::StoreReport;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the daemon tells, once.
#[derive(Serialize, Deserialize)]
enum Told {
    /// The mount can be used.
    Ready(Box<StoreReport>),
    /// It will not be.
    Failed(Failure),
}

/// Starts the daemon and waits until the mount can be used. Paths are absolute.
pub(crate) fn launch(
    store: &Path,
    directory: &Path,
    options: &[String],
    log_level: Option<LogLevel>,
) -> Result<StoreReport> {
    let log = super::log::path(store);
    // Without a log the mount is still worth having.
    let errors = log.as_deref().and_then(|path| super::log::open(path).ok()).map_or_else(Stdio::null, Stdio::from);
    let mut arguments: Vec<OsString> = ["mount", "--foreground", "--report-ready"].map(OsString::from).into();
    if let Some(level) = log_level {
        arguments.extend(["--log-level", level.name()].map(OsString::from));
    }
    for list in options {
        arguments.extend([OsString::from("-o"), OsString::from(list)]);
    }
    arguments.extend(["--".into(), store.into(), directory.into()]);
    let mut child = Command::new("/proc/self/exe")
        .arg0("holdfast")
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start the daemon: {error}")))?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        // An error is as good as no answer.
        let _ = BufReader::new(pipe).read_line(&mut line);
    }
    match serde_json::from_str(&line) {
        Ok(Told::Ready(report)) => Ok(*report),
        Ok(Told::Failed(failure)) => {
            let _ = child.wait();
            Err(failure)
        }
        Err(_) => {
            let how = child.wait().map(|status| status.to_string()).unwrap_or_default();
            let failure = Failure::new(format!("the daemon ended before the mount could be used ({how})"));
            Err(match log {
                Some(log) => failure.hint(format!("its log: {}", log.display())),
                None => failure,
            })
        }
    }
}

/// Tells the command that started this daemon. An error says that it is gone.
pub(crate) fn tell(outcome: std::result::Result<&StoreReport, &Failure>) -> std::io::Result<()> {
    let told = match outcome {
        Ok(report) => Told::Ready(Box::new(report.clone())),
        Err(failure) => Told::Failed(failure.clone()),
    };
    let mut line = serde_json::to_vec(&told)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
