//! Where the intent log ends, and what is known of its blocks, written to in memory as nobody may.

use crate::intent_log::{assert_all, log, logged, replay};
use crate::rig::*;
use holdfast_object::{Epoch, Kind, LogBatch, ObjectId, ObjectStore, Op};
use holdfast_physical::scribble::{MetaKind, State, Target};

/// The halves, and the names and places of their fields; or how else the log's ends can be struck.
fn fields(rig: &Rig) -> Vec<(Target, String, usize, usize)> {
    let lab = rig.module.lab();
    let mut found = Vec::new();
    for target in lab.targets(MetaKind::IntentLog).into_iter().filter(|target| target.state == State::InUse) {
        for (name, at, length) in lab.layout(&target).unwrap().fields {
            found.push((target, name, at, length));
        }
    }
    assert!(found.len() > 20);
    found
}

fn scribbles(rig: &Rig) -> u64 {
    rig.module.status().counters.scribbles
}

/// Each field, with one bit and as a whole: the next batch is where it should be, and what was synced is found again.
#[test]
fn what_is_synced_after_a_scribble_is_found_behind_what_was_synced_before() {
    for (target, name, at, length) in fields(&logged()) {
        for pattern in [vec![1], vec![0xa5; length]] {
            for seal in [false, true] {
                let mut rig = logged();
                let epoch = rig.next_epoch();
                rig.module.lab().strike(&target, at, &pattern).expect("it is there");
                if seal {
                    assert!(rig.module.log_seal().unwrap(), "{name}");
                }
                assert!(log(&rig, epoch, vec![create_op(9, Kind::Fifo)]), "{name}");
                assert_eq!(scribbles(&rig), 1, "{name}");
                rig.reopen();
                let replayed = replay(&mut rig);
                assert_eq!(replayed.last(), Some(&(epoch, vec![create_op(9, Kind::Fifo)])), "{name}");
                assert_eq!(replayed.len(), 4, "{name}");
                assert_all(&rig);
            }
        }
    }
}

/// An epoch is being written, and the next one has batches.
#[test]
fn both_halves_are_read_again() {
    for (target, name, at, length) in fields(&logged()) {
        for publish in [false, true] {
            let mut rig = logged();
            let closing = rig.next_epoch();
            rig.apply(vec![create_op(3, Kind::Regular)]);
            rig.module.prepare(closing).unwrap();
            assert!(log(&rig, closing + 1, vec![create_op(8, Kind::Socket)]), "{name}");
            rig.module.lab().strike(&target, at, &vec![0x5a; length]).expect("it is there");
            if publish {
                rig.module.publish(closing).unwrap();
            }
            assert!(log(&rig, closing + 1, vec![create_op(9, Kind::Socket)]), "{name}");
            assert_eq!(scribbles(&rig), 1, "{name}");
            rig.reopen();
            let epochs: Vec<Epoch> = replay(&mut rig).iter().map(|(epoch, _)| *epoch).collect();
            let [a, b] = [closing, closing + 1];
            assert_eq!(epochs, if publish { vec![b, b] } else { vec![a, a, a, b, b] }, "{name}");
        }
    }
}

/// Before the first batch, and after a recovery point: the device has batches that do not count.
#[test]
fn a_log_without_batches_is_still_one() {
    for (target, name, at, length) in fields(&logged()).into_iter().filter(|(_, name, ..)| !name.starts_with("last")) {
        let mut rig = logged();
        rig.commit();
        rig.module.lab().strike(&target, at, &vec![0xff; length]).expect("it is there");
        let epoch = rig.next_epoch();
        assert!(log(&rig, epoch, vec![create_op(9, Kind::Fifo)]), "{name}");
        assert_eq!(scribbles(&rig), 1, "{name}");
        rig.commit();
        rig.module.close().unwrap();
        rig.reopen();
        assert!(replay(&mut rig).is_empty(), "{name}");
    }
}

/// Heads tell what was in the blocks of their pages before. What has gone bad is not told.
#[test]
fn what_a_block_held_is_not_told_if_it_has_gone_bad() {
    for at in [0, 31] {
        let mut rig = logged();
        let lab = rig.module.lab();
        let targets = lab.targets(MetaKind::LogContents);
        assert_eq!(targets.len(), 128);
        for target in &targets {
            lab.strike(target, at, &[0x20]).expect("it is there");
        }
        let write = rig.write_op(2, &[(7, pattern(70)), (8, pattern(71))]);
        assert!(log(&rig, rig.next_epoch(), vec![write]));
        assert_eq!(scribbles(&rig), 2, "one for each page");
        rig.reopen();
        assert_eq!(replay(&mut rig).len(), 4);
        assert_eq!(rig.read(2, 7, 2), [Some(pattern(70)), Some(pattern(71))]);
    }
}

/// A block that was written ahead, and is named in the log, is nobody else's, whatever memory says of it.
#[test]
fn what_was_written_ahead_stays_what_it_is() {
    let mut rig = logged();
    let lab = rig.module.lab();
    let targets = lab.targets(MetaKind::WrittenAhead);
    assert_eq!(targets.len(), 3);
    for target in &targets {
        // An epoch that is over, as soon as there is a recovery point.
        lab.strike(target, 0, &[0x1e]).expect("it is there");
    }
    rig.commit();
    assert_eq!(rig.module.lab().targets(MetaKind::WrittenAhead).len(), 3, "they were not freed");
    // What was looked at in the same second is not looked at again.
    rig.clock.advance_ns(1_000_000_000);
    let ops = vec![create_op(7, Kind::Fifo)];
    assert!(rig.module.log_append(&LogBatch { epoch: rig.next_epoch(), domain: key(7).domain, ops }).unwrap());
    rig.apply(vec![Op::Create { id: ObjectId(30), attributes: attributes(Kind::Fifo, 1) }]);
    assert_eq!(scribbles(&rig), 3);
    rig.commit();
    rig.check();
    rig.reopen();
    assert!(rig.module.lab().targets(MetaKind::WrittenAhead).is_empty(), "the device knows nothing of them");
}
