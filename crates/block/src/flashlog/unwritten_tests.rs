//! Main has no checksums: what flips there in a block that nobody has written must get onto no backup, and into no log.
use super::backup_tests::{BLOCKS, Set, contents};
use super::lasting_tests::alone;
use super::tests::{block, get, options, put};
use super::*;
use crate::{Device, MemoryDevice};
use std::io::IoSlice;
use std::sync::Arc;

/// Neighbours of this one are written, and it is not.
const UNWRITTEN: u64 = 7;

fn flip(device: &MemoryDevice) {
    device.alter(UNWRITTEN, |bytes| bytes[77] ^= 1).unwrap();
}

fn write_around(device: &dyn Device, number: u64) {
    for at in (0..UNWRITTEN).chain(UNWRITTEN + 1..16) {
        put(device, at, number + at).unwrap();
    }
}

/// The log lets go of what it keeps for the backup.
fn overflow(device: &Flashlog) {
    let mut number = 0;
    while device.status().changed_blocks == 0 || number < 16 {
        device.write(600 + number % 8 * 32, &[IoSlice::new(&block(9000 + number).repeat(30))]).unwrap();
        device.flush().unwrap();
        number += 1;
    }
}

/// The backup has what the set should have, and main what flipped there: which somebody finds.
fn check(set: &Set, device: &Flashlog, what: &str) {
    device.backup(set.backup.clone()).unwrap();
    assert!(verify_backup(set.backup.clone()).unwrap().is_good(), "{what}");
    assert!(get(&*set.backup, UNWRITTEN) == block(UNWRITTEN + 1), "{what}: the damage is on the backup");
    assert_eq!(device.scrub(set.backup.clone()).unwrap().main_repaired, [UNWRITTEN], "{what}");
    assert!(contents(&*set.backup) == contents(device), "{what}");
}

#[test]
fn what_flips_beside_a_written_block_is_not_copied_when_the_log_has_let_go() {
    for is_closed in [false, true] {
        let (set, mut device) = Set::new();
        write_around(&device, 2000);
        overflow(&device);
        device.settle().unwrap();
        if is_closed {
            drop(device);
            device = set.reopen();
        }
        flip(&set.main);
        check(&set, &device, &format!("closed in between: {is_closed}"));
    }
}

#[test]
fn what_flips_while_main_is_alone_gets_into_no_log() {
    for is_closed in [false, true] {
        for (is_new, is_full) in [(false, false), (false, true), (true, false)] {
            let what = format!("closed in between: {is_closed}, a new log: {is_new}, no room: {is_full}");
            let (mut set, device) = Set::new();
            put(&device, UNWRITTEN - 1, 1999).unwrap();
            let mut lasting = Lasting::of(device, alone());
            lasting.settle().unwrap();
            lasting.detach_log().unwrap();
            write_around(&lasting, 2000);
            if is_full {
                for at in 100..BLOCKS {
                    put(&lasting, at, 3000 + at).unwrap();
                    put(&lasting, at, 4000 + at).unwrap();
                }
            }
            if is_closed {
                lasting.settle().unwrap();
                drop(lasting);
                let main = set.main.clone();
                lasting = Lasting::open_alone(main, &options(Mode::Synchronous), alone(), false).unwrap();
                put(&lasting, 30, 30).unwrap();
            }
            flip(&set.main);
            if is_new {
                set.log = Arc::new(MemoryDevice::new(256 * 12).named("new log"));
                lasting.attach_new_log(set.log.clone(), Uuid([80; 16])).unwrap();
            } else {
                lasting.attach_log(set.log.clone()).unwrap();
            }
            check(&set, &lasting.set().unwrap(), &what);
        }
    }
}

#[test]
fn where_nobody_knows_what_was_written_one_bit_is_told() {
    for bits in [1, 3] {
        let (mut set, device) = Set::new();
        device.settle().unwrap();
        drop(device);
        let lasting = Lasting::open_alone(set.main.clone(), &options(Mode::Synchronous), alone(), true).unwrap();
        set.log = Arc::new(MemoryDevice::new(256 * 12).named("new log"));
        lasting.attach_new_log(set.log.clone(), Uuid([80; 16])).unwrap();
        set.main.alter(UNWRITTEN, |bytes| bytes[77] ^= bits).unwrap();
        let done = lasting.set().unwrap().backup(set.backup.clone()).unwrap();
        let (doubtful, first) = if bits == 1 { (1, Some(UNWRITTEN)) } else { (0, None) };
        assert_eq!((done.copied_blocks, done.doubtful_blocks, done.doubtful_first), (1, doubtful, first));
        // It may have been written: what a host may have written is not undone.
        assert!(get(&*set.backup, UNWRITTEN) == get(&*set.main, UNWRITTEN));
    }
}

#[test]
fn a_log_gets_many_small_changes_in_few_pages() {
    let (set, device) = Set::new();
    let lasting = Lasting::of(device, alone());
    lasting.detach_log().unwrap();
    (0..500).for_each(|at| put(&lasting, at * 2, 5000 + at).unwrap());
    assert_eq!(
        lasting.attach_log(set.log.clone()).unwrap(),
        Attached::Back { blocks: 500, mended_blocks: 0, lost_blocks: 0 }
    );
    let pages = lasting.status().0.log_pages.0;
    assert!(pages < 20, "{pages} pages");
    let set_now = lasting.set().unwrap();
    set_now.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&lasting) && get(&lasting, 998) == block(5499));
}
