use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::AlignedBuf;
use crate::flashlog::Symptom;

/// A directory on a real disk: the target directory, because /tmp may be in memory.
fn scratch() -> tempfile::TempDir {
    let binary = std::env::current_exe().unwrap();
    tempfile::tempdir_in(binary.parent().unwrap()).unwrap()
}

pub(super) fn store(blocks: u64) -> (tempfile::TempDir, PathBuf, FileDevice) {
    let directory = scratch();
    let path = directory.path().join("store");
    let device = FileDevice::create_file(&path, blocks * BLOCK_SIZE as u64).unwrap();
    (directory, path, device)
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| (((at + salt) * 2_654_435_761) >> 13) as u8).collect()
}

fn get(device: &dyn Device, first: u64, blocks: usize) -> Vec<u8> {
    let mut out = vec![0xee; blocks * BLOCK_SIZE];
    device.read(first, &mut [IoSliceMut::new(&mut out)]).unwrap();
    out
}

/// A device whose descriptor is anything, to see real system calls fail.
fn device_over(fd: OwnedFd) -> FileDevice {
    FileDevice {
        name: "broken".into(),
        fd,
        kind: Kind::RegularFile,
        access: Access::ReadWrite,
        blocks: 100.into(),
        direct: None,
        reserved: false.into(),
        zeros: Default::default(),
        is_early: AtomicBool::new(false),
        latch: Latch::new(),
        rings: Rings::default(),
        _backing: None,
        _locked: None,
    }
}

#[test]
fn a_new_file_is_allocated_reads_as_zeros_and_keeps_what_is_written() {
    let (_directory, path, device) = store(64);
    assert!(device.is_reserved() && !device.is_disk());
    assert_eq!((device.blocks(), device.name()), (64, path.to_str().unwrap()));
    assert_eq!(get(&device, 0, 64), vec![0; 64 * BLOCK_SIZE]);
    let data = pattern(3 * BLOCK_SIZE, 1);
    device.write(10, &[IoSlice::new(&data)]).unwrap();
    device.flush().unwrap();
    drop(device);
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert_eq!(get(&device, 10, 3), data);
    assert_eq!(fs::read(&path).unwrap()[10 * BLOCK_SIZE..13 * BLOCK_SIZE], data);
}

#[test]
fn memory_of_any_alignment_and_length_works_with_direct_io() {
    let (_directory, path, device) = store(1024);
    drop(device);
    for open in [FileDevice::open, FileDevice::open_buffered] {
        let device = open(&path, Access::ReadWrite).unwrap();
        for (round, shift) in [0, 1, 8, 511, 512, 4095].into_iter().enumerate() {
            // 600 blocks are more than two bounce buffers; the slices' ends fall anywhere.
            let length = 600 * BLOCK_SIZE;
            let mut from = AlignedBuf::zeroed(length + 4096);
            let data = &mut from[shift..shift + length];
            data.copy_from_slice(&pattern(length, round));
            let cuts = [0, 17, 4096, 5000, 5000, 1_048_576, length];
            let slices: Vec<_> = cuts.windows(2).map(|cut| IoSlice::new(&data[cut[0]..cut[1]])).collect();
            device.write(100 + round as u64, &slices).unwrap();
            let mut to = AlignedBuf::zeroed(length + 4096);
            let mut rest = &mut to[shift..shift + length];
            let mut slices = Vec::new();
            for size in [1_000_001, 3, 0, length - 1_000_004] {
                let (now, later) = rest.split_at_mut(size);
                slices.push(IoSliceMut::new(now));
                rest = later;
            }
            device.read(100 + round as u64, &mut slices).unwrap();
            assert!(to[shift..shift + length] == *data, "shift {shift}");
        }
    }
}

#[test]
fn more_slices_than_one_call_takes_are_all_transferred() {
    let (_directory, _path, device) = store(2500);
    let data = AlignedBuf::copy_of(&pattern(2500 * BLOCK_SIZE, 5));
    let slices: Vec<_> = data.chunks(BLOCK_SIZE).map(IoSlice::new).collect();
    device.write(0, &slices).unwrap();
    let mut back = AlignedBuf::zeroed(data.len());
    let mut slices: Vec<_> = back.chunks_mut(BLOCK_SIZE).map(IoSliceMut::new).collect();
    device.read(0, &mut slices).unwrap();
    assert!(*back == *data);
}

#[test]
fn a_second_open_is_refused_in_this_process() {
    let (_directory, path, device) = store(8);
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = FileDevice::open(&path, access).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert_eq!(error.to_string(), format!("{}: in use by another process or mount", path.display()));
    }
    FileDevice::open(&path, Access::ReadOnlyUnlocked).unwrap();
    drop(device);
    let check = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(FileDevice::open(&path, Access::ReadWrite), Err(Error::InUse { .. })));
    drop(check);
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

/// Run by the next test in a process of its own; exit status 42 says "in use".
#[test]
#[ignore = "the child process of a_second_open_is_refused_in_another_process"]
fn child_opens() {
    let path = std::env::var_os("HOLDFAST_TEST_STORE").expect("run by its parent test only");
    let opened = FileDevice::open(Path::new(&path), Access::ReadWrite);
    std::process::exit(match opened {
        Ok(_) => 0,
        Err(Error::InUse { .. }) => 42,
        Err(_) => 1,
    });
}

#[test]
fn a_second_open_is_refused_in_another_process() {
    let (_directory, path, device) = store(8);
    let child = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "file::tests::child_opens"])
            .env("HOLDFAST_TEST_STORE", &path)
            .output()
            .unwrap()
            .status
            .code()
    };
    assert_eq!(child(), Some(42));
    drop(device);
    assert_eq!(child(), Some(0));
}

#[test]
fn a_failed_write_latches_writes_flushes_and_discards_but_not_reads() {
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let device = device_over(full.into());
    device.flush().unwrap_err();
    let device = device_over(File::options().read(true).write(true).open("/dev/full").unwrap().into());
    let data = vec![1; 2 * BLOCK_SIZE];
    let error = device.write(7, &[IoSlice::new(&data)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "broken: write failed at block 7 (8192 bytes): No space left on device (os error 28)"
    );
    assert!(device.latched().is_some());
    let later = [
        device.write(9, &[IoSlice::new(&data)]).unwrap_err(),
        device.flush().unwrap_err(),
        device.discard(1, 1).unwrap_err(),
    ];
    for error in later {
        assert!(matches!(error, Error::Latched { .. }), "{error}");
        assert_eq!(error.root().first(), Some(7));
    }
    assert_eq!(
        device.flush().unwrap_err().to_string(),
        "broken: flush refused: latched by an earlier error: broken: write failed at block 7 (8192 bytes): \
         No space left on device (os error 28)"
    );
    assert_eq!(get(&device, 7, 1), vec![0; BLOCK_SIZE]);
}

#[test]
fn a_failed_flush_latches_even_if_the_next_one_would_succeed() {
    let (_directory, _path, mut device) = store(8);
    let good = std::mem::replace(&mut device.fd, File::options().write(true).open("/dev/full").unwrap().into());
    let error = device.flush().unwrap_err();
    assert!(matches!(&error, Error::Io { operation: Operation::Flush, first: None, .. }), "{error}");
    device.fd = good;
    assert!(matches!(device.flush(), Err(Error::Latched { .. })));
    assert!(matches!(device.write(0, &[IoSlice::new(&[0; BLOCK_SIZE])]), Err(Error::Latched { .. })));
    assert_eq!(get(&device, 0, 1), vec![0; BLOCK_SIZE]);
}

#[test]
fn refused_requests_do_not_latch() {
    let (_directory, _path, device) = store(8);
    let one = [0; BLOCK_SIZE];
    assert!(matches!(device.write(8, &[IoSlice::new(&one)]), Err(Error::OutOfRange { .. })));
    assert!(matches!(device.write(u64::MAX, &[IoSlice::new(&one)]), Err(Error::OutOfRange { .. })));
    assert!(matches!(device.write(0, &[IoSlice::new(&one[1..])]), Err(Error::Misaligned { .. })));
    assert!(matches!(device.read(0, &mut []), Err(Error::Misaligned { .. })));
    assert!(matches!(device.discard(0, 9), Err(Error::OutOfRange { .. })));
    device.write(7, &[IoSlice::new(&one)]).unwrap();
    device.flush().unwrap();
}

#[test]
fn a_read_only_device_refuses_changes() {
    let (_directory, path, device) = store(8);
    drop(device);
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    let error = device.write(3, &[IoSlice::new(&[1; BLOCK_SIZE])]).unwrap_err();
    assert!(error.to_string().ends_with("write refused at block 3: the device is open read-only"), "{error}");
    assert!(matches!(device.flush(), Err(Error::ReadOnly { .. })));
    assert!(matches!(device.discard(0, 1), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_file_that_shrank_says_so() {
    let (_directory, path, device) = store(8);
    File::options().write(true).open(&path).unwrap().set_len(2 * BLOCK_SIZE as u64 + 100).unwrap();
    let mut out = vec![0; 4 * BLOCK_SIZE];
    let error = device.read(1, &mut [IoSliceMut::new(&mut out)]).unwrap_err();
    assert!(matches!(error, Error::EndedEarly { first: 1, length_bytes: 16384, .. }), "{error}");
    assert!(device.latched().is_none());
    assert_eq!(device.allocation(1, 7).blocks, 1);
    assert_eq!(device.allocation(2, 6).flags, 0, "nobody knows what is there");
    // It must not become as long as it was.
    for at in [7, 0] {
        let error = device.write(at, &[IoSlice::new(&[1; BLOCK_SIZE])]).unwrap_err();
        let Error::Shrunk { first, blocks, expected, .. } = error.root() else { panic!("{error}") };
        assert_eq!((*first, *blocks, *expected), (Some(7), 2, 8));
    }
    assert!(device.flush().is_err() && device.latched().is_some());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * BLOCK_SIZE as u64 + 100);
}

#[test]
fn nothing_makes_a_file_that_shrank_as_long_as_it_was() {
    for how in 0..3 {
        let (_directory, path, device) = store(8);
        File::options().write(true).open(&path).unwrap().set_len(2 * BLOCK_SIZE as u64).unwrap();
        let (bytes, other) = ([IoSlice::new(&[1; BLOCK_SIZE])], [IoSlice::new(&[2; BLOCK_SIZE])]);
        let done = match how {
            0 => device.flush(),
            1 => device.write_batch(&[Write { first: 1, bufs: &bytes }, Write { first: 6, bufs: &other }]),
            _ => device.zero(1, 1, false).map(drop),
        };
        assert!(matches!(done, Err(Error::Shrunk { blocks: 2, expected: 8, .. })), "{how}: {done:?}");
        assert!(device.latched().is_some_and(Error::is_device_failure));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * BLOCK_SIZE as u64);
    }
}

#[test]
fn discards_keep_a_reserved_file_allocated_and_punch_a_sparse_one() {
    use std::os::unix::fs::MetadataExt;
    let (directory, path, device) = store(64);
    let data = pattern(64 * BLOCK_SIZE, 9);
    device.write(0, &[IoSlice::new(&data)]).unwrap();
    device.discard(8, 16).unwrap();
    device.flush().unwrap();
    let whole = fs::metadata(&path).unwrap().blocks();
    assert!(whole * 512 >= 64 * BLOCK_SIZE as u64);
    device.give_up_reservation();
    device.discard(8, 16).unwrap();
    assert!(!device.is_reserved() && fs::metadata(&path).unwrap().blocks() <= whole - 16 * 8);
    assert_eq!(get(&device, 8, 16), vec![0; 16 * BLOCK_SIZE]);

    let sparse = directory.path().join("sparse");
    File::create(&sparse).unwrap().set_len(64 * BLOCK_SIZE as u64).unwrap();
    let device = FileDevice::open(&sparse, Access::ReadWrite).unwrap();
    assert!(!device.is_reserved());
    device.write(0, &[IoSlice::new(&data[..32 * BLOCK_SIZE])]).unwrap();
    device.flush().unwrap();
    let before = fs::metadata(&sparse).unwrap().blocks();
    device.discard(8, 16).unwrap();
    assert!(fs::metadata(&sparse).unwrap().blocks() <= before - 16 * 8);
    assert_eq!(get(&device, 8, 16), vec![0; 16 * BLOCK_SIZE]);
    assert_eq!(get(&device, 24, 8), data[24 * BLOCK_SIZE..32 * BLOCK_SIZE]);
    assert_eq!(device.blocks(), 64);
}

#[test]
fn what_is_no_file_or_disk_is_refused() {
    let directory = scratch();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for path in [directory.path(), &fifo, Path::new("/dev/null")] {
        let error = FileDevice::open(path, Access::ReadOnly).unwrap_err();
        assert!(matches!(error, Error::Unsuitable { .. }), "{error}");
    }
    let error = FileDevice::open(&directory.path().join("absent"), Access::ReadOnly).unwrap_err();
    assert!(error.to_string().ends_with("absent: open failed: No such file or directory (os error 2)"), "{error}");
}

#[test]
fn creating_refuses_what_exists_and_leaves_nothing_behind_when_space_lacks() {
    let directory = scratch();
    let path = directory.path().join("store");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(FileDevice::create_file(&path, 4096), Err(Error::Io { operation: Operation::Create, .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    for size_bytes in [0, 100, 5000] {
        let odd = directory.path().join("odd");
        assert!(matches!(FileDevice::create_file(&odd, size_bytes), Err(Error::Misaligned { .. })));
        assert!(!odd.exists());
    }
    let huge = directory.path().join("huge");
    let error = FileDevice::create_file(&huge, 1 << 50).unwrap_err();
    assert!(matches!(error, Error::Io { operation: Operation::Create, .. }), "{error}");
    assert!(!huge.exists());
}

#[test]
fn a_tail_shorter_than_a_block_is_not_used() {
    let directory = scratch();
    let path = directory.path().join("odd");
    fs::write(&path, vec![5; 3 * BLOCK_SIZE + 100]).unwrap();
    let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(device.blocks(), 3);
    assert_eq!(get(&device, 2, 1), vec![5; BLOCK_SIZE]);
}

/// Random batches of aligned and unaligned, small and large, whole and scattered requests against a copy in memory.
#[test]
fn batches_do_what_single_requests_do_with_and_without_io_uring() {
    const BLOCKS: usize = 4096;
    let seed = std::env::var("HOLDFAST_SEED").map_or(1, |seed| seed.parse().expect("HOLDFAST_SEED is a number"));
    println!("HOLDFAST_SEED={seed} cargo test -p holdfast-block batches_do_what");
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let (_directory, _path, device) = store(BLOCKS as u64);
    let mut expected = vec![0; BLOCKS * BLOCK_SIZE];
    for (round, requests) in [1, 2, 40, 700, 300].into_iter().enumerate() {
        if round == 4 {
            let ring_expected = device.is_direct() && Rings::default().take().is_some();
            assert_eq!(device.rings.in_use(), ring_expected);
            device.rings.disable();
        }
        // Disjoint extents of up to 5 blocks, one of 40, in random order.
        let mut extents = Vec::new();
        let mut at = 0;
        while extents.len() < requests {
            let count = if extents.len() == 3 { 40 } else { rng.random_range(1..=5) };
            extents.push((at, count));
            at += count + rng.random_range(0..2);
        }
        extents.shuffle(&mut rng);
        let source = AlignedBuf::copy_of(&pattern(50 * BLOCK_SIZE, round));
        let slices: Vec<Vec<IoSlice<'_>>> = extents
            .iter()
            .map(|(_, count)| {
                let shift = [0, 0, 512, 1][rng.random_range(0..4)];
                let data = &source[shift..shift + count * BLOCK_SIZE];
                let (a, b) = data.split_at([0, 512, 4096, 1000][rng.random_range(0..4)]);
                vec![IoSlice::new(a), IoSlice::new(b)]
            })
            .collect();
        for ((at, _), bufs) in extents.iter().zip(&slices) {
            let data = bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
            expected[at * BLOCK_SIZE..][..data.len()].copy_from_slice(&data);
        }
        let writes: Vec<_> =
            extents.iter().zip(&slices).map(|((at, _), bufs)| Write { first: *at as u64, bufs }).collect();
        device.write_batch(&writes).unwrap();
        assert!(get(&device, 0, BLOCKS) == expected, "seed {seed} round {round}");

        let mut buffers: Vec<AlignedBuf> =
            extents.iter().map(|(_, count)| AlignedBuf::zeroed((count + 1) * BLOCK_SIZE)).collect();
        let shifts: Vec<usize> = extents.iter().map(|_| [0, 0, 512, 1][rng.random_range(0..4)]).collect();
        let mut slices: Vec<_> = buffers
            .iter_mut()
            .zip(extents.iter().zip(&shifts))
            .map(|(buf, ((_, count), shift))| {
                let (a, b) = buf[*shift..shift + count * BLOCK_SIZE].split_at_mut(rng.random_range(0..4096));
                [IoSliceMut::new(a), IoSliceMut::new(b)]
            })
            .collect();
        let mut reads: Vec<_> =
            extents.iter().zip(&mut slices).map(|((at, _), bufs)| Read::new(*at as u64, bufs)).collect();
        device.read_batch(&mut reads).unwrap();
        for ((at, count), (buf, shift)) in extents.iter().zip(buffers.iter().zip(shifts)) {
            let found = &buf[shift..shift + count * BLOCK_SIZE];
            assert!(
                *found == expected[at * BLOCK_SIZE..(at + count) * BLOCK_SIZE],
                "seed {seed} round {round} at {at}"
            );
        }
    }
}

#[test]
fn each_read_of_a_batch_tells_its_own_outcome() {
    let (_directory, path, device) = store(16);
    device.write(3, &[IoSlice::new(&[7; BLOCK_SIZE])]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(8 * BLOCK_SIZE as u64).unwrap();
    for ring in [true, false] {
        if !ring {
            device.rings.disable();
        }
        let mut memory = AlignedBuf::zeroed(5 * BLOCK_SIZE);
        let mut slices: Vec<_> = memory.chunks_mut(BLOCK_SIZE).map(|block| [IoSliceMut::new(block)]).collect();
        let mut reads: Vec<_> =
            [3, 10, 16, u64::MAX, 4].into_iter().zip(&mut slices).map(|(at, bufs)| Read::new(at, bufs)).collect();
        let error = device.read_batch(&mut reads).unwrap_err();
        assert!(matches!(error, Error::EndedEarly { first: 10, .. }), "{error}");
        assert!(matches!(reads[1].result, Err(Error::EndedEarly { first: 10, length_bytes: 4096, done_bytes: 0, .. })));
        assert!(matches!(reads[2].result, Err(Error::OutOfRange { first: 16, .. })));
        assert!(matches!(reads[3].result, Err(Error::OutOfRange { first: u64::MAX, .. })));
        assert!(reads[0].result.is_ok() && reads[4].result.is_ok());
        assert!(memory[..BLOCK_SIZE] == [7; BLOCK_SIZE] && memory[4 * BLOCK_SIZE..] == [0; BLOCK_SIZE]);
    }
}

#[test]
fn a_batch_with_a_bad_write_does_nothing_and_a_failed_one_latches() {
    let (_directory, _path, device) = store(8);
    let ones = AlignedBuf::copy_of(&[1; BLOCK_SIZE]);
    let bufs = [IoSlice::new(&ones)];
    let batch = |addresses: &[u64]| addresses.iter().map(|at| Write { first: *at, bufs: &bufs }).collect::<Vec<_>>();
    assert!(matches!(device.write_batch(&batch(&[0, 8])), Err(Error::OutOfRange { first: 8, .. })));
    assert_eq!(get(&device, 0, 1), vec![0; BLOCK_SIZE]);
    device.write_batch(&[]).unwrap();

    for ring in [true, false] {
        let mut device = device_over(File::options().read(true).write(true).open("/dev/full").unwrap().into());
        device.direct = Some(Alignment { memory: 512, length: 512 });
        if !ring {
            device.rings.disable();
        }
        let error = device.write_batch(&batch(&[5, 6, 7])).unwrap_err();
        assert!(matches!(error, Error::Io { first: Some(5..=7), length_bytes: 4096, .. }), "{error}");
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(matches!(device.write_batch(&batch(&[1, 2])), Err(Error::Latched { .. })));
        assert!(matches!(device.flush(), Err(Error::Latched { .. })));
    }
}

#[test]
fn threads_can_share_a_device() {
    let (_directory, _path, device) = store(1024);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let device = &device;
            scope.spawn(move || {
                let data = AlignedBuf::copy_of(&[thread as u8 + 1; BLOCK_SIZE]);
                let bufs = [IoSlice::new(&data)];
                for round in 0..8 {
                    let writes: Vec<_> =
                        (0..32).map(|at| Write { first: (round * 32 + at) * 4 + thread, bufs: &bufs }).collect();
                    device.write_batch(&writes).unwrap();
                    device.flush().unwrap();
                }
            });
        }
    });
    let all = get(&device, 0, 1024);
    assert!(all.chunks(BLOCK_SIZE).enumerate().all(|(at, block)| block.iter().all(|byte| *byte == (at % 4) as u8 + 1)));
}

/// A loop device over `file`, until it is dropped. `None`, and a line that says so, where there can be none.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &std::path::Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(Loop(String::from_utf8(made.stdout).unwrap().trim_end().to_string().into()))
            }
            other => {
                eprintln!("SKIPPED: no loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Opens what was closed just now. A program that another test starts holds all that was open, and so its lock, from its fork to its exec: that is
/// waited for.
fn open_soon(path: &std::path::Path) -> FileDevice {
    let begun = Instant::now();
    loop {
        match FileDevice::open(path, Access::ReadWrite) {
            Err(Error::InUse { .. }) if begun.elapsed() < Duration::from_secs(20) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_file_is_not_opened_twice_through_loop_devices() {
    let (_directory, path, device) = store(64);
    let (Some(one), Some(other)) = (Loop::over(&path), Loop::over(&path)) else { return };
    let in_use = |path: &std::path::Path, access| matches!(FileDevice::open(path, access), Err(Error::InUse { .. }));
    for access in [Access::ReadWrite, Access::ReadOnly] {
        assert!(in_use(&one.0, access), "the file is open");
    }
    FileDevice::open(&one.0, Access::ReadOnlyUnlocked).unwrap();
    drop(device);
    let disk = open_soon(&one.0);
    assert!(disk.is_disk());
    assert!(in_use(&path, Access::ReadWrite) && in_use(&path, Access::ReadOnly), "a loop device over it is open");
    assert!(in_use(&other.0, Access::ReadWrite), "another loop device over it is open");
    drop(disk);
    drop(open_soon(&other.0));
    open_soon(&path);
}

/// Of a disk that is pulled out the kernel makes one without blocks, and has no space behind its end.
#[test]
fn a_disk_that_has_shrunk_is_gone_and_not_full() {
    for how in 0..2 {
        let (_directory, path, device) = store(64);
        drop(device);
        let Some(disk) = Loop::over(&path) else { return };
        let device = open_soon(&disk.0);
        device.write(40, &[IoSlice::new(&pattern(BLOCK_SIZE, 3))]).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(32 * BLOCK_SIZE as u64).unwrap();
        assert!(Command::new("losetup").arg("--set-capacity").arg(&disk.0).status().unwrap().success());
        let bytes = AlignedBuf::copy_of(&pattern(BLOCK_SIZE, 4));
        let bufs = [IoSlice::new(&bytes)];
        let writes = [40, 50].map(|first| Write { first, bufs: &bufs });
        let error = if how == 0 { device.write(40, &bufs) } else { device.write_batch(&writes) }.unwrap_err();
        assert!(matches!(error, Error::Shrunk { blocks: 32, expected: 64, .. }), "{how}: {error}");
        assert_eq!(Symptom::of(&error), Symptom::Gone);
        assert!(device.latched().is_some());
    }
}

#[test]
fn a_file_grows_as_it_is_and_is_taken_as_large_as_it_has_become() {
    use std::os::unix::fs::MetadataExt;
    let (_directory, path, device) = store(64);
    let data = pattern(64 * BLOCK_SIZE, 3);
    device.write(0, &[IoSlice::new(&data)]).unwrap();
    assert!(matches!(device.write(64, &[IoSlice::new(&data)]), Err(Error::OutOfRange { .. })));
    assert_eq!((device.grow(128).unwrap(), device.blocks()), (128, 128));
    assert!(device.is_reserved() && fs::metadata(&path).unwrap().blocks() * 512 >= 128 * BLOCK_SIZE as u64);
    device.write(64, &[IoSlice::new(&data)]).unwrap();
    assert_eq!((get(&device, 0, 64), get(&device, 64, 64)), (data.clone(), data));
    assert_eq!(device.grow(100).unwrap(), 128, "never smaller");
    // No host has so much; the file is as it was and the device goes on.
    let error = device.grow(1 << 50).unwrap_err();
    assert!(matches!(error, Error::Io { operation: Operation::Grow, .. }), "{error}");
    assert_eq!((fs::metadata(&path).unwrap().len(), device.blocks()), (128 * BLOCK_SIZE as u64, 128));
    device.flush().unwrap();
    // Enlarged by hand, it is sparse behind.
    File::options().write(true).open(&path).unwrap().set_len(200 * BLOCK_SIZE as u64 + 1).unwrap();
    assert_eq!((device.grow(0).unwrap(), device.is_reserved()), (200, false));
    assert_eq!(device.grow(300).unwrap(), 300);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < 250 * BLOCK_SIZE as u64, "sparse as it was");
    drop(device);
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(device.grow(400), Err(Error::ReadOnly { .. })));
}

#[test]
fn what_is_open_for_reading_is_opened_for_writing_under_the_same_lock() {
    let (_directory, path, device) = store(64);
    drop(device);
    let reading = std::sync::Arc::new(FileDevice::open(&path, Access::ReadOnly).unwrap());
    assert!(!reading.is_writable());
    // Wherever it is by now.
    let moved = path.with_extension("moved");
    fs::rename(&path, &moved).unwrap();
    let writing = FileDevice::open_writable(reading).unwrap();
    assert!(writing.is_writable() && writing.is_direct());
    let data = pattern(BLOCK_SIZE, 3);
    writing.write(5, &[IoSlice::new(&data)]).unwrap();
    writing.flush().unwrap();
    assert_eq!(get(&writing, 5, 1), data);
    let in_use = || matches!(FileDevice::open(&moved, Access::ReadOnly), Err(Error::InUse { .. }));
    assert!(in_use());
    drop(writing);
    assert!(!in_use());
    let unlocked = std::sync::Arc::new(FileDevice::open(&moved, Access::ReadOnlyUnlocked).unwrap());
    assert!(matches!(FileDevice::open_writable(unlocked), Err(Error::Unsuitable { .. })));
}
