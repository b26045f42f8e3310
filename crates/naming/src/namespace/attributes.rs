//! Changing attributes, and what follows from it.

use super::answer::Answer;
use super::xattrs::{drop_capabilities, follow_mode};
use super::{Atime, Namespace, Request};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::permission::{self, Access};
use holdfast_object::{AttrSet, Attributes, Kind, MAX_OBJECT_BYTES, ObjectId, Op, SnapshotId, Timestamp};

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeSet {
    /// What the clock says; whoever may write may set it.
    Now,
    /// A given time; for the owner.
    At(Timestamp),
}

/// Attributes to change; `None` leaves the value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// The lower 12 bits of `st_mode`; others are ignored.
    pub mode: Option<u16>,
    /// Owner. Takes setuid away, and setgid where it means execution, even if the owner stays the same.
    pub uid: Option<u32>,
    /// Group; as above.
    pub gid: Option<u32>,
    /// In bytes; regular files only. Sets the time of last change too.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeSet>,
    /// Last change of contents.
    pub mtime: Option<TimeSet>,
    /// Last change of attributes; by default, now. For a front end whose kernel keeps this time itself.
    pub ctime: Option<Timestamp>,
    /// Take setuid and setgid away because an unprivileged caller changes the size.
    pub clear_set_ids: bool,
    /// The file was opened for writing, so the size can change whatever the mode says now.
    pub opened: bool,
}

impl Namespace {
    /// Changes attributes, all at once. Gives what they are afterwards.
    pub fn setattr(&self, request: &Request, id: ObjectId, set: &SetAttr) -> Result<Attributes> {
        if self.earlier(request)?.is_some() {
            return self.inode(id);
        }
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        let before = self.inode(id)?;
        self.check_setattr(request, id, &before, set)?;
        let now = self.clock.now();
        let time = |set: Option<TimeSet>| {
            set.map(|set| match set {
                TimeSet::Now => now,
                TimeSet::At(time) => time,
            })
        };
        let mut staged = self.stage();
        staged.may_use_reserve();
        let mut mode = set.mode.map(|mode| mode & 0o7777);
        let owner_changes = set.uid.is_some() || set.gid.is_some();
        if let Some(new) = mode.filter(|_| self.enforces()) {
            // Outside, whoever enforces knows all groups of the caller and has done this.
            mode = Some(permission::mode_after_chmod(set.gid.unwrap_or(before.gid), &request.caller, new));
        } else if mode.is_none() {
            let foreign = set.size.is_some() && self.enforces() && !request.caller.is_privileged();
            if owner_changes || foreign || set.clear_set_ids {
                let cleared = permission::mode_without_set_ids(&before, &request.caller);
                mode = (cleared != before.mode).then_some(cleared);
            }
        }
        let mut xattr = None;
        if set.mode.is_some() || owner_changes || set.size.is_some() {
            xattr = self.stage_changed_xattrs(&mut staged, id, &before, now, |xattrs| {
                if let (Some(_), Some(mode)) = (set.mode, mode) {
                    follow_mode(xattrs, mode);
                }
                if (owner_changes || set.size.is_some()) && before.kind != Kind::Directory {
                    drop_capabilities(xattrs);
                }
            })?;
        }
        let mut mtime = time(set.mtime);
        if let Some(size) = set.size {
            staged.op(Op::Truncate { id, size });
            mtime = mtime.or(Some(now));
        }
        let attributes = AttrSet {
            mode,
            uid: set.uid,
            gid: set.gid,
            atime: time(set.atime),
            mtime,
            ctime: set.ctime.or(Some(now)),
            xattr,
            ..AttrSet::default()
        };
        staged.op(Op::SetAttributes { id, set: attributes });
        staged.submit(request.id, Answer::Nothing.encode())?;
        self.inode(id)
    }

    fn check_setattr(&self, request: &Request, id: ObjectId, before: &Attributes, set: &SetAttr) -> Result<()> {
        let nanos = |set: Option<TimeSet>| matches!(set, Some(TimeSet::At(time)) if time.nanos >= 1_000_000_000);
        if nanos(set.atime) || nanos(set.mtime) || set.ctime.is_some_and(|time| time.nanos >= 1_000_000_000) {
            return Err(Error::InvalidArgument("nanoseconds are a second or more"));
        }
        if let Some(size) = set.size {
            match before.kind {
                Kind::Regular => {}
                Kind::Directory => return Err(Error::IsDirectory(id)),
                _ => return Err(Error::InvalidArgument("only a regular file has a size to set")),
            }
            if size > MAX_OBJECT_BYTES {
                return Err(Error::FileTooBig { object: id, size });
            }
        }
        if !self.enforces() {
            return Ok(());
        }
        let caller = &request.caller;
        if set.mode.is_some() {
            permission::check_owner(id, before, caller)?;
        }
        permission::check_chown(id, before, caller, set.uid, set.gid)?;
        if set.size.is_some() && !set.opened {
            self.require(id, before, caller, Access::WRITE)?;
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            (Some(TimeSet::Now), Some(TimeSet::Now)) if self.permits(id, before, caller, Access::WRITE)? => Ok(()),
            _ => permission::check_owner(id, before, caller),
        }
    }

    /// Notes an access in memory, if that is to be noted (mount(8), `relatime`); it is stored with the next epoch that has
    /// other changes. The object is in use. A time that cannot be
    /// stored is not worth an error.
    pub(super) fn touch_atime(&self, id: ObjectId, attributes: &Attributes) {
        const DAY_SECS: i64 = 24 * 60 * 60;
        let is_kept = id.snapshot() != SnapshotId::LIVE;
        let times = self.access_times();
        let is_off = attributes.kind == Kind::Directory && times.no_directory;
        if times.atime == Atime::Never || is_kept || is_off {
            return;
        }
        let now = self.clock.now();
        let due = match times.atime {
            Atime::Strict => attributes.atime != now,
            _ => {
                attributes.atime <= attributes.mtime
                    || attributes.atime <= attributes.ctime
                    || now.secs.saturating_sub(attributes.atime.secs) >= DAY_SECS
            }
        };
        if !due || attributes.atime == now {
            return;
        }
        let mut staged = self.stage();
        staged.may_use_reserve();
        staged.is_lazy();
        staged.op(Op::SetAttributes { id, set: AttrSet { atime: Some(now), ..AttrSet::default() } });
        if let Err(error) = staged.submit(None, Answer::Nothing.encode()) {
            tracing::debug!(object = id.0, %error, "time of last access not noted");
        }
    }
}
