//! Superblocks: one for each recovery point, in the rings of all labels.

use super::blockptr::EPOCH_MAX;
use super::fields::{Fields, fields};
use super::record::Record;
use super::{
    DEVICE_BLOCKS_MIN, FORMAT_VERSION, Fault, Features, LABEL_BLOCKS, LABELS, Label, RECORD_BYTES, RING_SLOTS,
    expect_zero, hex, label_start, uuid,
};
use holdfast_integrity::{Protection, crc64};
use holdfast_object::{Epoch, Timestamp};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset from which on the mark of an unused slot is zeros.
const UNUSED_ZERO_FROM: usize = std::mem::offset_of!(Raw, epoch);
pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"HFSUPER1";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    label: U16,
    slot: U16,
    store: [u8; 16],
    device: [u8; 16],
    epoch: U64,
    previous: U64,
    secs: I64,
    nanos: U32,
    clean: U32,
    features: [U64; 3],
    next_generation: U64,
    total: U64,
    free: U64,
    objects: U64,
    set_aside: U64,
    metadata: U64,
    metadata_kept: U64,
    protection: [u8; Protection::BYTES],
    reserved: [u8; 344],
    root: [u8; RECORD_BYTES],
    reserved_2: [u8; 3064],
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == 4096);
const _: () = assert!(std::mem::offset_of!(Raw, epoch) == 48);
const _: () = assert!(std::mem::offset_of!(Raw, root) == 512);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 4088);

pub(crate) const FIELDS: Fields = fields!(Raw {
    magic,
    version,
    label,
    slot,
    store,
    device,
    epoch,
    previous,
    secs,
    nanos,
    clean,
    features,
    next_generation,
    total,
    free,
    objects,
    set_aside,
    metadata,
    metadata_kept,
    protection,
    reserved,
    root,
    reserved_2,
    crc,
});

/// A decoded superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) store: [u8; 16],
    pub(crate) device: [u8; 16],
    pub(crate) epoch: Epoch,
    /// The recovery point before, 0 at first.
    pub(crate) previous: Epoch,
    pub(crate) time: Timestamp,
    /// The store was closed in order: nothing had been changed when this was written.
    pub(crate) clean: bool,
    pub(crate) features: Features,
    /// Generation of the next object that is created.
    pub(crate) next_generation: u64,
    /// Blocks that can be allocated.
    pub(crate) total: u64,
    /// Of those, free in this epoch.
    pub(crate) free: u64,
    /// Objects of the domain `main`.
    pub(crate) objects: u64,
    /// Blocks that only privileged users may fill.
    pub(crate) set_aside: u64,
    /// Blocks of metadata, two copies counted as one, in the trees and the object table of `main`.
    pub(crate) metadata: u64,
    /// Of these, those that the newest snapshot of `main` has too.
    pub(crate) metadata_kept: u64,
    /// How the contents of files are protected unless a mount says otherwise.
    pub(crate) protection: Protection,
    /// Record of domain 0's object table.
    pub(crate) root: Record,
}

impl Superblock {
    /// Blocks of the device that the bitmap of this recovery point is for. Fewer than the label says if the store has grown since.
    /// The label's if that is not possible: then the bitmap does not fit the superblock, whichever size is taken.
    pub(crate) fn covered(&self, label: &Label) -> u64 {
        let told = self.total.checked_add(LABELS as u64 * LABEL_BLOCKS + label.log_blocks).filter(|&told| {
            (DEVICE_BLOCKS_MIN..=label.blocks).contains(&told)
                && label.log_start + label.log_blocks <= label_start(LABELS - 2, told)
        });
        told.unwrap_or(label.blocks)
    }
}

/// Slot of an epoch in the ring.
pub(crate) fn slot(epoch: Epoch) -> u64 {
    epoch % RING_SLOTS
}

/// Block of slot `slot` of label `label`.
pub(crate) fn ring_block(label: usize, slot: u64, blocks: u64) -> u64 {
    label_start(label, blocks) + 1 + slot
}

impl Superblock {
    /// Encodes the copy that belongs in label `label`.
    pub(crate) fn encode(&self, label: usize) -> [u8; 4096] {
        debug_assert!(label < LABELS);
        let mut raw = Raw {
            magic: SUPERBLOCK_MAGIC,
            version: U32::new(FORMAT_VERSION),
            label: U16::new(label as u16),
            slot: U16::new(slot(self.epoch) as u16),
            store: self.store,
            device: self.device,
            epoch: U64::new(self.epoch),
            previous: U64::new(self.previous),
            secs: I64::new(self.time.secs),
            nanos: U32::new(self.time.nanos),
            clean: U32::new(u32::from(self.clean)),
            features: [self.features.compat, self.features.ro_compat, self.features.incompat].map(U64::new),
            next_generation: U64::new(self.next_generation),
            total: U64::new(self.total),
            free: U64::new(self.free),
            objects: U64::new(self.objects),
            set_aside: U64::new(self.set_aside),
            metadata: U64::new(self.metadata),
            metadata_kept: U64::new(self.metadata_kept),
            protection: self.protection.encode(),
            reserved: [0; 344],
            root: self.root.encode(),
            reserved_2: [0; 3064],
            crc: U64::new(0),
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..4088]));
        zerocopy::transmute!(raw)
    }

    /// The mark of slot `at` of label `number` in which no recovery point is. Zeros would not do: a write that the device has
    /// dropped leaves them too.
    pub(crate) fn unused(label: &Label, number: usize, at: u64) -> [u8; 4096] {
        let mut raw = Raw {
            magic: SUPERBLOCK_MAGIC,
            version: U32::new(FORMAT_VERSION),
            label: U16::new(number as u16),
            slot: U16::new(at as u16),
            store: label.store,
            device: label.device,
            ..Raw::new_zeroed()
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..4088]));
        zerocopy::transmute!(raw)
    }

    /// Decodes the block in slot `at` of label number `number`; `None` if it says that the slot is not in use.
    pub(crate) fn decode(
        bytes: &[u8; 4096],
        label: &Label,
        number: usize,
        at: u64,
    ) -> Result<Option<Superblock>, Fault> {
        let raw = checked(bytes)?;
        let blocks = label.blocks;
        if raw.version.get() != FORMAT_VERSION {
            return Err(Fault::new("superblock version", FORMAT_VERSION, raw.version));
        }
        let epoch = raw.epoch.get();
        let own = (usize::from(raw.label.get()), u64::from(raw.slot.get()));
        if own != (number, at) || epoch != 0 && slot(epoch) != at {
            let got = format!("label {}, slot {}, epoch {epoch}", own.0, own.1);
            return Err(Fault::new("superblock's own place", format!("label {number}, slot {at}"), got));
        }
        if (raw.store, raw.device) != (label.store, label.device) {
            return Err(Fault::new("store of superblock", uuid(&label.store), uuid(&raw.store)));
        }
        if epoch == 0 {
            expect_zero("mark of an unused slot", &bytes[UNUSED_ZERO_FROM..4088])?;
            return Ok(None);
        }
        let previous = raw.previous.get();
        if epoch > EPOCH_MAX || previous >= epoch {
            let expected = format!("previous < epoch <= {EPOCH_MAX}");
            return Err(Fault::new("epochs of superblock", expected, format!("{previous}, {epoch}")));
        }
        let (total, free) = (raw.total.get(), raw.free.get());
        if total > blocks || free > total {
            let got = format!("{free} free of {total}");
            return Err(Fault::new("block counts of superblock", format!("within {blocks} blocks"), got));
        }
        let (metadata, metadata_kept) = (raw.metadata.get(), raw.metadata_kept.get());
        if metadata > total || metadata_kept > metadata || raw.set_aside.get() > total {
            let got = format!("{metadata}, {metadata_kept} and {}", raw.set_aside);
            return Err(Fault::new("counts of metadata and set aside", format!("within {total} blocks"), got));
        }
        if raw.clean.get() > 1 || raw.nanos.get() >= 1_000_000_000 {
            return Err(Fault::new("clean flag of superblock", "0 or 1", raw.clean));
        }
        expect_zero("reserved bytes of superblock", &raw.reserved)?;
        expect_zero("reserved bytes of superblock", &raw.reserved_2)?;
        Superblock::fields(&raw, epoch, blocks).map(Some)
    }

    /// What [`Superblock::encode`] made of a superblock, also of one that is not for a device: of a store that is being created.
    pub(crate) fn decode_own(bytes: &[u8; 4096], blocks: u64) -> Result<Superblock, Fault> {
        Superblock::fields(&checked(bytes)?, EPOCH_MAX, blocks)
    }

    fn fields(raw: &Raw, newest: Epoch, blocks: u64) -> Result<Superblock, Fault> {
        let protection = Protection::decode(raw.protection)
            .map_err(|error| Fault::new("protection mode of superblock", "a known one", error))?;
        let Some(root) = Record::decode(&raw.root, newest, blocks, false)? else {
            return Err(Fault::new("record of object table 0", "one in use", "a free one"));
        };
        let [compat, ro_compat, incompat] = raw.features.map(U64::get);
        Ok(Superblock {
            store: raw.store,
            device: raw.device,
            epoch: raw.epoch.get(),
            previous: raw.previous.get(),
            time: Timestamp { secs: raw.secs.get(), nanos: raw.nanos.get() },
            clean: raw.clean.get() == 1,
            features: Features { compat, ro_compat, incompat },
            next_generation: raw.next_generation.get(),
            total: raw.total.get(),
            free: raw.free.get(),
            objects: raw.objects.get(),
            set_aside: raw.set_aside.get(),
            metadata: raw.metadata.get(),
            metadata_kept: raw.metadata_kept.get(),
            protection,
            root,
        })
    }
}

/// A block that says it is a superblock, and has the checksum of one.
fn checked(bytes: &[u8; 4096]) -> Result<Raw, Fault> {
    let raw: Raw = zerocopy::transmute!(*bytes);
    if raw.magic != SUPERBLOCK_MAGIC {
        return Err(Fault::new("superblock magic", "HFSUPER1", String::from_utf8_lossy(&raw.magic)));
    }
    let crc = crc64(&bytes[..4088]);
    if raw.crc.get() != crc {
        return Err(Fault::new("superblock checksum", hex(raw.crc.get()), hex(crc)));
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SystemKind;

    fn superblock() -> Superblock {
        Superblock {
            store: [1; 16],
            device: [2; 16],
            epoch: 33,
            previous: 30,
            time: Timestamp { secs: -1, nanos: 1 },
            clean: true,
            features: Features::default(),
            next_generation: 9,
            total: 1000,
            free: 10,
            objects: 3,
            set_aside: 50,
            metadata: 20,
            metadata_kept: 7,
            protection: Protection::Dynamic { t_switch_s: 92 },
            root: Record::system(SystemKind::ObjectTable, 1),
        }
    }

    fn label(blocks: u64) -> Label {
        Label {
            store: [1; 16],
            device: [2; 16],
            blocks,
            features: Features::default(),
            created: Timestamp { secs: 1, nanos: 2 },
            log_start: 32,
            log_blocks: 16,
        }
    }

    #[test]
    fn round_trip_at_its_own_place_only() {
        let bytes = superblock().encode(2);
        assert_eq!(Superblock::decode(&bytes, &label(4096), 2, 3).unwrap().unwrap(), superblock());
        assert!(Superblock::decode(&bytes, &label(4096), 1, 3).is_err());
        assert!(Superblock::decode(&bytes, &label(4096), 2, 4).is_err());
        assert!(Superblock::decode(&bytes, &label(999), 2, 3).is_err());
        assert!(Superblock::decode(&bytes, &Label { store: [7; 16], ..label(4096) }, 2, 3).is_err());
        assert!(Superblock::decode(&bytes, &Label { device: [7; 16], ..label(4096) }, 2, 3).is_err());
    }

    #[test]
    fn an_unused_slot_says_so_and_zeros_are_damage() {
        let label = label(4096);
        let mark = Superblock::unused(&label, 1, 14);
        assert_eq!(Superblock::decode(&mark, &label, 1, 14), Ok(None));
        assert!(Superblock::decode(&mark, &label, 2, 14).is_err());
        assert!(Superblock::decode(&mark, &label, 1, 13).is_err());
        assert!(Superblock::decode(&mark, &Label { store: [7; 16], ..label.clone() }, 1, 14).is_err());
        assert!(Superblock::decode(&[0; 4096], &label, 1, 14).is_err());
        for at in 0..4096 {
            let mut bytes = mark;
            bytes[at] ^= 0x04;
            assert!(Superblock::decode(&bytes, &label, 1, 14).is_err(), "byte {at}");
            let crc = crc64(&bytes[..4088]).to_le_bytes();
            bytes[4088..].copy_from_slice(&crc);
            assert!(at >= 4088 || Superblock::decode(&bytes, &label, 1, 14).is_err(), "byte {at} with its checksum");
        }
    }

    #[test]
    fn every_flipped_byte_is_seen() {
        for at in 0..4096 {
            let mut bytes = superblock().encode(0);
            bytes[at] ^= 0x40;
            assert!(Superblock::decode(&bytes, &label(4096), 0, 3).is_err(), "byte {at}");
        }
    }
}
