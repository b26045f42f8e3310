//! Reading directories.

use super::{Namespace, Request};
use crate::directory::KEY_MIN;
use crate::error::{Error, Result};
use crate::locks::Use;
use holdfast_object::{Attributes, Hold, Kind, ObjectId, SnapshotId};
use std::ops::ControlFlow;

/// Cookie of `.`; reading starts behind cookie 0.
const COOKIE_SELF: u64 = 1;
/// Cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;
const _: () = assert!(COOKIE_PARENT < KEY_MIN);

/// An entry as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Where to go on behind this entry: 63 bits, the same as long as the entry exists, also after a restart.
    pub cookie: u64,
    /// The object.
    pub id: ObjectId,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: &'a [u8],
}

impl Namespace {
    /// Shows the entries behind `cookie` (0: from the start, with `.` and `..`), until `show` gives `false`, which means
    /// that it did not take the entry.
    pub fn readdir(&self, id: ObjectId, cookie: u64, mut show: impl FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        self.walk(id, cookie, |entry| if show(entry) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// The same with attributes. As after a lookup, the caller holds each object once more that it took with attributes,
    /// except by `.` and `..`. An entry whose object cannot be read is shown without.
    pub fn readdir_with_attributes(
        &self,
        id: ObjectId,
        cookie: u64,
        mut show: impl FnMut(&DirEntry<'_>, Option<&Attributes>) -> bool,
    ) -> Result<()> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        self.walk(id, cookie, |entry| {
            let attributes = self.child(entry.id, entry.kind).ok();
            if !show(entry, attributes.as_ref()) {
                return ControlFlow::Break(());
            }
            if attributes.is_some() && entry.cookie >= KEY_MIN {
                // No name goes while the directory is in use, so the object is still there.
                self.cache.hold(entry.id, Hold::Lookup, 1);
            }
            ControlFlow::Continue(())
        })
    }

    fn walk(&self, id: ObjectId, cookie: u64, mut show: impl FnMut(&DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let attributes = self.directory_attributes(id)?;
        if attributes.nlink == 0 {
            // Removed: there is not even `.` in it.
            return Ok(());
        }
        let mut stopped = false;
        let mut shown = false;
        let mut show = |entry: DirEntry<'_>| {
            let flow = show(&entry);
            stopped |= flow.is_break();
            shown |= flow.is_continue();
            flow
        };
        let dots = [(COOKIE_SELF, id, &b"."[..]), (COOKIE_PARENT, attributes.parent, b"..")];
        for (dot, id, name) in dots {
            if cookie < dot && show(DirEntry { cookie: dot, id, kind: Kind::Directory, name }).is_break() {
                return Ok(());
            }
        }
        if id.snapshot() == SnapshotId::VIRTUAL {
            return self.walk_virtual(id, cookie, &mut show);
        }
        let snapshot = id.snapshot();
        let scan = self.open_directory(id, &attributes)?.scan(cookie.max(COOKIE_PARENT), |record| {
            let id = record.object.in_snapshot(snapshot);
            show(DirEntry { cookie: record.key, id, kind: record.kind, name: record.name })
        });
        if shown {
            self.touch_atime(id, &attributes);
        }
        match scan {
            // What comes before the corrupt page is shown; the error is for the next call.
            Err(Error::CorruptDirectory { .. }) if shown => Ok(()),
            scan => scan,
        }
    }

    /// All entries of a directory but `.` and `..`: name, object, kind. For callers without a stream.
    pub fn entries(&self, request: &Request, id: ObjectId) -> Result<Vec<(Vec<u8>, ObjectId, Kind)>> {
        let attributes = self.directory_attributes(id)?;
        self.check_access(request, id, &attributes, crate::Access::READ)?;
        let mut entries = Vec::new();
        self.readdir(id, COOKIE_PARENT, |entry| {
            entries.push((entry.name.to_vec(), entry.id, entry.kind));
            true
        })?;
        Ok(entries)
    }
}
