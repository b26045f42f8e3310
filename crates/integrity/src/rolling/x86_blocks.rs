//! The CRCs of whole pages by carry-less multiplication in vectors of 64 bytes, chosen at run time.
//!
//! The `unsafe` here is vector loads and stores, and the calls of functions that need a CPU feature. Where the CPU has not VPCLMULQDQ and AVX-512,
//! nothing is done and the functions say so. The tests in `tests.rs` hold each against the portable code.

use std::arch::x86_64::*;

use super::x86::{Crc32cOfFront, crc32c_of_folded, crc64_of_folded, has};
use super::{Keys, ROLLING_BLOCK, WORDS};
use crate::simd::{prefetch_ahead_of, prefetch_row};

type Block = [u8; ROLLING_BLOCK];

/// Rows of 64 bytes that are in the CRC's vectors at a time, of all blocks together: as many as it takes for multiplications not to wait for each
/// other.
const FOLDED_ROWS: usize = 8;
/// For a CRC-32C, of which the front of a block is taken by the processor's instruction for it: rows of that front, rows at a time, and words of each of
/// its streams beside so many. On AMD's processors both parts take as long; on Intel's, which multiply twice as fast, no longer than multiplications alone.
const FRONT_ROWS: usize = 16;
const ROWS_BESIDE: usize = 6;
const WORDS_BESIDE: usize = 4;

/// Whether the CPU has what the code here needs.
#[inline]
pub(super) fn has_vectors() -> bool {
    is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512f") && has()
}

/// The CRC-64 of a block.
#[inline]
pub(super) fn crc64(keys: &Keys, block: &Block) -> Option<u64> {
    // SAFETY: the features were detected.
    has_vectors().then(|| unsafe { crc64_avx512(keys, block) })
}

/// The CRC-64s of two blocks, side by side, while the two that are summed next are asked for.
///
/// # Panics
/// If not [`has_vectors`].
#[inline]
pub(super) fn crc64_of_two(keys: &Keys, blocks: &[&Block; 2], next: Option<&[&Block; 2]>) -> [u64; 2] {
    assert!(has_vectors());
    match next {
        // SAFETY: the features were detected.
        Some(next) => unsafe { two_avx512(keys, blocks, |row| next.iter().for_each(|next| prefetch_row(next, row))) },
        // SAFETY: as above.
        None => unsafe { two_avx512(keys, blocks, |_| {}) },
    }
}

/// The CRC-32C of a block.
#[inline]
pub(super) fn crc32c(keys: &Keys, block: &Block) -> Option<u32> {
    // SAFETY: the features were detected.
    has_vectors().then(|| unsafe {
        ask_for_own(block, ROWS_BESIDE);
        crc32c_avx512(keys, block, |_| {})
    })
}

/// The same while `ahead`, which is summed soon after it, is asked for.
///
/// # Panics
/// If not [`has_vectors`].
#[inline]
pub(super) fn crc32c_asking(keys: &Keys, block: &Block, ahead: Option<&Block>) -> u32 {
    assert!(has_vectors());
    match ahead {
        // SAFETY: the features were detected.
        Some(ahead) => unsafe { crc32c_avx512(keys, block, |row| prefetch_row(ahead, row)) },
        // SAFETY: as above.
        None => unsafe { crc32c_avx512(keys, block, |_| {}) },
    }
}

/// Copies a block, and gives the CRC-64 of what was read of it; if the block behind it in memory comes next (`is_followed`), that is asked for on the way.
#[inline]
pub(super) fn copied(keys: &Keys, from: &Block, to: &mut Block, is_followed: bool) -> Option<u64> {
    has_vectors().then(|| {
        if is_followed {
            // SAFETY: the features were detected.
            unsafe { copied_avx512::<true>(keys, from, to) }
        } else {
            // SAFETY: the features were detected.
            unsafe { copied_avx512::<false>(keys, from, to) }
        }
    })
}

/// Asks for all of a block that is summed alone, but for the rows that are read at once: multiplications that wait for the first rows from memory fill the
/// processor, and it comes to no others meanwhile. On a Zen 5 a CRC-64 from memory takes 205 to 237 ns with this and 263 to 290 without, and up to 5 more from the second cache.
#[inline]
fn ask_for_own(block: &Block, rows_at_once: usize) {
    (rows_at_once..ROLLING_BLOCK / 64).for_each(|row| prefetch_row(block, row));
}

#[target_feature(enable = "vpclmulqdq,avx512f,pclmulqdq,avx2")]
fn crc64_avx512(keys: &Keys, block: &Block) -> u64 {
    ask_for_own(block, FOLDED_ROWS);
    let [folded] = folded_avx512::<1, FOLDED_ROWS, 0>(keys, &[block], |_, _| {}, |_| {});
    crc64_of_folded(folded)
}

#[target_feature(enable = "vpclmulqdq,avx512f,pclmulqdq,avx2")]
fn two_avx512(keys: &Keys, blocks: &[&Block; 2], ask: impl Fn(usize)) -> [u64; 2] {
    const ROWS: usize = FOLDED_ROWS / 2;
    let ask = |group| (ROWS * group..ROWS * (group + 1)).for_each(&ask);
    folded_avx512::<2, ROWS, 0>(keys, blocks, |_, _| {}, ask).map(|folded| crc64_of_folded(folded))
}

#[target_feature(enable = "vpclmulqdq,avx512f,pclmulqdq,avx2")]
#[inline]
fn crc32c_avx512(keys: &Keys, block: &Block, ask: impl Fn(usize)) -> u32 {
    /// As often as words are added.
    const ASKED: usize = ROLLING_BLOCK / 64 / ((ROLLING_BLOCK / 64 - FRONT_ROWS) / ROWS_BESIDE);
    let mut front = Crc32cOfFront::<{ 2 * FRONT_ROWS }>::new(block);
    let [folded] = folded_avx512::<1, ROWS_BESIDE, FRONT_ROWS>(
        keys,
        &[block],
        |_, _| {},
        |group| {
            (ASKED * group..ASKED * (group + 1)).for_each(&ask);
            front.add(WORDS_BESIDE * group..WORDS_BESIDE * (group + 1));
        },
    );
    crc32c_of_folded(_mm_xor_si128(folded, front.folded(keys)))
}

#[target_feature(enable = "vpclmulqdq,avx512f,pclmulqdq,avx2")]
fn copied_avx512<const ASKS: bool>(keys: &Keys, from: &Block, to: &mut Block) -> u64 {
    let to = to.as_chunks_mut::<64>().0;
    let store = |at: usize, row| {
        if ASKS {
            prefetch_ahead_of(from.as_chunks::<64>().0[at].as_ptr());
        }
        // SAFETY: a row of `to` is 64 writable bytes, and the store has no demand on alignment.
        unsafe { _mm512_storeu_si512(to[at].as_mut_ptr().cast(), row) }
    };
    let [folded] = folded_avx512::<1, FOLDED_ROWS, 0>(keys, &[from], store, |_| {});
    crc64_of_folded(folded)
}

/// What the CRCs of `N` blocks follow from, as in [`super::x86_narrow`]; they are read side by side, `ROWS` rows of 64 bytes of each at a time;
/// `see` gets each row, with its number, while multiplications are on their way, and `beside` the number of each `ROWS` rows that are. What lies before
/// row `FIRST` is left out. The CRC is folded: what a vector stands for moves on by the
/// vectors' rows, and the row that lies there is added, until only the last rows are left; these are multiplied by their keys, as changes are.
#[target_feature(enable = "vpclmulqdq,avx512f,pclmulqdq,avx2")]
#[inline]
fn folded_avx512<const N: usize, const ROWS: usize, const FIRST: usize>(
    keys: &Keys,
    blocks: &[&Block; N],
    mut see: impl FnMut(usize, __m512i),
    mut beside: impl FnMut(usize),
) -> [__m128i; N] {
    const { assert!((ROLLING_BLOCK / 64 - FIRST).is_multiple_of(ROWS)) };
    let mut read = |block: &Block, at: usize| {
        // SAFETY: a row of `block` is 64 readable bytes, and the load has no demand on alignment.
        let row = unsafe { _mm512_loadu_si512(block.as_chunks::<64>().0[at].as_ptr().cast()) };
        see(at, row);
        row
    };
    // Lanes of 128 bits, the first word of each a power of x^64 above the second. Key i is that of word i: x^(64 · (512 − i) − 1).
    let last = WORDS - 8 * ROWS;
    let onward = _mm512_broadcast_i32x4(_mm_set_epi64x(keys[last] as i64, keys[last - 1] as i64));
    let zero = _mm512_setzero_si512();
    let mut folded = [[zero; ROWS]; N];
    // The first rows are where they begin: nothing is multiplied.
    for (block, folded) in blocks.iter().zip(&mut folded) {
        for (of, folded) in folded.iter_mut().enumerate() {
            *folded = read(block, FIRST + of);
        }
    }
    beside(0);
    for (group, at) in (FIRST + ROWS..ROLLING_BLOCK / 64).step_by(ROWS).enumerate() {
        beside(group + 1);
        for (block, folded) in blocks.iter().zip(&mut folded) {
            for (of, folded) in folded.iter_mut().enumerate() {
                *folded = multiplied(*folded, onward, read(block, at + of));
            }
        }
    }
    folded.map(|folded| {
        let mut wide = zero;
        for (folded, keys) in folded.iter().zip(keys[last..].as_chunks::<8>().0) {
            // SAFETY: `keys` is 64 readable bytes, and the load has no demand on alignment.
            wide = multiplied(*folded, unsafe { _mm512_loadu_si512(keys.as_ptr().cast()) }, wide);
        }
        let wide = _mm256_xor_si256(_mm512_castsi512_si256(wide), _mm512_extracti64x4_epi64::<1>(wide));
        _mm_xor_si128(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide))
    })
}

/// Each word by its key, the two of a lane added up, and `more`.
#[target_feature(enable = "vpclmulqdq,avx512f")]
#[inline]
fn multiplied(words: __m512i, keys: __m512i, more: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(words, keys);
    let second = _mm512_clmulepi64_epi128::<0x11>(words, keys);
    // The xor of three.
    _mm512_ternarylogic_epi64::<0x96>(first, second, more)
}
