//! What changed in the name space between two states: from the objects that differ, and the entries in the pages that differ of
//! the directories among them.
//!
//! The live tree changes meanwhile: what is known of a directory from the last recovery point may be true no longer. So there each directory
//! is read in one moment, under its lock, and that one is gone, or met again where it was moved to, is no damage unless the entries that
//! name it say the same in one moment. In a snapshot it is.

use super::Namespace;
use crate::directory::LeafRecord;
use crate::error::{Error, Result};
use crate::locks::Use;
use holdfast_object::{
    self as object, Attributes, Kind, NamePlace, ObjectChange, ObjectId, PageIndex, SnapshotId, Snapshots,
};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

/// Objects asked for at a time.
const STEP: usize = 1024;

/// A change of a path, from the root without a leading `/`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PathChange {
    /// Only the first state has it.
    Removed(Vec<u8>),
    /// Only the second state has it.
    Added(Vec<u8>),
    /// Contents differ: bytes, or the entries of a directory. Attributes may, too.
    Modified(Vec<u8>),
    /// Only attributes differ: owner, mode, times, extended attributes, access control lists. Times of last access do not count.
    Attributes(Vec<u8>),
    /// The object has another name in the second state.
    Renamed(Vec<u8>, Vec<u8>),
}

impl PathChange {
    /// By path, and for one path what went before what came: the order in which changes are told.
    fn key(&self) -> (&[u8], u8, &[u8]) {
        match self {
            PathChange::Removed(path) => (path, 0, b""),
            PathChange::Renamed(old, new) => (old, 1, new),
            PathChange::Added(path) => (path, 2, b""),
            PathChange::Modified(path) => (path, 3, b""),
            PathChange::Attributes(path) => (path, 4, b""),
        }
    }
}

impl Ord for PathChange {
    fn cmp(&self, other: &PathChange) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for PathChange {
    fn partial_cmp(&self, other: &PathChange) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By name: what has it, and the key of the entry.
type Entries = BTreeMap<Vec<u8>, (ObjectId, u64)>;

/// A name that only one of two states has.
struct Name {
    object: ObjectId,
    place: NamePlace,
    name: Vec<u8>,
}

/// What differs between two states, before it has paths.
#[derive(Default)]
struct Difference {
    /// Names that only the first state has, and those that only the second one has.
    gone: Vec<Name>,
    come: Vec<Name>,
    /// Objects in both states whose bytes or entries differ.
    modified: BTreeSet<ObjectId>,
    /// Ids that both states have, of different objects.
    reused: BTreeSet<ObjectId>,
}

impl Namespace {
    /// What changed from one snapshot to another one, or to the recovery point of now ([`SnapshotId::LIVE`]); by path. Takes time
    /// in proportion to what changed: trees are followed where they differ, and paths go up by the names that objects list.
    /// (What had more names than it can list, and lost all of those that were, is looked for everywhere.) That a file got or lost
    /// a name is no change of the file; what else changed of one with several names is shown by one of them, which both states
    /// have or which one of the first state became.
    pub fn diff(&self, from: SnapshotId, to: SnapshotId) -> Result<Vec<PathChange>> {
        let Some(source) = &self.snapshots else { return Err(Error::NotSupported("snapshots of this name space")) };
        let mut changes: Vec<ObjectChange> = Vec::new();
        loop {
            let after = changes.last().map_or(ObjectId::NONE, |change| change.object);
            let more = source.changed_objects((from, to), after, STEP)?;
            if more.is_empty() {
                break;
            }
            changes.extend(more);
        }
        let Difference { gone, come, modified, reused } = self.difference(&**source, &changes, (from, to))?;
        let mut paths = [Paths::new(self, from), Paths::new(self, to)];
        let mut found = BTreeSet::new();
        // An object that loses a name and gets one has been renamed, unless its id is another object's now.
        let renamed: BTreeSet<ObjectId> = gone.iter().chain(&come).map(|name| name.object).collect();
        let mut named_anew: BTreeMap<ObjectId, VecDeque<(NamePlace, Vec<u8>)>> = BTreeMap::new();
        for Name { object, place, name } in come {
            let path = paths[1].entry(place.directory, &name)?;
            named_anew.entry(object).or_default().push_back((place, path));
        }
        for Name { object, place, name } in gone {
            let old = paths[0].entry(place.directory, &name)?;
            let new = named_anew.get_mut(&object).filter(|_| !reused.contains(&object)).and_then(VecDeque::pop_front);
            found.insert(match new {
                Some((_, new)) => PathChange::Renamed(old, new),
                None => PathChange::Removed(old),
            });
        }
        // Names that stand for no change of what they name.
        let added: BTreeMap<NamePlace, Vec<u8>> = named_anew.into_values().flatten().collect();
        // Extended attributes are an object of their own, whose parent is what has them.
        let states = changes.iter().flat_map(|change| [&change.before, &change.after]).flatten();
        let xattrs = states.filter(|attributes| attributes.kind == Kind::Xattr);
        let owners: BTreeSet<ObjectId> = xattrs.map(|attributes| attributes.parent.live()).collect();
        let mut marks: BTreeMap<ObjectId, fn(Vec<u8>) -> PathChange> = BTreeMap::new();
        // By where their names are, so that each directory is gone through once; and those to look for everywhere.
        let (mut named, mut lost) = (BTreeMap::new(), BTreeSet::new());
        for change in &changes {
            let id = change.object;
            if let (true, Some(before), Some(after)) = (is_same(change), &change.before, &change.after)
                && before.kind != Kind::Xattr
                && before.nlink > 0
                && after.nlink > 0
            {
                if modified.contains(&id) {
                    marks.insert(id, PathChange::Modified);
                } else if owners.contains(&id) || attributes_differ(before, after, renamed.contains(&id)) {
                    marks.insert(id, PathChange::Attributes);
                } else {
                    continue;
                }
                match after.names().find(|place| !added.contains_key(place)) {
                    Some(place) => drop(named.insert(place, id)),
                    None if id == ObjectId::ROOT => {}
                    None => drop(lost.insert(id)),
                }
            }
        }
        let mut paths_of = paths[1].of_named(named, &mut lost)?;
        if marks.contains_key(&ObjectId::ROOT) {
            paths_of.push((ObjectId::ROOT, Vec::new()));
        }
        let added: BTreeSet<Vec<u8>> = added.into_values().collect();
        paths_of.extend(paths[1].search(lost, &added)?);
        found.extend(added.into_iter().map(PathChange::Added));
        found.extend(paths_of.into_iter().filter_map(|(id, path)| marks.get(&id).map(|mark| mark(path))));
        Ok(found.into_iter().collect())
    }

    /// Which names and which contents differ, of objects that do.
    fn difference(
        &self,
        source: &dyn Snapshots,
        changes: &[ObjectChange],
        states: (SnapshotId, SnapshotId),
    ) -> Result<Difference> {
        let other = |change: &&ObjectChange| change.before.is_some() && change.after.is_some() && !is_same(change);
        let reused: BTreeSet<ObjectId> = changes.iter().filter(other).map(|change| change.object).collect();
        let mut difference = Difference { reused, ..Difference::default() };
        let nothing = Entries::new();
        let is_directory = |attributes: &&Attributes| attributes.kind == Kind::Directory;
        for change in changes {
            let directories = [&change.before, &change.after].map(|it| it.as_ref().filter(is_directory));
            let pages = match (&change.before, &change.after) {
                (Some(before), Some(after)) if is_same(change) => {
                    let count = if directories[0].is_some() { usize::MAX } else { 1 };
                    let pages = changed_pages(source, change.object, states, count)?;
                    if before.size != after.size || !pages.is_empty() {
                        difference.modified.insert(change.object);
                    }
                    Some(pages)
                }
                _ => None,
            };
            let read = |pages: Option<&[PageIndex]>| -> Result<Option<[Entries; 2]>> {
                let [old, new] = [(states.0, directories[0]), (states.1, directories[1])].map(|(state, attributes)| {
                    let entries = |attributes| self.entries_in(change.object.in_snapshot(state), attributes, pages);
                    attributes.map_or_else(|| Ok(Some(Entries::new())), entries)
                });
                Ok(old?.zip(new?).map(|(old, new)| [old, new]))
            };
            let [old, new] = match read(pages.as_deref())? {
                Some(entries) => entries,
                // It has changed since then, and entries may have moved between those pages and others.
                None => read(None)?.unwrap_or_default(),
            };
            let only = |mine: &Entries, other: &Entries| -> Vec<Name> {
                let differs = |(name, (id, _)): &(&Vec<u8>, &(ObjectId, u64))| {
                    other.get(*name).map(|(id, _)| *id) != Some(*id) || difference.reused.contains(id)
                };
                let name = |(name, &(object, key)): (&Vec<u8>, &(ObjectId, u64))| Name {
                    object,
                    place: NamePlace { directory: change.object, key },
                    name: name.clone(),
                };
                mine.iter().filter(differs).map(name).collect()
            };
            // What two directories have in common that one after the other had this id is in another place now.
            let (before, after) = if is_same(change) { (&old, &new) } else { (&nothing, &nothing) };
            let (gone, come) = (only(&old, after), only(&new, before));
            difference.gone.extend(gone);
            difference.come.extend(come);
        }
        Ok(difference)
    }

    /// The entries of a directory, or those in some of its pages: of the one that had these attributes at the recovery point, as it is
    /// now. Nothing if it has changed since, so that those pages may be others now.
    fn entries_in(&self, id: ObjectId, known: &Attributes, pages: Option<&[PageIndex]>) -> Result<Option<Entries>> {
        let mut entries = Entries::new();
        if pages.is_some_and(<[PageIndex]>::is_empty) {
            return Ok(Some(entries));
        }
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let mut directory = Some(Cow::Borrowed(known));
        if id.snapshot() == SnapshotId::LIVE {
            directory = match self.cache.attributes(id) {
                Ok(now) if now.generation == known.generation => Some(Cow::Owned(now)),
                Ok(_) | Err(object::Error::NoObject(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let version = |it: &Attributes| (it.size, it.entries, it.mtime, it.ctime);
            if pages.is_some() && directory.as_deref().map(version) != Some(version(known)) {
                return Ok(None);
            }
        }
        let Some(attributes) = directory else { return Ok(Some(entries)) };
        let mut note = |record: LeafRecord<'_>| {
            entries.insert(record.name.to_vec(), (record.object, record.key));
        };
        let directory = self.open_directory(id, &attributes)?;
        match pages {
            Some(pages) => directory.scan_pages(pages, note)?,
            None => directory.scan(0, |record| {
                note(record);
                ControlFlow::Continue(())
            })?,
        }
        Ok(Some(entries))
    }
}

/// The first `count` pages that differ.
fn changed_pages(
    source: &dyn Snapshots,
    id: ObjectId,
    states: (SnapshotId, SnapshotId),
    count: usize,
) -> Result<Vec<PageIndex>> {
    let mut pages: Vec<PageIndex> = Vec::new();
    loop {
        let first = pages.last().map_or(0, |last| last + 1);
        let more = source.changed_pages(id, states, first, STEP.min(count - pages.len()))?;
        if more.is_empty() {
            return Ok(pages);
        }
        pages.extend(more);
        if pages.len() == count {
            return Ok(pages);
        }
    }
}

/// Whether more than the time of last access, and what a name that comes or goes changes in what it names, differs.
fn attributes_differ(before: &Attributes, after: &Attributes, is_renamed: bool) -> bool {
    let Attributes { atime, nlink, parent, name_key, ref other_names, .. } = *after;
    let ctime = if is_renamed { after.ctime } else { before.ctime };
    let other_names = other_names.clone();
    Attributes { atime, nlink, parent, name_key, other_names, ctime, ..before.clone() } != *after
}

/// Whether both states have the same object.
fn is_same(change: &ObjectChange) -> bool {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => before.generation == after.generation,
        _ => false,
    }
}

/// Whether a name that an object lists is nowhere, because the list is wrong. Of anything else that keeps a directory from being read,
/// the list may be right.
fn leads_nowhere(error: &Error) -> bool {
    matches!(error, Error::Stale(_) | Error::NotDirectory(_))
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

/// Paths of objects in one state.
struct Paths<'a> {
    namespace: &'a Namespace,
    state: SnapshotId,
    /// Of directories, what is above them, and their name in it; none: they have no name.
    above: BTreeMap<ObjectId, Option<(ObjectId, Vec<u8>)>>,
}

impl Paths<'_> {
    fn new(namespace: &Namespace, state: SnapshotId) -> Paths<'_> {
        Paths { namespace, state, above: BTreeMap::new() }
    }

    /// The path of a name in a directory; one that has no path itself is shown as `#id`.
    fn entry(&mut self, directory: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        Ok(joined(&self.of(directory)?, name))
    }

    /// The path of a directory, by the names that it and those above it list. Of each only its name is kept: all paths of a deep
    /// tree would be much more.
    fn of(&mut self, directory: ObjectId) -> Result<Vec<u8>> {
        let mut components: Vec<Vec<u8>> = Vec::new();
        let mut at = directory;
        // In a circle of parents, all of it would be gone through once more.
        while at != ObjectId::ROOT && components.len() <= self.above.len() {
            if !self.above.contains_key(&at) {
                let above = self.name_of(at)?;
                self.above.insert(at, above);
            }
            match self.above.get(&at).and_then(Option::as_ref) {
                Some((parent, name)) => {
                    components.push(name.clone());
                    at = *parent;
                }
                None => {
                    components.push(format!("{at}").into_bytes());
                    break;
                }
            }
        }
        components.reverse();
        Ok(components.join(&b'/'))
    }

    /// The name of a directory, and what it is in.
    fn name_of(&self, directory: ObjectId) -> Result<Option<(ObjectId, Vec<u8>)>> {
        let id = directory.in_snapshot(self.state);
        let attributes = match self.namespace.cache.attributes(id) {
            Ok(attributes) => attributes,
            Err(object::Error::NoObject(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(place) = attributes.names().next() else { return Ok(None) };
        let name = match self.namespace.name_at(place, id) {
            Err(error) if leads_nowhere(&error) => None,
            name => name?,
        };
        Ok(name.map(|name| (place.directory.live(), name)))
    }

    /// The paths of objects by their names, which are in these places. What has no name there, because its list is wrong, goes to
    /// those that are `lost`.
    fn of_named(
        &mut self,
        objects: BTreeMap<NamePlace, ObjectId>,
        lost: &mut BTreeSet<ObjectId>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let mut paths = Vec::new();
        let mut objects = objects.into_iter().peekable();
        while let Some(&(NamePlace { directory: parent, .. }, _)) = objects.peek() {
            let below = std::iter::from_fn(|| objects.next_if(|(place, _)| place.directory == parent));
            let id = parent.in_snapshot(self.state);
            let above = self.of(parent)?;
            let _in_use = self.namespace.locks.lock(&[(id, Use::Shared)]);
            let attributes = match self.namespace.directory_attributes(id) {
                Err(error) if leads_nowhere(&error) => {
                    lost.extend(below.map(|(_, object)| object));
                    continue;
                }
                attributes => attributes?,
            };
            let directory = self.namespace.open_directory(id, &attributes)?;
            for (place, object) in below {
                match directory.name_at(place.key, object)? {
                    Some(name) => paths.push((object, joined(&above, &name))),
                    None => drop(lost.insert(object)),
                }
            }
        }
        Ok(paths)
    }

    /// Paths of objects wherever they are. What has no name, but for those `added`, is shown as `#id`; so is, in the live tree, what is in a
    /// directory that somebody moves meanwhile from where it is yet to be met to where that is over.
    ///
    /// # Errors
    /// [`Error::CorruptTree`] for a directory that is not there, that has two names, or that is below itself, so that each is gone through
    /// once. In the live tree only if that is so in one moment.
    fn search(
        &mut self,
        mut objects: BTreeSet<ObjectId>,
        added: &BTreeSet<Vec<u8>>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let namespace = self.namespace;
        let is_live = self.state == SnapshotId::LIVE;
        let mut paths = Vec::new();
        let mut reached = BTreeSet::from([ObjectId::ROOT]);
        let mut waiting = vec![ObjectId::ROOT];
        while !objects.is_empty()
            && let Some(id) = waiting.pop()
        {
            let directory = id.in_snapshot(self.state);
            let above = self.of(id)?;
            let in_use = namespace.locks.lock(&[(directory, Use::Shared)]);
            let attributes = match namespace.child(directory, Kind::Directory) {
                // Removed since its entry was read; its number may be another object's.
                Err(Error::CorruptTree { .. }) if is_live => {
                    drop(in_use);
                    self.is_named_by(id, self.entry_of(id).as_slice())?;
                    continue;
                }
                attributes => attributes?,
            };
            let mut again = Vec::new();
            namespace.open_directory(directory, &attributes)?.scan(0, |record| {
                let path = objects.contains(&record.object).then(|| joined(&above, record.name));
                if let Some(path) = path.filter(|path| !added.contains(path)) {
                    objects.remove(&record.object);
                    paths.push((record.object, path));
                }
                if record.kind == Kind::Directory {
                    let entry = (id, record.name.to_vec());
                    if reached.insert(record.object) {
                        self.above.insert(record.object, Some(entry));
                        waiting.push(record.object);
                    } else {
                        again.push((record.object, entry));
                    }
                }
                ControlFlow::Continue(())
            })?;
            drop(in_use);
            for (object, entry) in again {
                let entries: Vec<_> = self.entry_of(object).into_iter().chain([&entry]).collect();
                // The root has no other entry, so one is too many.
                if !is_live || self.is_named_by(object, &entries)? {
                    let object = object.in_snapshot(self.state);
                    return Err(Error::CorruptTree { object, what: "a directory has two names, or is below itself" });
                }
            }
        }
        paths.extend(objects.iter().map(|id| (*id, format!("{id}").into_bytes())));
        Ok(paths)
    }

    /// The entry by which a directory was met.
    fn entry_of(&self, directory: ObjectId) -> Option<&(ObjectId, Vec<u8>)> {
        self.above.get(&directory).and_then(Option::as_ref)
    }

    /// Whether each of these entries of the live tree, by directory and name, is one of a directory with this id, in one moment: with
    /// those above it in use it can neither go nor move. (Not to be called with any in use.)
    ///
    /// # Errors
    /// [`Error::CorruptTree`] if all of them are, and it is not there.
    fn is_named_by(&self, id: ObjectId, entries: &[&(ObjectId, Vec<u8>)]) -> Result<bool> {
        let above: Vec<_> = entries.iter().map(|(directory, _)| (*directory, Use::Shared)).collect();
        let _in_use = self.namespace.locks.lock(&above);
        for (directory, name) in entries {
            let attributes = match self.namespace.directory_attributes(*directory) {
                Err(error) if leads_nowhere(&error) => return Ok(false),
                attributes => attributes?,
            };
            let entry = self.namespace.open_directory(*directory, &attributes)?.lookup(name)?;
            if entry.is_none_or(|entry| (entry.object, entry.kind) != (id, Kind::Directory)) {
                return Ok(false);
            }
        }
        self.namespace.child(id, Kind::Directory).map(|_| true)
    }
}
