//! The second sum of a page of metadata, for what its CRC-64 cannot tell: a multiple of the polynomial, and that it is another page's.
//!
//! It stands in the frame's descriptor, away from the bytes and from the checksum that is part of the page's name, and never leaves memory.
//! Invariant: a page that has a seal is good only if its bytes have both sums ([`PinnedPage::verify`]).

use super::PinnedPage;
use crate::{ObjectId, PageIndex};
use holdfast_integrity::{Algorithm, Checksum, Mismatch, crc64_and_tally, identity_mix, identity_tag, tally};
use std::sync::atomic::Ordering;

/// Whose page it is, and the tally of its bytes with that added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSeal {
    /// Of object and index, never 0.
    tag: u32,
    sum: u32,
}

impl PageSeal {
    /// Of a page of an object, whose bytes have this tally ([`holdfast_integrity::tally`]).
    pub fn new(object: ObjectId, index: PageIndex, tally: u32) -> PageSeal {
        let tag = identity_tag(identity_mix(0, object.0, 0, index)) | 1;
        PageSeal { tag, sum: tally.wrapping_add(tag) }
    }

    /// The tally of the bytes.
    fn tally(self) -> u32 {
        self.sum.wrapping_sub(self.tag)
    }

    /// Whether it is that of this page, whatever the bytes.
    pub fn is_of(self, object: ObjectId, index: PageIndex) -> bool {
        self.tag == PageSeal::new(object, index, 0).tag
    }

    /// After a legal change of the bytes, by which the tally changes ([`holdfast_integrity::Delta`]).
    #[must_use]
    pub fn changed(self, delta: u32) -> PageSeal {
        PageSeal { sum: self.sum.wrapping_add(delta), ..self }
    }

    /// Whether it is that of this page, with bytes of this tally.
    pub fn verify(self, object: ObjectId, index: PageIndex, tally: u32) -> Result<(), PageMismatch> {
        let right = PageSeal::new(object, index, tally);
        let mismatch = PageMismatch::Seal { expected: self.sum.wrapping_sub(right.tag), got: tally };
        if self == right { Ok(()) } else { Err(mismatch) }
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.sum)
    }

    pub(super) fn of_word(word: u64) -> Option<PageSeal> {
        (word != 0).then_some(PageSeal { tag: (word >> 32) as u32, sum: word as u32 })
    }
}

/// A page's bytes are not what they were published as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageMismatch {
    /// They do not have the checksum.
    #[error(transparent)]
    Checksum(#[from] Mismatch),
    /// They have the checksum, and not the second sum.
    #[error("mismatch of the second sum: expected {expected:#010x}, got {got:#010x}")]
    Seal {
        /// What the seal says.
        expected: u32,
        /// That of the bytes as they are now.
        got: u32,
    },
}

impl PageMismatch {
    /// What the bytes should have, and what they have, for people.
    pub fn expected_and_got(&self) -> (String, String) {
        match self {
            PageMismatch::Checksum(Mismatch { expected, got }) => (expected.to_string(), got.to_string()),
            PageMismatch::Seal { expected, got } => {
                (format!("second sum {expected:#010x}"), format!("{got:#010x} under the same checksum"))
            }
        }
    }
}

impl PinnedPage {
    /// Its second sum, if it is a page of metadata.
    pub fn seal(&self) -> Option<PageSeal> {
        PageSeal::of_word(self.arena.descriptor(self.page.frame).seal.load(Ordering::Acquire))
    }

    pub(super) fn set_seal(&self, seal: PageSeal) {
        self.arena.descriptor(self.page.frame).seal.store(seal.to_word(), Ordering::Release);
    }

    /// Gives it the second sum of its bytes as they are, unless it has one. Whoever then verifies it has the older checksum verified after
    /// the newer one was made.
    pub fn seal_for(&self, object: ObjectId, index: PageIndex) {
        if self.seal().is_none() {
            self.set_seal(PageSeal::new(object, index, tally(self.bytes())));
        }
    }

    /// Whether its bytes are those that it was sealed with, by the second sum alone. So is a page without.
    pub fn verify_seal(&self) -> Result<(), PageMismatch> {
        self.seal().map_or(Ok(()), |seal| seal.compare(tally(self.bytes())))
    }

    /// [`PinnedPage::verify`] of a page with a second sum.
    pub(super) fn verify_both(&self, seal: PageSeal) -> Result<(), PageMismatch> {
        let expected = self.expected();
        if expected.algorithm() != Algorithm::Crc64Nvme {
            expected.verify(self.bytes())?;
            return self.verify_seal();
        }
        let (crc64, tally) = crc64_and_tally(self.bytes());
        let got = Checksum::crc64(crc64);
        if got != expected {
            return Err(Mismatch { expected, got }.into());
        }
        seal.compare(tally)
    }
}

impl PageSeal {
    fn compare(self, got: u32) -> Result<(), PageMismatch> {
        if got == self.tally() { Ok(()) } else { Err(PageMismatch::Seal { expected: self.tally(), got }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, PAGE_SIZE};
    use holdfast_integrity::{Delta, crc64_neutral};

    fn sealed(arena: &std::sync::Arc<Arena>, object: ObjectId, index: PageIndex) -> PinnedPage {
        let mut frame = arena.allocate().unwrap();
        frame.fill(9);
        let page = frame.publish(Algorithm::Crc64Nvme.sum(&[9; PAGE_SIZE]));
        page.seal_for(object, index);
        page
    }

    #[test]
    fn what_keeps_the_checksum_is_seen() {
        let arena = Arena::new(1, 0).unwrap();
        let mut page = sealed(&arena, ObjectId(5), 2);
        assert!(page.verify().is_ok() && page.seal().unwrap().is_of(ObjectId(5), 2));
        let (at, pattern) = crc64_neutral(8 * 1000).unwrap();
        let bits = (0..72).filter(|bit| pattern[bit / 8] >> (bit % 8) & 1 == 1).map(|bit| (8 * at + bit) as u32);
        assert!(page.flip(&bits.collect::<Vec<_>>()));
        assert_eq!(page.sum().verify(page.bytes()), Ok(()), "its checksum is the same");
        let refused = page.verify().unwrap_err();
        assert!(matches!(refused, PageMismatch::Seal { .. }) && page.verify_seal() == Err(refused), "{refused}");
    }

    #[test]
    fn any_bit_of_a_seal_counts() {
        let arena = Arena::new(1, 0).unwrap();
        let page = sealed(&arena, ObjectId(5), 2);
        let seal = page.seal().unwrap();
        for bit in 0..64 {
            page.set_seal(PageSeal::of_word(seal.to_word() ^ 1 << bit).unwrap());
            assert!(page.verify().is_err(), "bit {bit}");
        }
    }

    #[test]
    fn it_is_one_pages_and_follows_changes() {
        let arena = Arena::new(1, 0).unwrap();
        let seal = sealed(&arena, ObjectId(5), 2).seal().unwrap();
        assert!(!seal.is_of(ObjectId(5), 3) && !seal.is_of(ObjectId(6), 2));
        let mut bytes = [9; PAGE_SIZE];
        let delta = Delta::of(70, &bytes[70..73], &[1, 2, 3]);
        bytes[70..73].copy_from_slice(&[1, 2, 3]);
        assert_eq!(seal.changed(delta.tally), PageSeal::new(ObjectId(5), 2, tally(&bytes)));
        // The frame's next page has none.
        let frame = arena.allocate().unwrap();
        assert_eq!(frame.publish(Checksum::none()).seal(), None);
    }
}
