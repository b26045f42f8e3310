//! Another backup in the place of the one that the set has: which one goes with the log, wherever its copy is cut off.
use super::backup_tests::{BLOCKS, Busy, Set, contents, overflow, write_some};
use super::staging::Backup;
use super::tests::{Unplugged, open, put};
use super::*;
use crate::{Device, MemoryDevice};
use std::sync::Arc;

const OLD: Uuid = Uuid([60; 16]);
const NEW: Uuid = Uuid([61; 16]);

fn fresh() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(Backup::blocks_least(BLOCKS)).named("new"))
}

/// A set that has something that its backup lacks, and another device for backups.
fn set_and_other() -> (Set, Flashlog, Arc<MemoryDevice>) {
    let (set, device) = Set::new();
    write_some(&device, 1000..1100);
    device.flush().unwrap();
    (set, device, fresh())
}

fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(device.clone())
}

/// What main would have that is made anew of these.
fn made_anew(backup: &MemoryDevice, log: &MemoryDevice) -> Result<Vec<u8>, Error> {
    let (main, log) = (Arc::new(MemoryDevice::new(BLOCKS + 256)), copy(log));
    rebuild(copy(backup), log.clone(), main.clone(), Uuid([70; 16]))?;
    Ok(contents(&open(&main, &log, Mode::Asynchronous)?.0))
}

fn lacks(device: &Flashlog) -> (Option<Uuid>, u64) {
    let status = device.status();
    (status.backup, status.changed_blocks)
}

/// All is copied, and then it is cut off before it is a state.
fn copy_and_no_more(device: &Flashlog, new: &Arc<MemoryDevice>) {
    let mut requests = 0;
    while device.backup(Unplugged::after(new, requests)).is_err()
        && inspect(&**new).unwrap().unwrap().copied_blocks != BLOCKS
    {
        requests += 1;
    }
    assert_eq!(lacks(device).0, Some(OLD));
}

#[test]
fn wherever_a_first_copy_to_another_is_cut_off_one_of_the_two_and_the_log_make_main() {
    let mut of_old = 0;
    for requests in 0.. {
        let (set, device, new) = set_and_other();
        device.create_backup(new.clone(), NEW).unwrap();
        let done = device.backup(Unplugged::after(&new, requests));
        write_some(&device, 2000..2040);
        device.flush().unwrap();
        let now = contents(&device);
        let device = if requests % 2 == 0 { device } else { set.reopen() };
        let (goes, other) = if done.is_ok() { (&new, &set.backup) } else { (&set.backup, &new) };
        assert_eq!(lacks(&device), (Some(if done.is_ok() { NEW } else { OLD }), 0), "after {requests} requests");
        assert!(made_anew(goes, &set.log).unwrap() == now, "cut off after {requests} requests");
        assert!(made_anew(other, &set.log).is_err(), "cut off after {requests} requests");
        if done.is_ok() {
            break;
        }
        of_old += 1;
        // It is the set's backup as before, and the other one goes on.
        if requests % 3 == 0 {
            assert!(!device.backup(set.backup.clone()).unwrap().is_full);
            assert!(contents(&*set.backup) == now);
        }
        put(&device, 9, 90).unwrap();
        device.backup(new.clone()).unwrap();
        assert!(contents(&*new) == contents(&device), "cut off after {requests} requests");
        assert_eq!(lacks(&device), (Some(NEW), 0));
        assert!(made_anew(&new, &set.log).unwrap() == contents(&device));
    }
    assert!(of_old > 10, "{of_old}");
}

#[test]
fn while_another_is_copied_the_one_of_before_goes_with_the_log() {
    let (set, device, new) = set_and_other();
    device.create_backup(new.clone(), NEW).unwrap();
    let mut told = Vec::new();
    device.backup_telling(new, &mut |_, _| told.push(lacks(&device))).unwrap();
    assert!(told.len() > 1 && told.iter().all(|told| *told == (Some(OLD), 0)), "{told:?}");
    assert_eq!(lacks(&device), (Some(NEW), 0));
    // In the place of the one that the set has there is nothing to be kept.
    drop(device);
    let device = set.reopen();
    let again = fresh();
    device.create_backup(again.clone(), OLD).unwrap();
    device.backup(again.clone()).unwrap();
    device.create_backup(again.clone(), NEW).unwrap();
    assert_eq!(lacks(&device), (None, 0));
    let mut told = Vec::new();
    device.backup_telling(again, &mut |_, _| told.push(lacks(&device))).unwrap();
    assert!(told.iter().all(|told| *told == (Some(NEW), BLOCKS)), "{told:?}");
}

#[test]
fn one_that_has_a_state_is_compared_and_the_one_of_before_goes_with_the_log_meanwhile() {
    // What differs has room in the staging area, or not.
    for blocks in [100, 900] {
        let mut cut_off = 0;
        for requests in 0.. {
            let (set, device, new) = set_and_other();
            device.create_backup(new.clone(), NEW).unwrap();
            device.backup(new.clone()).unwrap();
            device.backup(set.backup.clone()).unwrap();
            for at in 0..blocks {
                put(&device, at, at + 3000).unwrap();
            }
            // The log lets go of what was written since the other's state.
            device.flush().unwrap();
            device.catch_up().unwrap();
            device.backup(set.backup.clone()).unwrap();
            put(&device, 900, 901).unwrap();
            assert_eq!(lacks(&device), (Some(OLD), 0));
            let done = device.backup(Unplugged::after(&new, requests));
            put(&device, 9, 90).unwrap();
            device.flush().unwrap();
            let now = contents(&device);
            let (goes, name) = if done.is_ok() { (&new, NEW) } else { (&set.backup, OLD) };
            assert_eq!(lacks(&device), (Some(name), 0), "cut off after {requests} requests");
            assert!(made_anew(goes, &set.log).unwrap() == now, "cut off after {requests} requests");
            device.backup(new.clone()).unwrap();
            assert!(contents(&*new) == now, "cut off after {requests} requests");
            if let Ok(done) = done {
                assert_eq!(done.copied_blocks + done.same_blocks, BLOCKS, "{done:?}");
                assert!((blocks..=blocks + 1).contains(&done.copied_blocks), "{done:?}");
                break;
            }
            cut_off += 1;
        }
        assert!(cut_off > 5, "{cut_off}");
    }
}

#[test]
fn what_was_copied_is_not_copied_again_if_the_log_has_what_came_since() {
    let mut gone_on = 0;
    for requests in 0.. {
        let (set, device, new) = set_and_other();
        device.create_backup(new.clone(), NEW).unwrap();
        let all = device.backup(Unplugged::after(&new, requests));
        let device = if requests % 2 == 0 { device } else { set.reopen() };
        write_some(&device, 2000..2040);
        let label = inspect(&*new).unwrap().unwrap();
        let done = device.backup(new.clone()).unwrap();
        if all.is_ok() {
            break;
        }
        let is_copied = label.copied_blocks == BLOCKS || label.condition != Condition::Copying;
        assert_eq!(done.copied_blocks == 0, is_copied, "cut off after {requests} requests: {done:?}");
        gone_on += u64::from(is_copied);
        assert!(contents(&*new) == contents(&device), "cut off after {requests} requests");
    }
    assert!(gone_on > 2, "{gone_on}");
}

/// What was copied may be of later than the state that main was made anew at.
#[test]
fn a_copy_is_begun_again_after_main_was_made_anew_at_an_earlier_state() {
    let (set, device, new) = set_and_other();
    let barrier = device.barriers(set.backup.clone()).unwrap().last().unwrap().number;
    device.create_backup(new.clone(), NEW).unwrap();
    put(&device, 500, 77).unwrap();
    copy_and_no_more(&device, &new);
    drop(device);
    let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
    let how = Rebuild { name: Uuid([70; 16]), at: At::Barrier(barrier), drop_later: true, accept_damage: false };
    rebuild_at(set.backup.clone(), set.log.clone(), main.clone(), &how).unwrap();
    let (device, _) = open(&main, &set.log, Mode::Asynchronous).unwrap();
    let done = device.backup(new.clone()).unwrap();
    assert_eq!(done.copied_blocks, BLOCKS);
    assert!(contents(&*new) == contents(&device));
}

#[test]
fn if_the_log_gets_full_meanwhile_the_other_one_gets_what_was_let_go_of_and_no_more() {
    for writes in 1..6 {
        let (set, device, new) = set_and_other();
        let device = Arc::new(device);
        device.create_backup(new.clone(), NEW).unwrap();
        let done = device.backup(Arc::new(Busy::after(&new, &device, writes))).unwrap();
        assert!((BLOCKS + 1..BLOCKS + 400).contains(&done.copied_blocks), "{writes} writes: {done:?}");
        assert_eq!(lacks(&device), (Some(NEW), 0));
        device.backup(new.clone()).unwrap();
        assert!(contents(&*new) == contents(&*device), "{writes} writes");
        assert!(made_anew(&new, &set.log).unwrap() == contents(&*device), "{writes} writes");
    }
    // It is not begun beside one that the log does not go with.
    let (_set, device, new) = set_and_other();
    overflow(&device, 150, 9);
    device.create_backup(new.clone(), NEW).unwrap();
    let mut told = Vec::new();
    device.backup_telling(new.clone(), &mut |_, _| told.push(lacks(&device))).unwrap();
    assert!(told.iter().all(|told| *told == (Some(NEW), BLOCKS)), "{told:?}");
    assert!(contents(&*new) == contents(&device));
}

/// What was written between the point that a copy is of and the state that the one of before has got since is in the log for the copy as well,
/// however full that gets.
#[test]
fn a_copy_that_is_older_than_the_state_of_the_one_of_before_gets_what_came_in_between() {
    for writes in 0..6 {
        let (set, device, new) = set_and_other();
        let device = Arc::new(device);
        device.create_backup(new.clone(), NEW).unwrap();
        copy_and_no_more(&device, &new);
        // More than has room in a step of the staging area.
        for at in 0..900 {
            put(&*device, at, at + 5000).unwrap();
        }
        device.flush().unwrap();
        device.backup(set.backup.clone()).unwrap();
        device.backup(Arc::new(Busy::after(&new, &device, writes))).unwrap();
        assert_eq!(lacks(&device), (Some(NEW), 0), "{writes} writes");
        device.backup(new.clone()).unwrap();
        assert!(contents(&*new) == contents(&*device), "{writes} writes");
        assert!(made_anew(&new, &set.log).unwrap() == contents(&*device), "{writes} writes");
    }
}
