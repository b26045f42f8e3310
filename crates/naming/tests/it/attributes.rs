//! Attributes and times.

use crate::support::{ROOT, World, user};
use holdfast_naming::{Atime, Enforce, ErrorKind, Options, Request, SetAttr, TimeSet};
use holdfast_object::{Clock, Timestamp};

const REQUEST: &Request = &Request::ROOT;

fn at(secs: i64) -> Option<TimeSet> {
    Some(TimeSet::At(Timestamp { secs, nanos: 999_999_999 }))
}

#[test]
fn attributes_change_together() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let before = world.attributes(file);
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(7),
        gid: Some(8),
        size: Some(10),
        atime: at(-5),
        mtime: at(1 << 33),
        ..SetAttr::default()
    };
    let after = world.space.setattr(REQUEST, file, &set).unwrap();
    assert_eq!((after.mode, after.uid, after.gid, after.size), (0o4711, 7, 8, 10));
    assert_eq!((after.atime.secs, after.mtime.secs), (-5, 1 << 33));
    assert!(after.ctime > before.ctime);
    assert_eq!(after.btime, before.btime);
    let wrong = SetAttr { atime: Some(TimeSet::At(Timestamp { secs: 0, nanos: 1_000_000_000 })), ..SetAttr::default() };
    assert_eq!(world.space.setattr(REQUEST, file, &wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(world.attributes(file), after);
}

#[test]
fn set_ids_go_when_others_could_misuse_them() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let set_ids = |mode| {
        world.space.setattr(REQUEST, file, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
    };
    set_ids(0o6755);
    world.write(file, 0, b"by the superuser");
    assert_eq!(world.attributes(file).mode, 0o6755);
    world.space.write(REQUEST, file, 0, b"by somebody else", true).unwrap();
    assert_eq!(world.attributes(file).mode, 0o755);
    set_ids(0o6745);
    world.space.setattr(REQUEST, file, &SetAttr { uid: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(world.attributes(file).mode, 0o2745, "setgid without execution is a locking mark");
    set_ids(0o6755);
    let cut = SetAttr { size: Some(3), clear_set_ids: true, ..SetAttr::default() };
    assert_eq!(world.space.setattr(REQUEST, file, &cut).unwrap().mode, 0o755);
    let directory = world.directory(ROOT, "directory");
    let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
    world.space.setattr(REQUEST, directory, &set).unwrap();
    let after = world.space.setattr(REQUEST, directory, &SetAttr { gid: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(after.mode, 0o2755, "directories keep it");
    let inner = world.space.mkdir(&user(9, 9, &[]), directory, b"inner", 0o700).unwrap().attributes;
    assert_eq!((inner.mode, inner.uid, inner.gid), (0o2700, 9, 5), "and hand it down");
}

#[test]
fn an_unprivileged_write_clears_set_ids_where_naming_enforces() {
    let world = World::enforcing();
    let file = world.file(ROOT, "file");
    let set = SetAttr { mode: Some(0o6777), ..SetAttr::default() };
    world.space.setattr(REQUEST, file, &set).unwrap();
    world.space.write(&user(5, 5, &[]), file, 0, b"x", false).unwrap();
    assert_eq!(world.attributes(file).mode, 0o777);
}

#[test]
fn accesses_are_noted_by_relatime() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, b"contents");
    let read = || {
        world.space.read(file, 0, 1).unwrap();
        world.attributes(file).atime
    };
    let first = read();
    assert!(first > world.attributes(file).mtime, "first access after a change");
    assert_eq!(read(), first, "not again");
    world.clock.advance_ns(86_400_000_000_000);
    let later = read();
    assert!(later > first, "a day later");
    world.space.read(file, 100, 1).unwrap();
    assert_eq!(world.attributes(file).atime, later, "nothing was read");
    let ctime = world.attributes(file).ctime;
    world.write(file, 0, b"C");
    assert!(read() > later && world.attributes(file).ctime > ctime);
}

#[test]
fn accesses_are_noted_as_the_options_say() {
    for (atime, changes) in [(Atime::Never, false), (Atime::Strict, true)] {
        let world = World::with(Options { atime, enforce: Enforce::Outside, ..Options::default() });
        let file = world.file(ROOT, "file");
        world.write(file, 0, b"contents");
        let mut last = world.attributes(file).atime;
        for _ in 0..2 {
            world.space.read(file, 0, 1).unwrap();
            let atime = world.attributes(file).atime;
            assert_eq!(atime != last, changes);
            last = atime;
        }
    }
}

#[test]
fn names_change_times_of_directories() {
    let world = World::new();
    let directory = world.directory(ROOT, "directory");
    let start = world.clock.now();
    let file = world.file(directory, "file");
    let made = world.attributes(directory);
    assert!(made.mtime > start && made.ctime == made.mtime && made.entries == 1);
    world.space.link(REQUEST, file, directory, b"second").unwrap();
    assert!(world.attributes(file).ctime > made.ctime);
    world.space.unlink(REQUEST, directory, b"file").unwrap();
    assert!(world.attributes(directory).mtime > made.mtime);
    assert_eq!(world.attributes(directory).entries, 1);
}

#[test]
fn statfs_tells_the_room() {
    let world = World::new();
    let stat = world.space.statfs();
    assert_eq!((stat.block_bytes, stat.blocks, stat.name_max), (4096, 1 << 15, 255));
    assert!(stat.available < stat.free && stat.free <= stat.blocks);
}
