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
use std::collections::BTreeSet;

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

/// An object, and what is known of it by then.
struct Known {
    id: ObjectId,
    attributes: Attributes,
    /// Entries that name it.
    names: u64,
    /// Of them listed by it.
    listed: u64,
    /// Of a directory.
    subdirectories: u64,
    is_reached: bool,
}

// What is said below of its memory.
const _: () = assert!(size_of::<Known>() <= 256);

struct Check<'a> {
    cache: &'a dyn ObjectCache,
    /// In ascending order, each once.
    objects: Vec<Known>,
    /// How many of them are reached.
    reached: u64,
    report: Report,
}

/// Checks the name space of these objects, which are all objects of the domain. All of them are kept in memory: 256 bytes each.
pub fn check(cache: &dyn ObjectCache, objects: impl IntoIterator<Item = (ObjectId, Attributes)>) -> Report {
    check_watched(cache, objects, &mut |_| {})
}

/// As [`check`], and calls `progress` with the number of objects reached, for each directory.
pub fn check_watched(
    cache: &dyn ObjectCache,
    objects: impl IntoIterator<Item = (ObjectId, Attributes)>,
    progress: &mut dyn FnMut(u64),
) -> Report {
    let new = |(id, attributes)| Known { id, attributes, names: 0, listed: 0, subdirectories: 0, is_reached: false };
    let mut objects: Vec<_> = objects.into_iter().map(new).collect();
    objects.sort_by_key(|known| known.id);
    objects.dedup_by_key(|known| known.id);
    let mut check = Check { cache, objects, reached: 0, report: Report::default() };
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

    /// Where it is among the objects.
    fn position(&self, id: ObjectId) -> Option<usize> {
        self.objects.binary_search_by_key(&id, |known| known.id).ok()
    }

    /// Whether it had not been reached before.
    fn reach(&mut self, at: usize) -> bool {
        let first = !std::mem::replace(&mut self.objects[at].is_reached, true);
        self.reached += u64::from(first);
        first
    }

    /// Goes through all directories from the root on.
    fn walk(&mut self, progress: &mut dyn FnMut(u64)) {
        let root = self.position(ObjectId::ROOT);
        let Some(root) = root.filter(|&root| self.objects[root].attributes.kind == Kind::Directory) else {
            self.report.incomplete = true;
            return self.found(Finding::NoRoot);
        };
        let got = self.objects[root].attributes.parent;
        if got != ObjectId::ROOT {
            self.found(Finding::WrongParent { directory: ObjectId::ROOT, expected: ObjectId::ROOT, got });
        }
        self.reach(root);
        let mut waiting = vec![root];
        while let Some(at) = waiting.pop() {
            self.report.directories += 1;
            progress(self.reached);
            let Known { id, attributes: Attributes { size, entries: got, .. }, .. } = self.objects[at];
            let mut entries = Vec::new();
            let count = Directory::open(self.cache, id, size, 0).and_then(|directory| {
                directory
                    .check(|record| entries.push((Name::from(record.name), record.object, record.kind, record.key)))
            });
            match count {
                Err(error) => {
                    self.report.incomplete = true;
                    self.found(Finding::Unreadable { object: id, error });
                }
                Ok(expected) if expected != got => {
                    self.found(Finding::WrongEntries { directory: id, expected, got });
                }
                Ok(_) => {}
            }
            self.report.entries += entries.len() as u64;
            for (name, object, kind, key) in entries {
                waiting.extend(self.entry(at, key, name, object, kind));
            }
        }
    }

    /// Checks an entry of a directory; gives a directory that is to be walked.
    fn entry(&mut self, parent: usize, key: u64, name: Name, object: ObjectId, kind: Kind) -> Option<usize> {
        let directory = self.objects[parent].id;
        let Some(at) = self.position(object) else {
            self.found(Finding::Dangling { directory, name, object });
            return None;
        };
        let Known { attributes, names, listed, .. } = &mut self.objects[at];
        let (found, says) = (attributes.kind, attributes.parent);
        if found != kind {
            self.found(Finding::WrongKind { directory, name, object, said: kind, found });
            return None;
        }
        *names += 1;
        *listed += u64::from(attributes.names().any(|listed| listed == NamePlace { directory, key }));
        let first = self.reach(at);
        if kind != Kind::Directory {
            return None;
        }
        self.objects[parent].subdirectories += 1;
        if !first {
            self.found(Finding::SecondName { directory: object, parent: directory, name });
        } else if says != directory {
            self.found(Finding::WrongParent { directory: object, expected: directory, got: says });
        }
        first.then_some(at)
    }

    /// Compares link counts and looks for what was not reached.
    fn count(&mut self) {
        let objects = std::mem::take(&mut self.objects);
        for known in objects.iter().filter(|known| known.attributes.kind != Kind::Xattr) {
            let Known { id, ref attributes, names, listed: there, subdirectories, is_reached: reached } = *known;
            let expected = if attributes.kind == Kind::Regular { Class::Own } else { Class::Names };
            if attributes.class != expected {
                self.found(Finding::WrongClass { object: id, expected, got: attributes.class });
            }
            let size = attributes.size;
            if attributes.kind == Kind::Symlink && (size == 0 || size > SYMLINK_MAX as u64) {
                self.found(Finding::WrongTarget { object: id, size });
            }
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
                Kind::Directory => 2 + subdirectories,
                _ => names,
            };
            let got = u64::from(attributes.nlink);
            if expected != got {
                self.found(Finding::WrongLinks { object: id, expected, got });
            }
            let listed = attributes.names().count() as u64;
            // Of more names than can be listed, all that were listed may be gone. A directory has one, and the root none.
            let is_directory = attributes.kind == Kind::Directory;
            if listed != there || is_directory && (listed == 0) != (id == ObjectId::ROOT) {
                self.found(Finding::WrongNames { object: id, listed, there });
            }
        }
        self.objects = objects;
    }

    /// Every object's extended attributes are its own, and every object that holds some has an owner.
    fn xattrs(&mut self) {
        let mut owned = BTreeSet::new();
        let owners: Vec<_> = self
            .objects
            .iter()
            .filter(|known| known.attributes.xattr != ObjectId::NONE)
            .map(|Known { id, attributes, .. }| (*id, attributes.xattr, attributes.class, attributes.mode))
            .collect();
        for (object, xattr, class, mode) in owners {
            let holder = self.position(xattr).map(|at| &self.objects[at].attributes);
            let holder = holder.filter(|holder| holder.kind == Kind::Xattr && holder.parent == object);
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
            .filter(|known| known.attributes.kind == Kind::Xattr && !owned.contains(&known.id))
            .map(|known| Finding::LostXattr { xattr: known.id, owner: known.attributes.parent })
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
