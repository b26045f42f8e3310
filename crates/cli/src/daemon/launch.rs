//! Starting the daemon of a mount in the background.
//!
//! The command starts itself again (`/proc/self/exe … --foreground --report-ready`) instead of forking: a fork without exec
//! is sound only as long as no thread exists, which is easily broken by a library; a new process needs no such care,
//! and is what can also be started by hand. It tells how it goes in lines of JSON on its standard output, which is
//! a pipe to here.

use crate::args::LogLevel;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::report::StoreReport;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the daemon tells: at last whether there is a mount.
#[derive(Serialize, Deserialize)]
pub(crate) enum Told {
    /// It waits for something; in words.
    Waits(String),
    /// It does something that may take long; in words.
    Does(String),
    /// The mount can be used.
    Ready(Box<StoreReport>),
    /// It will not be.
    Failed(Failure),
}

/// A daemon to be started.
pub(crate) struct Launch<'a> {
    /// Absolute, as the directory is.
    pub(crate) store: &'a Path,
    pub(crate) directory: &'a Path,
    pub(crate) options: &'a [String],
    /// Where the log of its Flashlog is: absolute.
    pub(crate) log: Option<&'a Path>,
    /// How long it may wait for whoever has the store and shows no sign of life.
    pub(crate) timeout: Duration,
    pub(crate) log_level: Option<LogLevel>,
    /// It can be damaged on purpose while it is used.
    pub(crate) lab: bool,
}

impl Launch<'_> {
    /// Starts the daemon and waits until the mount can be used; `waits` is told what for if it takes long.
    pub(crate) fn run(&self, waits: &mut dyn FnMut(&str)) -> Result<StoreReport> {
        let log = super::log::path(self.store);
        // Without a log the mount is still worth having.
        let errors = log.as_deref().and_then(|path| super::log::open(path).ok()).map_or_else(Stdio::null, Stdio::from);
        let mut child = Command::new("/proc/self/exe")
            .arg0("holdfast")
            .args(self.arguments())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start the daemon: {error}")))?;
        let pipe = child.stdout.take().map(BufReader::new);
        // An error is as good as no answer.
        let lines = pipe.into_iter().flat_map(|pipe| pipe.lines().map_while(std::io::Result::ok));
        let progress = Progress::unknown("opening the store");
        for line in lines {
            match serde_json::from_str(&line) {
                Ok(Told::Waits(text)) => progress.suspended(|| waits(&text)),
                Ok(Told::Does(text)) => progress.says(text),
                Ok(Told::Ready(report)) => return Ok(*report),
                Ok(Told::Failed(failure)) => {
                    let _ = child.wait();
                    return Err(failure);
                }
                Err(_) => break,
            }
        }
        let how = child.wait().map(|status| status.to_string()).unwrap_or_default();
        let failure = Failure::new(format!("the daemon ended before the mount could be used ({how})"));
        Err(match log {
            Some(log) => failure.hint(format!("its log: {}", log.display())),
            None => failure,
        })
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["mount", "--foreground", "--report-ready"].map(OsString::from).into();
        arguments.extend(["--timeout".into(), self.timeout.as_secs().to_string().into()]);
        arguments.extend(self.lab.then(|| "--lab".into()));
        if let Some(level) = self.log_level {
            arguments.extend(["--log-level", level.name()].map(OsString::from));
        }
        for list in self.options {
            arguments.extend([OsString::from("-o"), OsString::from(list)]);
        }
        if let Some(path) = self.log {
            // Behind what the user gave, which may be relative.
            let mut option = OsString::from("log=");
            option.push(path);
            arguments.extend([OsString::from("-o"), option]);
        }
        arguments.extend(["--".into(), self.store.into(), self.directory.into()]);
        arguments
    }
}

/// Tells the command that started this daemon. An error says that it is gone.
pub(crate) fn tell(told: &Told) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
