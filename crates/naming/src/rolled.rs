//! Pages of metadata in the making: one way to change them, which takes the checksum along.
//!
//! A page that is changed starts from the stored one and *its* checksum and second sum, and each change takes both along from the bytes
//! that it changes alone, as everywhere in the store. So what hits the page on the way (or a path that goes around [`Rolled::put`]) does not
//! get valid ones: [`Rolled::publish`] compares, once the bytes are where they stay, and the request is done anew. The second sum names object
//! and page, from where the page is taken to where it is put back.

use crate::error::{Error, Result};
use holdfast_integrity::{Algorithm, CRC64_OF_ZEROS, Checksum, Delta, Mismatch, crc64, tally};
use holdfast_object::{FrameMut, ObjectId, PAGE_SIZE, PageIndex, PageSeal, PinnedPage};
use std::ops::Deref;

/// How often a request is done that finds something gone bad under its hands.
pub(crate) const ATTEMPTS: usize = 3;

/// Does a request anew that found a page which it was changing gone bad in memory, or operations that do not fit together: nothing of it was done, and
/// what was wrong may have been in memory. A logic bug that stays ends in an error.
pub(crate) fn until_sound<T>(mut request: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match request() {
            Err(error @ (Error::Scribbled { .. } | Error::Audit { .. })) => {
                tracing::error!(%error, "a request is done anew")
            }
            outcome => return outcome,
        }
    }
    request()
}

/// Zeroes, to be put.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// A page's bytes, and the CRC-64 and second sum that legal changes have left.
#[derive(Clone)]
pub(crate) struct Rolled {
    bytes: Box<[u8; PAGE_SIZE]>,
    crc64: u64,
    seal: PageSeal,
}

impl Rolled {
    /// A page of zeroes.
    pub(crate) fn zeroes(object: ObjectId, index: PageIndex) -> Rolled {
        Rolled { bytes: Box::new(ZEROES), crc64: CRC64_OF_ZEROS, seal: PageSeal::new(object, index, 0) }
    }

    /// A page that is stored, of this object and index: verified, and under the sums that it was verified by.
    pub(crate) fn of(page: &PinnedPage, object: ObjectId, index: PageIndex) -> Rolled {
        let known = Some(page.sum()).filter(|sum| sum.algorithm() == Algorithm::Crc64Nvme);
        let crc64 = known.and_then(|sum| sum.as_u64()).unwrap_or_else(|| crc64(page.bytes()));
        let seal = page.seal().unwrap_or_else(|| PageSeal::new(object, index, tally(page.bytes())));
        // By way of a vector: an array would be copied to the stack first.
        let bytes = page.bytes().to_vec().into_boxed_slice().try_into().expect("a page has the bytes of a page");
        Rolled { bytes, crc64, seal }
    }

    /// Replaces the bytes from `at` on.
    ///
    /// # Panics
    /// If they do not lie within the page.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        let old = &mut self.bytes[at..at + bytes.len()];
        let delta = Delta::of(at, old, bytes);
        self.crc64 ^= delta.crc64;
        self.seal = self.seal.changed(delta.tally);
        old.copy_from_slice(bytes);
    }

    /// From `at` on there are only zeroes, as there are from `end` on already.
    pub(crate) fn end(&mut self, at: usize, end: usize) {
        if at < end {
            self.put(at, &ZEROES[at..end]);
        }
    }

    /// The page in the frame where it is to stay.
    ///
    /// # Errors
    /// [`Error::Scribbled`]: its bytes are not what legal changes have made of it, or it is another page.
    pub(crate) fn publish(&self, object: ObjectId, page: PageIndex, frame: FrameMut) -> Result<PinnedPage> {
        let mut frame = frame.into_metadata();
        let got = frame.copy_summed(&self.bytes, Algorithm::Crc64Nvme);
        let expected = Checksum::crc64(self.crc64);
        let tally = tally(&self.bytes);
        let checked = if got == expected {
            self.seal.verify(object, page, tally)
        } else {
            Err(Mismatch { expected, got }.into())
        };
        checked.map_err(|mismatch| Error::Scribbled { object, page, mismatch })?;
        Ok(frame.publish_sealed(expected, self.seal))
    }

    /// Changes a byte as nobody must.
    #[cfg(test)]
    pub(crate) fn scribble(&mut self, at: usize) {
        self.bytes[at] ^= 4;
    }
}

impl Deref for Rolled {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &[u8; PAGE_SIZE] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::Arena;
    use rand::{Rng, RngCore, SeedableRng};

    #[test]
    fn the_checksum_is_that_of_the_bytes_after_any_changes() {
        let seed = rand::rng().random();
        eprintln!("seed {seed}");
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let arena = Arena::new(2, 0).unwrap();
        let mut page = Rolled::zeroes(ObjectId(7), 3);
        for _ in 0..300 {
            let at = random.random_range(0..PAGE_SIZE);
            let mut bytes = vec![0; random.random_range(0..=(PAGE_SIZE - at).min(600))];
            random.fill_bytes(&mut bytes);
            page.put(at, &bytes);
            if random.random_ratio(1, 10) {
                page.end(random.random_range(0..=PAGE_SIZE), PAGE_SIZE);
            }
            let published = page.publish(ObjectId(7), 3, arena.allocate().unwrap()).unwrap();
            assert!(published.verify().is_ok() && published.bytes() == &*page);
            if random.random_ratio(1, 4) {
                page = Rolled::of(&published, ObjectId(7), 3);
            }
        }
        // It is no other page.
        for (object, index) in [(ObjectId(7), 4), (ObjectId(8), 3)] {
            assert!(page.publish(object, index, arena.allocate().unwrap()).is_err());
        }
        page.scribble(random.random_range(0..PAGE_SIZE));
        let refused = page.publish(ObjectId(7), 3, arena.allocate().unwrap());
        assert!(matches!(refused, Err(Error::Scribbled { object: ObjectId(7), page: 3, .. })));
        // A legal change over it does not make it right.
        page.put(0, &ZEROES);
        assert!(page.publish(ObjectId(7), 3, arena.allocate().unwrap()).is_err());
    }
}
