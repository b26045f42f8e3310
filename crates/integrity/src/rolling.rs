//! Rolling checksums: what a checksum of a 4 KiB block changes by when some of its bytes change.
//!
//! A block that is changed in place keeps its checksum right at the cost of the bytes changed, not of the block (*High-Performance
//! Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST 2017, §4.3). Whoever writes to the block by another
//! way leaves a difference between the rolling checksum and a fresh one that no later legal change takes away.
//!
//! Invariants, for every function here:
//!
//! - It sees the bytes changed and their place, never the block, so that bytes that are wrong elsewhere stay wrong.
//! - Its value is a *delta*. Deltas of changes to different bytes combine to that of all of them, in any order and however they are
//!   grouped (§4.4), so updaters may keep fragments of their own: by xor of CRC-64, by wrapping addition of the tally ([`Delta`]),
//!   with [`adler32_add_delta`] and [`fletcher256_add_delta`]. A checksum and a delta combine in the same way.
//! - A block of zeros has a checksum known beforehand: [`CRC64_OF_ZEROS`]; the tally of it is 0.
//!
//! # CRC-64
//!
//! The CRC is linear over GF(2). A change of the 64-bit word `i` of 512 by the bits `d` (old xor new) changes the CRC by
//! d · x^(64 · (512 − i)) modulo the polynomial: one carry-less multiplication with a constant per word (`KEYS`), and one reduction
//! for all words of a change. Without PCLMULQDQ it is the xor of the CRCs of old and new bytes times x^(8 · bytes behind them).
//!
//! Since the delta is of the changed bits alone, a seed xored onto the checksum ([`crate::identity_mix`]) goes through changes
//! untouched, and for the same reason does not tell when a change goes to the wrong block: contents and checksum of that block then agree.
//! Compare [`crate::identity_tag`] for that, at every change.
//!
//! # Tally
//!
//! A second sum, in the integers and not in GF(2), for what the CRC cannot see by construction: changes by a multiple of its
//! polynomial ([`crc64_neutral`]). Over the 1024 little-endian words u of 32 bits: Σ wᵢ · uᵢ modulo 2^32, with odd weights all
//! different. No change within one word goes unseen, and others with probability 2^-32; except that of top bits only the parity is seen,
//! and less than 32 bits of the next ones below. It is kept in memory only: not part of the disk format.
//!
//! # Speed
//!
//! `cargo run --release -p holdfast-integrity --example rolling_speed` measures it. On the development machine under load, ns, least and
//! median of 101 rounds, more than the store of the new bytes alone:
//!
//! | change | CRC-64 | CRC-64 and tally |
//! |---|---|---|
//! | 64-byte block pointer | 5.3 (median 5.6) | 8.3 (9.9) |
//! | 64-bit word | 5.6 (6.2) | 1.9 (2.0) |
//! | one bit | 6.3 (8.0) | 3.2 (3.5) |
//! | 20 bytes, unaligned | 12.7 (13.1) | 20.7 (22.8) |
//!
//! That both sums take less than one for a word came back in two of three runs; why is not known. Fresh over 4 KiB: CRC-64 87 (87), tally 35
//! (36), one after the other 112 (112), both in one pass ([`crc64_and_tally`]) 87 (87): what multiplications take, the tally hides behind them.
//! (On an Intel Xeon 86, and 65 in the wider vectors that slow down what comes next: docs/decisions/0023-narrow-vectors-for-metadata.md.)
//! A pointer with Adler-32 costs 55, with Fletcher-256 41.

mod adler;
mod bit_sum;
mod blocks;
mod fletcher;
mod tally;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_blocks;
#[cfg(target_arch = "x86_64")]
mod x86_narrow;
#[cfg(target_arch = "x86_64")]
mod x86_sums;

pub use adler::{ADLER32_OF_ZEROS, adler32, adler32_add_delta, adler32_change};
pub use bit_sum::BitSum;
pub(crate) use blocks::{crc32c_each, crc32c_of_block, crc64_each, crc64_of_block};
pub use blocks::{crc64_and_tally, crc64_copied, crc64_copied_of_followed};
pub use fletcher::{fletcher256_add_delta, fletcher256_change};
pub use tally::tally;

#[cfg(target_arch = "x86_64")]
use crate::crc::POLY_32C;
use crate::crc::{POLY, crc64, multiply};
use tally::WEIGHTS;

/// Length in bytes of a block with a rolling checksum.
pub const ROLLING_BLOCK: usize = 4096;

/// CRC-64/NVME of a block of zeros (published: NVM Express NVM Command Set Specification 1.0a, §5.2.1.3.5).
pub const CRC64_OF_ZEROS: u64 = 0x6482_D367_EB22_B64E;

/// 64-bit words of a block.
const WORDS: usize = ROLLING_BLOCK / 8;

/// One constant per word.
type Keys = [u64; WORDS];

/// `KEYS[i]` = x^(64 · (512 − i) − 1) modulo the polynomial. One power less than the word's: the carry-less product of two numbers in
/// reflected order has x^0 at bit 126 and not at 127, which multiplies by x.
static KEYS: Keys = keys(POLY);

/// The same for a CRC-32C, whose polynomial is taken times x^32, so that it has 64 bits as well.
#[cfg(target_arch = "x86_64")]
static KEYS_32C: Keys = keys(POLY_32C as u64);

const fn keys(poly: u64) -> Keys {
    let mut keys = [0; WORDS];
    // x^63: bit 63 is x^0.
    let mut key = 1;
    let mut word = WORDS;
    while word > 0 {
        word -= 1;
        keys[word] = key;
        // The polynomial without its leading term is x^64.
        key = multiply(poly, key, poly);
    }
    keys
}

/// What a change does to the checksum and the tally of a block.
///
/// ```
/// use holdfast_integrity::{CRC64_OF_ZEROS, Delta, crc64, tally};
///
/// let mut block = [0u8; 4096];
/// let (mut sum, mut tally_of_block) = (CRC64_OF_ZEROS, 0);
/// let first = Delta::of(1000, &block[1000..1003], b"abc");
/// let second = Delta::of_word(511, 0, 1 << 63);
/// first.combine(second).apply(&mut sum, &mut tally_of_block);
/// block[1000..1003].copy_from_slice(b"abc");
/// block[4095] = 0x80;
/// assert_eq!((sum, tally_of_block), (crc64(&block), tally(&block)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// To be xored onto the CRC-64.
    pub crc64: u64,
    /// To be added to the tally, modulo 2^32.
    pub tally: u32,
}

impl Delta {
    /// Of no change.
    pub const NONE: Delta = Delta { crc64: 0, tally: 0 };

    /// Of the bytes from `at` on, from `old` to `new`.
    ///
    /// # Panics
    /// If `old` and `new` differ in length, or do not lie within a block.
    #[inline]
    pub fn of(at: usize, old: &[u8], new: &[u8]) -> Delta {
        check(at, old, new);
        #[cfg(target_arch = "x86_64")]
        if let Some(delta) = x86::delta(&KEYS, at, old, new) {
            return delta;
        }
        Delta { crc64: change_portable(&KEYS, at, old, new), tally: tally::change(&WEIGHTS, at, old, new) }
    }

    /// Of the 64-bit little-endian word number `word` (0 to 511): a field, or a bit.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn of_word(word: usize, old: u64, new: u64) -> Delta {
        Delta { crc64: crc64_change_word(word, old ^ new), tally: tally::change_word(&WEIGHTS, word, old, new) }
    }

    /// Of the 64 bytes number `slot` (0 to 63): a block pointer.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub fn of_slot(slot: usize, old: &[u8; 64], new: &[u8; 64]) -> Delta {
        #[cfg(target_arch = "x86_64")]
        if let Some(delta) = x86::delta_slot(&KEYS, slot, old, new) {
            return delta;
        }
        Delta {
            crc64: change_portable(&KEYS, slot * 64, old, new),
            tally: tally::change(&WEIGHTS, slot * 64, old, new),
        }
    }

    /// Of both changes, which are of different bytes or follow one another.
    #[inline]
    #[must_use]
    pub fn combine(self, other: Delta) -> Delta {
        Delta { crc64: self.crc64 ^ other.crc64, tally: self.tally.wrapping_add(other.tally) }
    }

    /// Takes the change into a block's CRC-64 (seeded or not) and tally.
    #[inline]
    pub fn apply(self, crc64: &mut u64, tally: &mut u32) {
        *crc64 ^= self.crc64;
        *tally = tally.wrapping_add(self.tally);
    }
}

/// What the CRC-64 of a block changes by, to be xored onto it, when the bytes from `at` on become `new` instead of `old`.
///
/// # Panics
/// If `old` and `new` differ in length, or do not lie within a block.
#[inline]
pub fn crc64_change(at: usize, old: &[u8], new: &[u8]) -> u64 {
    check(at, old, new);
    #[cfg(target_arch = "x86_64")]
    if let Some(change) = x86::change(&KEYS, at, old, new) {
        return change;
    }
    change_portable(&KEYS, at, old, new)
}

/// As [`crc64_change`], for the bits `flipped` (old xor new) of the 64-bit little-endian word number `word` (0 to 511).
///
/// # Panics
/// If there is no such word.
#[inline]
pub fn crc64_change_word(word: usize, flipped: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(change) = x86::change_word(&KEYS, word, flipped) {
        return change;
    }
    change_word_portable(&KEYS, word, flipped)
}

/// As [`crc64_change`], for the 64 bytes number `slot` (0 to 63): a block pointer.
///
/// # Panics
/// If there is no such slot.
#[inline]
pub fn crc64_change_slot(slot: usize, old: &[u8; 64], new: &[u8; 64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(change) = x86::change_slot(&KEYS, slot, old, new) {
        return change;
    }
    change_portable(&KEYS, slot * 64, old, new)
}

/// Nine bytes to be xored onto a block from the given place on, which leave its CRC-64 as it is: the polynomial itself, its 65 bits
/// from bit number `bit` of the block on (bit 0 is the lowest of byte 0). `None` if they do not lie within the block.
///
/// For tests of what a CRC cannot see, whatever the contents.
pub fn crc64_neutral(bit: usize) -> Option<(usize, [u8; 9])> {
    if bit > ROLLING_BLOCK * 8 - 65 {
        return None;
    }
    let pattern = (1 | u128::from(POLY) << 1) << (bit % 8);
    let bytes = pattern.to_le_bytes();
    // The last place is bit 7 of byte 4087: nine bytes fit wherever 65 bits do.
    Some((bit / 8, std::array::from_fn(|i| bytes[i])))
}

/// Which bits of one 64-bit little-endian word, flipped by themselves, make CRC-64s differ by `difference` (one xor the other): of the last 8 bytes
/// that the CRCs are of, of the 8 before these, and so on: the words of what is whole words long. For finding out what has changed: a second sum tells which of them it is.
///
/// ```
/// use holdfast_integrity::{crc64, crc64_flips};
///
/// let (old, mut new) = ([7; 80], [7; 80]);
/// new[27] ^= 0x10;
/// let mut flips = crc64_flips(crc64(&old) ^ crc64(&new));
/// // Word 3 of 10.
/// assert_eq!(flips.nth(6), Some(0x10 << 24));
/// ```
pub fn crc64_flips(difference: u64) -> impl Iterator<Item = u64> {
    // Back through the 64 zeros that a word more has behind it. The highest bit of the polynomial is set.
    let before = |crc: u64| (0..64).fold(crc, |crc, _| if crc >> 63 == 1 { (crc ^ POLY) << 1 | 1 } else { crc << 1 });
    std::iter::successors(Some(before(difference)), move |flips| Some(before(*flips)))
}

/// That a change lies in a block.
#[inline]
fn check(at: usize, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len(), "a change does not move what follows");
    assert!(
        at <= ROLLING_BLOCK && old.len() <= ROLLING_BLOCK - at,
        "a change of {} bytes at {at} does not lie in a block of {ROLLING_BLOCK}",
        old.len()
    );
}

/// Calls `visit` with number, old and new value of every 64-bit word that the bytes from `at` on lie in. Bytes of the word that are
/// not of the change are zero in both.
#[inline(always)]
fn each_word(at: usize, old: &[u8], new: &[u8], mut visit: impl FnMut(usize, u64, u64)) {
    let (mut word, skip) = (at / 8, at % 8);
    if old.is_empty() {
        // There may be no word at `at`.
        return;
    }
    if old.len() < 8 {
        // In one word or two.
        let [old, new] = [old, new].map(|bytes| u128::from(short(bytes)) << (8 * skip));
        visit(word, old as u64, new as u64);
        if (old | new) >> 64 != 0 {
            visit(word + 1, (old >> 64) as u64, (new >> 64) as u64);
        }
        return;
    }
    // The ends overlap the words next to them, whose bytes the shifts push out.
    let (head, tail) = ((8 - skip) % 8, (at + old.len()) % 8);
    if head > 0 {
        let [old, new] = [old, new].map(|bytes| load(bytes, 0) << (8 * skip));
        visit(word, old, new);
        word += 1;
    }
    let (old_body, new_body) = (old[head..].as_chunks::<8>().0, new[head..].as_chunks::<8>().0);
    for (old, new) in old_body.iter().zip(new_body) {
        visit(word, u64::from_le_bytes(*old), u64::from_le_bytes(*new));
        word += 1;
    }
    if tail > 0 {
        let [old, new] = [old, new].map(|bytes| load(bytes, bytes.len() - 8) >> (64 - 8 * tail));
        visit(word, old, new);
    }
}

/// The 8 bytes from `at` on.
#[inline(always)]
fn load(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the change has a whole word"))
}

/// Less than 8 bytes.
#[inline(always)]
fn short(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // Both cover the bytes in the middle.
        (Some(low), Some(high)) => {
            u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << (8 * (length - 4))
        }
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// By the definition: the CRC is linear, and of equally long pieces initial value and final xor cancel out.
fn change_portable(keys: &Keys, at: usize, old: &[u8], new: &[u8]) -> u64 {
    let behind = ROLLING_BLOCK - at - old.len();
    let (words, bytes) = (behind / 8, behind % 8);
    let power = match words {
        0 => 1 << (63 - 8 * bytes),
        // x^(64 · words − 1) · x^(8 · bytes + 1); of no bytes at all there is nothing to shift.
        _ => multiply(keys[WORDS - words], 1 << (62 - 8 * bytes), POLY),
    };
    multiply(power, crc64(old) ^ crc64(new), POLY)
}

fn change_word_portable(keys: &Keys, word: usize, flipped: u64) -> u64 {
    multiply(multiply(keys[word], 1 << 62, POLY), flipped, POLY)
}

#[cfg(test)]
mod tests;
