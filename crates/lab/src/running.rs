//! A program that runs beside this one: until it has mounted, until it has ended, and no longer than anybody would wait.
//!
//! Nothing is asked again and again: the kernel tells when a process ends (pidfd_open(2)) and when something is mounted (the last
//! paragraph on `/proc/PID/mounts` in proc_pid_mounts(5)).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A child that runs, or has ended and was not asked.
#[derive(Debug)]
pub struct Running {
    child: Child,
    process: OwnedFd,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// There is no such program; the system has no room for one more process.
    pub fn start(command: &mut Command) -> io::Result<Running> {
        Running::of(command.spawn()?, |pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Names it; it does not go on without a name, as nobody would end it.
    fn of(mut child: Child, name: impl FnOnce(Pid) -> io::Result<OwnedFd>) -> io::Result<Running> {
        // It cannot be somebody else's: a child keeps its number until it is waited for.
        match name(Pid::from_child(&child)) {
            Ok(process) => Ok(Running { child, process }),
            Err(error) => {
                // Both fail only if it has ended and was waited for.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended. `None` if that takes longer.
    ///
    /// # Errors
    /// Those of the system.
    pub fn wait(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        if wait(&mut [PollFd::new(&self.process, PollFlags::IN)], Instant::now() + patience)? {
            return self.child.wait().map(Some);
        }
        Ok(None)
    }

    /// Waits until a file system is mounted on a directory, of which there was none before. `false` if the program ends before that, or
    /// it takes longer.
    ///
    /// # Errors
    /// Those of the system; the directory is in none.
    pub fn has_mounted(&mut self, directory: &Path, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        // What is mounted after this is told.
        let mounts = File::open("/proc/self/mountinfo")?;
        let around = fs::metadata(directory.parent().unwrap_or(Path::new("/")))?.dev();
        loop {
            if fs::metadata(directory).is_ok_and(|root| root.dev() != around) {
                return Ok(true);
            }
            let told = PollFd::new(&mounts, PollFlags::PRI);
            let is_told = wait(&mut [told, PollFd::new(&self.process, PollFlags::IN)], deadline)?;
            if !is_told || self.child.try_wait()?.is_some() {
                return Ok(false);
            }
        }
    }

    /// Ends it by force; nothing if it has ended.
    ///
    /// # Errors
    /// Those of the system.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }
}

/// It does not outlive who has started it.
impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Until one of them has something to tell. `false` when it is too late.
fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(number) => return Ok(number > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    const SOON: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_known_when_a_program_has_ended_and_when_not() {
        let mut running = Running::start(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null())).unwrap();
        assert_eq!(running.wait(SOON).unwrap(), None);
        assert!(!running.has_mounted(Path::new("/proc/self"), SOON).unwrap(), "too late");
        running.kill().unwrap();
        assert!(!running.has_mounted(Path::new("/proc/self"), PATIENCE).unwrap(), "ended");
        let status = running.wait(PATIENCE).unwrap().unwrap();
        assert!(!status.success());
        assert_eq!(running.wait(PATIENCE).unwrap(), Some(status), "it is told as often as it is asked for");
        assert!(Running::start(&mut Command::new("/there/is/no/such/program")).is_err());
    }

    #[test]
    fn a_program_that_gets_no_name_is_ended() {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let refused = Running::of(child, |_| Err(io::ErrorKind::Other.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }

    #[test]
    fn it_is_known_when_something_is_mounted() {
        if !rustix::process::geteuid().is_root() {
            return crate::required::lacks("root", "only root may mount");
        }
        let directory = std::env::temp_dir().join(format!("holdfast-running-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "read word; mount -t tmpfs none \"$0\"; read word"]).arg(&directory);
        let mut running = Running::start(command.stdin(Stdio::piped())).unwrap();
        assert!(!running.has_mounted(&directory, SOON).unwrap());
        let mut lines = running.child.stdin.take().unwrap();
        io::Write::write_all(&mut lines, b"now\n").unwrap();
        let is_mounted = running.has_mounted(&directory, PATIENCE).unwrap();
        drop(lines);
        assert!(running.wait(PATIENCE).unwrap().is_some());
        let unmounted = Command::new("umount").arg(&directory).status().unwrap();
        fs::remove_dir(&directory).unwrap();
        assert!(is_mounted && unmounted.success());
    }
}
