//! Comparing two states of which one is damaged, or forged, or has used numbers again. (What sound ones say is compared with a model in the
//! lab.)

use crate::support::{ROOT, World, device_fault};
use holdfast_naming::{Error, PathChange, RenameMode, Request};
use holdfast_object::{Attributes, Kind, ObjectCache, ObjectId, SnapshotId};
use std::sync::Arc;

const REQUEST: &Request = &Request::ROOT;
const OLD: SnapshotId = SnapshotId(1);
const NEW: SnapshotId = SnapshotId(2);

/// A world whose snapshots can be compared.
fn world() -> World {
    let World { cache, clock, space } = World::new();
    let space = space.with_snapshots(Arc::clone(&cache) as _);
    World { cache, clock, space }
}

/// `/top/below/link`, and `/file`, which changes between two snapshots and lists a wrong name, so that it is looked for everywhere.
struct Searched {
    world: World,
    top: ObjectId,
    below: ObjectId,
    file: ObjectId,
}

fn searched() -> Searched {
    let world = world();
    let top = world.directory(ROOT, "top");
    let below = world.directory(top, "below");
    world.space.symlink(REQUEST, below, b"link", b"target").unwrap();
    let file = world.file(ROOT, "file");
    world.cache.keep(OLD);
    world.write(file, 0, b"changed");
    Searched { world, top, below, file }
}

impl Searched {
    /// Makes the link's entry in `below` name a directory.
    fn forge(&self, names: ObjectId) {
        self.world.cache.forge(self.below, 0, |page| {
            assert_eq!(page[96], Kind::Symlink as u8);
            page[88..96].copy_from_slice(&names.0.to_le_bytes());
            page[96] = Kind::Directory as u8;
        });
    }

    /// Keeps what there is now, with another list of the file's names, and compares.
    fn compare(&self, change: impl FnOnce(&mut Attributes)) -> Result<Vec<PathChange>, Error> {
        self.world.cache.meddle(self.file, change);
        self.world.cache.keep(NEW);
        self.world.space.diff(OLD, NEW)
    }
}

#[test]
fn what_has_a_wrong_list_of_names_is_searched_for() {
    let searched = searched();
    let found = searched.compare(|attributes| attributes.name_key += 1).unwrap();
    assert_eq!(found, [PathChange::Modified(b"file".to_vec())]);
}

#[test]
fn a_circle_of_directories_is_an_error_that_names_one() {
    for of in [|it: &Searched| it.top, |it: &Searched| it.below, |_: &Searched| ROOT] {
        let searched = searched();
        let again = of(&searched);
        searched.forge(again);
        // It is nowhere, so everything would be gone through.
        let nowhere = |attributes: &mut Attributes| (attributes.parent, attributes.name_key) = (ObjectId(999), 7);
        searched.world.space.rename(REQUEST, ROOT, b"file", searched.top, b"file", RenameMode::Replace).unwrap();
        searched.world.cache.forge(searched.top, 0, |page| {
            // Its entry names something else than the file.
            let at = page.windows(8).position(|bytes| bytes == searched.file.0.to_le_bytes()).unwrap();
            page[at..at + 8].copy_from_slice(&998u64.to_le_bytes());
        });
        let got = searched.compare(nowhere);
        let expected = again.in_snapshot(NEW);
        assert!(matches!(&got, Err(Error::CorruptTree { object, .. }) if *object == expected), "{again}: {got:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_not_taken_for_a_wrong_list() {
    let searched = searched();
    let top = searched.top;
    searched.world.space.link(REQUEST, searched.file, top, b"listed").unwrap();
    searched.world.cache.keep(OLD);
    searched.world.write(searched.file, 0, b"changed again");
    searched.world.cache.fail_attributes(top.in_snapshot(NEW), device_fault());
    // Its name in the root would be found by looking everywhere.
    let found = searched.compare(|attributes| {
        let listed = attributes.other_names.remove(0);
        (attributes.parent, attributes.name_key) = (listed.directory, listed.key);
    });
    assert_eq!(found, Err(Error::Object(device_fault())));
}

#[test]
fn a_list_that_names_what_is_gone_or_no_directory_is_wrong() {
    for parent in [|_: &Searched| ObjectId(999), |searched: &Searched| searched.file] {
        let searched = searched();
        let parent = parent(&searched);
        let found = searched.compare(|attributes| attributes.parent = parent).unwrap();
        assert_eq!(found, [PathChange::Modified(b"file".to_vec())], "{parent}");
    }
    // And of a directory above it.
    let searched = searched();
    let below = searched.below;
    let file = searched.world.file(below, "deep");
    searched.world.cache.keep(OLD);
    searched.world.write(file, 0, b"changed");
    searched.world.cache.meddle(below, |attributes| attributes.parent = ObjectId(999));
    let found = searched.compare(|_| {}).unwrap();
    let nameless = format!("{below}/deep").into_bytes();
    assert!(found.contains(&PathChange::Modified(nameless)), "{found:?}");
}

#[test]
fn a_file_in_another_directory_of_the_same_number_is_told() {
    let world = world();
    let (old, aside) = (world.directory(ROOT, "old"), world.directory(ROOT, "aside"));
    let file = world.file(old, "file");
    world.cache.keep(OLD);
    world.space.rename(REQUEST, old, b"file", aside, b"file", RenameMode::Replace).unwrap();
    world.space.rmdir(REQUEST, ROOT, b"old").unwrap();
    world.space.forget(old, 1).unwrap();
    world.cache.next_id(old);
    assert_eq!(world.directory(ROOT, "new"), old, "another directory has its number");
    world.space.rename(REQUEST, aside, b"file", old, b"file", RenameMode::Replace).unwrap();
    world.cache.keep(NEW);
    let changes = world.space.diff(OLD, NEW).unwrap();
    let moved = PathChange::Renamed(b"old/file".to_vec(), b"new/file".to_vec());
    assert!(changes.contains(&moved), "{file}: {changes:?}");
    assert!(changes.contains(&PathChange::Removed(b"old".to_vec())), "{changes:?}");
    assert!(changes.contains(&PathChange::Added(b"new".to_vec())), "{changes:?}");
    assert!(world.cache.attributes(file).is_ok());
}
