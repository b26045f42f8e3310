//! The device below, with the latch that a failed change closes, and counters of what was repaired.

use crate::block_pool::PooledBlock;
use crate::counters::{Counters, Own};
use crate::damage::damaged_object;
use crate::format::split_address;
use crate::guarded::{Doubled, Watched};
use crate::meta_block::{MetadataProtection, Scribble};
use crate::requests::Requests;
use crate::scribble::{Ambush, Cells};
use holdfast_block::{Device, Error as BlockError, Read};
use holdfast_guard::closed;
use holdfast_integrity::Unverified;
use holdfast_object::{Corruption, DeviceFault, DomainId, Epoch, Error, ObjectKey, Place, Result};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// One block of bytes, aligned for direct I/O.
#[repr(C, align(4096))]
pub(crate) struct Block(pub(crate) [u8; 4096]);

impl Block {
    pub(crate) fn zeroed() -> PooledBlock {
        PooledBlock::zeroed()
    }
}

/// A block as it came from the device, for [`Unverified`] and [`Verified`](holdfast_integrity::Verified).
pub(crate) struct RawBlock(pub(crate) PooledBlock);

impl AsRef<[u8]> for RawBlock {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

/// The device of a module. What the device does happens outside of windows in which metadata can be written ([`crate::locked_block`]): it is others'
/// code, and takes long.
///
/// Once a write or flush has failed, `latch` is set and every later change is refused.
pub(crate) struct Disk {
    device: Arc<dyn Device>,
    blocks: Watched,
    latch: OnceLock<String>,
    /// A read was refused as what the device showed is not to be had any more.
    over: AtomicBool,
    /// What of the epoch being built has gone bad in memory.
    given_up: Mutex<Option<Corruption>>,
    /// Objects that the logic bug is about for which it is, if it is one.
    suspects: Mutex<Vec<ObjectKey>>,
    pub(crate) counters: Counters,
    /// Newest epoch that anything on the device can have been born in.
    newest: Watched,
    /// Both numbers once more: each pointer is judged by them.
    known: Mutex<Known>,
    /// How blocks of metadata are protected in memory.
    pub(crate) metadata: MetadataProtection,
    /// What the lab has in store for the next recovery point, and what is found since.
    pub(crate) ambush: Ambush,
}

/// By what blocks and newest are put right.
#[derive(Default)]
struct Known {
    blocks: Doubled,
    newest: Doubled,
}

pub(crate) fn device_error(error: &BlockError) -> Error {
    Error::Device(Box::new(DeviceFault {
        device: error.device().to_string(),
        operation: error.operation().to_string(),
        address: error.first(),
        length: error.length_bytes(),
        page: None,
        cause: error.reason(),
    }))
}

impl Disk {
    /// `blocks` is the size of what is looked at, at most the device's.
    pub(crate) fn new(device: Arc<dyn Device>, blocks: u64) -> Disk {
        debug_assert!(blocks <= device.blocks());
        Disk {
            device,
            blocks: Watched::new(blocks),
            latch: OnceLock::new(),
            over: AtomicBool::new(false),
            given_up: Mutex::default(),
            suspects: Mutex::default(),
            ambush: Ambush::default(),
            counters: Counters::default(),
            newest: Watched::new(0),
            known: Mutex::new(Known { blocks: Doubled::new(blocks), newest: Doubled::new(0) }),
            metadata: MetadataProtection::default(),
        }
    }

    /// For reading what is not checked as blocks of trees are.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn name(&self) -> &str {
        self.device.name()
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.get().unwrap_or_else(|| self.put_right().0)
    }

    /// Makes the device at least `blocks` blocks large, or takes it as large as it has become. Gives its size. A failure does not
    /// latch: nothing has changed.
    pub(crate) fn enlarge(&self, blocks: u64) -> Result<u64> {
        self.check_writable()?;
        closed(|| self.device.grow(blocks)).map_err(|error| device_error(&error))
    }

    /// Blocks up to this one are the store's from now on.
    pub(crate) fn extend(&self, blocks: u64) {
        debug_assert!(self.blocks() <= blocks && blocks <= self.device.blocks());
        let mut known = self.known.lock();
        known.blocks.set(blocks);
        self.blocks.set(blocks);
    }

    /// Newest possible birth.
    pub(crate) fn newest(&self) -> Epoch {
        self.newest.get().unwrap_or_else(|| self.put_right().1)
    }

    pub(crate) fn raise_newest(&self, epoch: Epoch) {
        let mut known = self.known.lock();
        if known.newest.get() < epoch {
            known.newest.set(epoch);
            self.newest.set(epoch);
        }
    }

    /// Puts the number of blocks and the newest epoch right, if somebody has written to them who must not. Gives both.
    pub(crate) fn put_right(&self) -> (u64, Epoch) {
        let mut known = self.known.lock();
        let Known { blocks, newest } = &mut *known;
        for (what, number, known) in [
            ("number of blocks of the device", &self.blocks, &mut *blocks),
            ("newest epoch", &self.newest, &mut *newest),
        ] {
            let is = Scribble::unless_equal(what, known.get(), number.scribbled().load(Ordering::Relaxed));
            number.set(known.get());
            if let Some(scribble) = is.err().or(known.heal(what)) {
                self.note_scribble(scribble, None, "put right from its copy");
            }
        }
        (blocks.get(), newest.get())
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn number_cells<'a>(&'a self, cells: &mut Cells<'a>) {
        cells.own_atomic("blocks of the device", self.blocks.scribbled());
        cells.own_atomic("newest epoch", self.newest.scribbled());
    }

    /// The block at `address` has no good copy; `error` says what is wrong with it.
    pub(crate) fn note_unrepaired(&self, address: u64, error: &Error) {
        // What cannot be had says nothing of the block.
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        if let Error::Corrupt(corruption) = error {
            self.note_damaged(&corruption.place);
        }
        self.count_unrepaired(address, error);
    }

    /// The same, and it leads nowhere that anybody would have to know of.
    pub(crate) fn count_unrepaired(&self, address: u64, error: &Error) {
        if !self.over.load(Ordering::Relaxed) && self.counters.unrepaired(address) {
            tracing::error!(%error, "a block has no good copy");
        }
    }

    /// The block at `address`, of the store's own metadata, has been read.
    pub(crate) fn is_readable(&self, address: u64) {
        self.counters.own_is_good(split_address(address).1);
    }

    /// What is in this place cannot be read: it may lead to pages of objects.
    pub(crate) fn note_damaged(&self, place: &Place) {
        match damaged_object(place) {
            Some(object) => self.counters.damaged(object),
            None if place.object.is_none_or(|key| key.domain == DomainId::SYSTEM) => {
                let own = place.object.map_or(Own::Others, Own::of);
                self.counters.own_damaged(place.address.unwrap_or(u64::MAX), own);
            }
            None => {}
        }
    }

    /// The block at `address` has something in an entry that is free; `error` says what.
    pub(crate) fn note_remains(&self, address: u64, error: &Error) {
        if self.counters.remains(address) {
            tracing::warn!(%error, "an entry that is free is not empty: it is taken for free, and `holdfast check --repair` empties it");
        }
    }

    /// Why no changes are taken, if so.
    pub(crate) fn read_only(&self) -> Option<&str> {
        self.latch.get().map(String::as_str)
    }

    /// Refuses changes from now on. The first reason counts.
    pub(crate) fn latch(&self, reason: String) {
        let _ = self.latch.set(reason);
    }

    /// `Err` if the module takes no changes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.latch.get() {
            None => Ok(()),
            Some(reason) => Err(Error::ReadOnly(reason.clone())),
        }
    }

    /// No recovery point is made of what there is in memory. The first reason counts.
    pub(crate) fn give_up(&self, corruption: Corruption) -> Error {
        tracing::error!(%corruption, "what the next recovery point is made of has gone bad in memory");
        Error::GivenUp(Box::new(self.given_up.lock().get_or_insert(corruption).clone()))
    }

    /// Counts and tells of what somebody has written to who must not; and what comes of it.
    pub(crate) fn note_scribble(&self, scribble: Scribble, object: Option<ObjectKey>, consequence: &str) {
        self.note_told(scribble, object, "", consequence);
    }

    /// The same for what is known of one of the store's own objects, which is right again; and what of it had gone bad, and since when.
    pub(crate) fn note_own_scribble(&self, scribble: Scribble, key: ObjectKey, told: &str) {
        self.note_told(scribble, Some(key), told, "put right from its copy");
    }

    fn note_told(&self, scribble: Scribble, object: Option<ObjectKey>, told: &str, consequence: &str) {
        let mut error = scribble.at(Place { object, address: None, ..self.place(0) });
        error.got += told;
        // Before it is counted: who counts then asks what it was.
        self.ambush.found(&format_args!("{error}: {consequence}"));
        self.counters.scribbled();
        tracing::error!(%error, consequence, "something has gone bad in memory");
    }

    /// What has gone bad, if so.
    pub(crate) fn given_up(&self) -> Option<Corruption> {
        self.given_up.lock().clone()
    }

    /// What no recovery point is going to be made for is about these objects. The first ones count.
    pub(crate) fn suspect(&self, objects: Vec<ObjectKey>) {
        if self.given_up().is_none() {
            *self.suspects.lock() = objects;
        }
    }

    /// Which objects that is about, as far as it can be told.
    pub(crate) fn suspects(&self) -> Vec<ObjectKey> {
        self.suspects.lock().clone()
    }

    /// What there is in memory is that of the last recovery point.
    pub(crate) fn begun_anew(&self) {
        *self.given_up.lock() = None;
        self.suspects.lock().clear();
    }

    /// `Err` if the module takes no changes, or none of the epoch being built.
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.check_writable()?;
        self.given_up().map_or(Ok(()), |corruption| Err(Error::GivenUp(Box::new(corruption))))
    }

    /// A place on this device.
    pub(crate) fn place(&self, address: u64) -> Place {
        Place { device: Some(self.name().to_string()), address: Some(split_address(address).1), ..Place::default() }
    }

    /// The block of an address, if the address is one of this store.
    pub(crate) fn block(&self, address: u64, blocks: u64) -> Result<u64> {
        let (device, block) = split_address(address);
        if device != 0 || block.checked_add(blocks).is_none_or(|end| end > self.blocks()) {
            return Err(Error::corrupt(
                self.place(address),
                "address",
                format!("a block of device 0 below {}", self.blocks()),
                format!("{block} + {blocks} of device {device}"),
            ));
        }
        Ok(block)
    }

    /// Reads consecutive blocks.
    pub(crate) fn read(&self, address: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let first = self.block(address, length.div_ceil(4096) as u64)?;
        self.counters.read(length as u64);
        closed(|| self.device.read(first, bufs)).map_err(|error| {
            if matches!(error, BlockError::Over { .. }) {
                self.over.store(true, Ordering::Relaxed);
            }
            device_error(&error)
        })
    }

    /// Reads several runs of blocks; says for each whether it was read.
    pub(crate) fn read_runs(&self, addresses: &[u64], runs: Vec<Vec<IoSliceMut<'_>>>) -> Vec<bool> {
        debug_assert_eq!(addresses.len(), runs.len());
        // Bound anew, so that the buffers' lifetime can be that of this variable.
        let mut runs: Vec<Vec<IoSliceMut<'_>>> = runs;
        if let ([address], [run]) = (addresses, &mut runs[..]) {
            return vec![self.read(*address, run).is_ok()];
        }
        let in_range = |address: u64, run: &[IoSliceMut<'_>]| {
            let length: usize = run.iter().map(|buf| buf.len()).sum();
            self.block(address, length.div_ceil(4096) as u64)
        };
        let firsts: Vec<Option<u64>> =
            addresses.iter().zip(&runs).map(|(&address, run)| in_range(address, run).ok()).collect();
        let mut reads: Vec<Read<'_>> =
            firsts.iter().zip(&mut runs).filter_map(|(first, run)| Some(Read::new((*first)?, run))).collect();
        reads.iter().for_each(|read| self.counters.read(read.bufs.iter().map(|buf| buf.len() as u64).sum()));
        // Each read tells its own outcome.
        let _ = closed(|| self.device.read_batch(&mut reads));
        let mut outcomes = reads.iter().map(|read| read.result.is_ok());
        firsts.iter().map(|first| first.is_some() && outcomes.next().unwrap_or(false)).collect()
    }

    /// Reads a block whose bytes nobody may use before they are verified.
    pub(crate) fn read_unverified(&self, address: u64) -> Result<Unverified<RawBlock>> {
        let mut block = Block::zeroed();
        self.read_block(address, &mut block.0)?;
        Ok(Unverified::new(RawBlock(block)))
    }

    pub(crate) fn read_block(&self, address: u64, block: &mut [u8; 4096]) -> Result<()> {
        self.read(address, &mut [IoSliceMut::new(block)])
    }

    /// Writes blocks at their addresses, neighbours together, and returns when the device has taken them. A failure
    /// latches.
    pub(crate) fn write_blocks<'a>(&self, blocks: impl IntoIterator<Item = (u64, &'a [u8; 4096])>) -> Result<()> {
        self.submit(&Requests::new(self, blocks)?)
    }

    /// Writes one run of bytes, a multiple of a block, from `first` on.
    pub(crate) fn write_run(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.check_writable()?;
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let first = self.block(first, length.div_ceil(4096) as u64)?;
        self.counters.written(1, length as u64);
        self.watch(closed(|| self.device.write(first, bufs)))
    }

    /// Says that blocks are not needed. A failure does not latch: nothing depends on it.
    pub(crate) fn discard(&self, first: u64, count: u64) -> Result<()> {
        self.check_writable()?;
        let first = self.block(first, count)?;
        self.counters.discarded();
        closed(|| self.device.discard(first, count)).map_err(|error| device_error(&error))
    }

    /// Makes all completed writes durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_writable()?;
        self.counters.flushed();
        self.watch(closed(|| self.device.flush()))
    }

    pub(crate) fn watch(&self, outcome: std::result::Result<(), BlockError>) -> Result<()> {
        outcome.map_err(|error| {
            let error = device_error(&error);
            if self.read_only().is_none() {
                tracing::error!(%error, "the store is read-only from now on");
            }
            self.latch(error.to_string());
            error
        })
    }

    /// Puts good bytes in the place of a bad copy, if the store takes changes. Failure to do so is not the reader's
    /// error, but it latches like any failed write. Whether it was written; `place` is for the log.
    pub(crate) fn repair(&self, address: u64, good: &[u8; 4096], place: &Place) -> bool {
        let written = self.check_writable().is_ok() && self.write_blocks([(address, good)]).is_ok();
        if written {
            self.counters.repaired();
            tracing::warn!(%place, "a bad copy of a block was replaced by the good one");
        }
        written
    }
}
