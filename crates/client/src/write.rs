//! Writing: checksums are made over the caller's buffers, and the mount takes bytes that have them.
//!
//! A short transfer is one ioctl with checksums and bytes. For a longer one the mount is given the bytes' address, which works where it
//! may read this process's memory; otherwise the bytes go inline, some blocks at a time.

use crate::descriptor;
use crate::error::{Error, Kind, Result};
use crate::transport::{self, Flush, Payload, inline_bytes};
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{
    BLOCK_BYTES, Capabilities, Command, Operation, Piece, Reply, Request, Status, TRANSFER_BYTES_LEAST, blocks, parts,
    pieces,
};
use std::cell::Cell;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often bytes are sent again that went bad on the way.
const ATTEMPTS_MAX: usize = 3;

/// How often the mount is asked to fetch what cannot be sent in pieces. It has waited for some milliseconds each time.
const FETCHES_MAX: usize = 16;

/// As sync_file_range(2) has it.
const TO_THE_END: usize = 0;

/// Blocks that had gone bad before, of which the error of a write names so many at most; [`descriptor::bad_blocks`] gives all.
const BAD_TOLD_MAX: usize = 1024;

/// What became of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// The bytes are in the file from this one on.
    At(u64),
    /// Nothing was written: all of the bytes do not go in one request, between whose bytes nobody else's can come.
    TooLong,
}

/// A transfer in progress.
pub(crate) struct Write<'a, 'b> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) buffers: &'a [IoSlice<'b>],
    /// Of the first buffer's first byte.
    pub(crate) offset: u64,
    pub(crate) algorithm: Algorithm,
    /// To the end of the file, at this byte at most; `offset` is 0.
    pub(crate) append: Option<u64>,
    /// A mount has said that it cannot read this process's memory.
    pub(crate) unreachable: &'a AtomicBool,
    /// Most bytes of one request.
    pub(crate) most: Cell<usize>,
    /// All of the bytes had their checksums here when they were looked at.
    pub(crate) checked: Cell<bool>,
}

impl Write<'_, '_> {
    /// The checksums of the blocks of this part, as the bytes are now.
    fn sums(&self, at: usize, length: usize) -> Vec<Checksum> {
        self.of_part(at, length).map(|piece| parts::sum(self.buffers, piece.range, self.algorithm)).collect()
    }

    /// The pieces of a part that begins with a block, or at 0; with their places in the buffers.
    fn of_part(&self, at: usize, length: usize) -> impl ExactSizeIterator<Item = Piece> {
        let within = move |range: Range<usize>| at + range.start..at + range.end;
        pieces(self.offset + at as u64, length).map(move |piece| Piece { range: within(piece.range), ..piece })
    }

    /// Writes all of it under checksums that are made now, of the bytes of one request when it is their turn.
    pub(crate) fn run_summed(&self) -> Result<usize> {
        self.in_steps(None)
    }

    /// Writes all of it under these checksums, one per block. They were made before, of bytes that may have changed since.
    pub(crate) fn run(&self, sums: &[Checksum]) -> Result<usize> {
        self.in_steps(Some(sums))
    }

    fn in_steps(&self, old: Option<&[Checksum]>) -> Result<usize> {
        let total = parts::length(self.buffers);
        if self.offset.checked_add(total as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::invalid(Operation::Write, self.offset, "beyond the largest position in a file"));
        }
        let is_for_all = |sums: &&[Checksum]| {
            sums.len() == blocks(self.offset, total) && sums.iter().all(|sum| sum.algorithm() == self.algorithm)
        };
        if !old.as_ref().is_none_or(is_for_all) {
            return Err(Error::invalid(Operation::Write, self.offset, "one checksum is needed for each block"));
        }
        if total == 0 {
            return Ok(0);
        }
        if self.offset + total as u64 > transport::file_size_limit() {
            return Err(self.too_large());
        }
        if self.fetchable(0, total) < total {
            self.check_once(old)?;
        }
        self.flush(total)?;
        let mut done = 0;
        let mut grew = false;
        let mut written = Ok(());
        // As much as goes in one request at most, with the checksums that were made of it.
        let (mut part, mut made) = (0..0, Vec::new());
        while done < total {
            if done == part.end {
                part = done..done + self.fetchable(done, total - done);
                if old.is_none() {
                    made = self.sums(part.start, part.len());
                }
            }
            let sums = match old {
                Some(old) => &old[blocks(self.offset, done)..],
                None => &made[blocks(self.offset + part.start as u64, done - part.start)..],
            };
            match self.step(done, part.end - done, sums, old) {
                Ok(step) => {
                    done += step.length;
                    grew |= step.grew;
                }
                Err(error) => {
                    let taken = error.done;
                    done += taken;
                    grew |= taken > 0;
                    written = Err(self.with_all_bad(error).after(done));
                    break;
                }
            }
        }
        self.tell_kernel(self.offset, done, grew).map_err(|error| self.error_at(done, &error).after(done))?;
        written.map(|()| done)
    }

    /// Appends all of it in one request. Which blocks of the file the bytes come to is not known here, so checksums are of each 4 KiB of them,
    /// as if they began a file.
    pub(crate) fn append(&self) -> Result<Appended> {
        debug_assert!(self.offset == 0 && self.append.is_some());
        let total = parts::length(self.buffers);
        // What a mapping has stored in the block where the file ends.
        self.flush(TO_THE_END)?;
        let step = if inline_bytes(0, total, self.algorithm.digest_len()) == total {
            self.send(0, total, &self.sums(0, total)).map(Some)
        } else if self.fetchable(0, total) == total {
            self.fetch_in_time(total, &self.sums(0, total))
        } else {
            Ok(None)
        };
        let step = match step {
            Err(error) if is_senseless(&error) && self.is_lowered(total) => None,
            // A mount of before there were appends: it does not know the flag.
            Err(error) if is_senseless(&error) && !self.knows(Capabilities::APPEND) => {
                let text = "the mount is of before there were appends";
                return Err(Error::from_errno(Operation::Write, self.offset, libc::EOPNOTSUPP, text));
            }
            Err(error) => {
                // What was appended all the same; of what follows, the first error is told.
                let _ = self.tell_kernel(error.offset, error.done, error.done > 0);
                return Err(self.with_all_bad(error));
            }
            Ok(step) => step,
        };
        let Some(Step { offset, length, grew }) = step else { return Ok(Appended::TooLong) };
        let untold = |error| Error::system(Operation::Write, offset, &error).after(length);
        self.tell_kernel(offset, length, grew).map_err(untold)?;
        Ok(Appended::At(offset))
    }

    fn too_large(&self) -> Error {
        Error::from_errno(Operation::Write, self.offset, libc::EFBIG, "")
    }

    /// Without it, what a mapping has stored beside these bytes, or before them, could be written over them later.
    fn flush(&self, length: usize) -> Result<()> {
        match transport::flush_mapped(self.fd, self.offset, length).map_err(|error| self.error_at(0, &error))? {
            Flush::Done => Ok(()),
            Flush::Refused => {
                let text = "this process may not call sync_file_range (seccomp)";
                Err(Error::from_errno(Operation::Write, self.offset, libc::EPERM, text))
            }
        }
    }

    /// So many bytes were written from there on.
    fn tell_kernel(&self, offset: u64, length: usize, grew: bool) -> std::io::Result<()> {
        if length > 0 {
            transport::drop_mapped(self.fd, offset, length);
        }
        if grew {
            // Whoever appends by ordinary writes is placed by the kernel's idea of the size.
            transport::learn_size(self.fd)?;
        }
        Ok(())
    }

    /// A reply has room for the blocks of its request. Others that had gone bad before, which a synchronous write tells, are asked for.
    fn with_all_bad(&self, mut error: Error) -> Error {
        if error.kind == Kind::Memory && !error.in_transfer {
            // Without them the error is what it was.
            let others = descriptor::bad_blocks(self.fd, 0, BAD_TOLD_MAX).unwrap_or_default();
            error.blocks.extend(others);
            error.blocks.sort_unstable();
            error.blocks.dedup();
        }
        error
    }

    fn step(&self, at: usize, left: usize, sums: &[Checksum], old: Option<&[Checksum]>) -> Result<Step> {
        let inline = inline_bytes(self.offset + at as u64, left, self.algorithm.digest_len());
        if inline < left {
            let length = self.fetchable(at, left);
            match self.fetch(at, length, sums) {
                Err(error) if is_senseless(&error) && self.is_lowered(length) => {
                    self.check_once(old)?;
                    return self.step(at, left, sums, old);
                }
                fetched => {
                    if let Some(step) = fetched? {
                        return Ok(step);
                    }
                }
            }
        }
        if inline < left && at == 0 {
            self.check_once(old)?;
        }
        self.send(at, inline, sums)
    }

    /// Of so many bytes, how many one request can be about whose bytes the mount fetches.
    fn fetchable(&self, at: usize, left: usize) -> usize {
        let offset = self.offset + at as u64;
        left.min(self.most.get() - (offset % BLOCK_BYTES as u64) as usize)
    }

    /// The mount takes fewer bytes at once than these, and gets no more from now on.
    fn is_lowered(&self, length: usize) -> bool {
        let mut most = self.most.get();
        let is_lowered = transport::lower(self.fd, length, &mut most);
        self.most.set(most);
        is_lowered
    }

    fn knows(&self, capabilities: Capabilities) -> bool {
        transport::features(self.fd).is_ok_and(|features| features.capabilities.have(capabilities))
    }

    /// The same of all bytes, which cannot be sent in several requests: asked for again if it is only not now that the mount can.
    fn fetch_in_time(&self, length: usize, sums: &[Checksum]) -> Result<Option<Step>> {
        for _ in 1..FETCHES_MAX {
            let step = self.fetch(0, length, sums)?;
            if step.is_some() || !self.is_fetchable() {
                return Ok(step);
            }
        }
        self.fetch(0, length, sums)
    }

    /// Whether the mount may fetch bytes from here. Not if they have no checksums: nothing would tell that they are another process's.
    fn is_fetchable(&self) -> bool {
        self.algorithm != Algorithm::None && !self.unreachable.load(Ordering::Relaxed)
    }

    /// Has the mount fetch the bytes; `None` if they have to be sent.
    fn fetch(&self, at: usize, length: usize, sums: &[Checksum]) -> Result<Option<Step>> {
        if !self.is_fetchable() {
            return Ok(None);
        }
        let Some(reply) = self.fetched(at, length, sums)? else { return Ok(None) };
        match reply.status {
            Status::Done if reply.length == length => Ok(Some(Step { offset: reply.offset, length, grew: reply.grew })),
            Status::Done => Err(self.error_at(at, &garbled())),
            Status::Unreachable => {
                // EAGAIN is about this time alone: all workers that may wait for callers' memory do.
                self.unreachable.fetch_or(reply.errno != libc::EAGAIN, Ordering::Relaxed);
                Ok(None)
            }
            // Perhaps it is another process that the mount has read. What is sent is certain.
            Status::Mismatch => Ok(None),
            _ => Err(refused(reply, length)),
        }
    }

    /// Sends the bytes along, which are few enough; again if they go bad on the way.
    fn send(&self, at: usize, length: usize, sums: &[Checksum]) -> Result<Step> {
        let mut attempts = 0;
        loop {
            let reply = self.inline(at, length, sums)?;
            attempts += 1;
            match reply.status {
                Status::Done if reply.length == length => {
                    return Ok(Step { offset: reply.offset, length, grew: reply.grew });
                }
                Status::Done => return Err(self.error_at(at, &garbled())),
                Status::Mismatch => {
                    self.check(at, length, sums)?;
                    // The bytes here are good: it was on the way.
                    if attempts == ATTEMPTS_MAX {
                        return Err(Error::replied(reply));
                    }
                }
                _ => return Err(refused(reply, length)),
            }
        }
    }

    /// Before the first of several requests: nothing shall be written if one of them will be refused for its old checksums.
    fn check_once(&self, old: Option<&[Checksum]>) -> Result<()> {
        match old {
            Some(sums) if !self.checked.replace(true) => self.check(0, parts::length(self.buffers), sums),
            _ => Ok(()),
        }
    }

    /// Whether the bytes have their checksums here, which are given from this part on.
    fn check(&self, at: usize, length: usize, sums: &[Checksum]) -> Result<()> {
        let bad: Vec<_> = self
            .of_part(at, length)
            .zip(sums)
            .filter(|(piece, sum)| parts::sum(self.buffers, piece.range.clone(), self.algorithm) != **sum)
            .map(|(piece, _)| piece.block)
            .collect();
        if bad.is_empty() {
            return Ok(());
        }
        let text = "the bytes to be written do not have their checksum";
        Err(Error::here(Operation::Write, self.offset + at as u64, bad, text))
    }

    fn inline(&self, at: usize, length: usize, sums: &[Checksum]) -> Result<Reply> {
        let mut payload = self.request(at, length, None, sums);
        parts::gather(self.buffers, at..at + length, payload.extend(length));
        self.ask(at, payload, Command::Write)
    }

    /// Has the mount fetch the bytes; `None` if they are not in one piece.
    fn fetched(&self, at: usize, length: usize, sums: &[Checksum]) -> Result<Option<Reply>> {
        let mut places = parts::parts(self.buffers, at..at + length);
        let (Some((index, within)), None) = (places.next(), places.next()) else { return Ok(None) };
        let bytes = &self.buffers[index][within];
        let payload = self.request(at, length, Some(bytes.as_ptr() as u64), sums);
        self.ask(at, payload, Command::WriteFrom).map(Some)
    }

    /// A request with its checksums, which are the first of these, and room for its bytes unless they have an address.
    fn request(&self, at: usize, length: usize, address: Option<u64>, sums: &[Checksum]) -> Payload {
        let offset = self.offset + at as u64;
        let request = Request {
            algorithm: self.algorithm,
            verify: false,
            append: self.append.is_some(),
            offset: self.append.unwrap_or(offset),
            length,
            address: address.unwrap_or(0),
        };
        let count = blocks(offset, length);
        let bytes = if address.is_some() { 0 } else { length };
        let mut payload = Payload::new(&request, count * self.algorithm.digest_len() + bytes, 0);
        for sum in &sums[..count] {
            payload.extend(sum.as_bytes().len()).copy_from_slice(sum.as_bytes());
        }
        payload
    }

    fn ask(&self, at: usize, mut payload: Payload, command: Command) -> Result<Reply> {
        let reply = payload.ask(self.fd, command).map_err(|error| self.error_at(at, &error))?;
        let malformed = |error| Error::malformed(Operation::Write, self.offset + at as u64, &error);
        Ok(transport::reply(reply).map_err(malformed)?.0)
    }

    fn error_at(&self, at: usize, error: &std::io::Error) -> Error {
        Error::system(Operation::Write, self.offset.saturating_add(at as u64), error)
    }
}

/// See [`crate::descriptor::append`].
pub(crate) fn append(
    fd: BorrowedFd<'_>,
    buffers: &[IoSlice<'_>],
    algorithm: Algorithm,
    unreachable: &AtomicBool,
    most: usize,
) -> Result<Appended> {
    let (most, checked) = (Cell::new(most), Cell::new(false));
    let write = Write { fd, buffers, offset: 0, algorithm, append: None, unreachable, most, checked };
    let limit = transport::file_size_limit().min(i64::MAX as u64);
    match limit.checked_sub(parts::length(buffers) as u64) {
        last @ Some(_) => Write { append: last, ..write }.append(),
        None => Err(write.too_large()),
    }
}

/// See [`crate::File::append`].
pub(crate) fn append_part(
    fd: BorrowedFd<'_>,
    buffer: &[u8],
    algorithm: Algorithm,
    unreachable: &AtomicBool,
    most: usize,
) -> Result<(u64, usize)> {
    for length in [most, TRANSFER_BYTES_LEAST, 2 * BLOCK_BYTES] {
        let part = &buffer[..buffer.len().min(length)];
        match append(fd, &[IoSlice::new(part)], algorithm, unreachable, most)? {
            Appended::At(offset) => return Ok((offset, part.len())),
            Appended::TooLong => {}
        }
    }
    unreachable!("two blocks go in one request")
}

struct Step {
    /// Where the bytes are.
    offset: u64,
    length: usize,
    grew: bool,
}

/// The mount has taken the request for one that makes no sense.
fn is_senseless(error: &Error) -> bool {
    error.kind == Kind::System && error.errno == libc::EINVAL
}

/// Why a request for so many bytes failed, which were perhaps taken all the same.
fn refused(reply: Reply, length: usize) -> Error {
    let taken = if reply.taken { length } else { 0 };
    Error::replied(reply).after(taken)
}

fn garbled() -> std::io::Error {
    number(libc::EPROTO)
}

fn number(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}
