//! Reproducible contents: pseudo-random bytes that neither compress nor deduplicate.

/// Splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): one 64-bit word of state,
/// every seed is good, the same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// A sequence that depends on all of `parts`, in order.
    pub fn new(parts: &[u64]) -> Self {
        let mut generator = Self(0x9e37_79b9_7f4a_7c15);
        for &part in parts {
            generator.0 ^= part;
            generator.0 = generator.word();
        }
        generator
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which must not be 0). The bias of the modulus is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Fills `bytes` with the next words.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }

    /// The numbers from 0 to `count` - 1 in random order (Fisher–Yates).
    pub fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}

/// Size in bytes of the blocks that are stamped.
pub const BLOCK: usize = 4096;

/// Writes the block's index and the generation of the write at the start of each 4 KiB block in `bytes`, the first of
/// which is block `first` of its file.
pub fn stamp(bytes: &mut [u8], first: u64, generation: u64) {
    for (block, index) in bytes.chunks_exact_mut(BLOCK).zip(first..) {
        block[..8].copy_from_slice(&index.to_le_bytes());
        block[8..16].copy_from_slice(&generation.to_le_bytes());
    }
}

/// Checks the stamps of the blocks in `bytes`, the first of which should be block `first`; an error is (expected, got).
pub fn check_stamps(bytes: &[u8], first: u64) -> Result<(), (u64, u64)> {
    for (block, expected) in bytes.chunks_exact(BLOCK).zip(first..) {
        let got = block.first_chunk().map_or(0, |index| u64::from_le_bytes(*index));
        if got != expected {
            return Err((expected, got));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_reference_vector() {
        // First outputs for state 1234567, from the reference implementation.
        let mut generator = Generator(1_234_567);
        assert_eq!(generator.word(), 6_457_827_717_110_365_317);
        assert_eq!(generator.word(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn parts_and_their_order_matter() {
        let first = |parts: &[u64]| Generator::new(parts).word();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1]), first(&[1, 0]));
    }

    #[test]
    fn permutation_has_each_number_once() {
        let mut order = Generator::new(&[7]).permutation(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_misplaced_block_is_noticed() {
        let mut bytes = vec![0; 4 * BLOCK];
        stamp(&mut bytes, 8, 1);
        assert_eq!(check_stamps(&bytes, 8), Ok(()));
        bytes.copy_within(0..BLOCK, 2 * BLOCK);
        assert_eq!(check_stamps(&bytes, 8), Err((10, 8)));
    }
}
