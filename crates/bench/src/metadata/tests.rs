//! All loads, small.

use super::*;
use std::time::Duration;

#[test]
fn all_loads_run_in_all_steps_and_cost_something() {
    let plan = Plan {
        steps: Step::ALL.to_vec(),
        loads: Load::ALL.to_vec(),
        file_mib: 32,
        transactions: 8,
        files: 50,
        rounds: 2,
        seed: 1,
    };
    let mut elsewhere = Vec::new();
    let mut locked = |load: Load, round| {
        elsewhere.push((load, round));
        load.measure(&plan, &load.image(&plan)?, Step::Audited, round)
    };
    let rows = execute(&plan, &mut locked, &mut |_| ()).expect("all of it runs");
    assert_eq!(elsewhere, Load::ALL.iter().flat_map(|load| [(*load, 0), (*load, 1)]).collect::<Vec<_>>());
    assert_eq!(rows.iter().map(|row| row.load).collect::<Vec<_>>(), Load::ALL);
    for row in &rows {
        assert!(row.costs.len() == Step::ALL.len() && row.costs.iter().all(|costs| costs.len() == 2));
        let expected = match row.load {
            Load::Oltp => 8,
            Load::Delete | Load::DeleteShared => 32 << 8,
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
