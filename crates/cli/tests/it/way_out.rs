//! Damage that leaves nothing to go on from is told as what it is, and there is a way out.

use crate::rig::{Rig, fuse};
use std::fs;

/// Strikes these bytes of the list of snapshots in memory, unseen, and has the block written. Unmounts.
fn struck_list(offset: usize) -> Rig {
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000");
    fs::write(mount.join("f"), "first").unwrap();
    rig.run(["snapshot", "create", "m", "first"]).exits(0);
    fs::write(mount.join("f"), "second").unwrap();
    let words =
        format!("--memory=clean --kind snapshot-list --level 0 --offset {offset} --length 4 --pattern keep-all");
    rig.run(["inject", "m"].into_iter().chain(words.split_whitespace())).exits(0);
    rig.run(["snapshot", "create", "m", "second"]).exits(0);
    fs::write(mount.join("f"), "third").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig
}

#[test]
fn a_bad_free_entry_of_the_list_of_snapshots_stops_nothing_and_is_mended() {
    if !fuse() {
        return;
    }
    let rig = struck_list(3 * 1024 + 600);
    let found = rig.run(["check", "s"]).exits(4).out;
    for part in [
        "system object #19",
        "free entry of the snapshot list in slot 3: expected zero, got",
        "holdfast check --repair s",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    rig.run(["mount", "s", "m"]).exits(0);
    let status = rig.run(["status", "m", "--json"]).json();
    assert!(status["read_only"].is_null(), "{status}");
    let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("it is taken for free") && log.contains("in slot 3"), "{log}");
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/first/f")).unwrap(), "first");
    fs::write(rig.path("m/f"), "fourth").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    assert!(rig.run(["check", "s", "--repair"]).exits(1).out.contains("(repaired)"));
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_mount_that_stops_as_a_snapshot_is_damaged_says_so_and_what_mends_it() {
    if !fuse() {
        return;
    }
    // Its flags.
    let rig = struck_list(40);
    let found = rig.run(["check", "s"]).exits(4).out;
    for part in ["entry in use, slot 0: flags of snapshot: expected 0 or 1", "\"first\"", "holdfast check --repair s"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let mounted = rig.run(["mount", "s", "m"]).exits(3);
    for part in ["READ-ONLY", "holdfast check", "system object #19", "block", "in slot 0: expected 0 or 1"] {
        assert!(mounted.err.contains(part), "{part}: {mounted:?}");
    }
    assert_eq!(fs::read_to_string(rig.path("m/f")).unwrap(), "third");
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/second/f")).unwrap(), "second");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s", "--repair"]).exits(1);
    rig.run(["mount", "s", "m"]).exits(0);
    let snapshots = rig.run(["snapshot", "list", "m", "--json"]).exits(0).json();
    let names: Vec<_> = snapshots["snapshots"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, ["second"]);
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/second/f")).unwrap(), "second");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
