//! The experiment of flipped bits under load: that it finds what there is to find, and nothing where there is nothing.

use holdfast_integrity::Protection;
use holdfast_lab::campaign::{Options, trial};
use holdfast_lab::load::Load;
use std::time::Duration;

fn options(load: Load, mode: Protection, seed: u64) -> Options {
    Options { load, mode, time: Duration::from_millis(600), seed }
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

/// With verification off the same experiment fails.
#[test]
fn without_verification_corrupt_bytes_are_read() {
    const TRIALS: u64 = 10;
    let is_read = |seed| trial(&options(Load::Webserver, Protection::None, seed)).unwrap().read;
    assert!((0..TRIALS).any(is_read), "{TRIALS} trials without a corrupt byte: the flips miss what is read");
}
