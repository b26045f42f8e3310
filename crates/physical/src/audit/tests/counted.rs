//! What each update of a block counts, against what its bytes have.

use super::*;

/// Epoch of the newest snapshot while random updates are made.
const SNAPSHOT: Epoch = 3;

fn is_kept(pointer: &BlockPointer) -> bool {
    pointer.address[1] != 0 && pointer.birth_log <= SNAPSHOT
}

/// Bytes of a block, of which the sums are those of a new block in which they were put.
fn sums_of(block: &MetaBlock, kind: usize) -> Changes {
    let mut sums = Changes::default();
    match kind {
        0 => {
            for slot in 0..POINTERS as usize {
                let pointer = block.pointer(slot);
                pointer.addresses().for_each(|address| sums.pointers.addresses += Digest::of(address));
                add(&mut sums.pointers.doubled, u64::from(pointer.address[1] != 0));
                add(&mut sums.pointers.kept, is_kept(&pointer).into());
                add(&mut sums.pointers.pages, u64::from(pointer.kind == PointerKind::Data));
                add(&mut sums.pointers.pending, u64::from(pointer == BlockPointer::PENDING));
            }
        }
        1 => {
            for slot in 0..RECORDS as usize {
                let Some(record) = Record::decode(block.record(slot), 9, 10_000, false).unwrap() else { continue };
                record.root.addresses().for_each(|address| sums.pointers.addresses += Digest::of(address));
                sums.doubled[slot] = i8::from(record.root.address[1] != 0);
                add(&mut sums.pointers.doubled, u64::from(record.root.address[1] != 0));
                sums.kept[slot] = is_kept(&record.root).into();
                add(&mut sums.pointers.kept, is_kept(&record.root).into());
                add(&mut sums.pointers.pages, u64::from(record.root.kind == PointerKind::Data));
                add(&mut sums.pages_told, record.attributes.blocks);
                sums.numbers += Digest::of(slot as u64);
                if record.attributes.nlink == 0 {
                    sums.nameless += Digest::of(slot as u64);
                }
            }
        }
        2 => {
            for bit in (0..BITS).filter(|bit| block.bit(*bit as usize)) {
                sums.numbers += Digest::of(bit);
            }
        }
        3 => {
            for slot in 0..COUNTERS {
                sums.numbers += Digest::of(slot).times(block.counter(slot as usize).into());
            }
        }
        _ => {
            for slot in 0..4096 / DEAD_BYTES {
                let run = DeadRun::decode(block.dead_run(slot), 9, 10_000).unwrap();
                let blocks = run.into_iter().flat_map(DeadRun::blocks).flatten().filter(|&block| block != 0);
                blocks.for_each(|block| sums.dead += Digest::of(block));
                run.iter().for_each(|run| sums.dead_births += births_of(run));
            }
        }
    }
    sums
}

/// What of the sums does not depend on the order of updates.
fn sums(changes: &Changes) -> impl PartialEq + std::fmt::Debug + use<> {
    let Pointers { addresses, doubled, kept, pages, pending, .. } = changes.pointers;
    let Changes { numbers, nameless, pages_told, dead, .. } = *changes;
    ((addresses, doubled, kept, pages, pending), (changes.doubled, changes.kept), (numbers, nameless, pages_told, dead))
}

fn counted(block: &mut OwnedBlock) -> Changes {
    let Watched::Counted(changes, _) = block.release() else { panic!("its updates count") };
    changes.expect("it was updated").into_one()
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

/// Takes the counting out of any update, and this fails.
#[test]
fn what_updates_count_is_what_the_bytes_have() {
    let [pointers, records, bits, counters, runs] =
        [(9, 1), (table_of(DomainId::MAIN), 0), (BITMAP, 0), (REFERENCES, 0), (dead_of(DomainId::MAIN), 0)]
            .map(|(object, level)| NodeKey { domain: 0, object, level, index: 0 });
    for seed in 0..100 {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        for (kind, key) in [pointers, records, bits, counters, runs].into_iter().enumerate() {
            let mut block = OwnedBlock::new(key, MetadataProtection::Audited);
            block.count_under(SNAPSHOT);
            let mut update = |mut block: Edit<'_>| match kind {
                0 => {
                    let some = [
                        BlockPointer::HOLE,
                        BlockPointer::PENDING,
                        BlockPointer::lost(3, Side::Memory),
                        random_pointer(&mut rng),
                    ];
                    block.put_pointer(rng.random_range(0..64), &some[rng.random_range(0..4)]);
                }
                1 => block.put_record(rng.random_range(0..8), &random_record(&mut rng)),
                2 if rng.random() => block.set_bit(rng.random_range(0..BITS as usize), rng.random()),
                2 => {
                    let masks = [0, u64::MAX, rng.random(), rng.random()];
                    let words: Vec<u64> = (0..CHUNK_WORDS).map(|_| masks[rng.random_range(0..4)]).collect();
                    block.put_words(&words);
                }
                3 => block.put_counter(rng.random_range(0..1024), [0, 1, u32::MAX, 7][rng.random_range(0..4)]),
                _ if rng.random_bool(0.7) => {
                    let address = random_pointer(&mut rng).address;
                    let run = DeadRun { address, birth_log: 3, count: rng.random_range(1..90), is_page: rng.random() };
                    block.put_dead_run(rng.random_range(0..128), &run);
                }
                _ => block.clear_dead_run(rng.random_range(0..128)),
            };
            (0..50).for_each(|_| update(block.edit(key)));
            let before = sums_of(&block, kind);
            let bytes = *block.bytes();
            let compared = Changes::between(key, &[0; 4096], &bytes, SNAPSHOT, &mut Lists::default());
            let changed = counted(&mut block);
            assert_eq!(sums(&changed), sums(&before), "seed {seed}, kind {kind}: from nothing");
            assert_eq!(sums(&compared), sums(&before), "seed {seed}, kind {kind}: compared, from nothing");
            let mut block = OwnedBlock::from(MetaBlock::clone(&block), MetadataProtection::Audited);
            block.count_under(SNAPSHOT);
            (0..50).for_each(|_| update(block.edit(key)));
            let (now, changed) = (sums_of(&block, kind), counted(&mut block));
            assert_eq!(
                sums(&Changes::between(key, &bytes, block.bytes(), SNAPSHOT, &mut Lists::default())),
                sums(&changed),
                "seed {seed}, kind {kind}"
            );
            let mut pointers = before.pointers.clone();
            pointers.add(&changed.pointers);
            let apart = Changes { pointers, ..before.clone() };
            let now_apart = Changes { pointers: now.pointers.clone(), ..before.clone() };
            assert_eq!(sums(&apart), sums(&now_apart), "seed {seed}, kind {kind}");
            assert_eq!(now.numbers, before.numbers + changed.numbers, "seed {seed}, kind {kind}");
            assert_eq!(now.nameless, before.nameless + changed.nameless, "seed {seed}, kind {kind}");
            assert_eq!(now.dead, before.dead + changed.dead, "seed {seed}, kind {kind}");
            assert_eq!(now.dead_births, before.dead_births + changed.dead_births, "seed {seed}, kind {kind}");
            assert_eq!(now.pages_told, before.pages_told.wrapping_add(changed.pages_told), "seed {seed}, kind {kind}");
            let doubled = std::array::from_fn(|slot| before.doubled[slot] + changed.doubled[slot]);
            assert_eq!(now.doubled, doubled, "seed {seed}, kind {kind}");
            let kept = std::array::from_fn(|slot| before.kept[slot] + changed.kept[slot]);
            assert_eq!(now.kept, kept, "seed {seed}, kind {kind}");
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
