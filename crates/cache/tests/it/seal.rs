//! The seal of the intent log: when it is written, and what it is good for after a crash.

use crate::rig::{FRAMES, Rig};
use holdfast_block::{Device, MemoryDevice};
use holdfast_cache::{Cache, Options};
use holdfast_logical::Logical;
use holdfast_object::*;
use holdfast_physical::{Module, OpenOptions};
use std::sync::Arc;

/// Bytes of a seal.
const SEAL: u64 = 2 * 4096;

impl Rig {
    /// Bytes written to the log by a tick so much later; no epoch is closed.
    fn logged_by_tick(&self, after_ms: u64) -> u64 {
        let before = self.cache.store_status().counters.log_bytes;
        self.clock.advance_ns(after_ms * 1_000_000);
        assert_eq!(self.cache.tick().unwrap(), None);
        self.cache.store_status().counters.log_bytes - before
    }

    fn write_and_sync(&self, id: ObjectId, byte: u8) {
        self.write(id, 0, &[byte; 100]).unwrap();
        self.cache.sync(id, Durability::All).unwrap();
    }
}

#[test]
fn an_idle_log_is_sealed_once_and_a_busy_one_is_not() {
    let rig = Rig::new(8192);
    let id = rig.create(Kind::Regular);
    assert_eq!(rig.logged_by_tick(500), 0, "nothing was synced");
    for byte in 0..30 {
        rig.write_and_sync(id, byte);
        assert_eq!(rig.logged_by_tick(60), 0, "busy");
    }
    assert_eq!(rig.logged_by_tick(60), SEAL);
    for _ in 0..10 {
        assert_eq!(rig.logged_by_tick(100), 0, "once");
    }
    rig.write_and_sync(id, 77);
    assert_eq!(rig.logged_by_tick(120), SEAL, "once in each idle time");
    assert_eq!(rig.logged_by_tick(120), 0);
    assert_eq!(rig.cache.store_status().counters.log_batches, 31, "a seal is not counted as a sync");
    let rig = rig.power_cut();
    assert_eq!(rig.contents(id).unwrap(), [77; 100]);
}

#[test]
fn what_a_recovery_point_has_needs_no_seal() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write_and_sync(id, 1);
    let before = rig.cache.store_status().counters.log_bytes;
    rig.clock.advance_ns(6_000_000_000);
    assert!(rig.cache.tick().unwrap().is_some());
    rig.clock.advance_ns(1_000_000_000);
    assert!(rig.cache.tick().unwrap().is_none());
    rig.write_and_sync(id, 2);
    rig.cache.sync_all().unwrap();
    rig.clock.advance_ns(1_000_000_000);
    assert!(rig.cache.tick().unwrap().is_none());
    let batches = rig.cache.store_status().counters.log_batches;
    assert_eq!(batches, 2);
    rig.cache.close().unwrap();
    let last = rig.cache.store_status().counters.log_bytes;
    // Two batches of a head, a page and a head; no seal.
    assert_eq!(last - before, 3 * 4096);
}

/// Both heads of the last batch that has something in it, with zeros.
fn lose_last_batch(device: &MemoryDevice) {
    let image = device.snapshot();
    let blocks = || (0..device.blocks()).zip(image.as_chunks::<4096>().0);
    let number = |block: &[u8; 4096], at: usize| u32::from_le_bytes(*block[at..].first_chunk().unwrap());
    let heads = || blocks().filter(|(_, block)| block.starts_with(b"HFINTENT") && number(block, 72) != 0);
    let last = heads().map(|(_, block)| number(block, 56)).max().unwrap();
    let gone: Vec<u64> = heads().filter(|(_, block)| number(block, 56) == last).map(|(at, _)| at).collect();
    assert_eq!(gone.len(), 2);
    gone.into_iter().for_each(|block| device.alter(block, |bytes| bytes.fill(0)).unwrap());
}

/// An answered sync is never undone without a word, if the log has been idle for a moment; with no seal it would be.
#[test]
fn a_sync_that_is_undone_by_damage_is_told() {
    for has_tick in [true, false] {
        let rig = Rig::new(2048);
        let id = rig.create(Kind::Regular);
        rig.write_and_sync(id, 1);
        rig.write_and_sync(id, 2);
        if has_tick {
            rig.logged_by_tick(150);
        }
        let device = rig.device.clone();
        drop(rig);
        lose_last_batch(&device);
        let clock = Arc::new(ManualClock::new(3_000_000_000, 1_000));
        let arena = Arena::new(FRAMES, 64 << 10).unwrap();
        let module = Module::open(device, arena.clone(), clock.clone(), &OpenOptions::default()).unwrap();
        let store = Arc::new(Logical::assemble(vec![Arc::new(module)]).unwrap());
        let opened = Cache::open(store, arena, clock, DomainId::MAIN, Options::for_frames(FRAMES));
        match opened {
            Err(error) if has_tick => assert!(error.to_string().contains("batch 1 of epoch"), "{error}"),
            Ok((_, recovered)) if !has_tick => assert_eq!((recovered.batches_torn, recovered.lost), (0, vec![])),
            other => panic!("{has_tick}: {:?}", other.map(|(_, recovered)| recovered)),
        }
    }
}
