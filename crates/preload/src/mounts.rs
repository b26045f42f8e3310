//! Which files are in a Holdfast mount: asked of the mount once for each device, not for each descriptor.
//!
//! A device's number can be used again after an unmount. A mount that is taken for Holdfast's says so itself at the next transfer
//! ([`forget`]); one that is taken for another's is asked again in the next second.

use crate::sys;
use holdfast_client::{Algorithm, File, Kind, Result};
use libc::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A regular file in a mount that offers the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Of the checksums: the one that goes on as it is in the mount.
    pub(crate) algorithm: Algorithm,
    /// In bytes, as the kernel knows it: it can have become longer or shorter.
    pub(crate) size: u64,
    minor: u32,
}

/// What is known, by the minor number's last bits. 0 is nothing; see [`Verdict`].
static KNOWN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// About the file system with the device number 0:`minor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Verdict {
    minor: u32,
    /// `None`: it is another one's.
    algorithm: Option<Algorithm>,
    /// When; the last 23 bits.
    since_s: u32,
}

const SINCE_MASK: u32 = (1 << 23) - 1;

impl Verdict {
    /// One bit that says that it is one; 23 of the time, 8 of the algorithm (its number + 1), 32 of the device.
    fn encode(self) -> u64 {
        let algorithm = self.algorithm.map_or(0, |algorithm| u64::from(algorithm.id()) + 1);
        1 << 63 | u64::from(self.since_s & SINCE_MASK) << 40 | algorithm << 32 | u64::from(self.minor)
    }

    fn decode(word: u64) -> Option<Verdict> {
        let algorithm = match (word >> 32) as u8 {
            0 => None,
            number => Some(Algorithm::parse(number - 1).ok()?),
        };
        (word >> 63 == 1).then_some(Verdict {
            minor: word as u32,
            algorithm,
            since_s: (word >> 40) as u32 & SINCE_MASK,
        })
    }
}

fn place(minor: u32) -> &'static AtomicU64 {
    &KNOWN[minor as usize % KNOWN.len()]
}

/// What the descriptor is, if it is a regular file in a mount of Holdfast's.
pub(crate) fn file(fd: c_int) -> Option<Held> {
    let status = sys::status(fd, sys::Age::Known)?;
    let (major, minor) = status.device;
    // FUSE has no device; disks have.
    if !status.is_regular || major != 0 {
        return None;
    }
    let known = Verdict::decode(place(minor).load(Ordering::Relaxed)).filter(|known| known.minor == minor);
    let algorithm = match known {
        Some(Verdict { algorithm: Some(algorithm), .. }) => Some(algorithm),
        // In the same second of the clock: for a second at most.
        Some(Verdict { since_s, .. }) if sys::now_s() & SINCE_MASK == since_s => None,
        _ => {
            let algorithm = ask(fd)?;
            let verdict = Verdict { minor, algorithm, since_s: sys::now_s() };
            place(minor).store(verdict.encode(), Ordering::Relaxed);
            algorithm
        }
    };
    algorithm.map(|algorithm| Held { algorithm, size: status.size, minor })
}

/// `None`: it could not be found out, and the next call asks again.
fn ask(fd: c_int) -> Option<Option<Algorithm>> {
    if !sys::is_fuse(fd)? {
        return Some(None);
    }
    // SAFETY: it is open, as it has just told what it is; if another thread closes it now, it is the kernel that says so.
    let file = File::new(unsafe { BorrowedFd::borrow_raw(fd) });
    understood(file.map(|file| file.algorithm()))
}

/// Only a mount that does not know the question is none of ours; any other error is one of this moment, or of this descriptor.
fn understood(answer: Result<Algorithm>) -> Option<Option<Algorithm>> {
    match answer {
        Ok(algorithm) => Some(Some(algorithm)),
        Err(error) if error.kind == Kind::Unsupported || error.errno == libc::ENOSYS => Some(None),
        Err(_) => None,
    }
}

/// The mount has said that it does not offer the interface.
pub(crate) fn forget(held: &Held) {
    place(held.minor).store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn verdicts_come_back() {
        assert_eq!(Verdict::decode(0), None);
        for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
            for (minor, since_s) in [(0, 0), (u32::MAX, SINCE_MASK), (77, 5)] {
                let verdict = Verdict { minor, algorithm, since_s };
                assert_eq!(Verdict::decode(verdict.encode()), Some(verdict));
            }
        }
    }

    #[test]
    fn an_error_of_the_moment_is_no_verdict() {
        let failed = |errno| {
            let operation = holdfast_client::Operation::Read;
            understood(Err(holdfast_client::Error::from_errno(operation, 0, errno, "")))
        };
        assert_eq!([libc::ENOTTY, libc::EOPNOTSUPP, libc::ENOSYS].map(failed), [Some(None); 3]);
        assert_eq!([libc::ENOMEM, libc::EBADF, libc::ENOTCONN, libc::EACCES].map(failed), [None; 4]);
        assert_eq!(understood(Ok(Algorithm::Crc64Nvme)), Some(Some(Algorithm::Crc64Nvme)));
    }

    #[test]
    fn others_are_left_alone() {
        for path in ["/proc/self/exe", "/proc/self/stat", "/dev/null", "/", "/dev/shm"] {
            let file = std::fs::File::open(path).unwrap();
            assert_eq!(super::file(file.as_raw_fd()), None, "{path}");
        }
        assert_eq!(super::file(-1), None);
    }
}
