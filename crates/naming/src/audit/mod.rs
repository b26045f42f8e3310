//! The audit of a transaction: before it is submitted, what it changes in the pages of directories must fit what it changes in the
//! attributes of objects. As a recovery point is audited by the store below (`docs/audit.md` has the equations of both), but each time, so that
//! nothing of what does not fit happens.
//!
//! Invariants:
//! - what is *in the pages* is counted from their bytes, stored against new ([`IndexChanges`]), by code that makes none of them;
//! - attributes are those that the cache has and the operations as submitted, never what the request believes;
//! - what a store says wrongly from before does not stand in the way: changes are compared, not states. Where a request goes on over
//!   a contradiction that it finds, it says so ([`Audit::excuse_links`] and the like).

mod index;
#[cfg(test)]
pub(crate) mod plant;
#[cfg(test)]
mod tests;

pub(crate) use index::{Called, IndexChanges};

use crate::error::{Error, Result};
use holdfast_integrity::SetDigest;
use holdfast_object::{
    AttrSet, Attributes, Hold, Kind, NAMES_LISTED_MAX, NamePlace, ObjectCache, ObjectId, Op, PAGE_SIZE, RequestId,
};
use index::{link_number, mixed, name_number};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is kept of the audits of a name space.
#[derive(Debug, Default)]
pub(crate) struct Audits {
    failures: AtomicU64,
}

impl Audits {
    /// How many transactions did not fit together, and were refused.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// What a transaction says beside its operations.
pub(crate) struct Audit<'a> {
    audits: &'a Audits,
    indexes: Vec<IndexChanges>,
    /// Contradictions found and passed over: what attributes said and the pages did not.
    links_wrong: SetDigest,
    directory_links_wrong: SetDigest,
    entries_wrong: SetDigest,
    xattrs_wrong: SetDigest,
}

/// An object that the transaction changes in what this is about.
struct Object {
    id: ObjectId,
    /// As it is, if it is.
    before: Option<Attributes>,
    /// As it will be.
    after: Option<Attributes>,
}

fn names_of(attributes: Option<&Attributes>) -> impl Iterator<Item = NamePlace> {
    attributes.into_iter().flat_map(Attributes::names)
}

fn has(attributes: Option<&Attributes>, place: NamePlace) -> bool {
    names_of(attributes).any(|name| name == place)
}

fn grown(after: u64, before: u64) -> u64 {
    after.wrapping_sub(before)
}

impl Object {
    fn kind(&self) -> Kind {
        self.after.as_ref().or(self.before.as_ref()).map_or(Kind::Xattr, |attributes| attributes.kind)
    }

    /// How much more there will be of something in its attributes.
    fn more(&self, of: impl Fn(&Attributes) -> u64) -> u64 {
        let of = |attributes: &Option<Attributes>| attributes.as_ref().map_or(0, &of);
        grown(of(&self.after), of(&self.before))
    }

    /// Names that it lists, more than before; and those with which the list cannot keep up, or that it had wrongly: a list that is full has none
    /// of those that are put, and an object that had more names than a list has does not list some that are taken out.
    fn listed<'a>(&self, called: impl Iterator<Item = (NamePlace, &'a Called)> + Clone) -> SetDigest {
        let (before, after) = (self.before.as_ref(), self.after.as_ref());
        let number = |place| SetDigest::of(name_number(self.id, place));
        let sum = |attributes| names_of(attributes).fold(SetDigest::NOTHING, |sum, place| sum + number(place));
        let mut listed = sum(after) - sum(before);
        let is_full = names_of(after).count() == NAMES_LISTED_MAX;
        let called = called.filter(|(_, called)| called.object == self.id);
        for (place, called) in called.clone() {
            match called.is_put {
                true if is_full && !has(after, place) => listed += number(place),
                false if !has(before, place) => listed -= number(place),
                _ => {}
            }
        }
        if is_full || after.is_none_or(|after| after.nlink == 0) {
            let dropped = names_of(before).filter(|place| !has(after, *place));
            let stays = |place: &NamePlace| !called.clone().any(|(gone, called)| !called.is_put && gone == *place);
            dropped.filter(stays).for_each(|place| listed += number(place));
        }
        listed
    }
}

/// What an equation is about.
struct Facts<'a> {
    cache: &'a dyn ObjectCache,
    audit: &'a Audit<'a>,
    objects: Vec<Object>,
}

impl<'a> Facts<'a> {
    fn gather(cache: &'a dyn ObjectCache, audit: &'a Audit<'a>, ops: &[Op]) -> Result<Facts<'a>> {
        let mut facts = Facts { cache, audit, objects: Vec::new() };
        for op in ops {
            match op {
                Op::Create { id, attributes } => {
                    facts.objects.push(Object { id: *id, before: None, after: Some(attributes.clone()) });
                }
                Op::Delete { id } => facts.object(*id)?.after = None,
                Op::SetAttributes { id, set } if says_something(set) => {
                    if let Some(after) = &mut facts.object(*id)?.after {
                        set.apply(after);
                    }
                }
                Op::Write { id, size_min, .. } if facts.has_index(*id) => {
                    if let Some(after) = &mut facts.object(*id)?.after {
                        after.size = after.size.max(*size_min);
                    }
                }
                Op::Truncate { id, size } if facts.has_index(*id) => {
                    if let Some(after) = &mut facts.object(*id)?.after {
                        after.size = *size;
                    }
                }
                _ => {}
            }
        }
        Ok(facts)
    }

    fn has_index(&self, id: ObjectId) -> bool {
        self.audit.indexes.iter().any(|index| index.directory == id)
    }

    fn object(&mut self, id: ObjectId) -> Result<&mut Object> {
        let at = match self.objects.iter().position(|object| object.id == id) {
            Some(at) => at,
            None => {
                let before = Some(self.cache.attributes(id)?);
                self.objects.push(Object { id, after: before.clone(), before });
                self.objects.len() - 1
            }
        };
        Ok(&mut self.objects[at])
    }

    fn in_pages(&self, of: impl Fn(&IndexChanges) -> SetDigest) -> SetDigest {
        self.audit.indexes.iter().fold(SetDigest::NOTHING, |sum, index| sum + of(index))
    }

    fn in_objects(&self, of: impl Fn(&Object) -> SetDigest) -> SetDigest {
        self.objects.iter().fold(SetDigest::NOTHING, |sum, object| sum + of(object))
    }

    fn named(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(|object| object.kind() != Kind::Xattr)
    }

    fn called(&self) -> impl Iterator<Item = (NamePlace, &Called)> + Clone {
        let of = |index: &'a IndexChanges| {
            let directory = index.directory;
            index.called.iter().map(move |called| (NamePlace { directory, key: called.key }, called))
        };
        self.audit.indexes.iter().flat_map(of)
    }
}

/// Whether a change of attributes is about what is audited.
fn says_something(set: &AttrSet) -> bool {
    let AttrSet { nlink, entries, parent, xattr, name_key, other_names, .. } = set;
    let [links, parent, xattr] = [nlink.is_some(), parent.is_some(), xattr.is_some()];
    links || entries.is_some() || parent || xattr || name_key.is_some() || other_names.is_some()
}

/// What must be the same on both sides.
struct Equation<F: ?Sized> {
    name: &'static str,
    left: &'static str,
    right: &'static str,
    sides: fn(&F, &Facts<'_>) -> (SetDigest, SetDigest),
}

fn count(count: u64) -> SetDigest {
    SetDigest::of_count(count)
}

/// Of each directory whose pages change.
const OF_AN_INDEX: [Equation<IndexChanges>; 7] = [
    Equation {
        name: "page forms",
        left: "pages put that are nothing that a directory has",
        right: "none",
        sides: |index, _| (count(index.strange), SetDigest::NOTHING),
    },
    Equation {
        name: "keys",
        left: "entries put under a key that is not that of their name, but for as many gone",
        right: "none",
        sides: |index, _| (count(index.keys_wrong.saturating_sub(index.keys_wrong_gone)), SetDigest::NOTHING),
    },
    Equation {
        name: "entries of nodes",
        left: "entries as the heads of nodes count them, more than before",
        right: "entries in the nodes, more than before",
        sides: |index, _| (count(index.entries_counted), count(index.entries)),
    },
    Equation {
        name: "branches",
        left: "pages that branches name, more than before",
        right: "pages with nodes, more than before",
        sides: |index, _| (index.branches, index.nodes),
    },
    Equation {
        name: "free pages",
        left: "pages that the header and free pages name as free, more than before",
        right: "free pages, more than before",
        sides: |index, _| match index.is_cut {
            false => (index.free_named, index.free),
            true => (index.free_named_put, SetDigest::NOTHING),
        },
    },
    Equation {
        name: "directory pages",
        left: "pages of the header less free ones, more than before",
        right: "pages with nodes, more than before",
        sides: |index, _| (count(grown(index.pages, index.free_count)), count(index.nodes_count)),
    },
    Equation {
        name: "directory sizes",
        left: "pages of the header, more than before",
        right: "pages of the directory's size, more than before",
        sides: |index, facts| {
            let object = facts.objects.iter().find(|object| object.id == index.directory);
            let more = object.map_or(0, |object| object.more(|attributes| attributes.size / PAGE_SIZE as u64));
            (count(index.pages), count(more))
        },
    },
];

/// Of a transaction.
const OF_ALL: [Equation<()>; 7] = [
    Equation {
        name: "names",
        left: "names in pages, more than before",
        right: "names that the request put in and took out",
        sides: |_, facts| {
            let number = |(place, called): (NamePlace, &Called)| {
                let number = SetDigest::of(name_number(called.object, place));
                if called.is_put { number } else { -number }
            };
            let called = facts.called().fold(SetDigest::NOTHING, |sum, called| sum + number(called));
            (facts.in_pages(|index| index.names), called)
        },
    },
    Equation {
        name: "entries",
        left: "entries in pages, more than before, by directory",
        right: "entries that directories say they have, more than before",
        sides: |_, facts| {
            let in_pages = facts.in_pages(|index| SetDigest::of(index.directory.0).times(index.entries));
            let said = facts.in_objects(|object| match object.kind() {
                Kind::Directory => SetDigest::of(object.id.0).times(object.more(|attributes| attributes.entries)),
                _ => SetDigest::NOTHING,
            });
            (in_pages, said - facts.audit.entries_wrong)
        },
    },
    Equation {
        name: "links",
        left: "entries of objects that are no directories, more than before, with their kinds",
        right: "links that these say they have, more than before, with their kinds",
        sides: |_, facts| {
            let said = facts.in_objects(|object| match object.kind() {
                Kind::Directory | Kind::Xattr => SetDigest::NOTHING,
                kind => SetDigest::of(link_number(object.id, kind as u8)).times(object.more(links)),
            });
            (facts.in_pages(|index| index.links), said - facts.audit.links_wrong)
        },
    },
    Equation {
        name: "links of directories",
        left: "entries of directories, more than before: two links for each, and one for the directory that it is in",
        right: "links that directories say they have, more than before",
        sides: |_, facts| {
            let in_pages = facts.in_pages(|index| {
                let above = SetDigest::of(index.directory.0).times(index.subdirectories.count());
                index.subdirectories.times(2) + above
            });
            let said = facts.in_objects(|object| match object.kind() {
                // Nothing names the root.
                Kind::Directory if object.id == ObjectId::ROOT && object.before.is_none() => SetDigest::NOTHING,
                Kind::Directory => SetDigest::of(object.id.0).times(object.more(links)),
                _ => SetDigest::NOTHING,
            });
            (in_pages, said - facts.audit.directory_links_wrong)
        },
    },
    Equation {
        name: "listed names",
        left: "names in pages, more than before",
        right: "names that objects list, more than before, and those for which their lists have no room",
        sides: |_, facts| {
            (facts.in_pages(|index| index.names), facts.in_objects(|object| object.listed(facts.called())))
        },
    },
    Equation {
        name: "extended attributes",
        left: "objects that others say have their extended attributes, more than before",
        right: "objects with extended attributes made, less those deleted, with whose they are",
        sides: |_, facts| {
            let pair = |owner: ObjectId, holder: ObjectId| SetDigest::of(mixed([owner.0, holder.0, 0]));
            let said = |id: ObjectId, attributes: &Option<Attributes>| {
                let holder = attributes.as_ref().map(|attributes| attributes.xattr);
                holder.filter(|holder| *holder != ObjectId::NONE).map_or(SetDigest::NOTHING, |xattr| pair(id, xattr))
            };
            let made = |id: ObjectId, attributes: &Option<Attributes>| {
                let holder = attributes.as_ref().filter(|attributes| attributes.kind == Kind::Xattr);
                holder.map_or(SetDigest::NOTHING, |holder| pair(holder.parent, id))
            };
            let named = facts.named();
            let said = named.fold(SetDigest::NOTHING, |sum, Object { id, before, after }| {
                sum + said(*id, after) - said(*id, before)
            });
            let made = facts.in_objects(|Object { id, before, after }| made(*id, after) - made(*id, before));
            (said, made - facts.audit.xattrs_wrong)
        },
    },
    Equation {
        name: "sessions",
        left: "objects that are deleted, and those made without a name",
        right: "of the former those that no session holds, of the latter those that one does",
        sides: |_, facts| {
            let mut sides = (SetDigest::NOTHING, SetDigest::NOTHING);
            for object in facts.named() {
                let is_to_be_free = match (&object.before, &object.after) {
                    (Some(_), None) => true,
                    (None, Some(after)) if after.nlink == 0 => false,
                    _ => continue,
                };
                sides.0 += SetDigest::of(object.id.0);
                if facts.cache.hold(object.id, Hold::Lookup, 0).is_free() == is_to_be_free {
                    sides.1 += SetDigest::of(object.id.0);
                }
            }
            sides
        },
    },
];

fn links(attributes: &Attributes) -> u64 {
    attributes.nlink.into()
}

/// Names of all equations, in the order in which a failure tells of them.
#[cfg(test)]
fn equations() -> impl Iterator<Item = &'static str> {
    OF_AN_INDEX.iter().map(|equation| equation.name).chain(OF_ALL.iter().map(|equation| equation.name))
}

impl<'a> Audit<'a> {
    pub(crate) fn new(audits: &'a Audits) -> Audit<'a> {
        let none = SetDigest::NOTHING;
        let (links_wrong, directory_links_wrong, entries_wrong, xattrs_wrong) = (none, none, none, none);
        Audit { audits, indexes: Vec::new(), links_wrong, directory_links_wrong, entries_wrong, xattrs_wrong }
    }

    /// Pages of a directory change.
    pub(crate) fn index(&mut self, changes: IndexChanges) {
        self.indexes.push(changes);
    }

    /// An object loses its last name, and said that it has so many links more, or less.
    pub(crate) fn excuse_links(&mut self, id: ObjectId, kind: Kind, more: i64) {
        match kind {
            Kind::Directory => self.directory_links_wrong -= SetDigest::of(id.0).times(more as u64),
            kind => self.links_wrong -= SetDigest::of(link_number(id, kind as u8)).times(more as u64),
        }
    }

    /// A directory loses an entry, and said that it has none.
    pub(crate) fn excuse_entries(&mut self, id: ObjectId) {
        self.entries_wrong += SetDigest::of(id.0);
    }

    /// An object goes, and said that it has extended attributes in an object that are not its own.
    pub(crate) fn excuse_xattr(&mut self, owner: ObjectId, holder: ObjectId) {
        self.xattrs_wrong += SetDigest::of(mixed([owner.0, holder.0, 0]));
    }

    /// Whether all equations hold for what these operations do.
    ///
    /// # Errors
    /// [`Error::Audit`]: one does not. The transaction is not to be submitted. Others: attributes cannot be read.
    pub(crate) fn verify(&self, cache: &dyn ObjectCache, ops: &[Op], request: Option<RequestId>) -> Result<()> {
        let facts = Facts::gather(cache, self, ops)?;
        if facts.objects.is_empty() && self.indexes.is_empty() {
            return Ok(());
        }
        let mut failed = String::new();
        for index in &self.indexes {
            for equation in &OF_AN_INDEX {
                let sides = (equation.sides)(index, &facts);
                equation.compare(sides, &mut failed, || format!(" of directory {}", index.directory));
            }
        }
        for equation in &OF_ALL {
            equation.compare((equation.sides)(&(), &facts), &mut failed, String::new);
        }
        if failed.is_empty() {
            return Ok(());
        }
        self.audits.failures.fetch_add(1, Ordering::Relaxed);
        Err(Error::Audit { failed, transaction: told(ops, request) })
    }
}

#[cfg(test)]
impl Audit<'_> {
    /// Equations that do not hold between the pages of directories and what was called, whatever objects there are.
    pub(crate) fn wrong_in_pages(&self, cache: &dyn ObjectCache) -> Vec<&'static str> {
        let facts = Facts { cache, audit: self, objects: Vec::new() };
        let mut wrong = Vec::new();
        for index in &self.indexes {
            let in_pages = OF_AN_INDEX.iter().filter(|equation| equation.name != "directory sizes");
            let fails = |equation: &&Equation<IndexChanges>| {
                let (left, right) = (equation.sides)(index, &facts);
                left != right
            };
            wrong.extend(in_pages.filter(fails).map(|equation| equation.name));
        }
        let (left, right) = (OF_ALL[0].sides)(&(), &facts);
        wrong.extend((left != right).then_some(OF_ALL[0].name));
        wrong
    }
}

impl<F> Equation<F> {
    #[inline]
    fn compare(&self, (left, right): (SetDigest, SetDigest), failed: &mut String, of: impl Fn() -> String) {
        if left != right {
            self.fails(left, right, failed, &of());
        }
    }

    #[cold]
    fn fails(&self, left: SetDigest, right: SetDigest, failed: &mut String, of: &str) {
        let before = if failed.is_empty() { "" } else { " | " };
        let (name, told) = (self.name, (self.left, self.right));
        // Writing to a string does not fail.
        let _ = write!(failed, "{before}\"{name}\"{of}: {}, is {left}; {}, is {right}", told.0, told.1);
        // None is of a number that counts alone.
        if let Some(number) = (left - right).only().filter(|number| *number != 0) {
            // Of a number with a kind, the lower part is the object.
            let _ = write!(failed, "; they differ in {} only", number & ObjectId::MAX.0);
        }
    }
}

/// Most operations that are told.
const TOLD_MAX: usize = 12;

/// A transaction in words.
fn told(ops: &[Op], request: Option<RequestId>) -> String {
    let mut words = match request {
        Some(RequestId { client, unique }) => format!("request {unique} of client {client}: "),
        None => String::new(),
    };
    for (at, op) in ops.iter().take(TOLD_MAX).enumerate() {
        let id = op.target();
        let separator = if at == 0 { "" } else { ", " };
        let _ = match op {
            Op::Create { attributes: Attributes { kind, nlink, .. }, .. } => {
                write!(words, "{separator}create {id} ({kind:?}, {nlink} links)")
            }
            Op::Delete { .. } => write!(words, "{separator}delete {id}"),
            Op::Write { fragments, .. } => write!(words, "{separator}write {} pages of {id}", fragments.len()),
            Op::Truncate { size, .. } => write!(words, "{separator}cut {id} to {size} bytes"),
            Op::SetAttributes { set: AttrSet { nlink, entries, .. }, .. } => match (nlink, entries) {
                (None, None) => write!(words, "{separator}set attributes of {id}"),
                _ => write!(words, "{separator}set of {id}: links {nlink:?}, entries {entries:?}"),
            },
            _ => write!(words, "{separator}change {id}"),
        };
    }
    if ops.len() > TOLD_MAX {
        words.push_str(", …");
    }
    words
}
