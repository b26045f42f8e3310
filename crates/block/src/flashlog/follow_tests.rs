//! Asynchronous mode: what memory has is not read from the log, and reading from the log keeps no writer waiting.

use super::failure_tests::condition;
use super::serve_tests::{Moved, served, set, until};
use super::tests::{block, get, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The data area of the log of [`set`].
const DATA_BLOCKS: u64 = 9 * 256;

/// A log that counts the blocks that are read from it, from one on.
pub(super) struct Counted {
    pub(super) below: Arc<MemoryDevice>,
    pub(super) from: u64,
    pub(super) read: AtomicU64,
}

impl Filter for Counted {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        if first >= self.from {
            let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
            self.read.fetch_add((bytes / BLOCK_SIZE) as u64, Ordering::Relaxed);
        }
        self.below.read(first, bufs)
    }
}

/// A set with so many blocks of memory, its main, and what was read from its log since the last time it was asked.
fn counted(memory_blocks: u64, timer: Arc<Moved>) -> (Flashlog, Arc<MemoryDevice>, impl Fn() -> u64) {
    let (main, log) = set();
    let log = Arc::new(Counted { below: log, from: 0, read: AtomicU64::new(0) });
    let options = Options { memory_blocks, timer, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main.clone(), log.clone(), &options).unwrap();
    log.read.store(0, Ordering::Relaxed);
    (device, main, move || log.read.swap(0, Ordering::Relaxed))
}

#[test]
fn what_memory_has_is_not_read_from_the_log() {
    for (memory_blocks, from_log) in [(64, 0), (16, 24), (0, 40)] {
        let (device, main, read) = counted(memory_blocks, Arc::default());
        (0..40).for_each(|at| put(&device, at, at).unwrap());
        device.flush().unwrap();
        assert!((0..40).all(|at| get(&device, at) == block(at)));
        assert_eq!(read(), from_log);
        device.catch_up().unwrap();
        assert!((0..40).all(|at| get(&*main, at) == block(at)));
        assert_eq!((read(), device.behind_blocks()), (from_log, 0));
    }
}

#[test]
fn what_is_damaged_in_memory_is_read_from_the_log() {
    let (device, main, read) = counted(64, Arc::default());
    put(&device, 7, 1).unwrap();
    device.flush().unwrap();
    device.stages.lock().recent.damage();
    assert_eq!((get(&device, 7), read()), (block(1), 1));
    device.catch_up().unwrap();
    assert_eq!((get(&*main, 7), read()), (block(1), 1));
}

#[test]
fn the_log_is_read_when_nobody_writes_to_it_or_somebody_must_wait() {
    let timer = Arc::new(Moved::default());
    let (device, main, read) = counted(0, timer.clone());
    let fill = |to: u64| {
        let from = device.behind_blocks();
        (from..to).for_each(|at| put(&device, at, at).unwrap());
    };
    served(&device, || {
        for round in 0..3 {
            // Three quarters of the log, in which each block is written several times.
            for at in 0..DATA_BLOCKS / 8 * 6 - 8 {
                put(&device, at % 512, at).unwrap();
            }
            fill(520);
            // What is gathered would come to the log after the time has passed, and be waited for once more.
            device.flush().unwrap();
            until(|| device.stages.lock().company.patient > 0);
            assert_eq!(read(), 0);
            match round {
                // Nobody writes for a second.
                0 => timer.pass(1),
                // Somebody wants it.
                1 => device.catch_up().unwrap(),
                // The log gets full.
                _ => {
                    (0..DATA_BLOCKS / 8).for_each(|at| put(&device, at, at).unwrap());
                    device.flush().unwrap();
                    // Main gets a part of it, and the rest when nobody writes.
                    until(|| {
                        let stages = device.stages.lock();
                        stages.is_between && stages.company.patient > 0
                    });
                    timer.pass(1);
                }
            }
            until(|| get(&*main, 519) == block(519) && device.stages.lock().company.idle > 0);
            assert!(read() >= 520, "round {round}");
            assert_eq!(condition(&main), Condition::Open);
            device.settle().unwrap();
            read();
        }
    });
}

#[test]
fn main_that_is_awake_follows_a_writer() {
    let timer = Arc::new(Moved::default());
    let (device, main, read) = counted(64, timer.clone());
    let write = |from: u64, count: u64| (from..from + count).for_each(|at| put(&device, at, at).unwrap());
    served(&device, || {
        write(0, 40);
        timer.pass(1);
        assert_eq!(device.behind_blocks(), 40, "it sleeps");
        device.flush().unwrap();
        device.catch_up().unwrap();
        for round in 0..5 {
            write(100 * round, 16);
            until(|| get(&*main, 100 * round + 15) == block(100 * round + 15));
        }
        write(600, 8);
        timer.pass(6);
        write(700, 40);
        timer.pass(1);
        assert_eq!((device.behind_blocks(), read()), (48, 0), "it sleeps again");
    });
}

/// Whoever is to have main's turn is let in between; main is not left as a mixture after that.
#[test]
fn main_that_has_got_a_part_gets_the_rest_without_waiting_for_its_time() {
    let (device, main, _) = counted(64, Arc::default());
    // Not so much that it would be followed.
    (0..10).for_each(|at| put(&device, at, at).unwrap());
    device.flush().unwrap();
    device.follow(&mut device.main_side.lock(), false).unwrap();
    assert_eq!(condition(&main), Condition::CatchingUp);
    served(&device, || assert_eq!(condition(&main), Condition::Open));
}

#[test]
fn a_full_log_lets_go_of_a_part_and_what_was_written_again_is_not_written_to_main() {
    let (device, main, read) = counted(0, Arc::default());
    // The second half of the rounds is of the same blocks as the first, and they are more than the log has room for.
    let (once, writes) = (800, 2 * DATA_BLOCKS);
    let address = |number: u64| if number < once { number } else { once + number % 100 };
    (0..writes).for_each(|number| put(&device, address(number), number).unwrap());
    // Each block that was not written again, and few of the others.
    assert!((once..once + 300).contains(&read()));
    let newest = |at: u64| (0..writes).rev().find(|number| address(*number) == at).unwrap();
    (0..once + 100).for_each(|at| assert!(get(&device, at) == block(newest(at)), "block {at}"));
    assert!((100..once).contains(&device.behind_blocks()) && condition(&main) == Condition::CatchingUp);
    device.flush().unwrap();
    device.catch_up().unwrap();
    assert_eq!((device.behind_blocks(), condition(&main)), (0, Condition::Open));
    (0..once + 100).for_each(|at| assert!(get(&*main, at) == block(newest(at)), "block {at} of main"));
}
