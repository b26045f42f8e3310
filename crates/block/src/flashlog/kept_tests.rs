//! A log that has lost what it keeps for the backup, while it was away or in use.
use super::backup_tests::{BLOCKS, Set, contents};
use super::lasting_tests::alone;
use super::tests::{block, get, options, put, spoil};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Operation};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the log's pages and data begin.
const PAGES: u64 = 256;
const DATA: u64 = 3 * 256;

fn clear(log: &MemoryDevice, blocks: std::ops::Range<u64>) {
    for at in blocks {
        log.write(at, &[IoSlice::new(&[0; BLOCK_SIZE])]).unwrap();
    }
}

/// A set in synchronous mode whose log has blocks 100 to 159 for the backup, from its beginning on.
fn with_some() -> (Set, Flashlog) {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    for at in 100..160 {
        put(&device, at, 2 * at).unwrap();
    }
    device.settle().unwrap();
    (set, device)
}

/// The same, and main is without its log.
fn parted() -> (Set, Lasting) {
    let (set, device) = with_some();
    let lasting = Lasting::of(device, alone());
    lasting.detach_log().unwrap();
    (set, lasting)
}

pub(super) fn made_anew(set: &Set) -> Vec<u8> {
    let main = Arc::new(MemoryDevice::new(set.main.blocks()));
    rebuild(set.backup.clone(), set.log.clone(), main.clone(), Uuid([9; 16])).unwrap();
    contents(&Flashlog::open(main, set.log.clone(), &options(Mode::Synchronous)).unwrap().0)
}

#[test]
fn a_log_that_comes_back_without_its_data_gets_it_from_main() {
    let (set, lasting) = parted();
    put(&lasting, 500, 5).unwrap();
    put(&lasting, 110, 7).unwrap();
    clear(&set.log, DATA..set.log.blocks());
    let attached = lasting.attach_log(set.log.clone()).unwrap();
    // What main has written alone comes to the log in any case.
    assert_eq!(attached, Attached::Back { blocks: 2, mended_blocks: 59, lost_blocks: 0 });
    let (expected, device) = (contents(&lasting), lasting.set().unwrap());
    assert_eq!((device.status().damage, device.status().changed_blocks), (Damage::default(), 0));
    // The first version of block 110 is gone, and no last state needs it.
    let scrubbed = device.scrub(set.backup.clone()).unwrap();
    let only = Scrubbed { blocks: BLOCKS, log_damaged: vec![110], ..Scrubbed::default() };
    assert_eq!(scrubbed, only);
    drop((device, lasting));
    assert!(made_anew(&set) == expected);
}

#[test]
fn what_a_log_that_comes_back_and_main_have_both_lost_is_told() {
    let (set, lasting) = parted();
    clear(&set.log, DATA..DATA + 20);
    spoil(&set.main, 103);
    let attached = lasting.attach_log(set.log.clone()).unwrap();
    assert_eq!(attached, Attached::Back { blocks: 0, mended_blocks: 19, lost_blocks: 1 });
    let main = Bad { blocks: 1, first: 103 };
    assert_eq!(lasting.status().0.damage, Damage { main, log_tells: true, ..Damage::default() });
}

/// A log that reads as ever, and takes nothing.
struct ReadOnly(Arc<MemoryDevice>);

impl Filter for ReadOnly {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, _bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        let (device, source) = ("log".into(), Arc::new(std::io::Error::other("it takes nothing")));
        Err(crate::Error::Io { device, operation: Operation::Write, first: Some(first), length_bytes: 0, source })
    }
}

#[test]
fn a_log_that_cannot_be_mended_changes_nothing_on_main() {
    let (set, lasting) = parted();
    put(&lasting, 500, 5).unwrap();
    lasting.settle().unwrap();
    clear(&set.log, DATA..DATA + 20);
    let before = set.main.snapshot();
    let refused = lasting.attach_log(Arc::new(ReadOnly(set.log.clone())));
    assert!(matches!(refused, Err(Error::Device(crate::Error::Io { .. }))), "{refused:?}");
    assert!(set.main.snapshot() == before, "main knows what it has written alone");
    // After a power cut, too.
    drop(lasting);
    let options = options(Mode::Synchronous);
    let lasting = Lasting::open_alone(set.main.clone(), &options, alone(), false).unwrap();
    let attached = lasting.attach_log(set.log.clone()).unwrap();
    assert_eq!(attached, Attached::Back { blocks: 1, mended_blocks: 20, lost_blocks: 0 });
    let expected = contents(&lasting);
    drop(lasting);
    assert!(made_anew(&set) == expected);
    let again = Flashlog::open(set.main.clone(), Arc::new(ReadOnly(set.log.clone())), &options);
    assert!(again.is_err());
}

#[test]
fn pages_that_are_lost_are_told_and_the_next_backup_compares_everything() {
    for is_opened in [false, true] {
        let (set, device) = with_some();
        let damaged = PAGES + 3;
        let lasting = if is_opened {
            drop(device);
            clear(&set.log, damaged..damaged + 1);
            Lasting::of(set.reopen(), alone())
        } else {
            let lasting = Lasting::of(device, alone());
            lasting.detach_log().unwrap();
            clear(&set.log, damaged..damaged + 1);
            lasting.attach_log(set.log.clone()).unwrap();
            lasting
        };
        put(&lasting, 500, 5).unwrap();
        let device = lasting.set().unwrap();
        let told = device.status().log_damage;
        assert!(matches!(told, Some(Error::Damaged { block, .. }) if block == damaged), "{told:?}");
        // What is in front of them is still there to go back to.
        let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: true, accept_damage: false };
        let (log, main) = (Arc::new((*set.log).clone()), Arc::new(MemoryDevice::new(set.main.blocks())));
        let rebuilt = rebuild_at(set.backup.clone(), log, main, &how).unwrap();
        assert!(rebuilt.dropped.is_damaged);
        device.backup(set.backup.clone()).unwrap();
        let expected = contents(&lasting);
        assert!(device.status().log_damage.is_none() && contents(&*set.backup) == expected);
        put(&lasting, 501, 6).unwrap();
        lasting.flush().unwrap();
        let expected = contents(&lasting);
        drop((device, lasting));
        assert!(made_anew(&set) == expected);
    }
}

#[test]
fn an_opening_makes_good_what_the_log_has_lost() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = with_some();
        let expected = contents(&device);
        drop(device);
        clear(&set.log, DATA..set.log.blocks());
        let (device, opened) = Flashlog::open(set.main.clone(), set.log.clone(), &options(mode)).unwrap();
        assert_eq!((opened.mended_blocks, device.status().damage), (60, Damage::default()));
        drop(device);
        let (device, opened) = Flashlog::open(set.main.clone(), set.log.clone(), &options(mode)).unwrap();
        assert_eq!(opened.mended_blocks, 0);
        drop(device);
        assert!(made_anew(&set) == expected);
    }
}

/// Counts what goes to the data of a log.
struct Counted(Arc<MemoryDevice>, AtomicU64);

impl Filter for Counted {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.1.fetch_add(u64::from(first >= DATA), Ordering::Relaxed);
        self.0.write(first, bufs)
    }
}

#[test]
fn neighbours_are_made_good_at_once() {
    let (set, device) = with_some();
    drop(device);
    clear(&set.log, DATA..set.log.blocks());
    let log = Arc::new(Counted(set.log.clone(), AtomicU64::new(0)));
    let (_device, opened) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Synchronous)).unwrap();
    assert_eq!((opened.mended_blocks, log.1.load(Ordering::Relaxed)), (60, 1));
}

#[test]
fn a_scrub_makes_good_what_the_log_has_lost_in_use() {
    for with_backup in [true, false] {
        let (set, device) = with_some();
        put(&device, 101, 1).unwrap();
        device.settle().unwrap();
        let expected = contents(&device);
        let scrub = || if with_backup { device.scrub(set.backup.clone()) } else { device.scrub_with_log() };
        // The first versions of 100 to 109.
        clear(&set.log, DATA..DATA + 10);
        spoil(&set.main, 105);
        let scrubbed = scrub().unwrap();
        let repaired = vec![100, 102, 103, 104, 106, 107, 108, 109];
        assert_eq!((scrubbed.log_repaired.clone(), scrubbed.log_damaged.clone()), (repaired, vec![101, 105]));
        assert_eq!((scrubbed.lost.clone(), scrubbed.is_good()), (vec![105], false));
        put(&device, 105, 210).unwrap();
        device.settle().unwrap();
        let scrubbed = scrub().unwrap();
        assert_eq!((scrubbed.lost.len(), scrubbed.log_repaired.clone()), (0, vec![105]), "main has it again");
        // A page that nobody needs any more but the backup.
        clear(&set.log, PAGES + 3..PAGES + 4);
        let refused = scrub();
        assert!(matches!(refused, Err(Error::Damaged { block, .. }) if block == PAGES + 3), "{refused:?}");
        assert!(device.status().log_damage.is_some());
        device.backup(set.backup.clone()).unwrap();
        assert!(scrub().unwrap().is_good() && contents(&*set.backup) == expected);
        assert_eq!(get(&device, 105), block(210));
    }
}

/// Main and log of an earlier time, with a backup of a later one: nothing of the log is damaged, and nothing of main either.
#[test]
fn a_backup_of_another_time_reverts_nothing_and_is_compared() {
    // So many pages are written after the images were put back: fewer than the backup knows, as many, and more.
    for pages in [0, 20, 40, 60] {
        let (set, device) = with_some();
        drop(device);
        let [main, log] = [&set.main, &set.log].map(|device| Arc::new((**device).clone()));
        let device = set.reopen();
        for at in 300..340 {
            put(&device, at, 3 * at).unwrap();
            device.flush().unwrap();
        }
        device.backup(set.backup.clone()).unwrap();
        drop(device);
        let (device, _) = Flashlog::open(main.clone(), log.clone(), &options(Mode::Synchronous)).unwrap();
        for at in 600..600 + pages {
            put(&device, at, 5 * at).unwrap();
            device.flush().unwrap();
        }
        let expected = contents(&device);
        assert!(device.scrub(set.backup.clone()).is_err(), "{pages} pages");
        assert!(contents(&device) == expected && contents(&*main) == expected, "{pages} pages: main is as it was");
        device.backup(set.backup.clone()).unwrap();
        assert!(device.status().log_damage.is_none() && contents(&*set.backup) == expected, "{pages} pages");
        drop(device);
        let anew = Arc::new(MemoryDevice::new(main.blocks()));
        rebuild(set.backup.clone(), log.clone(), anew.clone(), Uuid([9; 16])).unwrap();
        assert!(contents(&Flashlog::open(anew, log, &options(Mode::Synchronous)).unwrap().0) == expected);
    }
}
