//! Bugs that the explorer found, as short as they get.

use holdfast_block::MemoryDevice;
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Atime, Namespace, NewNode, Position, RenameMode, Request, SetAttr, SpaceMode};
use holdfast_object::{Durability, ManualClock, ObjectCache, ObjectId};
use std::sync::Arc;

struct Rig {
    device: Arc<MemoryDevice>,
    clock: Arc<ManualClock>,
    stack: Stack,
    names: Arc<Namespace>,
}

impl Rig {
    fn new() -> Rig {
        let device = Arc::new(MemoryDevice::new(2048));
        let clock = stack::clock();
        stack::create(device.clone(), &clock).unwrap();
        Rig::open(device, clock)
    }

    fn open(device: Arc<MemoryDevice>, clock: Arc<ManualClock>) -> Rig {
        let stack = Stack::open(device.clone(), &StackOptions::new(256), &clock).unwrap();
        let names = stack.namespace(Atime::Relative);
        Rig { device, clock, stack, names }
    }

    /// The power fails with everything written so far on the medium.
    fn cut(self) -> Rig {
        Rig::open(Arc::new((*self.device).clone()), self.clock)
    }

    fn file(&self, name: &[u8]) -> ObjectId {
        self.names.mknod(&Request::ROOT, ObjectId::ROOT, name, NewNode::Regular, 0o644).unwrap().id
    }

    fn write(&self, id: ObjectId, offset: u64, bytes: &[u8]) {
        assert_eq!(self.names.write(&Request::ROOT, id, offset, bytes, false).unwrap(), bytes.len());
    }
}

#[test]
fn a_file_whose_only_page_is_punched_keeps_its_size() {
    let rig = Rig::new();
    let file = rig.file(b"f");
    rig.write(file, 16_384, &[7; 4096]);
    rig.names.allocate(&Request::ROOT, file, 16_384, 4096, SpaceMode::Punch, false).unwrap();
    rig.names.sync_all().unwrap();
    let rig = rig.cut();
    assert_eq!(rig.names.getattr(file).unwrap().size, 20_480);
}

/// What had been allocated behind their ends goes, in an epoch that had promised nothing for that. They are as many as it takes to see it: an epoch
/// is promised some blocks that it does not need.
#[test]
fn files_grow_to_less_than_was_allocated() {
    let rig = Rig::new();
    let files = [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"].map(|name| rig.file(name));
    for file in files {
        rig.write(file, 20_480, &[7; 4096]);
        let behind = SpaceMode::Allocate { keep_size: true };
        rig.names.allocate(&Request::ROOT, file, 53_248, 4096, behind, false).unwrap();
    }
    rig.names.sync_all().unwrap();
    for file in files {
        let longer = SetAttr { size: Some(46_677), ..SetAttr::default() };
        rig.names.setattr(&Request::ROOT, file, &longer).unwrap();
    }
    rig.names.sync_all().unwrap();
    rig.stack.check().unwrap();
}

#[test]
fn a_part_of_a_page_is_written_into_a_hole_of_the_store() {
    let rig = Rig::new();
    let file = rig.file(b"f");
    rig.write(file, 40_000, b"end");
    rig.names.sync_all().unwrap();
    rig.write(file, 5_000, b"middle");
    assert_eq!(rig.names.read(file, 4_999, 8).unwrap().to_vec(), b"\0middle\0");
}

#[test]
fn both_ends_of_a_write_may_need_pages_that_only_the_next_epoch_has() {
    let rig = Rig::new();
    let file = rig.file(b"f");
    rig.write(file, 0, &[1; 40_000]);
    rig.names.sync_all().unwrap();
    // Leaves memory: a copy of what is only in the store is known with the next epoch.
    let rig = rig.cut();
    let from = Position { id: file, offset: 20_480 };
    let to = Position { id: file, offset: 8_192 };
    assert_eq!(rig.names.copy_range(&Request::ROOT, from, to, 12_288, false).unwrap(), 12_288);
    rig.write(file, 5_363, &[2; 12_288]);
    assert_eq!(rig.names.read(file, 17_650, 2).unwrap().to_vec(), [2, 1]);
}

#[test]
fn a_store_closes_after_a_sync_that_no_change_followed() {
    let rig = Rig::new();
    let file = rig.file(b"f");
    rig.write(file, 0, b"one");
    rig.names.sync(file, Durability::All).unwrap();
    rig.stack.close().unwrap();
    let rig = rig.cut();
    assert_eq!(rig.stack.recovered.batches, 0);
    assert_eq!(rig.names.read(file, 0, 9).unwrap().to_vec(), b"one");
}

#[test]
fn epochs_go_on_above_those_of_torn_log_batches() {
    let mut rig = Rig::new();
    let file = rig.file(b"f");
    rig.names.sync_all().unwrap();
    for round in 0..4u8 {
        rig.write(file, 0, &[round; 100]);
        rig.names.sync(file, Durability::All).unwrap();
        // The last batch is torn: every block of the log area that is not zero gets a flipped bit.
        let medium = Arc::new((*rig.device).clone());
        let log = 32..32 + holdfast_physical::log_blocks(2048);
        for block in log {
            medium
                .alter(block, |bytes| {
                    if *bytes != [0; 4096] {
                        bytes[4095] ^= 1
                    }
                })
                .unwrap();
        }
        rig = Rig::open(medium, rig.clock);
        rig.write(file, 8_192, &[round; 100]);
        rig.names.sync(file, Durability::All).unwrap();
        rig = rig.cut();
        assert_eq!(rig.names.read(file, 8_192, 1).unwrap().to_vec(), [round]);
    }
}

#[test]
fn a_rename_brings_what_was_written() {
    let rig = Rig::new();
    let (old, new) = (rig.file(b"f"), rig.file(b"f.new"));
    rig.write(old, 0, b"old");
    rig.names.sync_all().unwrap();
    rig.write(new, 0, b"new");
    rig.names.rename(&Request::ROOT, ObjectId::ROOT, b"f.new", ObjectId::ROOT, b"f", RenameMode::Replace).unwrap();
    // Another file's sync takes the names along, and with them the contents that the rename brings.
    let other = rig.file(b"other");
    rig.names.sync(other, Durability::All).unwrap();
    let rig = rig.cut();
    let found = rig.names.lookup(&Request::ROOT, ObjectId::ROOT, b"f").unwrap();
    assert_eq!(rig.names.read(found.id, 0, 9).unwrap().to_vec(), b"new");
    // The file that was replaced had been in use.
    assert_eq!(rig.stack.cache.orphans().unwrap(), [old]);
    assert_eq!(rig.names.reclaim_orphans().unwrap(), 1);
}
