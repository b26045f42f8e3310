//! Words of bits in memory, with sums that roll.
//!
//! The allocator's bits are used for as long as the store is open, and the bitmap that a recovery point stores is put together from them.
//! So they have what blocks of metadata have ([`crate::meta_block`]): two sums that every legal change of a word updates from the old
//! and the new word alone; a [`Mask`], of which a bit at a time goes in or out, has one of 128 bits ([`BitSum`]). What else writes to the words shows as soon as somebody looks.
//!
//! Invariants: sums are those of all legal changes since the words were zero, or were taken over from verified bytes; `count` of a
//! [`Mask`] is the number of its bits, and it has no chunk without any.

use crate::format::BITS;
use crate::guarded::Counted;
use crate::meta_block::Scribble;
use holdfast_integrity::{BitSum, CRC64_OF_ZEROS, Delta, crc64_and_tally, crc64_flips};
use std::collections::BTreeMap;

/// Words of 64 bits in a chunk: what one block of the on-disk bitmap describes.
pub(crate) const CHUNK_WORDS: usize = (BITS / 64) as usize;

/// The words of a chunk.
pub(crate) type Words = [u64; CHUNK_WORDS];

/// The two sums of a chunk's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sums {
    crc: u64,
    tally: u32,
}

impl Sums {
    /// Of words that are all zero.
    pub(crate) const ZEROS: Sums = Sums { crc: CRC64_OF_ZEROS, tally: 0 };

    /// Of a block of metadata.
    pub(crate) fn new(crc: u64, tally: u32) -> Sums {
        Sums { crc, tally }
    }

    /// Of words that come from where they were verified.
    pub(crate) fn of(words: &[u64]) -> Sums {
        let mut bytes = [0; 8 * CHUNK_WORDS];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let (crc, tally) = crc64_and_tally(&bytes);
        Sums { crc, tally }
    }

    /// The one way to change a word, which is the one number `at` of its chunk.
    pub(crate) fn put(&mut self, word: &mut u64, at: usize, value: u64) {
        Delta::of_word(at, *word, value).apply(&mut self.crc, &mut self.tally);
        *word = value;
    }

    /// Whether the words are what legal changes have made of them.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn verify(&self, words: &[u64]) -> Result<(), Scribble> {
        let got = Sums::of(words);
        Scribble::between((self.crc, self.tally), (got.crc, got.tally))
    }
}

/// What of a chunk's words has gone bad, by their sums alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    Nothing,
    /// This one alone, and what it was.
    Word(usize, u64),
    More,
}

impl Sums {
    pub(crate) fn bad(&self, words: &Words) -> Bad {
        let got = Sums::of(words);
        if got == *self {
            return Bad::Nothing;
        }
        let mut from_the_end = words.iter().enumerate().rev().zip(crc64_flips(self.crc ^ got.crc));
        let one = from_the_end.find_map(|((at, word), flips)| {
            let grown = Delta::of_word(at, *word, word ^ flips).tally;
            (flips != 0 && got.tally.wrapping_add(grown) == self.tally).then_some(Bad::Word(at, word ^ flips))
        });
        one.unwrap_or(Bad::More)
    }
}

fn bad_of(sum: BitSum, words: &Words) -> Bad {
    match sum.one_word(words) {
        _ if BitSum::of(words) == sum => Bad::Nothing,
        Some((at, was)) => Bad::Word(at, was),
        None => Bad::More,
    }
}

struct MaskChunk {
    words: Words,
    /// By all that went in and out.
    sum: BitSum,
    bits: u32,
}

/// A set of blocks, few of a device.
#[derive(Default)]
pub(crate) struct Mask {
    chunks: BTreeMap<u64, Box<MaskChunk>>,
    count: Counted,
    /// Without protection: words have no sums.
    believed: bool,
}

/// Chunk, word in it, and bit in that of a block.
fn position(block: u64) -> (u64, usize, u64) {
    (block / BITS, (block % BITS / 64) as usize, 1 << (block % 64))
}

fn new_chunk() -> Box<MaskChunk> {
    Box::new(MaskChunk { words: [0; CHUNK_WORDS], sum: BitSum::default(), bits: 0 })
}

impl Mask {
    /// Words are believed from now on. There are none yet.
    pub(crate) fn believe(&mut self) {
        self.believed = true;
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    /// The same, to be verified.
    pub(crate) fn counted(&self) -> &Counted {
        &self.count
    }

    /// The same, counted anew from what each chunk has.
    pub(crate) fn count_of_chunks(&self) -> u64 {
        self.chunks.values().map(|chunk| u64::from(chunk.bits)).sum()
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        let (chunk, word, bit) = position(block);
        self.chunks.get(&chunk).is_some_and(|chunk| chunk.words[word] & bit != 0)
    }

    /// `false` if it is in already.
    pub(crate) fn insert(&mut self, block: u64) -> bool {
        let (chunk, word, bit) = position(block);
        let chunk = self.chunks.entry(chunk).or_insert_with(new_chunk);
        let old = chunk.words[word];
        if old & bit != 0 {
            return false;
        }
        if !self.believed {
            chunk.sum.set(word, bit);
        }
        chunk.words[word] = old | bit;
        chunk.bits = chunk.bits.wrapping_add(1);
        self.count += 1;
        true
    }

    /// Puts in the blocks of a chunk that these words have, none of which is in.
    pub(crate) fn insert_words(&mut self, number: u64, words: &Words) {
        let bits = ones(words);
        if bits == 0 {
            return;
        }
        let chunk = self.chunks.entry(number).or_insert_with(new_chunk);
        for (at, (word, new)) in chunk.words.iter_mut().zip(words).enumerate().filter(|(_, (_, new))| **new != 0) {
            debug_assert_eq!(*word & new, 0);
            if !self.believed {
                chunk.sum.set(at, *new);
            }
            *word |= new;
        }
        chunk.bits = chunk.bits.wrapping_add(bits as u32);
        self.count += bits;
    }

    /// `false` if it is not in.
    pub(crate) fn remove(&mut self, block: u64) -> bool {
        let (number, word, bit) = position(block);
        let Some(chunk) = self.chunks.get_mut(&number).filter(|chunk| chunk.words[word] & bit != 0) else {
            return false;
        };
        if !self.believed {
            chunk.sum.clear(word, bit);
        }
        chunk.words[word] &= !bit;
        // What somebody else has put in was never counted; whoever verifies sees that.
        chunk.bits = chunk.bits.wrapping_sub(1);
        self.count -= 1;
        // By what legal changes have left of it.
        if chunk.bits == 0 && chunk.sum == BitSum::default() {
            self.chunks.remove(&number);
        }
        true
    }

    /// A copy of the words of a chunk, verified; `None`: all zero.
    ///
    /// # Errors
    /// Somebody has written to them who must not.
    pub(crate) fn words(&self, chunk: u64) -> Result<Option<Words>, Scribble> {
        let Some(chunk) = self.chunks.get(&chunk) else { return Ok(None) };
        let words = chunk.words;
        if self.believed {
            return Ok(Some(words));
        }
        for (expected, got) in chunk.sum.halves().into_iter().zip(BitSum::of(&words).halves()) {
            Scribble::unless_equal("sum of bits", expected, got)?;
        }
        Scribble::unless_equal("number of bits", chunk.bits.into(), ones(&words))?;
        Ok(Some(words))
    }

    /// The words of a chunk as they are, and what of them has gone bad.
    pub(crate) fn bad(&self, chunk: u64) -> Option<(&Words, Bad)> {
        let chunk = self.chunks.get(&chunk)?;
        Some((&chunk.words, if self.believed { Bad::Nothing } else { bad_of(chunk.sum, &chunk.words) }))
    }

    /// The chunks that have any, in ascending order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u64> {
        self.chunks.keys().copied()
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self, chunk: u64) -> Option<&mut [u64]> {
        self.chunks.get_mut(&chunk).map(|chunk| &mut chunk.words[..])
    }

    /// The same for the count.
    pub(crate) fn scribbled_count(&mut self) -> &mut Counted {
        &mut self.count
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.count = Counted::new(0);
    }
}

/// How many bits are set.
pub(crate) fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    impl Mask {
        fn scribble(&mut self, block: u64) -> bool {
            let (chunk, word, bit) = position(block);
            self.scribbled(chunk).map(|words| words[word] ^= bit).is_some()
        }
    }

    #[test]
    fn a_mask_is_a_set_of_blocks() {
        for seed in 0..20 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let (mut mask, mut model) = (Mask::default(), BTreeSet::new());
            for _ in 0..2000 {
                let block = rng.random_range(0..500) * 257;
                if rng.random() {
                    assert_eq!(mask.insert(block), model.insert(block), "seed {seed}");
                } else {
                    assert_eq!(mask.remove(block), model.remove(&block), "seed {seed}");
                }
            }
            assert_eq!(mask.count(), model.len() as u64, "seed {seed}");
            let chunks: BTreeSet<u64> = model.iter().map(|block| block / BITS).collect();
            assert_eq!(mask.chunks().collect::<BTreeSet<_>>(), chunks, "seed {seed}");
            for chunk in chunks {
                let words = mask.words(chunk).expect("untouched").expect("not empty");
                let bits = (0..BITS).filter(|bit| words[(bit / 64) as usize] >> (bit % 64) & 1 == 1);
                let expected = model.range(chunk * BITS..(chunk + 1) * BITS).map(|block| block % BITS);
                assert!(bits.eq(expected), "seed {seed}");
            }
        }
    }

    #[test]
    fn one_word_that_has_gone_bad_is_known_by_the_sums() {
        let words: Words = std::array::from_fn(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (sums, sum) = (Sums::of(&words), BitSum::of(&words));
        for (at, flipped) in [(0, 1), (511, u64::MAX), (300, 0xff00), (7, 1 << 63)] {
            let mut bad = words;
            bad[at] ^= flipped;
            let one = Bad::Word(at, words[at]);
            assert_eq!((sums.bad(&bad), bad_of(sum, &bad)), (one, one));
            bad[at / 2 + 1] ^= 2;
            assert_eq!((sums.bad(&bad), bad_of(sum, &bad)), (Bad::More, Bad::More), "two have");
        }
        assert_eq!((sums.bad(&words), bad_of(sum, &words)), (Bad::Nothing, Bad::Nothing));
        assert_eq!(Sums { tally: sums.tally ^ 4, ..sums }.bad(&words), Bad::More, "a sum has");
    }

    #[test]
    fn no_change_makes_a_scribble_right() {
        for block in [0, 63, 4711, BITS - 1] {
            let mut mask = Mask::default();
            assert!(mask.insert(4711) && mask.insert(77));
            assert!(mask.scribble(block));
            assert!(mask.words(0).is_err(), "{block}");
            assert!(mask.insert(9000) && mask.insert(64) && mask.remove(9000));
            assert!(mask.words(0).is_err(), "{block}");
            assert!(mask.scribble(block));
            assert!(mask.words(0).is_ok(), "{block}");
        }
        // As many bits as there should be.
        let mut mask = Mask::default();
        assert!(mask.insert(5));
        assert!(mask.scribble(5));
        assert!(mask.scribble(6));
        assert!(mask.words(0).is_err());
        // What somebody else has put in goes with the last that should be in it; what he has put in and somebody takes out shows.
        let mut mask = Mask::default();
        assert!(mask.insert(5));
        assert!(mask.scribble(6));
        assert!(mask.remove(5));
        assert_eq!(mask.words(0), Ok(None));
        assert!(mask.insert(5));
        assert!(mask.scribble(6));
        assert!(mask.remove(6));
        assert!(mask.words(0).is_err());
    }
}
