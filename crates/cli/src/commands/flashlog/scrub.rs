//! `holdfast flashlog scrub`: by the server or mount of the set, or by opening the set here.

use super::absolute;
use super::attach::{devices_of, server_of};
use crate::args::FlashlogScrub;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::scrub::{self, ScrubReport};
use crate::flashlog::sets;
use crate::output::{Format, print};
use crate::progress::Progress;
use std::path::PathBuf;

pub(super) fn run(arguments: &FlashlogScrub, format: Format) -> Result<u8> {
    let report = scrub(arguments)?;
    print(format, &report);
    Ok(if report.is_good() { exit::OK } else { exit::UNWELL })
}

fn scrub(arguments: &FlashlogScrub) -> Result<ScrubReport> {
    let FlashlogScrub { which, backup, log_only } = arguments;
    let backup: Option<PathBuf> = backup.as_ref().map(|path| absolute(path)).transpose()?;
    let server = server_of(which)?;
    let _shown = Progress::unknown("comparing");
    if let Some(server) = server {
        return server.scrub(backup, *log_only);
    }
    let (main, log) = devices_of(which)?;
    if backup.is_none() && !log_only {
        return Err(Failure::usage("the set is not served, so it is not known where its backup is")
            .hint("say where: --backup DEVICE; or --log-only, if it is not at hand"));
    }
    sets::mend(main, log, |set| scrub::run(set, backup.as_deref()))
}
