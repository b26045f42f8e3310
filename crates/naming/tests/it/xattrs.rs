//! Extended attributes.

use crate::support::{ROOT, World};
use holdfast_naming::{Error, ErrorKind, Request, XATTR_LIST_MAX, XATTR_VALUE_MAX, XattrMode};
use holdfast_object::{Class, Kind, ObjectId};

const REQUEST: &Request = &Request::ROOT;

fn holders(world: &World) -> Vec<ObjectId> {
    let objects = world.cache.objects().into_iter();
    objects.filter(|(_, attributes)| attributes.kind == Kind::Xattr).map(|(id, _)| id).collect()
}

#[test]
fn are_set_listed_and_removed() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let set = |name: &str, value: &[u8], mode| world.space.setxattr(REQUEST, file, name.as_bytes(), value, mode);
    let get = |name: &str| world.space.getxattr(REQUEST, file, name.as_bytes());
    assert!(world.space.listxattr(REQUEST, file).unwrap().is_empty());
    assert_eq!(set("user.a", b"1", XattrMode::Replace).unwrap_err().kind(), ErrorKind::NoAttribute);
    let ctime = world.attributes(file).ctime;
    set("user.a", b"1", XattrMode::Create).unwrap();
    assert!(world.attributes(file).ctime > ctime);
    assert_eq!(set("user.a", b"2", XattrMode::Create).unwrap_err().kind(), ErrorKind::Exists);
    set("user.a", b"", XattrMode::Replace).unwrap();
    set("user.b", &[9; 10_000], XattrMode::Set).unwrap();
    assert_eq!((get("user.a").unwrap(), get("user.b").unwrap()), (vec![], vec![9; 10_000]));
    assert_eq!(world.space.listxattr(REQUEST, file).unwrap(), [b"user.a", b"user.b"]);
    assert_eq!(holders(&world).len(), 1);
    world.assert_clean();
    world.space.removexattr(REQUEST, file, b"user.b").unwrap();
    assert_eq!(get("user.b").unwrap_err().kind(), ErrorKind::NoAttribute);
    let error = world.space.removexattr(REQUEST, file, b"user.b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoAttribute);
    world.space.removexattr(REQUEST, file, b"user.a").unwrap();
    assert!(holders(&world).is_empty(), "the last one takes their object with it");
    world.assert_clean();
}

#[test]
fn follow_the_class_of_their_file() {
    let world = World::new();
    let (file, directory) = (world.file(ROOT, "file"), world.directory(ROOT, "directory"));
    for (id, class) in [(file, Class::Own), (directory, Class::Names)] {
        world.space.setxattr(REQUEST, id, b"user.a", b"1", XattrMode::Set).unwrap();
        let holder = world.attributes(id).xattr;
        let objects = world.cache.objects();
        let (_, attributes) = objects.iter().find(|(id, _)| *id == holder).unwrap();
        assert_eq!((attributes.class, attributes.parent, attributes.nlink), (class, id, 1));
        assert_eq!(world.space.getattr(holder), Err(Error::Stale(holder)), "nobody names it");
    }
}

#[test]
fn have_limits() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let set = |name: &[u8], value: &[u8]| world.space.setxattr(REQUEST, file, name, value, XattrMode::Set);
    set(b"user.large", &[1; XATTR_VALUE_MAX]).unwrap();
    assert_eq!(set(b"user.larger", &[1; XATTR_VALUE_MAX + 1]).unwrap_err().kind(), ErrorKind::AttributeTooBig);
    assert_eq!(set(&[b"user.".as_slice(), &[b'x'; 251]].concat(), b"").unwrap_err().kind(), ErrorKind::Range);
    assert_eq!(set(b"user.", b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
    for name in [&b"system.other"[..], b"other.a", b"plain", b""] {
        assert_eq!(set(name, b"").unwrap_err().kind(), ErrorKind::NotSupported, "{name:?}");
    }
    let mut list = "user.large".len() + 1;
    for number in 0.. {
        let name = [b"user.".as_slice(), &[b'x'; 240], format!("{number:05}").as_bytes()].concat();
        match set(&name, b"") {
            Ok(()) => list += name.len() + 1,
            Err(error) => {
                assert_eq!(error, Error::AttributesFull(file));
                assert!(list + name.len() + 1 > XATTR_LIST_MAX);
                break;
            }
        }
    }
    assert_eq!(world.space.getxattr(REQUEST, file, b"user.large").unwrap(), [1; XATTR_VALUE_MAX]);
    world.assert_clean();
}

#[test]
fn all_together_have_a_limit() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let set = |number: u8| {
        let name = [b"user.value".as_slice(), &[b'a' + number]].concat();
        world.space.setxattr(REQUEST, file, &name, &[number; XATTR_VALUE_MAX], XattrMode::Set)
    };
    for number in 0..15 {
        set(number).unwrap();
    }
    assert_eq!(set(15), Err(Error::AttributesFull(file)));
    world.assert_clean();
}

#[test]
fn user_attributes_are_for_files_and_directories() {
    let world = World::new();
    let link = world.space.symlink(REQUEST, ROOT, b"link", b"target").unwrap().id;
    let set = |name: &[u8]| world.space.setxattr(REQUEST, link, name, b"1", XattrMode::Set);
    assert_eq!(set(b"user.a").unwrap_err().kind(), ErrorKind::Permission);
    set(b"trusted.a").unwrap();
    assert_eq!(world.space.getxattr(REQUEST, link, b"user.a").unwrap_err().kind(), ErrorKind::NoAttribute);
    world.assert_clean();
}

#[test]
fn corrupt_ones_are_errors() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.space.setxattr(REQUEST, file, b"user.a", b"1", XattrMode::Set).unwrap();
    let holder = world.attributes(file).xattr;
    world.cache.forge(holder, 0, |page| page[16] = 200);
    let error = world.space.getxattr(REQUEST, file, b"user.a").unwrap_err();
    assert!(matches!(error, Error::CorruptAttributes { object, .. } if object == holder), "{error}");
    world.cache.meddle(holder, |attributes| attributes.parent = ROOT);
    let error = world.space.listxattr(REQUEST, file).unwrap_err();
    assert!(matches!(error, Error::CorruptTree { .. }), "{error}");
}
