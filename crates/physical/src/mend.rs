//! Labels and rings put right when a store is opened, before anything else is written, and when it is closed.
//!
//! Invariant: afterwards, unless the store is read-only, all four labels are the same, all hold the newest superblock, and
//! no slot of a ring is damaged. A power cut leaves torn superblocks; were they left, a second attempt at the same epoch
//! that is cut off too could complete one of the first attempt, whose blocks it has overwritten.

use crate::disk::Disk;
use crate::format::label::LabelState;
use crate::format::superblock::{ring_block, slot};
use crate::format::{LABELS, Label, RING_SLOTS, Superblock};
use crate::open::{read_labels, read_rings};
use holdfast_object::Result;
use std::collections::BTreeSet;

/// A block to be replaced, with what is to be there.
pub(crate) struct Bad {
    pub(crate) address: u64,
    pub(crate) good: [u8; 4096],
    /// The good bytes are from another copy: it is not a torn superblock of an epoch that never became a recovery point.
    is_copy: bool,
    /// The slot of a ring, if no label says anything of what is in it.
    unknown_slot: Option<u64>,
    pub(crate) what: String,
}

/// Replaces damaged copies and counts them as repaired; in a store that is read-only they are counted as not repaired. Gives the
/// number of slots in which no label has anything good. Such a slot was of a recovery point long gone, or of one that never became one
/// because the power failed, or of one newer than `newest`: nothing else tells of that.
///
/// # Errors
/// None for a failed write: that latches the disk.
pub(crate) fn mend(disk: &Disk, label: &Label, newest: &Superblock) -> Result<u64> {
    let bad = find(disk, label, newest)?;
    if bad.is_empty() {
        return Ok(0);
    }
    let unknown: BTreeSet<u64> = bad.iter().filter_map(|bad| bad.unknown_slot).collect();
    for slot in &unknown {
        let (device, epoch) = (disk.name(), newest.epoch);
        tracing::error!(
            device,
            slot,
            epoch,
            "no label has a good superblock in this slot: a newer recovery point may be lost"
        );
    }
    for bad in bad {
        let (device, block, what) = (disk.name(), bad.address, &bad.what);
        if bad.is_copy {
            tracing::warn!(device, block, %what, "a damaged copy");
            disk.repair(block, &bad.good, &disk.place(block));
            if disk.read_only().is_some() {
                disk.counters.unrepaired(block);
            }
        } else if disk.read_only().is_none() {
            // The latch tells of a failure.
            let _ = disk.write_blocks([(block, &bad.good)]);
        }
    }
    if disk.read_only().is_none() {
        let _ = disk.flush();
    }
    Ok(unknown.len() as u64)
}

/// What of labels and rings is not as it should be. Nobody writes superblocks meanwhile.
pub(crate) fn find(disk: &Disk, label: &Label, newest: &Superblock) -> Result<Vec<Bad>> {
    let mut bad = bad_labels(disk, label)?;
    bad.extend(bad_superblocks(disk, label, newest)?);
    Ok(bad)
}

fn bad_labels(disk: &Disk, label: &Label) -> Result<Vec<Bad>> {
    let mut bad = Vec::new();
    for (number, (address, state)) in read_labels(disk.device(), label.blocks)?.into_iter().enumerate() {
        let what = match state {
            LabelState::Valid(found) if found == *label => continue,
            LabelState::Valid(found) => format!("label {number} has a size of {} blocks", found.blocks),
            LabelState::Damaged(fault) => format!("label {number}: {fault}"),
            LabelState::OtherVersion(version) => format!("label {number}: format version {version}"),
            LabelState::Foreign => format!("label {number} is not there"),
        };
        bad.push(Bad { address, good: label.encode(number), is_copy: true, unknown_slot: None, what });
    }
    Ok(bad)
}

/// Slots with damage, and those in which the newest superblock is missing. What another slot held is taken from the other rings;
/// where none has it, the slot is marked as not in use.
fn bad_superblocks(disk: &Disk, label: &Label, newest: &Superblock) -> Result<Vec<Bad>> {
    let rings = read_rings(disk.device(), label)?;
    let mut bad = Vec::new();
    for at in 0..RING_SLOTS {
        let in_slot = || rings.iter().filter(move |(_, of, _)| *of == at);
        let valid = in_slot().filter_map(|(.., state)| state.as_ref().ok()?.as_ref());
        let best = match at == slot(newest.epoch) {
            true => Some(newest),
            false => valid.max_by_key(|superblock| superblock.epoch),
        };
        let is_unknown = in_slot().all(|(.., state)| state.is_err());
        for (number, _, state) in in_slot() {
            let what = match state {
                Err(fault) => format!("superblock in slot {at} of label {number}: {fault}"),
                Ok(found) if at == slot(newest.epoch) && found.as_ref() != Some(newest) => {
                    format!("label {number} does not have the superblock of epoch {}", newest.epoch)
                }
                Ok(_) => continue,
            };
            debug_assert!(*number < LABELS);
            let unused = || Superblock::unused(label, *number, at);
            let good = best.map_or_else(unused, |superblock| superblock.encode(*number));
            let unknown_slot = is_unknown.then_some(at);
            let address = ring_block(*number, at, label.blocks);
            bad.push(Bad { address, good, is_copy: best.is_some(), unknown_slot, what });
        }
    }
    Ok(bad)
}
