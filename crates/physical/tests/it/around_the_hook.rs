//! Metadata in memory is changed in one way only. What goes around it is there for the lab, and below the typed updates themselves; who calls it is
//! listed here, so that a new place is a decision.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files, tests aside, from which metadata in memory can be written to past its sums.
const SCRIBBLERS: [&str; 12] = [
    "alloc/room.rs",
    "alloc/scribble.rs",
    "disk.rs",
    "guarded.rs",
    "intent_log.rs",
    "intent_log/scribble.rs",
    "meta_block.rs",
    "meta_block/owned.rs",
    "scribble/mod.rs",
    "sealed.rs",
    "snapshot/delete.rs",
    "snapshot/scribble.rs",
];

/// Files from which bytes of a block change together with its sums, and nothing of it is counted for the audit: in a block that has just been read, what is
/// in free entries and in pointers that cannot be; and by the lab.
const UNCOUNTED: [&str; 5] = ["check/walk.rs", "damage.rs", "meta_block.rs", "meta_block/owned.rs", "scribble/mod.rs"];

/// Files that call a `write` with arguments: of `LockedBlock`, past the typed updates, or of a device.
const WRITERS: [&str; 8] = [
    "disk.rs",
    "inject.rs",
    "locked_block.rs",
    // Tests.
    "locked_block/stray_writes.rs",
    "meta_block.rs",
    "requests.rs",
    "scribble/choice.rs",
    "scribble/mod.rs",
];

/// Files from which bytes are put that nobody has encoded, counted as any others: by the lab, as a logic bug.
const UNTYPED: [&str; 2] = ["meta_block/owned.rs", "scribble/wrong.rs"];

/// Source files below a directory, tests aside, with their paths in it.
fn sources(root: &Path, below: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type().unwrap().is_dir() && name != "tests" {
            sources(root, &path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(entry.path()).unwrap();
            // Tests are the end of a file.
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            found.push((path, code.to_string()));
        }
    }
}

/// Files with one of these `calls`, as they stand in the code. `but`: what stands before or behind those of others that are called the same.
fn callers(calls: &[&str], but: &[&str]) -> BTreeSet<String> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    assert!(found.len() > 90, "the sources are where they were");
    let has_one = |code: &str| {
        let code = but.iter().fold(code.to_string(), |code, but| code.replace(but, ""));
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.any(|line| calls.iter().any(|call| line.contains(call)))
    };
    found.into_iter().filter(|(_, code)| has_one(code)).map(|(path, _)| path).collect()
}

fn set(files: &[&str]) -> BTreeSet<String> {
    files.iter().map(|file| (*file).to_string()).collect()
}

#[test]
fn nobody_else_writes_to_metadata_past_its_sums() {
    // Whatever begins so: the bytes of a block, counts (`scribbled_count`), a new one too. What has
    // been noticed is counted by the same name; and the allocator has noticed something.
    let all = callers(&[".scribbled", "::scribbled", ".scribble("], &["counters.scribbled(", ".scribble()"]);
    assert_eq!(all, set(&SCRIBBLERS), "left: who does; right: who may");
}

#[test]
fn nobody_else_changes_metadata_past_what_the_audit_counts() {
    // A list's `clear` has no arguments.
    let all = callers(&[".put_over(", ".clear(&", ".scribbled_unseen("], &[]);
    assert_eq!(all, set(&UNCOUNTED), "left: who does; right: who may");
}

#[test]
fn nobody_else_puts_what_nobody_has_encoded() {
    let all = callers(&[".put_encoded(", ".change_dead_run("], &[]);
    assert_eq!(all, set(&UNTYPED), "left: who does; right: who may");
}

#[test]
fn nobody_else_writes_to_locked_memory() {
    // A lock's `write` has no arguments.
    assert_eq!(callers(&[".write("], &[".write()"]), set(&WRITERS), "left: who does; right: who may");
}
