//! Discards and zeros: the same on all devices, whatever comes between.
use super::staging::Backup;
use super::tests::{Unplugged, block, get, names, options, put};
use super::*;
use crate::nbd::{Context, Extents, HOLE, NOT_BACKED_UP, ZERO};
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use rand::{Rng, SeedableRng};
use std::io::IoSliceMut;
use std::sync::Arc;

const BLOCKS: u64 = 1024;
const MODES: [Mode; 2] = [Mode::Synchronous, Mode::Asynchronous];

struct Devices {
    main: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
    backup: Arc<MemoryDevice>,
}

impl Devices {
    fn new() -> Devices {
        let [main, log, backup] =
            [BLOCKS + 256, 2048, Backup::blocks_least(BLOCKS)].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
        create(main.clone(), log.clone(), &names(1)).unwrap();
        Devices { main, log, backup }
    }

    fn open(&self, mode: Mode) -> Flashlog {
        Flashlog::open(self.main.clone(), self.log.clone(), &options(mode)).unwrap().0
    }

    /// What a main has that is made of backup and log; none if the log was full.
    fn rebuilt(&self, mode: Mode) -> Option<Vec<u8>> {
        let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), Arc::new((*self.log).clone()));
        match rebuild(Arc::new((*self.backup).clone()), log.clone(), main.clone(), Uuid([9; 16])) {
            Ok(_) => Some(all_of(&Flashlog::open(main, log, &options(mode)).unwrap().0)),
            Err(Error::Gap { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn all_of(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

fn zeros() -> Vec<u8> {
    vec![0; BLOCK_SIZE]
}

#[test]
fn zeros_are_read_at_once_and_take_no_room_in_the_log() {
    for mode in MODES {
        let devices = Devices::new();
        let set = devices.open(mode);
        // So that nothing is let go of.
        set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
        set.backup(devices.backup.clone()).unwrap();
        for at in 0..300 {
            put(&set, at, at + 1).unwrap();
        }
        set.flush().unwrap();
        let used = set.status().log_blocks.0;
        assert!(set.zero(10, 200, false).unwrap());
        put(&set, 50, 1000).unwrap();
        set.discard(250, 20).unwrap();
        let expected = |at: u64| match at {
            50 => block(1000),
            10..210 | 250..270 => zeros(),
            _ => block(at + 1),
        };
        let is_there = |device: &dyn Device| (0..300).all(|at| get(device, at) == expected(at));
        assert!(is_there(&set));
        set.flush().unwrap();
        assert!(is_there(&set) && set.status().log_blocks.0 == used + 1, "{mode:?}");
        set.catch_up().unwrap();
        assert!(is_there(&set) && is_there(&*devices.main));
        // Not a write of zeros: main has holes there.
        assert_eq!(devices.main.extent(Context::Allocation, 51, 100).unwrap().flags, HOLE | ZERO);
        drop(set);
        assert!(is_there(&devices.open(mode)));
    }
}

/// Pages without data are at no position of it.
#[test]
fn a_log_that_is_full_of_zeros_does_not_let_go_of_them_before_main_has_them() {
    let devices = Devices::new();
    (0..BLOCKS).for_each(|at| put(&*devices.main, at, 7).unwrap());
    let set = devices.open(Mode::Asynchronous);
    set.zero(0, 1, false).unwrap();
    for number in 0..2 * set.rings.areas.meta_blocks {
        set.zero(1 + number % 5, 1, false).unwrap();
        set.flush().unwrap();
    }
    let tail = set.head.lock().labels.label.tail;
    assert!(tail.page > 0 && tail.data == 0, "{tail:?}");
    drop(set);
    let set = devices.open(Mode::Asynchronous);
    (0..10).for_each(|at| assert!((get(&set, at) == zeros()) == (at < 6), "block {at}"));
}

#[test]
fn an_opening_brings_zeros_to_main_and_main_alone_has_them() {
    let devices = Devices::new();
    let set = devices.open(Mode::Asynchronous);
    put(&set, 3, 1).unwrap();
    set.settle().unwrap();
    set.zero(0, 100, false).unwrap();
    set.flush().unwrap();
    assert_eq!(get(&*devices.main, 3), block(1));
    drop(set);
    let set = devices.open(Mode::Synchronous);
    assert_eq!((get(&*devices.main, 3), get(&set, 3)), (zeros(), zeros()));
    // The log is gone, and what was answered goes to main.
    for at in [4, 700, 750] {
        put(&set, at, 2).unwrap();
    }
    set.settle().unwrap();
    set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
    set.backup(devices.backup.clone()).unwrap();
    drop(set);
    let log = Unplugged::after(&devices.log, 9);
    let (set, _) = Flashlog::open(devices.main.clone(), log, &options(Mode::Synchronous)).unwrap();
    let mut is_answered = true;
    while is_answered {
        put(&set, 4, 7).unwrap_or_default();
        is_answered = set.zero(4, 1, false).is_ok() && set.flush().is_ok();
    }
    drop(set);
    assert_eq!(get(&*devices.main, 4), zeros());
    assert!(matches!(
        Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous)),
        Err(Error::Alone { .. })
    ));
    let alone =
        Lasting::open_alone(devices.main.clone(), &options(Mode::Synchronous), Policy::default(), false).unwrap();
    assert!(alone.zero(700, 1, false).unwrap());
    alone.discard(750, 1).unwrap();
    alone.attach_log(devices.log.clone()).unwrap();
    alone.set().unwrap().backup(devices.backup.clone()).unwrap();
    for at in [4, 700, 750] {
        assert_eq!((get(&alone, at), get(&*devices.backup, at)), (zeros(), zeros()), "block {at}");
    }
}

#[test]
fn a_backup_gets_zeros_without_staging_them_and_verifies() {
    for mode in MODES {
        let devices = Devices::new();
        let set = devices.open(mode);
        for at in 0..BLOCKS {
            put(&set, at, at + 1).unwrap();
        }
        set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
        set.backup(devices.backup.clone()).unwrap();
        // More than the staging area has room for, in one step.
        set.zero(0, 900, false).unwrap();
        put(&set, 20, 5).unwrap();
        assert_eq!(set.extent(Context::BackUp, 0, 1).unwrap().flags, NOT_BACKED_UP);
        let done = set.backup(devices.backup.clone()).unwrap();
        assert_eq!((done.steps, done.copied_blocks, done.blocks), (1, 0, 900), "{mode:?}");
        assert_eq!(set.extent(Context::BackUp, 0, 1).unwrap().flags, 0);
        assert!(verify_backup(devices.backup.clone()).unwrap().is_good());
        let expected = all_of(&set);
        assert!(all_of(&*devices.backup) == expected);
        assert_eq!(devices.backup.extent(Context::Allocation, 21, 100).unwrap().flags, HOLE | ZERO);
        assert!(set.scrub(devices.backup.clone()).unwrap().is_good());
        drop(set);
        assert!(devices.rebuilt(mode) == Some(expected));
    }
}

/// Counts down requests of any kind, zeros too.
struct Pulled(Arc<MemoryDevice>, std::sync::atomic::AtomicI64);

impl Pulled {
    fn count(&self) -> Result<(), crate::Error> {
        match self.1.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            true => Ok(()),
            false => Err(crate::Error::Unsuitable { device: "pulled".into(), reason: "it was pulled out" }),
        }
    }
}

impl Filter for Pulled {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[std::io::IoSlice<'_>]) -> Result<(), crate::Error> {
        self.count().and_then(|()| self.0.write(first, bufs))
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.count().and_then(|()| self.0.flush())
    }

    fn on_zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, crate::Error> {
        self.count().and_then(|()| self.0.zero(first, count, keep))
    }
}

#[test]
fn a_backup_that_is_cut_off_has_the_zeros_or_not_and_is_read_right_while_they_are_staged() {
    let mut staged = 0;
    for requests in 0..20 {
        let devices = Devices::new();
        let set = devices.open(Mode::Synchronous);
        for at in 0..BLOCKS {
            put(&set, at, at + 1).unwrap();
        }
        set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
        set.backup(devices.backup.clone()).unwrap();
        let before = all_of(&set);
        set.zero(100, 300, false).unwrap();
        put(&set, 150, 7).unwrap();
        set.flush().unwrap();
        let after = all_of(&set);
        let pulled = Arc::new(Pulled(devices.backup.clone(), requests.into()));
        let is_cut_off = set.backup(pulled).is_err();
        let past = set.past(devices.backup.clone(), At::Backup).unwrap();
        let now = all_of(&past);
        assert!(now == after || is_cut_off && now == before, "after {requests} requests");
        staged += u64::from(now == after && all_of(&*devices.backup) != after);
        drop(past);
        assert!(verify_backup(devices.backup.clone()).unwrap().is_good(), "after {requests} requests");
        assert!(devices.rebuilt(Mode::Synchronous).as_ref() == Some(&after));
        set.backup(devices.backup.clone()).unwrap();
        assert!(all_of(&*devices.backup) == after);
    }
    assert!(staged > 0, "no backup was read while zeros were staged");
}

#[test]
fn states_in_between_and_a_log_that_was_full_have_the_zeros_that_there_were() {
    let devices = Devices::new();
    let set = devices.open(Mode::Asynchronous);
    set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
    set.backup(devices.backup.clone()).unwrap();
    let mut states = Vec::new();
    for round in 0..6 {
        put(&set, 5, round + 1).unwrap();
        if round % 2 == 1 {
            set.zero(4, 3, false).unwrap();
        }
        set.flush().unwrap();
        states.push(all_of(&set));
    }
    let barriers = set.barriers(devices.backup.clone()).unwrap();
    assert_eq!(barriers.len(), states.len());
    for (barrier, state) in barriers.iter().zip(&states) {
        let past = set.past(devices.backup.clone(), At::Barrier(barrier.number)).unwrap();
        assert!(all_of(&past) == *state, "{barrier}");
    }
    // The pages go around, and what is let go of is in the map.
    let (at, most) = (512, set.status().log_pages.1);
    set.zero(at, 8, false).unwrap();
    for round in 0..2 * most {
        put(&set, 1, round).unwrap();
        set.flush().unwrap();
    }
    assert!(set.status().changed_blocks > 0);
    assert_eq!(set.extent(Context::BackUp, at, 1).unwrap().flags, NOT_BACKED_UP);
    set.backup(devices.backup.clone()).unwrap();
    assert!(all_of(&*devices.backup) == all_of(&set));
}

#[test]
fn clients_are_told_of_zeros_before_and_after_main_has_them() {
    let devices = Devices::new();
    let set = devices.open(Mode::Asynchronous);
    for at in 0..40 {
        put(&set, at, at + 1).unwrap();
    }
    set.catch_up().unwrap();
    let told = |first: u64| {
        let extent = set.extent(Context::Allocation, first, 64).unwrap();
        (extent.blocks, extent.flags)
    };
    assert_eq!((told(0), told(40)), ((40, 0), (64, HOLE | ZERO)));
    set.zero(10, 4, false).unwrap();
    set.zero(14, 4, true).unwrap();
    set.discard(20, 2).unwrap();
    put(&set, 12, 9).unwrap();
    assert_eq!((told(0), told(10), told(12), told(13)), ((10, 0), (2, HOLE | ZERO), (1, 0), (1, HOLE | ZERO)));
    assert_eq!((told(14), told(18), told(20)), ((4, ZERO), (2, 0), (2, HOLE | ZERO)));
    assert_eq!((set.zeros_ahead(10, 64), set.zeros_ahead(14, 64), set.zeros_ahead(18, 64)), (2, 4, 0));
    set.catch_up().unwrap();
    assert_eq!((told(0), told(12)), ((10, 0), (1, 0)));
}

/// A main that has to write zeros.
struct Writes(Arc<MemoryDevice>);

impl Filter for Writes {
    fn below(&self) -> &dyn Device {
        &*self.0
    }
}

#[test]
fn where_main_has_to_write_zeros_a_discard_is_not_taken_and_zeros_are_written() {
    for mode in MODES {
        let devices = Devices::new();
        let main = Arc::new(Writes(devices.main.clone()));
        let (set, _) = Flashlog::open(main, devices.log.clone(), &options(mode)).unwrap();
        for at in 0..200 {
            put(&set, at, at + 1).unwrap();
        }
        set.discard(0, 100).unwrap();
        assert!(set.zero(100, 50, false).unwrap() && set.writes_zeros(false));
        set.settle().unwrap();
        for device in [&set as &dyn Device, &*devices.main] {
            let is_zero = |at: u64| (100..150).contains(&at);
            assert!((0..200).all(|at| get(device, at) == if is_zero(at) { zeros() } else { block(at + 1) }));
        }
    }
}

/// `HOLDFAST_ZEROS_SEED=…` repeats one.
#[test]
fn random_writes_zeros_and_discards_are_what_they_were_on_every_device() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let said = std::env::var("HOLDFAST_ZEROS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = said.unwrap_or(now.as_secs());
    println!("HOLDFAST_ZEROS_SEED={seed} cargo test -p holdfast-block random_writes_zeros");
    for (mode, seed) in MODES.into_iter().zip(seed..) {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let devices = Devices::new();
        let mut set = devices.open(mode);
        let mut expected = vec![0; BLOCKS as usize * BLOCK_SIZE];
        set.create_backup(devices.backup.clone(), Uuid([4; 16])).unwrap();
        set.backup(devices.backup.clone()).unwrap();
        for step in 0..600 {
            let count = if rng.random_ratio(1, 10) { rng.random_range(1..600) } else { rng.random_range(1..9) };
            let first = rng.random_range(0..BLOCKS - count);
            let of = &mut expected[first as usize * BLOCK_SIZE..(first + count) as usize * BLOCK_SIZE];
            match rng.random_range(0..20) {
                0..9 => {
                    of.copy_from_slice(&block(step + 1).repeat(count as usize));
                    set.write(first, &[std::io::IoSlice::new(of)]).unwrap();
                }
                9..13 => {
                    of.fill(0);
                    assert!(set.zero(first, count, rng.random()).unwrap());
                }
                13..15 => {
                    of.fill(0);
                    set.discard(first, count).unwrap();
                }
                15 => set.flush().unwrap(),
                16 => set.catch_up().unwrap(),
                17 => {
                    set.settle().unwrap();
                    drop(set);
                    set = devices.open(mode);
                }
                18 => drop(set.backup(devices.backup.clone()).unwrap()),
                _ => {
                    assert!(all_of(&set) == expected, "step {step}");
                    set.flush().unwrap();
                    let rebuilt = devices.rebuilt(mode);
                    assert!(rebuilt.is_none_or(|found| found == expected), "step {step}, main made anew");
                    assert!(verify_backup(devices.backup.clone()).unwrap().is_good(), "step {step}");
                }
            }
        }
        set.backup(devices.backup.clone()).unwrap();
        assert!(all_of(&*devices.backup) == expected && all_of(&set) == expected);
        assert!(set.scrub(devices.backup.clone()).unwrap().is_good());
    }
}
