//! Logic bugs, on purpose: the wrong change, by who may make it, so that all checksums are right.

use super::Lab;
use crate::alloc::Zone;
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, LABEL_BLOCKS, POINTERS, Record};
use crate::meta_block::NodeKey;
use crate::objects::{map_of, orphans_of};
use crate::tree::Trees;
use holdfast_object::{DomainId, ObjectId, ObjectKey, PageIndex, Result};
use serde::{Deserialize, Serialize};

/// What is done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogicBug {
    /// A block is handed out, and nothing points to it.
    BitWithoutPointer,
    /// A pointer to a block that was not handed out.
    PointerWithoutBit,
    /// A pointer to a block that has one.
    PointerToUsedBlock,
    /// A block is freed that has its pointer.
    FreedInUse,
    /// A pointer goes, and its block stays in use.
    PointerLost,
    /// The count of blocks that the epoch being built has freed.
    FreeCount,
    /// The count of all blocks.
    BlockCount,
    /// The count of objects.
    ObjectCount,
    /// The count of blocks of metadata.
    MetadataCount,
    /// The count of blocks of metadata that the newest snapshot has too.
    MetadataKeptCount,
    /// The generation of the next object.
    Generation,
    /// The count of pages of an object.
    PageCount,
    /// The bound of the pages of an object.
    PageBound,
    /// A reference that nobody has.
    ReferenceTooMany,
    /// A reference is taken away that somebody has.
    ReferenceTooFew,
    /// A run of blocks that never joins its dead list.
    DeadRunLost,
    /// A block joins a dead list, and lives.
    DeadAndAlive,
    /// An id is free in the map of objects, and in use.
    FreeIdInUse,
    /// An id is in use in the map of objects, and nobody has it.
    UsedIdFree,
    /// An object with a name, in the map of orphans.
    NamedOrphan,
    /// A pointer of an epoch to come.
    FutureBirth,
    /// A pointer whose block is younger than it.
    SwappedBirths,
    /// A pointer to a page, as if it were one to a tree block.
    SwappedLevel,
    /// What stands for a block that has no address yet, and no such block.
    PlaceholderLeft,
    /// A pointer into a label.
    AddressInLabel,
    /// A snapshot of an epoch before its own.
    SnapshotBackdated,
    /// The count of blocks that the intent log has in use. It is of no recovery point: an append goes by it.
    LogHead,
}

impl LogicBug {
    /// All of them.
    pub const ALL: [LogicBug; 27] = [
        LogicBug::BitWithoutPointer,
        LogicBug::PointerWithoutBit,
        LogicBug::PointerToUsedBlock,
        LogicBug::FreedInUse,
        LogicBug::PointerLost,
        LogicBug::FreeCount,
        LogicBug::BlockCount,
        LogicBug::ObjectCount,
        LogicBug::MetadataCount,
        LogicBug::MetadataKeptCount,
        LogicBug::Generation,
        LogicBug::PageCount,
        LogicBug::PageBound,
        LogicBug::ReferenceTooMany,
        LogicBug::ReferenceTooFew,
        LogicBug::DeadRunLost,
        LogicBug::DeadAndAlive,
        LogicBug::FreeIdInUse,
        LogicBug::UsedIdFree,
        LogicBug::NamedOrphan,
        LogicBug::FutureBirth,
        LogicBug::SwappedBirths,
        LogicBug::SwappedLevel,
        LogicBug::PlaceholderLeft,
        LogicBug::AddressInLabel,
        LogicBug::SnapshotBackdated,
        LogicBug::LogHead,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            LogicBug::BitWithoutPointer => "bit-without-pointer",
            LogicBug::PointerWithoutBit => "pointer-without-bit",
            LogicBug::PointerToUsedBlock => "pointer-to-used-block",
            LogicBug::FreedInUse => "freed-in-use",
            LogicBug::PointerLost => "pointer-lost",
            LogicBug::FreeCount => "free-count",
            LogicBug::BlockCount => "block-count",
            LogicBug::ObjectCount => "object-count",
            LogicBug::MetadataCount => "metadata-count",
            LogicBug::MetadataKeptCount => "metadata-kept-count",
            LogicBug::Generation => "generation",
            LogicBug::PageCount => "page-count",
            LogicBug::PageBound => "page-bound",
            LogicBug::ReferenceTooMany => "reference-too-many",
            LogicBug::ReferenceTooFew => "reference-too-few",
            LogicBug::DeadRunLost => "dead-run-lost",
            LogicBug::DeadAndAlive => "dead-and-alive",
            LogicBug::FreeIdInUse => "free-id-in-use",
            LogicBug::UsedIdFree => "used-id-free",
            LogicBug::NamedOrphan => "named-orphan",
            LogicBug::FutureBirth => "future-birth",
            LogicBug::SwappedBirths => "swapped-births",
            LogicBug::SwappedLevel => "swapped-level",
            LogicBug::PlaceholderLeft => "placeholder-left",
            LogicBug::AddressInLabel => "address-in-label",
            LogicBug::SnapshotBackdated => "snapshot-backdated",
            LogicBug::LogHead => "log-head",
        }
    }
}

impl std::fmt::Display for LogicBug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A page of an object that has tree blocks.
struct Page {
    key: ObjectKey,
    record: Record,
    index: PageIndex,
    pointer: BlockPointer,
}

impl Lab<'_> {
    /// Does something wrongly. `choice` decides between the objects and blocks that there are; what was done is told. `None`: there is
    /// nothing now to which that could happen, or somebody is at work with it.
    ///
    /// # Errors
    /// Those of reading metadata on the way.
    pub fn logic_bug(&self, bug: LogicBug, choice: u64) -> Result<Option<String>> {
        let module = self.module;
        let (base, next) = (&module.base, module.epoch() + 1);
        module.disk().raise_newest(next);
        let Some(mut trees) = self.trees() else { return Ok(None) };
        let trees = &mut *trees;
        trees.building = next;
        let told = match bug {
            LogicBug::BitWithoutPointer => {
                let taken = base.alloc.lock().allocate(next, Zone::Data, 1);
                taken.map(|(block, _)| format!("block {block} is in use, and nothing points to it"))
            }
            LogicBug::PointerWithoutBit => {
                let free = base.alloc.lock().free_run(0..module.blocks(), 1);
                match free {
                    Some((block, _)) => self.change_pointer(trees, choice, |page| BlockPointer {
                        address: [block, 0],
                        birth_phys: next,
                        birth_log: next,
                        ..page
                    })?,
                    None => None,
                }
            }
            LogicBug::PointerToUsedBlock => {
                let other = self.page(trees, choice / 7 + 1)?.map(|other| other.pointer.address);
                match other {
                    Some(address) => self.change_pointer(trees, choice, |page| match page.address == address {
                        // Of two the second names what the first does.
                        true => BlockPointer { address: [address[0] + 1, 0], ..page },
                        false => BlockPointer { address, ..page },
                    })?,
                    None => None,
                }
            }
            LogicBug::FreedInUse => {
                let page = self.page(trees, choice)?;
                page.filter(|page| base.free(page.pointer.address[0]))
                    .map(|page| format!("block {} is freed, and {} has it", page.pointer.address[0], page.key))
            }
            LogicBug::PointerLost => self.change_pointer(trees, choice, |_| BlockPointer::HOLE)?,
            LogicBug::FreeCount | LogicBug::BlockCount => {
                let mut alloc = base.alloc.lock();
                alloc.miscount(bug == LogicBug::BlockCount);
                Some("one more".into())
            }
            LogicBug::ObjectCount => {
                trees.objects += 1;
                Some(format!("{} objects, one more than there are", trees.objects.get()))
            }
            LogicBug::MetadataCount => {
                trees.metadata += 1;
                Some(format!("{} blocks of metadata, one more than there are", trees.metadata.get()))
            }
            LogicBug::MetadataKeptCount => {
                let kept = trees.kept.miscount(DomainId::MAIN);
                kept.map(|[counted, wrong]| {
                    format!("the newest snapshot has {wrong} blocks of metadata instead of {counted}")
                })
            }
            LogicBug::Generation => {
                trees.next_generation -= 1;
                Some(format!("the next generation is {}, which somebody has", trees.next_generation.get()))
            }
            LogicBug::PageCount => match self.page(trees, choice)? {
                Some(Page { key, mut record, .. }) => {
                    record.attributes.blocks += 1;
                    record.changed = next;
                    let told = format!("{key} has {} pages, one more than there are", record.attributes.blocks);
                    trees.put(base, key, record)?;
                    Some(told)
                }
                None => None,
            },
            LogicBug::PageBound => match self.page(trees, choice)? {
                Some(Page { key, mut record, index, .. }) => {
                    record.page_bound = index;
                    record.changed = next;
                    trees.put(base, key, record)?;
                    Some(format!("{key} says that it has no page from {index} on, and has that one"))
                }
                None => None,
            },
            LogicBug::ReferenceTooMany => match self.page(trees, choice)? {
                Some(page) => {
                    let block = page.pointer.address[0];
                    trees.add_reference(base, block)?;
                    Some(format!("block {block} has a reference that nobody has"))
                }
                None => None,
            },
            LogicBug::ReferenceTooFew => {
                let mut found = None;
                for page in self.pages(trees)? {
                    if trees.references(base, page.pointer.address[0])? > 0 {
                        found = Some(page.pointer.address[0]);
                        break;
                    }
                }
                match found {
                    Some(block) => {
                        trees.drop_reference(base, block)?;
                        Some(format!("block {block} has a reference less than those who have it"))
                    }
                    None => None,
                }
            }
            LogicBug::DeadRunLost => {
                let lost = trees.kept.lose_dying(DomainId::MAIN, choice);
                lost.map(|run| format!("{} blocks from {} on join no dead list", run.count, run.address[0]))
            }
            LogicBug::DeadAndAlive => {
                let died = |page: &Page| crate::format::DeadRun {
                    address: page.pointer.address,
                    birth_log: page.pointer.birth_log,
                    count: 1,
                    is_page: true,
                };
                let pages = self.pages(trees)?;
                let kept = pages.iter().find(|page| trees.kept.has(DomainId::MAIN, page.pointer.birth_log));
                kept.filter(|page| trees.kept.died(DomainId::MAIN, died(page)))
                    .map(|page| format!("block {} joins a dead list, and {} has it", page.pointer.address[0], page.key))
            }
            LogicBug::FreeIdInUse => match self.page(trees, choice)? {
                Some(Page { key, .. }) => {
                    trees.set_map_bit(base, map_of(key.domain), key.object, true, false)?;
                    Some(format!("{key} is free in the map of objects"))
                }
                None => None,
            },
            LogicBug::UsedIdFree => {
                let free = trees.find_free_id(base, DomainId::MAIN, 100)?;
                match free {
                    Some(id) => {
                        trees.set_map_bit(base, map_of(DomainId::MAIN), ObjectId(id), false, true)?;
                        Some(format!("id {id} is in use in the map of objects"))
                    }
                    None => None,
                }
            }
            LogicBug::NamedOrphan => match self.page(trees, choice)? {
                Some(Page { key, .. }) => {
                    trees.set_map_bit(base, orphans_of(key.domain), key.object, false, true)?;
                    Some(format!("{key} is in the map of orphans, and has a name"))
                }
                None => None,
            },
            LogicBug::FutureBirth => {
                self.change_pointer(trees, choice, |page| BlockPointer { birth_log: next + 2, ..page })?
            }
            LogicBug::SwappedBirths => self.change_pointer(trees, choice, |page| BlockPointer {
                birth_phys: page.birth_log + 1,
                birth_log: page.birth_log,
                ..page
            })?,
            LogicBug::SwappedLevel => {
                self.change_pointer(trees, choice, |page| BlockPointer { kind: PointerKind::Tree, level: 1, ..page })?
            }
            LogicBug::PlaceholderLeft => self.change_pointer(trees, choice, |_| BlockPointer::PENDING)?,
            LogicBug::AddressInLabel => {
                let block = choice % LABEL_BLOCKS;
                self.change_pointer(trees, choice, |page| BlockPointer { address: [1 + block, 0], ..page })?
            }
            LogicBug::SnapshotBackdated => {
                let backdated = trees.kept.backdate(DomainId::MAIN);
                backdated.map(|[made, told]| format!("a snapshot of epoch {made} says that it is of epoch {told}"))
            }
            LogicBug::LogHead => {
                let [counted, wrong] = module.log.lock().miscount(choice as usize % 2);
                Some(format!("{wrong} blocks of a half of the intent log are in use instead of {counted}"))
            }
        };
        Ok(told)
    }

    /// Pages of objects with tree blocks, that have names.
    fn pages(&self, trees: &Trees) -> Result<Vec<Page>> {
        let (base, domain) = (&self.module.base, DomainId::MAIN);
        let mut pages = Vec::new();
        let mut from = 0;
        while let Some(id) = trees.find_map_bit(base, map_of(domain), from, true)? {
            from = id + 1;
            let key = ObjectKey { domain, object: ObjectId(id) };
            let Some(record) = trees.find(base, key)? else { continue };
            if record.levels == 0 || record.attributes.nlink == 0 || record.kind.is_metadata() {
                continue;
            }
            let pointers = trees.pages(base, key, &record, 0, record.page_bound as usize)?;
            let stored = (0..).zip(pointers).filter(|(_, pointer)| pointer.kind == PointerKind::Data);
            pages.extend(stored.map(|(index, pointer)| Page { key, record: record.clone(), index, pointer }));
        }
        Ok(pages)
    }

    fn page(&self, trees: &Trees, choice: u64) -> Result<Option<Page>> {
        let mut pages = self.pages(trees)?;
        let many = pages.len().max(1) as u64;
        Ok((!pages.is_empty()).then(|| pages.swap_remove((choice % many) as usize)))
    }

    /// Puts another pointer in the place of that of a page, and does nothing else that belongs to it.
    fn change_pointer(
        &self,
        trees: &mut Trees,
        choice: u64,
        change: impl FnOnce(BlockPointer) -> BlockPointer,
    ) -> Result<Option<String>> {
        let base = &self.module.base;
        let Some(Page { key, mut record, index, pointer }) = self.page(trees, choice)? else { return Ok(None) };
        trees.make_dirty(base, key, &mut record, 1, index / POINTERS)?;
        let new = change(pointer);
        let leaf = NodeKey::new(key, 1, index / POINTERS);
        trees.dirty_mut(leaf).put_pointer((index % POINTERS) as usize, &new);
        trees.put(base, key, record)?;
        let tell = |pointer: &BlockPointer| {
            let BlockPointer { address, birth_phys, birth_log, kind, level, .. } = pointer;
            format!("{kind:?} of level {level} in block {}, born {birth_phys} and {birth_log}", address[0])
        };
        Ok(Some(format!("page {index} of {key}: {} instead of {}", tell(&new), tell(&pointer))))
    }
}
