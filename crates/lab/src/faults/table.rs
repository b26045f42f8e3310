//! The results for people.

use super::{Cell, Copies, Phase};
use std::fmt::Write;

/// For a terminal: one line for each trial, with the first error met.
pub fn text(cells: &[Cell]) -> String {
    let mut out = String::new();
    for cell in cells {
        let _ = writeln!(
            out,
            "{:31} {:17} {:10}  mount {:11} read {:9} change {:9}  {}",
            cell.kind.name(),
            cell.fault.name(),
            cell.copies.name(),
            cell.mount.name(),
            cell.read.name(),
            cell.change.name(),
            cell.message.as_deref().unwrap_or("")
        );
        for wrong in &cell.wrong {
            let _ = writeln!(out, "    WRONG: {wrong}");
        }
    }
    out
}

/// The page `docs/faults.md`.
pub fn markdown(cells: &[Cell]) -> String {
    let mut out = String::from(
        "# What the stack makes of a faulty disk\n\n\
         Made by `cargo run --release -p holdfast-lab --bin fault-matrix -- --write`; a test compares it with what happens.\n\n\
         Each kind of block is struck by each fault, in one copy or in all that there are; then the store is mounted, read \
         and changed. Each cell says what happens then, as *mount / read / change*:\n\n\
         - **fine**: the fault is not met, or does not matter;\n\
         - **repaired**: put right from another copy, from what else there is (the bitmap), or by its checksum (a flipped bit in \
         the intent log), and counted in `holdfast status`;\n\
         - **counted**: met and counted in `holdfast status`; nothing else depends on it;\n\
         - **error**: what needs the block fails with an error that names object, page and device block; all else is right;\n\
         - **read-only**: everything is there, changes are refused;\n\
         - **refused**: the store does not open, and one line says why and where;\n\
         - **older state**: as before the last fsync or epoch, because the fault leaves what a power cut during it leaves (see \
         [format.md](format.md), *Intent log*).\n\n\
         Wrong bytes, silent zeros and panics do not occur; the test fails if one does.\n\n\
         | block | fault | one copy | all copies |\n|---|---|---|---|\n",
    );
    for cell in cells.iter().filter(|cell| cell.copies == Copies::One) {
        let all =
            cells.iter().find(|other| (other.kind, other.fault, other.copies) == (cell.kind, cell.fault, Copies::All));
        let all = all.map_or("(there is one)".into(), phases);
        let _ = writeln!(out, "| {} | {} | {} | {all} |", cell.kind.name(), cell.fault.name(), phases(cell));
    }
    out.push_str("\nThe first error of each kind, as a user meets it:\n\n");
    let mut shown = Vec::new();
    for cell in cells {
        if let Some(message) = cell.message.as_ref().filter(|_| !shown.contains(&cell.kind)) {
            shown.push(cell.kind);
            let _ = writeln!(out, "- {}, {}: `{message}`", cell.kind.name(), cell.fault.name());
        }
    }
    out
}

fn phases(cell: &Cell) -> String {
    if cell.mount == Phase::Refused {
        return Phase::Refused.name().into();
    }
    [cell.mount, cell.read, cell.change].map(Phase::name).join(" / ")
}
