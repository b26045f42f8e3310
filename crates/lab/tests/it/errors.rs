//! Pages that go bad in memory before they are stored, as applications see them: through the handles of a mount.

use holdfast_fuse::abi::{
    CopyFileRangeIn, CreateIn, FallocateIn, IoctlIn, OpenIn, ReadIn, ReleaseIn, SetattrIn, WriteIn, fattr,
};
use holdfast_fuse::adapter::{Filesystem, Options, Served, Synchronous};
use holdfast_fuse::{Answer, Context, Errno, Handler};
use holdfast_integrity::Algorithm;
use holdfast_interface::{self as interface, Command};
use holdfast_lab::requests::Operator;
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Atime, Request};
use holdfast_object::{ObjectCache, ObjectId};
use std::sync::Arc;

const PAGE: usize = 4096;
const ROOT: u64 = 1;

struct Mount {
    stack: Stack,
    mount: Filesystem,
    unique: std::cell::Cell<u64>,
}

impl Mount {
    fn new(synchronous: Synchronous) -> Mount {
        let (device, clock) = (Arc::new(holdfast_block::MemoryDevice::new(2048)), stack::clock());
        stack::create(device.clone(), &clock).unwrap();
        let stack = Stack::open(device, &StackOptions::new(512), &clock).unwrap();
        let names = stack.namespace(Atime::Never);
        let control = Arc::new(Operator::new(&stack));
        let mount =
            Filesystem::new(Arc::new(Served::new(names)), control, Options { synchronous, ..Options::default() });
        Mount { stack, mount, unique: 1.into() }
    }

    fn context(&self) -> Context {
        let unique = self.unique.replace(self.unique.get() + 1);
        Context { unique, resent: false, uid: 0, gid: 0, pid: 1, groups: Vec::new() }
    }

    fn create(&self, name: &[u8]) -> (u64, u64) {
        let args = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100_644, ..CreateIn::default() };
        let (entry, opened) = self.mount.begin().create(&self.context(), ROOT, name, &args).unwrap();
        (entry.node, opened.fh)
    }

    fn open(&self, node: u64) -> u64 {
        self.open_with(node, 0)
    }

    fn open_with(&self, node: u64, flags: i32) -> u64 {
        let args = OpenIn { flags: (libc::O_RDWR | flags) as u32, open_flags: 0 };
        self.mount.begin().open(&self.context(), node, &args).unwrap().fh
    }

    fn release(&self, node: u64, fh: u64) {
        self.mount.begin().release(&self.context(), node, &ReleaseIn { fh, ..ReleaseIn::default() });
    }

    fn write(&self, node: u64, fh: u64, page: usize, byte: u8, flags: i32) -> Answer<u32> {
        let args =
            WriteIn { fh, offset: (page * PAGE) as u64, size: PAGE as u32, flags: flags as u32, ..WriteIn::default() };
        self.mount.begin().write(&self.context(), node, &args, &[byte; PAGE])
    }

    /// Writes the page with its checksum.
    fn write_summed(&self, node: u64, fh: u64, page: usize, byte: u8) -> Answer<()> {
        let request = interface::Request {
            algorithm: Algorithm::Crc32c,
            verify: false,
            append: false,
            offset: (page * PAGE) as u64,
            length: PAGE,
            address: 0,
        };
        let mut payload = request.encode().to_vec();
        payload.extend(request.algorithm.sum(&[byte; PAGE]).as_bytes());
        payload.extend([byte; PAGE]);
        let room = payload.len() as u32;
        let cmd = Command::Write.number(payload.len());
        let args = IoctlIn { fh, cmd, in_size: room, out_size: room, ..IoctlIn::default() };
        let (_, reply) = self.mount.begin().ioctl(&self.context(), node, &args, &payload)?;
        let (reply, _) = interface::Reply::decode(&reply).unwrap();
        if reply.errno == 0 { Ok(()) } else { Err(Errno(reply.errno)) }
    }

    fn allocate(&self, node: u64, fh: u64) -> Answer<()> {
        let args = FallocateIn { fh, offset: PAGE as u64, length: PAGE as u64, ..FallocateIn::default() };
        self.mount.begin().fallocate(&self.context(), node, &args)
    }

    /// Copies a page of one file to the second page of another, which is open under this handle.
    fn copy(&self, from: u64, node: u64, fh: u64) -> Answer<()> {
        let (off_out, len) = (PAGE as u64, PAGE as u64);
        let args = CopyFileRangeIn { nodeid_out: node, fh_out: fh, off_out, len, ..CopyFileRangeIn::default() };
        self.mount.begin().copy_file_range(&self.context(), from, &args).map(drop)
    }

    fn truncate(&self, node: u64, fh: u64) -> Answer<()> {
        let args = SetattrIn { valid: fattr::SIZE | fattr::FH, fh, size: 3 * PAGE as u64, ..SetattrIn::default() };
        self.mount.begin().setattr(&self.context(), node, &args).map(drop)
    }

    fn fsync(&self, node: u64, fh: u64) -> Answer<()> {
        self.mount.begin().fsync(&self.context(), node, fh, false)
    }

    fn reads(&self, node: u64, fh: u64, page: usize) -> bool {
        let args = ReadIn { fh, offset: (page * PAGE) as u64, size: PAGE as u32, ..ReadIn::default() };
        self.mount.begin().read(&self.context(), node, &args).is_ok()
    }

    fn flip(&self, node: u64, page: u64) {
        self.stack.flip(ObjectId(node), page, &[77 * 8 + 3]).unwrap();
    }
}

const TOLD: Answer<()> = Err(Errno::IO);

#[test]
fn fsync_tells_every_descriptor_once() {
    let mount = Mount::new(Synchronous::AsAsked);
    let (node, one) = mount.create(b"f");
    let two = mount.open(node);
    let (other, elsewhere) = mount.create(b"other");
    for page in 0..3 {
        mount.write(node, one, page, 1, 0).unwrap();
    }
    mount.write(other, elsewhere, 0, 1, 0).unwrap();
    mount.flip(node, 1);
    mount.stack.cache.sync_all().unwrap();
    let untold = mount.open(node);
    assert_eq!([one, one, two, two].map(|fh| mount.fsync(node, fh)), [TOLD, Ok(()), TOLD, Ok(())]);
    assert_eq!([untold, untold].map(|fh| mount.fsync(node, fh)), [TOLD, Ok(())], "opened before anybody was told");
    let late = mount.open(node);
    assert_eq!(mount.fsync(node, late), Ok(()));
    assert_eq!(mount.fsync(other, elsewhere), Ok(()), "no other file suffers");
    assert_eq!([0, 1, 2].map(|page| mount.reads(node, late, page)), [true, false, true]);
    // A new error: those that were told of the first, too, and each of those that opened after it.
    mount.write(node, two, 2, 2, 0).unwrap();
    mount.flip(node, 2);
    assert_eq!([late, one, late, two].map(|fh| mount.fsync(node, fh)), [TOLD, TOLD, Ok(()), TOLD]);
    for page in [1, 2] {
        mount.write(node, late, page, 3, 0).unwrap();
    }
    let last = mount.open(node);
    assert_eq!([one, two, late, last].map(|fh| mount.fsync(node, fh)), [Ok(()); 4]);
    assert_eq!([0, 1, 2].map(|page| mount.reads(node, late, page)), [true; 3]);
    for fh in [one, two, untold, late, last] {
        mount.release(node, fh);
    }
}

#[test]
fn a_synchronous_write_returns_it_at_once() {
    for (flags, synchronous) in
        [(libc::O_DSYNC, Synchronous::AsAsked), (libc::O_SYNC, Synchronous::AsAsked), (0, Synchronous::Everything)]
    {
        let mount = Mount::new(synchronous);
        let (node, fh) = mount.create(b"f");
        let other = mount.open(node);
        // What is in memory and in no store yet.
        mount.stack.cache.sync_all().unwrap();
        if synchronous == Synchronous::AsAsked {
            mount.write(node, other, 0, 1, 0).unwrap();
            mount.flip(node, 0);
        } else {
            // Written through the mount it would not wait.
            let names = mount.stack.namespace(Atime::Never);
            names.write(&Request::ROOT, ObjectId(node), 0, &[1; PAGE], false).unwrap();
            mount.flip(node, 0);
        }
        assert_eq!(mount.write(node, fh, 1, 1, flags), Err(Errno::IO));
        assert_eq!(mount.write(node, fh, 1, 1, flags), Ok(PAGE as u32), "once");
        assert_eq!([fh, other, other].map(|fh| mount.fsync(node, fh)), [Ok(()), TOLD, Ok(())]);
        assert_eq!(mount.write(node, fh, 0, 1, flags), Ok(PAGE as u32), "written again");
        assert!(mount.reads(node, fh, 0));
    }
}

/// Whatever writes through a handle tells it, if the open or the mount makes writes durable.
#[test]
fn every_kind_of_synchronous_write_returns_it_once() {
    type Write = fn(&Mount, [u64; 2], u64) -> Answer<()>;
    let kinds: [(&str, Write); 5] = [
        ("write", |mount, [node, _], fh| mount.write(node, fh, 1, 1, 0).map(drop)),
        ("with a checksum", |mount, [node, _], fh| mount.write_summed(node, fh, 1, 1)),
        ("fallocate", |mount, [node, _], fh| mount.allocate(node, fh)),
        ("copy_file_range", |mount, [node, source], fh| mount.copy(source, node, fh)),
        ("ftruncate", |mount, [node, _], fh| mount.truncate(node, fh)),
    ];
    for (kind, write) in kinds {
        for (flags, synchronous) in [
            (0, Synchronous::AsAsked),
            (libc::O_DSYNC, Synchronous::AsAsked),
            (libc::O_SYNC, Synchronous::Names),
            (0, Synchronous::Everything),
        ] {
            if kind == "write" && flags != 0 {
                // The flags come with the request (above).
                continue;
            }
            let mount = Mount::new(synchronous);
            let names = mount.stack.namespace(Atime::Never);
            let ((node, two), (source, _)) = (mount.create(b"f"), mount.create(b"source"));
            let one = mount.open_with(node, flags);
            names.write(&Request::ROOT, ObjectId(source), 0, &[2; PAGE], false).unwrap();
            mount.stack.cache.sync_all().unwrap();
            // Not through the mount, where it would not wait in memory.
            names.write(&Request::ROOT, ObjectId(node), 0, &[1; PAGE], false).unwrap();
            mount.flip(node, 0);
            // O_SYNC is about writes, as on other file systems; a mount option is about all changes.
            let is_told = flags != 0 && kind != "ftruncate" || synchronous == Synchronous::Everything;
            let syncs = mount.stack.cache.status().syncs;
            let outcomes = [(); 2].map(|()| write(&mount, [node, source], one));
            let syncs = mount.stack.cache.status().syncs - syncs;
            assert_eq!(syncs, if is_told { 2 } else { 0 }, "{kind}, {flags:o}, {synchronous:?}: one each");
            let first = if is_told { TOLD } else { Ok(()) };
            assert_eq!(outcomes, [first, Ok(())], "{kind}, {flags:o}, {synchronous:?}");
            // Whoever was not told, is.
            let first = if is_told { Ok(()) } else { TOLD };
            assert_eq!([one, one, two].map(|fh| mount.fsync(node, fh)), [first, Ok(()), TOLD], "{kind}");
        }
    }
}

#[test]
fn names_have_nothing_to_do_with_it() {
    let mount = Mount::new(Synchronous::AsAsked);
    let (node, fh) = mount.create(b"f");
    let two = mount.open(node);
    mount.write(node, fh, 0, 1, 0).unwrap();
    mount.flip(node, 0);
    mount.mount.begin().link(&mount.context(), node, ROOT, b"hard").unwrap();
    mount.mount.begin().rename(&mount.context(), ROOT, b"f", ROOT, b"g", 0).unwrap();
    assert_eq!(mount.fsync(node, fh), TOLD);
    mount.mount.begin().unlink(&mount.context(), ROOT, b"g").unwrap();
    mount.mount.begin().unlink(&mount.context(), ROOT, b"hard").unwrap();
    assert_eq!([two, fh, two].map(|fh| mount.fsync(node, fh)), [TOLD, Ok(()), Ok(())], "without a name");
    assert!(!mount.reads(node, fh, 0));
    for handle in [fh, two] {
        mount.release(node, handle);
    }
    mount.mount.begin().forget(node, u64::MAX >> 1);
    mount.stack.cache.sync_all().unwrap();
    mount.stack.cache.check();
}
