//! Bytes that have not been verified have another type than bytes that have.

use std::ops::Deref;

use crate::{Checksum, Mismatch, Protected, crc64};

/// Bytes from a disk, a neighbour or a network, not yet compared with any checksum.
///
/// There is no way to the bytes but through [`Unverified::verify`] and its variants, or by a name that says what it
/// does. A device or a protocol decoder returns `Unverified`; what parses it takes [`Verified`].
#[derive(Clone)]
pub struct Unverified<T>(T);

/// Bytes that had the expected checksum at the moment of verification.
///
/// Says nothing of later moments: bytes that stay in memory are kept as [`Protected`], which verifies at each use.
#[derive(Clone)]
pub struct Verified<T> {
    bytes: T,
    checksum: Checksum,
}

impl<T: AsRef<[u8]>> Unverified<T> {
    /// Marks `bytes` as not verified.
    pub fn new(bytes: T) -> Self {
        Unverified(bytes)
    }

    /// Compares with `expected`, the checksum that came by another way (the parent's pointer, the record's header).
    ///
    /// Always passes for [`Algorithm::None`](crate::Algorithm::None); that `expected` has no checksum is the choice of
    /// whoever stored it.
    ///
    /// # Errors
    /// [`Mismatch`]; the buffer is dropped. [`Unverified::verify_or_keep`] gives it back.
    pub fn verify(self, expected: Checksum) -> Result<Verified<T>, Mismatch> {
        self.verify_or_keep(expected).map_err(|(mismatch, _)| mismatch)
    }

    /// Like [`Unverified::verify`], but a mismatch gives the bytes back, for another read into the same buffer or for
    /// repair.
    ///
    /// # Errors
    /// The [`Mismatch`], with the bytes.
    pub fn verify_or_keep(self, expected: Checksum) -> Result<Verified<T>, (Mismatch, Self)> {
        match expected.verify(self.0.as_ref()) {
            Ok(()) => Ok(Verified { bytes: self.0, checksum: expected }),
            Err(mismatch) => Err((mismatch, self)),
        }
    }

    /// Compares with the checksum of a metadata block: CRC-64/NVME of the bytes xor `identity`, the
    /// [`identity_mix`](crate::identity_mix) of the block that is wanted.
    ///
    /// [`Verified::checksum`] is then the plain CRC-64 of the bytes.
    ///
    /// # Errors
    /// [`Mismatch`] if the bytes are damaged, or are those of another block; its two values contain the identity.
    pub fn verify_identified(self, expected: u64, identity: u64) -> Result<Verified<T>, Mismatch> {
        let crc = crc64(self.0.as_ref());
        if crc ^ identity == expected {
            Ok(Verified { bytes: self.0, checksum: Checksum::crc64(crc) })
        } else {
            Err(Mismatch { expected: Checksum::crc64(expected), got: Checksum::crc64(crc ^ identity) })
        }
    }

    /// Lets the bytes travel on under `expected` without looking at them: checksum forwarding (case 1), to be
    /// verified later.
    pub fn protect(self, expected: Checksum) -> Protected<T> {
        Protected::from_parts(self.0, expected)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.as_ref().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Unverified<T> {
    /// The bytes as they are: for repair and rescue tools, for dumps, and for reading again into the buffer.
    pub fn into_unverified_bytes(self) -> T {
        self.0
    }
}

/// Shows no contents.
impl<T: AsRef<[u8]>> std::fmt::Debug for Unverified<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unverified({} bytes)", self.len())
    }
}

impl<T> Verified<T> {
    /// The checksum the bytes were verified with.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The bytes, from now on without a checksum.
    pub fn into_inner(self) -> T {
        self.bytes
    }

    /// The bytes with the checksum they were verified with.
    pub fn into_protected(self) -> Protected<T> {
        Protected::from_parts(self.bytes, self.checksum)
    }
}

impl<T: AsRef<[u8]>> Deref for Verified<T> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Verified<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<T: AsRef<[u8]>> std::fmt::Debug for Verified<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verified({} bytes, {})", self.len(), self.checksum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, identity_mix};

    #[test]
    fn good_passes_and_bad_is_named() {
        let bytes: Vec<u8> = (0..=255).collect();
        for algorithm in Algorithm::ALL.into_iter().skip(1) {
            let expected = algorithm.sum(&bytes);
            let verified = Unverified::new(bytes.clone()).verify(expected).unwrap();
            assert_eq!((&*verified, verified.checksum()), (&*bytes, expected));

            let mut bad = bytes.clone();
            bad[100] ^= 4;
            let (mismatch, back) = Unverified::new(bad.clone()).verify_or_keep(expected).unwrap_err();
            assert_eq!(back.into_unverified_bytes(), bad);
            assert_eq!(mismatch.expected, expected);
            assert_eq!(mismatch.got, algorithm.sum(&bad));
            assert_eq!(mismatch.algorithm(), algorithm);
        }
        // The mode without checksums takes anything.
        assert!(Unverified::new(&bytes).verify(Checksum::none()).is_ok());
    }

    /// A metadata block is good under its own identity only, whichever part of it differs.
    #[test]
    fn another_blocks_identity_fails() {
        let block = [7u8; 4096];
        let identity = identity_mix(1, 2, 0, 3);
        let stored = crc64(&block) ^ identity;
        let verified = Unverified::new(&block).verify_identified(stored, identity).unwrap();
        assert_eq!(verified.checksum(), Checksum::crc64(crc64(&block)));
        for other in
            [identity_mix(0, 2, 0, 3), identity_mix(1, 3, 0, 3), identity_mix(1, 2, 1, 3), identity_mix(1, 2, 0, 2), 0]
        {
            let mismatch = Unverified::new(&block).verify_identified(stored, other).unwrap_err();
            assert_eq!(mismatch.expected.as_u64(), Some(stored));
            assert_eq!(mismatch.got.as_u64(), Some(crc64(&block) ^ other));
        }
    }
}
