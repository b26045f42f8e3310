//! A file system stopped where it stands, by the ioctl that other file systems have for it.

use crate::rig::{Rig, fuse, root};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

fn raw<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_mount_that_was_shut_down_answers_eio_and_has_after_a_remount_what_was_synced() {
    if !fuse() {
        return;
    }
    for options in ["epoch=60000", "epoch=60000,cache=kernel"] {
        let rig = Rig::new();
        let mount = rig.mounted(options);
        let mut synced = File::create(mount.join("synced")).unwrap();
        synced.write_all(b"kept").unwrap();
        synced.sync_all().unwrap();
        fs::write(mount.join("unsynced"), b"in memory only").unwrap();
        fs::create_dir(mount.join("d")).unwrap();

        holdfast_fuse::control::shut_down(File::open(&mount).unwrap()).unwrap();

        let eio = Some(5);
        assert_eq!(raw(fs::create_dir(mount.join("later"))), eio, "{options}");
        assert_eq!(raw(fs::metadata(mount.join("nothing like that"))), eio);
        assert_eq!(raw(synced.sync_all()), eio);
        if !options.contains("kernel") {
            assert_eq!(raw(synced.write_all(b"x")), eio);
        }
        assert_eq!(raw(fs::read_dir(mount.join("d")).and_then(Iterator::collect::<Result<Vec<_>, _>>)), eio);
        let status = rig.run(["status", "m"]);
        assert!(status.out.contains("shut down"), "{status:?}");
        drop(synced);
        rig.run(["unmount", "m"]);
        assert!(!mounted(&mount));

        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        assert_eq!(fs::read(mount.join("synced")).unwrap(), b"kept", "{options}");
        // Names and what they name are logged, contents only when they are synced.
        assert!(mount.join("d").is_dir());
        assert!(matches!(&fs::read(mount.join("unsynced")).unwrap()[..], b"" | b"in memory only"));
        assert_eq!(fs::metadata(mount.join("later")).unwrap_err().kind(), ErrorKind::NotFound);
        rig.run(["unmount", "m"]).exits(0);
    }
}

/// What was stopped is not started again by the back door.
#[test]
fn a_mount_that_was_shut_down_is_not_remounted() {
    if !fuse() || !root("remounts need root") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000");
    fs::write(mount.join("f"), b"in memory only").unwrap();
    holdfast_fuse::control::shut_down(File::open(&mount).unwrap()).unwrap();
    let stored = fs::read(rig.path("s")).unwrap();
    for how in ["ro", "noatime"] {
        rig.run(["mount", "s", "m", "-o", &format!("remount,{how}")]).exits(1).says("shut down");
    }
    assert!(fs::read(rig.path("s")).unwrap() == stored, "nothing was written");
    rig.run(["unmount", "m"]);
    rig.run(["check", "s"]).exits(0);
}

fn mounted(directory: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", directory.display()))
}
