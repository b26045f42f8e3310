//! New logs for a main that is alone: the next backup gets what it lacks, and no more if it is known what that is.
use super::backup_tests::Set;
use super::lasting_tests::{BLOCKS, Devices, alone};
use super::staging::Backup;
use super::tests::{Unplugged, get, names, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::IoSlice;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

fn new_log() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(256 * 6).named("new log"))
}

fn changed(attached: Attached) -> Option<u64> {
    match attached {
        Attached::New { changed_blocks } => changed_blocks,
        other => panic!("{other:?}"),
    }
}

fn bytes(device: &dyn Device, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    device.read(0, &mut [std::io::IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

#[test]
fn with_a_new_log_the_next_backup_copies_what_was_written_since_the_last_one() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for requests in 0..20 {
            let what = format!("{mode:?}, the log failed after {requests} requests");
            let (mut devices, set) = Devices::new(mode);
            drop(set);
            // What the backup lacks is found in the log when the set is opened.
            let log = Unplugged::after(&devices.log, 1000);
            let (set, _) = Flashlog::open(devices.main.clone(), log.clone(), &options(mode)).unwrap();
            let set = Lasting::of(set, alone());
            devices.write_some(&set, 11_000, 20);
            // In asynchronous mode main can go on if it has everything that is in the log.
            set.settle().unwrap();
            match mode {
                Mode::Synchronous => log.left.store(requests, Ordering::Relaxed),
                Mode::Asynchronous => set.detach_log().unwrap(),
            }
            devices.write_some(&set, 12_000, 60);
            set.flush().unwrap();
            assert!(super::lasting_tests::is_alone(&set), "{what}");
            // And main, alone, is opened once more.
            drop(set);
            let set = Lasting::open_alone(devices.main.clone(), &options(mode), alone(), false).unwrap();
            devices.write_some(&set, 13_000, 5);
            devices.log = new_log();
            let lacks = changed(set.attach_new_log(devices.log.clone(), Uuid([80; 16])).unwrap()).unwrap();
            assert!((125..400).contains(&lacks), "{what}: {lacks}");
            devices.write_some(&set, 14_000, 5);
            set.flush().unwrap();
            let status = set.status().0;
            assert!((status.backup, status.changed_blocks) == (Some(Uuid([60; 16])), lacks), "{what}: {status:?}");
            let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
            let refused = rebuild(devices.backup.clone(), devices.log.clone(), main, Uuid([70; 16]));
            assert!(matches!(refused, Err(Error::Replaced { .. })), "{what}: {refused:?}");
            let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
            assert!(!done.is_full && done.copied_blocks <= 130 && done.steps == 1, "{what}: {done:?}");
            assert_eq!(done.copied_blocks + done.same_blocks, lacks, "{what}");
            devices.check(&*devices.backup, &what);
            devices.write_some(&set, 15_000, 5);
            set.flush().unwrap();
            devices.check_without_main(mode, &what);
            let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
            assert_eq!((done.blocks, done.copied_blocks), (5, 0), "{what}");
        }
    }
}

#[test]
fn several_new_logs_without_a_backup_in_between_forget_nothing() {
    let (mut devices, set) = Devices::new(Mode::Synchronous);
    let mut set = Lasting::of(set, alone());
    for round in 0..4 {
        devices.write_some(&set, 11_000 + 100 * round, 7);
        set.detach_log().unwrap();
        devices.write_some(&set, 12_000 + 100 * round, 7);
        devices.log = new_log();
        let lacks = changed(set.attach_new_log(devices.log.clone(), Uuid([80 + round as u8; 16])).unwrap());
        assert!(lacks.is_some_and(|blocks| blocks < BLOCKS), "{lacks:?}");
        if round % 2 == 0 {
            devices.write_some(&set, 13_000 + 100 * round, 700);
            set.flush().unwrap();
            drop(set);
            let mode = options(Mode::Synchronous);
            set = Lasting::of(Flashlog::open(devices.main.clone(), devices.log.clone(), &mode).unwrap().0, alone());
        }
    }
    let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
    assert!(!done.is_full && done.copied_blocks + done.same_blocks < BLOCKS, "{done:?}");
    devices.check(&*devices.backup, "after four logs");
    devices.check_without_main(Mode::Synchronous, "after four logs");
}

#[test]
fn a_log_lost_while_the_set_was_closed_has_the_next_backup_compare_everything() {
    for requests in 0..40 {
        let what = format!("the backup was cut off after {requests} requests");
        let (mut devices, set) = Devices::new(Mode::Synchronous);
        let old = bytes(&*devices.backup, BLOCKS);
        drop(set);
        let set = Lasting::open_alone(devices.main.clone(), &options(Mode::Synchronous), alone(), false).unwrap();
        let old_log = std::mem::replace(&mut devices.log, new_log());
        assert_eq!(changed(set.attach_new_log(devices.log.clone(), Uuid([80; 16])).unwrap()), None);
        devices.write_some(&set, 12_000, 20);
        let before = Arc::new((*devices.backup).clone());
        let cut_off = set.set().unwrap().backup(Unplugged::after(&devices.backup, requests));
        let now = Arc::new((*devices.backup).clone());
        drop(Backup::open(now.clone()).unwrap());
        assert!(
            bytes(&*now, BLOCKS) == old || cut_off.is_ok() || bytes(&*now, BLOCKS) == bytes(&set, BLOCKS),
            "{what}"
        );
        if requests == 2 {
            // What it had goes with the old log as before.
            let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
            rebuild(before, Arc::new((*old_log).clone()), main, Uuid([70; 16])).unwrap();
        }
        let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
        if cut_off.is_err() && bytes(&*now, BLOCKS) == old {
            assert_eq!((done.is_full, done.copied_blocks + done.same_blocks), (false, BLOCKS), "{what}");
            assert_eq!(done.copied_blocks, 60, "{what}");
        }
        devices.check(&*devices.backup, &what);
        devices.check_without_main(Mode::Synchronous, &what);
    }
}

#[test]
fn an_older_copy_of_the_backup_and_one_of_another_main_are_compared() {
    for is_older in [true, false] {
        let (mut devices, set) = Devices::new(Mode::Synchronous);
        let older = Arc::new((*devices.backup).clone());
        set.backup(devices.backup.clone()).unwrap();
        let set = Lasting::of(set, alone());
        set.detach_log().unwrap();
        let log = std::mem::replace(&mut devices.log, new_log());
        changed(set.attach_new_log(devices.log.clone(), Uuid([80; 16])).unwrap()).unwrap();
        devices.write_some(&set, 12_000, 5);
        let backup = if is_older {
            older
        } else {
            // Somebody has made another main of backup and log, and has gone on with that.
            let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
            rebuild(devices.backup.clone(), log.clone(), main.clone(), Uuid([70; 16])).unwrap();
            let (fork, _) = Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap();
            for at in 400..450 {
                put(&fork, at, at * 1000).unwrap();
            }
            fork.backup(devices.backup.clone()).unwrap();
            devices.backup.clone()
        };
        let done = set.set().unwrap().backup(backup.clone()).unwrap();
        assert_eq!(done.copied_blocks + done.same_blocks, BLOCKS, "older {is_older}");
        devices.check(&*backup, "compared");
    }
}

/// A backup whose blocks are not there before a flush, but its checksums are; it fails after so many requests.
struct Lazy {
    backup: Arc<MemoryDevice>,
    blocks: Mutex<Vec<(u64, Vec<u8>)>>,
    left: AtomicI64,
}

impl Lazy {
    fn count(&self) -> Result<(), crate::Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(crate::Error::Unsuitable { device: "lazy".into(), reason: "the power is cut" })
    }
}

impl Filter for Lazy {
    fn below(&self) -> &dyn Device {
        &*self.backup
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.count()?;
        if first >= super::backup_tests::BLOCKS {
            return self.backup.write(first, bufs);
        }
        self.blocks.lock().unwrap().push((first, bufs.iter().flat_map(|buf| buf.iter().copied()).collect()));
        Ok(())
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.count()?;
        for (first, bytes) in self.blocks.lock().unwrap().drain(..) {
            self.backup.write(first, &[IoSlice::new(&bytes)])?;
        }
        Ok(())
    }
}

/// What differs has no room in the staging area, so that it is copied to its place; the checksums there must not be believed afterwards.
fn copy_that_is_cut_off(order: Order, requests: i64) -> bool {
    let (mut set, flashlog) = Set::new();
    drop(flashlog);
    let options = Options { order, ..options(Mode::Synchronous) };
    let lasting = Lasting::open_alone(set.main.clone(), &options, alone(), true).unwrap();
    for at in 0..700 {
        put(&lasting, at, at + 5000).unwrap();
    }
    set.log = Arc::new(MemoryDevice::new(256 * 12));
    lasting.attach_new_log(set.log.clone(), Uuid([80; 16])).unwrap();
    let flashlog = lasting.set().unwrap();
    let lazy = Lazy { backup: set.backup.clone(), blocks: Mutex::default(), left: AtomicI64::new(requests) };
    drop(flashlog.backup(Arc::new(lazy)));
    flashlog.backup(set.backup.clone()).unwrap();
    (0..super::backup_tests::BLOCKS).all(|at| get(&*set.backup, at) == get(&lasting, at))
}

#[test]
fn checksums_of_a_copy_that_was_cut_off_are_not_believed() {
    for requests in 0..60 {
        assert!(copy_that_is_cut_off(Order::Correct, requests), "cut off after {requests} requests");
    }
    let mut planted = (0..60).map(|requests| copy_that_is_cut_off(Order::TrustsSumsOfCopy, requests));
    assert!(planted.any(|is_right| !is_right), "the mistake is not found");
}

#[test]
fn a_set_of_which_nothing_is_dirty_says_that_its_new_log_is_not_backed_up() {
    let (mut devices, set) = Devices::new(Mode::Synchronous);
    set.backup(devices.backup.clone()).unwrap();
    let set = Lasting::of(set, alone());
    set.detach_log().unwrap();
    devices.log = new_log();
    assert_eq!(changed(set.attach_new_log(devices.log.clone(), Uuid([80; 16])).unwrap()), Some(1));
    assert_eq!(set.status().0.changed_blocks, 1);
    let done = set.set().unwrap().backup(devices.backup.clone()).unwrap();
    assert_eq!((done.copied_blocks, done.same_blocks), (0, 0));
    assert_eq!(set.status().0.changed_blocks, 0);
    devices.check_without_main(Mode::Synchronous, "nothing was dirty");
    // A set that has no backup.
    let (main, log) = (Arc::new(MemoryDevice::new(1024)), new_log());
    create(main.clone(), log.clone(), &names(40)).unwrap();
    let set = Lasting::of(Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap().0, alone());
    set.detach_log().unwrap();
    assert_eq!(changed(set.attach_new_log(new_log(), Uuid([80; 16])).unwrap()), None);
}
