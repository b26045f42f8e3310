//! Who may do what to an object: mode bits and access control lists together.

use super::{Namespace, Request};
use crate::acl::{self, Acl};
use crate::error::{Error, Result};
use crate::permission::{self, Access, Caller, Enforce};
use crate::xattr::Xattrs;
use holdfast_object::{Attributes, Kind, ObjectId};

/// What a new object starts with besides its kind.
pub(super) struct Inherited {
    pub(super) gid: u32,
    pub(super) mode: u16,
    /// The mode as long as `xattrs` are not there; it gives nobody more than they do.
    pub(super) mode_without_lists: u16,
    /// Its access control lists.
    pub(super) xattrs: Xattrs,
}

impl Namespace {
    pub(super) fn enforces(&self) -> bool {
        self.options.enforce == Enforce::InNaming
    }

    /// Whether the caller has this access, whoever enforces it. The object is in use.
    pub(super) fn permits(
        &self,
        id: ObjectId,
        attributes: &Attributes,
        caller: &Caller,
        wanted: Access,
    ) -> Result<bool> {
        const GROUP_CLASS: u16 = 0o070;
        // As in Linux, a list is not looked at where the mode, and with it the mask, gives the group class nothing.
        let may_have_list = attributes.xattr != ObjectId::NONE && attributes.mode & GROUP_CLASS != 0;
        if may_have_list
            && !caller.is_privileged()
            && caller.uid != attributes.uid
            && let Some(acl) = self.acl(id, attributes, acl::ACCESS)?
        {
            return Ok(acl.permits(attributes, caller, wanted));
        }
        Ok(permission::may_access(attributes, caller, wanted))
    }

    /// [`Namespace::permits`] as an error, whoever enforces it.
    pub(super) fn require(&self, id: ObjectId, attributes: &Attributes, caller: &Caller, wanted: Access) -> Result<()> {
        match self.permits(id, attributes, caller, wanted)? {
            true => Ok(()),
            false => Err(Error::Access { object: id, wanted: wanted.name() }),
        }
    }

    pub(super) fn check_access(
        &self,
        request: &Request,
        id: ObjectId,
        attributes: &Attributes,
        wanted: Access,
    ) -> Result<()> {
        if self.enforces() { self.require(id, attributes, &request.caller, wanted) } else { Ok(()) }
    }

    pub(super) fn check_sticky(
        &self,
        request: &Request,
        directory: &Attributes,
        id: ObjectId,
        entry: &Attributes,
    ) -> Result<()> {
        if self.enforces() { permission::check_sticky(id, directory, entry, &request.caller) } else { Ok(()) }
    }

    /// One of the object's access control lists.
    fn acl(&self, id: ObjectId, attributes: &Attributes, name: &[u8]) -> Result<Option<Acl>> {
        if attributes.xattr == ObjectId::NONE {
            return Ok(None);
        }
        match self.load_xattrs(id, attributes)?.get(name) {
            Some(value) => Acl::decode(value)
                .map_err(|_| Error::CorruptTree { object: id, what: "its access control list makes no sense" }),
            None => Ok(None),
        }
    }

    /// Group, mode and access control lists of a new object in `parent`. A default list of the directory takes the place
    /// of the caller's umask (acl(5), "object creation and default ACLs").
    pub(super) fn inherit(
        &self,
        request: &Request,
        parent: ObjectId,
        directory: &Attributes,
        kind: Kind,
        mode: u16,
    ) -> Result<Inherited> {
        let (gid, mode) = permission::inherit(directory, kind, &request.caller, mode);
        let mut xattrs = Xattrs::default();
        if kind == Kind::Symlink {
            return Ok(Inherited { gid, mode, mode_without_lists: mode, xattrs });
        }
        let Some(default) = self.acl(parent, directory, acl::DEFAULT)? else {
            let mode = mode & !(request.umask & 0o777);
            return Ok(Inherited { gid, mode, mode_without_lists: mode, xattrs });
        };
        let access = default.inherited(mode);
        let special = mode & !0o777;
        let mode = special | access.mode();
        let mode_without_lists = if access.is_mode() { mode } else { special | access.mode_without_list() };
        if !access.is_mode() {
            xattrs.set(acl::ACCESS, &access.encode());
        }
        if kind == Kind::Directory {
            xattrs.set(acl::DEFAULT, &default.encode());
        }
        Ok(Inherited { gid, mode, mode_without_lists, xattrs })
    }
}
