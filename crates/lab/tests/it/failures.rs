//! Requests that fail by the device: each is told in the log with the path that it was about and the place on the device.

use holdfast_block::MemoryDevice;
use holdfast_fuse::abi::*;
use holdfast_fuse::adapter::{Filesystem, Options, Served, Serving};
use holdfast_fuse::{Context, DirBuffer, Errno, Handler};
use holdfast_lab::device::{Fault, FaultDevice, FaultPlan, Rule};
use holdfast_lab::requests::Operator;
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Access, Atime, Create, Namespace, Request, XattrMode};
use holdfast_object::ObjectId;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span;

/// What a log line says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Line {
    path: String,
    to: String,
    error: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "path" => self.path = value,
            "to" => self.to = value,
            "error" => self.error = value,
            _ => {}
        }
    }
}

/// Keeps what is logged with an error.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::ERROR
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

const REQUEST: &Request = &Request::ROOT;

fn file(names: &Namespace, directory: ObjectId, name: &[u8]) -> ObjectId {
    let how = Create { mode: 0o644, exclusive: true, wanted: Access::WRITE, truncate: false };
    let id = names.create(REQUEST, directory, name, &how).unwrap().found.id;
    names.write(REQUEST, id, 0, &[1; 3 * 4096], false).unwrap();
    names.setxattr(REQUEST, id, b"user.a", &[2; 200], XattrMode::Set).unwrap();
    id
}

#[test]
fn a_request_that_fails_by_the_device_is_told_with_path_and_place() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(4096)), FaultPlan::new()));
    let clock = stack::clock();
    stack::create(device.clone(), &clock).unwrap();
    let stack = Stack::open(device.clone(), &StackOptions::new(512), &clock).unwrap();
    let names = stack.namespace(Atime::Never);
    let top = names.mkdir(REQUEST, ObjectId::ROOT, b"top", 0o755).unwrap().id;
    let dir = names.mkdir(REQUEST, top, b"dir", 0o755).unwrap().id;
    names.mkdir(REQUEST, dir, b"sub", 0o755).unwrap();
    file(&names, dir, b"a");
    let (one, two) = (file(&names, top, b"one"), file(&names, top, b"two"));
    let link = names.symlink(REQUEST, top, b"link", b"target").unwrap().id;
    drop(names);
    stack.close().unwrap();

    // Nothing but the names in `top`, and attributes, is in memory.
    let stack = Stack::open(device.clone(), &StackOptions::new(512), &clock).unwrap();
    let names = stack.namespace(Atime::Never);
    names.lookup(REQUEST, ObjectId::ROOT, b"top").unwrap();
    for name in [&b"dir"[..], b"one", b"two", b"link"] {
        names.lookup(REQUEST, top, name).unwrap();
    }
    let served = Arc::new(Served::new(names));
    let mount = Filesystem::new(served, Arc::new(Operator::new(&stack)), Options::default());
    device.add(Rule::new(Fault::ReadError).forever());

    let context = &Context { unique: 0, resent: false, uid: 0, gid: 0, pid: 1, groups: Vec::new() };
    let (top, dir, one, two, link) = (top.0, dir.0, one.0, two.0, link.0);
    type Failing<'a> = Box<dyn Fn(&Serving<'_>) -> Option<Errno> + 'a>;
    let xattr = b"user.a";
    let requests: Vec<(&str, &str, &str, Failing<'_>)> = vec![
        ("lookup", "/top/dir/a", "", Box::new(|it| it.lookup(context, dir, b"a").err())),
        ("mknod", "/top/dir/n", "", Box::new(|it| it.mknod(context, dir, b"n", &MknodIn::default()).err())),
        ("mkdir", "/top/dir/n", "", Box::new(|it| it.mkdir(context, dir, b"n", &MkdirIn::default()).err())),
        ("symlink", "/top/dir/n", "", Box::new(|it| it.symlink(context, dir, b"n", b"x").err())),
        ("create", "/top/dir/n", "", Box::new(|it| it.create(context, dir, b"n", &CreateIn::default()).err())),
        ("link", "/top/dir/n", "", Box::new(|it| it.link(context, one, dir, b"n").err())),
        ("unlink", "/top/dir/a", "", Box::new(|it| it.unlink(context, dir, b"a").err())),
        ("rmdir", "/top/dir/sub", "", Box::new(|it| it.rmdir(context, dir, b"sub").err())),
        ("rename", "/top/dir/a", "/top/z", Box::new(|it| it.rename(context, dir, b"a", top, b"z", 0).err())),
        ("readdir", "/top/dir", "", Box::new(|it| it.readdir(context, dir, 2, &mut DirBuffer::new(4096, false)).err())),
        ("readlink", "/top/link", "", Box::new(|it| it.readlink(context, link).err())),
        (
            "read",
            "/top/one",
            "",
            Box::new(|it| it.read(context, one, &ReadIn { size: 4096, ..ReadIn::default() }).err()),
        ),
        (
            "write",
            "/top/one",
            "",
            Box::new(|it| {
                it.write(context, one, &WriteIn { offset: 10, size: 5, ..WriteIn::default() }, b"12345").err()
            }),
        ),
        (
            "setattr",
            "/top/one",
            "",
            Box::new(|it| {
                it.setattr(context, one, &SetattrIn { valid: fattr::SIZE, size: 10, ..SetattrIn::default() }).err()
            }),
        ),
        (
            "fallocate",
            "/top/one",
            "",
            Box::new(|it| {
                let mode = libc::FALLOC_FL_ZERO_RANGE as u32;
                it.fallocate(context, one, &FallocateIn { mode, offset: 10, length: 5, ..FallocateIn::default() }).err()
            }),
        ),
        (
            // The error names the object of the two that cannot be read.
            "copy_file_range",
            "/top/one",
            "",
            Box::new(|it| {
                let args = CopyFileRangeIn { nodeid_out: two, off_out: 7, len: 100, ..CopyFileRangeIn::default() };
                it.copy_file_range(context, one, &args).err()
            }),
        ),
        ("getxattr", "/top/one", "", Box::new(|it| it.getxattr(context, one, xattr).err())),
        ("listxattr", "/top/one", "", Box::new(|it| it.listxattr(context, one).err())),
        ("setxattr", "/top/one", "", Box::new(|it| it.setxattr(context, one, xattr, b"1", 0, 0).err())),
        ("removexattr", "/top/one", "", Box::new(|it| it.removexattr(context, one, xattr).err())),
    ];
    let fails = |what: &str, path: &str, to: &str, operation: &str, request: &dyn Fn(&Serving<'_>) -> Option<Errno>| {
        let log = Log::default();
        let failed = tracing::subscriber::with_default(log.clone(), || request(&mount.begin()));
        assert_eq!(failed, Some(Errno::IO), "{what}");
        let lines = log.0.lock().unwrap().clone();
        let is_told = |line: &&Line| (&*line.path, &*line.to) == (path, to);
        let line = lines.iter().find(is_told).unwrap_or_else(|| panic!("{what}: not told of {path} {to}: {lines:?}"));
        assert!(line.error.contains(&format!("{operation} failed at block ")), "{what}: {line:?}");
    };
    for (what, path, to, request) in &requests {
        fails(what, path, to, "read", request);
    }
    // A write that does not read is told when it is to be durable; by then its error is the device's latch to whoever comes later.
    device.clear();
    let whole = WriteIn { size: 4096, ..WriteIn::default() };
    mount.begin().write(&Context { unique: 1, ..context.clone() }, two, &whole, &[3; 4096]).unwrap();
    device.add(Rule::new(Fault::WriteError).forever());
    fails("fsync", "/top/two", "", "write", &|it| it.fsync(context, two, 0, false).err());
}
