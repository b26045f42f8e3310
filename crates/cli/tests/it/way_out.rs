//! Damage that leaves nothing to go on from is told as what it is, and there is a way out.

use crate::rig::{Rig, fingerprint, fuse};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;

/// Strikes these bytes of the list of snapshots in memory, unseen, and has the block written, which the audit would not let pass. Unmounts.
fn struck_list(offset: usize) -> Rig {
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000,audit=none");
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
    assert_eq!((&status["blocks_unrepaired"], &status["blocks_with_remains"]), (&0.into(), &1.into()), "{status}");
    let words = rig.run(["status", "m"]).exits(3).out;
    assert!(words.contains("nothing is lost; holdfast unmount") && !words.contains("CORRUPT"), "{words}");
    let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("it is taken for free") && log.contains("in slot 3"), "{log}");
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/first/f")).unwrap(), "first");
    fs::write(rig.path("m/f"), "fourth").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let repaired = rig.run(["check", "s", "--repair"]).exits(1).out;
    assert!(
        repaired.contains("(repaired)") && repaired.contains("\n1 other error corrected\n1 ERROR, 1 corrected\n"),
        "{repaired}"
    );
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
    let status = rig.run(["status", "m"]).exits(3).out;
    assert!(status.contains("something was wrong with the store") && !status.contains("smartctl"), "{status}");
    assert_eq!(fs::read_to_string(rig.path("m/f")).unwrap(), "third");
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/second/f")).unwrap(), "second");
    rig.run(["unmount", "m"]).exits(0);
    let repaired = rig.run(["check", "s", "--repair"]).exits(1).out;
    assert!(repaired.contains("(repaired: that snapshot is DELETED"), "{repaired}");
    rig.run(["mount", "s", "m"]).exits(0);
    let snapshots = rig.run(["snapshot", "list", "m", "--json"]).exits(0).json();
    let names: Vec<_> = snapshots["snapshots"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, ["second"]);
    assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/second/f")).unwrap(), "second");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

/// Strikes the kind of the root directory's record in memory, unseen, and has the block written. Unmounts.
fn struck_root(kind: &str) -> Rig {
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000");
    fs::write(mount.join("f"), "kept").unwrap();
    rig.run(["snapshot", "create", "m", "kept"]).exits(0);
    let mut file = File::options().append(true).open(mount.join("f")).unwrap();
    // The second record of the block.
    let words =
        "--memory=clean --kind object-table --object 0:16 --level 0 --index 0 --offset 512 --pattern keep-all --bytes";
    rig.run(["inject", "m"].into_iter().chain(words.split_whitespace()).chain([kind])).exits(0);
    file.write_all(b" and more").unwrap();
    rig.run(["sync", "m"]).exits(0);
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    rig
}

#[test]
fn a_store_whose_root_directory_has_no_record_is_mounted_as_it_is() {
    if !fuse() {
        return;
    }
    // No kind at all; a file's.
    for (kind, what) in
        [("09", "kind of object record: expected a known one"), ("01", "expected a directory, got Regular")]
    {
        let rig = struck_root(kind);
        let before = fingerprint(&rig.path("s"));
        for options in [&[][..], &["-o", "ro"]] {
            let is_asked_for = !options.is_empty();
            let mounted = rig.run(["mount", "s", "m"].iter().chain(options)).exits(if is_asked_for { 0 } else { 3 });
            for part in ["READ-ONLY", "the root directory cannot be read", "object 1:1", "/s", what, "holdfast check"] {
                assert!(is_asked_for || mounted.err.contains(part), "{kind}, {part}: {mounted:?}");
            }
            let status = rig.run(["status", "m"]).exits(3).out;
            for part in ["ROOT DIRECTORY", "process ", "/.holdfast/snapshots"] {
                assert!(status.contains(part), "{kind}, {part}: {status}");
            }
            let stopped = "READ-ONLY, as something was wrong with the store when it was mounted";
            assert!(is_asked_for || status.contains(stopped) && !status.contains("smartctl"), "{kind}: {status}");
            assert_eq!(fs::read_to_string(rig.path("m/.holdfast/snapshots/kept/f")).unwrap(), "kept", "{kind}");
            rig.run(["unmount", "m"]).exits(0);
        }
        // mount(8) has no exit code for it.
        let helped = rig.command().arg0("mount.holdfast").args(["s", "m"]).output().unwrap();
        let said = String::from_utf8_lossy(&helped.stderr);
        assert!(helped.status.success() && said.contains("READ-ONLY") && said.contains(what), "{kind}: {helped:?}");
        rig.run(["unmount", "m"]).exits(0);
        assert_eq!(fingerprint(&rig.path("s")), before, "{kind}: nothing is written");
        let log = fs::read_dir(rig.path("home/.local/state/holdfast")).unwrap().next().unwrap().unwrap().path();
        let log = fs::read_to_string(log).unwrap();
        assert!(!log.contains("could not be closed"), "{kind}: {log}");
        assert!(rig.run(["check", "s"]).exits(4).out.contains("make a new store"), "{kind}");
    }
}

#[test]
fn a_tree_block_that_makes_no_sense_is_counted() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000");
    let page = [7; 4096];
    fs::write(mount.join("f"), page.repeat(20)).unwrap();
    rig.run(["sync", "m"]).exits(0);
    // What a pointer is to: in the block's fourth one.
    let words =
        "--memory=clean --kind block-tree --path /f --level 1 --index 0 --offset 214 --pattern keep-all --bytes ff";
    rig.run(["inject", "m"].into_iter().chain(words.split_whitespace())).exits(0);
    File::options().write(true).open(mount.join("f")).unwrap().write_all(&page[1..]).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let status = rig.run(["status", "m"]).exits(3).out;
    assert!(status.contains("1 CORRUPT since it was mounted"), "{status}");
    let scrub = rig.run(["scrub", "m", "--wait"]).exits(3).out;
    let line = scrub.lines().find(|line| line.contains("level of block pointer in slot 3")).unwrap();
    assert!(line.matches("tree block 0 of level 1").count() == 1 && !line.contains("corrupt"), "once: {line}");
    rig.run(["unmount", "m"]).exits(0);
}

/// A store with a snapshot, and damage to all copies of a block of this kind.
fn damaged(kind: &str, object: &str) -> Rig {
    let rig = Rig::new();
    rig.store("s", "16M");
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m"]).exits(0);
    fs::write(mount.join("f"), "kept").unwrap();
    rig.run(["snapshot", "create", "m", "kept"]).exits(0);
    // So that the snapshot has blocks of its own.
    (0..5).for_each(|number| fs::write(mount.join(format!("later {number}")), "later").unwrap());
    rig.run(["unmount", "m"]).exits(0);
    fs::copy(rig.path("s"), rig.path("sound")).unwrap();
    for seed in 0..100 {
        let seed = seed.to_string();
        let words = ["inject", "s", "--json", "--kind", kind, "--copy", "all", "--seed", &seed];
        let struck = rig.run(words).exits(0).json();
        if struck["object"].as_str().unwrap().contains(object) && struck["in_snapshots_only"] == false {
            return rig;
        }
        fs::copy(rig.path("sound"), rig.path("s")).unwrap();
    }
    panic!("{kind}: no block of {object}");
}

#[test]
fn a_root_directory_that_cannot_be_read_is_told_and_unmounted() {
    if !fuse() {
        return;
    }
    for (kind, object) in [("directory", "object 1:1"), ("object-table", "system object #16")] {
        let rig = damaged(kind, object);
        rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
        let listed = fs::read_dir(rig.path("m")).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        assert_eq!(listed.map(drop).unwrap_err().raw_os_error(), Some(libc::EIO), "{kind}");
        let status = rig.run(["status", "m"]).exits(3).out;
        for part in ["ROOT DIRECTORY", "cannot be read", "/.holdfast/snapshots", "process "] {
            assert!(status.contains(part), "{kind}, {part}: {status}");
        }
        let kept = fs::read_to_string(rig.path("m/.holdfast/snapshots/kept/f")).unwrap();
        assert_eq!(kept, "kept", "{kind}");
        rig.run(["unmount", "m"]).exits(0);
    }
}

/// What is damaged comes first, and what follows from it in one line.
#[test]
fn what_follows_from_damage_is_summed_up() {
    if !fuse() {
        return;
    }
    let rig = damaged("object-table", "system object #16");
    let found = rig.run(["check", "s"]).exits(4).out;
    assert!(found.lines().next().unwrap().contains("checksum: expected"), "{found}");
    let following: Vec<_> = found.lines().filter(|line| line.contains("in the map of objects")).collect();
    let [line] = following[..] else { panic!("one line: {found}") };
    assert!(
        line.contains("following from what could not be read") && line.contains("7 × wrongly in the map"),
        "{line}"
    );
    let json = rig.run(["check", "s", "--json"]).exits(4).json();
    let maps = json["blocks"]["findings"].as_array().unwrap().iter().filter(|it| it["kind"] == "maps").count();
    assert!(maps >= 7, "{json}");
}

/// A check has nothing to begin with, and says what can be done all the same.
#[test]
fn where_the_newest_recovery_point_leads_nowhere_the_check_sends_to_the_one_before() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    fs::write(mount.join("f"), "text").unwrap();
    // With more objects of the store's own than one block of their table has.
    rig.run(["snapshot", "create", "m", "kept"]).exits(0);
    fs::write(mount.join("g"), "more").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["inject", "s", "--kind", "system-tree", "--copy", "all"]).exits(0);
    let found = rig.run(["check", "s"]).exits(8).err;
    assert!(found.contains("mount it, which takes no changes then, copy what is needed, make a new store"), "{found}");
    let mounted = rig.run(["mount", "s", "m"]).exits(3);
    assert!(mounted.err.contains("READ-ONLY") && mounted.err.contains("this is one before it"), "{mounted:?}");
    // Nobody waits for what is newer.
    assert!(mounted.out.contains("It shows recovery point ") && !mounted.out.contains("seen once"), "{mounted:?}");
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "text");
    rig.run(["unmount", "m"]).exits(1);
}
