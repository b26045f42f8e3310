//! Labels and rings put right when a store is opened, before anything else is written, and when it is closed.
//!
//! Invariant: afterwards, unless the store is read-only, all four labels are the same, all hold the newest superblock, and
//! no slot of a ring is damaged. A power cut leaves torn superblocks; were they left, a second attempt at the same epoch
//! that is cut off too could complete one of the first attempt, whose blocks it has overwritten.
//!
//! What is good by itself is overwritten by what memory says only if another copy on the device says the same. Each opening refuses two superblocks
//! of one epoch that differ, and two labels that do in more than the size of the store. So if one is not what an open store knows, either that has
//! gone bad or somebody else has written to the device, and the other copies tell which.

use crate::difference;
use crate::disk::Disk;
use crate::format::label::LabelState;
use crate::format::superblock::{ring_block, slot};
use crate::format::{LABELS, Label, RING_SLOTS, Superblock};
use crate::open::{read_labels, read_rings};
use crate::sealed::Sealed;
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
/// As [`find`]. None for a failed write: that latches the disk.
pub(crate) fn mend(disk: &Disk, known: &Sealed) -> Result<u64> {
    let bad = find(disk, known)?;
    if bad.is_empty() {
        return Ok(0);
    }
    let unknown: BTreeSet<u64> = bad.iter().filter_map(|bad| bad.unknown_slot).collect();
    for slot in &unknown {
        let (device, epoch) = (disk.name(), known.epoch());
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

/// Looks, where what is looked for goes bad in memory meanwhile.
const LOOKS_MAX: u32 = 3;

/// What of labels and rings is not as it should be. Nobody writes superblocks meanwhile.
///
/// # Errors
/// [`holdfast_object::Error::Corrupt`]: there is a good one that is not as it is known. Or what is known has gone bad in memory, again and again.
pub(crate) fn find(disk: &Disk, known: &Sealed) -> Result<Vec<Bad>> {
    let mut looks = 1;
    loop {
        let (label, newest) = known.both(disk)?;
        let bad = find_by(disk, &label, &newest);
        match known.check_held(disk, &label, &newest) {
            Ok(()) => return bad,
            Err(error) if looks == LOOKS_MAX => return Err(error),
            Err(_) => looks += 1,
        }
    }
}

fn find_by(disk: &Disk, label: &Label, newest: &Superblock) -> Result<Vec<Bad>> {
    let mut bad = bad_labels(disk, label)?;
    bad.extend(bad_superblocks(disk, label, newest)?);
    Ok(bad)
}

fn bad_labels(disk: &Disk, label: &Label) -> Result<Vec<Bad>> {
    let mut bad = Vec::new();
    let labels = read_labels(disk.device(), label.blocks)?;
    let is_told = labels.iter().any(|(_, state)| matches!(state, LabelState::Valid(found) if found == label));
    for (number, (address, state)) in labels.into_iter().enumerate() {
        let what = match state {
            LabelState::Valid(found) if found == *label => continue,
            LabelState::Valid(found) => {
                let same = Label { blocks: found.blocks, ..label.clone() };
                match difference::unless_equal("label", &same.encode(number), &found.encode(number)) {
                    Ok(()) => format!("label {number} has a size of {} blocks", found.blocks),
                    Err(fault) if is_told => format!("label {number} is another one: {fault}"),
                    Err(fault) => return Err(fault.at(disk.place(address))),
                }
            }
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
        let is_told = in_slot().any(|(.., state)| matches!(state, Ok(Some(found)) if found == newest));
        for (number, _, state) in in_slot() {
            let address = ring_block(*number, at, label.blocks);
            let what = match state {
                Ok(Some(found)) if found.epoch == newest.epoch => {
                    match difference::unless_equal("superblock", &newest.encode(*number), &found.encode(*number)) {
                        Ok(()) => continue,
                        Err(fault) if is_told => format!("superblock in slot {at} of label {number}: {fault}"),
                        Err(fault) => return Err(fault.at(disk.place(address))),
                    }
                }
                Err(fault) => format!("superblock in slot {at} of label {number}: {fault}"),
                Ok(_) if at == slot(newest.epoch) => {
                    format!("label {number} does not have the superblock of epoch {}", newest.epoch)
                }
                Ok(_) => continue,
            };
            debug_assert!(*number < LABELS);
            let unused = || Superblock::unused(label, *number, at);
            let good = best.map_or_else(unused, |superblock| superblock.encode(*number));
            let unknown_slot = is_unknown.then_some(at);
            bad.push(Bad { address, good, is_copy: best.is_some(), unknown_slot, what });
        }
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::tests::{Rig, Strike};
    use crate::format::label_start;
    use holdfast_object::{Error, Fate, ObjectStore, ScrubCursor};

    #[test]
    fn what_is_good_is_not_overwritten_by_what_memory_says() {
        let strikes: [(&str, Strike); 8] = [
            ("features of the label", |label, _| label.features.incompat ^= 1),
            ("where the log begins", |label, _| label.log_start += 1),
            ("when the store was made", |label, _| label.created.secs ^= 1),
            ("features", |_, superblock| superblock.features.incompat ^= 1),
            ("set aside", |_, superblock| superblock.set_aside ^= 1),
            ("clean", |_, superblock| superblock.clean = true),
            ("free", |_, superblock| superblock.free -= 1),
            ("root", |_, superblock| superblock.root.project ^= 1),
        ];
        for ((what, strike), is_damaged) in strikes.into_iter().flat_map(|strike| [(strike, false), (strike, true)]) {
            let rig = Rig::new();
            let disk = rig.module.disk();
            let (mut label, mut superblock) = rig.module.sealed.both(disk).unwrap();
            if is_damaged {
                // There is something to put right, too.
                let ring = ring_block(1, slot(superblock.epoch), label.blocks);
                rig.device.alter(0, |bytes| bytes[700] ^= 1).unwrap();
                rig.device.alter(ring, |bytes| bytes[700] ^= 1).unwrap();
            }
            let before = rig.image();
            strike(&mut label, &mut superblock);
            let error = mend(disk, &Sealed::new(&label, &superblock, disk.metadata)).unwrap_err();
            assert!(matches!(&error, Error::Corrupt(found) if found.place.address.is_some()), "{what}: {error}");
            assert!(rig.image() == before, "{what}: something was written");
        }
    }

    /// Somebody else has written to one of the places.
    #[test]
    fn what_is_good_is_overwritten_if_the_other_copies_say_so() {
        let rig = Rig::new();
        let disk = rig.module.disk();
        let (label, superblock) = rig.module.sealed.both(disk).unwrap();
        let before = rig.image();
        let other = Label { store: [9; 16], ..label };
        rig.device.alter(label_start(2, other.blocks), |bytes| *bytes = other.encode(2)).unwrap();
        let ring = ring_block(1, slot(superblock.epoch), other.blocks);
        let of_other = Superblock { set_aside: superblock.set_aside ^ 1, ..superblock };
        rig.device.alter(ring, |bytes| *bytes = of_other.encode(1)).unwrap();
        mend(disk, &rig.module.sealed).unwrap();
        assert!(rig.image() == before, "it is as it was");
    }

    /// To all of them: nothing tells that from memory that has gone bad.
    #[test]
    fn a_scrub_tells_of_good_labels_that_are_others_and_goes_on() {
        let rig = Rig::new();
        let (label, _) = rig.module.sealed.both(rig.module.disk()).unwrap();
        let other = Label { store: [9; 16], ..label };
        for number in 0..LABELS {
            rig.device.alter(label_start(number, other.blocks), |bytes| *bytes = other.encode(number)).unwrap();
        }
        let before = rig.image();
        let mut step = rig.module.scrub_step(&ScrubCursor::Start, 1 << 20).unwrap();
        assert_eq!((step.counts.unrepaired, step.findings[0].fate), (1, Fate::Unrepaired), "{step:?}");
        while step.cursor != ScrubCursor::End {
            step = rig.module.scrub_step(&step.cursor, 1 << 20).unwrap();
        }
        assert!(rig.image() == before, "something was written");
    }
}
