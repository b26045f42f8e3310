//! Reading the intent log back after a crash.
//!
//! A batch counts if its header is of this store, of an epoch above the last recovery point, and based on that point or
//! the one before. Batches of an epoch follow each other without a gap. One that is damaged
//! - is repaired from the second copies, if these are good; one or two flipped bits of a page or a header, and one of the
//!   entries, are put right;
//! - otherwise, if it had been acknowledged (a later one exists): pages that are gone become [`Op::Lose`]; without its
//!   entries it is an error that names it;
//! - otherwise, if there is damage that no power cut does, the same: all of it is there but pages (see `log_pages`), or
//!   the head of another batch is in its place;
//! - otherwise it was torn by the crash and never acknowledged: it is left out, and it is the last one. That is counted and
//!   told: a device that lost the write afterwards leaves the same.
//!
//! A seal is a batch like others, and nothing is in it: one that is gone is known by what comes behind it, and not missed
//! otherwise.
//!
//! What was verified is not believed in memory while the device is asked: a batch that was found is compared with its bytes before it is judged
//! and afterwards, and one that waits to be replayed does so in the form that batches have, with sums. One that has gone bad gives the opening up.
//!
//! The offline check comes to the same verdicts, see `log_check`.

use crate::block_pool::PooledBlock;
use crate::disk::{Block, Disk};
use crate::format::log::{HEADER_BYTES, LogHeader, SectorSums, decode_sums};
use crate::format::ops::{decode_ops, encode_op};
use crate::format::{Fault, Superblock, split_address};
use crate::guarded::Doubled;
use crate::intent_log::IntentLog;
use crate::log_pages::{Copy, Gone, PageBytes, find_page};
use crate::meta_block::Scribble;
use crate::module::Module;
use holdfast_block::AlignedBuf;
use holdfast_integrity::Checksum;
use holdfast_integrity::{FlipsMax, correct_flips, crc32c, crc64};
use holdfast_object::{
    DomainId, Epoch, Error, FrameMut, LogBatch, ObjectId, Op, PageIndex, PinnedPage, Placement, RecoveredBatch, Result,
    Side,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What the log held when it was read.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Newest epoch of a batch found, 0 if there was none or all are in a recovery point by now.
    pub(crate) newest: Doubled,
    queue: VecDeque<Replay>,
}

/// Of two polynomials: what keeps the one changes the other.
fn sums_of(form: &[u8]) -> (u64, u32) {
    (crc64(form), crc32c(form))
}

fn verify_sums(form: &[u8], sums: (u64, u32)) -> std::result::Result<(), Scribble> {
    let got = sums_of(form);
    Scribble::unless_equal("checksum of a batch of the intent log", sums.0, got.0)?;
    Scribble::unless_equal("second sum of a batch of the intent log", sums.1.into(), got.1.into())
}

/// A batch to replay.
struct Replay {
    epoch: Epoch,
    domain: DomainId,
    /// The operations, encoded.
    entries: Vec<u8>,
    /// For each page of the batch's `Write`s, in order, where it is.
    pages: Vec<PageBytes>,
    /// Pages that have become lost.
    lost: Vec<(ObjectId, PageIndex)>,
    /// Of [`Replay::form`], from when the batch was judged.
    sums: (u64, u32),
}

impl Replay {
    fn new(header: &LogHeader, ops: &[Op], pages: Vec<PageBytes>, lost: Vec<(ObjectId, PageIndex)>) -> Replay {
        let mut entries = Vec::new();
        ops.iter().for_each(|op| encode_op(&mut entries, op, false));
        let (epoch, domain) = (header.epoch, DomainId(header.domain));
        let replay = Replay { epoch, domain, entries, pages, lost, sums: (0, 0) };
        Replay { sums: sums_of(&replay.form()), ..replay }
    }

    /// All that it says, but for the bytes of pages: operations have their checksums.
    fn form(&self) -> Vec<u8> {
        let Replay { epoch, domain, entries, pages, lost, sums: _ } = self;
        let pages = pages.iter().flat_map(|page| match page {
            PageBytes::At(block) => [0, *block],
            PageBytes::Corrected(block, _) => [1, *block],
        });
        let lost = lost.iter().flat_map(|(id, index)| [id.0, *index]);
        let numbers = [*epoch, domain.0.into()].into_iter().chain(pages).chain(lost);
        numbers.flat_map(u64::to_le_bytes).chain(entries.iter().copied()).collect()
    }

    /// As it was judged.
    ///
    /// # Errors
    /// Somebody has written to it who must not.
    fn open(&self) -> std::result::Result<LogBatch, Scribble> {
        verify_sums(&self.form(), self.sums)?;
        let Replay { epoch, domain, entries, .. } = self;
        let decoded = decode_ops(entries).map(|(ops, _)| ops);
        Scribble::unless_equal("operations of a batch that was read", 1, decoded.is_ok().into())?;
        Ok(LogBatch { epoch: *epoch, domain: *domain, ops: decoded.unwrap_or_default() })
    }
}

/// A batch found, its entries good.
pub(crate) struct Found {
    pub(crate) header: LogHeader,
    pub(crate) ops: Vec<Op>,
    /// Of each `Write`, whether its pages are there twice.
    pub(crate) twice: Vec<bool>,
    /// Entries and sector sums, as they should be in both heads.
    pub(crate) body: Vec<u8>,
    /// Sector sums of the pages.
    new: Vec<SectorSums>,
    /// Those of what the blocks of pages held before, if known.
    old: Option<Vec<SectorSums>>,
    /// Both heads are whole.
    has_both_heads: bool,
    /// Of [`Found::form`], from when it was decoded.
    sums: (u64, u32),
}

impl Found {
    /// A seal that is gone.
    fn seal(header: LogHeader) -> Found {
        Found::of(&header, (Vec::new(), Vec::new()), &[], (Vec::new(), None))
    }

    fn of(
        header: &LogHeader,
        (ops, twice): (Vec<Op>, Vec<bool>),
        body: &[u8],
        (new, old): (Vec<SectorSums>, Option<Vec<SectorSums>>),
    ) -> Found {
        let (header, body) = (*header, body.to_vec());
        let found = Found { header, ops, twice, body, new, old, has_both_heads: false, sums: (0, 0) };
        Found { sums: sums_of(&found.form()), ..found }
    }

    /// With whether both heads are whole, as is known before anything else is made of it.
    fn with_heads(self, has_both_heads: bool) -> Found {
        let found = Found { has_both_heads, ..self };
        Found { sums: sums_of(&found.form()), ..found }
    }

    /// What all of it follows from.
    fn form(&self) -> Vec<u8> {
        [&self.header.encode(false)[..], &self.body, &[self.has_both_heads.into()]].concat()
    }

    /// Whether it still is what it was when it was decoded.
    ///
    /// # Errors
    /// Somebody has written to it who must not.
    fn verify(&self) -> std::result::Result<(), Scribble> {
        verify_sums(&self.form(), self.sums)?;
        let is_same = decode(&self.header, &self.body).is_ok_and(|again| {
            (again.ops == self.ops && again.twice == self.twice) && (again.new == self.new && again.old == self.old)
        });
        Scribble::unless_equal("operations of a batch that was read", 1, is_same.into())
    }
}

/// A page of a batch.
pub(crate) struct FoundPage<'a> {
    /// One or two.
    pub(crate) copies: Vec<Copy<'a>>,
    pub(crate) checksum: u64,
    pub(crate) new: &'a SectorSums,
}

/// What becomes of a batch.
pub(crate) struct Verdict {
    /// With [`Op::Lose`] for what is gone.
    pub(crate) ops: Vec<Op>,
    /// Where the pages are that are there, in the order of the operations.
    pages: Vec<PageBytes>,
    pub(crate) gone: Vec<GonePage>,
    /// Torn: nothing of it is replayed.
    pub(crate) is_left_out: bool,
}

/// A page without a good copy.
pub(crate) struct GonePage {
    /// The number of its operation, and its own in that.
    of: (usize, usize),
    pub(crate) object: ObjectId,
    pub(crate) index: PageIndex,
    /// Where its first copy should be.
    pub(crate) address: u64,
}

/// A batch without entries that may never have been acknowledged.
pub(crate) struct Torn {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u32,
    pub(crate) start: u64,
}

/// One half of the log area in memory.
pub(crate) struct HalfBytes<'a> {
    disk: &'a Disk,
    blocks: Range<u64>,
    bytes: AlignedBuf,
    unreadable: Vec<u64>,
}

impl<'a> HalfBytes<'a> {
    pub(crate) fn read(disk: &'a Disk, blocks: Range<u64>) -> Result<HalfBytes<'a>> {
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

    /// Every block of it could be read.
    pub(crate) fn is_readable(&self) -> bool {
        self.unreadable.is_empty()
    }

    /// The bytes of a block; `None` for one that could not be read.
    pub(crate) fn block(&self, block: u64) -> Option<&[u8; 4096]> {
        if self.unreadable.binary_search(&block).is_ok() {
            return None;
        }
        let at = block.checked_sub(self.blocks.start)? as usize;
        self.bytes.as_chunks::<4096>().0.get(at)
    }

    /// The entries and sector sums of a batch from the head at `start`, if they match, or do but for one bit.
    fn body(&self, header: &LogHeader, start: u64) -> Option<Cow<'_, [u8]>> {
        let at = usize::try_from(start.checked_sub(self.blocks.start)?)
            .ok()?
            .checked_mul(4096)?
            .checked_add(HEADER_BYTES)?;
        let body = self.bytes.get(at..at.checked_add(usize::try_from(header.body_bytes()).ok()?)?)?;
        if crc64(body) == header.entries_crc {
            return Some(Cow::Borrowed(body));
        }
        // Two would be too many without a second checksum: torn bytes would pass too often.
        let mut mended = body.to_vec();
        correct_flips(&mut mended, header.entries_crc, FlipsMax::One).map(|_| Cow::Owned(mended))
    }

    /// All headers that count, with whether they are second copies.
    fn headers(&self, log: &LogOf<'_>) -> Vec<(LogHeader, bool)> {
        let blocks = self.bytes.as_chunks::<4096>().0.iter();
        blocks
            .zip(self.blocks.clone())
            .filter(|(block, _)| LogHeader::may_be_in(block))
            .filter_map(|(block, address)| LogHeader::decode_flipped(block, address).ok())
            .filter(|(header, _)| {
                log.counts(header)
                    && header.start >= self.blocks.start
                    && header.start + header.blocks() <= self.blocks.end
            })
            .collect()
    }

    /// The head of another batch is where one begins: no power cut does that. What was there before is of older epochs.
    fn is_misplaced(&self, start: u64, log: &LogOf<'_>) -> bool {
        let found = self.block(start).and_then(|block| LogHeader::decode_anywhere(block).ok());
        found.is_some_and(|(header, copy)| log.counts(&header) && header.own_place(copy) != start)
    }

    fn error(&self, block: u64, epoch: Epoch, sequence: u32, what: &str) -> Error {
        let mut got = format!("{what}, and it had been acknowledged");
        if !self.unreadable.is_empty() {
            got += &format!(" ({} blocks of the log could not be read)", self.unreadable.len());
        }
        Error::corrupt(self.disk.place(block), "intent log", format!("batch {sequence} of epoch {epoch}"), got)
    }

    fn misplaced(&self, start: u64, expected: &str) -> Error {
        let got = "the head of another batch, which no power cut leaves there";
        Error::corrupt(self.disk.place(start), "intent log", expected, got)
    }

    /// The batches of the half, in order. `acknowledged` is how many another epoch's batches say there are of an epoch.
    /// Also gives what comes behind them, if that is a batch without entries.
    fn batches(&self, log: &LogOf<'_>, acknowledged: impl Fn(Epoch) -> u32) -> Result<(Vec<Found>, Option<Torn>)> {
        let headers = self.headers(log);
        let Some(epoch) = headers.iter().map(|(header, _)| header.epoch).max() else {
            return match self.is_misplaced(self.blocks.start, log) {
                true => Err(self.misplaced(self.blocks.start, "the first batch")),
                false => Ok((Vec::new(), None)),
            };
        };
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
                let seal = found.last().map(|before| before.header.seal());
                let has_next = |seal: &LogHeader| headers.iter().any(|(header, _)| header.follows(seal));
                if let Some(header) = seal.filter(has_next) {
                    found.push(Found::seal(header));
                    (start, chain) = (start + header.blocks(), header.link());
                    continue;
                }
                if is_acknowledged {
                    return Err(self.error(start, epoch, sequence, "no header that fits"));
                }
                if self.is_misplaced(start, log) {
                    return Err(self.misplaced(start, &format!("batch {sequence} of epoch {epoch}, or nothing")));
                }
                return Ok((found, None));
            };
            let bodies = [header.start, header.copy_start()].map(|start| self.body(header, start));
            let has_both_heads = mine.next().is_some() && bodies.iter().all(Option::is_some);
            let body = bodies.into_iter().flatten().next();
            let has_body = body.is_some();
            match body
                .ok_or_else(|| Fault::new("entries", "one good copy", "none"))
                .and_then(|body| decode(header, &body))
            {
                Ok(batch) => found.push(batch.with_heads(has_both_heads)),
                Err(fault) if is_acknowledged || has_body => {
                    return Err(self.error(start, epoch, sequence, &format!("entries damaged ({fault})")));
                }
                Err(_) => return Ok((found, Some(Torn { epoch, sequence, start }))),
            }
            start += header.blocks();
            chain = header.link();
        }
    }

    /// The pages of a batch, in order.
    pub(crate) fn pages<'f>(&'f self, found: &'f Found) -> Vec<FoundPage<'f>> {
        let first = found.header.start + u64::from(found.header.head_blocks);
        let old = |block: u64| found.old.as_ref().and_then(|old| old.get((block - first) as usize));
        let copy = |address: u64| Copy { address, bytes: self.block(address), old: old(address) };
        let mut second = first + found.new.len() as u64;
        let mut pages: Vec<FoundPage<'f>> = Vec::with_capacity(found.new.len());
        for (fragments, &twice) in writes(&found.ops).zip(&found.twice) {
            for fragment in fragments {
                let at = pages.len();
                let mut copies = vec![copy(first + at as u64)];
                if twice {
                    copies.push(copy(second));
                    second += 1;
                }
                pages.push(FoundPage { copies, checksum: fragment.page.checksum, new: &found.new[at] });
            }
        }
        pages
    }

    /// What becomes of a batch. `claim` says whether a page that it refers to is there.
    pub(crate) fn judge(
        &self,
        found: &Found,
        is_acknowledged: bool,
        claim: &mut dyn FnMut(ObjectId, PageIndex, &Placement) -> std::result::Result<(), Gone>,
    ) -> Verdict {
        let (mut pages, mut gone) = (Vec::new(), Vec::new());
        let mut is_torn = false;
        let mut in_log = self.pages(found).into_iter();
        for (number, op) in found.ops.iter().enumerate() {
            let object = op.target();
            let mut note = |nth: usize, index: PageIndex, address: u64, why: Gone| {
                gone.push(GonePage { of: (number, nth), object, index, address });
                is_torn |= why == Gone::Torn;
            };
            match op {
                Op::Write { fragments, .. } => {
                    for (nth, (fragment, page)) in fragments.iter().zip(in_log.by_ref()).enumerate() {
                        let address = page.copies.first().map_or(found.header.start, |copy| copy.address);
                        match find_page(&page.copies, page.checksum, page.new) {
                            Ok(bytes) => pages.push(bytes),
                            Err(why) => note(nth, fragment.index, address, why),
                        }
                    }
                }
                Op::Adopt { pages, .. } => {
                    for (nth, (index, placement)) in pages.iter().enumerate() {
                        if let Err(why) = claim(object, *index, placement) {
                            note(nth, *index, placement.address, why);
                        }
                    }
                }
                _ => {}
            }
        }
        // With one head only, or a page that was not written, the cut may have come before the flush was over.
        let is_left_out = !gone.is_empty() && !is_acknowledged && (is_torn || !found.has_both_heads);
        Verdict { ops: without(&found.ops, &gone), pages, gone, is_left_out }
    }
}

/// Operations without the pages that are gone, in their order, which become lost by others.
fn without(ops: &[Op], gone: &[GonePage]) -> Vec<Op> {
    let mut rest = gone.iter().peekable();
    let mut kept = Vec::with_capacity(ops.len());
    for (number, mut op) in ops.iter().cloned().enumerate() {
        let (id, mut nth, mut pages) = (op.target(), 0, Vec::new());
        let mut is_there = |index: PageIndex| {
            let is_gone = rest.next_if(|page| page.of == (number, nth)).is_some();
            nth += 1;
            pages.extend(is_gone.then_some(index));
            !is_gone
        };
        match &mut op {
            Op::Write { fragments, .. } => fragments.retain(|fragment| is_there(fragment.index)),
            Op::Adopt { pages, .. } => pages.retain(|(index, _)| is_there(*index)),
            _ => {}
        }
        kept.push(op);
        if !pages.is_empty() {
            kept.push(Op::Lose { id, pages, side: Side::Device });
        }
    }
    kept
}

/// Which batches count.
pub(crate) struct LogOf<'a> {
    pub(crate) store: &'a [u8; 16],
    /// The last recovery point.
    pub(crate) last: &'a Superblock,
}

impl LogOf<'_> {
    fn counts(&self, header: &LogHeader) -> bool {
        header.store == *self.store
            && header.epoch > self.last.epoch
            && (self.last.previous..=self.last.epoch).contains(&header.base)
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
    Ok(Found::of(header, (ops, twice), body, decode_sums(sums, pages, blocks as usize)?))
}

pub(crate) fn writes(ops: &[Op]) -> impl Iterator<Item = &Vec<holdfast_object::Fragment>> + Clone {
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
pub(crate) struct Survey<'a> {
    /// Of all headers, 0 if there is none.
    pub(crate) newest: Epoch,
    told: Vec<(Epoch, u32)>,
    /// By epoch, ascending.
    pub(crate) parts: Vec<(Epoch, &'a HalfBytes<'a>, Vec<Found>)>,
    pub(crate) torn: Vec<Torn>,
}

impl<'a> Survey<'a> {
    pub(crate) fn of(halves: &'a [HalfBytes<'a>; 2], log: &LogOf<'_>) -> Result<Survey<'a>> {
        let headers = || halves.iter().flat_map(|half| half.headers(log)).map(|(header, _)| header);
        let told: Vec<(Epoch, u32)> = headers()
            .filter(|header| header.previous_epoch > log.last.epoch)
            .map(|header| (header.previous_epoch, header.previous_batches))
            .collect();
        let newest = headers().map(|header| header.epoch).max().unwrap_or(0);
        let (mut parts, mut torn) = (Vec::new(), Vec::new());
        for half in halves {
            let (batches, behind) = half.batches(log, |epoch| acknowledged(&told, epoch))?;
            parts.push((batches.first().map_or(0, |found| found.header.epoch), half, batches));
            torn.extend(behind);
        }
        for &(epoch, count) in &told {
            let there = parts.iter().find(|(of, ..)| *of == epoch).map_or(0, |(.., batches)| batches.len() as u32);
            if there < count {
                let half = &halves[(epoch % 2) as usize];
                return Err(half.error(half.blocks.start, epoch, there, "not there"));
            }
        }
        parts.sort_by_key(|(epoch, ..)| *epoch);
        Ok(Survey { newest, told, parts, torn })
    }

    /// Whether a batch of an epoch that has `count` whole ones had been acknowledged: a later one exists.
    pub(crate) fn is_acknowledged(&self, epoch: Epoch, sequence: u32, count: u32) -> bool {
        sequence + 1 < count || sequence < acknowledged(&self.told, epoch)
    }
}

/// Whether the bytes of a page that was written ahead are where a placement says. Also gives the copies that are bad.
/// What the blocks held before is not known, so wrong bytes count as torn.
pub(crate) fn find_placed(
    disk: &Disk,
    epoch: Epoch,
    placement: &Placement,
) -> (Vec<u64>, std::result::Result<PooledBlock, Gone>) {
    let addresses = [placement.address, placement.address_2];
    let is_here = |address: u64| {
        let (device, block) = split_address(address);
        device == 0 && block < disk.blocks()
    };
    let is_sound = (1..=epoch).contains(&placement.birth) && addresses[0] != addresses[1];
    if !is_sound || !addresses.into_iter().all(is_here) {
        return (Vec::new(), Err(Gone::Torn));
    }
    let (mut bad, mut good, mut why) = (Vec::new(), None, Gone::Damaged);
    for address in addresses.into_iter().filter(|&address| address != 0) {
        let mut bytes = Block::zeroed();
        if disk.read_block(address, &mut bytes.0).is_err() {
            bad.push(address);
        } else if crc64(&bytes.0) == placement.checksum {
            good = Some(bytes);
        } else {
            bad.push(address);
            why = Gone::Torn;
        }
    }
    (bad, good.ok_or(why))
}

impl Module {
    /// Reads the log if that has not been done: finds the batches to replay and claims the blocks that they name.
    pub(crate) fn read_log(&self, log: &mut IntentLog) -> Result<()> {
        if log.recovered.is_some() {
            return Ok(());
        }
        let last = self.superblock()?;
        let ends = self.ends(log)?;
        let halves = [HalfBytes::read(self.disk(), ends.half(0))?, HalfBytes::read(self.disk(), ends.half(1))?];
        let survey = Survey::of(&halves, &LogOf { store: &self.label()?.store, last: &last })?;
        // Also of batches that are left out: an epoch with their number must not be published over them.
        let mut recovered = Recovered { newest: Doubled::new(survey.newest), queue: VecDeque::new() };
        for (epoch, half, batches) in &survey.parts {
            let count = batches.len() as u32;
            for (sequence, found) in (0..count).zip(batches) {
                let is_acknowledged = survey.is_acknowledged(*epoch, sequence, count);
                recovered.queue.extend(self.replay(half, found, is_acknowledged)?);
            }
        }
        for torn in &survey.torn {
            self.report_torn(torn.epoch, torn.sequence, torn.start);
        }
        let blocks = halves.iter().flat_map(|half| half.blocks.clone().map(|block| half.block(block)));
        let written = recovered.queue.iter().flat_map(|replay| &replay.pages).filter_map(|page| match page {
            PageBytes::At(_) => None,
            PageBytes::Corrected(block, _) => Some(*block),
        });
        log.note_contents(&ends, blocks, written);
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

    /// Looks for a batch's pages; `None` if it was torn, or is a seal.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: it has gone bad in memory since it was read.
    fn replay(&self, half: &HalfBytes<'_>, found: &Found, is_acknowledged: bool) -> Result<Option<Replay>> {
        let verify = || found.verify().map_err(|scribble| self.base.give_up_sums(scribble));
        verify()?;
        let epoch = found.header.epoch;
        let verdict = half.judge(found, is_acknowledged, &mut |_, _, placement| self.claim(epoch, placement));
        // The device was asked in between.
        verify()?;
        let Verdict { ops, pages, gone, is_left_out } = verdict;
        let lost = gone.iter().map(|page| (page.object, page.index)).collect();
        let replay = Replay::new(&found.header, &ops, pages, lost);
        if is_left_out {
            self.report_torn(epoch, found.header.sequence, found.header.start);
            return Ok(None);
        }
        self.report_lost(&found.header, &gone);
        for page in &replay.pages {
            if let PageBytes::Corrected(block, bytes) = page {
                self.disk().repair(*block, &bytes.0, &self.disk().place(*block));
            }
        }
        Ok(Some(replay).filter(|_| !found.header.is_empty()))
    }

    fn report_torn(&self, epoch: Epoch, sequence: u32, start: u64) {
        self.disk().counters.torn_in_log();
        let place = self.disk().place(start);
        tracing::warn!(
            epoch,
            sequence,
            %place,
            "intent log: the last batch is not whole and is left out: a power cut has cut its sync short, or it has been damaged since"
        );
    }

    fn report_lost(&self, header: &LogHeader, gone: &[GonePage]) {
        let mut objects: BTreeMap<u64, u64> = BTreeMap::new();
        gone.iter().for_each(|page| *objects.entry(page.object.0).or_default() += 1);
        for (object, pages) in objects {
            self.disk().counters.lost_from_log(pages);
            let (epoch, sequence) = (header.epoch, header.sequence);
            tracing::error!(epoch, sequence, object, pages, "intent log: synced pages are lost");
        }
    }

    /// Takes the blocks of a placement before anything else may; an error if its bytes are not there. A copy that did not
    /// reach the device is made good from the other.
    fn claim(&self, epoch: Epoch, placement: &Placement) -> std::result::Result<(), Gone> {
        for address in [placement.address, placement.address_2].into_iter().filter(|&address| address != 0) {
            let (device, block) = split_address(address);
            if device != 0 || !self.base.alloc.lock().claim(epoch, block) {
                return Err(Gone::Torn);
            }
        }
        let (bad, outcome) = find_placed(self.disk(), epoch, placement);
        let good = outcome?;
        for address in bad {
            self.disk().repair(address, &good.0, &self.disk().place(address));
        }
        Ok(())
    }

    /// See [`holdfast_object::ObjectStore::log_next`].
    ///
    /// # Errors
    /// [`Error::GivenUp`]: the next batch has gone bad in memory, and nothing of it may become a recovery point.
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
        let open = || next.open().map_err(|scribble| self.base.give_up_sums(scribble));
        let first = open()?;
        let checksums = writes(&first.ops).flatten().map(|fragment| fragment.page.checksum);
        let mut pins: Vec<PinnedPage> = Vec::with_capacity(count);
        for ((mut frame, page), checksum) in given.drain(..).zip(&next.pages).zip(checksums) {
            let got = match page {
                PageBytes::At(block) => {
                    self.disk().read_block(*block, &mut frame)?;
                    let got = crc64(&frame[..]);
                    if got != checksum {
                        // If what says where it is has gone bad, nothing is wrong with the device.
                        open()?;
                        let (place, expected) = (self.disk().place(*block), format!("{checksum:#x}"));
                        return Err(Error::corrupt(place, "page in the intent log", expected, format!("{got:#x}")));
                    }
                    got
                }
                PageBytes::Corrected(_, bytes) => {
                    frame.copy_from_slice(&bytes.0);
                    crc64(&frame[..])
                }
            };
            Scribble::unless_equal("checksum of a page that was put right", checksum, got)
                .map_err(|scribble| self.base.give_up_sums(scribble))?;
            pins.push(frame.publish(Checksum::crc64(checksum)));
        }
        // Once more: the device was asked in between.
        let mut batch = open()?;
        let mut pinned = pins.iter().map(PinnedPage::page);
        for op in &mut batch.ops {
            let Op::Write { fragments, .. } = op else { continue };
            for fragment in fragments {
                let Some(page) = pinned.next() else { break };
                Scribble::unless_equal("checksum of a page that was read", fragment.page.checksum, page.checksum)
                    .map_err(|scribble| self.base.give_up_sums(scribble))?;
                fragment.page = page;
            }
        }
        let lost = next.lost.clone();
        recovered.queue.pop_front();
        Ok(Some(RecoveredBatch { batch, pins, lost }))
    }
}

#[cfg(test)]
mod tests;
