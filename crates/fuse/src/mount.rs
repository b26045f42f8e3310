//! Mounting and unmounting: by the system call as root, by fusermount3 otherwise.

use crate::session::open_device;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mount::{MountFlags, UnmountFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that mounts for ordinary users (libfuse; setuid root).
const HELPER: &str = "fusermount3";

/// Type of the file system in /proc/self/mountinfo.
pub const TYPE: &str = "fuse.holdfast";

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// What the table of mounts shows as the source: the store.
    pub source: OsString,
    /// Others than the one who mounts have access as well, by the permissions of the files.
    pub allow_other: bool,
    /// What the kernel sees to, in the words of mount(8).
    pub flags: Flags,
}

/// What the kernel sees to: mount(8), "filesystem-independent mount options".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Flags {
    /// Takes no changes.
    pub read_only: bool,
    /// Setuid and setgid mean nothing.
    pub no_suid: bool,
    /// Device files cannot be opened.
    pub no_dev: bool,
    /// Programs cannot be executed.
    pub no_exec: bool,
    /// Symbolic links in it are not followed.
    pub no_symfollow: bool,
    /// Reading changes no time of last access.
    pub no_atime: bool,
    /// Reading changes it always; not with `no_atime`.
    pub strict_atime: bool,
    /// Nor does reading a directory.
    pub no_dir_atime: bool,
    /// Every write is as one with O_SYNC.
    pub synchronous: bool,
    /// Every change of names is durable before it is answered.
    pub dir_synchronous: bool,
}

const NO_SYMFOLLOW: &str = "nosymfollow";
const STRICT_ATIME: &str = "strictatime";

impl Flags {
    /// Only those about times of last access.
    pub fn times_only(self) -> Flags {
        let Flags { no_atime, strict_atime, no_dir_atime, .. } = self;
        Flags { no_atime, strict_atime, no_dir_atime, ..Flags::default() }
    }

    /// Those that are set: the system's flag, and fusermount3's word.
    fn set(&self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (self.read_only, MountFlags::RDONLY, "ro"),
            (self.no_suid, MountFlags::NOSUID, "nosuid"),
            (self.no_dev, MountFlags::NODEV, "nodev"),
            (self.no_exec, MountFlags::NOEXEC, "noexec"),
            (self.no_symfollow, MountFlags::NOSYMFOLLOW, NO_SYMFOLLOW),
            (self.no_atime, MountFlags::NOATIME, "noatime"),
            (self.strict_atime, MountFlags::STRICTATIME, STRICT_ATIME),
            (self.no_dir_atime, MountFlags::NODIRATIME, "nodiratime"),
            (self.synchronous, MountFlags::SYNCHRONOUS, "sync"),
            (self.dir_synchronous, MountFlags::DIRSYNC, "dirsync"),
        ]
        .into_iter()
        .filter_map(|(set, flag, word)| set.then_some((flag, word)))
    }
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container was not given the device.
    #[error("there is no /dev/fuse")]
    NoDevice,
    /// This user, or this container, may not use FUSE.
    #[error("/dev/fuse cannot be opened: {0}")]
    DeviceRefused(io::Error),
    /// An ordinary user needs fusermount3.
    #[error("there is no fusermount3, which mounts for ordinary users")]
    NoHelper,
    /// fusermount3 has no more rights than the user.
    #[error("fusermount3 lacks the right to mount")]
    HelperPowerless,
    /// The administrator does not let ordinary users share their mounts.
    #[error("allow_other is not allowed to ordinary users here")]
    AllowOtherRefused,
    /// fusermount3 (3.14) has no word for this option, and the kernel takes it from root only.
    #[error("fusermount3, which mounts for ordinary users, does not know the option {0}")]
    OptionUnknown(&'static str),
    /// An ordinary user mounts only on what is his own.
    #[error("it is another user's directory")]
    DirectoryRefused,
    /// mount(2) failed.
    #[error("{0}")]
    System(io::Error),
    /// fusermount3 failed: its words.
    #[error("{0}")]
    Helper(String),
}

impl From<MountError> for io::Error {
    fn from(error: MountError) -> io::Error {
        match error {
            MountError::DeviceRefused(error) | MountError::System(error) => error,
            other => io::Error::other(other),
        }
    }
}

/// Whether this user could mount at all, as far as that can be told beforehand.
///
/// # Errors
/// [`MountError::NoDevice`], [`MountError::DeviceRefused`], [`MountError::NoHelper`].
pub fn ready() -> Result<(), MountError> {
    drop(device()?);
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let version = Command::new(HELPER).arg("--version").stdin(Stdio::null()).output();
    version.map(drop).map_err(|error| without_helper(&error))
}

fn device() -> Result<OwnedFd, MountError> {
    open_device().map_err(|error| match error.raw_os_error() {
        // No node; a node, and no such device in the kernel.
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        _ => MountError::DeviceRefused(error),
    })
}

fn without_helper(error: &io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => MountError::NoHelper,
        _ => MountError::Helper(format!("{HELPER} cannot be run: {error}")),
    }
}

/// Mounts at `directory`. The descriptor gives the requests; the first is INIT.
///
/// # Errors
/// See [`MountError`].
pub fn mount(directory: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        by_system_call(directory, options, device()?).map_err(MountError::System)
    } else {
        by_helper(directory, options)
    }
}

fn by_system_call(directory: &Path, options: &MountOptions, device: OwnedFd) -> io::Result<OwnedFd> {
    let mut data = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let flags = options.flags.set().fold(MountFlags::empty(), |flags, (flag, _)| flags | flag);
    let data = CString::new(data)?;
    rustix::mount::mount(options.source.as_os_str(), directory, TYPE, flags, data.as_c_str())?;
    Ok(device)
}

fn by_helper(directory: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = socket_pair().map_err(MountError::System)?;
    let mut words = OsString::from("default_permissions,subtype=holdfast,fsname=");
    words.push(escaped(&options.source));
    // It has no word for strictatime, and needs none: the kernel leaves times of last access to the daemon. Only the table of mounts
    // then says relatime.
    for (_, word) in options.flags.set().filter(|(_, word)| *word != STRICT_ATIME) {
        words.push(",");
        words.push(word);
    }
    if options.allow_other {
        words.push(",allow_other");
    }
    let output = Command::new(HELPER)
        .arg("-o")
        .arg(&words)
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        // Its words are understood below.
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| without_helper(&error))?;
    drop(theirs);
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(understood(words.trim(), options.flags));
    }
    receive_descriptor(&ours).map_err(MountError::System)
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    Ok((ours, theirs))
}

/// fusermount3 (3.14) gives words and no numbers.
fn understood(words: &str, flags: Flags) -> MountError {
    match words {
        // What it does not know it hands to the kernel, which knows it by a flag only.
        _ if flags.no_symfollow && words.contains("mount failed: Invalid argument") => {
            MountError::OptionUnknown(NO_SYMFOLLOW)
        }
        _ if words.contains("user_allow_other") => MountError::AllowOtherRefused,
        _ if words.contains("no write access to mountpoint") || words.contains("not owned by user") => {
            MountError::DirectoryRefused
        }
        _ if words.contains("mount failed: Operation not permitted") => MountError::HelperPowerless,
        _ => MountError::Helper(words.to_string()),
    }
}

/// fusermount3 splits options at commas.
fn escaped(source: &OsString) -> OsString {
    let mut bytes = Vec::with_capacity(source.len());
    for &byte in source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes)
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "fusermount3 sent no descriptor"))
}

/// Changes what the kernel sees to for a mount that there is (mount(8), `remount`). What the file system does itself, it must
/// be told by its own ways.
///
/// # Errors
/// `PermissionDenied` for anybody but root; `ResourceBusy` if something is open for writing and `flags` say read-only.
pub fn remount(directory: &Path, flags: Flags) -> io::Result<()> {
    // The kernel keeps what it has if no flag is about times of last access.
    let atime = if flags.no_atime || flags.strict_atime { MountFlags::empty() } else { MountFlags::RELATIME };
    let flags = flags.set().fold(atime, |flags, (flag, _)| flags | flag);
    Ok(rustix::mount::mount_remount(directory, flags, c"")?)
}

/// Unmounts. `lazy`: out of the tree at once, gone when nobody uses it any more.
///
/// # Errors
/// `ResourceBusy` while something in it is open, unless `lazy`.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        rustix::mount::unmount(directory, flags)?;
        return Ok(());
    }
    let words: &[&str] = if lazy { &["-u", "-z", "--"] } else { &["-u", "--"] };
    let output = Command::new(HELPER).args(words).arg(directory).env("LC_ALL", "C").output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_string();
    let kind = if words.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_word_of_its_own() {
        let all = Flags {
            read_only: true,
            no_suid: true,
            no_dev: true,
            no_exec: true,
            no_symfollow: true,
            no_atime: true,
            strict_atime: true,
            no_dir_atime: true,
            synchronous: true,
            dir_synchronous: true,
        };
        assert_eq!(Flags::default().set().count(), 0);
        let words: std::collections::BTreeSet<_> = all.set().map(|(_, word)| word).collect();
        let bits = all.set().fold(MountFlags::empty(), |bits, (flag, _)| bits | flag);
        assert_eq!((words.len(), bits.bits().count_ones()), (10, 10));
    }

    #[test]
    fn the_words_of_fusermount3_are_understood() {
        let kind = |words: &str| understood(&format!("fusermount3: {words}"), Flags::default());
        let allow = kind("option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf");
        assert!(matches!(allow, MountError::AllowOtherRefused));
        for words in ["user has no write access to mountpoint /m", "mountpoint /tmp not owned by user"] {
            assert!(matches!(kind(words), MountError::DirectoryRefused), "{words}");
        }
        assert!(matches!(kind("mount failed: Operation not permitted"), MountError::HelperPowerless));
        let flags = Flags { no_symfollow: true, ..Flags::default() };
        let refused = understood("fusermount3: mount failed: Invalid argument", flags);
        assert!(matches!(refused, MountError::OptionUnknown("nosymfollow")));
        let other = kind("too many FUSE filesystems mounted; mount_max=N can be set in /etc/fuse.conf");
        assert!(other.to_string().contains("mount_max"));
    }

    #[test]
    fn commas_in_a_path_do_not_become_options() {
        assert_eq!(escaped(&OsString::from("/a,b\\c")), OsString::from("/a\\,b\\\\c"));
    }
}
