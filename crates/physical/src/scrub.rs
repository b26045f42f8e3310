//! Scrub: every copy of every block in use is read and verified while the store is used.
//!
//! The intent log is not read: what is in it is gone with the next recovery point.
//!
//! A step goes on from the caller's cursor: labels and superblocks; the objects of domain 0 by ascending ids; those of the
//! other domains by ascending ids; then of each snapshot what only snapshots have (`kept`). Of an object its tree blocks are verified as the walk comes to the first page under
//! them, its pages together with those of neighbouring objects, so that the device gets long batches.
//!
//! Invariants:
//! - the read gate is held from finding a block's pointer until its bytes have been judged: a block that is freed
//!   meanwhile is not handed out before, so that no block is judged by a pointer that is not its own any more;
//! - a block that is dirty in memory is passed over, also when its pointer has an address already: it is on its way to the
//!   device;
//! - a bad copy is read once more by itself before it is called bad, and only bytes that match the pointer's checksum are
//!   written over one; that is done when the batch is over, if the device has the pointer, too ([`crate::named`]). Whether another
//!   one names the block as well is not looked at: that takes a walk through all trees, as the check makes it;
//! - what has no good copy is told for the domain and for each snapshot that has it, and for each file;
//! - a block that is good is read and counted once, whoever has it ([`shared`]).

mod kept;
mod shared;

use crate::damage::is_damage;
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, LABELS, POINTERS, RECORDS, RING_SLOTS, Record, RecordKind, split_address};
use crate::mend;
use crate::meta_block::{MetaBlock, NodeKey, read_copy};
use crate::module::Module;
use crate::named::OnDevice;
use crate::objects::{system_key, table_of};
use crate::own_records::misled;
use crate::tree::{Trees, span};
use holdfast_block::AlignedBuf;
use holdfast_object::{
    DomainId, Error, Fate, Kind, ObjectId, ObjectKey, PageIndex, Place, Result, ScrubCounts, ScrubCursor, ScrubFinding,
    ScrubStep, Seek, SnapshotId,
};
use shared::References;
pub(crate) use shared::SharedSeen;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Blocks read under one hold of the gate: 1 MiB. Publishing an epoch waits for it.
const BATCH: usize = 256;
/// Leaves that a walk comes to under one hold of the gate, with something to read or not.
const LEAVES: usize = 1024;
/// Holds of the gate in one step.
const BATCHES: usize = 64;
/// Most neighbours in one device read.
const RUN_MAX: usize = 64;

/// One copy of a block to verify.
#[derive(Clone, Copy)]
struct Copy {
    address: u64,
    node: NodeKey,
    pointer: BlockPointer,
    class: Class,
    /// Whose object it is.
    state: SnapshotId,
    /// Whether there are more references to it.
    is_shared: bool,
}

/// What a block counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    System,
    Tree,
    Names,
    Data,
}

/// Found, and not yet read.
type Batch = Vec<Copy>;

/// A block of which a copy is bad, and another one good.
struct BadCopies {
    node: NodeKey,
    pointer: BlockPointer,
    /// Whose object it is.
    state: SnapshotId,
}

impl Module {
    /// See [`holdfast_object::ObjectStore::scrub_step`].
    pub(crate) fn scrub_some(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep> {
        let mut step = ScrubStep { cursor: *cursor, ..ScrubStep::default() };
        let blocks = blocks.max(1);
        let mut batches = 0;
        while step.counts.blocks() < blocks && step.cursor != ScrubCursor::End && batches < BATCHES {
            batches += 1;
            let before = step.cursor;
            if before == ScrubCursor::Start {
                self.scrubbed.clear();
                self.scrub_labels(&mut step)?;
                step.cursor = ScrubCursor::At { object: system_key(0), page: 0 };
            } else {
                let most = blocks - step.counts.blocks();
                let at = step.clone();
                let (found, bad) = self.surely(|| {
                    let (mut step, mut bad) = (at.clone(), Vec::new());
                    self.scrub_batch(&mut step, BATCH.min(most as usize), &mut bad).map(|()| (step, bad))
                })?;
                step = match bad.is_empty() {
                    true => found,
                    false => self.repaired(&found, &bad)?,
                };
            }
            debug_assert_ne!(step.cursor, before, "a scrub goes on");
        }
        if step.cursor == ScrubCursor::End {
            self.scrubbed.clear();
        }
        let space = self.base.alloc.lock().space_told();
        step.blocks_in_use = LABELS as u64 * (1 + RING_SLOTS) + space.total.saturating_sub(space.free);
        Ok(step)
    }

    // ---- labels

    /// The labels are as this module knows them; the last superblock is in all of them; the older ones are good.
    fn scrub_labels(&self, step: &mut ScrubStep) -> Result<()> {
        // Nobody writes superblocks meanwhile.
        let _committing = self.committing.lock();
        step.counts.labels += LABELS as u64 * (1 + RING_SLOTS);
        let found = match mend::find(self.disk(), &self.sealed) {
            // One that is good by itself is not what is known: nothing says which of them is right.
            Err(Error::Corrupt(corruption)) => {
                note(step, corruption.place.clone(), corruption.without_place(), Fate::Unrepaired);
                return Ok(());
            }
            found => found?,
        };
        for bad in found {
            self.replace(step, self.disk().place(bad.address), bad.what, bad.address, &bad.good);
        }
        Ok(())
    }

    /// Puts good bytes over bad ones, and reads them back.
    fn replace(&self, step: &mut ScrubStep, place: Place, what: String, address: u64, good: &[u8; 4096]) {
        let disk = self.disk();
        let mut back = Box::new(crate::disk::Block([0; 4096]));
        let is_good =
            disk.repair(address, good, &place) && disk.read_block(address, &mut back.0).is_ok() && back.0 == *good;
        note(step, place, what, if is_good { Fate::Repaired } else { Fate::Unrepaired });
    }

    /// Puts right bad copies of blocks that have a good one.
    fn repaired(&self, step: &ScrubStep, bad: &[BadCopies]) -> Result<ScrubStep> {
        self.surely(|| {
            let mut step = step.clone();
            let _gate = self.gate.read();
            let (trees, on_device) = (self.trees(), OnDevice::new(self.disk()));
            for BadCopies { node, pointer, state } in bad {
                // It may have been replaced meanwhile.
                if trees.still_has(&self.base, *node, pointer) {
                    self.replace_bad(&mut step, &trees, &on_device, (*state, *node), pointer)?;
                }
            }
            Ok(step)
        })
    }

    /// Reads each copy of a block once more, and replaces bad ones by a good one.
    ///
    /// # Errors
    /// As [`Trees::is_named`].
    fn replace_bad(
        &self,
        step: &mut ScrubStep,
        trees: &Trees,
        on_device: &OnDevice<'_>,
        (state, node): (SnapshotId, NodeKey),
        pointer: &BlockPointer,
    ) -> Result<()> {
        let disk = self.disk();
        let (good, bad) = self.copies(node, pointer);
        let Some(good) = good.filter(|_| !bad.is_empty()) else { return Ok(()) };
        let is_named = trees.is_named(&self.base, on_device, node, pointer)?;
        for (address, error) in &bad {
            let place = in_state(node.place(disk, *address), state);
            match is_named {
                true => self.replace(step, place, says(error), *address, good.bytes()),
                false => note(step, place, says(error), Fate::Unrepaired),
            }
        }
        Ok(())
    }

    // ---- trees

    /// Finds some blocks from the cursor on, reads and judges them. `bad` gets those of which a copy is bad, and another one good.
    fn scrub_batch(&self, step: &mut ScrubStep, most: usize, bad: &mut Vec<BadCopies>) -> Result<()> {
        let _gate = self.gate.read();
        let mut batch = Vec::new();
        let mut leaves = 0;
        while batch.len() < most && leaves < LEAVES {
            leaves += 1;
            // Taken anew for each leaf, so that writers get in between.
            let trees = self.trees();
            step.cursor = match step.cursor {
                ScrubCursor::At { object, page } => {
                    match self.scrub_leaf(&trees, object, page, step, &mut batch, bad)? {
                        Some(page) => ScrubCursor::At { object, page },
                        None => match self.object_after(&trees, object)? {
                            Some(object) => ScrubCursor::At { object, page: 0 },
                            None => kept::first(&trees),
                        },
                    }
                }
                ScrubCursor::Kept { domain, epoch, object, page } => {
                    self.scrub_kept(&trees, (domain, epoch), object, page, step, &mut batch, bad)?
                }
                ScrubCursor::Start | ScrubCursor::End => break,
            };
        }
        self.judge(step, batch, bad)
    }

    /// Verifies the tree blocks whose first page is `page`, and notes the pages of the lowest one. Gives the page to go on
    /// with, if there are more.
    fn scrub_leaf(
        &self,
        trees: &Trees,
        key: ObjectKey,
        page: PageIndex,
        step: &mut ScrubStep,
        batch: &mut Batch,
        bad: &mut Vec<BadCopies>,
    ) -> Result<Option<PageIndex>> {
        let record = match self.scrub_record(trees, key) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(Error::Corrupt(corruption)) => {
                // Of a table that could not be read this has been told.
                if corruption.place.object == Some(key) {
                    note(step, corruption.place.clone(), corruption.without_place(), Fate::Unrepaired);
                }
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let leaf_class = leaf_class(key, &record);
        if record.levels == 0 {
            if page == 0 {
                self.note_pages(trees, key, 0, &[record.root], leaf_class, step, batch);
            }
            return Ok(None);
        }
        let (mut level, mut pointer) = (record.levels, record.root);
        let end = span(record.levels);
        if page >= end {
            return Ok(None);
        }
        loop {
            if pointer.is_hole() {
                return Ok(after(page, level, end));
            }
            let node = NodeKey::new(key, level, page / span(level));
            let block = if trees.dirty.contains_key(&node) || !page.is_multiple_of(span(level)) {
                match trees.fetch(&self.base, node, &pointer) {
                    Ok(block) => Some(block),
                    // Gone bad in memory, not there: once the epoch has been begun anew it can be asked again.
                    Err(error @ Error::GivenUp(_)) => return Err(error),
                    Err(error) if is_damage(&error) || key.domain == DomainId::SYSTEM => None,
                    Err(error) => return Err(error),
                }
            } else {
                self.scrub_tree_block(trees, SnapshotId::LIVE, node, &pointer, step, bad)?
            };
            let Some(block) = block else { return Ok(after(page, level, end)) };
            if level == 1 {
                let pointers: Vec<BlockPointer> = (0..POINTERS as usize).map(|slot| block.pointer(slot)).collect();
                self.note_pages(trees, key, page / POINTERS * POINTERS, &pointers, leaf_class, step, batch);
                return Ok(after(page, 1, end));
            }
            level -= 1;
            pointer = block.pointer((page / span(level) % POINTERS) as usize);
        }
    }

    fn scrub_record(&self, trees: &Trees, key: ObjectKey) -> Result<Option<Record>> {
        match key.domain {
            DomainId::SYSTEM => Ok(trees.system.get(&key.object.0).map(|record| Record::clone(record))),
            _ => trees.find(&self.base, key),
        }
    }

    /// Reads both copies of a tree block of the domain or of a snapshot; gives a good one.
    fn scrub_tree_block(
        &self,
        trees: &Trees,
        state: SnapshotId,
        node: NodeKey,
        pointer: &BlockPointer,
        step: &mut ScrubStep,
        bad: &mut Vec<BadCopies>,
    ) -> Result<Option<Arc<MetaBlock>>> {
        let class = if node.domain == DomainId::SYSTEM.0 { Class::System } else { Class::Tree };
        let mut good = None;
        let mut is_bad = false;
        for address in pointer.addresses() {
            count(&mut step.counts, class);
            match read_copy(self.disk(), node, pointer, address) {
                Ok(bytes) => good = Some(bytes),
                Err(_) => is_bad = true,
            }
        }
        if is_bad {
            self.bad_block(step, trees, state, node, pointer, bad)?;
        }
        let Some(good) = good else { return Ok(None) };
        let mut block = MetaBlock::clean(good, node, pointer, self.disk().metadata);
        if let Err(error) = block.settle(self.disk(), node, pointer.address[0]) {
            note(step, in_state(node.place(self.disk(), pointer.address[0]), state), says(&error), Fate::Unrepaired);
            return Ok(None);
        }
        let block = Arc::new(block);
        // The walk comes through it again for each leaf.
        if !trees.is_in_memory(&self.base, node, pointer) {
            self.base.keep(node, pointer.address[0], pointer.birth_phys, block.clone());
        }
        Ok(Some(block))
    }

    #[allow(clippy::too_many_arguments)]
    fn note_pages(
        &self,
        trees: &Trees,
        key: ObjectKey,
        first: PageIndex,
        pointers: &[BlockPointer],
        class: Class,
        step: &mut ScrubStep,
        batch: &mut Batch,
    ) {
        let mut references = References::new(&self.base, trees);
        for (index, pointer) in (first..).zip(pointers) {
            let node = NodeKey::new(key, 0, index);
            match pointer.kind {
                PointerKind::LostInMemory | PointerKind::LostOnDevice => step.counts.lost_before += 1,
                PointerKind::Data if class != Class::System || !trees.dirty.contains_key(&node) => {
                    self.note_copies(&mut references, SnapshotId::LIVE, node, pointer, class, batch);
                }
                PointerKind::Data | PointerKind::Hole | PointerKind::Tree => {}
            }
        }
    }

    /// Notes the copies of a page of the domain or of a snapshot, but for shared ones that were found good.
    fn note_copies(
        &self,
        references: &mut References<'_>,
        state: SnapshotId,
        node: NodeKey,
        pointer: &BlockPointer,
        class: Class,
        batch: &mut Batch,
    ) {
        let is_shared = class != Class::System && references.are_several(pointer.address[0]);
        for address in pointer.addresses() {
            if !is_shared || !self.scrubbed.contains(address, pointer) {
                batch.push(Copy { address, node, pointer: *pointer, class, state, is_shared });
            }
        }
    }

    // ---- objects in order

    fn object_after(&self, trees: &Trees, key: ObjectKey) -> Result<Option<ObjectKey>> {
        if key.domain == DomainId::SYSTEM
            && let Some((&id, _)) = trees.system.range(key.object.0 + 1..).next()
        {
            return Ok(Some(system_key(id)));
        }
        let mut from = match key.domain {
            DomainId::SYSTEM => ObjectKey { domain: DomainId::MAIN, object: ObjectId::ROOT },
            domain => ObjectKey { domain, object: ObjectId(key.object.0 + 1) },
        };
        loop {
            if trees.has_domain(from.domain)
                && let Some(object) = self.object_from(trees, from)?
            {
                return Ok(Some(ObjectKey { object, ..from }));
            }
            let later = trees.system.range(table_of(from.domain) + 1..).find(|(id, _)| *id % 16 == 0);
            let Some((&table, _)) = later else { return Ok(None) };
            from = ObjectKey { domain: DomainId((table / 16) as u16), object: ObjectId::ROOT };
        }
    }

    /// The first object of the domain that is in its table at or behind `from`. What of the table cannot be read is
    /// passed over: that has been told.
    fn object_from(&self, trees: &Trees, from: ObjectKey) -> Result<Option<ObjectId>> {
        let table = table_of(from.domain);
        let Some(record) = trees.system.get(&table) else { return Ok(None) };
        let mut page = from.object.0 / RECORDS;
        while page < span(record.levels) {
            page = match trees.seek(&self.base, system_key(table), record, page, Seek::Data) {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(None),
                Err(Error::Corrupt(corruption)) => {
                    let width = span(corruption.place.level.unwrap_or(1).max(1));
                    page = (page / width + 1) * width;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for id in (page * RECORDS).max(from.object.0)..(page + 1) * RECORDS {
                let object = ObjectId(id);
                let key = ObjectKey { object, ..from };
                match trees.find(&self.base, key) {
                    Ok(Some(_)) => return Ok(Some(object)),
                    Ok(None) => {}
                    Err(Error::Corrupt(corruption)) if corruption.place.object == Some(key) => {
                        return Ok(Some(object));
                    }
                    Err(Error::Corrupt(_) | Error::Device(_)) => break,
                    Err(error) => return Err(error),
                }
            }
            page += 1;
        }
        Ok(None)
    }

    // ---- judging

    /// Reads what was found, neighbours on the device together, and looks after what is bad. The gate is held.
    fn judge(&self, step: &mut ScrubStep, mut copies: Batch, repairs: &mut Vec<BadCopies>) -> Result<()> {
        copies.sort_unstable_by_key(|copy| copy.address);
        let mut buffer = AlignedBuf::zeroed(copies.len().max(1) * 4096);
        let is_next = |a: &Copy, b: &Copy| a.address.checked_add(1) == Some(b.address);
        let runs = || copies.chunk_by(is_next).flat_map(|run| run.chunks(RUN_MAX));
        let mut rest: &mut [u8] = &mut buffer;
        let (mut addresses, mut slices) = (Vec::new(), Vec::new());
        for run in runs() {
            let (mine, later) = rest.split_at_mut(run.len() * 4096);
            addresses.push(run[0].address);
            slices.push(vec![IoSliceMut::new(mine)]);
            rest = later;
        }
        let read = self.disk().read_runs(&addresses, slices);
        let mut bad: Vec<Copy> = Vec::new();
        let mut blocks = buffer.as_chunks::<4096>().0.iter();
        for (run, is_read) in runs().zip(read) {
            for (copy, bytes) in run.iter().zip(blocks.by_ref()) {
                let is_good = is_read && copy.pointer.matches(bytes, copy.node.mix());
                // Two of a batch may be the same block.
                if !(copy.is_shared && is_good) || self.scrubbed.insert(copy.address, &copy.pointer) {
                    count(&mut step.counts, copy.class);
                    let is_unverified = copy.class == Class::Data && !copy.pointer.has_checksum();
                    step.counts.no_checksum += u64::from(is_unverified);
                }
                let known = || bad.iter().any(|other| (other.node, other.state) == (copy.node, copy.state));
                if !is_good && !known() {
                    bad.push(*copy);
                }
            }
        }
        if bad.is_empty() {
            return Ok(());
        }
        let trees = self.trees();
        for Copy { node, pointer, state, .. } in bad {
            self.bad_block(step, &trees, state, node, &pointer, repairs)?;
        }
        Ok(())
    }

    /// Each copy of a block by itself: a good one, and what is wrong with the others.
    fn copies(&self, node: NodeKey, pointer: &BlockPointer) -> (Option<MetaBlock>, Vec<(u64, Error)>) {
        let (disk, mut good, mut bad) = (self.disk(), None, Vec::new());
        for address in pointer.addresses() {
            match read_copy(disk, node, pointer, address) {
                Ok(bytes) => good = Some(MetaBlock::clean(bytes, node, pointer, disk.metadata)),
                Err(error) => bad.push((address, error)),
            }
        }
        (good, bad)
    }

    /// Reads each copy of a block by itself. Where one is good, bad ones are to be replaced by it.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: no copy is good, and the pointer may be none, as something in memory has gone bad.
    fn bad_block(
        &self,
        step: &mut ScrubStep,
        trees: &Trees,
        state: SnapshotId,
        node: NodeKey,
        pointer: &BlockPointer,
        repairs: &mut Vec<BadCopies>,
    ) -> Result<()> {
        let disk = self.disk();
        let (good, bad) = self.copies(node, pointer);
        let Some((address, error)) = bad.first() else { return Ok(()) };
        if good.is_some() {
            repairs.push(BadCopies { node, pointer: *pointer, state });
            return Ok(());
        }
        if trees.is_in_doubt(&self.base) {
            return Err(misled(disk, in_state(node.place(disk, *address), state), error));
        }
        disk.count_unrepaired(*address, error);
        // What only a snapshot has of the store's own is in nobody's way.
        if state == SnapshotId::LIVE || node.domain != DomainId::SYSTEM.0 {
            disk.note_damaged(&node.place(disk, *address));
        }
        let also = match bad.get(1) {
            Some((address, error)) => format!("; block {}: {}", split_address(*address).1, says(error)),
            None => String::new(),
        };
        let what = says(error) + &also;
        let is_page = node.level == 0 && node.domain != DomainId::SYSTEM.0;
        for state in std::iter::once(state).chain(self.sharers(trees, state, node, pointer)) {
            note(step, in_state(node.place(disk, *address), state), what.clone(), Fate::Unrepaired);
            if let Some(finding) = step.findings.last_mut().filter(|_| is_page) {
                finding.block = Some(pointer.identity());
            }
        }
        Ok(())
    }
}

/// What is wrong with a copy, without the place.
fn says(error: &Error) -> String {
    match error {
        Error::Corrupt(corruption) => corruption.without_place(),
        error => error.to_string(),
    }
}

fn leaf_class(key: ObjectKey, record: &Record) -> Class {
    match record.kind {
        _ if key.domain == DomainId::SYSTEM => Class::System,
        RecordKind::Object(Kind::Regular) => Class::Data,
        _ => Class::Names,
    }
}

/// A place in an object, or in one of the store's own, as a snapshot has it.
pub(crate) fn in_state(mut place: Place, state: SnapshotId) -> Place {
    if let Some(key) = place.object.as_mut() {
        key.object = key.object.in_snapshot(state);
    }
    place
}

/// The first page behind the block of `level` that `page` is under, if there can be one.
fn after(page: PageIndex, level: u8, end: PageIndex) -> Option<PageIndex> {
    let next = (page / span(level) + 1) * span(level);
    (next < end).then_some(next)
}

fn count(counts: &mut ScrubCounts, class: Class) {
    match class {
        Class::System => counts.system += 1,
        Class::Tree => counts.tree += 1,
        Class::Names => counts.names += 1,
        Class::Data => counts.data += 1,
    }
}

fn note(step: &mut ScrubStep, place: Place, what: String, fate: Fate) {
    match fate {
        Fate::Repaired => step.counts.repaired += 1,
        Fate::Lost => step.counts.lost += 1,
        Fate::Unrepaired => step.counts.unrepaired += 1,
    }
    step.findings.push(ScrubFinding { place, what, fate, block: None });
}
