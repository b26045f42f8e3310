//! Objects of domains: their records, the maps of ids, the reference table.

use crate::audit::Audit;
use crate::base::Base;
use crate::format::{BITS, COUNTERS, RECORD_BYTES, RECORDS, Record, RecordKind, SystemKind};
use crate::guarded::Counted;
use crate::meta_block::{MetaBlock, MetadataProtection, NodeKey, Scribble};
use crate::sealed_record::SealedRecord;
use crate::tree::{Change, FindNode, Trees};
use holdfast_object::{DomainId, Epoch, Error, ObjectId, ObjectKey, Result, Seek};
use std::sync::Arc;

/// The allocation bitmap's id in domain 0.
pub(crate) const BITMAP: u64 = 1;
/// The reference table's id in domain 0.
pub(crate) const REFERENCES: u64 = 2;
/// Smallest id that no object has: an object table has at most 2^32 blocks of 8 records.
pub(crate) const OBJECT_END: u64 = RECORDS << 32;
/// Most pages of the reference table that a removal remembers to have verified: 4 MiB of them, for 4 GiB of the device.
const COUNTERS_SEEN_MAX: usize = 1024;
/// Ids of domain 0 are below this: 16 for each domain.
pub(crate) const SYSTEM_END: u64 = 16 << 16;

/// Id in domain 0 of the object table of a domain.
pub(crate) fn table_of(domain: DomainId) -> u64 {
    16 * u64::from(domain.0)
}

/// Id in domain 0 of the map of a domain's object ids.
pub(crate) fn map_of(domain: DomainId) -> u64 {
    table_of(domain) + 1
}

/// Id in domain 0 of the map of a domain's orphans.
pub(crate) fn orphans_of(domain: DomainId) -> u64 {
    table_of(domain) + 2
}

/// Id in domain 0 of the list of a domain's snapshots.
pub(crate) fn snapshots_of(domain: DomainId) -> u64 {
    table_of(domain) + 3
}

/// Id in domain 0 of the dead lists of a domain's snapshots.
pub(crate) fn dead_of(domain: DomainId) -> u64 {
    table_of(domain) + 4
}

/// The domain whose snapshots may hold the blocks of an object's tree: the object's own, and that of an object table.
pub(crate) fn holder(key: ObjectKey) -> Option<DomainId> {
    match key.domain {
        DomainId::SYSTEM if key.object.0 >= 16 && key.object.0.is_multiple_of(16) => {
            Some(DomainId((key.object.0 / 16) as u16))
        }
        DomainId::SYSTEM => None,
        domain => Some(domain),
    }
}

pub(crate) fn system_key(id: u64) -> ObjectKey {
    ObjectKey { domain: DomainId::SYSTEM, object: ObjectId(id) }
}

/// What the object of domain 0 with this id must be; `None` if this version has none with it.
pub(crate) fn system_kind(id: u64) -> Option<SystemKind> {
    match (id / 16, id % 16) {
        (_, 0) => Some(SystemKind::ObjectTable),
        (0, BITMAP) => Some(SystemKind::Bitmap),
        (0, REFERENCES) => Some(SystemKind::References),
        (1.., 1) => Some(SystemKind::ObjectMap),
        (1.., 2) => Some(SystemKind::OrphanMap),
        (1.., 3) => Some(SystemKind::SnapshotList),
        (1.., 4) => Some(SystemKind::DeadLists),
        _ => None,
    }
}

/// The page of the reference table that was last asked for something, verified then: of a number that somebody is told.
#[derive(Default)]
pub(crate) struct ReferenceCounts {
    page: u64,
    block: Option<Arc<MetaBlock>>,
}

impl ReferenceCounts {
    /// Extra references to the block at `address`. There is a reference table.
    ///
    /// # Errors
    /// As [`Trees::fetch_now`].
    pub(crate) fn of(&mut self, trees: &Trees, base: &Base, address: u64) -> Result<u32> {
        let (page, slot) = (address / COUNTERS, (address % COUNTERS) as usize);
        if self.block.is_none() || self.page != page {
            let record = &trees.system[&REFERENCES];
            self.block = trees.node_now(base, system_key(REFERENCES), record, 0, page)?;
            self.page = page;
        }
        Ok(self.block.as_deref().map_or(0, |block| block.counter(slot)))
    }
}

impl Trees {
    /// The objects of a new store: domain 0's own, and an empty domain `main`.
    pub(crate) fn create(epoch: Epoch) -> Trees {
        let main = DomainId::MAIN;
        let ids = [0, BITMAP, REFERENCES, table_of(main), map_of(main), orphans_of(main)];
        let system = ids
            .into_iter()
            .filter_map(|id| Some((id, Record::system(system_kind(id)?, epoch))))
            .map(|(id, record)| (id, SealedRecord::own(record, MetadataProtection::default())))
            .collect();
        Trees { system, next_generation: Counted::new(1), audit: Audit::of_new_store(), ..Trees::default() }
    }

    /// Whether there is such a domain for objects.
    pub(crate) fn has_domain(&self, domain: DomainId) -> bool {
        domain != DomainId::SYSTEM && self.system.contains_key(&table_of(domain))
    }

    /// The record of an object of a domain, as of the last applied operation.
    pub(crate) fn find(&self, base: &Base, key: ObjectKey) -> Result<Option<Record>> {
        match self.changed.get(&key) {
            Some(Change::Present(record)) => {
                record.look(base.now_s()).map_err(|scribble| self.give_up_record(base, scribble, key, record))?;
                return Ok(Some(Record::clone(record)));
            }
            Some(Change::Deleted) => return Ok(None),
            None => {}
        }
        let table = table_of(key.domain);
        let (Some(table_record), true) = (self.system.get(&table), self.has_domain(key.domain)) else {
            return Ok(None);
        };
        if key.object.0 >= OBJECT_END {
            return Ok(None);
        }
        let (page, slot) = (key.object.0 / RECORDS, key.object.0 % RECORDS);
        let Some(block) = self.node(base, system_key(table), table_record, 0, page)? else { return Ok(None) };
        let record = Record::decode(block.record(slot as usize), base.disk.newest(), base.disk.blocks(), false);
        // Of the record, wherever it is.
        let mut place = NodeKey::new(system_key(table), 0, page).place(&base.disk, 0);
        (place.object, place.level, place.index, place.address) = (Some(key), None, None, None);
        match record {
            Ok(Some(record)) if matches!(record.kind, RecordKind::System(_)) => {
                Err(Error::corrupt(place, "kind of object record", "an object's", "the store's own"))
            }
            Ok(record) => Ok(record),
            Err(fault) => Err(fault.at(place)),
        }
    }

    /// [`Trees::find`], verified just now: for whoever keeps what it says.
    pub(crate) fn find_now(&self, base: &Base, key: ObjectKey) -> Result<Option<Record>> {
        self.verify_records(base, std::iter::once(key))?;
        self.find(base, key)
    }

    /// Verifies the records of these objects, or the blocks that they are in: what an operation makes
    /// of an object follows from its record, and no later look takes that back. A block that has gone bad in memory is read again.
    ///
    /// # Errors
    /// [`Error::GivenUp`] for a record, or a block of them, that the epoch being built has changed and that has gone bad since: then no recovery
    /// point is made of it.
    pub(crate) fn verify_records(&self, base: &Base, keys: impl Iterator<Item = ObjectKey>) -> Result<()> {
        let mut blocks = Vec::new();
        for key in keys.filter(|key| self.has_domain(key.domain) && key.object.0 < OBJECT_END) {
            match self.changed.get(&key) {
                Some(Change::Present(record)) => {
                    record.bytes().map_err(|scribble| self.give_up_record(base, scribble, key, record))?;
                }
                Some(Change::Deleted) => {}
                None => blocks.push((table_of(key.domain), key.object.0 / RECORDS)),
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        for (table, page) in blocks {
            let Some(record) = self.system.get(&table) else { continue };
            // What else cannot be had is the operation's to tell.
            if let Err(error @ Error::GivenUp(_)) = self.node_now(base, system_key(table), record, 0, page) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The record, or [`Error::NoObject`].
    pub(crate) fn get(&self, base: &Base, key: ObjectKey) -> Result<Record> {
        self.find(base, key)?.ok_or(Error::NoObject(key))
    }

    /// The record as an operation has left it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if somebody has written to the one before who must not: then no recovery point is made of it.
    pub(crate) fn put(&mut self, base: &Base, key: ObjectKey, record: Record) -> Result<()> {
        let (building, now_s) = (self.building, base.now_s());
        if let Some(Change::Present(before)) = self.changed.get_mut(&key) {
            return before
                .replace(record, building, now_s)
                .map_err(|scribble| self.give_up_changed(base, scribble, key));
        }
        let record = SealedRecord::new(record, building, base.disk.metadata).seen(now_s);
        self.changed.insert(key, Change::Present(record));
        Ok(())
    }

    /// Somebody has written to this record in use who must not: no recovery point is made of it.
    pub(crate) fn give_up_record(
        &self,
        base: &Base,
        scribble: Scribble,
        key: ObjectKey,
        record: &SealedRecord,
    ) -> Error {
        let table = table_of(key.domain);
        let (page, slot) = (key.object.0 / RECORDS, (key.object.0 % RECORDS) as usize);
        let stored = self.system.get(&table).filter(|_| key.domain != DomainId::SYSTEM).and_then(|table_record| {
            let block = self.node(base, system_key(table), table_record, 0, page).ok()??;
            Some(*block.record(slot)).filter(|record| *record != [0; RECORD_BYTES])
        });
        base.give_up_record(scribble, key, record, stored.as_ref())
    }

    /// The same for one of the store's own, or of an object that the epoch being built has changed.
    pub(crate) fn give_up_changed(&self, base: &Base, scribble: Scribble, key: ObjectKey) -> Error {
        let record = match self.changed.get(&key) {
            Some(Change::Present(record)) => Some(record),
            _ => self.system.get(&key.object.0).filter(|_| key.domain == DomainId::SYSTEM),
        };
        match record {
            Some(record) => self.give_up_record(base, scribble, key, record),
            None => base.give_up_sums(scribble),
        }
    }

    /// Does something with a system object's record in hand.
    ///
    /// # Errors
    /// Those of the action, and as [`Trees::put`].
    pub(crate) fn with_system<R>(
        &mut self,
        base: &Base,
        id: u64,
        action: impl FnOnce(&mut Trees, &mut Record) -> Result<R>,
    ) -> Result<R> {
        let Some(mut record) = self.system.get(&id).map(|record| Record::clone(record)) else {
            return Err(Error::NoObject(system_key(id)));
        };
        let outcome = action(self, &mut record);
        let building = self.building;
        let before = self.system.get_mut(&id).expect("no object of the store's own goes");
        let replaced = before.replace(record, building, base.now_s());
        replaced.map_err(|scribble| self.give_up_changed(base, scribble, system_key(id)))?;
        outcome
    }

    /// Makes the bit of an object id in a sparse map `value`; by the object's record it `was` this. Maps have no blocks of zeros.
    pub(crate) fn set_map_bit(&mut self, base: &Base, map: u64, id: ObjectId, was: bool, value: bool) -> Result<()> {
        let (page, bit) = (id.0 / BITS, (id.0 % BITS) as usize);
        let key = system_key(map);
        self.with_system(base, map, |trees, record| {
            // One that has been changed is verified before the recovery point; a clean one that need not be is not looked at later.
            let is_dirty = trees.dirty.contains_key(&NodeKey::new(key, 0, page));
            let find: FindNode = if is_dirty { Trees::node } else { Trees::node_now };
            let block = find(trees, base, key, record, 0, page)?;
            let is = block.is_some_and(|block| block.bit(bit));
            if is != was {
                trees.audit.map_differs(map, id, is);
            }
            if is == value {
                return Ok(());
            }
            trees.make_dirty(base, key, record, 0, page)?;
            let mut block = trees.dirty_mut(NodeKey::new(key, 0, page));
            block.set_bit(bit, value);
            if !value && block.is_zero() {
                trees.remove_pages(base, key, record, page, page + 1)?;
            }
            Ok(())
        })
    }

    /// First id at or behind `from` whose bit in a map is `value`; ids beyond the map have none set.
    pub(crate) fn find_map_bit(&self, base: &Base, map: u64, from: u64, value: bool) -> Result<Option<u64>> {
        self.find_map_bit_by(base, map, from, value, Trees::node)
    }

    /// The same, by blocks that have been verified just now.
    pub(crate) fn find_map_bit_now(&self, base: &Base, map: u64, from: u64, value: bool) -> Result<Option<u64>> {
        self.find_map_bit_by(base, map, from, value, Trees::node_now)
    }

    fn find_map_bit_by(&self, base: &Base, map: u64, from: u64, value: bool, node: FindNode) -> Result<Option<u64>> {
        let key = system_key(map);
        let Some(record) = self.system.get(&map) else { return Ok(None) };
        let mut id = from;
        while id < OBJECT_END {
            let page = id / BITS;
            let Some(block) = node(self, base, key, record, 0, page)? else {
                if !value {
                    return Ok(Some(id));
                }
                match self.seek(base, key, record, page, Seek::Data)? {
                    Some(next) => id = next * BITS,
                    None => return Ok(None),
                }
                continue;
            };
            for word in (id % BITS / 64) as usize..crate::words::CHUNK_WORDS {
                let bits = if value { block.word(word) } else { !block.word(word) };
                let first = page * BITS + word as u64 * 64;
                let bits = if first < id { bits & (u64::MAX << (id - first)) } else { bits };
                if bits != 0 {
                    return Ok(Some(first + u64::from(bits.trailing_zeros())));
                }
            }
            id = (page + 1) * BITS;
        }
        Ok(None)
    }

    /// First id at or behind `from` that no object of the domain has. What the map calls free is asked of the object table too:
    /// a creation over an object would be refused only when the epoch is written, and fail all of it.
    ///
    /// What the map calls in use is asked of nobody else, so its pages are verified each time.
    pub(crate) fn find_free_id(&self, base: &Base, domain: DomainId, from: u64) -> Result<Option<u64>> {
        let mut from = from;
        while let Some(id) = self.find_map_bit_now(base, map_of(domain), from, false)? {
            match self.find(base, ObjectKey { domain, object: ObjectId(id) }) {
                Ok(None) => return Ok(Some(id)),
                Ok(Some(_)) => tracing::warn!(domain = domain.0, id, "free in the map of objects, and in use"),
                Err(error @ Error::Corrupt(_)) => tracing::warn!(domain = domain.0, id, %error, "not used again"),
                Err(error) => return Err(error),
            }
            from = id + 1;
        }
        Ok(None)
    }

    /// Extra references to the block at `address`.
    pub(crate) fn references(&self, base: &Base, address: u64) -> Result<u32> {
        let counters = self.counters(base, address / COUNTERS)?;
        Ok(counters.map_or(0, |block| block.counter((address % COUNTERS) as usize)))
    }

    /// A page of the reference table: the counters of [`COUNTERS`] blocks. None: they are 0.
    pub(crate) fn counters(&self, base: &Base, page: u64) -> Result<Option<Arc<MetaBlock>>> {
        let record = &self.system[&REFERENCES];
        if record.root.is_hole() {
            return Ok(None);
        }
        self.node(base, system_key(REFERENCES), record, 0, page)
    }

    /// The same for a block that becomes free if there are none. The pages of one file may lie anywhere, and each page of the table be asked
    /// for again and again: it is verified once in a removal. One that the epoch being built has changed is verified before that becomes
    /// a recovery point, and no block is handed out before then.
    fn references_now(&mut self, base: &Base, address: u64) -> Result<u32> {
        let (page, slot) = (address / COUNTERS, (address % COUNTERS) as usize);
        let counter = |block: &MetaBlock| block.counter(slot);
        let record = &self.system[&REFERENCES];
        if record.root.is_hole() {
            return Ok(0);
        }
        if let Some(seen) = self.counters_seen.as_ref().and_then(|seen| seen.get(&page)) {
            return Ok(seen.as_deref().map_or(0, counter));
        }
        if let Some(dirty) = self.dirty.get(&NodeKey::new(system_key(REFERENCES), 0, page)) {
            return Ok(counter(&dirty.block));
        }
        let block = self.node_now(base, system_key(REFERENCES), record, 0, page)?;
        let count = block.as_deref().map_or(0, counter);
        if let Some(seen) = &mut self.counters_seen {
            if seen.len() >= COUNTERS_SEEN_MAX {
                seen.clear();
            }
            seen.insert(page, block);
        }
        Ok(count)
    }

    /// A page of the reference table, if it is clean and has been verified since the removal began that is at work.
    pub(crate) fn verified_counters(&self, key: NodeKey) -> Option<&Arc<MetaBlock>> {
        let seen = self.counters_seen.as_ref().filter(|_| key.level == 0 && key.object_key() == system_key(REFERENCES));
        seen?.get(&key.index)?.as_ref()
    }

    fn set_references(&mut self, base: &Base, address: u64, count: u32) -> Result<()> {
        let (page, key) = (address / COUNTERS, system_key(REFERENCES));
        let node = NodeKey::new(key, 0, page);
        if !self.dirty.contains_key(&node) {
            self.with_system(base, REFERENCES, |trees, record| trees.make_dirty(base, key, record, 0, page))?;
        }
        if let Some(seen) = &mut self.counters_seen {
            // It has become another block.
            seen.remove(&page);
        }
        let mut block = self.dirty_mut(node);
        block.put_counter((address % COUNTERS) as usize, count);
        if count == 0 && block.is_zero() {
            self.with_system(base, REFERENCES, |trees, record| trees.remove_pages(base, key, record, page, page + 1))?;
        }
        Ok(())
    }

    /// One more pointer names the block.
    pub(crate) fn add_reference(&mut self, base: &Base, address: u64) -> Result<()> {
        let count = self.references_now(base, address)?;
        let Some(more) = count.checked_add(1) else {
            return Err(Error::Limit { what: "references to a block", limit: u64::from(u32::MAX), got: 1 << 32 });
        };
        self.set_references(base, address, more)
    }

    /// So many references to the block are none; how many of these there were.
    pub(crate) fn take_off_references(&mut self, base: &Base, address: u64, times: u32) -> Result<u32> {
        let count = self.references_now(base, address)?;
        let taken = times.min(count);
        self.set_references(base, address, count - taken)?;
        Ok(taken)
    }

    /// One pointer less names the block; `false` if it was the only one.
    pub(crate) fn drop_reference(&mut self, base: &Base, address: u64) -> Result<bool> {
        let count = self.references_now(base, address)?;
        if count == 0 {
            return Ok(false);
        }
        self.set_references(base, address, count - 1)?;
        Ok(true)
    }
}
