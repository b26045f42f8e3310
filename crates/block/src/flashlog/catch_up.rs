//! Bringing main up to date: the newest version of each block, in the order of addresses, verified just before it is written.

use super::chunk::zero_block;
use super::device::{Failure, Flashlog, Order, Side};
use super::format::{Point, State};
use super::labels::Labelled;
use super::lost::Lost;
use super::ring::Area;
use super::stages::{Map, Place, Stage, Stages, Version};
use super::turns::TurnGuard;
use crate::{AlignedBuf, BLOCK_SIZE, Operation, Write};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Blocks of one write to main: 1 MiB.
const RUN_BLOCKS: usize = 256;
/// Blocks that are on their way at once.
const BATCH_BLOCKS: usize = 4 * RUN_BLOCKS;

/// How reading from the log goes with writing to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// Somebody waits for main.
    AtOnce,
    /// Writers go before, as long as the log has room for them.
    Patient,
}

/// Whoever has it is the only one who writes to main.
pub(super) struct MainSide {
    pub(super) labels: Labelled,
    /// The failure after which main does not count as having anything more: it may have forgotten what it could not keep.
    pub(super) failed: Option<Failure>,
}

impl MainSide {
    /// For those who have waited for main: they fail as the first one did.
    fn check(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Flashlog {
    /// Brings main up to what is durable in the log.
    pub(super) fn catch_up_to_durable(&self) -> Result<(), Failure> {
        self.catch_up_with(&mut self.main_side_at_once(), Pace::AtOnce)
    }

    /// Asynchronous mode: brings main a step further than it was, unless somebody else has.
    pub(super) fn catch_up_for_room(&self, was: Point) -> Result<(), Failure> {
        if !self.is_read_from_log() {
            return self.catch_up_to_durable();
        }
        let mut main = self.main_side_at_once();
        if self.stages.lock().applied.page > was.page {
            return Ok(());
        }
        self.step(&mut main, Pace::AtOnce)
    }

    /// Asynchronous mode: brings main a part of the way to what is durable in the log, so that as much can be let go of there. Main is at no
    /// state then, and its label says so.
    ///
    /// What has been written again since is not written to main, as the log has it further on. What memory has goes to main first, and all zeros.
    pub(super) fn step(&self, main: &mut MainSide, pace: Pace) -> Result<(), Failure> {
        self.check_latch()?;
        main.check()?;
        if pace == Pace::Patient {
            self.apply_part(main, pace, |stages| Some((stages.written, 0)))?;
            let has_more = !self.stages.lock().map(Stage::Applying).is_empty();
            if has_more {
                self.wait_for_log()?;
            }
        }
        let areas = &self.rings.areas;
        let is_all = self.apply_part(main, pace, |stages| {
            let end = stages.ends.step(stages.written, stages.durable, areas)?;
            Some((end, end.data))
        })?;
        match is_all {
            true => self.say_state(main),
            false => {
                self.stages.lock().is_between = true;
                Ok(())
            }
        }
    }

    /// Brings to main what is before a position, and what memory has, and gets to this point with it; or everything that is durable. Whether it
    /// was that.
    fn apply_part(
        &self,
        main: &mut MainSide,
        pace: Pace,
        end: impl FnOnce(&Stages) -> Option<(Point, u64)>,
    ) -> Result<bool, Failure> {
        let (blocks, end, recent) = {
            let mut stages = self.stages.lock();
            let end = end(&stages);
            stages.take_durable();
            (Arc::clone(stages.map(Stage::Applying)), end, stages.recent.first())
        };
        let Some((point, before)) = end else {
            drop(blocks);
            self.apply_as_mixture(main, pace)?;
            return Ok(true);
        };
        let is_now = |version: &Version| match version.place {
            Place::Log(position) => position < before || position >= recent,
            _ => true,
        };
        let clone = |(address, version): (&u64, &Version)| (*address, version.clone());
        let (done, rest): (Map, Map) = blocks.iter().map(clone).partition(|(_, version)| is_now(version));
        drop(blocks);
        if !done.is_empty() {
            if main.labels.label.state != State::CatchingUp {
                main.labels.write(|label| label.state = State::CatchingUp).map_err(Failure::of(Side::Main))?;
            }
            let lost = self.write_to_main(&done, pace)?;
            self.go_on_without(main, &lost)?;
        }
        let used = (!done.is_empty()).then(|| self.options.timer.now());
        {
            let mut stages = self.stages.lock();
            stages.written_in_part(done, rest, point);
            stages.age.main_used = used.or(stages.age.main_used);
        }
        self.flush_main(main)?;
        Ok(false)
    }

    /// Main's turn, for whoever waits for it: a server that is patient goes on.
    pub(super) fn main_side_at_once(&self) -> TurnGuard<'_, MainSide> {
        let is_told = {
            let mut stages = self.stages.lock();
            stages.company.hurried += 1;
            stages.company.patient > 0
        };
        if is_told {
            self.options.timer.wake();
        }
        let main = self.main_side.lock();
        self.stages.lock().company.hurried -= 1;
        main
    }

    /// The same, at this pace.
    pub(super) fn catch_up_with(&self, main: &mut MainSide, pace: Pace) -> Result<(), Failure> {
        self.check_latch()?;
        if !self.is_read_from_log() && main.labels.label.state != State::CatchingUp {
            // What a flush covers is on main at once in synchronous mode, so that main alone is like any disk that lost its power: it
            // has what was flushed.
            self.write_durable(main, pace)?;
            self.flush_main(main)?;
            return self.tell_less_damage(main);
        }
        self.apply_as_mixture(main, pace)?;
        self.say_state(main)
    }

    /// Main has everything that was durable a moment ago.
    fn say_state(&self, main: &mut MainSide) -> Result<(), Failure> {
        if main.labels.label.state == State::CatchingUp {
            main.labels.write(|label| label.state = State::Open).map_err(Failure::of(Side::Main))?;
        }
        self.stages.lock().is_between = false;
        self.tell_less_damage(main)
    }

    /// The same where main is a mixture on the way, which must not be taken for something else if the log is lost. Its label still says
    /// so afterwards.
    pub(super) fn apply_as_mixture(&self, main: &mut MainSide, pace: Pace) -> Result<(), Failure> {
        let has_some = {
            let stages = self.stages.lock();
            [Stage::Durable, Stage::Applying, Stage::Applied].iter().any(|stage| !stages.map(*stage).is_empty())
        };
        if has_some && main.labels.label.state != State::CatchingUp {
            main.labels.write(|label| label.state = State::CatchingUp).map_err(Failure::of(Side::Main))?;
        }
        self.write_durable(main, pace)?;
        self.flush_main(main)
    }

    /// Writes to main what is durable in the log.
    pub(super) fn write_durable(&self, main: &mut MainSide, pace: Pace) -> Result<(), Failure> {
        main.check()?;
        let (blocks, point) = {
            let mut stages = self.stages.lock();
            stages.take_durable();
            if self.options.order == Order::MainBeforeLog {
                stages.promote(Stage::Logged, Stage::Applying);
            }
            (Arc::clone(stages.map(Stage::Applying)), stages.durable)
        };
        let lost = self.write_to_main(&blocks, pace)?;
        self.go_on_without(main, &lost)?;
        let used = (!blocks.is_empty()).then(|| self.options.timer.now());
        // Nobody else has it then, and it need not be copied.
        drop(blocks);
        let mut stages = self.stages.lock();
        stages.written(point);
        stages.age.main_used = used.or(stages.age.main_used);
        Ok(())
    }

    /// Makes what was written to main durable.
    pub(super) fn flush_main(&self, main: &mut MainSide) -> Result<(), Failure> {
        main.check()?;
        let has_some = !self.stages.lock().map(Stage::Applied).is_empty();
        if has_some && self.options.order != Order::NoFlushOfMain {
            let flushed = main.labels.device.flush().map_err(Failure::of(Side::Main));
            main.failed = flushed.as_ref().err().cloned();
            flushed?;
        }
        let is_waited_for = {
            let mut stages = self.stages.lock();
            stages.applied();
            stages.company.waiting > 0
        };
        if is_waited_for {
            self.options.timer.wake();
        }
        Ok(())
    }

    /// Writes these versions to main. Main is the caller's. What memory has goes first, before it has to go, and without the log. Gives what
    /// the log has lost, which is not written.
    pub(super) fn write_to_main(&self, blocks: &Map, pace: Pace) -> Result<Vec<Lost>, Failure> {
        let (mut in_log, mut batch, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let all = self.make_zeros_on_main(blocks.iter().collect()).map_err(Failure::of(Side::Main))?;
        for some in all.chunks(BATCH_BLOCKS) {
            {
                let stages = self.stages.lock();
                for (address, version) in some {
                    match (&version.place, stages.held(version)) {
                        (Place::Log(_), None) => in_log.push((*address, *version)),
                        (_, held) => batch.push((**address, held.unwrap_or_else(|| (*version).clone()))),
                    }
                }
            }
            if batch.len() >= BATCH_BLOCKS {
                self.write_batch_to_main(std::mem::take(&mut batch), &mut lost)?;
            }
        }
        self.write_batch_to_main(batch, &mut lost)?;
        for batch in in_log.chunks(BATCH_BLOCKS) {
            if pace == Pace::Patient {
                self.wait_for_log()?;
            }
            let batch = batch.iter().map(|(address, version)| (**address, (*version).clone())).collect();
            self.write_batch_to_main(batch, &mut lost)?;
        }
        Ok(lost)
    }

    fn write_batch_to_main(&self, mut batch: Vec<(u64, Version)>, lost: &mut Vec<Lost>) -> Result<(), Failure> {
        for (address, version) in &mut batch {
            if let Place::Held(chunk, index, position) = &version.place
                && crc64(chunk.block(*index)) != version.sum
            {
                tracing::warn!(device = &*self.name, block = address, "damage in memory: the log has the block");
                version.place = Place::Log(*position);
            }
        }
        // One buffer for what comes from the log, in the order of the batch; memory is written from where it is.
        let mut read = AlignedBuf::zeroed(batch.iter().filter(|(_, version)| is_in_log(version)).count() * BLOCK_SIZE);
        let lost_now = self.read_versions(&batch, &mut read)?;
        let is_lost = |address: &u64| lost_now.binary_search_by_key(address, |lost| lost.address).is_ok();
        let (blocks, _none) = read.as_chunks::<BLOCK_SIZE>();
        let mut read = blocks.iter();
        let mut runs: Vec<(u64, Vec<IoSlice<'_>>)> = Vec::new();
        for (address, version) in &batch {
            let bytes: &[u8] = match &version.place {
                Place::Held(chunk, index, _) => chunk.block(*index),
                Place::Memory(chunk, index) => {
                    let bytes = chunk.block(*index);
                    let got = crc64(bytes);
                    if got != version.sum {
                        return Err(self.damaged(Side::Memory, Operation::Write, *address, version.sum, got));
                    }
                    bytes
                }
                Place::Log(_) => read.next().expect("read above, one for each"),
                Place::Zeros(_) => zero_block(),
            };
            if is_lost(address) {
                continue;
            }
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() as u64 == *address && run.len() < RUN_BLOCKS => {
                    run.push(IoSlice::new(bytes));
                }
                _ => runs.push((*address, vec![IoSlice::new(bytes)])),
            }
        }
        let writes: Vec<Write<'_>> = runs.iter().map(|(first, bufs)| Write { first: *first, bufs }).collect();
        self.main.write_batch(&writes).map_err(Failure::of(Side::Main))?;
        lost.extend(lost_now);
        Ok(())
    }

    /// Reads, of these versions, those that are in the log, one after the other into `bytes`, and verifies them. Gives those that are lost, in
    /// order.
    fn read_versions(&self, batch: &[(u64, Version)], bytes: &mut [u8]) -> Result<Vec<Lost>, Failure> {
        let in_log: Vec<(u64, &Version, u64)> = batch
            .iter()
            .filter_map(|(address, version)| match version.place {
                Place::Log(position) => Some((*address, version, position)),
                Place::Memory(..) | Place::Held(..) | Place::Zeros(_) => None,
            })
            .collect();
        let positions: Vec<u64> = in_log.iter().map(|(_, _, position)| *position).collect();
        self.rings.read_each(Area::Data, &positions, bytes).map_err(Failure::of(Side::Log))?;
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let mut lost = Vec::new();
        for (block, (address, version, position)) in blocks.iter_mut().zip(&in_log) {
            match self.verify_or_mend(block, *address, version.sum, *position) {
                Err(failure @ Failure { error: crate::Error::Damaged { got, .. }, .. }) => {
                    lost.push(Lost { address: *address, position: *position, sum: version.sum, got, failure });
                }
                done => done?,
            }
        }
        Ok(lost)
    }

    /// Verifies a block that came from the log. One that is damaged is made good if that is possible; the log gets it again. Nobody
    /// may write at this position meanwhile.
    pub(super) fn verify_or_mend(
        &self,
        block: &mut [u8; BLOCK_SIZE],
        address: u64,
        sum: u64,
        position: u64,
    ) -> Result<(), Failure> {
        if crc64(block) == sum {
            return Ok(());
        }
        self.make_good(block, address, sum, position)?;
        let aligned = AlignedBuf::copy_of(block);
        self.rings.write(Area::Data, position, &[&aligned]).map_err(Failure::of(Side::Log))
    }

    /// Makes a damaged block of the log good in memory: by flipping a bit back, or because main has the same.
    pub(super) fn make_good(
        &self,
        block: &mut [u8; BLOCK_SIZE],
        address: u64,
        sum: u64,
        position: u64,
    ) -> Result<(), Failure> {
        let (got, place) = (crc64(block), self.rings.block(Area::Data, position));
        if !self.is_made_good(block, address, sum) {
            return Err(self.damaged(Side::Log, Operation::Read, place, sum, got));
        }
        tracing::warn!(device = self.rings.device.name(), block = place, "a damaged block of the log was made good");
        Ok(())
    }

    /// The same without a word. Whether it could be.
    pub(super) fn is_made_good(&self, block: &mut [u8; BLOCK_SIZE], address: u64, sum: u64) -> bool {
        let has_main = |block: &mut [u8; BLOCK_SIZE]| self.main.read(address, &mut [IoSliceMut::new(block)]).is_ok();
        correct_flips(block, sum, FlipsMax::One).is_some() || (has_main(block) && crc64(block) == sum)
    }
}

fn is_in_log(version: &Version) -> bool {
    matches!(version.place, Place::Log(_))
}
