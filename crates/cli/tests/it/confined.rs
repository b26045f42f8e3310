//! Reading and writing with checksums by a program in a container, of a mount whose daemon is in a sandbox.
//!
//! The program is this test binary, with [`inside`]: in name spaces of its own, with a root directory in which there is nothing but
//! the system's programs and the mount, as another user than the daemon's, who is root in there.

use crate::rig::{Rig, eventually, flip, fuse, lacks, places, root};
use crate::summed::{bytes, exercise, opened};
use holdfast_client::{Kind, Operation};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BLOCK: usize = 4096;
const USER: u32 = 65_534;
/// What the program does, and whether the daemon can be so placed that it fetches bytes from it.
const TASK: &str = "HOLDFAST_TEST_TASK";
const FETCHES: &str = "HOLDFAST_TEST_FETCHES";

/// As container run-times do it. `chroot` does where the root directory is none that can be exchanged, which is so in a chroot; the
/// kernel permits no name space of users there either.
const CONTAINER: &str = r#"
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs none "$ROOT"
chmod 755 "$ROOT"
cd "$ROOT"
mkdir usr proc dev old data
mount --rbind /usr usr
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L /$name ]; then cp -P /$name .
    elif [ -d /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
touch program
mount --bind "$PROGRAM" program
mount --rbind "$DATA" data
mount -t proc none proc
touch dev/null
mount --bind /dev/null dev/null
enter=
if pivot_root . old 2>/dev/null; then cd /; umount -l old
else enter='chroot .'; echo "SKIPPED: the root directory cannot be exchanged here (pivot_root), chroot instead"; fi
as="setpriv --reuid $USER_ID --regid $USER_ID --clear-groups --inh-caps=-all --no-new-privs"
apart='unshare --user --map-root-user --pid --fork --kill-child --mount'
if ! $enter $as $apart true 2>/dev/null; then apart=; echo 'SKIPPED: no name space of users here'; fi
exec $enter $as $apart /program --exact confined::inside --ignored --nocapture
"#;

/// What the daemon is confined by.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sandbox {
    None,
    /// As by `holdfast@.service`, and no system call that looks into another process: capabilities, no new ones, seccomp.
    Filtered,
    /// That, and in name spaces of its own except for mounts: it is process 1, and those of others have no number there.
    Apart,
}

/// Refuses this process, and those it starts, what sandboxes do: looking into others, and io_uring.
fn filter() -> std::io::Result<()> {
    const REFUSED: [libc::c_long; 6] = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_io_uring_setup,
    ];
    refuse(&REFUSED, libc::EPERM)
}

/// Refuses this thread, and what it starts, some system calls with an error. Allocates nothing.
pub(crate) fn refuse(calls: &[libc::c_long], errno: i32) -> std::io::Result<()> {
    const CALLS_MAX: usize = 8;
    let instruction = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = [instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW); CALLS_MAX + 3];
    let program = &mut program[..calls.len() + 3];
    // The number of the call is what a filter's data begin with.
    program[0] = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);
    for (index, call) in calls.iter().enumerate() {
        let over = (calls.len() - index) as u8;
        program[1 + index] = instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, over, *call as u32);
    }
    let refusal = libc::SECCOMP_RET_ERRNO | errno as u32;
    program[calls.len() + 2] = instruction(libc::BPF_RET | libc::BPF_K, 0, refusal);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the program is read, and is there until the call is done.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn filtered(mut command: Command) -> Command {
    // SAFETY: two system calls, which allocate nothing.
    unsafe { command.pre_exec(filter) };
    command
}

fn mount(rig: &Rig, sandbox: Sandbox) -> Option<Child> {
    let arguments = ["mount", "--lab", "s", "m", "-o", "allow_other,epoch=60000,cache=16M"];
    if sandbox == Sandbox::None {
        rig.run(arguments).exits(0);
        return None;
    }
    let mut command = Command::new(if sandbox == Sandbox::Apart { "unshare" } else { "setpriv" });
    if sandbox == Sandbox::Apart {
        command.args(["--pid", "--fork", "--kill-child", "--ipc", "--net", "--uts", "setpriv"]);
    }
    command.args(["--bounding-set=-all,+sys_admin,+dac_override,+dac_read_search", "--inh-caps=-all"]);
    command.args(["--no-new-privs", env!("CARGO_BIN_EXE_holdfast")]).args(arguments).arg("--foreground");
    command.current_dir(rig.path("")).env("HOME", rig.path("home")).env("HOLDFAST_RUNTIME_DIR", rig.path("run"));
    let mut daemon = filtered(command).stdout(Stdio::piped()).spawn().expect("util-linux");
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Mounted "), "{line:?}");
    Some(daemon)
}

fn unmount(rig: &Rig, daemon: Option<Child>) {
    rig.run(["unmount", "m", "--timeout", "20"]).exits(0);
    if let Some(mut daemon) = daemon {
        assert!(daemon.wait().unwrap().success());
    }
}

fn in_a_container(rig: &Rig, sandbox: Sandbox, task: &str) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--net", "--uts", "sh", "-c", CONTAINER]);
    command.env("ROOT", rig.path("root")).env("DATA", rig.path("m")).env("USER_ID", USER.to_string());
    command.env("PROGRAM", std::env::current_exe().unwrap());
    command.env(TASK, task).env(FETCHES, (sandbox == Sandbox::None).to_string());
    let ran = filtered(command).stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    // Without these it is still one; whoever requires root has them.
    for why in out.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")) {
        lacks("root", why);
    }
    assert!(ran.status.success() && out.contains("1 passed"), "{sandbox:?}, {task}: {:?}\n{out}\n{err}", ran.status);
}

/// With bytes that `exercise` has none of, so that its blocks are not taken for these.
fn contents(seed: usize) -> Vec<u8> {
    bytes(seed, 10 * BLOCK).into_iter().map(|byte| !byte).collect()
}

#[test]
fn programs_in_containers_and_daemons_in_sandboxes() {
    if !fuse() || !root("containers and sandboxes need root") {
        return;
    }
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--pid", "--fork", "--ipc", "--net", "--uts", "true"]);
    match filtered(probe).output() {
        Ok(ran) if ran.status.success() => {}
        refused => return lacks("root", &format!("no name spaces or no seccomp here: {refused:?}")),
    }
    for sandbox in [Sandbox::None, Sandbox::Filtered, Sandbox::Apart] {
        let rig = Rig::new();
        rig.store("s", "64M");
        let directory = rig.directory("m");
        rig.directory("root");
        let daemon = mount(&rig, sandbox);
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        in_a_container(&rig, sandbox, "write");
        assert_eq!(fs::metadata(directory.join("f")).unwrap().uid(), USER, "{sandbox:?}");
        rig.flip("/f", 3, "dirty");
        in_a_container(&rig, sandbox, "dirty");
        rig.flip("/f", 5, "clean");
        in_a_container(&rig, sandbox, "clean");
        // Its number may mean somebody else here.
        let told = rig.run(["status", "m"]).exits(0).out;
        assert_eq!(told.contains("process 1 of another name space"), sandbox == Sandbox::Apart, "{told}");
        unmount(&rig, daemon);

        let store = rig.path("s");
        // Wherever it is: in the intent log, too, which had it at the fsync.
        let block = &contents(90)[2 * BLOCK..3 * BLOCK];
        let stored: Vec<_> = places(&store, block).into_iter().filter(|at| at.is_multiple_of(BLOCK as u64)).collect();
        assert!(!stored.is_empty(), "stored as it is");
        stored.into_iter().for_each(|at| flip(&store, at + 100));
        let daemon = mount(&rig, sandbox);
        in_a_container(&rig, sandbox, "disk");
        unmount(&rig, daemon);
        rig.run(["mount", "s", "m"]).exits(0);
        assert!(fs::read(directory.join("f")).unwrap() == contents(90), "{sandbox:?}: the block was written again");
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
}

/// The daemon in name spaces of its own is asked to end by the number that it has here; the one it has there is somebody else's.
#[test]
fn a_daemon_with_another_number_is_the_one_that_is_ended() {
    if !fuse() || !root("name spaces need root") {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    let directory = rig.directory("m");
    let mut daemon = mount(&rig, Sandbox::Apart).expect("in the foreground");
    let held = fs::File::create(directory.join("f")).unwrap();
    rig.run(["unmount", "m", "--force", "--timeout", "20"]).exits(0);
    assert!(daemon.wait().unwrap().success());
    drop(held);
    eventually("it is gone", || rig.run(["status", "s"]).code == Some(0));
    rig.run(["check", "s"]).exits(0);
}

/// The program in the container.
#[test]
#[ignore = "run in a container by the test above"]
fn inside() {
    let (Ok(task), Ok(fetches)) = (std::env::var(TASK), std::env::var(FETCHES)) else {
        return eprintln!("SKIPPED: not in a container");
    };
    assert!(std::process::id() < 10 && !Path::new("/etc").exists(), "a container");
    let path = Path::new("/data/f");
    if task == "write" {
        let reached = exercise(Path::new("/data/exercise"));
        assert_eq!(reached.to_string(), fetches, "long writes take the way that there is");
        let file = opened(path);
        file.write_at(&contents(50), 0).unwrap();
        file.get_ref().sync_all().unwrap();
        file.write_at(&contents(90), 0).unwrap();
        return;
    }
    let (file, expected) = (opened(path), contents(90));
    let mut buffer = vec![0; expected.len()];
    let (kind, block) = match &task[..] {
        "dirty" => (Kind::Memory, 3),
        "disk" => (Kind::Device, 2),
        _ => {
            file.read_at(&mut buffer, 0).unwrap();
            return assert!(buffer == expected, "read again from the disk");
        }
    };
    // By a read and one ioctl, and by one ioctl.
    for (offset, length) in [(0, expected.len()), (block * BLOCK + 10, 20)] {
        let error = file.read_at(&mut buffer[..length], offset as u64).unwrap_err();
        assert_eq!((error.kind, error.operation, error.errno), (kind, Operation::Read, 5), "{error}");
        assert_eq!(error.blocks, [block as u64], "{error}");
    }
    if kind == Kind::Memory {
        assert_eq!(file.bad_blocks().unwrap(), [block as u64]);
        assert_eq!(file.get_ref().sync_all().unwrap_err().raw_os_error(), Some(5), "fsync tells");
    }
    file.write_at(&expected[block * BLOCK..][..BLOCK], (block * BLOCK) as u64).unwrap();
    file.get_ref().sync_all().unwrap();
    file.read_at(&mut buffer, 0).unwrap();
    assert!(buffer == expected, "written again");
}
