//! Data of the log that is lost while main does not have it.
use super::backup_tests::{Set, contents};
use super::lasting_tests::alone;
use super::tests::{block, get, open, options, put, spoil};
use super::*;
use crate::nbd::{Extent, Extents, HOLE, ZERO};
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Read};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the log's data begins.
pub(super) const DATA: u64 = 3 * 256;

fn error_at(device: &dyn Device, at: u64) -> Option<crate::Error> {
    let mut bytes = vec![0; BLOCK_SIZE];
    device.read(at, &mut [IoSliceMut::new(&mut bytes)]).err()
}

pub(super) fn is_damaged(device: &dyn Device, at: u64) -> bool {
    matches!(error_at(device, at), Some(crate::Error::Damaged { .. }))
}

/// Gives where that was: spoiled once more, it is there again.
pub(super) fn lose(log: &MemoryDevice, number: u64) -> u64 {
    let at = (DATA..log.blocks()).find(|at| get(log, *at) == block(number)).unwrap();
    spoil(log, at);
    at
}

/// A set whose log alone has blocks 0 to 39; with them on its backup, or without.
pub(super) fn behind(is_backed_up: bool, is_opened: bool) -> (Set, Flashlog) {
    let (set, mut device) = Set::new();
    for at in 0..40 {
        put(&device, at, 5000 + at).unwrap();
    }
    device.flush().unwrap();
    if is_backed_up {
        device.backup(set.backup.clone()).unwrap();
    }
    if is_opened {
        drop(device);
        device = set.reopen();
    }
    assert!(get(&*set.main, 3) != block(5003));
    (set, device)
}

#[test]
fn a_scrub_takes_what_the_backup_has_exactly() {
    for is_opened in [false, true] {
        let (set, device) = behind(true, is_opened);
        let expected = contents(&device);
        for at in [3, 17, 18, 19] {
            lose(&set.log, 5000 + at);
        }
        assert!(!is_opened || is_damaged(&device, 17));
        let scrubbed = device.scrub(set.backup.clone()).unwrap();
        let only =
            Scrubbed { blocks: super::backup_tests::BLOCKS, log_repaired: vec![3, 17, 18, 19], ..Scrubbed::default() };
        assert_eq!(scrubbed, only);
        let status = device.status();
        assert!(status.damage == Damage::default() && status.log_damage.is_none() && status.failure.is_none());
        assert!(contents(&device) == expected && contents(&*set.main)[..expected.len()] == expected);
    }
}

#[test]
fn what_nobody_has_fails_until_it_is_written_and_everything_else_goes_on() {
    for with_backup in [true, false] {
        for is_opened in [false, true] {
            let (set, device) = behind(false, true);
            lose(&set.log, 5017);
            device.seal().unwrap();
            // As it is in use, or as it is opened.
            let device = if is_opened {
                drop(device);
                set.reopen()
            } else {
                device
            };
            let scrub = |device: &Flashlog| match with_backup {
                true => device.scrub(set.backup.clone()).unwrap(),
                false => device.scrub_with_log().unwrap(),
            };
            let scrubbed = scrub(&device);
            assert_eq!((scrubbed.lost.clone(), scrubbed.main_repaired.len()), (vec![17], 0));
            let main = Bad { blocks: 1, first: 17 };
            assert_eq!((device.status().damage.main, device.status().behind_blocks), (main, 0));
            let check = |device: &Flashlog| {
                assert!(is_damaged(device, 17) && (0..40).all(|at| at == 17 || get(device, at) == block(5000 + at)));
                let mut bytes = vec![0; BLOCK_SIZE];
                let mut bufs = [IoSliceMut::new(&mut bytes)];
                assert!(device.read_batch(&mut [Read::new(17, &mut bufs)]).is_err());
            };
            check(&device);
            put(&device, 18, 5018).unwrap();
            device.settle().unwrap();
            // Also after openings.
            drop(device);
            for mode in [Mode::Asynchronous, Mode::Synchronous, Mode::Asynchronous] {
                let (device, _) = open(&set.main, &set.log, mode).unwrap();
                check(&device);
                assert_eq!(device.status().damage.main, main);
                put(&device, 18, 5018).unwrap();
                device.settle().unwrap();
            }
            let device = set.reopen();
            let refused = device.backup(set.backup.clone());
            assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { .. }))), "{refused:?}");
            put(&device, 17, 1).unwrap();
            device.backup(set.backup.clone()).unwrap();
            assert!(contents(&device) == contents(&*set.backup));
            assert!(scrub(&device).is_good());
            assert!(!with_backup || device.status().damage == Damage::default());
        }
    }
}

#[test]
fn main_goes_on_without_what_is_lost_when_a_bound_is_reached() {
    let (set, device) = behind(false, true);
    lose(&set.log, 5017);
    // The log is full several times.
    for number in 0..6000 {
        put(&device, 100 + number % 50, number).unwrap();
    }
    device.flush().unwrap();
    assert!(is_damaged(&device, 17) && get(&device, 16) == block(5016) && get(&device, 149) == block(5999));
    assert_eq!(device.status().damage.main, Bad { blocks: 1, first: 17 });
    device.settle().unwrap();
    drop(device);
    // It is known that there is such a block, though not which, once the log has let go of it.
    assert_eq!(set.reopen().status().damage.main, Bad { blocks: 1, first: 17 });
}

#[test]
fn in_synchronous_mode_a_set_is_not_opened_before_main_has_it() {
    let (set, device) = behind(true, true);
    drop(device);
    lose(&set.log, 5017);
    let before = contents(&*set.backup);
    let refused = open(&set.main, &set.log, Mode::Synchronous).map(|_| ());
    assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { .. }))), "{refused:?}");
    let device = set.reopen();
    assert_eq!(device.scrub(set.backup.clone()).unwrap().log_repaired, [17]);
    drop(device);
    let (device, _) = open(&set.main, &set.log, Mode::Synchronous).unwrap();
    assert!(contents(&device) == before);
}

#[test]
fn the_log_keeps_what_tells_which_blocks_are_lost_until_they_are_not() {
    let (set, device) = behind(false, true);
    drop(device);
    // Memory has nothing of what is in the log.
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    let open = || Flashlog::open(set.main.clone(), set.log.clone(), &options).unwrap().0;
    let mut device = open();
    device.backup(set.backup.clone()).unwrap();
    let expected = contents(&*set.backup);
    lose(&set.log, 5017);
    // The backup needs nothing of the log, and main gets everything else.
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    for _ in 0..2 {
        device.settle().unwrap();
        drop(device);
        device = open();
        assert!(is_damaged(&device, 17) && get(&device, 18) == block(5018));
        assert!(device.status().log_blocks.0 >= 40);
    }
    assert_eq!(device.scrub(set.backup.clone()).unwrap().main_repaired, [17]);
    assert!(contents(&device) == expected && device.status().damage == Damage::default());
    put(&device, 18, 5018).unwrap();
    device.backup(set.backup.clone()).unwrap();
    device.settle().unwrap();
    assert_eq!(device.status().log_blocks.0, 0);
}

/// A set that goes on without block 17, whose newest version the log has lost: main has the one before.
pub(super) fn without_one() -> (Set, Flashlog) {
    let (set, device) = behind(false, true);
    lose(&set.log, 5017);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    assert!(get(&*set.main, 17) == block(18));
    (set, device)
}

fn check_lost(device: &dyn Device, what: &str) {
    let mut bytes = vec![0; BLOCK_SIZE];
    let mut bufs = [IoSliceMut::new(&mut bytes)];
    assert!(is_damaged(device, 17) && device.read_batch(&mut [Read::new(17, &mut bufs)]).is_err(), "{what}");
    assert!(get(device, 16) == block(5016) && get(device, 18) == block(5018), "{what}");
}

#[test]
fn main_alone_shows_no_older_version_of_what_is_lost_nor_does_any_log_get_it() {
    for (is_new, is_closed) in [(false, false), (false, true), (true, false)] {
        let what = format!("a new log: {is_new}, closed in between: {is_closed}");
        let (set, device) = without_one();
        assert_eq!(device.lost_blocks(), Bad { blocks: 1, first: 17 });
        let mut lasting = Lasting::of(device, alone());
        lasting.detach_log().unwrap();
        check_lost(&lasting, &what);
        put(&lasting, 20, 1).unwrap();
        lasting.settle().unwrap();
        if is_closed {
            drop(lasting);
            lasting = Lasting::open_alone(set.main.clone(), &options(Mode::Asynchronous), alone(), false).unwrap();
        }
        let new = Arc::new(MemoryDevice::new(set.log.blocks()).named("new"));
        match is_new {
            true => lasting.attach_new_log(new, Uuid([80; 16])).unwrap(),
            false => lasting.attach_log(set.log.clone()).unwrap(),
        };
        check_lost(&lasting, &what);
        assert_eq!(lasting.status().0.damage.main, Bad { blocks: 1, first: 17 });
        let refused = lasting.set().unwrap().backup(set.backup.clone());
        assert!(matches!(refused, Err(Error::Device(crate::Error::Damaged { .. }))), "{what}: {refused:?}");
        put(&lasting, 17, 7).unwrap();
        lasting.set().unwrap().backup(set.backup.clone()).unwrap();
        assert!(contents(&lasting) == contents(&*set.backup) && get(&lasting, 17) == block(7), "{what}");
    }
}

#[test]
fn main_alone_does_not_say_that_what_is_lost_is_zeros() {
    let (set, device) = without_one();
    let lasting = Lasting::of(device, alone());
    lasting.detach_log().unwrap();
    // As on a main where it was never written before. What the device is not asked for, an NBD server does not read.
    set.main.discard(10, 20).unwrap();
    let of = |first, most| lasting.allocation(first, most);
    let hole = |blocks| Extent { blocks, flags: HOLE | ZERO };
    assert_eq!([of(10, 20), of(17, 13), of(18, 12)], [hole(7), Extent { blocks: 1, flags: 0 }, hole(12)]);
    assert_eq!([10, 17, 18].map(|first| lasting.zeros_ahead(first, 12)), [7, 0, 12]);
    put(&lasting, 17, 7).unwrap();
    assert_eq!(of(17, 13), Extent { blocks: 1, flags: 0 });
    lasting.zero(17, 1, false).unwrap();
    assert_eq!(of(10, 20), hole(20));
}

#[test]
fn what_is_lost_is_well_when_main_alone_has_written_it() {
    for is_zeros in [false, true] {
        let (set, device) = without_one();
        let lasting = Lasting::of(device, alone());
        lasting.detach_log().unwrap();
        match is_zeros {
            true => assert!(lasting.zero(17, 1, false).unwrap()),
            false => put(&lasting, 17, 7).unwrap(),
        }
        let expected = contents(&lasting);
        lasting.attach_log(set.log.clone()).unwrap();
        assert!(contents(&lasting) == expected);
        lasting.set().unwrap().backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == expected);
    }
}

/// A backup device: when it is first written, so is a block of the set, and not durably.
struct Rewriting {
    below: Arc<MemoryDevice>,
    set: &'static Flashlog,
    is_done: AtomicBool,
}

impl Filter for Rewriting {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if !self.is_done.swap(true, Ordering::Relaxed) {
            put(self.set, 17, 7).unwrap();
        }
        self.below.write(first, bufs)
    }
}

#[test]
fn the_log_lets_go_of_what_tells_it_only_when_what_was_written_anew_is_durable() {
    let (set, device) = behind(false, true);
    drop(device);
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    let open = |main, log| Flashlog::open(main, log, &options).unwrap().0;
    let device: &'static Flashlog = Box::leak(Box::new(open(set.main.clone(), set.log.clone())));
    device.backup(set.backup.clone()).unwrap();
    lose(&set.log, 5017);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    put(device, 18, 5018).unwrap();
    let backup = Rewriting { below: set.backup.clone(), set: device, is_done: AtomicBool::new(false) };
    // Its end says in the log's label what the log keeps from then on.
    device.backup(Arc::new(backup)).unwrap();
    assert!(get(device, 17) == block(7));
    let after_cut = || open(Arc::new((*set.main).clone()), Arc::new((*set.log).clone()));
    let found = after_cut();
    assert!(is_damaged(&found, 17), "main's older version is there without a word");
    device.settle().unwrap();
    assert!(get(&after_cut(), 17) == block(7));
    device.backup(set.backup.clone()).unwrap();
    device.settle().unwrap();
    assert_eq!(device.status().log_blocks.0, 0);
}

/// A set of which a block is lost. The backup has a version of it that main has not.
fn with_one_lost() -> (Set, Flashlog) {
    let (set, device) = behind(false, true);
    put(&device, 17, 6017).unwrap();
    device.flush().unwrap();
    device.backup(set.backup.clone()).unwrap();
    drop(device);
    // What memory has of the log is gone.
    let device = set.reopen();
    put(&device, 17, 7017).unwrap();
    device.flush().unwrap();
    device.seal().unwrap();
    drop(device);
    let device = set.reopen();
    lose(&set.log, 7017);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    assert!(get(&*set.main, 17) == block(18) && get(&*set.backup, 17) == block(6017));
    (set, device)
}

/// The same, opened again when the log has let go of what told which block it is.
pub(super) fn with_one_forgotten() -> (Set, Flashlog) {
    let (set, device) = with_one_lost();
    let device = forget(&set, device);
    (set, device)
}

fn forget(set: &Set, device: Flashlog) -> Flashlog {
    for number in 0..6000 {
        put(&device, 100 + number % 50, number).unwrap();
    }
    device.settle().unwrap();
    drop(device);
    let device = set.reopen();
    assert!(!is_damaged(&device, 17) && device.status().damage.main == Bad { blocks: 1, first: 17 });
    device
}

#[test]
fn a_backup_gets_no_older_version_when_nobody_knows_any_more_what_is_lost() {
    let (set, device) = with_one_forgotten();
    // By regions, and when all is compared.
    for is_all in [false, true] {
        if is_all {
            device.backup(other_backup(&set, &device)).unwrap();
            assert!(device.status().damage.main.blocks > 0, "a copy of main tells nothing of it");
        }
        let refused = device.backup(set.backup.clone());
        assert!(matches!(refused, Err(Error::Forgotten { blocks: 1, first: 17, .. })), "{refused:?}");
        finish_backup(set.backup.clone()).unwrap();
        assert!(get(&*set.backup, 17) == block(6017));
    }
    // Unless that is accepted.
    device.accept_forgotten();
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

/// Another backup, with nothing on it.
fn other_backup(set: &Set, device: &Flashlog) -> Arc<MemoryDevice> {
    let other = Arc::new(MemoryDevice::new(set.backup.blocks()).named("other"));
    device.create_backup(other.clone(), Uuid([61; 16])).unwrap();
    other
}

/// The same set, and another backup of it, which has main's older version.
fn with_copy_of_forgotten() -> (Set, Flashlog, Arc<MemoryDevice>) {
    let (set, device) = with_one_forgotten();
    let other = other_backup(&set, &device);
    device.backup(other.clone()).unwrap();
    assert!(get(&*other, 17) == block(18));
    (set, device, other)
}

#[test]
fn a_copy_of_what_is_forgotten_settles_nothing() {
    let (set, device, other) = with_copy_of_forgotten();
    let is_unsettled = |device: &Flashlog| {
        device.status().forgets_damage
            && matches!(device.backup(set.backup.clone()), Err(Error::Forgotten { .. }))
            && get(&*set.backup, 17) == block(6017)
    };
    // What else goes bad on main it makes good.
    spoil(&set.main, 200);
    assert_eq!(device.scrub(other.clone()).unwrap().main_repaired, [200]);
    assert!(is_unsettled(&device));
    // Another opening knows no more of it.
    drop(device);
    let device = set.reopen();
    put(&device, 30, 1).unwrap();
    device.backup(other.clone()).unwrap();
    assert!(device.scrub(other.clone()).unwrap().is_good() && is_unsettled(&device));
    // If there is no other, it is for the user to say that it will do, each time.
    device.accept_forgotten();
    let refused = device.scrub(other.clone());
    assert!(matches!(refused, Err(Error::OfForgotten { blocks: 1, first: 17, .. })), "{refused:?}");
    device.forget_again();
    assert!(is_unsettled(&device));
    device.accept_forgotten();
    device.backup(other.clone()).unwrap();
    device.forget_again();
    assert!(device.scrub(other.clone()).unwrap().is_good());
    assert_eq!((device.status().damage, device.status().forgets_damage), (Damage::default(), false));
}

#[test]
fn main_made_anew_from_a_copy_of_what_is_forgotten_tells_of_it() {
    let (set, device, other) = with_copy_of_forgotten();
    device.close().unwrap();
    drop(device);
    let main = Arc::new(MemoryDevice::new(set.main.blocks()).named("new"));
    rebuild(other, set.log.clone(), main.clone(), Uuid([62; 16])).unwrap();
    let (device, _) = open(&main, &set.log, Mode::Asynchronous).unwrap();
    assert_eq!(device.status().damage.main, Bad { blocks: 1, first: 17 });
    let refused = device.backup(set.backup.clone());
    assert!(matches!(refused, Err(Error::Forgotten { .. })), "{refused:?}");
    assert!(get(&*set.backup, 17) == block(6017));
}

#[test]
fn a_copy_that_was_begun_before_anything_was_forgotten_says_so_as_well() {
    let (set, device) = with_one_lost();
    let other = other_backup(&set, &device);
    // It ends at the block that nobody has.
    assert!(device.backup(other.clone()).is_err());
    let device = forget(&set, device);
    device.backup(other.clone()).unwrap();
    assert!(get(&*other, 17) == block(18));
    assert!(device.scrub(other).unwrap().is_good() && device.status().forgets_damage);
}

#[test]
fn what_the_log_still_tells_is_not_forgotten() {
    let (set, device) = without_one();
    device.settle().unwrap();
    drop(device);
    let device = set.reopen();
    put(&device, 17, 7).unwrap();
    // So that the backup must copy from main.
    for number in 0..6000 {
        put(&device, 100 + number % 50, number).unwrap();
    }
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn the_status_tells_when_the_log_lets_go_of_what_tells_which_blocks_are_lost() {
    for is_damaged_page in [false, true] {
        let (set, device) = without_one();
        put(&device, 17, 5).unwrap();
        device.backup(set.backup.clone()).unwrap();
        assert!(device.scrub(set.backup.clone()).unwrap().is_good());
        for at in 0..40 {
            put(&device, at, 5000 + at).unwrap();
        }
        device.flush().unwrap();
        device.seal().unwrap();
        drop(device);
        let device = set.reopen();
        lose(&set.log, 5017);
        assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
        assert!(!device.status().forgets_damage);
        match is_damaged_page {
            true => {
                let page = (256..DATA).rfind(|at| get(&*set.log, *at).iter().any(|byte| *byte != 0)).unwrap();
                spoil(&set.log, page - 1);
                device.backup(set.backup.clone()).unwrap_err();
            }
            false => (0..6000).for_each(|number| put(&device, 100 + number % 50, number).unwrap()),
        }
        assert!(is_damaged(&device, 17) && device.status().forgets_damage, "a damaged page: {is_damaged_page}");
        drop(device);
        assert!(set.reopen().status().forgets_damage);
    }
}

#[test]
fn a_damaged_page_behind_them_does_not_bring_older_versions_back() {
    for in_front in [false, true] {
        let (set, device) = without_one();
        // Something behind it, which main has.
        (50..90).for_each(|at| put(&device, at, at).unwrap());
        device.settle().unwrap();
        drop(device);
        let pages: Vec<u64> = (256..DATA).filter(|at| get(&*set.log, *at).iter().any(|byte| *byte != 0)).collect();
        spoil(&set.log, pages[if in_front { 0 } else { pages.len() - 3 }]);
        let device = set.reopen();
        let status = device.status();
        assert!(matches!(status.log_damage, Some(Error::Damaged { .. })), "{:?}", status.log_damage);
        assert_eq!((status.damage.main, status.forgets_damage), (Bad { blocks: 1, first: 17 }, in_front));
        // What is in front of the page is known. Of the rest it is said that it is forgotten.
        assert_eq!(is_damaged(&device, 17), !in_front);
        assert!(device.backup(set.backup.clone()).is_err());
        assert!(get(&*set.backup, 17) == block(18));
        put(&device, 17, 7).unwrap();
        if in_front {
            device.accept_forgotten();
        }
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device));
    }
}
