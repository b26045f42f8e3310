//! The tables: ratios by load and step, and the goals.

use holdfast_physical::{AUDIT_BYTES_PER_CHANGED_BLOCK, PROTECTION_BYTES_PER_BLOCK};

use super::{Load, Plan, Row, Step};
use crate::integrity::{Cost, Multiple, Ratio, Verdict, median, per_request, shown};
use crate::pattern::BLOCK;
use crate::report::{number, table};

/// Digits of a ratio: the goals are a few per cent.
const DIGITS: usize = 3;
/// Most of the memory for metadata that protection may take.
const MEMORY_SHARE_MAX: f64 = 0.005;

/// What the ratio is to be at least: 2 % of the throughput of transactions may go, and 5 % of a page's deletion may come.
fn goal(load: Load) -> Option<f64> {
    match load {
        Load::Oltp => Some(0.98),
        Load::Delete | Load::DeleteShared => Some(1.0 / 1.05),
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
    let goals = table(&header, goals(others, rows));
    format!("## CPU time of an operation\n\n{ratios}{}\n## Goals\n\n{goals}", audits(plan, rows))
}

/// What the audit of recovery points adds to rolling checksums and the audit of names, by counting updates and by comparison with copies, and how many
/// times as much the latter is (with its interval; the goal is ten); nothing if one of the three was not measured.
fn audits(plan: &Plan, rows: &[Row]) -> String {
    let position = |wanted| plan.steps.iter().position(|step| *step == wanted);
    let positions = [Step::Names, Step::Audited, Step::Compared].map(position);
    let [Some(names), Some(audited), Some(compared)] = positions else { return String::new() };
    let header = ["load", "counting updates, ns", "comparing with copies, ns", "times as much"].map(str::to_owned);
    let body = rows.iter().map(|row| {
        let [names, audited, compared] = [names, audited, compared].map(|step| micros(&row.costs[step]));
        let times = Multiple::of(&names, &audited, &compared);
        let times = times.map_or_else(|| "–".to_owned(), |times| multiple(&times));
        vec![row.load.name().to_owned(), more(&names, &audited), more(&names, &compared), times]
    });
    format!("\n## The audit of recovery points: more than without\n\n{}", table(&header, body.collect()))
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

fn goals(steps: &[Step], rows: &[Row]) -> Vec<Vec<String>> {
    let mut goals = Vec::new();
    for row in rows {
        for (costs, step) in row.costs[1..].iter().zip(steps) {
            let ratio = Ratio::of(&micros(&row.costs[0]), &micros(costs));
            // What is measured for comparison only has none.
            if let (Some(goal), Some(ratio)) =
                (goal(row.load).filter(|_| !matches!(step, Step::Names | Step::Compared)), ratio)
            {
                let verdict = Verdict::of(&ratio, goal).name();
                let cells = [row.load.name(), step.name(), &format!("{goal:.3}"), &shown(&ratio, DIGITS), verdict];
                goals.push(cells.map(str::to_owned).to_vec());
            }
        }
    }
    let share = |bytes: usize| bytes as f64 / BLOCK as f64;
    let of_block = |bytes: usize| format!("{bytes} bytes, {} %", number(100.0 * share(bytes)));
    let is_met = share(PROTECTION_BYTES_PER_BLOCK) <= MEMORY_SHARE_MAX;
    let cells = [
        "memory of a cached block",
        "all",
        &format!("{:.1} %", 100.0 * MEMORY_SHARE_MAX),
        &of_block(PROTECTION_BYTES_PER_BLOCK),
        if is_met { Verdict::Met.name() } else { Verdict::Missed.name() },
    ];
    goals.push(cells.map(str::to_owned).to_vec());
    let changed = of_block(AUDIT_BYTES_PER_CHANGED_BLOCK);
    goals.push(
        ["and of a changed one, until the recovery point", "and the audit", "–", &changed, "–"]
            .map(str::to_owned)
            .to_vec(),
    );
    goals
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(load: Load, slower_per_mille: u32) -> Row {
        let cost = |cpu| Cost { requests: 100, cpu, daemon_cpu: Duration::ZERO, wall: cpu };
        let base = Duration::from_micros(1000);
        Row { load, costs: vec![vec![cost(base); 30], vec![cost(base * (1000 + slower_per_mille) / 1000); 30]] }
    }

    fn plan() -> Plan {
        let (steps, loads) = (vec![Step::Off, Step::Rolling], Load::ALL.to_vec());
        Plan { steps, loads, file_mib: 1, transactions: 1, files: 1, rounds: 30, seed: 1 }
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
        let text = tables(&Plan { steps, ..plan() }, &[Row { load: Load::Create, costs }]);
        let table = text.split_once("## The audit").expect("all three were measured").1;
        let line = table.lines().find(|line| line.contains("creation")).expect("a row");
        assert!(line.contains("+20.0") && line.contains("+300.0") && line.contains("15.0 (15.0–15.0)"), "{line}");
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
