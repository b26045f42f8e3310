//! What becomes of an entry in use that cannot be what it says: it is made that of a deleted snapshot, and the deletion does the rest. Nobody can
//! look into it any more, but its dead list has blocks that older snapshots have too.
//!
//! Which of them these are follows from its age ([`super::delete`]). The epoch that a damaged entry says is not believed: a lower one may be just what
//! is damaged, and would free what others have. The birth of its table says after which others it was made ([`age`]). One that is lower than it was does
//! not make an entry unreadable, and one that is higher frees less. If the table cannot be read either, or not all of the other snapshots can be, so that
//! nobody sees what an age that is too low would free, the entry counts as the newest one: then what nobody has stays in use until the newest of the
//! others goes, as the check says, and nothing that somebody has becomes free.

use super::dead_list::SLOTS;
use super::delete::Deleted;
use crate::audit::KeptStart;
use crate::base::Base;
use crate::format::{BlockPointer, Record, SNAPSHOTS, StoredSnapshot, SystemKind};
use crate::module::Module;
use crate::objects::{snapshots_of, system_key};
use crate::tree::Trees;
use holdfast_object::{DomainId, Epoch, Error, Result, SnapshotId, Timestamp};

impl Trees {
    /// What is put in the place of such an entry, which is as old as its table says, or the newest one; `last` is the last recovery point.
    fn as_deleted(
        &self,
        base: &Base,
        (domain, slot): (DomainId, u16),
        last: Epoch,
        is_newest: bool,
    ) -> Result<StoredSnapshot> {
        let list = system_key(snapshots_of(domain));
        let (page, at) = (u64::from(slot) / SNAPSHOTS, (u64::from(slot) % SNAPSHOTS) as usize);
        let record = self.system.get(&list.object.0).ok_or(Error::NoObject(list))?;
        let block = self.node(base, list, record, 0, page)?.ok_or(Error::NoObject(list))?;
        let (id, name) = StoredSnapshot::glance(block.snapshot(at));
        let of_domain = &self.kept.domains[&domain];
        let is_taken = |id: &SnapshotId| of_domain.ids().any(|used| used == *id);
        let id =
            id.filter(|id| !is_taken(id)).or_else(|| (1..=SnapshotId::MAX.0).map(SnapshotId).find(|id| !is_taken(id)));
        let id = id.ok_or(Error::Limit { what: "snapshots", limit: SLOTS.into(), got: u64::from(SLOTS) + 1 })?;
        let table = StoredSnapshot::glance_table(block.snapshot(at), last, base.disk.blocks()).filter(|_| !is_newest);
        let others = of_domain.held.iter().map(|held| (held.stored.epoch, &held.stored.table.root));
        Ok(StoredSnapshot {
            id,
            name: name.unwrap_or_else(|| format!("damaged-{slot}")),
            created: Timestamp::default(),
            epoch: table.and_then(|table| age(&table.root, others)).unwrap_or(last).min(last),
            objects: 0,
            metadata_before: 0,
            is_deleted: true,
            table: Record::system(SystemKind::ObjectTable, 1),
        })
    }
}

/// An epoch that a snapshot with this table may have, as to what older ones have; the `others` are each with its epoch and its table. A table stays
/// the same from its root's birth on until something in it changes: so of the others from then on, those with the same have nothing else, and the
/// rest is newer.
fn age<'a>(root: &BlockPointer, others: impl Iterator<Item = (Epoch, &'a BlockPointer)>) -> Option<Epoch> {
    let same = others.filter(|(_, other)| *other == root).map(|(epoch, _)| epoch + 1).max();
    (!root.is_hole()).then(|| same.unwrap_or(root.birth_log))
}

impl Module {
    /// Makes all entries in use that cannot be read those of deleted snapshots, in the recovery point `epoch`. Whether all other snapshots can be
    /// read everywhere.
    ///
    /// # Errors
    /// Those of reading lists and dead lists.
    pub(crate) fn bury_unreadable(&self, epoch: Epoch, sees_all: bool) -> Result<()> {
        let mut committing = self.committing.lock();
        let last = self.superblock()?.epoch;
        let mut trees = self.trees.write();
        trees.building = epoch;
        self.disk().raise_newest(epoch);
        for domain in trees.kept.domains().collect::<Vec<_>>() {
            while let Some((&slot, _)) = trees.kept.domains.get(&domain).and_then(|of| of.bad.first_key_value()) {
                let stored = trees.as_deleted(&self.base, (domain, slot), last, !sees_all)?;
                trees.open_listed(&self.base, domain, slot)?;
                trees.put_listed(&self.base, domain, slot, Some(&stored))?;
                let deleted: Deleted = trees.deleted(&self.base, domain, slot, stored);
                let of_domain = trees.kept.domains.entry(domain).or_default();
                of_domain.bad.remove(&slot);
                of_domain.deleted.push(deleted);
                committing.applied.set(epoch);
                if domain == DomainId::MAIN {
                    let kept = trees.kept.metadata_of_newest(domain).unwrap_or(0);
                    let newest = trees.kept.newest_epoch(domain);
                    trees.audit.newest_snapshot_is(newest, KeptStart::Known(kept));
                }
            }
        }
        trees.tell_kept(&self.base);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::Side;

    #[test]
    fn a_damaged_snapshot_is_as_old_as_its_table_says() {
        let root = |epoch| BlockPointer::lost(epoch, Side::Device);
        let (old, its, new) = (root(3), root(7), root(11));
        assert_eq!(age(&its, [(5, &old), (12, &new)].into_iter()), Some(7));
        // Nothing has changed since: it is behind whoever has the same, so that what goes with it stays with that one.
        assert_eq!(age(&its, [(5, &old), (7, &its), (9, &its), (12, &new)].into_iter()), Some(10));
        assert_eq!(age(&BlockPointer::HOLE, [(5, &old)].into_iter()), None);
    }
}
