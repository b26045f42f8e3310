//! What an ordinary user may, and what to say when something is refused to one.

use crate::failure::{Failure, Result};
use crate::mounts::{Mount, plain};
use crate::paths::shell;
use holdfast_fuse::MountError;
use std::path::Path;
use std::{fs, io};

/// Whether this user could mount at all: to be asked before anything is made for it.
pub(crate) fn may_mount() -> Result<()> {
    holdfast_fuse::ready().map_err(|error| {
        let failure = Failure::new(format!("nothing can be mounted here: {error}"));
        with_hint(failure, &error)
    })
}

/// Why there is no mount, and what to do.
pub(crate) fn mount_failed(directory: &Path, error: &MountError) -> Failure {
    let words = match error {
        MountError::System(error) => plain(error),
        error => error.to_string(),
    };
    with_hint(Failure::new(format!("cannot mount on {}: {words}", directory.display())), error)
}

fn with_hint(failure: Failure, error: &MountError) -> Failure {
    let is_root = rustix::process::geteuid().is_root();
    let hint = match error {
        MountError::NoDevice => {
            "load the kernel's module (as root: modprobe fuse); a container must be given the device (--device /dev/fuse)"
        }
        MountError::DeviceRefused(_) if is_root => {
            "this container may not use it; it must be given the device and CAP_SYS_ADMIN"
        }
        MountError::DeviceRefused(_) => "let ordinary users use it (as root: chmod 666 /dev/fuse), or mount as root",
        MountError::NoHelper => "install it (Debian package fuse3), or mount as root",
        MountError::HelperPowerless => {
            "it must belong to root with the setuid bit (Debian package fuse3 does that), and works in no sandbox that \
             takes such rights away (NoNewPrivileges)"
        }
        MountError::AllowOtherRefused => {
            "add the line user_allow_other to /etc/fuse.conf (as root), mount as root, or leave the option out"
        }
        MountError::DirectoryRefused => {
            "an ordinary user mounts only on a directory that is his own and that he may write to"
        }
        MountError::OptionUnknown(_) => "mount as root, or leave the option out",
        MountError::System(error) if error.kind() == io::ErrorKind::PermissionDenied && is_root => {
            "mounting needs CAP_SYS_ADMIN, which this container does not have"
        }
        MountError::System(_) | MountError::Helper(_) => return failure,
    };
    failure.hint(hint)
}

/// A store that this user may not open.
pub(crate) fn store_refused(store: &Path, read_only: bool) -> Failure {
    let what = if read_only { "read" } else { "read and write" };
    let failure = Failure::new(format!("{}: this user may not {what} it", store.display()));
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(store) {
        Ok(file) => failure.hint(format!("it belongs to {}, mode {:o}", name(file.uid()), file.mode() & 0o7777)),
        // Not even that may be looked at: a directory on the way.
        Err(_) => failure,
    }
}

/// A mount that lets only its owner in; root is no exception.
pub(crate) fn mount_refused(mount: &Mount) -> Failure {
    let (owner, directory) = (name(mount.owner), mount.directory.display());
    let not_even = if mount.owner == 0 { "" } else { ", not even root" };
    let failure = Failure::new(format!(
        "{directory} is a mount of {owner}, made without allow_other: nobody else may use it{not_even}"
    ));
    match mount.owner {
        0 => failure.hint("do it as root"),
        _ => failure.hint(format!(
            "do it as {owner}; root and {owner} can unmount it: holdfast unmount {}",
            shell(&mount.directory)
        )),
    }
}

/// The name of a user as /etc/passwd has it, or the number.
pub(crate) fn name(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in(&passwd, uid).unwrap_or_else(|| format!("user {uid}"))
}

fn name_in(passwd: &str, uid: u32) -> Option<String> {
    let mut users = passwd.lines().map(|line| line.split(':'));
    users.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbad line\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_in(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_in(passwd, 7), None);
        assert!(name(u32::MAX - 5).starts_with("user 42"));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        for error in [
            MountError::NoDevice,
            MountError::DeviceRefused(io::ErrorKind::PermissionDenied.into()),
            MountError::NoHelper,
            MountError::HelperPowerless,
            MountError::AllowOtherRefused,
            MountError::DirectoryRefused,
        ] {
            let failure = mount_failed(Path::new("/m"), &error);
            assert!(failure.message.starts_with("cannot mount on /m: ") && failure.hint.is_some(), "{failure:?}");
        }
    }
}
