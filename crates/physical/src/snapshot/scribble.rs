//! What nobody may do to what is known of snapshots: see [`crate::scribble`].

use super::dying::Dying;
use super::{Deleted, EntrySums, Kept, OfDomain};
use crate::format::DeadRun;
use crate::objects::table_of;
use crate::scribble::Cells;
use crate::sealed_record::SealedRecord;
use holdfast_object::{DomainId, Epoch};

impl Kept {
    /// What is known of all lists.
    pub(crate) fn listed_cells<'a>(&'a mut self, cells: &mut Cells<'a>) {
        self.listed.cells(cells);
    }

    /// How many [`Kept::cells`] there are of.
    pub(crate) fn entries(&self, domain: DomainId) -> usize {
        self.domains.get(&domain).map_or(0, |of_domain| of_domain.held.len() + of_domain.deleted.len())
    }

    /// The entry of a snapshot, counted from the oldest, then those of deleted ones; and what is known beside it.
    pub(crate) fn cells(&mut self, domain: DomainId, nth: usize) -> Option<Cells<'_>> {
        let OfDomain { held, deleted, .. } = self.domains.get_mut(&domain)?;
        if let Some(nth) = nth.checked_sub(held.len()) {
            return deleted.get_mut(nth).map(Deleted::cells);
        }
        let held = held.get_mut(nth)?;
        let mut cells = Cells::of_snapshot(&mut held.stored);
        cells.own("slot", held.slot.0.scribbled());
        cells.own("metadata", held.metadata.scribbled());
        Some(cells)
    }

    /// What is known of all of a domain.
    pub(crate) fn number_cells<'a>(&'a mut self, domain: DomainId, cells: &mut Cells<'a>) {
        if let Some(of_domain) = self.domains.get_mut(&domain) {
            cells.own("newest snapshot", of_domain.last_id.scribbled());
        }
    }

    /// The record through which the objects of a snapshot are found.
    pub(crate) fn table(&mut self, domain: DomainId, nth: usize) -> Option<&mut SealedRecord> {
        self.domains.get_mut(&domain)?.held.get_mut(nth)?.view.system.get_mut(&table_of(domain))
    }

    /// Runs that are to join dead lists, past their sum.
    pub(crate) fn dying(&mut self, domain: DomainId) -> impl Iterator<Item = &mut DeadRun> {
        let of_domain = self.domains.get_mut(&domain).into_iter();
        of_domain.flat_map(|of_domain| of_domain.dying.values_mut().flat_map(Dying::scribbled))
    }

    /// A logic bug: these runs are others.
    #[cfg(test)]
    pub(crate) fn alter_dying(&mut self, domain: DomainId, change: impl Fn(&mut DeadRun)) {
        for runs in self.domains.get_mut(&domain).into_iter().flat_map(|of_domain| of_domain.dying.values_mut()) {
            for nth in 0..runs.runs().len() {
                runs.alter(nth, |mut run| {
                    change(&mut run);
                    Some(run)
                });
            }
        }
    }

    /// A logic bug: one of them is lost.
    pub(crate) fn lose_dying(&mut self, domain: DomainId, choice: u64) -> Option<DeadRun> {
        let of_domain = self.domains.get_mut(&domain)?;
        let runs = of_domain.dying.values_mut().find(|runs| !runs.runs().is_empty())?;
        Some(runs.alter((choice % runs.runs().len() as u64) as usize, |_| None))
    }

    /// A logic bug: the newest snapshot of a domain seems to have a block of metadata less, or more. Gives how many it has, and seems to have.
    pub(crate) fn miscount(&mut self, domain: DomainId) -> Option<[u64; 2]> {
        let metadata = &mut self.domains.get_mut(&domain)?.held.last_mut()?.metadata;
        let counted = metadata.get();
        metadata.set(counted.checked_sub(1).unwrap_or(1));
        Some([counted, metadata.get()])
    }

    /// A logic bug: the newest snapshot of a domain is one of an older epoch. Gives its epoch, and that.
    pub(crate) fn backdate(&mut self, domain: DomainId) -> Option<[Epoch; 2]> {
        let held = self.domains.get_mut(&domain)?.held.last_mut()?;
        let made = held.stored.epoch;
        held.stored.epoch = made.checked_sub(1)?;
        held.sums = EntrySums::of(&held.stored);
        Some([made, held.stored.epoch])
    }
}
