//! Changes of the CRC-64 by carry-less multiplication, and the tally in vectors, chosen at run time; and what blocks that were folded come to.
//!
//! The `unsafe` here is vector loads and stores, and the calls of functions that need a CPU feature. Every function that needs none itself returns
//! `None` where the CPU has not both PCLMULQDQ and AVX2; the callers then use the portable code. The tests in `tests.rs` hold each against it.
//!
//! Numbers are in the CRC's reflected order: the lowest bit has the highest power.

use std::arch::x86_64::*;
use std::ops::Range;

use super::tally::{self, LANES, WEIGHTS, Weights};
use super::{CRC64_OF_ZEROS, Delta, Keys, ROLLING_BLOCK, WORDS, each_word};
use crate::crc::{CRC32C_OF_ZEROS, POLY};

/// The polynomial without x^0, its 65 bits moved up by none: x^64 at bit 0.
const POLY_TOP: u64 = POLY << 1 | 1;

/// x^128 divided by the polynomial, without the remainder and without x^0: x^64 at bit 0 (Barrett's constant).
const QUOTIENT_TOP: u64 = {
    let poly = POLY.reverse_bits();
    // x^128 − x^64 · polynomial is left after the first step of the long division.
    let (mut rest, mut quotient, mut bit) = (poly, 0u64, 64);
    while bit > 0 {
        bit -= 1;
        let top = rest >> 63;
        quotient |= top << bit;
        rest = (rest << 1) ^ (poly & 0u64.wrapping_sub(top));
    }
    quotient.reverse_bits() << 1 | 1
};

/// Whether the CPU has what the code here needs.
#[inline]
pub(super) fn has() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx2")
}

#[inline]
pub(super) fn tally(block: &[u8; ROLLING_BLOCK]) -> Option<u32> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { tally_avx2(block) })
}

#[inline]
pub(super) fn delta(keys: &Keys, at: usize, old: &[u8], new: &[u8]) -> Option<Delta> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { delta_clmul(keys, at, old, new) })
}

#[inline]
pub(super) fn delta_slot(keys: &Keys, slot: usize, old: &[u8; 64], new: &[u8; 64]) -> Option<Delta> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { delta_slot_clmul(keys, slot, old, new) })
}

#[inline]
pub(super) fn change(keys: &Keys, at: usize, old: &[u8], new: &[u8]) -> Option<u64> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { change_clmul(keys, at, old, new) })
}

#[inline]
pub(super) fn change_word(keys: &Keys, word: usize, flipped: u64) -> Option<u64> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { change_word_clmul(keys, word, flipped) })
}

#[inline]
pub(super) fn change_slot(keys: &Keys, slot: usize, old: &[u8; 64], new: &[u8; 64]) -> Option<u64> {
    // SAFETY: the features were detected.
    has().then(|| unsafe { change_slot_clmul(keys, slot, old, new) })
}

#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
fn number(value: u64) -> __m128i {
    _mm_cvtsi64_si128(value as i64)
}

/// The carry-less product of two numbers of 64 bits.
#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
fn product(a: u64, b: u64) -> __m128i {
    _mm_clmulepi64_si128::<0>(number(a), number(b))
}

/// A number of 128 bits, bit 127 being x^0, modulo the polynomial (Barrett's reduction).
#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
pub(super) fn reduce(wide: __m128i) -> u64 {
    // What is above x^63, divided by the polynomial: its powers below x^0 drop out above bit 63.
    let quotient = _mm_clmulepi64_si128::<0>(wide, number(QUOTIENT_TOP));
    // That times the polynomial, of which x^0 is missing in POLY_TOP: the quotient itself.
    let multiple = _mm_clmulepi64_si128::<0>(quotient, number(POLY_TOP));
    let upper = |v: __m128i| _mm_cvtsi128_si64(_mm_unpackhi_epi64(v, v)) as u64;
    upper(_mm_xor_si128(wide, multiple)) ^ _mm_cvtsi128_si64(quotient) as u64
}

/// The CRC-64 of a block from what it has been folded into: 128 bits that are the same as the block times x^64.
#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
pub(super) fn crc64_of_folded(folded: __m128i) -> u64 {
    CRC64_OF_ZEROS ^ reduce(folded)
}

/// The CRC-32C of a block from what it has been folded into by the keys of its polynomial times x^32, a multiple of x^32. Divided by that it is the
/// first word times x^32, which the processor has an instruction to take modulo the polynomial, and the upper powers of the second one, its lower bits.
#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
pub(super) fn crc32c_of_folded(folded: __m128i) -> u32 {
    let first = _mm_crc32_u64(0, _mm_cvtsi128_si64(folded) as u64) as u32;
    CRC32C_OF_ZEROS ^ first ^ _mm_extract_epi32::<2>(folded) as u32
}

/// The front of a block, whose CRC-32C is taken by the processor's instruction for it while the rest is folded: that does eight bytes a cycle, but the
/// next ones of the same sum two cycles later, so that there are four streams of `STREAM` words, one behind the other.
pub(super) struct Crc32cOfFront<'a, const STREAM: usize> {
    words: &'a [[u8; 8]; WORDS],
    sums: [u64; 4],
}

impl<'a, const STREAM: usize> Crc32cOfFront<'a, STREAM> {
    #[inline]
    pub(super) fn new(block: &'a [u8; ROLLING_BLOCK]) -> Self {
        const { assert!(4 * STREAM < WORDS) };
        let (words, _) = block.as_chunks::<8>();
        Crc32cOfFront { words: words.try_into().expect("a block is so many words"), sums: [0; 4] }
    }

    /// Appends these words of each stream to it.
    #[target_feature(enable = "sse4.2")]
    #[inline]
    pub(super) fn add(&mut self, words: Range<usize>) {
        for at in words {
            for (stream, sum) in self.sums.iter_mut().enumerate() {
                *sum = _mm_crc32_u64(*sum, u64::from_le_bytes(self.words[(stream * STREAM + at) % WORDS]));
            }
        }
    }

    /// The same as the front, as [`crc32c_of_folded`] has it: the sum of a stream stands for it where the first bytes behind it are.
    #[target_feature(enable = "pclmulqdq,avx2")]
    #[inline]
    pub(super) fn folded(&self, keys: &Keys) -> __m128i {
        (1..)
            .zip(self.sums)
            .fold(_mm_setzero_si128(), |wide, (stream, sum)| _mm_xor_si128(wide, product(keys[stream * STREAM], sum)))
    }
}

#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
fn change_word_clmul(keys: &Keys, word: usize, flipped: u64) -> u64 {
    reduce(product(keys[word], flipped))
}

#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
fn change_clmul(keys: &Keys, at: usize, old: &[u8], new: &[u8]) -> u64 {
    let mut wide = _mm_setzero_si128();
    each_word(at, old, new, |word, old, new| wide = _mm_xor_si128(wide, product(keys[word], old ^ new)));
    reduce(wide)
}

#[target_feature(enable = "pclmulqdq,avx2")]
#[inline]
fn change_slot_clmul(keys: &Keys, slot: usize, old: &[u8; 64], new: &[u8; 64]) -> u64 {
    let keys = &keys.as_chunks::<8>().0[slot];
    let (old, new) = (old.as_chunks::<8>().0, new.as_chunks::<8>().0);
    let mut wide = _mm_setzero_si128();
    for word in 0..8 {
        let flipped = u64::from_le_bytes(old[word]) ^ u64::from_le_bytes(new[word]);
        wide = _mm_xor_si128(wide, product(keys[word], flipped));
    }
    reduce(wide)
}

#[target_feature(enable = "pclmulqdq,avx2")]
fn delta_clmul(keys: &Keys, at: usize, old: &[u8], new: &[u8]) -> Delta {
    Delta { crc64: change_clmul(keys, at, old, new), tally: tally::change(&WEIGHTS, at, old, new) }
}

#[target_feature(enable = "pclmulqdq,avx2")]
fn delta_slot_clmul(keys: &Keys, slot: usize, old: &[u8; 64], new: &[u8; 64]) -> Delta {
    Delta { crc64: change_slot_clmul(keys, slot, old, new), tally: tally_change_slot_avx2(&WEIGHTS, slot, old, new) }
}

/// Eight lanes of 32 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn lanes(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: `bytes` is 32 readable bytes, and the load has no demand on alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Values of eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn values(lanes: __m256i) -> [u32; 8] {
    let mut values = [0; 8];
    // SAFETY: `values` is 32 writable bytes, and the store has no demand on alignment.
    unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), lanes) };
    values
}

#[target_feature(enable = "avx2")]
fn tally_avx2(block: &[u8; ROLLING_BLOCK]) -> u32 {
    let zero = _mm256_setzero_si256();
    let (mut a, mut b) = ([zero; 2], [zero; 2]);
    for row in block.as_chunks::<32>().0.as_chunks::<2>().0 {
        for half in 0..2 {
            a[half] = _mm256_add_epi32(a[half], lanes(&row[half]));
            b[half] = _mm256_add_epi32(b[half], a[half]);
        }
    }
    let joined = |halves: [__m256i; 2]| {
        let mut lanes = [0; LANES];
        let (low, high) = lanes.split_at_mut(8);
        low.copy_from_slice(&values(halves[0]));
        high.copy_from_slice(&values(halves[1]));
        lanes
    };
    tally::of_lanes(&joined(a), &joined(b))
}

#[target_feature(enable = "avx2")]
#[inline]
fn tally_change_slot_avx2(weights: &Weights, slot: usize, old: &[u8; 64], new: &[u8; 64]) -> u32 {
    let halves = weights[slot].as_chunks::<8>().0.iter().zip(old.as_chunks::<32>().0).zip(new.as_chunks::<32>().0);
    let mut sum = _mm256_setzero_si256();
    for ((weights, old), new) in halves {
        // SAFETY: `weights` is 32 readable bytes, and the load has no demand on alignment.
        let weights = unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) };
        let difference = _mm256_sub_epi32(lanes(new), lanes(old));
        sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(weights, difference));
    }
    // The lanes added up: of eight four, of four two, of two one.
    let four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    (_mm_cvtsi128_si64(two) as u32).wrapping_add((_mm_cvtsi128_si64(two) >> 32) as u32)
}
