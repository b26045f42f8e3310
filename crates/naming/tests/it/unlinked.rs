//! Objects without a name: they stay while somebody holds them.

use crate::support::{ROOT, World};
use holdfast_naming::{Access, Error, Namespace, Options, RenameMode, Request, XattrMode};
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
