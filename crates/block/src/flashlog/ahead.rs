//! Reading what a backup copies from the set, in advance by a thread of the caller's: then the set is read while the backup is written.
//!
//! The pieces come in order. Whoever copies takes the next one that was read; if there is none and nobody is at it, it reads it itself, so
//! that it goes on without such a thread, or before that has begun.

use super::Error;
use super::device::Flashlog;
use super::format::Regions;
use super::sums::sums_of;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Blocks that are read at once: 1 MiB.
const PIECE_BLOCKS: u64 = 256;
/// Pieces that are read in advance: 8 MiB, and the one that is being read.
const PIECES_MOST: usize = 8;

/// What a backup and a thread in [`Flashlog::read_ahead`] share: for one [`Flashlog::backup_ahead`].
#[derive(Default)]
pub struct ReadAhead(Mutex<State>);

#[derive(Default)]
struct State {
    copy: Option<Copy>,
    /// How many copies have begun: what was read for one that has ended is nothing to the next.
    copies: u64,
    /// Buffers for pieces to come.
    free: Vec<AlignedBuf>,
    has_ended: bool,
}

/// A copy that is under way.
struct Copy {
    regions: Regions,
    /// Behind what was read, or is being read.
    at: u64,
    /// Read, and not taken.
    read: VecDeque<Result<Marked, Error>>,
    is_reading: bool,
}

impl Copy {
    /// The next blocks, for whoever reads them.
    fn claim(&mut self) -> Option<Vec<(u64, u64)>> {
        let runs = self.regions.next_runs(self.at, PIECE_BLOCKS);
        let (last, count) = runs.last()?;
        self.at = last + count;
        Some(runs)
    }

    /// As long as there is room. Behind what could not be read nothing is needed.
    fn claim_ahead(&mut self) -> Option<Vec<(u64, u64)>> {
        let has_room = self.read.len() < PIECES_MOST && self.read.back().is_none_or(Result::is_ok);
        let runs = if has_room && !self.is_reading { self.claim() } else { None };
        self.is_reading |= runs.is_some();
        runs
    }
}

impl State {
    fn buffer(&mut self) -> AlignedBuf {
        self.free.pop().unwrap_or_else(|| AlignedBuf::zeroed(PIECE_BLOCKS as usize * BLOCK_SIZE))
    }
}

impl ReadAhead {
    /// Ends [`Flashlog::read_ahead`] when it is dropped.
    pub(super) fn ending<'a>(&'a self, flashlog: &'a Flashlog) -> Ending<'a> {
        Ending { ahead: self, flashlog }
    }
}

pub(super) struct Ending<'a> {
    ahead: &'a ReadAhead,
    flashlog: &'a Flashlog,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.ahead.0.lock().has_ended = true;
        self.flashlog.options.timer.wake();
    }
}

/// Marked blocks of the set, and what is between them, read at once.
pub(super) struct Marked {
    runs: Vec<(u64, u64)>,
    /// From the first of them on; there may be more behind them.
    bytes: AlignedBuf,
}

impl Marked {
    pub(super) fn blocks(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    pub(super) fn behind(&self) -> u64 {
        self.runs.last().map_or(0, |(first, count)| first + count)
    }

    /// Blocks in a row, with their checksums, and their bytes.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Vec<(u64, u64)>, &[u8])> {
        let begin = self.runs.first().map_or(0, |(first, _)| *first);
        self.runs.iter().map(move |(first, count)| {
            let from = (first - begin) as usize * BLOCK_SIZE;
            let bytes = &self.bytes[from..from + *count as usize * BLOCK_SIZE];
            (sums_of(*first, bytes), bytes)
        })
    }
}

/// The marked blocks of the set, one piece after the other.
pub(super) struct Reading<'a> {
    flashlog: &'a Flashlog,
    ahead: &'a ReadAhead,
}

impl Reading<'_> {
    /// The next ones.
    pub(super) fn next(&self) -> Result<Option<Marked>, Error> {
        loop {
            let ticket = self.flashlog.options.timer.ticket();
            let own = {
                let mut state = self.ahead.0.lock();
                let Some(copy) = &mut state.copy else { return Ok(None) };
                if let Some(read) = copy.read.pop_front() {
                    drop(state);
                    // There is room.
                    self.flashlog.options.timer.wake();
                    return read.map(Some);
                }
                if copy.is_reading {
                    None
                } else {
                    let Some(runs) = copy.claim() else { return Ok(None) };
                    Some((runs, state.buffer()))
                }
            };
            match own {
                Some((runs, buffer)) => return self.flashlog.read_marked(runs, buffer).map(Some),
                None => self.flashlog.options.timer.wait(ticket, None),
            }
        }
    }

    /// A piece is done with: its buffer is for another.
    pub(super) fn free(&self, marked: Marked) {
        self.ahead.0.lock().free.push(marked.bytes);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.ahead.0.lock();
        (state.copy, state.free) = (None, Vec::new());
    }
}

impl Flashlog {
    /// Reads what the backup that has the same `ahead` copies from the set, some of it in advance, until that has ended. For a thread of its
    /// own.
    pub fn read_ahead(&self, ahead: &ReadAhead) {
        loop {
            let ticket = self.options.timer.ticket();
            let (mut claimed, number) = {
                let mut state = ahead.0.lock();
                if state.has_ended {
                    return;
                }
                let runs = state.copy.as_mut().and_then(Copy::claim_ahead);
                (runs.map(|runs| (runs, state.buffer())), state.copies)
            };
            if claimed.is_none() {
                self.options.timer.wait(ticket, None);
            }
            while let Some((runs, buffer)) = claimed {
                let read = self.read_or_tell(runs, buffer);
                let mut state = ahead.0.lock();
                let is_same = state.copies == number;
                let Some(copy) = state.copy.as_mut().filter(|_| is_same) else { break };
                copy.read.push_back(read);
                copy.is_reading = false;
                // At once: whoever copies does not begin to read by itself in between.
                let runs = copy.claim_ahead();
                claimed = runs.map(|runs| (runs, state.buffer()));
                drop(state);
                self.options.timer.wake();
            }
        }
    }

    /// A panic is an error, for whoever waits for these blocks; the panic hook has told where it was.
    fn read_or_tell(&self, runs: Vec<(u64, u64)>, buffer: AlignedBuf) -> Result<Marked, Error> {
        let first = runs.first().map_or(0, |(first, _)| *first);
        let blocks = runs.last().map_or(0, |(last, count)| last + count - first);
        catch_unwind(AssertUnwindSafe(|| self.read_marked(runs, buffer))).unwrap_or_else(|panic| {
            Err(Error::Panicked { device: Arc::clone(&self.name), first, blocks, what: text_of(&*panic) })
        })
    }

    /// The marked blocks from one on.
    pub(super) fn read_for_copy<'a>(&'a self, ahead: &'a ReadAhead, regions: &Regions, at: u64) -> Reading<'a> {
        let copy = Copy { regions: regions.clone(), at, read: VecDeque::new(), is_reading: false };
        let mut state = ahead.0.lock();
        state.copy = Some(copy);
        state.copies += 1;
        drop(state);
        self.options.timer.wake();
        Reading { flashlog: self, ahead }
    }

    /// What is between the blocks may be damaged, and is nobody's business here.
    fn read_marked(&self, runs: Vec<(u64, u64)>, mut bytes: AlignedBuf) -> Result<Marked, Error> {
        let begin = runs.first().map_or(0, |(first, _)| *first);
        let behind = runs.last().map_or(0, |(first, count)| first + count);
        let part = &mut bytes[..(behind - begin) as usize * BLOCK_SIZE];
        if self.read(begin, &mut [IoSliceMut::new(part)]).is_err() {
            for (first, count) in &runs {
                let from = (first - begin) as usize * BLOCK_SIZE;
                self.read(*first, &mut [IoSliceMut::new(&mut part[from..from + *count as usize * BLOCK_SIZE])])?;
            }
        }
        Ok(Marked { runs, bytes })
    }
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> Arc<str> {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("of unknown kind").into()
}
