//! `holdfast reliability`: how probable silent corruption is in each protection mode, and which mode to take; the paper's figures.

use crate::args::{Assumed, Reliability};
use crate::failure::{Failure, Result};
use crate::output::{self, Format, Report, print, table};
use crate::protection::{Looked, look, one_in, time};
use crate::quoting;
use holdfast_reliability::{Goal, Machine, Mode, Residency, draw, recommend};
use serde::Serialize;

#[derive(Serialize)]
struct Judged {
    machine: MachineSeen,
    goal: GoalWanted,
    /// Whose figures for the strength of checksums.
    checksum_data: &'static str,
    /// How long the page has been in memory for which the scores are.
    residency_s: f64,
    modes: Vec<ModeJudged>,
    t_switch: Kept,
    recommendation: Recommended,
}

#[derive(Serialize)]
struct MachineSeen {
    memory: MemorySeen,
    disk: DiskSeen,
    /// How long a written page stays in memory before it is on the disk.
    flush_s: f64,
}

#[derive(Serialize)]
struct MemorySeen {
    fit_per_mbit: f64,
    flips_per_bit_s: f64,
    /// −log10 of it.
    index: f64,
    /// What was detected, given or assumed.
    from: String,
}

#[derive(Serialize)]
struct DiskSeen {
    uber: f64,
    /// −log10 of it.
    index: f64,
    /// What was given or assumed.
    from: String,
}

#[derive(Serialize)]
struct GoalWanted {
    name: &'static str,
    /// The most probable that a silent corruption in one read of 4 KiB may be.
    probability: f64,
    score: f64,
}

#[derive(Serialize)]
struct ModeJudged {
    mode: String,
    stands_for: String,
    score: f64,
    /// For how long a page may stay in memory until the mode misses a goal.
    keeps: Keeps,
}

#[derive(Serialize)]
struct Keeps {
    terabyte: Kept,
    petabyte: Kept,
    exabyte: Kept,
    zettabyte: Kept,
}

/// `never`, `always`, or up to so many seconds.
#[derive(Serialize, Clone, Copy)]
struct Kept {
    held: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl Kept {
    fn of(residency: Residency) -> Kept {
        match residency {
            Residency::Never => Kept { held: "never", seconds: None },
            Residency::UpTo(seconds) => Kept { held: "up-to", seconds: Some(seconds) },
            Residency::Always => Kept { held: "always", seconds: None },
        }
    }

    fn words(self) -> String {
        self.seconds.map_or(self.held.to_string(), time)
    }
}

#[derive(Serialize)]
struct Recommended {
    mode: String,
    /// Whose figures for what modes cost.
    costs: &'static str,
    /// For pages that stay in memory for so long.
    uptime_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    t_switch_s: Option<f64>,
}

impl Report for Judged {
    fn words(&self) -> String {
        let (memory, disk) = (&self.machine.memory, &self.machine.disk);
        let bits = format!("{:.1e}", 1.0 / disk.uber).replace(".0e", "e");
        let mut text = table(&[
            ("memory", format!("{} FIT/Mbit: {}", rate(memory.fit_per_mbit), memory.from)),
            ("disk", format!("one bit in {bits} comes back wrong: {}", disk.from)),
            ("goal", format!("{}: a score of {:.2}", one_in(self.goal.name), self.goal.score)),
            ("checksums", format!("strength as {}", self.checksum_data)),
        ]);
        let header = format!("score at {}", time(self.residency_s));
        let width = header.len();
        let (to_goals, goals) = (26 + width, 12 * Goal::ALL.len());
        text.push_str(&format!("\n{:to_goals$}{:>goals$}", "", "keeps the goal for pages up to so long in memory"));
        text.push_str(&format!("\n  {:22}  {header}", "mode"));
        for goal in Goal::ALL {
            text.push_str(&format!("  {:>10}", goal.name()));
        }
        text.push('\n');
        for judged in &self.modes {
            text.push_str(&format!("  {:22}  {:>width$.2}", judged.mode, judged.score));
            let Keeps { terabyte, petabyte, exabyte, zettabyte } = judged.keeps;
            for kept in [terabyte, petabyte, exabyte, zettabyte] {
                text.push_str(&format!("  {:>10}", kept.words()));
            }
            text.push('\n');
        }
        text.push_str(&format!("\n{}\n{}\n", self.switch(), self.advice()));
        text
    }
}

impl Judged {
    fn switch(&self) -> String {
        match self.t_switch.seconds {
            Some(seconds) => format!("t_switch: xor is strong enough in memory for {}.", time(seconds)),
            None if self.t_switch.held == "never" => {
                "t_switch: xor is never strong enough in memory; `static` and `dynamic` use the strong checksum throughout there."
                    .into()
            }
            None => "t_switch: never needed, xor is always strong enough.".into(),
        }
    }

    fn advice(&self) -> String {
        let Recommended { mode, costs, uptime_s, t_switch_s } = &self.recommendation;
        let switch = t_switch_s.map_or(String::new(), |seconds| format!(" with t_switch {}", time(seconds)));
        format!(
            "Recommended: {mode}{switch}, the cheapest mode, by costs as {costs}, that keeps the goal for pages up to {} in memory.\n\
             (`holdfast create --protection auto` takes what is recommended, and the same options.)",
            time(*uptime_s)
        )
    }
}

#[derive(Serialize)]
struct Drawn {
    figure: u8,
    file: String,
}

impl Report for Drawn {
    fn words(&self) -> String {
        format!("Drew figure {} in {}.\n", self.figure, quoting::name(&self.file))
    }
}

pub(crate) fn run(arguments: &Reliability, format: Format) -> Result<()> {
    match (arguments.figure, &arguments.out) {
        (Some(figure), Some(file)) => {
            let Assumed { checksum_data, goal, .. } = arguments.assumed;
            let svg = draw(figure, checksum_data, goal).map_err(|error| Failure::new(error.to_string()))?;
            if output::draw(file, &svg)? {
                print(format, &Drawn { figure: figure.number(), file: file.display().to_string() });
            }
        }
        _ => print(format, &judge(arguments)),
    }
    Ok(())
}

fn judge(arguments: &Reliability) -> Judged {
    let Reliability { assumed, residency, .. } = arguments;
    let Looked { model, memory_from, disk_from } = look(assumed);
    let Machine { memory, disk, .. } = model.machine;
    let modes = Mode::ALL.into_iter().map(|mode| {
        let kept = |goal| Kept::of(model.keeps_goal(mode, goal));
        ModeJudged {
            mode: mode.to_string(),
            stands_for: mode.stands_for(),
            score: model.score(mode, *residency),
            keeps: Keeps {
                terabyte: kept(Goal::Terabyte),
                petabyte: kept(Goal::Petabyte),
                exabyte: kept(Goal::Exabyte),
                zettabyte: kept(Goal::Zettabyte),
            },
        }
    });
    let recommended = recommend(&model, assumed.costs, assumed.uptime);
    Judged {
        machine: MachineSeen {
            memory: MemorySeen {
                fit_per_mbit: memory.fit_per_mbit(),
                flips_per_bit_s: memory.flips_per_bit_s(),
                index: memory.index(),
                from: memory_from,
            },
            disk: DiskSeen { uber: disk.uber(), index: disk.index(), from: disk_from },
            flush_s: assumed.flush,
        },
        goal: GoalWanted {
            name: model.goal.name(),
            probability: model.goal.probability().value(),
            score: model.goal.score(),
        },
        checksum_data: model.data.name(),
        residency_s: *residency,
        modes: modes.collect(),
        t_switch: Kept::of(model.t_switch()),
        recommendation: Recommended {
            mode: recommended.mode.to_string(),
            costs: assumed.costs.name(),
            uptime_s: assumed.uptime,
            t_switch_s: recommended.t_switch_s,
        },
    }
}

/// A rate of errors, in at least three digits.
fn rate(value: f64) -> String {
    match value {
        // Of a small one two places behind the point would show little, or nothing.
        _ if !(0.1..1e9).contains(&value) => format!("{value:.2e}").replace(".00e", "e"),
        100.0.. => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
