//! The protection mode for a machine: the cheapest that keeps the goal.

use crate::mode::Mode;
use crate::model::Model;
use crate::residency::Residency;

/// What is tried before [`Mode::Uniform`], in the order of what a read from memory costs: nothing is verified, or xor is; CRC-64 costs
/// more. End-to-end modes are not here: only the reader verifies, and what is found to be wrong then cannot be mended any more.
const CHEAPER: [Mode; 4] = [Mode::None, Mode::Disk, Mode::Static, Mode::Dynamic];

/// A mode, and how to run it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recommendation {
    /// The cheapest mode that keeps the goal. There is one: CRC-64 misses 2^-64 at most at each of three stations, less than any goal.
    pub mode: Mode,
    /// After how many seconds in memory a page is verified by the strong checksum; only with [`Mode::Dynamic`].
    pub t_switch_s: Option<f64>,
}

/// The mode for a model's machine and goal, if pages stay in memory for up to `uptime_s` seconds.
pub fn recommend(model: &Model, uptime_s: f64) -> Recommendation {
    let t_switch_s = match model.t_switch() {
        Residency::UpTo(seconds) => Some(seconds),
        // Fletcher throughout, which costs more than CRC-64; or xor throughout, which is `static`.
        Residency::Never | Residency::Always => None,
    };
    let cheaper = CHEAPER.into_iter().find(|&mode| {
        let worth_it = mode != Mode::Dynamic || t_switch_s.is_some();
        worth_it && model.keeps_goal(mode, model.goal).covers(uptime_s)
    });
    let mode = cheaper.unwrap_or(Mode::Uniform);
    debug_assert!(model.keeps_goal(mode, model.goal).covers(uptime_s));
    Recommendation { mode, t_switch_s: t_switch_s.filter(|_| mode == Mode::Dynamic) }
}
