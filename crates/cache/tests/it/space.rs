//! A full store.

use crate::rig::{Rig, pattern};
use holdfast_object::*;

#[test]
fn a_full_store_refuses_reads_and_deletes() {
    let mut rig = Rig::new(2048);
    let mut files = Vec::new();
    let bytes = pattern(4, 16 * PAGE_SIZE);
    let error = loop {
        let id = rig.create(Kind::Regular);
        match rig.write(id, 0, &bytes) {
            Ok(()) => files.push(id),
            Err(error) => break error,
        }
        assert!(files.len() < 200, "never full");
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    rig = rig.remount();
    for &id in &files {
        assert!(rig.contents(id).unwrap() == bytes);
    }
    let full = rig.cache.space().free;
    for &id in &files {
        rig.submit(vec![Op::Delete { id }]).unwrap();
    }
    rig.cache.sync_all().unwrap();
    assert!(rig.cache.space().free > full + 16 * files.len() as u64 - 64);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &bytes).unwrap();
    let rig = rig.remount();
    assert!(rig.contents(id).unwrap() == bytes);
}

/// Fills the store with files of 16 pages; gives them.
fn fill(rig: &Rig) -> Vec<ObjectId> {
    let bytes = pattern(4, 16 * PAGE_SIZE);
    let mut files = Vec::new();
    loop {
        let id = rig.create(Kind::Regular);
        if rig.write(id, 0, &bytes).is_err() {
            return files;
        }
        files.push(id);
    }
}

#[test]
fn many_cuts_within_a_page_of_a_full_store_cost_one_page() {
    let rig = Rig::new(4096);
    let files = fill(&rig);
    rig.cache.sync_all().unwrap();
    for size in (1..4000).rev() {
        rig.submit(vec![Op::Truncate { id: files[0], size }]).unwrap();
    }
    for at in 0..2000 {
        rig.submit(vec![Op::Zero { id: files[1], offset: at, length: 1 }]).unwrap();
    }
    rig.cache.sync(files[0], Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(files[0]).unwrap().len(), 1);
    rig.cache.sync_all().unwrap();
    rig.submit(vec![Op::Delete { id: files[2] }]).unwrap();
    rig.remount();
}

#[test]
fn scattered_pages_are_refused_before_they_are_taken() {
    let rig = Rig::new(4096);
    fill(&rig);
    let id = rig.create(Kind::Regular);
    let mut written = 0;
    for page in 0..4000u64 {
        match rig.write(id, page * 1_000_003 * PAGE_SIZE as u64 % MAX_OBJECT_BYTES, &[7; PAGE_SIZE]) {
            Ok(()) => written += 1,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                break;
            }
        }
    }
    assert!(written < 4000);
    rig.cache.sync_all().unwrap();
    rig.submit(vec![Op::Delete { id }]).unwrap();
    rig.remount();
}

#[test]
fn a_copy_that_shares_fits_where_the_bytes_would_not() {
    let rig = Rig::new(4096);
    let source = rig.create(Kind::Regular);
    let bytes = pattern(5, 2000 * PAGE_SIZE);
    for (part, chunk) in bytes.chunks(16 * PAGE_SIZE).enumerate() {
        rig.write(source, (part * 16 * PAGE_SIZE) as u64, chunk).unwrap();
    }
    rig.cache.sync_all().unwrap();
    let target = rig.create(Kind::Regular);
    let size_min = bytes.len() as u64;
    rig.submit(vec![Op::Copy { source, source_first: 0, target, target_first: 0, pages: 2000, size_min }]).unwrap();
    assert!(rig.contents(target).unwrap() == bytes);
}
