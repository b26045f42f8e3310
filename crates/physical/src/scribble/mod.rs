//! For the lab: writes to metadata in memory as nobody may, past everything that keeps the sums right, and logic bugs: wrong changes by who may.
//!
//! The former stands in for a flipped bit, or for a program that writes through a wrong pointer. What is hit is chosen from a list of what
//! memory has of the store's metadata; what was hit is told by name. `holdfast inject` and the lab's campaign go through it.
//!
//! | file | job |
//! |---|---|
//! | `mod` | what there is, and writing to it |
//! | `cells` | what is no block: numbers by name |
//! | `choice` | choosing what is written over, and with what |
//! | `aim` | the same for what is not the store's |
//! | `ambush` | strikes that wait until a recovery point is made |
//! | `audited` | what no sum sees, where the audit is to find it |
//! | `logic` | wrong changes by legal ways |
//! | `wrong` | the same of each field |
//! | `facts` | what a recovery point says, to be compared |

mod aim;
mod ambush;
mod audited;
mod cells;
mod choice;
mod facts;
mod logic;
mod wrong;

use crate::alloc::{Alloc, Bits};
use crate::format::fields::Fields;
use crate::format::record::FIELDS as RECORD;
use crate::format::snapshot::{DEAD_BYTES, DEAD_FIELDS, FIELDS as SNAPSHOT, SNAPSHOT_BYTES};
use crate::format::{RECORD_BYTES, RECORDS, SystemKind, blockptr, label, superblock};
use crate::inject::Random;
use crate::locked_block::LockedBlock;
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::objects::{system_key, system_kind, table_of};
use crate::tree::{Change, Trees};
pub use aim::{Aim, Misaimed, field_of};
pub(crate) use ambush::Ambush;
pub use ambush::{BATCH_PARTS, Blow, Blown, Fallen, Moment};
pub(crate) use cells::Cells;
use cells::{Part, pointer_parts, record_parts};
pub use choice::{Choice, Missed, Pattern};
pub use facts::Exactness;
use holdfast_object::{DomainId, ObjectKey};
pub use logic::LogicBug;
use parking_lot::{MutexGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Metadata in memory, by kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetaKind {
    /// Block of records of objects.
    ObjectTable,
    /// Tree block of one of the store's own objects.
    SystemTree,
    /// Tree block of an object.
    BlockTree,
    /// Block of the allocation bitmap.
    Bitmap,
    /// Block of counters of references.
    ReferenceTable,
    /// Block of a map of objects or orphans.
    Map,
    /// Block of a list of snapshots.
    SnapshotList,
    /// Block of a dead list.
    DeadList,
    /// Record in use: of an object that the epoch being built has changed, of one of the store's own, or (clean) of a snapshot's object table.
    Record,
    /// Bits of the allocator: in use, freed by the epoch being built, written ahead.
    Allocator,
    /// The label.
    Label,
    /// The superblock of the last recovery point, or one that is prepared.
    Superblock,
    /// What is known of the intent log: the store and epoch that batches name, and the ends of its halves.
    IntentLog,
    /// A snapshot, as it was read from the list.
    Snapshot,
    /// A run of blocks that is to join a dead list.
    DeadRun,
    /// For which epoch a block was written ahead.
    WrittenAhead,
    /// What blocks of the intent log hold, by sums of their sectors.
    LogContents,
    /// Numbers that superblocks are made from.
    Counts,
    /// Other numbers that are in no block: what is promised and kept back, limits, the next free ones, the device's.
    Numbers,
    /// Sums of the audit.
    Audit,
    /// Where a block that the epoch being built has changed is to be written.
    Destination,
    /// A batch of the intent log while it is put together, which only an ambush meets ([`Lab::lay_ambush`]).
    LogBatch,
}

impl MetaKind {
    /// All of them.
    pub const ALL: [MetaKind; 22] = [
        MetaKind::ObjectTable,
        MetaKind::SystemTree,
        MetaKind::BlockTree,
        MetaKind::Bitmap,
        MetaKind::ReferenceTable,
        MetaKind::Map,
        MetaKind::SnapshotList,
        MetaKind::DeadList,
        MetaKind::Record,
        MetaKind::Allocator,
        MetaKind::Label,
        MetaKind::Superblock,
        MetaKind::IntentLog,
        MetaKind::Snapshot,
        MetaKind::DeadRun,
        MetaKind::WrittenAhead,
        MetaKind::LogContents,
        MetaKind::Counts,
        MetaKind::Numbers,
        MetaKind::Audit,
        MetaKind::Destination,
        MetaKind::LogBatch,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            MetaKind::ObjectTable => "object-table",
            MetaKind::SystemTree => "system-tree",
            MetaKind::BlockTree => "block-tree",
            MetaKind::Bitmap => "bitmap",
            MetaKind::ReferenceTable => "reference-table",
            MetaKind::Map => "map",
            MetaKind::SnapshotList => "snapshot-list",
            MetaKind::DeadList => "dead-list",
            MetaKind::Record => "record",
            MetaKind::Allocator => "allocator",
            MetaKind::Label => "label",
            MetaKind::Superblock => "superblock",
            MetaKind::IntentLog => "intent-log",
            MetaKind::Snapshot => "snapshot",
            MetaKind::DeadRun => "dead-run",
            MetaKind::WrittenAhead => "written-ahead",
            MetaKind::LogContents => "log-contents",
            MetaKind::Counts => "counts",
            MetaKind::Numbers => "numbers",
            MetaKind::Audit => "audit",
            MetaKind::Destination => "destination",
            MetaKind::LogBatch => "log-batch",
        }
    }

    /// The states that it comes in.
    pub fn states(self) -> &'static [State] {
        match self {
            MetaKind::Record => &[State::Changed, State::Clean, State::InUse],
            MetaKind::Allocator => &[State::InUse, State::Freed, State::Ahead],
            MetaKind::Superblock => &[State::InUse, State::Prepared],
            MetaKind::IntentLog => &[State::Clean, State::InUse],
            MetaKind::WrittenAhead => &[State::Ahead],
            MetaKind::Label | MetaKind::Snapshot | MetaKind::LogContents | MetaKind::Counts | MetaKind::Numbers => {
                &[State::InUse]
            }
            MetaKind::DeadRun | MetaKind::Audit | MetaKind::Destination | MetaKind::LogBatch => &[State::Changed],
            _ => &[State::Changed, State::Clean],
        }
    }

    /// Of a block.
    fn of(key: NodeKey) -> Option<MetaKind> {
        match (key.domain, key.level) {
            (0, 0) => Some(match system_kind(key.object)? {
                SystemKind::ObjectTable => MetaKind::ObjectTable,
                SystemKind::Bitmap => MetaKind::Bitmap,
                SystemKind::References => MetaKind::ReferenceTable,
                SystemKind::ObjectMap | SystemKind::OrphanMap => MetaKind::Map,
                SystemKind::SnapshotList => MetaKind::SnapshotList,
                SystemKind::DeadLists => MetaKind::DeadList,
            }),
            (0, _) => Some(MetaKind::SystemTree),
            (_, 0) => None,
            _ => Some(MetaKind::BlockTree),
        }
    }

    /// Whether it is of blocks that have two sums beside them.
    pub fn is_block(self) -> bool {
        self <= MetaKind::DeadList
    }

    /// Whether the audit finds it if this field of a block goes bad so that neither of its sums sees it ([`Pattern::KeepAll`]), once something is
    /// changed legally there, or, of the bitmap and of a snapshot list, in that block: the first column in docs/audit.md, *What no checksum sees*.
    pub fn is_audited(self, field: &str) -> bool {
        match self {
            MetaKind::ObjectTable => {
                matches!(field, "blocks" | "root.address[0]" | "root.address[1]" | "root.birth_log")
            }
            MetaKind::Bitmap | MetaKind::SnapshotList => true,
            _ => false,
        }
    }

    /// Whether it consists of slots of the same form.
    pub fn has_slots(self) -> bool {
        self.is_block() || self == MetaKind::Allocator
    }

    /// Whether it is in memory that can be locked ([`crate::locked_block`]).
    pub fn is_lockable(self) -> bool {
        self.is_block() || matches!(self, MetaKind::Label | MetaKind::Superblock)
    }

    /// Bytes and fields of what a block of the kind, or the bits of a chunk, consist of.
    fn slot(self) -> (usize, Vec<Part>) {
        let mut parts = Vec::new();
        let of = |fields: Fields, nested: &str| -> Vec<Part> {
            let own = fields.each().filter(|(name, ..)| *name != nested);
            own.map(|(name, at, length)| (name.to_string(), at, length)).collect()
        };
        let bytes = match self {
            MetaKind::ObjectTable => {
                record_parts(&mut parts, "", 0);
                RECORD_BYTES
            }
            MetaKind::SystemTree | MetaKind::BlockTree => {
                pointer_parts(&mut parts, "", 0);
                blockptr::POINTER_BYTES
            }
            MetaKind::Bitmap | MetaKind::Map | MetaKind::Allocator => {
                parts.push(("bits".into(), 0, 8));
                8
            }
            MetaKind::ReferenceTable => {
                parts.push(("counter".into(), 0, 4));
                4
            }
            MetaKind::SnapshotList => {
                parts = of(SNAPSHOT, "table");
                record_parts(&mut parts, "table.", SNAPSHOT.at("table"));
                SNAPSHOT_BYTES
            }
            MetaKind::DeadList => {
                parts = of(DEAD_FIELDS, "");
                DEAD_BYTES
            }
            MetaKind::Label => {
                parts = of(label::FIELDS, "");
                4096
            }
            MetaKind::Superblock => {
                parts = of(superblock::FIELDS, "root");
                record_parts(&mut parts, "root.", superblock::FIELDS.at("root"));
                4096
            }
            _ => 0,
        };
        debug_assert!(self.is_block() <= (bytes > 0) && RECORD.bytes == RECORD_BYTES);
        parts.sort_by_key(|part| part.1);
        (bytes, parts)
    }
}

impl std::fmt::Display for MetaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What something in memory is to the epoch being built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has changed it.
    Changed,
    /// As it is on the device.
    Clean,
    /// Used for as long as the store is open.
    InUse,
    /// Bits of blocks that it has freed.
    Freed,
    /// Bits of blocks that were written before it.
    Ahead,
    /// Its superblock, before that is written.
    Prepared,
}

impl State {
    /// All of them.
    pub const ALL: [State; 6] =
        [State::Changed, State::Clean, State::InUse, State::Freed, State::Ahead, State::Prepared];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            State::Changed => "changed",
            State::Clean => "clean",
            State::InUse => "in use",
            State::Freed => "freed",
            State::Ahead => "written ahead",
            State::Prepared => "prepared",
        }
    }
}

/// One piece of metadata in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Target {
    /// What it is.
    pub kind: MetaKind,
    /// Its state.
    pub state: State,
    /// The object that it is of, if it is of one.
    pub object: Option<(u16, u64)>,
    /// Level in the object's tree.
    pub level: u8,
    /// Index in that level, or among others of its kind.
    pub index: u64,
    /// Of a clean block, on the device: several versions may be in memory.
    address: u64,
}

impl Target {
    fn new(kind: MetaKind, state: State, index: u64) -> Target {
        Target { kind, state, object: None, level: 0, index, address: 0 }
    }

    fn of_block(kind: MetaKind, state: State, key: NodeKey, address: u64) -> Target {
        let NodeKey { domain, object, level, index } = key;
        Target { kind, state, object: Some((domain, object)), level, index, address }
    }

    fn of_batch() -> Target {
        Target::new(MetaKind::LogBatch, State::Changed, 0)
    }

    fn of_record(state: State, key: ObjectKey) -> Target {
        Target { object: Some((key.domain.0, key.object.0)), ..Target::new(MetaKind::Record, state, key.object.0) }
    }

    fn key(&self) -> NodeKey {
        let (domain, object) = self.object.unwrap_or_default();
        NodeKey { domain, object, level: self.level, index: self.index }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Target { kind, state, level, index, .. } = self;
        write!(f, "{kind}, {}", state.name())?;
        if self.object.is_some() {
            write!(f, ", {}", self.key().object_key())?;
        }
        write!(f, ", level {level}, index {index}")
    }
}

/// The form that a piece of metadata has: equal slots, one after the other, each with these fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Slots in which something is.
    pub used: Vec<usize>,
    /// All slots.
    pub slots: usize,
    /// Fields of a slot: name, first byte, length.
    pub fields: Vec<(String, usize, usize)>,
}

impl Layout {
    fn of(slot_bytes: usize, fields: Vec<Part>, form: &[u8]) -> Layout {
        let slots = form.chunks(slot_bytes.max(1));
        let is_used = |slot: &[u8]| slot.iter().any(|byte| *byte != 0);
        let used = slots.clone().enumerate().filter(|(_, slot)| is_used(slot)).map(|(nth, _)| nth).collect();
        Layout { slot_bytes, used, slots: slots.len(), fields }
    }

    /// Some byte of a slot that is one of a field: numbers that are in no block have gaps between them.
    fn some_byte(&self, random: &mut Random) -> usize {
        let mut nth = random.below(self.fields.iter().map(|(.., length)| *length as u64).sum()) as usize;
        for (_, first, length) in &self.fields {
            match nth.checked_sub(*length) {
                None => return first + nth,
                Some(left) => nth = left,
            }
        }
        0
    }

    /// Slot and field of a byte.
    pub fn name(&self, at: usize) -> String {
        let (slot, byte) = (at / self.slot_bytes.max(1), at % self.slot_bytes.max(1));
        let field = self.fields.iter().find(|(_, first, length)| (*first..first + length).contains(&byte));
        let name = field.map_or("nothing", |field| &field.0);
        if self.slots > 1 { format!("{name} of {slot}") } else { name.to_string() }
    }
}

/// What was written over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Struck {
    /// What of.
    pub target: Target,
    /// First byte of its form that is another one.
    pub offset: usize,
    /// The field of that byte, and the number of its slot, if there are several.
    pub field: String,
    /// Bytes from there to the last one that is another.
    pub before: Vec<u8>,
    /// What they are now.
    pub after: Vec<u8>,
}

impl Struck {
    /// `None`: nothing differs.
    fn of(target: &Target, layout: &Layout, before: &[u8], after: &[u8]) -> Option<Struck> {
        let differs = |at: &usize| before[*at] != after[*at];
        let (first, last) = ((0..before.len()).find(differs)?, (0..before.len()).rfind(differs)?);
        let [before, after] = [before, after].map(|bytes| bytes[first..=last].to_vec());
        Some(Struck { target: *target, offset: first, field: layout.name(first), before, after })
    }
}

impl std::fmt::Display for Struck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        let Struck { target, offset, field, before, after } = self;
        let more = if before.len() > 16 { "…" } else { "" };
        write!(f, "{target}, byte {offset} ({field}): {}{more} is now {}{more}", hex(before), hex(after))
    }
}

/// What is done to bytes.
#[derive(Clone, Copy)]
enum Write<'a> {
    /// These bits are inverted.
    Flip(&'a [u8]),
    /// They become these.
    Bytes(&'a [u8]),
}

/// What a piece of metadata is written to through.
enum Form<'a> {
    Block(&'a mut LockedBlock),
    Words(&'a mut [u64]),
    Cells(Cells<'a>),
}

impl Form<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Form::Block(block) => block.0.to_vec(),
            Form::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Form::Cells(cells) => cells.bytes(),
        }
    }

    fn flip(&mut self, at: usize, pattern: &[u8], astray: bool) {
        match self {
            Form::Block(block) => block.scribble(at, pattern, astray),
            Form::Words(words) => {
                let end = words.len() * 8;
                for (at, flipped) in (at..end).zip(pattern) {
                    words[at / 8] ^= u64::from(*flipped) << (at % 8 * 8);
                }
            }
            Form::Cells(cells) => cells.flip(at, pattern),
        }
    }
}

/// What of a module nobody may touch but the lab.
pub struct Lab<'a> {
    module: &'a Module,
    patience: Duration,
}

impl Module {
    /// The lab's entry: metadata in memory, to be written to as nobody may.
    pub fn lab(&self) -> Lab<'_> {
        Lab { module: self, patience: Duration::ZERO }
    }
}

impl<'a> Lab<'a> {
    /// The same, which waits so long for who is at work with something. Not for who may have a lock of the module.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Lab<'a> {
        Lab { patience, ..self }
    }

    /// Has everything looked at that is not looked at again for a second, as if it had all been used just now. Must be called while nothing of it
    /// is bad.
    pub fn look_at_all(&self) {
        let base = &self.module.base;
        for (key, address) in base.cache.versions() {
            base.cache.checked(key, address, base.now_ms());
        }
        if let Some(trees) = self.trees() {
            trees.look_at_all(base);
            trees.dirty.values().for_each(|dirty| dirty.checked(base.now_ms()));
        }
        if let Some(mut alloc) = self.alloc() {
            alloc.look_at_all();
        }
    }

    fn trees(&self) -> Option<RwLockWriteGuard<'a, Trees>> {
        self.module.trees.try_write_for(self.patience)
    }

    fn alloc(&self) -> Option<MutexGuard<'a, Alloc>> {
        self.module.base.alloc.try_lock_for(self.patience)
    }

    /// What memory has of a kind, in an order that does not depend on chance. What somebody is at work with is left out.
    pub fn targets(&self, kind: MetaKind) -> Vec<Target> {
        let module = self.module;
        let Some(mut trees) = self.trees() else { return Vec::new() };
        let some = |state, count: usize| (0..count as u64).map(move |nth| Target::new(kind, state, nth));
        let mut found: Vec<Target> = match kind {
            kind if kind.is_block() => {
                let changed = trees.dirty.keys().map(|key| (State::Changed, *key, 0));
                let clean = module.base.cache.versions();
                let all = changed.chain(clean.into_iter().map(|(key, address)| (State::Clean, key, address)));
                let of_kind = all.filter(|(_, key, _)| MetaKind::of(*key) == Some(kind));
                of_kind.map(|(state, key, address)| Target::of_block(kind, state, key, address)).collect()
            }
            MetaKind::Record => {
                let present = trees.changed.iter().filter(|(_, change)| matches!(change, Change::Present(_)));
                let changed = present.map(|(key, _)| Target::of_record(State::Changed, *key));
                let own = trees.system.keys().map(|id| Target::of_record(State::InUse, system_key(*id)));
                let snapshots = some(State::Clean, trees.kept.of(DomainId::MAIN).len());
                changed.chain(own).chain(snapshots).collect()
            }
            MetaKind::Allocator => {
                let Some(mut alloc) = self.alloc() else { return Vec::new() };
                let masks = [(State::InUse, Bits::Used), (State::Freed, Bits::Freed), (State::Ahead, Bits::Ahead)];
                let mut found = Vec::new();
                for (state, bits) in masks {
                    let chunks = (0..alloc.chunks()).filter(|chunk| alloc.scribbled(bits, *chunk).is_some());
                    found.extend(chunks.map(|chunk| Target::new(kind, state, chunk)));
                }
                found
            }
            MetaKind::Label => some(State::InUse, 1).collect(),
            MetaKind::Superblock => {
                let is_prepared = module.committing.try_lock().is_some_and(|committing| committing.prepared.is_some());
                some(State::InUse, 1).chain(some(State::Prepared, usize::from(is_prepared))).collect()
            }
            MetaKind::IntentLog => {
                let halves = module.log.try_lock().map_or(0, |_| 2);
                some(State::Clean, 1).chain(some(State::InUse, halves)).collect()
            }
            MetaKind::Snapshot => some(State::InUse, trees.kept.entries(DomainId::MAIN)).collect(),
            MetaKind::DeadRun => some(State::Changed, trees.kept.dying(DomainId::MAIN).count()).collect(),
            MetaKind::WrittenAhead => {
                let Some(alloc) = self.alloc() else { return Vec::new() };
                alloc.placements().map(|block| Target::new(kind, State::Ahead, block)).collect()
            }
            MetaKind::LogContents => some(State::InUse, module.log.try_lock().map_or(0, |log| log.blocks())).collect(),
            MetaKind::Counts | MetaKind::Numbers => some(State::InUse, 1).collect(),
            MetaKind::Destination => {
                trees.dirty.keys().map(|key| Target::of_block(kind, State::Changed, *key, 0)).collect()
            }
            MetaKind::LogBatch => Vec::new(),
            _ => some(State::Changed, 1).collect(),
        };
        found.sort_unstable();
        found
    }

    /// Does something with the form of a piece of metadata; `None` if it is not there any more, or somebody is at work with it.
    fn with<R>(&self, target: &Target, action: impl FnOnce(Form<'_>) -> R) -> Option<R> {
        let module = self.module;
        let mut trees = self.trees()?;
        let nth = target.index as usize;
        match (target.kind, target.state) {
            (kind, State::Changed) if kind.is_block() => {
                let dirty = trees.dirty.get_mut(&target.key())?;
                Some(action(Form::Block(dirty.block.scribbled())))
            }
            (kind, _) if kind.is_block() => {
                let (key, address) = (target.key(), target.address);
                let (_, checked_ms) = module.base.cache.get(key, address)?;
                let birth = module.base.cache.birth(key, address, module.base.disk.newest())?;
                let mut block = module.base.cache.take(key, address)?;
                let done = action(Form::Block(Arc::make_mut(&mut block).scribbled()));
                module.base.cache.put(key, address, birth, block, checked_ms);
                Some(done)
            }
            (MetaKind::Record, State::Changed) => {
                let Some(Change::Present(record)) = trees.changed.get_mut(&target.key().object_key()) else {
                    return None;
                };
                Some(record.scribble(|record| action(Form::Cells(Cells::of_record(record)))))
            }
            (MetaKind::Record, State::Clean) => {
                let table = trees.kept.table(DomainId::MAIN, nth)?;
                Some(table.scribble(|record| action(Form::Cells(Cells::of_record(record)))))
            }
            (MetaKind::Record, _) => {
                let record = trees.system.get_mut(&target.key().object)?;
                Some(record.scribble(|record| action(Form::Cells(Cells::of_record(record)))))
            }
            (MetaKind::Allocator, state) => {
                let bits = match state {
                    State::Freed => Bits::Freed,
                    State::Ahead => Bits::Ahead,
                    _ => Bits::Used,
                };
                Some(action(Form::Words(self.alloc()?.scribbled(bits, target.index)?)))
            }
            (MetaKind::Label, _) => Some(module.sealed.scribbled_label(|block| action(Form::Block(block)))),
            (MetaKind::Superblock, State::Prepared) => {
                let mut committing = module.committing.try_lock()?;
                Some(action(Form::Block(committing.prepared.as_mut()?.scribbled())))
            }
            (MetaKind::Superblock, _) => Some(module.sealed.scribbled_superblock(|block| action(Form::Block(block)))),
            (MetaKind::IntentLog, State::Clean) => Some(module.sealed.scribbled_gist(|store, epoch| {
                let mut cells = Cells::default();
                cells.own("store", store);
                cells.own("epoch", epoch);
                action(Form::Cells(cells))
            })),
            (MetaKind::IntentLog, _) => Some(action(Form::Cells(module.log.try_lock()?.cells(nth)))),
            (MetaKind::Snapshot, _) => Some(action(Form::Cells(trees.kept.cells(DomainId::MAIN, nth)?))),
            (MetaKind::DeadRun, _) => {
                let run = trees.kept.dying(DomainId::MAIN).nth(nth)?;
                Some(action(Form::Cells(Cells::of_dead_run(run))))
            }
            (MetaKind::WrittenAhead, _) => Some(action(Form::Cells(self.alloc()?.placement_cells(target.index)?))),
            (MetaKind::LogContents, _) => {
                Some(action(Form::Cells(module.log.try_lock()?.content_cells(target.index as usize)?)))
            }
            (MetaKind::Numbers, _) => {
                let mut alloc = self.alloc()?;
                let (mut ids, mut committing) = (module.ids.try_lock(), module.committing.try_lock());
                let mut cells = Cells::default();
                alloc.number_cells(&mut cells);
                trees.kept.number_cells(DomainId::MAIN, &mut cells);
                module.disk().number_cells(&mut cells);
                if let Some(next) = ids.as_mut().and_then(|ids| ids.get_mut(&DomainId::MAIN)) {
                    cells.own("next object that may be free", next.scribbled());
                }
                if let Some(committing) = committing.as_deref_mut() {
                    cells.own("newest epoch applied", committing.applied.scribbled());
                    cells.own("times begun anew", committing.restarts.scribbled());
                    if let Some(prepared) = &mut committing.prepared {
                        cells.own("epoch prepared", &mut prepared.epoch);
                    }
                }
                Some(action(Form::Cells(cells)))
            }
            (MetaKind::Counts, _) => {
                let mut alloc = self.alloc()?;
                let trees = &mut *trees;
                let mut cells = Cells::default();
                trees.next_generation.cells("next_generation", &mut cells);
                trees.objects.cells("objects", &mut cells);
                trees.metadata.cells("metadata", &mut cells);
                alloc.count_cells(&mut cells);
                Some(action(Form::Cells(cells)))
            }
            (MetaKind::LogBatch, _) => None,
            (MetaKind::Destination, _) => {
                Some(action(Form::Cells(trees.dirty.get_mut(&target.key())?.address.cells())))
            }
            _ => {
                let trees = &mut *trees;
                let mut cells = trees.audit.cells();
                trees.kept.listed_cells(&mut cells);
                Some(action(Form::Cells(cells)))
            }
        }
    }

    /// The form of a piece of metadata, if it is there.
    pub fn layout(&self, target: &Target) -> Option<Layout> {
        self.with(target, |form| layout(target.kind, &form))
    }

    /// Inverts bits of its form from byte `at` on, as nobody may. `None` if it is not there any more, somebody is at work with it, or
    /// nothing is where the pattern has bits.
    pub fn strike(&self, target: &Target, at: usize, pattern: &[u8]) -> Option<Struck> {
        self.write(target, at, Write::Flip(pattern), false)
    }

    fn write(&self, target: &Target, at: usize, write: Write<'_>, astray: bool) -> Option<Struck> {
        let (layout, before, after) = self.with(target, |mut form| {
            let (layout, before) = (layout(target.kind, &form), form.bytes());
            match write {
                _ if at >= before.len() => {}
                Write::Flip(pattern) => form.flip(at, pattern, astray),
                Write::Bytes(bytes) => {
                    let pattern: Vec<u8> = before[at..].iter().zip(bytes).map(|(old, new)| old ^ new).collect();
                    form.flip(at, &pattern, astray);
                }
            }
            (layout, before, form.bytes())
        })?;
        Struck::of(target, &layout, &before, &after)
    }

    /// Inverts bits of a block, and takes both of its sums along: what no checksum sees, but no equation has counted either. `None` as for
    /// [`Lab::strike`], and for what is no block.
    pub fn strike_unseen(&self, target: &Target, at: usize, pattern: &[u8]) -> Option<Struck> {
        let (layout, before) = self.with(target, |form| (layout(target.kind, &form), form.bytes()))?;
        let old = before.get(at..at.checked_add(pattern.len())?)?;
        let new: Vec<u8> = old.iter().zip(pattern).map(|(old, flipped)| old ^ flipped).collect();
        let (module, key) = (self.module, target.key());
        match target.state {
            _ if !target.kind.is_block() => return None,
            State::Changed => self.trees()?.dirty.get_mut(&key)?.block.scribbled_unseen(at, &new),
            _ => {
                let cache = &module.base.cache;
                let (_, checked_ms) = cache.get(key, target.address)?;
                let birth = cache.birth(key, target.address, module.disk().newest())?;
                let mut block = cache.take(key, target.address)?;
                Arc::make_mut(&mut block).scribbled_unseen(at, &new);
                cache.put(key, target.address, birth, block, checked_ms);
            }
        }
        let after = self.with(target, |form| form.bytes())?;
        Struck::of(target, &layout, &before, &after)
    }

    /// Flips a bit of something. `seed` says of what and which, 64 random bits; whoever counts up gets each kind in turn. Left out is what
    /// has no checksum, and what no epoch can be begun anew without.
    pub fn flip_any(&self, seed: u64) -> Option<Struck> {
        let kinds = &MetaKind::ALL[..MetaKind::ALL.iter().position(|kind| *kind == MetaKind::IntentLog)?];
        let mut choice = Choice::of(kinds[(seed % kinds.len() as u64) as usize], Pattern::Bit, seed);
        choice.states = [State::Changed, State::Clean, State::InUse, State::Freed, State::Prepared].to_vec();
        self.strike_chosen(&choice).ok()
    }

    /// Where the record of an object is in the table of its domain: the object that has the table, index and slot of the block.
    pub fn place_in_table(&self, key: ObjectKey) -> ((u16, u64), u64, usize) {
        let table = system_key(table_of(key.domain));
        ((table.domain.0, table.object.0), key.object.0 / RECORDS, (key.object.0 % RECORDS) as usize)
    }
}

fn layout(kind: MetaKind, form: &Form<'_>) -> Layout {
    let bytes = form.bytes();
    match form {
        Form::Cells(cells) => Layout::of(bytes.len(), cells.parts(), &bytes),
        _ => {
            let (slot_bytes, parts) = kind.slot();
            Layout::of(slot_bytes, parts, &bytes)
        }
    }
}

#[cfg(test)]
mod tests;
