//! What the mount answers.

use crate::{
    BLOCK_BYTES, Malformed, TRANSFER_BYTES_LEAST, TRANSFER_BYTES_MAX, VERSION, VERSION_LEAST, is_position, words,
};
use holdfast_integrity::Algorithm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a reply before its checksums.
pub const REPLY_BYTES: usize = size_of::<RawReply>();
/// Most bytes of words that follow a reply with an error: two checksums of 32 bytes with their place.
pub const TEXT_BYTES_MAX: usize = 320;
/// Most blocks that one request touches.
pub const BLOCKS_MAX: usize = TRANSFER_BYTES_MAX / BLOCK_BYTES + 1;
const BAD_WORDS: usize = BLOCKS_MAX.div_ceil(64);
const NO_ADDRESS: u64 = u64::MAX;
/// With [`Status::Done`]: the file grew. With an error: the bytes were taken all the same ([`Reply::taken`]); a client of before there was that
/// looks at it with [`Status::Done`] alone.
const FLAG_CHANGED: u8 = 1;
const MODE_BYTES: usize = 32;

/// As on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawReply {
    version: u16,
    status: u8,
    side: u8,
    operation: u8,
    flags: u8,
    text_bytes: u16,
    length: u32,
    errno: i32,
    offset: u64,
    device_address: u64,
    /// One bit per block of the request.
    bad: [u64; BAD_WORDS],
    reserved: [u64; 3],
}
const _: () = assert!(size_of::<RawReply>() == 96);

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It is done.
    Done,
    /// Bytes that came do not have their checksums: nothing was written.
    Mismatch,
    /// Stored bytes are not what was written, and there is no good copy; or a device failed.
    Damaged,
    /// Another error; the number says which.
    Refused,
    /// The caller's memory cannot be read from here: send the bytes instead.
    Unreachable,
}

/// Where bytes went bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// In memory, or on the way through it.
    Memory,
    /// On a device.
    Device,
}

/// What was being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

/// The head of every reply. On [`Status::Done`] of a read the checksums of `length` bytes follow, and the bytes; otherwise words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// What became of it.
    pub status: Status,
    /// Where bytes went bad, with [`Status::Mismatch`] and [`Status::Damaged`].
    pub side: Option<Side>,
    /// What was being done.
    pub operation: Operation,
    /// The file has become longer: the kernel knows its size only when it is asked next (fstat).
    pub grew: bool,
    /// With an error: all bytes of the request are in the file nevertheless, from [`Reply::offset`] on, perhaps beyond its former end. What
    /// failed is to make them durable, as the descriptor asks (`O_SYNC`, `O_DSYNC`). A mount of before there was that never says so.
    pub taken: bool,
    /// Bytes read or written: fewer than asked at the end of the file, 0 with an error.
    pub length: usize,
    /// The system's error number; 0 with [`Status::Done`].
    pub errno: i32,
    /// Position of the request; where an append has put the bytes.
    pub offset: u64,
    /// The 4 KiB block of the device, where one is concerned and known.
    pub device_address: Option<u64>,
    /// Blocks of the file that are bad, ascending.
    pub bad: Vec<u64>,
    /// The error in words.
    pub text: String,
}

impl Reply {
    /// A request at `offset` was done, with so many bytes.
    pub fn done(operation: Operation, offset: u64, length: usize, grew: bool) -> Reply {
        Reply {
            status: Status::Done,
            side: None,
            operation,
            grew,
            taken: false,
            length,
            errno: 0,
            offset,
            device_address: None,
            bad: Vec::new(),
            text: String::new(),
        }
    }

    /// As it is sent, in at most `room` bytes, of which [`REPLY_BYTES`] are needed: words are cut to fit ([`words::without_end`]).
    pub fn encode(&self, room: usize) -> Vec<u8> {
        let first = self.offset / BLOCK_BYTES as u64;
        let mut bad = [0; BAD_WORDS];
        for block in &self.bad {
            let index = block.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            if let Some(index) = index.filter(|&index| index < BLOCKS_MAX) {
                bad[index / 64] |= 1 << (index % 64);
            }
        }
        let text = words::without_end(&self.text, TEXT_BYTES_MAX.min(room.saturating_sub(REPLY_BYTES)));
        let raw = RawReply {
            version: VERSION,
            status: match self.status {
                Status::Done => 0,
                Status::Mismatch => 1,
                Status::Damaged => 2,
                Status::Refused => 3,
                Status::Unreachable => 4,
            },
            side: match self.side {
                None => 0,
                Some(Side::Memory) => 1,
                Some(Side::Device) => 2,
            },
            operation: match self.operation {
                Operation::Read => 1,
                Operation::Write => 2,
            },
            flags: if self.grew || self.taken { FLAG_CHANGED } else { 0 },
            text_bytes: text.len() as u16,
            length: self.length as u32,
            errno: self.errno,
            offset: self.offset,
            device_address: self.device_address.unwrap_or(NO_ADDRESS),
            bad,
            reserved: [0; 3],
        };
        let mut bytes = Vec::with_capacity(REPLY_BYTES + text.len());
        bytes.extend_from_slice(raw.as_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// A reply and what follows it, words excepted.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(Reply, &[u8]), Malformed> {
        let short = Malformed::Short { what: "a reply", needed: REPLY_BYTES, got: bytes.len() };
        let (raw, rest) = RawReply::read_from_prefix(bytes).map_err(|_| short)?;
        if raw.version != VERSION {
            return Err(Malformed::Version(raw.version));
        }
        if raw.flags & !FLAG_CHANGED != 0 || raw.reserved != [0; 3] {
            return Err(Malformed::Field("a reserved field is not zero"));
        }
        let status = match raw.status {
            0 => Status::Done,
            1 => Status::Mismatch,
            2 => Status::Damaged,
            3 => Status::Refused,
            4 => Status::Unreachable,
            _ => return Err(Malformed::Field("no status")),
        };
        let side = match raw.side {
            0 => None,
            1 => Some(Side::Memory),
            2 => Some(Side::Device),
            _ => return Err(Malformed::Field("neither memory nor device")),
        };
        let operation = match raw.operation {
            1 => Operation::Read,
            2 => Operation::Write,
            _ => return Err(Malformed::Field("neither read nor write")),
        };
        let length = usize::try_from(raw.length).unwrap_or(usize::MAX);
        let failed = status != Status::Done;
        if length > TRANSFER_BYTES_MAX || failed && length > 0 || failed != (raw.errno > 0) {
            return Err(Malformed::Field("status, length and error number contradict each other"));
        }
        if !is_position(raw.offset, length) {
            return Err(Malformed::Field("no position in a file"));
        }
        let first = raw.offset / BLOCK_BYTES as u64;
        let is_bad = |index: &usize| raw.bad[index / 64] & 1 << (index % 64) != 0;
        let bad = (0..BAD_WORDS * 64).filter(is_bad).map(|index| first.saturating_add(index as u64)).collect();
        let text_bytes = usize::from(raw.text_bytes);
        let short = Malformed::Short { what: "the words of a reply", needed: text_bytes, got: rest.len() };
        let (text, rest) = rest.split_at_checked(text_bytes).ok_or(short)?;
        let reply = Reply {
            status,
            side,
            operation,
            grew: !failed && raw.flags & FLAG_CHANGED != 0,
            taken: failed && raw.flags & FLAG_CHANGED != 0,
            length,
            errno: raw.errno,
            offset: raw.offset,
            device_address: (raw.device_address != NO_ADDRESS).then_some(raw.device_address),
            bad,
            text: String::from_utf8_lossy(text).into_owned(),
        };
        Ok((reply, rest))
    }
}

/// What a descriptor was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// Bytes of the answer to [`crate::Command::Features`].
pub const FEATURES_BYTES: usize = size_of::<RawFeatures>();

/// As on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFeatures {
    version: u16,
    access: u8,
    page_algorithm: u8,
    block_bytes: u32,
    transfer_bytes_max: u32,
    payload_bytes_max: u32,
    /// Bit n: the algorithm with the number n.
    algorithms: u64,
    mode: [u8; MODE_BYTES],
    capabilities: u64,
    /// 0, from a mount of before there was this field: it knows its own version alone.
    version_least: u16,
    reserved: [u16; 15],
}
const _: () = assert!(size_of::<RawFeatures>() == 96);

/// What a mount knows beyond what each of its version does: a bit each, of which those that are not known here stay as they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Requests that append. (A mount of before there were capabilities may know them without saying so.)
    pub const APPEND: Capabilities = Capabilities(1);
    /// All that are known here.
    pub const ALL: Capabilities = Capabilities::APPEND;

    /// Whether all of these are among them.
    pub fn have(self, others: Capabilities) -> bool {
        self.0 & others.0 == others.0
    }
}

/// What a mount offers. There can be more of it in the future.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Features {
    /// Version of the messages; the latest that the mount knows.
    pub version: u16,
    /// The first that it still knows: all from this one to that are understood.
    pub version_least: u16,
    /// What it knows beyond them.
    pub capabilities: Capabilities,
    /// What this descriptor may do.
    pub access: Access,
    /// The checksum that pages have in memory: blocks are forwarded with it and nothing is computed. CRC-64 if it is one that is not known here.
    pub page_algorithm: Algorithm,
    /// Most bytes of one request.
    pub transfer_bytes_max: usize,
    /// Checksums that can be asked for.
    pub algorithms: Vec<Algorithm>,
    /// The store's protection mode, in the words of its options; empty if it is not known. At most 32 bytes.
    pub mode: String,
}

impl Features {
    /// What a mount offers that knows all that is known here.
    pub fn all(access: Access, page_algorithm: Algorithm, mode: String) -> Features {
        Features {
            version: VERSION,
            version_least: VERSION_LEAST,
            capabilities: Capabilities::ALL,
            access,
            page_algorithm,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            algorithms: Algorithm::ALL.to_vec(),
            mode,
        }
    }

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut mode = [0; MODE_BYTES];
        let length = self.mode.len().min(MODE_BYTES);
        mode[..length].copy_from_slice(&self.mode.as_bytes()[..length]);
        let raw = RawFeatures {
            version: self.version,
            access: u8::from(self.access.read) | u8::from(self.access.write) << 1,
            page_algorithm: self.page_algorithm.id(),
            block_bytes: BLOCK_BYTES as u32,
            transfer_bytes_max: self.transfer_bytes_max as u32,
            payload_bytes_max: crate::PAYLOAD_BYTES_MAX as u32,
            algorithms: self.algorithms.iter().fold(0, |bits, algorithm| bits | 1 << algorithm.id()),
            mode,
            capabilities: self.capabilities.0,
            version_least: self.version_least,
            reserved: [0; 15],
        };
        raw.as_bytes().to_vec()
    }

    /// The answer's fields. A newer mount may know algorithms that are not known here; they are left out.
    ///
    /// # Errors
    /// See [`Malformed`]: one is a mount that does not know the version that is spoken here.
    pub fn decode(bytes: &[u8]) -> Result<Features, Malformed> {
        let short = Malformed::Short { what: "features", needed: FEATURES_BYTES, got: bytes.len() };
        let (raw, _) = RawFeatures::read_from_prefix(bytes).map_err(|_| short)?;
        let version_least = if raw.version_least == 0 { raw.version } else { raw.version_least };
        if !(version_least..=raw.version).contains(&VERSION) {
            return Err(Malformed::Version(raw.version));
        }
        if raw.block_bytes != BLOCK_BYTES as u32 {
            return Err(Malformed::Field("blocks of another size"));
        }
        let transfer_bytes_max = usize::try_from(raw.transfer_bytes_max).unwrap_or(usize::MAX);
        if transfer_bytes_max < TRANSFER_BYTES_LEAST {
            return Err(Malformed::Field("transfers of an impossible size"));
        }
        let known = Algorithm::ALL.into_iter().filter(|algorithm| raw.algorithms & 1 << algorithm.id() != 0);
        let end = raw.mode.iter().position(|byte| *byte == 0).unwrap_or(MODE_BYTES);
        Ok(Features {
            version: raw.version,
            version_least,
            capabilities: Capabilities(raw.capabilities),
            access: Access { read: raw.access & 1 != 0, write: raw.access & 2 != 0 },
            page_algorithm: Algorithm::parse(raw.page_algorithm).unwrap_or(Algorithm::Crc64Nvme),
            // A mount that takes more is asked for no more than is known here.
            transfer_bytes_max: transfer_bytes_max.min(TRANSFER_BYTES_MAX),
            algorithms: known.collect(),
            mode: String::from_utf8_lossy(&raw.mode[..end]).into_owned(),
        })
    }
}
