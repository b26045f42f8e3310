//! What the cache knows of one object.

use crate::errors::ErrorTable;
use crate::members::Members;
use crate::progress::Progress;
use crate::ranges::Overlay;
use crate::sealed_attributes::SealedAttributes;
use crate::twin::Twin;
use crate::unlogged::Unlogged;
use holdfast_object::{AttrSet, Attributes, BlockIdentity, Class, ObjectId, PageIndex, PinnedPage};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the newest version of a page is, besides in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Residence {
    /// In the store, as this block.
    Clean(BlockIdentity),
    /// In the epoch being written.
    Frozen,
    /// Nowhere else yet.
    Dirty,
}

/// The newest version of one page.
pub(crate) struct Slot {
    pub(crate) page: PinnedPage,
    pub(crate) residence: Residence,
    /// Of a page of metadata that the store does not have yet.
    pub(crate) twin: Option<Twin>,
    /// Read since the eviction hand last passed.
    pub(crate) referenced: AtomicBool,
    /// The eviction hand has an entry for it.
    pub(crate) queued: bool,
}

/// One object in the cache.
///
/// Invariants (see [`Object::check`]):
/// - `dirty` are exactly the pages whose slot is `Dirty`;
/// - `unlogged` names only pages whose slot is `Dirty` or `Frozen`;
/// - `bad` pages have no slot;
/// - a page of metadata, and no other, has a second sum, which is that of its place;
/// - a page has a twin exactly if it is one of metadata and not `Clean`.
pub(crate) struct Object {
    pub(crate) attributes: SealedAttributes,
    /// For `Class::Own`: the attributes as of the last durable prefix of the object's own changes, with link count, names
    /// and their change time always current.
    pub(crate) stable: SealedAttributes,
    pub(crate) pages: BTreeMap<PageIndex, Slot>,
    /// Most levels of tree blocks that it can have in the store: pages behind its end may make its tree taller.
    pub(crate) levels: u8,
    pub(crate) dirty: Members<PageIndex>,
    /// Pages that neither a log batch nor a recovery point has yet.
    pub(crate) unlogged: Members<PageIndex>,
    /// Truncations, zeroings, and deletions of its extended attributes that neither a log batch nor a recovery point has yet.
    pub(crate) structural: Vec<Unlogged>,
    /// What is different from the store's pages without being in memory.
    pub(crate) overlay: Overlay,
    /// How far the log and the store are with it.
    pub(crate) progress: Progress,
    /// Pages whose bytes were found corrupt in memory while dirty: an error until written again.
    pub(crate) bad: ErrorTable,
    /// Dirty pages that may need a new block, for `st_blocks`.
    pub(crate) fresh_pages: u64,
    /// Pages of the epoch being written that have not changed since, for the same.
    pub(crate) frozen_pages: u64,
    /// Counts changes, so that a page loaded meanwhile is not put over a newer one.
    pub(crate) version: u64,
    pub(crate) readahead: Readahead,
    /// Used since the eviction hand last passed.
    pub(crate) referenced: AtomicBool,
}

impl Object {
    pub(crate) fn new(attributes: Attributes) -> Object {
        let attributes = SealedAttributes::new(attributes);
        Object {
            stable: attributes.clone(),
            attributes,
            pages: BTreeMap::new(),
            levels: 0,
            dirty: Members::default(),
            unlogged: Members::default(),
            structural: Vec::new(),
            overlay: Overlay::default(),
            progress: Progress::default(),
            bad: ErrorTable::default(),
            fresh_pages: 0,
            frozen_pages: 0,
            version: 0,
            readahead: Readahead::default(),
            referenced: AtomicBool::new(true),
        }
    }

    /// Whether nothing of it is waiting to be written.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.unlogged.is_empty()
            && self.progress.is_clean()
            && self.structural.is_empty()
            && self.overlay.is_empty()
            && self.bad.is_empty()
    }

    pub(crate) fn is_own(&self) -> bool {
        self.attributes.class == Class::Own
    }

    /// Attributes as an application sees them: dirty pages count as stored.
    pub(crate) fn visible_attributes(&self) -> Attributes {
        let mut attributes = Attributes::clone(&self.attributes);
        // Pages that were allocated may lie behind the end; also those of the epoch being written, which are not dirty any more.
        let behind = self.pages.last_key_value().map_or(0, |(last, _)| last + 1);
        let whole = attributes.size.div_ceil(holdfast_object::PAGE_SIZE as u64).max(behind);
        // What the store still has behind a cut is gone.
        let stored = attributes.blocks.min(self.overlay.cut_at().unwrap_or(PageIndex::MAX));
        attributes.blocks = (stored + self.fresh_pages).min(whole.max(stored));
        attributes
    }

    /// Sets attributes; the part that belongs to the name space also in `stable`.
    pub(crate) fn set_attributes(&mut self, set: &AttrSet, sequence: u64) {
        self.attributes.change(|attributes| set.apply(attributes));
        let part = AttrSet {
            nlink: set.nlink,
            parent: set.parent,
            name_key: set.name_key,
            other_names: set.other_names.clone(),
            ..AttrSet::default()
        };
        let names = part != AttrSet::default();
        if !self.is_own() {
            self.progress.names_changed.set(sequence);
            return;
        }
        if names {
            let part = AttrSet { ctime: set.ctime, ..part.clone() };
            self.stable.change(|stable| part.apply(stable));
            self.progress.names_changed.set(sequence);
        }
        let names_only = AttrSet { ctime: set.ctime, ..part } == *set;
        if !(names && names_only) {
            self.progress.own_changed.set(sequence);
        }
    }

    /// These attributes of a durable prefix of the object's own changes are stable now; those of the name space go on.
    pub(crate) fn set_stable(&mut self, durable: SealedAttributes) {
        let ctime = self.stable.ctime.max(durable.ctime);
        let Attributes { nlink, parent, name_key, ref other_names, .. } = *self.attributes;
        self.stable = durable;
        self.stable.change(|stable| {
            (stable.nlink, stable.parent, stable.name_key, stable.ctime) = (nlink, parent, name_key, ctime);
            stable.other_names.clone_from(other_names);
        });
    }

    /// Takes a slot out, with the sets that name it.
    pub(crate) fn drop_page(&mut self, index: PageIndex) {
        if self.pages.remove(&index).is_some_and(|slot| slot.residence == Residence::Frozen) {
            self.frozen_pages = self.frozen_pages.saturating_sub(1);
        }
        self.dirty.remove(&index);
        self.unlogged.remove(&index);
    }

    /// Drops all pages at or behind `first` (their errors too).
    pub(crate) fn drop_pages(&mut self, first: PageIndex, end: PageIndex) {
        let gone: Vec<PageIndex> = self.pages.range(first..end).map(|(&index, _)| index).collect();
        for index in gone {
            self.drop_page(index);
        }
        self.bad.cut(first, end);
    }

    /// Asserts the invariants.
    pub(crate) fn check(&self, id: ObjectId) {
        self.overlay.check();
        assert!(self.attributes.is_good() && self.stable.is_good(), "attributes of {id}");
        assert!(self.progress.is_good(), "numbers about {id}");
        let frozen = self.pages.values().filter(|slot| slot.residence == Residence::Frozen).count();
        assert_eq!(self.frozen_pages, frozen as u64, "pages of the epoch being written");
        assert!(self.dirty.is_good() && self.unlogged.is_good(), "sets of changed pages of {id}");
        assert!(self.structural.iter().all(Unlogged::is_good), "operations to be logged of {id}");
        for index in self.dirty.iter() {
            assert_eq!(self.pages.get(index).map(|slot| slot.residence), Some(Residence::Dirty), "dirty page {index}");
        }
        for index in self.unlogged.iter() {
            let residence = self.pages.get(index).map(|slot| slot.residence);
            assert!(
                matches!(residence, Some(Residence::Dirty | Residence::Frozen)),
                "unlogged page {index}: {residence:?}"
            );
        }
        for (index, slot) in &self.pages {
            assert!(
                slot.residence != Residence::Dirty || self.dirty.contains(index),
                "page {index} not in the dirty set"
            );
            assert!(!self.bad.contains(*index), "bad page {index} has bytes");
            let is_sealed = slot.page.seal().map(|seal| seal.is_of(id, *index));
            let must_be = self.attributes.kind.is_metadata().then_some(true);
            assert_eq!(is_sealed, must_be, "second sum of page {index} of {id}");
            let has_twin = self.attributes.kind.is_metadata() && !matches!(slot.residence, Residence::Clean(_));
            assert_eq!(slot.twin.is_some(), has_twin, "twin of page {index}");
        }
    }
}

/// Detects a reader that goes through the object from one end to the other.
#[derive(Default)]
pub(crate) struct Readahead {
    next: AtomicU64,
    window: AtomicU64,
}

impl Readahead {
    /// A reader wants `first..first + count`: up to how many pages should be loaded from `first` on if one is missing.
    pub(crate) fn advise(&self, first: PageIndex, count: u64, max: u64) -> u64 {
        let expected = self.next.swap(first + count, Ordering::Relaxed);
        let window = if first == expected || first == 0 {
            (self.window.load(Ordering::Relaxed) * 2).clamp(16, max.max(16))
        } else {
            0
        };
        self.window.store(window, Ordering::Relaxed);
        count.max(window)
    }
}
