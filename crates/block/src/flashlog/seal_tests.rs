//! What says that a page was durable: a later page, the seal, labels; and what is missing in spite of that.
use super::backup_tests::{Set, contents};
use super::serve_tests::{Moved, served};
use super::tests::{block, get, names, open, options, put, spoil};
use super::*;
use crate::{BLOCK_SIZE, Device, MemoryDevice};
use std::sync::Arc;

/// First block of a small log's data area; its pages begin in block 256.
const DATA: u64 = 512;

fn set() -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let [main, log] = [512, 1024].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    (main, log)
}

/// Places of the pages that there are.
fn pages(log: &MemoryDevice) -> Vec<u64> {
    let bytes = log.snapshot();
    (256..512).filter(|at| bytes[*at as usize * BLOCK_SIZE..].starts_with(b"HFFLPAGE")).collect()
}

/// Writes two flushed blocks, and perhaps the seal; then damages the page or the data of the second.
fn damaged(mode: Mode, is_sealed: bool, of_page: bool) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let (main, log) = set();
    let (device, _) = open(&main, &log, mode).unwrap();
    for number in [1, 2] {
        put(&device, number, number).unwrap();
        device.flush().unwrap();
    }
    if is_sealed {
        device.seal().unwrap();
        device.seal().unwrap();
        device.flush().unwrap();
        device.seal().unwrap();
    }
    assert_eq!(pages(&log).len(), 2 + usize::from(is_sealed), "not more than one for each flush");
    spoil(&log, if of_page { pages(&log)[1] } else { DATA + 1 });
    (main, log)
}

#[test]
fn damage_in_front_of_a_seal_is_no_end_of_the_log() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = damaged(mode, true, true);
        let before = [&main, &log].map(|device| device.snapshot());
        let refused = open(&main, &log, mode).map(drop);
        assert!(matches!(refused, Err(Error::Damaged { block: 257, .. })), "{mode:?}: {refused:?}");
        assert!([&main, &log].map(|device| device.snapshot()) == before, "{mode:?}: something was written");
        // One flipped bit in the seal does not hide it.
        log.alter(258, |bytes| bytes[3000] ^= 1).unwrap();
        let refused = open(&main, &log, mode).map(drop);
        assert!(matches!(refused, Err(Error::Damaged { block: 257, .. })), "{mode:?}: {refused:?}");
        // Nothing says so without it.
        let (main, log) = damaged(mode, false, true);
        let (device, opened) = open(&main, &log, mode).unwrap();
        assert_eq!((get(&device, 1), opened.cut_pages), (block(1), 0), "{mode:?}");
    }
}

#[test]
fn damaged_data_in_front_of_a_seal_is_made_good_or_told() {
    let (main, log) = damaged(Mode::Synchronous, true, false);
    let (device, opened) = open(&main, &log, Mode::Synchronous).unwrap();
    assert_eq!((get(&device, 2), opened.cut_pages), (block(2), 0));
    let (main, log) = damaged(Mode::Asynchronous, true, false);
    let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
    let mut bytes = [0; BLOCK_SIZE];
    let read = device.read(2, &mut [std::io::IoSliceMut::new(&mut bytes)]);
    assert!(matches!(read, Err(crate::Error::Damaged { first, .. }) if first == DATA + 1), "{read:?}");
    assert_eq!(get(&device, 1), block(1));
}

#[test]
fn a_set_goes_on_behind_a_seal_and_without_one_that_was_lost() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for is_lost in [false, true] {
            let (main, log) = set();
            for number in 1..60 {
                let (device, _) = open(&main, &log, mode).unwrap();
                for at in 0..number % 5 {
                    put(&device, at, number).unwrap();
                    device.flush().unwrap();
                }
                device.seal().unwrap();
                drop(device);
                if let (true, Some(last)) = (is_lost && number % 5 > 0, pages(&log).pop()) {
                    log.alter(last, |bytes| bytes.fill(0)).unwrap();
                }
                let (device, _) = open(&main, &log, mode).unwrap();
                assert!((0..number % 5).all(|at| get(&device, at) == block(number)), "{mode:?} {number}");
            }
        }
    }
}

#[test]
fn a_thread_seals_a_log_that_is_idle_for_a_second_and_none_that_is_written() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = set();
        let timer = Arc::new(Moved::default());
        let options = Options { timer: timer.clone(), ..options(mode) };
        let (device, _) = Flashlog::open(main, log.clone(), &options).unwrap();
        served(&device, || {
            timer.pass(0);
            let flush = |number| {
                put(&device, number, number).unwrap();
                device.flush().unwrap();
            };
            for number in 1..10 {
                flush(number);
                assert_eq!(pages(&log).len() as u64, number, "{mode:?}");
            }
            timer.pass(1);
            assert_eq!(pages(&log).len(), 10, "{mode:?}: once it is idle");
            (0..5).for_each(|_| timer.pass(1));
            assert_eq!(pages(&log).len(), 10, "{mode:?}: not again and again");
            flush(20);
            timer.pass(1);
            assert_eq!(pages(&log).len(), 12, "{mode:?}: and after the next flush");
        });
    }
}

#[test]
fn no_new_main_lacks_what_a_label_or_a_later_page_says_was_durable() {
    for is_closed in [true, false] {
        let (set, device) = Set::new();
        let mut states = Vec::new();
        for number in 1..4 {
            put(&device, number, 500 + number).unwrap();
            device.flush().unwrap();
            states.push(contents(&device));
        }
        if is_closed {
            device.settle().unwrap()
        } else {
            device.seal().unwrap()
        }
        drop(device);
        spoil(&set.log, 258);
        let make = |drop_later| {
            let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later, accept_damage: false };
            let main = Arc::new(MemoryDevice::new(set.main.blocks()));
            rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &how).map(|_| main)
        };
        let before = set.log.snapshot();
        for refused in [
            make(false).map(drop),
            Past::open(set.backup.clone(), set.log.clone(), At::Now).map(drop),
            barriers(set.backup.clone(), set.log.clone()).map(drop),
        ] {
            let is_told =
                matches!(refused, Err(Error::Damaged { block: 258, .. } | Error::MissingPages { block: 258, .. }));
            assert!(is_told, "{refused:?}");
        }
        assert!(set.log.snapshot() == before, "something was written");
        // Knowingly, it has what is in front of the damage, and the set goes on from there.
        let main = make(true).unwrap();
        let (device, _) = open(&main, &set.log, Mode::Asynchronous).unwrap();
        assert!(contents(&device) == states[1]);
        put(&device, 3, 700).unwrap();
        device.settle().unwrap();
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device));
        drop(device);
        let (device, _) = open(&main, &set.log, Mode::Asynchronous).unwrap();
        assert_eq!(get(&device, 3), block(700));
    }
}

#[test]
fn a_backup_makes_the_log_say_what_it_has_and_knows_one_that_has_lost_it() {
    let (set, device) = Set::new();
    let as_it_was = (*set.log).clone();
    put(&device, 1, 500).unwrap();
    device.backup(set.backup.clone()).unwrap();
    put(&device, 2, 600).unwrap();
    device.flush().unwrap();
    drop(device);
    let others = Arc::new(as_it_was);
    {
        // The log from before goes on by itself.
        let main = Arc::new((*set.main).clone());
        let (device, _) = open(&main, &others, Mode::Asynchronous).unwrap();
        put(&device, 1, 700).unwrap();
        device.flush().unwrap();
    }
    let refused = Past::open(set.backup.clone(), others, At::Now).map(drop);
    assert!(matches!(refused, Err(Error::Damaged { block: 256, .. })), "{refused:?}");
    assert!(Past::open(set.backup.clone(), set.log.clone(), At::Now).is_ok());
    // What the backup has is no end of the log, though nothing behind it says so.
    spoil(&set.log, 257);
    spoil(&set.log, 256);
    let refused = open(&set.main, &set.log, Mode::Asynchronous).map(drop);
    assert!(matches!(refused, Err(Error::MissingPages { block: 256, .. })), "{refused:?}");
}
