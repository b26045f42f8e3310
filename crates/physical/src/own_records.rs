//! Records of the store's own objects, through which everything is found for as long as the store is open. They are looked at once in a
//! second, before something is found through them, and put right from their copies: nobody above notices. What is known of snapshots is looked
//! at with them.

use crate::module::Module;
use crate::objects::{system_key, table_of};
use crate::sealed_record::SealedRecord;
use crate::tree::{Base, Trees};
use holdfast_object::{ObjectKey, Place};
use parking_lot::RwLockReadGuard;
use std::sync::atomic::Ordering;

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
}

impl Trees {
    fn own(&self) -> impl Iterator<Item = &SealedRecord> {
        self.system.values().chain(self.kept.tables())
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

    /// What cannot be put right stops the recovery point that it would be in.
    fn heal_own(&mut self, base: &Base) {
        let (newest, blocks) = (base.disk.newest(), base.disk.blocks());
        let own = self.system.iter_mut().map(|(id, record)| (system_key(*id), record));
        let kept = self.kept.tables_mut().map(|(domain, record)| (system_key(table_of(domain)), record));
        let mut bad: Vec<(ObjectKey, _)> = Vec::new();
        for (key, record) in own.chain(kept) {
            bad.extend(record.heal(newest, blocks).map(|scribble| (key, scribble)));
        }
        for (key, scribble) in bad {
            base.disk.counters.scribbled();
            let place = Place { object: Some(key), address: None, ..base.disk.place(0) };
            tracing::error!(error = %scribble.at(place), "the record is put right from its copy");
        }
        // Through those records.
        self.heal_snapshots(base);
        for scribble in base.alloc.lock().heal_numbers() {
            base.disk.note_scribble(scribble, None, "put right from its copy, or of no more effect");
        }
        self.looked_s.store(base.now_s(), Ordering::Relaxed);
    }
}
