//! What no sum sees, written where the audit has to find it: in a field of which an equation knows, in a place where something is put legally
//! afterwards.

use super::{Choice, Lab, MetaKind, Missed, Pattern, State, Struck, Target};
use crate::format::record::RecordGlance;
use crate::format::{RECORD_BYTES, RECORDS};
use crate::inject::Random;
use crate::objects::{system_key, table_of};
use crate::tree::Trees;
use holdfast_object::{DomainId, Epoch, ObjectId, ObjectKey};

/// Slots and bits that are tried.
const ATTEMPTS: usize = 16;

/// A record in a block of an object table, to be struck.
struct Place {
    target: Target,
    slot: usize,
    /// The object of domain 0 that has the table, and the id of the record's.
    table: u64,
    id: u64,
}

impl Place {
    /// Of one of the store's own objects: it is in use from memory, and put for each epoch.
    fn is_own(&self) -> bool {
        self.table == 0
    }

    /// Whether an equation counts what becomes of the field: pages of objects; addresses, where there is a tree; and a birth by which the newest snapshot
    /// of `main` seems to have a block of metadata and has it not, or the other way round; not of one that is made in this epoch, which has them all, and
    /// of which more than there are is not counted.
    fn is_counted(&self, field: &str, old: &RecordGlance, new: &RecordGlance, newest: Option<Epoch>) -> bool {
        let is_of_main = !self.is_own() || self.id == table_of(DomainId::MAIN);
        let is_kept = |record: &RecordGlance| newest.map(|newest| record.root.birth_log <= newest);
        match field {
            "blocks" => !self.is_own() && old.blocks != new.blocks,
            "root.birth_log" => is_of_main && old.root.address[1] != 0 && is_kept(old) != is_kept(new),
            _ => old.root.address[0] != 0 && new.root.address[0] != 0,
        }
    }
}

impl Lab<'_> {
    /// Writes over a field of a block so that no sum sees it ([`Pattern::KeepAll`]), where the audit is to find it once more is changed legally: of the
    /// fields that [`MetaKind::is_audited`] has.
    ///
    /// The bitmap is put from what the allocator has, and of a snapshot list all is known that is in it: in these it is anywhere, and found when the block
    /// changes next. Of records it is one that is put for the epoch being built, as its object has been changed by now: if it changes only later,
    /// what has been struck is taken for what was there, on both sides of each equation.
    ///
    /// # Errors
    /// Why nothing was.
    pub fn strike_audited(&self, kind: MetaKind, state: State, field: &str, seed: u64) -> Result<Struck, Missed> {
        let choice =
            Choice { states: vec![state], field: Some(field.into()), ..Choice::of(kind, Pattern::KeepAll, seed) };
        let targets = self.chosen(&choice);
        if kind != MetaKind::ObjectTable || targets.is_empty() {
            return self.strike_chosen(&choice);
        }
        let places: Vec<Place> = targets.iter().flat_map(|target| self.put_later(target)).collect();
        let mut random = Random::new(seed);
        for _ in 0..ATTEMPTS {
            let Some(place) = places.get(random.below(places.len() as u64) as usize) else { break };
            if let Some(struck) = self.strike_counted(place, field, &mut random) {
                return Ok(struck);
            }
        }
        Err(Missed::Nothing(targets[0]))
    }

    /// Records in a block that are put for the epoch being built after now, whatever comes; those of the store's own objects for the next one, if
    /// the block is complete.
    fn put_later(&self, target: &Target) -> Vec<Place> {
        let Some(trees) = self.trees() else { return Vec::new() };
        let key = target.key();
        let is_own = key.object == 0;
        let is_current = match trees.dirty.get(&key) {
            Some(dirty) => target.state == State::Changed && (is_own || !dirty.block.is_released()),
            None => self.address_of(&trees, target) == Some(target.address),
        };
        let domain = DomainId((key.object / 16) as u16);
        let is_put = |id: u64| match is_own {
            true => id != 0 && trees.system.contains_key(&id),
            false => trees.changed.contains_key(&ObjectKey { domain, object: ObjectId(id) }),
        };
        let first = key.index * RECORDS;
        let ids = (first..first + RECORDS).filter(|id| is_current && is_put(*id));
        ids.map(|id| Place { target: *target, slot: (id - first) as usize, table: key.object, id }).collect()
    }

    /// Where the last recovery point has the block of this name.
    fn address_of(&self, trees: &Trees, target: &Target) -> Option<u64> {
        let table = system_key(target.key().object);
        let record = trees.system.get(&table.object.0)?;
        let path = trees.path_to(&self.module.base, table, record, 0, target.index).ok()??;
        Some(path.pointer.address[0])
    }

    /// Strikes there, if an equation counts that.
    fn strike_counted(&self, place: &Place, field: &str, random: &mut Random) -> Option<Struck> {
        let layout = self.layout(&place.target)?;
        let (_, first, length) = layout.fields.iter().find(|(name, ..)| name == field)?;
        let (slot, end) = (place.slot * RECORD_BYTES, layout.slots * RECORD_BYTES);
        let (at, bits) = Pattern::Word.bits(slot + first, *length, end, None, random)?;
        let mut form = self.with(&place.target, |form| form.bytes())?;
        let record = |form: &[u8]| form.get(slot..)?.first_chunk().map(RecordGlance::at);
        let old = record(&form)?;
        form.get_mut(at..at + bits.len())?.iter_mut().zip(&bits).for_each(|(byte, flipped)| *byte ^= flipped);
        let new = record(&form)?;
        let newest = {
            let trees = self.trees()?;
            Some(trees.kept.newest_epoch(DomainId::MAIN)).filter(|newest| newest + 1 < trees.building)
        };
        let is_struck = old.is_used && place.is_counted(field, &old, &new, newest);
        if is_struck { self.strike_unseen(&place.target, at, &bits) } else { None }
    }
}
