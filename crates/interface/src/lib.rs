//! The messages of the checksum-aware interface: reads and writes with a checksum per block, as ioctls on an ordinary descriptor
//! of a file in a mount. Defined once, for the mount that answers and for the library that asks; no I/O here.
//!
//! A *block* is 4 KiB of the file, counted from its start. A transfer of any offset and length has one checksum for each block that
//! it touches; at its ends, where it covers a part of a block, the checksum is of just the bytes transferred.
//!
//! | ioctl | number | to the mount | from the mount |
//! |---|---|---|---|
//! | [`Command::Features`] | `_IOR('H', 16, [u8; 96])` | – | [`Features`] |
//! | [`Command::Read`] | `_IOWR('H', 17, size)` | [`Request`] | [`Reply`], checksums, bytes |
//! | [`Command::Sums`] | `_IOWR('H', 18, size)` | [`Request`] | [`Reply`], checksums |
//! | [`Command::Write`] | `_IOWR('H', 19, size)` | [`Request`], checksums, bytes | [`Reply`] |
//! | [`Command::WriteFrom`] | `_IOWR('H', 20, size)` | [`Request`] with the bytes' address, checksums | [`Reply`] |
//! | [`Command::Bad`] | `_IOWR('H', 21, size)` | [`Request`]: from `offset` on | [`Reply`], as [`encode_blocks`] makes it |
//!
//! `size` is the caller's choice and part of the number: the kernel carries that many bytes in and at most that many out, 16,383
//! at most ([`PAYLOAD_BYTES_MAX`]). Integers are in the machine's byte order, checksums as [`Checksum::as_bytes`] has them. The ioctl
//! returns 0 whenever there is a reply, also one that tells an error; -1 with ENOTTY is no mount of Holdfast's, with EOPNOTSUPP one
//! that does not offer the interface.
//!
//! What comes from the other side is foreign: every decoder checks sizes, versions, reserved bytes and ranges.
//!
//! What the crates for programs have in common is here as well: several buffers as one ([`parts`]), and the asynchronous form of calls ([`Workers`]).

mod blocks;
pub mod parts;
mod reply;
mod request;
pub mod run;
#[cfg(test)]
mod tests;
pub mod words;
mod workers;

pub use blocks::{BLOCK_BYTES, Piece, blocks, pieces};
pub use reply::{
    Access, BLOCKS_MAX, Capabilities, FEATURES_BYTES, Features, Operation, REPLY_BYTES, Reply, Side, Status,
    TEXT_BYTES_MAX,
};
pub use request::{REQUEST_BYTES, Request};
pub use workers::{Full, Pending, Workers};

use holdfast_integrity::{Algorithm, Checksum};

/// Version of the messages. A mount answers those that it knows.
pub const VERSION: u16 = 1;
/// The first version that a mount still answers.
pub const VERSION_LEAST: u16 = 1;
/// Most bytes that the kernel carries in one ioctl of a FUSE file system, in each direction (14 bits of the ioctl's number).
pub const PAYLOAD_BYTES_MAX: usize = (1 << 14) - 1;
/// Most bytes of a file that one request is about.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// What every mount takes in one request: what goes in one ioctl anyway.
pub const TRANSFER_BYTES_LEAST: usize = PAYLOAD_BYTES_MAX + 1;

/// What is asked; the number within the ioctl's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Command {
    /// What the mount offers, and what the descriptor may do.
    Features = 16,
    /// Bytes and their checksums, as of one moment.
    Read = 17,
    /// Checksums alone, of bytes that the caller has got by read(2).
    Sums = 18,
    /// Takes bytes if they have their checksums.
    Write = 19,
    /// The same with bytes that the mount fetches from the caller's memory.
    WriteFrom = 20,
    /// Blocks that were given up since they were written, for the caller to write again.
    Bad = 21,
}

const IOC_TYPE: u32 = b'H' as u32;

impl Command {
    const ALL: [Command; 6] =
        [Command::Features, Command::Read, Command::Sums, Command::Write, Command::WriteFrom, Command::Bad];

    /// The ioctl's number for a payload of so many bytes, which are at most [`PAYLOAD_BYTES_MAX`].
    pub const fn number(self, payload_bytes: usize) -> u32 {
        assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "the size has 14 bits");
        // _IOC of <asm-generic/ioctl.h>: direction (read is 2, write 1) << 30, size << 16, type << 8, number.
        let direction = if matches!(self, Command::Features) { 2 } else { 3 };
        direction << 30 | (payload_bytes as u32) << 16 | IOC_TYPE << 8 | self as u32
    }

    /// The command that an ioctl's number has, whatever its size; `None` if it is none of these.
    pub fn of(number: u32) -> Option<Command> {
        let size = (number >> 16) as usize & PAYLOAD_BYTES_MAX;
        Command::ALL.into_iter().find(|command| command.number(size) == number)
    }
}

/// A message that makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than what it should hold.
    #[error("{what} of {got} bytes: {needed} are needed")]
    Short {
        /// What.
        what: &'static str,
        /// In bytes.
        needed: usize,
        /// In bytes.
        got: usize,
    },
    /// Of a version that is not known here.
    #[error("version {0} of the interface is not known")]
    Version(u16),
    /// The number of an algorithm that is not known here.
    #[error("{0}")]
    Algorithm(#[from] holdfast_integrity::UnknownAlgorithm),
    /// A field with a value that it cannot have.
    #[error("{0}")]
    Field(&'static str),
}

/// `count` checksums of one algorithm at the start of `bytes`; also gives what follows them.
///
/// # Errors
/// [`Malformed::Short`].
pub fn decode_sums(algorithm: Algorithm, count: usize, bytes: &[u8]) -> Result<(Vec<Checksum>, &[u8]), Malformed> {
    let each = algorithm.digest_len();
    let short = Malformed::Short { what: "checksums", needed: count.saturating_mul(each), got: bytes.len() };
    let needed = count.checked_mul(each).filter(|&needed| needed <= bytes.len()).ok_or(short)?;
    let (sums, rest) = bytes.split_at(needed);
    if each == 0 {
        return Ok((vec![Checksum::none(); count], rest));
    }
    let wrong = |_| Malformed::Field("a checksum of another length");
    let sums = sums.chunks_exact(each).map(|sum| Checksum::from_bytes(algorithm, sum).map_err(wrong));
    Ok((sums.collect::<Result<_, _>>()?, rest))
}

/// Whether so many bytes from there on can be in a file: positions are signed.
fn is_position(offset: u64, length: usize) -> bool {
    offset.checked_add(length as u64).is_some_and(|end| end <= i64::MAX as u64)
}

/// How many blocks [`encode_blocks`] puts into so many bytes.
pub const fn blocks_fitting(room: usize) -> usize {
    (room / size_of::<u64>()).saturating_sub(1)
}

/// A count, and as many block numbers.
pub fn encode_blocks(blocks: &[u64]) -> Vec<u8> {
    let count = blocks.len() as u64;
    std::iter::once(&count).chain(blocks).flat_map(|number| number.to_ne_bytes()).collect()
}

/// What [`encode_blocks`] made, at the start of `bytes`.
///
/// # Errors
/// [`Malformed`]: not as many as the count says, or not ascending.
pub fn decode_blocks(bytes: &[u8]) -> Result<Vec<u64>, Malformed> {
    let (words, _) = bytes.as_chunks::<8>();
    let mut numbers = words.iter().map(|word| u64::from_ne_bytes(*word));
    let short = |needed: u64| Malformed::Short {
        what: "a list of blocks",
        needed: usize::try_from(needed).unwrap_or(usize::MAX),
        got: bytes.len(),
    };
    let count = numbers.next().ok_or_else(|| short(8))?;
    let wanted = usize::try_from(count).ok().filter(|&count| count < words.len()).ok_or_else(|| short(count))?;
    let blocks: Vec<u64> = numbers.take(wanted).collect();
    if !blocks.is_sorted_by(|a, b| a < b) {
        return Err(Malformed::Field("blocks that do not ascend"));
    }
    Ok(blocks)
}
