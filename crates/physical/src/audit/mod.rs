//! The audit of a recovery point: before its superblock is written, sums of what has changed since the last one must satisfy equations whose
//! sides come from different places (*High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST 2017, §5).
//! Checksums tell when somebody writes to metadata who must not; this tells when somebody who may writes the wrong thing. `docs/audit.md` has
//! the equations with what they find and cost.
//!
//! Invariants:
//! - what is *in the bytes* of blocks is counted by the methods through which bytes change ([`Changes`]), old against new, and by nobody
//!   else. Blocks that go away without being changed are counted where they are dropped ([`Audit::dropped`], [`Audit::dead_page_cut`]);
//! - what is *done* (a page shared, a run buried) is counted where it is done, never from those bytes;
//! - sums are those since the last recovery point: they begin anew when one is complete, and an
//!   epoch that fails before that goes on with them;
//! - a store that was damaged before still takes changes. Where the code goes on over a contradiction that it finds (a block that is free
//!   already, a bit that a record does not have), it says so here, and an equation has that as a term. Nothing else does.

mod changes;
mod compared;
mod scribble;

pub(crate) use changes::Changes;
pub(crate) use holdfast_integrity::SetDigest as Digest;

use crate::alloc::{Alloc, fixed};
use crate::commit::CommitOrder;
use crate::format::blockptr::Glance;
use crate::format::{
    BITS, COUNTERS, DeadRun, LABEL_BLOCKS, Label, POINTERS, RECORDS, SNAPSHOTS, Superblock, SystemKind,
};
use crate::meta_block::{MetaBlock, MetadataProtection, NodeKey, Scribble, Watched};
use crate::module::log_area;
use crate::objects::{holder, map_of, orphans_of, system_kind, table_of};
use crate::tree::{Base, Trees, span};
use crate::words::CHUNK_WORDS;
use changes::{ENTRY_STEP, Pointers, births_of, blocks_of, entry_number};
use compared::Compared;
use holdfast_object::{Corruption, DomainId, Epoch, Error, ObjectId, ObjectKey, Place};
use std::ops::Range;
use std::sync::Arc;

/// Sums since the last recovery point.
#[derive(Default)]
pub(crate) struct Audit {
    /// What the first recovery point starts from, if that is not what the last superblock says.
    start: Option<Start>,

    // In the bytes.
    /// Of trees and records; `doubled` and `pages` are of all, the store's own too.
    pointers: Pointers,
    /// Pointers with a second address in what `main` has, and those of them that its newest snapshot has too.
    doubled: u64,
    kept: u64,
    /// Pointers to pages of objects.
    pages: u64,
    wrong_levels: u64,
    /// Bits of the allocation bitmap.
    bits: Digest,
    /// Addresses, as often as the reference table says.
    counters: Digest,
    /// Blocks in dead lists, and their births.
    dead: Digest,
    dead_births: Digest,
    /// Ids in the maps, and of records, with the domain.
    mapped: Digest,
    orphans: Digest,
    records: Digest,
    nameless: Digest,
    /// Records of `main`.
    objects: u64,
    /// Pages that records say they have.
    pages_told: u64,
    /// The newest generation in records put.
    newest_generation: u64,
    /// Pointers of objects' trees at or beyond the bound that their records say, in blocks that change.
    beyond: u64,
    /// Entries of snapshot lists.
    listed: Digest,

    // Done.
    /// Blocks that one more pointer names, less those that one names less; and their first addresses alone.
    shared: Digest,
    shared_first: Digest,
    /// Blocks that joined dead lists, less those that were taken off them, and their births.
    buried: Digest,
    buried_births: Digest,
    /// By how much the generation of the next object has grown.
    generations: u64,

    // Found to be contradictory, and passed over.
    /// Blocks that nothing names any more and that were not made free.
    not_freed: Digest,
    /// Bits that a map had and the record did not, less the other way round.
    mapped_wrongly: Digest,
    orphans_wrongly: Digest,
    /// Pages that objects said they had and did not, less those that they had beyond what they said.
    pages_unknown: u64,
    objects_uncounted: u64,
    metadata_uncounted: u64,
    kept_uncounted: u64,

    /// What the newest snapshot is, if it is another one than at the last recovery point.
    kept_start: Option<KeptStart>,

    /// What the auditor has who compares, if it is he.
    compared: Option<Box<Compared>>,
}

/// Where the count of what the newest snapshot of `main` has of its metadata starts from.
#[derive(Clone, Copy)]
pub(crate) enum KeptStart {
    /// It was made in this epoch, and has all.
    All,
    /// It is the newest again, or there is none any more: what was known of it.
    Known(u64),
}

/// State of a store whose next recovery point has a bitmap that is not the last one's, changed.
#[derive(Clone, Copy, Default)]
struct Start {
    /// Bits of the bitmap in memory that come from no block on the device.
    bits: Digest,
    fixed: Digest,
    free: u64,
    total: u64,
    metadata: u64,
}

/// Places of the lists of all domains, one behind the other.
fn list_place(domain: DomainId, slot: u64) -> u64 {
    u64::from(domain.0) << 32 | slot
}

/// Of a snapshot in this place of the list of its domain, whose entry has this checksum.
pub(crate) fn listed_digest(domain: DomainId, slot: u64, sum: u64) -> Digest {
    Digest::of(entry_number(list_place(domain, slot), sum))
}

fn add(sum: &mut u64, number: u64) {
    *sum = sum.wrapping_add(number);
}

fn id_digest(domain: u64, id: u64) -> Digest {
    Digest::of(id).moved(domain << 48)
}

/// Bits that no pointer accounts for, in the bitmap of a device of `blocks`: labels, log, and those behind the end.
fn fixed_bits(blocks: u64, log: &Range<u64>) -> Digest {
    let behind = blocks..blocks.next_multiple_of(BITS);
    let ranges = fixed(blocks, log).chain([behind]);
    ranges.fold(Digest::NOTHING, |sum, range| sum + Digest::of_run(range.start, (range.end - range.start) as u32))
}

impl Audit {
    /// A new store: nothing is anywhere.
    pub(crate) fn of_new_store() -> Audit {
        Audit { start: Some(Start::default()), ..Audit::default() }
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
        self.start = Some(Start { bits, fixed: fixed_bits(label.blocks, &log_area(label)), free, total, metadata });
        Ok(())
    }

    // ---- in the bytes

    /// A block is complete, or goes away.
    pub(crate) fn complete(&mut self, key: NodeKey, block: &MetaBlock, watched: Watched) {
        match watched {
            Watched::Not => {}
            Watched::Counted(changes, _) => changes.iter().for_each(|changes| self.absorb(key, changes)),
            Watched::Copied(before, newest_snapshot) => self.compare(key, &before, block.bytes(), newest_snapshot),
        }
    }

    /// What has changed in a block that is complete, or that goes away.
    fn absorb(&mut self, key: NodeKey, changes: &Changes) {
        let pointers = &changes.pointers;
        self.pointers.add(pointers);
        add(&mut self.wrong_levels, changes.wrong_levels);
        if key.level > 0 {
            add(&mut self.wrong_levels, (pointers.levels & !(1 << (key.level - 1))).count_ones().into());
            self.count(key.object_key(), pointers);
            return;
        }
        let domain = key.object / 16;
        let ids = |digest: Digest, per_block: u64| digest.moved((domain << 48) + key.index * per_block);
        match system_kind(key.object) {
            Some(SystemKind::ObjectTable) if key.object == 0 => {
                let main = table_of(DomainId::MAIN);
                if key.index == main / RECORDS {
                    let slot = (main % RECORDS) as usize;
                    add(&mut self.doubled, i64::from(changes.doubled[slot]) as u64);
                    add(&mut self.kept, i64::from(changes.kept[slot]) as u64);
                }
            }
            Some(SystemKind::ObjectTable) => {
                let object = ObjectKey { domain: DomainId(domain as u16), object: ObjectId(0) };
                self.count(object, pointers);
                self.records += ids(changes.numbers, RECORDS);
                self.nameless += ids(changes.nameless, RECORDS);
                add(&mut self.pages_told, changes.pages_told);
                self.newest_generation = self.newest_generation.max(changes.newest_generation);
                if object.domain == DomainId::MAIN {
                    add(&mut self.objects, changes.numbers.count());
                }
            }
            Some(SystemKind::Bitmap) => self.bits += changes.numbers.moved(key.index * BITS),
            Some(SystemKind::References) => self.counters += changes.numbers.moved(key.index * COUNTERS),
            Some(SystemKind::ObjectMap) => self.mapped += ids(changes.numbers, BITS),
            Some(SystemKind::OrphanMap) => self.orphans += ids(changes.numbers, BITS),
            Some(SystemKind::DeadLists) => {
                self.dead += changes.dead;
                self.dead_births += changes.dead_births;
            }
            Some(SystemKind::SnapshotList) => {
                let first = list_place(DomainId(domain as u16), key.index * SNAPSHOTS);
                self.listed += changes.numbers.moved(ENTRY_STEP.wrapping_mul(first));
            }
            None => {}
        }
    }

    /// A block of an object's tree is complete: whether all that it names is below the bound that the record says.
    pub(crate) fn bounded(&mut self, key: NodeKey, block: &MetaBlock, page_bound: u64) {
        let (start, width) = (key.index * span(key.level), span(key.level - 1));
        let first = page_bound.saturating_sub(start).div_ceil(width).min(POINTERS);
        self.beyond += (first..POINTERS).filter(|slot| !block.pointer_kind_is_hole(*slot as usize)).count() as u64;
    }

    /// Entries of snapshot lists put since the last recovery point, less those taken out.
    pub(crate) fn listed(&self) -> Digest {
        self.listed
    }

    /// A tree block goes away as a whole. `newest_snapshot`: epoch of that of `main`, or 0.
    pub(crate) fn dropped(
        &mut self,
        key: ObjectKey,
        block: &Arc<MetaBlock>,
        newest_snapshot: Epoch,
        protection: MetadataProtection,
    ) {
        match protection {
            MetadataProtection::Off | MetadataProtection::Rolling => {}
            MetadataProtection::Audited => self.all_gone(key, block, newest_snapshot),
            MetadataProtection::Compared => self.keep_gone(key, block.clone(), newest_snapshot),
        }
    }

    /// With all of its pointers.
    fn all_gone(&mut self, key: ObjectKey, block: &MetaBlock, newest_snapshot: Epoch) {
        let mut gone = Pointers::under(newest_snapshot);
        gone.all_gone(block.bytes());
        self.pointers.add(&gone);
        self.count(key, &gone);
    }

    fn count(&mut self, key: ObjectKey, pointers: &Pointers) {
        if holder(key) == Some(DomainId::MAIN) {
            add(&mut self.doubled, pointers.doubled);
            add(&mut self.kept, pointers.kept);
        }
        if key.domain != DomainId::SYSTEM {
            add(&mut self.pages, pointers.pages);
        }
    }

    /// A page of a dead list goes away, with all of these runs.
    pub(crate) fn dead_page_cut(&mut self, runs: &[DeadRun]) {
        for run in runs {
            self.dead -= blocks_of(run);
            self.dead_births -= births_of(run);
        }
    }

    // ---- done

    /// One more pointer names a page.
    pub(crate) fn shared(&mut self, address: [u64; 2]) {
        let first = Digest::of(address[0]);
        self.shared_first += first;
        self.shared += if address[1] == 0 { first } else { first + Digest::of(address[1]) };
    }

    /// One pointer less names a page that others name.
    pub(crate) fn unshared(&mut self, address: [u64; 2]) {
        let first = Digest::of(address[0]);
        self.shared_first -= first;
        self.shared -= if address[1] == 0 { first } else { first + Digest::of(address[1]) };
    }

    /// Blocks join a dead list.
    pub(crate) fn buried(&mut self, run: &DeadRun) {
        self.buried += blocks_of(run);
        self.buried_births += births_of(run);
    }

    /// Blocks are taken off a dead list.
    pub(crate) fn exhumed(&mut self, run: &DeadRun) {
        self.buried -= blocks_of(run);
        self.buried_births -= births_of(run);
    }

    /// The generation of the next object has grown by so much.
    pub(crate) fn generations_given(&mut self, count: u64) {
        add(&mut self.generations, count);
    }

    /// Another snapshot of `main` is the newest from now on.
    pub(crate) fn newest_snapshot_is(&mut self, start: KeptStart) {
        self.kept_start = Some(start);
    }

    // ---- contradictions

    /// Nothing names the blocks any more; they stay as they are.
    pub(crate) fn not_freed(&mut self, address: [u64; 2]) {
        let blocks = address.into_iter().filter(|&address| address != 0);
        blocks.for_each(|block| self.not_freed += Digest::of(block));
    }

    /// A map says of an id what its record does not.
    pub(crate) fn map_differs(&mut self, map: u64, id: ObjectId, is_set: bool) {
        let domain = DomainId((map / 16) as u16);
        let one = id_digest(domain.0.into(), id.0).times(if is_set { 1 } else { u64::MAX });
        if map == map_of(domain) {
            self.mapped_wrongly += one;
        } else if map == orphans_of(domain) {
            self.orphans_wrongly += one;
        }
    }

    /// A page goes away of an object that says it has `told` of them.
    pub(crate) fn page_gone(&mut self, key: ObjectKey, told: u64) {
        if told == 0 && key.domain != DomainId::SYSTEM {
            add(&mut self.pages_unknown, u64::MAX);
        }
    }

    /// An object has no page any more, and says that it has `told`.
    pub(crate) fn pages_left(&mut self, key: ObjectKey, told: u64) {
        if key.domain != DomainId::SYSTEM {
            add(&mut self.pages_unknown, told);
        }
    }

    /// An object goes away of a domain that has `counted`.
    pub(crate) fn object_gone(&mut self, counted: u64) {
        add(&mut self.objects_uncounted, u64::from(counted == 0));
    }

    /// A block of metadata goes away of a domain that has `counted`.
    pub(crate) fn metadata_gone(&mut self, counted: u64) {
        add(&mut self.metadata_uncounted, u64::from(counted == 0));
    }

    /// A block of metadata goes away that the newest snapshot has too, and it had `counted`.
    pub(crate) fn kept_gone(&mut self, counted: u64) {
        add(&mut self.kept_uncounted, u64::from(counted == 0));
    }
}

/// What an equation is about.
struct Facts<'a> {
    sums: &'a Audit,
    last: &'a Superblock,
    next: &'a Superblock,
    start: Start,
    /// See [`fixed_bits`]; of the next superblock.
    fixed: Digest,
    blocks: u64,
    /// Entries of the last recovery point's snapshot lists, and of the snapshots in memory.
    listed: Digest,
    snapshots: Digest,
    /// See [`Audit::unmatched`].
    unmatched: Option<Digest>,
}

impl Facts<'_> {
    /// The pointer at the very top is in no block.
    fn top(&self) -> Pointers {
        let mut top = Pointers::default();
        top.gone(&Glance::of(&self.last.root.root));
        top.put(&Glance::of(&self.next.root.root));
        top
    }

    fn all_pointers(&self) -> Pointers {
        let mut all = self.sums.pointers.clone();
        all.add(&self.top());
        all
    }

    fn newly_fixed(&self) -> Digest {
        self.fixed - self.start.fixed
    }
}

/// How much more there is of something than there was.
fn grown(next: u64, last: u64) -> Digest {
    Digest::of_count(next.wrapping_sub(last))
}

/// What must be the same on both sides.
struct Equation {
    name: &'static str,
    left: &'static str,
    right: &'static str,
    sides: fn(&Facts<'_>) -> (Digest, Digest),
}

/// In the order in which a failure is told: what explains others comes first.
const EQUATIONS: [Equation; 21] = [
    Equation {
        name: "pending",
        left: "placeholders for blocks without an address put, less those replaced",
        right: "none",
        sides: |facts| (Digest::of_count(facts.all_pointers().pending), Digest::NOTHING),
    },
    Equation {
        name: "levels",
        left: "block pointers put that are not of the level below, or of a kind that it has not",
        right: "none",
        sides: |facts| (Digest::of_count(facts.sums.wrong_levels + facts.all_pointers().wrong_kinds), Digest::NOTHING),
    },
    Equation {
        name: "births",
        left: "the newest birth of a block pointer put",
        right: "that, and no newer than the epoch",
        sides: |facts| {
            let newest = facts.all_pointers().newest;
            (Digest::of_count(newest), Digest::of_count(newest.min(facts.next.epoch)))
        },
    },
    Equation {
        name: "birth order",
        left: "block pointers put that were born physically before the first epoch or after their logical birth",
        right: "none",
        sides: |facts| (Digest::of_count(facts.all_pointers().misborn), Digest::NOTHING),
    },
    Equation {
        name: "range",
        left: "the lowest and the highest address in a block pointer put",
        right: "those, and between the labels",
        sides: |facts| {
            let Pointers { lowest, highest, .. } = facts.all_pointers();
            if highest == 0 {
                return (Digest::NOTHING, Digest::NOTHING);
            }
            let end = facts.blocks - 2 * LABEL_BLOCKS - 1;
            let least = Digest::of(lowest.max(2 * LABEL_BLOCKS));
            (Digest::of(lowest) + Digest::of(highest), least + Digest::of(highest.min(end)))
        },
    },
    Equation {
        name: "blocks",
        left: "bits of the bitmap set, less those cleared, without labels and log",
        right: "blocks that pointers name, and dead lists, more than before, without those named again",
        sides: |facts| {
            let Audit { bits, dead, shared, not_freed, .. } = *facts.sums;
            let (set, named) = match facts.unmatched {
                Some(unmatched) => (unmatched, facts.top().addresses),
                None => (bits, facts.all_pointers().addresses),
            };
            (set - facts.start.bits - facts.newly_fixed(), named + dead - shared + not_freed)
        },
    },
    Equation {
        name: "free",
        left: "free blocks of the superblock, more than before",
        right: "bits of the bitmap cleared, less those set, and blocks that the device has more",
        sides: |facts| {
            let set = facts.sums.bits - facts.start.bits - facts.newly_fixed();
            let more = grown(facts.next.total, facts.start.total);
            (grown(facts.next.free, facts.start.free), more - Digest::of_count(set.count()))
        },
    },
    Equation {
        name: "references",
        left: "addresses in the reference table, as often as it counts them, more than before",
        right: "addresses of pages shared, less those of shared pages let go",
        sides: |facts| (facts.sums.counters, facts.sums.shared_first),
    },
    Equation {
        name: "dead lists",
        left: "blocks in runs of dead lists, more than before",
        right: "blocks that died under snapshots, less those of deleted snapshots",
        sides: |facts| (facts.sums.dead, facts.sums.buried),
    },
    Equation {
        name: "dead births",
        left: "births and sorts of runs in dead lists, for each block",
        right: "those of the pointers that went away",
        sides: |facts| (facts.sums.dead_births, facts.sums.buried_births),
    },
    Equation {
        name: "next generation",
        left: "generation of the next object in the superblock, more than before",
        right: "generations given to objects",
        sides: |facts| {
            let grown = grown(facts.next.next_generation, facts.last.next_generation);
            (grown, Digest::of_count(facts.sums.generations))
        },
    },
    Equation {
        name: "objects",
        left: "objects of the superblock, more than before",
        right: "records put, less those taken out",
        sides: |facts| {
            let counted = grown(facts.next.objects, facts.last.objects);
            (counted, Digest::of_count(facts.sums.objects) + Digest::of_count(facts.sums.objects_uncounted))
        },
    },
    Equation {
        name: "object maps",
        left: "ids set in the maps of objects, less those cleared",
        right: "ids of records put, less those of records taken out",
        sides: |facts| (facts.sums.mapped, facts.sums.records - facts.sums.mapped_wrongly),
    },
    Equation {
        name: "orphans",
        left: "ids set in the maps of orphans, less those cleared",
        right: "ids of records without a name put, less those taken out or named",
        sides: |facts| (facts.sums.orphans, facts.sums.nameless - facts.sums.orphans_wrongly),
    },
    Equation {
        name: "pages",
        left: "pages that records say they have, more than before",
        right: "block pointers to pages of objects put, less those gone",
        sides: |facts| {
            let Audit { pages, pages_told, pages_unknown, .. } = *facts.sums;
            (Digest::of_count(pages_told), Digest::of_count(pages) - Digest::of_count(pages_unknown))
        },
    },
    Equation {
        name: "bounds",
        left: "block pointers of objects, in blocks that change, at or beyond the bound that the record says",
        right: "none",
        sides: |facts| (Digest::of_count(facts.sums.beyond), Digest::NOTHING),
    },
    Equation {
        name: "generations",
        left: "the newest generation of objects made, and of those before",
        right: "that, and below the next one of the superblock",
        sides: |facts| {
            let newest = facts.sums.newest_generation.max(facts.last.next_generation.saturating_sub(1));
            (Digest::of_count(newest), Digest::of_count(newest.min(facts.next.next_generation.saturating_sub(1))))
        },
    },
    Equation {
        name: "snapshots",
        left: "entries of the snapshot lists: those of the last recovery point, those put since, less those taken out",
        right: "snapshots in memory",
        sides: |facts| (facts.listed + facts.sums.listed, facts.snapshots),
    },
    Equation {
        name: "metadata",
        left: "blocks of metadata of the superblock, more than before",
        right: "block pointers with two addresses of the domain main put, less those gone",
        sides: |facts| {
            let Audit { doubled, metadata_uncounted, .. } = *facts.sums;
            let counted = grown(facts.next.metadata, facts.start.metadata);
            (counted, Digest::of_count(doubled) + Digest::of_count(metadata_uncounted))
        },
    },
    Equation {
        name: "metadata kept",
        left: "blocks of metadata of the superblock that the newest snapshot of the domain main has too",
        right: "those before, less pointers of main to such gone, and more put; at most all",
        sides: |facts| {
            let Audit { kept, kept_uncounted, kept_start, .. } = *facts.sums;
            let start = match kept_start {
                None => facts.last.metadata_kept,
                Some(KeptStart::All) => facts.start.metadata,
                Some(KeptStart::Known(kept)) => kept,
            };
            // Not below 0 either: the code stops there, and says so.
            let counted = start.wrapping_add(kept).wrapping_add(kept_uncounted);
            (Digest::of_count(facts.next.metadata_kept), Digest::of_count(counted.min(facts.next.metadata)))
        },
    },
    Equation {
        name: "size",
        left: "blocks of the superblock",
        right: "blocks of the device, without labels and log",
        sides: |facts| {
            let fixed = facts.fixed.count() - (facts.blocks.next_multiple_of(BITS) - facts.blocks);
            (Digest::of_count(facts.next.total), Digest::of_count(facts.blocks - fixed))
        },
    },
];

/// An equation that does not hold.
struct Failure {
    equation: &'static Equation,
    left: Digest,
    right: Digest,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Equation { name, left, right, .. } = self.equation;
        write!(f, "\"{name}\": {left}, is {}; {right}, is {}", self.left, self.right)?;
        match (self.left - self.right).only() {
            Some(number) => write!(f, "; they differ in {number} only"),
            None => Ok(()),
        }
    }
}

impl Trees {
    /// Whether all equations hold for what is about to be written, `next` after `last`.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: one does not. No recovery point is made of it.
    pub(crate) fn audit_epoch(
        &self,
        base: &Base,
        label: &Label,
        last: &Superblock,
        next: &Superblock,
    ) -> Result<(), Error> {
        if !base.disk.metadata.audits() {
            return Ok(());
        }
        self.kept.domains().try_for_each(|domain| self.verify_snapshots(base, domain))?;
        let log = log_area(label);
        let of_last = || Start {
            bits: Digest::NOTHING,
            fixed: fixed_bits(last.covered(label), &log),
            free: last.free,
            total: last.total,
            metadata: last.metadata,
        };
        let facts = Facts {
            sums: &self.audit,
            last,
            next,
            start: self.audit.start.unwrap_or_else(of_last),
            fixed: fixed_bits(label.blocks, &log),
            blocks: label.blocks,
            listed: self.kept.listed(),
            snapshots: match base.commit_order {
                // A bug for the lab, which a crash is to show.
                CommitOrder::ListNothing => self.kept.listed() + self.audit.listed,
                _ => self.kept.in_memory(),
            },
            unmatched: self.audit.unmatched(),
        };
        let failed = EQUATIONS.iter().filter_map(|equation| {
            let (left, right) = (equation.sides)(&facts);
            (left != right).then_some(Failure { equation, left, right })
        });
        let failed: Vec<Failure> = failed.collect();
        if failed.is_empty() {
            return Ok(());
        }
        // What somebody has written to a block who must not gets into the sums when the block is changed the next time.
        self.verify_written(base)?;
        let objects = &mut self.changed.keys().copied().collect::<Vec<_>>();
        base.disk.counters.audit_failed();
        Err(base.disk.give_up(failure(base, next.epoch, &failed, objects)))
    }
}

/// Most objects that are named.
const NAMED_MAX: usize = 16;

fn failure(base: &Base, epoch: Epoch, failed: &[Failure], objects: &mut [ObjectKey]) -> Corruption {
    objects.sort_unstable();
    let named: Vec<String> = objects.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if objects.len() > named.len() { ", …" } else { "" };
    let failed: Vec<String> = failed.iter().map(ToString::to_string).collect();
    let changed = format!("{} objects changed in it ({}{more})", objects.len(), named.join(", "));
    let got = format!(
        "not so: {} (a logic bug, to be reported; nothing of the epoch is stored; {changed})",
        failed.join(" | ")
    );
    let place = Place { address: None, ..base.disk.place(0) };
    let (what, expected) = (format!("audit of epoch {epoch}"), "the same on both sides of all equations".to_string());
    Corruption { place, what, expected, got }
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
