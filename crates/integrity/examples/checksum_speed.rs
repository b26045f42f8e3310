//! How fast the checksums are on this machine, in multiples of memcpy's speed.
//!
//! `cargo run --release -p holdfast-integrity --example checksum_speed [DRAM_MIB]`
//!
//! 4 KiB blocks, one thread; once over 32 blocks that stay in the L2 cache with their copies, once over DRAM_MIB MiB (256) that do not
//! stay in any. `read` loads one word of each line of the cache and adds them up: nearly nothing beside reading. The candidates take turns within each round, each is divided by the memcpy of its own round, and the
//! median over the rounds is printed: so that other load on the machine falls on all alike.

use std::hint::black_box;
use std::time::Instant;

use holdfast_integrity::{
    Algorithm, Checksum, crc32c, crc64, crc64_combine, fletcher256, fletcher256_and_xor64_each, identity_mix,
    merge_page, xor64,
};

const BLOCK: usize = 4096;
const L2_BLOCKS: usize = 32;
const ROUNDS: usize = 31;
/// Blocks that are summed in turn, at most: as many as are verified at once before they are written. Divides the number of blocks, or is more.
const TURN: usize = 256;

type Block = [u8; BLOCK];

/// Blocks that begin where pages of memory do, as all those of a pool.
struct Blocks {
    bytes: Vec<u8>,
    first: usize,
}

impl Blocks {
    fn new(count: usize) -> Blocks {
        let bytes = vec![1; (count + 1) * BLOCK];
        Blocks { first: bytes.as_ptr().align_offset(BLOCK), bytes }
    }

    fn get(&mut self) -> &mut [Block] {
        let blocks = self.bytes[self.first..].as_chunks_mut().0;
        let count = blocks.len() - usize::from(self.first == 0);
        &mut blocks[..count]
    }
}

/// Something done to a block; the number only keeps the work from being optimised away.
type Work<'a> = Box<dyn FnMut(usize, &Block) -> u64 + 'a>;

fn candidates(blocks: &[Block]) -> Vec<(&'static str, Work<'_>)> {
    let mut copies = Blocks::new(blocks.len());
    let mut list: Vec<(&'static str, Work<'_>)> = vec![(
        "memcpy",
        Box::new(move |i, block| {
            let copy = &mut copies.get()[i];
            copy.copy_from_slice(block);
            u64::from(black_box(&*copy)[0])
        }),
    )];
    list.push(("read", Box::new(|_, block| read(block))));
    for algorithm in Algorithm::ALL.into_iter().skip(1) {
        let first = |sum: Checksum| u64::from(sum.as_bytes()[0]);
        list.push((algorithm.name(), Box::new(move |_, block| first(algorithm.sum(block)))));
    }
    list.push(("xor64 (plain fn)", Box::new(|_, block| xor64(block))));
    list.push(("crc64 (plain fn)", Box::new(|_, block| crc64(block))));
    list.push(("crc32c (plain fn)", Box::new(|_, block| crc32c(block).into())));
    list.push(("fletcher (plain fn)", Box::new(|_, block| black_box(fletcher256(block))[0].into())));
    // As a pool verifies pages: it knows which blocks are next.
    let turn = TURN.min(blocks.len());
    for (name, algorithm) in [
        ("xor64, in turn", Algorithm::Xor64),
        ("crc64, in turn", Algorithm::Crc64Nvme),
        ("crc32c, in turn", Algorithm::Crc32c),
        ("xxh3, in turn", Algorithm::Xxh3),
    ] {
        let mut sums = vec![0; turn];
        list.push((
            name,
            Box::new(move |i, _| {
                if i % turn == 0 {
                    algorithm.number_each(&turn_of(blocks, i, turn), &mut sums);
                    sums[0]
                } else {
                    0
                }
            }),
        ));
    }
    list.push((
        "fletcher + xor64, in turn",
        Box::new(move |i, _| {
            let mut all = 0;
            if i % turn == 0 {
                fletcher256_and_xor64_each(&turn_of(blocks, i, turn), |_, xor| all ^= xor);
            }
            all
        }),
    ));
    let (fragment, mut page) = ([7u8; 512], [0u8; BLOCK]);
    let with = Algorithm::Crc64Nvme;
    let fragment_sum = with.sum(&fragment);
    let sums: Vec<Checksum> = blocks.iter().map(|block| with.sum(block)).collect();
    list.push((
        "merge_page, 512 B",
        Box::new(move |i, block| {
            merge_page(block, sums[i], 1000, &fragment, fragment_sum, with, &mut page)
                .ok()
                .and_then(|sum| sum.as_u64())
                .expect("the checksums are those of the blocks")
        }),
    ));
    list
}

/// The blocks of a turn that begins with block `first`.
fn turn_of(blocks: &[Block], first: usize, turn: usize) -> Vec<&Block> {
    blocks[first..first + turn].iter().collect()
}

/// Every line of the cache once, and nearly nothing else.
fn read(block: &Block) -> u64 {
    block
        .as_chunks::<64>()
        .0
        .iter()
        .fold(0, |sum, line| sum ^ u64::from_le_bytes(*line.first_chunk().expect("64 bytes have 8")))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Row {
    name: &'static str,
    ratio: f64,
    ns: f64,
}

/// Times each candidate over `per_turn` blocks per round, going through `blocks` in a circle.
fn measure(blocks: &[Block], per_turn: usize) -> Vec<Row> {
    let mut list = candidates(blocks);
    let mut times = vec![Vec::new(); list.len()];
    let mut next = 0;
    // One round more than counted, to warm up.
    for round in 0..=ROUNDS {
        for ((_, work), times) in list.iter_mut().zip(&mut times) {
            let start = Instant::now();
            let mut sink = 0;
            for turn in 0..per_turn {
                let i = (next + turn) % blocks.len();
                sink ^= work(i, black_box(&blocks[i]));
            }
            black_box(sink);
            let ns = start.elapsed().as_nanos() as f64 / per_turn as f64;
            next = (next + per_turn) % blocks.len();
            if round > 0 {
                times.push(ns);
            }
        }
    }
    let memcpy = times[0].clone();
    list.iter()
        .zip(times)
        .map(|((name, _), times)| Row {
            name,
            ratio: median(memcpy.iter().zip(&times).map(|(m, t)| m / t).collect()),
            ns: median(times),
        })
        .collect()
}

/// Median nanoseconds per call of something that needs no block.
fn per_call(mut work: impl FnMut(u64) -> u64) -> f64 {
    const CALLS: u64 = 20_000;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for i in 0..CALLS {
            black_box(work(black_box(i)));
        }
        times.push(start.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    median(times)
}

fn main() {
    let dram_mib = match std::env::args().nth(1).map(|arg| arg.parse::<usize>()) {
        None => 256,
        Some(Ok(mib)) if mib > 0 => mib,
        Some(_) => {
            eprintln!("usage: checksum_speed [DRAM_MIB]");
            std::process::exit(2);
        }
    };
    let mut blocks = Blocks::new(dram_mib * ((1 << 20) / BLOCK));
    let blocks = blocks.get();
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    for chunk in blocks.as_flattened_mut().as_chunks_mut::<8>().0 {
        // xorshift: contents do not matter to the speed, but all zeros might.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        *chunk = word.to_le_bytes();
    }
    let l2 = measure(&blocks[..L2_BLOCKS], L2_BLOCKS * 32);
    let dram = measure(blocks, (8 << 20) / BLOCK);

    println!("4 KiB blocks, speed in multiples of memcpy, median of {ROUNDS} interleaved rounds");
    println!("{:<20} {:>9} {:>9} {:>9} {:>9}", "", "L2", "ns", "DRAM", "ns");
    for (near, far) in l2.iter().zip(&dram) {
        println!("{:<20} {:>8.2}x {:>9.0} {:>8.2}x {:>9.0}", near.name, near.ratio, near.ns, far.ratio, far.ns);
    }
    let one_bit = per_call(|crc| crc64_combine(crc, 1, 4096));
    let many_bits = per_call(|crc| crc64_combine(crc, 1, 4095));
    let identity = per_call(|index| identity_mix(1, 2, 3, index));
    println!("crc64_combine over 4096 bytes {one_bit:.0} ns, over 4095 bytes {many_bits:.0} ns");
    println!("identity_mix {identity:.1} ns");
}
