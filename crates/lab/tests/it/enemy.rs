//! No promise of the enemy's table is broken, wherever it strikes.

use holdfast_lab::enemy::{FAULTS, Plan, Work, fault_name, run, text};
use holdfast_physical::inject::BlockClass;

/// Not those of the documentation, so that each run looks elsewhere; printed to be run again.
#[test]
fn what_is_injected_is_found_and_repaired_or_named() {
    let seed = std::env::var("HOLDFAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs()));
    println!("seed {seed}; again: HOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it enemy");
    let trials = run(&Plan { seed, trials: 1, class: None }).unwrap();
    let broken = trials.iter().filter(|trial| !trial.wrong.is_empty()).count();
    assert_eq!(broken, 0, "seed {seed}:\n{}", text(&trials));
    for class in BlockClass::ALL {
        for fault in FAULTS {
            // File data has one copy, and of the intent log the pages have: there it depends on the seed.
            let has_copies = !matches!(class, BlockClass::FileData | BlockClass::IntentLog);
            for all_copies in [false, true].into_iter().filter(|all| !all || has_copies) {
                for work in Work::ALL {
                    let cell = (class, fault, all_copies, work);
                    let is_there = trials.iter().any(|t| (t.class, t.fault, t.all_copies, t.work) == cell);
                    let copies = if all_copies { "all copies" } else { "one copy" };
                    let (class, fault, work) = (class.name(), fault_name(fault), work.name());
                    assert!(is_there, "seed {seed}: empty cell: {class}, {fault}, {copies}, {work}");
                }
            }
        }
    }
}
