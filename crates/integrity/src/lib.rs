//! Checksums and protected buffers: the ground floor of Holdfast.

mod algorithm;
mod crc;
mod digest;
mod error;
mod identity;
#[cfg(target_arch = "x86_64")]
mod simd;
mod sums;

pub use algorithm::{Algorithm, Checksum, DIGEST_MAX, UnknownAlgorithm, WrongLength};
pub use crc::{Crc64, crc64, crc64_combine};
pub use digest::Digest;
pub use error::Mismatch;
pub use identity::identity_mix;
pub use sums::{fletcher256, xor64};

#[cfg(test)]
mod tests;
