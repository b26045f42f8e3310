//! Data of the log that is damaged while its labels and pages are whole.

use crate::flashlog_sets::{SET, Server, bytes};
use crate::rig::Rig;
use std::fs;
use std::os::unix::fs::FileExt;

/// Zeros so many bytes where the log has `data`, which it has once.
fn lose(rig: &Rig, data: &[u8], length: usize) {
    let log = fs::read(rig.path("log")).unwrap();
    let at = log.windows(data.len()).step_by(4096).position(|found| found == data).unwrap() * 4096;
    let file = fs::OpenOptions::new().write(true).open(rig.path("log")).unwrap();
    file.write_all_at(&vec![0; length], at as u64).unwrap();
}

#[test]
fn a_version_that_was_written_again_and_is_damaged_ends_no_backup() {
    let rig = Rig::new();
    rig.run(["flashlog", "create", "--main", "main", "--log", "log", "--size", "32M", "--log-size", "32M"]).exits(0);
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    let mut write = |first: u64, blocks: u64, seed: u8| {
        for at in (first..first + blocks).step_by(64) {
            client.write(4096 * at, &bytes(seed ^ (at / 64) as u8, 64 * 4096));
        }
        client.try_flush().unwrap();
    };
    // More than the staging area has room for.
    write(512, 64, 201);
    write(1024, 4096, 1);
    write(512, 64, 101);
    lose(&rig, &bytes(201 ^ 8, 4096), 4096);
    let done = rig.run(["flashlog", "backup"]).exits(0).out;
    let told =
        "The log has lost earlier versions, first block 512 of the set: the backup went on to later ones, and had";
    assert!(done.contains(told), "{done}");
    let again = rig.run(["flashlog", "backup", "--verify", "--json"]).exits(0).json();
    assert_eq!((&again["copied_bytes"], &again["had_no_state"]), (&0.into(), &false.into()));
    assert!(again["over_damage_first_block"].is_null(), "{again}");
    rig.run(["flashlog", "status"]).exits(0);
    server.stop();
    fs::remove_file(rig.path("main")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "main"]).exits(0);
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    assert!(client.read(4096 * 512, 4096) == bytes(101 ^ 8, 4096));
    assert!(client.read(4096 * 1024, 4096) == bytes(1 ^ 16, 4096));
    drop(client);
    server.stop();
}
