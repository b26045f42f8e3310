//! Between an application's checksums and those of pages: checksum chaining at the boundary of naming.
//!
//! The one place that goes from the checksum of a page in memory to other algorithms and other coverage and back. An application's
//! checksum of a block covers just the bytes transferred, as a fragment's does; a page's covers the page.
//!
//! Invariant: at no moment are bytes without a checksum that was made before the last one was verified
//! ([`holdfast_integrity::assemble`]).

use crate::pages::{SumsWanted, zero_page};
use holdfast_integrity::{Algorithm, ChainError, Checksum, Protected};
use holdfast_object::{PAGE_SIZE, PinnedPage};
use std::ops::Range;
use std::sync::LazyLock;

static ZERO_SUM: LazyLock<Checksum> = LazyLock::new(|| Algorithm::Crc64Nvme.sum(zero_page()));

/// A page with the checksum that counts for this reader.
fn protected(page: &PinnedPage) -> Protected<&[u8; PAGE_SIZE]> {
    Protected::from_parts(page.bytes(), page.expected())
}

/// The checksum for whoever gets a part of a page. All of the page under its own algorithm: the page's checksum as it is (case 1:
/// nothing is computed, the reader verifies). Otherwise a new one, made before the page is verified (cases 2 and 3).
///
/// # Errors
/// [`ChainError::Mismatch`]: the page is bad.
pub(crate) fn of_part(page: &PinnedPage, part: Range<usize>, how: SumsWanted) -> Result<Checksum, ChainError> {
    let protected = protected(page);
    let (sum, was_verified) = chained(&protected, part, how)?;
    if was_verified {
        page.set_verified(&protected.checksum());
    }
    Ok(sum)
}

/// The same for the page that is read where nothing is stored.
///
/// # Errors
/// As for [`of_part`].
pub(crate) fn of_zeroes(part: Range<usize>, how: SumsWanted) -> Result<Checksum, ChainError> {
    chained(&Protected::from_parts(zero_page(), *ZERO_SUM), part, how).map(|(sum, _)| sum)
}

/// The checksum, and whether the page has been verified for it.
fn chained<B: AsRef<[u8]>>(
    page: &Protected<B>,
    part: Range<usize>,
    how: SumsWanted,
) -> Result<(Checksum, bool), ChainError> {
    if how.algorithm == page.checksum().algorithm() && part == (0..page.len()) {
        if how.verify {
            page.verify().map_err(|mismatch| ChainError::Mismatch { index: 0, mismatch })?;
        }
        return Ok((page.checksum(), how.verify));
    }
    Ok((page.slice(part, how.algorithm)?.checksum(), true))
}

/// Takes bytes that came with a checksum to where they stay, under the page's `algorithm`; gives the checksum that they have there.
/// Of this algorithm: the one that came goes on, and is verified where the bytes arrive (case 1′). Of another: the new one is made
/// from the bytes that came, then these are verified, then they move (case 2).
///
/// # Errors
/// [`ChainError::Mismatch`]: the bytes do not have the checksum that came with them.
pub(crate) fn receive<O, D>(bytes: O, sum: Checksum, algorithm: Algorithm, to: D) -> Result<Checksum, ChainError>
where
    O: AsRef<[u8]>,
    D: AsRef<[u8]> + AsMut<[u8]>,
{
    let came = Protected::from_parts(bytes, sum);
    let here = if sum.algorithm() == algorithm { came.forward_verified(to)? } else { came.convert(algorithm, to)? };
    Ok(here.checksum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, OnceCell};

    const OWN: Algorithm = Algorithm::Crc64Nvme;

    /// Bytes of which one flips just before the access number `flip_before`, and stays flipped.
    struct Flaky {
        bytes: Vec<u8>,
        flipped: OnceCell<Vec<u8>>,
        accesses: Cell<usize>,
        flip_before: usize,
    }

    impl Flaky {
        fn new(bytes: &[u8], flip_before: usize) -> Flaky {
            Flaky { bytes: bytes.to_vec(), flipped: OnceCell::new(), accesses: Cell::new(0), flip_before }
        }
    }

    impl AsRef<[u8]> for Flaky {
        fn as_ref(&self) -> &[u8] {
            let access = self.accesses.replace(self.accesses.get() + 1);
            if access < self.flip_before {
                return &self.bytes;
            }
            self.flipped.get_or_init(|| {
                let mut bytes = self.bytes.clone();
                bytes[7] ^= 16;
                bytes
            })
        }
    }

    /// Wherever between two steps a bit flips in what came: it is refused, or what stays does not match.
    #[test]
    fn a_flip_while_bytes_are_taken_in_is_caught() {
        let bytes: Vec<u8> = (0..100).collect();
        for algorithm in [Algorithm::Crc64Nvme, Algorithm::Xor64, Algorithm::Fletcher256, Algorithm::Crc32c] {
            let sum = algorithm.sum(&bytes);
            let mut stay = [0; 100];
            let sound = Flaky::new(&bytes, usize::MAX);
            let checksum = receive(&sound, sum, OWN, &mut stay[..]).unwrap();
            assert_eq!((checksum, &stay[..]), (OWN.sum(&bytes), &bytes[..]));
            assert!(sound.accesses.get() > 0);
            for gap in 0..sound.accesses.get() {
                let mut stay = [0; 100];
                let taken = receive(Flaky::new(&bytes, gap), sum, OWN, &mut stay[..]);
                assert!(
                    taken.is_err() || taken == Ok(OWN.sum(&bytes)),
                    "{algorithm}, gap {gap}: a checksum of flipped bytes"
                );
                if gap == 0 {
                    assert!(taken.is_err(), "{algorithm}: what came flipped was taken");
                }
            }
        }
    }

    /// The same for what is read: the reader's checksum fails, or the read does.
    #[test]
    fn a_flip_while_a_reader_is_served_is_caught() {
        let bytes: Vec<u8> = (0..PAGE_SIZE).map(|index| index as u8).collect();
        let own = OWN.sum(&bytes);
        for (algorithm, part) in
            [(OWN, 0..PAGE_SIZE), (OWN, 3..100), (Algorithm::Xor64, 0..PAGE_SIZE), (Algorithm::Blake3, 5..8)]
        {
            let want = algorithm.sum(&bytes[part.clone()]);
            for verify in [false, true] {
                let how = SumsWanted { algorithm, verify };
                for gap in 0..10 {
                    let flaky = Protected::from_parts(Flaky::new(&bytes, gap), own);
                    let given = chained(&flaky, part.clone(), how).map(|(sum, _)| sum);
                    assert!(given.is_err() || given == Ok(want), "{algorithm}, gap {gap}: {given:?}");
                }
                assert_eq!(of_zeroes(part.clone(), how), Ok(algorithm.sum(&[0; PAGE_SIZE][..part.len()])));
            }
        }
    }
}
