//! The plan, and all of it on embedded stores, which need neither root nor a mount.

use super::*;
use std::collections::HashSet;
use std::path::PathBuf;

fn plan(file_mib: u64) -> Plan {
    Plan {
        modes: MODES.to_vec(),
        ways: vec![Way::Embedded, Way::EmbeddedSums, Way::Library, Way::LibrarySums],
        works: Work::all(),
        file_mib,
        sample_mib: 1,
        pool_rounds: 1,
        rounds: 2,
        seed: 1,
    }
}

/// The rows of the plan on stores in a directory of their own, with pools of so many bytes.
fn embedded_rows(plan: &Plan, pool_bytes: u64) -> Result<Vec<Row>> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut stacks = Vec::new();
    for mode in &plan.modes {
        let store: PathBuf = dir.path().join(mode.to_string());
        embedded::create(&store, 48 << 20, *mode);
        let stack = InProcess::open(&store, *mode, pool_bytes)?;
        lay_out(plan, &stack, Way::Embedded)?;
        stacks.push(stack);
    }
    let mut rows = run(plan, &mut stacks, Way::is_embedded, &mut |_| {})?;
    drop(stacks);
    let open = |mode: &Protection| ByLibrary::open(&dir.path().join(mode.to_string()), *mode, pool_bytes);
    let mut libraries = plan.modes.iter().map(open).collect::<Result<Vec<_>>>()?;
    rows.extend(run(plan, &mut libraries, Way::is_by_library, &mut |_| {})?);
    Ok(rows)
}

#[test]
fn every_mode_has_each_turn_as_often_and_comes_as_often_before_as_behind() {
    let modes = MODES.len();
    let rounds = 2 * modes as u64;
    let mut at = vec![vec![0; modes]; modes];
    let mut before = 0i64;
    for round in 0..rounds {
        let order = turns(modes, round);
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), modes);
        for (turn, mode) in order.iter().enumerate() {
            at[*mode][turn] += 1;
        }
        let place = |mode: usize| order.iter().position(|other| *other == mode).expect("each mode has a turn") as i64;
        before += (1..modes).map(|mode| (place(mode) - place(0)).signum()).sum::<i64>();
    }
    assert!(at.iter().flatten().all(|times| *times == 2), "{at:?}");
    assert_eq!(before, 0);
}

#[test]
fn rounds_walk_through_the_whole_file() {
    let plan = plan(5);
    for work in Work::all() {
        let visited: Vec<u64> = (0..5).flat_map(|round| plan.places(work, round)).collect();
        let all = 5 * MIB / work.bytes as u64;
        assert_eq!(visited.len() as u64, all);
        assert!(visited.iter().all(|place| *place < all));
        let different = visited.iter().collect::<HashSet<_>>().len() as u64;
        assert!(if work.random { different > all / 2 } else { different == all }, "{}", work.name());
    }
}

#[test]
fn all_works_run_in_all_modes_and_cost_something() {
    let plan = plan(3);
    let rows = embedded_rows(&plan, 16 << 20).expect("all of it runs");
    assert_eq!(rows.len(), plan.ways.len() * Work::all().len());
    for row in &rows {
        for cost in row.costs.iter().flatten() {
            assert_eq!(cost.requests, MIB / row.work.bytes as u64);
            assert!(cost.cpu > Duration::ZERO && cost.wall > Duration::ZERO, "{}", row.work.name());
        }
        assert!(row.costs.iter().all(|costs| costs.len() == 2));
    }
    let text = tables(&plan, &rows);
    for mode in &plan.modes[1..] {
        assert!(text.contains(&format!("{mode}")), "{text}");
    }
}

#[test]
fn a_pool_that_does_not_hold_the_file_is_noticed() {
    let works = vec![Work { action: Action::ReadWarm, random: false, bytes: BLOCK }];
    for way in [Way::Embedded, Way::Library] {
        let plan = Plan { works: works.clone(), ways: vec![way], ..plan(8) };
        let got = embedded_rows(&plan, 4 << 20);
        assert!(got.as_ref().is_err_and(|error| error.to_string().contains("not in the pool")), "{got:?}");
    }
}

#[test]
fn a_block_in_the_wrong_place_is_noticed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = dir.path().join("store");
    embedded::create(&store, 48 << 20, Protection::None);
    let stack = InProcess::open(&store, Protection::None, 16 << 20).expect("it opens");
    let plan = plan(2);
    lay_out(&plan, &stack, Way::Embedded).expect("written");
    let file = stack.file(Way::EmbeddedSums).expect("it is there");
    let work = Work { action: Action::ReadWarm, random: true, bytes: BLOCK };
    let mut buffer = vec![0; BLOCK];
    carry_out(&*file, work, &plan.places(work, 0), &mut buffer, 1).expect("all blocks are right");
    file.write(&buffer, 0).expect("written");
    file.write(&buffer, BLOCK as u64).expect("written");
    let got = carry_out(&*file, work, &[0, 1], &mut buffer, 1);
    assert!(matches!(got, Err(Error::WrongContents { .. })), "{got:?}");
}
