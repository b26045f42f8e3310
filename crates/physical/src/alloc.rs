//! Which blocks can be handed out, to whom, and since when again.
//!
//! A block is, seen from the epoch *e* that is being built:
//! - *free*: clear in `used`, can be handed out;
//! - *in use*: set in `used`;
//! - *pending*: set in `used` and in `pending`: freed in *e*. The last recovery point still needs it, so it is handed out
//!   only after *e* is published ([`Alloc::publish`]);
//! - *placed*: set in `used`, named in `placements`: written ahead for an epoch that may be later than *e*.
//!
//! Also a block that *e* itself wrote is not handed out again in *e*: its address and birth name its contents
//! ([`holdfast_object::BlockIdentity`]), and a reader or the intent log may know it by then.
//!
//! The bitmap that *e* writes is `used`, less pending, less placed ([`Alloc::page`]). `touched` has the chunks where it may
//! differ from the one on the device.

use crate::bitmap::{Bitmap, CHUNK_WORDS};
use crate::format::{BITS, LABEL_BLOCKS};
use holdfast_object::{Epoch, Error, Purpose, Result, Space};
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a block is for: it decides where on the device it is looked for first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zone {
    /// Pages of regular files: anywhere outside the metadata zones, while there is room.
    Data,
    /// First or second copy of metadata: each in its zone, in its half of the device.
    Meta(usize),
}

/// What an epoch was promised, and what it has taken.
#[derive(Clone, Copy, Default, Debug)]
struct Reservation {
    reserved: u64,
    taken: u64,
    /// Of these, for the bitmap, the object table of domain 0 and the reference table. Nobody reserves the former, and the
    /// latter only for what copies add to it, not for what overwriting shared pages takes off: they come out of the reserve.
    own: u64,
}

impl Reservation {
    fn left(&self) -> u64 {
        self.reserved.saturating_sub(self.taken)
    }

    /// Blocks taken beyond the promise, of the store's own only those above `margin`.
    fn beyond(&self, margin: u64) -> u64 {
        self.taken.saturating_sub(self.own.min(margin)).saturating_sub(self.reserved)
    }
}

/// State of a block that was written ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    epoch: Epoch,
    wanted: bool,
}

pub(crate) struct Alloc {
    used: Bitmap,
    /// Freed by the epoch being built: bits by chunk.
    pending: BTreeMap<u64, Box<[u64; CHUNK_WORDS]>>,
    pending_count: u64,
    placements: BTreeMap<u64, Placed>,
    /// Blocks that the epoch being built has adopted.
    adopted: FxHashSet<u64>,
    touched: BTreeSet<u64>,
    reservations: BTreeMap<Epoch, Reservation>,
    /// Most blocks that a published epoch with reservations took beyond them, of the store's own only those above the margin.
    beyond_max: u64,
    total: u64,
    /// Where the next search for data and for each copy of metadata begins.
    cursors: [u64; 3],
    /// Searches for a whole free word have failed since blocks were last freed.
    no_whole: bool,
    /// Lab only: freed blocks are handed out at once.
    reuse_at_once: bool,
}

/// Largest and smallest reserve, in blocks, for a store of `total`.
fn reserve_blocks(total: u64) -> u64 {
    (total / 32).max(128.min(total / 8))
}

impl Alloc {
    /// For a device of `blocks` blocks, with the labels and the intent log area in use.
    pub(crate) fn new(blocks: u64, log: Range<u64>, reuse_at_once: bool) -> Alloc {
        let mut used = Bitmap::new(blocks);
        for range in fixed(blocks, &log) {
            used.set(range.start, range.end - range.start);
        }
        let total = used.free();
        let chunks = used.chunks();
        let mut alloc = Alloc {
            used,
            pending: BTreeMap::new(),
            pending_count: 0,
            placements: BTreeMap::new(),
            adopted: FxHashSet::default(),
            touched: BTreeSet::new(),
            reservations: BTreeMap::new(),
            beyond_max: 0,
            total,
            cursors: [0; 3],
            no_whole: false,
            reuse_at_once,
        };
        alloc.touched.insert(0);
        alloc.touched.extend(fixed(blocks, &log).map(|range| range.start / BITS));
        alloc.touched.insert(chunks - 1);
        alloc.cursors = [alloc.zone(0).end, alloc.zone(0).start, alloc.zone(1).start];
        alloc
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.used.chunks()
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
        let used = &self.used;
        self.touched = (0..used.chunks()).filter(|&chunk| used.chunk(chunk).iter().any(|&word| word != 0)).collect();
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
        self.no_whole = false;
        self.cursors[2] = self.zone(1).start;
    }

    /// Blocks below which data is refused: what metadata may still need to finish an epoch.
    fn margin(&self) -> u64 {
        (self.total / 256).clamp(32, 4096)
    }

    pub(crate) fn space(&self) -> Space {
        Space {
            total: self.total,
            free: self.used.free(),
            pending: self.pending_count,
            reserve: reserve_blocks(self.total).min(self.used.free()),
            reserved: self.reservations.values().map(Reservation::left).sum(),
        }
    }

    /// Free blocks as the epoch being built will have them.
    pub(crate) fn free_after_publish(&self) -> u64 {
        self.used.free() + self.pending_count + self.placements.len() as u64
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    // ---- reservations

    pub(crate) fn reserve(&mut self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()> {
        let keep = match purpose {
            Purpose::Ordinary => reserve_blocks(self.total),
            Purpose::Release => self.margin(),
        };
        let reserved: u64 = self.reservations.values().map(Reservation::left).sum();
        let available = self.used.free().saturating_sub(reserved).saturating_sub(keep);
        if blocks > available {
            return Err(Error::NoSpace { needed: blocks, available });
        }
        self.reservations.entry(epoch).or_default().reserved += blocks;
        Ok(())
    }

    fn consume(&mut self, epoch: Epoch, blocks: u64) {
        if let Some(reservation) = self.reservations.get_mut(&epoch) {
            reservation.taken += blocks;
        }
    }

    /// Of the blocks that `epoch` has taken, so many are the store's own: see [`Reservation`].
    pub(crate) fn note_own(&mut self, epoch: Epoch, blocks: u64) {
        if let Some(reservation) = self.reservations.get_mut(&epoch) {
            reservation.own += blocks;
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
        let want = match zone {
            Zone::Data => want.min(self.used.free().saturating_sub(self.margin())),
            Zone::Meta(_) => want,
        };
        if want == 0 {
            return None;
        }
        let (a, b) = (self.zone(0), self.zone(1));
        let end = self.used.blocks();
        let (cursor, regions) = match zone {
            Zone::Data => (0, [0..a.start, a.end..b.start, b.end..end, a, b]),
            Zone::Meta(0) => (1, [a, 0..self.mid(), self.mid()..end, 0..0, 0..0]),
            Zone::Meta(_) => (2, [b, self.mid()..end, 0..self.mid(), 0..0, 0..0]),
        };
        let run = self.search(cursor, &regions, want)?;
        self.used.set(run.0, run.1);
        self.touched.extend(run.0 / BITS..=(run.0 + run.1 - 1) / BITS);
        self.cursors[cursor] = run.0 + run.1;
        self.consume(epoch, run.1);
        Some(run)
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
                let available = blocks.len() as u64;
                self.cancel(&blocks);
                return Err(Error::NoSpace { needed: count, available });
            };
            blocks.extend(first..first + length);
        }
        Ok(blocks)
    }

    /// Takes back blocks that were handed out and that nothing has named since.
    pub(crate) fn cancel(&mut self, blocks: &[u64]) {
        for &block in blocks {
            self.placements.remove(&block);
            self.used.clear(block, 1);
        }
    }

    /// The first run of free blocks, at most `most` of them, at or behind `from`.
    pub(crate) fn free_run(&self, from: u64, most: u64) -> Option<(u64, u64)> {
        self.used.find(from, self.used.blocks(), most, false)
    }

    // ---- giving back

    /// The epoch being built needs the block no more. Freeing a block twice, which only a damaged tree can ask for, is
    /// refused.
    pub(crate) fn free(&mut self, block: u64) -> bool {
        let chunk = block / BITS;
        if block >= self.used.blocks() || !self.used.get(block) || self.placements.contains_key(&block) {
            return false;
        }
        if self.reuse_at_once {
            self.used.clear(block, 1);
            self.touched.insert(chunk);
            return true;
        }
        let words = self.pending.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        let (word, bit) = ((block % BITS / 64) as usize, 1u64 << (block % 64));
        if words[word] & bit != 0 {
            return false;
        }
        words[word] |= bit;
        self.pending_count += 1;
        self.touched.insert(chunk);
        true
    }

    /// The epoch is a recovery point: what it freed can be handed out.
    pub(crate) fn publish(&mut self, epoch: Epoch) {
        for (chunk, mask) in std::mem::take(&mut self.pending) {
            self.used.clear_mask(chunk, &mask);
        }
        self.pending_count = 0;
        self.adopted.clear();
        self.no_whole = false;
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
            self.placements.insert(block, Placed { epoch, wanted: true });
        }
    }

    /// Takes a block that the intent log names, before anything else can have it. `false`: it is in use already.
    pub(crate) fn claim(&mut self, epoch: Epoch, block: u64) -> bool {
        if block >= self.used.blocks() {
            return false;
        }
        if self.used.get(block) {
            return self.placements.contains_key(&block);
        }
        self.used.set(block, 1);
        self.place(epoch, [block]);
        true
    }

    /// No operation will adopt it. The intent log may name it all the same, so it stays unusable until its epoch is
    /// published.
    pub(crate) fn unplace(&mut self, block: u64) {
        if let Some(placed) = self.placements.get_mut(&block) {
            placed.wanted = false;
        }
    }

    pub(crate) fn is_placed(&self, block: u64) -> bool {
        self.placements.get(&block).is_some_and(|placed| placed.wanted)
    }

    /// Whether a page of the epoch being built may name the block: it was placed, or was adopted in this epoch already and
    /// freed again since (a batch that is applied once more).
    pub(crate) fn is_adoptable(&self, block: u64) -> bool {
        self.is_placed(block) || self.adopted.contains(&block) && self.is_pending(block)
    }

    fn is_pending(&self, block: u64) -> bool {
        let words = self.pending.get(&(block / BITS));
        words.is_some_and(|words| words[(block % BITS / 64) as usize] >> (block % 64) & 1 == 1)
    }

    /// An adoptable block becomes one of the epoch being built.
    pub(crate) fn adopt(&mut self, block: u64) {
        if self.placements.remove(&block).is_none()
            && self.is_pending(block)
            && let Some(words) = self.pending.get_mut(&(block / BITS))
        {
            words[(block % BITS / 64) as usize] &= !(1 << (block % 64));
            self.pending_count -= 1;
        }
        self.adopted.insert(block);
        self.touched.insert(block / BITS);
    }

    /// Placements for epochs up to `epoch` that nothing adopted are freed with it.
    pub(crate) fn settle(&mut self, epoch: Epoch) {
        let over: Vec<u64> =
            self.placements.iter().filter(|(_, placed)| placed.epoch <= epoch).map(|(&block, _)| block).collect();
        for block in over {
            self.placements.remove(&block);
            self.free(block);
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

    /// The words of a chunk as the epoch being built stores them.
    pub(crate) fn page(&self, chunk: u64) -> [u64; CHUNK_WORDS] {
        let mut words = [0; CHUNK_WORDS];
        words.copy_from_slice(self.used.chunk(chunk));
        if let Some(pending) = self.pending.get(&chunk) {
            for (word, pending) in words.iter_mut().zip(pending.iter()) {
                *word &= !pending;
            }
        }
        for (&block, _) in self.placements.range(chunk * BITS..(chunk + 1) * BITS) {
            words[(block % BITS / 64) as usize] &= !(1 << (block % 64));
        }
        words
    }
}

/// Blocks that never hold anything else: labels and the intent log area.
pub(crate) fn fixed(blocks: u64, log: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    [0..2 * LABEL_BLOCKS, log.clone(), blocks - 2 * LABEL_BLOCKS..blocks].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc() -> Alloc {
        Alloc::new(8192, 32..160, false)
    }

    #[test]
    fn freed_blocks_wait_for_the_recovery_point() {
        let mut alloc = alloc();
        let all = alloc.space().free;
        let blocks = alloc.allocate_many(2, Zone::Data, all - alloc.margin()).unwrap();
        assert!(alloc.allocate(2, Zone::Data, 1).is_none());
        for &block in &blocks[..100] {
            assert!(alloc.free(block));
            assert!(!alloc.free(block), "only once");
        }
        assert_eq!(alloc.space().pending, 100);
        assert!(alloc.allocate(2, Zone::Data, 1).is_none());
        assert_eq!(alloc.page(0)[(blocks[0] / 64) as usize] >> (blocks[0] % 64) & 1, 0, "free in this epoch's bitmap");
        alloc.publish(2);
        assert_eq!(alloc.allocate_many(3, Zone::Data, 100).unwrap().len(), 100);
        alloc.used.check();
    }

    #[test]
    fn what_grows_has_its_labels_at_the_new_end() {
        for blocks in [8192 + 32, 8192 + 33, BITS, BITS + 5, 5 * BITS - 1] {
            let mut alloc = alloc();
            let before = alloc.space();
            alloc.clear_touched();
            alloc.grow(blocks);
            alloc.used.check();
            let (after, fresh) = (alloc.space(), Alloc::new(blocks, 32..160, false));
            assert_eq!((after.total, after.free), (fresh.total, fresh.used.free()), "{blocks}");
            assert_eq!(after.free - before.free, blocks - 8192);
            for chunk in 0..alloc.chunks() {
                assert_eq!(alloc.page(chunk), fresh.page(chunk), "{blocks}");
                // What is not written is a hole, and that is a chunk of free blocks.
                assert!(alloc.touched().contains(&chunk) || alloc.page(chunk) == [0; CHUNK_WORDS], "{blocks}: {chunk}");
            }
        }
    }

    #[test]
    fn copies_of_metadata_are_apart() {
        let mut alloc = alloc();
        let first = alloc.allocate_many(2, Zone::Meta(0), 100).unwrap();
        let second = alloc.allocate_many(2, Zone::Meta(1), 100).unwrap();
        assert!(first.iter().zip(&second).all(|(a, b)| b - a > 3000));
        let (_, length) = alloc.allocate(2, Zone::Data, 1000).unwrap();
        assert_eq!(length, 1000, "data in one run beside them");
    }

    #[test]
    fn placed_blocks_belong_to_no_bitmap_until_adopted() {
        let mut alloc = alloc();
        let blocks = alloc.allocate_many(3, Zone::Data, 3).unwrap();
        alloc.place(3, blocks.clone());
        let bit = |alloc: &Alloc, block: u64| alloc.page(0)[(block / 64) as usize] >> (block % 64) & 1;
        alloc.clear_touched();
        alloc.settle(2);
        assert_eq!(blocks.iter().map(|&block| bit(&alloc, block)).sum::<u64>(), 0);
        alloc.adopt(blocks[0]);
        alloc.unplace(blocks[1]);
        assert!(!alloc.is_placed(blocks[0]) && !alloc.is_placed(blocks[1]) && alloc.is_placed(blocks[2]));
        alloc.settle(3);
        assert_eq!(blocks.iter().map(|&block| bit(&alloc, block)).collect::<Vec<_>>(), [1, 0, 0]);
        assert!(alloc.touched().contains(&0));
        assert_eq!(alloc.space().pending, 2);
    }

    #[test]
    fn reservations_keep_the_reserve() {
        let mut alloc = alloc();
        let space = alloc.space();
        let most = space.free - space.reserve;
        assert!(alloc.reserve(2, most + 1, Purpose::Ordinary).is_err());
        alloc.reserve(2, most, Purpose::Ordinary).unwrap();
        assert!(alloc.reserve(3, 1, Purpose::Ordinary).is_err());
        alloc.reserve(3, 10, Purpose::Release).unwrap();
        alloc.publish(2);
        assert_eq!(alloc.space().reserved, 10);
        alloc.reserve(3, 100, Purpose::Ordinary).unwrap();
    }

    #[test]
    fn what_goes_beyond_the_reservation_is_counted() {
        let mut alloc = alloc();
        for (epoch, taken, own, beyond) in [(2, 10, 0, 0), (3, 14, 4, 0), (4, 13, 0, 3), (5, 2, 0, 3), (6, 50, 40, 8)] {
            alloc.reserve(epoch, 10, Purpose::Ordinary).unwrap();
            alloc.allocate_many(epoch, Zone::Data, taken).unwrap();
            alloc.note_own(epoch, own);
            assert_eq!(alloc.space().reserved, 10u64.saturating_sub(taken), "epoch {epoch}");
            alloc.publish(epoch);
            assert_eq!(alloc.beyond_max(), beyond, "epoch {epoch}");
        }
        assert_eq!(alloc.margin(), 32);
        alloc.allocate_many(7, Zone::Data, 9).unwrap();
        alloc.publish(7);
        assert_eq!(alloc.beyond_max(), 8, "a replay reserves nothing");
    }
}
