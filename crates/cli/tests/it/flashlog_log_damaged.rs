//! Data of the log that is damaged while its labels and pages are whole.

use crate::flashlog_sets::{SET, Server, bytes, set};
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

/// A set of whose second MiB, which the backup has and main lacks, the log has lost so many bytes.
fn without_a_mib(lost_bytes: usize) -> Rig {
    let rig = set();
    let server = Server::start(&rig, &[&SET[..], &["--mode", "async"]].concat());
    let mut client = server.client();
    client.write(1 << 20, &bytes(1, 1 << 20));
    client.try_flush().unwrap();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    drop(client);
    server.kill();
    lose(&rig, &bytes(1, 1 << 20), lost_bytes);
    rig
}

#[test]
fn data_that_main_has_not_got_is_taken_from_the_backup_or_told() {
    let rig = without_a_mib(1 << 20);
    let serve = || Server::start(&rig, &[&SET[..], &["--mode", "async"]].concat());
    // Main must have it in this mode.
    let refused = rig.run([&["flashlog", "serve"], &SET[..]].concat()).exits(1);
    assert!(refused.err.contains("the log has lost data that main does not have"), "{refused:?}");
    assert!(
        refused.err.contains("--backup BACKUP takes what the backup has, rebuild --force makes main anew"),
        "{refused:?}"
    );
    // Neither does a comparison with the log help, nor does it end anything.
    let server = serve();
    let mut client = server.client();
    let with_log = rig.run(["flashlog", "scrub", "--log-only"]).exits(3).out;
    assert!(
        with_log.contains("no backup was asked (scrub --backup, or rebuild): 1.00 MiB, first block 256"),
        "{with_log}"
    );
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    let problem = status["sets"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("1.00 MiB of main are damaged, first block 256") && problem.contains("scrub --backup"));
    assert!(client.try_read(1 << 20, 4096).is_err());
    // Only the log tells which these are. Main alone knows it as long as it is served.
    rig.run(["flashlog", "detach"]).exits(1).says("only the log tells which").says("--accept-loss");
    rig.run(["flashlog", "detach", "--accept-loss"]).exits(0);
    assert!(client.try_read(1 << 20, 4096).is_err());
    let alone = rig.run(["flashlog", "status"]).exits(3).out;
    assert!(alone.contains("main is without a log since") && alone.contains("1.00 MiB of main are damaged"), "{alone}");
    rig.run(["flashlog", "attach", "--log", "log"]).exits(3);
    assert!(client.try_read(1 << 20, 4096).is_err());
    client.write(8 << 20, &bytes(2, 4096));
    client.try_flush().unwrap();
    assert!(client.read(8 << 20, 4096) == bytes(2, 4096));
    let backup = rig.path("backup");
    let scrubbed = rig.run(["flashlog", "scrub", "--backup", backup.to_str().unwrap(), "--json"]).exits(0).json();
    let made_good = &scrubbed["main_repaired"]["blocks"];
    assert_eq!((made_good, &scrubbed["good"]), (&256.into(), &true.into()), "{scrubbed}");
    rig.run(["flashlog", "status"]).exits(0);
    assert!(client.read(1 << 20, 1 << 20) == bytes(1, 1 << 20));

    // What the backup has another version of, nobody has.
    client.write(2 << 20, &bytes(3, 1 << 20));
    client.try_flush().unwrap();
    // The next page says that this is durable: without one, damage to it looks like a power cut's.
    client.write(9 << 20, &bytes(4, 4096));
    client.try_flush().unwrap();
    drop(client);
    server.kill();
    lose(&rig, &bytes(3, 1 << 20), 4096);
    // By the set's own mode, and then without main having it.
    rig.run([&["flashlog", "serve"], &SET[..]].concat()).exits(1);
    let words = rig.run([&["flashlog", "scrub", "--backup", "backup"], &SET[..]].concat()).exits(3).out;
    assert!(words.contains("neither log nor this backup has it as it was: 4.00 KiB, first block 512"), "{words}");
    // The set was never opened in the mode that it was refused in.
    let refused = rig.run(["flashlog", "serve", "--main", "main", "--without-log"]).exits(1);
    assert!(refused.err.contains("--accept-loss"), "{refused:?}");
    let alone = Server::start(&rig, &["--main", "main", "--without-log", "--accept-loss"]);
    alone.stop();
    rig.run([&["flashlog", "attach"], &SET[..]].concat());
    let server = serve();
    let mut client = server.client();
    assert!(client.try_read(2 << 20, 4096).is_err());
    let refused = rig.run(["flashlog", "backup", "--to", "backup"]).exits(1);
    assert!(refused.err.contains("when they are written anew, the backup goes on"), "{refused:?}");
    client.write(2 << 20, &bytes(3, 4096));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    rig.run(["flashlog", "scrub"]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    assert!(client.read(2 << 20, 1 << 20) == bytes(3, 1 << 20));
    drop(client);
    server.stop();
}

#[test]
fn what_is_given_up_for_one_backup_is_not_for_the_next() {
    let rig = without_a_mib(4096);
    // Main alone that is killed knows of regions only that it has written there.
    let serve_alone = || Server::start(&rig, &["--main", "main", "--without-log", "--accept-loss", "--mode", "async"]);
    let set_with_log = Server::start(&rig, &[&SET[..], &["--mode", "async"]].concat());
    rig.run(["flashlog", "detach", "--accept-loss"]).exits(0);
    set_with_log.stop();
    let alone = serve_alone();
    let mut client = alone.client();
    client.write((1 << 20) + 4096, &bytes(2, 4096));
    drop(client);
    alone.kill();
    let server = serve_alone();
    let attached = rig.run(["flashlog", "attach", "--log", "log"]).exits(3).out;
    assert!(attached.contains("may be older there than on the backup"), "{attached}");
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(1).says("--accept-loss");
    rig.run(["flashlog", "backup", "--to", "backup", "--accept-loss"]).exits(0);
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    let problem = status["sets"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("which these are is forgotten"), "{problem}");
    server.stop();
}

#[test]
fn devices_of_a_set_that_is_not_served_tell_what_is_to_be_seen_to() {
    let rig = set();
    let status = || rig.run(["flashlog", "status", "main", "log"]);
    assert!(status().exits(3).out.contains("no backup goes with the log"));
    let exported = rig.run(["flashlog", "status", "--export", "log"]).exits(0).out;
    assert!(exported.contains("CONDITION=open"), "{exported}");
    rig.run([&["flashlog", "backup", "--to", "backup"], &SET[..]].concat()).exits(0);
    status().exits(0);
    // More than the log keeps.
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    for at in 0..24 {
        client.write(at << 20, &bytes(at as u8, 1 << 20));
    }
    client.try_flush().unwrap();
    // While it is served, who serves it tells.
    assert!(rig.run(["flashlog", "status", "log"]).exits(3).out.contains("NOT PROTECTED"));
    drop(client);
    server.stop();
    assert!(status().exits(3).out.contains("the log does not keep all that the backup lacks"));
    rig.run([&["flashlog", "backup", "--to", "backup"], &SET[..]].concat()).exits(0);
    status().exits(0);
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    for at in 0..40 {
        client.write(at << 16, &bytes(100, 4096));
        client.try_flush().unwrap();
    }
    drop(client);
    server.stop();
    status().exits(0);
    // A page of these; pages begin with what they are, and are in the second MiB.
    let log = fs::read(rig.path("log")).unwrap();
    let is_page = |at: &usize| log[*at..*at + 4096].iter().any(|byte| *byte != 0);
    let last = (1 << 20..2 << 20).step_by(4096).rfind(is_page).unwrap();
    let file = fs::OpenOptions::new().write(true).open(rig.path("log")).unwrap();
    file.write_all_at(&[0; 4096], last as u64 - 4 * 4096).unwrap();
    let told = status().exits(3).out;
    assert!(told.contains("the log is damaged, make a backup: "), "{told}");
}

#[test]
fn what_nobody_has_is_told_of_until_it_is_written_anew_and_backups_go_on() {
    let rig = set();
    let serve = || Server::start(&rig, &[&SET[..], &["--mode", "async"]].concat());
    let server = serve();
    let mut client = server.client();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    client.write(2 << 20, &bytes(3, 1 << 20));
    client.try_flush().unwrap();
    // The next page says that this is durable.
    client.write(9 << 20, &bytes(4, 4096));
    client.try_flush().unwrap();
    drop(client);
    server.kill();
    lose(&rig, &bytes(3, 1 << 20), 3 * 4096);
    let server = serve();
    let mut client = server.client();
    rig.run(["flashlog", "catch-up"]).exits(0);
    let told = |bytes: &str, first: u64| {
        let status = rig.run(["flashlog", "status"]).exits(3).out;
        let damaged = format!("NOT PROTECTED: {bytes} of main are damaged, first block {first} of the set");
        assert!(status.contains(&damaged), "{status}");
        assert!(status.contains("scrub --backup BACKUP takes what a backup has"), "{status}");
        assert!(status.contains("what nobody has must be written anew (until they are written anew, or"), "{status}");
    };
    told("12.0 KiB", 512);
    client.write(2 << 20, &bytes(5, 4096));
    client.try_flush().unwrap();
    rig.run(["flashlog", "catch-up"]).exits(0);
    told("8.00 KiB", 513);
    drop(client);
    server.stop();
    // Main tells it by itself, and a server from its beginning.
    let status = rig.run(["flashlog", "status", "main", "log"]).exits(3).out;
    assert!(status.contains("8.00 KiB of main are damaged, first block 513 of the set"), "{status}");
    let server = serve();
    let begun = server.begun["problem"].as_str().unwrap();
    assert!(begun.starts_with("8.00 KiB of main are damaged, first block 513 of the set"), "{begun}");
    let mut client = server.client();
    assert!(client.try_read(513 * 4096, 4096).is_err());
    client.write(513 * 4096, &bytes(6, 2 * 4096));
    client.try_flush().unwrap();
    rig.run(["flashlog", "status"]).exits(0);
    drop(client);
    server.stop();
    rig.run(["flashlog", "status", "main", "log"]).exits(0);
    // More than the log keeps.
    let server = serve();
    let mut client = server.client();
    for at in 4..28 {
        client.write(at << 20, &bytes(at as u8, 1 << 20));
    }
    client.try_flush().unwrap();
    drop(client);
    server.stop();
    let server = serve();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    let mut client = server.client();
    assert!(client.read(2 << 20, 4096) == bytes(5, 4096) && client.read(513 * 4096, 2 * 4096) == bytes(6, 2 * 4096));
    drop(client);
    server.stop();
}
