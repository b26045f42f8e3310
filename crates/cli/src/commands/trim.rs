//! `holdfast trim`: the space that is free in a mounted store, given back to its host.

use crate::args::Trim;
use crate::failure::Result;
use crate::mounts::Mount;
use crate::output::{Format, Report, print};
use crate::progress::{Progress, Unit};
use crate::quoting;
use crate::size;
use crate::target;
use holdfast_fuse::control;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Bytes that stat(2) counts in.
const STAT_BLOCK_BYTES: u64 = 512;

#[derive(Serialize)]
struct Trimmed {
    directory: String,
    store: String,
    /// Free in the store, and discarded.
    trimmed_bytes: u64,
    /// What a store in a file takes up on its host afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated_bytes: Option<u64>,
}

impl Report for Trimmed {
    fn words(&self) -> String {
        let (trimmed, store) = (size::show(self.trimmed_bytes), quoting::name(&self.store));
        let mut text = format!("Discarded {trimmed} that are free in {store}.\n");
        if let Some(bytes) = self.allocated_bytes {
            let allocated = size::show(bytes);
            text.push_str(&format!("It takes up {allocated} of its host now, and will take more as it fills.\n"));
        }
        text
    }
}

pub(crate) fn run(arguments: &Trim, format: Format) -> Result<()> {
    let mount = target::mount(&arguments.target)?;
    let directory = mount.directory.display().to_string();
    let trimmed_bytes = discard(&mount)?;
    let file = fs::metadata(&mount.source).ok().filter(fs::Metadata::is_file);
    let allocated_bytes = file.map(|file| file.blocks() * STAT_BLOCK_BYTES);
    print(format, &Trimmed { directory, store: mount.source.display().to_string(), trimmed_bytes, allocated_bytes });
    Ok(())
}

/// Asks for one step after the other; gives how many bytes are free.
fn discard(mount: &Mount) -> Result<u64> {
    let step =
        |from_bytes| target::ask(mount, "could not be trimmed", |directory| control::trim(directory, from_bytes));
    let mut done = {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        step(0)?
    };
    let progress = Progress::of("discarding what is free", done.size_bytes, Unit::Bytes);
    let mut trimmed_bytes = done.discarded_bytes;
    while done.next_bytes < done.size_bytes {
        progress.is_at(done.next_bytes);
        done = step(done.next_bytes)?;
        trimmed_bytes = trimmed_bytes.saturating_add(done.discarded_bytes);
    }
    Ok(trimmed_bytes)
}
