//! Test only: a buffer that loses a bit between two steps of an operation.

use std::cell::{Cell, OnceCell};

/// Bytes in which one bit flips just before the access number `flip_before` (from 0), and stays flipped.
///
/// The operations under test reach their buffers anew at every step, so every gap between steps can be hit, without
/// a hook in the code itself.
pub(crate) struct Flaky {
    bytes: Vec<u8>,
    flipped: OnceCell<Vec<u8>>,
    bit: usize,
    flip_before: usize,
    accesses: Cell<usize>,
    permanent: bool,
}

impl Flaky {
    pub(crate) fn new(bytes: Vec<u8>, bit: usize, flip_before: usize) -> Self {
        Flaky {
            bit: bit % (bytes.len() * 8).max(1),
            bytes,
            flipped: OnceCell::new(),
            flip_before,
            accesses: Cell::new(0),
            permanent: false,
        }
    }

    /// A buffer that keeps its bits.
    pub(crate) fn sound(bytes: Vec<u8>) -> Self {
        Flaky::new(bytes, 0, usize::MAX)
    }

    /// How often the bytes were reached.
    pub(crate) fn accesses(&self) -> usize {
        self.accesses.get()
    }

    fn due(&self) -> bool {
        let access = self.accesses.get();
        self.accesses.set(access + 1);
        !self.permanent && access >= self.flip_before && !self.bytes.is_empty()
    }
}

impl AsRef<[u8]> for Flaky {
    fn as_ref(&self) -> &[u8] {
        if !self.due() {
            return &self.bytes;
        }
        self.flipped.get_or_init(|| {
            let mut bytes = self.bytes.clone();
            bytes[self.bit / 8] ^= 1 << (self.bit % 8);
            bytes
        })
    }
}

impl AsMut<[u8]> for Flaky {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.due() {
            self.bytes[self.bit / 8] ^= 1 << (self.bit % 8);
            self.permanent = true;
        }
        &mut self.bytes
    }
}
