//! `holdfast sync`: everything in a mount durable, now.

use crate::args::Sync;
use crate::failure::{Failure, Result};
use crate::given_up::NotStored;
use crate::mounts::{self, Mount};
use crate::output::{Format, Report, count, print};
use crate::paths::shell;
use crate::progress::Progress;
use crate::quoting;
use crate::report::StoreReport;
use crate::target;
use holdfast_fuse::control;
use serde::Serialize;
use std::io;

#[derive(Serialize)]
struct Synced {
    directory: String,
    /// Recovery point that has everything.
    epoch: u64,
}

impl Report for Synced {
    fn words(&self) -> String {
        format!("Everything in {} is durable (recovery point {}).\n", quoting::name(&self.directory), self.epoch)
    }
}

pub(crate) fn run(arguments: &Sync, format: Format) -> Result<()> {
    let mount = target::mount(&arguments.target)?;
    let synced = {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        target::ask(&mount, "could not be synced", |file| match control::sync(file) {
            Err(error) if control::is_io_error(&error) => Ok(Err(error)),
            synced => synced.map(Ok),
        })?
    };
    // Which pages are not stored is told of each once, but it stays so.
    let report = super::status::look(&mount);
    let pages = report.pages_bad();
    match synced {
        Ok(epoch) if pages == 0 => {
            print(format, &Synced { directory: mount.directory.display().to_string(), epoch });
            Ok(())
        }
        Err(error) if pages == 0 => Err(not_synced(&mount, &error)),
        _ => Err(not_stored(&mount, pages, report)),
    }
}

fn not_synced(mount: &Mount, error: &io::Error) -> Failure {
    Failure::new(format!("{}: not all of it could be stored: {}", mount.directory.display(), mounts::plain(error)))
        .hint(format!("holdfast status {} tells more", shell(&mount.directory)))
}

/// Some of what was written is not on the disk.
fn not_stored(mount: &Mount, pages: u64, report: StoreReport) -> Failure {
    let directory = mount.directory.display();
    let pages = count(pages, "page went bad in memory and is", "pages went bad in memory and are");
    let files = report.not_stored.iter().flat_map(NotStored::lines).collect::<Vec<_>>().join("; ");
    let files = if files.is_empty() { files } else { format!(": {files}") };
    let log = report.daemon.and_then(|daemon| daemon.log).map(|log| format!(", which its log names: {log}"));
    Failure::new(format!("{directory}: {pages} not on the disk{files}; everything else is"))
        .hint(format!("write the files again{}", log.unwrap_or_default()))
}
