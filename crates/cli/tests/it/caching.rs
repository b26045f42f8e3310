//! `-o cache=kernel`: what the kernel keeps, hands down later, and cannot hand down; beside it what mapped pages get in either mode.

use crate::rig::{Rig, fuse, has_ended, kill};
use rustix::fs::{SeekFrom, seek};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const PAGE: usize = 4096;

/// Writes `pages` pages through a shared mapping, and waits for them to be handed down.
pub(crate) fn write_mapped(file: &File, pages: usize, byte: u8) -> rustix::io::Result<()> {
    use rustix::mm::{MsyncFlags, msync};
    // SAFETY: the mapping is there.
    mapped(file, pages, byte, |base, length| unsafe { msync(base, length, MsyncFlags::SYNC) })
}

/// Writes `pages` pages through a shared mapping, and does something while it is there.
pub(crate) fn mapped(
    file: &File,
    pages: usize,
    byte: u8,
    then: impl FnOnce(*mut std::ffi::c_void, usize) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let length = pages * PAGE;
    // SAFETY: a new mapping at an address of the kernel's choice; it is written within its length, which the file has, and
    // nothing refers to it when it is taken away.
    unsafe {
        let base = mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?;
        std::ptr::write_bytes(base.cast::<u8>(), byte, length);
        let done = then(base, length);
        munmap(base, length)?;
        done
    }
}

fn times(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).unwrap();
    (found.mtime(), found.mtime_nsec())
}

#[test]
fn what_the_kernel_keeps_is_handed_down_with_its_times() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("cache=kernel,epoch=60000");
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert_eq!(status["daemon"]["options"], "rw,cache=kernel,epoch=60000");
    let content: Vec<u8> = (0..600_000u32).map(|at| (at / 7) as u8).collect();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("f")).unwrap();
    file.write_all(&content).unwrap();
    // What the kernel has is read and written while nobody is there to answer.
    let daemon = rig.daemon("m");
    kill(daemon, Signal::STOP);
    let (sender, done) = std::sync::mpsc::channel();
    let same = file.try_clone().unwrap();
    let expected = content[9000..9100].to_vec();
    std::thread::spawn(move || {
        let mut bytes = [0; 100];
        let read = same.read_exact_at(&mut bytes, 9000).and_then(|()| same.write_all_at(&bytes, 9000));
        sender.send((read.is_ok(), bytes.to_vec())).unwrap();
    });
    let answered = done.recv_timeout(crate::rig::PATIENCE);
    kill(daemon, Signal::CONT);
    assert_eq!(answered, Ok((true, expected)));
    // A program that copies only data must not take them for a hole.
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(600_000));
    let written_at = times(&mount.join("f"));
    // Later than the kernel's clock tick, so that a time set by whoever stores the bytes would be another.
    std::thread::sleep(std::time::Duration::from_millis(50));
    rig.run(["sync", "m"]).exits(0);
    file.sync_all().unwrap();
    drop(file);
    // A file that is opened for writing only: the rest of the page must be read for it.
    let only = OpenOptions::new().write(true).open(mount.join("f")).unwrap();
    fs::write(mount.join("g"), vec![3; 10_000]).unwrap();
    let changed = OpenOptions::new().append(true).open(mount.join("g")).unwrap();
    (&changed).write_all(b"end").unwrap();
    drop((only, changed));
    rig.run(["unmount", "m"]).exits(0);
    assert!(has_ended(daemon));
    rig.run(["check", "s"]).exits(0);

    // The other mode sees what this one wrote.
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("f")).unwrap() == content);
    assert_eq!(times(&mount.join("f")), written_at);
    let g = fs::read(mount.join("g")).unwrap();
    assert!(g.len() == 10_003 && g.ends_with(&[3, 3, b'e', b'n', b'd']));
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_part_of_a_page_can_be_written_without_reading_rights() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("f"), vec![1; 3 * PAGE]).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "cache=kernel"]).exits(0);
    let file = OpenOptions::new().write(true).open(mount.join("f")).unwrap();
    file.write_all_at(&[2; 10], PAGE as u64 + 5).unwrap();
    file.sync_all().unwrap();
    file.set_len(2 * PAGE as u64 + 100).unwrap();
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    let mut expected = vec![1; 2 * PAGE + 100];
    expected[PAGE + 5..PAGE + 15].fill(2);
    assert!(fs::read(mount.join("f")).unwrap() == expected);
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn fsync_says_that_there_was_no_room_for_what_the_kernel_had_taken() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "16M");
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "cache=kernel"]).exits(0);
    let mut file = File::create(mount.join("big")).unwrap();
    let written = (0..24).map(|_| file.write_all(&vec![7; 1 << 20])).find(|wrote| wrote.is_err());
    let told = match written {
        // The kernel has had to hand some down meanwhile.
        Some(Err(error)) => error,
        _ => file.sync_all().expect_err("24 MiB are not in 16"),
    };
    assert_eq!(told.kind(), ErrorKind::StorageFull);
    drop(file);
    fs::remove_file(mount.join("big")).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn msync_says_that_there_was_no_room_for_mapped_pages() {
    if !fuse() {
        return;
    }
    for options in ["cache=direct", "cache=kernel"] {
        let rig = Rig::new();
        rig.store("s", "16M");
        let mount = rig.directory("m");
        rig.run(["mount", "s", "m", "-o", options]).exits(0);
        let open = |name| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.join(name)).unwrap()
        };
        // A hole: it takes no room before it is written.
        let file = open("mapped");
        file.set_len(24 << 20).unwrap();
        let refused = write_mapped(&file, (24 << 20) / PAGE, 9).unwrap_err();
        assert_eq!(refused, rustix::io::Errno::NOSPC, "{options}");
        drop(file);
        fs::remove_file(mount.join("mapped")).unwrap();
        rig.run(["sync", "m"]);
        let small = open("small");
        small.set_len(PAGE as u64).unwrap();
        write_mapped(&small, 1, 5).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert!(fs::read(mount.join("small")).unwrap() == [5; PAGE]);
        drop(small);
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
}

#[test]
fn a_corrupt_block_is_an_error_through_the_page_cache_as_well() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("cache=kernel");
    let mut content = vec![0; 40 * PAGE];
    content.chunks_mut(PAGE).enumerate().for_each(|(page, bytes)| bytes.fill(100 + page as u8));
    fs::write(mount.join("f"), &content).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let mut store = fs::read(rig.path("s")).unwrap();
    let bad = 17;
    let at = store.chunks(PAGE).position(|block| block == &content[bad * PAGE..][..PAGE]).expect("the block") * PAGE;
    store[at + 1000] ^= 4;
    fs::write(rig.path("s"), store).unwrap();
    rig.run(["mount", "s", "m", "-o", "cache=kernel"]).exits(0);
    let file = File::open(mount.join("f")).unwrap();
    let mut whole = Vec::new();
    assert_eq!((&file).read_to_end(&mut whole).unwrap_err().raw_os_error(), Some(libc::EIO));
    for page in 0..40 {
        let mut bytes = [0; PAGE];
        let read = file.read_exact_at(&mut bytes, (page * PAGE) as u64);
        match page == bad {
            true => assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO)),
            false => assert!(read.is_ok() && bytes == content[page * PAGE..][..PAGE], "page {page}"),
        }
    }
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn with_sync_every_change_survives_a_power_cut() {
    if !fuse() {
        return;
    }
    for options in ["sync,epoch=60000", "sync,epoch=60000,cache=kernel", "dirsync,epoch=60000"] {
        let rig = Rig::new();
        let mount = rig.mounted(options);
        fs::create_dir(mount.join("d")).unwrap();
        fs::write(mount.join("d/one"), "content").unwrap();
        fs::rename(mount.join("d/one"), mount.join("two")).unwrap();
        rig.kill_daemon("m");
        rig.run(["mount", "s", "m"]).exits(0);
        let two = fs::read(mount.join("two")).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert!(!options.starts_with("sync") || two == b"content", "{options}");
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 0, "{options}");
        rig.run(["unmount", "m"]).exits(0);
    }
}
