//! The media of a scheme: each remembers what it got, and is there or not.

use crate::device::{CrashImages, CrashMode, Recorder};
use crate::numbered::content;
use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice, Operation};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Blocks that the host uses.
pub(super) const BLOCKS: usize = 64;

/// When something happens to the media: behind so many more writes and flushes to any of them.
#[derive(Debug)]
pub(super) struct Fuse(AtomicI64);

impl Fuse {
    pub(super) fn new() -> Arc<Fuse> {
        Arc::new(Fuse(AtomicI64::new(i64::MAX)))
    }

    pub(super) fn light(&self, requests: i64) {
        self.0.store(requests, Ordering::Relaxed);
    }

    fn is_burnt(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

/// One device.
pub(super) struct Medium {
    name: Arc<str>,
    recorder: Recorder,
    fuse: Arc<Fuse>,
    /// It is gone when the fuse is burnt.
    is_hit: bool,
}

impl Medium {
    pub(super) fn new(name: &str, blocks: u64, fuse: &Arc<Fuse>, is_hit: bool) -> Arc<Medium> {
        let recorder = Recorder::in_memory(&MemoryDevice::new(blocks).named(name));
        Arc::new(Medium { name: name.into(), recorder, fuse: Arc::clone(fuse), is_hit })
    }

    /// What is on it when its power is cut now; what is not flushed is there in part, as chance has it.
    pub(super) fn after_power_cut(&self, rng: &mut Pcg64Mcg) -> MemoryDevice {
        let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        self.image(mode, rng)
    }

    /// What is on it if it keeps its power.
    pub(super) fn as_it_is(&self, rng: &mut Pcg64Mcg) -> MemoryDevice {
        self.image(CrashMode::AllApplied, rng)
    }

    fn image(&self, mode: CrashMode, rng: &mut Pcg64Mcg) -> MemoryDevice {
        let images: CrashImages = self.recorder.crash_images();
        images.image(self.recorder.position(), mode, rng)
    }

    /// Writes random bytes over so many of a hundred of its blocks.
    pub(super) fn write_garbage(&self, percent: u32, rng: &mut Pcg64Mcg) -> Result<(), String> {
        for at in 0..self.recorder.blocks() {
            if rng.random_ratio(percent, 100) {
                let mut bytes = [0; BLOCK_SIZE];
                rng.fill(&mut bytes[..]);
                self.recorder.write(at, &[IoSlice::new(&bytes)]).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn check(&self, operation: Operation) -> Result<(), Error> {
        if !(self.is_hit && self.fuse.is_burnt()) {
            return Ok(());
        }
        // Linux's ENODEV.
        let source = Arc::new(std::io::Error::from_raw_os_error(19));
        Err(Error::Io { device: Arc::clone(&self.name), operation, first: None, length_bytes: 0, source })
    }
}

impl Filter for Medium {
    fn below(&self) -> &dyn Device {
        &self.recorder
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.check(Operation::Read)?;
        self.recorder.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.fuse.0.fetch_sub(1, Ordering::Relaxed);
        self.check(Operation::Write)?;
        self.recorder.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.fuse.0.fetch_sub(1, Ordering::Relaxed);
        self.check(Operation::Flush)?;
        self.recorder.flush()
    }
}

/// What each of the host's blocks has, if it is something that was written.
pub(super) type Contents = Vec<Option<u64>>;

pub(super) fn contents(device: &dyn Device) -> Result<Contents, String> {
    let mut bytes = vec![0; BLOCKS * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).map_err(|error| error.to_string())?;
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    Ok(blocks.iter().map(content).collect())
}
