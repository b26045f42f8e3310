//! What a store should hold: a slow and simple model.

use crate::rig::{Page, Rig, key, read};
use holdfast_object::{Arena, AttrSet, DomainId, Kind, ObjectId, ObjectStore, Op, PAGE_SIZE, Seek};
use holdfast_physical::Module;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModelObject {
    pub(crate) kind: Kind,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) pages: BTreeMap<u64, Page>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<u64, ModelObject>,
}

impl Model {
    /// `pages` are the contents of a `Write`'s fragments or an `Adopt`'s placements.
    pub(crate) fn apply(&mut self, op: &Op, pages: &[(u64, Page)]) {
        let id = op.target().0;
        match op {
            Op::Create { attributes, .. } => {
                let object =
                    ModelObject { kind: attributes.kind, nlink: attributes.nlink, size: 0, pages: BTreeMap::new() };
                self.objects.insert(id, object);
            }
            Op::Delete { .. } => {
                self.objects.remove(&id);
            }
            Op::Write { size_min, .. } | Op::Adopt { size_min, .. } => {
                let object = self.objects.get_mut(&id).unwrap();
                object.pages.extend(pages.iter().copied());
                object.size = object.size.max(*size_min);
            }
            Op::Truncate { size, .. } => {
                let object = self.objects.get_mut(&id).unwrap();
                zero(&mut object.pages, *size, u64::MAX / 2);
                object.size = *size;
            }
            Op::Zero { offset, length, .. } => {
                zero(&mut self.objects.get_mut(&id).unwrap().pages, *offset, offset + length);
            }
            Op::SetAttributes { set: AttrSet { nlink, .. }, .. } => {
                let object = self.objects.get_mut(&id).unwrap();
                object.nlink = nlink.unwrap_or(object.nlink);
            }
            Op::Copy { source, source_first, target_first, pages, size_min, .. } => {
                let from = &self.objects[&source.0].pages;
                let copied: BTreeMap<u64, Page> = from
                    .range(*source_first..source_first + pages)
                    .map(|(index, page)| (index - source_first + target_first, *page))
                    .collect();
                let object = self.objects.get_mut(&id).unwrap();
                object.pages.retain(|index, _| !(*target_first..target_first + pages).contains(index));
                object.pages.extend(copied);
                object.size = object.size.max(*size_min);
            }
            Op::Lose { .. } => unreachable!("the random tests lose nothing"),
        }
    }

    /// Compares everything.
    pub(crate) fn compare(&self, rig: &Rig) {
        self.matches(&rig.module, &rig.arena).unwrap();
    }

    /// Whether a module has exactly this; otherwise the first difference.
    pub(crate) fn matches(&self, module: &Module, arena: &Arc<Arena>) -> Result<(), String> {
        let says = |error: holdfast_object::Error| error.to_string();
        let differs = |what: String| Err(what);
        let found = module.objects(DomainId::MAIN, ObjectId(0), usize::MAX).map_err(says)?;
        let ids: Vec<u64> = found.iter().map(|(key, _)| key.object.0).collect();
        if ids != self.objects.keys().copied().collect::<Vec<_>>() || module.status().objects != ids.len() as u64 {
            return differs(format!("objects {ids:?}, counted {}", module.status().objects));
        }
        let orphans: Vec<u64> = module.orphans(DomainId::MAIN).map_err(says)?.iter().map(|id| id.0).collect();
        let is_orphan = |(id, object): (&u64, &ModelObject)| (object.nlink == 0).then_some(*id);
        if orphans != self.objects.iter().filter_map(is_orphan).collect::<Vec<_>>() {
            return differs(format!("orphans {orphans:?}"));
        }
        for ((_, attributes), (id, object)) in found.iter().zip(&self.objects) {
            let (blocks, expected) = (attributes.blocks, object.pages.len() as u64);
            if (attributes.kind, attributes.nlink, attributes.size) != (object.kind, object.nlink, object.size)
                || blocks != expected
            {
                return differs(format!("object {id}: {attributes:?}, expected {expected} blocks, {}", object.size));
            }
            let mut from = 0;
            for (&index, page) in &object.pages {
                if module.seek(key(*id), from, Seek::Data).map_err(says)? != Some(index) {
                    return differs(format!("page {index} of object {id} is not the next one"));
                }
                if read(module, arena, *id, index, 1).map_err(says)?[0].as_ref() != Some(page) {
                    return differs(format!("page {index} of object {id}"));
                }
                from = index + 1;
            }
            if let Some(index) = module.seek(key(*id), from, Seek::Data).map_err(says)? {
                return differs(format!("page {index} of object {id} should be a hole"));
            }
        }
        Ok(())
    }
}

fn zero(pages: &mut BTreeMap<u64, Page>, start: u64, end: u64) {
    let (first, last) = (start.div_ceil(PAGE), end / PAGE);
    pages.retain(|index, _| !(first..last).contains(index));
    for (index, page) in pages.iter_mut() {
        let (from, to) = (index * PAGE, (index + 1) * PAGE);
        if start < to && end > from {
            page[(start.max(from) - from) as usize..(end.min(to) - from) as usize].fill(0);
        }
    }
}
