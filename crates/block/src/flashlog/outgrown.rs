//! A main device that has become larger, whose labels are where it ended before.

use super::Error;
use super::format::{Decoded, LABEL_AREA_BLOCKS, Label, Role};
use super::inspect::{Inspected, inspect};
use super::labels::{Unread, newest_of, read_what_can_be};
use crate::nbd::Extent;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error as DeviceError, Read, Write};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Main as large as its labels say, until it is made larger from here.
struct Shorter {
    below: Arc<dyn Device>,
    blocks: AtomicU64,
}

/// A main device that ended soon after `set_blocks` blocks when its labels were written, and is larger by now: as large as it was, so that
/// its labels are found, until it [grows](Device::grow). `None` if no such labels are there.
///
/// # Errors
/// [`Error::Device`].
pub fn outgrown(main: Arc<dyn Device>, set_blocks: u64) -> Result<Option<Arc<dyn Device>>, Error> {
    let (bytes, unread) = read_behind(&*main, set_blocks)?;
    let (said, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    let mut sizes: Vec<u64> = said.iter().filter_map(Label::device_blocks_said).collect();
    sizes.retain(|size| (set_blocks + LABEL_AREA_BLOCKS..=set_blocks + said.len() as u64).contains(size));
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.is_empty()
        && let Some((error, _)) = unread
    {
        return Err(error.into());
    }
    let mut best: Option<Label> = None;
    for size in sizes {
        if let Decoded::Valid(label) = newest_of(&*main, Role::Main, size)?
            && label.role == Role::Main
            && best.as_ref().is_none_or(|best| best.generation < label.generation)
        {
            best = Some(*label);
        }
    }
    Ok(best.map(|label| -> Arc<dyn Device> {
        Arc::new(Shorter { below: main, blocks: AtomicU64::new(label.device_blocks) })
    }))
}

/// The blocks behind a set where a device that ended soon after it has its labels. Those that cannot be read are zeros.
///
/// # Errors
/// As of [`read_what_can_be`].
pub(super) fn read_behind(device: &dyn Device, set_blocks: u64) -> Result<(AlignedBuf, Unread), DeviceError> {
    // In front of its labels main has less than a MiB that is not of the set.
    let count = (2 * LABEL_AREA_BLOCKS).min(device.blocks().saturating_sub(set_blocks));
    let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
    let unread = if count > 0 { read_what_can_be(device, set_blocks, &mut bytes)? } else { None };
    Ok((bytes, unread))
}

/// A main device where its labels are, and what they say: at its end, or where it ended before, if it is known how large its set is. A power
/// cut may have torn the first label at a new end while those at the old one still count.
///
/// # Errors
/// As of [`inspect`].
pub fn as_labelled(
    main: Arc<dyn Device>,
    set_blocks: Option<u64>,
) -> Result<(Arc<dyn Device>, Option<Inspected>), Error> {
    let at_end = match inspect(&*main) {
        Ok(Some(label)) => return Ok((main, Some(label))),
        // What those at the end say may be that it is no main any more.
        Err(error @ Error::LabelUnread { role: Role::Main, .. }) => return Err(error),
        at_end => at_end,
    };
    let Some(shorter) = set_blocks.map(|blocks| outgrown(Arc::clone(&main), blocks)).transpose()?.flatten() else {
        return at_end.map(|label| (main, label));
    };
    let label = inspect(&*shorter)?;
    Ok((shorter, label))
}

impl Device for Shorter {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        self.below.read(first, bufs)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        self.below.read_batch(reads)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.below.write(first, bufs)
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        self.below.write_batch(writes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        self.below.discard(first, count)
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, DeviceError> {
        self.below.zero(first, count, keep)
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        self.below.writes_zeros(keep)
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        self.below.allocation(first, most)
    }

    fn grow(&self, blocks: u64) -> Result<u64, DeviceError> {
        let blocks = self.below.grow(blocks)?;
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
        Ok(blocks)
    }
}
