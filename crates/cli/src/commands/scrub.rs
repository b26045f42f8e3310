//! `holdfast scrub`: every block of a mounted store read and verified, while it is used.

use crate::args::Scrub;
use crate::failure::{Failure, Result, exit};
use crate::mounts::{self, FILE_SYSTEM};
use crate::output::{Format, print};
use crate::scrub::{ScrubCondition, ScrubReply, ScrubReport, ScrubRequest};
use holdfast_fuse::control;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How often `--wait` asks.
const PERIOD: Duration = Duration::from_millis(200);

/// Gives the exit code.
pub(crate) fn run(arguments: &Scrub, format: Format) -> Result<u8> {
    let path = mounts::resolve(&arguments.directory)?;
    let mount = mounts::containing(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM);
    let mount = mount.ok_or_else(|| {
        Failure::new(format!("{} is in no mount of a store", path.display()))
            .hint("a store that is not mounted is read by `holdfast check`")
    })?;
    let request = match arguments {
        Scrub { status: true, .. } => ScrubRequest::Status,
        Scrub { pause: true, .. } => ScrubRequest::Pause,
        Scrub { resume: true, .. } => ScrubRequest::Resume,
        Scrub { cancel: true, .. } => ScrubRequest::Cancel,
        Scrub { rate, .. } => ScrubRequest::Begin { rate_bytes_per_s: rate.unwrap_or(0) },
    };
    let mut report = ask(&mount.directory, request)?;
    if arguments.wait {
        report = wait(&mount.directory, report)?;
    }
    print(format, &report);
    let waited_in_vain = arguments.wait && report.condition != ScrubCondition::Done;
    Ok(if arguments.wait && report.is_bad() || waited_in_vain { exit::FAILED } else { exit::OK })
}

fn ask(directory: &Path, request: ScrubRequest) -> Result<ScrubReport> {
    let request = serde_json::to_vec(&request).map_err(crate::stack::says)?;
    let reply = File::open(directory).and_then(|file| control::scrub(file, &request)).map_err(|error| {
        let failure = Failure::new(format!("{} does not scrub: {}", directory.display(), mounts::plain(&error)));
        match error.kind() {
            io::ErrorKind::NotConnected => failure.hint("its daemon has died; mount the store again"),
            _ => failure,
        }
    })?;
    match serde_json::from_slice(&reply) {
        Ok(ScrubReply::Done(report)) => Ok(*report),
        Ok(ScrubReply::Refused(message)) => Err(Failure::new(message)),
        Err(error) => Err(Failure::at(directory, format!("the mount gave no answer that makes sense: {error}"))),
    }
}

/// Until the scrub runs no more. A bar on the terminal shows how far it is.
fn wait(directory: &Path, mut report: ScrubReport) -> Result<ScrubReport> {
    let style = ProgressStyle::with_template("  {bar:40} {percent}%  {msg}").map_err(crate::stack::says)?;
    // Draws on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(1000).with_style(style);
    while report.condition == ScrubCondition::Running {
        bar.set_position((report.part() * 1000.0) as u64);
        bar.set_message(report.line());
        // The mount answers at once, and does not call back.
        std::thread::sleep(PERIOD);
        report = ask(directory, ScrubRequest::Status)?;
    }
    bar.finish_and_clear();
    Ok(report)
}
