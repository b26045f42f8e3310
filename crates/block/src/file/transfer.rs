//! Moving bytes: whole requests out of partial ones, and around alignment.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, preadv, pwritev};

use crate::AlignedBuf;
use crate::device::{total, total_mut};

/// Most slices the kernel takes in one call (UIO_MAXIOV).
pub(super) const MAX_SLICES: usize = 1024;

/// Largest bounce buffer in bytes.
const BOUNCE_BYTES: usize = 1 << 20;

/// What direct I/O asks of a buffer, in bytes; powers of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alignment {
    /// Of its address.
    pub(super) memory: usize,
    /// Of its length, and of every position in the file.
    pub(super) length: usize,
}

impl Alignment {
    fn fits(self, start: *const u8, length: usize) -> bool {
        start.addr().is_multiple_of(self.memory) && length.is_multiple_of(self.length)
    }

    pub(super) fn fits_all(self, bufs: &[IoSlice<'_>]) -> bool {
        bufs.iter().all(|buf| self.fits(buf.as_ptr(), buf.len()))
    }

    pub(super) fn fits_all_mut(self, bufs: &[IoSliceMut<'_>]) -> bool {
        bufs.iter().all(|buf| self.fits(buf.as_ptr(), buf.len()))
    }
}

/// Why a transfer failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The system refused.
    System(Errno),
    /// The device ended before the request did.
    EndedEarly {
        /// Bytes transferred.
        done_bytes: u64,
    },
}

/// Reads into all of `bufs` from byte `offset`.
pub(super) fn read(
    fd: &OwnedFd,
    offset: u64,
    bufs: &mut [IoSliceMut<'_>],
    direct: Option<Alignment>,
) -> Result<(), Failure> {
    let Some(alignment) = direct else { return read_plain(fd, offset, bufs, 1) };
    if alignment.fits_all_mut(bufs) {
        return read_plain(fd, offset, bufs, alignment.length);
    }
    let mut left = total_mut(bufs) as usize;
    let mut bounce = AlignedBuf::zeroed(left.min(BOUNCE_BYTES));
    let (mut place, mut done) = (Place::default(), 0);
    while left > 0 {
        let step = left.min(bounce.len());
        read_plain(fd, offset + done, &mut [IoSliceMut::new(&mut bounce[..step])], alignment.length)
            .map_err(|failure| failure.after(done))?;
        place.scatter(&bounce[..step], bufs);
        (left, done) = (left - step, done + step as u64);
    }
    Ok(())
}

/// Writes all of `bufs` at byte `offset`.
pub(super) fn write(fd: &OwnedFd, offset: u64, bufs: &[IoSlice<'_>], direct: Option<Alignment>) -> Result<(), Failure> {
    let Some(alignment) = direct else { return write_plain(fd, offset, bufs, 1) };
    if alignment.fits_all(bufs) {
        return write_plain(fd, offset, bufs, alignment.length);
    }
    let mut left = total(bufs) as usize;
    let mut bounce = AlignedBuf::zeroed(left.min(BOUNCE_BYTES));
    let (mut place, mut done) = (Place::default(), 0);
    while left > 0 {
        let step = left.min(bounce.len());
        place.gather(bufs, &mut bounce[..step]);
        write_plain(fd, offset + done, &[IoSlice::new(&bounce[..step])], alignment.length)
            .map_err(|failure| failure.after(done))?;
        (left, done) = (left - step, done + step as u64);
    }
    Ok(())
}

/// Copies scattered buffers into one of the same total length.
pub(super) fn gather(bufs: &[IoSlice<'_>], into: &mut [u8]) {
    Place::default().gather(bufs, into);
}

/// How far a walk through scattered buffers has come. The callers see to it that they are long enough.
#[derive(Default)]
struct Place {
    index: usize,
    within: usize,
}

impl Place {
    fn scatter(&mut self, mut from: &[u8], bufs: &mut [IoSliceMut<'_>]) {
        while !from.is_empty() {
            let out = &mut bufs[self.index][self.within..];
            let (now, later) = from.split_at(from.len().min(out.len()));
            out[..now.len()].copy_from_slice(now);
            from = later;
            let full = now.len() == out.len();
            self.advance(now.len(), full);
        }
    }

    fn gather(&mut self, bufs: &[IoSlice<'_>], mut into: &mut [u8]) {
        while !into.is_empty() {
            let data = &bufs[self.index][self.within..];
            let (now, later) = into.split_at_mut(data.len().min(into.len()));
            now.copy_from_slice(&data[..now.len()]);
            let full = now.len() == data.len();
            self.advance(now.len(), full);
            into = later;
        }
    }

    fn advance(&mut self, count: usize, full: bool) {
        (self.index, self.within) = if full { (self.index + 1, 0) } else { (self.index, self.within + count) };
    }
}

impl Failure {
    fn after(self, before_bytes: u64) -> Self {
        match self {
            Failure::EndedEarly { done_bytes } => Failure::EndedEarly { done_bytes: before_bytes + done_bytes },
            system => system,
        }
    }
}

/// Repeats preadv until everything is there. A partial transfer is taken over in multiples of `unit` bytes.
fn read_plain(fd: &OwnedFd, offset: u64, bufs: &mut [IoSliceMut<'_>], unit: usize) -> Result<(), Failure> {
    let length = total_mut(bufs);
    repeat(length, unit, |done| {
        if done == 0 {
            let count = bufs.len().min(MAX_SLICES);
            return preadv(fd, &mut bufs[..count], offset);
        }
        let mut skip = done as usize;
        let mut rest = Vec::new();
        for buf in bufs.iter_mut() {
            if skip >= buf.len() {
                skip -= buf.len();
            } else if rest.len() < MAX_SLICES {
                rest.push(IoSliceMut::new(&mut buf[skip..]));
                skip = 0;
            }
        }
        preadv(fd, &mut rest, offset + done)
    })
}

/// Repeats pwritev until everything is written.
fn write_plain(fd: &OwnedFd, offset: u64, bufs: &[IoSlice<'_>], unit: usize) -> Result<(), Failure> {
    let length = total(bufs);
    repeat(length, unit, |done| {
        if done == 0 {
            return pwritev(fd, &bufs[..bufs.len().min(MAX_SLICES)], offset);
        }
        let mut skip = done as usize;
        let mut rest = Vec::new();
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
            } else if rest.len() < MAX_SLICES {
                rest.push(IoSlice::new(&buf[skip..]));
                skip = 0;
            }
        }
        pwritev(fd, &rest, offset + done)
    })
}

/// Calls `step` with the bytes done so far until `length` are; interrupted calls are repeated, short ones continued.
fn repeat(length: u64, unit: usize, mut step: impl FnMut(u64) -> rustix::io::Result<usize>) -> Result<(), Failure> {
    let mut done = 0;
    while done < length {
        match step(done) {
            Ok(count) => {
                let whole = if done + count as u64 == length { count } else { count - count % unit };
                if whole == 0 {
                    return Err(Failure::EndedEarly { done_bytes: done + count as u64 });
                }
                done += whole as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::System(errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_steps_are_continued_in_whole_units() {
        let mut answers = vec![Ok(1000), Err(Errno::INTR), Ok(512), Ok(3072)].into_iter();
        let mut seen = Vec::new();
        repeat(4096, 512, |done| {
            seen.push(done);
            answers.next().unwrap()
        })
        .unwrap();
        // 1000 bytes count as one unit of 512.
        assert_eq!(seen, [0, 512, 512, 1024]);
    }

    #[test]
    fn no_progress_and_errors_end_it() {
        let mut answers = vec![Ok(2048), Ok(100)].into_iter();
        let ended = repeat(4096, 512, |_| answers.next().unwrap());
        assert!(matches!(ended, Err(Failure::EndedEarly { done_bytes: 2148 })));
        assert!(matches!(repeat(4096, 1, |_| Err(Errno::IO)), Err(Failure::System(Errno::IO))));
    }
}
