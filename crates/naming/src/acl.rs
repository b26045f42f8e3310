//! POSIX access control lists (acl(5); IEEE 1003.1e draft 17, section 23), kept as extended attributes in the form that
//! Linux gives them: `struct posix_acl_xattr_header` and entries of `uapi/linux/posix_acl_xattr.h`, little-endian.
//!
//! Invariants of an [`Acl`] (see [`Acl::decode`]):
//! - one entry each for the owner, the owning group and others; entries in the order owner, users, owning group, groups,
//!   mask, others;
//! - a mask if a user or a group is named;
//! - the mode of an object with an access list has the owner's, the mask's (without a mask the owning group's) and the
//!   others' permissions in its lower nine bits.

use crate::error::{Error, Result};
use crate::permission::{Access, Caller};
use holdfast_object::Attributes;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Extended attribute with the list that decides about access to the object.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Extended attribute of a directory with the list that new entries start with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Longest list as bytes: the kernel asks for one with a buffer of a page (`fuse_get_acl`).
pub(crate) const ACL_BYTES_MAX: usize = 4096;

const VERSION: u32 = 2;
/// In entries that name nobody.
const UNDEFINED_ID: u32 = u32::MAX;
/// The permissions of the three classes in a mode.
const MODE_BITS: u16 = 0o777;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderRaw {
    version: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryRaw {
    tag: U16,
    permissions: U16,
    id: U32,
}

const _: () = {
    assert!(size_of::<HeaderRaw>() == 4);
    assert!(size_of::<EntryRaw>() == 8);
};

/// Whom an entry is about. The order is that of the entries in a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Others,
}

impl Who {
    fn from_raw(tag: u16, id: u32) -> Option<Who> {
        Some(match tag {
            0x01 => Who::Owner,
            0x02 if id != UNDEFINED_ID => Who::User(id),
            0x04 => Who::OwningGroup,
            0x08 if id != UNDEFINED_ID => Who::Group(id),
            0x10 => Who::Mask,
            0x20 => Who::Others,
            _ => return None,
        })
    }

    fn raw(self) -> (u16, u32) {
        match self {
            Who::Owner => (0x01, UNDEFINED_ID),
            Who::User(id) => (0x02, id),
            Who::OwningGroup => (0x04, UNDEFINED_ID),
            Who::Group(id) => (0x08, id),
            Who::Mask => (0x10, UNDEFINED_ID),
            Who::Others => (0x20, UNDEFINED_ID),
        }
    }

    /// Place of the kind of entry in a list.
    fn rank(self) -> u8 {
        match self {
            Who::Owner => 0,
            Who::User(_) => 1,
            Who::OwningGroup => 2,
            Who::Group(_) => 3,
            Who::Mask => 4,
            Who::Others => 5,
        }
    }
}

/// An access control list that keeps the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<(Who, u8)>);

impl Acl {
    /// Reads the value of an extended attribute; `None`: a list without entries, which means that there is to be none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        let broken = || Error::InvalidArgument("not an access control list");
        if bytes.is_empty() {
            return Ok(None);
        }
        let (header, rest) = HeaderRaw::ref_from_prefix(bytes).map_err(|_| broken())?;
        if header.version.get() != VERSION {
            return Err(Error::NotSupported("access control lists of this version"));
        }
        let raw = <[EntryRaw]>::ref_from_bytes(rest).map_err(|_| broken())?;
        if raw.is_empty() {
            return Ok(None);
        }
        let mut entries: Vec<(Who, u8)> = Vec::with_capacity(raw.len());
        for entry in raw {
            let who = Who::from_raw(entry.tag.get(), entry.id.get()).ok_or_else(broken)?;
            let permissions =
                u8::try_from(entry.permissions.get()).ok().filter(|&bits| bits <= 7).ok_or_else(broken)?;
            entries.push((who, permissions));
        }
        let acl = Acl(entries);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(broken()) }
    }

    fn is_valid(&self) -> bool {
        let count = |rank: u8| self.0.iter().filter(|(who, _)| who.rank() == rank).count();
        self.0.is_sorted_by_key(|(who, _)| who.rank())
            && [0, 2, 5].iter().all(|&rank| count(rank) == 1)
            && count(4) <= 1
            && (count(4) == 1 || count(1) + count(3) == 0)
    }

    /// As the value of an extended attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = HeaderRaw { version: VERSION.into() }.as_bytes().to_vec();
        for &(who, permissions) in &self.0 {
            let (tag, id) = who.raw();
            let raw = EntryRaw { tag: tag.into(), permissions: u16::from(permissions).into(), id: id.into() };
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes
    }

    fn get(&self, wanted: Who) -> Option<u8> {
        self.0.iter().find(|(who, _)| *who == wanted).map(|&(_, permissions)| permissions)
    }

    fn set(&mut self, wanted: Who, value: u8) {
        if let Some((_, permissions)) = self.0.iter_mut().find(|(who, _)| *who == wanted) {
            *permissions = value & 7;
        }
    }

    /// The entry whose permissions are the middle digit of the mode.
    fn group_class(&self) -> Who {
        if self.get(Who::Mask).is_some() { Who::Mask } else { Who::OwningGroup }
    }

    /// The lower nine bits of the mode of an object with this list.
    pub(crate) fn mode(&self) -> u16 {
        let digit = |who| u16::from(self.get(who).unwrap_or(0));
        digit(Who::Owner) << 6 | digit(self.group_class()) << 3 | digit(Who::Others)
    }

    /// The mode that gives nobody more than this list does where the list itself is missing.
    pub(crate) fn mode_without_list(&self) -> u16 {
        let group = self.get(Who::OwningGroup).unwrap_or(0) & self.get(Who::Mask).unwrap_or(7);
        self.mode() & !0o070 | u16::from(group) << 3
    }

    /// Whether it says no more than a mode does.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// After a chmod to `mode`.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        self.set(Who::Owner, (mode >> 6) as u8);
        self.set(self.group_class(), (mode >> 3) as u8);
        self.set(Who::Others, mode as u8);
    }

    /// A directory's default list as the access list of a new object that is made with `mode`: neither gives more than the
    /// other.
    pub(crate) fn inherited(&self, mode: u16) -> Acl {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode & MODE_BITS);
        acl
    }

    /// Whether `caller` has this access to the object. The superuser is not asked about here.
    pub(crate) fn permits(&self, attributes: &Attributes, caller: &Caller, wanted: Access) -> bool {
        let has = |permissions: u8| permissions & wanted.bits() == wanted.bits();
        let mask = self.get(Who::Mask).unwrap_or(7);
        if caller.uid == attributes.uid {
            return self.get(Who::Owner).is_some_and(has);
        }
        if let Some(permissions) = self.get(Who::User(caller.uid)) {
            return has(permissions & mask);
        }
        // One group that gives all of it suffices; several do not add up.
        let mut member = false;
        for &(who, permissions) in &self.0 {
            let gid = match who {
                Who::OwningGroup => attributes.gid,
                Who::Group(gid) => gid,
                _ => continue,
            };
            if caller.is_in_group(gid) {
                member = true;
                if has(permissions & mask) {
                    return true;
                }
            }
        }
        !member && self.get(Who::Others).is_some_and(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Class, Kind, Timestamp};

    fn acl(entries: &[(Who, u8)]) -> Acl {
        Acl::decode(&Acl(entries.to_vec()).encode()).unwrap().unwrap()
    }

    fn sample() -> Acl {
        acl(&[
            (Who::Owner, 7),
            (Who::User(10), 6),
            (Who::OwningGroup, 5),
            (Who::Group(20), 4),
            (Who::Group(21), 2),
            (Who::Mask, 6),
            (Who::Others, 1),
        ])
    }

    #[test]
    fn goes_round_and_nonsense_is_refused() {
        let bytes = sample().encode();
        assert_eq!(Acl::decode(&bytes), Ok(Some(sample())));
        assert_eq!(Acl::decode(&[]), Ok(None));
        assert_eq!(Acl::decode(&bytes[..4]), Ok(None));
        for length in (1..bytes.len()).filter(|length| *length != 4) {
            assert!(Acl::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        let refused = |entries: &[(Who, u8)]| assert!(Acl::decode(&Acl(entries.to_vec()).encode()).is_err());
        refused(&[(Who::Owner, 7), (Who::Others, 1)]);
        refused(&[(Who::Owner, 7), (Who::User(1), 7), (Who::OwningGroup, 1), (Who::Others, 1)]);
        refused(&[(Who::OwningGroup, 7), (Who::Owner, 7), (Who::Others, 1)]);
        refused(&[(Who::Owner, 7), (Who::Owner, 7), (Who::OwningGroup, 1), (Who::Others, 1)]);
        refused(&[(Who::Owner, 8), (Who::OwningGroup, 1), (Who::Others, 1)]);
        let mut other = bytes;
        other[0] = 1;
        assert!(Acl::decode(&other).is_err(), "version 1");
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let mut acl = sample();
        assert_eq!((acl.mode(), acl.mode_without_list(), acl.is_mode()), (0o761, 0o741, false));
        acl.set_mode(0o2640);
        assert_eq!((acl.mode(), acl.get(Who::Mask), acl.get(Who::OwningGroup)), (0o640, Some(4), Some(5)));
        assert_eq!(sample().inherited(0o600).mode(), 0o600);
        assert_eq!(sample().inherited(0o777).mode(), 0o761, "a mode gives no more than the list");
        let plain = self::acl(&[(Who::Owner, 6), (Who::OwningGroup, 4), (Who::Others, 0)]);
        assert_eq!((plain.mode(), plain.is_mode()), (0o640, true));
    }

    #[test]
    fn the_first_entry_that_fits_decides() {
        let file = Attributes::new(Kind::Regular, Class::Own, 0o761, 1, 2, Timestamp::default());
        let may = |uid, gid, groups: &[u32], wanted: u8| {
            let caller = Caller { uid, gid, groups: groups.to_vec() };
            sample().permits(&file, &caller, Access::from_mask(wanted))
        };
        assert!(may(1, 9, &[], 7), "the owner is not masked");
        assert!(may(10, 2, &[], 6) && !may(10, 2, &[], 1), "a named user, whatever its groups");
        assert!(may(11, 2, &[], 4) && !may(11, 2, &[], 1), "the owning group, masked");
        assert!(may(11, 20, &[21], 4) && may(11, 20, &[21], 2));
        assert!(!may(11, 20, &[21], 6), "no group gives both");
        assert!(may(11, 9, &[], 1) && !may(11, 9, &[], 4));
        assert!(!may(11, 20, &[], 1), "a member of a group is not one of the others");
    }
}
