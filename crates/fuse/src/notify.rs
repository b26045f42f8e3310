//! Notifications: what the daemon tells the kernel unasked. A header with `unique` 0, the code in `error`.

use crate::abi::{InvalEntryOut, InvalInodeOut, OutHeader};
use rustix::fd::BorrowedFd;
use std::io::{self, IoSlice};
use zerocopy::IntoBytes;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const RESEND: i32 = 7;

fn send(device: BorrowedFd<'_>, code: i32, payload: &[&[u8]]) -> io::Result<()> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let header = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error: code, unique: 0 };
    let mut parts = vec![IoSlice::new(header.as_bytes())];
    parts.extend(payload.iter().map(|part| IoSlice::new(part)));
    rustix::io::writev(device, &parts)?;
    Ok(())
}

/// Everything read and not answered is sent again, marked.
pub fn resend(device: BorrowedFd<'_>) -> io::Result<()> {
    send(device, RESEND, &[])
}

/// What the kernel remembers of an object's attributes, and of its pages from `offset` on (all of them with `length` 0), is
/// no longer right.
pub fn invalidate_object(device: BorrowedFd<'_>, ino: u64, off: i64, len: i64) -> io::Result<()> {
    forgiving(send(device, INVAL_INODE, &[InvalInodeOut { ino, off, len }.as_bytes()]))
}

/// What the kernel remembers of a name is no longer right.
pub fn invalidate_name(device: BorrowedFd<'_>, parent: u64, name: &[u8]) -> io::Result<()> {
    let head = InvalEntryOut { parent, namelen: name.len() as u32, flags: 0 };
    forgiving(send(device, INVAL_ENTRY, &[head.as_bytes(), name, &[0]]))
}

/// That the kernel does not remember it at all is fine.
fn forgiving(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}
