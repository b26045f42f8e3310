//! Metadata in memory that is written to as nobody may. More of it: the program metadata-campaign.

use holdfast_lab::metadata::{Done, Plan, run, text};
use holdfast_physical::MetadataProtection;

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
    let done = strike(&Plan { seed, injections, metadata: MetadataProtection::default(), kind: None });
    assert!(done.broken().next().is_none(), "seed {seed}:\n{}", text(&done));
}

#[test]
fn without_protection_it_is_stored() {
    for metadata in [MetadataProtection::Off, MetadataProtection::Rolling] {
        let done = strike(&Plan { seed: 1, injections: 50, metadata, kind: None });
        let stored = done.trials.iter().filter(|trial| !trial.stored.is_empty()).count();
        assert!(stored > 0, "{metadata:?}:\n{}", text(&done));
    }
}
