//! The daemon's own mount, by the number that the kernel gave it and by its store: by that it is found wherever it is, and what
//! others have mounted on its directory meanwhile is left alone.
//!
//! The number alone is not enough: it is free for the next mount as soon as this one is gone, which the kernel knows before the
//! daemon does. But that is another store's, for this one is locked as long as the daemon is there.

use crate::mounts::{self, FILE_SYSTEM, Mount};
use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;

/// A mount that this process has made and serves.
#[derive(Debug)]
pub(super) struct OwnMount {
    /// As it was when it had just been made. Nothing if the table of mounts cannot be read: then the mount ends with the process.
    made: Option<Mount>,
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
        OwnMount { made: mount }
    }

    /// Whether this is it, perhaps elsewhere than it was made.
    fn is(&self, mount: &Mount) -> bool {
        self.made.as_ref().is_some_and(|made| {
            (made.device_minor, &made.file_system, &made.source)
                == (mount.device_minor, &mount.file_system, &mount.source)
        })
    }

    /// The number of the connection, unless the kernel has given it to another mount.
    fn connection(&self) -> Option<u32> {
        let number = self.made.as_ref()?.device_minor;
        // Those on disks have numbers of another kind.
        let of_fuse = |mount: &&Mount| mount.file_system == "fuse" || mount.file_system.starts_with("fuse.");
        let all = mounts::all().unwrap_or_default();
        all.iter().filter(of_fuse).all(|mount| mount.device_minor != number || self.is(mount)).then_some(number)
    }

    /// Where it is now: nowhere if it has been unmounted lazily, in several places if it has been bound to others.
    fn places(&self) -> Vec<Mount> {
        let mut all = mounts::all().unwrap_or_default();
        all.retain(|mount| self.is(mount));
        // Unmounted from the last to the first.
        all.reverse();
        all
    }

    /// Whether what unmounting `place` would take away is this mount, and not one on top of it.
    fn is_on_top(&self, place: &Mount) -> bool {
        mounts::at(&place.directory).ok().flatten().is_some_and(|top| self.is(&top))
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
        if let Some(number) = self.connection() {
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
