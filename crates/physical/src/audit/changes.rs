//! What of one block has changed since the last recovery point, as sums over its bytes.

use super::Digest;
use super::compared::Lists;
use super::sums::add;
use super::twin::{Twin, sums};
use crate::format::blockptr::{Glance, POINTER_BYTES, PointerKind};
use crate::format::record::RecordGlance;
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{BITS, DeadRun, RECORD_BYTES, RECORDS, SystemKind};
use crate::meta_block::NodeKey;
use crate::objects::system_kind;
use holdfast_integrity::{SlotSums, crc64};
use holdfast_object::Epoch;

sums! {
    /// Block pointers put less those that have gone.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(crate) struct Pointers {
        /// All that they name, second copies too.
        pub(super) addresses: Digest,
        /// Those with a second address, and those of them that were born no later than `newest_snapshot`.
        pub(super) doubled: u64,
        pub(super) kept: u64,
        /// Epoch of the newest snapshot of `main`, or 0.
        newest_snapshot: Epoch,
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

    /// Whether the newest snapshot has it too, of those with a second address.
    fn is_kept(&self, pointer: &Glance) -> bool {
        pointer.address[1] != 0 && pointer.birth_log <= self.newest_snapshot
    }

    fn count(&mut self, pointer: &Glance, times: u64) {
        if pointer.address[0] == 0 {
            let pending = u64::from(pointer.kind == PointerKind::Tree);
            self.pending = self.pending.wrapping_add(pending.wrapping_mul(times));
            return;
        }
        let mut addresses = Digest::of(pointer.address[0]);
        if pointer.address[1] != 0 {
            addresses += Digest::of(pointer.address[1]);
            self.doubled = self.doubled.wrapping_add(times);
            if self.is_kept(pointer) {
                self.kept = self.kept.wrapping_add(times);
            }
        }
        self.addresses += addresses.times(times);
        if pointer.kind == PointerKind::Data {
            self.pages = self.pages.wrapping_add(times);
        }
    }

    pub(super) fn put(&mut self, pointer: &Glance) {
        self.count(pointer, 1);
        for address in pointer.address.into_iter().filter(|&address| address != 0) {
            self.lowest = self.lowest.min(address);
            self.highest = self.highest.max(address);
        }
        if pointer.kind != PointerKind::Hole && *pointer != Glance::PENDING {
            self.levels |= 1 << pointer.level;
            self.newest = self.newest.max(pointer.birth_log);
            let in_order = 0 < pointer.birth_phys && pointer.birth_phys <= pointer.birth_log;
            add(&mut self.misborn, u64::from(!in_order));
            add(&mut self.wrong_kinds, u64::from((pointer.kind == PointerKind::Tree) != (pointer.level > 0)));
        }
    }

    pub(super) fn gone(&mut self, pointer: &Glance) {
        self.count(pointer, u64::MAX);
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

    pub(super) fn add(&mut self, other: &Pointers) {
        self.addresses += other.addresses;
        self.doubled = self.doubled.wrapping_add(other.doubled);
        self.kept = self.kept.wrapping_add(other.kept);
        self.pages = self.pages.wrapping_add(other.pages);
        self.pending = self.pending.wrapping_add(other.pending);
        self.newest = self.newest.max(other.newest);
        self.lowest = self.lowest.min(other.lowest);
        self.highest = self.highest.max(other.highest);
        self.levels |= other.levels;
        add(&mut self.misborn, other.misborn);
        add(&mut self.wrong_kinds, other.wrong_kinds);
    }
}

sums! {
    /// Of one block: what is in its bytes less what was in them. Which of the sums mean something depends on what the block is of; numbers are
    /// counted from its start ([`super::Audit::absorb`]).
    #[derive(Clone, PartialEq, Eq, Default, Debug)]
    pub(crate) struct Changes {
        /// In its slots, or the roots of its records.
        pub(super) pointers: Pointers,
        /// Roots with a second address, by slot of the record; and those of them that the newest snapshot has too.
        pub(super) doubled: [i8; RECORDS as usize],
        pub(super) kept: [i8; RECORDS as usize],
        /// Records whose root is not of the level that they say.
        pub(super) wrong_levels: u64,
        /// Bits that are set; addresses, as often as their counters say; slots of records; or [`entry_number`]s of snapshots.
        pub(super) numbers: Digest,
        /// Slots of records without names.
        pub(super) nameless: Digest,
        /// Pages that records say they have.
        pub(super) pages_told: u64,
        /// The newest generation of an object that has been put, if that was not there before.
        pub(super) newest_generation: u64,
        /// Blocks in the runs of a dead list.
        pub(super) dead: Digest,
        /// Births and sorts of these runs, for each block.
        pub(super) dead_births: Digest,
    }
}

/// Entries of snapshot lists in different places are different, by a multiple of the distance between them.
pub(super) const ENTRY_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number for an entry of a snapshot list in this place, with this checksum.
pub(super) fn entry_number(place: u64, sum: u64) -> u64 {
    sum.wrapping_add(ENTRY_STEP.wrapping_mul(place))
}

impl Changes {
    /// None yet, while this is the epoch of the newest snapshot of `main`, or 0.
    pub(crate) fn under(newest_snapshot: Epoch) -> Changes {
        Changes { pointers: Pointers::under(newest_snapshot), ..Changes::default() }
    }

    fn put_record(&mut self, slot: usize, old: &RecordGlance, new: &RecordGlance) {
        self.pointers.gone(&old.root);
        self.pointers.put(&new.root);
        let more = |is: bool, was: bool| i8::from(is) - i8::from(was);
        let doubled = more(new.root.address[1] != 0, old.root.address[1] != 0);
        let kept = more(self.pointers.is_kept(&new.root), self.pointers.is_kept(&old.root));
        self.doubled[slot] = self.doubled[slot].wrapping_add(doubled);
        self.kept[slot] = self.kept[slot].wrapping_add(kept);
        add(&mut self.wrong_levels, u64::from(new.root.address[0] != 0 && new.root.level != new.levels));
        self.pages_told = self.pages_told.wrapping_add(new.blocks).wrapping_sub(old.blocks);
        if new.generation != old.generation {
            self.newest_generation = self.newest_generation.max(new.generation);
        }
        for (record, times) in [(old, u64::MAX), (new, 1)] {
            let slot = Digest::of(slot as u64).times(times);
            if record.is_used {
                self.numbers += slot;
            }
            if record.is_used && record.nlink == 0 {
                self.nameless += slot;
            }
        }
    }

    fn reach(&mut self, lowest: u64, highest: u64) {
        self.pointers.lowest = self.pointers.lowest.min(lowest);
        self.pointers.highest = self.pointers.highest.max(highest);
    }

    /// What an auditor finds who does not see the updates ([`super::compared`]); he lists blocks named and bits of the bitmap besides.
    pub(super) fn between(
        key: NodeKey,
        before: &[u8; 4096],
        after: &[u8; 4096],
        newest_snapshot: Epoch,
        lists: &mut Lists,
    ) -> Changes {
        let mut changes = Twin::new(Changes::under(newest_snapshot));
        if key.level > 0 {
            each_other(before, after, |_, old, new| {
                changes.pointer(old, new);
                lists.pointer(&Glance::at(old), &Glance::at(new));
            });
            return changes.into_one();
        }
        match system_kind(key.object) {
            Some(SystemKind::ObjectTable) => each_other(before, after, |slot, old, new| {
                changes.record(slot, old, new);
                lists.pointer(&RecordGlance::at(old).root, &RecordGlance::at(new).root);
            }),
            Some(kind @ (SystemKind::Bitmap | SystemKind::ObjectMap | SystemKind::OrphanMap)) => {
                each_other(before, after, |word, old, new| {
                    let (old, new) = (u64::from_le_bytes(*old), u64::from_le_bytes(*new));
                    changes.word(word, old, new);
                    if kind == SystemKind::Bitmap {
                        lists.word(key.index * BITS + word as u64 * 64, old, new);
                    }
                });
            }
            Some(SystemKind::References) => each_other(before, after, |slot, old, new| {
                changes.counter(slot, u32::from_le_bytes(*old), u32::from_le_bytes(*new));
            }),
            Some(SystemKind::DeadLists) => each_other(before, after, |_, old, new| changes.dead_run(old, new)),
            Some(SystemKind::SnapshotList) => {
                each_other(before, after, |slot, old, new| changes.snapshot(slot, old, new));
            }
            None => {}
        }
        changes.into_one()
    }
}

/// What is seen of an update is made out once, and counted twice.
impl Twin<Changes> {
    pub(crate) fn pointer(&mut self, old: &[u8; POINTER_BYTES], new: &[u8; POINTER_BYTES]) {
        let (old, new) = (Glance::at(old), Glance::at(new));
        self.change(|changes| {
            changes.pointers.gone(&old);
            changes.pointers.put(&new);
        });
    }

    pub(crate) fn record(&mut self, slot: usize, old: &[u8; RECORD_BYTES], new: &[u8; RECORD_BYTES]) {
        let (old, new) = (RecordGlance::at(old), RecordGlance::at(new));
        self.change(|changes| changes.put_record(slot, &old, &new));
    }

    /// 64 bits of a bitmap.
    pub(crate) fn word(&mut self, word: usize, old: u64, new: u64) {
        let first = word as u64 * 64;
        let bits = Digest::of_bits(first, new & !old) - Digest::of_bits(first, old & !new);
        self.change(|changes| changes.numbers += bits);
    }

    pub(crate) fn counter(&mut self, slot: usize, old: u32, new: u32) {
        let more = Digest::of(slot as u64).times(u64::from(new).wrapping_sub(u64::from(old)));
        self.change(|changes| changes.numbers += more);
    }

    pub(crate) fn snapshot(&mut self, slot: usize, old: &[u8; SNAPSHOT_BYTES], new: &[u8; SNAPSHOT_BYTES]) {
        for (entry, times) in [(old, u64::MAX), (new, 1)] {
            if *entry != [0; SNAPSHOT_BYTES] {
                let number = Digest::of(entry_number(slot as u64, crc64(entry))).times(times);
                self.change(|changes| changes.numbers += number);
            }
        }
    }

    pub(crate) fn dead_run(&mut self, old: &[u8; DEAD_BYTES], new: &[u8; DEAD_BYTES]) {
        let (old, new) = (DeadRun::glance(old), DeadRun::glance(new));
        for first in new.address.into_iter().filter(|address| new.count > 0 && *address != 0) {
            let last = first.saturating_add(u64::from(new.count) - 1);
            self.change(|changes| changes.reach(first, last));
        }
        let (blocks, births) = (blocks_of(&new) - blocks_of(&old), births_of(&new) - births_of(&old));
        self.change(|changes| {
            changes.dead += blocks;
            changes.dead_births += births;
        });
    }
}

/// Calls `visit` with number, old and new bytes of each slot of so many bytes that is another one now.
fn each_other<const N: usize>(
    before: &[u8; 4096],
    after: &[u8; 4096],
    mut visit: impl FnMut(usize, &[u8; N], &[u8; N]),
) {
    for (slot, (old, new)) in before.as_chunks().0.iter().zip(after.as_chunks().0).enumerate() {
        if old != new {
            visit(slot, old, new);
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
