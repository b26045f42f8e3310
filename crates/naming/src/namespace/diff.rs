//! What changed in the name space between two states: from the objects that differ, and the entries of the directories among
//! them.

use super::Namespace;
use crate::error::{Error, Result};
use holdfast_object::{self as object, Attributes, Kind, ObjectChange, ObjectId, SnapshotId, Snapshots};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Objects asked for at a time.
const STEP: usize = 1024;

/// A change of a path, from the root without a leading `/`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PathChange {
    /// Only the first state has it.
    Removed(Vec<u8>),
    /// Only the second state has it.
    Added(Vec<u8>),
    /// Contents or attributes differ; times of last access do not count.
    Modified(Vec<u8>),
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
    /// What changed from one snapshot to another one, or to the recovery point of now ([`SnapshotId::LIVE`]); by path. Takes
    /// time in proportion to the objects that changed and the sizes of the directories among them.
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
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for change in &changes {
            let [old, new] = [(from, &change.before), (to, &change.after)].map(|(state, attributes)| {
                let is_directory = attributes.as_ref().is_some_and(|found| found.kind == Kind::Directory);
                if is_directory { self.entries_in(change.object, state) } else { Ok(Entries::new()) }
            });
            let (old, new) = (old?, new?);
            let only = |mine: &Entries, other: &Entries| -> Vec<(Vec<u8>, ObjectId)> {
                let differs = |(name, id): &(&Vec<u8>, &ObjectId)| other.get(*name) != Some(*id);
                mine.iter().filter(differs).map(|(name, id)| (name.clone(), *id)).collect()
            };
            gone.extend(only(&old, &new).into_iter().map(|(name, id)| (change.object, name, id)));
            come.extend(only(&new, &old).into_iter().map(|(name, id)| (change.object, name, id)));
        }
        let mut paths = [Paths::new(self, from), Paths::new(self, to)];
        let mut found = BTreeSet::new();
        // An object that loses a name and gets one has been renamed, unless its id is another object's now.
        let same: BTreeSet<ObjectId> = changes.iter().filter(|change| is_same(change)).map(|it| it.object).collect();
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
        found.extend(named_anew.into_values().flatten().map(PathChange::Added));
        for change in &changes {
            if let (true, Some(before), Some(after)) = (is_same(change), &change.before, &change.after)
                && before.kind != Kind::Xattr
                && self.is_modified(&**source, change.object, (from, to), before, after)?
                && let Some(path) = paths[1].of(change.object)?
            {
                found.insert(PathChange::Modified(path));
            }
        }
        Ok(found.into_iter().collect())
    }

    fn entries_in(&self, directory: ObjectId, state: SnapshotId) -> Result<Entries> {
        let entries = self.entries(&super::Request::ROOT, directory.in_snapshot(state))?;
        Ok(entries.into_iter().map(|(name, id, _)| (name, id.live())).collect())
    }

    /// Anything but the time of last access.
    fn is_modified(
        &self,
        source: &dyn Snapshots,
        id: ObjectId,
        states: (SnapshotId, SnapshotId),
        before: &Attributes,
        after: &Attributes,
    ) -> Result<bool> {
        let accessed = Attributes { atime: after.atime, ..before.clone() };
        Ok(accessed != *after || !source.changed_pages(id, states, 0, 1)?.is_empty())
    }
}

/// Whether both states have the same object.
fn is_same(change: &ObjectChange) -> bool {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => before.generation == after.generation,
        _ => false,
    }
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
        let above = self.of(directory)?.unwrap_or_else(|| format!("{directory}").into_bytes());
        Ok(if above.is_empty() { name.to_vec() } else { [&above[..], b"/", name].concat() })
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
