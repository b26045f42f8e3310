//! What each update of a block counts, against what its bytes have.

use super::*;
use crate::format::snapshot::SNAPSHOT_BYTES;
use crate::format::{SNAPSHOTS, SystemKind};
use crate::objects::{snapshots_of, system_kind};
use changes::ENTRY_STEP;
use holdfast_integrity::crc64;

/// Epoch of the newest snapshot while random updates are made.
const SNAPSHOT: Epoch = 3;

fn is_kept(pointer: &BlockPointer) -> bool {
    pointer.address[1] != 0 && pointer.birth_log <= SNAPSHOT
}

/// The sums of a new block in which the bytes of this one were put, made of what its decoders say.
fn sums_of(block: &MetaBlock, key: NodeKey) -> Sums {
    let mut sums = Sums { pointers: Pointers::under(SNAPSHOT), ..Sums::default() };
    let (domain, kind) = ((key.object / 16) as u16, (key.level == 0).then(|| system_kind(key.object).unwrap()));
    let number = |slot: usize, per_block: u64| key.index * per_block + slot as u64;
    let id = |slot: usize, per_block: u64| Digest::of(number(slot, per_block)).moved(u64::from(domain) << 48);
    let count = |sums: &mut Sums, pointer: &BlockPointer, is_of_main: bool, is_of_object: bool| {
        let (doubled, kept) = (u64::from(pointer.address[1] != 0), u64::from(is_kept(pointer)));
        let pages = u64::from(pointer.kind == PointerKind::Data);
        pointer.addresses().for_each(|address| sums.pointers.addresses += Digest::of(address));
        add(&mut sums.pointers.doubled, doubled);
        add(&mut sums.pointers.kept, kept);
        add(&mut sums.pointers.pages, pages);
        add(&mut sums.pointers.pending, u64::from(*pointer == BlockPointer::PENDING));
        if is_of_main {
            add(&mut sums.doubled, doubled);
            add(&mut sums.kept, kept);
        }
        if is_of_object {
            add(&mut sums.pages, pages);
        }
    };
    let bits = || (0..BITS as usize).filter(|bit| block.bit(*bit));
    match kind {
        None => (0..POINTERS as usize).for_each(|slot| count(&mut sums, &block.pointer(slot), true, true)),
        Some(SystemKind::ObjectTable) => {
            for slot in 0..RECORDS as usize {
                let Some(record) = Record::decode(block.record(slot), 9, 10_000, false).unwrap() else { continue };
                if key.object == 0 {
                    count(&mut sums, &record.root, number(slot, RECORDS) == table_of(DomainId::MAIN), false);
                    continue;
                }
                let is_of_main = domain == DomainId::MAIN.0;
                count(&mut sums, &record.root, is_of_main, true);
                add(&mut sums.pages_told, record.attributes.blocks);
                add(&mut sums.objects, is_of_main.into());
                sums.records += id(slot, RECORDS);
                if record.attributes.nlink == 0 {
                    sums.nameless += id(slot, RECORDS);
                }
            }
        }
        Some(SystemKind::Bitmap) => bits().for_each(|bit| sums.bits += Digest::of(number(bit, BITS))),
        Some(SystemKind::ObjectMap) => bits().for_each(|bit| sums.mapped += id(bit, BITS)),
        Some(SystemKind::OrphanMap) => bits().for_each(|bit| sums.orphans += id(bit, BITS)),
        Some(SystemKind::References) => {
            for slot in 0..COUNTERS as usize {
                sums.counters += Digest::of(number(slot, COUNTERS)).times(block.counter(slot).into());
            }
        }
        Some(SystemKind::DeadLists) => {
            for slot in 0..4096 / DEAD_BYTES {
                let run = DeadRun::decode(block.dead_run(slot), 9, 10_000).unwrap();
                let blocks = run.into_iter().flat_map(DeadRun::blocks).flatten().filter(|&block| block != 0);
                blocks.for_each(|block| sums.dead += Digest::of(block));
                run.iter().for_each(|run| sums.dead_births += births_of(run));
            }
        }
        Some(SystemKind::SnapshotList) => {
            for slot in (0..SNAPSHOTS as usize).filter(|slot| *block.snapshot(*slot) != [0; SNAPSHOT_BYTES]) {
                let place = u64::from(domain) << 32 | number(slot, SNAPSHOTS);
                let step = ENTRY_STEP.wrapping_mul(place);
                sums.listed += Digest::of(crc64(block.snapshot(slot)).wrapping_add(step));
            }
        }
    }
    sums
}

/// What of the sums does not depend on the order of updates.
fn without_order(sums: &Sums) -> Sums {
    let mut sums = Sums { wrong_levels: 0, newest_generation: 0, ..sums.clone() };
    let Pointers { newest, lowest, highest, levels, misborn, wrong_kinds, .. } = &mut sums.pointers;
    (*newest, *lowest, *highest, *levels, *misborn, *wrong_kinds) = (0, u64::MAX, 0, 0, 0, 0);
    sums
}

/// What an auditor finds who has both states of a block.
fn compared(key: NodeKey, before: &[u8; 4096], after: &[u8; 4096]) -> Sums {
    let mut audit = Audit::under(SNAPSHOT);
    audit.compare(key, before, after);
    without_order(audit.sums.get())
}

fn random_record(rng: &mut impl Rng) -> [u8; RECORD_BYTES] {
    if rng.random_bool(0.3) {
        return [0; RECORD_BYTES];
    }
    let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
    let mut record = Record::object(Attributes { nlink: rng.random_range(0..2), ..attributes }, 1);
    record.attributes.blocks = rng.random_range(0..9);
    if rng.random() {
        record.root = random_pointer(rng);
    }
    record.encode()
}

fn random_pointer(rng: &mut impl Rng) -> BlockPointer {
    let second = if rng.random() { rng.random_range(5000..9000) } else { 0 };
    let birth_log = rng.random_range(SNAPSHOT - 1..SNAPSHOT + 3);
    BlockPointer { address: [rng.random_range(100..5000), second], birth_log, ..data(0) }
}

/// A random update of a block of this kind.
fn update(mut block: Edit<'_>, key: NodeKey, rng: &mut impl Rng) {
    match (key.level == 0).then(|| system_kind(key.object).unwrap()) {
        None => {
            let some =
                [BlockPointer::HOLE, BlockPointer::PENDING, BlockPointer::lost(3, Side::Memory), random_pointer(rng)];
            block.put_pointer(rng.random_range(0..64), &some[rng.random_range(0..4)]);
        }
        Some(SystemKind::ObjectTable) => block.put_record(rng.random_range(0..8), &random_record(rng)),
        Some(SystemKind::Bitmap | SystemKind::ObjectMap | SystemKind::OrphanMap) if rng.random() => {
            block.set_bit(rng.random_range(0..BITS as usize), rng.random());
        }
        Some(SystemKind::Bitmap | SystemKind::ObjectMap | SystemKind::OrphanMap) => {
            let masks = [0, u64::MAX, rng.random(), rng.random()];
            let words: Vec<u64> = (0..CHUNK_WORDS).map(|_| masks[rng.random_range(0..4)]).collect();
            block.put_words(&words);
        }
        Some(SystemKind::References) => {
            block.put_counter(rng.random_range(0..1024), [0, 1, u32::MAX, 7][rng.random_range(0..4)]);
        }
        Some(SystemKind::SnapshotList) => {
            let entry = if rng.random() { [rng.random(); SNAPSHOT_BYTES] } else { [0; SNAPSHOT_BYTES] };
            block.put_snapshot(rng.random_range(0..SNAPSHOTS as usize), &entry);
        }
        Some(SystemKind::DeadLists) if rng.random_bool(0.7) => {
            let address = random_pointer(rng).address;
            let run = DeadRun { address, birth_log: 3, count: rng.random_range(1..90), is_page: rng.random() };
            block.put_dead_run(rng.random_range(0..128), &run);
        }
        Some(SystemKind::DeadLists) => block.clear_dead_run(rng.random_range(0..128)),
    }
}

/// Takes the counting out of any update, or anything of where its block is, and this fails.
#[test]
fn what_updates_count_is_what_the_bytes_have() {
    let (main, other) = (DomainId::MAIN, DomainId(2));
    let of_system = |(object, index)| NodeKey { domain: 0, object, level: 0, index };
    // The record of the table of `main` is in block 2 of table 0.
    let system = [
        (0, table_of(main) / RECORDS),
        (table_of(main), 0),
        (table_of(other), 3),
        (BITMAP, 3),
        (REFERENCES, 3),
        (dead_of(main), 3),
        (map_of(main), 0),
        (map_of(other), 3),
        (orphans_of(main), 0),
        (orphans_of(other), 3),
        (snapshots_of(main), 0),
        (snapshots_of(other), 3),
    ];
    for seed in 0..50 {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        for key in system.map(of_system).into_iter().chain([LEAF]) {
            let mut block = OwnedBlock::new(key, MetadataProtection::Audited);
            let (mut audit, mut later) = (Audit::under(SNAPSHOT), Audit::under(SNAPSHOT));
            (0..50).for_each(|_| update(block.edit_if(key, &mut audit).unwrap(), key, &mut rng));
            let bytes = *block.bytes();
            let expected = sums_of(&block, key);
            assert!(without_order(audit.sums.get()) == expected, "seed {seed}, {key:?}: from nothing");
            assert!(compared(key, &[0; 4096], &bytes) == expected, "seed {seed}, {key:?}: compared, from nothing");
            let mut copy = OwnedBlock::from(MetaBlock::clone(&block), MetadataProtection::Audited);
            (0..50).for_each(|_| update(copy.edit_if(key, &mut later).unwrap(), key, &mut rng));
            let counted = without_order(later.sums.get());
            assert!(compared(key, &bytes, copy.bytes()) == counted, "seed {seed}, {key:?}: compared");
            // On from there, in the sums of the first.
            audit.compare(key, &bytes, copy.bytes());
            assert!(without_order(audit.sums.get()) == sums_of(&copy, key), "seed {seed}, {key:?}: together");
        }
    }
}

/// Whatever it takes the place of. (What comes and goes is the other tests'.)
#[test]
fn what_is_put_is_judged_by_itself() {
    let page = |address, birth_phys, birth_log| BlockPointer { address, birth_phys, birth_log, ..data(0) };
    let all = [
        BlockPointer::HOLE,
        BlockPointer::PENDING,
        BlockPointer::lost(3, Side::Memory),
        page([700, 0], 2, 5),
        page([300, 0], 5, 5),
        page([900, 0], 6, 5),
        page([100, 0], 0, 4),
        page([800, 50], 1, 1),
        BlockPointer { level: 1, ..page([400, 0], 2, 2) },
        BlockPointer { kind: PointerKind::Tree, ..page([500, 0], 2, 2) },
        BlockPointer { kind: PointerKind::Tree, level: 1, ..page([600, 10], 2, 2) },
    ];
    for level in [1, 2] {
        for (old, new) in all.iter().flat_map(|old| all.iter().map(move |new| (old, new))) {
            let mut sums = Twin::new(Sums::default());
            Counting::into(&mut sums, NodeKey { level, ..LEAF }).pointer(&old.encode(), &new.encode());
            let counted = sums.get();
            let is_put = new.kind != PointerKind::Hole && *new != BlockPointer::PENDING;
            let of_put = |number: u64| if is_put { number } else { 0 };
            let is_misborn = new.birth_phys == 0 || new.birth_phys > new.birth_log;
            let is_wrong_kind = (new.kind == PointerKind::Tree) != (new.level > 0);
            let expected = Pointers {
                newest: of_put(new.birth_log),
                lowest: new.addresses().min().unwrap_or(u64::MAX),
                highest: new.addresses().max().unwrap_or(0),
                levels: of_put(1 << new.level) as u16,
                misborn: of_put(is_misborn.into()),
                wrong_kinds: of_put(is_wrong_kind.into()),
                ..counted.pointers.clone()
            };
            assert_eq!(counted.pointers, expected, "{old:?}, then {new:?}");
            assert_eq!(counted.wrong_levels, of_put((new.level != level - 1).into()), "level {level}: {new:?}");
        }
    }
}

/// Pointers of any sort, also in blocks without a hole, and those that nobody puts there.
#[test]
fn a_block_that_is_dropped_is_counted_as_its_slots_are() {
    for seed in 0..200 {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let (odd_ones, highest) = (rng.random_range(0..3), [1 << 20, 1 << 48][rng.random_range(0..2)]);
        let (newest_snapshot, has_seconds) = (rng.random_range(0..3), rng.random());
        let mut block = [0; 4096];
        for slot in block.as_chunks_mut::<POINTER_BYTES>().0 {
            let second = if has_seconds && rng.random() { rng.random_range(0..highest) } else { 0 };
            *slot = BlockPointer { address: [rng.random_range(1..highest), second], ..data(0) }.encode();
            // Kind, level, flag.
            slot[22] = if rng.random() { 1 } else { rng.random_range(0..0x80) };
        }
        for _ in 0..odd_ones {
            let slot = &mut block.as_chunks_mut::<POINTER_BYTES>().0[rng.random_range(0..POINTERS) as usize];
            match rng.random_range(0..4) {
                0 => slot.fill(0),
                1 => *slot = BlockPointer::PENDING.encode(),
                2 => *slot = BlockPointer::lost(3, Side::Memory).encode(),
                _ => slot[..6].fill(0),
            }
        }
        let mut by_slot = Pointers::under(newest_snapshot);
        let mut whole = by_slot.clone();
        whole.all_gone(&block);
        block.as_chunks().0.iter().for_each(|slot| by_slot.gone(&Glance::at(slot)));
        assert_eq!(whole, by_slot, "seed {seed}");
    }
}
