//! The daemon's own mount, by the number that the kernel gave it: by that it is found wherever it is, and what others have
//! mounted on its directory meanwhile is left alone.

use crate::mounts::{self, FILE_SYSTEM, Mount};
use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;

/// A mount that this process has made and serves.
#[derive(Debug)]
pub(super) struct OwnMount {
    /// Minor number of its device, which is the number of its FUSE connection; no other mount has it while this one exists.
    /// Nothing if the table of mounts cannot be read: then the mount ends with the process.
    number: Option<u32>,
}

impl OwnMount {
    /// The mount just made at `directory`.
    pub(super) fn made_at(directory: &Path) -> OwnMount {
        let user = rustix::process::geteuid().as_raw();
        let mount = mounts::at(directory).ok().flatten();
        let mount = mount.filter(|mount| mount.file_system == FILE_SYSTEM && mount.owner == user);
        if mount.is_none() {
            tracing::warn!("the new mount is not in the table of mounts, so it cannot be taken away in order");
        }
        OwnMount { number: mount.map(|mount| mount.device_minor) }
    }

    /// Where it is now: nowhere if it has been unmounted lazily, in several places if it has been bound to others.
    fn places(&self) -> Vec<Mount> {
        let mut all = mounts::all().unwrap_or_default();
        all.retain(|mount| Some(mount.device_minor) == self.number && mount.file_system == FILE_SYSTEM);
        // Unmounted from the last to the first.
        all.reverse();
        all
    }

    /// Whether what unmounting `place` would take away is this mount, and not one on top of it.
    fn is_on_top(&self, place: &Mount) -> bool {
        mounts::at(&place.directory).ok().flatten().is_some_and(|top| Some(top.device_minor) == self.number)
    }

    /// Unmounts it everywhere.
    ///
    /// # Errors
    /// `ResourceBusy` while something in it is open, or another mount lies over it.
    pub(super) fn unmount(&self) -> io::Result<()> {
        for place in self.places() {
            if !self.is_on_top(&place) {
                let over = format!("another mount lies over {}", place.directory.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, over));
            }
            holdfast_fuse::unmount(&place.directory, false)?;
        }
        Ok(())
    }

    /// Ends the connection with the kernel, so that nothing waits for answers, and takes the mount out of the tree. To be called
    /// while the connection is there: as long as a worker runs.
    pub(super) fn cut_off(&self) {
        if let Some(number) = self.number {
            // The file belongs to who mounted; there is none unless fusectl is mounted.
            let abort = format!("/sys/fs/fuse/connections/{number}/abort");
            if let Err(error) = std::fs::write(&abort, "1") {
                tracing::debug!(%error, abort, "no abort this way");
            }
        }
        for place in self.places() {
            if !self.is_on_top(&place) {
                tracing::warn!("another mount lies over {}, so it stays there", place.directory.display());
                continue;
            }
            let at_once = UnmountFlags::FORCE | UnmountFlags::DETACH;
            if rustix::process::geteuid().is_root() && rustix::mount::unmount(&place.directory, at_once).is_ok() {
                continue;
            }
            if let Err(error) = holdfast_fuse::unmount(&place.directory, true) {
                tracing::warn!(%error, "cannot take the mount out of the tree");
            }
        }
    }
}
