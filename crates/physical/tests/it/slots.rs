//! Slots of each kind that hold what they cannot, with right checksums, as what had gone bad in memory leaves them: whatever stops a store when it is
//! opened or used is found by the check, which mends it, or there is a way out.

use crate::damage::{sample, strike};
use crate::rig::*;
use holdfast_block::MemoryDevice;
use holdfast_object::{DomainId, Kind, ObjectId, ObjectStore, Op, PAGE_SIZE, SnapshotId, Timestamp};
use holdfast_physical::check::{
    BitmapRemedy, BlockRole, BlockUse, CheckOptions, Finding, FindingKind, Report, block_uses, check,
};
use std::sync::Arc;

const MAIN: DomainId = DomainId::MAIN;
/// More than anything can be.
const ODD: [u8; 8] = [0xa5; 8];

/// Every kind of block with slots: two snapshots, blocks in the dead list of each, an object without a name, shared blocks. Closed in order.
fn store() -> Rig {
    let mut rig = sample();
    for (at, name) in ["first", "second"].into_iter().enumerate() {
        rig.module.snapshot_create(MAIN, rig.next_epoch(), name, Timestamp::default()).unwrap();
        let at = at as u64;
        let write = rig
            .write_op(2, &[(20 + 2 * at, pattern(900 + at)), (40 + at, pattern(910 + at)), (5000, pattern(920 + at))]);
        rig.apply(vec![write]);
        rig.commit();
    }
    rig.module.close().unwrap();
    rig
}

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It means nothing: the store is used as ever, and the check takes it out.
    Remains,
    /// The store takes no changes until the check has mended it.
    Mended,
    /// The check tells, and what can be read can be copied.
    Told,
}

type Change = fn(&mut [u8; PAGE_SIZE]);

struct Case {
    what: &'static str,
    role: BlockRole,
    /// In domain 0, or, of tree blocks, of any.
    object: (u16, u64),
    index: u64,
    change: Change,
    fate: Fate,
}

fn put(bytes: &mut [u8; PAGE_SIZE], at: usize) {
    bytes[at..at + 8].copy_from_slice(&ODD);
}

/// Byte of the first free run of a page of a dead list.
fn first_free_run(bytes: &[u8; PAGE_SIZE]) -> usize {
    bytes.chunks(32).position(|run| run[24..28] == [0; 4]).unwrap() * 32
}

fn cases() -> Vec<Case> {
    use BlockRole::{Bitmap, DeadList, Map, ObjectTable, References, SnapshotList, Tree};
    use Fate::{Mended, Remains, Told};
    let case = |what, role, (object, index), fate, change| Case { what, role, object, index, change, fate };
    let own = |id: u64| ((0, id), 0);
    // One that no snapshot has too.
    let of_file = ((1, 2), 78);
    let all: Vec<Case> = vec![
        case("free record of the store's own", ObjectTable, own(0), Remains, |bytes| put(bytes, 512 * 5 + 100)),
        case("record 0", ObjectTable, own(0), Remains, |bytes| put(bytes, 300)),
        case("record of the store's own in use", ObjectTable, own(0), Told, |bytes| bytes[512 * 2] = 99),
        case("free record", ObjectTable, own(16), Remains, |bytes| put(bytes, 512 * 6 + 100)),
        case("free record with another kind", ObjectTable, own(16), Told, |bytes| bytes[512 * 6] = 1),
        case("record in use", ObjectTable, own(16), Told, |bytes| bytes[512 * 2] = 99),
        case("record in use that says it is free", ObjectTable, own(16), Told, |bytes| bytes[512 * 2] = 0),
        case("first word of a record in use", ObjectTable, own(16), Told, |bytes| bytes[512 * 2..][..8].fill(0)),
        case("object 0 in the map", Map, own(17), Remains, |bytes| bytes[0] |= 1),
        case("object 0 in the map of orphans", Map, own(18), Remains, |bytes| bytes[0] |= 1),
        case("references to a label", References, own(2), Remains, |bytes| put(bytes, 8)),
        case("free entry of the snapshot list", SnapshotList, own(19), Remains, |bytes| put(bytes, 1024 * 3 + 600)),
        case("name in a free entry", SnapshotList, own(19), Remains, |bytes| put(bytes, 1024 * 2 + 128)),
        case("flags of a snapshot", SnapshotList, own(19), Mended, |bytes| bytes[40] = 4),
        case("flags of the newest snapshot", SnapshotList, own(19), Mended, |bytes| bytes[1024 + 40] = 4),
        case("epoch of a snapshot", SnapshotList, own(19), Mended, |bytes| put(bytes, 16)),
        case("epoch of the newest snapshot", SnapshotList, own(19), Mended, |bytes| put(bytes, 1024 + 16)),
        case("number of a snapshot", SnapshotList, own(19), Mended, |bytes| bytes[..2].fill(0)),
        case("number of a snapshot, and a bit of its table", SnapshotList, own(19), Mended, |bytes| {
            bytes[..2].fill(0);
            bytes[512] ^= 0x80;
        }),
        case("name of a snapshot", SnapshotList, own(19), Mended, |bytes| bytes[128] = b'/'),
        case("table of a snapshot", SnapshotList, own(19), Mended, |bytes| bytes[512] = 99),
        case("last run of a dead list", DeadList, own(20), Remains, |bytes| put(bytes, 127 * 32 + 8)),
        case("first free run of a dead list", DeadList, own(20), Remains, |bytes| {
            let at = first_free_run(bytes);
            put(bytes, at + 8);
        }),
        case("run in use", DeadList, own(20), Told, |bytes| bytes[28] = 7),
        case("run in use that says it is free", DeadList, own(20), Told, |bytes| bytes[24..28].fill(0)),
        case("a label's block in the bitmap", Bitmap, own(1), Remains, |bytes| bytes[0] &= !1),
        case("free pointer of the store's own", Tree, own(0), Remains, |bytes| bytes[64 * 40..64 * 40 + 6].fill(0xa5)),
        case("pointer of the store's own", Tree, own(0), Told, |bytes| put(bytes, 6)),
        case("free pointer of dead lists", Tree, own(20), Remains, |bytes| bytes[64 * 40..64 * 40 + 6].fill(0xa5)),
        case("free pointer of a file", Tree, of_file, Remains, |bytes| bytes[64 * 40..64 * 40 + 6].fill(0xa5)),
        case("pointer of a file", Tree, ((1, 2), 0), Told, |bytes| bytes[6..12].fill(0xff)),
        case("shape of an inner pointer", Tree, ((1, 2), 0), Told, |bytes| bytes[22] = 0),
        case("what is left of a lost page's pointer", Tree, of_file, Told, |bytes| bytes[64 * 40 + 12] = 1),
        case("births and kind of a page's pointer", Tree, of_file, Told, |bytes| bytes[64 * 8..][16..24].fill(0)),
    ];
    all
}

/// What an open store is asked to do, next to what has been struck: to write, to create, to delete, to keep, and to forget.
fn is_used(rig: &Rig, device: &Arc<MemoryDevice>) -> Result<(), String> {
    let mut used = Rig::over(rig, device.clone()).map_err(|error| error.to_string())?;
    let says = |error: holdfast_object::Error| error.to_string();
    if let Some(reason) = used.module.status().read_only {
        return Err(reason);
    }
    for round in 0..2 {
        used.module.snapshots(MAIN).map_err(says)?;
        let ids = used.module.new_objects(MAIN, 3).map_err(says)?;
        let mut ops: Vec<Op> = ids.iter().map(|id| create_op(id.0, Kind::Regular)).collect();
        ops.push(used.write_op(2, &[(30 + round, pattern(1000)), (5001, pattern(1001))]));
        ops.push(used.write_op(ids[0].0, &[(0, pattern(1002))]));
        ops.push(Op::SetAttributes {
            id: ids[1],
            set: holdfast_object::AttrSet { nlink: Some(0), ..Default::default() },
        });
        used.try_apply(ops).map_err(says)?;
        used.try_commit().map_err(says)?;
        let (epoch, name) = (used.next_epoch(), format!("used {round}"));
        let kept = used.module.snapshot_create(MAIN, epoch, &name, Timestamp::default()).map_err(says)?;
        used.try_commit().map_err(says)?;
        let (write, delete) = (used.write_op(2, &[(0, pattern(1003))]), Op::Delete { id: ids[1] });
        used.try_apply(vec![write, delete]).map_err(says)?;
        used.try_commit().map_err(says)?;
        let first = used.module.snapshots(MAIN).map_err(says)?.first().map_or(kept, |first| first.id);
        let gone: Vec<SnapshotId> = used.module.snapshot_deletions(MAIN).iter().map(|deletion| deletion.id).collect();
        for id in gone.into_iter().chain([first]) {
            while used.module.snapshot_delete(MAIN, used.next_epoch(), id).map_err(says)? {
                used.try_commit().map_err(says)?;
            }
            used.try_commit().map_err(says)?;
        }
    }
    used.module.close().map_err(says)
}

fn checked(device: &Arc<MemoryDevice>, repair: bool) -> Result<Report, String> {
    check(device.clone(), &CheckOptions { repair, ..CheckOptions::default() }).map_err(|error| error.to_string())
}

fn is_sound(device: &Arc<MemoryDevice>, what: &str) {
    assert_eq!(checked(device, false).unwrap().findings, [], "{what}");
}

/// Each page of the file is what it is, or an error that does not say that there is none.
fn nothing_reads_as_zeros(rig: &Rig, device: Arc<MemoryDevice>, what: &str) {
    let Ok(used) = Rig::over(rig, device) else { return };
    for index in (0..70).chain([5000]) {
        match used.try_read(2, index, 1) {
            Ok(pages) => assert!(pages[0].is_some(), "{what}: page {index} reads as zeros"),
            Err(error) => assert!(!matches!(error, holdfast_object::Error::NoObject(_)), "{what}: {error}"),
        }
    }
}

#[test]
fn whatever_a_slot_holds_is_found_and_there_is_a_way_out() {
    let rig = store();
    let image = rig.device.as_ref().clone();
    let uses = block_uses(rig.device.clone()).unwrap();
    is_sound(&Arc::new(image.clone()), "before");
    is_used(&rig, &Arc::new(image.clone())).unwrap();
    for Case { what, role, object, index, change, fate } in cases() {
        let is_struck = |used: &&BlockUse| {
            let of = used.object.map(|key| (key.domain.0, key.object.0));
            used.role == role && of == Some(object) && used.index == index && !used.held
        };
        let struck = uses.iter().find(is_struck).unwrap_or_else(|| panic!("{what}: there is no such block"));
        let device = Arc::new(image.clone());
        strike(&device, &uses, struck, change);
        assert!(device.snapshot() != image.snapshot(), "{what}: nothing was changed");
        let before = device.snapshot();
        let found = checked(&device, false);
        assert!(device.snapshot() == before, "{what}: a check without repair wrote");
        // A store that cannot be made out is told of by the check's failure.
        let is_told = found.as_ref().map_or(true, |report| report.found > 0);
        assert!(is_told, "{what}: the check finds nothing");
        let used = Arc::new(MemoryDevice::from_bytes(&before));
        let outcome = is_used(&rig, &used);
        let repaired = checked(&device, true);
        match fate {
            Fate::Remains | Fate::Mended => {
                let (found, repaired) = (found.unwrap(), repaired.unwrap());
                assert_eq!(found.bitmap, BitmapRemedy::Repair, "{what}: {found:?}");
                let kind = match (fate, role) {
                    (_, BlockRole::Bitmap) => FindingKind::UsedButFree,
                    (Fate::Remains, _) => FindingKind::FreeEntry,
                    _ => FindingKind::SnapshotEntry,
                };
                // In a bitmap that is wrong it is not that alone: it counts wrong, too.
                let is_of_it = |it: &Finding| it.kind == kind || it.kind == FindingKind::FreeBlocks;
                assert!(found.findings[0].kind == kind && found.findings.iter().all(is_of_it), "{what}: {found:?}");
                assert_eq!(repaired.unrepaired(), 0, "{what}: {repaired:?}");
                is_sound(&device, what);
                is_used(&rig, &device).unwrap_or_else(|error| panic!("{what}, repaired: {error}"));
                is_sound(&device, &format!("{what}, repaired and used"));
            }
            Fate::Told => {
                assert!(repaired.map_or(true, |report| report.unrepaired() > 0), "{what}");
                assert!(device.snapshot() == before, "{what}: the repair wrote");
                nothing_reads_as_zeros(&rig, device, what);
            }
        }
        match (fate, outcome) {
            (Fate::Remains, outcome) => {
                outcome.unwrap_or_else(|error| panic!("{what}: it is used as ever: {error}"));
                let left = checked(&used, false).unwrap();
                assert!(left.findings.iter().all(|finding| finding.kind == FindingKind::FreeEntry), "{what}: {left:?}");
            }
            (Fate::Mended, outcome) => {
                let why = outcome.expect_err(what);
                assert!(why.contains("in slot") && why.contains("expected"), "{what}: {why}");
                assert!(used.snapshot() == before, "{what}: something was written");
            }
            (Fate::Told, _) => {}
        }
    }
}

/// Of a snapshot whose entry is damaged the others have what they had, and what only it had becomes free.
#[test]
fn a_snapshot_with_a_damaged_entry_goes_and_the_others_stay() {
    let rig = store();
    let uses = block_uses(rig.device.clone()).unwrap();
    let list = uses.iter().find(|used| used.role == BlockRole::SnapshotList).unwrap();
    for (slot, other) in [(0, "second"), (1, "first")] {
        let device = Arc::new(rig.device.as_ref().clone());
        strike(&device, &uses, list, |bytes| bytes[1024 * slot + 40] = 4);
        let found = checked(&device, true).unwrap();
        assert!(found.findings[0].what.contains(if slot == 0 { "\"first\"" } else { "\"second\"" }), "{found:?}");
        let mut used = Rig::over(&rig, device.clone()).unwrap();
        let names: Vec<String> = used.module.snapshots(MAIN).unwrap().into_iter().map(|info| info.name).collect();
        assert_eq!(names, [other]);
        let free = used.module.status().space.free;
        let [deletion] = &used.module.snapshot_deletions(MAIN)[..] else { panic!("it is being deleted") };
        let id = deletion.id;
        while used.module.snapshot_delete(MAIN, used.next_epoch(), id).unwrap() {
            used.commit();
        }
        used.commit();
        assert!(used.module.status().space.free > free, "what only it had is free");
        let kept = used.module.snapshots(MAIN).unwrap()[0].id;
        let mut frames = used.frames(1);
        let key = holdfast_object::ObjectKey { domain: MAIN, object: ObjectId(2).in_snapshot(kept) };
        used.module.read(key, 20, &mut frames).unwrap();
        let expected = if slot == 0 { pattern(900) } else { pattern(20) };
        assert!(*frames[0] == expected, "{other} has what it had");
        used.module.close().unwrap();
        is_sound(&device, other);
    }
}

/// An epoch that is wrong, and one that it could be, does not say who has what the damaged snapshot had.
#[test]
fn a_damaged_epoch_of_a_snapshot_frees_nothing_that_others_have() {
    let mut rig = sample();
    let mut epochs = Vec::new();
    for round in 0..3 {
        // Of a page that two snapshots have, of one that each has another version of, and nothing.
        for pages in [vec![(20 + round, pattern(900 + round)), (50, pattern(910 + round))], vec![(60, pattern(round))]]
        {
            let write = rig.write_op(2, &pages);
            rig.apply(vec![write]);
            rig.commit();
        }
        let epoch = rig.next_epoch();
        rig.module
            .snapshot_create(MAIN, epoch, ["first", "second", "third"][round as usize], Timestamp::default())
            .unwrap();
        rig.commit();
        epochs.push(rig.module.snapshots(MAIN).unwrap()[round as usize].epoch);
    }
    let all: Vec<_> = (0..70).map(|index| (index, pattern(3000 + index))).collect();
    let write = rig.write_op(2, &all);
    rig.apply(vec![write]);
    rig.commit();
    rig.module.close().unwrap();
    let uses = block_uses(rig.device.clone()).unwrap();
    let list = uses.iter().find(|used| used.role == BlockRole::SnapshotList).unwrap();
    let pages = |rig: &Rig, id: SnapshotId| -> Vec<Vec<u8>> {
        let key = holdfast_object::ObjectKey { domain: MAIN, object: ObjectId(2).in_snapshot(id) };
        let page = |index| {
            let mut frames = rig.frames(1);
            rig.module.read(key, index, &mut frames).unwrap();
            frames[0].to_vec()
        };
        (0..70).map(page).collect()
    };
    for (slot, epoch) in [(1, epochs[0] - 1), (2, epochs[0] + 1), (2, epochs[0] - 1)] {
        let what = format!("epoch {epoch} in slot {slot}, of {epochs:?}");
        let device = Arc::new(rig.device.as_ref().clone());
        let sound = Rig::over(&rig, Arc::new(rig.device.as_ref().clone())).unwrap();
        strike(&device, &uses, list, |bytes| bytes[1024 * slot + 16..][..8].copy_from_slice(&epoch.to_le_bytes()));
        let found = checked(&device, true).unwrap();
        assert!(found.findings[0].kind == FindingKind::SnapshotEntry && found.unrepaired() == 0, "{what}: {found:?}");
        let mut used = Rig::over(&rig, device.clone()).unwrap();
        let [deletion] = &used.module.snapshot_deletions(MAIN)[..] else { panic!("{what}: it is being deleted") };
        let id = deletion.id;
        while used.module.snapshot_delete(MAIN, used.next_epoch(), id).unwrap() {
            used.commit();
        }
        used.commit();
        for round in 0..2 {
            let write =
                used.write_op(2, &(100..300).map(|index| (index, pattern(5000 + round + index))).collect::<Vec<_>>());
            used.apply(vec![write]);
            used.commit();
        }
        let kept = used.module.snapshots(MAIN).unwrap();
        assert_eq!(kept.len(), 2, "{what}");
        for snapshot in &kept {
            assert!(pages(&used, snapshot.id) == pages(&sound, snapshot.id), "{what}: {}", snapshot.name);
        }
        used.module.close().unwrap();
        is_sound(&device, &what);
    }
}

/// A copy of what only a snapshot has is repaired, whatever is in an entry that is free, or in that of another snapshot.
#[test]
fn what_a_snapshot_has_is_repaired_beside_entries_that_cannot_be_read() {
    let rig = store();
    let uses = block_uses(rig.device.clone()).unwrap();
    let list = uses.iter().find(|used| used.role == BlockRole::SnapshotList).unwrap();
    let cases: [(&str, Change); 2] =
        [("a free one", |bytes| put(bytes, 1024 * 3 + 600)), ("the first one", |bytes| bytes[40] = 4)];
    for (what, change) in cases {
        let device = Arc::new(rig.device.as_ref().clone());
        strike(&device, &uses, list, change);
        // Only the second one has them.
        let kept: Vec<u64> = {
            let used = Arc::new(MemoryDevice::from_bytes(&device.snapshot()));
            let without = block_uses(used).unwrap();
            without
                .iter()
                .filter(|it| it.held && it.role == BlockRole::Tree && it.copy == 1)
                .map(|it| it.block)
                .collect()
        };
        assert!(!kept.is_empty(), "{what}");
        kept.iter().for_each(|block| device.alter(*block, |bytes| bytes[7] ^= 1).unwrap());
        let found = checked(&device, true).unwrap();
        let copies: Vec<_> = found.findings.iter().filter(|it| it.kind == FindingKind::BadCopy).collect();
        assert_eq!(copies.len(), kept.len(), "{what}: {found:?}");
        assert!(copies.iter().all(|it| it.repaired), "{what}: {found:?}");
    }
}
