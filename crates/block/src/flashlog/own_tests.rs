//! What main alone has not written itself is no newest version for the log that comes back, while it is forgotten which of main's blocks are damaged.
use super::backup_tests::Set;
use super::format::{Bad, Role, Uuid};
use super::labels::Labelled;
use super::lasting_tests::{alone, is_alone};
use super::lost_tests::{behind, lose};
use super::tests::{Unplugged, block, get, names, open, options, put};
use super::told_tests::{gets_nothing_older_however_it_comes, open_alone, with_older_on_main, write_alone_and_die_of};
use super::*;
use crate::{Device, Filter, MemoryDevice, Operation};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn may_be_older(attached: &Attached) -> bool {
    matches!(attached, Attached::BackWithMap { may_be_older: true, .. })
}

/// A set, not in use, whose main lacks these blocks of what the log had, and tells of them; the backup has them.
fn without(lost: &[u64]) -> Set {
    let (set, device) = behind(true, true);
    for at in lost {
        lose(&set.log, 5000 + at);
    }
    device.catch_up().unwrap();
    device.settle().unwrap();
    assert_eq!(device.status().damage.main, Bad { blocks: lost.len() as u64, first: lost[0] });
    set
}

/// The same, and what the log alone has got of block 17 since is given up.
fn without_given_up(lost: &[u64]) -> Set {
    let set = without(lost);
    // Main fails when it is to get that.
    let main = Unplugged::after(&set.main, i64::MAX);
    let (device, _) = Flashlog::open(main.clone(), set.log.clone(), &options(Mode::Asynchronous)).unwrap();
    put(&device, 17, 8017).unwrap();
    main.left.store(0, Ordering::Relaxed);
    assert_eq!(device.flush().is_err(), lost.len() == 1);
    drop(device);
    drop(open_alone(&set));
    set
}

#[test]
fn what_was_given_up_with_the_log_is_nothing_that_main_has_written() {
    for lost in [&[17][..], &[5, 17]] {
        let set = without_given_up(lost);
        let lasting = open_alone(&set);
        let attached = lasting.attach_log(set.log.clone()).unwrap();
        let device = lasting.set().unwrap();
        assert!(get(&*device, 17) == block(18), "{lost:?}");
        let refused = device.backup(set.backup.clone());
        assert!(matches!(refused, Err(Error::Forgotten { .. })), "{lost:?}: {attached:?}, {refused:?}");
        assert!(may_be_older(&attached) && get(&*set.backup, 17) == block(5017), "{lost:?}: {attached:?}");
    }
}

#[test]
fn nor_is_it_after_an_attaching_that_was_cut_off() {
    [&[17][..], &[5, 17]].iter().for_each(|lost| gets_nothing_older_however_it_comes(&without_given_up(lost)));
}

#[test]
fn a_log_that_began_anew_and_was_cut_off_tells_nothing_of_several() {
    let set = without(&[5, 17]);
    write_alone_and_die_of(&set, &[16]);
    gets_nothing_older_however_it_comes(&set);
}

/// A main that cannot write block 17.
struct Refuses(Arc<MemoryDevice>);

impl Filter for Refuses {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if first == 17 {
            let source = Arc::new(std::io::Error::from_raw_os_error(libc::EIO));
            let (device, operation) = ("main".into(), Operation::Write);
            return Err(crate::Error::Io { device, operation, first: Some(17), length_bytes: 4096, source });
        }
        self.0.write(first, bufs)
    }
}

#[test]
fn what_main_could_not_write_it_has_not_written() {
    let set = with_older_on_main(true);
    let main = Arc::new(Refuses(set.main.clone()));
    let lasting = Lasting::open_alone(main, &options(Mode::Asynchronous), alone(), true).unwrap();
    put(&lasting, 16, 9).unwrap();
    assert!(put(&lasting, 17, 9).is_err());
    let attached = lasting.attach_log(set.log.clone()).unwrap();
    assert!(may_be_older(&attached), "{attached:?}");
    assert!(lasting.set().unwrap().backup(set.backup.clone()).is_err() && get(&*set.backup, 17) == block(5017));
}

#[test]
fn main_that_was_killed_while_it_got_what_memory_had_has_not_written_it() {
    let set = with_older_on_main(true);
    let (mut killed, mut refused) = (0, 0);
    for requests in 0..40 {
        let what = format!("cut off after {requests} requests");
        let [main, log, backup] = [&set.main, &set.log, &set.backup].map(|device| Arc::new((**device).clone()));
        let [on, stick] = [&main, &log].map(|device| Unplugged::after(device, i64::MAX));
        let (device, _) = Flashlog::open(on.clone(), stick.clone(), &options(Mode::Asynchronous)).unwrap();
        let lasting = Lasting::of(device, alone());
        put(&lasting, 17, 9).unwrap();
        stick.left.store(0, Ordering::Relaxed);
        on.left.store(requests, Ordering::Relaxed);
        killed += u64::from(lasting.flush().is_err());
        drop(lasting);
        let lasting = match open(&main, &log, Mode::Asynchronous) {
            Ok((device, _)) => Lasting::of(device, alone()),
            Err(Error::Alone { .. }) => {
                let lasting = Lasting::open_alone(main.clone(), &options(Mode::Asynchronous), alone(), true).unwrap();
                lasting.attach_log(log.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
                lasting
            }
            Err(error) => panic!("{what}: {error}"),
        };
        let done = lasting.set().unwrap().backup(backup.clone());
        refused += u64::from(done.is_err());
        assert!([5017, 9].map(block).contains(&get(&*backup, 17)), "{what}: {done:?}");
    }
    assert!((5..40).contains(&killed) && (1..40).contains(&refused), "{killed}, {refused}");
}

/// Main and log of a set of this size, not in use, which has a backup; nobody knows which block of main is damaged.
fn forgetting(blocks: u64) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let (main, log) = (Arc::new(MemoryDevice::new(blocks + 256)), Arc::new(MemoryDevice::new(256 * 20)));
    assert_eq!(create(main.clone(), log.clone(), &names(1)).unwrap(), blocks);
    drop(open(&main, &log, Mode::Asynchronous).unwrap());
    let mut of_log = Labelled::read(log.clone(), Role::Log).unwrap();
    of_log.write(|label| label.backup = Uuid([9; 16])).unwrap();
    let mut of_main = Labelled::read(main.clone(), Role::Main).unwrap();
    of_main.write(|label| label.damage.main = Bad { blocks: 1, first: 17 }).unwrap();
    (main, log)
}

#[test]
fn what_is_guessed_of_main_alone_is_when_its_regions_become_larger() {
    // Who has written: this process, one before it; and whether main has grown in a process before.
    for (is_killed, is_grown_before) in [(false, false), (true, false), (true, true)] {
        let what = format!("killed: {is_killed}, grown before: {is_grown_before}");
        let (main, log) = forgetting(1 << 22);
        let open_alone = || Lasting::open_alone(main.clone(), &options(Mode::Asynchronous), alone(), true).unwrap();
        let mut lasting = open_alone();
        put(&lasting, 16, 9).unwrap();
        if is_killed {
            drop(lasting);
            lasting = open_alone();
        }
        main.grow((1 << 23) + 256).unwrap();
        assert_eq!(lasting.grow(0).unwrap(), 1 << 23, "{what}");
        if is_grown_before {
            drop(lasting);
            lasting = open_alone();
        }
        let attached = lasting.attach_log(log.clone()).unwrap();
        assert_eq!(may_be_older(&attached), is_killed, "{what}: {attached:?}");
    }
}

#[test]
fn what_there_is_no_room_to_know_is_not_known() {
    // A map on main has room for 182 parts of regions of this set, memory for 3,640.
    for (is_log_lost, regions, is_guessed) in
        [(true, 180, false), (true, 400, true), (false, 400, false), (false, 4000, true)]
    {
        let what = format!("the log is lost: {is_log_lost}, {regions} regions");
        let (main, log) = forgetting(1 << 30);
        let lasting = if is_log_lost {
            let stick = Unplugged::after(&log, i64::MAX);
            let options = Options { gather_blocks: 1000, ..options(Mode::Asynchronous) };
            let lasting = Lasting::of(Flashlog::open(main, stick.clone(), &options).unwrap().0, alone());
            (1..=regions).for_each(|at| put(&lasting, at << 12, 9).unwrap());
            stick.left.store(0, Ordering::Relaxed);
            lasting.flush().unwrap();
            assert!(is_alone(&lasting), "{what}");
            lasting
        } else {
            let lasting = Lasting::open_alone(main, &options(Mode::Asynchronous), alone(), true).unwrap();
            (1..=regions).for_each(|at| put(&lasting, at << 12, 9).unwrap());
            lasting
        };
        let attached = lasting.attach_log(log).unwrap();
        assert_eq!(may_be_older(&attached), is_guessed, "{what}: {attached:?}");
    }
}
