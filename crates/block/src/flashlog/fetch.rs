//! What main gets from the log is read while main is written: the next piece by a thread of the caller's.
//!
//! Whoever brings it to main asks for the next piece before it writes one. When it needs that, it takes it, or reads it itself if nobody has begun
//! to: so it goes on without such a thread. It verifies what the thread has read as what it has read itself, and an error is its own, too.

use super::device::{Failure, Flashlog, Mode, Side};
use super::ring::Area;
use super::stages::STEPS;
use crate::{AlignedBuf, BLOCK_SIZE};
use parking_lot::Mutex;

/// A step is about so many pieces at least, so that little of it is read before main has anything to do.
const PIECES_OF_A_STEP: u64 = 8;

/// What whoever brings blocks to main and threads in [`Flashlog::serve_reads`] share: one piece.
#[derive(Default)]
pub(super) struct Fetching(Mutex<State>);

#[derive(Default)]
struct State {
    /// Threads that read.
    readers: usize,
    /// How many pieces were asked for: what was read of an older one is nobody's.
    asked: u64,
    piece: Piece,
}

#[derive(Default)]
enum Piece {
    #[default]
    None,
    /// These positions of the data area.
    Asked(Vec<u64>),
    Reading,
    Read(Result<AlignedBuf, Failure>),
}

/// A piece that was asked for, until it is taken or nobody needs it any more.
pub(super) struct Asked<'a> {
    flashlog: &'a Flashlog,
    number: u64,
}

impl Asked<'_> {
    /// What was read, if anybody has begun to read it.
    pub(super) fn take(self) -> Option<Result<AlignedBuf, Failure>> {
        let Flashlog { fetching, options, .. } = self.flashlog;
        loop {
            let ticket = options.timer.ticket();
            {
                let mut state = fetching.0.lock();
                if state.asked != self.number {
                    return None;
                }
                match std::mem::take(&mut state.piece) {
                    Piece::Read(read) => return Some(read),
                    Piece::None | Piece::Asked(_) => return None,
                    Piece::Reading => state.piece = Piece::Reading,
                }
            }
            options.timer.wait(ticket, None);
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.flashlog.fetching.0.lock();
        if state.asked == self.number {
            state.asked += 1;
            state.piece = Piece::None;
        }
    }
}

/// A piece that is being read. What a panic leaves unread is read by whoever needs it.
struct Claimed<'a> {
    flashlog: &'a Flashlog,
    number: u64,
    piece: Piece,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.flashlog.fetching.0.lock();
            if state.asked == self.number {
                state.piece = std::mem::take(&mut self.piece);
            }
        }
        self.flashlog.options.timer.wake();
    }
}

/// Counts a thread that reads.
struct Reading<'a>(&'a Fetching);

impl Reading<'_> {
    fn begin(fetching: &Fetching) -> Reading<'_> {
        fetching.0.lock().readers += 1;
        Reading(fetching)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.0.lock().readers -= 1;
    }
}

impl Fetching {
    /// Whether there is a thread that reads.
    pub(super) fn is_served(&self) -> bool {
        self.0.lock().readers > 0
    }

    /// Whether nothing is asked for, nor read.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.0.lock().piece, Piece::None)
    }
}

impl Flashlog {
    /// Asynchronous mode: reads from the log what main gets next, 4 MiB at most, while main is written, if somebody waits for it or the log is nearly
    /// full, until [`Flashlog::end_main`] is called or a device fails. For a thread of its own: log and main then work at once also when more is
    /// written than the log has room for. A set without such a thread takes turns. In synchronous mode main gets what memory has, and this
    /// returns at once.
    pub fn serve_reads(&self) {
        if self.options.mode == Mode::Synchronous {
            return;
        }
        let _reading = Reading::begin(&self.fetching);
        loop {
            let ticket = self.options.timer.ticket();
            if self.stages.lock().company.is_ending || self.latch.cause().is_some() {
                return;
            }
            let Some((mut claimed, positions)) = self.claim() else {
                self.options.timer.wait(ticket, None);
                continue;
            };
            claimed.piece = Piece::Read(self.read_positions(&positions));
        }
    }

    fn claim(&self) -> Option<(Claimed<'_>, Vec<u64>)> {
        let mut state = self.fetching.0.lock();
        let Piece::Asked(positions) = &mut state.piece else { return None };
        let positions = std::mem::take(positions);
        state.piece = Piece::Reading;
        Some((Claimed { flashlog: self, number: state.asked, piece: Piece::None }, positions))
    }

    /// Asks for what is at these positions of the data area, if there is anybody who reads.
    pub(super) fn ask(&self, positions: Vec<u64>) -> Option<Asked<'_>> {
        let number = {
            let mut state = self.fetching.0.lock();
            if state.readers == 0 {
                return None;
            }
            state.asked += 1;
            state.piece = Piece::Asked(positions);
            state.asked
        };
        self.options.timer.wake();
        Some(Asked { flashlog: self, number })
    }

    /// Blocks of a piece that main gets from the log.
    pub(super) fn piece_blocks(&self, most: usize) -> usize {
        if !self.fetching.is_served() {
            return most;
        }
        let of_step = self.rings.areas.data_blocks / (STEPS * PIECES_OF_A_STEP);
        usize::try_from(of_step.next_power_of_two()).map_or(most, |blocks| blocks.min(most))
    }

    /// Reads what is at these positions of the data area, one after the other, without verifying it. What cannot be read does not have its checksum.
    pub(super) fn read_positions(&self, positions: &[u64]) -> Result<AlignedBuf, Failure> {
        let mut bytes = AlignedBuf::zeroed(positions.len() * BLOCK_SIZE);
        self.rings.read_each_that_can_be(Area::Data, positions, &mut bytes).map_err(Failure::of(Side::Log))?;
        Ok(bytes)
    }
}
