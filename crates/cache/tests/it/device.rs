//! A device that fails: latched, and no sync says otherwise.

use crate::rig::{Rig, pattern};
use holdfast_block::{Device, Error as BlockError, MemoryDevice};
use holdfast_object::*;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Breaking {
    inner: Arc<MemoryDevice>,
    broken: AtomicBool,
}

impl Device for Breaking {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> std::result::Result<(), BlockError> {
        self.inner.read(first, bufs)
    }
    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), BlockError> {
        // Out of range is an error that any device can have.
        let first = if self.broken.load(Ordering::Relaxed) { self.blocks() } else { first };
        self.inner.write(first, bufs)
    }
    fn flush(&self) -> std::result::Result<(), BlockError> {
        self.inner.flush()
    }
    fn discard(&self, first: u64, count: u64) -> std::result::Result<(), BlockError> {
        self.inner.discard(first, count)
    }
}

#[test]
fn after_a_failed_write_nothing_is_called_durable() {
    let rig = Rig::new(2048);
    let device = rig.device.clone();
    drop(rig);
    let front = Arc::new(Breaking { inner: device.clone(), broken: AtomicBool::new(false) });
    let rig = Rig::open_through(device, front.clone());
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, b"durable").unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
    front.broken.store(true, Ordering::Relaxed);
    assert!(rig.cache.sync_all().is_err());
    front.broken.store(false, Ordering::Relaxed);
    assert!(matches!(rig.cache.sync_all(), Err(Error::ReadOnly(_))), "the open epoch is empty, the failed one is not");
    assert!(matches!(rig.cache.sync(id, Durability::All), Err(Error::ReadOnly(_))));
    assert!(rig.write(id, 0, b"x").is_err());
    assert!(rig.cache.close().is_err());
    assert!(rig.contents(id).unwrap() == pattern(1, 3 * PAGE_SIZE), "what is in memory stays readable");
    let rig = rig.power_cut();
    assert_eq!(rig.contents(id).unwrap(), b"durable");
}
