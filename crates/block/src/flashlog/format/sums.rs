//! Checksums of a backup's blocks, kept on it.

use super::AREA_UNIT_BLOCKS;
use holdfast_integrity::{FlipsMax, correct_flips, crc64};

/// Blocks whose checksums one block of the area has: a *group*.
pub(crate) const GROUP_BLOCKS: u64 = 510;
/// Where a block of checksums has them, and where its own.
const SUMS_AT: usize = 8;
const CRC_AT: usize = 4088;
const _: () = assert!(SUMS_AT + 8 * GROUP_BLOCKS as usize == CRC_AT);

/// The checksums of a group.
pub(crate) type GroupSums = [u64; GROUP_BLOCKS as usize];

/// Groups of a set's device of so many blocks.
pub(crate) const fn groups(blocks: u64) -> u64 {
    blocks.div_ceil(GROUP_BLOCKS)
}

/// Blocks of the area of checksums for a set's device of so many blocks.
pub(crate) const fn sums_area_blocks(blocks: u64) -> u64 {
    groups(blocks).next_multiple_of(AREA_UNIT_BLOCKS)
}

/// The block of checksums that is at block `own` of the backup.
pub(crate) fn encode(own: u64, sums: &GroupSums) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    bytes[..SUMS_AT].copy_from_slice(&own.to_le_bytes());
    let (words, _none) = bytes[SUMS_AT..CRC_AT].as_chunks_mut::<8>();
    for (word, sum) in words.iter_mut().zip(sums) {
        *word = sum.to_le_bytes();
    }
    let crc = crc64(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The same read back. One flipped bit is made good; `None` if the block is damaged or was never written.
pub(crate) fn decode(bytes: &[u8; 4096], own: u64) -> Option<Box<GroupSums>> {
    let mut bytes = *bytes;
    let crc = word(&bytes, CRC_AT);
    let is_flip_of_crc = (crc64(&bytes[..CRC_AT]) ^ crc).count_ones() <= 1;
    if !is_flip_of_crc && correct_flips(&mut bytes[..CRC_AT], crc, FlipsMax::One).is_none() {
        return None;
    }
    if word(&bytes, 0) != own {
        return None;
    }
    let mut sums = Box::new([0; GROUP_BLOCKS as usize]);
    for (at, sum) in sums.iter_mut().enumerate() {
        *sum = word(&bytes, SUMS_AT + 8 * at);
    }
    Some(sums)
}

fn word(bytes: &[u8; 4096], at: usize) -> u64 {
    bytes[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums() -> GroupSums {
        std::array::from_fn(|at| (at as u64).wrapping_mul(0x1234_5678_9abc_def1))
    }

    #[test]
    fn the_bytes_are_golden() {
        // A change here is another version of the format.
        let bytes = encode(7, &sums());
        assert_eq!((bytes[0], &bytes[8..16], bytes[16]), (7, &[0; 8][..], 0xf1));
        assert_eq!(word(&bytes, CRC_AT), 0x8f2b_09c7_ee8d_1e3f);
        assert_eq!(
            (groups(510), groups(511), sums_area_blocks(510 * 256), sums_area_blocks(510 * 256 + 1)),
            (1, 2, 256, 512)
        );
    }

    #[test]
    fn a_flipped_bit_is_made_good_and_more_are_told() {
        let good = encode(7, &sums());
        for at in 0..4096 {
            let mut bytes = good;
            bytes[at] ^= 1 << (at % 8);
            assert!(decode(&bytes, 7).is_some_and(|found| *found == sums()), "byte {at}");
            bytes[at] ^= 1 << ((at + 1) % 8);
            bytes[at ^ 1] ^= 1;
            assert!(decode(&bytes, 7).is_none(), "byte {at}");
        }
        assert!(decode(&good, 8).is_none() && decode(&[0; 4096], 7).is_none());
    }
}
