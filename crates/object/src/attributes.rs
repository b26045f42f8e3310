//! The attributes of an object, as every layer knows them.

use crate::{ObjectId, PolicyId};
use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 UTC. `nanos` < 1_000_000_000, also before 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub secs: i64,
    /// The rest.
    pub nanos: u32,
}

/// What an object is. The numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    Regular = 1,
    /// A directory; its pages are naming's index of entries.
    Directory = 2,
    /// A symbolic link; its pages are the target.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket's name.
    Socket = 5,
    /// A character device's name.
    CharDevice = 6,
    /// A block device's name.
    BlockDevice = 7,
    /// The extended attributes of the object that its `parent` names.
    Xattr = 8,
}

impl Kind {
    /// The kind with this stored number.
    pub fn from_raw(raw: u8) -> Option<Kind> {
        Some(match raw {
            1 => Kind::Regular,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::CharDevice,
            7 => Kind::BlockDevice,
            8 => Kind::Xattr,
            _ => return None,
        })
    }

    /// Whether the object's pages are metadata: stored in two copies, apart from each other.
    pub fn is_metadata(self) -> bool {
        !matches!(self, Kind::Regular)
    }
}

/// By which of the two rules of docs/architecture.md ("The life of an fsync") a change of the object reaches the intent
/// log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Class {
    /// Changes belong to the name space: after a power cut it is as after a prefix of all its transactions. Directories,
    /// links, special files, and the extended attributes of those.
    Names = 1,
    /// Contents, size and attributes follow a prefix of the object's own changes. Regular files and their extended
    /// attributes. Their creation, deletion, link count and parent hint still belong to the name space.
    Own = 2,
}

/// Most names of an object that its attributes list.
pub const NAMES_LISTED_MAX: usize = 12;

/// Where a name of an object is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NamePlace {
    /// The directory.
    pub directory: ObjectId,
    /// The key of its entry in it, above 0, which is the same for as long as the name is there.
    pub key: u64,
}

/// The attributes of one object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// What it is.
    pub kind: Kind,
    /// How its changes reach the intent log.
    pub class: Class,
    /// Distinguishes successive objects with the same id. Unique in the store's life.
    pub generation: u64,
    /// Permission bits with setuid, setgid and sticky: the lower 12 bits of `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that refer to it. 0: unlinked, waiting for its last user.
    pub nlink: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Stored data blocks of 4 KiB, counted by the physical layer; ignored when set.
    pub blocks: u64,
    /// Entries of a directory (without `.` and `..`); naming's own use for other kinds.
    pub entries: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// A directory that names it (so that an error can name a path), or the owner of an `Xattr`.
    pub parent: ObjectId,
    /// The key of its entry in that directory; 0: it has no name there.
    pub name_key: u64,
    /// Its other names, as far as they are listed: see [`Attributes::names`].
    pub other_names: Vec<NamePlace>,
    /// The object with its extended attributes, or none.
    pub xattr: ObjectId,
    /// Redundancy policy.
    pub policy: PolicyId,
    /// Per-object flags of naming (immutable, append-only, …); opaque below.
    pub flags: u32,
}

impl Attributes {
    /// A new object: no names, no bytes, all times `now`.
    pub fn new(kind: Kind, class: Class, mode: u16, uid: u32, gid: u32, now: Timestamp) -> Attributes {
        Attributes {
            kind,
            class,
            generation: 0,
            mode,
            uid,
            gid,
            nlink: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            entries: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: ObjectId::NONE,
            name_key: 0,
            other_names: Vec::new(),
            xattr: ObjectId::NONE,
            policy: PolicyId::default(),
            flags: 0,
        }
    }

    /// The names that are listed, [`NAMES_LISTED_MAX`] at most. All of them are there; the list has every name of an object that never
    /// had more than that.
    pub fn names(&self) -> impl Iterator<Item = NamePlace> + '_ {
        let first = NamePlace { directory: self.parent, key: self.name_key };
        (self.name_key != 0).then_some(first).into_iter().chain(self.other_names.iter().copied())
    }

    /// Whether these are names that an object can have: the first one is in a directory, and there are no others without it.
    pub fn has_possible_names(&self) -> bool {
        match self.name_key {
            0 => self.other_names.is_empty(),
            _ => self.parent != ObjectId::NONE,
        }
    }

    /// The change by which these names are listed, the first ones of them. Without any, the parent stays what it is.
    pub fn list_names(names: &[NamePlace]) -> AttrSet {
        let listed = &names[..names.len().min(NAMES_LISTED_MAX)];
        let (first, others) = match listed {
            [] => (None, listed),
            [first, others @ ..] => (Some(first), others),
        };
        AttrSet {
            parent: first.map(|name| name.directory),
            name_key: Some(first.map_or(0, |name| name.key)),
            other_names: Some(others.to_vec()),
            ..AttrSet::default()
        }
    }
}

/// Attributes to change; `None` leaves the value. All values are absolute, so that applying twice is applying once.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct AttrSet {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub nlink: Option<u32>,
    pub entries: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub btime: Option<Timestamp>,
    pub parent: Option<ObjectId>,
    pub xattr: Option<ObjectId>,
    pub policy: Option<PolicyId>,
    pub flags: Option<u32>,
    pub name_key: Option<u64>,
    pub other_names: Option<Vec<NamePlace>>,
}

impl AttrSet {
    /// Whether an object with possible names has such after the change too, whatever they were: a first name comes with its directory, and
    /// goes with all others; others come with a first one.
    pub fn has_possible_names(&self) -> bool {
        let others = self.other_names.as_ref().map(Vec::len);
        match (self.name_key, self.parent) {
            (None, parent) => parent != Some(ObjectId::NONE) && others.unwrap_or(0) == 0,
            (Some(0), _) => others == Some(0),
            (Some(_), parent) => parent.is_some_and(|parent| parent != ObjectId::NONE),
        }
    }

    /// Changes `attributes` accordingly.
    pub fn apply(&self, attributes: &mut Attributes) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut attributes.mode, self.mode);
        set(&mut attributes.uid, self.uid);
        set(&mut attributes.gid, self.gid);
        set(&mut attributes.nlink, self.nlink);
        set(&mut attributes.entries, self.entries);
        set(&mut attributes.atime, self.atime);
        set(&mut attributes.mtime, self.mtime);
        set(&mut attributes.ctime, self.ctime);
        set(&mut attributes.btime, self.btime);
        set(&mut attributes.parent, self.parent);
        set(&mut attributes.xattr, self.xattr);
        set(&mut attributes.policy, self.policy);
        set(&mut attributes.flags, self.flags);
        set(&mut attributes.name_key, self.name_key);
        if let Some(names) = &self.other_names {
            attributes.other_names.clone_from(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of objects, and changes of them: no parent, one, or (of changes) none set; the same of keys; and of other names.
    fn sets() -> impl Iterator<Item = AttrSet> {
        let parents = [None, Some(ObjectId::NONE), Some(ObjectId(7))];
        let keys = [None, Some(0), Some(256)];
        let others = [None, Some(Vec::new()), Some(vec![NamePlace { directory: ObjectId(8), key: 300 }])];
        let of = move |at: usize| (parents[at % 3], keys[at / 3 % 3], others[at / 9].clone());
        (0..27).map(of).map(|(parent, name_key, other_names)| AttrSet {
            parent,
            name_key,
            other_names,
            ..AttrSet::default()
        })
    }

    #[test]
    fn a_change_with_possible_names_is_one_that_leaves_any_object_with_such() {
        let none = Attributes::new(Kind::Regular, Class::Own, 0, 0, 0, Timestamp::default());
        let after = |set: &AttrSet, attributes: &Attributes| {
            let mut attributes = attributes.clone();
            set.apply(&mut attributes);
            attributes
        };
        let objects: Vec<_> = sets().map(|set| after(&set, &none)).filter(Attributes::has_possible_names).collect();
        assert!(objects.contains(&none));
        let mut possible = 0;
        for set in sets() {
            let leaves_possible = objects.iter().all(|object| after(&set, object).has_possible_names());
            assert_eq!(set.has_possible_names(), leaves_possible, "{set:?}");
            possible += u32::from(leaves_possible);
        }
        assert!((1..27).contains(&possible));
    }

    #[test]
    fn lists_of_names_are_possible() {
        let names =
            |count: u64| (0..count).map(|at| NamePlace { directory: ObjectId(9), key: 256 + at }).collect::<Vec<_>>();
        for count in [0, 1, 2, NAMES_LISTED_MAX as u64 + 3] {
            assert!(Attributes::list_names(&names(count)).has_possible_names(), "{count}");
        }
    }
}
