//! Replies: a header and slices, sent by one `writev` without putting them together first.

use crate::abi::*;
use crate::handler::{Attributes, Entry, Opened};
use rustix::fd::BorrowedFd;
use std::io::IoSlice;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Most slices of one `writev` (UIO_MAXIOV), the header's included.
const SLICES_MAX: usize = 1024;

/// Bytes somewhere in memory, in order.
pub trait Slices {
    /// The pieces. Valid as long as `self` is.
    fn slices(&self) -> Vec<IoSlice<'_>>;
}

impl Slices for Vec<u8> {
    fn slices(&self) -> Vec<IoSlice<'_>> {
        vec![IoSlice::new(self)]
    }
}

/// Sends a reply. `ENOENT` means that the request was interrupted and nobody waits for the reply: that is no error.
pub(crate) fn send(fd: BorrowedFd<'_>, unique: u64, error: i32, slices: &[IoSlice<'_>]) -> std::io::Result<()> {
    let length: usize = slices.iter().map(|slice| slice.len()).sum();
    let header = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error: -error, unique };
    let joined: Vec<u8>;
    let mut parts = Vec::with_capacity(slices.len().min(SLICES_MAX - 1) + 1);
    parts.push(IoSlice::new(header.as_bytes()));
    if slices.len() < SLICES_MAX {
        parts.extend(slices.iter().map(|slice| IoSlice::new(slice)));
    } else {
        // More pieces than the system takes at once, and a reply is one call.
        joined = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        parts.push(IoSlice::new(&joined));
    }
    loop {
        return match rustix::io::writev(fd, &parts) {
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => Err(error.into()),
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
    /// For at most `room` bytes; `plus`: each with its [`Entry`].
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

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
