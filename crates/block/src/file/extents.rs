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
            // There is no data to the end of the file.
            Err(Errno::NXIO) => most,
            Err(_) => 0,
        }
    }
}
