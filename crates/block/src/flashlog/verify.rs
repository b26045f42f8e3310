//! Reading a backup back: each block against the checksum that it should have.

use super::Error;
use super::ahead::ReadAhead;
use super::backup::BackedUp;
use super::chunk::zero_sum;
use super::device::Flashlog;
use super::staging::Backup;
use super::sums::{Base, Based};
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use holdfast_integrity::crc64;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// What reading a backup back has shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Blocks read.
    pub blocks: u64,
    /// Addresses of blocks that are not as they were written, or cannot be read.
    pub damaged: Vec<Range<u64>>,
    /// Addresses of blocks whose checksum is damaged itself, or cannot be read: nothing is known of them.
    pub unknown: Vec<Range<u64>>,
}

impl Verified {
    /// Every block is as it was written.
    pub fn is_good(&self) -> bool {
        self.damaged.is_empty() && self.unknown.is_empty()
    }

    /// Blocks that are damaged or unknown.
    pub fn bad_blocks(&self) -> u64 {
        self.damaged.iter().chain(&self.unknown).map(|range| range.end - range.start).sum()
    }

    fn note(&mut self, address: u64, based: &Based, got: Option<u64>) {
        self.blocks += 1;
        let all = match (based.sum, got) {
            (Some(sum), Some(got)) if sum == got => return,
            (None, Some(_)) => &mut self.unknown,
            _ => &mut self.damaged,
        };
        match all.last_mut() {
            Some(last) if last.end == address => last.end += 1,
            _ => all.push(address..address + 1),
        }
    }
}

/// Reads all of a backup back and compares it with its checksums. Nothing is written, and neither main nor log are needed.
///
/// What the kernel has of the device in its cache is not read from it: open a file or disk with `O_DIRECT`, as
/// [`FileDevice`](crate::FileDevice) does where that is possible. What the device has in a cache of its own may hide damage on the
/// medium behind it in any case, until it was without power.
///
/// # Errors
/// [`Error::Incomplete`]: it has no state yet. [`Error`] tells what else is wrong with it; damaged blocks are no error.
pub fn verify_backup(device: Arc<dyn Device>) -> Result<Verified, Error> {
    let backup = Backup::look(device)?;
    let groups = 0..backup.groups();
    verify(backup, groups)
}

fn verify(backup: Backup, groups: impl IntoIterator<Item = u64>) -> Result<Verified, Error> {
    let device = Arc::clone(&backup.labels.device);
    backup.check_complete()?;
    let base = Base::of(backup)?;
    let mut verified = Verified::default();
    for group in groups {
        let (first, count) = base.backup.group_blocks(group);
        let found = base.find(first, count)?;
        let mut address = first;
        for run in found.chunk_by(Based::are_neighbours) {
            let sums = match run[0].block {
                Some(block) => read_sums(&*device, block, run.len()),
                None => vec![Some(zero_sum()); run.len()],
            };
            for (based, got) in run.iter().zip(sums) {
                verified.note(address, based, got);
                address += 1;
            }
        }
    }
    Ok(verified)
}

/// The checksums of blocks as they are; none of those that cannot be read.
fn read_sums(device: &dyn Device, first: u64, count: usize) -> Vec<Option<u64>> {
    let mut bytes = AlignedBuf::zeroed(count * BLOCK_SIZE);
    let could = read_each(device, first, &mut bytes);
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    blocks.iter().zip(could).map(|(block, could)| could.then(|| crc64(block))).collect()
}

/// Reads blocks, one by one if they cannot be read together. Which could be.
pub(super) fn read_each(device: &dyn Device, first: u64, bytes: &mut [u8]) -> Vec<bool> {
    if device.read(first, &mut [IoSliceMut::new(bytes)]).is_ok() {
        return vec![true; bytes.len() / BLOCK_SIZE];
    }
    let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
    (first..).zip(blocks).map(|(at, block)| device.read(at, &mut [IoSliceMut::new(block)]).is_ok()).collect()
}

impl Flashlog {
    /// A [backup](Flashlog::backup), and then what it wrote is read back, with the blocks that have their checksums in the same places: up to
    /// 2 MiB for each block written. About caches see [`verify_backup`].
    ///
    /// # Errors
    /// As for [`Flashlog::backup`]; damaged blocks are no error.
    pub fn backup_and_verify(&self, device: Arc<dyn Device>) -> Result<(BackedUp, Verified), Error> {
        let (done, written) = self.backup_noting(Arc::clone(&device), &ReadAhead::default(), &mut |_, _| ())?;
        Ok((done, verify(Backup::look(device)?, written)?))
    }
}
