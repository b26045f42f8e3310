//! The offline check of the intent log: what a mount would make of each batch, and every copy of every block of it.
//!
//! What a power cut cannot have done, or was done to a batch that had been acknowledged, is a finding. What is not whole in
//! the last batch, and may be a power cut's work, is a remark: no error, as every crash may leave it, but told, as a device
//! that lost the write after it had been acknowledged leaves the same. Both heads of the last batch as they were before it
//! are the one thing that leaves no trace, and only until the batch has a seal behind it: what is without a trace then is a
//! seal, in which there is nothing.

use crate::check::{BlockRole, BlockUse, Finding, FindingKind, Report};
use crate::disk::Disk;
use crate::format::log::{LogHeader, SECTOR_BYTES};
use crate::format::split_address;
use crate::intent_log::Ends;
use crate::log_pages::{PageBytes, find_page, is_torn};
use crate::log_recovery::{Found, HalfBytes, LogOf, Survey, find_placed, writes};
use crate::read::page_place;
use holdfast_integrity::crc64;
use holdfast_object::{DomainId, ObjectId, ObjectKey, Op, PageIndex, Place, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// What the log has.
pub(crate) struct LogState {
    /// Batches that would be replayed.
    pub(crate) batches: u64,
    /// Not even a batch that would be left out.
    pub(crate) is_empty: bool,
}

/// Compares everything in the log with what its batches say, and tells the blocks that they use. Bad copies are replaced if the
/// disk takes changes.
pub(crate) fn check(
    disk: &Disk,
    area: &Range<u64>,
    log: &LogOf<'_>,
    report: &mut Report,
    visit: &mut dyn FnMut(BlockUse),
) -> Result<LogState> {
    let halves = Ends::new(area.clone());
    let halves = [HalfBytes::read(disk, halves.half(0))?, HalfBytes::read(disk, halves.half(1))?];
    let survey = Survey::of(&halves, log)?;
    let mut state = LogState { batches: 0, is_empty: survey.newest == 0 };
    let mut numbers = Numbers::default();
    let mut gone = Gone::default();
    for (epoch, half, batches) in &survey.parts {
        let count = batches.len() as u32;
        for (sequence, found) in (0..count).zip(batches) {
            tell_blocks(found, disk.blocks(), &mut numbers, visit);
            let is_acknowledged = survey.is_acknowledged(*epoch, sequence, count);
            let mut look = Look { disk, half, found, is_acknowledged, gone: &mut gone, report };
            state.batches += u64::from(look.batch());
        }
    }
    for (place, what) in gone.pages.into_values() {
        report.find(FindingKind::Unreadable, place, format!("{what}: lost from the next mount on"));
    }
    for torn in &survey.torn {
        let what = format!(
            "batch {} of epoch {} of the intent log has no good copy of its entries",
            torn.sequence, torn.epoch
        );
        report.remark(disk.place(torn.start), format!("{what}: {LEFT_OUT}"));
    }
    Ok(state)
}

const LEFT_OUT: &str = "left out at the next mount, as a sync that a power cut has cut short; \
                        if none did, the disk has lost a write";
const SPARE: &str = "the other one is good; a power cut may have left it so";

/// Pages without a good copy, so far.
#[derive(Default)]
struct Gone {
    pages: BTreeMap<(ObjectKey, PageIndex), (Place, String)>,
}

impl Gone {
    /// A page has no good copy. One before it, of an earlier operation, would have been replaced by it in any case.
    fn add(&mut self, page: (ObjectKey, PageIndex), place: Place, what: String, report: &mut Report) {
        if let Some((before, what)) = self.pages.insert(page, (place, what)) {
            let what = format!("{what}, and a later one, which has none either, is in its place: nothing more is lost");
            report.find(FindingKind::Obsolete, before, what);
        }
    }

    /// What an operation writes anew, or deletes with its object, is not missed.
    fn replay(&mut self, domain: DomainId, op: &Op, report: &mut Report) {
        let key = ObjectKey { domain, object: op.target() };
        let written: Vec<PageIndex> = match op {
            Op::Write { fragments, .. } => fragments.iter().map(|fragment| fragment.index).collect(),
            Op::Adopt { pages, .. } => pages.iter().map(|(index, _)| *index).collect(),
            Op::Delete { .. } => {
                self.pages.range((key, 0)..=(key, PageIndex::MAX)).map(|((_, index), _)| *index).collect()
            }
            _ => return,
        };
        for index in written {
            if let Some((place, what)) = self.pages.remove(&(key, index)) {
                let what = format!("{what}, and a later one has it anew: nothing is lost");
                report.find(FindingKind::Obsolete, place, what);
            }
        }
    }
}

/// A look at one batch.
struct Look<'a> {
    disk: &'a Disk,
    half: &'a HalfBytes<'a>,
    found: &'a Found,
    is_acknowledged: bool,
    gone: &'a mut Gone,
    report: &'a mut Report,
}

impl Look<'_> {
    /// Whether the batch would be replayed: it is not left out, and no seal.
    fn batch(&mut self) -> bool {
        let (disk, epoch) = (self.disk, self.found.header.epoch);
        let mut bad_placed = Vec::new();
        let mut placed = |object, index, placement: &holdfast_object::Placement| {
            let (bad, outcome) = find_placed(disk, epoch, placement);
            let good = outcome?;
            bad_placed.extend(bad.into_iter().map(|address| (object, index, address, good.0)));
            Ok(())
        };
        let verdict = self.half.judge(self.found, self.is_acknowledged, &mut placed);
        let domain = DomainId(self.found.header.domain);
        let what = self.name("page");
        if verdict.is_left_out {
            for gone in &verdict.gone {
                let place = self.page_place(gone.object, gone.index, gone.address);
                self.report.remark(place, format!("{what} is not whole, so the batch is {LEFT_OUT}"));
            }
        } else {
            // In the order of the operations: each is followed by an `Op::Lose` of what it has not got.
            let mut rest = verdict.gone.iter().peekable();
            for op in &verdict.ops {
                self.gone.replay(domain, op, self.report);
                let Op::Lose { id, pages, .. } = op else { continue };
                for index in pages {
                    let Some(gone) = rest.next_if(|gone| (gone.object, gone.index) == (*id, *index)) else { continue };
                    let place = self.page_place(gone.object, gone.index, gone.address);
                    let page = (ObjectKey { domain, object: gone.object }, gone.index);
                    self.gone.add(page, place, format!("{what} has no good copy"), self.report);
                }
            }
        }
        self.heads(verdict.is_left_out);
        if !verdict.is_left_out {
            for (object, index, address, good) in bad_placed {
                let place = self.page_place(object, index, address);
                self.bad_copy(place, address, "page written ahead", &good, self.is_acknowledged);
            }
            self.pages();
        }
        !verdict.is_left_out && !self.found.header.is_empty()
    }

    /// Both heads are as they were written.
    fn heads(&mut self, is_left_out: bool) {
        let header = self.found.header;
        for copy in [false, true] {
            let head = header.head(&self.found.body, copy);
            for (address, good) in (header.own_place(copy)..).zip(head.as_chunks::<4096>().0) {
                let now = self.half.block(address);
                if now == Some(good) {
                    continue;
                }
                let is_damage = self.is_acknowledged || now.is_none_or(|now| no_power_cut(now, good, address));
                if is_left_out {
                    let what = self.name("head");
                    self.report.remark(self.disk.place(address), format!("{what} is not whole"));
                } else {
                    self.bad_copy(self.disk.place(address), address, "head", good, is_damage);
                }
            }
        }
    }

    /// Every copy of every page that has a good one, or one that can be put right.
    fn pages(&mut self) {
        let objects = self.found.ops.iter().filter_map(|op| match op {
            Op::Write { id, fragments, .. } => Some(fragments.iter().map(|fragment| (*id, fragment.index))),
            _ => None,
        });
        for ((object, index), page) in objects.flatten().zip(self.half.pages(self.found)) {
            let is_good = |bytes: Option<&[u8; 4096]>| bytes.is_some_and(|bytes| crc64(bytes) == page.checksum);
            if page.copies.iter().all(|copy| is_good(copy.bytes)) {
                continue;
            }
            let good = match find_page(&page.copies, page.checksum, page.new) {
                Ok(PageBytes::At(address)) => self.half.block(address).copied(),
                Ok(PageBytes::Corrected(_, bytes)) => Some(bytes.0),
                Err(_) => None,
            };
            let Some(good) = good else { continue };
            for copy in page.copies.iter().filter(|copy| !is_good(copy.bytes)) {
                let may_be_torn =
                    page.copies.len() > 1 && copy.bytes.is_none_or(|now| is_torn(now, page.new, copy.old));
                let place = self.page_place(object, index, copy.address);
                self.bad_copy(place, copy.address, "page", &good, self.is_acknowledged || !may_be_torn);
            }
        }
    }

    fn bad_copy(&mut self, place: Place, address: u64, what: &str, good: &[u8; 4096], is_damage: bool) {
        let what = self.name(what);
        if is_damage {
            let repaired = self.disk.repair(address, good, &place);
            let what = format!("bad copy of {what}, which can be put right");
            self.report.add(Finding { kind: FindingKind::BadCopy, place, what, repaired });
        } else {
            self.report.remark(place, format!("a copy of {what} is not whole: {SPARE}"));
        }
    }

    fn name(&self, what: &str) -> String {
        let header = &self.found.header;
        format!("a {what} of batch {} of epoch {} of the intent log", header.sequence, header.epoch)
    }

    fn page_place(&self, object: ObjectId, index: PageIndex, address: u64) -> Place {
        let key = ObjectKey { domain: DomainId(self.found.header.domain), object };
        page_place(key, index, self.disk.place(address))
    }
}

/// The first block of a head is as no power cut leaves it: its first sector has been written, as it has the header, and is
/// damaged; or it is the head of another batch of these epochs, which never was in this place. Of other sectors it is not
/// known what they held before.
fn no_power_cut(now: &[u8; 4096], good: &[u8; 4096], address: u64) -> bool {
    let Ok((own, _)) = LogHeader::decode(good, address) else { return false };
    match LogHeader::decode_flipped(now, address).or_else(|_| LogHeader::decode_anywhere(now)) {
        Ok((header, _)) if header == own => now[..SECTOR_BYTES] != good[..SECTOR_BYTES],
        Ok((other, _)) => other.store == own.store && other.epoch.saturating_add(1) >= own.epoch,
        Err(_) => false,
    }
}

/// How many of each role have been told.
#[derive(Default)]
struct Numbers {
    heads: u64,
    pages: u64,
    placed: u64,
}

/// Tells the blocks of a batch, each with all its copies.
fn tell_blocks(found: &Found, blocks: u64, numbers: &mut Numbers, visit: &mut dyn FnMut(BlockUse)) {
    let header = &found.header;
    let mut tell = |role: BlockRole, index: &mut u64, copies: [Option<u64>; 2]| {
        for (copy, block) in (0..).zip(copies).filter_map(|(copy, block)| Some((copy, block?))) {
            visit(BlockUse { block, role, copy, object: None, kind: None, level: 0, index: *index, held: false });
        }
        *index += 1;
    };
    for at in 0..u64::from(header.head_blocks) {
        tell(BlockRole::LogHead, &mut numbers.heads, [Some(header.start + at), Some(header.copy_start() + at)]);
    }
    let first = header.start + u64::from(header.head_blocks);
    let mut second = first + writes(&found.ops).map(|fragments| fragments.len() as u64).sum::<u64>();
    let mut at = first;
    for (fragments, &twice) in writes(&found.ops).zip(&found.twice) {
        for _ in fragments {
            tell(BlockRole::LogPage, &mut numbers.pages, [Some(at), twice.then_some(second)]);
            at += 1;
            second += u64::from(twice);
        }
    }
    for op in &found.ops {
        let Op::Adopt { pages, .. } = op else { continue };
        for (_, placement) in pages {
            let block = |address: u64| Some(split_address(address).1).filter(|block| (1..blocks).contains(block));
            let copies = [block(placement.address), block(placement.address_2)];
            tell(BlockRole::LogPlaced, &mut numbers.placed, copies);
        }
    }
}
