//! The checksums of a backup's blocks: read, and kept true.

use super::Error;
use super::at::is_good;
use super::chunk::no_sum;
use super::format::{GROUP_BLOCKS, GroupSums, Label, sums};
use super::newest::Newest;
use super::ring::{Area, read_those_that_can_be};
use super::staging::Backup;
use super::verify::read_each;
use crate::{AlignedBuf, BLOCK_SIZE, Operation};
use holdfast_integrity::crc64;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};

/// Blocks of checksums that are read or written at once: 256 KiB.
const WINDOW_BLOCKS: u64 = 64;

/// Reads blocks of checksums, some in advance.
#[derive(Default)]
pub(super) struct SumsReader {
    window: Option<(u64, AlignedBuf)>,
}

impl SumsReader {
    /// The checksums of a group as they are in their place; `None` if they are damaged, or cannot be read.
    pub(super) fn read(&mut self, backup: &Backup, group: u64) -> Result<Option<Box<GroupSums>>, crate::Error> {
        let has =
            |(first, bytes): &(u64, AlignedBuf)| (*first..first + (bytes.len() / BLOCK_SIZE) as u64).contains(&group);
        if !self.window.as_ref().is_some_and(has) {
            let count = WINDOW_BLOCKS.min(backup.groups() - group);
            let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
            let (device, labels) =
                (&*backup.labels.device, Label::area(backup.label().role, backup.label().device_blocks));
            // Zeros are no checksums.
            read_those_that_can_be(device, labels, backup.sums_block(group), &mut bytes)?;
            self.window = Some((group, bytes));
        }
        let Some((first, bytes)) = &self.window else { return Ok(None) };
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        Ok(sums::decode(&blocks[(group - first) as usize], backup.sums_block(group)))
    }

    /// The same; if they are damaged, or cannot be read, no block has one.
    pub(super) fn read_or_none(&mut self, backup: &Backup, group: u64) -> Result<Box<GroupSums>, crate::Error> {
        let (_, count) = backup.group_blocks(group);
        Ok(self.read(backup, group)?.unwrap_or_else(|| {
            let mut none = Box::new([0; GROUP_BLOCKS as usize]);
            none[..count as usize].fill(no_sum());
            none
        }))
    }
}

/// What a backup has of its blocks by their checksums, if these are true.
pub(super) struct Known {
    reader: Option<SumsReader>,
    group: Option<(u64, Option<Box<GroupSums>>)>,
}

impl Known {
    pub(super) fn of(is_known: bool) -> Known {
        Known { reader: is_known.then(SumsReader::default), group: None }
    }

    /// Of blocks in a row, with their checksums, the runs of those of which the backup has others, or perhaps has.
    pub(super) fn otherwise<'a>(
        &mut self,
        backup: &Backup,
        blocks: &'a [(u64, u64)],
    ) -> Result<Vec<&'a [(u64, u64)]>, crate::Error> {
        let mut is_same = Vec::with_capacity(blocks.len());
        for (address, sum) in blocks {
            is_same.push(self.has(backup, *address, *sum)?);
        }
        let is_same_at = |at: &(u64, u64)| is_same[(at.0 - blocks[0].0) as usize];
        Ok(blocks.chunk_by(|a, b| is_same_at(a) == is_same_at(b)).filter(|run| !is_same_at(&run[0])).collect())
    }

    fn has(&mut self, backup: &Backup, address: u64, sum: u64) -> Result<bool, crate::Error> {
        Ok(self.sum(backup, address)? == Some(sum))
    }

    /// The checksum that the backup has of a block.
    pub(super) fn sum(&mut self, backup: &Backup, address: u64) -> Result<Option<u64>, crate::Error> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let number = address / GROUP_BLOCKS;
        if self.group.as_ref().is_none_or(|(of, _)| *of != number) {
            self.group = Some((number, reader.read(backup, number)?));
        }
        let sums = self.group.as_ref().and_then(|(_, sums)| sums.as_ref());
        Ok(sums.map(|sums| sums[(address % GROUP_BLOCKS) as usize]))
    }
}

/// Blocks in a row with their checksums.
pub(super) fn sums_of(first: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    (first..).zip(blocks.iter().map(|block| crc64(block))).collect()
}

impl Backup {
    /// Groups of blocks.
    pub(super) fn groups(&self) -> u64 {
        sums::groups(self.label().blocks)
    }

    /// Where the checksums of a group are.
    pub(super) fn sums_block(&self, group: u64) -> u64 {
        self.label().blocks + group
    }

    /// The blocks of a group: the first, and how many.
    pub(super) fn group_blocks(&self, group: u64) -> (u64, u64) {
        let first = group * GROUP_BLOCKS;
        (first, GROUP_BLOCKS.min(self.label().blocks - first))
    }

    /// The block of checksums of a group, with what is to be changed in it: addresses of the group, in order, and their new checksums.
    pub(super) fn changed_group(
        &mut self,
        reader: &mut SumsReader,
        changes: &[(u64, u64)],
    ) -> Result<(u64, [u8; BLOCK_SIZE]), crate::Error> {
        let number = changes[0].0 / GROUP_BLOCKS;
        let (first, count) = self.group_blocks(number);
        let mut sums = match changes.len() as u64 == count {
            true => Box::new([0; GROUP_BLOCKS as usize]),
            false => reader.read_or_none(self, number)?,
        };
        for (address, sum) in changes {
            sums[(address - first) as usize] = *sum;
        }
        self.doubtful.see(number, first, &sums[..count as usize]);
        Ok((self.sums_block(number), sums::encode(self.sums_block(number), &sums)))
    }

    /// Writes blocks of checksums to their place.
    pub(super) fn write_sums(&mut self, changes: &BTreeMap<u64, u64>) -> Result<(), crate::Error> {
        let all: Vec<(u64, u64)> = changes.iter().map(|(address, sum)| (*address, *sum)).collect();
        let groups: Vec<&[(u64, u64)]> = all.chunk_by(|a, b| a.0 / GROUP_BLOCKS == b.0 / GROUP_BLOCKS).collect();
        let mut reader = SumsReader::default();
        // Some at once: each may be in a group of its own.
        for some in groups.chunks(WINDOW_BLOCKS as usize) {
            let mut changed = Vec::with_capacity(some.len());
            for group in some {
                changed.push(self.changed_group(&mut reader, group)?);
            }
            for run in changed.chunk_by(|a, b| a.0 + 1 == b.0) {
                let bytes: Vec<u8> = run.iter().flat_map(|(_, bytes)| bytes).copied().collect();
                self.labels.device.write(run[0].0, &[IoSlice::new(&AlignedBuf::copy_of(&bytes))])?;
            }
        }
        Ok(())
    }
}

/// What a backup has, with what is staged but may not be in its place. Only reads.
pub(super) struct Base {
    pub(super) backup: Backup,
    staged: Newest,
    reader: Mutex<SumsReader>,
}

/// A block of a backup: where it is, and the checksum that it should have.
#[derive(Clone, Copy)]
pub(super) struct Based {
    /// Block of the device; none if it is zeros, and not in its place yet.
    pub(super) block: Option<u64>,
    /// `None` if its checksum is damaged itself, or cannot be read.
    pub(super) sum: Option<u64>,
}

impl Based {
    /// Whether both can be read at once.
    pub(super) fn are_neighbours(a: &Based, b: &Based) -> bool {
        match (a.block, b.block) {
            (Some(a), Some(b)) => a + 1 == b,
            (a, b) => a == b,
        }
    }
}

impl Base {
    pub(super) fn of(backup: Backup) -> Result<Base, Error> {
        let staged = backup.staged()?;
        Ok(Base { backup, staged, reader: Mutex::default() })
    }

    fn sums(&self, group: u64) -> Result<Option<Box<GroupSums>>, crate::Error> {
        let own = self.backup.sums_block(group);
        let Some(position) = self.staged.get(own).and_then(|kept| kept.position()) else {
            return self.reader.lock().read(&self.backup, group);
        };
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        self.backup.rings.read(Area::Data, position, &mut bytes)?;
        Ok(bytes.first_chunk().and_then(|bytes| sums::decode(bytes, own)))
    }

    /// Where blocks are, and their checksums.
    pub(super) fn find(&self, first: u64, count: u64) -> Result<Vec<Based>, crate::Error> {
        let mut found = Vec::with_capacity(count as usize);
        let mut group: Option<(u64, Option<Box<GroupSums>>)> = None;
        for address in first..first + count {
            if let Some(kept) = self.staged.get(address) {
                let block = kept.position().map(|position| self.backup.rings.block(Area::Data, position));
                found.push(Based { block, sum: Some(kept.sum) });
                continue;
            }
            let number = address / GROUP_BLOCKS;
            let (_, sums) = match group.take() {
                Some(same) if same.0 == number => group.insert(same),
                _ => group.insert((number, self.sums(number)?)),
            };
            let sum = sums.as_ref().map(|sums| sums[(address % GROUP_BLOCKS) as usize]);
            found.push(Based { block: Some(address), sum });
        }
        Ok(found)
    }

    /// Reads blocks, with single flipped bits made good. Gives the addresses of those that are not as they should be, or cannot be read.
    pub(super) fn read(&self, first: u64, bytes: &mut [u8]) -> Result<Vec<u64>, crate::Error> {
        let (mut blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let (found, mut at, mut damaged) = (self.find(first, blocks.len() as u64)?, first, Vec::new());
        for run in found.chunk_by(Based::are_neighbours) {
            let (now, later) = blocks.split_at_mut(run.len());
            blocks = later;
            let could = match run[0].block {
                Some(block) => read_each(&*self.backup.labels.device, block, now.as_flattened_mut()),
                None => {
                    now.as_flattened_mut().fill(0);
                    vec![true; run.len()]
                }
            };
            for ((block, based), could) in now.iter_mut().zip(run).zip(could) {
                if !could || !based.sum.is_some_and(|sum| is_good(block, sum)) {
                    damaged.push(at);
                }
                at += 1;
            }
        }
        Ok(damaged)
    }

    /// The error of a damaged block.
    pub(super) fn damaged(&self, address: u64) -> Result<crate::Error, crate::Error> {
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        let based = self.find(address, 1)?[0];
        let device = &self.backup.labels.device;
        // Zeros that are staged have nothing that could be damaged.
        let first = based.block.unwrap_or(address);
        device.read(first, &mut [IoSliceMut::new(&mut bytes)])?;
        let (device, operation, got) = (device.name().into(), Operation::Read, crc64(&bytes));
        let expected = based.sum.unwrap_or_default();
        Ok(crate::Error::Damaged { device, operation, first, expected, got })
    }
}
