//! Which workloads an explorer runs, and when it has done enough: the same for all explorers, and a part of their command lines.

use clap::Args;
use std::process::ExitCode;
use std::time::Instant;

/// Actions of a workload, unless told otherwise.
const STEPS: usize = 60;

/// How much to explore, and where to begin.
#[derive(Clone, Debug, Args)]
pub struct Budget {
    /// Seed of the first workload; the next ones have the next numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only this state of the first workload.
    #[arg(long)]
    pub state: Option<u64>,
    /// Ends after so many states.
    #[arg(long, default_value_t = 2_000)]
    pub states: u64,
    /// Ends after so many seconds, if that is earlier.
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Fail if fewer states than this were explored in the time given.
    #[arg(long, default_value_t = 0)]
    pub at_least: u64,
    /// Actions of a workload.
    #[arg(long, default_value_t = STEPS)]
    pub steps: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { seed: 1, state: None, states: 2_000, seconds: None, at_least: 0, steps: STEPS }
    }
}

impl Budget {
    /// So many states from this seed on.
    pub fn new(seed: u64, states: u64) -> Budget {
        Budget { seed, states, ..Budget::default() }
    }

    /// Of the workloads, one after the other.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let last = if self.state.is_some() { self.seed } else { u64::MAX };
        self.seed..=last
    }

    /// After so many states, by an explorer that began then.
    pub(crate) fn is_spent(&self, states: u64, begun: Instant) -> bool {
        states >= self.states || self.is_late(begun)
    }

    pub(crate) fn is_late(&self, begun: Instant) -> bool {
        self.seconds.is_some_and(|seconds| begun.elapsed().as_secs() >= seconds)
    }

    /// Whether the state of this number is wanted.
    pub(crate) fn wants(&self, state: u64) -> bool {
        self.state.is_none_or(|only| only == state)
    }

    /// The command of `program` that shows a state of a workload again, or all of the workload.
    pub(crate) fn replay(&self, program: &str, seed: u64, state: Option<u64>) -> String {
        let mut command = format!("cargo run --release -p holdfast-lab --bin {program} -- --seed {seed}");
        if let Some(state) = state {
            command += &format!(" --state {state}");
        }
        if self.steps != STEPS {
            command += &format!(" --steps {}", self.steps);
        }
        command
    }

    /// What the program ends with. Says if there were too few states.
    pub fn verdict(&self, states: u64, has_failed: bool) -> ExitCode {
        if has_failed {
            return ExitCode::FAILURE;
        }
        if states < self.at_least {
            println!("TOO FEW: {states} states explored, {} wanted", self.at_least);
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

/// `"12 crash states in 3.0 s (4/s): workloads 1 to 2"`.
pub fn headline(states: u64, seconds: f64, first_seed: u64, last_seed: u64) -> String {
    let rate = states as f64 / seconds.max(0.001);
    format!("{states} crash states in {seconds:.1} s ({rate:.0}/s): workloads {first_seed} to {last_seed}")
}
