//! The crash explorer finds nothing in the stack, and finds bugs that are planted.

use super::number;
use holdfast_lab::budget::Budget;
use holdfast_lab::explorer::{Options, Plant, explore};

/// States within which a planted bug must be found.
const PLANTED_STATES_MAX: u64 = 800;

/// `HOLDFAST_STATES` and `HOLDFAST_SEED` choose how many and which.
#[test]
fn every_power_cut_is_survived() {
    let states = number("HOLDFAST_STATES", 2_000);
    let options = Options { budget: Budget::new(number("HOLDFAST_SEED", 1), states), ..Options::default() };
    let (report, failure) = explore(&options);
    if let Some(failure) = failure {
        panic!("{failure}\n{}", failure.trace.join("\n"));
    }
    assert!(report.states >= states, "{report:?}");
    // It has looked where it should: every mode, recoveries cut off, the log replayed, actions during writes.
    assert!(report.by_mode.iter().all(|count| *count > states / 50), "{report:?}");
    assert!(report.nested > states / 10, "{report:?}");
    assert!(report.replayed > states / 20, "{report:?}");
    assert!(report.compared_with_model > states / 3, "{report:?}");
    assert!(report.interleaved > states / 100, "{report:?}");
    assert!(report.sealed > 0, "{report:?}");
    assert!(report.snapshots > states / 4 && report.snapshots_in_flight > states / 20, "{report:?}");
    assert!(report.deletions_left > states / 50, "{report:?}");
}

#[test]
fn one_seed_gives_one_result() {
    let options = Options { budget: Budget::new(11, 60), interleave: false, ..Options::default() };
    let counts = |options: &Options| {
        let (report, failure) = explore(options);
        assert!(failure.is_none(), "{failure:?}");
        (report.by_mode, report.transactions, report.replayed, report.compared_with_model)
    };
    assert_eq!(counts(&options), counts(&options));
}

#[test]
fn a_missing_flush_is_found() {
    is_found(Plant::MissingFlush);
}

#[test]
fn a_superblock_before_its_data_is_found() {
    is_found(Plant::SuperblockFirst);
}

#[test]
fn a_block_reused_too_early_is_found() {
    is_found(Plant::ReuseAtOnce);
}

#[test]
fn a_block_freed_under_a_snapshot_is_found() {
    is_found(Plant::BuryNothing);
}

#[test]
fn a_block_freed_with_a_snapshot_that_an_older_one_has_is_found() {
    is_found(Plant::FreeAllOfDeleted);
}

#[test]
fn a_deleted_snapshot_that_leaves_the_list_too_early_is_found() {
    // Only some workloads delete a snapshot in more than one slice.
    is_found_within(Plant::UnlistFirst, 4 * PLANTED_STATES_MAX);
}

#[test]
fn a_snapshot_that_is_in_memory_only_is_found() {
    is_found(Plant::ListNothing);
}

/// A seal says that the batch before it was durable.
#[test]
fn a_seal_before_the_flush_of_its_batch_is_found() {
    is_found(Plant::SealFirst);
}

/// The explorer finds the bug soon, its replay shows the state again, and without the bug all these states are in order.
fn is_found(plant: Plant) {
    is_found_within(plant, PLANTED_STATES_MAX);
}

fn is_found_within(plant: Plant, states: u64) {
    let options = Options { plant, interleave: false, budget: Budget::new(1, states) };
    let (report, failure) = explore(&options);
    let failure = failure.unwrap_or_else(|| panic!("{} is not found: {report:?}", plant.name()));
    // In a state, or in one of the crashes between the lives of a store.
    let between_lives = ["end of life", "orphans of the life before"];
    let by_a_crash = failure.state.is_some() || between_lives.iter().any(|text| failure.what.starts_with(text));
    assert!(by_a_crash, "the running stack sees no difference, only a crash does: {failure}");
    assert!(failure.replay.contains(plant.name()), "{}", failure.replay);

    let budget = Budget { seed: failure.seed, state: failure.state, ..options.budget.clone() };
    let again = Options { budget, ..options };
    let (_, same) = explore(&again);
    assert_eq!(same.map(|same| (same.state, same.what.clone())), Some((failure.state, failure.what.clone())));

    let sound = Options { plant: Plant::Nothing, budget: Budget::new(1, report.states + 1), ..options };
    let (_, none) = explore(&sound);
    assert!(none.is_none(), "{none:?}");
}
