//! Bringing main up to date: the newest version of each block, in the order of addresses, verified just before it is written.

use super::chunk::zero_block;
use super::device::{Failure, Flashlog, Order, Side};
use super::fetch::Asked;
use super::format::{Label, Point, State};
use super::labels::Labelled;
use super::lost::Lost;
use super::ring::Area;
use super::stages::{Map, Place, Stage, Version, is_half_step};
use super::turns::TurnGuard;
use crate::{AlignedBuf, BLOCK_SIZE, Operation, Write};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::borrow::Borrow;
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

/// How far main has followed what is durable in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Followed {
    /// It has all of it.
    All,
    /// It has what memory has; the rest must be read from the log.
    Memory,
    /// Somebody waits for main, or the thread is to end.
    InPart,
    /// The log is nearly full.
    Full,
}

/// What goes to main.
struct Taken {
    blocks: Arc<Map>,
    /// Memory has what is in the log from here on.
    recent: u64,
    /// The blocks are all that is in front of this point, and that main does not have.
    durable: Point,
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
        let is_served = {
            let stages = self.stages.lock();
            if stages.applied.page > was.page {
                return Ok(());
            }
            stages.company.servers > 0
        };
        // A thread that serves main writes there what memory has when nobody waits.
        self.step(&mut main, Pace::AtOnce, !is_served)
    }

    /// Asynchronous mode: brings main a part of the way to what is durable in the log, so that as much can be let go of there. If it gets something,
    /// it is at no state then, and its label says so.
    ///
    /// What has been written again since is not written to main, as the log has it further on, durably. Of what is behind the part, main gets
    /// all zeros, and with `is_ahead` what memory has, before it has to go.
    pub(super) fn step(&self, main: &mut MainSide, pace: Pace, is_ahead: bool) -> Result<(), Failure> {
        if self.let_go_of_replaced(main, pace == Pace::AtOnce)? {
            return Ok(());
        }
        let Taken { blocks, recent, durable } = self.take_durable();
        let end = {
            let stages = self.stages.lock();
            stages.ends.step(stages.written, durable, &self.rings.areas)
        };
        let Some(end) = end else {
            drop(blocks);
            self.apply_as_mixture(main, pace)?;
            return self.say_state(main);
        };
        let is_now = |version: &Version| match position(version) {
            Some(position) => position < end.data || is_ahead && position >= recent,
            None => true,
        };
        let part = part(&blocks, is_now);
        drop(blocks);
        self.write_part(main, part, end, pace)?;
        self.flush_main(main)?;
        self.stages.lock().is_between = true;
        Ok(())
    }

    /// Asynchronous mode: if everything in what comes first in the log has been written again, or is on main already, that can be let go of,
    /// and nothing is written to main. Whether there is such a part; for those who wait for main, half a step at least.
    ///
    /// - What replaces it is behind the part and durable in the log, by a flush: a power cut leaves it, and the label that lets go of the part
    ///   ([`Flashlog::write_points`]) counts it as durable, so that an opening that does not find it says so.
    /// - What is on main is durable there before the log lets go of it.
    /// - Zeros have no position, and a page may have nothing else: main must have all of them first.
    /// - Main is as it was, and so is its label. It may be at no state that the log can still tell, which [`Stages::is_between`] says: what was
    ///   known of damage to it still holds.
    /// - What the log keeps for a backup, or because it tells what is lost, stays: see [`Flashlog::tail`].
    pub(super) fn let_go_of_replaced(&self, main: &mut MainSide, is_waited_for: bool) -> Result<bool, Failure> {
        self.check_latch()?;
        main.check()?;
        let Taken { blocks, durable, .. } = self.take_durable();
        let needed = match self.options.order {
            Order::LetsGoOfNeeded => Some(u64::MAX),
            _ => blocks.values().map(position).min().flatten(),
        };
        let Some(needed) = needed else { return Ok(false) };
        drop(blocks);
        {
            let mut stages = self.stages.lock();
            let end = stages.ends.last_before(needed, stages.written, durable);
            let is_enough = |end: &Point| !is_waited_for || is_half_step(stages.written, *end, &self.rings.areas);
            let Some(end) = end.filter(is_enough) else { return Ok(false) };
            stages.written = end;
            stages.is_between = true;
        }
        self.flush_main(main)?;
        Ok(true)
    }

    /// Asynchronous mode: brings to main what is durable and memory has, a batch after the other, until somebody waits for main, or the log is
    /// nearly full, if that matters.
    pub(super) fn follow(&self, main: &mut MainSide, full_matters: bool) -> Result<Followed, Failure> {
        self.check_latch()?;
        main.check()?;
        let Taken { blocks, recent, .. } = self.take_durable();
        let in_memory = part(&blocks, |version| position(version).is_none_or(|position| position >= recent));
        drop(blocks);
        let mut rest = in_memory.into_iter().peekable();
        let mut followed = Followed::Memory;
        while rest.peek().is_some() {
            let (recent, point) = {
                let stages = self.stages.lock();
                if stages.company.hurried > 0 || stages.company.is_ending {
                    followed = Followed::InPart;
                    break;
                }
                if full_matters && self.is_nearly_full(&stages) {
                    followed = Followed::Full;
                    break;
                }
                (stages.recent.first(), stages.written)
            };
            // What has had to go meanwhile is read from the log later on.
            let is_there = |version: &Version| position(version).is_none_or(|position| position >= recent);
            let batch = rest.by_ref().take(BATCH_BLOCKS).filter(|(_, version)| is_there(version)).collect();
            self.write_part(main, batch, point, Pace::AtOnce)?;
        }
        self.flush_main(main)?;
        let has_all = self.stages.lock().map(Stage::Applying).is_empty();
        Ok(if has_all { Followed::All } else { followed })
    }

    /// Takes what is durable in the log. What becomes durable after it does not go to main yet, and is not to be let go of.
    fn take_durable(&self) -> Taken {
        let mut stages = self.stages.lock();
        stages.take_durable();
        Taken {
            blocks: Arc::clone(stages.map(Stage::Applying)),
            recent: stages.recent.first(),
            durable: stages.durable,
        }
    }

    /// Brings to main a part of what goes there, and gets to this point with it.
    fn write_part(&self, main: &mut MainSide, part: Map, point: Point, pace: Pace) -> Result<(), Failure> {
        if !part.is_empty() {
            if main.labels.label.state != State::CatchingUp {
                main.labels.write(|label| label.state = State::CatchingUp).map_err(Failure::of(Side::Main))?;
            }
            let lost = self.write_to_main(&part, pace)?;
            self.go_on_without(main, &lost)?;
        }
        let used = (!part.is_empty()).then(|| self.options.timer.now());
        // In pieces: nobody who looks for a block waits for all of it.
        let mut rest = part.into_iter().peekable();
        loop {
            let done: Map = rest.by_ref().take(BATCH_BLOCKS).collect();
            let mut stages = self.stages.lock();
            // Whoever stops behind this leaves a mixture.
            stages.is_between |= !done.is_empty();
            stages.written_in_part(done, point);
            stages.age.main_used = used.or(stages.age.main_used);
            if rest.peek().is_none() {
                return Ok(());
            }
        }
    }

    /// Main's turn, for whoever waits for it: a server that is patient goes on.
    pub(super) fn main_side_at_once(&self) -> TurnGuard<'_, MainSide> {
        let is_told = {
            let mut stages = self.stages.lock();
            stages.company.hurried += 1;
            stages.company.turns += 1;
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
        let Label { state, is_asynchronous, .. } = main.labels.label;
        if !self.is_read_from_log() && state != State::CatchingUp && !is_asynchronous {
            // What a flush covers is on main at once in synchronous mode, so that main alone is like any disk that lost its power: it
            // has what was flushed.
            self.write_durable(main, pace)?;
            self.flush_main(main)?;
            return self.tell_less_damage(main);
        }
        self.apply_as_mixture(main, pace)?;
        self.say_state(main)
    }

    /// Main has everything that was durable a moment ago: in synchronous mode all that was written in the other one.
    fn say_state(&self, main: &mut MainSide) -> Result<(), Failure> {
        let now = (State::Open, self.is_read_from_log());
        let Label { state, is_asynchronous, .. } = main.labels.label;
        if (state, is_asynchronous) != now {
            let said = main.labels.write(|label| (label.state, label.is_asynchronous) = now);
            said.map_err(Failure::of(Side::Main))?;
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
        let mut asked = None;
        let mut pieces = in_log.chunks(self.piece_blocks(BATCH_BLOCKS)).peekable();
        while let Some(piece) = pieces.next() {
            let read = match asked.take().and_then(Asked::take) {
                Some(read) => read?,
                None => {
                    if pace == Pace::Patient {
                        self.wait_for_log(|company| company.hurried > 0)?;
                    }
                    self.read_positions(&positions(piece))?
                }
            };
            let ahead = pieces.peek().filter(|_| pace == Pace::AtOnce || self.is_waited_for());
            asked = ahead.and_then(|next| self.ask(positions(next)));
            let piece: Vec<_> = piece.iter().map(|(address, version)| (**address, (*version).clone())).collect();
            self.write_verified(&piece, read, &mut lost)?;
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
        let read = self.read_positions(&positions(&batch))?;
        self.write_verified(&batch, read, lost)
    }

    /// Writes a batch to main, of which the log's blocks have been read in the order of the batch; memory is written from where it is.
    fn write_verified(
        &self,
        batch: &[(u64, Version)],
        mut read: AlignedBuf,
        lost: &mut Vec<Lost>,
    ) -> Result<(), Failure> {
        let lost_now = self.verify_versions(batch, &mut read)?;
        let is_lost = |address: &u64| lost_now.binary_search_by_key(address, |lost| lost.address).is_ok();
        let (blocks, _none) = read.as_chunks::<BLOCK_SIZE>();
        let mut read = blocks.iter();
        let mut runs: Vec<(u64, Vec<IoSlice<'_>>)> = Vec::new();
        for (address, version) in batch {
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

    /// Verifies, of these versions, those that are in the log, which have been read one after the other into `bytes`. Gives those that are
    /// lost, in order.
    fn verify_versions(&self, batch: &[(u64, Version)], bytes: &mut [u8]) -> Result<Vec<Lost>, Failure> {
        let in_log = batch.iter().filter_map(|(address, version)| Some((*address, version, position(version)?)));
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let mut lost = Vec::new();
        for (block, (address, version, position)) in blocks.iter_mut().zip(in_log) {
            match self.verify_or_mend(block, address, version.sum, position) {
                Err(failure @ Failure { error: crate::Error::Damaged { got, .. }, .. }) => {
                    lost.push(Lost { address, position, sum: version.sum, got, failure });
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

/// Where in the log it is.
fn position(version: &Version) -> Option<u64> {
    match version.place {
        Place::Log(position) => Some(position),
        _ => None,
    }
}

/// Those that are to be written now.
fn part(blocks: &Map, is_now: impl Fn(&Version) -> bool) -> Map {
    let now = blocks.iter().filter(|(_, version)| is_now(version));
    now.map(|(address, version)| (*address, version.clone())).collect()
}

/// Where in the log those are that are there.
fn positions<A, V: Borrow<Version>>(batch: &[(A, V)]) -> Vec<u64> {
    batch.iter().filter_map(|(_, version)| position(version.borrow())).collect()
}
