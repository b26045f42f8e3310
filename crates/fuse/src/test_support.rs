//! What the unit tests share: messages by hand, and mutations of them by seed.

use std::time::Duration;

/// Bytes from hexadecimal digits; spaces are for the reader.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    assert_eq!(digits.len() % 2, 0);
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A request of uid 1000, gid 100, process 7: header by hand, then the body.
pub(crate) fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + body.len());
    bytes.extend_from_slice(&(40 + body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&opcode.to_le_bytes());
    bytes.extend_from_slice(&unique.to_le_bytes());
    bytes.extend_from_slice(&node.to_le_bytes());
    bytes.extend_from_slice(&hex("e8030000 64000000 07000000 0000 0000"));
    bytes.extend_from_slice(body);
    bytes
}

/// The seed of a random test: from `HOLDFAST_SEED`, or from the clock; printed with the command that replays it.
pub(crate) fn seed(test: &str) -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().expect("HOLDFAST_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64,
    };
    println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-fuse {test} -- --nocapture");
    seed
}

/// How long to fuzz: `HOLDFAST_FUZZ_SECONDS`, or a second and a half.
pub(crate) fn fuzz_budget() -> Duration {
    match std::env::var("HOLDFAST_FUZZ_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("HOLDFAST_FUZZ_SECONDS is a number")),
        Err(_) => Duration::from_millis(1500),
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of `messages` with a few bytes or words changed, cut, lengthened, or under another opcode. The header's length is
    /// mostly made to fit again, so that the mutation gets past it.
    pub(crate) fn mutated(&mut self, messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = messages[self.below(messages.len())].clone();
        for _ in 0..self.below(4) {
            match self.below(7) {
                0 => bytes.truncate(self.below(bytes.len() + 1)),
                1 => bytes.extend((0..self.below(64)).map(|_| self.next() as u8)),
                2 if bytes.len() >= 8 => bytes[4..8].copy_from_slice(&(self.below(56) as u32).to_le_bytes()),
                3 if bytes.len() >= 38 => bytes[36..38].copy_from_slice(&(self.below(12) as u16).to_le_bytes()),
                4 if bytes.len() >= 48 => {
                    let at = 40 + self.below(bytes.len() - 47);
                    let extremes = [0, 1, 7, 8, 0x7fff_ffff, 0xffff_fff8, 0xffff_ffff];
                    let word: u32 = extremes[self.below(extremes.len())];
                    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                5 if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 << self.below(8);
                }
                _ if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] = self.next() as u8;
                }
                _ => {}
            }
        }
        if bytes.len() >= 4 && self.below(10) > 0 {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    }
}
