//! A backup whose checksums are damaged: nothing of it gets over what main has without proof.
use super::backup_tests::{BLOCKS, Set, contents};
use super::chunk::{no_sum, zero_block};
use super::doubtful::Doubtful;
use super::format::GROUP_BLOCKS;
use super::scrub::mended;
use super::staging::Backup;
use super::tests::{Unplugged, Unreadable, block, get, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Operation};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BOTH: [Mode; 2] = [Mode::Synchronous, Mode::Asynchronous];

fn damage(device: &MemoryDevice, at: u64) {
    device.alter(at, |bytes| bytes[77] ^= 7).unwrap();
}

fn copy(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new((**device).clone())
}

/// A set whose backup has damaged checksums of its first group, and another block 100 than main. Block 5 is on main later than on the backup, if
/// main sleeps.
fn with_damaged_sums(mode: Mode) -> (Set, Flashlog) {
    let (set, device) = Set::in_mode(mode);
    put(&device, 5, 55).unwrap();
    device.backup(set.backup.clone()).unwrap();
    damage(&set.backup, 100);
    damage(&set.backup, BLOCKS);
    (set, device)
}

fn scrub(device: &Flashlog, set: &Set) -> Scrubbed {
    device.scrub(set.backup.clone()).unwrap()
}

/// How much of the backup has no checksum, and the first of it.
fn back_up(device: &Flashlog, set: &Set) -> (u64, Option<u64>) {
    let done = device.backup(set.backup.clone()).unwrap();
    (done.unchecked_blocks, done.unchecked_first)
}

fn bad(blocks: u64, first: u64) -> Bad {
    Bad { blocks, first }
}

/// A scrub that has found only this.
fn only(doubtful: &[u64], waiting: &[u64]) -> Scrubbed {
    Scrubbed { blocks: BLOCKS, doubtful: doubtful.to_vec(), waiting: waiting.to_vec(), ..Scrubbed::default() }
}

/// Scrubs do nothing to main, and tell each time of the same.
fn check_untouched(device: &Flashlog, set: &Set, what: &str) {
    let expected = contents(device);
    for _ in 0..2 {
        assert_eq!(scrub(device, set), only(&[100], &[]), "{what}");
        assert!(contents(device) == expected && contents(&*set.main) == expected, "{what}");
        assert_eq!(device.status().damage, Damage { backup: bad(1, 100), ..Damage::default() }, "{what}");
    }
}

/// Main made anew, in a place of its own.
fn make(set: &Set, accept_damage: bool) -> Result<Vec<u8>, Error> {
    let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: false, accept_damage };
    let (main, log) = (Arc::new(MemoryDevice::new(set.main.blocks())), copy(&set.log));
    rebuild_at(copy(&set.backup), log.clone(), main.clone(), &how)?;
    Ok(contents(&Flashlog::open(main, log, &options(Mode::Synchronous))?.0))
}

#[test]
fn blocks_without_a_checksum_are_counted_until_they_have_one() {
    let mut doubtful = Doubtful::default();
    doubtful.see(0, 0, &[1, no_sum(), no_sum()]);
    doubtful.see(2, 1020, &[no_sum(), 1]);
    assert_eq!(doubtful.all(), bad(3, 1));
    doubtful.see(0, 0, &[1, 2, 3]);
    assert_eq!(doubtful.all(), bad(1, 1020));
    doubtful.see(2, 1020, &[4, 1]);
    assert_eq!(doubtful.all(), Bad::default());
}

#[test]
fn what_was_found_between_two_states_of_a_backup_is_told_on() {
    let mut doubtful = Doubtful::default();
    doubtful.see(0, 0, &[no_sum(), no_sum()]);
    assert_eq!(doubtful.note(Bad::default()), bad(2, 0));
    doubtful.see(2, 1020, &[no_sum()]);
    assert_eq!(doubtful.note(bad(2, 0)), bad(3, 0));
    assert_eq!(doubtful.noted, Some((Bad::default(), bad(3, 0))));
    // Somebody has looked.
    assert_eq!(doubtful.note(bad(1, 900)), bad(3, 0));
    assert_eq!(doubtful.noted, Some((bad(1, 900), bad(3, 0))));
}

#[test]
fn zeros_are_not_near_to_having_no_checksum() {
    assert!(mended(&Some(Box::new(*zero_block())), no_sum()).is_none());
}

#[test]
fn nothing_of_a_backup_whose_checksums_were_damaged_gets_over_what_main_has() {
    for (mode, is_scrubbed) in BOTH.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let what = format!("{mode:?}, the scrub comes first: {is_scrubbed}");
        let (set, device) = with_damaged_sums(mode);
        put(&device, 3, 33).unwrap();
        if is_scrubbed {
            assert_eq!(scrub(&device, &set), only(&[100], &[3]), "{what}");
            assert_eq!(device.status().damage.backup, bad(2, 3), "{what}");
        }
        // Told by each backup that comes by.
        assert_eq!(back_up(&device, &set), (1, Some(100)), "{what}");
        assert_eq!(device.status().damage.backup, if is_scrubbed { bad(2, 3) } else { bad(1, 100) }, "{what}");
        check_untouched(&device, &set, &what);
        assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, std::slice::from_ref(&(100..101)), "{what}");
        device.settle().unwrap();
        let refused = make(&set, false).unwrap_err();
        assert!(matches!(refused, Error::Device(crate::Error::Damaged { first: 100, .. })), "{what}: {refused}");
        assert!(make(&set, true).unwrap() != contents(&device), "{what}");
        // If main was right, or the backup is found to be.
        match is_scrubbed {
            true => put(&device, 100, 101).unwrap(),
            false => damage(&set.backup, 100),
        }
        device.settle().unwrap();
        assert_eq!(make(&set, false).is_ok(), is_scrubbed, "{what}");
        device.backup(set.backup.clone()).unwrap();
        assert_eq!(scrub(&device, &set), only(&[], &[]), "{what}");
        assert!(contents(&*set.backup) == contents(&device), "{what}");
        assert!(verify_backup(set.backup.clone()).unwrap().is_good(), "{what}");
        assert_eq!(device.status().damage, Damage::default(), "{what}");
    }
}

#[test]
fn a_backup_that_compares_everything_has_what_main_has() {
    let (set, device) = with_damaged_sums(Mode::Synchronous);
    put(&device, 3, 33).unwrap();
    assert_eq!(back_up(&device, &set), (1, Some(100)));
    device.give_up_backup(Uuid([60; 16])).unwrap();
    assert_eq!(back_up(&device, &set), (0, None));
    assert_eq!(scrub(&device, &set), only(&[], &[]));
    assert!(contents(&*set.backup) == contents(&device));
}

/// Since the backup's state so much was written that the log was full, to neither block 100 nor 5.
fn with_full_log(mode: Mode) -> (Set, Flashlog) {
    let (set, device) = with_damaged_sums(mode);
    for number in 0..6000 {
        put(&device, 320 + number % 704, number).unwrap();
    }
    device.settle().unwrap();
    assert_eq!(device.status().changed_blocks, 704);
    (set, device)
}

#[test]
fn a_copy_of_some_of_it_believes_nothing_of_the_rest() {
    for mode in BOTH {
        let (set, device) = with_full_log(mode);
        let done = device.backup(set.backup.clone()).unwrap();
        // More than is staged.
        assert_eq!((done.copied_blocks, done.is_full), (704, false));
        assert_eq!((done.unchecked_blocks, done.unchecked_first), (1, Some(100)), "{mode:?}");
        assert_eq!(device.status().damage.backup, bad(1, 100));
        check_untouched(&device, &set, &format!("{mode:?}"));
    }
}

#[test]
fn a_backup_that_is_cut_off_anywhere_leaves_nobody_believing() {
    for (mode, is_full) in BOTH.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        for requests in 0.. {
            let what = format!("{mode:?}, the log was full: {is_full}, {requests} requests");
            let (set, device) = if is_full { with_full_log(mode) } else { with_damaged_sums(mode) };
            // Of a copy the next call need not get to the group once more.
            put(&device, if is_full { 700 } else { 3 }, 33).unwrap();
            let backup = Unplugged::after(&set.backup, requests);
            let is_cut_before_its_end = device.backup(backup.clone()).is_err();
            // Behind its end it is not told.
            let is_cut = backup.left.load(Ordering::Relaxed) < 0;
            assert!(is_cut || !is_cut_before_its_end, "{what}");
            drop(device);
            let (device, _) = Flashlog::open(set.main.clone(), set.log.clone(), &options(mode)).unwrap();
            // What it has without a checksum is told of.
            let check_told = || {
                if finish_backup(set.backup.clone()).is_ok()
                    && !verify_backup(set.backup.clone()).unwrap().damaged.is_empty()
                {
                    assert!(device.status().damage.backup.blocks > 0, "{what}");
                }
            };
            check_told();
            device.backup(set.backup.clone()).unwrap();
            check_told();
            check_untouched(&device, &set, &what);
            if !is_cut {
                break;
            }
        }
    }
}

#[test]
fn what_waits_for_the_next_backup_has_no_checksum_until_then() {
    for mode in BOTH {
        let (set, device) = with_damaged_sums(mode);
        put(&device, 3, 33).unwrap();
        damage(&set.backup, 3);
        let before = contents(&*set.backup);
        assert_eq!(scrub(&device, &set), only(&[100], &[3]), "{mode:?}");
        let damaged = verify_backup(set.backup.clone()).unwrap().damaged;
        assert_eq!(damaged, [3..4, 100..101], "{mode:?}");
        assert!(contents(&*set.backup) == before);
        let past = device.past(set.backup.clone(), At::Backup).unwrap();
        let mut bytes = vec![0; BLOCK_SIZE];
        let refused = past.read(3, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err();
        assert!(matches!(refused, crate::Error::Damaged { first: 3, .. }), "{refused}");
    }
}

/// A backup: when it is first read by itself at this block, that is written to the set.
struct Writing {
    below: Arc<MemoryDevice>,
    set: Arc<Flashlog>,
    at: u64,
    is_done: AtomicBool,
}

impl Filter for Writing {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        if first == 0 && bufs[0].len() > BLOCK_SIZE && !self.is_done.swap(true, Ordering::Relaxed) {
            put(&*self.set, self.at, 99).unwrap();
        }
        self.below.read(first, bufs)
    }
}

#[test]
fn what_is_being_written_meanwhile_has_no_checksum_until_the_next_backup() {
    let (set, device) = with_damaged_sums(Mode::Asynchronous);
    damage(&set.backup, 7);
    let device = Arc::new(device);
    let (below, is_done) = (set.backup.clone(), AtomicBool::new(false));
    let backup = Arc::new(Writing { below, set: device.clone(), at: 7, is_done });
    assert_eq!(device.scrub(backup).unwrap(), only(&[100], &[7]));
    assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, [7..8, 100..101]);
}

#[test]
fn what_is_forgotten_is_not_settled_while_it_may_be_doubtful() {
    for at in [9, 600] {
        let (set, device) = Set::new();
        device.settle().unwrap();
        let had = get(&*set.backup, at);
        for device in [&set.main, &set.backup] {
            damage(device, at);
        }
        assert_eq!(scrub(&device, &set).lost, [at]);
        drop(device);
        // Now nobody knows any more which block it is, and the backup has it as it was.
        let device = set.reopen();
        damage(&set.backup, at);
        damage(&set.backup, 4);
        damage(&set.backup, BLOCKS);
        let scrubbed = scrub(&device, &set);
        device.give_up_backup(Uuid([60; 16])).unwrap();
        let compared = device.backup(set.backup.clone());
        if at == 600 {
            // What is doubtful is in front of it.
            assert_eq!(scrubbed, Scrubbed { main_repaired: vec![600], ..only(&[4], &[]) });
            compared.unwrap();
            assert_eq!(device.status().damage, Damage { backup: bad(1, 4), ..Damage::default() });
        } else {
            assert_eq!(scrubbed, only(&[4, 9], &[]));
            assert!(matches!(compared, Err(Error::Forgotten { blocks: 1, first: 9, .. })), "{compared:?}");
            assert_eq!(device.status().damage, Damage { main: bad(1, 9), backup: bad(2, 4), log_tells: false });
        }
        assert!(get(&*set.backup, at) == had);
    }
}

#[test]
fn what_is_forgotten_is_not_settled_while_it_is_being_written() {
    let (set, device) = Set::new();
    device.settle().unwrap();
    for device in [&set.main, &set.backup] {
        damage(device, 7);
    }
    assert_eq!(scrub(&device, &set).lost, [7]);
    drop(device);
    let device = Arc::new(set.reopen());
    // The backup has it as it was.
    damage(&set.backup, 7);
    damage(&set.backup, BLOCKS);
    let (below, is_done) = (set.backup.clone(), AtomicBool::new(false));
    let backup = Arc::new(Writing { below, set: device.clone(), at: 7, is_done });
    assert_eq!(device.scrub(backup).unwrap(), only(&[], &[7]));
    // A power cut takes what was being written.
    let (after, _) = open(&copy(&set.main), &copy(&set.log), Mode::Asynchronous).unwrap();
    assert_eq!(after.status().damage.main, bad(1, 7));
    after.give_up_backup(Uuid([60; 16])).unwrap();
    let compared = after.backup(set.backup.clone());
    assert!(matches!(compared, Err(Error::Forgotten { blocks: 1, first: 7, .. })), "{compared:?}");
    drop(after);
    // What was written is settled once the backup has it.
    device.backup(set.backup.clone()).unwrap();
    assert_eq!(scrub(&device, &set), only(&[], &[]));
    assert_eq!(device.status().damage, Damage::default());
}

#[test]
fn what_an_older_scrub_called_doubtful_has_no_checksum() {
    for mode in BOTH {
        let (set, device) = Set::in_mode(mode);
        damage(&set.backup, 100);
        // That wrote checksums which what the backup has never matches. Of block 3 main was unlike it only then.
        let flipped = [3, 100].map(|at| (at, !crc64(&get(&*set.backup, at))));
        Backup::open(set.backup.clone()).unwrap().write_sums(&BTreeMap::from(flipped)).unwrap();
        check_untouched(&device, &set, &format!("{mode:?}"));
        assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, std::slice::from_ref(&(100..101)), "{mode:?}");
        // From then on they are as all others.
        put(&device, 4, 44).unwrap();
        assert_eq!(back_up(&device, &set), (1, Some(100)), "{mode:?}");
    }
}

#[test]
fn what_the_log_has_main_is_compared_with_whatever_the_backup_has() {
    for mode in BOTH {
        let (set, device) = with_damaged_sums(mode);
        put(&device, 3, 33).unwrap();
        device.settle().unwrap();
        damage(&set.main, 3);
        assert_eq!(scrub(&device, &set), Scrubbed { main_repaired: vec![3], ..only(&[100], &[3]) }, "{mode:?}");
        assert!(get(&device, 3) == block(33) && get(&*set.main, 3) == block(33));
    }
}

/// A main that takes no data any more.
struct Failing {
    below: Arc<MemoryDevice>,
    is_failing: AtomicBool,
}

impl Filter for Failing {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if first >= BLOCKS || !self.is_failing.load(Ordering::Relaxed) {
            return self.below.write(first, bufs);
        }
        let (device, source) = ("main".into(), Arc::new(std::io::Error::from_raw_os_error(libc::EIO)));
        Err(crate::Error::Io { device, operation: Operation::Write, first: Some(first), length_bytes: 0, source })
    }
}

#[test]
fn where_main_fails_meanwhile_nothing_is_proven() {
    let (set, device) = with_damaged_sums(Mode::Asynchronous);
    drop(device);
    let main = Arc::new(Failing { below: set.main.clone(), is_failing: AtomicBool::new(false) });
    let (device, _) = Flashlog::open(main.clone(), set.log.clone(), &options(Mode::Asynchronous)).unwrap();
    put(&device, 3, 33).unwrap();
    main.is_failing.store(true, Ordering::Relaxed);
    // The backup is made of the log.
    assert_eq!(back_up(&device, &set), (GROUP_BLOCKS - 1, Some(0)));
    assert!(device.status().failure.is_some() && get(&*set.backup, 3) == block(33));
    assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, [0..3, 4..GROUP_BLOCKS]);
    drop(device);
    let device = set.reopen();
    assert_eq!(device.status().damage.backup, bad(GROUP_BLOCKS - 1, 0));
    check_untouched(&device, &set, "with main again");
}

#[test]
fn what_main_cannot_read_proves_nothing() {
    let (set, device) = with_damaged_sums(Mode::Synchronous);
    drop(device);
    let main = Unreadable::at(&set.main, 100);
    let (device, _) = Flashlog::open(main, set.log.clone(), &options(Mode::Synchronous)).unwrap();
    // Nor can the backup.
    let backup = Unreadable::at(&set.backup, 100);
    assert_eq!(device.scrub(backup.clone()).unwrap(), only(&[100], &[]));
    put(&device, 3, 33).unwrap();
    let done = device.backup(backup).unwrap();
    assert_eq!((done.unchecked_blocks, done.unchecked_first), (1, Some(100)));
    assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, std::slice::from_ref(&(100..101)));
}

#[test]
fn what_main_is_known_not_to_have_as_it_was_proves_nothing() {
    for is_scrubbed in [false, true] {
        let (set, device) = Set::in_mode(Mode::Synchronous);
        for device in [&set.main, &set.backup] {
            damage(device, 9);
        }
        assert_eq!(scrub(&device, &set).lost, [9]);
        damage(&set.backup, BLOCKS);
        if is_scrubbed {
            assert_eq!(scrub(&device, &set), only(&[9], &[]));
        } else {
            put(&device, 3, 33).unwrap();
            assert_eq!(back_up(&device, &set), (1, Some(9)));
        }
        assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, std::slice::from_ref(&(9..10)));
        assert_eq!(device.status().damage, Damage { main: bad(1, 9), backup: bad(1, 9), log_tells: false });
        put(&device, 9, 90).unwrap();
        assert_eq!(back_up(&device, &set), (0, None));
        assert_eq!(scrub(&device, &set), only(&[], &[]));
        assert_eq!(device.status().damage, Damage::default());
    }
}
