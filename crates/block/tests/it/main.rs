//! File devices on real disks and real file systems: loop devices, a file system that runs full, one that copies on
//! write. These need root, loop devices and mkfs.btrfs; where one is missing, a test says so and passes.

use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use holdfast_block::{Access, AlignedBuf, BLOCK_SIZE, Device, Error, FileDevice, Write};

const MIB: u64 = 1 << 20;

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Held while a program runs: until it is one, it is a copy of this process with all that is open, and `losetup --find` takes hold of devices for a
/// moment that turn out to be somebody's.
static PROGRAMS: Mutex<()> = Mutex::new(());

/// Runs a command that may not be possible here; gives its output.
fn try_run(program: &str, arguments: &[&str]) -> Option<String> {
    let _alone = PROGRAMS.lock();
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
        other => {
            eprintln!("skipped: {program} {arguments:?}: {other:?}");
            None
        }
    }
}

/// A loop device over a file, gone when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Option<Loop> {
        try_run("losetup", &["--find", "--show", file.to_str().unwrap()]).map(Loop)
    }

    /// Opens it once `before` is closed, while no program that is about to run has a copy of that.
    fn open_after<T>(&self, before: T, access: Access) -> FileDevice {
        let _alone = PROGRAMS.lock();
        drop(before);
        FileDevice::open(Path::new(&self.0), access).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        try_run("losetup", &["--detach", &self.0]);
    }
}

/// A mounted file system, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(kind: &str, options: &str, what: &str, at: &Path) -> Option<Mount> {
        std::fs::create_dir_all(at).unwrap();
        try_run("mount", &["-t", kind, "-o", options, what, at.to_str().unwrap()])?;
        Some(Mount(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        try_run("umount", &[self.0.to_str().unwrap()]);
    }
}

fn file(path: &Path, size_bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(size_bytes).unwrap();
}

/// Writes the whole device in MiB steps.
fn fill(device: &FileDevice, byte: u8) -> Result<(), Error> {
    let data = AlignedBuf::copy_of(&vec![byte; MIB as usize]);
    (0..device.blocks()).step_by(256).try_for_each(|first| device.write(first, &[IoSlice::new(&data)]))
}

fn block_at(device: &FileDevice, at: u64) -> Vec<u8> {
    let mut out = vec![0xee; BLOCK_SIZE];
    device.read(at, &mut [IoSliceMut::new(&mut out)]).unwrap();
    out
}

/// Takes what space is left.
fn exhaust(directory: &Path) {
    let hog = std::fs::File::create(directory.join("hog")).unwrap();
    let data = vec![1; 64 << 10];
    while std::io::Write::write_all(&mut &hog, &data).is_ok() {}
    let _ = hog.sync_all();
}

#[test]
fn a_disk_is_measured_held_exclusively_and_trimmed() {
    let directory = scratch();
    let path = directory.path().join("image");
    file(&path, 32 * MIB);
    let Some(disk) = Loop::over(&path) else { return };
    let device = disk.open_after((), Access::ReadWrite);
    assert!(device.is_disk() && device.is_direct() && device.is_reserved());
    assert_eq!(device.blocks(), 32 * 256);
    for access in [Access::ReadWrite, Access::ReadOnly] {
        assert!(matches!(FileDevice::open(Path::new(&disk.0), access), Err(Error::InUse { .. })));
    }
    fill(&device, 7).unwrap();
    device.flush().unwrap();
    device.discard(256, 512).unwrap();
    assert_eq!(block_at(&device, 300), vec![0; BLOCK_SIZE], "a loop device turns a trim into a hole");
    assert_eq!((block_at(&device, 255), block_at(&device, 768)), (vec![7; BLOCK_SIZE], vec![7; BLOCK_SIZE]));
    let device = disk.open_after(device, Access::ReadOnly);
    assert_eq!(block_at(&device, 8191), vec![7; BLOCK_SIZE]);
}

#[test]
fn a_mounted_disk_is_refused() {
    let directory = scratch();
    let path = directory.path().join("image");
    file(&path, 128 * MIB);
    let Some(disk) = Loop::over(&path) else { return };
    if try_run("mkfs.ext4", &["-q", &disk.0]).is_none() {
        return;
    }
    let Some(mount) = Mount::new("ext4", "rw", &disk.0, &directory.path().join("mount")) else { return };
    let error = FileDevice::open(Path::new(&disk.0), Access::ReadWrite).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop(mount);
    disk.open_after((), Access::ReadWrite);
}

/// A disk whose medium fails from 8 MiB on: a loop device over a sparse file on a file system of 8 MiB.
#[test]
fn a_disk_that_fails_latches_with_the_address() {
    let directory = scratch();
    let at = directory.path().join("small");
    let Some(mount) = Mount::new("tmpfs", "size=8m", "holdfast-test", &at) else { return };
    file(&at.join("image"), 32 * MIB);
    let Some(disk) = Loop::over(&at.join("image")) else { return };
    let device = disk.open_after((), Access::ReadWrite);
    let error = fill(&device, 7).unwrap_err();
    let first = error.first().expect("a write has an address");
    assert!(matches!(error, Error::Io { .. }) && (7 * 256..=8 * 256).contains(&first), "{error}");
    assert!(error.to_string().starts_with(&format!("{}: write failed at block {first} (1048576 bytes): ", disk.0)));
    for later in [device.flush(), device.write(0, &[IoSlice::new(&[0; BLOCK_SIZE])]), device.discard(0, 1)] {
        let later = later.unwrap_err();
        assert!(matches!(later, Error::Latched { .. }) && later.root().first() == Some(first), "{later}");
    }
    assert_eq!(block_at(&device, 0), vec![7; BLOCK_SIZE]);

    // The same in a batch.
    let device = disk.open_after(device, Access::ReadWrite);
    let data = AlignedBuf::copy_of(&[8; BLOCK_SIZE]);
    let bufs = [IoSlice::new(&data)];
    let writes: Vec<_> = [0, 5000, 1, 6000].into_iter().map(|first| Write { first, bufs: &bufs }).collect();
    let error = device.write_batch(&writes).unwrap_err();
    assert!(matches!(error, Error::Io { first: Some(5000 | 6000), .. }), "{error}");
    assert!(matches!(device.flush(), Err(Error::Latched { .. })));
    drop((device, disk, mount));
}

#[test]
fn a_created_file_survives_its_host_running_full_and_a_sparse_one_latches() {
    let directory = scratch();
    let at = directory.path().join("small");
    let Some(mount) = Mount::new("tmpfs", "size=16m", "holdfast-test", &at) else { return };
    let too_large = FileDevice::create_file(&at.join("large"), 32 * MIB).unwrap_err();
    assert!(too_large.to_string().ends_with("large: create failed: No space left on device (os error 28)"));
    assert!(!at.join("large").exists());
    let reserved = FileDevice::create_file(&at.join("reserved"), 4 * MIB).unwrap();
    assert!(reserved.is_reserved());
    file(&at.join("sparse"), 4 * MIB);
    let sparse = FileDevice::open(&at.join("sparse"), Access::ReadWrite).unwrap();
    assert!(!sparse.is_reserved());
    exhaust(&at);
    fill(&reserved, 1).unwrap();
    reserved.discard(0, 1024).unwrap();
    exhaust(&at);
    fill(&reserved, 2).unwrap();
    reserved.flush().unwrap();
    assert!(matches!(fill(&sparse, 1), Err(Error::Io { first: Some(0), .. })));
    assert!(matches!(sparse.flush(), Err(Error::Latched { .. })));
    drop((reserved, sparse, mount));
}

#[test]
fn a_created_file_keeps_its_space_on_a_copy_on_write_host() {
    let directory = scratch();
    let path = directory.path().join("image");
    file(&path, 256 * MIB);
    let Some(disk) = Loop::over(&path) else { return };
    if try_run("mkfs.btrfs", &["--quiet", "--force", "--mixed", &disk.0]).is_none() {
        return;
    }
    let at = directory.path().join("mount");
    let Some(mount) = Mount::new("btrfs", "rw", &disk.0, &at) else { return };
    let device = FileDevice::create_file(&at.join("store"), 128 * MIB).unwrap();
    assert!(device.is_reserved());
    exhaust(&at);
    for byte in 1..=3 {
        fill(&device, byte).unwrap();
        device.flush().unwrap();
    }
    assert_eq!(block_at(&device, 32767), vec![3; BLOCK_SIZE]);
    drop((device, mount, disk));
}
