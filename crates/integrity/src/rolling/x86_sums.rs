//! Both sums of a block of metadata, by carry-less multiplication in vectors of 32 bytes, chosen at run time.
//!
//! Vectors of 64 bytes, as in [`super::x86_blocks`], take 65 ns instead of 86; but blocks of metadata are verified one by one, and a processor of
//! Intel's that has multiplied in vectors of 64 bytes runs slower for a while at whatever comes next
//! (docs/decisions/0023-narrow-vectors-for-metadata.md).
//!
//! The `unsafe` here is vector loads, and the call of a function that needs a CPU feature. Where the CPU has not VPCLMULQDQ and AVX2, nothing is done
//! and the function says so. The tests in `tests.rs` hold it against the portable code.

use std::arch::x86_64::*;

use super::tally::{self, LANES};
use super::x86::crc64_of_folded;
use super::x86_narrow::{FOLDED_ROWS, folded, has_vectors};
use super::{Keys, ROLLING_BLOCK};

type Block = [u8; ROLLING_BLOCK];

/// The CRC-64 of a block, and its tally.
#[inline]
pub(super) fn sums(keys: &Keys, block: &Block) -> Option<(u64, u32)> {
    // SAFETY: the features were detected.
    has_vectors().then(|| unsafe { both(keys, block) })
}

/// As the CRC is folded, each row is counted while multiplications are on their way.
#[target_feature(enable = "vpclmulqdq,pclmulqdq,avx2")]
fn both(keys: &Keys, block: &Block) -> (u64, u32) {
    let zero = _mm256_setzero_si256();
    // Of the tally's lanes, those of even rows, and those of odd ones.
    let (mut a, mut b) = ([zero; 2], [zero; 2]);
    let count = |at: usize, row| {
        a[at % 2] = _mm256_add_epi32(a[at % 2], row);
        b[at % 2] = _mm256_add_epi32(b[at % 2], a[at % 2]);
    };
    let [folded] = folded::<1, FOLDED_ROWS, 0>(keys, &[block], count, |_| {});
    let lanes = _mm256_add_epi32(weighed(&tally::ALPHA, a), weighed(&tally::BETA, b));
    let fours = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let pairs = _mm_add_epi32(fours, _mm_shuffle_epi32::<0b01_00_11_10>(fours));
    let tally = _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs))) as u32;
    (crc64_of_folded(folded), tally)
}

/// Each lane's sum times its weight, in eight parts that are to be added up, as in `tally::of_lanes`.
#[target_feature(enable = "avx2")]
#[inline]
fn weighed(weights: &[u32; LANES], sums: [__m256i; 2]) -> __m256i {
    let [first, second] = [0, LANES / 2].map(|at| {
        // SAFETY: there are 8 weights, 32 readable bytes, from `at` on, and the load has no demand on alignment.
        unsafe { _mm256_loadu_si256(weights[at..at + LANES / 2].as_ptr().cast()) }
    });
    _mm256_add_epi32(_mm256_mullo_epi32(first, sums[0]), _mm256_mullo_epi32(second, sums[1]))
}
