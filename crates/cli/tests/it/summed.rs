//! Reading and writing with a checksum per block, through a mount.

use crate::rig::{Rig, flip, fuse, places, root};
use holdfast_client::{Algorithm, Checksum, Kind, Operation, descriptor, pieces};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

pub(crate) type File = holdfast_client::File<fs::File>;

/// Offsets and lengths on and off block boundaries, short of one ioctl and beyond it, to more than a request.
const TRANSFERS: [(u64, usize); 9] = [
    (0, 4096),
    (0, 1),
    (4095, 2),
    (100, 12_288),
    (8192, 16_384),
    (5, 70_000),
    (4096, 1 << 20),
    (3, (1 << 20) + 5000),
    (2_000_000, 0),
];

pub(crate) fn opened(path: &Path) -> File {
    let file = fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    File::new(file).unwrap()
}

pub(crate) fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index + seed) * 31 % 251) as u8).collect()
}

pub(crate) fn sums(algorithm: Algorithm, offset: u64, bytes: &[u8]) -> Vec<Checksum> {
    pieces(offset, bytes.len()).map(|piece| algorithm.sum(&bytes[piece.range])).collect()
}

/// Writes and reads of all kinds; gives whether the mount could fetch bytes from this process.
pub(crate) fn exercise(path: &Path) -> bool {
    let mut file = opened(path);
    for algorithm in Algorithm::ALL {
        let mut expected = vec![0; 2 << 20];
        file.get_ref().set_len(0).unwrap();
        file = file.with_algorithm(algorithm).unwrap();
        for (seed, (offset, length)) in TRANSFERS.into_iter().enumerate() {
            let bytes = bytes(seed, length);
            assert_eq!(file.write_at(&bytes, offset).unwrap(), length, "{algorithm} {offset} {length}");
            expected[offset as usize..][..length].copy_from_slice(&bytes);
        }
        let size = TRANSFERS.map(|(offset, length)| if length == 0 { 0 } else { offset as usize + length });
        expected.truncate(size.into_iter().max().unwrap());
        assert_eq!(fs::metadata(path).unwrap().len(), expected.len() as u64, "the kernel knows the size");
        assert!(fs::read(path).unwrap() == expected, "{algorithm}: an ordinary read sees it");
        for (offset, length) in TRANSFERS.into_iter().chain([(0, 3 << 20), (expected.len() as u64, 10)]) {
            let mut buffer = vec![0xee; length];
            let mut got = Vec::new();
            let count = file.read_at_with_sums(&mut buffer, offset, &mut got).unwrap();
            let there = &expected[(offset as usize).min(expected.len())..];
            let there = &there[..there.len().min(length)];
            assert_eq!(count, there.len());
            assert!(&buffer[..count] == there, "{algorithm} {offset} {length}");
            assert_eq!(got, sums(algorithm, offset, there), "{algorithm} {offset} {length}");
        }
    }
    format!("{file:?}").contains("unreachable: false")
}

#[test]
fn bytes_come_and_go_with_their_checksums() {
    if !fuse() {
        return;
    }
    for mode in ["none", "disk", "end-to-end=fletcher256", "static", "dynamic", "uniform"] {
        let rig = Rig::new();
        rig.run(["create", "s", "--size", "64M", "--protection", mode]).exits(0);
        let mount = rig.directory("m");
        rig.run(["mount", "s", "m"]).exits(0);
        let path = mount.join("f");
        exercise(&path);
        let told = opened(&path).features().mode.clone();
        assert!(told.starts_with(mode), "{told}");
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
}

/// Half of the transfers are short ones around a block boundary, the others of any length up to several requests.
pub(crate) fn any_place(random: &mut Pcg64Mcg, file_bytes: usize) -> (usize, usize) {
    let near = random.random_range(0..file_bytes / 4096) * 4096;
    let (offset, length_max) = match random.random() {
        true => ((near + random.random_range(0..8)).saturating_sub(4), 9000),
        false => (random.random_range(0..file_bytes), 2 << 20),
    };
    (offset, random.random_range(0..=length_max.min(file_bytes - offset)))
}

/// Writes with checksums, others by `$write`, which knows of none, and cuts by `$set_len`, at any place, against a copy in memory; what is read with
/// checksums is the copy, and under its sums. Of a `File` of `holdfast_client` or of `holdfast_embedded`, which have the same calls; gives it back.
macro_rules! any_transfers {
    ($test:literal, $file:expr, $write:expr, $set_len:expr) => {{
        const FILE_BYTES: usize = 4 << 20;
        let seed = std::env::var("HOLDFAST_SEED").map_or(20_261_128, |seed| seed.parse().expect("a number"));
        println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast --test it {}", $test);
        let random = &mut <rand_pcg::Pcg64Mcg as rand::SeedableRng>::seed_from_u64(seed);
        let mut file = $file;
        let mut copy: Vec<u8> = Vec::new();
        for step in 0..400 {
            let algorithms = holdfast_client::Algorithm::ALL;
            let algorithm = algorithms[rand::Rng::random_range(random, 0..algorithms.len())];
            file = file.with_algorithm(algorithm).unwrap();
            let (offset, length) = crate::summed::any_place(random, FILE_BYTES);
            let place = format!("seed {seed}, step {step}: {length} bytes at {offset} of {}", copy.len());
            match rand::Rng::random_range(random, 0..8) {
                0 => {
                    $set_len(&file, offset as u64);
                    copy.resize(offset, 0);
                }
                kind @ 1..=3 => {
                    let bytes = crate::summed::bytes(step, length);
                    let sums = crate::summed::sums(algorithm, offset as u64, &bytes);
                    match kind {
                        1 => $write(&file, &bytes[..], offset as u64),
                        _ => {
                            let written = file.write_at_with_sums(&bytes, offset as u64, &sums);
                            assert_eq!(written.unwrap_or_else(|error| panic!("{place}: {error}")), length, "{place}");
                        }
                    }
                    if length > 0 {
                        copy.resize(copy.len().max(offset + length), 0);
                        copy[offset..offset + length].copy_from_slice(&bytes);
                    }
                }
                _ => {
                    let (mut buffer, mut got) = (vec![0xee; length], Vec::new());
                    let count = file.read_at_with_sums(&mut buffer, offset as u64, &mut got);
                    let count = count.unwrap_or_else(|error| panic!("{place}: {error}"));
                    let there = &copy[offset.min(copy.len())..(offset + length).min(copy.len())];
                    assert!(&buffer[..count] == there, "{place}");
                    assert_eq!(got, crate::summed::sums(algorithm, offset as u64, there), "{place}");
                }
            }
        }
        file
    }};
}
pub(crate) use any_transfers;

/// Bytes of long writes are fetched, or sent with each request, as they are where the daemon has one thread.
#[test]
fn any_offset_and_any_length() {
    if !fuse() {
        return;
    }
    for options in ["", "threads=1"] {
        let rig = Rig::new();
        let file = any_transfers!(
            "summed::any_offset",
            opened(&rig.mounted(options).join("f")),
            |file: &File, bytes: &[u8], offset| file.get_ref().write_all_at(bytes, offset).unwrap(),
            |file: &File, length| file.get_ref().set_len(length).unwrap()
        );
        let is_sent = format!("{file:?}").contains("unreachable: true");
        assert!(is_sent || options.is_empty(), "long writes take the way that there is: {file:?}");
        drop(file);
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
}

#[test]
fn what_does_not_have_its_checksum_is_not_written() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let file = opened(&mount.join("f"));
    file.write_at(&[1; 100_000], 0).unwrap();
    // One request, in one ioctl or fetched.
    for (offset, length, flip, block) in [(50u64, 9000usize, 5000usize, 1u64), (4096, 60_000, 59_999, 15)] {
        let mut bytes = bytes(1, length);
        let sums = sums(file.algorithm(), offset, &bytes);
        bytes[flip] ^= 4;
        let error = file.write_at_with_sums(&bytes, offset, &sums).unwrap_err();
        assert_eq!((error.kind, error.operation), (Kind::Memory, Operation::Write), "{error}");
        assert_eq!((&error.blocks[..], error.errno), (&[block][..], 5));
        let mut there = vec![0; length];
        file.read_at(&mut there, offset).unwrap();
        assert!(there.iter().all(|byte| *byte == 1) && error.done == 0, "nothing was written: {error}");
    }
    drop(file);
    // Several requests, of which the last would be refused, whether the mount fetches bytes or is sent them.
    rig.run(["unmount", "m"]).exits(0);
    for options in ["threads=2", "threads=1"] {
        rig.run(["mount", "s", "m", "-o", options]).exits(0);
        let path = mount.join(options);
        let (file, mut bytes) = (opened(&path), bytes(1, 3 << 20));
        let sums = sums(file.algorithm(), 0, &bytes);
        *bytes.last_mut().unwrap() ^= 4;
        let error = file.write_at_with_sums(&bytes, 0, &sums).unwrap_err();
        assert_eq!((error.kind, error.in_transfer, &error.blocks[..], error.done), (Kind::Memory, true, &[767][..], 0));
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{options}: nothing was written");
        drop(file);
        rig.run(["unmount", "m"]).exits(0);
    }
    rig.run(["mount", "s", "m"]).exits(0);
    let file = opened(&mount.join("f"));
    let error = file.write_at_with_sums(b"ab", 4095, &sums(file.algorithm(), 0, b"ab")).unwrap_err();
    assert_eq!(error.errno, 22, "two blocks, one checksum: {error}");
}

#[test]
fn a_descriptor_permits_what_it_was_opened_for() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let path = mount.join("f");
    opened(&path).write_at(b"content", 0).unwrap();
    let mut buffer = [0; 7];
    let reader = File::new(fs::File::open(&path).unwrap()).unwrap();
    assert!(reader.features().access.read && !reader.features().access.write);
    assert_eq!(reader.read_at(&mut buffer, 0).unwrap(), 7);
    assert_eq!(reader.write_at(b"x", 0).unwrap_err().errno, 9, "EBADF");
    let writer = File::new(fs::File::options().write(true).open(&path).unwrap()).unwrap();
    assert_eq!(writer.read_at(&mut buffer, 0).unwrap_err().errno, 9, "EBADF");
    writer.write_at(b"C", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"Content");
    let elsewhere = File::new(fs::File::open(rig.path("s")).unwrap()).unwrap_err();
    assert_eq!(elsewhere.kind, Kind::Unsupported, "{elsewhere}");
    assert!(elsewhere.to_string().contains("in no Holdfast mount"), "{elsewhere}");
    // Neither what has no positions is in one: transfers say the same as the question what is offered.
    let (_input, pipe) = io::pipe().unwrap();
    let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    for fd in [pipe.as_fd(), null.as_fd()] {
        let algorithm = Algorithm::Crc64Nvme;
        for length in [5, 40_000] {
            let mut there = vec![0; length];
            let read = descriptor::read_at(fd, &mut [IoSliceMut::new(&mut there)], 0, algorithm, &mut vec![]);
            let written = descriptor::write_at(fd, &[IoSlice::new(&vec![1; length])], 0, algorithm, None);
            let appended = descriptor::append(fd, &[IoSlice::new(b"bytes")], algorithm).map(|_| 0);
            for error in [read, written, appended].map(Result::unwrap_err) {
                assert_eq!((error.kind, error.errno), (Kind::Unsupported, libc::ENOTTY), "{length}: {error}");
            }
        }
    }
    assert_eq!(writer.write_at(b"x", u64::MAX).unwrap_err().errno, 22);
    assert_eq!(writer.write_at(b"x", 1 << 60).unwrap_err().errno, 27, "EFBIG");
}

#[test]
fn other_users_and_mounts_that_cannot_look_into_processes() {
    if !fuse() || !root("other users need root") {
        return;
    }
    let rig = Rig::for_others();
    rig.store("s", "64M");
    let mount = rig.directory("m");
    let holdfast = env!("CARGO_BIN_EXE_holdfast");
    let drop = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", holdfast];
    let arguments = ["mount", "s", "m", "-o", "allow_other"];
    for confined in [false, true] {
        if confined {
            let mut command = Command::new("setpriv");
            command.args(drop).args(arguments).current_dir(rig.path("")).env("HOME", rig.path("home"));
            assert!(command.status().unwrap().success(), "setpriv is part of util-linux");
        } else {
            rig.run(arguments).exits(0);
        }
        fs::set_permissions(&mount, fs::Permissions::from_mode(0o777)).unwrap();
        let path = mount.join(format!("of a user, {confined}"));
        let reached = std::thread::scope(|scope| {
            let user = scope.spawn(|| {
                // Of this thread alone: the system call, not the library's function.
                // SAFETY: no memory is passed.
                let done = unsafe { libc::syscall(libc::SYS_setfsuid, 65_534) };
                assert_eq!(done, 0, "it was root");
                exercise(&path)
            });
            user.join().unwrap()
        });
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(&path).unwrap()), 65_534);
        assert_eq!(reached, !confined, "long writes take the way that there is");
        rig.run(["unmount", "m"]).exits(0);
    }
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn several_buffers_are_one_transfer() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let file = opened(&rig.mounted("").join("f"));
    for (seed, lengths) in [vec![1, 4095, 0, 5], vec![10_000, 1, 60_000, 7], vec![3; 3000]].into_iter().enumerate() {
        let all = bytes(seed, lengths.iter().sum());
        let mut rest = &all[..];
        let buffers: Vec<_> = lengths.iter().map(|&length| IoSlice::new(rest.split_off(..length).unwrap())).collect();
        assert_eq!(file.write_vectored_at(&buffers, 77).unwrap(), all.len());
        let mut back: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
        let mut buffers: Vec<_> = back.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut got = Vec::new();
        assert_eq!(file.read_vectored_at_with_sums(&mut buffers, 77, &mut got).unwrap(), all.len());
        assert_eq!(got, sums(file.algorithm(), 77, &all));
        assert!(back.concat() == all);
    }
}

/// Threads that share a descriptor, and write over each other's blocks, see what was written and no false alarm.
#[test]
fn threads_share_a_descriptor() {
    if !fuse() {
        return;
    }
    const LENGTH: usize = 200_000;
    let rig = Rig::new();
    let file = opened(&rig.mounted("").join("f"));
    file.write_at(&[0; LENGTH], 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                let mut buffer = vec![0; LENGTH];
                for round in 0..40u8 {
                    if thread < 2 {
                        buffer.fill(thread * 40 + round);
                        let length = if round % 2 == 0 { LENGTH } else { 9000 };
                        file.write_at(&buffer[..length], u64::from(round) * 100 % 8192).unwrap();
                    } else {
                        file.read_at(&mut buffer, 5).unwrap();
                    }
                }
            });
        }
    });
}

/// What programs do by ordinary calls and by mappings, before and after.
#[test]
fn it_goes_together_with_everything_else() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let path = mount.join("f");
    let file = opened(&path);
    file.write_at(b"first", 0).unwrap();
    // The kernel places it.
    let mut appending = fs::File::options().append(true).open(&path).unwrap();
    appending.write_all(b" second").unwrap();
    file.write_at(b" third", 12).unwrap();
    appending.write_all(b" fourth").unwrap();
    let mut ordinary = fs::File::open(&path).unwrap();
    assert_eq!(ordinary.seek(SeekFrom::End(0)).unwrap(), 25);
    ordinary.rewind().unwrap();
    let mut text = String::new();
    ordinary.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first second third fourth");

    let map = || {
        // SAFETY: a new mapping of a file that is longer than it, at an address of the kernel's choice.
        let address = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 25, both, libc::MAP_SHARED, fd(file.get_ref()), 0)
        };
        assert_ne!(address, libc::MAP_FAILED);
        address.cast::<u8>()
    };
    // SAFETY: the mapping was made with this length, and nobody uses it any more.
    let unmap = |address: *mut u8| unsafe { assert_eq!(libc::munmap(address.cast(), 25), 0) };
    let address = map();
    // SAFETY: within the mapping.
    unsafe { address.write_volatile(b'F') };
    let mut buffer = [0; 5];
    file.read_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"First", "stored through a mapping, read at once");
    unmap(address);
    file.write_at(b"f", 0).unwrap();
    let address = map();
    // SAFETY: within the mapping.
    assert_eq!(unsafe { address.read_volatile() }, b'f', "the kernel's page is not kept");
    unmap(address);
    file.get_ref().write_all_at(b"F", 0).unwrap();
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 5);
    assert_eq!(&buffer, b"First");
    // Times change, and setuid goes.
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    file.write_at(b"x", 0).unwrap();
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > before);
}

fn fd(file: &fs::File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

#[test]
fn blocks_that_are_bad_on_the_disk_are_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let file = opened(&mount.join("f"));
    let content = bytes(9, 40_000);
    file.write_at(&content, 0).unwrap();
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    let store = rig.path("s");
    let block = |number: usize| &content[number * 4096..content.len().min((number + 1) * 4096)];
    let [at, ..] = [2, 3, 9].map(|number| {
        let at = places(&store, block(number)).into_iter().find(|at| at.is_multiple_of(4096));
        let at = at.expect("stored as it is");
        flip(&store, at + 100);
        at
    });
    rig.run(["mount", "s", "m"]).exits(0);
    let file = opened(&mount.join("f"));
    // By one ioctl, and by a read and one.
    for (offset, length, bad) in
        [(8192 + 50, 100, &[2][..]), (0, 12_288, &[2]), (0, 40_000, &[2, 3, 9]), (9000, 1 << 20, &[2, 3, 9])]
    {
        let mut buffer = vec![0; length];
        let error = file.read_at(&mut buffer, offset).unwrap_err();
        assert_eq!(error.operation, Operation::Read);
        assert_eq!(error.errno, 5, "{error}");
        assert_eq!(error.done as u64, 8192u64.saturating_sub(offset), "{error}: up to the first of them");
        assert!(buffer[..error.done] == content[offset as usize..][..error.done]);
        assert_eq!((error.kind, &error.blocks[..]), (Kind::Device, bad), "{error}");
        assert_eq!(error.device_address, Some(at / 4096), "{error}");
    }
    assert_eq!(file.read_at(&mut [0; 8192], 0).unwrap(), 8192, "its neighbours are well");
    for number in [2, 3, 9] {
        file.write_at(block(number), number as u64 * 4096).unwrap();
    }
    let mut back = vec![0; 40_000];
    file.read_at(&mut back, 0).unwrap();
    assert!(back == content, "written again");
}

/// A store's file that is cut off is a device that fails: reads behind the end, and every write.
#[test]
fn a_device_that_fails_is_told_with_the_place() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let content = bytes(13, 10 * 4096);
    fs::write(mount.join("f"), &content).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let store = rig.path("s");
    let block = |number: usize| &content[number * 4096..][..4096];
    let place = |number| places(&store, block(number)).into_iter().find(|at| at.is_multiple_of(4096)).unwrap();
    let at: Vec<u64> = (0..9).map(place).collect();
    // About the half of them.
    let mut in_order = at.clone();
    in_order.sort_unstable();
    let end = in_order[4];
    let bad: Vec<u64> = (0..9).filter(|&number| at[number as usize] >= end).collect();
    let (first, last) = (bad[0], bad[bad.len() - 1]);
    rig.run(["mount", "s", "m", "-o", "epoch=60000"]).exits(0);
    let file = opened(&mount.join("f"));
    // What leads to the blocks is in memory then, and none of those that are to fail.
    file.read_at(&mut [0; 4096], 9 * 4096).unwrap();
    fs::File::options().write(true).open(&store).unwrap().set_len(end).unwrap();

    // By one ioctl, and by a read and some.
    for (offset, length, bad) in [(first * 4096 + 50, 100, &bad[..1]), (0, 9 * 4096, &bad)] {
        let mut buffer = vec![0; length];
        let error = file.read_at(&mut buffer, offset).unwrap_err();
        assert_eq!((error.kind, error.operation, error.errno), (Kind::Device, Operation::Read, 5), "{error}");
        assert_eq!(error.blocks, bad, "{error}");
        let address = at[first as usize] / 4096;
        assert_eq!(error.device_address, Some(address), "{error}");
        assert_eq!(error.done as u64, (first * 4096).saturating_sub(offset), "{error}: up to the first of them");
        assert!(buffer[..error.done] == content[offset as usize..][..error.done]);
        assert!(error.to_string().contains(&format!("read failed at block {address} ")), "{error}");
    }
    let offset = last * 4096 + 7;
    let error = file.write_at(b"part", offset).unwrap_err();
    assert_eq!((error.kind, error.operation, error.errno), (Kind::Device, Operation::Write, 5), "{error}");
    assert_eq!((&error.blocks[..], error.device_address), (&[last][..], Some(at[last as usize] / 4096)), "{error}");
    assert_eq!((error.offset, error.done, error.in_transfer), (offset, 0, false), "{error}");

    // Of a synchronous write, the block that could not be written.
    let synchronous =
        fs::File::options().read(true).write(true).custom_flags(libc::O_DSYNC).open(mount.join("f")).unwrap();
    let error = File::new(synchronous).unwrap().write_at(block(1), 0).unwrap_err();
    assert_eq!((error.kind, error.operation, error.errno), (Kind::Device, Operation::Write, 5), "{error}");
    assert_eq!((error.offset, error.done, error.blocks.len()), (0, 4096, 0), "{error}");
    let address = error.device_address.expect("where the device was written");
    assert!(error.to_string().contains(&format!("write failed at block {address} ")), "{error}");
}

#[test]
fn a_mount_with_pages_in_the_kernel_does_not_offer_it() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("cache=kernel");
    let error = File::new(fs::File::create(mount.join("f")).unwrap()).unwrap_err();
    assert_eq!((error.kind, error.errno), (Kind::Unsupported, 95), "{error}");
}

#[test]
fn a_flipped_bit_in_the_mounts_memory_is_mended_or_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000,cache=16M");
    let file = opened(&mount.join("f"));
    // Before it is on the disk.
    let old = bytes(50, 40_000);
    file.write_at(&old, 0).unwrap();
    file.get_ref().sync_all().unwrap();
    rig.run(["sync", "m"]).exits(0);
    let new = bytes(90, 40_000);
    file.write_at(&new, 0).unwrap();
    let block = |contents: &[u8], number: usize| contents[number * 4096..][..4096].to_vec();
    rig.flip("/f", 3, "dirty");
    assert!(file.bad_blocks().unwrap().is_empty(), "nobody has looked");
    // By a read and one ioctl, and by one ioctl.
    for (offset, length) in [(0, 40_000), (3 * 4096, 4096), (3 * 4096 + 10, 20)] {
        let error = file.read_at(&mut vec![0; length], offset).unwrap_err();
        assert_eq!((error.kind, error.operation, error.errno), (Kind::Memory, Operation::Read, 5), "{error}");
        assert_eq!(error.blocks, [3], "{error}");
    }
    assert_eq!(file.bad_blocks().unwrap(), [3]);
    assert_eq!(file.get_ref().sync_all().unwrap_err().raw_os_error(), Some(5), "fsync tells");
    assert_eq!(file.bad_blocks().unwrap(), [3], "until it is written again");
    for (first, expected) in [(0, &[3][..]), (3, &[3]), (4, &[]), (1 << 51, &[]), (1 << 52, &[]), (u64::MAX, &[])] {
        let found = descriptor::bad_blocks(file.get_ref().as_fd(), first, 10).unwrap();
        assert_eq!(found, expected, "from {first} on");
    }
    file.write_at(&block(&new, 3), 3 * 4096).unwrap();
    assert!(file.bad_blocks().unwrap().is_empty());
    file.get_ref().sync_all().unwrap();
    rig.run(["sync", "m"]).exits(0);
    let mut buffer = vec![0; 40_000];
    file.read_at(&mut buffer, 0).unwrap();
    assert!(buffer == new);
    // Once it is: the reader gets good data, whichever way.
    for (number, offset, length) in [(5, 5 * 4096, 4096), (6, 6 * 4096 + 1, 50), (7, 0, 40_000)] {
        rig.flip("/f", number, "clean");
        let mut buffer = vec![0; length];
        assert_eq!(file.read_at(&mut buffer, offset as u64).unwrap(), length);
        assert!(buffer == new[offset..][..length], "block {number}");
    }
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_synchronous_write_names_all_blocks_that_had_gone_bad_before() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("cache=16M,epoch=60000").join("f");
    let file = opened(&path);
    file.write_at(&bytes(1, 9 * 4096), 0).unwrap();
    file.get_ref().sync_all().unwrap();
    file.write_at(&bytes(2, 9 * 4096), 0).unwrap();
    [1, 3, 8].into_iter().for_each(|page| rig.flip("/f", page, "dirty"));
    let synchronous = fs::File::options().read(true).write(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
    let synchronous = File::new(synchronous).unwrap();
    // Its own block lies between them, and is good.
    let error = synchronous.write_at(&bytes(3, 4096), 5 * 4096).unwrap_err();
    assert_eq!((error.kind, error.operation, error.in_transfer), (Kind::Memory, Operation::Write, false), "{error}");
    assert_eq!(error.blocks, [1, 3, 8], "{error}");
    assert_eq!((error.offset, error.done), (5 * 4096, 4096), "its own bytes are in the file: {error}");
    for block in error.blocks {
        let whole = bytes(2, 9 * 4096);
        synchronous.write_at(&whole[block as usize * 4096..][..4096], block * 4096).unwrap();
    }
    assert!(file.bad_blocks().unwrap().is_empty());
    let mut expected = bytes(2, 9 * 4096);
    expected[5 * 4096..6 * 4096].copy_from_slice(&bytes(3, 4096));
    assert!(fs::read(&path).unwrap() == expected);
    drop((file, synchronous));
    rig.run(["unmount", "m"]).exits(0);
}

/// What such a write has taken before it fails is told, as a program that repeats an append would have it twice.
#[test]
fn a_synchronous_write_that_fails_tells_what_is_in_the_file() {
    const SIZE: usize = 9 * 4096;
    if !fuse() {
        return;
    }
    for options in ["", ",threads=1"] {
        let rig = Rig::new();
        let path = rig.lab(&format!("cache=16M,epoch=60000{options}")).join("f");
        let ordinary = opened(&path);
        let synchronous = || {
            let file = fs::File::options().read(true).write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
            File::new(file).unwrap()
        };
        let flipped = |file: &File| {
            file.write_at(&bytes(2, SIZE), 0).unwrap();
            rig.flip("/f", 3, "dirty");
        };
        // As one request is, and longer than one.
        for length in [5, 9000, 40_000, 3 << 20] {
            ordinary.get_ref().set_len(SIZE as u64).unwrap();
            let file = synchronous();
            flipped(&ordinary);
            let error = file.append(&bytes(5, length)).unwrap_err();
            assert_eq!((error.kind, error.in_transfer, &error.blocks[..]), (Kind::Memory, false, &[3][..]), "{error}");
            assert!(error.offset == SIZE as u64 && error.done > 0 && error.done <= length, "{error}: {}", error.done);
            assert_eq!(fs::metadata(&path).unwrap().len(), (SIZE + error.done) as u64, "the kernel knows the size");
            let mut there = vec![0; error.done];
            file.read_at(&mut there, error.offset).unwrap();
            assert!(there == bytes(5, length)[..error.done]);
            // Who goes on behind them has them once.
            let (at, _) = file.append(b"more").unwrap();
            assert_eq!(at, (SIZE + error.done) as u64);

            let (file, offset) = (synchronous(), 5 * 4096 + 7);
            flipped(&ordinary);
            let error = file.write_at(&bytes(6, length), offset).unwrap_err();
            assert_eq!((error.kind, error.in_transfer, &error.blocks[..]), (Kind::Memory, false, &[3][..]), "{error}");
            assert!(error.done > 0 && error.done <= length, "{}", error.done);
            let mut there = vec![0; error.done];
            file.read_at(&mut there, offset).unwrap();
            assert!(there == bytes(6, length)[..error.done]);
            assert_eq!(
                file.write_at(&bytes(6, length)[error.done..], offset + error.done as u64).unwrap(),
                length - error.done
            );
        }
        drop(ordinary);
        rig.run(["unmount", "m"]).exits(1);
    }
}
