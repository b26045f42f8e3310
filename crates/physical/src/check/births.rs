//! Runs of dead lists by address, for whoever meets one of their blocks in a snapshot.
//!
//! When a snapshot is deleted, its runs go by their births: those that an older snapshot has too move to that one's list, and the others become
//! free. So a run with another birth than the snapshot's pointer is let go too early, or never.
//!
//! Invariants ([`Births::check`]): runs ascend by their first block, and none ends behind what its `reach` says.

use super::walk::Dead;
use holdfast_object::Epoch;

/// Where runs lie, and when the blocks in them were born.
#[derive(Default)]
pub(super) struct Births {
    runs: Vec<Run>,
}

struct Run {
    first: u64,
    end: u64,
    /// The largest end of this one and of all before it.
    reach: u64,
    birth_log: Epoch,
    is_page: bool,
}

impl Births {
    pub(super) fn of(dead: &[Dead]) -> Births {
        let run = |Dead { run, .. }: &Dead| {
            let (first, end) = (run.address[0], run.address[0].saturating_add(run.count.into()));
            Run { first, end, reach: end, birth_log: run.birth_log, is_page: run.is_page }
        };
        let mut runs: Vec<Run> = dead.iter().map(run).collect();
        runs.sort_unstable_by_key(|run| run.first);
        let mut reach = 0;
        for run in &mut runs {
            reach = run.end.max(reach);
            run.reach = reach;
        }
        let births = Births { runs };
        debug_assert!(births.check());
        births
    }

    fn check(&self) -> bool {
        self.runs.is_sorted_by_key(|run| run.first) && self.runs.iter().all(|run| run.end <= run.reach)
    }

    /// Nothing if a run has the block of this first address, born then, as what it is, or if none has it at all; otherwise one
    /// that has it: its birth, and whether it is of pages.
    pub(super) fn contradicts(&self, address: u64, birth_log: Epoch, is_page: bool) -> Option<(Epoch, bool)> {
        let behind = self.runs.partition_point(|run| run.first <= address);
        let before = self.runs[..behind].iter().rev().take_while(|run| run.reach > address);
        let mut other = None;
        // A page that is shared has a run for each pointer that went.
        for run in before.filter(|run| run.end > address) {
            if (run.birth_log, run.is_page) == (birth_log, is_page) {
                return None;
            }
            other = Some((run.birth_log, run.is_page));
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DeadRun;
    use holdfast_object::DomainId;

    #[test]
    fn one_of_the_runs_of_a_block_must_have_its_birth() {
        let dead = |first, count, birth_log, is_page| {
            let run = DeadRun { address: [first, 0], birth_log, count, is_page };
            Dead { domain: DomainId::MAIN, run, of_deleted: false }
        };
        // The second lies within the first, and the third behind it.
        let births = Births::of(&[
            dead(140, 10, 5, true),
            dead(100, 50, 3, true),
            dead(120, 2, 4, true),
            dead(200, 1, 6, false),
        ]);
        for (address, birth_log, expected) in [
            (100, 3, None),
            (149, 3, None),
            (149, 5, None),
            (121, 4, None),
            (121, 5, Some((3, true))),
            (122, 4, Some((3, true))),
            (150, 9, None),
            (99, 9, None),
            (200, 6, Some((6, false))),
        ] {
            assert_eq!(births.contradicts(address, birth_log, true), expected, "{address} born in {birth_log}");
        }
    }
}
