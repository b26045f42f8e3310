//! Records of the store's own objects, through which everything is found for as long as the store is open. They are looked at once in a
//! second, before something is found through them, and put right from their copies: nobody above notices, unless the epoch being built has
//! changed something already, which may have gone by them. What is known of snapshots is looked at with them.

use crate::base::Base;
use crate::disk::Disk;
use crate::module::Module;
use crate::objects::{system_key, table_of};
use crate::sealed_record::SealedRecord;
use crate::tree::{Change, Trees};
use holdfast_object::{Corruption, Epoch, Error, ObjectKey, Place, Result};
use parking_lot::RwLockReadGuard;
use std::sync::atomic::Ordering;

/// A second in which nothing was looked at.
const NEVER: u32 = u32::MAX;
/// Most blocks that are told beside the first.
const TOLD_MAX: usize = 8;

impl Module {
    /// The trees, for finding something in them.
    pub(crate) fn trees(&self) -> RwLockReadGuard<'_, Trees> {
        let trees = self.trees.read();
        if trees.own_are_good(&self.base) {
            return trees;
        }
        drop(trees);
        self.trees.write().heal_own(&self.base);
        self.trees.read()
    }

    /// The same, with the store's own records, and what is known of snapshots, verified just now: for whoever keeps what they say.
    pub(crate) fn trees_now(&self) -> RwLockReadGuard<'_, Trees> {
        self.trees.read().looked_s.store(NEVER, Ordering::Relaxed);
        self.trees()
    }
}

/// Whether that can come of metadata which has gone bad in memory.
fn may_be_misled(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::NoObject(_) | Error::ObjectExists(_) | Error::Device(_))
}

/// What was met by way of memory that has gone bad, which is no damage of the device. The epoch being built is begun anew, as it may have been led
/// astray as well.
pub(crate) fn misled(disk: &Disk, place: Place, error: &Error) -> Error {
    let what = "what leads there has gone bad in memory, to which somebody has written who must not".into();
    disk.give_up(Corruption { place, what, expected: "what it was".into(), got: error.to_string() })
}

/// The same, by these blocks, if that is known.
fn misled_by(disk: &Disk, blocks: &[(Place, Epoch)], error: &Error) -> Error {
    let Some(((place, written), others)) = blocks.split_first() else {
        return misled(disk, Place { address: None, ..disk.place(0) }, error);
    };
    let mut what = "what was gone by, has gone bad in memory, to which somebody has written who must not".to_string();
    if *written != 0 {
        what += &format!(", last changed legally for epoch {written}");
    }
    for (place, written) in others.iter().take(TOLD_MAX) {
        what += &format!("; so has {place}, of epoch {written}");
    }
    if others.len() > TOLD_MAX {
        what += &format!("; and {} more", others.len() - TOLD_MAX);
    }
    let place = place.clone();
    disk.give_up(Corruption { place, what, expected: "what it was".into(), got: error.to_string() })
}

impl Module {
    /// Looks for something, and once more if what led there had gone bad in memory: it is read again then. If that cannot be, as the epoch being
    /// built has changed it, the answer is that of the last recovery point. Called without any lock that is taken where changes are made.
    pub(crate) fn surely<T>(&self, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let scribbles = self.disk().counters.scribbles();
        let error = match look() {
            Err(error @ Error::GivenUp(_)) => error,
            Err(error) if may_be_misled(&error) => error,
            outcome => return outcome,
        };
        // Also of an epoch that is given up: the trees that it was seen in may have been those of a snapshot, and these know the records.
        let is_in_doubt = self.trees.read().is_in_doubt(&self.base);
        let has_noticed = self.disk().counters.scribbles() != scribbles;
        if !is_in_doubt && !has_noticed && !matches!(error, Error::GivenUp(_)) {
            return Err(error);
        }
        match look() {
            Err(error @ Error::GivenUp(_)) => match self.take_back_epoch() {
                Ok(()) => look(),
                // It was once too often, and the trees are those of the last recovery point all the same; or they cannot be read again. The
                // reason for that is told, and where damage was met is more to who reads.
                Err(_) => look().map_err(|_| error),
            },
            outcome => outcome,
        }
    }

    /// Changes something for the epoch being built, which is given up if it was led astray by what had gone bad in memory.
    pub(crate) fn or_given_up<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let scribbles = self.disk().counters.scribbles();
        change().map_err(|error| self.trees.read().in_doubt(&self.base, scribbles, error))
    }
}

impl Trees {
    fn own(&self) -> impl Iterator<Item = &SealedRecord> {
        self.system.values().chain(self.kept.tables())
    }

    /// Whether something in memory has gone bad that may have led to what seems to be damage of the device. Clean blocks that have are
    /// forgotten, and records that have a copy are looked at again before they are used.
    pub(crate) fn is_in_doubt(&self, base: &Base) -> bool {
        self.doubt(base).is_some()
    }

    /// The same, with the clean blocks that have.
    fn doubt(&self, base: &Base) -> Option<Vec<(Place, Epoch)>> {
        if !base.disk.metadata.rolls() {
            return None;
        }
        let weeded = base.weed();
        let own_are_good = self.own().all(|record| record.bytes().is_ok()) && self.kept.are_good();
        if !own_are_good {
            self.looked_s.store(NEVER, Ordering::Relaxed);
        }
        (!weeded.is_empty() || !own_are_good || !self.is_sound()).then_some(weeded)
    }

    /// An error as it is; or, if what led to it may have gone bad since so many scribbles were known, that the epoch is given up.
    pub(crate) fn in_doubt(&self, base: &Base, scribbles: u64, error: Error) -> Error {
        if !may_be_misled(&error) {
            return error;
        }
        match self.doubt(base) {
            Some(weeded) => misled_by(&base.disk, &weeded, &error),
            None if base.disk.counters.scribbles() != scribbles => misled_by(&base.disk, &[], &error),
            None => error,
        }
    }

    fn own_are_good(&self, base: &Base) -> bool {
        let now_s = base.now_s();
        if self.looked_s.load(Ordering::Relaxed) == now_s {
            return true;
        }
        if base.disk.metadata.rolls() {
            base.disk.put_right();
        }
        let is_good = !base.disk.metadata.rolls()
            || self.own().all(|record| record.bytes().is_ok())
                && self.kept.are_good()
                && base.alloc.lock().numbers_are_good();
        if is_good {
            self.looked_s.store(now_s, Ordering::Relaxed);
        }
        is_good
    }

    /// Verifies the store's own records, and those of objects that the epoch being built has changed.
    pub(crate) fn look_at_all(&self, base: &Base) {
        self.own_are_good(base);
        for change in self.changed.values() {
            if let Change::Present(record) = change {
                // Who uses it next is told.
                let _ = record.look(base.now_s());
            }
        }
    }

    /// What cannot be put right stops the recovery point that it would be in. So does what the epoch being built may have gone by before it was
    /// put right: that is begun anew.
    fn heal_own(&mut self, base: &Base) {
        let has_begun = !self.dirty.is_empty() || !self.changed.is_empty();
        let (newest, blocks) = (base.disk.newest(), base.disk.blocks());
        let own = self.system.iter_mut().map(|(id, record)| (system_key(*id), record));
        let kept = self.kept.tables_mut().map(|(domain, record)| (system_key(table_of(domain)), record));
        let mut bad: Vec<(ObjectKey, _)> = Vec::new();
        for (key, record) in own.chain(kept) {
            bad.extend(record.heal(newest, blocks).map(|told| (key, told)));
        }
        // Through those records.
        bad.extend(self.heal_snapshots(base));
        for (key, (scribble, told)) in bad {
            match has_begun {
                // Whoever builds it asks.
                true => drop(base.give_up_own(scribble, key, &told)),
                false => base.disk.note_own_scribble(scribble, key, &told),
            }
        }
        for scribble in base.alloc.lock().heal_numbers() {
            base.disk.note_scribble(scribble, None, "put right from its copy, or of no more effect");
        }
        self.looked_s.store(base.now_s(), Ordering::Relaxed);
    }
}
