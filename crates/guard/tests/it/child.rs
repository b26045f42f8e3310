//! Cases in processes of their own.

use holdfast_guard::{Protect, Region, install, report_faults};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Which case a child is, and how its memory is protected.
const CASE: &str = "HOLDFAST_GUARD_CASE";
const PROTECT: &str = "HOLDFAST_GUARD_PROTECT";
/// How a child ends whose case came to its end: not as a test binary does that found no test of this name.
pub(crate) const ITS_END: i32 = 92;
/// A child that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of a child.
pub(crate) struct Ended {
    /// `Ok` if the case came to its end, else the signal, if one ended it.
    pub(crate) how: Result<(), Option<i32>>,
    pub(crate) stderr: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn in_peace(&self) {
        assert_eq!(self.how, Ok(()), "{}", self.stderr);
    }

    #[track_caller]
    pub(crate) fn by_fault(&self) {
        assert_eq!(self.how, Err(Some(libc::SIGSEGV)), "{}", self.stderr);
    }

    #[track_caller]
    pub(crate) fn tells(&self, what: &str) {
        assert!(self.stderr.contains(what), "no {what:?} in:\n{}", self.stderr);
    }
}

/// Runs `body` in a child, and gives what became of it; `None` where the machine has no keys. `test`: the path of the calling test in this binary, for it runs again there, as the child.
#[track_caller]
pub(crate) fn run(test: &str, protect: Protect, body: fn(Protect)) -> Option<Ended> {
    if std::env::var(CASE).is_ok_and(|case| case == test) {
        if std::env::var(PROTECT).is_ok_and(|asked| asked == protect.to_string()) {
            body(protect);
            std::process::exit(ITS_END);
        }
        // A test that does so for several ways of protection.
        return None;
    }
    if protect == Protect::Keys && !keys_here() {
        eprintln!("skipped: no memory protection keys on this machine");
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=2"])
        .env(CASE, test)
        .env(PROTECT, protect.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let (said, all_said) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut stderr, &mut bytes).unwrap();
        said.send(String::from_utf8_lossy(&bytes).into_owned())
    });
    // The child has all of its standard error, so it has ended when there is no more of that.
    let stderr = all_said.recv_timeout(PATIENCE).or_else(|_| {
        child.kill().unwrap();
        all_said.recv()
    });
    let status = child.wait().unwrap();
    let how = if status.code() == Some(ITS_END) { Ok(()) } else { Err(status.signal()) };
    Some(Ended { how, stderr: stderr.unwrap() })
}

/// Asked of the system and not of the code under test, which must not find reasons to skip its own tests.
pub(crate) fn keys_here() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"))
}

/// In a child: protects memory in this way, with reports of faults.
pub(crate) fn protected(protect: Protect) -> Region {
    install(protect).unwrap();
    report_faults(None).unwrap();
    // No memory images in the directory of the tests.
    // SAFETY: no memory but the value on the stack is involved.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    Region::new("metadata of the test", 64 << 10).unwrap()
}

/// A store into memory like any other code's.
#[inline(never)]
pub(crate) fn store(region: &Region, offset: usize, value: u8) {
    assert!(offset < region.len());
    // SAFETY: in the region, which no other code of the child has. With no window open it faults, which is defined for our purposes: the
    // address is mapped, and the access volatile.
    unsafe { region.as_ptr().add(offset).write_volatile(value) };
}

#[inline(never)]
pub(crate) fn load(region: &Region, offset: usize) -> u8 {
    assert!(offset < region.len());
    // SAFETY: as above.
    unsafe { region.as_ptr().add(offset).read_volatile() }
}
