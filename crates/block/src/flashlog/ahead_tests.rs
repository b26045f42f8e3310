//! Backups whose copy another thread reads in advance.
use super::backup_tests::{BLOCKS, Set, contents};
use super::staging::Backup;
use super::tests::{Unplugged, block, names, open, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A backup with a thread that reads in advance, and what it told.
fn back_up(set: &Flashlog, device: Arc<dyn Device>) -> (Result<BackedUp, Error>, Vec<(u64, u64)>) {
    let (ahead, mut told) = (ReadAhead::default(), Vec::new());
    let done = std::thread::scope(|scope| {
        scope.spawn(|| set.read_ahead(&ahead));
        set.backup_ahead(device, &ahead, &mut |done, total| told.push((done, total)))
    });
    (done, told)
}

/// Main that cannot be read at one block, or where reading that is a bug, and counts what is read.
struct Main {
    below: Arc<MemoryDevice>,
    bad: AtomicU64,
    is_bug: AtomicBool,
    read_blocks: AtomicU64,
}

impl Filter for Main {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        let blocks = length_bytes / BLOCK_SIZE as u64;
        let bad = self.bad.load(Ordering::Relaxed);
        if (first..first + blocks).contains(&bad) {
            assert!(!self.is_bug.load(Ordering::Relaxed), "planted at {bad}");
            let (source, device) = (Arc::new(std::io::Error::from_raw_os_error(libc::EIO)), "main".into());
            let operation = crate::Operation::Read;
            return Err(crate::Error::Io { device, operation, first: Some(bad), length_bytes, source });
        }
        self.below.read(first, bufs)?;
        self.read_blocks.fetch_add(blocks, Ordering::SeqCst);
        Ok(())
    }
}

/// A set of so many blocks, a part of which is something.
fn large_set(blocks: u64) -> (Arc<Main>, Arc<Flashlog>, Arc<MemoryDevice>) {
    let below = Arc::new(MemoryDevice::new(blocks + 256).named("main"));
    (0..blocks).step_by(7).for_each(|at| put(&*below, at, at + 1).unwrap());
    let log = Arc::new(MemoryDevice::new(256 * 12).named("log"));
    let main = Arc::new(Main {
        below,
        bad: AtomicU64::new(u64::MAX),
        is_bug: AtomicBool::new(false),
        read_blocks: AtomicU64::new(0),
    });
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), blocks);
    let (set, _) = Flashlog::open(main.clone(), log, &Options::default()).unwrap();
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(blocks)).named("backup"));
    set.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    (main, Arc::new(set), backup)
}

fn are_same(set: &Flashlog, backup: &dyn Device) -> bool {
    let (mut of_set, mut of_backup) = (vec![0; 256 * BLOCK_SIZE], vec![0; 256 * BLOCK_SIZE]);
    (0..set.blocks()).step_by(256).all(|at| {
        set.read(at, &mut [IoSliceMut::new(&mut of_set)]).unwrap();
        backup.read(at, &mut [IoSliceMut::new(&mut of_backup)]).unwrap();
        of_set == of_backup
    })
}

/// A backup whose first write waits until so much of main has been read in advance.
struct Waiting {
    below: Arc<MemoryDevice>,
    main: Arc<Main>,
    /// So much.
    until_blocks: u64,
    /// What had been read of main then.
    seen: AtomicU64,
    is_first: AtomicBool,
}

impl Waiting {
    fn until(until_blocks: u64, main: &Arc<Main>, backup: &Arc<MemoryDevice>) -> Arc<Waiting> {
        let (below, main, is_first) = (backup.clone(), main.clone(), AtomicBool::new(true));
        Arc::new(Waiting { below, main, until_blocks, seen: AtomicU64::new(0), is_first })
    }
}

impl Filter for Waiting {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if first == 0 && self.is_first.swap(false, Ordering::Relaxed) {
            let begun = Instant::now();
            let read = || self.main.read_blocks.load(Ordering::SeqCst);
            // Reading wakes nobody who waits for a number of blocks.
            while read() < self.until_blocks && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // And no more than there is room for: time in which it would read on.
            std::thread::sleep(Duration::from_millis(50));
            self.seen.store(read(), Ordering::Relaxed);
        }
        self.below.write(first, bufs)
    }
}

#[test]
fn main_is_read_while_the_backup_is_written_within_a_bound() {
    let (main, set, backup) = large_set(20 * 256);
    main.read_blocks.store(0, Ordering::Relaxed);
    let waiting = Waiting::until(9 * 256, &main, &backup);
    let (done, told) = back_up(&set, waiting.clone());
    assert!(done.unwrap().is_full);
    // The one that is being written, and eight in advance.
    assert_eq!(waiting.seen.load(Ordering::Relaxed), 9 * 256);
    assert_eq!((told[0], *told.last().unwrap()), ((0, 20 * 256), (20 * 256, 20 * 256)));
    assert!(told.is_sorted() && are_same(&set, &*backup));
    // Each block once.
    assert_eq!(main.read_blocks.load(Ordering::Relaxed) / 2, 20 * 256);
}

#[test]
fn what_cannot_be_read_ends_a_copy_at_its_place_and_it_goes_on_from_what_was_noted() {
    const MANY: u64 = 70 * 256;
    let (main, set, backup) = large_set(MANY);
    main.bad.store(66 * 256 + 5, Ordering::Relaxed);
    let (done, _) = back_up(&set, backup.clone());
    let error = done.unwrap_err().to_string();
    assert!(error.contains("main") && error.contains(&(66 * 256 + 5).to_string()), "{error}");
    main.bad.store(u64::MAX, Ordering::Relaxed);
    let (done, told) = back_up(&set, backup.clone());
    // It notes how far it is each 64 MiB.
    assert_eq!((done.unwrap().is_full, told[0]), (true, (0, MANY - 64 * 256)));
    assert!(are_same(&set, &*backup));
}

#[test]
fn a_panic_of_the_thread_that_reads_in_advance_is_an_error_and_nobody_waits_for_it() {
    let (main, set, backup) = large_set(20 * 256);
    main.bad.store(7 * 256 + 5, Ordering::Relaxed);
    main.is_bug.store(true, Ordering::Relaxed);
    // Whoever copies does not get there before the thread.
    let waiting = Waiting::until(7 * 256, &main, &backup);
    let (told, done) = std::sync::mpsc::channel();
    let of_thread = set.clone();
    std::thread::spawn(move || told.send(back_up(&of_thread, waiting).0));
    let done = done.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
    let error = done.unwrap_err().to_string();
    for part in ["flashlog of main and log", "256 blocks from block 1792 on", "planted at 1797"] {
        assert!(error.contains(part), "{error}");
    }
    main.bad.store(u64::MAX, Ordering::Relaxed);
    assert!(back_up(&set, backup.clone()).0.unwrap().is_full && are_same(&set, &*backup));
}

#[test]
fn a_backup_that_fails_ends_it_as_without_a_thread_and_the_next_one_goes_on() {
    for addresses in [0, 150, 700] {
        for requests in 0..14 {
            let (set, device) = Set::new();
            let old = contents(&device);
            if addresses == 0 {
                device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
            }
            // More than the log holds.
            (0..3000).filter(|_| addresses > 0).for_each(|at| put(&device, at % addresses, 9 + at).unwrap());
            let new = contents(&device);
            let (done, _) = back_up(&device, Unplugged::after(&set.backup, requests));
            assert!(requests >= 7 || done.unwrap_err().to_string().contains("unplugged"));
            if addresses == 150 {
                finish_backup(set.backup.clone()).unwrap();
                let now = contents(&*set.backup);
                assert!(now == old || now == new, "cut off after {requests} requests");
            }
            let device = if requests % 2 == 0 { device } else { set.reopen() };
            put(&device, 1000, 3).unwrap();
            back_up(&device, set.backup.clone()).0.unwrap();
            assert!(contents(&*set.backup) == contents(&device), "cut off after {requests} requests");
        }
    }
}

#[test]
fn what_was_read_in_advance_and_is_overwritten_comes_from_the_log_or_is_copied_again() {
    let (set, device) = Set::new();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !is_done.load(Ordering::Relaxed) {
                put(&device, number * 7 % BLOCKS, number).unwrap();
                number += 1;
            }
        });
        for _ in 0..10 {
            // A new one is copied whole.
            device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
            match back_up(&device, set.backup.clone()).0 {
                Ok(_) | Err(Error::Overflowed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    back_up(&device, set.backup.clone()).0.unwrap();
    assert!(contents(&*set.backup) == contents(&device));
    device.flush().unwrap();
    let before = contents(&device);
    drop(device);
    let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
    rebuild(set.backup, set.log.clone(), main.clone(), Uuid([70; 16])).unwrap();
    assert!(contents(&open(&main, &set.log, Mode::Asynchronous).unwrap().0) == before);
}

#[test]
fn a_thread_that_comes_too_late_returns() {
    let (set, device) = Set::new();
    let ahead = ReadAhead::default();
    put(&device, 3, 4).unwrap();
    device.backup_ahead(set.backup.clone(), &ahead, &mut |_, _| ()).unwrap();
    device.read_ahead(&ahead);
    assert_eq!(super::tests::get(&*set.backup, 3), block(4));
}
