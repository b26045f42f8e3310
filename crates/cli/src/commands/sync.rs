//! `holdfast sync`: everything in a mount durable, now.

use crate::args::Sync;
use crate::failure::Result;
use crate::output::{Format, Report, print};
use crate::progress::Progress;
use crate::quoting;
use crate::target;
use holdfast_fuse::control;
use serde::Serialize;

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
    let epoch = {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        target::ask(&mount, "could not be synced", control::sync)?
    };
    print(format, &Synced { directory: mount.directory.display().to_string(), epoch });
    Ok(())
}
