//! Which blocks of a file the host has data for.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::{FileDevice, Kind};
use crate::nbd::{Context, Extent, Extents, HOLE, ZERO};
use crate::{BLOCK_SIZE, Error};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Holes of the host's file read as zeros. In a file that was allocated in full they are allocated all the same. Of a disk nothing
/// is known.
impl Extents for FileDevice {
    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, Error> {
        let data = Extent { blocks: most, flags: 0 };
        if context != Context::Allocation {
            return Ok(data);
        }
        match self.zeros_ahead(first, most) {
            0 => {
                // A block that is in part hole is data.
                let hole = seek(&self.fd, SeekFrom::Hole(first * BLOCK)).unwrap_or(u64::MAX).div_ceil(BLOCK);
                Ok(Extent { blocks: hole.saturating_sub(first).clamp(1, most), flags: 0 })
            }
            blocks => Ok(Extent { blocks, flags: if self.is_reserved() { ZERO } else { HOLE | ZERO } }),
        }
    }

    fn zeros_ahead(&self, first: u64, most: u64) -> u64 {
        if self.kind == Kind::Disk {
            return 0;
        }
        match seek(&self.fd, SeekFrom::Data(first * BLOCK)) {
            Ok(data) => (data / BLOCK).saturating_sub(first).min(most),
            // There is no data to the end of the file. Where somebody has cut it off, nothing is known of what was behind.
            Err(Errno::NXIO) => {
                let end = super::open::size_bytes(&self.fd).unwrap_or(0) / BLOCK;
                end.saturating_sub(first).min(most)
            }
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, IoSliceMut};

    use super::*;
    use crate::{Access, Device};

    /// A file of 16 blocks of data, allocated in full or not, on the disk of the target directory.
    fn full(allocated: bool) -> (tempfile::TempDir, FileDevice) {
        let binary = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
        let path = directory.path().join("file");
        let device = if allocated {
            FileDevice::create_file(&path, 16 * BLOCK).unwrap()
        } else {
            // A hole behind the data, so that it never counts as allocated.
            std::fs::File::create(&path).unwrap().set_len(32 * BLOCK).unwrap();
            FileDevice::open(&path, Access::ReadWrite).unwrap()
        };
        device.write(0, &[IoSlice::new(&[7; 16 * BLOCK_SIZE])]).unwrap();
        device.flush().unwrap();
        (directory, device)
    }

    fn first_bytes(device: &FileDevice) -> Vec<u8> {
        let mut out = vec![0xee; 16 * BLOCK_SIZE];
        device.read(0, &mut [IoSliceMut::new(&mut out)]).unwrap();
        out.chunks(BLOCK_SIZE).map(|block| block[0]).collect()
    }

    #[test]
    fn zeros_are_made_and_told_of_with_and_without_their_room() {
        for allocated in [false, true] {
            let (_directory, device) = full(allocated);
            let before = rustix::fs::fstat(&device.fd).unwrap().st_blocks;
            if !device.zero(2, 3, allocated).unwrap() {
                eprintln!("skipped: the host's file system makes no zeros");
                return;
            }
            assert_eq!(first_bytes(&device), [7, 7, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
            let after = rustix::fs::fstat(&device.fd).unwrap().st_blocks;
            assert_eq!(after < before, !allocated, "{before} and {after} sectors");
            let told = |first| device.extent(Context::Allocation, first, 16 - first).unwrap();
            let flags = if allocated { ZERO } else { HOLE | ZERO };
            assert_eq!((told(0), told(2)), (Extent { blocks: 2, flags: 0 }, Extent { blocks: 3, flags }));
            assert_eq!((told(5).flags, device.zeros_ahead(2, 16), device.zeros_ahead(2, 2)), (0, 3, 2));
            assert!(device.zero(30, 5, false).is_err());
        }
    }
}
