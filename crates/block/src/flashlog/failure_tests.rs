//! Failures at moments that are hard to meet: while somebody waits, while a ring is full, while something else is being mended.
use super::backup_tests::Set;
use super::catch_up::Pace;
use super::tests::{Unplugged, block, get, names, open, options, put};
use super::*;
use crate::nbd::{Context, Extents};
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A set of so many blocks, on memory.
fn set(blocks: u64) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let main = Arc::new(MemoryDevice::new(blocks + 256).named("main"));
    let log = Arc::new(MemoryDevice::new(1024).named("log"));
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), blocks);
    (main, log)
}

#[test]
fn main_fails_when_a_write_needs_room_in_the_log() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = set(256);
        let failing = Unplugged::after(&main, 1000);
        // No bound but the log's: it is a write that finds out, not a flush.
        let options = Options { memory_blocks: u64::MAX, ..options(mode) };
        let device = Flashlog::open(failing.clone(), log.clone(), &options).unwrap().0;
        failing.left.store(0, Ordering::Relaxed);
        let (tell, told) = channel();
        // The first block is not written again, so that main must have it.
        let address = |number: u64| if number == 0 { 0 } else { 1 + number % 255 };
        // A thread of its own, so that one that waits for itself is told.
        std::thread::spawn(move || {
            let failed = (0..5000).find(|number| put(&device, address(*number), *number).is_err());
            drop(device);
            tell.send(failed).unwrap();
        });
        let failed = told.recv_timeout(Duration::from_secs(120)).expect("the writer waits for itself");
        let failed = failed.expect("the log has no room for so much");
        let (device, _) = open(&main, &log, mode).unwrap();
        assert!(get(&device, 0) == block(0), "{mode:?}");
        for number in failed - 254..failed {
            assert!(get(&device, address(number)) == block(number), "{mode:?}: {number} of {failed}");
        }
    }
}

#[test]
fn what_was_flushed_is_never_written_over_by_what_main_could_not_take() {
    // Main fails in each session: the log gets what is in memory, and can let go of nothing, until it has no room for more.
    let (main, log) = set(1024);
    let mut flushed = 0u64;
    for session in 0..8 {
        let failing = Unplugged::after(&main, 1000);
        let device = Flashlog::open(failing.clone(), log.clone(), &options(Mode::Asynchronous)).unwrap().0;
        for number in flushed.saturating_sub(1023).max(1)..=flushed {
            let found = get(&device, number % 1024);
            assert!(
                found == block(number) || found == block(number + 1024),
                "session {session}: {number} of {flushed}"
            );
        }
        failing.left.store(0, Ordering::Relaxed);
        // Less between two flushes than what makes a write append.
        let write = |from: u64| (from..from + 7).try_for_each(|number| put(&device, number % 1024, number));
        while write(flushed + 1).and_then(|()| device.flush()).is_ok() {
            flushed += 7;
        }
    }
}

#[test]
fn nothing_is_written_behind_what_could_not_be() {
    let (main, log) = set(256);
    let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
    put(&device, 1, 1).unwrap();
    device.stages.lock().damage_gathered();
    put(&device, 2, 1).unwrap();
    assert!(device.append(&mut device.head.lock(), true).is_err());
    // Others have waited for the head, and the latch is still open.
    put(&device, 3, 1).unwrap();
    assert!(device.append(&mut device.head.lock(), true).is_err());
    assert!(device.flush_log(&mut device.head.lock()).is_err());
    drop(device);
    let (device, opened) = open(&main, &log, Mode::Asynchronous).unwrap();
    assert!(opened.blocks == 0 && get(&device, 3) == vec![0; BLOCK_SIZE]);
}

#[test]
fn a_log_whose_flush_has_failed_is_not_asked_again() {
    let (main, log) = set(256);
    let failing = Unplugged::after(&log, 1000);
    let device = Flashlog::open(main, failing.clone(), &options(Mode::Asynchronous)).unwrap().0;
    put(&device, 1, 1).unwrap();
    let mut head = device.head.lock();
    device.append(&mut head, true).unwrap();
    failing.left.store(0, Ordering::Relaxed);
    assert!(device.flush_log(&mut head).is_err());
    // It has told it once, and forgotten what it could not keep.
    failing.left.store(1000, Ordering::Relaxed);
    assert!(device.flush_log(&mut head).is_err() && device.append(&mut head, true).is_err());
}

#[test]
fn a_rescue_is_not_undone_by_somebody_who_was_about_to_catch_up() {
    let (main, log) = set(256);
    let failing = Unplugged::after(&log, 1000);
    let device = Flashlog::open(main.clone(), failing.clone(), &options(Mode::Synchronous)).unwrap().0;
    put(&device, 5, 1).unwrap();
    {
        // The first half of a flush.
        let mut head = device.head.lock();
        device.append(&mut head, true).unwrap();
        device.flush_log(&mut head).unwrap();
    }
    put(&device, 5, 2).unwrap();
    failing.left.store(0, Ordering::Relaxed);
    assert!((10..20).any(|at| put(&device, at, 3).is_err()));
    assert!(get(&*main, 5) == block(2));
    // The second one.
    assert!(device.catch_up_to_durable().is_err());
    assert!(get(&*main, 5) == block(2));
}

#[test]
fn a_rescue_of_what_the_log_lacks_that_is_cut_off_is_told() {
    for requests in 0..10 {
        let (main, log) = set(256);
        let (of_main, of_log) = (Unplugged::after(&main, 1000), Unplugged::after(&log, 1000));
        let device = Flashlog::open(of_main.clone(), of_log.clone(), &options(Mode::Synchronous)).unwrap().0;
        put(&device, 200, 6).unwrap();
        device.flush().unwrap();
        of_log.left.store(0, Ordering::Relaxed);
        of_main.left.store(requests, Ordering::Relaxed);
        for at in [200, 201, 5, 6] {
            put(&device, at, 7).unwrap();
        }
        assert!(device.flush().is_err());
        drop(device);
        let flushed = get(&*main, 200);
        assert!(flushed == block(6) || flushed == block(7), "main failed after {requests} requests");
        match open(&main, &log, Mode::Synchronous) {
            Err(error) => assert!(matches!(error, Error::Alone { .. }), "{error}"),
            Ok((device, _)) => {
                let there = [201, 5, 6].iter().filter(|at| get(&device, **at) == block(7)).count();
                assert!(get(&device, 200) == block(6) && there == 0, "main failed after {requests} requests: {there}");
            }
        }
    }
}

/// What block 7 reads as when `change` was flushed to the log, `later` came, the log failed, and then main after so many requests; and whether main
/// is alone then.
fn block_7_without_log(
    requests: i64,
    change: fn(&Flashlog) -> Result<(), crate::Error>,
    later: (u64, u64),
) -> (Vec<u8>, bool) {
    let (main, log) = set(256);
    let (of_main, of_log) = (Unplugged::after(&main, 1000), Unplugged::after(&log, 1000));
    let device = Flashlog::open(of_main.clone(), of_log.clone(), &options(Mode::Asynchronous)).unwrap().0;
    put(&device, 7, 9).unwrap();
    device.flush().unwrap();
    device.catch_up().unwrap();
    change(&device).unwrap();
    device.flush().unwrap();
    put(&device, later.0, later.1).unwrap();
    of_log.left.store(0, Ordering::Relaxed);
    of_main.left.store(requests, Ordering::Relaxed);
    assert!(device.flush().is_err());
    drop(device);
    match open(&main, &log, Mode::Asynchronous) {
        Ok((device, _)) => (get(&device, 7), false),
        Err(error) => {
            assert!(matches!(error, Error::Alone { .. }), "{error}");
            (get(&*main, 7), true)
        }
    }
}

#[test]
fn main_is_not_alone_while_it_lacks_what_was_flushed_to_the_log() {
    for requests in 0..10 {
        // Memory has a newer version of all that only the log has.
        let (found, _) = block_7_without_log(requests, |device| put(device, 7, 1), (7, 2));
        assert!(found == block(1) || found == block(2), "main failed after {requests} requests");
    }
}

#[test]
fn main_is_not_alone_while_it_lacks_zeros_that_were_flushed_to_the_log() {
    let alone = (0..12).filter(|requests| {
        let zeros = |device: &Flashlog| device.zero(7, 2, false).map(|done| assert!(done));
        let (found, is_alone) = block_7_without_log(*requests, zeros, (100, 2));
        assert!(found == [0; BLOCK_SIZE], "main failed after {requests} requests");
        is_alone
    });
    // It goes on alone all the same: zeros need not be read from the log.
    assert!(alone.count() > 0);
}

#[test]
fn a_mixture_gets_nothing_that_the_log_lacks_before_it_is_none() {
    let mut counts = [0; 2];
    for requests in 0..12 {
        let (main, log) = set(256);
        let (of_main, of_log) = (Unplugged::after(&main, 1000), Unplugged::after(&log, 1000));
        let device = Flashlog::open(of_main.clone(), of_log.clone(), &options(Mode::Asynchronous)).unwrap().0;
        put(&device, 7, 1).unwrap();
        device.flush().unwrap();
        // On its way, when the log fails with what it has not got yet.
        device.apply_as_mixture(&mut device.main_side.lock(), Pace::AtOnce).unwrap();
        assert_eq!(condition(&main), Condition::CatchingUp);
        for at in [7, 200, 201] {
            put(&device, at, 2).unwrap();
        }
        of_log.left.store(0, Ordering::Relaxed);
        of_main.left.store(requests, Ordering::Relaxed);
        assert!(device.flush().is_err());
        drop(device);
        let opened = open(&main, &log, Mode::Asynchronous);
        counts[usize::from(opened.is_ok())] += 1;
        match opened {
            Ok((device, _)) => {
                let found = [7, 200, 201].map(|at| get(&device, at));
                assert!(
                    found == [1, 0, 0].map(|n| if n == 0 { vec![0; BLOCK_SIZE] } else { block(n) }),
                    "after {requests}"
                );
            }
            Err(error) => {
                assert!(matches!(error, Error::Alone { .. }), "{error}");
                let found = get(&*main, 7);
                assert!(found == block(1) || found == block(2), "main failed after {requests} requests");
            }
        }
    }
    // With the log as ever, and alone.
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// What the label of main says.
pub(super) fn condition(main: &MemoryDevice) -> Condition {
    inspect(main).unwrap().unwrap().condition
}

#[test]
fn a_mixture_is_one_until_main_has_everything_that_was_found() {
    let (main, log) = set(256);
    let wide = options(Mode::Asynchronous);
    let (device, _) = Flashlog::open(main.clone(), log.clone(), &wide).unwrap();
    for at in 0..30 {
        put(&device, 200 - at, at).unwrap();
        device.flush().unwrap();
    }
    for at in 0..30 {
        put(&device, 58 - 2 * at, 2000 + at).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    let failing = Unplugged::after(&main, 1000);
    let device = Flashlog::open(failing.clone(), log.clone(), &wide).unwrap().0;
    // The label, its flush, and five writes: those of the lowest addresses, which were written last.
    failing.left.store(7, Ordering::Relaxed);
    assert!(device.catch_up().is_err());
    drop(device);
    let has =
        |main: &MemoryDevice, at: u64| get(main, 200 - at) == block(at) && get(main, 58 - 2 * at) == block(2000 + at);
    let ends = [(0, 2029), (8, 2025), (10, 2024)].map(|(at, number)| get(&*main, at) == block(number));
    assert_eq!(ends, [true, true, false]);
    let mut mixtures = 0;
    for bound in [20, 29, 31, 59] {
        let (main, log) = (Arc::new((*main).clone()), Arc::new((*log).clone()));
        let narrow = Options { index_blocks: bound, ..wide.clone() };
        let device = Flashlog::open(main.clone(), log.clone(), &narrow).unwrap().0;
        let has_all = (0..30).all(|at| has(&main, at));
        let expected = if device.behind_blocks() == 0 { Condition::Open } else { Condition::CatchingUp };
        assert_eq!((condition(&main), has_all), (expected, expected == Condition::Open), "{bound}");
        mixtures += u64::from(!has_all);
        device.catch_up().unwrap();
        assert!((0..30).all(|at| has(&main, at)) && condition(&main) == Condition::Open);
    }
    assert_eq!(mixtures, 2);
}

#[test]
fn main_says_so_while_it_is_brought_through_states_that_it_had() {
    // Everything is on main already, which the log's pages do not know.
    let (main, log) = set(256);
    let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
    for number in 0..40 {
        put(&device, number % 25, number).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let narrow = Options { index_blocks: 20, ..options(Mode::Synchronous) };
    for requests in 0..20 {
        let (main, log) = (Arc::new((*main).clone()), Arc::new((*log).clone()));
        let opened = Flashlog::open(Unplugged::after(&main, requests), log.clone(), &narrow);
        let has_all = (15..40).all(|number| get(&*main, number % 25) == block(number));
        assert!(has_all || opened.is_err() && condition(&main) == Condition::CatchingUp, "after {requests} requests");
        drop(opened);
        let (device, _) = Flashlog::open(main.clone(), log, &narrow).unwrap();
        assert!((15..40).all(|number| get(&device, number % 25) == block(number)));
        assert_eq!(condition(&main), Condition::Open);
    }
}

#[test]
fn a_main_whose_flush_has_failed_is_not_asked_again() {
    let (main, log) = set(256);
    let failing = Unplugged::after(&main, 1000);
    let device = Flashlog::open(failing.clone(), log, &options(Mode::Synchronous)).unwrap().0;
    put(&device, 1, 1).unwrap();
    {
        let mut head = device.head.lock();
        device.append(&mut head, true).unwrap();
        device.flush_log(&mut head).unwrap();
    }
    // The block is written, the flush fails, and others who have waited for main have one that does not.
    failing.left.store(1, Ordering::Relaxed);
    assert!(device.catch_up_to_durable().is_err());
    failing.left.store(1000, Ordering::Relaxed);
    assert!(device.catch_up_to_durable().is_err() && device.behind_blocks() == 1);
}

#[test]
fn main_that_fails_while_somebody_asks_what_the_backup_lacks_has_failed() {
    let (main, log) = set(256);
    let failing = Unplugged::after(&main, 1000);
    let options = Options { memory_blocks: u64::MAX, ..options(Mode::Asynchronous) };
    let device = Flashlog::open(failing.clone(), log, &options).unwrap().0;
    failing.left.store(0, Ordering::Relaxed);
    let has_failed = (0..5000).any(|number| {
        put(&device, number % 256, number).expect("the one who asks finds out");
        // That is no answer to what was asked.
        device.extent(Context::BackUp, 0, 256).unwrap();
        device.latch.cause().is_some()
    });
    assert!(has_failed);
}

/// A backup; its set stops at one of the writes to it and flushes of it.
struct Stopping {
    set: Arc<Flashlog>,
    backup: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
    left: AtomicI64,
    log_had: Mutex<Vec<u8>>,
}

impl Stopping {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let (device, reason) = ("stopped".into(), "it has stopped");
            assert!(self.set.latch.close(&crate::Error::Unsuitable { device, reason }));
            *self.log_had.lock() = self.log.snapshot();
        }
    }
}

impl Filter for Stopping {
    fn below(&self) -> &dyn Device {
        &*self.backup
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.backup.write(first, bufs)?;
        self.count();
        Ok(())
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.backup.flush()?;
        self.count();
        Ok(())
    }
}

#[test]
fn a_backup_of_a_set_that_stops_meanwhile_writes_nothing_to_its_log() {
    // Another set may go on with it.
    for requests in 1.. {
        let (Set { log, backup, .. }, device) = Set::in_mode(Mode::Synchronous);
        let device = Arc::new(device);
        put(&*device, 3, 700).unwrap();
        device.flush().unwrap();
        let (left, log_had) = (AtomicI64::new(requests), Mutex::default());
        let stopping = Arc::new(Stopping { set: device.clone(), backup, log: log.clone(), left, log_had });
        let done = device.backup(stopping.clone());
        if stopping.left.load(Ordering::Relaxed) > 0 {
            assert!(done.is_ok() && requests > 5, "{requests}");
            break;
        }
        assert!(log.snapshot() == *stopping.log_had.lock(), "after {requests} requests: {done:?}");
    }
}
