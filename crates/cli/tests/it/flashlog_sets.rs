//! `holdfast flashlog`: sets made, served, backed up, compared and rebuilt, and the server that tests of sets start.

use crate::nbd::Client;
use crate::rig::{PATIENCE, Rig, await_end, kill, lacks};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server in a process, which ends with this.
pub(crate) struct Server {
    child: Child,
    /// What it said when it began.
    pub(crate) begun: Value,
}

impl Server {
    pub(crate) fn start(rig: &Rig, arguments: &[&str]) -> Server {
        let mut command = rig.command();
        command.args(["flashlog", "serve", "--json"]).args(arguments);
        Server::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !text.ends_with("\n}\n") {
            assert!(out.read_line(&mut text).unwrap() > 0, "the server ended: {text}");
        }
        Server { child, begun: serde_json::from_str(&text).unwrap() }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let uri = self.begun["uris"][0].as_str().unwrap();
        PathBuf::from(uri.split_once("socket=").unwrap().1)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket())
    }

    pub(crate) fn uri(&self) -> &str {
        self.begun["uris"][0].as_str().unwrap()
    }

    /// As a service manager does it.
    pub(crate) fn stop(mut self) {
        kill(self.child.id() as i32, Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        await_end(self.child.id() as i32);
        let _ = self.child.wait();
    }
}

pub(crate) const SET: [&str; 4] = ["--main", "main", "--log", "log"];

/// A rig with a set of `main` and `log`.
pub(crate) fn set() -> Rig {
    let rig = Rig::new();
    rig.run(["flashlog", "create", "--main", "main", "--log", "log", "--size", "32M"]).exits(0);
    rig
}

pub(crate) fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 512) as u8 ^ seed).collect()
}

/// First byte and length of what is not backed up, as a client sees it.
pub(crate) fn not_backed_up(server: &Server) -> Option<Vec<(u64, u64)>> {
    if Command::new("nbdinfo").arg("--version").output().is_err() {
        lacks("program", "there is no nbdinfo");
        return None;
    }
    let map =
        Command::new("nbdinfo").args(["--map=x-holdfast:not-backed-up", "--json", server.uri()]).output().unwrap();
    let map: Value = serde_json::from_slice(&map.stdout).unwrap_or_else(|error| panic!("{error}: {map:?}"));
    let runs = map.as_array().unwrap().iter().filter(|run| run["type"] == 1);
    Some(runs.map(|run| (run["offset"].as_u64().unwrap(), run["length"].as_u64().unwrap())).collect())
}

#[test]
fn a_device_that_is_not_there_hides_no_other() {
    let rig = set();
    let looked = rig.run(["flashlog", "status", "missing", "main", "log"]).exits(1).says("missing");
    assert!(looked.out.contains("main device") && looked.out.contains("log device"), "{looked:?}");
}

#[test]
fn devices_of_one_file_system_are_told_to_people_and_to_scripts() {
    const TOLD: &str = "main, log and backup are ";
    let rig = Rig::new();
    let devices = |set: [&'static str; 3]| ["--main", set[0], "--log", set[1], "--backup", set[2]];
    let size = ["--size", "64M"];
    let words = rig.run([&["flashlog", "create"], &devices(["a", "b", "c"])[..], &size].concat()).exits(0).out;
    assert!(words.contains(&format!("\nWarning: {TOLD}")), "{words}");
    let set = devices(["d", "e", "f"]);
    let made = rig.run([&["flashlog", "create", "--json"], &set[..], &size].concat()).exits(0).json();
    let server = Server::start(&rig, &set);
    let store = devices(["g", "h", "i"]);
    let store = rig.run([&["create", "--json"], &store[..], &size].concat()).exits(0).json();
    for told in [&made, &server.begun, &store["flashlog"]] {
        assert!(told["devices_warning"].as_str().is_some_and(|warning| warning.starts_with(TOLD)), "{told}");
    }
    server.stop();
}

#[test]
fn a_set_is_made_served_backed_up_and_rebuilt_when_main_is_gone() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    assert_eq!(client.size_bytes, 31 << 20);
    client.write(0, &bytes(1, 1 << 20));
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    assert_eq!((&status["sets"][0]["protected"], &status["sets"][0]["mode"]), (&false.into(), &"sync".into()));
    assert!(status["sets"][0]["problem"].as_str().unwrap().starts_with("no backup goes with the log"), "{status}");
    rig.run(["flashlog", "backup"]).exits(2).says("it is not known where backups of this set go");
    let first = rig.run(["flashlog", "backup", "--to", "backup", "--json"]).exits(0).json();
    assert_eq!(
        (&first["new"], &first["full"], &first["copied_bytes"]),
        (&true.into(), &true.into(), &(31 << 20).into())
    );
    client.write(5 << 20, &bytes(2, 64 << 10));
    client.write(5 << 20, &bytes(3, 64 << 10));
    let status = rig.run(["flashlog", "status", "--json"]).exits(0).json();
    assert_eq!(
        (&status["sets"][0]["since_backup_bytes"], &status["sets"][0]["protected"]),
        (&(128 << 10).into(), &true.into())
    );
    // The server knows where the last one went, and each block goes once.
    let second = rig.run(["flashlog", "backup", "--json"]).exits(0).json();
    assert_eq!((&second["full"], &second["copied_bytes"]), (&false.into(), &(64 << 10).into()));
    client.write(9 << 20, &bytes(4, 300));
    drop(client);
    if let Some(lacking) = not_backed_up(&server) {
        assert_eq!(lacking, [(9 << 20, 4096)]);
    }
    server.stop();

    fs::remove_file(rig.path("main")).unwrap();
    rig.run(["flashlog", "serve", "--main", "main", "--log", "log"]).exits(1).says("main");
    let rebuilt = rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "new"]).exits(0);
    assert!(rebuilt.out.contains("holdfast flashlog serve --main new --log log"), "{rebuilt:?}");
    let server = Server::start(&rig, &["--main", "new", "--log", "log"]);
    let mut client = server.client();
    assert_eq!(client.read(0, 1 << 20), bytes(1, 1 << 20));
    assert_eq!(client.read(5 << 20, 64 << 10), bytes(3, 64 << 10));
    assert_eq!(client.read(9 << 20, 300), bytes(4, 300));
    server.stop();
}

#[test]
fn a_main_that_would_be_smaller_is_not_cut_off_for_nothing() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    client.write(0, &bytes(1, 1 << 20));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    drop(client);
    server.stop();
    let before = fs::read(rig.path("main")).unwrap();
    let rebuild = ["flashlog", "rebuild", "--backup", "backup", "--main", "main", "--force"];
    for log in [&["--log", "log"][..], &["--without-log"]] {
        rig.run([&rebuild[..], log, &["--size", "16M"]].concat()).exits(1).says("use a larger device");
        assert!(fs::read(rig.path("main")).unwrap() == before, "{log:?}");
    }
    Server::start(&rig, &SET).stop();
    // One that was made larger than it need be.
    fs::OpenOptions::new().write(true).open(rig.path("main")).unwrap().set_len(40 << 20).unwrap();
    rig.run([&rebuild[..], &["--log", "log", "--size", "32M"]].concat()).exits(0);
    assert_eq!(fs::metadata(rig.path("main")).unwrap().len(), 32 << 20);
    let server = Server::start(&rig, &SET);
    assert_eq!(server.client().read(0, 1 << 20), bytes(1, 1 << 20));
    server.stop();
}

#[test]
fn a_file_that_would_be_too_small_keeps_what_it_has() {
    let rig = set();
    let old = bytes(5, 48 << 20);
    fs::write(rig.path("old"), &old).unwrap();
    let server = Server::start(&rig, &SET);
    rig.run(["flashlog", "backup", "--to", "old", "--force", "--size", "8M"])
        .exits(2)
        .says("too small")
        .says("at least");
    rig.run(["flashlog", "detach"]).exits(0);
    rig.run(["flashlog", "attach", "--log", "old", "--new", "--force", "--log-size", "1M"]).exits(2).says("too small");
    assert!(fs::read(rig.path("old")).unwrap() == old);
    server.stop();
}

#[test]
fn what_holds_something_is_refused_and_named() {
    let rig = set();
    rig.run(["flashlog", "create", "--main", "main", "--log", "other", "--log-size", "16M"])
        .exits(1)
        .says("main holds the main device of Flashlog ");
    rig.run(["flashlog", "create", "--main", "new", "--log", "log", "--size", "16M"])
        .exits(1)
        .says("log holds the log device of Flashlog ");
    assert!(!rig.path("new").exists() && !rig.path("other").exists(), "what was made for nothing goes");
    rig.store("store", "64M");
    for role in ["--main", "--log"] {
        let (other, name) = if role == "--main" { ("--log", "l") } else { ("--main", "m") };
        let size = ["--size", "16M", "--log-size", "16M"];
        let words = ["flashlog", "create", role, "store", other, name];
        rig.run([&words[..], &size].concat()).exits(1).says("holds a Holdfast store; nothing was changed");
    }
    rig.run(["flashlog", "backup", "--main", "main", "--log", "log", "--to", "store"]).exits(1).says("--force");
    rig.run(["flashlog", "rebuild", "--backup", "main", "--log", "log", "--main", "n"]).exits(1).says("no backup");
    rig.run(["flashlog", "create", "--main", "x", "--log", "./x"]).exits(2).says("cannot be two devices");
    rig.run(["flashlog", "serve", "--main", "main", "--log", "./main"]).exits(2).says("cannot be two devices");
    let onto_its_log = ["flashlog", "rebuild", "--backup", "b", "--log", "log", "--main", "log", "--force"];
    rig.run(onto_its_log).exits(2).says("cannot be two devices");
    rig.run(["flashlog", "create", "--main", "no/x", "--log", "y"]).exits(1).says("no such directory");
    rig.run(["flashlog", "create", "--main", "/dev/no-such-disk", "--log", "y"]).exits(1).says("is it plugged in?");
    rig.run(["flashlog", "serve", "--main", "log", "--log", "main"]).exits(1).says("it is the log device of a set");
    rig.run(["flashlog", "status", "store"]).exits(1).says("no device of a Flashlog");
    rig.run(["flashlog", "status", "--export", "store"]).exits(1);
    let exported = rig.run(["flashlog", "status", "--export", "log"]).exits(0).out;
    assert!(exported.starts_with("HOLDFAST_FLASHLOG_ROLE=log\n") && exported.contains("_SET="), "{exported}");
    // With --force, main keeps what it has, also if it is said to become smaller.
    for (size, why) in [("16M", "would cut off"), ("1M", "too small")] {
        let smaller = ["flashlog", "create", "--main", "store", "--log", "l", "--force", "--size", size];
        rig.run(smaller).exits(2).says(why).says("nothing was changed");
    }
    fs::File::create(rig.path("empty")).unwrap().set_len(64 << 20).unwrap();
    rig.run([&["flashlog", "backup", "--to", "backup"], &SET[..]].concat()).exits(0);
    let rebuild = ["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "empty", "--size", "10M"];
    rig.run(rebuild).exits(2).says("too small").says("nothing was changed");
    assert!(["store", "empty"].map(|name| fs::metadata(rig.path(name)).unwrap().len()) == [64 << 20; 2]);
    let mut old = fs::read(rig.path("store")).unwrap();
    rig.run(["flashlog", "create", "--main", "store", "--log", "l", "--log-size", "16M", "--force"]).exits(0);
    let mut new = fs::read(rig.path("store")).unwrap();
    for all in [&mut old, &mut new] {
        all.truncate(63 << 20);
    }
    assert!(old == new);
}

#[test]
fn a_server_that_is_killed_leaves_what_was_flushed_and_a_socket_that_the_next_one_takes() {
    let rig = set();
    let arguments = [&SET[..], &["--socket", "nbd", "--mode", "async"]].concat();
    let server = Server::start(&rig, &arguments);
    let mut client = server.client();
    client.write(1 << 20, &bytes(5, 200_000));
    rig.run(["flashlog", "serve", "--main", "main", "--log", "log"]).exits(1).says("in use by another process");
    rig.run(["flashlog", "rebuild", "--backup", "main", "--log", "log", "--main", "n"]).exits(1).says("in use");
    server.kill();
    assert!(client.try_flush().is_err());
    let server = Server::start(&rig, &arguments);
    assert!(server.begun["replayed_bytes"].as_u64().unwrap() >= 200_000);
    assert_eq!(server.client().read(1 << 20, 200_000), bytes(5, 200_000));
    assert_eq!(rig.run(["flashlog", "status", "log", "--json"]).exits(3).json()["sets"][0]["mode"], "async");
    server.stop();
    assert!(!rig.path("nbd").exists());
    let left: Vec<_> = fs::read_dir(rig.path("run")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_set_that_is_not_served_is_backed_up_by_the_command_and_a_backup_elsewhere_is_none() {
    let rig = set();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(1).says("no server of a set was found");
    let words = ["flashlog", "backup", "--main", "main", "--log", "log", "--to", "backup"];
    let verify = [&words[..], &["--verify"]].concat();
    assert!(rig.run(words).exits(0).out.contains("is a complete copy: 31.0 MiB were copied"));
    assert!(rig.run(words).exits(0).out.contains("is up to date: 0 B were new"));
    assert!(rig.run(&verify).exits(0).out.contains("All of it was read back: 31.0 MiB"));
    crate::rig::flip(&rig.path("backup"), 12_345);
    assert!(rig.run(&verify).exits(3).out.contains("DAMAGED: 4.00 KiB, first block 3 of the set"));
    crate::rig::flip(&rig.path("backup"), 12_345);
    let status = rig.run(["flashlog", "status", "backup", "--json"]).exits(0).json();
    assert_eq!((&status["devices"][0]["role"], &status["sets"]), (&"backup".into(), &Value::Array(Vec::new())));
    rig.run(["flashlog", "create", "--main", "m2", "--log", "l2", "--size", "16M"]).exits(0);
    let other = ["flashlog", "backup", "--main", "m2", "--log", "l2", "--to", "backup"];
    rig.run(other).exits(1).says("backup holds the backup device of Flashlog ");
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "l2", "--main", "n"]).exits(1).says("another set's");
    assert!(!rig.path("n").exists());
    // A device that is known to be a copy that has not been made tells so.
    rig.run(["flashlog", "create", "--main", "m3", "--log", "l3", "--backup", "b3", "--size", "16M"]).exits(0);
    rig.run(["flashlog", "rebuild", "--backup", "b3", "--log", "l3", "--main", "n"]).exits(1).says("not complete");
    assert!(rig.run(["flashlog", "status", "b3"]).exits(3).out.contains("the copy is not complete: 0 B of 15.0 MiB"));
}

#[test]
fn servers_are_told_apart_by_device_and_by_socket() {
    let rig = set();
    rig.run(["flashlog", "create", "--main", "m2", "--log", "l2", "--size", "16M"]).exits(0);
    assert_eq!(rig.run(["flashlog", "status"]).exits(0).out, "No set is served.\n");
    let first = Server::start(&rig, &SET);
    let second = Server::start(&rig, &["--main", "m2", "--log", "l2", "--backup", "b2", "--name", "x y"]);
    assert!(second.uri().starts_with("nbd+unix:///x%20y?socket="), "{}", second.uri());
    assert_eq!(rig.run(["flashlog", "status", "--json"]).exits(3).json()["sets"].as_array().unwrap().len(), 2);
    rig.run(["flashlog", "backup", "--to", "b"]).exits(2).says("2 sets are served");
    let control = second.begun["control"].as_str().unwrap();
    let report = rig.run(["flashlog", "backup", "--control", control, "--json"]).exits(0).json();
    assert_eq!(report["set"], second.begun["set"]);
    // The backup says of which set it is.
    assert_eq!(rig.run(["flashlog", "backup", "--to", "b2", "--json"]).exits(0).json()["set"], second.begun["set"]);
    let of_first = ["flashlog", "backup", "--main", "main", "--log", "log", "--to", "b1", "--json"];
    assert_eq!(rig.run(of_first).exits(0).json()["set"], first.begun["set"]);
    rig.run(["flashlog", "status", "--control", "nowhere"]).exits(1).says("no server of a set listens there");
    // Who sends nonsense is told so, and the server goes on.
    let mut stream = UnixStream::connect(control).unwrap();
    std::io::Write::write_all(&mut stream, b"{\"sparkle\":1}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("does not know what it is asked"), "{answer}");
    rig.run(["flashlog", "status", "m2"]).exits(0);
}

/// Starts a server as a service manager does: with a socket as descriptor 3, and one to be told by.
pub(crate) fn activated(rig: &Rig, listener: &UnixListener, notify: &Path) -> Server {
    let mut command = Command::new("sh");
    let script =
        "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" flashlog serve --json --main main --log log";
    command.args(["-c", script, env!("CARGO_BIN_EXE_holdfast")]).current_dir(rig.path(""));
    command.env("HOLDFAST_RUNTIME_DIR", rig.path("run")).env("NOTIFY_SOCKET", notify);
    command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
    Server::spawn(command)
}

#[test]
fn a_restart_behind_the_service_managers_socket_refuses_nobody() {
    let rig = set();
    let (path, notify_path) = (rig.path("nbd"), rig.path("notify"));
    let (listener, notify) = (UnixListener::bind(&path).unwrap(), UnixDatagram::bind(&notify_path).unwrap());
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut text = [0; 200];
        let length = notify.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let server = activated(&rig, &listener, &notify_path);
    assert!(told().starts_with("READY=1\n"));
    assert!(server.begun["uris"].as_array().unwrap().is_empty());
    let mut client = Client::connect(&path);
    client.write(0, b"first");
    server.stop();
    assert!(told().starts_with("STOPPING=1\n"));
    // There is no server, but a socket: who comes now is served by the next one, and may write.
    let waiting = UnixStream::connect(&path).unwrap();
    let server = activated(&rig, &listener, &notify_path);
    let mut client = Client::over(waiting);
    assert_eq!(client.read(0, 5), b"first");
    client.write(0, b"again");
    server.stop();
}

#[test]
fn a_set_for_reading_takes_no_writes() {
    let rig = set();
    let server = Server::start(&rig, &[&SET[..], &["--read-only"]].concat());
    let mut client = server.client();
    let error = client.try_write(0, &[1; 512]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()));
    assert_eq!(client.read(0, 512), [0; 512]);
    server.stop();
    for wrong in [&["--tls-verify-peer"][..], &["--mode", "fast"], &["--connections", "0"]] {
        rig.run([&["flashlog", "serve"], &SET[..], wrong].concat()).exits(2);
    }
    rig.run([&["flashlog", "serve"], &SET[..], &["--tls-certificates", "."]].concat()).exits(1).says("server-cert.pem");
    fs::write(rig.path("precious"), "x").unwrap();
    rig.run([&["flashlog", "serve"], &SET[..], &["--socket", "precious"]].concat()).exits(1).says("precious");
    assert_eq!(fs::read(rig.path("precious")).unwrap(), b"x");
}

#[test]
fn a_set_is_looked_at_as_it_was_and_goes_back() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    client.write(0, b"before");
    rig.run(["flashlog", "at", "--list"]).exits(2).says("it is not known where the backup");
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    client.write(0, b"letter");
    client.write(4096, b"another");
    client.write(0, b"oh, no");
    let moments = rig.run(["flashlog", "at", "--list", "--json"]).exits(0).json()["moments"].clone();
    let numbers: Vec<u64> =
        moments.as_array().unwrap().iter().map(|moment| moment["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), 3, "{moments}");
    let good = numbers[1].to_string();
    {
        // While the set is used, and after what it was has been written over.
        let mut command = rig.command();
        command.args(["flashlog", "at", "--barrier", &good, "--socket", "then", "--json"]);
        let at = Server::spawn(command);
        assert_eq!(at.begun["moment"]["number"], numbers[1]);
        let mut then = Client::connect(&rig.path("then"));
        assert_eq!((then.read(0, 6), then.read(4096, 7)), (b"letter".to_vec(), b"another".to_vec()));
        assert!(then.try_write(0, b"x").is_err());
        client.write(8192, b"more");
        rig.run(["flashlog", "backup"]).exits(1).says("in use by a state that is being read");
        at.kill();
        // The server sees that nobody wants it any more, and then backups can be made again.
        crate::rig::eventually("the state is given up", || !rig.path("then").exists());
    }
    let mut command = rig.command();
    command.args(["flashlog", "at", "--at", &good, "--json"]);
    let at = Server::spawn(command);
    let socket = PathBuf::from(at.begun["uri"].as_str().unwrap().split_once("socket=").unwrap().1);
    assert!(socket.exists());
    drop(client);
    server.stop();
    assert!(!socket.exists(), "a state's socket goes with the server");
    drop(at);

    let offline = ["flashlog", "at", "--backup", "backup", "--log", "log"];
    let listed = rig.run([&offline[..], &["--list"]].concat()).exits(0).out;
    assert!(listed.contains(&format!("  {good}  20")) && listed.lines().count() == 5, "{listed}");
    rig.run(offline).exits(2).says("which state?");
    let at = {
        let mut command = rig.command();
        command.args(offline).args(["--at", "2106-01-01T00:00:00", "--socket", "then", "--json"]);
        Server::spawn(command)
    };
    assert_eq!(Client::connect(&rig.path("then")).read(0, 6), b"oh, no");
    at.stop();
    let rebuild = ["flashlog", "rebuild", "--backup", "backup", "--log", "log", "--main", "new"];
    // A number is a barrier, seconds of 1970 and later have a sign in front, and what is neither is neither.
    for moment in [["--barrier", &good], ["--at", &good], ["--time", "@9"], ["--at", "@9"]] {
        let early = if moment[1] == "@9" { "the first one behind it" } else { "which would be gone" };
        rig.run([&rebuild[..], &moment].concat()).exits(1).says(early);
    }
    for wrong in [&["--at", "now"][..], &["--at", "noon"], &["--at", &good, "--barrier", &good]] {
        for command in [&rebuild[..], &offline] {
            rig.run([command, wrong].concat()).exits(2);
        }
    }
    assert!(!rig.path("new").exists());
    let rebuilt = rig.run([&rebuild[..], &["--at", &good, "--drop-later"]].concat()).exits(0).out;
    assert!(rebuilt.contains(&format!("It is as it was at barrier {good}, ")), "{rebuilt}");
    let server = Server::start(&rig, &["--main", "new", "--log", "log"]);
    let mut client = server.client();
    assert_eq!((client.read(0, 6), client.read(8192, 4)), (b"letter".to_vec(), vec![0; 4]));
    server.stop();
}

#[test]
fn a_backup_that_is_too_small_is_refused_before_anything_has_labels() {
    let rig = Rig::new();
    for (name, mib) in [("main", 32), ("log", 16), ("backup", 32)] {
        fs::File::create(rig.path(name)).unwrap().set_len(mib << 20).unwrap();
    }
    let main = [&["flashlog", "create"][..], &SET].concat();
    rig.run([&main[..], &["--backup", "backup"]].concat()).exits(1).says("too small for a backup device");
    rig.run(["create", "--main", "main", "--log", "log", "--backup", "backup"])
        .exits(1)
        .says("too small for a backup device");
    for device in ["main", "log", "backup"] {
        let holds = fs::read(rig.path(device)).unwrap();
        assert!(holds.iter().all(|byte| *byte == 0), "{device} has something");
    }
    // A file that was to be made for it is not left behind.
    let sized = ["--backup", "new", "--backup-size", "32M"];
    rig.run([&main[..], &sized].concat()).exits(1).says("too small for a backup device");
    assert!(!rig.path("new").exists());
    rig.run([&main[..], &["--backup", "new", "--backup-size", "40M"]].concat()).exits(0);
}

#[test]
fn a_served_set_becomes_larger_and_clients_see_it_when_they_connect_again() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    let before = client.size_bytes;
    client.write(0, &bytes(1, 1 << 20));
    rig.run(["flashlog", "grow", "1M"]).exits(2).says("cannot become smaller");
    let grown = rig.run(["flashlog", "grow", "+8M", "--json"]).exits(0).json();
    let size = before + (8 << 20);
    assert_eq!((&grown["before_bytes"], &grown["size_bytes"]), (&before.into(), &size.into()));
    assert_eq!(grown["protected"], true);
    // Who is there goes on; who comes gets all of it.
    client.write(1 << 20, &bytes(2, 1 << 20));
    let mut later = server.client();
    assert_eq!(later.size_bytes, size);
    later.write(size - 4096, &bytes(3, 4096));
    let check = |server: &Server, size_now: u64| {
        let mut client = server.client();
        assert_eq!(client.size_bytes, size_now);
        assert!(client.read(0, 2 << 20) == [bytes(1, 1 << 20), bytes(2, 1 << 20)].concat());
        assert!(client.read(size - 4096, 4096) == bytes(3, 4096));
    };
    server.kill();
    let server = Server::start(&rig, &SET);
    check(&server, size);
    server.stop();

    // Main is larger, and its labels are where it ended: cut off there, or enlarged by hand.
    let main = fs::File::options().write(true).open(rig.path("main")).unwrap();
    main.set_len(main.metadata().unwrap().len() + (8 << 20)).unwrap();
    drop(main);
    let server = Server::start(&rig, &SET);
    check(&server, size);
    let grown = rig.run(["flashlog", "grow", "--main", "main"]).exits(0);
    assert!(grown.out.contains("connect again"), "{grown:?}");
    check(&server, size + (8 << 20));
    assert!(rig.run(["flashlog", "grow"]).exits(0).out.contains("already"));
    // Without its log as well, which comes back to a larger set.
    rig.run(["flashlog", "detach"]).exits(0);
    let grown = rig.run(["flashlog", "grow", "+4M", "--json"]).exits(3).json();
    assert_eq!(grown["protected"], false);
    assert!(rig.run(["flashlog", "grow"]).exits(3).out.contains("NOT PROTECTED: main is without its log"));
    server.stop();
    rig.run(["flashlog", "attach", "--main", "main", "--log", "log"]).exits(0);
    check(&Server::start(&rig, &SET), size + (12 << 20));
}

#[test]
fn whoever_waits_for_a_backup_is_told_how_far_it_is() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let stream = UnixStream::connect(server.begun["control"].as_str().unwrap()).unwrap();
    let to = serde_json::json!({ "path": rig.path("backup"), "size_bytes": null, "force": false });
    writeln!(&stream, "{}", serde_json::json!({ "backup": [to, true] })).unwrap();
    let answers: Vec<Value> =
        BufReader::new(&stream).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let (last, under) = answers.split_last().unwrap();
    assert!(last["backed-up"].is_object() && !under.is_empty(), "{answers:?}");
    assert!(under.iter().all(|answer| answer["under"]["total_bytes"] == 31 << 20), "{answers:?}");
    assert_eq!(under[0]["under"]["done_bytes"], 0);
    // And what is nothing takes no room.
    let room = fs::metadata(rig.path("backup")).unwrap();
    let needed = 24 << 20;
    assert!(room.blocks() * 512 < needed && room.len() > needed, "{} bytes are allocated", room.blocks() * 512);
    server.stop();
}

#[cfg(feature = "ublk")]
#[test]
fn a_kernel_without_ublk_is_told_before_anything_is_served() {
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("SKIPPED: this kernel has ublk");
        return;
    }
    let rig = set();
    rig.run([&["flashlog", "serve", "--ublk"], &SET[..]].concat()).exits(1).says("this kernel has no ublk");
    Server::start(&rig, &SET).stop();
}

#[test]
fn what_is_on_main_alone_is_told_and_a_backup_that_is_not_there_is_not_made_anew() {
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    fs::rename(rig.path("backup"), rig.path("away")).unwrap();
    rig.run(["flashlog", "backup"]).exits(1).says("backup: open failed: No such file");
    assert!(!rig.path("backup").exists());
    fs::write(rig.path("backup"), bytes(9, 40 << 20)).unwrap();
    rig.run(["flashlog", "backup"]).exits(1).says("no device of a Flashlog");
    fs::rename(rig.path("away"), rig.path("backup")).unwrap();
    // More than the log keeps.
    for at in 0..24 {
        client.write(at << 20, &bytes(at as u8, 1 << 20));
    }
    client.try_flush().unwrap();
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    let set = &status["sets"][0];
    assert!(set["changed_bytes"].as_u64() >= Some(1 << 20), "{status}");
    assert!(set["problem"].as_str().unwrap().contains("on main alone until a backup is done"), "{status}");
    assert_eq!(rig.run(["flashlog", "backup", "--to", "backup"]).exits(0).err, "");
    rig.run(["flashlog", "status"]).exits(0);
    drop(client);
    server.stop();
}

/// What takes the place of the set's backup is told when nothing is refused any more, of whoever makes the backup.
#[test]
fn a_backup_that_takes_the_place_of_another_is_told_before_it_is_copied() {
    const TOLD: &str = "this takes the place of the backup of before, ";
    const KEPT: &str = "main can be made anew with that one and the log until the copy is complete";
    let rig = set();
    let backup = |more: &[&str]| rig.run([&["flashlog", "backup"], more].concat());
    let server = Server::start(&rig, &SET);
    assert_eq!(backup(&["--to", "backup"]).exits(0).err, "", "there is none before");
    // What is refused takes no place.
    fs::write(rig.path("letters"), bytes(9, 40 << 20)).unwrap();
    fs::write(rig.path("stick"), [0; 1 << 20]).unwrap();
    for (refused, why) in [("letters", "holds data"), ("stick", "too small for a backup")] {
        let said = backup(&["--to", refused]);
        assert!(said.code != Some(0) && said.err.contains(why) && !said.err.contains(TOLD), "{}", said.err);
    }
    let status = rig.run(["flashlog", "status", "backup", "--json"]).exits(0).json();
    let before = &status["devices"][0]["uuid"];
    let told = backup(&["--to", "other", "--json"]).exits(0);
    assert!(told.err.contains(TOLD) && told.err.contains(KEPT), "{}", told.err);
    assert_eq!((&told.json()["replaces"], before.is_string()), (before, true), "{status}");
    assert_eq!(backup(&["--json"]).exits(0).json()["replaces"], serde_json::Value::Null);
    for same in [&["--to", "other"][..], &[]] {
        assert_eq!(backup(same).exits(0).err, "");
    }
    // Another disk of the same name, as of two in turn.
    fs::rename(rig.path("other"), rig.path("away")).unwrap();
    fs::rename(rig.path("backup"), rig.path("other")).unwrap();
    backup(&[]).exits(0).says(TOLD);
    server.stop();
    // Without a server.
    let of_set = ["--main", "main", "--log", "log", "--to"];
    assert_eq!(backup(&[&of_set[..], &["other"]].concat()).exits(0).err, "");
    backup(&[&of_set[..], &["away"]].concat()).exits(0).says(TOLD);
}

#[test]
fn main_is_compared_with_its_backup_or_with_the_log() {
    let rig = set();
    let scrub = |more: &[&str]| rig.run([&["flashlog", "scrub", "--json"], more].concat());
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    client.write(0, &bytes(1, 1 << 20));
    scrub(&[]).exits(2);
    let with_log = scrub(&["--log-only"]).exits(0).json();
    assert_eq!((&with_log["compared_bytes"], &with_log["unverified_bytes"]), (&(1 << 20).into(), &(30 << 20).into()));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    client.write(5 << 20, &bytes(2, 64 << 10));
    // One that only the backup has as it was, and one that only the log has.
    for at in [4096 * 10 + 5, (5 << 20) + 9] {
        crate::rig::flip(&rig.path("main"), at);
        crate::rig::flip(&rig.path("main"), at + 100);
    }
    let done = scrub(&[]).exits(0).json();
    assert_eq!((&done["good"], &done["unverified_bytes"]), (&true.into(), &0.into()));
    assert_eq!(done["main_repaired"]["runs"], serde_json::json!([[10, 1], [1280, 1]]));
    assert_eq!(client.read(4096 * 10, 4096), bytes(1, 1 << 20)[40_960..45_056]);
    drop(client);
    server.stop();
    let words = ["--main", "main", "--log", "log"];
    scrub(&words).exits(2);
    let other = [&words[..], &["--backup", "main"]].concat();
    scrub(&other).exits(1);
    crate::rig::flip(&rig.path("main"), 77);
    let of_backup = [&words[..], &["--backup", "backup"]].concat();
    assert_eq!(scrub(&of_backup).exits(0).json()["main_repaired"]["blocks"], 1);
    // On both, and nobody else has it: told, and by the exit code.
    for file in ["main", "backup"] {
        (0..3).for_each(|at| crate::rig::flip(&rig.path(file), 4096 * 300 + at * 100));
    }
    assert_eq!(scrub(&of_backup).exits(3).json()["lost"]["runs"], serde_json::json!([[300, 1]]));
    // That stays known, to whoever asks, until it is found mended.
    let what =
        "main are damaged, first block 300 of the set, and the log has not what they were: scrub --backup BACKUP";
    assert!(rig.run(["flashlog", "status", "main"]).exits(3).out.contains(what));
    let server = Server::start(&rig, &[&SET[..], &["--backup", "backup"]].concat());
    let status = rig.run(["flashlog", "status", "--json"]).exits(3).json();
    let set = &status["sets"][0];
    assert!(set["protected"] == false && set["problem"].as_str().unwrap().contains(what), "{status}");
    assert_eq!((&set["damage"]["main_bytes"], &set["damage"]["main_first_block"]), (&4096.into(), &300.into()));
    let mut client = server.client();
    client.write(4096 * 300, &bytes(7, 4096));
    rig.run(["flashlog", "backup"]).exits(0);
    rig.run(["flashlog", "status"]).exits(3);
    scrub(&[]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    // The same of a backup that was read back.
    (0..3).for_each(|at| crate::rig::flip(&rig.path("backup"), 4096 * 50 + at * 100));
    assert!(rig.run(["flashlog", "backup", "--verify"]).exits(3).out.contains("DAMAGED: 4.00 KiB, first block 50"));
    let told = rig.run(["flashlog", "status"]).exits(3).out;
    assert!(told.contains("NOT PROTECTED: 4.00 KiB of the backup are damaged, first block 50"), "{told}");
    client.write(4096 * 50, &bytes(8, 4096));
    rig.run(["flashlog", "backup", "--verify"]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    drop(client);
    server.stop();
}

/// Main and log are lost: what is left is the backup's state, and nobody is told that it is more.
#[test]
fn without_its_log_a_backup_gives_its_own_state_and_says_what_it_lacks() {
    const LACKING: &str = "LACKING: all that was written since this backup was brought up to date";
    let rig = set();
    let server = Server::start(&rig, &SET);
    let mut client = server.client();
    client.write(0, &bytes(1, 1 << 20));
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    client.write(0, b"later");
    // Of this one the log is not kept any more.
    fs::copy(rig.path("backup"), rig.path("older")).unwrap();
    rig.run(["flashlog", "backup", "--to", "other"]).exits(0);
    drop(client);
    server.stop();
    let rebuild = |more: &[&str]| rig.run([&["flashlog", "rebuild", "--main", "new"], more].concat());
    assert!(rebuild(&["--backup", "older"]).exits(2).err.contains("--log"));
    rebuild(&["--backup", "older", "--log", "log"]).exits(1).says("--without-log makes main as the backup is");
    for file in ["main", "log", "other"] {
        fs::remove_file(rig.path(file)).unwrap();
    }
    {
        let mut command = rig.command();
        command.args(["flashlog", "at", "--backup", "older", "--without-log", "--socket", "then", "--json"]);
        let at = Server::spawn(command);
        assert_eq!((&at.begun["without_log"], &at.begun["moment"]), (&true.into(), &serde_json::Value::Null));
        assert_eq!(Client::connect(&rig.path("then")).read(0, 1 << 20), bytes(1, 1 << 20));
        at.stop();
    }
    let rebuilt = rebuild(&["--backup", "older", "--without-log"]).exits(0).out;
    assert!(rebuilt.contains(LACKING) && rebuilt.contains("serve --main new --without-log"), "{rebuilt}");
    let server = Server::start(&rig, &["--main", "new", "--without-log"]);
    let mut client = server.client();
    assert_eq!(client.read(0, 1 << 20), bytes(1, 1 << 20));
    client.write(5 << 20, b"goes on");
    rig.run(["flashlog", "status"]).exits(3);
    rig.run(["flashlog", "attach", "--log", "stick", "--new", "--log-size", "16M"]).exits(3);
    rig.run(["flashlog", "backup", "--to", "older"]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    drop(client);
    server.stop();
}
