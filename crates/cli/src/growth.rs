//! Making a store larger: what a mount can be asked, what it answers, and the work itself, mounted or not.

use crate::disks::Disks;
use crate::failure::{Failure, Result};
use crate::report::SpaceFigures;
use crate::size;
use crate::stack::{Stack, says};
use holdfast_block::flashlog::Protection;
use holdfast_block::{BLOCK_SIZE, FileDevice};
use holdfast_object::Error;
use holdfast_physical::DEVICE_BLOCKS_MAX;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How large a store is to be, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NewSize {
    /// In all.
    To(u64),
    /// More than now.
    By(u64),
}

/// Reads `20G`, or `+5G` for so much more.
pub(crate) fn parse(text: &str) -> std::result::Result<NewSize, String> {
    match text.trim().strip_prefix('+') {
        Some(more) => size::parse(more).map(NewSize::By),
        None => size::parse(text).map(NewSize::To),
    }
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct GrowRequest {
    /// Nothing: as large as the file or disk has become.
    pub(crate) size: Option<NewSize>,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GrowReply {
    Done(Grown),
    Refused(Failure),
}

/// What a store was and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Grown {
    pub(crate) before_bytes: u64,
    pub(crate) size_bytes: u64,
    /// For new data.
    pub(crate) available_bytes: u64,
    /// Whether the host has set all of it aside.
    pub(crate) allocated: bool,
    /// There is a backup, of the size before: the next one needs more room.
    #[serde(default)]
    pub(crate) backup_outgrown: bool,
    /// Of a store on a Flashlog: main is without its log, which left for a moment, or was not there before.
    #[serde(default)]
    pub(crate) without_log: bool,
}

/// Makes a store larger that is open.
pub(crate) fn grow(stack: &Stack, disks: &Disks, request: &GrowRequest) -> Result<Grown> {
    let device = &**disks.main();
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let before_bytes = stack.module.blocks() * BLOCK;
    let wanted_bytes = match request.size {
        None => None,
        Some(NewSize::To(bytes)) => Some(bytes),
        Some(NewSize::By(bytes)) => Some(before_bytes.saturating_add(bytes)),
    };
    let blocks = match wanted_bytes {
        None => 0,
        Some(bytes) if bytes / BLOCK > DEVICE_BLOCKS_MAX => {
            let max = size::show(DEVICE_BLOCKS_MAX.saturating_mul(BLOCK));
            return Err(Failure::usage(format!("a store of {} is too large: the most is {max}", size::show(bytes))));
        }
        // Zero would ask for what is there.
        Some(bytes) => (bytes / BLOCK).max(1),
    };
    let blocks = stack.cache.grow(blocks).map_err(|error| refused(&error, device, before_bytes, wanted_bytes))?;
    let size_bytes = blocks * BLOCK;
    match wanted_bytes {
        Some(bytes) if bytes / BLOCK > blocks => {
            let message =
                format!("{} more is too little: a store grows by 128 KiB at least", size::show(bytes - size_bytes));
            Err(Failure::usage(message))
        }
        _ => Ok(Grown {
            before_bytes,
            size_bytes,
            available_bytes: SpaceFigures::from(&stack.status().space).available_bytes,
            allocated: device.is_reserved(),
            backup_outgrown: size_bytes > before_bytes && disks.has_backup(),
            without_log: disks
                .set()
                .is_some_and(|set| !matches!(set.in_use.lasting.protection(), Protection::Protected)),
        }),
    }
}

fn refused(error: &Error, device: &FileDevice, before_bytes: u64, wanted_bytes: Option<u64>) -> Failure {
    match error {
        Error::Smaller { .. } => {
            Failure::usage(format!("the store has {} already, and cannot become smaller", size::show(before_bytes)))
        }
        // The device could not be made larger; nothing has changed.
        Error::Device(fault) if fault.operation == "grow" => {
            let store = Path::new(holdfast_block::Device::name(device));
            let wanted = wanted_bytes.unwrap_or(before_bytes);
            let failure =
                Failure::new(format!("{} cannot have {}: {}", store.display(), size::show(wanted), fault.cause));
            match crate::commands::create::room(store) {
                _ if device.is_disk() => failure.hint("enlarge the disk or partition first"),
                Some(room) if room < wanted.saturating_sub(before_bytes) => {
                    failure.hint(format!("{} are free on its host", size::show(room)))
                }
                _ => failure,
            }
        }
        error => says(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_all_or_more_than_now() {
        assert_eq!(parse("20G"), Ok(NewSize::To(20 << 30)));
        assert_eq!(parse("+512M"), Ok(NewSize::By(512 << 20)));
        assert!(parse("+").is_err() && parse("-1G").is_err() && parse("++1G").is_err());
    }
}
