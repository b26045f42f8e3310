//! How fast the checksums are on this machine: in multiples of memcpy's speed, beside what that was when Holdfast was designed, and beside
//! the libraries that it was measured with.
//!
//! `cargo run --release -p holdfast-integrity --example checksum_speed [DRAM_MIB]`
//!
//! 4 KiB blocks, one thread; once over 32 blocks that stay in the L2 cache with their copies, once over DRAM_MIB MiB (256) that do not
//! stay in any. The candidates take turns within each round, each is divided by the memcpy of its own round, and the
//! median over the rounds is printed: so that other load on the machine falls on all alike. `read` loads one word of each line of the cache and adds them up: nearly nothing beside reading.
//!
//! Two tables, each with a half for L2 and one for DRAM:
//!
//! - *ns* for a block, the multiple of memcpy's speed, the goal, and whether it is reached by the two decimals that are printed. One call for each block, by [`Algorithm::sum`] and by a plain function
//!   where there is one; *in turn*, as a pool verifies pages, where it is known which blocks are next; *copied*, which is summed and copied at once and divided by the memcpy that only copies. The goals of
//!   `xor64` and Fletcher-256 are those of AVX-512. The libraries' own rows say whether what was measured then has its goal here.
//! - The same of ours beside the library, `faster`, `slower`, or `as fast` within 3 %. The crates are those that Holdfast uses itself, in the versions of Cargo.lock. Of what was measured then `crc32c`,
//!   `simd-adler32` and ZFS' fletcher4 are none of these, and `xor64` and Fletcher-256 were no library's.

use std::hint::black_box;
use std::time::Instant;

use crc_fast::CrcAlgorithm;
use holdfast_integrity::{
    Algorithm, Checksum, crc32c, crc64, crc64_combine, fletcher256, fletcher256_and_xor64_each, identity_mix,
    merge_page, xor64,
};
use twox_hash::XxHash3_64;

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

/// Something done to a block, with room for a copy; the number only keeps the work from being optimised away.
type Work<'a> = Box<dyn FnMut(usize, &Block, &mut Block) -> u64 + 'a>;

struct Candidate<'a> {
    name: &'static str,
    /// Multiples of memcpy's speed from L2 and from DRAM.
    goal: Option<[f64; 2]>,
    /// The candidate that is the library's.
    library: Option<&'static str>,
    work: Work<'a>,
}

impl<'a> Candidate<'a> {
    fn new(name: &'static str, work: impl FnMut(usize, &Block, &mut Block) -> u64 + 'a) -> Candidate<'a> {
        Candidate { name, goal: None, library: None, work: Box::new(work) }
    }

    /// One that makes checksums of this algorithm, and is no library's.
    fn sums(
        name: &'static str,
        algorithm: Algorithm,
        work: impl FnMut(usize, &Block, &mut Block) -> u64 + 'a,
    ) -> Candidate<'a> {
        let library = LIBRARIES.into_iter().find(|(of, ..)| *of == algorithm).map(|(_, name, _)| name);
        Candidate { goal: goal(algorithm), library, ..Candidate::new(name, work) }
    }
}

/// What was measured when Holdfast was designed.
fn goal(algorithm: Algorithm) -> Option<[f64; 2]> {
    match algorithm {
        Algorithm::None => None,
        Algorithm::Xor64 => Some([3.25, 1.95]),
        Algorithm::Crc64Nvme => Some([1.43, 1.39]),
        Algorithm::Crc32c => Some([1.40, 1.57]),
        Algorithm::Fletcher256 => Some([1.30, 1.23]),
        Algorithm::Xxh3 => Some([0.67, 1.24]),
        Algorithm::Blake3 => Some([0.09, 0.40]),
    }
}

/// The same of xor64 that is made while a block is copied.
const GOAL_OF_XOR64_COPIED: [f64; 2] = [1.02, 0.94];

type Sum = fn(&Block) -> u64;

/// With what it was measured.
const LIBRARIES: [(Algorithm, &str, Sum); 4] = [
    (Algorithm::Crc64Nvme, "crc-fast, crc64", |block| crc_fast::checksum(CrcAlgorithm::Crc64Nvme, block)),
    (Algorithm::Crc32c, "crc-fast, crc32c", |block| crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, block)),
    (Algorithm::Xxh3, "twox-hash, xxh3", |block| XxHash3_64::oneshot(block)),
    (Algorithm::Blake3, "blake3, the crate", |block| blake3::hash(block).as_bytes()[0].into()),
];

fn candidates(blocks: &[Block]) -> Vec<Candidate<'_>> {
    let memcpy = Candidate::new("memcpy", |_, block, copy| {
        copy.copy_from_slice(block);
        u64::from(black_box(&*copy)[0])
    });
    let mut list = vec![memcpy, Candidate::new("read", |_, block, _| read(block))];
    let first = |sum: Checksum| u64::from(sum.as_bytes()[0]);
    for algorithm in Algorithm::ALL.into_iter().skip(1) {
        list.push(Candidate::sums(algorithm.name(), algorithm, move |_, block, _| first(algorithm.sum(block))));
    }
    list.push(Candidate::sums("xor64 (plain fn)", Algorithm::Xor64, |_, block, _| xor64(block)));
    list.push(Candidate::sums("crc64 (plain fn)", Algorithm::Crc64Nvme, |_, block, _| crc64(block)));
    list.push(Candidate::sums("crc32c (plain fn)", Algorithm::Crc32c, |_, block, _| crc32c(block).into()));
    list.push(Candidate::sums("fletcher (plain fn)", Algorithm::Fletcher256, |_, block, _| {
        black_box(fletcher256(block))[0].into()
    }));
    // As a pool verifies pages: it knows which blocks are next.
    let turn = TURN.min(blocks.len());
    for (name, algorithm) in [
        ("xor64, in turn", Algorithm::Xor64),
        ("crc64, in turn", Algorithm::Crc64Nvme),
        ("crc32c, in turn", Algorithm::Crc32c),
        ("xxh3, in turn", Algorithm::Xxh3),
    ] {
        let mut sums = vec![0; turn];
        list.push(Candidate::sums(name, algorithm, move |i, _, _| {
            if i % turn == 0 {
                algorithm.number_each(&turn_of(blocks, i, turn), &mut sums);
                sums[0]
            } else {
                0
            }
        }));
    }
    list.push(Candidate::new("fletcher + xor64, in turn", move |i, _, _| {
        let mut all = 0;
        if i % turn == 0 {
            fletcher256_and_xor64_each(&turn_of(blocks, i, turn), |_, xor| all ^= xor);
        }
        all
    }));
    for (name, algorithm, goal) in
        [("xor64, copied", Algorithm::Xor64, Some(GOAL_OF_XOR64_COPIED)), ("crc64, copied", Algorithm::Crc64Nvme, None)]
    {
        let copied = Candidate::new(name, move |_, block, copy| {
            let sum = algorithm.sum_copied(block, copy);
            first(sum) ^ u64::from(black_box(&*copy)[0])
        });
        list.push(Candidate { goal, ..copied });
    }
    for (algorithm, name, sum) in LIBRARIES {
        let library = Candidate::new(name, move |_, block, _| sum(block));
        list.push(Candidate { goal: goal(algorithm), ..library });
    }
    let (fragment, mut page) = ([7u8; 512], [0u8; BLOCK]);
    let with = Algorithm::Crc64Nvme;
    let fragment_sum = with.sum(&fragment);
    let sums: Vec<Checksum> = blocks.iter().map(|block| with.sum(block)).collect();
    list.push(Candidate::new("merge_page, 512 B", move |i, block, _| {
        merge_page(block, sums[i], 1000, &fragment, fragment_sum, with, &mut page)
            .ok()
            .and_then(|sum| sum.as_u64())
            .expect("the checksums are those of the blocks")
    }));
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
    goal: Option<[f64; 2]>,
    library: Option<&'static str>,
    /// Nanoseconds for a block, by round.
    times: Vec<f64>,
}

impl Row {
    fn ns(&self) -> f64 {
        median(self.times.clone())
    }

    /// How many times as fast as another one, to the two decimals that are printed.
    fn beside(&self, other: &Row) -> f64 {
        let ratio = median(other.times.iter().zip(&self.times).map(|(other, own)| other / own).collect());
        (ratio * 100.0).round() / 100.0
    }
}

/// Times each candidate over `per_turn` blocks per round, going through `blocks` in a circle.
fn measure(blocks: &[Block], per_turn: usize) -> Vec<Row> {
    // The same for all: each more would have its place in the cache.
    let mut copies = Blocks::new(blocks.len());
    let copies = copies.get();
    let mut list = candidates(blocks);
    let mut times = vec![Vec::new(); list.len()];
    let mut next = 0;
    // One round more than counted, to warm up.
    for round in 0..=ROUNDS {
        for (candidate, times) in list.iter_mut().zip(&mut times) {
            let start = Instant::now();
            let mut sink = 0;
            for turn in 0..per_turn {
                let i = (next + turn) % blocks.len();
                sink ^= (candidate.work)(i, black_box(&blocks[i]), &mut copies[i]);
            }
            black_box(sink);
            let ns = start.elapsed().as_nanos() as f64 / per_turn as f64;
            next = (next + per_turn) % blocks.len();
            if round > 0 {
                times.push(ns);
            }
        }
    }
    let row = |(Candidate { name, goal, library, .. }, times)| Row { name, goal, library, times };
    list.into_iter().zip(times).map(row).collect()
}

/// Beside memcpy, and the goals.
fn print_beside_memcpy(places: &[Vec<Row>; 2]) {
    println!("4 KiB blocks, median of {ROUNDS} interleaved rounds: times as fast as memcpy");
    println!("{:<26}{:>10}{:>8}  {:<13}{:>10}{:>8}  goal", "", "L2, ns", "memcpy", "goal", "DRAM, ns", "memcpy");
    for (index, row) in places[0].iter().enumerate() {
        let mut line = format!("{:<26}", row.name);
        for (place, rows) in places.iter().enumerate() {
            let ratio = rows[index].beside(&rows[0]);
            let verdict = row.goal.map(|goal| {
                let verdict = if ratio >= goal[place] { "reached" } else { "missed" };
                format!("{:.2} {verdict}", goal[place])
            });
            line += &format!("{:>10.0}{ratio:>7.2}x  {:<13}", rows[index].ns(), verdict.unwrap_or_default());
        }
        println!("{}", line.trim_end());
    }
}

/// Ours beside the libraries.
fn print_beside_libraries(places: &[Vec<Row>; 2]) {
    println!("\ntimes as fast as the library, in the same rounds");
    println!("{:<26}{:<18}{:>11}{:>20}", "", "library", "L2", "DRAM");
    for (index, row) in places[0].iter().enumerate() {
        let Some(library) = row.library else { continue };
        let mut line = format!("{:<26}{library:<18}", row.name);
        for rows in places {
            let other = rows.iter().find(|row| row.name == library).expect("each library is a candidate");
            let ratio = rows[index].beside(other);
            let verdict = match () {
                () if ratio > 1.03 => "faster",
                () if ratio < 0.97 => "slower",
                () => "as fast",
            };
            line += &format!("{ratio:>10.2}x {verdict:<8}");
        }
        println!("{}", line.trim_end());
    }
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
    let places = [measure(&blocks[..L2_BLOCKS], L2_BLOCKS * 32), measure(blocks, (8 << 20) / BLOCK)];
    print_beside_memcpy(&places);
    print_beside_libraries(&places);
    let one_bit = per_call(|crc| crc64_combine(crc, 1, 4096));
    let many_bits = per_call(|crc| crc64_combine(crc, 1, 4095));
    let identity = per_call(|index| identity_mix(1, 2, 3, index));
    println!("\ncrc64_combine over 4096 bytes {one_bit:.0} ns, over 4095 bytes {many_bits:.0} ns");
    println!("identity_mix {identity:.1} ns");
}
