//! Reading the intent log back after a crash.
//!
//! A batch counts if its header is of this store, of an epoch above the last recovery point, and based on that point or
//! the one before. Batches of an epoch follow each other without a gap. One that is damaged
//! - is repaired from the second copies, if these are good; one or two flipped bits of a page are put right;
//! - otherwise, if it had been acknowledged (a later one exists): pages that are gone become [`Op::Lose`]; without its
//!   entries it is an error that names it;
//! - otherwise, if all of it is there but pages with damage that no power cut does: the same, see `log_pages`;
//! - otherwise it was torn by the crash and never acknowledged: it is left out, and it is the last one.

use crate::block_pool::PooledBlock;
use crate::check::{BlockRole, BlockUse};
use crate::disk::{Block, Disk};
use crate::format::log::{HEADER_BYTES, LOG_MAGIC, LogHeader, SectorSums, decode_sums};
use crate::format::ops::decode_ops;
use crate::format::{Fault, Superblock, split_address};
use crate::intent_log::IntentLog;
use crate::log_pages::{Copy, Gone, PageBytes, find_page};
use crate::module::Module;
use holdfast_block::AlignedBuf;
use holdfast_integrity::crc64;
use holdfast_object::{
    DomainId, Epoch, Error, FrameMut, LogBatch, ObjectId, Op, PageIndex, PinnedPage, Placement, RecoveredBatch, Result,
};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What the log held when it was read.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Newest epoch of a batch found, 0 if there was none or all are in a recovery point by now.
    pub(crate) newest: Epoch,
    queue: VecDeque<Replay>,
}

/// A batch to replay.
struct Replay {
    batch: LogBatch,
    /// For each page of the batch's `Write`s, in order, where it is.
    pages: Vec<PageBytes>,
}

/// A batch found, its entries good.
struct Found {
    header: LogHeader,
    ops: Vec<Op>,
    twice: Vec<bool>,
    /// Sector sums of the pages.
    new: Vec<SectorSums>,
    /// Those of what the blocks of pages held before, if known.
    old: Option<Vec<SectorSums>>,
    /// Both heads are whole.
    has_both_heads: bool,
}

/// One half of the log area in memory.
struct HalfBytes<'a> {
    disk: &'a Disk,
    blocks: Range<u64>,
    bytes: AlignedBuf,
    unreadable: Vec<u64>,
}

impl<'a> HalfBytes<'a> {
    fn read(disk: &'a Disk, blocks: Range<u64>) -> Result<HalfBytes<'a>> {
        const STEP: usize = 256 * 4096;
        let mut bytes = AlignedBuf::zeroed((blocks.end - blocks.start) as usize * 4096);
        let mut unreadable = Vec::new();
        for (step, chunk) in bytes.chunks_mut(STEP).enumerate() {
            let first = blocks.start + (step * STEP / 4096) as u64;
            if disk.read(first, &mut [IoSliceMut::new(chunk)]).is_ok() {
                continue;
            }
            for (at, block) in chunk.chunks_mut(4096).enumerate() {
                if disk.read(first + at as u64, &mut [IoSliceMut::new(block)]).is_err() {
                    block.fill(0);
                    unreadable.push(first + at as u64);
                }
            }
        }
        Ok(HalfBytes { disk, blocks, bytes, unreadable })
    }

    /// The bytes of a block; `None` for one that could not be read.
    fn block(&self, block: u64) -> Option<&[u8; 4096]> {
        if self.unreadable.binary_search(&block).is_ok() {
            return None;
        }
        let at = block.checked_sub(self.blocks.start)? as usize;
        self.bytes.as_chunks::<4096>().0.get(at)
    }

    /// The entries and sector sums of a batch from the head at `start`, if they match.
    fn body(&self, header: &LogHeader, start: u64) -> Option<&[u8]> {
        let at = usize::try_from(start.checked_sub(self.blocks.start)?)
            .ok()?
            .checked_mul(4096)?
            .checked_add(HEADER_BYTES)?;
        let body = self.bytes.get(at..at.checked_add(usize::try_from(header.body_bytes()).ok()?)?)?;
        (crc64(body) == header.entries_crc).then_some(body)
    }

    /// All headers that count, with whether they are second copies.
    fn headers(&self, store: &[u8; 16], last: &Superblock) -> Vec<(LogHeader, bool)> {
        let blocks = self.bytes.as_chunks::<4096>().0.iter();
        blocks
            .zip(self.blocks.clone())
            .filter(|(block, _)| block.starts_with(&LOG_MAGIC))
            .filter_map(|(block, address)| LogHeader::decode(block, address).ok())
            .filter(|(header, _)| {
                header.store == *store
                    && header.epoch > last.epoch
                    && (last.previous..=last.epoch).contains(&header.base)
                    && header.start >= self.blocks.start
                    && header.start + header.blocks() <= self.blocks.end
            })
            .collect()
    }

    fn error(&self, block: u64, epoch: Epoch, sequence: u32, what: &str) -> Error {
        let mut got = format!("{what}, and it had been acknowledged");
        if !self.unreadable.is_empty() {
            got += &format!(" ({} blocks of the log could not be read)", self.unreadable.len());
        }
        Error::corrupt(self.disk.place(block), "intent log", format!("batch {sequence} of epoch {epoch}"), got)
    }

    /// The batches of the half, in order. `acknowledged` is how many another epoch's batches say there are of an epoch.
    fn batches(&self, store: &[u8; 16], last: &Superblock, acknowledged: impl Fn(Epoch) -> u32) -> Result<Vec<Found>> {
        let headers = self.headers(store, last);
        let Some(epoch) = headers.iter().map(|(header, _)| header.epoch).max() else { return Ok(Vec::new()) };
        if let Some((other, _)) = headers.iter().find(|(header, _)| header.epoch != epoch) {
            let got = format!("batches of the epochs {} and {epoch} in one half", other.epoch);
            return Err(Error::corrupt(self.disk.place(other.start), "intent log", "one epoch in a half", got));
        }
        let newest = headers.iter().map(|(header, _)| header.sequence).max().unwrap_or(0);
        let known = acknowledged(epoch).max(newest);
        let mut found: Vec<Found> = Vec::new();
        let (mut start, mut chain) = (self.blocks.start, 0);
        loop {
            let sequence = found.len() as u32;
            let is_acknowledged = sequence < known;
            let mut mine = headers
                .iter()
                .filter(|(header, _)| header.start == start && header.sequence == sequence && header.chain == chain);
            let Some((header, _)) = mine.next() else {
                if is_acknowledged {
                    return Err(self.error(start, epoch, sequence, "no header that fits"));
                }
                return Ok(found);
            };
            let bodies = [header.start, header.copy_start()].map(|start| self.body(header, start));
            let has_both_heads = mine.next().is_some() && bodies.iter().all(Option::is_some);
            let body = bodies.into_iter().flatten().next();
            match body
                .ok_or_else(|| Fault::new("entries", "one good copy", "none"))
                .and_then(|body| decode(header, body))
            {
                Ok(batch) => found.push(Found { has_both_heads, ..batch }),
                Err(fault) if is_acknowledged || body.is_some() => {
                    return Err(self.error(start, epoch, sequence, &format!("entries damaged ({fault})")));
                }
                Err(_) => return Ok(found),
            }
            start += header.blocks();
            chain = header.link();
        }
    }

    /// Where the pages of a batch are.
    fn pages(&self, found: &Found) -> Vec<std::result::Result<PageBytes, Gone>> {
        let first = found.header.start + u64::from(found.header.head_blocks);
        let old = |block: u64| found.old.as_ref().and_then(|old| old.get((block - first) as usize));
        let copy = |address: u64| Copy { address, bytes: self.block(address), old: old(address) };
        let mut second = first + found.new.len() as u64;
        let mut places = Vec::with_capacity(found.new.len());
        for (fragments, &twice) in writes(&found.ops).zip(&found.twice) {
            for fragment in fragments {
                let at = places.len();
                let copies = [copy(first + at as u64), copy(second)];
                let copies = if twice { &copies[..] } else { &copies[..1] };
                places.push(find_page(copies, fragment.page.checksum, &found.new[at]));
                second += u64::from(twice);
            }
        }
        places
    }
}

/// A batch by the entries and sector sums in its head.
fn decode(header: &LogHeader, body: &[u8]) -> std::result::Result<Found, Fault> {
    let (entries, sums) = body.split_at(header.entries_bytes as usize);
    let (ops, twice) = decode_ops(entries)?;
    let blocks = page_blocks(&ops, &twice);
    if blocks != u64::from(header.page_blocks) {
        return Err(Fault::new("blocks of pages", header.page_blocks, blocks));
    }
    let pages = writes(&ops).map(Vec::len).sum();
    let (new, old) = decode_sums(sums, pages, blocks as usize)?;
    Ok(Found { header: *header, ops, twice, new, old, has_both_heads: false })
}

fn writes(ops: &[Op]) -> impl Iterator<Item = &Vec<holdfast_object::Fragment>> + Clone {
    ops.iter().filter_map(|op| match op {
        Op::Write { fragments, .. } => Some(fragments),
        _ => None,
    })
}

/// Blocks of pages that entries call for.
fn page_blocks(ops: &[Op], twice: &[bool]) -> u64 {
    writes(ops).zip(twice).map(|(fragments, &twice)| fragments.len() as u64 * (1 + u64::from(twice))).sum()
}

/// How many batches of an epoch those of the next one say there are.
fn acknowledged(told: &[(Epoch, u32)], epoch: Epoch) -> u32 {
    told.iter().filter(|(of, _)| *of == epoch).map(|(_, batches)| *batches).max().unwrap_or(0)
}

/// What is in both halves.
struct Survey<'a> {
    newest: Epoch,
    told: Vec<(Epoch, u32)>,
    /// By epoch, ascending.
    parts: Vec<(Epoch, &'a HalfBytes<'a>, Vec<Found>)>,
}

impl<'a> Survey<'a> {
    fn of(halves: &'a [HalfBytes<'a>; 2], store: &[u8; 16], last: &Superblock) -> Result<Survey<'a>> {
        let headers = || halves.iter().flat_map(|half| half.headers(store, last)).map(|(header, _)| header);
        let told: Vec<(Epoch, u32)> = headers()
            .filter(|header| header.previous_epoch > last.epoch)
            .map(|header| (header.previous_epoch, header.previous_batches))
            .collect();
        let newest = headers().map(|header| header.epoch).max().unwrap_or(0);
        let mut parts = Vec::new();
        for half in halves {
            let batches = half.batches(store, last, |epoch| acknowledged(&told, epoch))?;
            parts.push((batches.first().map_or(0, |found| found.header.epoch), half, batches));
        }
        for &(epoch, count) in &told {
            let there = parts.iter().find(|(of, ..)| *of == epoch).map_or(0, |(.., batches)| batches.len() as u32);
            if there < count {
                let half = &halves[(epoch % 2) as usize];
                return Err(half.error(half.blocks.start, epoch, there, "not there"));
            }
        }
        parts.sort_by_key(|(epoch, ..)| *epoch);
        Ok(Survey { newest, told, parts })
    }
}

/// Number of batches that would be replayed; their blocks are told. Nothing is changed.
pub(crate) fn survey(
    disk: &Disk,
    area: &Range<u64>,
    store: &[u8; 16],
    last: &Superblock,
    visit: &mut dyn FnMut(BlockUse),
) -> Result<u64> {
    let log = IntentLog::new(area.clone());
    let halves = [HalfBytes::read(disk, log.half(0))?, HalfBytes::read(disk, log.half(1))?];
    let survey = Survey::of(&halves, store, last)?;
    let mut number = [0; 2];
    for found in survey.parts.iter().flat_map(|(.., batches)| batches) {
        tell_blocks(found, &mut number, visit);
    }
    Ok(survey.parts.iter().map(|(.., batches)| batches.len() as u64).sum())
}

/// Tells the blocks of a batch, each with all its copies. `number` counts heads and pages.
fn tell_blocks(found: &Found, number: &mut [u64; 2], visit: &mut dyn FnMut(BlockUse)) {
    let header = &found.header;
    let mut tell = |role: BlockRole, index: &mut u64, copies: [Option<u64>; 2]| {
        for (copy, block) in (0..).zip(copies).filter_map(|(copy, block)| Some((copy, block?))) {
            visit(BlockUse { block, role, copy, object: None, kind: None, level: 0, index: *index, held: false });
        }
        *index += 1;
    };
    for at in 0..u64::from(header.head_blocks) {
        tell(BlockRole::LogHead, &mut number[0], [Some(header.start + at), Some(header.copy_start() + at)]);
    }
    let first = header.start + u64::from(header.head_blocks);
    let mut second = first + writes(&found.ops).map(|fragments| fragments.len() as u64).sum::<u64>();
    let mut at = first;
    for (fragments, &twice) in writes(&found.ops).zip(&found.twice) {
        for _ in fragments {
            tell(BlockRole::LogPage, &mut number[1], [Some(at), twice.then_some(second)]);
            at += 1;
            second += u64::from(twice);
        }
    }
}

impl Module {
    /// Reads the log if that has not been done: finds the batches to replay and claims the blocks that they name.
    pub(crate) fn read_log(&self, log: &mut IntentLog) -> Result<()> {
        if log.recovered.is_some() {
            return Ok(());
        }
        let last = self.published.lock().clone();
        let halves = [HalfBytes::read(self.disk(), log.half(0))?, HalfBytes::read(self.disk(), log.half(1))?];
        let survey = Survey::of(&halves, &self.store_uuid(), &last)?;
        // Also of batches that are left out: an epoch with their number must not be published over them.
        let mut recovered = Recovered { newest: survey.newest, queue: VecDeque::new() };
        for (epoch, half, batches) in survey.parts {
            let count = batches.len() as u32;
            for (sequence, found) in (0..count).zip(batches) {
                let is_acknowledged = sequence + 1 < count || sequence < acknowledged(&survey.told, epoch);
                match self.replay(half, found, is_acknowledged) {
                    Some(replay) => recovered.queue.push_back(replay),
                    None => {
                        tracing::info!(epoch, sequence, "intent log: a torn batch, never acknowledged, is left out")
                    }
                }
            }
        }
        let blocks = halves.iter().flat_map(|half| half.blocks.clone().map(|block| half.block(block)));
        log.note_contents(blocks);
        log.forget_contents(recovered.queue.iter().flat_map(|replay| &replay.pages).filter_map(|page| match page {
            PageBytes::At(_) => None,
            PageBytes::Corrected(block, _) => Some(*block),
        }));
        log.recovered = Some(recovered);
        self.log_is_read.store(true, Ordering::Release);
        Ok(())
    }

    /// Blocks that the log names are claimed before others are handed out.
    pub(crate) fn claim_first(&self) -> Result<()> {
        if self.log_is_read.load(Ordering::Acquire) {
            return Ok(());
        }
        self.read_log(&mut self.log.lock())
    }

    /// Looks for a batch's pages; `None` if it was torn.
    fn replay(&self, half: &HalfBytes<'_>, found: Found, is_acknowledged: bool) -> Option<Replay> {
        let places = half.pages(&found);
        let epoch = found.header.epoch;
        let mut ops = Vec::with_capacity(found.ops.len());
        let mut lost = Vec::new();
        let mut is_torn = false;
        let mut pages = Vec::new();
        let mut place = places.into_iter();
        for mut op in found.ops {
            let mut gone: Vec<PageIndex> = Vec::new();
            let mut note = |index: PageIndex, why: Gone| {
                gone.push(index);
                is_torn |= why == Gone::Torn;
            };
            match &mut op {
                Op::Write { fragments, .. } => fragments.retain(|fragment| {
                    let found = place.next().unwrap_or(Err(Gone::Damaged));
                    found.map(|bytes| pages.push(bytes)).map_err(|why| note(fragment.index, why)).is_ok()
                }),
                Op::Adopt { pages, .. } => pages
                    .retain(|(index, placement)| self.claim(epoch, placement).map_err(|why| note(*index, why)).is_ok()),
                _ => {}
            }
            let id = op.target();
            ops.push(op);
            if !gone.is_empty() {
                lost.push((id, gone.len()));
                ops.push(Op::Lose { id, pages: gone });
            }
        }
        if !lost.is_empty() {
            // With one head only, or a page that was not written, the cut may have come before the flush was over.
            if !is_acknowledged && (is_torn || !found.has_both_heads) {
                return None;
            }
            self.report_lost(&found.header, &lost);
        }
        for page in &pages {
            if let PageBytes::Corrected(block, bytes) = page {
                self.disk().repair(*block, &bytes.0, &self.disk().place(*block));
            }
        }
        let batch = LogBatch { epoch, domain: DomainId(found.header.domain), ops };
        Some(Replay { batch, pages })
    }

    fn report_lost(&self, header: &LogHeader, lost: &[(ObjectId, usize)]) {
        for (id, count) in lost {
            self.disk().counters.lost_from_log(*count as u64);
            let (epoch, sequence) = (header.epoch, header.sequence);
            tracing::error!(epoch, sequence, object = id.0, pages = count, "intent log: synced pages are lost");
        }
    }

    /// Takes the blocks of a placement before anything else may; an error if its bytes are not there. A copy that did not
    /// reach the device is made good from the other. What the blocks held before is not known, so wrong bytes count as torn.
    fn claim(&self, epoch: Epoch, placement: &Placement) -> std::result::Result<(), Gone> {
        let addresses = [placement.address, placement.address_2];
        let mut good: Option<PooledBlock> = None;
        let mut bad = Vec::new();
        let mut why = Gone::Damaged;
        for address in addresses.into_iter().filter(|&address| address != 0) {
            let (device, block) = split_address(address);
            if device != 0 || !self.base.alloc.lock().claim(epoch, block) {
                return Err(Gone::Torn);
            }
            let mut bytes = Block::zeroed();
            if self.disk().read_block(address, &mut bytes.0).is_err() {
                bad.push(address);
                continue;
            }
            if crc64(&bytes.0) == placement.checksum {
                good = Some(bytes);
            } else {
                bad.push(address);
                why = Gone::Torn;
            }
        }
        if !(1..=epoch).contains(&placement.birth) || addresses[0] == addresses[1] {
            return Err(Gone::Torn);
        }
        let good = good.ok_or(why)?;
        for address in bad {
            self.disk().repair(address, &good.0, &self.disk().place(address));
        }
        Ok(())
    }

    /// See [`holdfast_object::ObjectStore::log_next`].
    pub(crate) fn next_from_log(
        &self,
        frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>,
    ) -> Result<Option<RecoveredBatch>> {
        let mut log = self.log.lock();
        self.read_log(&mut log)?;
        let Some(recovered) = &mut log.recovered else { return Ok(None) };
        let Some(next) = recovered.queue.front() else { return Ok(None) };
        let count = next.pages.len();
        let mut given = if count == 0 { Vec::new() } else { frames(count)? };
        if given.len() != count {
            return Err(Error::Protocol(format!("{} page frames given, {count} asked for", given.len())));
        }
        let mut batch = next.batch.clone();
        let mut pins: Vec<PinnedPage> = Vec::with_capacity(count);
        let mut rest = given.drain(..).zip(&next.pages);
        for op in &mut batch.ops {
            let Op::Write { fragments, .. } = op else { continue };
            for fragment in fragments {
                let Some((mut frame, page)) = rest.next() else { break };
                let block = match page {
                    PageBytes::At(block) => {
                        self.disk().read_block(*block, &mut frame)?;
                        *block
                    }
                    PageBytes::Corrected(block, bytes) => {
                        frame.copy_from_slice(&bytes.0);
                        *block
                    }
                };
                let got = crc64(&frame[..]);
                if got != fragment.page.checksum {
                    let expected = format!("{:#x}", fragment.page.checksum);
                    return Err(Error::corrupt(
                        self.disk().place(block),
                        "page in the intent log",
                        expected,
                        format!("{got:#x}"),
                    ));
                }
                let pin = frame.publish(fragment.page.checksum);
                fragment.page = pin.page();
                pins.push(pin);
            }
        }
        drop(rest);
        recovered.queue.pop_front();
        Ok(Some(RecoveredBatch { batch, pins }))
    }
}
