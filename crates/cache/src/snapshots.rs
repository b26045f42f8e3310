//! Snapshots: when they are made, and what of them is in memory.
//!
//! A snapshot keeps a recovery point, so an epoch is closed first, and the next one begins with the snapshot. Objects of
//! snapshots are known here by ids that name the snapshot; they never change, and go when the snapshot goes.
//!
//! What only a deleted one had goes in slices, each with an epoch of its own, so that others come in between.

use crate::Cache;
use holdfast_object::{
    Error, ObjectChange, ObjectId, ObjectKey, PageIndex, Purpose, Result, SnapshotDeletion, SnapshotId, SnapshotInfo,
    Snapshots, check_snapshot_name,
};
use std::sync::atomic::Ordering;

/// Blocks that making a snapshot takes at most: a page of the list, the trees above it and above the dead lists, twice.
const MAKING_BLOCKS: u64 = 16;

impl Cache {
    /// Without snapshots nothing that goes away has to be noted. Nobody makes or deletes one meanwhile.
    fn note_snapshots(&self) -> Result<()> {
        let has_snapshots = !self.snapshots_uncounted()?.is_empty();
        self.state.write().has_snapshots = has_snapshots;
        Ok(())
    }

    /// Whether what deleted snapshots had is being freed: by [`Cache::tick`], a slice each time.
    pub fn is_deleting_snapshots(&self) -> bool {
        self.is_deleting.load(Ordering::Relaxed)
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

    /// The next slice of what is left of deleted snapshots. `snapshotting` is held.
    fn delete_more(&self) -> Result<Vec<SnapshotDeletion>> {
        let left = self.snapshot_deletions();
        let Some(first) = left.first() else { return Ok(left) };
        self.delete_slice(first.id)?;
        Ok(self.snapshot_deletions())
    }

    /// The same for the thread that closes epochs: unless somebody makes or deletes a snapshot right now. If it fails, it is left alone until
    /// the store is opened anew.
    pub(crate) fn go_on_deleting(&self) {
        if !self.is_deleting.load(Ordering::Relaxed) {
            return;
        }
        let Some(_one_at_a_time) = self.snapshotting.try_lock() else { return };
        let more = match self.delete_more() {
            Ok(left) => !left.is_empty(),
            // There may be room later.
            Err(error) if error.is_full() => return,
            Err(error) => {
                tracing::error!(%error, "what a deleted snapshot had cannot be freed; the next mount tries again");
                false
            }
        };
        self.is_deleting.store(more, Ordering::Relaxed);
        if more {
            self.wake_writer();
        }
    }
}

impl Snapshots for Cache {
    fn snapshot_create(&self, name: &str) -> Result<SnapshotInfo> {
        check_snapshot_name(name)?;
        if self.snapshots_uncounted()?.iter().any(|known| known.name == name) {
            return Err(Error::SnapshotExists(name.to_string()));
        }
        let _one_at_a_time = self.snapshotting.lock();
        // What is admitted into the epoch that begins with the snapshot goes away under it already.
        self.state.write().has_snapshots = true;
        let mut made = SnapshotId::LIVE;
        let written = self.close_epoch().and_then(|_| {
            self.close_epoch_with(Some(|epoch| {
                self.store.reserve(epoch, MAKING_BLOCKS, Purpose::Ordinary)?;
                made = self.store.snapshot_create(self.domain, epoch, name, self.clock.now())?;
                Ok(())
            }))
        });
        self.note_snapshots()?;
        written?;
        let info = self.snapshots()?.into_iter().find(|info| info.id == made);
        info.ok_or_else(|| Error::NoSnapshot(name.to_string()))
    }

    fn snapshot_delete(&self, name: &str) -> Result<SnapshotId> {
        let Some(info) = self.snapshots_uncounted()?.into_iter().find(|info| info.name == name) else {
            return Err(Error::NoSnapshot(name.to_string()));
        };
        let _one_at_a_time = self.snapshotting.lock();
        self.delete_slice(info.id)?;
        self.is_deleting.store(!self.snapshot_deletions().is_empty(), Ordering::Relaxed);
        self.wake_writer();
        self.state.write().forget_snapshot(info.id);
        self.note_snapshots()?;
        Ok(info.id)
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
