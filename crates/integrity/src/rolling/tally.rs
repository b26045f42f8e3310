//! The tally: definition, and what it changes by.
//!
//! The weight of the 32-bit word in lane l (of 16) of row r (of 64) is ALPHA[l] + (64 − r) · BETA[l] modulo 2^32. So the sum over
//! a block is two additions per row of 64 bytes, as in a Fletcher sum, and two multiplications per lane at the end.

use super::{ROLLING_BLOCK, each_word};

pub(super) const LANES: usize = 16;
const ROWS: usize = ROLLING_BLOCK / 64;

/// Odd.
pub(super) static ALPHA: [u32; LANES] = random(0, 1);
/// Even, but no multiples of four. With this the weights of a lane are odd and all different.
pub(super) static BETA: [u32; LANES] = random(LANES as u64, 2);

/// Weights by row and lane.
pub(super) type Weights = [[u32; LANES]; ROWS];

pub(super) static WEIGHTS: Weights = {
    let mut weights = [[0; LANES]; ROWS];
    let mut row = 0;
    while row < ROWS {
        let mut lane = 0;
        while lane < LANES {
            weights[row][lane] = ALPHA[lane].wrapping_add(BETA[lane].wrapping_mul((ROWS - row) as u32));
            lane += 1;
        }
        row += 1;
    }
    weights
};

/// The upper halves of the values of SplitMix64 from number `skip` on, with `lowest` as the lowest bit that is one.
const fn random(skip: u64, lowest: u32) -> [u32; LANES] {
    let mut values = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        let mut z = (skip + lane as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        values[lane] = (z >> 32) as u32 & !(2 * lowest - 1) | lowest;
        lane += 1;
    }
    values
}

/// The tally of a block: the sum of its 1024 little-endian words of 32 bits, each times an odd weight of its own, modulo 2^32. Of a
/// block of zeros it is 0.
///
/// For what a CRC-64 cannot see by construction ([`crate::crc64_neutral`]): it sees every change within one word, and others but for
/// 2^-32. For memory only: the weights are not part of the disk format.
#[inline]
pub fn tally(block: &[u8; ROLLING_BLOCK]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(tally) = super::x86::tally(block) {
        return tally;
    }
    of_block(block)
}

/// By the two sums per lane.
pub(super) fn of_block(block: &[u8; ROLLING_BLOCK]) -> u32 {
    let (mut a, mut b) = ([0u32; LANES], [0u32; LANES]);
    for row in block.as_chunks::<64>().0 {
        for (lane, word) in row.as_chunks::<4>().0.iter().enumerate() {
            a[lane] = a[lane].wrapping_add(u32::from_le_bytes(*word));
            b[lane] = b[lane].wrapping_add(a[lane]);
        }
    }
    of_lanes(&a, &b)
}

/// From each lane's sum, and the sum of that sum's values after every row.
#[inline]
pub(super) fn of_lanes(a: &[u32; LANES], b: &[u32; LANES]) -> u32 {
    (0..LANES).fold(0, |sum: u32, lane| {
        sum.wrapping_add(ALPHA[lane].wrapping_mul(a[lane])).wrapping_add(BETA[lane].wrapping_mul(b[lane]))
    })
}

/// What the tally of a block changes by, to be added to it.
#[inline(always)]
pub(super) fn change(weights: &Weights, at: usize, old: &[u8], new: &[u8]) -> u32 {
    let mut sum = 0u32;
    each_word(at, old, new, |word, old, new| sum = sum.wrapping_add(change_word(weights, word, old, new)));
    sum
}

/// As [`change`], of the 64-bit word number `word`.
#[inline(always)]
pub(super) fn change_word(weights: &Weights, word: usize, old: u64, new: u64) -> u32 {
    let [low, high] = weights.as_flattened().as_chunks::<2>().0[word];
    let weighed =
        |weight: u32, shift: u32| weight.wrapping_mul(((new >> shift) as u32).wrapping_sub((old >> shift) as u32));
    weighed(low, 0).wrapping_add(weighed(high, 32))
}
