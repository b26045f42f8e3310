//! Logic bugs, planted: each equation finds its own, and the counting of each update is found missing.

use super::*;
use crate::alloc::Zone;
use crate::check::{CheckOptions, Finding, FindingKind, check};
use crate::commit::tests::Rig;
use crate::format::blockptr::{POINTER_BYTES, PointerKind};
use crate::format::snapshot::{DEAD_BYTES, StoredSnapshot};
use crate::format::{BlockPointer, COUNTERS, DeadRun, POINTERS, RECORD_BYTES, RECORDS, Record};
use crate::meta_block::{Edit, MetaBlock, MetadataProtection, NodeKey, OwnedBlock};
use crate::objects::{BITMAP, REFERENCES, dead_of, map_of, orphans_of, table_of};
use crate::scribble::{LogicBug, MetaKind, Target};
use crate::tree::Change;
use crate::words::CHUNK_WORDS;
use changes::births_of;
use holdfast_integrity::{Checksum, StoredSums};
use holdfast_object::{
    AttrSet, Attributes, Batch, Class, DomainId, Found, Kind, LogBatch, ObjectId, ObjectStore, Op, Side, Timestamp,
};
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use sums::{add, id_digest};

mod counted;
mod kept;

const OBJECT: ObjectKey = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
const LEAF: NodeKey = NodeKey { domain: 1, object: 2, level: 1, index: 0 };
/// A slot of the leaf in which there is nothing.
const FREE_SLOT: usize = 60;

fn data(address: u64) -> BlockPointer {
    BlockPointer {
        address: [address, 0],
        birth_phys: 1,
        birth_log: 1,
        kind: PointerKind::Data,
        level: 0,
        seeded: false,
        sums: StoredSums::of(Checksum::crc64(0)),
    }
}

/// Something is changed that should not be, with all that the code itself keeps of it.
type Plant = fn(&Rig, &mut Trees);

fn put(trees: &mut Trees, pointer: BlockPointer) {
    trees.dirty_mut(LEAF).put_pointer(FREE_SLOT, &pointer);
}

/// Where the first page of the object is.
fn first_page(trees: &Trees) -> u64 {
    trees.dirty[&LEAF].block.pointer(0).address[0]
}

/// Changes the record of the object; gives what it was.
fn tell(trees: &mut Trees, change: fn(&mut Record)) -> Record {
    let Some(Change::Present(sealed)) = trees.changed.get_mut(&OBJECT) else { panic!("it was written") };
    let before = Record::clone(sealed);
    let mut record = before.clone();
    change(&mut record);
    sealed.replace(record, 0, 0).unwrap();
    before
}

/// By the equation that is to find it.
const PLANTS: [(&str, &str, Plant); 28] = [
    ("pending", "a placeholder without a block", |_, trees| put(trees, BlockPointer::PENDING)),
    ("levels", "a page as a tree block", |_, trees| {
        put(trees, BlockPointer { kind: PointerKind::Tree, level: 1, ..data(1000) });
    }),
    ("levels", "a tree block in the place of a page", |_, trees| {
        put(trees, BlockPointer { kind: PointerKind::Tree, ..data(1000) });
    }),
    ("births", "a page of the future", |rig, trees| {
        put(trees, BlockPointer::lost(rig.module.epoch() + 2, Side::Memory))
    }),
    ("birth order", "a page older than itself", |rig, trees| {
        put(trees, BlockPointer { birth_phys: rig.module.epoch() + 1, ..BlockPointer::lost(1, Side::Memory) });
    }),
    ("range", "a page in a label", |_, trees| put(trees, data(5))),
    ("range", "a page behind the end", |_, trees| put(trees, data(1 << 20))),
    ("blocks", "a bit without its pointer", |rig, _| {
        rig.module.base.alloc.lock().allocate(rig.module.epoch() + 1, Zone::Data, 1).unwrap();
    }),
    ("blocks", "a pointer without its bit", |_, trees| put(trees, data(2000))),
    ("blocks", "a pointer to a block in use", |_, trees| {
        let page = first_page(trees);
        put(trees, data(page));
    }),
    ("blocks", "a block freed that has its pointer", |rig, trees| {
        assert!(rig.module.base.free(first_page(trees)));
    }),
    ("blocks", "a pointer that goes without its block", |_, trees| {
        trees.dirty_mut(LEAF).put_pointer(0, &BlockPointer::HOLE);
    }),
    ("blocks", "a page in the place of another one", |_, trees| {
        let page = first_page(trees);
        trees.dirty_mut(LEAF).put_pointer(0, &data(page + 500));
    }),
    ("free", "a wrong count of free blocks", |rig, _| rig.module.base.alloc.lock().miscount_free()),
    ("references", "a reference that nobody has", |rig, trees| {
        let page = first_page(trees);
        trees.add_reference(&rig.module.base, page).unwrap();
    }),
    ("dead lists", "a block that died and lives", |_, trees| {
        let run = DeadRun { address: [first_page(trees), 0], birth_log: 1, count: 1, is_page: true };
        assert!(trees.kept.died(DomainId::MAIN, run));
    }),
    ("dead births", "a block that died another time", |_, trees| {
        let run = DeadRun { address: [first_page(trees), 0], birth_log: 1, count: 1, is_page: true };
        assert!(trees.kept.died(DomainId::MAIN, run));
        trees.audit.buried(&DeadRun { birth_log: 2, ..run });
    }),
    ("next generation", "a generation that is given twice", |_, trees| trees.next_generation -= 1),
    ("objects", "a wrong count of objects", |_, trees| trees.objects += 1),
    ("object maps", "an id without a record", |rig, trees| {
        trees.set_map_bit(&rig.module.base, map_of(DomainId::MAIN), ObjectId(99), false, true).unwrap();
    }),
    ("orphans", "an orphan with a name", |rig, trees| {
        trees.set_map_bit(&rig.module.base, orphans_of(DomainId::MAIN), OBJECT.object, false, true).unwrap();
    }),
    ("pages", "a wrong count of an object's pages", |_, trees| {
        tell(trees, |record| record.attributes.blocks += 1);
    }),
    ("bounds", "pages beyond the bound", |_, trees| {
        tell(trees, |record| record.page_bound = 3);
    }),
    ("generations", "an object that is newer than the next one", |_, trees| {
        tell(trees, |record| record.attributes.generation += 1000);
    }),
    ("snapshots", "a snapshot that is not as it is listed", |_, trees| {
        trees.kept.alter(DomainId::MAIN, true, backdate)
    }),
    ("metadata", "a wrong count of metadata", |_, trees| trees.metadata += 1),
    ("metadata kept", "a wrong count of what a snapshot keeps", |_, trees| {
        trees.kept.miscount(DomainId::MAIN).unwrap();
    }),
    ("size", "a wrong count of blocks", |rig, _| rig.module.base.alloc.lock().miscount_total()),
];

/// A store with a snapshot, and an object of which a page is written in the epoch being built.
fn rig() -> Rig {
    rig_with(MetadataProtection::Audited)
}

fn rig_with(protection: MetadataProtection) -> Rig {
    let rig = Rig::with(protection);
    rig.module
        .snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, "before", Timestamp { secs: 1, nanos: 0 })
        .unwrap();
    rig.fill(2, 4);
    rig.commit().unwrap();
    rig.fill(2, 1);
    rig
}

#[test]
fn every_equation_finds_the_logic_bug_that_it_is_for() {
    let named: BTreeSet<&str> = PLANTS.iter().map(|plant| plant.0).collect();
    assert_eq!(named, EQUATIONS.iter().map(|equation| equation.name).collect(), "each has a plant");
    // Whether updates count, or blocks are compared with copies.
    let both = [MetadataProtection::Audited, MetadataProtection::Compared];
    for ((name, what, plant), protection) in PLANTS.into_iter().flat_map(|plant| both.map(|how| (plant, how))) {
        let rig = rig_with(protection);
        let before = rig.stored();
        plant(&rig, &mut rig.module.trees.write());
        let error = rig.commit().expect_err(what).to_string();
        assert!(error.contains(&format!("\"{name}\": ")), "{what}: {error}");
        assert!(error.contains("a logic bug") && error.contains(&OBJECT.to_string()), "{what}: {error}");
        assert!(error.contains(&format!("audit of epoch {}", before.1 + 1)), "{what}: {error}");
        let is_of_a_block = ["pending", "levels", "births", "birth order", "range"].contains(&name);
        let place = format!("; slot {FREE_SLOT} of {OBJECT}, tree block 0 of level 1, device ");
        assert_eq!(error.contains(&place), is_of_a_block, "{what}: {error}");
        let counters = rig.module.status().counters;
        assert_eq!((counters.audit_failures, counters.scribbles), (1, 0), "{what}");
        assert!(matches!(rig.commit(), Err(Error::GivenUp(_))), "{what}");
        let about = match (name, what) {
            // What no pointer names, or two numbers.
            ("blocks", "a bit without its pointer" | "a page in the place of another one") => None,
            ("free" | "objects" | "snapshots" | "metadata" | "metadata kept" | "size", _) => None,
            ("object maps", _) => Some(ObjectKey { object: ObjectId(99), ..OBJECT }),
            _ => Some(OBJECT),
        };
        assert_eq!(rig.module.suspects(), Vec::from_iter(about), "{what}: {error}");
        assert_eq!(rig.stored(), before, "{what}");
        rig.module.begin_anew().unwrap();
        assert_eq!(rig.module.suspects(), []);
        rig.fill(2, 1);
        rig.commit().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The newest birth put counts, whatever has become of it.
#[test]
fn what_no_block_has_any_more_is_told_so() {
    let rig = rig();
    let future = BlockPointer::lost(rig.module.epoch() + 2, Side::Memory);
    let mut trees = rig.module.trees.write();
    put(&mut trees, future);
    put(&mut trees, BlockPointer::HOLE);
    drop(trees);
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains("\"births\": ") && error.contains("; no changed block has it any more"), "{error}");
}

/// What the check says of each, which knows no sums: without the audit they become recovery points.
#[test]
fn the_check_finds_each_logic_bug_too() {
    use FindingKind::*;
    for (at, (name, what, plant)) in PLANTS.into_iter().enumerate() {
        let kind = match name {
            "pending" | "levels" | "births" | "birth order" | "range" => Pointer,
            "blocks" if what == "a bit without its pointer" => Leaked,
            "blocks" if what == "a pointer to a block in use" || what == "a pointer that goes without its block" => {
                Record
            }
            "blocks" => UsedButFree,
            "free" | "size" => FreeBlocks,
            "references" => UnusedReferences,
            "dead lists" => DoublyUsed,
            "next generation" | "pages" | "bounds" | "generations" => Record,
            "objects" | "metadata" => Counters,
            "object maps" | "orphans" => Maps,
            // The store's bytes are right until something comes of them: below.
            "dead births" | "snapshots" | "metadata kept" => continue,
            name => panic!("equation \"{name}\" has no judge, by plant {at}"),
        };
        let rig = rig_with(MetadataProtection::Off);
        plant(&rig, &mut rig.module.trees.write());
        rig.commit().unwrap_or_else(|error| panic!("{what}: {error}"));
        found(&rig, kind, what);
    }
}

/// The check finds something of this kind; and it says of which snapshot an object is.
fn found(rig: &Rig, kind: FindingKind, what: &str) {
    let findings = check(rig.device.clone(), &CheckOptions::default()).unwrap().findings;
    assert!(findings.iter().any(|finding| finding.kind == kind), "{what}: {findings:?}");
    let is_of_snapshots = |it: &&Finding| matches!(it.kind, FindingKind::Snapshot | FindingKind::Unlisted);
    let of_snapshots = findings.iter().filter(is_of_snapshots).filter_map(|it| it.place.object);
    let is_living = |key: &ObjectKey| key.domain == DomainId::MAIN && key.object == key.object.live();
    assert_eq!(of_snapshots.filter(is_living).count(), 0, "{what}: {findings:?}");
}

/// A store with a snapshot that has all of an object.
fn rig_with_all_in_a_snapshot(protection: MetadataProtection) -> Rig {
    let rig = Rig::with(protection);
    rig.fill(2, 4);
    rig.commit().unwrap();
    let (epoch, at) = (rig.module.epoch() + 1, Timestamp { secs: 1, nanos: 0 });
    rig.module.snapshot_create(DomainId::MAIN, epoch, "all", at).unwrap();
    rig.commit().unwrap();
    rig.stored();
    rig
}

#[test]
fn the_check_finds_births_of_dead_blocks_that_are_not_those_of_the_snapshot() {
    type Change = fn(&mut DeadRun);
    let changes: [(Change, bool); 4] = [
        (|_| {}, false),
        (|run| run.birth_log -= 1, true),
        (|run| run.birth_log += 1, true),
        (|run| run.is_page = false, true),
    ];
    for (change, is_wrong) in changes {
        let rig = rig_with_all_in_a_snapshot(MetadataProtection::Rolling);
        rig.fill(2, 4);
        let mut trees = rig.module.trees.write();
        trees.kept.alter_dying(DomainId::MAIN, |run| {
            if run.is_page {
                change(run);
            }
        });
        drop(trees);
        rig.commit().unwrap();
        if is_wrong {
            found(&rig, FindingKind::Snapshot, "a birth");
        } else {
            rig.stored();
        }
    }
}

#[test]
fn the_check_finds_what_comes_of_a_snapshot_that_is_not_as_listed_and_of_too_low_a_count() {
    let rig = rig_with_all_in_a_snapshot(MetadataProtection::Rolling);
    // Pages born with the last epoch that it has are younger than it now.
    rig.module.trees.write().kept.alter(DomainId::MAIN, true, |stored| stored.epoch = 1);
    rig.fill(2, 4);
    rig.commit().unwrap();
    found(&rig, FindingKind::Unlisted, "a snapshot that is not as it is listed");

    let rig = rig_with_all_in_a_snapshot(MetadataProtection::Rolling);
    let [counted, told] = rig.module.trees.write().kept.miscount(DomainId::MAIN).unwrap();
    assert!(told < counted);
    rig.make(3);
    rig.commit().unwrap();
    found(&rig, FindingKind::Counters, "a wrong count of what a snapshot keeps");
}

/// Whole tree blocks go away, clean ones and changed ones, with pages that a snapshot has, and pages that nobody else has.
#[test]
fn both_audits_judge_what_is_deleted() {
    let plants: [(&str, Plant); 3] = [
        ("nothing", |_, _| {}),
        ("a block freed that has its pointer", |rig, trees| {
            let page = trees.pages(&rig.module.base, OBJECT, &trees.get(&rig.module.base, OBJECT).unwrap(), 0, 1);
            assert!(rig.module.base.free(page.unwrap()[0].address[0]));
        }),
        ("a block of what was deleted in use", |rig, _| {
            rig.module.base.alloc.lock().allocate(rig.module.epoch() + 1, Zone::Data, 1).unwrap();
        }),
    ];
    let both = [MetadataProtection::Audited, MetadataProtection::Compared];
    for ((what, plant), protection) in plants.into_iter().flat_map(|plant| both.map(|how| (plant, how))) {
        let rig = rig_with(protection);
        rig.make(3);
        rig.fill(3, 200);
        rig.commit().unwrap();
        rig.write(3, 70).unwrap();
        rig.delete(3);
        plant(&rig, &mut rig.module.trees.write());
        match (rig.commit(), what) {
            (Ok(()), "nothing") => assert_eq!(rig.stored().0, 1, "{protection:?}"),
            (Err(error), what) if what != "nothing" => {
                assert!(error.to_string().contains("\"blocks\": "), "{what}, {protection:?}: {error}");
            }
            (outcome, _) => panic!("{what}, {protection:?}: {outcome:?}"),
        }
    }
}

/// Of the metadata of an object that is dropped as a whole, the newest snapshot has what was born in its epoch or before, and no more.
#[test]
fn metadata_dropped_as_a_whole_is_counted_with_what_the_snapshot_has() {
    for protection in [MetadataProtection::Audited, MetadataProtection::Compared] {
        let rig = rig_with(protection);
        rig.make(3);
        rig.fill(3, 500);
        // The last page under the topmost block, which goes as a whole then.
        rig.write(3, POINTERS * POINTERS - 1).unwrap();
        rig.commit().unwrap();
        let (epoch, at) = (rig.module.epoch() + 1, Timestamp { secs: 2, nanos: 0 });
        rig.module.snapshot_create(DomainId::MAIN, epoch, "newest", at).unwrap();
        rig.commit().unwrap();
        // Leaves of both sorts under one block; and so much of what the snapshot has not that "at most all" says nothing.
        rig.write(3, 70).unwrap();
        rig.make(4);
        rig.fill(4, 900);
        rig.commit().unwrap();
        rig.delete(3);
        rig.commit().unwrap_or_else(|error| panic!("{protection:?}: {error}"));
        rig.stored();
    }
}

/// An object of which nothing changes but the bound, and no block of its tree does.
#[test]
fn a_bound_that_sinks_by_itself_is_found() {
    let of = |object| ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) };
    // Pages that it has, its bound, and whether that is right.
    let bounds = [(200, 199, false), (200, 0, false), (200, 64, false), (200, 128, false), (200, 200, true)];
    let of_one_page = [(1, 0, false), (1, 1, true)];
    for protection in [MetadataProtection::Audited, MetadataProtection::Compared] {
        for (pages, bound, is_right) in bounds.into_iter().chain(of_one_page) {
            let rig = rig_with(protection);
            rig.make(3);
            rig.fill(3, pages);
            rig.commit().unwrap();
            let before = rig.stored();
            let mut trees = rig.module.trees.write();
            let record = trees.get(&rig.module.base, of(3)).unwrap();
            trees.put(&rig.module.base, of(3), Record { page_bound: bound, ..record }).unwrap();
            drop(trees);
            let outcome = rig.commit();
            if is_right {
                outcome.unwrap();
                continue;
            }
            let error = outcome.expect_err(&format!("{pages} pages below {bound}")).to_string();
            assert!(error.contains("\"bounds\": "), "{pages}, {bound}: {error}");
            assert_eq!(rig.stored(), before);
        }
    }
}

#[test]
fn a_count_is_not_told_as_a_number_in_which_both_sides_differ() {
    let rig = rig();
    rig.module.trees.write().objects += 1;
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains("\"objects\"") && !error.contains("they differ in"), "{error}");
}

#[test]
fn a_single_block_is_named() {
    let rig = rig();
    let page = {
        let mut trees = rig.module.trees.write();
        let page = first_page(&trees);
        trees.dirty_mut(LEAF).put_pointer(0, &BlockPointer::HOLE);
        page
    };
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains(&format!("they differ in {page} only")), "{error}");
}

#[test]
fn a_scribble_is_told_as_one() {
    let rig = rig();
    {
        let mut trees = rig.module.trees.write();
        trees.dirty.get_mut(&LEAF).unwrap().block.scribble(0, &[1]);
        // What was there before is counted as gone.
        trees.dirty_mut(LEAF).put_pointer(0, &data(1000));
    }
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains("to which somebody has written who must not"), "{error}");
    let counters = rig.module.status().counters;
    assert_eq!((counters.audit_failures, counters.scribbles), (0, 1));
}

/// All that the audit and the superblock are made from: what has gone bad in it is told before an equation is judged.
#[test]
fn a_scribble_upon_the_sums_is_told_as_one() {
    for kind in [MetaKind::Audit, MetaKind::Counts] {
        let fields = |rig: &Rig| {
            let targets = rig.module.lab().targets(kind).into_iter();
            let of = |target: Target| rig.module.lab().layout(&target).unwrap().fields.len();
            targets.flat_map(|target| (0..of(target)).map(move |field| (target, field))).collect::<Vec<_>>()
        };
        let all = fields(&rig());
        assert!(all.len() > 10, "{kind}");
        for (target, field) in all {
            let rig = rig();
            let before = rig.stored();
            let lab = rig.module.lab();
            let (name, at, length) = lab.layout(&target).unwrap().fields.swap_remove(field);
            lab.strike(&target, at + length - 1, &[1 << 6]).unwrap();
            let error = match rig.commit() {
                // A lower one has come, and is the lowest of both.
                Ok(()) if name.ends_with("lowest") => continue,
                outcome => outcome.expect_err(&name).to_string(),
            };
            assert!(error.contains("to which somebody has written who must not"), "{target}, {name}: {error}");
            let sum = name.trim_start_matches("twin of ").split('.').next().unwrap();
            let is_named = kind == MetaKind::Counts || error.contains(&format!("sum \"{sum}\" of the audit"));
            assert!(is_named, "{target}, {name}: {error}");
            let counters = rig.module.status().counters;
            assert_eq!((counters.audit_failures, counters.scribbles), (0, 1), "{target}, {name}");
            assert_eq!(rig.stored(), before, "{target}, {name}");
            rig.module.begin_anew().unwrap();
            rig.fill(2, 1);
            rig.commit().unwrap();
        }
    }
}

fn backdate(stored: &mut StoredSnapshot) {
    stored.epoch -= 1;
}

/// A snapshot in memory decides whose blocks are, so it is looked at before it is used, and before each recovery point.
#[test]
fn a_scribble_upon_a_snapshot_is_told_as_one() {
    let changes: [fn(&mut StoredSnapshot); 2] = [backdate, |stored| stored.table.root.address[1] |= 1 << 50];
    for (change, is_deletion) in changes.into_iter().flat_map(|change| [(change, false), (change, true)]) {
        let rig = rig();
        let (id, epoch) = (rig.module.snapshots(DomainId::MAIN).unwrap()[0].id, rig.module.epoch() + 1);
        let before = rig.stored();
        if is_deletion {
            rig.commit().unwrap();
        }
        rig.module.trees.write().kept.alter(DomainId::MAIN, false, change);
        if is_deletion {
            // It is put right from the list before anything follows from it.
            rig.module.snapshot_delete(DomainId::MAIN, epoch + 1, id).unwrap();
            rig.commit().unwrap();
            let counters = rig.module.status().counters;
            assert_eq!((counters.audit_failures, counters.scribbles), (0, 1));
            rig.stored();
            continue;
        }
        let error = rig.commit().unwrap_err();
        let counters = rig.module.status().counters;
        assert!(error.to_string().contains("checksum of a snapshot in memory"), "{error}");
        assert!(matches!(error, Error::GivenUp(_)), "{error}");
        assert_eq!((counters.audit_failures, counters.scribbles), (0, 1));
        assert!(rig.stored() == before);
        rig.module.begin_anew().unwrap();
        rig.module.snapshot_delete(DomainId::MAIN, rig.module.epoch() + 1, id).unwrap();
        rig.commit().unwrap();
    }
}

/// Nothing is written where the log may not be, and what was synced can become a recovery point.
#[test]
fn a_log_whose_end_is_wrong_is_not_used() {
    let rig = Rig::new();
    let append = || {
        let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
        let ops = vec![Op::SetAttributes { id: OBJECT.object, set }];
        let batch = LogBatch { domain: DomainId::MAIN, epoch: rig.module.epoch() + 1, ops };
        rig.module.log_append(&batch).unwrap()
    };
    // Of either half, with batches in it and without.
    for (round, choice) in [0, 1].into_iter().enumerate() {
        assert!(append() && append());
        rig.module.lab().logic_bug(LogicBug::LogHead, choice).unwrap().unwrap();
        assert!(!append() && !rig.module.log_seal().unwrap());
        let failures = 2 * (round as u64 + 1);
        assert_eq!(rig.module.status().counters.audit_failures, failures);
        rig.fill(2, 1);
        rig.commit().unwrap();
        assert!(append());
        assert_eq!(rig.module.status().counters.audit_failures, failures);
    }
}

/// The store was damaged before: what the equations compare was never the same.
#[test]
fn old_contradictions_are_passed_over() {
    let plants: [(&str, Plant); 4] = [
        ("an object that is not in the map", |rig, trees| {
            trees.set_map_bit(&rig.module.base, map_of(DomainId::MAIN), OBJECT.object, true, false).unwrap();
            trees.audit.sums.change(|sums| sums.mapped += id_digest(1, 2));
        }),
        ("an orphan that has a name", |rig, trees| {
            trees.set_map_bit(&rig.module.base, orphans_of(DomainId::MAIN), OBJECT.object, false, true).unwrap();
            trees.audit.sums.change(|sums| sums.orphans -= id_digest(1, 2));
        }),
        ("a block that is named twice", |_, trees| {
            let page = trees.dirty[&LEAF].block.pointer(0);
            put(trees, page);
            trees.audit.sums.change(|sums| {
                sums.pointers.addresses -= Digest::of(page.address[0]);
                add(&mut sums.pages, u64::MAX);
            });
        }),
        ("counts that are too low", |_, trees| {
            let told = tell(trees, |record| record.attributes.blocks = 0).attributes.blocks;
            let (objects, metadata) = (trees.objects.get(), trees.metadata.get());
            trees.audit.sums.change(|sums| {
                add(&mut sums.pages_told, told);
                add(&mut sums.objects, objects.wrapping_neg());
                add(&mut sums.doubled, metadata.wrapping_neg());
            });
            trees.objects -= objects;
            trees.metadata -= metadata;
        }),
    ];
    for (what, plant) in plants {
        let rig = rig();
        plant(&rig, &mut rig.module.trees.write());
        rig.delete(2);
        rig.commit().unwrap_or_else(|error| panic!("{what}: {error}"));
        rig.make(4);
        rig.commit().unwrap();
    }
}

#[test]
fn more_that_a_snapshot_keeps_than_was_counted_is_passed_over() {
    let rig = rig_with_all_in_a_snapshot(MetadataProtection::Audited);
    // Of nothing at all the snapshot could not keep too much.
    rig.make(3);
    rig.fill(3, 4);
    rig.commit().unwrap();
    {
        let mut trees = rig.module.trees.write();
        while trees.kept.metadata_of_newest(DomainId::MAIN).unwrap() > 0 {
            trees.kept.miscount(DomainId::MAIN).unwrap();
            trees.audit.sums.change(|sums| add(&mut sums.kept, u64::MAX));
        }
    }
    rig.delete(2);
    rig.commit().unwrap();
    rig.make(4);
    rig.commit().unwrap();
}

/// The copy is done in part, and the epoch goes on.
#[test]
fn a_copy_that_fails_keeps_no_reference() {
    let rig = Rig::new();
    rig.make(3);
    rig.fill(2, 1);
    rig.fill(3, 3);
    rig.commit().unwrap();
    let target = ObjectKey { domain: DomainId::MAIN, object: ObjectId(3) };
    let (page, leaf) = {
        let trees = rig.module.trees.read();
        let root_of = |key| trees.get(&rig.module.base, key).unwrap().root;
        (root_of(OBJECT), root_of(target))
    };
    // Seen only by who verifies it, and there is no good copy then.
    rig.scribble_cached(NodeKey::new(target, 1, 0), &leaf, 4000);
    leaf.addresses().for_each(|block| rig.device.alter(block, |bytes| bytes[4000] ^= 1).unwrap());
    let (id, target) = (OBJECT.object, target.object);
    let copy = Op::Copy { source: id, source_first: 0, target, target_first: 0, pages: 2, size_min: 0 };
    let epoch = rig.module.epoch() + 1;
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops: vec![copy] }).unwrap();
    assert_eq!(rig.module.trees.read().references(&rig.module.base, page.address[0]).unwrap(), 0);
    rig.commit().unwrap();
}

#[test]
fn the_equations_are_in_the_docs() {
    let docs = include_str!("../../../../docs/audit.md");
    for Equation { name, .. } in &EQUATIONS {
        assert!(docs.contains(&format!("| {name} |")), "{name}");
    }
}
