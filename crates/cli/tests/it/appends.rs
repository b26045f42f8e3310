//! Appends with checksums: whoever appends by whatever way, nobody's bytes are lost or torn.

use crate::rig::{Rig, fuse};
use crate::summed::{File, opened};
use holdfast_client::Algorithm;
use holdfast_interface::{Command, Reply, Request, Status};
use std::collections::HashMap;
use std::fs;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

fn appending(path: &Path) -> fs::File {
    fs::File::options().append(true).create(true).open(path).unwrap()
}

/// Asks for an append by the ioctl alone, after which the kernel does not know how long the file is.
fn appended_behind_the_kernel(file: &File, algorithm: Algorithm, bytes: &[u8], sum_of: &[u8]) -> Reply {
    let offset = (i64::MAX - (1 << 20)) as u64;
    let request = Request { algorithm, verify: false, append: true, offset, length: bytes.len(), address: 0 };
    asked(file, &request, bytes, sum_of)
}

fn asked(file: &File, request: &Request, bytes: &[u8], sum_of: &[u8]) -> Reply {
    let mut payload = request.encode().to_vec();
    payload.extend(request.algorithm.sum(sum_of).as_bytes());
    payload.extend(bytes);
    payload.resize(payload.len().max(500), 0);
    let number = Command::Write.number(payload.len());
    // SAFETY: the number says that so many bytes are read and written, and there are as many.
    let done = unsafe { libc::ioctl(file.get_ref().as_raw_fd(), number as libc::Ioctl, payload.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    Reply::decode(&payload).unwrap().0
}

#[test]
fn an_append_goes_to_the_end_that_there_is() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted("").join("log");
    let file = opened(&path);
    assert_eq!(file.append(b"one ").unwrap(), (0, 4));
    let mut plain = appending(&path);
    plain.write_all(b"two ").unwrap();
    assert_eq!(file.append(b"three ").unwrap(), (8, 6));
    let reply = appended_behind_the_kernel(&file, file.algorithm(), b"four ", b"four ");
    assert_eq!((reply.status, reply.offset, reply.length, reply.grew), (Status::Done, 14, 5, true));
    // The kernel places them where the file ended before.
    plain.write_all(b"five ").unwrap();
    plain.write_all(b"six").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "one two three four five six");
    let long: Vec<u8> = (0..3 << 20).map(|index| (index % 253) as u8).collect();
    let (mut at, mut done) = (27, 0);
    while done < long.len() {
        let (offset, count) = file.append(&long[done..]).unwrap();
        assert_eq!(offset, at);
        assert!(count == long.len() - done || count >= 8192, "{count}");
        (at, done) = (offset + count as u64, done + count);
    }
    assert!(fs::read(&path).unwrap()[27..] == long);
    assert_eq!(file.append(b"").unwrap(), (27 + (3 << 20), 0));
    let reader = File::new(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.append(b"x").unwrap_err().errno, libc::EBADF);
}

/// musl's pwrite does so on a descriptor that appends, as POSIX wants it.
#[test]
fn a_write_that_shall_not_append_does_not() {
    const RWF_NOAPPEND: i32 = 0x20;
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted("").join("f");
    let mut file = appending(&path);
    file.write_all(b"0123456789").unwrap();
    let parts = [IoSlice::new(b"ab")];
    // SAFETY: `IoSlice` has the layout of `iovec`.
    let done = unsafe { libc::pwritev2(file.as_raw_fd(), parts.as_ptr().cast(), 1, 3, RWF_NOAPPEND) };
    if done == -1 {
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
        return eprintln!("SKIPPED: this kernel has no RWF_NOAPPEND");
    }
    assert_eq!((done, &*fs::read(&path).unwrap()), (2, &b"012ab56789"[..]));
}

/// Records of three writers with checksums and three without, of a few bytes up to several blocks, each whole and once in the end.
#[test]
fn appends_of_all_ways_at_once_are_whole() {
    const RECORDS: usize = 150;
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = &rig.mounted("").join("log");
    let record = |writer: u8, number: usize| {
        let length = [20, 300, 4096, 9000, 30_000][(number + usize::from(writer)) % 5];
        let mut record = format!("<{writer} {number} {length} ").into_bytes();
        record.resize(length - 1, b'a' + writer);
        record.push(b'>');
        record
    };
    std::thread::scope(|scope| {
        for writer in 0..6 {
            scope.spawn(move || {
                let (with, mut without) = (opened(path), appending(path));
                for number in 0..RECORDS {
                    let bytes = record(writer, number);
                    if writer % 2 == 0 {
                        assert_eq!(with.append(&bytes).unwrap().1, bytes.len());
                    } else {
                        without.write_all(&bytes).unwrap();
                    }
                }
            });
        }
    });
    let all = fs::read(path).unwrap();
    let mut next = HashMap::new();
    let mut rest = &all[..];
    while !rest.is_empty() {
        let at = all.len() - rest.len();
        let words = String::from_utf8_lossy(&rest[..rest.len().min(40)]).into_owned();
        let numbers: Vec<usize> =
            words.trim_start_matches('<').split(' ').map_while(|word| word.parse().ok()).collect();
        assert!(words.starts_with('<') && numbers.len() >= 3, "byte {at}: {words:?}");
        let (writer, number) = (numbers[0] as u8, numbers[1]);
        let expected = record(writer, number);
        assert!(rest.starts_with(&expected), "byte {at}: record {number} of {writer} is not whole");
        assert_eq!(std::mem::replace(next.entry(writer).or_insert(0), number + 1), number, "byte {at}, of {writer}");
        rest = &rest[expected.len()..];
    }
    assert_eq!(next, (0..6).map(|writer| (writer, RECORDS)).collect());
}

/// The process's own limit is another thing than the largest file.
#[test]
fn an_append_beyond_a_limit_says_which() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted("").join("f");
    opened(&path).get_ref().set_len(100).unwrap();
    let algorithm = Algorithm::Xor64;
    let request = Request { algorithm, verify: false, append: true, offset: 99, length: 5, address: 0 };
    let reply = asked(&opened(&path), &request, b"bytes", b"bytes");
    assert_eq!((reply.status, reply.errno), (Status::Refused, libc::EFBIG));
    assert!(reply.text.contains("limit of file sizes (RLIMIT_FSIZE)"), "{}", reply.text);
    opened(&path).get_ref().set_len(1 << 44).unwrap();
    let reply = asked(&opened(&path), &Request { offset: 1 << 50, ..request }, b"bytes", b"bytes");
    assert_eq!((reply.status, reply.errno), (Status::Refused, libc::EFBIG));
    assert!(reply.text.contains("largest file"), "{}", reply.text);
}

#[test]
fn bytes_that_go_bad_on_the_way_are_not_appended() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted("").join("log");
    let file = opened(&path);
    file.append(b"first").unwrap();
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::None) {
        let reply = appended_behind_the_kernel(&file, algorithm, b"secend", b"second");
        assert_eq!((reply.status, &*reply.bad), (Status::Mismatch, &[0][..]), "{algorithm}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"first");
}
