//! A mount that is gone when the value is dropped, also when a test fails or hangs.

use holdfast_fuse::{Caching, MountOptions, Service, Session, mount, unmount};
use rustix::mount::UnmountFlags;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A mount may be busy for so long by what its test has nothing to do with.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// Why there can be no mount here, for a test to say and pass.
pub(crate) fn missing() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    (!rustix::process::geteuid().is_root()).then_some("not root")
}

/// Cuts the connection: whoever waits for an answer gets an error. For a mount that is in order, this is its end as well.
pub(crate) fn cut_off(directory: &Path) {
    let _ = rustix::mount::unmount(directory, UnmountFlags::FORCE | UnmountFlags::DETACH);
}

/// Cuts a mount off when a test takes longer than `limit`, which makes it fail instead of hang.
pub(crate) struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(directory: PathBuf, limit: Duration) -> Watchdog {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{} hangs since {limit:?}; cut off", directory.display());
                cut_off(&directory);
            }
        });
        Watchdog { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A mounted file system, served by threads of this process.
pub(crate) struct Mounted {
    pub(crate) directory: PathBuf,
    workers: Vec<JoinHandle<std::io::Result<()>>>,
    _watchdog: Watchdog,
    _scratch: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new<H: Service + 'static>(handler: &Arc<H>, workers: usize) -> Mounted {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().to_path_buf();
        let options = MountOptions { source: "a, b\\c".into(), allow_other: true, ..MountOptions::default() };
        let session = Session::start(mount(&directory, &options).unwrap(), Caching::Direct).unwrap();
        let workers = (0..workers)
            .map(|_| {
                let mut worker = session.worker(session.clone_device().unwrap()).unwrap();
                let handler = handler.clone();
                std::thread::spawn(move || worker.serve(&*handler))
            })
            .collect();
        let watchdog = Watchdog::new(directory.clone(), Duration::from_secs(60));
        Mounted { directory, workers, _watchdog: watchdog, _scratch: scratch }
    }

    /// Unmounts in order; every worker must end without an error. It may be busy for a moment: a process that another test is starting
    /// has copies of this one's files until its exec.
    pub(crate) fn unmount(self) {
        let start = Instant::now();
        while let Err(error) = unmount(&self.directory, false) {
            assert!(error.kind() == ErrorKind::ResourceBusy && start.elapsed() < BUSY_MAX, "{error}");
            // The kernel tells nobody when a mount stops being busy.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.join();
    }

    /// Once it is unmounted: waits for the workers.
    pub(crate) fn join(mut self) {
        for worker in self.workers.drain(..) {
            worker.join().unwrap().unwrap();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            cut_off(&self.directory);
        }
    }
}
