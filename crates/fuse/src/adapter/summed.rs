//! Reads and writes with a checksum per block: the ioctls of [`holdfast_interface`].
//!
//! They go round the kernel's page cache, so they are offered only where it holds nothing but what programs have mapped
//! ([`Caching::Direct`]). Errors are told in the reply, not by the ioctl's number, wherever the caller is one of ours.

use super::convert::node_of;
use super::handle::Handle;
use super::memory;
use super::serving::{About, Serving};
use crate::abi::IoctlIn;
use crate::decode::Context;
use crate::errno::Errno;
use crate::handler::{Answer, Handler};
use crate::negotiate::Caching;
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{
    Access, BLOCK_BYTES, Command, Features, Operation, REPLY_BYTES, Reply, Request, Side, Status, TRANSFER_BYTES_MAX,
    blocks, blocks_fitting, decode_sums, encode_blocks, words,
};
use holdfast_naming::{self as naming, Error, ReadData, SumsWanted};
use holdfast_object as object;
use std::io;

const _: () = assert!(TRANSFER_BYTES_MAX <= holdfast_naming::WRITE_MAX && BLOCK_BYTES == object::PAGE_SIZE);

impl Serving<'_> {
    /// Answers an ioctl of the interface.
    pub(super) fn summed(
        &self,
        command: Command,
        context: &Context,
        node: u64,
        args: &IoctlIn,
        bytes: &[u8],
    ) -> Answer<Vec<u8>> {
        if self.mount.options.caching != Caching::Direct {
            return Err(Errno::OPNOTSUPP);
        }
        let handle = Handle::of_raw(args.fh);
        if command == Command::Features {
            let mode = self.namespace().cache().protection();
            return Ok(Features::all(handle.access(), mode.memory(), mode.to_string()).encode());
        }
        if self.is_down() {
            return Err(Errno::IO);
        }
        let malformed = |error| {
            tracing::debug!(%error, pid = context.pid, "an ioctl makes no sense");
            Errno::INVAL
        };
        let (request, rest) = Request::decode(bytes).map_err(malformed)?;
        let room = args.out_size as usize;
        if room < REPLY_BYTES + size_of::<u64>() {
            return Err(Errno::INVAL);
        }
        match command {
            Command::Features => unreachable!("answered above"),
            Command::Read | Command::Sums => {
                handle.may_read()?;
                let with_bytes = command == Command::Read;
                // What does not fit is left to the next call: a short read.
                let digest = request.algorithm.digest_len();
                let length = fitting(request.offset, request.length, digest, room - REPLY_BYTES, with_bytes);
                if length == 0 && request.length > 0 {
                    // It would be taken for the end of the file.
                    return Err(Errno::INVAL);
                }
                Ok(self.read_summed(node, handle, &Request { length, ..request }, room, with_bytes))
            }
            Command::Write => {
                handle.may_write()?;
                let count = blocks(counted_from(&request), request.length);
                let (sums, bytes) = decode_sums(request.algorithm, count, rest).map_err(malformed)?;
                let bytes = bytes.get(..request.length).ok_or(Errno::INVAL)?;
                Ok(self.write_summed(context, node, handle, &request, bytes, &sums).encode(room))
            }
            Command::Bad => {
                if handle.access() == Access::default() {
                    return Err(Errno::BADF);
                }
                Ok(self.bad(node, &request, room))
            }
            Command::WriteFrom => {
                handle.may_write()?;
                let count = blocks(counted_from(&request), request.length);
                let (sums, _) = decode_sums(request.algorithm, count, rest).map_err(malformed)?;
                // Before the name space is in use: it may be a mapped file of this mount, for whose pages the kernel asks another worker.
                let bytes = match self.fetch(context.pid, &request) {
                    Ok(bytes) => bytes,
                    Err(error) => return Ok(unreachable(&request, &error).encode(room)),
                };
                Ok(self.write_summed(context, node, handle, &request, &bytes, &sums).encode(room))
            }
        }
    }

    /// What the caller has at the request's address. EAGAIN: not this time.
    fn fetch(&self, pid: u32, request: &Request) -> io::Result<Vec<u8>> {
        let refused = |number| Err(io::Error::from_raw_os_error(number));
        if self.mount.options.workers <= 1 {
            return refused(libc::EOPNOTSUPP);
        }
        // Nothing would tell that they are another process's.
        if request.algorithm == Algorithm::None {
            return refused(libc::EAGAIN);
        }
        let Some(_permit) = self.mount.fetches.permit() else { return refused(libc::EAGAIN) };
        let mut bytes = vec![0; request.length];
        memory::fetch(pid, request.address, &mut bytes)?;
        Ok(bytes)
    }

    fn read_summed(&self, node: u64, handle: Handle, request: &Request, room: usize, with_bytes: bool) -> Vec<u8> {
        let &Request { algorithm, verify, offset, length, .. } = request;
        let how = SumsWanted { algorithm, verify };
        let read = node_of(node).map_err(Failure::Number).and_then(|id| {
            self.namespace().read_with_sums(id, offset, length, how, handle.is_quiet()).map_err(Failure::Naming)
        });
        match read {
            Ok((data, sums)) => done(offset, &data, &sums, with_bytes),
            Err(failure) => self.failed(node, Operation::Read, offset, &failure).encode(room),
        }
    }

    fn bad(&self, node: u64, request: &Request, room: usize) -> Vec<u8> {
        let first = request.offset / BLOCK_BYTES as u64;
        let limit = blocks_fitting(room - REPLY_BYTES);
        let found = node_of(node)
            .map_err(Failure::Number)
            .and_then(|id| self.namespace().bad_blocks(id, first, limit).map_err(Failure::Naming));
        match found {
            Ok(blocks) => {
                let mut reply = Reply::done(Operation::Write, request.offset, 0, false).encode(REPLY_BYTES);
                reply.extend(encode_blocks(&blocks));
                reply
            }
            Err(failure) => self.failed(node, Operation::Write, request.offset, &failure).encode(room),
        }
    }

    fn write_summed(
        &self,
        context: &Context,
        node: u64,
        handle: Handle,
        request: &Request,
        bytes: &[u8],
        sums: &[Checksum],
    ) -> Reply {
        self.mount.grown.note(node);
        let written = node_of(node).map_err(Failure::Number).and_then(|id| {
            // Whether the caller may keep setuid and setgid is not sent with an ioctl.
            let clear = context.uid != 0;
            let (namespace, asks) = (self.namespace(), self.request(context));
            let written = if request.append {
                namespace.append_with_sums(&asks, id, request.offset, bytes, sums, clear).map(|offset| (offset, offset))
            } else {
                let size = namespace.write_with_sums(&asks, id, request.offset, bytes, sums, clear);
                size.map(|size| (request.offset, size))
            };
            let (offset, size) = written.map_err(Failure::Naming)?;
            Ok((offset, size, self.written(id, handle.raw(), handle.sync())))
        });
        match written {
            Ok((offset, size, Ok(()))) => {
                let grew = !bytes.is_empty() && offset + bytes.len() as u64 > size;
                Reply::done(Operation::Write, offset, bytes.len(), grew)
            }
            // They are in the file all the same.
            Ok((offset, _, Err(error))) => {
                let failed = self.failed(node, Operation::Write, offset, &Failure::Naming(error));
                Reply { taken: true, ..failed }
            }
            Err(failure) => self.failed(node, Operation::Write, counted_from(request), &failure),
        }
    }

    fn failed(&self, node: u64, operation: Operation, offset: u64, failure: &Failure) -> Reply {
        let reply = Reply { status: Status::Refused, operation, ..Reply::done(operation, offset, 0, false) };
        match failure {
            Failure::Number(errno) => Reply { errno: errno.0, ..reply },
            Failure::Naming(Error::Mismatch { blocks, .. }) => Reply {
                status: Status::Mismatch,
                side: Some(Side::Memory),
                errno: Errno::IO.0,
                bad: blocks.clone(),
                text: "what came does not have its checksum".into(),
                ..reply
            },
            Failure::Naming(error) => {
                // Tells it in the log as well.
                let errno = node_of(node).map_or_else(|errno| errno, |id| self.errno(About::Object(id), error)).0;
                let text = brief(error);
                match error.damage() {
                    Some(damage) => Reply {
                        status: Status::Damaged,
                        side: Some(match damage.side {
                            naming::Side::Memory => Side::Memory,
                            naming::Side::Device => Side::Device,
                        }),
                        errno,
                        device_address: damage.device_address,
                        bad: damage.block.into_iter().collect(),
                        text,
                        ..reply
                    },
                    None => Reply { errno, text, ..reply },
                }
            }
        }
    }
}

/// Why a transfer failed.
enum Failure {
    Number(Errno),
    Naming(Error),
}

/// Most bytes of a device's path in what a caller is told: the rest has to have room. The log has it all.
const PATH_BYTES_MAX: usize = 40;

/// The error in words, with the end of a long path.
fn brief(error: &Error) -> String {
    let shorten = |path: &mut String| *path = words::without_start(path, PATH_BYTES_MAX).into_owned();
    let mut error = error.clone();
    match &mut error {
        Error::Object(object::Error::Corrupt(what) | object::Error::GivenUp(what)) => {
            what.place.device.iter_mut().for_each(shorten);
        }
        Error::Object(object::Error::Lost { place, .. }) => place.device.iter_mut().for_each(shorten),
        Error::Object(object::Error::Device(fault)) => shorten(&mut fault.device),
        _ => {}
    }
    error.to_string()
}

/// Where in the file blocks begin to be counted for a request's checksums.
fn counted_from(request: &Request) -> u64 {
    if request.append { 0 } else { request.offset }
}

/// How many of `length` bytes fit into `room` with their checksums.
fn fitting(offset: u64, length: usize, digest: usize, room: usize, with_bytes: bool) -> usize {
    let mut fits = 0;
    for piece in holdfast_interface::pieces(offset, length) {
        let count = blocks(offset, piece.range.end);
        let bytes = if with_bytes { piece.range.end } else { 0 };
        if count * digest + bytes > room {
            // A part of a block, if that is all that can be had.
            let rest = room.saturating_sub(count * digest);
            return if with_bytes { fits.max(rest.min(piece.range.end)) } else { fits };
        }
        fits = piece.range.end;
    }
    fits
}

fn done(offset: u64, data: &ReadData, sums: &[Checksum], with_bytes: bool) -> Vec<u8> {
    let mut reply = Reply::done(Operation::Read, offset, data.len(), false).encode(REPLY_BYTES);
    let digest = sums.first().map_or(0, |sum| sum.as_bytes().len());
    reply.reserve_exact(sums.len() * digest + if with_bytes { data.len() } else { 0 });
    sums.iter().for_each(|sum| reply.extend_from_slice(sum.as_bytes()));
    if with_bytes {
        data.slices().for_each(|slice| reply.extend_from_slice(slice));
    }
    reply
}

fn unreachable(request: &Request, error: &io::Error) -> Reply {
    Reply {
        status: Status::Unreachable,
        errno: error.raw_os_error().unwrap_or(libc::EPERM),
        text: format!("the caller's memory cannot be read: {error}"),
        ..Reply::done(Operation::Write, request.offset, 0, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block on the device and both checksums, of the longest algorithm, whatever the path.
    #[test]
    fn the_words_of_a_reply_have_what_matters() {
        let device = format!("/{}/store", "long".repeat(500));
        let object = object::ObjectKey { domain: object::DomainId(1), object: object::ObjectId(1 << 40) };
        let place = object::Place {
            device: Some(device.clone()),
            address: Some(77_777_777),
            object: Some(object),
            level: Some(0),
            index: Some(1 << 40),
        };
        let sum = |byte: &[u8]| Algorithm::Fletcher256.sum(byte).to_string();
        let (expected, got) = (sum(b"a"), sum(b"b"));
        let corruption =
            object::Corruption { place: place.clone(), what: "checksum".into(), expected, got: got.clone() };
        let fault = object::DeviceFault {
            device,
            operation: "read".into(),
            address: Some(77_777_777),
            length: 4096,
            page: Some((object, 1 << 40)),
            cause: "Input/output error".into(),
        };
        for (error, end) in [
            (object::Error::Corrupt(Box::new(corruption.clone())), got.as_str()),
            (object::Error::GivenUp(Box::new(corruption)), got.as_str()),
            (object::Error::Lost { side: object::Side::Device, place: Box::new(place) }, "block 77777777"),
            (object::Error::Device(Box::new(fault)), "Input/output error"),
        ] {
            let text = brief(&Error::Object(error));
            assert!(text.len() <= holdfast_interface::TEXT_BYTES_MAX && text.ends_with(end), "{text}");
            assert!(
                text.contains("device …") && text.contains("long/store") && text.contains("block 77777777"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_reply_holds_what_fits() {
        // Room for three blocks and a half with checksums of 8 bytes.
        let room = 14_000;
        assert_eq!(fitting(0, 12_288, 8, room, true), 12_288);
        assert_eq!(fitting(0, 13_000, 8, room, true), 13_000);
        let part = fitting(0, 20_000, 8, room, true);
        assert!(part + 4 * 8 <= room && part >= 12_288, "{part}");
        let part = fitting(4000, 20_000, 8, room, true);
        assert!(part + blocks(4000, part) * 8 <= room && part > 96 + 8192, "{part}");
        assert_eq!(fitting(0, 20_000, 32, 0, true), 0);
        assert_eq!(fitting(0, 20_000, 8, 24, false), 12_288, "three checksums");
        assert_eq!(fitting(5, 20_000, 0, 0, false), 20_000);
    }
}
