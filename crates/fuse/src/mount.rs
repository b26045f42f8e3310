//! Mounting and unmounting: by the system call as root, by fusermount3 otherwise.

use crate::session::open_device;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// Type of the file system in /proc/self/mountinfo.
pub const TYPE: &str = "fuse.holdfast";

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the table of mounts shows as the source: the store.
    pub source: OsString,
    /// Takes no changes.
    pub read_only: bool,
    /// Others than the one who mounts have access as well, by the permissions of the files.
    pub allow_other: bool,
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
    let mut flags = MountFlags::empty();
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
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
    if options.read_only {
        words.push(",ro");
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
    fn commas_in_a_path_do_not_become_options() {
        assert_eq!(escaped(&OsString::from("/a,b\\c")), OsString::from("/a\\,b\\\\c"));
    }
}
