//! `holdfast-bench-metadata` with memory that is locked in a process of its own; with mprotect, which every machine has.

use std::process::Command;

#[test]
fn locked_pages_are_measured_in_a_process_of_their_own() {
    let arguments = "--steps off,again,compared,locked --lock-with pages --loads create,delete --file-mib 32 --files 500 --rounds 2";
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast-bench-metadata")).args(arguments.split(' ')).output();
    let output = output.expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    let header = out.lines().find(|line| line.starts_with("| load")).unwrap_or_else(|| panic!("no table: {out}"));
    assert!(header.contains("off, µs") && header.contains("and locked pages"), "{out}");

    let (_, memory) = out.split_once("## Memory at its peak").unwrap_or_else(|| panic!("no memory: {out}"));
    for load in ["creation", "deletion"] {
        let line = memory.lines().find(|line| line.contains(load)).unwrap_or_else(|| panic!("no {load}: {out}"));
        let figures = line.split('|').map(|cell| cell.split_whitespace().next().and_then(|cell| cell.parse().ok()));
        let figures: Vec<f64> = figures.flatten().collect();
        let [metadata, changed, kept, all, again, copies, locked, _twins] = figures[..] else {
            panic!("{load}: {line}")
        };
        assert!(0.0 < changed && changed <= metadata && metadata < all, "{line}");
        assert!(0.0048 * metadata < kept && kept < 0.06 * metadata, "{line}");
        // In either process, an audit by counting takes little more; one by copies has twice what changes.
        assert!(again.abs() < 0.01 * all && locked.abs() < 0.05 * metadata && 0.8 * changed < copies, "{line}");
    }
}
