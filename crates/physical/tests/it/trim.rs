//! Discards: of free blocks only, whatever happens next.

use crate::damage::{read_all, sample};
use crate::rig::*;
use holdfast_block::Device;
use holdfast_integrity::Algorithm;
use holdfast_object::{Kind, ObjectId, ObjectStore, Op};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

const ALL: Range<u64> = 0..u64::MAX;

#[test]
fn free_blocks_are_discarded_and_nothing_else() {
    let rig = sample();
    let free = rig.module.status().space.free;
    assert_eq!(rig.module.trim(ALL).unwrap(), free);
    read_all(&rig, &rig.module).unwrap();
    rig.check();
}

#[test]
fn a_trim_in_steps_is_one_of_everything() {
    const STEP: u64 = 7;
    let rig = sample();
    let free = rig.module.status().space.free;
    let before = rig.device.snapshot();
    let discards = rig.module.status().counters.device_discards;
    let mut sum = 0;
    for first in (0..rig.device.blocks() + STEP).step_by(STEP as usize) {
        let found = rig.module.trim(first..first + STEP).unwrap();
        assert!(found <= STEP, "{found} of {STEP} blocks from {first} on");
        sum += found;
        let rest = ((first + STEP) as usize * 4096).min(before.len());
        assert!(rig.device.snapshot()[rest..] == before[rest..], "nothing beyond {STEP} blocks from {first} on");
    }
    assert_eq!(sum, free);
    assert!(rig.module.status().counters.device_discards > discards);
    assert_eq!(rig.module.trim(u64::MAX..u64::MAX).unwrap(), 0);
    read_all(&rig, &rig.module).unwrap();
    rig.check();
}

#[test]
fn what_the_open_epoch_has_freed_is_kept_for_a_power_cut() {
    let mut rig = sample();
    rig.module.trim(ALL).unwrap();
    let free = rig.module.status().space.free;
    rig.apply(vec![Op::Delete { id: ObjectId(2) }, Op::Delete { id: ObjectId(3) }, Op::Delete { id: ObjectId(1) }]);
    assert_eq!(rig.module.trim(ALL).unwrap(), free, "not what was just freed");
    rig.reopen();
    read_all(&rig, &rig.module).unwrap();
    rig.apply(vec![Op::Delete { id: ObjectId(2) }, Op::Delete { id: ObjectId(3) }]);
    rig.commit();
    assert!(rig.module.trim(ALL).unwrap() > free + 70, "now they are free");
    rig.check();
}

#[test]
fn blocks_being_written_are_left_alone() {
    const EPOCHS: u64 = 150;
    let mut rig = Rig::new(1024);
    rig.apply((1..=4).map(|id| create_op(id, Kind::Regular)).collect());
    rig.commit();
    let (module, arena) = (&rig.module, &rig.arena);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trimmer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                module.trim(ALL).unwrap();
            }
        });
        for epoch in 0..EPOCHS {
            let id = 1 + epoch % 4;
            let mut pins = Vec::new();
            let mut fragment = |index: u64| {
                let mut frame = arena.allocate().expect("a frame");
                let bytes = pattern(epoch << 10 | index);
                frame.copy_from_slice(&bytes);
                let pin = frame.publish(Algorithm::Crc64Nvme.sum(&bytes));
                let page = pin.page();
                pins.push(pin);
                holdfast_object::Fragment { index, start: 0, end: 4096, page }
            };
            let fragments: Vec<_> = (0..40).map(&mut fragment).collect();
            let ops = vec![Op::Write { id: ObjectId(id), fragments, size_min: 0 }];
            let batch =
                holdfast_object::Batch { domain: holdfast_object::DomainId::MAIN, epoch: module.epoch() + 1, ops };
            module.apply(&batch).unwrap();
            module.prepare(batch.epoch).unwrap();
            module.publish(batch.epoch).unwrap();
            for index in 0..40 {
                assert_eq!(read(module, arena, id, index, 1).unwrap()[0], Some(pattern(epoch << 10 | index)));
            }
        }
        done.store(true, Ordering::Relaxed);
        trimmer.join().unwrap();
    });
    rig.check();
}
