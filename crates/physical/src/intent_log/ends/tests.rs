use super::*;
use crate::commit::tests::Rig;
use holdfast_object::{AttrSet, DomainId, LogBatch, ObjectId, ObjectStore, Op};

const AREA: Range<u64> = 32..160;

fn append(rig: &Rig, epoch: Epoch) -> bool {
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    let ops = vec![Op::SetAttributes { id: ObjectId(2), set }];
    rig.module.log_append(&LogBatch { domain: DomainId::MAIN, epoch, ops }).unwrap()
}

/// Both of them say something else.
fn scribble(rig: &Rig) {
    let mut log = rig.module.log.lock();
    log.ends.ends.halves.iter_mut().for_each(|half| half.used ^= 8);
    log.ends.inverted[3..].chunks_mut(HALF_WORDS).for_each(|half| half[2] ^= 1);
}

#[test]
fn while_nobody_knows_where_the_log_ends_nothing_is_appended() {
    for is_writing in [false, true] {
        let rig = Rig::new();
        let first = rig.module.epoch() + 1;
        assert!(append(&rig, first) && append(&rig, first));
        if is_writing {
            rig.make(3);
            rig.module.prepare(first).unwrap();
            assert!(append(&rig, first + 1));
        }
        scribble(&rig);
        let before = rig.device.snapshot();
        assert!(!append(&rig, first + u64::from(is_writing)) && !rig.module.log_seal().unwrap());
        assert!(!append(&rig, first + u64::from(is_writing)));
        assert_eq!(rig.module.status().counters.scribbles, 1);
        assert!(rig.device.snapshot() == before, "nothing is written");
        if is_writing {
            rig.module.publish(first).unwrap();
            assert!(!append(&rig, first + 1), "batches of that epoch may be anywhere");
        }
        for _ in 0..3 {
            rig.commit().unwrap();
        }
        assert!(append(&rig, rig.module.epoch() + 1));
        assert_eq!(rig.module.status().counters.scribbles, 1);
    }
}

#[test]
fn either_of_the_two_is_enough() {
    let half = |epoch, used| Half { epoch, used, last: None };
    let ends = |halves| Ends { halves, ..Ends::new(AREA) };
    let mut sealed = SealedEnds::new(ends([half(6, 10), half(5, 8)]));
    assert!(sealed.verify().is_ok());
    sealed.ends.halves[0].used = 11;
    assert!(sealed.verify().is_err());
    assert!(sealed.may_be(&ends([half(6, 10), half(5, 8)]), 4) && sealed.may_be(&ends([half(6, 11), half(5, 8)]), 4));
    assert!(!sealed.may_be(&ends([half(6, 12), half(5, 8)]), 4) && !sealed.may_be(&ends([half(6, 10), half(5, 8)]), 5));
    assert!(sealed.may_be(&ends([half(6, 10), half(0, 0)]), 5), "the other one is in a recovery point");
}
