//! Main from backup and log.

use super::Error;
use super::format::{Areas, LABEL_AREA_BLOCKS, Label, Point, Role, Staging, State, Uuid};
use super::labels::Labelled;
use super::staging::Backup;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Blocks that are copied at once: 1 MiB.
const COPY_BLOCKS: u64 = 256;

/// Makes a new main device from a backup and the log: the set as it was when the old one failed. What the new device had is lost; the old
/// one is refused from then on. The next opening brings the new one from the backup's state to the log's. Gives the set's size.
///
/// # Errors
/// [`Error`] tells which device cannot be used, and why. Nothing has changed on the log then, and this can be done again.
pub fn rebuild(backup: Arc<dyn Device>, log: Arc<dyn Device>, main: Arc<dyn Device>, name: Uuid) -> Result<u64, Error> {
    let backup = Backup::open(backup)?;
    let mut log = Labelled::read(log, Role::Log)?;
    let of = backup.label().clone();
    let device: Arc<str> = backup.labels.device.name().into();
    if of.set != log.label.set {
        return Err(Error::OtherSet { device, expected: log.label.set, got: of.set });
    }
    if of.state == State::Copying {
        return Err(Error::Incomplete { device });
    }
    if of.log != log.label.log {
        let (device, role) = (log.device.name().into(), Role::Log);
        return Err(Error::Replaced { device, role, expected: of.log, got: log.label.log });
    }
    if of.backup != log.label.backup || of.applied.page < log.label.tail.page {
        return Err(Error::Gap { device, first: log.label.tail.page, needed: of.applied.page });
    }
    let (blocks, least) = (main.blocks(), of.blocks + LABEL_AREA_BLOCKS);
    if blocks < least {
        return Err(Error::TooSmall { device: main.name().into(), role: Role::Main, blocks, least });
    }
    let mut bytes = AlignedBuf::zeroed(COPY_BLOCKS as usize * BLOCK_SIZE);
    for first in (0..of.blocks).step_by(COPY_BLOCKS as usize) {
        let part = &mut bytes[..COPY_BLOCKS.min(of.blocks - first) as usize * BLOCK_SIZE];
        backup.labels.device.read(first, &mut [IoSliceMut::new(part)])?;
        main.write(first, &[IoSlice::new(part)])?;
    }
    let label = Label {
        role: Role::Main,
        state: State::Open,
        sequence: 0,
        main: name,
        device_blocks: blocks,
        areas: Areas::default(),
        applied: Point::default(),
        tail: Point::default(),
        start: 0,
        backup: Uuid::NONE,
        staging: Staging::default(),
        rebuilt: 0,
        barrier: 0,
        ..log.label.clone()
    };
    // It flushes main before it writes the label.
    Labelled::create(main, label)?;
    log.write(|label| {
        label.main = name;
        label.applied = of.applied;
        label.rebuilt = label.generation;
    })?;
    Ok(of.blocks)
}
