//! The tables: ratios per way of access, and the goals.

use std::time::Duration;

use holdfast_integrity::Protection;

use super::loads::{LoadRow, SwitchRow};
use super::statistics::{Ratio, Verdict};
use super::{Action, Cost, Plan, Row, Way};
use crate::measure::Summary;
use crate::report::{number, table};

const STATIC: Protection = Protection::Static { strong: false };

/// What is to be reached by CPU time per request.
fn goal(way: Way, action: Action, mode: Protection) -> Option<f64> {
    match (way, action, mode) {
        (Way::Mount, Action::ReadWarm, Protection::Uniform) => Some(0.95),
        (Way::Embedded | Way::Library, Action::ReadWarm, Protection::Uniform) => Some(0.90),
        // The 3 % of the paper, and no more for what goes to the device or comes from it.
        (Way::Mount, _, STATIC | Protection::Uniform) => Some(0.97),
        (Way::Embedded | Way::Library, Action::Write | Action::ReadCold, Protection::Uniform) => Some(0.97),
        _ => None,
    }
}

/// Microseconds of a part of each measurement, per request.
pub(crate) fn per_request(costs: &[Cost], part: impl Fn(&Cost) -> Duration) -> Vec<f64> {
    costs.iter().map(|cost| part(cost).as_secs_f64() * 1e6 / cost.requests.max(1) as f64).collect()
}

fn cpu(cost: &Cost) -> Duration {
    cost.cpu
}

/// Per way of access the CPU time of each request in the first mode and the ratios of the others to it, the same by wall clock, and
/// which goals are reached.
pub fn tables(plan: &Plan, rows: &[Row]) -> String {
    let mut text = String::new();
    for way in Way::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.way == way).collect();
        if rows.is_empty() {
            continue;
        }
        let rows: Vec<(String, &[Vec<Cost>])> = rows.iter().map(|row| (row.work.name(), &row.costs[..])).collect();
        text += &format!("### {}, by CPU time\n\n{}\n", capitalised(way.name()), ratios(&plan.modes, &rows, true));
        text += &format!("By wall clock:\n\n{}\n", ratios(&plan.modes, &rows, false));
    }
    let goals = goals(plan, rows);
    if !goals.is_empty() {
        let header = ["row", "mode", "goal", "ratio (95 % interval)", "verdict"].map(str::to_owned);
        text += &format!("### Goals\n\nBy CPU time:\n\n{}", table(&header, goals));
    }
    text
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Of rows with a name and costs by mode.
fn ratios(modes: &[Protection], rows: &[(String, &[Vec<Cost>])], by_cpu: bool) -> String {
    let part = |cost: &Cost| if by_cpu { cost.cpu } else { cost.wall };
    let mut header = vec!["work".to_owned(), format!("{}, µs", modes[0])];
    if by_cpu {
        header.push("of it daemon".to_owned());
    }
    header.extend(modes[1..].iter().map(Protection::to_string));
    let body = rows.iter().map(|(name, costs)| {
        let base = per_request(&costs[0], part);
        let mut cells = vec![name.clone(), median(base.clone())];
        if by_cpu {
            cells.push(median(per_request(&costs[0], |cost| cost.daemon_cpu)));
        }
        cells.extend(costs[1..].iter().map(|costs| ratio(&base, &per_request(costs, part))));
        cells
    });
    table(&header, body.collect())
}

/// The loads: what an operation costs, as the other tables.
pub fn load_tables(modes: &[Protection], rows: &[LoadRow]) -> String {
    let rows: Vec<(String, &[Vec<Cost>])> = rows.iter().map(|row| (row.load.to_string(), &row.costs[..])).collect();
    format!(
        "### Loads through the mount, by CPU time\n\n{}\nBy wall clock:\n\n{}",
        ratios(modes, &rows, true),
        ratios(modes, &rows, false)
    )
}

/// The webserver by t_switch.
pub fn switch_table(seconds: u64, rows: &[SwitchRow]) -> String {
    let header = ["mode", "µs per operation", "ratio by CPU time", "by wall clock", "pages read after t_switch"];
    let base = rows.first().map(|row| row.costs.as_slice()).unwrap_or_default();
    let body = rows.iter().map(|row| {
        let compared = |part: fn(&Cost) -> Duration| ratio(&per_request(base, part), &per_request(&row.costs, part));
        vec![
            row.mode.to_string(),
            median(per_request(&row.costs, cpu)),
            compared(cpu),
            compared(|cost| cost.wall),
            switched(row),
        ]
    });
    let table = table(&header.map(str::to_owned), body.collect());
    format!("### The webserver by t_switch, in a run of {seconds} s (figure 9 of the paper)\n\n{table}")
}

/// With a t_switch of 0 no page goes over: readers go by the strong checksum from the beginning.
fn switched(row: &SwitchRow) -> String {
    match row.mode {
        Protection::Dynamic { t_switch_s: 1.. } => format!("{:.0} %", 100.0 * row.switched),
        Protection::Dynamic { .. } => "all".to_owned(),
        _ => "–".to_owned(),
    }
}

pub(crate) fn median(values: Vec<f64>) -> String {
    Summary::of(values).map_or_else(|| "–".to_owned(), |summary| number(summary.median))
}

fn ratio(base: &[f64], other: &[f64]) -> String {
    Ratio::of(base, other).as_ref().map_or_else(|| "–".to_owned(), |ratio| shown(ratio, 2))
}

/// With so many digits behind the point.
pub(crate) fn shown(ratio: &Ratio, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}–{:.digits$})", ratio.median, ratio.low, ratio.high)
}

fn goals(plan: &Plan, rows: &[Row]) -> Vec<Vec<String>> {
    let mut goals = Vec::new();
    for row in rows {
        let (Some((base, others)), Some((_, modes))) = (row.costs.split_first(), plan.modes.split_first()) else {
            continue;
        };
        for (costs, mode) in others.iter().zip(modes) {
            let ratio = Ratio::of(&per_request(base, cpu), &per_request(costs, cpu));
            if let (Some(goal), Some(ratio)) = (goal(row.way, row.work.action, *mode), ratio) {
                let verdict = Verdict::of(&ratio, goal).name().to_owned();
                let place = format!("{}, {}", row.way.name(), row.work.name());
                goals.push(vec![place, mode.to_string(), format!("{goal:.2}"), shown(&ratio, 2), verdict]);
            }
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::{MODES, Work};
    use super::*;

    /// In every mode but the first a request takes `slower` times as long.
    fn row(way: Way, slower: u32) -> Row {
        let cost = |factor: u32| {
            let cpu = Duration::from_micros(1000) * factor / 100;
            Cost { requests: 100, cpu, daemon_cpu: cpu / 2, wall: cpu * 2 }
        };
        let work = Work { action: Action::ReadWarm, random: true, bytes: 4096 };
        let factor = |index| if index == 0 { 100 } else { slower };
        Row { way, work, costs: (0..MODES.len()).map(|index| vec![cost(factor(index)); 30]).collect() }
    }

    fn plan() -> Plan {
        let (ways, works) = (Way::ALL.to_vec(), Work::all());
        Plan { modes: MODES.to_vec(), ways, works, file_mib: 1, sample_mib: 1, rounds: 30, pool_rounds: 30, seed: 1 }
    }

    #[test]
    fn a_quarter_more_time_is_a_ratio_of_four_fifths() {
        let text = tables(&plan(), &[row(Way::Mount, 125)]);
        let line = text.lines().find(|line| line.contains("warm read")).expect("a row");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[1..5], ["warm read, random, 4 KiB", "10.0", "5.00", "0.80 (0.80–0.80)"]);
        assert_eq!(cells.len(), MODES.len() + 4);
    }

    #[test]
    fn goals_are_told_as_they_are() {
        for (slower, verdicts) in [(100, ["met"; 3]), (105, ["**missed**", "met", "met"]), (112, ["**missed**"; 3])] {
            let text =
                tables(&plan(), &[row(Way::Mount, slower), row(Way::Embedded, slower), row(Way::Interface, 900)]);
            let goals = text.split_once("## Goals").expect("there are goals").1;
            let got: Vec<&str> = goals
                .lines()
                .filter(|line| line.contains("warm read"))
                .map(|line| line.split('|').rev().nth(1).expect("a last cell").trim())
                .collect();
            assert_eq!(got, verdicts, "{slower}: {goals}");
        }
    }
}
