//! The kernel's part is played over a socket that keeps messages apart, as the device does: golden requests in, golden replies
//! out.

use super::*;
use crate::abi::{opcode, *};
use crate::decode::Context;
use crate::handler::{Answer, Attributes, Change, Entry, Handler, Opened};
use crate::reply::{DirBuffer, Slices};
use crate::test_support::{Rng, fuzz_budget, hex, message, seed};
use crate::{Caching, Errno as Number, Unsupported};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Mutex;
use std::time::Duration;

/// Our end, which plays the kernel, and the end to serve on.
fn device() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn next(kernel: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let length = rustix::io::read(kernel, &mut bytes[..]).unwrap();
    bytes.truncate(length);
    bytes
}

const ATTR: Attr = Attr {
    ino: 0x0807,
    size: 0x1234,
    blocks: 16,
    atime: 1,
    mtime: 2,
    ctime: 3,
    atimensec: 4,
    mtimensec: 5,
    ctimensec: 6,
    mode: 0o100644,
    nlink: 2,
    uid: 1000,
    gid: 100,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};
const ATTR_HEX: &str = "0708000000000000 3412000000000000 1000000000000000 0100000000000000 0200000000000000 0300000000000000 \
                        04000000 05000000 06000000 a4810000 02000000 e8030000 64000000 00000000 00100000 00000000";

/// Answers everything with fixed values, and writes down the forgets.
#[derive(Default)]
struct Fixed {
    forgets: Mutex<Vec<(u64, u64)>>,
    read: Pieces,
}

#[derive(Clone, Default)]
struct Pieces(Vec<Vec<u8>>);

impl Slices for Pieces {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

fn found() -> Entry {
    Entry {
        node: 0x0807,
        generation: 9,
        attr: ATTR,
        name_valid: Duration::new(10, 11),
        attr_valid: Duration::new(12, 13),
    }
}

fn known() -> Attributes {
    Attributes { attr: Attr { rdev: 0x0123_4567, ..ATTR }, btime: (-7, 8), valid: Duration::new(12, 13) }
}

#[rustfmt::skip]
impl Handler for Fixed {
    type Data = Pieces;
    fn lookup(&self, _: &Context, _: u64, _: &[u8]) -> Answer<Entry> { Ok(found()) }
    fn forget(&self, node: u64, count: u64) { self.forgets.lock().unwrap().push((node, count)); }
    fn getattr(&self, _: &Context, _: u64) -> Answer<Attributes> { Ok(known()) }
    fn setattr(&self, _: &Context, _: u64, _: &SetattrIn) -> Answer<Attributes> { Ok(known()) }
    fn readlink(&self, _: &Context, _: u64) -> Answer<Vec<u8>> { Ok(b"/x".to_vec()) }
    fn symlink(&self, _: &Context, _: u64, _: &[u8], _: &[u8]) -> Answer<Entry> { Ok(found()) }
    fn mknod(&self, _: &Context, _: u64, _: &[u8], _: &MknodIn) -> Answer<Entry> { Ok(found()) }
    fn mkdir(&self, _: &Context, _: u64, _: &[u8], _: &MkdirIn) -> Answer<Entry> { Ok(found()) }
    fn unlink(&self, _: &Context, _: u64, _: &[u8]) -> Answer<()> { Ok(()) }
    fn rmdir(&self, _: &Context, _: u64, _: &[u8]) -> Answer<()> { Err(Number(39)) }
    fn rename(&self, _: &Context, _: u64, _: &[u8], _: u64, _: &[u8], _: u32) -> Answer<()> { Ok(()) }
    fn link(&self, _: &Context, node: u64, parent: u64, _: &[u8]) -> Answer<Entry> {
        // The header has the new parent, the body the object.
        if (node, parent) == (0x0909, 0x0807) { Ok(found()) } else { Err(Number::STALE) }
    }
    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> { Ok(Opened { fh: 0x0b0a, flags: 0x41 }) }
    fn create(&self, _: &Context, _: u64, _: &[u8], _: &CreateIn) -> Answer<(Entry, Opened)> {
        Ok((found(), Opened { fh: 0x0b0a, flags: 0x41 }))
    }
    fn tmpfile(&self, _: &Context, _: u64, _: &CreateIn) -> Answer<(Entry, Opened)> {
        Ok((found(), Opened { fh: 0x0b0a, flags: 0x41 }))
    }
    fn read(&self, _: &Context, _: u64, _: &ReadIn) -> Answer<Pieces> { Ok(self.read.clone()) }
    fn write(&self, _: &Context, _: u64, _: &WriteIn, bytes: &[u8]) -> Answer<u32> { Ok(bytes.len() as u32) }
    fn flush(&self, _: &Context, _: u64, _: &FlushIn) -> Answer<()> { Ok(()) }
    fn fsync(&self, _: &Context, _: u64, _: u64, data_only: bool) -> Answer<()> {
        if data_only { Ok(()) } else { Err(Number::IO) }
    }
    fn opendir(&self, _: &Context, _: u64) -> Answer<Opened> { Ok(Opened { fh: 0x0b0a, flags: 8 }) }
    fn readdir(&self, _: &Context, _: u64, _: u64, out: &mut DirBuffer) -> Answer<()> {
        let entry = found();
        out.push(0x0807, 0x0c, libc::S_IFREG, b"ab", out.is_plus().then_some(&entry));
        out.push(0x0809, 0x0d, libc::S_IFDIR, b"exactly8", None);
        // What has been added must arrive nevertheless.
        Err(Number::IO)
    }
    fn fsyncdir(&self, _: &Context, _: u64, _: bool) -> Answer<()> { Ok(()) }
    fn statfs(&self, _: &Context, _: u64) -> Answer<StatfsOut> {
        Ok(StatfsOut { blocks: 1, bfree: 2, bavail: 3, files: 4, ffree: 5, bsize: 6, namelen: 7, frsize: 8, ..Default::default() })
    }
    fn setxattr(&self, _: &Context, _: u64, _: &[u8], _: &[u8], _: u32, _: u32) -> Answer<()> { Ok(()) }
    fn getxattr(&self, _: &Context, _: u64, _: &[u8]) -> Answer<Vec<u8>> { Ok(b"value".to_vec()) }
    fn listxattr(&self, _: &Context, _: u64) -> Answer<Vec<u8>> { Ok(b"user.a\0".to_vec()) }
    fn removexattr(&self, _: &Context, _: u64, _: &[u8]) -> Answer<()> { Ok(()) }
    fn access(&self, _: &Context, _: u64, _: u32) -> Answer<()> { Ok(()) }
    fn fallocate(&self, _: &Context, _: u64, _: &FallocateIn) -> Answer<()> { Ok(()) }
    fn lseek(&self, _: &Context, _: u64, _: &LseekIn) -> Answer<u64> { Ok(0x2000) }
    fn copy_file_range(&self, _: &Context, _: u64, _: &CopyFileRangeIn) -> Answer<u32> { Ok(0x1000) }
    fn syncfs(&self, _: &Context) -> Answer<()> { Ok(()) }
    fn ioctl(&self, _: &Context, _: u64, _: &IoctlIn, _: &[u8]) -> Answer<(i32, Vec<u8>)> { Ok((5, vec![1, 2, 3])) }
}

const NEGOTIATED: Negotiated = Negotiated { minor: 41, flags: 0, write_bytes_max: 1 << 20 };

/// Serves requests one by one; gives the reply to each, `None` if there is none.
fn replies<H: Service + 'static>(handler: H, requests: &[Vec<u8>]) -> (Vec<Option<Vec<u8>>>, H) {
    let (kernel, ours) = device();
    let serving = std::thread::spawn(move || {
        let clone = rustix::io::dup(&ours).unwrap();
        let mut worker = Session::resume(ours, NEGOTIATED).worker(clone).unwrap();
        worker.serve(&handler).unwrap();
        handler
    });
    let mut got = Vec::new();
    let probe = message(opcode::READLINK, 0xfffe, 1, &[]);
    for request in requests {
        rustix::io::write(&kernel, request).unwrap();
        // What the next one is answered with comes right away if this one has no answer.
        rustix::io::write(&kernel, &probe).unwrap();
        let first = next(&kernel);
        if first[8..16] == 0xfffe_u64.to_le_bytes() {
            got.push(None);
        } else {
            assert_eq!(next(&kernel)[8..16], 0xfffe_u64.to_le_bytes());
            got.push(Some(first));
        }
    }
    drop(kernel);
    (got, serving.join().unwrap())
}

/// Length by what follows, no error, unique 0x30.
fn success(payload: &str) -> Option<Vec<u8>> {
    let payload = hex(payload);
    let mut bytes = (16 + payload.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&hex("00000000 3000000000000000"));
    bytes.extend_from_slice(&payload);
    Some(bytes)
}

fn failure(errno: i32) -> Option<Vec<u8>> {
    let mut bytes = hex("10000000");
    bytes.extend_from_slice(&(-errno).to_le_bytes());
    bytes.extend_from_slice(&hex("3000000000000000"));
    Some(bytes)
}

#[test]
fn each_request_gets_its_golden_reply() {
    let read = "0a0b000000000000 0000000000000000 00100000 00000000 0000000000000000 00000000 00000000";
    let entry =
        format!("0708000000000000 0900000000000000 0a00000000000000 0c00000000000000 0b000000 0d000000 {ATTR_HEX}");
    // An attribute reply differs from ATTR in the device number, the last but two.
    let attributes =
        format!("0c00000000000000 0d000000 00000000 {ATTR_HEX}").replace("64000000 00000000", "64000000 67452301");
    let statx = "0c00000000000000 0d000000 00000000 00000000000000000000000000000000 \
        ff0f0000 00100000 0000000000000000 02000000 e8030000 64000000 a481 0000 0708000000000000 3412000000000000 \
        1000000000000000 0000000000000000 0100000000000000 04000000 00000000 f9ffffffffffffff 08000000 00000000 \
        0300000000000000 06000000 00000000 0200000000000000 05000000 00000000 45030000 67120000 00000000 00000000";
    let statx = format!("{statx} {}", "00".repeat(112));
    let opened = "0a0b000000000000 41000000 00000000";
    let directory = "0708000000000000 0c00000000000000 02000000 08000000 6162 000000000000 \
                     0908000000000000 0d00000000000000 08000000 04000000 65786163746c7938";
    let plus = format!(
        "{entry} 0708000000000000 0c00000000000000 02000000 08000000 6162 000000000000 \
         {} 0908000000000000 0d00000000000000 08000000 04000000 65786163746c7938",
        "00".repeat(128)
    );
    let ioctl = "0a0b000000000000 00000000 01480880 0000000000000000 00000000 02000000";
    let setattr = "00".repeat(88);
    let create = format!("{entry} {opened}");
    let create_in = "42800000 a4810000 12000000 00000000 616200";
    let pairs: Vec<(u32, &str, Option<Vec<u8>>)> = vec![
        (1, "616200", success(&entry)),
        (2, "0300000000000000", None),
        (3, "00000000 00000000 0000000000000000", success(&attributes)),
        (4, &setattr, success(&attributes)),
        (5, "", success("2f78")),
        (6, "616200 2f7800", success(&entry)),
        (8, "b6210000 05010000 12000000 00000000 616200", success(&entry)),
        (9, "ed010000 12000000 616200", success(&entry)),
        (10, "616200", success("")),
        (11, "616200", failure(39)),
        (12, "0909000000000000 616200 6300", success("")),
        (13, "0909000000000000 616200", success(&entry)),
        (14, "02800000 00000000", success(opened)),
        (15, read, success("0102030405")),
        (
            16,
            "0a0b000000000000 0000000000000000 03000000 00000000 0000000000000000 00000000 00000000 0d0e0f",
            success("03000000 00000000"),
        ),
        (
            17,
            "",
            success(
                "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000 06000000 07000000 \
                 08000000 00000000 000000000000000000000000000000000000000000000000",
            ),
        ),
        (18, "0a0b000000000000 00000000 00000000 0000000000000000", success("")),
        (20, "0a0b000000000000 01000000 00000000", success("")),
        (20, "0a0b000000000000 00000000 00000000", failure(5)),
        (21, "02000000 00000000 616200 7879", success("")),
        (22, "00000000 00000000 616200", success("05000000 00000000")),
        (22, "05000000 00000000 616200", success("76616c7565")),
        (22, "04000000 00000000 616200", failure(34)),
        (23, "00000000 00000000", success("07000000 00000000")),
        (23, "00010000 00000000", success("757365722e6100")),
        (24, "616200", success("")),
        (25, "0a0b000000000000 00000000 00000000 0000000000000000", success("")),
        (26, "07000000 29000000 00000000 00000000", failure(5)),
        (27, "00000000 00000000", success("0a0b000000000000 08000000 00000000")),
        (28, read, success(directory)),
        (29, "0a0b000000000000 00000000 00000000 0000000000000000", success("")),
        (30, "0a0b000000000000 00000000 00000000", success("")),
        (34, "06000000 00000000", success("")),
        (35, create_in, success(&create)),
        (36, "2e00000000000000", None),
        (38, "", success("")),
        (39, ioctl, success("05000000 00000000 00000000 00000000 0102")),
        (42, "01000000 00000000 0908000000000000 0500000000000000", None),
        (43, "0a0b000000000000 0000000000000000 0020000000000000 00000000 00000000", success("")),
        (44, read, success(&plus)),
        (45, "0909000000000000 00000000 00000000 616200 6300", success("")),
        (46, "0a0b000000000000 0010000000000000 03000000 00000000", success("0020000000000000")),
        (
            47,
            "0a0b000000000000 0010000000000000 0909000000000000 0c00000000000000 0020000000000000 0000010000000000 \
             0000000000000000",
            success("00100000 00000000"),
        ),
        (50, "0000000000000000", success("")),
        (51, create_in, success(&create)),
        (52, "00000000 00000000 0000000000000000 00000000 ff0f0000", success(&statx)),
        (53, "", failure(38)),
        // Cut off.
        (15, "00", failure(22)),
    ];
    let requests: Vec<_> = pairs.iter().map(|(opcode, body, _)| message(*opcode, 0x30, 0x0807, &hex(body))).collect();
    let handler = Fixed { read: Pieces(vec![vec![1, 2], vec![], vec![3, 4, 5]]), ..Fixed::default() };
    let (got, handler) = replies(handler, &requests);
    for ((opcode, body, expected), got) in pairs.iter().zip(&got) {
        assert_eq!(got, expected, "opcode {opcode}, {body}");
    }
    assert_eq!(*handler.forgets.lock().unwrap(), [(0x0807, 3), (0x0809, 5)]);
}

#[test]
fn the_mark_of_a_request_sent_again_comes_back() {
    let (got, _) = replies(Fixed::default(), &[message(opcode::READLINK, 0x30 | UNIQUE_RESEND, 1, &[])]);
    assert_eq!(got[0].as_ref().unwrap()[8..16], hex("3000000000000080"));
}

#[test]
fn reads_of_any_number_of_pieces_arrive_in_order() {
    for count in [0, 1, 18, 19, 20, 21, 256, 1022, 1023, 1024, 1025, 3000] {
        let pieces: Vec<Vec<u8>> = (0..count).map(|piece: usize| vec![piece as u8, (piece >> 8) as u8, 7]).collect();
        let expected = pieces.concat();
        let request = message(opcode::READ, 0x30, 1, &[0; 40]);
        let (got, _) = replies(Fixed { read: Pieces(pieces), ..Fixed::default() }, &[request]);
        let got = got[0].as_ref().unwrap();
        assert_eq!(got.len(), 16 + expected.len(), "{count} pieces");
        assert_eq!(got[..4], (got.len() as u32).to_le_bytes());
        assert_eq!(got[16..], expected, "{count} pieces");
    }
}

/// A socket takes no message longer than its buffer, as the device takes no reply longer than was asked for.
#[test]
fn a_reply_that_is_not_taken_becomes_an_error_and_the_session_goes_on() {
    let request = message(opcode::READ, 0x30, 1, &[0; 40]);
    let (got, _) = replies(Fixed { read: Pieces(vec![vec![0; 64 << 20]]), ..Fixed::default() }, &[request]);
    assert_eq!(got[0], failure(5));
}

/// Of a truncation by ftruncate(2) the handler knows the handle, and sees to it itself.
#[test]
fn what_a_request_has_changed_comes_before_its_answer() {
    #[derive(Default)]
    struct Changing(Mutex<Vec<(u64, Change)>>);
    impl Handler for Changing {
        type Data = Vec<u8>;
        fn setattr(&self, _: &Context, _: u64, _: &SetattrIn) -> Answer<Attributes> {
            Ok(known())
        }
        fn unlink(&self, _: &Context, _: u64, _: &[u8]) -> Answer<()> {
            Ok(())
        }
        fn changed(&self, node: u64, change: Change) -> Answer<()> {
            self.0.lock().unwrap().push((node, change));
            Err(Number(28))
        }
    }
    let set = |valid: u32| message(opcode::SETATTR, 0x30, 2, &[&valid.to_le_bytes()[..], &[0; 84]].concat());
    let (size, handle, mode) = (fattr::SIZE, fattr::FH, fattr::MODE);
    let requests = [set(size), set(handle | mode), set(size | handle), message(opcode::UNLINK, 0x30, 3, b"a\0")];
    let (got, handler) = replies(Changing::default(), &requests);
    assert_eq!([&got[0], &got[1], &got[3]], [&failure(28); 3]);
    assert_ne!(got[2], failure(28));
    let expected = [(2, Change::Object), (2, Change::Object), (3, Change::Names)];
    assert_eq!(*handler.0.lock().unwrap(), expected);
}

/// The device takes error numbers from 1 to 511 only.
#[test]
fn what_is_no_error_number_becomes_an_io_error() {
    struct Wrong(i32);
    impl Handler for Wrong {
        type Data = Vec<u8>;
        fn readlink(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
            if node == 1 { Ok(Vec::new()) } else { Err(Number(self.0)) }
        }
    }
    for (number, expected) in [(0, 5), (-2, 5), (512, 5), (i32::MIN, 5), (i32::MAX, 5), (1, 1), (511, 511)] {
        let (got, _) = replies(Wrong(number), &[message(opcode::READLINK, 0x30, 2, &[])]);
        assert_eq!(got[0], failure(expected), "{number}");
    }
}

#[test]
fn what_a_handler_leaves_out_is_not_implemented() {
    struct Nothing;
    impl Handler for Nothing {
        type Data = Vec<u8>;
        fn readlink(&self, _: &Context, _: u64) -> Answer<Vec<u8>> {
            Ok(Vec::new())
        }
    }
    let requests = [(1, "616200", 38), (39, "00".repeat(32).as_str(), 25), (51, "00".repeat(16).as_str(), 95)]
        .map(|(opcode, body, errno)| (message(opcode, 0x30, 2, &hex(body)), errno));
    let (got, _) = replies(Nothing, &requests.clone().map(|(request, _)| request));
    assert_eq!(got, requests.map(|(_, errno)| failure(errno)));
}

/// Plays the kernel's INIT; gives what `Session::start` says, and the replies.
fn start(offers: &[Vec<u8>]) -> (io::Result<Negotiated>, Vec<Vec<u8>>) {
    let (kernel, ours) = device();
    for offer in offers {
        rustix::io::write(&kernel, offer).unwrap();
    }
    let started = Session::start(ours, Caching::Direct).map(|session| session.negotiated());
    (started, offers.iter().map(|_| next(&kernel)).take_while(|reply| !reply.is_empty()).collect())
}

#[test]
fn init_is_answered_to_new_and_old_kernels() {
    // Linux 6.18: 7.45 with all flags; 64 bytes.
    let body = format!("07000000 2d000000 00000200 ffffffff ffffffff {}", "00".repeat(44));
    let (started, replies) = start(&[message(opcode::INIT, 0x30, 0, &hex(&body))]);
    let started = started.unwrap();
    assert_eq!((started.minor, started.write_bytes_max), (41, 1 << 20));
    // The bits that are agreed, by hand: 0, 4, 5, 6, 11, 13, 14, 15, 18, 20, 21, 22, 23, 28, 29, 30 | 34, 36, 39.
    let expected = "07000000 29000000 00000200 71e8f470 4000 3000 00001000 01000000 0001 0000 94000000 00000000 0000 \
                    00000000000000000000000000000000000000000000";
    assert_eq!(Some(&replies[0]), success(expected).as_ref());
    assert_eq!(started.flags, 0x94_70f4_e871);

    // Linux 5.4: 7.31, 16 bytes, and what it sends there is no more than that.
    let (started, replies) = start(&[message(opcode::INIT, 0x30, 0, &hex("07000000 1f000000 00000200 fbffff03"))]);
    assert_eq!(started.unwrap(), Negotiated { minor: 31, flags: 0xf4_e871, write_bytes_max: 1 << 20 });
    assert_eq!(replies[0].len(), 80);
}

#[test]
fn init_of_another_protocol_is_refused() {
    for (version, unsupported) in [
        ("07000000 1e000000", Unsupported { major: 7, minor: 30 }),
        ("08000000 00000000", Unsupported { major: 8, minor: 0 }),
    ] {
        let (started, replies) =
            start(&[message(opcode::INIT, 0x30, 0, &hex(&format!("{version} 00000000 00000000")))]);
        let error = started.unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::Unsupported, unsupported.to_string()));
        assert_eq!(Some(&replies[0]), failure(libc::EPROTO).as_ref());
    }
}

#[test]
fn what_comes_before_init_is_answered_with_an_error() {
    let init = message(opcode::INIT, 0x31, 0, &hex("07000000 29000000 00000200 00000000"));
    let (started, replies) = start(&[message(opcode::READLINK, 0x30, 1, &[]), init]);
    assert_eq!(started.unwrap().flags, 0);
    assert_eq!(Some(&replies[0]), failure(5).as_ref());
    assert_eq!(replies[1][8..16], hex("3100000000000000"));
}

#[test]
fn a_mount_that_goes_before_init_is_an_error() {
    let (kernel, ours) = device();
    drop(kernel);
    assert_eq!(Session::start(ours, Caching::Direct).unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[test]
fn a_descriptor_that_does_not_block_is_waited_for() {
    let (kernel, ours) = device();
    rustix::io::ioctl_fionbio(&ours, true).unwrap();
    let serving = std::thread::spawn(move || {
        let clone = rustix::io::dup(&ours).unwrap();
        Session::resume(ours, NEGOTIATED).worker(clone).unwrap().serve(&Fixed::default())
    });
    for _ in 0..3 {
        // Most likely it has found nothing and waits by then. Nobody could tell; otherwise this round shows less.
        std::thread::sleep(Duration::from_millis(5));
        rustix::io::write(&kernel, &message(opcode::READLINK, 0x30, 1, &[])).unwrap();
        assert_eq!(Some(next(&kernel)), success("2f78"));
    }
    drop(kernel);
    serving.join().unwrap().unwrap();
}

#[test]
fn notifications_are_golden() {
    let (kernel, ours) = device();
    let session = Session::resume(ours, NEGOTIATED);
    session.ask_resend().unwrap();
    assert_eq!(next(&kernel), hex("10000000 07000000 0000000000000000"));
    notify::invalidate_object(session.device(), 0x0807, 0x1000, -1).unwrap();
    let object = "28000000 02000000 0000000000000000 0708000000000000 0010000000000000 ffffffffffffffff";
    assert_eq!(next(&kernel), hex(object));
    notify::invalidate_name(session.device(), 0x0807, b"ab").unwrap();
    let name = "23000000 03000000 0000000000000000 0708000000000000 02000000 00000000 616200";
    assert_eq!(next(&kernel), hex(name));
}

#[test]
fn what_was_agreed_survives_being_stored() {
    let agreed = Negotiated { minor: 41, flags: 0x94_70f4_e871, write_bytes_max: 1 << 20 };
    let stored = serde_json::to_string(&agreed).unwrap();
    assert_eq!(serde_json::from_str::<Negotiated>(&stored).unwrap(), agreed);
}

/// The way from bytes to a reply, with any bytes: no panic.
#[test]
fn no_request_panics_on_its_way_through() {
    let (seed, budget) = (seed("no_request_panics_on_its_way_through"), fuzz_budget());
    let mut rng = Rng(seed);
    let start = std::time::Instant::now();
    let golden: Vec<_> =
        (0..54).map(|code| message(code, 0x30, 0x0807, &[b"ab\0c\0".to_vec(), vec![0; 115]].concat())).collect();
    let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let handler = Fixed { read: Pieces(vec![vec![1; 9]; 30]), ..Fixed::default() };
    let mut requests = 0u64;
    while start.elapsed() < budget {
        for _ in 0..100 {
            dispatch(&handler, null.as_fd(), &rng.mutated(&golden), u64::MAX * (requests % 2));
            requests += 1;
        }
        handler.forgets.lock().unwrap().clear();
    }
    println!("{requests} requests");
}
