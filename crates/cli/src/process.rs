//! Processes: what this one was called with, and when another one ends.

use crate::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::ffi::OsString;
use std::time::Duration;

/// The command line without the name of the program, as it was given: not all of it need be UTF-8.
pub(crate) fn arguments() -> impl Iterator<Item = OsString> {
    let mut words = std::env::args_os();
    words.next();
    words
}

/// Whether a process ends within `wait`; a signal may end the wait before.
pub(crate) fn has_ended(process: &OwnedFd, wait: Duration) -> Result<bool> {
    let wait = Timespec::try_from(wait).ok();
    match poll(&mut [PollFd::new(process, PollFlags::IN)], wait.as_ref()) {
        Ok(number) => Ok(number > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Failure::new(format!("cannot wait for a process: {error}"))),
    }
}
