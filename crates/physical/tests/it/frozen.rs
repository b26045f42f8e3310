//! A recovery point that somebody reads while newer ones are made.

use crate::damage::{read_all, sample};
use crate::rig::*;
use holdfast_block::{Device, Error as DeviceError, Filter, MemoryDevice, Operation};
use holdfast_object::{DomainId, Kind, ObjectId, ObjectStore, Op, Purpose};
use holdfast_physical::check::{CheckOptions, Report, check};
use holdfast_physical::{CommitOrder, Frozen, Module, OpenOptions, RING_SLOTS};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Written anew with each recovery point.
const PAGES: u64 = 4;
/// Enough that superblocks go round in their rings.
const ROUNDS: u64 = RING_SLOTS + 2;

fn freeze(rig: &Rig) -> Arc<Frozen> {
    Arc::new(rig.module.freeze().unwrap())
}

/// Nothing is wrong.
fn checked(frozen: &Arc<Frozen>) -> Report {
    let report = check(frozen.clone(), &CheckOptions::default()).unwrap();
    assert_eq!((report.findings.as_slice(), frozen.over()), (&[][..], None));
    report
}

/// One recovery point in which everything that the sample has is made anew or goes.
fn change_everything(rig: &mut Rig, round: u64) {
    let pages: Vec<_> = (0..PAGES).map(|index| (index, pattern(1_000_000 * (round + 1) + index))).collect();
    let write = rig.write_op(2, &pages);
    let names = rig.write_op(1, &[(0, pattern(2_000 + round))]);
    let mut ops = vec![write, names];
    if round == 0 {
        ops.push(Op::Delete { id: ObjectId(3) });
        ops.push(create_op(4, Kind::Regular));
    }
    rig.apply(ops);
    rig.commit();
}

#[test]
fn it_stays_as_it_is_however_much_is_written() {
    let mut rig = sample();
    let frozen = freeze(&rig);
    let before = checked(&frozen);
    let free = |rig: &Rig| rig.module.status().space.free + rig.module.status().space.pending;
    let free_before = free(&rig);
    for round in 0..ROUNDS {
        change_everything(&mut rig, round);
    }
    assert_eq!((frozen.epoch(), rig.module.epoch()), (before.epoch, before.epoch + ROUNDS));
    let after = checked(&frozen);
    assert_eq!(after, before);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let as_it_was = Module::open(frozen.clone(), rig.arena.clone(), rig.clock.clone(), &options).unwrap();
    read_all(&rig, &as_it_was).unwrap();
    assert_ne!(rig.read_one(2, 0), Some(pattern(0)), "it is another by now");
    // What is kept back is none of what the store has lost, and is there at once when it is released.
    let held = rig.module.status().space.pending;
    assert!(held > PAGES * ROUNDS && free(&rig).abs_diff(free_before) < 100, "{held}");
    drop((as_it_was, frozen));
    assert_eq!(rig.module.status().space.pending, 0);
    rig.check();
    rig.reopen();
    rig.check();
}

/// What is freed is looked for from where the last blocks were handed out, to the end of the device and from its start, where the sample has
/// been: so that comes first at some of these places.
#[test]
fn it_stays_as_it_is_wherever_blocks_are_handed_out_next() {
    for before in 10..30 {
        let mut rig = sample();
        for _ in 0..before {
            let pages: Vec<_> = (0..40).map(|index| (index, pattern(index))).collect();
            let write = rig.write_op(5, &pages);
            rig.apply(vec![create_op(5, Kind::Regular), write]);
            rig.commit();
            rig.apply(vec![Op::Delete { id: ObjectId(5) }]);
            rig.commit();
        }
        let frozen = freeze(&rig);
        for round in 0..3 {
            let pages: Vec<_> = (0..70).map(|index| (index, pattern(1_000_000 * (round + 1) + index))).collect();
            let write = rig.write_op(2, &pages);
            rig.apply(vec![write]);
            rig.commit();
        }
        checked(&frozen);
        drop(frozen);
        rig.check();
    }
}

#[test]
fn a_store_that_is_cut_off_has_kept_nothing_back() {
    let mut rig = sample();
    let frozen = freeze(&rig);
    (0..3).for_each(|round| change_everything(&mut rig, round));
    assert!(rig.module.status().space.pending > 0);
    let there = rig.check();
    let again = rig.open_on(rig.top.clone()).unwrap();
    assert_eq!((again.status().space.pending, there.epoch), (0, rig.module.epoch()));
    assert!(again.status().space.free > rig.module.status().space.free);
    drop(frozen);
}

#[test]
fn nothing_is_read_of_what_is_not_kept_any_more() {
    let mut rig = sample();
    let read =
        |frozen: &Frozen| frozen.read(0, &mut [IoSliceMut::new(&mut [0; 4096])]).map_err(|error| error.to_string());
    let frozen = freeze(&rig);
    change_everything(&mut rig, 0);
    // All that there is; the rest is kept back for removals.
    let all = rig.module.status().space;
    let (epoch, wanted) = (rig.next_epoch(), all.free + all.pending - all.reserve);
    assert!(rig.module.reserve(epoch, wanted + 1, Purpose::Ordinary).is_err());
    assert_eq!((read(&frozen), frozen.over()), (Ok(()), None), "what is refused all the same takes nothing from it");
    let wanted = all.free - all.reserve + 1;
    rig.module.reserve(rig.next_epoch(), wanted, Purpose::Ordinary).unwrap();
    assert!(read(&frozen).unwrap_err().contains("needed the room"));
    assert!(check(frozen.clone(), &CheckOptions::default()).unwrap_err().to_string().contains("needed the room"));
    // The next one takes its place.
    let (one, other) = (freeze(&rig), freeze(&rig));
    assert!(one.over().is_some() && other.over().is_none());
    drop((one, frozen));
    assert_eq!(other.over(), None, "theirs alone is gone");
    other.stop();
    assert!(read(&other).unwrap_err().contains("was stopped"));
    // That is no damage, to whoever reads by a stack of his own.
    assert_eq!(looked_at_until_stopped(&rig), (0, 0));
    let written = other.write(100, &[IoSlice::new(&[1; 4096])]).map_err(|error| error.to_string());
    assert!(written.unwrap_err().contains("read-only"));
    assert!(rig.module.objects(DomainId::MAIN, ObjectId(0), 9).is_ok());
}

/// Blocks that are bad by the counters of a stack whose frozen device stops under it: without a good copy, and put right.
fn looked_at_until_stopped(rig: &Rig) -> (u64, u64) {
    let frozen = freeze(rig);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let looks = Module::open(frozen.clone(), rig.arena.clone(), rig.clock.clone(), &options).unwrap();
    frozen.stop();
    assert!(read_all(rig, &looks).is_err());
    let status = looks.status();
    (status.unrepaired, status.repaired)
}

/// A device that one block of cannot be read.
struct Bad {
    device: Arc<MemoryDevice>,
    block: AtomicU64,
}

impl Filter for Bad {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let length_bytes = bufs.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let bad = self.block.load(Ordering::Relaxed);
        if (first..first + length_bytes / 4096).contains(&bad) {
            let source = Arc::new(std::io::Error::other("planted"));
            let (device, operation) = ("bad".into(), Operation::Read);
            return Err(DeviceError::Io { device, operation, first: Some(bad), length_bytes, source });
        }
        self.device.read(first, bufs)
    }
}

#[test]
fn what_cannot_be_read_of_what_is_written_in_place_is_found_as_when_nobody_uses_it() {
    let device = Arc::new(MemoryDevice::new(2048));
    let top = Arc::new(Bad { device: device.clone(), block: AtomicU64::new(u64::MAX) });
    let mut rig = Rig::on(device, top.clone(), CommitOrder::Correct);
    rig.apply(vec![create_op(1, Kind::Directory)]);
    rig.commit();
    let mut found = 0;
    // The label, slots of its ring, the intent log; and one that is none of these.
    for block in [0, 1, 10, 31, 32, 40, 1000] {
        top.block.store(block, Ordering::Relaxed);
        let alone = check(top.clone(), &CheckOptions::default()).unwrap();
        let frozen = freeze(&rig);
        // By then it can be read: what was copied counts.
        top.block.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(check(frozen, &CheckOptions::default()).unwrap(), alone, "block {block}");
        found += alone.found;
    }
    assert!(found > 2, "{found}");
}
