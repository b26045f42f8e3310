//! The most memory that something takes at a time: what it asks the allocator for, and blocks of metadata, which have memory of their own.
//!
//! Only a program whose allocator is [`Heap`] sees the former. Bytes count as they are asked for: what the allocator adds to them is not known here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use holdfast_physical::metadata_blocks;

use crate::pattern::BLOCK;

/// The system's allocator. It counts while [`peak_of`] does something; else it looks whether it should, and that is all.
pub struct Heap;

// An allocator is there before anything that could be handed to it, so what it counts is in statics.

/// Held by whoever measures.
static MEASURING: Mutex<()> = Mutex::new(());
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
/// Bytes asked for since the measurement began, less those given back; those of before may be among the latter.
static NOW: AtomicI64 = AtomicI64::new(0);
/// When most was taken, blocks included: how much that was, and what of it was which.
static MOST: AtomicI64 = AtomicI64::new(0);
static HEAP_THEN: AtomicI64 = AtomicI64::new(0);
static BLOCKS_THEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Constant and without a destructor: it can be read in the allocator, at any time.
    static IS_APART: Cell<bool> = const { Cell::new(false) };
}

/// What something took when it took most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes from the allocator.
    pub heap_bytes: i64,
    /// Blocks of metadata.
    pub blocks: u64,
}

/// While it is there, it is counted: also what panics ends it.
struct Counting;

impl Counting {
    fn begin() -> Counting {
        IS_COUNTING.store(true, Ordering::Relaxed);
        Counting
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        IS_COUNTING.store(false, Ordering::Relaxed);
    }
}

/// The same of what does not count, with what was so before.
struct Apart(bool);

impl Drop for Apart {
    fn drop(&mut self) {
        IS_APART.set(self.0);
    }
}

/// Does something, and gives what it took of memory at most. For one thread at a time: blocks of metadata are those of the process.
pub fn peak_of<R>(what: impl FnOnce() -> R) -> (R, Peak) {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = metadata_blocks();
    for (number, value) in [(&NOW, 0), (&HEAP_THEN, 0), (&MOST, i64::MIN)] {
        number.store(value, Ordering::Relaxed);
    }
    BLOCKS_THEN.store(before, Ordering::Relaxed);
    let counting = Counting::begin();
    let result = what();
    drop(counting);
    let blocks = BLOCKS_THEN.load(Ordering::Relaxed).saturating_sub(before);
    (result, Peak { heap_bytes: HEAP_THEN.load(Ordering::Relaxed), blocks })
}

/// What is there now counts, but what was the most until now does not: for what has to be made before it is used, and takes more for a moment.
pub fn only_from_here() {
    MOST.store(i64::MIN, Ordering::Relaxed);
}

/// Does something whose memory does not count: that of a device, which is in memory for the measurement only.
pub fn apart<R>(what: impl FnOnce() -> R) -> R {
    let _before = Apart(IS_APART.replace(true));
    what()
}

/// So many bytes more, or fewer.
#[inline]
fn count(bytes: i64) {
    if IS_COUNTING.load(Ordering::Relaxed) && !IS_APART.get() {
        counted(bytes);
    }
}

fn counted(bytes: i64) {
    let heap = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    let blocks = metadata_blocks();
    let all = heap + signed(blocks) * size(BLOCK);
    if bytes > 0 && all > MOST.load(Ordering::Relaxed) {
        MOST.store(all, Ordering::Relaxed);
        HEAP_THEN.store(heap, Ordering::Relaxed);
        BLOCKS_THEN.store(blocks, Ordering::Relaxed);
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn size(bytes: usize) -> i64 {
    signed(bytes as u64)
}

// SAFETY: all is done by the system's allocator, with what the caller gave; counting takes no memory and does not panic.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        count(size(new_bytes) - size(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn what_panics_is_not_counted_on_nor_apart() {
        assert!(catch_unwind(|| peak_of(|| apart(|| panic!("planted")))).is_err());
        let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!IS_COUNTING.load(Ordering::Relaxed) && !IS_APART.get());
    }
}
