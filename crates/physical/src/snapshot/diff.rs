//! What changed between two states of a domain: where two trees have the same pointer, all under it is the same, so only
//! what is under different ones is looked at.

use crate::format::{BlockPointer, POINTERS, RECORDS, Record, RecordKind, SystemKind};
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::objects::{system_key, table_of};
use crate::tree::{Base, Trees, span};
use holdfast_object::{DomainId, Error, ObjectChange, ObjectId, ObjectKey, PageIndex, Result, SnapshotId};

/// One state of an object.
pub(crate) struct Side<'a> {
    pub(crate) trees: &'a Trees,
    pub(crate) record: Record,
}

impl Side<'_> {
    /// The pointers from the root towards a page, down to the first hole.
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
            let block = self.trees.fetch(base, NodeKey::new(key, level, page / span(level)), &pointer)?;
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

/// The first page at or behind `from` whose pointers differ.
fn next_difference(base: &Base, key: ObjectKey, sides: &[Side<'_>; 2], from: PageIndex) -> Result<Option<PageIndex>> {
    let levels = sides[0].record.levels.max(sides[1].record.levels);
    let mut page = from;
    'pages: while page < span(levels) {
        let paths = [sides[0].path(base, key, page)?, sides[1].path(base, key, page)?];
        for level in (0..=levels).rev() {
            let [before, after] = [0, 1].map(|side| sides[side].at(&paths[side], page, level));
            if before.is_some() && before == after {
                page = (page / span(level) + 1) * span(level);
                continue 'pages;
            }
        }
        return Ok(Some(page));
    }
    Ok(None)
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
        let trees = self.trees.read();
        let table = system_key(table_of(domain));
        let side = |id| -> Result<Side<'_>> {
            let root = ObjectKey { domain, object: ObjectId::ROOT.in_snapshot(id) };
            let (trees, _) = trees.state_of(root).map_err(|_| Error::NoSnapshot(id.0.to_string()))?;
            let record = trees.system.get(&table.object.0).cloned();
            record.map(|record| Side { trees, record }).ok_or(Error::NoObject(table))
        };
        let sides = [side(states.0)?, side(states.1)?];
        let mut changes = Vec::new();
        let mut page = (after.0 + 1) / RECORDS;
        while changes.len() < limit
            && let Some(next) = next_difference(&self.base, table, &sides, page)?
        {
            for id in (next * RECORDS).max(after.0 + 1)..(next + 1) * RECORDS {
                let key = ObjectKey { domain, object: ObjectId(id) };
                let [old, new] = [sides[0].trees.find(&self.base, key)?, sides[1].trees.find(&self.base, key)?];
                if old != new && changes.len() < limit {
                    let [before, after] = [old, new].map(|record| record.map(|record| record.attributes));
                    changes.push(ObjectChange { object: key.object, before, after });
                }
            }
            page = next + 1;
        }
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
        let trees = self.trees.read();
        let side = |id| -> Result<Side<'_>> {
            let (trees, live) = trees.state_of(ObjectKey { object: key.object.in_snapshot(id), ..key })?;
            let record = trees.find(&self.base, live)?;
            let none = || Record::system(SystemKind::ObjectTable, 1);
            Ok(Side { trees, record: record.unwrap_or_else(none) })
        };
        let sides = [side(states.0)?, side(states.1)?];
        debug_assert!(
            sides.iter().all(|side| !matches!(side.record.kind, RecordKind::System(_)) || side.record.root.is_hole())
        );
        let live = ObjectKey { object: key.object.live(), ..key };
        let mut pages = Vec::new();
        let mut from = first;
        while pages.len() < limit
            && let Some(page) = next_difference(&self.base, live, &sides, from)?
        {
            pages.push(page);
            from = page + 1;
        }
        Ok(pages)
    }
}
