//! A main made anew: what it needs, and when it is one.

use super::backup_tests::{Set, contents};
use super::tests::{open, options, put, spoil};
use super::*;
use crate::{Device, MemoryDevice};
use std::sync::Arc;

#[test]
fn a_main_made_anew_is_of_no_use_alone_until_it_has_what_the_log_has() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        put(&device, 3, 33).unwrap();
        device.flush().unwrap();
        let expected = contents(&device);
        drop(device);
        let main = Arc::new(MemoryDevice::new(set.main.blocks()));
        rebuild(set.backup.clone(), set.log.clone(), main.clone(), Uuid([9; 16])).unwrap();
        let alone = || Lasting::open_alone(main.clone(), &options(mode), Policy::default(), true);
        assert!(matches!(alone(), Err(Error::Mixture { .. })), "it is as the backup");
        let (device, _) = open(&main, &set.log, mode).unwrap();
        device.settle().unwrap();
        drop(device);
        assert!(contents(&alone().unwrap()) == expected, "{mode:?}");
    }
}

#[test]
fn no_new_main_needs_data_that_is_damaged() {
    let (set, device) = Set::new();
    let data = 256 + 2 * 256;
    let mut states = vec![contents(&device)];
    // The first version of block 1 is replaced by the third one.
    for (number, value) in [(1, 500), (2, 600), (1, 700)] {
        put(&device, number, value).unwrap();
        device.flush().unwrap();
        states.push(contents(&device));
    }
    device.settle().unwrap();
    drop(device);
    let make = |drop_later, log: &Arc<MemoryDevice>| {
        let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later, accept_damage: false };
        let main = Arc::new(MemoryDevice::new(set.main.blocks()));
        rebuild_at(set.backup.clone(), log.clone(), main.clone(), &how).map(|rebuilt| (main, rebuilt))
    };
    let made =
        |main: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>| contents(&open(main, log, Mode::Synchronous).unwrap().0);
    let copy = || Arc::new((*set.log).clone());
    let replaced = copy();
    spoil(&replaced, data);
    assert!(made(&make(false, &replaced).unwrap().0, &replaced) == states[3], "nobody needs it");
    for (position, left) in [(1, 1), (2, 2)] {
        let log = copy();
        spoil(&log, data + position);
        let before = log.snapshot();
        let refused = make(false, &log).map(drop);
        assert!(matches!(refused, Err(Error::Damaged { block, .. }) if block == data + position), "{refused:?}");
        assert!(log.snapshot() == before, "main is as good as it was");
        let (main, rebuilt) = make(true, &log).unwrap();
        assert_eq!((rebuilt.dropped.blocks, rebuilt.dropped.is_damaged), (3 - position, true));
        assert!(made(&main, &log) == states[left], "what is in front of it is there");
    }
    // What is in front of it needs what is damaged, too.
    let log = copy();
    spoil(&log, data);
    spoil(&log, data + 2);
    let (main, rebuilt) = make(true, &log).unwrap();
    assert!(made(&main, &log) == states[0] && rebuilt.dropped.blocks == 3);
}
