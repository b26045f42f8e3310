//! What went wrong, where, and with which blocks.

use holdfast_interface::{Malformed, Operation, Reply, Side, Status};
use std::borrow::Cow;
use std::io;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a transfer failed. There can be more reasons in the future: one that you do not know is like [`Kind::System`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Bytes changed in memory: here, in the mount's process, or on the way between. See [`Error::in_transfer`].
    Memory,
    /// Bytes on the device are not what was written and there is no good copy, or the device failed.
    Device,
    /// The file is in no Holdfast mount, or in one that does not offer the interface (mount option `cache=kernel`), or in another version, or without
    /// what was asked for (an algorithm, appends). [`Error::words`] says which.
    Unsupported,
    /// Any other error of the system.
    System,
}

/// A failed transfer. There can be more to say of it in the future.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{} at byte {offset}: {}{}", match operation { Operation::Read => "read", Operation::Write => "write" }, self.words(), Blocks(blocks))]
pub struct Error {
    /// Why.
    pub kind: Kind,
    /// What was being done.
    pub operation: Operation,
    /// The bytes of this transfer did not have their checksum where they arrived: of a write nothing in the request was taken. Otherwise
    /// what is bad was there before, and is perhaps told this once only, as by a synchronous write (`O_DSYNC`) whose own bytes are good, and of
    /// which [`Error::done`] are in the file: a repetition that succeeds mends nothing.
    pub in_transfer: bool,
    /// Where in the file the failed part of the transfer begins, in bytes. Of an append whose bytes were taken, where they are.
    pub offset: u64,
    /// Bytes of the transfer that were done before, from its start on. Of a read that meets a bad block, all that are before the block. Of a
    /// write whose bytes were taken and could not be made durable, as the descriptor asks (`O_SYNC`, `O_DSYNC`), those of the failed part as well: they
    /// are in the file, but perhaps not on the disk. (A mount of before it told that leaves them out.)
    pub done: usize,
    /// The blocks that are bad, ascending; of 4 KiB, counted from the start of the file. Empty where that is not known, and where a device failed to write. A read has all of the transfer that are bad, or those that it finds within a second: a disk that fails may take long for each. Of what had gone bad before
    /// (not [`Error::in_transfer`]) a write has also those beside its own bytes, 1024 at most.
    pub blocks: Vec<u64>,
    /// The 4 KiB block of the device that the first of them is in, or that it failed to write, where one is concerned and known.
    pub device_address: Option<u64>,
    /// The system's error number.
    pub errno: i32,
    /// In words; empty where there is nothing to say beyond the number. [`Error::words`] has both.
    pub text: String,
}

struct Blocks<'a>(&'a [u64]);

impl std::fmt::Display for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (blocks {:?})", self.0) }
    }
}

impl Error {
    /// What happened, in words. The system's own words for its numbers are asked for here and not before, as they are none that a
    /// signal handler may ask for.
    pub fn words(&self) -> Cow<'_, str> {
        match &self.text {
            text if text.is_empty() && self.errno == libc::ENOTTY => "the file is in no Holdfast mount".into(),
            // Nothing else of a Holdfast mount's is refused without words; what another file system means is not known.
            text if text.is_empty() && self.errno == libc::EOPNOTSUPP => {
                "the file's mount has no checksums for programs (it has cache=kernel, or is none of Holdfast's)".into()
            }
            text if text.is_empty() => io::Error::from_raw_os_error(self.errno).to_string().into(),
            text => text.into(),
        }
    }

    pub(crate) fn system(operation: Operation, offset: u64, error: &io::Error) -> Error {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let kind = match errno {
            libc::ENOTTY | libc::EOPNOTSUPP => Kind::Unsupported,
            _ => Kind::System,
        };
        let text = if error.raw_os_error().is_some() { String::new() } else { error.to_string() };
        Error {
            kind,
            operation,
            in_transfer: false,
            offset,
            done: 0,
            blocks: Vec::new(),
            device_address: None,
            errno,
            text,
        }
    }

    pub(crate) fn invalid(operation: Operation, offset: u64, text: &str) -> Error {
        Error::from_errno(operation, offset, libc::EINVAL, text)
    }

    pub(crate) fn malformed(operation: Operation, offset: u64, malformed: &Malformed) -> Error {
        let error = io::Error::from_raw_os_error(libc::EPROTO);
        Error { text: format!("the mount's reply: {malformed}"), ..Error::system(operation, offset, &error) }
    }

    /// Bytes in this process do not have their checksum.
    pub(crate) fn here(operation: Operation, offset: u64, blocks: Vec<u64>, text: &str) -> Error {
        Error {
            kind: Kind::Memory,
            operation,
            in_transfer: true,
            offset,
            done: 0,
            blocks,
            device_address: None,
            errno: libc::EIO,
            text: text.to_string(),
        }
    }

    pub(crate) fn replied(reply: Reply) -> Error {
        let kind = match (reply.status, reply.side) {
            (Status::Mismatch | Status::Damaged, Some(Side::Memory)) => Kind::Memory,
            (Status::Mismatch | Status::Damaged, Some(Side::Device)) => Kind::Device,
            _ => Kind::System,
        };
        Error {
            kind,
            operation: reply.operation,
            in_transfer: reply.status == Status::Mismatch,
            offset: reply.offset,
            done: 0,
            text: reply.text,
            blocks: reply.bad,
            device_address: reply.device_address,
            errno: reply.errno,
        }
    }

    pub(crate) fn after(self, done: usize) -> Error {
        Error { done, ..self }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are bad bytes in memory; only the first may be tried again.
    #[test]
    fn a_bad_transfer_is_told_from_damage() {
        let replied = |status| {
            let done = Reply::done(Operation::Write, 0, 0, false);
            Error::replied(Reply { status, side: Some(Side::Memory), errno: libc::EIO, ..done })
        };
        let (mismatch, damaged) = (replied(Status::Mismatch), replied(Status::Damaged));
        assert_eq!((mismatch.kind, mismatch.in_transfer), (Kind::Memory, true));
        assert_eq!((damaged.kind, damaged.in_transfer), (Kind::Memory, false));
        assert!(Error::here(Operation::Write, 0, vec![0], "").in_transfer);
        assert!(!Error::from_errno(Operation::Write, 0, libc::EIO, "").in_transfer);
    }

    #[test]
    fn what_is_not_offered_says_why() {
        let words = |errno| Error::from_errno(Operation::Read, 0, errno, "").words().into_owned();
        assert!(words(libc::EOPNOTSUPP).contains("cache=kernel"), "not only that an operation is not supported");
        let other = Error::from_errno(Operation::Read, 0, libc::EOPNOTSUPP, "version 9 of the interface is not known");
        assert_eq!(other.words(), "version 9 of the interface is not known", "nor another reason");
        assert!(words(libc::ENOTTY).contains("in no Holdfast mount"));
    }
}
