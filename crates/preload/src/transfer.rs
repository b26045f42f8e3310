//! One read or write of a file in a mount.
//!
//! The file's own position is taken with lseek(fd, length, SEEK_CUR): the kernel adds the length in one step, so the range before the answer
//! belongs to this call alone, whoever shares the position. What a short or failed transfer has not used is given back: of a read by another
//! lseek, as additions commute; of a write only if nobody has taken a range since, as the next one would write over theirs. (Linux: reads,
//! writes and seeks of a position that is shared wait for each other since 3.14.)

use crate::buffers::Buffers;
use crate::mounts::{self, Held};
use crate::sys::Age;
use crate::{counters, sys, tell};
use holdfast_client::{Appended, BLOCK_BYTES, Error, Kind, Operation, Result, descriptor};
use holdfast_interface::run::Counter;
use holdfast_interface::{PAYLOAD_BYTES_MAX, TRANSFER_BYTES_MAX};
use libc::c_int;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// So many bytes were transferred.
    Done(usize),
    /// The error's number.
    Failed(c_int),
    /// The system shall do it, as if nothing had been tried.
    Left,
}

/// Where in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// At the descriptor's own position, which moves on.
    Own,
    /// Here.
    Position(i64),
}

impl At {
    /// As preadv2 and pwritev2 have it: -1 is the descriptor's own.
    pub(crate) fn own_or(offset: i64) -> At {
        if offset == -1 { At::Own } else { At::Position(offset) }
    }
}

/// How often a write is tried whose bytes change meanwhile: by another thread of the program, which is its own affair.
const ATTEMPTS_MAX: usize = 3;

fn borrow(fd: &c_int) -> BorrowedFd<'_> {
    // SAFETY: it was open when it was looked at; if another thread closes it now, it is the kernel that says so.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

/// Takes `length` bytes from the descriptor's own position on; gives where they begin.
fn claim(fd: c_int, length: usize) -> Option<i64> {
    let length = i64::try_from(length).ok()?;
    Some(sys::seek(fd, length, libc::SEEK_CUR)? - length)
}

fn left_alone() -> Outcome {
    counters::add(Counter::LeftAlone, 1);
    Outcome::Left
}

/// read(2) and its like.
pub(crate) fn read(fd: c_int, buffers: impl FnOnce() -> Option<Buffers>, at: At) -> Outcome {
    let Some(held) = mounts::file(fd) else { return Outcome::Left };
    let Some(mut buffers) = buffers() else { return left_alone() };
    let from = match at {
        At::Own => sys::seek(fd, 0, libc::SEEK_CUR),
        At::Position(offset) => (offset >= 0).then_some(offset),
    };
    let Some(from) = from else { return Outcome::Left };
    // What is beyond the end is not taken: somebody may write there by the same position.
    let there = |size: u64| usize::try_from(size.saturating_sub(from as u64)).unwrap_or(usize::MAX);
    if there(held.size) < buffers.total() {
        let Some(now) = sys::status(fd, Age::Now) else { return Outcome::Left };
        buffers.truncate(there(now.size));
    }
    let length = buffers.total();
    if length == 0 {
        return Outcome::Left;
    }
    // Longer ones are read by the kernel, which checks addresses itself.
    if buffers.overlap() || length <= PAYLOAD_BYTES_MAX && !buffers.can_take(fd, from) {
        return left_alone();
    }
    let start = match at {
        At::Own => claim(fd, length),
        At::Position(offset) => Some(offset),
    };
    let Some(start) = start else { return Outcome::Left };
    let (done, error) = transfer(start as u64, length, |range, offset| {
        let wanted = range.len();
        let mut slices = buffers.slices_mut(range);
        let got = descriptor::read_at(borrow(&fd), &mut slices, offset, held.algorithm, &mut Vec::new())?;
        Ok((got, got < wanted))
    });
    if at == At::Own && done < length {
        sys::seek(fd, done as i64 - length as i64, libc::SEEK_CUR);
    }
    finish(fd, &held, (done, length), error, (Counter::Reads, Counter::ReadBytes))
}

/// write(2) and its like.
pub(crate) fn write(fd: c_int, buffers: impl FnOnce() -> Option<Buffers>, at: At) -> Outcome {
    let Some(held) = mounts::file(fd) else { return Outcome::Left };
    let Some(buffers) = buffers() else { return left_alone() };
    let length = buffers.total();
    if length == 0 {
        return Outcome::Left;
    }
    if descriptor::is_write_refused() {
        return left_alone();
    }
    let Some(flags) = sys::flags(fd) else { return left_alone() };
    if flags & libc::O_APPEND != 0 {
        return append(fd, &held, &buffers, at);
    }
    // Beyond the limit the system sends a signal.
    let limit = descriptor::file_size_limit();
    let end = |from: i64| u64::try_from(from).ok().and_then(|from| from.checked_add(length as u64));
    let is_within = |from: i64| end(from).is_some_and(|end| end <= limit && i64::try_from(end).is_ok());
    let from = match at {
        At::Own => sys::seek(fd, 0, libc::SEEK_CUR),
        At::Position(offset) => Some(offset),
    };
    if !from.is_some_and(is_within) || !buffers.are_readable() {
        return left_alone();
    }
    let start = match at {
        At::Own => claim(fd, length),
        At::Position(offset) => Some(offset),
    };
    let Some(start) = start else { return left_alone() };
    let (done, error) = transfer(start as u64, length, |range, offset| {
        let length = range.len();
        let mut attempts = 0;
        loop {
            let written =
                descriptor::write_at(borrow(&fd), &buffers.slices(range.clone()), offset, held.algorithm, None);
            attempts += 1;
            match written {
                Err(Error { in_transfer: true, done: 0, .. }) if attempts < ATTEMPTS_MAX => {}
                written => return written.map(|done| (done, done < length)),
            }
        }
    });
    // A write that fails leaves the position where it was, whatever of it is in the file.
    let passed = if error.as_ref().is_some_and(is_told_once) { 0 } else { done };
    if at == At::Own && passed < length && sys::seek(fd, 0, libc::SEEK_CUR) == Some(start + length as i64) {
        sys::seek(fd, passed as i64 - length as i64, libc::SEEK_CUR);
    }
    finish(fd, &held, (done, length), error, (Counter::Writes, Counter::WrittenBytes))
}

/// The same by a descriptor that appends, whatever the position. What does not go in one request is left to the system, which keeps it together.
fn append(fd: c_int, held: &Held, buffers: &Buffers, at: At) -> Outcome {
    let length = buffers.total();
    if !buffers.are_readable() {
        return left_alone();
    }
    let mut attempts = 0;
    let appended = loop {
        let appended = descriptor::append(borrow(&fd), &buffers.slices(0..length), held.algorithm);
        attempts += 1;
        match appended {
            Err(Error { in_transfer: true, .. }) if attempts < ATTEMPTS_MAX => {}
            appended => break appended,
        }
    };
    let (done, error) = match appended {
        Ok(Appended::At(offset)) => {
            if at == At::Own {
                // Of no use but to who asks where it is.
                sys::seek(fd, offset as i64 + length as i64, libc::SEEK_SET);
            }
            (length, None)
        }
        Ok(Appended::TooLong) => return left_alone(),
        // The system sends a signal.
        Err(Error { errno: libc::EFBIG, kind: Kind::System, .. }) => return left_alone(),
        Err(error) => (0, Some(error)),
    };
    finish(fd, held, (done, length), error, (Counter::Writes, Counter::WrittenBytes))
}

/// How the kernel is to copy between two descriptors, past the program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copy {
    /// sendfile(2), splice(2).
    Through,
    /// copy_file_range(2).
    Range,
}

/// Bytes of a file in a mount are to come through the program's memory, to be verified there: the call fails as it does where the kernel does
/// not know how, upon which programs read and write. Within a mount the mount shares the blocks, and nothing comes through anywhere.
pub(crate) fn copy(from: c_int, to: c_int, length: usize, how: Copy) -> Outcome {
    let files = (mounts::file(from), mounts::file(to));
    match (files, how) {
        ((None, None), _) => Outcome::Left,
        _ if length == 0 => Outcome::Left,
        ((Some(from), Some(to)), Copy::Range) if from.is_beside(&to) => left_alone(),
        (_, Copy::Range) => Outcome::Failed(libc::EXDEV),
        (_, Copy::Through) => Outcome::Failed(libc::EINVAL),
    }
}

/// Transfers `length` bytes in steps of a request each, which are given their range and their position in the file, and tell how many bytes
/// they have done and whether that is all there is. Gives how many were done in all, and why not all.
fn transfer(
    start: u64,
    length: usize,
    mut step: impl FnMut(Range<usize>, u64) -> Result<(usize, bool)>,
) -> (usize, Option<Error>) {
    let mut done = 0;
    while done < length {
        let offset = start + done as u64;
        let most = TRANSFER_BYTES_MAX - (offset % BLOCK_BYTES as u64) as usize;
        match step(done..length.min(done + most), offset) {
            Ok((count, is_end)) => {
                done += count;
                if is_end {
                    break;
                }
            }
            Err(error) => return (done + error.done, Some(error)),
        }
    }
    (done, None)
}

/// Nobody would meet it again: a synchronous write tells once that something, perhaps of an earlier write, is not on the disk.
fn is_told_once(error: &Error) -> bool {
    error.operation == Operation::Write && error.errno == libc::EIO && !error.in_transfer
}

/// So many of the `length` bytes are done.
fn finish(
    fd: c_int,
    held: &Held,
    (done, length): (usize, usize),
    error: Option<Error>,
    counted: (Counter, Counter),
) -> Outcome {
    match error {
        Some(error) if done == 0 || is_told_once(&error) => match (error.kind, error.errno) {
            (Kind::Unsupported, _) => {
                mounts::forget(held);
                left_alone()
            }
            (Kind::System, libc::EFAULT) => left_alone(),
            (Kind::System, libc::EPERM) if descriptor::is_write_refused() => left_alone(),
            (Kind::Memory | Kind::Device, errno) => {
                tell::failed(fd, &error, is_told_once(&error) && done.max(error.done) == length);
                Outcome::Failed(errno)
            }
            (_, errno) => Outcome::Failed(errno),
        },
        // What was done counts; the next call meets the error.
        _ => {
            if let Some(error) = error.filter(|error| error.operation == Operation::Read) {
                tell::failed(fd, &error, false);
            }
            counters::add(counted.0, 1);
            counters::add(counted.1, done);
            Outcome::Done(done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ones_go_in_steps() {
        let mut steps = Vec::new();
        let (done, error) = transfer(100, (2 << 20) + 5, |range, offset| {
            steps.push((range.clone(), offset));
            Ok((range.len(), false))
        });
        assert_eq!((done, error), ((2 << 20) + 5, None));
        assert_eq!(steps.len(), 3);
        assert!(steps.iter().all(|(range, offset)| *offset == 100 + range.start as u64));
        assert!(steps.windows(2).all(|pair| pair[0].0.end == pair[1].0.start && pair[1].1 % 4096 == 0));
        let (done, _) = transfer(0, 3 << 20, |range, _| Ok((range.len() - 1, true)));
        assert_eq!(done, (1 << 20) - 1, "the end of the file");
        let failed = |range: Range<usize>, _| match range.start {
            0 => Ok((range.len(), false)),
            _ => {
                let mut error = Error::from_errno(holdfast_client::Operation::Write, 0, libc::ENOSPC, "");
                error.done = 4096;
                Err(error)
            }
        };
        let (done, error) = transfer(0, 3 << 20, failed);
        assert_eq!((done, error.unwrap().errno), ((1 << 20) + 4096, libc::ENOSPC));
    }

    #[test]
    fn what_is_told_once_is_not_lost_behind_what_was_done() {
        let error = |errno| Error::from_errno(Operation::Write, 0, errno, "");
        let mut in_transfer = error(libc::EIO);
        in_transfer.in_transfer = true;
        assert!(is_told_once(&error(libc::EIO)));
        assert!(!is_told_once(&error(libc::ENOSPC)), "the next call meets it");
        assert!(!is_told_once(&Error::from_errno(Operation::Read, 0, libc::EIO, "")), "so does the next read");
        assert!(!is_told_once(&in_transfer));
    }

    #[test]
    fn minus_one_is_the_descriptors_own() {
        assert_eq!((At::own_or(-1), At::own_or(-2), At::own_or(7)), (At::Own, At::Position(-2), At::Position(7)));
    }
}
