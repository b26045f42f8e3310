use super::*;
use crate::commit::tests::Rig;
use crate::format::split_address;
use crate::objects::{system_key, table_of};
use holdfast_integrity::crc64_neutral;
use holdfast_object::{
    Attributes, Batch, Error, ObjectId, ObjectKey, ObjectStore, Op, ScrubCursor, Seek, SnapshotId, Timestamp,
};
use std::collections::BTreeSet;

/// A store with a snapshot, shared pages, and an epoch being built that has changed something of all of it.
fn rig() -> Rig {
    let rig = Rig::new();
    prepare(&rig);
    rig
}

fn prepare(rig: &Rig) {
    rig.make(3);
    rig.fill(2, 70);
    rig.fill(3, 4);
    rig.commit().unwrap();
    copy(rig, 3, 10);
    rig.commit().unwrap();
    let made = Timestamp { secs: 1, nanos: 0 };
    rig.module.snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, "before", made).unwrap();
    rig.fill(2, 3);
    rig.commit().unwrap();
    rig.fill(2, 5);
    rig.make(4);
    copy(rig, 3, 20);
}

fn copy(rig: &Rig, target: u64, target_first: u64) {
    let (id, target) = (ObjectId(2), ObjectId(target));
    let size_min = (target_first + 3) * 4096;
    let copy = Op::Copy { source: id, source_first: 30, target, target_first, pages: 3, size_min };
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch: rig.module.epoch() + 1, ops: vec![copy] }).unwrap();
}

#[test]
fn each_field_of_everything_can_be_struck_and_is_told_by_name() {
    let rig = rig();
    let lab = rig.module.lab();
    let mut fields = BTreeSet::new();
    for kind in MetaKind::ALL {
        let targets = lab.targets(kind);
        // What there is only while blocks are written ahead, or a batch is put together.
        let is_fleeting = matches!(kind, MetaKind::WrittenAhead | MetaKind::LogBatch);
        assert!(!targets.is_empty() || is_fleeting, "{kind}");
        for target in targets {
            let layout = lab.layout(&target).expect("it is listed");
            let slot = layout.used.first().copied().unwrap_or(0);
            // One of few things becomes another, and not what it was when it is struck again.
            for (name, first, length) in layout.fields.iter().filter(|(name, ..)| !name.ends_with("kind")) {
                let at = slot * layout.slot_bytes + first;
                assert!(layout.name(at).starts_with(name.as_str()), "{target}: {name} is called {}", layout.name(at));
                let Some(struck) = lab.strike(&target, at, &[1]) else {
                    panic!("{target}: {name}, {length} bytes, is not struck");
                };
                assert!(struck.before != struck.after && struck.field == layout.name(struck.offset), "{struck}");
                fields.insert((kind, name.clone()));
                if struck.offset == at {
                    let again = lab.strike(&target, at, &[1]).expect("it is there");
                    assert_eq!((again.after, again.before), (struck.before, struck.after), "{target}: {name}");
                }
            }
        }
    }
    for (kind, field) in [
        (MetaKind::ObjectTable, "root.birth_log"),
        (MetaKind::BlockTree, "address[1]"),
        (MetaKind::Record, "size"),
        (MetaKind::Record, "root.address[0], upper part"),
        (MetaKind::SnapshotList, "table.root.primary"),
        (MetaKind::Snapshot, "epoch"),
        (MetaKind::DeadList, "birth_log"),
        (MetaKind::DeadRun, "count"),
        (MetaKind::Superblock, "root.root.address[0]"),
        (MetaKind::Label, "log_start"),
        (MetaKind::Counts, "next_generation"),
        (MetaKind::IntentLog, "epoch"),
    ] {
        assert!(fields.contains(&(kind, field.to_string())), "{kind}: {field}");
    }
    // All was put right again.
    rig.commit().unwrap();
    assert_eq!(rig.module.status().counters.scribbles, 0);
    rig.stored();
}

/// A target of a kind that is what it should be, to be struck.
fn target(rig: &Rig, kind: MetaKind, state: State) -> Target {
    let targets = rig.module.lab().targets(kind);
    *targets.iter().find(|target| target.state == state).expect("one of these")
}

/// As each by itself, also what has gone bad, is not there, or is a snapshot's.
#[test]
fn what_is_said_of_several_objects_is_what_is_said_of_each() {
    let rig = Rig::new();
    (3..30).for_each(|id| rig.make(id));
    rig.commit().unwrap();
    let made = Timestamp { secs: 1, nanos: 0 };
    let snapshot = rig.module.snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, "kept", made).unwrap();
    rig.commit().unwrap();
    rig.make(30);
    let ids = (1..34).map(ObjectId).chain([ObjectId(5).in_snapshot(snapshot), ObjectId(u64::MAX >> 16)]);
    let keys: Vec<ObjectKey> = ids.map(|object| ObjectKey { domain: DomainId::MAIN, object }).collect();
    let said = |of: &dyn Fn() -> Vec<Result<Attributes, Error>>| -> Vec<_> {
        of().into_iter().map(|one| one.map_err(|error| error.to_string())).collect()
    };
    let each = || said(&|| keys.iter().map(|key| rig.module.attributes(*key)).collect());
    let before = each();
    assert!(before.iter().filter(|one| one.is_ok()).count() >= 29 && before.iter().any(|one| one.is_err()));
    assert_eq!(said(&|| rig.module.attributes_of(&keys)), before);
    let scribbles = || rig.module.status().counters.scribbles;
    let tables = rig.module.lab().targets(MetaKind::ObjectTable);
    for table in tables.into_iter().filter(|table| table.state == State::Clean && table.key().object != 0) {
        let noticed = scribbles();
        rig.module.lab().strike(&table, 512 + 40, &[1 << 3]).unwrap();
        assert_eq!(said(&|| rig.module.attributes_of(&keys)), before, "{table:?}");
        assert_eq!(scribbles(), noticed + 1, "{table:?}");
    }
}

#[test]
fn what_keeps_the_crc_is_seen_everywhere() {
    for (kind, state, byte) in [
        (MetaKind::BlockTree, State::Changed, 40),
        (MetaKind::Map, State::Changed, 40),
        // Within the bytes of the largest numbers: size and blocks of a record.
        (MetaKind::Record, State::Changed, 40),
        (MetaKind::Record, State::InUse, 40),
        (MetaKind::Allocator, State::InUse, 40),
        (MetaKind::Label, State::InUse, 40),
        (MetaKind::Superblock, State::InUse, 40),
        // When it was made, and of which epoch it is.
        (MetaKind::Snapshot, State::InUse, 8),
    ] {
        let rig = rig();
        let lab = rig.module.lab();
        let (at, pattern) = crc64_neutral(byte * 8).unwrap();
        let struck = lab.strike(&target(&rig, kind, state), at, &pattern).expect("there are bits");
        let outcome = rig.commit();
        let counters = rig.module.status().counters;
        assert!(counters.scribbles > 0, "{struck}: {outcome:?}, {counters:?}");
        rig.stored();
    }
}

/// What such a pointer names is somebody else's block, and not a bad copy.
#[test]
fn nothing_is_repaired_through_a_pointer_that_has_gone_bad() {
    let kinds = [MetaKind::SystemTree, MetaKind::BlockTree];
    let is_changed = |target: &Target| target.state == State::Changed;
    let first = rig();
    let listed = |rig: &Rig| {
        let targets = kinds.into_iter().flat_map(|kind| rig.module.lab().targets(kind)).filter(is_changed);
        let slots = |target: &Target| rig.module.lab().layout(target).expect("it is listed").used.len();
        targets.flat_map(|target| (0..slots(&target)).map(move |slot| (target, slot))).collect::<Vec<_>>()
    };
    let mut struck = 0;
    for (target, number) in listed(&first) {
        // Who reads takes the epoch back.
        let rig = rig();
        let lab = rig.module.lab();
        let layout = lab.layout(&target).expect("the same as in the first");
        let slot = layout.used[number];
        lab.strike(&target, slot * layout.slot_bytes, &[2]).expect("it is there");
        rig.module.base.cache.clear();
        let before = rig.device.snapshot();
        for object in [2, 3] {
            let key = ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) };
            // Whatever they say.
            let _ = [0, 64].map(|page| rig.module.seek(key, page, Seek::Hole));
        }
        let _ = (rig.module.snapshots(DomainId::MAIN), rig.module.objects(DomainId::MAIN, ObjectId(0), 10));
        assert!(rig.device.snapshot() == before, "{target}, slot {slot}");
        rig.stored();
        struck += 1;
    }
    assert!(struck > 1);
}

/// Nobody above the store notices, and all are told of.
#[test]
fn numbers_that_are_in_no_block_are_put_right() {
    let rig = || {
        let rig = rig();
        rig.module.new_objects(DomainId::MAIN, 1).unwrap();
        rig
    };
    let target_of = |rig: &Rig| target(rig, MetaKind::Numbers, State::InUse);
    let first = rig();
    let fields = first.module.lab().layout(&target_of(&first)).unwrap().fields;
    assert!(fields.len() > 8, "{fields:?}");
    for (name, at, length) in fields {
        let rig = rig();
        let space = rig.module.status().space;
        let expected = rig.module.new_objects(DomainId::MAIN, 1).unwrap()[0].0 + 1;
        rig.module.lab().strike(&target_of(&rig), at, &vec![0xa5; length]).expect("it is there");
        assert_eq!(rig.module.status().space, space, "{name}");
        rig.wait_a_second();
        assert_eq!(rig.module.new_objects(DomainId::MAIN, 1).unwrap(), [ObjectId(expected)], "{name}");
        goes_on(&rig, &name, || rig.try_make(77));
        assert_eq!(rig.module.status().counters.scribbles, 1, "{name}");
        rig.stored();
    }
}

#[test]
fn numbers_that_do_not_fit_their_place_are_seen() {
    for field in ["root.address[0], upper part", "root.birth_log, upper part"] {
        let rig = rig();
        let lab = rig.module.lab();
        let target = target(&rig, MetaKind::Record, State::InUse);
        let layout = lab.layout(&target).unwrap();
        let (_, at, _) = layout.fields.iter().find(|(name, ..)| name == field).expect("a field of records");
        lab.strike(&target, *at, &[0x40]).expect("it is there");
        assert!(matches!(rig.commit(), Err(Error::GivenUp(_))), "{field}");
        rig.stored();
    }
}

#[test]
fn a_record_of_the_stores_own_is_put_right_before_anything_is_found_through_it() {
    for (state, field) in [(State::InUse, "root.address[0]"), (State::InUse, "levels"), (State::Clean, "root.primary")]
    {
        let rig = rig();
        rig.commit().unwrap();
        let lab = rig.module.lab();
        let object = holdfast_object::ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
        let id = rig.module.snapshots(DomainId::MAIN).unwrap()[0].id;
        let ask =
            |id| rig.module.attributes(holdfast_object::ObjectKey { object: object.object.in_snapshot(id), ..object });
        let before = [ask(holdfast_object::SnapshotId::LIVE).unwrap(), ask(id).unwrap()];
        for target in lab.targets(MetaKind::Record).iter().filter(|target| target.state == state) {
            let layout = lab.layout(target).unwrap();
            let (_, at, _) = layout.fields.iter().find(|(name, ..)| name == field).expect("a field of records");
            lab.strike(target, *at, &[2]);
        }
        rig.wait_a_second();
        assert_eq!([ask(holdfast_object::SnapshotId::LIVE).unwrap(), ask(id).unwrap()], before, "{field}");
        assert!(rig.module.status().counters.scribbles > 0, "{field}");
        rig.make(9);
        rig.commit().unwrap();
        rig.stored();
    }
}

#[test]
fn each_logic_bug_is_found_by_an_equation() {
    // That of the log is found when something is appended: `a_log_whose_end_is_wrong_is_not_used`.
    for bug in LogicBug::ALL.into_iter().filter(|bug| *bug != LogicBug::LogHead) {
        let rig = rig();
        let before = rig.stored();
        let told = rig.module.lab().logic_bug(bug, 7).unwrap().unwrap_or_else(|| panic!("{bug} is not done"));
        let error = rig.commit().expect_err(&told).to_string();
        assert!(error.contains("a logic bug"), "{bug}, {told}: {error}");
        let equation = match bug {
            LogicBug::PlaceholderLeft => "pending",
            LogicBug::AddressInLabel => "range",
            LogicBug::SnapshotBackdated => "snapshots",
            LogicBug::FutureBirth => "births",
            LogicBug::SwappedBirths => "birth order",
            LogicBug::SwappedLevel => "levels",
            _ => "",
        };
        assert!(error.contains(&format!("\"{equation}")), "{bug}, {told}: {error}");
        let counters = rig.module.status().counters;
        assert_eq!((counters.audit_failures, counters.scribbles), (1, 0), "{bug}, {told}");
        assert_eq!(rig.stored(), before, "{bug}, {told}");
        rig.module.begin_anew().unwrap();
        rig.fill(2, 1);
        rig.commit().unwrap();
    }
}

const TWO: holdfast_object::ObjectKey = holdfast_object::ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };

/// A page of object 2 is what it should be, and its attributes are to be had.
fn is_right(rig: &Rig, index: u64, what: &str) {
    let mut frames = [rig.arena.allocate().expect("a frame")];
    rig.module.read(TWO, index, &mut frames).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(frames[0][7], index as u8, "{what}");
    rig.module.attributes(TWO).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Whoever builds on what was struck begins the epoch anew, if not before, and goes on.
fn goes_on(rig: &Rig, what: &str, change: impl Fn() -> Result<(), Error>) {
    let recovery_point = || change().and_then(|()| rig.commit());
    if let Err(error) = recovery_point() {
        assert!(matches!(error, Error::GivenUp(_)), "{what}: {error}");
        rig.module.begin_anew().unwrap();
        recovery_point().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(rig.module.status().counters.scribbles > 0, "{what}");
}

/// What was looked at in this second is believed; not if what it says makes no sense. No time passes here.
#[test]
fn the_device_is_not_blamed_and_not_repaired_for_what_went_bad_in_memory_a_moment_ago() {
    let tree = |level| Choice {
        object: Some((1, 2)),
        level: Some(level),
        ..Choice::of(MetaKind::BlockTree, Pattern::Word, 3)
    };
    let own = |id| Choice { object: Some((0, id)), ..Choice::of(MetaKind::Record, Pattern::Word, 3) };
    let table = Choice { object: Some((0, 16)), ..Choice::of(MetaKind::ObjectTable, Pattern::Word, 3) };
    let of_two = Choice { slot: Some(2), ..table };
    for (choice, field) in [
        (tree(1), "address[0]"),
        (tree(1), "primary"),
        (tree(2), "address[0]"),
        (tree(2), "address[1]"),
        (of_two.clone(), "root.address[0]"),
        (of_two.clone(), "levels"),
        (of_two, "root.primary"),
        (own(16), "root.address[0]"),
        (own(16), "root.address[1]"),
        (own(16), "root.address[0] root.address[1]"),
        (own(16), "root.primary"),
        (own(0), "root.address[0]"),
    ] {
        let rig = Rig::new();
        rig.fill(2, 130);
        rig.commit().unwrap();
        let lab = rig.module.lab();
        let slot = choice.slot.or((choice.kind == MetaKind::BlockTree).then_some(0));
        // A repair would follow what is struck.
        let strike = |field: &str| {
            lab.strike_chosen(&Choice { slot, field: Some(field.into()), ..choice.clone() }).unwrap().to_string()
        };
        let what: Vec<String> = field.split(' ').map(strike).collect();
        let what = what.join("; ");
        for (key, address) in rig.module.base.cache.versions() {
            if choice.kind == MetaKind::Record
                || choice.object != Some((key.domain, key.object))
                || Some(key.level) < choice.level
            {
                rig.module.base.cache.take(key, address);
            }
        }
        is_right(&rig, 0, &what);
        is_right(&rig, 129, &what);
        let status = rig.module.status();
        assert_eq!((status.repaired, status.unrepaired), (0, 0), "{what}");
        goes_on(&rig, &what, || rig.write(2, 3));
        rig.stored();
    }
}

/// There is none to read again, and nobody waits until the epoch is begun anew.
#[test]
fn what_leads_through_a_changed_block_that_went_bad_is_answered_by_the_last_recovery_point() {
    for (level, fields) in [(1, "address[0]"), (2, "address[0] address[1]")] {
        let rig = Rig::new();
        rig.fill(2, 130);
        rig.commit().unwrap();
        let change = || rig.try_make(5).and_then(|()| rig.write(2, 3));
        change().unwrap();
        let choice = Choice {
            states: vec![State::Changed],
            object: Some((1, 2)),
            level: Some(level),
            slot: Some(1),
            ..Choice::of(MetaKind::BlockTree, Pattern::Word, 3)
        };
        let strike = |field: &str| {
            let choice = Choice { field: Some(field.into()), ..choice.clone() };
            rig.module.lab().strike_chosen(&choice).unwrap().to_string()
        };
        let what = fields.split(' ').map(strike).collect::<Vec<_>>().join("; ");
        rig.module.base.cache.clear();
        // As a scrub would, and many readers.
        for page in [1, 65, 129, 1] {
            is_right(&rig, page, &what);
        }
        let counters = rig.module.status().counters;
        assert_eq!((counters.restarts, rig.module.status().unrepaired), (1, 0), "{what}");
        // Who builds the epoch is told, and not half of it is stored.
        for refused in [rig.write(2, 4), rig.commit()] {
            assert!(matches!(refused, Err(Error::GivenUp(_))), "{what}: {refused:?}");
        }
        goes_on(&rig, &what, change);
        assert_eq!(rig.module.status().counters.restarts, 1, "{what}");
        is_right(&rig, 3, &what);
        assert_eq!(rig.stored().0, 2, "{what}");
    }
}

/// Its page is good, and another one. The block cannot be read again, and nobody waits until the recovery point for which it would be verified.
#[test]
fn a_pointer_that_is_copied_over_another_of_a_changed_block_answers_nobody_after_a_second() {
    const PAGES: u64 = 130;
    for slot in [1, 40] {
        let rig = Rig::new();
        rig.fill(2, PAGES);
        rig.commit().unwrap();
        let change = || rig.write(2, 3);
        change().unwrap();
        let choice = Choice {
            states: vec![State::Changed],
            object: Some((1, 2)),
            level: Some(1),
            slot: Some(slot),
            ..Choice::of(MetaKind::BlockTree, Pattern::CopySlot, 3)
        };
        let what = rig.module.lab().strike_chosen(&choice).unwrap().to_string();
        rig.wait_a_second();
        (0..PAGES).for_each(|page| is_right(&rig, page, &what));
        assert_eq!(rig.module.status().counters.restarts, 1, "{what}");
        goes_on(&rig, &what, change);
        (0..PAGES).for_each(|page| is_right(&rig, page, &what));
        assert_eq!(rig.stored().0, 1, "{what}");
    }
}

/// Who changes something in it, or below it, has found his way through it.
#[test]
fn a_changed_block_is_verified_after_a_second_before_it_is_changed_further() {
    for (level, page) in [(1, 4), (2, 70)] {
        let rig = Rig::new();
        rig.fill(2, 130);
        rig.commit().unwrap();
        rig.write(2, 3).unwrap();
        let (states, object) = (vec![State::Changed], Some((1, 2)));
        let choice = Choice::of(MetaKind::BlockTree, Pattern::CopySlot, 3);
        let choice = Choice { states, object, level: Some(level), slot: Some(2), ..choice };
        let what = rig.module.lab().strike_chosen(&choice).unwrap().to_string();
        rig.write(2, 3).unwrap();
        assert_eq!(rig.module.status().counters.scribbles, 0, "{what}, within the second");
        rig.wait_a_second();
        assert!(matches!(rig.write(2, page), Err(Error::GivenUp(_))), "{what}");
        assert_eq!(rig.module.status().counters.scribbles, 1, "{what}");
        goes_on(&rig, &what, || rig.write(2, page));
        rig.stored();
    }
}

#[test]
fn a_scrub_does_not_blame_the_device_for_what_went_bad_in_memory_a_moment_ago() {
    let tree = Choice {
        object: Some((1, 2)),
        level: Some(2),
        slot: Some(1),
        ..Choice::of(MetaKind::BlockTree, Pattern::Word, 3)
    };
    let own = Choice { object: Some((0, 16)), ..Choice::of(MetaKind::Record, Pattern::Word, 3) };
    for (choice, fields) in [(tree, ["address[0]", "address[1]"]), (own, ["root.address[0]", "root.address[1]"])] {
        let rig = Rig::new();
        rig.fill(2, 130);
        rig.commit().unwrap();
        let (mut cursor, mut what, mut blocks) = (ScrubCursor::Start, None, 0);
        while cursor != ScrubCursor::End {
            let is_at_two = cursor == ScrubCursor::At { object: TWO, page: 64 };
            if is_at_two && what.is_none() {
                let strike = |field: &str| {
                    let choice = Choice { field: Some(field.into()), ..choice.clone() };
                    rig.module.lab().strike_chosen(&choice).unwrap().to_string()
                };
                what = Some(fields.map(strike).join("; "));
                let is_above = |key: &NodeKey| (key.domain, key.object, key.level) == (1, 2, 2);
                for (key, address) in rig.module.base.cache.versions() {
                    if choice.kind == MetaKind::Record || !is_above(&key) {
                        rig.module.base.cache.take(key, address);
                    }
                }
            }
            let step = rig.module.scrub_step(&cursor, 1).unwrap_or_else(|error| panic!("{what:?}: {error}"));
            assert_eq!((step.findings.as_slice(), step.counts.unrepaired), (&[][..], 0), "{what:?}");
            blocks += step.counts.data;
            cursor = step.cursor;
        }
        assert!(what.is_some() && blocks == 130, "{what:?}: {blocks} blocks");
        assert!(rig.module.status().counters.scribbles > 0, "{what:?}");
    }
}

#[test]
fn an_epoch_that_was_led_astray_a_moment_ago_is_begun_anew() {
    for (slot, field) in [(5, "size"), (2, "levels"), (2, "kind"), (2, "root.address[0]")] {
        let rig = Rig::new();
        rig.fill(2, 130);
        rig.commit().unwrap();
        let choice = Choice::of(MetaKind::ObjectTable, Pattern::Word, 3);
        let choice = Choice { object: Some((0, 16)), slot: Some(slot), field: Some(field.into()), ..choice };
        let what = rig.module.lab().strike_chosen(&choice).unwrap().to_string();
        goes_on(&rig, &what, || rig.try_make(5).and_then(|()| rig.write(2, 3)));
        is_right(&rig, 129, &what);
        assert_eq!(rig.stored().0, 2, "{what}");
    }
}

#[test]
fn what_led_an_epoch_astray_is_named() {
    let rig = Rig::new();
    rig.fill(2, 130);
    rig.commit().unwrap();
    let (written, table) = (rig.module.epoch(), system_key(table_of(DomainId::MAIN)));
    let root = rig.module.trees.read().system[&table.object.0].root;
    rig.scribble_cached(NodeKey::new(table, root.level, 0), &root, 77);
    let met = Error::corrupt(rig.module.base.disk.place(5), "level", 1, 2);
    let error = rig.module.or_given_up::<()>(|| Err(met)).unwrap_err();
    assert!(matches!(error, Error::GivenUp(_)), "{error}");
    let error = error.to_string();
    let what = format!("block {}: what was gone by, has gone bad in memory", split_address(root.address[0]).1);
    assert!(error.contains(&what) && error.contains(&table.to_string()), "{error}");
    assert!(error.contains(&format!(", last changed legally for epoch {written}: ")), "{error}");
    assert!(error.contains("block 5: level: expected 1, got 2") && !error.contains("block 0"), "{error}");
}

/// Nothing that comes later would tell of these: behind a hole nothing is read, and attributes are kept by who asked for them. No time passes here.
#[test]
fn holes_and_attributes_are_believed_only_of_what_has_been_verified_just_now() {
    let tree = |level| (MetaKind::BlockTree, NodeKey { domain: 1, object: 2, level, index: 0 });
    let table = (MetaKind::ObjectTable, NodeKey { domain: 0, object: 16, level: 0, index: 0 });
    for ((kind, key), slot, field, length) in [
        (tree(1), 3, "address[0]", 64),
        (tree(1), 3, "shape", 1),
        (tree(2), 0, "address[0]", 64),
        (table, 2, "root.address[0]", 64),
        (table, 2, "levels", 1),
        (table, 2, "size", 8),
        (table, 2, "page_bound", 8),
    ] {
        for is_dirty in [false, true] {
            let rig = Rig::new();
            rig.fill(2, 130);
            rig.commit().unwrap();
            if is_dirty {
                rig.write(2, 5).unwrap();
            }
            let attributes = rig.module.attributes(TWO).unwrap();
            let lab = rig.module.lab();
            let targets = lab.targets(kind).into_iter().filter(|target| target.key() == key);
            // With a record in use, nothing is asked of its block.
            let state = if is_dirty && kind == MetaKind::BlockTree { State::Changed } else { State::Clean };
            let target = targets.into_iter().find(|target| target.state == state).expect("it is in memory");
            let layout = lab.layout(&target).expect("it is listed");
            let (_, first, _) = layout.fields.iter().find(|(name, ..)| name == field).expect("it has such a field");
            let at = slot * layout.slot_bytes + first;
            let struck = lab.write(&target, at, Write::Bytes(&vec![0; length]), false).expect("it was not zero");
            let what = format!("{struck}, {}", state.name());
            let again = || -> Result<(), Error> {
                let mut frames = [rig.arena.allocate().expect("a frame")];
                frames[0].fill(0xff);
                rig.module.read(TWO, 3, &mut frames)?;
                assert_eq!(frames[0][7], 3, "{what}");
                assert_eq!(rig.module.seek(TWO, 0, Seek::Hole)?, Some(130), "{what}");
                assert_eq!(rig.module.seek(TWO, 0, Seek::Data)?, Some(0), "{what}");
                assert_eq!(rig.module.attributes(TWO)?, attributes, "{what}");
                Ok(())
            };
            match again() {
                Ok(()) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
}

/// An object would have another number than it should, and a number would be nobody's. No time passes here.
#[test]
fn no_id_is_passed_over_for_a_map_that_has_just_gone_bad() {
    let rig = Rig::new();
    let map = system_key(crate::objects::map_of(DomainId::MAIN));
    let targets = rig.module.lab().targets(MetaKind::Map);
    let target = targets.iter().find(|target| target.key().object_key() == map).expect("it was just written");
    let struck = rig.module.lab().strike(target, 0, &[1 << 3]).expect("it is there");
    assert_eq!(rig.module.new_objects(DomainId::MAIN, 2).unwrap(), [ObjectId(3), ObjectId(4)], "{struck}");
    assert_eq!(rig.module.status().counters.scribbles, 1, "{struck}");
}

/// Nor is what two states of a domain have in common looked at again, or which snapshot was asked. No time passes here.
#[test]
fn what_has_changed_is_told_by_what_has_been_verified_just_now() {
    let tree = (MetaKind::BlockTree, NodeKey { domain: 1, object: 2, level: 1, index: 0 }, 7, "address[0]", 64);
    let table = (MetaKind::ObjectTable, NodeKey { domain: 0, object: 16, level: 0, index: 0 }, 3, "size", 8);
    for (kind, key, slot, field, length) in [tree, table] {
        let rig = Rig::new();
        rig.make(3);
        rig.fill(2, 70);
        rig.fill(3, 4);
        let id = snapshot(&rig, "before");
        rig.write(2, 5).unwrap();
        rig.commit().unwrap();
        let lab = rig.module.lab();
        let target = lab.targets(kind).into_iter().find(|target| target.key() == key && target.state == State::Clean);
        let target = target.expect("it is in memory");
        let layout = lab.layout(&target).expect("it is listed");
        let (_, first, _) = layout.fields.iter().find(|(name, ..)| name == field).expect("it has such a field");
        let at = slot * layout.slot_bytes + first;
        let struck = lab.write(&target, at, Write::Bytes(&vec![0; length]), false).expect("it was not zero");
        let states = (id, SnapshotId::LIVE);
        let changed = rig.module.changed_objects(DomainId::MAIN, states, ObjectId(0), 99).unwrap();
        assert_eq!(changed.iter().map(|change| change.object).collect::<Vec<_>>(), [ObjectId(2)], "{struck}");
        assert_eq!(rig.module.changed_pages(TWO, states, 0, 99).unwrap(), [5], "{struck}");
    }
    let rig = Rig::new();
    let ids = ["older", "newer"].map(|name| {
        rig.fill(2, 1 + u64::from(name == "newer"));
        snapshot(&rig, name)
    });
    let size = |id| rig.module.attributes(ObjectKey { object: TWO.object.in_snapshot(id), ..TWO }).unwrap().size;
    assert_eq!(ids.map(size), [4096, 8192]);
    let lab = rig.module.lab();
    let snapshots = lab.targets(MetaKind::Snapshot);
    let layout = lab.layout(&snapshots[0]).expect("it is listed");
    let (_, at, _) = *layout.fields.iter().find(|(name, ..)| name == "id").expect("a snapshot's number");
    let struck = lab.write(&snapshots[0], at, Write::Bytes(&[ids[1].0 as u8]), false).expect("it was another");
    assert_eq!(size(ids[1]), 8192, "{struck}");
    assert_eq!(size(ids[0]), 4096, "{struck}");
}

fn snapshot(rig: &Rig, name: &str) -> SnapshotId {
    rig.commit().unwrap();
    let made = Timestamp { secs: 1, nanos: 0 };
    rig.module.snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, name, made).unwrap()
}

/// What it has changed may have gone by that.
#[test]
fn an_epoch_that_has_begun_is_begun_anew_if_a_record_of_the_stores_own_is_put_right() {
    for kind in [MetaKind::Record, MetaKind::Snapshot] {
        for has_begun in [true, false] {
            let rig = rig();
            if !has_begun {
                rig.commit().unwrap();
            }
            let lab = rig.module.lab();
            let target = target(&rig, kind, State::InUse);
            let layout = lab.layout(&target).unwrap();
            let (_, at, _) =
                layout.fields.iter().find(|(name, ..)| name.ends_with("epoch") || name == "levels").unwrap();
            let struck = lab.strike(&target, *at, &[2]).expect("it is there");
            rig.wait_a_second();
            rig.module.attributes(TWO).unwrap();
            assert_eq!(rig.module.status().counters.scribbles, 1, "{struck}");
            match rig.commit() {
                Ok(()) => assert!(!has_begun, "{struck}"),
                Err(error) => assert!(has_begun && matches!(error, Error::GivenUp(_)), "{struck}: {error}"),
            }
            goes_on(&rig, &struck.to_string(), || rig.write(2, 3));
            rig.stored();
        }
    }
}

/// While a recovery point is put together, blocks of records are changed that have those of other objects, too.
#[test]
fn a_record_is_not_believed_of_a_changed_block_that_went_bad() {
    let rig = Rig::new();
    rig.fill(2, 2);
    rig.commit().unwrap();
    let attributes = rig.module.attributes(TWO).unwrap();
    let table = crate::objects::system_key(16);
    let key = NodeKey::new(table, 0, 0);
    {
        let (base, mut trees) = (&rig.module.base, rig.module.trees.write());
        holdfast_guard::open(|| {
            trees.with_system(base, 16, |trees, record| trees.make_dirty(base, table, record, 0, 0)).unwrap();
        });
    }
    let lab = rig.module.lab();
    let targets = lab.targets(MetaKind::ObjectTable);
    let target = targets.iter().find(|target| target.key() == key && target.state == State::Changed).unwrap();
    let layout = lab.layout(target).unwrap();
    let (_, first, _) = layout.fields.iter().find(|(name, ..)| name == "size").unwrap();
    let struck = lab.strike(target, 2 * layout.slot_bytes + first, &[1]).expect("it is there").to_string();
    assert_eq!(rig.module.attributes(TWO).unwrap(), attributes, "{struck}");
    goes_on(&rig, &struck, || rig.write(2, 3));
    rig.stored();
}

mod repairs;
mod unseen;
