//! Reading: bytes arrive in the caller's buffers, and are verified there.
//!
//! A short transfer is one ioctl with bytes and checksums as of one moment. A longer one is an ordinary read into the caller's buffers
//! and an ioctl for the checksums, which is as fast as reading alone. Between the two somebody may write: bytes that match are good
//! all the same, as they are what the checksum was made of, and blocks that do not match are read again by the first way. The ordinary read has
//! the kernel hand down what mappings have stored, so a short transfer goes that way too where this process may not ask for that.

use crate::error::{Error, Result};
use crate::transport::{self, Flush, Payload, inline_bytes};
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{BLOCK_BYTES, Command, Operation, Request, Status, blocks, decode_sums, parts, pieces};
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often bad blocks are asked for again.
const ATTEMPTS_MAX: usize = 4;
/// How long more bad blocks are asked for.
const ASKING_MAX: Duration = Duration::from_secs(1);

/// A transfer in progress.
pub(crate) struct Read<'a, 'b> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) buffers: &'a mut [IoSliceMut<'b>],
    /// Of the first buffer's first byte.
    pub(crate) offset: u64,
    pub(crate) algorithm: Algorithm,
    /// An ordinary read has met a bad block: the mount is asked for each part, and says which it is.
    pub(crate) careful: bool,
    /// Most bytes of one request.
    pub(crate) most: usize,
    /// Up to here, from the first byte on, something has been put into the buffers: memory that can be written to.
    pub(crate) touched: usize,
}

impl Read<'_, '_> {
    /// Fills the buffers, up to the end of the file; puts one checksum per block into `sums`. Behind what is done they have zeros, where anything
    /// has arrived: a program that goes on with its buffer after an error, as `dd conv=noerror`, is not to find bytes there that are bad.
    pub(crate) fn run(&mut self, sums: &mut Vec<Checksum>) -> Result<usize> {
        let read = self.verified(sums);
        let done = read.as_ref().map_or_else(|error| error.done, |done| *done);
        if done < self.touched {
            parts::clear(self.buffers, done..self.touched);
        }
        read
    }

    fn verified(&mut self, sums: &mut Vec<Checksum>) -> Result<usize> {
        sums.clear();
        let total = parts::length(self.buffers);
        if self.offset.checked_add(total as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::invalid(Operation::Read, self.offset, "beyond the largest position in a file"));
        }
        let mut done = 0;
        while done < total {
            let known = sums.len();
            let got = match self.step(done, total - done, sums) {
                Err(error) => {
                    sums.truncate(known);
                    let (done, error) = self.up_to_bad(done, total, error, sums);
                    return Err(self.with_all_bad(error, total).after(done));
                }
                Ok(got) => got,
            };
            done += got.length;
            if got.at_end {
                break;
            }
        }
        Ok(done)
    }

    /// A request that meets a bad block gives nothing. What is before that block is asked for without it, as read(2) gives those bytes. Gives
    /// how far that got, and the error of the first block that is bad.
    fn up_to_bad(
        &mut self,
        mut done: usize,
        total: usize,
        mut error: Error,
        sums: &mut Vec<Checksum>,
    ) -> (usize, Error) {
        while let Some(&first) = error.blocks.iter().min() {
            let at = self.offset + done as u64;
            // A block that is not of this transfer is a reply that makes no sense: nothing is asked for by it.
            let of_transfer = 1..(total - done) as u64;
            let before = first.checked_mul(BLOCK_BYTES as u64).and_then(|bad| bad.checked_sub(at));
            let Some(before) = before.filter(|before| of_transfer.contains(before)) else { break };
            let length = inline_bytes(at, before as usize, self.algorithm.digest_len());
            match self.good(done, length, false) {
                Ok((got, more)) => {
                    sums.extend(more);
                    done += got;
                    if got < length {
                        // It has become shorter since.
                        break;
                    }
                }
                // Each that is met is before the one that was met first.
                Err(another) if another.blocks.first().is_some_and(|&block| block < first) => {
                    let blocks = [&another.blocks[..], &error.blocks].concat();
                    error = Error { blocks, ..another };
                }
                Err(_) => break,
            }
        }
        (done, error)
    }

    /// A mount names the first bad block that it meets. Those behind it are asked for one by one, so that the error has all that are bad in this
    /// transfer; a disk that fails may take long for each, so for a second at most.
    fn with_all_bad(&self, mut error: Error, total: usize) -> Error {
        let Some(&last) = error.blocks.iter().max() else { return error };
        let begun = Instant::now();
        for piece in pieces(self.offset, total).filter(|piece| piece.block > last) {
            if begun.elapsed() > ASKING_MAX {
                break;
            }
            // What arrives is put nowhere: that there is memory so far behind nobody has said.
            match self.answer(&mut self.request(piece.range.start, piece.range.len(), true), piece.range.start) {
                Ok((_, [])) => break,
                Ok(_) => {}
                Err(another) if another.blocks.is_empty() => break,
                Err(another) => error.blocks.extend(another.blocks),
            }
        }
        error.blocks.sort_unstable();
        error.blocks.dedup();
        error
    }

    fn step(&mut self, at: usize, left: usize, sums: &mut Vec<Checksum>) -> Result<Got> {
        let offset = self.offset + at as u64;
        let inline = inline_bytes(offset, left, self.algorithm.digest_len());
        let is_short = inline == left || self.careful;
        let flushed = if is_short { self.flush(at, inline)? } else { Flush::Refused };
        if flushed == Flush::Done || self.careful {
            if flushed == Flush::Refused {
                // The kernel hands it down for a read, whatever becomes of that.
                let _ = self.plain(at, inline);
            }
            let (length, got) = self.good(at, inline, false)?;
            sums.extend(got);
            return Ok(Got { length, at_end: length < inline });
        }
        // To the end of a block, so that each block has one checksum.
        let length = left.min(self.most - (offset % BLOCK_BYTES as u64) as usize);
        let got = match self.plain(at, length) {
            Err(error) if error.errno == libc::EIO => {
                self.careful = true;
                return self.step(at, left, sums);
            }
            got => got?,
        };
        let known = match self.sums(at, got) {
            Err(error) if error.errno == libc::EINVAL && transport::lower(self.fd, got, &mut self.most) => {
                return self.step(at, left, sums);
            }
            known => known?,
        };
        for (index, piece) in pieces(offset, got).enumerate() {
            let range = at + piece.range.start..at + piece.range.end;
            if known.get(index) == Some(&parts::sum(self.buffers, range.clone(), self.algorithm)) {
                sums.push(known[index]);
                continue;
            }
            let (length, again) = self.good(range.start, range.len(), true)?;
            sums.extend(again);
            if length < range.len() {
                // It has become shorter since.
                return Ok(Got { length: piece.range.start + length, at_end: true });
            }
        }
        Ok(Got { length: got, at_end: got < length })
    }

    fn flush(&self, at: usize, length: usize) -> Result<Flush> {
        let offset = self.offset + at as u64;
        transport::flush_mapped(self.fd, offset, length).map_err(|error| self.error_at(at, &error))
    }

    /// Reads by ioctl until what arrived has its checksums.
    fn good(&mut self, at: usize, length: usize, mut verify: bool) -> Result<(usize, Vec<Checksum>)> {
        let mut bad = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            let (got, sums) = self.inline(at, length, verify)?;
            bad = pieces(self.offset + at as u64, got)
                .zip(&sums)
                .filter(|(piece, sum)| {
                    let range = at + piece.range.start..at + piece.range.end;
                    parts::sum(self.buffers, range, self.algorithm) != **sum
                })
                .map(|(piece, _)| piece.block)
                .collect();
            if bad.is_empty() {
                return Ok((got, sums));
            }
            // It was a page of the mount's or something on the way; the mount looks now.
            verify = true;
        }
        let text = "what arrives does not have its checksum, however often it is asked for";
        Err(Error::here(Operation::Read, self.offset + at as u64, bad, text))
    }

    /// Bytes and checksums as of one moment; fewer bytes only at the end of the file.
    fn inline(&mut self, at: usize, length: usize, verify: bool) -> Result<(usize, Vec<Checksum>)> {
        let mut payload = self.request(at, length, verify);
        let (sums, bytes) = self.answer(&mut payload, at)?;
        parts::scatter(self.buffers, at, bytes);
        self.touched = self.touched.max(at + bytes.len());
        Ok((bytes.len(), sums))
    }

    fn request(&self, at: usize, length: usize, verify: bool) -> Asked {
        let offset = self.offset + at as u64;
        let request = Request { algorithm: self.algorithm, verify, append: false, offset, length, address: 0 };
        let room = blocks(offset, length) * self.algorithm.digest_len() + length;
        Asked { payload: Payload::new(&request, 0, room), length }
    }

    fn answer<'p>(&self, asked: &'p mut Asked, at: usize) -> Result<(Vec<Checksum>, &'p [u8])> {
        let reply = asked.payload.ask(self.fd, Command::Read).map_err(|error| self.error_at(at, &error))?;
        let (got, sums, rest) = self.understood(at, asked.length, reply)?;
        let bytes = rest.get(..got).ok_or_else(|| self.error_at(at, &garbled()))?;
        Ok((sums, bytes))
    }

    /// Checksums of bytes that are here already; fewer only at the end of the file.
    fn sums(&self, at: usize, length: usize) -> Result<Vec<Checksum>> {
        let offset = self.offset + at as u64;
        let request = Request { algorithm: self.algorithm, verify: false, append: false, offset, length, address: 0 };
        let mut payload = Payload::new(&request, 0, blocks(offset, length) * self.algorithm.digest_len());
        let reply = payload.ask(self.fd, Command::Sums).map_err(|error| self.error_at(at, &error))?;
        let (got, mut sums, _) = self.understood(at, length, reply)?;
        // A block of which not all is there any more has another checksum.
        sums.truncate(pieces(offset, length).take_while(|piece| piece.range.end <= got).count());
        Ok(sums)
    }

    fn understood<'p>(&self, at: usize, length: usize, reply: &'p [u8]) -> Result<(usize, Vec<Checksum>, &'p [u8])> {
        let offset = self.offset + at as u64;
        let malformed = |error| Error::malformed(Operation::Read, offset, &error);
        let (reply, rest) = transport::reply(reply).map_err(malformed)?;
        if reply.status != Status::Done {
            return Err(Error::replied(reply));
        }
        if reply.length > length {
            return Err(self.error_at(at, &garbled()));
        }
        let (sums, rest) = decode_sums(self.algorithm, blocks(offset, reply.length), rest).map_err(malformed)?;
        Ok((reply.length, sums, rest))
    }

    /// An ordinary read into the caller's buffers; fewer bytes only at the end of the file.
    fn plain(&mut self, at: usize, length: usize) -> Result<usize> {
        let mut done = 0;
        while done < length {
            let range = at + done..at + length;
            let offset = self.offset + range.start as u64;
            let ranges: Vec<_> = parts::parts(self.buffers, range).collect();
            let mut buffers = self.buffers.iter_mut().enumerate();
            // The kernel takes no more buffers at once.
            let mut targets: Vec<_> = ranges
                .into_iter()
                .take(libc::UIO_MAXIOV as usize)
                .filter_map(|(index, within)| {
                    let (_, buffer) = buffers.find(|(number, _)| *number == index)?;
                    Some(IoSliceMut::new(&mut buffer[within]))
                })
                .collect();
            let read = transport::read(self.fd, &mut targets, offset);
            match read.map_err(|error| self.error_at(at + done, &error))? {
                0 => break,
                got => done += got,
            }
            self.touched = self.touched.max(at + done);
        }
        Ok(done)
    }

    fn error_at(&self, at: usize, error: &std::io::Error) -> Error {
        Error::system(Operation::Read, self.offset.saturating_add(at as u64), error)
    }
}

/// A request for bytes and checksums.
struct Asked {
    payload: Payload,
    /// Of the bytes, at most.
    length: usize,
}

struct Got {
    length: usize,
    at_end: bool,
}

fn garbled() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::EPROTO)
}
