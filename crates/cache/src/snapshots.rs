//! Snapshots: when they are made, and what of them is in memory.
//!
//! A snapshot keeps a recovery point, so an epoch is closed first, and the next one begins with the snapshot. Objects of
//! snapshots are known here by ids that name the snapshot; they never change, and go when the snapshot goes.
//!
//! What only a deleted one had goes in slices, each with an epoch of its own, so that others come in between.

use crate::Cache;
use holdfast_object::{
    Epoch, Error, ObjectChange, ObjectId, ObjectKey, PageIndex, Purpose, Result, SnapshotCount, SnapshotDeletion,
    SnapshotId, SnapshotInfo, Snapshots, StoreStatus, check_snapshot_name,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Blocks that making a snapshot takes at most: a page of the list, the trees above it and above the dead lists, twice.
const MAKING_BLOCKS: u64 = 16;

/// Most epochs of others between two attempts to free something in a full store. An attempt writes two itself, so the more of them were in
/// vain, the more come between.
const EPOCHS_BETWEEN_MAX: u64 = 64;

/// What keeps the rest of deleted snapshots from being freed.
#[derive(Default)]
pub(crate) struct Stopped {
    /// What is left of these cannot be freed, and why; until the store is opened anew.
    stuck: BTreeMap<SnapshotId, Error>,
    /// There was no room for the next slice of these.
    full: BTreeMap<SnapshotId, Full>,
}

/// No room for a slice.
struct Full {
    error: Error,
    /// With so many blocks that are free and promised to nobody it is tried again. Nothing if it was tried for that reason and refused all
    /// the same: then it lacks something else.
    wanted: Option<u64>,
    /// And with this recovery point in any case, as the epoch before it may have given back what it had been promised.
    again: Epoch,
    /// How often it has been tried.
    tries: u32,
}

impl Full {
    fn has_what_it_wanted(&self, now: &StoreStatus) -> bool {
        self.wanted.is_some_and(|wanted| unpromised(now) >= wanted)
    }
}

/// What a slice can have.
fn unpromised(now: &StoreStatus) -> u64 {
    now.space.free.saturating_sub(now.space.reserved)
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
        stopped.stuck.get(&id).or(stopped.full.get(&id).map(|full| &full.error)).cloned()
    }

    /// One slice of the deletion of a snapshot, in an epoch of its own; if it is refused, why, and how many blocks there must be for it.
    /// `snapshotting` is held.
    ///
    /// # Errors
    /// The epoch, which is also everybody's, could not be written: the store takes no changes any more.
    fn delete_slice(&self, id: SnapshotId) -> Result<std::result::Result<(), (Error, u64)>> {
        let slice = || {
            let mut refusal = None;
            let delete = |epoch| {
                let done = self.store.snapshot_delete(self.domain, epoch, id).map(|_more| ());
                done.inspect_err(|error| {
                    let lacking = match error {
                        Error::NoSpace { needed, available } => needed.saturating_sub(*available),
                        _ => 0,
                    };
                    let wanted = unpromised(&self.store.status()).saturating_add(lacking);
                    refusal = Some((error.clone(), wanted));
                })
            };
            let closed = self.close_epoch_with(Some(delete)).map(drop);
            match (closed, refusal) {
                // The epoch went down all the same.
                (Err(_), Some(refusal)) if self.state.read().read_only.is_none() => Ok(Err(refusal)),
                (closed, _) => closed.map(Ok),
            }
        };
        // If what the epoch has been promised leaves no room for the notes that move, the next one, just begun, has it.
        match slice()? {
            Err((error, _)) if error.is_full() => slice(),
            done => Ok(done),
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
        let (next, had_room) = {
            let stopped = self.stopped.lock();
            let now = self.store.status();
            let may_go_on = |deletion: &&SnapshotDeletion| {
                stopped
                    .full
                    .get(&deletion.id)
                    .is_none_or(|full| now.epoch >= full.again || full.has_what_it_wanted(&now))
            };
            match left.iter().find(may_go_on) {
                Some(next) => (next, stopped.full.get(&next.id).is_some_and(|full| full.has_what_it_wanted(&now))),
                None => return stopped.full.values().next().map_or(Ok(left), |full| Err(full.error.clone())),
            }
        };
        let (id, name) = (next.id, &next.name);
        let outcome = self.delete_slice(id)?;
        let mut stopped = self.stopped.lock();
        match outcome {
            Ok(()) => {
                stopped.full.remove(&id);
                // Others may have less to note now.
                stopped.full.values_mut().for_each(|full| full.again = 0);
                drop(stopped);
                Ok(self.to_be_freed())
            }
            Err((error, wanted)) if error.is_full() => {
                let tries = stopped.full.get(&id).map_or(0, |full| full.tries) + 1;
                if tries == 1 {
                    tracing::warn!(%error, id = id.0, name, "what a deleted snapshot had is not freed: there is no room for it");
                }
                let between = 1u64.checked_shl(tries - 1).unwrap_or(u64::MAX).min(EPOCHS_BETWEEN_MAX);
                // After the epochs that the attempt has closed itself.
                let again = self.store.status().epoch.saturating_add(between);
                let wanted = (!had_room).then_some(wanted);
                stopped.full.insert(id, Full { error: error.clone(), wanted, again, tries });
                Err(error)
            }
            Err((error, _)) => {
                tracing::error!(%error, id = id.0, name, "what a deleted snapshot had cannot be freed; the next mount tries again");
                stopped.stuck.insert(id, error.clone());
                Err(error)
            }
        }
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
            // Or the store takes no changes any more.
            Err(_) => self.state.read().read_only.is_none() && !self.to_be_freed().is_empty(),
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
        self.delete_slice(info.id)?.map_err(|(error, _)| error)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use holdfast_block::MemoryDevice;
    use holdfast_logical::Logical;
    use holdfast_object::{Arena, Batch, DomainId, ManualClock, ObjectStore};
    use holdfast_physical::{CreateOptions, Module, OpenOptions};
    use std::sync::Arc;

    #[test]
    fn an_epoch_that_cannot_be_written_is_no_trouble_of_the_deletion_in_it() {
        let device = Arc::new(MemoryDevice::new(2_048));
        let clock = Arc::new(ManualClock::new(1_000_000_000, 1_000));
        let options = CreateOptions::new([1; 16], [2; 16]);
        Module::create(device.clone(), Arena::new(64, 4096).unwrap(), clock.clone(), &options).unwrap();
        let arena = Arena::new(256, 64 << 10).unwrap();
        let module = Arc::new(Module::open(device, arena.clone(), clock.clone(), &OpenOptions::default()).unwrap());
        let store = Arc::new(Logical::assemble(vec![module.clone()]).unwrap());
        let cache = Cache::open(store, arena, clock, DomainId::MAIN, Options::for_frames(256)).unwrap().0;
        let id = cache.snapshot_create("a").unwrap().id;
        // The deletion itself is refused, and so is what others want to write.
        let later = cache.store_status().epoch + 9;
        module.apply(&Batch { domain: DomainId::MAIN, epoch: later, ops: Vec::new() }).unwrap();
        let _one_at_a_time = cache.snapshotting.lock();
        let refused = cache.delete_slice(id);
        assert!(matches!(refused, Err(Error::Protocol(_))), "{refused:?}");
        assert!(cache.state.read().read_only.is_some() && cache.stopped.lock().stuck.is_empty());
        assert!(matches!(cache.delete_slice(id), Err(Error::ReadOnly(_))));
    }
}
