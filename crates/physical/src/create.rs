//! Making a new store on a device.

use crate::disk::{Block, Disk, device_error};
use crate::format::label::LabelState;
use crate::format::superblock::ring_block;
use crate::format::{
    DEVICE_BLOCKS_MAX, DEVICE_BLOCKS_MIN, Features, LABEL_BLOCKS, LABELS, Label, RING_SLOTS, Record, Superblock,
    label_start, log_blocks,
};
use crate::module::{Module, OpenOptions, base, log_area};
use crate::sealed::{Sealed, SealedLabel};
use crate::tree::Trees;
use holdfast_block::Device;
use holdfast_integrity::Protection;
use holdfast_object::{Arena, Clock, Error, ObjectStore, Result};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// What a new store is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// UUID of the store: 16 random bytes from the caller.
    pub store_uuid: [u8; 16],
    /// UUID of the device: 16 other random bytes.
    pub device_uuid: [u8; 16],
    /// Blocks of 4 KiB that only privileged users may fill; at most half of the store.
    pub set_aside_blocks: u64,
    /// How the contents of files are protected.
    pub protection: Protection,
    /// Also where there is a store already. Its contents are lost.
    pub overwrite: bool,
}

impl CreateOptions {
    /// A store where there is none yet, in the mode `uniform`, with nothing set aside.
    pub fn new(store_uuid: [u8; 16], device_uuid: [u8; 16]) -> CreateOptions {
        CreateOptions {
            store_uuid,
            device_uuid,
            set_aside_blocks: 0,
            protection: Protection::Uniform,
            overwrite: false,
        }
    }
}

impl Module {
    /// Makes an empty store on `device`: epoch 1, the domain `main` without objects. The device holds no store before the
    /// last write is durable; with `overwrite`, the old one is gone from the first write on.
    ///
    /// # Errors
    /// [`Error::Limit`] if the device is too small (below 2 MiB) or too large; [`Error::NoStore`] if there is a store
    /// already; [`Error::Device`].
    pub fn create(
        device: Arc<dyn Device>,
        arena: Arc<Arena>,
        clock: Arc<dyn Clock>,
        options: &CreateOptions,
    ) -> Result<()> {
        let blocks = device.blocks();
        if !(DEVICE_BLOCKS_MIN..=DEVICE_BLOCKS_MAX).contains(&blocks) {
            let limit = if blocks < DEVICE_BLOCKS_MIN { DEVICE_BLOCKS_MIN } else { DEVICE_BLOCKS_MAX };
            return Err(Error::Limit { what: "blocks of a device for a store", limit, got: blocks });
        }
        if !options.overwrite {
            refuse_store(&*device)?;
        }
        let known = SealedLabel::new(&Label {
            store: options.store_uuid,
            device: options.device_uuid,
            blocks,
            features: Features::default(),
            created: clock.now(),
            log_start: 2 * LABEL_BLOCKS,
            log_blocks: log_blocks(blocks),
        });
        let disk = Disk::new(device, blocks);
        let label = clear(&disk, &known)?;
        let trees = Trees::create(1);
        let mut superblock = Superblock {
            store: label.store,
            device: label.device,
            epoch: 0,
            previous: 0,
            time: label.created,
            clean: false,
            features: label.features,
            next_generation: 1,
            total: 0,
            free: 0,
            objects: 0,
            set_aside: 0,
            metadata: 0,
            metadata_kept: 0,
            protection: options.protection,
            root: Record::clone(&trees.system[&0]),
        };
        superblock.set_aside = options.set_aside_blocks;
        let options = OpenOptions::default();
        let base = base(disk, &label, label.blocks, &options, clock.clone());
        let sealed = Sealed::new(&label, &superblock, base.disk.metadata);
        let module = Module::assemble(base, arena, clock, sealed, trees)?;
        module.log.lock().set_empty();
        module.prepare(1)?;
        module.publish(1)?;
        let label = module.label()?;
        let copies: Vec<[u8; 4096]> = (0..LABELS).map(|number| label.encode(number)).collect();
        let at = |number| label_start(number, blocks);
        module.disk().write_blocks(copies.iter().enumerate().map(|(number, bytes)| (at(number), bytes)))?;
        module.disk().flush()?;
        debug_assert_eq!(ring_block(0, 1 % RING_SLOTS, blocks), 2);
        Ok(())
    }
}

/// Takes away what was there: no label first, then no superblock of an earlier store, and a log area that needs no allocation later. That takes long, so the
/// label is sealed meanwhile; gives it as it was.
///
/// # Errors
/// The label has gone bad in memory, and there is none on the device; or those of the device.
fn clear(disk: &Disk, known: &SealedLabel) -> Result<Label> {
    let open = || known.open().map_err(|fault| fault.at(disk.place(0)));
    zero(disk, 0, 2 * LABEL_BLOCKS)?;
    zero(disk, label_start(2, disk.blocks()), 2 * LABEL_BLOCKS)?;
    for number in 0..LABELS {
        write_unused(disk, &open()?, number)?;
    }
    disk.flush()?;
    let area = log_area(&open()?);
    zero(disk, area.start, area.end - area.start)?;
    open()
}

/// `Err` if there is a label of any version, good or damaged.
fn refuse_store(device: &dyn Device) -> Result<()> {
    for number in 0..LABELS {
        let mut block = Block::zeroed();
        let address = label_start(number, device.blocks());
        device.read(address, &mut [IoSliceMut::new(&mut block.0)]).map_err(|error| device_error(&error))?;
        if Label::decode(&block.0, number, address) != LabelState::Foreign {
            return Err(Error::NoStore(format!("{} holds a Holdfast store already", device.name())));
        }
    }
    Ok(())
}

/// Marks all slots of a ring as not in use.
pub(crate) fn write_unused(disk: &Disk, label: &Label, number: usize) -> Result<()> {
    let marks: Vec<[u8; 4096]> = (0..RING_SLOTS).map(|slot| Superblock::unused(label, number, slot)).collect();
    let at = |slot| ring_block(number, slot, label.blocks);
    disk.write_blocks((0..RING_SLOTS).zip(&marks).map(|(slot, bytes)| (at(slot), bytes)))
}

/// Writes zeros, 1 MiB at a time.
pub(crate) fn zero(disk: &Disk, first: u64, count: u64) -> Result<()> {
    const STEP: u64 = 256;
    let zeros = holdfast_block::AlignedBuf::zeroed(STEP as usize * 4096);
    let mut at = first;
    while at < first + count {
        let step = STEP.min(first + count - at);
        disk.write_run(at, &[IoSlice::new(&zeros[..step as usize * 4096])])?;
        at += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::tests::meanwhile::{Meanwhile, Request, flip};
    use holdfast_block::MemoryDevice;
    use holdfast_object::Timestamp;

    #[test]
    fn no_store_is_made_with_a_label_that_goes_bad_while_zeros_are_written() {
        let blocks = 4096;
        let label = Label {
            store: [1; 16],
            device: [2; 16],
            blocks,
            features: Features::default(),
            created: Timestamp { secs: 5, nanos: 6 },
            log_start: 2 * LABEL_BLOCKS,
            log_blocks: log_blocks(blocks),
        };
        let bytes =
            label.encode(0).iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect::<Vec<_>>();
        assert!(bytes.len() > 50);
        let area = log_area(&label);
        for (at, first) in bytes.into_iter().flat_map(|at| [0, area.start].map(|first| (at, first))) {
            let device = Meanwhile::on(MemoryDevice::new(blocks));
            let disk = Disk::new(device.clone(), blocks);
            let known = SealedLabel::new(&label);
            let address = known.address(at) as usize;
            device.set(move |request, block, _| {
                if (request, block) == (Request::Written, first) {
                    flip(address as *const u8, 1);
                }
            });
            let outcome = clear(&disk, &known);
            assert!(matches!(outcome, Err(Error::Corrupt(_))), "byte {at}, struck at block {first}: {outcome:?}");
            refuse_store(&device.inner).expect("there is no label");
        }
    }
}
