//! Writing a copy whose zeros take no room, where the device can do that: holes in a file, what a disk has instead.

use crate::device::write_zeros;
use crate::{BLOCK_SIZE, Device, Error};
use std::io::IoSlice;
use std::ops::Range;

/// Fewer blocks of zeros are written: what a hole costs is not less. 64 KiB.
pub(super) const ZEROS_LEAST: usize = 16;
/// So many are gathered at most. 1 GiB.
const ZEROS_MOST: u64 = 1 << 18;

/// Zeros that a copy has come to, and that the device has not got yet.
#[derive(Default)]
pub(super) struct Zeros(Range<u64>);

impl Zeros {
    /// Writes blocks of a copy, in the order of addresses. Zeros may wait for more of them.
    pub(super) fn write(&mut self, device: &dyn Device, first: u64, bytes: &[u8]) -> Result<(), Error> {
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        let mut rest = blocks;
        let mut from = 0;
        while !rest.is_empty() {
            let zeros = rest.iter().take_while(|block| is_zero(block)).count();
            let begins_so = zeros == blocks.len() || zeros >= ZEROS_LEAST;
            if begins_so {
                self.add(device, first + from as u64, zeros as u64)?;
            }
            let count = if begins_so { zeros } else { zeros + up_to_zeros(&rest[zeros..]) };
            if !begins_so {
                device.write(first + from as u64, &[IoSlice::new(rest[..count].as_flattened())])?;
            }
            rest = &rest[count..];
            from += count;
        }
        Ok(())
    }

    /// Zeros; they may wait for more of them.
    pub(super) fn add(&mut self, device: &dyn Device, first: u64, count: u64) -> Result<(), Error> {
        if self.0.end != first || self.0.end - self.0.start >= ZEROS_MOST {
            self.end(device)?;
            self.0 = first..first;
        }
        self.0.end += count;
        Ok(())
    }

    /// The device gets what it has not got.
    pub(super) fn end(&mut self, device: &dyn Device) -> Result<(), Error> {
        let Range { start, end } = std::mem::take(&mut self.0);
        if start == end { Ok(()) } else { make_zeros(device, start, end - start, false) }
    }
}

/// Makes blocks zeros, by writing them if it cannot be done otherwise.
pub(super) fn make_zeros(device: &dyn Device, first: u64, count: u64, keep: bool) -> Result<(), Error> {
    if device.zero(first, count, keep)? { Ok(()) } else { write_zeros(device, first, count) }
}

/// Blocks that are followed by the end, or by enough zeros.
fn up_to_zeros(blocks: &[[u8; BLOCK_SIZE]]) -> usize {
    let mut zeros = 0;
    for (at, block) in blocks.iter().enumerate() {
        zeros = if is_zero(block) { zeros + 1 } else { 0 };
        if zeros == ZEROS_LEAST {
            return at + 1 - zeros;
        }
    }
    blocks.len()
}

fn is_zero(block: &[u8; BLOCK_SIZE]) -> bool {
    // In pieces, so that it ends early and the compiler takes many bytes at once.
    block.chunks(256).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::super::staging::Backup;
    use super::super::tests::{names, options, put};
    use super::super::{Flashlog, Mode, Uuid, create, rebuild, verify_backup};
    use super::*;
    use crate::MemoryDevice;
    use std::io::IoSliceMut;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A device that counts the blocks written to it, and makes zeros if it can.
    struct Counted {
        device: MemoryDevice,
        can: bool,
        written: AtomicU64,
        zeroed: AtomicU64,
    }

    impl Counted {
        /// With something in each block.
        fn full(blocks: u64, can: bool) -> Arc<Counted> {
            let device = MemoryDevice::new(blocks);
            for at in 0..blocks {
                put(&device, at, 900_000 + at).unwrap();
            }
            Arc::new(Counted { device, can, written: AtomicU64::new(0), zeroed: AtomicU64::new(0) })
        }
    }

    impl Device for Counted {
        fn name(&self) -> &str {
            "counted"
        }

        fn blocks(&self) -> u64 {
            self.device.blocks()
        }

        fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
            self.device.read(first, bufs)
        }

        fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
            let blocks = bufs.iter().map(|buf| buf.len()).sum::<usize>() / BLOCK_SIZE;
            self.written.fetch_add(blocks as u64, Ordering::Relaxed);
            self.device.write(first, bufs)
        }

        fn flush(&self) -> Result<(), Error> {
            self.device.flush()
        }

        fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
            self.device.discard(first, count)
        }

        fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
            self.zeroed.fetch_add(count, Ordering::Relaxed);
            Ok(self.can && self.device.zero(first, count, keep)?)
        }
    }

    const BLOCKS: u64 = 2048;

    fn all_of(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; BLOCKS as usize * BLOCK_SIZE];
        device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
        bytes
    }

    #[test]
    fn nothing_takes_no_room_on_a_backup_nor_on_a_new_main_and_reads_as_zeros() {
        for can in [true, false] {
            let main = Arc::new(MemoryDevice::new(BLOCKS + 256));
            // Some, a block alone, fewer zeros than are worth it, the last one.
            for at in (0..40).chain([100, 110, 700, 1500, BLOCKS - 1]) {
                put(&*main, at, at + 1).unwrap();
            }
            let log = Arc::new(MemoryDevice::new(1024));
            create(main.clone(), log.clone(), &names(1)).unwrap();
            let (set, _) = Flashlog::open(main, log.clone(), &options(Mode::Synchronous)).unwrap();
            let backup = Counted::full(Backup::blocks_least(BLOCKS), can);
            set.create_backup(backup.clone(), Uuid([9; 16])).unwrap();
            backup.written.store(0, Ordering::Relaxed);
            set.backup(backup.clone()).unwrap();
            let (written, expected) = (backup.written.load(Ordering::Relaxed), all_of(&set));
            assert!(all_of(&*backup) == expected && verify_backup(backup.clone()).unwrap().is_good());
            assert!(if can { written < 100 } else { written > BLOCKS }, "{written} blocks were written");
            assert!(backup.zeroed.load(Ordering::Relaxed) > 1900);
            drop(set);
            let new = Counted::full(BLOCKS + 256, can);
            rebuild(backup, log.clone(), new.clone(), Uuid([8; 16])).unwrap();
            let written = new.written.load(Ordering::Relaxed);
            // And the room of the labels, which is emptied before and after.
            assert!(if can { written < 600 } else { written > BLOCKS }, "{written} blocks were written");
            let (set, _) = Flashlog::open(new, log, &options(Mode::Synchronous)).unwrap();
            assert!(all_of(&set) == expected);
        }
    }
}
