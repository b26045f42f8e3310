//! Snapshots: when they are made, and what of them is in memory.
//!
//! A snapshot keeps a recovery point, so an epoch is closed first, and the next one begins with the snapshot. Objects of
//! snapshots are known here by ids that name the snapshot; they never change, and go when the snapshot goes.
//!
//! What only a deleted one had goes in slices, each with an epoch of its own, so that others come in between.

use crate::Cache;
use holdfast_object::{
    Epoch, Error, ObjectChange, ObjectId, ObjectKey, PageIndex, Purpose, Result, SnapshotCount, SnapshotDeletion,
    SnapshotId, SnapshotInfo, Snapshots, check_snapshot_name,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Blocks that making a snapshot takes at most: a page of the list, the trees above it and above the dead lists, twice.
const MAKING_BLOCKS: u64 = 16;

/// What keeps the rest of deleted snapshots from being freed.
#[derive(Default)]
pub(crate) struct Stopped {
    /// What is left of these cannot be freed, and why; until the store is opened anew.
    stuck: BTreeMap<SnapshotId, Error>,
    /// There was no room for the next slice of these.
    full: BTreeMap<SnapshotId, Error>,
    /// The last recovery point, and the free blocks, as that was found out. Not tried again before there is another, or
    /// more of them are.
    full_at: (Epoch, u64),
    /// The log has been told of these that there was no room.
    told: BTreeSet<SnapshotId>,
}

impl Cache {
    /// Without snapshots nothing that goes away has to be noted. Nobody makes or deletes one meanwhile.
    fn note_snapshots(&self) -> Result<()> {
        let has_snapshots = !self.snapshots_uncounted()?.is_empty();
        self.state.write().has_snapshots = has_snapshots;
        Ok(())
    }

    /// Why what is left of a deleted snapshot is not being freed by [`Cache::tick`], a slice each time, if that is so. A store that is too
    /// full goes on when it may have more room, another one when it is opened anew.
    pub fn deletion_stopped(&self, id: SnapshotId) -> Option<Error> {
        if let Some(reason) = &self.state.read().read_only {
            return Some(Error::ReadOnly(reason.clone()));
        }
        let stopped = self.stopped.lock();
        stopped.stuck.get(&id).or(stopped.full.get(&id)).cloned()
    }

    /// One slice of the deletion of a snapshot, in an epoch of its own. `snapshotting` is held.
    fn delete_slice(&self, id: SnapshotId) -> Result<()> {
        let slice = || {
            let delete = |epoch| self.store.snapshot_delete(self.domain, epoch, id).map(|_more| ());
            self.close_epoch_with(Some(delete)).map(drop)
        };
        // If what the epoch has been promised leaves no room for the notes that move, the next one, just begun, has it.
        match slice() {
            Err(error) if error.is_full() => slice(),
            done => done,
        }
    }

    /// Deleted snapshots of which more can be freed.
    fn to_be_freed(&self) -> Vec<SnapshotDeletion> {
        let mut left = self.snapshot_deletions();
        let stopped = self.stopped.lock();
        left.retain(|deletion| !stopped.stuck.contains_key(&deletion.id));
        left
    }

    /// The next slice of what is left of deleted snapshots. `snapshotting` is held.
    fn delete_more(&self) -> Result<Vec<SnapshotDeletion>> {
        let left = self.to_be_freed();
        let next = {
            let mut stopped = self.stopped.lock();
            if !stopped.full.is_empty() {
                let (epoch, free) = self.room();
                if epoch != stopped.full_at.0 || free > stopped.full_at.1 {
                    stopped.full.clear();
                }
            }
            match left.iter().find(|deletion| !stopped.full.contains_key(&deletion.id)) {
                Some(next) => next,
                None => return stopped.full.values().next().map_or(Ok(left), |error| Err(error.clone())),
            }
        };
        let (id, name) = (next.id, &next.name);
        let outcome = self.delete_slice(id);
        let mut stopped = self.stopped.lock();
        match outcome {
            Ok(()) => {
                stopped.full.clear();
                stopped.told.remove(&id);
                drop(stopped);
                Ok(self.to_be_freed())
            }
            Err(error) if error.is_full() => {
                if stopped.told.insert(id) {
                    tracing::warn!(%error, id = id.0, name, "what a deleted snapshot had is not freed: there is no room for it");
                }
                stopped.full.insert(id, error.clone());
                // After the epochs that the attempt has closed itself.
                stopped.full_at = self.room();
                Err(error)
            }
            // The store takes no changes any more.
            Err(error @ (Error::Device(_) | Error::ReadOnly(_))) => Err(error),
            Err(error) => {
                tracing::error!(%error, id = id.0, name, "what a deleted snapshot had cannot be freed; the next mount tries again");
                stopped.stuck.insert(id, error.clone());
                Err(error)
            }
        }
    }

    /// The last recovery point, and the free blocks.
    fn room(&self) -> (Epoch, u64) {
        let status = self.store.status();
        (status.epoch, status.space.free)
    }

    /// The same for the thread that closes epochs: unless somebody makes or deletes a snapshot right now.
    pub(crate) fn go_on_deleting(&self) {
        if !self.is_deleting.load(Ordering::Relaxed) {
            return;
        }
        let Some(_one_at_a_time) = self.snapshotting.try_lock() else { return };
        let more = match self.delete_more() {
            Ok(left) => !left.is_empty(),
            // There may be room later.
            Err(error) if error.is_full() => return,
            // The store takes no changes any more.
            Err(Error::Device(_) | Error::ReadOnly(_)) => false,
            Err(_) => !self.to_be_freed().is_empty(),
        };
        self.is_deleting.store(more, Ordering::Relaxed);
        if more {
            self.wake_writer();
        }
    }

    /// What only a snapshot has. Others come in between.
    fn count(&self, id: SnapshotId) -> Result<u64> {
        let mut count = SnapshotCount::default();
        while self.store.snapshot_count_part(self.domain, id, &mut count)? {}
        Ok(count.blocks)
    }

    fn snapshot_named(&self, name: &str) -> Result<Option<SnapshotInfo>> {
        Ok(self.snapshots_uncounted()?.into_iter().find(|info| info.name == name))
    }
}

impl Snapshots for Cache {
    fn snapshot_create(&self, name: &str) -> Result<SnapshotInfo> {
        check_snapshot_name(name)?;
        let _one_at_a_time = self.snapshotting.lock();
        if self.snapshot_named(name)?.is_some() {
            return Err(Error::SnapshotExists(name.to_string()));
        }
        // What is admitted into the epoch that begins with the snapshot goes away under it already.
        self.state.write().has_snapshots = true;
        let written = self.close_epoch().and_then(|_| {
            self.close_epoch_with(Some(|epoch| {
                self.store.reserve(epoch, MAKING_BLOCKS, Purpose::Ordinary)?;
                self.store.snapshot_create(self.domain, epoch, name, self.clock.now()).map(drop)
            }))
        });
        self.note_snapshots()?;
        written?;
        // Not counted: so far the files have all that it has.
        self.snapshot_named(name)?.ok_or_else(|| Error::NoSnapshot(name.to_string()))
    }

    fn snapshot_delete(&self, name: &str) -> Result<SnapshotInfo> {
        let _one_at_a_time = self.snapshotting.lock();
        let Some(mut info) = self.snapshot_named(name)? else {
            return Err(Error::NoSnapshot(name.to_string()));
        };
        info.blocks_only = self.count(info.id)?;
        self.delete_slice(info.id)?;
        self.is_deleting.store(!self.to_be_freed().is_empty(), Ordering::Relaxed);
        self.wake_writer();
        self.state.write().forget_snapshot(info.id);
        self.note_snapshots()?;
        Ok(info)
    }

    fn snapshot_delete_more(&self) -> Result<Vec<SnapshotDeletion>> {
        let _one_at_a_time = self.snapshotting.lock();
        self.delete_more()
    }

    fn snapshot_deletions(&self) -> Vec<SnapshotDeletion> {
        self.store.snapshot_deletions(self.domain)
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.store.snapshots(self.domain)
    }

    fn snapshots_uncounted(&self) -> Result<Vec<SnapshotInfo>> {
        self.store.snapshots_uncounted(self.domain)
    }

    fn changed_objects(
        &self,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        self.store.changed_objects(self.domain, states, after, limit)
    }

    fn changed_pages(
        &self,
        id: ObjectId,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        self.store.changed_pages(ObjectKey { domain: self.domain, object: id }, states, first, limit)
    }
}
