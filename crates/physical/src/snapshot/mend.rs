//! What becomes of an entry in use that cannot be what it says: it is made that of a deleted snapshot, and the deletion does the rest. Nobody can
//! look into it any more, but its dead list has blocks that older snapshots have too.
//!
//! Which of them these are follows from its age ([`super::delete`]). If the entry does not say that any more, it counts as the newest one: then what
//! nobody has stays in use until the one before it goes, and nothing that somebody has becomes free.

use super::dead_list::SLOTS;
use super::delete::Deleted;
use crate::audit::KeptStart;
use crate::base::Base;
use crate::format::{DeadRun, Record, SNAPSHOTS, StoredSnapshot, SystemKind};
use crate::module::Module;
use crate::objects::{snapshots_of, system_key};
use crate::tree::Trees;
use holdfast_object::{DomainId, Epoch, Error, Result, SnapshotId, Timestamp};

impl Trees {
    /// What is put in the place of such an entry; `last` is the last recovery point.
    fn as_deleted(&self, base: &Base, domain: DomainId, slot: u16, last: Epoch) -> Result<StoredSnapshot> {
        let list = system_key(snapshots_of(domain));
        let (page, at) = (u64::from(slot) / SNAPSHOTS, (u64::from(slot) % SNAPSHOTS) as usize);
        let record = self.system.get(&list.object.0).ok_or(Error::NoObject(list))?;
        let block = self.node(base, list, record, 0, page)?.ok_or(Error::NoObject(list))?;
        let (id, name, epoch) = StoredSnapshot::glance(block.snapshot(at));
        let of_domain = &self.kept.domains[&domain];
        let is_taken = |id: &SnapshotId| of_domain.ids().any(|used| used == *id);
        let id =
            id.filter(|id| !is_taken(id)).or_else(|| (1..=SnapshotId::MAX.0).map(SnapshotId).find(|id| !is_taken(id)));
        let id = id.ok_or(Error::Limit { what: "snapshots", limit: SLOTS.into(), got: u64::from(SLOTS) + 1 })?;
        // None of what died in it was born later.
        let born = self.dead_runs(base, domain, slot)?.iter().map(|run: &DeadRun| run.birth_log).max().unwrap_or(1);
        let others =
            || of_domain.held.iter().map(|held| &held.stored).chain(of_domain.deleted.iter().map(|it| &it.stored));
        let is_possible = |epoch: &Epoch| (born..last).contains(epoch) && others().all(|other| other.epoch != *epoch);
        Ok(StoredSnapshot {
            id,
            name: name.unwrap_or_else(|| format!("damaged-{slot}")),
            created: Timestamp::default(),
            epoch: epoch.filter(is_possible).unwrap_or(last),
            objects: 0,
            metadata_before: 0,
            is_deleted: true,
            table: Record::system(SystemKind::ObjectTable, 1),
        })
    }
}

impl Module {
    /// Makes all entries in use that cannot be read those of deleted snapshots, in the recovery point `epoch`.
    ///
    /// # Errors
    /// Those of reading lists and dead lists.
    pub(crate) fn bury_unreadable(&self, epoch: Epoch) -> Result<()> {
        let mut committing = self.committing.lock();
        let last = self.superblock()?.epoch;
        let mut trees = self.trees.write();
        trees.building = epoch;
        self.disk().raise_newest(epoch);
        for domain in trees.kept.domains().collect::<Vec<_>>() {
            while let Some((&slot, _)) = trees.kept.domains.get(&domain).and_then(|of| of.bad.first_key_value()) {
                let stored = trees.as_deleted(&self.base, domain, slot, last)?;
                trees.open_listed(&self.base, domain, slot)?;
                trees.put_listed(&self.base, domain, slot, Some(&stored))?;
                let deleted: Deleted = trees.deleted(&self.base, domain, slot, stored);
                let of_domain = trees.kept.domains.entry(domain).or_default();
                of_domain.bad.remove(&slot);
                of_domain.deleted.push(deleted);
                committing.applied.set(epoch);
                if domain == DomainId::MAIN {
                    let kept = trees.kept.metadata_of_newest(domain).unwrap_or(0);
                    trees.audit.newest_snapshot_is(KeptStart::Known(kept));
                }
            }
        }
        trees.tell_kept(&self.base);
        Ok(())
    }
}
