//! Random values that are the same on every machine.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded by the environment variable HOLDFAST_SEED, or with a fixed number; says how to run again.
    pub(crate) fn new(test: &str) -> Self {
        let seed = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_100_223);
        println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-integrity --test it {test}");
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    pub(crate) fn block(&mut self) -> Box<[u8; 4096]> {
        let mut block = Box::new([0; 4096]);
        for word in block.as_chunks_mut::<8>().0 {
            *word = self.next().to_le_bytes();
        }
        block
    }
}
