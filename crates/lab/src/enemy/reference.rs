//! Stores that have a block of every kind, with what is in them, now and in their snapshots.

use crate::maker::{Maker, STEP_NS};
use crate::model::{Action, Data, Driver, Model, Node};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use holdfast_naming::XattrMode;
use holdfast_object::{Clock, ManualClock, SnapshotId, Snapshots};
use holdfast_physical::inject::{BlockClass, Catalogue};
use std::sync::Arc;

/// 16 MiB: one page of the bitmap.
const SMALL_BLOCKS: u64 = 4096;
/// 160 MiB: two pages of the bitmap, with bits in both, as two of the labels are at the end. What is not written takes no memory.
const LARGE_BLOCKS: u64 = 40_960;
/// Files, and pages of each, that lie between two sources of shared pages for a while: more than a page of the reference table is for.
const FILLERS: (usize, usize) = (3, 400);
/// Pages of the large files: two lowest tree blocks and one above.
const LARGE_PAGES: usize = 70;
/// Superblocks that a label has room for.
const RING_SLOTS: u64 = 15;
/// Of files that are overwritten in part.
const OVERWRITE_BYTES: usize = 3 * BLOCK_SIZE;
/// After which an idle intent log is sealed.
pub(super) const SEAL_NS: u64 = 150_000_000;

/// How the work on a store ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It was closed in order.
    Closed,
    /// Its process was killed, with synced changes in the intent log only; that had been idle for a while after each.
    Sealed,
    /// The same, right after the last sync.
    #[cfg(test)]
    Unsealed,
}

/// Of which a store has one block only, unless it is made for two.
const SELDOM: [BlockClass; 4] =
    [BlockClass::Bitmap, BlockClass::ReferenceTable, BlockClass::Map, BlockClass::SnapshotList];

/// A store and what is in it.
pub(crate) struct Reference {
    pub(crate) image: MemoryDevice,
    pub(super) catalogue: Catalogue,
    pub(crate) model: Model,
    /// What it was before the last things that were made durable, newest first.
    pub(super) older: Vec<Model>,
    /// With what was in them.
    pub(crate) snapshots: Vec<(SnapshotId, Model)>,
    pub(crate) driver: Driver,
    pub(crate) now_ns: u64,
}

impl Reference {
    /// A store closed in order, one cut off with synced changes in the intent log only, one cut off like it after so many
    /// recovery points that all slots of superblocks have been used, and a large one closed in order, with two blocks of every kind.
    pub(super) fn make_all() -> Result<Vec<Reference>, String> {
        let small = [(Ending::Closed, 2), (Ending::Sealed, 2), (Ending::Sealed, RING_SLOTS + 2)];
        let small = small.into_iter().map(|(ending, points)| make(ending, points, SMALL_BLOCKS));
        let large = make(Ending::Closed, 2, LARGE_BLOCKS)?;
        for class in SELDOM {
            let pages = large.catalogue.of_class(class).count();
            if pages < 2 {
                return Err(format!("the large reference store has {pages} blocks of the kind {}", class.name()));
            }
        }
        small.chain([Ok(large)]).collect()
    }

    /// A small one, closed in order.
    pub(crate) fn make_closed() -> Result<Reference, String> {
        make(Ending::Closed, 2, SMALL_BLOCKS)
    }

    /// One cut off right after its last sync, so that its intent log has no seal; or as if there were none.
    #[cfg(test)]
    pub(super) fn make_unsealed() -> Result<Reference, String> {
        make(Ending::Unsealed, 2, SMALL_BLOCKS)
    }

    /// The store on a medium of its own, opened.
    pub(super) fn open(&self, device: Arc<dyn Device>) -> Result<Stack, holdfast_object::Error> {
        Stack::open(device, &StackOptions::new(1024), &Arc::new(ManualClock::new(self.now_ns, 0)))
    }
}

fn snapshot(maker: &Maker, name: &str) -> Result<(SnapshotId, Model), String> {
    let info = maker.stack.cache.snapshot_create(name).map_err(|error| error.to_string())?;
    Ok((info.id, maker.model.clone()))
}

fn make(ending: Ending, points: u64, blocks: u64) -> Result<Reference, String> {
    let device = Arc::new(MemoryDevice::new(blocks));
    let clock = stack::clock();
    stack::create(device.clone(), &clock).map_err(|error| error.to_string())?;
    let stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).map_err(|error| error.to_string())?;
    let mut maker = Maker::new(stack);

    let mut files = Vec::new();
    for number in 0..4 {
        let directory = Node(maker.model.created());
        let name = format!("directory {number}").into_bytes();
        maker.act(Action::Mkdir { parent: Node::ROOT, name, mode: 0o755 })?;
        for name in ["small", "other"] {
            let file = maker.file(directory, name, 2)?;
            let value = Data { seed: 9 + number, length: 300 };
            maker.act(Action::SetXattr { node: file, name: b"user.note".to_vec(), value, mode: XattrMode::Set })?;
            files.push(file);
        }
        let target = vec![b'a' + number as u8; 60];
        maker.act(Action::Symlink { parent: directory, name: b"link".to_vec(), target })?;
    }
    let first = maker.file(Node::ROOT, "large", LARGE_PAGES)?;
    let second = maker.file(Node::ROOT, "large too", LARGE_PAGES)?;
    let copy = maker.file(Node::ROOT, "copy", 1)?;
    // Only what is in the store can be shared.
    maker.act(Action::SyncAll)?;
    let length = 8 * BLOCK_SIZE as u64;
    maker.act(Action::Copy { source: first, source_offset: 0, target: copy, target_offset: 0, length })?;
    if blocks == LARGE_BLOCKS {
        share_far_off(&mut maker, copy, length)?;
    }
    // More than one page of object records.
    for number in 0..12 {
        maker.file(Node::ROOT, &format!("file {number}"), 1)?;
    }
    let mut snapshots = vec![snapshot(&maker, "one")?];
    // What goes away now only the snapshots have, in two dead lists.
    for (number, name) in ["two", "three"].into_iter().enumerate() {
        maker.write(first, 20 * number, 77, OVERWRITE_BYTES)?;
        maker.write(second, 64, 78, OVERWRITE_BYTES)?;
        let name_gone = format!("file {number}").into_bytes();
        maker.act(Action::Unlink { parent: Node::ROOT, name: name_gone })?;
        let value = Data { seed: 40 + number as u64, length: 200 };
        maker.act(Action::SetXattr {
            node: files[number],
            name: b"user.note".to_vec(),
            value,
            mode: XattrMode::Set,
        })?;
        snapshots.push(snapshot(&maker, name)?);
    }
    if blocks == LARGE_BLOCKS {
        // More than one page of the list.
        for (number, name) in ["four", "five"].into_iter().enumerate() {
            maker.write(second, 10 * number, 79, OVERWRITE_BYTES)?;
            snapshots.push(snapshot(&maker, name)?);
        }
    }
    // If two superblocks that change places are gone, it is the recovery point before both.
    let mut older = Vec::new();
    for point in 0..points {
        older.push(maker.model.clone());
        maker.write(copy, 2, 200 + point, OVERWRITE_BYTES)?;
        maker.act(Action::SyncAll)?;
    }
    older.push(maker.model.clone());
    maker.write(copy, 1, 79, OVERWRITE_BYTES)?;
    maker.act(Action::SyncAll)?;
    if ending != Ending::Closed {
        for (node, seed) in [(first, 5), (copy, 6)] {
            older.push(maker.model.clone());
            let data = Data { seed, length: BLOCK_SIZE };
            maker.act(Action::Write { node, offset: 0, data, clear_set_ids: false })?;
            maker.act(Action::Sync { node, data_only: false })?;
            if ending == Ending::Sealed {
                maker.stack.clock.advance_ns(SEAL_NS);
                maker.stack.cache.tick().map_err(|error| error.to_string())?;
            }
        }
    } else {
        maker.stack.close().map_err(|error| error.to_string())?;
    }
    let image = MemoryDevice::clone(&device);
    let catalogue = catalogue(&image)?;
    older.reverse();
    let snapshot_models = snapshots.iter_mut().map(|(_, model)| model);
    snapshot_models.chain(&mut older).for_each(Model::end_sessions);
    maker.model.end_sessions();
    let Maker { driver, model, stack } = maker;
    let now_ns = stack.clock.monotonic_ns() + STEP_NS;
    Ok(Reference { image, catalogue, model, older, snapshots, driver, now_ns })
}

/// Shares pages that another page of the reference table counts than those before.
fn share_far_off(maker: &mut Maker, target: Node, length: u64) -> Result<(), String> {
    let mut fillers = Vec::new();
    for number in 0..FILLERS.0 {
        let name = format!("filler {number}");
        fillers.push((maker.file(Node::ROOT, &name, FILLERS.1)?, name));
        maker.act(Action::SyncAll)?;
    }
    let source = maker.file(Node::ROOT, "far off", 8)?;
    maker.act(Action::SyncAll)?;
    maker.act(Action::Copy {
        source,
        source_offset: 0,
        target,
        target_offset: length,
        length: 7 * BLOCK_SIZE as u64,
    })?;
    for (node, name) in fillers {
        maker.act(Action::Unlink { parent: Node::ROOT, name: name.into_bytes() })?;
        maker.act(Action::Forget { node, count: 1 })?;
    }
    Ok(())
}

/// What is on a device at this moment. The reading leaves it alone.
pub(super) fn catalogue(device: &MemoryDevice) -> Result<Catalogue, String> {
    let device: Arc<dyn Device> = Arc::new(device.clone());
    Catalogue::read(&device).map_err(|error| error.to_string())
}
