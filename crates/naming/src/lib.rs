//! Naming: POSIX names and attributes as transactions of object operations.
//!
//! One request is one transaction ([`holdfast_object::ObjectCache::submit`]): all of it happens or nothing. Naming keeps
//! nothing that must survive it: what sessions hold, given answers, and objects without a name live below, so that naming
//! can die at any moment and another one goes on. It knows nothing of FUSE and of error numbers.
//!
//! - [`Namespace`] has the requests, one file per group of them under `namespace/`;
//! - `directory/` is the index of entries in a directory object's pages (`docs/format-directory.md`);
//! - [`permission`] has the rules of mode bits;
//! - [`check`] compares a whole name space with its objects.
#![warn(missing_docs)]

mod acl;
mod audit;
mod bugs;
pub mod check;
mod damage;
#[doc(hidden)]
pub mod decoders;
mod directory;
mod error;
mod few;
mod forms;
mod locks;
mod name;
mod namespace;
mod pages;
pub mod permission;
mod rolled;
mod stage;
mod sums;
mod xattr;

#[cfg(test)]
#[path = "../tests/it/memory_cache.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod memory_cache;

pub use bugs::NameBug;
pub use damage::Damage;
pub use error::{Error, ErrorKind, Name, Result};
pub use forms::{PageField, page_fields};
pub use holdfast_object::Side;
pub use name::{NAME_MAX, SYMLINK_MAX};
pub use namespace::{
    Atime, CONTROL_NAME, Create, Created, DirEntry, Found, LINK_MAX, Namespace, NewNode, Options, PathChange, Position,
    RenameMode, Request, SetAttr, SpaceMode, StatFs, TimeSet, WRITE_MAX, XattrMode, is_fleeting,
};
pub use pages::{ReadData, SumsWanted};
pub use permission::{Access, Caller, Enforce};
pub use xattr::{XATTR_LIST_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
