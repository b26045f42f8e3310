//! Reading everything that a recovered store has.

use super::objects::{Object, Objects};
use crate::stack::Stack;
use holdfast_object::{
    Attributes, DomainId, Error, ObjectCache, ObjectId, ObjectKey, ObjectStore, PAGE_SIZE, PageView, Seek, SnapshotId,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pages read at a time.
const PAGES: u64 = 16;

/// The attributes of all objects, as the physical layer lists them.
pub(super) fn list(stack: &Stack) -> Result<Vec<(ObjectId, Attributes)>, String> {
    let objects = stack.module.objects(DomainId::MAIN, ObjectId::NONE, usize::MAX);
    let objects = objects.map_err(|error| format!("objects cannot be listed: {error}"))?;
    Ok(objects.into_iter().map(|(key, attributes)| (key.object, attributes)).collect())
}

/// All objects with all pages, read through the cache.
pub(super) fn observe(stack: &Stack) -> Result<Objects, String> {
    let mut objects = Objects::new();
    for (id, stored) in list(stack)? {
        let attributes = stack.cache.attributes(id).map_err(|error| format!("attributes of {id}: {error}"))?;
        if attributes != stored {
            return Err(format!("attributes of {id}: {stored:?} in the store, {attributes:?} through the cache"));
        }
        let object = read(stack, id, attributes).map_err(|error| format!("contents of {id}: {error}"))?;
        objects.insert(id, Arc::new(object));
    }
    Ok(objects)
}

/// Those of these objects that a snapshot has, with all pages, read through the cache. All ids are without the snapshot.
pub(super) fn snapshot(stack: &Stack, of: SnapshotId, ids: &BTreeSet<ObjectId>) -> Result<Objects, String> {
    let mut objects = Objects::new();
    for &id in ids {
        let kept = id.in_snapshot(of);
        let mut attributes = match stack.cache.attributes(kept) {
            Ok(attributes) => attributes,
            Err(Error::NoObject(_)) => continue,
            Err(error) => return Err(format!("attributes of {id}: {error}")),
        };
        let directories = attributes.other_names.iter_mut().map(|name| &mut name.directory);
        for other in directories.chain([&mut attributes.parent, &mut attributes.xattr]) {
            if ![SnapshotId::LIVE, of].contains(&other.snapshot()) || other.live().in_snapshot(of) != *other {
                return Err(format!("{id} names {other:?}, which is not in the snapshot"));
            }
            *other = other.live();
        }
        let object = read(stack, kept, attributes).map_err(|error| format!("contents of {id}: {error}"))?;
        objects.insert(id, Arc::new(object));
    }
    Ok(objects)
}

fn read(stack: &Stack, id: ObjectId, attributes: Attributes) -> Result<Object, String> {
    let page = PAGE_SIZE as u64;
    let text = |error: holdfast_object::Error| error.to_string();
    let end = attributes.size.div_ceil(page);
    let within = (attributes.size % page) as usize;
    let key = ObjectKey { domain: DomainId::MAIN, object: id };
    // What was allocated there has its room, and no bytes.
    let mut behind = end;
    while let Some(at) = stack.module.seek(key, behind, Seek::Data).map_err(text)? {
        for view in stack.cache.read(id, at, 1).map_err(text)? {
            if let PageView::Data(page) = view
                && page.bytes().iter().any(|&byte| byte != 0)
            {
                return Err(format!("page {at} is stored behind the end ({} bytes)", attributes.size));
            }
        }
        behind = at + 1;
    }
    let mut object = Object::new(attributes);
    let mut index = 0;
    while let Some(from) = stack.module.seek(key, index, Seek::Data).map_err(text)?.filter(|&from| from < end) {
        let count = PAGES.min(end - from);
        for (at, view) in (from..).zip(stack.cache.read(id, from, count as usize).map_err(text)?) {
            let PageView::Data(pinned) = view else { continue };
            let bytes = pinned.verify().map_err(|mismatch| format!("page {at} in memory: {mismatch}"))?;
            if at + 1 == end && within != 0 && bytes[within..].iter().any(|byte| *byte != 0) {
                return Err(format!("page {at} is not zero behind the end of the file at byte {within}"));
            }
            object.put(at, bytes);
        }
        index = from + count;
    }
    Ok(object)
}
