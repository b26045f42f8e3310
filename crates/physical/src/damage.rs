//! Damage of one object costs that object only.
//!
//! A tree block of which no copy can be read is damage of its object. It is looked for before an operation changes
//! anything. If it is one above pages, and the operation stores some of these or cuts them off, it is made anew: its other pages are lost. Of higher
//! blocks too much would be: pages under such a block are left as they are (and told, see [`holdfast_object::Applied`]; nothing of them gets into
//! the intent log), and an operation that has to go through one is passed over. Damage in domain 0 is the store's, and no operation gets past it.

use crate::base::Base;
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, PAGES_MAX, POINTERS, Record};
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::named::OnDevice;
use crate::tree::{Path, Trees, span};
use holdfast_object::{DomainId, Epoch, Error, LogBatch, ObjectId, ObjectKey, Op, PAGE_SIZE, PageIndex, Result, Side};

/// Most levels of a tree whose pages are counted while nobody else gets at the trees: 64 blocks are read for that.
const COUNTED_LEVELS_MAX: u8 = 2;

/// Whether the error says that a tree block of an object of a domain cannot be read.
pub(crate) fn is_damage(error: &Error) -> bool {
    let Error::Corrupt(corruption) = error else { return false };
    let place = &corruption.place;
    place.object.is_some_and(|key| key.domain != DomainId::SYSTEM) && place.level.is_some_and(|level| level > 0)
}

/// Which blocks a probe reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// All that are above a page of the range.
    All,
    /// Those of them that are also above a page outside the range: the removal of the range changes these, and frees
    /// the others whether or not they can be read.
    Edges,
}

impl Trees {
    /// Reads the tree blocks above the pages from `first` up to `end`.
    pub(crate) fn probe_pages(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        first: PageIndex,
        end: PageIndex,
    ) -> Result<()> {
        self.probe(base, key, record, (record.levels, 0), (first, end), Probe::All)
    }

    /// Reads the tree blocks that [`Trees::remove_pages`] needs.
    fn probe_removal(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        first: PageIndex,
        end: PageIndex,
    ) -> Result<()> {
        if first == 0 && end >= span(record.levels) {
            return Ok(());
        }
        self.probe(base, key, record, (record.levels, 0), (first, end), Probe::Edges)
    }

    fn probe(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (level, index): (u8, u64),
        (first, end): (PageIndex, PageIndex),
        which: Probe,
    ) -> Result<()> {
        let start = index * span(level);
        let (first_here, end_here) = (first.max(start), end.min(start + span(level)));
        if level == 0 || first_here >= end_here {
            return Ok(());
        }
        let Some(block) = self.node(base, key, record, level, index)? else { return Ok(()) };
        if level == 1 {
            return Ok(());
        }
        let width = span(level - 1);
        for slot in (first_here - start) / width..(end_here - start).div_ceil(width) {
            let child = start + slot * width;
            let is_whole = first <= child && child + width <= end;
            let is_read = which == Probe::All || !is_whole;
            if is_read && !block.pointer_kind_is_hole(slot as usize) {
                self.probe(base, key, record, (level - 1, index * POINTERS + slot), (first, end), which)?;
            }
        }
        Ok(())
    }

    /// Makes the lowest tree blocks above any of the pages (ascending) anew that cannot be read. Those, by number, that cannot be made anew either; they
    /// are logged.
    pub(crate) fn renew_leaves(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        pages: impl Iterator<Item = PageIndex>,
    ) -> Result<Vec<u64>> {
        let mut left = Vec::new();
        for (leaf, error) in self.unreadable_leaves(base, key, record, pages)? {
            if !self.renew_leaf(base, key, record, leaf, &error)? {
                left.push((leaf, error));
            }
        }
        if let Some((_, error)) = left.first() {
            let blocks = left.len();
            tracing::error!(%key, %error, blocks, "pages under tree blocks that cannot be read are left as they are");
        }
        Ok(left.into_iter().map(|(leaf, _)| leaf).collect())
    }

    /// The lowest tree blocks, by number, above any of the pages (ascending) that cannot be read.
    pub(crate) fn unreadable_leaves(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        pages: impl Iterator<Item = PageIndex>,
    ) -> Result<Vec<(u64, Error)>> {
        let mut unreadable = Vec::new();
        let mut last = None;
        for leaf in pages.map(|page| page / POINTERS) {
            if last.replace(leaf) == Some(leaf) || self.dirty.contains_key(&NodeKey::new(key, 1, leaf)) {
                continue;
            }
            match self.node(base, key, record, 1, leaf) {
                Ok(_) => {}
                Err(error) if is_damage(&error) => unreadable.push((leaf, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(unreadable)
    }

    /// Makes a lowest tree block anew that cannot be read (`error`): what it named is not known, so the pages that the object may have there are lost,
    /// and their blocks stay in use for `check` to find. What would be behind the end of the object is zeros, so that is holes. Whether it was made: not
    /// if a block above it cannot be read, nor unless the device has this pointer in the same place, as it may have gone bad in memory.
    fn renew_leaf(
        &mut self,
        base: &Base,
        key: ObjectKey,
        record: &mut Record,
        leaf: u64,
        error: &Error,
    ) -> Result<bool> {
        let Path { node, pointer, .. } = match self.path_to(base, key, record, 1, leaf) {
            Ok(Some(path)) if path.pointer.is_stored() => path,
            Err(error) if !is_damage(&error) => return Err(error),
            _ => return Ok(false),
        };
        if !self.is_named(base, &OnDevice::new(&base.disk), node, &pointer)? {
            return Ok(false);
        }
        if record.levels > 1 {
            self.make_dirty(base, key, record, 2, leaf / POINTERS)?;
        }
        self.put_dirty(base, record, node, base.new_block(node), &pointer);
        let pages = record.attributes.size.div_ceil(PAGE_SIZE as u64).min(record.page_bound);
        let lost = BlockPointer::lost(self.building, Side::Device);
        let pages = pages.saturating_sub(leaf * POINTERS).min(POINTERS);
        for slot in 0..pages as usize {
            self.dirty_mut(node).put_pointer(slot, &lost);
        }
        tracing::error!(
            %key, %error, first = leaf * POINTERS, pages,
            "a tree block that cannot be read is made anew: pages under it are lost until they are written again"
        );
        let there = record.page_bound.saturating_sub(leaf * POINTERS).min(POINTERS);
        self.count_lost(base, key, record, there)?;
        Ok(true)
    }

    /// Takes off the pages that an object counts the data that it may have had in so many pages of one block, which are lost. That is known of an object
    /// without holes, and a small tree is counted; of another one all of them are, and `check` tells the difference: nobody else gets at the trees
    /// meanwhile.
    fn count_lost(&mut self, base: &Base, key: ObjectKey, record: &mut Record, lost: u64) -> Result<()> {
        let told = record.attributes.blocks;
        let most = told.min(lost);
        let least = told.saturating_sub(record.page_bound.saturating_sub(lost));
        let mut left = told - most;
        if least < most && record.levels <= COUNTED_LEVELS_MAX {
            match self.pages_under(base, key, record.levels, 0, &record.root) {
                Ok(stored) => left = stored,
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        record.attributes.blocks = left;
        self.audit.pages_left(key, told.wrapping_sub(left));
        Ok(())
    }

    /// How many pages are stored under a block of `level`, which is number `index` in it.
    fn pages_under(&self, base: &Base, key: ObjectKey, level: u8, index: u64, pointer: &BlockPointer) -> Result<u64> {
        if level == 0 || pointer.is_hole() {
            return Ok(u64::from(pointer.kind == PointerKind::Data));
        }
        let block = self.fetch_now(base, NodeKey::new(key, level, index), pointer)?;
        let below = (0..POINTERS).map(|slot| (index * POINTERS + slot, block.pointer(slot as usize)));
        below.map(|(index, pointer)| self.pages_under(base, key, level - 1, index, &pointer)).sum()
    }
}

impl Module {
    /// [`Module::probe_op`], and lowest tree blocks of the target that cannot be read are made anew.
    pub(crate) fn clear_way(&self, domain: DomainId, epoch: Epoch, op: &Op) -> Result<()> {
        let key = ObjectKey { domain, object: op.target() };
        loop {
            let error = match self.probe_op(domain, op) {
                Err(error) if is_damage(&error) => error,
                outcome => return outcome,
            };
            let Error::Corrupt(corruption) = &error else { return Err(error) };
            let place = &corruption.place;
            let leaf = place.index.filter(|_| place.object == Some(key) && place.level == Some(1));
            let Some(leaf) = leaf else { return Err(error) };
            // Each is changed from then on, and so can be read.
            if !self.change(key, epoch, |trees, record| trees.renew_leaf(&self.base, key, record, leaf, &error))? {
                return Err(error);
            }
        }
    }

    /// Whether the pages of a log batch can get into the trees with the next recovery point, as far as what is read for that is more than the lowest
    /// tree blocks, which can be made anew.
    pub(crate) fn have_places(&self, batch: &LogBatch) -> Result<bool> {
        let trees = self.trees();
        for op in &batch.ops {
            let mut pages: Vec<PageIndex> = match op {
                Op::Write { fragments, .. } => fragments.iter().map(|fragment| fragment.index).collect(),
                Op::Adopt { pages, .. } => pages.iter().map(|(index, _)| *index).collect(),
                _ => continue,
            };
            let key = ObjectKey { domain: batch.domain, object: op.target() };
            let Some(record) = trees.find(&self.base, key)?.filter(|record| record.levels > 1) else { continue };
            pages.dedup_by_key(|page| *page / span(2));
            for page in pages {
                match trees.node(&self.base, key, &record, 2, page / span(2)) {
                    Ok(_) => {}
                    Err(error) if is_damage(&error) => {
                        tracing::error!(%key, page, %error, "not logged: a tree block cannot be read");
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }

    /// Reads the tree blocks that an operation has to go through as a whole: `Err` if one of them cannot be read, and
    /// nothing has changed.
    fn probe_op(&self, domain: DomainId, op: &Op) -> Result<()> {
        const PAGE: u64 = PAGE_SIZE as u64;
        let trees = self.trees();
        let find = |object: ObjectId| {
            let key = ObjectKey { domain, object };
            Ok::<_, Error>(trees.find(&self.base, key)?.map(|record| (key, record)))
        };
        let (id, first, end, cut) = match *op {
            Op::Truncate { id, size } => {
                let cut = [(size % PAGE != 0).then_some(size / PAGE), None];
                (id, size.div_ceil(PAGE), PAGES_MAX, cut)
            }
            Op::Zero { id, offset, length } => {
                let (from, to) = (offset, offset + length);
                let cut = [from, to].map(|edge| (edge % PAGE != 0).then_some(edge / PAGE));
                (id, from.div_ceil(PAGE), to / PAGE, cut)
            }
            Op::Copy { source, source_first, target, target_first, pages, .. } => {
                for (id, first) in [(source, source_first), (target, target_first)] {
                    if let Some((key, record)) = find(id)? {
                        trees.probe_pages(&self.base, key, &record, first, first + pages)?;
                    }
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        let Some((key, record)) = find(id)? else { return Ok(()) };
        let is_longer = matches!(*op, Op::Truncate { size, .. } if size >= record.attributes.size);
        for page in cut.into_iter().flatten().filter(|_| !is_longer) {
            trees.probe_pages(&self.base, key, &record, page, page + 1)?;
        }
        if first >= record.page_bound {
            return Ok(());
        }
        let end = if end < record.page_bound { end } else { PAGES_MAX };
        trees.probe_removal(&self.base, key, &record, first, end)
    }
}
