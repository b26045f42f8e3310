//! What requests have proved is held against records: each sum finds what the cache itself does wrongly, and nothing else is taken for that.

mod pages;

use super::*;
use crate::Options;
use crate::lab_attributes::{FrozenPart, PendingPart};
use crate::sealed_attributes::SealedAttributes;
use holdfast_block::MemoryDevice;
use holdfast_logical::Logical;
use holdfast_object::*;
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

type Bug = Box<dyn FnMut(&mut FrozenEpoch)>;

thread_local! {
    static BUG: RefCell<Option<Bug>> = const { RefCell::new(None) };
}

/// Whoever begins to hand an epoch down comes by here with it.
pub(crate) fn do_wrongly(frozen: &mut FrozenEpoch) {
    BUG.with_borrow_mut(|bug| bug.iter_mut().for_each(|bug| bug(frozen)));
}

fn plant(bug: impl FnMut(&mut FrozenEpoch) + 'static) {
    BUG.set(Some(Box::new(bug)));
}

/// Of names, and of pages; behind them is how many transactions nobody has audited.
const ALL_WORDS: usize = WORDS + 3;

const DIRECTORY: ObjectId = ObjectId(2);
const FILE: ObjectId = ObjectId(3);
const OTHER: ObjectId = ObjectId(4);
const NAMELESS: ObjectId = ObjectId(5);

struct Rig {
    device: Arc<MemoryDevice>,
    cache: Cache,
}

impl Rig {
    fn open(device: Arc<MemoryDevice>) -> Rig {
        let clock = Arc::new(ManualClock::new(1_000_000_000, 1_000));
        let arena = Arena::new(256, 4 << 20).unwrap();
        let module = Module::open(device.clone(), arena.clone(), clock.clone(), &OpenOptions::default()).unwrap();
        let store = Arc::new(Logical::assemble(vec![Arc::new(module)]).unwrap());
        let cache = Cache::open(store, arena, clock, DomainId::MAIN, Options::for_frames(256)).unwrap().0;
        Rig { device, cache }
    }

    /// A directory with two files, one of which it has as an entry, and a file without a name.
    fn new(blocks: u64) -> Rig {
        let device = Arc::new(MemoryDevice::new(blocks));
        let clock = Arc::new(ManualClock::new(1_000_000_000, 1_000));
        Module::create(device.clone(), Arena::new(64, 4096).unwrap(), clock, &CreateOptions::new([1; 16], [2; 16]))
            .unwrap();
        let rig = Rig::open(device);
        let listed = |id, key| Attributes { parent: DIRECTORY, name_key: key, nlink: 1, ..rig.new_attributes(id) };
        let attributes = [
            (DIRECTORY, Attributes { nlink: 2, entries: 2, ..rig.new_attributes(Kind::Directory) }),
            (FILE, listed(Kind::Regular, 256)),
            (OTHER, listed(Kind::Symlink, 512)),
            (NAMELESS, rig.new_attributes(Kind::Regular)),
        ];
        rig.submit(attributes.map(|(id, attributes)| Op::Create { id, attributes }).to_vec());
        rig.cache.sync_all().unwrap();
        rig
    }

    fn new_attributes(&self, kind: Kind) -> Attributes {
        let class = if kind == Kind::Regular { Class::Own } else { Class::Names };
        Attributes::new(kind, class, 0o644, 1, 2, Timestamp { secs: 5, nanos: 6 })
    }

    /// As the audit of names does, from what the operations say.
    fn proved(&self, ops: &[Op]) -> Proved {
        let mut now = BTreeMap::new();
        let mut before = Proved::NOTHING;
        for op in ops {
            let id = op.target();
            let attributes = now.entry(id).or_insert_with(|| {
                let attributes = self.cache.attributes(id).ok();
                before += attributes.as_ref().map_or(Proved::NOTHING, |attributes| Proved::by(id, attributes));
                attributes
            });
            match op {
                Op::Create { attributes: new, .. } => *attributes = Some(new.clone()),
                Op::Delete { .. } => *attributes = None,
                Op::SetAttributes { set, .. } => attributes.iter_mut().for_each(|attributes| set.apply(attributes)),
                _ => {}
            }
        }
        let now = now.iter().filter_map(|(id, attributes)| Some(Proved::by(*id, attributes.as_ref()?)));
        now.fold(Proved::NOTHING, |sum, of_one| sum + of_one) - before
    }

    fn submit_proved(&self, ops: Vec<Op>, proved: Option<Proved>) {
        let purpose = Purpose::Release;
        self.cache.submit(Transaction { ops, purpose, proved, ..Transaction::default() }).unwrap();
    }

    fn submit(&self, ops: Vec<Op>) {
        let proved = self.proved(&ops);
        self.submit_proved(ops, Some(proved));
    }

    fn set(&self, id: ObjectId, set: AttrSet) {
        self.submit(vec![Op::SetAttributes { id, set }]);
    }

    /// Failed audits, scribbles and epochs begun anew in the store, what went bad here, and epochs that were not judged.
    fn counts(&self) -> [u64; 5] {
        let (counters, status) = (self.cache.store_status().counters, self.cache.status());
        let of_store = [counters.audit_failures, counters.scribbles, counters.restarts];
        [of_store[0], of_store[1], of_store[2], status.operations_renewed, status.epochs_unproved]
    }

    fn attributes(&self) -> Vec<Option<Attributes>> {
        (2..16).map(|id| self.cache.attributes(ObjectId(id)).ok()).collect()
    }

    fn remount(self) -> Rig {
        self.cache.close().unwrap();
        self.power_cut()
    }

    fn power_cut(self) -> Rig {
        let device = self.device.clone();
        drop(self);
        Rig::open(device)
    }
}

/// What changes one sum, and of which object.
fn changes() -> [(&'static str, ObjectId, AttrSet); 4] {
    let none = AttrSet::default;
    let others = vec![NamePlace { directory: DIRECTORY, key: 768 }];
    [
        ("links", FILE, AttrSet { nlink: Some(3), ..none() }),
        ("entries", DIRECTORY, AttrSet { entries: Some(5), ..none() }),
        ("nameless", NAMELESS, AttrSet { nlink: Some(1), ..none() }),
        ("names", OTHER, AttrSet { parent: Some(DIRECTORY), name_key: Some(512), other_names: Some(others), ..none() }),
    ]
}

fn position(frozen: &FrozenEpoch, id: ObjectId) -> usize {
    frozen.objects.iter().position(|object| object.id == id).expect("it has changed")
}

/// It is right when the epoch is begun anew, and everything goes on.
fn is_found(rig: Rig, what: &str) {
    let expected = rig.attributes();
    rig.cache.sync_all().unwrap();
    BUG.take();
    assert_eq!(rig.counts(), [1, 0, 1, 0, 0], "{what}");
    assert_eq!(rig.attributes(), expected, "{what}");
    rig.set(FILE, AttrSet { nlink: Some(7), ..AttrSet::default() });
    rig.submit(vec![Op::Delete { id: NAMELESS }]);
    rig.cache.sync_all().unwrap();
    assert_eq!(rig.counts(), [1, 0, 1, 0, 0], "{what}, afterwards");
    rig.cache.check();
    let expected = rig.attributes();
    assert_eq!(rig.remount().attributes(), expected, "{what}, mounted again");
}

#[test]
fn an_object_that_is_left_out_of_the_epoch() {
    for (sum, id, set) in changes() {
        let rig = Rig::new(2048);
        rig.set(id, set);
        let mut left_out = None;
        plant(move |frozen| match left_out.take() {
            None => left_out = Some(frozen.objects.remove(position(frozen, id))),
            Some(object) => frozen.objects.push(object),
        });
        is_found(rig, sum);
    }
}

#[test]
fn attributes_of_the_epoch_before() {
    for (sum, id, set) in changes() {
        let rig = Rig::new(2048);
        let earlier = rig.cache.attributes(id).unwrap();
        rig.set(id, set);
        let mut newest = None;
        plant(move |frozen| {
            let at = position(frozen, id);
            let of_object = &mut frozen.objects[at].attributes;
            match newest.take() {
                None => newest = Some(std::mem::replace(of_object, SealedAttributes::new(earlier.clone()))),
                Some(newest) => *of_object = newest,
            }
        });
        is_found(rig, sum);
    }
}

/// What follows from it in memory is as wrong, so nothing of it becomes a recovery point.
#[test]
fn what_admission_has_set_wrongly() {
    for (sum, id, set) in changes() {
        let rig = Rig::new(2048);
        let (before, epoch) = (rig.attributes(), rig.cache.store_status().epoch);
        let ops = vec![Op::SetAttributes { id, set: set.clone() }];
        let proved = rig.proved(&ops);
        let wrong = AttrSet {
            nlink: set.nlink.map(|links| links + 1),
            entries: set.entries.map(|entries| entries + 1),
            name_key: set.name_key.map(|key| key + 1),
            ..set
        };
        // Only of one that has no link a sum of those without any is another one.
        let wrong = if sum == "nameless" { AttrSet { nlink: Some(0), ..wrong } } else { wrong };
        rig.submit_proved(vec![Op::SetAttributes { id, set: wrong }], Some(proved));
        let told = rig.cache.sync_all().unwrap_err().to_string();
        assert!(told.contains(&format!("\"{sum} proved\"")), "{told}");
        assert!(told.contains("it failed 3 times in a row"), "{told}");
        assert_eq!(rig.counts(), [3, 0, 2, 0, 0], "{sum}");
        assert_eq!(rig.cache.store_status().epoch, epoch);
        assert_eq!(rig.power_cut().attributes(), before, "{sum}");
    }
}

#[test]
fn deletions_that_are_left_out_and_objects_that_come_and_go() {
    let rig = Rig::new(2048);
    rig.submit(vec![Op::Delete { id: FILE }, Op::Delete { id: NAMELESS }]);
    rig.submit(vec![Op::Create { id: ObjectId(9), attributes: rig.new_attributes(Kind::Fifo) }]);
    rig.submit(vec![Op::Delete { id: ObjectId(9) }]);
    // Another one with the same number.
    rig.submit(vec![Op::Create { id: FILE, attributes: Attributes { nlink: 1, ..rig.new_attributes(Kind::Fifo) } }]);
    let mut ops: Option<frozen::FrozenOps> = None;
    plant(move |frozen| match ops.take() {
        None => {
            let left = frozen.ops.iter().filter(|op| !matches!(op, Op::Delete { id: NAMELESS })).cloned().collect();
            ops = Some(std::mem::replace(&mut frozen.ops, frozen::FrozenOps::new(left).unwrap()));
        }
        Some(all) => frozen.ops = all,
    });
    let expected = rig.attributes();
    rig.cache.sync_all().unwrap();
    BUG.take();
    assert_eq!((rig.counts(), rig.attributes()), ([1, 0, 1, 0, 0], expected.clone()));
    assert_eq!(rig.remount().attributes(), expected);
}

#[test]
fn the_report_names_equation_sums_and_object() {
    let rig = Rig::new(2048);
    rig.submit_proved(Vec::new(), Some(Proved::by(FILE, &rig.cache.attributes(FILE).unwrap())));
    rig.set(DIRECTORY, AttrSet { entries: Some(3), ..AttrSet::default() });
    let told = rig.cache.sync_all().unwrap_err().to_string();
    let link = SetDigest::of(link_number(FILE, Kind::Regular as u8));
    for part in [
        "\"links proved\", \"names proved\"".to_string(),
        format!("{link} links more than before, as requests have proved"),
        format!("0 by the records of the recovery point, which differ in {FILE} only"),
        "a logic bug".to_string(),
    ] {
        assert!(told.contains(&part), "no {part:?}: {told}");
    }
    let suspects = [ObjectKey { domain: DomainId::MAIN, object: FILE }];
    assert_eq!(rig.cache.store.suspects(), suspects);
}

/// Each of three copies of each word, of the open epoch and of the one that is written.
#[test]
fn a_scribble_upon_the_sums_is_told_as_one() {
    for (word, copy, bits) in (0..=ALL_WORDS).flat_map(|word| (0..4).map(move |copy| (word, copy, 1 << (4 * word)))) {
        let rig = Rig::new(2048);
        rig.set(FILE, AttrSet { nlink: Some(2), ..AttrSet::default() });
        match copy {
            3 => rig.cache.strike_frozen_part(FrozenPart::Proved(word), bits),
            copy => assert!(rig.cache.strike_pending(PendingPart::Proved(word, copy), bits)),
        }
        for (id, set) in changes().map(|(_, id, set)| (id, set)) {
            rig.set(id, set);
        }
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.counts(), [0, 0, 0, 1, 0], "word {word}, copy {copy}");
        rig.set(FILE, AttrSet { nlink: Some(2), ..AttrSet::default() });
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.counts(), [0, 0, 0, 1, 0], "word {word}, copy {copy}, the next epoch");
    }
}

/// Nobody can make them anew.
#[test]
fn sums_that_are_not_known_are_held_against_nothing() {
    for word in 0..=ALL_WORDS {
        let rig = Rig::new(2048);
        rig.set(FILE, AttrSet { nlink: Some(2), ..AttrSet::default() });
        rig.cache.strike_pending(PendingPart::Proved(word, 0), 6);
        rig.cache.strike_pending(PendingPart::Proved(word, 1), 9);
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.counts(), [0, 0, 0, 1, 1], "word {word}");
        rig.set(FILE, AttrSet { nlink: Some(3), ..AttrSet::default() });
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.counts(), [0, 0, 0, 1, 1], "word {word}, the next epoch");
    }
}

#[test]
fn what_nobody_has_audited_is_held_against_nothing() {
    let rig = Rig::new(2048);
    let set = |links| vec![Op::SetAttributes { id: FILE, set: AttrSet { nlink: Some(links), ..AttrSet::default() } }];
    rig.submit(set(2));
    rig.submit_proved(set(3), None);
    rig.cache.sync_all().unwrap();
    assert_eq!(rig.counts(), [0, 0, 0, 0, 1]);
    rig.submit(set(4));
    rig.cache.sync_all().unwrap();
    assert_eq!(rig.counts(), [0, 0, 0, 0, 1], "the next epoch is judged again");
}

#[test]
fn a_record_that_cannot_be_read_is_no_logic_bug() {
    let rig = Rig::new(2048);
    let id = ObjectId(40);
    rig.submit(vec![Op::Create { id, attributes: Attributes { nlink: 1, ..rig.new_attributes(Kind::Fifo) } }]);
    rig.cache.sync_all().unwrap();
    let rig = rig.power_cut();
    let mut frozen = rig.cache.state.write().freeze().unwrap();
    // Its record is in a block that nobody has read.
    frozen.ops = frozen::FrozenOps::new(vec![Op::Delete { id }]).unwrap();
    for used in holdfast_physical::check::block_uses(rig.device.clone()).unwrap() {
        rig.device.alter(used.block, |block| block[1000] ^= 1).unwrap();
    }
    let told = rig.cache.names_before(&frozen);
    assert!(matches!(told, Ok(None)), "{told:?}");
}

/// `HOLDFAST_RUNS=31 cargo test --release -p holdfast-cache --lib proved::tests::what_it_costs -- --nocapture`; without the variable it runs one round, to
/// see that it works.
#[test]
fn what_it_costs() {
    const OBJECTS: u64 = 4096;
    let rounds: u32 = std::env::var("HOLDFAST_RUNS").map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    let rig = Rig::new(1 << 16);
    let new = Attributes { nlink: 1, parent: DIRECTORY, name_key: 256, ..rig.new_attributes(Kind::Regular) };
    let make = |id| Op::Create { id, attributes: new.clone() };
    let change = |id, links| Op::SetAttributes { id, set: AttrSet { nlink: Some(links), ..AttrSet::default() } };
    let ids = |first: u64| (first..first + OBJECTS).map(ObjectId);
    let mut nanos: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    let mut took =
        |what, start: Instant| nanos.entry(what).or_default().push(start.elapsed().as_nanos() as u64 / OBJECTS);
    ids(100).map(make).for_each(|op| rig.submit(vec![op]));
    rig.cache.sync_all().unwrap();
    for round in 0..2 * rounds {
        let is_proved = round % 2 == 0;
        let changed: Vec<Op> = ids(100).map(|id| change(id, 2 + round)).collect();
        let of_others: [Vec<Op>; 2] =
            [ids(100_000).map(make).collect(), ids(100_000).map(|id| Op::Delete { id }).collect()];
        let [made, deleted] = of_others;
        for (what, ops) in [("changed", changed), ("made", made), ("deleted", deleted)] {
            for ops in ops.chunks(1) {
                let proved = is_proved.then(|| rig.proved(ops));
                rig.submit_proved(ops.to_vec(), proved);
            }
            let start = Instant::now();
            rig.cache.sync_all().unwrap();
            took((what, is_proved), start);
        }
        let (mut sums, proved) = (ProvedSums::default(), Proved::by(FILE, &new));
        let start = Instant::now();
        (0..OBJECTS).for_each(|_| sums.add(std::hint::black_box(Some(proved))));
        took(("a transaction's sums", true), start);
        assert!(std::hint::black_box(sums).is_audited());
        pages::what_it_costs(OBJECTS, &mut took);
    }
    for ((what, is_proved), mut nanos) in nanos {
        nanos.sort_unstable();
        let (median, least) = (nanos[nanos.len() / 2], nanos[0]);
        println!("{what:24} proved: {is_proved:5} {median:7} ({least:6}) ns an object");
    }
}
