//! What tests put in front of a device.

use holdfast_block::{Device, Error, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A device that asks before each write where it goes.
pub(crate) struct Front<F> {
    inner: Arc<MemoryDevice>,
    redirect: F,
}

impl<F: Fn(u64) -> u64 + Send + Sync> Front<F> {
    /// `redirect` gets the first block of each write and gives the one it is to have; out of range the write fails.
    pub(crate) fn new(inner: Arc<MemoryDevice>, redirect: F) -> Arc<Front<F>> {
        Arc::new(Front { inner, redirect })
    }
}

impl<F: Fn(u64) -> u64 + Send + Sync> Device for Front<F> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.inner.read(first, bufs)
    }
    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.inner.write((self.redirect)(first), bufs)
    }
    fn flush(&self) -> Result<(), Error> {
        self.inner.flush()
    }
    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        self.inner.discard(first, count)
    }
}
