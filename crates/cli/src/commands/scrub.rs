//! `holdfast scrub`: every block of a mounted store read and verified, while it is used.

use crate::args::Scrub;
use crate::failure::{Failure, Result, exit};
use crate::mounts::Mount;
use crate::output::{Format, print};
use crate::paths::shell;
use crate::progress::{Progress, Unit};
use crate::scrub::{ScrubCondition, ScrubReply, ScrubReport, ScrubRequest};
use crate::{stack, target};
use holdfast_fuse::control;

/// Of a whole scrub, for the bar.
const PARTS: u64 = 1000;

/// Gives the exit code.
pub(crate) fn run(arguments: &Scrub, format: Format) -> Result<u8> {
    let mount = target::mount(&arguments.target).map_err(|failure| match stack::is_store(&arguments.target) {
        true => Failure {
            hint: Some(format!("to read it as it is: holdfast check {}", shell(&arguments.target))),
            ..failure
        },
        false => failure,
    })?;
    let request = match arguments {
        Scrub { status: true, .. } => ScrubRequest::Status,
        Scrub { pause: true, .. } => ScrubRequest::Pause,
        Scrub { resume: true, .. } => ScrubRequest::Resume,
        Scrub { cancel: true, .. } => ScrubRequest::Cancel,
        Scrub { rate, .. } => ScrubRequest::Begin { rate_bytes_per_s: *rate },
    };
    let mut report = ask(&mount, request)?;
    if arguments.wait {
        report = wait(&mount, report)?;
    }
    print(format, &report);
    Ok(match report.condition {
        _ if !arguments.wait => exit::OK,
        // As `status` says it.
        _ if report.has_losses() => exit::UNWELL,
        ScrubCondition::Done => exit::OK,
        _ => exit::FAILED,
    })
}

fn ask(mount: &Mount, request: ScrubRequest) -> Result<ScrubReport> {
    let request = serde_json::to_vec(&request).map_err(stack::says)?;
    let reply = target::ask(mount, "could not be asked about a scrub", |file| control::scrub(file, &request))?;
    match serde_json::from_slice(&reply) {
        Ok(ScrubReply::Done(report)) => Ok(*report),
        Ok(ScrubReply::Refused(message)) => Err(Failure::new(message)),
        Err(error) => Err(Failure::at(&mount.directory, format!("the mount gave no answer that makes sense: {error}"))),
    }
}

/// Until the scrub runs no more. A bar on the terminal shows how far it is.
fn wait(mount: &Mount, mut report: ScrubReport) -> Result<ScrubReport> {
    let progress = Progress::of("scrubbing", PARTS, Unit::Parts);
    while report.condition == ScrubCondition::Running {
        progress.is_at((report.part() * PARTS as f64) as u64);
        progress.says(format!("scrub: {}", report.line()));
        progress.pause();
        report = ask(mount, ScrubRequest::Status)?;
    }
    Ok(report)
}
