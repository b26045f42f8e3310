//! System calls.
//!
//! All `unsafe` of this crate is here. Messages are made and understood by [`holdfast_interface`].

use holdfast_interface::{
    Command, FEATURES_BYTES, Features, PAYLOAD_BYTES_MAX, REPLY_BYTES, REQUEST_BYTES, Reply, Request, TEXT_BYTES_MAX,
    blocks,
};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Least payload of a request: room for an error in words.
const PAYLOAD_BYTES_MIN: usize = REPLY_BYTES + TEXT_BYTES_MAX;

/// A request with what follows it, in the room that its reply is put into.
pub(crate) struct Payload {
    bytes: Vec<u8>,
    /// Of the request.
    filled: usize,
}

impl Payload {
    /// For a request with `request_bytes` behind its head, and a reply with `reply_bytes`.
    pub(crate) fn new(request: &Request, request_bytes: usize, reply_bytes: usize) -> Payload {
        let size = (REQUEST_BYTES + request_bytes).max(REPLY_BYTES + reply_bytes);
        let mut bytes = vec![0; size.clamp(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX)];
        bytes[..REQUEST_BYTES].copy_from_slice(&request.encode());
        Payload { bytes, filled: REQUEST_BYTES }
    }

    /// The next bytes of the request, to be filled.
    pub(crate) fn extend(&mut self, length: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += length;
        &mut self.bytes[start..self.filled]
    }

    /// Asks.
    pub(crate) fn ask(&mut self, fd: BorrowedFd<'_>, command: Command) -> io::Result<&[u8]> {
        exchange(fd, command, &mut self.bytes)?;
        Ok(&self.bytes)
    }
}

fn exchange(fd: BorrowedFd<'_>, command: Command, payload: &mut [u8]) -> io::Result<()> {
    let number = command.number(payload.len());
    loop {
        // SAFETY: the number says that so many bytes are read and written, and `payload` has as many.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as libc::Ioctl, payload.as_mut_ptr()) };
        match result {
            0 => return Ok(()),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            // Another file system's idea of this number.
            _ => return Err(io::Error::from_raw_os_error(libc::ENOTTY)),
        }
    }
}

/// Most bytes, up to `length`, that go in one ioctl beside their checksums; whole blocks, but for the ends of the transfer.
pub(crate) fn inline_bytes(offset: u64, length: usize, digest: usize) -> usize {
    const HEAD: usize = if REPLY_BYTES > REQUEST_BYTES { REPLY_BYTES } else { REQUEST_BYTES };
    let fits = |bytes: usize| HEAD + blocks(offset, bytes) * digest + bytes <= PAYLOAD_BYTES_MAX;
    let ends = holdfast_interface::pieces(offset, length).map(|piece| piece.range.end);
    ends.take_while(|&end| fits(end)).last().unwrap_or(0)
}

/// Asks what the mount offers.
pub(crate) fn features(fd: BorrowedFd<'_>) -> io::Result<Features> {
    let mut bytes = [0; FEATURES_BYTES];
    exchange(fd, Command::Features, &mut bytes)?;
    Features::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))
}

/// A request about `length` bytes was refused as one that makes no sense: whether the mount takes fewer in one. `most` is lowered to that.
pub(crate) fn lower(fd: BorrowedFd<'_>, length: usize, most: &mut usize) -> bool {
    let taken = features(fd).map_or(*most, |features| features.transfer_bytes_max);
    *most = taken.min(*most);
    *most < length
}

/// A reply's head, and what follows it.
pub(crate) fn reply(bytes: &[u8]) -> Result<(Reply, &[u8]), holdfast_interface::Malformed> {
    Reply::decode(bytes)
}

/// This process has been refused what [`flush_mapped`] does (seccomp). That is never taken back.
static FLUSH_REFUSED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_flush_refused() -> bool {
    FLUSH_REFUSED.load(Ordering::Relaxed)
}

/// What became of [`flush_mapped`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flush {
    Done,
    /// This process may not do that. The kernel does it by itself for an ordinary read or write.
    Refused,
}

/// Has the kernel hand down what was stored through mappings of the range, which it keeps in pages of its own.
pub(crate) fn flush_mapped(fd: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Flush> {
    const ALL: libc::c_uint =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is passed.
    let result = unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, length as i64, ALL) };
    if result == 0 {
        return Ok(Flush::Done);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => {
            FLUSH_REFUSED.store(true, Ordering::Relaxed);
            Ok(Flush::Refused)
        }
        _ => Err(of_no_mount(error)),
    }
}

/// What has no positions (a pipe, a socket, a terminal) is refused before it is asked whether it is in a mount.
fn of_no_mount(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESPIPE) => io::Error::from_raw_os_error(libc::ENOTTY),
        _ => error,
    }
}

/// Has the kernel drop pages that a mapping had, which are old now. A page that is still mapped stays.
pub(crate) fn drop_mapped(fd: BorrowedFd<'_>, offset: u64, length: usize) {
    const PAGE: u64 = 4096;
    // Only whole pages are dropped.
    let start = offset / PAGE * PAGE;
    let end = (offset + length as u64).next_multiple_of(PAGE);
    // SAFETY: no memory is passed.
    let _ =
        unsafe { libc::posix_fadvise(fd.as_raw_fd(), start as i64, (end - start) as i64, libc::POSIX_FADV_DONTNEED) };
}

/// The kernel asks for the file's size and so knows it from now on.
pub(crate) fn learn_size(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zeros are a valid `stat`, which fstat may overwrite.
    let result = unsafe { libc::fstat(fd.as_raw_fd(), &mut std::mem::zeroed()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Up to where the process may write, in bytes (RLIMIT_FSIZE).
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the result has its type.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    // One that cannot be asked for is not kept, as the mount does not know it.
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// An ordinary read. By the system call itself: a library preloaded into this process may have a preadv that ends up here.
pub(crate) fn read(fd: BorrowedFd<'_>, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
    loop {
        // The halves of the position; where a long has 64 bits, the first is all of it.
        let (low, high) = (offset as libc::c_long, (offset >> 32) as libc::c_long);
        // SAFETY: `IoSliceMut` has the layout of `iovec`, and each names memory that is borrowed uniquely.
        let result = unsafe {
            libc::syscall(
                libc::SYS_preadv,
                fd.as_raw_fd() as libc::c_long,
                buffers.as_mut_ptr(),
                buffers.len() as libc::c_long,
                low,
                high,
            )
        };
        match usize::try_from(result) {
            Ok(length) => return Ok(length),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(of_no_mount(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_goes_inline_ends_at_blocks() {
        for digest in [0, 4, 8, 32] {
            assert_eq!(inline_bytes(0, 1 << 20, digest), 3 * 4096);
            assert_eq!(
                inline_bytes(100, 1 << 20, digest),
                4 * 4096 - 100 - if 4 * digest + 96 + 4 * 4096 - 100 > PAYLOAD_BYTES_MAX { 4096 } else { 0 }
            );
            assert_eq!(inline_bytes(4000, 1 << 20, digest), 96 + 3 * 4096);
            assert_eq!(inline_bytes(4095, 2, digest), 2);
            assert_eq!(inline_bytes(0, 13_000, digest), 13_000);
            assert_eq!(inline_bytes(5, 0, digest), 0);
        }
    }

    #[test]
    fn what_is_no_mount_of_ours_says_so() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(features(file.as_fd()).is_err());
    }
}
