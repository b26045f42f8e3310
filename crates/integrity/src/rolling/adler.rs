//! Adler-32 and what it changes by: the checksum in the WAFL paper (§4.3, §4.4), and RFC 1950's.
//!
//! Over n bytes D₁ … Dₙ: A = 1 + ΣDᵢ and B = n + Σ(n + 1 − i)·Dᵢ, both modulo 65521; the checksum is A + 65536·B. Differences of bytes
//! are signed, and so is the modulus taken of them: the result is never negative (`rem_euclid`). In unsigned arithmetic
//! every change that makes a byte smaller and takes a sum below zero would come out wrong, as 2^32 is no multiple of 65521.

use super::ROLLING_BLOCK;

/// The largest prime below 2^16.
const MODULUS: i64 = 65521;

/// Bytes between reductions: as many as leave B below 2^32 (zlib's NMAX).
const PIECE: usize = 5552;

/// Adler-32 of a block of 4096 zeros.
pub const ADLER32_OF_ZEROS: u32 = 1 + ((ROLLING_BLOCK as u32) << 16);

/// Adler-32 of `bytes`.
pub fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for piece in bytes.chunks(PIECE) {
        for &byte in piece {
            a += u32::from(byte);
            b += a;
        }
        a %= MODULUS as u32;
        b %= MODULUS as u32;
    }
    a | b << 16
}

/// What the Adler-32 of `len` bytes changes by when those from `at` on become `new` instead of `old`: the paper's *Adler32Incr* of a
/// fragment that was 0, to be taken into a checksum or another fragment by [`adler32_add_delta`].
///
/// # Panics
/// If `old` and `new` differ in length, or do not lie within `len` bytes.
pub fn adler32_change(len: usize, at: usize, old: &[u8], new: &[u8]) -> u32 {
    assert_eq!(old.len(), new.len(), "a change does not move what follows");
    assert!(at <= len && old.len() <= len - at, "a change of {} bytes at {at} does not lie in {len} bytes", old.len());
    let (mut a, mut b) = (0i64, 0i64);
    for (piece, (old, new)) in old.chunks(PIECE).zip(new.chunks(PIECE)).enumerate() {
        // Of the piece's first byte, as places count from 0 here. Of the others one less each, which may go below zero.
        let mut weight = (len - at - piece * PIECE) as i64 % MODULUS;
        for (old, new) in old.iter().zip(new) {
            let difference = i64::from(*new) - i64::from(*old);
            a += difference;
            b += weight * difference;
            weight -= 1;
        }
        a = a.rem_euclid(MODULUS);
        b = b.rem_euclid(MODULUS);
    }
    a as u32 | (b as u32) << 16
}

/// A checksum and a delta, or two deltas, in one (the paper's *combine*; zlib's function of that name has the sum of two buffers).
pub fn adler32_add_delta(one: u32, other: u32) -> u32 {
    let sum = |x: u32, y: u32| (x + y) % MODULUS as u32;
    sum(one & 0xffff, other & 0xffff) | sum(one >> 16, other >> 16) << 16
}
