//! What a power cut leaves of access control lists, of files without a name, and of allocated ranges.

use holdfast_block::MemoryDevice;
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Atime, ErrorKind, Namespace, NewNode, Request, SpaceMode, XattrMode};
use holdfast_object::{Durability, ManualClock, ObjectCache, ObjectId};
use std::sync::Arc;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const REQUEST: &Request = &Request::ROOT;
const ROOT: ObjectId = ObjectId::ROOT;

struct Rig {
    device: Arc<MemoryDevice>,
    clock: Arc<ManualClock>,
    stack: Stack,
    names: Arc<Namespace>,
}

impl Rig {
    fn new() -> Rig {
        let device = Arc::new(MemoryDevice::new(4096));
        let clock = stack::clock();
        stack::create(device.clone(), &clock).unwrap();
        Rig::open(device, clock)
    }

    fn open(device: Arc<MemoryDevice>, clock: Arc<ManualClock>) -> Rig {
        let stack = Stack::open(device.clone(), &StackOptions::new(256), &clock).unwrap();
        let names = stack.namespace(Atime::Relative);
        Rig { device, clock, stack, names }
    }

    /// The power fails with everything written so far on the medium; then the store is in order.
    fn cut(self) -> Rig {
        let rig = Rig::open(Arc::new((*self.device).clone()), self.clock);
        rig.names.reclaim_orphans().unwrap();
        rig.names.sync_all().unwrap();
        rig.stack.check().unwrap();
        rig
    }

    fn file(&self, parent: ObjectId, name: &[u8]) -> ObjectId {
        self.names.mknod(REQUEST, parent, name, NewNode::Regular, 0o666).unwrap().id
    }

    fn sync(&self, id: ObjectId) {
        self.names.sync(id, Durability::All).unwrap();
    }
}

/// The owner everything, user 10 too, the owning group nothing, others nothing; the mask everything.
fn list() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(0x01u16, 7u16, u32::MAX), (0x02, 7, 10), (0x04, 0, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)]
    {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// A file's list is among its own changes: the sync of another file makes its name durable and not its list. Then its mode
/// must not give the owning group what the list gave the mask.
#[test]
fn a_file_without_its_list_gives_nobody_more() {
    for own_sync in [false, true] {
        let rig = Rig::new();
        let directory = rig.names.mkdir(REQUEST, ROOT, b"d", 0o755).unwrap().id;
        rig.names.setxattr(REQUEST, directory, DEFAULT, &list(), XattrMode::Set).unwrap();
        rig.names.sync_all().unwrap();
        let file = rig.file(directory, b"inherits");
        let below = rig.names.mkdir(REQUEST, directory, b"below", 0o777).unwrap().id;
        assert_eq!(rig.names.getattr(file).unwrap().mode, 0o660);
        let other = rig.file(ROOT, b"other");
        rig.sync(if own_sync { file } else { other });
        let rig = rig.cut();
        let (mode, inherited) = (rig.names.getattr(file).unwrap().mode, rig.names.getxattr(REQUEST, file, ACCESS));
        if own_sync {
            assert_eq!((mode, inherited.is_ok()), (0o660, true));
        } else {
            assert_eq!((mode, inherited.unwrap_err().kind()), (0o600, ErrorKind::NoAttribute));
        }
        // A directory is part of the name space, and so is its list.
        assert_eq!(rig.names.getattr(below).unwrap().mode, 0o770);
        assert_eq!(rig.names.getxattr(REQUEST, below, DEFAULT).unwrap(), list());
    }
}

#[test]
fn a_file_without_a_name_goes_and_one_that_got_a_name_stays() {
    for named in [false, true] {
        let rig = Rig::new();
        rig.names.sync_all().unwrap();
        let free = rig.stack.cache.space().free;
        let file = rig.names.tmpfile(REQUEST, ROOT, 0o600, false).unwrap().id;
        for part in 0..8 {
            rig.names.write(REQUEST, file, part * 65_536, &[7; 65_536], false).unwrap();
        }
        rig.sync(file);
        if named {
            rig.names.link(REQUEST, file, ROOT, b"name").unwrap();
            rig.sync(file);
        }
        let rig = rig.cut();
        if named {
            let found = rig.names.lookup(REQUEST, ROOT, b"name").unwrap();
            assert_eq!((found.id, found.attributes.nlink, found.attributes.size), (file, 1, 524_288));
            assert_eq!(rig.names.read(file, 524_287, 10).unwrap().to_vec(), [7]);
        } else {
            assert!(rig.names.getattr(file).is_err());
            rig.names.sync_all().unwrap();
            let space = rig.stack.cache.space();
            assert!(free - (space.free + space.pending) < 40, "{free} blocks before, {space:?} after");
        }
    }
}

#[test]
fn what_was_allocated_and_synced_has_its_room() {
    let rig = Rig::new();
    let file = rig.file(ROOT, b"f");
    rig.names.write(REQUEST, file, 0, b"head", false).unwrap();
    rig.names.allocate(REQUEST, file, 0, 400 << 10, SpaceMode::Allocate { keep_size: true }, false).unwrap();
    rig.sync(file);
    let rig = rig.cut();
    let attributes = rig.names.getattr(file).unwrap();
    assert_eq!((attributes.size, attributes.blocks), (4, 100));
    // The store is filled to the last block; then what was allocated is written.
    let filler = rig.file(ROOT, b"filler");
    let mut offset = 0;
    let full = loop {
        match rig.names.write(REQUEST, filler, offset, &[1; 16_384], false) {
            Ok(count) => offset += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    for page in 0..100 {
        rig.names.write(REQUEST, file, page * 4096, &[page as u8; 4096], false).unwrap();
    }
    rig.sync(file);
    let rig = rig.cut();
    assert_eq!(rig.names.read(file, 99 * 4096, 4096).unwrap().to_vec(), [99; 4096]);
}
