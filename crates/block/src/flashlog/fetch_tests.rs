//! A thread that reads from the log what main gets next.
use super::catch_up::Pace;
use super::lasting_tests::{Ends, alone};
use super::lost_tests::is_damaged;
use super::serve_tests::{Moved, set, until};
use super::tests::{Unplugged, block, get, options, put, spoil};
use super::*;
use crate::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice, Operation};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Where data begins in the log of [`set`].
const DATA: u64 = 3 * 256;
/// Blocks of a piece, of a data area of nine units.
const PIECE: u64 = 64;
const PIECES: u64 = 10;
const WRITTEN: u64 = PIECES * PIECE;

/// A log that counts the blocks of data that it was asked for, and has one that cannot be read, where reading that is a bug, or that is not
/// read before it may be.
struct Log {
    below: Arc<MemoryDevice>,
    asked: AtomicU64,
    bad: AtomicU64,
    /// The first time.
    bug: AtomicU64,
    held: AtomicU64,
    /// Nothing can be read.
    is_dead: AtomicBool,
}

impl Filter for Log {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let blocks = length_bytes / BLOCK_SIZE as u64;
        if first >= DATA {
            self.asked.fetch_add(blocks, Ordering::SeqCst);
        }
        let [bad, bug] = [&self.bad, &self.bug].map(|at| at.load(Ordering::Relaxed));
        until(|| !(first..first + blocks).contains(&self.held.load(Ordering::SeqCst)));
        if (first..first + blocks).contains(&bug) {
            self.bug.store(u64::MAX, Ordering::Relaxed);
            panic!("planted at {bug}");
        }
        if (first..first + blocks).contains(&bad) || self.is_dead.load(Ordering::Relaxed) {
            let (device, source) = ("log".into(), Arc::new(std::io::Error::from_raw_os_error(libc::EIO)));
            return Err(Error::Io { device, operation: Operation::Read, first: Some(first), length_bytes, source });
        }
        self.below.read(first, bufs)
    }
}

/// Main that does something before it writes at an address of the set.
struct Main {
    below: Arc<MemoryDevice>,
    before: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
}

impl Filter for Main {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        if let Some(before) = self.before.get().filter(|_| first < 1024) {
            before(first);
        }
        self.below.write(first, bufs)
    }
}

struct Rig {
    main: Arc<Main>,
    log: Arc<Log>,
    device: Arc<Flashlog>,
}

impl Rig {
    /// A set whose log alone has some pieces, and memory nothing.
    fn new(options: &Options) -> Rig {
        let (main, log) = set();
        let main = Arc::new(Main { below: main, before: OnceLock::new() });
        let [asked, bad, bug, held] = [0, u64::MAX, u64::MAX, u64::MAX].map(AtomicU64::new);
        let log = Arc::new(Log { below: log, asked, bad, bug, held, is_dead: AtomicBool::new(false) });
        let (device, _) = Flashlog::open(main.clone(), log.clone(), options).unwrap();
        (0..WRITTEN).for_each(|at| put(&device, at, at + 1).unwrap());
        device.flush().unwrap();
        log.asked.store(0, Ordering::SeqCst);
        Rig { main, log, device: Arc::new(device) }
    }

    fn before(&self, before: impl Fn(u64) + Send + Sync + 'static) {
        assert!(self.main.before.set(Box::new(before)).is_ok());
    }

    /// Main writes a piece when the thread is at the next one: it is the thread that reads all but the first.
    fn wait_for_reads(&self) {
        let log = self.log.clone();
        self.before(move |first| {
            let next = ((first / PIECE + 2) * PIECE).min(WRITTEN);
            until(|| log.asked.load(Ordering::SeqCst) >= next);
            assert_eq!(log.asked.load(Ordering::SeqCst), next, "more than one piece in advance of block {first}");
        });
    }

    /// Where in the log a block is.
    fn in_log(&self, number: u64) -> u64 {
        (DATA..self.log.blocks()).find(|at| get(&*self.log.below, *at) == block(number)).unwrap()
    }

    fn main_has(&self, is_there: impl Fn(u64) -> bool) -> bool {
        (0..WRITTEN).all(|at| (get(&*self.main.below, at) == block(at + 1)) == is_there(at))
    }
}

fn few() -> Options {
    Options { memory_blocks: 0, ..options(Mode::Asynchronous) }
}

/// Ends the thread, also when a test fails.
struct Ended<'a>(&'a Flashlog);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_main();
    }
}

/// Runs something with a thread that reads. Whether that has ended well.
fn read<T>(device: &Flashlog, act: impl FnOnce() -> T) -> (T, bool) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| device.serve_reads());
        let done = {
            let _ended = Ended(device);
            until(|| device.fetching.is_served());
            act()
        };
        (done, thread.join().is_ok())
    })
}

#[test]
fn the_next_piece_is_read_while_main_is_written_and_no_other() {
    let rig = Rig::new(&few());
    rig.wait_for_reads();
    assert!(read(&rig.device, || rig.device.catch_up()).0.is_ok());
    // Each block once.
    assert_eq!((rig.log.asked.load(Ordering::SeqCst), rig.device.behind_blocks()), (WRITTEN, 0));
    assert!(rig.main_has(|_| true));
}

#[test]
fn a_block_that_cannot_be_read_is_lost_and_main_goes_on_without_it() {
    let rig = Rig::new(&few());
    let lost = 4 * PIECE + 5;
    rig.log.bad.store(rig.in_log(lost + 1), Ordering::Relaxed);
    let (done, has_ended_well) = read(&rig.device, || rig.device.catch_up());
    assert!(done.is_ok() && has_ended_well && rig.main_has(|at| at != lost), "{done:?}");
    assert!(is_damaged(&*rig.device, lost) && rig.device.status().damage.main == Bad { blocks: 1, first: lost });
    // It is not the log that has failed.
    put(&*rig.device, lost, lost + 1).unwrap();
    rig.device.settle().unwrap();
    assert!(rig.main_has(|_| true) && rig.device.status().damage == Damage::default());
}

#[test]
fn a_log_that_gives_nothing_any_more_has_failed() {
    let rig = Rig::new(&few());
    let log = rig.log.clone();
    rig.before(move |first| {
        if first == 3 * PIECE {
            log.is_dead.store(true, Ordering::Relaxed);
        }
    });
    let (done, has_ended_well) = read(&rig.device, || rig.device.catch_up());
    assert!(matches!(&done, Err(Error::Io { device, .. }) if &**device == "log"), "{done:?}");
    let has = |at: u64| get(&*rig.main.below, at) == block(at + 1);
    assert!(has_ended_well && (0..4 * PIECE).all(has) && !(5 * PIECE..WRITTEN).any(has));
    // For whoever comes then as well, also if it comes to itself.
    rig.log.is_dead.store(false, Ordering::Relaxed);
    assert!(rig.device.failed_role() == Role::Log && matches!(rig.device.catch_up(), Err(Error::Latched { .. })));
    assert_eq!(rig.device.status().damage, Damage::default());
}

#[test]
fn what_is_damaged_in_the_log_does_not_get_to_main_and_what_can_be_made_good_does() {
    let rig = Rig::new(&few());
    let (lost, flipped) = (5 * PIECE + 7, 6 * PIECE);
    spoil(&rig.log.below, rig.in_log(lost + 1));
    rig.log.below.alter(rig.in_log(flipped + 1), |bytes| bytes[9] ^= 1).unwrap();
    rig.wait_for_reads();
    assert!(read(&rig.device, || rig.device.catch_up()).0.is_ok());
    assert!(rig.main_has(|at| at != lost) && is_damaged(&*rig.device, lost));
    assert_eq!(rig.device.status().damage.main, Bad { blocks: 1, first: lost });
}

#[test]
fn nobody_waits_for_a_thread_that_has_panicked() {
    let rig = Rig::new(&few());
    rig.log.bug.store(rig.in_log(5 * PIECE + 1), Ordering::Relaxed);
    let log = rig.log.clone();
    // It is the thread that reads there.
    rig.before(move |first| until(|| first >= 5 * PIECE || log.asked.load(Ordering::SeqCst) >= first + 2 * PIECE));
    let (done, has_ended_well) = read(&rig.device, || rig.device.catch_up());
    assert!(done.is_ok() && !has_ended_well && rig.main_has(|_| true));
}

#[test]
fn a_thread_that_ends_leaves_the_rest_to_whoever_needs_it() {
    for at in 0..PIECES {
        let rig = Rig::new(&few());
        let device = Arc::downgrade(&rig.device);
        rig.before(move |first| {
            if first == at * PIECE {
                device.upgrade().unwrap().end_main();
            }
        });
        let (done, has_ended_well) = read(&rig.device, || rig.device.catch_up());
        assert!(done.is_ok() && has_ended_well && rig.main_has(|_| true), "ended at piece {at}");
    }
}

#[test]
fn what_is_written_again_while_it_is_read_is_newer() {
    let rig = Rig::new(&few());
    let (device, log) = (Arc::downgrade(&rig.device), rig.log.clone());
    let again = 4 * PIECE..5 * PIECE;
    let written = again.clone();
    rig.before(move |first| {
        if first == 3 * PIECE {
            // The older versions are being read, or have been.
            until(|| log.asked.load(Ordering::SeqCst) >= 5 * PIECE);
            let device = device.upgrade().unwrap();
            written.clone().for_each(|at| put(&*device, at, 9000 + at).unwrap());
            device.flush().unwrap();
        }
    });
    let device = &rig.device;
    let newest = |at: u64| if again.contains(&at) { 9000 + at } else { at + 1 };
    read(device, || {
        device.catch_up().unwrap();
        assert!((0..WRITTEN).all(|at| get(&**device, at) == block(newest(at))));
        assert_eq!(device.behind_blocks(), PIECE);
        device.catch_up().unwrap();
    });
    assert!((0..WRITTEN).all(|at| get(&*rig.main.below, at) == block(newest(at))));
}

#[test]
fn a_piece_that_is_given_up_while_it_is_read_is_not_taken_for_the_next_one() {
    let rig = Rig::new(&few());
    let (device, log) = (&rig.device, &rig.log);
    let [given_up, wanted] = [3, 7].map(|at| (at, rig.in_log(at + 1)));
    log.held.store(given_up.1, Ordering::SeqCst);
    let asked = || log.asked.load(Ordering::SeqCst);
    let (taken, has_ended_well) = read(device, || {
        let piece = device.ask(vec![given_up.1 - DATA]).unwrap();
        until(|| asked() == 1);
        drop(piece);
        assert!(device.fetching.is_idle());
        let piece = device.ask(vec![wanted.1 - DATA]).unwrap();
        log.held.store(u64::MAX, Ordering::SeqCst);
        until(|| asked() == 2);
        piece.take().map(Result::unwrap)
    });
    assert!(has_ended_well && taken.is_some_and(|bytes| bytes[..] == block(wanted.0 + 1)));
    // Nor is one that nobody has begun to read.
    drop(device.ask(vec![0]));
    assert!(device.fetching.is_idle() && device.catch_up().is_ok() && rig.main_has(|_| true));
}

#[test]
fn what_nobody_waits_for_is_read_and_written_in_turns() {
    let timer = Arc::new(Moved::default());
    let rig = Rig::new(&Options { timer: timer.clone(), ..few() });
    let device = Arc::downgrade(&rig.device);
    rig.before(move |first| {
        let (device, piece) = (device.upgrade().unwrap(), first / PIECE);
        // Behind the last one there is nothing.
        assert_eq!(device.fetching.is_idle(), piece <= 4 || piece == PIECES - 1, "piece {piece}");
        if piece == 4 {
            // Somebody comes.
            device.stages.lock().company.hurried += 1;
        }
    });
    let device = &rig.device;
    read(device, || {
        timer.pass(1);
        device.catch_up_with(&mut device.main_side.lock(), Pace::Patient).unwrap();
    });
    assert!(rig.main_has(|_| true));
}

#[test]
fn main_goes_on_alone_when_the_log_has_gone_and_the_thread_waits_for_another() {
    let (main, log) = set();
    let failing = Unplugged::after(&log, 1000);
    let (device, _) = Flashlog::open(main, failing.clone(), &few()).unwrap();
    let set = Lasting::of(device, alone());
    let is_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            set.serve_reads();
            assert!(is_ended.load(Ordering::SeqCst), "it does not wait");
        });
        let _ends = Ends(&set);
        until(|| set.set().is_some_and(|set| set.fetching.is_served()));
        (0..100).for_each(|at| put(&set, at, at).unwrap());
        set.settle().unwrap();
        failing.left.store(0, Ordering::Relaxed);
        (0..100).for_each(|at| put(&set, at, at + 1).unwrap());
        set.flush().unwrap();
        assert!(set.set().is_none());
        set.attach_new_log(Arc::new(MemoryDevice::new(256 * 12)), Uuid([9; 16])).unwrap();
        until(|| set.set().is_some_and(|set| set.fetching.is_served()));
        is_ended.store(true, Ordering::SeqCst);
    });
    assert!((0..100).all(|at| get(&set, at) == block(at + 1)));
}

#[test]
fn in_synchronous_mode_nothing_is_left_to_a_thread() {
    let (main, log) = set();
    let (device, _) = Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap();
    device.serve_reads();
    Lasting::of(device, alone()).serve_reads();
}
