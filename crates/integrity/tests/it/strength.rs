//! What the checksums must detect in a 4 KiB block.

use std::collections::HashSet;

use holdfast_integrity::{Algorithm, crc64, fletcher256, xor64};

use crate::random::Random;

const BITS: usize = 4096 * 8;

fn flip(block: &mut [u8], bit: usize) {
    block[bit / 8] ^= 1 << (bit % 8);
}

#[test]
fn every_single_flip() {
    let mut random = Random::new("every_single_flip");
    for mut block in [random.block(), Box::new([0; 4096]), Box::new([0xff; 4096])] {
        for algorithm in Algorithm::ALL.into_iter().skip(1) {
            // BLAKE3 and XXH3 promise nothing for single bits and are slower: every 61st.
            let step = match algorithm {
                Algorithm::Blake3 | Algorithm::Xxh3 => 61,
                _ => 1,
            };
            let good = algorithm.sum(&*block);
            for bit in (0..BITS).step_by(step) {
                flip(&mut *block, bit);
                assert!(good.verify(&*block).is_err(), "{algorithm}: bit {bit} of {BITS}");
                flip(&mut *block, bit);
            }
            assert!(good.verify(&*block).is_ok());
        }
    }
}

/// By linearity two flips go unseen just if their syndromes are equal: so 32,768 different syndromes stand for
/// all 536,854,528 pairs. Bursts and up to 5 flips are a property of the polynomial.
#[test]
fn every_double_flip_crc64() {
    let mut block = [0; 4096];
    let zero = crc64(&block);
    let mut syndromes = HashSet::new();
    for bit in 0..BITS {
        flip(&mut block, bit);
        syndromes.insert(crc64(&block) ^ zero);
        flip(&mut block, bit);
    }
    assert_eq!(syndromes.len(), BITS);
    assert!(!syndromes.contains(&0));
    // That syndromes of different flips add up, which the count rests on, also for other contents.
    let mut random = Random::new("every_double_flip_crc64");
    let mut block = random.block();
    let good = crc64(&*block);
    for _ in 0..20_000 {
        let (x, y) = (random.below(BITS), random.below(BITS));
        flip(&mut *block, x);
        flip(&mut *block, y);
        assert_eq!(crc64(&*block) != good, x != y, "bits {x} and {y}");
        flip(&mut *block, y);
        flip(&mut *block, x);
    }
}

#[test]
fn sampled_double_flips_fletcher() {
    let mut random = Random::new("sampled_double_flips_fletcher");
    for _ in 0..4 {
        let mut block = random.block();
        let good = fletcher256(&*block);
        for round in 0..20_000 {
            let x = random.below(BITS);
            // Every other pair in the same bit column, where sums are weakest.
            let y = if round % 2 == 0 { random.below(BITS) } else { x % 128 + 128 * random.below(256) };
            flip(&mut *block, x);
            flip(&mut *block, y);
            assert_eq!(fletcher256(&*block) != good, x != y, "bits {x} and {y}");
            flip(&mut *block, y);
            flip(&mut *block, x);
        }
    }
}

/// Fletcher with plain sums modulo 2^128: the carry out of the top bit is lost.
fn fletcher_plain(block: &[u8]) -> (u128, u128) {
    let words = block.as_chunks::<16>().0.iter();
    words.fold((0, 0), |(a, b): (u128, u128), word| {
        let a = a.wrapping_add(u128::from_le_bytes(*word));
        (a, b.wrapping_add(a))
    })
}

/// All 32,640 pairs of top bits. Plain sums miss every pair of words an even distance apart, ours none.
#[test]
fn every_pair_of_top_bits_fletcher() {
    let mut block = Random::new("every_pair_of_top_bits_fletcher").block();
    let (good, plain_good) = (fletcher256(&*block), fletcher_plain(&*block));
    let top = |word: usize| word * 128 + 127;
    let mut missed_by_plain = 0;
    for x in 0..256 {
        for y in x + 1..256 {
            flip(&mut *block, top(x));
            flip(&mut *block, top(y));
            assert_ne!(fletcher256(&*block), good, "words {x} and {y}");
            missed_by_plain += usize::from(fletcher_plain(&*block) == plain_good);
            flip(&mut *block, top(y));
            flip(&mut *block, top(x));
        }
    }
    assert_eq!(missed_by_plain, 2 * (128 * 127 / 2));
}

/// The known limits, so that nobody relies on more than there is.
#[test]
fn known_blind_spots() {
    let mut block = Random::new("known_blind_spots").block();
    let xor = xor64(&*block);
    flip(&mut *block, 5);
    flip(&mut *block, 5 + 64 * 9);
    assert_eq!(xor64(&*block), xor, "two flips in one column cancel in xor64");

    block[..16].fill(0);
    let fletcher = fletcher256(&*block);
    block[..16].fill(0xff);
    assert_eq!(fletcher256(&*block), fletcher, "all ones look like all zeros");
}
