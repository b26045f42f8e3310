//! Traces of system calls: recorded from real programs, replayed in every protection mode (Z²FS paper, section IV-D, tables IV and V).

pub mod format;
pub mod replay;
pub mod strace;
mod strace_line;

use holdfast_integrity::{Algorithm, Protection};

use crate::integrity::Ratio;
use crate::report;
use replay::Outcome;

/// The modes of the paper's table V, and the others. All are compared with the first.
pub const MODES: [Protection; 7] = [
    Protection::EndToEnd(Algorithm::Fletcher256),
    Protection::EndToEnd(Algorithm::Xor64),
    Protection::Static { strong: false },
    Protection::Dynamic { t_switch_s: Protection::T_SWITCH_DEFAULT_S },
    Protection::Uniform,
    Protection::Disk,
    Protection::None,
];

/// All replays of one trace.
#[derive(Clone, Debug)]
pub struct Replays {
    /// The trace.
    pub name: String,
    /// How long it is, in seconds.
    pub seconds: u64,
    /// By mode, one of each round.
    pub outcomes: Vec<(Protection, Vec<Outcome>)>,
}

/// The two tables: what the traces are, and how long their reads take.
pub fn tables(traces: &[Replays]) -> String {
    format!("{}\n{}", characteristics(traces), times(traces))
}

/// Table IV.
fn characteristics(traces: &[Replays]) -> String {
    let header =
        ["trace", "length, s", "4 KiB reads", "hit rate", "before t_switch", "after t_switch", "calls skipped"];
    let rows = traces.iter().map(|trace| {
        let dynamic = trace.outcomes.iter().find(|(mode, _)| mode.switches_after().is_some());
        let Some(outcome) = dynamic.and_then(|(_, outcomes)| outcomes.first()) else { return vec![trace.name.clone()] };
        let share = |part: u64, whole: u64| format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64);
        vec![
            trace.name.clone(),
            trace.seconds.to_string(),
            outcome.pages.to_string(),
            share(outcome.hits, outcome.pages),
            share(outcome.hits - outcome.switched, outcome.hits),
            share(outcome.switched, outcome.hits),
            outcome.skipped.to_string(),
        ]
    });
    report::table(&header.map(str::to_owned), rows.collect())
}

/// Table V: the time in warm reads and in all reads, in milliseconds, with the ratio of the first mode's to each.
fn times(traces: &[Replays]) -> String {
    let mut header = vec!["trace".to_owned(), "reads".to_owned()];
    header.extend(MODES.map(|mode| format!("{mode}, ms")));
    let row = |trace: &Replays, name: &str, time: fn(&Outcome) -> f64| {
        let millis: Vec<Vec<f64>> =
            trace.outcomes.iter().map(|(_, outcomes)| outcomes.iter().map(time).collect()).collect();
        let cell = |own: &Vec<f64>| {
            let mut sorted = own.clone();
            sorted.sort_by(f64::total_cmp);
            let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
            match Ratio::of(&millis[0], own) {
                Some(ratio) => format!("{median:.2} ({:.2}, {:.2}–{:.2})", ratio.median, ratio.low, ratio.high),
                None => "–".to_owned(),
            }
        };
        let mut cells = vec![trace.name.clone(), name.to_owned()];
        cells.extend(millis.iter().map(cell));
        cells
    };
    let rows = traces.iter().flat_map(|trace| {
        [
            row(trace, "warm", |outcome| outcome.warm.as_secs_f64() * 1e3),
            row(trace, "all", |outcome| outcome.reads.as_secs_f64() * 1e3),
        ]
    });
    report::table(&header, rows.collect())
}

#[cfg(test)]
mod tests;
