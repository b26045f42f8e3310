//! Who may do what: the classic mode bits, as path_resolution(7), chmod(2), chown(2) and unlink(2) tell them.

use crate::error::{Error, Result};
use holdfast_object::{Attributes, Kind, ObjectId};

/// Set user id on execution.
pub const SETUID: u16 = 0o4000;
/// Set group id on execution; on a directory: new entries take its group.
pub const SETGID: u16 = 0o2000;
/// On a directory: entries are removed only by their owner or the directory's.
pub const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// Effective user. 0 may do everything.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, as far as known.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };

    /// Whether it has all capabilities.
    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether it is a member of the group.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub(crate) fn owns(&self, attributes: &Attributes) -> bool {
        self.is_privileged() || self.uid == attributes.uid
    }
}

/// Who keeps the rules of this module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Enforce {
    /// The front end's kernel has checked already (`default_permissions`).
    #[default]
    Outside,
    /// Naming checks every request.
    InNaming,
}

/// Access to an object; the numbers are those of one digit of a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u8);

impl Access {
    /// See the contents.
    pub const READ: Access = Access(4);
    /// Change the contents.
    pub const WRITE: Access = Access(2);
    /// Execute a file, look up a name in a directory.
    pub const SEARCH: Access = Access(1);
    /// Change a directory's entries.
    pub const CHANGE: Access = Access(3);

    /// The access that an `R_OK | W_OK | X_OK` mask of `access(2)` asks for. Other bits are ignored.
    pub fn from_mask(mask: u8) -> Access {
        Access(mask & 7)
    }

    /// Both.
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    pub(crate) fn name(self) -> &'static str {
        ["no", "search", "write", "write and search", "read", "read and search", "read and write", "full"]
            [usize::from(self.0 & 7)]
    }
}

/// Whether `all` has everything that `part` has.
pub fn includes(all: Access, part: Access) -> bool {
    all.0 & part.0 == part.0
}

/// Whether the mode bits give `caller` this access.
pub fn may_access(attributes: &Attributes, caller: &Caller, wanted: Access) -> bool {
    let mode = attributes.mode;
    if caller.is_privileged() {
        // The superuser needs somebody's permission to execute what is not a directory.
        return wanted.0 & 1 == 0 || attributes.kind == Kind::Directory || mode & 0o111 != 0;
    }
    let shift = if caller.uid == attributes.uid {
        6
    } else if caller.is_in_group(attributes.gid) {
        3
    } else {
        0
    };
    (mode >> shift) as u8 & 7 & wanted.0 == wanted.0
}

/// [`may_access`], or an error.
pub fn check_access(id: ObjectId, attributes: &Attributes, caller: &Caller, wanted: Access) -> Result<()> {
    match may_access(attributes, caller, wanted) {
        true => Ok(()),
        false => Err(Error::Access { object: id, wanted: wanted.name() }),
    }
}

/// The sticky rule: whether `caller` may remove or rename the entry `entry` of `directory`, if it may change the
/// directory at all.
pub fn check_sticky(id: ObjectId, directory: &Attributes, entry: &Attributes, caller: &Caller) -> Result<()> {
    if directory.mode & STICKY != 0 && !caller.owns(directory) && !caller.owns(entry) {
        return Err(Error::Permission { object: id, what: "entry of a sticky directory belongs to somebody else" });
    }
    Ok(())
}

/// Whether `caller` may change what only the owner changes: the mode, times to given values, flags.
pub fn check_owner(id: ObjectId, attributes: &Attributes, caller: &Caller) -> Result<()> {
    match caller.owns(attributes) {
        true => Ok(()),
        false => Err(Error::Permission { object: id, what: "only the owner does this" }),
    }
}

/// Whether `caller` may give the object this owner and group: the superuser any; the owner one of its own groups.
pub fn check_chown(
    id: ObjectId,
    attributes: &Attributes,
    caller: &Caller,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<()> {
    if caller.is_privileged() {
        return Ok(());
    }
    let owner = caller.uid == attributes.uid;
    let uid_stays = uid.is_none_or(|uid| owner && uid == attributes.uid);
    let gid_is_own = gid.is_none_or(|gid| owner && (gid == attributes.gid || caller.is_in_group(gid)));
    match uid_stays && gid_is_own {
        true => Ok(()),
        false => Err(Error::Permission { object: id, what: "only the superuser gives this owner or group" }),
    }
}

/// The mode after a chmod to `mode` by `caller` of an object of group `gid`: setgid goes if the caller is not in it.
pub fn mode_after_chmod(gid: u32, caller: &Caller, mode: u16) -> u16 {
    let foreign = !caller.is_privileged() && !caller.is_in_group(gid);
    if foreign { mode & !SETGID } else { mode }
}

/// The mode after `caller` may have changed what the file does (a write, a truncation, a new owner): setuid goes, and setgid
/// where it means execution or the caller is not in the group.
pub fn mode_without_set_ids(attributes: &Attributes, caller: &Caller) -> u16 {
    if attributes.kind == Kind::Directory {
        return attributes.mode;
    }
    let mode = attributes.mode & !SETUID;
    let foreign = !caller.is_privileged() && !caller.is_in_group(attributes.gid);
    if foreign || mode & GROUP_EXECUTE != 0 { mode & !SETGID } else { mode }
}

/// Group and mode of a new object in `parent`: a setgid directory hands down its group, and setgid to directories.
pub fn inherit(parent: &Attributes, kind: Kind, caller: &Caller, mode: u16) -> (u32, u16) {
    let mode = mode & 0o7777;
    if parent.mode & SETGID == 0 {
        return (caller.gid, mode);
    }
    let gid = parent.gid;
    if kind == Kind::Directory {
        return (gid, mode | SETGID);
    }
    let foreign = !caller.is_privileged() && !caller.is_in_group(gid);
    let both = SETGID | GROUP_EXECUTE;
    (gid, if foreign && mode & both == both { mode & !SETGID } else { mode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Class, Timestamp};

    fn object(kind: Kind, mode: u16, uid: u32, gid: u32) -> Attributes {
        Attributes::new(kind, Class::Own, mode, uid, gid, Timestamp::default())
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = object(Kind::Regular, 0o046, 10, 20);
        assert!(!may_access(&file, &caller(10, 20, &[]), Access::READ), "owner without rights");
        assert!(may_access(&file, &caller(11, 20, &[]), Access::READ));
        assert!(!may_access(&file, &caller(11, 20, &[]), Access::WRITE));
        assert!(may_access(&file, &caller(11, 21, &[20]), Access::READ), "supplementary group");
        assert!(may_access(&file, &caller(11, 21, &[]), Access::READ.and(Access::WRITE)));
        assert!(!may_access(&file, &caller(11, 21, &[]), Access::SEARCH));
    }

    #[test]
    fn the_superuser_executes_only_what_somebody_may() {
        assert!(!may_access(&object(Kind::Regular, 0o666, 1, 1), &Caller::ROOT, Access::SEARCH));
        assert!(may_access(&object(Kind::Regular, 0o001, 1, 1), &Caller::ROOT, Access::SEARCH));
        assert!(may_access(&object(Kind::Directory, 0, 1, 1), &Caller::ROOT, Access::CHANGE));
    }

    #[test]
    fn sticky_directories_keep_what_is_others() {
        let directory = object(Kind::Directory, 0o1777, 10, 0);
        let entry = object(Kind::Regular, 0o666, 11, 0);
        assert!(check_sticky(ObjectId(2), &directory, &entry, &caller(10, 0, &[])).is_ok());
        assert!(check_sticky(ObjectId(2), &directory, &entry, &caller(11, 0, &[])).is_ok());
        assert!(check_sticky(ObjectId(2), &directory, &entry, &Caller::ROOT).is_ok());
        assert!(check_sticky(ObjectId(2), &directory, &entry, &caller(12, 0, &[])).is_err());
    }

    #[test]
    fn chown_is_for_the_superuser_and_own_groups() {
        let file = object(Kind::Regular, 0o666, 10, 20);
        assert!(check_chown(ObjectId(2), &file, &caller(10, 20, &[30]), None, Some(30)).is_ok());
        assert!(check_chown(ObjectId(2), &file, &caller(10, 20, &[30]), Some(10), Some(20)).is_ok());
        assert!(check_chown(ObjectId(2), &file, &caller(10, 20, &[30]), None, Some(31)).is_err());
        assert!(check_chown(ObjectId(2), &file, &caller(10, 20, &[30]), Some(11), None).is_err());
        assert!(check_chown(ObjectId(2), &file, &caller(11, 20, &[]), None, Some(20)).is_err());
    }

    #[test]
    fn set_ids_come_and_go() {
        let (member, stranger) = (caller(1, 20, &[]), caller(1, 1, &[]));
        assert_eq!(mode_without_set_ids(&object(Kind::Regular, 0o6755, 10, 20), &member), 0o755);
        assert_eq!(mode_without_set_ids(&object(Kind::Regular, 0o6745, 10, 20), &member), 0o2745);
        assert_eq!(mode_without_set_ids(&object(Kind::Regular, 0o6745, 10, 20), &stranger), 0o745);
        assert_eq!(mode_without_set_ids(&object(Kind::Directory, 0o6755, 10, 20), &stranger), 0o6755);
        let parent = object(Kind::Directory, 0o2777, 0, 50);
        assert_eq!(inherit(&parent, Kind::Directory, &caller(1, 1, &[]), 0o755), (50, 0o2755));
        assert_eq!(inherit(&parent, Kind::Regular, &caller(1, 1, &[]), 0o2755), (50, 0o755));
        assert_eq!(inherit(&parent, Kind::Regular, &caller(1, 1, &[50]), 0o2755), (50, 0o2755));
        assert_eq!(mode_after_chmod(50, &caller(1, 1, &[]), 0o2755), 0o755);
        assert_eq!(mode_after_chmod(1, &caller(1, 1, &[]), 0o2755), 0o2755);
    }
}
