//! Large writes through the page cache go to the disk at once, and do not wait there for a flush.
//!
//! The kernel begins to write what a file has in the page cache after seconds, or when a share of all memory is dirty. Until then the
//! disk does nothing, and the flush that follows does everything.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::FileDevice;
use crate::BLOCK_SIZE;

/// Smaller writes are left to the kernel, which makes larger ones of them.
const LEAST_BYTES: u64 = 256 << 10;

impl FileDevice {
    /// From now on the disk begins with large writes as they come; they are durable no sooner than by a flush. For a writer that flushes
    /// what it has written anyway. Past the page cache, where they go to the disk in any case, this is nothing.
    pub fn write_early(&self) {
        self.is_early.store(true, Ordering::Relaxed);
    }

    /// After a write to the page cache.
    pub(super) fn begin_early(&self, first: u64, length_bytes: u64) {
        if self.direct.is_some() || length_bytes < LEAST_BYTES || !self.is_early.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(start), Ok(length)) = (i64::try_from(first * BLOCK_SIZE as u64), i64::try_from(length_bytes)) else {
            return;
        };
        // What comes of it is the flush's to tell, to which the kernel keeps what has failed.
        // SAFETY: the call has no pointers, and the descriptor is open as long as `self` is.
        let _ = unsafe { libc::sync_file_range(self.fd.as_raw_fd(), start, length, libc::SYNC_FILE_RANGE_WRITE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::store;
    use crate::{Access, Device};
    use std::io::IoSlice;

    /// cachestat(2), which libc does not name yet.
    const CACHESTAT: libc::c_long = 451;

    /// Pages of the file that are in the page cache and wait there for somebody who writes them to the disk; `None` if the kernel, older
    /// than 6.5, does not tell.
    fn waiting_pages(device: &FileDevice) -> Option<u64> {
        // Offset and length, zero for the whole file; cached, dirty, under writeback, evicted, recently evicted.
        let (range, mut found) = ([0_u64; 2], [0_u64; 5]);
        // SAFETY: both arrays are as large as what the kernel reads and writes.
        let done = unsafe {
            libc::syscall(CACHESTAT, device.fd.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0 as libc::c_uint)
        };
        (done == 0).then_some(found[1])
    }

    #[test]
    fn the_disk_begins_with_a_large_write_if_it_is_asked_to() {
        let (directory, path, device) = store(256);
        drop(device);
        let device = FileDevice::open_buffered(&path, Access::ReadWrite).unwrap();
        if waiting_pages(&device).is_none() {
            println!("this kernel does not tell what is dirty");
            return;
        }
        let waiting_after = |blocks: u64| {
            device.flush().unwrap();
            device.write(0, &[IoSlice::new(&vec![1; blocks as usize * BLOCK_SIZE])]).unwrap();
            waiting_pages(&device).unwrap()
        };
        let large = LEAST_BYTES / BLOCK_SIZE as u64;
        // The kernel counts whole folios.
        assert!(waiting_after(large) >= large);
        device.write_early();
        assert_eq!(waiting_after(large), 0);
        assert!(waiting_after(large - 1) >= large - 1);
        drop(directory);
    }
}
