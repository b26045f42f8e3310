//! The two word-wise sums, xor64 and Fletcher-256: definition, portable code, and the choice of the fast code.

#[cfg(target_arch = "x86_64")]
use crate::page::{are_neighbours, ask_for_starts, by_twos, each_by_twos};
use crate::page::{each_in_turn, is_followed};
#[cfg(target_arch = "x86_64")]
use crate::simd;
use crate::{PAGE_SIZE, prefetch_ahead};

/// Exclusive or of all 64-bit little-endian words; an incomplete last word is filled up with zero bytes.
///
/// The memory checksum of Z²FS. Detects any odd number of flips per bit column, hence every single flip; two flips in
/// one column cancel, and so do trailing zero words: the length travels beside the checksum.
#[inline]
pub fn xor64(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(sum) = simd::xor64(bytes) {
        return sum;
    }
    xor64_portable(bytes)
}

pub(crate) fn xor64_portable(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let body = words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word));
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    body ^ u64::from_le_bytes(last)
}

/// XXH3-64 with its default secret: of a block by code of our own where the CPU has AVX-512, else by the library.
#[inline]
pub(crate) fn xxh3(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Ok(block) = bytes.try_into()
        && let Some(sum) = simd::xxh3(block, None)
    {
        return sum;
    }
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// The same of blocks that come from memory.
pub(crate) fn xxh3_each(blocks: &[&[u8; PAGE_SIZE]], sums: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    if simd::has_wide() {
        return each_by_twos(blocks, sums, |block, ahead| simd::xxh3(block, ahead).unwrap_or_else(|| xxh3(block)));
    }
    each_in_turn(blocks, sums, xxh3);
}

/// Fletcher-256: over the 128-bit little-endian words w₁ … wₙ, with M = 2^128 − 1,
///
/// - A = Σ wᵢ mod M,
/// - B = Σ (n + 1 − i) · wᵢ mod M, that is the sum of all intermediate values of A,
///
/// each reduced to 0 … M − 1. The result is A then B, 16 little-endian bytes each. An incomplete last word is filled
/// up with zero bytes.
///
/// The modulus is M and not 2^128, as in one's-complement addition with end-around carry: with 2^128 the carry out of
/// the top bit is lost, and two flips of top bits an even number of words apart go unseen (Hamming distance 2 instead
/// of 3). What remains: a word of all ones equals a word of all zeros, and up to 15 zero bytes that fill up the last
/// word are invisible, so the length travels beside the checksum.
#[inline]
pub fn fletcher256(bytes: &[u8]) -> [u8; 32] {
    // Of one block nothing is added to what went before, which is half of the time that its sums take in the cache.
    #[cfg(target_arch = "x86_64")]
    if let Ok(block) = bytes.try_into()
        && let Some(columns) = simd::fletcher_of_block(block)
    {
        return Fletcher::of_block(&columns);
    }
    let mut state = Fletcher::default();
    let (words, tail) = bytes.as_chunks::<16>();
    state.add_words(words);
    state.add_tail(tail);
    state.digest()
}

/// The xor64 of blocks that come from memory, each read once: with AVX-512 one after the other, while the next but one is asked for; else eight that lie
/// anywhere side by side, as what the processor fetches ahead by itself ends with each page, and then does so for eight of them.
pub(crate) fn xor64_each(blocks: &[&[u8; PAGE_SIZE]], sums: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    if simd::has_wide() {
        return each_by_twos(blocks, sums, |block, ahead| {
            ahead.and_then(|ahead| simd::xor64_asking(block, ahead)).unwrap_or_else(|| xor64(block))
        });
    }
    let mut first = 0;
    while first < blocks.len() {
        #[cfg(target_arch = "x86_64")]
        if let Some((some, next)) = blocks[first..].split_first_chunk::<{ simd::ABREAST }>()
            && !are_neighbours(some)
        {
            ask_for_starts(&next[..next.len().min(simd::ABREAST)]);
            if let Some(each) = simd::xor64_each(some) {
                sums[first..first + simd::ABREAST].copy_from_slice(&each);
                first += simd::ABREAST;
                continue;
            }
        }
        prefetch_ahead(first, |at| blocks.get(at).copied());
        sums[first] = xor64(blocks[first]);
        first += 1;
    }
}

/// Gives `take` the Fletcher-256 and the xor64 of each of the blocks, which come from memory and are read once: as [`crate::Algorithm::number_each`]
/// does it and for its reasons: with AVX-512 two at a time, while the next two are asked for; with AVX2 eight that lie anywhere side by side (0.33 µs a page on a Zen 3, 0.53 one
/// after the other).
///
/// ```
/// use holdfast_integrity::{fletcher256, fletcher256_and_xor64_each, xor64};
///
/// let block: [u8; 4096] = std::array::from_fn(|at| at as u8);
/// let mut sums = Vec::new();
/// fletcher256_and_xor64_each(&[&block; 9], |fletcher, xor| sums.push((fletcher, xor)));
/// assert_eq!(sums, [(fletcher256(&block), xor64(&block)); 9]);
/// ```
pub fn fletcher256_and_xor64_each(blocks: &[&[u8; PAGE_SIZE]], mut take: impl FnMut([u8; 32], u64)) {
    #[cfg(target_arch = "x86_64")]
    if simd::has_wide() {
        let left_over = by_twos(blocks, |_, two, next| {
            let sums = simd::fletcher_and_xor64_of_two(two, next);
            sums.iter().for_each(|(columns, xor)| take(Fletcher::of_block(columns), *xor));
        });
        if let Some(block) = left_over {
            let (fletcher, xor) = fletcher256_and_xor64(block, false);
            take(fletcher, xor);
        }
        return;
    }
    let mut first = 0;
    while let Some(rest) = blocks.get(first..).filter(|rest| !rest.is_empty()) {
        #[cfg(target_arch = "x86_64")]
        if let Some((some, next)) = rest.split_first_chunk::<{ simd::ABREAST }>()
            && !are_neighbours(some)
        {
            ask_for_starts(&next[..next.len().min(simd::ABREAST)]);
            if let Some(each) = simd::fletcher_and_xor64_each(some) {
                each.into_iter().for_each(|(columns, xor)| take(Fletcher::of_block(&columns), xor));
                first += simd::ABREAST;
                continue;
            }
        }
        prefetch_ahead(first, |at| blocks.get(at).copied());
        let (fletcher, xor) = fletcher256_and_xor64(rest[0], is_followed(rest, 0));
        take(fletcher, xor);
        first += 1;
    }
}

/// The Fletcher-256 and the xor64 of a block, which is read once where the CPU has AVX2; `is_followed`: the one behind it in memory is summed next.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing is asked for"))]
fn fletcher256_and_xor64(block: &[u8; PAGE_SIZE], is_followed: bool) -> ([u8; 32], u64) {
    #[cfg(target_arch = "x86_64")]
    if let Some((columns, xor)) = simd::fletcher_and_xor64(block, is_followed) {
        return (Fletcher::of_block(&columns), xor);
    }
    (fletcher256(block), xor64(block))
}

/// Bytes of a word of Fletcher-256.
pub(crate) const WORD: usize = 16;

/// Word-aligned state of a Fletcher-256 sum. Values are reduced only in [`Fletcher::digest`]: all ones means zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fletcher {
    a: u128,
    b: u128,
}

/// Words per call of the fast code, those of a page. Sums of upper 16 bits stay below 2^16 · n(n+1)/2 < 2^32 by far, and with what is below these,
/// n(n+1)/2 < 2^16 times 2^48, a sum never has as much as 2^64 to itself.
pub(crate) const FLETCHER_SEGMENT: usize = PAGE_SIZE / WORD;

/// x + y modulo 2^128 − 1, with all ones as a second name of zero.
#[inline]
fn add(x: u128, y: u128) -> u128 {
    let (sum, carry) = x.overflowing_add(y);
    // Cannot overflow: with a carry the sum is at most 2^128 − 2.
    sum + u128::from(carry)
}

/// x · n modulo 2^128 − 1.
#[inline]
fn mul(x: u128, n: u64) -> u128 {
    let low = (x & u128::from(u64::MAX)) * u128::from(n);
    let high = (x >> 64) * u128::from(n);
    add(low, high.rotate_left(64))
}

impl Fletcher {
    pub(crate) fn add_words(&mut self, words: &[[u8; 16]]) {
        for segment in words.chunks(FLETCHER_SEGMENT) {
            #[cfg(target_arch = "x86_64")]
            if let Some((done, columns)) = simd::fletcher_columns(segment) {
                self.add_columns(done, &columns);
                self.add_words_portable(&segment[done..]);
                continue;
            }
            self.add_words_portable(segment);
        }
    }

    /// The definition, word by word.
    pub(crate) fn add_words_portable(&mut self, words: &[[u8; 16]]) {
        for word in words {
            self.a = add(self.a, u128::from_le_bytes(*word));
            self.b = add(self.b, self.a);
        }
    }

    pub(crate) fn add_tail(&mut self, tail: &[u8]) {
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            self.add_words_portable(&[last]);
        }
    }

    /// Appends `words` words whose own sums, started from zero, are given.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn add_columns(&mut self, words: usize, columns: &simd::FletcherColumns) {
        // Turning left by 64 is multiplying by 2^64 modulo 2^128 − 1.
        let value = |[low, high]: [u128; 2]| add(low, high.rotate_left(64));
        self.b = add(self.b, mul(self.a, words as u64));
        self.a = add(self.a, value(columns.a));
        self.b = add(self.b, value(columns.b));
    }

    /// The Fletcher-256 of a block whose column sums are known.
    #[cfg(target_arch = "x86_64")]
    fn of_block(columns: &simd::FletcherColumns) -> [u8; 32] {
        let mut state = Fletcher::default();
        state.add_columns(PAGE_SIZE / WORD, columns);
        state.digest()
    }

    /// A word that counts `times` times becomes `new` instead of `old`.
    #[inline]
    pub(crate) fn replace(&mut self, old: u128, new: u128, times: u64) {
        // M − x is the negative of x, and in bits its complement.
        let difference = add(new, !old);
        self.a = add(self.a, difference);
        self.b = add(self.b, mul(difference, times));
    }

    /// Both sums added.
    pub(crate) fn combine(&self, other: &Fletcher) -> Fletcher {
        Fletcher { a: add(self.a, other.a), b: add(self.b, other.b) }
    }

    /// The state that has this digest.
    pub(crate) fn of_digest(digest: [u8; 32]) -> Fletcher {
        let [a, b] = [0, 1].map(|half| u128::from_le_bytes(digest.as_chunks::<16>().0[half]));
        Fletcher { a, b }
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        let reduce = |x: u128| if x == u128::MAX { 0 } else { x };
        let mut out = [0; 32];
        out[..16].copy_from_slice(&reduce(self.a).to_le_bytes());
        out[16..].copy_from_slice(&reduce(self.b).to_le_bytes());
        out
    }
}
