//! Deletions of snapshots in slices: what they reserve, and what cannot be read.

use crate::rig::*;
use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice};
use holdfast_object::{
    DomainId, Error, Kind, ObjectId, ObjectStore, Op, Purpose, SnapshotCount, SnapshotId, Timestamp,
};
use holdfast_physical::check::{BlockRole, FindingKind, block_uses, check};
use holdfast_physical::{CommitOrder, DeletionSlice, Module};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const MAIN: DomainId = DomainId::MAIN;
/// Pages of the file that snapshots keep.
const PAGES: u64 = 600;

fn create(module: &Module, name: &str) -> SnapshotId {
    module.snapshot_create(MAIN, module.epoch() + 1, name, Timestamp::default()).unwrap()
}

fn slice(runs: usize) -> DeletionSlice {
    DeletionSlice { runs, blocks: 1 << 17 }
}

/// Writes all pages of the file anew. No two neighbours die together, so there are as many runs.
fn write_over(rig: &mut Rig, pages: u64, version: u64) {
    // In other parts than the version before.
    let parts = 3 + version % 2;
    for start in 0..parts {
        let pages: Vec<_> =
            (start..pages).step_by(parts as usize).map(|page| (page, pattern(page + version * pages))).collect();
        let write = rig.write_op(2, &pages);
        rig.apply(vec![write]);
        rig.commit();
    }
}

/// A store with the snapshots `a` and `b`, each with a dead list of several pages.
fn two_snapshots(rig: &mut Rig) -> [SnapshotId; 2] {
    rig.apply(vec![create_op(2, Kind::Regular)]);
    write_over(rig, PAGES, 0);
    [("a", 1), ("b", 2)].map(|(name, version)| {
        let id = create(&rig.module, name);
        write_over(rig, PAGES, version);
        id
    })
}

/// One slice, in a recovery point of its own that takes no more than has been reserved for it. Whether there is more.
fn reserved_slice(module: &Module, id: SnapshotId) -> bool {
    let epoch = module.epoch() + 1;
    // An epoch for which nothing is reserved is not looked at.
    module.reserve(epoch, 0, Purpose::Ordinary).unwrap();
    let more = module.snapshot_delete(MAIN, epoch, id).unwrap();
    module.prepare(epoch).unwrap();
    module.publish(epoch).unwrap();
    assert_eq!(module.blocks_beyond_reservation(), 0, "of {id:?}, {:?} left", module.snapshot_deletions(MAIN));
    more
}

#[test]
fn what_a_slice_takes_is_reserved() {
    for runs in [1, 50, 129, 8192] {
        for order in [[0, 1], [1, 0]] {
            let mut rig = Rig::new(8_000);
            rig.options.deletion_slice = slice(runs);
            rig.reopen();
            let ids = two_snapshots(&mut rig);
            let (mut left, mut slices) = (order.map(|at| ids[at]).to_vec(), 0);
            // In turns, so that both are left at the same time, and no snapshot is.
            while !left.is_empty() {
                left.retain(|id| reserved_slice(&rig.module, *id));
                slices += 1;
            }
            assert!(slices > 2 || runs > 1000, "{slices}");
            rig.commit();
            rig.check();
        }
    }
}

/// Dead lists so far up that their tree has all the levels that it can have.
#[test]
fn what_a_slice_takes_is_reserved_with_a_thousand_snapshots() {
    let mut rig = Rig::new(30_000);
    rig.options.deletion_slice = slice(50);
    rig.reopen();
    for number in 0..1026 {
        create(&rig.module, &format!("{number}"));
        rig.commit();
    }
    let ids = two_snapshots(&mut rig);
    for id in [ids[1], ids[0]] {
        while reserved_slice(&rig.module, id) {}
    }
    rig.check();
}

/// Damages both copies of the first page of the dead list in the first place.
fn damage_list(device: &Arc<MemoryDevice>) {
    let uses = block_uses(device.clone()).unwrap();
    let first = uses.iter().filter(|used| used.role == BlockRole::DeadList && (used.level, used.index) == (0, 0));
    let blocks: Vec<u64> = first.map(|used| used.block).collect();
    assert_eq!(blocks.len(), 2);
    blocks.iter().for_each(|&block| device.alter(block, |block| block[99] ^= 1).unwrap());
}

#[test]
fn the_list_of_a_deleted_snapshot_that_cannot_be_read_is_nobody_elses_matter() {
    let mut rig = Rig::new(8_000);
    rig.options.deletion_slice = slice(200);
    rig.reopen();
    let [a, b] = two_snapshots(&mut rig);
    assert!(reserved_slice(&rig.module, a));
    damage_list(&rig.device);
    rig.reopen();
    // Another one may come and go, the others are listed as ever, and only the sum is not known.
    let listed = rig.module.snapshots(MAIN).unwrap();
    assert_eq!(listed.iter().map(|info| info.id).collect::<Vec<_>>(), [b]);
    assert!(listed[0].blocks_only >= PAGES);
    assert_eq!(rig.module.kept_blocks(MAIN), None);
    let c = create(&rig.module, "c");
    rig.commit();
    assert!(!reserved_slice(&rig.module, c));
    while reserved_slice(&rig.module, b) {}
    // What can be read of it goes, and the rest stays what it is.
    let corrupt = loop {
        let before = rig.module.snapshot_deletions(MAIN);
        match rig.module.snapshot_delete(MAIN, rig.next_epoch(), a) {
            Ok(more) => assert!(more),
            Err(error) => {
                assert_eq!(rig.module.snapshot_deletions(MAIN), before);
                break error;
            }
        }
        rig.commit();
    };
    assert!(matches!(corrupt, Error::Corrupt(_)), "{corrupt:?}");
    rig.apply(vec![create_op(3, Kind::Regular)]);
    rig.commit();
    let report = check(rig.device.clone(), &Default::default()).unwrap();
    let unreadable = |kind: FindingKind| kind == FindingKind::Unreadable;
    assert!(report.findings.iter().any(|finding| unreadable(finding.kind)), "{report:?}");
}

/// Counting tells before a deletion has begun that it would not come to its end, and gives what listing does.
#[test]
fn a_snapshot_is_counted_in_parts() {
    let mut rig = Rig::new(40_000);
    rig.apply(vec![create_op(2, Kind::Regular)]);
    // The list has more pages than one part.
    write_over(&mut rig, 9_000, 0);
    let id = create(&rig.module, "s");
    write_over(&mut rig, 9_000, 1);
    let count = |module: &Module| {
        let (mut count, mut parts) = (SnapshotCount::default(), 1);
        while module.snapshot_count_part(MAIN, id, &mut count)? {
            parts += 1;
        }
        Ok::<_, Error>((count.blocks, parts))
    };
    let only = rig.module.snapshots(MAIN).unwrap()[0].blocks_only;
    assert_eq!(count(&rig.module), Ok((only, 2)));
    damage_list(&rig.device);
    rig.reopen();
    assert!(matches!(count(&rig.module), Err(Error::Corrupt(_))));
}

/// A device of which nothing can be read after so many reads.
struct Fading {
    device: Arc<MemoryDevice>,
    reads_left: AtomicI64,
}

impl Filter for Fading {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BlockError> {
        self.device.read(first, bufs)?;
        if self.reads_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            bufs.iter_mut().for_each(|buf| buf.fill(0xa5));
        }
        Ok(())
    }
}

#[test]
fn a_slice_that_fails_has_changed_nothing() {
    let device = Arc::new(MemoryDevice::new(8_000));
    let mut rig = Rig::on(device.clone(), device.clone(), CommitOrder::Correct);
    rig.options.deletion_slice = slice(200);
    rig.reopen();
    let [a, b] = two_snapshots(&mut rig);
    assert!(reserved_slice(&rig.module, b));
    for id in [a, b] {
        let mut failures = 0;
        for reads in 0.. {
            let image = Arc::new((*device).clone());
            let fading = Arc::new(Fading { device: image.clone(), reads_left: AtomicI64::new(i64::MAX) });
            let module = rig.open_on(fading.clone()).unwrap();
            let before = (module.snapshots_uncounted(MAIN).unwrap(), module.snapshot_deletions(MAIN));
            fading.reads_left.store(reads, Ordering::Relaxed);
            let outcome = module.snapshot_delete(MAIN, module.epoch() + 1, id);
            fading.reads_left.store(i64::MAX, Ordering::Relaxed);
            if outcome.is_ok() {
                break;
            }
            failures += 1;
            assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
            assert_eq!((module.snapshots_uncounted(MAIN).unwrap(), module.snapshot_deletions(MAIN)), before);
            // The epoch is written all the same.
            module.prepare(module.epoch() + 1).unwrap();
            module.publish(module.epoch() + 1).unwrap();
            assert_eq!(check(image.clone(), &Default::default()).unwrap().findings, []);
            while reserved_slice(&module, id) {}
            assert_eq!(check(image, &Default::default()).unwrap().findings, []);
        }
        assert!(failures > 2, "{failures}");
    }
    rig.apply(vec![Op::Delete { id: ObjectId(2) }]);
    rig.commit();
    rig.check();
}
