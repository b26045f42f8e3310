//! The label block: what device this is, and of which store.

use super::fields::{Fields, fields};
use super::{FORMAT_VERSION, Fault, LABEL_BLOCKS, LABELS, expect_zero, hex, label_start};
use holdfast_integrity::crc64;
use holdfast_object::Timestamp;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) const LABEL_MAGIC: [u8; 8] = *b"HOLDFAST";

/// Feature flags. A reader that does not know a bit may go on (compatible), may only read (read-only-compatible), or must
/// stop (incompatible).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Features {
    pub(crate) compat: u64,
    pub(crate) ro_compat: u64,
    pub(crate) incompat: u64,
}

/// Bits that this version knows: none yet.
const KNOWN_RO_COMPAT: u64 = 0;
const KNOWN_INCOMPAT: u64 = 0;

impl Features {
    /// Bits that forbid reading.
    pub(crate) fn unknown_incompat(&self) -> u64 {
        self.incompat & !KNOWN_INCOMPAT
    }

    /// Bits that forbid writing.
    pub(crate) fn unknown_ro_compat(&self) -> u64 {
        self.ro_compat & !KNOWN_RO_COMPAT
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    label: U16,
    reserved: U16,
    address: U64,
    store: [u8; 16],
    device: [u8; 16],
    device_index: U16,
    device_count: U16,
    reserved_2: U32,
    blocks: U64,
    features: [U64; 3],
    created_secs: I64,
    created_nanos: U32,
    block_size: U32,
    log_start: U64,
    log_blocks: U64,
    reserved_3: [u8; 3960],
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == 4096);
const _: () = assert!(std::mem::offset_of!(Raw, blocks) == 64);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 4088);

pub(crate) const FIELDS: Fields = fields!(Raw {
    magic,
    version,
    label,
    reserved,
    address,
    store,
    device,
    device_index,
    device_count,
    reserved_2,
    blocks,
    features,
    created_secs,
    created_nanos,
    block_size,
    log_start,
    log_blocks,
    reserved_3,
    crc,
});

/// A decoded label block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub(crate) store: [u8; 16],
    pub(crate) device: [u8; 16],
    pub(crate) blocks: u64,
    pub(crate) features: Features,
    pub(crate) created: Timestamp,
    pub(crate) log_start: u64,
    pub(crate) log_blocks: u64,
}

/// What a block that should be a label is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LabelState {
    /// A label of this version.
    Valid(Label),
    /// A label of another version.
    OtherVersion(u32),
    /// A label once, with damage.
    Damaged(Fault),
    /// Not a label.
    Foreign,
}

impl Label {
    pub(crate) fn encode(&self, label: usize) -> [u8; 4096] {
        let mut raw = Raw {
            magic: LABEL_MAGIC,
            version: U32::new(FORMAT_VERSION),
            label: U16::new(label as u16),
            reserved: U16::new(0),
            address: U64::new(label_start(label, self.blocks)),
            store: self.store,
            device: self.device,
            device_index: U16::new(0),
            device_count: U16::new(1),
            reserved_2: U32::new(0),
            blocks: U64::new(self.blocks),
            features: [self.features.compat, self.features.ro_compat, self.features.incompat].map(U64::new),
            created_secs: I64::new(self.created.secs),
            created_nanos: U32::new(self.created.nanos),
            block_size: U32::new(4096),
            log_start: U64::new(self.log_start),
            log_blocks: U64::new(self.log_blocks),
            reserved_3: [0; 3960],
            crc: U64::new(0),
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..4088]));
        zerocopy::transmute!(raw)
    }

    /// Judges the block read from `address`, where label number `label` should be.
    pub(crate) fn decode(bytes: &[u8; 4096], label: usize, address: u64) -> LabelState {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != LABEL_MAGIC {
            return LabelState::Foreign;
        }
        let crc = crc64(&bytes[..4088]);
        if raw.crc.get() != crc {
            return LabelState::Damaged(Fault::new("label checksum", hex(raw.crc.get()), hex(crc)));
        }
        if raw.version.get() != FORMAT_VERSION {
            return LabelState::OtherVersion(raw.version.get());
        }
        match Self::judge(&raw, label, address) {
            Ok(label) => LabelState::Valid(label),
            Err(fault) => LabelState::Damaged(fault),
        }
    }

    fn judge(raw: &Raw, label: usize, address: u64) -> Result<Label, Fault> {
        if usize::from(raw.label.get()) != label || raw.address.get() != address {
            let got = format!("label {} of block {}", raw.label, raw.address);
            return Err(Fault::new("label's own place", format!("label {label} of block {address}"), got));
        }
        let (index, count) = (raw.device_index.get(), raw.device_count.get());
        if (index, count) != (0, 1) {
            let got = format!("device {index} of {count}");
            return Err(Fault::new("devices of the store", "one; more are of a newer version", got));
        }
        let (blocks, log_start, log_blocks) = (raw.blocks.get(), raw.log_start.get(), raw.log_blocks.get());
        if !(super::DEVICE_BLOCKS_MIN..=super::DEVICE_BLOCKS_MAX).contains(&blocks) {
            return Err(Fault::new("blocks of the device", "a size that a store can have", blocks));
        }
        let end = log_start.checked_add(log_blocks);
        let log_fits = log_start >= 2 * LABEL_BLOCKS && end.is_some_and(|end| end <= label_start(LABELS - 2, blocks));
        if !log_fits || log_blocks < super::LOG_BLOCKS_MIN || log_blocks % 2 != 0 || log_blocks > 1 << 20 {
            return Err(Fault::new("intent log area", "within the device", format!("{log_start} + {log_blocks}")));
        }
        if raw.block_size.get() != 4096 || raw.created_nanos.get() >= 1_000_000_000 {
            return Err(Fault::new("block size", 4096, raw.block_size));
        }
        if raw.reserved.get() != 0 || raw.reserved_2.get() != 0 {
            return Err(Fault::new("reserved bytes of label", "zero", "others"));
        }
        expect_zero("reserved bytes of label", &raw.reserved_3)?;
        let [compat, ro_compat, incompat] = raw.features.map(U64::get);
        Ok(Label {
            store: raw.store,
            device: raw.device,
            blocks,
            features: Features { compat, ro_compat, incompat },
            created: Timestamp { secs: raw.created_secs.get(), nanos: raw.created_nanos.get() },
            log_start,
            log_blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            store: [1; 16],
            device: [2; 16],
            blocks: 4096,
            features: Features { compat: 1, ro_compat: 2, incompat: 4 },
            created: Timestamp { secs: 1, nanos: 2 },
            log_start: 32,
            log_blocks: 64,
        }
    }

    #[test]
    fn round_trip_at_its_own_place_only() {
        for number in 0..LABELS {
            let address = label_start(number, 4096);
            let bytes = label().encode(number);
            assert_eq!(Label::decode(&bytes, number, address), LabelState::Valid(label()));
            assert!(matches!(Label::decode(&bytes, (number + 1) % 4, address), LabelState::Damaged(_)));
            assert!(matches!(Label::decode(&bytes, number, address + 1), LabelState::Damaged(_)));
        }
    }

    #[test]
    fn every_flipped_byte_is_seen() {
        for at in 0..4096 {
            let mut bytes = label().encode(0);
            bytes[at] ^= 1;
            assert!(!matches!(Label::decode(&bytes, 0, 0), LabelState::Valid(_)), "byte {at}");
        }
    }

    #[test]
    fn other_versions_are_named() {
        let mut bytes = label().encode(0);
        bytes[8] = 77;
        let crc = crc64(&bytes[..4088]);
        bytes[4088..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Label::decode(&bytes, 0, 0), LabelState::OtherVersion(77));
    }
}
