//! What nobody had is written anew: main's label tells of it until main has that, whenever the power goes, and not longer.
use super::backup_tests::{Set, contents};
use super::follow_tests::Counted;
use super::lasting_tests::alone;
use super::lost_tests::{DATA, behind, is_damaged, lose, with_one_forgotten, without_one};
use super::tests::{block, get, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const LOST: Bad = Bad { blocks: 1, first: 17 };
const NONE: Bad = Bad { blocks: 0, first: 0 };

pub(super) fn told(device: &Flashlog) -> Bad {
    device.status().damage.main
}

/// More than the log has room for.
pub(super) fn fill(device: &dyn Device) {
    for number in 0..6000 {
        put(device, 100 + number % 50, number).unwrap();
    }
}

/// Both devices as they are now.
fn copies(set: &Set) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    (Arc::new((*set.main).clone()), Arc::new((*set.log).clone()))
}

#[test]
fn nothing_is_told_any_more_when_all_is_written_anew_and_a_backup_is_made_also_after_the_log_was_full() {
    for is_closed in [false, true] {
        let (set, device) = without_one();
        assert_eq!(told(&device), LOST);
        put(&device, 17, 7).unwrap();
        assert_eq!(told(&device), LOST, "a power cut would bring it back");
        match is_closed {
            true => device.close().unwrap(),
            false => device.flush().unwrap(),
        }
        assert_eq!(told(&device), NONE);
        drop(device);
        let device = set.reopen();
        let status = device.status();
        assert_eq!((status.damage, status.forgets_damage), (Damage::default(), false));
        fill(&device);
        device.settle().unwrap();
        drop(device);
        let device = set.reopen();
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device) && get(&device, 17) == block(7));
    }
}

#[test]
fn it_is_told_of_also_when_the_log_has_let_go_of_what_tells_which_it_is_until_it_is_written_anew() {
    let (set, device) = without_one();
    fill(&device);
    assert!(is_damaged(&device, 17) && device.status().forgets_damage);
    put(&device, 17, 7).unwrap();
    fill(&device);
    device.settle().unwrap();
    assert_eq!((told(&device), device.status().forgets_damage), (NONE, false));
    drop(device);
    let device = set.reopen();
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device) && get(&device, 17) == block(7));
}

#[test]
fn a_power_cut_before_the_flush_leaves_it_told() {
    let (set, device) = without_one();
    put(&device, 17, 7).unwrap();
    // Main catches up with what is durable, which is not that.
    device.catch_up().unwrap();
    let (main, log) = copies(&set);
    let (found, _) = open(&main, &log, Mode::Asynchronous).unwrap();
    assert!(is_damaged(&found, 17) && told(&found) == LOST && !found.status().forgets_damage);
}

#[test]
fn the_label_counts_what_is_still_lost() {
    let (set, device) = without_one();
    device.settle().unwrap();
    put(&device, 30, 6030).unwrap();
    device.flush().unwrap();
    drop(device);
    let device = set.reopen();
    lose(&set.log, 6030);
    device.catch_up().unwrap();
    assert_eq!(told(&device), Bad { blocks: 2, first: 17 });
    drop(device);
    let device = set.reopen();
    assert!(told(&device) == Bad { blocks: 2, first: 17 } && is_damaged(&device, 17) && is_damaged(&device, 30));
    put(&device, 17, 7).unwrap();
    device.settle().unwrap();
    assert_eq!(told(&device), Bad { blocks: 1, first: 30 });
    drop(device);
    let device = set.reopen();
    assert!(told(&device) == Bad { blocks: 1, first: 30 } && !is_damaged(&device, 17) && is_damaged(&device, 30));
    device.zero(30, 1, false).unwrap();
    device.flush().unwrap();
    drop(device);
    let device = set.reopen();
    assert!(device.status().damage == Damage::default() && get(&device, 30) == vec![0; BLOCK_SIZE]);
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn new_damage_does_not_make_known_what_was_forgotten() {
    let (set, device) = with_one_forgotten();
    put(&device, 5, 6005).unwrap();
    device.flush().unwrap();
    device.seal().unwrap();
    drop(device);
    let device = set.reopen();
    lose(&set.log, 6005);
    device.catch_up().unwrap();
    assert_eq!(told(&device), Bad { blocks: 2, first: 5 });
    put(&device, 5, 8).unwrap();
    device.settle().unwrap();
    drop(device);
    let device = set.reopen();
    assert!(told(&device).blocks > 0);
    let refused = device.backup(set.backup.clone());
    assert!(matches!(refused, Err(Error::Forgotten { .. })), "{refused:?}");
}

#[test]
fn a_backup_that_was_compared_with_all_of_main_settles_what_was_given_up() {
    let (set, device) = with_one_forgotten();
    // So that all is compared.
    let other = Arc::new(MemoryDevice::new(set.backup.blocks()).named("other"));
    device.create_backup(other.clone(), Uuid([61; 16])).unwrap();
    device.backup(other).unwrap();
    device.accept_forgotten();
    assert_eq!(told(&device), LOST, "before anything has it");
    device.backup(set.backup.clone()).unwrap();
    assert_eq!(told(&device), NONE);
    drop(device);
    let device = set.reopen();
    assert!(device.status().damage == Damage::default() && contents(&*set.backup) == contents(&device));
}

#[test]
fn main_alone_tells_no_more_of_what_it_has_written_anew_durably() {
    let (set, device) = without_one();
    let lasting = Lasting::of(device, alone());
    lasting.detach_log().unwrap();
    put(&lasting, 17, 7).unwrap();
    assert_eq!(lasting.status().0.damage.main, LOST);
    lasting.settle().unwrap();
    assert_eq!(lasting.status().0.damage.main, NONE);
    drop(lasting);
    let lasting = Lasting::open_alone(set.main.clone(), &options(Mode::Asynchronous), alone(), false).unwrap();
    assert!(!lasting.status().0.forgets_damage);
    lasting.attach_log(set.log.clone()).unwrap();
    assert!(get(&lasting, 17) == block(7));
    lasting.set().unwrap().backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&lasting));
}

/// A device of a set: before each of its requests, it is seen what a power cut would leave of both, if what is not flushed is lost.
struct Watched {
    below: Arc<MemoryDevice>,
    flushed: Arc<Mutex<Flushed>>,
    is_main: bool,
}

/// Main and log, as they are durable, and how often that was looked at.
struct Flushed {
    main: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
    looked: u64,
}

impl Watched {
    fn look(&self) {
        let mut flushed = self.flushed.lock();
        flushed.looked += 1;
        let [main, log] = [&flushed.main, &flushed.log].map(|device| Arc::new((**device).clone()));
        let (found, _) = open(&main, &log, Mode::Asynchronous).unwrap();
        assert!(is_damaged(&found, 17) || get(&found, 17) == block(7), "main's older version is there without a word");
    }
}

impl Filter for Watched {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.look();
        self.below.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.look();
        self.below.flush()?;
        let now = Arc::new((*self.below).clone());
        let mut flushed = self.flushed.lock();
        match self.is_main {
            true => flushed.main = now,
            false => flushed.log = now,
        }
        Ok(())
    }
}

impl Watched {
    /// Opens this set so.
    fn open(set: &Set) -> (Flashlog, Arc<Mutex<Flushed>>) {
        let (main, log) = copies(set);
        let flushed = Arc::new(Mutex::new(Flushed { main, log, looked: 0 }));
        let watched = |below: &Arc<MemoryDevice>, is_main| {
            Arc::new(Watched { below: below.clone(), flushed: flushed.clone(), is_main })
        };
        let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
        let (device, _) = Flashlog::open(watched(&set.main, true), watched(&set.log, false), &options).unwrap();
        (device, flushed)
    }
}

#[test]
fn whenever_the_power_is_cut_it_is_told_or_written_anew() {
    for has_backup in [false, true] {
        let (set, device) = without_one();
        device.settle().unwrap();
        drop(device);
        let (device, flushed) = Watched::open(&set);
        put(&device, 18, 5018).unwrap();
        device.flush().unwrap();
        put(&device, 17, 7).unwrap();
        if has_backup {
            // The log may let go then of what told which it is.
            (0..600).for_each(|number| put(&device, 100 + number % 50, number).unwrap());
            device.backup(set.backup.clone()).unwrap();
        }
        device.flush().unwrap();
        assert_eq!(told(&device), NONE);
        device.close().unwrap();
        drop(device);
        assert!(flushed.lock().looked > 20);
        let device = set.reopen();
        assert!(get(&device, 17) == block(7) && told(&device) == NONE);
    }
}

#[test]
fn the_same_of_what_is_lost_and_written_again_already() {
    let (set, device) = behind(false, true);
    drop(device);
    lose(&set.log, 5017);
    let (device, _) = Watched::open(&set);
    // So much that the log's label says with the next page what main has.
    (0..700).for_each(|number| put(&device, 100 + number % 50, number).unwrap());
    device.flush().unwrap();
    put(&device, 17, 7).unwrap();
    device.catch_up().unwrap();
    (0..30).for_each(|number| put(&device, 100 + number % 50, number).unwrap());
    assert!(get(&device, 17) == block(7));
    device.flush().unwrap();
    assert_eq!(told(&device), NONE);
    drop(device);
    let device = set.reopen();
    assert!(get(&device, 17) == block(7) && told(&device) == NONE);
}

#[test]
fn an_opening_reads_all_data_of_the_log_only_until_all_is_written_anew() {
    let (set, device) = without_one();
    device.settle().unwrap();
    drop(device);
    let read_by_opening = || {
        let log = Arc::new(Counted { below: set.log.clone(), from: DATA, read: AtomicU64::new(0) });
        let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Asynchronous)).unwrap();
        let read = log.read.load(Ordering::Relaxed);
        (device, read)
    };
    let (device, read) = read_by_opening();
    assert!(read >= 40, "{read}");
    put(&device, 17, 7).unwrap();
    device.close().unwrap();
    drop(device);
    // A block of each page that it keeps.
    let (device, read) = read_by_opening();
    assert!((1..20).contains(&read), "{read}");
    device.backup(set.backup.clone()).unwrap();
    device.close().unwrap();
    drop(device);
    assert_eq!(read_by_opening().1, 0);
}
