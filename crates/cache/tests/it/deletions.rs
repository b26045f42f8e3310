//! Deletions of snapshots: others go on when one cannot, and when there is no room.

use crate::rig::{FRAMES, Rig, pattern};
use holdfast_block::MemoryDevice;
use holdfast_cache::{Cache, Options};
use holdfast_logical::Logical;
use holdfast_object::*;
use holdfast_physical::check::{BlockRole, block_uses};
use holdfast_physical::{DeletionSlice, Module, OpenOptions};
use std::sync::Arc;

/// Pages of the file: so many runs in the dead list of each snapshot.
const PAGES: u64 = 300;

/// Opens the store on a device; deletions go in slices of 50 runs.
fn open(device: &Arc<MemoryDevice>) -> (Cache, Arc<Module>) {
    let clock = Arc::new(ManualClock::new(2_000_000_000, 1_000));
    let arena = Arena::new(FRAMES, 64 << 10).unwrap();
    let options = OpenOptions { deletion_slice: DeletionSlice { runs: 50, blocks: 1 << 17 }, ..OpenOptions::default() };
    let module = Arc::new(Module::open(device.clone(), arena.clone(), clock.clone(), &options).unwrap());
    let store = Arc::new(Logical::assemble(vec![module.clone()]).unwrap());
    let cache = Cache::open(store, arena, clock, DomainId::MAIN, Options::for_frames(FRAMES)).unwrap().0;
    (cache, module)
}

/// A store with the snapshots `a` and `b`, each with a dead list of three pages.
fn two_snapshots() -> Arc<MemoryDevice> {
    let rig = Rig::new(8_192);
    let id = rig.create(Kind::Regular);
    for (name, parts) in [(None, 3), (Some("a"), 4), (Some("b"), 3)] {
        name.map(|name| rig.cache.snapshot_create(name).unwrap());
        // In other parts than before, so that no two neighbours die together.
        for page in (0..parts).flat_map(|start| (start..PAGES).step_by(parts as usize)) {
            rig.write(id, page * PAGE_SIZE as u64, &pattern(page + parts, PAGE_SIZE)).unwrap();
            if page + parts >= PAGES {
                rig.cache.sync_all().unwrap();
            }
        }
    }
    rig.cache.close().unwrap();
    rig.device.clone()
}

fn left(cache: &Cache) -> Vec<String> {
    cache.snapshot_deletions().into_iter().map(|deletion| deletion.name).collect()
}

#[test]
fn a_deletion_that_cannot_go_on_stops_no_other() {
    let device = two_snapshots();
    let (cache, _) = open(&device);
    let a = cache.snapshot_delete("a").unwrap();
    assert!(a.blocks_only >= PAGES, "{a:?}");
    drop(cache);
    // The first page of its list, in both copies.
    let uses = block_uses(device.clone()).unwrap();
    let first = uses.iter().filter(|used| used.role == BlockRole::DeadList && (used.level, used.index) == (0, 0));
    let blocks: Vec<u64> = first.map(|used| used.block).collect();
    assert_eq!(blocks.len(), 2);
    blocks.iter().for_each(|&block| device.alter(block, |block| block[99] ^= 1).unwrap());

    let (cache, _) = open(&device);
    assert_eq!(cache.status().read_only, None);
    cache.snapshot_delete("b").unwrap();
    assert_eq!(left(&cache), ["a", "b"]);
    for _ in 0..40 {
        cache.tick().unwrap();
    }
    assert_eq!(left(&cache), ["a"]);
    let why = cache.deletion_stopped(a.id);
    assert!(matches!(why, Some(Error::Corrupt(_))), "{why:?}");
    let epoch = cache.store_status().epoch;
    (0..10).for_each(|_| assert_eq!(cache.tick(), Ok(None)));
    assert_eq!(cache.store_status().epoch, epoch, "nothing is left to be done");
    // Others come and go.
    let c = cache.snapshot_create("c").unwrap();
    assert_eq!(cache.snapshots().unwrap(), std::slice::from_ref(&c));
    assert_eq!(cache.snapshot_delete("c"), Ok(c));
    assert_eq!(cache.snapshot_delete_more(), Ok(Vec::new()));
}

#[test]
fn a_deletion_without_room_waits_for_some() {
    let device = two_snapshots();
    let (cache, module) = open(&device);
    let a = cache.snapshot_delete("a").unwrap();
    let epoch = cache.store_status().epoch;
    // All that there is but a little is promised to an epoch to come.
    let all = module.reserve(epoch + 9, 1 << 40, Purpose::Release);
    let Err(Error::NoSpace { available, .. }) = all else { panic!("{all:?}") };
    module.reserve(epoch + 9, available - 10, Purpose::Release).unwrap();
    assert_eq!(cache.deletion_stopped(a.id), None);
    cache.tick().unwrap();
    let tried = cache.store_status().epoch;
    for _ in 0..10 {
        cache.tick().unwrap();
    }
    assert_eq!(cache.store_status().epoch, tried, "nothing has changed, so nothing is tried");
    assert!(cache.deletion_stopped(a.id).unwrap().is_full());
    assert_eq!(left(&cache), ["a"]);
    // The promise ends with that epoch; when others have closed some it is tried again.
    let mut closed = 0;
    while cache.store_status().epoch < epoch + 9 {
        cache.grow(0).unwrap();
        closed += 1;
        cache.tick().unwrap();
    }
    assert!(closed <= 4, "{closed}");
    for _ in 0..20 {
        cache.tick().unwrap();
    }
    assert_eq!(left(&cache), [""; 0]);
    assert_eq!(cache.deletion_stopped(a.id), None);
}

#[test]
fn a_full_store_is_not_kept_busy_by_a_deletion_in_vain() {
    let (cache, module) = open(&two_snapshots());
    let a = cache.snapshot_delete("a").unwrap();
    let epoch = || cache.store_status().epoch;
    let (start, others) = (epoch(), 100);
    let released = start + 130;
    let all = module.reserve(released, 1 << 40, Purpose::Release);
    let Err(Error::NoSpace { available, .. }) = all else { panic!("{all:?}") };
    module.reserve(released, available - 10, Purpose::Release).unwrap();
    for _ in 0..others {
        cache.grow(0).unwrap();
        (0..3).for_each(|_| assert_eq!(cache.tick(), Ok(None)));
    }
    let own = epoch() - start - others;
    assert!((6..=20).contains(&own), "{own} epochs for {others} of others");
    assert!(cache.deletion_stopped(a.id).unwrap().is_full());
    // With room it goes on at once, however long it would be until the next attempt.
    while epoch() < released {
        cache.grow(0).unwrap();
    }
    for _ in 0..20 {
        cache.tick().unwrap();
    }
    assert_eq!((left(&cache), cache.deletion_stopped(a.id)), (Vec::new(), None));
}

#[test]
fn a_snapshot_is_deleted_once() {
    for _ in 0..4 {
        let (cache, _) = open(&two_snapshots());
        let together = std::sync::Barrier::new(2);
        let delete = || {
            together.wait();
            cache.snapshot_delete("a").map(|info| info.name)
        };
        let mut outcomes =
            std::thread::scope(|scope| [scope.spawn(delete), scope.spawn(delete)].map(|it| it.join().unwrap()));
        outcomes.sort_by_key(Result::is_err);
        assert_eq!(outcomes, [Ok("a".into()), Err(Error::NoSnapshot("a".into()))]);
    }
}
