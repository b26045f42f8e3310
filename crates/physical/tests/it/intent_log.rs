//! The intent log: appended, found again after a crash, damaged.

use crate::rig::*;
use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice};
use holdfast_object::{
    AttrSet, DomainId, Epoch, Error, FrameMut, Kind, LogBatch, ObjectId, ObjectStore, Op, Purpose, RecoveredBatch, Side,
};
use holdfast_physical::Module;
use holdfast_physical::check::{BlockRole, CheckOptions, FindingKind, block_uses, check};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn log(rig: &Rig, epoch: Epoch, ops: Vec<Op>) -> bool {
    rig.module.log_append(&LogBatch { epoch, domain: DomainId::MAIN, ops }).unwrap()
}

pub(crate) fn next(rig: &Rig, module: &Module) -> Result<Option<RecoveredBatch>> {
    let arena = rig.arena.clone();
    module.log_next(&mut |count| Ok((0..count).filter_map(|_| arena.allocate()).collect::<Vec<FrameMut>>()))
}

/// Applies everything in the log, then commits, as a cache does when it opens a store.
pub(crate) fn replay(rig: &mut Rig) -> Vec<(Epoch, Vec<Op>)> {
    let epoch = rig.module.epoch() + 3;
    let mut batches = Vec::new();
    while let Some(recovered) = next(rig, &rig.module).unwrap() {
        let batch = holdfast_object::Batch { domain: recovered.batch.domain, epoch, ops: recovered.batch.ops.clone() };
        rig.module.apply(&batch).unwrap();
        batches.push((recovered.batch.epoch, recovered.batch.ops));
    }
    rig.module.prepare(epoch).unwrap();
    rig.module.publish(epoch).unwrap();
    rig.check();
    batches
}

pub(crate) fn log_start(rig: &Rig) -> u64 {
    let blocks = rig.device.blocks();
    assert_eq!(holdfast_physical::log_blocks(blocks), 128);
    32
}

/// A store with object 2, and three batches in the log of the epoch after.
pub(crate) fn logged() -> Rig {
    let mut rig = Rig::new(4096);
    let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
    rig.apply(vec![create_op(2, Kind::Regular), create_op(1, Kind::Directory), write]);
    rig.commit();
    let epoch = rig.next_epoch();
    let write = rig.write_op(2, &[(0, pattern(10)), (5, pattern(11))]);
    assert!(log(&rig, epoch, vec![write]));
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    let write = rig.write_op(1, &[(0, pattern(20))]);
    assert!(log(&rig, epoch, vec![create_op(3, Kind::Regular), Op::SetAttributes { id: ObjectId(3), set }, write]));
    let pages: Vec<_> = (0..3).map(|index| (index, rig.pin(&pattern(30 + index)))).collect();
    let placed = rig.module.place(key(3), epoch, &pages).unwrap();
    let pages = (0..3).zip(placed).collect();
    assert!(log(&rig, epoch, vec![Op::Adopt { id: ObjectId(3), pages, size_min: 3 * 4096 }]));
    rig
}

pub(crate) fn assert_all(rig: &Rig) {
    assert_eq!(rig.read(2, 0, 2), [Some(pattern(10)), Some(pattern(2))]);
    assert_eq!(rig.read_one(2, 5), Some(pattern(11)));
    assert_eq!(rig.read_one(1, 0), Some(pattern(20)));
    assert_eq!(rig.module.attributes(key(3)).unwrap().mode, 0o600);
    assert_eq!(rig.read(3, 0, 3), [30, 31, 32].map(|seed| Some(pattern(seed))));
}

#[test]
fn what_was_logged_survives_a_crash() {
    let mut rig = logged();
    rig.reopen();
    assert_eq!(rig.check().log_batches, 3);
    assert!(!log(&rig, rig.next_epoch(), vec![]), "no room while the old log is needed");
    assert!(matches!(rig.module.prepare(rig.next_epoch()), Err(Error::Protocol(_))), "its batches would come back");
    assert_eq!(replay(&mut rig).len(), 3);
    assert_all(&rig);
    rig.reopen();
    assert!(next(&rig, &rig.module).unwrap().is_none());
    assert_all(&rig);
    assert_eq!(rig.check().log_batches, 0);
    let epoch = rig.next_epoch();
    assert!(log(&rig, epoch, vec![create_op(9, Kind::Fifo)]));
    rig.reopen();
    assert_eq!(replay(&mut rig), [(epoch, vec![create_op(9, Kind::Fifo)])]);
}

#[test]
fn a_recovery_point_makes_the_log_obsolete() {
    let mut rig = logged();
    let open = rig.next_epoch();
    rig.commit();
    rig.reopen();
    assert!(next(&rig, &rig.module).unwrap().is_none());
    assert_eq!(rig.module.epoch(), open);
    assert_eq!(rig.read_one(2, 0), Some(pattern(1)), "nothing of it was applied");
    rig.check();
}

#[test]
fn two_epochs_in_the_log() {
    for publish in [false, true] {
        let mut rig = logged();
        let closing = rig.next_epoch();
        rig.apply(vec![create_op(3, Kind::Regular)]);
        rig.module.prepare(closing).unwrap();
        assert!(log(&rig, closing + 1, vec![create_op(8, Kind::Socket)]));
        if publish {
            rig.module.publish(closing).unwrap();
        }
        assert!(log(&rig, closing + 1, vec![create_op(9, Kind::Socket)]));
        rig.reopen();
        let epochs: Vec<Epoch> = replay(&mut rig).iter().map(|(epoch, _)| *epoch).collect();
        let [a, b] = [closing, closing + 1];
        assert_eq!(epochs, if publish { vec![b, b] } else { vec![a, a, a, b, b] });
        assert!(rig.module.attributes(key(9)).is_ok());
    }
}

#[test]
fn placed_blocks_are_claimed_before_others_are_handed_out() {
    let mut rig = logged();
    rig.reopen();
    // Without having asked for the log at all.
    let pages: Vec<_> = (0..100).map(|index| (index, rig.pin(&pattern(1000 + index)))).collect();
    rig.module.place(key(2), 99, &pages).unwrap();
    assert_eq!(replay(&mut rig).len(), 3);
    assert_all(&rig);
}

/// Runs recovery on a store with one block of the log damaged.
fn with_damage(block: u64, damage: impl Fn(&mut [u8; 4096])) -> (Rig, Result<Vec<Vec<Op>>>) {
    let rig = logged();
    rig.device.alter(block, damage).unwrap();
    let module = rig.open_on(rig.device.clone()).unwrap();
    let mut batches = Vec::new();
    loop {
        match next(&rig, &module) {
            Ok(Some(recovered)) => batches.push(recovered.batch.ops),
            Ok(None) => return (rig, Ok(batches)),
            Err(error) => return (rig, Err(error)),
        }
    }
}

/// Batch 0: head, 2 pages, head. Batch 1: head, page, page again, head. Batch 2: head, head.
#[test]
fn each_block_of_the_log_damaged() {
    let lost = |ops: &[Op]| -> Vec<(u64, Vec<u64>)> {
        ops.iter()
            .filter_map(|op| match op {
                Op::Lose { id, pages, .. } => Some((id.0, pages.clone())),
                _ => None,
            })
            .collect()
    };
    let half = if (logged().next_epoch()).is_multiple_of(2) { 0 } else { 64 };
    let damages: [fn(&mut [u8; 4096]); 3] =
        [|block| block[100] ^= 1, |block| block[100] ^= 0xff, |block| block.fill(0)];
    for (number, damage) in damages.into_iter().enumerate() {
        for at in 0..10 {
            let block = log_start(&logged()) + half + at;
            let damaged = logged();
            damaged.device.alter(block, damage).unwrap();
            found_by_check(&damaged, block, at, number == 0);
            let (mut rig, outcome) = with_damage(block, damage);
            let batches = outcome.unwrap();
            let what: Vec<_> = batches.iter().map(|ops| lost(ops)).collect();
            match at {
                // The only copy of a page of data that was acknowledged. One flipped bit is put right.
                1 | 2 if number == 0 => {
                    assert_eq!(what, [vec![], vec![], vec![]]);
                    rig.reopen();
                    assert_eq!(replay(&mut rig).len(), 3);
                    assert_all(&rig);
                }
                1 => assert_eq!(what, [vec![(2, vec![0])], vec![], vec![]]),
                2 => assert_eq!(what, [vec![(2, vec![5])], vec![], vec![]]),
                // Heads, and metadata, are there twice.
                _ => assert_eq!(what, [vec![], vec![], vec![]], "block {at}"),
            }
            drop(rig);
        }
    }
}

/// The check tells of a damaged block of [`logged`], and puts right what can be.
fn found_by_check(rig: &Rig, block: u64, at: u64, is_flip: bool) {
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let told: Vec<_> = report.findings.iter().chain(&report.remarks).map(|finding| finding.place.address).collect();
    assert_eq!(told, [Some(block)], "{report:?}");
    // Of the last batch a power cut may have left one head so; one flipped bit in its first sector it does not.
    let is_remark = at >= 8 && !is_flip;
    assert_eq!(report.remarks.len(), usize::from(is_remark), "block {at}: {report:?}");
    let is_lost = matches!(at, 1 | 2) && !is_flip;
    let page = [0, 5].get(at.wrapping_sub(1) as usize).filter(|_| is_lost);
    assert_eq!(
        report
            .findings
            .first()
            .and_then(|finding| finding.pages())
            .map(|(of, pages)| (of, pages.start))
            .filter(|_| is_lost),
        page.map(|&page| (key(2), page)),
        "{report:?}"
    );
    assert_eq!(report.log_batches, 3);
    let device = Arc::new(rig.device.as_ref().clone());
    let repaired = check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert_eq!(repaired.unrepaired(), u64::from(is_lost), "block {at}: {repaired:?}");
    let now = check(device.clone(), &CheckOptions::default()).unwrap();
    assert_eq!((now.found, now.remarks.len()), (u64::from(is_lost), report.remarks.len()), "block {at}: {now:?}");
    let is_whole = device.snapshot() == logged().device.snapshot();
    assert_eq!(is_whole, !is_lost && !is_remark, "block {at}");
}

/// A page written ahead that is gone, and a batch whose head stands in another's place, are found before a mount meets them.
#[test]
fn the_check_foresees_what_a_mount_makes_of_the_log() {
    let half = if (logged().next_epoch()).is_multiple_of(2) { 0 } else { 64 };
    let first = log_start(&logged()) + half;
    let look = |rig: &Rig| check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let copy = |rig: &Rig, from: &[u64], to: &[u64]| {
        let all = rig.device.snapshot();
        for (from, to) in from.iter().zip(to) {
            let bytes = &all[(first + from) as usize * 4096..][..4096];
            rig.device.alter(first + to, |block| block.copy_from_slice(bytes)).unwrap();
        }
    };
    // The heads of the last batch but one and of the last, in each other's place, or one over the other.
    for (from, to) in [(&[4, 7, 8, 9][..], &[8, 9, 4, 7][..]), (&[4, 7], &[8, 9])] {
        let rig = logged();
        copy(&rig, from, to);
        let report = look(&rig);
        assert_eq!(
            report.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(),
            [FindingKind::Log],
            "{report:?}"
        );
        let module = rig.open_on(rig.device.clone()).unwrap();
        assert!(matches!(next(&rig, &module), Err(Error::Corrupt(_))), "and the mount is refused");
    }
    // Both heads of the last batch with a flipped bit, in the header or in the entries.
    for at in [100, 170] {
        let mut rig = logged();
        for block in [8, 9] {
            rig.device.alter(first + block, |bytes| bytes[at] ^= 4).unwrap();
        }
        let report = look(&rig);
        assert_eq!((report.found, report.log_batches), (2, 3), "{report:?}");
        rig.reopen();
        assert_eq!(replay(&mut rig).len(), 3, "byte {at}");
        assert_all(&rig);
    }
    // Its entries torn in both.
    let rig = logged();
    for block in [8, 9] {
        rig.device.alter(first + block, |bytes| bytes[170..200].fill(0)).unwrap();
    }
    let report = look(&rig);
    assert_eq!((report.found, report.log_batches, report.remarks.len()), (0, 2, 1), "{report:?}");
    let module = rig.open_on(rig.device.clone()).unwrap();
    while next(&rig, &module).unwrap().is_some() {}
    assert_eq!(module.status().log_batches_torn, 1);
    // A page that the last batch refers to.
    let rig = logged();
    let placed =
        block_uses(rig.device.clone()).unwrap().into_iter().find(|used| used.role == BlockRole::LogPlaced).unwrap();
    rig.device.alter(placed.block, |bytes| bytes[0] ^= 1).unwrap();
    let report = look(&rig);
    assert_eq!((report.found, report.log_batches), (0, 2), "{report:?}");
    assert_eq!(report.remarks[0].place.address, Some(placed.block));
    // It had been acknowledged: a later one exists.
    assert!(log(&rig, rig.next_epoch(), vec![create_op(9, Kind::Fifo)]));
    let report = look(&rig);
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    assert_eq!((finding.kind, finding.place.address), (FindingKind::Unreadable, Some(placed.block)));
    assert_eq!((finding.pages(), report.log_batches), (Some((key(3), 0..1)), 4));
}

/// A page that is written twice, by two batches or by two operations of one: the later copy decides, and none is passed over.
#[test]
fn the_check_tells_of_every_copy_of_a_page_that_is_logged_again() {
    use FindingKind::{Obsolete, Unreadable};
    for in_one_batch in [false, true] {
        let logged_twice = || {
            let mut rig = Rig::new(4096);
            rig.apply(vec![create_op(2, Kind::Regular)]);
            rig.commit();
            let epoch = rig.next_epoch();
            let writes = [rig.write_op(2, &[(0, pattern(10))]), rig.write_op(2, &[(0, pattern(11))])];
            match in_one_batch {
                true => assert!(log(&rig, epoch, writes.into())),
                false => writes.into_iter().for_each(|write| assert!(log(&rig, epoch, vec![write]))),
            }
            // So that both had been acknowledged.
            assert!(log(&rig, epoch, vec![create_op(9, Kind::Fifo)]));
            let first = log_start(&rig) + if epoch.is_multiple_of(2) { 0 } else { 64 } + 1;
            // Between the pages of two batches: the head's copy, and the next head.
            (rig, [first, first + if in_one_batch { 1 } else { 3 }])
        };
        for damaged in [&[][..], &[0], &[1], &[0, 1]] {
            let (mut rig, blocks) = logged_twice();
            for &at in damaged {
                rig.device.alter(blocks[at], |bytes| bytes.fill(0x5a)).unwrap();
            }
            let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
            let mut told: Vec<_> =
                report.findings.iter().map(|finding| (finding.place.address.unwrap(), finding.kind)).collect();
            told.sort_by_key(|(block, _)| *block);
            let kind = |at: usize| if at == 0 { Obsolete } else { Unreadable };
            let expected: Vec<_> = damaged.iter().map(|&at| (blocks[at], kind(at))).collect();
            assert_eq!(told, expected, "in one batch: {in_one_batch}, {report:?}");
            rig.reopen();
            replay(&mut rig);
            let is_lost = damaged.contains(&1);
            assert_eq!(rig.check().lost_pages, u64::from(is_lost), "in one batch: {in_one_batch}, {damaged:?}");
            if !is_lost {
                assert_eq!(rig.read_one(2, 0), Some(pattern(11)));
            }
        }
    }
}

#[test]
fn a_batch_whose_heads_are_both_gone() {
    let half = if (logged().next_epoch()).is_multiple_of(2) { 0 } else { 64 };
    let damaged = |blocks: &[u64]| {
        let rig = logged();
        for block in blocks {
            rig.device.alter(log_start(&rig) + half + block, |bytes| bytes.fill(0xff)).unwrap();
        }
        let module = rig.open_on(rig.device.clone()).unwrap();
        let mut count = 0;
        loop {
            match next(&rig, &module) {
                Ok(Some(_)) => count += 1,
                Ok(None) => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    };
    let is_corrupt = |outcome: Result<usize>| {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Corrupt(_)) && error.to_string().contains("batch"), "{error}");
    };
    is_corrupt(damaged(&[0, 3]));
    is_corrupt(damaged(&[4, 7]));
    assert_eq!(damaged(&[8, 9]), Ok(2), "the last one was torn, as far as one can tell");
    assert_eq!(damaged(&[0, 3, 4, 7, 8, 9]), Ok(0), "nothing is left that knows of it");
}

#[test]
fn a_torn_last_batch_is_left_out_as_a_whole() {
    let mut rig = Rig::new(4096);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    rig.commit();
    let epoch = rig.next_epoch();
    let before = rig.device.snapshot();
    let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
    assert!(log(&rig, epoch, vec![write, create_op(3, Kind::Regular)]));
    let start = log_start(&rig) + if epoch.is_multiple_of(2) { 0 } else { 64 };
    // Every subset of the four blocks reaches the device.
    for kept in 0..16u32 {
        let device = rig.device.as_ref().clone();
        for at in (0..4).filter(|at| kept >> at & 1 == 0) {
            let old = &before[(start + at) as usize * 4096..][..4096];
            device.alter(start + at, |bytes| bytes.copy_from_slice(old)).unwrap();
        }
        let module = rig.open_on(Arc::new(device)).unwrap();
        let found = next(&rig, &module).unwrap().is_some();
        let whole = kept & 0b0110 == 0b0110 && kept & 0b1001 != 0;
        assert_eq!(found, whole, "{kept:04b}");
    }
}

/// The last batch is damaged in one block after it was acknowledged.
#[test]
fn damage_of_the_last_batch_is_told_from_a_torn_write() {
    type Damage = fn(&mut [u8; 4096], &[u8]);
    const LOST: &str = "lost page";
    const CORRECTED: &str = "corrected";
    const LEFT_OUT: &str = "left out";
    let damages: [(&str, Damage, &str); 8] = [
        ("one flipped bit", |block, _| block[700] ^= 4, CORRECTED),
        ("two flipped bits", |block, _| (block[0], block[4095]) = (block[0] ^ 1, block[4095] ^ 0x80), CORRECTED),
        ("a flipped byte", |block, _| block[700] ^= 0xff, LOST),
        ("three flipped bits", |block, _| block[700] ^= 7, LOST),
        ("another page", |block, _| *block = pattern(815), LOST),
        ("the contents before", |block, old| block.copy_from_slice(old), LEFT_OUT),
        ("a sector of before", |block, old| block[512..1024].copy_from_slice(&old[512..1024]), LEFT_OUT),
        (
            "a sector of before and a flip",
            |block, old| (block[..512].copy_from_slice(&old[..512]), block[900] ^= 7).1,
            LEFT_OUT,
        ),
    ];
    // In a fresh log, and in one whose half was used before.
    for (used, (name, damage, expected)) in
        [false, true].into_iter().flat_map(|used| damages.map(|damage| (used, damage)))
    {
        let mut rig = Rig::new(4096);
        rig.apply(vec![create_op(2, Kind::Regular)]);
        rig.commit();
        if used {
            for round in 0..4 {
                let write = rig.write_op(2, &[(0, pattern(100 + round)), (1, pattern(200 + round))]);
                assert!(log(&rig, rig.next_epoch(), vec![write.clone()]));
                rig.apply(vec![write]);
                rig.commit();
            }
            rig.reopen();
        }
        let epoch = rig.next_epoch();
        let before = rig.device.snapshot();
        let write = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
        assert!(log(&rig, epoch, vec![write]));
        let page = log_start(&rig) + if epoch.is_multiple_of(2) { 0 } else { 64 } + 1;
        rig.device.alter(page, |block| damage(block, &before[page as usize * 4096..][..4096])).unwrap();
        rig.reopen();
        let recovered = next(&rig, &rig.module).unwrap().map(|recovered| recovered.batch.ops);
        let lose = Op::Lose { id: ObjectId(2), pages: vec![0], side: Side::Device };
        let got = match &recovered {
            None => LEFT_OUT,
            Some(ops) if ops.contains(&lose) => LOST,
            Some(_) => CORRECTED,
        };
        assert_eq!(got, expected, "{name}, used before: {used}");
        let counts = (rig.module.status().repaired, rig.module.status().unrepaired);
        let expected =
            [(LEFT_OUT, (0, 0)), (LOST, (0, 1)), (CORRECTED, (1, 0))].into_iter().find(|of| of.0 == expected);
        assert_eq!(Some(counts), expected.map(|of| of.1), "{name}");
        rig.reopen();
        replay(&mut rig);
        if got == CORRECTED {
            assert_eq!(rig.read(2, 0, 2), [Some(pattern(1)), Some(pattern(2))], "{name}");
        }
    }
}

/// What was read when the log was opened may not be durable: an append must not tell of it as what was there before.
#[test]
fn the_first_append_waits_until_what_was_read_is_durable() {
    let rig = Rig::new(4096);
    let device = Arc::new(Counting { device: rig.device.clone(), flushes: 0.into() });
    let module = rig.open_on(device.clone()).unwrap();
    let append = |ops| module.log_append(&LogBatch { epoch: 2, domain: DomainId::MAIN, ops }).unwrap();
    assert!(append(vec![create_op(2, Kind::Fifo)]));
    assert_eq!(device.flushes.load(Ordering::Relaxed), 2);
    assert!(append(vec![create_op(3, Kind::Fifo)]));
    assert_eq!(device.flushes.load(Ordering::Relaxed), 3);
}

pub(crate) struct Counting {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) flushes: AtomicU64,
}

impl Filter for Counting {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_flush(&self) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.device.flush()
    }
}

#[test]
fn a_placed_page_that_did_not_reach_the_device() {
    let rig = logged();
    let module = rig.open_on(rig.device.clone()).unwrap();
    let mut placed = 0;
    while let Some(recovered) = next(&rig, &module).unwrap() {
        for op in recovered.batch.ops {
            if let Op::Adopt { pages, .. } = op {
                placed = pages[1].1.address;
            }
        }
    }
    rig.device.alter(placed, |bytes| bytes.fill(0)).unwrap();
    let module = rig.open_on(rig.device.clone()).unwrap();
    let mut count = 0;
    while next(&rig, &module).unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 2, "the last batch was not acknowledged: it is left out");
    let set = AttrSet { uid: Some(1), ..AttrSet::default() };
    assert!(log(&rig, rig.next_epoch(), vec![Op::SetAttributes { id: ObjectId(2), set }]));
    let module = rig.open_on(rig.device.clone()).unwrap();
    let mut lost = Vec::new();
    while let Some(recovered) = next(&rig, &module).unwrap() {
        lost.extend(recovered.batch.ops.into_iter().filter(|op| matches!(op, Op::Lose { .. })));
    }
    assert_eq!(lost, [Op::Lose { id: ObjectId(3), pages: vec![1], side: Side::Device }], "now it was");
}

#[test]
fn a_full_half_asks_for_the_epoch_to_be_closed() {
    let mut rig = Rig::new(4096);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    rig.commit();
    let epoch = rig.next_epoch();
    let mut appended = 0;
    loop {
        let write = rig.write_op(2, &[(appended, pattern(appended))]);
        if !log(&rig, epoch, vec![write]) {
            break;
        }
        appended += 1;
    }
    assert_eq!(appended, (64 - 2) / 3, "a seal always has room");
    assert!(rig.module.log_seal().unwrap());
    assert!(matches!(rig.module.close(), Err(Error::Protocol(_))), "synced changes are in no recovery point");
    rig.reopen();
    assert_eq!(replay(&mut rig).len(), appended as usize);
    for index in 0..appended {
        assert_eq!(rig.read_one(2, index), Some(pattern(index)));
    }
    rig.module.reserve(rig.next_epoch(), 1, Purpose::Ordinary).unwrap();
    rig.module.close().unwrap();
}

#[test]
fn a_log_for_damaged_objects_is_replayed_for_all() {
    let mut rig = logged();
    let epoch = rig.next_epoch();
    let page = rig.pin(&pattern(40));
    let placed = rig.module.place(key(2), epoch, &[(1, page)]).unwrap();
    assert!(log(&rig, epoch, vec![Op::Adopt { id: ObjectId(2), pages: vec![(1, placed[0])], size_min: 0 }]));
    for used in block_uses(rig.device.clone()).unwrap() {
        if used.role == BlockRole::Tree && used.object == Some(key(2)) {
            rig.device.alter(used.block, |bytes| bytes[7] ^= 1).unwrap();
        }
    }
    rig.reopen();
    let epoch = rig.module.epoch() + 3;
    let mut rejected = Vec::new();
    while let Some(recovered) = next(&rig, &rig.module).unwrap() {
        let batch = holdfast_object::Batch { domain: recovered.batch.domain, epoch, ops: recovered.batch.ops };
        rejected.extend(rig.module.apply(&batch).unwrap().rejected);
    }
    assert_eq!(rejected, [], "the tree block above them is made anew");
    rig.module.prepare(epoch).unwrap();
    rig.module.publish(epoch).unwrap();
    rig.reopen();
    assert!(next(&rig, &rig.module).unwrap().is_none());
    assert_eq!([0, 5, 1].map(|page| rig.read_one(2, page)), [10, 11, 40].map(|seed| Some(pattern(seed))));
    assert_eq!(rig.read_one(1, 0), Some(pattern(20)));
    assert_eq!(rig.read(3, 0, 3), [30, 31, 32].map(|seed| Some(pattern(seed))));
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    // What leaks are the two pages that cannot be reached any more, not the one that was placed.
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    let [leak] = &report.findings[..] else { panic!("{report:?}") };
    assert!(leak.kind == FindingKind::Leaked && leak.what.starts_with("2 blocks"), "{leak:?}");
}
