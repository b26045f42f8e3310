//! Stores on a Flashlog: made, mounted, looked at; backups at recovery points; devices that are lost.

use crate::flashlog_sets::Server;
use crate::nbd::Client;
use crate::rig::{Ran, Rig, await_end, fuse, kill, root};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// What files have, by path.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn tree(directory: &Path) -> Tree {
    let mut files = Tree::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(
                tree(&path).into_iter().map(|(name, bytes)| (Path::new(path.file_name().unwrap()).join(name), bytes)),
            );
        } else {
            files.insert(path.file_name().unwrap().into(), fs::read(&path).unwrap());
        }
    }
    files
}

/// Some files with contents of their own.
fn fill(directory: &Path, name: &str, count: usize) {
    let below = directory.join(name);
    fs::create_dir(&below).unwrap();
    for number in 0..count {
        let line = format!("{name} {number}\n");
        fs::write(below.join(format!("{number}")), line.repeat(1 + 997 * number % 4000)).unwrap();
    }
}

/// Main `a`, log `b` and backup `c`, mounted on `m`.
fn mounted(rig: &Rig, mode: &str) -> PathBuf {
    rig.run(["create", "--main", "a", "--log", "b", "--backup", "c", "--size", "64M", "--mode", mode]).exits(0);
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m"]).exits(0);
    directory
}

/// Brings the backup up to date; gives the recovery point.
fn back_up(rig: &Rig) -> u64 {
    let report = rig.run(["flashlog", "backup", "m", "--to", "c", "--json"]).exits(0).json();
    report["recovery_point"].as_u64().unwrap()
}

/// That a store is there, in order, and its recovery point.
fn checked(rig: &Rig, store: &str) -> u64 {
    let report = rig.run(["check", store, "--json"]).exits(0).json();
    assert_eq!(report["errors"], 0, "{report}");
    report["epoch"].as_u64().unwrap()
}

fn destroy(path: &Path) {
    let length = fs::metadata(path).unwrap().len();
    OpenOptions::new().write(true).truncate(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn a_store_on_a_flashlog_is_used_as_any_other() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let made = rig
        .run(["create", "--main", "a", "--log", "b", "--size", "64M", "--log-size", "8M", "--mode", "async"])
        .exits(0);
    assert!(made.out.contains("on the Flashlog") && made.out.contains("(async)"), "{made:?}");
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m"]).exits(0);
    // Around the log several times.
    for round in 0..4 {
        fill(&directory, &format!("round{round}"), 20);
        rig.run(["sync", "m"]).exits(0);
    }
    let files = tree(&directory);
    let is_protected = |code: i32| {
        let status = rig.run(["status", "m", "--json"]).exits(code).json();
        let set = &status["flashlog"];
        assert_eq!((set["protected"].as_bool(), set["mode"].as_str()), (Some(code == 0), Some("async")), "{status}");
        let metrics = rig.run(["status", "m", "--metrics"]).exits(code).out;
        let ends = if code == 0 { " 1" } else { " 0" };
        let of_set = |line: &str| line.starts_with("holdfast_flashlog_protected{") && line.ends_with(ends);
        assert!(metrics.lines().any(of_set), "{metrics}");
    };
    is_protected(3);
    rig.run(["flashlog", "backup", "m", "--to", "c"]).exits(0);
    is_protected(0);
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    rig.run(["scrub", "m", "--wait"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);

    checked(&rig, "a");
    let words = rig.run(["status", "a"]).exits(0).out;
    assert!(words.contains("protected: main, log and backup (async, set ") && words.contains(" 0 B behind"), "{words}");
    assert!(rig.run(["snapshot", "list", "a"]).exits(0).out.contains("one"));
    rig.run(["mount", "a", "m", "-o", "ro"]).exits(0);
    assert_eq!(tree(&directory), files);
    let flags = rig.run(["status", "m"]).exits(0).out;
    assert!(flags.contains("protected: main, log and backup (async, set "), "{flags}");
    rig.run(["unmount", "m"]).exits(0);
    // What is asked for with a mount stays.
    rig.run(["mount", "a", "m", "-o", "log-mode=sync"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    let status = rig.run(["status", "a", "--json"]).exits(0).json();
    assert_eq!(status["flashlog"]["mode"], "sync");
}

#[test]
fn a_main_disk_without_its_log_is_never_used() {
    let rig = Rig::new();
    rig.run(["create", "--main", "a", "--log", "b", "--size", "64M"]).exits(0);
    rig.run(["create", "--main", "other", "--log", "other.log", "--size", "64M"]).exits(0);
    rig.directory("m");
    rig.directory("away");
    let set = rig.run(["status", "a", "--json"]).exits(3).json();
    let set = set["flashlog"]["set"].as_str().unwrap().to_string();
    fs::rename(rig.path("b"), rig.path("away/b")).unwrap();
    let lacks = |ran: Ran, code: i32| {
        let err = ran.exits(code).says("a is the main disk of a Flashlog, and its log ").err;
        assert!(err.contains("is not there") && err.contains("-o log=PATH"), "{err}");
    };
    lacks(rig.run(["mount", "a", "m"]), 1);
    lacks(rig.run(["mount", "a", "m", "-o", "ro"]), 1);
    lacks(rig.run(["check", "a"]), 8);
    let status = rig.run(["status", "a"]).exits(3).out;
    assert!(status.contains("its LOG IS NOT THERE") && status.contains("--log PATH"), "{status}");
    assert_eq!(rig.run(["status", "a", "--json"]).exits(3).json()["condition"], "without-log");
    let device = rig.run(["flashlog", "status", "a"]).exits(3).out;
    assert!(device.contains("is not there, which may have what was written last"), "{device}");
    rig.run(["mount", "a", "m", "-o", "without-log,log=away/b"]).exits(2).says("exclude each other");
    // Told where it is.
    rig.run(["check", "a", "--log", "away/b"]).exits(0);
    rig.run(["status", "a", "--log", "away/b"]).exits(3);
    if fuse() {
        rig.run(["mount", "a", "m", "-o", "log=away/b"]).exits(0);
        rig.run(["unmount", "m"]).exits(0);
    }
    rig.run(["check", "a", "--log", "other.log"]).exits(8).says("other.log is not the log of ");
    rig.run(["check", "a", "--log", "other"]).exits(8).says("but the main device");
    File::create(rig.path("empty")).unwrap().set_len(8 << 20).unwrap();
    rig.run(["check", "a", "--log", "empty"]).exits(8).says("is no log of a Flashlog");
    rig.run(["check", "away/b"]).exits(8).says("is the log of a Flashlog, not its main disk").says(&set);
    rig.run(["status", "other", "--log", "away/b"]).exits(1).says("is not the log of");

    // Larger by hand, it is used as it was; without its labels it is not.
    OpenOptions::new().write(true).open(rig.path("a")).unwrap().set_len(70 << 20).unwrap();
    lacks(rig.run(["check", "a"]), 8);
    rig.run(["check", "a", "--log", "away/b"]).exits(0);
    OpenOptions::new().write(true).open(rig.path("a")).unwrap().set_len(64 << 20).unwrap();
    rig.run(["check", "a", "--log", "away/b"]).exits(0);

    // A store of its own is one, also on what was a device of a set.
    rig.run(["create", "a"]).exits(1).says("is the main device of Flashlog");
    rig.run(["create", "away/b", "--size", "64M"]).exits(1).says("is the log device of Flashlog");
    for store in ["a", "away/b"] {
        rig.run(["create", store, "--size", "64M", "--force"]).exits(0);
        let status = rig.run(["status", store, "--json"]).exits(0).json();
        assert!(status.get("flashlog").is_none(), "{status}");
    }
    rig.run(["check", "a", "--log", "other.log"]).exits(16).says("is not the main disk of a Flashlog");
    for wrong in [&["--main", "x"][..], &["x", "--main", "y", "--log", "z"], &["--main", "x", "--log", "x"]] {
        rig.run([&["create"], wrong].concat()).exits(2);
    }
    assert!(!rig.path("x").exists());
}

#[test]
fn a_backup_is_a_store_at_a_recovery_point() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "sync");
    assert_eq!(rig.run(["status", "c", "--json"]).exits(0).json()["flashlog_device"]["role"], "backup");
    fill(&directory, "first", 30);
    let first = tree(&directory);
    let point = back_up(&rig);
    fill(&directory, "second", 30);
    assert!(checked(&rig, "c") >= point);
    rig.run(["mount", "c", "m"]).exits(1);
    let other = rig.directory("n");
    rig.run(["mount", "c", "n"]).exits(1).says("is the backup of a Flashlog");
    rig.run(["mount", "c", "n", "-o", "ro"]).exits(0);
    assert_eq!(tree(&other), first, "nothing that came later");
    rig.run(["unmount", "n"]).exits(0);
    rig.run(["sync", "m"]).exits(0);
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert_eq!(status["flashlog"]["last_backup"]["recovery_point"], point, "{status}");
    assert!(status["flashlog"]["since_backup_bytes"].as_u64().unwrap() > 0, "{status}");

    // It is known where it went, and found again by the next mount.
    rig.run(["flashlog", "backup", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "a", "m"]).exits(0);
    let report = rig.run(["flashlog", "backup", "m", "--json"]).exits(0).json();
    assert_eq!(report["full"], false, "{report}");
    rig.run(["mount", "c", "n", "-o", "ro"]).exits(0);
    assert_eq!(tree(&other), tree(&directory));
    rig.run(["unmount", "n"]).exits(0);
    rig.store("plain", "64M");
    rig.run(["mount", "plain", "n"]).exits(0);
    rig.run(["flashlog", "backup", "n", "--to", "c"]).exits(1).says("is on no Flashlog");
}

#[test]
fn each_backup_is_consistent_while_files_are_written() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "async");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let path = directory.join(format!("{}", number % 50));
                let mut file = File::create(&path).unwrap();
                file.write_all(&vec![number as u8; 1000 * (number % 70)]).unwrap();
                if number % 5 == 0 {
                    file.sync_all().unwrap();
                    fs::rename(&path, directory.join("renamed")).unwrap();
                }
            }
        });
        let mut last = 0;
        for _ in 0..6 {
            let point = back_up(&rig);
            assert!(point >= last);
            last = checked(&rig, "c");
            assert!(last >= point, "{last} is before {point}");
        }
        stop.store(true, Ordering::Release);
    });
}

#[test]
fn a_backup_that_is_killed_has_a_consistent_state_and_goes_on() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "sync");
    for round in 0..4 {
        fill(&directory, &format!("round{round}"), 60);
        let before = checked(&rig, "c");
        let mut backup = rig.command();
        let backup = backup.args(["flashlog", "backup", "m", "--to", "c"]).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = rig.daemon("m");
        let mut backup = backup.spawn().unwrap();
        // How far it is by then is chance; the explorer of crashes cuts at each request.
        let label = || {
            let mut bytes = vec![0; 1 << 20];
            let file = File::open(rig.path("c")).unwrap();
            file.read_exact_at(&mut bytes, file.metadata().unwrap().len() - (1 << 20)).unwrap();
            bytes
        };
        let old = label();
        while round % 2 == 0 && label() == old && backup.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        kill(daemon, Signal::KILL);
        await_end(daemon);
        backup.wait().unwrap();
        assert!(checked(&rig, "c") >= before);
        rig.run(["mount", "a", "m"]).exits(0);
        let point = back_up(&rig);
        assert!(checked(&rig, "c") >= point);
    }
}

#[test]
fn a_lost_main_disk_comes_back_from_backup_and_log() {
    if !fuse() {
        return;
    }
    for mode in ["sync", "async"] {
        let rig = Rig::new();
        let directory = mounted(&rig, mode);
        fill(&directory, "first", 30);
        back_up(&rig);
        fill(&directory, "second", 30);
        fs::remove_file(directory.join("first/7")).unwrap();
        fs::write(directory.join("first/8"), "written again").unwrap();
        rig.run(["sync", "m"]).exits(0);
        let files = tree(&directory);
        // Without warning.
        rig.kill_daemon("m");
        rig.run(["unmount", "m"]);
        destroy(&rig.path("a"));
        rig.run(["mount", "a", "m"]).exits(1);
        rig.run(["flashlog", "rebuild", "--backup", "c", "--log", "b", "--main", "new"]).exits(0);
        checked(&rig, "new");
        rig.run(["mount", "new", "m"]).exits(0);
        assert_eq!(tree(&directory), files, "{mode}");
        fill(&directory, "third", 10);
        let files = tree(&directory);
        back_up(&rig);
        rig.run(["unmount", "m"]).exits(0);
        checked(&rig, "new");
        rig.run(["mount", "c", "m", "-o", "ro"]).exits(0);
        assert_eq!(tree(&directory), files, "{mode}");
    }
}

/// A log of which only so much can be written: a sparse file where there is no more space.
pub(crate) struct SmallHost(pub(crate) PathBuf);

impl SmallHost {
    pub(crate) fn new(rig: &Rig, size: &str) -> SmallHost {
        let path = rig.directory("small");
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).status();
        assert!(mounted.unwrap().success());
        SmallHost(path)
    }
}

/// A rig in which the log is `small/b`, if mounts can be made here.
fn rig_with_small_log() -> Option<(Rig, SmallHost)> {
    if !fuse() {
        return None;
    }
    if !root("not root, so there is no host that is too small") {
        return None;
    }
    let rig = Rig::new();
    let host = SmallHost::new(&rig, "6M");
    File::create(host.0.join("b")).unwrap().set_len(64 << 20).unwrap();
    Some((rig, host))
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_failing_log_makes_the_store_read_only_if_that_is_wanted_and_status_says_so() {
    let Some((rig, _host)) = rig_with_small_log() else { return };
    rig.run(["create", "--main", "a", "--log", "small/b", "--size", "64M"]).exits(0);
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m", "-o", "log=small/b,on-failure=sync.log=read-only"]).exits(0);
    fill(&directory, "before", 10);
    rig.run(["sync", "m"]).exits(0);
    let before = tree(&directory);
    let written = (0..200).try_for_each(|number| {
        let mut file = File::create(directory.join(format!("{number}")))?;
        file.write_all(&[7; 256 << 10])?;
        file.sync_all()
    });
    assert!(written.is_err());
    let status = rig.run(["status", "m"]).exits(3).out;
    assert!(status.contains("NOT PROTECTED") && status.contains("small/b"), "{status}");
    let status = rig.run(["status", "m", "--json"]).exits(3).json();
    assert_eq!((status["flashlog"]["protected"].as_bool(), status["latched"].as_bool()), (Some(false), Some(true)));
    assert!(status["read_only"].as_str().unwrap().contains("small/b"), "{status}");
    let metrics = rig.run(["status", "m", "--metrics"]).exits(3).out;
    assert!(
        metrics.lines().any(|line| line.starts_with("holdfast_flashlog_protected{") && line.ends_with(" 0")),
        "{metrics}"
    );
    assert_eq!(
        tree(&directory.join("before")),
        before.into_iter().map(|(path, bytes)| (path.strip_prefix("before").unwrap().into(), bytes)).collect()
    );
    rig.run(["unmount", "m"]);

    // Main has everything, and says that it is alone.
    rig.run(["mount", "a", "m"]).exits(1).says("has gone on without its log");
    let status = rig.run(["status", "a"]).exits(3).out;
    assert!(status.contains("NOT PROTECTED: main is without a log since generation"), "{status}");
    checked(&rig, "a");
    rig.run(["mount", "a", "m", "-o", "ro"]).exits(0);
    assert_eq!(tree(&directory.join("before")).len(), 10);
    rig.run(["flashlog", "attach", "m", "--log", "small/b"]).exits(1).says("for reading only");
}

#[test]
fn a_mount_that_is_ended_waits_no_longer_for_a_log_that_has_gone() {
    let Some((rig, host)) = rig_with_small_log() else { return };
    rig.run(["create", "--main", "a", "--log", "small/b", "--size", "64M"]).exits(0);
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m", "-o", "log=small/b,on-failure=log.gone=wait:1h"]).exits(0);
    fill(&directory, "before", 10);
    rig.run(["sync", "m"]).exits(0);
    let before = tree(&directory.join("before"));
    // It fails for want of room, and nothing is in its place.
    fs::rename(host.0.join("b"), host.0.join("away")).unwrap();
    // In the mount as it is now, and not in the directory under it when that has gone.
    let here = File::open(&directory).unwrap();
    let writer = std::thread::spawn(move || {
        (0..200).try_for_each(|number| {
            let mut file = File::create(format!("/proc/self/fd/{}/{number}", here.as_raw_fd()))?;
            file.write_all(&[7; 256 << 10])?;
            file.sync_all()
        })
    });
    loop {
        let status = rig.run(["status", "m", "--json"]).json();
        if status["flashlog"]["problem"].as_str().is_some_and(|problem| problem.contains("is waited for")) {
            break;
        }
        assert!(!writer.is_finished());
    }
    rig.run(["unmount", "--force", "m", "--timeout", "60"]).exits(0);
    // It was cut off, or main took all of it in time.
    let _written = writer.join().unwrap();
    // Main has gone on without its log, as it would have after an hour.
    rig.run(["mount", "a", "m", "-o", "ro"]).exits(0);
    assert_eq!(tree(&directory.join("before")), before);
    let status = rig.run(["status", "m"]).exits(3).out;
    assert!(status.contains("NOT PROTECTED: main is without a log since"), "{status}");
}

/// That everybody who asks about a mount hears that its main is alone.
fn is_said_to_be_alone(rig: &Rig, mount: &str) {
    let words = rig.run(["status", mount]).exits(3).out;
    assert!(words.contains("NOT PROTECTED: main is without a log since 20"), "{words}");
    let status = rig.run(["status", mount, "--json"]).exits(3).json();
    let (set, latched) = (&status["flashlog"], &status["latched"]);
    assert_eq!((set["protected"].as_bool(), latched.as_bool()), (Some(false), Some(false)), "{status}");
    assert!(set["alone"]["since_s"].as_u64().unwrap() > 1_700_000_000, "{status}");
    let metrics = rig.run(["status", mount, "--metrics"]).exits(3).out;
    assert!(
        metrics.lines().any(|line| line.starts_with("holdfast_flashlog_protected{") && line.ends_with(" 0")),
        "{metrics}"
    );
    assert!(rig.run(["flashlog", "status"]).exits(3).out.contains("NOT PROTECTED: main is without a log since 20"));
    let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("main is without a log: what is written is not protected"), "{log}");
}

/// That main can be lost: backup and log have everything. The new main is mounted in its place.
fn main_is_lost(rig: &Rig, log: &str) {
    let files = tree(&rig.path("m"));
    rig.run(["sync", "m"]).exits(0);
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]);
    destroy(&rig.path("a"));
    let _ = fs::remove_file(rig.path("new"));
    let rebuilt = rig.run(["flashlog", "rebuild", "--backup", "c", "--log", log, "--main", "new"]).exits(0).out;
    assert!(rebuilt.contains("Mount it with: holdfast mount new DIR -o log="), "{rebuilt}");
    rig.run(["check", "new", "--log", log]).exits(0);
    rig.run(["mount", "new", "m", "-o", &format!("log={log}")]).exits(0);
    assert_eq!(tree(&rig.path("m")), files);
}

#[test]
fn a_mounted_store_goes_on_when_its_log_fails() {
    let Some((rig, host)) = rig_with_small_log() else { return };
    rig.run(["create", "--main", "a", "--log", "small/b", "--backup", "c", "--size", "64M"]).exits(0);
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m", "-o", "log=small/b"]).exits(0);
    fill(&directory, "before", 10);
    back_up(&rig);
    for number in 0..60 {
        let mut file = File::create(directory.join(format!("{number}"))).unwrap();
        file.write_all(&[number; 256 << 10]).unwrap();
        file.sync_all().unwrap();
    }
    is_said_to_be_alone(&rig, "m");
    rig.run(["flashlog", "backup", "m", "--to", "c"]).exits(1).says("without its log");
    // The log has room again.
    let larger = Command::new("mount").args(["-o", "remount,size=80M"]).arg(&host.0).status();
    assert!(larger.unwrap().success());
    rig.run(["flashlog", "attach", "m", "--log", "small/b"]).exits(0);
    rig.run(["status", "m"]).exits(0);
    fill(&directory, "after", 10);
    main_is_lost(&rig, "small/b");
    rig.run(["flashlog", "backup", "m", "--to", "c"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    checked(&rig, "c");
}

/// Like `Rig::kill_daemon`, for a mount that is not protected.
fn kill_alone(rig: &Rig) {
    let status = rig.run(["status", "m", "--json"]).exits(3).json();
    let daemon = i32::try_from(status["daemon"]["pid"].as_i64().unwrap()).unwrap();
    kill(daemon, Signal::KILL);
    await_end(daemon);
}

#[test]
fn a_stick_is_taken_and_brought_back_while_the_store_is_used() {
    if !fuse() {
        return;
    }
    for mode in ["sync", "async"] {
        let rig = Rig::new();
        let directory = mounted(&rig, mode);
        rig.directory("at home");
        let (stick, at_home) = (rig.path("b"), rig.path("at home/b"));
        fill(&directory, "first", 20);
        back_up(&rig);
        fill(&directory, "second", 20);
        let detached = rig.run(["flashlog", "detach"]).exits(0).out;
        assert!(detached.contains("b can be taken away") && detached.contains("NOT PROTECTED"), "{detached}");
        fs::rename(&stick, &at_home).unwrap();
        fill(&directory, "alone", 20);
        rig.run(["sync", "m"]).exits(0);
        is_said_to_be_alone(&rig, "m");
        rig.run(["flashlog", "backup", "m"]).exits(1).says("without its log");
        rig.run(["flashlog", "detach", "m"]).exits(1).says("without its log");

        // Nobody goes on without it unasked.
        let files = tree(&directory);
        kill_alone(&rig);
        rig.run(["unmount", "m"]);
        rig.run(["mount", "a", "m"]).exits(1).says("without-log");
        let mounted = rig.run(["mount", "a", "m", "-o", "without-log"]).exits(0);
        assert!(mounted.err.contains("NOT PROTECTED: main is without a log since generation"), "{mounted:?}");
        assert_eq!(tree(&directory), files);
        fill(&directory, "still alone", 20);
        rig.run(["sync", "m"]).exits(0);
        fs::rename(&at_home, &stick).unwrap();
        let attached = rig.run(["flashlog", "attach", "--log", "b"]).exits(0).out;
        assert!(attached.contains("Main has its log"), "{attached}");
        rig.run(["status", "m"]).exits(0);
        fill(&directory, "home again", 20);
        main_is_lost(&rig, "b");

        // It is back before the store is mounted again.
        back_up(&rig);
        rig.run(["flashlog", "detach", "m"]).exits(0);
        fill(&directory, "in the tunnel", 20);
        rig.run(["sync", "m"]).exits(0);
        kill_alone(&rig);
        rig.run(["unmount", "m"]);
        rig.run(["mount", "new", "m"]).exits(0);
        rig.run(["status", "m"]).exits(0);
        fs::rename(rig.path("new"), rig.path("a")).unwrap();
        main_is_lost(&rig, "b");
    }
}

#[test]
fn a_mounted_store_gets_a_new_log() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "sync");
    fill(&directory, "first", 20);
    back_up(&rig);
    rig.run(["flashlog", "detach", "m"]).exits(0);
    fs::remove_file(rig.path("b")).unwrap();
    fill(&directory, "second", 20);
    rig.run(["flashlog", "attach", "m", "--log", "b2"]).exits(1).says("to make another log there: --new");
    let attached = rig.run(["flashlog", "attach", "m", "--log", "b2", "--new", "--json"]).exits(3).json();
    assert!(attached["new"] == true && attached["changed_bytes"].as_u64() > Some(0), "{attached}");
    assert!(rig.run(["status", "m"]).exits(3).out.contains("NOT PROTECTED: the log does not keep all"));
    let report = rig.run(["flashlog", "backup", "m", "--to", "c", "--json"]).exits(0).json();
    assert_eq!(report["full"], false, "{report}");
    fill(&directory, "third", 20);
    main_is_lost(&rig, "b2");
}

#[test]
fn a_deleted_file_is_found_in_the_state_of_a_store_that_is_mounted() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "sync");
    fs::write(directory.join("letter"), "first").unwrap();
    back_up(&rig);
    fs::write(directory.join("letter"), "second").unwrap();
    rig.run(["sync", "m"]).exits(0);
    let moments = rig.run(["flashlog", "at", "--list", "--json"]).exits(0).json()["moments"].clone();
    let good = moments.as_array().unwrap().last().unwrap()["number"].to_string();
    fs::remove_file(directory.join("letter")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    let mut command = rig.command();
    command.args(["flashlog", "at", "--barrier", &good, "--socket", "then", "--json"]);
    let at = Server::spawn(command);
    let mut then = Client::connect(&rig.path("then"));
    let bytes: Vec<u8> = (0..then.size_bytes >> 20).flat_map(|at| then.read(at << 20, 1 << 20)).collect();
    fs::write(rig.path("then.img"), bytes).unwrap();
    drop(then);
    at.kill();
    let other = rig.directory("n");
    rig.run(["mount", "then.img", "n", "-o", "ro"]).exits(0);
    assert_eq!(fs::read(other.join("letter")).unwrap(), b"second");
    rig.run(["unmount", "n"]).exits(0);
}

#[test]
fn a_store_grows_on_its_flashlog() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let directory = mounted(&rig, "sync");
    fill(&directory, "first", 30);
    let grown = rig.run(["grow", "m", "+32M"]).exits(0).out;
    assert!(grown.contains("to 95.0 MiB") && grown.contains("Its backup is of the size before"), "{grown}");
    rig.run(["status", "m"]).exits(0);
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    fill(&directory, "second", 30);
    rig.run(["flashlog", "backup", "m"]).exits(1).says("the set has become larger since this backup was made");
    // The old backup is worth as much as before.
    main_is_lost(&rig, "b");
    let report = rig.run(["flashlog", "backup", "m", "--to", "c2", "--json"]).exits(0).json();
    assert_eq!(report["full"], true, "{report}");
    // More than there was room for, on store and log.
    for number in 0..6 {
        fs::write(directory.join(format!("large{number}")), vec![number; 10 << 20]).unwrap();
        rig.run(["sync", "m"]).exits(0);
    }
    rig.run(["flashlog", "backup", "m", "--to", "c2"]).exits(0);
    checked(&rig, "c2");
    let files = tree(&directory);
    rig.run(["unmount", "m"]).exits(0);
    assert!(rig.run(["grow", "new", "+16M"]).exits(0).out.contains("to 111 MiB"));
    checked(&rig, "new");

    // Larger by hand: as it was, until it is told to grow. A power cut then.
    OpenOptions::new().write(true).open(rig.path("new")).unwrap().set_len(140 << 20).unwrap();
    rig.run(["mount", "new", "m", "-o", "ro"]).exits(0);
    assert_eq!(tree(&directory), files);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "new", "m"]).exits(0);
    assert_eq!(tree(&directory), files);
    assert!(rig.run(["grow", "m"]).exits(0).out.contains("to 139 MiB"));
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]);
    rig.run(["mount", "new", "m"]).exits(0);
    assert_eq!(tree(&directory), files);
    rig.run(["status", "m"]).exits(0);
    rig.run(["flashlog", "detach", "m"]).exits(0);
    let grown = rig.run(["grow", "m", "+16M"]).exits(3).out;
    assert!(
        grown.contains("to 155 MiB") && grown.contains("NOT PROTECTED: its main disk is without its log"),
        "{grown}"
    );
    rig.run(["flashlog", "attach", "m", "--log", "b"]).exits(0);
    assert!(!rig.run(["grow", "m"]).exits(0).out.contains("NOT PROTECTED"));
    rig.run(["unmount", "m"]).exits(0);
    checked(&rig, "new");
}
