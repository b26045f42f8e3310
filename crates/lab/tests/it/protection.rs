//! What each protection mode makes of flipped bits.

use holdfast_integrity::{Algorithm, Protection};
use holdfast_lab::protection::{Cell, Flips, Got, Moment, Owner, PLACE, markdown, run};

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

#[test]
fn each_mode_does_what_its_row_says() {
    let cells = run().unwrap();
    for Cell { mode, owner, flips, moment, read, reopened, is_told, again } in &cells {
        let got = (*read, *reopened, *is_told);
        // A twin in memory, a second copy on the device: nobody notices.
        let expected = match owner {
            Owner::File => expected(*mode, *flips, *moment),
            Owner::Directory => (Got::Good, Got::Good, false),
        };
        assert_eq!(got, expected, "{mode}, {owner:?}, {flips:?}, {moment:?}");
        let written_again = (*read == Got::Error).then_some(Got::Good);
        assert_eq!(*again, written_again, "{mode}, {flips:?}, {moment:?}");
    }
    let (page, renewed) = PLACE.renewed(&markdown(&cells)).unwrap();
    assert!(
        page == renewed,
        "docs/protection.md is made by: cargo run -p holdfast-lab --bin protection-table -- --write"
    );
}
