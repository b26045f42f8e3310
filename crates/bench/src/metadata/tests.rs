//! All loads, small.

use super::*;
use std::time::Duration;

/// What is done elsewhere is done here.
struct Here<'a> {
    plan: &'a Plan,
    /// In which round, or for memory.
    asked: Vec<(Load, Option<u64>)>,
}

impl Elsewhere for Here<'_> {
    fn measure(&mut self, load: Load, round: u64) -> Result<Cost> {
        self.asked.push((load, Some(round)));
        load.measure(self.plan, &load.image(self.plan)?, Step::Audited, round)
    }

    fn take(&mut self, load: Load) -> Result<Taken> {
        self.asked.push((load, None));
        load.take(self.plan, &load.image(self.plan)?, Step::Audited)
    }
}

#[test]
fn all_loads_run_in_all_steps_and_cost_something() {
    let plan = Plan {
        steps: Step::ALL.to_vec(),
        loads: Load::ALL.to_vec(),
        file_mib: 32,
        huge_mib: 48,
        transactions: 8,
        files: 50,
        rounds: 2,
        seed: 1,
    };
    let mut elsewhere = Here { plan: &plan, asked: Vec::new() };
    let rows = execute(&plan, &mut elsewhere, &mut |_| ()).expect("all of it runs");
    let expected = Load::ALL.iter().flat_map(|load| [(*load, Some(0)), (*load, Some(1)), (*load, None)]);
    assert_eq!(elsewhere.asked, expected.collect::<Vec<_>>());
    assert_eq!(rows.iter().map(|row| row.load).collect::<Vec<_>>(), Load::ALL);
    for row in &rows {
        assert!(row.costs.len() == Step::ALL.len() && row.costs.iter().all(|costs| costs.len() == 2));
        assert_eq!(row.taken.len(), Step::ALL.len());
        let expected = match row.load {
            Load::Oltp => 8,
            Load::Delete | Load::DeleteShared => 32 << 8,
            Load::DeleteHuge => 48 << 8,
            Load::Create | Load::Unlink => 50,
        };
        for cost in row.costs.iter().flatten() {
            assert_eq!(cost.requests, expected, "{}", row.load.name());
            assert!(cost.cpu > Duration::ZERO, "{}", row.load.name());
        }
    }
    let text = tables(&plan, &rows);
    assert!(Load::ALL.iter().all(|load| text.contains(load.name())), "{text}");
}
