//! What the store will have free when everything admitted is a recovery point: for who asks how full it is, so that what has
//! just been deleted does not count as used for seconds more. An estimate, and never a ground to admit anything.
//!
//! Two things become free. Blocks *promised* to an epoch that it will not take: for pages that are gone again before they were
//! written, and what was promised on stock. And blocks *stored* of objects that were deleted or truncated, unless a snapshot or
//! another object has them, too. Which of these are so, the store knows page by page; it is asked for a sample of them. The
//! answer is what is true at that moment: what the epoch being written has freed already, the store counts itself, and does
//! not have any more.
//!
//! It errs to the low side where it errs: pages punched out of a file and replaced by copies are not counted, nor are pages that
//! two objects share that are both deleted.

use crate::Cache;
use crate::object::{Object, Residence, Slot};
use crate::state::{OpenEpoch, State};
use holdfast_object::space::POINTERS_PER_BLOCK;
use holdfast_object::{Epoch, ObjectId, ObjectKey, PAGE_SIZE, PageIndex, Space};
use rustc_hash::FxHashMap;

/// Pages asked about.
const SAMPLES: u64 = 32;

/// What one epoch will free.
#[derive(Default)]
pub(crate) struct Freeing {
    /// Blocks promised for pages that are gone, with the tree blocks above them.
    dropped: u64,
    /// Objects deleted or cut short.
    shrunk: FxHashMap<ObjectId, Shrunk>,
}

/// Pages that an object loses: as many as are stored for certain, if they follow each other.
#[derive(Clone, Copy)]
struct Shrunk {
    first: PageIndex,
    pages: u64,
    /// The same with the tree blocks above them.
    blocks: u64,
    /// The epoch that brings the object to the store, if that has not happened.
    created: Option<Epoch>,
}

/// The epoch being written.
pub(crate) struct Writing {
    pub(crate) epoch: Epoch,
    unneeded: u64,
    freeing: Freeing,
}

impl Writing {
    /// Takes over what the open epoch, which is being closed, will free.
    pub(crate) fn begin(open: &mut OpenEpoch, has_snapshots: bool) -> Writing {
        let unneeded = unneeded(open, has_snapshots);
        Writing { epoch: open.epoch, unneeded, freeing: std::mem::take(&mut open.freeing) }
    }
}

impl Freeing {
    /// So many dirty pages are gone, each of which is stored in `copies`.
    pub(crate) fn dropped(&mut self, pages: u64, copies: u64) {
        self.dropped += pages * copies + 2 * tree_blocks(pages);
    }

    /// The object is to have no page at or behind `keeps`. To be called before it is changed. `unwritten` is the oldest epoch that is
    /// no recovery point.
    pub(crate) fn shrinks(&mut self, id: ObjectId, object: &Object, keeps: PageIndex, unwritten: Epoch) {
        if object.progress.is_copied_since(unwritten) {
            // What has its pages now, the store does not know yet.
            return;
        }
        let is_frozen = |slot: &&Slot| matches!(slot.residence, Residence::Frozen);
        let frozen = object.pages.values().filter(is_frozen).count() as u64;
        let whole = object.attributes.size.div_ceil(PAGE_SIZE as u64).max(object.attributes.blocks);
        let stored = (object.attributes.blocks + frozen).min(whole);
        let pages = stored.saturating_sub(keeps);
        if pages == 0 {
            return;
        }
        let blocks = pages + 2 * (tree_blocks(stored) - tree_blocks(keeps));
        let shrunk = Shrunk { first: keeps, pages, blocks, created: object.progress.created_in() };
        let known = self.shrunk.entry(id).or_insert(shrunk);
        if pages >= known.pages {
            *known = shrunk;
        }
    }
}

/// Tree blocks above so many pages that follow each other from the start.
fn tree_blocks(pages: u64) -> u64 {
    let (mut blocks, mut above) = (0, pages);
    while above > 1 {
        above = above.div_ceil(POINTERS_PER_BLOCK);
        blocks += above;
    }
    blocks
}

/// Blocks promised to the open epoch that it will not take, as far as is known.
fn unneeded(open: &OpenEpoch, has_snapshots: bool) -> u64 {
    let notes = if has_snapshots { open.demand.note_blocks() } else { 0 };
    let needed = (open.demand.blocks() + notes).saturating_sub(open.freeing.dropped);
    open.reserved.saturating_sub(needed)
}

/// A page to ask the store about.
type Sample = (ObjectId, PageIndex, Option<Epoch>);

/// Blocks that go away, and pages out of them, evenly.
fn samples(state: &State) -> (u64, Vec<Sample>) {
    let open = &state.open.freeing.shrunk;
    // What the open epoch takes away includes what the one before has.
    let before = state.writing.iter().flat_map(|writing| &writing.freeing.shrunk);
    let all = || open.iter().chain(before.clone().filter(|(id, _)| !open.contains_key(id)));
    let blocks = all().map(|(_, shrunk)| shrunk.blocks).sum();
    let pages: u64 = all().map(|(_, shrunk)| shrunk.pages).sum();
    let count = SAMPLES.min(pages);
    // In the middle of each part, so that a page in front that is written anew does not stand for many.
    let mut wanted =
        (0..count).map(|number| ((2 * u128::from(number) + 1) * u128::from(pages) / (2 * u128::from(count))) as u64);
    let mut samples = Vec::with_capacity(count as usize);
    let (mut behind, mut next) = (0, wanted.next());
    for (&id, shrunk) in all() {
        while let Some(at) = next.filter(|&at| at - behind < shrunk.pages) {
            samples.push((id, shrunk.first + (at - behind), shrunk.created));
            next = wanted.next();
        }
        behind += shrunk.pages;
    }
    (blocks, samples)
}

impl Cache {
    /// See [`holdfast_object::ObjectCache::space_expected`].
    pub(crate) fn estimate_space(&self) -> Space {
        let (writing, mut unneeded, blocks, samples) = {
            let state = self.state.read();
            let (blocks, samples) = samples(&state);
            let writing = state.writing.as_ref().map(|writing| (writing.epoch, writing.unneeded));
            (writing, unneeded(&state.open, state.has_snapshots), blocks, samples)
        };
        let status = self.store.status();
        // What a published epoch was promised is given back.
        unneeded += writing.filter(|&(epoch, _)| epoch > status.epoch).map_or(0, |(_, unneeded)| unneeded);
        let goes = samples.iter().filter(|&&(id, index, created)| {
            let key = ObjectKey { domain: self.domain, object: id };
            created.is_some_and(|epoch| epoch > status.epoch)
                || self.store.replaceable(key, index, 1).is_ok_and(|goes| goes)
        });
        let freed = u128::from(blocks) * goes.count() as u128 / samples.len().max(1) as u128;
        let space = status.space;
        let reserved = space.reserved.saturating_sub(unneeded);
        let pending = space.pending.saturating_add(freed as u64).min(space.total.saturating_sub(space.free));
        Space { reserved, pending, ..space }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_blocks_of_dense_objects() {
        assert_eq!([0, 1, 2, 64, 65, 4096, 4097].map(tree_blocks), [0, 0, 1, 1, 3, 65, 68]);
    }
}
