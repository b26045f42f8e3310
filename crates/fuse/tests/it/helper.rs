//! Mounting as an ordinary user, through fusermount3.

use crate::memory::Memory;
use crate::mounted::missing;
use holdfast_fuse::{Caching, MountOptions, Session, TYPE, mount, unmount};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join("fusermount3").exists()));
    if let Some(why) = missing().or((!found).then_some("there is no fusermount3")) {
        return eprintln!("skipped: {why}");
    }
    let home = tempfile::Builder::new().prefix("holdfast-fuse-").tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let point = home.path().join("mount");
    fs::create_dir(&point).unwrap();
    chown(&point, Some(NOBODY), Some(NOBODY)).unwrap();
    // Where the build lies may be closed to others.
    let executable = home.path().join("it");
    fs::copy(std::env::current_exe().unwrap(), &executable).unwrap();
    // Where /dev/fuse is root's only, as on some virtual machines, the helper cannot open it for others. So the user gets one that
    // is as udev makes it, in a mount namespace of its own; and /etc/mtab, which the helper reads and a bare container does not have.
    let script = "mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse && \
                  { [ -e /etc/mtab ] || { mkdir etc && mount -t tmpfs -o mode=755 tmpfs etc && cp -a /etc/. etc && \
                  ln -s /proc/self/mounts etc/mtab && mount --bind etc /etc; }; } && cd / && \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&executable)
        .args(["--exact", "helper::role_ordinary_user", "--ignored", "--nocapture"])
        .env("POINT", &point)
        .current_dir(home.path())
        .status()
        .expect("unshare, of util-linux");
    assert!(status.success());
}

#[test]
#[ignore = "a role in an_ordinary_user_mounts_through_the_helper"]
fn role_ordinary_user() {
    let point = PathBuf::from(std::env::var_os("POINT").unwrap());
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    let options = MountOptions { source: "a,b\\c d".into(), ..MountOptions::default() };
    let session = Session::start(mount(&point, &options).unwrap(), Caching::Direct).unwrap();
    // Who may not open /dev/fuse has no clones: all workers share the one queue.
    let device = session.clone_device().or_else(|_| session.device().try_clone_to_owned()).unwrap();
    let mut worker = session.worker(device).unwrap();
    let serving = std::thread::spawn(move || worker.serve(&Memory::new()));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(point.to_str().unwrap())).unwrap();
    assert!(line.contains(&format!(" - {TYPE} a,b\\134c\\040d ")), "{line}");
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    // The kernel checks permissions: the root directory is root's.
    assert_eq!(fs::create_dir(point.join("new")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let open = fs::File::open(&point).unwrap();
    assert_eq!(unmount(&point, false).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(open);
    unmount(&point, false).unwrap();
    serving.join().unwrap().unwrap();
    let error = mount(&point.join("not here"), &options).unwrap_err().to_string();
    assert!(error.contains("not here") || error.contains("No such file"), "the helper's own words: {error}");
}
