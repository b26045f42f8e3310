//! Requests field by field, each field from values that mean something.

use holdfast_fuse::abi::opcode;
use holdfast_fuse::control;
use holdfast_integrity::Algorithm;
use holdfast_interface::{self as interface, BLOCK_BYTES, Command as Ask};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64Mcg;

/// A field of a request's body.
#[derive(Clone, Copy)]
enum Field {
    /// 64 bits that may be anything: handles, lock owners, times.
    Any,
    /// A node number.
    Node,
    /// An offset or a length in bytes.
    Offset,
    /// 32 bits: a size of a reply.
    Size,
    /// 32 bits: flags and the like.
    Flags,
    /// 32 bits: a type and permissions.
    Mode,
    /// 32 bits of zero.
    Zero,
    /// 32 bits: bytes that follow at the end.
    Length,
    /// 32 bits: an ioctl's number.
    Command,
    /// A name.
    Name,
    /// The name of an extended attribute.
    Attribute,
    /// So many bytes as `Length` said.
    Bytes,
}

use Field::{Any, Attribute, Bytes, Command, Flags, Length, Mode, Name, Node, Offset, Size, Zero};

const READ: &[Field] = &[Any, Offset, Size, Flags, Any, Flags, Zero];
const CREATE: &[Field] = &[Flags, Mode, Flags, Flags, Name];
const RELEASE: &[Field] = &[Any, Flags, Flags, Any];
const FSYNC: &[Field] = &[Any, Flags, Zero];

/// The bodies of the protocol.
const REQUESTS: [(u32, &[Field]); 43] = [
    (opcode::LOOKUP, &[Name]),
    (opcode::FORGET, &[Any]),
    (opcode::GETATTR, &[Flags, Zero, Any]),
    (
        opcode::SETATTR,
        &[Flags, Zero, Any, Offset, Any, Any, Any, Any, Flags, Flags, Flags, Mode, Zero, Flags, Flags, Zero],
    ),
    (opcode::READLINK, &[]),
    (opcode::SYMLINK, &[Name, Name]),
    (opcode::MKNOD, &[Mode, Flags, Flags, Zero, Name]),
    (opcode::MKDIR, &[Mode, Flags, Name]),
    (opcode::MKDIR, &[Mode, Zero, Name]),
    (opcode::UNLINK, &[Name]),
    (opcode::RMDIR, &[Name]),
    (opcode::RENAME, &[Node, Name, Name]),
    (opcode::RENAME2, &[Node, Flags, Zero, Name, Name]),
    (opcode::LINK, &[Node, Name]),
    (opcode::OPEN, &[Flags, Flags]),
    (opcode::READ, READ),
    (opcode::WRITE, &[Any, Offset, Length, Flags, Any, Flags, Zero, Bytes]),
    (opcode::WRITE, &[Any, Offset, Length, Zero, Any, Zero, Zero, Bytes]),
    (opcode::STATFS, &[]),
    (opcode::RELEASE, RELEASE),
    (opcode::FSYNC, FSYNC),
    (opcode::SETXATTR, &[Length, Zero, Zero, Zero, Attribute, Bytes]),
    (opcode::SETXATTR, &[Length, Flags, Flags, Zero, Attribute, Bytes]),
    (opcode::GETXATTR, &[Size, Zero, Attribute]),
    (opcode::LISTXATTR, &[Size, Zero]),
    (opcode::REMOVEXATTR, &[Attribute]),
    (opcode::FLUSH, &[Any, Zero, Zero, Any]),
    (opcode::OPENDIR, &[Flags, Flags]),
    (opcode::READDIR, READ),
    (opcode::READDIRPLUS, READ),
    (opcode::RELEASEDIR, RELEASE),
    (opcode::FSYNCDIR, FSYNC),
    (opcode::ACCESS, &[Flags, Zero]),
    (opcode::CREATE, CREATE),
    (opcode::CREATE, CREATE),
    (opcode::TMPFILE, CREATE),
    (opcode::IOCTL, &[Any, Flags, Command, Any, Length, Size, Bytes]),
    (opcode::BATCH_FORGET, &[Flags, Zero, Node, Any, Node, Any]),
    (opcode::FALLOCATE, &[Any, Offset, Offset, Flags, Zero]),
    (opcode::LSEEK, &[Any, Offset, Flags, Zero]),
    (opcode::COPY_FILE_RANGE, &[Any, Offset, Node, Any, Offset, Offset, Zero, Zero]),
    (opcode::SYNCFS, &[Any]),
    (opcode::STATX, &[Flags, Zero, Any, Flags, Flags]),
];

const NUMBERS: [u64; 16] =
    [0, 1, 2, 3, 7, 255, 4095, 4096, 4097, 1 << 20, 1 << 31, 1 << 32, 1 << 44, 1 << 63, u64::MAX - 1, u64::MAX];

fn node(rng: &mut Pcg64Mcg) -> u64 {
    match rng.random_range(0..10) {
        // Ids are given in order, so small ones exist.
        0..6 => rng.random_range(1..30),
        6..8 => 1,
        8 => rng.random_range(1..30) | *[1 << 48, 2 << 48, 0xffff << 48, 1 << 47].choose(rng).expect("some"),
        _ => *NUMBERS.choose(rng).expect("some"),
    }
}

fn name(rng: &mut Pcg64Mcg) -> Vec<u8> {
    let fixed: [&[u8]; 8] = [b"", b".", b"..", b"a/b", b".holdfast", b"snapshots", b"\xff\xfe", b"first"];
    match rng.random_range(0..12) {
        0..8 => vec![rng.random_range(b'a'..b'j')],
        8 => vec![b'n'; *[254, 255, 256, 4095, 4096, 5000].choose(rng).expect("some")],
        9 => format!("{}", rng.random_range(0..500)).into_bytes().repeat(40),
        _ => fixed.choose(rng).expect("some").to_vec(),
    }
}

fn attribute(rng: &mut Pcg64Mcg) -> Vec<u8> {
    let names: [&[u8]; 8] = [
        b"user.a",
        b"user.b",
        b"trusted.t",
        b"security.capability",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"other.x",
        b"user.",
    ];
    match rng.random_range(0..10) {
        0 => [&b"user."[..], &name(rng)].concat(),
        _ => names.choose(rng).expect("some").to_vec(),
    }
}

fn bytes(rng: &mut Pcg64Mcg) -> Vec<u8> {
    match rng.random_range(0..6) {
        0 => crate::foreign::acl(),
        1 => vec![0; rng.random_range(0..3) * 4096],
        2 => vec![7; rng.random_range(0..70_000)],
        3 => [&12u32.to_le_bytes()[..], b"{\"list\":null}"].concat(),
        _ => (0..rng.random_range(0..200)).map(|_| rng.random()).collect(),
    }
}

/// The arguments of an ioctl that reads or writes with checksums, which now and then are right.
fn summed(rng: &mut Pcg64Mcg) -> Vec<u8> {
    const COMMANDS: [Ask; 6] = [Ask::Features, Ask::Read, Ask::Sums, Ask::Write, Ask::WriteFrom, Ask::Bad];
    let command = *COMMANDS.choose(rng).expect("some");
    let near = rng.random_range(0..40_000);
    let request = interface::Request {
        algorithm: *Algorithm::ALL.choose(rng).expect("some"),
        verify: rng.random_bool(0.3),
        append: rng.random_bool(0.3),
        offset: if rng.random_bool(0.9) { near } else { *NUMBERS.choose(rng).expect("some") },
        length: *[0, 1, 100, 4096, 9000, 12_288, 1 << 20, usize::MAX].choose(rng).expect("some"),
        address: *NUMBERS.choose(rng).expect("some"),
    };
    let mut payload = request.encode().to_vec();
    let written = vec![rng.random(); request.length.min(12_288)];
    if matches!(command, Ask::Write | Ask::WriteFrom) {
        for piece in interface::pieces(request.offset % BLOCK_BYTES as u64, written.len()) {
            payload.extend(request.algorithm.sum(&written[piece.range]).as_bytes());
        }
        payload.extend(written);
    }
    if rng.random_bool(0.2) {
        let at = rng.random_range(0..payload.len());
        payload[at] ^= 1 << rng.random_range(0..8);
    }
    if rng.random_bool(0.1) {
        payload.truncate(rng.random_range(0..payload.len()));
    }
    let room: u32 = *[0, 1, 95, 96, 300, 5000, 16_383, u32::MAX].choose(rng).expect("some");
    // Mostly opened for reading and writing.
    let handle: u64 = *[3, 3, 3, 7, 15, 1, 2, 0, u64::MAX].choose(rng).expect("some");
    let mut body = handle.to_le_bytes().to_vec();
    let number = command.number(payload.len().min(interface::PAYLOAD_BYTES_MAX));
    body.extend([0, number].map(u32::to_le_bytes).concat());
    body.extend(0xdead_beef_u64.to_le_bytes());
    body.extend([payload.len() as u32, room].map(u32::to_le_bytes).concat());
    body.extend(payload);
    body
}

/// The bytes of one request.
pub fn generate(rng: &mut Pcg64Mcg, unique: u64) -> Vec<u8> {
    if rng.random_bool(0.1) {
        let body = summed(rng);
        return request(rng, opcode::IOCTL, unique, body);
    }
    let (code, fields) = *REQUESTS.choose(rng).expect("some");
    let payload = bytes(rng);
    let mut body = Vec::new();
    for field in fields {
        let number = *NUMBERS.choose(rng).expect("some");
        let near = rng.random_range(0..40_000);
        let word = match field {
            Zero => 0,
            Length if rng.random_bool(0.95) => payload.len() as u32,
            Size if rng.random_bool(0.7) => near,
            Flags if rng.random_bool(0.8) => rng.random_range(0..16),
            Mode => {
                let kind = [0, 0o100_000, 0o040_000, 0o010_000, 0o120_000, 0o020_000, 0o170_000];
                kind.choose(rng).expect("some") | rng.random_range(0..0o10_000)
            }
            Command => {
                let known = [control::HOLDFAST_IOC_SYNC, control::HOLDFAST_IOC_STATUS, control::HOLDFAST_IOC_SCRUB];
                let more = [control::HOLDFAST_IOC_SNAPSHOT, control::HOLDFAST_IOC_TRIM, number as u32];
                *[known, more].concat().choose(rng).expect("some")
            }
            _ => number as u32,
        };
        match field {
            Any => body.extend(number.to_le_bytes()),
            Node => body.extend(node(rng).to_le_bytes()),
            Offset if rng.random_bool(0.6) => body.extend(u64::from(near).to_le_bytes()),
            Offset => body.extend(number.wrapping_sub(rng.random_range(0..3)).to_le_bytes()),
            Name => body.extend([name(rng), vec![0]].concat()),
            Attribute => body.extend([attribute(rng), vec![0]].concat()),
            Bytes => body.extend(&payload),
            Zero | Length | Size | Flags | Mode | Command => body.extend(word.to_le_bytes()),
        }
    }
    if rng.random_bool(0.02) {
        body.truncate(rng.random_range(0..body.len() + 1));
    }
    request(rng, code, unique, body)
}

fn request(rng: &mut Pcg64Mcg, code: u32, unique: u64, body: Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + body.len());
    bytes.extend((40 + body.len() as u32).to_le_bytes());
    bytes.extend(code.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node(rng).to_le_bytes());
    // User, group, process, extensions.
    let user: u32 = *[0, 0, 0, 1000].choose(rng).expect("some");
    bytes.extend([user, user, 7, 0].map(u32::to_le_bytes).concat());
    bytes.extend(body);
    bytes
}
