//! What can be asked of a system: at most one silent corruption in so many bytes read.

use crate::probability::Probability;
use std::fmt;

/// At most one silent corruption in … read (dissertation, table 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Goal {
    /// 2^40 bytes.
    Terabyte,
    /// 2^50 bytes.
    Petabyte,
    /// 2^60 bytes.
    Exabyte,
    /// 2^70 bytes: the goal of Z²FS.
    Zettabyte,
}

impl Goal {
    /// All, the easiest first.
    pub const ALL: [Goal; 4] = [Goal::Terabyte, Goal::Petabyte, Goal::Exabyte, Goal::Zettabyte];

    /// As it is written in options.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Terabyte => "terabyte",
            Goal::Petabyte => "petabyte",
            Goal::Exabyte => "exabyte",
            Goal::Zettabyte => "zettabyte",
        }
    }

    /// The most probable that a silent corruption may be in one read of 4 KiB: 4096 bytes of the goal's, as published with three
    /// digits (the Zettabyte's are cut, not rounded: 2^-58 is 3.469e-18).
    pub fn probability(self) -> Probability {
        Probability::new(match self {
            Goal::Terabyte => 3.73e-9,
            Goal::Petabyte => 3.64e-12,
            Goal::Exabyte => 3.55e-15,
            Goal::Zettabyte => 3.46e-18,
        })
    }

    /// The least score that meets it.
    pub fn score(self) -> f64 {
        self.probability().score()
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_one_block_of_its_bytes() {
        for (goal, exponent) in Goal::ALL.into_iter().zip([40, 50, 60, 70]) {
            let exact = 4096.0 / 2f64.powi(exponent);
            assert!((goal.probability().value() / exact - 1.0).abs() < 0.003, "{goal}");
        }
    }

    #[test]
    fn scores_are_those_of_table_4_1() {
        for (goal, score) in Goal::ALL.into_iter().zip([8.4, 11.4, 14.4, 17.5]) {
            assert!((goal.score() - score).abs() <= 0.05, "{goal}: {}", goal.score());
        }
    }
}
