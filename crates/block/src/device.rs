//! The one interface of all block devices.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::nbd::Extent;
use crate::{AlignedBuf, Error, Operation};

/// Size of a block in bytes: the unit of every address and length.
pub const BLOCK_SIZE: usize = 4096;

/// What [`Device::read_batch`] does on a device that has nothing better: one after the other, all of them.
pub(crate) fn read_one_by_one<D: Device + ?Sized>(device: &D, reads: &mut [Read<'_>]) -> Result<(), Error> {
    let mut outcome = Ok(());
    for read in reads {
        read.result = device.read(read.first, read.bufs);
        outcome = outcome.and_then(|()| read.result.clone());
    }
    outcome
}

/// A row of 4 KiB blocks. See the crate's documentation for what is promised about order and durability.
pub trait Device: Send + Sync {
    /// Name for messages: the path, or "memory".
    fn name(&self) -> &str;

    /// Size in whole 4 KiB blocks. Changed by [`Device::grow`] only, and never to less.
    fn blocks(&self) -> u64;

    /// Fills `bufs`, one after the other, from consecutive blocks starting at `first`. The buffers may have any length
    /// and alignment; their total is a non-zero multiple of 4096.
    ///
    /// # Errors
    /// On error the buffers' contents are unspecified.
    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error>;

    /// Writes `bufs`, one after the other, to consecutive blocks starting at `first`. Lengths as for [`Device::read`].
    ///
    /// # Errors
    /// A failure of the device leaves the blocks in any mixture of old and new sectors, and latches.
    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error>;

    /// Several independent writes, which may be reordered and overlapped among themselves; all are finished on return.
    /// No two of them may touch the same block.
    ///
    /// # Errors
    /// The first failure found; any of the other writes may or may not have been done. Latches like a single write.
    fn write_batch(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        for write in writes {
            self.write(write.first, write.bufs)?;
        }
        Ok(())
    }

    /// Several independent reads, which may be reordered and overlapped among themselves; all are finished on return,
    /// and each tells its own outcome in [`Read::result`].
    ///
    /// # Errors
    /// That of the first read in the slice which failed; the others have been tried all the same.
    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        read_one_by_one(self, reads)
    }

    /// Makes every write that had completed before the call durable.
    ///
    /// # Errors
    /// A failed flush latches: every later flush, write and discard fails with the same cause.
    fn flush(&self) -> Result<(), Error>;

    /// Says that the contents of `count` blocks from `first` are no longer needed. Afterwards they read as their old
    /// contents or as zeros, until they are written again. A hint: a device that cannot use it answers `Ok`.
    ///
    /// # Errors
    /// Out of range, read-only or latched; a failure of the device to use the hint is not an error of the data.
    fn discard(&self, first: u64, count: u64) -> Result<(), Error>;

    /// Makes `count` blocks from `first` read as zeros, as a write of zeros would, if that can be done faster than by writing them; says
    /// whether it was. With `keep`, writing to them cannot fail for want of space afterwards if it could not before.
    ///
    /// # Errors
    /// As for [`Device::write`].
    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let _ = (first, count, keep);
        Ok(false)
    }

    /// Whether [`Device::zero`] comes to writing as much, here or further below: for whoever would rather leave it then.
    fn writes_zeros(&self, keep: bool) -> bool {
        let _ = keep;
        true
    }

    /// What is known of the run of blocks that begins at `first`, without reading it: [`HOLE`](crate::nbd::HOLE) and
    /// [`ZERO`](crate::nbd::ZERO). By default, that they are data.
    fn allocation(&self, first: u64, most: u64) -> Extent {
        let _ = first;
        Extent { blocks: most, flags: 0 }
    }

    /// Makes the device at least `blocks` blocks large, durably; the new blocks read as zeros if the device has made them. One that has
    /// become larger by itself is taken as large as it is. Gives the size in blocks.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] for a device whose size is not its own to choose; read-only or latched; [`Error::Io`], in particular
    /// for want of space. Then the device is as it was, and does not latch.
    fn grow(&self, blocks: u64) -> Result<u64, Error> {
        if blocks <= self.blocks() {
            return Ok(self.blocks());
        }
        Err(Error::Unsuitable { device: self.name().into(), reason: "it cannot be made larger from here" })
    }
}

/// One write of a [`Device::write_batch`].
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// First block.
    pub first: u64,
    /// What to write, as for [`Device::write`].
    pub bufs: &'a [IoSlice<'a>],
}

/// One read of a [`Device::read_batch`].
#[derive(Debug)]
pub struct Read<'a> {
    /// First block.
    pub first: u64,
    /// Where to put it, as for [`Device::read`].
    pub bufs: &'a mut [IoSliceMut<'a>],
    /// This read's outcome, set by the batch.
    pub result: Result<(), Error>,
}

impl<'a> Read<'a> {
    /// A read not yet done.
    pub fn new(first: u64, bufs: &'a mut [IoSliceMut<'a>]) -> Self {
        Read { first, bufs, result: Ok(()) }
    }
}

/// Checks that a request is a non-zero number of whole blocks inside a device of `blocks` blocks; returns that number.
/// For implementors of [`Device`].
///
/// # Errors
/// [`Error::Misaligned`], [`Error::OutOfRange`].
pub fn check_request(
    device: &Arc<str>,
    operation: Operation,
    blocks: u64,
    first: u64,
    length_bytes: u64,
) -> Result<u64, Error> {
    if length_bytes == 0 || !length_bytes.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(Error::Misaligned { device: Arc::clone(device), operation, first, length_bytes });
    }
    let count = length_bytes / BLOCK_SIZE as u64;
    if first.checked_add(count).is_none_or(|end| end > blocks) {
        return Err(Error::OutOfRange { device: Arc::clone(device), operation, first, length_bytes, blocks });
    }
    Ok(count)
}

/// Writes zeros, to a device that cannot do it otherwise: see [`Device::zero`].
pub(crate) fn write_zeros(device: &dyn Device, first: u64, count: u64) -> Result<(), Error> {
    /// 1 MiB.
    const RUN_BLOCKS: u64 = 256;
    let zeros = AlignedBuf::zeroed(RUN_BLOCKS.min(count) as usize * BLOCK_SIZE);
    for at in (first..first + count).step_by(RUN_BLOCKS as usize) {
        let blocks = RUN_BLOCKS.min(first + count - at) as usize;
        device.write(at, &[IoSlice::new(&zeros[..blocks * BLOCK_SIZE])])?;
    }
    Ok(())
}

/// Total length of the buffers of a read.
pub(crate) fn total_mut(bufs: &[IoSliceMut<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Copies one buffer into scattered ones of the same total length.
pub(crate) fn scatter(mut from: &[u8], bufs: &mut [IoSliceMut<'_>]) {
    for buf in bufs {
        let (now, later) = from.split_at(buf.len());
        buf.copy_from_slice(now);
        from = later;
    }
}

/// Total length of the buffers of a write.
pub(crate) fn total(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}
