//! A set whose log leaves while it is served, by a command or by a failure, and comes back.

use crate::flashlog_sets::{SET, Server, activated, bytes, not_backed_up, set};
use crate::nbd::Client;
use crate::on_flashlog::SmallHost;
use crate::rig::{Rig, root};
use std::fs;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

#[test]
fn a_log_is_detached_and_attached_while_clients_write() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    client.write(0, &bytes(1, 1 << 20));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    let larger = ["flashlog", "backup", "--to", "backup", "--size", "1G", "--force"];
    rig.run(larger).exits(2).says("is a backup of this set already").says("not 1.00 GiB");
    rig.run(["flashlog", "attach", "--log", "log"]).exits(1).says("the set has its log");

    // Main goes on alone, and says so to everybody.
    let detached = rig.run(["flashlog", "detach", "--json"]).exits(0).json();
    assert_eq!((&detached["free"], detached["log"].as_str().unwrap().ends_with("/log")), (&true.into(), true));
    rig.run(["flashlog", "detach", "--main", "main"]).exits(1).says("without its log");
    client.write(1 << 20, &bytes(2, 128 << 10));
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    let alone = &status["sets"][0]["alone"];
    assert_eq!((&status["sets"][0]["protected"], &alone["changed_bytes"]), (&false.into(), &(128 << 10).into()));
    assert!(alone["since_s"].as_u64().unwrap() > 1_700_000_000, "{status}");
    for refused in [&["backup"][..], &["at", "--list"]] {
        rig.run([&["flashlog"], refused].concat()).exits(1).says("without its log");
    }
    if let Some(lacking) = not_backed_up(&server) {
        assert_eq!(lacking, [(0, 31 << 20)], "what is on main alone");
    }
    // Another set's log does not do.
    rig.run(["flashlog", "create", "--main", "main2", "--log", "log2", "--size", "32M"]).exits(0);
    let foreign =
        rig.run(["flashlog", "attach", "--log", "log2"]).exits(1).says("log2: it is the log device of another set");
    assert!(
        foreign.err.contains("which is not served") && foreign.err.contains(status["sets"][0]["set"].as_str().unwrap())
    );
    rig.run(["flashlog", "attach", "--log", "main2"]).exits(1).says("it is the main device of another set");
    fs::write(rig.path("nothing"), bytes(1, 4 << 20)).unwrap();
    rig.run(["flashlog", "attach", "--log", "nothing"]).exits(1).says("no device of a Flashlog");
    rig.run(["flashlog", "attach", "--main", "main", "--log", "log2"]).exits(1).says("belongs to set");
    rig.run(["flashlog", "attach", "--main", "main", "--log", "log2", "--new"]).exits(1).says("holds the log device");
    let back = rig.run(["flashlog", "attach", "--log", "log", "--json"]).exits(0).json();
    assert_eq!((&back["new"], &back["copied_bytes"]), (&false.into(), &(128 << 10).into()));
    rig.run(["flashlog", "status"]).exits(0);
    if let Some(lacking) = not_backed_up(&server) {
        assert_eq!(lacking, [(1 << 20, 128 << 10)]);
    }

    // Alone when it ended, and the log comes back without a server, too.
    rig.run(["flashlog", "detach"]).exits(0);
    client.write(2 << 20, &bytes(3, 64 << 10));
    drop(client);
    server.stop();
    let server = Server::start(&rig, &["--main", "main", "--without-log", "--on-failure", "sync.log=read-only"]);
    assert_eq!(
        (&server.begun["protected"], &server.begun["alone"]["since_s"]),
        (&false.into(), &serde_json::Value::Null)
    );
    let mut client = server.client();
    client.write(3 << 20, &bytes(4, 64 << 10));
    drop(client);
    server.stop();
    let back = rig.run(["flashlog", "attach", "--main", "main", "--log", "log", "--json"]).exits(0).json();
    assert_eq!(back["copied_bytes"], 128 << 10);
    rig.run(["flashlog", "attach", "--main", "main", "--log", "log"]).exits(1).says("has not been used without");

    // Backup and log are everything again.
    fs::remove_file(rig.path("main")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "main"]).exits(0);
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    let written = [(0, 1, 1 << 20), (1 << 20, 2, 128 << 10), (2 << 20, 3, 64 << 10), (3 << 20, 4, 64 << 10)];
    for (at, seed, length) in written {
        assert!(client.read(at, length) == bytes(seed, length), "what is at {at}");
    }
    drop(client);
    server.stop();

    // The log is lost while the set is closed; another takes its place, and the next backup is compared with main.
    fs::remove_file(rig.path("log")).unwrap();
    let server = Server::start(&rig, &["--main", "main", "--without-log"]);
    let attached = rig.run(["flashlog", "attach", "--log", "new log", "--new", "--log-size", "16M"]).exits(3);
    assert!(attached.out.contains("before the next backup, which compares everything"), "{attached:?}");
    assert!(rig.run(["flashlog", "status"]).exits(3).out.contains("NOT PROTECTED: no backup goes with the log"));
    let copy = rig.run(["flashlog", "backup", "--to", "backup", "--json"]).exits(0).json();
    assert!(copy["full"] == false && copy["copied_bytes"].as_u64() < Some(4 << 20), "{copy}");
    rig.run(["flashlog", "status"]).exits(0);
    server.stop();
    for wrong in [&["--main", "main"][..], &["--main", "main", "--log", "log", "--on-failure", "log.flush=retry:3"]] {
        rig.run([&["flashlog", "serve"], wrong].concat()).exits(2);
    }
}

#[test]
fn an_older_log_is_refused_with_the_way_to_a_new_one() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    fs::copy(rig.path("log"), rig.path("older")).unwrap();
    client.write(0, &bytes(1, 1 << 20));
    rig.run(["flashlog", "detach"]).exits(0);
    let attach = ["flashlog", "attach", "--log", "older"];
    rig.run(attach).exits(1).says("it is older than the other device").says("holdfast flashlog attach --new");
    drop(client);
    server.stop();
    let alone = [&attach[..], &["--main", "main"]].concat();
    rig.run(alone).exits(1).says("it is older than the other device").says("holdfast flashlog attach --new");
    // The other way round a new log would be none for what the set has.
    fs::copy(rig.path("main"), rig.path("older main")).unwrap();
    rig.run(["flashlog", "attach", "--main", "main", "--log", "log"]).exits(0);
    let server = Server::start(&rig, &SET);
    server.stop();
    let older_main = rig.run(["flashlog", "attach", "--main", "older main", "--log", "log"]).exits(1);
    assert!(older_main.err.contains("older main: it is older") && !older_main.err.contains("--new"), "{older_main:?}");
}

#[test]
fn a_log_that_comes_back_without_its_data_is_not_taken_for_whole() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    client.write(0, &bytes(1, 1 << 20));
    client.try_flush().unwrap();
    rig.run(["flashlog", "detach"]).exits(0);
    // Behind labels, pages, and the boundary of its areas nothing is as it was.
    let log = fs::OpenOptions::new().write(true).open(rig.path("log")).unwrap();
    let length = log.metadata().unwrap().len();
    let data = fs::read(rig.path("log")).unwrap();
    let first = data.windows(4096).step_by(4096).position(|block| *block == bytes(1, 4096)[..]).unwrap() as u64 * 4096;
    drop(data);
    log.set_len(first).and_then(|()| log.set_len(length)).unwrap();
    let attached = rig.run(["flashlog", "attach", "--log", "log"]).exits(0);
    assert!(attached.out.contains("IT HAD LOST 1.00 MiB of what it keeps"), "{attached:?}");
    rig.run(["flashlog", "status"]).exits(0);
    // Lost again, while it is in use.
    log.set_len(first).and_then(|()| log.set_len(length)).unwrap();
    let scrubbed = rig.run(["flashlog", "scrub", "--json"]).exits(0).json();
    assert_eq!((&scrubbed["log_repaired"]["blocks"], &scrubbed["log_damaged"]["blocks"]), (&256.into(), &0.into()));
    drop(client);
    server.stop();
    fs::remove_file(rig.path("main")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "main"]).exits(0);
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    assert!(client.read(0, 1 << 20) == bytes(1, 1 << 20));
    drop(client);
    server.stop();
}

#[test]
fn a_log_that_has_gone_is_waited_for_and_told_of() {
    if !root("not root, so there is no host that is too small") {
        return;
    }
    let rig = Rig::new();
    let host = SmallHost::new(&rig, "2M");
    fs::File::create(host.0.join("log")).unwrap().set_len(64 << 20).unwrap();
    rig.run(["flashlog", "create", "--main", "main", "--log", "small/log", "--size", "32M"]).exits(0);
    let arguments = ["--main", "main", "--log", "small/log", "--on-failure", "log.gone=wait:1h"];
    let server = Server::start(&rig, &arguments);
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    let mut client = server.client();
    client.write(0, &bytes(1, 1 << 18));
    // It fails, and nothing is in its place.
    fs::rename(host.0.join("log"), host.0.join("away")).unwrap();
    let writer = std::thread::spawn(move || {
        for number in 1..16_u64 {
            client.try_write(number << 18, &bytes(number as u8, 1 << 18))?;
            client.try_flush()?;
        }
        Ok::<_, std::io::Error>(client)
    });
    let waiting = loop {
        let status = rig.run(["flashlog", "status", "--json"]).json();
        if status["sets"][0]["problem"].is_string() {
            break status;
        }
        assert!(!writer.is_finished());
    };
    let set = &waiting["sets"][0];
    assert!(set["problem"].as_str().unwrap().starts_with("the log device has gone, and is waited for"), "{waiting}");
    assert_eq!((&set["protected"], &set["on_failure"]["log.gone"]), (&false.into(), &"wait:1h+alone".into()));
    rig.run(["flashlog", "status"]).exits(3);
    let room = Command::new("mount").args(["-o", "remount,size=80M"]).arg(&host.0).status();
    assert!(room.unwrap().success());
    fs::rename(host.0.join("away"), host.0.join("log")).unwrap();
    let mut client = writer.join().unwrap().unwrap();
    let status = rig.run(["flashlog", "status", "--json"]).exits(0).json();
    assert_eq!(status["sets"][0]["troubles"][0]["returns"], 1);
    for number in 1..16_u64 {
        assert!(client.read(number << 18, 1 << 18) == bytes(number as u8, 1 << 18), "{number}");
    }
    drop(client);
    server.stop();
}

#[test]
fn a_log_that_fails_is_gone_on_without_as_the_policy_says() {
    if !root("not root, so there is no host that is too small") {
        return;
    }
    for (arguments, goes_on) in
        [(&[][..], true), (&["--on-failure", "sync.log=read-only"], false), (&["--mode", "async"], false)]
    {
        let rig = Rig::new();
        let host = SmallHost::new(&rig, "2M");
        fs::File::create(host.0.join("log")).unwrap().set_len(64 << 20).unwrap();
        rig.run(["flashlog", "create", "--main", "main", "--log", "small/log", "--size", "32M"]).exits(0);
        let server = Server::start(&rig, &[&["--main", "main", "--log", "small/log"], arguments].concat());
        rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
        let mut client = server.client();
        fs::copy(host.0.join("log"), rig.path("older")).unwrap();
        let written = (0..16).try_for_each(|number| {
            client.try_write(number << 18, &bytes(number as u8, 1 << 18))?;
            client.try_flush()
        });
        assert_eq!(written.is_ok(), goes_on, "{arguments:?}: {written:?}");
        let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
        let problem = status["sets"][0]["problem"].as_str().unwrap();
        assert!(
            problem.starts_with(if goes_on { "main is without a log" } else { "no changes are taken" }),
            "{status}"
        );
        if goes_on {
            let room = Command::new("mount").args(["-o", "remount,size=80M"]).arg(&host.0).status();
            assert!(room.unwrap().success());
            // A copy has fewer pages than main knows of.
            let older = rig.run(["flashlog", "attach", "--log", "older"]).exits(1).says("it has the pages in front of");
            older.says("holdfast flashlog attach --new");
            rig.run(["flashlog", "attach", "--log", "small/log"]).exits(0);
            rig.run(["flashlog", "status"]).exits(0);
            client.write(0, &bytes(77, 1 << 18));
            assert!(client.read(15 << 18, 1 << 18) == bytes(15, 1 << 18));
            drop(client);
            server.stop();
        }
    }
}

/// In asynchronous mode a log may have what main has not.
#[test]
fn what_only_a_log_may_have_is_given_up_only_if_that_is_said() {
    let rig = set();
    let server = Server::start(&rig, &["--main", "main", "--log", "log", "--mode", "async"]);
    let mut client = server.client();
    client.write(3 << 20, &bytes(5, 64 << 10));
    client.try_flush().unwrap();
    drop(client);
    server.kill();
    let alone = ["flashlog", "serve", "--main", "main", "--without-log"];
    rig.run(alone).exits(1).says("the log may have what main has not");
    // With its log nothing is lost.
    let server = Server::start(&rig, &["--main", "main", "--log", "log", "--mode", "async"]);
    let mut client = server.client();
    assert_eq!(client.read(3 << 20, 64 << 10), bytes(5, 64 << 10));
    drop(client);
    server.kill();
    let server = Server::start(&rig, &["--main", "main", "--without-log", "--accept-loss"]);
    assert_eq!(server.begun["protected"], false);
    server.stop();
}

#[test]
fn a_server_that_is_killed_while_main_is_alone_serves_again_and_has_its_log_back() {
    let rig = set();
    let (path, notify_path) = (rig.path("nbd"), rig.path("notify"));
    let (listener, _notify) = (UnixListener::bind(&path).unwrap(), UnixDatagram::bind(&notify_path).unwrap());
    let server = activated(&rig, &listener, &notify_path);
    let mut client = Client::connect(&path);
    client.write(0, &bytes(1, 64 << 10));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    rig.run(["flashlog", "detach"]).exits(0);
    client.write(1 << 20, &bytes(2, 64 << 10));
    client.try_flush().unwrap();
    server.kill();
    // Nobody knows how the set is doing, and it is not said that there is none.
    let told = rig.run(["flashlog", "status"]).exits(3).out;
    assert!(told.contains("NOT KNOWN: who served a set at ") && told.contains(".control"), "{told}");
    assert!(rig.run(["flashlog", "status", "--json"]).exits(3).json()["ended"][0].is_string());
    // As the service manager starts it again, and the client connects again.
    let waiting = UnixStream::connect(&path).unwrap();
    let server = activated(&rig, &listener, &notify_path);
    let mut client = Client::over(waiting);
    assert!(client.read(1 << 20, 64 << 10) == bytes(2, 64 << 10));
    client.write(2 << 20, &bytes(3, 64 << 10));
    crate::rig::eventually("the log is back", || rig.run(["flashlog", "status", "main"]).code == Some(0));
    drop(client);
    server.stop();
    let no_server = rig.run(["flashlog", "status"]).exits(0).out;
    assert_eq!(no_server, "No set is served.\n");
    fs::remove_file(rig.path("main")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "main"]).exits(0);
    let server = Server::start(&rig, &SET);
    for (at, seed) in [(0, 1), (1 << 20, 2), (2 << 20, 3)] {
        assert!(server.client().read(at, 64 << 10) == bytes(seed, 64 << 10), "what is at {at}");
    }
    server.stop();
    // The log is not there: nobody is served without it who was not before, nor where a log that goes leads to something else.
    fs::rename(rig.path("log"), rig.path("away")).unwrap();
    rig.run([&["flashlog", "serve"], &SET[..]].concat()).exits(1).says("the log is not there");
    Server::start(&rig, &["--main", "main", "--without-log"]).kill();
    let strict = ["flashlog", "serve", "--main", "main", "--log", "log", "--on-failure", "log=read-only"];
    rig.run(strict).exits(1).says("the log is not there");
    let server = Server::start(&rig, &SET);
    assert_eq!(server.begun["protected"], false);
    server.client().write(3 << 20, &bytes(4, 4096));
    server.kill();
    fs::rename(rig.path("away"), rig.path("log")).unwrap();
    let server = Server::start(&rig, &SET);
    crate::rig::eventually("the log is back", || rig.run(["flashlog", "status", "main"]).code == Some(0));
    assert!(server.client().read(3 << 20, 4096) == bytes(4, 4096));
    server.stop();
}
