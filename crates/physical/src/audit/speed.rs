//! What the counting costs, on this machine: `HOLDFAST_RUNS=101 cargo test --release -p holdfast-physical --lib audit::speed -- --nocapture`.
//! (A test, as it measures what no other crate sees. Without the variable it runs one round, to see that all of it still works.)
//!
//! One thread. Each kind of update goes over 64 blocks in random order, whole (with checksum and tally) and its counting alone; the two take
//! turns. Given is the median of the rounds, and the least: on a busy machine that is nearer to what the work takes.

use super::*;
use crate::commit::tests::Rig;
use crate::format::blockptr::{POINTER_BYTES, PointerKind};
use crate::format::snapshot::DEAD_BYTES;
use crate::format::{BlockPointer, DeadRun, RECORD_BYTES, Record};
use crate::meta_block::{MetadataProtection, NodeKey, OwnedBlock};
use crate::objects::{BITMAP, REFERENCES, dead_of, system_key, table_of};
use crate::slots::{self, Limits, Parts};
use holdfast_integrity::{Checksum, StoredSums};
use holdfast_object::{Attributes, Class, DomainId, Kind, ObjectStore, Timestamp};
use std::hint::black_box;
use std::time::Instant;

const TURNS: usize = 20_000;
const KEY: NodeKey = NodeKey { domain: 1, object: 2, level: 1, index: 0 };

fn rounds() -> usize {
    std::env::var("HOLDFAST_RUNS").map_or(1, |rounds| rounds.parse().expect("a number of rounds"))
}

/// Median and least nanoseconds of one turn.
fn nanos(mut turn: impl FnMut(usize)) -> (f64, f64) {
    let mut rounds: Vec<f64> = (0..rounds())
        .map(|_| {
            let start = Instant::now();
            (0..TURNS).for_each(&mut turn);
            start.elapsed().as_nanos() as f64 / TURNS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[rounds.len() / 2], rounds[0])
}

/// Of turn `turn`: a block, and a place in it.
fn place(turn: usize) -> (usize, usize) {
    let random = (turn as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (random as usize % 64, random as usize >> 8)
}

fn pointer(turn: usize) -> BlockPointer {
    let sums = StoredSums::of(Checksum::crc64(turn as u64));
    let (address, kind) = ([1000 + turn as u64, 0], PointerKind::Data);
    BlockPointer { address, birth_phys: 3, birth_log: 3, kind, level: 0, seeded: false, sums }
}

fn tell(what: &str, whole: (f64, f64), alone: (f64, f64)) {
    let ((whole, whole_least), (alone, alone_least)) = (whole, alone);
    println!("{what:24} {whole:7.1} ({whole_least:6.1}) ns whole, {alone:7.1} ({alone_least:6.1}) ns its counting");
}

/// Changes of blocks, as often as somebody wants.
struct Changing {
    protection: MetadataProtection,
    /// What each block is before.
    full: OwnedBlock,
    /// Pointers put into each.
    changes: usize,
    audit: Audit,
}

impl Changing {
    fn new(protection: MetadataProtection, changes: usize) -> Changing {
        let mut full = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        (0..64).for_each(|slot| full.edit(KEY).put_pointer(slot, &pointer(slot)));
        Changing { protection, full, changes, audit: Audit::default() }
    }

    /// A block that is copied to be changed, pointers that are put there in random order, and its end in the audit; of 64 such blocks one look at what
    /// they add up to.
    fn turn(&mut self, turn: usize) {
        if turn.is_multiple_of(64) {
            black_box(self.audit.unmatched());
            self.audit = Audit::default();
        }
        let mut block = OwnedBlock::from((*self.full).clone(), self.protection);
        for change in turn * self.changes..(turn + 1) * self.changes {
            let new = pointer(change);
            let mut edit = block.edit_if(KEY, &mut self.audit).expect("it is the one");
            edit.put_pointer(place(change).1 % 64, black_box(&new));
        }
        let watched = block.release();
        self.audit.complete(KEY, &block, watched);
    }
}

/// The same changes without an audit, with one by counting, and with one by comparing with copies. They take turns, and of each the least time of a
/// change of a block counts: what else the machine does is in some rounds and not in others.
struct Race([(Changing, f64); 3]);

impl Race {
    fn new(changes: usize) -> Race {
        let all = [MetadataProtection::Rolling, MetadataProtection::Audited, MetadataProtection::Compared];
        Race(all.map(|protection| (Changing::new(protection, changes), f64::INFINITY)))
    }

    fn round(&mut self, turns: usize) {
        for (changing, least) in &mut self.0 {
            let start = Instant::now();
            (0..turns).for_each(|turn| changing.turn(turn));
            *least = least.min(start.elapsed().as_nanos() as f64 / turns as f64);
        }
    }

    /// Nanoseconds without an audit; what counting takes more, and comparing. What all share is not in these: the copy of a block, and its checksums.
    fn least(&self) -> [f64; 3] {
        let [rolling, counting, comparing] = self.0.each_ref().map(|(_, least)| *least);
        [rolling, counting - rolling, comparing - rolling]
    }
}

fn tell_counting_and_comparing() {
    for changes in [1, 4, 16, 64] {
        let mut race = Race::new(changes);
        (0..rounds()).for_each(|_| race.round(TURNS));
        let [rolling, counting, comparing] = race.least();
        let times = comparing / counting;
        println!(
            "{changes:2} pointers of a block     {rolling:7.1} ns, counting {counting:+7.1}, by copies {comparing:+7.1}: {times:4.1} times"
        );
    }
}

/// The goal of the measurements, where an epoch changes as much of a block as in the load of transactions: four pointers, of pages in the place of pages.
/// On an idle machine it is 40 times and more, and without a way of their own for these it was 5. On a busy one it takes longer until the least is the
/// least.
#[test]
#[cfg_attr(debug_assertions, ignore = "what it costs, only a release build says")]
fn counting_is_ten_times_cheaper_than_copies_where_few_pages_of_a_block_change() {
    let mut race = Race::new(4);
    for round in 1..=2000 {
        race.round(10 * 64);
        let [_, counting, comparing] = race.least();
        if round >= 50 && comparing >= 10.0 * counting.max(1.0) {
            return;
        }
    }
    let [rolling, counting, comparing] = race.least();
    panic!("{rolling:.1} ns, counting takes {counting:.1} more, and copies {comparing:.1}");
}

#[test]
fn every_kind_of_update_is_counted_at_a_cost() {
    let of_kind =
        |key| -> Vec<OwnedBlock> { (0..64).map(|_| OwnedBlock::new(key, MetadataProtection::Audited)).collect() };
    let of_system = |object| NodeKey::new(system_key(object), 0, 1);
    let mut audit = Audit::default();

    let mut blocks = of_kind(KEY);
    let encoded: Vec<[u8; POINTER_BYTES]> = (0..256).map(|turn| pointer(turn).encode()).collect();
    let whole = nanos(|turn| {
        let (block, slot) = (&mut blocks[place(turn).0], place(turn).1 % 64);
        block.edit_if(KEY, &mut audit).expect("it is the one").put_pointer(slot, &pointer(turn));
    });
    let alone = nanos(|turn| {
        let (old, new) = (&encoded[turn % 256], &encoded[turn * 7 % 256]);
        Counting::of(&mut audit, KEY).pointer(black_box(old), black_box(new));
    });
    tell("a block pointer", whole, alone);

    let key = of_system(BITMAP);
    let mut bitmap = of_kind(key);
    let whole = nanos(|turn| {
        let (block, bit) = (&mut bitmap[place(turn).0], place(turn).1 % BITS as usize);
        let old = block.bit(bit);
        block.edit_if(key, &mut audit).expect("it is the one").set_bit(bit, !old);
    });
    let alone = nanos(|turn| {
        Counting::of(&mut audit, key).word(place(turn).1 % 512, black_box(0), black_box(1 << (turn % 64)));
    });
    tell("a bit", whole, alone);

    let key = of_system(REFERENCES);
    let mut references = of_kind(key);
    let whole = nanos(|turn| {
        let (block, slot) = (&mut references[place(turn).0], place(turn).1 % 1024);
        block.edit_if(key, &mut audit).expect("it is the one").put_counter(slot, turn as u32);
    });
    let alone = nanos(|turn| Counting::of(&mut audit, key).counter(place(turn).1 % 1024, black_box(3), turn as u32));
    tell("a counter", whole, alone);

    let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
    let records = [3, 4].map(|epoch| Record::object(attributes.clone(), epoch).encode());
    let records: [[u8; RECORD_BYTES]; 2] = records;
    let table = of_system(table_of(DomainId::MAIN));
    let mut tables = of_kind(table);
    let whole = nanos(|turn| {
        let (block, slot) = (&mut tables[place(turn).0], place(turn).1 % 8);
        block.edit_if(table, &mut audit).expect("it is the one").put_record(slot, &records[turn % 2]);
    });
    let alone = nanos(|turn| {
        Counting::of(&mut audit, table).record(
            place(turn).1 % 8,
            black_box(&records[turn % 2]),
            black_box(&records[0]),
        );
    });
    tell("a record", whole, alone);

    let key = of_system(dead_of(DomainId::MAIN));
    let mut dead = of_kind(key);
    let run = |turn: usize| DeadRun { address: [turn as u64, 0], birth_log: 3, count: 7, is_page: true };
    let runs: [[u8; DEAD_BYTES]; 2] = [run(1), run(2)].map(|run| run.encode());
    let whole = nanos(|turn| {
        let (block, slot) = (&mut dead[place(turn).0], place(turn).1 % 128);
        block.edit_if(key, &mut audit).expect("it is the one").put_dead_run(slot, &run(turn));
    });
    let alone = nanos(|turn| Counting::of(&mut audit, key).dead_run(black_box(&runs[turn % 2]), black_box(&runs[0])));
    tell("a run of a dead list", whole, alone);

    let mut audit = Audit::default();
    // As the blocks of a file are, of which each has all of its pages.
    for (number, block) in blocks.iter_mut().enumerate() {
        *block = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        (0..64).for_each(|slot| block.edit(KEY).put_pointer(slot, &pointer(64 * number + slot)));
    }
    let (alone, least) = nanos(|turn| audit.all_gone(KEY.object_key(), black_box(&blocks[place(turn).0])));
    println!("{:24} {alone:7.1} ({least:6.1}) ns, with all 64 pointers", "a block dropped");
    let mut of_records = OwnedBlock::new(table, MetadataProtection::Rolling);
    (0..8).for_each(|slot| of_records.edit(table).put_record(slot, &records[0]));
    let limits = Limits { newest: 9, blocks: 1 << 30 };
    for (what, key, block, bytes) in
        [("a pointer judged", KEY, &blocks[0], POINTER_BYTES), ("a record judged", table, &of_records, RECORD_BYTES)]
    {
        let judge = |parts| slots::check(black_box(block.bytes()), key, parts, limits).expect("it can be");
        let (one, least) = nanos(|turn| {
            let mut changed = Parts::default();
            changed.add(place(turn).1 % (4096 / bytes) * bytes, bytes);
            judge(changed);
        });
        let (all, all_least) = nanos(|_| judge(Parts::ALL));
        println!("{what:24} {one:7.1} ({least:6.1}) ns, {all:7.1} ({all_least:6.1}) ns all of a block");
    }
    let rig = Rig::new();
    let (label, last) = (rig.module.label().unwrap(), rig.module.superblock().unwrap());
    let trees = rig.module.trees.read();
    let (alone, least) = nanos(|_| trees.audit_epoch(&rig.module.base, &label, &last, black_box(&last)).unwrap());
    println!("{:24} {alone:7.1} ({least:6.1}) ns", "all equations");
    assert_eq!(rig.module.status().counters.audit_failures, 0);
    tell_counting_and_comparing();
}
