//! Labels and rings.

use super::report::{BlockRole, BlockUse, Finding, FindingKind, Report};
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
    for (number, (address, state)) in read_labels(device, label.blocks)?.into_iter().enumerate() {
        tell(visit, address, BlockRole::Label, number);
        let what = match state {
            LabelState::Valid(found) if found == *label => continue,
            LabelState::Valid(found) => format!("label {number} has a size of {} blocks", found.blocks),
            LabelState::Damaged(fault) => format!("label {number}: {fault}"),
            LabelState::OtherVersion(version) => format!("label {number}: format version {version}"),
            LabelState::Foreign => format!("label {number} is not there"),
        };
        let repaired = repair && disk.write_blocks([(address, &label.encode(number))]).is_ok();
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
    for (number, at, state) in rings {
        let address = ring_block(number, at, label.blocks);
        let is_newest = at == slot(newest.epoch);
        if is_newest {
            tell(visit, address, BlockRole::Superblock, number);
        }
        let what = match state {
            Ok(Some(superblock)) if !is_newest || superblock == *newest => continue,
            Ok(None) if !is_newest => continue,
            Ok(Some(superblock)) => format!("superblock of epoch {}, not {}", superblock.epoch, newest.epoch),
            Ok(None) => format!("superblock of epoch {} is not there", newest.epoch),
            Err(fault) => format!("superblock in slot {at} of label {number}: {fault}"),
        };
        // A bad slot of an older epoch is not in use afterwards: what it held is of no use any more.
        let good = if is_newest { newest.encode(number) } else { Superblock::unused(label, number, at) };
        let repaired = repair && disk.write_blocks([(address, &good)]).is_ok();
        report.add(Finding { kind: FindingKind::Superblock, place: disk.place(address), what, repaired });
    }
    Ok(())
}
