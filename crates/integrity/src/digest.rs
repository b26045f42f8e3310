//! A checksum over bytes that come in pieces, for every algorithm.

use crate::sums::Fletcher;
use crate::{Algorithm, Checksum, Crc64};

/// A checksum being computed. Any cutting into pieces gives the same as [`Algorithm::sum`] over the whole.
///
/// ```
/// use holdfast_integrity::Algorithm;
/// let mut digest = Algorithm::Crc64Nvme.digest();
/// digest.update(b"12345");
/// digest.update(b"6789");
/// assert_eq!(digest.finish(), Algorithm::Crc64Nvme.sum(b"123456789"));
/// ```
pub struct Digest(State);

enum State {
    None,
    Xor64(Words<8, u64>),
    Crc64Nvme(Crc64),
    Crc32c(crc_fast::Digest),
    Fletcher256(Words<16, Fletcher>),
    // Boxed: half a kilobyte and two.
    Xxh3(Box<twox_hash::XxHash3_64>),
    Blake3(Box<blake3::Hasher>),
}

impl Digest {
    /// Starts with no bytes.
    pub fn new(algorithm: Algorithm) -> Self {
        Digest(match algorithm {
            Algorithm::None => State::None,
            Algorithm::Xor64 => State::Xor64(Words::default()),
            Algorithm::Crc64Nvme => State::Crc64Nvme(Crc64::new()),
            Algorithm::Crc32c => State::Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)),
            Algorithm::Fletcher256 => State::Fletcher256(Words::default()),
            Algorithm::Xxh3 => State::Xxh3(Box::default()),
            Algorithm::Blake3 => State::Blake3(Box::default()),
        })
    }

    /// Appends `piece`.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::None => {}
            State::Xor64(words) => words.update(piece),
            State::Crc64Nvme(crc) => crc.update(piece),
            State::Crc32c(crc) => crc.update(piece),
            State::Fletcher256(words) => words.update(piece),
            State::Xxh3(hasher) => std::hash::Hasher::write(&mut **hasher, piece),
            State::Blake3(hasher) => {
                hasher.update(piece);
            }
        }
    }

    /// The checksum of all pieces.
    pub fn finish(self) -> Checksum {
        match self.0 {
            State::None => Checksum::none(),
            State::Xor64(words) => Checksum::of_le(Algorithm::Xor64, &words.finish().to_le_bytes()),
            State::Crc64Nvme(crc) => Checksum::crc64(crc.value()),
            State::Crc32c(crc) => Checksum::of_le(Algorithm::Crc32c, &(crc.finalize() as u32).to_le_bytes()),
            State::Fletcher256(words) => Checksum::of_le(Algorithm::Fletcher256, &words.finish().digest()),
            State::Xxh3(hasher) => Checksum::of_le(Algorithm::Xxh3, &std::hash::Hasher::finish(&*hasher).to_le_bytes()),
            State::Blake3(hasher) => Checksum::of_le(Algorithm::Blake3, hasher.finalize().as_bytes()),
        }
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let algorithm = match self.0 {
            State::None => Algorithm::None,
            State::Xor64(_) => Algorithm::Xor64,
            State::Crc64Nvme(_) => Algorithm::Crc64Nvme,
            State::Crc32c(_) => Algorithm::Crc32c,
            State::Fletcher256(_) => Algorithm::Fletcher256,
            State::Xxh3(_) => Algorithm::Xxh3,
            State::Blake3(_) => Algorithm::Blake3,
        };
        write!(f, "Digest({algorithm})")
    }
}

/// A sum over words of N bytes.
trait WordSum<const N: usize> {
    fn add(&mut self, words: &[[u8; N]]);
}

impl WordSum<8> for u64 {
    fn add(&mut self, words: &[[u8; 8]]) {
        *self ^= crate::xor64(words.as_flattened());
    }
}

impl WordSum<16> for Fletcher {
    fn add(&mut self, words: &[[u8; 16]]) {
        self.add_words(words);
    }
}

/// Cuts pieces of any length into words. Invariant: `pending < N`.
struct Words<const N: usize, S> {
    sum: S,
    partial: [u8; N],
    pending: usize,
}

impl<const N: usize, S: Default> Default for Words<N, S> {
    fn default() -> Self {
        Words { sum: S::default(), partial: [0; N], pending: 0 }
    }
}

impl<const N: usize, S: WordSum<N>> Words<N, S> {
    fn update(&mut self, mut piece: &[u8]) {
        if self.pending > 0 {
            let (head, rest) = piece.split_at(piece.len().min(N - self.pending));
            self.partial[self.pending..][..head.len()].copy_from_slice(head);
            self.pending += head.len();
            piece = rest;
            if self.pending < N {
                return;
            }
            self.sum.add(&[self.partial]);
        }
        let (words, tail) = piece.as_chunks::<N>();
        self.sum.add(words);
        self.partial[..tail.len()].copy_from_slice(tail);
        self.pending = tail.len();
    }

    /// Fills an incomplete last word up with zero bytes.
    fn finish(mut self) -> S {
        if self.pending > 0 {
            self.partial[self.pending..].fill(0);
            self.sum.add(&[self.partial]);
        }
        self.sum
    }
}
