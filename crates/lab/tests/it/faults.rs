//! The fault matrix is as the documentation says.

use holdfast_lab::faults::{markdown, run};

#[test]
fn every_fault_is_repaired_or_a_precise_error() {
    let cells = run().unwrap();
    let wrong: Vec<String> = cells
        .iter()
        .flat_map(|cell| {
            cell.wrong.iter().map(move |wrong| format!("{:?} {:?} {:?}: {wrong}", cell.kind, cell.fault, cell.copies))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    let documented = std::fs::read_to_string(&path).unwrap();
    let now = markdown(&cells);
    let cells_of =
        |text: &str| text.lines().filter(|line| line.starts_with('|')).map(str::to_string).collect::<Vec<_>>();
    let changed: Vec<String> =
        cells_of(&now).into_iter().filter(|line| !cells_of(&documented).contains(line)).collect();
    assert!(
        changed.is_empty() && cells_of(&now).len() == cells_of(&documented).len(),
        "docs/faults.md is out of date (cargo run --release -p holdfast-lab --bin fault-matrix -- --write); now:\n{}",
        changed.join("\n")
    );
}
