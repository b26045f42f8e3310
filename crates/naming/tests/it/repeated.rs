//! Requests that come twice are done once.

use crate::support::{READ_WRITE, ROOT, World};
use holdfast_naming::{
    Caller, Error, ErrorKind, NewNode, Position, RenameMode, Request, SetAttr, SpaceMode, XattrMode,
};
use holdfast_object::RequestId;
use std::cell::Cell;

const REQUEST: &Request = &Request::ROOT;

#[test]
fn the_second_answer_is_the_first() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    let directory = world.directory(ROOT, "directory");
    world.write(file, 0, &[1; 9000]);
    let last = Cell::new(0);
    let twice = |what: &str, request: &dyn Fn(&Request) -> Result<u64, Error>| {
        last.set(last.get() + 1);
        let id = Some(RequestId { client: 3, unique: last.get() });
        let request_ = Request { id, caller: Caller::ROOT, umask: 0 };
        let first = request(&request_).unwrap();
        let objects = world.cache.objects();
        assert_eq!(request(&request_), Ok(first), "{what}");
        assert_eq!(world.cache.objects(), objects, "{what} changed something the second time");
    };
    let space = &world.space;
    twice("mkdir", &|request| space.mkdir(request, ROOT, b"a", 0o755).map(|found| found.id.0));
    twice("mknod", &|request| space.mknod(request, ROOT, b"b", NewNode::Fifo, 0o644).map(|found| found.id.0));
    twice("symlink", &|request| space.symlink(request, ROOT, b"c", b"target").map(|found| found.id.0));
    twice("create", &|request| space.create(request, ROOT, b"d", &READ_WRITE).map(|made| made.found.id.0));
    twice("link", &|request| space.link(request, file, ROOT, b"e").map(|found| found.id.0));
    twice("rename", &|request| space.rename(request, ROOT, b"e", directory, b"e", RenameMode::Replace).map(|()| 0));
    twice("exchange", &|request| space.rename(request, ROOT, b"b", ROOT, b"c", RenameMode::Exchange).map(|()| 0));
    twice("unlink", &|request| space.unlink(request, directory, b"e").map(|()| 0));
    twice("rmdir", &|request| space.rmdir(request, ROOT, b"a").map(|()| 0));
    twice("write", &|request| space.write(request, file, 5, b"12345", false).map(|count| count as u64));
    twice("allocate", &|request| space.allocate(request, file, 0, 10, SpaceMode::Punch, false).map(|()| 0));
    twice("copy", &|request| {
        let (source, target) = (Position { id: file, offset: 0 }, Position { id: file, offset: 20_000 });
        space.copy_range(request, source, target, 500, false)
    });
    twice("setattr", &|request| {
        let set = SetAttr { size: Some(77), ..SetAttr::default() };
        space.setattr(request, file, &set).map(|attributes| attributes.size)
    });
    twice("setxattr", &|request| space.setxattr(request, file, b"user.a", b"1", XattrMode::Create).map(|()| 0));
    twice("removexattr", &|request| space.removexattr(request, file, b"user.a").map(|()| 0));
    world.assert_clean();
}

#[test]
fn a_failed_request_is_tried_again() {
    let world = World::new();
    let request = Request { id: Some(RequestId { client: 3, unique: 1 }), caller: Caller::ROOT, umask: 0 };
    let file = world.file(ROOT, "name");
    assert_eq!(world.space.mkdir(&request, ROOT, b"name", 0o755).unwrap_err().kind(), ErrorKind::Exists);
    world.space.unlink(REQUEST, ROOT, b"name").unwrap();
    assert!(world.space.mkdir(&request, ROOT, b"name", 0o755).is_ok());
    world.space.forget(file, 1).unwrap();
}

#[test]
fn an_answer_of_another_form_is_an_error() {
    let world = World::new();
    let request = Request { id: Some(RequestId { client: 3, unique: 1 }), caller: Caller::ROOT, umask: 0 };
    let file = world.file(ROOT, "file");
    world.space.write(&request, file, 0, b"12", false).unwrap();
    let error = world.space.mkdir(&request, ROOT, b"directory", 0o755).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}
