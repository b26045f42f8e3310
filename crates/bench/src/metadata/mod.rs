//! What the protection of metadata in memory costs: CPU time per operation by steps of protection, as ratios to a store without any.
//!
//! | file | what |
//! |---|---|
//! | `loads` | what is done to a store |
//! | `locked` | a process whose memory is locked, in which some of it is done |
//! | `tables` | what came out, and which goals are reached |
//! | `peaks` | the same of memory |
//!
//! All layers are in this process and the device is in its memory, so that no system call hides what protection costs. Each measurement
//! begins with a store of its own in the same state, a copy of one image, whose metadata is in memory, and ends when all is in a recovery
//! point. Rounds are interleaved as those of [`crate::integrity`]. When all of a load are over, each step does it once more, and what it takes of memory
//! is counted instead of its time ([`crate::heap`]).

mod clock;
mod loads;
mod locked;
mod peaks;
mod tables;

use holdfast_physical::MetadataProtection;

pub use self::loads::Load;
pub use self::locked::{Locked, serve};
pub use self::peaks::Taken;
pub use self::tables::tables;
use crate::error::Result;
use crate::integrity::{Cost, turns};

/// How far metadata is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Step {
    /// Checksums are made when a recovery point is put together.
    Off,
    /// The same once more: what seems to be between these two, the machine cannot tell from nothing.
    Again,
    /// Rolling checksums, verified.
    Rolling,
    /// The same, and the audit of names, of each transaction.
    Names,
    /// The same, and that of recovery points.
    Audited,
    /// The same, and memory that is locked with protection keys.
    Locked,
    /// Rolling checksums, the audit of names, and one of recovery points that compares blocks with copies instead of seeing the updates.
    Compared,
}

impl Step {
    /// All of them: from the least on, and what they are compared with besides.
    pub const ALL: [Step; 7] =
        [Step::Off, Step::Again, Step::Rolling, Step::Names, Step::Audited, Step::Locked, Step::Compared];

    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Step::Off => "off",
            Step::Again => "off again",
            Step::Rolling => "rolling checksums",
            Step::Names => "and the audit of names",
            Step::Audited => "and the audit",
            Step::Locked => "and locked pages",
            Step::Compared => "audit by copies",
        }
    }

    fn protection(self) -> MetadataProtection {
        match self {
            Step::Off | Step::Again => MetadataProtection::Off,
            Step::Rolling | Step::Names => MetadataProtection::Rolling,
            Step::Audited | Step::Locked => MetadataProtection::Audited,
            Step::Compared => MetadataProtection::Compared,
        }
    }

    fn audits_names(self) -> bool {
        !matches!(self, Step::Off | Step::Again | Step::Rolling)
    }

    /// Whether the goals are for it: not for what is there for comparison only.
    fn has_goals(self) -> bool {
        matches!(self, Step::Rolling | Step::Audited | Step::Locked)
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The first is what the others are compared with.
    pub steps: Vec<Step>,
    /// Loads.
    pub loads: Vec<Load>,
    /// Size of the file of a load, in MiB.
    pub file_mib: u64,
    /// The same of [`Load::DeleteHuge`].
    pub huge_mib: u64,
    /// Transactions in a measurement of [`Load::Oltp`].
    pub transactions: u64,
    /// Files that one measurement creates or unlinks.
    pub files: u64,
    /// Number of rounds, which is the number of pairs.
    pub rounds: u64,
    /// Seed of random orders.
    pub seed: u64,
}

/// All measurements of one load.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which load.
    pub load: Load,
    /// By step, as in the plan, then by round.
    pub costs: Vec<Vec<Cost>>,
    /// Memory, by step.
    pub taken: Vec<Taken>,
}

/// Where [`Step::Locked`] is measured.
pub trait Elsewhere {
    /// CPU time of a load, in that round.
    ///
    /// # Errors
    /// Those of the load, and of the way there.
    fn measure(&mut self, load: Load, round: u64) -> Result<Cost>;

    /// What it takes of memory.
    ///
    /// # Errors
    /// As for [`Elsewhere::measure`].
    fn take(&mut self, load: Load) -> Result<Taken>;
}

/// Runs the loads one after the other, each in all steps in turn; [`Step::Locked`] there, the others here. `progress` gets what is being done.
///
/// # Errors
/// Those of the store; wrong contents; blocks that did not become free.
pub fn execute(plan: &Plan, locked: &mut dyn Elsewhere, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for load in plan.loads.iter().copied() {
        progress(&format!("{}: making the store", load.name()));
        let image = load.image(plan)?;
        let mut costs = vec![Vec::new(); plan.steps.len()];
        // The first is not counted: this process's own memory is new to it.
        load.measure(plan, &image, plan.steps[0], 0)?;
        for round in 0..plan.rounds {
            for index in turns(plan.steps.len(), round) {
                let step = plan.steps[index];
                progress(&format!("{}: round {} of {}, {}", load.name(), round + 1, plan.rounds, step.name()));
                costs[index].push(match step {
                    Step::Locked => locked.measure(load, round)?,
                    _ => load.measure(plan, &image, step, round)?,
                });
            }
        }
        let mut taken = Vec::new();
        for step in plan.steps.iter().copied() {
            progress(&format!("{}: memory, {}", load.name(), step.name()));
            taken.push(match step {
                Step::Locked => locked.take(load)?,
                _ => load.take(plan, &image, step)?,
            });
        }
        rows.push(Row { load, costs, taken });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
