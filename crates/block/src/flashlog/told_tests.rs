//! What main's label tells of blocks that nobody has is true, whatever else is lost, and as far as it may be.
use super::anew_tests::{LOST, fill, told};
use super::backup_tests::{BLOCKS, Set, contents};
use super::lasting_tests::alone;
use super::lost_tests::{DATA, behind, is_damaged, lose, with_one_forgotten, without_one};
use super::tests::{Unplugged, Unreadable, block, get, open, options, put, spoil};
use super::*;
use crate::{Device, Filter, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn is_forgotten(device: &Flashlog, set: &Set) -> bool {
    let refused = device.backup(set.backup.clone());
    matches!(refused, Err(Error::Forgotten { .. })) && device.status().forgets_damage
}

/// The same set, of which memory has nothing of what is in the log.
fn without_memory(set: &Set) -> Flashlog {
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    Flashlog::open(set.main.clone(), set.log.clone(), &options).unwrap().0
}

#[test]
fn more_that_the_log_has_lost_does_not_make_known_what_was_forgotten() {
    let (set, device) = with_one_forgotten();
    put(&device, 5, 6005).unwrap();
    put(&device, 60, 7060).unwrap();
    device.flush().unwrap();
    put(&device, 60, 8060).unwrap();
    device.flush().unwrap();
    device.seal().unwrap();
    drop(device);
    let device = set.reopen();
    // The log has lost two blocks as well then, of one of them a version that was written again.
    lose(&set.log, 6005);
    lose(&set.log, 7060);
    device.catch_up().unwrap();
    drop(device);
    let device = set.reopen();
    assert!(device.status().forgets_damage);
    put(&device, 5, 8).unwrap();
    device.settle().unwrap();
    assert!(is_forgotten(&device, &set));
}

#[test]
fn another_loss_does_not_hide_that_the_log_has_let_go_of_what_tells_of_the_first() {
    let (set, device) = without_one();
    drop(device);
    let device = without_memory(&set);
    fill(&device);
    put(&device, 30, 6030).unwrap();
    device.flush().unwrap();
    device.seal().unwrap();
    lose(&set.log, 6030);
    assert_eq!(device.scrub_with_log().unwrap().lost, [30]);
    assert!(is_damaged(&device, 17) && is_damaged(&device, 30) && device.status().forgets_damage);
    drop(device);
    let device = set.reopen();
    assert!(is_damaged(&device, 30) && device.status().forgets_damage);
    assert_eq!(told(&device).blocks, 2);
    put(&device, 30, 9).unwrap();
    device.settle().unwrap();
    assert!(is_forgotten(&device, &set));
}

#[test]
fn a_label_tells_of_no_more_blocks_than_there_are_from_the_first_on() {
    const LAST: u64 = BLOCKS - 1;
    let (set, mut device) = Set::new();
    for round in 0..2 {
        put(&device, LAST, 7000 + round).unwrap();
        device.flush().unwrap();
        device.seal().unwrap();
        drop(device);
        device = set.reopen();
        lose(&set.log, 7000 + round);
        assert_eq!(device.scrub_with_log().unwrap().lost, [LAST]);
        fill(&device);
        device.close().unwrap();
        drop(device);
        device = set.reopen();
        assert!(told(&device) == Bad { blocks: 1, first: LAST } && device.status().forgets_damage);
    }
}

#[test]
fn opened_in_synchronous_mode_main_is_behind_until_it_has_everything() {
    for is_lost in [true, false] {
        let (set, device) = behind(false, true);
        drop(device);
        if is_lost {
            lose(&set.log, 5017);
        }
        let opened = open(&set.main, &set.log, Mode::Synchronous).map(|_| ());
        assert_eq!(opened.is_err(), is_lost);
        let alone = Lasting::open_alone(set.main.clone(), &options(Mode::Synchronous), alone(), false);
        match alone {
            Ok(alone) => assert!(!is_lost && (0..40).all(|at| get(&alone, at) == block(5000 + at))),
            Err(error) => assert!(is_lost && matches!(error, Error::PerhapsBehind { .. } | Error::Mixture { .. })),
        }
    }
}

#[test]
fn what_a_damaged_page_may_hide_is_not_known() {
    let (set, device) = behind(false, true);
    lose(&set.log, 5017);
    lose(&set.log, 5018);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17, 18]);
    (50..90).for_each(|at| put(&device, at, at).unwrap());
    device.settle().unwrap();
    let is_page = |at: &u64| get(&*set.log, *at).iter().any(|byte| *byte != 0);
    let page = (256..DATA).rfind(is_page).unwrap() - 2;
    put(&device, 17, 7017).unwrap();
    device.flush().unwrap();
    device.seal().unwrap();
    drop(device);
    let device = set.reopen();
    lose(&set.log, 7017);
    device.catch_up().unwrap();
    assert!(is_damaged(&device, 17) && told(&device) == Bad { blocks: 2, first: 17 });
    device.settle().unwrap();
    drop(device);
    spoil(&set.log, page);
    let device = set.reopen();
    assert!(matches!(device.status().log_damage, Some(Error::Damaged { .. })));
    assert!(is_damaged(&device, 18) && is_forgotten(&device, &set));
}

#[test]
fn what_was_read_badly_once_is_brought_to_main_by_the_next_opening() {
    let (set, device) = behind(true, true);
    let at = lose(&set.log, 5017);
    device.catch_up().unwrap();
    device.settle().unwrap();
    assert!(is_damaged(&device, 17) && told(&device) == LOST);
    drop(device);
    // Flips them back.
    spoil(&set.log, at);
    let device = set.reopen();
    assert!(get(&device, 17) == block(5017) && get(&*set.main, 17) == block(5017));
    assert_eq!((device.status().damage, device.status().forgets_damage), (Damage::default(), false));
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn what_main_has_counts_if_the_log_was_given_up_also_if_it_comes_back_without_its_data() {
    let (set, device) = behind(false, true);
    drop(device);
    let lasting = Lasting::open_alone(set.main.clone(), &options(Mode::Asynchronous), alone(), true).unwrap();
    let expected = contents(&lasting);
    lose(&set.log, 5017);
    lose(&set.log, 5039);
    lasting.attach_log(set.log.clone()).unwrap();
    assert!(!is_damaged(&lasting, 17));
    assert!(contents(&lasting) == expected && lasting.status().0.damage == Damage::default());
    lasting.set().unwrap().backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == expected);
}

/// A backup device: when its first blocks are read, one of them is written to the set, and not durably.
struct Meanwhile {
    below: Arc<MemoryDevice>,
    set: &'static Flashlog,
    is_done: AtomicBool,
}

impl Filter for Meanwhile {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        if first == 0 && !self.is_done.swap(true, Ordering::Relaxed) {
            put(self.set, 17, 7).unwrap();
        }
        self.below.read(first, bufs)
    }
}

#[test]
fn a_scrub_does_not_call_well_what_is_being_written_just_then() {
    let (set, device) = behind(true, true);
    lose(&set.log, 5017);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    // No more than lets go of what is in front of the backup's state.
    let is_untold = (0..6000).find(|number| {
        put(&device, 100 + number % 50, *number).unwrap();
        device.status().forgets_damage
    });
    assert!(is_untold.is_some());
    device.settle().unwrap();
    drop(device);
    let device: &'static Flashlog = Box::leak(Box::new(set.reopen()));
    assert!(get(device, 17) == block(18) && device.status().forgets_damage);
    let backup = Meanwhile { below: set.backup.clone(), set: device, is_done: AtomicBool::new(false) };
    device.scrub(Arc::new(backup)).unwrap();
    assert!(get(device, 17) == block(7) && get(&*set.main, 17) == block(18));
    let (main, log) = (Arc::new((*set.main).clone()), Arc::new((*set.log).clone()));
    let (found, _) = open(&main, &log, Mode::Asynchronous).unwrap();
    assert!(get(&found, 17) == block(18) && told(&found) == LOST && found.status().forgets_damage);
    device.settle().unwrap();
    assert_eq!(told(device), Bad::default());
}

#[test]
fn what_a_backup_would_need_is_let_go_of_before_what_tells_which_blocks_are_lost() {
    let (set, device) = Set::new();
    (0..1000).for_each(|number| put(&device, 100 + number % 50, number).unwrap());
    device.settle().unwrap();
    (0..40).for_each(|at| put(&device, at, 5000 + at).unwrap());
    device.flush().unwrap();
    device.seal().unwrap();
    drop(device);
    let device = set.reopen();
    lose(&set.log, 5017);
    assert_eq!(device.scrub_with_log().unwrap().lost, [17]);
    let is_let_go_of = (0..6000).find(|number| {
        put(&device, 100 + number % 50, *number).unwrap();
        device.status().changed_blocks > 0
    });
    assert!(is_let_go_of.is_some() && is_damaged(&device, 17) && !device.status().forgets_damage);
    device.settle().unwrap();
    drop(device);
    let device = set.reopen();
    assert!(is_damaged(&device, 17) && !device.status().forgets_damage && told(&device) == LOST);
    // But before nothing can be written any more.
    fill(&device);
    assert!(is_damaged(&device, 17) && device.status().forgets_damage);
    put(&device, 17, 7).unwrap();
    device.backup(set.backup.clone()).unwrap();
    assert!(contents(&*set.backup) == contents(&device) && told(&device) == Bad::default());
}

pub(super) fn open_alone(set: &Set) -> Lasting {
    Lasting::open_alone(set.main.clone(), &options(Mode::Asynchronous), alone(), true).unwrap()
}

/// The process ends without a close.
fn write_alone_and_die(set: &Set) {
    let killed = open_alone(set);
    put(&killed, 16, 9).unwrap();
}

#[test]
fn main_alone_that_does_not_know_them_any_more_does_not_make_them_known_by_what_it_gives_the_log() {
    let (set, device) = behind(true, true);
    let at = lose(&set.log, 5017);
    device.catch_up().unwrap();
    device.settle().unwrap();
    drop(device);
    write_alone_and_die(&set);
    // The whole region counts as changed then, and what is bad in it is forgotten.
    let lasting = open_alone(&set);
    spoil(&set.log, at);
    lasting.attach_log(set.log.clone()).unwrap();
    let device = lasting.set().unwrap();
    assert!(get(&*device, 17) == block(18) && device.status().forgets_damage && told(&device).blocks == 1);
}

#[test]
fn what_a_log_that_comes_back_gives_main_is_not_damaged_any_more() {
    let (set, device) = behind(true, true);
    drop(device);
    let lasting = Lasting::of(without_memory(&set), alone());
    let at = lose(&set.log, 5017);
    lasting.set().unwrap().catch_up().unwrap();
    assert!(is_damaged(&lasting, 17));
    lasting.detach_log().unwrap();
    assert!(is_damaged(&lasting, 17));
    spoil(&set.log, at);
    lasting.attach_log(set.log.clone()).unwrap();
    assert!(get(&lasting, 17) == block(5017) && lasting.status().0.damage == Damage::default());
}

#[test]
fn no_other_block_that_is_lost_stands_for_one_that_main_alone_has_forgotten() {
    for is_another_lost in [false, true] {
        let what = format!("another is lost in the log: {is_another_lost}");
        let (set, device) = behind(true, true);
        let last = device.blocks() - 1;
        put(&device, last, 9000).unwrap();
        device.flush().unwrap();
        let at = lose(&set.log, 5017);
        device.catch_up().unwrap();
        device.settle().unwrap();
        assert_eq!(told(&device), LOST, "{what}");
        drop(device);
        let main = Unreadable::at(&set.main, u64::MAX);
        let open_alone = || Lasting::open_alone(main.clone(), &options(Mode::Asynchronous), alone(), true).unwrap();
        let killed = open_alone();
        put(&killed, 16, 9).unwrap();
        drop(killed);
        // The whole region counts as changed then. Of it a block cannot be read; what was lost in the log is good there again, and main has it older.
        let lasting = open_alone();
        main.at.store(21, Ordering::Relaxed);
        spoil(&set.log, at);
        if is_another_lost {
            put(&*set.main, last, 1).unwrap();
            lose(&set.log, 9000);
        }
        let attached = lasting.attach_log(set.log.clone()).unwrap();
        assert!(matches!(attached, Attached::BackWithMap { may_be_older: true, .. }), "{what}: {attached:?}");
        let device = lasting.set().unwrap();
        assert!(get(&*device, 17) == block(18) && device.status().forgets_damage, "{what}");
        assert!(device.backup(set.backup.clone()).is_err() && get(&*set.backup, 17) == block(5017), "{what}");
    }
}

#[test]
fn nor_where_the_label_tells_of_several() {
    let (set, device) = behind(true, true);
    let last = device.blocks() - 1;
    put(&device, last, 9000).unwrap();
    device.flush().unwrap();
    let [_, at] = [5005, 5017].map(|number| lose(&set.log, number));
    device.catch_up().unwrap();
    device.settle().unwrap();
    assert_eq!(told(&device), Bad { blocks: 2, first: 5 });
    drop(device);
    let device = without_memory(&set);
    put(&device, 17, 8017).unwrap();
    device.flush().unwrap();
    drop(device);
    // That is given up.
    let lasting = open_alone(&set);
    // One is good again in the log, and main's older version is there in place of what was given up; another one is lost.
    spoil(&set.log, at);
    put(&*set.main, last, 1).unwrap();
    lose(&set.log, 9000);
    let attached = lasting.attach_log(set.log.clone()).unwrap();
    assert!(matches!(attached, Attached::BackWithMap { may_be_older: true, .. }), "{attached:?}");
    let device = lasting.set().unwrap();
    assert!(get(&*device, 17) == block(18) && device.status().forgets_damage);
    assert!(device.backup(set.backup.clone()).is_err() && get(&*set.backup, 17) == block(5017));
}

#[test]
fn several_stay_known_if_main_alone_has_written_nothing_of_what_the_log_has() {
    let (in_front, elsewhere) = (3, BLOCKS - 1);
    for written in [None, Some(in_front), Some(elsewhere)] {
        let (set, device) = behind(true, true);
        for number in [5005, 5017] {
            lose(&set.log, number);
        }
        device.catch_up().unwrap();
        device.settle().unwrap();
        let both = Bad { blocks: 2, first: 5 };
        assert_eq!(told(&device), both);
        drop(device);
        open_alone(&set).close().unwrap();
        let lasting = open_alone(&set);
        if let Some(block) = written {
            put(&lasting, block, 9).unwrap();
        }
        lasting.attach_log(set.log.clone()).unwrap();
        let device = lasting.set().unwrap();
        assert!(is_damaged(&*device, 5) && is_damaged(&*device, 17), "{written:?}");
        assert!(!device.status().forgets_damage && told(&device) == both, "{written:?}: {:?}", told(&device));
    }
}

/// A set, not in use, of which main has an older version of block 17 than the backup, from whose state on the log has everything. Whether the log
/// tells of it, too.
pub(super) fn with_older_on_main(log_tells: bool) -> Set {
    let (set, device) = behind(true, true);
    lose(&set.log, 5017);
    device.catch_up().unwrap();
    if !log_tells {
        // As when it is full, but that it has room for what comes back.
        assert!(device.forget_held().is_ok());
        put(&device, 60, 6).unwrap();
        device.backup(set.backup.clone()).unwrap();
    }
    device.settle().unwrap();
    assert_eq!((told(&device), get(&*set.main, 17), get(&*set.backup, 17)), (LOST, block(18), block(5017)));
    set
}

/// Main alone writes these blocks, and is killed.
pub(super) fn write_alone_and_die_of(set: &Set, written: &[u64]) {
    let killed = open_alone(set);
    written.iter().for_each(|at| put(&killed, *at, 9).unwrap());
}

#[test]
fn what_may_be_older_on_main_alone_is_no_newest_version_for_the_log_that_comes_back() {
    // A crash leaves regions of 16 blocks.
    for (log_tells, written, may_be_older) in [
        (true, &[16][..], true),
        (true, &[3, 40], false),
        (false, &[16], true),
        (false, &[300], true),
        (false, &[3], false),
    ] {
        let what = format!("the log tells: {log_tells}, written: {written:?}");
        let set = with_older_on_main(log_tells);
        write_alone_and_die_of(&set, written);
        let lasting = open_alone(&set);
        let attached = lasting.attach_log(set.log.clone()).unwrap();
        let is_map = matches!(attached, Attached::BackWithMap { may_be_older: true, .. });
        assert_eq!(is_map, may_be_older, "{what}: {attached:?}");
        let device = lasting.set().unwrap();
        assert_eq!((told(&device), device.status().forgets_damage), (LOST, may_be_older || !log_tells), "{what}");
        assert!(written.iter().all(|at| get(&*device, *at) == block(9)), "{what}");
        let before = contents(&*set.backup);
        let done = device.backup(set.backup.clone());
        assert!(get(&*set.backup, 17) == block(5017), "{what}: {done:?}");
        if !may_be_older {
            assert!(done.is_ok(), "{what}: {done:?}");
            continue;
        }
        assert!(matches!(done, Err(Error::Forgotten { .. })), "{what}: {done:?}");
        assert!(contents(&*set.backup) == before && device.status().changed_blocks > 0, "{what}");
        // The backup is not the log's state: what main has written is no damage.
        let refused = device.scrub(set.backup.clone());
        assert!(matches!(refused, Err(Error::Gap { .. })), "{what}: {refused:?}");
        // Whoever takes main there for what it is has said so; the rest of main is held against what the backup has.
        put(&*set.main, 200, 1).unwrap();
        device.accept_forgotten();
        device.backup(set.backup.clone()).unwrap();
        device.forget_again();
        assert!(device.status().forgets_damage, "{what}");
        let (in_backup, repaired) = if written == [16] { (18, vec![200]) } else { (5017, vec![17, 200]) };
        assert!(get(&*set.backup, 17) == block(in_backup), "{what}");
        assert_eq!(device.scrub(set.backup.clone()).unwrap().main_repaired, repaired, "{what}");
        assert!(device.status().damage == Damage::default(), "{what}");
        assert!(contents(&*set.backup) == contents(&*device), "{what}");
    }
}

#[test]
fn what_main_alone_knows_that_it_has_written_the_log_gets_though_it_is_forgotten_which_are_damaged() {
    for (is_closed, with_whole) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("closed: {is_closed}, a whole region: {with_whole}");
        let set = with_older_on_main(false);
        let mut lasting = open_alone(&set);
        (16..20).for_each(|at| {
            if at != 17 {
                put(&lasting, at, 9).unwrap()
            }
        });
        (30..if with_whole { 50 } else { 40 }).for_each(|at| put(&lasting, at, 9).unwrap());
        if is_closed {
            lasting.close().unwrap();
            drop(lasting);
            lasting = open_alone(&set);
        }
        let attached = lasting.attach_log(set.log.clone()).unwrap();
        // Of a whole region that main says has changed, nobody knows in the next process whether all of it has.
        let (is_map, device) = (matches!(attached, Attached::BackWithMap { .. }), lasting.set().unwrap());
        assert_eq!(is_map, is_closed && with_whole, "{what}: {attached:?}");
        assert_eq!(device.backup(set.backup.clone()).is_ok(), !is_map, "{what}");
        assert!(device.status().forgets_damage && get(&*set.backup, 17) == block(5017), "{what}");
    }
}

#[test]
fn nor_does_a_new_log_get_it_nor_a_log_whose_coming_is_cut_off() {
    let set = with_older_on_main(true);
    write_alone_and_die_of(&set, &[16]);
    gets_nothing_older_however_it_comes(&set);
}

/// Main alone with a new log, and with its own, whose coming is cut off anywhere.
pub(super) fn gets_nothing_older_however_it_comes(set: &Set) {
    let copies = || [&set.main, &set.log].map(|device| Arc::new((**device).clone()));
    let check = |device: &Flashlog, what: &str| {
        let backup = Arc::new((*set.backup).clone());
        let refused = device.backup(backup.clone());
        assert!(matches!(refused, Err(Error::Forgotten { .. })), "{what}: {refused:?}");
        assert!(get(&*backup, 17) == block(5017) && device.status().forgets_damage, "{what}");
    };
    let alone_on =
        |main: &Arc<MemoryDevice>| Lasting::open_alone(main.clone(), &options(Mode::Asynchronous), alone(), true);
    let new = Arc::new(MemoryDevice::new(set.log.blocks()).named("new"));
    let lasting = alone_on(&copies()[0]).unwrap();
    lasting.attach_new_log(new, Uuid([80; 16])).unwrap();
    check(&lasting.set().unwrap(), "a new log");
    let mut cut_off = 0;
    for (is_of_main, requests) in [false, true].into_iter().flat_map(|of| (0..100).map(move |requests| (of, requests)))
    {
        let what = format!("cut off after {requests} requests, to main: {is_of_main}");
        let [main, log] = copies();
        let on = Unplugged::after(if is_of_main { &main } else { &log }, requests);
        let attached = match is_of_main {
            false => alone_on(&main).unwrap().attach_log(on),
            true => Lasting::open_alone(on, &options(Mode::Asynchronous), alone(), true)
                .and_then(|lasting| lasting.attach_log(log.clone())),
        };
        cut_off += u64::from(attached.is_err());
        match open(&main, &log, Mode::Asynchronous) {
            Ok((device, _)) => check(&device, &what),
            Err(Error::Alone { .. }) => {
                let lasting = alone_on(&main).unwrap();
                lasting.attach_log(log.clone()).unwrap();
                check(&lasting.set().unwrap(), &what);
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    assert!((20..190).contains(&cut_off), "{cut_off}");
}

#[test]
fn what_was_accepted_for_a_backup_is_not_when_the_log_has_gone_and_come_back_meanwhile() {
    let set = with_older_on_main(false);
    let lasting = Lasting::of(set.reopen(), alone());
    lasting.set().unwrap().accept_forgotten();
    lasting.detach_log().unwrap();
    assert!(lasting.status().0.forgets_damage);
    lasting.attach_log(set.log.clone()).unwrap();
    assert!(lasting.status().0.forgets_damage);
    // Or it was put back without main having been alone.
    let stick = Unplugged::after(&set.log, i64::MAX);
    drop(lasting);
    let options = Options { memory_blocks: 0, ..options(Mode::Asynchronous) };
    let (device, _) = Flashlog::open(set.main.clone(), stick.clone(), &options).unwrap();
    let lasting = Lasting::of(device, alone());
    lasting.set().unwrap().accept_forgotten();
    // Which main has not.
    put(&lasting, 70, 7).unwrap();
    lasting.flush().unwrap();
    stick.left.store(0, Ordering::Relaxed);
    put(&lasting, 71, 7).unwrap();
    assert!(lasting.flush().is_err());
    lasting.attach_log(set.log.clone()).unwrap();
    assert!(lasting.status().0.forgets_damage);
}
