//! The checksum algorithms, their stable numbers, and the checksum value.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::page::has_wide;
use crate::rolling::{crc32c_each, crc64_each};
use crate::sums::{xor64_each, xxh3, xxh3_each};
use crate::{Digest, Mismatch, PAGE_SIZE, crc32c, crc64, crc64_copied, fletcher256, xor64};

/// Length in bytes of the longest checksum.
pub const DIGEST_MAX: usize = 32;

/// A checksum algorithm. The discriminants are written to disk and never change.
///
/// `HD` below is the Hamming distance over 4 KiB: every pattern of fewer flipped bits is detected.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// No checksum, 0 bytes: verification always passes. For the mode `none` and nothing else.
    None = 0,
    /// Exclusive or of the 64-bit little-endian words, 8 bytes. HD 2: a cheap memory checksum only (Z²FS).
    Xor64 = 1,
    /// CRC-64/NVME, 8 bytes. HD at least 6, and every burst of up to 64 bits. The default.
    Crc64Nvme = 2,
    /// CRC-32C (Castagnoli), 4 bytes. HD 4.
    Crc32c = 3,
    /// Two one's-complement sums (mod 2^128 − 1) over 128-bit little-endian words, 32 bytes. HD 3.
    /// See [`fletcher256`].
    Fletcher256 = 4,
    /// XXH3 with 64 bits and seed 0, 8 bytes. Behaves as a random function: no guaranteed distance.
    Xxh3 = 5,
    /// BLAKE3, 32 bytes. Cryptographic: equal checksums may be taken for equal contents.
    Blake3 = 6,
}

/// The number or name is not that of a checksum algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownAlgorithm {
    /// A stored number that this version does not know.
    #[error("unknown checksum algorithm number {0}")]
    Number(u8),
    /// A name given by a person.
    #[error(
        "unknown checksum algorithm '{0}' (known: xor64, crc64-nvme, crc32c, fletcher256, xxh3, blake3; for short xor, crc64, fletcher)"
    )]
    Name(String),
}

impl Algorithm {
    /// All algorithms in the order of their numbers.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::None,
        Algorithm::Xor64,
        Algorithm::Crc64Nvme,
        Algorithm::Crc32c,
        Algorithm::Fletcher256,
        Algorithm::Xxh3,
        Algorithm::Blake3,
    ];

    /// The algorithm with the on-disk number `id`.
    ///
    /// # Errors
    /// [`UnknownAlgorithm::Number`] for a number that no algorithm has: a foreign, newer or damaged structure.
    pub const fn parse(id: u8) -> Result<Self, UnknownAlgorithm> {
        Ok(match id {
            0 => Algorithm::None,
            1 => Algorithm::Xor64,
            2 => Algorithm::Crc64Nvme,
            3 => Algorithm::Crc32c,
            4 => Algorithm::Fletcher256,
            5 => Algorithm::Xxh3,
            6 => Algorithm::Blake3,
            _ => return Err(UnknownAlgorithm::Number(id)),
        })
    }

    /// The on-disk number.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Length of the checksum in bytes: 0, 4, 8 or 32.
    pub const fn digest_len(self) -> usize {
        match self {
            Algorithm::None => 0,
            Algorithm::Crc32c => 4,
            Algorithm::Xor64 | Algorithm::Crc64Nvme | Algorithm::Xxh3 => 8,
            Algorithm::Fletcher256 | Algorithm::Blake3 => 32,
        }
    }

    /// The name used in options and messages, the one [`FromStr`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::None => "none",
            Algorithm::Xor64 => "xor64",
            Algorithm::Crc64Nvme => "crc64-nvme",
            Algorithm::Crc32c => "crc32c",
            Algorithm::Fletcher256 => "fletcher256",
            Algorithm::Xxh3 => "xxh3",
            Algorithm::Blake3 => "blake3",
        }
    }

    /// Computes the checksum of `bytes`.
    pub fn sum(self, bytes: &[u8]) -> Checksum {
        match self {
            Algorithm::None => Checksum::none(),
            Algorithm::Xor64 => Checksum::of_le(self, &xor64(bytes).to_le_bytes()),
            Algorithm::Crc64Nvme => Checksum::crc64(crc64(bytes)),
            Algorithm::Crc32c => Checksum::of_le(self, &crc32c(bytes).to_le_bytes()),
            Algorithm::Fletcher256 => Checksum::of_le(self, &fletcher256(bytes)),
            Algorithm::Xxh3 => Checksum::of_le(self, &xxh3(bytes).to_le_bytes()),
            Algorithm::Blake3 => Checksum::of_le(self, blake3::hash(bytes).as_bytes()),
        }
    }

    /// Copies `from`, which the processor's cache has, to `to`, which is as long and lies in memory, and gives the checksum that it had before.
    ///
    /// It is summed first, so that a change in between shows, and as a pass that does both waits for the stores. On a Zen 5 a block that goes anywhere in memory takes 219 ns so, 269 in one
    /// pass (CRC-64, `page_speed`; xor64 217 to 309 and 275 to 342). A processor without AVX-512 reads a block of 4 KiB once for both under CRC-64.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn sum_copied(self, from: &[u8], to: &mut [u8]) -> Checksum {
        if self == Algorithm::Crc64Nvme
            && !has_wide()
            && let (Ok(from), Ok(to)) = (from.try_into(), (&mut *to).try_into())
        {
            return Checksum::crc64(crc64_copied(from, to));
        }
        let sum = self.sum(from);
        to.copy_from_slice(from);
        sum
    }

    /// The checksums of blocks that come from memory, as numbers ([`Checksum::from_number`]). What comes next is asked for on the way: what the processor
    /// fetches ahead by itself ends with each page. Of [`Algorithm::None`] they are 0.
    ///
    /// # Panics
    /// If `numbers` is not as long as `blocks`, or the algorithm's checksums have more than 8 bytes.
    ///
    /// ```
    /// use holdfast_integrity::{Algorithm, Checksum};
    ///
    /// let block: [u8; 4096] = std::array::from_fn(|at| at as u8);
    /// let mut numbers = [0; 5];
    /// Algorithm::Crc32c.number_each(&[&block; 5], &mut numbers);
    /// assert_eq!(numbers.map(|number| Checksum::from_number(Algorithm::Crc32c, number)), [Algorithm::Crc32c.sum(&block); 5]);
    /// ```
    pub fn number_each(self, blocks: &[&[u8; PAGE_SIZE]], numbers: &mut [u64]) {
        assert_eq!(blocks.len(), numbers.len(), "one number for each block");
        match self {
            Algorithm::None => numbers.fill(0),
            Algorithm::Xor64 => xor64_each(blocks, numbers),
            Algorithm::Crc64Nvme => crc64_each(blocks, numbers),
            Algorithm::Crc32c => crc32c_each(blocks, numbers),
            Algorithm::Xxh3 => xxh3_each(blocks, numbers),
            Algorithm::Fletcher256 | Algorithm::Blake3 => panic!("a checksum of {self} is no number of 8 bytes"),
        }
    }

    /// Starts a checksum over bytes that come in pieces.
    pub fn digest(self) -> Digest {
        Digest::new(self)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    /// Takes the names that [`Algorithm::name`] gives, in any case, and the short forms `xor`, `crc64` and `fletcher`.
    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let lower = name.to_ascii_lowercase();
        match lower.as_str() {
            "xor" => Ok(Algorithm::Xor64),
            "crc64" => Ok(Algorithm::Crc64Nvme),
            "fletcher" => Ok(Algorithm::Fletcher256),
            _ => Algorithm::ALL
                .into_iter()
                .find(|a| a.name() == lower)
                .ok_or_else(|| UnknownAlgorithm::Name(name.to_owned())),
        }
    }
}

/// A checksum together with the algorithm that made it.
///
/// On disk only [`Checksum::as_bytes`] is stored, the algorithm's number beside it. Integers are little-endian.
///
/// Invariant: the bytes past `algorithm.digest_len()` are zero, so that equality is equality of the parts that count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Plain", into = "Plain")]
pub struct Checksum {
    algorithm: Algorithm,
    bytes: [u8; DIGEST_MAX],
}

/// A checksum as plain data: the algorithm's number and all bytes.
#[derive(Serialize, Deserialize)]
struct Plain(u8, [u8; DIGEST_MAX]);

impl From<Checksum> for Plain {
    fn from(checksum: Checksum) -> Plain {
        Plain(checksum.algorithm.id(), checksum.bytes)
    }
}

impl TryFrom<Plain> for Checksum {
    type Error = UnknownAlgorithm;

    fn try_from(Plain(id, bytes): Plain) -> Result<Checksum, UnknownAlgorithm> {
        let algorithm = Algorithm::parse(id)?;
        Ok(Checksum::of_le(algorithm, &bytes[..algorithm.digest_len()]))
    }
}

/// A stored checksum has not the length its algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {algorithm} checksum is {} bytes long, not {got}", algorithm.digest_len())]
pub struct WrongLength {
    /// The algorithm stored beside the bytes.
    pub algorithm: Algorithm,
    /// How many bytes there were.
    pub got: usize,
}

impl Checksum {
    /// The empty checksum of [`Algorithm::None`].
    pub const fn none() -> Self {
        Checksum { algorithm: Algorithm::None, bytes: [0; DIGEST_MAX] }
    }

    /// A CRC-64/NVME known as a number.
    pub const fn crc64(crc: u64) -> Self {
        let word = crc.to_le_bytes();
        let mut bytes = [0; DIGEST_MAX];
        let mut i = 0;
        while i < word.len() {
            bytes[i] = word[i];
            i += 1;
        }
        Checksum { algorithm: Algorithm::Crc64Nvme, bytes }
    }

    /// A checksum as stored: exactly `algorithm.digest_len()` bytes.
    ///
    /// # Errors
    /// [`WrongLength`] for any other length.
    pub fn from_bytes(algorithm: Algorithm, stored: &[u8]) -> Result<Self, WrongLength> {
        if stored.len() != algorithm.digest_len() {
            return Err(WrongLength { algorithm, got: stored.len() });
        }
        Ok(Self::of_le(algorithm, stored))
    }

    #[inline]
    pub(crate) fn of_le(algorithm: Algorithm, digest: &[u8]) -> Self {
        debug_assert_eq!(digest.len(), algorithm.digest_len());
        let mut bytes = [0; DIGEST_MAX];
        bytes[..digest.len()].copy_from_slice(digest);
        Checksum { algorithm, bytes }
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The checksum as stored, `algorithm().digest_len()` bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.digest_len()]
    }

    /// The checksum with zeros behind it.
    pub fn to_padded(&self) -> [u8; DIGEST_MAX] {
        self.bytes
    }

    /// The checksum as a number, for the algorithms of 8 bytes at most; else 0.
    pub fn as_number(&self) -> u64 {
        if self.algorithm.digest_len() > 8 {
            return 0;
        }
        let (word, _) = self.bytes.split_at(8);
        word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// A checksum of 8 bytes at most from its number.
    #[inline]
    pub fn from_number(algorithm: Algorithm, number: u64) -> Self {
        debug_assert!(algorithm.digest_len() <= 8, "{algorithm}");
        Self::of_le(algorithm, &number.to_le_bytes()[..algorithm.digest_len()])
    }

    /// The checksum as a number, for the algorithms with 64 bits.
    #[inline]
    pub fn as_u64(&self) -> Option<u64> {
        let (word, _) = self.bytes.split_first_chunk::<8>()?;
        (self.algorithm.digest_len() == 8).then(|| u64::from_le_bytes(*word))
    }

    /// Computes the checksum of `bytes` afresh and compares.
    ///
    /// # Errors
    /// [`Mismatch`] when they differ. Never for [`Algorithm::None`].
    pub fn verify(&self, bytes: &[u8]) -> Result<(), Mismatch> {
        self.verify_summed(bytes, None)
    }

    /// The same for whoever has just made a checksum of the bytes, which is used if it is of the same algorithm.
    ///
    /// # Errors
    /// As for [`Checksum::verify`].
    pub fn verify_summed(&self, bytes: &[u8], just_made: Option<Checksum>) -> Result<(), Mismatch> {
        let got = just_made.filter(|sum| sum.algorithm == self.algorithm).unwrap_or_else(|| self.algorithm.sum(bytes));
        if got == *self || crate::IS_BLIND { Ok(()) } else { Err(Mismatch { expected: *self, got }) }
    }
}

/// `algorithm:hex`, the hex digits in the order a number is written (for 32-byte checksums: in byte order).
impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.algorithm)?;
        let number = self.algorithm.digest_len() <= 8;
        let bytes = self.as_bytes();
        for i in 0..bytes.len() {
            let byte = if number { bytes[bytes.len() - 1 - i] } else { bytes[i] };
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
