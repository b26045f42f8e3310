//! Sets that become larger with their main device: while they are used, cut off anywhere, with a backup from before, by hand.
use super::lasting_tests::{BLOCKS, Devices, alone};
use super::staging::Backup;
use super::tests::{Unplugged, Unreadable, block, get, names, options, put, spoil};
use super::*;
use crate::{Device, Filter, MemoryDevice};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const LARGER: u64 = 2 * BLOCKS;
const LAST: u64 = 77_777;

/// That main can be lost: this backup and the log have everything, also what is in the last block.
fn check_without_main(devices: &Devices, backup: &MemoryDevice, mode: Mode, blocks: u64, what: &str) {
    let copies = || (Arc::new(backup.clone()), Arc::new((*devices.log).clone()));
    let (of, log) = copies();
    let too_small = Arc::new(MemoryDevice::new(blocks + 255));
    assert!(matches!(rebuild(of, log, too_small, Uuid([71; 16])), Err(Error::TooSmall { .. })), "{what}");
    let (of, log) = copies();
    let main = Arc::new(MemoryDevice::new(blocks + 256));
    assert_eq!(rebuild(of, log.clone(), main.clone(), Uuid([71; 16])).unwrap(), blocks, "{what}");
    let (set, _) = Flashlog::open(main, log, &options(mode)).unwrap();
    devices.check(&set, what);
    assert!(get(&set, blocks - 1) == block(LAST), "{what}");
}

fn is_protected(set: &Lasting) -> bool {
    matches!(set.protection(), Protection::Protected)
}

/// Main with its labels, wherever they are.
fn seen(main: &Arc<MemoryDevice>, set_blocks: u64) -> Arc<dyn Device> {
    match inspect(&**main).unwrap() {
        Some(_) => main.clone(),
        None => outgrown(main.clone(), set_blocks).unwrap().expect("labels"),
    }
}

#[test]
fn a_set_becomes_larger_while_it_is_used_with_its_log_and_without() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        let set = Lasting::of(set, alone());
        assert_eq!((set.grow(0).unwrap(), set.grow(BLOCKS).unwrap()), (BLOCKS, BLOCKS));
        assert_eq!((set.grow(LARGER).unwrap(), set.blocks()), (LARGER, LARGER));
        assert!(is_protected(&set));
        devices.check(&set, "grown");
        devices.write_some(&set, 20_000, 30);
        put(&set, LARGER - 1, LAST).unwrap();
        set.flush().unwrap();
        // What is on the old backup is worth as much as before, but it cannot become larger.
        let of_set = set.set().unwrap();
        assert!(
            matches!(of_set.backup(devices.backup.clone()), Err(Error::Outgrown { .. })),
            "its device is too small"
        );
        assert!(matches!(of_set.scrub(devices.backup.clone()), Err(Error::Outgrown { .. })));
        let past = of_set.past(devices.backup.clone(), At::Now).unwrap();
        devices.check(&past, "as a state");
        assert!((past.blocks(), get(&past, LARGER - 1)) == (LARGER, block(LAST)));
        drop(past);
        check_without_main(&devices, &devices.backup, mode, LARGER, "with the old backup");
        let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(LARGER)));
        of_set.create_backup(backup.clone(), Uuid([61; 16])).unwrap();
        of_set.backup(backup.clone()).unwrap();
        drop(of_set);
        devices.write_some(&set, 30_000, 30);
        set.flush().unwrap();
        check_without_main(&devices, &backup, mode, LARGER, "with a new backup");

        // Without its log, which comes back to a larger set; a third time, from its end.
        set.detach_log().unwrap();
        assert_eq!(set.grow(3 * BLOCKS).unwrap(), 3 * BLOCKS);
        put(&set, 3 * BLOCKS - 1, LAST).unwrap();
        devices.write_some(&set, 40_000, 30);
        set.attach_log(devices.log.clone()).unwrap();
        assert!(is_protected(&set));
        check_without_main(&devices, &backup, mode, 3 * BLOCKS, "attached");
        drop(set);
        let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(mode)).unwrap();
        assert_eq!(set.blocks(), 3 * BLOCKS);
        devices.check(&set, "opened again");
    }
}

#[test]
fn states_in_between_are_there_from_before_and_after_the_set_became_larger() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set) = Devices::new(mode);
        let set = Lasting::of(set, alone());
        let all = |device: &dyn Device, blocks| (0..blocks).map(|at| get(device, at)).collect::<Vec<_>>();
        let last = |set: &Lasting| {
            let barriers = set.set().unwrap().barriers(devices.backup.clone()).unwrap();
            barriers.last().unwrap().number
        };
        devices.write_some(&set, 20_000, 30);
        set.flush().unwrap();
        let mut states = vec![(last(&set), all(&set, BLOCKS))];
        set.grow(LARGER).unwrap();
        for round in 0..2 {
            put(&set, LARGER - 1 - round, LAST).unwrap();
            devices.write_some(&set, 30_000 + round * 1000, 30);
            set.flush().unwrap();
            states.push((last(&set), all(&set, LARGER)));
        }
        let check = |past: Past, state: &[Vec<u8>], what: &str| {
            assert_eq!(past.blocks(), LARGER, "{what}");
            assert!(all(&past, BLOCKS) == state[..BLOCKS as usize], "{what}");
            let zeros = vec![0; crate::BLOCK_SIZE];
            let behind = (BLOCKS..LARGER).all(|at| get(&past, at) == *state.get(at as usize).unwrap_or(&zeros));
            assert!(behind, "{what}");
        };
        for (number, state) in &states {
            let past = set.set().unwrap().past(devices.backup.clone(), At::Barrier(*number)).unwrap();
            check(past, state, &format!("{mode:?}, in use, barrier {number}"));
        }
        drop(set);
        for (number, state) in &states {
            let past = Past::open(devices.backup.clone(), devices.log.clone(), At::Barrier(*number)).unwrap();
            check(past, state, &format!("{mode:?}, barrier {number}"));
        }
    }
}

#[test]
fn a_set_does_not_become_larger_while_its_backup_is_in_use() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let set = Lasting::of(set, alone());
    let past = set.set().unwrap().past(devices.backup.clone(), At::Now).unwrap();
    assert!(set.grow(LARGER).unwrap_err().to_string().contains("its backup is in use"));
    assert!(is_protected(&set) && set.blocks() == BLOCKS);
    drop(past);
    assert_eq!(set.grow(LARGER).unwrap(), LARGER);
}

#[test]
fn growing_that_is_cut_off_anywhere_leaves_a_set_that_opens_and_lacks_nothing() {
    let mut sizes = [0; 2];
    for of_main in [true, false] {
        for requests in 0..40 {
            let what = format!("main {of_main}, cut off after {requests} requests");
            let (devices, set) = Devices::new(Mode::Synchronous);
            drop(set);
            // By hand: its labels are found where they were.
            devices.main.grow(LARGER + 256).unwrap();
            let (main, log) = (Unplugged::after(&devices.main, 1000), Unplugged::after(&devices.log, 1000));
            let shorter = outgrown(main.clone(), BLOCKS).unwrap().expect("labels");
            let (set, _) = Flashlog::open(shorter, log.clone(), &options(Mode::Synchronous)).unwrap();
            let set = Lasting::of(set, alone());
            devices.write_some(&set, 20_000, 20);
            set.flush().unwrap();
            if of_main { &main } else { &log }.left.store(requests, Ordering::Relaxed);
            let grown = set.grow(0);
            if !of_main {
                // Main goes on, whatever became of the log.
                devices.write_some(&set, 25_000, 5);
                set.flush().unwrap();
            }
            drop(set);

            let main = seen(&devices.main, BLOCKS);
            let set = match Flashlog::open(main.clone(), devices.log.clone(), &options(Mode::Synchronous)) {
                Ok((set, _)) => Lasting::of(set, alone()),
                Err(error) => {
                    assert!(matches!(error, Error::Alone { .. }), "{what}: {error}");
                    let set = Lasting::open_alone(main, &options(Mode::Synchronous), alone(), false).unwrap();
                    set.attach_log(devices.log.clone()).unwrap();
                    set
                }
            };
            assert!([BLOCKS, LARGER].contains(&set.blocks()), "{what}: {}", set.blocks());
            assert!(grown.is_err() || set.blocks() == LARGER, "{what}");
            sizes[usize::from(set.blocks() == LARGER)] += 1;
            devices.check(&set, &what);
            assert_eq!(set.grow(0).unwrap(), LARGER, "{what}");
            put(&set, LARGER - 1, LAST).unwrap();
            devices.write_some(&set, 30_000, 10);
            set.flush().unwrap();
            check_without_main(&devices, &devices.backup, Mode::Synchronous, LARGER, &what);
            drop(set);
            // Nothing of the old labels is left where somebody would look for them.
            devices.main.grow(LARGER + 1000).unwrap();
            let (set, _) =
                Flashlog::open(seen(&devices.main, LARGER), devices.log.clone(), &options(Mode::Synchronous)).unwrap();
            devices.check(&set, &what);
        }
    }
    assert!(sizes.iter().all(|count| *count > 5), "it was cut off on both sides of the step: {sizes:?}");
}

#[test]
fn a_block_that_cannot_be_read_at_the_new_end_does_not_hide_labels_at_the_old_one() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    devices.main.grow(LARGER + 256).unwrap();
    for at in [LARGER, LARGER + 7, LARGER + 127] {
        let (main, label) = as_labelled(Unreadable::at(&devices.main, at), Some(BLOCKS)).unwrap();
        assert_eq!(label.map(|label| label.uuid), Some(names(1).main), "block {at}");
        let (set, _) = Flashlog::open(main, devices.log.clone(), &options(Mode::Synchronous)).unwrap();
        devices.check(&set, "with a block that cannot be read");
    }
}

#[test]
fn a_torn_label_at_the_new_end_does_not_hide_those_at_the_old_one() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    let device_blocks = LARGER + 256;
    devices.main.grow(device_blocks).unwrap();
    let (main, log) = (Arc::new((*devices.main).clone()), Arc::new((*devices.log).clone()));
    let open = |main: Arc<dyn Device>, log| {
        let (main, _) = as_labelled(main, Some(BLOCKS)).unwrap();
        Lasting::of(Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap().0, alone())
    };
    open(main.clone(), log).grow(0).unwrap();
    // Both copies of a label, as after a power cut while they were written.
    let label = super::labels::Labelled::read(main, super::format::Role::Main).unwrap().label;
    for (at, mut bytes) in (label.place()..).zip(label.encode()) {
        bytes[2048..].fill(0);
        devices.main.write(at, &[IoSlice::new(&bytes)]).unwrap();
    }
    assert!(matches!(inspect(&*devices.main), Err(Error::Damaged { .. })));
    let (_, label) = as_labelled(devices.main.clone(), Some(BLOCKS)).unwrap();
    assert_eq!(label.map(|label| label.blocks), Some(BLOCKS));
    assert!(matches!(as_labelled(devices.main.clone(), None), Err(Error::Damaged { block: LARGER, .. })));
    let set = open(devices.main.clone(), devices.log.clone());
    devices.check(&set, "torn");
    assert_eq!(set.grow(0).unwrap(), LARGER);
    devices.check(&set, "larger");
}

/// A main that takes so many writes from a block on.
struct BadEnd {
    main: Arc<MemoryDevice>,
    from: u64,
    left: AtomicI64,
}

impl Filter for BadEnd {
    fn below(&self) -> &dyn Device {
        &*self.main
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        if first >= self.from && self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(crate::Error::Unsuitable { device: "main".into(), reason: "bad blocks" });
        }
        self.main.write(first, bufs)
    }
}

/// A set whose main is larger already, with labels where it ended.
fn on_bad_end(main: &Arc<BadEnd>, log: Arc<dyn Device>) -> Lasting {
    main.main.grow(LARGER + 256).unwrap();
    let shorter = outgrown(main.clone(), BLOCKS).unwrap().expect("labels");
    Lasting::of(Flashlog::open(shorter, log, &options(Mode::Synchronous)).unwrap().0, alone())
}

#[test]
fn a_set_that_cannot_become_larger_has_its_log_back_or_says_that_it_has_not() {
    let mut told = 0;
    for requests in (0..30).chain([1000]) {
        let what = format!("the log failed after {requests} requests");
        let (devices, set) = Devices::new(Mode::Synchronous);
        drop(set);
        let log = Unplugged::after(&devices.log, 1000);
        let main = Arc::new(BadEnd { main: devices.main.clone(), from: LARGER, left: AtomicI64::new(0) });
        let set = on_bad_end(&main, log.clone());
        devices.write_some(&set, 20_000, 20);
        set.flush().unwrap();
        log.left.store(requests, Ordering::Relaxed);
        let error = set.grow(0).unwrap_err().to_string();
        let says_so = error.contains("its log has not come back");
        told += u32::from(says_so);
        // It may have failed before it left, too.
        assert!(is_protected(&set) || says_so || error.contains("unplugged"), "{what}: {error}");
        assert!(is_protected(&set) || requests < 1000, "{what}: {error}");
        devices.write_some(&set, 25_000, 20);
        set.flush().unwrap();
        assert_eq!(set.blocks(), BLOCKS, "{what}");
        if super::lasting_tests::is_alone(&set) {
            set.attach_log(devices.log.clone()).unwrap();
        }
        devices.check(&set, &what);
        devices.check_without_main(Mode::Synchronous, &what);
    }
    assert!(told > 3, "{told}");
}

#[test]
fn a_main_with_labels_at_both_ends_takes_no_changes() {
    let mut both = 0;
    for writes in 0..12 {
        let what = format!("main failed behind the set after {writes} writes");
        let (devices, set) = Devices::new(Mode::Synchronous);
        drop(set);
        let main = Arc::new(BadEnd { main: devices.main.clone(), from: BLOCKS, left: AtomicI64::new(1000) });
        let set = on_bad_end(&main, devices.log.clone());
        devices.write_some(&set, 20_000, 20);
        set.flush().unwrap();
        main.left.store(writes, Ordering::Relaxed);
        let grown = set.grow(0);
        let has_both =
            inspect(&*devices.main).unwrap().is_some() && outgrown(devices.main.clone(), BLOCKS).unwrap().is_some();
        both += u32::from(has_both);
        // Also if it works again.
        main.left.store(1000, Ordering::Relaxed);
        if has_both || matches!(set.protection(), Protection::Stopped { .. }) {
            assert!(grown.is_err() && put(&set, 3, 3).is_err(), "{what}: {grown:?}");
        }
        drop(set);
        let main = seen(&devices.main, BLOCKS);
        let set = match Flashlog::open(main.clone(), devices.log.clone(), &options(Mode::Synchronous)) {
            Ok((set, _)) => Lasting::of(set, alone()),
            Err(Error::Alone { .. }) => {
                let set = Lasting::open_alone(main, &options(Mode::Synchronous), alone(), false).unwrap();
                set.attach_log(devices.log.clone()).unwrap();
                set
            }
            Err(error) => panic!("{what}: {error}"),
        };
        devices.check(&set, &what);
        assert_eq!(set.grow(0).unwrap(), LARGER, "{what}");
        devices.check(&set, &what);
    }
    assert!(both > 0);
}

#[test]
fn a_main_without_labels_where_it_ended_has_outgrown_none() {
    for blocks in [BLOCKS, BLOCKS + 700, 5000] {
        assert!(outgrown(Arc::new(MemoryDevice::new(blocks)), BLOCKS).unwrap().is_none());
    }
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    assert!(outgrown(devices.main.clone(), BLOCKS + 256).unwrap().is_none(), "nothing is behind that");
    devices.main.grow(LARGER).unwrap();
    assert!(outgrown(devices.main.clone(), BLOCKS + 257).unwrap().is_none(), "not there");
}

/// A set that has become larger since its backup, on a device with room for more.
fn outgrown_backup(mode: Mode, larger: u64) -> (Devices, Lasting, Arc<MemoryDevice>) {
    let (devices, set) = Devices::new(mode);
    let backup = Arc::new(MemoryDevice::new(Backup::blocks_least(3 * BLOCKS)));
    set.create_backup(backup.clone(), Uuid([61; 16])).unwrap();
    set.backup(backup.clone()).unwrap();
    devices.write_some(&set, 20_000, 30);
    let set = Lasting::of(set, alone());
    assert_eq!(set.grow(larger).unwrap(), larger);
    devices.write_some(&set, 30_000, 30);
    put(&set, larger - 1, LAST).unwrap();
    set.flush().unwrap();
    (devices, set, backup)
}

fn is_same(set: &Lasting, backup: &MemoryDevice, what: &str) {
    let all = |device: &dyn Device| (0..set.blocks()).map(|at| get(device, at)).collect::<Vec<_>>();
    assert!(all(set) == all(backup), "{what}");
}

#[test]
fn a_backup_becomes_larger_with_its_set_where_its_device_has_room() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (devices, set, backup) = outgrown_backup(mode, LARGER);
        let done = set.set().unwrap().backup(backup.clone()).unwrap();
        assert!(!done.is_full, "only what is new is copied: {done:?}");
        is_same(&set, &backup, "enlarged");
        assert!(verify_backup(backup.clone()).unwrap().is_good());
        check_without_main(&devices, &backup, mode, LARGER, "with the larger backup");
        // A new log does not know what the backup has: it is copied anew.
        set.detach_log().unwrap();
        assert_eq!(set.grow(3 * BLOCKS).unwrap(), 3 * BLOCKS);
        set.attach_new_log(devices.log.clone(), Uuid([62; 16])).unwrap();
        put(&set, 3 * BLOCKS - 1, LAST).unwrap();
        assert!(set.set().unwrap().backup(backup.clone()).unwrap().is_full);
        is_same(&set, &backup, "copied anew");
        assert!(verify_backup(backup.clone()).unwrap().is_good());
        devices.write_some(&set, 40_000, 30);
        set.set().unwrap().backup(backup.clone()).unwrap();
        is_same(&set, &backup, "the next one");
    }
}

#[test]
fn a_backup_that_is_cut_off_while_it_becomes_larger_has_a_state_at_every_request() {
    let mut cut_off = 0;
    for requests in (0..).step_by(3) {
        let (devices, set, backup) = outgrown_backup(Mode::Synchronous, LARGER);
        let done = set.set().unwrap().backup(Unplugged::after(&backup, requests));
        // Its old state, or that with zeros behind, or the new one: with the log, everything in any case.
        check_without_main(&devices, &backup, Mode::Synchronous, LARGER, &format!("after {requests} requests"));
        assert!(verify_backup(backup.clone()).unwrap().is_good(), "after {requests} requests");
        set.set().unwrap().backup(backup.clone()).unwrap();
        is_same(&set, &backup, &format!("the next one after {requests} requests"));
        if done.is_ok() {
            break;
        }
        cut_off += 1;
    }
    assert!(cut_off > 5, "{cut_off} were cut off");
}

#[test]
fn a_backup_with_damaged_checksums_becomes_larger_and_none_are_made_of_what_it_has() {
    // The last group gets more blocks.
    for (at, sums) in [(400, BLOCKS), (BLOCKS - 1, BLOCKS + 1)] {
        for requests in (0..).step_by(3) {
            let what = format!("block {at} after {requests} requests");
            let (devices, set, backup) = outgrown_backup(Mode::Synchronous, LARGER);
            [at, sums].into_iter().for_each(|block| spoil(&backup, block));
            let of_set = set.set().unwrap();
            let cut = Unplugged::after(&backup, requests);
            let _cut_off = of_set.backup(cut.clone());
            if !verify_backup(backup.clone()).unwrap().damaged.is_empty() {
                assert!(of_set.status().damage.backup.blocks > 0, "{what}");
            }
            let done = of_set.backup(backup.clone()).unwrap();
            assert!(!done.is_full, "{what}: {done:?}");
            let doubtful = Scrubbed { blocks: LARGER, doubtful: vec![at], ..Scrubbed::default() };
            assert_eq!(of_set.scrub(backup.clone()).unwrap(), doubtful, "{what}");
            assert_eq!(of_set.status().damage.backup, Bad { blocks: 1, first: at }, "{what}");
            assert_eq!(verify_backup(backup).unwrap().damaged, std::slice::from_ref(&(at..at + 1)), "{what}");
            devices.check(&set, &what);
            if cut.left.load(Ordering::Relaxed) >= 0 {
                break;
            }
        }
    }
}

/// Makes main anew on its own device, cut off after each number of requests to that, of which what is left is checked, until it is done. Gives the
/// device then.
fn made_anew_in_place(
    devices: &Devices,
    with_log: bool,
    mut check: impl FnMut(Arc<MemoryDevice>, &str),
) -> Arc<MemoryDevice> {
    for requests in 0.. {
        let main = Arc::new((*devices.main).clone());
        let cut = Unplugged::after(&main, requests);
        let (backup, log) = (Arc::new((*devices.backup).clone()), Arc::new((*devices.log).clone()));
        let made = match with_log {
            true => rebuild(backup, log, cut, Uuid([71; 16])).map(drop),
            false => rebuild_without_log(backup, cut, Uuid([71; 16]), false).map(drop),
        };
        if made.is_ok() {
            return main;
        }
        check(main, &format!("with its log {with_log}, cut off after {requests} requests"));
    }
    unreachable!("it is done some time");
}

#[test]
fn a_main_that_has_become_larger_is_what_it_was_or_none_while_it_is_made_anew_and_has_no_old_labels_then() {
    for with_log in [true, false] {
        let (devices, set) = Devices::new(Mode::Synchronous);
        drop(set);
        devices.main.grow(LARGER + 256).unwrap();
        let (mut as_before, mut none) = (0, 0);
        let main = made_anew_in_place(&devices, with_log, |main, what| {
            let (main, label) = as_labelled(main, Some(BLOCKS)).unwrap();
            let is_old = label.is_some_and(|label| label.uuid == names(1).main);
            *if is_old { &mut as_before } else { &mut none } += 1;
            if is_old {
                let log = Arc::new((*devices.log).clone());
                let (set, _) = Flashlog::open(main, log, &options(Mode::Synchronous)).unwrap();
                devices.check(&set, what);
            }
        });
        assert!(as_before > 0 && none > 2, "{as_before}, {none}");
        assert!(outgrown(main.clone(), BLOCKS).unwrap().is_none(), "its own are at its end");
    }
}

#[test]
fn of_old_labels_nothing_is_left_where_the_set_has_its_data() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    // A copy of main from before, on a larger disk.
    let copy = Arc::new((*devices.main).clone());
    copy.grow(LARGER + 256).unwrap();
    let set = Lasting::of(set, alone());
    set.grow(LARGER).unwrap();
    drop(set);
    rebuild(devices.backup.clone(), devices.log.clone(), copy.clone(), Uuid([71; 16])).unwrap();
    let (set, _) = Flashlog::open(copy, devices.log.clone(), &options(Mode::Synchronous)).unwrap();
    devices.check(&set, "made anew");
    for at in BLOCKS..LARGER {
        assert!(get(&set, at).iter().all(|byte| *byte == 0), "block {at}");
    }
}

#[test]
fn what_main_has_around_the_rest_of_its_old_labels_stays_as_long_as_it_is_a_main() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let set = Lasting::of(set, alone());
    set.detach_log().unwrap();
    let labels: Vec<Vec<u8>> = (BLOCKS..BLOCKS + 128).map(|at| get(&*devices.main, at)).collect();
    set.grow(LARGER).unwrap();
    put(&set, BLOCKS + 200, LAST).unwrap();
    drop(set);
    // Its growing was cut off, so its log is as large as before, and the old labels are there.
    for (at, label) in (BLOCKS..).zip(&labels) {
        devices.main.write(at, &[IoSlice::new(label)]).unwrap();
    }
    assert!(outgrown(devices.main.clone(), BLOCKS).unwrap().is_some());
    let mut as_before = 0;
    let main = made_anew_in_place(&devices, true, |main, what| {
        let (main, label) = as_labelled(main, Some(BLOCKS)).unwrap();
        if let Some(label) = label.filter(|label| label.uuid == names(1).main) {
            assert!((label.blocks, get(&*main, BLOCKS + 200)) == (LARGER, block(LAST)), "{what}");
            as_before += 1;
        }
    });
    assert!(as_before > 0 && outgrown(main, BLOCKS).unwrap().is_none());
}
