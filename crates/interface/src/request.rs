//! What is asked of the mount.

use crate::{Malformed, TRANSFER_BYTES_MAX, VERSION, is_position};
use holdfast_integrity::Algorithm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a request before its checksums.
pub const REQUEST_BYTES: usize = size_of::<RawRequest>();
/// In `flags`: do not trust a page's own checksum, verify.
const FLAG_VERIFY: u8 = 1;
/// In `flags`: write at the end of the file.
const FLAG_APPEND: u8 = 2;
const FLAGS: u8 = FLAG_VERIFY | FLAG_APPEND;

/// As on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRequest {
    version: u16,
    algorithm: u8,
    flags: u8,
    length: u32,
    offset: u64,
    address: u64,
    reserved: [u64; 3],
}
const _: () = assert!(size_of::<RawRequest>() == 48);

/// A transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Of the checksums beside the bytes.
    pub algorithm: Algorithm,
    /// For reads: the mount verifies each page before it answers, and reads a bad one again from below. Without, a checksum that is
    /// the page's own comes along unverified, for the caller to verify.
    pub verify: bool,
    /// For writes: to the end of the file, wherever that is. There is a checksum for each 4 KiB of the bytes, counted from the first, and
    /// blocks of the reply are counted so if the bytes do not have them. The reply's position is where the bytes are.
    pub append: bool,
    /// Position in the file, in bytes; of an append the greatest that it may get, or it is refused with EFBIG.
    pub offset: u64,
    /// In bytes, [`TRANSFER_BYTES_MAX`] at most.
    pub length: usize,
    /// Where the caller has the bytes, for [`crate::Command::WriteFrom`]; otherwise 0.
    pub address: u64,
}

impl Request {
    /// As it is sent.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let raw = RawRequest {
            version: VERSION,
            algorithm: self.algorithm.id(),
            flags: if self.verify { FLAG_VERIFY } else { 0 } | if self.append { FLAG_APPEND } else { 0 },
            length: self.length as u32,
            offset: self.offset,
            address: self.address,
            reserved: [0; 3],
        };
        zerocopy::transmute!(raw)
    }

    /// A request and what follows it.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(Request, &[u8]), Malformed> {
        let short = Malformed::Short { what: "a request", needed: REQUEST_BYTES, got: bytes.len() };
        let (raw, rest) = RawRequest::read_from_prefix(bytes).map_err(|_| short)?;
        if raw.version != VERSION {
            return Err(Malformed::Version(raw.version));
        }
        if raw.flags & !FLAGS != 0 || raw.reserved != [0; 3] {
            return Err(Malformed::Field("a reserved field is not zero"));
        }
        let length = usize::try_from(raw.length).unwrap_or(usize::MAX);
        if length > TRANSFER_BYTES_MAX {
            return Err(Malformed::Field("more bytes than one request is about"));
        }
        if !is_position(raw.offset, length) {
            return Err(Malformed::Field("no position in a file"));
        }
        let request = Request {
            algorithm: Algorithm::parse(raw.algorithm)?,
            verify: raw.flags & FLAG_VERIFY != 0,
            append: raw.flags & FLAG_APPEND != 0,
            offset: raw.offset,
            length,
            address: raw.address,
        };
        Ok((request, rest))
    }
}
