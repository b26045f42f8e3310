//! Objects as the oracle knows them: a plain second implementation of what the operations of a transaction mean.
//!
//! Invariant: pages that are zero throughout are not held, so that a hole and a zeroed page are the same.

use holdfast_integrity::crc64;
use holdfast_object::{Attributes, Class, Kind, NamePlace, ObjectId, Op, PAGE_SIZE, PageIndex, PolicyId, Timestamp};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

/// One page with its checksum.
pub(super) struct Page {
    bytes: [u8; PAGE_SIZE],
    sum: u64,
}

/// One object at one moment.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) attributes: Attributes,
    pages: BTreeMap<PageIndex, Arc<Page>>,
}

/// All objects at one moment.
pub(super) type Objects = BTreeMap<ObjectId, Arc<Object>>;

/// What of an object belongs to the name space and not to its own contents. Of a regular file the rest is zero here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct NamesPart {
    kind: u8,
    generation: u64,
    pub(super) nlink: u32,
    parent: ObjectId,
    names: Vec<NamePlace>,
    whole: Option<OwnPart>,
    ctime: Timestamp,
}

/// What of an object follows a prefix of its own changes: all but link count, names and time of attribute change. The
/// object that holds a regular file's extended attributes is a part of the file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct OwnPart {
    mode: u16,
    uid: u32,
    gid: u32,
    rdev: u32,
    size: u64,
    entries: u64,
    atime: Timestamp,
    mtime: Timestamp,
    btime: Timestamp,
    xattr: ObjectId,
    policy: PolicyId,
    flags: u32,
    /// Over the pages that are not zero.
    content: u64,
    /// Size and content of the object with the extended attributes.
    xattrs: Option<(u64, u64)>,
}

/// One operation with its bytes, as it was submitted.
pub(super) enum Change {
    /// Page, first byte in it, bytes.
    Write { id: ObjectId, pieces: Vec<(PageIndex, usize, Vec<u8>)>, size_min: u64 },
    /// Any other.
    Other(Op),
}

impl Object {
    pub(super) fn new(attributes: Attributes) -> Object {
        Object { attributes, pages: BTreeMap::new() }
    }

    /// Puts a page in place.
    pub(super) fn put(&mut self, index: PageIndex, bytes: &[u8; PAGE_SIZE]) {
        if *bytes == [0; PAGE_SIZE] {
            self.pages.remove(&index);
        } else {
            self.pages.insert(index, Arc::new(Page { bytes: *bytes, sum: crc64(bytes) }));
        }
    }

    fn page(&self, index: PageIndex) -> [u8; PAGE_SIZE] {
        self.pages.get(&index).map_or([0; PAGE_SIZE], |page| page.bytes)
    }

    fn content(&self) -> u64 {
        digest(&self.pages.iter().map(|(index, page)| (*index, page.sum)).collect::<Vec<_>>())
    }

    /// The pages in which two objects differ.
    pub(super) fn pages_unlike(&self, other: &Object) -> Vec<PageIndex> {
        let sum = |object: &Object, index| object.pages.get(&index).map(|page| page.sum);
        let mut all: Vec<PageIndex> = self.pages.keys().chain(other.pages.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|&index| sum(self, index) != sum(other, index));
        all
    }

    fn zero(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let touched: Vec<PageIndex> =
            self.pages.range(from / PAGE..to.div_ceil(PAGE)).map(|(index, _)| *index).collect();
        for index in touched {
            let mut bytes = self.page(index);
            let start = from.saturating_sub(index * PAGE).min(PAGE) as usize;
            let end = to.saturating_sub(index * PAGE).min(PAGE) as usize;
            bytes[start..end].fill(0);
            self.put(index, &bytes);
        }
    }

    /// The part that belongs to the name space; none for the extended attributes of a regular file.
    pub(super) fn names_part(&self) -> Option<NamesPart> {
        let attributes = &self.attributes;
        let own = attributes.class == Class::Own;
        if own && attributes.kind == Kind::Xattr {
            return None;
        }
        Some(NamesPart {
            kind: attributes.kind as u8,
            generation: attributes.generation,
            nlink: attributes.nlink,
            parent: attributes.parent,
            names: attributes.names().collect(),
            whole: (!own).then(|| self.own_part(None)),
            ctime: if own { Timestamp::default() } else { attributes.ctime },
        })
    }

    /// The part that follows the object's own changes.
    pub(super) fn own_part(&self, holder: Option<&Object>) -> OwnPart {
        let attributes = &self.attributes;
        OwnPart {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            size: attributes.size,
            entries: attributes.entries,
            atime: attributes.atime,
            mtime: attributes.mtime,
            btime: attributes.btime,
            xattr: attributes.xattr,
            policy: attributes.policy,
            flags: attributes.flags,
            content: self.content(),
            xattrs: holder.map(|holder| (holder.attributes.size, holder.content())),
        }
    }

    /// Whether the object's own changes follow a prefix of their own.
    pub(super) fn is_own(&self) -> bool {
        self.attributes.class == Class::Own && self.attributes.kind != Kind::Xattr
    }
}

/// The own part of an object among others.
pub(super) fn own_part(objects: &Objects, object: &Object) -> OwnPart {
    object.own_part(objects.get(&object.attributes.xattr).map(|holder| &**holder))
}

/// A digest that is the same in every run.
pub(super) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Does one operation. What a transaction that the cache admitted asks for is always possible.
pub(super) fn apply(objects: &mut Objects, change: &Change) {
    match change {
        Change::Write { id, pieces, size_min } => {
            let object = change_object(objects, *id);
            for (index, start, piece) in pieces {
                let mut bytes = object.page(*index);
                bytes[*start..*start + piece.len()].copy_from_slice(piece);
                object.put(*index, &bytes);
            }
            object.attributes.size = object.attributes.size.max(*size_min);
        }
        Change::Other(op) => apply_plain(objects, op),
    }
}

fn apply_plain(objects: &mut Objects, op: &Op) {
    match op {
        Op::Create { id, attributes } => {
            let before = objects.insert(*id, Arc::new(Object::new(attributes.clone())));
            assert!(before.is_none(), "{id} was created while it exists");
        }
        Op::Delete { id } => drop(objects.remove(id)),
        Op::Truncate { id, size } => {
            let object = change_object(objects, *id);
            object.zero(*size, u64::MAX);
            object.attributes.size = *size;
        }
        Op::Zero { id, offset, length } => change_object(objects, *id).zero(*offset, offset + length),
        Op::SetAttributes { id, set } => set.apply(&mut change_object(objects, *id).attributes),
        Op::Copy { source, source_first, target, target_first, pages, size_min } => {
            let copied: Vec<_> = (0..*pages).map(|page| objects[source].page(source_first + page)).collect();
            let target = change_object(objects, *target);
            for (index, bytes) in (*target_first..).zip(&copied) {
                target.put(index, bytes);
            }
            target.attributes.size = target.attributes.size.max(*size_min);
        }
        Op::Write { .. } | Op::Adopt { .. } | Op::Lose { .. } => {
            unreachable!("not in a transaction's plain operations")
        }
    }
}

fn change_object(objects: &mut Objects, id: ObjectId) -> &mut Object {
    let object = objects.get_mut(&id).unwrap_or_else(|| panic!("{id} is changed and does not exist"));
    Arc::make_mut(object)
}
