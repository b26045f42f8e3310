//! Between naming's values and the wire's.

use crate::abi::Attr;
use crate::errno::Errno;
use crate::handler::Entry;
use holdfast_object::{Attributes, Kind, ObjectId, PAGE_SIZE};
use std::time::Duration;

/// The object with a node number: they are the same number.
pub(super) fn node_of(node: u64) -> Result<ObjectId, Errno> {
    ObjectId::from_raw(node).ok_or(Errno::STALE)
}

/// The upper bits of `st_mode`.
pub(super) fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::Regular | Kind::Xattr => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

pub(super) fn attr(id: ObjectId, attributes: &Attributes) -> Attr {
    Attr {
        ino: id.0,
        size: attributes.size,
        // Of 512 bytes, as st_blocks counts.
        blocks: attributes.blocks.saturating_mul(PAGE_SIZE as u64 / 512),
        atime: attributes.atime.secs as u64,
        mtime: attributes.mtime.secs as u64,
        ctime: attributes.ctime.secs as u64,
        atimensec: attributes.atime.nanos,
        mtimensec: attributes.mtime.nanos,
        ctimensec: attributes.ctime.nanos,
        mode: file_type(attributes.kind) | u32::from(attributes.mode),
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: PAGE_SIZE as u32,
        flags: 0,
    }
}

pub(super) fn entry_of(id: ObjectId, attributes: &Attributes, valid: Duration) -> Entry {
    Entry {
        node: id.0,
        generation: attributes.generation,
        attr: attr(id, attributes),
        name_valid: valid,
        attr_valid: valid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Class, Timestamp};

    #[test]
    fn times_before_1970_survive() {
        let before = Timestamp { secs: -1, nanos: 999_999_999 };
        let attributes = Attributes::new(Kind::Directory, Class::Names, 0o755, 1, 2, before);
        let attr = attr(ObjectId(7), &attributes);
        assert_eq!((attr.mtime as i64, attr.mtimensec, attr.mode), (-1, 999_999_999, 0o040755));
    }

    #[test]
    fn node_numbers_are_object_ids() {
        assert_eq!(node_of(1), Ok(ObjectId::ROOT));
        assert_eq!(node_of(0), Err(Errno::STALE));
        assert_eq!(node_of(1 << 48), Err(Errno::STALE));
    }
}
