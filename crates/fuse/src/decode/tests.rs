//! Golden messages, written by hand from the UAPI's layout (little-endian), and mutations of them.

use super::*;
use crate::test_support::{Rng, fuzz_budget, hex, message, seed};

/// A request of node 0x0807, unique 0x30, uid 1000, gid 100, process 7, that has this opcode and body.
fn golden(opcode: u32, body: &str) -> Vec<u8> {
    message(opcode, 0x30, 0x0807, &hex(body))
}

fn decoded(bytes: &[u8]) -> Body<'_> {
    let request = request(bytes, 0).unwrap();
    let context = Context { unique: 0x30, resent: false, uid: 1000, gid: 100, pid: 7, groups: vec![] };
    assert_eq!((request.context, request.node), (context, 0x0807));
    request.body
}

/// Every opcode that is known, with a body and what it means. `61 62 00` is the name `ab`.
fn golden_messages() -> Vec<(u32, &'static str, Body<'static>)> {
    let open = OpenIn { flags: 0x8002, open_flags: 1 };
    let fh = 0x0b0a;
    let read =
        ReadIn { fh, offset: 0x1000, size: 0x20_0000, read_flags: 2, lock_owner: 0x77, flags: 0x4002, padding: 0 };
    let read_bytes = "0a0b000000000000 0010000000000000 00002000 02000000 7700000000000000 02400000 00000000";
    let fsync = FsyncIn { fh, fsync_flags: 1, padding: 0 };
    let release = ReleaseIn { fh, flags: 0x8000, release_flags: 1, lock_owner: 0x77 };
    let release_bytes = "0a0b000000000000 00800000 01000000 7700000000000000";
    let create = CreateIn { flags: 0x8042, mode: 0o100644, umask: 0o022, open_flags: 1 };
    let rename = |flags| Body::Rename { new_parent: 0x0909, flags, name: b"ab", new_name: b"c" };
    vec![
        (1, "616200", Body::Lookup { name: b"ab" }),
        (2, "0300000000000000", Body::Forget { count: 3 }),
        (3, "01000000 00000000 0a0b000000000000", Body::Getattr(GetattrIn { flags: 1, dummy: 0, fh })),
        (
            4,
            "ef0d0000 00000000 0a0b000000000000 0500000000000000 7700000000000000 0100000000000000 0200000000000000 \
             0300000000000000 04000000 05000000 06000000 a4810000 00000000 e8030000 64000000 00000000",
            Body::Setattr(SetattrIn {
                valid: 0xdef,
                padding: 0,
                fh,
                size: 5,
                lock_owner: 0x77,
                atime: 1,
                mtime: 2,
                ctime: 3,
                atimensec: 4,
                mtimensec: 5,
                ctimensec: 6,
                mode: 0o100644,
                unused4: 0,
                uid: 1000,
                gid: 100,
                unused5: 0,
            }),
        ),
        (5, "", Body::Readlink),
        (6, "616200 2f7800", Body::Symlink { name: b"ab", target: b"/x" }),
        (
            8,
            "b6210000 05010000 12000000 00000000 616200",
            Body::Mknod { args: MknodIn { mode: 0o20666, rdev: 0x105, umask: 0o22, padding: 0 }, name: b"ab" },
        ),
        (9, "ed010000 12000000 616200", Body::Mkdir { args: MkdirIn { mode: 0o755, umask: 0o22 }, name: b"ab" }),
        (10, "616200", Body::Unlink { name: b"ab" }),
        (11, "616200", Body::Rmdir { name: b"ab" }),
        (12, "0909000000000000 616200 6300", rename(0)),
        (13, "0909000000000000 616200", Body::Link { node: 0x0909, name: b"ab" }),
        (14, "02800000 01000000", Body::Open(open)),
        (15, read_bytes, Body::Read(read)),
        (
            16,
            "0a0b000000000000 0010000000000000 03000000 05000000 7700000000000000 02400000 00000000 0d0e0f",
            Body::Write {
                args: WriteIn {
                    fh,
                    offset: 0x1000,
                    size: 3,
                    write_flags: 5,
                    lock_owner: 0x77,
                    flags: 0x4002,
                    padding: 0,
                },
                bytes: &[13, 14, 15],
            },
        ),
        (17, "", Body::Statfs),
        (18, release_bytes, Body::Release(release)),
        (20, "0a0b000000000000 01000000 00000000", Body::Fsync(fsync)),
        (21, "02000000 01000000 616200 7879", Body::Setxattr { flags: 1, extra_flags: 0, name: b"ab", value: b"xy" }),
        (22, "00010000 00000000 616200", Body::Getxattr { size: 256, name: b"ab" }),
        (23, "00010000 00000000", Body::Listxattr { size: 256 }),
        (24, "616200", Body::Removexattr { name: b"ab" }),
        (
            25,
            "0a0b000000000000 00000000 00000000 7700000000000000",
            Body::Flush(FlushIn { fh, unused: 0, padding: 0, lock_owner: 0x77 }),
        ),
        (
            26,
            "07000000 2d000000 00000200 fbfffb73 ff010000 0000000000000000000000000000000000000000000000000000000000000000 \
             000000000000000000000000",
            Body::Init(InitIn {
                major: 7,
                minor: 45,
                max_readahead: 131072,
                flags: 0x73fb_fffb,
                flags2: 0x1ff,
                unused: [0; 11],
            }),
        ),
        (27, "02800000 01000000", Body::Opendir(open)),
        (28, read_bytes, Body::Readdir { args: read, plus: false }),
        (29, release_bytes, Body::Releasedir(release)),
        (30, "0a0b000000000000 01000000 00000000", Body::Fsyncdir(fsync)),
        (34, "06000000 00000000", Body::Access { mask: 6 }),
        (35, "42800000 a4810000 12000000 01000000 616200", Body::Create { args: create, name: b"ab" }),
        (36, "2e00000000000000", Body::Interrupt { unique: 0x2e }),
        (38, "", Body::Destroy),
        (
            39,
            "0a0b000000000000 10000000 01480880 efbeadde00000000 02000000 08000000 0102",
            Body::Ioctl {
                args: IoctlIn { fh, flags: 16, cmd: 0x8008_4801, arg: 0xdead_beef, in_size: 2, out_size: 8 },
                bytes: &[1, 2],
            },
        ),
        (
            42,
            "02000000 00000000 0708000000000000 0100000000000000 0908000000000000 0500000000000000",
            Body::BatchForget {
                forgets: vec![ForgetOne { nodeid: 0x807, nlookup: 1 }, ForgetOne { nodeid: 0x809, nlookup: 5 }],
            },
        ),
        (
            43,
            "0a0b000000000000 0010000000000000 0020000000000000 03000000 00000000",
            Body::Fallocate(FallocateIn { fh, offset: 0x1000, length: 0x2000, mode: 3, padding: 0 }),
        ),
        (44, read_bytes, Body::Readdir { args: read, plus: true }),
        (45, "0909000000000000 02000000 00000000 616200 6300", rename(2)),
        (
            46,
            "0a0b000000000000 0010000000000000 03000000 00000000",
            Body::Lseek(LseekIn { fh, offset: 0x1000, whence: 3, padding: 0 }),
        ),
        (
            47,
            "0a0b000000000000 0010000000000000 0909000000000000 0c00000000000000 0020000000000000 0000010000000000 \
             0000000000000000",
            Body::CopyFileRange(CopyFileRangeIn {
                fh_in: fh,
                off_in: 0x1000,
                nodeid_out: 0x909,
                fh_out: 12,
                off_out: 0x2000,
                len: 0x10000,
                flags: 0,
            }),
        ),
        (50, "0000000000000000", Body::Syncfs),
        (51, "42800000 a4810000 12000000 01000000 2f00", Body::Tmpfile { args: create }),
        (
            52,
            "01000000 00000000 0a0b000000000000 00200000 ff0f0000",
            Body::Statx(StatxIn { getattr_flags: 1, reserved: 0, fh, sx_flags: 0x2000, sx_mask: 0xfff }),
        ),
        (53, "00", Body::Unknown { opcode: 53 }),
    ]
}

#[test]
fn golden_messages_are_understood() {
    for (opcode, body, expected) in golden_messages() {
        assert_eq!(decoded(&golden(opcode, body)), expected, "opcode {opcode}");
    }
}

#[test]
fn a_message_that_ends_early_is_an_error() {
    // These have no body, or do not look at it.
    let free = [opcode::READLINK, opcode::STATFS, opcode::DESTROY, opcode::SYNCFS, 53];
    // These are right without their end: a short INIT is that of an old kernel, the name of a tmpfile means nothing.
    let shortest = |opcode| match opcode {
        opcode::INIT => 16,
        opcode::TMPFILE => 16,
        _ => usize::MAX,
    };
    for (opcode, body, _) in golden_messages() {
        let body = hex(body);
        for length in 0..body.len().min(shortest(opcode)) {
            let bytes = message(opcode, 0x30, 1, &body[..length]);
            let result = request(&bytes, 0).map(|request| request.body);
            assert_eq!(result.is_ok(), free.contains(&opcode), "opcode {opcode} of {length} bytes: {result:?}");
        }
    }
}

#[test]
fn a_header_is_all_or_nothing() {
    let whole = golden(opcode::READLINK, "");
    assert!(header(&whole).is_ok());
    for length in 0..whole.len() {
        assert_eq!(header(&whole[..length]), Err(DecodeError::Short { have: length, what: "header" }));
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert_eq!(header(&longer), Err(DecodeError::Length { says: 40, have: 41 }));
}

#[test]
fn old_kernels_send_a_short_init() {
    let bytes = golden(opcode::INIT, "07000000 1f000000 00000200 fbff0300");
    let expected = InitIn { major: 7, minor: 31, max_readahead: 131072, flags: 0x3fffb, ..InitIn::default() };
    assert_eq!(decoded(&bytes), Body::Init(expected));
}

#[test]
fn a_request_sent_again_keeps_its_identity() {
    let bytes = message(opcode::READLINK, 0x30 | 1 << 63, 1, &[]);
    let context = request(&bytes, 0).unwrap().context;
    assert_eq!((context.unique, context.resent), (0x30, true));
    assert_eq!(header(&bytes).unwrap().unique, 0x8000_0000_0000_0030, "as it came, for the reply");
}

/// A mkdir of `ab` with extensions, whose length in the header is in units of 8 bytes.
fn with_extensions(extensions: &str) -> Vec<u8> {
    let extensions = hex(extensions);
    let mut body = hex("ed010000 12000000 616200");
    body.extend_from_slice(&extensions);
    let mut bytes = message(opcode::MKDIR, 0x30, 1, &body);
    bytes[36..38].copy_from_slice(&((extensions.len() / 8) as u16).to_le_bytes());
    bytes
}

#[test]
fn supplementary_groups_come_as_an_extension() {
    // Size 24, type 32, two groups, padding; before it a security context (a type below 32), which is passed over.
    let groups = "18000000 20000000 02000000 e9030000 ea030000 00000000";
    let bytes = with_extensions(&format!("10000000 01000000 ffffffffffffffff {groups}"));
    let request = request(&bytes, 0).unwrap();
    assert_eq!(request.context.groups, [1001, 1002]);
    assert!(matches!(request.body, Body::Mkdir { name: b"ab", .. }));
}

#[test]
fn extensions_that_lie_are_errors() {
    let lies = [
        "00000000 20000000",                   // no size: would never end
        "07000000 20000000",                   // smaller than its header once rounded up: 8 bytes, no count
        "20000000 20000000 00000000 00000000", // larger than what there is
        "10000000 20000000 ffffffff 00000000", // more groups than bytes
        "f9ffffff 20000000 00000000 00000000", // overflows 32 bits when rounded up
        "10000000 20000000 02000000 00000000", // one group too many
    ];
    for lie in lies {
        assert!(request(&with_extensions(lie), 0).is_err(), "{lie}");
    }
    let mut bytes = golden(opcode::READLINK, "");
    bytes[36] = 1;
    assert!(matches!(request(&bytes, 0), Err(DecodeError::Short { what: "extensions", .. })));
}

#[test]
fn setxattr_is_longer_where_that_was_agreed_on() {
    let bytes = golden(opcode::SETXATTR, "02000000 01000000 01000000 00000000 616200 7879");
    let long = Body::Setxattr { flags: 1, extra_flags: SETXATTR_ACL_KILL_SGID, name: b"ab", value: b"xy" };
    assert_eq!(request(&bytes, init_flags::SETXATTR_EXT).unwrap().body, long);
    let short = golden(opcode::SETXATTR, "02000000 01000000 616200 7879");
    assert!(request(&short, init_flags::SETXATTR_EXT).is_err());
}

#[test]
fn counts_that_lie_are_errors() {
    let too_many = hex("ffffffff 00000000 0708000000000000 0100000000000000");
    assert!(request(&message(opcode::BATCH_FORGET, 2, 0, &too_many), 0).is_err());
    let mut write =
        hex("0a0b000000000000 0010000000000000 04000000 00000000 7700000000000000 02400000 00000000 0d0e0f");
    assert!(request(&message(opcode::WRITE, 2, 1, &write), 0).is_err(), "says 4 bytes, has 3");
    write[16..20].copy_from_slice(&[0xff; 4]);
    assert!(request(&message(opcode::WRITE, 2, 1, &write), 0).is_err());
    assert_eq!(request(&message(opcode::LOOKUP, 2, 1, b"ab"), 0), Err(DecodeError::Name));
    assert_eq!(request(&message(opcode::RENAME, 2, 1, b"\x01\0\0\0\0\0\0\0ab\0c"), 0), Err(DecodeError::Name));
}

/// Bytes of a name must come from the message, not from beyond it: the borrow checker sees to that; here, that a message in
/// any state is an error or a request, with every opcode.
#[test]
fn no_message_panics() {
    let (seed, budget) = (seed("no_message_panics"), fuzz_budget());
    let mut rng = Rng(seed);
    let golden: Vec<Vec<u8>> =
        golden_messages().into_iter().map(|(opcode, body, _)| self::golden(opcode, body)).collect();
    let start = std::time::Instant::now();
    let (mut messages, mut understood) = (0u64, 0u64);
    while start.elapsed() < budget {
        for _ in 0..1000 {
            let bytes = rng.mutated(&golden);
            messages += 1;
            understood += u64::from(request(&bytes, u64::MAX * (messages % 2)).is_ok());
        }
    }
    println!("{messages} messages, {understood} understood");
    assert!(messages / 100 < understood && understood < messages, "the mutations are too mild or too wild");
}
