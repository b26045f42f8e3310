//! A recovery point as it was when somebody asked for it, while newer ones are made: what the check of a store in use reads.
//!
//! What its trees name stays on the device, as the allocator keeps what newer recovery points free (`alloc::held`). What is written in place
//! (labels with their rings, the intent log) is copied at the beginning, while nobody publishes or appends. Whoever reads shares nothing else
//! with the module: neither its trees nor its cached blocks.
//!
//! Invariant: what a read gives is the recovery point's. A block that was kept can be written to only after the allocator has given it up, and
//! every read is followed by a look at whether it has; it fails then, and all that follow.

use crate::format::{LABEL_BLOCKS, LABELS, label_start};
use crate::module::{Module, log_area};
use holdfast_block::{AlignedBuf, BLOCK_SIZE, Device, Error as DeviceError, Filter};
use holdfast_object::{Epoch, Result};
use parking_lot::RwLock;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The device of a module as of one recovery point; nothing can be written to it.
pub struct Frozen {
    module: Arc<Module>,
    holder: u64,
    epoch: Epoch,
    copies: Vec<(Range<u64>, AlignedBuf)>,
    /// Why it cannot be read any more.
    over: RwLock<Option<&'static str>>,
}

/// Why a read fails whose blocks may have been written to.
const GIVEN_UP: &str =
    "the store needed the room, or began a recovery point anew: what it had been is not kept any more";
const STOPPED: &str = "it was stopped";
const READ_ONLY: &str = "a recovery point is only looked at";

impl Module {
    /// Keeps the last recovery point as it is for whoever reads what this gives; one that was kept before is given up. Copies 256 KiB and the
    /// intent log (64 MiB at most); syncs and recovery points wait for that.
    ///
    /// # Errors
    /// [`Error::Device`](holdfast_object::Error::Device): a label or the log cannot be read.
    pub fn freeze(self: &Arc<Module>) -> Result<Frozen> {
        let holder = self.holders.fetch_add(1, Ordering::Relaxed);
        let committing = self.committing.lock();
        let log = self.log.lock();
        let label = self.label()?;
        let labels = (0..LABELS).map(|number| label_start(number, label.blocks));
        let in_place = labels.map(|start| start..start + LABEL_BLOCKS).chain([log_area(&label)]);
        let mut copies = Vec::new();
        for range in in_place {
            let mut bytes = AlignedBuf::zeroed((range.end - range.start) as usize * BLOCK_SIZE);
            self.disk().read(range.start, &mut [IoSliceMut::new(&mut bytes)])?;
            copies.push((range, bytes));
        }
        let epoch = self.epoch();
        self.base.alloc.lock().hold(holder);
        drop((log, committing));
        Ok(Frozen { module: self.clone(), holder, epoch, copies, over: RwLock::new(None) })
    }
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frozen").field("module", &self.module).field("epoch", &self.epoch).finish()
    }
}

impl Frozen {
    /// The recovery point.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Every read fails from now on, so that whoever reads comes to an end.
    pub fn stop(&self) {
        self.over.write().get_or_insert(STOPPED);
    }

    /// Why it cannot be read any more, and what was read cannot be compared with the rest.
    pub fn over(&self) -> Option<&'static str> {
        if !self.module.base.alloc.lock().is_held_by(self.holder) {
            self.over.write().get_or_insert(GIVEN_UP);
        }
        *self.over.read()
    }

    fn check_kept(&self) -> std::result::Result<(), DeviceError> {
        self.over().map_or(Ok(()), |reason| Err(self.refused(reason)))
    }

    fn refused(&self, reason: &'static str) -> DeviceError {
        DeviceError::Unsuitable { device: self.below().name().into(), reason }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.module.base.alloc.lock().release(self.holder);
    }
}

impl Filter for Frozen {
    fn below(&self) -> &dyn Device {
        self.module.disk().device()
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> std::result::Result<(), DeviceError> {
        self.below().read(first, bufs)?;
        self.check_kept()?;
        let mut at = first * BLOCK_SIZE as u64;
        for buffer in bufs {
            let end = at + buffer.len() as u64;
            for (range, bytes) in &self.copies {
                let byte = |block: u64| block * BLOCK_SIZE as u64;
                let (from, to) = (at.max(byte(range.start)), end.min(byte(range.end)));
                if from < to {
                    let copy = &bytes[(from - byte(range.start)) as usize..(to - byte(range.start)) as usize];
                    buffer[(from - at) as usize..(to - at) as usize].copy_from_slice(copy);
                }
            }
            at = end;
        }
        Ok(())
    }

    fn on_write(&self, _first: u64, _bufs: &[IoSlice<'_>]) -> std::result::Result<(), DeviceError> {
        Err(self.refused(READ_ONLY))
    }

    fn on_flush(&self) -> std::result::Result<(), DeviceError> {
        Ok(())
    }

    fn on_discard(&self, _first: u64, _count: u64) -> std::result::Result<(), DeviceError> {
        Err(self.refused(READ_ONLY))
    }
}
