//! The requests, each of which becomes one call of naming.

use super::convert::{entry_of, file_type, node_of};
use super::handle::Handle;
use super::serving::{About, Serving};
use super::{Data, Synchronous};
use crate::abi::*;
use crate::control::{self, Refused};
use crate::decode::Context;
use crate::errno::Errno;
use crate::handler::{Answer, Attributes, Change, Entry, Handler, Opened, is_truncation};
use crate::negotiate::Caching;
use crate::reply::DirBuffer;
use holdfast_interface::Command;
use holdfast_naming::{
    Access, Create, Error, NewNode, Position, RenameMode, SetAttr, SpaceMode, TimeSet, XattrMode, is_fleeting,
};
use holdfast_object::{Durability, ObjectId, PAGE_SIZE, Seek, Timestamp};
use std::time::Duration;

/// How many bytes of a read there are before the first block that is bad, by the error for all of it; `None` if that is not known, or
/// there are none. For read(2), which gives those, and the error when it is asked for more. Not for pages of the kernel's, of mappings and with
/// `cache=kernel`: what is missing there is the end of the file for the kernel, which fills the pages with zeroes.
fn before_damage(error: &Error, offset: u64, size: u32) -> Option<usize> {
    let length = error.damage()?.block?.checked_mul(PAGE_SIZE as u64)?.checked_sub(offset)?;
    usize::try_from(length).ok().filter(|length| (1..size as usize).contains(length))
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

impl Handler for Serving<'_> {
    type Data = Data;

    fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        let directory = node_of(parent)?;
        let found = self.namespace().lookup(&self.request(context), directory, name);
        match found {
            // The kernel remembers that there is none; whatever makes one goes through it.
            Err(Error::NotFound { parent, .. }) if !is_fleeting(parent) => Ok(Entry {
                node: 0,
                generation: 0,
                attr: Attr::default(),
                name_valid: self.mount.options.valid,
                attr_valid: Duration::ZERO,
            }),
            found => self.entry(About::Name(directory, name), found),
        }
    }

    fn forget(&self, node: u64, count: u64) {
        if let Ok(id) = node_of(node) {
            self.note("forgetting an object", id, self.namespace().forget(id, count));
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
        let attributes = self.namespace().setattr(&self.request(context), id, &set);
        let attributes = self.attributes(id, attributes)?;
        if is_truncation(args) {
            self.done(About::Object(id), self.written(id, args.fh, None))?;
        }
        Ok(attributes)
    }

    fn readlink(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
        let id = node_of(node)?;
        self.done(About::Object(id), self.namespace().readlink(id))
    }

    fn symlink(&self, context: &Context, parent: u64, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let parent = node_of(parent)?;
        self.entry(About::Name(parent, name), self.namespace().symlink(&self.request(context), parent, name, target))
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
        let (request, parent) = (self.masked(context, umask), node_of(parent)?);
        let made = self.namespace().mknod(&request, parent, name, node, mode as u16 & 0o7777);
        self.entry(About::Name(parent, name), made)
    }

    fn mkdir(&self, context: &Context, parent: u64, name: &[u8], args: &MkdirIn) -> Answer<Entry> {
        let (request, parent) = (self.masked(context, args.umask), node_of(parent)?);
        let made = self.namespace().mkdir(&request, parent, name, args.mode as u16 & 0o7777);
        self.entry(About::Name(parent, name), made)
    }

    fn unlink(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        let parent = node_of(parent)?;
        self.done(About::Name(parent, name), self.namespace().unlink(&self.request(context), parent, name))
    }

    fn rmdir(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        let parent = node_of(parent)?;
        self.done(About::Name(parent, name), self.namespace().rmdir(&self.request(context), parent, name))
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
        let renamed = self.namespace().rename(&self.request(context), parent, name, new_parent, new_name, mode);
        self.done(About::Names((parent, name), (new_parent, new_name)), renamed)
    }

    fn link(&self, context: &Context, node: u64, new_parent: u64, new_name: &[u8]) -> Answer<Entry> {
        let (id, parent) = (node_of(node)?, node_of(new_parent)?);
        let linked = self.namespace().link(&self.request(context), id, parent, new_name);
        self.entry(About::Name(parent, new_name), linked)
    }

    fn open(&self, context: &Context, node: u64, args: &OpenIn) -> Answer<Opened> {
        let id = node_of(node)?;
        let opened = self.namespace().open(&self.request(context), id, wanted(args.flags), false);
        self.done(About::Object(id), opened).map(|()| self.opened(id, args.flags))
    }

    fn create(&self, context: &Context, parent: u64, name: &[u8], args: &CreateIn) -> Answer<(Entry, Opened)> {
        let exclusive = args.flags as i32 & libc::O_EXCL != 0;
        let truncate = args.flags as i32 & libc::O_TRUNC != 0;
        let how = Create { mode: args.mode as u16 & 0o7777, exclusive, wanted: wanted(args.flags), truncate };
        let parent = node_of(parent)?;
        let created = self.namespace().create(&self.masked(context, args.umask), parent, name, &how);
        let found = self.done(About::Name(parent, name), created)?.found;
        let opened = self.opened(found.id, args.flags);
        Ok((self.entry_of(&found), opened))
    }

    fn tmpfile(&self, context: &Context, parent: u64, args: &CreateIn) -> Answer<(Entry, Opened)> {
        let nameless = args.flags as i32 & libc::O_EXCL != 0;
        let (request, parent) = (self.masked(context, args.umask), node_of(parent)?);
        let found = self.namespace().tmpfile(&request, parent, args.mode as u16 & 0o7777, nameless);
        let found = self.done(About::Object(parent), found)?;
        let opened = self.opened(found.id, args.flags);
        Ok((self.entry_of(&found), opened))
    }

    fn read(&self, _: &Context, node: u64, args: &ReadIn) -> Answer<Data> {
        let quiet = args.flags as i32 & libc::O_NOATIME != 0;
        let id = node_of(node)?;
        let read = |length| self.namespace().read_quietly(id, args.offset, length, quiet);
        let mut answer = read(args.size as usize);
        if self.mount.options.caching == Caching::Direct && args.read_flags & READ_LOCKOWNER != 0 {
            // Each block that is met is before the one that was met first.
            while let Some(length) =
                answer.as_ref().err().and_then(|error| before_damage(error, args.offset, args.size))
            {
                answer = read(length);
            }
        }
        self.done(About::Object(id), answer.map(Data))
    }

    fn write(&self, context: &Context, node: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        let (request, id) = (self.request(context), node_of(node)?);
        let is_kernels = self.mount.options.caching == Caching::Kernel && args.write_flags & WRITE_CACHE != 0;
        // The kernel has set the times when the application wrote, and tells them by SETATTR.
        let written = if is_kernels {
            self.namespace().write_back(&request, id, args.offset, bytes)
        } else {
            let clear = args.write_flags & WRITE_KILL_SUIDGID != 0;
            let is_mapped = args.write_flags & WRITE_CACHE != 0;
            if args.flags as i32 & libc::O_APPEND != 0 && !is_mapped && self.mount.grown.may_be(node) {
                self.namespace().append(&request, id, bytes, clear)
            } else {
                self.namespace().write(&request, id, args.offset, bytes, clear)
            }
        };
        let written = self.done(About::Object(id), written)?;
        if is_kernels {
            // Under any handle of the file; those who wait for it say under which by FSYNC.
            if let Some(durability) = self.needs(asked_by(args.flags)) {
                self.done(About::Object(id), self.namespace().make_durable(id, durability))?;
            }
        } else {
            self.done(About::Object(id), self.written(id, args.fh, asked_by(args.flags)))?;
        }
        Ok(written as u32)
    }

    fn has_set_ids(&self, node: u64) -> bool {
        const SET_IDS: u16 = 0o6000;
        let attributes = node_of(node).ok().and_then(|id| self.namespace().getattr(id).ok());
        attributes.is_some_and(|attributes| attributes.mode & SET_IDS != 0)
    }

    fn release(&self, _: &Context, node: u64, args: &ReleaseIn) {
        self.mount.told.release(args.fh);
        if let Ok(id) = node_of(node) {
            self.note("closing a file", id, self.namespace().release(id));
        }
    }

    fn fsync(&self, _: &Context, node: u64, fh: u64, data_only: bool) -> Answer<()> {
        let id = node_of(node)?;
        let durability = if data_only { Durability::Data } else { Durability::All };
        self.done(About::Object(id), self.sync_through(id, fh, durability))
    }

    fn opendir(&self, context: &Context, node: u64) -> Answer<Opened> {
        let id = node_of(node)?;
        let opened = self.namespace().opendir(&self.request(context), id);
        self.done(About::Object(id), opened)?;
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
        self.done(About::Object(id), result)
    }

    fn releasedir(&self, _: &Context, node: u64) {
        if let Ok(id) = node_of(node) {
            self.note("closing a directory", id, self.namespace().release(id));
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
            return self.done(About::Object(id), self.namespace().set_acl(&request, id, name, value, true));
        }
        let mode = match flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        self.done(About::Object(id), self.namespace().setxattr(&request, id, name, value, mode))
    }

    fn getxattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let id = node_of(node)?;
        let value = self.namespace().getxattr(&self.request(context), id, name);
        self.done(About::Object(id), value)
    }

    fn listxattr(&self, context: &Context, node: u64) -> Answer<Vec<u8>> {
        let id = node_of(node)?;
        let names = self.done(About::Object(id), self.namespace().listxattr(&self.request(context), id))?;
        Ok(names
            .into_iter()
            .flat_map(|mut name| {
                name.push(0);
                name
            })
            .collect())
    }

    fn removexattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<()> {
        let id = node_of(node)?;
        self.done(About::Object(id), self.namespace().removexattr(&self.request(context), id, name))
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
        let done = done.and_then(|()| self.written(id, args.fh, Handle::of_raw(args.fh).sync()));
        self.done(About::Object(id), done)
    }

    fn lseek(&self, _: &Context, node: u64, args: &LseekIn) -> Answer<u64> {
        if self.mount.options.caching == Caching::Kernel {
            // The kernel asks without handing down what it still has, which may be data where there was none: a program that copies
            // only data would lose it. Told that this is not known here, it takes the whole file for data.
            return Err(Errno::NOSYS);
        }
        let what = match args.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let id = node_of(node)?;
        self.done(About::Object(id), self.namespace().seek(id, args.offset, what))
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
        let copied = self.done(About::Objects(source.id, target.id), copied)?;
        u32::try_from(copied).map_err(|_| Errno::IO)
    }

    fn syncfs(&self, _: &Context) -> Answer<()> {
        self.done(About::Object(ObjectId::ROOT), self.namespace().sync_all_and_tell().map(drop))
    }

    fn is_down(&self) -> bool {
        // First of all, so that the answer holds for what is served to this request.
        self.namespace();
        self.mount.control.is_down()
    }

    fn changed(&self, node: u64, change: Change) -> Answer<()> {
        match change {
            Change::Names if self.mount.options.synchronous != Synchronous::AsAsked => self.sync(node, false),
            Change::Names => Ok(()),
            // Of bad pages those are told who write or sync, each through his handle.
            Change::Object => self.needs(None).map_or(Ok(()), |durability| {
                let id = node_of(node)?;
                self.done(About::Object(id), self.namespace().make_durable(id, durability))
            }),
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
            return match self.mount.control.shut_down(context.uid) {
                Ok(true) => Ok((0, vec![0; size_of::<u32>()])),
                Ok(false) => Err(Errno::PERM),
                Err(error) => Err(self.errno(About::Object(node_of(node)?), &Error::Object(error))),
            };
        }
        match control::answer(&*self.mount.control, context.uid, args.cmd, bytes) {
            None => Err(Errno::NOTTY),
            Some(Ok(bytes)) => Ok((0, bytes)),
            Some(Err(Refused::Malformed)) => Err(Errno::INVAL),
            Some(Err(Refused::Failed(error))) => Err(self.errno(About::Object(node_of(node)?), &Error::Object(error))),
        }
    }
}
