//! Opening, creating, locking and sizing the file behind a device.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, SeekFrom, StatxFlags, fallocate, flock,
    fstat, fstatfs, fsync, ftruncate, ioctl_getflags, ioctl_setflags, seek, statx, unlink,
};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};

use super::transfer::Alignment;
use super::{Access, Kind};
use crate::{BLOCK_SIZE, Error, Operation};

/// An open file, locked and measured.
pub(super) struct Opened {
    pub(super) name: Arc<str>,
    pub(super) fd: OwnedFd,
    pub(super) kind: Kind,
    pub(super) blocks: u64,
    pub(super) direct: Option<Alignment>,
    pub(super) reserved: bool,
    /// For a loop device: the file under it, locked as if it were opened itself.
    pub(super) backing: Option<OwnedFd>,
}

const BTRFS_SUPER_MAGIC: u64 = 0x9123_683e;

pub(super) fn open(path: &Path, access: Access, direct_wanted: bool) -> Result<Opened, Error> {
    let name: Arc<str> = path.to_string_lossy().into();
    // Before opening: opening a FIFO would wait, opening a tape would wind it.
    let kind = kind_of(&name, rustix::fs::stat(path).map_err(|errno| failed(&name, Operation::Open, errno))?.st_mode)?;
    let mut flags = OFlags::CLOEXEC;
    flags |= if access == Access::ReadWrite { OFlags::RDWR } else { OFlags::RDONLY };
    if kind == Kind::Disk && access != Access::ReadOnlyUnlocked {
        flags |= OFlags::EXCL;
    }
    let (fd, direct) = open_direct(path, flags, direct_wanted).map_err(|errno| match errno {
        Errno::BUSY => Error::InUse { device: Arc::clone(&name) },
        errno => failed(&name, Operation::Open, errno),
    })?;
    let stat = fstat(&fd).map_err(|errno| failed(&name, Operation::Open, errno))?;
    if kind_of(&name, stat.st_mode)? != kind {
        return Err(Error::Unsuitable { device: name, reason: "it was replaced while being opened" });
    }
    let mut backing = None;
    if access != Access::ReadOnlyUnlocked {
        lock(&name, &fd, kind)?;
        if kind == Kind::Disk {
            backing = lock_backing_file(&name, stat.st_rdev)?;
        }
    }
    Ok(Opened { backing, ..measure(name, fd, kind, direct)? })
}

/// The file or disk behind `held`, by that, for reading and writing, with no lock of its own.
pub(super) fn open_again(name: Arc<str>, held: &OwnedFd, kind: Kind, direct_wanted: bool) -> Result<Opened, Error> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let (fd, direct) = open_direct(Path::new(&path), OFlags::CLOEXEC | OFlags::RDWR, direct_wanted)
        .map_err(|errno| failed(&name, Operation::Open, errno))?;
    measure(name, fd, kind, direct)
}

pub(super) fn create(path: &Path, size_bytes: u64) -> Result<Opened, Error> {
    let name: Arc<str> = path.to_string_lossy().into();
    crate::check_request(&name, Operation::Create, i64::MAX as u64 / BLOCK_SIZE as u64, 0, size_bytes)?;
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::RUSR | Mode::WUSR;
    // Not created with O_DIRECT: where that is refused, the file is left behind all the same.
    let fd = rustix::fs::open(path, flags, mode).map_err(|errno| failed(&name, Operation::Create, errno))?;
    let made = lock(&name, &fd, Kind::RegularFile).and_then(|()| {
        allocate(&fd, size_bytes)
            .and_then(|()| fsync(&fd))
            .and_then(|()| sync_parent(path))
            .map_err(|errno| failed(&name, Operation::Create, errno))?;
        let direct =
            rustix::fs::fcntl_getfl(&fd).and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::DIRECT)).is_ok();
        measure(Arc::clone(&name), fd, Kind::RegularFile, direct)
    });
    if made.is_err() {
        // Ours: O_EXCL has just created it.
        let _ = unlink(path);
    }
    made
}

pub(super) fn failed(name: &Arc<str>, operation: Operation, errno: Errno) -> Error {
    let device = Arc::clone(name);
    Error::Io { device, operation, first: None, length_bytes: 0, source: Arc::new(errno.into()) }
}

fn kind_of(name: &Arc<str>, mode: rustix::fs::RawMode) -> Result<Kind, Error> {
    let reason = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(Kind::RegularFile),
        FileType::BlockDevice => return Ok(Kind::Disk),
        FileType::Directory => "it is a directory",
        FileType::CharacterDevice => "it is a character device",
        _ => "it is neither a regular file nor a disk",
    };
    Err(Error::Unsuitable { device: Arc::clone(name), reason })
}

fn open_direct(path: &Path, flags: OFlags, direct: bool) -> rustix::io::Result<(OwnedFd, bool)> {
    if direct {
        match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            // How file systems without direct I/O answer.
            Err(Errno::INVAL | Errno::NOTSUP) => {}
            other => return other.map(|fd| (fd, true)),
        }
    }
    rustix::fs::open(path, flags, Mode::empty()).map(|fd| (fd, false))
}

/// Disks are held by O_EXCL already; udev takes short locks on them, which are nobody's use of the disk.
fn lock(name: &Arc<str>, fd: &OwnedFd, kind: Kind) -> Result<(), Error> {
    if kind == Kind::Disk {
        return Ok(());
    }
    lock_file(name, fd, FlockOperation::NonBlockingLockExclusive)
}

/// Locks the file that a loop device stands on, so that the store in it cannot be opened by the file's name at the same time,
/// nor through another loop device. Nothing for other disks, and where the file cannot be reached from here (deleted, or in
/// another mount name space).
fn lock_backing_file(name: &Arc<str>, device: u64) -> Result<Option<OwnedFd>, Error> {
    let sysfs = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition's directory is in its disk's. Partitions share the file: the kernel keeps them and the disk apart.
    let places = [
        (format!("{sysfs}/loop/backing_file"), FlockOperation::NonBlockingLockExclusive),
        (format!("{sysfs}/../loop/backing_file"), FlockOperation::NonBlockingLockShared),
    ];
    let Some((mut path, lock)) = places.into_iter().find_map(|(place, lock)| Some((std::fs::read(place).ok()?, lock)))
    else {
        return Ok(None);
    };
    if path.last() == Some(&b'\n') {
        path.pop();
    }
    let flags = OFlags::CLOEXEC | OFlags::RDONLY | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path.as_slice(), flags, Mode::empty()) {
        Ok(file) => file,
        Err(errno) => {
            tracing::debug!(device = %name, %errno, "the file under the loop device cannot be opened and is not locked");
            return Ok(None);
        }
    };
    lock_file(name, &file, lock)?;
    Ok(Some(file))
}

fn lock_file(name: &Arc<str>, fd: &OwnedFd, lock: FlockOperation) -> Result<(), Error> {
    // A child process of the last holder keeps the lock for the moment between its fork and its exec.
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..TRIES {
        match flock(fd, lock) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(errno) => return Err(failed(name, Operation::Lock, errno)),
        }
    }
    Err(Error::InUse { device: Arc::clone(name) })
}

fn measure(name: Arc<str>, fd: OwnedFd, kind: Kind, direct: bool) -> Result<Opened, Error> {
    // A disk's stat has no size, but its end can be sought (it is what BLKGETSIZE64 gives).
    let size_bytes = size_bytes(&fd).map_err(|errno| failed(&name, Operation::Open, errno))?;
    let is_allocated = is_allocated(&fd).map_err(|errno| failed(&name, Operation::Open, errno))?;
    let reserved = kind == Kind::Disk || is_allocated;
    let direct = if direct { alignment(&fd) } else { None };
    if direct.is_none() {
        // A refused flag must not stay on the descriptor: alignment is then not kept.
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|errno| failed(&name, Operation::Open, errno))?;
        rustix::fs::fcntl_setfl(&fd, flags & !OFlags::DIRECT).map_err(|errno| failed(&name, Operation::Open, errno))?;
    }
    Ok(Opened { name, fd, kind, blocks: size_bytes / BLOCK_SIZE as u64, direct, reserved, backing: None })
}

/// Where a file or disk ends.
pub(super) fn size_bytes(fd: &OwnedFd) -> rustix::io::Result<u64> {
    seek(fd, SeekFrom::End(0))
}

/// Whether the host has allocated all of a file.
pub(super) fn is_allocated(fd: &OwnedFd) -> rustix::io::Result<bool> {
    let allocated_bytes = u64::try_from(fstat(fd)?.st_blocks).unwrap_or(0).saturating_mul(512);
    Ok(allocated_bytes >= size_bytes(fd)?)
}

/// Makes a file larger, durably, with the new blocks allocated or not. For want of space it keeps its size.
pub(super) fn enlarge(fd: &OwnedFd, to_bytes: u64, allocated: bool) -> rustix::io::Result<()> {
    let old_bytes = size_bytes(fd)?;
    let enlarged = if allocated { allocate(fd, to_bytes) } else { ftruncate(fd, to_bytes) };
    if let Err(errno) = enlarged {
        // Part of it may have been allocated. If this fails as well, the file is larger than what is in it, which does no harm.
        let _ = ftruncate(fd, old_bytes);
        return Err(errno);
    }
    fsync(fd)
}

/// What direct I/O wants of buffers here; `None` if it cannot work in blocks of 4096 bytes.
fn alignment(fd: &OwnedFd) -> Option<Alignment> {
    const BLOCK: usize = BLOCK_SIZE;
    let whole_blocks = Alignment { memory: BLOCK, length: BLOCK };
    let Ok(answer) = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Some(whole_blocks) };
    if StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::DIOALIGN) {
        let (memory, length) = (answer.stx_dio_mem_align as usize, answer.stx_dio_offset_align as usize);
        // Zero says that direct I/O is not supported on this file.
        let usable = |value: usize| value.is_power_of_two() && value <= BLOCK;
        return (usable(memory) && usable(length)).then_some(Alignment { memory, length });
    }
    // A kernel or file system that does not tell: whole blocks suit every disk with sectors up to 4096 bytes.
    Some(whole_blocks)
}

/// Gives the file its size, with every block allocated if the file system can, sparse if not.
fn allocate(fd: &OwnedFd, size_bytes: u64) -> rustix::io::Result<()> {
    let on_btrfs = fstatfs(fd).is_ok_and(|statfs| statfs.f_type as u64 == BTRFS_SUPER_MAGIC);
    if on_btrfs && let Ok(flags) = ioctl_getflags(fd) {
        // Only an empty file takes it. Without it an overwrite needs new space; our own checksums replace btrfs's.
        let _ = ioctl_setflags(fd, flags | IFlags::NOCOW);
    }
    loop {
        return match fallocate(fd, FallocateFlags::empty(), 0, size_bytes) {
            Err(Errno::INTR) => continue,
            Err(Errno::NOTSUP | Errno::NOSYS) => ftruncate(fd, size_bytes),
            other => other,
        };
    }
}

/// Makes the file's name durable.
fn sync_parent(path: &Path) -> rustix::io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match fsync(&directory) {
        // Some network and user-space file systems cannot sync directories.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(()),
        other => other,
    }
}

/// Whether a disk makes zeros without their being sent to it, as its kernel says.
pub(super) fn makes_zeros(disk: &OwnedFd) -> bool {
    let Ok(number) = rustix::fs::fstat(disk).map(|stat| stat.st_rdev) else { return false };
    let of = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    // A partition's queue is its disk's.
    let said = ["queue", "../queue"].map(|at| std::fs::read_to_string(format!("{of}/{at}/write_zeroes_max_bytes")));
    said.into_iter().flatten().next().is_some_and(|most| most.trim().parse::<u64>().is_ok_and(|most| most > 0))
}

/// Tells a disk that a range of bytes is no longer needed.
pub(super) fn trim(disk: &OwnedFd, start_bytes: u64, length_bytes: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two u64 (start, length) through its argument and writes nothing.
    unsafe { ioctl(disk, Setter::<BLKDISCARD, [u64; 2]>::new([start_bytes, length_bytes])) }
}
