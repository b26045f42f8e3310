//! Foreign bytes that a checksum does not betray: structures are changed and their checksums made to fit again, so that the decoders
//! behind the checksums meet them. Opening, checking and reading such a store may fail; nothing may panic, overflow or hang.
//! `HOLDFAST_FUZZ_SECONDS` says how long (1.5 s if not); `HOLDFAST_SEED` runs one mutation again.

use crate::rig::*;
use holdfast_block::MemoryDevice;
use holdfast_integrity::{crc64, identity_mix};
use holdfast_object::{DomainId, Kind, LogBatch, ObjectStore};
use holdfast_physical::check::{CheckOptions, check};
use holdfast_physical::{LABEL_BLOCKS, LABELS, label_start};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 512;

/// A small store with files, a deep object, a batch in the intent log.
fn store() -> Rig {
    let mut rig = Rig::new(BLOCKS);
    let mut ops: Vec<_> = (2..12).map(|id| create_op(id, Kind::Regular)).collect();
    ops.push(create_op(12, Kind::Directory));
    ops.push(rig.write_op(2, &[(0, pattern(1)), (1, pattern(2)), (70, pattern(3)), (100_000, pattern(4))]));
    ops.push(rig.write_op(12, &[(0, pattern(5))]));
    rig.apply(ops);
    rig.commit();
    let ops = vec![create_op(13, Kind::Regular), rig.write_op(3, &[(0, pattern(6))])];
    let batch = LogBatch { domain: DomainId::MAIN, epoch: rig.next_epoch(), ops };
    rig.module.log_append(&batch).unwrap();
    rig
}

fn u64_at(block: &Page, at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

fn put_u64(block: &mut Page, at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A few bytes, words or bits of `range` become others.
fn mutate(block: &mut Page, range: std::ops::Range<usize>, rng: &mut Pcg64Mcg) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(range.clone());
        let word = (at & !7).clamp(range.start, range.end - 8);
        match rng.random_range(0..6) {
            0 => block[at] ^= 1 << rng.random_range(0..8),
            1 => block[at] = rng.random(),
            2 => {
                let extremes =
                    [0, 1, BLOCKS - 1, BLOCKS, u64::from(u32::MAX), 1 << 47, 1 << 48, i64::MAX as u64, u64::MAX];
                put_u64(block, word, extremes[rng.random_range(0..extremes.len())]);
            }
            3 => {
                let near = u64_at(block, word).wrapping_add(rng.random_range(0..3)).wrapping_sub(1);
                put_u64(block, word, near);
            }
            4 => {
                let other = u64_at(block, (rng.random_range(range.clone()) & !7).clamp(range.start, range.end - 8));
                put_u64(block, word, other);
            }
            _ => block[at] = [0, 1, 2, 3, 6, 7, 0x7f, 0x80, 0x81, 0xff][rng.random_range(0..10)],
        }
    }
}

/// Changes a label or a superblock, in all labels alike; the domain's object table behind the superblock; or a log head.
fn damage(device: &MemoryDevice, rng: &mut Pcg64Mcg) {
    let image = device.snapshot();
    let read = |at: u64| -> Page { image[at as usize * 4096..][..4096].try_into().unwrap() };
    let sealed = |mut block: Page| {
        let crc = crc64(&block[..4088]);
        put_u64(&mut block, 4088, crc);
        block
    };
    let put = |at: u64, block: Page| device.alter(at, |bytes| *bytes = block).unwrap();
    match rng.random_range(0..4) {
        0 => {
            let seed = rng.random();
            for label in 0..LABELS {
                let at = label_start(label, BLOCKS);
                let mut block = read(at);
                mutate(&mut block, 8..200, &mut Pcg64Mcg::seed_from_u64(seed));
                put(at, sealed(block));
            }
        }
        1 => {
            let (start, end) = if rng.random_bool(0.5) { (512, 1024) } else { (8, 136) };
            let seed = rng.random();
            for at in superblocks() {
                let mut block = read(at);
                if block[..8] == *b"HFSUPER1" {
                    mutate(&mut block, start..end, &mut Pcg64Mcg::seed_from_u64(seed));
                    put(at, sealed(block));
                }
            }
        }
        2 => {
            // Through the superblock's root pointer (record at 512, pointer at 384 in it) to the block that it points to.
            for at in superblocks() {
                let mut superblock = read(at);
                if superblock[..8] != *b"HFSUPER1" {
                    continue;
                }
                let (pointer, level) = (512 + 384, superblock[514]);
                let first = u64_at(&superblock, pointer);
                if first >= BLOCKS {
                    continue;
                }
                let mut block = read(first);
                mutate(&mut block, 0..4096, &mut Pcg64Mcg::seed_from_u64(first));
                put_u64(&mut superblock, pointer + 48, crc64(&block) ^ identity_mix(0, 0, level, 0));
                put(first, block);
                put(u64_at(&superblock, pointer + 8).min(BLOCKS - 1), block);
                put(at, sealed(superblock));
            }
        }
        _ => {
            let heads: Vec<u64> = (0..BLOCKS).filter(|at| read(*at)[..8] == *b"HFINTENT").collect();
            let seed = rng.random();
            let entries = rng.random_bool(0.5);
            for at in heads {
                let mut block = read(at);
                let bytes = u64_at(&block, 72) as u32 as usize;
                let range = if entries { 160..(160 + bytes).min(4096) } else { 8..152 };
                mutate(&mut block, range, &mut Pcg64Mcg::seed_from_u64(seed));
                let crc = crc64(&block[160..(160 + bytes).min(4096)]);
                put_u64(&mut block, 88, crc);
                let crc = crc64(&block[..152]);
                put_u64(&mut block, 152, crc);
                put(at, block);
            }
        }
    }
}

fn superblocks() -> impl Iterator<Item = u64> {
    (0..LABELS).flat_map(|label| (1..LABEL_BLOCKS).map(move |slot| label_start(label, BLOCKS) + slot))
}

/// What a mount, a check and a reader do. Gives whether the store could be opened.
fn use_it(rig: &Rig, device: &Arc<MemoryDevice>) -> bool {
    let _ = check(device.clone(), &CheckOptions::default());
    let Ok(module) = rig.open_on(device.clone()) else { return false };
    for object in 0..20 {
        let _ = module.attributes(key(object));
        for page in [0, 1, 70, 100_000] {
            let frame = rig.arena.allocate().expect("a frame");
            let _ = module.read(key(object), page, &mut [frame]);
        }
    }
    let _ = module.orphans(DomainId::MAIN);
    let _ = module.status();
    let _ = module.close();
    true
}

#[test]
fn foreign_bytes_with_good_checksums_are_errors_at_worst() {
    let rig = store();
    let seconds = std::env::var("HOLDFAST_FUZZ_SECONDS").map_or(1.5, |text| text.parse().expect("a number of seconds"));
    let one = std::env::var("HOLDFAST_SEED").ok().map(|seed| seed.parse::<u64>().expect("a seed"));
    let first = one.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut runs, mut opened) = (0, 0);
    for seed in first.. {
        let _replay = crate::random::Replay(seed, "foreign_bytes_with_good_checksums");
        let device = Arc::new(MemoryDevice::clone(&rig.device));
        damage(&device, &mut Pcg64Mcg::seed_from_u64(seed));
        opened += u32::from(use_it(&rig, &device));
        runs += 1;
        if one.is_some() || Instant::now() >= end {
            break;
        }
    }
    println!("{runs} mutations, {opened} stores could still be opened");
    assert!(one.is_some() || (opened > 0 && opened < runs), "{opened} of {runs} could be opened: nothing was tested");
}
