//! What the next log batch is to have besides pages and attributes, from its admission on: truncations, zeroings and deletions, and which files go along
//! with a rename.
//!
//! The checksums of a batch are made of what is found when it is put together, and what it says is replayed after a power cut without another judge:
//! a truncation to which somebody has written would cut off what was synced. So each has a check from its admission on. One that has gone
//! bad is given up, and no batch is made any more until there is a recovery point that has it: that takes operations from the operation log, which is
//! there twice ([`crate::oplog`]), and the newest version of every file.

use crate::frozen::fold;
use crate::state::State;
use holdfast_object::{ObjectId, Op};

/// What [`State::spoil`] tells of.
pub(crate) const OPERATIONS: &str = "operations for the intent log";

/// What such an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Truncate { id: ObjectId, size: u64 },
    Zero { id: ObjectId, offset: u64, length: u64 },
    Delete { id: ObjectId },
}

/// An operation that no log batch and no recovery point has yet.
#[derive(Clone, Copy)]
pub(crate) struct Unlogged {
    change: Change,
    /// Its transaction: an epoch that has this one has the operation. What was deleted can then be another object's id, so no log
    /// batch may bring the operation any more.
    made: u64,
    /// Transaction since which a batch brings it; later than `made` if it was one of its owner's own changes until the owner was
    /// deleted too. A batch captured before does not have it.
    listed: u64,
    check: u64,
}

impl Unlogged {
    pub(crate) fn new(change: Change, sequence: u64) -> Unlogged {
        Unlogged { change, made: sequence, listed: sequence, check: 0 }.checked()
    }

    fn checked(self) -> Unlogged {
        Unlogged { check: self.sum(), ..self }
    }

    fn sum(&self) -> u64 {
        let words = match self.change {
            Change::Truncate { id, size } => [1, id.0, size, 0],
            Change::Zero { id, offset, length } => [2, id.0, offset, length],
            Change::Delete { id } => [3, id.0, 0, 0],
        };
        words.into_iter().chain([self.made, self.listed]).fold(0, fold)
    }

    pub(crate) fn is_good(&self) -> bool {
        self.sum() == self.check
    }

    /// With the transaction that it is of, unless it has gone bad.
    pub(crate) fn op(&self) -> Option<(u64, Op)> {
        let op = match self.change {
            Change::Truncate { id, size } => Op::Truncate { id, size },
            Change::Zero { id, offset, length } => Op::Zero { id, offset, length },
            Change::Delete { id } => Op::Delete { id },
        };
        self.is_good().then_some((self.made, op))
    }

    /// The same, brought by batches from now on. It must be good: it gets a new check.
    pub(crate) fn listed_at(self, sequence: u64) -> Unlogged {
        debug_assert!(self.is_good());
        Unlogged { listed: sequence, ..self }.checked()
    }

    pub(crate) fn is_truncate(&self) -> bool {
        matches!(self.change, Change::Truncate { .. })
    }

    pub(crate) fn is_delete(&self) -> bool {
        matches!(self.change, Change::Delete { .. })
    }

    /// Whether it is to be kept when this much is logged. What has gone bad is, until a sync comes upon it: it may be newer.
    pub(crate) fn outlasts_batch(&self, sequence: u64) -> bool {
        self.listed > sequence || !self.is_good()
    }

    /// The same when a recovery point has this much.
    pub(crate) fn outlasts_epoch(&self, sequence: u64) -> bool {
        self.made > sequence || !self.is_good()
    }

    /// Inverts bits of its first number, which for a deletion is the object's, as nobody may.
    pub(crate) fn strike(&mut self, bits: u64) {
        match &mut self.change {
            Change::Truncate { size: number, .. }
            | Change::Zero { offset: number, .. }
            | Change::Delete { id: ObjectId(number) } => *number ^= bits,
        }
    }
}

/// The transaction with a rename that put a file in another's place.
#[derive(Clone, Copy)]
pub(crate) struct Brought {
    at: u64,
    check: u64,
}

impl Brought {
    pub(crate) fn new(id: ObjectId, sequence: u64) -> Brought {
        Brought { at: sequence, check: fold(fold(0, id.0), sequence) }
    }

    /// Whether it is what was noted of this file.
    fn is_good(self, id: ObjectId) -> bool {
        Brought::new(id, self.at).check == self.check
    }

    /// As of [`Unlogged`].
    pub(crate) fn outlasts(self, id: ObjectId, sequence: u64) -> bool {
        self.at > sequence || !self.is_good(id)
    }
}

impl State {
    /// Gives up what the next log batch is to have for all objects and has gone bad. To be called first of all, as files that go along are among it.
    pub(crate) fn verify_unlogged(&mut self) {
        let count = |state: &State| state.gone_unlogged.len() + state.brings.len();
        let before = count(self);
        self.gone_unlogged.retain(Unlogged::is_good);
        self.brings.retain(|id, brought| brought.is_good(*id));
        self.spoil(before - count(self), OPERATIONS);
    }

    /// The same of what it is to have for one object.
    pub(crate) fn verify_unlogged_of(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let before = object.structural.len();
        object.structural.retain(Unlogged::is_good);
        let bad = before - object.structural.len();
        let is_renewed = object.renew_unlogged();
        self.spoil(bad, OPERATIONS);
        if is_renewed {
            self.note_members(Some(id), "pages to be logged");
        }
    }

    /// So many of what the next log batch goes by have gone bad, and are given up: there is none before a recovery point.
    pub(crate) fn spoil(&mut self, bad: usize, what: &str) {
        if bad > 0 {
            self.operations_renewed += bad as u64;
            // No recovery point has that one: without the number there is none.
            self.spoilt.set(self.sequence.get().unwrap_or(u64::MAX));
            tracing::warn!(bad, "{what} went bad in memory: a recovery point takes the place of the next log batch");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_in_the_check() {
        let id = ObjectId(7);
        let changes =
            [Change::Truncate { id, size: 5 }, Change::Zero { id, offset: 8, length: 4 }, Change::Delete { id }];
        for change in changes {
            let good = Unlogged::new(change, 3).listed_at(4);
            assert!(good.op().is_some_and(|(made, op)| made == 3 && op.target() == id));
            assert!(!good.outlasts_epoch(3) && good.outlasts_batch(3) && !good.outlasts_batch(4));
            for bit in 0..u64::BITS {
                let mut of_change = good;
                of_change.strike(1 << bit);
                let of_made = Unlogged { made: 3 ^ 1 << bit, ..good };
                let of_listed = Unlogged { listed: 4 ^ 1 << bit, ..good };
                for struck in [of_change, of_made, of_listed] {
                    assert_eq!(struck.op(), None, "{change:?}, bit {bit}");
                    assert!(struck.outlasts_epoch(3) && struck.outlasts_batch(4), "{change:?}, bit {bit}");
                }
            }
        }
    }
}
