//! The requests on a name space.
//!
//! Invariants after each transaction:
//! - an entry names an object of the kind it says; a directory has one entry, in the directory that its `parent` names;
//! - `nlink` of a directory is 2 plus its subdirectories, of anything else the number of its entries; an object with
//!   `nlink` 0 stays until nobody holds it;
//! - the names that an object lists are its entries, and all of them if it never had more than [`object::NAMES_LISTED_MAX`];
//! - `entries` of a directory is the number of its entries;
//! - an object's `xattr` names an object of kind `Xattr` that nothing else names, whose `parent` is the object;
//! - an object's access control list, if it has one, says the same as its mode ([`crate::check`] has all of these).

mod access;
mod answer;
mod attributes;
mod create;
mod data;
mod diff;
mod errors;
mod lookup;
mod readdir;
mod remove;
mod rename;
mod snapshots;
mod xattrs;

pub use attributes::{SetAttr, TimeSet};
pub use create::{Create, Created, NewNode};
pub use data::{Position, SpaceMode, WRITE_MAX};
pub use diff::PathChange;
pub use lookup::{Found, StatFs};
pub use readdir::DirEntry;
pub use rename::RenameMode;
pub use snapshots::{CONTROL_NAME, is_fleeting};
pub use xattrs::XattrMode;

use crate::audit::Audits;
use crate::bugs::{Bugs, NameBug};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::locks::{Locks, Use};
use crate::permission::{Access, Caller, Enforce};
use crate::stage::Staged;
use answer::Answer;
use holdfast_object::{
    self as object, AttrSet, Attributes, Class, Clock, Hold, Kind, ObjectCache, ObjectId, Op, RequestId, SnapshotId,
    Snapshots, Timestamp,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use twox_hash::XxHash3_64;

/// Most names that a file can have.
pub const LINK_MAX: u32 = 65_000;

/// In an object's `flags`: made without a name, and may be given one.
const LINKABLE: u32 = 1 << 0;

/// When reading changes the time of last access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Atime {
    /// If it is not newer than the last change, or older than a day (mount(8), `relatime`).
    #[default]
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}

/// What reading does to times of last access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AccessTimes {
    atime: Atime,
    no_directory: bool,
}

impl AccessTimes {
    const NO_DIRECTORY: u8 = 4;

    fn packed(self) -> u8 {
        let atime = match self.atime {
            Atime::Relative => 0,
            Atime::Strict => 1,
            Atime::Never => 2,
        };
        if self.no_directory { atime | Self::NO_DIRECTORY } else { atime }
    }

    fn unpacked(packed: u8) -> AccessTimes {
        let atime = match packed & !Self::NO_DIRECTORY {
            1 => Atime::Strict,
            2 => Atime::Never,
            _ => Atime::Relative,
        };
        AccessTimes { atime, no_directory: packed & Self::NO_DIRECTORY != 0 }
    }
}

/// How a name space is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Who checks permissions.
    pub enforce: Enforce,
    /// Times of last access.
    pub atime: Atime,
    /// Directories keep theirs (mount(8), `nodiratime`).
    pub no_directory_atime: bool,
    /// Seeds the hashes of new directories; from a source of randomness, so that names with equal hashes cannot be made
    /// on purpose.
    pub seed: u64,
    /// For measurements only: transactions are not audited.
    pub unaudited: bool,
}

/// Who asks, and which of its requests this is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// For requests that may come twice: the second time they are answered, not done.
    pub id: Option<RequestId>,
    /// Who.
    pub caller: Caller,
    /// Permission bits that new objects do not get, unless their directory has a default access control list.
    pub umask: u16,
}

impl Request {
    /// A request of the superuser that comes only once.
    pub const ROOT: Request = Request { id: None, caller: Caller::ROOT, umask: 0 };
}

/// A name space on the objects of one domain.
pub struct Namespace {
    cache: Arc<dyn ObjectCache>,
    clock: Arc<dyn Clock>,
    options: Options,
    /// [`AccessTimes`], as they are now: a remount changes them.
    access_times: AtomicU8,
    locks: Locks,
    audits: Audits,
    bugs: Bugs,
    /// Of the domain, to be looked into under `.holdfast`.
    snapshots: Option<Arc<dyn Snapshots>>,
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("domain", &self.cache.domain()).field("options", &self.options).finish()
    }
}

impl Namespace {
    /// The name space in these objects. Changes nothing.
    pub fn new(cache: Arc<dyn ObjectCache>, clock: Arc<dyn Clock>, options: Options) -> Namespace {
        let access_times = AccessTimes { atime: options.atime, no_directory: options.no_directory_atime };
        let access_times = AtomicU8::new(access_times.packed());
        Namespace {
            cache,
            clock,
            options,
            access_times,
            locks: Locks::new(),
            audits: Audits::default(),
            bugs: Bugs::default(),
            snapshots: None,
        }
    }

    /// From now on, reading changes times of last access like this.
    pub fn set_access_times(&self, atime: Atime, no_directory: bool) {
        self.access_times.store(AccessTimes { atime, no_directory }.packed(), Ordering::Relaxed);
    }

    fn access_times(&self) -> AccessTimes {
        AccessTimes::unpacked(self.access_times.load(Ordering::Relaxed))
    }

    /// The same with the domain's snapshots under `.holdfast/snapshots` in the root.
    pub fn with_snapshots(self, snapshots: Arc<dyn Snapshots>) -> Namespace {
        Namespace { snapshots: Some(snapshots), ..self }
    }

    /// What it stands on.
    pub fn cache(&self) -> &Arc<dyn ObjectCache> {
        &self.cache
    }

    /// Makes the root directory if there is none. Gives whether it did.
    pub fn initialise(&self, uid: u32, gid: u32, mode: u16) -> Result<bool> {
        match self.cache.attributes(ObjectId::ROOT) {
            Ok(root) => return check_root(ObjectId::ROOT, &root).map(|()| false),
            Err(object::Error::NoObject(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let mut attributes = Attributes::new(Kind::Directory, Class::Names, mode & 0o7777, uid, gid, self.clock.now());
        attributes.nlink = 2;
        attributes.parent = ObjectId::ROOT;
        let mut staged = self.stage();
        staged.op(Op::Create { id: ObjectId::ROOT, attributes });
        staged.submit(None, Answer::Nothing.encode())?;
        Ok(true)
    }

    fn stage(&self) -> Staged<'_> {
        let staged = Staged::new(&*self.cache).with(&self.bugs);
        if self.options.unaudited { staged } else { staged.audited(&self.audits) }
    }

    /// How often a transaction did not fit together and was not done, each attempt of a request by itself: logic bugs, or memory that went bad.
    pub fn audit_failures(&self) -> u64 {
        self.audits.failures()
    }

    /// From now on the first transaction in which this is possible has a logic bug: for the lab.
    pub fn do_wrongly(&self, bug: NameBug) {
        self.bugs.set(bug);
    }

    /// Whether there has been such a transaction since.
    pub fn has_done_wrongly(&self) -> bool {
        self.bugs.are_done()
    }

    /// Attributes of an object that a caller names.
    fn inode(&self, id: ObjectId) -> Result<Attributes> {
        if id.snapshot() == SnapshotId::VIRTUAL {
            return self.virtual_attributes(id);
        }
        let attributes = self.cache.attributes(id)?;
        if id.live() == ObjectId::ROOT {
            check_root(id, &attributes)?;
        }
        // Objects with extended attributes have no name and are nobody's to name.
        if attributes.kind == Kind::Xattr { Err(Error::Stale(id)) } else { Ok(attributes) }
    }

    /// Attributes of an object that an entry names.
    fn child(&self, id: ObjectId, kind: Kind) -> Result<Attributes> {
        if id.snapshot() == SnapshotId::VIRTUAL {
            return self.virtual_attributes(id);
        }
        let attributes = self.cache.attributes(id).map_err(|error| match error {
            object::Error::NoObject(_) => {
                Error::CorruptTree { object: id, what: "an entry names it, but it is not there" }
            }
            error => Error::Object(error),
        })?;
        if attributes.kind != kind {
            return Err(Error::CorruptTree { object: id, what: "its entry says another kind" });
        }
        Ok(attributes)
    }

    fn directory_attributes(&self, id: ObjectId) -> Result<Attributes> {
        let attributes = self.inode(id)?;
        if attributes.kind != Kind::Directory { Err(Error::NotDirectory(id)) } else { Ok(attributes) }
    }

    /// A directory in which `name` is to be found or changed.
    fn directory_for(&self, request: &Request, id: ObjectId, name: &[u8], wanted: Access) -> Result<Attributes> {
        let attributes = self.directory_attributes(id)?;
        if attributes.nlink == 0 {
            return Err(Error::not_found(id, name));
        }
        self.check_access(request, id, &attributes, wanted)?;
        Ok(attributes)
    }

    /// A directory in which `name` is to be made, replaced or removed.
    fn directory_to_change(&self, request: &Request, id: ObjectId, name: &[u8]) -> Result<Attributes> {
        self.check_changeable(id)?;
        self.check_name_is_free(id, name)?;
        self.directory_for(request, id, name, Access::SEARCH)
    }

    fn open_directory(&self, id: ObjectId, attributes: &Attributes) -> Result<Directory<'_>> {
        let mut salt = [0; 24];
        salt[..8].copy_from_slice(&id.0.to_le_bytes());
        salt[8..16].copy_from_slice(&attributes.btime.secs.to_le_bytes());
        salt[16..20].copy_from_slice(&attributes.btime.nanos.to_le_bytes());
        let seed = XxHash3_64::oneshot_with_seed(self.options.seed, &salt);
        Directory::open(&*self.cache, id, attributes.size, seed)
    }

    /// Adds what becomes of an object that loses its last name: deleted if nobody holds it, otherwise kept without a
    /// name, which is what it gives; then [`Namespace::settle`] is to be called once the transaction is done. The object
    /// is in exclusive use.
    fn stage_last_name_gone(
        &self,
        staged: &mut Staged<'_>,
        id: ObjectId,
        attributes: &Attributes,
        now: Timestamp,
    ) -> bool {
        let kept = !self.cache.hold(id, Hold::Lookup, 0).is_free();
        if kept {
            // A power cut may have left the flag of a file that has got a name since.
            let flags = (attributes.flags & LINKABLE != 0).then_some(attributes.flags & !LINKABLE);
            let set = AttrSet { nlink: Some(0), flags, ctime: Some(now), ..Attributes::list_names(&[]) };
            staged.op(Op::SetAttributes { id, set });
        } else {
            self.stage_delete(staged, id, attributes);
        }
        if let Some(audit) = staged.audit() {
            if kept && attributes.nlink > 0 {
                audit.keep(id);
            }
            // What an entry names that goes on to be found wrong: a file that says it has no name, an empty directory with a wrong number of links.
            match (attributes.kind, attributes.nlink) {
                (Kind::Directory, links) => audit.excuse_links(id, attributes.kind, i64::from(links) - 2),
                (kind, 0) => audit.excuse_links(id, kind, -1),
                _ => {}
            }
        }
        kept
    }

    /// Deletes an object that was kept without a name, if its last holder let go while the name was being removed: that
    /// one saw a name and left the object alone. Nothing is in use.
    fn settle(&self, id: ObjectId) {
        if self.cache.hold(id, Hold::Lookup, 0).is_free()
            && let Err(error) = self.reclaim(id)
        {
            tracing::warn!(object = id.0, %error, "an unlinked object stays until the next start");
        }
    }

    fn stage_delete(&self, staged: &mut Staged<'_>, id: ObjectId, attributes: &Attributes) {
        if attributes.xattr != ObjectId::NONE {
            // A damaged store may name what is another's, or not there.
            let is_own = match self.cache.attributes(attributes.xattr) {
                Ok(holder) => holder.kind == Kind::Xattr && holder.parent == id,
                Err(object::Error::NoObject(_)) => false,
                // Of the deletion, the error will be the same.
                Err(_) => true,
            };
            if is_own {
                staged.op(Op::Delete { id: attributes.xattr });
            } else if let Some(audit) = staged.audit() {
                audit.excuse_xattr(id, attributes.xattr);
            }
        }
        staged.op(Op::Delete { id });
    }

    /// Deletes the object if it has no name and nobody holds it.
    fn reclaim(&self, id: ObjectId) -> Result<bool> {
        let unlinked = |attributes: &Attributes| attributes.nlink == 0 && attributes.kind != Kind::Xattr;
        match self.cache.attributes(id) {
            Ok(attributes) if unlinked(&attributes) => {}
            Ok(_) | Err(object::Error::NoObject(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        // Others may have been here between.
        let attributes = match self.cache.attributes(id) {
            Ok(attributes) => attributes,
            Err(object::Error::NoObject(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !unlinked(&attributes) || !self.cache.hold(id, Hold::Lookup, 0).is_free() {
            return Ok(false);
        }
        let mut staged = self.stage();
        staged.may_use_reserve();
        self.stage_delete(&mut staged, id, &attributes);
        staged.submit(None, Answer::Nothing.encode())?;
        Ok(true)
    }

    /// Deletes what has no name and nobody holds: unlinked files that were open when the store was last in use. To be
    /// called once, before the first request. Gives how many there were.
    ///
    /// # Errors
    /// The first of those that are damaged ([`ErrorKind::Corrupt`], [`ErrorKind::Device`], [`ErrorKind::Internal`]), when all others are deleted: they stay, as what
    /// has no name harms nobody. Anything else at once.
    pub fn reclaim_orphans(&self) -> Result<u64> {
        let (mut count, mut damage) = (0, None);
        for id in self.cache.orphans()? {
            match self.reclaim(id) {
                Ok(is_deleted) => count += u64::from(is_deleted),
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal) => {
                    damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        damage.map_or(Ok(count), Err)
    }
}

/// Whether these can be attributes of a root directory.
///
/// # Errors
/// They are of something else.
fn check_root(id: ObjectId, attributes: &Attributes) -> Result<()> {
    match attributes.kind {
        Kind::Directory => Ok(()),
        _ => Err(Error::CorruptTree { object: id, what: "the root is no directory" }),
    }
}
