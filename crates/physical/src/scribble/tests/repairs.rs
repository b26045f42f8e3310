//! Pointers that have gone bad in memory where no sum sees it: nothing is repaired through them.

use super::*;
use crate::check::{BitmapRemedy, CheckOptions, FindingKind, check};
use crate::format::BlockPointer;
use crate::named::{Answer, OnDevice};
use holdfast_block::Device;
use holdfast_object::{Attributes, Class, DomainId, Kind, Mending, PAGE_SIZE};
use std::io::IoSliceMut;

/// A directory, whose pages have two copies.
const NAMES: u64 = 5;
/// Beyond the first block of the object table.
const FAR: u64 = 20;

/// Files and a directory of several tree blocks, an object table of several pages.
fn store() -> Rig {
    let rig = Rig::new();
    rig.make(3);
    rig.make(FAR);
    rig.fill(2, 130);
    rig.fill(3, 4);
    let attributes = Attributes::new(Kind::Directory, Class::Names, 0o755, 0, 0, Timestamp { secs: 1, nanos: 0 });
    apply(&rig, Op::Create { id: ObjectId(NAMES), attributes: Attributes { nlink: 2, ..attributes } });
    (0..3).for_each(|index| rig.write(NAMES, index).unwrap());
    rig.commit().unwrap();
    rig
}

fn apply(rig: &Rig, op: Op) {
    let epoch = rig.module.epoch() + 1;
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops: vec![op] }).unwrap();
}

fn object(id: u64) -> ObjectKey {
    ObjectKey { domain: DomainId::MAIN, object: ObjectId(id) }
}

/// The pointer to a block of an object, by memory.
fn pointer(rig: &Rig, key: ObjectKey, level: u8, index: u64) -> BlockPointer {
    let trees = rig.module.trees.read();
    let record = match key.domain {
        DomainId::SYSTEM => crate::format::Record::clone(&trees.system[&key.object.0]),
        _ => trees.get(&rig.module.base, key).unwrap(),
    };
    if level == record.levels {
        return record.root;
    }
    let (parent, slot) = NodeKey::new(key, level, index).parent();
    trees.node(&rig.module.base, key, &record, parent.level, parent.index).unwrap().unwrap().pointer(slot)
}

fn bytes(rig: &Rig, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE];
    rig.device.read(block, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}

/// Reads a page of an object; each byte of it is the lowest of its index.
fn page(rig: &Rig, key: ObjectKey, index: u64) -> Result<(), Error> {
    let mut frames = [rig.arena.allocate().expect("a frame")];
    rig.module.read(key, index, &mut frames)?;
    assert_eq!(frames[0][7], index as u8);
    Ok(())
}

/// An address in memory: in which block, at which byte, and who reads what it leads to.
struct Aim {
    kind: MetaKind,
    of: ObjectKey,
    level: u8,
    at: usize,
    /// The pointer there.
    names: (ObjectKey, u8, u64),
    act: fn(&Rig) -> Result<(), Error>,
}

fn aims() -> Vec<Aim> {
    let table = system_key(table_of(DomainId::MAIN));
    let attributes: fn(&Rig) -> Result<(), Error> = |rig| rig.module.attributes(object(FAR)).map(drop);
    let leaf = || Aim {
        kind: MetaKind::BlockTree,
        of: object(2),
        level: 2,
        at: 64,
        names: (object(2), 1, 1),
        act: |rig| page(rig, object(2), 64),
    };
    let page_of_table = || Aim {
        kind: MetaKind::SystemTree,
        of: table,
        level: 1,
        at: 64 * (FAR / 8) as usize,
        names: (table, 0, FAR / 8),
        act: attributes,
    };
    vec![
        leaf(),
        // Who writes there goes by it, too.
        Aim { act: |rig| rig.write(2, 64), ..leaf() },
        // And who takes it away.
        Aim {
            act: |rig| {
                let (epoch, ops) = (rig.module.epoch() + 1, vec![Op::Delete { id: ObjectId(2) }]);
                rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops })?;
                rig.commit()
            },
            ..leaf()
        },
        Aim {
            kind: MetaKind::BlockTree,
            of: object(NAMES),
            level: 1,
            at: 128,
            names: (object(NAMES), 0, 2),
            act: |rig| page(rig, object(NAMES), 2),
        },
        Aim {
            kind: MetaKind::ObjectTable,
            of: table,
            level: 0,
            at: 2 * 512 + 384,
            names: (object(2), 2, 0),
            act: |rig| page(rig, object(2), 0),
        },
        page_of_table(),
        Aim { act: |rig| rig.write(FAR, 0).and_then(|()| rig.commit()), ..page_of_table() },
    ]
}

/// Makes the address be that of file 3's first page, the only copy of it, and forgets all else. Gives that block.
fn strike(rig: &Rig, aim: &Aim) -> u64 {
    let (key, level, index) = aim.names;
    let good = pointer(rig, key, level, index).address[0];
    let victim = pointer(rig, object(3), 0, 0).address[0];
    strike_with(rig, aim, &(good ^ victim).to_le_bytes()[..6]);
    victim
}

/// Inverts bits at the aim where no sum sees it, and forgets all else.
fn strike_with(rig: &Rig, aim: &Aim, bits: &[u8]) {
    let lab = rig.module.lab();
    let wanted = NodeKey::new(aim.of, aim.level, 0);
    let targets = lab.targets(aim.kind);
    let target = targets.iter().find(|target| target.key() == wanted).expect("it is in memory");
    lab.strike_unseen(target, aim.at, bits).expect("it is another");
    for (key, address) in rig.module.base.cache.versions() {
        if key != wanted {
            rig.module.base.cache.take(key, address);
        }
    }
}

#[test]
fn nothing_is_written_over_the_only_block_of_another_file() {
    for (number, aim) in aims().into_iter().enumerate() {
        let rig = store();
        let victim = strike(&rig, &aim);
        let before = bytes(&rig, victim);
        let outcome = (aim.act)(&rig);
        assert!(bytes(&rig, victim) == before, "{number}: the page of file 3 was written over");
        // Who changes something begins anew; who reads has what is good.
        if outcome.is_err() {
            assert!(matches!(outcome, Err(Error::GivenUp(_))), "{number}: {outcome:?}");
            rig.module.begin_anew().unwrap();
            (aim.act)(&rig).unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        let status = rig.module.status();
        assert_eq!((status.repaired, status.unrepaired), (0, 0), "{number}");
        assert!(status.counters.scribbles > 0, "{number}: it is not told");
        goes_on(&rig, &format!("{number}"), || rig.write(3, 1));
        page(&rig, object(3), 0).unwrap();
        rig.stored();
    }
}

/// Neither address leads to the block any more. It is not taken for one that the device has lost.
#[test]
fn no_tree_block_is_made_anew_that_the_device_has() {
    let rig = store();
    let aim = &aims()[1];
    let good = pointer(&rig, object(2), 1, 1).address;
    let bits = [0, 1].map(|copy| good[copy] ^ pointer(&rig, object(3), 0, copy as u64).address[0]);
    strike_with(&rig, aim, &bits.map(|bits| bits.to_le_bytes()).map(|bits| bits[..6].to_vec()).concat());
    let outcome = (aim.act)(&rig);
    assert!(matches!(outcome, Err(Error::GivenUp(_))), "{outcome:?}");
    assert!(rig.module.status().counters.scribbles > 0, "it is told");
    rig.module.begin_anew().unwrap();
    (aim.act)(&rig).unwrap();
    rig.commit().unwrap();
    page(&rig, object(2), 65).unwrap();
    rig.stored();
}

/// With the block, the slot, what it should be and what it is.
#[test]
fn it_is_told_where_the_pointer_is() {
    let rig = store();
    let aim = &aims()[0];
    let good = pointer(&rig, object(2), 1, 1);
    let parent = pointer(&rig, object(2), 2, 0).address[0];
    let victim = strike(&rig, aim);
    (aim.act)(&rig).unwrap();
    let told = rig.module.disk().given_up().expect("the epoch is begun anew");
    assert_eq!(told.place.object, Some(object(2)));
    assert_eq!((told.place.level, told.place.index, told.place.address), (Some(2), Some(0), Some(parent)));
    assert!(told.what.starts_with("pointer in slot 1 in memory, to which somebody has written"), "{told}");
    let named = |first: u64| format!("block {first} and {} of epoch {}", good.address[1], good.birth_phys);
    assert!(told.expected.starts_with(&named(good.address[0])) && told.got.starts_with(&named(victim)), "{told}");
}

#[test]
fn a_scrub_writes_nothing_there_and_goes_on() {
    for aim in aims() {
        let rig = store();
        let victim = strike(&rig, &aim);
        let before = rig.device.snapshot();
        let (mut cursor, mut data) = (ScrubCursor::Start, 0);
        while cursor != ScrubCursor::End {
            let step = rig.module.scrub_step(&cursor, 1000).unwrap();
            assert_eq!(step.findings, []);
            data += step.counts.data;
            cursor = step.cursor;
        }
        assert!(rig.device.snapshot() == before, "block {victim} or another was written over");
        assert_eq!(data, 134);
    }
}

/// A page from memory that is to take the place of a bad one.
#[test]
fn no_page_is_mended_over_another_files() {
    let rig = store();
    let aim = Aim {
        kind: MetaKind::BlockTree,
        of: object(2),
        level: 1,
        at: 3 * 64,
        names: (object(2), 0, 3),
        act: |rig| rig.module.mend(object(2), 3, rig.page(3).page()).map(|mended| assert_eq!(mended, Mending::Done)),
    };
    let victim = strike(&rig, &aim);
    let before = bytes(&rig, victim);
    (aim.act)(&rig).unwrap();
    assert!(bytes(&rig, victim) == before, "the page of file 3 was written over");
    goes_on(&rig, "a page mended", || rig.write(3, 1));
    rig.stored();
}

/// What is not on the device yet cannot be asked of it: a later look repairs it.
#[test]
fn a_pointer_of_the_next_recovery_point_repairs_nothing_before_there_is_one() {
    let rig = store();
    rig.write(2, 64).unwrap();
    let epoch = rig.module.epoch() + 1;
    rig.module.prepare(epoch).unwrap();
    let leaf = pointer(&rig, object(2), 1, 1);
    assert_eq!(leaf.birth_log, epoch);
    rig.device.alter(leaf.address[0], |bytes| bytes[9] ^= 1).unwrap();
    let look = || {
        rig.module.base.cache.clear();
        page(&rig, object(2), 64).unwrap();
        rig.module.status().repaired
    };
    assert_eq!(look(), 0);
    rig.module.publish(epoch).unwrap();
    assert_eq!(look(), 1);
    assert_eq!(rig.module.status().counters.scribbles, 0);
    rig.stored();
}

/// A reader may have found a page before it was replaced: no memory has gone bad.
#[test]
fn a_pointer_that_was_replaced_meanwhile_repairs_nothing_and_is_no_scribble() {
    let rig = store();
    let (node, old) = (NodeKey::new(object(NAMES), 0, 1), pointer(&rig, object(NAMES), 0, 1));
    rig.write(NAMES, 1).unwrap();
    rig.commit().unwrap();
    let (base, trees) = (&rig.module.base, rig.module.trees.read());
    let on_device = OnDevice::new(&base.disk);
    assert!(matches!(on_device.ask(node, &old), Answer::Another(_)));
    assert!(!trees.is_named(base, &on_device, node, &old).unwrap());
    assert!(base.disk.given_up().is_none());
}

/// The pointer of each block of everything, of each state, is what the device has; with a bit flipped, it is not.
#[test]
fn the_device_is_asked_of_what_snapshots_have() {
    let rig = store();
    for name in ["first", "second"] {
        snapshot(&rig, name);
        rig.commit().unwrap();
        rig.write(2, 64).unwrap();
        rig.write(NAMES, 1).unwrap();
        rig.commit().unwrap();
    }
    let (base, trees) = (&rig.module.base, rig.module.trees.read());
    let on_device = OnDevice::new(&base.disk);
    let views = trees.kept.of(DomainId::MAIN).iter().map(|held| &held.view);
    let mut asked = BTreeSet::new();
    for view in std::iter::once(&*trees).chain(views) {
        let own = view.system.iter().map(|(id, record)| (NodeKey::new(system_key(*id), record.levels, 0), record.root));
        let mut all: Vec<(NodeKey, BlockPointer)> = own.filter(|(_, root)| !root.is_hole()).collect();
        for id in [2, NAMES] {
            let record = view.get(base, object(id)).unwrap();
            all.push((NodeKey::new(object(id), record.levels, 0), record.root));
        }
        while let Some((node, pointer)) = all.pop() {
            assert_eq!(on_device.ask(node, &pointer), Answer::Same, "{node:?}, {pointer:?}");
            for address in [[pointer.address[0] ^ 2, pointer.address[1]], [pointer.address[0], pointer.address[1] ^ 2]]
            {
                let wrong = BlockPointer { address, ..pointer };
                assert_eq!(on_device.ask(node, &wrong), Answer::Another(Box::new(pointer)), "{node:?}");
            }
            asked.insert((node, pointer.address[0]));
            if node.level > 0 {
                let block = view.fetch(base, node, &pointer).unwrap();
                let children = (0..64).map(|slot| (slot as u64, block.pointer(slot)));
                let (level, first) = (node.level - 1, node.index * 64);
                let children = children.filter(|(_, pointer)| !pointer.is_hole());
                all.extend(children.map(|(slot, it)| (NodeKey { level, index: first + slot, ..node }, it)));
            }
        }
    }
    let states = asked.iter().filter(|(node, _)| *node == NodeKey::new(object(2), 2, 0)).count();
    assert_eq!(states, 3, "each state has its own");
}

/// There may be many blocks that only snapshots have.
#[test]
fn the_list_of_snapshots_is_read_once_for_all_that_is_asked() {
    let rig = store();
    snapshot(&rig, "first");
    rig.commit().unwrap();
    let kept = [0, 1].map(|index| (NodeKey::new(object(NAMES), 0, index), pointer(&rig, object(NAMES), 0, index)));
    (0..2).for_each(|index| rig.write(NAMES, index).unwrap());
    rig.commit().unwrap();
    let on_device = OnDevice::new(&rig.module.base.disk);
    let reads = kept.map(|(node, pointer)| {
        let before = rig.module.status().counters.device_reads;
        assert_eq!(on_device.ask(node, &pointer), Answer::Same);
        rig.module.status().counters.device_reads - before
    });
    assert!(reads[1] < reads[0], "{reads:?}");
}

/// A store in which an address of file 2, in its block of pointers of this level, has become that of file 3's first page, and has been stored; and that
/// block.
fn stored_astray(level: u8, slot: usize) -> (Rig, u64) {
    let rig = store();
    rig.write(2, 0).unwrap();
    let good = pointer(&rig, object(2), level - 1, slot as u64).address[0];
    let victim = pointer(&rig, object(3), 0, 0).address[0];
    let lab = rig.module.lab();
    let targets = lab.targets(MetaKind::BlockTree);
    let wanted = NodeKey::new(object(2), level, 0);
    let is_it = |target: &&Target| target.key() == wanted && target.state == State::Changed;
    let target = targets.iter().find(is_it).expect("it has changed");
    lab.strike_unseen(target, 64 * slot, &(good ^ victim).to_le_bytes()[..6]).expect("it is another");
    rig.commit().unwrap();
    rig.module.base.cache.clear();
    (rig, victim)
}

/// Of blocks of pointers and of pages.
#[test]
fn what_two_pointers_name_is_told_of_both_by_the_check_and_nothing_is_written_there() {
    for (level, kind) in [(2, FindingKind::BadCopy), (1, FindingKind::Unreadable)] {
        let (rig, victim) = stored_astray(level, 1);
        let sound = rig.device.snapshot();
        for repair in [false, true, true] {
            let report = check(rig.device.clone(), &CheckOptions { repair, ..CheckOptions::default() }).unwrap();
            assert!(rig.device.snapshot() == sound && report.repaired == 0, "{report:?}");
            let of =
                |kind| report.findings.iter().filter(move |it| it.kind == kind && it.place.address == Some(victim));
            assert_eq!(of(kind).count(), 1, "{report:?}");
            let told: Vec<_> = of(FindingKind::DoublyUsed).map(|it| (it.place.object, it.what.as_str())).collect();
            let [(one, one_what), (other, other_what)] = told[..] else { panic!("{report:?}") };
            assert_eq!((one, other), (Some(object(2)), Some(object(3))));
            assert!(one_what.contains("object 1:3") && other_what.contains("object 1:2"), "{told:?}");
            // And nothing else that has another way out.
            assert_eq!((report.findings.len(), report.bitmap), (3, BitmapRemedy::NotNeeded), "{report:?}");
        }
    }
}
