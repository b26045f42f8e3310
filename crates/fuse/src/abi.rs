//! The kernel's FUSE ABI, protocol 7.41: structures as they are on the wire (UAPI `linux/fuse.h`), in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version spoken.
pub const MAJOR: u32 = 7;
/// Minor version spoken (Linux 6.12): the last before fields and requests that are not known here.
pub const MINOR: u32 = 41;
/// Oldest minor version that is understood: the one with `COPY_FILE_RANGE` and `max_pages`.
pub const MINOR_MIN: u32 = 31;

/// Bit 63 of `unique` marks a request that is sent again.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// Set in the flags of INIT: what kernel and daemon can do. 64 bits, the upper half in `flags2`.
#[allow(missing_docs)]
pub mod init_flags {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// Flags in the reply to an open.
#[allow(missing_docs)]
pub mod open_flags {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `valid` in SETATTR.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// In `read_flags`: has the owner of its locks, and so is of an application's read, not of the page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// In `write_flags`: comes from the page cache, some time after an application wrote it there.
pub const WRITE_CACHE: u32 = 1 << 0;
/// In `write_flags`: clear setuid and setgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In `setxattr_flags`: clear setgid, since the caller is not in the group of the file that gets an access control list.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// In `open_flags` of a request: clear setuid and setgid (with O_TRUNC).
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// In `fsync_flags`: fdatasync.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Extension type: supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// Operation codes.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($field:ident : $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire!(/// Starts every request.
    InHeader, 40, { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 });
wire!(/// Starts every reply and notification.
    OutHeader, 16, { len: u32, error: i32, unique: u64 });
wire!(/// Attributes of an object.
    Attr, 88, { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 });
wire!(/// A name found or made.
    EntryOut, 128, { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr });
wire!(AttrOut, 104, { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr });
wire!(InitIn, 64, { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] });
wire!(InitOut, 64, { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
    congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32,
    max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] });
wire!(GetattrIn, 16, { flags: u32, dummy: u32, fh: u64 });
wire!(SetattrIn, 88, { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
    atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 });
wire!(MknodIn, 16, { mode: u32, rdev: u32, umask: u32, padding: u32 });
wire!(MkdirIn, 8, { mode: u32, umask: u32 });
wire!(RenameIn, 8, { newdir: u64 });
wire!(Rename2In, 16, { newdir: u64, flags: u32, padding: u32 });
wire!(LinkIn, 8, { oldnodeid: u64 });
wire!(OpenIn, 8, { flags: u32, open_flags: u32 });
wire!(CreateIn, 16, { flags: u32, mode: u32, umask: u32, open_flags: u32 });
wire!(OpenOut, 16, { fh: u64, open_flags: u32, backing_id: i32 });
wire!(ReleaseIn, 24, { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 });
wire!(FlushIn, 24, { fh: u64, unused: u32, padding: u32, lock_owner: u64 });
wire!(ReadIn, 40, { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 });
wire!(WriteIn, 40, { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 });
wire!(WriteOut, 8, { size: u32, padding: u32 });
wire!(StatfsOut, 80, { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
    padding: u32, spare: [u32; 6] });
wire!(FsyncIn, 16, { fh: u64, fsync_flags: u32, padding: u32 });
wire!(SetxattrIn, 16, { size: u32, flags: u32, setxattr_flags: u32, padding: u32 });
wire!(/// Without `SETXATTR_EXT`.
    SetxattrCompatIn, 8, { size: u32, flags: u32 });
wire!(GetxattrIn, 8, { size: u32, padding: u32 });
wire!(AccessIn, 8, { mask: u32, padding: u32 });
wire!(InterruptIn, 8, { unique: u64 });
wire!(ForgetIn, 8, { nlookup: u64 });
wire!(BatchForgetIn, 8, { count: u32, dummy: u32 });
wire!(ForgetOne, 16, { nodeid: u64, nlookup: u64 });
wire!(IoctlIn, 32, { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 });
wire!(IoctlOut, 16, { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 });
wire!(FallocateIn, 32, { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 });
wire!(Dirent, 24, { ino: u64, off: u64, namelen: u32, kind: u32 });
wire!(LseekIn, 24, { fh: u64, offset: u64, whence: u32, padding: u32 });
wire!(LseekOut, 8, { offset: u64 });
wire!(CopyFileRangeIn, 56, { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 });
wire!(StatxIn, 24, { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 });
wire!(SxTime, 16, { tv_sec: i64, tv_nsec: u32, reserved: i32 });
wire!(Statx, 256, { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
    ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
    rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] });
wire!(StatxOut, 288, { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx });
wire!(ExtHeader, 8, { size: u32, kind: u32 });
wire!(InvalInodeOut, 24, { ino: u64, off: i64, len: i64 });
wire!(InvalEntryOut, 16, { parent: u64, namelen: u32, flags: u32 });
