//! A regular file or a disk as a block device.
//!
//! Transfers go past the page cache (O_DIRECT) where the file system allows it; memory that is not aligned as the device
//! wants it goes through an aligned bounce buffer. Where O_DIRECT is refused the page cache is used instead:
//! [`FileDevice::is_direct`] tells, and a flush is as good, but reads may then be answered from memory that nothing checks.
//!
//! **Exclusive use.** A regular file is locked with flock(2), a disk opened with O_EXCL (which excludes mounts, swap and
//! other exclusive openers, not a plain `dd`). Of a loop device the file under it is locked as well. The lock belongs to the open file description: it ends with the process
//! that holds it, however that ends.
//!
//! **Space.** [`FileDevice::create_file`] allocates the whole file, so that a host that fills up later cannot fail a write.
//! On a fully allocated file a discard keeps the blocks allocated and does nothing (until
//! [`FileDevice::give_up_reservation`]); on a sparse one it punches a hole; on
//! a disk it is a trim. Copy-on-write hosts may allocate anew on every overwrite: on btrfs the new file is marked NOCOW.

mod batch;
mod early;
mod extents;
mod open;
mod ring;
#[cfg(test)]
mod tests;
mod transfer;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, FileType, fallocate, fdatasync, fstat};
use rustix::io::Errno;

use crate::device::{check_request, total, total_mut};
use crate::nbd::{Context, Extent, Extents};
use crate::{BLOCK_SIZE, Device, Error, Latch, Operation, Read, Write};
use open::Opened;
use ring::Rings;
use transfer::{Alignment, Failure};

/// How a [`FileDevice`] is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading and writing, exclusively.
    ReadWrite,
    /// For reading, exclusively: nothing changes while a check runs.
    ReadOnly,
    /// For reading, without a lock: what is read may be changing, if somebody else has the device open.
    ReadOnlyUnlocked,
}

/// What a [`FileDevice`] stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    RegularFile,
    Disk,
}

/// A regular file or disk as a block device. See the [crate] documentation for the promises, and [`Access`] for the locks.
#[derive(Debug)]
pub struct FileDevice {
    name: Arc<str>,
    fd: OwnedFd,
    kind: Kind,
    access: Access,
    blocks: AtomicU64,
    /// What direct I/O asks of memory; `None` when the page cache is used.
    direct: Option<Alignment>,
    reserved: AtomicBool,
    zeros: Zeros,
    /// See [`FileDevice::write_early`].
    is_early: AtomicBool,
    latch: Latch,
    rings: Rings,
    /// Held for its lock: the file under a loop device.
    _backing: Option<OwnedFd>,
    /// Held for its lock: see [`FileDevice::open_writable`].
    _locked: Option<Arc<FileDevice>>,
}

/// Whether zeros can be made without being written.
#[derive(Default, Debug)]
struct Zeros {
    /// The file system, or disk, has not taken some.
    are_refused: AtomicBool,
    /// The disk does not do it; found out when it is asked for.
    disk_writes: OnceLock<bool>,
}

impl FileDevice {
    /// Opens an existing file or disk, with direct I/O if it can be had. A file's tail shorter than a block is not used.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Unsuitable`] for anything but a regular file or block device, [`Error::Io`].
    pub fn open(path: &Path, access: Access) -> Result<Self, Error> {
        Ok(Self::from_opened(open::open(path, access, true)?, access))
    }

    /// Opens through the page cache, even where direct I/O could be had.
    ///
    /// # Errors
    /// As for [`FileDevice::open`].
    pub fn open_buffered(path: &Path, access: Access) -> Result<Self, Error> {
        Ok(Self::from_opened(open::open(path, access, false)?, access))
    }

    /// Opens the same file or disk, wherever it is by now, for writing as well, under the lock of `locked`, which stays held without a gap.
    ///
    /// # Errors
    /// [`Error::Io`], in particular if it may not be written to. [`Error::Unsuitable`] if `locked` has no lock.
    pub fn open_writable(locked: Arc<FileDevice>) -> Result<Self, Error> {
        let (name, buffered) = (Arc::clone(&locked.name), locked.direct.is_none());
        if locked.access == Access::ReadOnlyUnlocked {
            return Err(Error::Unsuitable { device: name, reason: "it was opened without a lock" });
        }
        let opened = open::open_again(name, &locked.fd, locked.kind, !buffered)?;
        Ok(FileDevice { _locked: Some(locked), ..Self::from_opened(opened, Access::ReadWrite) })
    }

    /// Whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// Creates a file of `size_bytes` (a non-zero multiple of 4096), allocated in full if the host can
    /// ([`FileDevice::is_reserved`] tells), and opens it for writing. It reads as zeros. File and name are durable on return.
    ///
    /// # Errors
    /// [`Error::Io`], in particular if the path exists or the host lacks the space; then no file is left behind.
    /// [`Error::Misaligned`] for a bad size.
    pub fn create_file(path: &Path, size_bytes: u64) -> Result<Self, Error> {
        Ok(Self::from_opened(open::create(path, size_bytes)?, Access::ReadWrite))
    }

    fn from_opened(opened: Opened, access: Access) -> Self {
        let Opened { name, fd, kind, blocks, direct, reserved, backing } = opened;
        let blocks = AtomicU64::new(blocks);
        let (reserved, latch, rings) = (AtomicBool::new(reserved), Latch::new(), Rings::default());
        let (zeros, is_early) = (Zeros::default(), AtomicBool::new(false));
        FileDevice {
            name,
            fd,
            kind,
            access,
            blocks,
            direct,
            reserved,
            zeros,
            is_early,
            latch,
            rings,
            _backing: backing,
            _locked: None,
        }
    }

    /// Whether transfers go past the page cache. If not, the caller may want to warn.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether the host has allocated every block, so that it cannot run out of space under a write. Always so for a disk
    /// (thinly provisioned disks cannot be told from others).
    pub fn is_reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    /// From now on discards punch holes, also in a file that was allocated in full: the host gets the space, and may have
    /// none left when the blocks are written again.
    pub fn give_up_reservation(&self) {
        if self.kind == Kind::RegularFile {
            self.reserved.store(false, Ordering::Relaxed);
        }
    }

    /// Whether this is a disk, and not a regular file.
    pub fn is_disk(&self) -> bool {
        self.kind == Kind::Disk
    }

    /// The write or flush failure that latched the device, if one did.
    pub fn latched(&self) -> Option<&Error> {
        self.latch.cause()
    }

    /// Refuses changes to a read-only or latched device.
    fn check_writable(&self, operation: Operation, first: Option<u64>, length_bytes: u64) -> Result<(), Error> {
        if self.access != Access::ReadWrite {
            return Err(Error::ReadOnly { device: Arc::clone(&self.name), operation, first, length_bytes });
        }
        self.latch.check(&self.name, operation, first, length_bytes)
    }

    /// That nobody has cut the file off, before it is written to: a write behind its new end would make it as long as it was, and what is
    /// gone would be zeros.
    fn check_length(&self, operation: Operation, first: Option<u64>, length_bytes: u64) -> Result<(), Error> {
        if self.kind == Kind::Disk {
            return Ok(());
        }
        let expected = self.blocks();
        let found = fstat(&self.fd).map_err(|errno| open::failed(&self.name, operation, errno))?;
        let blocks = u64::try_from(found.st_size).unwrap_or(0) / BLOCK_SIZE as u64;
        let is_whole = blocks >= expected || !FileType::from_raw_mode(found.st_mode).is_file();
        self.latch.watch(match is_whole {
            true => Ok(()),
            false => {
                Err(Error::Shrunk { device: Arc::clone(&self.name), operation, first, length_bytes, blocks, expected })
            }
        })
    }

    /// Blocks of a disk that has fewer than it had: one that is pulled out has none, and the kernel says of a write behind the end that there is
    /// no space. One that is full itself keeps its size.
    fn shrunk_to(&self) -> Option<u64> {
        if self.kind != Kind::Disk {
            return None;
        }
        let blocks = open::size_bytes(&self.fd).ok()? / BLOCK_SIZE as u64;
        (blocks < self.blocks()).then_some(blocks)
    }

    fn failure(&self, operation: Operation, first: u64, length_bytes: u64, failure: Failure) -> Error {
        let device = Arc::clone(&self.name);
        let shrunk_to = if matches!(failure, Failure::System(Errno::NOSPC)) { self.shrunk_to() } else { None };
        if let Some(blocks) = shrunk_to {
            let (first, expected) = (Some(first), self.blocks());
            return Error::Shrunk { device, operation, first, length_bytes, blocks, expected };
        }
        match failure {
            Failure::System(errno) => {
                Error::Io { device, operation, first: Some(first), length_bytes, source: Arc::new(errno.into()) }
            }
            Failure::EndedEarly { done_bytes } => {
                Error::EndedEarly { device, operation, first, length_bytes, done_bytes }
            }
        }
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let length_bytes = total_mut(bufs);
        check_request(&self.name, Operation::Read, self.blocks(), first, length_bytes)?;
        transfer::read(&self.fd, first * BLOCK_SIZE as u64, bufs, self.direct)
            .map_err(|failure| self.failure(Operation::Read, first, length_bytes, failure))
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let length_bytes = total(bufs);
        check_request(&self.name, Operation::Write, self.blocks(), first, length_bytes)?;
        self.check_writable(Operation::Write, Some(first), length_bytes)?;
        self.check_length(Operation::Write, Some(first), length_bytes)?;
        self.latch.watch(
            transfer::write(&self.fd, first * BLOCK_SIZE as u64, bufs, self.direct)
                .map_err(|failure| self.failure(Operation::Write, first, length_bytes, failure)),
        )?;
        self.begin_early(first, length_bytes);
        Ok(())
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        self.write_all(writes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.read_all(reads)
    }

    fn flush(&self) -> Result<(), Error> {
        self.check_writable(Operation::Flush, None, 0)?;
        self.check_length(Operation::Flush, None, 0)?;
        let result = loop {
            match fdatasync(&self.fd) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let flushed = self.latch.watch(result.map_err(|errno| Error::Io {
            device: Arc::clone(&self.name),
            operation: Operation::Flush,
            first: None,
            length_bytes: 0,
            source: Arc::new(errno.into()),
        }));
        // A write that failed meanwhile in another thread may have had its error reported to our fdatasync only.
        flushed.and_then(|()| self.latch.check(&self.name, Operation::Flush, None, 0))
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Discard, self.blocks(), first, length_bytes)?;
        self.check_writable(Operation::Discard, Some(first), length_bytes)?;
        let start = first * BLOCK_SIZE as u64;
        let outcome = match self.kind {
            Kind::RegularFile if self.is_reserved() => Ok(()),
            Kind::RegularFile => {
                fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length_bytes)
            }
            Kind::Disk => open::trim(&self.fd, start, length_bytes),
        };
        if let Err(errno) = outcome {
            // The old contents stay, which a discard allows.
            tracing::debug!(device = %self.name, first, count, %errno, "discard was not taken");
        }
        Ok(())
    }

    /// By a hole, or in a file that was allocated in full by marking the blocks as unwritten; on a disk that can do so. What the file
    /// system or disk does not do is not tried again, but left to the caller.
    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Write, self.blocks(), first, length_bytes)?;
        self.check_writable(Operation::Write, Some(first), length_bytes)?;
        self.check_length(Operation::Write, Some(first), length_bytes)?;
        let how = match self.kind {
            Kind::RegularFile if keep || self.is_reserved() => FallocateFlags::ZERO_RANGE,
            // What a disk does with a hole is its own business.
            Kind::Disk if keep => return Ok(false),
            // Of a disk, the kernel does this only where the disk does it itself.
            Kind::RegularFile | Kind::Disk => FallocateFlags::PUNCH_HOLE,
        };
        let start = first * BLOCK_SIZE as u64;
        let outcome = loop {
            match fallocate(&self.fd, how | FallocateFlags::KEEP_SIZE, start, length_bytes) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(errno @ Errno::IO) => {
                let failure = Failure::System(errno);
                self.latch.watch(Err(self.failure(Operation::Write, first, length_bytes, failure)))
            }
            Err(errno) => {
                tracing::debug!(device = %self.name, first, count, %errno, "zeros have to be written");
                self.zeros.are_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        let are_refused = self.zeros.are_refused.load(Ordering::Relaxed);
        match self.kind {
            Kind::RegularFile => are_refused,
            Kind::Disk => keep || are_refused || *self.zeros.disk_writes.get_or_init(|| !open::makes_zeros(&self.fd)),
        }
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        let unknown = Extent { blocks: most, flags: 0 };
        self.extent(Context::Allocation, first, most).unwrap_or(unknown)
    }

    /// A file is enlarged as it is: allocated in full, or sparse. A disk is only measured again.
    fn grow(&self, blocks: u64) -> Result<u64, Error> {
        self.check_writable(Operation::Grow, None, 0)?;
        let failed = |errno| open::failed(&self.name, Operation::Grow, errno);
        let measured = open::size_bytes(&self.fd).map_err(failed)? / BLOCK_SIZE as u64;
        let now = if blocks <= measured {
            measured
        } else if self.kind == Kind::Disk {
            return Err(Error::Unsuitable { device: Arc::clone(&self.name), reason: "the disk is smaller than that" });
        } else {
            open::enlarge(&self.fd, blocks.saturating_mul(BLOCK_SIZE as u64), self.is_reserved()).map_err(failed)?;
            blocks
        };
        // A file that somebody has enlarged by hand counts as allocated no longer than its blocks are.
        if self.kind == Kind::RegularFile && self.is_reserved() && !open::is_allocated(&self.fd).map_err(failed)? {
            self.reserved.store(false, Ordering::Relaxed);
        }
        self.blocks.fetch_max(now, Ordering::AcqRel);
        Ok(self.blocks())
    }
}
