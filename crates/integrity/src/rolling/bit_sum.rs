//! A sum of sets of which a bit at a time goes in or out: one table, one multiplication and one addition, where CRC and tally take two tables and
//! three additions.

use super::{ROLLING_BLOCK, WORDS};

/// Odd and all different: the values of SplitMix64, with the lowest bit.
static WEIGHTS: [u64; WORDS] = {
    let mut weights = [0; WORDS];
    let mut word = 0;
    while word < WORDS {
        let mut z = (word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        weights[word] = (z ^ (z >> 31)) | 1;
        word += 1;
    }
    weights
};

/// Of the 32,768 bits of a block, by the bits that were changed since it was zero: its 512 words of 64 bits, each times an odd weight of its own,
/// modulo 2^128.
///
/// A product has no more than 128 bits, so no change within one word goes unseen, nor do two bits anywhere, as no weight is another one times a
/// power of 2; changes of several words, what a CRC cannot see ([`crate::crc64_neutral`]) among them, but for 2^-64. For memory only.
///
/// ```
/// use holdfast_integrity::BitSum;
///
/// let mut sum = BitSum::default();
/// sum.set(1, 1 << 6);
/// sum.set(0, 1 << 5 | 1 << 7);
/// sum.clear(1, 1 << 6);
/// sum.clear(0, 1 << 7);
/// let mut words = [0; 512];
/// words[0] = 1 << 5;
/// assert_eq!(sum, BitSum::of(&words));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitSum(u128);

impl BitSum {
    /// Of words as they are.
    pub fn of(words: &[u64; ROLLING_BLOCK / 8]) -> BitSum {
        let products = words.iter().zip(&WEIGHTS).map(|(word, weight)| u128::from(*word) * u128::from(*weight));
        BitSum(products.fold(0, u128::wrapping_add))
    }

    /// Of word number `word` (0 to 511) these bits were clear and are set.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn set(&mut self, word: usize, bits: u64) {
        self.0 = self.0.wrapping_add(u128::from(WEIGHTS[word]) * u128::from(bits));
    }

    /// The bits were set and are clear.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn clear(&mut self, word: usize, bits: u64) {
        self.0 = self.0.wrapping_sub(u128::from(WEIGHTS[word]) * u128::from(bits));
    }

    /// If one word alone is to blame that this is not the sum of these words: which, and what it should be. For finding out what has changed.
    pub fn one_word(self, words: &[u64; ROLLING_BLOCK / 8]) -> Option<(usize, u64)> {
        let more = BitSum::of(words).0.wrapping_sub(self.0);
        words.iter().zip(&WEIGHTS).enumerate().find_map(|(at, (word, weight))| {
            // By how much it has grown: less than 2^64 either way, where it is this one. (Almost no other number of 128 bits is.)
            let grown = more.wrapping_mul(inverse(*weight)).cast_signed();
            let expected = i128::from(*word).checked_sub(grown)?.try_into().ok()?;
            (expected != *word).then_some((at, expected))
        })
    }

    /// Upper and lower half.
    pub fn halves(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }
}

/// What makes 1 of an odd number, modulo 2^128.
fn inverse(odd: u64) -> u128 {
    let odd = u128::from(odd);
    // Right in the lowest 3 bits, and in twice as many with each step.
    (0..6).fold(odd, |inverse, _| inverse.wrapping_mul(2_u128.wrapping_sub(odd.wrapping_mul(inverse))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc64_neutral;
    use rand::{Rng, SeedableRng};

    #[test]
    fn changes_one_after_the_other_are_as_all_at_once() {
        for seed in 0..50 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let (mut words, mut sum) = ([0u64; WORDS], BitSum::default());
            for _ in 0..1000 {
                let at = if rng.random_bool(0.1) {
                    rng.random_range(0..2) * (WORDS - 1)
                } else {
                    rng.random_range(0..WORDS)
                };
                let bits = if rng.random() { 1 << rng.random_range(0..64) } else { rng.random() };
                let (set, clear) = (bits & !words[at], bits & words[at]);
                sum.set(at, set);
                sum.clear(at, clear);
                words[at] ^= bits;
            }
            assert_eq!(sum, BitSum::of(&words), "seed {seed}");
        }
    }

    #[test]
    fn a_changed_word_two_bits_and_what_a_crc_cannot_see_show() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
        let words: [u64; WORDS] = std::array::from_fn(|_| rng.random());
        let sum = BitSum::of(&words);
        for round in 0..20_000 {
            let mut bad = words;
            let (first, second) = (rng.random_range(0..32_768), rng.random_range(0..32_767));
            match round % 3 {
                0 => bad[first / 64] ^= rng.random_range(1..=u64::MAX),
                1 => {
                    let second = if second == first { 32_767 } else { second };
                    [first, second].iter().for_each(|bit| bad[bit / 64] ^= 1 << (bit % 64));
                }
                _ => {
                    let (at, pattern) = crc64_neutral(first.min(32_768 - 65)).expect("it lies in the block");
                    for (at, flipped) in (at..).zip(pattern) {
                        bad[at / 8] ^= u64::from(flipped) << (at % 8 * 8);
                    }
                }
            }
            assert_ne!(BitSum::of(&bad), sum, "round {round}");
        }
        // Of odd numbers only the same ones are each other's multiples by a power of 2.
        let weights: std::collections::BTreeSet<u64> = WEIGHTS.into_iter().collect();
        assert!(weights.len() == WORDS && weights.iter().all(|weight| weight % 2 == 1));
    }
}
