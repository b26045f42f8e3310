//! Bits of the page pool inverted on purpose, as a fault of memory does it: past everything that looks after them. For tests, for the lab's
//! experiments, and for mounts made for it (`holdfast mount --lab`).

use super::{Arena, PinnedPage};
use crate::PAGE_SIZE;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits of a page.
pub const PAGE_BITS: u32 = PAGE_SIZE as u32 * 8;

impl Arena {
    /// Inverts the bit `bit % 8` of the byte `bit / 8` of a frame, whatever the frame holds.
    ///
    /// # Panics
    /// There is no such frame, or bit.
    ///
    /// # Safety
    /// While this runs, no thread has a reference to bytes of the frame, as [`PinnedPage::bytes`], [`PinnedPage::verify`] and
    /// [`FrameMut`](super::FrameMut) give them: they count as unchanging, or as nobody else's, for as long as they live. Handles
    /// may be there, as long as nobody looks through them.
    pub unsafe fn flip(&self, frame: u32, bit: u32) {
        // In a window, as it stands for what no lock keeps out.
        // SAFETY: the caller's promise.
        super::changing(|| unsafe { self.flip_astray(frame, bit) });
    }

    /// The same outside of any window, which ends the process where the frame is locked. A function of its own, to be found in reports.
    #[inline(never)]
    unsafe fn flip_astray(&self, frame: u32, bit: u32) {
        assert!(frame < self.all_frames && bit < PAGE_BITS, "bit {bit} of frame {frame} of {}", self.all_frames);
        // SAFETY: within the frame by the assertion, and the mapping lives as long as `self`; the caller keeps others away.
        let byte = unsafe { AtomicU8::from_ptr(self.frame(frame).add(bit as usize / 8)) };
        byte.fetch_xor(1 << (bit % 8), Ordering::Relaxed);
    }
}

impl PinnedPage {
    /// Inverts these bits of the page, if this is the only reference to it; whether it is. Nobody can pin it meanwhile.
    ///
    /// # Panics
    /// There is no such bit; then nothing has changed.
    #[must_use]
    pub fn flip(&mut self, bits: &[u32]) -> bool {
        super::changing(|| self.flip_astray(bits))
    }

    /// The same outside of any window, which ends the process where the page is locked.
    ///
    /// # Panics
    /// There is no such bit; then nothing has changed.
    #[must_use]
    pub fn flip_astray(&mut self, bits: &[u32]) -> bool {
        assert!(bits.iter().all(|bit| *bit < PAGE_BITS), "bits {bits:?} of {PAGE_BITS}");
        let references = &self.arena.descriptor(self.page.frame).references;
        // What has no references cannot be pinned, and is not handed out as long as it has not been freed.
        if references.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        for bit in bits {
            // SAFETY: bytes are had through a handle of their page, which is only `self`, and `&mut self` says that none are had through that.
            unsafe { self.arena.flip_astray(self.page.frame, *bit) };
        }
        references.store(1, Ordering::Release);
        true
    }

    /// Bits of the checksum that it is kept under in memory; 0 in the modes without one.
    pub fn sum_bits(&self) -> u32 {
        self.sum().algorithm().digest_len() as u32 * 8
    }

    /// The page as whoever finds it sees it after a bit of that checksum has flipped. A checksum of up to 8 bytes is part of the page's
    /// name, so the page keeps the right one for those who have it pinned; a longer one changes for all.
    ///
    /// # Panics
    /// There is no such bit.
    pub fn with_flipped_sum(&self, bit: u32) -> PinnedPage {
        assert!(bit < self.sum_bits(), "bit {bit} of {}", self.sum_bits());
        let mut flipped = self.clone();
        if self.sum_bits() <= u64::BITS {
            flipped.page.checksum ^= 1 << bit;
        } else {
            let words = &self.arena.descriptor(self.page.frame).strong_bytes;
            words[(bit / u64::BITS) as usize].fetch_xor(1 << (bit % u64::BITS), Ordering::Relaxed);
        }
        flipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::{Algorithm, Checksum};

    #[test]
    fn a_flip_of_any_bit_is_seen_and_taken_back_by_another() {
        let arena = Arena::new(2, 0).unwrap();
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::None) {
            let mut frame = arena.allocate().unwrap();
            frame.fill(9);
            let mut page = frame.publish(algorithm.sum(&[9; PAGE_SIZE]));
            for bit in [0, 7, 8, 777, PAGE_BITS - 1] {
                assert!(page.flip(&[bit]));
                assert_eq!(page.bytes()[bit as usize / 8], 9 ^ 1 << (bit % 8));
                assert!(page.verify().is_err(), "{algorithm}, bit {bit}");
                assert!(page.flip(&[bit]));
                assert!(page.verify().is_ok(), "{algorithm}, bit {bit}");
            }
            assert!(page.is_sole() && arena.pin(page.page()).is_some(), "it can be pinned as before");
            for bit in [0, page.sum_bits() - 1] {
                let flipped = page.with_flipped_sum(bit);
                assert!(flipped.verify().is_err(), "{algorithm}, bit {bit}");
                assert!(flipped.with_flipped_sum(bit).verify().is_ok(), "{algorithm}, bit {bit}");
            }
        }
        assert_eq!(arena.allocate().unwrap().publish(Checksum::none()).sum_bits(), 0);
    }
    #[test]
    fn a_page_that_others_have_is_not_flipped() {
        let arena = Arena::new(1, 0).unwrap();
        let mut frame = arena.allocate().unwrap();
        frame.fill(9);
        let mut page = frame.publish(Algorithm::Crc64Nvme.sum(&[9; PAGE_SIZE]));
        let other = page.clone();
        assert!(!page.flip(&[5]));
        assert!(other.verify().is_ok() && page.verify().is_ok());
        drop(other);
        assert!(page.flip(&[5]) && page.verify().is_err());
        drop(page);
        assert_eq!(arena.free_frames(), 1);
    }
}
