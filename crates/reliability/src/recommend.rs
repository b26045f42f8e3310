//! The protection mode for a machine: the cheapest that keeps the goal.

use crate::mode::Mode;
use crate::model::Model;
use crate::residency::Residency;
use std::fmt;

/// Whose figures for what the modes cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Costs {
    /// The paper's: xor costs a read from memory 3 % and Fletcher 15 (z2fs §IV-C), so that xor is taken for as long as it will do.
    /// It has no CRC-64, which counts as the dearest.
    Published,
    /// Those of `docs/integrity-speed.md`: CRC-64 costs a read no more than xor does, and a write less than two checksums, so that
    /// `static` and `dynamic` save nothing.
    Measured,
}

impl Costs {
    /// All.
    pub const ALL: [Costs; 2] = [Costs::Published, Costs::Measured];

    /// As it is written in options.
    pub const fn name(self) -> &'static str {
        match self {
            Costs::Published => "published",
            Costs::Measured => "measured",
        }
    }

    /// The modes that cost less than [`Mode::Uniform`], cheapest first. End-to-end modes are not here: only the reader verifies, and
    /// what is found to be wrong then cannot be mended any more.
    const fn cheaper(self) -> &'static [Mode] {
        match self {
            Costs::Published => &[Mode::None, Mode::Disk, Mode::Static, Mode::Dynamic, Mode::StaticStrong],
            Costs::Measured => &[Mode::None, Mode::Disk],
        }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A mode, and how to run it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recommendation {
    /// The cheapest mode that keeps the goal. There is one: CRC-64 misses 2^-64 at most at each of three stations, less than any goal.
    pub mode: Mode,
    /// After how many seconds in memory a page is verified by the strong checksum; only with [`Mode::Dynamic`].
    pub t_switch_s: Option<f64>,
}

/// The mode for a model's machine and goal, if pages stay in memory for up to `uptime_s` seconds.
pub fn recommend(model: &Model, costs: Costs, uptime_s: f64) -> Recommendation {
    let t_switch_s = match model.t_switch() {
        Residency::UpTo(seconds) => Some(seconds),
        // Fletcher throughout, or xor throughout: both are `static`.
        Residency::Never | Residency::Always => None,
    };
    let cheaper = costs.cheaper().iter().copied().find(|&mode| {
        let worth_it = mode != Mode::Dynamic || t_switch_s.is_some();
        worth_it && model.keeps_goal(mode, model.goal).covers(uptime_s)
    });
    let mode = cheaper.unwrap_or(Mode::Uniform);
    debug_assert!(model.keeps_goal(mode, model.goal).covers(uptime_s));
    Recommendation { mode, t_switch_s: t_switch_s.filter(|_| mode == Mode::Dynamic) }
}
