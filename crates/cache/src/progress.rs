//! How far the log and the store are with an object: by these numbers a sync knows whether it has anything to log, a batch whether it must have the
//! object's creation, and the cache whether the store has the object at all.
//!
//! One that has gone bad is put right ([`crate::thrice`]). If no two copies agree, the object counts as changed just now, and a recovery point, which has
//! all of it, takes the place of the next log batch.

use crate::state::State;
use crate::thrice::{AllDiffer, Thrice};
use holdfast_object::{Epoch, Error, ObjectId, Place, Result, SnapshotId};

/// In place of an epoch of creation that has gone bad: until a recovery point has the object, nobody knows whether the store does.
const UNKNOWN: Epoch = Epoch::MAX;

/// See the module.
#[derive(Default)]
pub(crate) struct Progress {
    /// The epoch in which it was created, while that is not a recovery point: it is not in the store. 0 afterwards; or [`UNKNOWN`].
    pub(crate) created: Thrice,
    /// 1 if no log batch and no recovery point has its creation.
    pub(crate) create_unlogged: Thrice,
    /// The last epoch with a change of it: until that is a recovery point the store's version is older.
    pub(crate) changed_in: Thrice,
    /// The last epoch with a copy from or to it: such changes become durable with the epoch only.
    pub(crate) copied: Thrice,
    /// Sequence of the last change of names class (creation, links, parent), and up to where these are durable.
    pub(crate) names_changed: Thrice,
    pub(crate) names_durable: Thrice,
    /// The same of its own class.
    pub(crate) own_changed: Thrice,
    pub(crate) own_durable: Thrice,
}

/// Which number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgressNumber {
    /// The epoch that brings the object to the store.
    Created,
    /// Whether the log lacks its creation.
    CreateUnlogged,
    /// The last epoch with a change of it.
    ChangedIn,
    /// The last epoch with a copy from or to it.
    Copied,
    /// The last transaction that changed what belongs to the name space.
    NamesChanged,
    /// Up to which these changes are durable.
    NamesDurable,
    /// The last transaction that changed what is its own.
    OwnChanged,
    /// Up to which these changes are durable.
    OwnDurable,
}

impl ProgressNumber {
    /// All of them.
    pub const ALL: [ProgressNumber; 8] = [
        ProgressNumber::Created,
        ProgressNumber::CreateUnlogged,
        ProgressNumber::ChangedIn,
        ProgressNumber::Copied,
        ProgressNumber::NamesChanged,
        ProgressNumber::NamesDurable,
        ProgressNumber::OwnChanged,
        ProgressNumber::OwnDurable,
    ];
}

/// Whether there are changes that are not durable; also if it is not known.
fn is_newer(changed: Thrice, durable: Thrice) -> bool {
    match (changed.get(), durable.get()) {
        (Some(changed), Some(durable)) => changed > durable,
        _ => true,
    }
}

/// Numbers that were bad.
#[derive(Clone, Copy, Default)]
struct Healed {
    renewed: u64,
    lost: usize,
}

impl Progress {
    pub(crate) fn is_good(&self) -> bool {
        let bits = self.created.differing()
            | self.create_unlogged.differing()
            | self.changed_in.differing()
            | self.copied.differing()
            | self.names_changed.differing()
            | self.names_durable.differing()
            | self.own_changed.differing()
            | self.own_durable.differing();
        bits == 0
    }

    /// Whether changes of names class are not durable; also if it is not known.
    pub(crate) fn has_newer_names(&self) -> bool {
        is_newer(self.names_changed, self.names_durable)
    }

    /// The same of its own class.
    pub(crate) fn has_newer_own(&self) -> bool {
        is_newer(self.own_changed, self.own_durable)
    }

    /// Whether all changes of both classes are durable, and the store has it.
    pub(crate) fn is_clean(&self) -> bool {
        self.created.get() == Some(0) && !self.has_newer_names() && !self.has_newer_own()
    }

    /// Whether two copies say the same of its creation, be it that nobody knows it any more.
    pub(crate) fn is_created_known(&self) -> bool {
        self.created.get().is_some()
    }

    /// Whether the store has the object.
    ///
    /// # Errors
    /// It is not known.
    pub(crate) fn is_in_store(&self) -> Result<bool> {
        self.created.get().filter(|&epoch| epoch != UNKNOWN).map(|epoch| epoch == 0).ok_or_else(|| {
            let what = "epoch of an object's creation in memory, to which somebody has written who must not";
            Error::corrupt(Place::default(), what, "the same in two of three copies", "three that differ")
        })
    }

    /// The epoch that brings it to the store.
    pub(crate) fn created_in(&self) -> Option<Epoch> {
        self.created.get().filter(|&epoch| epoch != 0 && epoch != UNKNOWN)
    }

    /// The epoch that has changed it last, if one has since it came from the store, and that is known: for reports.
    pub(crate) fn changed_in(&self) -> Option<Epoch> {
        self.changed_in.get().filter(|&epoch| epoch != 0)
    }

    /// Whether a recovery point has all of it, if the epochs from `unwritten` on are none; no if it is not known.
    pub(crate) fn is_written(&self, unwritten: Epoch) -> bool {
        self.changed_in.get().is_some_and(|epoch| epoch < unwritten)
    }

    /// Whether an epoch from `unwritten` on has a copy from or to it; also if it is not known.
    pub(crate) fn is_copied_since(&self, unwritten: Epoch) -> bool {
        self.copied.get().is_none_or(|epoch| epoch >= unwritten)
    }

    /// The recovery point of `epoch` has it with all its changes up to transaction `sequence`.
    pub(crate) fn published(&mut self, epoch: Epoch, sequence: u64) {
        // One that a later epoch creates has come in the place of what this one had.
        if self.created_in().is_none_or(|created| created <= epoch) {
            self.created.set(0);
            self.create_unlogged.set(0);
        }
        self.names_durable.raise(sequence);
        self.own_durable.raise(sequence);
    }

    /// Puts right what has gone bad. Numbers of which nothing is left become those of an object that transaction `sequence`, in the epoch `open`,
    /// has changed.
    fn heal(&mut self, sequence: u64, open: Epoch, unwritten: Epoch) -> Healed {
        let mut healed = Healed::default();
        let is_written = self.is_written(unwritten);
        let mut heal = |number: &mut Thrice, instead: u64| match number.heal() {
            Ok(is_renewed) => healed.renewed += u64::from(is_renewed),
            Err(AllDiffer) => {
                number.set(instead);
                healed.lost += 1;
            }
        };
        heal(&mut self.created, if is_written { 0 } else { UNKNOWN });
        // There is no batch before a recovery point has the creation.
        heal(&mut self.create_unlogged, 0);
        heal(&mut self.changed_in, open);
        heal(&mut self.copied, open);
        heal(&mut self.names_changed, sequence);
        heal(&mut self.names_durable, 0);
        heal(&mut self.own_changed, sequence);
        heal(&mut self.own_durable, 0);
        healed
    }

    /// For who strikes it on purpose.
    pub(crate) fn number(&mut self, number: ProgressNumber) -> &mut Thrice {
        match number {
            ProgressNumber::Created => &mut self.created,
            ProgressNumber::CreateUnlogged => &mut self.create_unlogged,
            ProgressNumber::ChangedIn => &mut self.changed_in,
            ProgressNumber::Copied => &mut self.copied,
            ProgressNumber::NamesChanged => &mut self.names_changed,
            ProgressNumber::NamesDurable => &mut self.names_durable,
            ProgressNumber::OwnChanged => &mut self.own_changed,
            ProgressNumber::OwnDurable => &mut self.own_durable,
        }
    }
}

impl State {
    /// Puts right what has gone bad of an object's numbers, and tells it.
    pub(crate) fn heal_progress(&mut self, id: ObjectId) {
        // Without that nothing is taken any more.
        let Some(sequence) = self.sequence.get() else { return };
        let open = self.open.epoch;
        let unwritten = self.freezing.unwrap_or(open);
        let Some(object) = self.objects.get_mut(&id).filter(|object| !object.progress.is_good()) else { return };
        let mut healed = object.progress.heal(sequence, open, unwritten);
        if id.snapshot() != SnapshotId::LIVE {
            // The store has it, and nothing of it ever changes.
            object.progress = Progress::default();
            healed.renewed += std::mem::take(&mut healed.lost) as u64;
        }
        let Healed { renewed, lost } = healed;
        let key = self.key(id);
        if renewed > 0 {
            self.operations_renewed += renewed;
            tracing::warn!(%key, renewed, "numbers about an object went bad in memory: they are what they were again");
        }
        // Where nothing is written, nothing comes of it.
        if lost > 0 && self.read_only.is_none() {
            self.change_unknown(id);
        }
        self.spoil(lost, &format!("numbers about {key}"));
    }

    /// Whatever has changed of an object, the recovery point of the open epoch is to have it.
    fn change_unknown(&mut self, id: ObjectId) {
        let open = &mut self.open;
        if let Some(object) = self.objects.get_mut(&id) {
            object.progress.changed_in.set(open.epoch);
        }
        if open.objects.insert(id) {
            // Its record, and the blocks above that.
            open.demand.tree_blocks += 1 + u64::from(self.table_levels[0]);
        }
        if open.since_ns == 0 {
            open.since_ns = self.clock.monotonic_ns().max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id can be given again once the recovery point that deletes it stands.
    #[test]
    fn a_recovery_point_brings_what_was_created_by_then() {
        for (created, epoch, is_brought) in
            [(5, 5, true), (4, 5, true), (UNKNOWN, 5, true), (0, 5, true), (6, 5, false)]
        {
            let mut progress = Progress::default();
            progress.created.set(created);
            progress.create_unlogged.set(1);
            progress.published(epoch, 9);
            let is_in_store = progress.is_in_store().unwrap();
            assert_eq!(is_in_store, is_brought, "of {created:#x}, when {epoch} stands");
            assert_eq!(progress.create_unlogged.get(), Some(u64::from(!is_brought)), "of {created:#x}");
        }
    }
}
