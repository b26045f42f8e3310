//! The bytes of the protocol, without any meaning: magic numbers, headers, and how they are put together. Numbers are big-endian.

/// Greeting, first half ("NBDMAGIC").
pub(super) const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Greeting, second half, and before each option ("IHAVEOPT").
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Longest string that the protocol knows: names, messages.
pub(super) const LONGEST_STRING: usize = 4096;

pub(super) mod handshake {
    pub(in crate::nbd) const FIXED_NEWSTYLE: u16 = 1;
    pub(in crate::nbd) const NO_ZEROES: u16 = 2;
}

pub(super) mod transmission {
    pub(in crate::nbd) const HAS_FLAGS: u16 = 1;
    pub(in crate::nbd) const READ_ONLY: u16 = 1 << 1;
    pub(in crate::nbd) const SEND_FLUSH: u16 = 1 << 2;
    pub(in crate::nbd) const SEND_FUA: u16 = 1 << 3;
    pub(in crate::nbd) const SEND_TRIM: u16 = 1 << 5;
    pub(in crate::nbd) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in crate::nbd) const SEND_DF: u16 = 1 << 7;
    pub(in crate::nbd) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in crate::nbd) const SEND_CACHE: u16 = 1 << 10;
    pub(in crate::nbd) const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub(super) mod option {
    pub(in crate::nbd) const EXPORT_NAME: u32 = 1;
    pub(in crate::nbd) const ABORT: u32 = 2;
    pub(in crate::nbd) const LIST: u32 = 3;
    pub(in crate::nbd) const STARTTLS: u32 = 5;
    pub(in crate::nbd) const INFO: u32 = 6;
    pub(in crate::nbd) const GO: u32 = 7;
    pub(in crate::nbd) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::nbd) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::nbd) const SET_META_CONTEXT: u32 = 10;
}

pub(super) mod reply {
    pub(in crate::nbd) const ACK: u32 = 1;
    pub(in crate::nbd) const SERVER: u32 = 2;
    pub(in crate::nbd) const INFO: u32 = 3;
    pub(in crate::nbd) const META_CONTEXT: u32 = 4;
    pub(in crate::nbd) const ERR_UNSUP: u32 = (1 << 31) + 1;
    #[cfg(not(feature = "tls"))]
    pub(in crate::nbd) const ERR_PLATFORM: u32 = (1 << 31) + 4;
    #[cfg(feature = "tls")]
    pub(in crate::nbd) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(in crate::nbd) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(in crate::nbd) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(in crate::nbd) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(in crate::nbd) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

pub(super) mod info {
    pub(in crate::nbd) const EXPORT: u16 = 0;
    pub(in crate::nbd) const NAME: u16 = 1;
    pub(in crate::nbd) const DESCRIPTION: u16 = 2;
    pub(in crate::nbd) const BLOCK_SIZE: u16 = 3;
}

pub(super) mod flag {
    pub(in crate::nbd) const FUA: u16 = 1;
    pub(in crate::nbd) const NO_HOLE: u16 = 1 << 1;
    pub(in crate::nbd) const DF: u16 = 1 << 2;
    pub(in crate::nbd) const REQ_ONE: u16 = 1 << 3;
    pub(in crate::nbd) const FAST_ZERO: u16 = 1 << 4;
}

pub(super) mod chunk {
    pub(in crate::nbd) const DONE: u16 = 1;
    pub(in crate::nbd) const OFFSET_DATA: u16 = 1;
    pub(in crate::nbd) const OFFSET_HOLE: u16 = 2;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 5;
    pub(in crate::nbd) const ERROR: u16 = (1 << 15) + 1;
}

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    Unknown(u16),
}

impl Command {
    fn of(number: u16) -> Self {
        match number {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    /// The flags that go with it.
    pub(super) fn flags(self) -> u16 {
        flag::FUA
            | match self {
                Command::Read => flag::DF,
                Command::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
                Command::BlockStatus => flag::REQ_ONE,
                _ => 0,
            }
    }

    /// Whether it changes the export.
    pub(super) fn changes(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// A request's header. A write's bytes follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: Command,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

pub(super) const REQUEST_BYTES: usize = 28;

impl Request {
    /// `None` if it does not begin with the magic number: then nobody knows where the next one begins.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(Request {
            flags: fields.u16()?,
            command: Command::of(fields.u16()?),
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
    }
}

/// Takes fields from bytes until there are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (now, later) = self.0.split_at_checked(count)?;
        self.0 = later;
        Some(now)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string after its length of 32 bits.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).ok()?)
    }
}

/// Appends fields.
pub(super) trait Put {
    fn u16(&mut self, value: u16) -> &mut Self;
    fn u32(&mut self, value: u32) -> &mut Self;
    fn u64(&mut self, value: u64) -> &mut Self;
    fn raw(&mut self, bytes: &[u8]) -> &mut Self;
}

impl Put for Vec<u8> {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.extend_from_slice(bytes);
        self
    }
}

/// A reply to an option, with what belongs to it.
pub(super) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    out.u64(OPTION_REPLY_MAGIC).u32(option).u32(kind).u32(payload.len() as u32).raw(payload);
}

/// A simple reply; after a read the bytes follow.
pub(super) fn simple(out: &mut Vec<u8>, error: u32, cookie: u64) {
    out.u32(SIMPLE_REPLY_MAGIC).u32(error).u64(cookie);
}

/// The head of a chunk, whose payload of `length` bytes follows.
pub(super) fn chunk_head(out: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64, length: u32) {
    out.u32(STRUCTURED_REPLY_MAGIC).u16(flags).u16(kind).u64(cookie).u32(length);
}

/// What went wrong, in numbers that all systems share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Errno {
    NotPermitted = 1,
    Io = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
}

/// An error chunk, the last of its reply. The message is cut where it is longer than the protocol allows.
pub(super) fn error_chunk(out: &mut Vec<u8>, cookie: u64, errno: Errno, message: &str) {
    let mut end = message.len().min(LONGEST_STRING);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    chunk_head(out, chunk::DONE, chunk::ERROR, cookie, 6 + end as u32);
    out.u32(errno as u32).u16(end as u16).raw(&message.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_by_hand() {
        let mut bytes = Vec::new();
        bytes.u32(0x2560_9513).u16(5).u16(1).u64(0x0123_4567_89ab_cdef).u64(1 << 40).u32(4096);
        let request = Request::decode(bytes.as_slice().try_into().unwrap()).unwrap();
        let wanted = Request {
            flags: flag::FUA | flag::DF,
            command: Command::Write,
            cookie: 0x0123_4567_89ab_cdef,
            offset: 1 << 40,
            length: 4096,
        };
        assert_eq!(request, wanted);
        bytes[0] ^= 1;
        assert_eq!(Request::decode(bytes.as_slice().try_into().unwrap()), None);
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let mut out = Vec::new();
        error_chunk(&mut out, 1, Errno::Io, &"ä".repeat(3000));
        assert_eq!(out.len(), 20 + 6 + 4096);
        out.clear();
        error_chunk(&mut out, 1, Errno::Io, &format!("x{}", "ä".repeat(3000)));
        assert_eq!(out.len(), 20 + 6 + 4095);
        assert!(std::str::from_utf8(&out[26..]).is_ok());
    }

    #[test]
    fn fields_end_where_the_bytes_do() {
        let mut fields = Fields(&[0, 0, 0, 2, 7, 8, 0, 0, 0, 9, 1]);
        assert_eq!(fields.string(), Some(&[7, 8][..]));
        assert_eq!(fields.string(), None);
        assert_eq!(Fields(&[0xff; 4]).string(), None);
    }
}
