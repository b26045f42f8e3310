//! Applying batches of operations to the epoch being built.
//!
//! A batch goes through three phases, so that what can fail fails before anything has changed:
//! 1. *plan*: every operation is checked against the objects as the operations before it leave them;
//! 2. *write*: the pages of all `Write` operations are verified and written to new blocks, in long runs;
//! 3. *change*: operation by operation, the trees are changed in memory. Readers get in between.
//!
//! What a damaged tree block stands in the way of is left out, and the rest of the batch goes on: see `damage`.
//!
//! Applying a batch again in the same epoch gives the same state: an operation on an object that this epoch has deleted
//! is passed over, `Create` of an object that this epoch has created makes it new, `Adopt` of blocks that were adopted
//! already changes nothing. (A batch that copies from an object which it changes further on is the exception.)

use crate::damage::{is_damage, unreadable_pages};
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, PAGES_MAX, POINTERS, Record, split_address};
use crate::module::Module;
use crate::objects::{map_of, orphans_of};
use crate::op_limits::{check_id, check_limits};
use crate::tree::{Change, Trees};
use crate::write::{Landed, Outgoing, Stored};
use holdfast_guard as guard;
use holdfast_object::{
    Applied, Attributes, Batch, DomainId, Epoch, Error, Fragment, Kind, ObjectId, ObjectKey, Op, PAGE_SIZE, PageIndex,
    PageRef, Placement, Result, Side,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Pages removed under one lock: 256 MiB of an object.
const PIECE: u64 = 1 << 16;

/// Pages that a truncation or hole cuts, by object, with their bytes in memory if an operation just wrote them.
type CutPages = FxHashMap<ObjectId, BTreeMap<PageIndex, Option<PageRef>>>;

struct Plan {
    /// For each operation, whether its object is there.
    runs: Vec<bool>,
    outgoing: Vec<Outgoing>,
    cut: CutPages,
}

/// Objects as the operations planned so far leave them.
struct Objects<'a> {
    module: &'a Module,
    trees: &'a Trees,
    domain: DomainId,
    /// Kind, creation epoch and generation, or that there is none.
    known: FxHashMap<ObjectId, Option<(Kind, Epoch, u64)>>,
}

impl Objects<'_> {
    fn key(&self, object: ObjectId) -> ObjectKey {
        ObjectKey { domain: self.domain, object }
    }

    fn look(&mut self, id: ObjectId) -> Result<Option<(Kind, Epoch, u64)>> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let record = self.trees.find(&self.module.base, self.key(id))?;
        let known = record.map(|record| (record.attributes.kind, record.created, record.attributes.generation));
        self.known.insert(id, known);
        Ok(known)
    }

    /// Whether an earlier batch of this epoch deleted it.
    fn deleted_before(&self, id: ObjectId) -> bool {
        matches!(self.trees.changed.get(&self.key(id)), Some(Change::Deleted))
    }
}

impl Module {
    /// See [`holdfast_object::ObjectStore::apply`].
    pub(crate) fn apply_batch(&self, batch: &Batch) -> Result<Applied> {
        self.or_given_up(|| self.apply_once(batch))
    }

    fn apply_once(&self, batch: &Batch) -> Result<Applied> {
        self.disk().check_sound()?;
        self.claim_first()?;
        let mut committing = self.committing.lock();
        // Who takes an epoch back has the lock.
        self.disk().check_sound()?;
        committing.heal(self.disk());
        committing.check_open()?;
        let last = self.superblock()?.epoch;
        if batch.epoch <= last || batch.epoch < committing.applied.get() {
            let applied = committing.applied.get();
            let message =
                format!("batch of epoch {} after {last}, with batches of epoch {applied} applied", batch.epoch);
            return Err(Error::Protocol(message));
        }
        self.disk().raise_newest(batch.epoch);
        self.trees_now().verify_records(&self.base, batch.ops.iter().flat_map(|op| records_of(batch.domain, op)))?;
        self.disk().check_sound()?;
        let mut plan = self.plan(batch)?;
        let landed = self.write_pages(batch.epoch, &plan.outgoing, false)?;
        committing.applied.set(batch.epoch);
        committing.pages.note(batch, &plan.runs, &plan.outgoing, &landed);
        self.trees.write().building = batch.epoch;
        let mut applied = guard::open(|| self.change_all(batch, &mut plan, &landed))?;
        if replaces(&batch.ops) {
            self.keep_current(batch.domain, &mut applied)?;
        }
        // Trees that go away are given up without a word to the operation.
        self.disk().check_sound()?;
        Ok(applied)
    }

    /// Leaves out pages that a later operation of the batch has replaced or removed.
    fn keep_current(&self, domain: DomainId, applied: &mut Applied) -> Result<()> {
        let trees = self.trees.read();
        let mut current = Vec::with_capacity(applied.written.len());
        for group in applied.written.chunk_by(|a, b| a.0 == b.0) {
            let key = ObjectKey { domain, object: group[0].0 };
            let Some(record) = trees.find(&self.base, key)? else { continue };
            for (id, page, identity) in group {
                match trees.pages(&self.base, key, &record, *page, 1) {
                    Ok(pointers) if pointers[0].identity() == *identity => current.push((*id, *page, *identity)),
                    Ok(_) => {}
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        applied.written = current;
        Ok(())
    }

    /// Operation by operation, in a window: blocks of metadata change in memory.
    fn change_all(&self, batch: &Batch, plan: &mut Plan, landed: &[Landed]) -> Result<Applied> {
        let mut applied = Applied::default();
        let mut rest = landed;
        for (op, runs) in batch.ops.iter().zip(std::mem::take(&mut plan.runs)) {
            let mut mine: &[Landed] = &[];
            if let (Op::Write { fragments, .. }, true) = (op, runs) {
                (mine, rest) = rest.split_at(fragments.len());
            }
            if !runs {
                continue;
            }
            let key = ObjectKey { domain: batch.domain, object: op.target() };
            match self.clear_way(batch.domain, batch.epoch, op) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    tracing::error!(%key, %error, op = op_name(op), "passed over: a tree block cannot be read");
                    applied.passed_over.extend(page_left(&error, key, op));
                    continue;
                }
                Err(error) => {
                    self.cancel(mine);
                    self.cancel(rest);
                    return Err(error);
                }
            }
            match self.run(batch, op, mine, &mut plan.cut, &mut applied) {
                Ok(()) => {}
                // It could be read just before.
                Err(error) if is_damage(&error) => {
                    tracing::error!(%key, %error, op = op_name(op), "done in part: a tree block cannot be read any more");
                    applied.passed_over.extend(page_left(&error, key, op));
                }
                Err(error) => {
                    self.cancel(mine);
                    self.cancel(rest);
                    return Err(error);
                }
            }
        }
        Ok(applied)
    }

    // ---- plan

    fn plan(&self, batch: &Batch) -> Result<Plan> {
        let trees = self.trees.read();
        if !trees.has_domain(batch.domain) {
            return Err(Error::Protocol(format!("domain {} does not exist", batch.domain.0)));
        }
        let mut plan = Plan { runs: Vec::new(), outgoing: Vec::new(), cut: CutPages::default() };
        let mut objects = Objects { module: self, trees: &trees, domain: batch.domain, known: FxHashMap::default() };
        for op in &batch.ops {
            let id = op.target();
            let known = objects.look(id)?;
            let runs = match (op, known) {
                // A log batch replayed on the epoch that has the object already.
                (Op::Create { attributes, .. }, Some((.., generation))) if generation == attributes.generation => false,
                (Op::Create { .. }, Some((_, created, _))) if created < batch.epoch => {
                    return Err(Error::ObjectExists(objects.key(id)));
                }
                (Op::Create { attributes, .. }, _) => {
                    check_id(id)?;
                    objects.known.insert(id, Some((attributes.kind, batch.epoch, attributes.generation)));
                    true
                }
                (Op::Delete { .. }, known) => {
                    objects.known.insert(id, None);
                    known.is_some()
                }
                (_, None) if objects.deleted_before(id) => false,
                (_, None) => return Err(Error::NoObject(objects.key(id))),
                (Op::Copy { source, .. }, Some(_)) => match objects.look(*source)? {
                    Some(_) => true,
                    None if objects.deleted_before(*source) => false,
                    None => return Err(Error::NoObject(objects.key(*source))),
                },
                (_, Some(_)) => true,
            };
            check_limits(op)?;
            plan.runs.push(runs);
            if !runs {
                continue;
            }
            if let (Op::Write { fragments, .. }, Some((kind, ..))) = (op, known) {
                let twice = kind.is_metadata();
                let mut before = None;
                plan.outgoing.extend(fragments.iter().map(|fragment| {
                    let follows =
                        before.replace(fragment.index).is_some_and(|at: u64| at.checked_add(1) == Some(fragment.index));
                    Outgoing { page: fragment.page, twice, follows }
                }));
            }
            for page in cut_pages(op).into_iter().flatten() {
                plan.cut.entry(id).or_default().insert(page.0, None);
            }
            self.preload(&trees, batch.domain, op)?;
        }
        Ok(plan)
    }

    /// Reads the tree blocks that the operation changes, so that later they are in memory, and damage of the store's own
    /// is found before anything has changed. Damage of an object shows when the operation's turn comes: until then it
    /// may have been removed.
    fn preload(&self, trees: &Trees, domain: DomainId, op: &Op) -> Result<()> {
        let id = op.target();
        let touch = |id: ObjectId, pages: &mut dyn Iterator<Item = PageIndex>| -> Result<()> {
            let key = ObjectKey { domain, object: id };
            let Some(record) = trees.find(&self.base, key)? else { return Ok(()) };
            let mut last = None;
            for leaf in pages.map(|page| page / POINTERS) {
                if record.levels == 0 || last.replace(leaf) == Some(leaf) {
                    continue;
                }
                match trees.node(&self.base, key, &record, 1, leaf) {
                    Err(error) if !is_damage(&error) => return Err(error),
                    // The blocks beside it most likely have the same one above them.
                    Err(_) => return Ok(()),
                    Ok(_) => {}
                }
            }
            Ok(())
        };
        match op {
            Op::Create { .. } | Op::Delete { .. } | Op::SetAttributes { .. } => Ok(()),
            Op::Write { fragments, .. } => touch(id, &mut fragments.iter().map(|fragment| fragment.index)),
            Op::Adopt { pages, .. } => touch(id, &mut pages.iter().map(|(index, _)| *index)),
            Op::Lose { pages, .. } => touch(id, &mut pages.iter().copied()),
            Op::Truncate { size, .. } => touch(id, &mut std::iter::once(size / PAGE_SIZE as u64)),
            Op::Zero { offset, length, .. } => {
                let pages = [offset / PAGE_SIZE as u64, (offset + length) / PAGE_SIZE as u64];
                touch(id, &mut pages.into_iter())
            }
            Op::Copy { .. } => Ok(()),
        }
    }

    // ---- change

    fn run(&self, batch: &Batch, op: &Op, landed: &[Landed], cut: &mut CutPages, applied: &mut Applied) -> Result<()> {
        let id = op.target();
        let key = ObjectKey { domain: batch.domain, object: id };
        let epoch = batch.epoch;
        let outcome = match op {
            Op::Create { attributes, .. } => self.create_object(key, epoch, attributes),
            Op::Delete { .. } => self.delete_object(key, epoch),
            Op::Write { fragments, size_min, .. } => {
                if let Some(cut) = cut.get_mut(&id) {
                    for (fragment, landed) in fragments.iter().zip(landed) {
                        cut.entry(fragment.index).and_modify(|newest| *newest = landed.map(|_| fragment.page));
                    }
                }
                self.write_fragments(key, epoch, fragments, landed, *size_min, applied)
            }
            Op::Adopt { pages, size_min, .. } => self.adopt(key, epoch, pages, *size_min, applied),
            Op::Lose { pages, side, .. } => self.change(key, epoch, |trees, record| {
                // Those under a block that cannot be read are as good as lost.
                let unreadable = trees.unreadable_leaves(&self.base, key, record, pages.iter().copied())?;
                let unreadable: Vec<_> = unreadable.into_iter().map(|(leaf, _)| leaf).collect();
                let pages = pages.iter().filter(|page| !is_under(&unreadable, **page));
                let lost: Vec<_> = pages.map(|&page| (page, BlockPointer::lost(epoch, *side))).collect();
                trees.put_pages(&self.base, key, record, &lost)
            }),
            Op::Truncate { size, .. } => self.truncate(key, epoch, *size, cut),
            Op::Zero { offset, length, .. } => {
                self.cut(key, epoch, op, cut)?;
                let first = offset.div_ceil(PAGE_SIZE as u64);
                let end = (offset + length) / PAGE_SIZE as u64;
                self.remove(key, epoch, first, end)
            }
            Op::SetAttributes { set, .. } => self.change(key, epoch, |trees, record| {
                let orphan_before = record.attributes.nlink == 0;
                set.apply(&mut record.attributes);
                let orphan = record.attributes.nlink == 0;
                if orphan != orphan_before {
                    trees.set_map_bit(&self.base, orphans_of(key.domain), id, orphan_before, orphan)?;
                }
                Ok(())
            }),
            Op::Copy { source, source_first, target_first, pages, size_min, .. } => {
                let source = ObjectKey { domain: batch.domain, object: *source };
                let mut lost = Vec::new();
                let outcome = self.copy((source, *source_first), (key, *target_first), *pages, epoch, &mut lost);
                applied.lost.extend(lost.into_iter().map(|pages| (id, pages)));
                outcome?;
                self.change(key, epoch, |_, record| {
                    record.attributes.size = record.attributes.size.max(*size_min);
                    Ok(())
                })
            }
        };
        if !matches!(op, Op::Write { .. })
            && let Some(cut) = cut.get_mut(&id)
        {
            cut.values_mut().for_each(|newest| *newest = None);
        }
        outcome
    }

    /// Changes an object under the lock; its record is written back also when something failed, since its tree may have
    /// grown.
    pub(crate) fn change<R>(
        &self,
        key: ObjectKey,
        epoch: Epoch,
        action: impl FnOnce(&mut Trees, &mut Record) -> Result<R>,
    ) -> Result<R> {
        let mut trees = self.trees.write();
        if !trees.changed.contains_key(&key) {
            // It was verified when the batch began, and its pages have been written since.
            trees.verify_records(&self.base, std::iter::once(key))?;
        }
        let mut record = trees.get(&self.base, key)?;
        let outcome = action(&mut trees, &mut record);
        record.changed = epoch;
        trees.put(&self.base, key, record)?;
        outcome
    }

    fn create_object(&self, key: ObjectKey, epoch: Epoch, attributes: &Attributes) -> Result<()> {
        let before = self.trees.read().find(&self.base, key)?;
        if before.is_some() {
            self.remove(key, epoch, 0, PAGES_MAX)?;
        }
        let mut trees = self.trees.write();
        let mut record = Record::object(attributes.clone(), epoch);
        if record.attributes.generation == 0 {
            record.attributes.generation = match &before {
                Some(before) => before.attributes.generation,
                None => trees.next_generation.get(),
            };
        }
        let next = trees.next_generation.get();
        let given = next.max(record.attributes.generation.saturating_add(1)) - next;
        trees.audit.generations_given(given);
        trees.next_generation += given;
        let was_orphan = before.as_ref().is_some_and(|before| before.attributes.nlink == 0);
        trees.set_map_bit(&self.base, map_of(key.domain), key.object, before.is_some(), true)?;
        trees.set_map_bit(&self.base, orphans_of(key.domain), key.object, was_orphan, attributes.nlink == 0)?;
        if before.is_none() && key.domain == DomainId::MAIN {
            trees.objects += 1;
        }
        trees.put(&self.base, key, record)
    }

    fn delete_object(&self, key: ObjectKey, epoch: Epoch) -> Result<()> {
        self.remove(key, epoch, 0, PAGES_MAX)?;
        // The rest, also if the record's page bound is wrong.
        self.change(key, epoch, |trees, record| trees.remove_pages(&self.base, key, record, 0, PAGES_MAX))?;
        let mut trees = self.trees.write();
        let was_orphan = trees.get(&self.base, key)?.attributes.nlink == 0;
        trees.set_map_bit(&self.base, map_of(key.domain), key.object, true, false)?;
        trees.set_map_bit(&self.base, orphans_of(key.domain), key.object, was_orphan, false)?;
        if key.domain == DomainId::MAIN {
            let objects = trees.objects.get();
            trees.audit.object_gone(objects);
            trees.objects -= objects.min(1);
        }
        trees.changed.insert(key, Change::Deleted);
        Ok(())
    }

    fn write_fragments(
        &self,
        key: ObjectKey,
        epoch: Epoch,
        fragments: &[Fragment],
        landed: &[Landed],
        size_min: u64,
        applied: &mut Applied,
    ) -> Result<()> {
        let mut pages = Vec::with_capacity(fragments.len());
        for (fragment, landed) in fragments.iter().zip(landed) {
            let Some(stored) = *landed else { continue };
            pages.push((fragment.index, data_pointer(stored, epoch, epoch)));
        }
        self.change(key, epoch, |trees, record| {
            // Not for a page that went bad in memory.
            let unreadable = trees.renew_leaves(&self.base, key, record, pages.iter().map(|(page, _)| *page))?;
            pages.retain(|(page, _)| !is_under(&unreadable, *page));
            self.put_or_reject(trees, key, record, &mut pages)?;
            record.attributes.size = record.attributes.size.max(size_min);
            Ok(())
        })?;
        let mut put = pages.iter().map(|(page, _)| *page).peekable();
        let mut unused = Vec::new();
        for (fragment, landed) in fragments.iter().zip(landed) {
            if put.next_if_eq(&fragment.index).is_none() {
                applied.rejected.push((key.object, fragment.index));
                unused.push(*landed);
            }
        }
        self.cancel(&unused);
        applied.written.extend(pages.iter().map(|(page, pointer)| (key.object, *page, pointer.identity())));
        Ok(())
    }

    /// Puts pointers of pages below tree blocks that could be read just before. If one cannot be any more, nothing is put,
    /// and `pages` is empty.
    fn put_or_reject(
        &self,
        trees: &mut Trees,
        key: ObjectKey,
        record: &mut Record,
        pages: &mut Vec<(PageIndex, BlockPointer)>,
    ) -> Result<()> {
        match trees.put_pages(&self.base, key, record, pages) {
            Err(error) if is_damage(&error) => {
                tracing::error!(%key, %error, pages = pages.len(), "not written: a tree block cannot be read any more");
                pages.clear();
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Blocks of pages that are rejected stay placed, and are freed with the epoch that they were placed for.
    fn adopt(
        &self,
        key: ObjectKey,
        epoch: Epoch,
        pages: &[(PageIndex, Placement)],
        size_min: u64,
        applied: &mut Applied,
    ) -> Result<()> {
        self.change(key, epoch, |trees, record| {
            let unreadable = trees.renew_leaves(&self.base, key, record, pages.iter().map(|(page, _)| *page))?;
            let (rejected, pages): (Vec<_>, Vec<_>) =
                pages.iter().copied().partition(|(page, _)| is_under(&unreadable, *page));
            let mut blocks: Vec<u64> = pages.iter().map(|(_, placement)| placement.address).collect();
            blocks.sort_unstable();
            if blocks.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Error::Protocol("a block is adopted twice".to_string()));
            }
            let mut pointers = Vec::with_capacity(pages.len());
            for group in pages.chunk_by(|a, b| a.0 / POINTERS == b.0 / POINTERS) {
                let first = group[0].0;
                let addresses = |placement: &Placement| [placement.address, placement.address_2];
                let has_one = |olds: &[BlockPointer]| {
                    group.iter().any(|(page, placement)| olds[(page - first) as usize].is_data_at(addresses(placement)))
                };
                let count = (group[group.len() - 1].0 - first + 1) as usize;
                let olds = trees.pages_before(&self.base, key, record, (first, count), has_one)?;
                let alloc = self.base.alloc.lock();
                for (page, placement) in group {
                    let stored = Stored { address: addresses(placement), sums: placement.sums };
                    let pointer = data_pointer(stored, placement.birth, epoch);
                    if olds[(page - first) as usize].is_data_at(addresses(placement)) {
                        continue;
                    }
                    let adoptable = |address| matches!(split_address(address), (0, block) if alloc.is_adoptable(block));
                    let births = 1..=epoch;
                    if placement.address == 0
                        || !births.contains(&placement.birth)
                        || !pointer.addresses().all(adoptable)
                    {
                        return Err(Error::Protocol(format!("block {:#x} was not placed", placement.address)));
                    }
                    pointers.push((*page, pointer));
                }
            }
            let wanted: Vec<PageIndex> = pointers.iter().map(|(page, _)| *page).collect();
            self.put_or_reject(trees, key, record, &mut pointers)?;
            let rejected = rejected.iter().map(|(page, _)| *page);
            applied.rejected.extend(rejected.map(|page| (key.object, page)));
            if pointers.is_empty() {
                applied.rejected.extend(wanted.into_iter().map(|page| (key.object, page)));
            }
            let mut alloc = self.base.alloc.lock();
            for (_, pointer) in &pointers {
                pointer.addresses().for_each(|address| alloc.adopt(split_address(address).1));
            }
            record.attributes.size = record.attributes.size.max(size_min);
            Ok(())
        })
    }

    fn truncate(&self, key: ObjectKey, epoch: Epoch, size: u64, cut: &CutPages) -> Result<()> {
        if size < self.trees.read().get(&self.base, key)?.attributes.size {
            self.cut(key, epoch, &Op::Truncate { id: key.object, size }, cut)?;
        }
        self.remove(key, epoch, size.div_ceil(PAGE_SIZE as u64), PAGES_MAX)?;
        self.change(key, epoch, |_, record| {
            record.attributes.size = size;
            Ok(())
        })
    }

    /// Removes pages in pieces, from the end, so that readers get in between. If a tree block cannot be read, the rest
    /// goes at once: only the blocks at the edges of the range are needed then, and none if the range is the object.
    fn remove(&self, key: ObjectKey, epoch: Epoch, first: PageIndex, end: PageIndex) -> Result<()> {
        let bound = self.trees.read().get(&self.base, key)?.page_bound;
        let mut piece_end = end.min(bound);
        while first < piece_end {
            let from = first.max((piece_end - 1) / PIECE * PIECE);
            match self.change(key, epoch, |trees, record| trees.remove_pages(&self.base, key, record, from, piece_end))
            {
                Ok(()) => piece_end = from,
                Err(error) if is_damage(&error) => {
                    let end = if end < bound { end } else { PAGES_MAX };
                    return self
                        .change(key, epoch, |trees, record| trees.remove_pages(&self.base, key, record, first, end));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Zeroes the parts of pages that an operation cuts off: those pages are written anew, unless these bytes are zero
    /// already.
    fn cut(&self, key: ObjectKey, epoch: Epoch, op: &Op, cut: &CutPages) -> Result<()> {
        for (page, start, end) in cut_pages(op).into_iter().flatten() {
            let newest = cut.get(&key.object).and_then(|cut| cut.get(&page).copied().flatten());
            let newest = newest.and_then(|page| self.arena.pin(page));
            if let Some(pin) = newest
                && pin.bytes()[start..end].iter().all(|&byte| byte == 0)
            {
                continue;
            }
            let (pointer, twice) = {
                let trees = self.trees.read();
                let record = trees.get(&self.base, key)?;
                // What cannot be read through it stays, with bytes that must be gone.
                (trees.pages_now(&self.base, key, &record, page, 1)?[0], record.kind.is_metadata())
            };
            if pointer.kind != PointerKind::Data {
                continue;
            }
            let mut block = crate::disk::Block::zeroed();
            match self.read_page(key, page, &pointer, &mut block.0) {
                Ok(()) => {}
                // It stays as unreadable as it is.
                Err(Error::Corrupt(_)) => continue,
                // The device may read it again one day, with the bytes that must be gone.
                Err(error @ Error::Device(_)) => {
                    tracing::error!(%key, page, %error, "a page to be cut cannot be read: it is lost");
                    let lost = [(page, BlockPointer::lost(epoch, Side::Device))];
                    self.change(key, epoch, |trees, record| trees.put_pages(&self.base, key, record, &lost))?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if block.0[start..end].iter().all(|&byte| byte == 0) {
                continue;
            }
            block.0[start..end].fill(0);
            let stored = self.write_block(epoch, &block, twice)?;
            let new = data_pointer(stored, epoch, epoch);
            let outcome =
                self.change(key, epoch, |trees, record| trees.put_pages(&self.base, key, record, &[(page, new)]));
            if outcome.is_err() {
                self.cancel(&[Some(stored)]);
            }
            outcome?;
        }
        Ok(())
    }
}

fn data_pointer(Stored { address, sums }: Stored, birth: Epoch, epoch: Epoch) -> BlockPointer {
    BlockPointer {
        address,
        birth_phys: birth,
        birth_log: epoch,
        kind: PointerKind::Data,
        level: 0,
        seeded: false,
        sums,
    }
}

/// A page that an operation leaves as it was, which it was to remove, cut or copy over: who waits for the operation is told by it.
fn page_left(error: &Error, key: ObjectKey, op: &Op) -> Option<(ObjectId, PageIndex)> {
    let first = match op {
        Op::Truncate { size: offset, .. } | Op::Zero { offset, .. } => offset / PAGE_SIZE as u64,
        Op::Copy { target_first, .. } => *target_first,
        _ => 0,
    };
    unreadable_pages(error, key).map(|bad| (key.object, first.max(bad.start)))
}

/// Whether the lowest tree block above a page is among `leaves` (ascending).
fn is_under(leaves: &[u64], page: PageIndex) -> bool {
    leaves.binary_search(&(page / POINTERS)).is_ok()
}

/// For the log.
fn op_name(op: &Op) -> &'static str {
    match op {
        Op::Create { .. } => "create",
        Op::Delete { .. } => "delete",
        Op::Write { .. } => "write",
        Op::Adopt { .. } => "adopt",
        Op::Lose { .. } => "lose",
        Op::Truncate { .. } => "truncate",
        Op::Zero { .. } => "zero",
        Op::SetAttributes { .. } => "set attributes",
        Op::Copy { .. } => "copy",
    }
}

/// Whether an operation may replace pages that another one has written.
fn replaces(ops: &[Op]) -> bool {
    let mut written = FxHashSet::default();
    ops.iter().any(|op| match op {
        Op::Create { .. } | Op::SetAttributes { .. } => false,
        Op::Write { id, .. } => !written.insert(*id),
        _ => !written.is_empty(),
    })
}

/// The objects that an operation needs to know.
fn records_of(domain: DomainId, op: &Op) -> impl Iterator<Item = ObjectKey> {
    let source = match op {
        Op::Copy { source, .. } => Some(*source),
        _ => None,
    };
    std::iter::once(op.target()).chain(source).map(move |object| ObjectKey { domain, object })
}

/// Pages that an operation cuts, with the range of bytes that must be zero afterwards.
fn cut_pages(op: &Op) -> [Option<(PageIndex, usize, usize)>; 2] {
    const PAGE: u64 = PAGE_SIZE as u64;
    match *op {
        Op::Truncate { size, .. } if size % PAGE != 0 => [Some((size / PAGE, (size % PAGE) as usize, PAGE_SIZE)), None],
        Op::Zero { offset, length, .. } if length > 0 => {
            let end = offset + length;
            let (first, last) = (offset / PAGE, end / PAGE);
            let (from, to) = ((offset % PAGE) as usize, (end % PAGE) as usize);
            if first == last {
                return [Some((first, from, to)), None];
            }
            [(from > 0).then_some((first, from, PAGE_SIZE)), (to > 0).then_some((last, 0, to))]
        }
        _ => [None, None],
    }
}
