//! What checksums do not see: Hamming distance and the fraction of flips at that distance which go unseen.
//!
//! Figures are data: the published ones, and what the checksums of this workspace have in fact, counted over their definitions.
//! `tests/it/checksums.rs` puts the counts to the test with the code that computes the sums.

use crate::BLOCK_BITS;
use crate::probability::Probability;
use holdfast_integrity::Algorithm;
use std::fmt;

/// Whose figures for the strength of checksums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChecksumData {
    /// Those of the paper, which has xor and Fletcher; for others, the measured ones.
    Published,
    /// Those of the checksums that Holdfast has: Fletcher-256 adds modulo 2^128 − 1.
    Measured,
    /// The same for a Fletcher-256 that adds modulo 2^128, as is simpler; for comparison.
    MeasuredPlain,
}

impl ChecksumData {
    /// All.
    pub const ALL: [ChecksumData; 3] = [ChecksumData::Published, ChecksumData::Measured, ChecksumData::MeasuredPlain];

    /// As it is written in options.
    pub const fn name(self) -> &'static str {
        match self {
            ChecksumData::Published => "published",
            ChecksumData::Measured => "measured",
            ChecksumData::MeasuredPlain => "measured-plain",
        }
    }
}

impl fmt::Display for ChecksumData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How strong a checksum is over a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Strength {
    /// HD: all patterns of fewer flipped bits are seen. From 1.
    pub hamming_distance: u32,
    /// F: the part of all patterns of HD flipped bits that goes unseen, from 0 to 1.
    pub unseen_fraction: f64,
    /// Where the two are from.
    pub source: &'static str,
}

impl Strength {
    /// No checksum: sees nothing.
    pub const NONE: Strength = Strength { hamming_distance: 1, unseen_fraction: 1.0, source: "no checksum" };

    /// That flips go unseen, from the probability of so many flips or more as the device tells it.
    ///
    /// z2fs §II-B multiplies F with the probability of *exactly* HD flips. At least HD is the same while flips are rare, and
    /// it is still a probability, and grows with time, when they are not.
    pub fn unseen(&self, flips_at_least: impl Fn(u32) -> Probability) -> Probability {
        flips_at_least(self.hamming_distance).and(Probability::new(self.unseen_fraction))
    }
}

/// F of an exclusive or of 64-bit words: the other flip must be in the same column (z2fs §II-B). Exact.
const XOR_FRACTION: f64 = {
    let (bits, width) = (BLOCK_BITS as f64, 64.0);
    (bits - width) / (width * (bits - 1.0))
};

/// Two flips of the 128-bit words of a block in the same column, so far apart that the second sum comes out even as well, counted
/// with the probability that they go in the right directions: 23,936 of them in 256 words.
const FLETCHER_PLAIN_FRACTION: f64 = 23_936.0 / (BLOCK_BITS as f64 * (BLOCK_BITS as f64 - 1.0) / 2.0);

/// Two flips in one column in the same direction, and one in the next column and the word in the middle against them: 16,256 pairs
/// of words, 128 columns, a quarter of the directions.
const FLETCHER_FRACTION: f64 =
    (16_256.0 * 128.0 / 4.0) / (BLOCK_BITS as f64 * (BLOCK_BITS as f64 - 1.0) * (BLOCK_BITS as f64 - 2.0) / 6.0);

/// The strength of a checksum over a block of 4 KiB.
pub fn strength(algorithm: Algorithm, data: ChecksumData) -> Strength {
    let (hamming_distance, unseen_fraction, source) = match (algorithm, data) {
        (Algorithm::None, _) => return Strength::NONE,
        (Algorithm::Xor64, _) => (2, XOR_FRACTION, "exact: z2fs §II-B"),
        (Algorithm::Fletcher256, ChecksumData::Published) => (3, 4.16e-20, "an estimate: z2fs §II-B"),
        (Algorithm::Fletcher256, ChecksumData::Measured) => (3, FLETCHER_FRACTION, "counted, mod 2^128 − 1"),
        (Algorithm::Fletcher256, ChecksumData::MeasuredPlain) => (2, FLETCHER_PLAIN_FRACTION, "counted, mod 2^128"),
        (Algorithm::Crc64Nvme, _) => {
            (6, random(64), "HD: all patterns of up to 5 flips tried; F: as a random function")
        }
        (Algorithm::Crc32c, _) => (4, 4.3e-10, "measured"),
        (Algorithm::Xxh3, _) => (1, random(64), "as a random function"),
        (Algorithm::Blake3, _) => (1, random(256), "as a random function"),
    };
    Strength { hamming_distance, unseen_fraction, source }
}

/// F of a function whose values are all equally likely.
fn random(bits: i32) -> f64 {
    2f64.powi(-bits)
}
