//! Bits of a whole device in memory: searching for free runs.

use crate::format::BITS;
use crate::guarded::Counted;
use crate::meta_block::Scribble;
use crate::scribble::Cells;
use crate::words::{Bad, CHUNK_WORDS, Sums, Words, ones};

/// One bit per block, set if the block cannot be handed out.
///
/// Invariants ([`Bitmap::verify`] for a chunk): bits at and beyond `blocks` are set; the chunks' `free`, and `free` of all, count the
/// clear bits, and wrap around if they have gone bad, for whoever verifies them; words change only by [`Bitmap::put`], which takes the
/// change into the chunk's sums.
pub(crate) struct Bitmap {
    blocks: u64,
    words: Vec<u64>,
    chunks: Vec<Chunk>,
    free: Counted,
    /// Without protection: words have no sums.
    believed: bool,
}

/// What is known of a chunk beside its words.
#[derive(Clone, Copy)]
struct Chunk {
    sums: Sums,
    free: u32,
    /// Of the clock, in seconds: when its words were last verified.
    looked_s: u32,
}

impl Chunk {
    const CLEAR: Chunk = Chunk { sums: Sums::ZEROS, free: BITS as u32, looked_s: 0 };

    /// How many of its blocks are free, by its words if these are as legal changes have left them.
    fn free_anew(&self, words: &[u64]) -> u64 {
        match self.sums.verify(words) {
            Ok(()) => BITS - ones(words),
            Err(_) => self.free.into(),
        }
    }
}

const FREE: &str = "number of all free blocks";

/// Words that a run of blocks is in, each with its bits of the run.
fn words_of(first: u64, count: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    let words = if count == 0 { 0..0 } else { first / 64..end.div_ceil(64) };
    words.map(move |word| {
        let (from, to) = (first.max(word * 64), end.min((word + 1) * 64));
        (word as usize, u64::MAX >> (64 - (to - from)) << (from % 64))
    })
}

impl Bitmap {
    /// All clear.
    pub(crate) fn new(blocks: u64) -> Bitmap {
        let chunks = blocks.div_ceil(BITS) as usize;
        let all = chunks as u64 * BITS;
        let mut bitmap = Bitmap {
            blocks,
            words: vec![0; chunks * CHUNK_WORDS],
            chunks: vec![Chunk::CLEAR; chunks],
            free: Counted::new(all),
            believed: false,
        };
        bitmap.set(blocks, all - blocks);
        bitmap
    }

    /// Words are believed from now on.
    pub(crate) fn believe(&mut self) {
        self.believed = true;
    }

    pub(crate) fn is_believed(&self) -> bool {
        self.believed
    }

    /// For so many blocks, more than now; the new ones are clear.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let (old, chunks) = (self.blocks, blocks.div_ceil(BITS));
        debug_assert!(old <= blocks);
        let added = chunks - self.chunks();
        self.words.resize(chunks as usize * CHUNK_WORDS, 0);
        self.chunks.resize(chunks as usize, Chunk::CLEAR);
        self.free += added * BITS;
        let old_tail = (chunks - added) * BITS;
        if old < old_tail {
            self.clear(old, blocks.min(old_tail) - old);
        }
        let set_already = if added == 0 { chunks * BITS } else { blocks };
        self.blocks = blocks;
        self.set(set_already, chunks * BITS - set_already);
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub(crate) fn free(&self) -> u64 {
        self.free.get()
    }

    /// The same, for who looks whether it has gone bad.
    pub(crate) fn counted_free(&self) -> &Counted {
        &self.free
    }

    pub(crate) fn get(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// A copy of the words of a chunk, verified.
    ///
    /// # Errors
    /// Somebody has written to them who must not.
    pub(crate) fn chunk(&self, chunk: u64) -> Result<Words, Scribble> {
        let mut words = [0; CHUNK_WORDS];
        words.copy_from_slice(self.words_of_chunk(chunk));
        if self.believed {
            return Ok(words);
        }
        let known = &self.chunks[chunk as usize];
        known.sums.verify(&words)?;
        Scribble::unless_equal("number of free blocks", known.free.into(), BITS - ones(&words))?;
        Ok(words)
    }

    /// The words of a chunk as they are, and what of them has gone bad.
    pub(crate) fn bad(&self, chunk: u64) -> (Words, Bad) {
        let mut words = [0; CHUNK_WORDS];
        words.copy_from_slice(self.words_of_chunk(chunk));
        let bad = if self.believed { Bad::Nothing } else { self.chunks[chunk as usize].sums.bad(&words) };
        (words, bad)
    }

    /// Verifies the chunks of a run of blocks that nobody has looked at in this second.
    ///
    /// # Errors
    /// The first chunk that somebody has written to who must not.
    pub(crate) fn look(&mut self, first: u64, count: u64, now_s: u32) -> Result<(), (u64, Scribble)> {
        for chunk in first / BITS..(first + count).div_ceil(BITS) {
            if self.chunks[chunk as usize].looked_s != now_s {
                self.chunk(chunk).map_err(|scribble| (chunk, scribble))?;
                self.chunks[chunk as usize].looked_s = now_s;
            }
        }
        Ok(())
    }

    /// Whether the number of all free blocks is that of the chunks' together, and has changed with them.
    ///
    /// # Errors
    /// It is not, or has not.
    pub(crate) fn verify_free(&self) -> Result<(), Scribble> {
        let free = self.chunks.iter().map(|chunk| u64::from(chunk.free)).sum();
        Scribble::unless_equal(FREE, free, self.free.verified(FREE)?)
    }

    /// The free blocks, counted anew as far as words are as legal changes have left them. Nothing is put right.
    pub(crate) fn free_anew(&self) -> u64 {
        self.words.chunks(CHUNK_WORDS).zip(&self.chunks).map(|(words, chunk)| chunk.free_anew(words)).sum()
    }

    /// Counts the free blocks anew, of chunks whose words are as legal changes have left them.
    ///
    /// # Errors
    /// What had been counted, if it is another number; it is right now.
    pub(crate) fn recount(&mut self) -> Result<(), Scribble> {
        for (words, chunk) in self.words.chunks(CHUNK_WORDS).zip(&mut self.chunks) {
            chunk.free = chunk.free_anew(words) as u32;
        }
        let counted = Counted::new(self.chunks.iter().map(|chunk| u64::from(chunk.free)).sum());
        let free = std::mem::replace(&mut self.free, counted);
        Scribble::unless_equal(FREE, counted.get(), free.get())?;
        free.verified(FREE).map(|_| ())
    }

    /// Whether any block of a chunk is in use.
    pub(crate) fn is_used(&self, chunk: u64) -> bool {
        u64::from(self.chunks[chunk as usize].free) < BITS
    }

    fn words_of_chunk(&self, chunk: u64) -> &[u64] {
        &self.words[chunk as usize * CHUNK_WORDS..][..CHUNK_WORDS]
    }

    /// The one way to change a word.
    fn put(&mut self, word: usize, value: u64) {
        if self.believed {
            self.words[word] = value;
            return;
        }
        let chunk = &mut self.chunks[word / CHUNK_WORDS];
        chunk.sums.put(&mut self.words[word], word % CHUNK_WORDS, value);
    }

    /// Replaces the words of a chunk by verified ones; bits beyond the device stay set.
    pub(crate) fn load_chunk(&mut self, chunk: u64, words: impl Iterator<Item = u64>) {
        let at = chunk as usize * CHUNK_WORDS;
        for (word, value) in self.words[at..at + CHUNK_WORDS].iter_mut().zip(words) {
            *word = value;
        }
        let beyond = self.blocks.max(chunk * BITS);
        for (word, mask) in words_of(beyond, ((chunk + 1) * BITS).saturating_sub(beyond)) {
            self.words[word] |= mask;
        }
        let free = (BITS - ones(self.words_of_chunk(chunk))) as u32;
        let sums = if self.believed { Sums::ZEROS } else { Sums::of(self.words_of_chunk(chunk)) };
        let old = std::mem::replace(&mut self.chunks[chunk as usize], Chunk { sums, free, looked_s: 0 });
        self.free -= u64::from(old.free);
        self.free += u64::from(free);
    }

    /// Sets bits that are clear.
    pub(crate) fn set(&mut self, first: u64, count: u64) {
        for (word, mask) in words_of(first, count) {
            let old = self.words[word];
            debug_assert_eq!(old & mask, 0, "a block of {first} and the {count} from there is in use");
            self.put(word, old | mask);
            let chunk = &mut self.chunks[word / CHUNK_WORDS];
            chunk.free = chunk.free.wrapping_sub(mask.count_ones());
        }
        self.free -= count;
    }

    /// Clears bits that are set.
    pub(crate) fn clear(&mut self, first: u64, count: u64) {
        for (word, mask) in words_of(first, count) {
            let old = self.words[word];
            debug_assert_eq!(old & mask, mask, "a block of {first} and the {count} from there is free");
            self.put(word, old & !mask);
            let chunk = &mut self.chunks[word / CHUNK_WORDS];
            chunk.free = chunk.free.wrapping_add(mask.count_ones());
        }
        self.free += count;
    }

    /// Clears the bits of a mask over a chunk, all of which are set.
    pub(crate) fn clear_mask(&mut self, chunk: u64, mask: &Words) {
        let at = chunk as usize * CHUNK_WORDS;
        let mut cleared = 0;
        for (word, mask) in (at..).zip(mask).filter(|(_, mask)| **mask != 0) {
            let old = self.words[word];
            debug_assert_eq!(old & mask, *mask);
            cleared += (old & mask).count_ones();
            self.put(word, old & !mask);
        }
        let chunk = &mut self.chunks[chunk as usize];
        chunk.free = chunk.free.wrapping_add(cleared);
        self.free += u64::from(cleared);
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self, chunk: u64) -> &mut [u64] {
        &mut self.words[chunk as usize * CHUNK_WORDS..][..CHUNK_WORDS]
    }

    /// The same for the counts.
    pub(crate) fn count_cells<'a>(&'a mut self, cells: &mut Cells<'a>) {
        self.free.cells("free", cells);
        for (nth, chunk) in self.chunks.iter_mut().enumerate() {
            cells.own(&format!("free of chunk {nth}"), &mut chunk.free);
        }
    }

    /// First run of clear bits in `from..to`, at most `want` long. With `whole`, only runs that hold an aligned word of
    /// 64.
    pub(crate) fn find(&self, from: u64, to: u64, want: u64, whole: bool) -> Option<(u64, u64)> {
        let mut at = from;
        while at < to {
            let chunk = (at / BITS) as usize;
            let least = if whole { 64 } else { 1 };
            if self.chunks[chunk].free < least {
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
            if self.chunks[chunk as usize].free == 0 {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    impl Bitmap {
        fn scribble(&mut self, bit: u64) {
            self.words[(bit / 64) as usize] ^= 1 << (bit % 64);
        }

        pub(crate) fn check(&self) {
            for chunk in 0..self.chunks() {
                self.chunk(chunk).expect("as legal changes have made it");
            }
            self.verify_free().expect("as many as in the chunks");
            assert!((self.blocks..self.chunks() * BITS).all(|bit| self.get(bit)));
        }
    }

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
        bitmap.clear_mask(0, &mask);
        bitmap.check();
        assert_eq!(bitmap.free(), BITS + 100 - 152);
        let words = bitmap.chunk(0).unwrap();
        bitmap.load_chunk(1, words.into_iter());
        bitmap.check();
    }

    #[test]
    fn what_somebody_else_writes_shows() {
        for bit in [0, 777, BITS - 1, BITS + 5] {
            let mut bitmap = Bitmap::new(2 * BITS - 100);
            bitmap.set(100, 1000);
            bitmap.look(0, 2 * BITS, 1).unwrap();
            bitmap.scribble(bit);
            // Somebody has looked in this second.
            bitmap.look(0, 2 * BITS, 1).unwrap();
            bitmap.set(5000, 200);
            bitmap.clear(500, 100);
            assert_eq!(bitmap.look(0, 2 * BITS, 2).unwrap_err().0, bit / BITS, "{bit}");
            bitmap.scribble(bit);
            bitmap.look(0, 2 * BITS, 2).unwrap();
        }
        // As many bits as there should be.
        let mut bitmap = Bitmap::new(BITS);
        bitmap.set(0, 8);
        bitmap.scribble(7);
        bitmap.scribble(8);
        assert!(bitmap.chunk(0).is_err());
        let mut bitmap = Bitmap::new(BITS);
        bitmap.free -= 1;
        assert!(bitmap.verify_free().is_err());
        bitmap.free += 1;
        let mut cells = Cells::default();
        bitmap.free.cells("free", &mut cells);
        cells.flip(0, &[1]);
        assert!(bitmap.counted_free().verified(FREE).is_err());
        assert!(bitmap.recount().is_err());
        bitmap.verify_free().unwrap();
        bitmap.chunks[0].free -= 1;
        assert!(bitmap.chunk(0).is_err());
    }
}
