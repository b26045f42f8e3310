//! Removing names.

use super::answer::Answer;
use super::create::changed_entries;
use super::{Namespace, Request};
use crate::directory::{Directory, Entry};
use crate::error::{Error, Result};
use crate::locks::{InUse, Use};
use crate::name;
use crate::permission::Access;
use crate::rolled::until_sound;
use holdfast_object::{AttrSet, Attributes, Kind, NamePlace, ObjectId, Op, Timestamp};

/// An entry that is about to be removed, with its directory; both in exclusive use.
struct Target<'a> {
    index: Directory<'a>,
    directory: Attributes,
    entry: Entry,
    attributes: Attributes,
    in_use: InUse<'a>,
}

impl Namespace {
    /// Removes the name of something that is not a directory.
    pub fn unlink(&self, request: &Request, parent: ObjectId, name: &[u8]) -> Result<()> {
        self.remove(request, parent, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, request: &Request, parent: ObjectId, name: &[u8]) -> Result<()> {
        self.remove(request, parent, name, true)
    }

    fn remove(&self, request: &Request, parent: ObjectId, name: &[u8], wants_directory: bool) -> Result<()> {
        until_sound(|| self.remove_once(request, parent, name, wants_directory))
    }

    fn remove_once(&self, request: &Request, parent: ObjectId, name: &[u8], wants_directory: bool) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        name::check_changeable(name)?;
        let Target { mut index, directory, entry, attributes, in_use } = self.target(request, parent, name)?;
        let id = entry.object;
        match (wants_directory, entry.kind == Kind::Directory) {
            (true, false) => return Err(Error::NotDirectory(id)),
            (false, true) => return Err(Error::IsDirectory(id)),
            (true, true) => self.check_empty(id, &attributes)?,
            (false, false) => {}
        }
        let now = self.clock.now();
        let mut staged = self.stage();
        staged.may_use_reserve();
        index.take_out(entry)?;
        index.stage(&mut staged)?;
        let mut set = changed_entries(&mut staged, parent, &directory, -1, now);
        if wants_directory {
            set.nlink = Some(fewer_subdirectories(parent, &directory)?);
        }
        staged.op(Op::SetAttributes { id: parent, set });
        let mut kept = false;
        if wants_directory || attributes.nlink <= 1 {
            kept = self.stage_last_name_gone(&mut staged, id, &attributes, now);
        } else {
            staged.op(Op::SetAttributes { id, set: one_name_fewer(&attributes, parent, entry.key, now) });
        }
        staged.submit(request.id, Answer::Nothing.encode())?;
        drop(in_use);
        if kept {
            self.settle(id);
        }
        Ok(())
    }

    fn target(&self, request: &Request, parent: ObjectId, name: &[u8]) -> Result<Target<'_>> {
        let find = || -> Result<(Attributes, Directory<'_>, Entry)> {
            let directory = self.directory_to_change(request, parent, name)?;
            let index = self.open_directory(parent, &directory)?;
            let entry = index.lookup(name)?.ok_or_else(|| Error::not_found(parent, name))?;
            Ok((directory, index, entry))
        };
        loop {
            let seen = {
                let _in_use = self.locks.lock(&[(parent, Use::Shared)]);
                find()?.2
            };
            let in_use = self.locks.lock(&[(parent, Use::Exclusive), (seen.object, Use::Exclusive)]);
            let (directory, index, entry) = find()?;
            if entry != seen {
                continue;
            }
            let attributes = self.child(entry.object, entry.kind)?;
            self.check_access(request, parent, &directory, Access::CHANGE)?;
            self.check_sticky(request, &directory, entry.object, &attributes)?;
            return Ok(Target { index, directory, entry, attributes, in_use });
        }
    }

    /// Checks that a directory can go.
    pub(super) fn check_empty(&self, id: ObjectId, attributes: &Attributes) -> Result<()> {
        let empty = self.open_directory(id, attributes)?.is_empty()?;
        match (empty, attributes.entries == 0) {
            (true, true) => Ok(()),
            (false, false) => Err(Error::NotEmpty(id)),
            _ => Err(Error::CorruptTree { object: id, what: "number of entries is wrong" }),
        }
    }
}

/// The attributes of an object that loses this one of its names.
pub(super) fn one_name_fewer(attributes: &Attributes, directory: ObjectId, key: u64, now: Timestamp) -> AttrSet {
    let gone = NamePlace { directory, key };
    let names: Vec<_> = attributes.names().filter(|name| *name != gone).collect();
    AttrSet { nlink: Some(attributes.nlink - 1), ctime: Some(now), ..Attributes::list_names(&names) }
}

/// Links of a directory that loses a subdirectory.
pub(super) fn fewer_subdirectories(id: ObjectId, directory: &Attributes) -> Result<u32> {
    match directory.nlink.checked_sub(1) {
        Some(nlink) if nlink >= 2 => Ok(nlink),
        _ => Err(Error::CorruptTree { object: id, what: "number of links leaves no room for a subdirectory" }),
    }
}
