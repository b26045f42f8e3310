//! What has changed since the last recovery point, as sums: who tells the audit of it.

use super::twin::{Sum, Twin, sums};
use super::{Compared, Digest};
use crate::alloc::{Alloc, fixed};
use crate::audit::changes::{Pointers, births_of, blocks_of, entry_number};
use crate::format::snapshot::SNAPSHOT_BYTES;
use crate::format::{BITS, DeadRun, Label, POINTERS, SNAPSHOTS};
use crate::meta_block::{MetaBlock, MetadataProtection, NodeKey, Scribble, Watched};
use crate::module::log_area;
use crate::objects::{holder, map_of, orphans_of};
use crate::scribble::Cells;
use crate::tree::span;
use crate::words::CHUNK_WORDS;
use holdfast_integrity::crc64;
use holdfast_object::{DomainId, Epoch, ObjectId, ObjectKey};
use std::ops::Range;
use std::sync::Arc;

/// All that the audit knows.
#[derive(Default)]
pub(crate) struct Audit {
    pub(super) sums: Twin<Sums>,
    /// What the auditor has who compares, if it is he.
    pub(super) compared: Option<Box<Compared>>,
}

sums! {
    /// Sums since the last recovery point.
    #[derive(Clone, Default, PartialEq)]
    pub(crate) struct Sums {
        /// What the first recovery point starts from, if that is not what the last superblock says.
        pub(super) start: Option<Start>,

        // In the bytes.
        /// Of trees and records; `doubled` and `pages` are of all, the store's own too.
        pub(super) pointers: Pointers,
        /// Pointers with a second address in what `main` has, and those of them that its newest snapshot has too.
        pub(super) doubled: u64,
        pub(super) kept: u64,
        /// Pointers to pages of objects.
        pub(super) pages: u64,
        pub(super) wrong_levels: u64,
        /// Bits of the allocation bitmap.
        pub(super) bits: Digest,
        /// Addresses, as often as the reference table says.
        pub(super) counters: Digest,
        /// Blocks in dead lists, and their births.
        pub(super) dead: Digest,
        pub(super) dead_births: Digest,
        /// Ids in the maps, and of records, with the domain.
        pub(super) mapped: Digest,
        pub(super) orphans: Digest,
        pub(super) records: Digest,
        pub(super) nameless: Digest,
        /// Records of `main`.
        pub(super) objects: u64,
        /// Pages that records say they have.
        pub(super) pages_told: u64,
        /// The newest generation in records put.
        pub(super) newest_generation: u64,
        /// Pointers of objects' trees at or beyond the bound that their records say, in blocks that change, or along it where it sinks.
        pub(super) beyond: u64,
        /// Entries of snapshot lists.
        pub(super) listed: Digest,
        /// What blocks of snapshot lists that change have as they are complete, less the snapshots in memory that are to be there.
        pub(super) listed_otherwise: Digest,

        // Done.
        /// Blocks that one more pointer names, less those that one names less: their first addresses, and their second ones.
        pub(super) shared_first: Digest,
        pub(super) shared_second: Digest,
        /// Blocks that joined dead lists, less those that were taken off them, and their births.
        pub(super) buried: Digest,
        pub(super) buried_births: Digest,
        /// By how much the generation of the next object has grown.
        pub(super) generations: u64,

        // Found to be contradictory, and passed over.
        /// Blocks that nothing names any more and that were not made free.
        pub(super) not_freed: Digest,
        /// Bits that a map had and the record did not, less the other way round.
        pub(super) mapped_wrongly: Digest,
        pub(super) orphans_wrongly: Digest,
        /// Pages that objects said they had and did not, less those that they had beyond what they said.
        pub(super) pages_unknown: u64,
        pub(super) objects_uncounted: u64,
        pub(super) metadata_uncounted: u64,

        /// What the newest snapshot is, if it is another one than at the last recovery point.
        pub(super) kept_start: Option<KeptStart>,
    }
}

sums! {
    /// What the last recovery point has.
    #[derive(Clone, Default, PartialEq)]
    pub(crate) struct Listed {
        /// Entries of its snapshot lists, from their bytes.
        pub(crate) entries: Digest,
    }
}

/// Where the count of what the newest snapshot of `main` has of its metadata starts from.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum KeptStart {
    /// It was made in this epoch, and has all.
    All,
    /// It is the newest again, or there is none any more: what was known of it.
    Known(u64),
}

impl Sum for KeptStart {
    fn other(&self, there: &KeptStart) -> Option<[u64; 2]> {
        let word = |start: &KeptStart| match start {
            KeptStart::All => u64::MAX,
            KeptStart::Known(kept) => *kept,
        };
        word(self).other(&word(there))
    }

    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        if let KeptStart::Known(kept) = self {
            kept.cells(name, cells);
        }
    }
}

sums! {
    /// State of a store whose next recovery point has a bitmap that is not the last one's, changed.
    #[derive(Clone, Copy, Default, PartialEq)]
    pub(super) struct Start {
        /// Bits of the bitmap in memory that come from no block on the device.
        pub(super) bits: Digest,
        pub(super) fixed: Digest,
        pub(super) free: u64,
        pub(super) total: u64,
        pub(super) metadata: u64,
    }
}

/// Places of the lists of all domains, one behind the other.
fn list_place(domain: DomainId, slot: u64) -> u64 {
    u64::from(domain.0) << 32 | slot
}

/// Of a snapshot in this place of the list of its domain, whose entry has this checksum.
pub(crate) fn listed_digest(domain: DomainId, slot: u64, sum: u64) -> Digest {
    Digest::of(entry_number(list_place(domain, slot), sum))
}

pub(super) fn add(sum: &mut u64, number: u64) {
    *sum = sum.wrapping_add(number);
}

pub(super) fn id_digest(domain: u64, id: u64) -> Digest {
    Digest::of(id).moved(domain << 48)
}

/// Bits that no pointer accounts for, in the bitmap of a device of `blocks`: labels, log, and those behind the end.
pub(super) fn fixed_bits(blocks: u64, log: &Range<u64>) -> Digest {
    let behind = blocks..blocks.next_multiple_of(BITS);
    let ranges = fixed(blocks, log).chain([behind]);
    ranges.fold(Digest::NOTHING, |sum, range| sum + Digest::of_run(range.start, (range.end - range.start) as u32))
}

/// Whose pointers are counted.
#[derive(Clone, Copy)]
pub(super) struct Whose {
    /// They are of what `main` has: all ones, or nothing.
    of_main: u64,
    /// They are of an object, and not the store's own: likewise.
    of_object: u64,
}

impl Whose {
    /// Of an object's blocks, or of its record.
    #[inline]
    pub(super) fn of(key: ObjectKey) -> Whose {
        let ones = |is: bool| u64::from(is).wrapping_neg();
        Whose { of_main: ones(holder(key) == Some(DomainId::MAIN)), of_object: ones(key.domain != DomainId::SYSTEM) }
    }
}

impl Sums {
    /// Pointers of an object's blocks, or of its record.
    #[inline]
    pub(super) fn count(&mut self, whose: Whose, pointers: &Pointers) {
        add(&mut self.doubled, pointers.doubled & whose.of_main);
        add(&mut self.kept, pointers.kept & whose.of_main);
        add(&mut self.pages, pointers.pages & whose.of_object);
    }
}

impl Audit {
    /// Nothing yet, while this is the epoch of the newest snapshot of `main`, or 0.
    pub(crate) fn under(newest_snapshot: Epoch) -> Audit {
        let sums = Sums { pointers: Pointers::under(newest_snapshot), ..Sums::default() };
        Audit { sums: Twin::new(sums), ..Audit::default() }
    }

    /// A new store: nothing is anywhere.
    pub(crate) fn of_new_store() -> Audit {
        let sums = Sums { start: Some(Start::default()), ..Sums::default() };
        Audit { sums: Twin::new(sums), ..Audit::default() }
    }

    /// The bitmap in memory was made anew from trees that have `metadata` blocks of metadata, and the next recovery point writes all of it.
    ///
    /// # Errors
    /// Somebody has written to the bitmap since.
    pub(crate) fn take_over(&mut self, alloc: &Alloc, label: &Label, metadata: u64) -> Result<(), Scribble> {
        let mut bits = Digest::NOTHING;
        for chunk in 0..alloc.chunks() {
            for (word, value) in (chunk * CHUNK_WORDS as u64..).zip(alloc.page(chunk)?) {
                bits += Digest::of_bits(word * 64, value);
            }
        }
        let (free, total) = (alloc.free_after_publish(), alloc.total());
        let start = Start { bits, fixed: fixed_bits(label.blocks, &log_area(label)), free, total, metadata };
        self.sums.change(|sums| sums.start = Some(start));
        Ok(())
    }

    // ---- in the bytes

    /// A block is complete, or goes away.
    pub(crate) fn complete(&mut self, key: NodeKey, block: &MetaBlock, watched: Watched) {
        if let Watched::Copied(before) = watched {
            self.compare(key, &before, block.bytes());
        }
    }

    /// A block of an object's tree, complete or along the bound: whether all that it names is below the bound that the record says.
    pub(crate) fn bounded(&mut self, key: NodeKey, block: &MetaBlock, page_bound: u64) {
        let (start, width) = (key.index * span(key.level), span(key.level - 1));
        let first = page_bound.saturating_sub(start).div_ceil(width).min(POINTERS);
        self.beyond((first..POINTERS).filter(|slot| !block.pointer_kind_is_hole(*slot as usize)).count() as u64);
    }

    /// A block of the snapshot list of a domain is complete, which is to have these snapshots and no others, whether or not they change: what goes to the
    /// device with those that do goes unseen else.
    pub(crate) fn entries(&mut self, domain: DomainId, page: u64, block: &MetaBlock, in_memory: Digest) {
        let used = (0..SNAPSHOTS).filter(|slot| *block.snapshot(*slot as usize) != [0; SNAPSHOT_BYTES]);
        let number = |slot: u64| listed_digest(domain, page * SNAPSHOTS + slot, crc64(block.snapshot(slot as usize)));
        let more = used.fold(Digest::NOTHING, |all, slot| all + number(slot)) - in_memory;
        self.sums.change(|sums| sums.listed_otherwise += more);
    }

    /// So many pointers of an object are at or beyond its bound.
    pub(crate) fn beyond(&mut self, count: u64) {
        self.sums.change(|sums| add(&mut sums.beyond, count));
    }

    /// Entries of snapshot lists put since the last recovery point, less those taken out.
    pub(crate) fn listed(&self) -> Digest {
        self.sums.get().listed
    }

    /// Whether all of them are what was counted.
    ///
    /// # Errors
    /// Somebody has written to one of them who must not.
    pub(crate) fn verify(&self) -> Result<(), Scribble> {
        self.sums.verified().map(|_| ())
    }

    /// A tree block goes away as a whole.
    pub(crate) fn dropped(&mut self, key: ObjectKey, block: &Arc<MetaBlock>, protection: MetadataProtection) {
        match protection {
            MetadataProtection::Off | MetadataProtection::Rolling => {}
            MetadataProtection::Audited => self.all_gone(key, block),
            MetadataProtection::Compared => self.keep_gone(key, block.clone()),
        }
    }

    /// With all of its pointers.
    pub(super) fn all_gone(&mut self, key: ObjectKey, block: &MetaBlock) {
        let mut gone = Pointers::under(self.sums.get().pointers.newest_snapshot);
        gone.all_gone(block.bytes());
        let whose = Whose::of(key);
        self.sums.change(|sums| {
            sums.pointers.add(&gone);
            sums.count(whose, &gone);
        });
    }

    /// A page of a dead list goes away, with all of these runs.
    pub(crate) fn dead_page_cut(&mut self, runs: &[DeadRun]) {
        for run in runs {
            let (blocks, births) = (blocks_of(run), births_of(run));
            self.sums.change(|sums| {
                sums.dead -= blocks;
                sums.dead_births -= births;
            });
        }
    }

    // ---- done

    /// One more pointer names a page.
    pub(crate) fn shared(&mut self, address: [u64; 2]) {
        let [first, second] = address.map(Digest::of);
        self.sums.change(|sums| sums.shared_first += first);
        if address[1] != 0 {
            self.sums.change(|sums| sums.shared_second += second);
        }
    }

    /// One pointer less names a page that others name.
    pub(crate) fn unshared(&mut self, address: [u64; 2]) {
        let [first, second] = address.map(Digest::of);
        self.sums.change(|sums| sums.shared_first -= first);
        if address[1] != 0 {
            self.sums.change(|sums| sums.shared_second -= second);
        }
    }

    /// Blocks join a dead list.
    pub(crate) fn buried(&mut self, run: &DeadRun) {
        let (blocks, births) = (blocks_of(run), births_of(run));
        self.sums.change(|sums| {
            sums.buried += blocks;
            sums.buried_births += births;
        });
    }

    /// Blocks are taken off a dead list.
    pub(crate) fn exhumed(&mut self, run: &DeadRun) {
        let (blocks, births) = (blocks_of(run), births_of(run));
        self.sums.change(|sums| {
            sums.buried -= blocks;
            sums.buried_births -= births;
        });
    }

    /// The generation of the next object has grown by so much.
    pub(crate) fn generations_given(&mut self, count: u64) {
        self.sums.change(|sums| add(&mut sums.generations, count));
    }

    /// Another snapshot of `main` is the newest from now on, of this epoch, or there is none any more (0). Nothing of the trees of `main` has changed yet.
    pub(crate) fn newest_snapshot_is(&mut self, newest_snapshot: Epoch, start: KeptStart) {
        self.sums.change(|sums| {
            sums.pointers.newest_snapshot = newest_snapshot;
            sums.kept_start = Some(start);
        });
    }

    /// Epoch of the newest snapshot of `main`, 0 without one: as it was made known here; where there is an audit, it is verified with the sums.
    pub(crate) fn newest_snapshot(&self) -> Epoch {
        self.sums.get().pointers.newest_snapshot
    }

    // ---- contradictions

    /// Nothing names the blocks any more; they stay as they are.
    pub(crate) fn not_freed(&mut self, address: [u64; 2]) {
        let blocks = address.into_iter().filter(|&address| address != 0);
        blocks.for_each(|block| self.sums.change(|sums| sums.not_freed += Digest::of(block)));
    }

    /// So many uses less are counted of a page, at the address of its first copy, which there were not: nothing becomes free by that.
    pub(crate) fn were_none(&mut self, address: u64, uses: u32) {
        let uses = Digest::of(address).times(uses.into());
        self.sums.change(|sums| {
            sums.shared_first -= uses;
            sums.not_freed -= uses;
        });
    }

    /// A map says of an id what its record does not.
    pub(crate) fn map_differs(&mut self, map: u64, id: ObjectId, is_set: bool) {
        let domain = DomainId((map / 16) as u16);
        let one = id_digest(domain.0.into(), id.0).times(if is_set { 1 } else { u64::MAX });
        if map == map_of(domain) {
            self.sums.change(|sums| sums.mapped_wrongly += one);
        } else if map == orphans_of(domain) {
            self.sums.change(|sums| sums.orphans_wrongly += one);
        }
    }

    /// A page goes away of an object that says it has `told` of them.
    pub(crate) fn page_gone(&mut self, key: ObjectKey, told: u64) {
        if told == 0 && key.domain != DomainId::SYSTEM {
            self.sums.change(|sums| add(&mut sums.pages_unknown, u64::MAX));
        }
    }

    /// An object has no page any more, and says that it has `told`; or it counts so many fewer, as those are lost that a block named which cannot be read.
    pub(crate) fn pages_left(&mut self, key: ObjectKey, told: u64) {
        if key.domain != DomainId::SYSTEM {
            self.sums.change(|sums| add(&mut sums.pages_unknown, told));
        }
    }

    /// An object goes away of a domain that has `counted`.
    pub(crate) fn object_gone(&mut self, counted: u64) {
        if counted == 0 {
            self.sums.change(|sums| add(&mut sums.objects_uncounted, 1));
        }
    }

    /// A block of metadata goes away of a domain that has `counted`.
    pub(crate) fn metadata_gone(&mut self, counted: u64) {
        if counted == 0 {
            self.sums.change(|sums| add(&mut sums.metadata_uncounted, 1));
        }
    }
}
