//! A device that shows another one and keeps in memory what is written: to see what a mount would make of a store.

use holdfast_block::{BLOCK_SIZE, Device, Error, Filter};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

type Block = [u8; BLOCK_SIZE];

/// Nothing reaches the device below.
pub(crate) struct Scratch {
    below: Arc<dyn Device>,
    written: Mutex<HashMap<u64, Box<Block>>>,
}

impl Scratch {
    pub(crate) fn over(below: Arc<dyn Device>) -> Scratch {
        Scratch { below, written: Mutex::default() }
    }
}

impl Filter for Scratch {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let mut bytes = vec![0; bufs.iter().map(|buffer| buffer.len()).sum()];
        self.below.read(first, &mut [IoSliceMut::new(&mut bytes)])?;
        let written = self.written.lock();
        for (number, block) in (first..).zip(bytes.as_chunks_mut::<BLOCK_SIZE>().0) {
            if let Some(newer) = written.get(&number) {
                *block = **newer;
            }
        }
        let mut rest = &bytes[..];
        for buffer in bufs {
            let (part, behind) = rest.split_at(buffer.len());
            buffer.copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let mut written = self.written.lock();
        for (number, block) in (first..).zip(bytes.as_chunks::<BLOCK_SIZE>().0) {
            written.insert(number, Box::new(*block));
        }
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn on_discard(&self, _first: u64, _count: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::MemoryDevice;

    #[test]
    fn what_is_written_is_seen_here_and_not_below() {
        let below = Arc::new(MemoryDevice::new(8));
        below.write(2, &[IoSlice::new(&[1; 3 * BLOCK_SIZE])]).unwrap();
        let scratch = Scratch::over(below.clone());
        scratch.write(3, &[IoSlice::new(&[2; 100]), IoSlice::new(&[3; BLOCK_SIZE - 100])]).unwrap();
        let (mut head, mut tail) = (vec![0; BLOCK_SIZE + 100], vec![0; 2 * BLOCK_SIZE - 100]);
        scratch.read(2, &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)]).unwrap();
        assert!(head[..BLOCK_SIZE] == [1; BLOCK_SIZE] && head[BLOCK_SIZE..] == [2; 100]);
        assert!(tail[..BLOCK_SIZE - 100] == [3; BLOCK_SIZE - 100] && tail[BLOCK_SIZE - 100..] == [1; BLOCK_SIZE]);
        let mut block = [0; BLOCK_SIZE];
        below.read(3, &mut [IoSliceMut::new(&mut block)]).unwrap();
        assert_eq!(block, [1; BLOCK_SIZE]);
    }
}
