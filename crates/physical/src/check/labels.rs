//! Labels and rings.
//!
//! Invariant: what is put in a bad one's place is from memory, where it has been for a while, only if a good copy on the device says the same.

use super::report::{BlockRole, BlockUse, Finding, FindingKind, Report};
use crate::difference;
use crate::disk::Disk;
use crate::format::label::LabelState;
use crate::format::superblock::{ring_block, slot};
use crate::format::{Label, RING_SLOTS, Superblock};
use crate::open::{read_labels, read_rings};
use holdfast_block::Device;
use holdfast_object::Result;

/// Every label is the same and good; the newest superblock is in all of them; older ones are good or never written.
pub(super) fn check(
    device: &dyn Device,
    disk: &Disk,
    label: &Label,
    newest: &Superblock,
    repair: bool,
    report: &mut Report,
    visit: &mut dyn FnMut(BlockUse),
) -> Result<()> {
    let tell = |visit: &mut dyn FnMut(BlockUse), block, role, copy: usize| {
        visit(BlockUse { block, role, copy: copy as u8, object: None, kind: None, level: 0, index: 0, held: false });
    };
    let labels = read_labels(device, label.blocks)?;
    let is_label_told = labels.iter().any(|(_, state)| matches!(state, LabelState::Valid(found) if found == label));
    for (number, (address, state)) in labels.into_iter().enumerate() {
        tell(visit, address, BlockRole::Label, number);
        let what = match state {
            LabelState::Valid(found) if found == *label => continue,
            LabelState::Valid(found) => {
                let same = Label { blocks: found.blocks, ..label.clone() };
                match difference::unless_equal("label", &same.encode(number), &found.encode(number)) {
                    Ok(()) => format!("label {number} has a size of {} blocks", found.blocks),
                    Err(fault) => format!("label {number} is another one: {fault}"),
                }
            }
            LabelState::Damaged(fault) => format!("label {number}: {fault}"),
            LabelState::OtherVersion(version) => format!("label {number}: format version {version}"),
            LabelState::Foreign => format!("label {number} is not there"),
        };
        let repaired = repair && is_label_told && disk.write_blocks([(address, &label.encode(number))]).is_ok();
        report.add(Finding { kind: FindingKind::Label, place: disk.place(address), what, repaired });
    }
    let rings = read_rings(device, label)?;
    for at in 0..RING_SLOTS {
        let mut in_slot = rings.iter().filter(|(_, of, _)| *of == at);
        if in_slot.all(|(.., state)| state.is_err()) {
            // Nothing brings it back, so it is not repaired by a mark.
            let epoch = newest.epoch;
            let what = format!(
                "no label has a good superblock in slot {at}: unless the power failed while it was written, a recovery point newer \
                 than {epoch} may be lost"
            );
            let place = disk.place(ring_block(0, at, label.blocks));
            report.add(Finding { kind: FindingKind::Superblock, place, what, repaired: false });
        }
    }
    let is_newest_told = rings.iter().any(|(.., state)| matches!(state, Ok(Some(found)) if found == newest));
    for (number, at, state) in rings {
        let address = ring_block(number, at, label.blocks);
        let is_newest = at == slot(newest.epoch);
        if is_newest {
            tell(visit, address, BlockRole::Superblock, number);
        }
        let what = match state {
            Ok(Some(superblock)) if !is_newest || superblock == *newest => continue,
            Ok(None) if !is_newest => continue,
            Ok(Some(found)) if found.epoch == newest.epoch => {
                let differs = difference::unless_equal("superblock", &newest.encode(number), &found.encode(number));
                let fault = differs.err().map_or_else(String::new, |fault| format!(": {fault}"));
                format!("superblock in slot {at} of label {number} is another one{fault}")
            }
            Ok(Some(found)) => format!("superblock of epoch {}, not {}", found.epoch, newest.epoch),
            Ok(None) => format!("superblock of epoch {} is not there", newest.epoch),
            Err(fault) => format!("superblock in slot {at} of label {number}: {fault}"),
        };
        // A bad slot of an older epoch is not in use afterwards: what it held is of no use any more.
        let (good, is_told) = match is_newest {
            true => (newest.encode(number), is_newest_told),
            false => (Superblock::unused(label, number, at), is_label_told),
        };
        let repaired = repair && is_told && disk.write_blocks([(address, &good)]).is_ok();
        report.add(Finding { kind: FindingKind::Superblock, place: disk.place(address), what, repaired });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::looking;
    use super::*;
    use crate::commit::tests::{Rig, Strike};
    use std::sync::Arc;

    /// A check takes long, and what it goes by is in memory meanwhile.
    #[test]
    fn a_repair_puts_nothing_on_the_device_that_memory_alone_says() {
        let strikes: [(&str, Strike); 6] = [
            ("nothing", |_, _| ()),
            ("features of the label", |label, _| label.features.incompat ^= 1),
            ("where the log begins", |label, _| label.log_start += 1),
            ("whose store", |label, _| label.store[0] ^= 1),
            ("free", |_, superblock| superblock.free -= 1),
            ("root", |_, superblock| superblock.root.project ^= 1),
        ];
        for ((what, strike), is_damaged) in strikes.into_iter().flat_map(|strike| [(strike, false), (strike, true)]) {
            let rig = Rig::new();
            let (mut label, mut superblock) = rig.module.sealed.both(rig.module.disk()).unwrap();
            let sound = rig.image();
            if is_damaged {
                // There is something to put right, too: a label, the newest superblock, and an older one.
                let rings = [slot(superblock.epoch), slot(superblock.epoch) ^ 1];
                for block in [0].into_iter().chain(rings.map(|at| ring_block(1, at, label.blocks))) {
                    rig.device.alter(block, |bytes| bytes[700] ^= 1).unwrap();
                }
            }
            let damaged = rig.image();
            let device: Arc<dyn Device> = rig.device.clone();
            let whole = looking(&device, &label, &superblock, true);
            strike(&mut label, &mut superblock);
            let mut report = Report::default();
            check(&*device, &whole.disk, &label, &superblock, true, &mut report, &mut |_| ()).unwrap();
            let is_left = report.findings.iter().any(|finding| !finding.repaired);
            assert_eq!(
                (report.findings.is_empty(), is_left),
                (what == "nothing" && !is_damaged, what != "nothing"),
                "{what}"
            );
            let after = rig.image();
            let blocks = [&after, &damaged, &sound].map(|image| image.as_chunks::<4096>().0);
            for (at, after) in blocks[0].iter().enumerate() {
                let is_unused =
                    *after == Superblock::unused(&rig.module.label().unwrap(), 1, slot(superblock.epoch) ^ 1);
                assert!(*after == blocks[1][at] || *after == blocks[2][at] || is_unused, "{what}: block {at}");
            }
        }
    }
}
