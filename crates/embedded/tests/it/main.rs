//! A store in this process, as a program has it.

use holdfast_block::MemoryDevice;
use holdfast_embedded::{
    Algorithm, BLOCK_BYTES, Checksum, Error, ObjectId, Operation, Options, Pending, Protection, Side, Store, Workers,
};
use holdfast_lab::device::{Fault, FaultDevice, FaultPlan, Firing, Rule};
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

const SIZE_BYTES: u64 = 64 << 20;

fn directory() -> tempfile::TempDir {
    // A real disk: /tmp may be in memory.
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn made() -> (tempfile::TempDir, PathBuf, Store) {
    let directory = directory();
    let path = directory.path().join("store");
    let store = Store::create(&path, SIZE_BYTES, &Options::default()).unwrap();
    (directory, path, store)
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| (((at + salt) * 2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn what_is_written_is_there_when_the_store_is_opened_again() {
    let (_directory, path, store) = made();
    store.namespace().mkdir(store.request(), ObjectId::ROOT, b"deep", 0o755).unwrap();
    // More than a transaction, at no boundary of anything.
    let (bytes, offset) = (pattern(3 * (1 << 20) + 5, 1), 4093);
    let file = store.create_file("/deep/a").unwrap();
    let sums = file.sums(&bytes, offset);
    assert_eq!(file.write_at_with_sums(&bytes, offset, &sums).unwrap(), bytes.len());
    drop(file);
    store.close().unwrap();
    let store = Store::open(&path, &Options::default()).unwrap();
    let file = store.open_file("deep/a").unwrap();
    assert_eq!(file.len().unwrap(), offset + bytes.len() as u64);
    let (mut back, mut got) = (vec![0; bytes.len() + 1], Vec::new());
    assert_eq!(file.read_at_with_sums(&mut back, offset, &mut got).unwrap(), bytes.len());
    assert!(back[..bytes.len()] == bytes && got == sums);
    back.fill(0);
    assert_eq!(file.read_at(&mut back, offset).unwrap(), bytes.len());
    assert!(back[..bytes.len()] == bytes);
    assert!(!file.is_empty().unwrap());
}

#[test]
fn several_buffers_are_one_transfer() {
    let (_directory, _path, store) = made();
    let file = store.create_file("a").unwrap();
    let bytes = pattern(20_000, 2);
    let sums = file.sums(&bytes, 100);
    let (a, b) = bytes.split_at(4321);
    assert_eq!(file.write_vectored_at_with_sums(&[IoSlice::new(a), IoSlice::new(b)], 100, &sums).unwrap(), 20_000);
    let (mut c, mut d, mut got) = (vec![0; 9999], vec![0; 30_000], Vec::new());
    let mut buffers = [IoSliceMut::new(&mut c), IoSliceMut::new(&mut d)];
    assert_eq!(file.read_vectored_at_with_sums(&mut buffers, 100, &mut got).unwrap(), 20_000);
    assert!(c == bytes[..9999] && d[..10_001] == bytes[9999..] && got == sums);
    // Without checksums, and more than a transaction.
    let bytes = pattern(3 << 20, 8);
    let (a, b) = bytes.split_at(1_500_000);
    assert_eq!(file.write_vectored_at(&[IoSlice::new(a), IoSlice::new(b)], 77).unwrap(), bytes.len());
    let (mut c, mut d) = (vec![0; 2_000_000], vec![0; 2 << 20]);
    let mut buffers = [IoSliceMut::new(&mut c), IoSliceMut::new(&mut d)];
    assert_eq!(file.read_vectored_at(&mut buffers, 77).unwrap(), bytes.len());
    assert!(c == bytes[..2_000_000] && d[..bytes.len() - 2_000_000] == bytes[2_000_000..]);
}

#[test]
fn appends_of_several_threads_are_whole_and_where_they_are_said_to_be() {
    let (_directory, _path, store) = made();
    let file = store.create_file("a").unwrap();
    assert_eq!(file.append(&[]).unwrap(), (0, 0));
    let record = |writer: usize, number: usize| pattern(1000 + 3000 * writer, writer * 100 + number);
    let written: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (file, record) = (&file, &record);
                scope.spawn(move || {
                    let append = |number| {
                        let record = record(writer, number);
                        let (at, done) = file.append(&record).unwrap();
                        assert_eq!(done, record.len());
                        (at, record)
                    };
                    (0..50).map(append).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(file.len().unwrap(), written.iter().map(|(_, record)| record.len() as u64).sum::<u64>());
    for (at, record) in written {
        let mut back = vec![0; record.len()];
        assert_eq!(file.read_at_with_sums(&mut back, at, &mut Vec::new()).unwrap(), record.len());
        assert!(back == record, "at {at}");
    }
    // As many as go in one transaction.
    let (end, bytes) = (file.len().unwrap(), pattern((1 << 20) + 5, 9));
    assert_eq!(file.append(&bytes).unwrap(), (end, 1 << 20));
}

#[test]
fn calls_in_flight_tell_their_own_bad_blocks() {
    const IN_FLIGHT: usize = 32;
    let (_directory, _path, store) = made();
    let file = Arc::new(store.create_file("a").unwrap());
    let workers = Workers::new(4, IN_FLIGHT).unwrap();
    let block = |number| pattern(BLOCK_BYTES, number);
    let write = |number| {
        let (file, mut bytes, offset) = (file.clone(), block(number), (number * BLOCK_BYTES) as u64);
        let call = move || {
            let sums = file.sums(&bytes, offset);
            // As a bit that flips behind the program's back.
            bytes[17] ^= u8::from(number == 5 || number == 20);
            file.write_at_with_sums(&bytes, offset, &sums)
        };
        workers.run(call).unwrap()
    };
    let writes: Vec<_> = (0..IN_FLIGHT).map(write).collect();
    for (number, written) in writes.into_iter().map(Pending::wait).enumerate() {
        if number != 5 && number != 20 {
            assert_eq!(written.unwrap(), BLOCK_BYTES);
            continue;
        }
        let error = written.unwrap_err();
        let place = (error.side(), error.blocks());
        assert_eq!(place, (Some(Side::Memory), vec![number as u64]), "{error}");
    }
    let read = |number| {
        let file = file.clone();
        let call = move || {
            let mut buffer = vec![0; BLOCK_BYTES];
            file.read_at_with_sums(&mut buffer, (number * BLOCK_BYTES) as u64, &mut Vec::new()).map(|_| buffer)
        };
        workers.run(call).unwrap()
    };
    let reads: Vec<_> = (0..IN_FLIGHT).map(read).collect();
    for (number, read) in reads.into_iter().map(Pending::wait).enumerate() {
        let expected = if number == 5 || number == 20 { vec![0; BLOCK_BYTES] } else { block(number) };
        assert!(read.unwrap() == expected, "{number}");
    }
    let of_call = file.clone();
    workers.run(move || of_call.sync()).unwrap().wait().unwrap();
    assert_eq!(Arc::strong_count(&file), 1, "calls that are done have let go of it");
    drop(file);
    store.close().unwrap();
}

#[test]
fn what_a_store_offers_is_said() {
    let (_directory, _path, store) = made();
    let file = store.create_file("a").unwrap();
    let features = file.features().clone();
    assert_eq!((features.mode.as_str(), features.page_algorithm), ("uniform", file.algorithm()));
    assert!(features.access.read && features.access.write);
    for algorithm in features.algorithms {
        assert_eq!(store.open_file("a").unwrap().with_algorithm(algorithm).unwrap().algorithm(), algorithm);
    }
}

#[test]
fn bytes_that_do_not_have_their_checksum_are_not_taken() {
    let (_directory, _path, store) = made();
    let file = store.create_file("a").unwrap();
    let before = pattern(5 * BLOCK_BYTES, 3);
    file.write_at(&before, 0).unwrap();
    let mut bytes = pattern(4 * BLOCK_BYTES, 4);
    let sums = file.sums(&bytes, 0);
    // As a bit that flips behind the program's back, in the third block.
    bytes[2 * BLOCK_BYTES + 17] ^= 4;
    let error = file.write_at_with_sums(&bytes, 0, &sums).unwrap_err();
    assert!(matches!(error, Error::Transfer { operation: Operation::Write, done: 0, .. }), "{error}");
    assert_eq!((error.side(), error.blocks()), (Some(Side::Memory), vec![2]));
    let mut back = vec![0; before.len()];
    file.read_at(&mut back, 0).unwrap();
    assert!(back == before, "nothing of it was written");
    let wrong: [&[Checksum]; 2] = [&sums[1..], &[Algorithm::Blake3.sum(&bytes); 4]];
    for sums in wrong {
        let error = file.write_at_with_sums(&bytes, 0, sums).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.side().is_none(), "{error}");
    }
}

#[test]
fn what_was_synced_survives_the_program() {
    let (directory, path, store) = made();
    let file = store.create_file("a").unwrap();
    let bytes = pattern(10_000, 5);
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    // What the disk has now is what a program that is killed leaves.
    let image = directory.path().join("image");
    fs::copy(&path, &image).unwrap();
    let torn = directory.path().join("torn");
    fs::copy(&image, &torn).unwrap();
    let killed = Store::open(&image, &Options::default()).unwrap();
    let mut back = vec![0; bytes.len()];
    assert_eq!(killed.open_file("a").unwrap().read_at(&mut back, 0).unwrap(), bytes.len());
    assert!(back == bytes && killed.lost().is_empty());
    // The second block goes bad where the intent log has it.
    let block = &bytes[BLOCK_BYTES..2 * BLOCK_BYTES];
    let address = fs::read(&torn).unwrap().chunks(BLOCK_BYTES).position(|found| found == block).expect("as it is");
    let bad = [!block[0]];
    fs::File::options().write(true).open(&torn).unwrap().write_all_at(&bad, (address * BLOCK_BYTES) as u64).unwrap();
    let killed = Store::open(&torn, &Options::default()).unwrap();
    let file = killed.open_file("a").unwrap();
    assert_eq!(killed.lost(), [(file.id(), 1)]);
    let error = file.read_at(&mut back, 0).unwrap_err();
    assert_eq!(error.blocks(), [1], "{error}");
    file.write_at(block, BLOCK_BYTES as u64).unwrap();
    assert_eq!(file.read_at(&mut back, 0).unwrap(), bytes.len());
    assert!(back == bytes);
}

#[test]
fn room_of_files_that_nobody_can_name_is_had_again() {
    let (directory, path, store) = made();
    let room = |store: &Store| store.namespace().statfs().available;
    store.namespace().sync_all().unwrap();
    let before = room(&store);
    let file = store.create_file("a").unwrap();
    file.write_at(&pattern(8 << 20, 7), 0).unwrap();
    store.namespace().unlink(store.request(), ObjectId::ROOT, b"a").unwrap();
    store.namespace().sync_all().unwrap();
    assert!(room(&store) + 2000 < before, "it is in use");
    // Killed here, the file has no user any more; or the store is closed before the file is.
    let image = directory.path().join("image");
    fs::copy(&path, &image).unwrap();
    store.close().unwrap();
    drop(file);
    for path in [&image, &path] {
        let store = Store::open(path, &Options::default()).unwrap();
        store.namespace().sync_all().unwrap();
        let now = room(&store);
        assert!(now + 20 > before, "{now} of {before}");
    }
}

#[test]
fn a_block_that_went_bad_on_the_disk_is_named() {
    let (_directory, path, store) = made();
    let file = store.create_file("a").unwrap();
    let bytes = pattern(3 * BLOCK_BYTES, 6);
    file.write_at(&bytes, 0).unwrap();
    drop(file);
    store.close().unwrap();
    let image = fs::read(&path).unwrap();
    let block = &bytes[BLOCK_BYTES..2 * BLOCK_BYTES];
    let address = image.chunks(BLOCK_BYTES).position(|found| found == block).expect("stored as it is");
    let bad = [!block[99]];
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&bad, (address * BLOCK_BYTES + 99) as u64)
        .unwrap();
    let store = Store::open(&path, &Options::default()).unwrap();
    let file = store.open_file("a").unwrap();
    let mut back = vec![0; bytes.len()];
    for with_sums in [false, true] {
        back.fill(b'-');
        let read = match with_sums {
            true => file.read_at_with_sums(&mut back, 0, &mut Vec::new()),
            false => file.read_at(&mut back, 0),
        };
        let error = read.unwrap_err();
        assert_eq!((error.side(), error.blocks()), (Some(Side::Device), vec![1]), "{error}");
        assert_eq!(error.device_address(), Some(address as u64));
        assert!(back.iter().all(|byte| [0, b'-'].contains(byte)), "what has arrived of it is not left there");
    }
    let first = &mut back[..BLOCK_BYTES];
    file.read_at(first, 0).unwrap();
    assert!(*first == bytes[..BLOCK_BYTES], "its neighbours are read");
}

/// The block of the device that was struck last.
fn struck(device: &FaultDevice) -> u64 {
    let Firing { blocks, .. } = device.fired().pop().expect("something was struck");
    blocks.start
}

#[test]
fn a_device_that_fails_is_told_with_the_place() {
    let options = Options { recovery_point_age_max_ms: 600_000, ..Options::default() };
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(SIZE_BYTES / 4096)), FaultPlan::new()));
    let store = Store::create_on(device.clone(), &options).unwrap();
    let bytes = pattern(8 * BLOCK_BYTES, 11);
    store.create_file("a").unwrap().write_at(&bytes, 0).unwrap();
    store.close().unwrap();
    let store = Store::open_on(device.clone(), &options).unwrap();
    let file = store.open_file("a").unwrap();
    let mut back = vec![0; bytes.len()];
    // What leads to the blocks is in memory then, and none of those that are to fail.
    file.read_at(&mut back[..10], 7 * BLOCK_BYTES as u64).unwrap();

    device.add(Rule::new(Fault::ReadError).forever());
    let told = |error: Error, operation, offset, block: u64| {
        assert!(
            matches!(&error, Error::Failed { operation: was, offset: at, .. } if (*was, *at) == (operation, offset))
        );
        assert_eq!((error.side(), error.blocks()), (Some(Side::Device), vec![block]), "{error}");
        let at = struck(&device);
        assert_eq!((error.device(), error.device_address()), (Some("memory"), Some(at)), "{error}");
        for words in [format!("read failed at block {at} "), format!("page {block}:")] {
            assert!(error.to_string().contains(&words), "{error}");
        }
    };
    told(file.read_at(&mut back, 0).unwrap_err(), Operation::Read, 0, 0);
    let (at, mut sums) = (2 * BLOCK_BYTES as u64 + 7, Vec::new());
    told(file.read_at_with_sums(&mut back[..9], at, &mut sums).unwrap_err(), Operation::Read, at, 2);
    // A part of a block is put together with what the device has.
    told(file.write_at(b"part", at + BLOCK_BYTES as u64).unwrap_err(), Operation::Write, at + BLOCK_BYTES as u64, 3);
    device.clear();
    assert_eq!(file.read_at(&mut back, 0).unwrap(), bytes.len(), "it is asked again each time");
    assert!(back == bytes);

    device.add(Rule::new(Fault::WriteError));
    file.write_at(&bytes[..BLOCK_BYTES], 0).unwrap();
    let error = file.sync().unwrap_err();
    assert!(matches!(error, Error::Failed { operation: Operation::Write, offset: 0, .. }), "{error}");
    assert_eq!((error.side(), error.blocks()), (Some(Side::Device), vec![]), "{error}");
    let at = struck(&device);
    assert_eq!((error.device(), error.device_address()), (Some("memory"), Some(at)), "{error}");
    assert!(error.to_string().contains(&format!("write failed at block {at} ")), "{error}");
    // From then on it is refused, and why is told in words.
    let error = file.write_at(b"more", 0).unwrap_err().to_string();
    assert!(error.contains(&format!("write failed at block {at} ")), "{error}");
    assert_eq!(file.read_at(&mut back, 0).unwrap(), bytes.len());
}

#[test]
fn what_cannot_be_is_refused_with_the_place() {
    let (directory, path, store) = made();
    let says = |error: Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    says(Store::open(&path, &Options::default()).unwrap_err(), "in use");
    says(Store::create(&path, SIZE_BYTES, &Options::default()).unwrap_err(), path.to_str().unwrap());
    says(store.open_file("nothing/there").unwrap_err(), "nothing/there");
    says(store.open_file("/").unwrap_err(), "directory");
    let none = directory.path().join("small");
    says(Store::create(&none, 4096, &Options::default()).unwrap_err(), "small");
    assert!(!none.exists(), "what could not be made is not left behind");
    assert!(path.exists());
    // A file without a name goes with its last user, and not before.
    let file = store.create_file("a").unwrap();
    file.write_at(b"still there", 0).unwrap();
    store.namespace().unlink(store.request(), ObjectId::ROOT, b"a").unwrap();
    let mut back = [0; 11];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 11);
    assert_eq!(&back, b"still there");
    drop(file);
    says(store.open_file("a").unwrap_err(), "a");
}

#[test]
fn a_mode_is_the_stores_until_another_is_asked_for() {
    let directory = directory();
    let path = directory.path().join("store");
    let of = |protection| Options { protection, ..Options::default() };
    let dynamic = Protection::Dynamic { t_switch_s: 92 };
    Store::create(&path, SIZE_BYTES, &of(Some(dynamic))).unwrap().close().unwrap();
    let mode = |options| {
        let store = Store::open(&path, &options).unwrap();
        let mode = store.namespace().cache().protection();
        store.close().unwrap();
        mode
    };
    assert_eq!(mode(of(None)), dynamic);
    assert_eq!(mode(of(Some(Protection::Uniform))), Protection::Uniform);
    assert_eq!(mode(of(None)), dynamic);
}

#[test]
fn a_file_that_outlives_its_store_takes_nothing_that_would_be_lost() {
    let (_directory, path, store) = made();
    let file = store.create_file("a").unwrap();
    file.write_at(b"before", 0).unwrap();
    store.close().unwrap();
    let written = file.write_at(b"after!", 0);
    assert!(written.is_err(), "{written:?}");
    assert!(file.sync().is_err());
    let store = Store::open(&path, &Options::default()).expect("the file has let go of the device, or");
    let mut back = [0; 6];
    assert_eq!(store.open_file("a").unwrap().read_at(&mut back, 0).unwrap(), 6);
    assert_eq!(&back, b"before");
}
