//! What is known of snapshots in memory: it is looked at once in a second, and read again from the list, which may have been changed by the
//! epoch being built; numbers that are in no list are put right from their copies. What cannot be put right so stops the recovery point
//! ([`Trees::verify_snapshots`]).

use super::{EntrySums, Kept, OfDomain, Slot};
use crate::base::Base;
use crate::difference::in_fields;
use crate::format::snapshot::{FIELDS, SNAPSHOT_BYTES};
use crate::format::{SNAPSHOTS, StoredSnapshot};
use crate::meta_block::Scribble;
use crate::objects::{snapshots_of, system_key};
use crate::tree::Trees;
use holdfast_object::{DomainId, Epoch, Error, ObjectKey};

/// One in the list.
struct Listed {
    bytes: [u8; SNAPSHOT_BYTES],
    stored: StoredSnapshot,
    changed_for: Option<Epoch>,
}

/// One in memory that has gone bad.
pub(super) struct BadEntry {
    pub(super) slot: u16,
    pub(super) stored: Box<StoredSnapshot>,
    pub(super) sums: EntrySums,
    pub(super) scribble: Scribble,
}

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
    pub(crate) fn heal_snapshots(&mut self, base: &Base) -> Vec<(ObjectKey, (Scribble, String))> {
        let mut healed = Vec::new();
        for domain in self.kept.domains().collect::<Vec<_>>() {
            let list = system_key(snapshots_of(domain));
            let Some(of_domain) = self.kept.domains.get_mut(&domain) else { continue };
            healed.extend(of_domain.heal_numbers().into_iter().map(|scribble| (list, (scribble, String::new()))));
            let bad = of_domain.entries().filter(|entry| entry.sums.verify(entry.stored).is_err());
            for slot in bad.map(|entry| entry.slot.get()).collect::<Vec<_>>() {
                let listed = self.listed(base, domain, slot);
                let Some(of_domain) = self.kept.domains.get_mut(&domain) else { continue };
                let Some(Entry { stored, sums, .. }) = of_domain.entries().find(|entry| entry.slot.get() == slot)
                else {
                    continue;
                };
                let Err(scribble) = sums.verify(stored) else { continue };
                if let Some(Listed { stored: again, changed_for, .. }) =
                    listed.filter(|listed| sums.are_of(&listed.bytes))
                {
                    let bad = std::mem::replace(stored, again);
                    healed.push((list, (scribble, told(&bad, Some(stored), changed_for))));
                }
            }
        }
        healed
    }

    /// What is known of a domain's snapshots has gone bad: no recovery point is made of it.
    pub(super) fn give_up_snapshot(&self, base: &Base, domain: DomainId, bad: BadEntry) -> Error {
        let BadEntry { slot, stored, sums, scribble } = bad;
        // It may have been hit as well.
        let listed = self.listed(base, domain, slot).filter(|listed| sums.are_of(&listed.bytes));
        let changed_for = listed.as_ref().and_then(|listed| listed.changed_for);
        let told = told(&stored, listed.as_ref().map(|listed| &listed.stored), changed_for);
        base.give_up_own(scribble, system_key(snapshots_of(domain)), &told)
    }

    /// An entry of the list, if there is one and it can be read.
    fn listed(&self, base: &Base, domain: DomainId, slot: u16) -> Option<Listed> {
        let list = system_key(snapshots_of(domain));
        let record = self.system.get(&list.object.0)?;
        let (page, at) = (u64::from(slot) / SNAPSHOTS, (u64::from(slot) % SNAPSHOTS) as usize);
        let block = self.node(base, list, record, 0, page).ok()??;
        let bytes = *block.snapshot(at);
        let stored = StoredSnapshot::decode(&bytes, base.disk.newest(), base.disk.blocks()).ok()??;
        Some(Listed { bytes, stored, changed_for: self.changed_for(base, list, record, page) })
    }
}

/// What of a snapshot in memory has gone bad, with a comma before it; and for which epoch the block of the list that has it was last changed.
fn told(bad: &StoredSnapshot, good: Option<&StoredSnapshot>, changed_for: Option<Epoch>) -> String {
    let fields = match (bad.table.root.excess(), good) {
        (0, Some(good)) => in_fields(FIELDS, &good.encode(), &bad.encode()),
        (0, None) => "its entry in the list cannot be read, to tell the fields".into(),
        (excess, _) => format!("table.root has bits that it has no place for, {excess:#x}"),
    };
    let changed = changed_for.map_or_else(String::new, |epoch| format!(", last changed legally for epoch {epoch}"));
    format!(", of snapshot {}, {fields}{changed}", good.unwrap_or(bad).id.0)
}
