//! Bits of the page pool inverted on purpose, as a fault of memory does it: past everything that looks after them. For tests, for the lab's
//! experiments, and for mounts made for it (`holdfast mount --lab`).

use super::{Arena, PinnedPage};
use crate::PAGE_SIZE;
use std::sync::atomic::Ordering;

/// Bits of a page.
pub const PAGE_BITS: u32 = PAGE_SIZE as u32 * 8;

impl Arena {
    /// Inverts the bit `bit % 8` of the byte `bit / 8` of a frame, whatever the frame holds. Somebody may write there at the same moment;
    /// then the flip may be lost, as one of a memory cell would be.
    ///
    /// # Panics
    /// There is no such frame, or bit.
    pub fn flip(&self, frame: u32, bit: u32) {
        assert!(frame < self.frames && bit < PAGE_BITS, "bit {bit} of frame {frame} of {}", self.frames);
        let at = self.frame_offset(frame) + u64::from(bit / 8);
        let mut byte = [0];
        // By the memory file and not by the mapping: published bytes do not change as far as the compiler knows.
        let read = rustix::io::pread(&self.memory, &mut byte, at);
        let written = rustix::io::pwrite(&self.memory, &[byte[0] ^ 1 << (bit % 8)], at);
        assert!(read == Ok(1) && written == Ok(1), "a byte of the pool: {read:?}, {written:?}");
    }
}

impl PinnedPage {
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
            let page = frame.publish(algorithm.sum(&[9; PAGE_SIZE]));
            for bit in [0, 7, 8, 777, PAGE_BITS - 1] {
                arena.flip(page.page().frame, bit);
                assert_eq!(page.bytes()[bit as usize / 8], 9 ^ 1 << (bit % 8));
                assert!(page.verify().is_err(), "{algorithm}, bit {bit}");
                arena.flip(page.page().frame, bit);
                assert!(page.verify().is_ok(), "{algorithm}, bit {bit}");
            }
            for bit in [0, page.sum_bits() - 1] {
                let flipped = page.with_flipped_sum(bit);
                assert!(flipped.verify().is_err(), "{algorithm}, bit {bit}");
                assert!(flipped.with_flipped_sum(bit).verify().is_ok(), "{algorithm}, bit {bit}");
            }
        }
        assert_eq!(arena.allocate().unwrap().publish(Checksum::none()).sum_bits(), 0);
    }
}
