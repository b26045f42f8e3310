//! The buffer that requests are received in.

use rustix::mm::{MapFlags, ProtFlags};
use std::ops::{Deref, DerefMut};

/// Page-aligned memory that is there before it is used: a copy from the kernel that faults would become an error of the
/// application's request.
pub(crate) struct Buffer {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new(length: usize) -> std::io::Result<Buffer> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        Ok(Buffer { base: base.cast(), length })
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this length, is zeroed at first, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the mapping any more.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), self.length);
        }
    }
}
