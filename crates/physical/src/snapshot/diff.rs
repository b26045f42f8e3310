//! What changed between two states of a domain: where two trees have the same pointer, all under it is the same, so only
//! what is under different ones is looked at.

use crate::base::Base;
use crate::format::{BlockPointer, POINTERS, RECORDS, Record, RecordKind, SystemKind};
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::objects::{system_key, table_of};
use crate::tree::{Trees, span};
use holdfast_object::{DomainId, Error, ObjectChange, ObjectId, ObjectKey, PageIndex, Result, SnapshotId};
use std::ops::ControlFlow;

/// One state of an object.
pub(crate) struct Side<'a> {
    pub(crate) trees: &'a Trees,
    pub(crate) record: Record,
}

impl Side<'_> {
    /// The pointers from the root towards a page, down to the first hole, each of a block that has been verified just now: nobody looks at what
    /// is passed over as the same on both sides.
    pub(crate) fn path(&self, base: &Base, key: ObjectKey, page: PageIndex) -> Result<Vec<BlockPointer>> {
        let mut path = Vec::with_capacity(usize::from(self.record.levels) + 1);
        if page >= span(self.record.levels) {
            return Ok(path);
        }
        let (mut pointer, mut level) = (self.record.root, self.record.levels);
        loop {
            path.push(pointer);
            if pointer.is_hole() || level == 0 {
                return Ok(path);
            }
            let block = self.trees.fetch_now(base, NodeKey::new(key, level, page / span(level)), &pointer)?;
            level -= 1;
            pointer = block.pointer((page / span(level) % POINTERS) as usize);
        }
    }

    /// The pointer of `level` on the path to a page; `None` if the tree is not as high as that.
    pub(crate) fn at(&self, path: &[BlockPointer], page: PageIndex, level: u8) -> Option<BlockPointer> {
        let levels = self.record.levels;
        if level > levels {
            // All that such a block would have is beyond the tree, unless it is the first one.
            return (page >= span(level)).then_some(BlockPointer::HOLE);
        }
        Some(path.get(usize::from(levels - level)).copied().unwrap_or(BlockPointer::HOLE))
    }
}

/// What one state has in a place of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Pointer(BlockPointer),
    /// The place is above the root: the tree is not as high as the other one. Its first child leads to the tree, the others to
    /// nothing.
    Above,
}

/// Two states of an object side by side.
struct Walk<'a> {
    base: &'a Base,
    key: ObjectKey,
    sides: &'a [Side<'a>; 2],
    /// Pages before it are left out.
    from: PageIndex,
}

impl Walk<'_> {
    /// Shows the pages from `from` on whose pointers differ, in ascending order, until told to stop. Each block of the trees is
    /// fetched once at most.
    fn differences(&self, show: &mut dyn FnMut(PageIndex) -> Result<ControlFlow<()>>) -> Result<()> {
        let levels = self.sides.each_ref().map(|side| side.record.levels);
        let top = levels[0].max(levels[1]);
        let roots = [0, 1].map(|side| self.root(side, top));
        if self.from < span(top) {
            let _ = self.below(top, 0, roots, show)?;
        }
        Ok(())
    }

    fn root(&self, side: usize, level: u8) -> Under {
        let record = &self.sides[side].record;
        if record.levels == level { Under::Pointer(record.root) } else { Under::Above }
    }

    fn below(
        &self,
        level: u8,
        index: u64,
        places: [Under; 2],
        show: &mut dyn FnMut(PageIndex) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        if places[0] == places[1] {
            return Ok(ControlFlow::Continue(()));
        }
        if level == 0 {
            return show(index);
        }
        let block = |side: usize| match places[side] {
            Under::Pointer(pointer) if !pointer.is_hole() => {
                let node = NodeKey::new(self.key, level, index);
                self.sides[side].trees.fetch_now(self.base, node, &pointer).map(Some)
            }
            _ => Ok(None),
        };
        let blocks = [block(0)?, block(1)?];
        let child = |side: usize, slot: u64| match (places[side], &blocks[side]) {
            (Under::Above, _) if slot == 0 => self.root(side, level - 1),
            (_, Some(block)) => Under::Pointer(block.pointer(slot as usize)),
            _ => Under::Pointer(BlockPointer::HOLE),
        };
        let first = (self.from / span(level - 1)).saturating_sub(index * POINTERS);
        for slot in first..POINTERS {
            let children = [child(0, slot), child(1, slot)];
            if self.below(level - 1, index * POINTERS + slot, children, show)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Module {
    /// See [`holdfast_object::ObjectStore::changed_objects`].
    pub(crate) fn diff_objects(
        &self,
        domain: DomainId,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        let _gate = self.gate.read();
        let trees = self.trees_now();
        let table = system_key(table_of(domain));
        let side = |id| -> Result<Side<'_>> {
            let root = ObjectKey { domain, object: ObjectId::ROOT.in_snapshot(id) };
            let (trees, _) = trees.state_of(root).map_err(|_| Error::NoSnapshot(id.0.to_string()))?;
            let record = trees.system.get(&table.object.0).map(|record| Record::clone(record));
            record.map(|record| Side { trees, record }).ok_or(Error::NoObject(table))
        };
        let sides = [side(states.0)?, side(states.1)?];
        let mut changes = Vec::new();
        let first = after.0 + 1;
        let walk = Walk { base: &self.base, key: table, sides: &sides, from: first / RECORDS };
        walk.differences(&mut |page| {
            for id in (page * RECORDS).max(first)..(page + 1) * RECORDS {
                let key = ObjectKey { domain, object: ObjectId(id) };
                let [old, new] = [sides[0].trees.find_now(&self.base, key)?, sides[1].trees.find_now(&self.base, key)?];
                if old != new {
                    if changes.len() == limit {
                        return Ok(ControlFlow::Break(()));
                    }
                    let [before, after] = [old, new].map(|record| record.map(|record| record.attributes));
                    changes.push(ObjectChange { object: key.object, before, after });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(changes)
    }

    /// See [`holdfast_object::ObjectStore::changed_pages`].
    pub(crate) fn diff_pages(
        &self,
        key: ObjectKey,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        let _gate = self.gate.read();
        let trees = self.trees_now();
        let side = |id| -> Result<Side<'_>> {
            let (trees, live) = trees.state_of(ObjectKey { object: key.object.in_snapshot(id), ..key })?;
            let record = trees.find_now(&self.base, live)?;
            let none = || Record::system(SystemKind::ObjectTable, 1);
            Ok(Side { trees, record: record.unwrap_or_else(none) })
        };
        let sides = [side(states.0)?, side(states.1)?];
        debug_assert!(
            sides.iter().all(|side| !matches!(side.record.kind, RecordKind::System(_)) || side.record.root.is_hole())
        );
        let live = ObjectKey { object: key.object.live(), ..key };
        let mut pages = Vec::new();
        let walk = Walk { base: &self.base, key: live, sides: &sides, from: first };
        walk.differences(&mut |page| {
            if pages.len() == limit {
                return Ok(ControlFlow::Break(()));
            }
            pages.push(page);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(pages)
    }
}
