//! System calls, past the functions that this library takes over.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// `PTHREAD_CANCEL_DISABLE` of <pthread.h>.
pub(crate) const CANCEL_DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// Sets whether this thread can be cancelled; gives what was set. The caller's frames have nothing to drop.
pub(crate) fn set_cancellation(state: c_int) -> c_int {
    let mut old = CANCEL_DISABLE;
    // SAFETY: the result has its type. A thread that is cancelled at once is unwound through frames without anything to drop.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Ends the thread here, if it is to be cancelled and can be. The caller's frames have nothing to drop.
pub(crate) fn cancel_if_asked() {
    // SAFETY: as above.
    unsafe { pthread_testcancel() };
}

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) is_regular: bool,
    /// Device, as major and minor number.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// In bytes.
    pub(crate) size: u64,
}

/// How new the answer is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Age {
    /// As the kernel knows it, without asking the file system.
    Known,
    /// As it is now.
    Now,
}

/// Asks what the descriptor is; `None` if it is nothing.
pub(crate) fn status(fd: c_int, age: Age) -> Option<Status> {
    const WANTED: libc::c_uint = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE;
    let how = match age {
        Age::Known => libc::AT_STATX_DONT_SYNC,
        Age::Now => libc::AT_STATX_SYNC_AS_STAT,
    };
    // SAFETY: zeros are a valid `statx`.
    let mut all: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with NUL, and the result has its type.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH | how, WANTED, &mut all) };
    (result == 0).then(|| Status {
        is_regular: u32::from(all.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        device: (all.stx_dev_major, all.stx_dev_minor),
        inode: all.stx_ino,
        size: all.stx_size,
    })
}

/// Whether the descriptor's file system is one in user space; `None` if it does not say.
pub(crate) fn is_fuse(fd: c_int) -> Option<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    // SAFETY: zeros are a valid `statfs`.
    let mut all: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the result has its type.
    let result = unsafe { libc::fstatfs(fd, &mut all) };
    (result == 0).then_some(all.f_type == FUSE_SUPER_MAGIC)
}

/// lseek(2).
pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int) -> Option<i64> {
    // SAFETY: no memory is passed.
    let position = unsafe { libc::lseek(fd, offset, whence) };
    (position >= 0).then_some(position)
}

/// The flags that the descriptor was opened with, as they are now.
pub(crate) fn flags(fd: c_int) -> Option<c_int> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (flags >= 0).then_some(flags)
}

/// Seconds of a clock that does not jump.
pub(crate) fn now_s() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result has its type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u32
}

const PAGE_BYTES: usize = 4096;
/// Not in the libc crate for all targets; from <linux/mman.h>.
const MADV_POPULATE_WRITE: c_int = 23;

/// The kernel can tell whether memory may be written to (Linux 5.14).
static TELLS_WRITABLE: AtomicBool = AtomicBool::new(false);

pub(crate) fn start() {
    let page = std::cell::Cell::new(0u8);
    TELLS_WRITABLE.store(populate(page.as_ptr() as usize, 1), Ordering::Relaxed);
}

fn populate(address: usize, length: usize) -> bool {
    let start = address / PAGE_BYTES * PAGE_BYTES;
    let Some(end) = address.checked_add(length) else { return false };
    // SAFETY: this kind of advice makes pages present, and changes no byte.
    unsafe { libc::madvise(start as *mut _, end - start, MADV_POPULATE_WRITE) == 0 }
}

/// Whether so many bytes from the address on can be written to; `None` if the kernel cannot tell.
pub(crate) fn is_writable(address: usize, length: usize) -> Option<bool> {
    TELLS_WRITABLE.load(Ordering::Relaxed).then(|| length == 0 || populate(address, length))
}

/// Whether so many bytes from the address on can be read.
pub(crate) fn is_readable(address: usize, length: usize) -> bool {
    const NO_SUCH_WAY: c_int = 99;
    let Some(end) = address.checked_add(length) else { return false };
    if length == 0 {
        return true;
    }
    // No set at all is none that cannot be read; but nobody has memory there.
    address >= PAGE_BYTES
        && (address / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).all(|page| {
            // The kernel fetches the set, and only then finds that it does not know what to do with it.
            // SAFETY: the address is not used but by the kernel, which checks it; nothing is changed.
            let result = unsafe {
                libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_WAY, page * PAGE_BYTES, std::ptr::null::<u8>(), 8)
            };
            !(result == -1 && errno() == libc::EFAULT)
        })
}

/// Whether the kernel can put what is in the file into these buffers: another way to learn if they are memory.
pub(crate) fn takes(fd: c_int, parts: &[libc::iovec], offset: i64) -> bool {
    // SAFETY: the addresses are not used but by the kernel, which checks them. They are the buffers of a read.
    let result = unsafe { libc::syscall(libc::SYS_preadv, fd, parts.as_ptr(), parts.len(), offset, offset >> 32) };
    !(result == -1 && errno() == libc::EFAULT)
}

/// Writes a line to a descriptor, once and whatever comes of it.
pub(crate) fn say(fd: c_int, line: &[u8]) {
    // SAFETY: the bytes are there.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
}

/// What a symbolic link says.
pub(crate) fn link(path: &std::ffi::CStr, into: &mut [u8]) -> usize {
    // SAFETY: the name ends with NUL, and there is so much room.
    let length = unsafe { libc::readlink(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(length).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_what_is_none() {
        start();
        let length = 3 * PAGE_BYTES;
        let map = |kind| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { libc::mmap(std::ptr::null_mut(), length, kind, flags, -1, 0) as usize }
        };
        let (both, read, none) = (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ), map(libc::PROT_NONE));
        assert!(is_readable(both, length) && is_readable(read + 5, length - 5) && is_readable(none, 0));
        assert!(!is_readable(none, 1) && !is_readable(0, 1) && !is_readable(usize::MAX - 3, 9));
        // Not unmapped: another test could have something mapped there by then.
        // SAFETY: it was mapped here, and nobody has a reference to it.
        let hidden = unsafe { libc::mprotect((both + 2 * PAGE_BYTES) as *mut _, PAGE_BYTES, libc::PROT_NONE) };
        assert_eq!(hidden, 0);
        assert!(is_readable(both + 100, 2 * PAGE_BYTES - 100) && !is_readable(both + 100, 2 * PAGE_BYTES));
        if is_writable(both, 1).is_none() {
            return eprintln!("SKIPPED: this kernel cannot tell what is writable");
        }
        assert_eq!(is_writable(both, 2 * PAGE_BYTES), Some(true));
        assert_eq!(is_writable(both, 2 * PAGE_BYTES + 1), Some(false));
        assert_eq!((is_writable(read, 1), is_writable(none, 1)), (Some(false), Some(false)));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let part = |address: usize| [libc::iovec { iov_base: address as *mut _, iov_len: 10 }];
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert!(takes(fd, &part(both), 0) && !takes(fd, &part(read), 0), "as older kernels are asked");
    }

    #[test]
    fn descriptors_are_looked_at() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert!(status(fd, Age::Known).unwrap().is_regular && status(fd, Age::Now).unwrap().size > 0);
        assert_eq!(flags(fd).unwrap() & libc::O_ACCMODE, libc::O_RDONLY);
        assert_eq!((status(-1, Age::Now), flags(-1), seek(-1, 0, libc::SEEK_CUR)), (None, None, None));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!status(std::os::fd::AsRawFd::as_raw_fd(&null), Age::Now).unwrap().is_regular);
        assert_eq!((is_fuse(fd), is_fuse(-1)), (Some(false), None));
    }
}
