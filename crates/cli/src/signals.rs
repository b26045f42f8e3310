//! Signals that ask to stop, taken by a thread instead of a handler.

use std::io;

/// Blocks SIGINT, SIGTERM and SIGHUP for this thread and all that it starts from now on, so that [`wait`] gets them. To
/// be called before any thread is started.
pub(crate) fn block() -> io::Result<()> {
    // SAFETY: `set` is a valid signal set; a null pointer says that the old mask is not wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set(), std::ptr::null_mut()) } {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// Waits for one of the blocked signals and gives its name.
pub(crate) fn wait() -> io::Result<&'static str> {
    let mut number = 0;
    // SAFETY: `set` is a valid signal set, and `number` can be written.
    match unsafe { libc::sigwait(&set(), &mut number) } {
        0 => Ok(match number {
            libc::SIGINT => "SIGINT",
            libc::SIGTERM => "SIGTERM",
            _ => "SIGHUP",
        }),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

fn set() -> libc::sigset_t {
    // SAFETY: a signal set is plain data; sigemptyset makes it valid, and sigaddset fails only for numbers that are no
    // signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
