//! Finding objects, holding them, and letting them go.

use super::readdir::COOKIE_PARENT;
use super::{Namespace, Request, SetAttr, is_fleeting};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::name::{self, NAME_MAX};
use crate::permission::{self, Access};
use holdfast_object::{Attributes, Class, Hold, Kind, NamePlace, ObjectId, Timestamp};

/// An object with its attributes as they were at that moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which.
    pub id: ObjectId,
    /// Its attributes.
    pub attributes: Attributes,
}

/// The room that a name space has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks, the reserve included.
    pub free: u64,
    /// Pages of new data that there is room for, with what they need besides.
    pub available: u64,
    /// Objects that there can be.
    pub files: u64,
    /// Objects that can still be made, roughly: one per free block, 2^48 at most.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Whether an error is that the root directory cannot be read.
fn is_damaged_root(id: ObjectId, error: &Error) -> bool {
    id == ObjectId::ROOT && error.damage().is_some()
}

impl Namespace {
    /// The object that `name` in `parent` refers to; `.` and `..` included. The caller holds it by id from now on, once
    /// more, until [`Namespace::forget`].
    pub fn lookup(&self, request: &Request, parent: ObjectId, name: &[u8]) -> Result<Found> {
        name::check(name)?;
        let _in_use = self.locks.lock(&[(parent, Use::Shared)]);
        if name == b"." {
            return self.lookup_handle(request, parent);
        }
        let directory = match self.directory_for(request, parent, name, Access::SEARCH) {
            // What snapshots have can be copied out of a root that cannot be read itself.
            Err(error) if is_damaged_root(parent, &error) => {
                let found = self.find_virtual(parent, name)?.ok_or(error)?;
                self.cache.hold(found.id, Hold::Lookup, 1);
                return Ok(found);
            }
            directory => directory?,
        };
        let found = match (self.find_virtual(parent, name)?, name) {
            (Some(found), _) => found,
            (None, b"..") => Found { id: directory.parent, attributes: self.child(directory.parent, Kind::Directory)? },
            (None, _) => {
                let entry = self
                    .open_directory(parent, &directory)?
                    .lookup(name)?
                    .ok_or_else(|| Error::not_found(parent, name))?;
                let id = entry.object.in_snapshot(parent.snapshot());
                Found { id, attributes: self.child(id, entry.kind)? }
            }
        };
        self.cache.hold(found.id, Hold::Lookup, 1);
        Ok(found)
    }

    /// An object by its id alone: the kernel's way from a file handle (NFS, open_by_handle_at) to an object that it does not
    /// remember, which may be of any kind. The kernel lets only root do so.
    fn lookup_handle(&self, request: &Request, id: ObjectId) -> Result<Found> {
        let attributes = self.inode(id)?;
        if attributes.nlink == 0 {
            // As good as gone, and so that nobody finds it while it goes.
            return Err(Error::Stale(id));
        }
        if attributes.kind == Kind::Directory {
            self.directory_for(request, id, b".", Access::SEARCH)?;
        }
        self.cache.hold(id, Hold::Lookup, 1);
        Ok(Found { id, attributes })
    }

    /// The caller forgets `count` of its holds by id. An object without a name goes with its last hold.
    pub fn forget(&self, id: ObjectId, count: u64) -> Result<()> {
        self.let_go(id, Hold::Lookup, count)
    }

    fn let_go(&self, id: ObjectId, hold: Hold, count: u64) -> Result<()> {
        let delta = i64::try_from(count).map_or(i64::MIN, |count| -count);
        if self.cache.hold(id, hold, delta).is_free() {
            self.reclaim(id)?;
        }
        Ok(())
    }

    /// Attributes of an object. The root directory has some in any case, as a mount is asked by way of it, also for what is wrong with it.
    pub fn getattr(&self, id: ObjectId) -> Result<Attributes> {
        match self.inode(id) {
            Err(error) if is_damaged_root(id, &error) => {
                let own = Attributes::new(Kind::Directory, Class::Names, 0o555, 0, 0, Timestamp::default());
                Ok(Attributes { nlink: 2, parent: id, ..own })
            }
            attributes => attributes,
        }
    }

    /// What keeps the root directory from being read, if something does: what is wrong with its record, or with what is read of it first.
    pub fn root_damage(&self) -> Option<Error> {
        self.readdir(ObjectId::ROOT, COOKIE_PARENT, |_| false).err().filter(|error| error.damage().is_some())
    }

    /// Opens a file, a directory or any other object for this access; `truncate` empties a regular file. The caller
    /// holds it until [`Namespace::release`]. There is no handle: the object's id serves.
    pub fn open(&self, request: &Request, id: ObjectId, wanted: Access, truncate: bool) -> Result<()> {
        {
            let _in_use = self.locks.lock(&[(id, Use::Shared)]);
            let attributes = self.inode(id)?;
            let changes = permission::includes(wanted, Access::WRITE);
            if changes || truncate {
                self.check_changeable(id)?;
            }
            if attributes.kind == Kind::Directory && (changes || truncate) {
                return Err(Error::IsDirectory(id));
            }
            self.check_access(request, id, &attributes, wanted)?;
            self.cache.hold(id, Hold::Open, 1);
            if !truncate || attributes.kind != Kind::Regular {
                return Ok(());
            }
        }
        let set = SetAttr { size: Some(0), opened: true, ..SetAttr::default() };
        self.setattr(request, id, &set).map(drop).inspect_err(|_| {
            self.cache.hold(id, Hold::Open, -1);
        })
    }

    /// Gives back one [`Namespace::open`], [`Namespace::opendir`] or [`Namespace::create`].
    pub fn release(&self, id: ObjectId) -> Result<()> {
        self.let_go(id, Hold::Open, 1)
    }

    /// Opens a directory for reading.
    pub fn opendir(&self, request: &Request, id: ObjectId) -> Result<()> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = match self.directory_attributes(id) {
            Err(error) if is_damaged_root(id, &error) => self.getattr(id)?,
            attributes => attributes?,
        };
        self.check_access(request, id, &attributes, Access::READ)?;
        self.cache.hold(id, Hold::Open, 1);
        Ok(())
    }

    /// Whether the caller has this access, whoever enforces it.
    pub fn access(&self, request: &Request, id: ObjectId, wanted: Access) -> Result<()> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        self.require(id, &self.inode(id)?, &request.caller, wanted)
    }

    /// The room there is; what has just been deleted counts as free.
    pub fn statfs(&self) -> StatFs {
        let space = self.cache.space_expected();
        let (free, available) = (space.free_in_all(), space.available_pages());
        let blocks = space.quota.map_or(space.total, |quota| quota.min(space.total));
        let files_free = available.min(ObjectId::MAX.0);
        StatFs {
            block_bytes: holdfast_object::PAGE_SIZE as u32,
            blocks,
            free,
            available,
            files: space.total.min(ObjectId::MAX.0),
            files_free,
            name_max: NAME_MAX as u32,
        }
    }

    /// A path of the object, from the root, for messages: by the names that it lists. Components that are not known are shown as
    /// `#id`.
    pub fn path_of(&self, id: ObjectId) -> Vec<u8> {
        /// Deeper paths are cut off at the front.
        const COMPONENTS_MAX: usize = 256;
        let mut components: Vec<Vec<u8>> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT {
            if components.len() == COMPONENTS_MAX {
                components.push(b"...".to_vec());
                break;
            }
            if is_fleeting(at) {
                components.extend(self.fleeting_path(at));
                break;
            }
            let unknown = format!("{at}").into_bytes();
            let Ok(attributes) = self.cache.attributes(at) else {
                components.push(unknown);
                break;
            };
            if attributes.kind == Kind::Xattr {
                at = attributes.parent;
                continue;
            }
            let (parent, name) = self.name_of(at).unwrap_or((attributes.parent, unknown));
            components.push(name);
            at = parent;
        }
        if components.is_empty() {
            return b"/".to_vec();
        }
        components.iter().rev().fold(Vec::new(), |mut path, component| {
            path.push(b'/');
            path.extend_from_slice(component);
            path
        })
    }

    /// The path of the object of this domain that an error is about, if it is about one. For messages, as [`Namespace::path_of`].
    pub fn path_of_error(&self, error: &Error) -> Option<Vec<u8>> {
        let object = match error {
            Error::Object(error) => error.object(),
            Error::CorruptDirectory { object, .. }
            | Error::CorruptAttributes { object, .. }
            | Error::CorruptTree { object, .. }
            | Error::Mismatch { object, .. } => Some(*object),
            _ => None,
        };
        object.map(|object| self.path_of(object))
    }

    /// A name of the object, with its directory: the first one listed that is there. For messages: what cannot be read is passed over,
    /// and read once, because the message may be about a device that takes its time to fail.
    pub(super) fn name_of(&self, id: ObjectId) -> Option<(ObjectId, Vec<u8>)> {
        /// What is renamed at that moment is looked for again, where it says that it is then.
        const TRIES: usize = 3;
        let mut looked: Vec<NamePlace> = Vec::new();
        let mut failed: Vec<ObjectId> = Vec::new();
        for _ in 0..TRIES {
            let mut places: Vec<NamePlace> = self.cache.attributes(id).ok()?.names().collect();
            places.retain(|place| !looked.contains(place));
            if places.is_empty() {
                return None;
            }
            for place in places {
                looked.push(place);
                if failed.contains(&place.directory) {
                    continue;
                }
                match self.name_at(place, id) {
                    Ok(Some(name)) => return Some((place.directory, name)),
                    Ok(None) => {}
                    Err(_) => failed.push(place.directory),
                }
            }
        }
        None
    }

    /// The name in this place, if it is one of the object.
    pub(super) fn name_at(&self, NamePlace { directory, key }: NamePlace, id: ObjectId) -> Result<Option<Vec<u8>>> {
        let _in_use = self.locks.lock(&[(directory, Use::Shared)]);
        let attributes = self.directory_attributes(directory)?;
        self.open_directory(directory, &attributes)?.name_at(key, id.live())
    }
}
