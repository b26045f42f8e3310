//! The buffer that requests are received in.

use rustix::mm::{MapFlags, ProtFlags};
use std::ops::{Deref, DerefMut};

/// Page-aligned memory that is there before it is used: when the process is killed during the copy from the kernel, a page that
/// has to be faulted in first cannot be, and the application's request fails with EIO instead of being sent again.
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
        // It should also stay there. Where the limit (RLIMIT_MEMLOCK) is too low, pages that were used a moment ago seldom go.
        // SAFETY: the mapping was made above with this length; locking changes nothing that safe code sees.
        let _ = unsafe { rustix::mm::mlock(base, length) };
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
