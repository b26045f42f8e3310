//! Sums over all slots of a block at once, with AVX2 where the CPU has it, chosen at run time.
//!
//! The `unsafe` here is vector loads, and the call of the function that needs the CPU feature. The tests hold it against the portable code.

use super::SetDigest;

/// Bytes of a slot.
const SLOT: usize = 64;
/// Slots of a block.
const SLOTS: usize = 64;
/// Where the word begins that is looked at for a mark.
const WORD: usize = 16;

type Block = [u8; SLOT * SLOTS];

/// Of the 64 slots of 64 bytes of a block, each of which begins with two numbers of 48 bits.
///
/// Made for the audit of a block of pointers that goes away as a whole, which costs a fraction of looking at one slot after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSums {
    /// All numbers that are not 0.
    pub numbers: SetDigest,
    /// How many slots have a second number that is not 0.
    pub seconds: u64,
    /// How many have the mark in bytes 16 to 23.
    pub marked: u64,
}

impl SlotSums {
    /// `None` if the first number of any slot is 0: what to make of that is the caller's. A slot is marked if the little-endian word in
    /// its bytes 16 to 23 has the bits `value` of those of `mask`.
    #[inline]
    pub fn of(block: &Block, mask: u64, value: u64) -> Option<SlotSums> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected on the line above.
            return unsafe { x86::plain(block, mask, value).or_else(|| x86::sums(block, mask, value)) };
        }
        portable(block, mask, value)
    }
}

fn portable(block: &Block, mask: u64, value: u64) -> Option<SlotSums> {
    let mut sums = SlotSums { numbers: SetDigest::NOTHING, seconds: 0, marked: 0 };
    for slot in block.as_chunks::<SLOT>().0 {
        let word = |at: usize| u64::from_le_bytes(*slot[at..].first_chunk().expect("a slot has 64 bytes"));
        let [first, second] = [0, 6].map(|at| word(at) & ((1 << 48) - 1));
        if first == 0 {
            return None;
        }
        sums.numbers += SetDigest::of(first);
        if second != 0 {
            sums.numbers += SetDigest::of(second);
            sums.seconds += 1;
        }
        sums.marked += u64::from(word(WORD) & mask == value);
    }
    Some(sums)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, SLOT, SLOTS, SetDigest, SlotSums, WORD};
    use std::arch::x86_64::*;

    /// The sums, if all slots are marked and have one number alone, which is below 2^32, as those of a file mostly are: with half of the
    /// instructions that it takes to look at whatever there may be.
    #[target_feature(enable = "avx2")]
    pub(super) fn plain(block: &Block, mask: u64, value: u64) -> Option<SlotSums> {
        let none = _mm256_setzero_si256();
        let (mut sum, mut squares, mut zeros) = (none, none, none);
        // Bits that any slot has in its first four words, and that all have.
        let (mut any, mut all) = (none, _mm256_set1_epi64x(-1));
        for slots in block.as_chunks::<{ 2 * SLOT }>().0 {
            let [first, second] = [0, SLOT].map(|at| {
                let bytes: &[u8; 32] = slots[at..].first_chunk().expect("32 bytes of a slot");
                // SAFETY: 32 readable bytes, and the load has no demand on alignment.
                unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
            });
            any = _mm256_or_si256(any, _mm256_or_si256(first, second));
            all = _mm256_and_si256(all, _mm256_and_si256(first, second));
            // The first words of both; behind them what is not needed.
            let numbers = _mm256_unpacklo_epi64(first, second);
            sum = _mm256_add_epi64(sum, numbers);
            squares = _mm256_add_epi64(squares, _mm256_mul_epu32(numbers, numbers));
            zeros = _mm256_or_si256(zeros, _mm256_cmpeq_epi64(numbers, none));
        }
        let [any_0, any_1] = words(_mm256_castsi256_si128(any));
        let [any_mark, _] = words(_mm256_extracti128_si256::<1>(any));
        let [all_mark, _] = words(_mm256_extracti128_si256::<1>(all));
        let is_plain = any_0 >> 32 == 0
            && any_1 as u32 == 0
            && [any_mark, all_mark].iter().all(|word| word & mask == value)
            && words(_mm256_castsi256_si128(zeros)) == [0; 2];
        let [sum, squares] = [sum, squares].map(|sums| {
            let [first, second] = words(_mm256_castsi256_si128(sums));
            first.wrapping_add(second)
        });
        let numbers = SetDigest { count: SLOTS as u64, sum, squares };
        is_plain.then_some(SlotSums { numbers, seconds: 0, marked: SLOTS as u64 })
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn words(pair: __m128i) -> [u64; 2] {
        [_mm_extract_epi64::<0>(pair) as u64, _mm_extract_epi64::<1>(pair) as u64]
    }

    /// 16 bytes from `at` on of each of two slots.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn of_both(slots: &[u8; 2 * SLOT], at: usize) -> __m256i {
        let [first, second] = [at, SLOT + at].map(|at| {
            let bytes: &[u8; 16] = slots[at..].first_chunk().expect("16 bytes of a slot");
            // SAFETY: 16 readable bytes, and the load has no demand on alignment.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        });
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn sums(block: &Block, mask: u64, value: u64) -> Option<SlotSums> {
        // Two numbers of 6 bytes as two of 8.
        let spread = _mm_setr_epi8(0, 1, 2, 3, 4, 5, -1, -1, 6, 7, 8, 9, 10, 11, -1, -1);
        let spread = _mm256_broadcastsi128_si256(spread);
        // The second word of a slot's 16 bytes is never equal.
        let mask = _mm256_setr_epi64x(mask as i64, 0, mask as i64, 0);
        let value = _mm256_setr_epi64x(value as i64, 1, value as i64, 1);
        let none = _mm256_setzero_si256();
        let (mut sum, mut squares, mut crossed, mut zeros, mut marked) = (none, none, none, none, none);
        for slots in block.as_chunks::<{ 2 * SLOT }>().0 {
            let numbers = _mm256_shuffle_epi8(of_both(slots, 0), spread);
            sum = _mm256_add_epi64(sum, numbers);
            // (h · 2^32 + l)² is l² + h · l · 2^33 modulo 2^64.
            squares = _mm256_add_epi64(squares, _mm256_mul_epu32(numbers, numbers));
            crossed = _mm256_add_epi64(crossed, _mm256_mul_epu32(numbers, _mm256_srli_epi64::<32>(numbers)));
            zeros = _mm256_sub_epi64(zeros, _mm256_cmpeq_epi64(numbers, none));
            let words = _mm256_and_si256(of_both(slots, WORD), mask);
            marked = _mm256_sub_epi64(marked, _mm256_cmpeq_epi64(words, value));
        }
        let squares = _mm256_add_epi64(squares, _mm256_slli_epi64::<33>(crossed));
        let ([zero_firsts, zero_seconds], [marked, _]) = (by_place(zeros), by_place(marked));
        if zero_firsts != 0 {
            return None;
        }
        let [sum, squares] = [by_place(sum), by_place(squares)].map(|[first, second]| first.wrapping_add(second));
        let seconds = SLOTS as u64 - zero_seconds;
        Some(SlotSums { numbers: SetDigest { count: SLOTS as u64 + seconds, sum, squares }, seconds, marked })
    }

    /// What the two slots have together: of first and of second words.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn by_place(words: __m256i) -> [u64; 2] {
        self::words(_mm_add_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    const MASK: u64 = 3 << 48;
    const VALUE: u64 = 1 << 48;

    fn random(seed: u64) -> Block {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let mut block = [0; SLOT * SLOTS];
        rng.fill(&mut block[..]);
        for slot in block.as_chunks_mut::<SLOT>().0 {
            // As they mostly are: small, and one alone.
            if rng.random() {
                slot[4..6].fill(0);
            }
            if rng.random() {
                slot[6..12].fill(0);
            }
        }
        block
    }

    #[test]
    fn sums_of_slots_are_those_of_one_after_the_other() {
        for seed in 0..500 {
            let block = random(seed);
            let sums = SlotSums::of(&block, MASK, VALUE);
            assert_eq!(sums, portable(&block, MASK, VALUE), "seed {seed}");
            assert!(sums.is_some_and(|sums| sums.numbers.count() == 64 + sums.seconds), "seed {seed}");
        }
        let sums = SlotSums::of(&[0xff; SLOT * SLOTS], MASK, VALUE);
        let of_largest = SetDigest::of((1 << 48) - 1).times(128);
        assert_eq!(sums, Some(SlotSums { numbers: of_largest, seconds: 64, marked: 0 }));
    }

    /// What is like most blocks, and what differs from that in any bit.
    #[test]
    fn blocks_of_plain_slots_are_summed_alike() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(7);
        let mut plain = random(2);
        for slot in plain.as_chunks_mut::<SLOT>().0 {
            slot[..12].fill(0);
            slot[..4].copy_from_slice(&rng.random_range(1..=u32::MAX).to_le_bytes());
            slot[22] = slot[22] & !3 | 1;
        }
        let of_plain = portable(&plain, MASK, VALUE).unwrap();
        assert_eq!((SlotSums::of(&plain, MASK, VALUE), of_plain.marked), (Some(of_plain), 64));
        for slot in 0..SLOTS {
            for bit in 0..24 * 8 {
                let mut block = plain;
                block[slot * SLOT + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SlotSums::of(&block, MASK, VALUE), portable(&block, MASK, VALUE), "{slot}, {bit}");
            }
            let mut block = plain;
            block[slot * SLOT..][..4].fill(0);
            assert_eq!(SlotSums::of(&block, MASK, VALUE), None, "{slot}");
        }
    }

    #[test]
    fn a_slot_without_a_first_number_is_told() {
        for slot in 0..SLOTS {
            let mut block = random(1);
            block[slot * SLOT..][..6].fill(0);
            for sums in [SlotSums::of(&block, MASK, VALUE), portable(&block, MASK, VALUE)] {
                assert_eq!(sums, None, "{slot}");
            }
        }
    }
}
