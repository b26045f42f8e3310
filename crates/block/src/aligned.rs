//! Heap memory aligned to a block, as direct I/O needs it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::BLOCK_SIZE;

/// A zero-initialised byte buffer on the heap whose address is a multiple of 4096. Direct I/O into and out of it needs no
/// copy. Dereferences to `[u8]`.
pub struct AlignedBuf {
    start: NonNull<u8>,
    length: usize,
}

impl AlignedBuf {
    /// A buffer of `length` zero bytes.
    ///
    /// # Panics
    /// If `length` exceeds `isize::MAX` less one block, or memory is exhausted (as `Vec` does).
    pub fn zeroed(length: usize) -> Self {
        if length == 0 {
            return AlignedBuf { start: NonNull::dangling(), length };
        }
        let layout = Self::layout(length);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuf { start, length }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, BLOCK_SIZE).expect("buffer length below isize::MAX")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `length` initialised bytes owned by self (or is dangling and `length` is 0).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.length != 0 {
            // SAFETY: allocated in `zeroed` with this very layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.length)) }
        }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        AlignedBuf::copy_of(self)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.length)
    }
}

// SAFETY: the buffer owns its memory exclusively and u8 has no thread affinity.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        for length in [1, 512, 4095, 4096, 4097, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(length);
            assert!(buf.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
            assert!(buf.len() == length && buf.iter().all(|byte| *byte == 0));
            buf.fill(7);
            let copy = buf.clone();
            buf.fill(8);
            assert!(copy.iter().all(|byte| *byte == 7) && copy.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
        }
    }

    #[test]
    fn an_empty_buffer_is_fine() {
        assert!(AlignedBuf::zeroed(0).is_empty());
    }
}
