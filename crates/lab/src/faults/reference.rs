//! Stores that have a block of every kind, with what is in them.

use crate::maker::{Maker, STEP_NS};
use crate::model::{Action, Data, Driver, Model, Node};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice};
use holdfast_naming::XattrMode;
use holdfast_object::{Clock, DomainId, Kind, ObjectId};
use holdfast_physical::check::{BlockRole, BlockUse, block_uses};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// 8 MiB.
const DEVICE_BLOCKS: u64 = 2048;
/// Pages of the large files: two lowest tree blocks and one above.
const LARGE_PAGES: usize = 70;

/// Kinds of blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum BlockKind {
    Label,
    Superblock,
    ObjectTable,
    SystemTree,
    FileTree,
    Bitmap,
    ReferenceTable,
    ObjectMap,
    OrphanMap,
    DirectoryPage,
    XattrPage,
    SymlinkPage,
    FileData,
    EarlierLogHeader,
    EarlierLogPage,
    LastLogHeader,
    LastLogPage,
}

impl BlockKind {
    /// All of them.
    pub const ALL: [BlockKind; 17] = [
        BlockKind::Label,
        BlockKind::Superblock,
        BlockKind::ObjectTable,
        BlockKind::SystemTree,
        BlockKind::FileTree,
        BlockKind::Bitmap,
        BlockKind::ReferenceTable,
        BlockKind::ObjectMap,
        BlockKind::OrphanMap,
        BlockKind::DirectoryPage,
        BlockKind::XattrPage,
        BlockKind::SymlinkPage,
        BlockKind::FileData,
        BlockKind::EarlierLogHeader,
        BlockKind::EarlierLogPage,
        BlockKind::LastLogHeader,
        BlockKind::LastLogPage,
    ];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            BlockKind::Label => "label",
            BlockKind::Superblock => "superblock (newest)",
            BlockKind::ObjectTable => "object table",
            BlockKind::SystemTree => "tree block of the object table",
            BlockKind::FileTree => "tree block of a file",
            BlockKind::Bitmap => "allocation bitmap",
            BlockKind::ReferenceTable => "reference table",
            BlockKind::ObjectMap => "map of objects",
            BlockKind::OrphanMap => "map of orphans",
            BlockKind::DirectoryPage => "directory page",
            BlockKind::XattrPage => "xattr page",
            BlockKind::SymlinkPage => "symlink page",
            BlockKind::FileData => "file data",
            BlockKind::EarlierLogHeader => "log header, not the last batch",
            BlockKind::EarlierLogPage => "log page, not the last batch",
            BlockKind::LastLogHeader => "log header, last batch",
            BlockKind::LastLogPage => "log page, last batch",
        }
    }
}

/// One copy of a block.
pub(super) struct Copy {
    pub(super) block: u64,
    /// What it held before it was last written.
    pub(super) before: Box<[u8; BLOCK_SIZE]>,
}

/// A block to damage.
pub(super) struct Target {
    pub(super) copies: Vec<Copy>,
    /// Another block of the same kind, or of a similar one.
    pub(super) stranger: Box<[u8; BLOCK_SIZE]>,
}

/// A store, what is in it, and the blocks to damage.
pub(super) struct Reference {
    pub(super) image: MemoryDevice,
    pub(super) model: Model,
    /// What it was at earlier recovery points and before the last sync, newest first.
    pub(super) older: Vec<Model>,
    pub(super) driver: Driver,
    pub(super) now_ns: u64,
    pub(super) targets: BTreeMap<BlockKind, Target>,
}

impl Reference {
    /// A store closed in order, and one cut off with synced changes in the intent log only.
    pub(super) fn make_all() -> Result<Vec<Reference>, String> {
        Ok(vec![make(false)?, make(true)?])
    }
}

fn make(cut_off: bool) -> Result<Reference, String> {
    let witness = Arc::new(Witness::new(MemoryDevice::new(DEVICE_BLOCKS)));
    let clock = stack::clock();
    stack::create(witness.clone(), &clock).map_err(|error| error.to_string())?;
    let stack = Stack::open(witness.clone(), &StackOptions::new(1024), &clock).map_err(|error| error.to_string())?;
    let mut maker = Maker::new(stack);

    for number in 0..3 {
        let directory = Node(maker.model.created());
        let name = format!("directory {number}").into_bytes();
        maker.act(Action::Mkdir { parent: Node::ROOT, name, mode: 0o755 })?;
        for name in ["small", "other"] {
            let file = maker.file(directory, name, 2)?;
            let value = Data { seed: 9, length: 300 };
            let name = b"user.note".to_vec();
            maker.act(Action::SetXattr { node: file, name, value, mode: XattrMode::Set })?;
        }
        let target = vec![b'a' + number; 60];
        maker.act(Action::Symlink { parent: directory, name: b"link".to_vec(), target })?;
    }
    let first = maker.file(Node::ROOT, "large", LARGE_PAGES)?;
    maker.file(Node::ROOT, "large too", LARGE_PAGES)?;
    let copy = maker.file(Node::ROOT, "copy", 1)?;
    // Only what is in the store can be shared.
    maker.act(Action::SyncAll)?;
    let length = 8 * BLOCK_SIZE as u64;
    maker.act(Action::Copy { source: first, source_offset: 0, target: copy, target_offset: 0, length })?;
    // More than one page of object records.
    for number in 0..12 {
        maker.file(Node::ROOT, &format!("file {number}"), 1)?;
    }
    let orphan = maker.file(Node::ROOT, "orphan", 1)?;
    maker.act(Action::Open { node: orphan, truncate: false })?;
    maker.act(Action::Unlink { parent: Node::ROOT, name: b"orphan".to_vec() })?;
    maker.act(Action::SyncAll)?;
    let mut older = vec![maker.model.clone()];
    // Once more everything, so that blocks have something before.
    for node in [first, copy] {
        let data = Data { seed: 77, length: 3 * BLOCK_SIZE };
        maker.act(Action::Write { node, offset: BLOCK_SIZE as u64, data, clear_set_ids: false })?;
    }
    maker.act(Action::SyncAll)?;

    let mut targets = BTreeMap::new();
    if cut_off {
        let mut batches = Vec::new();
        for (node, seed) in [(first, 5), (copy, 6)] {
            older.push(maker.model.clone());
            let data = Data { seed, length: BLOCK_SIZE };
            maker.act(Action::Write { node, offset: 0, data, clear_set_ids: false })?;
            witness.writes.lock().clear();
            maker.act(Action::Sync { node, data_only: false })?;
            let writes = witness.writes.lock().clone();
            let first = writes.iter().map(|write| write.start).min().ok_or("a sync wrote nothing")?;
            let end = writes.iter().map(|write| write.end).max().ok_or("a sync wrote nothing")?;
            batches.push(first..end);
        }
        log_targets(&witness, &batches, &mut targets)?;
    } else {
        maker.stack.close().map_err(|error| error.to_string())?;
        let uses = block_uses(witness.clone()).map_err(|error| error.to_string())?;
        store_targets(&witness, &maker, &uses, &mut targets)?;
    }
    maker.model.end_sessions();
    older.reverse();
    older.iter_mut().for_each(Model::end_sessions);
    maker.driver.forget_gone(&maker.model);
    let Maker { driver, model, stack } = maker;
    let now_ns = stack.clock.monotonic_ns() + STEP_NS;
    Ok(Reference { image: witness.inner.clone(), model, older, driver, now_ns, targets })
}

/// Blocks of the recovery point.
fn store_targets(
    witness: &Witness,
    maker: &Maker,
    uses: &[BlockUse],
    targets: &mut BTreeMap<BlockKind, Target>,
) -> Result<(), String> {
    let kind_of = |object: ObjectId| maker.stack.module.objects(DomainId::MAIN, ObjectId(object.0 - 1), 1);
    let mut by_kind: BTreeMap<BlockKind, Vec<&BlockUse>> = BTreeMap::new();
    for used in uses {
        let key = used.object;
        let main = key.filter(|key| key.domain == DomainId::MAIN);
        let system = key.filter(|key| key.domain == DomainId::SYSTEM).map(|key| key.object.0);
        let kind = match (used.role, main, system) {
            (BlockRole::Label, ..) => BlockKind::Label,
            (BlockRole::Superblock, ..) => BlockKind::Superblock,
            (BlockRole::Tree, Some(_), _) => BlockKind::FileTree,
            (BlockRole::Tree, _, Some(16)) => BlockKind::SystemTree,
            (BlockRole::ObjectTable, _, Some(16)) => BlockKind::ObjectTable,
            (BlockRole::Bitmap, ..) => BlockKind::Bitmap,
            (BlockRole::References, ..) => BlockKind::ReferenceTable,
            (BlockRole::Map, _, Some(17)) => BlockKind::ObjectMap,
            (BlockRole::Map, _, Some(18)) => BlockKind::OrphanMap,
            (BlockRole::Data, ..) => BlockKind::FileData,
            (BlockRole::MetadataPage, Some(key), _) => {
                let found = kind_of(key.object).map_err(|error| error.to_string())?;
                match found.first().map(|(_, attributes)| attributes.kind) {
                    Some(Kind::Directory) => BlockKind::DirectoryPage,
                    Some(Kind::Symlink) => BlockKind::SymlinkPage,
                    Some(Kind::Xattr) => BlockKind::XattrPage,
                    other => return Err(format!("{key} has metadata pages and is {other:?}")),
                }
            }
            _ => continue,
        };
        by_kind.entry(kind).or_default().push(used);
    }
    for (kind, uses) in &by_kind {
        let same = |a: &BlockUse, b: &BlockUse| (a.object, a.level, a.index) == (b.object, b.level, b.index);
        let chosen = uses[0];
        let mut copies: Vec<&BlockUse> = uses.iter().copied().filter(|used| same(used, chosen)).collect();
        copies.sort_by_key(|used| used.copy);
        let stranger = uses.iter().find(|used| !same(used, chosen)).map(|used| used.block);
        // Of some kinds there is one block only: then one of the object table, valid in its own place.
        let stranger = stranger.unwrap_or_else(|| by_kind[&BlockKind::ObjectTable][0].block);
        let copies = copies.into_iter().map(|used| witness.copy(used.block)).collect();
        targets.insert(*kind, Target { copies, stranger: Box::new(witness.block(stranger)) });
    }
    Ok(())
}

/// Blocks of the intent log: a batch of one page is header, page, and the header again.
fn log_targets(
    witness: &Witness,
    batches: &[Range<u64>],
    targets: &mut BTreeMap<BlockKind, Target>,
) -> Result<(), String> {
    let kinds =
        [(BlockKind::EarlierLogHeader, BlockKind::EarlierLogPage), (BlockKind::LastLogHeader, BlockKind::LastLogPage)];
    for (number, batch) in batches.iter().enumerate() {
        let other = &batches[1 - number];
        if batch.end - batch.start != 3 || other.end - other.start != 3 {
            return Err(format!("a log batch of one page takes the blocks {batch:?}"));
        }
        let header = [batch.start, batch.start + 2].map(|block| witness.copy(block)).into();
        let stranger = Box::new(witness.block(other.start));
        targets.insert(kinds[number].0, Target { copies: header, stranger });
        let stranger = Box::new(witness.block(other.start + 1));
        targets.insert(kinds[number].1, Target { copies: vec![witness.copy(batch.start + 1)], stranger });
    }
    Ok(())
}

/// A device that remembers what each block held before it was last written.
struct Witness {
    inner: MemoryDevice,
    before: Mutex<BTreeMap<u64, Box<[u8; BLOCK_SIZE]>>>,
    /// Blocks of each write.
    writes: Mutex<Vec<Range<u64>>>,
}

impl Witness {
    fn new(inner: MemoryDevice) -> Witness {
        Witness { inner, before: Mutex::default(), writes: Mutex::default() }
    }

    fn block(&self, at: u64) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        self.inner.read(at, &mut [IoSliceMut::new(&mut block)]).expect("the block is on the device");
        block
    }

    fn copy(&self, block: u64) -> Copy {
        let before = self.before.lock().get(&block).cloned().unwrap_or_else(|| Box::new([0; BLOCK_SIZE]));
        Copy { block, before }
    }
}

impl Filter for Witness {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let blocks = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>() / BLOCK_SIZE as u64;
        for block in first..(first + blocks).min(self.blocks()) {
            self.before.lock().insert(block, Box::new(self.block(block)));
        }
        self.writes.lock().push(first..first + blocks);
        self.inner.write(first, bufs)
    }
}
