//! The protection mode for a machine: the cheapest that keeps the goal.

use crate::mode::Mode;
use crate::model::{Model, Residency};

/// What may be recommended, in the order of what a read from memory costs: nothing is verified, xor is, CRC-64 is. End-to-end modes
/// are not here: only the reader verifies, and what is found to be wrong then cannot be mended any more.
const CANDIDATES: [Mode; 5] = [Mode::None, Mode::Disk, Mode::Static, Mode::Dynamic, Mode::Uniform];

/// A mode, and what speaks for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recommendation {
    /// The cheapest mode that keeps the goal; the strongest where none does.
    pub mode: Mode,
    /// How long it keeps the goal.
    pub keeps_goal: Residency,
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
    let mode = CANDIDATES.into_iter().find(|&mode| {
        let worth_it = mode != Mode::Dynamic || t_switch_s.is_some();
        worth_it && model.keeps_goal(mode, model.goal).covers(uptime_s)
    });
    let mode = mode.unwrap_or(Mode::Uniform);
    Recommendation {
        mode,
        keeps_goal: model.keeps_goal(mode, model.goal),
        t_switch_s: t_switch_s.filter(|_| mode == Mode::Dynamic),
    }
}
