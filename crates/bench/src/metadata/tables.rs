//! The tables: ratios by load and step, what they are worth, and the goals.

use holdfast_physical::{
    AUDIT_BYTES_PER_CHANGED_BLOCK, PROTECTION_BYTES_PER_BLOCK, PROTECTION_BYTES_PER_CHANGED_BLOCK,
};

use super::{Load, Plan, Row, Step, peaks};
use crate::integrity::{Cost, Multiple, Ratio, Verdict, median, per_request, shown};
use crate::pattern::BLOCK;
use crate::report::{number, table};

/// Digits of a ratio: the goals are a few per cent.
const DIGITS: usize = 3;
/// How many times as dear as counting an audit by comparison with copies is to be.
const TIMES_MIN: f64 = 10.0;

/// What the ratio is to be at least: 2 % of the throughput of transactions may go, and 5 % of a page's deletion may come.
fn goal(load: Load) -> Option<f64> {
    match load {
        Load::Oltp => Some(0.98),
        Load::Delete | Load::DeleteShared | Load::DeleteHuge => Some(1.0 / 1.05),
        Load::Create | Load::Unlink => None,
    }
}

fn micros(costs: &[Cost]) -> Vec<f64> {
    per_request(costs, |cost| cost.cpu)
}

/// The CPU time of an operation in the first step, the ratios of the others to it, what they take more; and the goals.
pub fn tables(plan: &Plan, rows: &[Row]) -> String {
    let Some((first, others)) = plan.steps.split_first() else { return String::new() };
    let mut header = vec!["load".to_owned(), format!("{}, µs", first.name())];
    header.extend(others.iter().flat_map(|step| [step.name().to_owned(), "more, ns".to_owned()]));
    let body = rows.iter().map(|row| {
        let base = micros(&row.costs[0]);
        let mut cells = vec![row.load.name().to_owned(), median(base.clone())];
        for costs in &row.costs[1..] {
            let own = micros(costs);
            let ratio = Ratio::of(&base, &own).map_or_else(|| "–".to_owned(), |ratio| shown(&ratio, DIGITS));
            cells.extend([ratio, more(&base, &own)]);
        }
        cells
    });
    let ratios = table(&header, body.collect());
    let header = ["what", "step", "goal", "measured", "verdict"].map(str::to_owned);
    let goals = table(&header, goals(plan, rows));
    let others = [control(plan, rows), freed(plan, rows), audits(plan, rows), peaks::tables(plan, rows)].concat();
    format!("## CPU time of an operation\n\n{ratios}{others}\n## Goals\n\n{goals}")
}

fn position(plan: &Plan, wanted: Step) -> Option<usize> {
    plan.steps.iter().position(|step| *step == wanted)
}

/// A store without protection against the same once more: what the machine says of nothing is what it cannot tell of others. Nothing if that was not
/// measured.
fn control(plan: &Plan, rows: &[Row]) -> String {
    let again = position(plan, Step::Again).filter(|_| plan.steps[0] == Step::Off);
    let Some(again) = again else { return String::new() };
    let header = ["load", "ratio", "more, ns", "1 is within", "verdict on nothing"].map(str::to_owned);
    let body = rows.iter().filter_map(|row| {
        let [base, own] = [0, again].map(|step| micros(&row.costs[step]));
        let ratio = Ratio::of(&base, &own)?;
        let is_within = if ratio.low <= 1.0 && 1.0 <= ratio.high { "yes" } else { "**no**" };
        let verdict = goal(row.load).map_or("–", |goal| Verdict::of(&ratio, goal).name());
        let cells = [row.load.name(), &shown(&ratio, DIGITS), &more(&base, &own), is_within, verdict];
        Some(cells.map(str::to_owned).to_vec())
    });
    format!("\n## Off against off: what this machine cannot tell\n\n{}", table(&header, body.collect()))
}

/// How many blocks of a file a second of CPU time frees, in millions; those of its tree come beside and are not counted. Nothing if no load deletes a
/// file.
fn freed(plan: &Plan, rows: &[Row]) -> String {
    let mut header = vec!["load".to_owned()];
    header.extend(plan.steps.iter().map(|step| step.name().to_owned()));
    let of = |row: &Row, costs: &[Cost]| {
        let per_second = |cost: &Cost| row.load.freed(plan) as f64 / cost.cpu.as_secs_f64() / 1e6;
        median(costs.iter().map(per_second).collect())
    };
    let body: Vec<Vec<String>> = rows
        .iter()
        .filter(|row| row.load.freed(plan) > 0)
        .map(|row| {
            let cells = row.costs.iter().map(|costs| of(row, costs));
            std::iter::once(row.load.name().to_owned()).chain(cells).collect()
        })
        .collect();
    match body.is_empty() {
        true => String::new(),
        false => format!("\n## Millions of blocks freed per second of CPU time\n\n{}", table(&header, body)),
    }
}

/// What the audit of recovery points by counting, and by comparison, takes more than none: rounds by step. None if one of the three was not measured.
fn of_audits(plan: &Plan, row: &Row) -> Option<[Vec<f64>; 3]> {
    let [names, audited, compared] = [Step::Names, Step::Audited, Step::Compared].map(|step| position(plan, step));
    Some([names?, audited?, compared?].map(|step| micros(&row.costs[step])))
}

/// What the audit of recovery points adds to rolling checksums and the audit of names, by counting updates and by comparison with copies, and how many
/// times as much the latter is (with its interval; the goal is ten); nothing if one of the three was not measured.
fn audits(plan: &Plan, rows: &[Row]) -> String {
    let header = ["load", "counting updates, ns", "comparing with copies, ns", "times as much"].map(str::to_owned);
    let body: Option<Vec<Vec<String>>> = rows
        .iter()
        .map(|row| {
            let [names, audited, compared] = of_audits(plan, row)?;
            let times = Multiple::of(&names, &audited, &compared);
            let times = times.map_or_else(|| "–".to_owned(), |times| multiple(&times));
            Some(vec![row.load.name().to_owned(), more(&names, &audited), more(&names, &compared), times])
        })
        .collect();
    let Some(body) = body else { return String::new() };
    format!("\n## The audit of recovery points: more than without\n\n{}", table(&header, body))
}

/// Whether it is so many times as much.
fn verdict_of_times(times: &Multiple) -> &'static str {
    let Multiple { middle, low, high } = *times;
    if low < 1.0 && high.is_infinite() {
        return "cannot be told";
    }
    Verdict::of(&Ratio { median: middle, low, high, pairs: 0 }, TIMES_MIN).name()
}

/// `∞`: the lesser cost cannot be told from nothing.
fn multiple(times: &Multiple) -> String {
    let [middle, low, high] = [times.middle, times.low, times.high]
        .map(|times| if times.is_finite() { format!("{times:.1}") } else { "∞".to_owned() });
    format!("{middle} ({low}–{high})")
}

/// The median of what an operation takes more than its pair, in nanoseconds.
fn more(base: &[f64], own: &[f64]) -> String {
    let mut differences: Vec<f64> = base.iter().zip(own).map(|(base, own)| (own - base) * 1000.0).collect();
    differences.sort_by(f64::total_cmp);
    differences.get(differences.len() / 2).map_or_else(|| "–".to_owned(), |middle| format!("{middle:+.1}"))
}

fn goals(plan: &Plan, rows: &[Row]) -> Vec<Vec<String>> {
    let mut goals = Vec::new();
    for row in rows {
        let ([off, costs @ ..], [_off, steps @ ..]) = (&row.costs[..], &plan.steps[..]) else { continue };
        for (costs, step) in costs.iter().zip(steps).filter(|(_, step)| step.has_goals()) {
            let ratio = Ratio::of(&micros(off), &micros(costs));
            if let (Some(goal), Some(ratio)) = (goal(row.load), ratio) {
                let verdict = Verdict::of(&ratio, goal).name();
                let cells = [row.load.name(), step.name(), &format!("{goal:.3}"), &shown(&ratio, DIGITS), verdict];
                goals.push(cells.map(str::to_owned).to_vec());
            }
        }
    }
    for row in rows {
        let times = of_audits(plan, row).and_then(|[names, less, more]| Multiple::of(&names, &less, &more));
        if let Some(times) = times {
            let name = format!("cheaper than by copies: {}", row.load.name());
            let goal = format!("{TIMES_MIN:.0} times");
            let verdict = verdict_of_times(&times).to_owned();
            goals.push(vec![name, Step::Audited.name().to_owned(), goal, multiple(&times), verdict]);
        }
    }
    goals.extend(peaks::goals(&plan.steps, rows));
    let changed = PROTECTION_BYTES_PER_BLOCK + PROTECTION_BYTES_PER_CHANGED_BLOCK;
    let of_audit = format!(" ({AUDIT_BYTES_PER_CHANGED_BLOCK} for the audit)");
    for (what, bytes, of_it) in [
        ("memory of a cached block", PROTECTION_BYTES_PER_BLOCK, ""),
        ("of a changed one, until the recovery point", changed, of_audit.as_str()),
        ("of a changed page of names, until the recovery point", BLOCK, ""),
    ] {
        let share = bytes as f64 / BLOCK as f64;
        let measured = format!("{bytes} bytes{of_it}, {} %", number(100.0 * share));
        goals.push([what, "all", &peaks::goal(), &measured, peaks::verdict(share)].map(str::to_owned).to_vec());
    }
    goals
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(load: Load, slower_per_mille: u32) -> Row {
        let cost = |cpu| Cost { requests: 100, cpu, daemon_cpu: Duration::ZERO, wall: cpu };
        let base = Duration::from_micros(1000);
        let costs = vec![vec![cost(base); 30], vec![cost(base * (1000 + slower_per_mille) / 1000); 30]];
        Row { load, costs, taken: Vec::new() }
    }

    fn plan() -> Plan {
        let (steps, loads) = (vec![Step::Off, Step::Rolling], Load::ALL.to_vec());
        Plan { steps, loads, file_mib: 1, huge_mib: 2, transactions: 1, files: 1, rounds: 30, seed: 1 }
    }

    #[test]
    fn what_a_step_takes_more_is_told_beside_the_ratio() {
        let text = tables(&plan(), &[row(Load::Create, 25)]);
        let line = text.lines().find(|line| line.contains("creation")).expect("a row");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[2..5], ["10.0", "0.976 (0.976–0.976)", "+250.0"]);
    }

    #[test]
    fn both_audits_are_told_beside_each_other() {
        let steps = vec![Step::Off, Step::Names, Step::Audited, Step::Compared];
        let slower = [0, 10, 12, 40];
        let costs = slower.map(|slower| row(Load::Create, slower).costs.swap_remove(1)).to_vec();
        let row = Row { load: Load::Create, costs, taken: Vec::new() };
        let text = tables(&Plan { steps, ..plan() }, &[row]);
        let table = text.split_once("## The audit").expect("all three were measured").1;
        let line = table.lines().find(|line| line.contains("creation")).expect("a row");
        assert!(line.contains("+20.0") && line.contains("+300.0") && line.contains("15.0 (15.0–15.0)"), "{line}");
        let goal = text.lines().find(|line| line.contains("cheaper than by copies: creation")).expect("a goal");
        assert!(goal.contains("10 times") && goal.contains("15.0 (15.0–15.0)") && goal.contains(" met |"), "{goal}");
    }

    #[test]
    fn what_may_be_any_number_of_times_cannot_be_told() {
        let verdict = |middle, low, high| verdict_of_times(&Multiple { middle, low, high });
        let infinity = f64::INFINITY;
        assert_eq!(verdict(infinity, 0.0, infinity), "cannot be told");
        assert_eq!(verdict(infinity, 10.0, infinity), "met");
        assert_eq!(verdict(infinity, 4.5, infinity), "met by the median");
        assert_eq!(verdict(1.9, 0.7, 10.5), "missed by the median");
        assert_eq!(verdict(1.2, 0.6, 1.8), "**missed**");
    }

    #[test]
    fn blocks_are_those_that_have_become_free() {
        for (load, expected) in [
            (Load::Delete, ["0.26", "0.20"]),
            (Load::DeleteShared, ["0.22", "0.18"]),
            (Load::DeleteHuge, ["0.51", "0.41"]),
        ] {
            let text = tables(&plan(), &[row(load, 250)]);
            let table = text.split_once("per second of CPU time").expect("a file is deleted").1;
            let line = table.lines().find(|line| line.contains(load.name())).expect("a row");
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(cells[2..4], expected, "{}", load.name());
        }
        assert!(!tables(&plan(), &[row(Load::Create, 0)]).contains("blocks freed"));
    }

    #[test]
    fn what_is_measured_twice_says_what_cannot_be_told() {
        let steps = vec![Step::Off, Step::Again];
        for (slower, told) in [(0, ["yes", "met"]), (10, ["**no**", "met"]), (30, ["**no**", "**missed**"])] {
            let text = tables(&Plan { steps: steps.clone(), ..plan() }, &[row(Load::Oltp, slower)]);
            let (_, table) = text.split_once("## Off against off").expect("it was measured");
            let line = table.lines().find(|line| line.contains(Load::Oltp.name())).expect("a row");
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(cells[4..6], told, "{line}");
            let (_, goals) = text.split_once("## Goals").expect("there are goals");
            assert!(!goals.contains(Step::Again.name()), "{goals}");
        }
        assert!(!tables(&plan(), &[row(Load::Oltp, 0)]).contains("## Off against off"));
    }

    #[test]
    fn goals_are_told_as_they_are() {
        for (load, slower, verdict) in [
            (Load::Oltp, 20, "met"),
            (Load::Oltp, 21, "**missed**"),
            (Load::Delete, 50, "met"),
            (Load::DeleteShared, 51, "**missed**"),
        ] {
            let text = tables(&plan(), &[row(load, slower)]);
            let goals = text.split_once("## Goals").expect("there are goals").1;
            let line = goals.lines().find(|line| line.contains(load.name())).expect("a goal");
            assert_eq!(line.split('|').rev().nth(1).map(str::trim), Some(verdict), "{goals}");
        }
    }
}
