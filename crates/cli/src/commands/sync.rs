//! `holdfast sync`: everything in a mount durable, now.

use crate::args::Sync;
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM};
use crate::output::{Format, Report, print};
use crate::progress::Progress;
use holdfast_fuse::control;
use serde::Serialize;
use std::fs::File;
use std::io;

#[derive(Serialize)]
struct Synced {
    directory: String,
    /// Recovery point that has everything.
    epoch: u64,
}

impl Report for Synced {
    fn words(&self) -> String {
        format!("Everything in {} is durable (recovery point {}).\n", self.directory, self.epoch)
    }
}

pub(crate) fn run(arguments: &Sync, format: Format) -> Result<()> {
    let path = mounts::resolve(&arguments.directory)?;
    let mount = mounts::containing(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM);
    let mount = mount.ok_or_else(|| {
        Failure::new(format!("{} is in no mount of a store", path.display()))
            .hint("`holdfast status` lists what is mounted")
    })?;
    let directory = mount.directory.display().to_string();
    let synced = {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        File::open(&mount.directory).and_then(control::sync)
    };
    let epoch = synced.map_err(|error| {
        let failure = Failure::new(format!("{directory} could not be synced: {}", mounts::plain(&error)));
        match error.kind() {
            io::ErrorKind::NotConnected => failure.hint("its daemon has died; mount the store again"),
            _ => failure.hint(format!("holdfast status {directory} tells more")),
        }
    })?;
    print(format, &Synced { directory, epoch });
    Ok(())
}
