//! Opening: the intent log is replayed on the last recovery point, and the result becomes a recovery point.

use crate::counters::Counters;
use crate::lab_attributes::FrozenStrikes;
use crate::session::Sessions;
use crate::state::State;
use crate::{Cache, Options};
use holdfast_object::{Arena, Batch, Clock, DomainId, Epoch, Error, ObjectId, ObjectStore, Op, PageIndex, Result};
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
    /// Pages of them that are gone and that no later batch has anew, or that could not be put in their place because what leads to it cannot be read.
    pub lost: Vec<(ObjectId, PageIndex)>,
    /// Batches left out since they were not whole.
    pub batches_torn: u64,
}

impl Cache {
    /// Opens the objects of `domain`. Replays the intent log unless the store is read-only; then what only the log has is
    /// not seen.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        domain: DomainId,
        options: Options,
    ) -> Result<(Cache, Recovered)> {
        let status = store.status();
        let mut recovered = Recovered { from: status.epoch, ..Recovered::default() };
        let mut last = status.epoch;
        if status.read_only.is_none() {
            replay(&*store, &arena, &mut recovered)?;
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

fn writes_or_deletes(op: &Op, page: PageIndex) -> bool {
    match op {
        Op::Write { fragments, .. } => fragments.iter().any(|fragment| fragment.index == page),
        Op::Adopt { pages, .. } => pages.iter().any(|(index, _)| *index == page),
        Op::Delete { .. } => true,
        _ => false,
    }
}

fn replay(store: &dyn ObjectStore, arena: &Arc<Arena>, recovered: &mut Recovered) -> Result<()> {
    let epoch = recovered.from + EPOCHS_SKIPPED;
    let mut frames = |count: usize| {
        let taken: Vec<_> = std::iter::from_fn(|| arena.allocate()).take(count).collect();
        if taken.len() < count {
            return Err(Error::NoFrames { frames: u64::from(arena.frames()) });
        }
        Ok(taken)
    };
    while let Some(found) = store.log_next(&mut frames)? {
        recovered.batches += 1;
        recovered.ops += found.batch.ops.len() as u64;
        for op in &found.batch.ops {
            // What a later batch has anew is not missed.
            recovered.lost.retain(|(id, page)| *id != op.target() || !writes_or_deletes(op, *page));
        }
        recovered.lost.extend(found.lost);
        let batch = Batch { domain: found.batch.domain, epoch, ops: found.batch.ops };
        let applied = store.apply(&batch)?;
        for (id, index) in applied.rejected {
            // An object under a tree block that cannot be read; the others are replayed all the same.
            recovered.lost.push((id, index));
            tracing::error!(object = id.0, index, "a synced page could not be replayed");
        }
    }
    Ok(())
}
