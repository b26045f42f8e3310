//! Bytes that come and go with a checksum per block.

use crate::support::{ROOT, World};
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_naming::{Error, ErrorKind, Request, SetAttr, SumsWanted, WRITE_MAX};
use holdfast_object::{MAX_OBJECT_BYTES, ObjectId, PAGE_SIZE, RequestId};

const REQUEST: &Request = &Request::ROOT;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

/// A checksum for the part of each block.
fn sums(algorithm: Algorithm, offset: u64, mut bytes: &[u8]) -> Vec<Checksum> {
    let mut room = PAGE_SIZE - (offset % PAGE_SIZE as u64) as usize;
    let mut sums = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(bytes.len().min(room));
        sums.push(algorithm.sum(piece));
        (bytes, room) = (rest, PAGE_SIZE);
    }
    sums
}

fn wanted(algorithm: Algorithm) -> SumsWanted {
    SumsWanted { algorithm, verify: false }
}

#[test]
fn what_is_written_with_sums_is_read_with_sums() {
    let world = World::new();
    for algorithm in Algorithm::ALL {
        let file = world.file(ROOT, algorithm.name());
        let mut expected = vec![0; 30_000];
        for (offset, length) in
            [(0u64, 4096usize), (0, 1), (4095, 2), (5000, 9000), (8192, 8192), (29_990, 10), (16_384, 0)]
        {
            let bytes = bytes(length);
            let size = world.attributes(file).size;
            let written =
                world.space.write_with_sums(REQUEST, file, offset, &bytes, &sums(algorithm, offset, &bytes), false);
            assert_eq!(written, Ok(size), "{algorithm} {offset} {length}");
            expected[offset as usize..][..length].copy_from_slice(&bytes);
        }
        for (offset, length) in [(0u64, 30_000usize), (1, 4095), (4096, 4096), (20_000, 50_000), (7, 0), (30_000, 5)] {
            for verify in [false, true] {
                let how = SumsWanted { algorithm, verify };
                let (data, got) = world.space.read_with_sums(file, offset, length, how, false).unwrap();
                let end = (offset as usize + length).min(30_000);
                assert_eq!(data.to_vec(), expected[offset as usize..end]);
                assert_eq!(got, sums(algorithm, offset, &expected[offset as usize..end]), "{algorithm} {offset}");
            }
        }
        assert_eq!(world.read_all(file), expected);
    }
    world.assert_clean();
}

/// The planted fault of this file: with the verification of what came switched off (`receive` taking the checksum as it is, or
/// making one of its own), this test fails.
#[test]
fn bytes_that_do_not_have_their_checksum_are_not_written() {
    let world = World::new();
    for algorithm in Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::None) {
        let file = world.file(ROOT, algorithm.name());
        world.write(file, 0, &[1; 20_000]);
        let mut came = bytes(12_000);
        let sums = sums(algorithm, 100, &came);
        // Blocks 0, 1 and 2, of which two lose a bit on the way.
        came[10] ^= 1;
        came[11_999] ^= 128;
        let refused = world.space.write_with_sums(REQUEST, file, 100, &came, &sums, false).unwrap_err();
        assert_eq!(refused, Error::Mismatch { object: file, blocks: vec![0, 2] }, "{algorithm}");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert_eq!(world.read_all(file), [1; 20_000], "nothing was written");
    }
    world.assert_clean();
}

fn flipped(world: &World, again: bool) -> ObjectId {
    let file = world.file(ROOT, "file");
    world.write(file, 0, &bytes(3 * PAGE_SIZE));
    world.cache.spoil(file, 1, 12_345, again);
    file
}

#[test]
fn a_bad_page_is_forwarded_to_a_reader_who_verifies_and_mended_for_one_who_asks() {
    let world = World::new();
    let file = flipped(&world, true);
    let (data, got) = world.space.read_with_sums(file, 0, 3 * PAGE_SIZE, wanted(Algorithm::Crc64Nvme), false).unwrap();
    let came = sums(Algorithm::Crc64Nvme, 0, &data.to_vec());
    assert_eq!((got[0], got[2]), (came[0], came[2]));
    assert_ne!(got[1], came[1], "the reader sees it");
    let how = SumsWanted { algorithm: Algorithm::Crc64Nvme, verify: true };
    let (data, got) = world.space.read_with_sums(file, PAGE_SIZE as u64, PAGE_SIZE, how, false).unwrap();
    assert_eq!(data.to_vec(), bytes(3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]);
    assert_eq!(got, sums(Algorithm::Crc64Nvme, 0, &data.to_vec()));
}

#[test]
fn a_bad_page_is_mended_before_it_is_copied() {
    let world = World::new();
    let file = flipped(&world, true);
    let mut copied = vec![0; 2 * PAGE_SIZE];
    assert_eq!(world.space.read_into(file, 100, &mut copied), Ok(2 * PAGE_SIZE));
    assert_eq!(copied, bytes(3 * PAGE_SIZE)[100..][..2 * PAGE_SIZE]);
}

#[test]
fn a_bad_page_gets_no_new_checksum() {
    for (algorithm, offset, length) in
        [(Algorithm::Xor64, 0, 3 * PAGE_SIZE), (Algorithm::Crc64Nvme, PAGE_SIZE as u64 + 5, 10)]
    {
        // The flip lies in the page, not in the bytes that are asked for.
        let world = World::new();
        let file = flipped(&world, true);
        let (data, got) = world.space.read_with_sums(file, offset, length, wanted(algorithm), false).unwrap();
        assert_eq!(data.to_vec(), bytes(3 * PAGE_SIZE)[offset as usize..][..length], "read again from below");
        assert_eq!(got, sums(algorithm, offset, &data.to_vec()));
        let world = World::new();
        let file = flipped(&world, false);
        let error = world.space.read_with_sums(file, offset, length, wanted(algorithm), false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn writes_with_sums_are_whole_or_refused() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let write = |offset, bytes: &[u8], sums: &[Checksum]| {
        world.space.write_with_sums(REQUEST, file, offset, bytes, sums, false).map_err(|error| error.kind())
    };
    let one = [Algorithm::Xor64.sum(b"ab")];
    assert_eq!(write(4095, b"ab", &one), Err(ErrorKind::InvalidArgument), "two blocks, one checksum");
    assert_eq!(write(0, b"ab", &[one[0], one[0]]), Err(ErrorKind::InvalidArgument));
    assert_eq!(write(MAX_OBJECT_BYTES - 1, b"ab", &one), Err(ErrorKind::FileTooBig));
    assert_eq!(write(u64::MAX, b"ab", &one), Err(ErrorKind::FileTooBig));
    let long = vec![0; WRITE_MAX + 1];
    assert_eq!(write(0, &long, &sums(Algorithm::Xor64, 0, &long)), Err(ErrorKind::InvalidArgument));
    assert_eq!(world.attributes(file).size, 0);
    assert_eq!(write(MAX_OBJECT_BYTES - 2, b"ab", &one), Ok(0));
}

#[test]
fn appends_go_to_the_end_with_checksums_of_their_own_bytes() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let append = |algorithm, max, bytes: &[u8], sums: &[Checksum]| {
        world.space.append_with_sums(REQUEST, file, max, bytes, sums, false).map_err(|error| match error {
            Error::Mismatch { blocks, .. } => (ErrorKind::Corrupt, blocks),
            error => (error.kind(), vec![algorithm as u64]),
        })
    };
    let mut expected = Vec::new();
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        for length in [1, 4095, 4096, 4097, 10_000, 3 * PAGE_SIZE] {
            let bytes = bytes(length);
            let own = sums(algorithm, 0, &bytes);
            let size = expected.len() as u64;
            assert_eq!(append(number, size, &bytes, &own), Ok(size), "{algorithm} {length}");
            expected.extend(&bytes);
            let limit = append(number, size, &bytes, &own).unwrap_err();
            assert_eq!(limit, (ErrorKind::FileTooBig, vec![number as u64]), "not behind {size}");
            if algorithm == Algorithm::None {
                continue;
            }
            for block in 0..own.len() {
                let mut came = bytes.clone();
                came[(block * PAGE_SIZE + 5).min(length - 1)] ^= 8;
                assert_eq!(append(number, u64::MAX, &came, &own), Err((ErrorKind::Corrupt, vec![block as u64])));
            }
            let few = append(number, u64::MAX, &bytes, &own[1..]).unwrap_err();
            assert_eq!(few, (ErrorKind::InvalidArgument, vec![number as u64]));
        }
    }
    assert_eq!(world.space.append(REQUEST, file, b"end", false), Ok(3));
    expected.extend(b"end");
    assert!(world.read_all(file) == expected);
    world.space.setattr(REQUEST, file, &SetAttr { size: Some(MAX_OBJECT_BYTES - 1), ..SetAttr::default() }).unwrap();
    let one = sums(Algorithm::Xor64, 0, b"ab");
    assert_eq!(append(0, u64::MAX, b"ab", &one).unwrap_err().0, ErrorKind::FileTooBig);
    assert_eq!(append(0, u64::MAX, b"a", &one[..0]).unwrap_err().0, ErrorKind::InvalidArgument);
    assert_eq!(append(0, u64::MAX, b"a", &sums(Algorithm::Xor64, 0, b"a")), Ok(MAX_OBJECT_BYTES - 1));
}

#[test]
fn an_append_that_comes_again_is_where_it_was() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let request = Request { id: Some(RequestId { client: 3, unique: 4 }), ..Request::ROOT };
    world.write(file, 0, b"before");
    let append = || {
        let sums = [Algorithm::Crc32c.sum(b"once")];
        world.space.append_with_sums(&request, file, u64::MAX, b"once", &sums, false)
    };
    assert_eq!(append(), Ok(6));
    world.write(file, 10, b"other");
    assert_eq!(append(), Ok(6));
    let plain = Request { id: Some(RequestId { client: 3, unique: 5 }), ..Request::ROOT };
    assert_eq!(world.space.append(&plain, file, b"too", false), Ok(3));
    assert_eq!(world.space.append(&plain, file, b"too", false), Ok(3));
    assert_eq!(world.read_all(file), b"beforeonceothertoo");
}

#[test]
fn a_write_that_comes_again_is_not_done_again() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let request = Request { id: Some(RequestId { client: 3, unique: 4 }), ..Request::ROOT };
    let one = [Algorithm::Crc32c.sum(b"first")];
    assert_eq!(world.space.write_with_sums(&request, file, 0, b"first", &one, false), Ok(0));
    world.write(file, 0, b"other");
    assert_eq!(world.space.write_with_sums(&request, file, 0, b"first", &one, false), Ok(0));
    assert_eq!(world.read_all(file), b"other");
}
