//! What only snapshots have.
//!
//! The domain is read first, then its snapshots, the oldest first. Of a snapshot everything is left out that was born no later
//! than the snapshot before it, which has it too, and everything to which the domain has the same pointer in the same place.
//! So each block is read once, and what is left out costs nothing: whole trees are, by their root. What the epoch being written
//! takes away from the domain meanwhile may have to wait for the next scrub.

use super::shared::References;
use super::{BadCopies, Batch, after, in_state, leaf_class, note};
use crate::damage::is_damage;
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, PAGES_MAX, POINTERS, RECORDS, Record};
use crate::meta_block::{MetaBlock, NodeKey};
use crate::module::Module;
use crate::named::OnDevice;
use crate::objects::{system_key, table_of};
use crate::read::page_place;
use crate::snapshot::{Held, Side};
use crate::tree::{Trees, span};
use holdfast_object::{
    DomainId, Epoch, Error, Fate, Mending, ObjectId, ObjectKey, PAGE_SIZE, PageIndex, PageRef, Result, ScrubCursor,
    ScrubStep, SnapshotId,
};

/// Pages of an object table looked through at a time: writers wait meanwhile.
const TABLE_PAGES: u64 = 64;

/// Where to go on when the domains themselves have been read.
pub(super) fn first(trees: &Trees) -> ScrubCursor {
    let domains = trees.kept.domains();
    domains.map(|domain| next_of(trees, domain, 0)).find(|next| *next != ScrubCursor::End).unwrap_or(ScrubCursor::End)
}

/// The beginning of the snapshot that comes after the one of `epoch`.
fn next_of(trees: &Trees, domain: DomainId, epoch: Epoch) -> ScrubCursor {
    let begin = |domain, held: &Held| {
        let object = system_key(table_of(domain));
        ScrubCursor::Kept { domain, epoch: held.stored.epoch, object, page: 0 }
    };
    if let Some(held) = trees.kept.of(domain).iter().find(|held| held.stored.epoch > epoch) {
        return begin(domain, held);
    }
    let later = trees.kept.domains().filter(|later| *later > domain);
    let mut first = later.filter_map(|domain| trees.kept.of(domain).first().map(|held| begin(domain, held)));
    first.next().unwrap_or(ScrubCursor::End)
}

/// A snapshot, and what need not be read of it.
struct View<'a> {
    module: &'a Module,
    state: SnapshotId,
    kept: &'a Trees,
    live: &'a Trees,
    /// Epoch of the snapshot before it, or 0.
    covered: Epoch,
}

impl View<'_> {
    /// An object as the snapshot has it.
    fn record(&self, key: ObjectKey) -> Result<Option<Record>> {
        match key.domain {
            DomainId::SYSTEM => Ok(self.kept.system.get(&key.object.0).map(|record| Record::clone(record))),
            _ => self.kept.find(&self.module.base, key),
        }
    }

    /// The object as the domain has it; none also if that cannot be read.
    fn living(&self, key: ObjectKey) -> Option<Side<'_>> {
        let record = match key.domain {
            DomainId::SYSTEM => self.live.system.get(&key.object.0).map(|record| Record::clone(record)),
            _ => self.live.find(&self.module.base, key).ok().flatten(),
        };
        record.map(|record| Side { trees: self.live, record })
    }

    /// The domain's pointers towards a page, as far as they can be read.
    fn living_path(&self, living: Option<&Side<'_>>, key: ObjectKey, page: PageIndex) -> Vec<BlockPointer> {
        living.and_then(|side| side.path(&self.module.base, key, page).ok()).unwrap_or_default()
    }

    /// Whether everything under a pointer has been read, or there is nothing. `path`: the domain's towards the page.
    fn is_read(
        &self,
        pointer: &BlockPointer,
        living: Option<&Side<'_>>,
        path: &[BlockPointer],
        page: PageIndex,
        level: u8,
    ) -> bool {
        let is_living = || {
            let pointers = living.filter(|_| !path.is_empty());
            pointers.and_then(|side| side.at(path, page, level)).as_ref() == Some(pointer)
        };
        pointer.is_hole() || pointer.birth_log <= self.covered || is_living()
    }

    /// The first object above `from` with something to be read, and its first page; or from which object and page on to look
    /// for it in another step.
    fn object_after(&self, domain: DomainId, from: u64) -> Result<Option<(ObjectId, PageIndex)>> {
        let table = system_key(table_of(domain));
        let Some(record) = self.record(table)? else { return Ok(None) };
        let living = self.living(table);
        let kept = Side { trees: self.kept, record };
        let mut page = (from + 1) / RECORDS;
        let mut pages = 0;
        'pages: while page < span(kept.record.levels) {
            let path = match kept.path(&self.module.base, table, page) {
                Ok(path) => path,
                Err(Error::Corrupt(corruption)) => {
                    // Told when the table was read.
                    let width = span(corruption.place.level.unwrap_or(1).max(1));
                    page = (page / width + 1) * width;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let living_path = self.living_path(living.as_ref(), table, page);
            for level in (0..=kept.record.levels).rev() {
                let pointer = kept.at(&path, page, level).unwrap_or(BlockPointer::HOLE);
                if self.is_read(&pointer, living.as_ref(), &living_path, page, level) {
                    page = (page / span(level) + 1) * span(level);
                    continue 'pages;
                }
            }
            if pages == TABLE_PAGES {
                return Ok(Some((ObjectId(page * RECORDS - 1), PAGES_MAX)));
            }
            pages += 1;
            for id in (page * RECORDS).max(from + 1)..(page + 1) * RECORDS {
                let key = ObjectKey { domain, object: ObjectId(id) };
                match self.kept.find(&self.module.base, key) {
                    Ok(None) => {}
                    Ok(Some(record)) => {
                        let living = self.living(key).filter(|living| living.record.levels == record.levels);
                        let has_it = living.is_some_and(|living| living.record.root == record.root);
                        if !has_it && !record.root.is_hole() && record.root.birth_log > self.covered {
                            return Ok(Some((key.object, 0)));
                        }
                    }
                    Err(Error::Corrupt(corruption)) if corruption.place.object == Some(key) => {
                        return Ok(Some((key.object, 0)));
                    }
                    Err(Error::Corrupt(_) | Error::Device(_)) => break,
                    Err(error) => return Err(error),
                }
            }
            page += 1;
        }
        Ok(None)
    }

    /// As for an object of the domain: verifies the tree blocks whose first page is `page` and that are to be read, and notes
    /// such pages of the lowest one. Gives the page to go on with.
    fn leaf(
        &self,
        key: ObjectKey,
        page: PageIndex,
        step: &mut ScrubStep,
        batch: &mut Batch,
        bad: &mut Vec<BadCopies>,
    ) -> Result<Option<PageIndex>> {
        let record = match self.record(key) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(Error::Corrupt(corruption)) => {
                if corruption.place.object == Some(key) {
                    note(
                        step,
                        in_state(corruption.place.clone(), self.state),
                        corruption.without_place(),
                        Fate::Unrepaired,
                    );
                }
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let living = self.living(key);
        let path = self.living_path(living.as_ref(), key, page);
        let end = span(record.levels);
        let (mut level, mut pointer) = (record.levels, record.root);
        if page >= end {
            return Ok(None);
        }
        loop {
            if self.is_read(&pointer, living.as_ref(), &path, page, level) {
                return Ok(after(page, level, end));
            }
            if level == 0 {
                let mut references = References::new(&self.module.base, self.live);
                self.note_page(key, page, &pointer, &record, &mut references, step, batch);
                return Ok(after(page, 0, end));
            }
            let node = NodeKey::new(key, level, page / span(level));
            let block = if page.is_multiple_of(span(level)) {
                self.module.scrub_tree_block(self.live, self.state, node, &pointer, step, bad)?
            } else {
                match self.kept.fetch(&self.module.base, node, &pointer) {
                    Ok(block) => Some(block),
                    Err(error) if is_damage(&error) => None,
                    Err(error) => return Err(error),
                }
            };
            let Some(block) = block else { return Ok(after(page, level, end)) };
            if level == 1 {
                let first = page / POINTERS * POINTERS;
                self.note_leaf(key, first, &block, living.as_ref(), &path, &record, step, batch);
                return Ok(after(page, 1, end));
            }
            level -= 1;
            pointer = block.pointer((page / span(level) % POINTERS) as usize);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn note_leaf(
        &self,
        key: ObjectKey,
        first: PageIndex,
        block: &MetaBlock,
        living: Option<&Side<'_>>,
        path: &[BlockPointer],
        record: &Record,
        step: &mut ScrubStep,
        batch: &mut Batch,
    ) {
        // The domain's block beside this one, if it has one that can be read.
        let beside = living.and_then(|side| side.at(path, first, 1));
        let beside = beside.filter(|pointer| !pointer.is_hole()).and_then(|pointer| {
            self.live.fetch(&self.module.base, NodeKey::new(key, 1, first / POINTERS), &pointer).ok()
        });
        let mut references = References::new(&self.module.base, self.live);
        for slot in 0..POINTERS {
            let pointer = block.pointer(slot as usize);
            let is_living = beside.as_ref().is_some_and(|beside| beside.pointer(slot as usize) == pointer);
            if !pointer.is_hole() && pointer.birth_log > self.covered && !is_living {
                self.note_page(key, first + slot, &pointer, record, &mut references, step, batch);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn note_page(
        &self,
        key: ObjectKey,
        index: PageIndex,
        pointer: &BlockPointer,
        record: &Record,
        references: &mut References<'_>,
        step: &mut ScrubStep,
        batch: &mut Batch,
    ) {
        let (node, class) = (NodeKey::new(key, 0, index), leaf_class(key, record));
        match pointer.kind {
            PointerKind::LostInMemory | PointerKind::LostOnDevice => step.counts.lost_before += 1,
            PointerKind::Data => self.module.note_copies(references, self.state, node, pointer, class, batch),
            PointerKind::Hole | PointerKind::Tree => {}
        }
    }
}

impl Module {
    /// One leaf of a snapshot. Gives where to go on. A snapshot that has been deleted meanwhile is over.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn scrub_kept(
        &self,
        trees: &Trees,
        (domain, epoch): (DomainId, Epoch),
        object: ObjectKey,
        page: PageIndex,
        step: &mut ScrubStep,
        batch: &mut Batch,
        bad: &mut Vec<BadCopies>,
    ) -> Result<ScrubCursor> {
        let all = trees.kept.of(domain);
        let Some(at) = all.iter().position(|held| held.stored.epoch == epoch) else {
            return Ok(next_of(trees, domain, epoch));
        };
        let covered = at.checked_sub(1).map_or(0, |before| all[before].stored.epoch);
        let view = View { module: self, state: all[at].stored.id, kept: &all[at].view, live: trees, covered };
        if let Some(page) = view.leaf(object, page, step, batch, bad)? {
            return Ok(ScrubCursor::Kept { domain, epoch, object, page });
        }
        let from = if object.domain == DomainId::SYSTEM { 0 } else { object.object.0 };
        Ok(match view.object_after(domain, from)? {
            Some((object, page)) => ScrubCursor::Kept { domain, epoch, object: ObjectKey { domain, object }, page },
            None => next_of(trees, domain, epoch),
        })
    }

    /// The other states, newer ones, that have the same pointer in the same place: a scrub does not come to it there.
    pub(super) fn sharers(
        &self,
        trees: &Trees,
        state: SnapshotId,
        node: NodeKey,
        pointer: &BlockPointer,
    ) -> Vec<SnapshotId> {
        let (domain, object) = (DomainId(node.domain), ObjectId(node.object));
        if domain == DomainId::SYSTEM {
            return Vec::new();
        }
        let key = ObjectKey { domain, object };
        let page = node.index.saturating_mul(span(node.level));
        let all = trees.kept.of(domain);
        let older = all.iter().position(|held| held.stored.id == state).map_or(0, |at| at + 1);
        let has_it = |held: &&Held| {
            let record = held.view.find(&self.base, key).ok().flatten();
            let side = record.map(|record| Side { trees: &held.view, record });
            side.is_some_and(|side| {
                let path = side.path(&self.base, key, page);
                path.is_ok_and(|path| side.at(&path, page, node.level).as_ref() == Some(pointer))
            })
        };
        all[older..].iter().filter(has_it).map(|held| held.stored.id).collect()
    }

    /// See [`holdfast_object::ObjectStore::mend`].
    pub(crate) fn mend_page(&self, key: ObjectKey, index: PageIndex, page: PageRef) -> Result<Mending> {
        let Some(pinned) = self.arena.pin(page) else {
            return Err(Error::Protocol("a page to mend with is not in use".into()));
        };
        let good: &[u8; PAGE_SIZE] = pinned.bytes();
        // Nobody else gets the block meanwhile.
        let _gate = self.gate.read();
        let (pointer, node) = {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            let record = state.find(&self.base, live)?.ok_or(Error::NoObject(key))?;
            (state.pages(&self.base, live, &record, index, 1)?[0], NodeKey::new(live, 0, index))
        };
        if pointer.kind != PointerKind::Data || !pointer.matches(good, 0) {
            return Ok(Mending::OtherBytes);
        }
        let mut back = Box::new(crate::disk::Block([0; PAGE_SIZE]));
        let mut is_good = |address| self.disk().read_block(address, &mut back.0).is_ok() && back.0 == *good;
        let bad: Vec<u64> = pointer.addresses().filter(|address| !is_good(*address)).collect();
        if !bad.is_empty() && !self.trees().is_named(&self.base, &OnDevice::new(self.disk()), node, &pointer)? {
            return Ok(Mending::NotDone);
        }
        let is_mended = bad.into_iter().all(|address| {
            let place = page_place(key, index, self.disk().place(address));
            self.disk().repair(address, good, &place) && is_good(address)
        });
        Ok(if is_mended { Mending::Done } else { Mending::NotDone })
    }
}
