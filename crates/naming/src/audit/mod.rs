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

pub(crate) use index::Counting;

use crate::error::{Error, Result};
use crate::few::{Few, Nothing};
use holdfast_integrity::SetDigest;
use holdfast_object::{
    AttrSet, Attributes, Hold, Kind, NAMES_LISTED_MAX, NamePlace, ObjectCache, ObjectId, Op, PAGE_SIZE, Proved,
    RequestId, link_number, mixed, name_number,
};
use index::IndexChanges;
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

/// A name that a request has put into a directory, or taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    pub(crate) object: ObjectId,
    pub(crate) key: u64,
    pub(crate) is_put: bool,
}

impl Nothing for Called {
    const NOTHING: Called = Called { object: ObjectId::NONE, key: 0, is_put: false };
}

impl Nothing for ObjectId {
    const NOTHING: ObjectId = ObjectId::NONE;
}

impl Nothing for (ObjectId, Called) {
    const NOTHING: (ObjectId, Called) = (ObjectId::NONE, Called::NOTHING);
}

/// What a transaction says beside its operations. Most have one directory, and put in or take out a name.
pub(crate) struct Audit<'a> {
    audits: &'a Audits,
    /// Directories whose pages change.
    directories: Few<ObjectId, 2>,
    /// Of these: pages of the header, by directory; entries, by directory; entries of objects that are no directories, by [`link_number`];
    /// links for entries of directories; names, by [`name_number`].
    pages: SetDigest,
    entries: SetDigest,
    links: SetDigest,
    directory_links: SetDigest,
    names: SetDigest,
    /// With their directories.
    called: Few<(ObjectId, Called), 2>,
    /// Contradictions found and passed over: what attributes said and the pages did not.
    links_wrong: SetDigest,
    directory_links_wrong: SetDigest,
    entries_wrong: SetDigest,
    xattrs_wrong: SetDigest,
    /// Objects that lose their last name and stay, as somebody holds them.
    kept: SetDigest,
    /// Equations of directories that do not hold.
    failed: String,
}

/// What this is about in the attributes of an object, but for the names that it lists beside the first.
#[derive(Clone, Copy)]
struct Said {
    kind: Kind,
    nlink: u32,
    size: u64,
    entries: u64,
    parent: ObjectId,
    name_key: u64,
    xattr: ObjectId,
}

impl Said {
    fn by(attributes: &Attributes) -> Said {
        let Attributes { kind, nlink, size, entries, parent, name_key, xattr, .. } = *attributes;
        Said { kind, nlink, size, entries, parent, name_key, xattr }
    }

    /// As [`AttrSet::apply`].
    fn set(&mut self, set: &AttrSet) {
        fn put<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        put(&mut self.nlink, set.nlink);
        put(&mut self.entries, set.entries);
        put(&mut self.parent, set.parent);
        put(&mut self.name_key, set.name_key);
        put(&mut self.xattr, set.xattr);
    }
}

/// An object that the transaction changes in what this is about.
struct Object<'a> {
    id: ObjectId,
    /// As it is, if it is.
    before: Option<Said>,
    /// As it will be.
    after: Option<Said>,
    /// Its other names as it is; and as it will be, if they are set.
    others_before: Vec<NamePlace>,
    others_set: Option<&'a [NamePlace]>,
}

impl Nothing for Object<'_> {
    const NOTHING: Self =
        Object { id: ObjectId::NONE, before: None, after: None, others_before: Vec::new(), others_set: None };
}

/// Most transactions change two.
type Objects<'a> = Few<Object<'a>, 2>;

fn grown(after: u64, before: u64) -> u64 {
    after.wrapping_sub(before)
}

impl Object<'_> {
    fn kind(&self) -> Kind {
        self.after.as_ref().or(self.before.as_ref()).map_or(Kind::Xattr, |said| said.kind)
    }

    /// How much more there will be of something in its attributes.
    fn more(&self, of: impl Fn(&Said) -> u64) -> u64 {
        let of = |said: &Option<Said>| said.as_ref().map_or(0, &of);
        grown(of(&self.after), of(&self.before))
    }

    /// As [`Attributes::names`].
    fn names<'s>(said: &Option<Said>, others: &'s [NamePlace]) -> impl Iterator<Item = NamePlace> + use<'s> {
        let (first, others) = match said {
            Some(Said { name_key: 0, .. }) => (None, others),
            Some(said) => (Some(NamePlace { directory: said.parent, key: said.name_key }), others),
            None => (None, &[][..]),
        };
        first.into_iter().chain(others.iter().copied())
    }

    fn names_before(&self) -> impl Iterator<Item = NamePlace> {
        Object::names(&self.before, &self.others_before)
    }

    fn names_after(&self) -> impl Iterator<Item = NamePlace> {
        Object::names(&self.after, self.others_set.unwrap_or(&self.others_before))
    }

    /// Whether it lists the same names in the same order as before.
    fn lists_the_same(&self) -> bool {
        let first = |said: &Option<Said>| said.map(|said| (said.parent, said.name_key));
        self.others_set.is_none() && first(&self.before) == first(&self.after)
    }

    /// How the sums over attributes change with it.
    fn proved(&self) -> Proved {
        let by = |said: &Option<Said>, names: &mut dyn Iterator<Item = NamePlace>| match said {
            Some(Said { kind, nlink, entries, .. }) => Proved::of(self.id, *kind, *nlink, *entries, names),
            None => Proved::NOTHING,
        };
        match self.lists_the_same() {
            true => by(&self.after, &mut std::iter::empty()) - by(&self.before, &mut std::iter::empty()),
            false => by(&self.after, &mut self.names_after()) - by(&self.before, &mut self.names_before()),
        }
    }

    /// Names that it lists, more than before; and those with which the list cannot keep up, or that it had wrongly: a list that is full has none
    /// of those that are put, and an object that had more names than a list has does not list some that are taken out.
    fn listed(&self, called: &[(ObjectId, Called)]) -> SetDigest {
        let number = |place| SetDigest::of(name_number(self.id, place));
        let is_same = self.lists_the_same();
        let mut listed = SetDigest::NOTHING;
        if !is_same {
            self.names_after().for_each(|place| listed += number(place));
            self.names_before().for_each(|place| listed -= number(place));
        }
        let is_full = self.names_after().count() == NAMES_LISTED_MAX;
        let had = |place: NamePlace| self.names_before().any(|name| name == place);
        let has = |place: NamePlace| self.names_after().any(|name| name == place);
        for (directory, called) in called.iter().filter(|(_, called)| called.object == self.id) {
            let place = NamePlace { directory: *directory, key: called.key };
            match called.is_put {
                true if is_full && !has(place) => listed += number(place),
                false if !had(place) => listed -= number(place),
                _ => {}
            }
        }
        if !is_same && (is_full || self.after.is_none_or(|after| after.nlink == 0)) {
            let gone = |place: NamePlace| {
                let is_it = |called: &Called| !called.is_put && called.object == self.id && called.key == place.key;
                called.iter().any(|(directory, called)| *directory == place.directory && is_it(called))
            };
            let dropped = self.names_before().filter(|place| !has(*place) && !gone(*place));
            dropped.for_each(|place| listed += number(place));
        }
        listed
    }
}

/// Whether a change of attributes is about what is audited.
fn says_something(set: &AttrSet) -> bool {
    let AttrSet { nlink, entries, parent, xattr, name_key, other_names, .. } = set;
    let [links, parent, xattr] = [nlink.is_some(), parent.is_some(), xattr.is_some()];
    links || entries.is_some() || parent || xattr || name_key.is_some() || other_names.is_some()
}

/// What must be the same on both sides.
struct Equation {
    name: &'static str,
    left: &'static str,
    right: &'static str,
}

/// Left and right.
type Sides = (SetDigest, SetDigest);

/// Of each directory whose pages change: [`IndexChanges::sides`].
const OF_AN_INDEX: [Equation; 6] = [
    Equation { name: "page forms", left: "pages put that are nothing that a directory has", right: "none" },
    Equation {
        name: "keys",
        left: "entries put under a key that is not that of their name, but for as many gone",
        right: "none",
    },
    Equation {
        name: "entries of nodes",
        left: "entries as the heads of nodes count them, more than before",
        right: "entries in the nodes, more than before",
    },
    Equation {
        name: "branches",
        left: "pages that branches name, more than before",
        right: "pages with nodes, more than before",
    },
    Equation {
        name: "free pages",
        left: "pages that the header and free pages name as free, more than before",
        right: "free pages, more than before",
    },
    Equation {
        name: "directory pages",
        left: "pages of the header less free ones and lost ones, more than before",
        right: "pages with nodes, more than before",
    },
];

/// Of a transaction: [`Audit::sides`].
const OF_ALL: [Equation; 8] = [
    Equation {
        name: "directory sizes",
        left: "pages of headers, more than before, by directory",
        right: "pages of the directories' sizes, more than before",
    },
    Equation {
        name: "names",
        left: "names in pages, more than before",
        right: "names that the request put in and took out",
    },
    Equation {
        name: "entries",
        left: "entries in pages, more than before, by directory",
        right: "entries that directories say they have, more than before",
    },
    Equation {
        name: "links",
        left: "entries of objects that are no directories, more than before, with their kinds",
        right: "links that these say they have, more than before, with their kinds",
    },
    Equation {
        name: "links of directories",
        left: "entries of directories, more than before: two links for each, and one for the directory that it is in",
        right: "links that directories say they have, more than before",
    },
    Equation {
        name: "listed names",
        left: "names in pages, more than before",
        right: "names that objects list, more than before, and those for which their lists have no room",
    },
    Equation {
        name: "extended attributes",
        left: "objects that others say have their extended attributes, more than before",
        right: "objects with extended attributes made, less those deleted, with whose they are",
    },
    Equation {
        name: "sessions",
        left: "objects that are deleted, those made without a name, and those that lose their last one and stay",
        right: "of the first those that no session holds, of the others those that one does",
    },
];

impl IndexChanges {
    fn sides(&self) -> [Sides; OF_AN_INDEX.len()] {
        let (count, nothing) = (SetDigest::of_count, SetDigest::NOTHING);
        let free_pages = match self.is_cut {
            false => (self.free_named, self.free),
            true => (self.free_named_put, nothing),
        };
        [
            (count(self.strange), nothing),
            (count(self.keys_wrong.saturating_sub(self.keys_wrong_gone)), nothing),
            (count(self.entries_counted), count(self.entries)),
            (self.branches, self.nodes),
            free_pages,
            (count(grown(self.pages, self.free_count).wrapping_add(self.lost)), count(self.nodes_count)),
        ]
    }
}

/// Names of all equations, in the order in which a failure tells of them.
#[cfg(test)]
fn equations() -> impl Iterator<Item = &'static str> {
    OF_AN_INDEX.iter().chain(&OF_ALL).map(|equation| equation.name)
}

impl<'a> Audit<'a> {
    pub(crate) fn new(audits: &'a Audits) -> Audit<'a> {
        let none = SetDigest::NOTHING;
        Audit {
            audits,
            directories: Few::new(),
            pages: none,
            entries: none,
            links: none,
            directory_links: none,
            names: none,
            called: Few::new(),
            links_wrong: none,
            directory_links_wrong: none,
            entries_wrong: none,
            xattrs_wrong: none,
            kept: none,
            failed: String::new(),
        }
    }

    /// Pages of a directory change, as names were put in and taken out.
    pub(crate) fn index(&mut self, changes: &IndexChanges, called: &[Called]) {
        let directory = changes.directory;
        compare(&OF_AN_INDEX, &changes.sides(), &mut self.failed, || format!(" of directory {directory}"));
        let (id, subdirectories) = (SetDigest::of(directory.0), changes.subdirectories);
        self.directories.push(directory);
        self.pages += id.times(changes.pages);
        self.entries += id.times(changes.entries);
        self.links += changes.links;
        self.directory_links += subdirectories.times(2) + id.times(subdirectories.count());
        self.names += changes.names;
        called.iter().for_each(|called| self.called.push((directory, *called)));
    }

    /// An object that had a name has none any more, and is not deleted, as somebody holds it. Who that is may let go at any moment.
    pub(crate) fn keep(&mut self, id: ObjectId) {
        self.kept += SetDigest::of(kept_number(id));
    }

    /// An object loses its last name and said that it has so many links more, or less; or it does not say so many that it gets.
    pub(crate) fn excuse_links(&mut self, id: ObjectId, kind: Kind, more: i64) {
        match kind {
            Kind::Directory => self.directory_links_wrong -= SetDigest::of(id.0).times(more as u64),
            kind => self.links_wrong -= SetDigest::of(link_number(id, kind as u8)).times(more as u64),
        }
    }

    /// A directory that gets an entry, or loses one, does not say so of these, since it said that it has as many as can be, or none.
    pub(crate) fn excuse_entries(&mut self, id: ObjectId, more: i64) {
        self.entries_wrong -= SetDigest::of(id.0).times(more as u64);
    }

    /// An object goes, and said that it has extended attributes in an object that are not its own.
    pub(crate) fn excuse_xattr(&mut self, owner: ObjectId, holder: ObjectId) {
        self.xattrs_wrong += SetDigest::of(mixed([owner.0, holder.0, 0]));
    }

    /// That all equations hold for what these operations do; then, how the sums over attributes change with them.
    ///
    /// # Errors
    /// [`Error::Audit`]: one does not. The transaction is not to be submitted. Others: attributes cannot be read.
    pub(crate) fn verify(&mut self, cache: &dyn ObjectCache, ops: &[Op], request: Option<RequestId>) -> Result<Proved> {
        let mut objects = Objects::new();
        for op in ops {
            self.gather(cache, op, &mut objects)?;
        }
        if objects.is_empty() && self.directories.is_empty() {
            return Ok(Proved::NOTHING);
        }
        let sides = self.sides(cache, &objects);
        compare(&OF_ALL, &sides, &mut self.failed, String::new);
        if self.failed.is_empty() {
            return Ok(objects.iter().fold(Proved::NOTHING, |sum, object| sum + object.proved()));
        }
        self.audits.failures.fetch_add(1, Ordering::Relaxed);
        Err(Error::Audit { failed: std::mem::take(&mut self.failed), transaction: told(ops, request) })
    }

    /// Whether an operation by itself is about what is audited. Changes of pages are, in directories alone: [`Audit::index`] tells of these.
    pub(crate) fn is_about(op: &Op) -> bool {
        match op {
            Op::Create { .. } | Op::Delete { .. } => true,
            Op::SetAttributes { set, .. } => says_something(set),
            _ => false,
        }
    }

    /// What an operation changes.
    fn gather<'o>(&self, cache: &dyn ObjectCache, op: &'o Op, objects: &mut Objects<'o>) -> Result<()> {
        match op {
            Op::Create { id, attributes } => objects.push(Object {
                id: *id,
                after: Some(Said::by(attributes)),
                others_set: Some(&attributes.other_names),
                ..Object::NOTHING
            }),
            Op::Delete { id } => object(objects, cache, *id)?.after = None,
            Op::SetAttributes { id, set } if says_something(set) => {
                let object = object(objects, cache, *id)?;
                object.after.iter_mut().for_each(|after| after.set(set));
                object.others_set = set.other_names.as_deref().or(object.others_set);
            }
            Op::Write { id, size_min, .. } if self.has_index(*id) => {
                let after = &mut object(objects, cache, *id)?.after;
                after.iter_mut().for_each(|after| after.size = after.size.max(*size_min));
            }
            Op::Truncate { id, size } if self.has_index(*id) => {
                let after = &mut object(objects, cache, *id)?.after;
                after.iter_mut().for_each(|after| after.size = *size);
            }
            _ => {}
        }
        Ok(())
    }

    fn has_index(&self, id: ObjectId) -> bool {
        self.directories.contains(&id)
    }

    /// Of [`OF_ALL`].
    fn sides(&self, cache: &dyn ObjectCache, objects: &[Object<'_>]) -> [Sides; OF_ALL.len()] {
        let nothing = SetDigest::NOTHING;
        let (mut pages, mut entries, mut links, mut directory_links) = (nothing, nothing, nothing, nothing);
        let (mut listed, mut xattrs, mut holders) = (nothing, nothing, nothing);
        let (mut to_be_free, mut free) = (nothing, self.kept);
        for object in objects {
            let (kind, number) = (object.kind(), SetDigest::of(object.id.0));
            let more_links = object.more(|said| said.nlink.into());
            match kind {
                Kind::Directory => {
                    if self.has_index(object.id) {
                        pages += number.times(object.more(|said| said.size / PAGE_SIZE as u64));
                    }
                    entries += number.times(object.more(|said| said.entries));
                    // Nothing names the root.
                    if object.id != ObjectId::ROOT || object.before.is_some() {
                        directory_links += number.times(more_links);
                    }
                }
                Kind::Xattr => {}
                kind => links += SetDigest::of(link_number(object.id, kind as u8)).times(more_links),
            }
            listed += object.listed(&self.called);
            if kind != Kind::Xattr {
                xattrs += holder_of(object.id, &object.after) - holder_of(object.id, &object.before);
                let is_to_be_free = match (&object.before, &object.after) {
                    (Some(_), None) => Some(true),
                    (None, Some(after)) if after.nlink == 0 => Some(false),
                    _ => None,
                };
                if let (Some(before), Some(after)) = (&object.before, &object.after)
                    && before.nlink > 0
                    && after.nlink == 0
                {
                    to_be_free += SetDigest::of(kept_number(object.id));
                }
                if let Some(is_to_be_free) = is_to_be_free {
                    to_be_free += number;
                    if cache.hold(object.id, Hold::Lookup, 0).is_free() == is_to_be_free {
                        free += number;
                    }
                }
            }
            holders += holder(object.id, &object.after) - holder(object.id, &object.before);
        }
        [
            (self.pages, pages),
            (self.names, self.names_called()),
            (self.entries, entries - self.entries_wrong),
            (self.links, links - self.links_wrong),
            (self.directory_links, directory_links - self.directory_links_wrong),
            (self.names, listed),
            (xattrs, holders - self.xattrs_wrong),
            (to_be_free, free),
        ]
    }

    fn names_called(&self) -> SetDigest {
        self.called.iter().fold(SetDigest::NOTHING, |sum, (directory, called)| {
            let place = NamePlace { directory: *directory, key: called.key };
            let number = SetDigest::of(name_number(called.object, place));
            if called.is_put { sum + number } else { sum - number }
        })
    }
}

/// An object that loses its last name and stays is another than the same that is deleted.
fn kept_number(id: ObjectId) -> u64 {
    mixed([id.0, 0, 1])
}

/// One of these objects, to which it is added if it is not there yet.
fn object<'l, 'o>(objects: &'l mut Objects<'o>, cache: &dyn ObjectCache, id: ObjectId) -> Result<&'l mut Object<'o>> {
    let at = match objects.iter().position(|object| object.id == id) {
        Some(at) => at,
        None => {
            let (mut said, mut others_before) = (None, Vec::new());
            cache.look(id, &mut |attributes| {
                said = Some(Said::by(attributes));
                others_before.clone_from(&attributes.other_names);
            })?;
            objects.push(Object { id, before: said, after: said, others_before, others_set: None });
            objects.len() - 1
        }
    };
    Ok(&mut objects[at])
}

/// Which object has the extended attributes of this one, as it says itself.
fn holder_of(id: ObjectId, said: &Option<Said>) -> SetDigest {
    match said {
        Some(said) if said.xattr != ObjectId::NONE => SetDigest::of(mixed([id.0, said.xattr.0, 0])),
        _ => SetDigest::NOTHING,
    }
}

/// Whose extended attributes this object has, as it says itself.
fn holder(id: ObjectId, said: &Option<Said>) -> SetDigest {
    match said {
        Some(said) if said.kind == Kind::Xattr => SetDigest::of(mixed([said.parent.0, id.0, 0])),
        _ => SetDigest::NOTHING,
    }
}

#[cfg(test)]
impl Audit<'_> {
    /// Equations that do not hold between the pages of directories and what was called, whatever objects there are.
    pub(crate) fn wrong_in_pages(&self) -> Vec<&'static str> {
        let failed = OF_AN_INDEX.iter().map(|equation| equation.name);
        let mut wrong: Vec<_> = failed.filter(|name| self.failed.contains(&format!("\"{name}\""))).collect();
        wrong.extend((self.names != self.names_called()).then_some("names"));
        wrong
    }
}

#[inline]
fn compare(equations: &[Equation], sides: &[Sides], failed: &mut String, of: impl Fn() -> String) {
    if sides.iter().any(|(left, right)| left != right) {
        equations.iter().zip(sides).for_each(|(equation, sides)| equation.tell(*sides, failed, &of()));
    }
}

impl Equation {
    /// Tells of it if it does not hold.
    #[cold]
    fn tell(&self, (left, right): Sides, failed: &mut String, of: &str) {
        if left == right {
            return;
        }
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
