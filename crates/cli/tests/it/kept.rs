//! What programs do with files of a snapshot, while the files themselves change, the store is damaged, and the daemon dies.

use crate::rig::{Rig, flip, fuse, places};
use rustix::fs::{SeekFrom, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

fn snapshot(rig: &Rig, name: &str) -> PathBuf {
    rig.run(["snapshot", "create", "m", name]).exits(0);
    rig.path("m").join(".holdfast/snapshots").join(name)
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("it fails").raw_os_error()
}

#[test]
fn programs_run_and_files_are_mapped_out_of_a_snapshot() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::copy("/bin/echo", mount.join("program")).unwrap();
    fs::set_permissions(mount.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(mount.join("data"), vec![3; 40_000]).unwrap();
    let kept = snapshot(&rig, "s");
    fs::write(mount.join("program"), "no program any more").unwrap();
    fs::write(mount.join("data"), vec![4; 40_000]).unwrap();
    let ran = Command::new(kept.join("program")).arg("hello").output().unwrap();
    assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(0), &b"hello\n"[..]));
    let file = File::open(kept.join("data")).unwrap();
    // SAFETY: a new mapping of pages of a file; it is only read below, within its length, before it is unmapped.
    let bytes = unsafe {
        let start = mmap(std::ptr::null_mut(), 40_000, ProtFlags::READ, MapFlags::PRIVATE, &file, 0).unwrap();
        let bytes = std::slice::from_raw_parts(start.cast::<u8>(), 40_000).to_vec();
        munmap(start, 40_000).unwrap();
        bytes
    };
    assert!(bytes == vec![3; 40_000]);
}

#[test]
fn a_directory_of_a_snapshot_is_read_while_the_live_one_changes() {
    if !fuse() {
        return;
    }
    const FILES: usize = 3000;
    let rig = Rig::new();
    let mount = rig.mounted("");
    let many = mount.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..FILES {
        File::create(many.join(format!("file {number}"))).unwrap();
    }
    let kept = snapshot(&rig, "s").join("many");
    let mut seen = Vec::new();
    for (at, entry) in fs::read_dir(&kept).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().ino() >> 48, 1);
        seen.push(entry.file_name());
        // Names of the live one go and come, pages of its index with them.
        if at < FILES {
            fs::remove_file(many.join(format!("file {}", FILES - 1 - at))).unwrap();
            File::create(many.join(format!("other {at}"))).unwrap();
        }
    }
    let names: BTreeSet<_> = seen.iter().map(|name| name.to_str().unwrap().to_string()).collect();
    assert_eq!((seen.len(), names), (FILES, (0..FILES).map(|number| format!("file {number}")).collect()));
}

#[test]
fn holes_of_a_snapshot_stay_where_they_were() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let file = File::create(mount.join("sparse")).unwrap();
    file.write_all_at(&[1; 8192], 1 << 20).unwrap();
    file.set_len(3 << 20).unwrap();
    let kept = snapshot(&rig, "s");
    file.write_all_at(&[2; 2 << 20], 0).unwrap();
    let old = File::open(kept.join("sparse")).unwrap();
    assert_eq!(seek(&old, SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(&old, SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 8192));
    assert_eq!(seek(&old, SeekFrom::Data((1 << 20) + 8192)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(0));
    assert_eq!(old.metadata().unwrap().blocks(), 16);
}

#[test]
fn a_file_of_a_deleted_snapshot_is_stale_and_never_one_of_another() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("f"), "old").unwrap();
    let kept = snapshot(&rig, "s");
    let open = File::open(kept.join("f")).unwrap();
    let old = open.metadata().unwrap().ino();
    rig.run(["snapshot", "delete", "m", "s"]).exits(0);
    fs::write(mount.join("f"), "new").unwrap();
    let kept = snapshot(&rig, "s");
    assert_eq!(errno(open.read_at(&mut [0; 3], 0)), Some(rustix::io::Errno::STALE.raw_os_error()));
    assert_eq!(fs::read_to_string(kept.join("f")).unwrap(), "new");
    assert_ne!(fs::metadata(kept.join("f")).unwrap().ino(), old);
}

#[test]
fn a_bad_block_of_a_snapshot_is_an_error_with_its_name_also_after_a_crash() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::create_dir(mount.join("sub")).unwrap();
    for (name, byte) in [("sub/bad", 0xa5), ("good", 0x5a)] {
        fs::write(mount.join(name), [byte; 4096]).unwrap();
    }
    snapshot(&rig, "monday");
    for name in ["sub/bad", "good"] {
        fs::write(mount.join(name), "other").unwrap();
    }
    rig.run(["sync", "m"]).exits(0);
    let log = rig.run(["status", "m", "--json"]).exits(0).json()["daemon"]["log"].as_str().unwrap().to_string();
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]);
    let store = rig.path("s");
    flip(&store, places(&store, &[0xa5; 4096])[0] + 700);
    rig.run(["mount", "s", "m"]).exits(0);
    let kept = mount.join(".holdfast/snapshots/monday");
    assert_eq!(errno(fs::read(kept.join("sub/bad"))), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(fs::read(kept.join("good")).unwrap(), [0x5a; 4096]);
    assert_eq!(fs::read_to_string(mount.join("sub/bad")).unwrap(), "other");
    let path = "/.holdfast/snapshots/monday/sub/bad";
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains(path), "{text}");
    let found = rig.run(["scrub", "m", "--wait", "--json"]).exits(3).json();
    let finding = &found["findings"][0];
    assert_eq!((&finding["path"], &finding["fate"]), (&path.into(), &"lost".into()), "{found}");
    rig.run(["unmount", "m"]).exits(0);
    let checked = rig.run(["check", "s"]).exits(4).out;
    assert!(checked.contains(path), "{checked}");
}
