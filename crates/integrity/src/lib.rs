//! Checksums and protected buffers: the ground floor of Holdfast.

mod algorithm;
mod crc;
mod digest;
mod error;
#[cfg(test)]
mod flaky;
mod identity;
mod page;
mod protected;
#[cfg(target_arch = "x86_64")]
mod simd;
mod sums;
mod unverified;

pub use algorithm::{Algorithm, Checksum, DIGEST_MAX, UnknownAlgorithm, WrongLength};
pub use crc::{Crc64, crc64, crc64_combine};
pub use digest::Digest;
pub use error::Mismatch;
pub use identity::identity_mix;
pub use page::{MergeError, PAGE_SIZE, merge_page, merge_page_in_place};
pub use protected::{ChainError, Piece, Protected, Source, assemble};
pub use sums::{fletcher256, xor64};
pub use unverified::{Unverified, Verified};

#[cfg(test)]
mod tests;
