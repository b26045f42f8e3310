//! Transfers on a descriptor, for callers that have nothing else: the C library. Nothing is asked beforehand; a file in no mount that
//! offers the interface is [`crate::Kind::Unsupported`] at its first transfer.

use crate::error::{Error, Result};
use crate::read::Read;
use crate::transport::{self, Payload};
use crate::write::{self, Appended, Write};
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{
    BLOCK_BYTES, Command, Operation, PAYLOAD_BYTES_MAX, REPLY_BYTES, Request, Status, TRANSFER_BYTES_MAX,
    blocks_fitting, decode_blocks,
};
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

/// A mount has refused to fetch from this process, and the next would not do otherwise. Only a long write's way depends on it.
static UNREACHABLE: AtomicBool = AtomicBool::new(false);

/// The last block with a position in a file.
const BLOCK_MAX: u64 = i64::MAX as u64 / BLOCK_BYTES as u64;

/// See [`crate::File::read_vectored_at_with_sums`].
///
/// # Errors
/// See [`Error`].
pub fn read_at(
    fd: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
    offset: u64,
    algorithm: Algorithm,
    sums: &mut Vec<Checksum>,
) -> Result<usize> {
    Read { fd, buffers, offset, algorithm, careful: false, most: TRANSFER_BYTES_MAX, touched: 0 }.run(sums)
}

/// See [`crate::File::write_vectored_at_with_sums`]; without `sums`, they are made here.
///
/// # Errors
/// See [`Error`].
pub fn write_at(
    fd: BorrowedFd<'_>,
    buffers: &[IoSlice<'_>],
    offset: u64,
    algorithm: Algorithm,
    sums: Option<&[Checksum]>,
) -> Result<usize> {
    let (most, checked) = (Cell::new(TRANSFER_BYTES_MAX), Cell::new(false));
    let write = Write { fd, buffers, offset, algorithm, append: None, unreachable: &UNREACHABLE, most, checked };
    match sums {
        Some(sums) => write.run(sums),
        None => write.run_summed(),
    }
}

/// See [`crate::File::append`].
///
/// # Errors
/// See [`Error`].
pub fn append_part(fd: BorrowedFd<'_>, buffer: &[u8], algorithm: Algorithm) -> Result<(u64, usize)> {
    write::append_part(fd, buffer, algorithm, &UNREACHABLE, TRANSFER_BYTES_MAX)
}

/// Appends all of the buffers, in one request that nobody else's bytes come between; nothing of them if that takes more than one
/// ([`Appended::TooLong`]), or if they would go beyond [`file_size_limit`] (EFBIG).
///
/// # Errors
/// See [`crate::File::append`].
pub fn append(fd: BorrowedFd<'_>, buffers: &[IoSlice<'_>], algorithm: Algorithm) -> Result<Appended> {
    write::append(fd, buffers, algorithm, &UNREACHABLE, TRANSFER_BYTES_MAX)
}

/// Up to where this process may write, in bytes (RLIMIT_FSIZE): what goes beyond is EFBIG, and nothing of it is written. No signal is sent.
pub fn file_size_limit() -> u64 {
    transport::file_size_limit()
}

/// Whether this process has been refused what a write needs (sync_file_range, by seccomp): its writes are EPERM, as the kernel would not hand down
/// what mappings have stored before. It does so by itself for ordinary writes.
pub fn is_write_refused() -> bool {
    transport::is_flush_refused()
}

/// See [`crate::File::bad_blocks`]; up to `limit` of them, from the block `first` on.
///
/// # Errors
/// See [`Error`].
pub fn bad_blocks(fd: BorrowedFd<'_>, first: u64, limit: usize) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    let mut next = first;
    while all.len() < limit {
        let room = PAYLOAD_BYTES_MAX - REPLY_BYTES;
        // Of blocks that no file has, the last that one could have is asked for.
        let offset = next.min(BLOCK_MAX) * BLOCK_BYTES as u64;
        let request =
            Request { algorithm: Algorithm::None, verify: false, append: false, offset, length: 0, address: 0 };
        let mut payload = Payload::new(&request, 0, room);
        let reply = payload.ask(fd, Command::Bad).map_err(|error| Error::system(Operation::Write, offset, &error))?;
        let malformed = |error| Error::malformed(Operation::Write, offset, &error);
        let (reply, rest) = transport::reply(reply).map_err(malformed)?;
        if reply.status != Status::Done {
            return Err(Error::replied(reply));
        }
        let blocks = decode_blocks(rest).map_err(malformed)?;
        let full = blocks.len() == blocks_fitting(room);
        let last = blocks.last().copied();
        all.extend(blocks.into_iter().filter(|&block| block >= next));
        // A mount that goes backwards would keep this going for ever.
        match last.filter(|&last| full && last >= next) {
            Some(last) => next = last.saturating_add(1),
            None => break,
        }
    }
    all.truncate(limit);
    Ok(all)
}

impl Error {
    /// An error of the system's that a caller of these functions has found itself.
    pub fn from_errno(operation: Operation, offset: u64, errno: i32, text: &str) -> Error {
        Error { text: text.to_string(), ..Error::system(operation, offset, &io::Error::from_raw_os_error(errno)) }
    }
}
