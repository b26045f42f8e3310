//! What a check says right after the damage, before anything else has looked at the store; and whether that is all of it.
//!
//! What has been damaged is known from the injection alone: the blocks that were struck were in use, and hold other bytes
//! now than they should. The check has no say in that.

use holdfast_block::{Device, MemoryDevice};
use holdfast_object::Result;
use holdfast_physical::check::{FindingKind, Report};
use holdfast_physical::inject::{self, BlockClass, Injection};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A check, or one with a bug.
pub(super) type Check<'a> = &'a dyn Fn(Arc<dyn Device>) -> Result<Report>;

/// What a check has told.
pub(super) struct Foresight {
    /// Anything at all.
    pub(super) is_told: bool,
    /// Blocks that were struck, hold what was injected, and of which nothing was said.
    pub(super) untold: Vec<u64>,
}

impl Foresight {
    /// Checks a copy of the device.
    pub(super) fn of(device: &MemoryDevice, injection: &Injection, check: Check<'_>) -> Foresight {
        let copy = Arc::new(device.clone());
        let bad = injection.changes.iter().filter(|change| {
            let now = inject::read(&*copy, change.block);
            now.is_ok_and(|now| now == change.after && now != change.before)
        });
        let bad: Vec<u64> = bad.map(|change| change.block).collect();
        // Refused: nothing else can be said of it.
        let Ok(report) = check(copy.clone()) else { return Foresight { is_told: true, untold: Vec::new() } };
        let all = || report.findings.iter().chain(&report.remarks);
        let told: BTreeSet<u64> = all().filter_map(|finding| finding.place.address).collect();
        // The rest of a log that cannot be followed, and what is behind a block that cannot be read, is not reached.
        let is_cut_off = match injection.target.class {
            BlockClass::IntentLog => report.findings.iter().any(|finding| finding.kind == FindingKind::Log),
            _ => report.incomplete && report.unrepaired() > 0,
        };
        let is_excused = is_cut_off || is_of_last_seal(device, injection);
        let untold = bad.into_iter().filter(|block| !told.contains(block) && !is_excused).collect();
        Foresight { is_told: all().next().is_some(), untold }
    }
}

/// Both heads of a seal at the end of the intent log are gone, with no other batch's in their place. Nothing is in it, and nothing
/// is left that knows of it: it was not yet written, as far as one can tell.
fn is_of_last_seal(device: &MemoryDevice, injection: &Injection) -> bool {
    const MAGIC: &[u8] = b"HFINTENT";
    let number = |block: &[u8; 4096], at: usize| u32::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
    // Blocks of pages, bytes of entries (docs/format.md).
    let is_seal = |block: &[u8; 4096]| block.starts_with(MAGIC) && number(block, 68) == 0 && number(block, 72) == 0;
    let [first, second] = &injection.changes[..] else { return false };
    let epoch = |block: &[u8; 4096]| block[48..56].to_vec();
    let behind = inject::read(device, first.block.max(second.block) + 1);
    let is_last = behind.is_ok_and(|block| !block.starts_with(MAGIC) || epoch(&block) != epoch(&first.before));
    let gone = [first, second].iter().all(|change| is_seal(&change.before) && !change.after.starts_with(MAGIC));
    injection.target.class == BlockClass::IntentLog && gone && is_last
}
