//! The seal behind the last batch of the intent log: what it tells of, and that it tells nothing else.

use crate::intent_log::*;
use crate::rig::*;
use holdfast_object::{DomainId, Error, Kind, LogBatch, ObjectStore, Op};
use holdfast_physical::check::{CheckOptions, FindingKind, Report, check};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks of the batches of [`logged`]; the seal follows.
const BATCHES_BLOCKS: u64 = 10;

/// First block of the open epoch's half.
fn half_start(rig: &Rig) -> u64 {
    log_start(rig) + if rig.next_epoch().is_multiple_of(2) { 0 } else { 64 }
}

fn sealed() -> Rig {
    let rig = logged();
    assert!(rig.module.log_seal().unwrap());
    rig
}

fn look(rig: &Rig) -> Report {
    check(rig.device.clone(), &CheckOptions::default()).unwrap()
}

fn zero(rig: &Rig, blocks: [u64; 2]) {
    for block in blocks {
        rig.device.alter(half_start(rig) + block, |bytes| bytes.fill(0)).unwrap();
    }
}

/// What a mount would replay.
fn batches(rig: &Rig) -> Result<Vec<Vec<Op>>> {
    let module = rig.open_on(rig.device.clone())?;
    let mut batches = Vec::new();
    while let Some(recovered) = next(rig, &module)? {
        batches.push(recovered.batch.ops);
    }
    Ok(batches)
}

fn is_lost(batches: &[Vec<Op>]) -> bool {
    batches.iter().flatten().any(|op| matches!(op, Op::Lose { .. }))
}

/// Both heads of the last batch are gone, as if it had never been written. Without a seal nothing tells of it.
#[test]
fn a_last_batch_whose_heads_are_both_gone_is_told_by_its_seal() {
    for has_seal in [false, true] {
        let rig = if has_seal { sealed() } else { logged() };
        zero(&rig, [8, 9]);
        let report = look(&rig);
        if !has_seal {
            assert_eq!((report.found, report.remarks.len(), report.log_batches), (0, 0, 2), "{report:?}");
            assert_eq!(batches(&rig).unwrap().len(), 2);
            continue;
        }
        let [finding] = &report.findings[..] else { panic!("{report:?}") };
        assert_eq!((finding.kind, finding.place.address), (FindingKind::Log, Some(half_start(&rig) + 8)));
        let error = batches(&rig).unwrap_err();
        assert!(matches!(&error, Error::Corrupt(_)) && error.to_string().contains("batch 2 of epoch"), "{error}");
    }
}

/// What a power cut might have done to the last batch, it has not done to one with a seal.
#[test]
fn what_is_missing_of_a_sealed_batch_is_lost_and_not_left_out() {
    let write_one = |rig: &mut Rig| {
        let write = rig.write_op(2, &[(7, pattern(70))]);
        assert!(log(rig, rig.next_epoch(), vec![write]));
    };
    for has_seal in [false, true] {
        let mut rig = logged();
        write_one(&mut rig);
        if has_seal {
            assert!(rig.module.log_seal().unwrap());
        }
        // The page as it was before: zeros.
        zero(&rig, [BATCHES_BLOCKS + 1; 2]);
        let report = look(&rig);
        let batches = batches(&rig).unwrap();
        assert_eq!((batches.len(), is_lost(&batches)), if has_seal { (4, true) } else { (3, false) });
        let told = if has_seal { &report.findings } else { &report.remarks };
        assert_eq!((told.len(), report.found), (1, u64::from(has_seal)), "{report:?}");
        assert_eq!(told[0].pages(), Some((key(2), 7..8)));
    }
}

/// Each sector of the seal with its old contents or its new ones: there is no flush behind it.
#[test]
fn a_torn_seal_is_no_damage() {
    let before = logged();
    let rig = sealed();
    let start = half_start(&rig) + BATCHES_BLOCKS;
    let old = before.device.snapshot();
    for kept in 0..1u32 << 16 {
        // All of the sectors that have the headers, and some of the others.
        if kept & 0x7e7e != 0 && !kept.is_multiple_of(97) {
            continue;
        }
        let device = Arc::new(rig.device.as_ref().clone());
        for sector in (0..16).filter(|sector| kept >> sector & 1 == 0) {
            let (block, at) = (start + sector / 8, (sector % 8 * 512) as usize);
            let old = &old[block as usize * 4096 + at..][..512];
            device.alter(block, |bytes| bytes[at..at + 512].copy_from_slice(old)).unwrap();
        }
        let report = check(device.clone(), &CheckOptions::default()).unwrap();
        assert_eq!((&report.findings[..], report.log_batches), (&[][..], 3), "{kept:016b}");
        let module = rig.open_on(device).unwrap();
        let mut count = 0;
        while let Some(recovered) = next(&rig, &module).unwrap() {
            assert!(!is_lost(&[recovered.batch.ops]), "{kept:016b}");
            count += 1;
        }
        assert_eq!((count, module.status().log_batches_torn), (3, 0), "{kept:016b}");
    }
}

/// Nothing is in a seal, so nothing is lost with it; and one that others have followed is known by them.
#[test]
fn a_seal_that_is_gone_is_no_loss() {
    let mut rig = sealed();
    zero(&rig, [BATCHES_BLOCKS, BATCHES_BLOCKS + 1]);
    assert_eq!(rig.check().log_batches, 3);
    rig.reopen();
    assert_eq!(replay(&mut rig).len(), 3);
    assert_all(&rig);

    // Batches behind it, and a seal behind them.
    let mut rig = sealed();
    assert!(log(&rig, rig.next_epoch(), vec![create_op(8, Kind::Fifo)]));
    assert!(rig.module.log_seal().unwrap());
    let whole = rig.device.snapshot();
    zero(&rig, [BATCHES_BLOCKS, BATCHES_BLOCKS + 1]);
    let report = look(&rig);
    let first = half_start(&rig) + BATCHES_BLOCKS;
    let told: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.place.address)).collect();
    assert_eq!(told, [first, first + 1].map(|block| (FindingKind::BadCopy, Some(block))), "{report:?}");
    assert_eq!(report.log_batches, 4);
    let repaired = Arc::new(rig.device.as_ref().clone());
    check(repaired.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert!(repaired.snapshot() == whole);
    rig.reopen();
    assert_eq!(replay(&mut rig).len(), 4);
    assert_all(&rig);

    // A batch of the next epoch behind it.
    let mut rig = sealed();
    let closing = rig.next_epoch();
    rig.apply(vec![create_op(3, Kind::Regular)]);
    rig.module.prepare(closing).unwrap();
    assert!(log(&rig, closing + 1, vec![create_op(8, Kind::Socket)]));
    zero(&rig, [BATCHES_BLOCKS, BATCHES_BLOCKS + 1]);
    assert_eq!(rig.check().log_batches, 4);
    // But the batch before it is missed.
    zero(&rig, [8, 9]);
    assert!(matches!(batches(&rig), Err(Error::Corrupt(_))));
}

/// The log is used again from its start: what is behind its end is of epochs before, a seal just there among it.
#[test]
fn a_seal_of_an_earlier_epoch_is_not_believed() {
    let mut rig = sealed();
    let (start, stale) = (half_start(&rig), rig.next_epoch());
    rig.commit();
    rig.commit();
    assert_eq!((half_start(&rig), rig.next_epoch()), (start, stale + 2));
    let epoch = rig.next_epoch();
    // As many batches of the same lengths.
    let write = rig.write_op(2, &[(0, pattern(50)), (5, pattern(51))]);
    assert!(log(&rig, epoch, vec![write]));
    let write = rig.write_op(1, &[(0, pattern(52))]);
    assert!(log(&rig, epoch, vec![write]));
    assert!(log(&rig, epoch, vec![create_op(9, Kind::Fifo)]));
    let behind = &rig.device.snapshot()[(start + BATCHES_BLOCKS) as usize * 4096..][..64];
    assert_eq!((&behind[..8], behind[48]), (&b"HFINTENT"[..], stale as u8), "the seal of the epoch before the last");
    assert_eq!(rig.check().log_batches, 3);
    zero(&rig, [8, 9]);
    assert_eq!(look(&rig).found, 0, "it tells of nothing now");
    assert_eq!(batches(&rig).unwrap().len(), 2);
}

#[test]
fn a_seal_costs_no_flush_and_is_written_once() {
    let rig = Rig::new(4096);
    let device = Arc::new(Counting { device: rig.device.clone(), flushes: 0.into() });
    let module = rig.open_on(device.clone()).unwrap();
    let flushes = || device.flushes.load(Ordering::Relaxed);
    let append = |epoch, object| {
        let ops = vec![create_op(object, Kind::Fifo)];
        assert!(module.log_append(&LogBatch { epoch, domain: DomainId::MAIN, ops }).unwrap());
    };
    assert!(!module.log_seal().unwrap(), "there is nothing to seal");
    append(2, 2);
    let (before, bytes) = (flushes(), module.status().counters.log_bytes);
    assert!(module.log_seal().unwrap());
    assert!(!module.log_seal().unwrap() && !module.log_seal().unwrap());
    assert_eq!((flushes() - before, module.status().counters.log_bytes - bytes), (0, 2 * 4096));
    append(2, 3);
    assert_eq!((flushes() - before, module.status().counters.log_batches), (1, 2));
    // The batches of the next epoch count it.
    assert!(module.log_seal().unwrap());
    append(3, 4);
    assert!(module.log_seal().unwrap());
    module.prepare(2).unwrap();
    module.publish(2).unwrap();
    assert!(!module.log_seal().unwrap(), "it has one");
    module.prepare(3).unwrap();
    module.publish(3).unwrap();
    assert!(!module.log_seal().unwrap(), "there is no log any more");
    // Over the first seal: it was made durable by what has come since.
    let before = flushes();
    append(4, 5);
    assert_eq!(flushes() - before, 1);
    assert_eq!(rig.check().log_batches, 1);
}

/// A store that takes no changes, as one that is mounted for reading, is not sealed either.
#[test]
fn a_log_that_was_found_is_not_sealed() {
    let rig = logged();
    let before = rig.device.snapshot();
    let module = rig.open_on(rig.device.clone()).unwrap();
    while next(&rig, &module).unwrap().is_some() {}
    assert!(!module.log_seal().unwrap());
    assert!(rig.device.snapshot() == before);
}
