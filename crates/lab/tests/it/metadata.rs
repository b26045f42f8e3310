//! Metadata in memory that is written to as nobody may. More of it: the program metadata-campaign.

use holdfast_lab::metadata::operations::{self, Operation};
use holdfast_lab::metadata::{Done, Kind, PageKind, Plan, Trial, Verdict, Ways, What, again, run, text};
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::{MetaKind, Pattern};

fn strike(plan: &Plan) -> Done {
    run(plan, &mut |_| {}).unwrap()
}

/// Not those of the documentation, so that each run looks elsewhere; printed to be run again.
#[test]
fn nothing_of_it_is_stored_and_nobody_above_notices() {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
    let (seed, injections) = (crate::number("HOLDFAST_SEED", now), crate::number("HOLDFAST_INJECTIONS", 150));
    println!(
        "replay: HOLDFAST_SEED={seed} HOLDFAST_INJECTIONS={injections} cargo test -p holdfast-lab --test it metadata::nothing"
    );
    let done = strike(&Plan { seed, injections, metadata: MetadataProtection::default(), kind: None, ways: Ways::All });
    assert!(done.broken().next().is_none(), "seed {seed}:\n{}", text(&done));
}

#[test]
fn without_protection_it_is_stored() {
    for (metadata, injections) in [(MetadataProtection::Off, 50), (MetadataProtection::Rolling, 150)] {
        let done = strike(&Plan { seed: 1, injections, metadata, kind: None, ways: Ways::All });
        let stored = done.trials.iter().filter(|trial| !trial.stored.is_empty()).count();
        assert!(stored > 0, "{metadata:?}:\n{}", text(&done));
    }
}

/// What has to be met comes first, then what has not been struck; each strike can be made again alone, and the order comes from the seed.
#[test]
fn each_field_is_struck_in_each_way_and_no_cell_twice() {
    let kind = Some(Kind::Page(PageKind::Link));
    let plan =
        |injections| Plan { seed: 7, injections, metadata: MetadataProtection::default(), kind, ways: Ways::All };
    let (needs, cells) = (strike(&plan(1)).coverage.needs().0, strike(&plan(1)).coverage.cells().0);
    // Two fields, four patterns, two sides.
    assert_eq!(needs, 16);
    assert!(cells > 24, "{cells} cells");
    let first = strike(&plan(16));
    assert_eq!((first.coverage.needs(), first.coverage.unmet()), ((16, 16), Vec::new()), "{}", text(&first));
    let more = strike(&plan(24));
    assert_eq!(more.coverage.cells().1, 24, "{}", text(&more));
    for (trial, same) in more.trials.iter().zip(&first.trials).step_by(5) {
        let alone = again(&trial.replay(), MetadataProtection::default()).unwrap();
        let told = |trial: &holdfast_lab::metadata::Trial| format!("{trial:?}");
        assert_eq!((told(trial), told(trial)), (told(same), told(&alone.trials[0])));
    }
    assert!(again("0:0:1:link-page:clean:bit", MetadataProtection::default()).is_err());
}

/// Of a field that the audit has, in a place where something is put legally afterwards. (For more of them, `metadata-campaign --pattern keep-all`.)
#[test]
fn what_no_sum_sees_is_a_logic_bug_and_goes_unseen_without_the_audit() {
    for kind in [MetaKind::ObjectTable, MetaKind::Bitmap, MetaKind::SnapshotList] {
        let plan = |metadata| Plan {
            seed: 3,
            injections: 8,
            metadata,
            kind: Some(Kind::Store(kind)),
            ways: Ways::Pattern(Pattern::KeepAll),
        };
        let done = strike(&plan(MetadataProtection::Audited));
        assert_eq!((done.trials.len(), done.broken().count()), (8, 0), "{}", text(&done));
        // What an equation would have found is not found, and of lists it is stored.
        let done = strike(&plan(MetadataProtection::Rolling));
        assert!(done.trials.iter().all(|trial| trial.verdict == Verdict::Harmless), "{}", text(&done));
        let stored = done.trials.iter().filter(|trial| !trial.stored.is_empty()).count();
        assert_eq!(stored > 0, kind == MetaKind::SnapshotList, "{}", text(&done));
    }
}

/// Each field of what an epoch has changed of which the other side of an equation is kept elsewhere, once. (At other moments: `metadata-campaign --pattern logic-bug`.)
#[test]
fn a_wrong_legal_change_of_a_field_is_a_logic_bug() {
    let plan = |injections, metadata| Plan { seed: 5, injections, metadata, kind: None, ways: Ways::Bugs };
    let wrong = |done: &Done, kind: MetaKind| {
        let of_kind = |what: &What| matches!(what, What::Wrong { kind: of, .. } if *of == kind);
        done.trials.iter().filter(|trial| of_kind(&trial.cell.what)).cloned().collect::<Vec<_>>()
    };
    let needs = strike(&plan(1, MetadataProtection::Audited)).coverage.needs().0;
    let done = strike(&plan(needs as u64, MetadataProtection::Audited));
    assert!(done.broken().next().is_none(), "{}", text(&done));
    assert_eq!(done.coverage.unmet(), [""; 0], "{}", text(&done));
    for (kind, fields) in [
        (MetaKind::BlockTree, 5),
        (MetaKind::ReferenceTable, 1),
        (MetaKind::Map, 1),
        (MetaKind::SnapshotList, 50),
        (MetaKind::DeadList, 4),
        (MetaKind::Record, 30),
    ] {
        assert!(wrong(&done, kind).len() >= fields, "{kind}: {}", text(&done));
    }
    // Nothing but an equation tells of a wrong counter.
    let done = strike(&plan(40, MetadataProtection::Rolling));
    let counters = wrong(&done, MetaKind::ReferenceTable);
    assert!(!counters.is_empty() && counters.iter().all(Trial::is_misnamed), "{}", text(&done));
}

/// Some fields × operations, others each time; printed to be run again.
#[test]
fn what_an_operation_meets_is_noticed_or_does_no_harm() {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
    let (seed, cells) = (crate::number("HOLDFAST_SEED", now), crate::number("HOLDFAST_CELLS", 24));
    println!(
        "replay: HOLDFAST_SEED={seed} HOLDFAST_CELLS={cells} cargo test -p holdfast-lab --test it metadata::what_an_operation"
    );
    let done = operations::run(&of_operations(seed, cells as usize), &mut |_| {}).unwrap();
    assert!(
        done.broken().next().is_none() && done.cells() as u64 == cells,
        "seed {seed}:\n{}",
        operations::text(&done)
    );
}

fn of_operations(seed: u64, cells: usize) -> operations::Plan {
    let metadata = MetadataProtection::default();
    operations::Plan { seed, times: 1, cells: Some(cells), operation: None, kind: None, metadata, at_once: 2 }
}

/// In the second in which a block is believed, too: numbers that are told are held against nothing else.
#[test]
fn what_only_a_snapshot_has_is_told_of_what_was_verified_just_now() {
    let (kind, operation) = (Some(Kind::Store(MetaKind::DeadList)), Some(Operation::SnapshotList));
    let plan = operations::Plan { kind, operation, times: 50, cells: None, ..of_operations(5, 0) };
    let done = operations::run(&plan, &mut |_| {}).unwrap();
    assert!(done.broken().next().is_none() && done.trials.len() == 400, "{}", operations::text(&done));
}

/// And each strike can be made again alone.
#[test]
fn without_protection_an_operation_meets_what_it_must_not() {
    let (kind, operation) = (Some(Kind::Store(MetaKind::ObjectTable)), Some(Operation::Sync));
    let weaker = operations::Plan { kind, operation, metadata: MetadataProtection::Off, ..of_operations(1, 8) };
    let done = operations::run(&weaker, &mut |_| {}).unwrap();
    let broken = done.broken().next().expect("one was met");
    let alone = operations::again(&broken.replay(), MetadataProtection::Off).unwrap();
    assert_eq!(format!("{broken:?}"), format!("{:?}", alone.trials[0]));
    let protected = operations::again(&broken.replay(), MetadataProtection::default()).unwrap();
    assert!(protected.broken().next().is_none(), "{}", operations::text(&protected));
    assert!(operations::again("stat:clean:1:record:clean", MetadataProtection::Off).is_err());
}
