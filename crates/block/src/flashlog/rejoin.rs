//! The log that was pulled out while it had what main has not, put back: the set goes on with it.
//!
//! The set is opened anew with it, so it has everything that was flushed. What was answered and not flushed the one that has stopped still has in
//! memory, and writes there: whoever goes on using it has not been told that any of it is gone.

use super::Error;
use super::attach::Attached;
use super::device::{Failure, Flashlog, Side};
use super::format::{Page, Point, Role};
use super::labels::Labelled;
use super::open::judge;
use super::ring::{Area, Rings};
use super::stages::{Place, Stage, Version};
use crate::{AlignedBuf, BLOCK_SIZE, Device, Operation};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Flashlog {
    /// Opens the set with its log again. This one has failed because of that; it writes to no device any more.
    ///
    /// # Errors
    /// [`Error`] tells why it cannot be this log. Another one, or one that lacks what was flushed, is refused before anything is written.
    pub(super) fn rejoin(&self, log: Arc<dyn Device>) -> Result<(Flashlog, Attached), Error> {
        let (set, opened) = {
            // Whoever is at a device ends first.
            let (_head, mut main) = (self.head.lock(), self.main_side_at_once());
            let found = Labelled::read(Arc::clone(&log), Role::Log)?;
            judge(&Labelled::read(Arc::clone(&main.labels.device), Role::Main)?, &found)?;
            has_page_before(self.stages.lock().durable, &found)?;
            let opened = Flashlog::open(Arc::clone(&main.labels.device), log, &self.options)?;
            // What this one knows of main's labels is old now.
            main.failed = self.latch.cause().cloned().map(Failure::of(Side::Log));
            opened
        };
        // If the log goes once more meanwhile, this one still has all of it.
        set.is_joining.store(true, Ordering::SeqCst);
        let blocks = self.write_again_to(&set)?;
        set.is_joining.store(false, Ordering::SeqCst);
        Ok((set, Attached::Back { blocks, mended_blocks: opened.mended_blocks, lost_blocks: 0 }))
    }

    /// Gives the set what was answered here and not flushed. How many blocks it was.
    fn write_again_to(&self, set: &Flashlog) -> Result<u64, Error> {
        let newest: BTreeMap<u64, Version> = {
            let stages = self.stages.lock();
            let oldest_first =
                [Stage::Logged, Stage::Writing, Stage::Gathered].map(|stage| Arc::clone(stages.map(stage)));
            let of_all = oldest_first.iter().flat_map(|map| map.iter());
            of_all
                .map(|(address, version)| (*address, stages.held(version).unwrap_or_else(|| version.clone())))
                .collect()
        };
        for (address, version) in &newest {
            let is_as_written = |block: &[u8], side| match crc64(block) {
                got if got == version.sum => Ok(()),
                got => Err(self.damaged(side, Operation::Write, *address, version.sum, got).error),
            };
            match &version.place {
                Place::Memory(chunk, index) | Place::Held(chunk, index, _) => {
                    is_as_written(chunk.block(*index), Side::Memory)?;
                    set.write(*address, &[IoSlice::new(chunk.block(*index))])?;
                }
                Place::Zeros(keep) => drop(set.zero(*address, 1, *keep)?),
                // Memory has not got it any more, so the log must have it.
                Place::Log(_) => {
                    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
                    set.read(*address, &mut [IoSliceMut::new(&mut block)])?;
                    is_as_written(&block, Side::Log)?;
                }
            }
        }
        set.flush()?;
        Ok(newest.len() as u64)
    }
}

/// That a log has the page in front of this point. An older copy of it has not: with that, main would be newer than the log itself.
fn has_page_before(point: Point, log: &Labelled) -> Result<(), Error> {
    let label = &log.label;
    if point.page <= label.tail.page {
        return Ok(());
    }
    let rings = Rings { device: Arc::clone(&log.device), areas: label.areas };
    let mut bytes = [0; BLOCK_SIZE];
    rings.read(Area::Meta, point.page - 1, &mut bytes)?;
    match Page::decode_mending(&mut bytes, label.blocks) {
        Ok(found) if found.head.number == point.page - 1 && found.sum == point.previous => Ok(()),
        _ => {
            let (device, block) = (log.device.name().into(), rings.block(Area::Meta, point.page - 1));
            Err(Error::MissingPages { device, block, expected: point.page, got: point.page - 1 })
        }
    }
}
