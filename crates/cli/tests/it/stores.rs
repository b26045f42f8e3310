//! Stores that are not mounted: making, looking, checking, and refusing what is none.

use crate::rig::{Rig, eventually, fingerprint, kill};
use holdfast_integrity::crc64;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

const LABEL_BYTES: u64 = 64 << 10;

#[test]
fn create_status_and_check_in_words_and_as_json() {
    let rig = Rig::new();
    let created = rig.run(["create", "s", "--size", "16M", "--json"]).exits(0).json();
    assert_eq!(created["size_bytes"], 16 << 20);
    assert_eq!(fs::metadata(rig.path("s")).unwrap().len(), 16 << 20);
    let before = fingerprint(&rig.path("s"));

    let status = rig.run(["status", "s", "--json"]).exits(0).json();
    assert_eq!(status["condition"], "clean");
    assert_eq!(status["uuid"], created["uuid"]);
    assert_eq!(status["objects"], 1);
    let space = |name: &str| status["space"][name].as_u64().unwrap();
    assert_eq!(space("used_bytes") + space("free_bytes"), space("total_bytes"));
    assert!(space("available_bytes") <= space("free_bytes") && space("total_bytes") < 16 << 20);

    let check = rig.run(["check", "s", "--json"]).exits(0).json();
    assert_eq!((&check["errors"], &check["exit_code"], &check["clean"]), (&0.into(), &0.into(), &true.into()));
    assert_eq!((&check["names"]["directories"], &check["blocks"]["found"]), (&1.into(), &0.into()));

    let words = rig.run(["status", "s"]).exits(0).out;
    assert!(words.contains("not mounted, clean") && words.contains("not read now"), "{words}");
    let words = rig.run(["check", "s"]).exits(0);
    assert!(words.out.ends_with("no errors\n") && words.err.is_empty(), "no bar where there is no terminal: {words:?}");
    assert_eq!(fingerprint(&rig.path("s")), before, "looking changed the store");
}

#[test]
fn usage_errors_have_the_code_of_the_command() {
    let rig = Rig::new();
    for (arguments, code) in [
        (&["check"][..], 16),
        (&["--json", "check", "--sparkle", "s"], 16),
        (&["status", "--sparkle", "--json"], 2),
        (&["create"], 2),
        (&["create", "s", "--size", "many"], 2),
        (&["create", "s", "--size", "1M"], 2),
        (&["mount", "s"], 2),
        (&["frobnicate"], 2),
        (&[], 2),
    ] {
        let ran = rig.run(arguments).exits(code);
        if arguments.contains(&"--json") {
            let error = ran.json();
            assert_eq!(error["error"]["code"], code);
            assert!(ran.err.is_empty() && error["error"]["hint"].as_str().unwrap().contains("--help"), "{ran:?}");
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("unexpected argument '--sparkle'"), "{message}");
        } else {
            assert!(!ran.err.is_empty() && ran.out.is_empty(), "{ran:?}");
        }
    }
    assert!(!rig.path("s").exists());
}

#[test]
fn arguments_need_not_be_utf8() {
    let rig = Rig::new();
    let odd = OsStr::from_bytes(b"\xff");
    let ran = rig.run([OsStr::new("check"), OsStr::new("--sparkle"), odd]).exits(16);
    assert!(ran.err.contains("unexpected argument '--sparkle'"), "{ran:?}");
    let ran = rig.run([OsStr::new("frobnicate"), odd, OsStr::new("--json")]).exits(2);
    assert_eq!(ran.json()["error"]["code"], 2);
}

#[test]
fn a_store_too_small_is_refused_with_the_least_size() {
    let rig = Rig::new();
    rig.run(["create", "s", "--size", "1M"]).exits(2).says("the least is 2.00 MiB");
    rig.run(["create", "s", "--size", "2M"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn help_of_every_command_has_examples() {
    let rig = Rig::new();
    for command in [
        "create",
        "mount",
        "unmount",
        "up",
        "status",
        "sync",
        "check",
        "scrub",
        "grow",
        "trim",
        "inject",
        "completions",
        "man",
    ] {
        let help = rig.run([command, "--help"]).exits(0);
        assert!(help.err.is_empty() && help.out.contains(&format!("  holdfast {command}")), "{help:?}");
    }
    let help = rig.run(["--help"]).exits(0);
    assert!(help.out.contains("holdfast up ") && rig.run(["--version"]).exits(0).out.starts_with("holdfast 0."));
}

#[test]
fn nothing_is_overwritten_without_force() {
    let rig = Rig::new();
    let store = rig.store("s", "4M");
    let before = fingerprint(&store);
    rig.run(["create", "s"]).exits(1).says("holds a Holdfast store; nothing was changed");
    assert_eq!(fingerprint(&store), before);

    let ext4 = rig.path("ext4");
    fs::write(&ext4, vec![0; 4 << 20]).unwrap();
    File::options().write(true).open(&ext4).unwrap().write_all_at(b"\x53\xef", 0x438).unwrap();
    let before = fingerprint(&ext4);
    rig.run(["create", "ext4"]).exits(1).says("an ext2, ext3 or ext4 file system");
    fs::write(rig.path("letter"), "dear all").unwrap();
    rig.run(["create", "letter"]).exits(1).says("holds data, first at byte 0");
    assert_eq!(fs::read(rig.path("letter")).unwrap(), b"dear all");
    assert_eq!(fingerprint(&ext4), before);
    rig.run(["create", "."]).exits(1).says("is a directory");

    let old = rig.run(["status", "s", "--json"]).exits(0).json();
    rig.run(["create", "s", "--force"]).exits(0);
    let new = rig.run(["status", "s", "--json"]).exits(0).json();
    assert_ne!(old["uuid"], new["uuid"]);
    rig.run(["create", "ext4", "--force", "--size", "6M"]).exits(0);
    assert_eq!(fs::metadata(&ext4).unwrap().len(), 6 << 20);
    rig.run(["check", "ext4"]).exits(0);
}

#[test]
fn an_empty_file_becomes_a_store_of_its_own_size() {
    let rig = Rig::new();
    let allocated = |name: &str| fs::metadata(rig.path(name)).unwrap().blocks() * 512;
    let sparse = File::create(rig.path("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.write_all_at(&[0; 1 << 20], 2 << 20).unwrap();
    assert!(allocated("sparse") < 5 << 20);
    let made = rig.run(["create", "sparse", "--json"]).exits(0).json();
    assert_eq!((&made["size_bytes"], &made["reserved"]), (&(5 << 20).into(), &true.into()));
    assert!(allocated("sparse") >= 5 << 20, "the host can run out of space under it");
    File::create(rig.path("empty")).unwrap();
    assert_eq!(rig.run(["create", "empty", "--size", "3M", "--json"]).exits(0).json()["size_bytes"], 3 << 20);
    // A size that is asked for counts, whatever the file had.
    for (had, wanted) in [(5 << 20, "3M"), (3 << 20, "5M")] {
        File::create(rig.path("other")).unwrap().set_len(had).unwrap();
        let made = rig.run(["create", "other", "--size", wanted, "--json"]).exits(0).json();
        assert_eq!(made["size_bytes"], (8 << 20) - had);
        assert_eq!(fs::metadata(rig.path("other")).unwrap().len(), (8 << 20) - had);
    }
}

#[test]
fn a_store_without_room_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.run(["create", "s", "--size", "8P"]).exits(1).says("no room for a store of 8.00 PiB");
    assert!(!rig.path("s").exists());
    rig.run(["create", "no/such/dir/s", "--size", "4M"]).exits(1).says("no/such/dir: there is no such directory");
}

/// Every command that opens a store says one clear line about it, with its exit code for that, and changes nothing.
#[track_caller]
fn refused(rig: &Rig, store: &Path, part: &str) {
    let before = fingerprint(store);
    let name = store.file_name().unwrap().to_str().unwrap();
    let mount_point = rig.path("mount-point");
    fs::create_dir_all(&mount_point).unwrap();
    rig.run(["status", name]).exits(1).says(part);
    rig.run(["mount", name, "mount-point"]).exits(1).says(part);
    rig.run(["check", name]).exits(8).says(part);
    rig.run(["check", "--repair", name]).exits(8).says(part);
    let error = rig.run(["check", name, "--json"]).exits(8).json();
    assert!(error["error"]["message"].as_str().unwrap().contains(part), "{error}");
    assert_eq!(fingerprint(store), before, "{part}: the store was changed");
}

#[test]
fn what_is_no_store_is_refused_and_not_changed() {
    let rig = Rig::new();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(rig.path(name), bytes).unwrap();
        rig.path(name)
    };
    refused(&rig, &file("empty", b""), "empty");
    refused(&rig, &file("short", b"HOLDFAST"), "short");
    refused(&rig, &file("zeros", &vec![0; 4 << 20]), "zeros");
    let mut state = 1u64;
    let mut random = || {
        // xorshift64, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let noise: Vec<u8> = (0..4 << 20).map(|_| random()).collect();
    refused(&rig, &file("noise", &noise), "noise");
    let labelled: Vec<u8> = b"HOLDFAST".iter().copied().chain(noise).take(4 << 20).collect();
    refused(&rig, &file("labelled-noise", &labelled), "labelled-noise");

    rig.run(["status", "absent"]).exits(1).says("absent: No such file or directory");
    // What looks like a store is offered to who may have mistyped.
    let offered = rig.run(["mount", "absent", "mount-point", "--json"]).exits(1).json();
    assert_eq!(offered["error"]["hint"], "stores in that directory: ./labelled-noise, ./short");
    let absolute = rig.path("mount-point/absent");
    let offered = rig.run(["status", absolute.to_str().unwrap(), "--json"]).exits(1).json();
    assert_eq!(offered["error"]["hint"], format!("to make a store there: holdfast create {}", absolute.display()));
    rig.run(["check", "absent"]).exits(8).says("absent");
    rig.run(["check", "/dev/null"]).exits(8).says("/dev/null");
}

#[test]
fn a_truncated_store_is_refused_and_not_changed() {
    let rig = Rig::new();
    let store = rig.store("s", "8M");
    for length in [(8 << 20) - 4096, 4 << 20, 100_000, 4096] {
        File::options().write(true).open(&store).unwrap().set_len(length).unwrap();
        refused(&rig, &store, "size");
    }
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_not_changed() {
    let rig = Rig::new();
    let store = rig.store("s", "8M");
    let file = File::options().read(true).write(true).open(&store).unwrap();
    let length = file.metadata().unwrap().len();
    for at in [0, LABEL_BYTES, length - 2 * LABEL_BYTES, length - LABEL_BYTES] {
        // docs/format.md: the version is at 8, the CRC-64 of the first 4088 bytes at 4088.
        let mut label = [0; 4096];
        file.read_exact_at(&mut label, at).unwrap();
        assert_eq!(&label[..8], b"HOLDFAST");
        // Above any version that there will be.
        label[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc64(&label[..4088]);
        label[4088..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&label, at).unwrap();
    }
    refused(&rig, &store, "newer version");
}

#[test]
fn a_check_can_be_cancelled() {
    let rig = Rig::new();
    rig.store("s", "4M");
    // It stays where it prints, because the pipe is full.
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[0; 64 << 10]).unwrap();
    let mut check = rig.command().args(["check", "s"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let waits_for_signals = || {
        let threads = fs::read_dir(format!("/proc/{}/task", check.id())).unwrap();
        let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default());
        names.into_iter().any(|name| name == "signals\n")
    };
    eventually("it can be cancelled", waits_for_signals);
    kill(i32::try_from(check.id()).unwrap(), Signal::INT);
    assert_eq!(check.wait().unwrap().code(), Some(32));
    let mut words = String::new();
    check.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(words, "holdfast: cancelled by SIGINT\n");
}
