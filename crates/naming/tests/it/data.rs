//! Contents of files.

use crate::support::{ROOT, World};
use holdfast_naming::{Error, ErrorKind, Position, Request, SetAttr, SpaceMode, WRITE_MAX};
use holdfast_object::{Durability, Error as ObjectError, MAX_OBJECT_BYTES, ObjectCache, PAGE_SIZE, Seek};

const REQUEST: &Request = &Request::ROOT;
const PAGE: u64 = PAGE_SIZE as u64;

#[test]
fn bytes_are_where_they_were_written() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 4090, b"across pages");
    world.write(file, 20_000, b"behind a hole");
    let mut expected = vec![0; 20_013];
    expected[4090..4102].copy_from_slice(b"across pages");
    expected[20_000..].copy_from_slice(b"behind a hole");
    assert_eq!(world.read_all(file), expected);
    assert_eq!(world.attributes(file).size, 20_013);
    assert_eq!(world.attributes(file).blocks, 3, "holes take no space");
    let data = world.space.read(file, 4095, 8190).unwrap();
    let slices: Vec<usize> = data.slices().map(<[u8]>::len).collect();
    assert_eq!(slices, [1, 4096, 4093], "pieces of pages, ready for a vectored reply");
    assert_eq!(data.to_vec(), expected[4095..4095 + 8190]);
    let mut copied = [7; 8190];
    assert_eq!(world.space.read_into(file, 4095, &mut copied), Ok(8190));
    assert_eq!(copied, expected[4095..4095 + 8190]);
    assert_eq!(world.space.read_into(file, 20_012, &mut copied), Ok(1));
    assert_eq!((copied[0], copied[1]), (b'e', expected[4096]), "nothing behind the end");
    assert_eq!(world.space.read_into(file, u64::MAX, &mut copied), Ok(0));
    assert!(world.space.read(file, 20_013, 5).unwrap().is_empty());
    assert_eq!(world.space.read(file, 20_012, 5).unwrap().len(), 1);
    assert!(world.space.read(file, u64::MAX, usize::MAX).unwrap().is_empty());
}

#[test]
fn writes_are_short_at_the_limits() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let bytes = vec![3; WRITE_MAX + 5];
    assert_eq!(world.space.write(REQUEST, file, 0, &bytes, false), Ok(WRITE_MAX));
    assert_eq!(world.space.write(REQUEST, file, MAX_OBJECT_BYTES - 2, b"four", false), Ok(2));
    assert_eq!(world.attributes(file).size, MAX_OBJECT_BYTES);
    for offset in [MAX_OBJECT_BYTES, u64::MAX] {
        let error = world.space.write(REQUEST, file, offset, b"x", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooBig);
        assert_eq!(world.space.write(REQUEST, file, offset, b"", false), Ok(0));
    }
    let set = SetAttr { size: Some(MAX_OBJECT_BYTES + 1), ..SetAttr::default() };
    assert_eq!(world.space.setattr(REQUEST, file, &set).unwrap_err().kind(), ErrorKind::FileTooBig);
}

#[test]
fn a_file_cut_and_grown_has_zeroes() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, &[7; 10_000]);
    let resize = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        world.space.setattr(REQUEST, file, &set).unwrap();
    };
    resize(5000);
    resize(9000);
    let mut expected = vec![7; 5000];
    expected.resize(9000, 0);
    assert_eq!(world.read_all(file), expected);
    let directory = world.directory(ROOT, "directory");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(world.space.setattr(REQUEST, directory, &set), Err(Error::IsDirectory(directory)));
}

#[test]
fn ranges_are_punched_zeroed_and_allocated() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, &[7; 16_384]);
    let change = |offset, length, mode| world.space.allocate(REQUEST, file, offset, length, mode, false);
    change(4000, 8500, SpaceMode::Punch).unwrap();
    assert_eq!(world.attributes(file).blocks, 2, "whole pages are given back");
    let mut expected = vec![7; 16_384];
    expected[4000..12_500].fill(0);
    assert_eq!(world.read_all(file), expected);
    change(16_000, 1000, SpaceMode::Zero { keep_size: true }).unwrap();
    expected[16_000..].fill(0);
    assert_eq!(world.read_all(file), expected);
    change(16_000, 1000, SpaceMode::Zero { keep_size: false }).unwrap();
    change(17_000, 1, SpaceMode::Allocate { keep_size: false }).unwrap();
    expected.resize(17_001, 0);
    assert_eq!(world.read_all(file), expected);
    change(100_000, PAGE, SpaceMode::Punch).unwrap();
    assert_eq!(world.attributes(file).size, 17_001);
    assert_eq!(change(0, 0, SpaceMode::Punch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let full = change(0, 1 << 30, SpaceMode::Allocate { keep_size: true }).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
}

#[test]
fn copies_share_whole_pages() {
    let world = World::new();
    let (source, target) = (world.file(ROOT, "source"), world.file(ROOT, "target"));
    let bytes: Vec<u8> = (0..20_001u32).map(|number| number as u8).collect();
    world.write(source, 0, &bytes);
    let copy = |from, to, length| {
        let (source, target) = (Position { id: source, offset: from }, Position { id: target, offset: to });
        world.space.copy_range(REQUEST, source, target, length, false).unwrap()
    };
    let frames = world.cache.arena().free_frames();
    assert_eq!(copy(0, PAGE, u64::MAX), 20_001, "up to the end of the source");
    assert_eq!(world.cache.arena().free_frames(), frames, "no page was copied");
    assert_eq!(world.space.read(target, PAGE, 30_000).unwrap().to_vec(), bytes);
    assert_eq!(copy(0, 0, 5000), PAGE, "the part of a page is for the next call");
    assert_eq!(copy(PAGE, PAGE, 904), 904, "which copies bytes");
    assert_eq!(copy(1, 3, 100), 100);
    assert_eq!(copy(20_001, 0, 5), 0);
    let within = Position { id: source, offset: 0 };
    let overlap = Position { id: source, offset: 10 };
    let error = world.space.copy_range(REQUEST, within, overlap, 11, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(world.space.copy_range(REQUEST, within, overlap, 10, false), Ok(10));
}

#[test]
fn a_copied_tail_leaves_what_is_behind() {
    let world = World::new();
    let (source, target) = (world.file(ROOT, "source"), world.file(ROOT, "target"));
    world.write(source, 0, &[1; 5000]);
    world.write(target, 0, &[2; 12_000]);
    let (from, to) = (Position { id: source, offset: 0 }, Position { id: target, offset: 0 });
    let mut done = 0;
    while done < 5000 {
        let from = Position { offset: done, ..from };
        let to = Position { offset: done, ..to };
        done += world.space.copy_range(REQUEST, from, to, 5000 - done, false).unwrap();
    }
    let mut expected = vec![1; 5000];
    expected.resize(12_000, 2);
    assert_eq!(world.read_all(target), expected);
}

#[test]
fn seeking_finds_data_and_holes() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 3 * PAGE, b"data");
    let size = world.attributes(file).size;
    assert_eq!(world.space.seek(file, 0, Seek::Data), Ok(3 * PAGE));
    assert_eq!(world.space.seek(file, 3 * PAGE + 1, Seek::Data), Ok(3 * PAGE + 1));
    assert_eq!(world.space.seek(file, 5, Seek::Hole), Ok(5));
    assert_eq!(world.space.seek(file, 3 * PAGE, Seek::Hole), Ok(size));
    for what in [Seek::Data, Seek::Hole] {
        let error = world.space.seek(file, size, what).unwrap_err();
        assert_eq!(error, Error::BeyondEnd { object: file, offset: size });
    }
    let set = SetAttr { size: Some(10 * PAGE), ..SetAttr::default() };
    world.space.setattr(REQUEST, file, &set).unwrap();
    assert_eq!(world.space.seek(file, 5 * PAGE, Seek::Data).unwrap_err().kind(), ErrorKind::BeyondEnd);
}

#[test]
fn a_page_spoilt_in_memory_is_read_again() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, &[5; 9000]);
    world.cache.spoil(file, 1, 12_345, true);
    assert_eq!(world.read_all(file), [5; 9000]);
    world.cache.spoil(file, 1, 12_345, true);
    let mut whole = [1; 4096];
    assert_eq!(world.space.read_into(file, 4096, &mut whole), Ok(4096));
    assert_eq!(whole, [5; 4096]);
}

#[test]
fn spoilt_bytes_never_get_out() {
    let world = World::new();
    let (file, other) = (world.file(ROOT, "file"), world.file(ROOT, "other"));
    world.write(file, 0, &[5; 9000]);
    world.cache.spoil(file, 1, 12_345, false);
    let corrupt = |error: Error| matches!(error, Error::Object(ObjectError::Corrupt(_)));
    assert!(corrupt(world.space.read(file, 0, 9000).unwrap_err()));
    assert!(corrupt(world.space.read_into(file, 0, &mut [0; 9000]).unwrap_err()));
    let mut whole = [1; 4096];
    assert!(corrupt(world.space.read_into(file, 4096, &mut whole).unwrap_err()));
    assert_eq!(whole, [0; 4096], "a page that is summed while it is copied");
    assert_eq!(world.space.read(file, 0, 4096).unwrap().to_vec(), [5; 4096], "the block before is fine");
    let (from, to) = (Position { id: file, offset: 5000 }, Position { id: other, offset: 0 });
    assert!(corrupt(world.space.copy_range(REQUEST, from, to, 10, false).unwrap_err()));
    // Spoilt pages of directories and links are errors as well.
    let link = world.space.symlink(REQUEST, ROOT, b"link", b"target").unwrap().id;
    world.cache.spoil(link, 0, 3, false);
    assert!(corrupt(world.space.readlink(link).unwrap_err()));
    world.cache.spoil(ROOT, 0, 999, false);
    assert!(corrupt(world.space.lookup(REQUEST, ROOT, b"file").unwrap_err()));
    assert!(corrupt(world.space.mkdir(REQUEST, ROOT, b"new", 0o755).unwrap_err()));
}

#[test]
fn sync_reaches_the_object() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.space.sync(file, Durability::All).unwrap();
    world.space.sync(ROOT, Durability::Data).unwrap();
    assert_eq!(world.cache.synced(), [file, ROOT]);
    world.space.sync_all().unwrap();
}

#[test]
fn allocation_fills_holes_and_leaves_data() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 3 * PAGE, &[3; 2 * PAGE as usize]);
    world.write(file, 9 * PAGE, &[9; 10]);
    let before = world.read_all(file);
    let allocate = |offset, length, mode| world.space.allocate(REQUEST, file, offset, length, mode, false).unwrap();
    let stored = |first, count| {
        let views = world.cache.read(file, first, count).unwrap();
        views.iter().filter(|view| matches!(view, holdfast_object::PageView::Data(_))).count()
    };
    allocate(PAGE + 5, 11 * PAGE, SpaceMode::Allocate { keep_size: true });
    assert_eq!(world.read_all(file), before, "what is there stays, and so does the size");
    assert_eq!((stored(0, 1), stored(1, 12), stored(13, 10)), (0, 12, 0));
    allocate(0, 20 * PAGE - 7, SpaceMode::Allocate { keep_size: false });
    assert_eq!((stored(0, 20), world.attributes(file).size), (20, 20 * PAGE - 7));
    // A range that is zeroed has its room, its ragged ends as well.
    allocate(0, 20 * PAGE, SpaceMode::Punch);
    assert_eq!(stored(0, 20), 0);
    world.write(file, 2 * PAGE, &[7; 4 * PAGE as usize]);
    allocate(2 * PAGE + 100, 5 * PAGE, SpaceMode::Zero { keep_size: true });
    assert_eq!((stored(0, 2), stored(2, 6), stored(8, 10)), (0, 6, 0));
    let mut expected = vec![0; 20 * PAGE as usize - 7];
    expected[2 * PAGE as usize..][..100].fill(7);
    assert_eq!(world.read_all(file), expected);
    allocate(4 * PAGE + 10, 20, SpaceMode::Zero { keep_size: true });
    allocate(30 * PAGE + 10, 20, SpaceMode::Zero { keep_size: false });
    expected.resize(30 * PAGE as usize + 30, 0);
    assert_eq!((world.read_all(file), stored(30, 1)), (expected, 1));
}

#[test]
fn copies_that_are_not_aligned_share_behind_the_next_page() {
    let world = World::new();
    let (source, target) = (world.file(ROOT, "source"), world.file(ROOT, "target"));
    let bytes: Vec<u8> = (0..50_000u32).map(|number| (number / 7) as u8).collect();
    world.write(source, 0, &bytes);
    let (mut done, mut calls) = (0, 0);
    let frames = world.cache.arena().free_frames();
    while done < 40_000 {
        let from = Position { id: source, offset: 1000 + done };
        let to = Position { id: target, offset: 3 * PAGE + 1000 + done };
        done += world.space.copy_range(REQUEST, from, to, 40_000 - done, false).unwrap();
        calls += 1;
    }
    assert_eq!((done, calls), (40_000, 3), "to the boundary, whole pages, the rest");
    assert_eq!(frames - world.cache.arena().free_frames(), 2, "only the ends are copies");
    assert_eq!(world.space.read(target, 3 * PAGE + 1000, 50_000).unwrap().to_vec(), bytes[1000..41_000]);
}

#[test]
fn a_quiet_read_leaves_the_time_of_access() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, b"bytes");
    let before = world.attributes(file).atime;
    assert_eq!(world.space.read_quietly(file, 0, 5, true).unwrap().to_vec(), b"bytes");
    assert_eq!(world.attributes(file).atime, before);
    world.space.read_quietly(file, 0, 5, false).unwrap();
    assert!(world.attributes(file).atime > before);
}
