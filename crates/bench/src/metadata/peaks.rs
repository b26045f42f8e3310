//! The most memory that a load takes at a time, by steps.

use std::io::IoSlice;

use holdfast_block::{Device, Error, Filter, MemoryDevice};
use holdfast_physical::{PROTECTION_BYTES_PER_BLOCK, PROTECTION_BYTES_PER_CHANGED_BLOCK};

use super::{Plan, Row, Step};
use crate::heap::{self, Peak};
use crate::integrity::Verdict;
use crate::pattern::BLOCK;
use crate::report::table;

/// Most of the memory for metadata that protection may take.
pub(super) const SHARE_MAX: f64 = 0.005;

/// What a store takes of memory while a load is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// When it takes most.
    pub peak: Peak,
    /// Most blocks of metadata that a recovery point has changed.
    pub changed: u64,
    /// Second copies of changed pages of names when the load is done, and not yet in a recovery point. They are in the pool's memory and not in `peak`.
    pub twins: u64,
}

impl Taken {
    fn bytes(&self) -> f64 {
        self.peak.heap_bytes as f64 + self.metadata_bytes()
    }

    fn metadata_bytes(&self) -> f64 {
        self.peak.blocks as f64 * BLOCK as f64
    }

    /// What is kept of each block to protect it, and of each that has changed, by the size of structures. It is in `peak` of every step, used or not.
    fn kept_bytes(&self) -> f64 {
        let changed = self.changed as f64 * PROTECTION_BYTES_PER_CHANGED_BLOCK as f64;
        self.peak.blocks as f64 * PROTECTION_BYTES_PER_BLOCK as f64 + changed
    }
}

/// A device in memory that is none of the store's.
pub(super) struct Apart(pub(super) MemoryDevice);

impl Filter for Apart {
    fn below(&self) -> &dyn Device {
        &self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        heap::apart(|| self.0.write(first, bufs))
    }

    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        heap::apart(|| self.0.discard(first, count))
    }

    fn on_zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        heap::apart(|| self.0.zero(first, count, keep))
    }

    fn has_to_write_zeros(&self) -> bool {
        self.0.writes_zeros(false)
    }
}

/// The memory of the first step, and that of the others with what they take more. None of a program that does not count.
fn split(row: &Row) -> Option<(&Taken, impl Iterator<Item = (&Taken, f64)>)> {
    let (base, others) = row.taken.split_first().filter(|(base, _)| base.peak.blocks > 0)?;
    Some((base, others.iter().map(|own| (own, own.bytes() - base.bytes()))))
}

fn kib(bytes: f64) -> String {
    format!("{:.0}", bytes / 1024.0)
}

/// As a part of the memory for metadata, too.
fn part(bytes: f64, of: f64) -> String {
    format!("{:+.1} ({:.2} %)", bytes / 1024.0, 100.0 * bytes / of)
}

/// By load: the memory of the first step, and what the others take more.
pub(super) fn tables(plan: &Plan, rows: &[Row]) -> String {
    let Some((first, others)) = plan.steps.split_first() else { return String::new() };
    let mut header =
        ["load", "metadata, KiB", "of it changed, KiB", "kept of it in all steps, KiB"].map(str::to_owned).to_vec();
    header.push(format!("{}, all, KiB", first.name()));
    header.extend(others.iter().map(|step| format!("{}, more, KiB", step.name())));
    header.push("twins of names, in all steps, KiB".to_owned());
    let body = rows.iter().filter_map(|row| {
        let (base, others) = split(row)?;
        let of = base.metadata_bytes();
        let blocks = |number: u64| kib(number as f64 * BLOCK as f64);
        let mut cells = vec![row.load.name().to_owned(), kib(of), blocks(base.changed), part(base.kept_bytes(), of)];
        cells.push(kib(base.bytes()));
        cells.extend(others.map(|(_, more)| part(more, of)));
        cells.push(blocks(base.twins));
        Some(cells)
    });
    format!("\n## Memory at its peak\n\n{}", table(&header, body.collect()))
}

/// Whether what is kept of blocks, and what a step takes more than the first, is little enough of the metadata in memory.
pub(super) fn goals(steps: &[Step], rows: &[Row]) -> Vec<Vec<String>> {
    let mut goals = Vec::new();
    for row in rows {
        let (Some((base, others)), [_off, steps @ ..]) = (split(row), steps) else { continue };
        let of = base.metadata_bytes();
        for (step, (own, more)) in steps.iter().zip(others).filter(|(step, _)| step.has_goals()) {
            let bytes = own.kept_bytes() + more;
            let name = format!("memory at its peak: {}", row.load.name());
            let measured = format!("{:.2} %, {} of {} KiB", 100.0 * bytes / of, kib(bytes), kib(of));
            goals.push(vec![name, step.name().to_owned(), goal(), measured, verdict(bytes / of).to_owned()]);
        }
    }
    goals
}

/// As in the table.
pub(super) fn goal() -> String {
    format!("{:.1} %", 100.0 * SHARE_MAX)
}

/// Of a share of the memory for metadata.
pub(super) fn verdict(share: f64) -> &'static str {
    if share <= SHARE_MAX { Verdict::Met.name() } else { Verdict::Missed.name() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Load;

    fn taken(heap_bytes: i64, changed: u64) -> Taken {
        Taken { peak: Peak { heap_bytes, blocks: 1000 }, changed, twins: 3 }
    }

    #[test]
    fn what_a_step_takes_more_is_told_as_a_share_of_the_metadata() {
        let steps = vec![Step::Off, Step::Again, Step::Rolling, Step::Audited];
        let load = Load::Create;
        // Half a per cent is 20,480 bytes, of which 20,000 are kept of blocks in any step.
        let taken = [0, 0, 480, 481].map(|more| taken((1 << 20) + more, 0)).to_vec();
        let row = Row { load, costs: Vec::new(), taken };
        let plan = Plan {
            steps: steps.clone(),
            loads: vec![load],
            file_mib: 1,
            huge_mib: 1,
            transactions: 1,
            files: 1,
            rounds: 1,
            seed: 1,
        };
        let text = tables(&plan, std::slice::from_ref(&row));
        let line = text.lines().find(|line| line.contains(load.name())).expect("a row");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let kept = ["4000", "0", "+19.5 (0.49 %)", "5024"];
        assert_eq!(
            (&cells[2..6], &cells[6..10]),
            (&kept[..], &["+0.0 (0.00 %)", "+0.5 (0.01 %)", "+0.5 (0.01 %)", "12"][..])
        );
        let goals = goals(&steps, &[row]);
        let verdicts: Vec<&str> = goals.iter().map(|goal| goal[4].as_str()).collect();
        assert_eq!(verdicts, ["met", "**missed**"], "{goals:?}");
    }

    /// As docs/metadata-speed.md and decision record 0035 have it.
    #[test]
    fn of_blocks_that_have_changed_more_is_kept() {
        assert_eq!(taken(0, 7).kept_bytes() - taken(0, 0).kept_bytes(), 7.0 * 88.0);
    }
}
