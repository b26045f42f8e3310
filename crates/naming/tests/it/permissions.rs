//! Permissions where naming enforces them.

use crate::support::{READ_WRITE, ROOT, World, user};
use holdfast_naming::{Access, Create, Error, ErrorKind, RenameMode, Request, SetAttr, TimeSet, XattrMode};
use holdfast_object::{ObjectId, Timestamp};

const REQUEST: &Request = &Request::ROOT;

fn chmod(world: &World, id: ObjectId, mode: u16) {
    world.space.setattr(REQUEST, id, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn directories_are_searched_and_changed_by_permission() {
    let world = World::enforcing();
    let closed = world.directory(ROOT, "closed");
    let file = world.file(closed, "file");
    let somebody = user(10, 10, &[]);
    chmod(&world, closed, 0o744);
    assert_eq!(kind(world.space.lookup(&somebody, closed, b"file")), ErrorKind::Access);
    assert!(world.space.opendir(&somebody, closed).is_ok());
    chmod(&world, closed, 0o711);
    assert_eq!(kind(world.space.opendir(&somebody, closed)), ErrorKind::Access);
    assert!(world.space.lookup(&somebody, closed, b"file").is_ok());
    assert_eq!(kind(world.space.mkdir(&somebody, closed, b"new", 0o755)), ErrorKind::Access);
    assert_eq!(kind(world.space.unlink(&somebody, closed, b"file")), ErrorKind::Access);
    assert_eq!(kind(world.space.link(&somebody, file, closed, b"new")), ErrorKind::Access);
    assert_eq!(
        kind(world.space.rename(&somebody, closed, b"file", closed, b"new", RenameMode::Replace)),
        ErrorKind::Access
    );
    assert_eq!(kind(world.space.mkdir(&somebody, closed, b"file", 0o755)), ErrorKind::Exists);
    // Nobody is asked where the kernel keeps the rules.
    let trusting = World::new();
    let closed = trusting.directory(ROOT, "closed");
    chmod(&trusting, closed, 0);
    assert!(trusting.space.mkdir(&somebody, closed, b"new", 0o755).is_ok());
    assert_eq!(kind(trusting.space.access(&somebody, closed, Access::READ)), ErrorKind::Access);
}

#[test]
fn sticky_directories_protect_entries() {
    let world = World::enforcing();
    let shared = world.directory(ROOT, "shared");
    chmod(&world, shared, 0o1777);
    let (owner, other) = (user(10, 10, &[]), user(11, 11, &[]));
    let made = world.space.create(&owner, shared, b"file", &READ_WRITE).unwrap().found.id;
    assert_eq!(world.attributes(made).uid, 10);
    assert_eq!(kind(world.space.unlink(&other, shared, b"file")), ErrorKind::Permission);
    world.space.create(&other, shared, b"others", &READ_WRITE).unwrap();
    let rename = |who| world.space.rename(who, shared, b"others", shared, b"file", RenameMode::Replace);
    assert_eq!(kind(rename(&other)), ErrorKind::Permission, "would replace another's file");
    world.space.unlink(&owner, shared, b"file").unwrap();
    rename(&other).unwrap();
}

#[test]
fn files_are_opened_by_permission() {
    let world = World::enforcing();
    let file = world.file(ROOT, "file");
    chmod(&world, file, 0o640);
    world.space.setattr(REQUEST, file, &SetAttr { uid: Some(10), gid: Some(20), ..SetAttr::default() }).unwrap();
    let both = Access::READ.and(Access::WRITE);
    let cases = [
        (user(10, 1, &[]), both, true),
        (user(11, 20, &[]), Access::READ, true),
        (user(11, 1, &[3, 20]), Access::READ, true),
        (user(11, 20, &[]), both, false),
        (user(11, 1, &[]), Access::READ, false),
    ];
    for (who, wanted, allowed) in cases {
        let opened = world.space.open(&who, file, wanted, false);
        assert_eq!(opened.is_ok(), allowed, "{who:?} {wanted:?}");
        let created = world.space.create(&who, ROOT, b"file", &Create { wanted, ..READ_WRITE });
        assert_eq!(created.is_ok(), allowed, "an open by name: {who:?} {wanted:?}");
    }
    let directory = world.directory(ROOT, "directory");
    chmod(&world, directory, 0o777);
    let made = world.space.create(
        &user(10, 10, &[]),
        directory,
        b"sealed",
        &Create { mode: 0o400, wanted: both, ..READ_WRITE },
    );
    assert!(made.is_ok(), "the mode of a new file is for the next who opens it");
}

#[test]
fn attributes_belong_to_the_owner() {
    let world = World::enforcing();
    let file = world.file(ROOT, "file");
    let owner = user(10, 20, &[30]);
    let other = user(11, 20, &[]);
    world.space.setattr(REQUEST, file, &SetAttr { uid: Some(10), gid: Some(20), ..SetAttr::default() }).unwrap();
    chmod(&world, file, 0o664);
    let set = |who, set: SetAttr| world.space.setattr(who, file, &set);
    let default = SetAttr::default;
    assert_eq!(kind(set(&other, SetAttr { mode: Some(0o777), ..default() })), ErrorKind::Permission);
    assert_eq!(kind(set(&owner, SetAttr { uid: Some(11), ..default() })), ErrorKind::Permission);
    assert_eq!(kind(set(&owner, SetAttr { gid: Some(31), ..default() })), ErrorKind::Permission);
    set(&owner, SetAttr { gid: Some(30), ..default() }).unwrap();
    set(&owner, SetAttr { gid: Some(20), ..default() }).unwrap();
    let now = Some(TimeSet::Now);
    let then = Some(TimeSet::At(Timestamp::default()));
    set(&other, SetAttr { atime: now, mtime: now, ..default() }).unwrap();
    assert_eq!(kind(set(&other, SetAttr { atime: then, mtime: then, ..default() })), ErrorKind::Permission);
    assert_eq!(kind(set(&other, SetAttr { atime: now, ..default() })), ErrorKind::Permission);
    set(&owner, SetAttr { atime: then, mtime: then, ..default() }).unwrap();
    set(&other, SetAttr { size: Some(0), ..default() }).unwrap();
    chmod(&world, file, 0o644);
    assert_eq!(kind(set(&other, SetAttr { size: Some(0), ..default() })), ErrorKind::Access);
    set(&other, SetAttr { size: Some(0), opened: true, ..default() }).unwrap();
    // The group is not the owner's, so setgid does not stay.
    world.space.setattr(REQUEST, file, &SetAttr { gid: Some(99), ..default() }).unwrap();
    assert_eq!(set(&owner, SetAttr { mode: Some(0o2755), ..default() }).unwrap().mode, 0o755);
}

#[test]
fn extended_attributes_have_classes() {
    let world = World::enforcing();
    let file = world.file(ROOT, "file");
    chmod(&world, file, 0o604);
    let somebody = user(10, 10, &[]);
    let set = |who, name: &[u8]| world.space.setxattr(who, file, name, b"value", XattrMode::Set);
    for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
        set(REQUEST, name).unwrap();
    }
    assert_eq!(kind(set(&somebody, b"user.a")), ErrorKind::Access);
    assert_eq!(kind(set(&somebody, b"trusted.a")), ErrorKind::Permission);
    assert_eq!(kind(set(&somebody, b"security.a")), ErrorKind::Permission);
    let get = |name: &[u8]| world.space.getxattr(&somebody, file, name);
    assert_eq!(get(b"user.a").unwrap(), b"value");
    assert_eq!(kind(get(b"trusted.a")), ErrorKind::NoAttribute);
    assert_eq!(get(b"security.a").unwrap(), b"value");
    assert_eq!(world.space.listxattr(&somebody, file).unwrap().len(), 2);
    assert_eq!(world.space.listxattr(REQUEST, file).unwrap().len(), 3);
    chmod(&world, file, 0o600);
    assert_eq!(kind(get(b"user.a")), ErrorKind::Access);
    let shared = world.directory(ROOT, "shared");
    chmod(&world, shared, 0o1777);
    let error = world.space.setxattr(&somebody, shared, b"user.a", b"", XattrMode::Set).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "a sticky directory's attributes are its owner's");
}
