//! Blocks that become zeros: an entry of the log says so without data, and main makes them so where it can.
//!
//! They go the way of writes, in order with them, so that every device comes to the same state. A discard is the same, as main's old contents
//! would not be those of a main made anew; but where main has to write zeros, it is not taken, and the old contents stay everywhere.

use super::chunk::{Chunk, Zeros};
use super::device::Flashlog;
use super::sparse::{ZEROS_LEAST, make_zeros};
use super::stages::{Place, Version};
use crate::Error;
use crate::nbd::{Extent, HOLE, ZERO};

/// So many blocks are looked at at most before a client is answered.
const LOOK_BLOCKS_MOST: u64 = 1 << 16;

impl Flashlog {
    /// As a write of zeros; with `keep`, main does not give up their room.
    pub(super) fn write_zeros(&self, first: u64, count: u64, keep: bool) -> Result<(), Error> {
        let most = Zeros::most(self.gather_blocks);
        let mut done = 0;
        while done < count {
            let zeros = Zeros { count: (count - done).min(most), keep };
            self.take(first + done, Chunk::zeros(zeros))?;
            done += zeros.count;
        }
        Ok(())
    }

    /// Makes the longer runs of zeros on main, and gives the versions that are left to be written.
    pub(super) fn make_zeros_on_main<'a>(
        &self,
        all: Vec<(&'a u64, &'a Version)>,
    ) -> Result<Vec<(&'a u64, &'a Version)>, Error> {
        if !all.iter().any(|(_, version)| matches!(version.place, Place::Zeros(_))) {
            return Ok(all);
        }
        let continues = |a: &(&u64, &Version), b: &(&u64, &Version)| match (&a.1.place, &b.1.place) {
            (Place::Zeros(a_keeps), Place::Zeros(b_keeps)) => a_keeps == b_keeps && *a.0 + 1 == *b.0,
            _ => false,
        };
        let mut rest = Vec::new();
        for run in all.chunk_by(continues) {
            match run[0].1.place {
                Place::Zeros(keep) if run.len() >= ZEROS_LEAST => {
                    make_zeros(&*self.main, *run[0].0, run.len() as u64, keep)?;
                }
                _ => rest.extend_from_slice(run),
            }
        }
        Ok(rest)
    }

    /// What is known of a run of blocks without reading them: zeros that main does not have yet, and else what main says.
    pub(super) fn allocated(&self, first: u64, most: u64) -> Extent {
        let most = most.clamp(1, LOOK_BLOCKS_MOST);
        let flags_of = |version: &Version| match version.place {
            Place::Zeros(true) => ZERO,
            Place::Zeros(false) => HOLE | ZERO,
            _ => 0,
        };
        let on_main = {
            let stages = self.stages.lock();
            if let Some(flags) = stages.find(first).map(flags_of) {
                let is_same = |at: &u64| stages.find(*at).map(flags_of) == Some(flags);
                return Extent { blocks: (first..first + most).take_while(is_same).count() as u64, flags };
            }
            let end = stages.known_bad.range(first..).next().map_or(first + most, |(at, _)| *at);
            if end == first {
                return Extent { blocks: 1, flags: 0 };
            }
            stages.next_address(first).unwrap_or(end).min(end).min(first + most) - first
        };
        let Extent { blocks, flags } = self.main.allocation(first, on_main);
        Extent { blocks: blocks.clamp(1, on_main), flags }
    }
}
