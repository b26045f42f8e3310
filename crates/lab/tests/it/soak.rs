//! Random actions on the whole stack, compared with the model. `HOLDFAST_SEED` chooses other runs.

use super::number;
use holdfast_lab::soak::{Options, Report, run};

fn runs(options: Options, count: u64) -> Report {
    let first = number("HOLDFAST_SEED", 1);
    let mut sum = Report::default();
    for seed in first..first + count {
        let report = run(Options { seed, ..options }).unwrap_or_else(|failure| panic!("{failure}"));
        sum.no_space += report.no_space;
        sum.remounts += report.remounts;
        sum.ticks += report.ticks;
        sum.snapshots += report.snapshots;
    }
    sum
}

#[test]
fn the_stack_is_as_the_model() {
    let sum = runs(Options { steps: 600, ..Options::default() }, 3);
    assert!(sum.remounts > 3 && sum.ticks > 3 && sum.snapshots > 3, "{sum:?}");
}

#[test]
fn a_pool_far_too_small_changes_nothing() {
    runs(Options { steps: 400, frames: 48, ..Options::default() }, 3);
}

#[test]
fn long_runs_keep_together() {
    runs(Options { steps: 3_000, nodes: 150, compare_each: 50, ..Options::default() }, 1);
}

/// A full store refuses, and can be read, mounted and deleted from.
#[test]
fn a_full_store_stays_usable() {
    let options = Options {
        steps: 800,
        blocks: 640,
        nodes: 120,
        file_bytes: 900_000,
        compare_each: 8,
        remount_each: 60,
        // The torture fills stores that have snapshots.
        snapshot_each: 0,
        ..Options::default()
    };
    let sum = runs(options, 3);
    assert!(sum.no_space > 10, "{sum:?}");
}

/// Several at once, while recovery points are made.
#[test]
fn threads_do_not_disturb_each_other() {
    runs(Options { steps: 400, blocks: 16_384, frames: 1_024, threads: 4, ..Options::default() }, 3);
}
