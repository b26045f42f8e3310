//! The log that one would write first, for the wear that it costs: a header that is written again with each write, at the same place, as is the
//! page of metadata that the write's entry is in, and areas that begin anywhere. Nothing is gathered.

use holdfast_block::{BLOCK_SIZE, Device, Error, Operation, check_request};
use holdfast_lab::device::timed::Timed;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an entry, one for each write.
const ENTRY_BYTES: u64 = 24;
const PAGE_ENTRIES: u64 = BLOCK_SIZE as u64 / ENTRY_BYTES;
/// A page for so many blocks of the device.
const META_SHARE: u64 = 64;

/// Such a log. It is only written to, by one thread.
pub(super) struct Naive {
    name: Arc<str>,
    stick: Arc<Timed>,
    blocks: u64,
    meta_blocks: u64,
    next_entry: AtomicU64,
    next_block: AtomicU64,
}

impl Naive {
    /// For a device of so many blocks.
    pub(super) fn new(stick: Arc<Timed>, blocks: u64) -> Naive {
        let meta_blocks = stick.blocks() / META_SHARE;
        let name = "naive log".into();
        Naive { name, stick, blocks, meta_blocks, next_entry: AtomicU64::new(0), next_block: AtomicU64::new(0) }
    }
}

impl Device for Naive {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, _first: u64, _bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        Err(Error::Unsuitable { device: Arc::clone(&self.name), reason: "it is only written to" })
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Write, self.blocks, first, length_bytes)?;
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let (start, page) = (1 + self.meta_blocks, vec![0x4D; BLOCK_SIZE]);
        let data_blocks = self.stick.blocks() - start;
        let at = self.next_block.fetch_add(count, Ordering::Relaxed) % data_blocks;
        let (before, behind) = bytes.split_at(bytes.len().min((data_blocks - at) as usize * BLOCK_SIZE));
        for (at, part) in [(start + at, before), (start, behind)] {
            if !part.is_empty() {
                self.stick.write(at, &[IoSlice::new(part)])?;
            }
        }
        let entry = self.next_entry.fetch_add(1, Ordering::Relaxed);
        self.stick.write(1 + entry / PAGE_ENTRIES % self.meta_blocks, &[IoSlice::new(&page)])?;
        self.stick.write(0, &[IoSlice::new(&page)])
    }

    fn flush(&self) -> Result<(), Error> {
        self.stick.flush()
    }

    fn discard(&self, _first: u64, _count: u64) -> Result<(), Error> {
        Ok(())
    }
}
