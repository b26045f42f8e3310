//! Checksums on backups: true after whatever happened, and damage is told and stays where it is.
use super::backup_tests::{BLOCKS, Set, contents};
use super::format::Decoded;
use super::staging::Backup;
use super::tests::{Unplugged, block, open, put};
use super::*;
use crate::{BLOCK_SIZE, Device, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;

fn write_some(device: &Flashlog, seed: u64) {
    for number in 0..150 {
        put(device, (number * 37 + seed * 11) % BLOCKS, seed * 1000 + number).unwrap();
    }
}

#[test]
fn checksums_are_true_after_copies_and_increments() {
    let (set, device) = Set::new();
    let all_good = Verified { blocks: BLOCKS, ..Verified::default() };
    assert_eq!(verify_backup(set.backup.clone()).unwrap(), all_good);
    for seed in 1..6 {
        write_some(&device, seed);
        let (_, verified) = device.backup_and_verify(set.backup.clone()).unwrap();
        assert!(verified.is_good() && verified.blocks > 0);
        assert_eq!(verify_backup(set.backup.clone()).unwrap(), all_good);
        let before = set.backup.snapshot();
        assert!(contents(&*set.backup) == contents(&device) && set.backup.snapshot() == before);
    }
    // One block alone: what shares its block of checksums is read as well.
    put(&device, 1023, 5).unwrap();
    assert_eq!(device.backup_and_verify(set.backup.clone()).unwrap().1.blocks, 4);
    // Copied whole, with the log in use.
    device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
    assert!(matches!(verify_backup(set.backup.clone()), Err(Error::Incomplete { .. })));
    device.backup(set.backup.clone()).unwrap();
    assert_eq!(verify_backup(set.backup.clone()).unwrap(), all_good);
}

#[test]
fn checksums_are_true_wherever_a_backup_is_cut_off() {
    for requests in 0..40 {
        for is_new in [false, true] {
            let (set, device) = Set::new();
            if is_new {
                device.create_backup(set.backup.clone(), Uuid([61; 16])).unwrap();
            }
            write_some(&device, 1);
            let _ = device.backup(Unplugged::after(&set.backup, requests));
            match verify_backup(set.backup.clone()) {
                Err(Error::Incomplete { .. }) if is_new => {}
                verified => assert!(verified.unwrap().is_good(), "after {requests} requests"),
            }
            write_some(&device, 2);
            device.backup(set.backup.clone()).unwrap();
            assert!(verify_backup(set.backup.clone()).unwrap().is_good(), "after {requests} requests");
            assert!(contents(&*set.backup) == contents(&device));
        }
    }
}

#[test]
fn damage_in_a_backup_is_told_and_read_nowhere() {
    let (set, device) = Set::new();
    put(&device, 3, 33).unwrap();
    device.flush().unwrap();
    for at in [3, 9, 10, 600] {
        set.backup.alter(at, |bytes| bytes[77] ^= 7).unwrap();
    }
    // A flipped bit is damage, too, although readers make it good.
    set.backup.alter(12, |bytes| bytes[77] ^= 1).unwrap();
    let verified = verify_backup(set.backup.clone()).unwrap();
    assert_eq!((verified.damaged.clone(), verified.bad_blocks()), (vec![3..4, 9..11, 12..13, 600..601], 5));
    let past = device.past(set.backup.clone(), At::Now).unwrap();
    let mut bytes = vec![0; BLOCK_SIZE];
    for (at, expected) in [(3, Some(33)), (9, None), (10, None), (11, Some(12)), (12, Some(13)), (600, None)] {
        match (past.read(at, &mut [IoSliceMut::new(&mut bytes)]), expected) {
            (Ok(()), Some(number)) => assert_eq!(bytes, block(number), "block {at}"),
            (Err(crate::Error::Damaged { first, .. }), None) => assert_eq!(first, at),
            (other, _) => panic!("block {at}: {other:?}"),
        }
    }
}

#[test]
fn a_main_made_anew_gets_no_damage_unless_that_is_accepted() {
    for flips in [1, 7] {
        for at in [At::Now, At::Barrier(0)] {
            let (set, device) = Set::new();
            for number in [3, 4] {
                put(&device, number, 33).unwrap();
                device.flush().unwrap();
            }
            let mut expected = contents(&*set.backup);
            expected[3 * BLOCK_SIZE..4 * BLOCK_SIZE].copy_from_slice(&block(33));
            if at == At::Now {
                expected[4 * BLOCK_SIZE..5 * BLOCK_SIZE].copy_from_slice(&block(33));
            }
            drop(device);
            // One of them is replaced by the log in any case, one if all of it is used.
            for block in [3, 4, 9] {
                set.backup.alter(block, |bytes| bytes[77] ^= flips).unwrap();
            }
            let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
            let how = Rebuild { name: Uuid([70; 16]), at, drop_later: true, accept_damage: false };
            let log = set.log.snapshot();
            let rebuilt = rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &how);
            if flips == 1 {
                assert_eq!(rebuilt.unwrap().damaged, []);
            } else {
                let first = if at == At::Now { 9 } else { 4 };
                assert!(matches!(rebuilt, Err(Error::Device(crate::Error::Damaged { first: at, .. })) if at == first));
                assert!(set.log.snapshot() == log);
                let how = Rebuild { accept_damage: true, ..how };
                let rebuilt = rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &how).unwrap();
                let damaged: Vec<u64> = rebuilt.damaged.into_iter().flatten().collect();
                assert_eq!(damaged, if at == At::Now { vec![9] } else { vec![4, 9] });
                for damaged in damaged {
                    expected[damaged as usize * BLOCK_SIZE + 77] ^= 7;
                }
            }
            let (device, _) = open(&main, &set.log, Mode::Synchronous).unwrap();
            assert!(contents(&device) == expected, "{flips} {at:?}");
        }
    }
}

#[test]
fn damaged_checksums_are_made_good_or_told_and_made_anew() {
    let (set, device) = Set::new();
    set.backup.alter(BLOCKS, |bytes| bytes[77] ^= 1).unwrap();
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
    set.backup.alter(BLOCKS + 1, |bytes| bytes[77] ^= 7).unwrap();
    let verified = verify_backup(set.backup.clone()).unwrap();
    assert_eq!((verified.damaged.len(), verified.unknown.len(), verified.bad_blocks()), (0, 1, 510));
    assert_eq!(verified.unknown[0], 510..1020);
    put(&device, 700, 7).unwrap();
    device.backup(set.backup.clone()).unwrap();
    assert!(verify_backup(set.backup.clone()).unwrap().is_good());
}

#[test]
fn a_backup_that_is_too_small_for_checksums_has_no_label() {
    // The areas of a label are where the size of the set says.
    let (set, _) = Set::new();
    let backup = Backup::look(set.backup.clone()).unwrap();
    let mut label = backup.label().clone();
    label.areas.meta_start -= 256;
    label.areas.data_start -= 256;
    let [bytes, _] = label.encode();
    assert!(matches!(format::Label::decode(&bytes, label.place(), label.device_blocks), Decoded::Damaged(_)));
}
