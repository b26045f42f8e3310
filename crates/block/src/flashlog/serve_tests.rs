//! Threads that serve main and the log: order of the devices, bounds, failures, ends.
use super::tests::{Unplugged, block, get, names, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice, Operation};
use holdfast_integrity::crc64;
use parking_lot::{Condvar, Mutex};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Blocks of the set's device.
const BLOCKS: u64 = 1024;
const THREADS: u64 = 4;
/// For how long another thread is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

fn seed(test: &str) -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().expect("HOLDFAST_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    };
    println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-block {test} -- --nocapture");
    seed
}

pub(super) fn set() -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let main = Arc::new(MemoryDevice::new(BLOCKS + 256).named("main"));
    let log = Arc::new(MemoryDevice::new(256 * 12).named("log"));
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), BLOCKS);
    (main, log)
}

/// Small bounds, so that all of them are reached.
fn tight(mode: Mode) -> Options {
    Options { memory_blocks: 48, index_blocks: 100, ..options(mode) }
}

/// Waits for what another thread does; what it will never do is a failure, and no test that hangs.
pub(super) fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited for in vain");
        std::thread::yield_now();
    }
}

/// Writes two blocks: as many as are left to a thread that serves the log, as small as the sets of these tests are.
fn put_two(device: &Flashlog, first: u64, number: u64) -> Result<(), Error> {
    device.write(first, &[IoSlice::new(&block(number).repeat(2))])
}

/// Ends the threads that serve, also when a test fails: the scope of the two waits for both.
struct Ended<'a>(&'a Flashlog);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_main();
    }
}

/// Runs something while main is served.
pub(super) fn served<T>(device: &Flashlog, act: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| device.serve_main());
        let _ended = Ended(device);
        until(|| device.stages.lock().company.idle > 0);
        act()
    })
}

/// Runs something while main and the log are served.
fn both_served<T>(device: &Flashlog, act: impl FnOnce() -> T) -> T {
    served(device, || {
        std::thread::scope(|scope| {
            scope.spawn(|| device.serve_log());
            let _ended = Ended(device);
            until(|| device.stages.lock().company.loggers > 0);
            act()
        })
    })
}

/// Main and log that know which blocks the log has durably: what main gets must be among them.
#[derive(Default)]
struct Watched {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    /// Checksums of blocks that the log has, and of those that it has durably.
    in_log: Vec<u64>,
    durable: HashSet<u64>,
    /// Blocks that main got before.
    too_early: Vec<u64>,
    /// Main takes its time until this is false.
    is_held: bool,
    /// The log does, and it has begun to.
    is_log_held: bool,
    is_log_at_work: bool,
    /// Blocks that main was asked to write.
    asked: usize,
}

impl Watched {
    fn open(order: Order, options: &Options) -> (Arc<Watched>, Flashlog) {
        let (main, log) = set();
        let watched = Arc::new(Watched::default());
        let half = |device, is_log| Arc::new(Half { watched: Arc::clone(&watched), device, is_log });
        let (device, _) =
            Flashlog::open(half(main, false), half(log, true), &Options { order, ..options.clone() }).unwrap();
        (watched, device)
    }

    fn until(&self, is_so: impl Fn(&Seen) -> bool) {
        let mut seen = self.seen.lock();
        self.changed.wait_while(&mut seen, |seen| !is_so(seen));
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock());
        self.changed.notify_all();
    }
}

struct Half {
    watched: Arc<Watched>,
    device: Arc<MemoryDevice>,
    is_log: bool,
}

impl Filter for Half {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let sums = bytes.chunks(BLOCK_SIZE).map(crc64);
        if self.is_log {
            self.watched.change(|seen| seen.is_log_at_work = true);
            self.watched.until(|seen| !seen.is_log_held);
            self.device.write(first, bufs)?;
            self.watched.change(|seen| seen.in_log.extend(sums));
            return Ok(());
        }
        self.watched.change(|seen| {
            let early = (first..).zip(sums).filter(|(at, sum)| *at < BLOCKS && !seen.durable.contains(sum));
            seen.too_early.extend(early.map(|(at, _)| at));
            seen.asked += bytes.len() / BLOCK_SIZE;
        });
        self.watched.until(|seen| !seen.is_held);
        self.device.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), Error> {
        let covered = self.watched.seen.lock().in_log.len();
        self.device.flush()?;
        if self.is_log {
            let Seen { in_log, durable, .. } = &mut *self.watched.seen.lock();
            durable.extend(in_log.drain(..covered));
        }
        Ok(())
    }
}

#[test]
fn main_gets_nothing_before_the_log_has_it_durably() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for served_by in 0..3 {
            let (watched, device) = Watched::open(Order::Correct, &tight(mode));
            let write = || {
                for number in 1..3000 {
                    put_two(&device, number * 11 % (BLOCKS - 1), number).unwrap();
                    if number % 90 == 0 {
                        device.flush().unwrap();
                    }
                }
                device.flush().unwrap();
            };
            match served_by {
                0 => write(),
                1 => served(&device, write),
                _ => both_served(&device, write),
            }
            assert_eq!(watched.seen.lock().too_early, [0; 0], "{mode:?}, served by {served_by}");
        }
    }
}

/// Log and main are at work at once here: while main gets one piece, the log gets two, of which one is not durable yet.
#[test]
fn a_piece_that_the_log_has_not_durably_waits_while_main_is_at_work() {
    for (order, expected) in [(Order::Correct, vec![]), (Order::MainBeforeLog, (125..133).collect())] {
        let options = Options { memory_blocks: 160, ..options(Mode::Synchronous) };
        let (watched, device) = Watched::open(order, &options);
        served(&device, || {
            watched.change(|seen| (seen.is_held, seen.asked) = (true, 0));
            // Ten blocks are a piece if main has nothing to do, twenty if it has.
            (1..=16).for_each(|at| put(&device, at, at).unwrap());
            watched.until(|seen| seen.asked >= 16);
            (101..133).for_each(|at| put(&device, at, at).unwrap());
            watched.change(|seen| seen.is_held = false);
            watched.until(|seen| seen.asked >= 40);
            device.flush().unwrap();
        });
        assert_eq!(watched.seen.lock().too_early, expected, "{order:?}");
    }
}

#[test]
fn writers_go_on_while_the_log_is_at_work_if_it_is_served() {
    let options = options(Mode::Asynchronous);
    let (watched, device) = Watched::open(Order::Correct, &options);
    both_served(&device, || {
        watched.change(|seen| (seen.is_log_held, seen.is_log_at_work) = (true, false));
        let gather = options.gather_blocks;
        let write = |from: u64, count: u64| {
            (from..from + count).step_by(2).for_each(|at| put_two(&device, at, at + 1).unwrap());
        };
        std::thread::scope(|scope| {
            // Whoever brought it to the log itself would wait there.
            let writer = scope.spawn(|| {
                write(0, gather);
                watched.until(|seen| seen.is_log_at_work);
                write(gather, 2 * gather);
            });
            let begun = Instant::now();
            while !writer.is_finished() && begun.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            let has_gone_on = writer.is_finished();
            watched.change(|seen| seen.is_log_held = false);
            assert!(has_gone_on, "the writer waits for the log");
        });
        device.flush().unwrap();
        (0..3 * gather).for_each(|at| assert_eq!(get(&device, at), block(at / 2 * 2 + 1)));
    });
}

/// What is in memory beside what is bounded: each who writes to the log, a writer or the thread for it, may have as much under way as is
/// written there at once; an eighth may be in the log and not durable there yet; and each writer looks before it brings its two blocks.
#[test]
fn memory_has_its_bound_while_both_are_served() {
    let options = tight(Mode::Synchronous);
    let (watched, device) = Watched::open(Order::Correct, &options);
    let most = AtomicU64::new(0);
    both_served(&device, || {
        watched.change(|seen| seen.is_held = true);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (device, most) = (&device, &most);
                    scope.spawn(move || {
                        for number in 0..200 {
                            put_two(device, thread * (BLOCKS / THREADS) + number, number).unwrap();
                            most.fetch_max(device.stages.lock().memory_blocks(), Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            // All wait for main by now, or would never do so.
            let begun = Instant::now();
            while writers.iter().any(|writer| !writer.is_finished()) && begun.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
            watched.change(|seen| seen.is_held = false);
        });
    });
    let under_way = (THREADS + 1) * 2 * options.gather_blocks + THREADS * 2;
    let (most, bound) = (most.into_inner(), options.memory_blocks + options.memory_blocks / 8 + under_way);
    assert!(most <= bound, "{most} blocks in memory, bound {bound}");
}

/// What one of several writers knows. Each has blocks of its own.
struct Writer {
    thread: u64,
    /// What each of its blocks has.
    now: Vec<u64>,
    /// What a flush has answered.
    flushed: Vec<u64>,
    /// A write that failed.
    failed: Option<(u64, u64)>,
}

impl Writer {
    const BLOCKS: u64 = BLOCKS / THREADS;

    /// Random requests; ends at the first failure.
    fn work(device: &Flashlog, thread: u64, seed: u64) -> Writer {
        let mut rng = Pcg64Mcg::seed_from_u64(seed * THREADS + thread);
        let none = vec![0; Self::BLOCKS as usize];
        let mut writer = Writer { thread, now: none.clone(), flushed: none, failed: None };
        for number in 1..400 {
            let number = thread * 10_000 + number;
            match rng.random_range(0..100) {
                0..70 => {
                    let count = if rng.random_bool(0.1) { 40 } else { rng.random_range(1..6) };
                    let at = rng.random_range(0..Self::BLOCKS - count);
                    let bytes = block(number).repeat(count as usize);
                    if device.write(writer.first() + at, &[IoSlice::new(&bytes)]).is_err() {
                        writer.failed = Some((at, number));
                        return writer;
                    }
                    writer.now[at as usize..(at + count) as usize].fill(number);
                }
                70..80 => {
                    if device.flush().is_err() {
                        return writer;
                    }
                    writer.flushed.clone_from(&writer.now);
                }
                80..82 if device.catch_up().is_err() => return writer,
                82..83 => {
                    if device.settle().is_err() {
                        return writer;
                    }
                    writer.flushed.clone_from(&writer.now);
                }
                _ => {
                    let at = rng.random_range(0..Self::BLOCKS);
                    let mut bytes = vec![0; BLOCK_SIZE];
                    if device.read(writer.first() + at, &mut [std::io::IoSliceMut::new(&mut bytes)]).is_err() {
                        return writer;
                    }
                    assert!(bytes == content(writer.now[at as usize]), "seed {seed}: thread {thread}, block {at}");
                }
            }
        }
        writer
    }

    fn first(&self) -> u64 {
        self.thread * Self::BLOCKS
    }

    /// Its blocks that have something else than what was answered (or written when it failed).
    fn missing(&self, device: &dyn Device, expected: &[u64]) -> Vec<u64> {
        let is_right = |at: u64, number: u64| {
            let found = get(device, self.first() + at);
            // A write that failed is there in part, perhaps.
            let of_failed = self.failed.is_some_and(|(from, failed)| at >= from && found == block(failed));
            found == content(number) || of_failed
        };
        (0..).zip(expected).filter(|(at, number)| !is_right(*at, **number)).map(|(at, _)| at).collect()
    }
}

fn content(number: u64) -> Vec<u8> {
    if number == 0 { vec![0; BLOCK_SIZE] } else { block(number) }
}

/// Of every other seed the log is served as well, and read from while main is written.
fn work(device: &Flashlog, seed: u64) -> Vec<Writer> {
    let write = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || Writer::work(device, at, seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    if seed.is_multiple_of(2) {
        return served(device, write);
    }
    both_served(device, || {
        std::thread::scope(|scope| {
            scope.spawn(|| device.serve_reads());
            let _ended = Ended(device);
            write()
        })
    })
}

#[test]
fn threads_write_read_and_flush_while_main_is_served() {
    let seed = seed("threads_write_read_and_flush_while_main_is_served");
    // Each mode with its log served and without.
    let modes = [Mode::Synchronous, Mode::Synchronous, Mode::Asynchronous, Mode::Asynchronous];
    for (round, mode) in (0..12).zip(modes.into_iter().cycle()) {
        let (main, log) = set();
        let (device, _) = Flashlog::open(main.clone(), log.clone(), &tight(mode)).unwrap();
        let writers = work(&device, seed + round);
        for writer in &writers {
            assert_eq!(
                writer.missing(&device, &writer.now),
                [0; 0],
                "seed {seed}, round {round}: thread {}",
                writer.thread
            );
        }
        device.settle().unwrap();
        drop(device);
        let (device, opened) = open(&main, &log, mode).unwrap();
        assert_eq!(opened.blocks, 0);
        for writer in &writers {
            assert_eq!(
                writer.missing(&*main, &writer.now),
                [0; 0],
                "seed {seed}, round {round}: thread {}",
                writer.thread
            );
            assert_eq!(writer.missing(&device, &writer.now), [0; 0]);
        }
    }
}

#[test]
fn a_device_that_fails_while_main_is_served_takes_nothing_with_it() {
    let seed = seed("a_device_that_fails_while_main_is_served_takes_nothing_with_it");
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for round in 0..60 {
        let mode = if rng.random_bool(0.5) { Mode::Synchronous } else { Mode::Asynchronous };
        let (is_main, requests) = (rng.random_bool(0.5), rng.random_range(0..400));
        let what = format!("seed {seed}, round {round}: {mode:?}, main {is_main}, after {requests} requests");
        let (main, log) = set();
        let (of_main, of_log) = (Unplugged::after(&main, 10_000), Unplugged::after(&log, 10_000));
        let (device, _) = Flashlog::open(of_main.clone(), of_log.clone(), &tight(mode)).unwrap();
        (if is_main { &of_main } else { &of_log }).left.store(requests, Ordering::Relaxed);
        let writers = work(&device, seed + round);
        let has_failed = matches!(device.flush(), Err(Error::Latched { .. }));
        drop(device);
        let judge = |device: &dyn Device, is_all: bool| {
            for writer in &writers {
                let expected = if is_all { &writer.now } else { &writer.flushed };
                let missing = writer.missing(device, expected);
                // What came after a flush may be there or not.
                let is_lost = |at: &u64| is_all || writer.flushed[*at as usize] == writer.now[*at as usize];
                let lost: Vec<u64> = missing.into_iter().filter(is_lost).collect();
                assert_eq!(lost, [0; 0], "{what}: thread {}", writer.thread);
            }
        };
        match open(&main, &log, mode) {
            Err(super::Error::Alone { .. }) => {
                assert!(has_failed && !is_main, "{what}");
                judge(&*main, true);
            }
            Err(error) => panic!("{what}: {error}"),
            // What was answered by the log alone, and not flushed, is in a log that failed, or not.
            Ok((device, _)) => {
                assert!(is_main || mode == Mode::Asynchronous || !has_failed, "{what}");
                judge(&device, is_main || !has_failed);
            }
        }
    }
}

#[test]
fn main_fails_where_room_is_made_for_a_write() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = set();
        let failing = Unplugged::after(&main, 10_000);
        let (device, _) = Flashlog::open(failing.clone(), log.clone(), &options(mode)).unwrap();
        failing.left.store(0, Ordering::Relaxed);
        // No flush: it is the write that finds out. The first block is not written again, so that main must have it.
        let others = BLOCKS - 1;
        let address = |number: u64| if number == 1 { 0 } else { 1 + number % others };
        let answered = (1..).take_while(|number| put(&device, address(*number), *number).is_ok()).count() as u64;
        drop(device);
        let (device, _) = open(&main, &log, mode).unwrap();
        assert!(get(&device, 0) == block(1), "{mode:?}");
        for number in answered.saturating_sub(others - 1).max(2)..=answered {
            let found = get(&device, address(number));
            assert!(found == block(number) || found == block(number + others), "{mode:?}: {number} of {answered}");
        }
    }
}

/// Time that a test moves.
#[derive(Default)]
pub(super) struct Moved {
    /// Now, wakes, and waits that have begun after the last wake and were not over at once: who waits so has seen all that was before.
    state: Mutex<(Duration, u64, u64)>,
    changed: Condvar,
}

impl Moved {
    fn change(&self, change: impl FnOnce(&mut (Duration, u64, u64))) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Lets time pass, and the other thread come to rest.
    pub(super) fn pass(&self, seconds: u64) {
        self.pass_for(Duration::from_secs(seconds));
    }

    fn pass_for(&self, time: Duration) {
        let waits = self.state.lock().2;
        self.change(|state| {
            state.0 += time;
            state.1 += 1;
        });
        let waited = self.changed.wait_while_for(&mut self.state.lock(), |state| state.2 == waits, PATIENCE);
        assert!(!waited.timed_out(), "waited for in vain");
    }
}

impl Timer for Moved {
    fn now(&self) -> Duration {
        self.state.lock().0
    }

    fn ticket(&self) -> u64 {
        self.state.lock().1
    }

    fn wait(&self, ticket: u64, until: Option<Duration>) {
        let goes_on = |state: &(Duration, u64, u64)| state.1 == ticket && until.is_none_or(|until| state.0 < until);
        self.change(|state| state.2 += u64::from(goes_on(state)));
        self.changed.wait_while(&mut self.state.lock(), |state| goes_on(state));
    }

    fn wake(&self) {
        self.change(|state| state.1 += 1);
    }
}

/// Blocks that main lacks after each of some writes, which come every four seconds, and after each of three pauses of four.
fn behind(catch_up: CatchUp) -> (Vec<u64>, Vec<u64>) {
    let (main, log) = set();
    let timer = Arc::new(Moved::default());
    let options = Options { catch_up, timer: timer.clone(), ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, log, &options).unwrap();
    served(&device, || {
        let after = |number| {
            if let Some(number) = number {
                put(&device, number, number).unwrap();
            }
            timer.pass(4);
            device.behind_blocks()
        };
        ((1..=6).map(|number| after(Some(number))).collect(), (0..3).map(|_| after(None)).collect())
    })
}

#[test]
fn main_catches_up_when_nothing_is_written_or_what_it_lacks_is_old() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let never = CatchUp::default();
    assert_eq!(behind(never), (vec![1, 2, 3, 4, 5, 6], vec![6, 6, 6]));
    assert_eq!(behind(CatchUp { idle_after: seconds(8), ..never }), (vec![1, 2, 3, 4, 5, 6], vec![0, 0, 0]));
    assert_eq!(behind(CatchUp { age_most: seconds(12), ..never }), (vec![1, 2, 0, 1, 2, 0], vec![0, 0, 0]));
    let both = CatchUp { idle_after: seconds(4), age_most: seconds(12) };
    assert_eq!(behind(both), (vec![0; 6], vec![0; 3]));
}

#[test]
fn who_writes_all_the_time_does_not_put_off_what_is_old() {
    let (main, log) = set();
    let timer = Arc::new(Moved::default());
    let catch_up = CatchUp { age_most: Some(Duration::from_secs(1)), ..CatchUp::default() };
    let options = Options { catch_up, memory_blocks: 0, timer: timer.clone(), ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main.clone(), log, &options).unwrap();
    let write = |first: u64, count: u64| (first..first + count).for_each(|at| put(&device, at, at).unwrap());
    served(&device, || {
        // Three quarters of the log: main begins, and waits until nobody writes to it.
        let data_blocks = device.rings.areas.data_blocks;
        let half = data_blocks / 8 * 3;
        (0..2).for_each(|_| write(0, half));
        until(|| device.stages.lock().company.patient > 0);
        // Always less than a pause that would do.
        for number in 0..25 {
            write(half, options.gather_blocks);
            assert!(number >= 20 || get(&*main, 0) == vec![0; BLOCK_SIZE], "round {number}");
            timer.pass_for(Duration::from_millis(50));
        }
        assert_eq!(device.stages.lock().company.patient, 0, "it waits on");
        assert!(device.stages.lock().logged.data < data_blocks / 8 * 7, "a full log ends the wait as well");
        until(|| device.stages.lock().company.idle > 0);
        (0..half).for_each(|at| assert!(get(&*main, at) == block(at), "block {at} of main"));
    });
}

#[test]
fn main_catches_up_before_writers_must_wait() {
    let (main, log) = set();
    let options = Options { index_blocks: 400, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, log, &options).unwrap();
    served(&device, || {
        let gathered = options.gather_blocks;
        (0..299).for_each(|at| put(&device, at, at).unwrap());
        assert_eq!(device.behind_blocks(), 299);
        // Over the bound, to where what was gathered goes to the log, which is when the thread is told. It may have come by before, for
        // the first that were gathered: then it has left the last ones.
        (299..300u64.next_multiple_of(gathered)).for_each(|at| put(&device, at, at).unwrap());
        until(|| device.behind_blocks() < gathered);
    });
}

/// A log that can be trimmed, or fails to be.
struct Trimmed {
    device: Arc<MemoryDevice>,
    is_able: bool,
    blocks: AtomicU64,
}

impl Filter for Trimmed {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        assert!(first.is_multiple_of(AREA_UNIT_BLOCKS) && count.is_multiple_of(AREA_UNIT_BLOCKS));
        self.blocks.fetch_add(count, Ordering::Relaxed);
        if self.is_able {
            return self.device.discard(first, count);
        }
        let (device, operation, source) = ("log".into(), Operation::Discard, Arc::new(std::io::Error::other("no")));
        Err(Error::Io { device, operation, first: Some(first), length_bytes: 0, source })
    }
}

#[test]
fn a_log_is_trimmed_behind_its_tail_and_one_that_cannot_be_does_as_well() {
    for (mode, is_able) in [(Mode::Synchronous, true), (Mode::Asynchronous, true), (Mode::Asynchronous, false)] {
        let (main, log) = set();
        let trimmed = Arc::new(Trimmed { device: log.clone(), is_able, blocks: AtomicU64::new(0) });
        let (device, _) = Flashlog::open(main.clone(), trimmed.clone(), &options(mode)).unwrap();
        for number in 0..20_000 {
            put(&device, number * 7 % BLOCKS, number).unwrap();
        }
        device.flush().unwrap();
        drop(device);
        let blocks = trimmed.blocks.load(Ordering::Relaxed);
        // A full log of 9 MiB lets go of little more than one each time, and the first may have been reached again.
        assert!((7_000..21_000).contains(&blocks) || !is_able, "{mode:?}: {blocks} blocks were discarded");
        let (device, _) = open(&main, &log, mode).unwrap();
        for number in 20_000 - BLOCKS..20_000 {
            assert_eq!(get(&device, number * 7 % BLOCKS), block(number), "{mode:?} {number}");
        }
    }
}

#[test]
fn threads_that_are_told_to_end_before_they_begin_end_and_writers_go_on_without() {
    let (main, log) = set();
    let (device, _) = Flashlog::open(main, log, &tight(Mode::Synchronous)).unwrap();
    device.end_main();
    device.serve_main();
    device.serve_log();
    device.serve_reads();
    for number in 0..500 {
        put_two(&device, number, number).unwrap();
    }
    device.flush().unwrap();
    assert_eq!((get(&device, 499), device.behind_blocks()), (block(499), 0));
}

/// A working set that is smaller than the log, written again and again: of what comes first in the log nothing is needed when room must be made.
#[test]
fn what_is_written_again_before_the_log_is_full_never_gets_to_main() {
    for reaches in [false, true] {
        let (main, log) = set();
        let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
        // One block of the first round is not written again: it must be on main before the log lets go of it.
        let from = u64::from(reaches);
        (0..BLOCKS).for_each(|at| put(&device, at, at + 1).unwrap());
        for round in 1..8 {
            (from..BLOCKS).for_each(|at| put(&device, at, round * BLOCKS + at + 1).unwrap());
        }
        device.flush().unwrap();
        let tail = device.head.lock().labels.label.tail;
        assert!(tail.data > 4 * BLOCKS, "the log has gone around: {}", tail.data);
        let on_main = main.snapshot()[..BLOCKS as usize * BLOCK_SIZE].iter().any(|byte| *byte != 0);
        assert_eq!(on_main, reaches);
        let expected = |at| block(if at < from { at + 1 } else { 7 * BLOCKS + at + 1 });
        drop(device);
        let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
        (0..BLOCKS).for_each(|at| assert!(get(&device, at) == expected(at), "block {at}"));
        device.settle().unwrap();
        (0..BLOCKS).for_each(|at| assert!(get(&*main, at) == expected(at), "block {at} of main"));
    }
}

/// The same while main is served: the thread lets go of it before the log is full, but not of the few that are not written again.
#[test]
fn a_thread_lets_go_of_what_was_written_again_and_of_nothing_else() {
    let (main, log) = set();
    let options = Options { memory_blocks: 200, ..options(Mode::Asynchronous) };
    let open = || Flashlog::open(main.clone(), log.clone(), &options).unwrap().0;
    let device = open();
    let is_once = |at: u64| at % 300 == 299;
    served(&device, || {
        for round in 0..8 {
            let written = (0..BLOCKS).filter(|at| round == 0 || !is_once(*at));
            written.for_each(|at| put(&device, at, round * BLOCKS + at + 1).unwrap());
        }
        device.flush().unwrap();
    });
    let expected = |at| block(if is_once(at) { at + 1 } else { 7 * BLOCKS + at + 1 });
    drop(device);
    let device = open();
    (0..BLOCKS).for_each(|at| assert!(get(&device, at) == expected(at), "block {at}"));
    device.settle().unwrap();
    (0..BLOCKS).for_each(|at| assert!(get(&*main, at) == expected(at), "block {at} of main"));
}
