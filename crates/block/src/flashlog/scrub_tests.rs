//! Main, backup and log against each other: what is damaged on one is made good from another, and spoils none.
use super::backup_tests::{BLOCKS, Set, contents};
use super::tests::{block, get, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn flip(device: &MemoryDevice, at: u64, bits: u8) {
    device.alter(at, |bytes| bytes[77] ^= bits).unwrap();
}

fn read_error(device: &Flashlog, at: u64) -> crate::Error {
    let mut bytes = vec![0; BLOCK_SIZE];
    device.read(at, &mut [IoSliceMut::new(&mut bytes)]).unwrap_err()
}

#[test]
fn flips_on_main_or_backup_are_made_good_from_whoever_has_the_block() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for bits in [1, 7] {
            let (set, device) = Set::in_mode(mode);
            put(&device, 700, 7).unwrap();
            device.backup(set.backup.clone()).unwrap();
            let old = contents(&*set.backup);
            // 3 and 4 are in the log behind the backup's state; 5 is only in memory.
            put(&device, 3, 33).unwrap();
            put(&device, 4, 44).unwrap();
            device.settle().unwrap();
            put(&device, 5, 55).unwrap();
            let new = contents(&device);
            for at in [3, 700, 1023] {
                flip(&set.main, at, bits);
            }
            for at in [4, 10, 510, 511] {
                flip(&set.backup, at, bits);
            }
            let scrubbed = device.scrub(set.backup.clone()).unwrap();
            assert_eq!(scrubbed.blocks, BLOCKS);
            assert_eq!(scrubbed.main_repaired, [3, 700, 1023]);
            // What is flipped back needs no other. Main has another version of 4.
            let (repaired, waiting) =
                if bits == 1 { (vec![4, 10, 510, 511], vec![]) } else { (vec![10, 510, 511], vec![4]) };
            assert_eq!((scrubbed.backup_repaired.clone(), scrubbed.waiting.clone()), (repaired, waiting), "{mode:?}");
            assert_eq!((scrubbed.lost.len(), scrubbed.doubtful.len(), scrubbed.is_good()), (0, 0, bits == 1));
            assert!(contents(&device) == new && (bits != 1 || contents(&*set.backup) == old));
            device.backup(set.backup.clone()).unwrap();
            assert!(contents(&*set.backup) == new && verify_backup(set.backup.clone()).unwrap().is_good());
            let nothing = Scrubbed { blocks: BLOCKS, ..Scrubbed::default() };
            assert_eq!(device.scrub(set.backup.clone()).unwrap(), nothing);
        }
    }
}

#[test]
fn what_nobody_has_is_told_read_and_copied_nowhere_until_it_is_written() {
    let (set, device) = Set::new();
    put(&device, 20, 200).unwrap();
    device.settle().unwrap();
    for device in [&set.main, &set.backup] {
        flip(device, 9, 7);
    }
    // Block 20 is on main and in the log, whose data begins at block 768.
    let at = (768..set.log.blocks()).find(|at| get(&*set.log, *at) == block(200)).unwrap();
    flip(&set.main, 20, 7);
    flip(&set.log, at, 14);
    let scrubbed = device.scrub(set.backup.clone()).unwrap();
    assert_eq!((scrubbed.lost.clone(), scrubbed.is_good()), (vec![9, 20], false));
    for at in [9, 20] {
        let error = read_error(&device, at);
        assert!(matches!(error, crate::Error::Damaged { first, .. } if first == at), "{error}");
    }
    // A copy does not take it over what the backup has.
    let before = get(&*set.backup, 20);
    device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
    assert!(matches!(device.backup(set.backup.clone()), Err(Error::Device(crate::Error::Damaged { .. }))));
    assert_eq!(get(&*set.backup, 20), before);
    for at in [9, 20] {
        put(&device, at, at * 100).unwrap();
        assert_eq!(get(&device, at), block(at * 100));
    }
    device.backup(set.backup.clone()).unwrap();
    assert!(device.scrub(set.backup.clone()).unwrap().is_good());
    assert!(contents(&*set.backup) == contents(&device));
}

#[test]
fn what_was_found_damaged_is_remembered_until_it_is_found_mended() {
    let (set, device) = Set::new();
    device.settle().unwrap();
    flip(&set.backup, 30, 7);
    let found = device.verify_backup(set.backup.clone()).unwrap();
    assert_eq!(found.damaged, std::slice::from_ref(&(30..31)));
    let backup = Bad { blocks: 1, first: 30 };
    assert_eq!(device.status().damage, Damage { backup, ..Damage::default() });
    for device in [&set.main, &set.backup] {
        flip(device, 9, 7);
        flip(device, 11, 7);
    }
    device.scrub(set.backup.clone()).unwrap();
    let main = Bad { blocks: 2, first: 9 };
    let damage = Damage { main, ..Damage::default() };
    assert_eq!(device.status().damage, damage, "block 30 was mended");
    // Through an opening, without its log, with its log again, and for whoever looks at the label.
    drop(device);
    let device = set.reopen();
    assert_eq!(device.status().damage, damage);
    let lasting = Lasting::of(device, super::lasting_tests::alone());
    lasting.settle().unwrap();
    lasting.detach_log().unwrap();
    assert_eq!((lasting.status().0.damage, inspect(&*set.main).unwrap().unwrap().damage), (damage, damage));
    lasting.attach_log(set.log.clone()).unwrap();
    let device = lasting.set().unwrap();
    // The log knows nothing of them.
    assert!(device.scrub_with_log().unwrap().is_good());
    assert_eq!(device.status().damage, damage);
    for at in [9, 11] {
        put(&*device, at, at * 100).unwrap();
    }
    device.backup(set.backup.clone()).unwrap();
    assert_eq!(device.status().damage, damage, "nobody has looked yet");
    assert!(device.verify_backup(set.backup.clone()).unwrap().is_good());
    assert_eq!(device.status().damage, damage, "that is about the backup");
    assert!(device.scrub(set.backup.clone()).unwrap().is_good());
    assert_eq!(device.status().damage, Damage::default());
    drop((device, lasting));
    assert_eq!(set.reopen().status().damage, Damage::default());
}

#[test]
fn damaged_checksums_come_back_where_main_and_backup_agree() {
    let (set, device) = Set::new();
    put(&device, 3, 33).unwrap();
    device.settle().unwrap();
    flip(&set.backup, BLOCKS, 7);
    flip(&set.main, 100, 7);
    let scrubbed = device.scrub(set.backup.clone()).unwrap();
    let only = Scrubbed { blocks: BLOCKS, doubtful: vec![100], waiting: vec![3], ..Scrubbed::default() };
    assert_eq!(scrubbed, only);
    assert_eq!(verify_backup(set.backup.clone()).unwrap().damaged, [3..4, 100..101]);
    // Whoever knows better writes it.
    put(&device, 100, 101).unwrap();
    device.backup(set.backup.clone()).unwrap();
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
    assert!(device.scrub(set.backup.clone()).unwrap().is_good());
}

/// Ends a writer.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_set_that_is_written_meanwhile_has_nothing_damaged() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 1;
                while !is_done.load(Ordering::Relaxed) {
                    put(&device, number * 7 % 600, number).unwrap();
                    if number % 10 == 0 {
                        device.flush().unwrap();
                    }
                    number += 1;
                }
            });
            // Also if this fails: the writer is waited for.
            let _ends = Ends(&is_done);
            let mut is_whole = true;
            for round in 0..15 {
                match device.scrub(set.backup.clone()) {
                    Ok(scrubbed) => {
                        assert_eq!(scrubbed, Scrubbed { blocks: BLOCKS, ..Scrubbed::default() }, "round {round}");
                    }
                    Err(Error::LetGo { .. } | Error::Gap { .. }) => {}
                    Err(Error::Incomplete { .. }) if !is_whole => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
                match device.backup(set.backup.clone()) {
                    Ok(_) => is_whole = true,
                    // It is being copied then.
                    Err(Error::Overflowed { .. }) => is_whole = false,
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        });
        device.backup(set.backup.clone()).unwrap();
        assert!(contents(&*set.backup) == contents(&device));
    }
}

#[test]
fn a_backup_that_must_be_brought_up_to_date_is_not_compared() {
    let (set, device) = Set::new();
    let past = device.past(set.backup.clone(), At::Now).unwrap();
    assert!(matches!(device.scrub(set.backup.clone()), Err(Error::Busy { .. })));
    drop(past);
    for number in 0..6000 {
        put(&device, number % BLOCKS, number + 9).unwrap();
    }
    assert!(matches!(device.scrub(set.backup.clone()), Err(Error::Gap { .. })));
    let old: Arc<MemoryDevice> = Arc::new((*set.backup).clone());
    device.backup(set.backup.clone()).unwrap();
    assert!(device.scrub(set.backup.clone()).unwrap().is_good());
    assert!(matches!(device.scrub(old), Err(Error::Gap { .. })));
}

/// A backup device: when it is first read at some block, main goes on alone and that block is written.
struct Parting {
    below: Arc<MemoryDevice>,
    set: Lasting,
    at: u64,
    is_done: AtomicBool,
}

impl Filter for Parting {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let blocks = bufs.iter().map(|buf| buf.len() / BLOCK_SIZE).sum::<usize>() as u64;
        if (first..first + blocks).contains(&self.at) && !self.is_done.swap(true, Ordering::Relaxed) {
            self.set.detach_log().unwrap();
            put(&self.set, self.at, 99).unwrap();
        }
        self.below.read(first, bufs)
    }
}

#[test]
fn what_main_has_written_alone_meanwhile_is_no_damage() {
    let (set, device) = Set::new();
    device.backup(set.backup.clone()).unwrap();
    put(&device, 100, 5).unwrap();
    device.flush().unwrap();
    // So that it looks at the block again.
    flip(&set.backup, 100, 1);
    let lasting = Lasting::of(device, Policy::default());
    let flashlog = lasting.set().unwrap();
    let parting = Parting { below: set.backup.clone(), set: lasting, at: 100, is_done: AtomicBool::new(false) };
    let parting = Arc::new(parting);
    let scrubbed = flashlog.scrub(parting.clone());
    assert!(parting.is_done.load(Ordering::Relaxed));
    assert!(scrubbed.is_err(), "{scrubbed:?}");
    assert!(get(&parting.set, 100) == block(99));
}

#[test]
fn without_a_backup_main_is_compared_with_what_the_log_has() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let (set, device) = Set::in_mode(mode);
        for at in 100..160 {
            put(&device, at, 2 * at).unwrap();
        }
        device.settle().unwrap();
        put(&device, 110, 7).unwrap();
        let good = contents(&device);
        flip(&set.main, 105, 7);
        flip(&set.main, 120, 1);
        // Nobody knows that this one is damaged.
        flip(&set.main, 20, 1);
        let scrubbed = device.scrub_with_log().unwrap();
        let expected =
            Scrubbed { blocks: 60, main_repaired: vec![105, 120], unverified: BLOCKS - 60, ..Scrubbed::default() };
        assert_eq!(scrubbed, expected, "{mode:?}");
        flip(&set.main, 20, 1);
        assert!(contents(&device) == good);
        // Neither has it any more.
        flip(&set.main, 130, 7);
        let log = set.log.snapshot();
        let (blocks, _none) = log.as_chunks::<BLOCK_SIZE>();
        let at = blocks.iter().position(|bytes| bytes[..] == block(260)[..]).unwrap();
        flip(&set.log, at as u64, 7);
        let scrubbed = device.scrub_with_log().unwrap();
        assert_eq!((scrubbed.lost, scrubbed.main_repaired), (vec![130], vec![]), "{mode:?}");
        assert!(matches!(read_error(&device, 130), crate::Error::Damaged { first: 130, .. }));
        put(&device, 130, 1).unwrap();
        assert_eq!(get(&device, 130), block(1));
    }
}
