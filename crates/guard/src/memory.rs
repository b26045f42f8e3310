//! Pages from the system, and their rights as mprotect knows them.

use std::io;
use std::mem::ManuallyDrop;
use std::ptr;

/// Bytes of a page of the system, a power of two.
pub(crate) fn page_size() -> usize {
    // SAFETY: no memory is involved.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Pages of zeros, given back when dropped.
pub(crate) struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// `bytes`: a multiple of the page size, more than 0.
    pub(crate) fn new(bytes: usize) -> io::Result<Mapping> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, where the kernel finds room.
        match unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            address => Ok(Mapping { address: address as usize, bytes }),
        }
    }

    /// The same, beginning at a multiple of `alignment`: a power of two, and a multiple of the page size.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> io::Result<Mapping> {
        debug_assert!(alignment.is_power_of_two() && alignment.is_multiple_of(page_size()));
        let with_room = bytes.checked_add(alignment - page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let all = ManuallyDrop::new(Mapping::new(with_room)?);
        let mapping = Mapping { address: all.address.next_multiple_of(alignment), bytes };
        let (end, all_end) = (mapping.address + bytes, all.address + all.bytes);
        for (start, end) in [(all.address, mapping.address), (end, all_end)] {
            // What is left on both sides goes back. If it cannot, it stays, untouched.
            drop((start < end).then(|| Mapping { address: start, bytes: end - start }));
        }
        Ok(mapping)
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and its users are gone.
        let unmapped = unsafe { libc::munmap(self.address as *mut libc::c_void, self.bytes) };
        debug_assert_eq!(unmapped, 0, "{}", io::Error::last_os_error());
    }
}

/// Lets all threads write into pages, or none.
pub(crate) fn set_writable(address: usize, bytes: usize, writable: bool) -> io::Result<()> {
    let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: the pages are those of a region, whose owner wants this; their contents do not change.
    match unsafe { libc::mprotect(address as *mut libc::c_void, bytes, rights) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this thread can write at the address now, a multiple of 4: found out by having the kernel add 0 there with the thread's rights,
/// in one atomic step, so that nothing changes and nobody is disturbed.
pub(crate) fn admits_writes(address: usize) -> bool {
    const FUTEX_OP_ADD_0: usize = (libc::FUTEX_OP_ADD as usize) << 28;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel checks the address, and answers EFAULT where there are no rights; 0 waiters are woken.
    unsafe { libc::syscall(libc::SYS_futex, address, operation, 0, 0, address, FUTEX_OP_ADD_0) != -1 }
}
