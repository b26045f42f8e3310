//! The life of a mount: made, used, synced, unmounted, ended by signals, killed.

use crate::rig::{Rig, await_end, eventually, fingerprint, fuse, has_ended, kill, root};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

#[test]
fn mount_use_sync_unmount_and_mount_again() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    let content = vec![0x5a; 3_000_000];
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/f"), &content).unwrap();

    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert_eq!(status["condition"], "mounted");
    assert_eq!(status["mounted_on"], mount.to_str().unwrap());
    assert!(status["cache"]["dirty_bytes"].as_u64().unwrap() >= 3_000_000, "{status}");
    let below = rig.run(["sync", "m/d", "--json"]).exits(0).json();
    assert!(below["epoch"].as_u64() > status["epoch"].as_u64(), "{below} {status}");
    let status = rig.run(["status", "s", "--json"]).exits(0).json();
    assert_eq!((&status["epoch"], &status["cache"]["dirty_bytes"]), (&below["epoch"], &0.into()));
    let all = rig.run(["status", "--json"]).json();
    let mounts = all["mounts"].as_array().unwrap();
    assert!(mounts.iter().any(|one| one["mounted_on"] == mount.to_str().unwrap()), "{all}");

    let daemon = rig.daemon("m");
    assert!(rig.run(["unmount", "m"]).exits(0).out.contains("is clean"));
    assert!(has_ended(daemon));
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
    rig.run(["check", "s"]).exits(0);

    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("d/f")).unwrap() == content);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(1).says("no store is mounted on");
    rig.run(["sync", "m"]).exits(1).says("is in no mount");
    rig.run(["status", "m"]).exits(1).says("is in no mount");
}

#[test]
fn a_store_in_use_is_refused_to_everybody_else() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    rig.directory("other");
    let in_use = format!("{} is mounted on {}", rig.path("s").display(), rig.path("m").display());
    rig.run(["mount", "s", "other"]).exits(1).says(&in_use);
    rig.run(["check", "s", "--repair"]).exits(8).says("is mounted on");
    rig.run(["create", "s", "--force"]).exits(1).says("is mounted on");
    rig.store("t", "4M");
    rig.run(["mount", "t", "m"]).exits(1).says("is mounted there already");
    fs::write(rig.path("m/still"), "here").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_busy_mount_stays_and_says_who_uses_it() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let mut open = File::create(mount.join("f")).unwrap();
    let refused = rig.run(["unmount", "m"]).exits(1).says("is busy");
    assert!(refused.err.contains(&format!("({})", std::process::id())), "{refused:?}");
    open.write_all(b"still works").unwrap();
    drop(open);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn what_cannot_be_mounted_says_why() {
    let rig = Rig::new();
    rig.store("s", "4M");
    rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "ro,sparkle"]).exits(2).says("\"sparkle\"");
    rig.run(["mount", "s", "m", "-o", "cache=1"]).exits(2).says("cache");
    rig.run(["mount", "s", "absent"]).exits(1).says("absent: No such file");
    rig.run(["mount", "s", "s"]).exits(1).says("is no directory");
    rig.run(["mount", "m", "m"]).exits(1).says("cannot be used as a block device");
    fs::write(rig.path("m/mine"), "mine").unwrap();
    rig.run(["mount", "s", "m"]).exits(1).says("is not empty");
    let failed = rig.run(["mount", "s", "m", "--json"]).exits(1).json();
    assert_eq!(failed["error"]["code"], 1);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
}

#[test]
fn a_read_only_mount_changes_no_byte_of_the_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("f"), "content").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let before = fingerprint(&rig.path("s"));
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"content");
    let error = fs::write(mount.join("f"), "other").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // As was asked for: nobody has to do anything.
    assert!(rig.run(["status", "m"]).exits(0).out.contains("READ-ONLY"));
    rig.run(["unmount", "m"]).exits(0);
    assert_eq!(fingerprint(&rig.path("s")), before);
}

#[test]
fn sigterm_unmounts_and_leaves_a_clean_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    fs::write(mount.join("f"), "written, not synced").unwrap();
    let daemon = rig.daemon("m");
    kill(daemon, Signal::TERM);
    await_end(daemon);
    let status = rig.run(["status", "s", "--json"]).exits(0).json();
    assert_eq!(status["condition"], "clean");
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"written, not synced");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn sigterm_ends_also_a_mount_in_use() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    let mut open = File::create(mount.join("f")).unwrap();
    open.write_all(b"before").unwrap();
    let daemon = rig.daemon("m");
    kill(daemon, Signal::TERM);
    await_end(daemon);
    open.write_all(b"after").expect_err("nobody is there to take it");
    drop(open);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"before");
    rig.run(["unmount", "m"]).exits(0);
}

/// Whether a store is mounted there, and can be used.
fn is_alive(mount: &Path) -> bool {
    fs::write(mount.join("alive"), "yes").is_ok() && fs::read(mount.join("alive")).unwrap() == b"yes"
}

#[test]
fn a_daemon_that_is_told_to_end_leaves_other_mounts_at_its_directory_alone() {
    if !fuse() || !root("umount -l needs root") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    rig.store("t", "16M");
    // Taken away lazily, and still in use.
    let mut open = File::create(mount.join("f")).unwrap();
    open.write_all(b"before").unwrap();
    let first = rig.daemon("m");
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    rig.run(["mount", "t", "m"]).exits(0);
    let second = rig.daemon("m");
    kill(first, Signal::TERM);
    await_end(first);
    assert!(!has_ended(second) && is_alive(&mount));
    open.write_all(b"after").expect_err("nobody is there to take it");
    drop(open);
    rig.run(["check", "s"]).exits(0);

    // The same with one mount over the other.
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    let first = rig.daemon("m");
    let second = rig.command().args(["mount", "t", "m", "-o", "nonempty"]).output().unwrap();
    assert!(!second.status.success(), "a store is mounted there already");
    let over = rustix::mount::mount("none", &mount, "tmpfs", rustix::mount::MountFlags::empty(), c"");
    over.unwrap();
    fs::write(mount.join("of the tmpfs"), "x").unwrap();
    kill(first, Signal::TERM);
    await_end(first);
    assert!(mount.join("of the tmpfs").exists());
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_daemon_whose_mount_is_gone_leaves_the_next_with_its_number_alone() {
    if !fuse() || !root("umount -l needs root") {
        return;
    }
    let number = |mount: &Path| rustix::fs::stat(mount).unwrap().st_dev;
    let mut reused = 0;
    for _ in 0..10 {
        let rig = Rig::new();
        let mount = rig.mounted("epoch=60000");
        rig.store("t", "16M");
        let (first, of_first) = (rig.daemon("m"), number(&mount));
        stop(first);
        // Nobody uses it, so that the kernel has its number for others, and the daemon does not know.
        rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
        rig.run(["mount", "t", "m"]).exits(0);
        reused += usize::from(number(&mount) == of_first);
        let second = rig.daemon("m");
        kill(first, Signal::TERM);
        kill(first, Signal::CONT);
        await_end(first);
        assert!(!has_ended(second) && is_alive(&mount));
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
    if reused == 0 {
        eprintln!("SKIPPED: other mounts took the numbers");
    }
}

#[test]
fn a_mount_that_was_moved_is_found_by_its_daemon() {
    if !fuse() || !root("moving a mount needs root") {
        return;
    }
    let rig = Rig::new();
    rig.mounted("epoch=60000");
    let elsewhere = rig.directory("elsewhere");
    let daemon = rig.daemon("m");
    rustix::mount::mount_bind(rig.path("m"), &elsewhere).unwrap();
    rustix::mount::unmount(rig.path("m"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(is_alive(&elsewhere));
    kill(daemon, Signal::TERM);
    await_end(daemon);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
}

#[test]
fn after_kill_9_what_was_synced_is_there() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    fs::write(mount.join("whole"), "by holdfast sync").unwrap();
    rig.run(["sync", "m"]).exits(0);
    let mut one = File::create(mount.join("one")).unwrap();
    one.write_all(b"by fsync").unwrap();
    one.sync_all().unwrap();
    drop(one);
    rig.kill_daemon("m");

    let status = rig.run(["status", "m", "--json"]).exits(3).json();
    assert_eq!(status["condition"], "abandoned");
    assert_eq!(rig.run(["status", "s", "--json"]).exits(3).json()["condition"], "unclean");
    assert!(rig.run(["status", "m", "--metrics"]).exits(3).out.contains("holdfast_abandoned{"));
    rig.run(["status"]).exits(3);
    rig.run(["sync", "m"]).exits(1).says("its daemon has died");
    rig.run(["check", "s"]).exits(0);
    // The dead mount is in the way, and is taken away.
    let words = rig.run(["mount", "s", "m"]).exits(0).out;
    assert!(words.contains("intent log replayed"), "{words}");
    assert_eq!(fs::read(mount.join("whole")).unwrap(), b"by holdfast sync");
    assert_eq!(fs::read(mount.join("one")).unwrap(), b"by fsync");

    rig.kill_daemon("m");
    let words = rig.run(["unmount", "m"]).exits(0).out;
    assert!(words.contains("daemon had died"), "{words}");
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    // Nor is a store that nobody has mounted, and that was not closed in order.
    rig.run(["status", "s"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn in_the_foreground_it_ends_with_sigint() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "4M");
    let mount = rig.directory("m");
    let mut child = rig
        .command()
        .args(["mount", "s", "m", "--foreground", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("\n}\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "ended: {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["daemon"]["pid"], child.id());
    fs::write(mount.join("f"), "content").unwrap();
    kill(i32::try_from(child.id()).unwrap(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("closed in order"), "{log}");
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
}

/// Stops a process; the signal stops one thread after the other.
fn stop(daemon: i32) {
    kill(daemon, Signal::STOP);
    eventually("all threads have stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
        threads.all(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).unwrap().contains(") T "))
    });
}

#[test]
fn a_mount_that_does_not_answer_holds_nobody_up() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    fs::write(mount.join("f"), "content").unwrap();
    let daemon = rig.daemon("m");
    stop(daemon);
    // Each takes seconds until it gives up.
    let [stuck, below, unmounted] = std::thread::scope(|scope| {
        let commands = [&["status", "m"][..], &["sync", "m/f", "--timeout", "1"], &["unmount", "m"]];
        let rig = &rig;
        let started = commands.map(|arguments| scope.spawn(move || rig.run(arguments)));
        started.map(|command| command.join().unwrap())
    });
    kill(daemon, Signal::CONT);
    let stuck = stuck.exits(3).out;
    assert!(stuck.contains("does NOT ANSWER") && stuck.contains("unmount --force"), "{stuck}");
    assert!(below.exits(1).says("does not answer").err.contains("holdfast unmount --force"));
    assert!(unmounted.exits(1).says("nothing was unmounted").err.contains("holdfast unmount --force"));
    assert_eq!(rig.run(["status", "m", "--json"]).exits(0).json()["condition"], "mounted");
    rig.run(["sync", "m/f", "--timeout", "1"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_daemon_that_was_cut_off_still_has_the_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    let daemon = rig.daemon("m");
    fs::write(mount.join("g"), "more").unwrap();
    stop(daemon);
    let forced = rig.run(["unmount", "--force", "m"]).exits(1).says("its daemon still has");
    assert!(forced.err.contains(&format!("kill -CONT {daemon}")), "{forced:?}");
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    kill(daemon, Signal::CONT);
    await_end(daemon);
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("g")).unwrap(), b"more");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_disk_that_hangs_holds_nobody_up() {
    if !fuse() {
        return;
    }
    // The disk is a file in another mount, whose daemon is stopped.
    let rig = Rig::new();
    let host = rig.mounted("");
    rig.run(["create", "m/t", "--size", "16M"]).exits(0);
    let mount = rig.directory("n");
    rig.run(["mount", "m/t", "n", "-o", "epoch=60000"]).exits(0);
    let (disk, daemon) = (rig.daemon("m"), rig.daemon("n"));
    fs::write(mount.join("f"), "content").unwrap();
    stop(disk);
    let synced = rig.run(["sync", "n", "--timeout", "1"]);
    kill(disk, Signal::CONT);
    let synced = synced.exits(1);
    assert!(synced.err.contains("does not answer") || synced.err.contains("does not get on"), "{synced:?}");
    rig.run(["sync", "n"]).exits(0);
    rig.run(["unmount", "n"]).exits(0);
    assert!(has_ended(daemon));
    rig.run(["unmount", "m"]).exits(0);
    assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
}

#[test]
fn force_ends_a_mount_in_use_and_leaves_a_clean_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    let mut open = File::create(mount.join("f")).unwrap();
    open.write_all(b"before").unwrap();
    assert!(rig.run(["unmount", "--force", "m"]).exits(0).out.contains("is clean"));
    open.write_all(b"after").expect_err("nobody is there to take it");
    drop(open);
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"before");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_full_store_can_be_mounted_read_and_deleted_from() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "16M");
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "cache=16M"]).exits(0);
    let name = |number: usize| mount.join(format!("f{number}"));
    let content = |number: usize| vec![number as u8; 100_000];
    let full = (0..1000).find_map(|number| fs::write(name(number), content(number)).err().map(|error| (number, error)));
    let (full_at, error) = full.expect("16 MiB do not hold 100 MB");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(full_at > 100, "full after {full_at} files");
    rig.run(["sync", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);

    rig.run(["mount", "s", "m"]).exits(0);
    for number in 0..full_at {
        assert!(fs::read(name(number)).unwrap() == content(number), "f{number}");
        fs::remove_file(name(number)).unwrap();
    }
    rig.run(["sync", "m"]).exits(0);
    for number in 0..full_at / 2 {
        fs::write(name(number), content(number)).unwrap();
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
