//! A read with a bad block in the middle gives what is before it, as read(2) does on other file systems, and the next one the error. Pages of
//! mappings and of the kernel's cache are good or an error, and no zeroes.

use crate::rig::{Rig, flip, fuse, places};
use crate::run::ran;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const PAGE: usize = 4096;
const PAGES: usize = 24;
const BAD: usize = 7;

fn contents() -> Vec<u8> {
    (0..PAGE * PAGES - 5).map(|at| (at * 13 % 251 + at / PAGE) as u8).collect()
}

fn read(path: &Path, offset: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0xaa; PAGE * PAGES];
    let length = File::open(path)?.read_at(&mut buffer, offset as u64)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn gives_what_is_before(path: &Path) {
    let expected = contents();
    let bad = BAD * PAGE..(BAD + 1) * PAGE;
    for offset in [0, 1, PAGE + 100, bad.start - 2 * PAGE + 100, bad.start - 1] {
        assert!(read(path, offset).unwrap() == expected[offset..bad.start], "from byte {offset}");
    }
    for offset in [bad.start, bad.end - 1] {
        assert_eq!(read(path, offset).unwrap_err().raw_os_error(), Some(libc::EIO), "from byte {offset}");
    }
    assert!(read(path, bad.end).unwrap() == expected[bad.end..]);
    assert!(read(path, expected.len()).unwrap().is_empty(), "the end");
    let cat = Command::new("cat").arg(path).output().unwrap();
    assert!(cat.stdout == expected[..bad.start] && cat.status.code() == Some(1), "{:?}", cat.status);
}

/// A program whose reads are verified gets as many bytes as one whose reads are not: by a request of one ioctl, and by longer ones.
fn verified_gives_as_much(rig: &Rig, place: &str) {
    let (path, expected) = (rig.path("m/f"), contents());
    let bad = BAD * PAGE..(BAD + 1) * PAGE;
    for offset in [0, 1, PAGE + 100, bad.start - 2 * PAGE + 100, bad.start - 1] {
        for length in [bad.end - offset, (BAD + 1) * PAGE, PAGE * PAGES] {
            let output = rig.path("output");
            let words = ["--stats", "--quiet", "--", "dd", "status=none", "count=1", "iflag=skip_bytes"];
            let mut command = rig.under(words);
            command.args([format!("bs={length}"), format!("skip={offset}"), format!("if={}", path.display())]);
            command.arg(format!("of={}", output.display()));
            let told = ran(command).exits(0).err;
            assert!(fs::read(&output).unwrap() == expected[offset..bad.start], "{length} from byte {offset}: {told}");
            assert!(told.contains("\"verified_reads\":1,"), "{told}");
        }
    }
    let mut command = rig.under(["--", "cat"]);
    command.arg(&path).env("LC_ALL", "C");
    let cat = command.output().unwrap();
    let told = String::from_utf8_lossy(&cat.stderr);
    assert!(cat.stdout == expected[..bad.start] && cat.status.code() == Some(1), "{:?}: {told}", cat.status);
    assert!(told.contains(&format!("m/f: bad bytes {place}: read at byte ")), "{told}");
    assert!(told.contains(&format!("blocks [{BAD}]")) && told.contains("Input/output error"), "{told}");
}

/// Each page as a mapping gives it; `None` where touching it would be SIGBUS.
fn mapped(path: &Path) -> Vec<Option<Vec<u8>>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let file = File::open(path).unwrap();
    let copy = tempfile::tempfile().unwrap();
    let length = PAGE * PAGES;
    // SAFETY: a new mapping at an address of the kernel's choice, of which nothing is read here.
    let base = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.unwrap();
    let pages = (0..PAGES).map(|number| {
        // SAFETY: within the mapping; the kernel reads it, which gives EFAULT for a page that is not to be had.
        let page = unsafe {
            libc::pwrite(std::os::fd::AsRawFd::as_raw_fd(&copy), base.cast::<u8>().add(number * PAGE).cast(), PAGE, 0)
        };
        let mut bytes = vec![0; PAGE];
        (page == PAGE as isize).then(|| copy.read_exact_at(&mut bytes, 0).unwrap())?;
        Some(bytes)
    });
    let pages = pages.collect();
    // SAFETY: nothing refers to it any more.
    unsafe { munmap(base, length) }.unwrap();
    pages
}

fn maps_no_zeroes(path: &Path) {
    let mut expected = contents();
    expected.resize(PAGE * PAGES, 0);
    for (number, page) in mapped(path).into_iter().enumerate() {
        let is_good = page.as_deref().map(|page| page == &expected[number * PAGE..][..PAGE]);
        assert_eq!(is_good, (number != BAD).then_some(true), "page {number} of a mapping");
    }
    assert_eq!(fs::metadata(path).unwrap().len(), contents().len() as u64);
}

fn flip_on_disk(rig: &Rig) {
    let store = rig.path("s");
    let block = contents()[BAD * PAGE..][..PAGE].to_vec();
    let stored: Vec<_> = places(&store, &block).into_iter().filter(|at| at.is_multiple_of(PAGE as u64)).collect();
    assert!(!stored.is_empty(), "stored as it is");
    stored.into_iter().for_each(|at| flip(&store, at + 100));
}

#[test]
fn a_read_gives_what_is_before_a_bad_block() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("cache=16M,epoch=60000").join("f");
    fs::write(&path, contents()).unwrap();
    rig.flip("/f", BAD, "dirty");
    gives_what_is_before(&path);
    verified_gives_as_much(&rig, "in memory");
    maps_no_zeroes(&path);
    // Written again, it is whole.
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&contents()[BAD * PAGE..][..PAGE], (BAD * PAGE) as u64)
        .unwrap();
    assert!(fs::read(&path).unwrap() == contents());

    rig.run(["unmount", "m"]).exits(0);
    flip_on_disk(&rig);
    rig.run(["mount", "s", "m"]).exits(0);
    gives_what_is_before(&path);
    verified_gives_as_much(&rig, "on the device");
    maps_no_zeroes(&path);
    // Mapped first.
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    maps_no_zeroes(&path);
    gives_what_is_before(&path);
}

#[test]
fn the_kernels_cache_gets_no_zeroes_for_a_bad_block() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("cache=kernel,cache=16M,epoch=60000").join("f");
    fs::write(&path, contents()).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    flip_on_disk(&rig);
    rig.run(["mount", "s", "m", "-o", "cache=kernel"]).exits(0);
    let bad = BAD * PAGE..(BAD + 1) * PAGE;
    // How much there is of it is the kernel's matter.
    let before = read(&path, 0).unwrap_or_default();
    assert!(before == contents()[..before.len()] && before.len() <= bad.start, "{} bytes", before.len());
    assert_eq!(read(&path, bad.start).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(read(&path, bad.end).unwrap() == contents()[bad.end..]);
    maps_no_zeroes(&path);
}
