//! Every block of every tree, from the superblock down, in both copies.

use super::births::Births;
use super::report::{BlockRole, BlockUse, FindingKind, Report};
use super::twice::BadCopy;
use crate::base::Base;
use crate::format::blockptr::PointerKind;
use crate::format::{
    BITS, BlockPointer, COUNTERS, DeadRun, Label, POINTERS, RECORDS, Record, RecordKind, SNAPSHOTS, StoredSnapshot,
    Superblock, SystemKind, split_address,
};
use crate::meta_block::{MetaBlock, NodeKey, read_copy};
use crate::named::OnDevice;
use crate::objects::{OBJECT_END, dead_of, holder, system_key};
use crate::scrub::in_state;
use crate::slots::{self, Limits, Remains};
use crate::snapshot::{runs_in, slot_of};
use crate::tree::{Trees, span};
use crate::words::CHUNK_WORDS;
use holdfast_object::{DomainId, Epoch, Error, Kind, ObjectId, ObjectKey, Place, SnapshotId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::ops::Range;

/// What the walk saw, for the accounts.
#[derive(Default)]
pub(super) struct Seen {
    /// Blocks in use, one bit each.
    pub(super) used: Vec<u64>,
    /// Of those, first copies of pages of objects, which may be shared.
    shareable: Vec<u64>,
    /// Uses of a block beyond the first, by address of the first copy.
    pub(super) extra: FxHashMap<u64, u64>,
    /// The bitmap as stored. All is in use in it of which it cannot be read.
    pub(super) bitmap: Vec<u64>,
    /// The words of which it cannot be read.
    pub(super) unread: Vec<Range<usize>>,
    /// All of it could be read.
    pub(super) bitmap_is_whole: bool,
    /// The first reason why there may be blocks in use that the walk has not reached. Those of the bitmap do not count:
    /// what of it cannot be reached is of no use.
    pub(super) hidden: Option<(Place, String)>,
    /// The first block that is only a snapshot's, and of which it cannot be read what it leads to: if the domain has lost its own way there, that is in no
    /// dead list.
    pub(super) hidden_in_snapshot: Option<(Place, String)>,
    /// What one of these leads to may have two copies: not only pages of regular files.
    pub(super) hides_copies: bool,
    /// Blocks in use by the domains themselves, and not only by their snapshots.
    pub(super) live: Vec<u64>,
    /// Blocks that a snapshot reaches, and its domain does not.
    pub(super) held: Vec<u64>,
    /// Blocks of pages that a snapshot reaches through a tree block which its domain does not have.
    pub(super) of_snapshots: Vec<u64>,
    /// Runs of all dead lists.
    pub(super) dead: Vec<Dead>,
    /// Blocks of metadata, two copies counted as one, of the domain `main`.
    pub(super) metadata: u64,
    /// Of these, those that its newest snapshot has too.
    pub(super) metadata_kept: u64,
    /// The reference table as stored.
    pub(super) references: FxHashMap<u64, u32>,
    /// All of it could be read.
    pub(super) references_are_whole: bool,
    /// Ids of objects by domain, ascending; whether they are orphans.
    pub(super) objects: BTreeMap<DomainId, Vec<(u64, bool)>>,
    /// Ids in the maps of domains, ascending.
    pub(super) mapped: BTreeMap<DomainId, Vec<u64>>,
    /// Ids in the maps of orphans, ascending.
    pub(super) orphans: BTreeMap<DomainId, Vec<u64>>,
    /// Those that are wrong.
    pub(super) entries: Entries,
}

/// Entries that are not what they can be.
#[derive(Default)]
pub(super) struct Entries {
    /// Blocks that have something in one that is free.
    pub(super) remains: Vec<NodeKey>,
    /// There are some of lists of snapshots that are in use.
    pub(super) have_snapshots: bool,
    /// Counters of the reference table, by address, and by how much they are too high.
    pub(super) references: Vec<(u64, u32)>,
    /// There are others that are, and that something may need which is not in the trees of domains and in dead lists.
    pub(super) has_counts_left: bool,
}

impl Entries {
    pub(super) fn are_good(&self) -> bool {
        self.remains.is_empty() && !self.have_snapshots && self.references.is_empty()
    }
}

/// A run of a dead list.
pub(super) struct Dead {
    pub(super) domain: DomainId,
    pub(super) run: DeadRun,
    /// The list is of a snapshot that is being deleted: perhaps no other one has the blocks, and they are to become free.
    pub(super) of_deleted: bool,
}

/// Pages of objects whose bytes are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadPages {
    /// Also those of regular files.
    All,
    /// Those that are metadata.
    Metadata,
    /// None.
    None,
}

/// The object whose tree is being walked.
pub(super) struct Owner<'a> {
    pub(super) key: ObjectKey,
    pub(super) record: &'a Record,
    /// Pages found with data.
    pages: u64,
    /// Highest page found, plus 1.
    bound: u64,
    /// Pages of a regular file found without a checksum.
    no_checksum: u64,
    /// Everything could be read.
    whole: bool,
    /// Met in a snapshot: what the domain still has, or an older snapshot, has been seen.
    in_snapshot: bool,
}

pub(super) struct Walk<'a> {
    pub(super) base: &'a Base,
    pub(super) label: &'a Label,
    pub(super) superblock: &'a Superblock,
    pub(super) pages: ReadPages,
    pub(super) repair: bool,
    /// See [`CheckOptions::ends`](super::CheckOptions::ends).
    pub(super) ends: bool,
    pub(super) report: &'a mut Report,
    visit: &'a mut dyn FnMut(BlockUse),
    seen: Seen,
    /// The snapshot that is being walked.
    pub(super) state: SnapshotId,
    /// Epoch of the newest snapshot of the domain `main`, 0 if there is none.
    newest_snapshot: Epoch,
    /// Places of snapshots that are being deleted, or whose entries cannot be read: nobody looks into them.
    deleted: Vec<(DomainId, u16)>,
    /// Of the blocks in dead lists, when these have been read.
    births: Births,
    /// Of which is asked before something is written.
    pub(super) on_device: OnDevice<'a>,
    /// Blocks of snapshots that are in no dead list and not the domain's, with the place where each was met first.
    unlisted: BTreeMap<u64, Place>,
    /// Blocks that are named by more pointers than may be.
    pub(super) twice: BTreeSet<u64>,
    /// Bad copies of blocks that have a good one.
    pub(super) bad: Vec<BadCopy>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        base: &'a Base,
        label: &'a Label,
        superblock: &'a Superblock,
        pages: ReadPages,
        repair: bool,
        report: &'a mut Report,
        visit: &'a mut dyn FnMut(BlockUse),
    ) -> Walk<'a> {
        let words = (label.blocks.div_ceil(BITS) * BITS / 64) as usize;
        let seen = Seen {
            used: vec![0; words],
            shareable: vec![0; words],
            bitmap: vec![0; words],
            live: vec![0; words],
            of_snapshots: vec![0; words],
            held: vec![0; words],
            bitmap_is_whole: true,
            references_are_whole: true,
            ..Seen::default()
        };
        let (state, newest_snapshot, deleted, births) = (SnapshotId::LIVE, 0, Vec::new(), Births::default());
        Walk {
            base,
            label,
            superblock,
            pages,
            repair,
            ends: false,
            report,
            visit,
            seen,
            state,
            newest_snapshot,
            deleted,
            births,
            on_device: OnDevice::new(&base.disk),
            unlisted: BTreeMap::new(),
            twice: BTreeSet::new(),
            bad: Vec::new(),
        }
    }

    pub(super) fn into_seen(self) -> Seen {
        self.seen
    }

    /// Walks domain 0, from its object tables all others, then the dead lists, then what only snapshots have.
    pub(super) fn trees(&mut self, trees: &Trees) {
        self.newest_snapshot = trees.kept.of(DomainId::MAIN).last().map_or(0, |held| held.stored.epoch);
        self.deleted = trees.kept.deleted().collect();
        for (&id, record) in &trees.system {
            self.object(system_key(id), record, false);
        }
        self.seen.live = self.seen.used.clone();
        let all = std::mem::take(&mut self.seen.dead);
        all.iter().for_each(|dead| self.dead(dead.domain, &dead.run));
        self.births = Births::of(&all);
        self.seen.dead = all;
        for domain in trees.kept.domains() {
            for held in trees.kept.of(domain) {
                self.state = held.stored.id;
                for (&id, record) in &held.view.system {
                    self.object(system_key(id), record, true);
                }
            }
        }
        // In use also where no dead list says so.
        self.seen.used.iter_mut().zip(&self.seen.held).for_each(|(used, held)| *used |= held);
    }

    /// Each once, with all snapshots that have it. These are walked once more for that, each by itself, as below what two share this walk has seen one.
    pub(super) fn tell_unlisted(&mut self, trees: &Trees) {
        let unlisted = std::mem::take(&mut self.unlisted);
        if unlisted.is_empty() {
            return;
        }
        let mut sharers: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
        for held in trees.kept.domains().flat_map(|domain| trees.kept.of(domain)) {
            let mut visit = |used: BlockUse| {
                if unlisted.contains_key(&used.block) {
                    sharers.entry(used.block).or_default().insert(held.stored.id.0);
                }
            };
            let mut ignored = Report::default();
            let pages = ReadPages::None;
            let mut walk = Walk::new(self.base, self.label, self.superblock, pages, false, &mut ignored, &mut visit);
            walk.seen.live.clone_from(&self.seen.live);
            for (&id, record) in &held.view.system {
                walk.object(system_key(id), record, true);
            }
        }
        for (block, place) in unlisted {
            let ids: Vec<String> = sharers.remove(&block).into_iter().flatten().map(|id| id.to_string()).collect();
            let what = match &ids[..] {
                [] | [_] => "a block of a snapshot, in no dead list".to_string(),
                ids => format!("a block of snapshots {}, in no dead list", ids.join(", ")),
            };
            self.report.find(FindingKind::Unlisted, place, what);
        }
    }

    /// Pages that more pointers name than the reference table counts are named twice as well: whoever lets one go frees it.
    pub(super) fn add_uncounted(&mut self) {
        let Seen { extra, references, .. } = &self.seen;
        if !self.seen.references_are_whole {
            return;
        }
        let counted = |address| references.get(address).copied().unwrap_or(0);
        let uncounted = extra.iter().filter(|(address, uses)| **uses > u64::from(counted(*address)));
        let uncounted: Vec<u64> = uncounted.map(|(address, _)| *address).collect();
        for address in uncounted {
            let what = "used more often than the reference table counts".to_string();
            self.seen.hidden.get_or_insert_with(|| (self.base.disk.place(address), what));
            self.twice.insert(split_address(address).1);
        }
    }

    /// The blocks of a dead list are in use. Each run is one use of its pages.
    fn dead(&mut self, domain: DomainId, run: &DeadRun) {
        let object = Some(system_key(dead_of(domain)));
        for block in run.blocks() {
            for (copy, address) in block.into_iter().enumerate().filter(|(_, address)| *address != 0) {
                let at = split_address(address).1;
                let (word, bit) = ((at / 64) as usize, 1u64 << (at % 64));
                let Some(used) = self.seen.used.get_mut(word) else { continue };
                if *used & bit == 0 {
                    *used |= bit;
                    if run.is_page {
                        self.seen.shareable[word] |= bit;
                    }
                } else if !run.is_page || self.seen.shareable[word] & bit == 0 {
                    let place = Place { object, ..self.base.disk.place(address) };
                    let what = "in a dead list, and used by another block";
                    self.seen.hidden.get_or_insert_with(|| (place, what.to_string()));
                    self.twice.insert(at);
                } else if copy == 0 {
                    *self.seen.extra.entry(address).or_default() += 1;
                }
            }
        }
    }

    /// A snapshot reaches the block: whether it is not the domain's own. It must be in use.
    fn hold(&mut self, owner: &Owner<'_>, pointer: &BlockPointer, key: NodeKey) -> bool {
        let (mut is_new, mut held_before) = (false, Vec::new());
        for (copy, address) in pointer.addresses().enumerate() {
            let block = split_address(address).1;
            let (word, bit) = ((block / 64) as usize, 1u64 << (block % 64));
            let Some(used) = self.seen.used.get(word) else { continue };
            if used & bit == 0 {
                let place = || in_state(key.place(&self.base.disk, address), self.state);
                self.unlisted.entry(block).or_insert_with(place);
            }
            if key.level == 0 {
                self.seen.of_snapshots[word] |= bit;
            }
            if self.seen.live[word] & bit == 0 && self.seen.held[word] & bit == 0 {
                self.seen.held[word] |= bit;
                is_new = true;
                if copy == 0 {
                    self.born(pointer, key);
                }
                self.tell(owner, block, copy, key);
            } else {
                held_before.push(block);
            }
        }
        if is_new {
            // Who has one copy of a block has the other one.
            self.twice.extend(held_before);
        }
        is_new
    }

    /// What a snapshot has, and the domain has not, died with the birth that the snapshot's pointer says.
    fn born(&mut self, pointer: &BlockPointer, key: NodeKey) {
        let (address, born) = (pointer.address[0], pointer.birth_log);
        let is_page = key.level == 0 && key.object_key().domain != DomainId::SYSTEM;
        if let Some((told, told_page)) = self.births.contradicts(address, born, is_page) {
            let sort = |is_page| if is_page { "a page" } else { "metadata" };
            let what = format!("{} of epoch {born}, in a dead list as {} of {told}", sort(is_page), sort(told_page));
            let place = in_state(key.place(&self.base.disk, address), self.state);
            self.report.find(FindingKind::Snapshot, place, what);
        }
    }

    fn object(&mut self, key: ObjectKey, record: &Record, in_snapshot: bool) {
        let mut owner = Owner { key, record, pages: 0, bound: 0, no_checksum: 0, whole: true, in_snapshot };
        self.tree(&mut owner, &record.root, record.levels, 0);
        if owner.no_checksum > 0 {
            let found = &mut self.report.no_checksum;
            found.files += 1;
            if found.first.len() < Report::FINDINGS_MAX {
                let key = ObjectKey { object: key.object.in_snapshot(self.state), ..key };
                found.first.push((key, owner.no_checksum));
            }
        }
        let place = Place { object: Some(key), ..Place::default() };
        if !owner.whole {
            self.report.incomplete = true;
            self.seen.bitmap_is_whole &= record.kind != RecordKind::System(SystemKind::Bitmap);
            self.seen.references_are_whole &= record.kind != RecordKind::System(SystemKind::References);
            return;
        }
        if key.domain == DomainId::SYSTEM || in_snapshot {
            return;
        }
        if owner.pages != record.attributes.blocks {
            let what = format!("the record counts {} blocks, the tree has {}", record.attributes.blocks, owner.pages);
            self.report.find(FindingKind::Record, place.clone(), what);
        }
        if owner.bound > record.page_bound {
            let what = format!("page {} is stored, beyond the record's bound {}", owner.bound - 1, record.page_bound);
            self.report.find(FindingKind::Record, place.clone(), what);
        }
        if record.attributes.generation >= self.superblock.next_generation {
            let (generation, next) = (record.attributes.generation, self.superblock.next_generation);
            self.report.find(FindingKind::Record, place, format!("generation {generation}, the next one is {next}"));
        }
    }

    /// What is under `pointer`. Goes down one level at a time from at most 6.
    fn tree(&mut self, owner: &mut Owner<'_>, pointer: &BlockPointer, level: u8, index: u64) {
        if pointer.is_hole() {
            return;
        }
        let key = NodeKey::new(owner.key, level, index);
        let is_system = owner.key.domain == DomainId::SYSTEM;
        if level == 0 && !is_system {
            self.pages(owner, index, &[*pointer]);
            return;
        }
        if !owner.in_snapshot {
            self.claim(owner, pointer, key);
        } else if !self.hold(owner, pointer, key) {
            return;
        }
        self.report.metadata_blocks += pointer.addresses().count() as u64;
        if !pointer.seeded || pointer.address[1] == 0 {
            let what = "metadata without a second copy or without its place in the checksum";
            let place = in_state(key.place(&self.base.disk, pointer.address[0]), self.state);
            self.report.find(FindingKind::Pointer, place, what);
        }
        let Some(mut block) = self.load(key, pointer) else {
            owner.whole = false;
            self.hides(owner, key, pointer, "no copy can be read".to_string());
            return;
        };
        self.take_remains(owner, key, pointer, &mut block);
        if level == 0 {
            self.system_page(owner, index, &block);
            return;
        }
        if let Err(Error::Corrupt(corruption)) = block.settle(&self.base.disk, key, pointer.address[0]) {
            let what = corruption.without_place();
            self.hides(owner, key, pointer, what.clone());
            self.report.find(FindingKind::Pointer, in_state(corruption.place, self.state), what);
            owner.whole = false;
            return;
        }
        let children: Vec<BlockPointer> = (0..POINTERS as usize).map(|slot| block.pointer(slot)).collect();
        if level == 1 && !is_system {
            self.pages(owner, index * POINTERS, &children);
            return;
        }
        for (slot, child) in children.iter().enumerate() {
            self.tree(owner, child, level - 1, index * POINTERS + slot as u64);
        }
    }

    /// Notes that blocks may be in use under one that cannot be read.
    fn hides(&mut self, owner: &Owner<'_>, key: NodeKey, pointer: &BlockPointer, what: String) {
        let names_no_blocks = match owner.record.kind {
            RecordKind::System(SystemKind::Bitmap) => true,
            RecordKind::System(SystemKind::References | SystemKind::ObjectMap | SystemKind::OrphanMap) => {
                key.level == 0
            }
            RecordKind::System(SystemKind::ObjectTable | SystemKind::SnapshotList | SystemKind::DeadLists)
            | RecordKind::Object(_) => false,
        };
        if !names_no_blocks {
            let place = in_state(key.place(&self.base.disk, pointer.address[0]), self.state);
            let has_copies = (owner.record.kind, key.level) != (RecordKind::Object(Kind::Regular), 1);
            self.hides_at(owner, place, what, has_copies);
        }
        if owner.record.kind == RecordKind::System(SystemKind::Bitmap) {
            let words =
                |chunk: u64| chunk.saturating_mul(CHUNK_WORDS as u64).min(self.seen.bitmap.len() as u64) as usize;
            let chunks = key.index.saturating_mul(span(key.level));
            let unread = words(chunks)..words(chunks.saturating_add(span(key.level)));
            self.seen.bitmap[unread.clone()].fill(u64::MAX);
            self.seen.unread.push(unread);
        }
    }

    /// Whether what is hidden may have two copies.
    fn hides_at(&mut self, owner: &Owner<'_>, place: Place, what: String, has_copies: bool) {
        self.seen.hides_copies |= has_copies && owner.in_snapshot;
        let Seen { hidden, hidden_in_snapshot, .. } = &mut self.seen;
        let hidden = if owner.in_snapshot { hidden_in_snapshot } else { hidden };
        hidden.get_or_insert((place, what));
    }

    /// Tells what a block is used for.
    fn tell(&mut self, owner: &Owner<'_>, block: u64, copy: usize, key: NodeKey) {
        let role = match (owner.record.kind, key.level) {
            (_, 1..) => BlockRole::Tree,
            (RecordKind::System(SystemKind::ObjectTable), _) => BlockRole::ObjectTable,
            (RecordKind::System(SystemKind::Bitmap), _) => BlockRole::Bitmap,
            (RecordKind::System(SystemKind::References), _) => BlockRole::References,
            (RecordKind::System(SystemKind::SnapshotList), _) => BlockRole::SnapshotList,
            (RecordKind::System(SystemKind::DeadLists), _) => BlockRole::DeadList,
            (RecordKind::System(SystemKind::ObjectMap | SystemKind::OrphanMap), _) => BlockRole::Map,
            (RecordKind::Object(Kind::Regular), _) => BlockRole::Data,
            (RecordKind::Object(_), _) => BlockRole::MetadataPage,
        };
        let kind = match owner.record.kind {
            RecordKind::Object(kind) => Some(kind),
            RecordKind::System(_) => None,
        };
        let object = Some(owner.key);
        let NodeKey { level, index, .. } = key;
        (self.visit)(BlockUse { block, role, copy: copy as u8, object, kind, level, index, held: owner.in_snapshot });
    }

    /// Notes the blocks of a pointer as used; whether one was not known to be.
    fn claim(&mut self, owner: &Owner<'_>, pointer: &BlockPointer, key: NodeKey) -> bool {
        let mut is_new = false;
        let is_page = key.level == 0 && owner.key.domain != DomainId::SYSTEM;
        if pointer.address[1] != 0 && holder(owner.key) == Some(DomainId::MAIN) {
            self.seen.metadata += 1;
            self.seen.metadata_kept += u64::from(pointer.birth_log <= self.newest_snapshot);
        }
        for (copy, address) in pointer.addresses().enumerate() {
            let block = split_address(address).1;
            self.tell(owner, block, copy, key);
            let (word, bit) = ((block / 64) as usize, 1u64 << (block % 64));
            let Some(used) = self.seen.used.get_mut(word) else { continue };
            if *used & bit == 0 {
                *used |= bit;
                is_new = true;
                if is_page {
                    self.seen.shareable[word] |= bit;
                }
            } else if !is_page || self.seen.shareable[word] & bit == 0 {
                let place = key.place(&self.base.disk, address);
                self.seen.hidden.get_or_insert_with(|| (place, "used by another block too".to_string()));
                self.twice.insert(block);
            } else if copy == 0 {
                *self.seen.extra.entry(address).or_default() += 1;
            }
        }
        is_new
    }

    /// Reads all copies of a metadata block; a bad one is noted.
    pub(super) fn load(&mut self, key: NodeKey, pointer: &BlockPointer) -> Option<MetaBlock> {
        let mut good: Option<MetaBlock> = None;
        let mut bad = Vec::new();
        for address in pointer.addresses() {
            match read_copy(&self.base.disk, key, pointer, address) {
                Ok(bytes) => good = Some(MetaBlock::clean(bytes, key, pointer, self.base.disk.metadata)),
                Err(error) => bad.push((address, error)),
            }
        }
        for (address, error) in bad {
            let what = match error {
                Error::Corrupt(corruption) => corruption.without_place(),
                error => error.to_string(),
            };
            let place = in_state(key.place(&self.base.disk, address), self.state);
            match good {
                Some(_) => self.bad.push(BadCopy { key, pointer: *pointer, address, place, what }),
                None => self.report.find(FindingKind::Unreadable, place, what),
            }
        }
        good
    }

    /// Pages of an object from `first` on.
    fn pages(&mut self, owner: &mut Owner<'_>, first: u64, pointers: &[BlockPointer]) {
        let is_metadata = owner.record.kind.is_metadata();
        let mut pointers = pointers.to_vec();
        for (at, pointer) in pointers.iter_mut().enumerate() {
            let index = first + at as u64;
            if pointer.is_hole() {
                continue;
            }
            if owner.in_snapshot {
                if pointer.kind != PointerKind::Data || !self.hold(owner, pointer, NodeKey::new(owner.key, 0, index)) {
                    // Read before, or not there.
                    *pointer = BlockPointer::HOLE;
                    continue;
                }
                self.report.pages += 1;
                note_checksum(self.report, owner, pointer, true);
                self.stored_at(owner, index);
                continue;
            }
            self.stored_at(owner, index);
            owner.bound = owner.bound.max(index + 1);
            if let Some(side) = pointer.kind.lost() {
                self.report.lost_pages += 1;
                if self.report.lost.len() < Report::FINDINGS_MAX {
                    let (object, level) = (Some(owner.key), Some(0));
                    self.report.lost.push((Place { object, level, index: Some(index), ..Place::default() }, side));
                }
                continue;
            }
            owner.pages += 1;
            self.report.pages += 1;
            let key = NodeKey::new(owner.key, 0, index);
            let is_new = self.claim(owner, pointer, key);
            note_checksum(self.report, owner, pointer, is_new);
            if pointer.seeded {
                let place = key.place(&self.base.disk, pointer.address[0]);
                self.report.find(FindingKind::Pointer, place, "a page with its place in the checksum");
            }
        }
        if self.pages == ReadPages::All || is_metadata && self.pages == ReadPages::Metadata {
            self.read_pages(owner, first, &pointers);
        }
    }

    /// Compares the pages' bytes with their checksums. First copies of neighbours are read together.
    fn read_pages(&mut self, owner: &Owner<'_>, first: u64, pointers: &[BlockPointer]) {
        let disk = &self.base.disk;
        let mut buffer = holdfast_block::AlignedBuf::zeroed(pointers.len() * 4096);
        let is_data = |pointer: &BlockPointer| pointer.kind == PointerKind::Data;
        let mut start = 0;
        while start < pointers.len() {
            let run = pointers[start..]
                .chunk_by(|a, b| is_data(a) && is_data(b) && a.address[0].checked_add(1) == Some(b.address[0]))
                .next()
                .unwrap_or(&[]);
            let bytes = &mut buffer[start * 4096..(start + run.len()) * 4096];
            if run.first().is_some_and(is_data) {
                let read = disk.read(run[0].address[0], &mut [IoSliceMut::new(bytes)]).is_ok();
                for (at, (pointer, bytes)) in run.iter().zip(bytes.as_chunks::<4096>().0).enumerate() {
                    let (second, index) = (pointer.address[1] != 0, first + (start + at) as u64);
                    if !second && read && pointer.matches(bytes, 0) {
                        self.has_bytes(owner, index, bytes);
                    } else if let Some(good) = self.load(NodeKey::new(owner.key, 0, index), pointer) {
                        self.has_bytes(owner, index, good.bytes());
                    }
                }
            }
            start += run.len().max(1);
        }
    }

    /// Takes out of a block what is in entries that are free, as whoever reads it does. What a snapshot has stays as it is, and does no harm.
    fn take_remains(&mut self, owner: &Owner<'_>, key: NodeKey, pointer: &BlockPointer, block: &mut MetaBlock) {
        let limits = Limits { newest: self.superblock.epoch, blocks: self.base.disk.blocks() };
        let remains = slots::remains(block.bytes(), key, limits);
        block.clear(&remains);
        if owner.in_snapshot || remains.is_empty() {
            return;
        }
        for Remains { misfit, .. } in remains {
            if let Error::Corrupt(found) = misfit.at(key.place(&self.base.disk, pointer.address[0])) {
                let what = format!("{}: expected {}, got {}; it means nothing", found.what, found.expected, found.got);
                self.report.find(FindingKind::FreeEntry, found.place, what);
            }
        }
        self.seen.entries.remains.push(key);
    }

    /// Entries of a list of snapshots that cannot be what they say. That of one that can has been loaded.
    fn snapshots(&mut self, domain: DomainId, owner: &Owner<'_>, index: u64, block: &MetaBlock) {
        for at in 0..SNAPSHOTS {
            let (bytes, slot) = (block.snapshot(at as usize), index * SNAPSHOTS + at);
            let Err(fault) = StoredSnapshot::decode(bytes, self.superblock.epoch, self.base.disk.blocks()) else {
                continue;
            };
            let place = Place { object: Some(owner.key), level: Some(0), index: Some(index), ..Place::default() };
            let (id, name) = StoredSnapshot::glance(bytes);
            let called = match (name, id) {
                (Some(name), _) => format!("the snapshot {name:?}"),
                (None, Some(SnapshotId(id))) => format!("snapshot {id}"),
                (None, None) => "a snapshot".to_string(),
            };
            let what = format!("entry in use, slot {at}: {fault}; {called} cannot be looked into");
            self.report.find(FindingKind::SnapshotEntry, place, what);
            self.seen.entries.have_snapshots = true;
            self.deleted.extend(u16::try_from(slot).map(|slot| (domain, slot)));
        }
    }

    /// A block of one of domain 0's objects.
    fn system_page(&mut self, owner: &Owner<'_>, index: u64, block: &MetaBlock) {
        let id = owner.key.object.0;
        let domain = DomainId((id / 16) as u16);
        match owner.record.kind {
            RecordKind::System(SystemKind::ObjectTable) if id != 0 => self.records(domain, owner, index, block),
            RecordKind::System(SystemKind::DeadLists) => match runs_in(self.base, domain, index, block) {
                Ok(runs) => {
                    let of_deleted = self.deleted.contains(&(domain, slot_of(index)));
                    self.seen.dead.extend(runs.into_iter().map(|run| Dead { domain, run, of_deleted }));
                }
                Err(error) => {
                    let place = Place { object: Some(owner.key), index: Some(index), ..self.base.disk.place(0) };
                    self.seen.hidden.get_or_insert_with(|| (place.clone(), error.to_string()));
                    let what = match error {
                        Error::Corrupt(corruption) => corruption.without_place(),
                        error => error.to_string(),
                    };
                    self.report.find(FindingKind::Snapshot, place, what);
                }
            },
            RecordKind::System(SystemKind::Bitmap) => {
                let at = index as usize * CHUNK_WORDS;
                if let Some(words) = self.seen.bitmap.get_mut(at..at + CHUNK_WORDS) {
                    words.iter_mut().enumerate().for_each(|(at, word)| *word = block.word(at));
                } else {
                    let place = Place { object: Some(owner.key), index: Some(index), ..Place::default() };
                    self.report.find(FindingKind::Counters, place, "a block of the bitmap beyond the device");
                }
            }
            RecordKind::System(SystemKind::References) => {
                let counters = (0..COUNTERS).map(|slot| (index * COUNTERS + slot, block.counter(slot as usize)));
                self.seen.references.extend(counters.filter(|(_, count)| *count > 0));
            }
            RecordKind::System(kind @ (SystemKind::ObjectMap | SystemKind::OrphanMap)) => {
                let map = if kind == SystemKind::ObjectMap { &mut self.seen.mapped } else { &mut self.seen.orphans };
                let bits = (0..BITS).filter(|bit| block.bit(*bit as usize)).map(|bit| index * BITS + bit);
                map.entry(domain).or_default().extend(bits);
            }
            RecordKind::System(SystemKind::SnapshotList) => self.snapshots(domain, owner, index, block),
            RecordKind::System(SystemKind::ObjectTable) | RecordKind::Object(_) => {}
        }
    }

    fn records(&mut self, domain: DomainId, owner: &Owner<'_>, index: u64, block: &MetaBlock) {
        let table = owner.key;
        for slot in 0..RECORDS {
            let id = index * RECORDS + slot;
            let key = ObjectKey { domain, object: ObjectId(id) };
            let epoch = self.superblock.epoch;
            let record = match Record::decode(block.record(slot as usize), epoch, self.base.disk.blocks(), false) {
                Ok(None) => continue,
                Ok(Some(record)) if matches!(record.kind, RecordKind::Object(_)) && (1..OBJECT_END).contains(&id) => {
                    record
                }
                outcome => {
                    let what = match outcome {
                        Err(fault) => format!("record of {key}: {fault}"),
                        Ok(_) => format!("record of {key}: not one of a domain's object"),
                    };
                    let place = Place { object: Some(table), level: Some(0), index: Some(index), ..Place::default() };
                    let place = in_state(place, self.state);
                    self.hides_at(owner, place.clone(), what.clone(), true);
                    self.report.find(FindingKind::Record, place, what);
                    self.report.incomplete = true;
                    continue;
                }
            };
            if !owner.in_snapshot {
                self.report.objects += 1;
                self.seen.objects.entry(domain).or_default().push((id, record.attributes.nlink == 0));
            }
            self.object(key, &record, owner.in_snapshot);
        }
    }
}

/// Notes a page of a regular file without a checksum; a block that others have too counts with the first of them.
fn note_checksum(report: &mut Report, owner: &mut Owner<'_>, pointer: &BlockPointer, is_new: bool) {
    if owner.record.kind == RecordKind::Object(Kind::Regular) && !pointer.has_checksum() {
        owner.no_checksum += 1;
        report.no_checksum.blocks += u64::from(is_new);
    }
}
