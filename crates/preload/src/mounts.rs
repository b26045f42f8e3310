//! Which files are in a Holdfast mount: asked of the mount once for each device, not for each descriptor.
//!
//! A device's number can be used again after an unmount. A mount that is taken for Holdfast's says so itself at the next transfer
//! ([`forget`]); one that is taken for another's is asked again in the next second.

use crate::{sys, tell};
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

impl Held {
    /// Whether they are in the same mount.
    pub(crate) fn is_beside(&self, other: &Held) -> bool {
        self.minor == other.minor
    }
}

/// What is known. There is one for the whole process; a fork takes it along.
static KNOWN: Table = Table::new();

/// Whose a file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// Another one's.
    Others,
    /// A mount of Holdfast's that does not offer the interface.
    Refusing,
    /// One that offers it in a version that is not known here.
    OtherVersion,
    /// A mount of Holdfast's, whose pages have this checksum.
    Ours(Algorithm),
}

/// About the file system with the device number 0:`minor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Verdict {
    minor: u32,
    whose: Whose,
    /// When; the last 23 bits.
    since_s: u32,
}

const SINCE_MASK: u32 = (1 << 23) - 1;

impl Verdict {
    /// One bit that says that it is one; 23 of the time, 8 of whose it is (3 + the algorithm's number), 32 of the device.
    fn encode(self) -> u64 {
        let whose = match self.whose {
            Whose::Others => 0,
            Whose::Refusing => 1,
            Whose::OtherVersion => 2,
            Whose::Ours(algorithm) => u64::from(algorithm.id()) + 3,
        };
        1 << 63 | u64::from(self.since_s & SINCE_MASK) << 40 | whose << 32 | u64::from(self.minor)
    }

    fn decode(word: u64) -> Option<Verdict> {
        let whose = match (word >> 32) as u8 {
            0 => Whose::Others,
            1 => Whose::Refusing,
            2 => Whose::OtherVersion,
            number => Whose::Ours(Algorithm::parse(number - 3).ok()?),
        };
        (word >> 63 == 1).then_some(Verdict { minor: word as u32, whose, since_s: (word >> 40) as u32 & SINCE_MASK })
    }
}

/// Verdicts about so many file systems.
const PLACES: usize = 16;

/// One word for each file system that something is known of, with its whole number: file systems without a device have the major number 0.
/// 0 is nothing; see [`Verdict`]. Which place one has does not matter, so that none is in the way of another as long as there are
/// no more than places.
///
/// A word is read and changed in one step, and nothing is waited for: a signal handler, or the only thread behind a fork, finds verdicts
/// that are true. Two threads may put the same one in two places, as they may ask twice; both go when it is forgotten.
struct Table([AtomicU64; PLACES]);

impl Table {
    const fn new() -> Table {
        Table([const { AtomicU64::new(0) }; PLACES])
    }

    /// All places with what is in them, from the one where this file system is sought first.
    fn places(&self, minor: u32) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (before, behind) = self.0.split_at(minor as usize % PLACES);
        behind.iter().chain(before).map(|place| (place, place.load(Ordering::Relaxed)))
    }

    fn of(&self, minor: u32) -> impl Iterator<Item = (&AtomicU64, u64)> {
        self.places(minor).filter(move |(_, word)| Verdict::decode(*word).is_some_and(|known| known.minor == minor))
    }

    fn get(&self, minor: u32) -> Option<Verdict> {
        self.of(minor).find_map(|(_, word)| Verdict::decode(word))
    }

    /// In the place of what was known of the same file system; else of nothing; else of one that is not Holdfast's, which
    /// is asked again every second anyway; else of any. If another thread is there first, this one asks again.
    fn put(&self, verdict: Verdict) {
        let is_others = |word: u64| Verdict::decode(word).is_none_or(|known| !matches!(known.whose, Whose::Ours(_)));
        let place = (self.of(verdict.minor).next())
            .or_else(|| self.places(verdict.minor).find(|(_, word)| *word == 0))
            .or_else(|| self.places(verdict.minor).find(|(_, word)| is_others(*word)))
            .or_else(|| self.places(verdict.minor).next());
        if let Some((place, before)) = place {
            let _ = place.compare_exchange(before, verdict.encode(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn forget(&self, minor: u32) {
        for (place, word) in self.of(minor) {
            let _ = place.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What the descriptor is, if it is a regular file in a mount of Holdfast's, for a call that is left to the system otherwise: if it is in one that does
/// not offer the interface, that is counted and told.
pub(crate) fn file(fd: c_int) -> Option<Held> {
    let (whose, size, minor) = look(fd)?;
    match whose {
        Whose::Ours(algorithm) => Some(Held { algorithm, size, minor }),
        Whose::Others => None,
        Whose::Refusing | Whose::OtherVersion => {
            tell::refused(fd, whose == Whose::OtherVersion);
            None
        }
    }
}

/// Whether it is one in a mount that offers the interface, for a call that the system does anyway.
pub(crate) fn is_held(fd: c_int) -> bool {
    matches!(look(fd), Some((Whose::Ours(_), ..)))
}

/// Whose file system a regular file is in, its size, and the file system's number.
fn look(fd: c_int) -> Option<(Whose, u64, u32)> {
    let status = sys::status(fd, sys::Age::Known)?;
    let (major, minor) = status.device;
    // FUSE has no device; disks have.
    if !status.is_regular || major != 0 {
        return None;
    }
    let whose = match KNOWN.get(minor) {
        Some(Verdict { whose: ours @ Whose::Ours(_), .. }) => ours,
        // In the same second of the clock: for a second at most.
        Some(Verdict { since_s, whose, .. }) if sys::now_s() & SINCE_MASK == since_s => whose,
        _ => {
            let whose = ask(fd)?;
            KNOWN.put(Verdict { minor, whose, since_s: sys::now_s() });
            whose
        }
    };
    Some((whose, status.size, minor))
}

/// `None`: it could not be found out, and the next call asks again.
fn ask(fd: c_int) -> Option<Whose> {
    if !sys::is_fuse(fd)? {
        return Some(Whose::Others);
    }
    // SAFETY: it is open, as it has just told what it is; if another thread closes it now, it is the kernel that says so.
    let file = File::new(unsafe { BorrowedFd::borrow_raw(fd) });
    understood(file.map(|file| file.algorithm()))
}

/// Only a mount that does not know the question is none of ours; any other error is one of this moment, or of this descriptor.
fn understood(answer: Result<Algorithm>) -> Option<Whose> {
    match answer {
        Ok(algorithm) => Some(Whose::Ours(algorithm)),
        // The mount's own refusal has no words.
        Err(error) if error.errno == libc::EOPNOTSUPP && error.text.is_empty() => Some(Whose::Refusing),
        Err(error) if error.errno == libc::EOPNOTSUPP => Some(Whose::OtherVersion),
        Err(error) if error.kind == Kind::Unsupported || error.errno == libc::ENOSYS => Some(Whose::Others),
        Err(_) => None,
    }
}

/// The mount has said that it does not offer the interface.
pub(crate) fn forget(held: &Held) {
    KNOWN.forget(held.minor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn verdicts_come_back() {
        assert_eq!(Verdict::decode(0), None);
        for whose in
            Algorithm::ALL.into_iter().map(Whose::Ours).chain([Whose::Others, Whose::Refusing, Whose::OtherVersion])
        {
            for (minor, since_s) in [(0, 0), (u32::MAX, SINCE_MASK), (77, 5)] {
                let verdict = Verdict { minor, whose, since_s };
                assert_eq!(Verdict::decode(verdict.encode()), Some(verdict));
            }
        }
    }

    fn ours(minor: u32) -> Verdict {
        Verdict { minor, whose: Whose::Ours(Algorithm::Crc64Nvme), since_s: 7 }
    }

    fn others(minor: u32) -> Verdict {
        Verdict { whose: Whose::Others, ..ours(minor) }
    }

    #[test]
    fn as_many_mounts_as_there_are_places_do_not_push_each_other_out() {
        // All are sought in the same place first.
        let minor = |number: u32| 5 + number * PLACES as u32;
        let minors = |count: u32| (0..count).map(minor);
        let table = Table::new();
        minors(PLACES as u32).for_each(|minor| table.put(ours(minor)));
        assert!(minors(PLACES as u32).all(|minor| table.get(minor) == Some(ours(minor))));
        assert_eq!(table.get(6), None, "nor is one taken for another");
        // What is known of one gives way to what is known now.
        table.put(others(5));
        assert_eq!((table.get(5), table.of(5).count()), (Some(others(5)), 1));
        // One that is not Holdfast's gives way first.
        let last = minor(PLACES as u32);
        table.put(ours(last));
        assert_eq!(table.get(5), None);
        assert!((1..=PLACES as u32).map(minor).all(|minor| table.get(minor) == Some(ours(minor))));
        table.forget(last);
        let known = minors(PLACES as u32 + 1).filter(|minor| table.get(*minor).is_some()).count();
        assert_eq!((table.get(last), known), (None, PLACES - 1));
        // With more than that, the new one is known, and one of the others has to be asked again.
        table.put(ours(last));
        table.put(ours(5));
        let known = minors(PLACES as u32 + 1).filter(|minor| table.get(*minor).is_some()).count();
        assert_eq!((table.get(5), known), (Some(ours(5)), PLACES));
    }

    #[test]
    fn what_is_forgotten_is_forgotten_wherever_it_is() {
        let table = Table::new();
        // As two threads leave it that asked at the same time.
        for at in [3, 9] {
            table.0[at].store(ours(77).encode(), Ordering::Relaxed);
        }
        table.put(ours(78));
        table.forget(77);
        assert_eq!((table.get(77), table.get(78)), (None, Some(ours(78))));
    }

    #[test]
    fn threads_find_what_is_about_the_file_system_that_they_ask_for() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let minor = round * 7 % 40;
                        assert!(table.get(minor).is_none_or(|known| known.minor == minor));
                        match (round + thread) % 3 {
                            0 => table.forget(minor),
                            1 => table.put(others(minor)),
                            _ => table.put(ours(minor)),
                        }
                    }
                });
            }
        });
        (0..40).for_each(|minor| table.forget(minor));
        assert!((0..40).all(|minor| table.get(minor).is_none()), "nothing is left in any place");
    }

    #[test]
    fn an_error_of_the_moment_is_no_verdict() {
        let failed_with = |errno, text| {
            let operation = holdfast_client::Operation::Read;
            understood(Err(holdfast_client::Error::from_errno(operation, 0, errno, text)))
        };
        let failed = |errno| failed_with(errno, "");
        assert_eq!([libc::ENOTTY, libc::ENOSYS].map(failed), [Some(Whose::Others); 2]);
        assert_eq!(failed(libc::EOPNOTSUPP), Some(Whose::Refusing));
        assert_eq!(failed_with(libc::EOPNOTSUPP, "version 9 of the interface is not known"), Some(Whose::OtherVersion));
        assert_eq!([libc::ENOMEM, libc::EBADF, libc::ENOTCONN, libc::EACCES].map(failed), [None; 4]);
        assert_eq!(understood(Ok(Algorithm::Crc64Nvme)), Some(Whose::Ours(Algorithm::Crc64Nvme)));
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
