//! A store whose daemon is still closing it, as umount(8) and fusermount3 leave it: who waits for it, and who is refused at once.

use crate::rig::{PATIENCE, Ran, Rig, await_end, eventually, fuse, has_ended, kill, root};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// Far less than anything here waits for, and far more than refusing takes on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Takes a mount away as umount(8) and fusermount3 do, without waiting for its daemon.
fn take_away(directory: &Path) {
    if rustix::process::geteuid().is_root() {
        rustix::mount::unmount(directory, UnmountFlags::DETACH).unwrap();
    } else {
        assert!(Command::new("fusermount3").args(["-u", "-z"]).arg(directory).status().unwrap().success());
    }
}

/// Runs a command that must not wait.
fn at_once(rig: &Rig, arguments: &[&str]) -> Ran {
    let start = Instant::now();
    let ran = rig.run(arguments);
    assert!(start.elapsed() < AT_ONCE && !ran.err.contains("waiting"), "{:?}: {ran:?}", start.elapsed());
    ran
}

/// Starts a command, and returns when it has said that it waits.
fn waits(rig: &Rig, arguments: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
    let mut child = rig.command().args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("holdfast: waiting for the daemon that is still closing "), "{line}");
    (child, errors, line)
}

/// The number of threads of a process that answer requests.
fn workers(pid: i32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with("fuse-")).count()
}

#[test]
fn a_store_is_mounted_again_at_once_however_much_its_last_mount_has_to_write() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "128M");
    let mount = rig.directory("m");
    let mut caught = false;
    for round in 0..20u8 {
        rig.run(["mount", "s", "m", "-o", "epoch=60000"]).exits(0);
        if let Some(last) = round.checked_sub(1) {
            assert!(fs::read(mount.join("f")).unwrap() == vec![last; 12_000_000], "{round}");
        }
        fs::write(mount.join("f"), vec![round; 12_000_000]).unwrap();
        let daemon = rig.daemon("m");
        take_away(&mount);
        if caught {
            continue;
        }
        // Stopped when it has no workers any more, if it can be caught there.
        eventually("the daemon closes the store", || workers(daemon) == 0);
        if has_ended(daemon) {
            continue;
        }
        kill(daemon, Signal::STOP);
        let held = rig.run(["mount", "s", "m", "--timeout", "1"]);
        if held.code == Some(0) {
            // It had let go of the store before.
            rig.run(["unmount", "m"]).exits(0);
            kill(daemon, Signal::CONT);
            continue;
        }
        caught = true;
        assert!(held.err.contains(&format!("is still being written by the daemon of a mount (process {daemon})")));
        assert!(held.err.contains(&format!("kill -CONT {daemon}")), "{held:?}");
        let (mut again, _errors, line) = waits(&rig, &["mount", "s", "m", "-o", "epoch=60000"]);
        assert!(line.ends_with(&format!("s (process {daemon})\n")), "{line}");
        kill(daemon, Signal::CONT);
        assert!(again.wait().unwrap().success());
        assert!(fs::read(mount.join("f")).unwrap() == vec![round; 12_000_000]);
        rig.run(["unmount", "m"]).exits(0);
    }
    assert!(caught, "12 MB were written in no time, 20 times");
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn mount_and_check_wait_for_a_daemon_that_does_not_know_yet_and_others_are_refused() {
    if !fuse() {
        return;
    }
    for waiter in [["mount", "s", "m"], ["check", "s", "--json"]] {
        let rig = Rig::new();
        let mount = rig.mounted("epoch=60000");
        fs::write(mount.join("f"), "written, not synced").unwrap();
        let daemon = rig.daemon("m");
        kill(daemon, Signal::STOP);
        take_away(&mount);
        let held = format!("is still held by the daemon of a mount that is gone (process {daemon})");
        at_once(&rig, &["status", "s"]).exits(1).says(&held);
        at_once(&rig, &["inject", "s", "--kind", "label"]).exits(1).says(&held);
        at_once(&rig, &["create", "s", "--force"]).exits(1).says(&held);
        if waiter[0] == "mount" {
            let gave_up = rig.run(["mount", "s", "m", "--timeout", "2"]).exits(1);
            assert!(gave_up.err.contains(&held) && gave_up.err.contains("waiting for the daemon"), "{gave_up:?}");
        } else {
            assert!(rig.run(["check", "s", "--timeout", "1"]).exits(8).err.contains(&held));
        }
        let (mut child, _errors, _) = waits(&rig, &waiter);
        kill(daemon, Signal::CONT);
        assert!(child.wait().unwrap().success(), "{waiter:?}");
        await_end(daemon);
        if waiter[0] == "check" {
            rig.run(["mount", "s", "m"]).exits(0);
        }
        assert_eq!(fs::read(mount.join("f")).unwrap(), b"written, not synced");
        rig.run(["unmount", "m"]).exits(0);
    }
}

#[test]
fn a_mounted_store_is_refused_at_once_also_where_the_mount_cannot_be_seen() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    rig.directory("other");
    at_once(&rig, &["mount", "s", "other"]).exits(1).says("is mounted on");
    at_once(&rig, &["check", "s", "--repair"]).exits(8).says("is mounted on");
    rig.run(["unmount", "m"]).exits(0);
    if !root("a name space of mounts needs root") {
        return;
    }
    let mut inside = Command::new("unshare");
    let script = r#""$HOLDFAST" mount s m >&2 && "$HOLDFAST" status --json m"#;
    inside.args(["--mount", "sh", "-c", script]).current_dir(rig.path("")).env("HOME", rig.path("home"));
    let inside = inside.env("HOLDFAST", env!("CARGO_BIN_EXE_holdfast")).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&inside.stdout).unwrap();
    let daemon = i32::try_from(status["daemon"]["pid"].as_i64().unwrap()).unwrap();
    let refused = at_once(&rig, &["mount", "s", "other"]).exits(1).says("is in use by another process");
    assert!(refused.err.contains(&format!("process {daemon}, which has mounted it where")), "{refused:?}");
    at_once(&rig, &["check", "s"]).exits(8).says("is in use by another process");
    kill(daemon, Signal::TERM);
    rig.run(["mount", "s", "other"]).exits(0);
    rig.run(["unmount", "other"]).exits(0);
}

#[test]
fn of_two_mounts_made_at_the_same_time_one_is_refused() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    for round in 0..5 {
        let directories = ["one", "other"].map(|name| format!("{name}{round}"));
        let mounts = directories.each_ref().map(|name| {
            rig.directory(name);
            rig.command().args(["mount", "s", name]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let start = Instant::now();
        let [one, other] = mounts.map(|mount| mount.wait_with_output().unwrap());
        assert!(start.elapsed() < PATIENCE / 4);
        let (refused, mounted) = match one.status.success() {
            true => (other, &directories[0]),
            false => (one, &directories[1]),
        };
        let words = String::from_utf8(refused.stderr).unwrap();
        let told = words.contains(&format!("is mounted on {}", rig.path(mounted).display()));
        assert!(!refused.status.success() && told, "{}: {words}", refused.status);
        rig.run(["unmount", mounted]).exits(0);
    }
}
