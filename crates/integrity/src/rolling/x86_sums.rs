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
use super::x86::{has, reduce};
use super::{CRC64_OF_ZEROS, Keys, ROLLING_BLOCK, WORDS};

type Block = [u8; ROLLING_BLOCK];

/// Bytes in a vector.
const ROW: usize = 32;
/// Rows that are in the CRC's vectors at a time: as many as it takes for multiplications not to wait for each other.
const FOLDED_ROWS: usize = 8;
/// The first of the words in the last of these rows, which are multiplied by keys of their own.
pub(super) const LAST: usize = WORDS - ROW / 8 * FOLDED_ROWS;

/// The CRC-64 of a block, and its tally.
#[inline]
pub(super) fn sums(keys: &Keys, block: &Block) -> Option<(u64, u32)> {
    let has = is_x86_feature_detected!("vpclmulqdq") && has();
    // SAFETY: the features were detected.
    has.then(|| unsafe { both(keys, block) })
}

/// As [`super::x86_blocks`] folds, and each row counted while multiplications are on their way.
#[target_feature(enable = "vpclmulqdq,pclmulqdq,avx2")]
fn both(keys: &Keys, block: &Block) -> (u64, u32) {
    let zero = _mm256_setzero_si256();
    // Of the tally's lanes, those of even rows, and those of odd ones.
    let (mut a, mut b) = ([zero; 2], [zero; 2]);
    let mut read = |at: usize| {
        // SAFETY: a row of `block` is 32 readable bytes, and the load has no demand on alignment.
        let row = unsafe { _mm256_loadu_si256(block.as_chunks::<ROW>().0[at].as_ptr().cast()) };
        a[at % 2] = _mm256_add_epi32(a[at % 2], row);
        b[at % 2] = _mm256_add_epi32(b[at % 2], a[at % 2]);
        row
    };
    // Lanes of 128 bits, the first word of each a power of x^64 above the second. Key i is that of word i: x^(64 · (512 − i) − 1).
    let onward = _mm256_broadcastsi128_si256(_mm_set_epi64x(keys[LAST] as i64, keys[LAST - 1] as i64));
    let mut folded = [zero; FOLDED_ROWS];
    // The first rows are where they begin: nothing is multiplied.
    for (at, folded) in folded.iter_mut().enumerate() {
        *folded = read(at);
    }
    for first in (FOLDED_ROWS..ROLLING_BLOCK / ROW).step_by(FOLDED_ROWS) {
        for (of, folded) in folded.iter_mut().enumerate() {
            *folded = multiplied(*folded, onward, read(first + of));
        }
    }
    let mut wide = zero;
    for (folded, keys) in folded.iter().zip(keys[LAST..].as_chunks::<{ ROW / 8 }>().0) {
        // SAFETY: `keys` is 32 readable bytes, and the load has no demand on alignment.
        wide = multiplied(*folded, unsafe { _mm256_loadu_si256(keys.as_ptr().cast()) }, wide);
    }
    let crc64 =
        CRC64_OF_ZEROS ^ reduce(_mm_xor_si128(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide)));
    let lanes = _mm256_add_epi32(weighed(&tally::ALPHA, a), weighed(&tally::BETA, b));
    let fours = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let pairs = _mm_add_epi32(fours, _mm_shuffle_epi32::<0b01_00_11_10>(fours));
    let tally = _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs))) as u32;
    (crc64, tally)
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

/// Each word by its key, the two of a lane added up, and `more`.
#[target_feature(enable = "vpclmulqdq,avx2")]
#[inline]
fn multiplied(words: __m256i, keys: __m256i, more: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(words, keys);
    let second = _mm256_clmulepi64_epi128::<0x11>(words, keys);
    _mm256_xor_si256(_mm256_xor_si256(first, second), more)
}
