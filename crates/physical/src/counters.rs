//! What a module has done since it was opened, and which of its blocks were found without a good copy.

use holdfast_object::{Epoch, ObjectKey, StoreCounters};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most blocks without a good copy, or with remains, that are told apart; more are not counted.
const BLOCKS_MAX: usize = 1 << 16;

/// Totals. They are read one by one, so they need not fit together exactly.
#[derive(Default)]
pub(crate) struct Counters {
    device_reads: AtomicU64,
    read_bytes: AtomicU64,
    device_writes: AtomicU64,
    written_bytes: AtomicU64,
    device_flushes: AtomicU64,
    device_discards: AtomicU64,
    epochs: AtomicU64,
    log_batches: AtomicU64,
    log_bytes: AtomicU64,
    scribbles: AtomicU64,
    restarts: AtomicU64,
    audit_failures: AtomicU64,
    repaired: AtomicU64,
    unrepaired: Mutex<FxHashSet<u64>>,
    /// Objects of which one of these is a tree block; one more than [`BLOCKS_MAX`] if there are others.
    damaged: Mutex<FxHashSet<ObjectKey>>,
    /// Metadata of the store's own was found without a good copy: nobody knows whose.
    is_own_damaged: AtomicBool,
    /// Blocks with something in entries that are free.
    remains: Mutex<FxHashSet<u64>>,
    /// The last recovery point of which something was made anew.
    rebuilt: Mutex<Option<Epoch>>,
    lost_from_log: AtomicU64,
    torn_in_log: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn is_new(blocks: &Mutex<FxHashSet<u64>>, address: u64) -> bool {
    let mut blocks = blocks.lock();
    blocks.len() < BLOCKS_MAX && blocks.insert(address)
}

impl Counters {
    /// A request for `bytes` was sent to the device.
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.device_reads, 1);
        add(&self.read_bytes, bytes);
    }

    /// Requests for `bytes` in all were sent to the device.
    pub(crate) fn written(&self, requests: u64, bytes: u64) {
        add(&self.device_writes, requests);
        add(&self.written_bytes, bytes);
    }

    pub(crate) fn flushed(&self) {
        add(&self.device_flushes, 1);
    }

    pub(crate) fn discarded(&self) {
        add(&self.device_discards, 1);
    }

    /// A recovery point was made.
    pub(crate) fn published(&self) {
        add(&self.epochs, 1);
    }

    /// A batch was appended to the intent log.
    pub(crate) fn logged(&self, bytes: u64) {
        add(&self.log_batches, 1);
        add(&self.log_bytes, bytes);
    }

    /// The intent log was sealed.
    pub(crate) fn sealed(&self, bytes: u64) {
        add(&self.log_bytes, bytes);
    }

    /// A block in memory was found changed by somebody who must not.
    pub(crate) fn scribbled(&self) {
        add(&self.scribbles, 1);
    }

    pub(crate) fn scribbles(&self) -> u64 {
        self.scribbles.load(Ordering::Relaxed)
    }

    /// A recovery point was given up, and is begun anew.
    pub(crate) fn restarted(&self) {
        add(&self.restarts, 1);
    }

    /// What was to be a recovery point did not fit together.
    pub(crate) fn audit_failed(&self) {
        add(&self.audit_failures, 1);
    }

    pub(crate) fn repaired(&self) {
        add(&self.repaired, 1);
    }

    /// A block was found without a good copy; whether it is the first time.
    pub(crate) fn unrepaired(&self, address: u64) -> bool {
        is_new(&self.unrepaired, address)
    }

    /// A tree block of the object was found without a good copy.
    pub(crate) fn damaged(&self, object: ObjectKey) {
        let mut damaged = self.damaged.lock();
        if damaged.len() <= BLOCKS_MAX {
            damaged.insert(object);
        }
    }

    /// Metadata of the store's own was found without a good copy.
    pub(crate) fn own_damaged(&self) {
        self.is_own_damaged.store(true, Ordering::Relaxed);
    }

    /// Whether a tree block of the object was found without a good copy, or something that may lead there, as far as that is known.
    pub(crate) fn may_be_damaged(&self, object: ObjectKey) -> bool {
        if self.is_own_damaged.load(Ordering::Relaxed) {
            return true;
        }
        let damaged = self.damaged.lock();
        damaged.len() > BLOCKS_MAX || damaged.contains(&object)
    }

    /// A block was found with something in an entry that is free; whether it is the first time.
    pub(crate) fn remains(&self, address: u64) -> bool {
        is_new(&self.remains, address)
    }

    /// Different blocks found with something in entries that are free.
    pub(crate) fn blocks_with_remains(&self) -> u64 {
        self.remains.lock().len() as u64
    }

    /// The blocks without a good copy so far.
    pub(crate) fn unrepaired_blocks(&self) -> FxHashSet<u64> {
        self.unrepaired.lock().clone()
    }

    /// What could not be read of this recovery point, beyond these blocks, has been made anew from what else there is. Counts as one repair, once for
    /// each recovery point. For a time when nobody else reads.
    pub(crate) fn rebuilt(&self, of: Epoch, unrepaired: FxHashSet<u64>) {
        *self.unrepaired.lock() = unrepaired;
        if self.rebuilt.lock().replace(of) != Some(of) {
            self.repaired();
        }
    }

    /// Pages of the intent log were found without a good copy when it was replayed, which is done once.
    pub(crate) fn lost_from_log(&self, pages: u64) {
        add(&self.lost_from_log, pages);
    }

    /// A batch of the intent log was left out, as it was not whole.
    pub(crate) fn torn_in_log(&self) {
        add(&self.torn_in_log, 1);
    }

    /// Pages of the intent log without a good copy, and batches left out.
    pub(crate) fn losses_of_log(&self) -> (u64, u64) {
        (self.lost_from_log.load(Ordering::Relaxed), self.torn_in_log.load(Ordering::Relaxed))
    }

    pub(crate) fn blocks_repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Different blocks found without a good copy.
    pub(crate) fn blocks_unrepaired(&self) -> u64 {
        self.unrepaired.lock().len() as u64 + self.lost_from_log.load(Ordering::Relaxed)
    }

    pub(crate) fn totals(&self) -> StoreCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounters {
            device_reads: get(&self.device_reads),
            read_bytes: get(&self.read_bytes),
            device_writes: get(&self.device_writes),
            written_bytes: get(&self.written_bytes),
            device_flushes: get(&self.device_flushes),
            device_discards: get(&self.device_discards),
            epochs: get(&self.epochs),
            log_batches: get(&self.log_batches),
            log_bytes: get(&self.log_bytes),
            scribbles: get(&self.scribbles),
            restarts: get(&self.restarts),
            audit_failures: get(&self.audit_failures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_a_good_copy_counts_once_and_their_number_is_bounded() {
        let counters = Counters::default();
        assert!(counters.unrepaired(7) && !counters.unrepaired(7) && counters.unrepaired(8));
        assert_eq!(counters.blocks_unrepaired(), 2);
        for address in 0..2 * BLOCKS_MAX as u64 {
            counters.unrepaired(address);
        }
        assert_eq!(counters.blocks_unrepaired(), BLOCKS_MAX as u64);
    }
}
