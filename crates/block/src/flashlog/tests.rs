//! Sets over memory devices: modes, loss of a device, damage, foreign devices.
use super::format::{Areas, LABEL_AREA_BLOCKS};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Operation, Read};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

pub(super) fn block(number: u64) -> Vec<u8> {
    (0..BLOCK_SIZE / 8).flat_map(|word| (number * 1000 + word as u64).to_le_bytes()).collect()
}

pub(super) fn put(device: &dyn Device, at: u64, number: u64) -> Result<(), crate::Error> {
    device.write(at, &[IoSlice::new(&block(number))])
}

/// Flips three bits, which nobody can flip back.
pub(super) fn spoil(device: &MemoryDevice, block: u64) {
    device.alter(block, |bytes| [100, 2000, 3000].into_iter().for_each(|at| bytes[at] ^= 4)).unwrap();
}

pub(super) fn get(device: &dyn Device, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    device.read(at, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

pub(super) fn names(seed: u8) -> Create {
    Create { set: Uuid([seed; 16]), main: Uuid([seed + 1; 16]), log: Uuid([seed + 2; 16]) }
}

pub(super) fn options(mode: Mode) -> Options {
    Options { mode, gather_blocks: 8, now: Arc::new(|| SystemTime::UNIX_EPOCH), ..Options::default() }
}

fn set() -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let main = Arc::new(MemoryDevice::new(512).named("main"));
    let log = Arc::new(MemoryDevice::new(1024).named("log"));
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), 256);
    (main, log)
}

pub(super) fn open(main: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>, mode: Mode) -> Result<(Flashlog, Opened), Error> {
    Flashlog::open(main.clone(), log.clone(), &options(mode))
}

#[test]
fn in_synchronous_mode_a_flush_is_on_main_and_what_was_written_before_it_in_memory() {
    let (main, log) = set();
    let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
    put(&device, 3, 1).unwrap();
    assert_eq!((get(&device, 3), get(&*main, 3)), (block(1), vec![0; BLOCK_SIZE]));
    device.flush().unwrap();
    assert_eq!((get(&device, 3), get(&*main, 3), device.behind_blocks()), (block(1), block(1), 0));
}

#[test]
fn main_keeps_what_it_had() {
    let main = Arc::new(MemoryDevice::new(600));
    for at in 0..256 {
        put(&*main, at, at + 1).unwrap();
    }
    let log = Arc::new(MemoryDevice::new(1024));
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), 256);
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (device, _) = open(&main, &log, mode).unwrap();
        assert!((0..256).all(|at| get(&device, at) == block(at + 1) && get(&*main, at) == block(at + 1)));
    }
}

#[test]
fn in_asynchronous_mode_main_sleeps_until_it_catches_up() {
    let (main, log) = set();
    let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
    let before = main.snapshot();
    for number in 0..100 {
        put(&device, number % 60, number).unwrap();
    }
    device.flush().unwrap();
    assert_eq!((main.snapshot() == before, device.behind_blocks()), (true, 60));
    for at in 0..60 {
        assert_eq!(get(&device, at), block(if at < 40 { at + 60 } else { at }));
    }
    // Some of it on main, some not.
    let mut bytes = vec![0; 62 * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    assert_eq!((&bytes[..BLOCK_SIZE], &bytes[61 * BLOCK_SIZE..]), (&block(60)[..], &[0; BLOCK_SIZE][..]));
    device.catch_up().unwrap();
    assert_eq!((device.behind_blocks(), get(&*main, 39), get(&*main, 40)), (0, block(99), block(40)));
}

#[test]
fn the_log_goes_around_many_times_and_is_found_again() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = set();
        let (device, _) = open(&main, &log, mode).unwrap();
        for number in 0..3000 {
            put(&device, number * 7 % 256, number).unwrap();
            if number % 50 == 0 {
                device.flush().unwrap();
            }
        }
        device.flush().unwrap();
        drop(device);
        let (device, opened) = open(&main, &log, mode).unwrap();
        assert_eq!((opened.generation, opened.cut_pages), (3, 0));
        for number in 3000 - 256..3000 {
            assert_eq!(get(&device, number * 7 % 256), block(number), "{mode:?} {number}");
        }
        device.settle().unwrap();
        drop(device);
        assert_eq!(open(&main, &log, mode).unwrap().1.pages, 0);
    }
}

/// Stands before a log, and lets each area be written only where the write before it has ended, and blocks as a whole.
struct InARow {
    below: Arc<MemoryDevice>,
    areas: Areas,
    /// Of pages and of data.
    next: Mutex<[Option<u64>; 2]>,
    writes: AtomicI64,
}

impl Filter for InARow {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        let Areas { meta_start, meta_blocks, data_start, data_blocks } = self.areas;
        if first >= meta_start {
            let is_data = first >= data_start;
            let (start, blocks) = if is_data { (data_start, data_blocks) } else { (meta_start, meta_blocks) };
            let (at, length) = (first - start, bufs.iter().map(|buf| buf.len()).sum::<usize>());
            assert_eq!(length % BLOCK_SIZE, 0);
            let next = &mut self.next.lock()[usize::from(is_data)];
            assert_eq!(at, next.unwrap_or(at) % blocks, "data: {is_data}");
            *next = Some(at + (length / BLOCK_SIZE) as u64);
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.below.write(first, bufs)
    }
}

/// What flash likes, and the layout is for.
#[test]
fn the_log_is_written_in_a_row_in_whole_pages_and_small_writes_are_gathered() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, below) = set();
        let areas = Areas::between(LABEL_AREA_BLOCKS, below.blocks());
        let log = Arc::new(InARow { below, areas, next: Mutex::default(), writes: AtomicI64::new(0) });
        for round in 0..4 {
            let (device, _) = Flashlog::open(main.clone(), log.clone(), &options(mode)).unwrap();
            for number in 0..1000 {
                put(&device, number * 97 % 256, number).unwrap();
                if number % 250 == 0 {
                    device.flush().unwrap();
                    device.zero(number % 200, 20, false).unwrap();
                }
            }
            device.write(round, &[IoSlice::new(&vec![5; 100 * BLOCK_SIZE])]).unwrap();
            device.flush().unwrap();
        }
        let writes = log.writes.load(Ordering::Relaxed);
        // A block and its entry each would be two.
        assert!(writes < 4000 / 2, "{mode:?}: {writes} writes of 4000 blocks");
    }
}

#[test]
fn a_bound_of_the_index_makes_main_catch_up() {
    let (main, log) = set();
    let options = Options { index_blocks: 20, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, log, &options).unwrap();
    for number in 0..200 {
        put(&device, number, number).unwrap();
        assert!(device.behind_blocks() <= 20 + 16);
    }
    assert_eq!(get(&device, 5), block(5));
}

#[test]
fn large_and_odd_writes_arrive_whole() {
    let (main, log) = set();
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (device, _) = open(&main, &log, mode).unwrap();
        let data: Vec<u8> = (0..100).flat_map(block).collect();
        let (a, b) = data.split_at(12_345);
        device.write(50, &[IoSlice::new(a), IoSlice::new(b)]).unwrap();
        let mut back = vec![0; data.len()];
        let (c, d) = back.split_at_mut(77);
        device.read(50, &mut [IoSliceMut::new(c), IoSliceMut::new(d)]).unwrap();
        assert!(back == data);
        assert!(device.write(200, &[IoSlice::new(&data)]).is_err());
        assert!(device.write(0, &[IoSlice::new(&data[..100])]).is_err());
        assert!(device.read(256, &mut [IoSliceMut::new(&mut back[..BLOCK_SIZE])]).is_err());
        device.discard(0, 256).unwrap();
        assert!(device.discard(0, 257).is_err());
        device.settle().unwrap();
    }
}

/// Counts what is read.
struct Counted {
    below: Arc<MemoryDevice>,
    reads: AtomicI64,
}

impl Filter for Counted {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.below.read(first, bufs)
    }
}

#[test]
fn neighbours_are_read_from_the_log_at_once() {
    let (main, log) = set();
    let counted = Arc::new(Counted { below: log, reads: AtomicI64::new(0) });
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main, counted.clone(), &options).unwrap();
    let mut expected: Vec<u8> = (0..64).flat_map(block).collect();
    device.write(10, &[IoSlice::new(&expected)]).unwrap();
    // Elsewhere in the log, and so the rest is in two parts.
    put(&device, 10 + 30, 99).unwrap();
    expected[30 * BLOCK_SIZE..31 * BLOCK_SIZE].copy_from_slice(&block(99));
    device.flush().unwrap();
    counted.reads.store(0, Ordering::Relaxed);
    let mut bytes = vec![0; 66 * BLOCK_SIZE];
    device.read(9, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    assert!(bytes[BLOCK_SIZE..65 * BLOCK_SIZE] == expected && counted.reads.load(Ordering::Relaxed) == 3);
}

#[test]
fn a_bit_in_the_log_is_flipped_back_and_more_is_told() {
    let (main, log) = set();
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(main.clone(), log.clone(), &options).unwrap();
    put(&device, 9, 1).unwrap();
    put(&device, 10, 2).unwrap();
    device.flush().unwrap();
    // The areas of this log: labels, pages from 256, data from 512.
    log.alter(512, |block| block[100] ^= 4).unwrap();
    assert_eq!(get(&device, 9), block(1));
    log.alter(513, |block| block[100] ^= 7).unwrap();
    let mut bytes = vec![0; BLOCK_SIZE];
    let error = device.read(10, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err();
    assert!(matches!(error, crate::Error::Damaged { first: 513, .. }), "{error}");
    let before = get(&*main, 10);
    device.catch_up().unwrap();
    assert_eq!((get(&*main, 9), get(&*main, 10)), (block(1), before));
    assert!(device.read(10, &mut [IoSliceMut::new(&mut bytes)]).is_err(), "main goes on without it");
    assert_eq!(device.status().damage.main, Bad { blocks: 1, first: 10 });
    // Main has the same: good enough.
    put(&*main, 10, 2).unwrap();
    drop(device);
    let (device, opened) = open(&main, &log, Mode::Synchronous).unwrap();
    assert_eq!((opened.blocks, get(&device, 9), get(&device, 10)), (2, block(1), block(2)));
    assert_eq!((get(&*log, 512), get(&*log, 513)), (block(1), block(2)));
}

#[test]
fn damage_in_what_was_flushed_is_no_end_of_the_log() {
    // In an entry, and in the checksum.
    for (flips, at) in [(1u8, 300), (7, 300), (1, 4090), (7, 4090)] {
        let (main, log) = set();
        let (device, _) = open(&main, &log, Mode::Asynchronous).unwrap();
        for number in 0..3 {
            put(&device, number, number).unwrap();
            device.flush().unwrap();
        }
        drop(device);
        log.alter(257, |page| page[at] ^= flips).unwrap();
        match open(&main, &log, Mode::Asynchronous) {
            Ok((device, _)) => assert_eq!((flips, get(&device, 2)), (1, block(2))),
            Err(error) => assert!(flips == 7 && matches!(error, Error::Damaged { block: 257, .. }), "{error}"),
        }
    }
}

#[test]
fn damage_in_memory_goes_nowhere() {
    let (main, log) = set();
    let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
    put(&device, 4, 1).unwrap();
    device.stages.lock().damage_gathered();
    let (main_before, log_before) = (main.snapshot(), log.snapshot());
    let error = device.flush().unwrap_err();
    assert!(matches!(error, crate::Error::Damaged { first: 4, .. }), "{error}");
    assert!(main.snapshot() == main_before && log.snapshot() == log_before);
    assert!(matches!(put(&device, 5, 1), Err(crate::Error::Latched { .. })));
    assert!(matches!(device.flush(), Err(crate::Error::Latched { .. })));
}

#[test]
fn foreign_older_and_swapped_devices_are_refused() {
    let (main, log) = set();
    let sync = Mode::Synchronous;
    assert!(matches!(open(&log, &main, sync), Err(Error::OtherRole { .. })));
    assert!(matches!(open(&Arc::new(MemoryDevice::new(512)), &log, sync), Err(Error::NoLabel { .. })));
    let (other_main, other_log) = set();
    create(other_main.clone(), other_log.clone(), &names(9)).unwrap();
    assert!(matches!(open(&main, &other_log, sync), Err(Error::OtherSet { .. })));
    // Another log of the same set, and another main.
    let another = Create { log: Uuid([77; 16]), ..names(1) };
    create(other_main.clone(), other_log.clone(), &another).unwrap();
    assert!(matches!(open(&main, &other_log, sync), Err(Error::Replaced { role: Role::Log, .. })));
    let another = Create { main: Uuid([77; 16]), ..names(1) };
    create(other_main.clone(), other_log.clone(), &another).unwrap();
    assert!(matches!(open(&main, &other_log, sync), Err(Error::Replaced { role: Role::Main, .. })));
    // Copies from before an opening.
    let (old_main, old_log) = (Arc::new((*main).clone()), Arc::new((*log).clone()));
    drop(open(&main, &log, sync).unwrap());
    assert!(matches!(open(&old_main, &log, sync), Err(Error::Older { expected: 2, got: 1, .. })));
    assert!(matches!(open(&main, &old_log, sync), Err(Error::Older { expected: 2, got: 1, .. })));
    drop(open(&main, &log, sync).unwrap());
    assert!(matches!(open(&old_main, &log, sync), Err(Error::Older { expected: 3, got: 1, .. })));
    // Both of them are the set as it was.
    assert_eq!(open(&old_main, &old_log, sync).unwrap().1.generation, 2);
    let small = Arc::new(MemoryDevice::new(log_blocks_least() - 1));
    assert!(matches!(create(main.clone(), small.clone(), &names(1)), Err(Error::TooSmall { .. })));
    assert!(matches!(create(small, log, &names(1)), Ok(512)));
}

/// A device that is unplugged after so many writes and flushes.
pub(super) struct Unplugged {
    device: Arc<MemoryDevice>,
    pub(super) left: AtomicI64,
}

impl Unplugged {
    pub(super) fn after(device: &Arc<MemoryDevice>, requests: i64) -> Arc<Unplugged> {
        Arc::new(Unplugged { device: device.clone(), left: AtomicI64::new(requests) })
    }

    fn count(&self, operation: Operation) -> Result<(), crate::Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let source = Arc::new(std::io::Error::from_raw_os_error(libc::ENODEV));
        Err(crate::Error::Io { device: "unplugged".into(), operation, first: None, length_bytes: 0, source })
    }
}

impl Filter for Unplugged {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        if self.left.load(Ordering::Relaxed) < 0 {
            self.count(Operation::Read)?;
        }
        self.device.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.count(Operation::Write)?;
        self.device.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.count(Operation::Flush)?;
        self.device.flush()
    }
}

/// A device that has a block which cannot be read, until it is written to.
pub(super) struct Unreadable {
    device: Arc<dyn Device>,
    pub(super) at: AtomicU64,
}

impl Unreadable {
    pub(super) fn at(device: &Arc<MemoryDevice>, at: u64) -> Arc<Unreadable> {
        Arc::new(Unreadable { device: device.clone(), at: AtomicU64::new(at) })
    }

    /// One more.
    pub(super) fn over(device: Arc<dyn Device>, at: u64) -> Arc<Unreadable> {
        Arc::new(Unreadable { device, at: AtomicU64::new(at) })
    }

    /// Whether a request is for that block.
    fn has(&self, first: u64, length_bytes: u64) -> bool {
        (first..first + length_bytes / BLOCK_SIZE as u64).contains(&self.at.load(Ordering::Relaxed))
    }
}

impl Filter for Unreadable {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        if self.has(first, length_bytes) {
            let (device, source) = (self.device.name().into(), Arc::new(std::io::Error::from_raw_os_error(libc::EIO)));
            return Err(crate::Error::Io {
                device,
                operation: Operation::Read,
                first: Some(first),
                length_bytes,
                source,
            });
        }
        self.device.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if self.has(first, bufs.iter().map(|buf| buf.len() as u64).sum()) {
            self.at.store(u64::MAX, Ordering::Relaxed);
        }
        self.device.write(first, bufs)
    }
}

/// What a writer knows when its device has failed.
#[derive(Default)]
struct Told {
    /// The number that each block was written with last, as answered.
    answered: BTreeMap<u64, u64>,
    /// The write that failed.
    failed: Option<(u64, u64)>,
    /// The newest number that a flush has answered.
    flushed: u64,
}

impl Told {
    /// Writes until there is an error.
    fn by_writing(device: &Flashlog) -> Told {
        let mut told = Told::default();
        for number in 1..2000 {
            let at = number * 11 % 256;
            if put(device, at, number).is_err() {
                told.failed = Some((at, number));
                return told;
            }
            told.answered.insert(at, number);
            if number % 9 == 0 {
                if device.flush().is_err() {
                    return told;
                }
                told.flushed = number;
            }
        }
        panic!("nothing has failed");
    }

    /// Blocks that have neither what was answered last nor what was written when it failed.
    fn missing(&self, device: &dyn Device) -> Vec<u64> {
        let is_there = |at: u64, number: u64| {
            let found = get(device, at);
            found == block(number) || self.failed.is_some_and(|(of, number)| of == at && found == block(number))
        };
        self.answered.iter().filter(|(at, number)| !is_there(**at, **number)).map(|(at, _)| *at).collect()
    }
}

#[test]
fn what_was_answered_is_on_main_when_the_log_is_gone() {
    for requests in 0..120 {
        let (main, log) = set();
        let failing = Unplugged::after(&log, 1000);
        let (device, _) = Flashlog::open(main.clone(), failing.clone(), &options(Mode::Synchronous)).unwrap();
        failing.left.store(requests, Ordering::Relaxed);
        let told = Told::by_writing(&device);
        assert_eq!(told.missing(&device), [0; 0], "the log failed after {requests} requests");
        assert!(matches!(put(&device, 0, 1), Err(crate::Error::Latched { .. })));
        drop(device);
        assert_eq!(told.missing(&*main), [0; 0], "the log failed after {requests} requests");
        assert!(matches!(open(&main, &log, Mode::Synchronous), Err(Error::Alone { .. })));
    }
}

#[test]
fn a_log_that_fails_in_asynchronous_mode_has_what_was_flushed_when_it_is_back() {
    for requests in 0..120 {
        let (main, log) = set();
        let failing = Unplugged::after(&log, 1000);
        let (device, _) = Flashlog::open(main.clone(), failing.clone(), &options(Mode::Asynchronous)).unwrap();
        failing.left.store(requests, Ordering::Relaxed);
        let told = Told::by_writing(&device);
        drop(device);
        match open(&main, &log, Mode::Asynchronous) {
            // All that was not on main was in memory.
            Err(error) => {
                assert!(matches!(error, Error::Alone { .. }), "{error}");
                assert_eq!(told.missing(&*main), [0; 0], "the log failed after {requests} requests");
            }
            Ok((device, _)) => {
                for (at, number) in told.answered.iter().filter(|(_, number)| **number <= told.flushed) {
                    assert_eq!(
                        get(&device, *at),
                        block(*number),
                        "the log failed after {requests} requests, block {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_was_answered_is_in_the_log_when_main_is_gone() {
    for requests in 0..120 {
        let (main, log) = set();
        let failing = Unplugged::after(&main, 1000);
        let (device, _) = Flashlog::open(failing.clone(), log.clone(), &options(Mode::Synchronous)).unwrap();
        failing.left.store(requests, Ordering::Relaxed);
        let told = Told::by_writing(&device);
        assert!(matches!(put(&device, 0, 1), Err(crate::Error::Latched { .. })));
        drop(device);
        // Main as it was then, with the log.
        let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
        assert_eq!(told.missing(&device), [0; 0], "main failed after {requests} requests");
    }
}

#[test]
fn an_opening_that_is_cut_off_again_and_again_is_no_sign_of_an_older_device() {
    let (main, log) = set();
    for requests in [0, 0, 1, 0, 2, 0] {
        for (failing_main, failing_log) in [(requests, 1000), (1000, requests)] {
            let (main, log) = (Unplugged::after(&main, failing_main), Unplugged::after(&log, failing_log));
            assert!(Flashlog::open(main, log, &options(Mode::Synchronous)).is_err() || requests == 2);
        }
    }
    let (device, _) = open(&main, &log, Mode::Synchronous).unwrap();
    put(&device, 3, 1).unwrap();
    device.flush().unwrap();
    drop(device);
    assert_eq!(get(&open(&main, &log, Mode::Synchronous).unwrap().0, 3), block(1));
}

#[test]
fn many_threads_write_flush_and_read() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (main, log) = set();
        let (device, _) = open(&main, &log, mode).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for number in 0..600 {
                        let at = thread * 64 + number % 64;
                        put(device, at, thread * 10_000 + number).unwrap();
                        if number % 7 == thread {
                            device.flush().unwrap();
                        }
                        if number % 50 == thread {
                            device.catch_up().unwrap();
                        }
                        let back = thread * 64 + number * 5 % 64;
                        let newest = (0..=number).rev().find(|number| thread * 64 + number % 64 == back);
                        let expected = newest.map_or(vec![0; BLOCK_SIZE], |number| block(thread * 10_000 + number));
                        assert!(get(device, back) == expected, "{mode:?} {thread} {number} {back}");
                    }
                });
            }
        });
        device.settle().unwrap();
        for at in 0..256 {
            let newest = 600 - 1 - (599 - at % 64) % 64;
            assert!(get(&*main, at) == block(at / 64 * 10_000 + newest));
        }
    }
}

/// Counts batches of reads.
struct Batches(Arc<MemoryDevice>, AtomicI64);

impl Device for Batches {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        self.0.read(first, bufs)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), crate::Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_batch(reads)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.0.write(first, bufs)
    }

    fn flush(&self) -> Result<(), crate::Error> {
        self.0.flush()
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), crate::Error> {
        self.0.discard(first, count)
    }
}

#[test]
fn a_batch_of_reads_is_one_of_main_if_main_has_everything() {
    let (main, log) = set();
    let main = Arc::new(Batches(main, AtomicI64::new(0)));
    let (device, _) = Flashlog::open(main.clone(), log, &options(Mode::Asynchronous)).unwrap();
    for at in 0..4 {
        put(&device, at, at).unwrap();
    }
    device.settle().unwrap();
    let read = |device: &dyn Device, at: [u64; 2]| {
        let [mut one, mut other] = [0; 2].map(|_| vec![0; BLOCK_SIZE]);
        let (mut a, mut b) = ([IoSliceMut::new(&mut one)], [IoSliceMut::new(&mut other)]);
        let mut reads = [Read::new(at[0], &mut a), Read::new(at[1], &mut b)];
        let outcome = device.read_batch(&mut reads);
        let each = reads.map(|read| read.result.is_ok());
        (outcome.is_ok(), each, [one, other], main.1.load(Ordering::Relaxed))
    };
    assert_eq!(read(&device, [1, 3]), (true, [true; 2], [block(1), block(3)], 1));
    put(&device, 3, 9).unwrap();
    assert_eq!(read(&device, [1, 3]), (true, [true; 2], [block(1), block(9)], 1));
    assert_eq!(read(&device, [1, 2]), (true, [true; 2], [block(1), block(2)], 2));
    // Of main, but not of the set.
    let (is_ok, each, _, batches) = read(&device, [300, 2]);
    assert_eq!((is_ok, each, batches), (false, [false, true], 2));
    // So it is with a set that outlasts its log, and without the log.
    let device = Lasting::of(device, Policy::default());
    assert_eq!(read(&device, [1, 2]), (true, [true; 2], [block(1), block(2)], 3));
    device.detach_log().unwrap();
    assert_eq!(read(&device, [1, 3]), (true, [true; 2], [block(1), block(9)], 4));
    let (is_ok, each, _, batches) = read(&device, [300, 2]);
    assert_eq!((is_ok, each, batches), (false, [false, true], 4));
}
