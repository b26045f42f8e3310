//! What a recovery point says, apart from where its blocks are: for comparing two stores with the same history.

use super::Lab;
use crate::format::{BlockPointer, COUNTERS, POINTERS, Record, Superblock};
use crate::meta_block::NodeKey;
use crate::objects::{dead_of, map_of, orphans_of, system_key};
use crate::snapshot::{runs_in, slot_of};
use crate::tree::{Trees, span};
use holdfast_object::{DomainId, ObjectId, ObjectKey, Result, Seek};
use std::collections::BTreeMap;

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// All.
    Epochs,
    /// Without epochs, and when.
    Generations,
    /// Without generations of objects either, which depend on how many epochs it took.
    Contents,
}

impl Lab<'_> {
    /// One fact a line. For a store that was just opened.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn facts(&self, exactness: Exactness) -> Result<Vec<String>> {
        let module = self.module;
        let trees = module.trees.read();
        let mut facts = Facts { lab: self, exactness, lines: Vec::new() };
        facts.superblock(&module.superblock()?);
        for (id, record) in &trees.system {
            facts.object(&trees, system_key(*id), record)?;
        }
        let domain = DomainId::MAIN;
        let mut from = 0;
        while let Some(id) = trees.find_map_bit(&module.base, map_of(domain), from, true)? {
            let key = ObjectKey { domain, object: ObjectId(id) };
            facts.object(&trees, key, &trees.get(&module.base, key)?)?;
            from = id + 1;
        }
        from = 0;
        while let Some(id) = trees.find_map_bit(&module.base, orphans_of(domain), from, true)? {
            facts.lines.push(format!("orphan {id}"));
            from = id + 1;
        }
        facts.references(&trees)?;
        facts.snapshots(&trees)?;
        Ok(facts.lines)
    }
}

struct Facts<'a> {
    lab: &'a Lab<'a>,
    exactness: Exactness,
    lines: Vec<String>,
}

impl Facts<'_> {
    fn of_epochs(&self, text: String) -> String {
        if self.exactness == Exactness::Epochs { text } else { String::new() }
    }

    fn superblock(&mut self, superblock: &Superblock) {
        let Superblock { epoch, previous, time, clean, features, next_generation, total, free, .. } = superblock;
        let Superblock { store, device, objects, set_aside, metadata, metadata_kept, protection, .. } = superblock;
        let when = self.of_epochs(format!("epoch {epoch} after {previous}, time {time:?}, {free} free"));
        let next_generation = match self.exactness {
            Exactness::Contents => String::new(),
            _ => format!("generation {next_generation}"),
        };
        self.lines.push(format!(
            "superblock {store:?} {device:?} {when} clean {clean} {features:?} {next_generation} total {total} objects \
             {objects} set aside {set_aside} metadata {metadata} kept {metadata_kept} {protection:?}"
        ));
    }

    fn record(&self, record: &Record) -> String {
        let Record { kind, attributes, levels, project, created, changed, page_bound, root } = record;
        let when = self.of_epochs(format!("created {created} changed {changed}"));
        let mut attributes = attributes.clone();
        if self.exactness == Exactness::Contents {
            attributes.generation = 0;
        }
        format!(
            "{kind:?} {attributes:?} levels {levels} project {project} {when} bound {page_bound}, {}",
            self.pointer(root)
        )
    }

    fn pointer(&self, pointer: &BlockPointer) -> String {
        let BlockPointer { address, birth_phys, birth_log, kind, level, seeded, sums } = pointer;
        let born = self.of_epochs(format!("born {birth_phys} {birth_log}"));
        let algorithms = [sums.primary.algorithm(), sums.secondary.algorithm()];
        let copies = address.iter().filter(|address| **address != 0).count();
        format!("{kind:?} {level} {born} {copies} copies, seeded {seeded}, {algorithms:?}")
    }

    fn object(&mut self, trees: &Trees, key: ObjectKey, record: &Record) -> Result<()> {
        self.lines.push(format!("object {key}: {}", self.record(record)));
        let base = &self.lab.module.base;
        for level in (1..=record.levels).rev() {
            for index in 0..record.page_bound.max(1).div_ceil(span(level)) {
                let Some(block) = trees.node(base, key, record, level, index)? else { continue };
                for slot in (0..POINTERS as usize).filter(|slot| !block.pointer_kind_is_hole(*slot)) {
                    let pointer = self.pointer(&block.pointer(slot));
                    self.lines.push(format!("{:?} {slot}: {pointer}", NodeKey::new(key, level, index)));
                }
            }
        }
        Ok(())
    }

    /// How many blocks have so many references.
    fn references(&mut self, trees: &Trees) -> Result<()> {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for page in 0..self.lab.module.blocks().div_ceil(COUNTERS) {
            let Some(block) = trees.counters(&self.lab.module.base, page)? else { continue };
            for slot in 0..COUNTERS {
                *counts.entry(block.counter(slot as usize)).or_default() += 1;
            }
        }
        counts.remove(&0);
        self.lines.push(format!("references {counts:?}"));
        Ok(())
    }

    /// The list, and how many blocks of which births each dead list has.
    fn snapshots(&mut self, trees: &Trees) -> Result<()> {
        let (base, domain) = (&self.lab.module.base, DomainId::MAIN);
        for held in trees.kept.of(domain) {
            let stored = &held.stored;
            let when = self.of_epochs(format!("epoch {}, {:?}", stored.epoch, stored.created));
            let table = self.record(&stored.table);
            self.lines.push(format!(
                "snapshot {:?} {} {when} {} objects, {} before, deleted {}: {table}",
                stored.id, stored.name, stored.objects, stored.metadata_before, stored.is_deleted
            ));
        }
        let list = system_key(dead_of(domain));
        let Some(record) = trees.system.get(&list.object.0) else { return Ok(()) };
        let mut blocks: BTreeMap<(u16, u64, bool), u64> = BTreeMap::new();
        let mut page = 0;
        while let Some(next) = trees.seek(base, list, record, page, Seek::Data)? {
            if let Some(block) = trees.node(base, list, record, 0, next)? {
                for run in runs_in(base, domain, next, &block)? {
                    let birth = if self.exactness == Exactness::Epochs { run.birth_log } else { 0 };
                    *blocks.entry((slot_of(next), birth, run.is_page)).or_default() += run.blocks_in_all();
                }
            }
            page = next + 1;
        }
        self.lines.push(format!("dead {blocks:?}"));
        Ok(())
    }
}
