//! A check of a store that is mounted, and in use: what it finds, and what it leaves alone.

use crate::rig::{Rig, copy_program, fuse, kill};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Until it is told to end: makes files, links, overwrites and removes them, with a recovery point each time.
fn keep_busy(rig: &Rig, mount: &Path, stop: &AtomicBool) -> u32 {
    let directory = mount.join("busy");
    fs::create_dir(&directory).unwrap();
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for number in 0..20u32 {
            let file = directory.join(format!("f{}", (rounds * 7 + number) % 50));
            fs::write(&file, vec![rounds as u8; 4096 * (1 + number as usize)]).unwrap();
            let _ = fs::hard_link(&file, directory.join(format!("l{number}")));
        }
        // In the intent log, which is copied.
        fs::File::open(directory.join(format!("f{}", (rounds * 7 + 19) % 50))).unwrap().sync_all().unwrap();
        for number in 0..20 {
            let _ = fs::remove_file(directory.join(format!("l{number}")));
            let _ = fs::remove_file(directory.join(format!("f{}", (rounds * 11 + number) % 50)));
        }
        rig.run(["sync", "m"]).exits(0);
        rounds += 1;
    }
    rounds
}

#[test]
fn nothing_is_wrong_with_a_store_that_is_written_to_meanwhile() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("kept"), vec![7; 3 << 20]).unwrap();
    rig.run(["snapshot", "create", "m", "first"]).exits(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| keep_busy(&rig, &mount, &stop));
        let mut epochs = Vec::new();
        for _ in 0..15 {
            // By the mount, and by the store.
            let target = if epochs.len() % 2 == 0 { "m" } else { "s" };
            let found = rig.run(["check", target, "--json"]).exits(0).json();
            assert_eq!((&found["errors"], &found["mounted"]), (&0.into(), &rig.path("m").to_str().unwrap().into()));
            assert!(found["names"]["entries"].as_u64().unwrap() > 1, "{found}");
            epochs.push(found["epoch"].as_u64().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(busy.join().unwrap() > 1);
        assert!(epochs.is_sorted_by(|one, next| one < next), "each of what there is then: {epochs:?}");
    });
    assert_eq!(fs::read(mount.join("kept")).unwrap(), vec![7; 3 << 20]);
    let words = rig.run(["check", "m"]).exits(0).out;
    assert!(words.contains("what has changed since was not looked at") && words.contains("no errors"), "{words}");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn damage_is_found_and_left_to_others() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    for number in 0..50 {
        fs::write(mount.join(format!("f{number}")), vec![number; 40_000]).unwrap();
    }
    rig.run(["unmount", "m"]).exits(0);
    // Nobody meets a second copy.
    rig.run(["inject", "s", "--kind", "directory", "--copy", "2", "--fault", "flip"]).exits(0);
    rig.run(["inject", "s", "--kind", "file-data", "--path", "/f7", "--page", "2", "--bits", "3"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    let found = rig.run(["check", "m", "--json"]).exits(4).json();
    assert_eq!((&found["errors"], &found["corrected"]), (&2.into(), &0.into()), "{found}");
    let words = rig.run(["check", "m"]).exits(4).out;
    assert!(words.contains("/f7, bytes 8192 to 12287") && words.contains("holdfast unmount"), "{words}");
    rig.run(["check", "m", "--repair"]).exits(8).says("is mounted on").says("holdfast scrub");
    rig.run(["scrub", "m", "--wait"]).exits(3);
    let found = rig.run(["check", "m", "--json"]).exits(4).json();
    assert_eq!(found["blocks"]["lost_pages"], 1, "{found}");
    assert_eq!(found["errors"], 1, "the copy is good again: {found}");
}

#[test]
fn it_can_be_cancelled_and_is_the_owners() {
    if !fuse() {
        return;
    }
    let rig = Rig::for_others();
    rig.mounted("allow_other");
    rig.run(["check", "m"]).exits(0);
    let mut command = rig.command();
    // Nobody but the one who is to be told has heard of it before it begins.
    let check = command.args(["check", "m"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    kill(i32::try_from(check.id()).unwrap(), Signal::INT);
    let code = { check }.wait().unwrap();
    assert!(code.code().is_none_or(|code| [0, 32].contains(&code)), "{code}");
    rig.run(["check", "m"]).exits(0);
    if geteuid().is_root() {
        let program = rig.path("program");
        copy_program(&program);
        let mut other = Command::new(program);
        other.args(["check", "m"]).current_dir(rig.path("")).env("HOME", rig.path("home"));
        other.env("HOLDFAST_RUNTIME_DIR", rig.path("run")).stdin(Stdio::null());
        let other = other.uid(65534).gid(65534).output().unwrap();
        assert_eq!(other.status.code(), Some(8));
    }
    rig.run(["unmount", "m"]).exits(0);
}
