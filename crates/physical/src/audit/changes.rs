//! What an update of a block changes of the sums, by the bytes that come and those that go.

use super::Digest;
use super::sums::{Audit, Sums, Whose, add, listed_digest};
use super::twin::{Twin, sums};
use crate::format::blockptr::{Glance, POINTER_BYTES, PointerKind};
use crate::format::record::RecordGlance;
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{BITS, COUNTERS, DeadRun, RECORD_BYTES, RECORDS, SNAPSHOTS, SystemKind};
use crate::meta_block::NodeKey;
use crate::objects::{system_kind, table_of};
use holdfast_integrity::{SlotSums, crc64};
use holdfast_object::{DomainId, Epoch, ObjectId, ObjectKey};

sums! {
    /// Block pointers put less those that have gone.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(crate) struct Pointers {
        /// All that they name, second copies too.
        pub(super) addresses: Digest,
        /// Those with a second address, and those of them that were born no later than `newest_snapshot`.
        pub(super) doubled: u64,
        pub(super) kept: u64,
        /// Epoch of the newest snapshot of `main`, or 0: no change of an epoch comes before the one that makes or deletes it.
        pub(super) newest_snapshot: Epoch,
        /// Those to pages.
        pub(super) pages: u64,
        /// Those that stand for a dirty block.
        pub(super) pending: u64,
        /// Of those put: the newest logical birth, the least and the highest address, levels as bits, and how many have births out of order, or
        /// are of a kind that their level has not.
        pub(super) newest: Epoch,
        pub(super) lowest: u64,
        pub(super) highest: u64,
        pub(super) levels: u16,
        pub(super) misborn: u64,
        pub(super) wrong_kinds: u64,
    }
}

impl Default for Pointers {
    fn default() -> Pointers {
        Pointers {
            addresses: Digest::NOTHING,
            doubled: 0,
            kept: 0,
            newest_snapshot: 0,
            pages: 0,
            pending: 0,
            newest: 0,
            lowest: u64::MAX,
            highest: 0,
            levels: 0,
            misborn: 0,
            wrong_kinds: 0,
        }
    }
}

impl Pointers {
    /// Nothing yet, while this is the epoch of the newest snapshot of `main`, or 0.
    pub(super) fn under(newest_snapshot: Epoch) -> Pointers {
        Pointers { newest_snapshot, ..Pointers::default() }
    }

    /// Adds one to what a pointer counts for, or takes it off. Nothing here depends on what pointers are most often, as it is done for each that changes.
    #[inline]
    fn count(&mut self, pointer: &Glance, one: u64) {
        let [first, second] = pointer.address;
        let is_there = first != 0;
        // Without a first one it is none.
        let second = if is_there { second } else { 0 };
        let is_doubled = second != 0;
        self.addresses += Digest::of_nonzero([first, second]).times(one);
        let count = |sum: &mut u64, counts: bool| add(sum, one.wrapping_mul(counts.into()));
        count(&mut self.doubled, is_doubled);
        count(&mut self.kept, is_doubled & (pointer.birth_log <= self.newest_snapshot));
        count(&mut self.pages, is_there & (pointer.kind == PointerKind::Data));
        count(&mut self.pending, !is_there & (pointer.kind == PointerKind::Tree));
    }

    #[inline]
    pub(super) fn put(&mut self, pointer: &Glance) {
        self.count(pointer, 1);
        let [first, second] = pointer.address;
        let or_none = |address: u64| if address == 0 { u64::MAX } else { address };
        self.lowest = self.lowest.min(or_none(first)).min(or_none(second));
        self.highest = self.highest.max(first).max(second);
        if pointer.kind != PointerKind::Hole && *pointer != Glance::PENDING {
            self.levels |= 1 << pointer.level;
            self.newest = self.newest.max(pointer.birth_log);
            add(&mut self.misborn, u64::from(!pointer.is_born_in_order()));
            add(&mut self.wrong_kinds, u64::from((pointer.kind == PointerKind::Tree) != (pointer.level > 0)));
        }
    }

    #[inline]
    pub(super) fn gone(&mut self, pointer: &Glance) {
        self.count(pointer, u64::MAX);
    }

    /// A page has taken the place of another one: `addresses` is what that makes of them.
    #[inline]
    fn page_put(&mut self, addresses: Digest, page: &Glance) {
        self.addresses += addresses;
        self.newest = self.newest.max(page.birth_log);
        self.lowest = self.lowest.min(page.address[0]);
        self.highest = self.highest.max(page.address[0]);
        self.levels |= 1;
    }

    /// All pointers of a block go with it.
    pub(super) fn all_gone(&mut self, block: &[u8; 4096]) {
        match SlotSums::of(block, Glance::KIND_MASK, Glance::DATA) {
            // Each of them has one address, as pages of files do.
            Some(all) if all.seconds == 0 => {
                self.addresses -= all.numbers;
                self.pages = self.pages.wrapping_sub(all.marked);
            }
            _ => block.as_chunks().0.iter().for_each(|slot| self.gone(&Glance::at(slot))),
        }
    }

    #[inline]
    pub(super) fn add(&mut self, other: &Pointers) {
        self.addresses += other.addresses;
        add(&mut self.doubled, other.doubled);
        add(&mut self.kept, other.kept);
        add(&mut self.pages, other.pages);
        add(&mut self.pending, other.pending);
        self.newest = self.newest.max(other.newest);
        self.lowest = self.lowest.min(other.lowest);
        self.highest = self.highest.max(other.highest);
        self.levels |= other.levels;
        add(&mut self.misborn, other.misborn);
        add(&mut self.wrong_kinds, other.wrong_kinds);
    }
}

/// Entries of snapshot lists in different places are different, by a multiple of the distance between them.
pub(super) const ENTRY_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number for an entry of a snapshot list in this place, with this checksum.
pub(super) fn entry_number(place: u64, sum: u64) -> u64 {
    sum.wrapping_add(ENTRY_STEP.wrapping_mul(place))
}

/// An update of a block, on its way into the sums: what comes against what goes, each by its own bytes. What is seen of it is made out once, and
/// counted twice.
pub(crate) struct Counting<'a> {
    sums: &'a mut Twin<Sums>,
    /// The block.
    key: NodeKey,
}

impl<'a> Counting<'a> {
    /// Of this block.
    #[inline]
    pub(crate) fn of(audit: &'a mut Audit, key: NodeKey) -> Counting<'a> {
        Counting::into(&mut audit.sums, key)
    }

    #[inline]
    pub(super) fn into(sums: &'a mut Twin<Sums>, key: NodeKey) -> Counting<'a> {
        Counting { sums, key }
    }

    /// What the block has, if it is not of a tree.
    pub(super) fn kind(&self) -> Option<SystemKind> {
        if self.key.level == 0 { system_kind(self.key.object) } else { None }
    }

    /// Of a block of domain 0: whose domain it is about.
    fn domain(&self) -> u64 {
        self.key.object / 16
    }

    /// The first id that a block of a map or table is about, of so many, with the domain.
    fn first_id(&self, per_block: u64) -> u64 {
        (self.domain() << 48) + self.key.index * per_block
    }

    fn between(&self, old: &Glance, new: &Glance) -> Pointers {
        let mut pointers = Pointers::under(self.sums.get().pointers.newest_snapshot);
        pointers.gone(old);
        pointers.put(new);
        pointers
    }

    pub(crate) fn pointer(&mut self, old: &[u8; POINTER_BYTES], new: &[u8; POINTER_BYTES]) {
        let (old, new) = (Glance::at(old), Glance::at(new));
        if self.key.level == 1 && old.is_plain_page() && new.is_plain_page() {
            // As overwriting puts them. There are as many as before, and as many pages, none of them twice.
            let addresses = Digest::of(new.address[0]) - Digest::of(old.address[0]);
            self.sums.change(|sums| sums.pointers.page_put(addresses, &new));
            return;
        }
        let pointers = self.between(&old, &new);
        let level_below = self.key.level.checked_sub(1).map_or(0, |level| 1 << level);
        let wrong_levels = u64::from(pointers.levels & !level_below != 0);
        let whose = Whose::of(self.key.object_key());
        self.sums.change(|sums| {
            sums.pointers.add(&pointers);
            add(&mut sums.wrong_levels, wrong_levels);
            sums.count(whose, &pointers);
        });
    }

    pub(crate) fn record(&mut self, slot: usize, old: &[u8; RECORD_BYTES], new: &[u8; RECORD_BYTES]) {
        let (old, new) = (RecordGlance::at(old), RecordGlance::at(new));
        let pointers = self.between(&old.root, &new.root);
        let wrong_levels = u64::from(new.root.address[0] != 0 && new.root.level != new.levels);
        self.sums.change(|sums| {
            sums.pointers.add(&pointers);
            add(&mut sums.wrong_levels, wrong_levels);
        });
        if self.kind() != Some(SystemKind::ObjectTable) {
            return;
        }
        if self.key.object == 0 {
            let is_of_main = self.key.index * RECORDS + slot as u64 == table_of(DomainId::MAIN);
            if is_of_main {
                self.sums.change(|sums| {
                    add(&mut sums.doubled, pointers.doubled);
                    add(&mut sums.kept, pointers.kept);
                });
            }
            return;
        }
        let domain = DomainId(self.domain() as u16);
        let id = Digest::of(self.first_id(RECORDS) + slot as u64);
        let more = |is: fn(&RecordGlance) -> bool| u64::from(is(&new)).wrapping_sub(is(&old).into());
        let (used, nameless) = (more(|record| record.is_used), more(|record| record.is_used && record.nlink == 0));
        let newest_generation = if new.generation == old.generation { 0 } else { new.generation };
        let whose = Whose::of(ObjectKey { domain, object: ObjectId(0) });
        self.sums.change(|sums| {
            sums.count(whose, &pointers);
            sums.records += id.times(used);
            sums.nameless += id.times(nameless);
            add(&mut sums.pages_told, new.blocks.wrapping_sub(old.blocks));
            sums.newest_generation = sums.newest_generation.max(newest_generation);
            if domain == DomainId::MAIN {
                add(&mut sums.objects, used);
            }
        });
    }

    /// 64 bits of a bitmap.
    #[inline]
    pub(crate) fn word(&mut self, word: usize, old: u64, new: u64) {
        let kind = self.kind();
        let first = match kind {
            Some(SystemKind::Bitmap) => self.key.index * BITS,
            Some(SystemKind::ObjectMap | SystemKind::OrphanMap) => self.first_id(BITS),
            _ => return,
        };
        let first = first + word as u64 * 64;
        let bits = Digest::of_bits(first, new & !old) - Digest::of_bits(first, old & !new);
        self.sums.change(|sums| match kind {
            Some(SystemKind::ObjectMap) => sums.mapped += bits,
            Some(SystemKind::OrphanMap) => sums.orphans += bits,
            _ => sums.bits += bits,
        });
    }

    #[inline]
    pub(crate) fn counter(&mut self, slot: usize, old: u32, new: u32) {
        if self.kind() == Some(SystemKind::References) {
            let address = self.key.index * COUNTERS + slot as u64;
            let more = Digest::of(address).times(u64::from(new).wrapping_sub(u64::from(old)));
            self.sums.change(|sums| sums.counters += more);
        }
    }

    pub(crate) fn snapshot(&mut self, slot: usize, old: &[u8; SNAPSHOT_BYTES], new: &[u8; SNAPSHOT_BYTES]) {
        if self.kind() != Some(SystemKind::SnapshotList) {
            return;
        }
        let (domain, slot) = (DomainId(self.domain() as u16), self.key.index * SNAPSHOTS + slot as u64);
        for (entry, times) in [(old, u64::MAX), (new, 1)] {
            if *entry != [0; SNAPSHOT_BYTES] {
                let number = listed_digest(domain, slot, crc64(entry)).times(times);
                self.sums.change(|sums| sums.listed += number);
            }
        }
    }

    pub(crate) fn dead_run(&mut self, old: &[u8; DEAD_BYTES], new: &[u8; DEAD_BYTES]) {
        let (old, new) = (DeadRun::glance(old), DeadRun::glance(new));
        for first in new.address.into_iter().filter(|address| new.count > 0 && *address != 0) {
            let last = first.saturating_add(u64::from(new.count) - 1);
            self.sums.change(|sums| {
                sums.pointers.lowest = sums.pointers.lowest.min(first);
                sums.pointers.highest = sums.pointers.highest.max(last);
            });
        }
        if self.kind() == Some(SystemKind::DeadLists) {
            let (blocks, births) = (blocks_of(&new) - blocks_of(&old), births_of(&new) - births_of(&old));
            self.sums.change(|sums| {
                sums.dead += blocks;
                sums.dead_births += births;
            });
        }
    }
}

/// Birth and sort of a run, as often as it has blocks: the same for its parts together. A birth that no epoch has is mixed, as a difference in
/// the uppermost bits vanishes in a sum of an even number of them.
pub(super) fn births_of(run: &DeadRun) -> Digest {
    let number = run.birth_log.rotate_left(1) ^ u64::from(run.is_page);
    let mixed =
        if run.birth_log >> 31 == 0 { number } else { (number ^ number >> 31).wrapping_mul(ENTRY_STEP) ^ number >> 29 };
    Digest::of(mixed).times(run.count.into())
}

/// The blocks of a run, second copies too.
pub(super) fn blocks_of(run: &DeadRun) -> Digest {
    let copies = run.address.into_iter().filter(|&address| address != 0);
    copies.fold(Digest::NOTHING, |blocks, first| blocks + Digest::of_run(first, run.count))
}
