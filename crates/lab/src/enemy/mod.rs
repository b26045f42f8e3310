//! The enemy within: every kind of block × every injection of [`holdfast_physical::inject`] × what is done with the store
//! then, after §3.2 of Zhang, *Cooperative Data Protection* (2015), and its table 3.2.
//!
//! | file | job |
//! |---|---|
//! | `reference` | stores that have blocks of every kind, snapshots among them, and what is in them |
//! | `trial` | damage, work, and the verdict |
//! | `foresight` | what a check says before the work, held against what was struck |
//! | `table` | the results for people |
//!
//! Three promises are checked in each trial:
//! - *never wrong*: no wrong bytes, no panic, no error without a place;
//! - *detected*: a check right after the damage tells of every block in use that holds other bytes than it should; and
//!   if the state is an older one than the last that was synced, the mount says so as well;
//! - *repaired*: as long as a copy is good, nothing fails and nothing is refused.

mod foresight;
pub(crate) mod reference;
mod table;
mod trial;

use holdfast_physical::inject::{BlockClass, Copies, Fault};
pub use table::{markdown, text};

/// What is done with the damaged store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// It is mounted.
    Mount,
    /// It was in use when it was damaged; it is changed, unmounted and mounted.
    Remount,
    /// It is mounted; then in every directory a file is made and written, with an extended attribute, and a snapshot.
    Create,
    /// It is mounted; then everything is read, now and in each snapshot.
    Read,
}

impl Work {
    /// All of them.
    pub const ALL: [Work; 4] = [Work::Mount, Work::Remount, Work::Create, Work::Read];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Work::Mount => "mount",
            Work::Remount => "remount",
            Work::Create => "create",
            Work::Read => "read",
        }
    }
}

/// What became of the damage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// It is gone, and nobody has noticed but the counters.
    Recovered,
    /// An error, a refused change or a refused mount that says where.
    Error,
    /// The last change that had been answered is not there: the damage is what a power cut leaves (decision 0005).
    Older,
    /// The work did not need the block; a check finds the damage.
    NotMet,
}

/// The faults, as they are injected.
pub const FAULTS: [Fault; 4] = [Fault::Flip { bits: 1 }, Fault::Drop, Fault::Duplicate, Fault::Swap];

/// For tables.
pub fn fault_name(fault: Fault) -> &'static str {
    match fault {
        Fault::Flip { .. } | Fault::FlipBit { .. } => "flip",
        Fault::Drop => "drop",
        Fault::Duplicate => "duplicate",
        Fault::Swap => "swap",
    }
}

/// One trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What was damaged.
    pub class: BlockClass,
    /// How.
    pub fault: Fault,
    /// Every copy of it, or one.
    pub all_copies: bool,
    /// What was done then.
    pub work: Work,
    /// Decides which store, which block, which copy and which bit.
    pub seed: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// The first error, as a user meets it.
    pub message: Option<String>,
    /// Promises that were broken.
    pub wrong: Vec<String>,
}

/// Which trials.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed of each cell.
    pub seed: u64,
    /// Trials in each cell of the table.
    pub trials: u64,
    /// Only this kind, if one is given.
    pub class: Option<BlockClass>,
}

/// Does all trials. Cells that cannot be (the second copy of a block that has one) are left out.
///
/// # Errors
/// In words, if the reference stores cannot be made, or none has the blocks that a fault of a kind needs.
pub fn run(plan: &Plan) -> Result<Vec<Trial>, String> {
    let stores = reference::Reference::make_all()?;
    let mut trials = Vec::new();
    for class in BlockClass::ALL.into_iter().filter(|class| plan.class.is_none_or(|only| only == *class)) {
        for fault in FAULTS {
            let fitting: Vec<_> = stores.iter().filter(|store| trial::fits(store, class, fault)).collect();
            if fitting.is_empty() {
                return Err(format!("no reference store has blocks of the kind {} for that", class.name()));
            }
            for all_copies in [false, true] {
                for work in Work::ALL {
                    for seed in plan.seed..plan.seed + plan.trials {
                        let store = fitting[(seed % fitting.len() as u64) as usize];
                        trials.extend(trial::run(store, class, fault, all_copies, work, seed)?);
                    }
                }
            }
        }
    }
    Ok(trials)
}

/// Copies to damage of a block that has so many.
fn copies(all_copies: bool, copies: usize, seed: u64) -> Copies {
    if all_copies { Copies::All } else { Copies::One((seed % copies.max(1) as u64) as usize) }
}
