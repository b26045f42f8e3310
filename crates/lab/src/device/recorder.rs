//! A device that remembers every write and flush.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use holdfast_block::{BLOCK_SIZE, Device, Error, MemoryDevice, Operation, check_request};
use parking_lot::Mutex;
use rand::Rng;

use super::{CrashImages, CrashMode, gather};

pub(super) type Block = [u8; BLOCK_SIZE];

/// One event of the log.
#[derive(Clone)]
pub(super) enum Entry {
    /// A write, entered when it began. A discard is one of zeros.
    Write(Arc<Recorded>),
    /// A flush, entered when it had succeeded.
    Flush {
        /// The log's length when the flush began: it covers nothing later.
        covers: usize,
        /// Writes before that which were still in flight, and so are not covered.
        except: BTreeSet<usize>,
    },
    /// The device alone lost its power, and has been this since.
    Cut(MemoryDevice),
}

/// The contents of a write.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) first: u64,
    pub(super) blocks: Vec<Arc<Block>>,
}

/// Wraps a device and remembers, over an image of what it held at first, every write with its bytes and every successful
/// flush. Safe to write through from several threads: a write still in flight when a flush begins is not covered by it.
pub struct Recorder {
    name: Arc<str>,
    inner: Arc<dyn Device>,
    base: MemoryDevice,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    entries: Vec<Entry>,
    in_flight: BTreeSet<usize>,
}

impl Recorder {
    /// Wraps `inner`, after reading it whole.
    ///
    /// # Errors
    /// Those of reading `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Result<Self, Error> {
        let base = MemoryDevice::new(inner.blocks());
        const STEP_BLOCKS: u64 = 256;
        let mut buf = vec![0; STEP_BLOCKS as usize * BLOCK_SIZE];
        for first in (0..inner.blocks()).step_by(STEP_BLOCKS as usize) {
            let count = STEP_BLOCKS.min(inner.blocks() - first) as usize;
            let bytes = &mut buf[..count * BLOCK_SIZE];
            inner.read(first, &mut [IoSliceMut::new(bytes)])?;
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            for (at, block) in (first..).zip(blocks).filter(|(_, block)| **block != [0; BLOCK_SIZE]) {
                base.share(at, Arc::new(*block))?;
            }
        }
        Ok(Self::with_base(inner, base))
    }

    /// Records over a device in memory that holds what `base` holds; `base` itself is not changed.
    pub fn in_memory(base: &MemoryDevice) -> Self {
        Self::with_base(Arc::new(base.clone()), base.clone())
    }

    fn with_base(inner: Arc<dyn Device>, base: MemoryDevice) -> Self {
        Recorder { name: inner.name().into(), inner, base, log: Mutex::new(Log::default()) }
    }

    /// The log's length now: a power cut at this moment is one at this position. Noted beside what the workload was told
    /// (an fsync that returned, say), it tells what an image must hold.
    pub fn position(&self) -> usize {
        self.log.lock().entries.len()
    }

    /// The possible outcomes of power cuts up to now.
    pub fn crash_images(&self) -> CrashImages {
        let entries = self.log.lock().entries.clone();
        CrashImages::new(self.base.clone(), entries)
    }

    /// The device alone loses its power, and is there again: of what no flush has covered, it has what a power cut leaves.
    ///
    /// # Errors
    /// Those of the device.
    pub fn cut(&self, mode: CrashMode, rng: &mut impl Rng) -> Result<(), Error> {
        let (images, position) = (self.crash_images(), self.position());
        let image = images.image(position, mode, rng);
        let mut block = [0; BLOCK_SIZE];
        for at in images.blocks_at_stake(position) {
            image.read(at, &mut [IoSliceMut::new(&mut block)])?;
            self.inner.write(at, &[IoSlice::new(&block)])?;
        }
        self.log.lock().entries.push(Entry::Cut(image));
        Ok(())
    }

    /// Enters a write, does it, and takes it out of flight if it was done.
    fn record(&self, recorded: Recorded, write: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let index = {
            let mut log = self.log.lock();
            let index = log.entries.len();
            log.entries.push(Entry::Write(Arc::new(recorded)));
            log.in_flight.insert(index);
            index
        };
        // A write that fails stays in flight for ever: it may or may not have been done, and no flush covers it.
        write()?;
        self.log.lock().in_flight.remove(&index);
        Ok(())
    }
}

impl Device for Recorder {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.inner.read(first, bufs)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        check_request(&self.name, Operation::Write, self.blocks(), first, length_bytes)?;
        let data = gather(bufs);
        let (blocks, _none) = data.as_chunks::<BLOCK_SIZE>();
        let recorded = Recorded { first, blocks: blocks.iter().map(|block| Arc::new(*block)).collect() };
        self.record(recorded, || self.inner.write(first, bufs))
    }

    fn flush(&self) -> Result<(), Error> {
        let (covers, except) = {
            let log = self.log.lock();
            (log.entries.len(), log.in_flight.clone())
        };
        self.inner.flush()?;
        self.log.lock().entries.push(Entry::Flush { covers, except });
        Ok(())
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        let count = check_request(&self.name, Operation::Discard, self.blocks(), first, length_bytes)?;
        let zeros = Arc::new([0; BLOCK_SIZE]);
        let recorded = Recorded { first, blocks: vec![zeros; count as usize] };
        self.record(recorded, || self.inner.discard(first, count))
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        let count = check_request(&self.name, Operation::Write, self.blocks(), first, length_bytes)?;
        let zeros = Arc::new([0; BLOCK_SIZE]);
        let recorded = Recorded { first, blocks: vec![zeros; count as usize] };
        self.record(recorded, || match self.inner.zero(first, count, keep)? {
            true => Ok(()),
            false => self.inner.write(first, &[IoSlice::new(&vec![0; count as usize * BLOCK_SIZE])]),
        })?;
        Ok(true)
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        self.inner.writes_zeros(keep)
    }

    /// Every image is as large as the device is now: that it grows is durable before anything uses it.
    fn grow(&self, blocks: u64) -> Result<u64, Error> {
        let blocks = self.inner.grow(blocks)?;
        self.base.grow(blocks)
    }
}
