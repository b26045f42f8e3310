//! The experiment of flipped bits under load: that it finds what there is to find, and nothing where there is nothing.

use holdfast_integrity::Protection;
use holdfast_lab::campaign::{MODES, Options, Outcome, PLACE, Row, Targets, broken, markdown, trial, unmet};
use holdfast_lab::load::Load;
use std::time::Duration;

fn options(load: Load, mode: Protection, seed: u64) -> Options {
    Options { load, mode, targets: Targets::All, time: Duration::from_millis(600), seed }
}

#[test]
fn flips_in_the_pool_are_neither_read_nor_stored() {
    let seed = crate::number("HOLDFAST_SEED", 1);
    for (number, load) in (0u64..).zip(Load::ALL) {
        let outcome = trial(&options(load, Protection::Uniform, seed + number)).unwrap();
        let replay = "HOLDFAST_SEED sets the seed";
        assert!(
            !(outcome.read || outcome.written || outcome.crashed),
            "{load}, seed {}: {outcome:?}; {replay}",
            seed + number
        );
        assert!(outcome.operations > 0, "{load}: nothing was done");
    }
}

/// Nobody stops for them: they come while the load is in the middle of a step.
#[test]
fn flips_land_within_a_step() {
    let seed = crate::number("HOLDFAST_SEED", 1);
    for load in Load::ALL {
        let outcome = trial(&options(load, Protection::Uniform, seed)).unwrap();
        assert!(outcome.within > 0, "{load}: none of the bits, {outcome:?}");
    }
}

/// A page whose checksum has flipped is taken for a bad one, which costs a read or an error, and no bytes.
#[test]
fn flips_in_checksums_are_neither_read_nor_stored() {
    let seed = crate::number("HOLDFAST_SEED", 1);
    for (number, mode) in (0u64..).zip([Protection::Uniform, Protection::Dynamic { t_switch_s: 92 }]) {
        let options = Options { targets: Targets::Sums, ..options(Load::Oltp, mode, seed + number) };
        let outcome = trial(&options).unwrap();
        let is_sound = !(outcome.read || outcome.written || outcome.crashed) && outcome.operations > 0;
        assert!(is_sound, "{mode}, seed {}: {outcome:?}; HOLDFAST_SEED sets the seed", seed + number);
    }
}

/// Pages that have been in memory for longer than t_switch are verified by the strong checksum.
#[test]
fn flips_in_pages_that_have_switched_are_neither_read_nor_stored() {
    let seed = crate::number("HOLDFAST_SEED", 1);
    let time = Duration::from_millis(2500);
    let options = Options { time, ..options(Load::Webserver, Protection::Dynamic { t_switch_s: 1 }, seed) };
    let outcome = trial(&options).unwrap();
    let is_sound = !(outcome.read || outcome.written || outcome.crashed);
    assert!(is_sound && outcome.switched > 0, "seed {seed}: {outcome:?}; HOLDFAST_SEED sets the seed");
}

/// With verification off the same experiment fails.
#[test]
fn without_verification_corrupt_bytes_are_read() {
    const TRIALS: u64 = 10;
    let is_read = |seed| trial(&options(Load::Webserver, Protection::None, seed)).unwrap().read;
    assert!((0..TRIALS).any(is_read), "{TRIALS} trials without a corrupt byte: the flips miss what is read");
}

#[test]
fn one_corrupt_byte_read_or_stored_breaks_the_promise_of_a_mode_that_verifies_memory() {
    let (sound, told) = (Outcome::default(), Outcome { told: true, crashed: true, ..Outcome::default() });
    let (read, written) = (Outcome { read: true, ..sound }, Outcome { written: true, ..sound });
    for (mode, promises) in [("uniform", 1), ("dynamic=92", 1), ("static", 1), ("disk", 0), ("none", 0)] {
        let row = |outcomes| [Row { load: Load::Oltp, mode: mode.parse().unwrap(), outcomes }];
        assert_eq!(broken(&row(vec![sound, told, sound])), 0, "{mode}");
        assert_eq!(broken(&row(vec![sound, read])), promises, "{mode}");
        assert_eq!(broken(&row(vec![written, sound])), promises, "{mode}");
    }
}

/// The table of the page is the one that the program writes with its own modes.
#[test]
fn the_page_has_the_columns_and_modes_of_the_program() {
    let page = PLACE.renewed("").unwrap().0;
    let table = page.split(&format!("<!-- {}: begin -->", PLACE.mark)).nth(1).unwrap();
    let table = table.split(&format!("<!-- {}: end -->", PLACE.mark)).next().unwrap();
    assert!(table.contains(&markdown(&[])), "other columns: {table}");
    for load in Load::ALL {
        for mode in MODES.split(',') {
            assert!(table.contains(&format!("| {load} | `{mode}` |")), "no trials of {load} in {mode}: {table}");
        }
    }
}

#[test]
fn trials_in_which_nothing_happens_are_told() {
    let met = Outcome { operations: 1, switched: 1, ..Outcome::default() };
    let of = |mode: &str, outcome| {
        let row = Row { load: Load::Oltp, mode: mode.parse().unwrap(), outcomes: vec![met, outcome] };
        unmet(&[row], Duration::from_secs(10)).len()
    };
    assert_eq!(of("uniform", met), 0);
    assert_eq!(of("uniform", Outcome { operations: 0, ..met }), 1);
    assert_eq!(of("uniform", Outcome { operations: 0, crashed: true, ..met }), 0, "it had no time to");
    // One of the trials is enough, in one there may be no reader of an old page.
    assert_eq!(of("dynamic=3", Outcome { switched: 0, ..met }), 0);
    let never =
        Row { load: Load::Oltp, mode: "dynamic=3".parse().unwrap(), outcomes: vec![Outcome { switched: 0, ..met }] };
    assert_eq!(unmet(std::slice::from_ref(&never), Duration::from_secs(10)).len(), 1);
    assert_eq!(unmet(&[never], Duration::from_secs(3)).len(), 0, "t_switch is not within the trial");
}
