//! A log that is pulled out while it has what main has not, and put back.
use super::lost_tests::is_damaged;
use super::staging::Backup;
use super::tests::{Unplugged, block, get, names, options, put, spoil};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const BLOCKS: u64 = 256;

struct Rig {
    main: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
    stick: Arc<Unplugged>,
    options: Options,
    set: Lasting,
    /// What each block was written with last, as answered.
    numbers: Vec<u64>,
}

impl Rig {
    fn new(options: Options, policy: &str) -> Rig {
        Rig::of((BLOCKS, 256 * 6), options, policy)
    }

    fn of((blocks, log_blocks): (u64, u64), options: Options, policy: &str) -> Rig {
        let main = Arc::new(MemoryDevice::new(blocks + 256).named("main"));
        let log = Arc::new(MemoryDevice::new(log_blocks).named("log"));
        create(main.clone(), log.clone(), &names(1)).unwrap();
        let stick = Unplugged::after(&log, i64::MAX);
        let (set, _) = Flashlog::open(main.clone(), stick.clone(), &options).unwrap();
        (0..blocks).for_each(|at| put(&set, at, at + 1).unwrap());
        set.flush().unwrap();
        let numbers = (0..blocks).map(|at| at + 1).collect();
        Rig { main, log, stick, options, set: Lasting::of(set, policy.parse().unwrap()), numbers }
    }

    /// Writes, and flushes now and then, until something is refused.
    fn work(&mut self) {
        for number in 1000..2000 {
            let at = number * 37 % 100;
            let done = match number % 5 {
                0 => self.set.zero(at, 1, false).map(drop),
                _ => put(&self.set, at, number),
            };
            if done.is_err() {
                // It may be there or not.
                self.numbers[at as usize] = u64::MAX;
                return;
            }
            self.numbers[at as usize] = if number % 5 == 0 { 0 } else { number };
            if number % 11 == 10 && self.set.flush().is_err() {
                return;
            }
        }
        panic!("nothing was refused");
    }

    #[track_caller]
    fn has_all(&self, device: &dyn Device, what: &str) {
        for (at, number) in self.numbers.iter().enumerate().filter(|(_, number)| **number != u64::MAX) {
            let expected = if *number == 0 { vec![0; BLOCK_SIZE] } else { block(*number) };
            assert!(get(device, at as u64) == expected, "{what}: block {at} is not {number}");
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(self.set.protection(), Protection::Stopped { .. })
    }
}

fn few(mode: Mode) -> Options {
    Options { memory_blocks: 200, gather_blocks: 3, ..options(mode) }
}

#[test]
fn whoever_goes_on_with_a_log_that_was_put_back_misses_nothing_that_was_answered() {
    let cases = [(Mode::Asynchronous, ""), (Mode::Asynchronous, "log=stop"), (Mode::Synchronous, "log=read-only")];
    for (mode, policy) in cases {
        for (spared, loses_unflushed) in (0..40).flat_map(|spared| [(spared, false), (spared, true)]) {
            let what = format!("{mode:?} {policy}, pulled after {spared} requests, loses: {loses_unflushed}");
            let mut rig = Rig::new(few(mode), policy);
            let flushed = (*rig.log).clone();
            rig.stick.left.store(spared, Ordering::Relaxed);
            rig.work();
            assert!(rig.is_stopped(), "{what}");
            // As it went, or, if it has not been flushed since (a page, a flush, ...), as it was flushed.
            let is_as_flushed = loses_unflushed && spared < 2;
            let stick = Arc::new(if is_as_flushed { flushed } else { (*rig.log).clone() });
            let attached = rig.set.attach_log(stick.clone()).unwrap();
            assert!(matches!(attached, Attached::Back { .. }), "{what}: {attached:?}");
            assert!(matches!(rig.set.protection(), Protection::Protected), "{what}");
            rig.has_all(&rig.set, &what);
            // What is written now is in order behind it.
            put(&rig.set, 3, 77).unwrap();
            rig.numbers[3] = 77;
            rig.set.flush().unwrap();
            rig.has_all(&rig.set, &what);
            // After a power cut as well.
            let images = (Arc::new((*rig.main).clone()), Arc::new((*stick).clone()));
            let (again, _) = Flashlog::open(images.0, images.1, &rig.options).unwrap();
            rig.has_all(&again, &what);
            rig.set.settle().unwrap();
            rig.has_all(&*rig.main, &what);
        }
    }
}

#[test]
fn what_was_answered_and_memory_has_no_more_must_be_in_the_log() {
    let mut rig = Rig::new(Options { memory_blocks: 0, ..few(Mode::Asynchronous) }, "");
    let flushed = Arc::new((*rig.log).clone());
    // Some pages that were not flushed.
    for number in 500..520 {
        put(&rig.set, number % 100, number).unwrap();
        rig.numbers[number as usize % 100] = number;
    }
    rig.stick.left.store(0, Ordering::Relaxed);
    assert!(rig.set.flush().is_err() && rig.is_stopped());
    let refused = rig.set.attach_log(flushed).unwrap_err();
    assert!(matches!(refused, Error::Device(crate::Error::Damaged { .. })) && rig.is_stopped(), "{refused}");
}

#[test]
fn another_log_and_an_older_copy_are_refused_before_anything_is_written_and_the_right_one_is_taken() {
    let mut rig = Rig::new(few(Mode::Asynchronous), "");
    put(&rig.set, 7, 7).unwrap();
    let older = Arc::new((*rig.log).clone());
    rig.set.flush().unwrap();
    rig.numbers[7] = 7;
    rig.stick.left.store(2, Ordering::Relaxed);
    rig.work();
    assert!(rig.is_stopped());
    let before = rig.main.snapshot();
    let (other_main, foreign) = (MemoryDevice::new(1024), Arc::new(MemoryDevice::new(256 * 6)));
    create(Arc::new(other_main), foreign.clone(), &names(40)).unwrap();
    let refused = rig.set.attach_log(older).unwrap_err();
    assert!(matches!(refused, Error::MissingPages { .. }), "{refused}");
    let refused = rig.set.attach_log(foreign).unwrap_err();
    assert!(matches!(refused, Error::OtherSet { .. }), "{refused}");
    let refused = rig.set.attach_new_log(Arc::new(MemoryDevice::new(256 * 6)), Uuid([9; 16])).unwrap_err();
    assert!(refused.to_string().contains("the one that has gone has what main has not"), "{refused}");
    assert!(rig.is_stopped() && rig.main.snapshot() == before);
    // It goes again while it is attached; the next time all is well.
    for requests in 0..20 {
        let again = Unplugged::after(&rig.log, requests);
        if rig.set.attach_log(again.clone()).is_ok() {
            again.left.store(i64::MAX, Ordering::Relaxed);
            break;
        }
        assert!(rig.is_stopped(), "{requests}");
    }
    if rig.is_stopped() {
        rig.set.attach_log(rig.log.clone()).unwrap();
    }
    rig.has_all(&rig.set, "in the end");
    let bytes = block(5);
    rig.set.write(5, &[IoSlice::new(&bytes)]).unwrap();
    rig.set.settle().unwrap();
    assert!(get(&*rig.main, 5) == bytes);
}

/// So many blocks get to it, one after the other, and then it has gone.
struct CutOff {
    device: Arc<MemoryDevice>,
    left_blocks: AtomicI64,
}

impl Filter for CutOff {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        let bytes = bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
        for (at, block) in (first..).zip(bytes.chunks(BLOCK_SIZE)) {
            if self.left_blocks.fetch_sub(1, Ordering::Relaxed) <= 0 {
                let source = Arc::new(std::io::Error::from_raw_os_error(libc::ENODEV));
                let (operation, device) = (crate::Operation::Write, "cut off".into());
                return Err(crate::Error::Io { device, operation, first: Some(at), length_bytes: 0, source });
            }
            self.device.write(at, &[IoSlice::new(block)])?;
        }
        Ok(())
    }
}

/// What it gets from memory is in no order in which it was written: a power cut leaves what the log had, or all.
#[test]
fn a_set_that_is_cut_off_while_its_log_is_put_back_has_all_that_was_answered_or_what_the_log_had() {
    let (mut with_all, mut as_before) = (0, 0);
    for left_blocks in 0..400 {
        let options = Options { gather_blocks: 400, memory_blocks: 1000, ..few(Mode::Asynchronous) };
        let mut rig = Rig::new(options, "");
        let before: Vec<Vec<u8>> = rig.numbers.iter().map(|number| block(*number)).collect();
        // What was not flushed, the log loses as it goes.
        let log = Arc::new((*rig.log).clone());
        // More than a page names, as no two are in a row, and some of it twice.
        for number in (500..800).chain(1000..1100) {
            let at = number % 128 * 2;
            put(&rig.set, at, number).unwrap();
            rig.numbers[at as usize] = number;
        }
        rig.stick.left.store(0, Ordering::Relaxed);
        assert!(rig.set.flush().is_err() && rig.is_stopped());
        let all: Vec<Vec<u8>> = rig.numbers.iter().map(|number| block(*number)).collect();
        let is_attached = rig
            .set
            .attach_log(Arc::new(CutOff { device: log.clone(), left_blocks: AtomicI64::new(left_blocks) }))
            .is_ok();
        let images = (Arc::new((*rig.main).clone()), Arc::new((*log).clone()));
        let (set, _) = Flashlog::open(images.0, images.1, &rig.options).unwrap();
        let found: Vec<Vec<u8>> = (0..BLOCKS).map(|at| get(&set, at)).collect();
        assert!(found == all || found == before && !is_attached, "cut off after {left_blocks} blocks");
        if found == all {
            with_all += 1;
        } else {
            as_before += 1;
        }
        if is_attached {
            break;
        }
    }
    assert!(with_all > 0 && as_before > 128, "{with_all} and {as_before}");
}

/// It is in the order of addresses there, on several pages: the end of one of them is no state, neither for a backup nor for a main made anew.
#[test]
fn nobody_stops_within_what_a_log_got_when_it_was_put_back() {
    let (blocks, wide) = (1024, Options { gather_blocks: 400, memory_blocks: 2000, ..options(Mode::Asynchronous) });
    let mut rig = Rig::of((blocks, 256 * 40), wide, "");
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(blocks)).named("backup"));
    let set = rig.set.set().unwrap();
    set.create_backup(backup.clone(), Uuid([60; 16])).unwrap();
    set.backup(backup.clone()).unwrap();
    let all = |device: &dyn Device| (0..blocks).map(|at| get(device, at)).collect::<Vec<_>>();
    let before = all(&*backup);
    assert!(before == all(&rig.set));
    // From the last one on, so that what the first page names was written last.
    for at in (1..=300).rev().map(|number| 2 * number) {
        put(&rig.set, at, 5000 + at).unwrap();
        rig.numbers[at as usize] = 5000 + at;
    }
    rig.stick.left.store(0, Ordering::Relaxed);
    assert!(rig.set.flush().is_err() && rig.is_stopped());
    rig.set.attach_log(rig.log.clone()).unwrap();
    rig.has_all(&rig.set, "attached");
    let after = all(&rig.set);
    // Damage in the last page, and in what it names: it was durable before the first one was there, whether anything behind it says so or not.
    let last_page = (256..rig.log.blocks()).rfind(|at| get(&*rig.log, *at).starts_with(b"HFFLPAGE")).unwrap();
    let data = (0..rig.log.blocks()).find(|at| get(&*rig.log, *at) == block(5600)).unwrap();
    for (is_sealed, damaged) in [(false, last_page), (false, data), (true, last_page), (true, data)] {
        if is_sealed {
            rig.set.set().unwrap().seal().unwrap();
        }
        let log = Arc::new((*rig.log).clone());
        spoil(&log, damaged);
        let opened = Flashlog::open(Arc::new((*rig.main).clone()), Arc::new((*log).clone()), &rig.options);
        match opened {
            Ok((set, _)) => assert!(damaged == data && is_damaged(&set, 600) && get(&set, 598) == block(5598)),
            Err(_) => assert!(damaged == last_page, "sealed: {is_sealed}"),
        }
        let main = Arc::new(MemoryDevice::new(blocks + 256));
        let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: true, accept_damage: false };
        rebuild_at(Arc::new((*backup).clone()), log.clone(), main.clone(), &how).unwrap();
        let anew = all(&Flashlog::open(main, log, &rig.options).unwrap().0);
        let new = anew.iter().zip(&before).filter(|(a, b)| a != b).count();
        assert!(new == 0, "{new} blocks are new, damaged: {damaged}, sealed: {is_sealed}");
    }
    let narrow = Options { index_blocks: 100, ..rig.options.clone() };
    drop(rig.set);
    let (set, _) = Flashlog::open(rig.main, rig.log, &narrow).unwrap();
    let mut states = [0; 2];
    for requests in 0.. {
        let copy = Arc::new((*backup).clone());
        let is_done = set.backup(Unplugged::after(&copy, requests)).is_ok();
        finish_backup(copy.clone()).unwrap();
        let found = all(&*copy);
        assert!(found == before || found == after, "a backup cut off after {requests} requests is in between");
        states[usize::from(found == after)] += 1;
        if is_done {
            break;
        }
    }
    assert!(states.iter().all(|count| *count > 0), "{states:?}");
}

#[test]
fn what_is_known_to_be_bad_on_main_stays_known_and_the_set_of_before_writes_to_no_log() {
    let mut rig = Rig::new(few(Mode::Asynchronous), "");
    // The log tells of none of these blocks any more.
    rig.set.settle().unwrap();
    let before = rig.set.set().unwrap();
    before.stages.lock().lose_untold(200, (1, 2));
    before.stages.lock().lose_untold(201, (1, 2));
    put(&rig.set, 201, 5).unwrap();
    rig.numbers[201] = 5;
    let is_bad = |rig: &Rig| rig.set.read(200, &mut [IoSliceMut::new(&mut [0; BLOCK_SIZE])]).is_err();
    assert!(is_bad(&rig));
    rig.stick.left.store(2, Ordering::Relaxed);
    rig.work();
    assert!(rig.is_stopped());
    rig.set.attach_log(rig.log.clone()).unwrap();
    assert!(is_bad(&rig), "a block that nobody has is read");
    rig.numbers[200] = u64::MAX;
    rig.has_all(&rig.set, "attached");
    assert!(before.head.lock().labels.write(|_| ()).is_err());
    assert!(rig.set.set().unwrap().stages.lock().rewritten.contains_key(&201));
    put(&rig.set, 200, 6).unwrap();
    rig.set.settle().unwrap();
    assert!(!is_bad(&rig) && get(&*rig.main, 201) == block(5));
}

#[test]
fn a_log_is_given_to_no_set_that_has_one_nor_to_one_whose_main_has_failed() {
    let rig = Rig::new(few(Mode::Asynchronous), "");
    let refused = rig.set.attach_log(rig.log.clone()).unwrap_err();
    assert!(matches!(refused, Error::Protection { with: "with a log", .. }), "{refused}");
    let main = Unplugged::after(&rig.main, i64::MAX);
    let (set, _) = Flashlog::open(main.clone(), rig.log.clone(), &rig.options).unwrap();
    let set = Lasting::of(set, Policy::default());
    main.left.store(0, Ordering::Relaxed);
    put(&set, 0, 5).unwrap();
    assert!(set.settle().is_err());
    let refused = set.attach_log(rig.log.clone()).unwrap_err();
    assert!(matches!(refused, Error::Protection { with: "with a log", .. }), "{refused}");
}

/// Main has everything, but was not to go on without its log.
#[test]
fn a_stopped_set_takes_its_log_after_it_has_gone_again_while_it_was_attached() {
    let mut failed = 0;
    for requests in 0..60 {
        let mut rig = Rig::new(few(Mode::Synchronous), "log=read-only");
        rig.stick.left.store(5, Ordering::Relaxed);
        rig.work();
        assert!(rig.is_stopped(), "{requests}");
        let again = Unplugged::after(&rig.log, requests);
        match rig.set.attach_log(again.clone()) {
            Ok(_) => again.left.store(i64::MAX, Ordering::Relaxed),
            Err(_) => {
                failed += 1;
                assert!(rig.is_stopped(), "{requests}");
                rig.set.attach_log(rig.log.clone()).unwrap_or_else(|error| panic!("gone after {requests}: {error}"));
            }
        }
        rig.has_all(&rig.set, "attached");
        put(&rig.set, 3, 77).unwrap();
        rig.set.settle().unwrap();
    }
    assert!(failed > 5, "{failed}");
}
