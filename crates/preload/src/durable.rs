//! fsync(2) and fdatasync(2). The system does them, and says no more than EIO: the mount is asked which blocks it is.

use crate::exports::attempt;
use crate::next::Next;
use crate::transfer::Outcome;
use crate::{mounts, sys, tell};
use holdfast_client::descriptor;
use libc::c_int;
use std::os::fd::BorrowedFd;

static FSYNC: Next = Next::new(c"fsync");
static FDATASYNC: Next = Next::new(c"fdatasync");

/// Finds both, so that no signal handler has to.
pub(crate) fn find() {
    FSYNC.find();
    FDATASYNC.find();
}

/// As in libc.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    followed(&FSYNC, fd, "fsync")
}

/// As in libc.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    followed(&FDATASYNC, fd, "fdatasync")
}

/// A thread may be cancelled in the system's function: there is nothing to drop here.
fn followed(next: &Next, fd: c_int, name: &str) -> c_int {
    let next = next.find();
    if next.is_null() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: both have this type.
    let next =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C-unwind" fn(c_int) -> c_int>(next) };
    // SAFETY: the caller's argument, for the function that it has called.
    let result = unsafe { next(fd) };
    if result == -1 && sys::errno() == libc::EIO {
        attempt(|| {
            tell_blocks(fd, name);
            Outcome::Failed(libc::EIO)
        });
    }
    result
}

fn tell_blocks(fd: c_int, name: &str) {
    if !mounts::is_held(fd) {
        return;
    }
    // SAFETY: it was open when it was looked at; if another thread closes it now, it is the kernel that says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    // One more, so that it can be said that there are more. Without an answer none is known.
    let blocks = descriptor::bad_blocks(borrowed, 0, tell::BLOCKS_MAX + 1).unwrap_or_default();
    tell::not_durable(fd, name, &blocks);
}
