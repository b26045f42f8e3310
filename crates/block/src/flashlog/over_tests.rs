//! Backups over damage in the log that nobody needs any more.
use super::backup_tests::{BLOCKS, Busy, Set, contents};
use super::kept_tests::made_anew;
use super::tests::{Unplugged, Unreadable, block, get, options, put, spoil};
use super::*;
use crate::Device;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the log's data begins.
const DATA: u64 = 3 * 256;

/// The states that a set had after each flush.
type States = Vec<Vec<u8>>;

/// A set whose log has, for the backup, `first` and `second` blocks from 100 on, and then blocks 0 to 9; these are damaged; then `third`
/// blocks from 200 on; then blocks 0 to 9 again. More than the staging area has room for.
fn damaged_between(first: u64, third: u64, mode: Mode) -> (Set, Flashlog, States) {
    let (set, device) = Set::in_mode(mode);
    let mut states = vec![contents(&device)];
    let mut write = |addresses: std::ops::Range<u64>, number: u64| {
        for at in addresses {
            put(&device, at, number + at).unwrap();
        }
        device.flush().unwrap();
        states.push(contents(&device));
    };
    write(100..100 + first, 10_000);
    write(0..10, 20_000);
    write(200..200 + third, 30_000);
    write(0..10, 40_000);
    device.settle().unwrap();
    let at = (DATA..set.log.blocks()).find(|at| get(&*set.log, *at) == block(20_003)).unwrap();
    spoil(&set.log, at);
    (set, device, states)
}

#[test]
fn a_damaged_version_that_was_written_again_does_not_stop_a_backup() {
    // With and without room for all that is behind the damage.
    for (first, third, has_room) in [(0, 700, false), (60, 700, false), (90, 440, true)] {
        for mode in [Mode::Synchronous, Mode::Asynchronous] {
            let (set, device, states) = damaged_between(first, third, mode);
            let done = device.backup(set.backup.clone()).unwrap();
            assert_eq!((done.over_damage_first, done.had_no_state), (Some(3), !has_room), "{first} {third}: {done:?}");
            assert_eq!((done.copied_blocks, done.is_full), (0, false));
            assert!(contents(&*set.backup) == states[4] && verify_backup(set.backup.clone()).unwrap().is_good());
            assert_eq!(device.status().changed_blocks, 0);
            // All is as ever.
            put(&device, 5, 5).unwrap();
            device.flush().unwrap();
            let next = BackedUp { blocks: 1, steps: 1, ..BackedUp::default() };
            assert_eq!(device.backup(set.backup.clone()).unwrap(), next);
            put(&device, 6, 6).unwrap();
            device.flush().unwrap();
            let expected = contents(&device);
            drop(device);
            assert!(made_anew(&set) == expected);
        }
    }
}

#[test]
fn cut_off_over_damage_it_has_a_state_or_says_that_it_has_none_and_goes_on() {
    for (first, third, has_room) in [(60, 700, false), (90, 440, true)] {
        for requests in 0..60 {
            let what = format!("{first} {third}, cut off after {requests} requests");
            let (set, device, states) = damaged_between(first, third, Mode::Synchronous);
            let done = device.backup(Unplugged::after(&set.backup, requests));
            let device = if requests % 2 == 0 { device } else { set.reopen() };
            match finish_backup(set.backup.clone()) {
                Ok(()) => assert!(states.contains(&contents(&*set.backup)), "{what}"),
                Err(Error::Incomplete { .. }) => {
                    assert!(!has_room && done.is_err(), "{what}");
                    assert!(device.status().changed_blocks > 0, "{what}: the status says nothing");
                }
                Err(error) => panic!("{what}: {error}"),
            }
            put(&device, 900, 7).unwrap();
            device.backup(set.backup.clone()).unwrap();
            assert!(contents(&*set.backup) == contents(&device), "{what}");
            assert_eq!(device.status().changed_blocks, 0, "{what}");
            device.settle().unwrap();
            let expected = contents(&device);
            drop(device);
            assert!(made_anew(&set) == expected, "{what}");
        }
    }
}

#[test]
fn a_newest_version_that_nobody_has_ends_the_backup_which_keeps_its_state() {
    let (set, device, states) = damaged_between(0, 700, Mode::Synchronous);
    let at = (DATA..set.log.blocks()).find(|at| get(&*set.log, *at) == block(30_250)).unwrap();
    for (device, at) in [(&set.log, at), (&set.main, 250)] {
        spoil(device, at);
    }
    let refused = device.backup(set.backup.clone());
    assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { .. }))), "{refused:?}");
    finish_backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == states[0]);
    // Whoever writes it again has a backup.
    put(&device, 250, 1).unwrap();
    let done = device.backup(set.backup.clone()).unwrap();
    assert!(done.over_damage_first.is_some(), "{done:?}");
    assert!(get(&*set.backup, 250) == block(1) && get(&*set.backup, 3) == block(40_003));
}

#[test]
fn a_log_that_is_full_meanwhile_does_not_end_it() {
    for (first, third) in [(60, 700), (90, 440)] {
        for writes in 1..30 {
            let (set, device, _) = damaged_between(first, third, Mode::Asynchronous);
            let device = Arc::new(device);
            device.backup(Arc::new(Busy::after(&set.backup, &device, writes))).unwrap();
            device.backup(set.backup.clone()).unwrap();
            assert!(contents(&*set.backup) == contents(&*device), "{first} {third}, {writes} writes");
            assert_eq!(device.status().changed_blocks, 0);
        }
    }
}

#[test]
fn nor_does_one_that_cannot_be_read() {
    let (set, device, states) = damaged_between(60, 700, Mode::Synchronous);
    let at = (DATA..set.log.blocks()).find(|at| get(&*set.log, *at) == block(20_004)).unwrap();
    drop(device);
    let log = Unreadable::at(&set.log, u64::MAX);
    let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Synchronous)).unwrap();
    log.at.store(at, Ordering::Relaxed);
    let done = device.backup(set.backup.clone()).unwrap();
    assert!(done.over_damage_first.is_some_and(|first| first < 10) && done.had_no_state, "{done:?}");
    assert!(contents(&*set.backup) == states[4]);
}

#[test]
fn nor_one_behind_what_a_full_log_has_let_go_of() {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    for number in 0..3000 {
        put(&device, number % 20, number).unwrap();
    }
    for (addresses, number) in [(30..40, 20_000), (200..BLOCKS - 100, 30_000), (30..40, 40_000)] {
        addresses.for_each(|at| put(&device, at, number + at).unwrap());
        device.settle().unwrap();
    }
    assert_eq!(device.status().changed_blocks, 20, "the log has room for these");
    let at = (DATA..set.log.blocks()).find(|at| get(&*set.log, *at) == block(20_033)).unwrap();
    spoil(&set.log, at);
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}
