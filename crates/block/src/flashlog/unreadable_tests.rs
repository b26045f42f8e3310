//! A block of the log that cannot be read is as one that is damaged: made good from whoever has it, lost, or stepped in front of.
use super::backup_tests::{BLOCKS, Set, contents};
use super::format::GROUP_BLOCKS;
use super::kept_tests::made_anew;
use super::lasting_tests::alone;
use super::lost_tests::{DATA, is_damaged, without_one};
use super::tests::{Unreadable, block, get, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Operation};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// Where the log's pages are.
const META: std::ops::Range<u64> = 256..512;

/// Where the log has what was written with a number.
fn in_log(log: &MemoryDevice, number: u64) -> u64 {
    (DATA..log.blocks()).find(|at| get(log, *at) == block(number)).unwrap()
}

fn copy(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new((**device).clone())
}

/// A set with three flushed writes since its backup, and the states that it had, the first of them the backup's. It was closed, or its end is
/// one of which nothing says that it was durable.
fn with_three(is_closed: bool, mode: Mode) -> (Set, Vec<Vec<u8>>) {
    let (set, device) = Set::in_mode(mode);
    let mut states = vec![contents(&device)];
    for (number, value) in [(1, 500), (2, 600), (1, 700)] {
        put(&device, number, value).unwrap();
        device.flush().unwrap();
        states.push(contents(&device));
    }
    if is_closed {
        device.settle().unwrap();
    }
    drop(device);
    (set, states)
}

/// A set in synchronous mode, all of whose log can be read until it is told otherwise.
fn with_unreadable_log() -> (Set, Arc<Unreadable>, Flashlog) {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    drop(device);
    let log = Unreadable::at(&set.log, u64::MAX);
    let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Synchronous)).unwrap();
    (set, log, device)
}

type Made = Result<(Vec<u8>, Rebuilt), Error>;

/// Main made anew with a log of which a block cannot be read.
fn make(set: &Set, at: u64, drop_later: bool) -> Made {
    let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later, accept_damage: false };
    let (main, log) = (Arc::new(MemoryDevice::new(set.main.blocks())), Unreadable::at(&copy(&set.log), at));
    let rebuilt = rebuild_at(copy(&set.backup), log.clone(), main.clone(), &how)?;
    let (device, _) = Flashlog::open(main, log, &options(Mode::Synchronous))?;
    Ok((contents(&device), rebuilt))
}

#[test]
fn a_main_is_made_anew_of_what_is_in_front_of_data_that_cannot_be_read_if_that_will_do() {
    let (set, states) = with_three(true, Mode::Asynchronous);
    assert!(make(&set, in_log(&set.log, 500), false).unwrap().0 == states[3], "nobody needs it");
    for (number, left) in [(600, 1), (700, 2)] {
        let at = in_log(&set.log, number);
        let refused = make(&set, at, false).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Damaged { block, .. } if block == at), "{refused}");
        let words = refused.to_string();
        assert!(words.contains("os error 5") && words.contains("of the set"), "{words}");
        let (made, rebuilt) = make(&set, at, true).unwrap();
        assert!(made == states[left] && rebuilt.dropped.is_damaged, "{number}");
    }
}

#[test]
fn a_main_is_made_anew_of_what_is_in_front_of_a_page_that_cannot_be_read_if_that_will_do() {
    let (set, states) = with_three(true, Mode::Asynchronous);
    let mut refused = 0;
    for at in META.filter(|at| get(&*set.log, *at) != [0; BLOCK_SIZE]) {
        match make(&set, at, false) {
            Ok((made, _)) => assert!(made == states[3], "the page at {at} is the backup's"),
            Err(error) => {
                refused += 1;
                assert!(
                    matches!(error, Error::Damaged { block, .. } | Error::MissingPages { block, .. } if block == at),
                    "{error}"
                );
                let (made, rebuilt) = make(&set, at, true).unwrap();
                assert!(states[..3].contains(&made) && rebuilt.dropped.is_damaged, "the page at {at}");
            }
        }
    }
    assert!(refused >= 3);
}

/// A set whose server was killed after two flushes. The second one had a block of the first one anew, and one of its own. With what the set had
/// after each, and where in the log the page of the second one is.
fn killed(mode: Mode) -> (Set, [Vec<u8>; 2], u64) {
    let (set, device) = Set::in_mode(mode);
    for (number, value) in [(2, 500), (1, 600)] {
        put(&device, number, value).unwrap();
    }
    device.flush().unwrap();
    let before = contents(&device);
    let pages: Vec<Vec<u8>> = META.map(|at| get(&*set.log, at)).collect();
    for (number, value) in [(1, 700), (9, 800)] {
        put(&device, number, value).unwrap();
    }
    device.flush().unwrap();
    let states = [before, contents(&device)];
    drop(device);
    let page = META.zip(pages).find(|(at, before)| get(&*set.log, *at) != *before).unwrap().0;
    (set, states, page)
}

#[test]
fn a_page_at_the_end_that_cannot_be_read_is_no_power_cut_for_a_main_that_may_lack_it() {
    let (set, states, page) = killed(Mode::Asynchronous);
    for at in [page, in_log(&set.log, 700)] {
        let log = Unreadable::at(&copy(&set.log), at);
        let refused = Flashlog::open(copy(&set.main), log.clone(), &options(Mode::Asynchronous)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Damaged { block, .. } if block == at), "{refused}");
        assert!(refused.to_string().contains("os error 5"), "{refused}");
        // Nor for whoever makes main anew, or looks at the last state; until that is given up.
        let refused = make(&set, at, false).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Damaged { block, .. } if block == at), "{refused}");
        let past = Past::open(copy(&set.backup), log.clone(), At::Now).map(drop).unwrap_err();
        assert!(past.to_string().contains("os error 5"), "{past}");
        let (made, rebuilt) = make(&set, at, true).unwrap();
        assert!(made == states[0] && rebuilt.dropped.is_damaged);
        // Without a backup: the set goes on without it, and tells the next backup of everything.
        let (main, backup) = (copy(&set.main), copy(&set.backup));
        let how = Options { drop_later: true, ..options(Mode::Asynchronous) };
        let (device, opened) = Flashlog::open(main.clone(), log.clone(), &how).unwrap();
        assert!(contents(&device) == states[0] && opened.is_end_unread);
        assert_eq!(device.status().changed_blocks, BLOCKS, "nobody knows what the backup lacks");
        put(&device, 3, 900).unwrap();
        device.flush().unwrap();
        let now = contents(&device);
        drop(device);
        let (device, _) = Flashlog::open(main, log, &options(Mode::Asynchronous)).unwrap();
        device.backup(backup.clone()).unwrap();
        assert!(contents(&device) == now && contents(&*backup) == now);
    }
}

#[test]
fn what_main_has_and_the_log_does_not_tell_any_more_is_neither_lost_nor_missing_on_the_next_backup() {
    let (set, states, page) = killed(Mode::Synchronous);
    // Main is as if a later page, which is lost as well, had changed the block: it cannot make the log's good.
    let (ahead, _, _) = killed(Mode::Synchronous);
    put(&*ahead.main, 1, 701).unwrap();
    let mut latest = states[1].clone();
    latest[BLOCK_SIZE..2 * BLOCK_SIZE].copy_from_slice(&block(701));
    for (set, at, expected) in [(&set, page, &states[1]), (&ahead, in_log(&ahead.log, 700), &latest)] {
        for mode in [Mode::Synchronous, Mode::Asynchronous] {
            let [main, below, backup] = [&set.main, &set.log, &set.backup].map(copy);
            let log = Unreadable::at(&below, at);
            let (device, _) = Flashlog::open(main.clone(), log.clone(), &options(mode)).unwrap();
            assert!(contents(&device) == *expected, "{mode:?}, block {at}");
            assert_eq!(device.status().changed_blocks, BLOCKS, "{mode:?}, block {at}");
            put(&device, 3, 900).unwrap();
            device.flush().unwrap();
            drop(device);
            let (device, _) = Flashlog::open(main.clone(), log, &options(mode)).unwrap();
            device.backup(backup.clone()).unwrap();
            let now = contents(&device);
            assert!(contents(&*backup) == now && device.status().changed_blocks == 0, "{mode:?}, block {at}");
            put(&device, 4, 901).unwrap();
            device.settle().unwrap();
            let now = contents(&device);
            drop(device);
            let made = made_anew(&Set { main, log: below, backup });
            assert!(made == now, "{mode:?}, block {at}");
        }
        // The log that comes back to a main that went on alone.
        let alone =
            Lasting::open_alone(copy(&set.main), &options(Mode::Synchronous), Policy::default(), false).unwrap();
        alone.attach_log(Unreadable::at(&copy(&set.log), at)).unwrap();
        assert_eq!(alone.status().0.changed_blocks, BLOCKS);
    }
}

/// Takes so many writes and flushes, of it and of others.
struct Ending {
    below: Arc<dyn Device>,
    left: Arc<AtomicI64>,
}

impl Ending {
    fn count(&self, operation: Operation) -> Result<(), crate::Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let (device, source) = ("ending".into(), Arc::new(std::io::Error::from_raw_os_error(libc::ENODEV)));
        Err(crate::Error::Io { device, operation, first: None, length_bytes: 0, source })
    }
}

impl Filter for Ending {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        self.count(Operation::Write)?;
        self.below.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        self.count(Operation::Flush)?;
        self.below.flush()
    }
}

#[test]
fn an_opening_without_the_end_that_is_cut_off_anywhere_is_done_again_and_the_next_backup_is_the_set() {
    for (mode, is_ahead) in [(Mode::Synchronous, true), (Mode::Asynchronous, true), (Mode::Asynchronous, false)] {
        let (set, states, page) = killed(mode);
        if is_ahead {
            // As later pages would have it, which are lost as well.
            [(1, 701), (9, 800)].into_iter().for_each(|(at, number)| put(&*set.main, at, number).unwrap());
        }
        let main_had = contents(&*set.main);
        for at in [page, in_log(&set.log, 700)] {
            for requests in 0.. {
                let [main, log, backup] = [&set.main, &set.log, &set.backup].map(copy);
                let (log, left) = (Unreadable::at(&log, at), Arc::new(AtomicI64::new(requests)));
                let ending = |below: Arc<dyn Device>| Arc::new(Ending { below, left: Arc::clone(&left) });
                let how = Options { drop_later: true, ..options(mode) };
                let is_done = Flashlog::open(ending(main.clone()), ending(log.clone()), &how).is_ok();
                let device = match Flashlog::open(main.clone(), log.clone(), &how) {
                    Err(Error::Alone { .. }) => {
                        let alone = Lasting::open_alone(main, &how, Policy::default(), false).unwrap();
                        alone.attach_log(log).unwrap();
                        alone.set().unwrap()
                    }
                    opened => Arc::new(opened.unwrap().0),
                };
                let words = format!("{mode:?}, ahead: {is_ahead}, block {at}, after {requests} requests");
                match (mode, is_ahead) {
                    (Mode::Synchronous, _) => assert!(contents(&*device) == main_had, "{words}"),
                    (_, false) => assert!(contents(&*device) == states[0], "{words}"),
                    // Main has got some of what is given up.
                    (_, true) => {}
                }
                device.backup(backup.clone()).unwrap();
                assert!(contents(&*backup) == contents(&*device), "{words}");
                if is_done {
                    assert!(requests > 10);
                    break;
                }
            }
        }
    }
}

#[test]
fn what_is_behind_the_end_of_a_log_that_was_closed_need_not_be_readable() {
    let (set, device) = Set::in_mode(Mode::Asynchronous);
    for round in 0..3 {
        put(&device, 1, 500 + round).unwrap();
        device.close().unwrap();
        if round == 0 {
            // It can be used on.
            put(&device, 2, 600).unwrap();
            device.flush().unwrap();
        }
    }
    let (now, end) = (contents(&device), device.head.lock().next.page);
    drop(device);
    let log = Unreadable::at(&set.log, META.start + end);
    let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Asynchronous)).unwrap();
    assert!(contents(&device) == now && device.status().changed_blocks == 0);
    // Nothing was written: nobody knows that.
    drop(device);
    assert!(Flashlog::open(copy(&set.main), log.clone(), &options(Mode::Asynchronous)).is_err());
    // It is written over.
    log.at.store(u64::MAX, Ordering::Relaxed);
    let (device, _) = Flashlog::open(set.main.clone(), log, &options(Mode::Asynchronous)).unwrap();
    device.close().unwrap();
    put(&device, 3, 700).unwrap();
    device.flush().unwrap();
    let now = contents(&device);
    drop(device);
    assert!(contents(&set.reopen()) == now, "what was written after a closing");
}

#[test]
fn an_opening_makes_good_what_main_has() {
    // Also of what nothing says was durable.
    for number in [500, 600, 700] {
        let (set, states) = with_three(false, Mode::Synchronous);
        let at = in_log(&set.log, number);
        let log = Unreadable::at(&set.log, at);
        let opened = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Synchronous));
        let (device, _) = opened.unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(contents(&device) == states[3] && device.status().damage == Damage::default(), "{number}");
        // What is replaced need not be read.
        if number != 500 {
            assert_eq!(log.at.load(Ordering::Relaxed), u64::MAX, "{number} was not written again");
            assert!(get(&*set.log, at) == block(number));
        }
        device.settle().unwrap();
        drop(device);
        assert!(number == 500 || made_anew(&set) == states[3]);
    }
}

#[test]
fn what_only_the_log_has_is_read_with_an_error_until_it_is_written_anew_and_nothing_else_is_amiss() {
    let (set, states) = with_three(true, Mode::Asynchronous);
    let log = Unreadable::at(&set.log, u64::MAX);
    let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Asynchronous)).unwrap();
    (10..20).for_each(|at| put(&device, at, 1000 + at).unwrap());
    device.flush().unwrap();
    let main = contents(&device);
    // Memory has it no more.
    drop(device);
    let (device, _) = Flashlog::open(set.main.clone(), log.clone(), &options(Mode::Asynchronous)).unwrap();
    log.at.store(in_log(&set.log, 1015), Ordering::Relaxed);
    let mut bytes = vec![0; BLOCK_SIZE];
    let error = device.read(15, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err();
    assert!(error.to_string().contains("os error 5"), "{error}");
    device.catch_up().unwrap();
    assert!(is_damaged(&device, 15) && device.status().damage.main == Bad { blocks: 1, first: 15 });
    assert!((10..20).filter(|at| *at != 15).all(|at| get(&device, at) == block(1000 + at)));
    put(&device, 15, 1015).unwrap();
    device.settle().unwrap();
    assert!(contents(&device) == main && main != states[3] && device.status().damage == Damage::default());
}

/// Reads well again once a label has been read.
struct Passing(Arc<Unreadable>);

impl Filter for Passing {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        if first == 0 {
            self.0.at.store(u64::MAX, Ordering::Relaxed);
        }
        self.0.read(first, bufs)
    }
}

#[test]
fn what_could_not_be_read_for_a_moment_is_not_lost() {
    let (set, device) = Set::in_mode(Mode::Asynchronous);
    (10..20).for_each(|at| put(&device, at, 1000 + at).unwrap());
    device.flush().unwrap();
    let main = contents(&device);
    drop(device);
    let log = Unreadable::at(&set.log, u64::MAX);
    let passing = Arc::new(Passing(log.clone()));
    let (device, _) = Flashlog::open(set.main.clone(), passing, &options(Mode::Asynchronous)).unwrap();
    log.at.store(in_log(&set.log, 1015), Ordering::Relaxed);
    device.catch_up().unwrap();
    assert!(contents(&device) == main && device.status().damage == Damage::default());
    assert_eq!(log.at.load(Ordering::Relaxed), u64::MAX, "a label was read");
}

#[test]
fn a_backup_takes_from_main_what_the_log_cannot_give() {
    let (set, log, device) = with_unreadable_log();
    (10..20).for_each(|at| put(&device, at, 1000 + at).unwrap());
    device.settle().unwrap();
    log.at.store(in_log(&set.log, 1015), Ordering::Relaxed);
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn a_full_log_lets_go_of_pages_that_cannot_be_read_and_all_counts_as_changed() {
    let (set, log, device) = with_unreadable_log();
    for number in 0..3000 {
        put(&device, number % 20, number).unwrap();
        if number == 100 {
            device.flush().unwrap();
            let first = META.clone().find(|at| get(&*set.log, *at) != [0; BLOCK_SIZE]).unwrap();
            log.at.store(first + 3, Ordering::Relaxed);
        }
    }
    device.settle().unwrap();
    assert_eq!(device.status().changed_blocks, BLOCKS);
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device) && device.status().changed_blocks == 0);
}

/// When this block of it is read, it cannot be read at all any more.
struct Dying {
    below: Arc<MemoryDevice>,
    at: u64,
    is_dead: AtomicBool,
}

impl Dying {
    fn at(below: &Arc<MemoryDevice>, at: u64) -> Arc<Dying> {
        Arc::new(Dying { below: Arc::clone(below), at, is_dead: AtomicBool::new(false) })
    }
}

impl Filter for Dying {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let length_bytes: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let is_hit = (first..first + length_bytes / BLOCK_SIZE as u64).contains(&self.at);
        if self.is_dead.fetch_or(is_hit, Ordering::Relaxed) || is_hit {
            let (device, source) = (self.below.name().into(), Arc::new(std::io::Error::from_raw_os_error(libc::EIO)));
            let (operation, first) = (Operation::Read, Some(first));
            return Err(crate::Error::Io { device, operation, first, length_bytes, source });
        }
        self.below.read(first, bufs)
    }
}

#[test]
fn checksums_of_a_backup_that_cannot_be_read_are_as_damaged_ones() {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    let at = BLOCKS + 1;
    let had = contents(&*set.backup);
    put(&device, 600, 2000).unwrap();
    device.flush().unwrap();
    let unknown = verify_backup(Unreadable::at(&set.backup, at)).unwrap();
    assert_eq!((unknown.damaged.len(), unknown.unknown.len()), (0, 1));
    assert_eq!(unknown.unknown[0], GROUP_BLOCKS..2 * GROUP_BLOCKS);
    // Main made anew only if that is accepted.
    for accept_damage in [false, true] {
        let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: false, accept_damage };
        let (main, log) = (Arc::new(MemoryDevice::new(set.main.blocks())), copy(&set.log));
        match rebuild_at(Unreadable::at(&set.backup, at), log.clone(), main.clone(), &how) {
            Err(error) => assert!(!accept_damage && error.to_string().contains("read"), "{error}"),
            Ok(_) => {
                assert!(accept_damage);
                let (made, _) = Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap();
                assert!(contents(&made) == contents(&device));
            }
        }
    }
    // A scrub makes them anew, but for what the log has newer, and so does the next backup.
    let backup = Unreadable::at(&copy(&set.backup), at);
    let only = Scrubbed { blocks: BLOCKS, waiting: vec![600], ..Scrubbed::default() };
    assert_eq!(device.scrub(backup.clone()).unwrap(), only);
    assert_eq!(backup.at.load(Ordering::Relaxed), u64::MAX, "written again");
    let backup = Unreadable::at(&set.backup, at);
    let done = device.backup(backup.clone()).unwrap();
    // What was written has its own, and main has all else.
    assert_eq!((done.unchecked_blocks, done.unchecked_first), (0, None));
    assert_eq!(backup.at.load(Ordering::Relaxed), u64::MAX, "written again");
    assert!(contents(&*set.backup) == contents(&device) && contents(&*set.backup) != had);
    let done = device.backup(backup.clone()).unwrap();
    assert_eq!((done.unchecked_blocks, done.unchecked_first), (0, None));
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
    // But not of a device of which nothing can be read.
    put(&device, 600, 2001).unwrap();
    let had = contents(&*set.backup);
    let refused = device.backup(Dying::at(&set.backup, at)).unwrap_err();
    assert!(refused.to_string().contains("os error 5") && contents(&*set.backup) == had, "{refused}");
}

/// Main alone, which has written these blocks without its log, and of which block 21 cannot be read any more.
fn alone_without_21(set: &Set, device: Flashlog, written: &[u64]) -> (Lasting, Arc<Unreadable>) {
    let mode = device.options.mode;
    let lasting = Lasting::of(device, Policy::default());
    lasting.detach_log().unwrap();
    written.iter().for_each(|at| put(&lasting, *at, 2000 + at).unwrap());
    lasting.settle().unwrap();
    drop(lasting);
    let main = Unreadable::at(&set.main, 21);
    (Lasting::open_alone(main.clone(), &options(mode), Policy::default(), false).unwrap(), main)
}

#[test]
fn a_log_comes_back_to_a_main_that_cannot_read_a_block_beside_what_it_has_written() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        let (alone, _) = alone_without_21(&set, device, &[20, 22]);
        let attached = alone.attach_log(set.log.clone()).unwrap();
        assert_eq!(attached, Attached::Back { blocks: 2, mended_blocks: 0, lost_blocks: 0 });
        let device = alone.set().unwrap();
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&*set.main), "{mode:?}");
        put(&*device, 3, 900).unwrap();
        device.settle().unwrap();
        drop((alone, device));
        assert!(made_anew(&set) == contents(&*set.main), "{mode:?}");
    }
}

#[test]
fn what_main_has_written_alone_and_cannot_read_is_lost_for_its_log_and_told() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        let had = contents(&device);
        let (alone, main) = alone_without_21(&set, device, &[20, 21, 22, 30]);
        // A main of which nothing can be read gets no log.
        let dying = Lasting::open_alone(Dying::at(&set.main, 21), &options(mode), Policy::default(), false).unwrap();
        let refused = dying.attach_log(copy(&set.log)).map(drop).unwrap_err();
        assert!(refused.to_string().contains("os error 5"), "{refused}");
        drop(dying);
        let attached = alone.attach_log(set.log.clone()).unwrap();
        assert_eq!(attached, Attached::Back { blocks: 4, mended_blocks: 0, lost_blocks: 1 });
        drop(alone);
        for is_written in [false, true] {
            let (device, _) = Flashlog::open(main.clone(), set.log.clone(), &options(mode)).unwrap();
            assert_eq!(device.status().damage.main, Bad { blocks: 1, first: 21 }, "{mode:?}");
            assert!(is_damaged(&device, 21) && get(&device, 20) == block(2020) && get(&device, 22) == block(2022));
            if is_written {
                put(&device, 21, 3000).unwrap();
                device.settle().unwrap();
                device.backup(set.backup.clone()).unwrap();
                assert!(contents(&*set.backup) == contents(&device));
                assert_eq!(device.status().damage, Damage::default(), "{mode:?}");
                continue;
            }
            // Neither the next backup nor a main made anew is as if it had not been written.
            assert!(device.backup(set.backup.clone()).is_err() && contents(&*set.backup) == had, "{mode:?}");
            drop(device);
            let refused = make(&set, u64::MAX, false).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
            let (made, rebuilt) = make(&set, u64::MAX, true).unwrap();
            assert!(made == had && rebuilt.dropped.is_damaged, "{mode:?}");
        }
    }
}

/// A main of which block 21 cannot be read for so many times.
struct Unsteady {
    below: Arc<MemoryDevice>,
    left: AtomicI64,
}

impl Filter for Unsteady {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let blocks = bufs.iter().map(|buf| buf.len() / BLOCK_SIZE).sum::<usize>() as u64;
        if !(first..first + blocks).contains(&21) || self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return self.below.read(first, bufs);
        }
        Unreadable::at(&self.below, 21).read(first, bufs)
    }
}

#[test]
fn what_main_has_written_alone_and_could_not_read_at_first_is_not_lost_for_its_log() {
    for (mode, failures) in
        [Mode::Synchronous, Mode::Asynchronous].into_iter().flat_map(|mode| (1..5).map(move |times| (mode, times)))
    {
        let what = format!("{mode:?}, {failures} times");
        let (set, device) = Set::in_mode(mode);
        let (alone, _) = alone_without_21(&set, device, &[20, 21, 22, 30]);
        drop(alone);
        let main = Arc::new(Unsteady { below: set.main.clone(), left: AtomicI64::new(0) });
        let alone = Lasting::open_alone(main.clone(), &options(mode), Policy::default(), false).unwrap();
        main.left.store(failures, Ordering::Relaxed);
        let attached = alone.attach_log(set.log.clone()).unwrap();
        // With the others, by itself, and when all the rest was there, twice.
        let lost_blocks = u64::from(failures > 3);
        assert_eq!(attached, Attached::Back { blocks: 4, mended_blocks: 0, lost_blocks }, "{what}");
        assert_eq!(alone.status().0.damage.main.blocks, lost_blocks, "{what}");
        if lost_blocks == 0 {
            alone.set().unwrap().backup(set.backup.clone()).unwrap();
            assert!(contents(&*set.backup) == contents(&*set.main), "{what}");
        }
    }
}

#[test]
fn what_a_log_that_comes_back_lacks_of_main_makes_nothing_forgotten_that_was_known() {
    for (is_closed, bad) in [false, true].into_iter().flat_map(|is_closed| [(is_closed, 21), (is_closed, 5)]) {
        let what = format!("main alone was closed: {is_closed}, block {bad}");
        let (set, device) = without_one();
        drop(device);
        let main = Unreadable::at(&set.main, u64::MAX);
        let mode = Mode::Asynchronous;
        let (device, _) = Flashlog::open(main.clone(), set.log.clone(), &options(mode)).unwrap();
        let mut lasting = Lasting::of(device, alone());
        lasting.detach_log().unwrap();
        put(&lasting, bad, 2000).unwrap();
        lasting.settle().unwrap();
        if is_closed {
            drop(lasting);
            lasting = Lasting::open_alone(main.clone(), &options(mode), alone(), false).unwrap();
        }
        main.at.store(bad, Ordering::Relaxed);
        let attached = lasting.attach_log(set.log.clone()).unwrap();
        assert!(matches!(attached, Attached::Back { blocks: 1, lost_blocks: 2, .. }), "{what}: {attached:?}");
        let both = Bad { blocks: 2, first: bad.min(17) };
        let check = |status: &Status| assert!((status.damage.main, status.forgets_damage) == (both, false), "{what}");
        check(&lasting.status().0);
        lasting.settle().unwrap();
        drop(lasting);
        let (device, _) = Flashlog::open(main.clone(), set.log.clone(), &options(mode)).unwrap();
        check(&device.status());
        assert!(is_damaged(&device, bad) && is_damaged(&device, 17), "{what}");
        [bad, 17].iter().for_each(|at| put(&device, *at, 3000 + at).unwrap());
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device) && device.status().damage == Damage::default(), "{what}");
    }
}

/// A main that cannot read these blocks until they are written. When it is asked for the first of them once more, one of them is written, if the set
/// takes that just then.
struct Rotten {
    below: Arc<MemoryDevice>,
    set: Mutex<Option<Arc<Lasting>>>,
    bad: Mutex<BTreeSet<u64>>,
    asked: AtomicI64,
    is_taken: AtomicBool,
}

const REWRITTEN: u64 = 250;

impl Filter for Rotten {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let blocks = bufs.iter().map(|buf| buf.len() / BLOCK_SIZE).sum::<usize>() as u64;
        let Some(at) = self.bad.lock().range(first..first + blocks).next().copied() else {
            return self.below.read(first, bufs);
        };
        // With others, by itself, and once more.
        if (first, blocks) == (100, 1)
            && self.asked.fetch_add(1, Ordering::Relaxed) == 1
            && let Some(set) = self.set.lock().clone()
        {
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                put(&*set, REWRITTEN, 4000).unwrap();
                let _ = done.send(());
            });
            self.is_taken.store(is_done.recv_timeout(Duration::from_secs(5)).is_ok(), Ordering::Relaxed);
        }
        Unreadable::at(&self.below, at).read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        let blocks = bufs.iter().map(|buf| buf.len() / BLOCK_SIZE).sum::<usize>() as u64;
        self.bad.lock().retain(|at| !(first..first + blocks).contains(at));
        self.below.write(first, bufs)
    }
}

/// A main that has written as many blocks alone, none of which it can read.
fn rotten(set: &Set, device: Flashlog, count: u64) -> (Arc<Lasting>, Arc<Rotten>) {
    let lasting = Lasting::of(device, Policy::default());
    lasting.detach_log().unwrap();
    (100..100 + count).for_each(|at| put(&lasting, at, 2000 + at).unwrap());
    lasting.settle().unwrap();
    drop(lasting);
    let main = Arc::new(Rotten {
        below: set.main.clone(),
        set: Mutex::default(),
        bad: Mutex::default(),
        asked: AtomicI64::new(0),
        is_taken: AtomicBool::new(false),
    });
    let lasting = Lasting::open_alone(main.clone(), &options(Mode::Synchronous), Policy::default(), false).unwrap();
    *main.bad.lock() = (100..100 + count).collect();
    (Arc::new(lasting), main)
}

#[test]
fn main_takes_changes_while_it_is_asked_once_more_for_much_that_it_could_not_read() {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    let count = 300;
    let (alone, main) = rotten(&set, device, count);
    *main.set.lock() = Some(alone.clone());
    let attached = alone.attach_log(set.log.clone()).unwrap();
    *main.set.lock() = None;
    assert!(main.is_taken.load(Ordering::Relaxed), "{attached:?}");
    assert!(matches!(attached, Attached::Back { lost_blocks, .. } if lost_blocks == count - 1), "{attached:?}");
    assert_eq!(alone.status().0.damage.main, Bad { blocks: count - 1, first: 100 });
    assert!(get(&*alone, REWRITTEN) == block(4000) && is_damaged(&*alone, REWRITTEN - 1));
    assert!(alone.set().unwrap().backup(set.backup.clone()).is_err());
    (100..100 + count).for_each(|at| put(&*alone, at, 5000 + at).unwrap());
    alone.set().unwrap().backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&*alone));
}

#[test]
fn a_log_without_room_for_what_main_cannot_read_begins_anew_and_the_backup_is_not_as_if_it_had_not_been_written() {
    let (set, device) = Set::in_mode(Mode::Synchronous);
    let had = contents(&device);
    // With what it has, more than three quarters of the log.
    (0..set.log.blocks() / 2).for_each(|number| put(&device, number % 50, number).unwrap());
    device.flush().unwrap();
    let (alone, _) = rotten(&set, device, 900);
    let attached = alone.attach_log(set.log.clone()).unwrap();
    assert!(matches!(attached, Attached::BackWithMap { blocks, may_be_older: false } if blocks >= 900), "{attached:?}");
    let device = alone.set().unwrap();
    assert!(device.backup(set.backup.clone()).is_err());
    finish_backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == had);
    (100..1000).for_each(|at| put(&*alone, at, 5000 + at).unwrap());
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&*alone));
}
