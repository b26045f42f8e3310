//! What a failed verification says.

use crate::{Algorithm, Checksum};

/// The bytes do not have the checksum they should have. Who knows the place (device, address, object) adds it.
///
/// Both checksums are of the same algorithm, that of the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checksum mismatch: expected {expected}, got {got}")]
pub struct Mismatch {
    /// The checksum that came with the bytes, or was stored in the parent.
    pub expected: Checksum,
    /// The checksum computed over the bytes as they are now.
    pub got: Checksum,
}

impl Mismatch {
    /// The algorithm of both checksums.
    pub fn algorithm(&self) -> Algorithm {
        self.expected.algorithm()
    }
}
