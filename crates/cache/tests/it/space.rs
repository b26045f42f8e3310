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
