//! States in between: each barrier as it was, of a set that is closed, cut off, or in use; and what spoils them.
use super::backup_tests::{Set, contents};
use super::tests::{Unplugged, block, get, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

fn seconds(count: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(count)
}

/// A set with a backup that has all but what is written from now on.
fn new_set(mode: Mode) -> (Set, Flashlog, Arc<AtomicU64>) {
    let (set, device) = Set::new();
    drop(device);
    let clock = Arc::new(AtomicU64::new(1000));
    let device = open_with_clock(&set, mode, &clock);
    (set, device, clock)
}

/// A set whose clock goes on by a second with each page.
fn open_with_clock(set: &Set, mode: Mode, clock: &Arc<AtomicU64>) -> Flashlog {
    let clock = Arc::clone(clock);
    let now = Arc::new(move || seconds(clock.fetch_add(1, Ordering::Relaxed)));
    let options = Options { now, ..options(mode) };
    Flashlog::open(set.main.clone(), set.log.clone(), &options).unwrap().0
}

/// Writes and flushes; what there was at each flush.
fn write_states(device: &Flashlog, numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let mut states = Vec::new();
    for number in numbers {
        for part in 0..1 + number % 12 {
            put(device, (number * 37 + part * part) % 400, number * 100 + part).unwrap();
        }
        device.flush().unwrap();
        states.push(contents(device));
    }
    states
}

/// Each of the last barriers has one of the states, whatever it is asked by; nothing is written.
fn assert_states(set: &Set, states: &[Vec<u8>]) {
    let before = [&set.backup, &set.log].map(|device| device.snapshot());
    let barriers = barriers(set.backup.clone(), set.log.clone()).unwrap();
    assert_eq!(barriers.len(), states.len());
    for (barrier, state) in barriers.iter().zip(states) {
        for at in [At::Barrier(barrier.number), At::Time(barrier.time)] {
            let past = Past::open(set.backup.clone(), set.log.clone(), at).unwrap();
            assert_eq!(past.barrier(), Some(*barrier));
            assert!(contents(&past) == *state, "{barrier} by {at:?}");
        }
    }
    assert!([&set.backup, &set.log].map(|device| device.snapshot()) == before, "something was written");
}

#[test]
fn each_barrier_is_a_state_by_its_number_and_by_its_time() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device, clock) = new_set(mode);
        write_states(&device, 1..20);
        device.backup(set.backup.clone()).unwrap();
        let mut states = write_states(&device, 20..50);
        drop(device);
        // The next life's pages are of another generation.
        let device = open_with_clock(&set, mode, &clock);
        states.extend(write_states(&device, 50..70));
        drop(device);
        assert_states(&set, &states);
        let all = barriers(set.backup.clone(), set.log.clone()).unwrap();
        assert_eq!(all.iter().map(|barrier| barrier.blocks).take(3).collect::<Vec<_>>(), [9, 10, 11]);
        assert!(all.windows(2).all(|pair| pair[0].number + 1 == pair[1].number && pair[0].time < pair[1].time));
        let past = |at| Past::open(set.backup.clone(), set.log.clone(), at);
        let between = past(At::Time(all[3].time + Duration::from_millis(999))).unwrap();
        assert_eq!(between.barrier(), Some(all[3]));
        assert!(contents(&past(At::Now).unwrap()) == states[49]);
        let last = *all.last().unwrap();
        let refused = past(At::Barrier(9999)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::NoBarrier { wanted: 9999, last: found, .. } if found == last), "{refused:?}");
        let said = format!("log: there is no barrier 9999: the last one is barrier {} (", last.number);
        assert!(refused.to_string().starts_with(&said), "{refused}");
        assert!(contents(&past(At::Backup).unwrap()) == contents(&*set.backup));
        for at in [At::Barrier(all[0].number - 1), At::Time(all[0].time - Duration::from_secs(1))] {
            let refused = past(at).map(drop);
            assert!(matches!(refused, Err(Error::TooEarly { first, .. }) if first == Some(all[0])), "{refused:?}");
        }
    }
}

#[test]
fn a_state_is_a_device_that_cannot_be_written() {
    let (set, device) = Set::new();
    put(&device, 7, 70).unwrap();
    put(&device, 8, 80).unwrap();
    device.flush().unwrap();
    drop(device);
    let past = Past::open(set.backup.clone(), set.log.clone(), At::Now).unwrap();
    assert_eq!((past.blocks(), past.blocks_in_log()), (1024, 2));
    let mut bytes = vec![0; 4 * BLOCK_SIZE];
    let (a, b) = bytes.split_at_mut(777);
    past.read(6, &mut [IoSliceMut::new(a), IoSliceMut::new(b)]).unwrap();
    assert!(bytes == [block(7), block(70), block(80), block(10)].concat());
    assert!(matches!(put(&past, 7, 1), Err(crate::Error::ReadOnly { .. })));
    assert!(matches!(past.discard(7, 1), Err(crate::Error::ReadOnly { .. })));
    assert!(past.flush().is_ok() && past.read(1024, &mut [IoSliceMut::new(&mut bytes)]).is_err());
}

#[test]
fn what_a_power_cut_took_is_no_barrier() {
    // The last page says that it is one, but its data is not all there, as if the flush of the log had not been done.
    let (set, device, _) = new_set(Mode::Asynchronous);
    let mut states = write_states(&device, 1..9);
    drop(device);
    let before = set.log.snapshot();
    let last = before.chunks_exact(BLOCK_SIZE).position(|found| found == block(800)).unwrap();
    set.log.alter(last as u64, |bytes| bytes.fill(0)).unwrap();
    states.pop();
    assert_states(&set, &states);
    let found = contents(&Past::open(set.backup.clone(), set.log.clone(), At::Now).unwrap());
    assert!(contents(&set.reopen()) == found);
    // Put there again, it does not count: an opening has cut it off.
    set.log.alter(last as u64, |bytes| bytes.copy_from_slice(&block(800))).unwrap();
    assert_states(&set, &states);
}

#[test]
fn what_a_backup_has_staged_is_part_of_its_state() {
    for requests in 0..8 {
        let (set, device) = Set::new();
        write_states(&device, 1..9);
        let first = device.backup(Unplugged::after(&set.backup, requests)).is_err();
        let states = write_states(&device, 9..12);
        drop(device);
        assert!(first);
        let all = barriers(set.backup.clone(), set.log.clone()).unwrap();
        let last = &all[all.len() - 3..];
        for (barrier, state) in last.iter().zip(&states) {
            let past = Past::open(set.backup.clone(), set.log.clone(), At::Barrier(barrier.number)).unwrap();
            assert!(contents(&past) == *state, "{barrier}, cut off after {requests} requests");
        }
    }
}

#[test]
fn flips_in_the_log_are_made_good_in_memory_or_told() {
    let (set, device, _) = new_set(Mode::Asynchronous);
    let states = write_states(&device, 1..9);
    drop(device);
    let find = |number: u64| {
        let log = set.log.snapshot();
        log.chunks_exact(BLOCK_SIZE).position(|found| found == block(number)).unwrap() as u64
    };
    let data = find(400);
    set.log.alter(data, |bytes| bytes[5] ^= 8).unwrap();
    // The pages begin at block 256; the first backup found none.
    set.log.alter(256 + 2, |bytes| bytes[130] ^= 1).unwrap();
    assert_states(&set, &states);
    set.log.alter(data, |bytes| bytes[6] ^= 7).unwrap();
    let past = Past::open(set.backup.clone(), set.log.clone(), At::Now).unwrap();
    let mut bytes = vec![0; BLOCK_SIZE];
    let error = past.read(4 * 37, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err();
    assert!(matches!(error, crate::Error::Damaged { first, .. } if first == data), "{error}");
    set.log.alter(256 + 5, |bytes| bytes[130] ^= 7).unwrap();
    assert!(matches!(barriers(set.backup.clone(), set.log.clone()), Err(Error::Damaged { block: 261, .. })));
    assert!(matches!(Past::open(set.backup.clone(), set.log.clone(), At::Now), Err(Error::Damaged { block: 261, .. })));
    // What is in front of it can be had, if it is named.
    let past = Past::open(set.backup.clone(), set.log.clone(), At::Barrier(3)).unwrap();
    assert!(past.barrier().is_some_and(|barrier| barrier.number == 3) && get(&past, 37) == block(100));
}

#[test]
fn a_state_of_a_set_in_use_stays_as_it_is_and_keeps_the_backup() {
    let (set, device) = Set::new();
    let states = write_states(&device, 1..9);
    let all = device.barriers(set.backup.clone()).unwrap();
    let held: Vec<Past> =
        all.iter().map(|barrier| device.past(set.backup.clone(), At::Barrier(barrier.number)).unwrap()).collect();
    put(&device, 3, 3333).unwrap();
    let now = device.past(set.backup.clone(), At::Now).unwrap();
    assert!(matches!(device.backup(set.backup.clone()), Err(Error::Busy { .. })));
    let last = contents(&device);
    write_states(&device, 100..150);
    device.settle().unwrap();
    for (past, state) in held.iter().zip(&states) {
        assert!(contents(past) == *state, "{}", past.name());
    }
    assert!(contents(&now) == last);
    drop((held, now));
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
    assert!(device.barriers(set.backup.clone()).unwrap().is_empty());
}

#[test]
fn a_full_log_lets_go_of_a_state_and_never_gives_others() {
    let (set, device) = Set::new();
    let states = write_states(&device, 1..30);
    let number = device.barriers(set.backup.clone()).unwrap()[20].number;
    let past = device.past(set.backup.clone(), At::Barrier(number)).unwrap();
    let mut lost = 0;
    for round in 0..8000 {
        put(&device, round % 900, round).unwrap();
        if round % 500 != 0 {
            continue;
        }
        for (at, expected) in states[20].chunks_exact(BLOCK_SIZE).enumerate() {
            let mut bytes = vec![0; BLOCK_SIZE];
            match past.read(at as u64, &mut [IoSliceMut::new(&mut bytes)]) {
                Ok(()) => assert!(bytes == expected, "block {at} in round {round}"),
                Err(crate::Error::Unsuitable { .. }) => lost += 1,
                Err(error) => panic!("block {at} in round {round}: {error}"),
            }
        }
    }
    assert!(lost > 0, "the log was never full");
    drop(past);
    assert!(matches!(device.past(set.backup.clone(), At::Now), Err(Error::Gap { .. })));
    assert!(device.backup(set.backup.clone()).unwrap().copied_blocks > 0);
}

#[test]
fn states_of_others_are_refused() {
    let (set, device) = Set::new();
    drop(device);
    assert!(matches!(Past::open(set.main.clone(), set.log.clone(), At::Now), Err(Error::OtherRole { .. })));
    let (other, _) = Set::new();
    create(other.main.clone(), other.log.clone(), &super::tests::names(30)).unwrap();
    let refused = Past::open(set.backup.clone(), other.log.clone(), At::Now);
    assert!(matches!(refused, Err(Error::OtherSet { .. })));
    let (device, _) = open(&set.main, &set.log, Mode::Synchronous).unwrap();
    device.create_backup(set.backup.clone(), Uuid([66; 16])).unwrap();
    let refused = device.past(set.backup.clone(), At::Now);
    assert!(matches!(refused, Err(Error::Incomplete { .. })));
}

/// A main device made anew at a state.
fn rebuilt(set: &Set, number: u8, at: At) -> Arc<MemoryDevice> {
    let main = Arc::new(MemoryDevice::new(1024 + 256).named("new main"));
    let name = Uuid([number; 16]);
    let careful = Rebuild { name, at, drop_later: false, accept_damage: false };
    let later = later(set.backup.clone(), set.log.clone(), at).unwrap();
    let log = set.log.snapshot();
    let refused = rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &careful).map(drop);
    if later == Later::default() {
        refused.unwrap();
    } else {
        assert!(matches!(&refused, Err(Error::Later { later: told, .. }) if **told == later), "{refused:?}");
        assert!(set.log.snapshot() == log);
        rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &Rebuild { drop_later: true, ..careful })
            .unwrap();
    }
    main
}

#[test]
fn main_is_made_anew_at_a_barrier_and_what_was_behind_it_never_comes_back() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for (first, second) in [(20, 12), (0, 0), (29, 5), (15, 15)] {
            let (mut set, device, clock) = new_set(mode);
            let mut states = write_states(&device, 1..21);
            drop(device);
            let device = open_with_clock(&set, mode, &clock);
            states.extend(write_states(&device, 21..31));
            drop(device);
            let all = barriers(set.backup.clone(), set.log.clone()).unwrap();
            let later = later(set.backup.clone(), set.log.clone(), At::Barrier(all[first].number)).unwrap();
            let behind = &all[first + 1..];
            assert_eq!((later.barriers, later.last), (behind.len() as u64, behind.last().copied()));
            assert_eq!(later.blocks, behind.iter().map(|barrier| barrier.blocks).sum::<u64>());
            let old_main = set.main.clone();
            set.main = rebuilt(&set, 71, At::Barrier(all[first].number));
            states.truncate(first + 1);
            assert_states(&set, &states);
            assert!(open(&old_main, &set.log, mode).is_err());
            // At once again, at the same state or an earlier one.
            set.main = rebuilt(&set, 72, At::Time(all[second].time));
            states.truncate(second + 1);
            assert_states(&set, &states);
            for _ in 0..2 {
                let device = open_with_clock(&set, mode, &clock);
                assert!(contents(&device) == states[second], "{mode:?} {first} {second}");
            }
            // Written over in part: what is left of the pages behind must not follow.
            let device = open_with_clock(&set, mode, &clock);
            states.extend(write_states(&device, 40..42));
            drop(device);
            assert_states(&set, &states);
            let numbers: Vec<u64> =
                barriers(set.backup.clone(), set.log.clone()).unwrap().iter().map(|b| b.number).collect();
            assert!(numbers.is_sorted() && numbers[second + 1] > all[29].number, "numbers are used again: {numbers:?}");
            let device = open_with_clock(&set, mode, &clock);
            assert!(contents(&device) == states[second + 2]);
            assert!(!device.backup(set.backup.clone()).unwrap().is_full);
            assert!(contents(&*set.backup) == states[second + 2]);
        }
    }
}

#[test]
fn a_backup_never_applies_what_was_cut_off() {
    let (mut set, device, clock) = new_set(Mode::Asynchronous);
    let states = write_states(&device, 1..21);
    drop(device);
    set.main = rebuilt(&set, 71, At::Barrier(7));
    let device = open_with_clock(&set, Mode::Asynchronous, &clock);
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == states[7]);
    drop(device);
    assert!(barriers(set.backup.clone(), set.log.clone()).unwrap().is_empty());
    set.main = rebuilt(&set, 72, At::Backup);
    assert!(contents(&set.reopen()) == states[7]);
}

#[test]
fn cut_off_anywhere_the_old_main_is_as_it_was_or_the_new_one_is_at_the_barrier() {
    for requests in 0..6 {
        let (set, device, _) = new_set(Mode::Asynchronous);
        let states = write_states(&device, 1..12);
        drop(device);
        let main = Arc::new(MemoryDevice::new(1024 + 256));
        let how = Rebuild { name: Uuid([73; 16]), at: At::Barrier(4), drop_later: true, accept_damage: false };
        let failing = Unplugged::after(&set.log, requests);
        let done = rebuild_at(set.backup.clone(), failing, main.clone(), &how).is_ok();
        match open(&set.main, &set.log, Mode::Asynchronous) {
            Ok((device, _)) => assert!(!done && contents(&device) == states[10], "after {requests} requests"),
            Err(error) => {
                assert!(matches!(error, Error::Replaced { .. }), "after {requests} requests: {error}");
                assert!(contents(&open(&main, &set.log, Mode::Asynchronous).unwrap().0) == states[4]);
            }
        }
    }
}
