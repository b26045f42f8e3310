//! Power cuts over all devices of a Flashlog, and the loss of one: a bounded number of states on each run, and each planted mistake is found.
use crate::number;
use holdfast_block::flashlog::Order;
use holdfast_lab::budget::Budget;
use holdfast_lab::flashlog::{ORDERS, Options, explore, flips};

/// With another seed on each run: `HOLDFAST_FLASHLOG_SEED=…` repeats one.
#[test]
fn power_cuts_leave_states_that_there_were() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("HOLDFAST_FLASHLOG_SEED", now.as_secs() % 1_000_000 * 1000);
    println!("HOLDFAST_FLASHLOG_SEED={seed} cargo test -p holdfast-lab --test it flashlog");
    let (report, failure) = explore(&Options { budget: Budget::new(seed, 1_000), ..Options::default() });
    assert!(failure.is_none(), "{}", failure.unwrap());
    assert!(report.replayed > 100 && report.nested > 100, "{report:?}");
    assert!(report.procedures.iter().sum::<u64>() > 5, "{report:?}");
    assert!(report.lost[..2].iter().all(|states| *states > 10), "{report:?}");
}

#[test]
fn planted_mistakes_are_found() {
    for (name, order) in ORDERS.iter().filter(|(_, order)| *order != Order::Correct) {
        if *order == Order::AnyGeneration {
            // It takes a page that was cut off and a later write of the same blocks that a power cut takes: too rare for here. Five tests
            // of holdfast-block, in past_tests.rs and verify_tests.rs, fail with it.
            continue;
        }
        // Every fourth workload is of a set that outlasts its log.
        let is_of_lasting = matches!(
            order,
            Order::ChangeBeforeMap | Order::AttachSkipsBlock | Order::ForgetsDirty | Order::NewLogForgetsAlone
        );
        let seed = if is_of_lasting { 23 } else { 20 };
        let (report, failure) =
            explore(&Options { budget: Budget::new(seed, 20_000), order: *order, ..Options::default() });
        assert!(failure.is_some(), "{name} was not found in {} states", report.states);
        println!("{name}: found after {} states: {}", report.states, failure.unwrap());
    }
}

/// With another seed on each run: `HOLDFAST_FLIPS_SEED=…` repeats one. More: `cargo run --release -p holdfast-lab --bin flashlog-flips`.
#[test]
fn flipped_bits_are_told_or_made_good_and_never_copied() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("HOLDFAST_FLIPS_SEED", now.as_secs() % 1_000_000 * 1000);
    println!("HOLDFAST_FLIPS_SEED={seed} cargo test -p holdfast-lab --test it flipped_bits");
    let rows = flips::run(seed, 5).unwrap();
    println!("{}", flips::markdown(&rows));
    assert_eq!(flips::broken(&rows), [""; 0]);
}
