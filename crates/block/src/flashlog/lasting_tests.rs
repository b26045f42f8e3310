//! Main alone, and logs that come back: whatever fails, what was answered is there, and what a log that is back says can be relied on.
use super::staging::Backup;
use super::tests::{Unplugged, block, get, names, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

pub(super) const BLOCKS: u64 = 512;

fn stop() -> Policy {
    "log=stop".parse().unwrap()
}

pub(super) fn alone() -> Policy {
    "log=alone".parse().unwrap()
}

pub(super) struct Devices {
    pub(super) main: Arc<MemoryDevice>,
    pub(super) log: Arc<MemoryDevice>,
    pub(super) backup: Arc<MemoryDevice>,
    /// What each block was written with last.
    numbers: Mutex<Vec<u64>>,
}

impl Devices {
    /// A set with something on it, and a backup that lacks a part of that.
    pub(super) fn new(mode: Mode) -> (Devices, Flashlog) {
        let devices = Devices {
            main: Arc::new(MemoryDevice::new(BLOCKS + 256).named("main")),
            log: Arc::new(MemoryDevice::new(256 * 6).named("log")),
            backup: Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)).named("backup")),
            numbers: Mutex::new((0..BLOCKS).map(|at| at + 1).collect()),
        };
        for at in 0..BLOCKS {
            put(&*devices.main, at, at + 1).unwrap();
        }
        create(devices.main.clone(), devices.log.clone(), &names(1)).unwrap();
        let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(mode)).unwrap();
        set.create_backup(devices.backup.clone(), Uuid([60; 16])).unwrap();
        set.backup(devices.backup.clone()).unwrap();
        devices.write_some(&set, 10_000, 40);
        set.flush().unwrap();
        (devices, set)
    }

    /// Writes, of which each is answered.
    pub(super) fn write_some(&self, device: &dyn Device, number: u64, count: u64) {
        for number in number..number + count {
            let at = number * 37 % 300;
            put(device, at, number).unwrap();
            self.numbers.lock().unwrap()[at as usize] = number;
            if number.is_multiple_of(7) {
                device.flush().unwrap();
            }
        }
    }

    pub(super) fn check(&self, device: &dyn Device, what: &str) {
        for (at, number) in (0..).zip(self.numbers.lock().unwrap().iter()) {
            assert!(get(device, at) == block(*number), "{what}: block {at} has not {number}");
        }
    }

    /// That main can be lost: the backup and the log have everything.
    pub(super) fn check_without_main(&self, mode: Mode, what: &str) {
        let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), Arc::new((*self.log).clone()));
        rebuild(Arc::new((*self.backup).clone()), log.clone(), main.clone(), Uuid([71; 16])).unwrap();
        let (set, _) = Flashlog::open(main, log, &options(mode)).unwrap();
        self.check(&set, what);
    }

    /// That the next backup has everything.
    pub(super) fn check_backup(&self, set: &Flashlog, what: &str) {
        set.backup(self.backup.clone()).unwrap();
        self.check(&*self.backup, what);
    }
}

pub(super) fn is_alone(set: &Lasting) -> bool {
    matches!(set.protection(), Protection::Alone { .. })
}

#[test]
fn a_set_goes_on_without_its_log_and_takes_it_back() {
    for requests in 0..60 {
        let what = format!("the log failed after {requests} requests");
        let (devices, set) = Devices::new(Mode::Synchronous);
        drop(set);
        let failing = Unplugged::after(&devices.log, 1000);
        let set = Flashlog::open(devices.main.clone(), failing.clone(), &options(Mode::Synchronous)).unwrap().0;
        failing.left.store(requests, Ordering::Relaxed);
        let set = Lasting::of(set, Policy::default());
        // In a half of the cases main alone gets nothing but what the log could not take.
        let ends_at_once = requests % 4 < 2;
        for number in 20_000..20_200 {
            devices.write_some(&set, number, 1);
            if ends_at_once && is_alone(&set) {
                break;
            }
        }
        set.flush().unwrap();
        assert!(is_alone(&set), "{what}");
        devices.check(&set, &what);
        devices.check(&*devices.main, &what);
        // As the log was when it failed; or after a while without it, and another start.
        let set = if requests % 2 == 0 {
            set
        } else {
            drop(set);
            let opened = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous));
            assert!(matches!(opened, Err(Error::Alone { .. })), "{what}");
            Lasting::open_alone(devices.main.clone(), &options(Mode::Synchronous), alone(), false).unwrap()
        };
        if !ends_at_once {
            devices.write_some(&set, 30_000, 20);
        }
        let attached = set.attach_log(devices.log.clone()).unwrap();
        assert!(matches!(attached, Attached::Back { blocks, .. } if blocks > 0), "{what}: {attached:?}");
        assert!(matches!(set.protection(), Protection::Protected));
        devices.check(&set, &what);
        devices.write_some(&set, 40_000, 30);
        set.flush().unwrap();
        devices.check(&set, &what);
        devices.check_without_main(Mode::Synchronous, &what);
        devices.check_backup(&set.set().unwrap(), &what);
        drop(set);
        let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous)).unwrap();
        devices.check(&set, &what);
    }
}

#[test]
fn a_log_is_detached_and_attached_in_both_modes() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        let set = Lasting::of(set, Policy::default());
        for round in 0..5 {
            devices.write_some(&set, 20_000 + round * 1000, 50);
            set.detach_log().unwrap();
            assert!(is_alone(&set) && set.detach_log().is_err());
            devices.check(&*devices.main, "detached");
            devices.write_some(&set, 30_000 + round * 1000, 20);
            set.attach_log(devices.log.clone()).unwrap();
            assert!(matches!(set.attach_log(devices.log.clone()), Err(Error::Protection { .. })));
            devices.write_some(&set, 40_000 + round * 1000, 20);
            set.flush().unwrap();
            devices.check_without_main(mode, "attached");
            devices.check_backup(&set.set().unwrap(), "attached");
        }
    }
}

#[test]
fn an_attaching_that_is_cut_off_anywhere_leaves_main_alone_or_the_set_whole() {
    for (is_new, of_main) in [(false, true), (false, false), (true, true), (true, false)] {
        for requests in 0..40 {
            let what = format!("new {is_new}, main {of_main}, cut off after {requests} requests");
            let (devices, set) = Devices::new(Mode::Synchronous);
            let set = Lasting::of(set, alone());
            set.detach_log().unwrap();
            devices.write_some(&set, 20_000, 60);
            set.flush().unwrap();
            drop(set);
            let (main, log) = (Unplugged::after(&devices.main, 1000), Unplugged::after(&devices.log, 1000));
            let failing = if of_main { main.clone() } else { log.clone() };
            let set = Lasting::open_alone(main, &options(Mode::Synchronous), alone(), false).unwrap();
            failing.left.store(requests, Ordering::Relaxed);
            let done = match is_new {
                true => set.attach_new_log(log, Uuid([80; 16])),
                false => set.attach_log(log),
            };
            if done.is_err() && !of_main {
                // The set goes on as before.
                assert!(is_alone(&set), "{what}");
                devices.write_some(&set, 25_000, 5);
            }
            drop(set);
            // What a new start finds.
            let opened = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous));
            let set = match opened {
                Ok((set, _)) => Lasting::of(set, alone()),
                Err(_) => {
                    assert!(done.is_err(), "{what}");
                    let set =
                        Lasting::open_alone(devices.main.clone(), &options(Mode::Synchronous), alone(), false).unwrap();
                    devices.check(&set, &what);
                    devices.write_some(&set, 30_000, 10);
                    match is_new {
                        true => set.attach_new_log(devices.log.clone(), Uuid([81; 16])).unwrap(),
                        false => set.attach_log(devices.log.clone()).unwrap(),
                    };
                    set
                }
            };
            devices.write_some(&set, 40_000, 10);
            set.flush().unwrap();
            devices.check(&set, &what);
            devices.check(&*devices.main, &what);
            match is_new {
                true => {
                    let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
                    assert!(!done.is_full && done.copied_blocks > 0 && done.copied_blocks < 200, "{what}: {done:?}");
                }
                false => devices.check_without_main(Mode::Synchronous, &what),
            }
            devices.check_backup(&set.set().unwrap(), &what);
        }
    }
}

/// What main says durably of a region is less when an attaching has failed than before: that a part of it has changed.
#[test]
fn a_neighbour_that_is_written_when_an_attaching_has_failed_gets_to_the_backup_after_a_power_cut() {
    let mut failed_late = 0;
    for is_new in [false, true] {
        for requests in 0..40 {
            let what = format!("new {is_new}, the log fails after {requests} requests");
            let (devices, set) = Devices::new(Mode::Synchronous);
            let set = Lasting::of(set, alone());
            set.detach_log().unwrap();
            put(&set, 400, 70_000).unwrap();
            let log = Unplugged::after(&devices.log, requests);
            let done = match is_new {
                true => set.attach_new_log(log, Uuid([80; 16])),
                false => set.attach_log(log),
            };
            if done.is_ok() {
                break;
            }
            failed_late += u32::from(requests > 8);
            put(&set, 401, 70_001).unwrap();
            set.flush().unwrap();
            let after_cut = Arc::new(MemoryDevice::clone(&devices.main));
            drop(set);
            let set = Lasting::open_alone(after_cut, &options(Mode::Synchronous), alone(), false).unwrap();
            let new = Arc::new(MemoryDevice::new(256 * 6).named("new log"));
            let attached = set.attach_new_log(new, Uuid([81; 16])).unwrap();
            assert!(matches!(attached, Attached::New { changed_blocks: Some(_) }), "{what}: {attached:?}");
            set.set().unwrap().backup(devices.backup.clone()).unwrap();
            assert!(get(&*devices.backup, 400) == block(70_000), "{what}");
            assert!(get(&*devices.backup, 401) == block(70_001), "{what}: the backup lacks it");
        }
    }
    assert!(failed_late > 0, "no attaching got as far as to say that main has a log");
}

/// A log that is written while it is attached: each of its first writes makes others to the set.
struct Busy<'a> {
    devices: &'a Devices,
    set: &'a Lasting,
    left: AtomicI64,
    others: u64,
}

impl Filter for Busy<'static> {
    fn below(&self) -> &dyn Device {
        &*self.devices.log
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        // Those to the labels are when main stands still.
        let left = if first >= 256 { self.left.fetch_sub(1, Ordering::Relaxed) } else { 0 };
        if left > 0 && is_alone(self.set) {
            self.devices.write_some(self.set, 50_000 + left as u64 * 1000, self.others);
        }
        self.devices.log.write(first, bufs)
    }
}

#[test]
fn a_set_is_written_while_its_log_comes_back() {
    // It is written in two goes: so many writes to the log before main stands still for the rest.
    for writes in 1..5 {
        let (devices, set) = Devices::new(Mode::Synchronous);
        let devices: &'static Devices = Box::leak(Box::new(devices));
        let set: &'static Lasting = Box::leak(Box::new(Lasting::of(set, alone())));
        set.detach_log().unwrap();
        devices.write_some(set, 20_000, 300);
        let busy = Busy { devices, set, left: AtomicI64::new(writes), others: 9 };
        assert!(matches!(set.attach_log(Arc::new(busy)), Ok(Attached::Back { .. })));
        devices.check(set, "written meanwhile");
        set.flush().unwrap();
        devices.check_without_main(Mode::Synchronous, "written meanwhile");
        devices.check_backup(&set.set().unwrap(), "written meanwhile");
    }
}

#[test]
fn what_has_no_room_in_the_log_is_copied_by_the_next_backup() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let set = Lasting::of(set, alone());
    // The log has nearly as much as it has room for.
    devices.write_some(&set, 11_000, 800);
    set.detach_log().unwrap();
    devices.write_some(&set, 20_000, 300);
    let attached = set.attach_log(devices.log.clone()).unwrap();
    assert_eq!(attached, Attached::BackWithMap { blocks: 300, may_be_older: false });
    devices.write_some(&set, 30_000, 20);
    set.flush().unwrap();
    let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
    let refused = rebuild(devices.backup.clone(), devices.log.clone(), main, Uuid([70; 16]));
    assert!(matches!(refused, Err(Error::Gap { .. })), "{refused:?}");
    drop(set);
    let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous)).unwrap();
    let done = set.backup(devices.backup.clone()).unwrap();
    assert_eq!((done.is_full, done.copied_blocks, done.same_blocks), (false, 300, 0));
    devices.check(&*devices.backup, "by regions");
    drop(set);
    devices.check_without_main(Mode::Synchronous, "by regions");
}

/// The backup is as far as the log was when it went, and lacks only what no page tells of.
#[test]
fn what_main_has_written_alone_is_copied_by_a_backup_that_had_everything_before() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        set.backup(devices.backup.clone()).unwrap();
        let devices: &'static Devices = Box::leak(Box::new(devices));
        let set: &'static Lasting = Box::leak(Box::new(Lasting::of(set, alone())));
        set.detach_log().unwrap();
        devices.write_some(set, 20_000, 300);
        // So much is written while the log gets what it lacks that it has no room for all of it.
        let busy = Busy { devices, set, left: AtomicI64::new(1000), others: 300 };
        let attached = set.attach_log(Arc::new(busy)).unwrap();
        assert!(matches!(attached, Attached::BackWithMap { .. }), "{attached:?}");
        let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
        let refused = rebuild(devices.backup.clone(), devices.log.clone(), main, Uuid([70; 16]));
        assert!(matches!(refused, Err(Error::Gap { .. })), "{refused:?}");
        devices.write_some(set, 40_000, 10);
        set.flush().unwrap();
        devices.check_backup(&set.set().unwrap(), "by regions");
        devices.check_without_main(mode, "by regions");
    }
}

#[test]
fn a_main_that_is_nothing_without_its_log_is_refused() {
    let (devices, set) = Devices::new(Mode::Asynchronous);
    drop(set);
    let failing = Unplugged::after(&devices.main, 1000);
    let set = Flashlog::open(failing.clone(), devices.log.clone(), &options(Mode::Asynchronous)).unwrap().0;
    failing.left.store(4, Ordering::Relaxed);
    assert!(set.catch_up().is_err());
    drop(set);
    let refused = Lasting::open_alone(devices.main.clone(), &options(Mode::Asynchronous), alone(), true);
    assert!(matches!(refused.err(), Some(Error::Mixture { .. })));
    let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Asynchronous)).unwrap();
    devices.check(&set, "with the log");
}

#[test]
fn what_a_log_may_have_is_given_up_only_if_that_is_said() {
    let (devices, set) = Devices::new(Mode::Asynchronous);
    drop(set);
    let open = |may_lose| Lasting::open_alone(devices.main.clone(), &options(Mode::Asynchronous), alone(), may_lose);
    assert!(matches!(open(false).err(), Some(Error::PerhapsBehind { .. })));
    // Nothing has changed by that.
    let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Asynchronous)).unwrap();
    devices.check(&set, "with the log");
    let set = Lasting::of(set, alone());
    set.detach_log().unwrap();
    drop(set);
    devices.check(&open(false).unwrap(), "a log that was detached has nothing that main has not");
    let (_, set) = Devices::new(Mode::Asynchronous);
    drop(set);
    assert!(is_alone(&open(true).unwrap()));
}

#[test]
fn a_state_that_is_read_keeps_its_backup_also_when_the_set_has_another_log() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let set = Lasting::of(set, alone());
    let past = set.set().unwrap().past(devices.backup.clone(), At::Now).unwrap();
    set.detach_log().unwrap();
    set.attach_new_log(Arc::new(MemoryDevice::new(2048)), Uuid([80; 16])).unwrap();
    let backup = || set.set().unwrap().backup(devices.backup.clone());
    assert!(matches!(backup(), Err(Error::Busy { .. })));
    drop(past);
    backup().unwrap();
    devices.check(&*devices.backup, "a new copy");
}

#[test]
fn logs_of_others_and_older_ones_are_refused() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let old = Arc::new((*devices.log).clone());
    drop(set);
    let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous)).unwrap();
    let set = Lasting::of(set, alone());
    set.detach_log().unwrap();
    let refused = [
        (old, "older"),
        (devices.main.clone(), "it is the main device"),
        (Arc::new(MemoryDevice::new(2048)), "there is no label"),
    ];
    for (log, why) in refused {
        let error = set.attach_log(log).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let (main, log) = (Arc::new(MemoryDevice::new(2048)), Arc::new(MemoryDevice::new(2048)));
    create(main, log.clone(), &names(30)).unwrap();
    assert!(matches!(set.attach_log(log), Err(Error::OtherSet { .. })));
    let small = Arc::new(MemoryDevice::new(log_blocks_least() - 1));
    assert!(matches!(set.attach_new_log(small, Uuid([80; 16])), Err(Error::TooSmall { .. })));
    // The old one, when the set has another, is nobody's.
    let new = Arc::new(MemoryDevice::new(2048));
    let attached = set.attach_new_log(new, Uuid([80; 16])).unwrap();
    assert!(matches!(attached, Attached::New { changed_blocks: Some(40..300) }), "{attached:?}");
    set.detach_log().unwrap();
    assert!(matches!(set.attach_log(devices.log.clone()), Err(Error::Replaced { role: Role::Log, .. })));
    devices.check(&set, "refused");
}

/// A copy of a device as it is.
fn copy_of(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new((**device).clone())
}

#[test]
fn a_copy_of_a_log_that_was_made_since_the_opening_is_refused_once_it_has_left() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        let set = Lasting::of(set, alone());
        let old = copy_of(&devices.log);
        devices.write_some(&set, 20_000, 30);
        set.flush().unwrap();
        set.detach_log().unwrap();
        assert!(matches!(set.attach_log(old.clone()), Err(Error::Older { .. })));
        // The same when it has failed instead, so that it could not be told anything.
        set.attach_log(devices.log.clone()).unwrap();
        drop(set);
        let failing = Unplugged::after(&devices.log, 1000);
        let (set, _) = Flashlog::open(devices.main.clone(), failing.clone(), &options(mode)).unwrap();
        let set = Lasting::of(set, alone());
        devices.write_some(&set, 30_000, 20);
        set.settle().unwrap();
        let old = copy_of(&devices.log);
        devices.write_some(&set, 31_000, 20);
        set.settle().unwrap();
        failing.left.store(0, Ordering::Relaxed);
        devices.write_some(&set, 32_000, 20);
        assert!(is_alone(&set));
        let error = set.attach_log(old).unwrap_err();
        assert!(matches!(error, Error::MissingPages { .. }), "{error}");
        assert!(is_alone(&set));
        // Also by a main that was opened without it.
        drop(set);
        let set = Lasting::open_alone(devices.main.clone(), &options(mode), alone(), false).unwrap();
        set.attach_log(devices.log.clone()).unwrap();
        devices.check(&set, "attached");
        devices.check_without_main(mode, "attached");
    }
}

#[test]
fn a_copy_that_was_made_since_the_opening_is_refused_once_the_set_was_closed() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        let [old_main, old_log] = [&devices.main, &devices.log].map(copy_of);
        devices.write_some(&set, 20_000, 30);
        set.close().unwrap();
        // It may be used on, and closed again.
        devices.write_some(&set, 30_000, 30);
        let [later_main, later_log] = [&devices.main, &devices.log].map(copy_of);
        set.close().unwrap();
        drop(set);
        let open = |main: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>| {
            Flashlog::open(main.clone(), log.clone(), &options(mode))
        };
        for (main, log) in [(&old_main, &devices.log), (&devices.main, &old_log)] {
            assert!(matches!(open(main, log), Err(Error::Older { .. })));
        }
        for (main, log) in [(&later_main, &devices.log), (&devices.main, &later_log)] {
            assert!(matches!(open(main, log), Err(Error::Older { .. })));
        }
        let (set, opened) = open(&devices.main, &devices.log).unwrap();
        assert_eq!(opened.pages, 0);
        devices.check(&set, "opened");
        devices.check_without_main(mode, "opened");
        devices.check_backup(&set, "opened");
    }
}

#[test]
fn a_device_that_fails_at_a_closing_takes_nothing_with_it() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for requests in 0..30 {
            let what = format!("{mode:?}, after {requests} requests");
            let (devices, set) = Devices::new(mode);
            drop(set);
            let main = Unplugged::after(&devices.main, 1000);
            let log = Unplugged::after(&devices.log, 1000);
            let (set, _) = Flashlog::open(main.clone(), log.clone(), &options(mode)).unwrap();
            devices.write_some(&set, 20_000, 30);
            set.flush().unwrap();
            // One of them fails after so many requests.
            let counted = if requests % 2 == 0 { &main } else { &log };
            counted.left.store(requests / 2, Ordering::Relaxed);
            let closed = set.close();
            drop(set);
            match Flashlog::open(devices.main.clone(), devices.log.clone(), &options(mode)) {
                Ok((set, _)) => devices.check(&set, &what),
                Err(Error::Alone { .. }) => {
                    let set = Lasting::open_alone(devices.main.clone(), &options(mode), alone(), false).unwrap();
                    set.attach_log(devices.log.clone()).unwrap();
                    devices.check(&set, &what);
                }
                Err(error) => panic!("{what}, closed {closed:?}: {error}"),
            }
            devices.check_without_main(mode, &what);
        }
    }
}

#[test]
fn a_policy_may_be_to_stop() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    let failing = Unplugged::after(&devices.log, 1000);
    let set = Flashlog::open(devices.main.clone(), failing.clone(), &options(Mode::Synchronous)).unwrap().0;
    let set = Lasting::of(set, "sync.log=read-only".parse().unwrap());
    failing.left.store(3, Ordering::Relaxed);
    put(&set, 3, 1).unwrap();
    let failed = (0..100).find(|number| put(&set, *number, 5).is_err() || set.flush().is_err());
    assert!(failed.is_some() && matches!(set.protection(), Protection::Stopped { .. }));
    assert!(matches!(put(&set, 3, 2), Err(crate::Error::Latched { .. })));
    let mut bytes = vec![0; BLOCK_SIZE];
    set.read(200, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    drop(set);
    // Whoever goes on after all opens main alone.
    let set = Lasting::open_alone(devices.main.clone(), &options(Mode::Synchronous), alone(), false).unwrap();
    set.attach_log(devices.log.clone()).unwrap();
}

/// Ends the threads, also when a test fails: the scope of them waits for them.
pub(super) struct Ends<'a>(pub(super) &'a Lasting);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end_main();
    }
}

#[test]
fn threads_write_while_the_log_comes_and_goes() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        // A policy is for failures: a log that is detached has none.
        let set = Lasting::of(set, stop());
        std::thread::scope(|scope| {
            scope.spawn(|| set.serve_main());
            scope.spawn(|| set.serve_reads());
            // Also if this fails: the server is waited for.
            let _ends = Ends(&set);
            let writers: Vec<_> = (0..3u64)
                .map(|thread| {
                    let (set, devices) = (&set, &devices);
                    scope.spawn(move || {
                        for number in 0..1500 {
                            let at = thread * 100 + number * 13 % 100;
                            put(set, at, thread * 100_000 + number).unwrap();
                            devices.numbers.lock().unwrap()[at as usize] = thread * 100_000 + number;
                            if number % 50 == thread {
                                set.flush().unwrap();
                            }
                            assert!(get(set, at) == block(thread * 100_000 + number), "{mode:?} {thread} {number}");
                        }
                    })
                })
                .collect();
            for _ in 0..5 {
                set.detach_log().unwrap();
                set.attach_log(devices.log.clone()).unwrap();
            }
            for writer in writers {
                writer.join().unwrap();
            }
        });
        set.flush().unwrap();
        devices.check(&set, "threads");
        let log = set.set().unwrap();
        if devices.log_reaches_back() {
            devices.check_without_main(mode, "threads");
        }
        devices.check_backup(&log, "threads");
    }
}

impl Devices {
    /// Whether the log was never full.
    fn log_reaches_back(&self) -> bool {
        let (log, main) = (Arc::new((*self.log).clone()), Arc::new(MemoryDevice::new(BLOCKS + 256)));
        match rebuild(Arc::new((*self.backup).clone()), log, main, Uuid([72; 16])) {
            Ok(_) => true,
            Err(Error::Gap { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_backup_never_has_a_part_of_what_a_log_got_when_it_came_back() {
    let (set, device) = super::backup_tests::Set::new();
    drop(device);
    // So few that the pages of one attaching are more than one step.
    let options = Options { index_blocks: 20, ..options(Mode::Synchronous) };
    let (device, _) = Flashlog::open(set.main.clone(), set.log.clone(), &options).unwrap();
    device.backup(set.backup.clone()).unwrap();
    let lasting = Lasting::of(device, alone());
    let old = super::backup_tests::contents(&*set.backup);
    lasting.detach_log().unwrap();
    for at in (0..600).step_by(2) {
        put(&lasting, at, 5000 + at).unwrap();
    }
    assert!(matches!(lasting.attach_log(set.log.clone()).unwrap(), Attached::Back { blocks, .. } if blocks > 200));
    let new = super::backup_tests::contents(&lasting);
    for requests in 0.. {
        let backup = Arc::new((*set.backup).clone());
        let done = lasting.set().unwrap().backup(Unplugged::after(&backup, requests));
        finish_backup(backup.clone()).unwrap();
        let found = super::backup_tests::contents(&*backup);
        assert!(found == old || found == new, "cut off at request {requests}");
        if done.is_ok() {
            assert!(found == new && requests > 5);
            break;
        }
    }
}
