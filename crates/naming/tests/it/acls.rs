//! Access control lists, and what writes and changes of the owner take away.

use crate::support::{READ_WRITE, ROOT, World, user};
use holdfast_naming::{Access, Error, ErrorKind, NewNode, Request, SetAttr, SpaceMode, XattrMode};
use holdfast_object::{Attributes, ObjectId};

const REQUEST: &Request = &Request::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// A list as Linux hands it over: tag, permissions, id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// User 10 may do more than the owning group, within the mask.
fn sample(mask: u16) -> Vec<u8> {
    let none = u32::MAX;
    list(&[(OWNER, 7, none), (USER, 7, 10), (GROUP, 0, none), (MASK, mask, none), (OTHERS, 1, none)])
}

fn set(world: &World, id: ObjectId, name: &[u8], value: &[u8]) {
    world.space.setxattr(REQUEST, id, name, value, XattrMode::Set).unwrap();
}

fn chmod(world: &World, id: ObjectId, mode: u16) -> Attributes {
    world.space.setattr(REQUEST, id, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap()
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn lists_and_modes_follow_each_other() {
    let world = World::enforcing();
    let file = world.file(ROOT, "file");
    let get = || world.space.getxattr(REQUEST, file, ACCESS);
    set(&world, file, ACCESS, &sample(6));
    assert_eq!(world.attributes(file).mode, 0o761);
    assert_eq!(get().unwrap(), sample(6));
    assert_eq!(world.space.listxattr(REQUEST, file).unwrap(), [ACCESS]);
    let may = |wanted| world.space.access(&user(10, 99, &[]), file, wanted).is_ok();
    assert!(may(Access::READ.and(Access::WRITE)) && !may(Access::SEARCH), "named, masked");
    assert!(world.space.open(&user(10, 99, &[]), file, Access::WRITE, false).is_ok());
    assert_eq!(kind(world.space.open(&user(11, 99, &[]), file, Access::WRITE, false)), ErrorKind::Access);
    assert_eq!(chmod(&world, file, 0o741).mode, 0o741);
    assert_eq!(get().unwrap(), sample(4), "a chmod changes the mask");
    assert!(may(Access::READ) && !may(Access::WRITE));
    // A list that says no more than a mode is the mode.
    let none = u32::MAX;
    set(&world, file, ACCESS, &list(&[(OWNER, 6, none), (GROUP, 4, none), (OTHERS, 0, none)]));
    assert_eq!((world.attributes(file).mode, kind(get())), (0o640, ErrorKind::NoAttribute));
    set(&world, file, ACCESS, &sample(7));
    world.space.removexattr(REQUEST, file, ACCESS).unwrap();
    assert_eq!((world.attributes(file).mode, kind(get())), (0o771, ErrorKind::NoAttribute));
    world.assert_clean();
}

#[test]
fn only_the_owner_sets_lists_and_only_on_what_can_have_them() {
    let world = World::enforcing();
    let (file, directory) = (world.file(ROOT, "file"), world.directory(ROOT, "directory"));
    let link = world.space.symlink(REQUEST, ROOT, b"link", b"target").unwrap().id;
    let try_set = |who: &Request, id, name, value: &[u8]| world.space.setxattr(who, id, name, value, XattrMode::Set);
    assert_eq!(kind(try_set(&user(10, 10, &[]), file, ACCESS, &sample(7))), ErrorKind::Permission);
    assert_eq!(kind(try_set(REQUEST, link, ACCESS, &sample(7))), ErrorKind::NotSupported);
    assert_eq!(kind(try_set(REQUEST, file, DEFAULT, &sample(7))), ErrorKind::Access);
    assert_eq!(kind(try_set(REQUEST, file, ACCESS, &sample(7)[..12])), ErrorKind::InvalidArgument);
    assert_eq!(kind(try_set(REQUEST, file, ACCESS, &[2; 5000])), ErrorKind::AttributeTooBig);
    try_set(REQUEST, directory, DEFAULT, &sample(7)).unwrap();
    assert_eq!(kind(try_set(REQUEST, file, b"system.other", b"")), ErrorKind::NotSupported);
}

#[test]
fn a_list_takes_setgid_from_who_is_not_in_the_group() {
    let world = World::enforcing();
    let file = world.space.create(&user(10, 10, &[]), ROOT, b"file", &READ_WRITE);
    assert_eq!(kind(file), ErrorKind::Access);
    chmod(&world, ROOT, 0o777);
    let file = world.space.create(&user(10, 10, &[]), ROOT, b"file", &READ_WRITE).unwrap().found.id;
    for (group, mode) in [(20, 0o771), (10, 0o2771)] {
        let own = SetAttr { gid: Some(group), ..SetAttr::default() };
        world.space.setattr(REQUEST, file, &own).unwrap();
        chmod(&world, file, 0o2755);
        world.space.setxattr(&user(10, 10, &[]), file, ACCESS, &sample(7), XattrMode::Set).unwrap();
        assert_eq!(world.attributes(file).mode, mode, "group {group}");
    }
    // The kernel knows better than a list of groups that is not there.
    let trusting = World::new();
    let file = trusting.file(ROOT, "file");
    for (clear, mode) in [(false, 0o2771), (true, 0o771)] {
        chmod(&trusting, file, 0o2755);
        trusting.space.set_acl(&user(10, 10, &[]), file, ACCESS, &sample(7), clear).unwrap();
        assert_eq!(trusting.attributes(file).mode, mode);
    }
}

#[test]
fn new_objects_start_with_the_default_list_of_their_directory() {
    let world = World::new();
    let parent = world.directory(ROOT, "parent");
    set(&world, parent, DEFAULT, &sample(6));
    let masked = Request { umask: 0o077, ..Request::ROOT };
    let file = world.space.mknod(&masked, parent, b"file", NewNode::Regular, 0o666).unwrap();
    assert_eq!(file.attributes.mode, 0o660, "the list takes the place of the umask");
    let mut expected = sample(6);
    expected[4 + 2] = 6;
    expected[4 + 4 * 8 + 2] = 0;
    assert_eq!(world.space.getxattr(REQUEST, file.id, ACCESS).unwrap(), expected);
    assert_eq!(kind(world.space.getxattr(REQUEST, file.id, DEFAULT)), ErrorKind::NoAttribute);
    let temporary = world.space.tmpfile(&masked, parent, 0o600, false).unwrap();
    assert_eq!(temporary.attributes.mode, 0o600);
    assert!(world.space.getxattr(REQUEST, temporary.id, ACCESS).is_ok());

    let below = world.space.mkdir(&masked, parent, b"below", 0o755).unwrap();
    assert_eq!(below.attributes.mode, 0o741);
    for (name, value) in [(DEFAULT, sample(6)), (ACCESS, sample(4))] {
        assert_eq!(world.space.getxattr(REQUEST, below.id, name).unwrap(), value);
    }
    let link = world.space.symlink(&masked, parent, b"link", b"target").unwrap();
    assert_eq!((link.attributes.mode, link.attributes.xattr), (0o777, ObjectId::NONE));
    let plain = world.space.mkdir(&masked, ROOT, b"plain", 0o755).unwrap();
    assert_eq!(plain.attributes.mode, 0o700, "without a list the umask counts");
    // A default list that says no more than a mode leaves no list behind.
    let none = u32::MAX;
    set(&world, parent, DEFAULT, &list(&[(OWNER, 7, none), (GROUP, 5, none), (OTHERS, 0, none)]));
    let simple = world.space.mknod(&masked, parent, b"simple", NewNode::Fifo, 0o666).unwrap();
    assert_eq!((simple.attributes.mode, simple.attributes.xattr), (0o640, ObjectId::NONE));
    world.assert_clean();
}

#[test]
fn whoever_changes_a_file_takes_its_capabilities() {
    const CAPABILITIES: &[u8] = b"security.capability";
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, &[1; 5000]);
    let other = world.file(ROOT, "other");
    let position = |id| holdfast_naming::Position { id, offset: 0 };
    let set_size = SetAttr { size: Some(10), ..SetAttr::default() };
    let set_owner = SetAttr { gid: Some(1), ..SetAttr::default() };
    type Change<'a> = (&'static str, Box<dyn Fn() + 'a>);
    let changes: [Change<'_>; 5] = [
        ("write", Box::new(|| world.write(file, 3, b"x"))),
        ("truncation", Box::new(|| assert!(world.space.setattr(REQUEST, file, &set_size).is_ok()))),
        ("owner", Box::new(|| assert!(world.space.setattr(REQUEST, file, &set_owner).is_ok()))),
        ("hole", Box::new(|| world.space.allocate(REQUEST, file, 0, 5, SpaceMode::Punch, false).unwrap())),
        (
            "copy",
            Box::new(|| {
                world.write(other, 0, b"bytes");
                world.space.copy_range(REQUEST, position(other), position(file), 5, false).unwrap();
            }),
        ),
    ];
    for (what, change) in &changes {
        for more in [false, true] {
            set(&world, file, CAPABILITIES, b"all");
            if more {
                set(&world, file, b"user.more", b"1");
            }
            change();
            assert_eq!(kind(world.space.getxattr(REQUEST, file, CAPABILITIES)), ErrorKind::NoAttribute, "{what}");
        }
        world.space.removexattr(REQUEST, file, b"user.more").unwrap();
        world.assert_clean();
    }
    set(&world, file, CAPABILITIES, b"all");
    chmod(&world, file, 0o755);
    assert!(world.space.getxattr(REQUEST, file, CAPABILITIES).is_ok(), "a chmod leaves them");
}
