//! The figures for checksums against the code that computes them, and against a count of what goes unseen.

use holdfast_integrity::{Algorithm, fletcher256};
use holdfast_reliability::{BLOCK_BITS, ChecksumData, strength};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const BLOCK_BYTES: usize = BLOCK_BITS as usize / 8;
const WORD_BITS: usize = 128;
const WORDS: usize = BLOCK_BITS as usize / WORD_BITS;

/// Whether flips of these bits leave the sum as it is.
fn unseen(algorithm: Algorithm, block: &mut [u8], bits: &[usize]) -> bool {
    let sum = algorithm.sum(block);
    let flip = |block: &mut [u8]| bits.iter().for_each(|bit| block[bit / 8] ^= 1 << (bit % 8));
    flip(block);
    let same = algorithm.sum(block) == sum;
    flip(block);
    same
}

fn random_block(rng: &mut impl Rng) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|_| rng.random()).collect()
}

fn choose(of: f64, count: u32) -> f64 {
    (0..count).map(|i| (of - f64::from(i)) / f64::from(i + 1)).product()
}

#[test]
fn xor_misses_two_flips_as_often_as_its_figure_says() {
    let strength = strength(Algorithm::Xor64, ChecksumData::Measured);
    assert_eq!(strength.hamming_distance, 2);
    // All pairs: the sum is linear, so the block does not matter. The second bit is in the same column.
    let unseen_pairs = 64.0 * choose(f64::from(BLOCK_BITS) / 64.0, 2);
    let fraction = unseen_pairs / choose(f64::from(BLOCK_BITS), 2);
    assert!((fraction / strength.unseen_fraction - 1.0).abs() < 1e-12);
    // And the code does miss them.
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut block = random_block(&mut rng);
    let (mut missed, tried) = (0, 20_000);
    for _ in 0..tried {
        let (first, second) = (rng.random_range(0..BLOCK_BITS as usize), rng.random_range(0..BLOCK_BITS as usize));
        if first == second {
            continue;
        }
        let same_column = first % 64 == second % 64;
        assert_eq!(unseen(Algorithm::Xor64, &mut block, &[first, second]), same_column);
        missed += u32::from(same_column);
    }
    let (expected, deviation) = (strength.unseen_fraction * f64::from(tried), 4.0 * 17.5);
    assert!((f64::from(missed) - expected).abs() < deviation, "{missed}, {expected} expected");
}

/// Fletcher-256 as it would be with sums modulo 2^128.
fn fletcher_plain(block: &[u8]) -> (u128, u128) {
    let words = block.as_chunks::<16>().0;
    words.iter().fold((0, 0), |(a, b): (u128, u128), word| {
        let a = a.wrapping_add(u128::from_le_bytes(*word));
        (a, b.wrapping_add(a))
    })
}

#[test]
fn a_plain_fletcher_misses_two_flips_as_often_as_its_figure_says() {
    let strength = strength(Algorithm::Fletcher256, ChecksumData::MeasuredPlain);
    assert_eq!(strength.hamming_distance, 2);
    let mut rng = Pcg64Mcg::seed_from_u64(2);
    let mut weighted = 0.0;
    // Two flips in one column. In other columns they cannot cancel in the first sum, where a word has the weight 1.
    for column in 0..WORD_BITS {
        for distance in 1..WORDS {
            // Of how many directions each goes unseen does not depend on where the pair is.
            let mut missed = 0;
            for directions in 0..4 {
                let mut block = random_block(&mut rng);
                let first = rng.random_range(0..WORDS - distance);
                let bits = [first * WORD_BITS + column, (first + distance) * WORD_BITS + column];
                for (at, bit) in bits.into_iter().enumerate() {
                    let mask = 1 << (bit % 8);
                    block[bit / 8] = block[bit / 8] & !mask | if directions >> at & 1 == 1 { mask } else { 0 };
                }
                let sum = fletcher_plain(&block);
                bits.iter().for_each(|bit| block[bit / 8] ^= 1 << (bit % 8));
                missed += u32::from(fletcher_plain(&block) == sum);
            }
            weighted += f64::from(missed) / 4.0 * (WORDS - distance) as f64;
        }
    }
    let fraction = weighted / choose(f64::from(BLOCK_BITS), 2);
    assert!((fraction / strength.unseen_fraction - 1.0).abs() < 1e-12, "{fraction}, {weighted} patterns");
}

#[test]
fn fletcher_misses_three_flips_as_often_as_its_figure_says() {
    let strength = strength(Algorithm::Fletcher256, ChecksumData::Measured);
    assert_eq!(strength.hamming_distance, 3);
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    // 2^a + 2^a = 2^(a + 1): two flips up in a column, one down in the next (the column after the last is the first: 2^128 is 1 here).
    // For the second sum, its word has to be in the middle. Nothing else of three powers of two adds up to 0.
    let mut missed = 0.0;
    for column in 0..WORD_BITS {
        for half in 1..WORDS.div_ceil(2) {
            let places = WORDS - 2 * half;
            let mut directions_unseen = 0;
            for directions in 0..8 {
                let mut block = random_block(&mut rng);
                let first = rng.random_range(0..places);
                let bits = [
                    first * WORD_BITS + column,
                    (first + 2 * half) * WORD_BITS + column,
                    (first + half) * WORD_BITS + (column + 1) % WORD_BITS,
                ];
                for (at, bit) in bits.into_iter().enumerate() {
                    let mask = 1 << (bit % 8);
                    block[bit / 8] = block[bit / 8] & !mask | if directions >> at & 1 == 1 { mask } else { 0 };
                }
                let sum = fletcher256(&block);
                bits.iter().for_each(|bit| block[bit / 8] ^= 1 << (bit % 8));
                directions_unseen += u32::from(fletcher256(&block) == sum);
            }
            missed += f64::from(directions_unseen) / 8.0 * places as f64;
        }
    }
    let fraction = missed / choose(f64::from(BLOCK_BITS), 3);
    assert!((fraction / strength.unseen_fraction - 1.0).abs() < 1e-12, "{fraction}, {missed} patterns");
    // With the fewer flips that its distance promises to see, tried where they are most like each other: in one column.
    let mut block = random_block(&mut rng);
    for column in 0..WORD_BITS {
        for distance in 1..WORDS {
            let first = rng.random_range(0..WORDS - distance);
            let bits = [first * WORD_BITS + column, (first + distance) * WORD_BITS + column];
            assert!(!unseen(Algorithm::Fletcher256, &mut block, &bits), "{bits:?}");
        }
    }
}

#[test]
fn crcs_see_all_patterns_tried_below_their_distance() {
    let mut rng = Pcg64Mcg::seed_from_u64(4);
    let mut block = random_block(&mut rng);
    for algorithm in [Algorithm::Crc32c, Algorithm::Crc64Nvme] {
        let distance = strength(algorithm, ChecksumData::Measured).hamming_distance as usize;
        for flips in 1..distance {
            for _ in 0..5000 {
                let mut bits: Vec<usize> = (0..flips).map(|_| rng.random_range(0..BLOCK_BITS as usize)).collect();
                bits.sort_unstable();
                bits.dedup();
                assert!(!unseen(algorithm, &mut block, &bits), "{algorithm}: {bits:?}");
            }
        }
    }
}
