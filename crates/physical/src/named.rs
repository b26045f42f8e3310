//! Whether a block is what a pointer says, before something is written over it. A bad copy is replaced by a good one through the pointer that names
//! both. If that pointer has gone bad in memory, the "bad copy" may be anybody's block, and what would be written over it could not be taken
//! back. Sums in memory do not settle that: what they do not see they vouch for. So the pointer is read again from the device, from the newest
//! superblock down, each block verified by the pointer to it that the one above has there. Nothing on that way is taken from memory, so no
//! pointer that has gone bad there, and none above it, can vouch for itself.
//!
//! This is asked only where a checksum did not fit.
//!
//! Invariants:
//! - what was born no later than the newest superblock is in the domain's tree there, or in that of the first snapshot since its birth: a snapshot
//!   keeps all that there was, so if any has it, that one does;
//! - what was born later is not on the device yet. Nothing is repaired through it, and nobody is blamed: a later look is.

use crate::base::Base;
use crate::disk::Disk;
use crate::format::snapshot::SNAPSHOT_BYTES;
use crate::format::{BlockPointer, POINTERS, RECORDS, Record, StoredSnapshot, Superblock};
use crate::meta_block::{MetaBlock, NodeKey, read_copy};
use crate::objects::{holder, snapshots_of, system_key, table_of};
use crate::open::{read_label, read_superblocks};
use crate::tree::{Trees, span};
use holdfast_guard::closed;
use holdfast_object::{Corruption, DomainId, Epoch, Error, ObjectKey, Place, Result};
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

/// The trees of the last recovery point, as the device has them. For one hold of the read gate, or of all that there is: what it has
/// freed since is not handed out meanwhile.
pub(crate) struct OnDevice<'a> {
    disk: &'a Disk,
    /// `None`: it cannot be read.
    newest: OnceCell<Option<Superblock>>,
    /// Of domains that have been asked for: what only snapshots have may be many blocks, and each is asked of by itself. `None`: it cannot be read.
    listed: RefCell<FxHashMap<DomainId, Option<Arc<Listed>>>>,
}

/// What the list of a domain's snapshots has.
#[derive(Default)]
struct Listed {
    /// Those that are not deleted.
    snapshots: Vec<StoredSnapshot>,
    /// There is an entry that cannot be read.
    lacks_some: bool,
}

/// What the device has in the place of a pointer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// That pointer.
    Same,
    /// Another one, or a hole.
    Another(Box<BlockPointer>),
    /// What leads there cannot be read, or the pointer is not on the device yet.
    Unknown,
}

impl<'a> OnDevice<'a> {
    /// Reads nothing yet.
    pub(crate) fn new(disk: &'a Disk) -> OnDevice<'a> {
        OnDevice { disk, newest: OnceCell::new(), listed: RefCell::default() }
    }

    /// What there is in the place of a pointer to this block.
    pub(crate) fn ask(&self, node: NodeKey, pointer: &BlockPointer) -> Answer {
        self.look(node, pointer).unwrap_or(Answer::Unknown)
    }

    fn newest(&self) -> Option<&Superblock> {
        let read = || -> Result<Option<Superblock>> {
            let label = read_label(self.disk.device())?;
            Ok(read_superblocks(self.disk.device(), &label)?.into_iter().next())
        };
        let newest = self.newest.get_or_init(|| {
            closed(read).unwrap_or_else(|error| {
                tracing::warn!(%error, "nothing is repaired, as the superblocks cannot be read");
                None
            })
        });
        newest.as_ref()
    }

    fn look(&self, node: NodeKey, pointer: &BlockPointer) -> Option<Answer> {
        let newest = self.newest()?;
        if pointer.birth_log > newest.epoch {
            return None;
        }
        let key = node.object_key();
        let living = self.below(self.record(newest, key)?, node)?;
        if living == *pointer {
            return Some(Answer::Same);
        }
        let (first, is_whole) = match holder(key) {
            Some(domain) => self.first_since(newest, domain, pointer.birth_log)?,
            None => (None, true),
        };
        let kept = match first {
            Some(snapshot) if key.domain == DomainId::SYSTEM => self.below(Some(snapshot.table), node)?,
            Some(snapshot) => self.below(self.record_in(&snapshot.table, key)?, node)?,
            None => BlockPointer::HOLE,
        };
        Some(match kept {
            kept if kept == *pointer => Answer::Same,
            _ if !is_whole => return None,
            // That whose contents it has, for who is told.
            kept if kept.sums == pointer.sums => Answer::Another(Box::new(kept)),
            _ => Answer::Another(Box::new(living)),
        })
    }

    /// The pointer to a block of the object with this record.
    fn below(&self, record: Option<Record>, node: NodeKey) -> Option<BlockPointer> {
        let Some(record) = record else { return Some(BlockPointer::HOLE) };
        stored_pointer(self.disk, node, record.levels, &record.root)
    }

    /// An object's record. Outside, as of all that follow, `None`: it cannot be read.
    fn record(&self, newest: &Superblock, key: ObjectKey) -> Option<Option<Record>> {
        match key.domain {
            DomainId::SYSTEM if key.object.0 == 0 => Some(Some(newest.root.clone())),
            DomainId::SYSTEM => self.record_in(&newest.root, key),
            domain => match self.record_in(&newest.root, system_key(table_of(domain)))? {
                Some(table) => self.record_in(&table, key),
                None => Some(None),
            },
        }
    }

    /// An object's record in its object table, of which this is the record.
    fn record_in(&self, table: &Record, key: ObjectKey) -> Option<Option<Record>> {
        let page = NodeKey::new(system_key(table_of(key.domain)), 0, key.object.0 / RECORDS);
        let pointer = stored_pointer(self.disk, page, table.levels, &table.root)?;
        if pointer.is_hole() {
            return Some(None);
        }
        let bytes = stored_block(self.disk, page, &pointer)?;
        let record = bytes.as_chunks().0.get((key.object.0 % RECORDS) as usize)?;
        Record::decode(record, self.disk.newest(), self.disk.blocks(), false).ok()
    }

    /// The first snapshot of a domain that has what was born then, of those that can be read; whether all can.
    fn first_since(
        &self,
        newest: &Superblock,
        domain: DomainId,
        born: Epoch,
    ) -> Option<(Option<StoredSnapshot>, bool)> {
        let known = self.listed.borrow().get(&domain).cloned();
        let listed = known.unwrap_or_else(|| {
            let listed = self.list(newest, domain).map(Arc::new);
            self.listed.borrow_mut().insert(domain, listed.clone());
            listed
        })?;
        let since = listed.snapshots.iter().filter(|stored| stored.epoch >= born);
        Some((since.min_by_key(|stored| stored.epoch).cloned(), !listed.lacks_some))
    }

    fn list(&self, newest: &Superblock, domain: DomainId) -> Option<Listed> {
        let list = system_key(snapshots_of(domain));
        let mut listed = Listed::default();
        let Some(record) = self.record(newest, list)? else { return Some(listed) };
        let mut below = vec![(NodeKey::new(list, record.levels, 0), record.root)];
        while let Some((node, pointer)) = below.pop().filter(|(_, pointer)| !pointer.is_hole()) {
            let bytes = stored_block(self.disk, node, &pointer)?;
            if node.level > 0 {
                let level = node.level - 1;
                let children = (node.index * POINTERS..).zip(bytes.as_chunks().0);
                let children =
                    children.map(|(index, child)| (NodeKey { level, index, ..node }, BlockPointer::decode(child)));
                below.extend(children.filter(|(_, pointer)| !pointer.is_hole()));
                continue;
            }
            for entry in bytes.as_chunks::<SNAPSHOT_BYTES>().0 {
                let stored = StoredSnapshot::decode(entry, newest.epoch, self.disk.blocks());
                // What is in one that is free means nothing.
                listed.lacks_some |= stored.is_err() && !StoredSnapshot::is_free(entry);
                listed.snapshots.extend(stored.ok().flatten().filter(|stored| !stored.is_deleted));
            }
        }
        Some(listed)
    }
}

/// The pointer to a block of an object's tree as the device has it, by that to the tree; a hole if there is none. `None`: what leads there
/// cannot be read.
pub(crate) fn stored_pointer(disk: &Disk, node: NodeKey, levels: u8, root: &BlockPointer) -> Option<BlockPointer> {
    if node.level > levels || node.index >= span(levels - node.level) {
        return Some(BlockPointer::HOLE);
    }
    let mut pointer = *root;
    for level in (node.level + 1..=levels).rev() {
        if pointer.is_hole() {
            break;
        }
        let above = NodeKey { level, index: node.index / span(level - node.level), ..node };
        let bytes = stored_block(disk, above, &pointer)?;
        let slot = (node.index / span(level - 1 - node.level) % POINTERS) as usize;
        pointer = BlockPointer::decode(bytes.as_chunks().0.get(slot)?);
    }
    Some(pointer)
}

/// A good copy of a block, as it is on the device.
pub(crate) fn stored_block(disk: &Disk, node: NodeKey, pointer: &BlockPointer) -> Option<[u8; 4096]> {
    let copy = pointer.addresses().find_map(|address| read_copy(disk, node, pointer, address).ok())?;
    Some(copy.into_inner().0.0)
}

/// Where a block is on the device, and under which checksum: enough to read it for a report, and a quarter of its pointer.
#[derive(Clone, Copy)]
pub(crate) struct StoredCopies {
    address: [u64; 2],
    sum: u64,
}

impl StoredCopies {
    /// Copies whose checksum is not bound to their place are not read: nobody writes such ones.
    pub(crate) fn of(pointer: &BlockPointer) -> StoredCopies {
        let sum = pointer.sums.primary.as_u64().filter(|_| pointer.seeded);
        StoredCopies { address: pointer.address, sum: sum.unwrap_or(0) }
    }

    /// There is none.
    pub(crate) fn is_hole(&self) -> bool {
        self.address[0] == 0
    }

    /// A good copy.
    pub(crate) fn read(&self, disk: &Disk, node: NodeKey) -> Option<[u8; 4096]> {
        let mut copies = self.address.into_iter().filter(|address| *address != 0);
        let good = |address| disk.read_unverified(address).ok()?.verify_identified(self.sum, node.mix()).ok();
        copies.find_map(good).map(|copy| copy.into_inner().0.0)
    }
}

impl Trees {
    /// Whether a bad copy of a block may be replaced through this pointer, as the device has it in the same place.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: the device has another one there. The pointer has gone bad in memory, and nothing was written through it. What may have it is
    /// forgotten if it is on the device, and the epoch being built begun anew, which may have gone by it.
    pub(crate) fn is_named(
        &self,
        base: &Base,
        on_device: &OnDevice<'_>,
        node: NodeKey,
        pointer: &BlockPointer,
    ) -> Result<bool> {
        if base.disk.read_only().is_some() {
            return Ok(false);
        }
        match on_device.ask(node, pointer) {
            Answer::Same => Ok(true),
            Answer::Unknown => Ok(false),
            // It may have been replaced since it was found. What its sums see is told by whoever comes by it.
            Answer::Another(_) if !self.still_has(base, node, pointer) => Ok(false),
            Answer::Another(_) if self.is_in_doubt(base) => Ok(false),
            Answer::Another(stored) => Err(self.misnamed(base, node, pointer, &stored)),
        }
    }

    /// Whether memory has this pointer to the block now, in the domain's tree or in that of the first snapshot since it was born.
    pub(crate) fn still_has(&self, base: &Base, node: NodeKey, pointer: &BlockPointer) -> bool {
        let kept = holder(node.object_key()).map_or(&[][..], |domain| self.kept.of(domain));
        let mut since = kept.iter().filter(|held| held.stored.epoch >= pointer.birth_log);
        self.pointer_now(base, node) == Some(*pointer)
            || since.next().is_some_and(|first| first.view.still_has(base, node, pointer))
    }

    fn pointer_now(&self, base: &Base, node: NodeKey) -> Option<BlockPointer> {
        let key = node.object_key();
        let record = match key.domain {
            DomainId::SYSTEM => self.system.get(&key.object.0).map(|record| Record::clone(record)),
            _ => self.find(base, key).ok().flatten(),
        }?;
        if node.level == record.levels {
            return Some(record.root);
        }
        let (parent, slot) = node.parent();
        Some(self.node(base, key, &record, parent.level, parent.index).ok()??.pointer(slot))
    }

    /// The device has another pointer in the place of this one.
    fn misnamed(&self, base: &Base, node: NodeKey, pointer: &BlockPointer, stored: &BlockPointer) -> Error {
        let key = node.object_key();
        let (parent, slot) = node.parent();
        let table = NodeKey::new(system_key(table_of(key.domain)), 0, key.object.0 / RECORDS);
        let mut place = Place { object: Some(key), address: None, ..base.disk.place(0) };
        let (mut what, mut changed) = ("root pointer of the record".to_string(), None);
        let mut is_above = |block: &MetaBlock, address: u64, changed_for| {
            if block.pointer(slot) == *pointer {
                place = parent.place(&base.disk, address);
                place.address = place.address.filter(|address| *address != 0);
                (what, changed) = (format!("pointer in slot {slot}"), changed_for);
            }
        };
        if let Some(dirty) = self.dirty.get(&parent) {
            is_above(&dirty.block, 0, Some(dirty.changed));
        }
        for (of, address) in base.cache.versions().into_iter().filter(|(of, _)| *of == parent || *of == table) {
            let changed_for = base.cache.birth(of, address, base.disk.newest());
            let block = base.cache.take(of, address);
            if let Some(block) = block.filter(|_| of == parent) {
                is_above(&block, address, changed_for);
            }
        }
        what += " in memory, to which somebody has written who must not, and no sum sees it";
        let mut got = told(pointer);
        if let Some(changed) = changed {
            got += &format!(", last changed legally for epoch {changed}");
        }
        base.disk.counters.scribbled();
        base.disk.give_up(Corruption { place, what, expected: told(stored) + ", as on the device", got })
    }
}

/// In words.
fn told(pointer: &BlockPointer) -> String {
    if !pointer.is_stored() {
        return "no block".into();
    }
    let BlockPointer { address: [first, second], birth_phys, birth_log, sums, .. } = pointer;
    let second = if *second == 0 { String::new() } else { format!(" and {second}") };
    format!("block {first}{second} of epoch {birth_phys}, named in {birth_log}, checksum {}", sums.primary)
}
