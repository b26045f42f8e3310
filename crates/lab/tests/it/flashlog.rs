//! Power cuts over all devices of a Flashlog, and the loss of one: a bounded number of states on each run, and each planted mistake is found.
use crate::number;
use holdfast_block::flashlog::Order;
use holdfast_lab::budget::Budget;
use holdfast_lab::flashlog::flips::{self, Hits};
use holdfast_lab::flashlog::{Device, Kind, Options, PLANTS, PROCEDURES, Plant, Report, explore, large};

/// With another seed on each run: `HOLDFAST_FLASHLOG_SEED=…` repeats one.
#[test]
fn power_cuts_leave_states_that_there_were() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("HOLDFAST_FLASHLOG_SEED", now.as_secs() % 1_000_000 * 1000);
    println!("HOLDFAST_FLASHLOG_SEED={seed} cargo test -p holdfast-lab --test it flashlog");
    for kind in Kind::ALL {
        let budget = Budget::new(kind.seed_from(seed), 400);
        let (report, failure) = explore(&Options { budget, ..Options::default() });
        assert!(failure.is_none(), "{kind:?}: {}", failure.unwrap());
        assert!(report.killed.iter().sum::<u64>() > 10, "{kind:?}: {report:?}");
        assert!(report.killed[1..].iter().sum::<u64>() > 2, "{kind:?}: {report:?}");
        assert!(report.killed_after_loss.iter().sum::<u64>() > 2, "{kind:?}: {report:?}");
        assert!(report.came_back.iter().sum::<u64>() > 4, "{kind:?}: {report:?}");
        if kind == Kind::Lasting {
            assert!(report.lasting[0] > 100 && report.lasting[1] > 20 && report.taken_up_alone > 2, "{report:?}");
            let procedures = procedures_of_lasting(&report);
            let gone_through = procedures.iter().filter(|count| **count > 0).count();
            assert!(procedures.iter().sum::<u64>() > 10 && gone_through > 3, "{report:?}");
            continue;
        }
        assert!(report.nested > 20 && report.replayed > 20, "{kind:?}: {report:?}");
        assert!(report.lost[..2].iter().all(|states| *states > 4), "{kind:?}: {report:?}");
        // A procedure with a backup is one that must have been there.
        assert!(kind != Kind::WithBackup || report.procedures.iter().sum::<u64>() > 2, "{report:?}");
    }
}

/// How often each procedure of a set that outlasts its log was cut off.
fn procedures_of_lasting(report: &Report) -> Vec<u64> {
    let counts = PROCEDURES.iter().zip(report.procedures);
    counts.filter(|(name, _)| name.ends_with("_lasting")).map(|(_, count)| count).collect()
}

#[test]
fn seeds_are_of_all_kinds_however_they_are_chosen() {
    for step in [1, 2, 4, 1000, 1_000_000] {
        let count = |kind| (0..400).filter(|number| Kind::of(number * step) == kind).count();
        assert!(Kind::ALL.iter().all(|kind| count(*kind) > 60), "each {step}th: {:?}", Kind::ALL.map(count));
    }
}

#[test]
fn planted_mistakes_are_found() {
    for (name, plant) in &PLANTS[1..] {
        let seed = match plant {
            // It takes a page that was cut off and a later write of the same blocks that a power cut takes.
            Plant::Order(Order::AnyGeneration) => 20,
            // The log must be full while its index has room, which few workloads have.
            Plant::Order(Order::LetsGoOfNeeded) => 28,
            // A power cut must leave one of the parts, and another one have an older version of the same block.
            Plant::Order(Order::PutBackInParts) => 5006,
            Plant::Order(
                Order::ChangeBeforeMap | Order::AttachSkipsBlock | Order::ForgetsDirty | Order::NewLogForgetsAlone,
            ) => Kind::Lasting.seed_from(20),
            Plant::Order(Order::TrimsBeforeBackup) | Plant::NoFlushOf(Device::Backup) => Kind::WithBackup.seed_from(20),
            // Main must be opened alone by the next process, the backup be taken up by it.
            Plant::NoFlushOfWhatIsFound(_) => Kind::Lasting.seed_from(20),
            // The same of those that go through a procedure.
            Plant::NoFlushOfWhatProceduresFind(Device::Log) => 24,
            Plant::NoFlushOfWhatProceduresFind(_) => 95,
            _ => Kind::WithoutBackup.seed_from(20),
        };
        let mut options = Options { budget: Budget::new(seed, 20_000), plant: *plant, ..Options::default() };
        if *plant == Plant::Order(Order::PutBackInParts) {
            // Only in a life whose log fails is it put back.
            options.losses = 200;
        }
        if matches!(plant, Plant::NoFlushOfWhatIsBack(_)) {
            (options.losses, options.kills) = (1, 16);
        }
        if matches!(plant, Plant::NoFlushOfWhatIsFound(_)) {
            (options.losses, options.kills) = (1, 200);
        }
        if matches!(plant, Plant::NoFlushOfWhatProceduresFind(_)) {
            (options.losses, options.kills) = (1, 1);
        }
        let (report, failure) = explore(&options);
        assert!(failure.is_some(), "{name} was not found in {} states", report.states);
        println!("{name}: found after {} states: {}", report.states, failure.unwrap());
    }
}

/// Sets of the workloads above are too small for that. With another seed on each run: `HOLDFAST_LARGE_SEED=…` repeats one.
#[test]
fn a_backup_that_grows_over_its_own_checksums_has_no_state_or_the_right_one() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("HOLDFAST_LARGE_SEED", now.as_secs());
    println!("HOLDFAST_LARGE_SEED={seed} cargo test -p holdfast-lab --test it over_its_own_checksums");
    large::explore(seed, 6, Order::Correct).unwrap();
    let found = large::explore(1, 40, Order::TrustsSumsOfCopy).unwrap_err();
    println!("checksums of a copy that was cut off are trusted: {found}");
}

/// With another seed on each run: `HOLDFAST_FLIPS_SEED=…` repeats one. More: `cargo run --release -p holdfast-lab --bin flashlog-flips`.
#[test]
fn flipped_bits_and_unreadable_blocks_are_told_or_made_good_and_never_copied() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("HOLDFAST_FLIPS_SEED", now.as_secs() % 1_000_000 * 1000);
    println!("HOLDFAST_FLIPS_SEED={seed} cargo test -p holdfast-lab --test it flipped_bits");
    let rows = flips::run(seed, 5, Hits::Promised).unwrap();
    println!("{}", flips::markdown(&rows));
    assert_eq!(flips::broken(&rows), [""; 0]);
}

#[test]
fn blocks_of_main_that_are_taken_for_zeros_are_found() {
    let rows = flips::run(1, 3, Hits::Planted).unwrap();
    let broken = flips::broken(&rows);
    for what in ["wrong bytes are read without a word", "damage is copied to another device"] {
        assert!(broken.iter().any(|found| found.starts_with(what)), "{what}: {broken:#?}");
    }
}
