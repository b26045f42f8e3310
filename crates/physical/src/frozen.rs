//! A recovery point as it was when somebody asked for it, while newer ones are made: what the check of a store in use reads.
//!
//! What its trees name stays on the device, as the allocator keeps what newer recovery points free (`alloc::held`). What is written in place
//! (labels with their rings, the intent log) is copied at the beginning, while nobody publishes or appends. Whoever reads shares nothing else
//! with the module: neither its trees nor its cached blocks.
//!
//! Invariant: what a read gives is the recovery point's. A block that was kept can be written to only after the allocator has given it up, and
//! every read is followed by a look at whether it has; it fails then, and all that follow. What could not be read when it was copied is not read
//! later either: others may have written to it.

use crate::format::{LABEL_BLOCKS, LABELS, label_start};
use crate::module::{Module, log_area};
use holdfast_block::{AlignedBuf, BLOCK_SIZE, Device, Error as DeviceError, Filter, Operation};
use holdfast_object::{Epoch, Result};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The device of a module as of one recovery point; nothing can be written to it.
pub struct Frozen {
    module: Arc<Module>,
    holder: u64,
    epoch: Epoch,
    copies: Vec<InPlace>,
    /// Why it cannot be read any more.
    over: RwLock<Option<&'static str>>,
}

/// Why a read fails whose blocks may have been written to.
const GIVEN_UP: &str =
    "the store needed the room, or began a recovery point anew: what it had been is not kept any more";
const STOPPED: &str = "it was stopped";

/// What is written in place, as it was.
struct InPlace {
    blocks: Range<u64>,
    bytes: AlignedBuf,
    /// Blocks that cannot be read.
    bad: BTreeMap<u64, DeviceError>,
}

impl InPlace {
    fn copy(device: &dyn Device, blocks: Range<u64>) -> InPlace {
        let mut bytes = AlignedBuf::zeroed((blocks.end - blocks.start) as usize * BLOCK_SIZE);
        let mut bad = BTreeMap::new();
        if device.read(blocks.start, &mut [IoSliceMut::new(&mut bytes)]).is_err() {
            for (block, bytes) in blocks.clone().zip(bytes.chunks_mut(BLOCK_SIZE)) {
                if let Err(error) = device.read(block, &mut [IoSliceMut::new(bytes)]) {
                    bad.insert(block, error);
                }
            }
        }
        InPlace { blocks, bytes, bad }
    }

    /// Puts what it has of a request's blocks in their place.
    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> std::result::Result<(), DeviceError> {
        let byte = |block: u64| block * BLOCK_SIZE as u64;
        let mut at = byte(first);
        for buffer in bufs {
            let end = at + buffer.len() as u64;
            let (from, to) = (at.max(byte(self.blocks.start)), end.min(byte(self.blocks.end)));
            if from < to {
                let blocks = from / BLOCK_SIZE as u64..to.div_ceil(BLOCK_SIZE as u64);
                if let Some((_, error)) = self.bad.range(blocks).next() {
                    return Err(error.clone());
                }
                let start = byte(self.blocks.start);
                let copy = &self.bytes[(from - start) as usize..(to - start) as usize];
                buffer[(from - at) as usize..(to - at) as usize].copy_from_slice(copy);
            }
            at = end;
        }
        Ok(())
    }

    fn has(&self, blocks: &Range<u64>) -> bool {
        self.blocks.start <= blocks.start && blocks.end <= self.blocks.end
    }
}

impl Module {
    /// Keeps the last recovery point as it is for whoever reads what this gives; one that was kept before is given up. Copies 256 KiB and the
    /// intent log (64 MiB at most); syncs and recovery points wait for that. What cannot be read of these is an error when it is looked at.
    ///
    /// # Errors
    /// [`Error::Corrupt`](holdfast_object::Error::Corrupt): the label has gone bad in memory.
    pub fn freeze(self: &Arc<Module>) -> Result<Frozen> {
        let holder = self.holders.fetch_add(1, Ordering::Relaxed);
        let committing = self.committing.lock();
        let log = self.log.lock();
        let label = self.label()?;
        let labels = (0..LABELS).map(|number| label_start(number, label.blocks));
        let in_place = labels.map(|start| start..start + LABEL_BLOCKS).chain([log_area(&label)]);
        let copies = in_place.map(|blocks| InPlace::copy(self.disk().device(), blocks)).collect();
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

    fn check_kept(&self, blocks: &Range<u64>) -> std::result::Result<(), DeviceError> {
        let Some(reason) = self.over() else { return Ok(()) };
        let length_bytes = (blocks.end - blocks.start) * BLOCK_SIZE as u64;
        let (device, operation, first) = (self.below().name().into(), Operation::Read, blocks.start);
        Err(DeviceError::Over { device, operation, first, length_bytes, reason })
    }

    fn refused(&self, operation: Operation, first: u64, length_bytes: u64) -> DeviceError {
        DeviceError::ReadOnly { device: self.below().name().into(), operation, first: Some(first), length_bytes }
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
        let blocks = first..first + (bufs.iter().map(|buffer| buffer.len()).sum::<usize>() / BLOCK_SIZE) as u64;
        // Before that, too: whoever is told to stop waits for no disk.
        self.check_kept(&blocks)?;
        if let Some(copy) = self.copies.iter().find(|copy| copy.has(&blocks)) {
            return copy.read(first, bufs);
        }
        self.below().read(first, bufs)?;
        self.check_kept(&blocks)?;
        self.copies.iter().try_for_each(|copy| copy.read(first, bufs))
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), DeviceError> {
        let length = bufs.iter().map(|buffer| buffer.len() as u64).sum();
        Err(self.refused(Operation::Write, first, length))
    }

    fn on_flush(&self) -> std::result::Result<(), DeviceError> {
        Ok(())
    }

    fn on_discard(&self, first: u64, count: u64) -> std::result::Result<(), DeviceError> {
        Err(self.refused(Operation::Discard, first, count * BLOCK_SIZE as u64))
    }
}
