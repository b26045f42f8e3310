//! `holdfast-bench-metadata` with memory that is locked in a process of its own; with mprotect, which every machine has.

use std::process::Command;

#[test]
fn locked_pages_are_measured_in_a_process_of_their_own() {
    let arguments =
        "--steps audited,locked --lock-with pages --loads create,delete --file-mib 32 --files 20 --rounds 2";
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast-bench-metadata")).args(arguments.split(' ')).output();
    let output = output.expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    let header = out.lines().find(|line| line.starts_with("| load")).unwrap_or_else(|| panic!("no table: {out}"));
    assert!(header.contains("and the audit, µs") && header.contains("and locked pages"), "{out}");
}
