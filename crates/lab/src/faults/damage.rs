//! What the medium looks like after a fault, and the device that gives it back.

use super::reference::Target;
use crate::device::{Fault as DeviceFault, FaultDevice, FaultPlan, Rule, SECTOR_BYTES};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use std::sync::Arc;

/// Ways to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// One bit is another.
    Flip,
    /// The last write was acknowledged and not done: the block holds what it held before.
    Lost,
    /// Of the last write only the first sectors were done.
    Torn,
    /// A write of another block of the same kind landed here.
    Misdirected,
    /// The block cannot be read until it is written.
    ReadError,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 5] = [Fault::Flip, Fault::Lost, Fault::Torn, Fault::Misdirected, Fault::ReadError];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Flip => "flip",
            Fault::Lost => "lost write",
            Fault::Torn => "torn write",
            Fault::Misdirected => "misdirected write",
            Fault::ReadError => "read error",
        }
    }
}

/// How many of the copies are struck.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Copies {
    /// The first, or the only one.
    One,
    /// Every copy that there is.
    All,
}

impl Copies {
    /// Both.
    pub const ALL: [Copies; 2] = [Copies::One, Copies::All];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Copies::One => "one copy",
            Copies::All => "all copies",
        }
    }
}

type Block = [u8; BLOCK_SIZE];

/// A device with the damage. The blocks struck are different from what they were.
pub(super) fn device(image: &MemoryDevice, target: &Target, fault: Fault, copies: Copies) -> Arc<dyn Device> {
    let medium = image.clone();
    let struck = match copies {
        Copies::One => &target.copies[..1],
        Copies::All => &target.copies[..],
    };
    let mut plan = FaultPlan::new();
    for (number, copy) in struck.iter().enumerate() {
        let change = |change: &dyn Fn(&mut Block)| {
            let changed = medium.alter(copy.block, |block| {
                let right = *block;
                change(block);
                assert_ne!(*block, right, "{fault:?} of block {} changes nothing", copy.block);
            });
            changed.expect("the block is on the device");
        };
        match fault {
            Fault::Flip => change(&|block| block[100 + number] ^= 0x10),
            Fault::Lost => change(&|block| *block = *copy.before),
            Fault::Torn => change(&|block| tear(block, &copy.before)),
            Fault::Misdirected => change(&|block| *block = *target.stranger),
            Fault::ReadError => {
                plan = plan.with(Rule::new(DeviceFault::ReadError).block(copy.block).forever().healed_by_write());
            }
        }
    }
    Arc::new(FaultDevice::new(Arc::new(medium), plan))
}

/// The last sector that the write changed keeps its old contents, and all behind it.
fn tear(block: &mut Block, before: &Block) {
    let differs = |sector: &usize| {
        let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        block[bytes.clone()] != before[bytes]
    };
    let last = (0..BLOCK_SIZE / SECTOR_BYTES).rfind(differs).unwrap_or(0);
    block[last * SECTOR_BYTES..].copy_from_slice(&before[last * SECTOR_BYTES..]);
}
