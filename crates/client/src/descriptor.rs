//! Transfers on a descriptor, for callers that have nothing else: the C library. Nothing is asked beforehand; a file in no mount that
//! offers the interface is [`crate::Kind::Unsupported`] at its first transfer.

use crate::error::{Error, Result};
use crate::read::Read;
use crate::write::Write;
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::Operation;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

/// A mount has refused to fetch from this process, and the next would not do otherwise. Only a long write's way depends on it.
static UNREACHABLE: AtomicBool = AtomicBool::new(false);

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
    Read { fd, buffers, offset, algorithm, careful: false }.run(sums)
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
    let write = Write { fd, buffers, offset, algorithm, unreachable: &UNREACHABLE };
    match sums {
        Some(sums) => write.run(sums),
        None => write.run(&write.sums()),
    }
}

impl Error {
    /// An error of the system's that a caller of these functions has found itself.
    pub fn from_errno(operation: Operation, offset: u64, errno: i32, text: &str) -> Error {
        Error { text: text.to_string(), ..Error::system(operation, offset, &io::Error::from_raw_os_error(errno)) }
    }
}
