//! A device that fails: latched, and no sync says otherwise.

use crate::front::Front;
use crate::rig::{Rig, pattern};
use holdfast_object::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn after_a_failed_write_nothing_is_called_durable() {
    let rig = Rig::new(2048);
    let device = rig.device.clone();
    drop(rig);
    let broken = Arc::new(AtomicBool::new(false));
    let (is_broken, end) = (broken.clone(), holdfast_block::Device::blocks(&*device));
    // Out of range is an error that any device can have.
    let front = Front::new(device.clone(), move |first| if is_broken.load(Ordering::Relaxed) { end } else { first });
    let rig = Rig::open_through(device, front);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, b"durable").unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
    broken.store(true, Ordering::Relaxed);
    assert!(rig.cache.sync_all().is_err());
    broken.store(false, Ordering::Relaxed);
    assert!(matches!(rig.cache.sync_all(), Err(Error::ReadOnly(_))), "the open epoch is empty, the failed one is not");
    assert!(matches!(rig.cache.sync(id, Durability::All), Err(Error::ReadOnly(_))));
    assert!(rig.write(id, 0, b"x").is_err());
    assert!(rig.cache.close().is_err());
    assert!(rig.contents(id).unwrap() == pattern(1, 3 * PAGE_SIZE), "what is in memory stays readable");
    let rig = rig.power_cut();
    assert_eq!(rig.contents(id).unwrap(), b"durable");
}
