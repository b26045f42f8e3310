//! A backup device: from one state to the next, and never in between.
//!
//! What is to change is written to the staging area first, with its pages; a label says that it is complete; then it is copied to its
//! place, each block verified before it replaces another; then a label says that this is the state. Cut off anywhere, the backup has
//! its old state, or all that is needed for the new one.

use super::Error;
use super::at::Kept;
use super::doubtful::Doubtful;
use super::format::{
    AREA_UNIT_BLOCKS, Areas, GROUP_BLOCKS, LABEL_AREA_BLOCKS, Label, Page, Point, Role, Staging, State, Uuid,
    pages_most, sums_area_blocks,
};
use super::labels::Labelled;
use super::newest::Newest;
use super::ring::{Area, Rings};
use super::sparse::Zeros;
use super::staged::{StagedPages, Stager};
use crate::{AlignedBuf, BLOCK_SIZE, Device, Operation, Write};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;

/// Blocks copied from the staging area at once, or those of one page: 16 MiB.
const APPLY_BLOCKS: u64 = 4096;
/// Blocks of one write to their place: 1 MiB.
const RUN_BLOCKS: usize = 256;

/// Checksums of blocks in their place that are gathered before they are written.
const UNWRITTEN_SUMS_MOST: usize = 1 << 16;

/// What can be staged, without checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    pub(super) blocks: u64,
    pub(super) pages: u64,
}

/// Most pages that name these, which are staged in the order of addresses.
pub(super) fn staged_pages(all: &Newest) -> u64 {
    let data = all.data().len() as u64;
    pages_most(all.entries(), data, all.blocks() - data)
}

/// Blocks of a staging area for these, with those of checksums of zeros only.
pub(super) fn staged_blocks(all: &Newest) -> u64 {
    let (_, of_zeros) = all.groups();
    all.data().len() as u64 + of_zeros
}

/// An opened backup.
pub(super) struct Backup {
    pub(super) labels: Labelled,
    pub(super) rings: Rings,
    /// Zeros of a copy that are still to come to their place.
    zeros: Zeros,
    /// Checksums of what was written to its place since the last flush.
    unwritten_sums: BTreeMap<u64, u64>,
    /// Groups of blocks that were written to since it was opened.
    pub(super) written: BTreeSet<u64>,
    /// Blocks that have no checksum, as theirs were damaged.
    pub(super) doubtful: Doubtful,
}

/// Finishes what a backup was in the middle of, so that it can be read: the set's device as it was at one moment. Writes only then.
///
/// # Errors
/// [`Error::Incomplete`]: there is no such moment yet. [`Error`] tells what else is wrong with it.
pub fn finish_backup(device: Arc<dyn Device>) -> Result<(), Error> {
    let mut backup = Backup::look(device)?;
    if backup.label().state == State::Staged {
        backup.finish()?;
    }
    backup.check_complete()
}

impl Backup {
    /// Blocks of the smallest device for a copy of so many. What any page of a log comes to, with the blocks of checksums that it
    /// changes, has room in its staging area.
    pub(super) fn blocks_least(blocks: u64) -> u64 {
        blocks + sums_area_blocks(blocks) + 3 * AREA_UNIT_BLOCKS + LABEL_AREA_BLOCKS
    }

    /// That a device is not smaller.
    pub(super) fn check_room(device: &dyn Device, set_blocks: u64) -> Result<(), Error> {
        let (blocks, least) = (device.blocks(), Self::blocks_least(set_blocks));
        if blocks < least {
            return Err(Error::TooSmall { device: device.name().into(), role: Role::Backup, blocks, least });
        }
        Ok(())
    }

    /// The staging area of a backup of so many blocks, on a device that has room.
    pub(super) fn areas(set_blocks: u64, device_blocks: u64) -> Areas {
        Areas::between(set_blocks + sums_area_blocks(set_blocks), device_blocks - LABEL_AREA_BLOCKS)
    }

    /// Makes a device a backup of a set, with nothing on it yet.
    pub(super) fn create(device: Arc<dyn Device>, of: &Label, name: Uuid) -> Result<(), Error> {
        Self::check_room(&*device, of.blocks)?;
        let blocks = device.blocks();
        let areas = Self::areas(of.blocks, blocks);
        let label = Label {
            state: State::Copying,
            backup: name,
            // That of no log: whoever makes a copy fills it in.
            log: Uuid::NONE,
            ..of.of_newcomer(Role::Backup, blocks, areas)
        };
        Labelled::create(device, label)?;
        Ok(())
    }

    /// Opens it, and finishes what it was in the middle of.
    pub(super) fn open(device: Arc<dyn Device>) -> Result<Backup, Error> {
        let mut backup = Self::look(device)?;
        backup.finish()?;
        Ok(backup)
    }

    /// The same of a backup of this set: another's stays as it is.
    pub(super) fn open_of(device: Arc<dyn Device>, set: Uuid) -> Result<Backup, Error> {
        let mut backup = Self::look(device)?;
        if backup.label().set != set {
            let device = backup.labels.device.name().into();
            return Err(Error::OtherSet { device, expected: set, got: backup.label().set });
        }
        backup.finish()?;
        Ok(backup)
    }

    /// Finishes what it was in the middle of.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        // Whoever wrote the label may have been killed before its flush.
        self.labels.device.flush()?;
        if self.label().state == State::Staged { self.apply() } else { Ok(()) }
    }

    /// Opens it for reading: it stays as it is.
    pub(super) fn look(device: Arc<dyn Device>) -> Result<Backup, Error> {
        Labelled::read(device, Role::Backup).map(Self::labelled)
    }

    pub(super) fn labelled(labels: Labelled) -> Backup {
        let rings = Rings { device: Arc::clone(&labels.device), areas: labels.label.areas };
        let (unwritten_sums, written, doubtful) = (BTreeMap::new(), BTreeSet::new(), Doubtful::default());
        Backup { rings, labels, zeros: Zeros::default(), unwritten_sums, written, doubtful }
    }

    /// That it is of a set of this size.
    pub(super) fn check_size(&self, blocks: u64) -> Result<(), Error> {
        let (device, of_backup) = (self.labels.device.name().into(), self.label().blocks);
        if blocks == of_backup { Ok(()) } else { Err(Error::Outgrown { device, blocks, of_backup }) }
    }

    /// That it has a state.
    pub(super) fn check_complete(&self) -> Result<(), Error> {
        match self.label().state {
            State::Copying => Err(Error::Incomplete { device: self.labels.device.name().into() }),
            _ => Ok(()),
        }
    }

    /// The state that it has, with what is staged.
    pub(super) fn point(&self) -> Point {
        match self.label().state {
            State::Staged => self.label().staging.to,
            _ => self.label().applied,
        }
    }

    /// What is staged but may not be in its place. Of a block that is there more than once the last one counts.
    pub(super) fn staged(&self) -> Result<Newest, Error> {
        let mut newest = Newest::default();
        if self.label().state != State::Staged {
            return Ok(newest);
        }
        let mut pages = StagedPages::of(self);
        while let Some(page) = pages.next()? {
            page.entries.iter().for_each(|entry| newest.add(entry));
        }
        newest.end();
        Ok(newest)
    }

    pub(super) fn label(&self) -> &Label {
        &self.labels.label
    }

    /// Whether it was copied while it was forgotten which blocks of main are damaged.
    pub(super) fn is_of_forgotten(&self) -> bool {
        self.label().damage.main.blocks > 0
    }

    /// Blocks that can be staged at once, with room for their checksums, which may be in as many blocks more.
    pub(super) fn staging_blocks(&self) -> u64 {
        let room = self.rings.areas.data_blocks;
        room.saturating_sub(self.groups()).max(room / 2)
    }

    /// The same with the pages that may name them.
    pub(super) fn staging_room(&self) -> Room {
        let Areas { meta_blocks, data_blocks, .. } = self.rings.areas;
        let sums = self.groups().min(data_blocks);
        // What names the checksums begins a page of its own.
        Room { blocks: self.staging_blocks(), pages: meta_blocks.saturating_sub(pages_most(sums, sums, 0)) }
    }

    /// Whether these can be staged at once.
    pub(super) fn has_room_for(&self, all: &Newest) -> bool {
        let (groups, _) = all.groups();
        let blocks = all.data().len() as u64 + groups;
        blocks <= self.rings.areas.data_blocks && staged_pages(all) <= self.staging_room().pages
    }

    /// Writes blocks with these checksums to their place; zeros without taking room, if the device can. Only while it has no state.
    pub(super) fn write(
        &mut self,
        first: u64,
        bytes: &[u8],
        sums: impl IntoIterator<Item = u64>,
    ) -> Result<(), crate::Error> {
        self.zeros.write(&*self.rings.device, first, bytes)?;
        self.unwritten_sums.extend((first..).zip(sums));
        self.written.extend(first / GROUP_BLOCKS..(first + (bytes.len() / BLOCK_SIZE) as u64).div_ceil(GROUP_BLOCKS));
        if self.unwritten_sums.len() >= UNWRITTEN_SUMS_MOST {
            self.write_rest()?;
        }
        Ok(())
    }

    /// Makes blocks and checksums durable.
    pub(super) fn flush(&mut self) -> Result<(), crate::Error> {
        self.write_rest()?;
        self.rings.device.flush()
    }

    fn write_rest(&mut self) -> Result<(), crate::Error> {
        self.zeros.end(&*self.rings.device)?;
        let sums = std::mem::take(&mut self.unwritten_sums);
        self.write_sums(&sums)
    }

    /// Stages verified blocks with their addresses and checksums.
    pub(super) fn stage(&self, stager: &mut Stager, blocks: &[(u64, u64)], bytes: &[u8]) -> Result<(), crate::Error> {
        let position = stager.position + blocks.len() as u64;
        if position > self.rings.areas.data_blocks {
            let (device, reason) = (self.rings.device.name().into(), "its staging area has no room for one step");
            return Err(crate::Error::Unsuitable { device, reason });
        }
        self.rings.write(Area::Data, stager.position, &[bytes])?;
        stager.position = position;
        stager.append(&self.rings, blocks)
    }

    /// The same of blocks of the log, with their bytes; zeros take no room.
    pub(super) fn stage_kept(&self, stager: &mut Stager, batch: &[Kept], bytes: &[u8]) -> Result<(), crate::Error> {
        let is_same = |a: &Kept, b: &Kept| match (a.is_zeros(), b.is_zeros()) {
            (true, true) => a.address + 1 == b.address,
            (of_a, of_b) => of_a == of_b,
        };
        let mut rest = bytes;
        for run in batch.chunk_by(is_same) {
            let (now, later) = rest.split_at(run.len() * BLOCK_SIZE);
            rest = later;
            if run[0].is_zeros() {
                stager.append_zeros(&self.rings, run[0].address, run.len() as u64)?;
            } else {
                let sums: Vec<(u64, u64)> = run.iter().map(|kept| (kept.address, kept.sum)).collect();
                self.stage(stager, &sums, now)?;
            }
        }
        Ok(())
    }

    /// Makes what is staged, with its checksums, the next state, which is at a point of the log with this label.
    pub(super) fn commit(&mut self, stager: Stager, to: Point, log: &Label) -> Result<(), Error> {
        let (pages, sum) = stager.finish(&self.rings)?;
        self.flush()?;
        self.labels.write(|label| {
            label.state = State::Staged;
            label.staging = Staging { to, pages, sum, copied: 0 };
            label.is_of(log);
        })?;
        self.apply()
    }

    /// Copies what is staged to its place. Doing it again is doing it once.
    pub(super) fn apply(&mut self) -> Result<(), Error> {
        let mut pages = StagedPages::of(self);
        // All of it is there before any of it replaces something.
        pages.verify()?;
        let (mut batch, mut blocks) = (Vec::new(), 0);
        while let Some(page) = pages.next()? {
            let of_page = page.blocks().max(1);
            if blocks + of_page > APPLY_BLOCKS {
                self.apply_pages(&batch)?;
                (batch, blocks) = (Vec::new(), 0);
            }
            batch.push(page);
            blocks += of_page;
        }
        self.apply_pages(&batch)?;
        self.flush()?;
        let to = self.label().staging.to;
        self.labels.write(|label| {
            label.state = State::Open;
            label.applied = to;
            label.staging = Staging::default();
        })?;
        Ok(())
    }

    /// The same of pages whose data is in a row, read at once, so that a disk's arm goes there and back once for all of it.
    fn apply_pages(&self, pages: &[Page]) -> Result<(), Error> {
        let blocks: u64 = pages.iter().map(Page::data_blocks).sum();
        let mut bytes = AlignedBuf::zeroed(blocks as usize * BLOCK_SIZE);
        if blocks > 0 {
            self.rings.read(Area::Data, pages[0].head.data, &mut bytes)?;
        }
        let (mut rest, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        // Of a block that is there more than once the last one counts.
        let mut newest = BTreeMap::new();
        for entry in pages.iter().flat_map(|page| &page.entries) {
            let (run, later) = rest.split_at_mut(entry.sums().len());
            rest = later;
            if run.is_empty() {
                newest.extend((entry.first..entry.first + entry.blocks()).map(|address| (address, None)));
            }
            for (index, (block, sum)) in (0..).zip(run.iter_mut().zip(entry.sums())) {
                self.verify(block, *sum, entry.data + index)?;
                newest.insert(entry.first + index, Some(&block[..]));
            }
        }
        let mut zeros = Zeros::default();
        for (address, _) in newest.iter().filter(|(_, block)| block.is_none()) {
            zeros.add(&*self.rings.device, *address, 1)?;
        }
        zeros.end(&*self.rings.device)?;
        let newest = newest.into_iter().filter_map(|(address, block)| Some((address, block?)));
        let mut runs: Vec<(u64, Vec<IoSlice<'_>>)> = Vec::new();
        for (address, block) in newest {
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() as u64 == address && run.len() < RUN_BLOCKS => {
                    run.push(IoSlice::new(block));
                }
                _ => runs.push((address, vec![IoSlice::new(block)])),
            }
        }
        let writes: Vec<Write<'_>> = runs.iter().map(|(first, bufs)| Write { first: *first, bufs }).collect();
        Ok(self.rings.device.write_batch(&writes)?)
    }

    fn verify(&self, block: &mut [u8; BLOCK_SIZE], expected: u64, position: u64) -> Result<(), crate::Error> {
        let got = crc64(block);
        if got == expected || correct_flips(block, expected, FlipsMax::One).is_some() {
            return Ok(());
        }
        let (device, first) = (self.rings.device.name().into(), self.rings.block(Area::Data, position));
        Err(crate::Error::Damaged { device, operation: Operation::Read, first, expected, got })
    }
}
