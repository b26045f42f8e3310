//! Negotiation, byte by byte.

use std::thread::scope;

use super::super::protocol::Put;
use super::client::{Client, queries, wish};
use super::memory;

const ALL: u16 = 0b1101_0110_1101;

#[test]
fn an_export_by_name_is_given_with_and_without_zeroes() {
    let (_, server) = memory(100);
    for (flags, zeroes) in [(1_u32, 124), (3, 0)] {
        for name in ["disk", ""] {
            scope(|scope| {
                let mut client = Client::greeted(scope, &server, flags);
                client.put(&super::client::option(1, name.as_bytes()));
                let mut wanted = Vec::new();
                wanted.u64(409_600).u16(ALL).raw(&vec![0; zeroes]);
                assert_eq!(client.take(wanted.len()), wanted);
                assert_eq!(client.does(super::client::WRITE, 0, 3, 2, b"ab"), 0);
                assert_eq!(client.read(2, 4, 0), b"\0ab\0");
            });
        }
    }
    scope(|scope| {
        let mut client = Client::greeted(scope, &server, 3);
        client.put(&super::client::option(1, b"no such"));
        assert!(client.is_over());
    });
}

#[test]
fn go_and_info_tell_what_is_asked_for() {
    let (_, server) = memory(100);
    scope(|scope| {
        let mut client = Client::greeted(scope, &server, 3);
        assert_eq!(client.ask(8, &[]).unwrap().kind, 1);
        let payloads = |client: &mut Client, option, wish: &[u8]| -> Vec<Vec<u8>> {
            client.ask_all(option, wish).unwrap().into_iter().map(|answer| answer.payload).collect()
        };
        let mut export = Vec::new();
        export.u16(0).u64(409_600).u16(ALL | 1 << 7);
        let mut sizes = Vec::new();
        sizes.u16(3).u32(1).u32(4096).u32(32 << 20);
        let all = [export.clone(), b"\0\x01disk".to_vec(), b"\0\x02a disk".to_vec(), sizes, Vec::new()];
        assert_eq!(payloads(&mut client, 6, &wish("disk", &[3, 2, 1, 99])), all);
        assert_eq!(client.ask(6, &wish("other", &[])).unwrap().kind, 0x8000_0006);
        assert_eq!(payloads(&mut client, 7, &wish("", &[])), [export, Vec::new()]);
        assert_eq!(client.read(0, 3, 0), [0; 3]);
    });
}

#[test]
fn options_that_are_wrong_are_refused_and_the_talk_goes_on() {
    let (_, server) = memory(100);
    scope(|scope| {
        let mut client = Client::greeted(scope, &server, 3);
        for (option, data, kind) in [
            (4, &b""[..], 0x8000_0001),
            (11, b"", 0x8000_0001),
            (u32::MAX, &[1; 1000], 0x8000_0001),
            (3, b"x", 0x8000_0003),
            (8, b"x", 0x8000_0003),
            (5, b"x", 0x8000_0003),
            (5, b"", if cfg!(feature = "tls") { 0x8000_0002 } else { 0x8000_0004 }),
            (7, b"", 0x8000_0003),
            (7, &[0xff; 20], 0x8000_0003),
            // Structured replies first.
            (10, &queries("disk", &["base:allocation"]), 0x8000_0003),
            (9, &vec![0; 100 << 10], 0x8000_0009),
        ] {
            let answer = client.ask(option, data).unwrap();
            assert_eq!(answer.kind, kind, "option {option}");
            assert!(!answer.payload.is_empty() && std::str::from_utf8(&answer.payload).is_ok());
        }
        let list = client.ask_all(3, &[]).unwrap();
        assert_eq!((list[0].kind, &list[0].payload[..]), (2, &b"\0\0\0\x04diska disk"[..]));
        assert_eq!(client.ask(2, b"ignored").unwrap().kind, 1);
        assert!(client.is_over());
    });
}

#[test]
fn contexts_are_listed_chosen_and_forgotten() {
    let (_, server) = memory(100);
    scope(|scope| {
        let mut client = Client::greeted(scope, &server, 3);
        client.ask(8, &[]);
        let mut context = Vec::new();
        context.u32(0).raw(b"base:allocation");
        for asked in [&[][..], &["base:"], &["x:", "base:allocation"]] {
            let answers = client.ask_all(9, &queries("disk", asked)).unwrap();
            assert_eq!((answers.len(), answers[0].kind, &answers[0].payload), (2, 4, &context));
        }
        for asked in [&["x-holdfast:"][..], &["base:other"]] {
            assert_eq!(client.ask_all(9, &queries("disk", asked)).unwrap().len(), 1);
        }
        assert_eq!(client.ask(9, &queries("disk", &["base"])).unwrap().kind, 0x8000_0003);
        assert_eq!(client.ask(10, &queries("other", &["base:allocation"])).unwrap().kind, 0x8000_0006);
        assert_eq!(client.ask_all(10, &queries("disk", &["base:allocation"])).unwrap().len(), 2);
        // A wildcard chooses nothing, and what was chosen before is forgotten.
        assert_eq!(client.ask_all(10, &queries("disk", &["base:"])).unwrap().len(), 1);
        client.ask_all(7, &wish("disk", &[]));
        assert_eq!(client.does(super::client::STATUS, 0, 0, 4096, &[]), 22);
    });
}

#[test]
fn who_does_not_keep_to_the_protocol_is_left() {
    let (_, server) = memory(100);
    let too_many = super::client::option(3, &[]).repeat(1001);
    let mut huge = b"IHAVEOPT".to_vec();
    huge.u32(7).u32(u32::MAX);
    for (flags, bytes) in
        [(4, &b""[..]), (3, b"IHAVEOPTx-------"), (3, b"GET / HTTP/1.1\r\n"), (3, &huge), (3, &too_many)]
    {
        scope(|scope| {
            let mut client = Client::greeted(scope, &server, flags);
            // It may be over before all has been sent; the answers do not matter.
            let _ = std::io::Write::write_all(&mut client.0, bytes);
            let _ = client.0.shutdown(std::net::Shutdown::Write);
            while !client.is_over() {}
        });
    }
}
