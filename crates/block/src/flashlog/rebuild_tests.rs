//! A main made anew: what it needs, and when it is one.

use super::backup_tests::{BLOCKS, Set, contents};
use super::follow_tests::Counted;
use super::format::{LABELS_BLOCKS, Label, Role};
use super::given_up_tests::{Failing, Torn};
use super::labels::Labelled;
use super::staging::Backup;
use super::tests::{open, options, put, spoil};
use super::*;
use crate::{Device, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
fn an_image_of_a_new_main_from_before_its_first_opening_is_older() {
    for (is_closed, at) in [(false, At::Now), (true, At::Now), (false, At::Barrier(0)), (true, At::Barrier(0))] {
        let (set, device) = Set::new();
        for number in 1..4 {
            put(&device, number, 30 + number).unwrap();
            device.flush().unwrap();
        }
        if is_closed {
            device.close().unwrap();
        }
        drop(device);
        let how = Rebuild { name: Uuid([9; 16]), at, drop_later: true, accept_damage: false };
        let main = Arc::new(MemoryDevice::new(set.main.blocks()));
        rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &how).unwrap();
        let image = Arc::new((*main).clone());
        let (device, _) = open(&main, &set.log, Mode::Synchronous).unwrap();
        // What the log has of it main has, and need not get any more.
        put(&device, 5, 55).unwrap();
        device.settle().unwrap();
        drop(device);
        let opened = open(&image, &set.log, Mode::Synchronous).map(|(device, _)| contents(&device));
        assert!(matches!(opened, Err(Error::Older { .. })), "closed: {is_closed}, {at:?}: {:?}", opened.map(drop));
        open(&main, &set.log, Mode::Synchronous).unwrap();
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

#[test]
fn of_a_backup_whose_log_is_lost_main_has_the_backups_state_and_takes_a_new_log() {
    let (set, device) = Set::new();
    let state = contents(&device);
    put(&device, 3, 33).unwrap();
    device.flush().unwrap();
    drop(device);
    let make = |backup: &Arc<MemoryDevice>, blocks, accept_damage| {
        let main = Arc::new(MemoryDevice::new(blocks));
        let made = rebuild_without_log(backup.clone(), main.clone(), Uuid([9; 16]), accept_damage);
        made.map(|rebuilt| (main, rebuilt))
    };
    assert!(contents(&Past::of_backup(set.backup.clone()).unwrap()) == state);
    assert!(matches!(make(&set.backup, BLOCKS + 255, false), Err(Error::TooSmall { .. })));
    let (main, rebuilt) = make(&set.backup, BLOCKS + 300, false).unwrap();
    assert_eq!((rebuilt.blocks, rebuilt.damaged.len()), (BLOCKS, 0));
    let open_alone =
        || Lasting::open_alone(main.clone(), &options(Mode::Synchronous), Policy::default(), false).unwrap();
    assert!(contents(&open_alone()) == state);
    // What the log of before has goes with another main.
    let alone = open_alone();
    assert!(matches!(alone.attach_log(set.log.clone()), Err(Error::Replaced { .. })));
    put(&alone, 5, 55).unwrap();
    alone.flush().unwrap();
    drop(alone);
    let (alone, log) = (open_alone(), Arc::new(MemoryDevice::new(set.log.blocks())));
    alone.attach_new_log(log.clone(), Uuid([8; 16])).unwrap();
    put(&alone, 6, 66).unwrap();
    let done = alone.set().unwrap().backup(set.backup.clone()).unwrap();
    assert_eq!((done.copied_blocks, done.same_blocks), (2, BLOCKS - 2));
    put(&alone, 7, 77).unwrap();
    alone.flush().unwrap();
    let now = contents(&alone);
    drop(alone);
    let again = Arc::new(MemoryDevice::new(BLOCKS + 256));
    rebuild(set.backup.clone(), log.clone(), again.clone(), Uuid([10; 16])).unwrap();
    assert!(contents(&open(&again, &log, Mode::Synchronous).unwrap().0) == now);
}

#[test]
fn a_backup_of_which_no_main_may_be_made_leaves_the_old_main_what_it_was() {
    let (set, device) = Set::new();
    for number in 1..4 {
        put(&device, number, 30 + number).unwrap();
        device.flush().unwrap();
    }
    device.settle().unwrap();
    let all = contents(&device);
    drop(device);
    // The log replaces the first one of these.
    [1, 7].into_iter().for_each(|block| spoil(&set.backup, block));
    let larger = Arc::new((*set.main).clone());
    larger.grow(BLOCKS + 700).unwrap();
    for (old, size) in [(&set.main, BLOCKS + 256), (&larger, BLOCKS + 700)] {
        let before = old.snapshot();
        for (at, has_log) in [(At::Now, true), (At::Barrier(1), true), (At::Now, false)] {
            let how = Rebuild { name: Uuid([9; 16]), at, drop_later: true, accept_damage: false };
            let log = Arc::new((*set.log).clone());
            let made = match has_log {
                true => rebuild_at(set.backup.clone(), log.clone(), old.clone(), &how),
                false => rebuild_without_log(set.backup.clone(), old.clone(), how.name, false),
            };
            let first = if has_log { 7 } else { 1 };
            let is_told = matches!(&made, Err(Error::Device(crate::Error::Damaged { first: at, .. })) if *at == first);
            assert!(is_told, "{at:?}, with a log: {has_log}: {made:?}");
            assert!(old.snapshot() == before && log.snapshot() == set.log.snapshot(), "{size}: {at:?}, {has_log}");
        }
    }
    // The blocks are good there, and a scrub makes the backup good.
    let device = set.reopen();
    assert!(contents(&device) == all);
    device.scrub(set.backup.clone()).unwrap();
    drop(device);
    rebuild(set.backup.clone(), set.log.clone(), set.main.clone(), Uuid([9; 16])).unwrap();
    assert!(contents(&set.reopen()) == all);
}

#[test]
fn a_log_of_no_generation_is_none_to_make_a_main_with() {
    let (set, device) = Set::new();
    device.close().unwrap();
    drop(device);
    let label = Labelled::read(set.log.clone(), Role::Log).unwrap().label;
    for generation in [0, 1] {
        let crafted = Label { generation, rebuilt: 0, ..label.clone() };
        let log = Arc::new((*set.log).clone());
        // All labels, as one that does not count leaves it to the one before.
        for sequence in 0..LABELS_BLOCKS / 2 {
            let crafted = Label { sequence: label.sequence + sequence, ..crafted.clone() };
            let pair = crafted.encode().concat();
            log.write(crafted.place(), &[std::io::IoSlice::new(&pair)]).unwrap();
        }
        let main = Arc::new(MemoryDevice::new(set.main.blocks()));
        let made = rebuild(set.backup.clone(), log, main, Uuid([9; 16]));
        assert!(matches!(made, Err(Error::Damaged { .. })), "{generation}: {made:?}");
    }
}

#[test]
fn of_a_backup_alone_that_is_damaged_or_not_complete_no_main_is_made_unasked() {
    let (set, device) = Set::new();
    spoil(&set.backup, 7);
    let main = || Arc::new(MemoryDevice::new(BLOCKS + 256));
    let refused = rebuild_without_log(set.backup.clone(), main(), Uuid([9; 16]), false);
    assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { first: 7, .. }))), "{refused:?}");
    let made = rebuild_without_log(set.backup.clone(), main(), Uuid([9; 16]), true).unwrap();
    assert!(made.damaged.len() == 1 && made.damaged[0] == (7..8));
    let past = Past::of_backup(set.backup.clone()).unwrap();
    let mut block = [0; crate::BLOCK_SIZE];
    assert!(past.read(7, &mut [std::io::IoSliceMut::new(&mut block)]).is_err());
    let fresh = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)));
    device.create_backup(fresh.clone(), Uuid([61; 16])).unwrap();
    assert!(matches!(Past::of_backup(fresh.clone()), Err(Error::Incomplete { .. })));
    let refused = rebuild_without_log(fresh, main(), Uuid([9; 16]), true);
    assert!(matches!(refused, Err(Error::Incomplete { .. })), "{refused:?}");
}

#[test]
fn a_main_that_is_to_be_smaller_is_looked_at_and_stays_what_it_is() {
    let (set, device) = Set::new();
    put(&device, 3, 33).unwrap();
    device.flush().unwrap();
    drop(device);
    let damaged = Arc::new((*set.backup).clone());
    spoil(&damaged, 9);
    let before = [&set.main, &set.log].map(|device| device.snapshot());
    let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: false, accept_damage: false };
    for with_log in [true, false] {
        let check = |backup: &Arc<MemoryDevice>, blocks| {
            let log = with_log.then(|| -> Arc<dyn Device> { set.log.clone() });
            check_rebuild(backup.clone(), log, set.main.clone(), blocks, &how)
        };
        let least = BLOCKS + 256;
        check(&set.backup, least).unwrap();
        assert!(matches!(check(&set.backup, least - 1), Err(Error::TooSmall { role: Role::Main, .. })), "{with_log}");
        let refused = check(&damaged, least);
        assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { first: 9, .. }))), "{refused:?}");
    }
    assert!(before == [&set.main, &set.log].map(|device| device.snapshot()));
}

#[test]
fn a_main_that_is_to_have_another_size_can_have_labels_there() {
    let (set, device) = Set::new();
    drop(device);
    let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: false, accept_damage: false };
    let (least, was) = (BLOCKS + 256, BLOCKS + 1256);
    for with_log in [true, false] {
        let check = |unread: &[u64], blocks| {
            let log = with_log.then(|| -> Arc<dyn Device> { set.log.clone() });
            let main = Arc::new(MemoryDevice::new(was));
            let failing = Failing::after(0, main.clone(), unread.to_vec(), Torn::None);
            let checked = check_rebuild(set.backup.clone(), log, Arc::new(failing), blocks, &how);
            assert!(main.snapshot().iter().all(|byte| *byte == 0));
            checked
        };
        // Where labels are to be, not where they are, or data.
        for (blocks, at) in [(least, BLOCKS + 7), (was - 1, was - 256), (was + 100, was - 100)] {
            let what = format!("with its log: {with_log}, {blocks} blocks, block {at}");
            let refused = check(&[at], blocks);
            assert!(matches!(refused, Err(Error::LabelUnread { role: Role::Main, .. })), "{what}: {refused:?}");
            check(&[], blocks).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        for blocks in [least, was + 300] {
            check(&[9, was - 200], blocks).unwrap();
        }
    }
}

#[test]
fn of_a_main_that_was_given_up_nothing_is_left_for_which_the_backup_is_read_before() {
    let (set, device) = Set::new();
    drop(device);
    let given_up = Arc::new((*set.main).clone());
    let failing = Failing::after(6, given_up.clone(), Vec::new(), Torn::None);
    assert!(rebuild(set.backup.clone(), set.log.clone(), Arc::new(failing), Uuid([9; 16])).is_err());
    assert!(matches!(Labelled::read(given_up.clone(), Role::Main), Err(Error::GivenUp { .. })));
    let blank = Arc::new(MemoryDevice::new(set.main.blocks()));
    let read = [&set.main, &given_up, &blank].map(|main| {
        let backup = Counted { below: set.backup.clone(), from: 0, read: AtomicU64::new(0) };
        let (backup, main, log) = (Arc::new(backup), Arc::new((**main).clone()), Arc::new((*set.log).clone()));
        rebuild(backup.clone(), log, main, Uuid([9; 16])).unwrap();
        backup.read.load(Ordering::Relaxed)
    });
    assert!(read[0] >= read[2] + BLOCKS && read[1] == read[2], "{read:?}");
}
