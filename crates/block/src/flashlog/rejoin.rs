//! The log that was pulled out while it had what main has not, put back: the set goes on with it.
//!
//! The set is opened anew with it, so it has everything that was flushed, and what came to the log behind that. What else was answered the one that
//! has stopped still has in memory, and writes there: whoever goes on using it has not been told that any of it is gone. It is written by address
//! and without what was replaced meanwhile, so a part of it would be no state that there was: [`Flashlog::append_whole`].

use super::Error;
use super::attach::Attached;
use super::chunk::{Chunk, Zeros};
use super::device::{Failure, Flashlog, Mode, Order, Side};
use super::format::{Page, Point, Role};
use super::labels::Labelled;
use super::open::{End, judge};
use super::ring::{Area, Rings};
use super::stages::{Map, Place, Stage, Version};
use crate::{AlignedBuf, BLOCK_SIZE, Device, Filter, Operation};
use holdfast_integrity::crc64;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

impl Flashlog {
    /// Opens the set with its log again. This one has failed because of that; it writes to no device any more, and has what it had in memory if
    /// this fails.
    ///
    /// # Errors
    /// [`Error`] tells why it cannot be this log. Another one, or one that lacks what was flushed, is refused before anything is written.
    pub(super) fn rejoin(&self, log: Arc<dyn Device>) -> Result<(Flashlog, Attached), Error> {
        let (set, opened) = {
            // Whoever is at a device ends first.
            let (mut head, mut main) = (self.head.lock(), self.main_side_at_once());
            let found = Labelled::read(Arc::clone(&log), Role::Log)?;
            judge(&Labelled::read(Arc::clone(&main.labels.device), Role::Main)?, &found)?;
            has_page_before(self.stages.lock().durable, &found)?;
            // What this one knows of the labels is old from here on: whoever still has it, a backup, say, writes none any more.
            if let Some(cause) = self.latch.cause() {
                let failure = Failure { side: Side::Log, error: cause.clone() };
                head.failed.get_or_insert_with(|| failure.clone());
                main.failed.get_or_insert(failure);
                head.labels.device = Arc::new(Gone { log: Arc::clone(&self.rings.device), cause: cause.clone() });
            }
            // What was flushed is there, and what was not is in memory.
            Flashlog::put_together(Arc::clone(&main.labels.device), log, &self.options, End::Known)?
        };
        self.tell_bad(&set);
        let lacking = self.lacked_by(&set)?;
        set.take_whole(&lacking).map_err(|Failure { error, .. }| Error::Device(error))?;
        let back = Attached::Back { blocks: lacking.len() as u64, mended_blocks: opened.mended_blocks, lost_blocks: 0 };
        Ok((set, back))
    }

    /// Tells that set which blocks of main are known to be bad here, and which of these were being written anew.
    fn tell_bad(&self, set: &Flashlog) {
        let (bad, rewritten, knowledge) = {
            let stages = self.stages.lock();
            (stages.known_bad.clone(), stages.rewritten.clone(), stages.knowledge.passed_on())
        };
        {
            let mut stages = set.stages.lock();
            rewritten.keys().for_each(|address| stages.rewrite_untold(*address));
        }
        set.learn_bad(bad, knowledge);
    }

    /// What was answered here, and that set has not as it was.
    fn lacked_by(&self, set: &Flashlog) -> Result<Vec<(u64, Version)>, Error> {
        let mut newest: Map = Map::new();
        {
            let stages = self.stages.lock();
            for stage in [Stage::Logged, Stage::Writing, Stage::Gathered] {
                for (address, version) in stages.map(stage).iter() {
                    newest.insert(*address, stages.held(version).unwrap_or_else(|| version.clone()));
                }
            }
        }
        let mut lacking = Vec::new();
        for (address, version) in newest {
            let is_there = set.stages.lock().find(address).is_some_and(|there| there.sum == version.sum);
            match version.place {
                _ if is_there => {}
                // Memory has not got it any more.
                Place::Log(_) => {
                    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
                    set.read(address, &mut [IoSliceMut::new(&mut block)])?;
                    let got = crc64(&block);
                    if got != version.sum {
                        return Err(self.damaged(Side::Log, Operation::Read, address, version.sum, got).error.into());
                    }
                }
                _ => lacking.push((address, version)),
            }
        }
        Ok(lacking)
    }

    /// Takes these versions, all or, after a power cut meanwhile, none.
    fn take_whole(&self, versions: &[(u64, Version)]) -> Result<(), Failure> {
        let is_next = |(at, version): &(u64, Version), (next, following): &(u64, Version)| {
            at + 1 == *next && as_zeros(version) == as_zeros(following)
        };
        let now = self.options.timer.now();
        for run in versions.chunk_by(is_next) {
            let zeros = as_zeros(&run[0].1);
            let most = zeros.map_or(self.gather_blocks, |_| Zeros::most(self.gather_blocks));
            for part in run.chunks(most as usize) {
                let chunk = match zeros {
                    Some(keep) => Chunk::zeros(Zeros { count: part.len() as u64, keep }),
                    None => self.chunk_of(part)?,
                };
                let mut stages = self.stages.lock();
                stages.accept(part[0].0, Arc::new(chunk));
                stages.age.begin(Stage::Gathered, now);
                drop(stages);
                if self.options.order == Order::PutBackInParts {
                    self.append(&mut self.head.lock(), false)?;
                }
            }
        }
        let mut head = self.head.lock();
        self.append_whole(&mut head)?;
        drop(head);
        match self.options.mode {
            Mode::Synchronous => self.catch_up_to_durable(),
            Mode::Asynchronous => Ok(()),
        }
    }

    /// Copies of blocks in a row that are in memory; the checksums are made of the copies' bytes first, and must be those that came with them.
    fn chunk_of(&self, versions: &[(u64, Version)]) -> Result<Chunk, Failure> {
        let blocks: Vec<IoSlice<'_>> = versions.iter().filter_map(|(_, version)| in_memory(version)).collect();
        let chunk = Chunk::arrive(&blocks, 0, versions.len(), &self.memory);
        match versions.iter().zip(chunk.sums()).find(|((_, version), sum)| version.sum != **sum) {
            None => Ok(chunk),
            Some(((address, version), got)) => {
                Err(self.damaged(Side::Memory, Operation::Write, *address, version.sum, *got))
            }
        }
    }
}

/// The log of a set that has stopped, when another one goes on with it.
struct Gone {
    log: Arc<dyn Device>,
    cause: crate::Error,
}

impl Filter for Gone {
    fn below(&self) -> &dyn Device {
        &*self.log
    }

    fn on_write(&self, _first: u64, _bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        Err(self.cause.clone())
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        Err(self.cause.clone())
    }

    fn on_discard(&self, _first: u64, _count: u64) -> Result<(), crate::Error> {
        Err(self.cause.clone())
    }
}

/// If a version is zeros: whether their room is kept.
fn as_zeros(version: &Version) -> Option<bool> {
    match version.place {
        Place::Zeros(keep) => Some(keep),
        Place::Memory(..) | Place::Held(..) | Place::Log(_) => None,
    }
}

/// Its bytes, if memory has them.
fn in_memory(version: &Version) -> Option<IoSlice<'_>> {
    match &version.place {
        Place::Memory(chunk, index) | Place::Held(chunk, index, _) => Some(IoSlice::new(chunk.block(*index))),
        Place::Zeros(_) | Place::Log(_) => None,
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
    rings.read_what_can_be(Area::Meta, point.page - 1, &mut bytes)?;
    match Page::decode_mending(&mut bytes, label.blocks) {
        Ok(found) if found.head.number == point.page - 1 && found.sum == point.previous => Ok(()),
        _ => {
            let (device, block) = (log.device.name().into(), rings.block(Area::Meta, point.page - 1));
            Err(Error::MissingPages { device, block, expected: point.page, got: point.page - 1 })
        }
    }
}
