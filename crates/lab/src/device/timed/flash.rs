//! Flash behind two kinds of controller.
//!
//! A page can be programmed once until its erase block is erased. A stick's controller knows where whole erase blocks are, and so must
//! copy what else is in one when a page of it is written out of turn; an SSD's knows where each page is.

use super::{Model, Wear, transfer_ns};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// What a USB stick is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StickOptions {
    /// Bytes a second that it programs.
    pub write_bytes_per_s: u64,
    /// Bytes a second that it reads.
    pub read_bytes_per_s: u64,
    /// For each request.
    pub request_ns: u64,
    /// Blocks of 4 KiB in an erase block.
    pub erase_blocks: u64,
    /// Erasing one.
    pub erase_ns: u64,
    /// Erase blocks that are filled at the same time.
    pub open_most: usize,
}

impl Default for StickOptions {
    /// 20 MB/s, erase blocks of 4 MiB, two of them open: about five scattered writes a second.
    fn default() -> StickOptions {
        StickOptions {
            write_bytes_per_s: 20_000_000,
            read_bytes_per_s: 30_000_000,
            request_ns: 100_000,
            erase_blocks: 1024,
            erase_ns: 2_000_000,
            open_most: 2,
        }
    }
}

/// A USB stick.
#[derive(Clone, Debug)]
pub struct Stick {
    options: StickOptions,
    /// Erase blocks being filled and their next block, the one used longest ago first.
    open: VecDeque<(u64, u64)>,
    /// Blocks that have contents, which are copied when their erase block is written anew.
    stored: BTreeSet<u64>,
    erased: BTreeMap<u64, u64>,
    programmed: u64,
}

impl Stick {
    /// An empty one.
    pub fn new(options: StickOptions) -> Stick {
        Stick { options, open: VecDeque::new(), stored: BTreeSet::new(), erased: BTreeMap::new(), programmed: 0 }
    }

    /// Copies what is stored in these blocks to the erase block that is being filled in their place.
    fn copy(&mut self, blocks: Range<u64>) -> u64 {
        let count = self.stored.range(blocks).count() as u64;
        self.programmed += count;
        transfer_ns(count, self.options.write_bytes_per_s) + transfer_ns(count, self.options.read_bytes_per_s)
    }

    fn end_of(&self, erase_block: u64) -> u64 {
        (erase_block + 1) * self.options.erase_blocks
    }

    /// Fills the rest of an open erase block with what its predecessor has there.
    fn close(&mut self, at: usize) -> u64 {
        let Some((erase_block, next)) = self.open.remove(at) else { return 0 };
        self.copy(next..self.end_of(erase_block))
    }

    /// Takes an erased block for a write that begins at `block`.
    fn open(&mut self, block: u64) -> u64 {
        let mut cost_ns = 0;
        while self.open.len() >= self.options.open_most {
            cost_ns += self.close(0);
        }
        let erase_block = block / self.options.erase_blocks;
        *self.erased.entry(erase_block).or_default() += 1;
        self.open.push_back((erase_block, block));
        cost_ns + self.options.erase_ns + self.copy(erase_block * self.options.erase_blocks..block)
    }

    /// Programs blocks of one erase block.
    fn program(&mut self, blocks: Range<u64>) -> u64 {
        let erase_block = blocks.start / self.options.erase_blocks;
        let mut cost_ns = 0;
        match self.open.iter().position(|(open, _)| *open == erase_block) {
            Some(at) if self.open[at].1 <= blocks.start => {
                cost_ns += self.copy(self.open[at].1..blocks.start);
                let entry = self.open.remove(at);
                self.open.extend(entry);
            }
            Some(at) => {
                // Out of turn.
                cost_ns += self.close(at);
                cost_ns += self.open(blocks.start);
            }
            None => cost_ns += self.open(blocks.start),
        }
        let count = blocks.end - blocks.start;
        self.programmed += count;
        self.stored.extend(blocks.clone());
        if blocks.end == self.end_of(erase_block) {
            self.open.pop_back();
        } else if let Some((_, next)) = self.open.back_mut() {
            *next = blocks.end;
        }
        cost_ns + transfer_ns(count, self.options.write_bytes_per_s)
    }
}

impl Model for Stick {
    fn read(&mut self, blocks: Range<u64>, _now_ns: u64) -> u64 {
        self.options.request_ns + transfer_ns(blocks.end - blocks.start, self.options.read_bytes_per_s)
    }

    fn write(&mut self, blocks: Range<u64>, _now_ns: u64) -> u64 {
        let (mut cost_ns, mut at) = (self.options.request_ns, blocks.start);
        while at < blocks.end {
            let end = self.end_of(at / self.options.erase_blocks).min(blocks.end);
            cost_ns += self.program(at..end);
            at = end;
        }
        cost_ns
    }

    fn flush(&mut self) -> u64 {
        0
    }

    fn discard(&mut self, blocks: Range<u64>) {
        let behind = self.stored.split_off(&blocks.start);
        self.stored.extend(behind.range(blocks.end..));
    }

    fn wear(&self) -> Wear {
        Wear {
            programmed: self.programmed,
            erased: self.erased.values().sum(),
            erased_most: self.erased.values().copied().max().unwrap_or(0),
        }
    }
}

/// What an SSD is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SsdOptions {
    /// Bytes a second that it programs.
    pub write_bytes_per_s: u64,
    /// Bytes a second that it reads.
    pub read_bytes_per_s: u64,
    /// For each request.
    pub request_ns: u64,
    /// Blocks of 4 KiB in an erase block; they are worn evenly.
    pub erase_blocks: u64,
}

impl Default for SsdOptions {
    fn default() -> SsdOptions {
        SsdOptions {
            write_bytes_per_s: 200_000_000,
            read_bytes_per_s: 250_000_000,
            request_ns: 60_000,
            erase_blocks: 1024,
        }
    }
}

/// An SSD.
#[derive(Clone, Debug)]
pub struct Ssd {
    options: SsdOptions,
    programmed: u64,
}

impl Ssd {
    /// A new one.
    pub fn new(options: SsdOptions) -> Ssd {
        Ssd { options, programmed: 0 }
    }
}

impl Model for Ssd {
    fn read(&mut self, blocks: Range<u64>, _now_ns: u64) -> u64 {
        self.options.request_ns + transfer_ns(blocks.end - blocks.start, self.options.read_bytes_per_s)
    }

    fn write(&mut self, blocks: Range<u64>, _now_ns: u64) -> u64 {
        let count = blocks.end - blocks.start;
        self.programmed += count;
        self.options.request_ns + transfer_ns(count, self.options.write_bytes_per_s)
    }

    fn flush(&mut self) -> u64 {
        0
    }

    fn discard(&mut self, _blocks: Range<u64>) {}

    fn wear(&self) -> Wear {
        let erased = self.programmed.div_ceil(self.options.erase_blocks);
        Wear { programmed: self.programmed, erased, erased_most: u64::from(erased > 0) }
    }
}
