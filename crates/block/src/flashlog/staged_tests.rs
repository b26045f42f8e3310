//! Steps of a backup that are large beside memory, and staging areas that are not this set's.

use super::backup::Part;
use super::backup_tests::{BLOCKS, Set, contents, write_some};
use super::format::{Role, State};
use super::labels::Labelled;
use super::staging::{Backup, Room};
use super::tests::{Unplugged, get, names, open, options, put, spoil};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Notes the largest request for the pages of a backup's staging area.
struct Widest {
    below: Arc<MemoryDevice>,
    pages: Range<u64>,
    most: AtomicU64,
}

impl Widest {
    fn of(below: &Arc<MemoryDevice>) -> Arc<Widest> {
        let areas = Backup::look(below.clone()).unwrap().label().areas;
        let pages = areas.meta_start..areas.data_start;
        Arc::new(Widest { below: below.clone(), pages, most: AtomicU64::new(0) })
    }

    fn note(&self, first: u64, lengths: impl Iterator<Item = usize>) {
        if self.pages.contains(&first) {
            self.most.fetch_max((lengths.sum::<usize>() / BLOCK_SIZE) as u64, Ordering::Relaxed);
        }
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Filter for Widest {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        self.note(first, bufs.iter().map(|buf| buf.len()));
        self.below.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.note(first, bufs.iter().map(|buf| buf.len()));
        self.below.write(first, bufs)
    }
}

/// A backup of a set that was cut off when the label said that the next state is staged.
fn staged(set: &Set, device: &Flashlog) -> Arc<MemoryDevice> {
    for requests in 0.. {
        let backup = Arc::new((*set.backup).clone());
        device.backup(Unplugged::after(&backup, requests)).unwrap_err();
        let is_staged = Backup::look(backup.clone()).unwrap().label().state == State::Staged;
        if is_staged && contents(&*backup) == contents(&*set.backup) {
            return backup;
        }
    }
    unreachable!("it is staged before it is done")
}

#[test]
fn what_a_backup_of_another_set_has_staged_stays_as_it_is() {
    let (set, device) = Set::new();
    write_some(&device, 1000..1040);
    let foreign = staged(&set, &device);
    let before = foreign.snapshot();
    let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), Arc::new(MemoryDevice::new(256 * 12)));
    create(main.clone(), log.clone(), &names(30)).unwrap();
    let (other, _) = open(&main, &log, Mode::Synchronous).unwrap();
    let is_refused = |done: Result<(), Error>| matches!(done, Err(Error::OtherSet { .. }));
    assert!(is_refused(other.backup(foreign.clone()).map(drop)));
    assert!(is_refused(other.scrub(foreign.clone()).map(drop)));
    drop(other);
    let new = Arc::new(MemoryDevice::new(BLOCKS + 256));
    assert!(is_refused(rebuild(foreign.clone(), log, new, Uuid([70; 16])).map(drop)));
    assert!(foreign.snapshot() == before, "nobody has written to it");
    // Its own set goes on with it.
    let expected = contents(&device);
    drop(device);
    let new = Arc::new(MemoryDevice::new(BLOCKS + 256));
    rebuild(foreign, set.log.clone(), new.clone(), Uuid([70; 16])).unwrap();
    assert!(contents(&open(&new, &set.log, Mode::Synchronous).unwrap().0) == expected);
}

#[test]
fn a_label_that_counts_many_staged_pages_asks_for_few_at_once() {
    let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), Arc::new(MemoryDevice::new(256 * 12)));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
    // 16 GiB, of which next to nothing is there.
    let backup = Arc::new(MemoryDevice::new(1 << 22));
    device.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    device.backup(backup.clone()).unwrap();
    let mut crafted = Labelled::read(backup.clone(), Role::Backup).unwrap();
    crafted
        .write(|label| {
            (label.state, label.staging.pages) = (State::Staged, label.areas.meta_blocks);
            label.staging.to = label.applied;
        })
        .unwrap();
    let widest = Widest::of(&backup);
    assert!(matches!(device.backup(widest.clone()), Err(Error::Damaged { .. })));
    assert!(matches!(finish_backup(widest.clone()), Err(Error::Damaged { .. })));
    assert!(matches!(Past::of_backup(widest.clone()), Err(Error::Damaged { .. })));
    assert!((1..=64).contains(&widest.most()), "{} pages at once", widest.most());
}

/// A set of 20,000 blocks with a backup, which has been copied, and room for much on log and backup.
fn large(index_blocks: u64) -> (Set, Flashlog) {
    const MANY: u64 = 80 * AREA_UNIT_BLOCKS;
    let main = Arc::new(MemoryDevice::new(MANY + 256).named("main"));
    let log = Arc::new(MemoryDevice::new(256 * 80).named("log"));
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(MANY) + 120 * AREA_UNIT_BLOCKS).named("backup"));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    let options = Options { index_blocks, ..options(Mode::Synchronous) };
    let (device, _) = Flashlog::open(main.clone(), log.clone(), &options).unwrap();
    device.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    device.backup(backup.clone()).unwrap();
    (Set { main, log, backup }, device)
}

/// Runs of zeros take no room for data, and an entry each.
#[test]
fn many_zeros_here_and_there_are_steps_that_the_staging_area_has_pages_for() {
    const MANY: u64 = 352 * AREA_UNIT_BLOCKS;
    let (main, log) = (Arc::new(MemoryDevice::new(MANY + 256)), Arc::new(MemoryDevice::new(256 * 40)));
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(MANY)));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    let options = Options { gather_blocks: 400, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, log, &options).unwrap();
    device.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    // Something that becomes zeros.
    (0..2).for_each(|at| put(&device, at * 86_000 + 1, 7 + at).unwrap());
    device.backup(backup.clone()).unwrap();
    assert!((0..43_001).all(|at| device.zero(2 * at + 1, 1, false).unwrap()));
    device.flush().unwrap();
    let is_zeros = |device: &dyn Device| [1, 86_001].map(|at| get(device, at) == [0; BLOCK_SIZE]);
    for requests in [5, 20, 100] {
        let cut_off = Arc::new((*backup).clone());
        device.backup(Unplugged::after(&cut_off, requests)).unwrap_err();
        finish_backup(cut_off.clone()).unwrap();
        // As they were written.
        assert!([[false, false], [true, false]].contains(&is_zeros(&*cut_off)), "cut off after {requests}");
    }
    let done = device.backup(backup.clone()).unwrap();
    assert!(done.steps > 1 && !done.had_no_state, "{done:?}");
    assert_eq!(is_zeros(&*backup), [true, true]);
    assert!(verify_backup(backup).unwrap().is_good());
}

fn all_of(device: &dyn Device, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

#[test]
fn a_step_of_many_pages_has_few_of_them_in_memory() {
    let (set, device) = large(1 << 20);
    // Each an entry of its own: 124 in a page, and 97 pages.
    for at in 0..12_000 {
        put(&device, at % 10_000 * 2, at + 5).unwrap();
    }
    let expected = all_of(&device, 20_000);
    let before = all_of(&*set.backup, 20_000);
    // Cut off in the middle of it, it is one or the other.
    let writes = |backup: &Arc<MemoryDevice>, requests| device.backup(Unplugged::after(backup, requests)).is_ok();
    let (mut had_old, mut had_new) = (0, 0);
    for requests in [20, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 60] {
        let backup = Arc::new((*set.backup).clone());
        let is_done = writes(&backup, requests);
        finish_backup(backup.clone()).unwrap();
        let now = all_of(&*backup, 20_000);
        assert!(now == expected || !is_done && now == before, "cut off after {requests} requests");
        (had_old, had_new) = (had_old + u64::from(now == before), had_new + u64::from(now == expected));
    }
    assert!(had_old > 0 && had_new > 0, "{had_old} and {had_new}");
    let widest = Widest::of(&set.backup);
    let done = device.backup(widest.clone()).unwrap();
    assert_eq!((done.blocks, done.steps), (10_000, 1));
    assert!(all_of(&*set.backup, 20_000) == expected);
    assert!((1..=64).contains(&widest.most()), "{} pages at once", widest.most());
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
}

/// A set whose log was full; behind that it has more blocks than memory is allowed for, some of them twice.
fn after_the_log_was_full() -> (Set, Flashlog) {
    let (set, device) = large(400);
    for at in 0..20_000 {
        put(&device, at % 1500, at + 9).unwrap();
    }
    for at in 0..3000 {
        put(&device, 4000 + at % 1500, at + 7).unwrap();
    }
    device.flush().unwrap();
    assert!(device.status().changed_blocks > 0);
    (set, device)
}

#[test]
fn what_came_after_the_log_was_full_is_one_state_in_parts_that_memory_is_allowed() {
    let (set, device) = after_the_log_was_full();
    let from = device.head.lock().keep.unwrap();
    let end = device.durable_point().unwrap();
    let (mut at, mut parts) = (from, 0);
    while at.page < end.page {
        let (all, to) = device.newest_versions(at, end, Part::Pages(Room { blocks: 20_000, pages: 20_000 })).unwrap();
        assert!(to.page > at.page && all.blocks() <= 400, "{} blocks at once", all.blocks());
        (at, parts) = (to, parts + 1);
    }
    assert!(parts > 5);
    let (before, expected) = (all_of(&*set.backup, 20_000), all_of(&device, 20_000));
    for requests in [10, 20, 25, 30, 32, 34, 36, 38, 40, 50] {
        let backup = Arc::new((*set.backup).clone());
        let is_done = device.backup(Unplugged::after(&backup, requests)).is_ok();
        finish_backup(backup.clone()).unwrap();
        let now = all_of(&*backup, 20_000);
        assert!(now == expected || !is_done && now == before, "cut off after {requests} requests");
    }
    let done = device.backup(set.backup.clone()).unwrap();
    assert_eq!((done.copied_blocks, done.steps, done.had_no_state), (1500, 1, false));
    assert!(all_of(&*set.backup, 20_000) == expected);
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
}

#[test]
fn an_earlier_version_that_is_damaged_ends_no_step_of_several_parts() {
    let (set, device) = after_the_log_was_full();
    let from = device.head.lock().keep.unwrap();
    let end = device.durable_point().unwrap();
    let (first, _) = device.newest_versions(from, end, Part::Pages(Room { blocks: 20_000, pages: 20_000 })).unwrap();
    // Of the last block of the first part; each of them is written again more than 400 blocks later.
    let position = first.data().iter().filter_map(|kept| kept.position()).max().unwrap();
    spoil(&set.log, device.rings.block(super::ring::Area::Data, position));
    let expected = all_of(&device, 20_000);
    let done = device.backup(set.backup.clone()).unwrap();
    assert!(done.steps == 1 && !done.had_no_state, "{done:?}");
    assert!(all_of(&*set.backup, 20_000) == expected);
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
}
