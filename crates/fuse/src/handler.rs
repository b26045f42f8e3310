//! What a file system answers. One method per request, with plain arguments, so that another wire could call them as well.

use crate::abi::*;
use crate::decode::Context;
use crate::errno::Errno;
use crate::reply::{DirBuffer, Slices};
use std::time::Duration;

/// Result of a request.
pub type Answer<T> = Result<T, Errno>;

/// An object under a name, for the kernel to remember.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The object's number. 0: there is no such name, remember that.
    pub node: u64,
    /// Distinguishes successive objects with one number.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name is right.
    pub name_valid: Duration,
    /// How long the attributes are right.
    pub attr_valid: Duration,
}

/// Attributes, for the kernel to remember.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The attributes.
    pub attr: Attr,
    /// Birth time, for statx: seconds and nanoseconds.
    pub btime: (i64, u32),
    /// How long they are right.
    pub valid: Duration,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Handle of the file system's choice.
    pub fh: u64,
    /// [`open_flags`].
    pub flags: u32,
}

/// What a request has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Names in a directory.
    Names,
    /// An object's contents or attributes.
    Object,
}

/// What serves a session: for each request it has something that handles it. A [`Handler`] that several threads can use is one, and handles
/// all of them itself.
pub trait Service: Send + Sync {
    /// What handles one request.
    type Handler<'a>: Handler
    where
        Self: 'a;

    /// Calls `answer` once, with what handles one request from its beginning until its reply is sent.
    fn serve<'a>(&'a self, answer: impl FnOnce(&Self::Handler<'a>));
}

impl<H: Handler + Send + Sync> Service for H {
    type Handler<'a>
        = H
    where
        H: 'a;

    fn serve<'a>(&'a self, answer: impl FnOnce(&Self::Handler<'a>)) {
        answer(self);
    }
}

/// Whether a SETATTR is of ftruncate(2), which changes contents through a handle.
pub(crate) fn is_truncation(args: &SetattrIn) -> bool {
    args.valid & fattr::SIZE != 0 && args.valid & fattr::FH != 0
}

/// A file system. Methods that are not given answer "not implemented".
#[allow(missing_docs, unused_variables)]
pub trait Handler {
    /// What a read gives: bytes somewhere in memory, held until they are sent.
    type Data: Slices;

    /// Nothing is answered any more but with EIO, status excepted.
    fn is_down(&self) -> bool {
        false
    }

    fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        Err(Errno::NOSYS)
    }
    fn forget(&self, node: u64, count: u64) {}
    fn getattr(&self, context: &Context, node: u64) -> Answer<Attributes> {
        Err(Errno::NOSYS)
    }
    fn setattr(&self, context: &Context, node: u64, args: &SetattrIn) -> Answer<Attributes> {
        Err(Errno::NOSYS)
    }
    fn readlink(&self, context: &Context, node: u64) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }
    fn symlink(&self, context: &Context, parent: u64, name: &[u8], target: &[u8]) -> Answer<Entry> {
        Err(Errno::NOSYS)
    }
    fn mknod(&self, context: &Context, parent: u64, name: &[u8], args: &MknodIn) -> Answer<Entry> {
        Err(Errno::NOSYS)
    }
    fn mkdir(&self, context: &Context, parent: u64, name: &[u8], args: &MkdirIn) -> Answer<Entry> {
        Err(Errno::NOSYS)
    }
    fn unlink(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn rmdir(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn rename(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn link(&self, context: &Context, node: u64, new_parent: u64, new_name: &[u8]) -> Answer<Entry> {
        Err(Errno::NOSYS)
    }
    fn open(&self, context: &Context, node: u64, args: &OpenIn) -> Answer<Opened> {
        Err(Errno::NOSYS)
    }
    fn create(&self, context: &Context, parent: u64, name: &[u8], args: &CreateIn) -> Answer<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }
    fn tmpfile(&self, context: &Context, parent: u64, args: &CreateIn) -> Answer<(Entry, Opened)> {
        Err(Errno::OPNOTSUPP)
    }
    fn read(&self, context: &Context, node: u64, args: &ReadIn) -> Answer<Self::Data> {
        Err(Errno::NOSYS)
    }
    fn write(&self, context: &Context, node: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        Err(Errno::NOSYS)
    }
    /// Whether the object has set-user-id or set-group-id, so that a change of its contents may take them away. The kernel
    /// then is told to ask for its mode again, which it does not do after a change of contents by itself.
    fn has_set_ids(&self, node: u64) -> bool {
        false
    }
    fn flush(&self, context: &Context, node: u64, args: &FlushIn) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn release(&self, context: &Context, node: u64, args: &ReleaseIn) {}
    /// `fh`: through which handle.
    fn fsync(&self, context: &Context, node: u64, fh: u64, data_only: bool) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn opendir(&self, context: &Context, node: u64) -> Answer<Opened> {
        Err(Errno::NOSYS)
    }
    fn readdir(&self, context: &Context, node: u64, offset: u64, out: &mut DirBuffer) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn releasedir(&self, context: &Context, node: u64) {}
    fn fsyncdir(&self, context: &Context, node: u64, data_only: bool) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn statfs(&self, context: &Context, node: u64) -> Answer<StatfsOut> {
        Err(Errno::NOSYS)
    }
    fn setxattr(
        &self,
        context: &Context,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        extra_flags: u32,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn getxattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }
    /// The names, each with its NUL.
    fn listxattr(&self, context: &Context, node: u64) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }
    fn removexattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn access(&self, context: &Context, node: u64, mask: u32) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn fallocate(&self, context: &Context, node: u64, args: &FallocateIn) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    fn lseek(&self, context: &Context, node: u64, args: &LseekIn) -> Answer<u64> {
        Err(Errno::NOSYS)
    }
    fn copy_file_range(&self, context: &Context, node: u64, args: &CopyFileRangeIn) -> Answer<u32> {
        Err(Errno::NOSYS)
    }
    fn syncfs(&self, context: &Context) -> Answer<()> {
        Err(Errno::NOSYS)
    }
    /// Comes after a request that has changed something, before it is answered: an error takes the place of the answer. `node`
    /// is the directory or the object. For file systems that make every change durable (mount options `sync`, `dirsync`). Not
    /// after what writes through a handle (`write`, `fallocate`, `copy_file_range`, `ioctl`, `setattr` of a size), which is to see to it
    /// itself.
    fn changed(&self, node: u64, change: Change) -> Answer<()> {
        Ok(())
    }
    /// Whether an ioctl with these arguments changes the object's contents. The kernel then is told to ask for its attributes
    /// again, which it does not do after an ioctl by itself.
    fn ioctl_writes(&self, args: &IoctlIn) -> bool {
        false
    }
    /// Gives the result and the bytes for the caller's buffer, at most `args.out_size`.
    fn ioctl(&self, context: &Context, node: u64, args: &IoctlIn, bytes: &[u8]) -> Answer<(i32, Vec<u8>)> {
        Err(Errno::NOTTY)
    }
}
