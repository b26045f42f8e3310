//! A name space as a FUSE file system: each request becomes one call of naming, each error an errno.
//!
//! Node numbers are object ids, handles carry the flags of the open (naming keeps counts, not handles), so that both stay valid
//! when another process takes over. What a handle has been told of bad pages is kept beside it.

mod convert;
mod handle;
mod memory;
mod served;
mod summed;
mod told;

use crate::abi::*;
use crate::control::{self, Control};
use crate::decode::Context;
use crate::errno::Errno;
use crate::handler::{Answer, Attributes, Change, Entry, Handler, Opened};
use crate::negotiate::Caching;
use crate::reply::{DirBuffer, Slices};
use convert::{attr, entry_of, file_type, node_of};
use handle::Handle;
use holdfast_interface::Command;
use holdfast_naming::{
    Access, Caller, Create, Error, ErrorKind, Found, Namespace, NewNode, Position, ReadData, RenameMode, Request,
    SetAttr, SpaceMode, TimeSet, XattrMode, is_fleeting,
};
use holdfast_object::{Durability, ObjectId, RequestId, Seek, Timestamp};
use parking_lot::RwLockReadGuard;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use told::Told;

pub use served::Served;

/// Which changes are durable before they are answered (mount(8), `sync` and `dirsync`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// Those that fsync, fdatasync or O_SYNC ask for.
    #[default]
    AsAsked,
    /// And all changes of names.
    Names,
    /// All.
    Everything,
}

/// How a mount behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the kernel may remember names and attributes. All changes come through the same kernel, which knows what
    /// they invalidate.
    pub valid: Duration,
    /// Distinguishes this mount's requests from those of others.
    pub client: u32,
    /// Who keeps the pages of files: what was agreed with the kernel.
    pub caching: Caching,
    /// What is durable without being asked.
    pub synchronous: Synchronous,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            valid: Duration::from_secs(3600),
            client: 0,
            caching: Caching::Direct,
            synchronous: Synchronous::AsAsked,
        }
    }
}

/// A mounted name space.
pub struct Filesystem {
    served: Arc<Served>,
    control: Arc<dyn Control>,
    options: Options,
    told: Told,
    /// For the next handle.
    handles: AtomicU64,
}

/// Verified bytes of a read, in the pages that hold them.
pub struct Data(ReadData);

impl Slices for Data {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.slices()
    }
}

impl Filesystem {
    /// Serves a name space whose permissions the kernel checks (`default_permissions`).
    pub fn new(served: Arc<Served>, control: Arc<dyn Control>, options: Options) -> Filesystem {
        // Not the numbers of the process that served the mount before, as far as files can be open that long.
        let handles = AtomicU64::new(u64::from(options.client) << 24);
        Filesystem { served, control, options, told: Told::default(), handles }
    }

    fn namespace(&self) -> RwLockReadGuard<'_, Arc<Namespace>> {
        self.served.get()
    }

    fn request(&self, context: &Context) -> Request {
        Request {
            id: Some(RequestId { client: self.options.client, unique: context.unique }),
            caller: Caller { uid: context.uid, gid: context.gid, groups: context.groups.clone() },
            umask: 0,
        }
    }

    /// The request of a caller with this umask.
    fn masked(&self, context: &Context, umask: u32) -> Request {
        Request { umask: umask as u16 & 0o777, ..self.request(context) }
    }

    /// The error's number. What is wrong with the store, not with the request, is also told in words. (That it takes no changes was
    /// told when that began, or was asked for, or the caller writes in a snapshot.)
    fn errno(&self, error: &Error) -> Errno {
        self.errno_at(error, || None)
    }

    /// The same of a request about an object.
    fn errno_of(&self, id: ObjectId, error: &Error) -> Errno {
        self.errno_at(error, || Some(self.namespace().path_of(id)))
    }

    /// The same; `asked` is the path that the request was about, for errors that are about none (a page of the object table).
    fn errno_at(&self, error: &Error, asked: impl FnOnce() -> Option<Vec<u8>>) -> Errno {
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal) {
            match self.namespace().path_of_error(error).or_else(asked) {
                Some(path) => tracing::error!(path = %path.escape_ascii(), %error, "request failed"),
                None => tracing::error!(%error, "request failed"),
            }
        }
        Errno::from(error)
    }

    /// How long the kernel may remember an object.
    fn valid(&self, id: ObjectId) -> Duration {
        if is_fleeting(id) { Duration::ZERO } else { self.options.valid }
    }

    fn entry(&self, found: Result<Found, Error>) -> Answer<Entry> {
        let found = found.map_err(|error| self.errno(&error))?;
        Ok(entry_of(found.id, &found.attributes, self.valid(found.id)))
    }

    fn attributes(&self, id: ObjectId, found: Result<holdfast_object::Attributes, Error>) -> Answer<Attributes> {
        let found = found.map_err(|error| self.errno_of(id, &error))?;
        let btime = (found.btime.secs, found.btime.nanos);
        Ok(Attributes { attr: attr(id, &found), btime, valid: self.valid(id) })
    }

    fn done(&self, result: Result<(), Error>) -> Answer<()> {
        result.map_err(|error| self.errno(&error))
    }

    fn opened(&self, id: ObjectId, open_flags: u32) -> Opened {
        let handle = Handle::new(open_flags, self.handles.fetch_add(1, Ordering::Relaxed));
        self.told.open(&self.namespace(), id, handle.raw());
        let flags = match self.options.caching {
            Caching::Direct => open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES,
            // Everything that changes a file goes through the same kernel, so what it has stays right.
            Caching::Kernel => open_flags::KEEP_CACHE,
        };
        Opened { fh: handle.raw(), flags }
    }

    /// For requests without an answer.
    fn note(&self, what: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            tracing::warn!(%error, what, "failed");
        }
    }

    /// Makes a file durable for whoever has it open under `handle`, and tells it of bad pages.
    fn sync_through(&self, id: ObjectId, handle: u64, durability: Durability) -> Result<(), Error> {
        let namespace = self.namespace();
        namespace.make_durable(id, durability)?;
        self.told.tell(&namespace, id, handle)
    }

    /// What a change of an object's contents or attributes has to make durable before it is answered, where the flags of the open ask
    /// for `asked`.
    fn needs(&self, asked: Option<Durability>) -> Option<Durability> {
        if self.options.synchronous == Synchronous::Everything { Some(Durability::All) } else { asked }
    }

    /// To be called after every write through a handle, of whatever kind, whose open asked for `asked`.
    fn written(&self, id: ObjectId, handle: u64, asked: Option<Durability>) -> Result<(), Error> {
        self.needs(asked).map_or(Ok(()), |durability| self.sync_through(id, handle, durability))
    }

    fn sync(&self, node: u64, data_only: bool) -> Answer<()> {
        self.done(self.namespace().sync(node_of(node)?, durability(data_only)))
    }
}

fn durability(data_only: bool) -> Durability {
    if data_only { Durability::Data } else { Durability::All }
}

/// What the flags of open(2) ask every write to make durable.
fn asked_by(flags: u32) -> Option<Durability> {
    // O_SYNC has the bit of O_DSYNC, and one more.
    match flags as i32 & libc::O_SYNC {
        libc::O_SYNC => Some(Durability::All),
        libc::O_DSYNC => Some(Durability::Data),
        _ => None,
    }
}

/// The access that the flags of open(2) ask for.
fn wanted(flags: u32) -> Access {
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ,
        libc::O_WRONLY => Access::WRITE,
        _ => Access::READ.and(Access::WRITE),
    }
}

fn time(secs: u64, nanos: u32) -> Timestamp {
    Timestamp { secs: secs as i64, nanos }
}

impl Handler for Filesystem {
    type Data = Data;

    fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        let directory = node_of(parent)?;
        let path = || {
            let mut path = self.namespace().path_of(directory);
            path.extend(if path == b"/" { &b""[..] } else { b"/" });
            path.extend_from_slice(name);
            Some(path)
        };
        let found = self.namespace().lookup(&self.request(context), directory, name);
        match found {
            // The kernel remembers that there is none; whatever makes one goes through it.
            Err(Error::NotFound { parent, .. }) if !is_fleeting(parent) => Ok(Entry {
                node: 0,
                generation: 0,
                attr: Attr::default(),
                name_valid: self.options.valid,
                attr_valid: Duration::ZERO,
            }),
            Err(error) => Err(self.errno_at(&error, path)),
            found => self.entry(found),
        }
    }

    fn forget(&self, node: u64, count: u64) {
        if let Ok(id) = node_of(node) {
            self.note("forgetting an object", self.namespace().forget(id, count));
        }
    }

    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        let id = node_of(node)?;
        self.attributes(id, self.namespace().getattr(id))
    }

    fn setattr(&self, context: &Context, node: u64, args: &SetattrIn) -> Answer<Attributes> {
        let id = node_of(node)?;
        let has = |bit: u32| args.valid & bit != 0;
        let time_set =
            |set: u32, now: u32, at: Timestamp| has(set).then(|| if has(now) { TimeSet::Now } else { TimeSet::At(at) });
        let set = SetAttr {
            mode: has(fattr::MODE).then_some(args.mode as u16 & 0o7777),
            uid: has(fattr::UID).then_some(args.uid),
            gid: has(fattr::GID).then_some(args.gid),
            size: has(fattr::SIZE).then_some(args.size),
            atime: time_set(fattr::ATIME, fattr::ATIME_NOW, time(args.atime, args.atimensec)),
            mtime: time_set(fattr::MTIME, fattr::MTIME_NOW, time(args.mtime, args.mtimensec)),
            ctime: has(fattr::CTIME).then(|| time(args.ctime, args.ctimensec)),
            clear_set_ids: has(fattr::KILL_SUIDGID),
            opened: has(fattr::FH),
        };
        self.attributes(id, self.namespace().setattr(&self.request(context), id, &set))
    }

    fn readlink(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
        let id = node_of(node)?;
        self.namespace().readlink(id).map_err(|error| self.errno_of(id, &error))
    }

    fn symlink(&self, context: &Context, parent: u64, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.entry(self.namespace().symlink(&self.request(context), node_of(parent)?, name, target))
    }

    fn mknod(&self, context: &Context, parent: u64, name: &[u8], args: &MknodIn) -> Answer<Entry> {
        let MknodIn { mode, rdev, umask, .. } = *args;
        let node = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => NewNode::Regular,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(rdev),
            libc::S_IFBLK => NewNode::BlockDevice(rdev),
            _ => return Err(Errno::INVAL),
        };
        // A device number is kept as the kernel encodes it for FUSE: it comes and goes unchanged.
        let request = self.masked(context, umask);
        self.entry(self.namespace().mknod(&request, node_of(parent)?, name, node, mode as u16 & 0o7777))
    }

    fn mkdir(&self, context: &Context, parent: u64, name: &[u8], args: &MkdirIn) -> Answer<Entry> {
        let request = self.masked(context, args.umask);
        self.entry(self.namespace().mkdir(&request, node_of(parent)?, name, args.mode as u16 & 0o7777))
    }

    fn unlink(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.done(self.namespace().unlink(&self.request(context), node_of(parent)?, name))
    }

    fn rmdir(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.done(self.namespace().rmdir(&self.request(context), node_of(parent)?, name))
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
        const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout { replace: true },
            WHITEOUT_NOREPLACE => RenameMode::Whiteout { replace: false },
            _ => return Err(Errno::INVAL),
        };
        let (parent, new_parent) = (node_of(parent)?, node_of(new_parent)?);
        self.done(self.namespace().rename(&self.request(context), parent, name, new_parent, new_name, mode))
    }

    fn link(&self, context: &Context, node: u64, new_parent: u64, new_name: &[u8]) -> Answer<Entry> {
        self.entry(self.namespace().link(&self.request(context), node_of(node)?, node_of(new_parent)?, new_name))
    }

    fn open(&self, context: &Context, node: u64, args: &OpenIn) -> Answer<Opened> {
        let id = node_of(node)?;
        let opened = self.namespace().open(&self.request(context), id, wanted(args.flags), false);
        opened.map(|()| self.opened(id, args.flags)).map_err(|error| self.errno_of(id, &error))
    }

    fn create(&self, context: &Context, parent: u64, name: &[u8], args: &CreateIn) -> Answer<(Entry, Opened)> {
        let exclusive = args.flags as i32 & libc::O_EXCL != 0;
        let truncate = args.flags as i32 & libc::O_TRUNC != 0;
        let how = Create { mode: args.mode as u16 & 0o7777, exclusive, wanted: wanted(args.flags), truncate };
        let created = self.namespace().create(&self.masked(context, args.umask), node_of(parent)?, name, &how);
        let found = created.map(|created| created.found).map_err(|error| self.errno(&error))?;
        let opened = self.opened(found.id, args.flags);
        Ok((self.entry(Ok(found))?, opened))
    }

    fn tmpfile(&self, context: &Context, parent: u64, args: &CreateIn) -> Answer<(Entry, Opened)> {
        let nameless = args.flags as i32 & libc::O_EXCL != 0;
        let request = self.masked(context, args.umask);
        let found = self.namespace().tmpfile(&request, node_of(parent)?, args.mode as u16 & 0o7777, nameless);
        let found = found.map_err(|error| self.errno(&error))?;
        let opened = self.opened(found.id, args.flags);
        Ok((self.entry(Ok(found))?, opened))
    }

    fn read(&self, _: &Context, node: u64, args: &ReadIn) -> Answer<Data> {
        let quiet = args.flags as i32 & libc::O_NOATIME != 0;
        let id = node_of(node)?;
        let read = self.namespace().read_quietly(id, args.offset, args.size as usize, quiet);
        read.map(Data).map_err(|error| self.errno_of(id, &error))
    }

    fn write(&self, context: &Context, node: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        let (request, id) = (self.request(context), node_of(node)?);
        let is_kernels = self.options.caching == Caching::Kernel && args.write_flags & WRITE_CACHE != 0;
        // The kernel has set the times when the application wrote, and tells them by SETATTR.
        let written = if is_kernels {
            self.namespace().write_back(&request, id, args.offset, bytes)
        } else {
            let clear = args.write_flags & WRITE_KILL_SUIDGID != 0;
            self.namespace().write(&request, id, args.offset, bytes, clear)
        };
        let written = written.map_err(|error| self.errno(&error))?;
        if is_kernels {
            // Under any handle of the file; those who wait for it say under which by FSYNC.
            if let Some(durability) = self.needs(asked_by(args.flags)) {
                self.done(self.namespace().make_durable(id, durability))?;
            }
        } else {
            self.done(self.written(id, args.fh, asked_by(args.flags)))?;
        }
        Ok(written as u32)
    }

    fn has_set_ids(&self, node: u64) -> bool {
        const SET_IDS: u16 = 0o6000;
        let attributes = node_of(node).ok().and_then(|id| self.namespace().getattr(id).ok());
        attributes.is_some_and(|attributes| attributes.mode & SET_IDS != 0)
    }

    fn release(&self, _: &Context, node: u64, args: &ReleaseIn) {
        self.told.release(args.fh);
        if let Ok(id) = node_of(node) {
            self.note("closing a file", self.namespace().release(id));
        }
    }

    fn fsync(&self, _: &Context, node: u64, fh: u64, data_only: bool) -> Answer<()> {
        self.done(self.sync_through(node_of(node)?, fh, durability(data_only)))
    }

    fn opendir(&self, context: &Context, node: u64) -> Answer<Opened> {
        let id = node_of(node)?;
        let opened = self.namespace().opendir(&self.request(context), id);
        opened.map_err(|error| self.errno_of(id, &error))?;
        Ok(Opened { fh: 0, flags: 0 })
    }

    fn readdir(&self, _: &Context, node: u64, offset: u64, out: &mut DirBuffer) -> Answer<()> {
        let id = node_of(node)?;
        let result = if out.is_plus() {
            self.namespace().readdir_with_attributes(id, offset, |entry, attributes| {
                // The kernel does not look `.` and `..` up, and must not get to remember them.
                let dots = entry.name == b"." || entry.name == b"..";
                let full = attributes.filter(|_| !dots).map(|found| entry_of(entry.id, found, self.valid(entry.id)));
                out.push(entry.id.0, entry.cookie, file_type(entry.kind), entry.name, full.as_ref())
            })
        } else {
            self.namespace().readdir(id, offset, |entry| {
                out.push(entry.id.0, entry.cookie, file_type(entry.kind), entry.name, None)
            })
        };
        result.map_err(|error| self.errno_of(id, &error))
    }

    fn releasedir(&self, _: &Context, node: u64) {
        if let Ok(id) = node_of(node) {
            self.note("closing a directory", self.namespace().release(id));
        }
    }

    fn fsyncdir(&self, _: &Context, node: u64, data_only: bool) -> Answer<()> {
        self.sync(node, data_only)
    }

    fn statfs(&self, _: &Context, _: u64) -> Answer<StatfsOut> {
        let room = self.namespace().statfs();
        Ok(StatfsOut {
            blocks: room.blocks,
            bfree: room.free,
            bavail: room.available,
            files: room.files,
            ffree: room.files_free,
            bsize: room.block_bytes,
            frsize: room.block_bytes,
            namelen: room.name_max,
            ..StatfsOut::default()
        })
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
        let (request, id) = (self.request(context), node_of(node)?);
        if extra_flags & SETXATTR_ACL_KILL_SGID != 0 {
            return self.done(self.namespace().set_acl(&request, id, name, value, true));
        }
        let mode = match flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        self.done(self.namespace().setxattr(&request, id, name, value, mode))
    }

    fn getxattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let id = node_of(node)?;
        let value = self.namespace().getxattr(&self.request(context), id, name);
        value.map_err(|error| self.errno_of(id, &error))
    }

    fn listxattr(&self, context: &Context, node: u64) -> Answer<Vec<u8>> {
        let names = self.namespace().listxattr(&self.request(context), node_of(node)?);
        let names = names.map_err(|error| self.errno(&error))?;
        Ok(names
            .into_iter()
            .flat_map(|mut name| {
                name.push(0);
                name
            })
            .collect())
    }

    fn removexattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<()> {
        self.done(self.namespace().removexattr(&self.request(context), node_of(node)?, name))
    }

    fn fallocate(&self, context: &Context, node: u64, args: &FallocateIn) -> Answer<()> {
        let mode = args.mode as i32;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => SpaceMode::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => SpaceMode::Punch,
            libc::FALLOC_FL_ZERO_RANGE => SpaceMode::Zero { keep_size },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let (request, id) = (self.request(context), node_of(node)?);
        let done = self.namespace().allocate(&request, id, args.offset, args.length, mode, context.uid != 0);
        self.done(done.and_then(|()| self.written(id, args.fh, Handle::of_raw(args.fh).sync())))
    }

    fn lseek(&self, _: &Context, node: u64, args: &LseekIn) -> Answer<u64> {
        if self.options.caching == Caching::Kernel {
            // The kernel asks without handing down what it still has, which may be data where there was none: a program that copies
            // only data would lose it. Told that this is not known here, it takes the whole file for data.
            return Err(Errno::NOSYS);
        }
        let what = match args.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        self.namespace().seek(node_of(node)?, args.offset, what).map_err(|error| self.errno(&error))
    }

    fn copy_file_range(&self, context: &Context, node: u64, args: &CopyFileRangeIn) -> Answer<u32> {
        let source = Position { id: node_of(node)?, offset: args.off_in };
        let target = Position { id: node_of(args.nodeid_out)?, offset: args.off_out };
        let request = self.request(context);
        // The reply has 32 bits for the count.
        let length = args.len.min(1 << 30);
        let copied = self.namespace().copy_range(&request, source, target, length, context.uid != 0);
        let asked = Handle::of_raw(args.fh_out).sync();
        let copied = copied.and_then(|copied| self.written(target.id, args.fh_out, asked).map(|()| copied));
        let copied = copied.map_err(|error| self.errno(&error))?;
        u32::try_from(copied).map_err(|_| Errno::IO)
    }

    fn syncfs(&self, _: &Context) -> Answer<()> {
        self.done(self.namespace().sync_all_and_tell().map(drop))
    }

    fn is_down(&self) -> bool {
        self.control.is_down()
    }

    fn changed(&self, node: u64, change: Change) -> Answer<()> {
        match change {
            Change::Names if self.options.synchronous != Synchronous::AsAsked => self.sync(node, false),
            Change::Names => Ok(()),
            // Of bad pages those are told who write or sync, each through his handle.
            Change::Object => self
                .needs(None)
                .map_or(Ok(()), |durability| self.done(self.namespace().make_durable(node_of(node)?, durability))),
        }
    }

    fn ioctl_writes(&self, args: &IoctlIn) -> bool {
        matches!(Command::of(args.cmd), Some(Command::Write | Command::WriteFrom))
    }

    fn ioctl(&self, context: &Context, node: u64, args: &IoctlIn, bytes: &[u8]) -> Answer<(i32, Vec<u8>)> {
        if let Some(command) = Command::of(args.cmd) {
            return Ok((0, self.summed(command, context, node, args, bytes)?));
        }
        if args.cmd == control::FS_IOC_SHUTDOWN {
            return match self.control.shut_down(context.uid) {
                Ok(true) => Ok((0, vec![0; size_of::<u32>()])),
                Ok(false) => Err(Errno::PERM),
                Err(error) => Err(self.errno(&Error::Object(error))),
            };
        }
        match control::answer(&*self.control, context.uid, args.cmd, bytes) {
            None => Err(Errno::NOTTY),
            Some(Ok(bytes)) => Ok((0, bytes)),
            Some(Err(error)) => Err(self.errno(&Error::Object(error))),
        }
    }
}
