//! The pages of a backup's staging area, as they are written and as they are read: a bounded number at once, however much is staged.

use super::Error;
use super::at::Kept;
use super::format::{Damaged, Fault, GROUP_BLOCKS, Page, PageBuilder, PageHead, hex};
use super::ring::{Area, Rings};
use super::staging::Backup;
use super::sums::SumsReader;
use crate::{AlignedBuf, BLOCK_SIZE};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Pages that are read or written at once: 256 KiB, which name 32,000 blocks.
const WINDOW_PAGES: u64 = 64;
/// Pages that all runs of a step have in memory together, while the checksums that they change are made.
const MERGED_PAGES: u64 = 256;
/// Blocks of checksums that are staged at once: 1 MiB.
const SUMS_BLOCKS: usize = 256;

/// Reads the pages that a backup's label counts, one after the other, and verifies that each is the one that follows.
pub(super) struct StagedPages<'a> {
    backup: &'a Backup,
    window: Option<(u64, AlignedBuf)>,
    /// Number of the next page, the checksum of the one before it, and where its data begins.
    number: u64,
    previous: u64,
    data: u64,
}

impl<'a> StagedPages<'a> {
    /// From the first one on.
    pub(super) fn of(backup: &'a Backup) -> StagedPages<'a> {
        StagedPages { backup, window: None, number: 0, previous: 0, data: 0 }
    }

    /// Reads all that are left, and begins again with the first one: then all are there.
    pub(super) fn verify(&mut self) -> Result<(), Error> {
        while self.next()?.is_some() {}
        (self.number, self.previous, self.data) = (0, 0, 0);
        Ok(())
    }

    /// The next one; none behind the last one, if that is the one that the label knows.
    pub(super) fn next(&mut self) -> Result<Option<Page>, Error> {
        let (label, number) = (self.backup.label(), self.number);
        let staging = &label.staging;
        if number >= staging.pages {
            return match self.previous == staging.sum {
                true => Ok(None),
                false => Err(self.damaged("the last staged page", hex(self.previous))),
            };
        }
        let has = |(first, bytes): &(u64, AlignedBuf)| number.wrapping_sub(*first) < (bytes.len() / BLOCK_SIZE) as u64;
        let (first, bytes) = match self.window.take().filter(has) {
            Some(window) => self.window.insert(window),
            None => {
                let count = WINDOW_PAGES.min(staging.pages - number);
                let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
                self.backup.rings.read(Area::Meta, number, &mut bytes)?;
                self.window.insert((number, bytes))
            }
        };
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let decoded = Page::decode_mending(&mut blocks[(number - *first) as usize], self.backup.rings.areas.meta_start);
        match decoded {
            Ok(page)
                if page.head.log == label.backup
                    && page.head.number == number
                    && page.head.previous == self.previous
                    && page.head.data == self.data =>
            {
                (self.number, self.previous, self.data) = (number + 1, page.sum, self.data + page.data_blocks());
                Ok(Some(page))
            }
            Ok(page) => Err(self.damaged("a staged page", hex(page.sum))),
            Err(Damaged::Sum(_)) => Err(self.damaged("a staged page", "a bad checksum".into())),
            Err(Damaged::Other(fault)) => Err(self.damaged(fault.what, fault.got)),
        }
    }

    fn damaged(&self, what: &'static str, got: String) -> Error {
        let fault = Fault::new(what, format!("number {} of {}", self.number, self.backup.label().staging.pages), got);
        let block = self.backup.rings.block(Area::Meta, self.number);
        Error::Damaged { device: self.backup.rings.device.name().into(), block, fault }
    }
}

/// What is being staged. Its pages are in memory until they are a window's, and are read again for the checksums that it changes.
pub(super) struct Stager {
    pub(super) head: PageHead,
    builder: PageBuilder,
    /// Pages that are not written yet, and the number of the first of them.
    pages: Vec<[u8; BLOCK_SIZE]>,
    first: u64,
    /// Blocks of data that are staged.
    pub(super) position: u64,
    /// Numbers of the pages with which addresses begin anew that went up until then.
    runs: Vec<u64>,
    /// The address after the last one.
    next: u64,
}

impl Stager {
    /// With nothing in it, of a backup.
    pub(super) fn of(backup: &Backup) -> Stager {
        let head = PageHead {
            log: backup.label().backup,
            number: 0,
            previous: 0,
            generation: backup.label().sequence,
            data: 0,
            applied: 0,
            durable: 0,
            is_barrier: false,
            is_partial: false,
            barrier: 0,
            time: SystemTime::UNIX_EPOCH,
        };
        Stager { head, builder: PageBuilder::new(), pages: Vec::new(), first: 0, position: 0, runs: vec![0], next: 0 }
    }

    /// Notes where blocks are that were written to the data area.
    pub(super) fn append(&mut self, rings: &Rings, blocks: &[(u64, u64)]) -> Result<(), crate::Error> {
        for (address, sum) in blocks {
            self.goes_on_at(rings, *address, 1)?;
            if self.builder.append(self.head.data, *address, &[*sum]) == 0 {
                self.finish_page(rings)?;
                self.builder.append(self.head.data, *address, &[*sum]);
            }
        }
        Ok(())
    }

    /// The same of blocks that become zeros.
    pub(super) fn append_zeros(&mut self, rings: &Rings, first: u64, count: u64) -> Result<(), crate::Error> {
        self.goes_on_at(rings, first, count)?;
        let mut done = 0;
        while done < count {
            match self.builder.append_zeros(self.head.data, first + done, count - done, false) {
                0 => self.finish_page(rings)?,
                some => done += some,
            }
        }
        Ok(())
    }

    fn goes_on_at(&mut self, rings: &Rings, address: u64, count: u64) -> Result<(), crate::Error> {
        if address < self.next {
            self.finish_page(rings)?;
            self.runs.push(self.head.number);
        }
        self.next = address + count;
        Ok(())
    }

    fn finish_page(&mut self, rings: &Rings) -> Result<(), crate::Error> {
        let builder = std::mem::replace(&mut self.builder, PageBuilder::new());
        let blocks = builder.blocks();
        let (bytes, sum) = builder.finish(&self.head);
        self.pages.push(bytes);
        self.head.number += 1;
        self.head.previous = sum;
        self.head.data += blocks;
        if self.pages.len() as u64 >= WINDOW_PAGES { self.write(rings) } else { Ok(()) }
    }

    /// Writes the pages that are in memory only.
    fn write(&mut self, rings: &Rings) -> Result<(), crate::Error> {
        if self.head.number > rings.areas.meta_blocks {
            let (device, reason) = (rings.device.name().into(), "its staging area has no room for these pages");
            return Err(crate::Error::Unsuitable { device, reason });
        }
        rings.write(Area::Meta, self.first, &[&AlignedBuf::copy_of(self.pages.as_flattened())])?;
        self.first = self.head.number;
        self.pages.clear();
        Ok(())
    }

    /// All pages are written. How many they are, and the checksum of the last one.
    pub(super) fn finish(mut self, rings: &Rings) -> Result<(u64, u64), crate::Error> {
        self.finish_page(rings)?;
        if !self.pages.is_empty() {
            self.write(rings)?;
        }
        Ok((self.head.number, self.head.previous))
    }

    /// Fills pages from a number on, as they are in memory or on the device; all of them are finished.
    fn read(&self, rings: &Rings, number: u64, bytes: &mut [[u8; BLOCK_SIZE]]) -> Result<(), crate::Error> {
        let on_device = self.first.saturating_sub(number).min(bytes.len() as u64);
        let (before, behind) = bytes.split_at_mut(on_device as usize);
        if !before.is_empty() {
            rings.read(Area::Meta, number, before.as_flattened_mut())?;
        }
        if !behind.is_empty() {
            let at = (number + on_device - self.first) as usize;
            behind.copy_from_slice(&self.pages[at..at + behind.len()]);
        }
        Ok(())
    }
}

/// One of the runs of a step: its blocks in the order of addresses, some pages in advance.
struct Run {
    /// Numbers of the pages that are not read yet.
    next: u64,
    end: u64,
    /// Pages that are read at once.
    window: u64,
    bytes: Vec<[u8; BLOCK_SIZE]>,
    /// Of the page that is being taken, in the other direction.
    blocks: Vec<(u64, u64)>,
}

impl Run {
    /// The address of the next block.
    fn first(&mut self, backup: &Backup, stager: &Stager) -> Result<Option<u64>, Error> {
        while self.blocks.is_empty() {
            if self.bytes.is_empty() {
                if self.next == self.end {
                    return Ok(None);
                }
                let count = self.window.min(self.end - self.next);
                self.bytes = vec![[0; BLOCK_SIZE]; count as usize];
                stager.read(&backup.rings, self.next, &mut self.bytes)?;
                self.bytes.reverse();
                self.next += count;
            }
            let number = self.next - self.bytes.len() as u64;
            let Some(mut bytes) = self.bytes.pop() else { continue };
            match Page::decode_mending(&mut bytes, backup.rings.areas.meta_start) {
                Ok(page)
                    if (page.head.log, page.head.number, page.head.generation)
                        == (stager.head.log, number, stager.head.generation) =>
                {
                    let kept = page.entries.iter().flat_map(Kept::of);
                    self.blocks.extend(kept.map(|kept| (kept.address, kept.sum)));
                    self.blocks.reverse();
                }
                _ => {
                    let fault = Fault::new("a staged page", format!("number {number}"), "another one, or damage");
                    let block = backup.rings.block(Area::Meta, number);
                    return Err(Error::Damaged { device: backup.rings.device.name().into(), block, fault });
                }
            }
        }
        Ok(self.blocks.last().map(|(address, _)| *address))
    }
}

impl Backup {
    /// Stages the blocks of checksums that what is staged changes, like others: a power cut leaves all of them or none.
    pub(super) fn stage_sums(&mut self, stager: &mut Stager) -> Result<(), Error> {
        stager.finish_page(&self.rings)?;
        // Each ends where the next one begins; there is always a first.
        let ends = stager.runs[1..].iter().copied().chain([stager.head.number]);
        let window = (MERGED_PAGES / stager.runs.len() as u64).clamp(1, WINDOW_PAGES);
        let empty = |(next, end)| Run { next, end, window, bytes: Vec::new(), blocks: Vec::new() };
        let mut runs: Vec<Run> = stager.runs.iter().copied().zip(ends).map(empty).collect();
        let (mut reader, mut changed) = (SumsReader::default(), Vec::new());
        loop {
            let mut first = None;
            for run in &mut runs {
                let of_run = run.first(self, stager)?;
                first = [first, of_run].into_iter().flatten().min();
            }
            if changed.len() >= SUMS_BLOCKS || first.is_none() {
                self.stage_sums_blocks(stager, &changed)?;
                changed.clear();
            }
            let Some(first) = first else { return Ok(()) };
            let group = first / GROUP_BLOCKS;
            let mut sums = BTreeMap::new();
            // Of a block that is there more than once the last one counts.
            for run in &mut runs {
                while run.first(self, stager)?.is_some_and(|address| address / GROUP_BLOCKS == group) {
                    sums.extend(run.blocks.pop());
                }
            }
            let sums: Vec<(u64, u64)> = sums.into_iter().collect();
            changed.push(self.changed_group(&mut reader, &sums)?);
            self.written.insert(group);
        }
    }

    fn stage_sums_blocks(&self, stager: &mut Stager, changed: &[(u64, [u8; BLOCK_SIZE])]) -> Result<(), crate::Error> {
        if changed.is_empty() {
            return Ok(());
        }
        let blocks: Vec<(u64, u64)> = changed.iter().map(|(block, bytes)| (*block, crc64(bytes))).collect();
        let bytes: Vec<u8> = changed.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        self.stage(stager, &blocks, &AlignedBuf::copy_of(&bytes))
    }
}
