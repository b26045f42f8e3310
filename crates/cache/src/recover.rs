//! Opening: the intent log is replayed on the last recovery point, and the result becomes a recovery point.

use crate::counters::Counters;
use crate::flush::{still_lost, still_passed_over};
use crate::frozen;
use crate::lab_attributes::FrozenStrikes;
use crate::session::Sessions;
use crate::state::State;
use crate::{Cache, Options};
use holdfast_object::{
    Applied, Arena, Batch, Clock, DomainId, Epoch, Error, Found, Kind, ObjectId, ObjectKey, ObjectStore, Op, PageIndex,
    Place, Result,
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How far opening jumps ahead: beyond the epochs whose log batches may be on the device (one being written, one open; torn
/// ones too), so that none of them is ever taken for a batch of a later life.
const EPOCHS_SKIPPED: u64 = 3;

/// What opening found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// The recovery point that the store had.
    pub from: Epoch,
    /// Batches of the intent log replayed on it.
    pub batches: u64,
    /// Their operations.
    pub ops: u64,
    /// Pages of them that are gone and that no later batch has anew, or that could not be put in their place because what leads to it cannot be read. Of
    /// each run that a copy of theirs has lost, the first page.
    pub lost: Vec<(ObjectId, PageIndex)>,
    /// Batches left out since they were not whole.
    pub batches_torn: u64,
    /// Why the root directory is none, if so. Nothing in it can be named then, and the store takes no changes.
    pub root_damage: Option<String>,
}

impl Cache {
    /// Opens the objects of `domain`. Replays the intent log unless the store is read-only; then what only the log has is
    /// not seen. A store whose root directory has no record that makes sense takes no changes, and nothing is written to it.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        domain: DomainId,
        options: Options,
    ) -> Result<(Cache, Recovered)> {
        let root_damage = root_damage(&*store, domain)?;
        if let Some(damage) = &root_damage {
            let reason = format!("the root directory cannot be read ({damage})");
            if store.status().read_only.is_none() {
                tracing::error!(%reason, "the store takes no changes");
            }
            store.stop(&reason);
        }
        let status = store.status();
        let mut recovered = Recovered { from: status.epoch, root_damage, ..Recovered::default() };
        let mut last = status.epoch;
        if status.read_only.is_none() {
            replay(&*store, &arena, &mut recovered, &mut |batch| store.apply(batch))?;
            recovered.batches_torn = store.status().log_batches_torn;
            // Also if nothing was replayed: there may be torn batches, and epochs must go on above theirs.
            last = status.epoch + EPOCHS_SKIPPED;
            store.prepare(last)?;
            store.publish(last)?;
        }
        let mut state = State::new(
            domain,
            store.protection(),
            clock.clone(),
            last + 1,
            arena.clone(),
            store.table_levels(domain)?,
            status.read_only,
        );
        match store.snapshots(domain) {
            Ok(known) => state.has_snapshots = !known.is_empty(),
            // The files are there all the same. Which blocks may be freed is not known.
            Err(error @ Error::Corrupt(_)) => {
                tracing::error!(%error, "the snapshots cannot be read: the store takes no changes");
                state.has_snapshots = true;
                state.read_only.get_or_insert_with(|| format!("the snapshots cannot be read ({error})"));
            }
            Err(error) => return Err(error),
        }
        let is_deleting = state.read_only.is_none() && !store.snapshot_deletions(domain).is_empty();
        let cache = Cache {
            is_deleting: AtomicBool::new(is_deleting),
            stopped: Mutex::default(),
            store,
            arena,
            clock,
            domain,
            options,
            state: RwLock::new(state),
            flushing: Mutex::new(()),
            snapshotting: Mutex::new(()),
            logging: Mutex::new(()),
            unsealed_ns: AtomicU64::new(0),
            sync_queue: Mutex::new(Vec::new()),
            sessions: Mutex::new(Sessions::default()),
            fresh_ids: Mutex::new(Vec::new()),
            counters: Counters::default(),
            reference_blocks: AtomicU64::new(crate::reference_blocks(&status.space)),
            writer_due: Mutex::new(false),
            writer_wake: Condvar::new(),
            frozen_strikes: FrozenStrikes::default(),
        };
        Ok((cache, recovered))
    }
}

/// What is wrong with the record of a domain's root directory, if there is one.
fn root_damage(store: &dyn ObjectStore, domain: DomainId) -> Result<Option<String>> {
    let key = ObjectKey { domain, object: ObjectId::ROOT };
    let error = match store.attributes(key) {
        // It is made when the store is used for the first time.
        Err(Error::NoObject(_)) => return Ok(None),
        Ok(root) if root.kind == Kind::Directory => return Ok(None),
        Ok(root) => {
            let place =
                Place { object: Some(key), device: store.status().devices.into_iter().next(), ..Place::default() };
            Error::corrupt(place, "kind of the root directory", "a directory", format!("{:?}", root.kind))
        }
        Err(error @ (Error::Corrupt(_) | Error::Device(_))) => error,
        Err(error) => return Err(error),
    };
    Ok(Some(error.to_string()))
}

fn writes_or_deletes(op: &Op, page: PageIndex) -> bool {
    match op {
        Op::Write { fragments, .. } => fragments.iter().any(|fragment| fragment.index == page),
        Op::Adopt { pages, .. } => pages.iter().any(|(index, _)| *index == page),
        Op::Delete { .. } => true,
        _ => false,
    }
}

/// Of all that a batch says.
fn sum_of(batch: &Batch) -> Result<(DomainId, Epoch, u64)> {
    Ok((batch.domain, batch.epoch, frozen::sum_of_batch(&batch.ops)?))
}

/// Gives the store all that its intent log has, by `apply`.
///
/// # Errors
/// [`Error::GivenUp`]: something of it has gone bad in memory. No recovery point may be made of what the store has got.
fn replay(
    store: &dyn ObjectStore,
    arena: &Arc<Arena>,
    recovered: &mut Recovered,
    apply: &mut dyn FnMut(&mut Batch) -> Result<Applied>,
) -> Result<()> {
    let epoch = recovered.from + EPOCHS_SKIPPED;
    let mut frames = |count: usize| {
        let taken: Vec<_> = std::iter::from_fn(|| arena.allocate()).take(count).collect();
        if taken.len() < count {
            return Err(Error::NoFrames { frames: u64::from(arena.frames()) });
        }
        Ok(taken)
    };
    let mut copied = Vec::new();
    while let Some(found) = store.log_next(&mut frames)? {
        let mut batch = Batch { domain: found.batch.domain, epoch, ops: found.batch.ops };
        let before = sum_of(&batch)?;
        recovered.batches += 1;
        recovered.ops += batch.ops.len() as u64;
        for op in &batch.ops {
            // What a later batch has anew is not missed.
            recovered.lost.retain(|(id, page)| *id != op.target() || !writes_or_deletes(op, *page));
        }
        recovered.lost.extend(found.lost);
        let applied = apply(&mut batch)?;
        if sum_of(&batch)? != before {
            // The next recovery point would make the log obsolete, which still has what it was.
            return Err(store
                .give_up(Found::Scribble, frozen::corruption(None, "operations of the intent log that are replayed")));
        }
        let mut passed_over = applied.passed_over;
        let is_at = |page: &(ObjectId, PageIndex)| applied.written.iter().any(|(id, index, _)| page == &(*id, *index));
        passed_over.retain(|page| !is_at(page));
        let passed_over = still_passed_over(store, batch.domain, passed_over)?;
        for (id, index) in applied.rejected.into_iter().chain(passed_over) {
            // An object under a tree block that cannot be read; the others are replayed all the same.
            recovered.lost.push((id, index));
            tracing::error!(object = id.0, index, "a synced page could not be replayed");
        }
        copied.extend(applied.lost.into_iter().map(|lost| (batch.domain, lost)));
    }
    // Later batches may have part of a run anew.
    for (domain, lost) in copied {
        for (id, pages) in still_lost(store, domain, vec![lost])? {
            recovered.lost.push((id, pages.start));
            tracing::error!(object = id.0, ?pages, "synced pages could not be replayed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::MemoryDevice;
    use holdfast_object::{Attributes, Class, Fragment, LogBatch, ManualClock, Timestamp};
    use holdfast_physical::{CreateOptions, Module, OpenOptions};

    /// A store with a batch in its log.
    fn logged() -> (Arc<MemoryDevice>, Arc<Arena>) {
        let (device, arena) = (Arc::new(MemoryDevice::new(4096)), Arena::new(64, 0).unwrap());
        let options = CreateOptions::new(*b"0123456789abcdef", *b"fedcba9876543210");
        Module::create(device.clone(), arena.clone(), clock(), &options).unwrap();
        let module = open(&device, &arena);
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let create = |id| Op::Create { id: ObjectId(id), attributes: Attributes { nlink: 1, ..attributes.clone() } };
        let ops = vec![create(2), create(3), Op::Truncate { id: ObjectId(3), size: 7 * 4096 }];
        let batch = LogBatch { domain: DomainId::MAIN, epoch: module.epoch() + 1, ops };
        module.log_next(&mut |_| Ok(Vec::new())).unwrap();
        assert!(module.log_append(&batch).unwrap());
        (device, arena)
    }

    /// A later batch that has the first of the pages that a copy has lost has not the others.
    #[test]
    fn what_a_copy_of_the_log_has_lost_is_judged_page_by_page() {
        let (device, arena) = (Arc::new(MemoryDevice::new(4096)), Arena::new(256, 0).unwrap());
        let options = CreateOptions::new(*b"0123456789abcdef", *b"fedcba9876543210");
        Module::create(device.clone(), arena.clone(), clock(), &options).unwrap();
        let module = open(&device, &arena);
        module.log_next(&mut |_| Ok(Vec::new())).unwrap();
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let create = |id| Op::Create { id: ObjectId(id), attributes: Attributes { nlink: 1, ..attributes.clone() } };
        let pin = arena.allocate().unwrap().publish(holdfast_integrity::Algorithm::Crc64Nvme.sum(&[0; 4096]));
        let fragment = |index| Fragment { index, start: 0, end: 4096, page: pin.page() };
        let write = |id, pages: std::ops::Range<u64>| Op::Write {
            id: ObjectId(id),
            fragments: pages.map(fragment).collect(),
            size_min: 64 * 4096,
        };
        let (domain, first) = (DomainId::MAIN, module.epoch() + 1);
        let ops = vec![create(2), create(3), write(2, 0..64)];
        module.apply(&Batch { domain, epoch: first, ops }).unwrap();
        module.prepare(first).unwrap();
        module.publish(first).unwrap();
        let (source, target) = (ObjectId(2), ObjectId(3));
        let copy = Op::Copy { source, source_first: 0, target, target_first: 0, pages: 64, size_min: 0 };
        for ops in [vec![copy], vec![write(3, 0..1)]] {
            assert!(module.log_append(&LogBatch { domain, epoch: first + 1, ops }).unwrap());
        }
        drop(module);
        let uses = holdfast_physical::check::block_uses(device.clone()).unwrap();
        let leaf = |used: &&holdfast_physical::check::BlockUse| {
            used.object == Some(ObjectKey { domain, object: source }) && used.level == 1
        };
        for used in uses.iter().filter(leaf) {
            device.alter(used.block, |block| block[4000] ^= 1).unwrap();
        }
        let module = open(&device, &arena);
        let mut recovered = Recovered { from: module.epoch(), ..Recovered::default() };
        replay(&module, &arena, &mut recovered, &mut |batch| module.apply(batch)).unwrap();
        assert_eq!((recovered.batches, recovered.lost), (2, vec![(target, 1)]));
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(ManualClock::new(0, 1))
    }

    fn open(device: &Arc<MemoryDevice>, arena: &Arc<Arena>) -> Module {
        Module::open(device.clone(), arena.clone(), clock(), &OpenOptions::default()).unwrap()
    }

    #[test]
    fn no_recovery_point_is_made_of_a_batch_that_goes_bad_while_it_is_replayed() {
        type Strike = fn(&mut Batch);
        let strikes: [(&str, Strike); 5] = [
            ("nothing", |_| ()),
            ("size", |batch| batch.ops[2] = Op::Truncate { id: ObjectId(3), size: 4096 }),
            ("object", |batch| batch.ops[2] = Op::Truncate { id: ObjectId(2), size: 7 * 4096 }),
            ("epoch", |batch| batch.epoch += 1),
            ("an operation less", |batch| drop(batch.ops.pop())),
        ];
        let (device, arena) = logged();
        for ((what, strike), is_before) in strikes.into_iter().flat_map(|strike| [(strike, true), (strike, false)]) {
            let module = open(&device, &arena);
            let from = module.epoch();
            let mut recovered = Recovered { from, ..Recovered::default() };
            let outcome = replay(&module, &arena, &mut recovered, &mut |batch| {
                if is_before {
                    strike(batch);
                }
                let applied = module.apply(batch);
                strike(batch);
                applied
            });
            let next = module.prepare(from + EPOCHS_SKIPPED);
            if what == "nothing" {
                outcome.and(next).unwrap();
                assert_eq!((recovered.batches, recovered.ops), (1, 3));
            } else {
                assert!(matches!(outcome, Err(Error::GivenUp(_))), "{what}: {outcome:?}");
                assert!(matches!(next, Err(Error::GivenUp(_))), "{what}: {next:?}");
                assert_eq!(module.status().counters.scribbles, 1, "{what}");
            }
        }
    }
}
