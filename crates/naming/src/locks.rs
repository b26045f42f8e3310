//! Which requests exclude each other. Locks are not state: they are gone with the process, and nothing is lost.
//!
//! One reader-writer lock per shard of object ids. A request names all objects it needs at once and gets their shards in
//! ascending order, so requests cannot wait for each other in a circle. Because the objects behind a name are only known
//! after looking, a request looks first, locks, and looks again.

use holdfast_object::{ObjectId, SnapshotId};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 1024;

/// Shared or exclusive use of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Use {
    Shared,
    Exclusive,
}

/// The table.
pub(crate) struct Locks {
    shards: Box<[RwLock<()>]>,
    /// Held while a directory moves to another parent, so that the ancestors seen stay the ancestors.
    moves: Mutex<()>,
}

/// Objects in use until dropped.
#[must_use]
pub(crate) struct InUse<'a>(#[allow(dead_code, reason = "held for its drop")] Vec<Guard<'a>>);

#[allow(dead_code, reason = "held for its drop")]
enum Guard<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks { shards: (0..SHARDS).map(|_| RwLock::new(())).collect(), moves: Mutex::new(()) }
    }

    /// Waits for all of them. Never called by a thread that has objects in use. What is in a snapshot never changes, so shared use of it
    /// waits for nobody.
    pub(crate) fn lock(&self, wanted: &[(ObjectId, Use)]) -> InUse<'_> {
        let mut shards: Vec<(usize, Use)> = wanted
            .iter()
            .filter(|(id, how)| *how == Use::Exclusive || id.snapshot() == SnapshotId::LIVE)
            // Neighbouring ids are spread by Fibonacci hashing.
            .map(|&(id, how)| ((id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % SHARDS, how))
            .collect();
        // Exclusive use of a shard stands for shared use of it.
        shards.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        shards.dedup_by_key(|(shard, _)| *shard);
        let guard = |(shard, how): (usize, Use)| match how {
            Use::Shared => Guard::Shared(self.shards[shard].read()),
            Use::Exclusive => Guard::Exclusive(self.shards[shard].write()),
        };
        InUse(shards.into_iter().map(guard).collect())
    }

    /// Waits until no directory is on its way to another parent. To be called before [`Locks::lock`].
    pub(crate) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_object_twice_is_locked_once() {
        let locks = Locks::new();
        let held = locks.lock(&[(ObjectId(5), Use::Shared), (ObjectId(5), Use::Exclusive), (ObjectId(6), Use::Shared)]);
        let exclusive = held.0.iter().filter(|guard| matches!(guard, Guard::Exclusive(_))).count();
        assert_eq!((held.0.len(), exclusive), (2, 1));
        drop(held);
        let first = locks.lock(&[(ObjectId(5), Use::Shared)]);
        let second = locks.lock(&[(ObjectId(5), Use::Shared)]);
        drop((first, second));
    }

    #[test]
    fn reading_a_snapshot_keeps_nobody_waiting() {
        let locks = Locks::new();
        let kept = ObjectId(5).in_snapshot(SnapshotId(1));
        assert_eq!(locks.lock(&[(kept, Use::Shared), (ObjectId(6), Use::Shared)]).0.len(), 1);
        assert_eq!(locks.lock(&[(kept, Use::Exclusive)]).0.len(), 1);
    }

    #[test]
    fn crossing_orders_do_not_deadlock() {
        let locks = Locks::new();
        let (a, b) = (ObjectId(1), ObjectId(2));
        std::thread::scope(|scope| {
            for order in [[a, b], [b, a]] {
                let locks = &locks;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        drop(locks.lock(&order.map(|id| (id, Use::Exclusive))));
                    }
                });
            }
        });
    }
}
