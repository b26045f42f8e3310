//! The sums of Fletcher-256 in vectors.
//!
//! A word has two columns of 64 bits, each of which is summed modulo 2^64; what does not fit follows from the sums of the columns' upper 16 bits, of which
//! a vector of 32-bit lanes has those of two vectors. Sums of upper bits alone are less than the true ones by less than 2^64, so
//! that the two together tell them.
//!
//! Lane by lane a vector's words are streams of their own (stream k of K has the words k, K + k, 2K + k, …). Word i = jK + k of n = mK counts
//! n − i = K(m − j) − k times in B, so that B = Σₖ (K·bₖ − k·aₖ): never negative, for upper bits as for what is below.

use std::arch::x86_64::*;

use super::{load256, load512};
use crate::PAGE_SIZE;

/// Fletcher-256 sums of a run of words, as sums of their columns of 64 bits (column c has weight 2^(64·c)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FletcherColumns {
    pub(crate) a: [u128; 2],
    pub(crate) b: [u128; 2],
}

/// The bits of a column below its upper 16.
const TOP: u32 = 48;
/// So many vectors of a block are added in each turn of the loop. With four a block in the second cache took 26 to 34 ns on a Zen 5 by where the loop
/// happened to lie in the program, with this 27 to 29; all 64 without a loop take 40.
const UNROLLED_ROWS: usize = 16;
/// Of two vectors the upper halves of their columns: lanes 1 and 3 of each.
const UPPER_HALVES: i32 = 0b11_01_11_01;

impl FletcherColumns {
    /// A and B from the sums of upper bits and of what is below them.
    #[inline]
    fn new(tops: [[u64; 2]; 2], rest: [[u64; 2]; 2]) -> FletcherColumns {
        let sum = |of: usize| [0, 1].map(|column| (u128::from(tops[of][column]) << TOP) + u128::from(rest[of][column]));
        FletcherColumns { a: sum(0), b: sum(1) }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn two(lanes: __m128i) -> [u64; 2] {
    [_mm_cvtsi128_si64(lanes) as u64, _mm_extract_epi64::<1>(lanes) as u64]
}

/// A run of vectors of 64 bytes: A and B of their columns modulo 2^64, of each pair's first vectors and of the second ones by themselves, as an
/// addition waits for the one before; and of upper bits, those of first vectors in lanes 0 and 1 of four, of second ones in 2 and 3.
#[derive(Clone, Copy)]
pub(super) struct Lanes512 {
    sums: [[__m512i; 2]; 2],
    tops: [__m512i; 2],
}

impl Lanes512 {
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero() -> Lanes512 {
        Lanes512 { sums: [[_mm512_setzero_si512(); 2]; 2], tops: [_mm512_setzero_si512(); 2] }
    }

    /// Appends two vectors, which lie one after the other.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn add(&mut self, pair: [__m512i; 2]) {
        for ([a, b], vector) in self.sums.iter_mut().zip(pair) {
            *a = _mm512_add_epi64(*a, vector);
            *b = _mm512_add_epi64(*b, *a);
        }
        let [one, two] = pair.map(|vector| _mm512_castsi512_ps(vector));
        let upper = _mm512_castps_si512(_mm512_shuffle_ps::<UPPER_HALVES>(one, two));
        self.tops[0] = _mm512_add_epi32(self.tops[0], _mm512_srli_epi32::<16>(upper));
        self.tops[1] = _mm512_add_epi32(self.tops[1], self.tops[0]);
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn columns(self) -> FletcherColumns {
        let zero = _mm512_setzero_si512();
        // A pair counts as often as pairs follow, which is half as often as vectors do, and its second vector once less than the first.
        let both = |[[a, b], [a_second, b_second]]: [[__m512i; 2]; 2]| {
            let b = _mm512_slli_epi64::<1>(_mm512_add_epi64(b, b_second));
            [_mm512_add_epi64(a, a_second), _mm512_sub_epi64(b, a_second)]
        };
        let [a, b] = both(self.sums);
        let first = self.tops.map(|tops| _mm512_unpacklo_epi32(tops, zero));
        let second = self.tops.map(|tops| _mm512_unpackhi_epi32(tops, zero));
        let [a_tops, b_tops] = both([first, second]);
        let without = |sums, tops| _mm512_sub_epi64(sums, _mm512_slli_epi64::<{ TOP }>(tops));
        let (a, b) = (without(a, a_tops), without(b, b_tops));
        // Stream k's sum k times: once where k is odd, twice where it is 2 or 3.
        let late =
            |v| _mm512_add_epi64(_mm512_maskz_mov_epi64(0b1100_1100, v), _mm512_maskz_slli_epi64::<1>(0b1111_0000, v));
        let joined = |a, b| _mm512_sub_epi64(_mm512_slli_epi64::<2>(b), late(a));
        let total = |v| {
            let half = _mm256_add_epi64(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
            two(_mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)))
        };
        FletcherColumns::new([total(a_tops), total(joined(a_tops, b_tops))], [total(a), total(joined(a, b))])
    }
}

#[target_feature(enable = "avx512f")]
pub(super) fn fletcher_block_avx512(block: &[u8; PAGE_SIZE]) -> FletcherColumns {
    let mut lanes = Lanes512::zero();
    for rows in block.as_chunks::<64>().0.as_chunks::<UNROLLED_ROWS>().0 {
        for [one, two] in rows.as_chunks::<2>().0 {
            lanes.add([load512(one), load512(two)]);
        }
    }
    lanes.columns()
}

#[target_feature(enable = "avx512f")]
pub(super) fn fletcher_avx512(words: &[[u8; 16]]) -> (usize, FletcherColumns) {
    let (pairs, _) = words.as_flattened().as_chunks::<64>().0.as_chunks::<2>();
    let mut lanes = Lanes512::zero();
    for [one, two] in pairs {
        lanes.add([load512(one), load512(two)]);
    }
    (pairs.len() * 8, lanes.columns())
}

/// The same with vectors of 32 bytes: intrinsics of each width have names of their own, and those that need a CPU feature cannot be safe methods of a
/// trait.
#[derive(Clone, Copy)]
pub(super) struct Lanes256 {
    sums: [[__m256i; 2]; 2],
    tops: [__m256i; 2],
}

impl Lanes256 {
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> Lanes256 {
        Lanes256 { sums: [[_mm256_setzero_si256(); 2]; 2], tops: [_mm256_setzero_si256(); 2] }
    }

    /// Appends two vectors, which lie one after the other.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn add(&mut self, pair: [__m256i; 2]) {
        for ([a, b], vector) in self.sums.iter_mut().zip(pair) {
            *a = _mm256_add_epi64(*a, vector);
            *b = _mm256_add_epi64(*b, *a);
        }
        let [one, two] = pair.map(|vector| _mm256_castsi256_ps(vector));
        let upper = _mm256_castps_si256(_mm256_shuffle_ps::<UPPER_HALVES>(one, two));
        self.tops[0] = _mm256_add_epi32(self.tops[0], _mm256_srli_epi32::<16>(upper));
        self.tops[1] = _mm256_add_epi32(self.tops[1], self.tops[0]);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn columns(self) -> FletcherColumns {
        let zero = _mm256_setzero_si256();
        // A pair counts as often as pairs follow, which is half as often as vectors do, and its second vector once less than the first.
        let both = |[[a, b], [a_second, b_second]]: [[__m256i; 2]; 2]| {
            let b = _mm256_slli_epi64::<1>(_mm256_add_epi64(b, b_second));
            [_mm256_add_epi64(a, a_second), _mm256_sub_epi64(b, a_second)]
        };
        let [a, b] = both(self.sums);
        let first = self.tops.map(|tops| _mm256_unpacklo_epi32(tops, zero));
        let second = self.tops.map(|tops| _mm256_unpackhi_epi32(tops, zero));
        let [a_tops, b_tops] = both([first, second]);
        let without = |sums, tops| _mm256_sub_epi64(sums, _mm256_slli_epi64::<{ TOP as i32 }>(tops));
        let (a, b) = (without(a, a_tops), without(b, b_tops));
        let late = |v| _mm256_blend_epi32::<0b1111_0000>(zero, v);
        let joined = |a, b| _mm256_sub_epi64(_mm256_slli_epi64::<1>(b), late(a));
        let total = |v| two(_mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)));
        FletcherColumns::new([total(a_tops), total(joined(a_tops, b_tops))], [total(a), total(joined(a, b))])
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn fletcher_avx2(words: &[[u8; 16]]) -> (usize, FletcherColumns) {
    let (pairs, _) = words.as_flattened().as_chunks::<32>().0.as_chunks::<2>();
    let mut lanes = Lanes256::zero();
    for [one, two] in pairs {
        lanes.add([load256(one), load256(two)]);
    }
    (pairs.len() * 4, lanes.columns())
}
