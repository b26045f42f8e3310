//! Bits of a whole device in memory: searching for free runs.

use crate::format::BITS;

/// Words of 64 bits in a chunk: what one block of the on-disk bitmap describes.
pub(crate) const CHUNK_WORDS: usize = (BITS / 64) as usize;

/// One bit per block, set if the block cannot be handed out.
///
/// Invariants ([`Bitmap::check`]): bits at and beyond `blocks` are set; `chunk_free` and `free` count the clear bits.
pub(crate) struct Bitmap {
    blocks: u64,
    words: Vec<u64>,
    chunk_free: Vec<u32>,
    free: u64,
}

impl Bitmap {
    /// All clear.
    pub(crate) fn new(blocks: u64) -> Bitmap {
        let chunks = blocks.div_ceil(BITS) as usize;
        let mut bitmap =
            Bitmap { blocks, words: vec![0; chunks * CHUNK_WORDS], chunk_free: vec![BITS as u32; chunks], free: 0 };
        bitmap.free = chunks as u64 * BITS;
        for bit in blocks..chunks as u64 * BITS {
            bitmap.set(bit, 1);
        }
        bitmap
    }

    /// For so many blocks, more than now; the new ones are clear.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let (old, chunks) = (self.blocks, blocks.div_ceil(BITS));
        debug_assert!(old <= blocks);
        let added = chunks - self.chunks();
        self.words.resize(chunks as usize * CHUNK_WORDS, 0);
        self.chunk_free.resize(chunks as usize, BITS as u32);
        self.free += added * BITS;
        let old_tail = (chunks - added) * BITS;
        if old < old_tail {
            self.clear(old, blocks.min(old_tail) - old);
        }
        let set_already = if added == 0 { chunks * BITS } else { blocks };
        self.blocks = blocks;
        for bit in set_already..chunks * BITS {
            self.set(bit, 1);
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.chunk_free.len() as u64
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn get(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// The words of a chunk.
    pub(crate) fn chunk(&self, chunk: u64) -> &[u64] {
        &self.words[chunk as usize * CHUNK_WORDS..][..CHUNK_WORDS]
    }

    /// Replaces the words of a chunk; bits beyond the device stay set.
    pub(crate) fn load_chunk(&mut self, chunk: u64, words: impl Iterator<Item = u64>) {
        let at = chunk as usize * CHUNK_WORDS;
        for (word, value) in self.words[at..at + CHUNK_WORDS].iter_mut().zip(words) {
            *word = value;
        }
        let end = (chunk + 1) * BITS;
        for bit in self.blocks.max(chunk * BITS)..end {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        let used: u32 = self.chunk(chunk).iter().map(|word| word.count_ones()).sum();
        let free = BITS as u32 - used;
        self.free = self.free - u64::from(self.chunk_free[chunk as usize]) + u64::from(free);
        self.chunk_free[chunk as usize] = free;
    }

    /// Sets bits that are clear.
    pub(crate) fn set(&mut self, first: u64, count: u64) {
        for bit in first..first + count {
            debug_assert!(!self.get(bit), "block {bit} is in use");
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
            self.chunk_free[(bit / BITS) as usize] -= 1;
        }
        self.free -= count;
    }

    /// Clears bits that are set.
    pub(crate) fn clear(&mut self, first: u64, count: u64) {
        for bit in first..first + count {
            debug_assert!(self.get(bit), "block {bit} is free");
            self.words[(bit / 64) as usize] &= !(1 << (bit % 64));
            self.chunk_free[(bit / BITS) as usize] += 1;
        }
        self.free += count;
    }

    /// Clears the bits of a mask over a chunk, all of which are set.
    pub(crate) fn clear_mask(&mut self, chunk: u64, mask: &[u64; CHUNK_WORDS]) -> u64 {
        let at = chunk as usize * CHUNK_WORDS;
        let mut cleared = 0;
        for (word, mask) in self.words[at..at + CHUNK_WORDS].iter_mut().zip(mask) {
            debug_assert_eq!(*word & mask, *mask);
            cleared += (*word & mask).count_ones();
            *word &= !mask;
        }
        self.chunk_free[chunk as usize] += cleared;
        self.free += u64::from(cleared);
        u64::from(cleared)
    }

    /// First run of clear bits in `from..to`, at most `want` long. With `whole`, only runs that hold an aligned word of
    /// 64.
    pub(crate) fn find(&self, from: u64, to: u64, want: u64, whole: bool) -> Option<(u64, u64)> {
        let mut at = from;
        while at < to {
            let chunk = (at / BITS) as usize;
            let least = if whole { 64 } else { 1 };
            if self.chunk_free[chunk] < least {
                at = (chunk as u64 + 1) * BITS;
                continue;
            }
            let word = self.words[(at / 64) as usize] | ((1u64 << (at % 64)) - 1);
            if word == u64::MAX || (whole && word != 0) {
                at = (at / 64 + 1) * 64;
                continue;
            }
            let start = at / 64 * 64 + u64::from(word.trailing_ones());
            if start >= to {
                return None;
            }
            return Some((start, self.run(start, to.min(start.saturating_add(want))) - start));
        }
        None
    }

    /// First run of clear bits in `from..to` that is at least `least` long, cut to `most`; with `below`, only one that is shorter
    /// than that. (A run that begins before `from` counts from there.)
    pub(crate) fn find_fit(&self, from: u64, to: u64, least: u64, most: u64, below: Option<u64>) -> Option<(u64, u64)> {
        let mut at = from;
        while at < to {
            let chunk = at / BITS;
            if self.chunk_free[chunk as usize] == 0 {
                at = (chunk + 1) * BITS;
                continue;
            }
            let word = self.words[(at / 64) as usize] | ((1u64 << (at % 64)) - 1);
            if word == u64::MAX {
                at = (at / 64 + 1) * 64;
                continue;
            }
            let start = at / 64 * 64 + u64::from(word.trailing_ones());
            let end = match below {
                None => self.run(start, to.min(start.saturating_add(most.max(least)))),
                Some(_) => self.run(start, to),
            };
            let length = end.saturating_sub(start);
            if length >= least && below.is_none_or(|below| length < below) {
                return Some((start, length.min(most)));
            }
            // One bit further at least: `end` is in use, or no part of the range.
            at = end.max(start) + 1;
        }
        None
    }

    /// End of the run of clear bits that starts at `start`, at most `to`.
    fn run(&self, start: u64, to: u64) -> u64 {
        let mut at = start;
        while at < to {
            let word = self.words[(at / 64) as usize] >> (at % 64);
            let free = u64::from(word.trailing_zeros()).min(64 - at % 64);
            at += free;
            if free < 64 - (at - free) % 64 {
                break;
            }
        }
        at.min(to)
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut free = 0;
        for chunk in 0..self.chunks() {
            let used: u32 = self.chunk(chunk).iter().map(|word| word.count_ones()).sum();
            assert_eq!(self.chunk_free[chunk as usize], BITS as u32 - used);
            free += BITS - u64::from(used);
        }
        assert_eq!(self.free, free);
        assert!((self.blocks..self.chunks() * BITS).all(|bit| self.get(bit)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn finds_runs_as_a_slow_search_does() {
        for seed in 0..50 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let blocks = rng.random_range(100..3000);
            let mut bitmap = Bitmap::new(blocks);
            let density = rng.random_range(0.0..1.0);
            for bit in 0..blocks {
                if rng.random_bool(density) {
                    bitmap.set(bit, 1);
                }
            }
            bitmap.check();
            for _ in 0..200 {
                let from = rng.random_range(0..blocks);
                let to = rng.random_range(from..=blocks);
                let want = rng.random_range(1..200);
                let start = (from..to).find(|&bit| !bitmap.get(bit));
                let expected = start.map(|start| {
                    let end = (start..to.min(start + want)).find(|&bit| bitmap.get(bit));
                    (start, end.unwrap_or(to.min(start + want)) - start)
                });
                assert_eq!(bitmap.find(from, to, want, false), expected, "seed {seed}");
                if let Some((start, count)) = bitmap.find(from, to, 1000, true) {
                    assert!(start % 64 == 0 && (start..start + count).all(|bit| !bitmap.get(bit)), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn finds_fitting_runs_as_a_slow_search_does() {
        for seed in 0..50 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let blocks = rng.random_range(100..3000);
            let mut bitmap = Bitmap::new(blocks);
            let mut at = 0;
            while at < blocks {
                let used = rng.random_range(1..40).min(blocks - at);
                bitmap.set(at, used);
                at += used + rng.random_range(1..150);
            }
            for _ in 0..200 {
                let from = rng.random_range(0..blocks);
                let to = rng.random_range(from..=blocks);
                let (least, more) = (rng.random_range(1..120), rng.random_range(0..100));
                let below = rng.random_bool(0.5).then(|| rng.random_range(1..150));
                let begins = |bit: &u64| !bitmap.get(*bit) && (*bit == from || bitmap.get(*bit - 1));
                let runs = (from..to).filter(begins).map(|start| {
                    let end = (start..to).find(|&bit| bitmap.get(bit)).unwrap_or(to);
                    (start, end - start)
                });
                let fits = |run: &(u64, u64)| run.1 >= least && below.is_none_or(|below| run.1 < below);
                let expected = { runs }.find(fits).map(|(start, length)| (start, length.min(least + more)));
                assert_eq!(bitmap.find_fit(from, to, least, least + more, below), expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn set_clear_and_masks_keep_the_counts() {
        let mut bitmap = Bitmap::new(BITS + 100);
        bitmap.set(10, 200);
        bitmap.set(BITS, 5);
        bitmap.clear(100, 50);
        bitmap.check();
        assert_eq!(bitmap.free(), BITS + 100 - 155);
        let mut mask = [0; CHUNK_WORDS];
        mask[0] = 0b111 << 10;
        assert_eq!(bitmap.clear_mask(0, &mask), 3);
        bitmap.check();
        let words = bitmap.chunk(0).to_vec();
        bitmap.load_chunk(1, words.into_iter());
        bitmap.check();
    }
}
