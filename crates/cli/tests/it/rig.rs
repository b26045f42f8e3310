//! A place of its own for each test, with its own home directory, and what it mounts is gone afterwards.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest that anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    directory: TempDir,
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The failure in words: one line, perhaps a second one that says what to do.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Ran {
        assert!(self.err.starts_with("holdfast: ") && self.err.lines().count() <= 2, "{self:?}");
        assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        self
    }
}

impl Rig {
    /// On a real disk, as a temporary directory may be in memory.
    pub(crate) fn new() -> Rig {
        Rig { directory: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// One that other users get at, also where the sources are in the home directory of root.
    pub(crate) fn for_others() -> Rig {
        Rig { directory: TempDir::new_in("/var/tmp").unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .env("HOME", self.path("home"))
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_STATE_HOME")
            .env_remove("HOLDFAST_LOG")
            .env("HOLDFAST_RUNTIME_DIR", self.path("run"))
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `holdfast` in the rig's directory.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        let output = self.command().args(arguments).output().unwrap();
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// A new store called `name`.
    pub(crate) fn store(&self, name: &str, size: &str) -> PathBuf {
        self.run(["create", name, "--size", size]).exits(0);
        self.path(name)
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// A new store, mounted on `m`.
    pub(crate) fn mounted(&self, options: &str) -> PathBuf {
        self.store("s", "64M");
        let directory = self.directory("m");
        self.run(["mount", "s", "m", "-o", options]).exits(0);
        directory
    }

    /// A new store, mounted on `m` for the lab.
    pub(crate) fn lab(&self, options: &str) -> PathBuf {
        self.store("s", "64M");
        let directory = self.directory("m");
        self.run(["mount", "--lab", "s", "m", "-o", options]).exits(0);
        directory
    }

    /// Flips a bit of a page in the memory of the lab's mount `m`; the page is in this state.
    pub(crate) fn flip(&self, path: &str, page: usize, state: &str) {
        let (memory, page) = (format!("--memory={state}"), page.to_string());
        let ran = self.run(["inject", "m", &memory, "--kind", "file-data", "--path", path, "--page", &page]).exits(0);
        assert!(ran.out.contains(&format!("page {page} of ")) && ran.out.contains(state), "{ran:?}");
    }

    /// Process that serves the mount `m`.
    pub(crate) fn daemon(&self, mount: &str) -> i32 {
        // Which may have something to see to.
        let status = self.run(["status", mount, "--json"]).json();
        i32::try_from(status["daemon"]["pid"].as_i64().expect("a daemon")).unwrap()
    }

    /// Kills the process that serves a mount. The mount stays, and answers nobody.
    pub(crate) fn kill_daemon(&self, mount: &str) {
        let daemon = self.daemon(mount);
        kill(daemon, Signal::KILL);
        await_end(daemon);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mountinfo.lines().filter_map(|line| line.split(' ').nth(4).map(PathBuf::from));
        for mount in mounts.filter(|mount| mount.starts_with(self.directory.path())) {
            eprintln!("left over: {}", mount.display());
            if self.run([OsStr::new("unmount"), mount.as_os_str()]).code != Some(0) {
                let _ = Command::new("umount").arg("-f").arg("-l").arg(&mount).status();
            }
        }
    }
}

/// A stick that is really pulled out: what is below `usb` is on a mount of its own, whose daemon is killed. From then on each request to it is an
/// error, and what it had not flushed is lost. It goes before the rig looks for what is left over.
pub(crate) struct Stick<'a>(&'a Rig);

impl<'a> Stick<'a> {
    pub(crate) fn plug_in(rig: &'a Rig) -> Stick<'a> {
        rig.store("usb.store", "256M");
        rig.directory("usb");
        rig.run(["mount", "usb.store", "usb"]).exits(0);
        Stick(rig)
    }

    /// At once, whoever is at it.
    pub(crate) fn pull(&self) {
        self.0.kill_daemon("usb");
    }

    pub(crate) fn put_back(&self) {
        self.0.run(["unmount", "usb"]);
        self.0.run(["mount", "usb.store", "usb"]).exits(0);
    }
}

impl Drop for Stick<'_> {
    fn drop(&mut self) {
        self.0.run(["unmount", "--force", "usb"]);
    }
}

/// Copies the program there, by another process: were it written by this one, what other threads start meanwhile could still have it open for writing
/// when it is to run.
pub(crate) fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_holdfast")).arg(to).status().unwrap();
    assert!(copied.success(), "cp: {copied}");
}

/// A test that cannot run here says so and passes, unless this is required: `CI=true` requires everything, `HOLDFAST_REQUIRE` what it names
/// (`root,fuse`), as `tests/run.sh` does with what it has looked for itself.
#[track_caller]
pub(crate) fn lacks(what: &str, why: &str) {
    let is_required = std::env::var("HOLDFAST_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == what));
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!is_required && !is_ci, "{why}, and {what} is required");
    eprintln!("SKIPPED: {why}");
}

/// Whether this is root; says so if not, and what for it would be.
#[track_caller]
pub(crate) fn root(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        lacks("root", why);
    }
    is_root
}

/// Whether there is a program; says so if not.
#[track_caller]
pub(crate) fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        lacks("program", &format!("there is no {program}"));
    }
    there
}

/// Whether FUSE can be used here; says so if not.
#[track_caller]
pub(crate) fn fuse() -> bool {
    let root = rustix::process::geteuid().is_root();
    let helper = || Command::new("fusermount3").arg("--version").output().is_ok();
    let why = match () {
        () if !Path::new("/dev/fuse").exists() => "there is no /dev/fuse",
        () if !root && !helper() => "not root, and there is no fusermount3",
        () => return true,
    };
    lacks("fuse", why);
    false
}

/// Waits until `done`, or fails. For what nobody tells of: a program's status, a file that grows.
#[track_caller]
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the process has ended, or fails.
#[track_caller]
pub(crate) fn await_end(pid: i32) {
    let process = match pidfd_open(Pid::from_raw(pid).expect("a process"), PidfdFlags::empty()) {
        Err(Errno::SRCH) => return,
        process => process.unwrap(),
    };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    let ready = poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap();
    assert_eq!(ready, 1, "process {pid} has not ended in time");
}

/// Whether the process has ended, be it reaped or not.
pub(crate) fn has_ended(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => true,
    }
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Where some bytes are in a store.
pub(crate) fn places(store: &Path, bytes: &[u8]) -> Vec<u64> {
    let all = fs::read(store).unwrap();
    all.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes).map(|(at, _)| at as u64).collect()
}

/// Flips a bit of a store.
pub(crate) fn flip(store: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(store).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Of all bytes of a file.
pub(crate) fn fingerprint(path: &Path) -> (usize, u64) {
    let bytes = fs::read(path).unwrap();
    (bytes.len(), holdfast_integrity::crc64(&bytes))
}
