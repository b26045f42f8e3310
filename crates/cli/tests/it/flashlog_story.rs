//! A laptop's story: a disk, a stick and a backup, with a file system on them that a real client mounts.

use crate::flashlog_sets::Server;
use crate::rig::{Rig, eventually, fuse, lacks, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The set as a loop device over nbdfuse, with ext4 on it mounted on `mnt`; unmounted when it is dropped.
struct Mounted {
    fuse: PathBuf,
    directory: PathBuf,
    loop_device: String,
    nbdfuse: Child,
}

/// Runs a program, for a minute at most; gives what it printed.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").args(["60", program]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

impl Mounted {
    /// With `make`, the file system is made first.
    fn new(rig: &Rig, uri: &str, make: bool) -> Mounted {
        let (fuse, directory) = (rig.path("fuse"), rig.path("mnt"));
        for path in [&fuse, &directory] {
            fs::create_dir_all(path).unwrap();
        }
        let disk = fuse.join("disk");
        let nbdfuse = Command::new("nbdfuse").arg(&disk).arg(uri).stdin(Stdio::null()).spawn().unwrap();
        eventually("nbdfuse is there", || fs::metadata(&disk).is_ok_and(|disk| disk.len() > 0));
        let loop_device = run("losetup", &["--find", "--show", disk.to_str().unwrap()]);
        let mounted = Mounted { fuse, directory, loop_device, nbdfuse };
        if make {
            run("mkfs.ext4", &["-q", "-F", &mounted.loop_device]);
        }
        run("mount", &[&mounted.loop_device, mounted.directory.to_str().unwrap()]);
        mounted
    }

    fn write(&self, name: &str, seed: u8, length: usize) {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 7) as u8 ^ seed).collect();
        fs::write(self.directory.join(name), bytes).unwrap();
        fs::File::open(self.directory.join(name)).unwrap().sync_all().unwrap();
    }

    /// Names, sizes and checksums of all files.
    fn contents(&self) -> Vec<(String, usize, u64)> {
        let entries = fs::read_dir(&self.directory).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.path().is_file());
        let mut all: Vec<_> = files
            .map(|entry| {
                let (length, sum) = crate::rig::fingerprint(&entry.path());
                (entry.file_name().into_string().unwrap(), length, sum)
            })
            .collect();
        all.sort();
        all
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = |path: &Path| _ = Command::new("umount").arg(path).stderr(Stdio::null()).status();
        // Busy for a moment: a program that another test starts has all files of this process until it is there.
        eventually("the file system is unmounted", || {
            !is_mounted(&self.directory) || {
                umount(&self.directory);
                false
            }
        });
        let _ = Command::new("losetup").args(["-d", &self.loop_device]).status();
        // The kernel lets go of the loop device's file a little later.
        eventually("nbdfuse is gone", || {
            umount(&self.fuse);
            !is_mounted(&self.fuse)
        });
        let _ = self.nbdfuse.wait();
    }
}

fn clients() -> bool {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !root("loop devices need root") || !fuse() {
        return false;
    }
    if !["nbdfuse", "losetup", "mkfs.ext4", "e2fsck"].iter().all(|program| is_there(program)) {
        lacks("program", "there is no nbdfuse, losetup, mkfs.ext4 or e2fsck");
        return false;
    }
    let has_loop = Path::new("/dev/loop-control").exists();
    if !has_loop {
        lacks("root", "there is no /dev/loop-control");
    }
    has_loop
}

#[test]
fn a_laptop_loses_its_disk_and_nothing_else() {
    if !clients() {
        return;
    }
    let rig = Rig::new();
    let set = ["--main", "disk", "--log", "stick"];
    rig.run(["flashlog", "create", "--main", "disk", "--size", "64M", "--log", "stick", "--log-size", "64M"]).exits(0);

    // Work with disk and stick, and a backup at home in the middle of it.
    let server = Server::start(&rig, &set);
    let mounted = Mounted::new(&rig, server.uri(), true);
    mounted.write("letter", 1, 100_000);
    mounted.write("thesis", 2, 3_000_000);
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(0);
    mounted.write("thesis", 3, 3_100_000);
    fs::rename(mounted.directory.join("letter"), mounted.directory.join("sent")).unwrap();
    mounted.write("photo", 4, 1_000_000);
    let before = mounted.contents();
    drop(mounted);
    server.stop();

    // The stick is left at home: nobody works without it unasked.
    fs::rename(rig.path("stick"), rig.path("at home")).unwrap();
    rig.run(["flashlog", "serve", "--main", "disk", "--log", "stick"]).exits(1).says("stick");
    fs::rename(rig.path("at home"), rig.path("stick")).unwrap();

    // It is back, and work goes on. The laptop is switched off the hard way.
    let server = Server::start(&rig, &set);
    let mounted = Mounted::new(&rig, server.uri(), false);
    assert_eq!(mounted.contents(), before);
    mounted.write("on the train", 5, 500_000);
    run("sync", &["-f", mounted.directory.to_str().unwrap()]);
    // The stick is pulled out while the file system is in use: work goes on, and everybody is told what that means.
    let detached = rig.run(["flashlog", "detach"]).exits(0);
    assert!(detached.out.contains("NOT PROTECTED"), "{detached:?}");
    fs::rename(rig.path("stick"), rig.path("at home")).unwrap();
    mounted.write("in the tunnel", 6, 2_000_000);
    mounted.write("thesis", 7, 3_200_000);
    fs::remove_file(mounted.directory.join("photo")).unwrap();
    run("sync", &["-f", mounted.directory.to_str().unwrap()]);
    let status = rig.run(["flashlog", "status"]).exits(3);
    assert!(status.out.contains("main is without a log since 20"), "{status:?}");
    rig.run(["flashlog", "backup", "--to", "backup"]).exits(1).says("without its log");
    // It is there again, while work goes on.
    fs::rename(rig.path("at home"), rig.path("stick")).unwrap();
    rig.run(["flashlog", "attach", "--log", "stick"]).exits(0);
    rig.run(["flashlog", "status"]).exits(0);
    mounted.write("home again", 8, 300_000);
    run("sync", &["-f", mounted.directory.to_str().unwrap()]);
    let last = mounted.contents();
    server.kill();
    drop(mounted);

    // The disk dies.
    fs::remove_file(rig.path("disk")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "stick", "--main", "new disk"]).exits(0);
    let server = Server::start(&rig, &["--main", "new disk", "--log", "stick"]);
    let mounted = Mounted::new(&rig, server.uri(), false);
    assert_eq!(mounted.contents(), last);
    run("umount", &[mounted.directory.to_str().unwrap()]);
    run("e2fsck", &["-f", "-n", &mounted.loop_device]);
    drop(mounted);
    server.stop();
}
