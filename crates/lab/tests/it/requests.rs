//! FUSE requests that no kernel would send. `HOLDFAST_FUZZ_SECONDS` says how long (4 s if not); `HOLDFAST_SEED` runs one sequence
//! again.

use crate::number;
use holdfast_lab::requests::{Counts, run};
use std::time::{Duration, Instant};

#[test]
fn any_sequence_of_requests_is_answered_and_leaves_a_sound_store() {
    let one = std::env::var("HOLDFAST_SEED").ok().map(|_| number("HOLDFAST_SEED", 0));
    let first = one.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs(number("HOLDFAST_FUZZ_SECONDS", 4));
    let (mut sum, mut sequences) = (Counts::default(), 0);
    for seed in first.. {
        let counts = run(seed, 400).unwrap_or_else(|error| {
            panic!("{error}\nHOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it any_sequence_of_requests")
        });
        sum.requests += counts.requests;
        sum.done += counts.done;
        sum.refused += counts.refused;
        sequences += 1;
        if one.is_some() || Instant::now() >= end {
            break;
        }
    }
    println!("{sequences} sequences from seed {first} on: {sum:?}");
    assert!(sum.done > sum.requests / 10 && sum.refused > sum.requests / 10, "{sum:?}: too tame or too wild");
}
