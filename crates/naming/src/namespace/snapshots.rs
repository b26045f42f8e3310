//! Snapshots in the name space: `.holdfast/snapshots/NAME` under the root directory.
//!
//! `.holdfast` and `snapshots` are not stored: their ids name no snapshot but [`SnapshotId::VIRTUAL`]. `.holdfast` is found by
//! its name and not shown, so that what goes through the whole tree (`rm -r *`, a backup) leaves it alone. A snapshot's root
//! directory and all below it are the stored objects, by ids that name the snapshot. They never change.

use super::readdir::DirEntry;
use super::{Found, Namespace};
use crate::directory::KEY_MIN;
use crate::error::{Error, Result};
use holdfast_object::{self as object, Attributes, Class, Kind, ObjectId, ObjectKey, SnapshotId, SnapshotInfo};
use std::ops::ControlFlow;

/// Name of the directory in the root that leads to the snapshots.
pub const CONTROL_NAME: &[u8] = b".holdfast";
const SNAPSHOTS_NAME: &[u8] = b"snapshots";
/// The directory of that name.
const CONTROL: ObjectId = ObjectId(1 | (SnapshotId::VIRTUAL.0 as u64) << 48);
/// The directory `snapshots` in it.
const SNAPSHOTS: ObjectId = ObjectId(2 | (SnapshotId::VIRTUAL.0 as u64) << 48);

/// Whether what is found in this directory, or is known of this object, changes without a request on it: snapshots come and
/// go. Nobody should remember it.
pub fn is_fleeting(id: ObjectId) -> bool {
    id.snapshot() == SnapshotId::VIRTUAL || id.live() == ObjectId::ROOT && id.snapshot() != SnapshotId::LIVE
}

impl Namespace {
    /// Objects of snapshots, and those that are not stored, do not change.
    pub(super) fn check_changeable(&self, id: ObjectId) -> Result<()> {
        match id.snapshot() {
            SnapshotId::LIVE => Ok(()),
            _ => Err(Error::Object(object::Error::InSnapshot(ObjectKey { domain: self.cache.domain(), object: id }))),
        }
    }

    /// `.holdfast` in the root is there already, and nobody can make another one.
    pub(super) fn check_name_is_free(&self, directory: ObjectId, name: &[u8]) -> Result<()> {
        match self.is_control(directory, name) {
            true => Err(Error::Permission { object: CONTROL, what: "the name leads to the snapshots" }),
            false => Ok(()),
        }
    }

    fn is_control(&self, directory: ObjectId, name: &[u8]) -> bool {
        self.snapshots.is_some() && directory == ObjectId::ROOT && name == CONTROL_NAME
    }

    fn all_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        match &self.snapshots {
            Some(snapshots) => Ok(snapshots.snapshots_uncounted()?),
            None => Ok(Vec::new()),
        }
    }

    /// Attributes of a directory that is not stored.
    pub(super) fn virtual_attributes(&self, id: ObjectId) -> Result<Attributes> {
        if self.snapshots.is_none() || ![CONTROL, SNAPSHOTS].contains(&id) {
            return Err(Error::Stale(id));
        }
        let root = self.getattr(ObjectId::ROOT)?;
        let snapshots = self.all_snapshots()?;
        let (parent, subdirectories, newest) = match id {
            CONTROL => (ObjectId::ROOT, 1, None),
            _ => (CONTROL, snapshots.len() as u32, snapshots.iter().map(|info| info.created).max()),
        };
        let time = newest.unwrap_or(root.btime);
        let mut attributes = Attributes::new(Kind::Directory, Class::Names, 0o555, root.uid, root.gid, time);
        (attributes.nlink, attributes.parent, attributes.btime) = (2 + subdirectories, parent, root.btime);
        Ok(attributes)
    }

    /// What a name leads to where no stored directory says so. `None`: look into the directory.
    pub(super) fn find_virtual(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Found>> {
        let found = |id| self.inode(id).map(|attributes| Some(Found { id, attributes }));
        match (parent, name) {
            _ if self.is_control(parent, name) => found(CONTROL),
            _ if name == b".." && parent.live() == ObjectId::ROOT && parent.snapshot() != SnapshotId::LIVE => {
                found(SNAPSHOTS)
            }
            (CONTROL, SNAPSHOTS_NAME) => found(SNAPSHOTS),
            (CONTROL | SNAPSHOTS, b"." | b"..") => found(match name {
                b"." => parent,
                _ => self.virtual_attributes(parent)?.parent,
            }),
            (CONTROL, _) => Err(Error::not_found(parent, name)),
            (SNAPSHOTS, _) => match self.all_snapshots()?.iter().find(|info| info.name.as_bytes() == name) {
                Some(info) => found(ObjectId::ROOT.in_snapshot(info.id)),
                None => Err(Error::not_found(parent, name)),
            },
            _ => Ok(None),
        }
    }

    /// Shows the entries behind `cookie` of a directory that is not stored. A snapshot's cookie is its number.
    pub(super) fn walk_virtual(
        &self,
        id: ObjectId,
        cookie: u64,
        show: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let first = DirEntry { cookie: KEY_MIN, id: SNAPSHOTS, kind: Kind::Directory, name: SNAPSHOTS_NAME };
        if id == CONTROL {
            if cookie < KEY_MIN {
                let _ = show(first);
            }
            return Ok(());
        }
        let mut snapshots = self.all_snapshots()?;
        snapshots.sort_unstable_by_key(|info| info.id);
        for info in snapshots {
            let (id, own) = (ObjectId::ROOT.in_snapshot(info.id), KEY_MIN + u64::from(info.id.0));
            if own > cookie && show(DirEntry { cookie: own, id, name: info.name.as_bytes(), ..first }).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Components of the path of a directory of snapshots, the last one first.
    pub(super) fn fleeting_path(&self, id: ObjectId) -> Vec<Vec<u8>> {
        let mut components = Vec::new();
        if id.live() == ObjectId::ROOT && id != CONTROL {
            let name = self.all_snapshots().ok().and_then(|all| all.into_iter().find(|info| info.id == id.snapshot()));
            components.push(name.map_or_else(|| format!("{id}").into_bytes(), |info| info.name.into_bytes()));
        }
        if id != CONTROL {
            components.push(SNAPSHOTS_NAME.to_vec());
        }
        components.push(CONTROL_NAME.to_vec());
        components
    }
}
