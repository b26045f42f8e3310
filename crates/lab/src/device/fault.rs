//! A device that fails as planned.

use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use holdfast_block::{BLOCK_SIZE, Device, Error, Latch, Operation, check_request};
use parking_lot::Mutex;

use super::plan::Event;
use super::{Fault, FaultPlan, Rule, SECTOR_BYTES, SECTORS_PER_BLOCK, gather, length_mut};

/// A fault that has struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// What it did.
    pub fault: Fault,
    /// The blocks struck; empty for a flush.
    pub blocks: Range<u64>,
}

/// Wraps a device and does to it what a [`FaultPlan`] says. Like every device it latches after a failed write or flush.
pub struct FaultDevice {
    name: Arc<str>,
    inner: Arc<dyn Device>,
    latch: Latch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rules: Vec<Armed>,
    fired: Vec<Firing>,
    unplugged: bool,
}

/// A rule and what it has seen.
struct Armed {
    rule: Rule,
    seen: u64,
    healed: BTreeSet<u64>,
}

impl FaultDevice {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Self {
        let device =
            FaultDevice { name: inner.name().into(), inner, latch: Latch::new(), state: Mutex::new(State::default()) };
        plan.rules.into_iter().for_each(|rule| device.add(rule));
        device
    }

    /// Adds a rule, which sees requests from now on.
    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(Armed { rule, seen: 0, healed: BTreeSet::new() });
    }

    /// Drops all rules; the log of what has fired stays, and so do the latch and the damage.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
    }

    /// Every fault that has struck, in order.
    pub fn fired(&self) -> Vec<Firing> {
        self.state.lock().fired.clone()
    }

    /// Flips a bit on the medium: bit rot. `bit` counts from the block's first byte, modulo its 32,768 bits.
    ///
    /// # Errors
    /// Those of the device below.
    pub fn flip_on_medium(&self, at: u64, bit: u64) -> Result<(), Error> {
        let mut block = vec![0; BLOCK_SIZE];
        self.inner.read(at, &mut [IoSliceMut::new(&mut block)])?;
        flip(&mut block, bit);
        self.inner.write(at, &[IoSlice::new(&block)])
    }

    fn error(&self, operation: Operation, first: Option<u64>, length_bytes: u64, errno: i32) -> Error {
        let source = Arc::new(io::Error::from_raw_os_error(errno));
        Error::Io { device: Arc::clone(&self.name), operation, first, length_bytes, source }
    }

    /// Which faults strike a request for these blocks, with the blocks they strike.
    fn strike(&self, event: Event, blocks: &Range<u64>) -> Vec<Firing> {
        let mut state = self.state.lock();
        let mut struck = Vec::new();
        for armed in &mut state.rules {
            if let Some(blocks) = armed.strike(event, blocks) {
                struck.push(Firing { fault: armed.rule.fault.clone(), blocks });
            }
        }
        if struck.iter().any(|firing| firing.fault == Fault::Unplugged) {
            state.unplugged = true;
        }
        state.fired.extend(struck.iter().cloned());
        struck
    }

    fn check_plug(&self, operation: Operation, first: Option<u64>, length_bytes: u64) -> Result<(), Error> {
        if self.state.lock().unplugged {
            return Err(self.error(operation, first, length_bytes, ENODEV));
        }
        Ok(())
    }

    fn heal(&self, blocks: Range<u64>) {
        for armed in self.state.lock().rules.iter_mut().filter(|armed| armed.rule.healed_by_write) {
            armed.healed.extend(overlap(&armed.rule.blocks, &blocks));
        }
    }

    fn write_struck(&self, blocks: Range<u64>, mut data: Vec<u8>, struck: &[Firing]) -> Result<(), Error> {
        let sectors = data.len() / SECTOR_BYTES;
        let mut keep = vec![true; sectors];
        let mut astray = Vec::new();
        let mut outcome = Ok(());
        let torn = |part: &Range<u64>| {
            struck.iter().any(|other| matches!(other.fault, Fault::WriteTorn(_)) && other.blocks == *part)
        };
        for Firing { fault, blocks: part } in struck {
            let bytes =
                (part.start - blocks.start) as usize * BLOCK_SIZE..(part.end - blocks.start) as usize * BLOCK_SIZE;
            let part_sectors = bytes.start / SECTOR_BYTES..bytes.end / SECTOR_BYTES;
            match fault {
                Fault::WriteFlip { bit } => flip(&mut data[bytes], *bit),
                Fault::WriteLost => keep[part_sectors].fill(false),
                Fault::WriteTorn(tear) => {
                    let count = part_sectors.len();
                    for (number, sector) in part_sectors.enumerate() {
                        keep[sector] &= tear.keeps(number, count);
                    }
                }
                Fault::WriteMisdirected { to } => {
                    astray.push((*to, bytes));
                    keep[part_sectors].fill(false);
                }
                Fault::WriteError | Fault::Unplugged => {
                    if !torn(part) {
                        keep[part_sectors].fill(false);
                    }
                    let errno = if *fault == Fault::Unplugged { ENODEV } else { EIO };
                    outcome = Err(self.error(Operation::Write, Some(blocks.start), data.len() as u64, errno));
                }
                Fault::ReadFlip { .. } | Fault::ReadError | Fault::FlushError | Fault::FlushLost => {
                    unreachable!("strikes no writes")
                }
            }
        }
        self.write_kept(blocks.start, &data, &keep)?;
        for (to, bytes) in astray {
            let room = self.inner.blocks().saturating_sub(to).saturating_mul(BLOCK_SIZE as u64);
            let length = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            if length > 0 {
                self.inner.write(to, &[IoSlice::new(&data[bytes.start..bytes.start + length])])?;
            }
        }
        outcome
    }

    /// Writes the sectors kept: whole blocks in runs, torn blocks over their old contents.
    fn write_kept(&self, first: u64, data: &[u8], keep: &[bool]) -> Result<(), Error> {
        let whole = |block: usize| keep[block * SECTORS_PER_BLOCK..][..SECTORS_PER_BLOCK].iter().all(|kept| *kept);
        let blocks = data.len() / BLOCK_SIZE;
        let mut at = 0;
        while at < blocks {
            let run = (at..blocks).take_while(|block| whole(*block)).count();
            if run > 0 {
                let bytes = &data[at * BLOCK_SIZE..(at + run) * BLOCK_SIZE];
                self.inner.write(first + at as u64, &[IoSlice::new(bytes)])?;
                at += run;
                continue;
            }
            let kept = &keep[at * SECTORS_PER_BLOCK..][..SECTORS_PER_BLOCK];
            if kept.contains(&true) {
                let mut merged = vec![0; BLOCK_SIZE];
                self.inner.read(first + at as u64, &mut [IoSliceMut::new(&mut merged)])?;
                for sector in (0..SECTORS_PER_BLOCK).filter(|sector| kept[*sector]) {
                    let from = at * BLOCK_SIZE + sector * SECTOR_BYTES;
                    merged[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&data[from..from + SECTOR_BYTES]);
                }
                self.inner.write(first + at as u64, &[IoSlice::new(&merged)])?;
            }
            at += 1;
        }
        Ok(())
    }
}

/// Linux's numbers, so that an injected error looks like a real one.
const EIO: i32 = 5;
const ENODEV: i32 = 19;

impl Armed {
    fn strike(&mut self, event: Event, blocks: &Range<u64>) -> Option<Range<u64>> {
        if self.rule.fault.event() != event {
            return None;
        }
        let mut part = overlap(&self.rule.blocks, blocks);
        if event != Event::Flush {
            // Of what is not healed, the first run.
            part.start = part.clone().find(|block| !self.healed.contains(block))?;
            part.end = self.healed.range(part.clone()).next().copied().unwrap_or(part.end);
        }
        self.seen += 1;
        let due = self.seen >= self.rule.nth && self.seen - self.rule.nth < self.rule.times;
        due.then_some(part)
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bit = bit % (bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
}

impl Device for FaultDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let length_bytes = length_mut(bufs) as u64;
        let count = check_request(&self.name, Operation::Read, self.blocks(), first, length_bytes)?;
        self.check_plug(Operation::Read, Some(first), length_bytes)?;
        let struck = self.strike(Event::Read, &(first..first + count));
        if struck.iter().any(|firing| firing.fault == Fault::ReadError) {
            return Err(self.error(Operation::Read, Some(first), length_bytes, EIO));
        }
        self.inner.read(first, bufs)?;
        for Firing { fault, blocks } in struck {
            if let Fault::ReadFlip { bit } = fault {
                let bits = (blocks.end - blocks.start) * BLOCK_SIZE as u64 * 8;
                let byte = (blocks.start - first) * BLOCK_SIZE as u64 + bit % bits / 8;
                flip_scattered(bufs, byte as usize, bit % 8);
            }
        }
        Ok(())
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Write, self.blocks(), first, length_bytes)?;
        self.latch.check(&self.name, Operation::Write, Some(first), length_bytes)?;
        let blocks = first..first + count;
        let struck = self.strike(Event::Write, &blocks);
        let outcome = if struck.is_empty() {
            self.inner.write(first, bufs)
        } else {
            self.write_struck(blocks.clone(), gather(bufs), &struck)
        };
        if outcome.is_ok() {
            self.heal(blocks);
        }
        self.latch.watch(outcome)
    }

    fn flush(&self) -> Result<(), Error> {
        self.latch.check(&self.name, Operation::Flush, None, 0)?;
        let struck = self.strike(Event::Flush, &(0..0));
        if struck.iter().any(|firing| firing.fault == Fault::FlushError) {
            return self.latch.watch(Err(self.error(Operation::Flush, None, 0, EIO)));
        }
        if !struck.is_empty() {
            return Ok(());
        }
        self.latch.watch(self.inner.flush())
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Discard, self.blocks(), first, length_bytes)?;
        self.latch.check(&self.name, Operation::Discard, Some(first), length_bytes)?;
        self.inner.discard(first, count)
    }

    fn grow(&self, blocks: u64) -> Result<u64, Error> {
        self.latch.check(&self.name, Operation::Grow, None, 0)?;
        self.inner.grow(blocks)
    }
}

fn flip_scattered(bufs: &mut [IoSliceMut<'_>], mut byte: usize, bit: u64) {
    for buf in bufs {
        if byte < buf.len() {
            buf[byte] ^= 1 << bit;
            return;
        }
        byte -= buf.len();
    }
}
