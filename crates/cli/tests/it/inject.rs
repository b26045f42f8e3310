//! Damage on purpose: of every kind, found by `check`, and undone to the last byte.

use crate::rig::{Rig, fuse};
use rustix::fs::{XattrFlags, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::symlink;

const KINDS: [&str; 15] = [
    "label",
    "superblock",
    "object-table",
    "system-tree",
    "block-tree",
    "bitmap",
    "reference-table",
    "map",
    "snapshot-list",
    "dead-list",
    "directory",
    "xattr",
    "symlink",
    "file-data",
    "intent-log",
];

/// A store with blocks of every kind; its daemon was killed, so that the intent log has something.
fn store(rig: &Rig) {
    rig.store("s", "16M");
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "epoch=60000"]).exits(0);
    for directory in ["a", "b"] {
        let directory = mount.join(directory);
        fs::create_dir(&directory).unwrap();
        for number in 0..6 {
            let file = directory.join(format!("f{number}"));
            fs::write(&file, format!("{number}").repeat(3000)).unwrap();
            setxattr(&file, "user.note", format!("note {number}").as_bytes(), XattrFlags::empty()).unwrap();
        }
        symlink(format!("{}/target", directory.display()), directory.join("link")).unwrap();
        let large: Vec<u8> = (0..70 * 4096u32).map(|at| (at / 4096 + at % 251) as u8).collect();
        fs::write(directory.join("large"), large).unwrap();
    }
    rig.run(["sync", "m"]).exits(0);
    // Shares blocks.
    fs::copy(mount.join("a/large"), mount.join("copy")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["snapshot", "create", "m", "kept"]).exits(0);
    // What it replaces only the snapshot has.
    fs::write(mount.join("a/f5"), "new").unwrap();
    rig.run(["sync", "m"]).exits(0);
    for name in ["a/f0", "a/f1"] {
        let file = File::options().append(true).open(mount.join(name)).unwrap();
        std::io::Write::write_all(&mut &file, b"and more").unwrap();
        file.sync_all().unwrap();
    }
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]).exits(0);
}

/// A page that a snapshot has in an older version, and a directory: what is named by its path is what somebody reads now.
#[test]
fn of_a_path_the_live_block_is_damaged_and_not_a_snapshots() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let version = |byte: u8| fs::write(mount.join("d/f"), vec![byte; 5 * 4096]).unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    for (byte, name) in [(1, "one"), (2, "two")] {
        version(byte);
        rig.run(["snapshot", "create", "m", name]).exits(0);
    }
    version(3);
    fs::write(mount.join("d/later"), "").unwrap();
    let kept = |name| fs::read(mount.join(".holdfast/snapshots").join(name).join("d/f"));
    rig.run(["unmount", "m"]).exits(0);
    for seed in ["1", "2", "3"] {
        let words = ["inject", "s", "--kind", "file-data", "--path", "/d/f", "--page", "3", "--seed", seed, "--json"];
        let done = rig.run(words).exits(0).json();
        assert_eq!(done["in_snapshots_only"], false, "{done}");
        rig.run(["mount", "s", "m"]).exits(0);
        assert!(fs::read(mount.join("d/f")).is_err(), "{done}");
        assert_eq!((kept("one").unwrap()[0], kept("two").unwrap()[0]), (1, 2));
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["inject", "s", "--undo", done["undo"].as_str().unwrap()]).exits(0);
    }
    rig.run(["inject", "s", "--kind", "directory", "--path", "/d", "--copy", "all"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::metadata(mount.join("d/f")).is_err());
    assert_eq!((kept("one").unwrap()[0], kept("two").unwrap()[0]), (1, 2));
    rig.run(["unmount", "m"]).exits(0);
}

/// What leads to snapshots is gone everywhere: the files are there all the same.
#[test]
fn files_can_be_read_when_snapshots_cannot() {
    if !fuse() {
        return;
    }
    for kind in ["snapshot-list", "dead-list"] {
        let rig = Rig::new();
        let mount = rig.mounted("");
        fs::write(mount.join("kept"), "content").unwrap();
        fs::write(mount.join("gone"), [7; 10_000]).unwrap();
        rig.run(["snapshot", "create", "m", "one"]).exits(0);
        fs::remove_file(mount.join("gone")).unwrap();
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["inject", "s", "--kind", kind, "--fault", "drop", "--copy", "all"]).exits(0);
        for (options, code) in [("ro", 0), ("rw", 3)] {
            let words = rig.run(["mount", "s", "m", "-o", options]).exits(code).err;
            assert!(options == "ro" || words.contains("cannot be read (corrupt: system object"), "{kind}: {words}");
            assert_eq!(fs::read_to_string(mount.join("kept")).unwrap(), "content", "{kind}");
            assert!(fs::write(mount.join("new"), "x").is_err(), "{kind}, {options}");
            rig.run(["unmount", "m"]).exits(0);
        }
    }
}

#[test]
fn every_kind_can_be_damaged_in_every_way_is_found_and_undone() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    store(&rig);
    // Not a checksum: one of blocks that end with their own checksum does not see them change places.
    let bytes = || fs::read(rig.path("s")).unwrap();
    let before = bytes();
    let listed = rig.run(["inject", "s", "--list", "--json"]).exits(0).json();
    rig.run(["check", "s"]).exits(0);
    for (at, kind) in KINDS.into_iter().enumerate() {
        let [name, blocks, copies] = [0, 1, 2].map(|field| listed["kinds"][at][field].clone());
        assert_eq!(name, kind);
        let (blocks, copies) = (blocks.as_u64().unwrap(), copies.as_u64().unwrap());
        assert!(blocks > 0, "{kind}: {listed}");
        assert!(copies > blocks || kind == "file-data", "{kind} has one copy only: {listed}");
        for fault in ["flip", "drop", "duplicate", "swap"] {
            for copy in ["1", "all"] {
                let arguments = ["inject", "s", "--kind", kind, "--fault", fault, "--copy", copy, "--save-undo", "u"];
                let ran = rig.run(arguments.into_iter().chain(["--seed", "5", "--json"]));
                // Of these there may be one block only, its copies the same.
                let alone = blocks == 1 && matches!(fault, "duplicate" | "swap");
                if alone && ran.code == Some(1) {
                    assert!(ran.out.contains("no other block of the kind"), "{ran:?}");
                    continue;
                }
                let done = ran.exits(0).json();
                assert!(done["changes"][0]["different_bytes"].as_u64().unwrap() > 0, "{done}");
                assert!(bytes() != before, "{kind} {fault} {copy}");
                let found = rig.run(["check", "s"]);
                // The end of the log may be as a power cut leaves it: told, and no error; without its heads nothing knows of it.
                let is_remark = kind == "intent-log" && found.out.contains("\nno error: ");
                let may_hide = kind == "intent-log" && matches!(fault, "drop" | "duplicate") && copy == "all";
                assert!(matches!(found.code, Some(4 | 8)) || is_remark || may_hide, "{kind} {fault} {copy}: {found:?}");
                rig.run(["inject", "s", "--undo", "u"]).exits(0);
                assert!(bytes() == before, "{kind} {fault} {copy} was not undone");
                fs::remove_file(rig.path("u")).unwrap();
            }
        }
    }
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn one_page_of_one_file_is_damaged_and_named() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    store(&rig);
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["inject", "s", "--kind", "label"]).exits(1).says("is mounted on");
    rig.run(["unmount", "m"]).exits(0);
    let arguments = ["inject", "s", "--kind", "file-data", "--path", "/b/large", "--page", "3", "--bits", "2"];
    let words = rig.run(arguments).exits(0).out;
    assert!(words.contains("page 3") && words.contains("(/b/large)") && words.contains("s.undo-1.json"), "{words}");
    assert!(rig.run(["check", "s"]).exits(4).out.contains("in /b/large"));
    rig.run(["mount", "s", "m"]).exits(0);
    let error = fs::read(rig.path("m/b/large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO, and not {error}");
    assert!(fs::read(rig.path("m/a/large")).is_ok());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["inject", "s", "--undo", "s.undo-1.json"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    // The block that has its record; blocks that are of no file.
    let of_file = |kind| ["inject", "s", "--kind", kind, "--path", "/b/large", "--save-undo", "u"];
    let words = rig.run(of_file("object-table")).exits(0).out;
    assert!(words.contains("object table of domain 1"), "{words}");
    rig.run(["inject", "s", "--undo", "u"]).exits(0);
    let refused = rig.run([&of_file("object-table")[..], &["--page", "1"]].concat()).exits(2);
    assert!(refused.says("--page is of the object table itself").err.contains("leave out one"));
    for kind in ["map", "superblock", "system-tree"] {
        let refused = rig.run(of_file(kind)).exits(2).says("are the store's own, and of no file");
        assert!(refused.err.contains("object-table for the block that has the file's record"), "{refused:?}");
    }
}

#[test]
fn what_has_been_written_since_is_not_undone() {
    let rig = Rig::new();
    let store = rig.store("s", "8M");
    rig.run(["inject", "s", "--kind", "superblock", "--save-undo", "u"]).exits(0);
    rig.run(["inject", "s", "--kind", "superblock", "--save-undo", "u"]).exits(1).says("u: File exists");
    rig.run(["inject", "s", "--kind", "superblock", "--fault", "drop", "--save-undo", "v"]).exits(0);
    let before = fs::read(&store).unwrap();
    rig.run(["inject", "s", "--undo", "u"]).exits(1).says("has been written since");
    rig.run(["inject", "s", "--undo", "s"]).exits(1).says("not made by `holdfast inject`");
    assert!(fs::read(&store).unwrap() == before);
    rig.run(["inject", "s", "--undo", "v"]).exits(0);
    rig.run(["inject", "s", "--undo", "u"]).exits(0);
    assert!(rig.run(["inject", "s", "--undo", "u"]).exits(0).out.contains("1 had been repaired already"));
    rig.run(["check", "s"]).exits(0);
    rig.run(["inject", "s", "--kind", "file-data"]).exits(1).says("no block of the kind file-data");
    rig.run(["inject", "s"]).exits(2);
}

#[test]
fn the_same_seed_does_the_same() {
    let rig = Rig::new();
    let store = rig.store("s", "8M");
    let mut seen = Vec::new();
    for (number, seed) in ["1", "1", "2"].into_iter().enumerate() {
        let undo = format!("u{number}");
        rig.run(["inject", "s", "--kind", "object-table", "--seed", seed, "--save-undo", &undo]).exits(0);
        seen.push(fs::read(&store).unwrap());
        rig.run(["inject", "s", "--undo", &undo]).exits(0);
    }
    assert!(seen[0] == seen[1] && seen[1] != seen[2]);
}
