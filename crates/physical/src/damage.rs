//! Damage of one object costs that object only.
//!
//! A tree block of which no copy can be read is damage of its object. It is looked for before an operation changes
//! anything. If it is one above pages, and the operation stores some of these or cuts them off, it is made anew: its other pages are lost, unless a copy is what
//! was written and only some of its pointers make no sense. Of higher blocks too much would be: pages under such a block are left as they are (and told, see [`holdfast_object::Applied`]; nothing of them gets into
//! the intent log), and an operation that has to go through one is passed over. Damage in domain 0 is the store's, and no operation gets past it:
//! of what may need such a block, as far as it is known, nothing gets into the intent log, where no replay could do it.

use crate::base::Base;
use crate::counters::Own;
use crate::disk::Disk;
use crate::format::blockptr::PointerKind;
use crate::format::{BITS, BlockPointer, PAGES_MAX, POINTERS, Record};
use crate::meta_block::{MetaBlock, NodeKey, OwnedBlock, read_copy};
use crate::module::Module;
use crate::named::{Answer, OnDevice};
use crate::objects::{map_of, orphans_of, system_key};
use crate::op_limits::check_limits;
use crate::slots::{self, Limits};
use crate::tree::{Path, Trees, span};
use holdfast_object::{
    DomainId, Epoch, Error, LogBatch, ObjectId, ObjectKey, Op, PAGE_SIZE, PageIndex, Place, Result, Side,
};
use std::ops::Range;

/// Most levels of a tree whose pages are counted while nobody else gets at the trees: 64 blocks are read for that.
const COUNTED_LEVELS_MAX: u8 = 2;

/// Pages above which tree blocks are read while the trees are held: 64 of the lowest blocks, which are read at once.
const PROBED_PAGES: u64 = 1 << 12;

/// Whether the error says that a tree block of an object of a domain cannot be read.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt(corruption) if damaged_object(&corruption.place).is_some())
}

/// The object of a domain of which a tree block is in this place.
pub(crate) fn damaged_object(place: &Place) -> Option<ObjectKey> {
    place.object.filter(|key| key.domain != DomainId::SYSTEM && place.level.is_some_and(|level| level > 0))
}

/// Which lowest tree block it is that cannot be read, if it is one.
fn leaf_of(error: &Error) -> Option<u64> {
    match error {
        Error::Corrupt(corruption) if corruption.place.level == Some(1) => corruption.place.index,
        _ => None,
    }
}

/// The pages of an object that are under a tree block of it which cannot be read, if the error says that.
pub(crate) fn unreadable_pages(error: &Error, key: ObjectKey) -> Option<Range<PageIndex>> {
    let Error::Corrupt(corruption) = error else { return None };
    let place = &corruption.place;
    let level = place.level.filter(|level| *level > 0 && place.object == Some(key))?;
    let start = place.index?.checked_mul(span(level))?;
    Some(start..start.checked_add(span(level))?)
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

/// What the device has of a lowest tree block that could not be read just before.
enum Found {
    /// No copy is what was written.
    Nothing,
    /// What was written. So many of its pointers cannot be what they say: here they are lost.
    Written(Box<MetaBlock>, u64),
    /// The device has refused to read one, and the others are bad. It does not read what leads there any more either: it is not for this block.
    Refused,
}

/// Looks at both copies again. In the place of the block's pointers that cannot be what they say are lost ones then, and holes from page `end` on.
fn look_again(disk: &Disk, node: NodeKey, pointer: &BlockPointer, end: PageIndex, lost: &BlockPointer) -> Found {
    let mut is_refused = false;
    for address in pointer.addresses() {
        match read_copy(disk, node, pointer, address) {
            Ok(bytes) => {
                let mut block = MetaBlock::clean(bytes, node, pointer, disk.metadata);
                let limits = Limits::of(disk);
                let misfits = slots::misfits(block.bytes(), node, limits).len();
                let free = slots::remains(block.bytes(), node, limits).len();
                let by =
                    |slot: usize| if node.index * POINTERS + (slot as u64) < end { lost } else { &BlockPointer::HOLE };
                block.clear(&slots::replaced(block.bytes(), node, limits, by));
                return Found::Written(Box::new(block), (misfits - free) as u64);
            }
            Err(Error::Device(_)) => is_refused = true,
            Err(_) => {}
        }
    }
    match is_refused && OnDevice::new(disk).ask(node, pointer) != Answer::Same {
        true => Found::Refused,
        false => Found::Nothing,
    }
}

/// Pages of an object that have something of its contents: what it may have behind them is zeros.
pub(crate) fn pages_of(record: &Record) -> PageIndex {
    record.attributes.size.div_ceil(PAGE_SIZE as u64).min(record.page_bound)
}

impl Trees {
    /// Reads the tree blocks above the pages from `first` up to `end`, and adds what is to be said of those to `found` that cannot be read.
    fn probe_pages(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (first, end): (PageIndex, PageIndex),
        found: &mut Vec<Error>,
    ) -> Result<()> {
        self.probe(base, key, record, (record.levels, 0), (first, end), Probe::All, found)
    }

    /// The same for those that [`Trees::remove_pages`] needs.
    fn probe_removal(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (first, end): (PageIndex, PageIndex),
        found: &mut Vec<Error>,
    ) -> Result<()> {
        if first == 0 && end >= span(record.levels) {
            return Ok(());
        }
        self.probe(base, key, record, (record.levels, 0), (first, end), Probe::Edges, found)
    }

    #[allow(clippy::too_many_arguments)]
    fn probe(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (level, index): (u8, u64),
        (first, end): (PageIndex, PageIndex),
        which: Probe,
        found: &mut Vec<Error>,
    ) -> Result<()> {
        let start = index * span(level);
        let (first_here, end_here) = (first.max(start), end.min(start + span(level)));
        if level == 0 || first_here >= end_here {
            return Ok(());
        }
        let block = match self.node(base, key, record, level, index) {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(()),
            Err(error) if is_damage(&error) => {
                found.push(error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if level == 1 {
            return Ok(());
        }
        let width = span(level - 1);
        for slot in (first_here - start) / width..(end_here - start).div_ceil(width) {
            let child = start + slot * width;
            let is_whole = first <= child && child + width <= end;
            let is_read = which == Probe::All || !is_whole;
            if is_read && !block.pointer_kind_is_hole(slot as usize) {
                self.probe(base, key, record, (level - 1, index * POINTERS + slot), (first, end), which, found)?;
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
    /// and their blocks stay in use for `check` to find. What would be behind the end of the object is zeros, so that is holes. Of one that is what was
    /// written only those pages are lost whose pointers make no sense. Whether it can be read now: not if a block above it cannot be, nor unless the device
    /// has this pointer in the same place, as it may have gone bad in memory, nor if that may be over soon.
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
        let lost = BlockPointer::lost(self.building, Side::Device);
        let end = pages_of(record);
        let found = look_again(&base.disk, node, &pointer, end, &lost);
        match found {
            Found::Written(_, 0) => return Ok(true),
            Found::Refused => return Ok(false),
            Found::Nothing | Found::Written(..) => {}
        }
        if record.levels > 1 {
            match self.make_dirty(base, key, record, 2, leaf / POINTERS) {
                // It could be read just before.
                Err(error) if is_damage(&error) => return Ok(false),
                outcome => outcome?,
            }
        }
        let there = if let Found::Written(block, misfits) = found {
            tracing::error!(
                %key, %error, first = leaf * POINTERS, misfits,
                "pages whose pointers make no sense in a tree block are lost until they are written again"
            );
            self.put_dirty(base, record, node, OwnedBlock::from(*block, base.disk.metadata), &pointer);
            misfits
        } else {
            self.put_dirty(base, record, node, base.new_block(node), &pointer);
            let pages = end.saturating_sub(leaf * POINTERS).min(POINTERS);
            for slot in 0..pages as usize {
                self.dirty_mut(node).put_pointer(slot, &lost);
            }
            tracing::error!(
                %key, %error, first = leaf * POINTERS, pages,
                "a tree block that cannot be read is made anew: pages under it are lost until they are written again"
            );
            record.page_bound.saturating_sub(leaf * POINTERS).min(POINTERS)
        };
        self.count_lost(base, key, record, there)?;
        Ok(true)
    }

    /// Pointers of so many pages of an object, of which the first is under a lowest tree block that could not be read just before, up to the end of that
    /// block, if the device has what was written after all: those that make no sense are lost.
    pub(crate) fn pages_again(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        (first, count): (PageIndex, u64),
    ) -> Result<Option<Vec<BlockPointer>>> {
        let leaf = first / POINTERS;
        let path = match self.path_to(base, key, record, 1, leaf) {
            Err(error) if is_damage(&error) => None,
            path => path?,
        };
        let Some(Path { node, pointer, .. }) = path.filter(|path| path.pointer.is_stored()) else { return Ok(None) };
        if !self.is_named(base, &OnDevice::new(&base.disk), node, &pointer)? {
            return Ok(None);
        }
        let lost = BlockPointer::lost(self.building, Side::Device);
        let Found::Written(block, _) = look_again(&base.disk, node, &pointer, pages_of(record), &lost) else {
            return Ok(None);
        };
        let (from, left) = (first % POINTERS, POINTERS - first % POINTERS);
        Ok(Some((from..from + count.min(left)).map(|slot| block.pointer(slot as usize)).collect()))
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
    /// Makes the lowest tree blocks of the target anew that the operation has to go through as a whole and that cannot be read. `Err` if it cannot go
    /// through all the same; if it is for another block, nothing has changed.
    pub(crate) fn clear_way(&self, domain: DomainId, epoch: Epoch, op: &Op) -> Result<()> {
        let key = ObjectKey { domain, object: op.target() };
        let found = self.probe_op(domain, op)?;
        if let Some(error) = found.iter().find(|error| leaf_of(error).is_none()) {
            return Err(error.clone());
        }
        if found.is_empty() {
            return Ok(());
        }
        self.change(key, epoch, |trees, record| {
            for error in found {
                let Some(leaf) = leaf_of(&error) else { continue };
                let is_anew = trees.dirty.contains_key(&NodeKey::new(key, 1, leaf));
                if !is_anew && !trees.renew_leaf(&self.base, key, record, leaf, &error)? {
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    /// Whether the next recovery point can have all of a log batch, as far as the tree blocks are concerned that it has to go through: each can be read,
    /// or is a lowest one that can be made anew. Only objects are looked at of which damage is known. What nobody has come across yet the recovery
    /// point does, and rejects.
    pub(crate) fn have_places(&self, batch: &LogBatch) -> bool {
        if let Some(op) = batch.ops.iter().find(|op| !self.is_possible(batch.domain, op)) {
            tracing::error!(
                object = op.target().0,
                "not logged: metadata of the store's own that it may need cannot be read"
            );
            return false;
        }
        let on_device = OnDevice::new(self.disk());
        let may_be_damaged = |op: &&Op| {
            let key = ObjectKey { domain: batch.domain, object: op.target() };
            self.disk().counters.may_be_damaged(key)
        };
        // If it cannot be told, the recovery point tells.
        batch.ops.iter().filter(may_be_damaged).all(|op| {
            let is_possible = self.has_places(batch.domain, op, &on_device);
            is_possible
                .inspect_err(|error| {
                    tracing::error!(object = op.target().0, %error, "not logged: a tree block cannot be read");
                })
                .is_ok()
        })
    }

    /// Whether the operation needs none of the store's own metadata of which it is known that it cannot be read. Object tables are looked at for each object.
    fn is_possible(&self, domain: DomainId, op: &Op) -> bool {
        let is_damaged = |what: fn(Own) -> bool| self.disk().counters.has_damaged_own(what);
        if !is_damaged(|own| own != Own::Tables) {
            return true;
        }
        let is_of_maps = match op {
            Op::Create { .. } | Op::Delete { .. } => Some([map_of(domain), orphans_of(domain)]),
            Op::SetAttributes { set, .. } if set.nlink.is_some() => Some([orphans_of(domain); 2]),
            _ => None,
        };
        let has_pages = !matches!(op, Op::Create { .. } | Op::SetAttributes { .. });
        if is_damaged(|own| matches!(own, Own::Bitmap | Own::Others))
            || has_pages && is_damaged(|own| own == Own::References)
        {
            return false;
        }
        let trees = self.trees();
        let (page, maps) = (op.target().0 / BITS, is_of_maps.into_iter().flatten());
        let mut records = maps.filter_map(|map| Some((system_key(map), trees.system.get(&map)?)));
        records.all(|(key, record)| trees.node(&self.base, key, record, 0, page).is_ok())
    }

    /// See [`holdfast_object::ObjectStore::check_way`].
    pub(crate) fn has_way(&self, domain: DomainId, op: &Op) -> Result<()> {
        check_limits(op)?;
        if let Op::Copy { source, source_first, pages, .. } = *op {
            let key = ObjectKey { domain, object: source };
            let found = self.probe_range(key, (source_first, source_first.saturating_add(pages)), true)?;
            found.into_iter().next().map_or(Ok(()), Err)?;
        }
        self.has_places(domain, op, &OnDevice::new(self.disk()))
    }

    /// # Errors
    /// A block cannot be read, and not be made anew either.
    fn has_places(&self, domain: DomainId, op: &Op, on_device: &OnDevice<'_>) -> Result<()> {
        let key = ObjectKey { domain, object: op.target() };
        let pages: Vec<PageIndex> = match op {
            Op::Write { fragments, .. } => fragments.iter().map(|fragment| fragment.index).collect(),
            Op::Adopt { pages, .. } => pages.iter().map(|(index, _)| *index).collect(),
            _ => Vec::new(),
        };
        let mut found = self.probe_op(domain, op)?;
        let trees = self.trees();
        let Some(record) = trees.find(&self.base, key)? else { return Ok(()) };
        let unreadable = trees.unreadable_leaves(&self.base, key, &record, pages.into_iter())?;
        found.extend(unreadable.into_iter().map(|(_, error)| error));
        for error in found {
            let Some(leaf) = leaf_of(&error) else { return Err(error) };
            let path = trees.path_to(&self.base, key, &record, 1, leaf)?;
            let is_known = path.is_some_and(|path| on_device.ask(path.node, &path.pointer) == Answer::Same);
            if !is_known {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads the tree blocks above these pages, in pieces, and says which cannot be read; if one is enough, those of a piece.
    fn probe_range(
        &self,
        key: ObjectKey,
        (first, end): (PageIndex, PageIndex),
        is_one_enough: bool,
    ) -> Result<Vec<Error>> {
        let (mut found, mut from) = (Vec::new(), first);
        while from < end && (found.is_empty() || !is_one_enough) {
            let trees = self.trees();
            let Some(record) = trees.find(&self.base, key)? else { break };
            let end_here = end.min(span(record.levels));
            if from >= end_here {
                break;
            }
            let to = end_here.min(from.saturating_add(PROBED_PAGES));
            trees.probe_pages(&self.base, key, &record, (from, to), &mut found)?;
            from = to;
        }
        Ok(found)
    }

    /// Reads the tree blocks of the target that an operation has to go through as a whole, and says which cannot be read.
    fn probe_op(&self, domain: DomainId, op: &Op) -> Result<Vec<Error>> {
        const PAGE: u64 = PAGE_SIZE as u64;
        // What cannot be read of the source is lost in the target: see `Module::copy`.
        if let Op::Copy { target: object, target_first, pages, .. } = *op {
            let pages = (target_first, target_first.saturating_add(pages));
            return self.probe_range(ObjectKey { domain, object }, pages, false);
        }
        let trees = self.trees();
        let mut found = Vec::new();
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
            _ => return Ok(found),
        };
        let Some((key, record)) = find(id)? else { return Ok(found) };
        let is_longer = matches!(*op, Op::Truncate { size, .. } if size >= record.attributes.size);
        for page in cut.into_iter().flatten().filter(|_| !is_longer) {
            trees.probe_pages(&self.base, key, &record, (page, page + 1), &mut found)?;
        }
        if first >= record.page_bound {
            return Ok(found);
        }
        let end = if end < record.page_bound { end } else { PAGES_MAX };
        trees.probe_removal(&self.base, key, &record, (first, end), &mut found)?;
        Ok(found)
    }
}
