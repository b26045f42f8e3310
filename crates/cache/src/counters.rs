//! What a cache has done since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals. They are read one by one, so they need not fit together exactly.
#[derive(Default)]
pub(crate) struct Counters {
    /// Pages asked for that were in memory, or known to be zero.
    pub(crate) hits: Counter,
    /// Of these, those that have been in memory for so long that their reader goes by the strong checksum (mode `dynamic`).
    pub(crate) switched: Counter,
    /// Pages asked for that the store had to be asked for.
    pub(crate) misses: Counter,
    /// Pages found corrupt in memory and replaced from below.
    pub(crate) reread: Counter,
    /// Syncs of single objects asked for.
    pub(crate) syncs: Counter,
    /// Time spent in writing epochs, in milliseconds.
    pub(crate) epochs_ms: Counter,
    /// Epochs that were not held against what requests have proved.
    pub(crate) epochs_unproved: Counter,
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
