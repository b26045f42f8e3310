//! Wrong changes by legal ways, field by field: of what the epoch being built has changed, by the update that is for it, so that it is counted as any
//! other and all checksums are right. Nothing else that belongs to it is done.

use super::{Cells, Choice, Lab, MetaKind, Missed, Pattern, State, Struck, Target};
use crate::format::blockptr::{Glance, POINTER_BYTES, PointerKind};
use crate::inject::Random;
use crate::tree::Change;

/// Places that are tried.
const ATTEMPTS: usize = 16;

impl MetaKind {
    /// Whether a wrong legal change of this field, of what the epoch being built has changed, is found before its superblock: docs/audit.md, *Wrong
    /// changes, field by field*.
    pub fn is_held_against(self, field: &str) -> bool {
        match self {
            // Of pointers to pages.
            MetaKind::BlockTree => {
                matches!(field, "address[0]" | "address[1]" | "birth_log" | "birth_phys" | "shape")
            }
            MetaKind::ReferenceTable | MetaKind::Map | MetaKind::SnapshotList | MetaKind::DeadList => true,
            // Those that have a place on the device.
            MetaKind::Record => !field.ends_with("upper part") && !matches!(field, "project" | "root.primary"),
            _ => false,
        }
    }
}

impl Lab<'_> {
    /// Changes bits of a field of something that the epoch being built has changed and not completed, legally. Called while nobody reads or changes it.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn change_wrongly(&self, kind: MetaKind, field: &str, seed: u64) -> Result<Struck, Missed> {
        let choice = Choice { states: vec![State::Changed], ..Choice::of(kind, Pattern::Word, seed) };
        let targets = self.chosen(&choice);
        let Some(first) = targets.first() else { return Err(Missed::NoSuch(kind)) };
        let mut random = Random::new(seed);
        for _ in 0..ATTEMPTS {
            let target = &targets[random.below(targets.len() as u64) as usize];
            if let Some(changed) = self.change_field(target, field, &mut random) {
                return Ok(changed);
            }
        }
        Err(Missed::Nothing(*first))
    }

    fn change_field(&self, target: &Target, field: &str, random: &mut Random) -> Option<Struck> {
        let layout = self.layout(target)?;
        let (_, first, length) = layout.fields.iter().find(|(name, ..)| name == field)?;
        let slot = *layout.used.get(random.below(layout.used.len() as u64) as usize)?;
        let before = self.with(target, |form| form.bytes())?;
        let place = slot * layout.slot_bytes + first;
        let (at, bits) = Pattern::Word.bits(place, *length, before.len(), None, random)?;
        let mut after = before.clone();
        after.get_mut(at..at + bits.len())?.iter_mut().zip(&bits).for_each(|(byte, flipped)| *byte ^= flipped);
        match target.kind {
            MetaKind::Record => self.put_record(target, field, at, &bits)?,
            _ => self.put_slot(target, slot, &before, &after)?,
        }
        let after = self.with(target, |form| form.bytes())?;
        Struck::of(target, &layout, &before, &after)
    }

    fn put_record(&self, target: &Target, field: &str, at: usize, bits: &[u8]) -> Option<()> {
        let mut trees = self.trees()?;
        let (building, now_s) = (trees.building, self.module.base.now_s());
        let Some(Change::Present(sealed)) = trees.changed.get_mut(&target.key().object_key()) else { return None };
        // The root of a tree that changes is put when that is complete, and one that there is not has no place.
        if (field.starts_with("root.") || field == "levels") && sealed.root.address[0] == 0 {
            return None;
        }
        let mut record = crate::format::Record::clone(sealed);
        Cells::of_record(&mut record).flip(at, bits);
        sealed.replace(record, building, now_s).ok()
    }

    /// `before` and `after`: the block.
    fn put_slot(&self, target: &Target, slot: usize, before: &[u8], after: &[u8]) -> Option<()> {
        let mut trees = self.trees()?;
        let key = target.key();
        if trees.dirty.get(&key)?.block.is_released() {
            return None;
        }
        let pointer = || before.as_chunks::<POINTER_BYTES>().0.get(slot).map(Glance::at);
        // Others lead to blocks that are looked at on the way to the recovery point, by which they are told.
        if target.kind == MetaKind::BlockTree && (key.level != 1 || pointer()?.kind != PointerKind::Data) {
            return None;
        }
        let mut edit = trees.dirty_mut(key);
        match target.kind {
            MetaKind::BlockTree => edit.put_encoded(slot, *after.as_chunks().0.get(slot)?),
            MetaKind::ReferenceTable => edit.put_counter(slot, u32::from_le_bytes(*after.as_chunks().0.get(slot)?)),
            MetaKind::Map => {
                let words: Vec<u64> = after.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                edit.put_words(&words);
            }
            MetaKind::SnapshotList => edit.put_snapshot(slot, after.as_chunks().0.get(slot)?),
            MetaKind::DeadList => edit.change_dead_run(slot, after.as_chunks().0.get(slot)?),
            _ => return None,
        }
        Some(())
    }
}
