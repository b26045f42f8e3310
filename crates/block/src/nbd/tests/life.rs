//! Connections that come, wait, and end.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::client::{Client, DISCONNECT, FLUSH, Got, READ, WRITE, request, wish};
use super::{LIMITS, memory};
use crate::nbd::{Export, Limits, Listener, Server, Stop};
use crate::{Device, Error, Filter, MemoryDevice};

/// Flushes wait at a gate.
struct Gated {
    below: MemoryDevice,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    waiting: usize,
    open: bool,
}

impl Gated {
    fn new() -> Arc<Self> {
        Arc::new(Gated { below: MemoryDevice::new(16), gate: Mutex::default(), changed: Condvar::new() })
    }

    fn wait_for(&self, count: usize) {
        let mut gate = self.gate.lock();
        while gate.waiting < count {
            self.changed.wait(&mut gate);
        }
    }

    fn open(&self) {
        self.gate.lock().open = true;
        self.changed.notify_all();
    }
}

impl Filter for Gated {
    fn below(&self) -> &dyn Device {
        &self.below
    }

    fn on_flush(&self) -> Result<(), Error> {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.changed.notify_all();
        while !gate.open {
            self.changed.wait(&mut gate);
        }
        Ok(())
    }
}

/// A server that listens on a socket in a directory that goes with the test.
struct Running {
    directory: tempfile::TempDir,
    listener: [Listener; 1],
    stop: Stop,
}

impl Running {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = [Listener::unix(&directory.path().join("s"), 0o600).unwrap()];
        Running { directory, listener, stop: Stop::new().unwrap() }
    }

    fn client(&self) -> Client {
        let mut client = Client(UnixStream::connect(self.directory.path().join("s")).unwrap());
        client.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.take(18);
        client.put(&3_u32.to_be_bytes());
        client.ask_all(7, &wish("", &[])).unwrap();
        client
    }
}

#[test]
fn a_slow_request_holds_up_nobody_not_even_its_own_connection() {
    let device = Gated::new();
    let server = Server::new(vec![Export::new("disk", device.clone())]).limited(LIMITS);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, false, &[]);
        client.put(&request(FLUSH, 0, 1, 0, 0));
        client.put(&request(FLUSH, 0, 2, 0, 0));
        device.wait_for(2);
        assert_eq!(client.does(WRITE, 0, 5, 3, b"abc"), 0);
        let mut other = Client::ready(scope, &server, false, &[]);
        assert_eq!(other.read(5, 3, 0), b"abc");
        device.open();
        // In either order.
        let cookies = [(); 2].map(|()| match client.got() {
            Got::Simple { error: 0, cookie } => cookie,
            other => panic!("{other:?}"),
        });
        assert!(cookies == [1, 2] || cookies == [2, 1]);
    });
}

#[test]
fn stopping_answers_what_is_under_way_and_closes() {
    let (device, running) = (Gated::new(), Running::new());
    let server = Server::new(vec![Export::new("disk", device.clone())]).limited(LIMITS);
    scope(|scope| {
        let server = scope.spawn(|| server.run(&running.listener, &running.stop));
        let mut client = running.client();
        let mut idle = running.client();
        // One that has not said anything yet.
        let mut mute = Client(UnixStream::connect(running.directory.path().join("s")).unwrap());
        mute.take(18);
        client.put(&request(FLUSH, 0, 1, 0, 0));
        device.wait_for(1);
        running.stop.stop();
        assert!(idle.is_over() && mute.is_over());
        device.open();
        assert_eq!(client.outcome(1).0, 0);
        assert!(client.is_over());
        server.join().unwrap().unwrap();
    });
    // Once for the client, once in the end.
    assert_eq!(device.gate.lock().waiting, 2);
    assert!(running.directory.path().join("s").exists());
    let directory = running.directory.path().to_owned();
    drop(running.listener);
    assert!(!directory.join("s").exists());
}

#[test]
fn one_too_many_is_turned_away_until_another_leaves() {
    let (_, server) = memory(16);
    let running = Running::new();
    scope(|scope| {
        let server = scope.spawn(|| server.run(&running.listener, &running.stop));
        let mut clients: Vec<Client> = (0..LIMITS.connections).map(|_| running.client()).collect();
        let mut late = Client(UnixStream::connect(running.directory.path().join("s")).unwrap());
        assert!(late.is_over());
        let mut first = clients.remove(0);
        first.put(&request(DISCONNECT, 0, 0, 0, 0));
        assert!(first.is_over());
        // Its place is free a moment after its socket is.
        let mut again = loop {
            let mut client = Client(UnixStream::connect(running.directory.path().join("s")).unwrap());
            if !client.is_over() {
                break client;
            }
        };
        // The first byte of the greeting has been looked at.
        assert_eq!(again.take(17), b"BDMAGICIHAVEOPT\0\x03");
        running.stop.stop();
        drop((again, clients));
        server.join().unwrap().unwrap();
    });
}

#[test]
fn who_does_not_get_on_is_left_and_who_is_silent_between_requests_is_not() {
    let (_, server) = memory(16);
    let patience = Duration::from_millis(100);
    let server = server.limited(Limits { patience, ..LIMITS });
    // Nobody else has to be quick.
    let hurried = memory(16).1.limited(Limits { negotiation: patience, ..LIMITS });
    scope(|scope| {
        let mut mute = Client::connect(scope, &hurried);
        mute.take(18);
        assert!(mute.is_over());
        let mut dripping = Client::connect(scope, &hurried);
        dripping.take(18);
        dripping.put(&[0, 0]);
        assert!(dripping.is_over());
        let mut silent = Client::ready(scope, &server, false, &[]);
        let mut stalled = Client::ready(scope, &server, false, &[]);
        stalled.put(&request(WRITE, 0, 1, 0, 8192));
        stalled.put(&[1; 5000]);
        assert!(stalled.is_over());
        // By now its patience is over as well, but it has begun nothing.
        assert_eq!(silent.does(WRITE, 0, 0, 1, b"x"), 0);
        // A client that asks and asks and never listens.
        let mut deaf = Client::ready(scope, &server, false, &[]);
        loop {
            if std::io::Write::write_all(&mut deaf.0, &request(READ, 0, 1, 0, 65_536)).is_err() {
                break;
            }
        }
        assert_eq!(silent.read(0, 1, 0), b"x");
    });
}

/// Panics at each flush.
struct Buggy(MemoryDevice);

impl Filter for Buggy {
    fn below(&self) -> &dyn Device {
        &self.0
    }

    fn on_flush(&self) -> Result<(), Error> {
        panic!("planted")
    }
}

#[test]
fn a_panic_ends_one_connection_and_not_the_server() {
    let running = Running::new();
    let server = Server::new(vec![Export::new("disk", Arc::new(Buggy(MemoryDevice::new(16))))]).limited(LIMITS);
    scope(|scope| {
        let server = scope.spawn(|| server.run(&running.listener, &running.stop));
        let (mut client, mut other) = (running.client(), running.client());
        client.put(&request(FLUSH, 0, 1, 0, 0));
        assert!(client.is_over());
        assert_eq!(other.read(0, 1, 0), [0]);
        drop((client, other));
        running.stop.stop();
        // The last flush panics, too.
        assert!(server.join().is_err());
    });
}
