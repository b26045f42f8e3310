//! What is known of snapshots in memory: it is looked at once in a second, and read again from the list, which may have been changed by the
//! epoch being built; numbers that are in no list are put right from their copies. What cannot be put right so stops the recovery point
//! ([`Trees::verify_snapshots`]).

use super::{EntrySums, Kept, OfDomain, Slot};
use crate::base::Base;
use crate::format::snapshot::SNAPSHOT_BYTES;
use crate::format::{SNAPSHOTS, StoredSnapshot};
use crate::meta_block::Scribble;
use crate::objects::{snapshots_of, system_key};
use crate::tree::Trees;
use holdfast_object::{DomainId, ObjectKey};

/// One in memory, deleted or not.
struct Entry<'a> {
    slot: &'a mut Slot,
    stored: &'a mut StoredSnapshot,
    sums: EntrySums,
}

impl OfDomain {
    fn is_good(&self) -> bool {
        self.last_id.is_good()
            && self.held.iter().all(|held| held.slot.0.is_good() && held.metadata.is_good() && held.verify().is_ok())
            && self.deleted.iter().all(|deleted| deleted.is_good() && deleted.verify().is_ok())
    }

    /// Puts right what has a copy. Gives what was wrong.
    fn heal_numbers(&mut self) -> Vec<Scribble> {
        let mut healed: Vec<Scribble> = self.last_id.heal("number of the newest snapshot").into_iter().collect();
        healed.extend(self.held.iter_mut().filter_map(|held| held.heal()));
        healed.extend(self.deleted.iter_mut().filter_map(|deleted| deleted.heal()));
        healed
    }

    fn entries(&mut self) -> impl Iterator<Item = Entry<'_>> {
        let held = self.held.iter_mut().map(|held| (&mut held.slot, &mut held.stored, held.sums));
        let deleted = self.deleted.iter_mut().map(|deleted| (&mut deleted.slot, &mut deleted.stored, deleted.sums));
        held.chain(deleted).map(|(slot, stored, sums)| Entry { slot, stored, sums })
    }
}

impl Kept {
    /// Whether all that is known is as it was read or made.
    pub(crate) fn are_good(&self) -> bool {
        self.domains.values().all(OfDomain::is_good)
    }
}

impl Trees {
    /// Puts right what is known of snapshots. Gives what was wrong, and in which list it is.
    pub(crate) fn heal_snapshots(&mut self, base: &Base) -> Vec<(ObjectKey, Scribble)> {
        let mut healed = Vec::new();
        for domain in self.kept.domains().collect::<Vec<_>>() {
            let list = system_key(snapshots_of(domain));
            let Some(of_domain) = self.kept.domains.get_mut(&domain) else { continue };
            healed.extend(of_domain.heal_numbers().into_iter().map(|scribble| (list, scribble)));
            let bad = of_domain.entries().filter(|entry| entry.sums.verify(entry.stored).is_err());
            for slot in bad.map(|entry| entry.slot.get()).collect::<Vec<_>>() {
                let listed = self.listed(base, domain, slot);
                let Some(of_domain) = self.kept.domains.get_mut(&domain) else { continue };
                let Some(Entry { stored, sums, .. }) = of_domain.entries().find(|entry| entry.slot.get() == slot)
                else {
                    continue;
                };
                let Err(scribble) = sums.verify(stored) else { continue };
                if let Some((_, again)) = listed.filter(|(bytes, _)| sums.are_of(bytes)) {
                    *stored = again;
                    healed.push((list, scribble));
                }
            }
        }
        healed
    }

    /// An entry of the list, if there is one and it can be read.
    fn listed(&self, base: &Base, domain: DomainId, slot: u16) -> Option<([u8; SNAPSHOT_BYTES], StoredSnapshot)> {
        let list = system_key(snapshots_of(domain));
        let record = self.system.get(&list.object.0)?;
        let (page, at) = (u64::from(slot) / SNAPSHOTS, (u64::from(slot) % SNAPSHOTS) as usize);
        let block = self.node(base, list, record, 0, page).ok()??;
        let bytes = *block.snapshot(at);
        let stored = StoredSnapshot::decode(&bytes, base.disk.newest(), base.disk.blocks()).ok()??;
        Some((bytes, stored))
    }
}
