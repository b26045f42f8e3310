//! What Fletcher-256 changes by: see [`crate::fletcher256`] for the checksum.

use crate::sums::{Fletcher, WORD};

/// What the Fletcher-256 of `len` bytes changes by when those from `at` on become `new` instead of `old`, to be taken into a
/// checksum or another delta by [`fletcher256_add_delta`].
///
/// # Panics
/// If `old` and `new` differ in length, or do not lie within `len` bytes.
pub fn fletcher256_change(len: usize, at: usize, old: &[u8], new: &[u8]) -> [u8; 32] {
    assert_eq!(old.len(), new.len(), "a change does not move what follows");
    assert!(at <= len && old.len() <= len - at, "a change of {} bytes at {at} does not lie in {len} bytes", old.len());
    let words = len.div_ceil(WORD);
    let mut sum = Fletcher::default();
    let (mut place, mut old, mut new) = (at, old, new);
    while !old.is_empty() {
        let skip = place % WORD;
        let here = (WORD - skip).min(old.len());
        let ((old_piece, old_rest), (new_piece, new_rest)) = (old.split_at(here), new.split_at(here));
        let word = |piece: &[u8]| {
            let mut word = [0; WORD];
            word[skip..skip + here].copy_from_slice(piece);
            u128::from_le_bytes(word)
        };
        // The word number i, from 0, counts n − i times.
        sum.replace(word(old_piece), word(new_piece), (words - place / WORD) as u64);
        (place, old, new) = (place + here, old_rest, new_rest);
    }
    sum.digest()
}

/// A checksum and a delta, or two deltas, in one.
pub fn fletcher256_add_delta(one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    Fletcher::of_digest(one).combine(&Fletcher::of_digest(other)).digest()
}
