//! Sums of numbers that come and go: what the audits of all layers compare.

mod slots;

pub use slots::SlotSums;

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// Of a set in which a number may be several times, or fewer than none: how many there are, their sum, and the sum of their squares. All
/// modulo 2^64, so it does not matter in which order numbers come and go, nor where they are counted.
///
/// Two sets with the same digest that differ do so in three numbers on each side at least (numbers below 2^31; for larger ones it takes
/// a difference of a multiple of 2^32 besides).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SetDigest {
    count: u64,
    sum: u64,
    squares: u64,
}

impl SetDigest {
    /// Of nothing.
    pub const NOTHING: SetDigest = SetDigest { count: 0, sum: 0, squares: 0 };

    /// Of things that are all alike.
    #[inline]
    pub fn of_count(count: u64) -> SetDigest {
        SetDigest { count, ..SetDigest::NOTHING }
    }

    /// Of one number.
    #[inline]
    pub fn of(number: u64) -> SetDigest {
        SetDigest { count: 1, sum: number, squares: number.wrapping_mul(number) }
    }

    /// Of those of these numbers that are not 0, without asking of each.
    #[inline]
    pub fn of_nonzero<const N: usize>(numbers: [u64; N]) -> SetDigest {
        numbers.into_iter().fold(SetDigest::NOTHING, |digest, number| {
            digest + SetDigest { count: u64::from(number != 0), ..SetDigest::of(number) }
        })
    }

    /// Of `count` numbers from `first` on.
    #[inline]
    pub fn of_run(first: u64, count: u32) -> SetDigest {
        let n = u128::from(count);
        let pairs = n * n.saturating_sub(1);
        let (sum, squares) = ((pairs / 2) as u64, (pairs * (2 * n).saturating_sub(1) / 6) as u64);
        SetDigest { count: count.into(), sum, squares }.moved(first)
    }

    /// Of the set bits of a word whose first one has the number `first`.
    #[inline]
    pub fn of_bits(first: u64, bits: u64) -> SetDigest {
        // By those that are fewer: of what a file with clones frees a word has nearly all bits.
        let is_more = bits.count_ones() > u64::BITS / 2;
        let mut left = if is_more { !bits } else { bits };
        let mut digest = SetDigest::of_count(left.count_ones().into());
        while left != 0 {
            let number = first + u64::from(left.trailing_zeros());
            digest.sum = digest.sum.wrapping_add(number);
            digest.squares = digest.squares.wrapping_add(number.wrapping_mul(number));
            left &= left - 1;
        }
        if is_more {
            digest = SetDigest::of_run(first, u64::BITS) - digest;
        }
        digest
    }

    /// That of the same numbers, each larger by `by`.
    #[inline]
    pub fn moved(self, by: u64) -> SetDigest {
        let SetDigest { count, sum, squares } = self;
        let all = count.wrapping_mul(by);
        let squares = squares.wrapping_add(sum.wrapping_mul(2).wrapping_add(all).wrapping_mul(by));
        SetDigest { count, sum: sum.wrapping_add(all), squares }
    }

    /// Each number so many times.
    #[inline]
    pub fn times(self, times: u64) -> SetDigest {
        let SetDigest { count, sum, squares } = self;
        let [count, sum, squares] = [count, sum, squares].map(|sum| sum.wrapping_mul(times));
        SetDigest { count, sum, squares }
    }

    /// How many there are.
    #[inline]
    pub fn count(self) -> u64 {
        self.count
    }

    /// All that it consists of.
    #[inline]
    pub fn words(self) -> [u64; 3] {
        [self.count, self.sum, self.squares]
    }

    /// From all that it consists of.
    #[inline]
    pub fn from_words([count, sum, squares]: [u64; 3]) -> SetDigest {
        SetDigest { count, sum, squares }
    }

    /// The same, to be written to: what that makes of it is of no set.
    pub fn words_mut(&mut self) -> [&mut u64; 3] {
        let SetDigest { count, sum, squares } = self;
        [count, sum, squares]
    }

    /// The sum of the numbers.
    #[inline]
    pub fn sum(self) -> u64 {
        self.sum
    }

    /// The number, if this is of one that is there, or that is missing.
    #[inline]
    pub fn only(self) -> Option<u64> {
        [self, -self].into_iter().find(|one| *one == SetDigest::of(one.sum)).map(|one| one.sum)
    }
}

impl Add for SetDigest {
    type Output = SetDigest;

    #[inline]
    fn add(self, other: SetDigest) -> SetDigest {
        SetDigest {
            count: self.count.wrapping_add(other.count),
            sum: self.sum.wrapping_add(other.sum),
            squares: self.squares.wrapping_add(other.squares),
        }
    }
}

impl Neg for SetDigest {
    type Output = SetDigest;

    #[inline]
    fn neg(self) -> SetDigest {
        self.times(u64::MAX)
    }
}

impl Sub for SetDigest {
    type Output = SetDigest;

    #[inline]
    fn sub(self, other: SetDigest) -> SetDigest {
        self + -other
    }
}

impl AddAssign for SetDigest {
    #[inline]
    fn add_assign(&mut self, other: SetDigest) {
        *self = *self + other;
    }
}

impl SubAssign for SetDigest {
    #[inline]
    fn sub_assign(&mut self, other: SetDigest) {
        *self = *self - other;
    }
}

impl std::fmt::Display for SetDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.count as i64)?;
        match (self.sum, self.squares) {
            (0, 0) => Ok(()),
            (sum, squares) => write!(f, " (sum {:#x}, of squares {squares:#x})", sum as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn slow(numbers: impl Iterator<Item = u64>) -> SetDigest {
        numbers.fold(SetDigest::NOTHING, |digest, number| digest + SetDigest::of(number))
    }

    #[test]
    fn runs_bits_and_moves_are_as_number_by_number() {
        for seed in 0..200 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let (first, count) = (rng.random_range(0..1u64 << 47), rng.random_range(0..1000));
            assert_eq!(SetDigest::of_run(first, count), slow(first..first + u64::from(count)), "seed {seed}");
            let (some, others) = (rng.random::<u64>(), rng.random::<u64>());
            let bits = [some & others, some, some | others, some | 1 << 63, 0, u64::MAX][seed as usize % 6];
            let numbers = || (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit);
            assert_eq!(SetDigest::of_bits(first, bits), slow(numbers()), "seed {seed}");
            let by = rng.random();
            let moved = slow(numbers().map(|number| number.wrapping_add(by)));
            assert_eq!(slow(numbers()).moved(by), moved, "seed {seed}");
            assert_eq!(slow(numbers()).times(3) - slow(numbers()).times(2), slow(numbers()), "seed {seed}");
        }
        assert_eq!(SetDigest::of_run(5, 0), SetDigest::NOTHING);
        assert_eq!(SetDigest::of_nonzero([0, 7, 0, u64::MAX]), SetDigest::of(7) + SetDigest::of(u64::MAX));
    }

    #[test]
    fn one_number_that_is_missing_or_too_many_is_named() {
        for number in [0, 1, 77, u64::MAX] {
            assert_eq!(SetDigest::of(number).only(), Some(number));
            assert_eq!((-SetDigest::of(number)).only(), Some(number));
        }
        assert_eq!((SetDigest::of(1) + SetDigest::of(2)).only(), None);
        assert_eq!((SetDigest::of(1) + SetDigest::of(5) - SetDigest::of(3)).only(), None);
    }

    #[test]
    fn sets_that_differ_in_up_to_two_numbers_have_other_digests() {
        let pairs: Vec<(u64, u64)> = (0..24).flat_map(|a| (a..24).map(move |b| (a, b))).collect();
        let digests: std::collections::HashSet<(u64, u64, u64)> = pairs
            .iter()
            .map(|&(a, b)| SetDigest::of(a) + SetDigest::of(b))
            .map(|digest| (digest.count, digest.sum, digest.squares))
            .collect();
        assert_eq!(digests.len(), pairs.len());
    }
}
