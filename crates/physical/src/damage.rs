//! Damage of one object costs that object only.
//!
//! A tree block of which no copy can be read is damage of its object. It is looked for before an operation changes
//! anything: pages under such a block are left as they are (and told, see [`holdfast_object::Applied`]); an operation that
//! has to go through one is passed over. Damage in domain 0 is the store's, and no operation gets past it.

use crate::base::Base;
use crate::format::{PAGES_MAX, POINTERS, Record};
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::tree::{Trees, span};
use holdfast_object::{DomainId, Error, ObjectId, ObjectKey, Op, PAGE_SIZE, PageIndex, Result};

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

    /// The lowest tree blocks, by number, above any of the pages (ascending) that cannot be read; they are logged.
    pub(crate) fn unreadable_leaves(
        &self,
        base: &Base,
        key: ObjectKey,
        record: &Record,
        pages: impl Iterator<Item = PageIndex>,
    ) -> Result<Vec<u64>> {
        let mut unreadable = Vec::new();
        let mut first_error = None;
        let mut last = None;
        for leaf in pages.map(|page| page / POINTERS) {
            if last.replace(leaf) == Some(leaf) || self.dirty.contains_key(&NodeKey::new(key, 1, leaf)) {
                continue;
            }
            match self.node(base, key, record, 1, leaf) {
                Ok(_) => {}
                Err(error) if is_damage(&error) => {
                    unreadable.push(leaf);
                    first_error = first_error.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = first_error {
            let blocks = unreadable.len();
            tracing::error!(%key, %error, blocks, "pages under tree blocks that cannot be read are left as they are");
        }
        Ok(unreadable)
    }
}

impl Module {
    /// Reads the tree blocks that an operation has to go through as a whole: `Err` if one of them cannot be read, and
    /// nothing has changed.
    pub(crate) fn probe_op(&self, domain: DomainId, op: &Op) -> Result<()> {
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
