//! What a mount logs: in a file, to the journal; repairs, damage, latches.

use crate::rig::{Rig, eventually, fuse, kill};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The log file that `status` names.
fn log_of(rig: &Rig, mount: &str) -> PathBuf {
    let status = rig.run(["status", mount, "--json"]).json();
    PathBuf::from(status["daemon"]["log"].as_str().expect("a log"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_mount_in_the_background_logs_its_life_line_by_line_with_time_and_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    let log = log_of(&rig, "m");
    fs::write(mount.join("f"), "synced").unwrap();
    File::open(mount.join("f")).unwrap().sync_all().unwrap();
    rig.kill_daemon("m");
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    let text = read(&log);
    let store = rig.path("s");
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.len() == 27, "{line}");
        assert!(rest.contains(&format!(" {}: ", store.display())), "{line}");
    }
    for part in [
        "info    ",
        "closed in order, at recovery point",
        "warning ",
        "had not been closed in order: recovered from recovery point",
        "and 1 batches of the intent log",
        &format!("mounted on {}", mount.display()),
        "unmounted",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn stores_whose_paths_differ_in_a_slash_have_logs_of_their_own() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.directory("a");
    let logs = ["a/b", "a-b"].map(|store| {
        rig.store(store, "4M");
        rig.directory(&format!("m-{}", store.len() + usize::from(store.contains('-'))));
        let mount = format!("m-{}", store.len() + usize::from(store.contains('-')));
        rig.run(["mount", store, &mount]).exits(0);
        let log = log_of(&rig, &mount);
        rig.run(["unmount", &mount]).exits(0);
        assert!(read(&log).contains(&format!("{}: closed in order", rig.path(store).display())));
        log
    });
    assert_ne!(logs[0], logs[1]);
}

#[test]
fn what_is_the_callers_doing_is_no_error_of_the_store() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let log = log_of(&rig, "m");
    fs::write(mount.join("f"), "kept").unwrap();
    rig.run(["snapshot", "create", "m", "first"]).exits(0);
    let kept = mount.join(".holdfast/snapshots/first");
    let refused = |outcome: std::io::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    refused(fs::write(kept.join("f"), "x"));
    refused(fs::write(kept.join("new"), "x"));
    refused(fs::remove_file(kept.join("f")));
    refused(fs::rename(kept.join("f"), kept.join("g")));
    assert!(fs::read(mount.join("absent")).is_err() && fs::remove_dir(mount.join("f")).is_err());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    refused(fs::write(mount.join("f"), "x"));
    rig.run(["unmount", "m"]).exits(0);
    let text = read(&log);
    assert!(!text.contains(" error "), "{text}");
}

#[test]
fn the_level_can_be_chosen_and_nonsense_is_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "4M");
    rig.directory("m");
    let life = |arguments: &[&str], variable: Option<&str>| {
        let mut mount = rig.command();
        mount.args(["mount", "s", "m"]).args(arguments);
        variable.map(|value| mount.env("HOLDFAST_LOG", value));
        assert!(mount.output().unwrap().status.success());
        let log = log_of(&rig, "m");
        rig.run(["unmount", "m"]).exits(0);
        let text = read(&log);
        fs::remove_file(log).unwrap();
        text
    };
    assert_eq!(life(&["--log-level", "error"], None), "");
    assert_eq!(life(&[], Some("off")), "");
    assert!(life(&["--log-level", "info"], Some("off")).contains("mounted on"));
    let nonsense = life(&[], Some("=,="));
    assert!(nonsense.contains("HOLDFAST_LOG==,= makes no sense") && nonsense.contains("mounted on"), "{nonsense}");
    rig.run(["mount", "s", "m", "--log-level", "loud"]).exits(2);
}

#[test]
fn the_journal_gets_priorities() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "4M");
    rig.directory("m");
    let log = File::create(rig.path("journal")).unwrap();
    let stat = log.metadata().unwrap();
    let mut child = rig
        .command()
        .args(["mount", "s", "m", "--foreground"])
        .env("JOURNAL_STREAM", format!("{}:{}", stat.dev(), stat.ino()))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    eventually("it is mounted", || read(&rig.path("journal")).contains("mounted on"));
    kill(i32::try_from(child.id()).unwrap(), Signal::TERM);
    assert!(child.wait().unwrap().success());
    let (text, store) = (read(&rig.path("journal")), rig.path("s"));
    for line in text.lines() {
        assert!(line.starts_with(&format!("<6>{}: ", store.display())), "{line}");
    }
    assert!(text.contains("asked to end by SIGTERM"), "{text}");
}

/// The device fails: a file size limit makes the kernel refuse writes beyond it, as a full or broken host would.
#[test]
fn a_failed_write_is_told_once_with_device_and_block_and_shows_in_the_status() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    let mount = rig.directory("m");
    // The signal that comes with the error would end the daemon.
    let mounted = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_holdfast")])
        .args(["mount", "s", "m", "-o", "epoch=60000"])
        .env("HOME", rig.path("home"))
        .env_remove("XDG_STATE_HOME")
        .current_dir(rig.path(""))
        .output()
        .unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    fs::write(mount.join("before"), "kept").unwrap();
    rig.run(["sync", "m"]).exits(0);
    let daemon = rig.daemon("m");
    let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    prlimit(Pid::from_raw(daemon), Resource::Fsize, limit).unwrap();

    let mut file = File::create(mount.join("after")).unwrap();
    file.write_all(&[7; 8 << 20]).unwrap();
    file.sync_all().expect_err("the device takes nothing");
    fs::write(mount.join("more"), "x").expect_err("it is latched");
    drop(file);
    let status = rig.run(["status", "m", "--json"]).exits(3).json();
    let reason = status["read_only"].as_str().expect("a reason").to_string();
    let store = rig.path("s").display().to_string();
    assert!(reason.starts_with(&format!("device {store}: write failed at block ")), "{reason}");
    assert_eq!(reason.matches("failed").count(), 1, "{reason}");
    assert!(!reason.contains("read-only"), "{reason}");
    assert_eq!(status["latched"], true);
    let words = rig.run(["status", "m"]).exits(3).out;
    assert_eq!(words.matches(&reason).count(), 1, "{words}");
    assert_eq!(fs::read(mount.join("before")).unwrap(), b"kept");

    let log = read(&log_of(&rig, "m"));
    let told = format!("{store}: the store is read-only from now on: {reason}");
    assert_eq!(log.lines().filter(|line| line.ends_with(&told)).count(), 1, "{told}\n{log}");
    assert!(!log.contains("read-only: read-only"), "{log}");
    rig.run(["unmount", "m"]).exits(1).says("was not left clean");
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read(mount.join("before")).unwrap(), b"kept");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn commands_log_only_if_asked() {
    let rig = Rig::new();
    rig.store("s", "4M");
    assert_eq!(rig.run(["status", "s"]).exits(0).err, "");
    let mut status = rig.command();
    let mut child =
        status.args(["status", "s", "--log-level", "trace", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut json = String::new();
    child.stdout.take().unwrap().read_to_string(&mut json).unwrap();
    assert!(child.wait().unwrap().success());
    serde_json::from_str::<serde_json::Value>(&json).expect("the log is not in the document");
}
