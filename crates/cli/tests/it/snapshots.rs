//! Snapshots of a mounted store: made, looked into, compared, deleted; after a crash and after damage.

use crate::rig::{Rig, eventually, fuse, kill};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("it fails").raw_os_error()
}

/// Mode, links, bytes or target, attribute.
type Node = (u32, u64, Vec<u8>, Option<Vec<u8>>);

/// Everything below a directory.
fn tree(root: &Path) -> BTreeMap<PathBuf, Node> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            let bytes = match data.file_type() {
                kind if kind.is_dir() => {
                    waiting.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                _ => fs::read(&path).unwrap(),
            };
            let mut note = [0; 64];
            let note = getxattr(&path, "user.note", &mut note[..]).ok().map(|length| note[..length].to_vec());
            found.insert(path.strip_prefix(root).unwrap().to_path_buf(), (data.mode(), data.nlink(), bytes, note));
        }
    }
    found
}

fn fill(mount: &Path) {
    fs::create_dir_all(mount.join("a/deep/er")).unwrap();
    for number in 0..300 {
        fs::write(mount.join(format!("a/f{number}")), vec![number as u8; 100 * number]).unwrap();
    }
    fs::write(mount.join("a/deep/er/big"), vec![7; 1 << 20]).unwrap();
    fs::hard_link(mount.join("a/f9"), mount.join("second name")).unwrap();
    symlink("a/f9", mount.join("link")).unwrap();
    setxattr(mount.join("a/f7"), "user.note", b"seven", XattrFlags::empty()).unwrap();
}

fn change(mount: &Path) {
    fs::write(mount.join("a/f1"), "other bytes").unwrap();
    fs::remove_file(mount.join("a/f2")).unwrap();
    fs::rename(mount.join("a/f3"), mount.join("a/deep/f3")).unwrap();
    fs::rename(mount.join("a/f4"), mount.join("a/f5")).unwrap();
    fs::create_dir(mount.join("new")).unwrap();
    fs::write(mount.join("new/file"), "new").unwrap();
    fs::remove_dir_all(mount.join("a/deep/er")).unwrap();
    setxattr(mount.join("a/f7"), "user.note", b"7", XattrFlags::empty()).unwrap();
    // Attributes alone, with and without another name.
    for (number, mode) in [(10, 0o600), (12, 0o640)] {
        fs::set_permissions(mount.join(format!("a/f{number}")), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::rename(mount.join("a/f12"), mount.join("a/f12 and more")).unwrap();
    let hour = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(3600);
    fs::File::open(mount.join("a/f11")).unwrap().set_times(fs::FileTimes::new().set_accessed(hour)).unwrap();
    fs::hard_link(mount.join("a/f13"), mount.join("a/f13 too")).unwrap();
}

#[test]
fn a_snapshot_stays_as_it_was_and_says_what_changed() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fill(&mount);
    let before = tree(&mount);
    let made = rig.run(["snapshot", "create", "m", "monday", "--json"]).exits(0).json();
    let kept = mount.join(".holdfast/snapshots/monday");
    assert_eq!(made["path"], kept.to_str().unwrap());
    assert!(tree(&kept) == before);
    change(&mount);
    let after = tree(&mount);
    assert!(tree(&kept) == before && after != before);
    let diff = rig.run(["snapshot", "diff", "m", "monday"]).exits(0).out;
    let mut lines: Vec<&str> = diff.lines().collect();
    lines.sort_unstable();
    let expected = [
        "+ a/f13 too",
        "+ new",
        "+ new/file",
        "- a/deep/er",
        "- a/deep/er/big",
        "- a/f2",
        "- a/f5",
        "A a/f10",
        "A a/f11",
        "A a/f12 and more",
        "A a/f7",
        "M .",
        "M a",
        "M a/deep",
        "M a/f1",
        "R a/f12 -> a/f12 and more",
        "R a/f3 -> a/deep/f3",
        "R a/f4 -> a/f5",
    ];
    assert_eq!(lines, expected, "{diff}");
    // A crash, and both are there.
    rig.run(["sync", "m"]).exits(0);
    kill(rig.daemon("m"), Signal::KILL);
    rig.run(["unmount", "m"]);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(tree(&kept) == before && tree(&mount) == after);
    rig.run(["snapshot", "create", "m", "tuesday"]).exits(0);
    assert_eq!(rig.run(["snapshot", "diff", "m", "tuesday"]).exits(0).out, "");
    // More than one reply carries.
    fs::create_dir(mount.join("many")).unwrap();
    (0..500).for_each(|number| fs::write(mount.join(format!("many/file {number}")), "x").unwrap());
    let many = rig.run(["snapshot", "diff", "m", "tuesday"]).exits(0).out;
    assert_eq!(many.lines().filter(|line| line.starts_with("+ many/file ")).count(), 500, "{many}");
    fs::remove_dir_all(mount.join("many")).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    let both = rig.run(["snapshot", "diff", "s", "monday", "tuesday"]).exits(0).out;
    assert_eq!(both, diff, "without a mount too");
    let back = rig.run(["snapshot", "diff", "s", "tuesday", "monday"]).exits(0).out;
    assert!(back.contains("- new/file\n") && back.contains("+ a/f2\n") && back.contains("R a/f5 -> a/f4\n"), "{back}");
}

#[test]
fn inside_a_snapshot_nothing_changes() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("strictatime");
    fill(&mount);
    rig.run(["snapshot", "create", "m", "s1"]).exits(0);
    let kept = mount.join(".holdfast/snapshots/s1");
    let file = kept.join("a/f5");
    let read_only = Some(libc_erofs());
    assert_eq!(errno(fs::write(&file, "x")), read_only);
    assert_eq!(errno(fs::write(kept.join("new"), "x")), read_only);
    assert_eq!(errno(fs::create_dir(kept.join("a/new"))), read_only);
    assert_eq!(errno(fs::remove_file(&file)), read_only);
    assert_eq!(errno(fs::remove_dir(kept.join("a/deep/er"))), read_only);
    assert_eq!(errno(fs::rename(&file, kept.join("a/f6"))), read_only);
    assert_eq!(errno(fs::rename(&file, mount.join("out"))), read_only);
    assert_eq!(errno(fs::rename(mount.join("a/f5"), kept.join("in"))), read_only);
    assert_eq!(errno(fs::hard_link(&file, mount.join("out"))), read_only);
    assert_eq!(errno(fs::hard_link(mount.join("a/f5"), kept.join("in"))), read_only);
    assert_eq!(errno(fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions())), read_only);
    assert_eq!(errno(setxattr(&file, "user.note", b"x", XattrFlags::empty()).map_err(Into::into)), read_only);
    assert_eq!(errno(fs::File::options().write(true).open(&file)), read_only);
    for made_up in [mount.join(".holdfast"), mount.join(".holdfast/snapshots")] {
        assert_eq!(errno(fs::write(made_up.join("new"), "x")), read_only);
        assert_eq!(errno(fs::create_dir(made_up.join("new"))), read_only);
    }
    assert!(fs::create_dir(mount.join(".holdfast")).is_err());
    assert!(fs::rename(mount.join("a"), mount.join(".holdfast")).is_err());
    // Reading does not change the time of access either.
    let accessed = fs::metadata(&file).unwrap().accessed().unwrap();
    fs::read(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().accessed().unwrap(), accessed);
    // Inode numbers are the objects', with the snapshot's number in the upper bits.
    let (live, old) = (fs::metadata(mount.join("a/f5")).unwrap(), fs::metadata(&file).unwrap());
    assert_eq!((old.ino() % (1 << 48), old.dev()), (live.ino(), live.dev()));
    assert_eq!(old.ino() >> 48, 1);
    assert_eq!(fs::metadata(kept.join("..")).unwrap().ino(), fs::metadata(kept.parent().unwrap()).unwrap().ino());
    for made_up in [mount.join(".holdfast"), mount.join(".holdfast/snapshots")] {
        let number = fs::metadata(&made_up).unwrap().ino();
        assert!(i64::try_from(number).is_ok(), "a negative inode number: {number:#x}");
    }
    // What goes through everything does not come upon it.
    let shown: Vec<_> = fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!shown.iter().any(|name| name == ".holdfast"), "{shown:?}");
    // Restoring is copying.
    fs::copy(kept.join("a/deep/er/big"), mount.join("restored")).unwrap();
    assert!(fs::read(mount.join("restored")).unwrap() == vec![7; 1 << 20]);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

#[test]
fn deleting_gives_the_space_back() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let free = || {
        rig.run(["sync", "m"]).exits(0);
        rig.run(["status", "m", "--json"]).exits(0).json()["space"]["free_bytes"].as_u64().unwrap()
    };
    let empty = free();
    fs::write(mount.join("big"), vec![1; 16 << 20]).unwrap();
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    rig.run(["snapshot", "create", "m", "one"]).exits(1).says("there is a snapshot one already");
    let words = rig.run(["status", "m"]).exits(0).out;
    assert!(words.contains("1, keeping ") && words.contains("; each one: holdfast snapshot list"), "{words}");
    let metrics = rig.run(["status", "m", "--metrics"]).exits(0).out;
    assert!(metrics.lines().any(|line| line.starts_with("holdfast_snapshots{") && line.ends_with(" 1")), "{metrics}");
    fs::remove_file(mount.join("big")).unwrap();
    assert!(free() < empty - (16 << 20), "the snapshot has it");
    // The kernel forgets a removed file when it likes, and only then the file is gone.
    eventually("only the snapshot has the file", || {
        free();
        let listed = rig.run(["snapshot", "list", "m", "--json"]).exits(0).json();
        (16 << 20..18 << 20).contains(&listed["snapshots"][0]["only_bytes"].as_u64().unwrap())
    });
    let kept = rig.run(["status", "m", "--json"]).exits(0).json()["snapshots_kept_bytes"].as_u64().unwrap();
    assert!((16 << 20..18 << 20).contains(&kept), "{kept}");
    let metrics = rig.run(["status", "m", "--metrics"]).exits(0).out;
    assert!(
        metrics.contains("holdfast_snapshots_kept_bytes{") && metrics.contains("holdfast_snapshot_deletion_runs_left{"),
        "{metrics}"
    );
    let open = fs::File::open(mount.join(".holdfast/snapshots/one/big")).unwrap();
    rig.run(["snapshot", "delete", "m", "one"]).exits(0);
    assert!(fs::metadata(mount.join(".holdfast/snapshots/one")).is_err(), "gone at once");
    assert_eq!(errno(std::io::Read::read(&mut &open, &mut [0; 10])), Some(rustix::io::Errno::STALE.raw_os_error()));
    drop(open);
    assert!(free() >= empty - (1 << 20), "given back");
    rig.run(["snapshot", "delete", "m", "one"]).exits(1).says("there is no snapshot one");
    assert_eq!(rig.run(["snapshot", "list", "m"]).exits(0).out, "No snapshots.\n");
    assert_eq!(rig.run(["status", "m", "--json"]).exits(0).json()["snapshots"], 0);
    rig.run(["snapshot", "create", "m", "a/b"]).exits(1).says("cannot be the name");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
