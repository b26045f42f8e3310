//! Batches of requests, through io_uring where it is to be had. See `docs/decisions/0003-block-io.md`.

use std::ops::Range;

use super::ring::{Job, Outcome, Ring};
use super::transfer::{self, Alignment, Failure, MAX_SLICES};
use super::{FileDevice, Operation};
use crate::device::{check_request, scatter, total, total_mut};
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error, Read, Write};

/// Requests for which memory is set up at once.
const WINDOW: usize = 256;

/// Smaller batches are done one by one.
const LEAST: usize = 2;

/// Requests that need a bounce buffer larger than this, in bytes, are done on their own, which is as fast for them.
const BOUNCE_BYTES: usize = 64 << 10;

/// How a request's memory gets to the device.
enum Way {
    /// As it is.
    Straight,
    /// Through this buffer.
    Bounce(AlignedBuf),
    /// Not through the ring.
    Plain,
}

impl Way {
    fn of(fits: bool, slices: usize, length: usize) -> Way {
        match fits {
            true if slices <= MAX_SLICES => Way::Straight,
            false if length <= BOUNCE_BYTES => Way::Bounce(AlignedBuf::zeroed(length)),
            _ => Way::Plain,
        }
    }
}

impl FileDevice {
    pub(super) fn read_all(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        if let Some((alignment, ring)) = self.ring_for(reads.len()) {
            let healthy = self
                .each_window(ring, reads.len(), |ring, window| self.read_window(ring, alignment, &mut reads[window]));
            if let Err(done) = healthy {
                reads[done..].iter_mut().for_each(|read| read.result = self.read(read.first, read.bufs));
            }
        } else {
            reads.iter_mut().for_each(|read| read.result = self.read(read.first, read.bufs));
        }
        reads.iter().find_map(|read| read.result.clone().err()).map_or(Ok(()), Err)
    }

    pub(super) fn write_all(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        // All are looked at before one is done.
        for Write { first, bufs } in writes {
            check_request(&self.name, Operation::Write, self.blocks(), *first, total(bufs))?;
            self.check_writable(Operation::Write, Some(*first), total(bufs))?;
        }
        if let Some(Write { first, bufs }) = writes.first() {
            self.check_length(Operation::Write, Some(*first), total(bufs))?;
        }
        let Some((alignment, ring)) = self.ring_for(writes.len()) else {
            return writes.iter().try_for_each(|write| self.write(write.first, write.bufs));
        };
        let mut outcome = Ok(());
        let healthy = self.each_window(ring, writes.len(), |ring, window| {
            if outcome.is_err() {
                return true;
            }
            let (healthy, written) = self.write_window(ring, alignment, &writes[window]);
            outcome = written;
            healthy
        });
        if let (Err(done), Ok(())) = (healthy, &outcome) {
            outcome = writes[done..].iter().try_for_each(|write| self.write(write.first, write.bufs));
        }
        outcome
    }

    /// A ring, where direct I/O is on and it is worth it. Through the page cache, transfers seldom wait.
    fn ring_for(&self, requests: usize) -> Option<(Alignment, Ring)> {
        let alignment = self.direct?;
        if requests < LEAST { None } else { Some((alignment, self.rings.take()?)) }
    }

    /// Calls `run` for each window of `count` requests until it says that the ring is broken; then tells from where on
    /// nothing was done.
    fn each_window(
        &self,
        mut ring: Ring,
        count: usize,
        mut run: impl FnMut(&mut Ring, Range<usize>) -> bool,
    ) -> Result<(), usize> {
        for start in (0..count).step_by(WINDOW) {
            let end = count.min(start + WINDOW);
            if !run(&mut ring, start..end) {
                self.rings.disable();
                return Err(end);
            }
        }
        self.rings.put(ring);
        Ok(())
    }

    fn read_window(&self, ring: &mut Ring, alignment: Alignment, reads: &mut [Read<'_>]) -> bool {
        let mut ways = Vec::with_capacity(reads.len());
        for read in &mut *reads {
            let length_bytes = total_mut(read.bufs);
            read.result =
                check_request(&self.name, Operation::Read, self.blocks(), read.first, length_bytes).map(|_blocks| ());
            ways.push(match &read.result {
                Ok(()) => Way::of(alignment.fits_all_mut(read.bufs), read.bufs.len(), length_bytes as usize),
                Err(_) => Way::Plain,
            });
        }
        let mut jobs = Vec::with_capacity(reads.len());
        for (read, way) in reads.iter_mut().zip(&mut ways) {
            let offset = read.first.saturating_mul(BLOCK_SIZE as u64);
            match way {
                Way::Straight => jobs.push(Job::read(offset, read.bufs)),
                Way::Bounce(buf) => jobs.push(Job::read_one(offset, buf)),
                Way::Plain => {}
            }
        }
        let healthy = ring.run(&self.fd, &mut jobs);
        let mut outcomes = jobs.into_iter().map(|job| job.outcome).collect::<Vec<_>>().into_iter();
        for (read, way) in reads.iter_mut().zip(&ways) {
            if read.result.is_err() {
                continue;
            }
            let length_bytes = total_mut(read.bufs);
            let outcome = if matches!(way, Way::Plain) { None } else { outcomes.next() };
            match outcome {
                Some(Outcome::Done(count)) if count as u64 == length_bytes => {
                    if let Way::Bounce(buf) = way {
                        scatter(buf, read.bufs);
                    }
                }
                Some(Outcome::Failed(errno)) => {
                    let failure = Failure::System(errno);
                    read.result = Err(self.failure(Operation::Read, read.first, length_bytes, failure));
                }
                _ => read.result = self.read(read.first, read.bufs),
            }
        }
        healthy
    }

    fn write_window(&self, ring: &mut Ring, alignment: Alignment, writes: &[Write<'_>]) -> (bool, Result<(), Error>) {
        let ways: Vec<_> = writes
            .iter()
            .map(|Write { bufs, .. }| {
                let mut way = Way::of(alignment.fits_all(bufs), bufs.len(), total(bufs) as usize);
                if let Way::Bounce(buf) = &mut way {
                    transfer::gather(bufs, buf);
                }
                way
            })
            .collect();
        let mut jobs = Vec::with_capacity(writes.len());
        for (write, way) in writes.iter().zip(&ways) {
            let offset = write.first * BLOCK_SIZE as u64;
            match way {
                Way::Straight => jobs.push(Job::write(offset, write.bufs)),
                Way::Bounce(buf) => jobs.push(Job::write_one(offset, buf)),
                Way::Plain => {}
            }
        }
        let healthy = ring.run(&self.fd, &mut jobs);
        let mut outcomes = jobs.iter().map(|job| job.outcome);
        let mut written = Ok(());
        for (write, way) in writes.iter().zip(&ways) {
            let outcome = if matches!(way, Way::Plain) { None } else { outcomes.next() };
            let length_bytes = total(write.bufs);
            let one = match outcome {
                Some(Outcome::Done(count)) if count as u64 == length_bytes => Ok(()),
                Some(Outcome::Failed(errno)) => {
                    let failure = Failure::System(errno);
                    self.latch.watch(Err(self.failure(Operation::Write, write.first, length_bytes, failure)))
                }
                _ => self.write(write.first, write.bufs),
            };
            written = written.and(one);
        }
        (healthy, written)
    }
}
