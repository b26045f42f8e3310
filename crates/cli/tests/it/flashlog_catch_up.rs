//! `holdfast flashlog catch-up`: main gets what it lacks when somebody asks for it.

use crate::flashlog_sets::Server;
use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::FileExt;

/// Whether main has it at its place.
fn main_has(rig: &Rig, at: u64, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    fs::File::open(rig.path("main")).unwrap().read_exact_at(&mut found, at).unwrap();
    found == bytes
}

#[test]
fn main_gets_everything_when_it_is_asked_for() {
    let rig = Rig::new();
    rig.run(["flashlog", "create", "--main", "main", "--log", "log", "--size", "32M"]).exits(0);
    let asynchronous = ["--main", "main", "--log", "log", "--mode", "async"];
    let server = Server::start(&rig, &asynchronous);
    let mut client = server.client();
    let (one, two) = (vec![0x5a; 1 << 20], vec![0xa5; 65536]);
    client.write(0, &one);
    client.try_flush().unwrap();
    assert!(!main_has(&rig, 0, &one), "main sleeps");
    let log_alone = || rig.run(["flashlog", "status", "--json"]).exits(3).json()["sets"][0]["log_alone_bytes"].clone();
    assert_eq!(log_alone(), 1 << 20);
    let report = rig.run(["flashlog", "catch-up", "--json"]).exits(0).json();
    assert_eq!((&report["caught_up_bytes"], &report["behind_bytes"]), (&(1 << 20).into(), &0.into()), "{report}");
    assert!(main_has(&rig, 0, &one));
    assert_eq!(log_alone(), 0);
    let again = rig.run(["flashlog", "catch-up", "--main", "main", "--log", "log"]).exits(0);
    assert!(again.out.contains("Main had everything already"), "{again:?}");
    let without_end = ["flashlog", "catch-up", "--main", "main", "--log", "log", "--drop-later"];
    rig.run(without_end).exits(2).says("the set is in use");
    // The server is killed, and nobody serves the set.
    client.write(8 << 20, &two);
    client.try_flush().unwrap();
    server.kill();
    assert!(!main_has(&rig, 8 << 20, &two));
    rig.run(["flashlog", "catch-up"]).exits(1).says("no server of a set was found");
    let report = rig.run(["flashlog", "catch-up", "--main", "main", "--log", "log"]).exits(0);
    assert!(report.out.contains("Main has everything; it was 64.0 KiB behind"), "{report:?}");
    assert!(main_has(&rig, 8 << 20, &two) && main_has(&rig, 0, &one));
    // All of the log can be read, so nothing is given up.
    let report = rig.run([&without_end[..], &["--json"]].concat()).exits(0).json();
    assert_eq!((&report["caught_up_bytes"], &report["dropped"]), (&0.into(), &false.into()), "{report}");
    // Without a log there is nothing to catch up with.
    let server = Server::start(&rig, &asynchronous);
    rig.run(["flashlog", "detach"]).exits(0);
    rig.run(["flashlog", "catch-up"]).exits(1).says("the set is without its log");
    server.stop();
}

#[test]
fn main_of_a_mounted_store_gets_everything() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.run(["create", "--main", "a", "--log", "b", "--size", "64M", "--mode", "async"]).exits(0);
    let directory = rig.directory("m");
    rig.run(["mount", "a", "m"]).exits(0);
    fs::write(directory.join("file"), vec![7; 3 << 20]).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["flashlog", "backup", "m", "--to", "c"]).exits(0);
    fs::write(directory.join("another"), vec![8; 2 << 20]).unwrap();
    rig.run(["sync", "m"]).exits(0);
    // Nothing is wrong with it, and nobody is told that all of it is on two devices.
    let words = rig.run(["status", "m"]).exits(0).out;
    assert!(words.contains("protected: main, log and backup, but for up to "), "{words}");
    let metrics = rig.run(["status", "m", "--metrics"]).exits(0).out;
    let log_alone = |line: &str| line.starts_with("holdfast_flashlog_log_alone_bytes{") && !line.ends_with(" 0");
    assert!(metrics.lines().any(log_alone), "{metrics}");
    let report = rig.run(["flashlog", "catch-up", "m", "--json"]).exits(0).json();
    assert!(report["caught_up_bytes"].as_u64().unwrap() > 2 << 20, "{report}");
    rig.run(["unmount", "m"]).exits(0);
}
