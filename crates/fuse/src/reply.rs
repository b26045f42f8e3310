//! Replies: a header and slices, sent by one `writev` without putting them together first.

use crate::abi::*;
use crate::errno::Errno;
use crate::handler::{Attributes, Entry, Opened};
use rustix::fd::BorrowedFd;
use rustix::io::Errno as SystemError;
use std::io::IoSlice;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Most slices of one `writev` (UIO_MAXIOV), the header's included.
const SLICES_MAX: usize = 1024;
/// Slices, the header's included, for which no memory is allocated: all replies but long reads.
const SLICES_FEW: usize = 20;
/// The kernel takes error numbers below this one only (`fuse_dev_do_write`); it refuses others, and the request stays open.
const ERRNO_END: i32 = 512;

/// Bytes somewhere in memory, in order.
pub trait Slices {
    /// The pieces. Valid as long as `self` is. An iterator that knows its length saves work.
    fn slices(&self) -> impl Iterator<Item = &[u8]>;
}

impl Slices for Vec<u8> {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_slice())
    }
}

/// Answers a request with bytes.
///
/// A reply that the kernel does not take is the handler's mistake (more bytes than were asked for) or lack of memory: it is
/// logged, and the request is answered with EIO so that nobody waits for ever. The session goes on; if it is the
/// connection that is gone, the next read says so.
pub(crate) fn send<'a>(fd: BorrowedFd<'_>, unique: u64, slices: impl Iterator<Item = &'a [u8]>) {
    let mut few = [IoSlice::new(&[]); SLICES_FEW];
    let mut many = Vec::new();
    // The first place is the header's.
    let parts = if slices.size_hint().1.is_some_and(|most| most < SLICES_FEW) {
        let mut used = 1;
        for slice in slices {
            few[used] = IoSlice::new(slice);
            used += 1;
        }
        &mut few[..used]
    } else {
        many.reserve(slices.size_hint().0 + 1);
        many.push(IoSlice::new(&[]));
        for slice in slices {
            many.push(IoSlice::new(slice));
        }
        &mut many[..]
    };
    let length = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let Ok(len) = u32::try_from(length) else {
        tracing::error!(unique, length, "a reply is too long");
        return send_error(fd, unique, Errno::IO);
    };
    let header = OutHeader { len, error: 0, unique };
    let sent = if parts.len() <= SLICES_MAX {
        parts[0] = IoSlice::new(header.as_bytes());
        write(fd, parts)
    } else {
        // More pieces than the system takes at once, and a reply is one call.
        let joined: Vec<u8> = parts[1..].iter().flat_map(|slice| slice.iter().copied()).collect();
        write(fd, &[IoSlice::new(header.as_bytes()), IoSlice::new(&joined)])
    };
    if let Err(error) = sent {
        tracing::error!(unique, length, %error, "the kernel does not take a reply");
        send_error(fd, unique, Errno::IO);
    }
}

/// Answers a request with an error.
pub(crate) fn send_error(fd: BorrowedFd<'_>, unique: u64, errno: Errno) {
    let valid = (1..ERRNO_END).contains(&errno.0);
    let error = if valid { -errno.0 } else { -Errno::IO.0 };
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error, unique };
    if !valid {
        tracing::error!(unique, errno = errno.0, "not an error number");
    }
    if let Err(error) = write(fd, &[IoSlice::new(header.as_bytes())]) {
        tracing::error!(unique, %error, "the kernel does not take an error");
    }
}

/// `ENOENT` means that nobody waits for the reply any more (the request was aborted): that is no error.
fn write(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<(), SystemError> {
    loop {
        return match rustix::io::writev(fd, parts) {
            Ok(_) | Err(SystemError::NOENT) => Ok(()),
            Err(SystemError::INTR) => continue,
            Err(error) => Err(error),
        };
    }
}

fn split(valid: Duration) -> (u64, u32) {
    (valid.as_secs(), valid.subsec_nanos())
}

pub(crate) fn entry(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = split(entry.name_valid);
    let (attr_valid, attr_valid_nsec) = split(entry.attr_valid);
    EntryOut {
        nodeid: entry.node,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: entry.attr,
    }
}

pub(crate) fn attributes(attributes: &Attributes) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = split(attributes.valid);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attributes.attr }
}

pub(crate) fn opened(opened: &Opened) -> OpenOut {
    OpenOut { fh: opened.fh, open_flags: opened.flags, backing_id: 0 }
}

/// STATX_BASIC_STATS and STATX_BTIME.
const STATX_MASK: u32 = 0xfff;

pub(crate) fn statx(attributes: &Attributes) -> StatxOut {
    let (attr_valid, attr_valid_nsec) = split(attributes.valid);
    let attr = &attributes.attr;
    let time = |tv_sec: u64, tv_nsec| SxTime { tv_sec: tv_sec as i64, tv_nsec, reserved: 0 };
    let stat = Statx {
        mask: STATX_MASK,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime, attr.atimensec),
        btime: SxTime { tv_sec: attributes.btime.0, tv_nsec: attributes.btime.1, reserved: 0 },
        ctime: time(attr.ctime, attr.ctimensec),
        mtime: time(attr.mtime, attr.mtimensec),
        // The kernel's own encoding of a device number (`new_encode_dev`).
        rdev_major: (attr.rdev >> 8) & 0xfff,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
        ..Statx::default()
    };
    StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
}

/// Directory entries for one reply, up to the size that the kernel asked for.
#[derive(Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    room: usize,
    plus: bool,
}

impl DirBuffer {
    /// For at most `room` bytes (an entry takes 24 and its name, 128 more with [`Entry`], padded to 8); `plus`: each with its [`Entry`].
    pub fn new(room: usize, plus: bool) -> DirBuffer {
        DirBuffer { bytes: Vec::with_capacity(room), room, plus }
    }

    /// Whether entries come with attributes.
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Adds an entry; `kind` is the file type of `st_mode` (its upper four bits). `false`: it does not fit, and was not
    /// added. `attributes` only with [`DirBuffer::is_plus`]; without, the kernel looks the name up itself.
    pub fn push(&mut self, ino: u64, cookie: u64, kind: u32, name: &[u8], attributes: Option<&Entry>) -> bool {
        let start = if self.plus { size_of::<EntryOut>() } else { 0 };
        let length = (start + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.room {
            return false;
        }
        let end = self.bytes.len() + length;
        if self.plus {
            let out = attributes.map_or_else(EntryOut::default, entry);
            self.bytes.extend_from_slice(out.as_bytes());
        }
        let dirent = Dirent { ino, off: cookie, namelen: name.len() as u32, kind: kind >> 12 };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The entries, as they are sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
