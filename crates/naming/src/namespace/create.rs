//! New objects and new names.

use super::answer::{Answer, repeated};
use super::{Found, LINK_MAX, LINKABLE, Namespace, Request};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::name::{self, SYMLINK_MAX};
use crate::permission::Access;
use crate::rolled::until_sound;
use crate::stage::Staged;
use crate::xattr::Xattrs;
use holdfast_object::{AttrSet, Attributes, Class, Hold, Kind, NamePlace, ObjectId, Op, Timestamp};

/// What [`Namespace::mknod`] makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewNode {
    /// A regular file.
    Regular,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u32),
    /// A block device with this number.
    BlockDevice(u32),
}

/// How [`Namespace::create`] opens or makes a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Create {
    /// Mode of a new file.
    pub mode: u16,
    /// There must be none of that name.
    pub exclusive: bool,
    /// Access to a file that is there already.
    pub wanted: Access,
    /// Empties a file that is there already.
    pub truncate: bool,
}

/// What [`Namespace::create`] found or made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// The file.
    pub found: Found,
    /// Whether it is new.
    pub new: bool,
}

/// What a new object is to be.
struct New<'a> {
    kind: Kind,
    mode: u16,
    rdev: u32,
    target: &'a [u8],
    /// Opened as well.
    open: bool,
    /// Links that it starts with.
    names: u32,
    flags: u32,
}

impl Namespace {
    /// Makes a file that is not a directory. As after a lookup, the caller holds it.
    pub fn mknod(&self, request: &Request, parent: ObjectId, name: &[u8], node: NewNode, mode: u16) -> Result<Found> {
        let (kind, rdev) = match node {
            NewNode::Regular => (Kind::Regular, 0),
            NewNode::Fifo => (Kind::Fifo, 0),
            NewNode::Socket => (Kind::Socket, 0),
            NewNode::CharDevice(rdev) => (Kind::CharDevice, rdev),
            NewNode::BlockDevice(rdev) => (Kind::BlockDevice, rdev),
        };
        self.make(request, parent, name, &New { kind, mode, rdev, target: &[], open: false, names: 1, flags: 0 })
    }

    /// Makes a directory. As after a lookup, the caller holds it.
    pub fn mkdir(&self, request: &Request, parent: ObjectId, name: &[u8], mode: u16) -> Result<Found> {
        let new = New { kind: Kind::Directory, mode, rdev: 0, target: &[], open: false, names: 2, flags: 0 };
        self.make(request, parent, name, &new)
    }

    /// Makes a symbolic link to `target`, 1 to 4095 bytes. As after a lookup, the caller holds it.
    pub fn symlink(&self, request: &Request, parent: ObjectId, name: &[u8], target: &[u8]) -> Result<Found> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::InvalidArgument("a link's target is empty or has a NUL in it"));
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong { length: target.len(), limit: SYMLINK_MAX });
        }
        let new = New { kind: Kind::Symlink, mode: 0o777, rdev: 0, target, open: false, names: 1, flags: 0 };
        self.make(request, parent, name, &new)
    }

    /// Opens a regular file, making it if there is none of that name. The caller holds it by id and as open.
    pub fn create(&self, request: &Request, parent: ObjectId, name: &[u8], how: &Create) -> Result<Created> {
        loop {
            let new = New { kind: Kind::Regular, mode: how.mode, rdev: 0, target: &[], open: true, names: 1, flags: 0 };
            match self.make(request, parent, name, &new) {
                Err(Error::Exists { .. }) if !how.exclusive => {}
                made => return made.map(|found| Created { found, new: true }),
            }
            let mut found = match self.lookup(request, parent, name) {
                Err(Error::NotFound { .. }) => continue,
                found => found?,
            };
            let opened = match found.attributes.kind {
                Kind::Directory => Err(Error::IsDirectory(found.id)),
                _ => self.open(request, found.id, how.wanted, how.truncate),
            };
            if let Err(error) = opened {
                self.forget(found.id, 1)?;
                return Err(error);
            }
            found.attributes = self.inode(found.id)?;
            return Ok(Created { found, new: false });
        }
    }

    fn make(&self, request: &Request, parent: ObjectId, name: &[u8], new: &New<'_>) -> Result<Found> {
        until_sound(|| self.make_once(request, parent, name, new))
    }

    fn make_once(&self, request: &Request, parent: ObjectId, name: &[u8], new: &New<'_>) -> Result<Found> {
        if let Some(answer) = self.earlier(request)? {
            return self.answer_made(answer, new.open);
        }
        name::check_changeable(name)?;
        let _in_use = self.locks.lock(&[(parent, Use::Exclusive)]);
        let directory = self.directory_to_change(request, parent, name)?;
        let mut index = self.open_directory(parent, &directory)?;
        let vacancy = index.vacancy(name)?;
        self.check_access(request, parent, &directory, Access::CHANGE)?;
        let now = self.clock.now();
        let mut staged = self.stage().by(request.caller.is_privileged());
        let id = self.cache.new_object()?;
        let key = index.fill(vacancy, name, id, new.kind)?;
        self.stage_new(request, &mut staged, id, (parent, &directory, key), new, now)?;
        index.stage(&mut staged)?;
        let mut set = changed_entries(&mut staged, parent, &directory, 1, now);
        if new.kind == Kind::Directory {
            let nlink = directory.nlink.saturating_add(1);
            if nlink == directory.nlink
                && let Some(audit) = staged.audit()
            {
                audit.excuse_links(parent, Kind::Directory, 1);
            }
            set.nlink = Some(nlink);
        }
        staged.op(Op::SetAttributes { id: parent, set });
        self.submit_made(request, staged, id, new.open)
    }

    /// Makes a regular file without a name, as one of this directory, and opens it (open(2), O_TMPFILE). It goes with its
    /// last user unless [`Namespace::link`] gives it a name, which it does unless the file is to stay `nameless`. The
    /// caller holds it by id and as open.
    pub fn tmpfile(&self, request: &Request, parent: ObjectId, mode: u16, nameless: bool) -> Result<Found> {
        if let Some(answer) = self.earlier(request)? {
            return self.answer_made(answer, true);
        }
        let _in_use = self.locks.lock(&[(parent, Use::Shared)]);
        self.check_changeable(parent)?;
        let directory = self.directory_for(request, parent, b"", Access::CHANGE)?;
        let flags = if nameless { 0 } else { LINKABLE };
        let new = New { kind: Kind::Regular, mode, rdev: 0, target: &[], open: true, names: 0, flags };
        let mut staged = self.stage().by(request.caller.is_privileged());
        let id = self.cache.new_object()?;
        self.stage_new(request, &mut staged, id, (parent, &directory, 0), &new, self.clock.now())?;
        self.submit_made(request, staged, id, true)
    }

    /// Adds a new object of a directory, not its name, which has this key.
    fn stage_new(
        &self,
        request: &Request,
        staged: &mut Staged<'_>,
        id: ObjectId,
        (parent, directory, key): (ObjectId, &Attributes, u64),
        new: &New<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let inherited = self.inherit(request, parent, directory, new.kind, new.mode)?;
        let class = if new.kind == Kind::Regular { Class::Own } else { Class::Names };
        let mode = inherited.mode_without_lists;
        let mut attributes = Attributes::new(new.kind, class, mode, request.caller.uid, inherited.gid, now);
        attributes.nlink = new.names;
        attributes.rdev = new.rdev;
        attributes.parent = parent;
        attributes.name_key = key;
        attributes.flags = new.flags;
        staged.op(Op::Create { id, attributes: attributes.clone() });
        staged.metadata_bytes(id, 0, new.target)?;
        let none = Xattrs::default();
        if let Some(holder) = self.stage_xattrs(staged, id, &attributes, &none, &inherited.xattrs, now)? {
            // A change of the file's own, which a power cut may undo without undoing its creation. Then the mode that it was
            // created with counts, and gives nobody more.
            let set = AttrSet { mode: Some(inherited.mode), xattr: Some(holder), ..AttrSet::default() };
            staged.op(Op::SetAttributes { id, set });
        }
        Ok(())
    }

    fn submit_made(&self, request: &Request, staged: Staged<'_>, id: ObjectId, open: bool) -> Result<Found> {
        // Held before it can be seen, so that nobody deletes it before the caller knows of it.
        self.hold_made(id, open, 1);
        let outcome = staged.submit(request.id, Answer::Object(id).encode());
        if let Ok(None) = outcome.as_ref().map_err(Error::clone).and_then(|outcome| repeated(outcome.clone())) {
            return Ok(Found { id, attributes: self.inode(id)? });
        }
        self.hold_made(id, open, -1);
        match repeated(outcome?)? {
            Some(answer) => self.answer_made(answer, open),
            None => Err(Error::Stale(id)),
        }
    }

    fn hold_made(&self, id: ObjectId, open: bool, delta: i64) {
        self.cache.hold(id, Hold::Lookup, delta);
        if open {
            self.cache.hold(id, Hold::Open, delta);
        }
    }

    /// Answers a request that was done before. Its hold may be taken twice; that delays a deletion, no more.
    fn answer_made(&self, answer: Answer, open: bool) -> Result<Found> {
        let id = answer.object()?;
        let attributes = self.inode(id)?;
        self.hold_made(id, open, 1);
        Ok(Found { id, attributes })
    }

    /// Gives an object another name. As after a lookup, the caller holds it once more.
    pub fn link(&self, request: &Request, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<Found> {
        until_sound(|| self.link_once(request, id, parent, name))
    }

    fn link_once(&self, request: &Request, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<Found> {
        if let Some(answer) = self.earlier(request)? {
            return self.answer_made(answer, false);
        }
        name::check_changeable(name)?;
        self.check_changeable(id)?;
        let _in_use = self.locks.lock(&[(id, Use::Exclusive), (parent, Use::Exclusive)]);
        let attributes = self.inode(id)?;
        let directory = self.directory_to_change(request, parent, name)?;
        let mut index = self.open_directory(parent, &directory)?;
        let vacancy = index.vacancy(name)?;
        self.check_access(request, parent, &directory, Access::CHANGE)?;
        if attributes.kind == Kind::Directory {
            return Err(Error::Permission { object: id, what: "a directory has one name" });
        }
        let first = attributes.nlink == 0;
        if first && attributes.flags & LINKABLE == 0 {
            return Err(Error::not_found(parent, name));
        }
        if attributes.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks(id));
        }
        let now = self.clock.now();
        let mut staged = self.stage().by(request.caller.is_privileged());
        let key = index.fill(vacancy, name, id, attributes.kind)?;
        index.stage(&mut staged)?;
        let set = changed_entries(&mut staged, parent, &directory, 1, now);
        staged.op(Op::SetAttributes { id: parent, set });
        let names: Vec<_> = attributes.names().chain([NamePlace { directory: parent, key }]).collect();
        let set = AttrSet {
            nlink: Some(attributes.nlink + 1),
            flags: first.then_some(attributes.flags & !LINKABLE),
            ctime: Some(now),
            ..Attributes::list_names(&names)
        };
        staged.op(Op::SetAttributes { id, set });
        let outcome = staged.submit(request.id, Answer::Object(id).encode())?;
        let answer = repeated(outcome)?.unwrap_or(Answer::Object(id));
        self.answer_made(answer, false)
    }
}

/// The attributes of a directory that has `delta` more entries. A damaged one may say that it had a number that cannot change so.
pub(super) fn changed_entries(
    staged: &mut Staged<'_>,
    id: ObjectId,
    directory: &Attributes,
    delta: i64,
    now: Timestamp,
) -> AttrSet {
    let entries = directory.entries.saturating_add_signed(delta);
    let missing = delta.wrapping_sub(entries.wrapping_sub(directory.entries) as i64);
    if missing != 0
        && let Some(audit) = staged.audit()
    {
        audit.excuse_entries(id, missing);
    }
    AttrSet { entries: Some(entries), mtime: Some(now), ctime: Some(now), ..AttrSet::default() }
}
