//! Many transfers at a time through io_uring.
//!
//! The kernel reads and writes the callers' memory while a job is in flight, so the one invariant here is: [`Ring::run`]
//! does not return, by whatever path, before every job the kernel has taken is finished.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;

/// Jobs in flight at most.
const DEPTH: u32 = 64;

/// How often in a row the kernel may put a submission off before the ring is given up.
const MOST_REFUSALS: u32 = 1000;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All or part of it was not tried, or the ring could not do it: it is to be done the plain way.
    NotDone,
    /// So many bytes were transferred.
    Done(usize),
    /// The device failed it.
    Failed(Errno),
}

/// One transfer, holding on to its memory.
#[derive(Debug)]
pub(super) struct Job<'a> {
    is_write: bool,
    offset: u64,
    memory: Memory,
    pub(super) outcome: Outcome,
    /// The memory is borrowed, for writing into if `is_write` is false.
    borrowed: PhantomData<&'a mut [u8]>,
}

/// Memory as the kernel wants it described.
#[derive(Debug)]
enum Memory {
    Slices { start: *const libc::iovec, count: u32 },
    One(libc::iovec),
}

impl<'a> Job<'a> {
    fn new(is_write: bool, offset: u64, memory: Memory) -> Self {
        Job { is_write, offset, memory, outcome: Outcome::NotDone, borrowed: PhantomData }
    }

    /// Reads from byte `offset` into slices, at most 1024.
    pub(super) fn read(offset: u64, bufs: &'a mut [IoSliceMut<'_>]) -> Self {
        // IoSliceMut has the layout of iovec on Unix, by its documentation.
        Self::new(false, offset, Memory::Slices { start: bufs.as_ptr().cast(), count: bufs.len() as u32 })
    }

    /// Reads from byte `offset` into one buffer.
    pub(super) fn read_one(offset: u64, buf: &'a mut [u8]) -> Self {
        let one = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        Self::new(false, offset, Memory::One(one))
    }

    /// Writes slices, at most 1024, at byte `offset`.
    pub(super) fn write(offset: u64, bufs: &'a [IoSlice<'_>]) -> Self {
        // IoSlice has the layout of iovec on Unix, by its documentation.
        Self::new(true, offset, Memory::Slices { start: bufs.as_ptr().cast(), count: bufs.len() as u32 })
    }

    /// Writes one buffer at byte `offset`.
    pub(super) fn write_one(offset: u64, buf: &'a [u8]) -> Self {
        let one = libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        Self::new(true, offset, Memory::One(one))
    }

    fn entry(&self, fd: types::Fd, number: usize) -> squeue::Entry {
        let (start, count) = match &self.memory {
            Memory::Slices { start, count } => (*start, *count),
            Memory::One(one) => (std::ptr::from_ref(one), 1),
        };
        let entry = if self.is_write {
            opcode::Writev::new(fd, start, count).offset(self.offset).build()
        } else {
            opcode::Readv::new(fd, start, count).offset(self.offset).build()
        };
        entry.user_data(number as u64)
    }
}

/// A submission and completion queue pair, used by one thread at a time.
pub(super) struct Ring {
    ring: IoUring,
    /// The process that made it: a forked child does not have its memory.
    process: u32,
}

impl Ring {
    fn new() -> std::io::Result<Self> {
        // Completions need not interrupt this thread, which waits for them anyway (Linux 5.19).
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH).or_else(|_| IoUring::new(DEPTH))?;
        Ok(Ring { ring, process: std::process::id() })
    }

    /// Does the jobs in any order and sets their outcomes. Returns whether the ring can be used again.
    pub(super) fn run(&mut self, file: &OwnedFd, jobs: &mut [Job<'_>]) -> bool {
        let fd = types::Fd(file.as_raw_fd());
        let (mut next, mut done) = (0, 0);
        let mut healthy = true;
        let mut refused = 0;
        while done < next || (healthy && next < jobs.len()) {
            while healthy && next < jobs.len() && next - done < DEPTH as usize {
                let entry = jobs[next].entry(fd, next);
                // SAFETY: the entry points to the iovecs of this job, which neither move nor change while `jobs` is
                // borrowed, and they to memory borrowed for as long. This loop does not end before the kernel has
                // completed every entry that it has taken, see `untaken` below.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    break;
                }
                next += 1;
            }
            if healthy {
                // Waking up for each completion costs more than the shallower queue meanwhile.
                let wait_for = if next == jobs.len() { next - done } else { (next - done).min(DEPTH as usize / 4) };
                match self.ring.submit_and_wait(wait_for) {
                    Ok(_) => refused = 0,
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                    // The completion queue must be emptied first, or memory is short for the moment.
                    Err(error)
                        if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN))
                            && refused < MOST_REFUSALS =>
                    {
                        refused += 1;
                        std::thread::yield_now();
                    }
                    Err(_) => healthy = false,
                }
            }
            if !healthy {
                // The kernel takes no more, but still owns what it took: completions arrive without being asked for.
                // What it never took stays in the submission queue, which nobody will submit.
                let untaken = self.ring.submission().len();
                if next - done <= untaken {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            for completion in self.ring.completion() {
                done += 1;
                if let Some(job) = jobs.get_mut(completion.user_data() as usize) {
                    job.outcome = outcome(completion.result());
                }
            }
        }
        healthy
    }
}

fn outcome(result: i32) -> Outcome {
    match usize::try_from(result) {
        Ok(count) => Outcome::Done(count),
        Err(_) => match result.saturating_neg() {
            // Not the device's answer but the ring's, or memory that only the caller's own thread may touch (a worker
            // thread of the ring has its own protection keys).
            libc::EINTR
            | libc::EAGAIN
            | libc::EINVAL
            | libc::EFAULT
            | libc::ENOMEM
            | libc::ECANCELED
            | libc::EOPNOTSUPP => Outcome::NotDone,
            errno => Outcome::Failed(Errno::from_raw_os_error(errno)),
        },
    }
}

/// The idle rings of a device: one for each thread that has used one at the same time as others.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
    unavailable: AtomicBool,
}

impl Rings {
    /// An idle ring or a new one; `None` where the system has none to give (old kernel, seccomp, sysctl).
    pub(super) fn take(&self) -> Option<Ring> {
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        while let Some(ring) = self.idle.lock().pop() {
            if ring.process == std::process::id() {
                return Some(ring);
            }
            // Unmapping the parent's addresses could hit something of ours.
            std::mem::forget(ring);
        }
        match Ring::new() {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::debug!(%error, "no io_uring here, batches are done one by one");
                self.disable();
                None
            }
        }
    }

    /// Gives a ring back that is in order.
    pub(super) fn put(&self, ring: Ring) {
        self.idle.lock().push(ring);
    }

    /// Whether batches may go through a ring and at least one has.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> bool {
        !self.idle.lock().is_empty()
    }

    /// Does without rings from now on.
    pub(super) fn disable(&self) {
        self.unavailable.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings {{ idle: {}, unavailable: {:?} }}", self.idle.lock().len(), self.unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_devices_own_errors_are_failures() {
        assert_eq!(outcome(4096), Outcome::Done(4096));
        assert_eq!(outcome(-libc::EIO), Outcome::Failed(Errno::IO));
        assert_eq!(outcome(-libc::ENOSPC), Outcome::Failed(Errno::NOSPC));
        assert_eq!(outcome(-libc::EFAULT), Outcome::NotDone);
    }

    #[test]
    fn more_jobs_than_fit_the_ring_are_all_done() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[7; 500 * 10]).unwrap();
        let file: OwnedFd = file.into();
        let mut out = vec![[0; 10]; 501];
        // The last one is past the end.
        let mut jobs: Vec<_> = out.iter_mut().enumerate().map(|(at, buf)| Job::read_one(at as u64 * 10, buf)).collect();
        let rings = Rings::default();
        let Some(mut ring) = rings.take() else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        assert!(ring.run(&file, &mut jobs));
        assert!(jobs[..500].iter().all(|job| job.outcome == Outcome::Done(10)));
        assert_eq!(jobs[500].outcome, Outcome::Done(0));
        rings.put(ring);
        assert_eq!((out[499], out[500]), ([7; 10], [0; 10]));
    }
}
