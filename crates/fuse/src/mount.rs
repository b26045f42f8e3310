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
use std::process::Command;

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
    /// Reading changes no time of last access.
    pub no_atime: bool,
    /// Nor does reading a directory.
    pub no_dir_atime: bool,
    /// Every write is as one with O_SYNC.
    pub synchronous: bool,
    /// Every change of names is durable before it is answered.
    pub dir_synchronous: bool,
}

impl Flags {
    /// Those that are set: the system's flag, and fusermount3's word.
    fn set(&self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (self.read_only, MountFlags::RDONLY, "ro"),
            (self.no_suid, MountFlags::NOSUID, "nosuid"),
            (self.no_dev, MountFlags::NODEV, "nodev"),
            (self.no_exec, MountFlags::NOEXEC, "noexec"),
            (self.no_atime, MountFlags::NOATIME, "noatime"),
            (self.no_dir_atime, MountFlags::NODIRATIME, "nodiratime"),
            (self.synchronous, MountFlags::SYNCHRONOUS, "sync"),
            (self.dir_synchronous, MountFlags::DIRSYNC, "dirsync"),
        ]
        .into_iter()
        .filter_map(|(set, flag, word)| set.then_some((flag, word)))
    }
}

/// Mounts at `directory`. The descriptor gives the requests; the first is INIT.
///
/// # Errors
/// Those of mount(2); fusermount3's words where it was used.
pub fn mount(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    if rustix::process::geteuid().is_root() {
        by_system_call(directory, options)
    } else {
        by_helper(directory, options)
    }
}

fn by_system_call(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let mut data = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let flags = options.flags.set().fold(MountFlags::empty(), |flags, (flag, _)| flags | flag);
    let data = CString::new(data)?;
    rustix::mount::mount(options.source.as_os_str(), directory, TYPE, flags, data.as_c_str())?;
    Ok(device)
}

fn by_helper(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    let mut words = OsString::from("default_permissions,subtype=holdfast,fsname=");
    words.push(escaped(&options.source));
    for (_, word) in options.flags.set() {
        words.push(",");
        words.push(word);
    }
    if options.allow_other {
        words.push(",allow_other");
    }
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(&words)
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("fusermount3 (Debian package fuse3): {error}")))?;
    drop(theirs);
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    receive_descriptor(&ours)
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
    let output = Command::new("fusermount3").args(words).arg(directory).output()?;
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
            no_atime: true,
            no_dir_atime: true,
            synchronous: true,
            dir_synchronous: true,
        };
        assert_eq!(Flags::default().set().count(), 0);
        let words: std::collections::BTreeSet<_> = all.set().map(|(_, word)| word).collect();
        let bits = all.set().fold(MountFlags::empty(), |bits, (flag, _)| bits | flag);
        assert_eq!((words.len(), bits.bits().count_ones()), (8, 8));
    }

    #[test]
    fn commas_in_a_path_do_not_become_options() {
        assert_eq!(escaped(&OsString::from("/a,b\\c")), OsString::from("/a\\,b\\\\c"));
    }
}
