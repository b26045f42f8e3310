//! The links of lists of free frames.
//!
//! A link is a word that knows when a bit of it has flipped: 3 bits that say that the frame is free, 29 that are made of all the rest, and 32 with
//! the next frame's number. It stands where a page has the time since when it is in memory, which has none of the first 3 bits.

const FREE: u64 = 0b111 << 61;
/// The latest time that a page can have come into memory, so that no flip of a bit makes it a link: after 73 years. A clock that begins in
/// 1970, as simulated ones may, shows that in 2043.
pub(in crate::arena) const TIME_MAX_NS: u64 = (1 << 61) - 1;

/// A list.
#[derive(Clone, Copy)]
pub(super) struct Which {
    pub(super) kind: usize,
    pub(super) is_bare: bool,
}

/// What the links of a list are made with: those of another list, and of the same one before it was made anew, have another one.
#[derive(Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn new(which: Which, rebuilt: u32) -> Key {
        let number = u64::from(rebuilt) << 2 | (which.kind as u64) << 1 | u64::from(which.is_bare);
        Key(number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The link of a frame to the next one.
    pub(super) fn link(self, frame: u32, next: u32) -> u64 {
        let named = u64::from(frame) << 32 | u64::from(next);
        // A flip of any bit of `next` changes some of the upper 29 of the product.
        let check = (named.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.0) >> 35;
        FREE | check << 32 | u64::from(next)
    }

    /// Whether a frame's word is a link of this key.
    pub(super) fn made(self, frame: u32, word: u64) -> bool {
        word == self.link(frame, next(word))
    }
}

/// The number in a link.
pub(super) fn next(link: u64) -> u32 {
    link as u32
}

/// Whether a word is that of a free frame, although a bit of it may have flipped.
pub(super) fn says_free(word: u64) -> bool {
    (word & FREE).count_ones() >= 2
}
