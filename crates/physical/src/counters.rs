//! What a module has done since it was opened, and which of its blocks were found without a good copy.

use crate::format::SystemKind;
use crate::objects::system_kind;
use holdfast_object::{Epoch, ObjectKey, StoreCounters};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most blocks without a good copy, or with remains, that are told apart; more are not counted.
const BLOCKS_MAX: usize = 1 << 16;

/// Metadata of the store's own, by what it stands in the way of if it cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// An object table: of objects whose records are there.
    Tables,
    /// A map of objects or orphans: of those that come, go, or get or lose all their names.
    Maps,
    /// The reference table: of pages that go, or come by a copy.
    References,
    /// The bitmap, which an opening makes anew: of everything.
    Bitmap,
    /// Dead lists and lists of snapshots: of everything.
    Others,
}

impl Own {
    /// Of an object of domain 0.
    pub(crate) fn of(key: ObjectKey) -> Own {
        match system_kind(key.object.0) {
            Some(SystemKind::ObjectTable) => Own::Tables,
            Some(SystemKind::ObjectMap | SystemKind::OrphanMap) => Own::Maps,
            Some(SystemKind::References) => Own::References,
            Some(SystemKind::Bitmap) => Own::Bitmap,
            Some(SystemKind::SnapshotList | SystemKind::DeadLists) | None => Own::Others,
        }
    }
}

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
    /// Blocks of the store's own metadata that were found without a good copy, until they are read again.
    own: Mutex<FxHashMap<u64, Own>>,
    /// There are some.
    is_own_damaged: AtomicBool,
    /// Blocks with something in entries that are free.
    remains: Mutex<FxHashSet<u64>>,
    /// The last recovery point of which something was made anew.
    rebuilt: Mutex<Option<Epoch>>,
    lost_from_log: AtomicU64,
    torn_in_log: AtomicU64,
    /// Most blocks that an epoch has changed.
    most_changed: AtomicU64,
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

    /// An epoch has changed so many blocks.
    pub(crate) fn changed(&self, blocks: usize) {
        self.most_changed.fetch_max(blocks as u64, Ordering::Relaxed);
    }

    pub(crate) fn most_changed(&self) -> u64 {
        self.most_changed.load(Ordering::Relaxed)
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

    /// A block of the store's own metadata was found without a good copy.
    pub(crate) fn own_damaged(&self, address: u64, what: Own) {
        let mut own = self.own.lock();
        if own.len() < BLOCKS_MAX {
            own.insert(address, what);
        } else if !own.values().any(|known| *known == what) {
            // At no address that is read again.
            own.insert(u64::MAX - what as u64, what);
        }
        self.is_own_damaged.store(true, Ordering::Relaxed);
    }

    /// It has been read.
    pub(crate) fn own_is_good(&self, address: u64) {
        if self.is_own_damaged.load(Ordering::Relaxed) {
            self.retain_own(|known, _| known != address);
        }
    }

    fn retain_own(&self, is_kept: impl Fn(u64, Own) -> bool) {
        let mut own = self.own.lock();
        own.retain(|address, what| is_kept(*address, *what));
        self.is_own_damaged.store(!own.is_empty(), Ordering::Relaxed);
    }

    /// Whether metadata of the store's own that is such was found without a good copy, and has not been read since.
    pub(crate) fn has_damaged_own(&self, is: impl Fn(Own) -> bool) -> bool {
        self.is_own_damaged.load(Ordering::Relaxed) && self.own.lock().values().any(|what| is(*what))
    }

    /// Whether a tree block of the object was found without a good copy, or something that may lead there, as far as that is known.
    pub(crate) fn may_be_damaged(&self, object: ObjectKey) -> bool {
        if self.has_damaged_own(|own| own == Own::Tables) {
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

    /// The bitmap of this recovery point could not be read, and has been made anew from what else there is: these blocks cannot be read beside it. Counts as
    /// one repair, once for each recovery point. For a time when nobody else reads.
    pub(crate) fn rebuilt(&self, of: Epoch, unrepaired: FxHashSet<u64>) {
        *self.unrepaired.lock() = unrepaired;
        self.retain_own(|_, what| what != Own::Bitmap);
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
    fn what_is_damaged_of_the_stores_own_is_known_until_it_is_read_or_made_anew() {
        let counters = Counters::default();
        let has = |what| counters.has_damaged_own(|own| own == what);
        counters.own_damaged(7, Own::Maps);
        counters.own_damaged(8, Own::Bitmap);
        counters.own_is_good(9);
        assert!(has(Own::Maps) && has(Own::Bitmap) && !has(Own::Tables));
        counters.rebuilt(1, FxHashSet::default());
        counters.own_is_good(7);
        assert!(!counters.has_damaged_own(|_| true));
        (0..BLOCKS_MAX as u64).for_each(|address| counters.own_damaged(address, Own::References));
        counters.own_damaged(BLOCKS_MAX as u64, Own::Others);
        (0..=BLOCKS_MAX as u64).for_each(|address| counters.own_is_good(address));
        assert!(has(Own::Others) && !has(Own::References));
    }

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
