//! Objects without a name: they stay while somebody holds them.

use crate::support::{ROOT, World};
use holdfast_naming::{Access, Error, ErrorKind, Namespace, Options, RenameMode, Request, XattrMode};
use holdfast_object::ObjectId;

const REQUEST: &Request = &Request::ROOT;

fn exists(world: &World, id: ObjectId) -> bool {
    match world.space.getattr(id) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::Stale(id));
            false
        }
    }
}

/// A file with contents and extended attributes, open, without a name.
fn unlinked(world: &World) -> ObjectId {
    let file = world.file(ROOT, "file");
    world.write(file, 0, b"contents");
    world.space.setxattr(REQUEST, file, b"user.a", b"1", XattrMode::Set).unwrap();
    world.space.open(REQUEST, file, Access::READ, false).unwrap();
    world.space.unlink(REQUEST, ROOT, b"file").unwrap();
    file
}

#[test]
fn an_open_file_outlives_its_name() {
    let world = World::new();
    let file = unlinked(&world);
    world.space.forget(file, 1).unwrap();
    assert_eq!(world.attributes(file).nlink, 0);
    world.write(file, 8, b" and more");
    assert_eq!(world.read_all(file), b"contents and more");
    assert_eq!(world.check().orphans, [file]);
    world.space.release(file).unwrap();
    assert!(!exists(&world, file));
    assert_eq!(world.cache.objects().len(), 1, "its extended attributes are gone too");
    world.assert_clean();
}

#[test]
fn a_handle_finds_what_has_a_name_and_nothing_else() {
    let world = World::new();
    let (file, directory) = (world.file(ROOT, "file"), world.directory(ROOT, "directory"));
    for id in [file, directory, ROOT] {
        assert_eq!(world.space.lookup(REQUEST, id, b".").unwrap().id, id);
    }
    assert_eq!(world.space.lookup(REQUEST, directory, b"..").unwrap().id, ROOT);
    world.space.open(REQUEST, file, Access::READ, false).unwrap();
    world.space.unlink(REQUEST, ROOT, b"file").unwrap();
    world.space.rmdir(REQUEST, ROOT, b"directory").unwrap();
    assert!(exists(&world, file), "it is open");
    for id in [file, directory] {
        assert_eq!(world.space.lookup(REQUEST, id, b".").unwrap_err(), Error::Stale(id));
    }
}

#[test]
fn a_remembered_file_outlives_its_name() {
    let world = World::new();
    let file = unlinked(&world);
    world.space.release(file).unwrap();
    assert!(exists(&world, file));
    world.space.forget(file, 5).unwrap();
    assert!(!exists(&world, file));
}

#[test]
fn what_nobody_holds_goes_with_its_name() {
    let world = World::new();
    let (file, directory) = (world.file(ROOT, "file"), world.directory(ROOT, "directory"));
    world.space.forget(file, 1).unwrap();
    world.space.forget(directory, 1).unwrap();
    world.space.unlink(REQUEST, ROOT, b"file").unwrap();
    world.space.rmdir(REQUEST, ROOT, b"directory").unwrap();
    assert!(!exists(&world, file) && !exists(&world, directory));
    assert_eq!(world.cache.objects().len(), 1);
    world.assert_clean();
}

#[test]
fn orphans_are_reclaimed_at_the_start() {
    let world = World::new();
    let file = unlinked(&world);
    let kept = world.file(ROOT, "kept");
    world.cache.end_sessions();
    assert_eq!(world.space.reclaim_orphans(), Ok(1));
    assert!(!exists(&world, file) && exists(&world, kept));
    assert_eq!(world.space.reclaim_orphans(), Ok(0));
    world.assert_clean();
}

#[test]
fn a_damaged_orphan_keeps_no_other_one() {
    let world = World::new();
    let damaged = unlinked(&world);
    let other = world.file(ROOT, "other");
    world.space.unlink(REQUEST, ROOT, b"other").unwrap();
    world.cache.end_sessions();
    world.cache.fail_attributes(damaged, holdfast_object::Error::corrupt(Default::default(), "record", "one", "none"));
    let error = world.space.reclaim_orphans().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!exists(&world, other), "it comes behind the damaged one");
}

#[test]
fn what_has_no_name_gets_none() {
    let world = World::new();
    let file = unlinked(&world);
    let error = world.space.link(REQUEST, file, ROOT, b"again").unwrap_err();
    assert_eq!(error.kind(), holdfast_naming::ErrorKind::NotFound);
}

#[test]
fn a_replaced_file_outlives_its_name_too() {
    let world = World::new();
    let (old, new) = (world.file(ROOT, "old"), world.file(ROOT, "new"));
    world.space.forget(new, 1).unwrap();
    world.space.rename(REQUEST, ROOT, b"new", ROOT, b"old", RenameMode::Replace).unwrap();
    assert!(exists(&world, old));
    world.space.forget(old, 1).unwrap();
    assert!(!exists(&world, old));
}

/// The last holder lets go between the look at the holds and the end of the name.
#[test]
fn a_holder_that_lets_go_meanwhile_leaves_nothing_behind() {
    for rename in [false, true] {
        let world = World::new();
        let (file, other) = (world.file(ROOT, "file"), world.file(ROOT, "other"));
        let holder = Namespace::new(world.cache.clone(), world.clock.clone(), Options::default());
        world.cache.before_submit(move || holder.forget(file, 1).unwrap());
        if rename {
            world.space.rename(REQUEST, ROOT, b"other", ROOT, b"file", RenameMode::Replace).unwrap();
        } else {
            world.space.unlink(REQUEST, ROOT, b"file").unwrap();
        }
        assert!(!exists(&world, file) && exists(&world, other));
        world.assert_clean();
        assert!(world.check().orphans.is_empty());
    }
}

#[test]
fn a_temporary_file_gets_a_name_or_goes() {
    let world = World::new();
    let directory = world.directory(ROOT, "directory");
    for link in [false, true] {
        let file = world.space.tmpfile(REQUEST, directory, 0o600, false).unwrap().id;
        world.write(file, 0, b"contents");
        assert_eq!((world.attributes(file).nlink, world.check().orphans), (0, vec![file]));
        if link {
            world.space.link(REQUEST, file, directory, b"name").unwrap();
            world.space.link(REQUEST, file, ROOT, b"second").unwrap();
            assert_eq!((world.attributes(file).nlink, world.attributes(file).parent), (2, directory));
            world.space.forget(file, 2).unwrap();
        }
        world.space.forget(file, 1).unwrap();
        world.space.release(file).unwrap();
        assert_eq!(exists(&world, file), link);
        world.assert_clean();
    }
}

#[test]
fn a_name_is_given_only_to_a_file_that_never_had_one() {
    let world = World::new();
    let gone = unlinked(&world);
    let nameless = world.space.tmpfile(REQUEST, ROOT, 0o600, true).unwrap().id;
    let again = world.space.tmpfile(REQUEST, ROOT, 0o600, false).unwrap().id;
    world.space.link(REQUEST, again, ROOT, b"again").unwrap();
    world.space.unlink(REQUEST, ROOT, b"again").unwrap();
    for id in [gone, nameless, again] {
        let error = world.space.link(REQUEST, id, ROOT, b"name").unwrap_err();
        assert_eq!(error.kind(), holdfast_naming::ErrorKind::NotFound);
    }
    world.assert_clean();
}
