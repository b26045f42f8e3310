//! Opening a store: labels, the newest superblock whose records verify, the bitmap.

use crate::alloc::Alloc;
use crate::base::Base;
use crate::check::{Reached, reach};
use crate::commit::CommitOrder;
use crate::disk::{Block, Disk, device_error};
use crate::format::blockptr::EPOCH_MAX;
use crate::format::label::LabelState;
use crate::format::superblock::ring_block;
use crate::format::{
    FORMAT_VERSION, Fault, LABELS, Label, PAGES_MAX, RECORDS, RING_SLOTS, Record, RecordKind, Superblock, hex,
    label_start, uuid,
};
use crate::guarded::Counted;
use crate::meta_block::NodeKey;
use crate::module::{Module, OpenOptions, base, log_area};
use crate::objects::{BITMAP, SYSTEM_END, system_key, system_kind};
use crate::sealed::{Sealed, SealedLabel};
use crate::sealed_record::SealedRecord;
use crate::tree::Trees;
use crate::words::CHUNK_WORDS;
use holdfast_block::Device;
use holdfast_object::{Arena, Clock, Error, Place, Result, Seek};
use std::io::IoSliceMut;
use std::sync::Arc;

/// A store with fewer left is opened for reading only: more than it can have recovery points while it is open.
const EPOCHS_LEFT_MIN: u64 = 1 << 36;

impl Module {
    /// Opens the store on `device`. Nothing is written but good copies of labels, superblocks and metadata over bad ones,
    /// and that only if the store takes changes.
    ///
    /// An allocation bitmap that cannot be read is rebuilt from the trees. If that is not possible either, because not
    /// everything can be reached, the store is opened for reading only, and so it is if the newest recovery point is
    /// damaged beyond its copies: then the newest one before that can be read is opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::NoStore`] say what is wrong with a device that holds no store, a store of a newer
    /// version, or a damaged one; [`Error::Device`].
    pub fn open(
        device: Arc<dyn Device>,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        options: &OpenOptions,
    ) -> Result<Module> {
        Module::open_with(device, arena, clock, options, Bitmap::AsStored)
    }

    /// [`Module::open`], with the bitmap as stored or made anew.
    pub(crate) fn open_with(
        device: Arc<dyn Device>,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        options: &OpenOptions,
        bitmap: Bitmap,
    ) -> Result<Module> {
        // Opening takes long, and what it reads first is written over bad copies in the end.
        let known = SealedLabel::new(&read_label(&*device)?);
        let open_label = || known.open().map_err(|fault| fault.at(device_place(&*device)));
        let superblocks = read_superblocks(&*device, &open_label()?)?;
        let label = open_label()?;
        let seal = |superblock: &Superblock| Sealed::new(&label, superblock, options.metadata);
        let mut failure = None;
        for sealed in superblocks.iter().map(seal).collect::<Vec<_>>() {
            let disk = Disk::new(device.clone(), label.blocks);
            let (label, superblock) = sealed.both(&disk)?;
            // Not even a repair is written before it is known that this is a store to write to.
            let reason = match &failure {
                _ if options.read_only => Some("opened for reading only".to_string()),
                None if label.features.unknown_ro_compat() != 0 || superblock.features.unknown_ro_compat() != 0 => {
                    Some("the store uses features of a newer version that this one can only read".to_string())
                }
                None if superblock.epoch > EPOCH_MAX - EPOCHS_LEFT_MIN => Some("no epochs are left".to_string()),
                None => None,
                Some(error) => Some(format!("the newest recovery point is damaged ({error}); this is one before it")),
            };
            if let Some(reason) = reason {
                disk.latch(reason);
            }
            disk.raise_newest(superblock.epoch);
            let base = base(disk, &label, superblock.covered(&label), options, clock.clone());
            match load_system(&base, &superblock) {
                Ok(mut trees) => {
                    if let Some(error) = trees.kept.unreadable().filter(|_| bitmap == Bitmap::AsStored) {
                        // Which blocks may be freed is not known.
                        base.disk.latch(format!("the list of snapshots cannot be read ({error})"));
                    }
                    let (label, superblock) = sealed.both(&base.disk)?;
                    load_or_rebuild(&base, &label, &superblock, &mut trees, bitmap)?;
                    let set_aside = sealed.superblock(&base.disk)?.set_aside;
                    base.alloc.lock().set_limits(set_aside, options.quota_blocks);
                    trees.tell_kept(&base);
                    let unknown_slots = crate::mend::mend(&base.disk, &sealed)?;
                    let mut module = Module::assemble(base, arena, clock, sealed, trees)?;
                    module.unknown_slots = unknown_slots;
                    module.protection = options.protection.unwrap_or(module.protection);
                    module.deletion_slice = options.deletion_slice;
                    return Ok(module);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::corrupt(device_place(&*device), "superblocks", "a valid one", "none")))
    }
}

/// Where the bitmap in memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bitmap {
    /// From the device; from the trees if that cannot be read.
    AsStored,
    /// From the trees, as what is wrong with the store is put right. Whether all snapshots can be read everywhere; if not, what the one on the device
    /// has in use stays so.
    Anew { sees_all: bool },
}

fn device_place(device: &dyn Device) -> Place {
    Place { device: Some(device.name().to_string()), ..Place::default() }
}

fn block_place(device: &dyn Device, address: u64) -> Place {
    Place { address: Some(address), ..device_place(device) }
}

fn newer(device: &dyn Device, what: String) -> Error {
    Error::NoStore(format!("{}: the store was made by a newer version of Holdfast: {what}", device.name()))
}

/// Where labels may be: as computed from the device's size, and from the size that a label at the start tells.
pub(crate) fn read_labels(device: &dyn Device, blocks: u64) -> Result<Vec<(u64, LabelState)>> {
    let mut states = Vec::with_capacity(LABELS);
    for number in 0..LABELS {
        let address = label_start(number, blocks);
        let mut block = Block::zeroed();
        let state = match device.read(address, &mut [IoSliceMut::new(&mut block.0)]) {
            Ok(()) => Label::decode(&block.0, number, address),
            Err(error) if error.is_device_failure() => {
                LabelState::Damaged(Fault::new("label", "a readable block", error))
            }
            Err(error) => return Err(device_error(&error)),
        };
        states.push((address, state));
    }
    Ok(states)
}

/// Blocks of the store on a device, if its labels can be read: fewer than those of the device if that has been enlarged since, or has
/// something else at its end.
pub fn blocks_of_store(device: &dyn Device) -> Option<u64> {
    read_label(device).ok().map(|label| label.blocks)
}

/// The label that the valid ones agree on. They may differ in the size of the device, if the power failed while the store grew: then
/// the first one counts ([`crate::grow`]).
pub(crate) fn read_label(device: &dyn Device) -> Result<Label> {
    if device.blocks() < crate::format::DEVICE_BLOCKS_MIN {
        let (min, got) = (crate::format::DEVICE_BLOCKS_MIN, device.blocks());
        let kib = |blocks: u64| blocks * 4;
        return Err(Error::NoStore(format!(
            "{} holds no Holdfast store: its size is {} KiB, and the smallest store has {} KiB",
            device.name(),
            kib(got),
            kib(min)
        )));
    }
    let mut states = read_labels(device, device.blocks())?;
    let told = states.iter().find_map(|(_, state)| match state {
        LabelState::Valid(label) => Some(label.blocks),
        _ => None,
    });
    if let Some(blocks) = told {
        if blocks > device.blocks() {
            let expected = format!("{blocks} blocks, as the label says");
            return Err(Error::corrupt(
                device_place(device),
                "size",
                expected,
                format!("{}: truncated", device.blocks()),
            ));
        }
        if blocks < device.blocks() {
            // The device has grown since; the labels of the end are where it was.
            states = read_labels(device, blocks)?;
        }
    }
    let mut found: Option<(u64, Label)> = None;
    let (mut damaged, mut older) = (None, None);
    for (address, state) in states {
        match state {
            LabelState::Valid(label) => match &found {
                None => found = Some((address, label)),
                Some((_, other)) if *other == (Label { blocks: other.blocks, ..label.clone() }) => {}
                Some((first, other)) => {
                    let what = "label (of another store or device?)";
                    let got = format!("store {}, device {}", uuid(&label.store), uuid(&label.device));
                    let expected =
                        format!("store {}, device {}, as in block {first}", uuid(&other.store), uuid(&other.device));
                    return Err(Error::corrupt(block_place(device, address), what, expected, got));
                }
            },
            LabelState::OtherVersion(version) if version > FORMAT_VERSION => {
                return Err(newer(device, format!("format {version}, this one knows {FORMAT_VERSION}")));
            }
            LabelState::OtherVersion(version) => older = Some(version),
            LabelState::Damaged(fault) => damaged = damaged.or(Some((address, fault))),
            LabelState::Foreign => {}
        }
    }
    if let (None, Some(version)) = (&found, older) {
        let made = format!("the store has format {version}, of an older version of Holdfast");
        return Err(Error::NoStore(format!("{}: {made}; this one reads format {FORMAT_VERSION} only", device.name())));
    }
    match (found, damaged) {
        (Some((_, label)), _) if label.features.unknown_incompat() != 0 => {
            Err(newer(device, format!("features {}", hex(label.features.unknown_incompat()))))
        }
        (Some((_, label)), _) => Ok(label),
        (None, Some((address, fault))) => Err(fault.at(block_place(device, address))),
        (None, None) => Err(Error::NoStore(format!("{} holds no Holdfast store", device.name()))),
    }
}

/// A slot of a ring: where, and what is there.
pub(crate) type RingSlot = (usize, u64, std::result::Result<Option<Superblock>, Fault>);

/// All slots of all rings.
pub(crate) fn read_rings(device: &dyn Device, label: &Label) -> Result<Vec<RingSlot>> {
    let mut slots = Vec::with_capacity(LABELS * RING_SLOTS as usize);
    for number in 0..LABELS {
        for slot in 0..RING_SLOTS {
            let mut block = Block::zeroed();
            let address = ring_block(number, slot, label.blocks);
            let state = match device.read(address, &mut [IoSliceMut::new(&mut block.0)]) {
                Ok(()) => Superblock::decode(&block.0, label, number, slot),
                Err(error) if error.is_device_failure() => Err(Fault::new("superblock", "a readable block", error)),
                Err(error) => return Err(device_error(&error)),
            };
            slots.push((number, slot, state));
        }
    }
    Ok(slots)
}

/// The valid superblocks, newest first, one for each epoch.
pub(crate) fn read_superblocks(device: &dyn Device, label: &Label) -> Result<Vec<Superblock>> {
    let mut found: Vec<Superblock> = Vec::new();
    for (number, slot, state) in read_rings(device, label)? {
        let Ok(Some(superblock)) = state else { continue };
        if superblock.features.unknown_incompat() != 0 {
            return Err(newer(device, format!("features {}", hex(superblock.features.unknown_incompat()))));
        }
        match found.iter().find(|other| other.epoch == superblock.epoch) {
            Some(other) if *other == superblock => {}
            Some(_) => {
                let place = block_place(device, ring_block(number, slot, label.blocks));
                let expected = format!("the same for epoch {} in all labels", superblock.epoch);
                return Err(Error::corrupt(place, "superblock", expected, "another"));
            }
            None => found.push(superblock),
        }
    }
    found.sort_unstable_by_key(|superblock| std::cmp::Reverse(superblock.epoch));
    Ok(found)
}

/// Loads the bitmap; rebuilds it from the trees if it cannot be read. If that fails as well, no block counts as free, and the
/// disk is latched with the reason.
fn load_or_rebuild(
    base: &Base,
    label: &Label,
    superblock: &Superblock,
    trees: &mut Trees,
    bitmap: Bitmap,
) -> Result<()> {
    let unrepaired = base.disk.counters.unrepaired_blocks();
    let damage = match bitmap {
        Bitmap::Anew { .. } => None,
        Bitmap::AsStored => match load_bitmap(base, &mut base.alloc.lock(), label, superblock, trees) {
            Ok(()) => {
                return Ok(());
            }
            Err(error) => Some(error),
        },
    };
    base.alloc.lock().grow(label.blocks);
    if let Some(error) = &damage {
        tracing::error!(%error, "the allocation bitmap cannot be used: it is rebuilt from the trees");
    }
    match reach(base, label, superblock, trees, bitmap) {
        Ok(reached) => {
            load_reached(base, &mut base.alloc.lock(), label, trees, &reached)?;
            drop_bitmap(base, trees)?;
            if damage.is_some() {
                base.disk.counters.rebuilt(superblock.epoch, unrepaired);
            }
        }
        Err(obstacle) => {
            let chunks = base.alloc.lock().chunks();
            let words = vec![u64::MAX; chunks as usize * CHUNK_WORDS];
            base.alloc.lock().load_all(&words, &log_area(label));
            let why = damage.map_or_else(String::new, |damage| format!(" cannot be read ({damage}), and"));
            let reason = format!("the allocation bitmap{why} cannot be rebuilt ({obstacle})");
            tracing::error!(%reason, "the store is read-only");
            base.disk.latch(reason);
        }
    }
    Ok(())
}

/// Loads what the trees reach into an allocator for the blocks of the label.
///
/// # Errors
/// Somebody has written to the allocator who must not.
pub(crate) fn load_reached(
    base: &Base,
    alloc: &mut Alloc,
    label: &Label,
    trees: &mut Trees,
    reached: &Reached,
) -> Result<()> {
    trees.metadata = Counted::new(reached.metadata);
    alloc.load_all(&reached.used, &log_area(label));
    let taken = trees.audit.take_over(alloc, label, reached.metadata);
    taken.map_err(|scribble| base.give_up_epoch(scribble, NodeKey::new(system_key(BITMAP), 0, 0)))
}

/// Leaves out a bitmap in whose place one was rebuilt: what can be reached of it is free with the next epoch, which writes a new one.
///
/// # Errors
/// Those of changing the record.
pub(crate) fn drop_bitmap(base: &Base, trees: &mut Trees) -> Result<()> {
    trees.with_system(base, BITMAP, |trees, record| trees.remove_pages(base, system_key(BITMAP), record, 0, PAGES_MAX))
}

/// Loads the bitmap of a recovery point into an allocator for the blocks that it is for, which is then for those of the label.
pub(crate) fn load_bitmap(
    base: &Base,
    alloc: &mut Alloc,
    label: &Label,
    superblock: &Superblock,
    trees: &Trees,
) -> Result<()> {
    let key = system_key(BITMAP);
    let bitmap = &trees.system[&BITMAP];
    if let Some(beyond) = trees.seek(base, key, bitmap, alloc.chunks(), Seek::Data)? {
        let place = Place { object: Some(key), index: Some(beyond), ..base.disk.place(0) };
        return Err(Error::corrupt(place, "bitmap", format!("{} blocks", alloc.chunks()), "one beyond the device"));
    }
    for chunk in 0..alloc.chunks() {
        match trees.node(base, key, bitmap, 0, chunk)? {
            Some(block) => alloc.load_chunk(chunk, (0..CHUNK_WORDS).map(|word| block.word(word))),
            None => alloc.load_chunk(chunk, std::iter::repeat_n(0, CHUNK_WORDS)),
        }
    }
    alloc.stored_is(bitmap.levels, bitmap.root);
    let wrong = alloc.loaded(&log_area(label));
    let space = alloc.space();
    if wrong > 0 || space.total != superblock.total || space.free != superblock.free {
        let expected = format!("{} of {} blocks free, as the superblock says", superblock.free, superblock.total);
        let got = format!("{} of {}, {wrong} of labels and log not in use", space.free, space.total);
        return Err(Error::corrupt(base.disk.place(0), "bitmap", expected, got));
    }
    alloc.grow(label.blocks);
    Ok(())
}

/// Loads the records of domain 0.
pub(crate) fn load_system(base: &Base, superblock: &Superblock) -> Result<Trees> {
    let mut trees = Trees {
        objects: Counted::new(superblock.objects),
        next_generation: Counted::new(superblock.next_generation),
        metadata: Counted::new(superblock.metadata),
        ..Trees::default()
    };
    let table = system_key(0);
    let root = &superblock.root;
    let wrong_kind = |id: u64, got: &dyn std::fmt::Debug| {
        let place = Place { object: Some(system_key(id)), ..base.disk.place(0) };
        Error::corrupt(place, "kind of system object", format!("{:?}", system_kind(id)), format!("{got:?}"))
    };
    let fits = |id: u64, record: &Record| system_kind(id).map(RecordKind::System) == Some(record.kind);
    if !fits(0, root) {
        return Err(wrong_kind(0, &root.kind));
    }
    // Before anything is read: the next superblock has what becomes of this one.
    trees.system.insert(0, SealedRecord::own(root.clone(), base.disk.metadata));
    let mut page = 0;
    while let Some(next) = trees.seek(base, table, root, page, Seek::Data)? {
        if let Some(block) = trees.node(base, table, root, 0, next)? {
            for slot in 0..RECORDS {
                let id = next * RECORDS + slot;
                let record = Record::decode(block.record(slot as usize), superblock.epoch, base.disk.blocks(), false)
                    .map_err(|fault| fault.at(Place { object: Some(system_key(id)), ..base.disk.place(0) }))?;
                match record {
                    Some(record) if id > 0 && id < SYSTEM_END && fits(id, &record) => {
                        trees.system.insert(id, SealedRecord::own(record, base.disk.metadata));
                    }
                    Some(record) => return Err(wrong_kind(id, &record.kind)),
                    None => {}
                }
            }
        }
        page = next + 1;
    }
    for id in [0, 1, 2, 16, 17, 18] {
        if !trees.system.contains_key(&id) {
            return Err(wrong_kind(id, &"no record"));
        }
    }
    trees.load_snapshots(base, superblock);
    Ok(trees)
}

impl OpenOptions {
    /// For looking only: nothing is written.
    pub fn read_only() -> OpenOptions {
        OpenOptions { read_only: true, commit_order: CommitOrder::Correct, ..OpenOptions::default() }
    }
}
