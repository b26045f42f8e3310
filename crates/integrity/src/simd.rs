//! xor64 and the column sums of Fletcher-256 with AVX-512 and AVX2, chosen at run time.
//!
//! The `unsafe` of this crate is here, in `simd/fletcher.rs` and `simd/xxh3.rs`, in `rolling/x86*.rs` and in `set_digest/slots.rs`: vector loads and stores, prefetches, and the calls of functions that
//! need a CPU feature. Every function here returns `None` where neither feature is there; the callers then use the portable code. The tests in
//! `simd_tests.rs` hold each against it.

use crate::PAGE_SIZE;
use crate::page::AHEAD;
use std::arch::x86_64::*;

mod fletcher;
mod xxh3;

pub(crate) use fletcher::FletcherColumns;
use fletcher::{Lanes256, Lanes512, fletcher_avx2, fletcher_avx512, fletcher_block_avx512};

/// Below this many bytes the portable code is as fast.
const SHORT: usize = 128;

/// See [`crate::prefetch`].
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: needs SSE, which every x86-64 has; and is a hint, which reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// Asks for what lies [`AHEAD`] of this place, into the first cache.
#[inline]
pub(crate) fn prefetch_ahead_of(place: *const u8) {
    // SAFETY: needs SSE, which every x86-64 has; and is a hint, which reads nothing that the program sees, and fails nowhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD).cast()) };
}

/// Asks for row `at` of a page, 64 bytes, into the first cache.
#[inline]
pub(crate) fn prefetch_row(page: &[u8; PAGE_SIZE], at: usize) {
    // SAFETY: needs SSE, which every x86-64 has; and is a hint, which reads nothing that the program sees.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(page.as_chunks::<64>().0[at].as_ptr().cast()) };
}

/// Whether the CPU has vectors of 64 bytes.
#[inline]
pub(crate) fn has_wide() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// xor64 of `bytes`, or `None` if the CPU has no suitable unit or the input is short.
#[inline]
pub(crate) fn xor64(bytes: &[u8]) -> Option<u64> {
    if bytes.len() < SHORT {
        return None;
    }
    if has_wide() {
        // SAFETY: the feature was detected on the line above.
        return Some(unsafe { xor64_avx512(bytes) });
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected on the line above.
        return Some(unsafe { xor64_avx2(bytes) });
    }
    None
}

/// Column sums of the first words of `words` (the count is returned, a multiple of two vectors' words), or `None`.
///
/// `words` must not be longer than [`crate::sums::FLETCHER_SEGMENT`], so that no sum overflows.
#[inline]
pub(crate) fn fletcher_columns(words: &[[u8; 16]]) -> Option<(usize, FletcherColumns)> {
    debug_assert!(words.len() <= crate::sums::FLETCHER_SEGMENT);
    if words.len() * 16 < SHORT {
        return None;
    }
    if has_wide() {
        // SAFETY: the feature was detected on the line above.
        return Some(unsafe { fletcher_avx512(words) });
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected on the line above.
        return Some(unsafe { fletcher_avx2(words) });
    }
    None
}

/// Column sums of a block, or nothing, if the CPU has not AVX-512.
#[inline]
pub(crate) fn fletcher_of_block(block: &[u8; PAGE_SIZE]) -> Option<FletcherColumns> {
    // SAFETY: the feature was detected.
    has_wide().then(|| unsafe { fletcher_block_avx512(block) })
}

/// xor64 of a block, while `ahead`, which is summed soon after it, is asked for; or nothing, if the CPU has not AVX-512.
#[inline]
pub(crate) fn xor64_asking(block: &[u8; PAGE_SIZE], ahead: &[u8; PAGE_SIZE]) -> Option<u64> {
    // SAFETY: the feature was detected.
    has_wide().then(|| unsafe { xor64_asking_avx512(block, ahead) })
}

/// XXH3-64 of a block, while `ahead`, which is summed soon after it, is asked for; or nothing, if the CPU has not AVX-512.
#[inline]
pub(crate) fn xxh3(block: &[u8; PAGE_SIZE], ahead: Option<&[u8; PAGE_SIZE]>) -> Option<u64> {
    has_wide().then(|| match ahead {
        // SAFETY: the feature was detected.
        Some(ahead) => unsafe { xxh3::xxh3_avx512(block, |row| prefetch_row(ahead, row)) },
        // SAFETY: as above.
        None => unsafe { xxh3::xxh3_avx512(block, |_| {}) },
    })
}

/// So many blocks are summed side by side.
pub(crate) const ABREAST: usize = 8;
/// Rows of 64 bytes of each of these before it is the turn of the others.
const TURN: usize = 8;

/// xor64 of blocks side by side, or nothing, if the CPU has no suitable unit.
#[inline]
pub(crate) fn xor64_each(blocks: &[&[u8; PAGE_SIZE]; ABREAST]) -> Option<[u64; ABREAST]> {
    // SAFETY: the feature was detected.
    is_x86_feature_detected!("avx2").then(|| unsafe { xor64_each_avx2(blocks) })
}

/// Column sums and xor64 of two blocks, side by side, while the two that are summed next are asked for.
///
/// # Panics
/// If not [`has_wide`].
#[inline]
pub(crate) fn fletcher_and_xor64_of_two(
    blocks: &[&[u8; PAGE_SIZE]; 2],
    next: Option<&[&[u8; PAGE_SIZE]; 2]>,
) -> [(FletcherColumns, u64); 2] {
    assert!(has_wide());
    match next {
        // SAFETY: the feature was detected.
        Some(next) => unsafe { two_avx512(blocks, |row| next.iter().for_each(|next| prefetch_row(next, row))) },
        // SAFETY: as above.
        None => unsafe { two_avx512(blocks, |_| {}) },
    }
}

/// Column sums and xor64 of a block that is read once, or nothing, if the CPU has no suitable unit. If the block behind it in memory is summed next
/// (`is_followed`), that is asked for on the way where there is no AVX-512.
#[inline]
pub(crate) fn fletcher_and_xor64(block: &[u8; PAGE_SIZE], is_followed: bool) -> Option<(FletcherColumns, u64)> {
    if has_wide() {
        // SAFETY: the feature was detected on the line above.
        return Some(unsafe { fletcher_and_xor64_avx512(block) });
    }
    // SAFETY: the feature was detected.
    is_x86_feature_detected!("avx2").then(|| unsafe { fletcher_and_xor64_avx2(block, is_followed) })
}

/// The same of blocks side by side, where there is no AVX-512.
#[inline]
pub(crate) fn fletcher_and_xor64_each(
    blocks: &[&[u8; PAGE_SIZE]; ABREAST],
) -> Option<[(FletcherColumns, u64); ABREAST]> {
    // SAFETY: the feature was detected.
    is_x86_feature_detected!("avx2").then(|| unsafe { fletcher_and_xor64_each_avx2(blocks) })
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load512(chunk: &[u8; 64]) -> __m512i {
    // SAFETY: `chunk` is 64 readable bytes, and the load has no demand on alignment.
    unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load256(chunk: &[u8; 32]) -> __m256i {
    // SAFETY: `chunk` is 32 readable bytes, and the load has no demand on alignment.
    unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn lanes512(v: __m512i) -> [u64; 8] {
    let mut out = [0; 8];
    // SAFETY: `out` is 64 writable bytes, and the store has no demand on alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) };
    out
}

#[target_feature(enable = "avx2")]
#[inline]
fn lanes256(v: __m256i) -> [u64; 4] {
    let mut out = [0; 4];
    // SAFETY: `out` is 32 writable bytes, and the store has no demand on alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), v) };
    out
}

#[target_feature(enable = "avx512f")]
fn xor64_avx512(bytes: &[u8]) -> u64 {
    let (chunks, tail) = bytes.as_chunks::<64>();
    let (quads, rest) = chunks.as_chunks::<4>();
    let mut acc = [_mm512_setzero_si512(); 4];
    for quad in quads {
        for (sum, chunk) in acc.iter_mut().zip(quad) {
            *sum = _mm512_xor_si512(*sum, load512(chunk));
        }
    }
    for chunk in rest {
        acc[0] = _mm512_xor_si512(acc[0], load512(chunk));
    }
    let sum = _mm512_xor_si512(_mm512_xor_si512(acc[0], acc[1]), _mm512_xor_si512(acc[2], acc[3]));
    lanes512(sum).into_iter().fold(crate::sums::xor64_portable(tail), |x, y| x ^ y)
}

#[target_feature(enable = "avx512f")]
fn xor64_asking_avx512(block: &[u8; PAGE_SIZE], ahead: &[u8; PAGE_SIZE]) -> u64 {
    let mut sum = [_mm512_setzero_si512(); 2];
    for (at, [one, two]) in block.as_chunks::<64>().0.as_chunks::<2>().0.iter().enumerate() {
        prefetch_row(ahead, 2 * at);
        prefetch_row(ahead, 2 * at + 1);
        sum = [_mm512_xor_si512(sum[0], load512(one)), _mm512_xor_si512(sum[1], load512(two))];
    }
    lanes512(_mm512_xor_si512(sum[0], sum[1])).into_iter().fold(0, |x, y| x ^ y)
}

#[target_feature(enable = "avx2")]
fn xor64_avx2(bytes: &[u8]) -> u64 {
    let (chunks, tail) = bytes.as_chunks::<32>();
    let (quads, rest) = chunks.as_chunks::<4>();
    let mut acc = [_mm256_setzero_si256(); 4];
    for quad in quads {
        for (sum, chunk) in acc.iter_mut().zip(quad) {
            *sum = _mm256_xor_si256(*sum, load256(chunk));
        }
    }
    for chunk in rest {
        acc[0] = _mm256_xor_si256(acc[0], load256(chunk));
    }
    let sum = _mm256_xor_si256(_mm256_xor_si256(acc[0], acc[1]), _mm256_xor_si256(acc[2], acc[3]));
    lanes256(sum).into_iter().fold(crate::sums::xor64_portable(tail), |x, y| x ^ y)
}

#[target_feature(enable = "avx2")]
fn xor64_each_avx2(blocks: &[&[u8; PAGE_SIZE]; ABREAST]) -> [u64; ABREAST] {
    const TURN_BYTES: usize = 64 * TURN;
    let mut sums = [_mm256_setzero_si256(); ABREAST];
    for first in (0..PAGE_SIZE).step_by(TURN_BYTES) {
        for (block, sum) in blocks.iter().zip(&mut sums) {
            let mut other = _mm256_setzero_si256();
            for [one, two] in block[first..first + TURN_BYTES].as_chunks::<32>().0.as_chunks::<2>().0 {
                *sum = _mm256_xor_si256(*sum, load256(one));
                other = _mm256_xor_si256(other, load256(two));
            }
            *sum = _mm256_xor_si256(*sum, other);
        }
    }
    sums.map(|sum| lanes256(sum).into_iter().fold(0, |x, y| x ^ y))
}

/// What a block adds up to so far: Fletcher-256 and xor64.
type Both512 = (Lanes512, __m512i);

#[target_feature(enable = "avx512f")]
fn two_avx512(blocks: &[&[u8; PAGE_SIZE]; 2], ask: impl Fn(usize)) -> [(FletcherColumns, u64); 2] {
    let [one, two] = with_rows(blocks, ask);
    [of_lanes512(one), of_lanes512(two)]
}

#[target_feature(enable = "avx512f")]
fn fletcher_and_xor64_avx512(block: &[u8; PAGE_SIZE]) -> (FletcherColumns, u64) {
    let [sums] = with_rows(&[block], |_| {});
    of_lanes512(sums)
}

/// Sums blocks side by side; `ask` gets each row's number before it is read.
#[target_feature(enable = "avx512f")]
#[inline]
fn with_rows<const N: usize>(blocks: &[&[u8; PAGE_SIZE]; N], ask: impl Fn(usize)) -> [Both512; N] {
    let mut sums = [(Lanes512::zero(), _mm512_setzero_si512()); N];
    for at in (0..PAGE_SIZE / 64).step_by(2) {
        ask(at);
        ask(at + 1);
        for (block, (fletcher, xor)) in blocks.iter().zip(&mut sums) {
            let rows = block.as_chunks::<64>().0;
            let pair = [load512(&rows[at]), load512(&rows[at + 1])];
            fletcher.add(pair);
            *xor = _mm512_ternarylogic_epi64::<0x96>(*xor, pair[0], pair[1]);
        }
    }
    sums
}

#[target_feature(enable = "avx512f")]
#[inline]
fn of_lanes512((fletcher, xor): Both512) -> (FletcherColumns, u64) {
    (fletcher.columns(), lanes512(xor).into_iter().fold(0, |x, y| x ^ y))
}

/// The same with vectors of 32 bytes.
type Both256 = (Lanes256, __m256i);

/// One block's sums are in vectors at a time: of two there would be too few of the 16.
#[target_feature(enable = "avx2")]
fn fletcher_and_xor64_each_avx2(blocks: &[&[u8; PAGE_SIZE]; ABREAST]) -> [(FletcherColumns, u64); ABREAST] {
    const TURN_BYTES: usize = 64 * TURN;
    let mut sums = [(Lanes256::zero(), _mm256_setzero_si256()); ABREAST];
    for first in (0..PAGE_SIZE).step_by(TURN_BYTES) {
        for (block, sums) in blocks.iter().zip(&mut sums) {
            *sums = with_vectors::<false>(*sums, &block[first..first + TURN_BYTES]);
        }
    }
    sums.map(|sums| of_lanes256(sums))
}

#[target_feature(enable = "avx2")]
fn fletcher_and_xor64_avx2(block: &[u8; PAGE_SIZE], is_followed: bool) -> (FletcherColumns, u64) {
    let zero = (Lanes256::zero(), _mm256_setzero_si256());
    of_lanes256(if is_followed { with_vectors::<true>(zero, block) } else { with_vectors::<false>(zero, block) })
}

#[target_feature(enable = "avx2")]
#[inline]
fn with_vectors<const ASKS: bool>((mut fletcher, mut xor): Both256, bytes: &[u8]) -> Both256 {
    for [one, two] in bytes.as_chunks::<32>().0.as_chunks::<2>().0 {
        if ASKS {
            prefetch_ahead_of(one.as_ptr());
        }
        let pair = [load256(one), load256(two)];
        fletcher.add(pair);
        xor = _mm256_xor_si256(xor, _mm256_xor_si256(pair[0], pair[1]));
    }
    (fletcher, xor)
}

#[target_feature(enable = "avx2")]
fn of_lanes256((fletcher, xor): Both256) -> (FletcherColumns, u64) {
    (fletcher.columns(), lanes256(xor).into_iter().fold(0, |x, y| x ^ y))
}

#[cfg(test)]
#[path = "simd_tests.rs"]
mod tests;
