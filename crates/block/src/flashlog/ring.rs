//! The two rings of a log device: from positions that only ever grow to blocks of the device.

use super::format::{Areas, LABELS_BLOCKS};
use super::policy::Symptom;
use crate::{BLOCK_SIZE, Device, Error, Read, Write};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// The meta area and the data area of a log device.
pub(super) struct Rings {
    pub(super) device: Arc<dyn Device>,
    pub(super) areas: Areas,
}

/// Blocks that could not be read, by position, with the reason.
#[derive(Default)]
pub(super) struct Unread(Vec<(u64, Error)>);

impl Unread {
    /// Why what is at this position could not be read, if it is one of them.
    pub(super) fn why(&self, position: u64) -> Option<&Error> {
        self.0.iter().find(|(at, _)| *at == position).map(|(_, error)| error)
    }
}

/// One of the two areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    Meta,
    Data,
}

impl Rings {
    fn bounds(&self, area: Area) -> (u64, u64) {
        match area {
            Area::Meta => (self.areas.meta_start, self.areas.meta_blocks),
            Area::Data => (self.areas.data_start, self.areas.data_blocks),
        }
    }

    /// Block of the device at a position.
    pub(super) fn block(&self, area: Area, position: u64) -> u64 {
        let (start, blocks) = self.bounds(area);
        start + position % blocks
    }

    /// Blocks from a position to the end of the area.
    fn to_end(&self, area: Area, position: u64) -> u64 {
        let (_, blocks) = self.bounds(area);
        blocks - position % blocks
    }

    /// Writes whole blocks at a position and the ones after it: one write, or two around the end of the area.
    pub(super) fn write(&self, area: Area, position: u64, blocks: &[&[u8]]) -> Result<(), Error> {
        self.write_at_once(&[(area, position, blocks)])
    }

    /// The same at several places, all of them on their way at once. They must not overlap.
    pub(super) fn write_at_once(&self, all: &[(Area, u64, &[&[u8]])]) -> Result<(), Error> {
        let parts: Vec<(u64, Vec<IoSlice<'_>>)> =
            all.iter().flat_map(|(area, position, blocks)| self.parts(*area, *position, blocks)).collect();
        match &parts[..] {
            [] => Ok(()),
            [(first, bufs)] => self.device.write(*first, bufs),
            several => {
                let writes: Vec<Write<'_>> =
                    several.iter().map(|(first, bufs)| Write { first: *first, bufs }).collect();
                self.device.write_batch(&writes)
            }
        }
    }

    /// Where on the device they go.
    fn parts<'a>(&self, area: Area, position: u64, blocks: &[&'a [u8]]) -> Vec<(u64, Vec<IoSlice<'a>>)> {
        let mut parts = Vec::new();
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(blocks.len() + 1);
        let mut rest = self.to_end(area, position) as usize * BLOCK_SIZE;
        let mut at = position;
        for bytes in blocks {
            if bytes.len() <= rest {
                rest -= bytes.len();
                slices.push(IoSlice::new(bytes));
                continue;
            }
            let (before, after) = bytes.split_at(rest);
            if !before.is_empty() {
                slices.push(IoSlice::new(before));
            }
            if !slices.is_empty() {
                parts.push((self.block(area, at), std::mem::take(&mut slices)));
            }
            at += self.to_end(area, at);
            slices.push(IoSlice::new(after));
            rest = self.bounds(area).1 as usize * BLOCK_SIZE - after.len();
        }
        if !slices.is_empty() {
            parts.push((self.block(area, at), slices));
        }
        parts
    }

    /// Fills a block each from these positions: one read for those in a row, and all of them on their way at once.
    pub(super) fn read_each(&self, area: Area, positions: &[u64], bytes: &mut [u8]) -> Result<(), Error> {
        // Around the end of the area they are not in a row.
        let (start, blocks) = self.bounds(area);
        let runs = positions.chunk_by(|a, b| a + 1 == *b && b % blocks != 0);
        let mut rest = bytes;
        let mut parts: Vec<(u64, [IoSliceMut<'_>; 1])> = Vec::new();
        for run in runs {
            let (now, later) = rest.split_at_mut(run.len() * BLOCK_SIZE);
            rest = later;
            parts.push((start + run[0] % blocks, [IoSliceMut::new(now)]));
        }
        let mut reads: Vec<Read<'_>> = parts.iter_mut().map(|(first, bufs)| Read::new(*first, bufs)).collect();
        self.device.read_batch(&mut reads)
    }

    /// Fills `bytes` from a position on.
    pub(super) fn read(&self, area: Area, position: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let before = (self.to_end(area, position) as usize).saturating_mul(BLOCK_SIZE).min(bytes.len());
        let (first, second) = bytes.split_at_mut(before);
        self.device.read(self.block(area, position), &mut [IoSliceMut::new(first)])?;
        if second.is_empty() { Ok(()) } else { self.device.read(self.bounds(area).0, &mut [IoSliceMut::new(second)]) }
    }

    /// The same of a log. Blocks that cannot be read are zeros, so that whoever verifies them takes them for damaged ones; they come with the
    /// reason.
    ///
    /// # Errors
    /// The device is not there, or gives nothing at all.
    pub(super) fn read_what_can_be(&self, area: Area, position: u64, bytes: &mut [u8]) -> Result<Unread, Error> {
        match self.read(area, position, bytes) {
            Ok(()) => Ok(Unread::default()),
            Err(error) => self.read_by_block(area, position.., bytes, error),
        }
    }

    /// The same as [`Rings::read_each`].
    ///
    /// # Errors
    /// As for [`Rings::read_what_can_be`].
    pub(super) fn read_each_that_can_be(
        &self,
        area: Area,
        positions: &[u64],
        bytes: &mut [u8],
    ) -> Result<Unread, Error> {
        match self.read_each(area, positions, bytes) {
            Ok(()) => Ok(Unread::default()),
            Err(error) => self.read_by_block(area, positions.iter().copied(), bytes, error),
        }
    }

    /// After an error with all of them.
    fn read_by_block(
        &self,
        area: Area,
        positions: impl Iterator<Item = u64> + Clone,
        bytes: &mut [u8],
        error: Error,
    ) -> Result<Unread, Error> {
        let places = positions.clone().map(|position| self.block(area, position));
        let read = read_by_block(&*self.device, 0, places, bytes, error)?;
        Ok(Unread(
            positions.zip(read).filter_map(|(position, read)| read.err().map(|error| (position, error))).collect(),
        ))
    }
}

/// Reads blocks of any of the set's devices, whose labels begin there. Gives which of them could be read; the others are zeros.
///
/// # Errors
/// The device is not there, or gives nothing at all.
pub(super) fn read_those_that_can_be(
    device: &dyn Device,
    labels: u64,
    first: u64,
    bytes: &mut [u8],
) -> Result<Vec<bool>, Error> {
    let Err(error) = device.read(first, &mut [IoSliceMut::new(bytes)]) else {
        return Ok(vec![true; bytes.len() / BLOCK_SIZE]);
    };
    let read = read_by_block(device, labels, first.., bytes, error)?;
    Ok(read.iter().map(Result::is_ok).collect())
}

/// Reads blocks one by one after an error with all of them. What came of each; those that could not be read are zeros.
fn read_by_block(
    device: &dyn Device,
    labels: u64,
    places: impl Iterator<Item = u64>,
    bytes: &mut [u8],
    error: Error,
) -> Result<Vec<Result<(), Error>>, Error> {
    fails_there_only(device, labels, error)?;
    let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
    let read = blocks.iter_mut().zip(places).map(|(block, at)| {
        let Err(error) = device.read(at, &mut [IoSliceMut::new(block)]) else { return Ok(Ok(())) };
        let error = fails_there_only(device, labels, error)?;
        tracing::warn!(device = device.name(), block = at, %error, "a block cannot be read: it counts as damaged");
        block.fill(0);
        Ok(Err(error))
    });
    read.collect()
}

/// That a read has failed because of its blocks. If the labels, which begin there, cannot be read either, it is the device that has failed.
fn fails_there_only(device: &dyn Device, labels: u64, error: Error) -> Result<Error, Error> {
    let is_of_read = is_of_read(&error);
    let mut block = [0; BLOCK_SIZE];
    let mut can_read = |at| device.read(at, &mut [IoSliceMut::new(&mut block)]).is_ok();
    if is_of_read && [labels, labels + LABELS_BLOCKS - 1].into_iter().any(&mut can_read) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// Whether a device has failed at reading, and has not gone.
pub(super) fn is_of_read(error: &Error) -> bool {
    error.root().is_device_failure() && Symptom::of(error) == Symptom::Read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn rings() -> (Arc<MemoryDevice>, Rings) {
        let device = Arc::new(MemoryDevice::new(768));
        let areas = Areas { meta_start: 256, meta_blocks: 256, data_start: 512, data_blocks: 256 };
        (device.clone(), Rings { device, areas })
    }

    fn fill(byte: u8, blocks: usize) -> Vec<u8> {
        vec![byte; blocks * BLOCK_SIZE]
    }

    #[test]
    fn positions_go_around() {
        let (device, rings) = rings();
        for area in [Area::Meta, Area::Data] {
            for position in [0, 200, 250, 253, 254, 255, 256, 511, 256_000_254] {
                let blocks = [fill(1, 1), fill(2, 2), fill(3, 1), fill(4, 3)];
                let slices: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
                rings.write(area, position, &slices).unwrap();
                let mut back = fill(0, 7);
                rings.read(area, position, &mut back).unwrap();
                assert_eq!(back, blocks.concat(), "{area:?} {position}");
                rings.read_each(area, &[3, 4, 5, 0].map(|at| position + at), &mut back[..4 * BLOCK_SIZE]).unwrap();
                assert_eq!(back[..4 * BLOCK_SIZE], [fill(3, 1), fill(4, 2), fill(1, 1)].concat());
            }
        }
        let bytes = device.snapshot();
        assert!(bytes[..256 * BLOCK_SIZE].iter().all(|byte| *byte == 0));
        assert_eq!(rings.block(Area::Data, 257), 513);
    }
}
