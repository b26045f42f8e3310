//! Backups: full, from the log, cut off, without room; and main made anew from them.
use super::staging::Backup;
use super::tests::{Unplugged, block, get, names, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) const BLOCKS: u64 = 1024;

pub(super) struct Set {
    pub(super) main: Arc<MemoryDevice>,
    pub(super) log: Arc<MemoryDevice>,
    pub(super) backup: Arc<MemoryDevice>,
}

impl Set {
    /// A set with something on it, and its backup.
    pub(super) fn new() -> (Set, Flashlog) {
        let main = Arc::new(MemoryDevice::new(BLOCKS + 256).named("main"));
        let log = Arc::new(MemoryDevice::new(256 * 12).named("log"));
        let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)).named("backup"));
        for at in 0..BLOCKS {
            put(&*main, at, at + 1).unwrap();
        }
        assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), BLOCKS);
        let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
        device.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
        let done = device.backup(backup.clone()).unwrap();
        assert_eq!((done.is_full, done.blocks), (true, 0));
        (Set { main, log, backup }, device)
    }

    /// The same, opened in this mode.
    pub(super) fn in_mode(mode: Mode) -> (Set, Flashlog) {
        let (set, device) = Set::new();
        drop(device);
        let (device, _) = open(&set.main, &set.log, mode).unwrap();
        (set, device)
    }

    pub(super) fn reopen(&self) -> Flashlog {
        open(&self.main, &self.log, Mode::Asynchronous).unwrap().0
    }
}

/// All blocks of a set's device, or of one that has them at their place.
pub(super) fn contents(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK_SIZE];
    device.read(0, &mut [std::io::IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

pub(super) fn write_some(device: &Flashlog, numbers: std::ops::Range<u64>) {
    for number in numbers {
        put(device, number * 37 % 300, number * 10).unwrap();
        if number % 20 == 0 {
            device.flush().unwrap();
        }
    }
}

#[test]
fn how_far_a_backup_is_goes_up_to_all_of_it() {
    let (set, device) = Set::new();
    let new = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)).named("new"));
    write_some(&device, 1000..1500);
    for (backup, all) in [(set.backup.clone(), 300), (new.clone(), BLOCKS)] {
        if all == BLOCKS {
            device.create_backup(new.clone(), Uuid([61; 16])).unwrap();
        }
        let mut told = Vec::new();
        device.backup_telling(backup, &mut |done, total| told.push((done, total))).unwrap();
        assert_eq!((told[0], *told.last().unwrap()), ((0, all), (all, all)));
        assert!(told.is_sorted() && told.iter().all(|(done, total)| done <= total), "{told:?}");
    }
}

#[test]
fn a_backup_has_the_newest_version_of_each_block_once() {
    let (set, device) = Set::new();
    assert!(contents(&*set.backup) == contents(&device));
    write_some(&device, 1000..1500);
    let done = device.backup(set.backup.clone()).unwrap();
    assert_eq!(done, BackedUp { blocks: 300, steps: 1, ..BackedUp::default() });
    assert!(contents(&*set.backup) == contents(&device));
    assert_eq!(device.backup(set.backup.clone()).unwrap(), BackedUp::default());
    drop(device);
    let device = set.reopen();
    write_some(&device, 2000..2010);
    assert_eq!(device.backup(set.backup.clone()).unwrap(), BackedUp { blocks: 10, steps: 1, ..BackedUp::default() });
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn what_has_no_room_in_the_staging_area_goes_in_steps() {
    let (set, device) = Set::new();
    for at in 0..BLOCKS {
        put(&device, at, at + 5000).unwrap();
    }
    let done = device.backup(set.backup.clone()).unwrap();
    assert!(!done.is_full && done.blocks == BLOCKS && done.steps >= 2, "{done:?}");
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn what_is_more_than_memory_is_allowed_for_goes_in_steps() {
    let (set, device) = Set::new();
    drop(device);
    let narrow = Options { index_blocks: 400, ..options(Mode::Synchronous) };
    let (device, _) = Flashlog::open(set.main.clone(), set.log.clone(), &narrow).unwrap();
    let large = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS) + 16 * AREA_UNIT_BLOCKS));
    device.create_backup(large.clone(), Uuid([61; 16])).unwrap();
    device.backup(large.clone()).unwrap();
    for at in 0..BLOCKS {
        put(&device, at, at + 5000).unwrap();
    }
    let done = device.backup(large.clone()).unwrap();
    assert!(done.copied_blocks == 0 && done.blocks == BLOCKS && done.steps == 3, "{done:?}");
    assert!(contents(&*large) == contents(&device));
}

#[test]
fn a_page_with_more_blocks_than_a_step_is_one() {
    const MANY: u64 = 36 * AREA_UNIT_BLOCKS;
    let (main, log) = (Arc::new(MemoryDevice::new(MANY + 256)), Arc::new(MemoryDevice::new(256 * 24)));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    let gathering = Options { gather_blocks: 1000, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, log, &gathering).unwrap();
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(MANY)));
    device.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    device.backup(backup.clone()).unwrap();
    let data: Vec<u8> = (0..500).flat_map(block).collect();
    device.write(3, &[IoSlice::new(&data)]).unwrap();
    let done = device.backup(backup.clone()).unwrap();
    assert_eq!((done.blocks, done.steps), (500, 2));
    assert!((0..500).all(|at| get(&*backup, at + 3) == block(at)));
}

#[test]
fn cut_off_anywhere_it_has_the_old_state_or_the_new_one_and_goes_on() {
    for requests in 0..40 {
        let (set, device) = Set::new();
        let old = contents(&device);
        write_some(&device, 1000..1200);
        let new = contents(&device);
        let failing = Unplugged::after(&set.backup, requests);
        let done = device.backup(failing);
        drop(Backup::open(set.backup.clone()).unwrap());
        let found = contents(&*set.backup);
        assert!(found == new || done.is_err() && found == old, "cut off after {requests} requests");
        put(&device, 3, 7).unwrap();
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device));
    }
}

#[test]
fn a_first_copy_that_is_cut_off_is_no_state() {
    for requests in [3, 4, 6, 7, 9] {
        let (set, device) = Set::new();
        device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
        assert!(device.backup(Unplugged::after(&set.backup, requests)).is_err());
        let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
        let refused = rebuild(set.backup.clone(), set.log.clone(), main, Uuid([70; 16]));
        assert!(matches!(refused, Err(Error::Incomplete { .. })), "{refused:?}");
        write_some(&device, 100..200);
        let device = if requests % 2 == 0 { device } else { set.reopen() };
        assert!(device.backup(set.backup.clone()).unwrap().is_full);
        assert!(contents(&*set.backup) == contents(&device), "cut off after {requests} requests");
    }
}

#[test]
fn a_first_copy_that_is_cut_off_at_its_end_is_told_of_until_it_is_a_state() {
    let mut told = 0;
    for requests in 0.. {
        let (set, device) = Set::new();
        let name = Uuid([61; 16]);
        device.create_backup(set.backup.clone(), name).unwrap();
        write_some(&device, 1000..1040);
        let done = device.backup(Unplugged::after(&set.backup, requests));
        let is_whole = finish_backup(set.backup.clone()).is_ok();
        let device = if requests % 2 == 0 { device } else { set.reopen() };
        let status = device.status();
        if status.backup == Some(name) && !is_whole {
            assert!(status.changed_blocks > 0, "cut off after {requests} requests: the status says nothing");
            told += 1;
        }
        if done.is_ok() {
            assert!(is_whole && device.status().changed_blocks == 0);
            break;
        }
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device), "cut off after {requests} requests");
        assert_eq!(device.status().changed_blocks, 0);
    }
    assert!(told > 3);
}

/// Writes the first blocks of the device so often that the log is full.
pub(super) fn overflow(device: &Flashlog, addresses: u64, number: u64) {
    for at in 0..3000 {
        put(device, at % addresses, number + at).unwrap();
    }
}

#[test]
fn after_the_log_was_full_a_backup_copies_the_changed_regions() {
    // What has changed has room in the staging area, or not.
    for (addresses, is_staged) in [(150u64, true), (700, false)] {
        let (set, device) = Set::new();
        overflow(&device, addresses, 9);
        put(&device, 900, 77).unwrap();
        let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
        let refused = rebuild(set.backup.clone(), set.log.clone(), main, Uuid([70; 16]));
        assert!(matches!(refused, Err(Error::Gap { .. })), "{refused:?}");
        let device = if is_staged { device } else { set.reopen() };
        assert_eq!(device.status().changed_blocks, addresses);
        let done = device.backup(set.backup.clone()).unwrap();
        assert_eq!((done.is_full, done.copied_blocks, done.same_blocks), (false, addresses, 0));
        assert!(contents(&*set.backup) == contents(&device));
        put(&device, 1, 2).unwrap();
        let next = BackedUp { blocks: 1, steps: 1, ..BackedUp::default() };
        assert_eq!(device.backup(set.backup.clone()).unwrap(), next);
        assert!(contents(&*set.backup) == contents(&set.reopen()));
    }
}

#[test]
fn a_copy_of_regions_that_is_cut_off_goes_on() {
    // What has changed has room in the staging area, or not.
    for addresses in [150, 700] {
        for requests in 0..14 {
            let (set, device) = Set::new();
            let old = contents(&device);
            overflow(&device, addresses, 9);
            let new = contents(&device);
            assert!(device.backup(Unplugged::after(&set.backup, requests)).is_err() || requests >= 10);
            if addresses == 150 {
                // One state or the other, when what was begun is finished.
                drop(Backup::open(set.backup.clone()).unwrap());
                let now = contents(&*set.backup);
                assert!(now == old || now == new, "cut off after {requests} requests");
            }
            let device = if requests % 2 == 0 { device } else { set.reopen() };
            if requests % 3 == 0 {
                // The log is full again meanwhile.
                overflow(&device, 400, 10_000);
            }
            put(&device, 1000, 3).unwrap();
            device.backup(set.backup.clone()).unwrap();
            assert!(contents(&*set.backup) == contents(&device), "cut off after {requests} requests");
            device.settle().unwrap();
            let device = set.reopen();
            put(&device, 1, 1).unwrap();
            let done = device.backup(set.backup.clone()).unwrap();
            assert_eq!((done.copied_blocks, done.blocks), (0, 1), "cut off after {requests} requests");
        }
    }
}

/// A backup device: after so many writes in front of its labels so much is written to the set that the log is full.
pub(super) struct Busy {
    below: Arc<MemoryDevice>,
    set: Arc<Flashlog>,
    left: AtomicU64,
}

impl Busy {
    pub(super) fn after(backup: &Arc<MemoryDevice>, set: &Arc<Flashlog>, writes: u64) -> Busy {
        Busy { below: backup.clone(), set: set.clone(), left: AtomicU64::new(writes) }
    }
}

impl Filter for Busy {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if first < self.below.blocks() - 256 && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // These are in what is let go of, and nowhere behind it.
            put(&*self.set, 250, 4).unwrap();
            put(&*self.set, 940, 4).unwrap();
            overflow(&self.set, 200, 50_000);
            put(&*self.set, 950, 5).unwrap();
        }
        self.below.write(first, bufs)
    }
}

#[test]
fn a_log_that_is_full_during_a_backup_does_not_end_it() {
    // First copy; regions that have room in the staging area; regions that have not; the log alone.
    for (case, addresses) in [(0, 0), (1, 150), (2, 700), (3, 0)] {
        for writes in 1..20 {
            let (set, device) = Set::new();
            let device = Arc::new(device);
            let backup = match case {
                0 => {
                    let fresh = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)));
                    device.create_backup(fresh.clone(), Uuid([61; 16])).unwrap();
                    fresh
                }
                _ => set.backup,
            };
            if addresses > 0 {
                overflow(&device, addresses, 9);
            }
            put(&*device, 500, 501).unwrap();
            device.backup(Arc::new(Busy::after(&backup, &device, writes))).unwrap();
            let is_same = contents(&*backup) == contents(&*device);
            // What was written after the point that the backup went for may be missing.
            device.backup(backup.clone()).unwrap();
            assert!(contents(&*backup) == contents(&*device), "case {case}, {writes} writes, {is_same}");
            let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), set.log);
            drop(device);
            let before = contents(&open(&set.main, &log, Mode::Asynchronous).unwrap().0);
            rebuild(backup, log.clone(), main.clone(), Uuid([70; 16])).unwrap();
            assert!(contents(&open(&main, &log, Mode::Asynchronous).unwrap().0) == before);
        }
    }
}

#[test]
fn with_a_damaged_map_the_next_backup_compares_everything() {
    let (set, device) = Set::new();
    overflow(&device, 100, 9);
    drop(device);
    for slot in [128, 192] {
        set.log.alter(slot, |block| block[130] ^= 1).unwrap();
    }
    let device = set.reopen();
    let done = device.backup(set.backup.clone()).unwrap();
    assert_eq!((done.copied_blocks, done.same_blocks), (100, BLOCKS - 100));
    assert!(contents(&*set.backup) == contents(&device));
    assert_eq!(device.backup(set.backup.clone()).unwrap(), BackedUp::default());
}

#[test]
fn main_is_made_anew_from_backup_and_log() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        write_some(&device, 1000..1300);
        device.backup(set.backup.clone()).unwrap();
        write_some(&device, 2000..2500);
        device.flush().unwrap();
        let before = contents(&device);
        drop(device);
        let small = Arc::new(MemoryDevice::new(BLOCKS));
        let refused = rebuild(set.backup.clone(), set.log.clone(), small, Uuid([70; 16]));
        assert!(matches!(refused, Err(Error::TooSmall { .. })));
        let main = Arc::new(MemoryDevice::new(BLOCKS + 300).named("new main"));
        assert_eq!(rebuild(set.backup.clone(), set.log.clone(), main.clone(), Uuid([70; 16])).unwrap(), BLOCKS);
        assert!(matches!(open(&set.main, &set.log, mode), Err(Error::Replaced { role: Role::Main, .. })));
        // Twice, as the first opening may have been cut off.
        for _ in 0..2 {
            let (device, _) = open(&main, &set.log, mode).unwrap();
            assert!(contents(&device) == before);
        }
        let (device, _) = open(&main, &set.log, mode).unwrap();
        put(&device, 9, 9).unwrap();
        assert!(!device.backup(set.backup.clone()).unwrap().is_full);
        assert!(contents(&*set.backup) == contents(&device));
    }
}

#[test]
fn a_main_that_is_being_made_anew_is_nobodys_main() {
    let (set, device) = Set::new();
    write_some(&device, 1000..1300);
    device.flush().unwrap();
    let before = contents(&device);
    device.settle().unwrap();
    drop(device);
    let copy = |device: &MemoryDevice| Arc::new(device.clone());
    let mut refused = 0;
    for requests in 0.. {
        let (main, log) = (copy(&set.main), copy(&set.log));
        let failing = Unplugged::after(&main, requests);
        if rebuild(copy(&set.backup), log.clone(), failing, Uuid([70; 16])).is_ok() {
            break;
        }
        match open(&main, &log, Mode::Synchronous) {
            Ok((device, _)) => assert!(contents(&device) == before, "cut off after {requests} requests"),
            Err(Error::GivenUp { .. } | Error::Replaced { role: Role::Main, .. }) => refused += 1,
            Err(error) => panic!("cut off after {requests} requests: {error}"),
        }
    }
    assert!(refused > 3);
}

#[test]
fn damage_in_the_log_never_gets_onto_a_backup() {
    let (set, device) = Set::new();
    let data_start = 256 + 2 * 256;
    let old = contents(&device);
    put(&device, 5, 55).unwrap();
    put(&device, 6, 66).unwrap();
    device.flush().unwrap();
    set.log.alter(data_start, |block| block[9] ^= 1).unwrap();
    assert_eq!(get(&*set.log, data_start + 1), block(66));
    set.log.alter(data_start + 1, |block| block[9] ^= 7).unwrap();
    let error = device.backup(set.backup.clone()).unwrap_err();
    assert!(matches!(error, Error::Device(crate::Error::Damaged { .. })), "{error}");
    assert!(contents(&*set.backup) == old);
    put(&device, 6, 67).unwrap();
    device.backup(set.backup.clone()).unwrap();
    assert_eq!((get(&*set.backup, 5), get(&*set.backup, 6)), (block(55), block(67)));
}

#[test]
fn damage_in_the_staging_area_is_told() {
    // Cut off while what is staged goes to its place: after data, checksums, pages, flush, label and its flush.
    let (set, device) = Set::new();
    put(&device, 5, 55).unwrap();
    assert!(device.backup(Unplugged::after(&set.backup, 6)).is_err());
    set.backup.alter(BLOCKS + 512, |block| block[0] ^= 7).unwrap();
    let error = device.backup(set.backup.clone()).unwrap_err();
    assert!(matches!(error, Error::Device(crate::Error::Damaged { .. })), "{error}");
    assert_eq!(get(&*set.backup, 5), block(6));
    set.backup.alter(BLOCKS + 512, |block| block[0] ^= 7).unwrap();
    set.backup.alter(BLOCKS + 256, |page| page[500] ^= 7).unwrap();
    assert!(matches!(device.backup(set.backup.clone()), Err(Error::Damaged { block: 1280, .. })));
    set.backup
        .alter(BLOCKS + 256, |page| {
            page[500] ^= 7;
            page[4090] ^= 1;
        })
        .unwrap();
    device.backup(set.backup.clone()).unwrap();
    assert_eq!(get(&*set.backup, 5), block(55));
}

#[test]
fn foreign_backups_are_refused() {
    let (set, device) = Set::new();
    assert!(matches!(device.backup(set.main.clone()), Err(Error::OtherRole { got: Role::Main, .. })));
    assert!(matches!(device.backup(set.log.clone()), Err(Error::OtherRole { got: Role::Log, .. })));
    let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), Arc::new(MemoryDevice::new(256 * 12)));
    create(main.clone(), log.clone(), &names(30)).unwrap();
    let (other, _) = open(&main, &log, Mode::Synchronous).unwrap();
    assert!(matches!(other.backup(set.backup.clone()), Err(Error::OtherSet { .. })));
    let refused = rebuild(set.backup.clone(), log, main, Uuid([70; 16]));
    assert!(matches!(refused, Err(Error::OtherSet { .. })));
    let small = Arc::new(MemoryDevice::new(BLOCKS + 256));
    assert!(matches!(device.create_backup(small, Uuid([61; 16])), Err(Error::TooSmall { .. })));
    // Another backup of the same set is copied whole, and the first one is compared then; not one whose state the log reaches back to.
    let second = Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)));
    device.create_backup(second.clone(), Uuid([61; 16])).unwrap();
    assert!(device.backup(second.clone()).unwrap().is_full);
    write_some(&device, 5..25);
    device.flush().unwrap();
    device.catch_up().unwrap();
    device.backup(second.clone()).unwrap();
    write_some(&device, 5..25);
    for (backup, expected) in [(set.backup.clone(), (0, 20, BLOCKS - 20)), (second, (20, 0, 0))] {
        let done = device.backup(backup.clone()).unwrap();
        assert_eq!(
            (done.blocks, done.copied_blocks, done.same_blocks, done.is_full),
            (expected.0, expected.1, expected.2, false)
        );
        assert!(contents(&*backup) == contents(&device));
    }
}

#[test]
fn a_set_is_used_while_it_is_backed_up() {
    let (set, device) = Set::new();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !is_done.load(Ordering::Relaxed) {
                put(&device, number * 7 % 200, number).unwrap();
                if number % 30 == 0 {
                    device.flush().unwrap();
                }
                number += 1;
            }
        });
        for round in 0..20 {
            match device.backup(set.backup.clone()) {
                Ok(_) | Err(Error::Overflowed { .. }) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn a_log_whose_label_a_backup_cannot_write_has_failed_before_others_write_to_it() {
    // What has changed has room in the staging area, or not; another backup.
    for case in 0..3 {
        for requests in 0.. {
            let (set, device) = Set::new();
            overflow(&device, if case == 0 { 150 } else { 700 }, 9);
            device.settle().unwrap();
            drop(device);
            let failing = Unplugged::after(&set.log, i64::MAX);
            let (device, _) = Flashlog::open(set.main.clone(), failing.clone(), &options(Mode::Synchronous)).unwrap();
            if case == 2 {
                device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
            }
            failing.left.store(requests, Ordering::Relaxed);
            let done = device.backup(set.backup.clone());
            failing.left.store(i64::MAX, Ordering::Relaxed);
            if done.is_ok() {
                assert!(requests > 3, "case {case}");
                break;
            }
            let failed = device.head.lock().failed.clone();
            assert!(failed.is_some(), "case {case}, request {requests}: {done:?}");
        }
    }
}
