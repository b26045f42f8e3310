//! The client's side of the protocol, written by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::Scope;

use super::super::protocol::Put;
use crate::nbd::Server;

pub(super) struct Client(pub(super) UnixStream);

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) option: u32,
    pub(super) kind: u32,
    pub(super) payload: Vec<u8>,
}

/// A simple reply, or a chunk of a structured one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Simple { error: u32, cookie: u64 },
    Chunk { done: bool, kind: u16, cookie: u64, payload: Vec<u8> },
}

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const DISCONNECT: u16 = 2;
pub(super) const FLUSH: u16 = 3;
pub(super) const TRIM: u16 = 4;
pub(super) const CACHE: u16 = 5;
pub(super) const ZEROES: u16 = 6;
pub(super) const STATUS: u16 = 7;

/// A request as bytes; those of a write have to follow.
pub(super) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.u32(0x2560_9513).u16(flags).u16(command).u64(cookie).u64(offset).u32(length);
    bytes
}

/// An option as bytes.
pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.raw(b"IHAVEOPT").u32(number).u32(data.len() as u32).raw(data);
    bytes
}

/// The data of INFO and GO.
pub(super) fn wish(name: &str, information: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    data.u32(name.len() as u32).raw(name.as_bytes()).u16(information.len() as u16);
    information.iter().for_each(|kind| _ = data.u16(*kind));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(super) fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    data.u32(name.len() as u32).raw(name.as_bytes()).u32(queries.len() as u32);
    queries.iter().for_each(|query| _ = data.u32(query.len() as u32).raw(query.as_bytes()));
    data
}

impl Client {
    /// A client of a server that serves it in a thread of its own, and must not panic.
    pub(super) fn connect<'scope>(scope: &'scope Scope<'scope, '_>, server: &'scope Server) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        scope.spawn(move || server.serve(theirs.into(), "the client"));
        Client(ours)
    }

    /// After the greeting, with these client flags.
    pub(super) fn greeted<'scope>(scope: &'scope Scope<'scope, '_>, server: &'scope Server, flags: u32) -> Self {
        let mut client = Self::connect(scope, server);
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.put(&flags.to_be_bytes());
        client
    }

    /// In transmission, with simple replies or structured ones, and with contexts.
    pub(super) fn ready<'scope>(
        scope: &'scope Scope<'scope, '_>,
        server: &'scope Server,
        structured: bool,
        contexts: &[&str],
    ) -> Self {
        let mut client = Self::greeted(scope, server, 3);
        if structured {
            assert_eq!(client.ask(8, &[]).unwrap().kind, 1);
            client.ask_all(10, &queries("disk", contexts)).unwrap();
        }
        assert_eq!(client.ask_all(7, &wish("disk", &[])).unwrap().last().unwrap().kind, 1);
        client
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap()
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.number())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.number())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.number())
    }

    /// Whether the server has closed the connection.
    pub(super) fn is_over(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    pub(super) fn answer(&mut self) -> Answer {
        assert_eq!(self.u64(), 0x3_e889_0455_65a9);
        let (option, kind, length) = (self.u32(), self.u32(), self.u32());
        Answer { option, kind, payload: self.take(length as usize) }
    }

    /// Sends an option, and takes the one answer to it.
    pub(super) fn ask(&mut self, number: u32, data: &[u8]) -> Option<Answer> {
        self.ask_all(number, data)?.pop()
    }

    /// Sends an option, and takes all answers up to the last.
    pub(super) fn ask_all(&mut self, number: u32, data: &[u8]) -> Option<Vec<Answer>> {
        self.0.write_all(&option(number, data)).ok()?;
        let mut answers = Vec::new();
        loop {
            let answer = self.answer();
            assert_eq!(answer.option, number);
            let is_last = answer.kind == 1 || answer.kind >> 31 == 1;
            answers.push(answer);
            if is_last {
                return Some(answers);
            }
        }
    }

    /// The head of the next reply; after a simple one to a read, the bytes are still to be taken.
    pub(super) fn got(&mut self) -> Got {
        match self.u32() {
            0x6744_6698 => Got::Simple { error: self.u32(), cookie: self.u64() },
            0x668e_33ef => {
                let (flags, kind, cookie, length) = (self.u16(), self.u16(), self.u64(), self.u32());
                Got::Chunk { done: flags & 1 != 0, kind, cookie, payload: self.take(length as usize) }
            }
            other => panic!("magic number {other:#x}"),
        }
    }

    /// The error number of a reply that has no data, with the message of a structured one.
    pub(super) fn outcome(&mut self, wanted_cookie: u64) -> (u32, String) {
        match self.got() {
            Got::Simple { error, cookie } => {
                assert_eq!(cookie, wanted_cookie);
                (error, String::new())
            }
            Got::Chunk { done, kind, cookie, payload } => {
                assert_eq!((done, kind, cookie), (true, 0x8001, wanted_cookie));
                let length = u16::from_be_bytes([payload[4], payload[5]]) as usize;
                assert_eq!(payload.len(), 6 + length);
                let message = String::from_utf8(payload[6..].to_vec()).unwrap();
                (u32::from_be_bytes(payload[..4].try_into().unwrap()), message)
            }
        }
    }

    /// Does a request without data in its reply; its error number.
    pub(super) fn does(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        self.put(&request(command, flags, 77, offset, length));
        self.put(data);
        self.outcome(77).0
    }

    /// Reads, by whichever kind of reply comes.
    pub(super) fn read(&mut self, offset: u64, length: u32, flags: u16) -> Vec<u8> {
        self.put(&request(READ, flags, 78, offset, length));
        let mut bytes = vec![0xee; length as usize];
        let mut there = 0;
        loop {
            let (kind, payload, is_last) = match self.got() {
                Got::Simple { error, cookie } => {
                    assert_eq!((error, cookie), (0, 78));
                    return self.take(length as usize);
                }
                Got::Chunk { done, kind, cookie, payload } => {
                    assert_eq!(cookie, 78);
                    (kind, payload, done)
                }
            };
            let at = (u64::from_be_bytes(payload[..8].try_into().unwrap()) - offset) as usize;
            let data = match kind {
                1 => payload[8..].to_vec(),
                2 => vec![0; u32::from_be_bytes(payload[8..].try_into().unwrap()) as usize],
                other => panic!("chunk of kind {other}: {payload:?}"),
            };
            assert!(!data.is_empty());
            bytes[at..at + data.len()].copy_from_slice(&data);
            there += data.len();
            if is_last {
                assert_eq!(there, length as usize);
                return bytes;
            }
        }
    }
}
