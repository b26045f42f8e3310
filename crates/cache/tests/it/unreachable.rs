//! A tree block of one file cannot be read from either copy: what lies under it is an error, all else goes on.

use crate::rig::{Rig, pattern};
use holdfast_object::*;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Pages of the file; the first leaf of its tree has 64 of them.
const PAGES: usize = 100;

/// A store with a file whose first leaf is damaged in both copies, that file, and a whole one.
fn rig() -> (Rig, ObjectId, ObjectId) {
    let rig = Rig::new(2048);
    let (broken, whole) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    rig.write(broken, 0, &pattern(1, PAGES * PAGE_SIZE)).unwrap();
    rig.write(whole, 0, b"whole").unwrap();
    rig.cache.close().unwrap();
    let device = rig.device.clone();
    drop(rig);
    let mut copies: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
    for (at, block) in device.snapshot().chunks(PAGE_SIZE).enumerate() {
        copies.entry(block.to_vec()).or_default().push(at as u64);
    }
    // Metadata is what is there twice. The leaf is the pair without which the first page is gone and the last is not.
    let pairs = copies.into_values().filter(|at| at.len() == 2);
    for pair in pairs {
        let hurt = holdfast_block::MemoryDevice::from_bytes(&device.snapshot());
        for &at in &pair {
            hurt.alter(at, |block| block[4000] ^= 1).unwrap();
        }
        let hurt = std::sync::Arc::new(hurt);
        let Ok(rig) = catch_unwind(AssertUnwindSafe(|| Rig::open_through(hurt.clone(), hurt.clone()))) else {
            continue;
        };
        let first = rig.cache.read(broken, 0, 1);
        if matches!(first, Err(Error::Corrupt(_))) && rig.cache.read(broken, PAGES as u64 - 1, 1).is_ok() {
            return (rig, broken, whole);
        }
    }
    panic!("no leaf found");
}

fn page(rig: &Rig, id: ObjectId, index: usize) -> Result<Vec<u8>> {
    match &rig.cache.read(id, index as u64, 1)?[0] {
        PageView::Data(page) => Ok(page.verify().expect("verified page").to_vec()),
        PageView::Zero => Ok(vec![0; PAGE_SIZE]),
    }
}

fn new_pages(rig: &Rig, broken: ObjectId, whole: ObjectId) {
    rig.write(broken, 3 * PAGE_SIZE as u64, &pattern(2, PAGE_SIZE)).unwrap();
    rig.write(broken, 70 * PAGE_SIZE as u64, &pattern(3, PAGE_SIZE)).unwrap();
    rig.write(whole, 0, b"WHOLE").unwrap();
}

fn only_the_page_is_missing(rig: &Rig, broken: ObjectId, whole: ObjectId) {
    assert!(page(rig, broken, 3).is_err(), "neither the new bytes nor zeroes");
    assert!(page(rig, broken, 70).unwrap() == pattern(3, PAGE_SIZE));
    assert_eq!(rig.contents(whole).unwrap(), b"WHOLE");
}

#[test]
fn an_epoch_costs_the_page_and_is_written() {
    let (rig, broken, whole) = rig();
    new_pages(&rig, broken, whole);
    let epoch = rig.cache.sync_all().unwrap();
    only_the_page_is_missing(&rig, broken, whole);
    assert!(matches!(rig.cache.sync(broken, Durability::All), Err(Error::Corrupt(_))), "the sync tells");
    rig.cache.sync(broken, Durability::All).expect("once");
    rig.cache.check();
    assert!(rig.cache.status().read_only.is_none());
    let rig = rig.power_cut();
    assert!(rig.recovered.from >= epoch);
    only_the_page_is_missing(&rig, broken, whole);
}

#[test]
fn a_replay_costs_the_page_and_goes_on() {
    let (rig, broken, whole) = rig();
    new_pages(&rig, broken, whole);
    rig.cache.sync(broken, Durability::All).unwrap();
    rig.cache.sync(whole, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!((rig.recovered.batches, rig.recovered.lost.len()), (2, 1));
    only_the_page_is_missing(&rig, broken, whole);
}
