//! Changed pages of metadata have a twin: the same bytes elsewhere in memory, until the store has the page.
//!
//! A block that a file's owner wrote can be written again by its owner. What a directory, a link or extended attributes
//! have is the outcome of operations that were answered: no application writes it again. If such a page goes bad
//! while it is dirty, its twin takes its place, and nobody notices.
//!
//! Twins lie among the frames of metadata, locked where those are, and are counted there ([`Arena::twins`](holdfast_object::Arena::twins)): there are no
//! more of them than changed pages of metadata.
//!
//! Invariant: a twin has its own copy of the checksum and of the second sum, so that neither the page nor what is known of it is needed
//! to tell whether the twin is good.

use crate::object::Residence;
use crate::scribbled::Mend;
use crate::state::State;
use holdfast_object::{Epoch, FrameMut, ObjectId, PageIndex, PageRef, PinnedPage};

/// A page's bytes and checksum once more.
#[derive(Clone)]
pub(crate) struct Twin(PinnedPage);

impl Twin {
    /// Of a page that was just made. Takes the memory of the twin of the page's version before, if no epoch has that.
    pub(crate) fn of(page: &PinnedPage, before: Option<Twin>) -> Twin {
        Twin(page.twin(before.map(|twin| twin.0)))
    }

    /// The checksum that both were made with: of two that differ that of whichever is good. `None`: neither is.
    pub(crate) fn checksum_of(&self, page: &PinnedPage) -> Option<u64> {
        let Twin(twin) = self;
        if page.page().checksum == twin.page().checksum {
            return Some(page.page().checksum);
        }
        [page, twin].into_iter().find(|page| page.verify().is_ok()).map(|page| page.page().checksum)
    }

    /// A page of it, if it is good.
    fn page(&self, frame: FrameMut) -> Option<PinnedPage> {
        let page = frame.into_metadata().publish_copy(&self.0);
        page.verify().is_ok().then_some(page)
    }
}

impl State {
    /// The page that a twin makes. `None`: it is bad as well, or there is no frame for it.
    pub(crate) fn page_of(&mut self, twin: &Twin) -> Option<PinnedPage> {
        let frame = self.frame()?;
        twin.page(frame)
    }

    /// Puts the twin of a changed page in its place, if `bad` is the page's newest version. `None` if there is no good one.
    pub(crate) fn renew(&mut self, id: ObjectId, index: PageIndex, bad: PageRef) -> Option<PinnedPage> {
        let slot = self.objects.get(&id)?.pages.get(&index).filter(|slot| slot.page.page() == bad)?;
        let (bad, twin) = (slot.page.clone(), slot.twin.clone()?);
        let page = self.page_of(&twin)?;
        let changed = self.changed_for(id, index);
        self.put_renewed((id, index), &bad, page.clone(), changed);
        Some(page)
    }

    /// Puts a page with the same bytes in place of a changed one.
    fn put_renewed(
        &mut self,
        (id, index): (ObjectId, PageIndex),
        bad: &PinnedPage,
        page: PinnedPage,
        changed: Option<Epoch>,
    ) {
        self.tell_scribble((id, index), bad, (&page, Mend::Twin), changed);
        self.renewed += 1;
        if let Some(slot) = self.objects.get_mut(&id).and_then(|object| object.pages.get_mut(&index)) {
            slot.page = page;
        }
    }

    /// The same for a page of the epoch being written that the store has refused. `None` if its twin is no better.
    pub(crate) fn renew_frozen(
        &mut self,
        id: ObjectId,
        index: PageIndex,
        bad: &PinnedPage,
        twin: &Twin,
    ) -> Option<PinnedPage> {
        let page = self.page_of(twin)?;
        let slot = self.objects.get(&id).and_then(|object| object.pages.get(&index));
        if slot.is_some_and(|slot| slot.residence == Residence::Frozen) {
            self.put_renewed((id, index), bad, page.clone(), self.freezing);
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::Algorithm;
    use holdfast_object::{Arena, PAGE_SIZE};

    #[test]
    fn the_checksum_of_a_page_is_known_as_long_as_it_or_its_twin_is_good() {
        let arena = Arena::new(4, 0).unwrap();
        let mut frame = arena.allocate().unwrap().into_metadata();
        let sum = frame.copy_summed(&[3; PAGE_SIZE], Algorithm::Crc64Nvme);
        let page = frame.publish(sum);
        page.seal_for(ObjectId(7), 1);
        let (mut twin, known) = (Twin::of(&page, None), Some(page.page().checksum));
        assert_eq!(twin.checksum_of(&page), known);
        assert_eq!(twin.checksum_of(&page.with_flipped_sum(5)), known);
        twin.0 = twin.0.with_flipped_sum(9);
        assert_eq!(twin.checksum_of(&page), known);
        assert_eq!(twin.checksum_of(&page.with_flipped_sum(5)), None);
    }

    #[test]
    fn a_twin_that_went_bad_takes_no_place() {
        let arena = Arena::new(4, 0).unwrap();
        let mut frame = arena.allocate().unwrap().into_metadata();
        let sum = frame.copy_summed(&[3; PAGE_SIZE], Algorithm::Crc64Nvme);
        let page = frame.publish(sum);
        page.seal_for(ObjectId(7), 1);
        let mut twin = Twin::of(&page, None);
        assert!(twin.page(arena.allocate().unwrap()).is_some_and(|page| page.verify().is_ok()));
        assert!(twin.0.flip(&[77]), "nobody else has it");
        assert!(twin.page(arena.allocate().unwrap()).is_none());
    }
}
