//! What tests put in front of a device.

use holdfast_block::{Device, Error, Filter, MemoryDevice};
use std::io::IoSlice;
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

impl<F: Fn(u64) -> u64 + Send + Sync> Filter for Front<F> {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.inner.write((self.redirect)(first), bufs)
    }
}
