//! Requests of the real kernel, against the file system in memory.

use crate::memory::{BTIME, Memory, REVERSE};
use crate::mounted::{Mounted, missing};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

fn mounted(workers: usize) -> Option<(Mounted, Arc<Memory>)> {
    if let Some(reason) = missing() {
        eprintln!("skipped: {reason}");
        return None;
    }
    let memory = Arc::new(Memory::new());
    Some((Mounted::new(&memory, workers), memory))
}

/// Bytes that tell their place.
fn pattern(length: usize, salt: u32) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 13) as u8).collect()
}

#[test]
fn files_are_written_read_cut_and_removed() {
    let Some((mount, _)) = mounted(2) else { return };
    let path = mount.directory.join("file");
    let data = pattern(10_000, 1);
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"over there", 1 << 20).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 10);
    let mut hole = [1; 5000];
    file.read_exact_at(&mut hole, 500_000).unwrap();
    assert_eq!(hole, [0; 5000]);
    file.set_len(5000).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data[..5000]);
    assert_eq!(file.read_at(&mut hole, 5000).unwrap(), 0);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let status = fs::metadata(&path).unwrap();
    assert_eq!((status.mode(), status.blksize(), status.nlink()), (0o100640, 4096, 1));
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
    file.write_all_at(b"still open", 0).unwrap();
    drop(file);
    mount.unmount();
}

#[test]
fn directories_links_and_renames() {
    let Some((mount, _)) = mounted(2) else { return };
    let at = |name: &str| mount.directory.join(name);
    fs::create_dir(at("d")).unwrap();
    let names: Vec<String> =
        (0..700).map(|number| format!("name-{number:0width$}", width = 3 + number % 200)).collect();
    for name in &names {
        File::create(at("d").join(name)).unwrap();
    }
    // The first pass takes attributes along (readdirplus), the second does not (adaptive).
    for _ in 0..2 {
        let mut found: Vec<_> =
            fs::read_dir(at("d")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        let mut expected = names.clone();
        expected.sort();
        assert_eq!(found, expected);
    }
    for entry in fs::read_dir(at("d")).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().is_file());
    }
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::write(at("a"), b"a").unwrap();
    fs::write(at("b"), b"b").unwrap();
    let root = rustix::fs::open(&mount.directory, OFlags::DIRECTORY, Mode::empty()).unwrap();
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(&root, from, &root, to, flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(at("a")).unwrap(), fs::read(at("b")).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!((fs::read(at("b")).unwrap(), at("a").exists()), (b"b".to_vec(), false));
    fs::hard_link(at("b"), at("d/linked")).unwrap();
    assert_eq!(fs::metadata(at("b")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(at("b")).unwrap().ino(), fs::metadata(at("d/linked")).unwrap().ino());
    std::os::unix::fs::symlink("d/linked", at("s")).unwrap();
    assert_eq!(
        (fs::read_link(at("s")).unwrap().to_str(), fs::read(at("s")).unwrap()),
        (Some("d/linked"), b"b".to_vec())
    );
    drop(root);
    mount.unmount();
}

/// One read of 1 MiB is one request, answered from 256 pages that lie anywhere; one that is not aligned, from 257.
#[test]
fn long_reads_come_from_many_slices() {
    let Some((mount, _)) = mounted(2) else { return };
    let path = mount.directory.join("long");
    let data = pattern((4 << 20) + 123, 2);
    fs::write(&path, &data).unwrap();
    let file = File::open(&path).unwrap();
    for (offset, length) in [(0, 1 << 20), (1, 1 << 20), (4095, (1 << 20) + 2), (0, data.len()), (data.len() - 3, 3)] {
        let mut got = vec![0; length];
        file.read_exact_at(&mut got, offset as u64).unwrap();
        assert!(got == data[offset..offset + length], "{length} bytes from {offset}");
    }
    drop(file);
    mount.unmount();
}

/// Needs DIRECT_IO_ALLOW_MMAP: without that flag, mmap fails with ENODEV.
#[test]
fn shared_writable_mappings_work_over_direct_io() {
    let Some((mount, _)) = mounted(2) else { return };
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(mount.directory.join("m")).unwrap();
    let data = pattern(64 << 10, 3);
    file.write_all_at(&data, 0).unwrap();
    let length = data.len();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0).unwrap()
    };
    // SAFETY: the mapping has this length, and nothing else in this process refers to it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), length) };
    assert!(mapped == data);
    mapped[10_000..10_010].copy_from_slice(b"via memory");
    // SAFETY: the mapping is there.
    unsafe { rustix::mm::msync(base, length, MsyncFlags::SYNC).unwrap() };
    let mut got = [0; 10];
    file.read_exact_at(&mut got, 10_000).unwrap();
    assert_eq!(&got, b"via memory");
    file.write_all_at(b"via write!", 20_000).unwrap();
    assert_eq!(&mapped[20_000..20_010], b"via write!");
    // SAFETY: `mapped` is not used any more.
    unsafe { rustix::mm::munmap(base, length).unwrap() };
    drop(file);
    mount.unmount();
}

#[test]
fn attributes_of_all_kinds_pass() {
    let Some((mount, _)) = mounted(1) else { return };
    let path = mount.directory.join("f");
    fs::write(&path, b"x").unwrap();
    let status =
        rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME);
    let birth = status.unwrap().stx_btime;
    // Kernels before 6.6 do not ask for it.
    if (birth.tv_sec, birth.tv_nsec) != (0, 0) {
        assert_eq!((birth.tv_sec, birth.tv_nsec), BTIME);
    }
    let value = pattern(5000, 4);
    rustix::fs::setxattr(&path, "user.k", &value, XattrFlags::empty()).unwrap();
    let mut got = vec![0; 6000];
    let length = rustix::fs::getxattr(&path, "user.k", &mut got[..]).unwrap();
    assert!(got[..length] == value);
    assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut got[..10]), Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut got[..]), Err(rustix::io::Errno::NODATA));
    let length = rustix::fs::listxattr(&path, &mut got[..]).unwrap();
    assert_eq!(&got[..length], b"user.k\0");
    let room = rustix::fs::statfs(&mount.directory).unwrap();
    assert_eq!((room.f_blocks, room.f_bfree, room.f_bavail, room.f_namelen), (1 << 20, 1 << 19, 1 << 18, 255));
    mount.unmount();
}

#[test]
fn ioctls_carry_bytes_both_ways() {
    let Some((mount, _)) = mounted(1) else { return };
    let directory = File::open(&mount.directory).unwrap();
    let mut bytes = *b"12345678";
    let pointer = bytes.as_mut_ptr();
    // SAFETY: the number says that eight bytes are read and written, and `bytes` has as many.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&directory), u64::from(REVERSE), pointer) };
    assert_eq!((result, &bytes), (7, b"87654321"));
    // SAFETY: as above; the command is not known and does nothing.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&directory), u64::from(REVERSE) + 1, pointer) };
    assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTTY)));
    drop(directory);
    mount.unmount();
}

/// The kernel sends the parent directory's group if the caller has it besides its own.
#[test]
fn supplementary_groups_come_with_what_makes_something() {
    let Some((mount, memory)) = mounted(1) else { return };
    let directory = mount.directory.join("g");
    fs::create_dir(&directory).unwrap();
    // The directory belongs to group 0; the child, of group 4321, has 0 besides.
    fs::set_permissions(&mount.directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2777)).unwrap();
    let script = format!("mkdir {}/made", directory.display());
    let run =
        std::process::Command::new("setpriv").args(["--regid=4321", "--groups=0,77", "sh", "-c", &script]).output();
    match run {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return eprintln!("skipped: setpriv: {error}"),
    }
    assert_eq!(memory.groups(), [0]);
    mount.unmount();
}

#[test]
fn the_table_of_mounts_shows_source_and_type() {
    let Some((mount, _)) = mounted(1) else { return };
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mount.directory.to_str().unwrap())).unwrap();
    assert!(line.contains(" - fuse.holdfast a,\\040b\\134c "), "{line}");
    mount.unmount();
}

#[test]
fn a_mount_that_is_used_is_busy_and_can_be_left_lazily() {
    let Some((mount, _)) = mounted(2) else { return };
    let file = File::create(mount.directory.join("open")).unwrap();
    let error = holdfast_fuse::unmount(&mount.directory, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    holdfast_fuse::unmount(&mount.directory, true).unwrap();
    assert!(!mount.directory.join("open").exists());
    file.write_all_at(b"still served", 0).unwrap();
    drop(file);
    // Workers end when the last user is gone; the watchdog's limit bounds the wait.
    mount.join();
}

/// Workers in parallel, each with its own clone of the device.
#[test]
fn many_threads_get_their_own_answers() {
    let Some((mount, _)) = mounted(4) else { return };
    std::thread::scope(|scope| {
        for number in 0..8u32 {
            let path = mount.directory.join(format!("t{number}"));
            scope.spawn(move || {
                let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
                for round in 0..50 {
                    let data = pattern(3000 + round * 777, number * 1000 + round as u32);
                    file.write_all_at(&data, round as u64 * 100).unwrap();
                    let mut got = vec![0; data.len()];
                    file.read_exact_at(&mut got, round as u64 * 100).unwrap();
                    assert!(got == data, "thread {number}, round {round}");
                }
            });
        }
    });
    mount.unmount();
}
