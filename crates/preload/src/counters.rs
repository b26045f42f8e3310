//! What is counted, for `holdfast run --stats`: in a file that all programs share, so that it does not matter how they end.
//!
//! Its name is a link in /proc, of `holdfast run`: when that has ended, another process can have its number, and another file there, which
//! may be another run's. So the file says whose it is, and is asked once it is open.

use crate::sys::{self, Age};
use holdfast_interface::run::{
    COUNTERS_BYTES, COUNTERS_HEADER_BYTES, COUNTERS_LINK, COUNTERS_VARIABLE, Counter, CountersName,
};
use libc::c_int;
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

type Counters = [AtomicU64; Counter::ALL.len()];

/// Null: nobody wants to know.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn start() {
    let Some(name) = std::env::var(COUNTERS_VARIABLE).ok().and_then(|value| CountersName::parse(&value)) else {
        return;
    };
    let Ok(path) = CString::new(&*name.path) else { return };
    let mut target = [0; COUNTERS_LINK.len()];
    // Not even opened, as that alone can do something to a pipe or a device.
    if sys::link(&path, &mut target) != target.len() || target != *COUNTERS_LINK.as_bytes() {
        return;
    }
    // SAFETY: the name ends with NUL.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    let is_long_enough = sys::status(fd, Age::Now).is_some_and(|status| status.size >= COUNTERS_BYTES as u64);
    if is_long_enough && begins_with(fd, &name.header()) {
        let kind = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let all = unsafe { libc::mmap(std::ptr::null_mut(), COUNTERS_BYTES, kind, libc::MAP_SHARED, fd, 0) };
        if all != libc::MAP_FAILED {
            COUNTERS.store(all.wrapping_byte_add(COUNTERS_HEADER_BYTES).cast(), Ordering::Release);
        }
    }
    // SAFETY: it was opened here.
    unsafe { libc::close(fd) };
}

fn begins_with(fd: c_int, header: &[u8; COUNTERS_HEADER_BYTES]) -> bool {
    let mut found = [0; COUNTERS_HEADER_BYTES];
    let part = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
    sys::takes(fd, &[part], 0) && found == *header
}

pub(crate) fn add(counter: Counter, count: usize) {
    counted(counter, count);
}

/// The same; gives what there was before, if it is counted at all.
pub(crate) fn counted(counter: Counter, count: usize) -> Option<u64> {
    // SAFETY: null, or a mapping that stays for as long as the process; numbers of any value are valid.
    let all = unsafe { COUNTERS.load(Ordering::Acquire).as_ref() }?;
    Some(all[counter as usize].fetch_add(count as u64, Ordering::Relaxed))
}
