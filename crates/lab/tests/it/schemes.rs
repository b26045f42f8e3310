//! What each scheme loses by each mishap.

use holdfast_lab::schemes::{Lost, Mishap, PLACE, Scheme, markdown, run};

/// What a Flashlog promises, and what the others cannot do.
fn expected(scheme: Scheme, mishap: Mishap) -> Lost {
    match (scheme, mishap) {
        // What main has not yet is on the log alone.
        (Scheme::FlashlogAsync, Mishap::DeviceFailure) => Lost::SinceSaved,
        (Scheme::Flashlog | Scheme::FlashlogAsync, Mishap::PowerFailure | Mishap::KernelPanic) => Lost::Unflushed,
        (Scheme::Flashlog | Scheme::FlashlogAsync, Mishap::MemoryFault) => Lost::Since,
        // The log is gone, or has let go of what it kept for states in between: the backup is left.
        (Scheme::Flashlog | Scheme::FlashlogAsync, Mishap::Malware | Mishap::FilesEncryptedLong) => Lost::SinceSaved,
        (Scheme::Flashlog | Scheme::FlashlogAsync, _) => Lost::Nothing,
        (Scheme::Snapshots, Mishap::PowerFailure | Mishap::KernelPanic | Mishap::ControllerGone) => Lost::Unflushed,
        (_, Mishap::PowerFailure) => Lost::Mixture,
        (_, Mishap::KernelPanic | Mishap::ControllerGone) => Lost::Nothing,
        (Scheme::Raid1, Mishap::DeviceFailure) => Lost::Nothing,
        (Scheme::Backup, _) => Lost::SinceSaved,
        (
            Scheme::Snapshots,
            Mishap::MemoryFault | Mishap::Deletion | Mishap::FilesEncrypted | Mishap::FilesEncryptedLong,
        ) => Lost::SinceSaved,
        _ => Lost::Everything,
    }
}

#[test]
fn each_scheme_loses_what_the_table_says() {
    let cells = run().unwrap();
    for cell in &cells {
        assert_eq!(cell.lost, expected(cell.scheme, cell.mishap), "{cell:?}");
    }
    let (page, renewed) = PLACE.renewed(&markdown(&cells)).unwrap();
    assert!(
        page == renewed,
        "docs/flashlog-table.md is made by: cargo run -p holdfast-lab --bin mishap-table -- --write"
    );
}
