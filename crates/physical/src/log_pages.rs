//! What has become of the pages of a batch in the intent log.
//!
//! The last batch may have been torn by a power cut before it was acknowledged, and then it must be left out; or it was
//! acknowledged and has been damaged since, and then that must be told. A power cut leaves each sector of a block with its
//! old or its new contents, and the batch has the sums of both. So a page that is not whole is
//! - *flipped*: one or two bits are not as they should be, and are put right;
//! - *torn*: a sector still has its old contents; the write was not done;
//! - *damaged*: no sector has its old contents, and some are neither old nor new; or the block cannot be read.
//!
//! A write that the device acknowledged and never did looks the same as one that a power cut dropped: torn.

use crate::block_pool::PooledBlock;
use crate::disk::Block;
use crate::format::log::{SectorSums, sector_sums};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};

/// Where the bytes of a page are.
pub(crate) enum PageBytes {
    /// In this block of the device.
    At(u64),
    /// Put right: what this block should hold.
    Corrected(u64, PooledBlock),
}

/// Why a page has no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// A power cut may have done it.
    Torn,
    /// No power cut does this.
    Damaged,
}

/// A block in which a copy of a page is looked for.
pub(crate) struct Copy<'a> {
    pub(crate) address: u64,
    /// As read; `None` if it cannot be.
    pub(crate) bytes: Option<&'a [u8; 4096]>,
    /// Sums of what it held before the page was written there, if known.
    pub(crate) old: Option<&'a SectorSums>,
}

/// The bytes of a page with this checksum and these sector sums, from one of its copies.
pub(crate) fn find_page(copies: &[Copy<'_>], checksum: u64, new: &SectorSums) -> Result<PageBytes, Gone> {
    let readable = || copies.iter().filter_map(|copy| Some((copy, copy.bytes?)));
    if let Some((copy, _)) = readable().find(|(_, bytes)| crc64(&bytes[..]) == checksum) {
        return Ok(PageBytes::At(copy.address));
    }
    for (copy, bytes) in readable() {
        // Two flipped bits are in two sectors at most; of a write that was dropped there are more.
        if sector_sums(bytes).iter().zip(new).filter(|(now, new)| now != new).count() > 2 {
            continue;
        }
        let mut block = Block::zeroed();
        block.0 = *bytes;
        // Two flipped bits, since a second checksum has its say.
        let is_corrected = correct_flips(&mut block.0, checksum, FlipsMax::Two).is_some();
        if is_corrected && sector_sums(&block.0) == *new {
            return Ok(PageBytes::Corrected(copy.address, block));
        }
    }
    let is_torn = readable().any(|(copy, bytes)| is_torn(bytes, new, copy.old));
    Err(if is_torn { Gone::Torn } else { Gone::Damaged })
}

/// Whether a power cut during the write may have left the block so.
pub(crate) fn is_torn(bytes: &[u8; 4096], new: &SectorSums, old: Option<&SectorSums>) -> bool {
    let Some(old) = old else { return true };
    let now = sector_sums(bytes);
    now.iter().zip(new).zip(old).any(|((now, new), old)| now != new && now == old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(block: &[u8; 4096], old: Option<&[u8; 4096]>, new: &[u8; 4096]) -> Result<&'static str, Gone> {
        let old = old.map(sector_sums);
        let copy = Copy { address: 9, bytes: Some(block), old: old.as_ref() };
        find_page(&[copy], crc64(new), &sector_sums(new)).map(|found| match found {
            PageBytes::At(9) => "whole",
            PageBytes::Corrected(9, bytes) if bytes.0 == *new => "corrected",
            _ => "wrong",
        })
    }

    #[test]
    fn torn_and_damaged_pages_are_told_apart() {
        let (old, new) = ([0x11; 4096], std::array::from_fn::<u8, 4096, _>(|at| (at * at) as u8));
        assert_eq!(judge(&new, Some(&old), &new), Ok("whole"));
        // Every way in which a power cut leaves the block.
        for sectors in 0..255u32 {
            let mut block = old;
            for at in (0..8).filter(|at| sectors >> at & 1 == 1) {
                block[at * 512..][..512].copy_from_slice(&new[at * 512..][..512]);
            }
            assert_eq!(judge(&block, Some(&old), &new), Err(Gone::Torn), "{sectors:08b}");
            block[100] ^= 0x77;
            let all_new_but_the_damaged = sectors | 1 == 255;
            let expected = if all_new_but_the_damaged { Gone::Damaged } else { Gone::Torn };
            assert_eq!(judge(&block, Some(&old), &new), Err(expected), "{sectors:08b}, and damaged");
        }
        for flips in [&[5][..], &[5, 30_000], &[511 * 8, 512 * 8]] {
            let mut block = new;
            flips.iter().for_each(|bit| block[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(judge(&block, Some(&old), &new), Ok("corrected"));
            assert_eq!(judge(&block, None, &new), Ok("corrected"));
        }
        let mut block = new;
        block[700] ^= 0x77;
        assert_eq!(judge(&block, Some(&old), &new), Err(Gone::Damaged));
        assert_eq!(judge(&block, None, &new), Err(Gone::Torn), "what was there before is not known");
        assert_eq!(judge(&[0x22; 4096], Some(&old), &new), Err(Gone::Damaged), "misdirected");
        let unreadable = Copy { address: 9, bytes: None, old: None };
        assert_eq!(find_page(&[unreadable], 1, &[0; 8]).err(), Some(Gone::Damaged));
    }
}
