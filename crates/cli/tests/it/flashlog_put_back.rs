//! A set that is served in asynchronous mode, where what main has not is on the stick alone, and the stick is pulled out and put back: it is a
//! file on a mount of its own, whose daemon is killed.

use crate::flashlog_sets::{Server, bytes};
use crate::nbd::Client;
use crate::rig::{Rig, Stick, eventually, fuse};
use std::io;

const STEP: usize = 64 << 10;
const STEPS: u64 = 300;

/// A set whose log is on the stick.
fn plug_in(rig: &Rig) -> Stick<'_> {
    let stick = Stick::plug_in(rig);
    let create = ["create", "--main", "main", "--log", "usb/log", "--size", "32M", "--log-size", "96M"];
    rig.run([&["flashlog"], &create[..]].concat()).exits(0);
    stick
}

/// What a step writes: something else than the one that was at its place before.
fn contents(step: u64) -> Vec<u8> {
    bytes((step % 251) as u8, STEP)
}

/// Writes step by step over half of the set, with a flush behind every fourth. How many steps were answered, the flushes behind them too.
fn work(client: &mut Client, steps: std::ops::Range<u64>) -> (u64, io::Result<()>) {
    for step in steps.clone() {
        let done = client.try_write(step % 256 * STEP as u64, &contents(step)).and_then(|()| match step % 4 {
            3 => client.try_flush(),
            _ => Ok(()),
        });
        if done.is_err() {
            return (step, done);
        }
    }
    (steps.end, Ok(()))
}

/// That each place has what the last of the first so many steps wrote there, but for one step that may have been answered with an error.
#[track_caller]
fn has_all(client: &mut Client, steps: u64, failed: Option<u64>) {
    for step in steps.saturating_sub(256)..steps {
        if failed.is_none_or(|failed| failed % 256 != step % 256) {
            let found = client.read(step % 256 * STEP as u64, STEP);
            assert!(found == contents(step), "step {step} of {steps}");
        }
    }
}

fn problem(rig: &Rig) -> Option<String> {
    let status = rig.run(["flashlog", "status", "--json"]).json();
    status["sets"][0]["problem"].as_str().map(str::to_owned)
}

/// By default the set takes no changes then, until it has its stick again: the server need not be started anew.
#[test]
fn a_server_whose_stick_is_put_back_goes_on_with_what_it_had_answered() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let stick = plug_in(&rig);
    let server = Server::start(&rig, &["--main", "main", "--log", "usb/log", "--mode", "async"]);
    let mut client = server.client();
    let mut begun = 0;
    for _ in 0..2 {
        let (steps, done) = work(&mut client, begun..begun + STEPS);
        assert!(steps == begun + STEPS && done.is_ok(), "{done:?}");
        // Answered, and nowhere but in memory.
        client.try_write(steps % 256 * STEP as u64, &contents(steps)).unwrap();
        stick.pull();
        let (failed, done) = work(&mut client, steps + 1..u64::MAX);
        assert_eq!(done.unwrap_err().raw_os_error(), Some(5), "after {failed} steps");
        let told = problem(&rig).unwrap();
        assert!(told.starts_with("no changes are taken") && told.contains("usb/log"), "{told}");
        rig.run(["flashlog", "status"]).exits(3);
        // While the stick is away, and with another one.
        rig.run(["flashlog", "attach", "--log", "usb/log"]).exits(1);
        let another = ["flashlog", "attach", "--log", "another", "--new", "--log-size", "16M"];
        rig.run(another).exits(1).says("the one that has gone has what main has not");
        stick.put_back();
        let attached = rig.run(["flashlog", "attach", "--log", "usb/log"]).exits(0);
        assert!(attached.out.contains("back, which got "), "{attached:?}");
        has_all(&mut client, failed, Some(failed));
        begun = failed;
    }
    let (steps, done) = work(&mut client, begun..begun + STEPS);
    assert!(done.is_ok(), "{done:?}");
    client.try_flush().unwrap();
    assert!(!problem(&rig).is_some_and(|problem| problem.contains("no changes")));
    drop(client);
    server.kill();
    let server = Server::start(&rig, &["--main", "main", "--log", "usb/log", "--mode", "async"]);
    has_all(&mut server.client(), steps, None);
    server.stop();
}

/// With `wait` clients do not learn of it.
#[test]
fn clients_wait_for_a_stick_that_is_pulled_out_and_miss_nothing_when_it_is_back() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let stick = plug_in(&rig);
    let arguments = ["--main", "main", "--log", "usb/log", "--mode", "async", "--on-failure", "log.gone=wait:1h"];
    let server = Server::start(&rig, &arguments);
    let mut client = server.client();
    assert!(work(&mut client, 0..STEPS).1.is_ok());
    stick.pull();
    let mut client = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let done = work(&mut client, STEPS..2 * STEPS);
            assert!(done.1.is_ok(), "{done:?}");
            client
        });
        eventually("the stick is waited for", || {
            problem(&rig).is_some_and(|problem| problem.starts_with("the log device has gone, and is waited for"))
        });
        assert!(!worker.is_finished());
        stick.put_back();
        worker.join().unwrap()
    });
    assert_eq!(rig.run(["flashlog", "status", "--json"]).json()["sets"][0]["troubles"][0]["returns"], 1);
    has_all(&mut client, 2 * STEPS, None);
    client.try_flush().unwrap();
    drop(client);
    server.kill();
    let server = Server::start(&rig, &arguments);
    has_all(&mut server.client(), 2 * STEPS, None);
    server.stop();
}
