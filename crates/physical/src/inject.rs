//! The enemy within: damage to blocks of a chosen kind in a store that nobody has open, as a failing disk would do it.
//!
//! What is damaged is chosen from a *catalogue* of all blocks in use, which the offline check's walk makes; the bytes
//! themselves are never looked into. A [`plan`] says which blocks get which bytes, with what they hold before, so that it
//! can be undone; [`write`] does it.
//!
//! Invariant: every change of a plan changes something, and no block occurs twice in one.

use crate::check::{self, BlockRole, BlockUse, CheckOptions};
use crate::disk::device_error;
use crate::format::RECORDS;
use crate::format::superblock::ring_block;
use crate::objects::{system_key, table_of};
use crate::open::{read_label, read_rings};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_object::{Kind, ObjectKey, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// The bytes of a block.
pub type Bytes = [u8; BLOCK_SIZE];

/// Kinds of blocks, as a user can name them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockClass {
    /// The label block of a label.
    Label,
    /// A superblock in the rings. The newest recovery point's has the index 0.
    Superblock,
    /// A page of an object table: object records.
    ObjectTable,
    /// A tree block of an object of the store itself.
    SystemTree,
    /// A tree block of a file, directory or other object of a domain.
    BlockTree,
    /// The allocation bitmap.
    Bitmap,
    /// The reference table.
    ReferenceTable,
    /// A map of object ids, or of objects without a name.
    Map,
    /// The list of a domain's snapshots.
    SnapshotList,
    /// A dead list: blocks that only snapshots have.
    DeadList,
    /// A page of a directory.
    Directory,
    /// A page of extended attributes.
    Xattr,
    /// A page of a symbolic link.
    Symlink,
    /// A page of a regular file.
    FileData,
    /// A block of the intent log that the next mount replays: head or page, or a page written ahead.
    IntentLog,
}

impl BlockClass {
    /// All of them.
    pub const ALL: [BlockClass; 15] = [
        BlockClass::Label,
        BlockClass::Superblock,
        BlockClass::ObjectTable,
        BlockClass::SystemTree,
        BlockClass::BlockTree,
        BlockClass::Bitmap,
        BlockClass::ReferenceTable,
        BlockClass::Map,
        BlockClass::SnapshotList,
        BlockClass::DeadList,
        BlockClass::Directory,
        BlockClass::Xattr,
        BlockClass::Symlink,
        BlockClass::FileData,
        BlockClass::IntentLog,
    ];

    /// Whether such a block is of one file, directory or other object of a domain.
    pub fn is_of_object(self) -> bool {
        use BlockClass::{BlockTree, Directory, FileData, Symlink, Xattr};
        matches!(self, BlockTree | Directory | Xattr | Symlink | FileData)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            BlockClass::Label => "label",
            BlockClass::Superblock => "superblock",
            BlockClass::ObjectTable => "object-table",
            BlockClass::SystemTree => "system-tree",
            BlockClass::BlockTree => "block-tree",
            BlockClass::Bitmap => "bitmap",
            BlockClass::ReferenceTable => "reference-table",
            BlockClass::Map => "map",
            BlockClass::SnapshotList => "snapshot-list",
            BlockClass::DeadList => "dead-list",
            BlockClass::Directory => "directory",
            BlockClass::Xattr => "xattr",
            BlockClass::Symlink => "symlink",
            BlockClass::FileData => "file-data",
            BlockClass::IntentLog => "intent-log",
        }
    }

    /// What a block in use is.
    pub fn of(used: &BlockUse) -> BlockClass {
        match used.role {
            BlockRole::Label => BlockClass::Label,
            BlockRole::Superblock => BlockClass::Superblock,
            BlockRole::ObjectTable => BlockClass::ObjectTable,
            BlockRole::Tree if used.kind.is_none() => BlockClass::SystemTree,
            BlockRole::Tree => BlockClass::BlockTree,
            BlockRole::Bitmap => BlockClass::Bitmap,
            BlockRole::References => BlockClass::ReferenceTable,
            BlockRole::Map => BlockClass::Map,
            BlockRole::SnapshotList => BlockClass::SnapshotList,
            BlockRole::DeadList => BlockClass::DeadList,
            BlockRole::MetadataPage if used.kind == Some(Kind::Xattr) => BlockClass::Xattr,
            BlockRole::MetadataPage if used.kind == Some(Kind::Symlink) => BlockClass::Symlink,
            BlockRole::MetadataPage => BlockClass::Directory,
            BlockRole::Data => BlockClass::FileData,
            BlockRole::LogHead | BlockRole::LogPage | BlockRole::LogPlaced => BlockClass::IntentLog,
        }
    }
}

/// One block with all its copies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// What it is.
    pub class: BlockClass,
    /// The object that it is part of, if it is part of one.
    pub object: Option<ObjectKey>,
    /// Level in the object's tree; 0 is pages.
    pub level: u8,
    /// Index in that level.
    pub index: u64,
    /// Only snapshots have it: of the same object, level and index there may be several, and one that they do not have.
    #[serde(default)]
    pub held: bool,
    /// Block of each copy on the device.
    pub copies: Vec<u64>,
}

/// All blocks in use, by kind, as far as they can be reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalogue {
    /// The store's UUID.
    pub store_uuid: [u8; 16],
    targets: Vec<Target>,
}

/// What identifies a block, apart from where it is, and from which snapshots have it, if only these do.
type Identity = (BlockClass, Option<ObjectKey>, u8, u8, u64, bool);

impl Catalogue {
    /// Of the newest recovery point of the store on `device`, of the intent log, and of the superblocks before.
    ///
    /// # Errors
    /// As [`check::check`].
    pub fn read(device: &Arc<dyn Device>) -> Result<Catalogue> {
        let mut blocks: BTreeMap<Identity, Vec<BTreeMap<u8, u64>>> = BTreeMap::new();
        let mut note = |used: BlockUse, _: u64| {
            let identity = (BlockClass::of(&used), used.object, used.role as u8, used.level, used.index, used.held);
            let blocks = blocks.entry(identity).or_default();
            // The walk tells all copies of a block before it goes on to another snapshot's.
            match blocks.last_mut().filter(|copies| !copies.contains_key(&used.copy)) {
                Some(copies) => _ = copies.insert(used.copy, used.block),
                None => blocks.push(BTreeMap::from([(used.copy, used.block)])),
            }
        };
        let options = CheckOptions { skip_data: true, ..CheckOptions::default() };
        let report = check::run(device.clone(), &options, &mut note)?;
        let label = read_label(&**device)?;
        for (number, slot, state) in read_rings(&**device, &label)? {
            let Ok(Some(superblock)) = state else { continue };
            // Counted back from the newest, which the walk has told as number 0.
            if superblock.epoch < report.epoch {
                let index = report.epoch - superblock.epoch;
                let identity = (BlockClass::Superblock, None, BlockRole::Superblock as u8, 0, index, false);
                let block = ring_block(number, slot, label.blocks);
                let blocks = blocks.entry(identity).or_default();
                if blocks.is_empty() {
                    blocks.push(BTreeMap::new());
                }
                blocks[0].insert(number as u8, block);
            }
        }
        let targets = blocks.into_iter().flat_map(|((class, object, _, level, index, held), blocks)| {
            let target = move |copies: BTreeMap<u8, u64>| {
                let copies = copies.into_values().collect();
                Target { class, object, level, index, held, copies }
            };
            blocks.into_iter().map(target)
        });
        Ok(Catalogue { store_uuid: report.store_uuid, targets: targets.collect() })
    }

    /// Blocks of a kind, by object, level and index.
    pub fn of_class(&self, class: BlockClass) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(move |target| target.class == class)
    }
}

/// What is done to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// So many different bits are inverted.
    Flip {
        /// At least 1, at most 32768.
        bits: u32,
    },
    /// This bit is inverted: `bit % 8` of the byte `bit / 8`.
    FlipBit {
        /// Below 32768.
        bit: u32,
    },
    /// As if the write had been acknowledged and never done, on a device that was all zeros.
    Drop,
    /// The bytes of another block of the same kind, as if its write had landed here as well.
    Duplicate,
    /// Two blocks of the same kind in each other's place.
    Swap,
}

/// Which of a block's copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    /// This one, from 0.
    One(usize),
    /// Every one.
    All,
}

/// Which block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selection {
    /// Of this kind.
    pub class: BlockClass,
    /// Of this object.
    pub object: Option<ObjectKey>,
    /// Of this page, or the lowest tree block above it.
    pub page: Option<u64>,
    /// One that only snapshots have will do, too.
    pub held: bool,
    /// Of it.
    pub copies: Copies,
    /// Decides between the blocks that remain, and which bits are flipped.
    pub seed: u64,
}

/// A block that gets other bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Block on the device.
    pub block: u64,
    /// What it holds.
    pub before: Box<Bytes>,
    /// What it will hold.
    pub after: Box<Bytes>,
}

/// The object table that has the record of an object of a domain, and the page of it.
pub fn table_page(object: ObjectKey) -> (ObjectKey, u64) {
    (system_key(table_of(object.domain)), object.object.0 / RECORDS)
}

/// Damage that has not been done yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injection {
    /// The block to damage.
    pub target: Target,
    /// The block whose bytes it gets, of [`Fault::Duplicate`] and [`Fault::Swap`].
    pub other: Option<Target>,
    /// What to write.
    pub changes: Vec<Change>,
}

/// Why there is nothing to damage.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InjectError {
    /// No block is what was asked for.
    #[error("the store has no block of the kind {} there", .0.name())]
    NoSuchBlock(BlockClass),
    /// Copies are fewer.
    #[error("{} block {index} has {copies} copies, and copy {asked} was asked for", .class.name())]
    NoSuchCopy {
        /// Kind of the block.
        class: BlockClass,
        /// Its index.
        index: u64,
        /// How many it has.
        copies: usize,
        /// From 1.
        asked: usize,
    },
    /// All the bytes that could be put there are there already.
    #[error("the store has no other block of the kind {} with other contents", .0.name())]
    NoOther(BlockClass),
    /// The block is all zeros, as if it had never been written.
    #[error("block {0} is all zeros: dropping its write changes nothing")]
    ZeroAlready(u64),
    /// More bits than there are.
    #[error("{0} bits cannot be flipped in a block of 32768")]
    Bits(u32),
    /// Not so many.
    #[error("there is no bit {0} in a block: it has 32768")]
    NoSuchBit(u32),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] holdfast_object::Error),
}

/// Chooses a block and works out what it will hold. Nothing is written.
///
/// # Errors
/// [`InjectError`] says what there is none of.
pub fn plan(
    device: &dyn Device,
    catalogue: &Catalogue,
    selection: &Selection,
    fault: Fault,
) -> std::result::Result<Injection, InjectError> {
    let class = selection.class;
    let mut random = Random::new(selection.seed);
    let level = u8::from(class == BlockClass::BlockTree);
    let index = selection.page.map(|page| if level == 0 { page } else { page / crate::format::POINTERS });
    let mut fitting: Vec<&Target> = catalogue
        .of_class(class)
        .filter(|target| selection.held || !target.held)
        .filter(|target| selection.object.is_none_or(|object| target.object == Some(object)))
        .filter(|target| index.is_none_or(|index| (target.level, target.index) == (level, index)))
        .collect();
    if class == BlockClass::Superblock && index.is_none() {
        // Damage to one that is not needed any more would be none.
        fitting.truncate(1);
    }
    let Some(&target) = fitting.get(random.below(fitting.len() as u64) as usize) else {
        return Err(InjectError::NoSuchBlock(class));
    };
    let struck: Vec<usize> = match selection.copies {
        Copies::All => (0..target.copies.len()).collect(),
        Copies::One(copy) if copy < target.copies.len() => vec![copy],
        Copies::One(copy) => {
            let (index, copies) = (target.index, target.copies.len());
            return Err(InjectError::NoSuchCopy { class, index, copies, asked: copy + 1 });
        }
    };
    let mut changes = Vec::new();
    let mut other = None;
    match fault {
        Fault::Flip { bits } => {
            for &copy in &struck {
                let before = read(device, target.copies[copy])?;
                let mut after = before.clone();
                flip(&mut after, bits, &mut random)?;
                changes.push(Change { block: target.copies[copy], before, after });
            }
        }
        Fault::FlipBit { bit } => {
            for &copy in &struck {
                let before = read(device, target.copies[copy])?;
                let mut after = before.clone();
                *after.get_mut(bit as usize / 8).ok_or(InjectError::NoSuchBit(bit))? ^= 1 << (bit % 8);
                changes.push(Change { block: target.copies[copy], before, after });
            }
        }
        Fault::Drop => {
            for &copy in &struck {
                let (block, before) = (target.copies[copy], read(device, target.copies[copy])?);
                let after = Box::new([0; BLOCK_SIZE]);
                if before == after {
                    return Err(InjectError::ZeroAlready(block));
                }
                changes.push(Change { block, before, after });
            }
        }
        Fault::Duplicate | Fault::Swap => {
            let swap = fault == Fault::Swap;
            let all: Vec<&Target> = catalogue.of_class(class).collect();
            let start = random.below(all.len() as u64) as usize;
            for at in 0..all.len() {
                let candidate = all[(start + at) % all.len()];
                if candidate != target
                    && let Some(found) = exchange(device, target, candidate, &struck, swap)?
                {
                    (changes, other) = (found, Some(candidate.clone()));
                    break;
                }
            }
            if changes.is_empty() {
                // Labels and superblocks have a number of their own in each copy.
                changes = rotate(device, target, &struck, swap)?.ok_or(InjectError::NoOther(class))?;
                other = Some(target.clone());
            }
        }
    }
    Ok(Injection { target: target.clone(), other, changes })
}

/// The bytes of `other` in the place of `target`, copy for copy, and with `swap` the other way as well; `None` if that
/// would change nothing.
fn exchange(
    device: &dyn Device,
    target: &Target,
    other: &Target,
    struck: &[usize],
    swap: bool,
) -> Result<Option<Vec<Change>>> {
    let mut changes = Vec::new();
    for &copy in struck {
        let (here, there) = (target.copies[copy], *other.copies.get(copy).unwrap_or(&other.copies[0]));
        let (mine, its) = (read(device, here)?, read(device, there)?);
        let is_known = |changes: &[Change]| changes.iter().any(|change| change.block == here || change.block == there);
        // Blocks shared by files are one block.
        if mine == its || is_known(&changes) {
            return Ok(None);
        }
        if swap {
            changes.push(Change { block: there, before: its.clone(), after: mine.clone() });
        }
        changes.push(Change { block: here, before: mine, after: its });
    }
    Ok(Some(changes))
}

/// Each copy struck gets the bytes of the one behind it, and of two that are swapped the other way as well.
fn rotate(device: &dyn Device, target: &Target, struck: &[usize], swap: bool) -> Result<Option<Vec<Change>>> {
    let copies = &target.copies;
    let mut bytes = Vec::new();
    for &block in copies {
        bytes.push(read(device, block)?);
    }
    let next = |copy: usize| (copy + 1) % copies.len();
    let mut changes = Vec::new();
    for &copy in struck {
        let change = |to: usize, from: usize| Change {
            block: copies[to],
            before: bytes[to].clone(),
            after: bytes[from].clone(),
        };
        changes.push(change(copy, next(copy)));
        if swap && struck.len() == 1 {
            changes.push(change(next(copy), copy));
        }
    }
    Ok(changes.iter().all(|change| change.before != change.after).then_some(changes))
}

fn flip(bytes: &mut Bytes, bits: u32, random: &mut Random) -> std::result::Result<(), InjectError> {
    const ALL: u32 = BLOCK_SIZE as u32 * 8;
    if bits == 0 || bits > ALL {
        return Err(InjectError::Bits(bits));
    }
    for bit in different_bits(bits, ALL, random) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    Ok(())
}

/// So many different numbers below `all`, at most as many as there are.
pub fn different_bits(bits: u32, all: u32, random: &mut Random) -> Vec<u32> {
    let mut done = std::collections::BTreeSet::new();
    while done.len() < bits.min(all) as usize {
        done.insert(random.below(all.into()) as u32);
    }
    done.into_iter().collect()
}

/// Reads a block, whatever it holds.
///
/// # Errors
/// [`holdfast_object::Error::Device`].
pub fn read(device: &dyn Device, block: u64) -> Result<Box<Bytes>> {
    let mut bytes = Box::new([0; BLOCK_SIZE]);
    device.read(block, &mut [IoSliceMut::new(&mut bytes[..])]).map_err(|error| device_error(&error))?;
    Ok(bytes)
}

/// Writes blocks, durably.
///
/// # Errors
/// [`holdfast_object::Error::Device`]; then any of them may have been written.
pub fn write<'a>(device: &dyn Device, blocks: impl IntoIterator<Item = (u64, &'a Bytes)>) -> Result<()> {
    for (block, bytes) in blocks {
        device.write(block, &[IoSlice::new(bytes)]).map_err(|error| device_error(&error))?;
    }
    device.flush().map_err(|error| device_error(&error))
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
