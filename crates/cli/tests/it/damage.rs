//! Flipped bits: found, named, repaired where there is a second copy, never returned.

use crate::rig::{Rig, fingerprint, flip, fuse, kill, places};
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A clean store with the file `d/letter-to-find`, one page long.
fn store(rig: &Rig) -> PathBuf {
    let mount = rig.mounted("");
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/letter-to-find"), letter()).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.path("s")
}

fn letter() -> Vec<u8> {
    b"dear all, this is the text of the letter. ".iter().copied().cycle().take(4096).collect()
}

#[test]
fn a_flipped_bit_in_a_file_is_named_and_never_returned() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let store = store(&rig);
    let places = places(&store, &letter());
    assert_eq!(places.len(), 1, "file data is stored once");
    flip(&store, places[0] + 1000);
    let before = fingerprint(&store);

    let found = rig.run(["check", "s"]).exits(4).out;
    let block = places[0] / 4096;
    assert!(
        found.contains(&format!("block {block}")) && found.contains("in /d/letter-to-find, bytes 0 to 4095\n"),
        "{found}"
    );
    assert!(found.contains("\n1 block LOST\n1 ERROR\n  to mend a file: ") && !found.contains("--repair"), "{found}");
    let found = rig.run(["check", "s", "--json"]).exits(4).json();
    assert_eq!((&found["errors"], &found["corrected"], &found["exit_code"]), (&1.into(), &0.into(), &4.into()));
    let finding = &found["blocks"]["findings"][0];
    assert_eq!(finding["path"], "/d/letter-to-find");
    assert_eq!((&finding["first_byte"], &finding["last_byte"]), (&0.into(), &4095.into()));
    assert_eq!(found["advice"].as_array().unwrap().len(), 2, "{found}");
    assert_eq!(fingerprint(&store), before, "a check without --repair wrote");
    rig.run(["check", "s", "--repair"]).exits(4);

    rig.run(["mount", "s", "m"]).exits(0);
    let error = fs::read(rig.path("m/d/letter-to-find")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO, and not {error}");
    fs::read(rig.path("m/d/letter-to-find")).unwrap_err();
    assert!(rig.run(["status", "m"]).exits(3).out.contains("1 CORRUPT since it was mounted"));
    rig.run(["status", "--metrics", "m"]).exits(3);
    let status = rig.run(["status", "m", "--json"]).exits(3).json();
    assert_eq!(status["blocks_unrepaired"], 1, "blocks are counted, not reads: {status}");
    let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("a block has no good copy")).collect();
    assert!(
        told.len() == 1 && told[0].contains(&format!("page 0, device {}, block {block}", store.display())),
        "{log}"
    );
    assert!(log.contains("/d/letter-to-find"), "{log}");
    // Written again, it is whole again.
    fs::write(rig.path("m/d/letter-to-find"), letter()).unwrap();
    assert!(fs::read(rig.path("m/d/letter-to-find")).unwrap() == letter());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["status", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_bad_copy_of_a_directory_is_repaired_by_check() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let store = store(&rig);
    let places = places(&store, b"letter-to-find");
    assert!(places.len() >= 2, "metadata is stored twice: {places:?}");
    flip(&store, places[0]);
    let before = fingerprint(&store);
    let found = rig.run(["check", "s"]).exits(4).out;
    assert!(
        found.contains("\n1 other error NOT corrected\n1 ERROR\n") && found.contains("holdfast check --repair s\n"),
        "{found}"
    );
    assert_eq!(fingerprint(&store), before, "a check without --repair wrote");
    let repaired = rig.run(["check", "s", "--repair"]).exits(1).out;
    assert!(repaired.contains("\n1 block repaired\n1 ERROR, 1 corrected\n"), "{repaired}");
    rig.run(["check", "s"]).exits(0);
}

/// The first thousand by name; the sums are of all.
#[test]
fn a_check_counts_what_it_does_not_name() {
    if !fuse() {
        return;
    }
    const BAD: usize = 1200;
    let rig = Rig::new();
    let mount = rig.mounted("");
    let page: Vec<u8> = (0..4096).map(|at| (at / 3) as u8).collect();
    fs::write(mount.join("f"), page.repeat(BAD)).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let mut store = fs::read(rig.path("s")).unwrap();
    let blocks: Vec<_> = store.chunks_mut(4096).filter(|block| **block == page).collect();
    assert_eq!(blocks.len(), BAD);
    blocks.into_iter().for_each(|block| block[1000] ^= 4);
    fs::write(rig.path("s"), store).unwrap();
    let found = rig.run(["check", "s"]).exits(4).out;
    assert_eq!(found.lines().filter(|line| line.contains("in /f, bytes ")).count(), 1000);
    assert!(found.contains("\nand 200 more, in the sums only\n"), "{found}");
    assert!(found.contains("\n1200 blocks LOST\n1200 ERRORS\n"), "{found}");
    let found = rig.run(["check", "s", "--json"]).exits(4).json();
    assert_eq!(found["blocks"]["findings"].as_array().unwrap().len(), 1000);
    assert_eq!((&found["errors"], &found["blocks"]["unreadable"]), (&BAD.into(), &BAD.into()));
}

#[test]
fn a_bad_copy_of_a_directory_is_repaired_by_reading() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let store = store(&rig);
    let places = places(&store, b"letter-to-find");
    // The first copies come first on the device.
    flip(&store, places[0]);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(rig.path("m/d/letter-to-find")).unwrap() == letter());
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert_eq!((&status["blocks_repaired"], &status["blocks_unrepaired"]), (&1.into(), &0.into()));
    let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
    let block = format!("device {}, block {}", store.display(), places[0] / 4096);
    assert!(log.lines().any(|line| line.contains("replaced by the good one") && line.contains(&block)), "{log}");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_damaged_label_is_repaired_by_check() {
    let rig = Rig::new();
    let store = rig.store("s", "8M");
    flip(&store, 64);
    let found = rig.run(["check", "s"]).exits(4).out;
    assert!(found.contains("label"), "{found}");
    rig.run(["check", "s", "--repair"]).exits(1);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn the_bytes_of_a_file_behind_a_bad_block_are_named_up_to_its_end() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let mut content: Vec<u8> = (0..3 * 4096).map(|at| (at / 4096) as u8 + b'a').collect();
    content.truncate(2 * 4096 + 100);
    fs::write(mount.join("f"), &content).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let store = rig.path("s");
    for (page, last) in [(b'b', "8191"), (b'c', "8291")] {
        let places = places(&store, &[page; 100]);
        flip(&store, places[0]);
        let first = (u64::from(page - b'a') * 4096).to_string();
        let found = rig.run(["check", "s"]).exits(4).out;
        assert!(found.contains(&format!("in /f, bytes {first} to {last}\n")), "{found}");
    }
}

/// What check advises helps, and nothing else is advised.
#[test]
fn advice_is_by_kind_of_damage() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::create_dir(mount.join("d")).unwrap();
    symlink("x".repeat(200), mount.join("link")).unwrap();
    fs::write(mount.join("noted"), "text").unwrap();
    setxattr(mount.join("noted"), "user.note", &[b'n'; 900], XattrFlags::empty()).unwrap();
    fs::write(mount.join("d/f"), "text").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let harm = |kind: &str, path: Option<&str>| {
        let path = path.into_iter().flat_map(|path| ["--path", path]);
        rig.run(["inject", "s", "--kind", kind, "--copy", "all"].into_iter().chain(path)).exits(0);
    };
    let advised = |part: &str| {
        let advice = rig.run(["check", "s", "--json"]).exits(4).json()["advice"].clone();
        let first = advice[0].as_str().unwrap();
        assert!(first.contains(part) && advice.as_array().unwrap().len() == 2, "{part}: {advice}");
    };
    harm("bitmap", None);
    advised("holdfast check --repair s");
    rig.run(["check", "s", "--repair"]).exits(1);
    rig.run(["check", "s"]).exits(0);

    // With something in the intent log, a mount has to come first; that makes a new bitmap already.
    rig.run(["mount", "s", "m"]).exits(0);
    File::create(mount.join("synced")).unwrap().sync_all().unwrap();
    kill(rig.daemon("m"), Signal::KILL);
    rig.run(["unmount", "m"]).exits(0);
    harm("bitmap", None);
    advised("mount the store once");
    rig.run(["check", "s", "--repair"]).exits(4);
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);

    harm("symlink", Some("/link"));
    advised("remove it and make it again");
    harm("xattr", Some("/noted"));
    advised("remove it and make it again");
    rig.run(["mount", "s", "m"]).exits(0);
    fs::remove_file(mount.join("link")).unwrap();
    fs::remove_file(mount.join("noted")).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);

    harm("directory", Some("/d"));
    advised("move it aside");
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::remove_dir_all(mount.join("d")).is_err());
    fs::rename(mount.join("d"), mount.join("aside")).unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/f"), "text").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    harm("object-table", None);
    assert!(rig.run(["check", "s"]).exits(4).out.contains("make a new store"));
}
