//! Block trees: finding, changing and freeing pages of objects, copy-on-write in memory.
//!
//! A tree block that the epoch being built changes is *dirty*: it is found in memory by its identity ([`NodeKey`]) and the
//! pointer to it is [`BlockPointer::PENDING`] until `commit` gives it an address. Its old block is freed when it becomes
//! dirty.
//!
//! Invariants:
//! - the parent of a dirty block is dirty, up to the root pointer in the object's record, which is in `changed` (or
//!   `system`);
//! - a dirty block is named by exactly one pending pointer, and a pending pointer names a dirty block;
//! - recursion goes down one level at a time from at most [`crate::format::LEVELS_MAX`]: its depth does not depend on
//!   what a device says.

use crate::audit::Audit;
use crate::base::Base;
use crate::commit::CommitOrder;
use crate::dirty::Dirty;
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, DeadRun, LEVELS_MAX, POINTERS, Record};
use crate::guarded::Counted;
use crate::meta_block::{Edit, MetaBlock, MetadataProtection, NodeKey, OwnedBlock, Scribble};
use crate::named::{OnDevice, StoredCopies};
use crate::objects::holder;
use crate::sealed_record::SealedRecord;
use crate::slots::Misfit;
use crate::snapshot::Kept;
use holdfast_object::{DomainId, Epoch, ObjectKey, PageIndex, Result, Seek};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// What the epoch being built has made of an object.
#[expect(clippy::large_enum_variant, reason = "nearly all are present")]
pub(crate) enum Change {
    Present(SealedRecord),
    Deleted,
}

/// All trees, as of the last applied operation.
#[derive(Default)]
pub(crate) struct Trees {
    /// The epoch for which something is being changed.
    pub(crate) building: Epoch,
    /// A change that was meant for another block than there was. Nothing of the epoch gets to the device then.
    pub(crate) astray: Option<Astray>,
    /// The first slot that cannot be what it says, of blocks that are to be written, and where. Nothing of the epoch gets to the device then.
    pub(crate) misfit: Option<(NodeKey, u64, Misfit)>,
    pub(crate) dirty: FxHashMap<NodeKey, Dirty>,
    /// Keys put into `dirty` that have no address yet, and some that are gone.
    pub(crate) fresh: Vec<NodeKey>,
    /// Objects of domains changed in the epoch being built.
    pub(crate) changed: FxHashMap<ObjectKey, Change>,
    /// While pages are removed: clean pages of the reference table that have been verified since that began.
    pub(crate) counters_seen: Option<FxHashMap<u64, Option<Arc<MetaBlock>>>>,
    /// All objects of domain 0 by id.
    pub(crate) system: BTreeMap<u64, SealedRecord>,
    /// Objects of the domain `main`.
    pub(crate) objects: Counted,
    /// Generation of the next object.
    pub(crate) next_generation: Counted,
    /// Blocks of metadata, two copies counted as one, in the trees and the object table of `main`.
    pub(crate) metadata: Counted,
    /// Snapshots of the domains, and what has died under them in the epoch being built.
    pub(crate) kept: Kept,
    /// What all of this has changed.
    pub(crate) audit: Audit,
    /// Of the clock, in seconds: when `system` and the tables of snapshots were last verified.
    pub(crate) looked_s: AtomicU32,
}

/// Where a block is.
pub(crate) struct Path {
    pub(crate) node: NodeKey,
    pub(crate) pointer: BlockPointer,
    /// The block above it, if that is not the record.
    above: Option<Arc<MetaBlock>>,
}

/// [`Trees::node`] or [`Trees::node_now`].
pub(crate) type FindNode = fn(&Trees, &Base, ObjectKey, &Record, u8, u64) -> Result<Option<Arc<MetaBlock>>>;

/// A legal change of a wrong block.
pub(crate) struct Astray {
    meant: NodeKey,
    scribble: Scribble,
    /// Where it went instead.
    block: OwnedBlock,
}

/// Pages under a block of `level`.
pub(crate) fn span(level: u8) -> u64 {
    1 << (6 * u32::from(level.min(LEVELS_MAX)))
}

/// Levels that an object needs to have a page `index` (below 2^32).
fn levels_for(index: PageIndex) -> u8 {
    (0..LEVELS_MAX).find(|&level| index < span(level)).unwrap_or(LEVELS_MAX)
}

fn slot_of(index: u64) -> usize {
    (index % POINTERS) as usize
}

/// A copy of a clean block for the epoch being built. One that has gone bad in memory is read again.
fn copy_to_change(trees: &Trees, base: &Base, key: NodeKey, pointer: &BlockPointer) -> Result<OwnedBlock> {
    let cached = base.cache.take(key, pointer.address[0]);
    if let Some(seen) = trees.verified_counters(key) {
        return Ok(OwnedBlock::from(MetaBlock::clone(seen), base.disk.metadata));
    }
    // Verified after it has been copied: what is changed is good.
    let copy = cached.map(|block| MetaBlock::clone(&block));
    let block = match copy.filter(|copy| !base.is_scribbled(copy, key, pointer.address[0], pointer.birth_phys)) {
        Some(copy) => copy,
        None => MetaBlock::load(
            &base.disk,
            key,
            pointer,
            || trees.is_named(base, &OnDevice::new(&base.disk), key, pointer),
            || trees.is_in_doubt(base),
        )?,
    };
    Ok(OwnedBlock::from(block, base.disk.metadata))
}

impl Trees {
    // ---- finding

    /// A block by its pointer, if it is in memory: dirty or cached. Verified if it has not been for a second.
    ///
    /// # Errors
    /// As [`Dirty::look`].
    fn in_memory(&self, base: &Base, key: NodeKey, pointer: &BlockPointer) -> Result<Option<Arc<MetaBlock>>> {
        match self.dirty.get(&key) {
            Some(dirty) => dirty.look(base, key).map(|block| Some(block.share())),
            None => Ok(base.clean(key, pointer)),
        }
    }

    /// Whether there is such a block in memory: dirty or cached.
    pub(crate) fn is_in_memory(&self, base: &Base, key: NodeKey, pointer: &BlockPointer) -> bool {
        self.dirty.contains_key(&key) || base.clean(key, pointer).is_some()
    }

    /// A block by its pointer: dirty, cached, or from the device.
    pub(crate) fn fetch(&self, base: &Base, key: NodeKey, pointer: &BlockPointer) -> Result<Arc<MetaBlock>> {
        if let Some(block) = self.in_memory(base, key, pointer)? {
            return Ok(block);
        }
        let is_named = || self.is_named(base, &OnDevice::new(&base.disk), key, pointer);
        let is_in_doubt = || self.is_in_doubt(base);
        let block = Arc::new(MetaBlock::load(&base.disk, key, pointer, is_named, is_in_doubt)?);
        base.keep(key, pointer.address[0], pointer.birth_phys, block.clone());
        Ok(block)
    }

    /// [`Trees::fetch`], verified just now.
    ///
    /// # Errors
    /// As [`Trees::fetch`] and [`Dirty::look_now`].
    pub(crate) fn fetch_now(&self, base: &Base, key: NodeKey, pointer: &BlockPointer) -> Result<Arc<MetaBlock>> {
        if !base.disk.metadata.rolls() {
            return self.fetch(base, key, pointer);
        }
        if let Some(dirty) = self.dirty.get(&key) {
            return dirty.look_now(base, key).map(|block| block.share());
        }
        match base.clean_now(key, pointer) {
            Some(block) => Ok(block),
            None => self.fetch(base, key, pointer),
        }
    }

    /// [`Trees::node`], verified just now: for decisions by which blocks become free, or of which something is written elsewhere, which no later
    /// look can take back.
    ///
    /// # Errors
    /// As [`Trees::fetch_now`].
    pub(crate) fn node_now(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        level: u8,
        index: u64,
    ) -> Result<Option<Arc<MetaBlock>>> {
        match self.path_to(base, key, record, level, index)? {
            Some(Path { node, pointer, .. }) => self.fetch_now(base, node, &pointer).map(Some),
            None => Ok(None),
        }
    }

    /// For which epoch a page of one of the store's own objects was last changed, if that is known: for reports.
    pub(crate) fn changed_for(&self, base: &Base, key: ObjectKey, record: &Record, page: u64) -> Option<Epoch> {
        match self.dirty.get(&NodeKey::new(key, 0, page)) {
            Some(dirty) => Some(dirty.changed),
            None => Some(self.path_to(base, key, record, 0, page).ok()??.pointer.birth_phys),
        }
    }

    /// The block of `level` with number `index` in that level; `None` if there is none.
    pub(crate) fn node(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        level: u8,
        index: u64,
    ) -> Result<Option<Arc<MetaBlock>>> {
        let Some(Path { node, pointer, above }) = self.path_to(base, key, record, level, index)? else {
            return Ok(None);
        };
        if let Some(block) = self.in_memory(base, node, &pointer)? {
            return Ok(Some(block));
        }
        match above {
            Some(above) => self.fetch_ahead(base, node, &above).map(Some),
            None => self.fetch(base, node, &pointer).map(Some),
        }
    }

    /// The way to a block; `None` if there is no such block. Another pointer that has gone bad in memory leads to a block that does
    /// not match; a hole leads nowhere, so it is believed only of a block that has been verified just now.
    pub(crate) fn path_to(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        level: u8,
        index: u64,
    ) -> Result<Option<Path>> {
        if record.levels < level || index >= span(record.levels - level) {
            return Ok(None);
        }
        let mut node = NodeKey::new(key, record.levels, index / span(record.levels - level));
        let mut pointer = record.root;
        let mut above = None;
        while !pointer.is_hole() && node.level > level {
            let mut block = self.fetch(base, node, &pointer)?;
            let below = NodeKey { level: node.level - 1, index: index / span(node.level - 1 - level), ..node };
            let (_, slot) = below.parent();
            if block.pointer_kind_is_hole(slot) {
                block = self.fetch_now(base, node, &pointer)?;
            }
            (node, pointer) = (below, block.pointer(slot));
            above = Some(block);
        }
        Ok((!pointer.is_hole()).then_some(Path { node, pointer, above }))
    }

    /// Pointers of `count` pages from `first` on. What is no pointer to data is of a block that has been verified just now.
    pub(crate) fn pages(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        first: PageIndex,
        count: usize,
    ) -> Result<Vec<BlockPointer>> {
        self.pages_by(base, key, record, (first, count), Trees::node)
    }

    /// The same, all of them of blocks that have been verified just now: for what becomes the pointers of others.
    pub(crate) fn pages_now(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        first: PageIndex,
        count: usize,
    ) -> Result<Vec<BlockPointer>> {
        self.pages_by(base, key, record, (first, count), Trees::node_now)
    }

    /// The pointers of pages that are to become others, of which `is_kept` says that some are what they are to be already: then all of them are of
    /// blocks that have been verified just now, as these are not changed, and nobody else looks at them.
    pub(crate) fn pages_before(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (first, count): (PageIndex, usize),
        is_kept: impl FnOnce(&[BlockPointer]) -> bool,
    ) -> Result<Vec<BlockPointer>> {
        let olds = self.pages(base, key, record, first, count)?;
        if is_kept(&olds) { self.pages_now(base, key, record, first, count) } else { Ok(olds) }
    }

    fn pages_by(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (first, count): (PageIndex, usize),
        node: FindNode,
    ) -> Result<Vec<BlockPointer>> {
        let mut pointers = Vec::with_capacity(count);
        let end = first.saturating_add(count as u64);
        let mut page = first;
        while page < end {
            let leaf_end = (page / POINTERS + 1).saturating_mul(POINTERS).min(end);
            if record.levels == 0 {
                pointers.extend((page..leaf_end).map(|page| if page == 0 { record.root } else { BlockPointer::HOLE }));
            } else {
                let pointers_of = |leaf: Option<Arc<MetaBlock>>| {
                    let of_leaf =
                        move |page| leaf.as_ref().map_or(BlockPointer::HOLE, |leaf| leaf.pointer(slot_of(page)));
                    (page..leaf_end).map(of_leaf)
                };
                let before = pointers.len();
                let leaf = node(self, base, key, record, 1, page / POINTERS)?;
                let is_there = leaf.is_some();
                pointers.extend(pointers_of(leaf));
                // Data that is not what it should be is found out where it is read.
                if is_there && pointers[before..].iter().any(|pointer| pointer.kind != PointerKind::Data) {
                    pointers.truncate(before);
                    pointers.extend(pointers_of(self.node_now(base, key, record, 1, page / POINTERS)?));
                }
            }
            page = leaf_end;
        }
        Ok(pointers)
    }

    /// First page at or behind `from` that is stored (or is not), within the tree.
    pub(crate) fn seek(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        from: PageIndex,
        what: Seek,
    ) -> Result<Option<PageIndex>> {
        let mut page = from;
        while page < span(record.levels) {
            let mut pointer = record.root;
            let mut level = record.levels;
            loop {
                if pointer.is_hole() {
                    if what == Seek::Hole {
                        return Ok(Some(page));
                    }
                    page = (page / span(level) + 1) * span(level);
                    break;
                }
                if level == 0 {
                    if what == Seek::Data {
                        return Ok(Some(page));
                    }
                    page += 1;
                    break;
                }
                // What is skipped is not looked at.
                let block = self.fetch_now(base, NodeKey::new(key, level, page / span(level)), &pointer)?;
                level -= 1;
                let mut slot = slot_of(page / span(level));
                if level == 0 {
                    // Along the leaf, without going down again for each page.
                    let wanted = what == Seek::Hole;
                    while slot + 1 < POINTERS as usize && block.pointer_kind_is_hole(slot) != wanted {
                        slot += 1;
                        page += 1;
                    }
                }
                pointer = block.pointer(slot);
            }
        }
        Ok(None)
    }

    // ---- changing

    /// Makes the block of `level` with number `index` dirty, and its ancestors; new blocks are empty. Grows the tree. Who calls it has found his way there
    /// just before, or verifies all of it before the recovery point: what is dirty is not looked at again.
    pub(crate) fn make_dirty(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        level: u8,
        index: u64,
    ) -> Result<()> {
        self.grow(base, key, record, level + levels_for(index));
        if self.dirty.contains_key(&NodeKey::new(key, level, index)) {
            return Ok(());
        }
        let mut at = record.levels;
        loop {
            let node = NodeKey::new(key, at, index / span(at - level));
            if !self.dirty.contains_key(&node) {
                let pointer = if at == record.levels {
                    record.root
                } else {
                    let (parent, slot) = node.parent();
                    self.dirty[&parent].block.pointer(slot)
                };
                let block =
                    if pointer.is_hole() { base.new_block(node) } else { copy_to_change(self, base, node, &pointer)? };
                self.put_dirty(base, record, node, block, &pointer);
            }
            if at == level {
                return Ok(());
            }
            at -= 1;
        }
    }

    /// Puts a dirty block into the place of the one that `pointer` names, below a dirty one or the record.
    pub(crate) fn put_dirty(
        &mut self,
        base: &Base,
        record: &mut Record,
        node: NodeKey,
        block: OwnedBlock,
        pointer: &BlockPointer,
    ) {
        self.give_up(base, node.object_key(), pointer, false);
        self.insert_dirty(base, node, block, *pointer);
        if node.level == record.levels {
            record.root = BlockPointer::PENDING;
        } else {
            let (parent, slot) = node.parent();
            self.dirty_mut(parent).put_pointer(slot, &BlockPointer::PENDING);
        }
    }

    /// One that is new, or has been verified: just now, but for counters that a removal has verified since it began.
    fn insert_dirty(&mut self, base: &Base, key: NodeKey, block: OwnedBlock, stored: BlockPointer) {
        let dirty = Dirty::new(block, self.building, StoredCopies::of(&stored), base.now_ms());
        let before = self.dirty.insert(key, dirty);
        debug_assert!(before.is_none(), "{key:?} is dirty already");
        self.fresh.push(key);
    }

    /// A block that is dirty, to change it: [`Trees::make_dirty`] comes first.
    pub(crate) fn dirty_mut(&mut self, key: NodeKey) -> Edit<'_> {
        // The change goes where nothing comes of it, and so does the epoch: see [`Trees::check_identities`].
        let astray =
            |scribble| Astray { meant: key, scribble, block: OwnedBlock::new(key, MetadataProtection::Rolling) };
        let Some(Dirty { block, changed, .. }) = self.dirty.get_mut(&key) else {
            // What led here has gone bad in memory: the levels of a tree, say.
            return self.astray.insert(astray(Scribble::that_misses_a_block())).block.edit(key);
        };
        *changed = self.building;
        match block.edit_if(key, &mut self.audit) {
            Ok(edit) => edit,
            Err(scribble) => self.astray.insert(astray(scribble)).block.edit(key),
        }
    }

    /// Whether every change of the epoch being built has met the block that it was meant for.
    ///
    /// # Errors
    /// [`holdfast_object::Error::GivenUp`]: one has met another.
    pub(crate) fn check_identities(&self, base: &Base) -> Result<()> {
        self.astray.as_ref().map_or(Ok(()), |astray| Err(base.give_up_epoch(astray.scribble, astray.meant)))
    }

    /// Adds levels above the root until there are at least `levels`.
    fn grow(&mut self, base: &Base, key: ObjectKey, record: &mut Record, levels: u8) {
        debug_assert!(levels <= LEVELS_MAX);
        while record.levels < levels {
            if record.root.is_hole() {
                record.levels = levels;
                return;
            }
            record.levels += 1;
            let node = NodeKey::new(key, record.levels, 0);
            self.insert_dirty(base, node, base.new_block(node), BlockPointer::HOLE);
            self.dirty_mut(node).put_pointer(0, &record.root);
            record.root = BlockPointer::PENDING;
        }
    }

    /// Puts pointers of pages, in ascending order of index, in the place of what is there; that is released. All of them
    /// or, with an error, none.
    pub(crate) fn put_pages(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        pages: &[(PageIndex, BlockPointer)],
    ) -> Result<()> {
        let Some(&(last, _)) = pages.last() else { return Ok(()) };
        if last > 0 {
            self.grow(base, key, record, levels_for(last));
        }
        if record.levels == 0 {
            for (_, pointer) in pages {
                let old = record.root;
                record.root = *pointer;
                self.replaced(base, key, record, &old, pointer);
            }
        } else {
            for leaf in pages.chunk_by(|a, b| a.0 / POINTERS == b.0 / POINTERS) {
                self.make_dirty(base, key, record, 1, leaf[0].0 / POINTERS)?;
            }
            let mut olds = Vec::with_capacity(POINTERS as usize);
            for leaf in pages.chunk_by(|a, b| a.0 / POINTERS == b.0 / POINTERS) {
                let mut block = self.dirty_mut(NodeKey::new(key, 1, leaf[0].0 / POINTERS));
                olds.clear();
                for (page, pointer) in leaf {
                    olds.push(block.pointer(slot_of(*page)));
                    block.put_pointer(slot_of(*page), pointer);
                }
                for (old, (_, new)) in olds.iter().zip(leaf) {
                    self.replaced(base, key, record, old, new);
                }
            }
        }
        record.page_bound = record.page_bound.max(last + 1);
        Ok(())
    }

    /// Counts a page whose pointer has changed, and releases what the old one named.
    fn replaced(&mut self, base: &Base, key: ObjectKey, record: &mut Record, old: &BlockPointer, new: &BlockPointer) {
        let blocks = &mut record.attributes.blocks;
        if new.kind == PointerKind::Data {
            *blocks += 1;
            if new.address != old.address && new.address[1] != 0 {
                self.metadata_made(key);
            }
        }
        let blocks = &mut record.attributes.blocks;
        if old.kind == PointerKind::Data {
            self.audit.page_gone(key, *blocks);
            *blocks = blocks.saturating_sub(1);
            if old.address != new.address {
                self.release_page(base, key, old);
            }
        }
    }

    /// A pointer to a page has gone away: a shared block loses one reference, another one is free.
    pub(crate) fn release_page(&mut self, base: &Base, key: ObjectKey, pointer: &BlockPointer) {
        if pointer.kind != PointerKind::Data {
            return;
        }
        self.give_up(base, key, pointer, key.domain != DomainId::SYSTEM);
    }

    /// A pointer in an object's tree has gone away. If a snapshot has it, its blocks are dead from now on, and the snapshot's
    /// last; else they are let go.
    fn give_up(&mut self, base: &Base, key: ObjectKey, pointer: &BlockPointer, is_page: bool) {
        if !pointer.is_stored() {
            return;
        }
        if pointer.address[1] != 0 {
            self.metadata_gone(key, Some(pointer.birth_log));
        }
        let run = DeadRun { address: pointer.address, birth_log: pointer.birth_log, count: 1, is_page };
        let buries = base.commit_order != CommitOrder::BuryNothing;
        if holder(key).is_some_and(|domain| buries && self.kept.died(domain, run)) {
            self.audit.buried(&run);
        } else {
            self.let_go(base, &run);
        }
    }

    /// A block of metadata of an object has got an address.
    pub(crate) fn metadata_made(&mut self, key: ObjectKey) {
        if holder(key) == Some(DomainId::MAIN) {
            self.metadata += 1;
        }
    }

    /// A block of metadata that had an address is none of its object any more; one of the epoch being built has no birth yet.
    fn metadata_gone(&mut self, key: ObjectKey, birth_log: Option<Epoch>) {
        if holder(key) == Some(DomainId::MAIN) {
            // A damaged tree may name a block twice.
            let metadata = self.metadata.get();
            self.audit.metadata_gone(metadata);
            self.metadata -= metadata.min(1);
            if let Some(birth_log) = birth_log {
                self.kept.metadata_gone(DomainId::MAIN, birth_log);
            }
        }
    }

    /// Neither the domain nor a snapshot has the blocks any more: a shared one loses one reference, another one is free.
    pub(crate) fn let_go(&mut self, base: &Base, run: &DeadRun) {
        for block in run.blocks() {
            if run.is_page {
                match self.drop_reference(base, block[0]) {
                    Ok(true) => {
                        self.audit.unshared(block);
                        continue;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::error!(%error, "reference table: a block that may be shared stays in use");
                        self.audit.not_freed(block);
                        continue;
                    }
                }
            }
            for address in block.into_iter().filter(|&address| address != 0) {
                if !base.free(address) {
                    self.audit.not_freed([address, 0]);
                }
            }
        }
    }

    // ---- removing

    /// Pages from `first` up to `end` are holes afterwards. Empty tree blocks go with them.
    pub(crate) fn remove_pages(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        first: PageIndex,
        end: PageIndex,
    ) -> Result<()> {
        // A page of the reference table may be removed on the way.
        let is_outermost = self.counters_seen.is_none();
        self.counters_seen.get_or_insert_default();
        let outcome = self.remove_range(base, key, record, first, end);
        if is_outermost {
            self.counters_seen = None;
        }
        outcome
    }

    fn remove_range(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        first: PageIndex,
        end: PageIndex,
    ) -> Result<()> {
        let capacity = span(record.levels);
        if first >= end.min(capacity) || record.root.is_hole() {
            return Ok(());
        }
        if first == 0 && end >= capacity {
            let root = record.root;
            self.free_subtree(base, key, record, &root, record.levels, 0, None);
            record.root = BlockPointer::HOLE;
        } else if self.remove_below(base, key, record, record.levels, 0, first, end.min(capacity))? {
            self.drop_dirty(base, NodeKey::new(key, record.levels, 0));
            record.root = BlockPointer::HOLE;
        }
        if record.root.is_hole() {
            record.levels = 0;
            self.audit.pages_left(key, record.attributes.blocks);
            record.attributes.blocks = 0;
        }
        if end >= record.page_bound {
            record.page_bound = record.page_bound.min(first);
        }
        Ok(())
    }

    /// Removes pages under the block (`level`, `index`), which exists and is not covered as a whole. Whether it is empty
    /// (and dirty) afterwards.
    #[allow(clippy::too_many_arguments)]
    fn remove_below(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        level: u8,
        index: u64,
        first: PageIndex,
        end: PageIndex,
    ) -> Result<bool> {
        let node = NodeKey::new(key, level, index);
        let Some(block) = self.node_now(base, key, record, level, index)? else { return Ok(false) };
        let start = index * span(level);
        let width = span(level - 1);
        let slots = (first.max(start) - start) / width..(end.min(start + span(level)) - start).div_ceil(width);
        for slot in slots {
            let pointer = block.pointer(slot as usize);
            if pointer.is_hole() {
                continue;
            }
            let (child, child_start) = (index * POINTERS + slot, start + slot * width);
            let empty = if first <= child_start && child_start + width <= end {
                self.make_dirty(base, key, record, level, index)?;
                self.free_subtree(base, key, record, &pointer, level - 1, child, None);
                true
            } else if self.remove_below(base, key, record, level - 1, child, first, end)? {
                self.drop_dirty(base, NodeKey::new(key, level - 1, child));
                true
            } else {
                false
            };
            if empty {
                self.dirty_mut(node).put_pointer(slot as usize, &BlockPointer::HOLE);
            }
        }
        Ok(self.dirty.get(&node).is_some_and(|dirty| dirty.block.is_zero()))
    }

    /// Forgets a dirty block that nothing will point to.
    fn drop_dirty(&mut self, base: &Base, key: NodeKey) -> Option<Arc<MetaBlock>> {
        let mut dirty = self.dirty.remove(&key)?;
        let watched = dirty.block.release();
        self.audit.complete(key, &dirty.block, watched);
        match dirty.address.get() {
            Ok(addresses) => {
                if addresses[0] != 0 {
                    self.metadata_gone(key.object_key(), None);
                }
                for address in addresses.into_iter().filter(|&address| address != 0) {
                    base.free(address);
                }
            }
            // It could be anybody's.
            Err(scribble) => {
                base.give_up_epoch(scribble, key);
            }
        }
        Some(dirty.block.into_shared())
    }

    /// Frees everything under `pointer`, which is of `level` and number `index` in it. A tree block that cannot be read
    /// leaves what is under it in use, for `check` to find: an object that is damaged can be deleted. Meanwhile the processor gets the bytes of
    /// the block that is freed next.
    #[allow(clippy::too_many_arguments)]
    fn free_subtree(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        pointer: &BlockPointer,
        level: u8,
        index: u64,
        next: Option<&MetaBlock>,
    ) {
        let node = NodeKey::new(key, level, index);
        if level == 0 {
            if pointer.kind == PointerKind::Data {
                self.audit.page_gone(key, record.attributes.blocks);
                record.attributes.blocks = record.attributes.blocks.saturating_sub(1);
            }
            if key.domain == DomainId::SYSTEM {
                self.drop_dirty(base, node);
                base.cache.take(node, pointer.address[0]);
            }
            self.release_page(base, key, pointer);
            return;
        }
        let cached = base.take_clean(node, pointer);
        let dirty = self.drop_dirty(base, node);
        if let Some(scribble) = dirty.as_ref().and_then(|block| block.verify(node).err()) {
            // What it names could be anybody's.
            base.give_up_epoch(scribble, node);
            return;
        }
        let block = match dirty.or(cached) {
            Some(block) => Some(block),
            None if pointer.kind != PointerKind::Tree => return,
            // What goes away is not repaired. Through a pointer that has gone bad in memory nothing goes away, as the epoch is given up.
            None => {
                let is_named = || self.is_named(base, &OnDevice::new(&base.disk), node, pointer).map(|_| false);
                match MetaBlock::load(&base.disk, node, pointer, is_named, || self.is_in_doubt(base)) {
                    Ok(block) => Some(Arc::new(block)),
                    Err(error) => {
                        tracing::error!(%error, "blocks under a tree block that cannot be read stay in use");
                        None
                    }
                }
            }
        };
        if let Some(block) = block {
            self.audit.dropped(key, &block, base.disk.metadata);
            let mut slots = (0..POINTERS).filter(|slot| !block.pointer_kind_is_hole(*slot as usize)).peekable();
            while let Some(slot) = slots.next() {
                if let Some(next) = next {
                    next.prefetch_pointer(slot as usize);
                }
                let child = block.pointer(slot as usize);
                let behind = slots.peek().filter(|_| level > 1).and_then(|next| {
                    let node = NodeKey::new(key, level - 1, index * POINTERS + next);
                    base.cache.get(node, block.pointer(*next as usize).address[0])
                });
                let behind = behind.as_ref().map(|(block, _)| &**block);
                self.free_subtree(base, key, record, &child, level - 1, index * POINTERS + slot, behind);
            }
        }
        self.give_up(base, key, pointer, false);
    }
}
