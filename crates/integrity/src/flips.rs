//! Finding flipped bits by the CRC.
//!
//! CRC-64 is linear: the xor of the expected and the computed CRC, the *syndrome*, depends on the flipped bits alone. It has
//! Hamming distance 6 or more up to 4 KiB (see `tests/it/strength.rs`), so no two patterns of up to two flipped bits have the same
//! syndrome, and damage of three bits is never taken for damage of one or two. Anything else, such as bytes that have
//! nothing to do with the expected ones, is taken for one flipped bit with probability 2^15 / 2^64 = 2^-49, and for two with
//! 2^29 / 2^64 = 2^-35, in 4 KiB: whoever accepts two wants a second checksum to agree.

use crate::crc::{POLY, crc64};
use std::sync::LazyLock;

/// Longest buffer for which the Hamming distance is known, in bytes.
const BYTES_MAX: usize = 4096;

/// How many flipped bits are looked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlipsMax {
    /// One: a search in a table.
    One,
    /// Two: one for each bit, some milliseconds in all.
    Two,
}

/// Flips back the bits that explain why the CRC-64 of `bytes` is not `expected`, and gives their number: 0 if it is. `None`,
/// and nothing has changed, if no pattern of so few bits explains it, or there are more than 4096 bytes.
pub fn correct_flips(bytes: &mut [u8], expected: u64, most: FlipsMax) -> Option<u32> {
    let syndrome = crc64(bytes) ^ expected;
    if syndrome == 0 {
        return Some(0);
    }
    if bytes.len() > BYTES_MAX {
        return None;
    }
    let found = one(bytes.len() * 8, syndrome).map(|bit| vec![bit]);
    let found = match most {
        FlipsMax::One => found,
        FlipsMax::Two => found.or_else(|| two(bytes.len() * 8, syndrome)),
    }?;
    for &from_end in &found {
        // Bits go through the CRC from the lowest of a byte to the highest.
        let at = bytes.len() * 8 - 1 - from_end;
        bytes[at / 8] ^= 1 << (at % 8);
    }
    debug_assert_eq!(crc64(bytes), expected);
    Some(found.len() as u32)
}

/// Syndromes of single flipped bits, from the last bit on to the first.
fn syndromes(bits: usize) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(POLY), |&last| Some((last >> 1) ^ if last & 1 == 1 { POLY } else { 0 })).take(bits)
}

/// Syndromes of all bits, in ascending order, each with its bit, counted from the end. Made when one is looked for first (512 KiB): whoever reads
/// a log looks at pages of an older one, too, and takes each for damaged.
static SINGLES: LazyLock<Vec<(u64, u16)>> = LazyLock::new(|| {
    let mut singles: Vec<(u64, u16)> = syndromes(BYTES_MAX * 8).zip(0..).collect();
    singles.sort_unstable();
    singles
});

/// The bit of so many, counted from the end, with this syndrome.
fn one(bits: usize, syndrome: u64) -> Option<usize> {
    let at = SINGLES.binary_search_by_key(&syndrome, |entry| entry.0).ok()?;
    Some(usize::from(SINGLES[at].1)).filter(|bit| *bit < bits)
}

/// The two bits of so many, counted from the end, whose syndromes add up to this one.
fn two(bits: usize, syndrome: u64) -> Option<Vec<usize>> {
    syndromes(bits).zip(0..).find_map(|(single, bit)| Some(vec![bit, one(bits, single ^ syndrome)?]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn sample(rng: &mut impl Rng, length: usize) -> Vec<u8> {
        (0..length).map(|_| rng.random()).collect()
    }

    #[test]
    fn every_single_flip_of_a_block_is_found() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
        let good = sample(&mut rng, 4096);
        let crc = crc64(&good);
        let mut seen = std::collections::HashSet::new();
        for (bit, syndrome) in (0..8 * 4096).rev().zip(syndromes(8 * 4096)) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(crc64(&bad) ^ crc, syndrome, "bit {bit}");
            assert!(seen.insert(syndrome), "bit {bit} has the syndrome of another");
        }
        for bit in (0..8 * 4096).step_by(997).chain([8 * 4096 - 1]) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(correct_flips(&mut bad, crc, FlipsMax::One), Some(1));
            assert!(bad == good, "bit {bit}");
        }
    }

    #[test]
    fn two_flips_are_found_when_asked_for_and_more_never() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(2);
        for length in [1, 2, 100, 4096] {
            for _ in 0..20 {
                let good = sample(&mut rng, length);
                let crc = crc64(&good);
                for flips in 2..=4 {
                    let mut bits = std::collections::BTreeSet::new();
                    while bits.len() < flips {
                        bits.insert(rng.random_range(0..8 * length));
                    }
                    let mut bad = good.clone();
                    bits.iter().for_each(|bit| bad[bit / 8] ^= 1 << (bit % 8));
                    let damaged = bad.clone();
                    assert_eq!(correct_flips(&mut bad, crc, FlipsMax::One), None);
                    assert!(bad == damaged, "nothing was changed");
                    let two = correct_flips(&mut bad, crc, FlipsMax::Two);
                    // Four flips and two others differ in six: only the distance of the code, 6, is promised.
                    assert_eq!(two, (flips == 2).then_some(2), "{bits:?} of {length}");
                    assert!(bad == if flips == 2 { good.clone() } else { damaged });
                }
            }
        }
    }

    #[test]
    fn other_bytes_and_long_buffers_are_left_alone() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(3);
        let (good, other) = (sample(&mut rng, 4096), sample(&mut rng, 4096));
        let mut bad = other.clone();
        assert_eq!(correct_flips(&mut bad, crc64(&good), FlipsMax::Two), None);
        assert!(bad == other);
        assert_eq!(correct_flips(&mut bad, crc64(&other), FlipsMax::One), Some(0));
        let mut long = vec![0; 4097];
        assert_eq!(correct_flips(&mut long, 1, FlipsMax::One), None);
        assert_eq!(correct_flips(&mut [], 1, FlipsMax::Two), None);
    }
}
