//! Which objects an equation that does not hold is about, as far as its numbers and the changed blocks tell: whoever looks for the bug begins with the
//! operations on these. It is looked for when an equation does not hold, and not before, so it costs nothing where all is well. Nothing depends on it.

use super::Facts;
use crate::base::Base;
use crate::format::blockptr::{Glance, PointerKind};
use crate::format::record::RecordGlance;
use crate::format::{POINTERS, RECORDS, SystemKind};
use crate::meta_block::NodeKey;
use crate::objects::{system_kind, table_of};
use crate::tree::{Change, Trees, span};
use holdfast_object::{DomainId, ObjectId, ObjectKey};

/// Most blocks of the last recovery point that are read for it.
const READ_MAX: usize = 4096;
/// Bits of a number of *object maps* and *orphans* that are the id; the others are the domain.
const ID_BITS: u32 = 48;

/// The object that a slot of a block is of: in the tree of one, or in an object table; none if it is the store's own.
pub(crate) fn owner(key: NodeKey, slot: usize) -> Option<ObjectKey> {
    let owner = match is_table(key) {
        true => ObjectKey {
            domain: DomainId((key.object / table_of(DomainId(1))) as u16),
            object: ObjectId(key.index * RECORDS + slot as u64),
        },
        false => key.object_key(),
    };
    (owner.domain != DomainId::SYSTEM).then_some(owner)
}

/// Whether a block has records.
fn is_table(key: NodeKey) -> bool {
    let kind = (key.domain == DomainId::SYSTEM.0 && key.level == 0).then(|| system_kind(key.object));
    kind.flatten() == Some(SystemKind::ObjectTable)
}

/// The pointers of a block, or the roots of its records, by slot.
fn pointers(key: NodeKey, bytes: &[u8; 4096]) -> Vec<Glance> {
    match key.level {
        0 if is_table(key) => bytes.as_chunks().0.iter().map(|record| RecordGlance::at(record).root).collect(),
        0 => Vec::new(),
        _ => bytes.as_chunks().0.iter().map(Glance::at).collect(),
    }
}

fn pages_of(level: u8, root: &Glance, blocks: &[(NodeKey, [u8; 4096])]) -> u64 {
    let is_page = |pointer: &Glance| pointer.kind == PointerKind::Data;
    let of_leaves =
        blocks.iter().map(|(key, bytes)| pointers(*key, bytes).iter().filter(|pointer| is_page(pointer)).count());
    if level == 0 { u64::from(is_page(root)) } else { of_leaves.sum::<usize>() as u64 }
}

impl Trees {
    /// Those of an equation by name; `only`: the one number in which its sides differ, if it is one.
    pub(super) fn suspects(&self, base: &Base, name: &str, only: Option<u64>, facts: &Facts<'_>) -> Vec<ObjectKey> {
        let mut suspects = match (name, only) {
            ("blocks" | "references" | "dead lists", Some(block)) => self.that_name(base, block),
            ("objects" | "next generation", _) => self.made_or_deleted(facts),
            ("object maps" | "orphans", Some(number)) => vec![ObjectKey {
                domain: DomainId((number >> ID_BITS) as u16),
                object: ObjectId(number & ((1 << ID_BITS) - 1)),
            }],
            ("pages", _) => self.miscounted(base),
            ("bounds", _) => self.beyond_bounds(),
            ("generations", _) => self.present(|_, record| record.generation >= facts.next.next_generation),
            _ => Vec::new(),
        };
        suspects.sort_unstable();
        suspects.dedup();
        suspects
    }

    /// Changed objects whose record is so.
    fn present(&self, mut is_so: impl FnMut(ObjectKey, &RecordGlance) -> bool) -> Vec<ObjectKey> {
        let is_suspect = |(key, change): (&ObjectKey, &Change)| match change {
            Change::Present(record) => is_so(*key, &RecordGlance::at(&record.bytes().ok()?)).then_some(*key),
            Change::Deleted => None,
        };
        self.changed.iter().filter_map(is_suspect).collect()
    }

    fn made_or_deleted(&self, facts: &Facts<'_>) -> Vec<ObjectKey> {
        let is_deleted = |(key, change): (&ObjectKey, &Change)| matches!(change, Change::Deleted).then_some(*key);
        let mut all = self.present(|_, record| record.generation >= facts.last.next_generation);
        all.extend(self.changed.iter().filter_map(is_deleted));
        all
    }

    /// Whose changed blocks name a block; if none does, whose did in the last recovery point.
    fn that_name(&self, base: &Base, block: u64) -> Vec<ObjectKey> {
        let in_block = |key: NodeKey, bytes: &[u8; 4096]| {
            let named = pointers(key, bytes).into_iter().enumerate();
            let named = named.filter(|(_, pointer)| pointer.address.contains(&block));
            named.filter_map(|(slot, _)| owner(key, slot)).collect::<Vec<_>>()
        };
        let now: Vec<ObjectKey> =
            self.dirty.iter().flat_map(|(key, dirty)| in_block(*key, dirty.block.bytes())).collect();
        if !now.is_empty() {
            return now;
        }
        let stored = self.dirty.keys().take(READ_MAX).filter_map(|key| Some((*key, self.stored(base, *key)?)));
        stored.flat_map(|(key, bytes)| in_block(key, &bytes)).collect()
    }

    /// A changed block as the last recovery point has it.
    fn stored(&self, base: &Base, key: NodeKey) -> Option<[u8; 4096]> {
        let stored = &self.dirty.get(&key)?.stored;
        if stored.is_hole() { Some([0; 4096]) } else { stored.read(&base.disk, key) }
    }

    /// Objects whose records say that they have more or fewer pages than before by another number than their changed blocks have.
    fn miscounted(&self, base: &Base) -> Vec<ObjectKey> {
        let leaves = |object: ObjectKey| {
            self.dirty.keys().copied().filter(move |key| key.object_key() == object && key.level == 1)
        };
        let is_miscounted = |key: ObjectKey, now: &RecordGlance| {
            let (page, slot) = (key.object.0 / RECORDS, (key.object.0 % RECORDS) as usize);
            let table = NodeKey { domain: DomainId::SYSTEM.0, object: table_of(key.domain), level: 0, index: page };
            let before = RecordGlance::at(&self.stored(base, table)?.as_chunks().0[slot]);
            let blocks =
                leaves(key).map(|leaf| Some((leaf, self.stored(base, leaf)?, *self.dirty[&leaf].block.bytes())));
            let blocks = blocks.collect::<Option<Vec<_>>>()?;
            let stored: Vec<_> = blocks.iter().map(|(leaf, stored, _)| (*leaf, *stored)).collect();
            let changed: Vec<_> = blocks.iter().map(|(leaf, _, changed)| (*leaf, *changed)).collect();
            let pages =
                pages_of(now.levels, &now.root, &changed).wrapping_sub(pages_of(before.levels, &before.root, &stored));
            Some(now.blocks.wrapping_sub(before.blocks) != pages)
        };
        let mut left = READ_MAX;
        self.present(|key, record| {
            let is_suspect = left > 0 && is_miscounted(key, record).unwrap_or(false);
            left = left.saturating_sub(1 + leaves(key).count());
            is_suspect
        })
    }

    /// Objects with a pointer at or beyond the bound that their record says.
    fn beyond_bounds(&self) -> Vec<ObjectKey> {
        let is_beyond = |key: NodeKey, bound: u64| {
            let first = bound.saturating_sub(key.index * span(key.level)).div_ceil(span(key.level - 1)).min(POINTERS);
            let block = &self.dirty[&key].block;
            (first..POINTERS).any(|slot| !block.pointer_kind_is_hole(slot as usize))
        };
        self.present(|object, record| {
            let mut blocks = self.dirty.keys().filter(|key| key.level > 0 && key.object_key() == object);
            blocks.any(|key| is_beyond(*key, record.page_bound))
                || record.page_bound == 0 && record.root.kind != PointerKind::Hole
        })
    }
}
