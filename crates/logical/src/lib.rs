//! The logical layer: which physical modules hold an object, by the policy that its record names.
//!
//! ```text
//!            ObjectStore (one store, objects with policies)
//!  cache ───────────────► Logical ──── policy of the object ───► physical module 0
//!                            │                                   physical module 1 …
//!                            └── epochs: all modules prepare, then all publish
//! ```
//!
//! It speaks the object protocol on both sides, so that redundancy has one place: choosing the copies to write, trying the
//! others when a read fails, agreeing on the epoch that every module has. The policy `single` (id 0) keeps each object on
//! one module; it is the only one so far, and stores have one module.
//!
//! Invariant: no module publishes an epoch before every module has prepared it.

mod policy;

pub use policy::Policy;

use holdfast_integrity::Protection;
use holdfast_object::{
    Applied, Attributes, Batch, Corruption, DomainId, Epoch, Error, Found, FrameMut, LogBatch, LoggedPage, Mending,
    ObjectChange, ObjectId, ObjectKey, ObjectStore, Op, PageIndex, PageRef, PageSource, Place, Placement, PolicyId,
    Purpose, RecoveredBatch, Result, ScrubCursor, ScrubStep, Seek, SnapshotCount, SnapshotDeletion, SnapshotId,
    SnapshotInfo, StoreStatus, Timestamp,
};
use std::ops::Range;
use std::sync::Arc;

/// The modules cannot be one store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AssemblyError {
    /// A store has at least one device.
    #[error("a store needs at least one device")]
    NoModule,
    /// Policies over several devices do not exist yet.
    #[error("{0} devices given, stores of this version have one")]
    TooManyModules(usize),
}

/// Objects over physical modules.
pub struct Logical {
    modules: Vec<Arc<dyn ObjectStore>>,
}

impl Logical {
    /// Puts the modules of one store together.
    pub fn assemble(modules: Vec<Arc<dyn ObjectStore>>) -> std::result::Result<Logical, AssemblyError> {
        match modules.len() {
            0 => Err(AssemblyError::NoModule),
            1 => Ok(Logical { modules }),
            many => Err(AssemblyError::TooManyModules(many)),
        }
    }

    /// The module that decides what the policy leaves open: ids, attributes, the intent log.
    fn first(&self) -> &dyn ObjectStore {
        &*self.modules[0]
    }

    fn policy(id: PolicyId) -> Result<Policy> {
        Policy::by_id(id).ok_or_else(|| Error::Protocol(format!("policy {} does not exist", id.0)))
    }

    /// A device may have any number in a record. Taken as it is, it would come back with the next change of the object, and all of that
    /// epoch would be refused.
    fn with_known_policy(key: ObjectKey, attributes: Attributes) -> Result<Attributes> {
        let id = attributes.policy;
        let place = Place { object: Some(key), ..Place::default() };
        let corrupt = || Error::corrupt(place, "policy of the record", "one that exists", id.0);
        Policy::by_id(id).map(|_| attributes).ok_or_else(corrupt)
    }

    /// Refuses operations that name a policy which does not exist, before any of the batch is done.
    fn check_policies(ops: &[Op]) -> Result<()> {
        for op in ops {
            match op {
                Op::Create { attributes, .. } => drop(Self::policy(attributes.policy)?),
                Op::SetAttributes { set, .. } => {
                    if let Some(policy) = set.policy {
                        Self::policy(policy)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl ObjectStore for Logical {
    fn protection(&self) -> Protection {
        self.first().protection()
    }

    fn status(&self) -> StoreStatus {
        self.first().status()
    }

    fn attributes(&self, key: ObjectKey) -> Result<Attributes> {
        Self::with_known_policy(key, self.first().attributes(key)?)
    }

    fn attributes_of(&self, keys: &[ObjectKey]) -> Vec<Result<Attributes>> {
        let all = keys.iter().zip(self.first().attributes_of(keys));
        all.map(|(key, attributes)| Self::with_known_policy(*key, attributes?)).collect()
    }

    fn new_objects(&self, domain: DomainId, count: usize) -> Result<Vec<ObjectId>> {
        self.first().new_objects(domain, count)
    }

    fn orphans(&self, domain: DomainId) -> Result<Vec<ObjectId>> {
        self.first().orphans(domain)
    }

    fn read(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.first().read(key, first, frames)
    }

    fn read_forwarded(&self, key: ObjectKey, first: PageIndex, frames: &mut [FrameMut]) -> Result<Vec<PageSource>> {
        self.first().read_forwarded(key, first, frames)
    }

    fn seek(&self, key: ObjectKey, from: PageIndex, what: Seek) -> Result<Option<PageIndex>> {
        self.first().seek(key, from, what)
    }

    fn lost_pages(&self, key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>> {
        self.first().lost_pages(key, pages)
    }

    fn reserve(&self, epoch: Epoch, blocks: u64, purpose: Purpose) -> Result<()> {
        self.first().reserve(epoch, blocks, purpose)
    }

    fn place(&self, key: ObjectKey, epoch: Epoch, pages: &[(PageIndex, PageRef)]) -> Result<Vec<Placement>> {
        self.first().place(key, epoch, pages)
    }

    fn levels(&self, key: ObjectKey) -> Result<u8> {
        self.first().levels(key)
    }

    fn table_levels(&self, domain: DomainId) -> Result<[u8; 2]> {
        self.first().table_levels(domain)
    }

    fn check_way(&self, domain: DomainId, op: &Op) -> Result<()> {
        self.first().check_way(domain, op)
    }

    fn replaceable(&self, key: ObjectKey, first: PageIndex, count: usize) -> Result<bool> {
        self.first().replaceable(key, first, count)
    }

    fn unplace(&self, epoch: Epoch, placements: &[Placement]) -> Result<()> {
        self.first().unplace(epoch, placements)
    }

    fn apply(&self, batch: &Batch) -> Result<Applied> {
        Self::check_policies(&batch.ops)?;
        self.first().apply(batch)
    }

    fn snapshot_create(&self, domain: DomainId, epoch: Epoch, name: &str, created: Timestamp) -> Result<SnapshotId> {
        self.first().snapshot_create(domain, epoch, name, created)
    }

    fn snapshot_delete(&self, domain: DomainId, epoch: Epoch, id: SnapshotId) -> Result<bool> {
        self.first().snapshot_delete(domain, epoch, id)
    }

    fn snapshot_deletions(&self, domain: DomainId) -> Vec<SnapshotDeletion> {
        self.first().snapshot_deletions(domain)
    }

    fn snapshot_count_part(&self, domain: DomainId, id: SnapshotId, count: &mut SnapshotCount) -> Result<bool> {
        self.first().snapshot_count_part(domain, id, count)
    }

    fn snapshots(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.first().snapshots(domain)
    }

    fn snapshots_uncounted(&self, domain: DomainId) -> Result<Vec<SnapshotInfo>> {
        self.first().snapshots_uncounted(domain)
    }

    fn changed_objects(
        &self,
        domain: DomainId,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        self.first().changed_objects(domain, states, after, limit)
    }

    fn changed_pages(
        &self,
        key: ObjectKey,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        self.first().changed_pages(key, states, first, limit)
    }

    fn prepare(&self, epoch: Epoch) -> Result<()> {
        self.modules.iter().try_for_each(|module| module.prepare(epoch))
    }

    fn give_up(&self, found: Found, why: Corruption) -> Error {
        let given_up = Error::GivenUp(Box::new(why.clone()));
        self.modules.iter().fold(given_up, |_, module| module.give_up(found, why.clone()))
    }

    fn suspects(&self) -> Vec<ObjectKey> {
        self.modules.iter().flat_map(|module| module.suspects()).collect()
    }

    fn begin_anew(&self) -> Result<()> {
        self.modules.iter().try_for_each(|module| module.begin_anew())
    }

    fn publish(&self, epoch: Epoch) -> Result<()> {
        self.modules.iter().try_for_each(|module| module.publish(epoch))
    }

    fn log_append(&self, batch: &LogBatch) -> Result<bool> {
        Self::check_policies(&batch.ops)?;
        self.first().log_append(batch)
    }

    fn log_seal(&self) -> Result<bool> {
        self.first().log_seal()
    }

    fn log_next(&self, frames: &mut dyn FnMut(usize) -> Result<Vec<FrameMut>>) -> Result<Option<RecoveredBatch>> {
        self.first().log_next(frames)
    }

    fn logged_pages(&self, domain: DomainId, pages: &[(ObjectId, PageIndex)]) -> Result<Vec<Option<LoggedPage>>> {
        self.first().logged_pages(domain, pages)
    }

    fn scrub_step(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep> {
        self.first().scrub_step(cursor, blocks)
    }

    fn mend(&self, key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending> {
        self.first().mend(key, index, page)
    }

    fn trim(&self, within: Range<u64>) -> Result<u64> {
        // One device; of several, each would have blocks of its own.
        self.first().trim(within)
    }

    fn grow(&self, blocks: u64) -> Result<u64> {
        // One device; of several, each would have a size of its own.
        self.first().grow(blocks)
    }

    fn stop(&self, reason: &str) {
        self.modules.iter().for_each(|module| module.stop(reason));
    }

    fn close(&self) -> Result<()> {
        self.modules.iter().try_for_each(|module| module.close())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_module() {
        assert_eq!(Logical::assemble(Vec::new()).err(), Some(AssemblyError::NoModule));
    }

    #[test]
    fn a_record_with_an_unknown_policy_is_corrupt() {
        let key = ObjectKey { domain: DomainId::MAIN, object: ObjectId(7) };
        let time = Timestamp::default();
        let mut attributes =
            Attributes::new(holdfast_object::Kind::Regular, holdfast_object::Class::Names, 0, 0, 0, time);
        assert_eq!(Logical::with_known_policy(key, attributes.clone()).as_ref(), Ok(&attributes));
        attributes.policy = PolicyId(9);
        let error = Logical::with_known_policy(key, attributes).unwrap_err();
        assert!(matches!(&error, Error::Corrupt(found) if found.place.object == Some(key)), "{error}");
    }

    #[test]
    fn unknown_policies_are_refused() {
        let set = holdfast_object::AttrSet { policy: Some(PolicyId(9)), ..Default::default() };
        assert!(Logical::check_policies(&[Op::SetAttributes { id: ObjectId(1), set }]).is_err());
        let known = holdfast_object::AttrSet { policy: Some(PolicyId(0)), ..Default::default() };
        assert!(Logical::check_policies(&[Op::SetAttributes { id: ObjectId(1), set: known }]).is_ok());
    }
}
