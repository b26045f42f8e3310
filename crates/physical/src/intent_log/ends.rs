//! Where the log ends: what each append and each seal goes by.
//!
//! It is in no block, and what is written to a wrong place cannot be taken back. So it is kept twice, once with all bits inverted: that sees
//! each write to one of the two, also those that would keep a checksum, for a tenth of what two sums cost. It is compared before each use, and
//! changes as a whole only. If the two differ, the device decides which of them is right ([`Module::ends`]).

use super::IntentLog;
use crate::format::log::LogHeader;
use crate::log_recovery::{HalfBytes, LogOf, Survey};
use crate::meta_block::Scribble;
use crate::module::{Module, log_area};
use crate::scribble::Cells;
use holdfast_object::{Epoch, Error, Place, Result};
use std::ops::Range;

/// Where an epoch's part of the log ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Half {
    /// 0: unused.
    pub(super) epoch: Epoch,
    /// Blocks in use.
    pub(super) used: u64,
    /// The last batch; `None` before the first.
    pub(super) last: Option<LogHeader>,
}

impl Half {
    /// That of an epoch without batches.
    pub(super) fn of(epoch: Epoch) -> Half {
        Half { epoch, ..Half::default() }
    }

    /// The end behind this batch, in this room.
    fn behind(header: LogHeader, room: &Range<u64>) -> Half {
        let used = (header.start + header.blocks()).wrapping_sub(room.start);
        Half { epoch: header.epoch, used, last: Some(header) }
    }

    /// Batches in it.
    pub(super) fn batches(&self) -> u32 {
        self.last.map_or(0, |last| last.sequence + 1)
    }

    /// The same, without a seal at their end: nobody misses that one.
    pub(super) fn batches_to_tell(&self) -> u32 {
        self.batches() - u32::from(self.is_sealed())
    }

    /// The last batch is a seal.
    pub(super) fn is_sealed(&self) -> bool {
        self.last.is_some_and(|last| last.is_empty())
    }

    /// Whether what was counted is what the last batch says, in this room; both, if not.
    fn audit(&self, room: &Range<u64>) -> std::result::Result<(), String> {
        let told = self.last.map_or(Half::of(self.epoch), |last| Half::behind(last, room));
        if (self.used, self.epoch) == (told.used, told.epoch) && self.used <= room.end - room.start {
            return Ok(());
        }
        let (Half { epoch: counted, used, .. }, Half { epoch, used: end, .. }) = (self, told);
        Err(format!(
            "blocks counted of epoch {counted}, is {used}; where its last batch ends, of epoch {epoch}, is {end}"
        ))
    }

    /// A batch has been written at its end.
    pub(super) fn extend(&mut self, header: LogHeader) {
        *self = Half { epoch: header.epoch, used: self.used + header.blocks(), last: Some(header) };
    }

    /// All that it is.
    fn words(&self) -> [u64; HALF_WORDS] {
        let Half { epoch, used, last } = *self;
        let mut words = [0; HALF_WORDS];
        let (own, header) = words.split_at_mut(3);
        own.copy_from_slice(&[epoch, used, u64::from(last.is_some())]);
        if let Some(last) = last {
            header.copy_from_slice(&last.words());
        }
        words
    }
}

const HALF_WORDS: usize = 3 + LogHeader::WORDS;
/// Of [`Ends`].
const WORDS: usize = 3 + 2 * HALF_WORDS;

/// Both ends, and between which blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    area: Range<u64>,
    pub(super) halves: [Half; 2],
    /// Where the log ends, or what is there, is not known: nothing is appended before this epoch is a recovery point. 0: it is known.
    given_up: Epoch,
}

impl Ends {
    /// Of a log without batches.
    pub(crate) fn new(area: Range<u64>) -> Ends {
        Ends { area, halves: [Half::default(); 2], given_up: 0 }
    }

    /// The blocks of the half that an epoch uses.
    pub(crate) fn half(&self, index: usize) -> Range<u64> {
        let mid = self.area.start + (self.area.end - self.area.start) / 2;
        if index == 0 { self.area.start..mid } else { mid..self.area.end }
    }

    /// Those of it that have batches.
    pub(crate) fn used(&self, index: usize) -> Range<u64> {
        let Range { start, end } = self.half(index);
        start..end.min(start.saturating_add(self.halves[index].used))
    }

    /// The place of a block in the area.
    pub(super) fn place(&self, block: u64) -> usize {
        (block - self.area.start) as usize
    }

    /// Nothing is appended before this epoch is a recovery point.
    pub(super) fn give_up(&mut self, epoch: Epoch) {
        self.given_up = self.given_up.max(epoch);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up != 0
    }

    pub(super) fn is_used(&self) -> bool {
        self.halves.iter().any(|half| half.epoch != 0)
    }

    /// See [`Module::forget_log`](crate::module::Module).
    pub(super) fn forget(&mut self, epoch: Epoch) {
        for half in self.halves.iter_mut().filter(|half| half.epoch <= epoch) {
            *half = Half::default();
        }
        if self.given_up <= epoch {
            self.given_up = 0;
        }
    }

    /// Whether what is known of both fits together.
    pub(super) fn audit(&self) -> std::result::Result<(), String> {
        (0..2).try_for_each(|index| self.halves[index].audit(&self.half(index)))
    }

    fn words(&self) -> [u64; WORDS] {
        let Ends { area, halves, given_up } = self;
        let mut words = [0; WORDS];
        let (own, of_halves) = words.split_at_mut(3);
        own.copy_from_slice(&[area.start, area.end, *given_up]);
        for (words, half) in of_halves.chunks_mut(HALF_WORDS).zip(halves) {
            words.copy_from_slice(&half.words());
        }
        words
    }
}

/// [`Ends`], and once more.
pub(super) struct SealedEnds {
    pub(super) ends: Ends,
    inverted: [u64; WORDS],
}

impl SealedEnds {
    pub(super) fn new(ends: Ends) -> SealedEnds {
        SealedEnds { inverted: ends.words().map(|word| !word), ends }
    }

    /// # Errors
    /// Somebody has written to one of the two who must not.
    fn verify(&self) -> std::result::Result<(), Scribble> {
        let words = self.ends.words();
        words.iter().zip(&self.inverted).try_for_each(|(word, inverted)| {
            Scribble::unless_equal("where the intent log ends (a number of it, kept twice)", !inverted, *word)
        })
    }

    /// Whether these are they by one of the two, without what is in the recovery point of `last`.
    fn may_be(&self, other: &Ends, last: Epoch) -> bool {
        [self.ends.words(), self.inverted.map(|word| !word)].into_iter().any(|mut words| {
            for half in words[3..].chunks_mut(HALF_WORDS).filter(|half| half[0] <= last) {
                half.fill(0);
            }
            words == other.words()
        })
    }
}

impl Module {
    /// Where the log ends. If that has gone bad, by what is on the device: one of the two that are kept must be what the batches there say.
    /// If not so, nothing is appended until all that they may have is in a recovery point.
    ///
    /// # Errors
    /// The label or the last superblock has gone bad as well, and cannot be read again.
    pub(crate) fn ends(&self, log: &mut IntentLog) -> Result<Ends> {
        if !self.disk().metadata.rolls() {
            return Ok(log.ends.ends.clone());
        }
        if let Some(scribble) =
            log.recovered.as_mut().and_then(|found| found.newest.heal("newest epoch of a log found"))
        {
            self.disk().note_scribble(scribble, None, "put right from its copy");
        }
        let Err(scribble) = log.ends.verify() else { return Ok(log.ends.ends.clone()) };
        let error = scribble.at(Place { address: None, ..self.disk().place(0) });
        self.disk().ambush.found(&error);
        self.disk().counters.scribbled();
        let empty = Ends::new(log_area(&self.label()?));
        let last = self.superblock()?.epoch;
        // As long as the log is unread, nothing has been appended.
        let read = if log.is_unread() { Ok(empty.clone()) } else { self.read_ends(&empty) };
        let ends = match read {
            Ok(ends) if log.is_unread() || log.ends.may_be(&ends, last) => {
                tracing::error!(%error, "where the intent log ends is read again from the device");
                ends
            }
            outcome => {
                let why = outcome.err().map_or("the batches there do not say so".to_string(), |why| why.to_string());
                tracing::error!(%error, why, "nothing is appended to the intent log until the next recovery points");
                // One epoch may be being written, of which the device knows, and another one be built.
                Ends { given_up: last.max(self.disk().newest()) + 2, ..empty }
            }
        };
        log.set_ends(ends.clone());
        Ok(ends)
    }

    /// The same by the batches on the device alone.
    fn read_ends(&self, empty: &Ends) -> Result<Ends> {
        let (last, store) = (self.superblock()?, self.label()?.store);
        let halves = [HalfBytes::read(self.disk(), empty.half(0))?, HalfBytes::read(self.disk(), empty.half(1))?];
        let survey = Survey::of(&halves, &LogOf { store: &store, last: &last })?;
        let is_whole = survey.torn.is_empty() && halves.iter().all(HalfBytes::is_readable);
        if !is_whole {
            let place = self.disk().place(empty.area.start);
            return Err(Error::corrupt(place, "intent log", "whole batches", "others, or blocks that cannot be read"));
        }
        let mut ends = empty.clone();
        for (epoch, _, batches) in &survey.parts {
            if let Some(found) = batches.last() {
                let index = (*epoch % 2) as usize;
                ends.halves[index] = Half::behind(found.header, &empty.half(index));
            }
        }
        Ok(ends)
    }
}

/// What nobody may do: see [`crate::scribble`].
impl SealedEnds {
    pub(super) fn cells<'a>(&'a mut self, half: usize, cells: &mut Cells<'a>) {
        let Ends { area, halves, given_up } = &mut self.ends;
        let half_cells = &mut halves[half];
        cells.own("epoch", &mut half_cells.epoch);
        cells.own("used", &mut half_cells.used);
        if let Some(last) = &mut half_cells.last {
            let LogHeader { store, start, base, epoch, sequence, domain, head_blocks, page_blocks, .. } = last;
            cells.own("last.store", store);
            cells.own("last.start", start);
            cells.own("last.base", base);
            cells.own("last.epoch", epoch);
            cells.own("last.sequence", sequence);
            cells.own("last.domain", domain);
            cells.own("last.head_blocks", head_blocks);
            cells.own("last.page_blocks", page_blocks);
            let LogHeader { entries_bytes, previous_epoch, previous_batches, sums_bytes, entries_crc, chain, .. } =
                last;
            cells.own("last.entries_bytes", entries_bytes);
            cells.own("last.previous_epoch", previous_epoch);
            cells.own("last.previous_batches", previous_batches);
            cells.own("last.sums_bytes", sums_bytes);
            cells.own("last.entries_crc", entries_crc);
            cells.own("last.chain", chain);
        }
        if half == 0 {
            cells.own("area.start", &mut area.start);
            cells.own("area.end", &mut area.end);
            cells.own("given_up", given_up);
        }
    }
}

#[cfg(test)]
mod tests;
