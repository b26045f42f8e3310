//! CPU time of processes, as exact as the scheduler counts it: a run of 10 ms is short against the ticks of `/proc/PID/stat`.

use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU time of this process so far, user and system, all threads.
pub fn own() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    duration(time.tv_sec, time.tv_nsec)
}

/// The same of another process (clock_getcpuclockid(3)).
///
/// # Errors
/// The process is gone.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the call writes one clockid_t to `clock`.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec to `time`.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(duration(time.tv_sec, time.tv_nsec))
}

/// Keeps this thread, and all threads and processes it starts from now on, on the last processor that it may use; gives its number.
///
/// A request to a daemon on another processor costs up to three times the CPU time of one on the same, and which of the two the
/// scheduler picks stays for seconds: without this a daemon's luck is measured, not its work.
///
/// # Errors
/// The kernel refuses.
pub fn stay_on_one() -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    let last = last.ok_or_else(|| io::Error::other("no processor is allowed"))?;
    let mut one = CpuSet::new();
    one.set(last);
    sched_setaffinity(None, &one)?;
    Ok(last)
}

fn duration(seconds: i64, nanos: i64) -> Duration {
    Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_see_the_same_work() {
        let pid = std::process::id();
        // In this order: what other tests do in between counts for both or for the process alone.
        let process = of_process(pid).expect("this process runs");
        let start = own();
        let mut word = 1u64;
        while own() - start < Duration::from_millis(20) {
            word = std::hint::black_box(word.wrapping_mul(3));
        }
        assert!(of_process(pid).expect("this process runs") - process >= Duration::from_millis(20));
    }

    #[test]
    fn what_a_thread_starts_stays_with_it() {
        let pinned = || {
            let last = stay_on_one().expect("pinned");
            let ours = std::thread::spawn(|| sched_getaffinity(None).expect("a set")).join().expect("it ends");
            (last, ours)
        };
        let (last, ours) = std::thread::spawn(pinned).join().expect("it ends");
        assert_eq!((0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu)).collect::<Vec<_>>(), [last]);
    }

    #[test]
    fn a_process_that_is_gone_has_no_clock() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        child.wait().expect("it ends");
        assert!(of_process(child.id()).is_err());
    }
}
