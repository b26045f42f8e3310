//! Deleting a snapshot: its dead list is worked off from its end, a slice with each recovery point, so that nobody waits for the whole of it.
//! Whether it can be read to its end is found out before, part by part ([`holdfast_object::ObjectStore::snapshot_count_part`]).
//!
//! With the first slice the snapshot is gone: its entry in the list says that it is deleted, nothing looks into it, nothing joins its dead
//! list any more. With the last one the entry goes. A power cut between two leaves a shorter list, and the store goes on with it.
//!
//! Invariants:
//! - what is left of the list is what the domain does not have, and an older snapshot has or nobody;
//! - a slice depends on nothing but the list and the snapshots there are, so others can be made and deleted between two.

use super::{EntrySums, Kept, OfDomain, Slot};
use crate::audit::KeptStart;
use crate::base::Base;
use crate::commit::CommitOrder;
use crate::format::{DEAD_RUNS, DeadRun, SNAPSHOTS, StoredSnapshot};
use crate::guarded::Doubled;
use crate::meta_block::Scribble;
use crate::module::Module;
use crate::objects::{dead_of, system_key};
use crate::scribble::Cells;
use crate::snapshot::dead_list::{SLOTS, pages_of, runs_in};
use crate::tree::Trees;
use holdfast_object::space::{levels, note_blocks};
use holdfast_object::{DomainId, Epoch, Error, PageIndex, Place, Purpose, Result, Seek, SnapshotDeletion, SnapshotId};

/// What of the dead list of a deleted snapshot goes with one recovery point, at most. Others wait while it does
/// (`docs/snapshots.md` has figures for the default).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeletionSlice {
    /// Runs of blocks; 1 at least.
    pub runs: usize,
    /// Blocks of 4 KiB in them, copies counted; 2 at least. A longer run goes in parts.
    pub blocks: u64,
}

impl Default for DeletionSlice {
    fn default() -> Self {
        DeletionSlice { runs: 8192, blocks: 1 << 17 }
    }
}

/// A deleted snapshot with a part of its dead list left.
pub(super) struct Deleted {
    pub(super) slot: Slot,
    pub(super) stored: StoredSnapshot,
    /// Of the entry in the list.
    pub(super) sums: EntrySums,
    /// Pages of its dead list; 1 if nobody knows.
    pages_left: Doubled,
}

impl Deleted {
    fn new(slot: u16, stored: StoredSnapshot, pages_left: u64) -> Deleted {
        Deleted { slot: Slot::new(slot), sums: EntrySums::of(&stored), stored, pages_left: Doubled::new(pages_left) }
    }

    /// Whether the numbers that are in no list are.
    pub(super) fn is_good(&self) -> bool {
        self.slot.0.is_good() && self.pages_left.is_good()
    }

    /// Puts the numbers right that are in no list.
    pub(super) fn heal(&mut self) -> Option<Scribble> {
        self.slot.heal().or(self.pages_left.heal("pages that are left of a deleted snapshot"))
    }

    /// # Errors
    /// Somebody has written to it who must not.
    pub(super) fn verify(&self) -> std::result::Result<(), Scribble> {
        self.sums.verify(&self.stored)
    }
}

/// What nobody may do: see [`crate::scribble`].
impl Deleted {
    pub(super) fn cells(&mut self) -> Cells<'_> {
        let mut cells = Cells::of_snapshot(&mut self.stored);
        cells.own("slot", self.slot.0.scribbled());
        cells.own("pages_left", self.pages_left.scribbled());
        cells
    }
}

/// The end of a dead list.
#[derive(Debug)]
struct Slice {
    /// From the last one on backwards.
    runs: Vec<DeadRun>,
    /// Of this page, `left` stays, and if that is nothing, the list ends before it; nothing stays behind it.
    page: PageIndex,
    left: Vec<DeadRun>,
    /// The runs in the pages that go as a whole.
    gone: Vec<DeadRun>,
}

impl Kept {
    /// Places of deleted snapshots with a part of their dead lists left.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = (DomainId, u16)> {
        let of_domain = |(domain, of): (&DomainId, &OfDomain)| {
            of.deleted.iter().map(|deleted| (*domain, deleted.slot.get())).collect::<Vec<_>>()
        };
        self.domains.iter().flat_map(of_domain)
    }
}

impl OfDomain {
    /// The entry of a snapshot, be it deleted or not, and its place.
    fn entry(&self, id: SnapshotId) -> Option<(u16, &StoredSnapshot)> {
        let held = self.held.iter().map(|held| (held.slot.get(), &held.stored));
        let deleted = self.deleted.iter().map(|deleted| (deleted.slot.get(), &deleted.stored));
        held.chain(deleted).find(|(_, stored)| stored.id == id)
    }
}

impl Trees {
    /// A deleted snapshot as it is listed. That its dead list cannot be read is its own damage: nothing is added to that any more.
    pub(super) fn deleted(&self, base: &Base, domain: DomainId, slot: u16, stored: StoredSnapshot) -> Deleted {
        let end = self.system.get(&dead_of(domain)).map(|record| self.dead_end(base, record, domain, slot));
        let pages_left = match end {
            Some(Ok(end)) => end - pages_of(slot).start,
            Some(Err(error)) => {
                let (id, name) = (stored.id.0, &stored.name);
                tracing::error!(%error, id, name, "what is left of a deleted snapshot is not known");
                1
            }
            None => 0,
        };
        Deleted::new(slot, stored, pages_left)
    }

    /// The end of a dead list, as much as may go at once. Nothing of it was added in the epoch being built.
    fn dead_slice(&self, base: &Base, domain: DomainId, slot: u16, most: DeletionSlice) -> Result<Slice> {
        let key = system_key(dead_of(domain));
        let mut slice = Slice { runs: Vec::new(), page: pages_of(slot).start, left: Vec::new(), gone: Vec::new() };
        let Some(record) = self.system.get(&key.object.0) else { return Ok(slice) };
        let mut page = self.dead_end(base, record, domain, slot)?;
        let beyond = self.seek(base, key, record, page, Seek::Data)?;
        if let Some(beyond) = beyond.filter(|beyond| pages_of(slot).contains(beyond)) {
            // What is there would go with the rest, and nobody would know what was in it.
            let place = Place { object: Some(key), index: Some(beyond), ..base.disk.place(0) };
            return Err(Error::corrupt(place, "dead list", format!("no page behind {page}, its end"), "one"));
        }
        let (mut runs, mut blocks) = (most.runs.max(1), most.blocks.max(2));
        let first = slice.page;
        while page > first && runs > 0 && blocks > 1 {
            page -= 1;
            let Some(block) = self.node_now(base, key, record, 0, page)? else {
                let place = Place { object: Some(key), index: Some(page), ..base.disk.place(0) };
                return Err(Error::corrupt(place, "dead list", "no gaps", "a hole"));
            };
            let mut left = runs_in(base, domain, page, &block)?;
            let all = left.clone();
            while let Some(mut run) = left.pop() {
                let copies = run.blocks_in_all() / u64::from(run.count);
                let fits = u32::try_from(blocks / copies).unwrap_or(u32::MAX).min(run.count);
                if runs == 0 || fits == 0 {
                    left.push(run);
                    break;
                }
                let taken = if fits < run.count {
                    let end = run.split_off(fits);
                    left.push(run);
                    end
                } else {
                    run
                };
                (runs, blocks) = (runs - 1, blocks - taken.blocks_in_all());
                slice.runs.push(taken);
            }
            if !left.is_empty() {
                return Ok(Slice { page, left, ..slice });
            }
            slice.gone.extend(all);
        }
        Ok(Slice { page, ..slice })
    }
}

/// Blocks for writing an entry of the list anew: its page and what is above that, twice.
fn entry_blocks() -> u64 {
    2 * (1 + u64::from(levels(u64::from(SLOTS) / SNAPSHOTS - 1)))
}

/// Blocks for a slice of which so many runs move. Written anew: the entry, and what is above the cut, also if the whole list goes, as others' are
/// below the same blocks. The notes that move have their own way down.
pub(crate) fn slice_blocks(moved: u64) -> u64 {
    let notes = if moved > 0 { note_blocks(moved) } else { 0 };
    entry_blocks() + note_blocks(0) + notes
}

impl Module {
    /// See [`holdfast_object::ObjectStore::snapshot_delete`].
    pub(crate) fn delete_snapshot(&self, domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool> {
        let mut committing = self.committing.lock();
        self.begin(&committing, epoch)?;
        let mut trees = self.trees.write();
        trees.verify_snapshots(&self.base, domain)?;
        let of_domain = trees.kept.domains.get(&domain);
        let Some((slot, stored)) = of_domain.and_then(|of_domain| of_domain.entry(id)) else {
            return Err(Error::NoSnapshot(id.0.to_string()));
        };
        let stored = StoredSnapshot { is_deleted: true, ..stored.clone() };
        let age = |stored: &StoredSnapshot| (stored.epoch, stored.id);
        let before = trees.kept.of(domain).iter().rev().find(|held| age(&held.stored) < age(&stored));
        let before = before.map(|held| (held.slot.get(), held.stored.epoch));
        let Slice { runs, page, left, gone } = trees.dead_slice(&self.base, domain, slot, self.deletion_slice)?;
        let moved = runs.iter().filter(|run| before.is_some_and(|(_, kept)| kept >= run.birth_log)).count() as u64;
        let pages_left = page - pages_of(slot).start + u64::from(!left.is_empty());
        let is_over = pages_left == 0 || self.base.commit_order == CommitOrder::UnlistFirst;
        self.base.alloc.lock().reserve(epoch, slice_blocks(moved), Purpose::Release)?;
        self.disk().raise_newest(epoch);
        trees.building = epoch;
        // What can fail fails before anything has changed.
        trees.open_listed(&self.base, domain, slot)?;
        trees.open_dead(&self.base, domain, slot, page, !left.is_empty())?;
        trees.put_listed(&self.base, domain, slot, (!is_over).then_some(&stored))?;
        committing.applied.set(epoch);
        let of_domain = trees.kept.domains.entry(domain).or_default();
        let was_newest = of_domain.held.pop_if(|newest| newest.stored.id == id).is_some();
        of_domain.held.retain(|held| held.stored.id != id);
        of_domain.deleted.retain(|deleted| deleted.stored.id != id);
        if !is_over {
            of_domain.deleted.push(Deleted::new(slot, stored, pages_left));
        }
        if let Some(blocks) = of_domain.dead_blocks.get_mut() {
            *blocks = blocks.saturating_sub(runs.iter().map(DeadRun::blocks_in_all).sum());
        }
        debug_assert!(!of_domain.dying.contains_key(&slot), "nothing has been applied for this epoch");
        if was_newest && domain == DomainId::MAIN {
            let kept = trees.kept.metadata_of_newest(domain).unwrap_or(0);
            let newest = trees.kept.newest_epoch(domain);
            trees.audit.newest_snapshot_is(newest, KeptStart::Known(kept));
        }
        trees.tell_kept(&self.base);
        trees.cut_dead(&self.base, domain, slot, page, &left)?;
        trees.audit.dead_page_cut(&gone);
        let frees_all = self.base.commit_order == CommitOrder::FreeAllOfDeleted;
        for run in runs {
            trees.audit.exhumed(&run);
            match before {
                Some((slot, kept)) if kept >= run.birth_log && !frees_all => {
                    trees.audit.buried(&run);
                    trees.kept.domains.entry(domain).or_default().bury(slot, run);
                }
                _ => trees.let_go(&self.base, &run),
            }
        }
        Ok(!is_over)
    }

    /// See [`holdfast_object::ObjectStore::snapshot_deletions`].
    pub(crate) fn list_deletions(&self, domain: DomainId) -> Vec<SnapshotDeletion> {
        let trees = self.trees();
        let deletion = |deleted: &Deleted| SnapshotDeletion {
            id: deleted.stored.id,
            name: deleted.stored.name.clone(),
            runs_left: deleted.pages_left.get() * DEAD_RUNS,
        };
        trees.kept.domains.get(&domain).map_or(Vec::new(), |of_domain| of_domain.deleted.iter().map(deletion).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Record, SystemKind};
    use holdfast_object::Timestamp;

    #[test]
    fn what_is_known_of_a_deleted_snapshot_is_verified() {
        let stored = StoredSnapshot {
            id: SnapshotId(3),
            name: "kept".into(),
            created: Timestamp::default(),
            epoch: 7,
            objects: 40,
            metadata_before: 12,
            is_deleted: true,
            table: Record::system(SystemKind::ObjectTable, 7),
        };
        let sound = || Deleted::new(1, stored.clone(), 2);
        assert_eq!(sound().verify(), Ok(()));
        let strikes: [fn(&mut StoredSnapshot); 5] = [
            |stored| stored.id.0 ^= 1,
            |stored| stored.epoch ^= 4,
            |stored| stored.is_deleted = false,
            |stored| stored.metadata_before += 1,
            |stored| stored.table.levels ^= 1,
        ];
        for strike in strikes {
            let mut struck = sound();
            strike(&mut struck.stored);
            struck.verify().unwrap_err();
        }
    }
}
