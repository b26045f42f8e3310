//! What each protection mode makes of flipped bits.

use holdfast_integrity::{Algorithm, Protection};
use holdfast_lab::protection::{Act, Cell, Flips, Got, Moment, Owner, PLACE, markdown, run};

/// Whether a checksum sees the flips.
fn sees(algorithm: Algorithm, flips: Flips) -> bool {
    match algorithm {
        Algorithm::None => false,
        Algorithm::Xor64 => flips == Flips::One,
        _ => true,
    }
}

/// By the row of the mode: what is read, what is read after the store was opened again, whether an fsync tells.
fn expected(mode: Protection, flips: Flips, moment: Moment) -> (Got, Got, bool) {
    let in_memory = sees(mode.memory(), flips);
    let stored = sees(mode.stored(), flips);
    match moment {
        // Who does not look stores it; a strong checksum made of wrong bytes says nothing afterwards.
        Moment::Dirty | Moment::Logged | Moment::Synced if !in_memory => (Got::Wrong, Got::Wrong, false),
        Moment::Dirty | Moment::Synced if matches!(mode, Protection::EndToEnd(_)) => (Got::Error, Got::Error, false),
        Moment::Synced => (Got::Good, Got::Good, false),
        // The intent log takes nothing that does not match its checksum in memory, in end-to-end modes neither.
        Moment::Dirty | Moment::Logged => (Got::Error, Got::Old, true),
        Moment::Stored if stored => (Got::Error, Got::Error, false),
        Moment::Stored => (Got::Wrong, Got::Wrong, false),
        Moment::Clean if in_memory => (Got::Good, Got::Good, false),
        Moment::CleanForLong if in_memory || mode.switches_after().is_some() => (Got::Good, Got::Good, false),
        Moment::Clean | Moment::CleanForLong => (Got::Wrong, Got::Good, false),
    }
}

/// What the stack does about it: whoever gets wrong bytes gets them since nobody noticed.
fn expected_act(mode: Protection, flips: Flips, moment: Moment) -> Act {
    let in_memory = sees(mode.memory(), flips);
    match moment {
        Moment::Dirty | Moment::Logged | Moment::Synced if !in_memory => Act::None,
        // Only readers look, and then the device has them as well.
        Moment::Dirty | Moment::Synced if matches!(mode, Protection::EndToEnd(_)) => Act::Found,
        Moment::Dirty | Moment::Logged => Act::Refused,
        // From the intent log.
        Moment::Synced => Act::ReadAgain,
        Moment::Stored if sees(mode.stored(), flips) => Act::Found,
        Moment::Clean if in_memory => Act::ReadAgain,
        Moment::CleanForLong if in_memory || mode.switches_after().is_some() => Act::ReadAgain,
        Moment::Stored | Moment::Clean | Moment::CleanForLong => Act::None,
    }
}

/// There are a twin until it is stored, two copies then, and the memory's.
fn expected_act_of_directory(moment: Moment) -> Act {
    match moment {
        Moment::Dirty | Moment::Logged | Moment::Synced => Act::Renewed,
        Moment::Stored => Act::Repaired,
        Moment::Clean | Moment::CleanForLong => Act::ReadAgain,
    }
}

#[test]
fn each_mode_does_what_its_row_says() {
    let cells = run().unwrap();
    for Cell { mode, owner, flips, moment, act, read, reopened, is_told, again } in &cells {
        let got = (*act, *read, *reopened, *is_told);
        // A twin in memory, a second copy on the device: no application notices.
        let (expected_act, (got_first, got_then, told)) = match owner {
            Owner::File => (expected_act(*mode, *flips, *moment), expected(*mode, *flips, *moment)),
            Owner::Directory => (expected_act_of_directory(*moment), (Got::Good, Got::Good, false)),
        };
        assert_eq!(got, (expected_act, got_first, got_then, told), "{mode}, {owner:?}, {flips:?}, {moment:?}");
        let written_again = (*read == Got::Error).then_some(Got::Good);
        assert_eq!(*again, written_again, "{mode}, {flips:?}, {moment:?}");
    }
    let (page, renewed) = PLACE.renewed(&markdown(&cells)).unwrap();
    assert!(
        page == renewed,
        "docs/protection.md is made by: cargo run -p holdfast-lab --bin protection-table -- --write"
    );
}
