//! Which versions of pages of metadata transactions have put, from their admission to what the store says it has written: one sum, kept as those of
//! names are.
//!
//! A page of a directory of the version before has the checksum that it should have, and its attributes are right in any case: only who knows the newest one
//! of each page misses it. So each page that a transaction puts counts with object, index, and the checksum that the request has for it, and counts no more
//! once another one of the same epoch is put in its place, or it goes. What is left is what the epoch has. Against that are held the pages that were
//! handed down and that the store says it has written: another version, one left out, and one put in another's place are missed before the superblock.
//!
//! What goes is taken from what is in memory, so its checksum must not be one that has gone bad there: the twin decides ([`crate::twin::Twin`]). If neither
//! is good, nobody knows the sum of that epoch any more.

use super::{ProvedSums, add, heal};
use crate::Cache;
use crate::flush::Written;
use crate::frozen;
use crate::object::{Object, Residence, Slot};
use crate::state::{FrozenEpoch, FrozenObject};
use crate::thrice::Thrice;
use holdfast_integrity::SetDigest;
use holdfast_object::{Found, Fragment, ObjectId, PageIndex, Result, mixed};
use rustc_hash::FxHashSet;
use std::ops::RangeBounds;

const WHAT: &str = "sum of pages of metadata that requests have put";

/// Of a page with a checksum.
#[inline]
pub(crate) fn version(id: ObjectId, index: PageIndex, checksum: u64) -> SetDigest {
    SetDigest::of(mixed([id.0, index, checksum]))
}

impl ProvedSums {
    /// The page has another version from now on.
    #[inline]
    pub(crate) fn put_page(&mut self, id: ObjectId, index: PageIndex, checksum: u64) {
        add(&mut self.pages, &version(id, index, checksum).words());
    }

    /// What is in memory as a page goes, or another version comes in its place: the open epoch has it no more, if it had.
    #[inline]
    pub(crate) fn drop_page(&mut self, id: ObjectId, index: PageIndex, slot: &Slot) {
        let (Residence::Dirty, Some(twin)) = (slot.residence, &slot.twin) else { return };
        match twin.checksum_of(&slot.page) {
            Some(checksum) => add(&mut self.pages, &(-version(id, index, checksum)).words()),
            None => self.pages[0] = Thrice::unknown(),
        }
    }

    /// The same of some pages of an object.
    pub(crate) fn drop_pages(&mut self, id: ObjectId, object: &Object, pages: impl RangeBounds<PageIndex>) {
        if object.attributes.kind.is_metadata() {
            object.pages.range(pages).for_each(|(index, slot)| self.drop_page(id, *index, slot));
        }
    }

    /// What it is of, if that is known.
    pub(crate) fn pages(&self) -> Option<SetDigest> {
        let [count, sum, squares] = self.pages.map(Thrice::get);
        Some(SetDigest::from_words([count?, sum?, squares?]))
    }
}

impl FrozenEpoch {
    fn is_metadata(&self, id: ObjectId) -> bool {
        let at = self.objects.binary_search_by_key(&id, |object| object.id);
        at.is_ok_and(|at| self.objects[at].attributes.kind.is_metadata())
    }

    fn objects_of_metadata(&self) -> impl Iterator<Item = &FrozenObject> {
        self.objects.iter().filter(|object| object.attributes.kind.is_metadata())
    }
}

impl Written {
    /// The store has been given these pages, and says which it has written.
    pub(crate) fn note_pages(&mut self, frozen: &FrozenEpoch, id: ObjectId, fragments: &[Fragment]) {
        if !fragments.is_empty() && frozen.is_metadata(id) {
            for fragment in fragments.iter().filter(|fragment| self.identities.contains_key(&(id, fragment.index))) {
                self.pages += version(id, fragment.index, fragment.page.checksum);
            }
        }
    }

    /// Pages that it says it has not, as nothing leads to their place: whoever waits for them is told. `None`: one went bad with its twin, and nobody
    /// knows which version it was.
    fn refused(&self, frozen: &FrozenEpoch) -> Option<SetDigest> {
        let mut refused = SetDigest::NOTHING;
        if self.rejected.is_empty() && self.half_done.is_empty() {
            return Some(refused);
        }
        let rejected: FxHashSet<_> = self.rejected.iter().copied().collect();
        for object in frozen.objects_of_metadata() {
            for (index, page) in &object.pages {
                let at = (object.id, *index);
                let is_told = rejected.contains(&at) || self.half_done.contains(&object.id);
                if is_told && !self.identities.contains_key(&at) {
                    let (_, twin) = object.twins.iter().find(|(of, _)| of == index)?;
                    refused += version(object.id, *index, twin.checksum_of(page)?);
                }
            }
        }
        Some(refused)
    }
}

impl Cache {
    /// Holds the pages of metadata that the store says it has written against those that requests have put. Whether that could be done. What the store was
    /// given is known to be what was frozen ([`Cache::verify_frozen`]).
    ///
    /// # Errors
    /// [`holdfast_object::Error::GivenUp`]: they are others.
    pub(crate) fn compare_pages(&self, frozen: &mut FrozenEpoch, written: &Written) -> Result<bool> {
        let (renewed, is_known) = heal(&mut frozen.proved.pages);
        self.note_proved(frozen.epoch, WHAT, renewed, is_known);
        let (Some(put), Some(refused)) = (frozen.proved.pages(), written.refused(frozen)) else { return Ok(false) };
        let stored = written.pages + refused;
        if put == stored {
            return Ok(true);
        }
        let only = self.only_page(frozen, put - stored);
        let why = frozen::not_as_put(self.domain, frozen.epoch, put, stored, only);
        Err(self.store.give_up(Found::LogicBug, why))
    }

    /// The page that makes all of a difference, if it is one: left out, one too many, or in another version or place.
    fn only_page(&self, frozen: &FrozenEpoch, differing: SetDigest) -> Option<(ObjectId, PageIndex)> {
        let pages = frozen.objects_of_metadata().flat_map(|object| object.pages.iter().map(|page| (object.id, page)));
        let given = pages.map(|(id, (index, page))| (id, *index, page.page().checksum));
        let state = self.state.read();
        let known = state.objects.iter().flat_map(|(id, object)| object.pages.iter().map(|page| (*id, page)));
        let known = known.filter(|(_, (_, slot))| slot.residence == Residence::Frozen);
        let known = known.map(|(id, (index, slot))| (id, *index, slot.page.page().checksum));
        let is_it = |&(id, index, checksum): &(ObjectId, PageIndex, u64)| {
            let one = version(id, index, checksum);
            differing == one || differing == -one || (differing + one).only().is_some()
        };
        given.chain(known).find(is_it).map(|(id, index, _)| (id, index))
    }
}
