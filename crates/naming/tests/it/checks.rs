//! The check finds what is planted, and says what.

use crate::support::{ROOT, World};
use holdfast_naming::check::Finding;
use holdfast_naming::{Request, XattrMode};
use holdfast_object::{Class, Kind, ObjectCache, ObjectId, Op, Transaction};

const REQUEST: &Request = &Request::ROOT;

/// `/a/file` with extended attributes, a second name `/second` of it, `/a/b`, and a link.
struct Planted {
    world: World,
    a: ObjectId,
    b: ObjectId,
    file: ObjectId,
    link: ObjectId,
}

fn planted() -> Planted {
    let world = World::new();
    let a = world.directory(ROOT, "a");
    let (b, file) = (world.directory(a, "b"), world.file(a, "file"));
    world.space.link(REQUEST, file, ROOT, b"second").unwrap();
    world.space.setxattr(REQUEST, file, b"user.a", b"1", XattrMode::Set).unwrap();
    let link = world.space.symlink(REQUEST, b, b"link", b"target").unwrap().id;
    let report = world.check();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.objects, report.directories, report.entries), (6, 3, 5));
    Planted { world, a, b, file, link }
}

fn delete(world: &World, id: ObjectId) {
    world.cache.submit(Transaction { ops: vec![Op::Delete { id }], ..Transaction::default() }).unwrap();
}

fn findings(world: &World) -> Vec<Finding> {
    world.check().findings
}

#[test]
fn dangling_entries() {
    let Planted { world, b, link, .. } = planted();
    delete(&world, link);
    assert_eq!(findings(&world), [Finding::Dangling { directory: b, name: b"link"[..].into(), object: link }]);
    let error = world.space.lookup(REQUEST, b, b"link").unwrap_err();
    assert_eq!(error.kind(), holdfast_naming::ErrorKind::Corrupt);
}

#[test]
fn wrong_kinds() {
    let Planted { world, link, .. } = planted();
    world.cache.meddle(link, |attributes| attributes.kind = Kind::Fifo);
    assert!(findings(&world).iter().any(|finding| {
        matches!(finding, Finding::WrongKind { object, said: Kind::Symlink, found: Kind::Fifo, .. } if *object == link)
    }));
}

#[test]
fn wrong_link_counts() {
    let Planted { world, a, file, .. } = planted();
    world.cache.meddle(file, |attributes| attributes.nlink = 3);
    world.cache.meddle(a, |attributes| attributes.nlink = 2);
    let expected = [
        Finding::WrongLinks { object: a, expected: 3, got: 2 },
        Finding::WrongLinks { object: file, expected: 2, got: 3 },
    ];
    assert_eq!(findings(&world), expected);
    world.cache.meddle(file, |attributes| attributes.nlink = 0);
    assert!(findings(&world).contains(&Finding::WrongLinks { object: file, expected: 2, got: 0 }));
}

#[test]
fn wrong_parents_and_counts_of_entries() {
    let Planted { world, a, b, .. } = planted();
    world.cache.meddle(b, |attributes| (attributes.parent, attributes.entries) = (ROOT, 5));
    let expected = [
        Finding::WrongParent { directory: b, expected: a, got: ROOT },
        Finding::WrongEntries { directory: b, expected: 1, got: 5 },
        Finding::WrongNames { object: b, listed: 1, there: 0 },
    ];
    assert_eq!(findings(&world), expected);
}

#[test]
fn wrong_lists_of_names() {
    let Planted { world, b, file, .. } = planted();
    let names = world.attributes(file).other_names;
    assert_eq!(names.len(), 1);
    world.cache.meddle(file, |attributes| attributes.other_names[0].key += 1);
    assert_eq!(findings(&world), [Finding::WrongNames { object: file, listed: 2, there: 1 }]);
    let twice = |attributes: &mut holdfast_object::Attributes| attributes.other_names = [&names[..], &names].concat();
    world.cache.meddle(file, twice);
    assert_eq!(findings(&world), [Finding::WrongNames { object: file, listed: 3, there: 2 }]);
    world.cache.meddle(file, |attributes| attributes.other_names = names.clone());
    world.cache.meddle(b, |attributes| attributes.name_key = 0);
    assert_eq!(findings(&world), [Finding::WrongNames { object: b, listed: 0, there: 0 }]);
}

#[test]
fn what_is_not_reached() {
    let Planted { world, file, .. } = planted();
    let lost = world.file(ROOT, "lost");
    let mut attributes = world.attributes(lost);
    world.space.forget(lost, 1).unwrap();
    world.space.unlink(REQUEST, ROOT, b"lost").unwrap();
    attributes.nlink = 1;
    attributes.size = 0;
    let create = Op::Create { id: lost, attributes: attributes.clone() };
    world.cache.submit(Transaction { ops: vec![create], ..Transaction::default() }).unwrap();
    assert_eq!(findings(&world), [Finding::Unreached { object: lost, kind: Kind::Regular, links: 1 }]);
    world.cache.meddle(lost, |attributes| attributes.nlink = 0);
    let report = world.check();
    assert!(report.is_clean());
    assert_eq!(report.orphans, [lost]);
    assert_ne!(lost, file);
}

#[test]
fn extended_attributes_of_nobody() {
    let Planted { world, a, file, .. } = planted();
    let xattr = world.attributes(file).xattr;
    world.cache.meddle(file, |attributes| attributes.xattr = ObjectId::NONE);
    assert_eq!(findings(&world), [Finding::LostXattr { xattr, owner: file }]);
    world.cache.meddle(file, |attributes| attributes.xattr = xattr);
    world.cache.meddle(a, |attributes| attributes.xattr = xattr);
    assert_eq!(findings(&world), [Finding::WrongXattr { object: a, xattr }]);
    world.cache.meddle(a, |attributes| attributes.xattr = ObjectId::NONE);
    world.cache.forge(xattr, 0, |page| page[0] = 0);
    assert!(matches!(&findings(&world)[..], [Finding::Unreadable { object, .. }] if *object == xattr));
}

#[test]
fn wrong_classes_and_targets() {
    let Planted { world, file, link, .. } = planted();
    world.cache.meddle(file, |attributes| attributes.class = Class::Names);
    world.cache.meddle(link, |attributes| attributes.size = 5000);
    let found = findings(&world);
    assert!(found.contains(&Finding::WrongClass { object: file, expected: Class::Own, got: Class::Names }));
    assert!(found.contains(&Finding::WrongTarget { object: link, size: 5000 }));
}

#[test]
fn second_names_of_directories() {
    let Planted { world, a, b, .. } = planted();
    // An entry of b made to name a: the object id of the entry is changed in the page, with a right checksum.
    let key = a.0.to_le_bytes();
    let kinds = (Kind::Symlink as u8, Kind::Directory as u8);
    world.cache.forge(b, 0, |page| {
        page[88..96].copy_from_slice(&key);
        assert_eq!(page[96], kinds.0);
        page[96] = kinds.1;
    });
    let found = findings(&world);
    assert!(found.contains(&Finding::SecondName { directory: a, parent: b, name: b"link"[..].into() }), "{found:?}");
}

#[test]
fn directories_that_cannot_be_read_and_roots_that_are_not_there() {
    let Planted { world, a, .. } = planted();
    world.cache.forge(a, 0, |page| page.fill(0xee));
    let report = world.check();
    assert!(report.incomplete);
    assert!(matches!(&report.findings[..], [Finding::Unreadable { object, .. }] if *object == a));
    delete(&world, ROOT);
    assert_eq!(findings(&world)[0], Finding::NoRoot);
}

#[test]
fn a_mode_that_its_list_does_not_say_is_found() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let list = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    world.space.setxattr(REQUEST, file, b"system.posix_acl_access", list, XattrMode::Set).unwrap();
    world.assert_clean();
    world.cache.meddle(file, |attributes| attributes.mode = 0o660);
    assert_eq!(world.check().findings, [Finding::WrongAccessList { object: file, mode: 0o660 }]);
}
