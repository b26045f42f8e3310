//! Fetching bytes from the memory of whoever asks, where the kernel lets us: a fast path.
//!
//! What is fetched is verified against the checksums that came with the request, so fetching from the wrong process (a number that
//! has been used again, or means another one in this process's namespace) is found, and bytes are refused. The other direction,
//! writing into a process by its number, has no such net and is not done. So nothing is fetched that comes without checksums. Nor does the number
//! come to mean another program by an exec before the request is answered: the exec waits for the thread that asks, and that one for the answer.
//!
//! Memory that is not there yet is waited for, and what it is waited for may be this mount: a mapped file of it, whose page another worker
//! has to read. So not all workers may wait at once ([`Fetches`]).

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So long a worker waits until another one has fetched: many times what it takes if the memory is there, and no time for a page that nobody but the
/// one who waits could read.
const WAIT_MOST: Duration = Duration::from_millis(2);

/// How many more workers may wait for the memory of callers. One always can not.
#[derive(Debug)]
pub(super) struct Fetches {
    free: Mutex<usize>,
    given_back: Condvar,
}

/// Given back when dropped.
#[derive(Debug)]
pub(super) struct Permit<'a>(&'a Fetches);

impl Fetches {
    /// Of a mount with so many workers.
    pub(super) fn of(workers: usize) -> Fetches {
        Fetches { free: Mutex::new(workers.saturating_sub(1)), given_back: Condvar::new() }
    }

    /// To wait for the memory of a caller, unless too many do, and go on doing so.
    pub(super) fn permit(&self) -> Option<Permit<'_>> {
        let waited = self.given_back.wait_timeout_while(self.lock(), WAIT_MOST, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Permit(self))
    }

    /// Nothing that panics is done under it.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.given_back.notify_one();
    }
}

/// Fills `into` from `address` on in the thread `pid`'s memory.
///
/// # Errors
/// The system's: EPERM without the right to trace the process (another user's, or kernel.yama.ptrace_scope), ESRCH if there is
/// none, EFAULT if not all of it is there.
pub(super) fn fetch(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let unusable = || io::Error::from_raw_os_error(libc::ESRCH);
    // 0: a process that has no number here.
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0).ok_or_else(unusable)?;
    let base = usize::try_from(address).map_err(|_| unusable())? as *mut libc::c_void;
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let there = libc::iovec { iov_base: base, iov_len: into.len() };
    // SAFETY: `here` is a unique borrow of so many bytes, the only ones that are written; `there` is an address in another process,
    // which the kernel checks.
    let done = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
    match usize::try_from(done) {
        Ok(done) if done == into.len() => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_always_left() {
        let fetches = Fetches::of(3);
        let (one, two) = (fetches.permit().unwrap(), fetches.permit().unwrap());
        assert!(fetches.permit().is_none());
        drop(one);
        let three = fetches.permit().unwrap();
        assert!(fetches.permit().is_none());
        drop((two, three));
        assert!(Fetches::of(1).permit().is_none() && Fetches::of(0).permit().is_none());
    }

    #[test]
    fn what_is_there_is_fetched_and_nothing_else() {
        let bytes: Vec<u8> = (0..200).collect();
        let mut into = vec![0; 200];
        let me = std::process::id();
        if let Err(error) = fetch(me, bytes.as_ptr() as u64, &mut into) {
            return eprintln!("SKIPPED: process_vm_readv is not permitted here: {error}");
        }
        assert_eq!(into, bytes);
        assert_eq!(fetch(me, 8, &mut into).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(fetch(0, bytes.as_ptr() as u64, &mut into).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert!(fetch(u32::MAX, bytes.as_ptr() as u64, &mut into).is_err());
        assert!(fetch(me, u64::MAX, &mut into).is_err());
    }
}
