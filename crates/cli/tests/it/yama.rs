//! Reading and writing with checksums where the kernel lets nobody look into other processes: `kernel.yama.ptrace_scope`, which Debian has at 1
//! where its Yama is loaded.
//!
//! The setting is the whole system's, and 3 stays until the system is started anew. So this runs in a virtual machine:
//! `tests/suites/protection-keys.sh`.

use crate::rig::Rig;
use crate::summed::{bytes, opened};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// Users with no right but their own.
const USER: u32 = 65_533;
const OTHER: u32 = 65_534;
/// The file of the program, and whether the daemon may fetch bytes from it.
const FILE: &str = "HOLDFAST_TEST_FILE";
const FETCHES: &str = "HOLDFAST_TEST_FETCHES";

/// Whose the daemon is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Daemon {
    Root,
    /// Root's, without the capability to trace.
    Confined,
    User,
}

impl Daemon {
    /// Whether Linux lets it look into a program of this user: ptrace(2), "Ptrace access mode checking", and Yama's rules.
    fn may_fetch(self, scope: u32, program: u32) -> bool {
        match self {
            Daemon::Root => scope < 3,
            // A process of root's has rights that this one lacks.
            Daemon::Confined => false,
            Daemon::User => program == USER && scope == 0,
        }
    }

    fn command(self, rig: &Rig) -> Command {
        let mut command = rig.command();
        match self {
            Daemon::Root => {}
            Daemon::Confined => {
                let mut without = Command::new("setpriv");
                without.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]).arg(command.get_program());
                without.current_dir(rig.path("")).env("HOME", rig.path("home"));
                without.env("HOLDFAST_RUNTIME_DIR", rig.path("run"));
                command = without;
            }
            Daemon::User => drop(command.uid(USER).gid(USER)),
        }
        command
    }
}

#[test]
#[ignore = "changes a setting of the whole system for good: run in a virtual machine by tests/suites/protection-keys.sh"]
fn transfers_pass_whatever_the_kernel_permits() {
    for scope in 0..=3 {
        fs::write(SCOPE, scope.to_string()).expect("a kernel with Yama, and root");
        assert_eq!(fs::read_to_string(SCOPE).unwrap().trim(), scope.to_string());
        for daemon in [Daemon::Root, Daemon::Confined, Daemon::User] {
            let rig = Rig::new();
            fs::set_permissions(rig.path(""), Permissions::from_mode(0o755)).unwrap();
            if daemon == Daemon::User {
                chown(rig.path(""), Some(USER), Some(USER)).unwrap();
            }
            let run = |arguments: &[&str]| {
                let ran = daemon.command(&rig).args(arguments).stdin(Stdio::null()).output().unwrap();
                assert!(ran.status.success(), "{daemon:?}: {arguments:?}: {ran:?}");
            };
            run(&["create", "s", "--size", "64M"]);
            let directory = rig.directory("m");
            chown(&directory, Some(USER), Some(USER)).unwrap();
            run(&["mount", "s", "m", "-o", "allow_other"]);
            fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
            for program in [0, USER, OTHER] {
                let path = directory.join(format!("f{program}"));
                let fetches = daemon.may_fetch(scope, program);
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "yama::program", "--ignored", "--nocapture"]).stdin(Stdio::null());
                command.env(FILE, &path).env(FETCHES, fetches.to_string());
                if program != 0 {
                    command.uid(program).gid(program);
                }
                let ran = command.output().unwrap();
                let case = format!("ptrace_scope {scope}, daemon {daemon:?}, program of user {program}");
                assert!(ran.status.success(), "{case}: {ran:?}");
                assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "{case}: {ran:?}");
                assert_eq!(fs::metadata(&path).unwrap().uid(), program, "{case}");
                eprintln!("{case}: long writes {}", if fetches { "are fetched" } else { "go inline" });
            }
            run(&["unmount", "m"]);
            run(&["check", "s"]);
        }
    }
}

/// The program.
#[test]
#[ignore = "run as another user by the test above"]
fn program() {
    let (Ok(path), Ok(fetches)) = (std::env::var(FILE), std::env::var(FETCHES)) else {
        return eprintln!("SKIPPED: run by the test above");
    };
    let path = Path::new(&path);
    let file = opened(path);
    let mut expected = Vec::new();
    // Within one ioctl, in one request, and in several; on and off the borders of blocks.
    for (seed, (offset, length)) in
        [(0, 5000), (4096, 128 << 10), (777, 70_001), (100_000, 1 << 20)].into_iter().enumerate()
    {
        let bytes = bytes(seed, length);
        assert_eq!(file.write_at(&bytes, offset as u64).unwrap(), length);
        expected.resize(expected.len().max(offset + length), 0);
        expected[offset..offset + length].copy_from_slice(&bytes);
    }
    let mut buffer = vec![0; expected.len()];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), expected.len());
    assert!(buffer == expected && fs::read(path).unwrap() == expected);
    file.get_ref().sync_all().unwrap();
    let reached = format!("{file:?}").contains("unreachable: false");
    assert_eq!(reached.to_string(), fetches, "long writes take the way that there is");
}
