//! What it costs to keep a checksum right while a block changes, on this machine.
//!
//! `cargo run --release -p holdfast-integrity --example rolling_speed`
//!
//! 64 blocks of 4 KiB, which stay in the L2 cache, and one thread; blocks and places in them come in random order. Every change is
//! stored, and its delta taken into the sum of its block. The candidates take turns within each round. Given are the median
//! and the least nanoseconds of the rounds, and the median of what they are more than those of the store alone in the same round:
//! on a busy machine the least are nearest to what the work takes.

use std::hint::black_box;
use std::time::Instant;

use holdfast_integrity::{
    Delta, ROLLING_BLOCK, adler32, adler32_add_delta, adler32_change, crc64, crc64_and_tally, crc64_change,
    crc64_change_slot, crc64_change_word, fletcher256, fletcher256_add_delta, fletcher256_change, tally,
};

const BLOCKS: usize = 64;
const ROUNDS: usize = 101;
/// Changes per turn, and fresh sums per turn.
const CHANGES: usize = 20_000;
const FRESH: usize = 500;

type Block = [u8; ROLLING_BLOCK];

/// A block, aligned as metadata in memory is, and what goes along with it.
#[repr(C, align(4096))]
struct Rolled {
    bytes: Block,
    crc64: u64,
    tally: u32,
    adler32: u32,
    fletcher256: [u8; 32],
}

/// A change: at most 64 bytes, of which each candidate takes what it needs.
struct Change {
    block: usize,
    place: usize,
    bytes: [u8; 64],
}

type Work = fn(&mut Rolled, &Change);

impl Rolled {
    fn slot(&mut self, change: &Change) -> &mut [u8; 64] {
        &mut self.bytes.as_chunks_mut::<64>().0[change.place % 64]
    }

    fn word(&mut self, change: &Change) -> &mut [u8; 8] {
        &mut self.bytes.as_chunks_mut::<8>().0[change.place % 512]
    }
}

fn new_word(change: &Change) -> u64 {
    u64::from_le_bytes(change.bytes.as_chunks::<8>().0[0])
}

fn flip(rolled: &mut Rolled, change: &Change) -> (usize, u64, u64) {
    let mask = 1 << (change.bytes[0] % 64);
    let word = rolled.word(change);
    let old = u64::from_le_bytes(*word);
    *word = (old ^ mask).to_le_bytes();
    (change.place % 512, old, old ^ mask)
}

/// By group, the store alone first.
const CHANGED: [(&str, &[(&str, Work)]); 4] = [
    (
        "64-byte pointer",
        &[
            ("store alone", |rolled, change| *rolled.slot(change) = change.bytes),
            ("CRC-64", |rolled, change| {
                let old = &rolled.bytes.as_chunks::<64>().0[change.place % 64];
                rolled.crc64 ^= crc64_change_slot(change.place % 64, old, &change.bytes);
                *rolled.slot(change) = change.bytes;
            }),
            ("CRC-64 and tally", |rolled, change| {
                let old = &rolled.bytes.as_chunks::<64>().0[change.place % 64];
                Delta::of_slot(change.place % 64, old, &change.bytes).apply(&mut rolled.crc64, &mut rolled.tally);
                *rolled.slot(change) = change.bytes;
            }),
            ("CRC-64, any range", |rolled, change| {
                let old = &rolled.bytes.as_chunks::<64>().0[change.place % 64];
                rolled.crc64 ^= crc64_change(change.place % 64 * 64, old, black_box(&change.bytes[..]));
                *rolled.slot(change) = change.bytes;
            }),
            ("Adler-32", |rolled, change| {
                let old = &rolled.bytes.as_chunks::<64>().0[change.place % 64];
                let delta = adler32_change(ROLLING_BLOCK, change.place % 64 * 64, old, &change.bytes);
                rolled.adler32 = adler32_add_delta(rolled.adler32, delta);
                *rolled.slot(change) = change.bytes;
            }),
            ("Fletcher-256", |rolled, change| {
                let old = &rolled.bytes.as_chunks::<64>().0[change.place % 64];
                let delta = fletcher256_change(ROLLING_BLOCK, change.place % 64 * 64, old, &change.bytes);
                rolled.fletcher256 = fletcher256_add_delta(rolled.fletcher256, delta);
                *rolled.slot(change) = change.bytes;
            }),
        ],
    ),
    (
        "64-bit word",
        &[
            ("store alone", |rolled, change| *rolled.word(change) = change.bytes.as_chunks::<8>().0[0]),
            ("CRC-64", |rolled, change| {
                let old = u64::from_le_bytes(*rolled.word(change));
                rolled.crc64 ^= crc64_change_word(change.place % 512, old ^ new_word(change));
                *rolled.word(change) = new_word(change).to_le_bytes();
            }),
            ("CRC-64 and tally", |rolled, change| {
                let old = u64::from_le_bytes(*rolled.word(change));
                Delta::of_word(change.place % 512, old, new_word(change)).apply(&mut rolled.crc64, &mut rolled.tally);
                *rolled.word(change) = new_word(change).to_le_bytes();
            }),
        ],
    ),
    (
        "one bit",
        &[
            ("store alone", |rolled, change| {
                black_box(flip(rolled, change));
            }),
            ("CRC-64", |rolled, change| {
                let (word, old, new) = flip(rolled, change);
                rolled.crc64 ^= crc64_change_word(word, old ^ new);
            }),
            ("CRC-64 and tally", |rolled, change| {
                let (word, old, new) = flip(rolled, change);
                Delta::of_word(word, old, new).apply(&mut rolled.crc64, &mut rolled.tally);
            }),
        ],
    ),
    (
        "20 bytes, unaligned",
        &[
            ("store alone", |rolled, change| rolled.bytes[change.place..][..20].copy_from_slice(&change.bytes[..20])),
            ("CRC-64", |rolled, change| {
                let (old, new) = (&mut rolled.bytes[change.place..][..20], &change.bytes[..20]);
                rolled.crc64 ^= crc64_change(change.place, old, new);
                old.copy_from_slice(new);
            }),
            ("CRC-64 and tally", |rolled, change| {
                let (old, new) = (&mut rolled.bytes[change.place..][..20], &change.bytes[..20]);
                Delta::of(change.place, old, new).apply(&mut rolled.crc64, &mut rolled.tally);
                old.copy_from_slice(new);
            }),
        ],
    ),
];

type Fresh = fn(&Block) -> u64;

const WHOLE: [(&str, Fresh); 6] = [
    ("CRC-64", |block| crc64(block)),
    ("tally", |block| u64::from(tally(block))),
    ("CRC-64, then tally", |block| crc64(block) ^ u64::from(tally(block))),
    ("CRC-64 and tally in one pass", |block| {
        let (crc64, tally) = crc64_and_tally(block);
        crc64 ^ u64::from(tally)
    }),
    ("Adler-32", |block| u64::from(adler32(block))),
    ("Fletcher-256", |block| u64::from(fletcher256(block)[0])),
];

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of one of `count`.
fn time(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn main() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut blocks: Vec<Rolled> = (0..BLOCKS)
        .map(|_| {
            let bytes: Block = std::array::from_fn(|_| next() as u8);
            let (crc64, tally) = (crc64(&bytes), tally(&bytes));
            Rolled { crc64, tally, adler32: adler32(&bytes), fletcher256: fletcher256(&bytes), bytes }
        })
        .collect();
    let changes: Vec<Change> = (0..CHANGES)
        .map(|_| Change {
            block: next() as usize % BLOCKS,
            place: next() as usize % (ROLLING_BLOCK - 64),
            bytes: std::array::from_fn(|_| next() as u8),
        })
        .collect();

    println!("ns per change of a 4 KiB block, medians of {ROUNDS} interleaved rounds");
    println!("{:<22}{:<20}{:>8}{:>8}{:>16}", "", "", "ns", "least", "over the store");
    for (group, candidates) in CHANGED {
        let mut times = vec![Vec::new(); candidates.len()];
        // One round more than counted, to warm up.
        for round in 0..=ROUNDS {
            for ((_, work), times) in candidates.iter().zip(&mut times) {
                let ns = time(CHANGES, || {
                    for change in &changes {
                        work(&mut blocks[change.block], black_box(change));
                    }
                });
                if round > 0 {
                    times.push(ns);
                }
            }
        }
        for ((name, _), of) in candidates.iter().zip(&times) {
            let over = median(of.iter().zip(&times[0]).map(|(ns, store)| ns - store).collect());
            println!("{group:<22}{name:<20}{:>8.1}{:>8.1}{over:>16.1}", median(of.clone()), least(of));
        }
    }

    let mut times = vec![Vec::new(); WHOLE.len()];
    for round in 0..=ROUNDS {
        for ((_, work), times) in WHOLE.iter().zip(&mut times) {
            let ns = time(FRESH, || {
                black_box((0..FRESH).fold(0, |sink, i| sink ^ work(black_box(&blocks[i % BLOCKS].bytes))));
            });
            if round > 0 {
                times.push(ns);
            }
        }
    }
    for ((name, _), of) in WHOLE.iter().zip(times) {
        println!("{:<22}{name:<20}{:>8.1}{:>8.1}", "fresh, 4 KiB", median(of.clone()), least(&of));
    }
}
