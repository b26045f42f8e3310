//! Which blocks can be handed out, to whom, and since when again.
//!
//! A block is, seen from the epoch *e* that is being built:
//! - *free*: clear in `used`, can be handed out;
//! - *in use*: set in `used`;
//! - *pending*: set in `used` and in `pending`: freed in *e*. The last recovery point still needs it, so it is handed out
//!   only after *e* is published ([`Alloc::publish`]);
//! - *placed*: set in `used`, named in `placements`: written ahead for an epoch that may be later than *e*;
//! - *held*: set in `used` and in `held`: freed since a recovery point that somebody still reads ([`Alloc::hold`]). In memory only: a store
//!   that is opened anew has it free.
//!
//! Also a block that *e* itself wrote is not handed out again in *e*: its address and birth name its contents
//! ([`holdfast_object::BlockIdentity`]), and a reader or the intent log may know it by then.
//!
//! The bitmap that *e* writes is `used`, less pending, less placed, less held ([`Alloc::page`]). `touched` has the chunks where it may
//! differ from the one on the device.
//!
//! All are bits whose sums roll ([`crate::words`]). They are verified when a bitmap is put together from them, and the chunks that
//! blocks are handed out from (or discarded in) also when nobody has looked in this second, as what is written to a block that only
//! seemed free cannot be taken back. From what has gone bad nothing is handed out, and no bitmap is made: [`Alloc::scribble`].

use crate::bitmap::Bitmap;
use crate::format::{BITS, BlockPointer, LABEL_BLOCKS, LABELS};
use crate::guarded::{Counted, Doubled};
use crate::meta_block::Scribble;
use crate::words::{CHUNK_WORDS, Mask, Words, ones};
use holdfast_object::space::note_blocks;
use holdfast_object::{Clock, Epoch, Error, Purpose, Result};
use room::{Limits, Maybe, Placed, Reservation};
use rustc_hash::FxHashSet;
pub(crate) use scribble::Bits;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What a block is for: it decides where on the device it is looked for first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zone {
    /// Pages of regular files: anywhere outside the metadata zones, while there is room.
    Data,
    /// First or second copy of metadata: each in its zone, in its half of the device.
    Meta(usize),
}

/// Strings and runs from this length on, 256 KiB, are long: a device takes little longer for them than for one of twice the
/// length.
const LONG: u64 = 64;
/// Of [`Alloc::cursors`]: runs for data, gaps for data.
const RUNS: usize = 0;
const GAPS: usize = 3;

pub(crate) struct Alloc {
    used: Bitmap,
    /// Freed by the epoch being built.
    pending: Mask,
    placed: Mask,
    /// Freed since the recovery point that `holder` reads.
    held: Mask,
    /// Who reads it.
    holder: Option<u64>,
    /// For what they were written ahead: of each that is in `placed`.
    placements: BTreeMap<u64, Placed>,
    /// What somebody has written to who must not: the chunk, or none if it is a number.
    scribble: Option<(Option<u64>, Scribble)>,
    /// The bitmap of the last recovery point, to tell in which blocks one in memory differs: levels and root.
    stored: (u8, BlockPointer),
    clock: Arc<dyn Clock>,
    /// Blocks that the epoch being built has adopted.
    adopted: FxHashSet<u64>,
    touched: BTreeSet<u64>,
    reservations: BTreeMap<Epoch, Reservation>,
    /// Most blocks that a published epoch with reservations took beyond them, of the store's own only those above the margin.
    beyond_max: u64,
    total: Counted,
    limits: Limits,
    /// Of the clock, in seconds: when all blocks were last counted anew, as there was no room.
    counted_s: u32,
    /// Where the next search for data and for each copy of metadata begins; and for data that goes into gaps.
    cursors: [u64; 4],
    /// Searches for a whole free word have failed since blocks were last freed.
    no_whole: bool,
    /// Shortest length of which a search for a run, and for a gap, has failed since.
    no_run_of: Doubled,
    no_gap_of: Doubled,
    /// Lab only: freed blocks are handed out at once.
    reuse_at_once: bool,
}

/// Largest and smallest reserve, in blocks, for a store of `total`.
fn reserve_blocks(total: u64) -> u64 {
    (total / 32).max(128.min(total / 8))
}

/// See [`Alloc::margin`].
pub(crate) fn margin_of(total: u64) -> u64 {
    (total / 256).clamp(32, 4096)
}

/// Blocks that one removal may take under snapshots beyond what it writes anew: new levels of trees, the map of orphans.
const REMOVAL_BLOCKS: u64 = 64;

/// What the removal of everything may take when a snapshot keeps all of it, in a store with `used` blocks in use: the metadata that
/// leads to it anew, twice; a note of each block that goes away; and, for the deletion of a snapshot, its notes once more, as notes of
/// the one before it.
fn removal_blocks(kept: u64, used: u64) -> u64 {
    kept.saturating_mul(2).saturating_add(REMOVAL_BLOCKS + 2 * note_blocks(used))
}

/// What is kept back for removals: see [`Alloc::reserve_now`].
fn reserve_of(total: u64, kept: Option<u64>, free: u64) -> u64 {
    reserve_blocks(total) + kept.map_or(0, |kept| removal_blocks(kept, total.saturating_sub(free)))
}

impl Alloc {
    /// For a device of `blocks` blocks, with the labels and the intent log area in use.
    pub(crate) fn new(blocks: u64, log: Range<u64>, reuse_at_once: bool, clock: Arc<dyn Clock>) -> Alloc {
        let mut used = Bitmap::new(blocks);
        for range in fixed(blocks, &log) {
            used.set(range.start, range.end - range.start);
        }
        let total = used.free();
        let chunks = used.chunks();
        let mut alloc = Alloc {
            used,
            pending: Mask::default(),
            placed: Mask::default(),
            held: Mask::default(),
            holder: None,
            placements: BTreeMap::new(),
            scribble: None,
            stored: (0, BlockPointer::HOLE),
            clock,
            adopted: FxHashSet::default(),
            touched: BTreeSet::new(),
            reservations: BTreeMap::new(),
            beyond_max: 0,
            total: Counted::new(total),
            limits: Limits {
                set_aside: Doubled::new(0),
                quota: Maybe::new(None),
                kept: Maybe::new(None),
                log_blocks: Doubled::new(log.end - log.start),
            },
            counted_s: 0,
            cursors: [0; 4],
            no_whole: false,
            no_run_of: Doubled::new(u64::MAX),
            no_gap_of: Doubled::new(u64::MAX),
            reuse_at_once,
        };
        alloc.touched.insert(0);
        alloc.touched.extend(fixed(blocks, &log).map(|range| range.start / BITS));
        alloc.touched.insert(chunks - 1);
        alloc.cursors = [alloc.zone(0).end, alloc.zone(0).start, alloc.zone(1).start, alloc.zone(0).end];
        alloc
    }

    /// Bits are believed from now on, as nothing of the store's metadata is protected.
    pub(crate) fn believe(&mut self) {
        self.used.believe();
        self.pending.believe();
        self.placed.believe();
        self.held.believe();
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.used.chunks()
    }

    /// Takes over from the allocator of an epoch that is given up what is left of it: what was promised, what was written ahead, and the
    /// limits. This one has what the last recovery point uses.
    ///
    /// # Errors
    /// What was written ahead cannot be told.
    pub(crate) fn take_over(&mut self, old: &Alloc) -> std::result::Result<(), Scribble> {
        // Their number may have gone bad as well; the bits have sums of their own.
        let mut known = 0;
        for chunk in old.placed.chunks() {
            known += old.placed.words(chunk)?.map_or(0, |words| ones(&words));
        }
        Scribble::unless_equal("number of blocks written ahead", old.placements.len() as u64, known)?;
        for (&block, &placed) in &old.placements {
            let is_free = block < self.used.blocks() && !self.used.get(block);
            Scribble::unless_equal(
                "free block that was written ahead",
                u64::from(old.placed.contains(block)),
                u64::from(is_free),
            )?;
            self.used.set(block, 1);
            self.placed.insert(block);
            self.placements.insert(block, placed);
        }
        self.reservations = old.reservations.clone();
        for reservation in self.reservations.values_mut() {
            reservation.taken.set(0);
            reservation.own.set(0);
        }
        self.beyond_max = old.beyond_max;
        self.limits = Limits { kept: self.limits.kept.clone(), ..old.limits.clone() };
        Ok(())
    }

    /// Takes over a chunk of the bitmap on the device.
    pub(crate) fn load_chunk(&mut self, chunk: u64, words: impl Iterator<Item = u64>) {
        self.used.load_chunk(chunk, words);
    }

    /// After the last [`Alloc::load_chunk`]: the memory is as on the device. Gives the number of blocks that the bitmap
    /// should have had in use and did not: labels and log area.
    pub(crate) fn loaded(&mut self, log: &Range<u64>) -> u64 {
        self.touched.clear();
        let mut wrong = 0;
        for block in fixed(self.used.blocks(), log).flatten() {
            if !self.used.get(block) {
                self.used.set(block, 1);
                self.touched.insert(block / BITS);
                wrong += 1;
            }
        }
        wrong
    }

    /// Takes over the words of all chunks, from elsewhere than the bitmap on the device, which is to be written anew.
    pub(crate) fn load_all(&mut self, words: &[u64], log: &Range<u64>) {
        for (chunk, words) in (0..self.chunks()).zip(words.chunks(CHUNK_WORDS)) {
            self.load_chunk(chunk, words.iter().copied());
        }
        self.loaded(log);
        self.touched = (0..self.chunks()).filter(|&chunk| self.used.is_used(chunk)).collect();
    }

    /// The device has so many blocks now. Those of the labels at the old end are free at once: no recovery point names them.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let old = self.used.blocks();
        if blocks <= old {
            return;
        }
        let old_end = old - 2 * LABEL_BLOCKS;
        self.used.grow(blocks);
        self.used.clear(old_end, 2 * LABEL_BLOCKS);
        self.used.set(blocks - 2 * LABEL_BLOCKS, 2 * LABEL_BLOCKS);
        self.total += blocks - old;
        self.touched.extend([
            old_end / BITS,
            (old - 1) / BITS,
            (blocks - 2 * LABEL_BLOCKS) / BITS,
            (blocks - 1) / BITS,
        ]);
        self.search_anew();
        self.cursors[2] = self.zone(1).start;
    }

    /// What searches have not found may be there by now.
    fn search_anew(&mut self) {
        self.no_whole = false;
        self.no_run_of.set(u64::MAX);
        self.no_gap_of.set(u64::MAX);
    }

    /// Blocks below which data is refused: what metadata may still need to finish an epoch.
    fn margin(&self) -> u64 {
        margin_of(self.total())
    }

    /// With so many free blocks. 0 if the counts have gone bad, which shows when they are verified.
    fn in_use(&self, free: u64) -> u64 {
        self.total().saturating_sub(free)
    }

    /// What is kept back for removals, with so much metadata kept by the newest snapshot, and so many free blocks.
    fn reserve_now(&self, kept: Option<u64>, free: u64) -> u64 {
        reserve_of(self.total(), kept, free)
    }

    /// See [`Limits::kept`].
    pub(crate) fn set_kept(&mut self, kept: Option<u64>) {
        self.limits.kept = Maybe::new(kept);
    }

    /// What a store keeps back for privileged users, and how much of it may be in use.
    pub(crate) fn set_limits(&mut self, set_aside: u64, quota: Option<u64>) {
        self.limits.set_aside.set(set_aside.min(self.total() / 2));
        self.limits.quota = Maybe::new(quota);
    }

    /// `Err` if there would be too little room for removing everything, were there a snapshot that keeps so much metadata.
    pub(crate) fn check_kept(&mut self, kept: u64) -> Result<()> {
        self.check_and_give_way(|alloc, free| {
            let (needed, available) = (alloc.reserve_now(Some(kept), free), free.saturating_sub(alloc.reserved()));
            if needed > available { Err(Error::NoSpace { needed, available }) } else { Ok(()) }
        })
    }

    fn reserved(&self) -> u64 {
        self.reservations.values().map(Reservation::left).sum()
    }

    /// Free blocks as the epoch being built will have them.
    pub(crate) fn free_after_publish(&self) -> u64 {
        // What has gone bad shows when it is verified.
        let apart = [&self.pending, &self.placed, &self.held].map(Mask::count);
        apart.into_iter().fold(self.used.free(), u64::wrapping_add)
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.get()
    }

    /// The same, by the device.
    fn blocks_in_all(&self) -> u64 {
        self.used.blocks() - LABELS as u64 * LABEL_BLOCKS - self.limits.log_blocks.get()
    }

    /// The same, to be verified.
    pub(crate) fn counted_total(&self) -> &Counted {
        &self.total
    }

    // ---- reservations

    pub(crate) fn reserve(&mut self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()> {
        let check = |alloc: &Alloc, free| alloc.check_room(blocks, purpose, free);
        match self.check_and_give_way(check) {
            // Nothing is refused for counts that have gone bad.
            Err(_) if self.put_counts_right() => self.check_and_give_way(check)?,
            outcome => outcome?,
        }
        self.reservations.entry(epoch).or_default().reserved.add(blocks);
        Ok(())
    }

    /// Counts all blocks and the free ones anew, from what is verified, if nobody has in this second. Whether they were wrong: the epoch is to
    /// be given up then.
    fn put_counts_right(&mut self) -> bool {
        let now_s = self.now_s();
        if self.used.is_believed() || std::mem::replace(&mut self.counted_s, now_s) == now_s {
            return false;
        }
        let total = self.blocks_in_all();
        let counted = Scribble::unless_equal("number of all blocks", total, self.total.get());
        self.total = Counted::new(total);
        let free = self.used.recount();
        match counted.and(free) {
            Ok(()) => false,
            Err(scribble) => {
                self.note_scribble(None, scribble);
                true
            }
        }
    }

    fn check_room(&self, blocks: u64, purpose: Purpose, free: u64) -> Result<()> {
        let keep = match purpose {
            Purpose::Ordinary => self.reserve_now(self.limits.kept.get(), free) + self.limits.set_aside.get(),
            Purpose::Privileged => self.reserve_now(self.limits.kept.get(), free),
            Purpose::Release => self.margin(),
        };
        let reserved = self.reserved();
        if let Some(quota) = self.limits.quota.get().filter(|_| purpose != Purpose::Release) {
            let available = quota.saturating_sub(self.in_use(free)).saturating_sub(reserved);
            if blocks > available {
                return Err(Error::OverQuota { needed: blocks, available });
            }
        }
        let available = free.saturating_sub(reserved).saturating_sub(keep);
        if blocks > available {
            return Err(Error::NoSpace { needed: blocks, available });
        }
        Ok(())
    }

    fn consume(&mut self, epoch: Epoch, blocks: u64) {
        if let Some(reservation) = self.reservations.get_mut(&epoch) {
            reservation.taken.add(blocks);
        }
    }

    /// Of the blocks that `epoch` has taken, so many are the store's own: see [`Reservation`].
    pub(crate) fn note_own(&mut self, epoch: Epoch, blocks: u64) {
        if let Some(reservation) = self.reservations.get_mut(&epoch) {
            reservation.own.add(blocks);
        }
    }

    /// Most blocks that a published epoch with reservations took beyond them, of the store's own only those above the margin,
    /// which is kept for them.
    pub(crate) fn beyond_max(&self) -> u64 {
        self.beyond_max
    }

    // ---- handing out

    fn mid(&self) -> u64 {
        self.used.blocks() / 2
    }

    /// The zone of a copy of metadata.
    fn zone(&self, copy: usize) -> Range<u64> {
        let start = if copy == 0 { 2 * LABEL_BLOCKS } else { self.mid() };
        start..start + (self.used.blocks() / 32).max(16)
    }

    /// A run of at most `want` blocks for `epoch`; `None` if there is nothing for this zone.
    pub(crate) fn allocate(&mut self, epoch: Epoch, zone: Zone, want: u64) -> Option<(u64, u64)> {
        let want = self.allowed(zone, want)?;
        let (cursor, regions) = self.regions(zone);
        let run = self.search(cursor, &regions, want)?;
        self.take(epoch, cursor, run).then_some(run)
    }

    /// As much of `want` as there may be.
    fn allowed(&self, zone: Zone, want: u64) -> Option<u64> {
        let allowed = match zone {
            Zone::Data => want.min(self.used.free().saturating_sub(self.margin())),
            Zone::Meta(_) => want,
        };
        (allowed > 0).then_some(allowed)
    }

    /// The cursor of a zone, and where it is looked for, in order.
    fn regions(&self, zone: Zone) -> (usize, [Range<u64>; 5]) {
        let (a, b) = (self.zone(0), self.zone(1));
        let end = self.used.blocks();
        match zone {
            Zone::Data => (RUNS, [0..a.start, a.end..b.start, b.end..end, a, b]),
            Zone::Meta(0) => (1, [a, 0..self.mid(), self.mid()..end, 0..0, 0..0]),
            Zone::Meta(_) => (2, [b, self.mid()..end, 0..self.mid(), 0..0, 0..0]),
        }
    }

    /// `false`: not from there.
    fn take(&mut self, epoch: Epoch, cursor: usize, run: (u64, u64)) -> bool {
        if !self.look(run) {
            return false;
        }
        self.used.set(run.0, run.1);
        self.touched.extend(run.0 / BITS..=(run.0 + run.1 - 1) / BITS);
        self.cursors[cursor] = run.0 + run.1;
        self.consume(epoch, run.1);
        true
    }

    /// Whether what the bits say of a run of blocks can be believed.
    fn look(&mut self, run: (u64, u64)) -> bool {
        if self.used.is_believed() {
            return true;
        }
        match self.used.look(run.0, run.1, self.now_s()) {
            Ok(()) => true,
            Err((chunk, scribble)) => {
                self.note_scribble(chunk, scribble);
                false
            }
        }
    }

    /// Verifies all that the bits say.
    pub(crate) fn look_at_all(&mut self) {
        self.look((0, self.used.blocks()));
    }

    fn now_s(&self) -> u32 {
        (self.clock.monotonic_ms() / 1000) as u32
    }

    fn note_scribble(&mut self, chunk: impl Into<Option<u64>>, scribble: Scribble) {
        self.scribble.get_or_insert((chunk.into(), scribble));
    }

    /// What somebody has written to who must not, if it has been noticed: the epoch being built is to be given up. The chunk, or none if it is a number.
    pub(crate) fn scribble(&self) -> Option<(Option<u64>, Scribble)> {
        self.scribble
    }

    /// Blocks for pages of regular files, which come in `strings`: so many neighbours in a file each. All or none.
    ///
    /// While more than half of the device is free, all go into one run. Later, what is written together but does not belong
    /// together would be deleted at different times, and leave gaps that get smaller and smaller. Then a long string takes a run
    /// that is long enough, if there is one, and short ones fill gaps, as long as there are any.
    pub(crate) fn allocate_strings(&mut self, epoch: Epoch, strings: &[u64]) -> Result<Vec<u64>> {
        let count = strings.iter().sum();
        if self.used.free() > self.total() / 2 {
            return self.allocate_many(epoch, Zone::Data, count);
        }
        let mut blocks = Vec::with_capacity(count as usize);
        for &string in strings {
            let mut left = string;
            while left > 0 {
                let Some((first, length)) = self.allocate_fit(epoch, left) else {
                    if self.give_up_held() {
                        continue;
                    }
                    return Err(self.no_space(count, &blocks));
                };
                blocks.extend(first..first + length);
                left -= length;
            }
        }
        Ok(blocks)
    }

    /// A run for data, as long as `want` if there is one.
    fn allocate_fit(&mut self, epoch: Epoch, want: u64) -> Option<(u64, u64)> {
        let want = self.allowed(Zone::Data, want)?;
        let (_, regions) = self.regions(Zone::Data);
        if want < LONG.min(self.no_gap_of.get()) {
            if let Some(run) = self.fit(GAPS, &regions, want, want, Some(LONG)) {
                return self.take(epoch, GAPS, run).then_some(run);
            }
            self.no_gap_of.set(want);
        }
        let cursor = if want < LONG { GAPS } else { RUNS };
        let mut least = want;
        loop {
            if least < self.no_run_of.get() {
                if let Some(run) = self.fit(cursor, &regions, least, want, None) {
                    return self.take(epoch, cursor, run).then_some(run);
                }
                self.no_run_of.set(least);
            }
            if least <= 1 {
                return None;
            }
            least = (least / 4).max(1);
        }
    }

    /// From the cursor on within its region, then the regions in order, then the start of the cursor's region.
    fn fit(
        &self,
        cursor: usize,
        regions: &[Range<u64>],
        least: u64,
        most: u64,
        below: Option<u64>,
    ) -> Option<(u64, u64)> {
        let at = self.cursors[cursor];
        let find = |from, to| self.used.find_fit(from, to, least, most, below);
        let own = regions.iter().find(|region| region.contains(&at));
        own.and_then(|region| find(at, region.end))
            .or_else(|| regions.iter().find_map(|region| find(region.start, region.end)))
    }

    fn search(&mut self, cursor: usize, regions: &[Range<u64>], want: u64) -> Option<(u64, u64)> {
        if want >= 64 && !self.no_whole {
            if let Some(run) = self.search_for(cursor, regions, want, true) {
                return Some(run);
            }
            self.no_whole = true;
        }
        self.search_for(cursor, regions, want, false)
    }

    /// From the cursor on within its region, then the regions in order, then the start of the cursor's region.
    fn search_for(&self, cursor: usize, regions: &[Range<u64>], want: u64, whole: bool) -> Option<(u64, u64)> {
        let at = self.cursors[cursor];
        let own = regions.iter().find(|region| region.contains(&at));
        own.and_then(|region| self.used.find(at, region.end, want, whole))
            .or_else(|| regions.iter().find_map(|region| self.used.find(region.start, region.end, want, whole)))
    }

    /// Blocks for `zone`, `count` of them, in runs; all or none.
    pub(crate) fn allocate_many(&mut self, epoch: Epoch, zone: Zone, count: u64) -> Result<Vec<u64>> {
        let mut blocks = Vec::with_capacity(count as usize);
        while (blocks.len() as u64) < count {
            let Some((first, length)) = self.allocate(epoch, zone, count - blocks.len() as u64) else {
                if self.give_up_held() {
                    continue;
                }
                return Err(self.no_space(count, &blocks));
            };
            blocks.extend(first..first + length);
        }
        Ok(blocks)
    }

    /// There are not `needed` blocks, only these, which are taken back. If that is so for counts that have gone bad, the epoch is to be given
    /// up.
    fn no_space(&mut self, needed: u64, blocks: &[u64]) -> Error {
        self.cancel(blocks);
        self.put_counts_right();
        Error::NoSpace { needed, available: blocks.len() as u64 }
    }

    /// Takes back blocks that were handed out and that nothing has named since.
    pub(crate) fn cancel(&mut self, blocks: &[u64]) {
        for &block in blocks {
            self.placements.remove(&block);
            self.placed.remove(block);
            if self.is_marked(block) {
                self.used.clear(block, 1);
            }
        }
    }

    /// Whether a block that is in use looks so; if not, it is the bit that has gone bad.
    fn is_marked(&mut self, block: u64) -> bool {
        let is_marked = self.used.get(block);
        if !is_marked && let Err(scribble) = self.used.chunk(block / BITS) {
            self.note_scribble(block / BITS, scribble);
        }
        is_marked
    }

    /// The first run of free blocks, at most `most` of them, in a range.
    pub(crate) fn free_run(&mut self, within: Range<u64>, most: u64) -> Option<(u64, u64)> {
        let run = self.used.find(within.start, within.end.min(self.used.blocks()), most, false)?;
        self.look(run).then_some(run)
    }

    // ---- giving back

    /// The epoch being built needs the block no more. Freeing a block twice, which only a damaged tree can ask for, is
    /// refused.
    pub(crate) fn free(&mut self, block: u64) -> bool {
        let chunk = block / BITS;
        if block >= self.used.blocks() {
            return false;
        }
        if !self.is_marked(block) || self.placed.contains(block) || self.held.contains(block) {
            return false;
        }
        if self.reuse_at_once {
            self.used.clear(block, 1);
        } else if !self.pending.insert(block) {
            return false;
        }
        self.touched.insert(chunk);
        true
    }

    /// What the epoch being built has freed so far, as runs in ascending order.
    pub(crate) fn pending_runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for chunk in self.pending.chunks() {
            // What has gone bad shows when it is published.
            let words = self.pending.words(chunk).ok().flatten().unwrap_or([0; CHUNK_WORDS]);
            for (at, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
                for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                    let block = chunk * BITS + at as u64 * 64 + bit;
                    match runs.last_mut() {
                        Some(run) if run.end == block => run.end += 1,
                        _ => runs.push(block..block + 1),
                    }
                }
            }
        }
        runs
    }

    /// The epoch is a recovery point: what it freed can be handed out, or is held. What has gone bad since it was written stays in use, and is
    /// noticed ([`Alloc::scribble`]).
    pub(crate) fn publish(&mut self, epoch: Epoch) {
        let chunks: Vec<u64> = self.pending.chunks().collect();
        for chunk in chunks {
            match self.used.chunk(chunk).and_then(|_| self.pending.words(chunk)) {
                Ok(mask) => self.put_back(chunk, &mask.unwrap_or([0; CHUNK_WORDS])),
                Err(scribble) => self.note_scribble(chunk, scribble),
            }
        }
        self.pending.clear();
        self.adopted.clear();
        self.search_anew();
        let later = self.reservations.split_off(&(epoch + 1));
        let over = std::mem::replace(&mut self.reservations, later);
        let margin = self.margin();
        self.beyond_max = over.values().map(|over| over.beyond(margin)).fold(self.beyond_max, u64::max);
    }

    // ---- placements

    /// Notes blocks that were handed out as written ahead for `epoch`.
    pub(crate) fn place(&mut self, epoch: Epoch, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            debug_assert!(self.used.get(block));
            self.placed.insert(block);
            self.placements.insert(block, Placed::new(epoch, true));
        }
    }

    /// Takes a block that the intent log names, before anything else can have it. `false`: it is in use already.
    pub(crate) fn claim(&mut self, epoch: Epoch, block: u64) -> bool {
        if block >= self.used.blocks() {
            return false;
        }
        if self.used.get(block) {
            return self.placed.contains(block);
        }
        self.used.set(block, 1);
        self.place(epoch, [block]);
        true
    }

    /// No operation will adopt it. The intent log may name it all the same, so it stays unusable until its epoch is
    /// published.
    pub(crate) fn unplace(&mut self, block: u64) {
        if let Some(placed) = self.placements.get_mut(&block) {
            *placed = Placed::new(placed.epoch(), false);
        }
    }

    pub(crate) fn is_placed(&self, block: u64) -> bool {
        self.placed.contains(block) && self.placements.get(&block).is_some_and(|placed| placed.is_wanted())
    }

    /// Whether a page of the epoch being built may name the block: it was placed, or was adopted in this epoch already and
    /// freed again since (a batch that is applied once more).
    pub(crate) fn is_adoptable(&self, block: u64) -> bool {
        self.is_placed(block) || self.adopted.contains(&block) && self.pending.contains(block)
    }

    /// An adoptable block becomes one of the epoch being built.
    pub(crate) fn adopt(&mut self, block: u64) {
        self.placements.remove(&block);
        if !self.placed.remove(block) {
            self.pending.remove(block);
        }
        self.adopted.insert(block);
        self.touched.insert(block / BITS);
    }

    /// Placements for epochs up to `epoch` that nothing adopted are freed with it.
    pub(crate) fn settle(&mut self, epoch: Epoch) {
        let over: Vec<u64> =
            self.placements.iter().filter(|(_, placed)| placed.epoch() <= epoch).map(|(&block, _)| block).collect();
        for block in over {
            self.placements.remove(&block);
            if self.placed.remove(block) {
                self.free(block);
            }
        }
    }

    // ---- the bitmap on the device

    /// Chunks whose block of the bitmap may have changed since [`Alloc::clear_touched`].
    pub(crate) fn touched(&self) -> &BTreeSet<u64> {
        &self.touched
    }

    /// The bitmap has been brought up to date.
    pub(crate) fn clear_touched(&mut self) {
        self.touched.clear();
    }

    /// The words of a chunk as the epoch being built stores them, put together from what is verified.
    ///
    /// # Errors
    /// Somebody has written to them who must not.
    pub(crate) fn page(&self, chunk: u64) -> std::result::Result<Words, Scribble> {
        let mut words = self.used.chunk(chunk)?;
        let apart = [self.pending.words(chunk)?, self.placed.words(chunk)?, self.held.words(chunk)?];
        for mask in apart.iter().flatten() {
            words.iter_mut().zip(mask).for_each(|(word, mask)| *word &= !mask);
        }
        Ok(words)
    }

    /// Whether the numbers agree that the superblock is made from, and the placements with their bits.
    ///
    /// # Errors
    /// They do not.
    pub(crate) fn verify_counts(&self) -> std::result::Result<(), Scribble> {
        self.used.verify_free()?;
        self.pending.counted().verified("number of blocks freed")?;
        self.placed.counted().verified("number of blocks written ahead")?;
        self.held.counted().verified("number of blocks held back")?;
        self.verify_placements()
    }

    /// Whether blocks that were written ahead are those whose bits say so.
    fn verify_placements(&self) -> std::result::Result<(), Scribble> {
        let (bits, blocks) = (self.placed.count(), self.placements.len() as u64);
        Scribble::unless_equal("number of blocks written ahead", blocks, bits)?;
        let same = self.placements.keys().filter(|block| self.placed.contains(**block)).count();
        Scribble::unless_equal("number of blocks written ahead whose bits say so", blocks, same as u64)
    }
}

/// Blocks that never hold anything else: labels and the intent log area.
pub(crate) fn fixed(blocks: u64, log: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    [0..2 * LABEL_BLOCKS, log.clone(), blocks - 2 * LABEL_BLOCKS..blocks].into_iter()
}

mod differs;
mod held;
mod room;
mod scribble;
#[cfg(test)]
mod tests;
mod told;
