//! Extended attributes of files.

use super::answer::Answer;
use super::{Namespace, Request};
use crate::acl::{self, ACL_BYTES_MAX, Acl};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::pages::ReadData;
use crate::permission::{self, Access, SETGID, STICKY};
use crate::rolled::{Rolled, until_sound};
use crate::stage::Staged;
use crate::xattr::{XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX, Xattrs};
use holdfast_object::{AttrSet, Attributes, Kind, ObjectId, Op, PAGE_SIZE, Timestamp};

/// Extended attribute with the capabilities that a file gives to whoever executes it.
const CAPABILITIES: &[u8] = b"security.capability";

/// Whether an attribute may or must be there before it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Either way.
    Set,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Read,
    Change,
}

impl Namespace {
    /// The value of an extended attribute.
    pub fn getxattr(&self, request: &Request, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = self.inode(id)?;
        self.check_xattr(request, id, &attributes, name, Intent::Read)?;
        let xattrs = self.load_xattrs(id, &attributes)?;
        xattrs.get(name).map(<[u8]>::to_vec).ok_or_else(|| no_attribute(id, name))
    }

    /// The names of all extended attributes that the caller may know of.
    pub fn listxattr(&self, request: &Request, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = self.inode(id)?;
        let xattrs = self.load_xattrs(id, &attributes)?;
        let visible = |name: &&[u8]| request.caller.is_privileged() || !name.starts_with(b"trusted.");
        Ok(xattrs.names().filter(visible).map(<[u8]>::to_vec).collect())
    }

    /// Sets an extended attribute. That of an access control list sets the mode too, and takes setgid away from a caller
    /// outside of the group.
    pub fn setxattr(&self, request: &Request, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(request, id, name, value, false);
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::AttributeTooBig { length: value.len(), limit: XATTR_VALUE_MAX });
        }
        self.change_xattrs(request, id, name, |xattrs| {
            match (mode, xattrs.get(name).is_some()) {
                (XattrMode::Create, true) => {
                    return Err(Error::AttributeExists { object: id, name: name.into() });
                }
                (XattrMode::Replace, false) => return Err(no_attribute(id, name)),
                _ => xattrs.set(name, value),
            }
            if xattrs.list_bytes() > XATTR_LIST_MAX { Err(Error::AttributesFull(id)) } else { Ok(()) }
        })
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, request: &Request, id: ObjectId, name: &[u8]) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        self.change_xattrs(request, id, name, |xattrs| match xattrs.remove(name) {
            true => Ok(()),
            false => Err(no_attribute(id, name)),
        })
    }

    fn change_xattrs(
        &self,
        request: &Request,
        id: ObjectId,
        name: &[u8],
        change: impl Fn(&mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        until_sound(|| self.change_xattrs_once(request, id, name, &change))
    }

    fn change_xattrs_once(
        &self,
        request: &Request,
        id: ObjectId,
        name: &[u8],
        change: impl Fn(&mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        let attributes = self.inode(id)?;
        self.check_xattr(request, id, &attributes, name, Intent::Change)?;
        let before = self.load_xattrs(id, &attributes)?;
        let mut after = before.clone();
        change(&mut after)?;
        let mut staged = self.stage().by(request.caller.is_privileged());
        if after.is_empty() {
            staged.may_use_reserve();
        }
        let now = self.clock.now();
        let xattr = self.stage_xattrs(&mut staged, id, &attributes, &before, &after, now)?;
        staged.op(Op::SetAttributes { id, set: AttrSet { xattr, ctime: Some(now), ..AttrSet::default() } });
        staged.submit(request.id, Answer::Nothing.encode())?;
        Ok(())
    }

    /// Sets an access control list, and the mode that follows from it; an empty list takes it away. `clear_setgid`: the
    /// caller is not in the file's group.
    pub fn set_acl(
        &self,
        request: &Request,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        clear_setgid: bool,
    ) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        if value.len() > ACL_BYTES_MAX {
            return Err(Error::AttributeTooBig { length: value.len(), limit: ACL_BYTES_MAX });
        }
        let list = Acl::decode(value)?;
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        let attributes = self.inode(id)?;
        self.check_xattr(request, id, &attributes, name, Intent::Change)?;
        if name == acl::DEFAULT && attributes.kind != Kind::Directory {
            return if list.is_none() { Ok(()) } else { Err(Error::Access { object: id, wanted: "directory" }) };
        }
        let before = self.load_xattrs(id, &attributes)?;
        let mut after = before.clone();
        let mut mode = None;
        if let (acl::ACCESS, Some(list)) = (name, &list) {
            let new = attributes.mode & !0o777 | list.mode();
            let caller = &request.caller;
            let foreign = self.enforces() && !caller.is_privileged() && !caller.is_in_group(attributes.gid);
            mode = Some(if clear_setgid || foreign { new & !SETGID } else { new });
        }
        match list {
            Some(list) if name == acl::DEFAULT || !list.is_mode() => after.set(name, &list.encode()),
            _ => drop(after.remove(name)),
        }
        let mut staged = self.stage().by(request.caller.is_privileged());
        let now = self.clock.now();
        let xattr = self.stage_xattrs(&mut staged, id, &attributes, &before, &after, now)?;
        staged.op(Op::SetAttributes { id, set: AttrSet { mode, xattr, ctime: Some(now), ..AttrSet::default() } });
        staged.submit(request.id, Answer::Nothing.encode())?;
        Ok(())
    }

    /// Adds what changes `before` to `after`, the extended attributes of the object `id` that has these attributes. Gives
    /// the change of `xattr` for the object's own record, if there is one.
    pub(super) fn stage_xattrs(
        &self,
        staged: &mut Staged<'_>,
        id: ObjectId,
        attributes: &Attributes,
        before: &Xattrs,
        after: &Xattrs,
        now: Timestamp,
    ) -> Result<Option<ObjectId>> {
        if after == before {
            return Ok(None);
        }
        if after.is_empty() {
            staged.op(Op::Delete { id: attributes.xattr });
            return Ok(Some(ObjectId::NONE));
        }
        let old = if before.is_empty() { Vec::new() } else { before.encode(id) };
        let new = after.encode(id);
        if new.len() > XATTR_TOTAL_MAX {
            return Err(Error::AttributesFull(id));
        }
        let mut made = None;
        let holder = match attributes.xattr {
            ObjectId::NONE => {
                let holder = self.cache.new_object()?;
                let mut holders =
                    Attributes::new(Kind::Xattr, attributes.class, 0, attributes.uid, attributes.gid, now);
                (holders.nlink, holders.parent) = (1, id);
                staged.op(Op::Create { id: holder, attributes: holders });
                made = Some(holder);
                holder
            }
            holder => holder,
        };
        if new.len() < old.len() {
            staged.op(Op::Truncate { id: holder, size: new.len() as u64 });
        }
        // Whole pages, because a part of a page cannot be written to an object that is cut in the same transaction.
        let pages = changed_pages(holder, &old, &new);
        staged.pages(holder, pages.iter().map(|(index, image)| (*index, image)), new.len() as u64)?;
        Ok(made)
    }

    /// Adds what another change of the object changes in its extended attributes, if it has any. Gives the change of
    /// `xattr` for the object's own record.
    pub(super) fn stage_changed_xattrs(
        &self,
        staged: &mut Staged<'_>,
        id: ObjectId,
        attributes: &Attributes,
        now: Timestamp,
        change: impl FnOnce(&mut Xattrs),
    ) -> Result<Option<ObjectId>> {
        if attributes.xattr == ObjectId::NONE {
            return Ok(None);
        }
        let before = self.load_xattrs(id, attributes)?;
        let mut after = before.clone();
        change(&mut after);
        self.stage_xattrs(staged, id, attributes, &before, &after, now)
    }

    pub(super) fn load_xattrs(&self, id: ObjectId, attributes: &Attributes) -> Result<Xattrs> {
        if attributes.xattr == ObjectId::NONE {
            return Ok(Xattrs::default());
        }
        let holder = self.cache.attributes(attributes.xattr)?;
        if holder.kind != Kind::Xattr || holder.parent != id {
            return Err(Error::CorruptTree { object: id, what: "its extended attributes are not its own" });
        }
        let size = usize::try_from(holder.size).ok().filter(|&size| size <= XATTR_TOTAL_MAX);
        let size = size.ok_or(Error::CorruptAttributes { object: attributes.xattr, offset: 0, what: "too long" })?;
        let bytes = ReadData::read(&*self.cache, attributes.xattr, 0, size)?.to_vec();
        Xattrs::decode(&bytes, attributes.xattr, id.live())
    }

    /// xattr(7): `user.` is for who may read or write the file, and only on regular files and directories; `trusted.` is
    /// the superuser's; `security.` is read by all and set by the superuser; of `system.` there are the access control lists,
    /// which the owner changes.
    fn check_xattr(
        &self,
        request: &Request,
        id: ObjectId,
        attributes: &Attributes,
        name: &[u8],
        how: Intent,
    ) -> Result<()> {
        if name.len() > XATTR_NAME_MAX {
            return Err(Error::Range { needed: name.len(), room: XATTR_NAME_MAX });
        }
        let prefix = name.iter().position(|&byte| byte == b'.').map(|dot| &name[..dot]);
        let rest = prefix.map_or(0, |prefix| name.len() - prefix.len() - 1);
        if name.contains(&0) || prefix.is_some() && rest == 0 {
            return Err(Error::InvalidArgument("attribute name is empty or has a NUL in it"));
        }
        let no = |what| Err(Error::Permission { object: id, what });
        match prefix {
            Some(b"system") if name == acl::ACCESS || name == acl::DEFAULT => match how {
                _ if attributes.kind == Kind::Symlink => {
                    Err(Error::NotSupported("access control lists of symbolic links"))
                }
                Intent::Change if self.enforces() => permission::check_owner(id, attributes, &request.caller),
                _ => Ok(()),
            },
            Some(b"user") => {
                if !matches!(attributes.kind, Kind::Regular | Kind::Directory) {
                    return match how {
                        Intent::Read => Err(no_attribute(id, name)),
                        Intent::Change => no("only regular files and directories have user attributes"),
                    };
                }
                if self.enforces() && how == Intent::Change && attributes.kind == Kind::Directory {
                    // Whoever may write to a sticky directory could fill up another's quota.
                    if attributes.mode & STICKY != 0 {
                        permission::check_owner(id, attributes, &request.caller)?;
                    }
                }
                let wanted = if how == Intent::Read { Access::READ } else { Access::WRITE };
                self.check_access(request, id, attributes, wanted)
            }
            Some(b"trusted") if !self.enforces() || request.caller.is_privileged() => Ok(()),
            Some(b"trusted") => match how {
                Intent::Read => Err(no_attribute(id, name)),
                Intent::Change => no("only the superuser sets trusted attributes"),
            },
            Some(b"security") if how == Intent::Change && self.enforces() && !request.caller.is_privileged() => {
                no("only the superuser sets security attributes")
            }
            Some(b"security") => Ok(()),
            _ => Err(Error::NotSupported("extended attributes of this class")),
        }
    }
}

/// After a chmod the access control list says the same as the mode.
pub(super) fn follow_mode(xattrs: &mut Xattrs, mode: u16) {
    if let Some(Ok(Some(mut list))) = xattrs.get(acl::ACCESS).map(Acl::decode) {
        list.set_mode(mode);
        xattrs.set(acl::ACCESS, &list.encode());
    }
}

/// A file whose contents or owner change loses its capabilities, whoever changes them (capabilities(7)).
pub(super) fn drop_capabilities(xattrs: &mut Xattrs) {
    xattrs.remove(CAPABILITIES);
}

fn no_attribute(id: ObjectId, name: &[u8]) -> Error {
    Error::NoAttribute { object: id, name: name.into() }
}

/// The pages in which `new` differs from `old`; zeroes are behind the end of both.
fn changed_pages(id: ObjectId, old: &[u8], new: &[u8]) -> Vec<(u64, Rolled)> {
    let page = |bytes: &[u8], index: usize| {
        let rest = bytes.get(index * PAGE_SIZE..).unwrap_or_default();
        let mut image = Rolled::zeroes(id, index as u64);
        image.put(0, &rest[..rest.len().min(PAGE_SIZE)]);
        image
    };
    (0..new.len().div_ceil(PAGE_SIZE))
        .map(|index| (index, page(new, index)))
        .filter(|(index, image)| old.len() <= index * PAGE_SIZE || *page(old, *index) != **image)
        .map(|(index, image)| (index as u64, image))
        .collect()
}
