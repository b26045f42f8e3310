//! Checking a whole name space against its objects, everything against everything.
//!
//! The caller lists the objects, because no request of the protocol does. Nothing may change meanwhile. The report is
//! plain data; nothing is repaired.

use crate::acl::{self, Acl};
use crate::directory::Directory;
use crate::error::{Error, Name};
use crate::name::SYMLINK_MAX;
use crate::pages::ReadData;
use crate::xattr::{XATTR_TOTAL_MAX, Xattrs};
use holdfast_object::{Attributes, Class, Kind, NamePlace, ObjectCache, ObjectId};
use std::collections::{BTreeMap, BTreeSet};

/// What was found wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Finding {
    #[error("there is no root directory")]
    NoRoot,
    #[error("directory {directory}: {name} refers to object {object}, which does not exist")]
    Dangling { directory: ObjectId, name: Name, object: ObjectId },
    #[error("directory {directory}: {name} says {said:?}, but object {object} is {found:?}")]
    WrongKind { directory: ObjectId, name: Name, object: ObjectId, said: Kind, found: Kind },
    #[error("directory {directory} has a second name, {name} in {parent}")]
    SecondName { directory: ObjectId, parent: ObjectId, name: Name },
    #[error("directory {directory} is in {expected}, but says {got}")]
    WrongParent { directory: ObjectId, expected: ObjectId, got: ObjectId },
    #[error("object {object} has {expected} links, but says {got}")]
    WrongLinks { object: ObjectId, expected: u64, got: u64 },
    #[error("directory {directory} has {expected} entries, but says {got}")]
    WrongEntries { directory: ObjectId, expected: u64, got: u64 },
    #[error("object {object} ({kind:?}) is not reached from the root, but says that it has {links} links")]
    Unreached { object: ObjectId, kind: Kind, links: u32 },
    #[error("object {object} is of class {got:?} instead of {expected:?}")]
    WrongClass { object: ObjectId, expected: Class, got: Class },
    #[error("object {object}: its extended attributes {xattr} do not exist or are not its own")]
    WrongXattr { object: ObjectId, xattr: ObjectId },
    #[error("extended attributes {xattr} belong to nobody; they say to object {owner}")]
    LostXattr { xattr: ObjectId, owner: ObjectId },
    #[error("object {object}: mode {mode:o} is not what its access control list says")]
    WrongAccessList { object: ObjectId, mode: u16 },
    #[error("object {object} lists {listed} names, and {there} of them are there")]
    WrongNames { object: ObjectId, listed: u64, there: u64 },
    #[error("symbolic link {object} has a target of {size} bytes")]
    WrongTarget { object: ObjectId, size: u64 },
    #[error("object {object}: {error}")]
    Unreadable { object: ObjectId, error: Error },
}

/// What a check saw.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Objects, those with extended attributes included.
    pub objects: u64,
    /// Directories reached from the root.
    pub directories: u64,
    /// Entries in them.
    pub entries: u64,
    /// Objects without a name: deleted when the store is next mounted.
    pub orphans: Vec<ObjectId>,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// A directory could not be read, so links and connections were not checked.
    pub incomplete: bool,
}

impl Report {
    /// Whether all is in order.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

struct Check<'a> {
    cache: &'a dyn ObjectCache,
    objects: BTreeMap<ObjectId, Attributes>,
    /// Entries that name an object; of a directory, subdirectories.
    names: BTreeMap<ObjectId, u64>,
    subdirectories: BTreeMap<ObjectId, u64>,
    /// Entries that are listed by the object that they name.
    listed: BTreeMap<ObjectId, u64>,
    reached: BTreeSet<ObjectId>,
    report: Report,
}

/// Checks the name space of these objects, which are all objects of the domain.
pub fn check(cache: &dyn ObjectCache, objects: impl IntoIterator<Item = (ObjectId, Attributes)>) -> Report {
    check_watched(cache, objects, &mut |_| {})
}

/// As [`check`], and calls `progress` with the number of objects reached, for each directory.
pub fn check_watched(
    cache: &dyn ObjectCache,
    objects: impl IntoIterator<Item = (ObjectId, Attributes)>,
    progress: &mut dyn FnMut(u64),
) -> Report {
    let mut check = Check {
        cache,
        objects: objects.into_iter().collect(),
        names: BTreeMap::new(),
        listed: BTreeMap::new(),
        subdirectories: BTreeMap::new(),
        reached: BTreeSet::new(),
        report: Report::default(),
    };
    check.report.objects = check.objects.len() as u64;
    check.walk(progress);
    check.count();
    check.xattrs();
    check.report
}

impl Check<'_> {
    fn found(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    /// Goes through all directories from the root on.
    fn walk(&mut self, progress: &mut dyn FnMut(u64)) {
        match self.objects.get(&ObjectId::ROOT) {
            Some(root) if root.kind == Kind::Directory => {
                if root.parent != ObjectId::ROOT {
                    let got = root.parent;
                    self.found(Finding::WrongParent { directory: ObjectId::ROOT, expected: ObjectId::ROOT, got });
                }
            }
            _ => {
                self.report.incomplete = true;
                return self.found(Finding::NoRoot);
            }
        }
        self.reached.insert(ObjectId::ROOT);
        let mut waiting = vec![ObjectId::ROOT];
        while let Some(id) = waiting.pop() {
            self.report.directories += 1;
            progress(self.reached.len() as u64);
            let attributes = self.objects[&id].clone();
            let mut entries = Vec::new();
            let count = Directory::open(self.cache, id, attributes.size, 0).and_then(|directory| {
                directory
                    .check(|record| entries.push((Name::from(record.name), record.object, record.kind, record.key)))
            });
            match count {
                Err(error) => {
                    self.report.incomplete = true;
                    self.found(Finding::Unreadable { object: id, error });
                }
                Ok(expected) if expected != attributes.entries => {
                    self.found(Finding::WrongEntries { directory: id, expected, got: attributes.entries });
                }
                Ok(_) => {}
            }
            self.report.entries += entries.len() as u64;
            for (name, object, kind, key) in entries {
                if self.entry(NamePlace { directory: id, key }, name, object, kind) {
                    waiting.push(object);
                }
            }
        }
    }

    /// Checks an entry; gives whether a directory is to be walked.
    fn entry(&mut self, place: NamePlace, name: Name, object: ObjectId, kind: Kind) -> bool {
        let directory = place.directory;
        let Some(attributes) = self.objects.get(&object) else {
            self.found(Finding::Dangling { directory, name, object });
            return false;
        };
        let (found, parent) = (attributes.kind, attributes.parent);
        let listed = u64::from(attributes.names().any(|listed| listed == place));
        if found != kind {
            self.found(Finding::WrongKind { directory, name, object, said: kind, found });
            return false;
        }
        let first = self.reached.insert(object);
        *self.names.entry(object).or_default() += 1;
        *self.listed.entry(object).or_default() += listed;
        if kind != Kind::Directory {
            return false;
        }
        *self.subdirectories.entry(directory).or_default() += 1;
        if !first {
            self.found(Finding::SecondName { directory: object, parent: directory, name });
        } else if parent != directory {
            self.found(Finding::WrongParent { directory: object, expected: directory, got: parent });
        }
        first
    }

    /// Compares link counts and looks for what was not reached.
    fn count(&mut self) {
        let objects: Vec<_> = self.objects.iter().map(|(&id, attributes)| (id, attributes.clone())).collect();
        for (id, attributes) in objects.iter().filter(|(_, attributes)| attributes.kind != Kind::Xattr) {
            let id = *id;
            let expected = if attributes.kind == Kind::Regular { Class::Own } else { Class::Names };
            if attributes.class != expected {
                self.found(Finding::WrongClass { object: id, expected, got: attributes.class });
            }
            let size = attributes.size;
            if attributes.kind == Kind::Symlink && (size == 0 || size > SYMLINK_MAX as u64) {
                self.found(Finding::WrongTarget { object: id, size });
            }
            let reached = self.reached.contains(&id);
            if !reached && attributes.nlink == 0 {
                self.report.orphans.push(id);
                continue;
            }
            if self.report.incomplete {
                continue;
            }
            if !reached {
                self.found(Finding::Unreached { object: id, kind: attributes.kind, links: attributes.nlink });
                continue;
            }
            let expected = match attributes.kind {
                Kind::Directory => 2 + self.subdirectories.get(&id).copied().unwrap_or(0),
                _ => self.names.get(&id).copied().unwrap_or(0),
            };
            let got = u64::from(attributes.nlink);
            if expected != got {
                self.found(Finding::WrongLinks { object: id, expected, got });
            }
            let (listed, there) = (attributes.names().count() as u64, self.listed.get(&id).copied().unwrap_or(0));
            // Of more names than can be listed, all that were listed may be gone. A directory has one, and the root none.
            let is_directory = attributes.kind == Kind::Directory;
            if listed != there || is_directory && (listed == 0) != (id == ObjectId::ROOT) {
                self.found(Finding::WrongNames { object: id, listed, there });
            }
        }
    }

    /// Every object's extended attributes are its own, and every object that holds some has an owner.
    fn xattrs(&mut self) {
        let mut owned = BTreeSet::new();
        let owners: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, attributes)| attributes.xattr != ObjectId::NONE)
            .map(|(&id, attributes)| (id, attributes.xattr, attributes.class, attributes.mode))
            .collect();
        for (object, xattr, class, mode) in owners {
            let holder =
                self.objects.get(&xattr).filter(|holder| holder.kind == Kind::Xattr && holder.parent == object);
            let Some(holder) = holder.cloned() else {
                self.found(Finding::WrongXattr { object, xattr });
                continue;
            };
            owned.insert(xattr);
            if holder.class != class {
                self.found(Finding::WrongClass { object: xattr, expected: class, got: holder.class });
            }
            if holder.nlink != 1 {
                self.found(Finding::WrongLinks { object: xattr, expected: 1, got: u64::from(holder.nlink) });
            }
            match self.read_xattrs(object, xattr, holder.size) {
                Err(error) => self.found(Finding::Unreadable { object: xattr, error }),
                Ok(xattrs) => {
                    let list = |name| xattrs.get(name).map(Acl::decode);
                    let right = match list(acl::ACCESS) {
                        None => true,
                        Some(list) => list.ok().flatten().is_some_and(|list| list.mode() == mode & 0o777),
                    };
                    if !right || list(acl::DEFAULT).is_some_and(|list| !matches!(list, Ok(Some(_)))) {
                        self.found(Finding::WrongAccessList { object, mode });
                    }
                }
            }
        }
        let lost: Vec<_> = self
            .objects
            .iter()
            .filter(|(id, attributes)| attributes.kind == Kind::Xattr && !owned.contains(id))
            .map(|(&xattr, attributes)| Finding::LostXattr { xattr, owner: attributes.parent })
            .collect();
        self.report.findings.extend(lost);
    }

    fn read_xattrs(&self, owner: ObjectId, xattr: ObjectId, size: u64) -> Result<Xattrs, Error> {
        let too_long = Error::CorruptAttributes { object: xattr, offset: 0, what: "too long" };
        let size = usize::try_from(size).ok().filter(|&size| size <= XATTR_TOTAL_MAX).ok_or(too_long)?;
        let bytes = ReadData::read(self.cache, xattr, 0, size)?.to_vec();
        Xattrs::decode(&bytes, xattr, owner)
    }
}
