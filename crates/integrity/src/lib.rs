//! Checksums and protected buffers: the ground floor of Holdfast.
//!
//! One idea runs through all layers: **a buffer never travels without its checksum**, and every boundary verifies in
//! time. This crate has the checksums, the types that keep data and checksum together, and the operations that move
//! data without a moment in which an error could slip in. It does no I/O, has no clock and no threads, and knows
//! nothing of disks or pages in use; errors say what was expected and found, and the callers add the place.
//!
//! # What is here
//!
//! | for | use |
//! |---|---|
//! | a checksum of any kind, chosen at run time | [`Algorithm::sum`], [`Algorithm::digest`] for pieces |
//! | the hot paths | [`crc64`], [`Crc64`] for pieces, [`xor64`], [`fletcher256`] |
//! | the same of several pages, or of one while it is copied | [`Algorithm::number_each`], [`Algorithm::sum_copied`] |
//! | the checksum of two buffers from theirs | [`crc64_combine`] |
//! | binding a metadata block to its place | [`identity_mix`], [`identity_tag`], [`Unverified::verify_identified`] |
//! | a checksum that goes along with changes of a block | [`Delta`], [`crc64_change`], [`tally`] |
//! | the same with Adler-32 and Fletcher-256 | [`adler32_change`], [`fletcher256_change`] |
//! | bytes from a disk or a neighbour | [`Unverified`], which becomes [`Verified`] or [`Protected`] |
//! | bytes that stay in memory or travel | [`Protected`] |
//! | finding one or two flipped bits, and flipping them back | [`correct_flips`] |
//! | moving, cutting, merging, converting them | [`Protected`]'s methods and [`assemble`] |
//! | comparing two sets of numbers that were counted apart | [`SetDigest`] |
//! | the protection modes | [`Protection`], [`StoredSums`], [`PageSums`] |
//! | a partial write into a cache page | [`merge_page`], [`merge_page_in_place`] |
//!
//! ```
//! use holdfast_integrity::{Algorithm, Checksum, Protected, Unverified};
//!
//! // Written: sealed as it arrives, opened at the last moment.
//! let page = Protected::seal(vec![7u8; 4096], Algorithm::Crc64Nvme);
//! let on_disk = (page.checksum().algorithm().id(), page.checksum().as_bytes().to_vec());
//! let block = page.open()?.to_vec();
//!
//! // Read: the checksum comes from the parent, the bytes from the disk.
//! let expected = Checksum::from_bytes(Algorithm::parse(on_disk.0)?, &on_disk.1)?;
//! let page = Unverified::new(block).verify(expected)?.into_protected();
//!
//! // An unaligned read by an application that wants another checksum: generated before the page's is verified.
//! let answer = page.extract(100..612, Algorithm::Crc32c, vec![0; 512])?;
//! assert!(answer.verify().is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which checksum
//!
//! CRC-64/NVME is the default everywhere: it sees every pattern of up to five flipped bits in 4 KiB and every burst of
//! up to 64, takes well below the time of a memcpy, and is linear, so that it can be combined and updated. xor64 and
//! Fletcher-256 are there for the modes of Z²FS, XXH3 and CRC-32C for comparison and for the formats of others, BLAKE3
//! where equal checksums shall mean equal contents. `cargo run --release -p holdfast-integrity --example
//! checksum_speed` measures them on your machine, `--example rolling_speed` what it costs to keep one right while bytes
//! change. All choose the best code for the CPU at run time.
//!
//! # What checksums do not do
//!
//! - No checksum sees a block replaced by another *with its checksum*: the sum is kept in the parent, and metadata
//!   mixes its identity in ([`identity_mix`]).
//! - xor64 and Fletcher-256 fill an incomplete last word up with zeros: the length travels beside.
//! - All but BLAKE3 protect against accidents, not against an adversary.
//! - [`Algorithm::None`] verifies anything. Whoever stores the algorithm's number protects it.
//!
//! # Disk format
//!
//! Algorithm numbers ([`Algorithm`]), checksum bytes ([`Checksum::as_bytes`]), the definition of [`fletcher256`] and the
//! packing of [`identity_mix`] are on disk, and fixed by tests against published and reference values.
//!
//! # Sources
//!
//! Y. Zhang, *Cooperative Data Protection* (dissertation), chapter 4: Z²FS, checksum chaining; *High-Performance
//! Metadata Integrity Protection in the WAFL Copy-on-Write File System* (FAST 2017); NVM Express NVM Command Set
//! Specification (CRC-64); RFC 3720 (CRC-32C).

mod algorithm;
mod crc;
mod digest;
mod error;
#[cfg(test)]
mod flaky;
mod flips;
mod identity;
mod page;
mod protected;
mod protection;
mod rolling;
mod set_digest;
#[cfg(target_arch = "x86_64")]
mod simd;
mod sums;
mod unverified;

pub use algorithm::{Algorithm, Checksum, DIGEST_MAX, UnknownAlgorithm, WrongLength};
pub use crc::{Crc64, crc32c, crc64, crc64_combine};
pub use digest::Digest;
pub use error::Mismatch;
pub use flips::{FlipsMax, correct_flips};
pub use identity::{identity_mix, identity_tag};
pub use page::{
    MergeError, PAGE_SIZE, merge_page, merge_page_in_place, prefetch, prefetch_ahead, prefetch_line, prefetch_part,
    prefetch_start,
};
pub use protected::{ChainError, Piece, Protected, Source, assemble};
pub use protection::{PageSums, Protection, StoredSums, UnknownProtection};
pub use rolling::{
    ADLER32_OF_ZEROS, BitSum, CRC64_OF_ZEROS, Delta, ROLLING_BLOCK, adler32, adler32_add_delta, adler32_change,
    crc64_and_tally, crc64_change, crc64_change_slot, crc64_change_word, crc64_copied, crc64_copied_of_followed,
    crc64_flips, crc64_neutral, fletcher256_add_delta, fletcher256_change, tally,
};
pub use set_digest::{SetDigest, SlotSums};
pub use sums::{fletcher256, fletcher256_and_xor64_each, xor64};
pub use unverified::{Unverified, Verified};

/// Whether verification is switched off (feature `blind`): a planted fault, which the lab's experiments must find.
pub const IS_BLIND: bool = cfg!(feature = "blind");

#[cfg(test)]
mod tests;
