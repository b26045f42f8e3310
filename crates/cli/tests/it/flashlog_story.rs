//! A laptop's story from end to end: a disk, a stick and a backup, with a file system on them that a real client mounts. The stick is forgotten, and
//! pulled out of the file system while it is written to; the disk dies.

use crate::flashlog_pulled::{has_all, work_and_pull};
use crate::flashlog_sets::Server;
use crate::rig::{Rig, Stick, eventually, fuse, lacks, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// Tries to unmount it, if it is mounted; whether it is not any more.
fn unmounts(path: &Path) -> bool {
    if is_mounted(path) {
        let _ = Command::new("umount").arg(path).stderr(Stdio::null()).status();
    }
    !is_mounted(path)
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

    /// The file system, whose loop device stays.
    fn unmount(&self) {
        // Busy for a moment: a program that another test starts has all files of this process until it is there.
        eventually("the file system is unmounted", || unmounts(&self.directory));
    }

    fn write(&self, name: &str, seed: u8, length: usize) {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 7) as u8 ^ seed).collect();
        fs::write(self.directory.join(name), bytes).unwrap();
        fs::File::open(self.directory.join(name)).unwrap().sync_all().unwrap();
    }

    fn sync(&self) {
        run("sync", &["-f", self.directory.to_str().unwrap()]);
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
        self.unmount();
        let _ = Command::new("losetup").args(["-d", &self.loop_device]).status();
        // The kernel lets go of the loop device's file a little later.
        eventually("nbdfuse is gone", || unmounts(&self.fuse));
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

fn story(mode: &str) {
    if !clients() {
        return;
    }
    let is_synchronous = mode == "sync";
    let rig = Rig::new();
    let stick = Stick::plug_in(&rig);
    let devices = ["--main", "disk", "--log", "usb/stick"];
    // Room for whatever a fast machine writes until the stick is out.
    let create = [&["flashlog", "create", "--size", "64M", "--log-size", "96M"][..], &devices].concat();
    rig.run(create).exits(0);
    let set = [&devices[..], &["--mode", mode]].concat();

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
    stick.pull();
    rig.run([&["flashlog", "serve"], &set[..]].concat()).exits(1).says("stick");
    stick.put_back();

    // It is back, and work goes on.
    let server = Server::start(&rig, &set);
    let mut mounted = Mounted::new(&rig, server.uri(), false);
    assert_eq!(mounted.contents(), before);
    mounted.write("on the train", 5, 500_000);
    mounted.sync();
    // The stick is pulled out while files are written, and everybody is told what that means.
    let count = work_and_pull(&stick, &mounted.directory, 0, Duration::from_millis(40), is_synchronous);
    let status = rig.run(["flashlog", "status"]).exits(3).out;
    if is_synchronous {
        assert!(status.contains("main is without a log since 20"), "{status}");
        mounted.write("in the tunnel", 6, 2_000_000);
        mounted.sync();
        rig.run(["flashlog", "backup", "--to", "backup"]).exits(1).says("without its log");
        stick.put_back();
        rig.run(["flashlog", "attach", "--log", "usb/stick"]).exits(0);
    } else {
        assert!(status.contains("no changes are taken"), "{status}");
        stick.put_back();
        rig.run(["flashlog", "attach", "--log", "usb/stick"]).exits(0);
        // The kernel takes no changes to a file system whose disk has failed, until it is mounted again.
        drop(mounted);
        mounted = Mounted::new(&rig, server.uri(), false);
    }
    rig.run(["flashlog", "status"]).exits(0);
    has_all(&mounted.directory, count, "with the stick again");
    mounted.write("thesis", 7, 3_200_000);
    fs::remove_file(mounted.directory.join("photo")).unwrap();
    mounted.write("home again", 8, 300_000);
    mounted.sync();
    let last = mounted.contents();
    // The laptop is switched off the hard way.
    server.kill();
    drop(mounted);

    // The disk dies.
    fs::remove_file(rig.path("disk")).unwrap();
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "usb/stick", "--main", "new disk"]).exits(0);
    let server = Server::start(&rig, &["--main", "new disk", "--log", "usb/stick", "--mode", mode]);
    let mounted = Mounted::new(&rig, server.uri(), false);
    assert_eq!(mounted.contents(), last);
    has_all(&mounted.directory, count, "from backup and stick");
    mounted.unmount();
    run("e2fsck", &["-f", "-n", &mounted.loop_device]);
    drop(mounted);
    server.stop();
}

#[test]
fn a_laptop_loses_its_stick_then_its_disk_and_nothing_else_in_synchronous_mode() {
    story("sync");
}

#[test]
fn a_laptop_loses_its_stick_then_its_disk_and_nothing_else_in_asynchronous_mode() {
    story("async");
}
