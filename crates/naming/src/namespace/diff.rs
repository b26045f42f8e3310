//! What changed in the name space between two states: from the objects that differ, and the entries in the pages that differ of
//! the directories among them.

use super::Namespace;
use crate::directory::LeafRecord;
use crate::error::{Error, Result};
use holdfast_object::{self as object, Attributes, Kind, ObjectChange, ObjectId, PageIndex, SnapshotId, Snapshots};
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

type Entries = BTreeMap<Vec<u8>, ObjectId>;

impl Namespace {
    /// What changed from one snapshot to another one, or to the recovery point of now ([`SnapshotId::LIVE`]); by path. Takes time
    /// in proportion to what changed, and to the sizes of the directories that have names of changed objects: no object knows its
    /// name. (A file whose parent hint is stale makes it go through the whole tree.) That a file got or lost a name is no change of
    /// the file; what else changed of one with several names is shown by one of them, which both states have or which one of the
    /// first state became.
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
        // Ids that are another object's now.
        let other = |change: &&ObjectChange| change.before.is_some() && change.after.is_some() && !is_same(change);
        let reused: BTreeSet<ObjectId> = changes.iter().filter(other).map(|change| change.object).collect();
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for change in &changes {
            let pages = if is_same(change) { Some(changed_pages(&**source, change.object, (from, to))?) } else { None };
            let [old, new] =
                [(from, &change.before), (to, &change.after)].map(|(state, attributes)| match attributes {
                    Some(attributes) if attributes.kind == Kind::Directory => {
                        self.entries_in(change.object.in_snapshot(state), attributes, pages.as_deref())
                    }
                    _ => Ok(Entries::new()),
                });
            let (old, new) = (old?, new?);
            let only = |mine: &Entries, other: &Entries| -> Vec<(Vec<u8>, ObjectId)> {
                let differs =
                    |(name, id): &(&Vec<u8>, &ObjectId)| other.get(*name) != Some(*id) || reused.contains(*id);
                mine.iter().filter(differs).map(|(name, id)| (name.clone(), *id)).collect()
            };
            gone.extend(only(&old, &new).into_iter().map(|(name, id)| (change.object, name, id)));
            come.extend(only(&new, &old).into_iter().map(|(name, id)| (change.object, name, id)));
        }
        let mut paths = [Paths::new(self, from), Paths::new(self, to)];
        let mut found = BTreeSet::new();
        // An object that loses a name and gets one has been renamed, unless its id is another object's now.
        let same: BTreeSet<ObjectId> = changes.iter().filter(|change| is_same(change)).map(|it| it.object).collect();
        let renamed: BTreeSet<ObjectId> = gone.iter().chain(&come).map(|(.., id)| *id).collect();
        let mut named_anew: BTreeMap<ObjectId, VecDeque<Vec<u8>>> = BTreeMap::new();
        for (directory, name, id) in come {
            named_anew.entry(id).or_default().push_back(paths[1].entry(directory, &name)?);
        }
        for (directory, name, id) in gone {
            let old = paths[0].entry(directory, &name)?;
            let new = if same.contains(&id) { named_anew.get_mut(&id).and_then(VecDeque::pop_front) } else { None };
            found.insert(match new {
                Some(new) => PathChange::Renamed(old, new),
                None => PathChange::Removed(old),
            });
        }
        // Names that stand for no change of what they name.
        let added: BTreeSet<Vec<u8>> = named_anew.into_values().flatten().collect();
        // Extended attributes are an object of their own, whose parent is what has them.
        let states = changes.iter().flat_map(|change| [&change.before, &change.after]).flatten();
        let xattrs = states.filter(|attributes| attributes.kind == Kind::Xattr);
        let owners: BTreeSet<ObjectId> = xattrs.map(|attributes| attributes.parent.live()).collect();
        let mut marks: BTreeMap<ObjectId, fn(Vec<u8>) -> PathChange> = BTreeMap::new();
        // Where they are looked for, one after the other: by the parent hint of the second state, by that of the first one, everywhere.
        let mut below: [BTreeMap<ObjectId, BTreeSet<ObjectId>>; 2] = Default::default();
        for change in &changes {
            let id = change.object;
            if let (true, Some(before), Some(after)) = (is_same(change), &change.before, &change.after)
                && before.kind != Kind::Xattr
                && before.nlink > 0
                && after.nlink > 0
            {
                if before.size != after.size || !source.changed_pages(id, (from, to), 0, 1)?.is_empty() {
                    marks.insert(id, PathChange::Modified);
                } else if owners.contains(&id) || attributes_differ(before, after, renamed.contains(&id)) {
                    marks.insert(id, PathChange::Attributes);
                } else {
                    continue;
                }
                for (below, attributes) in below.iter_mut().zip([after, before]) {
                    below.entry(attributes.parent.live()).or_default().insert(id);
                }
            }
        }
        let mut left: BTreeSet<ObjectId> = marks.keys().copied().collect();
        let mut paths_of = Vec::new();
        for (parent, mut objects) in below.into_iter().flatten() {
            objects.retain(|id| left.contains(id));
            let named = paths[1].take_named(parent, &mut objects, &added)?;
            for (id, path) in named {
                left.remove(&id);
                paths_of.push((id, path));
            }
        }
        paths_of.extend(paths[1].search(left, &added)?);
        found.extend(added.into_iter().map(PathChange::Added));
        found.extend(paths_of.into_iter().filter_map(|(id, path)| marks.get(&id).map(|mark| mark(path))));
        Ok(found.into_iter().collect())
    }

    /// The entries of a directory, or those in some of its pages.
    fn entries_in(&self, id: ObjectId, attributes: &Attributes, pages: Option<&[PageIndex]>) -> Result<Entries> {
        let mut entries = Entries::new();
        let mut note = |record: LeafRecord<'_>| {
            entries.insert(record.name.to_vec(), record.object);
        };
        let directory = self.open_directory(id, attributes)?;
        match pages {
            Some(pages) => directory.scan_pages(pages, note)?,
            None => directory.scan(0, |record| {
                note(record);
                ControlFlow::Continue(())
            })?,
        }
        Ok(entries)
    }
}

fn changed_pages(source: &dyn Snapshots, id: ObjectId, states: (SnapshotId, SnapshotId)) -> Result<Vec<PageIndex>> {
    let mut pages: Vec<PageIndex> = Vec::new();
    loop {
        let first = pages.last().map_or(0, |last| last + 1);
        let more = source.changed_pages(id, states, first, STEP)?;
        if more.is_empty() {
            return Ok(pages);
        }
        pages.extend(more);
    }
}

/// Whether more than the time of last access, and what a name that comes or goes changes in what it names, differs.
fn attributes_differ(before: &Attributes, after: &Attributes, is_renamed: bool) -> bool {
    let Attributes { atime, nlink, parent, .. } = *after;
    let ctime = if is_renamed { after.ctime } else { before.ctime };
    Attributes { atime, nlink, parent, ctime, ..before.clone() } != *after
}

/// Whether both states have the same object.
fn is_same(change: &ObjectChange) -> bool {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => before.generation == after.generation,
        _ => false,
    }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

/// Paths of objects in one state.
struct Paths<'a> {
    namespace: &'a Namespace,
    state: SnapshotId,
    directories: BTreeMap<ObjectId, Option<Vec<u8>>>,
}

impl Paths<'_> {
    fn new(namespace: &Namespace, state: SnapshotId) -> Paths<'_> {
        Paths { namespace, state, directories: BTreeMap::from([(ObjectId::ROOT, Some(Vec::new()))]) }
    }

    /// The path of a name in a directory; one that has no path itself is shown as `#id`.
    fn entry(&mut self, directory: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        Ok(joined(&self.above(directory)?, name))
    }

    /// The path of a directory, for what is in it.
    fn above(&mut self, directory: ObjectId) -> Result<Vec<u8>> {
        Ok(self.of(directory)?.unwrap_or_else(|| format!("{directory}").into_bytes()))
    }

    /// Takes those of the objects that have a name in their parent directory, by one look through it. Gives one path of each that
    /// is none of those `added`.
    fn take_named(
        &mut self,
        parent: ObjectId,
        objects: &mut BTreeSet<ObjectId>,
        added: &BTreeSet<Vec<u8>>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        if objects.remove(&ObjectId::ROOT) {
            paths.push((ObjectId::ROOT, Vec::new()));
        }
        let directory = parent.in_snapshot(self.state);
        if let Ok(attributes) = self.namespace.directory_attributes(directory) {
            let above = self.above(parent)?;
            self.namespace.open_directory(directory, &attributes)?.scan(0, |record| {
                if objects.contains(&record.object) {
                    let path = joined(&above, record.name);
                    if !added.contains(&path) {
                        objects.remove(&record.object);
                        paths.push((record.object, path));
                    }
                }
                if objects.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        Ok(paths)
    }

    /// Paths of objects wherever they are. A file that had several names, and lost the one that its parent hint knew, can only be
    /// found by going through the tree. What has no name, but for those `added`, is shown as `#id`.
    fn search(
        &mut self,
        mut objects: BTreeSet<ObjectId>,
        added: &BTreeSet<Vec<u8>>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let mut paths = Vec::new();
        let mut waiting = vec![(ObjectId::ROOT, Vec::new())];
        while !objects.is_empty()
            && let Some((id, above)) = waiting.pop()
        {
            let directory = id.in_snapshot(self.state);
            let attributes = self.namespace.directory_attributes(directory)?;
            self.namespace.open_directory(directory, &attributes)?.scan(0, |record| {
                let path = joined(&above, record.name);
                if objects.contains(&record.object) && !added.contains(&path) {
                    objects.remove(&record.object);
                    paths.push((record.object, path.clone()));
                }
                if record.kind == Kind::Directory {
                    waiting.push((record.object, path));
                }
                ControlFlow::Continue(())
            })?;
        }
        paths.extend(objects.iter().map(|id| (*id, format!("{id}").into_bytes())));
        Ok(paths)
    }

    /// The path of an object by its parent's entries; of a file with several names, one of those that its parent hint leads
    /// to. `None`: it has no name there.
    fn of(&mut self, id: ObjectId) -> Result<Option<Vec<u8>>> {
        if let Some(known) = self.directories.get(&id) {
            return Ok(known.clone());
        }
        // Against a circle of parents.
        self.directories.insert(id, None);
        let attributes = match self.namespace.cache.attributes(id.in_snapshot(self.state)) {
            Ok(attributes) => attributes,
            Err(object::Error::NoObject(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let parent = attributes.parent.live();
        let name = self.namespace.name_in(parent.in_snapshot(self.state), id.in_snapshot(self.state));
        let path = match name {
            Some(name) => Some(self.entry(parent, &name)?),
            None => None,
        };
        self.directories.insert(id, path.clone());
        Ok(path)
    }
}
